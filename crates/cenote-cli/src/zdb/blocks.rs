//! `zdb -b`, `-bb`, `-bbb`, `-c`, `-cc`, `-L`: counts every block by type, level and size, and
//! compares the space of all blocks with the space maps.
//!
//! A block is counted at each reference to it, with everything allocated at its addresses; embedded
//! blocks count as blocks without size. Repeated references to deduplicated and cloned blocks are
//! summed separately, so that the remainder is comparable with the space maps. The sums of the
//! space maps are those of their headers, as zdb prints them; they exclude changes that are still
//! in the log space maps.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_ondisk::blkptr::{BlockPtr, EMBEDDED_MAX};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::leaks::{self, Census, LeakReport, Origin, Reference, Table};
use cenote_pool::verify::{self, Finding, Observer, Progress};
use cenote_pool::{AllocationClass, Pool, Space};
use cenote_rt::BoxFuture;
use cenote_rt::lock::{Mutex, Rank};

use super::{Options, text};
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum::bytes;
use crate::{err, out};

/// Kinds of blocks beyond the numbered object types.
const DEFERRED: usize = 54;
const DEDUP_DITTO: usize = 55;
const OTHER: usize = 56;
const KINDS: usize = 57;
/// Log2 of the sizes in the histogram.
const SIZES: std::ops::RangeInclusive<u32> = 9..=24;

/// Runs `-b` and `-c`.
pub(super) async fn run(pool: &Arc<Pool>, options: &Options, io: &mut Io<'_>) -> CommandResult {
    let detail = options.count('b');
    let (checks, tracks) = (options.count('c'), !options.has('L'));
    let aims = match (checks, tracks) {
        (0, false) => String::new(),
        (0, true) => "to verify nothing leaked ".to_owned(),
        (1, false) => "to verify metadata checksums ".to_owned(),
        (1, true) => "to verify metadata checksums and verify nothing leaked ".to_owned(),
        (_, false) => "to verify checksums ".to_owned(),
        (_, true) => "to verify checksums and verify nothing leaked ".to_owned(),
    };
    out!(io, "\nTraversing all blocks {aims}...\n")?;
    let mut tally =
        Tally::new(pool, if options.has('P') { |figure| figure.to_string() } else { bytes });
    let report = leaks::check_counting(pool, &mut tally).await?;
    let mut is_clean = true;
    if checks > 0 {
        is_clean &= check(pool, checks, io).await?;
    }
    if tracks {
        is_clean &= print_leaks(&report, io)?;
    }
    let space = pool.space().await?;
    tally.print_sums(&space, tracks, io)?;
    tally.print_embedded(detail, io)?;
    tally.print_dittos(pool, io)?;
    if detail >= 2 {
        tally.print_types(detail, io)?;
        tally.print_sizes(options.has('P'), io)?;
    }
    out!(io)?;
    if is_clean { Ok(()) } else { Err(Exit::Status(EXIT_DAMAGED)) }
}

/// Status when there are leaks or checksum errors.
const EXIT_DAMAGED: i32 = 2;

/// Findings of a verification, as lines.
struct Lines {
    lines: Mutex<Vec<String>>,
    metadata_only: bool,
}

impl Observer for Lines {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        let line = match &finding {
            Finding::Part { bp, .. } | Finding::Lost { bp, .. }
                if self.metadata_only && !is_metadata(bp) =>
            {
                None
            }
            Finding::Part { place, part, .. } => {
                let child = &part.child;
                let place = spot(place);
                let (path, offset, cause) = (&child.path, child.offset, &child.cause);
                Some(format!("zdb_blkptr_cb: bad copy at {place}: {path} {offset:#x}: {cause}"))
            }
            Finding::Lost { place, .. } => {
                Some(format!("zdb_blkptr_cb: Got error 52 reading {} -- skipping", spot(place)))
            }
            Finding::Unreachable(damage) => {
                let place = spot(&damage.place);
                Some(format!("zdb_blkptr_cb: cannot go below {place}: {}", damage.error))
            }
        };
        self.lines.lock().extend(line);
        Box::pin(std::future::ready(()))
    }
}

fn spot(place: &Bookmark) -> String {
    let &Bookmark { objset, object, level, blkid } = place;
    format!("<{objset}, {object}, {level}, {blkid:x}>")
}

fn is_metadata(bp: &BlockPtr) -> bool {
    bp.level() > 0 || bp.object_type().is_metadata()
}

async fn check(pool: &Arc<Pool>, checks: usize, io: &mut Io<'_>) -> CommandResult<bool> {
    let lines =
        Arc::new(Lines { lines: Mutex::with_default(Rank::ZdbLines), metadata_only: checks < 2 });
    let observer: Arc<dyn Observer> = Arc::clone(&lines) as Arc<dyn Observer>;
    verify::pool(pool, observer, Arc::new(Progress::default())).await?;
    let found = std::mem::take(&mut *lines.lines.lock());
    for line in &found {
        err!(io, "{line}")?;
    }
    Ok(found.is_empty())
}

fn print_leaks(report: &LeakReport, io: &mut Io<'_>) -> CommandResult<bool> {
    if report.is_clean() {
        out!(io, "\n\tNo leaks (block sum matches space maps exactly)")?;
        return Ok(true);
    }
    let mut lines = report.lines();
    lines.pop();
    for line in lines {
        out!(io, "{line}")?;
    }
    let (found, allocated) = (report.found(), report.allocated);
    let difference = allocated.wrapping_sub(found) as i64;
    let what = if difference >= 0 { "leaked" } else { "unreachable" };
    out!(io, "block traversal size {found} != alloc {allocated} ({what} {difference})")?;
    Ok(false)
}

/// Sums over some blocks.
#[derive(Debug, Clone, Copy, Default)]
struct Sum {
    count: u64,
    gangs: u64,
    lsize: u64,
    psize: u64,
    asize: u64,
}

impl Sum {
    fn add(&mut self, bp: &BlockPtr) {
        self.count += 1;
        self.gangs += bp.dvas().filter(|dva| dva.gang).count() as u64;
        self.lsize += bp.lsize();
        self.psize += bp.psize();
        self.asize += bp.asize_total();
    }

    fn join(&mut self, other: &Self) {
        self.count += other.count;
        self.gangs += other.gangs;
        self.lsize += other.lsize;
        self.psize += other.psize;
        self.asize += other.asize;
    }
}

/// Format of figures in tables: short, or digits with `-P`.
type Shown = fn(u64) -> String;

/// Number of blocks and their bytes for each size, by log2.
type Sizes = [(u64, u64); 64];

/// All sums of the traversal.
struct Tally<'p> {
    pool: &'p Arc<Pool>,
    shown: Shown,
    /// By kind and level.
    by_kind: Vec<BTreeMap<u8, Sum>>,
    psizes: Sizes,
    lsizes: Sizes,
    asizes: Sizes,
    /// By embedded type: number of blocks of each compressed size.
    embedded: BTreeMap<u8, [u64; EMBEDDED_MAX + 1]>,
    dittos_on_vdev: u64,
    dittos_in_metaslab: u64,
    deduped: (u64, u64),
    cloned: (u64, u64),
}

impl Census for Tally<'_> {
    fn count(&mut self, bp: &BlockPtr, _place: &Bookmark, origin: Origin, reference: Reference) {
        let kind = match (origin, bp.object_type()) {
            (Origin::FreeQueue, _) => DEFERRED,
            (Origin::Tree, ObjectType(number)) if usize::from(number) < DEFERRED => number.into(),
            (Origin::Tree, _) => OTHER,
        };
        self.by_kind[kind].entry(bp.level()).or_default().add(bp);
        if bp.is_embedded() {
            let sizes = self.embedded.entry(bp.checksum_id()).or_insert([0; EMBEDDED_MAX + 1]);
            if let Some(count) = sizes.get_mut(bp.embedded_psize() as usize) {
                *count += 1;
            }
            return;
        }
        let asize = bp.asize_total();
        let sizes = [
            (&mut self.psizes, bp.psize()),
            (&mut self.lsizes, bp.lsize()),
            (&mut self.asizes, asize),
        ];
        for (table, size) in sizes {
            let (count, sum) = &mut table[size.max(1).ilog2() as usize];
            (*count, *sum) = (*count + 1, *sum + size);
        }
        self.note_dittos(bp);
        let repeated = match reference {
            Reference::First => return,
            Reference::Again(Table::Dedup) => &mut self.deduped,
            Reference::Again(Table::Clones) => &mut self.cloned,
        };
        *repeated = (repeated.0 + 1, repeated.1 + asize);
    }
}

/// Returns a fraction; 0 for 0 over 0.
fn ratio(over: u64, under: u64) -> f64 {
    over as f64 / under as f64
}

impl<'p> Tally<'p> {
    fn new(pool: &'p Arc<Pool>, shown: Shown) -> Self {
        Self {
            pool,
            shown,
            by_kind: vec![BTreeMap::new(); KINDS],
            psizes: [(0, 0); 64],
            lsizes: [(0, 0); 64],
            asizes: [(0, 0); 64],
            embedded: BTreeMap::new(),
            dittos_on_vdev: 0,
            dittos_in_metaslab: 0,
            deduped: (0, 0),
            cloned: (0, 0),
        }
    }

    /// Counts copies that are too close to each other.
    fn note_dittos(&mut self, bp: &BlockPtr) {
        let dvas: Vec<_> = bp.dvas().collect();
        let pairs = || (0..dvas.len()).flat_map(|a| (0..a).map(move |b| (a, b)));
        let is_same = |(a, b): (usize, usize)| dvas[a].vdev == dvas[b].vdev;
        if !pairs().any(is_same) {
            return;
        }
        self.dittos_on_vdev += 1;
        let shift = |vdev: u32| {
            let config = self.pool.config().vdev_tree.children.get(vdev as usize);
            config.map_or(63, |config| config.top.metaslab_shift.min(63))
        };
        let is_in_one = |(a, b): (usize, usize)| {
            let shift = shift(dvas[a].vdev);
            is_same((a, b)) && dvas[a].offset >> shift == dvas[b].offset >> shift
        };
        self.dittos_in_metaslab += u64::from(pairs().any(is_in_one));
    }

    fn total(&self) -> Sum {
        let mut total = Sum::default();
        self.by_kind.iter().flat_map(BTreeMap::values).for_each(|sum| total.join(sum));
        total
    }

    fn print_sums(&self, space: &Space, tracks: bool, io: &mut Io<'_>) -> CommandResult {
        let Sum { count, gangs, lsize, psize, asize } = self.total();
        let average = |sum: u64| sum.checked_div(count).unwrap_or(0);
        let line = |name: &str, value: u64| format!("\t{name:<16} {value:14}");
        out!(io, "\n{}", line("bp count:", count))?;
        out!(io, "{}", line("ganged count:", gangs))?;
        out!(io, "{}      avg: {:6}", line("bp logical:", lsize), average(lsize))?;
        for (name, size) in [("bp physical:", psize), ("bp allocated:", asize)] {
            let (line, average) = (line(name, size), average(size));
            out!(io, "{line}      avg: {average:6}     compression: {:6.2}", ratio(lsize, size))?;
        }
        let (references, shared) = self.deduped;
        let dedup = ratio(shared, asize) + 1.0;
        let deduped = line("bp deduped:", shared);
        out!(io, "{deduped}    ref>1: {references:6}   deduplication: {dedup:6.2}")?;
        let (references, shared) = self.cloned;
        out!(io, "{}    count: {references:6}", line("bp cloned:", shared))?;
        self.print_classes(space, tracks, io)
    }

    /// Prints the allocated space according to the space map headers.
    fn print_classes(&self, space: &Space, tracks: bool, io: &mut Io<'_>) -> CommandResult {
        let mut classes = [("Normal class:", 0, 0), ("Special class", 0, 0), ("Dedup class", 0, 0)];
        if tracks {
            // To trace leaks, zdb gives removed vdevs their metaslabs back.
            let removed = self.pool.config().vdev_tree.children.iter();
            let removed = removed.filter(|config| config.top.indirect_object.is_some());
            let size = |config: &VdevConfig| {
                let shift = config.top.metaslab_shift.min(63);
                config.top.asize >> shift << shift
            };
            classes[0].2 = removed.map(size).sum();
        }
        let mut embedded = (0, 0);
        for vdev in &space.vdevs {
            let class = match vdev.class {
                AllocationClass::Normal => 0,
                AllocationClass::Special => 1,
                AllocationClass::Dedup => 2,
                AllocationClass::Log => continue,
            };
            for (number, metaslab) in vdev.metaslabs.iter().enumerate() {
                let header = metaslab.header.as_ref();
                let allocated = header.map_or(0, |header| header.allocated.max(0) as u64);
                let (sum, size) = if vdev.embedded_log == Some(number) {
                    (&mut embedded.0, &mut embedded.1)
                } else {
                    (&mut classes[class].1, &mut classes[class].2)
                };
                (*sum, *size) = (*sum + allocated, *size + metaslab.size);
            }
        }
        for (index, (name, allocated, size)) in classes.into_iter().enumerate() {
            if index == 0 || size != 0 {
                print_class(name, allocated, size, io)?;
            }
        }
        print_class("Embedded log class", embedded.0, embedded.1, io)
    }

    fn print_embedded(&self, detail: usize, io: &mut Io<'_>) -> CommandResult {
        for (number, sizes) in &self.embedded {
            let count: u64 = sizes.iter().sum();
            out!(io, "\n\tadditional, non-pointer bps of type {number}: {count:10}")?;
            if detail >= 3 {
                out!(io, "\t number of (compressed) bytes:  number of bps")?;
                text::histogram(io, sizes, 0)?;
            }
        }
        Ok(())
    }

    fn print_dittos(&self, pool: &Arc<Pool>, io: &mut Io<'_>) -> CommandResult {
        if self.dittos_on_vdev != 0 {
            out!(io, "\tDittoed blocks on same vdev: {}", self.dittos_on_vdev)?;
        }
        if self.dittos_in_metaslab != 0 {
            out!(io, "\tDittoed blocks in same metaslab: {}", self.dittos_in_metaslab)?;
        }
        for config in &pool.config().vdev_tree.children {
            if let Some(map) = pool.vdevs().mapping(config.id) {
                let (id, count) = (config.id, map.entries().len());
                out!(io, "\tindirect vdev id {id} has {count} segments ({count} in memory)")?;
            }
        }
        Ok(())
    }

    fn print_types(&self, detail: usize, io: &mut Io<'_>) -> CommandResult {
        out!(io, "\nBlocks\tLSIZE\tPSIZE\tASIZE\t  avg\t comp\t%Total\tType")?;
        let total = self.total();
        let (mut metadata, mut by_level) = (Sum::default(), BTreeMap::new());
        for (kind, levels) in self.by_kind.iter().enumerate() {
            let name = match kind {
                DEFERRED => "deferred free",
                DEDUP_DITTO => "dedup ditto",
                OTHER => "other",
                number => ObjectType(number as u8).name(),
            };
            let mut sum = Sum::default();
            for (level, part) in levels {
                sum.join(part);
                by_level.entry(*level).or_insert_with(Sum::default).join(part);
            }
            if sum.asize == 0 {
                out!(
                    io,
                    "{:>6}\t{1:>5}\t{1:>5}\t{1:>5}\t{1:>5}\t{1:>5}\t{0:>6}\t{name}",
                    "-",
                    "-"
                )?;
                continue;
            }
            for (level, part) in levels {
                // Types without a number never count as metadata.
                let is_metadata = *level > 0 || ObjectType(kind as u8).is_metadata();
                if kind < DEFERRED && is_metadata && part.asize != 0 {
                    metadata.join(part);
                }
            }
            if detail >= 3 {
                print_levels(levels, &sum, (name, total.asize), (self.shown, io))?;
            }
            print_row(&sum, total.asize, name, (self.shown, io))?;
        }
        if detail >= 3 {
            print_levels(&by_level, &total, ("Total", total.asize), (self.shown, io))?;
        }
        print_row(&total, total.asize, "Total", (self.shown, io))?;
        print_row(&metadata, total.asize, "Metadata Total", (self.shown, io))
    }

    fn print_sizes(&self, is_parsable: bool, io: &mut Io<'_>) -> CommandResult {
        out!(io, "\nBlock Size Histogram\n")?;
        if is_parsable {
            let columns = "Count\tSize\tCum.";
            out!(io, "block\tpsize\t\t\tlsize\t\t\t  asize")?;
            out!(io, "size\t{columns}\t{columns}\t{columns}\t")?;
        } else {
            let columns = "Count   Size   Cum.";
            out!(io, "  block   psize                lsize                asize")?;
            out!(io, "   size   {columns}  {columns}  {columns}")?;
        }
        let mut sums = [0; 3];
        for log in SIZES {
            let size = (self.shown)(1 << log);
            let mut row = if is_parsable { size } else { format!("{size:>7}:") };
            for (table, sum) in
                [&self.psizes, &self.lsizes, &self.asizes].into_iter().zip(&mut sums)
            {
                let (count, size) = table[log as usize];
                *sum += size;
                let [count, size, sum] = [count, size, *sum].map(self.shown);
                let cells = if is_parsable {
                    format!("\t{count}\t{size}\t{sum}")
                } else {
                    format!(" {count:>6} {size:>6} {sum:>6}")
                };
                row.push_str(&cells);
            }
            out!(io, "{row}")?;
        }
        Ok(())
    }
}

fn print_class(name: &str, allocated: u64, size: u64, io: &mut Io<'_>) -> CommandResult {
    // C prints 0/0 with its sign.
    let percent = match size {
        0 => " -nan".to_owned(),
        _ => format!("{:5.2}", 100.0 * ratio(allocated, size)),
    };
    out!(io, "\t{name:<16} {allocated:14}     used: {percent}%")
}

/// Prints a row per level, the root first; none if there are only leaves.
fn print_levels(
    levels: &BTreeMap<u8, Sum>,
    sum: &Sum,
    (name, all): (&str, u64),
    (shown, io): (Shown, &mut Io<'_>),
) -> CommandResult {
    for (level, part) in levels.iter().rev().filter(|(_, part)| part.asize != 0) {
        let is_all = *level == 0 && part.asize == sum.asize;
        if !is_all {
            print_row(part, all, &format!("    L{level} {name}"), (shown, io))?;
        }
    }
    Ok(())
}

fn print_row(sum: &Sum, all: u64, name: &str, (shown, io): (Shown, &mut Io<'_>)) -> CommandResult {
    let average = sum.asize.checked_div(sum.count).unwrap_or(0);
    out!(
        io,
        "{:>6}\t{:>5}\t{:>5}\t{:>5}\t{:>5}\t{:5.2}\t{:6.2}\t{name}",
        shown(sum.count),
        shown(sum.lsize),
        shown(sum.psize),
        shown(sum.asize),
        shown(average),
        ratio(sum.lsize, sum.psize),
        100.0 * ratio(sum.asize, all)
    )
}
