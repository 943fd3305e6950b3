//! `-c` of `zpool iostat` and `zpool status`: scripts that run for each leaf, and the columns that
//! they print. Which files are run, and how: [`leaf_scripts`].
//!
//! Columns are those of all leaves, in the order in which they first appear, right-aligned; a leaf
//! without a value has a dash. Text that belongs to no column follows.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::sink;

use cenote_pool::status::{PoolStatus, VdevReport};
use serde_json::{Map, Value};

use crate::environment::{self, SCRIPTS_AS_ROOT, SCRIPTS_ENABLED};
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::leaf_scripts::{Leaf, NAMES_MAX, Request};
use crate::out;
use crate::source::Source;

/// The letter of the option.
const LETTER: char = 'c';
/// Memory of a line of output, and of a cell of a row, in addition to its text.
const LINE_BYTES: u64 = 200;
/// Most columns, and most characters in a row of all of them.
const COLUMNS_MAX: usize = 100;
const ROW_MAX: usize = 4 << 10;

/// Parses the arguments of a command. An option without its argument asks for a list of the
/// scripts: returns `None` once that is printed.
pub(super) fn parse(
    (source, verb): (&Source, &str),
    args: &[String],
    (options, longs): (&str, &[Long]),
    io: &mut Io<'_>,
) -> Result<Option<Parsed>, Exit> {
    match getopt::parse(args, options, longs) {
        Err(Exit::Usage(text)) if text == getopt::missing_argument(LETTER) => {
            out!(io, "Available 'zpool {verb} -c' commands:")?;
            let request = Request { scripts: String::new(), leaves: Vec::new() };
            let lists = source.run_scripts(&request).map_err(Exit::failed)?;
            source.charge_row(lists.iter().flatten())?;
            for line in lists.iter().flatten() {
                out!(io, "{line}")?;
            }
            Ok(None)
        }
        parsed => parsed.map(Some),
    }
}

/// The scripts of a command line.
#[derive(Debug, Clone)]
pub(super) struct Scripts {
    /// Names, separated by commas.
    names: String,
}

impl Scripts {
    /// Returns the scripts that the options name, if the caller may run some.
    pub(super) fn of(source: &Source, parsed: &Parsed) -> Result<Option<Self>, Exit> {
        let Some(names) = parsed.value(LETTER) else { return Ok(None) };
        let is_disabled = environment::variable(SCRIPTS_ENABLED).is_some();
        if is_disabled && !environment::is_on(SCRIPTS_ENABLED) {
            return Err(Exit::failed("Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED."));
        }
        if source.uid() == 0 && !environment::is_on(SCRIPTS_AS_ROOT) {
            return Err(Exit::failed(
                "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.",
            ));
        }
        if parsed.count(LETTER) > 1 {
            return Err(Exit::failed("Can't set -c flag twice"));
        }
        if names.len() > NAMES_MAX {
            return Err(Exit::failed("cannot run '-c': the list of scripts is too long"));
        }
        Ok(Some(Self { names: names.to_owned() }))
    }

    /// Runs the scripts for leaves that `leaves` returns. It may read pools; no view of one is held
    /// while the scripts run.
    pub(super) async fn run(
        &self,
        source: &Source,
        mut leaves: impl AsyncFnMut(&mut Io<'_>) -> Result<Vec<Leaf>, Exit>,
    ) -> Result<Columns, Exit> {
        // The command itself reads the pools again, and reports what cannot be read.
        let (mut out, mut err) = (sink(), sink());
        let mut io = Io { out: &mut out, err: &mut err };
        let leaves = source.step(&mut io, async |io| leaves(io).await).await?;
        let mut columns = Columns::default();
        for request in Request::split(&self.names, leaves) {
            let lines = source.run_scripts(&request);
            let lines = lines.map_err(|why| Exit::cannot("run", &self.names, why))?;
            let before = columns.cost();
            for (leaf, lines) in request.leaves.into_iter().zip(lines) {
                columns.add(leaf, lines)?;
            }
            source.charge(columns.cost() - before)?;
        }
        Ok(columns)
    }
}

/// Returns all leaves of a pool, in the order in which OpenZFS's columns come: first hot spares and
/// cache devices.
pub(super) fn leaves(status: &PoolStatus) -> impl Iterator<Item = Leaf> {
    let others = status.spares.iter().chain(&status.caches);
    let others = others.map(|device| leaf_at(status, &device.name));
    others.chain(status.root.walk().filter_map(|vdev| leaf(status, vdev)))
}

/// Returns a vdev as scripts know it, if it is a leaf that has a path.
pub(super) fn leaf(status: &PoolStatus, vdev: &VdevReport) -> Option<Leaf> {
    vdev.path.as_ref().map(|path| leaf_at(status, path))
}

/// Returns the leaf of a pool that has this path.
pub(super) fn leaf_at(status: &PoolStatus, path: &str) -> Leaf {
    Leaf { pool: status.root.name.clone(), path: path.to_owned() }
}

/// The output of scripts.
#[derive(Debug, Default)]
pub(super) struct Columns {
    titles: Vec<Title>,
    /// Places of the titles.
    places: BTreeMap<String, usize>,
    leaves: BTreeMap<Leaf, Values>,
    /// Memory of all this.
    bytes: u64,
}

#[derive(Debug)]
struct Title {
    text: String,
    /// Width of the column.
    width: usize,
}

/// The output for one leaf.
#[derive(Debug, Default)]
struct Values {
    /// By place of the title.
    cells: BTreeMap<usize, String>,
    /// Lines that belong to no column.
    rest: Vec<String>,
}

/// The text shown for a blank value.
const BLANK: &str = "-";

impl Columns {
    /// Charges what is kept, and what all rows will take. The charge of [`Scripts::run`] ends when
    /// output is delivered or discarded.
    pub(super) fn charge(&self, source: &Source) -> CommandResult {
        source.charge(self.cost())
    }

    fn cost(&self) -> u64 {
        let row = self.width() as u64 + self.titles.len() as u64 * LINE_BYTES;
        self.bytes + self.leaves.len() as u64 * row
    }

    /// Returns the characters of all columns.
    fn width(&self) -> usize {
        self.titles.iter().map(|title| title.width + 2).sum()
    }

    fn add(&mut self, leaf: Leaf, lines: Vec<String>) -> CommandResult {
        let mut values = Values::default();
        for line in lines {
            self.bytes += LINE_BYTES + 2 * line.len() as u64;
            let Some((title, value)) = line.split_once('=') else {
                values.rest.push(line);
                continue;
            };
            let next = self.titles.len();
            let place = *self.places.entry(title.to_owned()).or_insert(next);
            if place == next {
                let width = title.chars().count();
                self.titles.push(Title { text: title.to_owned(), width });
            }
            let value = if value.trim().is_empty() { BLANK } else { value };
            if let Some(title) = self.titles.get_mut(place) {
                title.width = title.width.max(value.chars().count());
            }
            values.cells.insert(place, value.to_owned());
        }
        self.leaves.insert(leaf, values);
        if self.titles.len() > COLUMNS_MAX || self.width() > ROW_MAX {
            let text =
                format!("the scripts print more than {COLUMNS_MAX} columns, or too wide ones");
            return Err(Exit::failed(text));
        }
        Ok(())
    }

    /// Returns the titles, as the end of a line.
    pub(super) fn header(&self) -> String {
        self.line(|title| title.text.clone())
    }

    /// Returns a line below the titles.
    pub(super) fn separator(&self) -> String {
        self.line(|title| "-".repeat(title.width))
    }

    /// Returns a line with this text in each column.
    fn line(&self, text: impl Fn(&Title) -> String) -> String {
        self.titles.iter().fold(String::new(), |mut line, title| {
            let _ = write!(line, "  {:>1$}", text(title), title.width);
            line
        })
    }

    /// Returns the output for a leaf, as the end of a line.
    pub(super) fn row(&self, leaf: &Leaf) -> String {
        let mut line = "  ".to_owned();
        let Some(values) = self.leaves.get(leaf) else { return line };
        let cells = self.cells(values).map(|(title, cell)| format!("{cell:>0$}", title.width));
        let all: Vec<String> = cells.chain(values.rest.iter().cloned()).collect();
        line.push_str(&all.join("  "));
        line
    }

    /// Returns the value in each column.
    fn cells<'a>(&'a self, values: &'a Values) -> impl Iterator<Item = (&'a Title, &'a str)> {
        self.titles
            .iter()
            .enumerate()
            .map(|(place, title)| (title, values.cells.get(&place).map_or(BLANK, String::as_str)))
    }

    /// Adds the output for a leaf to its JSON.
    pub(super) fn add_to(&self, leaf: &Leaf, map: &mut Map<String, Value>) {
        let Some(values) = self.leaves.get(leaf) else { return };
        for (title, cell) in self.cells(values) {
            map.insert(title.text.clone(), cell.into());
        }
        for (number, text) in (1..).zip(&values.rest) {
            map.insert(format!("extra_{number}"), text.clone().into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The expected text is the output of OpenZFS's command for the same scripts.
    #[test]
    fn columns_are_those_of_openzfs() {
        let leaf = |path: &str| Leaf { pool: "t".to_owned(), path: path.to_owned() };
        let mut columns = Columns::default();
        for (path, lines) in [
            ("sp", &["a=1", "b=3"][..]),
            ("a", &["only=longvalue", "a=1", "b= ", "hello world"]),
            ("b", &["other=22", "a=1", "b=3"]),
            ("none", &[]),
        ] {
            let lines = lines.iter().map(|line| (*line).to_owned()).collect();
            columns.add(leaf(path), lines).expect("few columns");
        }
        assert_eq!(columns.header(), "  a  b       only  other");
        assert_eq!(columns.separator(), "  -  -  ---------  -----");
        assert_eq!(columns.row(&leaf("a")), "  1  -  longvalue      -  hello world");
        assert_eq!(columns.row(&leaf("b")), "  1  3          -     22");
        assert_eq!(columns.row(&leaf("none")), "  -  -          -      -");
        assert_eq!(columns.row(&leaf("another")), "  ");
        let mut map = Map::new();
        columns.add_to(&leaf("a"), &mut map);
        let json = r#"{"a":"1","b":"-","only":"longvalue","other":"-","extra_1":"hello world"}"#;
        assert_eq!(serde_json::to_string(&map).unwrap(), json);
        let empty = Columns::default();
        assert_eq!(
            (empty.header(), empty.separator(), empty.row(&leaf("a"))),
            (String::new(), String::new(), "  ".to_owned())
        );
    }

    #[test]
    fn columns_are_limited() {
        let leaf = || Leaf { pool: "t".to_owned(), path: "d".to_owned() };
        let many = |count: usize| (0..count).map(|number| format!("{number}=x")).collect();
        assert_eq!(Columns::default().add(leaf(), many(COLUMNS_MAX)), Ok(()));
        assert!(Columns::default().add(leaf(), many(COLUMNS_MAX + 1)).is_err());
        let wide = |count: usize| vec![format!("a={}", "x".repeat(count))];
        assert_eq!(Columns::default().add(leaf(), wide(ROW_MAX - 2)), Ok(()));
        assert!(Columns::default().add(leaf(), wide(ROW_MAX - 1)).is_err());
        assert!(Columns::default().add(leaf(), wide(100_000)).is_err());
        let mut columns = Columns::default();
        columns.add(leaf(), many(COLUMNS_MAX)).expect("few columns");
        let before = columns.cost();
        let other = Leaf { path: "e".to_owned(), ..leaf() };
        columns.add(other, Vec::new()).expect("none");
        // A row without values has all columns, too.
        assert!(columns.cost() - before > 100 * LINE_BYTES);
    }
}
