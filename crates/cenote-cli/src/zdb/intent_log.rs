//! The intent log of a dataset: its header, and with `-i` the records in its blocks.
//!
//! A pool that is opened for reading never claims or replays; blocks that an import would claim are
//! marked.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::zil::{LogBlock, RecordKind, ZilHeader, block_seq, record};

use super::pool::Show;
use crate::io::{CommandResult, Exit};
use crate::out;

/// Number of blocks at which a chain counts as a loop.
const BLOCKS_MAX: u64 = 1 << 24;

/// Shows the log of an object set that has one.
pub(super) async fn run(show: &mut Show<'_, '_>, objset: &Arc<ObjSet>) -> CommandResult {
    let verbosity = show.options.count('d').max(show.options.count('i'));
    let header = ZilHeader::decode(&objset.phys().zil_header)
        .map_err(|error| Exit::failed(error.to_string()))?;
    if header.log.is_hole() || verbosity == 0 {
        return Ok(());
    }
    out!(
        show.io,
        "\n    ZIL header: claim_txg {}, claim_blk_seq {}, claim_lr_seq {} replay_seq {}, flags \
         {:#x}",
        header.claim_txg,
        header.claim_blk_seq,
        header.claim_lr_seq,
        header.replay_seq,
        header.flags.bits(),
    )?;
    let counts = chain(show, objset, &header, verbosity).await?;
    if show.options.has('i') && verbosity >= 1 {
        for (kind, count) in &counts {
            let name = record_name(*kind);
            out!(
                show.io,
                "\t\t{name} {count:>width$}",
                width = 24_usize.saturating_sub(name.len())
            )?;
        }
        if !counts.is_empty() {
            let total: u64 = counts.values().sum();
            out!(show.io, "\t\tTotal {total:>18}")?;
        }
    }
    if verbosity >= 2 { out!(show.io) } else { Ok(()) }
}

fn record_name(kind: u64) -> &'static str {
    RecordKind::from_number(kind).map_or("unknown", RecordKind::name)
}

/// Follows the chain of blocks; counts the records by kind.
async fn chain(
    show: &mut Show<'_, '_>,
    objset: &Arc<ObjSet>,
    header: &ZilHeader,
    verbosity: usize,
) -> CommandResult<BTreeMap<u64, u64>> {
    let mut counts = BTreeMap::new();
    let claim_txg = header.claim_txg;
    let mut pointer = header.log;
    for _ in 0..BLOCKS_MAX {
        if pointer.is_hole() {
            break;
        }
        let seq = block_seq(&pointer);
        if verbosity >= 4 {
            let claimed = if claim_txg != 0 {
                "already claimed"
            } else if show.pool.uberblock().checkpoint_txg != 0
                || pointer.birth() < first_claimed(show)
            {
                "won't claim"
            } else {
                "will claim"
            };
            let address =
                if verbosity >= 5 { format!(", {}", pointer.verbose()) } else { String::new() };
            out!(show.io, "\n\tBlock seqno {seq}, {claimed}{address}")?;
        }
        // The last block of a chain was never written, and fails verification.
        let Ok(block) = objset.read_log_block(&pointer).await else { break };
        let Ok(log) = LogBlock::decode(&block, &pointer) else { break };
        for record in record::records(log.records) {
            let Ok(record) = record else { break };
            *counts.entry(record.kind_number).or_insert(0) += 1;
            if show.options.count('i') >= 2 || verbosity >= 5 {
                out!(
                    show.io,
                    "\t\t{}{} len {:6}, txg {}, seq {}",
                    if record.is_case_insensitive { "CI-" } else { "" },
                    record_name(record.kind_number),
                    record.bytes.len(),
                    record.txg,
                    record.seq,
                )?;
            }
        }
        pointer = log.next;
    }
    Ok(counts)
}

/// Returns the first txg whose log blocks an import claims.
fn first_claimed(show: &Show<'_, '_>) -> u64 {
    show.pool.txg() + 1
}
