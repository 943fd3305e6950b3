//! A report as text: tables, checks, findings and the footer.
//!
//! Golden files contain this text. With tabs instead of aligned columns, only the tables are
//! printed, without titles.

use std::fmt::Write;

use crate::report::{Cell, Check, Column, Report, Table};

/// Columns of text of a line.
const WIDTH: usize = 100;

/// Returns a report as text. Scripts get the rows of the tables with tabs, and nothing else.
#[must_use]
pub fn render(report: &Report, is_scripted: bool) -> String {
    if is_scripted {
        return report.tables.iter().map(tabbed).collect();
    }
    let mut text = String::new();
    line(&mut text, &format!("{}: {}", report.experiment, report.title));
    line(&mut text, &format!("published: {}", report.published));
    for table in &report.tables {
        text.push('\n');
        text.push_str(&aligned(table));
    }
    if !report.checks.is_empty() {
        text.push('\n');
    }
    for check in &report.checks {
        line(&mut text, &verdict(check));
    }
    if !report.findings.is_empty() {
        text.push('\n');
    }
    for finding in &report.findings {
        text.push_str(&wrapped(finding));
    }
    text.push('\n');
    line(&mut text, &footer(report));
    text
}

/// Returns a table with its title, or its rows with tabs.
#[must_use]
pub fn render_table(table: &Table, is_scripted: bool) -> String {
    if is_scripted { tabbed(table) } else { aligned(table) }
}

/// Returns the line that says what determines a run.
#[must_use]
pub fn footer(report: &Report) -> String {
    let footer = &report.footer;
    let devices = footer.devices.join(",");
    let policies = footer.policies.join(",");
    format!(
        "hash {} seed {} costs {} scale {} devices {devices} policies {policies}",
        footer.hash, footer.seed, footer.costs, footer.scale
    )
}

fn line(text: &mut String, line: &str) {
    text.push_str(line.trim_end());
    text.push('\n');
}

fn shown(cell: &Cell, column: &Column) -> String {
    match cell {
        Cell::Empty => "-".to_owned(),
        Cell::Text(text) => text.clone(),
        Cell::Number(number) => number_text(*number, column.decimals.unwrap_or_default()),
    }
}

/// Returns a number with a fixed number of decimals.
#[must_use]
pub fn number_text(number: f64, decimals: u8) -> String {
    format!("{number:.*}", usize::from(decimals))
}

fn tabbed(table: &Table) -> String {
    let mut text = String::new();
    for row in &table.rows {
        let cells: Vec<_> =
            row.iter().zip(&table.columns).map(|(c, column)| shown(c, column)).collect();
        line(&mut text, &cells.join("\t"));
    }
    text
}

fn aligned(table: &Table) -> String {
    let mut text = String::new();
    line(&mut text, &table.title);
    let titles: Vec<String> = table.columns.iter().map(|column| column.name.clone()).collect();
    let shown_row = |row: &Vec<Cell>| -> Vec<String> {
        row.iter().zip(&table.columns).map(|(cell, column)| shown(cell, column)).collect()
    };
    let rows: Vec<Vec<String>> =
        std::iter::once(titles).chain(table.rows.iter().map(shown_row)).collect();
    let width = |index: usize| rows.iter().map(|row| row[index].chars().count()).max();
    let widths: Vec<usize> =
        (0..table.columns.len()).map(|index| width(index).unwrap_or_default()).collect();
    for row in &rows {
        let mut cells = Vec::new();
        for ((cell, width), column) in row.iter().zip(&widths).zip(&table.columns) {
            cells.push(match column.decimals {
                Some(_) => format!("{cell:>width$}"),
                None => format!("{cell:<width$}"),
            });
        }
        line(&mut text, &format!("  {}", cells.join("  ")));
    }
    text
}

fn verdict(check: &Check) -> String {
    let number = |value: f64| number_text(value, check.decimals);
    let mut text = if check.passes { "pass  " } else { "FAIL  " }.to_owned();
    let _ = write!(text, "{}: {}", check.what, number(check.value));
    let _ = match (check.least, check.most) {
        (Some(least), Some(most)) if least.total_cmp(&most).is_eq() => {
            write!(text, " (expected {})", number(least))
        }
        (Some(least), Some(most)) => write!(text, " ({} to {})", number(least), number(most)),
        (Some(least), None) => write!(text, " (at least {})", number(least)),
        (None, Some(most)) => write!(text, " (at most {})", number(most)),
        (None, None) => Ok(()),
    };
    text
}

/// Breaks a sentence into lines, the first one with a dash.
fn wrapped(sentence: &str) -> String {
    let (mut text, mut row) = (String::new(), "-".to_owned());
    for word in sentence.split_whitespace() {
        if row.chars().count() + 1 + word.chars().count() > WIDTH {
            line(&mut text, &row);
            " ".clone_into(&mut row);
        }
        row.push(' ');
        row.push_str(word);
    }
    line(&mut text, &row);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{CellMap, Chart, Footer};

    fn report() -> Report {
        let mut table = Table::new("rates", &[("policy", None), ("MB/s", Some(1))]);
        table.row(vec!["old".into(), 3.275.into()]);
        table.row(vec!["new".into(), Cell::Empty]);
        Report {
            experiment: "x".into(),
            title: "a title".into(),
            published: "a report".into(),
            tables: vec![table],
            checks: vec![
                Check::near("rate", 3.275, 3.2, 0.1, 2),
                Check::at_most("latency", 9.0, 8.0, 1),
                Check::equal("gaps", 0, 0),
            ],
            charts: Vec::new(),
            findings: vec!["word ".repeat(30)],
            footer: Footer {
                hash: "0123".into(),
                seed: 1,
                costs: "24ceb50c".into(),
                scale: "1".into(),
                devices: vec!["nvme".into()],
                policies: vec!["old".into(), "new".into()],
            },
        }
    }

    #[test]
    fn text_has_columns_verdicts_and_footer() {
        let text = render(&report(), false);
        let want = "x: a title\npublished: a report\n\nrates\n  policy  MB/s\n  old      3.3\n  \
                    new        -\n\npass  rate: 3.28 (2.88 to 3.52)\nFAIL  latency: 9.0 (at most \
                    8.0)\npass  gaps: 0 (expected 0)\n\n- word";
        assert!(text.starts_with(want), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        let end = "\nhash 0123 seed 1 costs 24ceb50c scale 1 devices nvme policies old,new\n";
        assert!(text.ends_with(end), "{text}");
        assert_eq!(render(&report(), true), "old\t3.3\nnew\t-\n");
        assert!(!report().passes());
    }

    #[test]
    fn json_is_read_back() {
        let json = report().to_json();
        assert_eq!(Report::from_json(&json).unwrap(), report());
        assert!(Report::from_json("{}").is_err());
        let mut short = report();
        short.tables[0].rows[0].pop();
        let refused = Report::from_json(&short.to_json()).unwrap_err().to_string();
        assert!(refused.contains("has not one cell for each column"), "{refused}");
        let mut tall = report();
        let map = CellMap { name: "m".into(), cells: vec![Some(0.0); 100_000] };
        tall.charts = vec![Chart::Maps {
            title: "tall".into(),
            width: 1,
            across: 1,
            maps: vec![map],
            figure: "f".into(),
            range: (0.0, 1.0),
        }];
        let refused = Report::from_json(&tall.to_json()).unwrap_err().to_string();
        assert!(refused.starts_with("its pictures are "), "{refused}");
    }
}
