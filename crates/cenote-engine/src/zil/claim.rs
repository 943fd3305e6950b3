//! Checks and claims the logs of an earlier import (spec 07 A5, A12).
//!
//! ```text
//!   every head with an unclaimed chain:   walk, taking nothing     an error refuses the import
//!   then every one again:                 walk, taking the space   header: claimed, with limits
//!   then:                                 sync, until no block on disk is from the future
//! ```
//!
//! The chain ends at a block or record data that cannot be read or is not free: nothing after it
//! was acknowledged. The block at the end is claimed as well, because it was allocated.
//!
//! A power cut may have kept an unacknowledged block on some leaves only. Once it is claimed, its
//! records count, so it gets its redundancy before the claim is committed: a device that fails
//! afterwards must not take the log with it.
//!
//! Invariants
//! * Z1  The number of txgs that the import passes through is bounded, because it comes from the
//!   births of log blocks. A block beyond the bound refuses the import, unless the administrator
//!   drops the logs.
//! * Z2  All chains are claimed in the first txg after the import, before it allocates anything.
//!
//! Order that crash safety depends on: nothing is allocated before all chains are claimed, and all
//! of them are claimed in one txg. A crash before its uberblock leaves everything unchanged.

use std::sync::Arc;

use cenote_block::{BlockStore, Grounds, SealKeys};
use cenote_dmu::ObjSet;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::byteswap;
use cenote_ondisk::dsl::DatasetPhys;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ZIL_HEADER_LEN;
use cenote_ondisk::zil::record::records;
use cenote_ondisk::zil::{Body, LogBlock, ZilFlags, ZilHeader, block_seq};
use cenote_pool::Pool;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, Error, FixedSet, Kind, Result, ensure};

use crate::IntentLogs;
use crate::error::ZilError;
use crate::zil::Head;
use crate::zil::chain::no_header;
use crate::zil::commit::adopt;
use crate::{Notice, invariant_error};

/// Most txgs that a log block can be ahead of the last commit: OpenZFS does not rewrite the
/// uberblock of an idle pool while its open txg advances. With a txg every 5 seconds, it is 2.6
/// years.
const TXGS_AHEAD_MAX: u64 = 1 << 24;

/// Refuses a block from a txg that cannot have been reached (Z1).
fn check_birth(bp: &BlockPtr, first_txg: u64) -> Result<()> {
    // Checks Z1.
    if bp.birth() > first_txg.saturating_add(TXGS_AHEAD_MAX) {
        return Err(Error::corrupt(ZilError::Birth { birth: bp.birth(), first_txg }));
    }
    Ok(())
}

/// A head with a chain on disk.
struct HeadLog {
    object: u64,
    header: ZilHeader,
}

/// The extent of a chain.
#[derive(Debug, Clone, Copy, Default)]
struct Extent {
    max_block: u64,
    max_record: u64,
    has_records: bool,
    newest_birth: u64,
}

impl IntentLogs<'_> {
    /// Claims the chains of all heads, before anything else is allocated. With `are_dropped` they
    /// are discarded instead: a log device is missing, and the administrator accepts that.
    ///
    /// # Errors
    /// Errors of a device that is needed to read the logs.
    pub(crate) async fn claim(self, pool: &Arc<Pool>, are_dropped: bool) -> Result<()> {
        let LogsOnDisk { unclaimed: logs, claimed: claimed_before, unread } =
            logs_on_disk(pool).await?;
        if !unread.is_empty() {
            self.note_unread(&unread);
            self.engine.health().add_notice(Notice::LogsUnread { datasets: unread });
        }
        if is_on(Bug::ClaimAfterAllocate) {
            self.engine.change_config_between_syncs(crate::Config::touch).await;
            self.engine.sync().await?;
        }
        let first_txg = self.engine.open_txg();
        let (imported, last) = (pool.uberblock().txg, self.engine.uberblock().txg);
        ensure!("Z2", last == imported, "txg {last} was committed before the logs were claimed");
        let changed = self.engine.alloc.changed(first_txg).len();
        ensure!("Z2", changed == 0, "{changed} metaslabs changed before the logs were claimed");
        let mut dropped = Vec::new();
        for HeadLog { object, header } in claimed_before {
            let head = self.engine.datasets().head_of_object(object).await?;
            if !header.flags.contains(ZilFlags::REPLAY_NEEDED) {
                // Its only block was never written.
                adopt(&head);
                continue;
            }
            match read_native(&self.engine.store, &header.log, None).await {
                Err(error) if !is_end(&error) && !are_dropped => {
                    return Err(error.with_at(|at| at.objset = Some(object)));
                }
                Err(error) if !is_end(&error) => {
                    let header = self.drop_chain(&header, first_txg, first_txg).await?;
                    put_header(&head, first_txg, &header)?;
                    dropped.push(object);
                }
                _ => {}
            }
            adopt(&head);
        }
        // The pool was just rewound to its checkpoint: blocks of chains from that time may be
        // overwritten.
        let rewound = Some(self.engine.uberblock().checkpoint_txg).filter(|txg| *txg != 0);
        // Or to an older uberblock: its logs are discarded with everything later.
        let rewound = rewound.or(Some(pool.txg()).filter(|txg| txg + 1 < first_txg));
        let missing = match self.check(&logs, first_txg).await {
            _ if rewound.is_some() => true,
            Ok(()) => false,
            Err(error) if !are_dropped => return Err(error),
            Err(_) => true,
        };
        let unrecorded = rewound.map_or(first_txg, |txg| txg + 1);
        let mut newest_birth = 0;
        for log in &logs {
            let header = if missing {
                dropped.push(log.object);
                self.drop_chain(&log.header, first_txg, unrecorded).await?
            } else {
                let extent = self.walk_chain(&log.header, first_txg, false).await?;
                newest_birth = newest_birth.max(extent.newest_birth);
                claimed_header(&log.header, &extent, first_txg)
            };
            let head = self.engine.datasets().head_of_object(log.object).await?;
            put_header(&head, first_txg, &header)?;
            adopt(&head);
        }
        let txg = self.engine.open_txg();
        ensure!("Z2", txg == first_txg, "the logs were claimed in txgs {first_txg} to {txg}");
        let is_unchanged = logs.is_empty() && dropped.is_empty();
        if !dropped.is_empty() {
            self.engine.health().add_notice(Notice::LogsDropped { datasets: dropped });
        }
        if is_unchanged {
            return Ok(());
        }
        // A txg without other changes gets its uberblock as well, which must not be older than the
        // claimed blocks.
        let last_txg = newest_birth.max(first_txg);
        let ahead = last_txg - first_txg;
        ensure!("Z1", ahead <= TXGS_AHEAD_MAX, "the import would pass through {ahead} txgs");
        while self.engine.uberblock().txg < last_txg {
            self.engine.change_config_between_syncs(crate::Config::touch).await;
            self.engine.sync().await?;
        }
        Ok(())
    }

    /// Records heads whose logs could not be read, and the last txg whose allocations the space
    /// maps contain: later log blocks are unallocated, and may be reused.
    fn note_unread(self, heads: &[u64]) {
        let recorded = self.engine.open_txg().saturating_sub(1);
        let heads = heads.iter().map(|head| (*head, recorded));
        self.engine.logs.unread.lock().extend(heads);
    }

    /// Returns the last txg whose log blocks belong to the head, for a sync of `txg`. Later blocks
    /// of an unclaimed log may be reused, and must not be freed with the head.
    pub(crate) fn start_txg(self, head: u64, txg: u64) -> u64 {
        let unread = self.engine.logs.unread.lock();
        unread.get(&head).copied().unwrap_or(txg)
    }

    async fn check(self, logs: &[HeadLog], first_txg: u64) -> Result<()> {
        for log in logs {
            let checked = self.walk_chain(&log.header, first_txg, true).await;
            checked.map_err(|error| error.with_at(|at| at.objset = Some(log.object)))?;
        }
        Ok(())
    }

    /// Discards a chain. Only its first block is known to be allocated, and only if it was born
    /// before `unrecorded`.
    async fn drop_chain(
        self,
        header: &ZilHeader,
        first_txg: u64,
        unrecorded: u64,
    ) -> Result<ZilHeader> {
        if header.log.birth() < unrecorded {
            self.engine.store.free(&header.log, first_txg).await?;
        }
        Ok(no_header())
    }

    /// Walks a chain and claims the blocks that were allocated after the last commit.
    async fn walk_chain(
        self,
        header: &ZilHeader,
        first_txg: u64,
        is_dry_run: bool,
    ) -> Result<Extent> {
        let mut extent = Extent::default();
        let mut seen = FixedSet::default();
        let mut bp = header.log;
        while !bp.is_hole() && bp.validate().is_ok() && seen.insert(bp.dva(0)) {
            check_birth(&bp, first_txg)?;
            if bp.birth() >= first_txg && !self.take(&bp, first_txg, is_dry_run).await? {
                break;
            }
            extent.max_block = block_seq(&bp);
            extent.newest_birth = extent.newest_birth.max(bp.birth());
            let Some((next, targets)) = read_block(&self.engine.store, &bp).await? else { break };
            if is_on(Bug::ClaimWithoutTail) && block_seq(&bp) > block_seq(&header.log) {
                break;
            }
            if !is_dry_run {
                self.engine.store.complete(&bp).await?;
            }
            for (seq, target) in targets {
                let target = target.filter(|_| !is_on(Bug::TargetsNotClaimed));
                if let Some(target) = target.filter(|target| target.birth() >= first_txg) {
                    check_birth(&target, first_txg)?;
                    if !self.is_readable(&target).await?
                        || !(seen.contains(&target.dva(0))
                            || self.take(&target, first_txg, is_dry_run).await?)
                    {
                        return Ok(extent);
                    }
                    if !is_dry_run {
                        self.engine.store.complete(&target).await?;
                    }
                    seen.insert(target.dva(0));
                    extent.newest_birth = extent.newest_birth.max(target.birth());
                }
                extent.max_record = seq;
                extent.has_records = true;
            }
            bp = next;
        }
        Ok(extent)
    }

    /// Claims the space of a block; returns false if it is in use.
    async fn take(self, bp: &BlockPtr, txg: u64, is_dry_run: bool) -> Result<bool> {
        match self.engine.store.claim(bp, txg, is_dry_run).await {
            Ok(()) => Ok(true),
            Err(error) if is_end(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn is_readable(self, bp: &BlockPtr) -> Result<bool> {
        match self.engine.store.read_raw(bp, &Grounds::Speculative).await {
            Ok(_) => Ok(true),
            Err(error) if is_end(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }
}

/// Sets the header in the object set.
fn put_header(head: &Head, txg: u64, header: &ZilHeader) -> Result<()> {
    let bytes: [u8; ZIL_HEADER_LEN] = header
        .encode()
        .try_into()
        .map_err(|_| invariant_error("a log header has another length".into()))?;
    head.live().set_zil_header(txg, bytes)
}

/// Whether an error marks the regular end of a chain.
pub(super) fn is_end(error: &Error) -> bool {
    matches!(error.kind(), Kind::Checksum | Kind::Corrupt)
        || matches!(
            error.cause::<cenote_block::alloc::ClaimError>(),
            Some(cenote_block::alloc::ClaimError::NotFree { .. })
        )
}

fn claimed_header(header: &ZilHeader, extent: &Extent, first_txg: u64) -> ZilHeader {
    let mut flags = ZilFlags::CLAIM_LR_SEQ_VALID;
    let has_more = extent.max_block > block_seq(&header.log);
    flags.set(ZilFlags::REPLAY_NEEDED, extent.has_records || has_more);
    ZilHeader {
        claim_txg: first_txg,
        claim_blk_seq: extent.max_block,
        claim_lr_seq: extent.max_record,
        flags,
        ..header.clone()
    }
}

/// Returns the next pointer of a log block, and the number and the data pointer of each record;
/// `None` at the end of the chain.
async fn read_block(
    store: &BlockStore,
    bp: &BlockPtr,
) -> Result<Option<(BlockPtr, Vec<(u64, Option<BlockPtr>)>)>> {
    let bytes = match read_native(store, bp, None).await {
        Ok(bytes) => bytes,
        Err(error) if is_end(&error) => return Ok(None),
        Err(error) => return Err(error),
    };
    let Ok(block) = LogBlock::decode(&bytes, bp) else { return Ok(None) };
    let mut found = Vec::new();
    for record in records(block.records) {
        let Ok(record) = record else { break };
        // Only pointers are not encrypted.
        let target = match Body::decode(&record, record.bytes) {
            _ if record.is_hidden(bp) => None,
            Ok(Body::Write { bp, data: None, .. }) if !bp.is_hole() && !bp.is_embedded() => {
                Some(bp)
            }
            Ok(Body::CloneRange { bps, .. })
                if bps.iter().any(|bp| !bp.is_hole() && !bp.is_embedded()) =>
            {
                return Err(Error::new(Kind::Unsupported, ZilError::ClonedBlocks));
            }
            _ => None,
        };
        found.push((record.seq, target));
    }
    Ok(Some((block.next, found)))
}

/// Reads a log block, decrypts it if there are keys, and converts it to native byte order.
pub(super) async fn read_native(
    store: &BlockStore,
    bp: &BlockPtr,
    keys: Option<&SealKeys>,
) -> Result<Buf> {
    let bytes = store.read_log(bp, keys).await?;
    if bp.endian() != Endian::Big {
        return Ok(bytes);
    }
    let mut swapped = bytes.into_mut();
    byteswap::block(&mut swapped, bp.object_type(), 0);
    Ok(swapped.freeze())
}

/// The logs of an earlier import.
#[derive(Default)]
struct LogsOnDisk {
    /// Unclaimed chains.
    unclaimed: Vec<HeadLog>,
    /// Chains that were claimed, but not replayed completely.
    claimed: Vec<HeadLog>,
    /// Heads with a damaged root block: whether they have a chain is unknown.
    unread: Vec<u64>,
}

/// Reads the log headers of all heads, without partially received datasets.
///
/// # Errors
/// Errors of a root block whose devices do not answer, with the dataset's number: its log may have
/// acknowledged writes, whose space would be reused before they are claimed.
async fn logs_on_disk(pool: &Arc<Pool>) -> Result<LogsOnDisk> {
    let mut left = LogsOnDisk::default();
    let mut dnodes = pool.mos().dnodes(1);
    while let Some(dnode) = dnodes.next().await {
        let dnode = dnode?;
        if dnode.phys().bonus_type != ObjectType::DSL_DATASET {
            continue;
        }
        let phys = DatasetPhys::decode(dnode.phys().bonus()).map_err(Error::corrupt)?;
        if phys.is_snapshot() || phys.is_inconsistent() || phys.bp.is_hole() {
            continue;
        }
        let set = ObjSet::open(Arc::clone(pool.store()), &phys.bp, None, dnode.object()).await;
        let object = dnode.object();
        let set = match set {
            Ok(set) => set,
            // A device that comes back would bring the log back with it.
            Err(error) if error.kind() == Kind::Io => {
                return Err(error.with_at(|at| at.objset = Some(object)));
            }
            // A damaged log does not prevent claiming the others.
            Err(_) => {
                left.unread.push(object);
                continue;
            }
        };
        let Ok(header) = ZilHeader::decode(&set.phys().zil_header) else {
            left.unread.push(object);
            continue;
        };
        if header.is_claimed() {
            left.claimed.push(HeadLog { object, header });
        } else if !header.log.is_hole() {
            left.unclaimed.push(HeadLog { object, header });
        }
    }
    Ok(left)
}

#[cfg(test)]
mod tests {
    use cenote_ondisk::object_type::ObjectType;

    use super::*;

    #[test]
    fn births_far_ahead_refuse_the_import() {
        let block =
            |birth| BlockPtr::punched(4096, ObjectType::INTENT_LOG, 0, birth).expect("a hole");
        check_birth(&block(100 + TXGS_AHEAD_MAX), 100).expect("reached");
        check_birth(&block(101 + TXGS_AHEAD_MAX), 100).expect_err("not reached");
        check_birth(&block(u64::MAX), u64::MAX - 1).expect("no overflow");
    }
}
