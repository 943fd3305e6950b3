//! The lines of vdevs in `zpool list -v`: fixed columns, independent of `-o`.
//!
//! Top-level vdevs have figures; the devices below them only have size and state. Sections and
//! their order are those of `zpool status`, with other titles for spares. Columns: spec 05 §6.6.

use std::fmt::Write as _;

use cenote_ondisk::config::VdevKind;
use cenote_pool::AllocationClass;
use cenote_pool::status::{AuxReport, PoolStatus, VdevReport, state_name};
use serde_json::{Map, Value};

use super::config_table::{SECTIONS, aux_state, section, vdev_width};
use super::json::Form;
use super::names::Names;
use crate::nicenum;

/// Options of a listing.
#[derive(Debug, Clone)]
pub(super) struct Options {
    /// How vdevs are named.
    pub(super) names: Names,
    /// `-H`
    pub(super) is_scripted: bool,
    /// `-p`
    pub(super) is_literal: bool,
    /// `-v`
    pub(super) has_vdevs: bool,
}

/// Columns after the name: key in JSON output, and width.
const COLUMNS: [(&str, usize); 9] = [
    ("size", 5),
    ("allocated", 5),
    ("free", 5),
    ("checkpoint", 7),
    ("expandsize", 8),
    ("fragmentation", 5),
    ("capacity", 5),
    ("dedupratio", 5),
    ("health", 8),
];

/// Returns the width of the names of a pool's vdevs.
pub(super) fn width(status: &PoolStatus, names: &Names) -> usize {
    let aux = status.caches.iter().chain(&status.spares).map(|aux| aux.name.chars().count() + 2);
    aux.max().unwrap_or(0).max(vdev_width(&status.root, 0, names))
}

/// Returns all lines below that of the pool.
pub(super) fn rows(status: &PoolStatus, width: usize, options: &Options) -> String {
    let mut text = String::new();
    for vdev in section(&status.root, AllocationClass::Normal) {
        below(vdev, 2, width, options, &mut text);
    }
    for (class, title) in SECTIONS {
        let vdevs = section(&status.root, class);
        if !vdevs.is_empty() {
            text.push_str(&heading(title, width));
        }
        for vdev in vdevs {
            below(vdev, 2, width, options, &mut text);
        }
    }
    for (title, devices) in [("cache", &status.caches), ("spare", &status.spares)] {
        if !devices.is_empty() {
            text.push_str(&heading(title, width));
        }
        for device in devices {
            let name = if options.names.by_guid {
                device.guid.to_string()
            } else {
                options.names.device(&device.name, false, false)
            };
            let cells = aux_cells(device, title == "spare", options.is_literal);
            text.push_str(&line(&name, 2, width, &cells, options));
        }
    }
    text
}

fn heading(title: &str, width: usize) -> String {
    let rest = "      -      -      -        -         -      -      -      -         -";
    format!("{title:width$}{rest}\n")
}

fn below(vdev: &VdevReport, depth: usize, width: usize, options: &Options, text: &mut String) {
    let cells = cells(vdev, options.is_literal);
    text.push_str(&line(&options.names.vdev(vdev), depth, width, &cells, options));
    for child in &vdev.children {
        below(child, depth + 2, width, options, text);
    }
}

fn line(name: &str, depth: usize, width: usize, cells: &[String; 9], options: &Options) -> String {
    if options.is_scripted {
        return format!("\t{name}\t{}\n", cells.join("\t"));
    }
    let mut text = format!("{:depth$}{name:1$}", "", width.saturating_sub(depth));
    for (cell, (_, width)) in cells.iter().zip(COLUMNS) {
        let _ = write!(text, "  {cell:>width$}");
    }
    text + "\n"
}

fn number(number: u64, is_literal: bool) -> String {
    if is_literal { number.to_string() } else { nicenum::bytes(number) }
}

fn dash() -> String {
    "-".to_owned()
}

/// Formats a percentage of whole numbers, with as many decimals as fit.
fn percent(part: u64, whole: u64, is_literal: bool) -> String {
    if is_literal {
        return (u128::from(part) * 100).checked_div(u128::from(whole)).unwrap_or(0).to_string();
    }
    let percent = if whole == 0 { 0.0 } else { part as f64 * 100.0 / whole as f64 };
    match percent {
        p if p < 10.0 => format!("{p:.2}%"),
        p if p < 100.0 => format!("{p:.1}%"),
        p => format!("{p:.0}%"),
    }
}

fn cells(vdev: &VdevReport, is_literal: bool) -> [String; 9] {
    let mut cells: [String; 9] = std::array::from_fn(|_| dash());
    cells[8].clear();
    cells[8].push_str(state_name(vdev.state, vdev.aux));
    if let Some(device) = vdev.device {
        cells[0] = number(device.size, is_literal);
        if device.unused != 0 {
            cells[4] = number(device.unused, is_literal);
        }
    }
    let Some(figures) = vdev.figures.as_ref().filter(|figures| figures.is_concrete) else {
        return cells;
    };
    if vdev.device.is_none() {
        cells[0] = number(figures.size, is_literal);
    }
    cells[1] = number(figures.allocated, is_literal);
    cells[2] = number(figures.free(), is_literal);
    if figures.checkpoint != 0 {
        cells[3] = number(figures.checkpoint, is_literal);
    }
    if figures.expandable != 0 {
        cells[4] = number(figures.expandable, is_literal);
    }
    if let Some(percent) = figures.fragmentation {
        cells[5] = if is_literal { percent.to_string() } else { format!("{percent}%") };
    }
    cells[6] = percent(figures.allocated, figures.size, is_literal);
    cells
}

/// Returns the cells of a cache or spare device. A cache device is empty after an import, and
/// nothing writes to it.
fn aux_cells(device: &AuxReport, is_spare: bool, is_literal: bool) -> [String; 9] {
    let mut cells: [String; 9] = std::array::from_fn(|_| dash());
    cells[8].clear();
    cells[8].push_str(aux_state(is_spare, device));
    let Some(size) = device.device_size else { return cells };
    cells[0] = number(size, is_literal);
    if !is_spare {
        cells[1] = number(0, is_literal);
        cells[2] = number(size, is_literal);
        cells[5] = if is_literal { "0".to_owned() } else { "0%".to_owned() };
        cells[6] = percent(0, size, is_literal);
    }
    cells
}

/// Returns the vdevs of a pool as JSON.
pub(super) fn json(status: &PoolStatus, form: Form, is_literal: bool) -> Map<String, Value> {
    let tops = status.root.children.iter().filter(|top| top.kind != VdevKind::Hole);
    tops.map(|top| (top.name.clone(), vdev_json(top, form, is_literal))).collect()
}

fn vdev_json(vdev: &VdevReport, form: Form, is_literal: bool) -> Value {
    let mut map = Map::new();
    map.insert("name".into(), vdev.name.clone().into());
    map.insert("vdev_type".into(), vdev.kind.name().into());
    map.insert("guid".into(), form.number(vdev.guid));
    map.insert("state".into(), state_name(vdev.state, vdev.aux).into());
    let cells = cells(vdev, is_literal);
    let properties: Map<_, _> = COLUMNS
        .iter()
        .zip(&cells)
        .map(|((key, _), cell)| {
            let mut property = Map::new();
            property.insert("value".into(), form.value(cell));
            ((*key).to_owned(), property.into())
        })
        .collect();
    map.insert("properties".into(), properties.into());
    if !vdev.children.is_empty() {
        let children = vdev.children.iter();
        let children: Map<_, _> = children
            .map(|child| (child.name.clone(), vdev_json(child, form, is_literal)))
            .collect();
        map.insert("vdevs".into(), children.into());
    }
    map.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_keep_their_width() {
        assert_eq!(percent(13, 10_000, false), "0.13%");
        assert_eq!(percent(125, 1000, false), "12.5%");
        assert_eq!(percent(1, 1, false), "100%");
        assert_eq!(percent(467, 10_000, true), "4");
        assert_eq!(percent(1, 0, true), "0");
    }

    #[test]
    fn headings_are_one_line() {
        assert_eq!(&heading("logs", 6)[..13], "logs        -");
    }
}
