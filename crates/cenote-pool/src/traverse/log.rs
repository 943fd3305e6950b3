//! Walks the chain of an intent log, as far as it belongs to the pool's txg (spec 07 A5, A17).
//!
//! Of an unclaimed log, blocks born in a synced txg count; the first later block is free in the
//! space maps and ends the walk. A claimed log counts up to its claim limits, including the data
//! blocks of its records. Its last block has records, or was allocated in advance; it is read only
//! if records are missing.
//!
//! The last block of a chain may never have been written. So an unreadable block ends the chain and
//! is no damage, unless the claim says that more follow. Snapshots do not matter: they have no log.

use std::sync::Arc;

use cenote_block::Grounds;
use cenote_dmu::ObjSet;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_ZIL};
use cenote_ondisk::byteswap;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::zil::record::records;
use cenote_ondisk::zil::{Body, LogBlock, ZilHeader, block_seq};
use cenote_rt::{Error, FixedSet, Result};

use super::walk::Walk;
use super::{Damage, Flow, Visitor};

impl Walk<'_> {
    /// Walks the log of a head.
    pub(super) async fn log<V: Visitor>(&self, set: &Arc<ObjSet>, visitor: &mut V) -> Result<Flow> {
        let Ok(header) = ZilHeader::decode(&set.phys().zil_header) else {
            return Ok(Flow::Continue);
        };
        let (limit_block, limit_record) = header.limits();
        let (mut bp, mut last_record) = (header.log, 0);
        let mut seen = FixedSet::default();
        while !bp.is_hole() && bp.validate().is_ok() && block_seq(&bp) <= limit_block {
            let place = place(set, 0, block_seq(&bp));
            let is_ours = header.is_claimed() || bp.birth() <= self.txg;
            if !is_ours || !seen.insert(bp.dva(0)) {
                break;
            }
            if bp.birth() > self.options.min_txg {
                let is_written = header.is_claimed() && block_seq(&bp) < limit_block;
                let flow = if is_written {
                    visitor.block(&bp, &place).await?
                } else {
                    visitor.unwritten(&bp, &place).await?
                };
                if flow == Flow::Stop {
                    return Ok(Flow::Stop);
                }
            }
            if (block_seq(&bp), last_record) == (limit_block, limit_record) {
                break;
            }
            let found = match self.block(&bp, &header, limit_record).await {
                Ok(found) => found,
                Err(error) if error.kind().is_interruption() => {
                    // The log vdev may have left the pool.
                    set.grounds().check()?;
                    return Err(error);
                }
                Err(error) => {
                    // Without a limit of records the last block may not have any.
                    let more = limit_record != u64::MAX && last_record < limit_record;
                    if header.is_claimed() && (block_seq(&bp) < limit_block || more) {
                        visitor.damage(Damage { place, bp: Some(bp), error });
                    }
                    break;
                }
            };
            last_record = found.last_record.unwrap_or(last_record);
            for (object, blkid, target) in found.targets {
                let place = Bookmark { object, blkid, ..place };
                if visitor.block(&target, &place).await? == Flow::Stop {
                    return Ok(Flow::Stop);
                }
            }
            bp = found.next;
        }
        Ok(Flow::Continue)
    }

    /// Reads a log block.
    async fn block(&self, bp: &BlockPtr, header: &ZilHeader, limit_record: u64) -> Result<Found> {
        let mut bytes = self.store.read_raw(bp, &Grounds::Speculative).await?;
        if bp.endian() == Endian::Big {
            let mut swapped = bytes.into_mut();
            byteswap::block(&mut swapped, bp.object_type(), 0);
            bytes = swapped.freeze();
        }
        let block = LogBlock::decode(&bytes, bp).map_err(Error::corrupt)?;
        let mut targets = Vec::new();
        let mut last_record = None;
        if !header.is_claimed() {
            return Ok(Found { next: block.next, targets, last_record });
        }
        for record in records(block.records) {
            let Ok(record) = record else { break };
            if record.seq > limit_record {
                break;
            }
            last_record = Some(record.seq);
            // Pointers consist of words, which are in native order after a byte swap.
            match Body::decode(&record, record.bytes) {
                _ if record.is_hidden(bp) => {}
                Ok(Body::Write { object, offset, bp, data: None, .. })
                    if bp.birth() >= header.claim_txg =>
                {
                    targets.push((object, offset / bp.lsize().max(1), bp));
                }
                Ok(Body::CloneRange { object, offset, block_size, bps, .. }) => {
                    let first = offset / block_size.max(1);
                    targets.extend((first..).zip(bps).map(|(blkid, bp)| (object, blkid, bp)));
                }
                _ => {}
            }
        }
        targets.retain(|(.., bp)| !bp.is_hole() && !bp.is_redacted());
        Ok(Found { next: block.next, targets, last_record })
    }
}

/// The contents of a log block.
struct Found {
    next: BlockPtr,
    /// Data blocks of claimed records: object, block number, pointer.
    targets: Vec<(u64, u64, BlockPtr)>,
    /// Sequence number of the last claimed record.
    last_record: Option<u64>,
}

fn place(set: &Arc<ObjSet>, object: u64, blkid: u64) -> Bookmark {
    Bookmark { objset: set.id(), object, level: LEVEL_ZIL, blkid }
}
