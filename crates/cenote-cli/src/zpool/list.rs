//! `zpool list`.

use cenote_pool::props::{POOL_PROPERTIES, PropRow, Source as Origin, property_named};
use serde_json::Map;

use super::json::{self, Form};
use super::list_vdevs::{self, Options};
use super::names::Names;
use super::shown::Shown;
use super::{Pools, Repeat, block_on, no_such_pool, pools_in_memory, timestamp};
use crate::getopt;
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::Source;
use crate::zfs::columns::{self, Column};
use crate::zfs::{json as zfs_json, list as zfs_list, value};

/// Columns without `-o`.
const DEFAULT_COLUMNS: &str = "name,size,allocated,free,checkpoint,expandsize,fragmentation,\
                               capacity,dedupratio,health,altroot";

/// Runs `zpool list`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, ":gjHLo:pPT:v", &json::POOL_LONGS[..3])?;
    let form = Form::of(&parsed)?;
    let mut operands = parsed.operands.clone();
    let repeat = Repeat::take(&mut operands)?;
    let columns = pool_columns(parsed.value('o').unwrap_or(DEFAULT_COLUMNS))?;
    let is_literal = parsed.has('p') || form.has_numbers;
    block_on(async {
        let mut round = 0;
        loop {
            let told = source
                .step(io, async |io| {
                    let pools = pools_in_memory(source, &operands, no_such_pool, io).await?;
                    if pools.is_empty() && operands.is_empty() && !pools.is_incomplete {
                        out!(io, "no pools available")?;
                        return Ok(None);
                    }
                    timestamp(&parsed, io)?;
                    let has_vdevs = parsed.has('v');
                    if form.is_wanted {
                        let options = (form, is_literal, has_vdevs);
                        print_json(source, &pools, &columns, options, io).await?;
                    } else {
                        let options = Options {
                            names: Names::of(&parsed),
                            is_scripted: parsed.has('H'),
                            is_literal,
                            has_vdevs,
                        };
                        let text = table(source, &pools, &columns, &options).await?;
                        write!(io.out, "{text}")?;
                    }
                    Ok(Some(pools.finish()))
                })
                .await?;
            let Some(told) = told else { return Ok(()) };
            round += 1;
            if !repeat.next(round, source).await {
                return told;
            }
        }
    })
}

/// Returns the columns that a list names; `all` is not allowed here.
pub(super) fn pool_columns(list: &str) -> Result<Vec<Column>, Exit> {
    let column = |name: &str| {
        let native = property_named(POOL_PROPERTIES, name);
        let is_other = name.starts_with("feature@")
            && cenote_pool::features::FEATURES.iter().any(|f| name[8..] == *f.name)
            || name.starts_with("unsupported@")
            || name.contains(':');
        match native {
            Some(property) => Ok(Column::native(property, false)),
            None if is_other => Ok(Column::other(name, false)),
            None => Err(columns::bad_property(name)),
        }
    };
    columns::split(list)?.map(column).collect()
}

/// Returns the cells of a pool.
async fn cells(
    pool: Shown<'_>,
    columns: &[Column],
    is_literal: bool,
) -> Result<Vec<(String, Origin)>, Exit> {
    let names: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
    let cell = |row: Option<PropRow>| match row {
        Some(row) => (shown(&row, is_literal), row.source),
        None => ("-".to_owned(), Origin::None),
    };
    Ok(pool.properties(&names).await?.named.into_iter().map(cell).collect())
}

/// Formats a pool's property.
pub(super) fn shown(row: &PropRow, is_literal: bool) -> String {
    value::shown(row, is_literal)
}

async fn table(
    source: &Source,
    pools: &Pools,
    columns: &[Column],
    options: &Options,
) -> Result<String, Exit> {
    let (mut rows, mut vdevs, mut name_width) = (Vec::new(), Vec::new(), 0);
    for pool in pools.shown() {
        let cells = cells(pool, columns, options.is_literal).await?;
        let row: Vec<_> = cells.into_iter().map(|(cell, _)| cell).collect();
        source.charge_row(row.iter())?;
        rows.push(row);
        if options.has_vdevs {
            let status = pool.status(source).await?;
            let names = options.names.clone().within(&pool.vdevs());
            name_width = name_width.max(list_vdevs::width(&status, &names));
            vdevs.push((status, names));
        }
    }
    // With vdevs below, the name column is as wide as their names.
    let text = {
        let mut columns = columns.to_vec();
        if let Some(first) = columns.first_mut()
            && options.has_vdevs
        {
            first.width_min = name_width;
        }
        let mut text = Vec::new();
        zfs_list::write(&mut text, &columns, &rows, options.is_scripted, options.is_literal)?;
        String::from_utf8_lossy(&text).into_owned()
    };
    if !options.has_vdevs {
        return Ok(text);
    }
    let mut lines = text.lines();
    let mut text = String::new();
    if !options.is_scripted
        && let Some(header) = lines.next()
    {
        text.extend([header, "\n"]);
    }
    for (line, (status, names)) in lines.zip(vdevs) {
        text.extend([line, "\n"]);
        let options = Options { names, ..options.clone() };
        text.push_str(&list_vdevs::rows(&status, name_width, &options));
    }
    Ok(text)
}

async fn print_json(
    source: &Source,
    pools: &Pools,
    columns: &[Column],
    (form, is_literal, has_vdevs): (Form, bool, bool),
    io: &mut Io<'_>,
) -> CommandResult {
    let mut all = Map::new();
    for pool in pools.shown() {
        let mut map = pool.json(form, true);
        let cells = cells(pool, columns, is_literal).await?;
        let properties: Map<_, _> = columns
            .iter()
            .zip(&cells)
            .filter(|(column, _)| column.name != "name")
            .map(|(column, (cell, source))| {
                (column.name.clone(), zfs_json::property(form, cell, source))
            })
            .collect();
        map.insert("properties".into(), properties.into());
        if has_vdevs {
            let status = pool.status(source).await?;
            map.insert("vdevs".into(), list_vdevs::json(&status, form, is_literal).into());
        }
        all.insert(pool.key(form), map.into());
    }
    let mut document = json::document("zpool list");
    document.insert("pools".into(), all.into());
    json::print(document, io)
}
