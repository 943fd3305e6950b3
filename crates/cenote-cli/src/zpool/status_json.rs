//! The status of a pool as JSON: keys and order as OpenZFS 2.3 prints them.

use cenote_engine::ScanPass;
use cenote_ondisk::config::VdevKind;
use cenote_ondisk::leaf_work::LeafWorkState;
use cenote_ondisk::rebuild::RebuildState;
use cenote_ondisk::scan::{ScanFunc, ScanPhys, ScanState};
use cenote_pool::AllocationClass;
use cenote_pool::status::{
    AuxReport, ExpansionState, LeafProgress, PoolStatus, Rebuild, VdevReport,
};
use serde_json::{Map, Value};

use super::config_table::{SECTIONS, aux_state, section};
use super::json::{self, Form};
use super::names::Names;
use super::scripts::{self, Columns};
use super::shown::Shown;
use super::status::MESSAGE_URL;
use super::{scan, status_text};
use crate::nicenum;
use crate::zfs::value;

/// Form of times, that of the C library's `_DATE_FMT`.
const TIME: &str = "%a %b %e %H:%M:%S %Z %Y";

/// The work to include: kinds of work on leaves, and the running scan.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work<'a> {
    /// `-i`
    pub(super) has_initialize: bool,
    /// `-t`
    pub(super) has_trim: bool,
    /// What a scan did since the pool was opened.
    pub(super) pass: Option<ScanPass>,
    /// Columns of scripts.
    pub(super) columns: Option<&'a Columns>,
}

struct Writer<'a> {
    form: Form,
    work: Work<'a>,
    names: &'a Names,
    status: &'a PoolStatus,
}

/// Returns one pool.
pub(super) fn pool(
    pool: Shown<'_>,
    status: &PoolStatus,
    names: &Names,
    errors: &[String],
    (form, work): (Form, Work<'_>),
) -> Map<String, Value> {
    let writer = Writer { form, work, names, status };
    let mut map = pool.json(form, false);
    if let Some((text, action)) = status_text::texts(status.reason) {
        // As OpenZFS prints them: with the line breaks of its other output.
        let lines = |text: &str| text.replace('|', "\n\t") + "\n";
        map.insert("status".into(), lines(text).into());
        map.insert("action".into(), lines(action).into());
    }
    if let Some(id) = status.reason.message_id() {
        map.insert("msgid".into(), format!("ZFS-8000-{id}").into());
        map.insert("moreinfo".into(), format!("{MESSAGE_URL}{id}").into());
    }
    writer.progress(&mut map);
    writer.vdevs(&mut map);
    map.insert("error_count".into(), form.number(status.error_count));
    if !errors.is_empty() {
        map.insert("errlist".into(), errors.to_vec().into());
    }
    map
}

impl Writer<'_> {
    /// Formats bytes: as numbers if requested.
    fn bytes(&self, bytes: u64) -> Value {
        if self.form.has_numbers { bytes.into() } else { nicenum::bytes(bytes).into() }
    }

    /// Formats bytes, with a "B" on small numbers.
    fn bytes_b(&self, bytes: u64) -> Value {
        if self.form.has_numbers { bytes.into() } else { nicenum::bytes_b(bytes).into() }
    }

    /// Formats a duration: as nanoseconds if numbers are requested.
    fn milliseconds(&self, milliseconds: u64) -> Value {
        let ns = milliseconds.saturating_mul(1_000_000);
        if self.form.has_numbers { ns.into() } else { nicenum::time(ns).into() }
    }

    /// Formats a time; 0 is none.
    fn time(&self, seconds: u64) -> Value {
        if self.form.has_numbers {
            return seconds.into();
        }
        if seconds == 0 {
            return "-".into();
        }
        value::date(seconds, TIME).into()
    }

    /// Adds scan, removal, checkpoint, expansion.
    fn progress(&self, map: &mut Map<String, Value>) {
        let scan = self.status.scan.as_ref().and_then(|scan| self.scan(scan));
        let mut scan = scan.unwrap_or_default();
        let rebuilds = self.status.other_scans.rebuilds.iter();
        let rebuilds: Map<_, _> = rebuilds.filter_map(|rebuild| self.rebuild(rebuild)).collect();
        if !rebuilds.is_empty() {
            scan.insert("rebuild_stats".into(), rebuilds.into());
        }
        if !scan.is_empty() {
            map.insert("scan_stats".into(), scan.into());
        }
        if let Some(removal) = &self.status.removal {
            let phys = &removal.phys;
            let state = ["NONE", "SCANNING", "FINISHED", "CANCELED"];
            let state = state.get(phys.state as usize).copied().unwrap_or("NONE");
            let mut part = self.removed_vdev(phys.removing_vdev);
            part.insert("state".into(), state.into());
            part.insert("removing_vdev".into(), self.form.number(phys.removing_vdev));
            part.insert("start_time".into(), self.time(phys.start_time));
            part.insert("end_time".into(), self.time(phys.end_time));
            part.insert("to_copy".into(), self.bytes(phys.to_copy));
            part.insert("copied".into(), self.bytes(phys.copied));
            part.insert("mapping_memory".into(), self.bytes(removal.mapping_bytes));
            map.insert("removal_stats".into(), part.into());
        }
        if let Some(checkpoint) = &self.status.checkpoint {
            let mut part = Map::new();
            let state = if checkpoint.is_discarding { "DISCARDING" } else { "EXISTS" };
            part.insert("state".into(), state.into());
            part.insert("start_time".into(), self.time(checkpoint.time));
            part.insert("space".into(), self.bytes(checkpoint.bytes));
            map.insert("checkpoint_stats".into(), part.into());
        }
        for expansion in &self.status.expansions {
            let vdev = scan::top(self.status, expansion.vdev);
            let state = match expansion.state {
                ExpansionState::Running => "SCANNING",
                ExpansionState::Finished => "FINISHED",
            };
            let mut part = Map::new();
            part.insert("name".into(), vdev.map_or("", |vdev| &vdev.name).into());
            part.insert("state".into(), state.into());
            part.insert("expanding_vdev".into(), self.form.number(expansion.vdev));
            part.insert("start_time".into(), self.time(expansion.start_time));
            part.insert("end_time".into(), self.time(expansion.end_time));
            part.insert("to_reflow".into(), self.bytes(expansion.to_copy));
            part.insert("reflowed".into(), self.bytes(expansion.copied));
            let is_waiting = self.work.pass.is_some_and(|pass| pass.is_expansion_waiting);
            part.insert("waiting_for_resilver".into(), self.form.number(is_waiting.into()));
            map.insert("raidz_expand_stats".into(), part.into());
        }
    }

    fn scan(&self, scan: &ScanPhys) -> Option<Map<String, Value>> {
        let function = match scan.func {
            ScanFunc::Scrub => "SCRUB",
            ScanFunc::Resilver => "RESILVER",
            _ => return None,
        };
        let state = match scan.state {
            ScanState::Scanning => "SCANNING",
            ScanState::Finished => "FINISHED",
            ScanState::Canceled => "CANCELED",
            _ => "NONE",
        };
        let mut part = Map::new();
        part.insert("function".into(), function.into());
        part.insert("state".into(), state.into());
        part.insert("start_time".into(), self.time(scan.start_time));
        part.insert("end_time".into(), self.time(scan.end_time));
        part.insert("to_examine".into(), self.bytes_b(scan.to_examine));
        part.insert("examined".into(), self.bytes_b(scan.examined));
        part.insert("skipped".into(), self.bytes_b(scan.skipped));
        part.insert("processed".into(), self.bytes_b(scan.processed));
        part.insert("errors".into(), self.form.number(scan.errors));
        let pass = self.work.pass.unwrap_or_default();
        let issued = scan::issued(scan, self.work.pass);
        part.insert("bytes_per_scan".into(), self.bytes_b(pass.examined));
        part.insert("pass_start".into(), self.form.number(pass.started));
        part.insert("scrub_pause".into(), self.time(scan::paused(scan, self.work.pass)));
        part.insert("scrub_spent_paused".into(), self.form.number(pass.spent_paused));
        part.insert("issued_bytes_per_scan".into(), self.bytes_b(pass.issued));
        part.insert("issued".into(), self.bytes_b(issued));
        let waiting = scan::waiting(scan, self.work.pass);
        if let Some(waiting) = waiting.filter(|_| scan.state == ScanState::Scanning) {
            part.insert("waiting_for".into(), "ordinary I/O".into());
            part.insert("waiting_percent".into(), self.form.number(waiting.percent.into()));
            part.insert("waiting_tunable".into(), waiting.tunable.into());
            part.insert("waiting_tunable_value".into(), self.form.number(waiting.value));
        }
        Some(part)
    }

    /// Returns the last sequential rebuild of a top-level vdev, with the vdev's name.
    fn rebuild(&self, rebuild: &Rebuild) -> Option<(String, Value)> {
        let phys = &rebuild.phys;
        let state = match phys.state {
            RebuildState::Active => "ACTIVE",
            RebuildState::Canceled => "CANCELED",
            RebuildState::Complete => "COMPLETE",
            RebuildState::None | RebuildState::Other(_) => return None,
        };
        let vdev = scan::top(self.status, rebuild.vdev)?;
        let mut part = self.identity(vdev);
        part.insert("state".into(), state.into());
        part.insert("start_time".into(), self.time(phys.start_time));
        part.insert("end_time".into(), self.time(phys.end_time));
        part.insert("scan_time".into(), self.milliseconds(phys.scan_time_ms));
        part.insert("scanned".into(), self.bytes_b(phys.bytes_scanned));
        part.insert("issued".into(), self.bytes_b(phys.bytes_issued));
        part.insert("rebuilt".into(), self.bytes_b(phys.bytes_rebuilt));
        part.insert("to_scan".into(), self.bytes_b(phys.bytes_est));
        part.insert("errors".into(), self.form.number(phys.errors));
        // What it did since the pool was opened is known while it runs.
        let pass = self.work.pass.filter(|_| phys.state == RebuildState::Active);
        let pass = pass.unwrap_or_default();
        let seconds = match pass.started {
            0 => 0,
            started => cenote_rt::wall_clock().as_secs().saturating_sub(started),
        };
        part.insert("pass_time".into(), self.milliseconds(seconds * 1000));
        part.insert("pass_scanned".into(), self.bytes_b(pass.examined));
        part.insert("pass_issued".into(), self.bytes_b(pass.issued));
        part.insert("pass_skipped".into(), self.bytes_b(0));
        Some((self.names.vdev(vdev), part.into()))
    }

    /// Returns what identifies a vdev.
    fn identity(&self, vdev: &VdevReport) -> Map<String, Value> {
        let keys = ["name", "vdev_type", "guid", "path", "class"];
        self.vdev(vdev).into_iter().filter(|(key, _)| keys.contains(&key.as_str())).collect()
    }

    /// Returns what identifies the vdev of a removal.
    fn removed_vdev(&self, id: u64) -> Map<String, Value> {
        let vdev = scan::top(self.status, id);
        match vdev.filter(|vdev| vdev.kind != VdevKind::Indirect) {
            Some(vdev) => self.identity(vdev),
            None => Map::from_iter([("name".to_owned(), "indirect".into())]),
        }
    }

    /// Adds the main tree and the sections.
    fn vdevs(&self, map: &mut Map<String, Value>) {
        let root = &self.status.root;
        let mut top = self.vdev(root);
        let mut below = Map::new();
        let mut flat = Map::new();
        for vdev in section(root, AllocationClass::Normal) {
            if vdev.kind != VdevKind::Indirect {
                self.add(vdev, &root.name, &mut below, &mut flat);
            }
        }
        let mut all = Map::new();
        if !below.is_empty() {
            top.insert("vdevs".into(), below.into());
        }
        all.insert(root.name.clone(), top.into());
        all.extend(flat);
        map.insert("vdevs".into(), all.into());
        for (class, title) in SECTIONS {
            let (mut below, mut flat) = (Map::new(), Map::new());
            for vdev in section(root, class) {
                self.add(vdev, &root.name, &mut below, &mut flat);
            }
            below.extend(flat);
            if !below.is_empty() {
                map.insert(title.into(), below.into());
            }
        }
        for (title, devices) in [("l2cache", &self.status.caches), ("spares", &self.status.spares)]
        {
            if !devices.is_empty() {
                let devices = devices.iter().map(|device| {
                    (device.name.clone(), self.aux(device, title == "spares").into())
                });
                map.insert(title.into(), devices.collect::<Map<_, _>>().into());
            }
        }
    }

    /// Adds a vdev and its descendants: nested, or flat with the parent's name.
    fn add(
        &self,
        vdev: &VdevReport,
        parent: &str,
        nested: &mut Map<String, Value>,
        flat: &mut Map<String, Value>,
    ) {
        let name = self.names.vdev(vdev);
        let mut map = self.vdev(vdev);
        if self.form.is_flat {
            map.insert("parent".into(), parent.into());
            flat.insert(name.clone(), map.into());
            for child in &vdev.children {
                self.add(child, &name, nested, flat);
            }
            return;
        }
        let mut below = Map::new();
        for child in &vdev.children {
            self.add(child, &name, &mut below, flat);
        }
        if !below.is_empty() {
            map.insert("vdevs".into(), below.into());
        }
        nested.insert(name, map.into());
    }

    fn vdev(&self, vdev: &VdevReport) -> Map<String, Value> {
        let is_root = vdev.kind == VdevKind::Root;
        let is_leaf = vdev.children.is_empty() && !is_root;
        let mut map = json::vdev(self.form, vdev, &self.names.vdev(vdev), false);
        let mut size = |key: &str, bytes: u64| {
            if bytes != 0 {
                map.insert(key.into(), self.bytes(bytes));
            }
        };
        if let (true, Some(space)) = (is_root, &self.status.space) {
            size("alloc_space", space.allocated);
            size("total_space", space.size);
            size("def_space", space.rdspace);
        }
        if let Some(figures) = &vdev.figures {
            size("alloc_space", figures.allocated);
            size("total_space", figures.size);
            size("def_space", (figures.size >> 9) * figures.ratio);
            if !is_leaf {
                size("rep_dev_size", figures.size);
            }
        }
        if let Some(bytes) = vdev.device.map(|device| device.size) {
            size("rep_dev_size", bytes);
            size("self_healed", vdev.stats.repaired_bytes);
            size("phys_space", bytes);
        }
        map.insert("read_errors".into(), self.form.number(vdev.stats.read_errors));
        map.insert("write_errors".into(), self.form.number(vdev.stats.write_errors));
        map.insert("checksum_errors".into(), self.form.number(vdev.stats.checksum_errors));
        if is_leaf {
            map.insert("slow_ios".into(), self.form.number(vdev.stats.slow_ios));
        }
        if let (Some(columns), Some(leaf)) = (self.work.columns, scripts::leaf(self.status, vdev)) {
            columns.add_to(&leaf, &mut map);
        }
        if let (true, Some(path)) = (vdev.is_absent, &vdev.path) {
            map.insert("not_present".into(), self.form.number(1));
            map.insert("was".into(), path.clone().into());
        }
        if is_leaf {
            self.leaf_work(vdev, &mut map);
        }
        map
    }

    /// Adds the progress of initialize and trim, where requested.
    fn leaf_work(&self, vdev: &VdevReport, map: &mut Map<String, Value>) {
        if self.work.has_initialize {
            let keys = ["init_state", "initialized", "to_initialize", "init_time", "init_errors"];
            self.leaf_progress(&vdev.initialize, keys, "UNINITIALIZED", map);
        }
        if self.work.has_trim {
            let keys = ["trim_state", "trimmed", "to_trim", "trim_time", "trim_errors"];
            self.leaf_progress(&vdev.trim, keys, "UNTRIMMED", map);
            map.insert("trim_notsup".into(), self.form.number(0));
        }
    }

    fn leaf_progress(
        &self,
        progress: &LeafProgress,
        [state, done, total, time, errors]: [&str; 5],
        never: &str,
        map: &mut Map<String, Value>,
    ) {
        let name = match progress.work.state {
            LeafWorkState::None => {
                map.insert(state.into(), never.into());
                return;
            }
            LeafWorkState::Active => "ACTIVE",
            LeafWorkState::Canceled => "CANCELED",
            LeafWorkState::Suspended => "SUSPENDED",
            LeafWorkState::Complete => "COMPLETE",
        };
        map.insert(state.into(), name.into());
        map.insert(done.into(), self.bytes(progress.done));
        map.insert(total.into(), self.bytes(progress.total));
        map.insert(time.into(), self.time(progress.work.time));
        map.insert(errors.into(), self.form.number(0));
    }

    fn aux(&self, device: &AuxReport, is_spare: bool) -> Map<String, Value> {
        let mut map = Map::new();
        map.insert("name".into(), device.name.clone().into());
        map.insert("vdev_type".into(), device.kind.name().into());
        map.insert("guid".into(), self.form.number(device.guid));
        map.insert("path".into(), device.name.clone().into());
        map.insert("class".into(), if is_spare { "spare" } else { "l2cache" }.into());
        map.insert("state".into(), aux_state(is_spare, device).into());
        if !is_spare {
            if let Some(bytes) = device.device_size {
                map.insert("phys_space".into(), self.bytes(bytes));
            }
            for counter in ["read_errors", "write_errors", "checksum_errors", "slow_ios"] {
                map.insert(counter.into(), self.form.number(0));
            }
        }
        if let Some(columns) = self.work.columns {
            columns.add_to(&scripts::leaf_at(self.status, &device.name), &mut map);
        }
        map
    }
}
