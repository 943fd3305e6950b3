//! A frame of `cenote top`: what happened between two samples, sorted.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde::Serialize;

use super::sample::{DatasetSample, LeafSample, PoolSample, Rate, Sample, Space};

/// The column that rows are sorted by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sort {
    Operations,
    Reads,
    Writes,
    BytesRead,
    BytesWritten,
    ReadTime,
    WriteTime,
    Name,
}

impl Sort {
    /// Every column, with its name.
    pub(super) const ALL: [(Self, &'static str); 8] = [
        (Self::Operations, "operations"),
        (Self::Reads, "reads"),
        (Self::Writes, "writes"),
        (Self::BytesRead, "read"),
        (Self::BytesWritten, "written"),
        (Self::ReadTime, "readtime"),
        (Self::WriteTime, "writetime"),
        (Self::Name, "name"),
    ];

    pub(super) fn name(self) -> &'static str {
        Self::ALL.iter().find(|(sort, _)| *sort == self).map_or("", |(_, name)| name)
    }

    pub(super) fn named(wanted: &str) -> Option<Self> {
        Self::ALL.iter().find(|(_, name)| *name == wanted).map(|(sort, _)| *sort)
    }

    /// Returns the column a number of places further on.
    pub(super) fn moved(self, by: isize) -> Self {
        let here = Self::ALL.iter().position(|(sort, _)| *sort == self).unwrap_or(0);
        let next = (here as isize + by).rem_euclid(Self::ALL.len() as isize);
        Self::ALL[next as usize].0
    }
}

/// Which rows of datasets are shown, in which order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Selection {
    pub(super) sort: Sort,
    pub(super) is_reversed: bool,
    /// Most rows of each table.
    pub(super) rows: usize,
}

/// A device or a dataset.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Row {
    pub(super) pool: String,
    pub(super) name: String,
    /// Object number of a dataset.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) object: Option<u64>,
    /// State, active and queued I/Os of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) state: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) queue: Option<Queue>,
    pub(super) read: Rate,
    pub(super) write: Rate,
    /// Commits of the intent log of a dataset per second.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) commits: Option<f64>,
}

/// I/Os of a queue.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct Queue {
    pub(super) active: u64,
    pub(super) pending: u64,
}

/// A pool.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct PoolFrame {
    pub(super) name: String,
    pub(super) state: String,
    #[serde(flatten)]
    pub(super) space: Space,
    pub(super) txg: u64,
    pub(super) dirty: u64,
    pub(super) cache_hit_percent: Option<f64>,
    pub(super) read: Rate,
    pub(super) write: Rate,
    pub(super) queues: BTreeMap<String, Queue>,
    /// The lines of scans, as `zpool status` prints them.
    pub(super) scan: Vec<String>,
}

/// What happened in an interval.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Frame {
    /// Seconds since 1970.
    pub(super) time: f64,
    /// Length of the interval.
    pub(super) seconds: f64,
    /// Whether the interval is that since the pools were opened.
    pub(super) is_since_import: bool,
    pub(super) pools: Vec<PoolFrame>,
    pub(super) device_count: usize,
    pub(super) devices: Vec<Row>,
    pub(super) open_datasets: u64,
    pub(super) active_datasets: usize,
    pub(super) datasets: Vec<Row>,
}

impl Frame {
    /// Returns the difference of two samples; the names of datasets are empty.
    pub(super) fn between(
        before: Option<&Sample>,
        now: &Sample,
        selection: Selection,
        time: f64,
    ) -> Self {
        // Another daemon has counters of its own.
        let before =
            before.filter(|before| before.process == now.process && before.at_ns < now.at_ns);
        let oldest = now.pools.iter().map(|pool| pool.age_ns).max().unwrap_or(0);
        let interval_ns = before.map_or(oldest, |before| now.at_ns - before.at_ns);
        let mut frame = Self {
            time,
            seconds: seconds(interval_ns),
            is_since_import: before.is_none(),
            pools: Vec::new(),
            device_count: 0,
            devices: Vec::new(),
            open_datasets: now.pools.iter().map(|pool| pool.open).sum(),
            active_datasets: 0,
            datasets: Vec::new(),
        };
        for pool in &now.pools {
            let earlier = before.and_then(|before| {
                let mut pools = before.pools.iter();
                pools.find(|there| there.guid == pool.guid && there.age_ns <= pool.age_ns)
            });
            // A pool that was opened in the interval.
            let own_ns = if earlier.is_some() { interval_ns } else { pool.age_ns };
            frame.add(earlier, pool, seconds(own_ns));
        }
        frame.active_datasets = frame.datasets.len();
        frame.device_count = frame.devices.len();
        arrange(&mut frame.devices, selection);
        arrange(&mut frame.datasets, selection);
        frame
    }

    fn add(&mut self, before: Option<&PoolSample>, pool: &PoolSample, seconds: f64) {
        self.pools.push(pool_frame(before, pool, seconds));
        let earlier: BTreeMap<&str, &LeafSample> = before
            .map(|before| before.leaves.iter().map(|leaf| (&*leaf.guid, leaf)).collect())
            .unwrap_or_default();
        for leaf in &pool.leaves {
            let before = earlier.get(&*leaf.guid).map(|leaf| &leaf.io);
            self.devices.push(Row {
                pool: pool.name.clone(),
                name: leaf.name.clone(),
                object: None,
                state: Some(leaf.state.clone()),
                queue: Some(Queue { active: leaf.active, pending: leaf.queued }),
                read: Rate::between(before.map(|io| &io.read), &leaf.io.read, seconds),
                write: Rate::between(before.map(|io| &io.write), &leaf.io.write, seconds),
                commits: None,
            });
        }
        let earlier: BTreeMap<u64, &DatasetSample> = before
            .map(|before| before.datasets.iter().map(|dataset| (dataset.0, dataset)).collect())
            .unwrap_or_default();
        for dataset in &pool.datasets {
            let before = earlier.get(&dataset.0);
            let (io, io_before) = (dataset.io(), before.map(|before| before.io()));
            let commits = before.map(|before| before.3).filter(|before| *before <= dataset.3);
            let row = Row {
                pool: pool.name.clone(),
                name: String::new(),
                object: Some(dataset.0),
                state: None,
                queue: None,
                read: Rate::between(io_before.as_ref().map(|io| &io.read), &io.read, seconds),
                write: Rate::between(io_before.as_ref().map(|io| &io.write), &io.write, seconds),
                commits: Some((dataset.3 - commits.unwrap_or(0)) as f64 / seconds),
            };
            if row.work() > 0.0 || row.commits.is_some_and(|commits| commits > 0.0) {
                self.datasets.push(row);
            }
        }
    }
}

impl Row {
    fn work(&self) -> f64 {
        self.read.operations + self.write.operations
    }
}

fn seconds(ns: u64) -> f64 {
    (ns as f64 / 1e9).max(1e-3)
}

fn pool_frame(before: Option<&PoolSample>, pool: &PoolSample, seconds: f64) -> PoolFrame {
    let since = |now: u64, before: Option<u64>| now.saturating_sub(before.unwrap_or(0)) as f64;
    let hits = since(pool.cache.hits, before.map(|before| before.cache.hits));
    let misses = since(pool.cache.misses, before.map(|before| before.cache.misses));
    let queues = pool.queues.iter().map(|(name, active, pending)| {
        (name.clone(), Queue { active: *active, pending: *pending })
    });
    let scan = pool.scan.lines().map(|line| line.trim().to_owned());
    PoolFrame {
        name: pool.name.clone(),
        state: pool.state.clone(),
        space: pool.space,
        txg: pool.txg,
        dirty: pool.dirty,
        cache_hit_percent: (hits + misses > 0.0).then(|| hits * 100.0 / (hits + misses)),
        read: Rate::between(before.map(|pool| &pool.io.read), &pool.io.read, seconds),
        write: Rate::between(before.map(|pool| &pool.io.write), &pool.io.write, seconds),
        queues: queues.collect(),
        scan: scan.filter(|line| !line.is_empty()).collect(),
    }
}

/// Sorts rows and keeps the first ones. Figures fall, names rise.
fn arrange(rows: &mut Vec<Row>, selection: Selection) {
    let figure = |row: &Row| match selection.sort {
        Sort::Operations => row.work(),
        Sort::Reads => row.read.operations,
        Sort::Writes => row.write.operations,
        Sort::BytesRead => row.read.bytes,
        Sort::BytesWritten => row.write.bytes,
        Sort::ReadTime => row.read.p99_ns.unwrap_or(0) as f64,
        Sort::WriteTime => row.write.p99_ns.unwrap_or(0) as f64,
        Sort::Name => 0.0,
    };
    // Datasets have their names only once they are shown: their order is that of their objects.
    let identity = |row: &Row| (row.pool.clone(), row.name.clone(), row.object);
    let compare = |one: &Row, other: &Row| -> Ordering {
        let by_figure = figure(other).total_cmp(&figure(one));
        let order = match selection.sort {
            Sort::Name => identity(one).cmp(&identity(other)),
            _ => by_figure,
        };
        if selection.is_reversed { order.reverse() } else { order }
    };
    rows.sort_by(compare);
    rows.truncate(selection.rows);
}
