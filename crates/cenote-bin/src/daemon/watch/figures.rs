//! The figures of all pools at one time, for metrics and kstats.
//!
//! The space of a pool is that of its last committed txg; counters are current and start at the
//! import.

use std::sync::Arc;
use std::time::Duration;

use super::super::log;
use cenote_engine::{ActivityCounts, Engine};
use cenote_pool::figures::{CacheStats, LeafStats, QueueStats, StoreStats};
use cenote_pool::status::{VdevReport, state_name};
use cenote_rt::Result;

/// Longest time in which a pool is read: its devices may hang.
const POOL_TIME: Duration = Duration::from_secs(2);

/// Figures of one pool.
#[derive(Debug)]
pub(super) struct PoolFigures {
    pub(super) name: String,
    pub(super) guid: u64,
    /// Its health.
    pub(super) state: &'static str,
    pub(super) is_suspended: bool,
    pub(super) size: u64,
    pub(super) allocated: u64,
    /// In percent.
    pub(super) fragmentation: Option<u64>,
    pub(super) damaged: u64,
    pub(super) open_txg: u64,
    pub(super) synced_txg: u64,
    pub(super) dirty_bytes: u64,
    pub(super) cache: CacheStats,
    pub(super) store: StoreStats,
    /// I/O of all devices.
    pub(super) io: QueueStats,
    pub(super) leaves: Vec<LeafFigures>,
    pub(super) datasets: Vec<DatasetFigures>,
}

/// Figures of one device.
#[derive(Debug)]
pub(super) struct LeafFigures {
    pub(super) name: String,
    pub(super) guid: u64,
    pub(super) state: &'static str,
    pub(super) stats: LeafStats,
    pub(super) io: QueueStats,
}

/// Figures of one open dataset.
#[derive(Debug)]
pub(super) struct DatasetFigures {
    pub(super) name: String,
    pub(super) object: u64,
    pub(super) counts: ActivityCounts,
}

/// Returns the figures of these pools, without those that cannot be read.
pub(super) async fn collect(engines: &[Arc<Engine>]) -> Vec<PoolFigures> {
    let mut all = Vec::with_capacity(engines.len());
    for engine in engines {
        match cenote_rt::until(POOL_TIME, of_pool(engine)).await {
            Some(Ok(figures)) => all.push(figures),
            Some(Err(error)) => {
                log::warn!(pool = %engine.name(), cause = %error, "no figures");
            }
            None => log::warn!(pool = %engine.name(), "no figures: the pool does not answer"),
        }
    }
    all
}

async fn of_pool(engine: &Arc<Engine>) -> Result<PoolFigures> {
    let (status, datasets) = {
        let view = engine.view().await?;
        let status = view.status().await?;
        let mut datasets = Vec::new();
        for head in engine.open_heads() {
            // A destroyed dataset has no name.
            let Ok(dataset) = view.dataset_by_object(head.object()).await else { continue };
            let (object, counts) = (head.object(), head.activity().counts());
            datasets.push(DatasetFigures { name: dataset.name().to_owned(), object, counts });
        }
        (status, datasets)
    };
    let space = status.space.as_ref();
    Ok(PoolFigures {
        name: engine.name(),
        guid: engine.guid(),
        state: status.health_name(),
        is_suspended: engine.health().suspended().is_some(),
        size: space.map_or(0, |space| space.size),
        allocated: space.map_or(0, |space| space.allocated),
        fragmentation: space.and_then(|space| space.fragmentation),
        damaged: status.error_count,
        open_txg: engine.open_txg(),
        synced_txg: engine.uberblock().txg,
        dirty_bytes: engine.dirty_bytes(),
        cache: engine.health().cache_stats(),
        store: engine.health().store_stats(),
        io: status.root.io(),
        leaves: status.root.walk().filter_map(leaf).collect(),
        datasets,
    })
}

fn leaf(vdev: &VdevReport) -> Option<LeafFigures> {
    if !vdev.kind.is_leaf() {
        return None;
    }
    Some(LeafFigures {
        name: vdev.name.clone(),
        guid: vdev.guid,
        state: state_name(vdev.state, vdev.aux),
        stats: vdev.stats,
        io: vdev.io(),
    })
}
