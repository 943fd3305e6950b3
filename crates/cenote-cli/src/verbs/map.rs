//! `cenote map`: shows where a pool's space is used, a cell for each metaslab.
//!
//! ```text
//!   mirror-0, normal: 128 metaslabs of 16G, 43% used, 12% fragmented
//!        0 ::::....    ....
//!       16 @@@@%%##**++==--
//! ```
//!
//! Figures are those of a committed txg, log space maps included: of the daemon's pool, or with
//! `-d` of a pool that is not imported, which is only read. A metaslab's free ranges are printed
//! with `-m`. A vdev with more than [`CELLS_MAX`] metaslabs is shown with several in a cell.

use std::fmt::Write as _;

use cenote_pool::accounting::{MetaslabFigures, VdevFigures};
use cenote_pool::spacemaps::{self, Unflushed};
use cenote_pool::status::vdev_name;
use cenote_pool::{AllocationClass, Pool};
use cenote_rt::Error;
use serde_json::{Value, json};

use crate::getopt::{self, Long, Parsed};
use crate::host::Session;
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum::bytes;
use crate::out;
use crate::source::{self, Source};

/// The usage text.
const USAGE: &str = "\
usage: cenote map [-f] [--color] [-m [VDEV:]METASLAB] [--json] [-d DIR|DEVICE]... POOL
  Shows where space is used: a cell for each metaslab, from ' ' for none of it to '@' for all.
  Without -d the pool is one of the daemon's; with it, one that is not imported.
  -f       shows how fragmented free space is, instead
  --color  uses colours (24 bits), two rows of cells in a line: dark is used or fragmented
  -m       prints the free ranges of a metaslab: offset and length, in bytes
  --json   prints every figure
";

/// Cells in a row for vdevs with at most [`NARROW_CELLS`] cells, and the multiple for wider rows.
const NARROW: usize = 16;
const NARROW_CELLS: usize = 256;
const WIDE_STEP: usize = 8;
/// Most cells of a vdev.
const CELLS_MAX: usize = 64 * 64;
/// Characters for tenths, from nothing to everything.
const SHADES: [char; 10] = [' ', '.', ':', '-', '=', '+', '*', '#', '%', '@'];
/// Shown for a metaslab whose fragmentation is unknown.
const UNKNOWN: char = '?';
const UNKNOWN_COLOUR: [u8; 3] = [128; 3];
/// Numbers of the terminal's layers in codes that set colours.
const FOREGROUND: u8 = 38;
const BACKGROUND: u8 = 48;

const LETTERS: &str = "fm:";
const LONGS: [Long; 2] = [Long::flag("color", 'C'), Long::flag("json", 'J')];

/// The figure that is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    Used,
    Fragmentation,
}

/// Runs the verb on a pool of this process, or of the session's daemon.
pub(crate) fn run(session: Option<&Session>, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let (parsed, source) = match session {
        // A client of the daemon names no files that the daemon would read for it.
        Some(session) => {
            let parsed = getopt::parse(args, LETTERS, &LONGS)?;
            (parsed, Source { session: Some(session.clone()), ..Source::default() })
        }
        None => match super::parse(args, (LETTERS, &LONGS), USAGE, io)? {
            Some(parsed) => parsed,
            None => return Ok(()),
        },
    };
    let [name] = &parsed.operands[..] else {
        let is_missing = parsed.operands.is_empty();
        let message = if is_missing { "missing pool name" } else { "too many arguments" };
        return Err(super::wrong_use(message, USAGE));
    };
    source::run(async {
        let pool = source.pool(name).await?;
        show(&pool, &parsed, io).await
    })
}

async fn show(pool: &Pool, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let space = pool.space().await?;
    if let Some(wanted) = parsed.value('m') {
        let (vdev, number) = chosen(&space.vdevs, wanted)?;
        return print_ranges(pool, vdev, number, parsed.has('J'), io).await;
    }
    if parsed.has('J') {
        return Ok(writeln!(io.out, "{:#}", to_json(pool, &space.vdevs, true))?);
    }
    let figure = if parsed.has('f') { Figure::Fragmentation } else { Figure::Used };
    out!(io, "pool {}, txg {}", pool.name(), pool.uberblock().txg)?;
    for (vdev, name) in concrete(pool, &space.vdevs) {
        let text = picture(vdev, &name, figure, parsed.has('C'));
        write!(io.out, "{text}")?;
    }
    Ok(())
}

/// Returns the vdevs that have space, with their names.
fn concrete<'a>(
    pool: &Pool,
    vdevs: &'a [VdevFigures],
) -> impl Iterator<Item = (&'a VdevFigures, String)> {
    let named = vdevs.iter().zip(&pool.config().vdev_tree.children);
    named
        .filter(|(vdev, _)| vdev.is_concrete)
        .map(|(vdev, config)| (vdev, vdev_name(config)))
        .collect::<Vec<_>>()
        .into_iter()
}

fn class_name(class: AllocationClass) -> &'static str {
    match class {
        AllocationClass::Normal => "normal",
        AllocationClass::Special => "special",
        AllocationClass::Dedup => "dedup",
        AllocationClass::Log => "log",
    }
}

/// Returns the metaslab that `[VDEV:]METASLAB` names; the vdev may be left out if there is one.
fn chosen<'a>(vdevs: &'a [VdevFigures], wanted: &str) -> CommandResult<(&'a VdevFigures, usize)> {
    let bad = |why: &str| Exit::failed(format!("cannot show metaslab '{wanted}': {why}"));
    let number = |text: &str| text.parse::<usize>().map_err(|_| bad("not a number"));
    let mut concrete = vdevs.iter().filter(|vdev| vdev.is_concrete);
    let (vdev, metaslab) = match wanted.split_once(':') {
        Some((vdev, metaslab)) => {
            let id = number(vdev)? as u64;
            (concrete.find(|vdev| vdev.id == id), number(metaslab)?)
        }
        None => match (concrete.next(), concrete.next()) {
            (_, Some(_)) => return Err(bad("the pool has several vdevs; give VDEV:METASLAB")),
            (vdev, None) => (vdev, number(wanted)?),
        },
    };
    let vdev = vdev.ok_or_else(|| bad("no such vdev"))?;
    if metaslab >= vdev.metaslabs.len() {
        return Err(bad(&format!("the vdev has {}", vdev.metaslabs.len())));
    }
    Ok((vdev, metaslab))
}

/// Returns the free ranges of a metaslab, logs included.
async fn free_ranges(
    pool: &Pool,
    vdev: &VdevFigures,
    number: usize,
) -> Result<Vec<std::ops::Range<u64>>, Error> {
    let (id, wanted) = (vdev.id, number as u64);
    let vdevs = std::slice::from_ref(vdev);
    let unflushed =
        Unflushed::load(pool, vdevs, |of, metaslab| (of, metaslab) == (id, wanted)).await?;
    let (allocated, _) = spacemaps::allocated(pool, vdev, wanted, &unflushed).await?;
    let metaslab = &vdev.metaslabs[number];
    let mut free = spacemaps::RangeSet::default();
    free.add(metaslab.start..metaslab.start + metaslab.size);
    for range in allocated.iter() {
        free.remove(range);
    }
    Ok(free.iter().collect())
}

async fn print_ranges(
    pool: &Pool,
    vdev: &VdevFigures,
    number: usize,
    is_json: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let ranges = free_ranges(pool, vdev, number).await?;
    if is_json {
        let pairs: Vec<_> =
            ranges.iter().map(|range| json!([range.start, range.end - range.start])).collect();
        return Ok(writeln!(io.out, "{}", Value::from(pairs))?);
    }
    for range in ranges {
        out!(io, "{}\t{}", range.start, range.end - range.start)?;
    }
    Ok(())
}

/// Returns the figures of all metaslabs as JSON, without their histograms; `None` if there are more
/// than `cells_max`.
///
/// # Errors
/// Errors of reading the space maps.
pub async fn document(pool: &Pool, cells_max: usize) -> Result<Option<String>, Error> {
    let space = pool.space().await?;
    let cells: usize = space.vdevs.iter().map(|vdev| vdev.metaslabs.len()).sum();
    Ok((cells <= cells_max).then(|| to_json(pool, &space.vdevs, false).to_string()))
}

/// Returns the figures of all metaslabs.
fn to_json(pool: &Pool, vdevs: &[VdevFigures], has_histograms: bool) -> Value {
    let cell = |(number, metaslab): (usize, &MetaslabFigures)| {
        let mut cell = json!({
            "id": number,
            "offset": metaslab.start,
            "size": metaslab.size,
            "free": metaslab.size.saturating_sub(metaslab.allocated),
            "frag": metaslab.fragmentation,
        });
        if has_histograms {
            cell["hist"] = json!(metaslab.header.as_ref().and_then(|header| header.histogram));
        }
        cell
    };
    let vdev = |(vdev, name): (&VdevFigures, String)| {
        json!({
            "id": vdev.id,
            "name": name,
            "class": class_name(vdev.class),
            "ms_shift": vdev.metaslab_shift,
            "size": vdev.size,
            "allocated": vdev.allocated,
            "frag": vdev.fragmentation,
            "log": vdev.embedded_log,
            "cells": vdev.metaslabs.iter().enumerate().map(cell).collect::<Vec<_>>(),
        })
    };
    let vdevs: Vec<_> = concrete(pool, vdevs).map(vdev).collect();
    json!({ "pool": pool.name(), "txg": pool.uberblock().txg, "vdevs": vdevs })
}

/// Returns the cells of a vdev, each a part from 0 to 1, or `None` if unknown; and how many
/// metaslabs a cell stands for.
fn cells(vdev: &VdevFigures, figure: Figure) -> (Vec<Option<f64>>, usize) {
    let each = vdev.metaslabs.len().div_ceil(CELLS_MAX).max(1);
    let part = |metaslabs: &[MetaslabFigures]| {
        let size: u64 = metaslabs.iter().map(|metaslab| metaslab.size).sum();
        match figure {
            Figure::Used => {
                let used: u64 = metaslabs.iter().map(|metaslab| metaslab.allocated).sum();
                Some(used as f64 / size.max(1) as f64)
            }
            Figure::Fragmentation => {
                let known: Vec<_> =
                    metaslabs.iter().filter_map(|metaslab| metaslab.fragmentation).collect();
                let sum: u64 = known.iter().sum();
                (!known.is_empty()).then(|| sum as f64 / known.len() as f64 / 100.0)
            }
        }
    };
    (vdev.metaslabs.chunks(each).map(part).collect(), each)
}

/// Returns the number of cells in a row.
fn row_of(cells: usize) -> usize {
    if cells <= NARROW_CELLS {
        return NARROW;
    }
    let root = (cells as f64).sqrt() as usize;
    root.next_multiple_of(WIDE_STEP)
}

/// Draws a vdev.
fn picture(vdev: &VdevFigures, name: &str, figure: Figure, has_colours: bool) -> String {
    let (cells, each) = cells(vdev, figure);
    let percent = |part: u64, whole: u64| (part * 100).checked_div(whole).unwrap_or(0);
    let fragmentation = match vdev.fragmentation {
        Some(percent) => format!(", {percent}% fragmented"),
        None => String::new(),
    };
    let mut text = format!(
        "{name}, {}: {} metaslabs of {}, {}% used{fragmentation}",
        class_name(vdev.class),
        vdev.metaslabs.len(),
        bytes(1_u64.checked_shl(vdev.metaslab_shift).unwrap_or(0)),
        percent(vdev.allocated, vdev.size),
    );
    if each > 1 {
        let _ = write!(text, ", {each} in a cell");
    }
    if let Some(number) = vdev.embedded_log {
        let _ = write!(text, ", {number} for the intent log");
    }
    text.push('\n');
    let row = row_of(cells.len());
    let rows: Vec<_> = cells.chunks(row).collect();
    if has_colours {
        for (index, pair) in rows.chunks(2).enumerate() {
            let _ = write!(text, "{:8} ", index * 2 * row * each);
            for column in 0..pair[0].len() {
                let below = match pair.get(1).and_then(|row| row.get(column)) {
                    Some(part) => colour_code(*part, BACKGROUND),
                    None => "\x1b[49m".to_owned(),
                };
                text.push_str(&colour_code(pair[0][column], FOREGROUND));
                text.push_str(&below);
                text.push('\u{2580}');
            }
            text.push_str("\x1b[0m\n");
        }
        return text;
    }
    for (index, row_cells) in rows.iter().enumerate() {
        let shades: String = row_cells.iter().copied().map(shade).collect();
        let _ = writeln!(text, "{:8} {}", index * row * each, shades);
    }
    text
}

/// Returns the character for a part.
fn shade(part: Option<f64>) -> char {
    let Some(part) = part else { return UNKNOWN };
    // Nothing and everything are told apart from next to nothing and next to everything.
    let last = SHADES.len() - 1;
    let index = match part {
        0.0 => 0,
        part if part >= 1.0 => last,
        part => ((part * SHADES.len() as f64) as usize).clamp(1, last - 1),
    };
    SHADES[index]
}

/// Returns the code that sets the colour of a layer for a part.
fn colour_code(part: Option<f64>, layer: u8) -> String {
    let [red, green, blue] =
        part.map_or(UNKNOWN_COLOUR, |part| cenote_lab::picture::colour(1.0 - part));
    format!("\x1b[{layer};2;{red};{green};{blue}m")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(cells: &[(u64, Option<u64>)]) -> VdevFigures {
        let metaslab =
            |(number, &(allocated, fragmentation)): (usize, &(u64, Option<u64>))| MetaslabFigures {
                start: number as u64 * 100,
                size: 100,
                space_map: 0,
                header: None,
                unflushed_txg: 0,
                allocated,
                fragmentation,
            };
        let metaslabs: Vec<_> = cells.iter().enumerate().map(metaslab).collect();
        VdevFigures {
            id: 0,
            guid: 1,
            class: AllocationClass::Normal,
            is_allocating: true,
            is_concrete: true,
            size: 100 * cells.len() as u64,
            allocated: cells.iter().map(|cell| cell.0).sum(),
            checkpoint: 0,
            expandable: 0,
            fragmentation: Some(7),
            ratio: 512,
            metaslab_shift: 29,
            metaslabs,
            embedded_log: None,
            damage: None,
        }
    }

    #[test]
    fn cells_show_nothing_something_and_everything() {
        let cells: Vec<_> = (0..=10).map(|tenth| (tenth * 10, Some(100 - tenth * 10))).collect();
        let used = picture(&vdev(&cells), "disk", Figure::Used, false);
        let lines: Vec<_> = used.lines().collect();
        assert_eq!(lines[0], "disk, normal: 11 metaslabs of 512M, 50% used, 7% fragmented");
        assert_eq!(lines[1], "       0  .:-=+*#%%@");
        let free = picture(&vdev(&cells), "disk", Figure::Fragmentation, false);
        assert_eq!(free.lines().nth(1), Some("       0 @%%#*+=-:. "));
        let unknown = picture(&vdev(&[(0, None), (1, Some(0))]), "d", Figure::Fragmentation, false);
        assert!(unknown.ends_with("       0 ? \n"), "{unknown}");
        assert_eq!([shade(Some(0.001)), shade(Some(0.999))], ['.', '%']);
    }

    #[test]
    fn rows_grow_with_the_number_of_metaslabs() {
        assert_eq!([16, 256, 257, 1024, 4096].map(row_of), [16, 16, 16, 32, 64]);
        let many = vdev(&vec![(50, None); 10_000]);
        let text = picture(&many, "disk", Figure::Used, false);
        assert!(text.contains("3 in a cell") && text.lines().count() < 70, "{text}");
        let coloured = picture(&many, "disk", Figure::Used, true);
        assert!(coloured.lines().count() < 36 && coloured.contains('\u{2580}'));
    }

    #[test]
    fn metaslabs_are_chosen_by_vdev_and_number() {
        let one = [vdev(&[(0, None), (0, None)])];
        let two = [vdev(&[(0, None)]), VdevFigures { id: 3, ..vdev(&[(0, None)]) }];
        assert_eq!(chosen(&one, "1").unwrap().1, 1);
        assert_eq!(chosen(&two, "3:0").unwrap().0.id, 3);
        for (vdevs, wanted) in
            [(&one[..], "2"), (&one, "1:0"), (&two, "0"), (&two, "3:1"), (&one, "x"), (&one, "-1")]
        {
            assert!(chosen(vdevs, wanted).is_err(), "{wanted}");
        }
    }
}
