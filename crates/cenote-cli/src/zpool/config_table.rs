//! The table below `config:`, in import listings and in the status of an open pool.
//!
//!     <TAB>NAME          STATE     READ WRITE CKSUM        (status only)
//!     <TAB>pool          ONLINE       0     0     0
//!     <TAB>  mirror-0    ONLINE       0     0     0
//!     <TAB>logs
//!     <TAB>  /dev/sdc    ONLINE       0     0     0
//!
//! Depth grows by two; the name column is as wide as the widest indented name of all sections, and
//! at least ten. Layout: spec 06 §19.2.

use std::fmt::Write as _;
use std::sync::Arc;

use cenote_engine::ScanPass;
use cenote_ondisk::config::VdevKind;
use cenote_ondisk::leaf_work::LeafWorkState;
use cenote_ondisk::scan::{ScanFunc, ScanPhys, ScanState};
use cenote_pool::AllocationClass;
use cenote_pool::status::{
    AuxReport, LeafProgress, PoolStatus, VdevAux, VdevReport, VdevState, state_name,
};

use super::names::Names;
use super::scripts::{self, Columns};
use crate::nicenum;
use crate::zfs::value;

/// Sections after the main one, and their titles.
pub(super) const SECTIONS: [(AllocationClass, &str); 3] = [
    (AllocationClass::Dedup, "dedup"),
    (AllocationClass::Special, "special"),
    (AllocationClass::Log, "logs"),
];

/// Narrowest name column.
const NAME_WIDTH_MIN: usize = 10;

/// Options of a table.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
pub(super) struct Options {
    /// How vdevs are named.
    pub(super) names: Names,
    /// For `zpool import`: no counters, and indirect vdevs are shown.
    pub(super) is_import: bool,
    /// `-p`: counters in full.
    pub(super) is_literal: bool,
    /// `-s`: a column of slow I/Os.
    pub(super) has_slow: bool,
    /// `-D`-like columns of direct reads (`-d`).
    pub(super) has_direct: bool,
    /// `-e`: healthy vdevs are left out.
    pub(super) only_bad: bool,
    /// `-i`: progress of initializing.
    pub(super) has_initialize: bool,
    /// `-t`: progress of trimming.
    pub(super) has_trim: bool,
    /// What a scan did since the pool was opened.
    pub(super) pass: Option<ScanPass>,
    /// `-c`: columns of scripts.
    pub(super) columns: Option<Arc<Columns>>,
}

struct Table<'a> {
    status: &'a PoolStatus,
    options: &'a Options,
    /// The scan in progress, if it has repaired something.
    scan: Option<ScanFunc>,
    width: usize,
    text: String,
}

/// Returns the class of a top-level vdev that has a section of its own.
pub(super) fn class_of(vdev: &VdevReport) -> AllocationClass {
    vdev.class.unwrap_or(AllocationClass::Normal)
}

/// Returns the top-level vdevs of one section, without holes.
pub(super) fn section(root: &VdevReport, class: AllocationClass) -> Vec<&VdevReport> {
    let is_shown = |vdev: &&VdevReport| {
        !matches!(vdev.kind, VdevKind::Hole | VdevKind::Missing) && class_of(vdev) == class
    };
    root.children.iter().filter(is_shown).collect()
}

/// Renders the whole table.
pub(super) fn render(status: &PoolStatus, options: &Options) -> String {
    // As with OpenZFS, notes on devices begin with the first repair since the pool was opened.
    let is_at_work = options.pass.is_some_and(|pass| pass.issued > 0);
    let has_notes = |scan: &ScanPhys| scan.state == ScanState::Scanning && scan.processed > 0;
    let scan = status.scan.filter(|scan| is_at_work && has_notes(scan)).map(|scan| scan.func);
    let width = width(status, options);
    let mut table = Table { status, options, scan, width, text: String::new() };
    if !options.is_import {
        table.header();
    }
    let root = &status.root;
    // As with OpenZFS, '-e' leaves the titles and the root.
    table.vdev(root, 0, false);
    for vdev in section(root, AllocationClass::Normal) {
        table.below(vdev, 2);
    }
    // OpenZFS prints these two at different places in its two tables.
    if options.is_import {
        table.aux("cache", &status.caches);
        table.aux("spares", &status.spares);
    }
    for (class, title) in SECTIONS {
        let vdevs = section(root, class);
        if !vdevs.is_empty() {
            table.line(&format!("{title}\t"));
            for vdev in vdevs {
                table.below(vdev, 2);
            }
        }
    }
    if !options.is_import {
        table.aux("cache", &status.caches);
        table.aux("spares", &status.spares);
    }
    table.text
}

/// Returns the width of the widest indented name.
pub(super) fn width(status: &PoolStatus, options: &Options) -> usize {
    let aux = status.caches.iter().chain(&status.spares).map(|aux| {
        let name = options.names.device(&aux.name, false, false);
        name.chars().count() + 2
    });
    let widest = aux.max().unwrap_or(0);
    widest.max(vdev_width(&status.root, 0, &options.names)).max(NAME_WIDTH_MIN)
}

/// Returns the width of the widest indented name of a vdev and its descendants.
pub(super) fn vdev_width(vdev: &VdevReport, depth: usize, names: &Names) -> usize {
    let own = names.vdev(vdev).chars().count() + depth;
    let children = vdev.children.iter().filter(|child| child.kind != VdevKind::Hole);
    children.map(|child| vdev_width(child, depth + 2, names)).max().unwrap_or(0).max(own)
}

/// Whether `-e` shows a vdev; with `has_slow`, slow I/Os alone suffice.
fn is_bad(vdev: &VdevReport, has_slow: bool) -> bool {
    let stats = &vdev.stats;
    vdev.state != VdevState::Healthy
        || [stats.read_errors, stats.write_errors, stats.checksum_errors].iter().any(|n| *n != 0)
        || (has_slow && stats.slow_ios != 0)
}

fn has_bad(vdev: &VdevReport, has_slow: bool) -> bool {
    is_bad(vdev, has_slow) || vdev.children.iter().any(|child| has_bad(child, has_slow))
}

impl Table<'_> {
    fn line(&mut self, text: &str) {
        self.text.extend(["\t", text, "\n"]);
    }

    fn header(&mut self) {
        let width = self.width;
        let mut line =
            format!("{:width$}  {:8} {:>5} {:>5} {:>5}", "NAME", "STATE", "READ", "WRITE", "CKSUM");
        if self.options.has_slow {
            line.push_str("  SLOW");
        }
        if self.options.has_direct {
            line.push_str("   DIO");
        }
        if let Some(columns) = &self.options.columns {
            line.push_str(&columns.header());
        }
        self.line(&line);
    }

    /// Adds the children of a vdev, as far as the options show them.
    fn below(&mut self, vdev: &VdevReport, depth: usize) {
        if vdev.kind == VdevKind::Indirect && !self.options.is_import {
            return;
        }
        // A vdev is shown if it or one of its descendants is bad.
        if self.options.only_bad && !has_bad(vdev, self.options.has_slow) {
            return;
        }
        self.vdev(vdev, depth, false);
        for child in &vdev.children {
            self.below(child, depth + 2);
        }
    }

    fn vdev(&mut self, vdev: &VdevReport, depth: usize, is_spare: bool) {
        let name = self.options.names.vdev(vdev);
        let width = self.width - depth;
        let state = state_name(vdev.state, vdev.aux);
        let indent = " ".repeat(depth);
        if self.options.is_import {
            let mut line = format!("{indent}{name:width$}  {state}");
            if vdev.aux != VdevAux::None {
                line.push_str("  ");
                line.push_str(import_cause(vdev.aux));
            }
            return self.line(&line);
        }
        let mut line = format!("{indent}{name:width$}  {state:8}");
        if !is_spare {
            self.counters(vdev, &mut line);
        }
        line.push_str(&note(vdev, self.scan));
        if let (Some(columns), Some(leaf)) =
            (&self.options.columns, scripts::leaf(self.status, vdev))
        {
            line.push_str(&columns.row(&leaf));
        }
        if vdev.children.is_empty() && vdev.kind != VdevKind::Root && !is_spare {
            line.push_str(&progress(&INITIALIZE, &vdev.initialize, self.options.has_initialize));
            line.push_str(&progress(&TRIM, &vdev.trim, self.options.has_trim));
        }
        self.line(&line);
    }

    fn counters(&self, vdev: &VdevReport, line: &mut String) {
        let is_leaf = vdev.children.is_empty();
        let shown = |number: u64| {
            if self.options.is_literal { number.to_string() } else { nicenum::bytes(number) }
        };
        let stats = &vdev.stats;
        for number in [stats.read_errors, stats.write_errors, stats.checksum_errors] {
            let _ = write!(line, " {:>5}", shown(number));
        }
        if self.options.has_slow {
            let text = if is_leaf { shown(stats.slow_ios) } else { "-".to_owned() };
            let _ = write!(line, " {text:>5}");
        }
        if self.options.has_direct {
            // Direct I/O is not counted.
            let _ = write!(line, " {:>5}", 0);
        }
    }

    fn aux(&mut self, title: &str, devices: &[AuxReport]) {
        if devices.is_empty() {
            return;
        }
        self.line(title);
        for device in devices.iter().filter(|device| !self.options.only_bad || !is_well(device)) {
            let name = if self.options.names.by_guid {
                device.guid.to_string()
            } else {
                self.options.names.device(&device.name, false, false)
            };
            let width = self.width - 2;
            let state = aux_state(title == "spares", device);
            if self.options.is_import {
                self.line(&format!("  {name}"));
                continue;
            }
            let mut line = format!("  {name:width$}  {state:8}");
            if title != "spares" {
                let more = [self.options.has_slow, self.options.has_direct];
                let counters = 3 + more.iter().filter(|has| **has).count();
                line.push_str(&"     0".repeat(counters));
            }
            line.push_str(match state {
                _ if device.state == VdevState::CantOpen => "  cannot open",
                "INUSE" => "  currently in use",
                _ => "",
            });
            if let Some(columns) = &self.options.columns {
                line.push_str(&columns.row(&scripts::leaf_at(self.status, &device.name)));
            }
            let work = LeafProgress::default();
            line.push_str(&progress(&INITIALIZE, &work, self.options.has_initialize));
            line.push_str(&progress(&TRIM, &work, self.options.has_trim));
            self.line(&line);
        }
    }
}

/// Returns the text after the counters; `scan` is that of the table.
fn note(vdev: &VdevReport, scan: Option<ScanFunc>) -> String {
    let mut note = String::new();
    if vdev.is_absent && vdev.state == VdevState::CantOpen {
        note = format!("  was {}", vdev.path.as_deref().unwrap_or_default());
    } else if vdev.aux != VdevAux::None {
        note = format!("  {}", status_cause(vdev));
    } else if let Some(native) = vdev.device.map(|device| device.physical_ashift)
        && vdev.children.is_empty()
        && vdev.ashift != 0
        && vdev.ashift < u64::from(native)
    {
        let (configured, native) = (1u64 << vdev.ashift, 1u64 << native);
        note = format!("  block size: {configured}B configured, {native}B native");
    }
    if vdev.is_removing {
        note.push_str("  (removing)");
    } else if vdev.is_non_allocating {
        note.push_str("  (non-allocating)");
    }
    if vdev.needs_resilver {
        note.push_str("  (resilver needed)");
    }
    if vdev.is_deferred {
        note.push_str("  (awaiting resilver)");
    } else if vdev.children.is_empty() && vdev.state == VdevState::Healthy {
        note.push_str(match scan {
            Some(ScanFunc::Resilver) if vdev.is_resilvering => "  (resilvering)",
            Some(ScanFunc::Scrub) if vdev.stats.repaired_bytes != 0 => "  (repairing)",
            _ => "",
        });
    }
    note
}

/// Words for initializing or trimming a leaf: running, done, never run.
type Words = [&'static str; 3];

const INITIALIZE: Words = ["initializing", "initialized", "uninitialized"];
const TRIM: Words = ["trimming", "trimmed", "untrimmed"];

/// Formats the progress of work on a leaf; without details only that it runs.
fn progress(words: &Words, progress: &LeafProgress, has_details: bool) -> String {
    let [runs, ran, never] = words;
    let work = &progress.work;
    let time = value::date(work.time, value::CTIME);
    let since = match work.state {
        LeafWorkState::Active if !has_details => return format!("  ({runs})"),
        _ if !has_details => return String::new(),
        LeafWorkState::Active => format!("started at {time}"),
        LeafWorkState::Suspended => format!("suspended, started at {time}"),
        LeafWorkState::Complete => format!("completed at {time}"),
        LeafWorkState::None | LeafWorkState::Canceled => return format!("  ({never})"),
    };
    format!("  ({}% {ran}, {since})", progress.percent())
}

fn is_well(device: &AuxReport) -> bool {
    device.state == VdevState::Healthy
}

/// Returns the state of a spare or cache device.
pub(super) fn aux_state(is_spare: bool, device: &AuxReport) -> &'static str {
    match device.state {
        VdevState::Healthy if is_spare && device.is_in_use => "INUSE",
        VdevState::Healthy if is_spare => "AVAIL",
        state => state_name(state, VdevAux::None),
    }
}

/// Returns why a vdev of an importable pool is unhealthy.
fn import_cause(aux: VdevAux) -> &'static str {
    match aux {
        VdevAux::OpenFailed => "cannot open",
        VdevAux::BadGuidSum => "missing device",
        VdevAux::NoReplicas => "insufficient replicas",
        VdevAux::ErrExceeded => "too many errors",
        VdevAux::ChildrenOffline => "all children offline",
        VdevAux::BadLabel => "invalid label",
        _ => "corrupted data",
    }
}

/// Returns why a vdev of an open pool is unhealthy.
fn status_cause(vdev: &VdevReport) -> &'static str {
    let stats = &vdev.stats;
    match vdev.aux {
        VdevAux::ErrExceeded
            if vdev.children.is_empty()
                && [stats.read_errors, stats.write_errors, stats.checksum_errors] == [0; 3]
                && stats.slow_ios > 0 =>
        {
            "too many slow I/Os"
        }
        VdevAux::BadLog => "bad intent log",
        VdevAux::External => "external device fault",
        other => import_cause(other),
    }
}
