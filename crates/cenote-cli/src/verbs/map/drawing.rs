//! The picture of a pool's metaslabs as charts of the laboratory: free space and fragmentation.
//!
//! A vdev has a map in each chart, with a cell for each metaslab. Pictures are bounded: a pool with
//! more than [`CELLS_MAX`] metaslabs has several in a cell, which the legend says, and a pool with
//! more than [`MAPS_MAX`] vdevs has one map for each allocation class.

use cenote_lab::picture::Page;
use cenote_lab::report::{CellMap, Chart, rounded};
use cenote_pool::AllocationClass;
use cenote_pool::accounting::{MetaslabFigures, VdevFigures};

use super::{CELLS_MAX, Figure, class_name, part, row_of, summary};

/// Most maps of a chart, and most cells of all of them.
const MAPS_MAX: usize = 64;
const CHART_CELLS_MAX: usize = 2 * CELLS_MAX;
/// Most characters of the heading.
const HEADING_MAX: usize = 90;
/// Width of a chart, the gap between maps, and the width of a character of their names, in units of
/// the picture.
const ROOM: usize = 912;
const GAP: usize = 14;
const CHARACTER: usize = 7;

/// A map: its name, a longer one, its figures, and its metaslabs.
struct Group<'a> {
    name: String,
    long_name: Option<String>,
    percent_used: u64,
    fragmentation: Option<u64>,
    metaslabs: Vec<&'a MetaslabFigures>,
}

/// Returns the charts of a pool's vdevs, and the number of metaslabs in a cell.
pub(super) fn charts(vdevs: &[(&VdevFigures, String)]) -> (Vec<Chart>, usize) {
    let groups =
        if vdevs.len() <= MAPS_MAX { groups_of_vdevs(vdevs) } else { groups_of_classes(vdevs) };
    let most = groups.iter().map(|group| group.metaslabs.len()).max().unwrap_or(0);
    let all: usize = groups.iter().map(|group| group.metaslabs.len()).sum();
    // The last cell of each map may have fewer metaslabs than the others.
    let each = all.div_ceil(CHART_CELLS_MAX - MAPS_MAX).max(most.div_ceil(CELLS_MAX)).max(1);
    let across = match groups.len() {
        0..=2 => 2,
        3 => 3,
        4..=16 => 4,
        _ => 8,
    };
    let chart = |title: &str, figure: Figure, of: &str, range: (f64, f64)| Chart::Maps {
        title: title.to_owned(),
        width: row_of(most.div_ceil(each)),
        across,
        maps: groups.iter().map(|group| map(group, figure, each, across)).collect(),
        figure: match each {
            1 => of.to_owned(),
            _ => format!("{of}, {each} metaslabs in a cell"),
        },
        range,
    };
    let charts = vec![
        chart("Free space of each metaslab", Figure::Used, "% free", (0.0, 100.0)),
        // Dark is bad in both charts.
        chart(
            "Fragmentation of its free space",
            Figure::Fragmentation,
            "% fragmented",
            (100.0, 0.0),
        ),
    ];
    (charts, each)
}

/// Returns the page with the charts of a pool.
pub(super) fn page<'c>(pool: &str, txg: u64, charts: &'c [Chart], each: usize) -> Page<'c> {
    let name = shortened(pool, HEADING_MAX);
    let mut footer = match each {
        1 => "A cell is a metaslab; ".to_owned(),
        _ => format!("A cell is {each} metaslabs; "),
    };
    footer.push_str(
        "they are in the order of their addresses, row by row. Crossed out: fragmentation unknown.",
    );
    Page { heading: format!("pool {name}, txg {txg}"), charts, footer }
}

fn groups_of_vdevs<'a>(vdevs: &[(&'a VdevFigures, String)]) -> Vec<Group<'a>> {
    let group = |(vdev, name): &(&'a VdevFigures, String)| Group {
        name: name.clone(),
        long_name: Some(summary(vdev, name)),
        percent_used: percent_used(vdev.allocated, vdev.size),
        fragmentation: vdev.fragmentation,
        metaslabs: vdev.metaslabs.iter().collect(),
    };
    vdevs.iter().map(group).collect()
}

fn groups_of_classes<'a>(vdevs: &[(&'a VdevFigures, String)]) -> Vec<Group<'a>> {
    use AllocationClass::{Dedup, Log, Normal, Special};
    let group = |class: AllocationClass| {
        let own: Vec<_> =
            vdevs.iter().map(|(vdev, _)| *vdev).filter(|vdev| vdev.class == class).collect();
        let sum = |of: fn(&VdevFigures) -> u64| {
            own.iter().fold(0_u64, |sum, vdev| sum.saturating_add(of(vdev)))
        };
        Group {
            name: format!("{} {} vdevs", own.len(), class_name(class)),
            long_name: None,
            percent_used: percent_used(sum(|vdev| vdev.allocated), sum(|vdev| vdev.size)),
            fragmentation: None,
            metaslabs: own.into_iter().flat_map(|vdev| &vdev.metaslabs).collect(),
        }
    };
    let groups = [Normal, Special, Dedup, Log].into_iter().map(group);
    groups.filter(|group| !group.metaslabs.is_empty()).collect()
}

pub(super) fn percent_used(allocated: u64, size: u64) -> u64 {
    let percent = u128::from(allocated) * 100 / u128::from(size.max(1));
    u64::try_from(percent).unwrap_or(u64::MAX)
}

fn map(group: &Group<'_>, figure: Figure, each: usize, across: usize) -> CellMap {
    let percent = |metaslabs: &[&MetaslabFigures]| {
        let part = part(metaslabs, figure)?;
        let shown = if figure == Figure::Used { 1.0 - part } else { part };
        Some(rounded(shown * 100.0, 1))
    };
    let room = (ROOM / across - GAP) / CHARACTER;
    let is_fitting = |name: &String| name.chars().count() <= room;
    let percent_of = match figure {
        Figure::Used => Some(format!(": {}% used", group.percent_used)),
        Figure::Fragmentation => {
            group.fragmentation.map(|percent| format!(": {percent}% fragmented"))
        }
    };
    let percent_of = percent_of.unwrap_or_default();
    let short = || {
        let left = room.saturating_sub(percent_of.len());
        format!("{}{percent_of}", shortened(&group.name, left))
    };
    CellMap {
        name: group.long_name.clone().filter(is_fitting).unwrap_or_else(short),
        cells: group.metaslabs.chunks(each).map(percent).collect(),
    }
}

/// Returns a text with at most this many characters: the end of a longer one.
fn shortened(text: &str, most: usize) -> String {
    const MARK: &str = "...";
    let count = text.chars().count();
    if count <= most {
        return text.to_owned();
    }
    let tail: String = text.chars().skip(count - most.saturating_sub(MARK.len())).collect();
    format!("{MARK}{tail}")
}
