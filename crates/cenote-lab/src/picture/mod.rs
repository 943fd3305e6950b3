//! Pictures of charts, such as those of a report: SVG and PNG.
//!
//! ```text
//!   charts   Page -> Scene       layout of titles, axes, legends and data
//!   scene    shapes with paints  what both formats draw
//!   svg      Scene -> SVG        follows the reader's light or dark setting
//!   png      Scene -> PNG        pixels by coverage; letters are strokes
//!   colours  cividis, and the colours of series
//! ```
//!
//! All charts of a report stand below each other in one picture, with the footer of the report.
//! The bytes depend on the page alone.

mod charts;
mod colours;
mod png;
mod scene;
mod svg;

use crate::report::{Chart, Report};

/// Background of a picture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Theme {
    /// Dark on light.
    Light,
    /// Light on dark.
    Dark,
}

/// What a picture shows.
#[derive(Debug, Clone)]
pub struct Page<'c> {
    /// The line above the charts.
    pub heading: String,
    /// The charts, below each other.
    pub charts: &'c [Chart],
    /// The text below the charts, broken into lines between words.
    pub footer: String,
}

impl Page<'_> {
    /// Returns the picture as SVG. The reader's program chooses the theme; light is the default.
    #[must_use]
    pub fn to_svg(&self) -> String {
        svg::render(&charts::scene(self))
    }

    /// Returns the picture as PNG.
    #[must_use]
    pub fn to_png(&self, theme: Theme) -> Vec<u8> {
        png::render(&charts::scene(self), theme)
    }
}

/// Returns the colour of a part of a range, 0 to 1: dark for 0.
#[must_use]
pub fn colour(part: f64) -> [u8; 3] {
    colours::cividis(part)
}

fn page_of(report: &Report) -> Page<'_> {
    Page {
        heading: format!("{}: {}", report.experiment, report.title),
        charts: &report.charts,
        footer: crate::text::footer(report),
    }
}

/// Returns the height of the charts of a report, in units of the picture.
pub(crate) fn height(report: &Report) -> f64 {
    charts::scene(&page_of(report)).height
}

/// Returns the charts of a report as SVG.
#[must_use]
pub fn to_svg(report: &Report) -> String {
    page_of(report).to_svg()
}

/// Returns the charts of a report as PNG.
#[must_use]
pub fn to_png(report: &Report, theme: Theme) -> Vec<u8> {
    page_of(report).to_png(theme)
}
