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
//!
//! `--svg` and `--png` write the same cells as a picture to a file. The caller's process writes the
//! file: a daemon only returns the picture, to `-`.

mod drawing;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::path::PathBuf;

use cenote_lab::picture::Theme;
use cenote_pool::accounting::{MetaslabFigures, VdevFigures};
use cenote_pool::spacemaps::{self, Unflushed};
use cenote_pool::status::vdev_name;
use cenote_pool::{AllocationClass, Pool};
use cenote_rt::Error;
use serde_json::{Value, json};

use crate::argument;
use crate::getopt::{self, Long, Parsed};
use crate::host::Session;
use crate::io::{CommandResult, Exit, Io, words};
use crate::nicenum::bytes;
use crate::out;
use crate::source::{self, Source};

/// The usage text.
const USAGE: &str = "\
usage: cenote map [-f] [--color] [-m [VDEV:]METASLAB] [--json] [-d DIR|DEVICE]... POOL
       cenote map --svg FILE | --png FILE [--dark] [-d DIR|DEVICE]... POOL
  Shows where space is used: a cell for each metaslab, from ' ' for none of it to '@' for all.
  Without -d the pool is one of the daemon's; with it, one that is not imported.
  -f       shows how fragmented free space is, instead
  --color  uses colours (24 bits), two rows of cells in a line: dark is used or fragmented
  -m       prints the free ranges of a metaslab: offset and length, in bytes
  --json   prints every figure
  --svg    writes a picture of free space and fragmentation to FILE, - for standard output;
           --png: as pixels, on a dark background with --dark
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
const LONGS: [Long; 5] = [
    Long::flag("color", 'C'),
    Long::flag("json", 'J'),
    Long::with_argument("svg", SVG),
    Long::with_argument("png", PNG),
    Long::flag("dark", 'D'),
];
const SVG: char = 'S';
const PNG: char = 'P';
/// The name of standard output as a file.
const STDOUT: &str = "-";

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
    check_forms(&parsed)?;
    // The daemon has the rights of its own user, and writes no files for others.
    if session.is_some() && picture_file(&parsed).is_some_and(|file| file != STDOUT) {
        return Err(Exit::failed("the daemon writes pictures to standard output only"));
    }
    source::run(async {
        let pool = source.pool(name).await?;
        show(&pool, &parsed, io).await
    })
}

fn picture_file(parsed: &Parsed) -> Option<&str> {
    parsed.value(SVG).or_else(|| parsed.value(PNG))
}

/// Checks that one form of output was requested.
fn check_forms(parsed: &Parsed) -> CommandResult {
    let is_picture = parsed.has(SVG) || parsed.has(PNG);
    let forms = [parsed.has('J') || parsed.has('m'), parsed.has(SVG), parsed.has(PNG)];
    let count = forms.into_iter().filter(|is_given| *is_given).count();
    let is_terminals = parsed.has('f') || parsed.has('C');
    let wrong = if count > 1 {
        "--svg and --png exclude each other, --json and -m"
    } else if is_picture && is_terminals {
        "a picture shows free space and fragmentation in colours: -f and --color are for terminals"
    } else if parsed.has('D') && !parsed.has(PNG) {
        "--dark is for --png: the reader of an SVG chooses its background"
    } else {
        return Ok(());
    };
    Err(super::wrong_use(wrong, USAGE))
}

/// A command of a client of the daemon that writes a picture to a file.
#[derive(Debug, PartialEq, Eq)]
pub struct PictureCommand {
    /// The arguments for the daemon, which returns the picture.
    pub args: Vec<String>,
    /// The file.
    pub file: PathBuf,
}

/// Returns what a client has to do itself for `map` with these arguments; `None` if the daemon does
/// everything.
#[must_use]
pub fn picture_command(args: &[String]) -> Option<PictureCommand> {
    // The daemon refuses wrong arguments.
    let parsed = getopt::parse(args, LETTERS, &LONGS).ok()?;
    check_forms(&parsed).ok()?;
    let file = picture_file(&parsed).filter(|file| *file != STDOUT)?;
    let form = if parsed.has(SVG) { "--svg" } else { "--png" };
    let mut args = vec![form.to_owned(), STDOUT.to_owned()];
    args.extend(parsed.has('D').then(|| "--dark".to_owned()));
    args.push("--".to_owned());
    args.extend(parsed.operands.iter().cloned());
    Some(PictureCommand { args, file: argument::path(file) })
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
    if let Some(file) = picture_file(parsed) {
        return draw(pool, &space.vdevs, parsed, file, io);
    }
    let figure = if parsed.has('f') { Figure::Fragmentation } else { Figure::Used };
    out!(io, "pool {}, txg {}", pool.name(), pool.uberblock().txg)?;
    for (vdev, name) in concrete(pool, &space.vdevs) {
        let text = picture(vdev, &name, figure, parsed.has('C'));
        write!(io.out, "{text}")?;
    }
    Ok(())
}

/// Writes the picture to a file.
fn draw(
    pool: &Pool,
    vdevs: &[VdevFigures],
    parsed: &Parsed,
    file: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let named: Vec<_> = concrete(pool, vdevs).collect();
    let (charts, each) = drawing::charts(&named);
    let page = drawing::page(pool.name(), pool.uberblock().txg, &charts, each);
    let bytes = if parsed.has(SVG) {
        page.to_svg().into_bytes()
    } else {
        page.to_png(if parsed.has('D') { Theme::Dark } else { Theme::Light })
    };
    if file == STDOUT {
        return Ok(io.out.write_all(&bytes)?);
    }
    std::fs::write(argument::path(file), bytes)
        .map_err(|error| Exit::failed(format!("cannot write {file}: {}", words(&error))))
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
    let metaslabs: Vec<_> = vdev.metaslabs.iter().collect();
    (metaslabs.chunks(each).map(|cell| part(cell, figure)).collect(), each)
}

/// Returns the part of a cell with some metaslabs, from 0 to 1, or `None` if unknown.
fn part(metaslabs: &[&MetaslabFigures], figure: Figure) -> Option<f64> {
    let sum = |of: fn(&MetaslabFigures) -> u64| {
        metaslabs.iter().fold(0_u64, |sum, metaslab| sum.saturating_add(of(metaslab)))
    };
    match figure {
        Figure::Used => {
            let (used, size) = (sum(|metaslab| metaslab.allocated), sum(|metaslab| metaslab.size));
            Some(used as f64 / size.max(1) as f64)
        }
        Figure::Fragmentation => {
            let known: Vec<_> =
                metaslabs.iter().filter_map(|metaslab| metaslab.fragmentation).collect();
            let sum: u64 = known.iter().sum();
            (!known.is_empty()).then(|| sum as f64 / known.len() as f64 / 100.0)
        }
    }
}

/// Returns the number of cells in a row.
fn row_of(cells: usize) -> usize {
    if cells <= NARROW_CELLS {
        return NARROW;
    }
    let root = (cells as f64).sqrt() as usize;
    root.next_multiple_of(WIDE_STEP)
}

/// Returns a line about a vdev.
fn summary(vdev: &VdevFigures, name: &str) -> String {
    let fragmentation = match vdev.fragmentation {
        Some(percent) => format!(", {percent}% fragmented"),
        None => String::new(),
    };
    format!(
        "{name}, {}: {} metaslabs of {}, {}% used{fragmentation}",
        class_name(vdev.class),
        vdev.metaslabs.len(),
        bytes(1_u64.checked_shl(vdev.metaslab_shift).unwrap_or(0)),
        drawing::percent_used(vdev.allocated, vdev.size),
    )
}

/// Draws a vdev.
fn picture(vdev: &VdevFigures, name: &str, figure: Figure, has_colours: bool) -> String {
    let (cells, each) = cells(vdev, figure);
    let mut text = summary(vdev, name);
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
