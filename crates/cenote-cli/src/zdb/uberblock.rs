//! An uberblock in `zdb`'s format (`-u`, and the rings of `-lu`).

use cenote_ondisk::uberblock::{MMP_MAGIC, UBERBLOCK_MAGIC, Uberblock};

use super::text;
use crate::io::{CommandResult, Io};
use crate::out;

/// The low 55 bits of the reflow word are the offset in sectors of 512 bytes, the high bits the
/// state.
const REFLOW_STATE_SHIFT: u32 = 55;

/// Prints the fields, one per line after a tab.
pub(super) fn print(io: &mut Io<'_>, uberblock: &Uberblock) -> CommandResult {
    out!(io, "\tmagic = {UBERBLOCK_MAGIC:016x}")?;
    out!(io, "\tversion = {}", uberblock.version)?;
    out!(io, "\ttxg = {}", uberblock.txg)?;
    out!(io, "\tguid_sum = {}", uberblock.guid_sum)?;
    let seconds = uberblock.timestamp;
    out!(io, "\ttimestamp = {seconds} {} = {}", text::zone(seconds), text::time(seconds))?;
    out!(io, "\tbp = {}", uberblock.rootbp.verbose())?;
    out!(io, "\tmmp_magic = {:016x}", uberblock.mmp_magic)?;
    if uberblock.mmp_magic == MMP_MAGIC {
        out!(io, "\tmmp_delay = {}", uberblock.mmp_delay)?;
        if let Some(mmp) = uberblock.mmp() {
            if let Some(sequence) = mmp.sequence {
                out!(io, "\tmmp_seq = {sequence}")?;
            }
            if let Some(intervals) = mmp.fail_intervals {
                out!(io, "\tmmp_fail = {intervals}")?;
            }
            if let Some(interval) = mmp.interval_ms {
                out!(io, "\tmmp_write = {interval}")?;
            }
        }
        // The bits that tell which of the fields are valid.
        out!(io, "\tmmp_valid = {:x}", uberblock.mmp_config & 0xff)?;
    }
    out!(io, "\tcheckpoint_txg = {}", uberblock.checkpoint_txg)?;
    let reflow = uberblock.raidz_reflow_info;
    let sectors = reflow & ((1 << REFLOW_STATE_SHIFT) - 1);
    out!(
        io,
        "\traidz_reflow state={} off={}",
        reflow >> REFLOW_STATE_SHIFT,
        sectors.saturating_mul(512)
    )
}
