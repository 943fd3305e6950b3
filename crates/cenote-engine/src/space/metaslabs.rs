//! Writes space maps and their logs in every pass of a sync (spec 05 §4, §5.2, §5.3).
//!
//! ```text
//!   pass 1   flush:  oldest metaslabs ── unflushed changes ──> their own maps; older logs go
//!   each     change: allocs, then frees ── log of this txg, or the own map without logs
//! ```
//!
//! Writing them changes the MOS, whose blocks are allocated, which must be recorded: the sync runs
//! passes until nothing is left to record. The maps written before the uberblock contain exactly
//! the blocks that it reaches.
//!
//! Invariants
//! * SM1  A metaslab with changes belongs to a vdev of the config, and has a map once it was
//!   logged.
//! * SM2  A map that is condensed, flushed, or written without logs counts as many allocated bytes
//!   as the allocator does.

use std::collections::BTreeMap;

use cenote_block::alloc::{Condense, Flush, MapFigures, MetaslabChange};
use cenote_dmu::array;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::spacemap::edit as spacemap;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::{TopConfig, VdevConfig};
use cenote_ondisk::dsl::key;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::spacemap::{Action, Geometry};
use cenote_pool::accounting::{metaslab_range, row_size};
use cenote_ranges::RangeSet;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Result, ensure};
use cenote_vdev::layout;

use crate::SpaceManager;
use crate::dsl;
use crate::dsl::features;
use crate::invariant;
use crate::space::checkpoint;

/// Pool directory entry: the logs by txg.
const LOG_SPACEMAP_ZAP: &str = "com.delphix:log_spacemap_zap";
/// Entry of a top-level vdev's ZAP: the txg from which logs apply, for each metaslab.
const UNFLUSHED_TXGS: &str = "com.delphix:ms_unflushed_phys_txgs";
/// Block size of that array.
const UNFLUSHED_BLOCK: u64 = 128 << 10;
/// Block size of a log, in which its length is measured.
const LOG_BLOCK: u64 = 128 << 10;

/// Changes of a pass outside of the MOS.
#[derive(Debug, Default)]
pub(crate) struct Recorded {
    /// New metaslab array objects, by vdev id: the config changes.
    pub(crate) arrays: BTreeMap<u64, u64>,
    /// Bytes that the checkpoint holds from now on, by vdev id.
    held: BTreeMap<u64, u64>,
    /// Whether anything was written.
    pub(crate) is_changed: bool,
}

/// Features that determine the format of maps.
#[derive(Debug, Clone, Copy)]
struct Forms {
    has_logs: bool,
    has_v2: bool,
    has_histograms: bool,
}

impl Forms {
    /// `has_logs` is the allocator's: enabling the feature takes effect at the next import.
    fn of(tx: &mut Tx<'_>, has_logs: bool) -> TxResult<Self> {
        Ok(Self {
            has_logs,
            has_v2: features::is_active(tx, "spacemap_v2")?,
            has_histograms: features::is_enabled(tx, "spacemap_histogram")?,
        })
    }

    fn map_block(self) -> u64 {
        if self.has_logs { 128 << 10 } else { 16 << 10 }
    }
}

/// One pass through the metaslabs.
struct Recorder<'a> {
    root: &'a VdevConfig,
    txg: u64,
    pass: u32,
    forms: Forms,
    recorded: Recorded,
}

impl SpaceManager<'_> {
    /// Flushes metaslabs (pass 1) and writes all changes since the last pass.
    pub(crate) async fn record_space(self, txg: u64, pass: u32) -> Result<Recorded> {
        let root = self.engine.config().root.clone();
        let mut flushes = Vec::new();
        if pass == 1 {
            self.engine.alloc.start_flush(txg, self.engine.is_closing())?;
            while let Some(flush) = self.engine.alloc.next_flush()? {
                flushes.push(flush);
            }
        }
        // Condensing uses the state before this txg's changes, which are appended afterwards.
        let condensable = if pass == 1 { self.engine.alloc.changed(txg) } else { Vec::new() };
        let mut condensed = BTreeMap::new();
        for (vdev, metaslab) in
            flushes.iter().map(|flush| (flush.vdev, flush.metaslab)).chain(condensable)
        {
            if condensed.contains_key(&(vdev, metaslab)) {
                continue;
            }
            let figures =
                self.engine.mos_apply(txg, |tx| figures(tx, &root, vdev, metaslab)).await?;
            if let Some(figures) = figures
                && self.engine.alloc.should_condense(vdev, metaslab, &figures)
                && let Some(condense) = self.engine.alloc.condense(vdev, metaslab, txg)?
            {
                condensed.insert((vdev, metaslab), condense);
            }
        }
        let changes = self.engine.alloc.take_changes(txg)?;
        if flushes.is_empty() && condensed.is_empty() && changes.is_empty() {
            return Ok(Recorded::default());
        }
        let oldest = self.engine.alloc.oldest_unflushed();
        let has_logs = self.engine.alloc.has_logs();
        let (recorded, log_blocks) = self
            .engine
            .mos_apply(txg, |tx| {
                let forms = Forms::of(tx, has_logs)?;
                let mut recorder =
                    Recorder { root: &root, txg, pass, forms, recorded: Recorded::default() };
                recorder.run(tx, &flushes, &condensed, &changes)?;
                if pass == 1 && forms.has_logs {
                    let is_early = is_on(Bug::LogDroppedEarly);
                    drop_logs(tx, oldest.unwrap_or(txg) + u64::from(is_early))?;
                }
                let blocks = log_length(tx, txg)?.div_ceil(LOG_BLOCK);
                Ok((recorder.recorded, blocks))
            })
            .await?;
        self.engine.space.checkpoint.note_held(&recorded.held);
        if log_blocks > 0 {
            self.engine.alloc.note_log(txg, log_blocks);
        }
        if pass == 1 {
            self.engine.alloc.forget_logs_before(oldest.unwrap_or(txg))?;
        }
        Ok(recorded)
    }
}

impl<'a> Recorder<'a> {
    fn run(
        &mut self,
        tx: &mut Tx<'_>,
        flushes: &[Flush],
        condensed: &BTreeMap<(u64, u64), Condense>,
        changes: &[MetaslabChange],
    ) -> TxResult<()> {
        self.recorded.is_changed = true;
        for ((vdev, metaslab), condense) in condensed {
            self.condense(tx, *vdev, *metaslab, condense)?;
        }
        for flush in flushes {
            if !condensed.contains_key(&(flush.vdev, flush.metaslab)) {
                self.flush(tx, flush)?;
            }
        }
        for change in changes {
            self.change(tx, change)?;
        }
        Ok(())
    }

    fn flush(&self, tx: &mut Tx<'_>, flush: &Flush) -> TxResult<()> {
        if flush.is_dirty {
            let top = self.top(flush.vdev)?;
            let object = self.need_map(tx, top, flush.metaslab)?;
            let geometry = metaslab_geometry(top, flush.metaslab);
            self.append(tx, object, &geometry, None, Action::Alloc, &flush.allocs)?;
            self.append(tx, object, &geometry, None, Action::Free, &flush.frees)?;
            let (found, want) = (spacemap::header(tx, object)?.allocated, flush.allocated as i64);
            let (vdev, id) = (flush.vdev, flush.metaslab);
            ensure!("SM2", found == want, "vdev {vdev} metaslab {id}: {found} of {want} flushed");
        }
        if is_on(Bug::FlushNotNoted) {
            return Ok(());
        }
        self.set_unflushed(tx, flush.vdev, flush.metaslab, self.txg)
    }

    /// Rewrites the map: everything allocated, then the free ranges.
    fn condense(
        &self,
        tx: &mut Tx<'_>,
        vdev: u64,
        metaslab: u64,
        condense: &Condense,
    ) -> TxResult<()> {
        let top = self.top(vdev)?;
        let old = self.need_map(tx, top, metaslab)?;
        let form = self.map_form();
        let (_, had_histogram) = spacemap::length(tx, old)?;
        let object = spacemap::truncate(tx, old, &form)?;
        if object != old {
            // Replaced by a map of another format.
            match (had_histogram, form.has_histogram) {
                (false, true) => drop(features::add(tx, "spacemap_histogram", 1)?),
                (true, false) => drop(features::add(tx, "spacemap_histogram", -1)?),
                _ => {}
            }
            array::set_word(tx, self.array(top), metaslab, object)?;
        }
        let geometry = metaslab_geometry(top, metaslab);
        let whole = RangeSet::from_iter([condense.whole.clone()]);
        self.append(tx, object, &geometry, None, Action::Alloc, &whole)?;
        self.append(tx, object, &geometry, None, Action::Free, &condense.free)?;
        let found = spacemap::header(tx, object)?.allocated;
        let size = condense.whole.end - condense.whole.start;
        let want = (size - condense.free.bytes()) as i64;
        ensure!("SM2", found == want, "the new map of metaslab {metaslab} has {found} of {want}");
        match condense.unflushed_txg {
            Some(txg) => self.set_unflushed(tx, vdev, metaslab, txg),
            None => Ok(()),
        }
    }

    fn change(&mut self, tx: &mut Tx<'_>, change: &MetaslabChange) -> TxResult<()> {
        let top = self.top(change.vdev)?;
        if !change.held.is_empty() {
            let stamp = spacemap::Stamp { txg: self.txg, pass: self.pass };
            checkpoint::hold(tx, top, &change.held, stamp)?;
            *self.recorded.held.entry(change.vdev).or_default() += change.held.bytes();
        }
        if change.allocs.is_empty() && change.frees.is_empty() {
            return Ok(());
        }
        let object = self.map(tx, top, change.metaslab)?;
        if self.forms.has_logs {
            let log = self.log(tx)?;
            let geometry = Geometry::LOG;
            let (allocs, frees) = (&change.allocs, &change.frees);
            let (allocs, frees) = (less(allocs, Bug::LostAllocation), less(frees, Bug::LostFree));
            self.append(tx, log, &geometry, Some(change.vdev), Action::Alloc, &allocs)?;
            self.append(tx, log, &geometry, Some(change.vdev), Action::Free, &frees)?;
        } else {
            let geometry = metaslab_geometry(top, change.metaslab);
            self.append(tx, object, &geometry, None, Action::Alloc, &change.allocs)?;
            self.append(tx, object, &geometry, None, Action::Free, &change.frees)?;
            let (found, want) = (spacemap::header(tx, object)?.allocated, change.allocated as i64);
            let (vdev, id) = (change.vdev, change.metaslab);
            ensure!("SM2", found == want, "vdev {vdev} metaslab {id}: {found} of {want} recorded");
        }
        if let Some(txg) = change.unflushed_txg {
            self.set_unflushed(tx, change.vdev, change.metaslab, txg)?;
        }
        spacemap::set_histogram(tx, object, &change.histogram)
    }

    fn append(
        &self,
        tx: &mut Tx<'_>,
        object: u64,
        geometry: &Geometry,
        vdev: Option<u64>,
        action: Action,
        ranges: &RangeSet,
    ) -> TxResult<()> {
        let stamp = spacemap::Stamp { txg: self.txg, pass: self.pass };
        let vdev = vdev.map(|id| id as u32);
        let words = spacemap::EntryFormat { geometry: *geometry, has_v2: self.forms.has_v2, vdev };
        spacemap::append(tx, object, &words, action, ranges.iter(), stamp)
    }

    fn top(&self, id: u64) -> TxResult<&'a VdevConfig> {
        let top = usize::try_from(id).ok().and_then(|id| self.root.children.get(id));
        // Checks SM1.
        top.ok_or_else(|| invariant(format!("space of vdev {id}, which is not there")))
    }

    fn map_form(&self) -> spacemap::MapFormat {
        spacemap::MapFormat {
            block_size: self.forms.map_block(),
            has_histogram: self.forms.has_histograms,
        }
    }

    /// Returns the object of the metaslab array, which may have been created in this pass.
    fn array(&self, top: &VdevConfig) -> u64 {
        match top.top.metaslab_array {
            0 => self.recorded.arrays.get(&top.id).copied().unwrap_or(0),
            array => array,
        }
    }

    /// Returns the map of a metaslab; creates it if necessary.
    fn map(&mut self, tx: &mut Tx<'_>, top: &VdevConfig, metaslab: u64) -> TxResult<u64> {
        if self.array(top) == 0 {
            let array = tx.allocate(&ObjectSpec::new(ObjectType::OBJECT_ARRAY, 0))?;
            self.recorded.arrays.insert(top.id, array);
        }
        let array = self.array(top);
        match array::word(tx, array, metaslab)? {
            0 => {
                let object = new_map(tx, &self.map_form())?;
                array::set_word(tx, array, metaslab, object)?;
                Ok(object)
            }
            object => Ok(object),
        }
    }

    fn need_map(&self, tx: &mut Tx<'_>, top: &VdevConfig, metaslab: u64) -> TxResult<u64> {
        let array = self.array(top);
        let map = if array == 0 { 0 } else { array::word(tx, array, metaslab)? };
        // Checks SM1.
        match map {
            0 => Err(invariant(format!(
                "metaslab {metaslab} of vdev {} was logged and has no map",
                top.id
            ))),
            object => Ok(object),
        }
    }

    /// Returns the log of this txg; creates it if necessary.
    fn log(&self, tx: &mut Tx<'_>) -> TxResult<u64> {
        let logs = if let Some(logs) = dsl::directory_object(tx, LOG_SPACEMAP_ZAP)? {
            logs
        } else {
            features::add(tx, "log_spacemap", 1)?;
            dsl::new_directory_zap(tx, LOG_SPACEMAP_ZAP)?
        };
        let name = key::of_number(self.txg);
        if let Some(log) = zap::lookup_u64(tx, logs, &name)? {
            return Ok(log);
        }
        let form =
            spacemap::MapFormat { block_size: LOG_BLOCK, has_histogram: self.forms.has_histograms };
        let log = new_map(tx, &form)?;
        zap::insert(tx, logs, &name, log)?;
        Ok(log)
    }

    fn set_unflushed(&self, tx: &mut Tx<'_>, vdev: u64, metaslab: u64, txg: u64) -> TxResult<()> {
        let top = self.top(vdev)?;
        // Checks SM1.
        let zap_top = top.top.zap_top.ok_or_else(|| {
            invariant(format!("vdev {vdev} has no object for its unflushed txgs"))
        })?;
        let array = if let Some(array) = zap::lookup_u64(tx, zap_top, UNFLUSHED_TXGS)? {
            array
        } else {
            let spec = ObjectSpec::new(ObjectType::UINT64_METADATA, UNFLUSHED_BLOCK);
            let array = tx.allocate(&spec)?;
            zap::insert(tx, zap_top, UNFLUSHED_TXGS, array)?;
            array
        };
        array::set_word(tx, array, metaslab, txg)
    }
}

/// Returns the figures that determine condensing, `None` without a map.
fn figures(
    tx: &mut Tx<'_>,
    root: &VdevConfig,
    vdev: u64,
    metaslab: u64,
) -> TxResult<Option<MapFigures>> {
    let top = usize::try_from(vdev).ok().and_then(|id| root.children.get(id));
    let array = top.map_or(0, |top| top.top.metaslab_array);
    if array == 0 {
        return Ok(None);
    }
    let object = array::word(tx, array, metaslab)?;
    if object == 0 {
        return Ok(None);
    }
    // Logs do not affect the contents of a map.
    let forms = Forms::of(tx, false)?;
    let (length, has_histogram) = spacemap::length(tx, object)?;
    Ok(Some(MapFigures {
        length,
        block_size: tx.dnode(object)?.data_block_size(),
        has_v2: forms.has_v2,
        must_upgrade: forms.has_histograms && !has_histogram,
    }))
}

/// Returns `ranges`, without the first of them if this bug is seeded.
fn less(ranges: &RangeSet, bug: Bug) -> RangeSet {
    ranges.iter().skip(usize::from(is_on(bug))).collect()
}

/// Frees the maps of a top-level vdev that leaves the pool.
pub(crate) fn free_maps(tx: &mut Tx<'_>, top: &VdevConfig) -> TxResult<()> {
    let TopConfig { metaslab_array, metaslab_shift, asize, zap_top, .. } = top.top;
    if metaslab_array != 0 {
        for metaslab in 0..layout::metaslab_count(asize, metaslab_shift as u32) {
            let map = array::word(tx, metaslab_array, metaslab)?;
            if map != 0 {
                free_map(tx, map)?;
            }
        }
        tx.free(metaslab_array)?;
    }
    let Some(zap_top) = zap_top else { return Ok(()) };
    if let Some(unflushed) = zap::lookup_u64(tx, zap_top, UNFLUSHED_TXGS)? {
        tx.free(unflushed)?;
        zap::remove(tx, zap_top, UNFLUSHED_TXGS)?;
    }
    Ok(())
}

/// Frees a space map.
pub(crate) fn free_map(tx: &mut Tx<'_>, map: u64) -> TxResult<()> {
    let (_, has_histogram) = spacemap::length(tx, map)?;
    if has_histogram {
        features::add(tx, "spacemap_histogram", -1)?;
    }
    tx.free(map)
}

/// Creates a space map; the feature counts those with a histogram.
pub(crate) fn new_map(tx: &mut Tx<'_>, form: &spacemap::MapFormat) -> TxResult<u64> {
    if form.has_histogram {
        features::add(tx, "spacemap_histogram", 1)?;
    }
    spacemap::create(tx, form)
}

/// Removes the logs of txgs before `oldest`, which every metaslab has in its own map.
fn drop_logs(tx: &mut Tx<'_>, oldest: u64) -> TxResult<()> {
    let Some(logs) = dsl::directory_object(tx, LOG_SPACEMAP_ZAP)? else { return Ok(()) };
    for (txg, log) in zap::numbers(tx, logs)?.into_iter().filter(|(txg, _)| *txg < oldest) {
        free_map(tx, log)?;
        zap::remove_number(tx, logs, txg)?;
    }
    Ok(())
}

/// Returns the length of the log of `txg`, 0 if there is none.
fn log_length(tx: &mut Tx<'_>, txg: u64) -> TxResult<u64> {
    let Some(logs) = dsl::directory_object(tx, LOG_SPACEMAP_ZAP)? else { return Ok(0) };
    let log = zap::lookup_u64(tx, logs, &key::of_number(txg))?;
    Ok(match log {
        Some(log) => spacemap::length(tx, log)?.0,
        None => 0,
    })
}

/// Returns the location and the unit of a metaslab's map.
fn metaslab_geometry(vdev: &VdevConfig, metaslab: u64) -> Geometry {
    let TopConfig { metaslab_shift, ashift, .. } = vdev.top;
    let (start, size) = metaslab_range(metaslab, metaslab_shift as u32, row_size(vdev));
    Geometry { start, size, shift: ashift as u8 }
}
