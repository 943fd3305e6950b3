//! Signatures under way.
#![expect(
    clippy::unused_async,
    clippy::unused_self,
    unused_variables,
    missing_docs,
    reason = "bodies follow"
)]
use super::*;
use cenote_ondisk::blkptr::Dva;
use cenote_ondisk::spacemap::{Action, HISTOGRAM_BUCKETS};
use cenote_ranges::RangeSet;
use cenote_rt::Result;
use std::sync::Arc;

pub struct Options {
    pub store: Arc<dyn MetaslabStore>,
    pub geometry: Arc<dyn SpaceGeometry>,
    /// Last committed txg.
    pub txg: u64,
    /// Feature log_spacemap active: changes go to logs.
    pub has_logs: bool,
    /// Slots per class.
    pub allocators: usize,
    pub seed: u64,
}
#[derive(Debug)]
pub struct SpaceAllocator;
/// Per pass: append to log `txg` (or own map), allocs first.
#[derive(Debug, Clone)]
pub struct MetaslabChange {
    pub vdev: u64,
    pub metaslab: u64,
    pub allocs: RangeSet,
    pub frees: RangeSet,
    /// Freed, but held by the checkpoint: FREE in the vdev's checkpoint map, nothing in the metaslab's.
    pub held: RangeSet,
    /// Its `msp_unflushed_txg` becomes this: write the array.
    pub unflushed_txg: Option<u64>,
    /// smp_histogram for its own space map's header.
    pub histogram: [u64; HISTOGRAM_BUCKETS],
    /// No space map object yet: make one.
    pub needs_map: bool,
}
/// What next_flush says: write these to the metaslab's own map (allocs, then frees; or condense
/// instead), and `txg` into the unflushed array.
#[derive(Debug, Clone)]
pub struct Flush {
    pub vdev: u64,
    pub metaslab: u64,
    pub is_dirty: bool,
    pub allocs: RangeSet,
    pub frees: RangeSet,
}
/// Contents of a condensed map: ALLOC `whole`, then FREE `free`.
#[derive(Debug, Clone)]
pub struct Condense {
    pub whole: std::ops::Range<u64>,
    pub free: RangeSet,
    /// Write this into the unflushed array, if some.
    pub unflushed_txg: Option<u64>,
}
#[derive(Debug, Clone, Copy)]
pub struct MapFigures {
    pub length: u64,
    pub block_size: u64,
    pub has_v2: bool,
    pub must_upgrade: bool,
}
impl SpaceAllocator {
    pub fn new(options: Options) -> Arc<Self> {
        todo!()
    }
    /// At import/create `new_in` None; `zpool add`/expansion in txg t: Some(t) (usable after sync_done(t)).
    pub fn add_vdev(
        &self,
        spec: VdevSpec,
        metaslabs: Vec<MetaslabSpec>,
        new_in: Option<u64>,
    ) -> Result<()> {
        todo!()
    }
    pub fn grow_vdev(&self, vdev: u64, metaslabs: Vec<MetaslabSpec>, new_in: u64) -> Result<()> {
        todo!()
    }
    pub fn remove_vdev(&self, vdev: u64) {
        todo!()
    }
    pub fn set_geometry(&self, geometry: Arc<dyn SpaceGeometry>) {
        todo!()
    }
    pub fn set_has_logs(&self, on: bool) {
        todo!()
    }
    pub fn set_allocating(&self, vdev: u64, on: bool) {
        todo!()
    }
    /// Import: entries of the logs, ascending by txg; entries of txgs before the metaslab's U are skipped.
    pub fn replay(
        &self,
        log_txg: u64,
        vdev: u64,
        action: Action,
        offset: u64,
        size: u64,
    ) -> Result<()> {
        todo!()
    }

    pub fn preferred_class(&self, placement: &Placement) -> Class {
        todo!()
    }
    /// DVAs with asize set, gang false. Kind::NoSpace when nothing fits (gang then).
    pub async fn allocate(&self, request: &Request) -> Result<Vec<Dva>> {
        todo!()
    }
    /// A write of this txg failed: the space was never used.
    pub fn unallocate(&self, dva: &Dva, txg: u64) -> Result<()> {
        todo!()
    }
    /// Gang DVAs are freed with the size of their header.
    pub fn free(&self, dva: &Dva, txg: u64) -> Result<()> {
        todo!()
    }
    /// Birth <= checkpoint txg: space stays allocated, goes to `held`.
    pub fn free_held(&self, dva: &Dva, txg: u64) -> Result<()> {
        todo!()
    }
    pub fn free_range(&self, vdev: u64, offset: u64, asize: u64, txg: u64) -> Result<()> {
        todo!()
    }
    /// Cause is ClaimError. Dry run all first.
    pub async fn claim(&self, dva: &Dva, txg: u64, dry_run: bool) -> Result<()> {
        todo!()
    }

    /// Pass 1, before take_changes: begins flushing for `txg`; `is_export` = no quota.
    pub fn start_flush(&self, txg: u64, is_export: bool) -> Result<()> {
        todo!()
    }
    pub fn next_flush(&self) -> Result<Option<Flush>> {
        todo!()
    }
    /// Logs of txgs before this may be removed now; None = no metaslab is logged.
    pub fn oldest_unflushed(&self) -> Option<u64> {
        todo!()
    }
    /// Blocks of 128K that the log of `txg` has (at import for each, later after each sync).
    pub fn note_log(&self, txg: u64, blocks: u64) {
        todo!()
    }
    pub fn forget_logs_before(&self, txg: u64) {
        todo!()
    }
    /// Pass 1 only.
    pub fn should_condense(&self, vdev: u64, metaslab: u64, map: &MapFigures) -> bool {
        todo!()
    }
    /// Pass 1 only, before take_changes of it.
    pub fn condense(&self, vdev: u64, metaslab: u64, txg: u64) -> Result<Condense> {
        todo!()
    }
    /// Metaslabs that take_changes(txg) will name now: (vdev, metaslab).
    pub fn changed(&self, txg: u64) -> Vec<(u64, u64)> {
        todo!()
    }
    /// Once per sync pass.
    pub fn take_changes(&self, txg: u64) -> Result<Vec<MetaslabChange>> {
        todo!()
    }
    /// After the uberblock is durable. `slop`: spec 05 §6.4.
    pub fn sync_done(&self, txg: u64, slop: u64) -> Result<()> {
        todo!()
    }
    /// After sync_done: loads the best metaslabs ahead of need.
    pub async fn preload(&self) {
        todo!()
    }
}
