//! `zdb -m`, `-mm`, `-mmm`, `-mmmm`, `-M`: metaslabs, their space maps, free segments, and the
//! logs.
//!
//! Like zdb, which opens pools for reading and does not load the log space maps, this shows the
//! figures of each metaslab's own space map: space that is free there may be allocated by a log.

use std::sync::Arc;

use cenote_dmu::SpaceMap;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::indirect::{MappingPhys, births, counts};
use cenote_ondisk::spacemap::{Action, Geometry, HISTOGRAM_BUCKETS, Item, UNFLUSHED_PHYS_TXGS};
use cenote_ondisk::vdev_zap::OBSOLETE_SM;
use cenote_pool::accounting::{MetaslabFigures, VdevFigures};
use cenote_pool::spacemaps::{self, RangeSet, Unflushed};
use cenote_pool::{AllocationClass, Pool};

use super::{Options, text};
use crate::io::{CommandResult, Exit, Io};
use crate::{err, out};

/// Free segments of at least this size are also tracked by size, and counted.
const BY_SIZE_MIN: u64 = 16 << 10;

/// Runs `-m`.
pub(super) async fn run(pool: &Arc<Pool>, options: &Options, io: &mut Io<'_>) -> CommandResult {
    let detail = options.count('m');
    let space = pool.space().await?;
    let (only, numbers) = match chosen(options, space.vdevs.len()) {
        Ok(chosen) => chosen,
        Err(message) => return Err(Exit::failed(message)),
    };
    out!(io, "\nMetaslabs:")?;
    for (vdev, config) in space.vdevs.iter().zip(&pool.config().vdev_tree.children) {
        if only.is_some_and(|only| only != vdev.id) {
            continue;
        }
        for number in numbers.iter().filter(|number| **number >= vdev.metaslabs.len()) {
            err!(io, "bad metaslab number {number}")?;
        }
        print_header(pool, vdev, config, io).await?;
        print_removed(pool, config, detail, io).await?;
        for (number, metaslab) in vdev.metaslabs.iter().enumerate() {
            if !numbers.is_empty() && !numbers.contains(&number) {
                continue;
            }
            print_metaslab(pool, vdev, number, metaslab, (options, detail), io).await?;
        }
        if config.top.indirect_object.is_none() {
            out!(io)?;
        }
    }
    print_logs(pool, &space.vdevs, detail, io).await
}

/// Returns the vdev and the metaslabs selected by the operands after the pool.
fn chosen(options: &Options, vdevs: usize) -> Result<(Option<u64>, Vec<usize>), String> {
    // With `-d` the operands are objects.
    let is_chosen = options.has('m') && !options.has('d');
    let mut operands = options.operands.iter().skip(1).filter(|_| is_chosen);
    let Some(vdev) = operands.next() else { return Ok((None, Vec::new())) };
    let found = vdev.parse().ok().filter(|id| *id < vdevs as u64);
    let vdev = found.ok_or_else(|| format!("bad vdev id: {vdev}"))?;
    let numbers =
        operands.map(|number| number.parse().map_err(|_| format!("bad metaslab number {number}")));
    Ok((Some(vdev), numbers.collect::<Result<_, _>>()?))
}

async fn print_header(
    pool: &Pool,
    vdev: &VdevFigures,
    config: &VdevConfig,
    io: &mut Io<'_>,
) -> CommandResult {
    let class = match vdev.class {
        AllocationClass::Normal => "",
        AllocationClass::Special => "special",
        AllocationClass::Dedup => "dedup",
        AllocationClass::Log => "log",
    };
    let unflushed = spacemaps::vdev_zap(pool, config, UNFLUSHED_PHYS_TXGS).await?;
    let unflushed = match unflushed {
        Some(object) => format!("   ms_unflushed_phys object {object}"),
        None => String::new(),
    };
    out!(io, "\tvdev {:10}   {class}{unflushed}", vdev.id)?;
    let count = vdev.metaslabs.len();
    out!(io, "\tmetaslabs {count:5}   {:<19}   {:<15}   {:<12}", "offset", "spacemap", "free")?;
    let rule = |len: usize| "-".repeat(len);
    out!(io, "\t{}   {}   {}   {}", rule(15), rule(19), rule(15), rule(12))
}

/// Prints the mapping of a removed vdev.
async fn print_removed(
    pool: &Pool,
    config: &VdevConfig,
    detail: usize,
    io: &mut Io<'_>,
) -> CommandResult {
    let mos = pool.mos();
    if let Some(object @ 1..) = config.top.indirect_births {
        let dnode = mos.dnode(object).await?;
        let count = cenote_ondisk::indirect::births_count(dnode.bonus()?)
            .map_err(cenote_rt::Error::corrupt)?;
        out!(io, "indirect births obj {object}:")?;
        out!(io, "    vib_count = {count}")?;
        let bytes = cenote_dmu::read_bytes(&dnode, count.saturating_mul(16), u64::MAX).await?;
        for birth in births(&bytes) {
            out!(io, "\toffset {:x} -> txg {}", birth.offset, birth.txg)?;
        }
        out!(io)?;
    }
    let Some(object @ 1..) = config.top.indirect_object else { return Ok(()) };
    let dnode = mos.dnode(object).await?;
    let mapping = MappingPhys::decode(dnode.bonus()?).map_err(cenote_rt::Error::corrupt)?;
    out!(io, "indirect mapping obj {object}:")?;
    out!(io, "    vim_max_offset = {:#x}", mapping.max_offset)?;
    out!(io, "    vim_bytes_mapped = {:#x}", mapping.bytes_mapped)?;
    out!(io, "    vim_count = {}", mapping.num_entries)?;
    if detail >= 4
        && let Some(map) = pool.vdevs().mapping(config.id)
    {
        let obsolete = match mapping.counts_obj {
            Some(object @ 1..) => {
                let dnode = mos.dnode(object).await?;
                let len = mapping.num_entries.saturating_mul(4);
                counts(&cenote_dmu::read_bytes(&dnode, len, u64::MAX).await?).collect()
            }
            _ => Vec::new(),
        };
        for (index, entry) in map.entries().iter().enumerate() {
            let count = obsolete.get(index).copied().unwrap_or(0);
            let (id, source, target) = (config.id, entry.source, entry.target);
            let (vdev, offset, size) = (target.vdev, target.offset, target.asize);
            out!(
                io,
                "\t<{id}:{source:x}:{size:x}> -> <{vdev}:{offset:x}:{size:x}> ({count:x} obsolete)"
            )?;
        }
    }
    out!(io)?;
    if detail >= 4
        && let Some(object) = spacemaps::vdev_zap(pool, config, OBSOLETE_SM).await?
    {
        out!(io, "obsolete space map object {object}:")?;
        out!(io, "space map object {object}:")?;
        let geometry = Geometry { start: 0, size: config.top.asize, shift: 0 };
        print_map(pool, object, geometry, detail, io).await?;
        out!(io)?;
    }
    Ok(())
}

async fn print_metaslab(
    pool: &Pool,
    vdev: &VdevFigures,
    number: usize,
    metaslab: &MetaslabFigures,
    (options, detail): (&Options, usize),
    io: &mut Io<'_>,
) -> CommandResult {
    let allocated = metaslab.header.as_ref().map_or(0, |header| header.allocated);
    let free = (metaslab.size as i64).wrapping_sub(allocated) as u64;
    out!(
        io,
        "\tmetaslab {number:6}   offset {:12x}   spacemap {:6}   free    {:>5}",
        metaslab.start,
        metaslab.space_map,
        options.size(free)
    )?;
    if detail >= 3 && !options.has('L') {
        print_segments(pool, vdev, number, metaslab, (options, io)).await?;
    }
    let geometry = spacemaps::geometry(pool, vdev, metaslab);
    let histogram = metaslab.header.as_ref().and_then(|header| header.histogram);
    if let (Some(histogram), true) = (histogram, detail >= 2) {
        let fragmentation = metaslab.fragmentation.unwrap_or(u64::MAX);
        out!(io, "\tOn-disk histogram:\t\tfragmentation {fragmentation}")?;
        text::histogram(io, &histogram, geometry.shift.into())?;
    }
    if metaslab.space_map != 0 {
        out!(io, "space map object {}:", metaslab.space_map)?;
        print_map(pool, metaslab.space_map, geometry, detail, io).await?;
    }
    if pool.features().is_active("log_spacemap") {
        out!(io, "\tFlush data:\n\tunflushed txg={}\n", metaslab.unflushed_txg)?;
    }
    Ok(())
}

/// Prints the free segments by the metaslab's own space map.
async fn print_segments(
    pool: &Pool,
    vdev: &VdevFigures,
    number: usize,
    metaslab: &MetaslabFigures,
    (options, io): (&Options, &mut Io<'_>),
) -> CommandResult {
    let none = Unflushed::default();
    let (allocated, _) = spacemaps::allocated(pool, vdev, number as u64, &none).await?;
    let mut free = RangeSet::default();
    free.add(metaslab.start..metaslab.start + metaslab.size);
    for range in allocated.iter() {
        free.remove(range);
    }
    let sizes = || free.iter().map(|range| range.end - range.start);
    let large = sizes().filter(|size| *size >= BY_SIZE_MIN).count();
    let segments = if large == 0 { free.len() } else { large };
    let (largest, percent) =
        (sizes().max().unwrap_or(0), (free.bytes() * 100).checked_div(metaslab.size).unwrap_or(0));
    out!(
        io,
        "\t {:>25} {segments:10}   maxsize {:>7}   freepct {percent:4}%",
        "segments",
        options.size(largest)
    )?;
    let mut histogram = [0_u64; 64];
    sizes().for_each(|size| histogram[size.max(1).ilog2() as usize] += 1);
    out!(io, "\tIn-memory histogram:")?;
    text::histogram(io, &histogram, 0)
}

/// Prints a space map that belongs to no metaslab; its entries with `-mmmm` or `-dddddd`.
pub(super) async fn print_space_map(
    pool: &Pool,
    object: u64,
    geometry: Geometry,
    options: &Options,
    io: &mut Io<'_>,
) -> CommandResult {
    let has_entries = options.count('m') >= 4 || options.count('d') >= 6;
    out!(io, "space map object {object}:")?;
    print_map(pool, object, geometry, if has_entries { 4 } else { 0 }, io).await
}

async fn print_map(
    pool: &Pool,
    object: u64,
    geometry: Geometry,
    detail: usize,
    io: &mut Io<'_>,
) -> CommandResult {
    let map = SpaceMap::open(pool.mos(), object).await?;
    out!(io, "  smp_length = {:#x}", map.phys().length)?;
    out!(io, "  smp_alloc = {:#x}", map.phys().allocated)?;
    if detail < 4 {
        return Ok(());
    }
    let mut lines = Vec::new();
    map.for_each(geometry, |item| {
        let number = lines.len();
        match item {
            Item::Stamp(stamp) => {
                let (name, txg, pass) = (name_of(stamp.action), stamp.txg, stamp.pass);
                lines.push(format!("\t    [{number:6}] {name}: txg {txg} pass {pass}"));
            }
            Item::Padding => lines.push(format!("\t    [{number:6}] padding")),
            Item::Entry(entry) => {
                let letter = &name_of(entry.action)[..1];
                let (start, end) = (entry.offset, entry.offset + entry.size);
                // The vdev that zdb prints for entries without one.
                let vdev = entry.vdev.unwrap_or(1 << 24);
                let words = 1 + u32::from(entry.vdev.is_some());
                lines.push(format!(
                    "\t    [{number:6}]    {letter}  range: {start:010x}-{end:010x}  size: {:06x} vdev: {vdev} words: {words}",
                    entry.size
                ));
            }
        }
        Ok(())
    })
    .await?;
    for line in lines {
        out!(io, "{line}")?;
    }
    Ok(())
}

fn name_of(action: Action) -> &'static str {
    match action {
        Action::Alloc => "ALLOC",
        Action::Free => "FREE",
    }
}

/// Prints all log space maps, and how much of each is still needed.
async fn print_logs(
    pool: &Pool,
    vdevs: &[VdevFigures],
    detail: usize,
    io: &mut Io<'_>,
) -> CommandResult {
    let logs = spacemaps::logs(pool).await?;
    if logs.is_empty() {
        return Ok(());
    }
    out!(io, "\nLog Space Maps in Pool:")?;
    for (txg, object) in &logs {
        out!(io, "Log Spacemap object {object} txg {txg}")?;
        out!(io, "space map object {object}:")?;
        print_map(pool, *object, Geometry::LOG, detail, io).await?;
    }
    out!(io, "\nLog Space Map Obsolete Entry Statistics:")?;
    let line = |valid: u64, all: u64| format!("{valid:<8} valid entries out of {all:<8}");
    let (mut valid, mut all) = (0, 0);
    for (txg, object) in logs {
        let (mut own_valid, mut own_all) = (0, 0);
        let map = SpaceMap::open(pool.mos(), object).await?;
        map.for_each(Geometry::LOG, |item| {
            if let Item::Entry(entry) = item {
                own_all += 1;
                let vdev = vdevs.iter().find(|vdev| Some(vdev.id as u32) == entry.vdev);
                let metaslab = vdev.and_then(|vdev| {
                    vdev.metaslabs.get((entry.offset >> vdev.metaslab_shift) as usize)
                });
                own_valid += u64::from(metaslab.is_some_and(|m| txg >= m.unflushed_txg));
            }
            Ok(())
        })
        .await?;
        out!(io, "{} - txg {txg}", line(own_valid, own_all))?;
        (valid, all) = (valid + own_valid, all + own_all);
    }
    out!(io, "{} - total\n", line(valid, all))
}

/// Runs `-M`: histograms of vdevs and of the normal class; with a second M, of special vdevs.
pub(super) async fn run_groups(
    pool: &Arc<Pool>,
    options: &Options,
    io: &mut Io<'_>,
) -> CommandResult {
    let space = pool.space().await?;
    let mut all = [0_u64; 64];
    let percent = |figure: Option<u64>| match figure {
        Some(figure) => format!("{figure:3}%"),
        None => "  -".to_owned(),
    };
    for vdev in &space.vdevs {
        let is_shown = match vdev.class {
            AllocationClass::Normal => vdev.is_concrete,
            AllocationClass::Special => options.count('M') > 1,
            _ => false,
        };
        if !is_shown {
            continue;
        }
        let mut own = [0_u64; 64];
        for metaslab in &vdev.metaslabs {
            let shift = usize::from(spacemaps::geometry(pool, vdev, metaslab).shift);
            let histogram = metaslab.header.as_ref().and_then(|header| header.histogram);
            let histogram = histogram.unwrap_or([0; HISTOGRAM_BUCKETS]);
            for (slot, count) in own[shift..].iter_mut().zip(histogram) {
                *slot += count;
            }
        }
        let (id, count) = (vdev.id, vdev.metaslabs.len());
        let figure = percent(vdev.fragmentation);
        out!(io, "\tvdev {id:10}\t\tmetaslabs{count:5}\t\tfragmentation{figure}")?;
        text::histogram(io, &own, 0)?;
        if vdev.class == AllocationClass::Normal {
            all.iter_mut().zip(own).for_each(|(sum, count)| *sum += count);
        }
    }
    out!(io, "\tpool {}\tfragmentation\t{}", pool.name(), percent(space.fragmentation))?;
    text::histogram(io, &all, 0)
}
