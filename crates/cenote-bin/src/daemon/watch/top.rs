//! Figures for `cenote top`: counters of pools, devices and open datasets, and running scans.
//!
//! A client subtracts the counters of two answers, and sorts. Counters of datasets have no names
//! (looking up ten thousand names would read as many objects of the pool): the client asks for the
//! names of the datasets that it shows. Everything is read from memory or from a view of the last
//! committed txg; no lock is held while a pool is read. A pool that does not answer in time is
//! described from memory.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use cenote_engine::{ActivityCounts, Engine};
use cenote_pool::figures::{Histogram, IoClass, QueueStats};
use cenote_pool::status::{PoolStatus, VdevReport, state_name};
use cenote_rt::monotonic;
use serde_json::{Value, json};

use super::shown::{directions, times};

/// Longest time in which a pool is read, and in which all pools are: a client waits for it.
const POOL_TIME: Duration = Duration::from_secs(1);
const ALL_TIME: Duration = Duration::from_secs(3);
/// Most devices and datasets of a pool; datasets that did most come first.
const LEAVES_MAX: usize = 10_000;
const DATASETS_MAX: usize = 20_000;
/// Most names in an answer.
const NAMES_MAX: usize = 500;

/// Names of the classes in an answer.
const CLASSES: [(IoClass, &str); 9] = [
    (IoClass::SyncRead, "sync_read"),
    (IoClass::SyncWrite, "sync_write"),
    (IoClass::AsyncRead, "async_read"),
    (IoClass::AsyncWrite, "async_write"),
    (IoClass::Scrub, "scrub"),
    (IoClass::Removal, "removal"),
    (IoClass::Initializing, "initialize"),
    (IoClass::Trim, "trim"),
    (IoClass::Rebuild, "rebuild"),
];

/// Returns the figures of these pools.
pub(super) async fn json(engines: &[Arc<Engine>]) -> String {
    let end = monotonic() + ALL_TIME;
    let mut pools = Vec::with_capacity(engines.len());
    for engine in engines {
        pools.push(pool(engine, POOL_TIME.min(end.saturating_sub(monotonic()))).await);
    }
    json!({
        "process": std::process::id(),
        "at_ns": u64::try_from(monotonic().as_nanos()).unwrap_or(u64::MAX),
        "pools": pools,
    })
    .to_string()
}

/// Returns the names of datasets by their object numbers, which are separated by commas. Datasets
/// that do not exist have none.
pub(super) async fn names(engine: &Arc<Engine>, objects: &str) -> Option<String> {
    let objects: Vec<u64> = objects.split(',').filter_map(|text| text.parse().ok()).collect();
    let read = async {
        let view = engine.view().await.ok()?;
        let mut names = serde_json::Map::new();
        for object in objects.into_iter().take(NAMES_MAX) {
            if let Ok(dataset) = view.dataset_by_object(object).await {
                names.insert(object.to_string(), dataset.name().into());
            }
        }
        Some(Value::Object(names).to_string())
    };
    cenote_rt::until(POOL_TIME, read).await?
}

async fn status(engine: &Arc<Engine>, time: Duration) -> PoolStatus {
    let health = engine.health();
    if health.suspended().is_some() || time.is_zero() {
        return health.status_from_memory();
    }
    let read = async { engine.view().await?.status().await };
    let read = cenote_rt::until(time, Box::pin(read)).await;
    read.and_then(Result::ok).unwrap_or_else(|| engine.health().status_from_memory())
}

async fn pool(engine: &Arc<Engine>, time: Duration) -> Value {
    let status = status(engine, time).await;
    let (space, cache) = (status.space.as_ref(), engine.health().cache_stats());
    let io = status.root.io();
    let leaves = status.root.walk().filter(|vdev| vdev.kind.is_leaf());
    let heads = engine.open_heads();
    let counts = heads.iter().map(|head| (head.object(), head.activity().counts()));
    json!({
        "name": engine.name(),
        "guid": engine.guid().to_string(),
        "state": status.health_name(),
        "space": {
            "size": space.map_or(0, |space| space.size),
            "allocated": space.map_or(0, |space| space.allocated),
            "fragmentation": space.and_then(|space| space.fragmentation),
        },
        "txg": engine.uberblock().txg,
        "dirty": engine.dirty_bytes(),
        "cache": { "hits": cache.hits, "misses": cache.misses },
        "age_ns": io.age_ns,
        "io": directions(&io),
        "queues": queues(&io),
        "scan": cenote_cli::scan_lines(&status, Some(engine.scans().pass())),
        "leaves": leaves.take(LEAVES_MAX).map(leaf).collect::<Vec<_>>(),
        "datasets": datasets(counts.collect()),
        "open": heads.len(),
    })
}

/// Returns the classes with the numbers of their active and of their queued I/Os.
fn queues(io: &QueueStats) -> Value {
    let of = |(class, name): &(IoClass, &str)| {
        let stats = io.class(*class);
        json!([name, stats.active, stats.queued])
    };
    CLASSES.iter().map(of).collect()
}

fn leaf(vdev: &VdevReport) -> Value {
    let io = vdev.io();
    let sum =
        |of: fn(&cenote_pool::figures::ClassStats) -> u64| io.classes.iter().map(of).sum::<u64>();
    json!({
        "name": vdev.name,
        "guid": vdev.guid.to_string(),
        "state": state_name(vdev.state, vdev.aux),
        "io": directions(&io),
        "active": sum(|class| class.active),
        "queued": sum(|class| class.queued),
    })
}

/// Returns the counters of datasets that did anything: object, bytes read, bytes written, commits
/// of its intent log, times of reads, times of writes. Times are the first bucket and the counts.
fn datasets(mut counts: Vec<(u64, ActivityCounts)>) -> Vec<Value> {
    let work = |counts: &ActivityCounts| {
        counts.read_times.count() + counts.write_times.count() + counts.commit_times.count()
    };
    counts.retain(|(_, counts)| work(counts) > 0);
    counts.sort_by_key(|(object, counts)| (Reverse(work(counts)), *object));
    let shown = |(object, counts): &(u64, ActivityCounts)| {
        let (read, written) = (counts.read_bytes, counts.written_bytes);
        let commits = counts.commit_times.count();
        let of = |histogram: &Histogram| {
            let times = times(histogram);
            json!([times["first"], times["counts"]])
        };
        json!([object, read, written, commits, of(&counts.read_times), of(&counts.write_times)])
    };
    counts.iter().take(DATASETS_MAX).map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_without_work_are_left_out_and_the_busiest_come_first() {
        let with = |reads: u64, writes: u64| {
            let mut counts = ActivityCounts::default();
            (0..reads).for_each(|_| counts.read_times.add(1 << 14));
            (0..writes).for_each(|_| counts.write_times.add(1 << 20));
            counts.read_bytes = reads * 10;
            counts
        };
        let shown = datasets(vec![(5, with(0, 0)), (6, with(1, 0)), (7, with(2, 1))]);
        let wanted =
            [json!([7, 20, 0, 0, [14, [2]], [20, [1]]]), json!([6, 10, 0, 0, [14, [1]], [0, []]])];
        assert_eq!(shown, wanted);
        let many: Vec<_> =
            (0..DATASETS_MAX as u64 + 5).map(|object| (object, with(1, 0))).collect();
        assert_eq!(datasets(many).len(), DATASETS_MAX);
    }

    #[test]
    fn queues_name_every_class() {
        let shown = queues(&QueueStats::default());
        let names = shown.as_array().unwrap();
        assert_eq!((names.len(), CLASSES.len()), (IoClass::ALL.len(), IoClass::ALL.len()));
        assert_eq!(CLASSES.map(|(class, _)| class), IoClass::ALL);
        assert_eq!(names[4], json!(["scrub", 0, 0]));
    }
}
