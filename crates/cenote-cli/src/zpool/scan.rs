//! The lines of scrub, resilver, removal, checkpoint and expansion in `zpool status` (spec 06
//! §19.3).
//!
//! Rates and times to go need counters of a running scan. A pool that is only read has none, so a
//! scan in progress is shown as OpenZFS shows it right after an import.

use std::fmt::Write as _;

use cenote_ondisk::scan::{ScanFlags, ScanFunc, ScanPhys, ScanState};
use cenote_pool::status::{Checkpoint, Expansion, ExpansionState, PoolStatus, Removal};

use crate::nicenum::{bytes, bytes_b};
use crate::zfs::value;

/// States of a removal (`removing_vdev`).
const REMOVAL_RUNNING: u64 = 1;
const REMOVAL_FINISHED: u64 = 2;

fn ctime(seconds: u64) -> String {
    value::date(seconds, value::CTIME)
}

/// Formats a duration, with days only if there are any.
fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:{seconds:02}"),
        _ => format!("{days} days {hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// Returns all lines between the action and the config.
pub(super) fn lines(status: &PoolStatus) -> String {
    let mut text = String::new();
    if let Some(scan) = status.scan.as_ref().and_then(scan) {
        let _ = writeln!(text, "  scan: {scan}");
    }
    if let Some(removal) = &status.removal {
        text.push_str(&removal_lines(removal));
    }
    if let Some(checkpoint) = &status.checkpoint {
        text.push_str(&checkpoint_line(checkpoint));
    }
    for expansion in &status.expansions {
        let vdev = status.root.children.iter().find(|vdev| vdev.id == expansion.vdev);
        let name = vdev.map_or_else(String::new, |vdev| vdev.name.clone());
        text.push_str(&expansion_lines(expansion, &name));
    }
    text
}

/// Returns the text after `scan:`.
fn scan(scan: &ScanPhys) -> Option<String> {
    let is_resilver = match scan.func {
        ScanFunc::Scrub => false,
        ScanFunc::Resilver => true,
        _ => return None,
    };
    let name = if is_resilver { "resilver" } else { "scrub" };
    let text = match scan.state {
        ScanState::Finished => {
            let did = if is_resilver { "resilvered" } else { "scrub repaired" };
            format!(
                "{did} {} in {} with {} errors on {}",
                bytes_b(scan.processed),
                duration(scan.end_time.saturating_sub(scan.start_time)),
                scan.errors,
                ctime(scan.end_time)
            )
        }
        ScanState::Canceled => format!("{name} canceled on {}", ctime(scan.end_time)),
        ScanState::Scanning => running(scan, name, is_resilver),
        _ => return None,
    };
    Some(text)
}

fn running(scan: &ScanPhys, name: &str, is_resilver: bool) -> String {
    let since = ctime(scan.start_time);
    let is_paused = scan.flags.contains(ScanFlags::PAUSED);
    // The time of the pause is not stored; the start time is.
    let mut text = if is_paused {
        format!("{name} paused since {since}\n\t{name} started on {since}\n")
    } else {
        format!("{name} in progress since {since}\n")
    };
    let total = scan.to_examine.saturating_sub(scan.skipped);
    let issued = scan.examined.min(total);
    let _ = writeln!(
        text,
        "\t{} / {} scanned, {} / {} issued",
        bytes_b(scan.examined),
        bytes_b(scan.to_examine),
        bytes_b(issued),
        bytes_b(total)
    );
    let did = if is_resilver { "resilvered" } else { "repaired" };
    let done = if total == 0 { 0.0 } else { issued as f64 * 100.0 / total as f64 };
    let _ = write!(text, "\t{} {did}, {done:.2}% done", bytes_b(scan.processed));
    if !is_paused {
        text.push_str(", no estimated completion time");
    }
    text
}

fn removal_lines(removal: &Removal) -> String {
    let phys = &removal.phys;
    let mut text = match phys.state {
        REMOVAL_FINISHED => {
            let minutes = phys.end_time.saturating_sub(phys.start_time) / 60;
            format!(
                "remove: Removal of vdev {} copied {} in {}h{}m, completed on {}\n",
                phys.removing_vdev,
                bytes(phys.copied),
                minutes / 60,
                minutes % 60,
                ctime(phys.end_time)
            )
        }
        REMOVAL_RUNNING => {
            let done = phys.copied as f64 * 100.0 / phys.to_copy.max(1) as f64;
            format!(
                "remove: Evacuation of vdev {} in progress since {}\n\
                 \t{} copied out of {}, {done:.2}% done, (copy is slow, no estimated time)\n",
                phys.removing_vdev,
                ctime(phys.start_time),
                bytes(phys.copied),
                bytes(phys.to_copy)
            )
        }
        _ => format!(
            "remove: Removal of vdev {} canceled on {}\n",
            phys.removing_vdev,
            ctime(phys.end_time)
        ),
    };
    if removal.mapping_bytes != 0 {
        let memory = bytes(removal.mapping_bytes);
        let _ = writeln!(text, "\t{memory} memory used for removed device mappings");
    }
    text
}

fn checkpoint_line(checkpoint: &Checkpoint) -> String {
    if checkpoint.is_discarding {
        return format!("checkpoint: discarding, {} remaining.\n", bytes(checkpoint.bytes));
    }
    format!(
        "checkpoint: created {}, consumes {}\n",
        ctime(checkpoint.time),
        bytes(checkpoint.bytes)
    )
}

fn expansion_lines(expansion: &Expansion, vdev: &str) -> String {
    match expansion.state {
        ExpansionState::Finished => format!(
            "expand: expanded {vdev} copied {} in {}, on {}\n",
            bytes(expansion.copied),
            duration(expansion.end_time.saturating_sub(expansion.start_time)),
            ctime(expansion.end_time)
        ),
        ExpansionState::Running => {
            let done = expansion.copied as f64 * 100.0 / expansion.to_copy.max(1) as f64;
            format!(
                "expand: expansion of {vdev} in progress since {}\n\
                 \t{} / {} copied, {done:.2}% done, (copy is slow, no estimated time)\n",
                ctime(expansion.start_time),
                bytes(expansion.copied),
                bytes(expansion.to_copy)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations() {
        assert_eq!(duration(61), "00:01:01");
        assert_eq!(duration(2 * 86_400 + 3600), "2 days 01:00:00");
    }
}
