//! The lines of scrub, resilver, removal, checkpoint and expansion in `zpool status` (spec 06
//! §19.3).
//!
//! Rates and times to go need the counters of a running scan ([`ScanPass`]), which start anew with
//! each import. A pool that is only read has none, so a scan in progress is shown without rates.

use std::fmt::Write as _;

use cenote_engine::{ScanKind, ScanPass};
use cenote_ondisk::rebuild::{RebuildPhys, RebuildState};
use cenote_ondisk::scan::{ErrorScrubPhys, SCAN_WORDS, ScanFlags, ScanFunc, ScanPhys, ScanState};
use cenote_pool::status::{
    Checkpoint, Expansion, ExpansionState, PoolStatus, Rebuild, Removal, VdevReport,
};

use crate::nicenum::{bytes, bytes_b};
use crate::zfs::value;

/// States of a removal (`removing_vdev`).
const REMOVAL_RUNNING: u64 = 1;
const REMOVAL_FINISHED: u64 = 2;
/// Minutes from which on a removal is called slow.
const LONGEST_ESTIMATE: u64 = 30 * 24 * 60;

/// Seconds from which on an expansion shows no time to go: 30 days.
const LONGEST_EXPANSION: u64 = 30 * 24 * 3600;

fn ctime(seconds: u64) -> String {
    value::date(seconds, value::CTIME)
}

/// Lowest rate of reads for which OpenZFS estimates the time to go, bytes per second.
const ESTIMATED_RATE_MIN: u64 = 10 << 20;

/// Formats a duration, with days only if there are any.
pub(crate) fn duration(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    match days {
        0 => format!("{hours:02}:{minutes:02}:{seconds:02}"),
        _ => format!("{days} days {hours:02}:{minutes:02}:{seconds:02}"),
    }
}

/// Returns the bytes that a scan has read, in all its passes.
pub(super) fn issued(scan: &ScanPhys, pass: Option<ScanPass>) -> u64 {
    match pass {
        Some(pass) => pass.issued.saturating_add(pass.issued_before),
        None => scan.examined.saturating_sub(scan.skipped),
    }
}

/// Returns the time at which a paused scrub was paused, and 0 if it is not paused. The pool does
/// not store the time; without the counters, it is the start of the scrub.
pub(super) fn paused(scan: &ScanPhys, pass: Option<ScanPass>) -> u64 {
    if scan.state != ScanState::Scanning || !scan.flags.contains(ScanFlags::PAUSED) {
        return 0;
    }
    pass.map(|pass| pass.paused).filter(|time| *time != 0).unwrap_or(scan.start_time)
}

/// Returns the top-level vdev with an id.
pub(super) fn top(status: &PoolStatus, id: u64) -> Option<&VdevReport> {
    status.root.children.iter().find(|vdev| vdev.id == id)
}

/// Returns all lines between the action and the config.
pub fn lines(status: &PoolStatus, pass: Option<ScanPass>) -> String {
    let mut text = String::new();
    let now = cenote_rt::wall_clock().as_secs();
    let (rebuild, error_scrub) = (shown_rebuild(status), status.other_scans.error_scrub.as_ref());
    let is_error_scrub_last = error_scrub
        .is_some_and(|error_scrub| is_error_scrub_last(error_scrub, status.scan.as_ref()));
    if let Some(scan) = &status.scan
        // A scrub that is older than the last error scrub is not shown, nor a resilver that is
        // older than the last rebuild.
        && (scan.func != ScanFunc::Scrub || !is_error_scrub_last)
        && (scan.func != ScanFunc::Resilver || rebuild.is_none())
        && let Some(line) = self::scan(scan, pass, now)
    {
        let _ = writeln!(text, "  scan: {line}");
        if let Some(checkpoint) = &status.checkpoint {
            text.push_str(checkpoint_warning(scan, checkpoint));
        }
    }
    if let Some(scrub) = error_scrub
        && is_error_scrub_last
        && let Some(line) = error_scrub_text(scrub, pass)
    {
        let _ = writeln!(text, " scrub: {line}");
    }
    if let Some(rebuild) = rebuild {
        let vdev = top(status, rebuild.vdev);
        let name = vdev.map_or_else(String::new, |vdev| vdev.name.clone());
        let _ = writeln!(text, "  scan: {}", self::rebuild(&rebuild.phys, &name, pass, now));
    }
    if let Some(removal) = &status.removal {
        let vdev = top(status, removal.phys.removing_vdev);
        let name = vdev.map(|vdev| vdev.name.clone());
        text.push_str(&removal_lines(removal, name, now));
    }
    if let Some(checkpoint) = &status.checkpoint {
        text.push_str(&checkpoint_line(checkpoint));
    }
    for expansion in &status.expansions {
        let vdev = top(status, expansion.vdev);
        let name = vdev.map_or_else(String::new, |vdev| vdev.name.clone());
        let is_waiting = pass.is_some_and(|pass| pass.is_expansion_waiting);
        text.push_str(&expansion_lines(expansion, &name, is_waiting, now));
    }
    text
}

/// Whether no other scan began after an error scrub. Of two that began in the same second, the
/// other scan is the last one if it has not ended.
fn is_error_scrub_last(error_scrub: &ErrorScrubPhys, scan: Option<&ScanPhys>) -> bool {
    scan.is_none_or(|scan| {
        let is_scanning = scan.state == ScanState::Scanning;
        error_scrub.start_time > scan.start_time
            || error_scrub.start_time == scan.start_time && !is_scanning
    })
}

/// Returns the text after `scan:`.
fn scan(scan: &ScanPhys, pass: Option<ScanPass>, now: u64) -> Option<String> {
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
        ScanState::Scanning => running(scan, pass, now),
        _ => return None,
    };
    Some(text)
}

/// Returns the sequential rebuild that is shown: one in progress, or the last one if no resilver is
/// in progress or ended later.
fn shown_rebuild(status: &PoolStatus) -> Option<&Rebuild> {
    let is_active = |of: &&Rebuild| of.phys.state == RebuildState::Active;
    let rebuilds = status.other_scans.rebuilds.iter();
    let active = rebuilds.clone().find(is_active);
    active.or_else(|| {
        let last = rebuilds.max_by_key(|of| of.phys.end_time)?;
        let is_newer = |scan: &ScanPhys| {
            let is_running = scan.state == ScanState::Scanning;
            scan.func == ScanFunc::Resilver && (is_running || scan.end_time > last.phys.end_time)
        };
        (!status.scan.as_ref().is_some_and(is_newer)).then_some(last)
    })
}

/// Returns the text about a sequential rebuild of the vdev `name`.
fn rebuild(phys: &RebuildPhys, name: &str, pass: Option<ScanPass>, now: u64) -> String {
    match phys.state {
        RebuildState::Active => {
            // Its lines are those of a resilver, but for the name.
            let scan = ScanPhys {
                func: ScanFunc::Resilver,
                state: ScanState::Scanning,
                start_time: phys.start_time,
                to_examine: phys.bytes_est,
                examined: phys.bytes_scanned,
                processed: phys.bytes_rebuilt,
                ..ScanPhys::from_words(&[0; SCAN_WORDS])
            };
            let text = running(&scan, pass, now);
            text.replacen("resilver in", &format!("resilver ({name}) in"), 1)
        }
        RebuildState::Canceled => {
            format!("resilver ({name}) canceled on {}", ctime(phys.end_time))
        }
        _ => format!(
            "resilvered ({name}) {} in {} with {} errors on {}",
            bytes_b(phys.bytes_rebuilt),
            duration(phys.end_time.saturating_sub(phys.start_time)),
            phys.errors,
            ctime(phys.end_time)
        ),
    }
}

/// Returns the text about an error scrub.
fn error_scrub_text(scrub: &ErrorScrubPhys, pass: Option<ScanPass>) -> Option<String> {
    let since = ctime(scrub.start_time);
    let mut text = match scrub.state {
        ScanState::Finished => {
            let took = scrub.end_time.saturating_sub(scrub.start_time);
            let (days, rest) = (took / 86_400, duration(took % 86_400));
            let end = ctime(scrub.end_time);
            return Some(format!(
                "scrubbed {} error blocks in {days} days {rest} on {end}",
                scrub.examined
            ));
        }
        ScanState::Canceled => {
            return Some(format!("error scrub canceled on {}", ctime(scrub.end_time)));
        }
        ScanState::ErrorScrubbing if scrub.paused_flags == 0 => {
            format!("error scrub in progress since {since}\n")
        }
        ScanState::ErrorScrubbing => {
            // As of a scrub: the pool does not store the time.
            let paused = pass.map(|pass| pass.paused).filter(|time| *time != 0);
            let paused = ctime(paused.unwrap_or(scrub.start_time));
            format!("error scrub paused since {paused}\n\terror scrub started on {since}\n")
        }
        _ => return None,
    };
    let done = scrub.examined as f64 * 100.0 / scrub.to_examine.max(1) as f64;
    let count = scrub.examined;
    let _ = write!(text, "\t{done:.2}% done, issued I/O for {count} error blocks");
    Some(text)
}

fn running(scan: &ScanPhys, pass: Option<ScanPass>, now: u64) -> String {
    let is_resilver = scan.func == ScanFunc::Resilver;
    let (name, did) = if is_resilver { ("resilver", "resilvered") } else { ("scrub", "repaired") };
    let since = ctime(scan.start_time);
    let paused = paused(scan, pass);
    let mut text = if paused == 0 {
        format!("{name} in progress since {since}\n")
    } else {
        format!("{name} paused since {}\n\t{name} started on {since}\n", ctime(paused))
    };
    let issued = issued(scan, pass);
    let total = scan.to_examine.saturating_sub(scan.skipped);
    let [examined_rate, issued_rate] = pass.filter(|_| paused == 0).map_or([0; 2], |pass| {
        let elapsed = now.saturating_sub(pass.started).saturating_sub(pass.spent_paused).max(1);
        [pass.examined / elapsed, pass.issued / elapsed]
    });
    let at = |rate: u64| match rate {
        0 => String::new(),
        rate => format!(" at {}/s", bytes_b(rate)),
    };
    let _ = writeln!(
        text,
        "\t{} / {} scanned{}, {} / {} issued{}",
        bytes_b(scan.examined),
        bytes_b(scan.to_examine),
        at(examined_rate),
        bytes_b(issued),
        bytes_b(total),
        at(issued_rate)
    );
    let done = if total == 0 { 0.0 } else { issued as f64 * 100.0 / total as f64 };
    let _ = write!(text, "\t{} {did}, {done:.2}% done", bytes_b(scan.processed));
    if paused == 0 {
        // A resilver that has repaired nothing yet may only have looked for what is missing.
        let is_at_work = if is_resilver { scan.processed > 0 } else { issued > 0 };
        let left = total.checked_sub(issued).filter(|_| is_at_work);
        let left = left.filter(|_| issued_rate >= ESTIMATED_RATE_MIN);
        match left {
            Some(left) => {
                let _ = write!(text, ", {} to go", duration(left / issued_rate));
            }
            None => text.push_str(", no estimated completion time"),
        }
        if let Some(wait) = waiting(scan, pass) {
            let (percent, name, value) = (wait.percent, wait.tunable, wait.value);
            let _ = write!(text, "\n\twaiting for: ordinary I/O, {percent} % of the time");
            let _ = write!(text, "; {name}={value}");
        }
    }
    text
}

/// What holds a scan back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Waiting {
    /// Percent of the last seconds.
    pub(super) percent: u8,
    /// The tunable that lets the scan go faster, and its value.
    pub(super) tunable: &'static str,
    pub(super) value: u64,
}

/// Returns what holds a running scan back; `None` if it is as fast as the devices are.
pub(super) fn waiting(scan: &ScanPhys, pass: Option<ScanPass>) -> Option<Waiting> {
    let wait = pass?.wait.filter(|wait| wait.percent > 0)?;
    let is_resilver = scan.func == ScanFunc::Resilver;
    let kind = if is_resilver { ScanKind::Resilver } else { ScanKind::Scrub };
    let tunable = kind.tunable(wait.model);
    Some(Waiting { percent: wait.percent, tunable: tunable.name, value: tunable.get() })
}

/// Returns the line that says that a scan leaves out the blocks of a checkpoint.
fn checkpoint_warning(scan: &ScanPhys, checkpoint: &Checkpoint) -> &'static str {
    let is_over = scan.state != ScanState::Scanning;
    if checkpoint.is_discarding || (is_over && scan.end_time < checkpoint.time) {
        ""
    } else if is_over {
        "    scan warning: skipped blocks that are only referenced by the checkpoint.\n"
    } else {
        "    scan warning: skipping blocks that are only referenced by the checkpoint.\n"
    }
}

/// Returns the lines of a removal; `name` is that of the vdev, if it is still there.
fn removal_lines(removal: &Removal, name: Option<String>, now: u64) -> String {
    let phys = &removal.phys;
    let name = name.unwrap_or_else(|| format!("vdev {}", phys.removing_vdev));
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
            let copied = phys.copied.max(1);
            let done = copied as f64 * 100.0 / phys.to_copy.max(1) as f64;
            let rate = (copied / now.saturating_sub(phys.start_time).max(1)).max(1);
            let minutes = phys.to_copy.saturating_sub(copied) / rate / 60;
            let left = if minutes < LONGEST_ESTIMATE {
                format!("{}h{}m to go", minutes / 60, minutes % 60)
            } else {
                "(copy is slow, no estimated time)".to_owned()
            };
            format!(
                "remove: Evacuation of {name} in progress since {}\n\
                 \t{} copied out of {} at {}/s, {done:.2}% done, {left}\n",
                ctime(phys.start_time),
                bytes(copied),
                bytes(phys.to_copy),
                bytes(rate)
            )
        }
        _ => format!("remove: Removal of {name} canceled on {}\n", ctime(phys.end_time)),
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

fn expansion_lines(expansion: &Expansion, vdev: &str, is_waiting: bool, now: u64) -> String {
    match expansion.state {
        ExpansionState::Finished => format!(
            "expand: expanded {vdev} copied {} in {}, on {}\n",
            bytes(expansion.copied),
            duration(expansion.end_time.saturating_sub(expansion.start_time)),
            ctime(expansion.end_time)
        ),
        ExpansionState::Running => {
            let (copied, total) = (expansion.copied.max(1), expansion.to_copy);
            let done = copied as f64 * 100.0 / total.max(1) as f64;
            let elapsed = now.saturating_sub(expansion.start_time).max(1);
            let rate = (copied / elapsed).max(1);
            let left = total.saturating_sub(copied) / rate;
            let rest = if is_waiting {
                "paused for resilver or clear".to_owned()
            } else if left < LONGEST_EXPANSION {
                format!("{} to go", duration(left))
            } else {
                "(copy is slow, no estimated time)".to_owned()
            };
            format!(
                "expand: expansion of {vdev} in progress since {}\n\
                 \t{} / {} copied at {}/s, {done:.2}% done, {rest}\n",
                ctime(expansion.start_time),
                bytes(copied),
                bytes(total),
                bytes(rate)
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_engine::{ScanWait, ThrottleModel};
    use cenote_ondisk::indirect::RemovingPhys;

    use super::*;

    /// A scrub of a recording of OpenZFS, with the figures of its JSON output.
    fn scrub() -> ScanPhys {
        ScanPhys {
            func: ScanFunc::Scrub,
            state: ScanState::Scanning,
            start_time: 1000,
            to_examine: 87_672_320,
            examined: 87_567_872,
            skipped: 62_464,
            ..ScanPhys::decode(&[]).expect("no words are zeros")
        }
    }

    /// Returns the lines after the first.
    fn shown(scan: &ScanPhys, pass: Option<ScanPass>, now: u64) -> String {
        let text = self::scan(scan, pass, now).expect("a text");
        text.split_once('\n').expect("more lines").1.to_owned()
    }

    #[test]
    fn running_scrub_is_shown_with_rates_and_time_to_go() {
        let pass = ScanPass { started: 1000, issued: 41_277_440, ..ScanPass::default() };
        assert_eq!(
            shown(&scrub(), Some(pass), 1030),
            "\t83.5M / 83.6M scanned, 39.4M / 83.6M issued at 1.31M/s\n\
             \t0B repaired, 47.12% done, no estimated completion time"
        );
        // 32 seconds, 30 of them paused.
        let pass = ScanPass { spent_paused: 30, examined: 4 << 20, ..pass };
        assert_eq!(
            shown(&scrub(), Some(pass), 1032),
            "\t83.5M / 83.6M scanned at 2M/s, 39.4M / 83.6M issued at 19.7M/s\n\
             \t0B repaired, 47.12% done, 00:00:02 to go"
        );
        let resilver = ScanPhys { func: ScanFunc::Resilver, ..scrub() };
        let text = shown(&resilver, Some(pass), 1032);
        assert!(text.ends_with("\t0B resilvered, 47.12% done, no estimated completion time"));
        let resilver = ScanPhys { processed: 4 << 20, ..resilver };
        let text = shown(&resilver, Some(pass), 1032);
        assert!(text.ends_with("\t4M resilvered, 47.12% done, 00:00:02 to go"), "{text}");
        // Right after an import: what earlier passes read counts, but has no rate.
        let pass = ScanPass { started: 1031, issued_before: 41_277_440, ..ScanPass::default() };
        assert!(shown(&scrub(), Some(pass), 1031).contains(" 39.4M / 83.6M issued\n"));
    }

    #[test]
    fn ordinary_io_that_holds_a_scan_back_is_shown() {
        let wait = |percent, model| Some(ScanWait { percent, model });
        let pass = ScanPass { started: 1000, issued: 41_277_440, ..ScanPass::default() };
        let line = |scan: &ScanPhys, wait| {
            let text = shown(scan, Some(ScanPass { wait, ..pass }), 1030);
            text.lines().nth(2).map(str::to_owned)
        };
        let text = "\twaiting for: ordinary I/O, 94 % of the time; zfs_scrub_delay=4";
        assert_eq!(line(&scrub(), wait(94, ThrottleModel::Delays)), Some(text.into()));
        assert_eq!(line(&scrub(), wait(0, ThrottleModel::Delays)), None);
        assert_eq!(line(&scrub(), None), None);
        let resilver = ScanPhys { func: ScanFunc::Resilver, ..scrub() };
        for (scan, model, end) in [
            (&resilver, ThrottleModel::Delays, "; zfs_resilver_delay=2"),
            (&resilver, ThrottleModel::Share, "; cenote_scrub_slowdown_pct=25"),
            (&scrub(), ThrottleModel::OpenZfs, "; zfs_vdev_nia_credit=5"),
        ] {
            let line = line(scan, wait(7, model)).expect("a line");
            assert!(line.contains(", 7 % of") && line.ends_with(end), "{line}");
        }
    }

    #[test]
    fn paused_scrub_is_shown_without_rates() {
        let scrub = ScanPhys { flags: ScanFlags::PAUSED, ..scrub() };
        let pass =
            ScanPass { started: 1000, issued: 41_277_440, paused: 1010, ..ScanPass::default() };
        let text = self::scan(&scrub, Some(pass), 1030).expect("a text");
        let (since, start) = (ctime(1010), ctime(1000));
        assert_eq!(
            text,
            format!(
                "scrub paused since {since}\n\tscrub started on {start}\n\
                 \t83.5M / 83.6M scanned, 39.4M / 83.6M issued\n\
                 \t0B repaired, 47.12% done"
            )
        );
        assert_eq!((paused(&scrub, Some(pass)), paused(&scrub, None)), (1010, 1000));
        let ended = ScanPhys { state: ScanState::Canceled, ..scrub };
        assert_eq!(paused(&ended, Some(pass)), 0);
    }

    /// The lines of OpenZFS, but for its percentage, which counts data sets.
    #[test]
    fn error_scrubs_are_shown() {
        let scrub = ErrorScrubPhys {
            state: ScanState::ErrorScrubbing,
            start_time: 1000,
            examined: 3,
            to_examine: 8,
            ..ErrorScrubPhys::decode(&[]).expect("no words are zeros")
        };
        for (start_time, state, is_last) in [
            (999, ScanState::Scanning, true),
            (1000, ScanState::Scanning, false),
            (1000, ScanState::Finished, true),
            (1001, ScanState::Finished, false),
        ] {
            let scan = ScanPhys { start_time, state, ..self::scrub() };
            assert_eq!(is_error_scrub_last(&scrub, Some(&scan)), is_last, "{start_time} {state:?}");
        }
        assert!(is_error_scrub_last(&scrub, None));
        let (start, end) = (ctime(1000), ctime(1007));
        let shown = |scrub| error_scrub_text(&scrub, None).expect("a text");
        assert_eq!(
            shown(scrub),
            format!(
                "error scrub in progress since {start}\n\
                 \t37.50% done, issued I/O for 3 error blocks"
            )
        );
        let paused = shown(ErrorScrubPhys { paused_flags: 1, ..scrub });
        let begin =
            format!("error scrub paused since {start}\n\terror scrub started on {start}\n\t37");
        assert!(paused.starts_with(&begin), "{paused}");
        let ended = |state| shown(ErrorScrubPhys { state, end_time: 1007, ..scrub });
        assert_eq!(ended(ScanState::Canceled), format!("error scrub canceled on {end}"));
        assert_eq!(
            ended(ScanState::Finished),
            format!("scrubbed 3 error blocks in 0 days 00:00:07 on {end}")
        );
    }

    /// The figures of recordings of OpenZFS.
    #[test]
    fn removals_are_shown_with_rate_and_time_to_go() {
        let phys = RemovingPhys {
            state: REMOVAL_RUNNING,
            removing_vdev: 1,
            prev_indirect_vdev: None,
            start_time: 1000,
            end_time: 0,
            to_copy: 35_336_192,
            copied: 25_088,
        };
        let shown = |phys: RemovingPhys, now| {
            let removal = Removal { phys, mapping_bytes: 0 };
            removal_lines(&removal, Some("/dev/shm/v/b".into()), now)
        };
        let since = ctime(1000);
        assert_eq!(
            shown(phys, 1002),
            format!(
                "remove: Evacuation of /dev/shm/v/b in progress since {since}\n\
                 \t24.5K copied out of 33.7M at 12.2K/s, 0.07% done, 0h46m to go\n"
            )
        );
        let line = shown(RemovingPhys { copied: 0, ..phys }, 1000);
        let slow =
            "\t1 copied out of 33.7M at 1/s, 0.00% done, (copy is slow, no estimated time)\n";
        assert!(line.ends_with(slow), "{line}");
        let line = shown(RemovingPhys { state: 3, end_time: 1000, ..phys }, 1000);
        assert_eq!(line, format!("remove: Removal of /dev/shm/v/b canceled on {since}\n"));
        let ended = RemovingPhys { state: REMOVAL_FINISHED, end_time: 1001, ..phys };
        let line = shown(RemovingPhys { copied: 35_336_192, ..ended }, 1000);
        assert!(line.starts_with("remove: Removal of vdev 1 copied 33.7M in 0h0m, completed"));
    }

    #[test]
    fn checkpoint_blocks_are_left_out_with_a_warning() {
        let checkpoint = Checkpoint { time: 2000, bytes: 1, is_discarding: false };
        let ended = |end_time| ScanPhys { state: ScanState::Finished, end_time, ..scrub() };
        assert!(checkpoint_warning(&scrub(), &checkpoint).contains(": skipping blocks"));
        assert!(checkpoint_warning(&ended(2000), &checkpoint).contains(": skipped blocks"));
        assert_eq!(checkpoint_warning(&ended(1999), &checkpoint), "");
        let discarded = Checkpoint { is_discarding: true, ..checkpoint };
        assert_eq!(checkpoint_warning(&scrub(), &discarded), "");
    }

    #[test]
    fn durations() {
        assert_eq!(duration(61), "00:01:01");
        assert_eq!(duration(2 * 86_400 + 3600), "2 days 01:00:00");
    }
}
