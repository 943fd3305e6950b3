//! `zfs get`.

use std::io::Write;

use cenote_pool::props::{PropRow, PropValue, Source as Origin};
use serde_json::Map;

use super::columns::{self, Column, Field};
use super::select::{self, Item, Selection, Types};
use super::{json, value};
use crate::err;
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::zpool::json as pool_json;
use crate::zpool::{block_on, json::Form};

/// One line of `get`.
pub(crate) struct Row {
    /// The dataset or pool.
    pub(crate) name: String,
    /// The property.
    pub(crate) property: String,
    /// The effective value, as shown.
    pub(crate) value: String,
    /// The received value, as shown.
    pub(crate) received: String,
    /// The source of the value.
    pub(crate) source: Origin,
}

/// The sources that `-s` selects.
struct Sources(Vec<&'static str>);

const SOURCES: [&str; 6] = ["local", "default", "inherited", "received", "temporary", "none"];

impl Sources {
    fn parse(list: Option<&str>) -> Result<Self, Exit> {
        let Some(list) = list else { return Ok(Self(SOURCES.to_vec())) };
        let one = |name: &str| {
            SOURCES
                .iter()
                .copied()
                .find(|source| *source == name)
                .ok_or_else(|| Exit::usage(format!("invalid source '{name}'")))
        };
        list.split(',').map(one).collect::<Result<_, _>>().map(Self)
    }

    fn contains(&self, source: &Origin) -> bool {
        let name = match source {
            Origin::None => "none",
            Origin::Default => "default",
            Origin::Local => "local",
            Origin::Inherited(_) => "inherited",
            Origin::Received => "received",
            Origin::Temporary => "temporary",
        };
        self.0.contains(&name)
    }
}

/// Runs `zfs get`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, ":d:o:s:jrt:Hp", &pool_json::DATASET_LONGS)?;
    let form = Form::of(&parsed)?;
    let depth = select::parse_depth(parsed.value('d'))?;
    let fields = columns::fields(parsed.value('o'), true)?;
    let sources = Sources::parse(parsed.value('s'))?;
    let types = Types::parse(parsed.values('t'))?;
    let [list, names @ ..] = &parsed.operands[..] else {
        return Err(Exit::usage("missing property argument"));
    };
    let columns = columns::dataset_columns(list)?;
    let selection = Selection {
        // All snapshots below are meant, whether the pool lists them or not.
        types: Some(types.unwrap_or(Types::ALL)),
        default_types: Types::ALL,
        is_recursive: parsed.has('r'),
        depth,
        order: Vec::new(),
        names: names.to_vec(),
    };
    let is_literal = parsed.has('p') || form.has_numbers;
    block_on(async {
        let selected = select::select(source, &selection, io).await?;
        let is_empty = selected.items.is_empty();
        let name_width = selected.items.iter().map(|item| item.name().chars().count()).max();
        let (name_width, is_scripted) = (name_width.unwrap_or(0), parsed.has('H'));
        let mut datasets = Map::new();
        let mut rows = Vec::new();
        let mut width = 0;
        // Each item is dropped after its rows, with the properties that were read for it.
        for item in selected.items {
            let item = &item;
            let mut of_item = Vec::new();
            let user = if list == "all" { item.user().await? } else { Vec::new() };
            let user_columns: Vec<Column> =
                user.iter().map(|row| Column::other(&row.name, true)).collect();
            for column in columns.iter().chain(&user_columns) {
                let found = item.get(column).await?;
                let Some(row) = row(item, column, found, is_literal) else { continue };
                let widened = if column.widens(is_literal) { row.value.chars().count() } else { 0 };
                width = width.max(widened);
                if !sources.contains(&row.source) {
                    continue;
                }
                if form.is_wanted {
                    source.charge_json(&row.value)?;
                } else if !is_scripted {
                    let Row { name, property, value, received, .. } = &row;
                    source.charge_row([name, property, value, received].into_iter())?;
                }
                of_item.push(row);
            }
            if form.is_wanted {
                let create_txg = item.get(&Column::of_create_txg()).await?;
                let mut map = json::dataset(form, item, create_txg.as_ref());
                let properties: Map<_, _> = of_item
                    .iter()
                    .map(|row| {
                        (row.property.clone(), json::property(form, &row.value, &row.source))
                    })
                    .collect();
                if !properties.is_empty() {
                    map.insert("properties".into(), properties.into());
                    datasets.insert(item.name().to_owned(), map.into());
                }
            } else if is_scripted {
                // Rows that are not aligned are written as they are read.
                write(io.out, &of_item, &fields, is_scripted, 0, 0)?;
            } else {
                width = user_columns.iter().map(Column::width).max().unwrap_or(0).max(width);
                rows.extend(of_item);
            }
        }
        if form.is_wanted {
            let mut document = pool_json::document("zfs get");
            document.insert("datasets".into(), datasets.into());
            pool_json::print(document, io)?;
        } else {
            width = columns.iter().map(Column::width).max().unwrap_or(0).max(width);
            write(io.out, &rows, &fields, is_scripted, name_width, width)?;
        }
        if is_empty && !selected.is_incomplete && names.is_empty() {
            err!(io, "no datasets available")?;
        }
        if selected.is_incomplete { Err(Exit::Status(1)) } else { Ok(()) }
    })
}

/// Returns the line for a property; none if it comes from `all` and does not apply to the dataset.
fn row(item: &Item, column: &Column, found: Option<PropRow>, is_literal: bool) -> Option<Row> {
    let (value, received, source) = match found {
        None if column.is_of_all => return None,
        None => ("-".to_owned(), "-".to_owned(), Origin::None),
        Some(row) => {
            let received = match &row.received {
                None | Some(PropValue::Absent) => "-".to_owned(),
                Some(value) => {
                    value::shown(&PropRow { value: value.clone(), ..row.clone() }, is_literal)
                }
            };
            (value::shown(&row, is_literal), received, row.source)
        }
    };
    let property = column.name.clone();
    Some(Row { name: item.name().to_owned(), property, value, received, source })
}

/// Writes the table of a `get`, whose values are at least `width` wide.
pub(crate) fn write(
    out: &mut (impl Write + ?Sized),
    rows: &[Row],
    fields: &[Field],
    is_scripted: bool,
    name_width: usize,
    width: usize,
) -> std::io::Result<()> {
    let properties = rows.iter().map(|row| row.property.chars().count());
    let property_width = properties.max().unwrap_or(0);
    let widths: Vec<usize> = fields
        .iter()
        .map(|field| {
            let content = match field {
                Field::Name => name_width,
                Field::Property => property_width,
                Field::Value => width,
                Field::Received => {
                    rows.iter().map(|row| row.received.chars().count()).max().unwrap_or(0)
                }
                Field::Source => name_width + "inherited from".len(),
            };
            content.max(field.heading().len())
        })
        .collect();
    let mut line = |cells: Vec<String>| {
        let mut text = String::new();
        for (index, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            let is_last = index + 1 == cells.len();
            text.push_str(cell);
            match (is_last, is_scripted) {
                (true, _) => {}
                (false, true) => text.push('\t'),
                (false, false) => {
                    let pad = width.saturating_sub(cell.chars().count()) + 2;
                    text.push_str(&" ".repeat(pad));
                }
            }
        }
        writeln!(out, "{text}")
    };
    if !is_scripted && !rows.is_empty() {
        line(fields.iter().map(|field| field.heading().to_owned()).collect())?;
    }
    for row in rows {
        line(
            fields
                .iter()
                .map(|field| match field {
                    Field::Name => row.name.clone(),
                    Field::Property => row.property.clone(),
                    Field::Value => row.value.clone(),
                    Field::Received => row.received.clone(),
                    Field::Source => row.source.to_string(),
                })
                .collect(),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get_prints_the_table_of_openzfs() {
        let row = Row {
            name: "t/a".into(),
            property: "user:prop".into(),
            value: "hello".into(),
            received: "-".into(),
            source: Origin::Local,
        };
        let fields = columns::fields(None, true).expect("fields");
        let rows = [row];
        let written = |is_scripted| {
            let mut text = Vec::new();
            write(&mut text, &rows, &fields, is_scripted, 3, 9).expect("written");
            String::from_utf8(text).expect("text")
        };
        assert_eq!(
            written(false),
            "NAME  PROPERTY   VALUE      SOURCE\nt/a   user:prop  hello      local\n"
        );
        assert_eq!(written(true), "t/a\tuser:prop\thello\tlocal\n");
    }
}
