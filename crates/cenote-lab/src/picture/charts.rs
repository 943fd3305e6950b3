//! Charts as scenes: titles, axes, legends and data.
//!
//! ```text
//!   | title                                 |
//!   | y | plot                              |  each chart, below each other
//!   |   | x                                 |
//!   | legend                                |
//!   | footer                                |
//! ```

use super::Page;
use super::colours::{cividis, is_light};
use super::scene::{Anchor, Paint, Scene};
use crate::report::{Axis, CellMap, Chart, Series, Strip};
use crate::text::number_text;

const WIDTH: f64 = 960.0;
const MARGIN: f64 = 24.0;
const TEXT: f64 = 12.0;
/// Width of a character of text of that size, for the layout.
const CHARACTER: f64 = 6.6;
const TITLE_HEIGHT: f64 = 30.0;
const LEGEND_HEIGHT: f64 = 26.0;
const PLOT_HEIGHT: f64 = 260.0;
/// Left edge of plots with numbers on the vertical axis.
const PLOT_LEFT: f64 = 84.0;
/// Characters of a line of the footer.
const FOOTER_WIDTH: usize = 130;

/// Returns the picture of a page.
pub(super) fn scene(page: &Page<'_>) -> Scene {
    let mut scene = Scene { width: WIDTH, height: 0.0, shapes: Vec::new() };
    let mut top = MARGIN;
    scene.text((MARGIN, top + 8.0), 18.0, Anchor::Start, Paint::Ink, &page.heading);
    top += 34.0;
    for chart in page.charts {
        top = draw(&mut scene, chart, top) + 22.0;
    }
    for line in lines_of(&page.footer) {
        scene.text((MARGIN, top + 4.0), 10.0, Anchor::Start, Paint::Muted, &line);
        top += 14.0;
    }
    scene.height = top + MARGIN / 2.0;
    scene
}

/// Breaks a text into lines.
fn lines_of(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("never empty");
        if !line.is_empty() && line.len() + 1 + word.len() > FOOTER_WIDTH {
            lines.push(word.to_owned());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

/// Draws a chart from `top` on, and returns its lower edge.
fn draw(scene: &mut Scene, chart: &Chart, top: f64) -> f64 {
    match chart {
        Chart::Grid { title, .. }
        | Chart::Lines { title, .. }
        | Chart::Bars { title, .. }
        | Chart::Maps { title, .. }
        | Chart::Strips { title, .. } => scene.title((MARGIN, top + 12.0), title),
    }
    let top = top + TITLE_HEIGHT;
    match chart {
        Chart::Grid { .. } => grid(scene, chart, top),
        Chart::Lines { x, y, series, marks, .. } => lines(scene, (x, y), series, marks, top),
        Chart::Bars { y, groups, series, .. } => bars(scene, y, groups, series, top),
        Chart::Maps { width, across, maps, figure, range, .. } => {
            let y = self::maps(scene, (*width, *across), maps, *range, top);
            scale(scene, figure, *range, 0, (MARGIN + 30.0, y));
            y + LEGEND_HEIGHT
        }
        Chart::Strips { x, classes, strips, .. } => self::strips(scene, x, classes, strips, top),
    }
}

fn grid(scene: &mut Scene, chart: &Chart, top: f64) -> f64 {
    let Chart::Grid { corner, columns, rows, cells, figure, range, decimals, .. } = chart else {
        return top;
    };
    let longest = rows.iter().map(String::len).max().unwrap_or(0).max(corner.len());
    let left = MARGIN + longest as f64 * CHARACTER + 8.0;
    let cell_width = ((WIDTH - MARGIN - left) / columns.len().max(1) as f64).min(46.0);
    let cell_height = 19.0;
    scene.text((MARGIN, top + 12.0), TEXT, Anchor::Start, Paint::Muted, corner);
    for (index, name) in columns.iter().enumerate() {
        let middle = left + (index as f64 + 0.5) * cell_width;
        scene.text((middle, top + 12.0), TEXT, Anchor::Middle, Paint::Muted, name);
    }
    let mut y = top + 18.0;
    for (name, row) in rows.iter().zip(cells) {
        scene.text((MARGIN, y + 14.0), TEXT, Anchor::Start, Paint::Ink, name);
        for (index, cell) in row.iter().enumerate() {
            let x = left + index as f64 * cell_width;
            let size = (cell_width - 1.5, cell_height - 1.5);
            let Some(value) = cell else {
                scene.line((x, y + size.1), (x + size.0, y), 1.0, Paint::Faint);
                continue;
            };
            let colour = cividis(part_of(*value, *range));
            scene.rect((x, y), size, Paint::Rgb(colour));
            let ink = if is_light(colour) { [20, 20, 20] } else { [245, 245, 245] };
            let at = (x + size.0 / 2.0, y + 13.0);
            let text = number_text(*value, *decimals);
            scene.text(at, 11.0, Anchor::Middle, Paint::Rgb(ink), &text);
        }
        y += cell_height;
    }
    scale(scene, figure, *range, *decimals, (left, y + 10.0));
    y + 10.0 + LEGEND_HEIGHT
}

/// Draws maps beside each other, and returns the lower edge.
fn maps(
    scene: &mut Scene,
    (width, across): (usize, usize),
    maps: &[CellMap],
    range: (f64, f64),
    top: f64,
) -> f64 {
    let room = (WIDTH - 2.0 * MARGIN) / across.max(1) as f64;
    let cell = ((room - 14.0) / width.max(1) as f64).floor().max(1.0);
    // Cells of two units have no room for gaps.
    let side = if cell > 2.0 { cell - 1.0 } else { cell };
    let mut y = top;
    for row in maps.chunks(across.max(1)) {
        let mut lowest: f64 = 0.0;
        for (index, map) in row.iter().enumerate() {
            let left = MARGIN + index as f64 * room;
            scene.text((left, y + 10.0), 11.0, Anchor::Start, Paint::Ink, &map.name);
            for (number, value) in map.cells.iter().enumerate() {
                let (line, column) = (number / width.max(1), number % width.max(1));
                let at = (left + column as f64 * cell, y + 16.0 + line as f64 * cell);
                let Some(value) = value else {
                    let end = (at.0 + side, at.1 + side);
                    scene.line((at.0, end.1), (end.0, at.1), 1.0, Paint::Faint);
                    continue;
                };
                let colour = cividis(part_of(*value, range));
                scene.rect(at, (side, side), Paint::Rgb(colour));
            }
            lowest = lowest.max(map.cells.len().div_ceil(width.max(1)) as f64 * cell);
        }
        y += 16.0 + lowest + 12.0;
    }
    y
}

/// Draws the legend of colours for figures.
fn scale(
    scene: &mut Scene,
    figure: &str,
    range: (f64, f64),
    decimals: u8,
    (left, top): (f64, f64),
) {
    let (steps, width) = (64, 3.0);
    for step in 0..steps {
        let colour = cividis(f64::from(step) / f64::from(steps - 1));
        scene.rect((left + f64::from(step) * width, top), (width + 0.5, 10.0), Paint::Rgb(colour));
    }
    let right = left + f64::from(steps) * width;
    let text = |value: f64| number_text(value, decimals);
    scene.text((left - 5.0, top + 10.0), TEXT, Anchor::End, Paint::Muted, &text(range.0));
    let name = format!("{} {figure}", text(range.1));
    scene.text((right + 5.0, top + 10.0), TEXT, Anchor::Start, Paint::Muted, &name);
}

/// Returns the place of a value between two others, of which the first may be the greater one.
fn part_of(value: f64, (first, last): (f64, f64)) -> f64 {
    let part = (value - first) / (last - first);
    if part.is_finite() { part } else { 0.0 }
}

/// An axis between two figures, on pixels.
#[derive(Debug, Clone, Copy)]
struct Ruler {
    is_log: bool,
    least: f64,
    most: f64,
    start: f64,
    end: f64,
}

impl Ruler {
    /// Returns a ruler that holds all figures. A linear one begins at zero unless figures are
    /// negative; a logarithmic one begins and ends at powers of ten.
    fn around(axis: &Axis, figures: impl Iterator<Item = f64>, (start, end): (f64, f64)) -> Self {
        let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
        for figure in figures.filter(|figure| figure.is_finite() && (!axis.is_log || *figure > 0.0))
        {
            (least, most) = (least.min(figure), most.max(figure));
        }
        if least > most {
            (least, most) = (1.0, 10.0);
        }
        if axis.is_log {
            (least, most) = (10_f64.powf(least.log10().floor()), 10_f64.powf(most.log10().ceil()));
            most = most.max(least * 10.0);
        } else {
            least = least.min(0.0);
            let step = step_of(least, most);
            most = ((most / step).ceil() * step).max(least + step);
        }
        Self { is_log: axis.is_log, least, most, start, end }
    }

    fn place(&self, figure: f64) -> f64 {
        let scaled = |value: f64| if self.is_log { value.max(1e-12).log10() } else { value };
        let part = part_of(scaled(figure), (scaled(self.least), scaled(self.most)));
        self.start + (self.end - self.start) * part.clamp(0.0, 1.0)
    }

    fn ticks(&self) -> Vec<f64> {
        if self.is_log {
            let (from, to) = (self.least.log10().round() as i32, self.most.log10().round() as i32);
            return (from..=to).map(|power| 10_f64.powi(power)).collect();
        }
        let step = step_of(self.least, self.most);
        let count = ((self.most - self.least) / step + 1e-9) as u32;
        (0..=count).map(|index| self.least + f64::from(index) * step).collect()
    }
}

/// Returns a step of 1, 2 or 5 times a power of ten that divides a range into about five parts.
fn step_of(least: f64, most: f64) -> f64 {
    let raw = ((most - least) / 5.0).max(1e-9);
    let power = 10_f64.powf(raw.log10().floor());
    let factor = [1.0, 2.0, 5.0, 10.0].into_iter().find(|factor| factor * power >= raw * 0.999);
    factor.unwrap_or(10.0) * power
}

fn tick_text(value: f64) -> String {
    let decimals = if value.abs() >= 10.0 || value.fract().abs() < 1e-9 { 0 } else { 2 };
    let text = number_text(crate::report::rounded(value, 2), decimals);
    if decimals > 0 { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

/// Returns a figure with about three digits.
fn bar_text(value: f64) -> String {
    let decimals = match value.abs() {
        value if value >= 100.0 => 0,
        value if value >= 10.0 => 1,
        _ => 2,
    };
    number_text(crate::report::rounded(value, decimals), decimals)
}

/// Draws the vertical axis with its grid lines.
fn vertical(scene: &mut Scene, axis: &Axis, ruler: Ruler, right: f64) {
    for tick in ruler.ticks() {
        let y = ruler.place(tick);
        scene.line((PLOT_LEFT, y), (right, y), 1.0, Paint::Faint);
        let at = (PLOT_LEFT - 6.0, y + 4.0);
        scene.text(at, TEXT, Anchor::End, Paint::Muted, &tick_text(tick));
    }
    let middle = f64::midpoint(ruler.start, ruler.end);
    scene.upright((MARGIN + 8.0, middle), TEXT, Paint::Muted, &axis.name);
}

/// Draws the horizontal axis with its ticks below a plot.
fn horizontal(scene: &mut Scene, axis: &Axis, ruler: Ruler, bottom: f64) {
    scene.line((ruler.start, bottom), (ruler.end, bottom), 1.0, Paint::Muted);
    for tick in ruler.ticks() {
        let x = ruler.place(tick);
        scene.line((x, bottom), (x, bottom + 4.0), 1.0, Paint::Muted);
        scene.text((x, bottom + 17.0), TEXT, Anchor::Middle, Paint::Muted, &tick_text(tick));
    }
    let at = (f64::midpoint(ruler.start, ruler.end), bottom + 34.0);
    scene.text(at, TEXT, Anchor::Middle, Paint::Muted, &axis.name);
}

fn lines(
    scene: &mut Scene,
    (x, y): (&Axis, &Axis),
    series: &[Series],
    marks: &[(f64, String)],
    top: f64,
) -> f64 {
    let (right, bottom) = (WIDTH - MARGIN, top + PLOT_HEIGHT);
    let points = || series.iter().flat_map(|series| &series.points);
    let across = Ruler::around(x, points().map(|point| point.0), (PLOT_LEFT, right));
    let along = Ruler::around(y, points().map(|point| point.1), (bottom, top));
    vertical(scene, y, along, right);
    horizontal(scene, x, across, bottom);
    for (index, (at, text)) in marks.iter().enumerate() {
        let place = across.place(*at);
        scene.line((place, top), (place, bottom), 1.0, Paint::Muted);
        let height = top + 11.0 + (index % 3) as f64 * 14.0;
        scene.text((place + 4.0, height), 11.0, Anchor::Start, Paint::Muted, text);
    }
    for (index, series) in series.iter().enumerate() {
        let places: Vec<_> =
            series.points.iter().map(|(x, y)| (across.place(*x), along.place(*y))).collect();
        if series.is_published {
            for place in &places {
                scene.cross(*place, 4.5, Paint::Ink);
            }
            continue;
        }
        let paint = Paint::Series(index);
        // Dots on lines with few points only.
        if places.len() <= 24 {
            for place in &places {
                scene.dot(*place, 3.5, paint);
            }
        }
        scene.path(places, 2.0, paint);
    }
    legend(scene, series, bottom + 44.0) + LEGEND_HEIGHT - 6.0
}

fn bars(scene: &mut Scene, y: &Axis, groups: &[String], series: &[Series], top: f64) -> f64 {
    let (right, bottom) = (WIDTH - MARGIN, top + PLOT_HEIGHT);
    let figures = series.iter().flat_map(|series| series.points.iter().map(|point| point.1));
    let along = Ruler::around(y, figures, (bottom, top));
    vertical(scene, y, along, right);
    let group_width = (right - PLOT_LEFT) / groups.len().max(1) as f64;
    let drawn = series.iter().filter(|series| !series.is_published).count();
    let bar_width = (group_width * 0.8 / drawn.max(1) as f64).min(28.0);
    let place = |group: f64| PLOT_LEFT + (group + 0.5) * group_width;
    let is_one_published = series.len() - drawn < 2;
    let (mut number, mut crosses) = (0, 0);
    for (index, series) in series.iter().enumerate() {
        let shift = (number as f64 - drawn as f64 / 2.0) * bar_width;
        // Several published series belong to the first bars, a single one to all of them.
        let cross = (crosses as f64 + 0.5 - drawn as f64 / 2.0) * bar_width;
        let cross = if is_one_published { 0.0 } else { cross };
        number += usize::from(!series.is_published);
        crosses += usize::from(series.is_published);
        for (group, value) in &series.points {
            if series.is_published {
                scene.cross((place(*group) + cross, along.place(*value)), 5.0, Paint::Ink);
                continue;
            }
            let (x, y) = (place(*group) + shift, along.place(*value));
            scene.rect((x, y), (bar_width - 1.5, bottom - y), Paint::Series(index));
            // Narrow bars have no room for their figures.
            if bar_width >= 16.0 {
                let at = (x + bar_width / 2.0, y - 7.0);
                scene.text(at, 9.0, Anchor::Middle, Paint::Muted, &bar_text(*value));
            }
        }
    }
    scene.line((PLOT_LEFT, bottom), (right, bottom), 1.0, Paint::Muted);
    let room = ((group_width - 4.0) / (CHARACTER * 0.85)).max(4.0) as usize;
    let mut rows = 0;
    for (index, name) in groups.iter().enumerate() {
        let lines = broken(name, room);
        rows = rows.max(lines.len());
        for (row, line) in lines.iter().enumerate() {
            let at = (place(index as f64), bottom + 15.0 + row as f64 * 13.0);
            scene.text(at, 10.5, Anchor::Middle, Paint::Ink, line);
        }
    }
    legend(scene, series, bottom + 12.0 + rows as f64 * 13.0) + LEGEND_HEIGHT - 6.0
}

/// Breaks a name at spaces into lines of some characters.
fn broken(name: &str, room: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in name.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= room => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

fn strips(scene: &mut Scene, x: &Axis, classes: &[String], strips: &[Strip], top: f64) -> f64 {
    let longest = strips.iter().map(|strip| strip.name.len()).max().unwrap_or(0);
    let left = MARGIN + longest as f64 * CHARACTER + 10.0;
    let right = WIDTH - MARGIN;
    let ends = strips.iter().flat_map(|strip| strip.spans.iter().map(|span| span.end));
    let mut across = Ruler::around(x, ends.clone(), (left, right));
    // Strips fill the plot.
    across.most = ends.fold(0.0, f64::max).max(1e-9);
    let height = 16.0;
    let mut y = top;
    for strip in strips {
        scene.text((MARGIN, y + 12.0), TEXT, Anchor::Start, Paint::Ink, &strip.name);
        // The last classes are drawn over the others.
        for class in 0..classes.len() {
            for span in strip.spans.iter().filter(|span| span.class == class) {
                let (from, to) = (across.place(span.start), across.place(span.end));
                let is_mark = class + 1 == classes.len();
                let width = if is_mark { (to - from).max(3.0) } else { to - from };
                scene.rect((from, y), (width, height - 2.0), class_paint(class));
            }
        }
        y += height;
    }
    horizontal(scene, x, across, y + 2.0);
    let entries: Vec<_> = classes
        .iter()
        .enumerate()
        .map(|(class, name)| (class_paint(class), name.as_str()))
        .collect();
    entries_legend(scene, &entries, y + 48.0);
    y + 48.0 + LEGEND_HEIGHT - 6.0
}

/// Two quiet colours, then those that stand out.
fn class_paint(class: usize) -> Paint {
    match class {
        0 => Paint::Rgb([122, 152, 182]),
        1 => Paint::Rgb([158, 182, 204]),
        other => Paint::Series(other - 1),
    }
}

/// Draws the names of series from `top` on, and returns the top of its last row.
fn legend(scene: &mut Scene, series: &[Series], top: f64) -> f64 {
    let mut at = (PLOT_LEFT, top);
    for (index, series) in series.iter().enumerate() {
        let length = series.name.len() as f64 * CHARACTER + 34.0;
        if at.0 + length > WIDTH - MARGIN && at.0 > PLOT_LEFT {
            at = (PLOT_LEFT, at.1 + 17.0);
        }
        if series.is_published {
            scene.cross((at.0 + 6.0, at.1 + 6.0), 4.5, Paint::Ink);
        } else {
            scene.rect(at, (12.0, 12.0), Paint::Series(index));
        }
        scene.text((at.0 + 17.0, at.1 + 10.5), TEXT, Anchor::Start, Paint::Ink, &series.name);
        at.0 += length;
    }
    at.1
}

fn entries_legend(scene: &mut Scene, entries: &[(Paint, &str)], top: f64) {
    let mut left = PLOT_LEFT;
    for (paint, name) in entries {
        scene.rect((left, top), (12.0, 12.0), *paint);
        scene.text((left + 17.0, top + 10.5), TEXT, Anchor::Start, Paint::Ink, name);
        left += name.len() as f64 * CHARACTER + 34.0;
    }
}
