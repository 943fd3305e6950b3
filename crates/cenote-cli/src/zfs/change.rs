//! The verbs that change existing datasets: `snapshot`, `rename`, `promote`, `rollback`, `set`,
//! `inherit`, `bookmark`, `hold`, `release`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_engine::admin::Ioctl;
use cenote_engine::{Engine, NewEncryption, OpError, PropertyChange};
use cenote_fs::{WritableVolume, volume};
use cenote_ondisk::nvlist::{NvList, NvValue};
use cenote_ondisk::zap::Value;
use cenote_pool::props::PropValue;
use cenote_pool::props::text::{self as setting, Moment, Setting};
use cenote_pool::{Dataset, DatasetKind, mos};

use super::create::{FileSystemOptions, wording};
use super::quotas::Limit;
use super::refuse::{self, check_inheritable, existing};
use super::{mount, moving, permits};
use crate::err;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::{Source, dataset_if_any};
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::zpool::block_on;

/// Status of `zfs set` when a property cannot be set.
const STATUS_OF_SET: i32 = 255;

/// Runs one of these verbs.
pub(super) fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let line = command_line(Tool::Zfs, verb, args);
    match verb {
        "snapshot" => snapshot(source, args, &line, io),
        "rename" => rename(source, args, &line, io),
        "promote" => promote(source, args, &line, io),
        "rollback" => rollback(source, args, &line, io),
        "set" => set(source, args, &line, io),
        "inherit" => inherit(source, args, &line, io),
        "bookmark" => bookmark(source, args, &line, io),
        "hold" => hold(source, args, &line, io),
        _ => release(source, args, &line, io),
    }
}

/// Adds all file systems and volumes below a dataset.
pub(super) async fn below(head: &Dataset, found: &mut Vec<Dataset>) -> CommandResult {
    for child in head.children().await? {
        found.push(child.clone());
        Box::pin(below(&child, found)).await?;
    }
    Ok(())
}

/// Returns a head dataset, and with `all` its descendants.
pub(super) async fn heads(source: &Source, name: &str, all: bool) -> Result<Vec<Dataset>, Exit> {
    let head = existing(source, name).await?;
    let mut found = vec![head.clone()];
    if all {
        below(&head, &mut found).await?;
    }
    Ok(found)
}

fn snapshot(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "ro:", &[])?;
    if parsed.operands.is_empty() {
        return Err(Exit::usage("missing snapshot argument"));
    }
    let mut props = Vec::new();
    for text in parsed.values('o') {
        let Some((name, value)) = text.split_once('=') else {
            return Err(Exit::usage("missing '=' for property=value argument"));
        };
        let setting = setting::parse(name, value, 's', Moment::Later);
        props
            .push(setting.map_err(|why| Exit::failed(format!("cannot create snapshots : {why}")))?);
    }
    block_on(async {
        // A transaction takes one snapshot of a dataset, at most.
        let (mut rounds, mut taken_of) = (Vec::<Vec<String>>::new(), BTreeMap::new());
        let mut wanted = BTreeSet::new();
        for name in &parsed.operands {
            let Some((head, short)) = name.split_once('@') else { return Err(Exit::usage("")) };
            let found = match heads(source, head, parsed.has('r')).await {
                Err(Exit::Failed(message)) => return Err(Exit::usage(message)),
                found => found?,
            };
            for head in found {
                let name = format!("{}@{short}", head.name());
                if let Err(error) = cenote_pool::DatasetName::parse(&name) {
                    return Err(not_made(&name, &error.to_string()));
                }
                let set: Vec<String> =
                    props.iter().map(|(name, _)| permits::of_property(name)).collect();
                let rights: Vec<&str> =
                    std::iter::once("snapshot").chain(set.iter().map(String::as_str)).collect();
                let action = ("create snapshot", name.as_str());
                permits::need_for(source, &head, &rights, action).await?;
                if mos::optional(head.snapshot(short).await)?.is_some()
                    || !wanted.insert(name.clone())
                {
                    return Err(not_made(&name, "dataset already exists"));
                }
                let round: &mut usize = taken_of.entry(head.name().to_owned()).or_default();
                if rounds.len() == *round {
                    rounds.push(Vec::new());
                }
                rounds[*round].push(name);
                *round += 1;
            }
        }
        for names in rounds {
            take_snapshots(source, names, props.clone(), line, io).await?;
        }
        Ok(())
    })
}

/// Takes snapshots of different datasets in one transaction.
async fn take_snapshots(
    source: &Source,
    wanted: Vec<String>,
    props: Vec<Setting>,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let requester = source.requester();
    let first = wanted.first().cloned().unwrap_or_default();
    let names = wanted.iter().map(|name| (name.clone(), NvValue::Boolean)).collect();
    let ioctl = Ioctl { name: "snapshot", key: Some("snaps"), names };
    Writer::run_ioctl(source, &first, (line, ioctl), io, async |engine, _| {
        let snapshots = engine.snapshots().by(&requester);
        let taken = snapshots.create_with(wanted, props).await;
        taken.map_err(|error| not_made(&first, &wording(&error)))
    })
    .await
}

fn not_made(name: &str, why: &str) -> Exit {
    Exit::failed(format!("cannot create snapshot '{name}': {why}"))
}

fn rename(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "pruf", &[])?;
    let source = &source.with_mounts_left(parsed.has('u'));
    let missing = ["missing source dataset argument", "missing target dataset argument"];
    let [from, to] = getopt::exactly(&parsed.operands, missing)?;
    if parsed.has('r') && parsed.has('p') {
        return Err(Exit::usage("-p and -r options are mutually exclusive"));
    }
    if parsed.has('r') && !from.contains('@') {
        return Err(Exit::usage("source dataset for recursive rename must be a snapshot"));
    }
    let cannot = |why: &str| Exit::failed(format!("cannot rename '{from}': {why}"));
    block_on(async {
        if let Some((head, old)) = from.split_once('@') {
            let new = match to.split_once('@') {
                Some(("", new)) => new,
                Some((other, new)) if other == head => new,
                Some(_) => return Err(cannot("snapshots must be part of same dataset")),
                None => to,
            };
            let must_be_there = if parsed.has('r') { head } else { from };
            let found = existing(source, must_be_there).await?;
            let rights = &["rename", "mount"];
            permits::need_for(source, &found, rights, ("rename", from)).await?;
            let parent = existing(source, head).await?;
            permits::need_for(source, &parent, &["create", "mount"], ("rename", from)).await?;
            let work = async |engine: &Arc<Engine>, _: &mut Io<'_>| {
                let done = engine.snapshots().rename(head, old, new, parsed.has('r')).await;
                done.map_err(|error| cannot(&wording(&error)))
            };
            return Writer::run(source, head, Some(line), io, work).await;
        }
        let dataset = existing(source, from).await?;
        check_target(source, &dataset, from, to).await?;
        permits::need(source, &dataset, &["rename", "mount"], "rename").await?;
        let pool = dataset.pool();
        permits::need_above(source, pool, to, &["create", "mount"], "rename").await?;
        let missing = missing_parents(&dataset, to).await?;
        if !missing.is_empty() && !parsed.has('p') {
            return Err(cannot("parent does not exist"));
        }
        let options = FileSystemOptions::below(source, dataset.pool(), to).await?;
        let moved = source.moved(Box::pin(moving::by_name(&dataset))).await?;
        drop(dataset);
        let requester = source.requester();
        let work = Box::pin(Writer::run(source, from, Some(line), io, async |engine, _| {
            for parent in missing {
                options.make(engine, &parent, &[], NewEncryption::Inherited).await?;
            }
            let done = engine.datasets().by(&requester).rename(from, to).await;
            done.map_err(|error| match error.cause() {
                Some(OpError::OtherKey) => {
                    cannot("cannot move encrypted child outside of its encryption root")
                }
                _ => cannot(&wording(&error)),
            })
        }));
        mount::report_not_mounted(source.without_mounts(&moved, parsed.has('f'), work).await, io)
    })
}

async fn check_target(source: &Source, dataset: &Dataset, from: &str, to: &str) -> CommandResult {
    let cannot = |why: &str| Err(Exit::failed(format!("cannot rename '{from}': {why}")));
    let first = |name: &str| name.split('/').next().unwrap_or_default().to_owned();
    if first(from) != first(to) {
        let pool = first(to);
        if source.pool(&pool).await.is_err() {
            return Err(Exit::failed(format!("cannot create '{to}': no such pool '{pool}'")));
        }
        return cannot("datasets must be within same pool");
    }
    if !from.contains('/') {
        return cannot("operation does not apply to pools");
    }
    if to.starts_with(&format!("{from}/")) {
        return cannot("New dataset name cannot be a descendant of current dataset name");
    }
    if dataset_if_any(dataset.pool(), to).await?.is_some() {
        return cannot("dataset already exists");
    }
    Ok(())
}

async fn missing_parents(dataset: &Dataset, to: &str) -> Result<Vec<String>, Exit> {
    let mut missing = Vec::new();
    for (end, _) in to.match_indices('/') {
        if dataset_if_any(dataset.pool(), &to[..end]).await?.is_none() {
            missing.push(to[..end].to_owned());
        }
    }
    Ok(missing)
}

fn promote(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "", &[])?;
    let [name] = getopt::exactly(&parsed.operands, ["missing clone filesystem argument"])?;
    block_on(async {
        let dataset = existing(source, name).await?;
        let Some(origin) = dataset.origin().await? else {
            return Err(Exit::failed(format!("cannot promote '{name}': not a cloned filesystem")));
        };
        permits::need(source, &dataset, &["promote", "mount"], "promote").await?;
        permits::need_for(source, &origin, &["promote"], ("promote", name)).await?;
        drop(origin);
        drop(dataset);
        let requester = source.requester();
        Writer::run(source, name, Some(line), io, async |engine, _| {
            engine.datasets().by(&requester).promote(name).await.map_err(|error| {
                let why = match error.cause() {
                    Some(OpError::Exists) => "conflicting snapshot names".to_owned(),
                    Some(OpError::OtherKey) => {
                        "cannot promote encrypted child outside its encryption root".to_owned()
                    }
                    _ => wording(&error),
                };
                Exit::cannot("promote", name, why)
            })
        })
        .await
    })
}

fn rollback(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "rRf", &[])?;
    let [name] = getopt::exactly(&parsed.operands, ["missing dataset argument"])?;
    let Some((head_name, _)) = name.split_once('@') else {
        return Err(Exit::failed(format!(
            "cannot open '{name}': missing '@' delimiter in snapshot name"
        )));
    };
    block_on(async {
        let snapshot = existing(source, name).await?;
        let head = existing(source, head_name).await?;
        let later = Later::than(&snapshot, &head).await?;
        later.check(name, &parsed)?;
        permits::need(source, &head, &["rollback"], "rollback").await?;
        let lost = [&later.clones[..], &later.snapshots].concat();
        permits::need_on(source, head.pool(), &lost, &["destroy", "mount"], "destroy").await?;
        if !later.bookmarks.is_empty() {
            permits::need(source, &head, &["destroy"], "destroy").await?;
        }
        drop((snapshot, head));
        let doomed = later.clones.clone();
        source.close_unused_snapshots(head_name);
        let work = Box::pin(Writer::run(source, head_name, Some(line), io, async |engine, _| {
            let work = async {
                let done = later.roll_back(engine, head_name, name).await;
                done.map_err(|error| Exit::cannot("rollback", head_name, wording(&error)))
            };
            source.suspended(head_name, (name, "rollback"), work).await
        }));
        source.without_mounts(&doomed, parsed.has('f'), work).await
    })
}

/// Everything later than a snapshot, which a rollback to it destroys.
#[derive(Default)]
struct Later {
    snapshots: Vec<String>,
    bookmarks: Vec<String>,
    clones: Vec<String>,
}

impl Later {
    async fn than(snapshot: &Dataset, head: &Dataset) -> Result<Self, Exit> {
        let txg = snapshot.phys().creation_txg;
        let mut later = Self::default();
        for other in head.snapshots().await? {
            if other.phys().creation_txg > txg {
                later.clones.extend(other.clone_names().await?);
                later.snapshots.push(other.name().to_owned());
            }
        }
        for mark in head.bookmarks().await? {
            if mark.phys.creation_txg > txg {
                later.bookmarks.push(format!("{}#{}", head.name(), mark.short_name()));
            }
        }
        Ok(later)
    }

    /// Destroys all of it, then rolls `head` back to its snapshot `name`.
    async fn roll_back(self, engine: &Engine, head: &str, name: &str) -> cenote_rt::Result<()> {
        for clone in &self.clones {
            engine.datasets().destroy(clone).await?;
        }
        if !self.snapshots.is_empty() {
            engine.snapshots().destroy_all(self.snapshots, false).await?;
        }
        if !self.bookmarks.is_empty() {
            engine.bookmarks().destroy_all(self.bookmarks).await?;
        }
        engine.datasets().rollback(head, Some(name)).await.map(drop)
    }

    fn check(&self, name: &str, parsed: &Parsed) -> CommandResult {
        let (all, clones) = (parsed.has('r') || parsed.has('R'), parsed.has('R'));
        if !self.clones.is_empty() && all && !clones {
            return Err(Exit::failed(format!(
                "cannot rollback to '{name}': clones of previous snapshots exist\n\
                 use '-R' to force deletion of the following clones and dependents:\n{}",
                self.clones.join("\n")
            )));
        }
        let names: Vec<_> = self.snapshots.iter().chain(&self.bookmarks).cloned().collect();
        if !names.is_empty() && !all {
            return Err(Exit::failed(format!(
                "cannot rollback to '{name}': more recent snapshots or bookmarks exist\n\
                 use '-r' to force deletion of the following snapshots and bookmarks:\n{}",
                names.join("\n")
            )));
        }
        Ok(())
    }
}

fn set(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "u", &[])?;
    let source = &source.with_mounts_left(parsed.has('u'));
    let count = parsed.operands.iter().take_while(|operand| operand.contains('=')).count();
    if parsed.operands.is_empty() {
        return Err(Exit::usage("missing arguments"));
    }
    if count == 0 {
        return Err(Exit::usage("missing property=value argument(s)"));
    }
    let (settings, names) = parsed.operands.split_at(count);
    if names.is_empty() {
        return Err(Exit::usage("missing dataset name(s)"));
    }
    block_on(async {
        for name in names {
            let dataset = existing(source, name).await?;
            let changes = Changes::of(&dataset, settings).await?;
            let rights: Vec<String> = settings
                .iter()
                .map(|text| permits::of_property(text.split('=').next().unwrap_or_default()))
                .collect();
            let rights: Vec<&str> = rights.iter().map(String::as_str).collect();
            permits::need(source, &dataset, &rights, "set property for").await?;
            let moved = source.moved(Box::pin(moving::by_settings(&dataset, settings))).await?;
            let placed =
                source.moved(Box::pin(moving::by_unchanged_mountpoint(&dataset, settings))).await?;
            drop(dataset);
            let work = Box::pin(Writer::run(source, name, Some(line), io, async |engine, _| {
                changes.make(engine, name).await
            }));
            let done = source.without_mounts(&moved, false, work).await;
            mount::report_not_mounted(done, io)?;
            mount::mount_missing(source, &placed, io).await?;
        }
        Ok(())
    })
}

fn not_set(name: &str, why: &str) -> Exit {
    Exit::FailedWith(format!("cannot set property for '{name}': {why}"), STATUS_OF_SET)
}

/// The changes of one `set`.
struct Changes {
    props: Vec<Setting>,
    /// The volume's new size.
    volsize: Option<u64>,
    /// Limits of users, groups and projects.
    limits: Vec<Limit>,
    /// Properties, by dataset, that override mount options again.
    again: Vec<(u64, &'static str)>,
}

impl Changes {
    async fn of(dataset: &Dataset, settings: &[String]) -> Result<Self, Exit> {
        let name = dataset.name();
        let kind = match (dataset.is_snapshot(), dataset.kind().await?) {
            (true, _) => 's',
            (false, DatasetKind::Volume) => 'v',
            (false, _) => 'f',
        };
        let named = settings.iter().map(|text| text.split('=').next().unwrap_or_default());
        let again = moving::overriding_options(dataset, named).await?;
        let mut changes = Self { props: Vec::new(), volsize: None, limits: Vec::new(), again };
        for text in settings {
            let (property, value) = text.split_once('=').unwrap_or((text, ""));
            if let Some(limit) = Limit::parse(property, value, kind) {
                changes.limits.push(limit.map_err(|why| not_set(name, &why))?);
                continue;
            }
            refuse::sharing(property, value).map_err(|why| not_set(name, &why))?;
            let setting = setting::parse(property, value, kind, Moment::Later)
                .map_err(|why| not_set(name, &why))?;
            match (setting.0.as_str(), setting.1.single()) {
                ("volsize", Some(size)) => {
                    let block = number(dataset, "volblocksize").await?.max(1);
                    if !size.is_multiple_of(block) {
                        let why =
                            format!("'volsize' must be a multiple of volume block size ({block})");
                        return Err(not_set(name, &why));
                    }
                    changes.volsize = Some(size);
                }
                ("refreservation", Some(setting::AUTO)) => {
                    changes.props.push(whole_reservation(dataset, dataset).await?);
                }
                ("keylocation", _) => {
                    check_key_location(dataset, value).await?;
                    changes.props.push(setting);
                }
                // New file systems have the only version there is.
                ("version", _) => {}
                _ => changes.props.push(setting),
            }
        }
        Ok(changes)
    }

    async fn make(self, engine: &Arc<Engine>, name: &str) -> CommandResult {
        let properties: Vec<_> = self.props.iter().map(|(name, _)| name.clone()).collect();
        let changes =
            self.props.into_iter().map(|(name, value)| (name, PropertyChange::Set(value)));
        let changes: Vec<_> = changes.collect();
        if !changes.is_empty() {
            change_in_parts(engine, name, changes).await.map_err(|error| {
                let is_limit = |name: &String| matches!(name.as_str(), "quota" | "refquota");
                let why = match error.cause() {
                    Some(OpError::NoSpace) if properties.iter().any(is_limit) => {
                        "size is less than current used or reserved space".to_owned()
                    }
                    Some(OpError::NoSpace) => "size is greater than available space".to_owned(),
                    _ => wording(&error),
                };
                not_set(name, &why)
            })?;
        }
        engine.presence().drop_temporary(&self.again);
        for limit in self.limits {
            limit.set(engine, name).await?;
        }
        if let Some(size) = self.volsize {
            let volume = WritableVolume::open(engine, name).await?;
            volume.resize(size).await.map_err(|error| {
                let why = match error.cause() {
                    Some(OpError::NoSpace) => "size is greater than available space".to_owned(),
                    _ => wording(&error),
                };
                not_set(name, &why)
            })?;
        }
        Ok(())
    }
}

/// Refuses a place of the key of a dataset that has no key of its own.
async fn check_key_location(dataset: &Dataset, location: &str) -> CommandResult {
    let key = dataset.key_info().await?;
    let why = match (key, location) {
        (None, "none") => return Ok(()),
        (None, _) => "keylocation must be 'none' for unencrypted datasets",
        (Some(_), "none") => "keylocation must not be 'none' for encrypted datasets",
        (Some(key), _) if key.root_dir != dataset.dir().object => {
            "keylocation can only be set on encryption roots"
        }
        (Some(_), _) => return Ok(()),
    };
    Err(not_set(dataset.name(), why))
}

/// Changes properties: at once, or in smaller parts if the pool has no room for what so many
/// changes could need at most. Changes of limits and reservations are not divided: their lack of
/// space is that of their value.
async fn change_in_parts(
    engine: &Arc<Engine>,
    dataset: &str,
    changes: Vec<(String, PropertyChange)>,
) -> cenote_rt::Result<()> {
    const OF_SPACE: [&str; 4] = ["quota", "refquota", "reservation", "refreservation"];
    let is_whole = changes.iter().any(|(name, _)| OF_SPACE.contains(&name.as_str()));
    let mut parts = vec![changes];
    while let Some(mut part) = parts.pop() {
        match engine.properties().change(dataset, part.clone()).await {
            Err(error)
                if part.len() > 1
                    && !is_whole
                    && matches!(error.cause(), Some(OpError::NoSpace)) =>
            {
                let rest = part.split_off(part.len() / 2);
                parts.extend([rest, part]);
            }
            changed => {
                changed?;
            }
        }
    }
    Ok(())
}

async fn number(dataset: &Dataset, name: &str) -> Result<u64, Exit> {
    let row = dataset.props().await?.get(name).await?;
    Ok(match row.map(|row| row.value) {
        Some(PropValue::Number(number)) => number,
        _ => 0,
    })
}

/// Returns the reservation of a volume with all its space reserved. A snapshot does not store the
/// volume block size: `head` does.
pub(super) async fn whole_reservation(dataset: &Dataset, head: &Dataset) -> Result<Setting, Exit> {
    let size = number(dataset, "volsize").await?;
    let block = number(head, "volblocksize").await?.max(1);
    let tops = &dataset.pool().config().vdev_tree.children;
    let reserved = volume::reservation(size, block, 1, tops);
    Ok(("refreservation".to_owned(), Value::U64(reserved)))
}

fn inherit(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "rS", &[])?;
    let [property, names @ ..] = &parsed.operands[..] else {
        return Err(Exit::usage("missing property argument"));
    };
    if names.is_empty() {
        return Err(Exit::usage("missing dataset argument"));
    }
    let is_reverted = parsed.has('S');
    if !is_reverted {
        check_inheritable(property)?;
    }
    let property =
        cenote_pool::props::property_named(cenote_pool::props::DATASET_PROPERTIES, property)
            .map_or(property.as_str(), |found| found.name);
    block_on(async {
        for name in names {
            let all = heads(source, name, parsed.has('r')).await?;
            let right = permits::of_property(property);
            for dataset in &all {
                permits::need(source, dataset, &[&right], "set property for").await?;
            }
            let moved = source.moved(Box::pin(moving::by_inheriting(&all, property))).await?;
            let mut again = Vec::new();
            for dataset in &all {
                again.extend(moving::overriding_options(dataset, std::iter::once(property)).await?);
            }
            let all: Vec<_> = all.iter().map(|dataset| dataset.name().to_owned()).collect();
            let work = Box::pin(Writer::run(source, name, Some(line), io, async |engine, _| {
                for dataset in all {
                    let done = engine.properties().inherit(&dataset, property, is_reverted).await;
                    done.map_err(|error| {
                        let why = wording(&error);
                        Exit::cannot(&format!("inherit {property} for"), &dataset, why)
                    })?;
                }
                engine.presence().drop_temporary(&again);
                Ok(())
            }));
            let done = source.without_mounts(&moved, false, work).await;
            mount::report_not_mounted(done, io)?;
        }
        Ok(())
    })
}

fn bookmark(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "", &[])?;
    let missing = ["missing source argument", "missing bookmark argument"];
    let [from, to] = getopt::exactly(&parsed.operands, missing)?;
    let head = |name: &str| name.split(['@', '#']).next().unwrap_or_default().to_owned();
    // Either name may be abbreviated to its part from `@` or `#` on, with the dataset of the other.
    let source_name =
        if from.starts_with(['@', '#']) { format!("{}{from}", head(to)) } else { from.clone() };
    let name = if to.starts_with('#') { format!("{}{to}", head(&source_name)) } else { to.clone() };
    let cannot = |why: &str| Exit::failed(format!("cannot create bookmark '{name}': {why}"));
    if !name.contains('#') {
        return Err(Exit::usage(format!("invalid bookmark name '{name}': must contain a '#'")));
    }
    block_on(async {
        if source_name.contains('#') {
            let of = existing(source, &head(&source_name)).await?;
            let short = source_name.split_once('#').map_or("", |(_, short)| short);
            if mos::optional(of.bookmark(short).await)?.is_none() {
                return Err(Exit::failed(format!(
                    "cannot open '{source_name}': dataset does not exist"
                )));
            }
        } else {
            existing(source, &source_name).await?;
        }
        let of = existing(source, &head(&name)).await?;
        permits::need_for(source, &of, &["bookmark"], ("create bookmark", &name)).await?;
        Writer::run(source, &name, Some(line), io, async |engine, _| {
            let done = engine.bookmarks().create(vec![(name.clone(), source_name.clone())]).await;
            done.map_err(|error| match error.cause() {
                Some(OpError::Exists) => cannot("bookmark exists"),
                Some(OpError::NotAnAncestor) => {
                    cannot("source is not an ancestor of the new bookmark's dataset")
                }
                _ => cannot(&wording(&error)),
            })
        })
        .await
    })
}

/// What `hold` and `release` do, in their messages.
const HOLD: &str = "hold snapshot";
const RELEASE: &str = "release hold from snapshot";

/// Returns the tag and the snapshots of `hold` and `release`; with `-r` also the snapshots of the
/// same name below.
async fn tagged(
    source: &Source,
    parsed: &Parsed,
    what: &str,
) -> Result<(String, Vec<Dataset>), Exit> {
    let [tag, names @ ..] = &parsed.operands[..] else {
        return Err(Exit::usage("too few arguments"));
    };
    if names.is_empty() {
        return Err(Exit::usage("too few arguments"));
    }
    if tag.starts_with('.') {
        return Err(Exit::usage("tag may not start with '.'"));
    }
    let mut found = Vec::new();
    for name in names {
        let Some((head, short)) = name.split_once('@') else {
            return Err(Exit::failed(format!("'{name}' is not a snapshot")));
        };
        if !parsed.has('r') {
            found.push(existing(source, name).await?);
            continue;
        }
        let before = found.len();
        for head in heads(source, head, true).await? {
            found.extend(mos::optional(head.snapshot(short).await)?);
        }
        if found.len() == before {
            return Err(Exit::failed(format!("cannot {what} '{name}': dataset does not exist")));
        }
    }
    Ok((tag.clone(), found))
}

fn hold(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "rt", &[])?;
    block_on(async {
        let (tag, snapshots) = tagged(source, &parsed, HOLD).await?;
        let mut wanted = Vec::new();
        for snapshot in &snapshots {
            let name = snapshot.name().to_owned();
            if snapshot.holds().await?.iter().any(|hold| hold.tag == tag) {
                let text = "tag already exists on this dataset";
                return Err(Exit::failed(format!("cannot {HOLD} '{name}': {text}")));
            }
            wanted.push((name, tag.clone()));
        }
        change_holds(source, wanted, true, line, io).await
    })
}

fn release(source: &Source, args: &[String], line: &str, io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "rt", &[])?;
    block_on(async {
        let (tag, snapshots) = tagged(source, &parsed, RELEASE).await?;
        let mut wanted = Vec::new();
        for snapshot in &snapshots {
            let name = snapshot.name().to_owned();
            if snapshot.holds().await?.iter().any(|hold| hold.tag == tag) {
                wanted.push((name, tag.clone()));
            } else if !parsed.has('r') {
                let text = "no such tag on this dataset";
                err!(io, "cannot {RELEASE} '{name}': {text}")?;
                return Err(Exit::Status(1));
            }
        }
        if let (true, Some(name)) = (wanted.is_empty(), parsed.operands.get(1)) {
            return Err(Exit::cannot(RELEASE, name, "no such tag on this dataset"));
        }
        change_holds(source, wanted, false, line, io).await
    })
}

/// Returns OpenZFS's ioctl: `hold` has the tag of each snapshot, `release` a list of tags.
fn ioctl_of_holds(wanted: &[(String, String)], is_hold: bool) -> Ioctl {
    let value = |tag: &String| {
        if is_hold {
            return NvValue::from(tag.as_str());
        }
        let mut tags = NvList::new();
        tags.insert(tag.as_str(), NvValue::Boolean);
        NvValue::from(tags)
    };
    let names = wanted.iter().map(|(name, tag)| (name.clone(), value(tag))).collect();
    let (name, key) = if is_hold { ("hold", Some("holds")) } else { ("release", None) };
    Ioctl { name, key, names }
}

async fn change_holds(
    source: &Source,
    wanted: Vec<(String, String)>,
    is_hold: bool,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let Some((first, _)) = wanted.first().cloned() else { return Ok(()) };
    let right = if is_hold { "hold" } else { "release" };
    for (name, _) in &wanted {
        let head = name.split_once('@').map_or(name.as_str(), |(head, _)| head);
        let head = source.dataset(head).await?;
        permits::need_for(source, &head, &[right], (right, name)).await?;
    }
    if !is_hold {
        // A snapshot with a deferred destroy is destroyed with its last hold.
        source.close_unused_snapshots(&first);
    }
    let ioctl = ioctl_of_holds(&wanted, is_hold);
    Writer::run_ioctl(source, &first, (line, ioctl), io, async |engine, _| {
        let done = if is_hold {
            engine.snapshots().hold(wanted, false).await
        } else {
            engine.snapshots().release(wanted).await
        };
        let what = if is_hold { HOLD } else { RELEASE };
        done.map_err(|error| Exit::cannot(what, &first, wording(&error)))
    })
    .await
}
