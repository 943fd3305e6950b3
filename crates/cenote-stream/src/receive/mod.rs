//! Receives one substream into a pool (spec 07 B9).
//!
//! ```text
//!   BEGIN ──> Receiver::begin     the dataset, INCONSISTENT             one txg
//!   OBJECT, WRITE, FREE, ... ──> Receiver::apply                        the open txg, each
//!   END ──> Receiver::apply, Receiver::finish    the snapshot           one txg
//! ```
//!
//! The caller reads the stream, with [`StreamReader`](crate::StreamReader), and pushes one record
//! after the other. A record is applied in a transaction on the received head, like a change of a
//! file: it is admitted by the quotas and the space of the pool, and waits while too many changes
//! are in memory. A receive that runs out of space fails with `Kind::NoSpace` or `Kind::Quota`, and
//! has then changed nothing that users see. Writes are made while the next ones are read
//! ([`batch`]): two batches are in memory, each of 1 MiB or of one larger record.
//!
//! Compressed and embedded blocks keep the form in which they were sent, whatever the compression
//! of the receiving dataset is. They are expanded first: a form that cannot be read is refused, and
//! a block that is not the whole of one here is written like any other.
//!
//! Durability: the point at which an interrupted receive is resumed is noted in the transaction
//! that changes the data in front of it, and gets to disk with that data
//! ([`cenote_engine::ReceivePoints`]). Nothing here flushes.
//!
//! Records must come in the order of objects, and those of an object in the order of offsets, so
//! that the resume point covers everything before it: a stream that goes backwards is refused.
//!
//! Blocks of raw streams are stored as they are ([`raw`]). Deduplicated streams are refused.

mod batch;
mod data;
mod error;
mod heal;
mod objects;
mod payload;
mod raw;

use std::sync::Arc;

use cenote_dmu::{Tx, TxResult};
use cenote_engine::{
    ApplyOptions, Charge, Engine, Head, NewEncryption, NewReceive, ReceiveChoices, ReceivePoint,
    Reception, RedactionGuids,
};
use cenote_ondisk::blkptr::BLOCK_SIZE_MAX;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::stream::{Begin, HeaderType, ObjectFlags, Record, RecordLimits, StreamFeatures};
use cenote_ondisk::zap::Value;
use cenote_pool::dsl::deleg::Requester;
use cenote_rt::{Error, JoinHandle, Kind, Result};

use batch::Batch;
pub use error::ReceiveError;
pub use heal::{Healed, Healer};
use objects::{ObjectRules, Put};
use raw::Raw;

use crate::{BeginPayload, Item};

/// Bytes that a change of a dnode is charged.
const DNODE_COST: u64 = 16 << 10;
/// Most objects that one transaction frees.
const FREES_MAX: usize = 64;
/// Most txgs for which an object waits until its slots are free.
const CLAIMS_MAX: usize = 3;

/// How a substream is received.
#[derive(Debug, Clone, Default)]
pub struct ReceiveOptions {
    /// Full name of the file system or volume.
    pub target: String,
    /// Short name of the snapshot; that of the sender if it is `None`.
    pub snapshot: Option<String>,
    /// The snapshot whose clone is received into.
    pub origin: Option<String>,
    /// Discard changes since the source, later snapshots, and contents that a full stream replaces
    /// (`-F`).
    pub is_forced: bool,
    /// Keep what was received if the stream ends early (`-s`).
    pub is_resumable: bool,
    /// How a new dataset is encrypted, unless the stream is raw.
    pub encryption: NewEncryption,
    /// The user who receives.
    pub requester: Requester,
    /// Local properties of a new dataset.
    pub props: Vec<(String, Value)>,
}

/// Receives one substream. If it is dropped without [`finish`](Self::finish) or
/// [`abort`](Self::abort), the received dataset stays, inconsistent, until it is resumed, destroyed
/// or, without resume keys, the pool is opened again.
#[derive(Debug)]
pub struct Receiver {
    engine: Arc<Engine>,
    reception: Reception,
    limits: RecordLimits,
    endian: Endian,
    rules: ObjectRules,
    /// What a raw stream has said.
    raw: Option<Raw>,
    /// Object and offset of the last record that has one.
    last: Option<(u64, u64)>,
    /// The newest resume point.
    point: ReceivePoint,
    highest_object: u64,
    /// Writes that are collected.
    batch: Option<Batch>,
    /// Writes that are being made.
    in_flight: Option<JoinHandle<Result<()>>>,
    is_ended: bool,
}

impl Receiver {
    /// Begins to receive the substream that `begin` begins, in the byte order of the stream.
    ///
    /// # Errors
    /// [`ReceiveError`], [`cenote_engine::ReceiveRefusal`] and [`cenote_engine::OpError`] as the
    /// causes of refusals, after which nothing has changed; errors of the pool.
    pub async fn begin(
        engine: &Arc<Engine>,
        begin: &Item,
        endian: Endian,
        options: ReceiveOptions,
    ) -> Result<Self> {
        let record = substream(begin)?;
        let limits = RecordLimits::new(record, BLOCK_SIZE_MAX);
        let new = new_receive(record, &begin.payload, options)?;
        let is_full = new.is_full();
        let raw = new.is_raw().then(Raw::default);
        if raw.is_some() && endian != Endian::Little {
            return Err(ReceiveError::ForeignOrder { object: 0 }.into());
        }
        let reception = engine.receives().begin(new).await?;
        let has_zstd = record.features.contains(StreamFeatures::ZSTD);
        let has_spill_flags = limits.has_spill_flags;
        Ok(Self {
            engine: Arc::clone(engine),
            point: reception.start(),
            reception,
            limits,
            endian,
            rules: ObjectRules { is_full, has_spill_flags, has_zstd },
            raw,
            last: None,
            highest_object: 0,
            batch: None,
            in_flight: None,
            is_ended: false,
        })
    }

    /// Returns the receive in the pool.
    #[must_use]
    pub const fn reception(&self) -> &Reception {
        &self.reception
    }

    /// Applies a record behind BEGIN.
    ///
    /// # Errors
    /// [`ReceiveError`] for a record that cannot be applied; `Kind::NoSpace`, `Kind::Quota`; errors
    /// of the pool, also those of records before this one. After an error the receive can only
    /// be aborted.
    pub async fn apply(&mut self, item: Item) -> Result<()> {
        if self.is_ended {
            return Err(ReceiveError::Misplaced { name: item.record.name() }.into());
        }
        let name = item.record.name();
        check(&item, &self.limits)?;
        let bytes = item.offset.saturating_add(item.stored_len());
        let is_raw = self.raw.is_some();
        if !matches!(item.record, Record::Write(_)) {
            self.settle().await?;
        }
        match &item.record {
            Record::Object(object) if is_raw => self.object_raw(object, &item.payload, bytes).await,
            Record::Write(write) if is_raw => self.write_raw(write, item.payload, bytes).await,
            Record::Spill(spill) if is_raw && !self.keeps_spill(spill) => {
                self.spill_raw(spill, item.payload).await
            }
            Record::ObjectRange(range) => self.object_range(range),
            Record::Object(object) => self.object(object, &item.payload, bytes).await,
            Record::FreeObjects(range) => {
                self.free_objects(range.first, range.first.saturating_add(range.count)).await
            }
            Record::Write(write) => self.write(write, item.payload, bytes).await,
            Record::WriteEmbedded(embedded) => {
                self.write_embedded(embedded, &item.payload, bytes).await
            }
            Record::Spill(spill) => self.spill(spill, item.payload).await,
            // Redacted blocks become holes; the dataset is marked.
            Record::Free(range) | Record::Redact(range) => self.free(range).await,
            Record::End(_) => {
                self.is_ended = true;
                Ok(())
            }
            Record::Begin(_) | Record::WriteByRef(_) => {
                Err(ReceiveError::Misplaced { name }.into())
            }
        }
    }

    /// Ends the receive, after the END record was applied: the snapshot exists when this returns.
    /// If it fails, nothing has changed; it can be called again, or the receive aborted.
    ///
    /// # Errors
    /// [`ReceiveError::NoEnd`]; `Kind::Busy` if the target is in use; the errors of
    /// [`cenote_engine::Receives::end`].
    pub async fn finish(&mut self) -> Result<()> {
        if !self.is_ended {
            return Err(ReceiveError::NoEnd.into());
        }
        if self.reception.is_full_into_clone() {
            // The sender has no objects above the highest one of a full stream.
            self.free_objects(self.highest_object.saturating_add(1), u64::MAX).await?;
        }
        self.engine.receives().end(&self.reception).await
    }

    /// Gives the receive up: what was received is kept and durable if the receive is resumable, and
    /// destroyed otherwise.
    ///
    /// # Errors
    /// The errors of [`cenote_engine::Receives::abort`].
    pub async fn abort(mut self) -> Result<()> {
        // A write that fails was not received; what was behind it is dropped with it.
        let _ = self.settle().await;
        self.engine.receives().abort(self.reception).await
    }

    fn head(&self) -> &Head {
        self.reception.head()
    }

    /// Checks that records do not go backwards, and returns the resume point of one at this
    /// place, with the bytes of the stream behind it.
    fn point_at(&mut self, object: u64, offset: u64, bytes: u64) -> Result<ReceivePoint> {
        let start = self.reception.start();
        let place = (object, offset);
        if self.last.is_some_and(|last| place < last) || object < start.object {
            return Err(ReceiveError::Order { object, offset }.into());
        }
        self.last = Some(place);
        self.highest_object = self.highest_object.max(object);
        let bytes = start.bytes.saturating_add(bytes);
        // The object at which a stream is resumed is sent again, with the offset 0.
        let place = place.max((self.point.object, self.point.offset));
        self.point = ReceivePoint { object: place.0, offset: place.1, bytes };
        Ok(self.point)
    }

    /// Changes the head in a transaction. The closure returns whether the point is reached.
    async fn change<T>(
        &self,
        charge: Charge,
        point: Option<ReceivePoint>,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<(T, bool)>,
    ) -> Result<T> {
        let head = self.head();
        let run = |tx: &mut Tx<'_>| {
            let (done, is_reached) = change(tx)?;
            // The last step: nothing fails from here on.
            if let Some(point) = point.filter(|_| is_reached) {
                head.received().note(tx.txg(), point);
            }
            Ok(done)
        };
        Ok(self.engine.apply(head, ApplyOptions::charged(charge), run).await?.0)
    }

    async fn object(
        &mut self,
        record: &cenote_ondisk::stream::Object,
        payload: &[u8],
        bytes: u64,
    ) -> Result<()> {
        let point = self.point_of_object(record, bytes)?;
        let bonus = payload::bonus(record, payload, self.endian);
        let rules = self.rules;
        self.put_object(record.object, point, |tx| objects::put(tx, record, &bonus, rules)).await
    }

    /// Applies an OBJECT: a number can be claimed in a txg after the one that freed it.
    async fn put_object(
        &self,
        object: u64,
        point: ReceivePoint,
        put: impl Fn(&mut Tx<'_>) -> TxResult<Put>,
    ) -> Result<()> {
        for _ in 0..=CLAIMS_MAX {
            let done = self.change(Charge::write(DNODE_COST), Some(point), |tx| {
                let done = put(tx)?;
                Ok((done, done == Put::Done))
            });
            match done.await {
                Ok(Put::Done) => return Ok(()),
                Ok(Put::Freed) => {}
                Err(error) if error.kind() == Kind::Exists => {}
                Err(error) => return Err(error),
            }
            self.engine.sync().await?;
        }
        Err(ReceiveError::SlotsTaken { object }.into())
    }

    /// Returns the resume point of an OBJECT.
    fn point_of_object(
        &mut self,
        record: &cenote_ondisk::stream::Object,
        bytes: u64,
    ) -> Result<ReceivePoint> {
        let is_again = self.last.is_some_and(|(object, _)| object == record.object);
        if is_again {
            return Err(ReceiveError::Order { object: record.object, offset: 0 }.into());
        }
        self.point_at(record.object, 0, bytes)
    }

    /// Whether a SPILL only says that the block did not change: OBJECT kept it.
    const fn keeps_spill(&self, record: &cenote_ondisk::stream::Spill) -> bool {
        record.flags.contains(ObjectFlags::SPILL) && self.limits.has_spill_flags
    }

    /// Frees the objects `first .. end`, those that exist.
    async fn free_objects(&self, first: u64, end: u64) -> Result<()> {
        let mut next = first.max(1);
        loop {
            let found = self.head().live().inspect(|tx| tx.next_object(next)).await?;
            match found.filter(|object| *object < end) {
                Some(object) => next = object,
                None => return Ok(()),
            }
            next = self
                .change(Charge::free(DNODE_COST), None, |tx| {
                    Ok((objects::free_some(tx, next..end, FREES_MAX)?, false))
                })
                .await?;
        }
    }
}

/// Returns the BEGIN of a substream.
fn substream(begin: &Item) -> Result<&Begin> {
    let Record::Begin(record) = &begin.record else {
        return Err(ReceiveError::Misplaced { name: begin.record.name() }.into());
    };
    if record.header != HeaderType::Substream {
        return Err(ReceiveError::Package.into());
    }
    Ok(record)
}

/// Checks the fields of a record, and the length of its payload.
fn check(item: &Item, limits: &RecordLimits) -> Result<()> {
    let name = item.record.name();
    let invalid = |source| ReceiveError::Invalid { name, offset: item.offset, source };
    item.record.check(limits).map_err(invalid)?;
    let (len, expected) = (item.payload.len() as u64, item.record.payload_len());
    if len != expected {
        return Err(ReceiveError::PayloadLength { name, len, expected }.into());
    }
    Ok(())
}

/// Returns the parameters of a receive from BEGIN and its payload.
fn new_receive(begin: &Begin, payload: &[u8], options: ReceiveOptions) -> Result<NewReceive> {
    let number = u64::from(begin.objset_kind);
    let kind = ObjSetType::from_id(number)
        .filter(|kind| matches!(kind, ObjSetType::Zfs | ObjSetType::Zvol))
        .ok_or(ReceiveError::ObjSetKind { number })?;
    let sent = String::from_utf8_lossy(&begin.to_name).into_owned();
    let snapshot = match options.snapshot {
        Some(snapshot) => snapshot,
        None => match sent.split_once('@') {
            Some((_, snapshot)) => snapshot.to_owned(),
            None => return Err(ReceiveError::NoSnapshotName { name: sent }.into()),
        },
    };
    let payload = BeginPayload::decode(payload)
        .map_err(|source| Error::from(ReceiveError::BeginPayload { source }))?;
    let resumes_at = payload.resume.map(|point| (point.object, point.offset));
    Ok(NewReceive {
        target: options.target,
        snapshot,
        sender_name: begin.to_name.clone(),
        kind,
        to_guid: begin.to_guid,
        from_guid: begin.from_guid,
        creation_time: begin.creation_time,
        features: begin.features,
        flags: begin.flags,
        redaction: RedactionGuids {
            of_snapshot: payload.redact_snaps,
            of_source: payload.redact_from_snaps,
        },
        keys: payload.crypt_keydata.as_ref().map(raw::sent_keys),
        origin: options.origin,
        resumes_at,
        choices: ReceiveChoices {
            is_forced: options.is_forced,
            is_resumable: options.is_resumable,
            encryption: options.encryption,
            requester: options.requester,
            props: options.props,
        },
    })
}
