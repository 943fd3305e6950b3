//! Figures as metrics: families of samples with labels, as text for Prometheus and as JSON.
//!
//! ```text
//!   # HELP cenote_pool_size_bytes Space of a pool.
//!   # TYPE cenote_pool_size_bytes gauge
//!   cenote_pool_size_bytes{pool="tank"} 1073741824
//! ```
//!
//! In JSON a family is an array of samples under its name, each with its labels and value; a
//! histogram is its sum, its count, and the cumulative counts by upper bound.

use std::fmt::Write as _;

use cenote_pool::figures::{Direction, DirectionStats, Histogram};
use cenote_rt::tunables;
use serde_json::{Map, Value};

use super::figures::{DatasetFigures, PoolFigures};

/// Bounds of histograms of time: powers of two of nanoseconds, 16 us to 34 s.
const BOUNDS: std::ops::RangeInclusive<usize> = 14..=35;
const SECOND_NS: f64 = 1e9;

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Gauge => "gauge",
            Self::Counter => "counter",
            Self::Histogram => "histogram",
        }
    }
}

type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
enum Number {
    Count(u64),
    Times(Box<Histogram>),
}

/// One metric.
#[derive(Debug)]
pub(super) struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    samples: Vec<(Labels, Number)>,
}

/// Returns the metrics of these figures.
pub(super) fn families(pools: &[PoolFigures]) -> Vec<Family> {
    let mut all = Families(Vec::new());
    all.one(
        "cenote_info",
        "The version of cenote.",
        Kind::Gauge,
        [(vec![("version", env!("CARGO_PKG_VERSION").to_owned())], Number::Count(1))],
    );
    of_pools(pools, &mut all);
    of_leaves(pools, &mut all);
    of_datasets(pools, &mut all);
    let tunables = tunables::ALL
        .iter()
        .map(|tunable| (vec![("name", tunable.name.to_owned())], Number::Count(tunable.get())));
    all.one("cenote_tunable", "The value of a tunable.", Kind::Gauge, tunables);
    all.0
}

struct Families(Vec<Family>);

impl Families {
    fn one(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        samples: impl IntoIterator<Item = (Labels, Number)>,
    ) {
        self.0.push(Family { name, help, kind, samples: samples.into_iter().collect() });
    }
}

/// A metric with one sample for each pool: name, help, type, and its value.
type PoolMetric = (&'static str, &'static str, Kind, fn(&PoolFigures) -> u64);
/// Times with one sample for each dataset.
type DatasetTimes = (&'static str, &'static str, fn(&DatasetFigures) -> Histogram);
/// A counter with one sample for each dataset.
type DatasetMetric = (&'static str, &'static str, fn(&DatasetFigures) -> u64);

fn of_pools(pools: &[PoolFigures], all: &mut Families) {
    let labels = |pool: &PoolFigures| vec![("pool", pool.name.clone())];
    all.one(
        "cenote_pool_state",
        "1 for the state that a pool is in.",
        Kind::Gauge,
        pools.iter().map(|pool| {
            let mut labels = labels(pool);
            labels.extend([("guid", pool.guid.to_string()), ("state", pool.state.to_owned())]);
            (labels, Number::Count(1))
        }),
    );
    let figures: [PoolMetric; 21] = [
        ("cenote_pool_suspended", "Whether a pool is suspended.", Kind::Gauge, |p| {
            p.is_suspended.into()
        }),
        ("cenote_pool_size_bytes", "Space of a pool.", Kind::Gauge, |p| p.size),
        ("cenote_pool_allocated_bytes", "Allocated space.", Kind::Gauge, |p| p.allocated),
        ("cenote_pool_free_bytes", "Free space.", Kind::Gauge, |p| {
            p.size.saturating_sub(p.allocated)
        }),
        ("cenote_pool_damaged_objects", "Objects in the error log.", Kind::Gauge, |p| p.damaged),
        ("cenote_pool_open_txg", "The txg that takes changes.", Kind::Gauge, |p| p.open_txg),
        ("cenote_pool_synced_txg", "The txg on disk.", Kind::Gauge, |p| p.synced_txg),
        ("cenote_pool_dirty_bytes", "Changes in memory.", Kind::Gauge, |p| p.dirty_bytes),
        ("cenote_cache_hits_total", "Reads of blocks from memory.", Kind::Counter, |p| {
            p.cache.hits
        }),
        (
            "cenote_cache_misses_total",
            "Reads of blocks that went to devices.",
            Kind::Counter,
            |p| p.cache.misses,
        ),
        ("cenote_cache_blocks", "Blocks in memory.", Kind::Gauge, |p| p.cache.blocks),
        ("cenote_cache_bytes", "Bytes of them.", Kind::Gauge, |p| p.cache.bytes),
        ("cenote_cache_peak_bytes", "The most that they took.", Kind::Gauge, |p| {
            p.cache.peak_bytes
        }),
        ("cenote_cache_capacity_bytes", "What they may take.", Kind::Gauge, |p| {
            p.cache.capacity_bytes
        }),
        ("cenote_blocks_read_total", "Blocks read from devices.", Kind::Counter, |p| {
            p.store.blocks_read
        }),
        ("cenote_blocks_read_bytes_total", "Their stored bytes.", Kind::Counter, |p| {
            p.store.bytes_read
        }),
        ("cenote_blocks_recovered_total", "Blocks read past damage.", Kind::Counter, |p| {
            p.store.blocks_recovered
        }),
        ("cenote_parts_repaired_total", "Bad parts written anew.", Kind::Counter, |p| {
            p.store.parts_repaired
        }),
        ("cenote_blocks_written_total", "Blocks written.", Kind::Counter, |p| {
            p.store.blocks_written
        }),
        ("cenote_blocks_written_bytes_total", "Bytes of all their copies.", Kind::Counter, |p| {
            p.store.bytes_written
        }),
        ("cenote_datasets_open", "Datasets that somebody has open.", Kind::Gauge, |p| {
            p.datasets.len() as u64
        }),
    ];
    for (name, help, kind, figure) in figures {
        let samples = pools.iter().map(|pool| (labels(pool), Number::Count(figure(pool))));
        all.one(name, help, kind, samples);
    }
    let fragmentation =
        pools.iter().filter_map(|pool| Some((labels(pool), Number::Count(pool.fragmentation?))));
    let help = "Fragmentation of free space in percent.";
    all.one("cenote_pool_fragmentation_percent", help, Kind::Gauge, fragmentation);
}

const DIRECTIONS: [(&str, Direction); 3] =
    [("read", Direction::Read), ("write", Direction::Write), ("discard", Direction::Discard)];

fn of_leaves(pools: &[PoolFigures], all: &mut Families) {
    let leaves = || pools.iter().flat_map(|pool| pool.leaves.iter().map(move |leaf| (pool, leaf)));
    let labels = |pool: &PoolFigures, name: &str| {
        vec![("pool", pool.name.clone()), ("vdev", name.to_owned())]
    };
    let states = leaves().map(|(pool, leaf)| {
        let mut labels = labels(pool, &leaf.name);
        labels.extend([("guid", leaf.guid.to_string()), ("state", leaf.state.to_owned())]);
        (labels, Number::Count(1))
    });
    all.one("cenote_vdev_state", "1 for the state that a device is in.", Kind::Gauge, states);
    let errors = leaves().flat_map(|(pool, leaf)| {
        let stats = &leaf.stats;
        [
            ("read", stats.read_errors),
            ("write", stats.write_errors),
            ("checksum", stats.checksum_errors),
        ]
        .map(|(kind, count)| {
            let mut labels = labels(pool, &leaf.name);
            labels.push(("kind", kind.to_owned()));
            (labels, Number::Count(count))
        })
    });
    let help = "Errors since the pool was opened or cleared.";
    all.one("cenote_vdev_errors_total", help, Kind::Counter, errors);
    let by_direction = |number: fn(&DirectionStats) -> Number| {
        let samples = leaves().flat_map(|(pool, leaf)| {
            DIRECTIONS.map(|(name, direction)| {
                let mut labels = labels(pool, &leaf.name);
                labels.push(("direction", name.to_owned()));
                (labels, number(leaf.io.direction(direction)))
            })
        });
        samples.collect::<Vec<_>>()
    };
    let operations = by_direction(|stats| Number::Count(stats.operations));
    all.one("cenote_vdev_operations_total", "I/Os of a device.", Kind::Counter, operations);
    let bytes = by_direction(|stats| Number::Count(stats.bytes));
    all.one("cenote_vdev_bytes_total", "Bytes of them.", Kind::Counter, bytes);
    let times = by_direction(|stats| Number::Times(Box::new(stats.service)));
    all.one("cenote_vdev_service_seconds", "What a device took for each.", Kind::Histogram, times);
    let times = by_direction(|stats| Number::Times(Box::new(stats.total)));
    let help = "From a request until its end.";
    all.one("cenote_vdev_total_seconds", help, Kind::Histogram, times);
}

fn of_datasets(pools: &[PoolFigures], all: &mut Families) {
    let datasets = || pools.iter().flat_map(|pool| &pool.datasets);
    let figures: [DatasetMetric; 6] = [
        ("cenote_dataset_reads_total", "Requests to read.", |d| d.counts.read_times.count()),
        ("cenote_dataset_read_bytes_total", "Bytes that they got.", |d| d.counts.read_bytes),
        ("cenote_dataset_writes_total", "Requests to write.", |d| d.counts.write_times.count()),
        ("cenote_dataset_written_bytes_total", "Bytes they wrote.", |d| d.counts.written_bytes),
        ("cenote_dataset_log_commits_total", "Commits of the intent log.", |d| {
            d.counts.commit_times.count()
        }),
        ("cenote_dataset_log_records_total", "Records of them.", |d| d.counts.records),
    ];
    for (name, help, figure) in figures {
        let samples = datasets().map(|dataset| {
            (vec![("dataset", dataset.name.clone())], Number::Count(figure(dataset)))
        });
        all.one(name, help, Kind::Counter, samples);
    }
    let times: [DatasetTimes; 3] = [
        ("cenote_dataset_read_seconds", "What requests to read took.", |d| d.counts.read_times),
        ("cenote_dataset_write_seconds", "What requests to write took.", |d| d.counts.write_times),
        ("cenote_dataset_log_commit_seconds", "What commits of the intent log took.", |d| {
            d.counts.commit_times
        }),
    ];
    for (name, help, figure) in times {
        let samples = datasets().map(|dataset| {
            let times = Number::Times(Box::new(figure(dataset)));
            (vec![("dataset", dataset.name.clone())], times)
        });
        all.one(name, help, Kind::Histogram, samples);
    }
}

/// The text format of Prometheus, version 0.0.4.
pub(super) fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for family in families.iter().filter(|family| !family.samples.is_empty()) {
        let Family { name, help, kind, samples } = family;
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {}", kind.name());
        for (labels, number) in samples {
            match number {
                Number::Count(count) => {
                    let _ = writeln!(text, "{name}{} {count}", shown(labels, None));
                }
                Number::Times(times) => {
                    for (bound, count) in cumulative(times) {
                        let labels = shown(labels, Some(&bound.to_string()));
                        let _ = writeln!(text, "{name}_bucket{labels} {count}");
                    }
                    let (count, sum) = (times.count(), times.sum() as f64 / SECOND_NS);
                    let _ = writeln!(text, "{name}_bucket{} {count}", shown(labels, Some("+Inf")));
                    let _ = writeln!(text, "{name}_sum{} {sum}", shown(labels, None));
                    let _ = writeln!(text, "{name}_count{} {count}", shown(labels, None));
                }
            }
        }
    }
    text
}

/// Returns upper bounds in seconds, and cumulative counts.
fn cumulative(times: &Histogram) -> impl Iterator<Item = (f64, u64)> {
    BOUNDS.step_by(3).map(|bound| {
        let below = times.counts().get(..bound).unwrap_or_default();
        ((1_u64 << bound) as f64 / SECOND_NS, below.iter().sum())
    })
}

fn shown(labels: &Labels, bound: Option<&str>) -> String {
    let labels = labels.iter().map(|(name, value)| (*name, value.as_str()));
    let all: Vec<String> = labels
        .chain(bound.map(|bound| ("le", bound)))
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
        .collect();
    if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) }
}

fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns the metrics as JSON.
pub(super) fn json(families: &[Family]) -> String {
    let mut document = Map::new();
    for family in families {
        let samples: Vec<Value> = family.samples.iter().map(sample).collect();
        document.insert(family.name.to_owned(), samples.into());
    }
    Value::Object(document).to_string() + "\n"
}

fn sample((labels, number): &(Labels, Number)) -> Value {
    let mut sample = Map::new();
    let labels = labels.iter().map(|(name, value)| ((*name).to_owned(), value.clone().into()));
    sample.insert("labels".to_owned(), Value::Object(labels.collect()));
    match number {
        Number::Count(count) => {
            sample.insert("value".to_owned(), (*count).into());
        }
        Number::Times(times) => {
            sample.insert("sum".to_owned(), (times.sum() as f64 / SECOND_NS).into());
            sample.insert("count".to_owned(), times.count().into());
            let buckets = cumulative(times).map(|(bound, count)| (bound.to_string(), count.into()));
            sample.insert("buckets".to_owned(), Value::Object(buckets.collect()));
        }
    }
    sample.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_as_text_and_as_json() {
        let mut times = Histogram::default();
        for ns in [10, 1 << 20, 1 << 20] {
            times.add(ns);
        }
        let labels = vec![("pool", "a\"b\\".to_owned())];
        let families = [
            Family {
                name: "x_total",
                help: "All of them.",
                kind: Kind::Counter,
                samples: vec![(labels.clone(), Number::Count(7)), (vec![], Number::Count(8))],
            },
            Family { name: "none", help: "", kind: Kind::Gauge, samples: vec![] },
            Family {
                name: "t_seconds",
                help: "How long.",
                kind: Kind::Histogram,
                samples: vec![(labels, Number::Times(Box::new(times)))],
            },
        ];
        let text = text(&families);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[..6],
            [
                "# HELP x_total All of them.",
                "# TYPE x_total counter",
                r#"x_total{pool="a\"b\\"} 7"#,
                "x_total 8",
                "# HELP t_seconds How long.",
                "# TYPE t_seconds histogram",
            ]
        );
        assert_eq!(lines[6], r#"t_seconds_bucket{pool="a\"b\\",le="0.000016384"} 1"#);
        assert_eq!(lines[9], r#"t_seconds_bucket{pool="a\"b\\",le="0.008388608"} 3"#);
        assert_eq!(lines.last(), Some(&r#"t_seconds_count{pool="a\"b\\"} 3"#));
        let json: Value = serde_json::from_str(&json(&families)).expect("JSON");
        assert_eq!(json["x_total"][0]["labels"]["pool"], "a\"b\\");
        assert_eq!(
            (&json["x_total"][1]["value"], &json["t_seconds"][0]["count"]),
            (&8.into(), &3.into())
        );
        assert_eq!(json["t_seconds"][0]["buckets"]["0.000016384"], 1);
    }
}
