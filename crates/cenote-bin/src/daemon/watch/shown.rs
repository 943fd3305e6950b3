//! Figures for the page: counters of pools, devices and datasets, with histograms of times.

use std::cmp::Reverse;

use cenote_pool::figures::{Direction, Histogram, QueueStats};
use serde_json::{Value, json};

use super::figures::{DatasetFigures, PoolFigures};

/// Most datasets and devices of a pool: those that did most.
const DATASETS_MAX: usize = 200;
const LEAVES_MAX: usize = 1000;

/// Returns the figures as JSON.
pub(super) fn json(pools: &[PoolFigures]) -> String {
    let pools: Vec<_> = pools.iter().map(pool).collect();
    json!({ "version": env!("CARGO_PKG_VERSION"), "pools": pools }).to_string()
}

fn pool(pool: &PoolFigures) -> Value {
    let leaves: Vec<_> = pool
        .leaves
        .iter()
        .take(LEAVES_MAX)
        .map(|leaf| {
            let mut shown = directions(&leaf.io);
            shown["name"] = leaf.name.clone().into();
            shown["state"] = leaf.state.into();
            shown
        })
        .collect();
    let mut datasets: Vec<_> = pool.datasets.iter().collect();
    let work = |dataset: &&DatasetFigures| {
        let counts = &dataset.counts;
        Reverse(counts.read_times.count() + counts.write_times.count())
    };
    datasets.sort_by_key(work);
    let datasets: Vec<_> = datasets.into_iter().take(DATASETS_MAX).map(dataset).collect();
    json!({
        "name": pool.name,
        "guid": pool.guid.to_string(),
        "state": pool.state,
        "suspended": pool.is_suspended,
        "size": pool.size,
        "allocated": pool.allocated,
        "fragmentation": pool.fragmentation,
        "txg": pool.synced_txg,
        "dirty": pool.dirty_bytes,
        "cache": { "hits": pool.cache.hits, "misses": pool.cache.misses },
        "io": directions(&pool.io),
        "leaves": leaves,
        "datasets": datasets,
    })
}

pub(super) fn directions(io: &QueueStats) -> Value {
    let of = |direction| {
        let stats = io.direction(direction);
        let operations = stats.operations;
        json!({ "operations": operations, "bytes": stats.bytes, "times": times(&stats.total) })
    };
    json!({ "read": of(Direction::Read), "write": of(Direction::Write) })
}

fn dataset(dataset: &DatasetFigures) -> Value {
    let counts = &dataset.counts;
    let of = |histogram: &Histogram, bytes: Option<u64>| json!({ "operations": histogram.count(), "bytes": bytes, "times": times(histogram) });
    json!({
        "name": dataset.name,
        "read": of(&counts.read_times, Some(counts.read_bytes)),
        "write": of(&counts.write_times, Some(counts.written_bytes)),
        "commit": of(&counts.commit_times, None),
    })
}

/// Returns the counts from the first to the last bucket that has one; bucket n begins at 2^n ns.
pub(super) fn times(histogram: &Histogram) -> Value {
    let counts = histogram.counts();
    let first = counts.iter().position(|count| *count > 0).unwrap_or(0);
    let end = counts.iter().rposition(|count| *count > 0).map_or(first, |last| last + 1);
    json!({ "first": first, "counts": counts.get(first..end).unwrap_or_default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn empty_buckets_at_both_ends_are_left_out() {
        let mut histogram = Histogram::default();
        assert_eq!(times(&histogram), json!({ "first": 0, "counts": [] }));
        for ns in [1 << 14, 1 << 14, 1 << 16] {
            histogram.add(ns);
        }
        assert_eq!(times(&histogram), json!({ "first": 14, "counts": [2, 0, 1] }));
    }
}
