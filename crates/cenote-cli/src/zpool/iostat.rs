//! `zpool iostat`.
//!
//! The queue of each leaf counts its operations since the pool was opened; an interior vdev has the
//! sum of its leaves. The first report covers all that time, each later one the time since the
//! previous report. In a session the counters are those of the open pool; with `--embedded` they
//! are those of the pool opened for this command, which stays open for all reports.

use std::fmt::Write as _;
use std::sync::Arc;

use cenote_ondisk::config::VdevKind;
use cenote_pool::figures::QueueStats;
use cenote_pool::status::{AuxReport, PoolStatus, VdevReport};
use cenote_pool::{AllocationClass, Pool};
use cenote_rt::FixedMap;

use super::config_table::{SECTIONS, section};
use super::iostat_columns::Group;
use super::iostat_table::{Layout, Line, Row, name_width};
use super::names::{self, Names};
use super::scripts::{self, Columns, Scripts};
use super::{Pools, Repeat, block_on, no_such_pool, pools, timestamp};
use crate::err;
use crate::getopt::Parsed;
use crate::io::{CommandResult, Exit, Io};
use crate::leaf_scripts::Leaf;
use crate::source::Source;

/// Nanoseconds of a second.
const SECOND_NS: f64 = 1e9;

/// The vdevs or pools that the operands select.
enum Targets {
    /// Pools, by guid, in this order; all if empty.
    Pools(Vec<u64>),
    /// Vdevs, by guid.
    Vdevs(Vec<u64>),
}

/// Counters of leaves and pools at the previous report, by guid.
type Earlier = FixedMap<u64, QueueStats>;

/// Runs `zpool iostat`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let options = ("c:gLPT:vyhplqrwnH", &[][..]);
    let Some(parsed) = scripts::parse((source, "iostat"), args, options, io)? else {
        return Ok(());
    };
    let scripts = Scripts::of(source, &parsed)?;
    let groups = groups(&parsed)?;
    let mut operands = parsed.operands.clone();
    let repeat = Repeat::take(&mut operands)?;
    block_on(async {
        let (mut kept, mut targets, mut earlier) = (None, None, Earlier::default());
        let mut rounds = Rounds::default();
        loop {
            let columns = match &scripts {
                Some(scripts) => {
                    let leaves = async |io: &mut Io<'_>| {
                        if let Some(held) = &kept {
                            return leaves(held, &operands, source).await;
                        }
                        let held = pools(source, &[], no_such_pool, io).await?;
                        leaves(&held, &operands, source).await
                    };
                    Some(scripts.run(source, leaves).await?)
                }
                None => None,
            };
            let (told, goes_on) = source
                .prepare(io, async |io| {
                    columns.as_ref().map_or(Ok(()), |columns| columns.charge(source))?;
                    let mut held = match kept.take() {
                        Some(held) => held,
                        None => pools(source, &[], no_such_pool, io).await?,
                    };
                    let targets = match &mut targets {
                        Some(known) => &*known,
                        unknown => unknown.insert(parse_targets(&held.open, &operands, source)?),
                    };
                    held.keep(targets);
                    // Stored only at the end: the step may have to start again.
                    let mut now = earlier.clone();
                    let lines = reports(&held.open, &parsed, targets, &mut now).await?;
                    let chosen = (&parsed, &*groups, targets, columns.as_ref());
                    let done = print(&held, &lines, chosen, rounds, io)?;
                    let told = held.finish();
                    (earlier, rounds) = (now, done);
                    // Pools opened by this process stay open, and so do their counters.
                    kept = source.session.is_none().then_some(held);
                    Ok((told, rounds.is_skipped && repeat.interval.is_none()))
                })
                .await?;
            // Delivering ends the charge of its memory.
            drop(columns);
            source.deliver(io)?;
            if !(goes_on || repeat.next(rounds.shown, source).await) {
                return told;
            }
        }
    })
}

/// The number of reports.
#[derive(Debug, Clone, Copy, Default)]
struct Rounds {
    /// Reports that were prepared.
    made: u64,
    /// Reports that were printed.
    shown: u64,
    /// The last report was not printed.
    is_skipped: bool,
}

/// Prints one report, and returns the counts with it included.
fn print(
    held: &Pools,
    lines: &[Line],
    (parsed, groups, targets, columns): (&Parsed, &[Group], &Targets, Option<&Columns>),
    mut rounds: Rounds,
    io: &mut Io<'_>,
) -> Result<Rounds, Exit> {
    let is_of_vdevs = matches!(targets, Targets::Vdevs(_));
    let layout = Layout {
        groups: groups.to_vec(),
        columns,
        is_scripted: parsed.has('H'),
        is_literal: parsed.has('p'),
        of: if is_of_vdevs { "vdev" } else { "pool" },
        name_width: name_width(lines.iter()),
    };
    let is_verbose = is_verbose(parsed) || is_of_vdevs;
    rounds.is_skipped = parsed.has('y') && rounds.made == 0;
    if held.open.is_empty() {
        err!(io, "no pools available")?;
    } else {
        timestamp(parsed, io)?;
    }
    let is_first = rounds.made == 0 && !rounds.is_skipped;
    let has_header = (is_first || rounds.is_skipped != is_verbose)
        && layout.histogram().is_none()
        && !layout.is_scripted;
    if has_header && !held.open.is_empty() {
        write!(io.out, "{}", layout.header())?;
    }
    rounds.made += 1;
    if !rounds.is_skipped {
        for line in lines {
            write!(io.out, "{}", layout.line(line))?;
        }
        rounds.shown += 1;
    }
    Ok(rounds)
}

impl Pools {
    /// Keeps the selected pools, in the order of the operands.
    fn keep(&mut self, targets: &Targets) {
        let Targets::Pools(wanted) = targets else { return };
        if wanted.is_empty() {
            return;
        }
        let open = std::mem::take(&mut self.open);
        let of = |guid: &u64| open.iter().find(|pool| pool.guid() == *guid).cloned();
        self.open = wanted.iter().filter_map(of).collect();
    }
}

/// Whether vdevs are shown: the columns of scripts are theirs.
fn is_verbose(parsed: &Parsed) -> bool {
    parsed.has('v') || parsed.has('c')
}

/// Returns the leaves that scripts run for.
async fn leaves(held: &Pools, operands: &[String], source: &Source) -> Result<Vec<Leaf>, Exit> {
    let targets = parse_targets(&held.open, operands, source)?;
    let mut leaves = Vec::new();
    for pool in &held.open {
        let status = pool.status().await?;
        match &targets {
            Targets::Pools(wanted) if wanted.is_empty() || wanted.contains(&pool.guid()) => {
                leaves.extend(scripts::leaves(&status));
            }
            Targets::Pools(_) => {}
            Targets::Vdevs(wanted) => {
                let all = status.root.walk().filter(|vdev| wanted.contains(&vdev.guid));
                leaves.extend(all.filter_map(|vdev| scripts::leaf(&status, vdev)));
            }
        }
    }
    Ok(leaves)
}

/// Returns the groups of columns that the options select.
fn groups(parsed: &Parsed) -> Result<Vec<Group>, Exit> {
    let [latency, queues, latencies, sizes] = ['l', 'q', 'w', 'r'].map(|letter| parsed.has(letter));
    if latencies && sizes {
        return Err(Exit::usage("Only one of [-r|-w] can be passed at a time"));
    }
    if (latencies || sizes) && (latency || queues || parsed.has('c')) {
        return Err(Exit::usage("[-r|-w] isn't allowed with [-c|-l|-q]"));
    }
    if latencies || sizes {
        return Ok(vec![if latencies { Group::LatencyHistogram } else { Group::SizeHistogram }]);
    }
    let mut groups = vec![Group::Default];
    groups.extend(latency.then_some(Group::Latency));
    groups.extend(queues.then_some(Group::Queues));
    Ok(groups)
}

/// Parses the operands: pools, vdevs of a pool, or vdevs of any.
fn parse_targets(
    pools: &[Arc<Pool>],
    operands: &[String],
    source: &Source,
) -> Result<Targets, Exit> {
    let pool = |word: &String| {
        let mut all = pools.iter();
        all.find(|pool| pool.name() == word || pool.guid().to_string() == *word)
    };
    let named: Vec<u64> = operands.iter().filter_map(pool).map(|pool| pool.guid()).collect();
    if named.len() == operands.len() {
        return Ok(Targets::Pools(named));
    }
    let vdev = |within: &[Arc<Pool>], word: &String| {
        let file = source.path(word);
        let mut trees = within.iter().map(|pool| &pool.config().vdev_tree);
        trees.find_map(|tree| names::find(tree, word, &file).ok()).map(|vdev| vdev.guid)
    };
    let all: Option<Vec<u64>> = operands.iter().map(|word| vdev(pools, word)).collect();
    if let Some(all) = all {
        return Ok(Targets::Vdevs(all));
    }
    let (Some(first), [name, rest @ ..]) = (operands.first().and_then(pool), operands) else {
        return Err(Exit::failed("Unable to parse pools/vdevs list.\n"));
    };
    let mut found = Vec::new();
    let mut unfound = String::new();
    for word in rest {
        match vdev(std::slice::from_ref(first), word) {
            Some(guid) => found.push(guid),
            None => {
                let _ = writeln!(unfound, "couldn't find device \"{word}\" in pool \"{name}\"");
            }
        }
    }
    if unfound.is_empty() {
        return Ok(Targets::Vdevs(found));
    }
    Err(Exit::usage(format!(
        "Expected either a list of pools, or list of vdevs in \"{name}\", but got:\n{unfound}"
    )))
}

/// Returns the lines for all pools, and stores the counters for the next report.
async fn reports(
    pools: &[Arc<Pool>],
    parsed: &Parsed,
    targets: &Targets,
    earlier: &mut Earlier,
) -> Result<Vec<Line>, Exit> {
    let is_verbose = is_verbose(parsed);
    let mut lines = Vec::new();
    let mut now = Earlier::default();
    for pool in pools {
        let status = pool.status().await?;
        let names = Names::of(parsed).within(&pool.config().vdev_tree);
        let (now, lines) = (&mut now, &mut lines);
        let mut report = Report { status: &status, names, earlier, now, lines };
        match targets {
            Targets::Vdevs(wanted) => {
                let all = status.root.walk().filter(|vdev| wanted.contains(&vdev.guid));
                all.for_each(|vdev| report.vdev(vdev, 0, None));
            }
            Targets::Pools(_) => {
                let space = status.space.as_ref().map(|space| (space.allocated, space.free()));
                report.vdev(&status.root, 0, space);
                if is_verbose {
                    report.below(&status);
                    lines.push(Line::Separator);
                }
            }
        }
    }
    let is_plain_list = !is_verbose && matches!(targets, Targets::Pools(_)) && pools.len() > 1;
    if is_plain_list || (matches!(targets, Targets::Vdevs(_)) && !lines.is_empty()) {
        lines.push(Line::Separator);
    }
    *earlier = now;
    Ok(lines)
}

struct Report<'a> {
    status: &'a PoolStatus,
    names: Names,
    earlier: &'a Earlier,
    now: &'a mut Earlier,
    lines: &'a mut Vec<Line>,
}

impl Report<'_> {
    /// Adds one vdev; space is known for top-level vdevs.
    fn vdev(&mut self, vdev: &VdevReport, depth: usize, space: Option<(u64, u64)>) {
        let figures = vdev.figures.as_ref().filter(|figures| figures.is_concrete);
        let figures = figures.map(|figures| (figures.allocated, figures.free()));
        let all = vdev.io();
        let before = self.earlier.get(&vdev.guid);
        let io = before.map_or_else(|| all.clone(), |before| all.since(before));
        let scale = if io.age_ns == 0 { 1.0 } else { SECOND_NS / io.age_ns as f64 };
        self.now.insert(vdev.guid, all);
        self.lines.push(Line::Vdev(Box::new(Row {
            name: self.names.vdev(vdev),
            depth,
            leaf: scripts::leaf(self.status, vdev),
            capacity: space.or(figures),
            io,
            scale,
            // Over the whole time a histogram shows counts instead of rates.
            histogram_scale: if before.is_some() { scale } else { 1.0 },
        })));
    }

    /// Adds everything below a pool.
    fn below(&mut self, status: &PoolStatus) {
        for vdev in section(&status.root, AllocationClass::Normal) {
            self.tree(vdev, 2);
        }
        for (class, title) in SECTIONS {
            let vdevs = section(&status.root, class);
            if !vdevs.is_empty() {
                self.lines.push(Line::Title(title));
            }
            for vdev in vdevs {
                self.tree(vdev, 2);
            }
        }
        if !status.caches.is_empty() {
            self.lines.push(Line::Title("cache"));
        }
        for cache in &status.caches {
            self.cache(cache);
        }
    }

    fn tree(&mut self, vdev: &VdevReport, depth: usize) {
        if vdev.kind == VdevKind::Indirect {
            return;
        }
        self.vdev(vdev, depth, None);
        for child in &vdev.children {
            self.tree(child, depth + 2);
        }
    }

    /// Adds a cache device. It is empty: nothing writes to it.
    fn cache(&mut self, cache: &AuxReport) {
        self.lines.push(Line::Vdev(Box::new(Row {
            name: if self.names.by_guid {
                cache.guid.to_string()
            } else {
                self.names.device(&cache.name, false, false)
            },
            depth: 2,
            leaf: Some(scripts::leaf_at(self.status, &cache.name)),
            capacity: cache.device_size.map(|size| (0, size)),
            io: QueueStats::default(),
            scale: 1.0,
            histogram_scale: 1.0,
        })));
    }
}
