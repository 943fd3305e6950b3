//! Replays the logs of an earlier import (spec 07 A13).
//!
//! ```text
//!   each record:  the sink applies it ── one transaction ── and the log notes how far it has got
//!   at the end:   sync ── the chain goes, with the data blocks of its records ── sync
//! ```
//!
//! The change and the progress are in one txg, so a crash in the middle is harmless: replayed
//! records are not replayed again. The chain is removed only after all of it is on disk.
//!
//! A replayer applies the records: this crate has one for volumes, file systems bring their own. A
//! claimed log without a replayer stays unchanged.
//!
//! Invariants
//! * L11  Nothing of a head is changed before its claimed log was replayed.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_block::{Grounds, ReadContext, SealKeys};
use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_ondisk::blkptr::{BLOCK_SIZE_MAX, BlockPtr};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zil::record::{records, unswap};
use cenote_ondisk::zil::{Body, LogBlock, Record, RecordKind, ZilFlags, ZilHeader, block_seq};
use cenote_rt::{Buf, Error, Kind, Result};

use crate::IntentLogs;
use crate::Notice;
use crate::error::ZilError;
use crate::txg::apply::ApplyOptions;
use crate::zil::Head;
use crate::zil::chain::Stage;
use crate::zil::claim::{is_end, read_native};
use crate::zil::commit::adopt;

/// An operation to replay.
#[derive(Debug)]
pub struct Operation<'a> {
    /// Its record.
    pub record: Record<'a>,
    /// Its decoded body.
    pub body: Body<'a>,
    /// Contents of the file block of an indirect write; zeros for a hole. If the write is shorter
    /// than the block, the whole block is written, at the offset rounded down to its size.
    pub block: Option<Buf>,
}

/// Applies the operations of a log.
pub trait Replayer: Send + Sync {
    /// Applies an operation. May be called several times, like every transaction.
    ///
    /// # Errors
    /// `Kind::Unsupported` for unknown operations: the log then stays. Any other error that occurs
    /// twice ends the replay, and the rest of the log is lost.
    fn replay(&self, tx: &mut Tx<'_>, operation: &Operation<'_>) -> TxResult<()>;
}

/// Result of a replay.
#[derive(Debug, Default)]
pub struct Replayed {
    /// Number of applied records.
    pub applied: u64,
    /// Number of records that were already on disk, or whose object was freed.
    pub skipped: u64,
    /// Why it ended early: the rest of the log is lost.
    pub failure: Option<Error>,
}

/// Replays volumes: writes and discards of their only object.
#[derive(Debug, Clone, Copy, Default)]
pub struct VolumeReplayer;

/// The object with a volume's data.
const VOLUME_OBJECT: u64 = 1;

impl Replayer for VolumeReplayer {
    fn replay(&self, tx: &mut Tx<'_>, operation: &Operation<'_>) -> TxResult<()> {
        match (&operation.body, &operation.block) {
            (Body::Write { offset, data: Some(data), .. }, _) => {
                tx.write(VOLUME_OBJECT, *offset, data)
            }
            (Body::Write { offset, len, data: None, .. }, Some(block)) => {
                let size = block.len() as u64;
                let start = if *len < size { offset - offset % size.max(1) } else { *offset };
                tx.write(VOLUME_OBJECT, start, block)
            }
            (Body::Truncate { offset, len, .. }, _) => {
                tx.free_range(VOLUME_OBJECT, *offset, (*len > 0).then_some(*len))
            }
            _ => {
                let kind = operation.record.kind_number;
                let cause = ZilError::RecordKind { of: "a volume", kind };
                Err(TxStop::Fail(Error::new(Kind::Unsupported, cause)))
            }
        }
    }
}

/// A block of a claimed chain.
struct LoadedBlock {
    bytes: Buf,
    bp: BlockPtr,
}

/// A claimed chain.
#[derive(Default)]
struct LoadedChain {
    /// The readable blocks.
    loaded: Vec<LoadedBlock>,
    /// All claimed blocks.
    all: Vec<BlockPtr>,
    /// The block at which it ends too early: it was readable when it was claimed.
    cut: Option<u64>,
}

/// Result of replaying a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    Applied,
    Skipped,
}

impl IntentLogs<'_> {
    /// Sets the replayer for object sets of this type, for [`replay_all`](Self::replay_all).
    pub fn set_replayer(self, kind: ObjSetType, sink: Arc<dyn Replayer>) {
        self.replayers().retain(|(of, _)| *of != kind);
        self.replayers().push((kind, sink));
    }

    /// Replays every claimed log that has a replayer. Others stay unchanged.
    ///
    /// # Errors
    /// The errors of [`replay`](Self::replay).
    pub async fn replay_all(self) -> Result<Vec<(u64, Replayed)>> {
        let mut done = Vec::new();
        // These were opened at import.
        let heads = self.engine.heads.all().into_iter().filter(|head| head.log().is_claimed());
        for head in heads.collect::<Vec<_>>() {
            let object = head.object();
            let sinks = self.replayers().clone();
            let kind = head.live().kind();
            let Some((_, sink)) = sinks.into_iter().find(|(of, _)| *of == kind) else { continue };
            if let Some(replayed) = self.replay(&head, &*sink).await? {
                done.push((object, replayed));
            }
        }
        Ok(done)
    }

    /// Returns the heads whose logs have no replayer. That of an encrypted dataset waits for its
    /// key.
    pub fn unreplayed(self) -> Vec<Arc<Head>> {
        let all = self.engine.heads.all().into_iter();
        all.filter(|head| head.log().awaits_replay() && !head.is_locked()).collect()
    }

    /// Replays the log of a head, before any other change of it; returns `None` if there is nothing
    /// to replay. Afterwards the log is empty. That of an encrypted head without its keys stays.
    ///
    /// # Errors
    /// `Kind::Unsupported` if the replayer does not know an operation: the rest of the log stays.
    /// Errors of a sync; [`EngineError::Suspended`] if the pool is closed by force meanwhile.
    pub async fn replay(self, head: &Head, sink: &dyn Replayer) -> Result<Option<Replayed>> {
        // Prevents writing of the log during its replay.
        let _writer = self.writer_of(head.log()).await?;
        adopt(head);
        if head.is_locked() {
            return Ok(None);
        }
        let Stage::Claimed(header) = head.log().chain().stage.clone() else { return Ok(None) };
        if !header.flags.contains(ZilFlags::REPLAY_NEEDED) {
            self.discard(head, &header).await?;
            self.engine.sync().await?;
            return Ok(None);
        }
        // Numbers of freed objects may be needed.
        self.engine.sync().await?;
        let mut replayed = Replayed::default();
        let result = self.replay_chain(head, &header, sink, &mut replayed).await;
        // Replayed changes must be on disk before the records are removed.
        self.engine.sync().await?;
        match result {
            Err(error) if is_kept(error.kind()) => {
                return Err(error);
            }
            Err(error) => {
                let (dataset, cause) = (head.object(), error.to_string());
                self.engine.health().add_notice(Notice::LogCut { dataset, cause });
                replayed.failure = Some(error);
            }
            Ok(()) => {}
        }
        self.discard(head, &header).await?;
        self.engine.sync().await?;
        Ok(Some(replayed))
    }

    async fn replay_chain(
        self,
        head: &Head,
        header: &ZilHeader,
        sink: &dyn Replayer,
        replayed: &mut Replayed,
    ) -> Result<()> {
        let (_, limit) = header.limits();
        let chain = self.load_chain(header, head.seal_keys()).await?;
        for LoadedBlock { bytes, bp } in chain.loaded {
            let block = LogBlock::decode(&bytes, &bp).map_err(Error::corrupt)?;
            for record in records(block.records) {
                let record = record.map_err(Error::corrupt)?;
                if record.seq > limit {
                    return Ok(());
                }
                if record.seq <= header.replay_seq || record.txg < header.claim_txg {
                    replayed.skipped += 1;
                    continue;
                }
                let is_swapped = bp.endian() == Endian::Big;
                match self.replay_record(head, &record, is_swapped, sink).await? {
                    Outcome::Applied => replayed.applied += 1,
                    Outcome::Skipped => replayed.skipped += 1,
                }
            }
        }
        match chain.cut {
            Some(seq) => Err(Error::corrupt(ZilError::Unreadable { seq })),
            None => Ok(()),
        }
    }

    async fn replay_record(
        self,
        head: &Head,
        record: &Record<'_>,
        is_swapped: bool,
        sink: &dyn Replayer,
    ) -> Result<Outcome> {
        let written = if is_swapped { unswap(record.bytes) } else { Vec::new() };
        let written = if is_swapped { &written[..] } else { record.bytes };
        let body = Body::decode(record, written).map_err(Error::corrupt)?;
        if body == Body::Unknown {
            let cause = ZilError::RecordKind { of: "a dataset", kind: record.kind_number };
            return Err(Error::new(Kind::Unsupported, cause));
        }
        let block = match &body {
            Body::Write { bp, len, data: None, .. } if record.kind() == Some(RecordKind::Write) => {
                Some(self.indirect_data(head, bp, *len).await?)
            }
            _ => None,
        };
        let operation = Operation { record: *record, body, block };
        match self.replay_once(head, &operation, sink).await {
            Err(error) if error.kind() != Kind::Unsupported => {
                // A number freed in this txg can be reused in the next.
                self.engine.sync().await?;
                self.replay_once(head, &operation, sink).await
            }
            result => result,
        }
    }

    async fn replay_once(
        self,
        head: &Head,
        operation: &Operation<'_>,
        sink: &dyn Replayer,
    ) -> Result<Outcome> {
        let object = object_of(&operation.body);
        let options = ApplyOptions::replayed(operation.record.seq);
        let applied = self.engine.apply(head, options, |tx| {
            if let Some(object) = object
                && tx.find(object)?.is_none()
            {
                return Ok(Outcome::Skipped);
            }
            sink.replay(tx, operation)?;
            Ok(Outcome::Applied)
        });
        Ok(applied.await?.0)
    }

    async fn indirect_data(self, head: &Head, bp: &BlockPtr, len: u64) -> Result<Buf> {
        if bp.is_hole() {
            // A hole need not have a size.
            let len = len.max(bp.lsize());
            if len > BLOCK_SIZE_MAX {
                return Err(Error::corrupt(ZilError::Hole { len }));
            }
            return Ok(cenote_rt::BufMut::zeroed(len as usize).freeze());
        }
        let place = cenote_ondisk::bookmark::Bookmark {
            objset: head.object(),
            object: 0,
            level: cenote_ondisk::bookmark::LEVEL_ZIL,
            blkid: 0,
        };
        let keys = head.seal_keys();
        let (keys, is_encrypted) = (keys.as_ref().map(|keys| keys.keys()), head.is_encrypted());
        let read = async |grounds: &Grounds| {
            let bypass_cache = true;
            let context = ReadContext {
                place,
                keys,
                is_encrypted,
                bypass_cache,
                grounds,
                ..ReadContext::default()
            };
            self.engine.store.read(bp, &context).await
        };
        // A power cut may have prevented writing some copies or columns of this block, since no
        // flush followed: that is no error of a device. Nothing needs a repair either, since the
        // block is freed with the log.
        match read(&Grounds::Speculative).await {
            Ok(data) => Ok(data),
            // The block was readable when it was claimed: its loss is damage.
            Err(_) => read(&Grounds::Allocated).await,
        }
    }

    /// Queues the blocks of a claimed chain to be freed by the next sync, with the data blocks of
    /// its records; both within the limits of the claim.
    pub(super) async fn discard(self, head: &Head, header: &ZilHeader) -> Result<()> {
        let blocks = self.load_chain(header, None).await?.all;
        head.log().chain().stage = Stage::Discarding(blocks);
        Ok(())
    }

    /// Returns the readable blocks of a claimed chain, and all claimed blocks.
    async fn load_chain(
        self,
        header: &ZilHeader,
        keys: Option<Arc<SealKeys>>,
    ) -> Result<LoadedChain> {
        let (limit_block, limit_record) = header.limits();
        let mut chain = LoadedChain::default();
        let mut seen = BTreeSet::new();
        let mut bp = header.log;
        let mut last_record = 0;
        while !bp.is_hole() && bp.validate().is_ok() && block_seq(&bp) <= limit_block {
            if !seen.insert(address(&bp)) {
                break;
            }
            chain.all.push(bp);
            // The last one was claimed and never written: nothing of it is needed. Before that, a
            // failing device does not end the chain: the log stays until the device is back.
            let is_tail = block_seq(&bp) == limit_block && last_record >= limit_record;
            let bytes = match read_native(&self.engine.store, &bp, keys.as_deref()).await {
                Ok(bytes) => bytes,
                Err(error) if is_tail || is_end(&error) => Buf::empty(),
                Err(error) => return Err(error),
            };
            let Ok(block) = LogBlock::decode(&bytes, &bp) else {
                chain.cut = Some(block_seq(&bp)).filter(|seq| *seq < limit_block);
                break;
            };
            for record in records(block.records).map_while(std::result::Result::ok) {
                if record.seq > limit_record {
                    break;
                }
                last_record = record.seq;
                let is_hidden = keys.is_none() && record.is_hidden(&bp);
                if let Ok(Body::Write { bp, data: None, .. }) = Body::decode(&record, record.bytes)
                    && !is_hidden
                    && bp.birth() >= header.claim_txg
                    && !bp.is_hole()
                    && !bp.is_embedded()
                    && seen.insert(address(&bp))
                {
                    chain.all.push(bp);
                }
            }
            let next = block.next;
            chain.loaded.push(LoadedBlock { bytes, bp });
            bp = next;
        }
        Ok(chain)
    }
}

/// Whether a log stays after an error of its replay: the same log can be replayed later, or by
/// another program.
const fn is_kept(kind: Kind) -> bool {
    matches!(kind, Kind::Unsupported | Kind::Io | Kind::KeyUnavailable)
}

fn address(bp: &BlockPtr) -> Option<(u32, u64)> {
    bp.dva(0).map(|dva| (dva.vdev, dva.offset))
}

/// Returns the object of an operation, which may have been freed before the replay.
fn object_of(body: &Body<'_>) -> Option<u64> {
    match body {
        Body::Write { object, .. }
        | Body::Truncate { object, .. }
        | Body::Setattr { object, .. }
        | Body::SetSaXattr { object, .. }
        | Body::Acl { object, .. }
        | Body::CloneRange { object, .. } => Some(*object),
        _ => None,
    }
}
