//! `zfs list`.

use std::io::Write;

use serde_json::Map;

use super::columns::{self, Column};
use super::select::{self, Item, Selected, Selection, Types};
use super::{json, value};
use crate::err;
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::zpool::json as pool_json;
use crate::zpool::{block_on, json::Form};

/// Columns without `-o`.
const DEFAULT_COLUMNS: &str = "name,used,available,referenced,mountpoint";

/// Runs `zfs list`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "jHS:d:o:prs:t:", &pool_json::DATASET_LONGS)?;
    let form = Form::of(&parsed)?;
    let depth = select::parse_depth(parsed.value('d'))?;
    let mut order = Vec::new();
    for (letter, name) in &parsed.options {
        if let ('s' | 'S', Some(name)) = (letter, name) {
            let column = columns::dataset_column(name)
                .ok_or_else(|| Exit::usage(format!("invalid property '{name}'")))?;
            order.push((column, *letter == 'S'));
        }
    }
    columns::check_count(order.len())?;
    let types = Types::parse(parsed.values('t'))?;
    let list = parsed.value('o').unwrap_or(DEFAULT_COLUMNS);
    let columns = columns::dataset_columns(list)?;
    let is_of_space = list == "space" && types.is_none();
    let default_types = Types { snapshot: !is_of_space, ..Types::DATASETS };
    let selection = Selection {
        types,
        default_types,
        is_recursive: parsed.has('r'),
        depth,
        order,
        names: parsed.operands.clone(),
    };
    let is_literal = parsed.has('p') || form.has_numbers;
    block_on(async {
        let Selected { items, is_incomplete } = select::select(source, &selection, io).await?;
        if items.is_empty() && !is_incomplete && selection.names.is_empty() {
            err!(io, "no datasets available")?;
        }
        if form.is_wanted {
            print_json(source, items, &columns, form, is_literal, io).await?;
        } else {
            print(source, items, &columns, (parsed.has('H'), is_literal), io).await?;
        }
        if is_incomplete { Err(Exit::Status(1)) } else { Ok(()) }
    })
}

/// Prints the table. Aligned rows are collected, because each column is as wide as its widest cell;
/// other rows are written as they are read.
async fn print(
    source: &Source,
    items: Vec<Item>,
    columns: &[Column],
    (is_scripted, is_literal): (bool, bool),
    io: &mut Io<'_>,
) -> CommandResult {
    let mut rows = Vec::new();
    // Each item is dropped after its row, with the properties that were read for it.
    for item in items {
        let row = row(&item, columns, is_literal).await?;
        if is_scripted {
            write(io.out, columns, &[row], is_scripted, is_literal)?;
        } else {
            source.charge_row(row.iter())?;
            rows.push(row);
        }
    }
    Ok(write(io.out, columns, &rows, is_scripted, is_literal)?)
}

async fn row(item: &Item, columns: &[Column], is_literal: bool) -> Result<Vec<String>, Exit> {
    let mut row = Vec::with_capacity(columns.len());
    for column in columns {
        if column.name == "name" {
            row.push(item.name().to_owned());
            continue;
        }
        let shown = match item.get(column).await? {
            Some(found) => value::shown(&found, is_literal),
            None => "-".to_owned(),
        };
        row.push(shown);
    }
    Ok(row)
}

/// Writes the table; nothing at all without rows.
pub(crate) fn write(
    out: &mut (impl Write + ?Sized),
    columns: &[Column],
    rows: &[Vec<String>],
    is_scripted: bool,
    is_literal: bool,
) -> std::io::Result<()> {
    if is_scripted {
        return rows.iter().try_for_each(|row| writeln!(out, "{}", row.join("\t")));
    }
    let widths: Vec<usize> = columns
        .iter()
        .enumerate()
        .map(|(index, column)| {
            let cells = rows.iter().filter_map(|row| row.get(index));
            let cells = cells.filter(|_| column.widens(is_literal));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(column.width())
        })
        .collect();
    if !rows.is_empty() {
        let cells = columns.iter().map(|column| (column.heading(), column.heading_is_right()));
        writeln!(out, "{}", line(cells, &widths))?;
    }
    for row in rows {
        let cells = row.iter().cloned().zip(columns.iter().map(Column::is_right));
        writeln!(out, "{}", line(cells, &widths))?;
    }
    Ok(())
}

/// Formats one line; the last column is not padded on its right.
fn line(cells: impl Iterator<Item = (String, bool)>, widths: &[usize]) -> String {
    let mut text = String::new();
    for (index, ((cell, is_right), width)) in cells.zip(widths).enumerate() {
        let pad = " ".repeat(width.saturating_sub(cell.chars().count()));
        if index != 0 {
            text.push_str("  ");
        }
        match is_right {
            true => text.extend([&*pad, &cell]),
            false if index + 1 == widths.len() => text.push_str(&cell),
            false => text.extend([&*cell, &pad]),
        }
    }
    text
}

async fn print_json(
    source: &Source,
    items: Vec<Item>,
    columns: &[Column],
    form: Form,
    is_literal: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let mut datasets = Map::new();
    for item in items {
        let create_txg = item.get(&Column::of_create_txg()).await?;
        let mut map = json::dataset(form, &item, create_txg.as_ref());
        let mut properties = Map::new();
        for column in columns.iter().filter(|column| column.name != "name") {
            let (shown, origin) = match item.get(column).await? {
                Some(row) => (value::shown(&row, is_literal), row.source),
                None => ("-".to_owned(), cenote_pool::props::Source::None),
            };
            source.charge_json(&shown)?;
            properties.insert(column.name.clone(), json::property(form, &shown, &origin));
        }
        map.insert("properties".into(), properties.into());
        datasets.insert(item.name().to_owned(), map.into());
    }
    let mut document = pool_json::document("zfs list");
    document.insert("datasets".into(), datasets.into());
    pool_json::print(document, io)
}
