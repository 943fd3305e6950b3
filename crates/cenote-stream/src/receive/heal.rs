//! Corrective receive: writes blocks of a snapshot that cannot be read again, with the bytes that a
//! stream of the same snapshot has of them (zfs-receive(8), `-c`).
//!
//! ```text
//!   WRITE ── the snapshot's pointer ── every copy read, and mended from the good ones
//!                                       `─ none is good: the stream's bytes in their stored form,
//!                                          if they have the pointer's checksum ── written
//! ```
//!
//! Blocks of an encrypted dataset get the salt and IV that their pointers have: the same bytes as
//! before, or none. A raw stream has the stored form, and needs no keys.
//!
//! Nothing of the pool changes but bytes that were bad. Only data blocks that the stream has can be
//! healed. A block whose bytes cannot be made of the stream is left, and counted.
//!
//! Several records are in work at a time, so that devices are read in parallel. Each looks at a
//! committed state, which a pin keeps in place until the pool needs its space; then the record
//! begins again with a newer state.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use cenote_block::{Grounds, MendKind, SentForm};
use cenote_codec::compress::{self, Compression, ZstdLevel};
use cenote_codec::crypto::{BlockKeys, BlockKind, ByteOrder, Seal};
use cenote_dmu::ObjSet;
use cenote_engine::Engine;
use cenote_ondisk::blkptr::{BLOCK_SIZE_MAX, BlockPtr, Protection};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::stream::{Record, RecordLimits, StreamFeatures, Write};
use cenote_pool::errlog::{DamagedBlock, DamagedSet};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Buf, Error, JoinHandle, Kind, Result};

use super::{ReceiveError, check, payload, substream};
use crate::Item;

/// Most bytes of payloads in work, or one longer payload; and most records.
const IN_FLIGHT_MAX: usize = 8 << 20;
const RECORDS_MAX: usize = 32;
/// Healed blocks after which their entries leave the log of errors.
const FORGET_EVERY: usize = 1024;
/// Time for which a state of the pool is kept if the pool does not need its space.
const VIEW_TIME: Duration = Duration::from_mins(10);
/// Numbers of the levels of Zstandard, ordinary and fast ones.
const ZSTD_LEVELS: [std::ops::RangeInclusive<u8>; 2] = [1..=19, 103..=123];

/// What a corrective receive did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Healed {
    /// Blocks of the stream that the snapshot has.
    pub examined: u64,
    /// Blocks that had no good copy, and were written again.
    pub healed: u64,
    /// Blocks without a good copy for which the stream does not have the bytes.
    pub left: u64,
}

/// State of a block after a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// The snapshot has no block there that could be damaged.
    Nothing,
    /// A copy is good; others are mended from it.
    Good,
    /// It was written again.
    Healed(Place, BlockPtr),
    /// The stream does not have its bytes.
    Left,
}

/// Object and number of a data block.
type Place = (u64, u64);

/// The snapshot.
#[derive(Debug)]
struct Snapshot {
    engine: Arc<Engine>,
    name: String,
    guid: u64,
    /// Byte order of the stream.
    endian: Endian,
    /// Whether the stream is raw.
    is_raw: bool,
    /// The snapshot in the state of the pool that is looked at.
    set: Mutex<Option<Arc<ObjSet>>>,
}

/// A record in work.
#[derive(Debug)]
struct Work {
    bytes: usize,
    task: JoinHandle<Result<Outcome>>,
}

/// Heals a snapshot with the records of a stream.
#[derive(Debug)]
pub struct Healer {
    snapshot: Arc<Snapshot>,
    limits: RecordLimits,
    works: VecDeque<Work>,
    /// Bytes of payloads in work.
    bytes: usize,
    done: Healed,
    /// Healed blocks whose entries are still in the log of errors.
    to_forget: BTreeMap<Place, BlockPtr>,
    is_ended: bool,
}

impl Healer {
    /// Begins to heal the snapshot `name` with the substream that `begin` begins, in the byte order
    /// of the stream.
    ///
    /// # Errors
    /// [`ReceiveError::OtherSnapshot`] if the stream is of another snapshot; `Kind::NotFound`;
    /// errors of the pool.
    pub async fn begin(
        engine: &Arc<Engine>,
        begin: &Item,
        endian: Endian,
        name: &str,
    ) -> Result<Self> {
        let record = substream(begin)?;
        let (engine, name, guid) = (Arc::clone(engine), name.to_owned(), record.to_guid);
        let set = Mutex::with_default(Rank::Healing);
        let is_raw = record.features.contains(StreamFeatures::RAW);
        let snapshot = Snapshot { engine, name, guid, endian, is_raw, set };
        snapshot.open().await?;
        Ok(Self {
            snapshot: Arc::new(snapshot),
            limits: RecordLimits::new(record, BLOCK_SIZE_MAX),
            works: VecDeque::new(),
            bytes: 0,
            done: Healed::default(),
            to_forget: BTreeMap::new(),
            is_ended: false,
        })
    }

    /// Applies a record behind BEGIN. Only those of data blocks count.
    ///
    /// # Errors
    /// [`ReceiveError`] for an invalid record, and for one that does not fit the snapshot; errors
    /// of the pool.
    pub async fn apply(&mut self, item: Item) -> Result<()> {
        if self.is_ended {
            return Err(ReceiveError::Misplaced { name: item.record.name() }.into());
        }
        check(&item, &self.limits)?;
        match item.record {
            Record::Write(record) => {
                let bytes = item.payload.len();
                self.settle(RECORDS_MAX - 1, IN_FLIGHT_MAX.saturating_sub(bytes)).await?;
                let snapshot = Arc::clone(&self.snapshot);
                let payload = Buf::from(item.payload);
                let task = cenote_rt::spawn(async move { snapshot.check(&record, &payload).await });
                self.works.push_back(Work { bytes, task });
                self.bytes += bytes;
            }
            Record::End(_) => self.is_ended = true,
            _ => {}
        }
        Ok(())
    }

    /// Ends the work: what was healed has left the log of errors when this returns.
    ///
    /// # Errors
    /// [`ReceiveError::NoEnd`] if END was not applied; errors of the pool.
    pub async fn finish(mut self) -> Result<Healed> {
        self.settle(0, 0).await?;
        self.forget().await?;
        if !self.is_ended {
            return Err(ReceiveError::NoEnd.into());
        }
        Ok(self.done)
    }

    /// Waits until not more than these records and bytes of payloads are in work.
    async fn settle(&mut self, records: usize, bytes: usize) -> Result<()> {
        while self.works.len() > records || self.bytes > bytes {
            let Some(work) = self.works.pop_front() else { break };
            self.bytes -= work.bytes;
            let ended = work.task.await.map_err(|error| Error::new(Kind::Io, error))?;
            let outcome = ended?;
            self.done.examined += u64::from(outcome != Outcome::Nothing);
            match outcome {
                Outcome::Nothing | Outcome::Good => {}
                Outcome::Healed(place, bp) => {
                    self.done.healed += 1;
                    self.to_forget.insert(place, bp);
                }
                Outcome::Left => self.done.left += 1,
            }
        }
        if self.to_forget.len() >= FORGET_EVERY {
            self.forget().await?;
        }
        Ok(())
    }

    /// Removes the healed blocks from the log of errors, for every dataset that shares them.
    async fn forget(&mut self) -> Result<()> {
        let healed = std::mem::take(&mut self.to_forget);
        if healed.is_empty() {
            return Ok(());
        }
        let engine = &self.snapshot.engine;
        // Errors that were found are recorded by the sync.
        engine.sync().await?;
        let entries = loop {
            match entries_about(engine, &healed).await {
                // Another view is used if one was given up.
                Err(error) if error.kind() == Kind::Overtaken => {}
                entries => break entries?,
            }
        };
        engine.scans().forget_errors(entries).await
    }
}

/// Returns the entries of the log of errors that are about these blocks.
async fn entries_about(
    engine: &Engine,
    blocks: &BTreeMap<Place, BlockPtr>,
) -> Result<Vec<DamagedBlock>> {
    let view = engine.view().await?;
    let (mut entries, mut set) = (Vec::new(), None::<(u64, DamagedSet)>);
    for entry in view.error_log().await? {
        let place = entry.place;
        let bp = blocks.get(&(place.object, place.blkid)).filter(|_| place.level == 0);
        let Some(bp) = bp else { continue };
        let of_entry = match set.take() {
            Some((objset, found)) if objset == place.objset => found,
            _ => DamagedSet::load(&view, place.objset).await?,
        };
        let found = match of_entry.pointer(&entry).await {
            Err(error) if error.kind() == Kind::Overtaken => return Err(error),
            // If what leads to it is damaged, the entry stays.
            found => found.ok().flatten(),
        };
        set = Some((place.objset, of_entry));
        if found.is_some_and(|found| found.dvas().eq(bp.dvas()) && found.birth() == bp.birth()) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

impl Snapshot {
    /// Opens the snapshot in the present state of the pool.
    async fn open(&self) -> Result<Arc<ObjSet>> {
        let dataset = self.engine.view_for(VIEW_TIME).await?.dataset(&self.name).await?;
        if !dataset.phys().is_snapshot() || dataset.phys().guid != self.guid {
            return Err(ReceiveError::OtherSnapshot.into());
        }
        let set =
            if self.is_raw { dataset.open_without_key().await? } else { dataset.open().await? };
        *self.set.lock() = Some(Arc::clone(&set));
        Ok(set)
    }

    /// Reads the block of a record, and heals it.
    async fn check(&self, record: &Write, payload: &Buf) -> Result<Outcome> {
        loop {
            let opened = self.set.lock().clone();
            let set = match opened {
                Some(set) if set.grounds().check().is_ok() => set,
                _ => self.open().await?,
            };
            match self.check_in(&set, record, payload).await {
                Err(error) if error.kind() == Kind::Overtaken => {}
                done => return done,
            }
        }
    }

    async fn check_in(&self, set: &ObjSet, record: &Write, payload: &Buf) -> Result<Outcome> {
        let (object, offset) = (record.object, record.offset);
        let other = || Error::from(ReceiveError::OtherBlock { object, offset });
        let dnode = set.dnode(object).await.map_err(|error| match error.kind() {
            Kind::NotFound => other(),
            _ => error,
        })?;
        let size = dnode.phys().data_block_size();
        if record.logical_len != size || !offset.is_multiple_of(size) {
            return Err(other());
        }
        let blkid = offset / size;
        let found = dnode.block_pointer(0, blkid).await?;
        let (Some(bp), Grounds::Pinned(pin)) = (found, set.grounds()) else {
            return Ok(Outcome::Nothing);
        };
        let store = self.engine.store();
        if store.mend(&bp, pin, MendKind::Unread).await?.unreadable == 0 {
            return Ok(Outcome::Good);
        }
        let is_found = if self.is_raw {
            store.restore(&bp, pin, stored(&bp, payload.to_vec()).into_iter()).await?
        } else {
            let kind = dnode.phys().object_type;
            let (contents, sent) = self.contents(record, kind, payload).await?;
            let keys = set.keys().cloned();
            let forms =
                forms(&bp, contents, sent).filter_map(move |form| seal(&bp, keys.as_deref(), form));
            store.restore(&bp, pin, forms).await?
        };
        if !is_found {
            return Ok(Outcome::Left);
        }
        let is_good = store.mend(&bp, pin, MendKind::Counted).await?.unreadable == 0;
        Ok(if is_good { Outcome::Healed((object, blkid), bp) } else { Outcome::Left })
    }

    /// Returns the contents of a record's block, and the form in which they were sent if that was
    /// compressed.
    async fn contents(
        &self,
        record: &Write,
        kind: ObjectType,
        payload: &Buf,
    ) -> Result<(Buf, Option<SentForm>)> {
        let payload = payload.to_vec();
        if record.compression == 0 {
            return Ok((payload::block(payload, 0, kind, self.endian), None));
        }
        let (place, len) = ((record.object, record.offset), record.logical_len as usize);
        let (contents, sent) = payload::expand(place, payload, record.compression, len).await?;
        Ok((Buf::from(contents), Some(sent)))
    }
}

/// Returns the forms in which the contents of a block may be stored, likely ones first.
fn forms(
    bp: &BlockPtr,
    contents: Buf,
    sent: Option<SentForm>,
) -> impl Iterator<Item = Vec<u8>> + Send + use<> {
    let (bp, psize) = (*bp, bp.psize() as usize);
    let function = bp.compression().and_then(|found| Compression::from_id(found.id()));
    let as_sent = sent.filter(|sent| Some(sent.compression) == function);
    let as_sent = as_sent.map(|sent| sent.bytes.to_vec());
    let as_it_is = (function == Some(Compression::Off)).then(|| contents.to_vec());
    let levels = match function {
        Some(Compression::Zstd) => ZSTD_LEVELS.to_vec(),
        Some(Compression::Off) | None => Vec::new(),
        Some(_) => vec![ZstdLevel::DEFAULT.id()..=ZstdLevel::DEFAULT.id()],
    };
    let levels = levels.into_iter().flatten().filter_map(ZstdLevel::from_id);
    let packed = levels.filter_map(move |level| {
        let mut packed = vec![0; psize];
        let len = compress::compress(function?, level, &contents, &mut packed)?;
        packed.truncate(len);
        Some(packed)
    });
    as_sent.into_iter().chain(as_it_is).chain(packed).filter_map(move |form| stored(&bp, form))
}

/// Returns the bytes of a block with the length in which it is stored, unless they are too many.
fn stored(bp: &BlockPtr, mut form: Vec<u8>) -> Option<Vec<u8>> {
    let psize = bp.psize() as usize;
    let fits = form.len() <= psize;
    form.resize(psize, 0);
    fits.then_some(form)
}

/// Encrypts a block with the salt and IV of its pointer, if the result is what the pointer is of.
fn seal(bp: &BlockPtr, keys: Option<&BlockKeys>, mut form: Vec<u8>) -> Option<Vec<u8>> {
    if bp.protection() == Protection::Unencrypted {
        return Some(form);
    }
    let seal = Seal::from_words(bp.words());
    let kind = BlockKind::of(bp.object_type().0, ByteOrder::Little);
    let mac = keys?.encrypt_block(kind, seal.salt, &seal.iv, &mut form).ok()?;
    (mac == seal.mac).then_some(form)
}
