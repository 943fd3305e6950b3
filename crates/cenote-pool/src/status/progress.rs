//! Progress of scrub, removal, expansion and checkpoint.

use cenote_ondisk::checkpoint::POOL_CHECKPOINT;
use cenote_ondisk::indirect::{MAPPING_ENTRY_LEN, REMOVING, RemovingPhys};
use cenote_ondisk::rebuild::{RebuildPhys, RebuildState};
use cenote_ondisk::scan::{ERROR_SCRUB, ErrorScrubPhys, SCAN, ScanFunc, ScanPhys, ScanState};
use cenote_ondisk::vdev_zap::{
    RAIDZ_EXPAND_COPIED, RAIDZ_EXPAND_END, RAIDZ_EXPAND_START, RAIDZ_EXPAND_STATE, VDEV_REBUILD,
};
use cenote_ondisk::zap::Value;

use crate::accounting::{Space, top_zap};
use crate::{Pool, mos};

/// Index of the timestamp in an uberblock's words.
const UBERBLOCK_TIME: usize = 4;

/// The last or running device removal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// The stored state.
    pub phys: RemovingPhys,
    /// Memory that the mappings of removed vdevs need in OpenZFS, bytes.
    pub mapping_bytes: u64,
}

/// The pool's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// Creation time, seconds since 1970.
    pub time: u64,
    /// Bytes that it holds.
    pub bytes: u64,
    /// Whether it is being discarded.
    pub is_discarding: bool,
}

/// State of an expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpansionState {
    /// Running.
    Running,
    /// Finished.
    Finished,
}

/// The last or running expansion of a RAID-Z vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expansion {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// Its state.
    pub state: ExpansionState,
    /// Start time, seconds since 1970.
    pub start_time: u64,
    /// End time, seconds since 1970.
    pub end_time: u64,
    /// Copied bytes.
    pub copied: u64,
    /// Bytes to copy in total.
    pub to_copy: u64,
}

/// The last or running sequential rebuild of a top-level vdev.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rebuild {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// The stored state.
    pub phys: RebuildPhys,
}

/// Scans beside scrub and resilver.
#[derive(Debug, Clone, Default)]
pub struct OtherScans {
    /// The last error scrub.
    pub error_scrub: Option<ErrorScrubPhys>,
    /// The last or running sequential rebuilds, by vdev.
    pub rebuilds: Vec<Rebuild>,
}

/// Returns the last scan and error scrub; damaged ones are shown as never started.
pub(super) fn scans(pool: &Pool) -> (Option<ScanPhys>, Option<ErrorScrubPhys>) {
    let words = |name| pool.directory_value(name).map(Value::words);
    let scan = words(SCAN).and_then(|words| ScanPhys::decode(&words).ok());
    let error_scrub = words(ERROR_SCRUB).and_then(|words| ErrorScrubPhys::decode(&words).ok());
    (scan, error_scrub)
}

/// Whether the pool has a recorded resilver that is not finished.
pub(super) fn is_resilvering(pool: &Pool) -> bool {
    let is_active =
        |scan: ScanPhys| (scan.func, scan.state) == (ScanFunc::Resilver, ScanState::Scanning);
    scans(pool).0.is_some_and(is_active)
}

pub(super) fn removal(pool: &Pool) -> Option<Removal> {
    let phys = RemovingPhys::decode(&pool.directory_value(REMOVING)?.words()).ok()?;
    if phys.state == 0 {
        return None;
    }
    let tops = &pool.config().vdev_tree.children;
    let maps = tops.iter().filter_map(|top| pool.tree().indirect(top.id));
    let mapping_bytes = maps.map(|map| (map.entries().len() * MAPPING_ENTRY_LEN) as u64).sum();
    Some(Removal { phys, mapping_bytes })
}

pub(super) fn checkpoint(pool: &Pool, space: &Space) -> Option<Checkpoint> {
    let bytes = space.checkpoint?;
    let time = match pool.directory_value(POOL_CHECKPOINT) {
        Some(value) => Some(*value.words().get(UBERBLOCK_TIME)?),
        None => None,
    };
    Some(Checkpoint { time: time.unwrap_or(0), bytes, is_discarding: time.is_none() })
}

/// Returns the sequential rebuilds; one that cannot be read is left out.
pub(super) async fn rebuilds(pool: &Pool) -> Vec<Rebuild> {
    let mut rebuilds = Vec::new();
    for top in &pool.config().vdev_tree.children {
        let Some(object) = top.top.zap_top else { continue };
        let Ok(Some(value)) = mos::value(pool.mos(), object, VDEV_REBUILD).await else { continue };
        let phys = RebuildPhys::decode(&value.words());
        if phys.state != RebuildState::None {
            rebuilds.push(Rebuild { vdev: top.id, phys });
        }
    }
    rebuilds
}

/// Returns the running expansion, or the last one that has ended.
pub(super) async fn expansions(pool: &Pool, space: &Space) -> Vec<Expansion> {
    let mut expansions = Vec::new();
    for top in &pool.config().vdev_tree.children {
        let number = async |key| top_zap(pool.mos(), top, key).await.ok().flatten();
        let state = match number(RAIDZ_EXPAND_STATE).await {
            Some(1) => ExpansionState::Running,
            Some(2) => ExpansionState::Finished,
            _ => continue,
        };
        expansions.push(Expansion {
            vdev: top.id,
            state,
            start_time: number(RAIDZ_EXPAND_START).await.unwrap_or(0),
            end_time: number(RAIDZ_EXPAND_END).await.unwrap_or(0),
            copied: number(RAIDZ_EXPAND_COPIED).await.unwrap_or(0),
            to_copy: space
                .vdevs
                .iter()
                .find(|vdev| vdev.id == top.id)
                .map_or(0, |vdev| vdev.allocated),
        });
    }
    // One runs at a time; of the others OpenZFS tells of the last one.
    let key = |of: &Expansion| (of.state == ExpansionState::Running, of.end_time);
    expansions.into_iter().max_by_key(key).into_iter().collect()
}
