//! What goes on, or went on last, in the pool: scrub, removal, expansion, checkpoint.

use cenote_ondisk::checkpoint::POOL_CHECKPOINT;
use cenote_ondisk::indirect::{MAPPING_ENTRY_LEN, REMOVING, RemovingPhys};
use cenote_ondisk::scan::{ERROR_SCRUB, ErrorScrubPhys, SCAN, ScanFunc, ScanPhys, ScanState};
use cenote_ondisk::vdev_zap::{
    RAIDZ_EXPAND_COPIED, RAIDZ_EXPAND_END, RAIDZ_EXPAND_START, RAIDZ_EXPAND_STATE,
};
use cenote_ondisk::zap::Value;

use crate::Pool;
use crate::accounting::{Space, top_zap};

/// Word of an uberblock: when it was written.
const UBERBLOCK_TIME: usize = 4;

/// The last removal of a device, or the one that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Removal {
    /// What is stored.
    pub phys: RemovingPhys,
    /// Bytes of memory that mappings of removed vdevs take in OpenZFS.
    pub mapping_bytes: u64,
}

/// The pool's checkpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Checkpoint {
    /// When it was taken, seconds since 1970.
    pub time: u64,
    /// Bytes that it holds.
    pub bytes: u64,
    /// It is given up, and what it holds is being freed.
    pub is_discarding: bool,
}

/// How far an expansion is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpansionState {
    /// Under way.
    Running,
    /// Done.
    Finished,
}

/// The last expansion of a RAID-Z vdev, or the one that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Expansion {
    /// Id of the top-level vdev.
    pub vdev: u64,
    /// How far it is.
    pub state: ExpansionState,
    /// When it began, seconds since 1970.
    pub start_time: u64,
    /// When it ended.
    pub end_time: u64,
    /// Bytes that it copied.
    pub copied: u64,
    /// Bytes there are to copy.
    pub to_copy: u64,
}

/// Scan and error scrub; what is damaged counts as never done.
pub(super) fn scans(pool: &Pool) -> (Option<ScanPhys>, Option<ErrorScrubPhys>) {
    let words = |name| pool.directory_value(name).map(Value::words);
    let scan = words(SCAN).and_then(|words| ScanPhys::decode(&words).ok());
    let error_scrub = words(ERROR_SCRUB).and_then(|words| ErrorScrubPhys::decode(&words).ok());
    (scan, error_scrub)
}

/// Whether the pool has a resilver on record that is not finished.
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

pub(super) async fn expansions(pool: &Pool) -> Vec<Expansion> {
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
            to_copy: match pool.uberblock().raidz_reflow().offset {
                0 => 0,
                _ => top.top.asize,
            },
        });
    }
    expansions
}
