//! The results of an experiment, as plain data.
//!
//! ```text
//!   Report
//!     tables    figures under named columns
//!     checks    figure, bound, verdict
//!     charts    figures as pictures show them (see `picture`)
//!     findings  sentences
//!     footer    what determines the run, and the hash of all device commands
//! ```
//!
//! Numbers are rounded when they enter a report, to the digits that are shown. So JSON, text and
//! pictures show equal figures.

use serde::{Deserialize, Serialize};

/// A value in a table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Cell {
    /// No value.
    Empty,
    /// Text.
    Text(String),
    /// A number.
    Number(f64),
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Cell {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<u64> for Cell {
    fn from(number: u64) -> Self {
        Self::Number(number as f64)
    }
}

impl From<f64> for Cell {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl<T: Into<Cell>> From<Option<T>> for Cell {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Empty, Into::into)
    }
}

/// A column of a table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Column {
    /// Its title.
    pub name: String,
    /// Digits after the decimal point; `None` for a column of text.
    pub decimals: Option<u8>,
}

/// A table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Table {
    /// What its rows are.
    pub title: String,
    /// Its columns.
    pub columns: Vec<Column>,
    /// Its rows, each with a cell per column.
    pub rows: Vec<Vec<Cell>>,
}

impl Table {
    /// Returns a table without rows. A column is a title and its decimals; `None` for text.
    #[must_use]
    pub fn new(title: &str, columns: &[(&str, Option<u8>)]) -> Self {
        let column = |(name, decimals): &(&str, Option<u8>)| Column {
            name: (*name).to_owned(),
            decimals: *decimals,
        };
        let columns = columns.iter().map(column).collect();
        Self { title: title.to_owned(), columns, rows: Vec::new() }
    }

    /// Adds a row, whose numbers are rounded to the decimals of their columns.
    ///
    /// # Panics
    /// If the row has not one cell for each column.
    pub fn row(&mut self, cells: Vec<Cell>) {
        assert_eq!(cells.len(), self.columns.len(), "{}: one cell per column", self.title);
        let round = |(cell, column): (Cell, &Column)| match cell {
            Cell::Number(number) => {
                Cell::Number(rounded(number, column.decimals.unwrap_or_default()))
            }
            other => other,
        };
        self.rows.push(cells.into_iter().zip(&self.columns).map(round).collect());
    }
}

/// A judgement: a figure and the range in which it should be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Check {
    /// Name of the figure.
    pub what: String,
    /// The figure.
    pub value: f64,
    /// Least value that passes.
    pub least: Option<f64>,
    /// Greatest value that passes.
    pub most: Option<f64>,
    /// Digits after the decimal point.
    pub decimals: u8,
    /// Whether the figure is in the range.
    pub passes: bool,
}

impl Check {
    /// Judges whether a figure is in a closed range. A figure that is not a number fails.
    #[must_use]
    pub fn within(
        what: impl Into<String>,
        value: f64,
        least: f64,
        most: f64,
        decimals: u8,
    ) -> Self {
        let passes = (least..=most).contains(&value);
        let [value, least, most] = [value, least, most].map(|number| rounded(number, decimals));
        Self { what: what.into(), value, least: Some(least), most: Some(most), decimals, passes }
    }

    /// Judges whether a figure is the expected one within a part of it, for example 0.1.
    #[must_use]
    pub fn near(what: impl Into<String>, value: f64, want: f64, part: f64, decimals: u8) -> Self {
        let slack = want.abs() * part;
        Self::within(what, value, want - slack, want + slack, decimals)
    }

    /// Judges whether a count is the expected one.
    #[must_use]
    pub fn equal(what: impl Into<String>, value: u64, want: u64) -> Self {
        Self::within(what, value as f64, want as f64, want as f64, 0)
    }

    /// Judges whether a figure is at most a limit.
    #[must_use]
    pub fn at_most(what: impl Into<String>, value: f64, most: f64, decimals: u8) -> Self {
        let passes = value <= most;
        let [value, most] = [value, most].map(|number| rounded(number, decimals));
        Self { what: what.into(), value, least: None, most: Some(most), decimals, passes }
    }

    /// Judges whether a figure is at least a limit.
    #[must_use]
    pub fn at_least(what: impl Into<String>, value: f64, least: f64, decimals: u8) -> Self {
        let passes = value >= least;
        let [value, least] = [value, least].map(|number| rounded(number, decimals));
        Self { what: what.into(), value, least: Some(least), most: None, decimals, passes }
    }
}

/// An axis of a chart.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Axis {
    /// Its title, with the unit.
    pub name: String,
    /// Whether it is logarithmic.
    pub is_log: bool,
}

impl Axis {
    /// Returns a linear axis.
    #[must_use]
    pub fn linear(name: &str) -> Self {
        Self { name: name.to_owned(), is_log: false }
    }
}

/// A line of a chart, or the bars of one colour.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Its name in the legend.
    pub name: String,
    /// Its points; of bars, x is the number of the group.
    pub points: Vec<(f64, f64)>,
    /// Whether the points are published figures, which are drawn as crosses without a line.
    pub is_published: bool,
}

/// A range on a strip.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Its start.
    pub start: f64,
    /// Its end.
    pub end: f64,
    /// Index into the chart's classes.
    pub class: usize,
}

/// A row of a chart of strips.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Strip {
    /// Its name.
    pub name: String,
    /// Its ranges.
    pub spans: Vec<Span>,
}

/// A map of many cells, such as the metaslabs of a disk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CellMap {
    /// Its name.
    pub name: String,
    /// Figures, row by row; `None` for a cell whose figure is unknown.
    pub cells: Vec<Option<f64>>,
}

/// A picture's data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Chart {
    /// Cells whose colour is a figure.
    Grid {
        /// Its title.
        title: String,
        /// Titles of columns and rows together.
        corner: String,
        /// Titles of columns.
        columns: Vec<String>,
        /// Titles of rows.
        rows: Vec<String>,
        /// Figures by row; `None` for a cell that does not exist.
        cells: Vec<Vec<Option<f64>>>,
        /// Name of the figure.
        figure: String,
        /// Figures of the first and the last colour.
        range: (f64, f64),
        /// Digits after the decimal point in cells.
        decimals: u8,
    },
    /// Lines and points over two axes.
    Lines {
        /// Its title.
        title: String,
        /// Horizontal axis.
        x: Axis,
        /// Vertical axis.
        y: Axis,
        /// The lines.
        series: Vec<Series>,
        /// Moments or places on the horizontal axis, with texts.
        marks: Vec<(f64, String)>,
    },
    /// Bars in groups.
    Bars {
        /// Its title.
        title: String,
        /// Vertical axis.
        y: Axis,
        /// Titles of the groups.
        groups: Vec<String>,
        /// Bars of each colour.
        series: Vec<Series>,
    },
    /// Maps beside each other.
    Maps {
        /// Its title.
        title: String,
        /// Cells in a row of a map.
        width: usize,
        /// Maps in a row.
        across: usize,
        /// The maps, row by row.
        maps: Vec<CellMap>,
        /// Name of the figure.
        figure: String,
        /// Figures of the first and the last colour.
        range: (f64, f64),
    },
    /// Rows of ranges over one axis.
    Strips {
        /// Its title.
        title: String,
        /// The axis.
        x: Axis,
        /// Names of the classes of ranges.
        classes: Vec<String>,
        /// The rows.
        strips: Vec<Strip>,
    },
}

/// What determines a run, and its hash.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Footer {
    /// Hash of all device commands with their bytes and times.
    pub hash: String,
    /// Seed.
    pub seed: u64,
    /// Hash of the table of processor times.
    pub costs: String,
    /// Scale.
    pub scale: String,
    /// Models of the devices.
    pub devices: Vec<String>,
    /// Policies.
    pub policies: Vec<String>,
}

/// The results of an experiment.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Name of the experiment.
    pub experiment: String,
    /// What it shows, in a line.
    pub title: String,
    /// The published report.
    pub published: String,
    /// Tables.
    pub tables: Vec<Table>,
    /// Judgements.
    pub checks: Vec<Check>,
    /// Pictures.
    pub charts: Vec<Chart>,
    /// What the figures mean, in sentences.
    pub findings: Vec<String>,
    /// What determines the run.
    pub footer: Footer,
}

impl Report {
    /// Whether all figures are in their ranges.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.checks.iter().all(|check| check.passes)
    }

    /// Returns the report as JSON with a line break at the end.
    ///
    /// # Panics
    /// Never: all keys are strings.
    #[must_use]
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("keys are strings");
        text.push('\n');
        text
    }

    /// Reads a stored report, which anybody may have written: what it returns can be printed and
    /// drawn.
    ///
    /// # Errors
    /// Why the text is not a report.
    pub fn from_json(text: &str) -> Result<Self, ReportError> {
        let report: Self = serde_json::from_str(text)?;
        let has_all_cells =
            |table: &&Table| table.rows.iter().all(|row| row.len() == table.columns.len());
        if let Some(table) = report.tables.iter().find(|table| !has_all_cells(table)) {
            return Err(ReportError::Cells(table.title.clone()));
        }
        let height = crate::picture::height(&report);
        if height > HEIGHT_MAX {
            return Err(ReportError::Height { height });
        }
        Ok(report)
    }
}

/// Greatest height of the pictures of a stored report, which then have 115 MB of pixels.
const HEIGHT_MAX: f64 = 10_000.0;

/// Why a text is not a report.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// The text is no JSON, or has other fields.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// A row of a table has not one cell for each column.
    #[error("a row of the table '{0}' has not one cell for each column")]
    Cells(String),
    /// The pictures are too tall.
    #[error("its pictures are {height:.0} units high, and {HEIGHT_MAX:.0} is the limit")]
    Height {
        /// Their height.
        height: f64,
    },
}

/// Rounds to a number of decimals. Negative zero becomes zero.
#[must_use]
pub fn rounded(number: f64, decimals: u8) -> f64 {
    let factor = 10_f64.powi(i32::from(decimals));
    (number * factor).round() / factor + 0.0
}
