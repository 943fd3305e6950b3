//! `zpool get`.

use cenote_ondisk::config::VdevKind;
use cenote_pool::props::Source as Origin;
use serde_json::Map;

use super::json::{self, Form};
use super::list;
use super::names::Names;
use super::shown::Shown as PoolShown;
use super::vdev_props::Shown;
use super::{block_on, pools_in_memory, vdev_props};
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::zfs::columns::{self, Column, Field};
use crate::zfs::get::{Row, write};
use crate::zfs::json as zfs_json;

/// Runs `zpool get`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, ":jHpo:", &json::POOL_LONGS[..3])?;
    let form = Form::of(&parsed)?;
    let fields = columns::fields(parsed.value('o'), false)?;
    let [wanted, names @ ..] = &parsed.operands[..] else {
        return Err(Exit::usage("missing property argument"));
    };
    if let Some(result) = block_on(of_vdevs(source, wanted, names, (&parsed, form, &fields), io))? {
        return result;
    }
    // What `all` means depends on the pool.
    let wanted = match wanted.as_str() {
        "all" => None,
        list => Some(list::pool_columns(list)?),
    };
    let is_literal = parsed.has('p') || form.has_numbers;
    let missing = |name: &str| format!("Cannot get properties of {name}: no such pool available.");
    block_on(async {
        let pools = pools_in_memory(source, names, missing, io).await?;
        let (mut rows, mut all, mut width, mut name_width) = (Vec::new(), Map::new(), 0, 0);
        for pool in pools.shown() {
            let names: Vec<&str> = wanted.iter().flatten().map(|c| c.name.as_str()).collect();
            let props = pool.properties(&names).await?;
            let found: Vec<(Column, _)> = match &wanted {
                Some(columns) => columns.iter().cloned().zip(props.named).collect(),
                None => props
                    .all
                    .into_iter()
                    .map(|row| {
                        let column = match row.property {
                            Some(property) => Column::native(property, true),
                            None => Column::other(&row.name, true),
                        };
                        (column, Some(row))
                    })
                    .collect(),
            };
            let mut properties = Map::new();
            let name = pool.name();
            name_width = name_width.max(name.len());
            for (column, row) in found {
                // A user property that is not set has the source "default".
                let unset = if column.name.contains(':') { Origin::Default } else { Origin::None };
                let origin = row.as_ref().map_or(unset, |row| row.source.clone());
                let shown = row.map_or_else(|| "-".into(), |row| list::shown(&row, is_literal));
                let widened = if column.widens(is_literal) { shown.chars().count() } else { 0 };
                width = width.max(column.width()).max(widened);
                source.charge_json(&shown)?;
                source.charge_row([&name, &column.name, &shown].into_iter())?;
                properties.insert(column.name.clone(), zfs_json::property(form, &shown, &origin));
                rows.push(Row {
                    name: name.clone(),
                    property: column.name,
                    value: shown,
                    received: String::new(),
                    source: origin,
                });
            }
            let mut map = pool.json(form, true);
            map.insert("properties".into(), properties.into());
            all.insert(pool.key(form), map.into());
        }
        if form.is_wanted {
            let mut document = json::document("zpool get");
            document.insert("pools".into(), all.into());
            json::print(document, io)?;
        } else {
            write(io.out, &rows, &fields, parsed.has('H'), name_width, width)?;
        }
        pools.finish()
    })
}

/// Prints properties of vdevs, if the words after a pool's name denote vdevs.
async fn of_vdevs(
    source: &Source,
    list: &str,
    words: &[String],
    (parsed, form, fields): (&Parsed, Form, &[Field]),
    io: &mut Io<'_>,
) -> Result<Option<CommandResult>, Exit> {
    let Some((pool, words)) = words.split_first().filter(|(_, words)| !words.is_empty()) else {
        return Ok(None);
    };
    let Ok(pool) = source.pool(pool).await else { return Ok(None) };
    let status = pool.status().await?;
    let names = Names::default().within(&pool.config().vdev_tree);
    let Some(vdevs) = vdev_props::find(&status, words, &names) else { return Ok(None) };
    let wanted = vdev_props::columns(list)?;
    let is_literal = parsed.has('p') || form.has_numbers;
    let shown = Shown { status: &status, names: &names, is_literal };
    let (mut rows, mut all) = (Vec::new(), Map::new());
    for vdev in vdevs {
        let config = &pool.config().vdev_tree;
        let config =
            if vdev.kind == VdevKind::Root { Some(config) } else { config.find(vdev.guid) };
        let stored = match config {
            Some(config) => pool.vdevs().properties(config).await?,
            None => Vec::new(),
        };
        let mut properties = Map::new();
        for row in vdev_props::rows(&shown, vdev, &stored, (&wanted, list == "all")) {
            source.charge_row([&row.name, &row.property, &row.value].into_iter())?;
            if form.is_wanted {
                source.charge_json(&row.value)?;
                let property = zfs_json::property(form, &row.value, &row.source);
                properties.insert(row.property.clone(), property);
            }
            rows.push(row);
        }
        if form.is_wanted {
            let mut map = json::vdev(form, vdev, &vdev_props::shown_name(vdev, &names), true);
            map.insert("properties".into(), properties.into());
            all.insert(vdev_props::shown_name(vdev, &names), map.into());
        }
    }
    if form.is_wanted {
        let mut document = json::document("zpool get");
        document.insert("pool".into(), PoolShown::Read(&pool).json(form, false).into());
        document.insert("vdevs".into(), all.into());
        json::print(document, io)?;
        return Ok(Some(Ok(())));
    }
    let widest = |part: fn(&Row) -> &String| {
        rows.iter().map(|row| part(row).chars().count()).max().unwrap_or(0)
    };
    let (name_width, width) = (widest(|row| &row.name), widest(|row| &row.value));
    write(io.out, &rows, fields, parsed.has('H'), name_width, width)?;
    Ok(Some(Ok(())))
}
