//! `zfs create` and `zfs clone`.

use std::sync::Arc;

use cenote_engine::{Engine, NewDataset, NewEncryption, OpError};
use cenote_fs::format::{NewFileSystem, fill_volume};
use cenote_fs::volume::{DEFAULT_BLOCK_SIZE, default_block_size, reservation};
use cenote_ondisk::blkptr::SMALL_BLOCK_MAX;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_pool::dsl::deleg::Requester;
use cenote_pool::props::quantity;
use cenote_pool::props::text::{self as setting, Moment, Setting, is_stored};
use cenote_pool::{Dataset, DatasetKind, Pool};

use super::change::whole_reservation;
use super::encryption::{self, KeyInput};
use super::permits;
use super::quotas::Limit;
use super::refuse::{self, check_new_name, existing};
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::{Source, dataset_if_any, nearest_above};
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::zpool::block_on;
use crate::zpool::create::new_file_system;

/// The kind of dataset to create.
enum New {
    FileSystem,
    Volume { size: u64, block_size: u64, is_sparse: bool },
}

/// `canmount=on`
const CANMOUNT_ON: u64 = 1;

/// Runs `zfs create`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let longs =
        [Long::flag("parsable", 'P'), Long::flag("dryrun", 'n'), Long::flag("verbose", 'v')];
    let parsed = getopt::parse(args, ":PV:b:nso:puv", &longs)?;
    let is_volume = parsed.has('V');
    if (parsed.has('s') || parsed.has('b')) && !is_volume {
        return Err(Exit::usage("'-s' and '-b' can only be used when creating a volume"));
    }
    if is_volume && parsed.has('u') {
        return Err(Exit::usage("'-u' can only be used when creating a filesystem"));
    }
    let missing = if is_volume { "missing volume argument" } else { "missing filesystem argument" };
    let [name] = getopt::exactly(&parsed.operands, [missing])?;
    let line = command_line(Tool::Zfs, "create", args);
    let source = &source.with_mounts_left(parsed.has('u'));
    block_on(create(source, name, &parsed, &line, io))
}

fn cannot(name: &str, why: impl std::fmt::Display) -> Exit {
    Exit::failed(format!("cannot create '{name}': {why}"))
}

async fn create(
    source: &Source,
    name: &str,
    parsed: &Parsed,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let pool = pool_of(source, name).await?;
    let kind = if parsed.has('V') { 'v' } else { 'f' };
    let (settings, limits) = settings(name, parsed, kind)?;
    let new = plan(&pool, name, parsed, &settings)?;
    let wanted = match new {
        New::FileSystem => DatasetKind::Filesystem,
        New::Volume { .. } => DatasetKind::Volume,
    };
    let missing = ancestors(source, &pool, name, parsed.has('p').then_some(wanted)).await?;
    let Some(missing) = missing else { return Ok(()) };
    may_create(source, &pool, name, (&settings, &limits), &new).await?;
    let options = FileSystemOptions::below(source, &pool, name).await?;
    let (props, reserved) = with_reservation(&pool, &settings, &new);
    if parsed.has('v') || parsed.has('P') {
        print_plan(name, parsed, &new, reserved, io)?;
    }
    if parsed.has('n') {
        return Ok(());
    }
    let encryption = {
        let parent = existing_ancestor(&pool, name).await?;
        let wanted = encryption::Wanted::of(&settings);
        let has_feature = encryption::has_feature(&pool);
        let found = wanted.for_new(source, Some(&parent), has_feature, KeyInput::Free, io).await;
        found.map_err(|why| cannot(name, why))?
    };
    drop(pool);
    let is_volume = matches!(new, New::Volume { .. });
    let is_to_mount = number(&settings, "canmount").is_none_or(|value| value == CANMOUNT_ON);
    Writer::run(source, name, Some(line), io, async |engine, _| {
        for ancestor in missing {
            options.make(engine, &ancestor, &[], NewEncryption::Inherited).await?;
        }
        let (size, block_size) = match new {
            New::FileSystem => {
                options.make(engine, name, &settings, encryption).await?;
                return set_all(limits, engine, name).await;
            }
            New::Volume { size, block_size, .. } => (size, block_size),
        };
        let new = NewDataset {
            name: name.to_owned(),
            kind: ObjSetType::Zvol,
            props: props.into_iter().filter(|(name, _)| is_stored(name)).collect(),
            encryption,
            fill: Box::new(move |tx| fill_volume(tx, size, block_size)),
        };
        make(engine, &options.requester, new).await
    })
    .await?;
    if !source.is_trusted() && !is_volume && !parsed.has('u') && is_to_mount {
        let text = "filesystem successfully created, but it may only be mounted by root";
        return Err(Exit::failed(text));
    }
    Ok(())
}

/// Refuses a caller without the permissions for creating this dataset.
async fn may_create(
    source: &Source,
    pool: &Arc<Pool>,
    name: &str,
    (settings, limits): (&[Setting], &[Limit]),
    new: &New,
) -> CommandResult {
    let set: Vec<String> = settings.iter().map(|(name, _)| permits::of_property(name)).collect();
    let mut needed = vec!["create", "mount"];
    needed.extend(limits.iter().map(|limit| limit.permission()));
    needed.extend(set.iter().map(String::as_str));
    if let New::Volume { is_sparse: false, .. } = new {
        needed.push("refreservation");
    }
    permits::need_above(source, pool, name, &needed, "create").await
}

/// Sets quotas of users, groups and projects in a new file system.
async fn set_all(limits: Vec<Limit>, engine: &Engine, name: &str) -> CommandResult {
    for limit in limits {
        limit.set(engine, name).await?;
    }
    Ok(())
}

async fn make(engine: &Engine, requester: &Requester, new: NewDataset) -> CommandResult {
    let name = new.name.clone();
    let made = engine.datasets().by(requester).create(new).await;
    made.map(drop).map_err(|error| cannot(&name, wording(&error)))
}

/// Options of new file systems.
pub(super) struct FileSystemOptions {
    /// Properties about names that children take over from the parent.
    inherited: Vec<Setting>,
    has_projects: bool,
    requester: Requester,
}

impl FileSystemOptions {
    /// Returns the options for file systems below the nearest existing ancestor of `name`.
    pub(super) async fn below(source: &Source, pool: &Arc<Pool>, name: &str) -> Result<Self, Exit> {
        let base = existing_ancestor(pool, name).await?;
        check_parent(name, &base).await?;
        let inherited = base.props().await?.name_settings().await?;
        let has_projects = has(pool, "project_quota");
        Ok(Self { inherited, has_projects, requester: source.requester() })
    }

    /// Creates one.
    pub(super) async fn make(
        &self,
        engine: &Engine,
        name: &str,
        settings: &[Setting],
        encryption: NewEncryption,
    ) -> CommandResult {
        // Normalized names are UTF-8: without that, the parent's normalization is not taken over.
        let is_any_bytes = number(settings, "utf8only") == Some(0);
        let is_taken = |(name, _): &&Setting| !is_any_bytes || name != "normalization";
        let inherited = self.inherited.iter().filter(is_taken);
        let all: Vec<_> = settings.iter().chain(inherited).cloned().collect();
        let first: NewFileSystem = new_file_system(&all, self.has_projects);
        let stored = settings.iter().filter(|(name, _)| is_stored(name));
        let new = NewDataset {
            name: name.to_owned(),
            kind: ObjSetType::Zfs,
            props: stored.cloned().collect(),
            encryption,
            fill: Box::new(move |tx| first.fill(tx)),
        };
        make(engine, &self.requester, new).await
    }
}

fn has(pool: &Pool, feature: &str) -> bool {
    pool.features().state(feature) != cenote_pool::features::FeatureState::Disabled
}

/// Returns the message for a failed operation.
pub(super) fn wording(error: &cenote_rt::Error) -> String {
    if let Some(words) = encryption::refusal(error) {
        return words.to_owned();
    }
    match error.cause::<OpError>() {
        Some(OpError::WrongParent) => "parent is not a filesystem".to_owned(),
        None if error.kind() == cenote_rt::Kind::ReadOnly => "pool is read-only".to_owned(),
        Some(OpError::Limit) => "the filesystem or snapshot limit is reached".to_owned(),
        Some(cause) => cause.to_string(),
        None => error.to_string(),
    }
}

async fn pool_of(source: &Source, name: &str) -> Result<Arc<Pool>, Exit> {
    let first = name.split(['/', '@', '#']).next().unwrap_or(name);
    let pool = if source.has_pools() { source.pool(first).await.ok() } else { None };
    pool.ok_or_else(|| cannot(name, format!("no such pool '{first}'")))
}

/// Returns the ancestors to create first, if they are created with a dataset of the kind `with`;
/// `None` if that exists already, which is not an error then.
async fn ancestors(
    source: &Source,
    pool: &Arc<Pool>,
    name: &str,
    with: Option<DatasetKind>,
) -> Result<Option<Vec<String>>, Exit> {
    let Some(kind) = with else {
        check_new_name(source, name).await?;
        return Ok(Some(Vec::new()));
    };
    let existing = dataset_if_any(pool, name).await?;
    if let Some(existing) = &existing
        && existing.kind().await? == kind
    {
        return Ok(None);
    }
    if !name.contains('/') {
        return Err(cannot(name, "missing dataset name"));
    }
    if existing.is_some() {
        return Err(cannot(name, "dataset already exists"));
    }
    let mut missing = Vec::new();
    for (end, _) in name.match_indices('/') {
        let ancestor = &name[..end];
        if dataset_if_any(pool, ancestor).await?.is_none() {
            missing.push(ancestor.to_owned());
        }
    }
    match cenote_pool::DatasetName::parse(name) {
        Ok(_) => Ok(Some(missing)),
        Err(error) => Err(cannot(name, error)),
    }
}

/// Returns the nearest existing ancestor.
async fn existing_ancestor(pool: &Arc<Pool>, name: &str) -> Result<Dataset, Exit> {
    nearest_above(pool, name).await?.ok_or_else(|| cannot(name, "missing dataset name"))
}

async fn check_parent(name: &str, parent: &Dataset) -> CommandResult {
    if parent.kind().await? == DatasetKind::Volume {
        return Err(cannot(name, "parent is not a filesystem"));
    }
    Ok(())
}

/// Returns the properties given with `-o`, and the quotas of users, groups and projects.
fn settings(name: &str, parsed: &Parsed, kind: char) -> Result<(Vec<Setting>, Vec<Limit>), Exit> {
    let (mut settings, mut limits): (Vec<Setting>, _) = (Vec::new(), Vec::new());
    for text in parsed.values('o') {
        let Some((property, value)) = text.split_once('=') else {
            return Err(Exit::usage("missing '=' for property=value argument"));
        };
        if let Some(limit) = Limit::parse(property, value, kind) {
            limits.push(limit.map_err(|why| cannot(name, why))?);
            continue;
        }
        refuse::sharing(property, value).map_err(|why| cannot(name, why))?;
        let setting = setting::parse(property, value, kind, Moment::Creation)
            .map_err(|why| cannot(name, why))?;
        if settings.iter().any(|(there, _)| *there == setting.0) {
            let text = format!("property '{property}' specified multiple times");
            return Err(Exit::failed(text));
        }
        settings.push(setting);
    }
    setting::check_names(&settings).map_err(|why| cannot(name, why))?;
    Ok((settings, limits))
}

fn number(settings: &[Setting], name: &str) -> Option<u64> {
    settings.iter().find(|(there, _)| there == name).and_then(|(_, value)| value.single())
}

/// Returns what to create: a file system, or a volume with its size.
fn plan(pool: &Pool, name: &str, parsed: &Parsed, settings: &[Setting]) -> Result<New, Exit> {
    let Some(size) = parsed.value('V') else { return Ok(New::FileSystem) };
    let size = quantity::parse(size)
        .map_err(|why| Exit::usage(format!("bad volume size '{size}': {why}")))?;
    if size == 0 {
        return Err(cannot(name, "volume size must be a multiple of volume block size"));
    }
    let wanted = match parsed.value('b') {
        Some(text) => {
            let value = setting::parse("volblocksize", text, 'v', Moment::Creation);
            value.map_err(|why| cannot(name, why))?.1.single()
        }
        None => number(settings, "volblocksize"),
    };
    let block_size =
        wanted.unwrap_or_else(|| default_block_size(&pool.config().vdev_tree.children));
    if block_size > SMALL_BLOCK_MAX && !has(pool, "large_blocks") {
        let text = "volume block size needs the feature 'large_blocks'";
        return Err(cannot(name, text));
    }
    let size = size.next_multiple_of(block_size);
    Ok(New::Volume { size, block_size, is_sparse: parsed.has('s') })
}

/// Returns the properties to store, and the computed reservation: a volume that is not sparse
/// reserves all the space that it may need, and so does one with `refreservation=auto`.
fn with_reservation(pool: &Pool, settings: &[Setting], new: &New) -> (Vec<Setting>, Option<u64>) {
    let mut props = settings.to_vec();
    let New::Volume { size, block_size, is_sparse } = *new else { return (props, None) };
    let given = number(&props, "refreservation");
    if given.is_some_and(|bytes| bytes != setting::AUTO) || given.is_none() && is_sparse {
        return (props, None);
    }
    let copies = number(&props, "copies").unwrap_or(1);
    let reserved = reservation(size, block_size, copies, &pool.config().vdev_tree.children);
    props.retain(|(name, _)| name != "refreservation");
    props.push(("refreservation".to_owned(), Value::U64(reserved)));
    (props, Some(reserved))
}

/// Prints what is, or would be, created, for `-v` and `-P`: properties as typed, followed by
/// computed ones.
fn print_plan(
    name: &str,
    parsed: &Parsed,
    new: &New,
    reserved: Option<u64>,
    io: &mut Io<'_>,
) -> CommandResult {
    let (is_dry, is_parsable) = (parsed.has('n'), parsed.has('P'));
    let action = |what: &str| match (is_parsable, is_dry) {
        (true, _) => format!("{}\t{name}", what.replace(" of", "").replace(' ', "_")),
        (false, true) => format!("would {what} {name}"),
        (false, false) => format!("{what} {name}"),
    };
    if parsed.has('p') {
        out!(io, "{}", action("create ancestors of"))?;
    }
    out!(io, "{}", action("create"))?;
    for (property, value) in lines(parsed, new, reserved) {
        if is_parsable {
            out!(io, "property\t{property}\t{value}")?;
        } else {
            out!(io, "\t{property}={value}")?;
        }
    }
    Ok(())
}

/// Returns the properties of [`print_plan`], computed values after typed ones.
fn lines<'a>(parsed: &'a Parsed, new: &New, reserved: Option<u64>) -> Vec<(&'a str, String)> {
    let mut lines: Vec<(&str, String)> = Vec::new();
    for (letter, text) in &parsed.options {
        let text = text.as_deref().unwrap_or_default();
        let bytes = || quantity::parse(text).unwrap_or_default().to_string();
        match letter {
            'V' => lines.push(("volsize", bytes())),
            'b' => lines.push(("volblocksize", bytes())),
            'o' => lines.extend(text.split_once('=').map(|(name, value)| (name, value.to_owned()))),
            _ => {}
        }
    }
    let New::Volume { size, block_size, .. } = new else { return lines };
    if *block_size != DEFAULT_BLOCK_SIZE && !is_set(parsed, "volblocksize") {
        lines.retain(|(name, _)| *name != "volblocksize");
        lines.push(("volblocksize", block_size.to_string()));
    }
    let size = ("volsize", size.to_string());
    if !lines.contains(&size) {
        lines.retain(|(name, _)| *name != "volsize");
        lines.push(size);
    }
    if let Some(reserved) = reserved
        && !is_set(parsed, "refreservation")
    {
        lines.push(("refreservation", reserved.to_string()));
    }
    lines
}

/// Whether `-o` gives the property.
fn is_set(parsed: &Parsed, property: &str) -> bool {
    parsed.values('o').any(|text| text.split('=').next() == Some(property))
}

/// Runs `zfs clone`.
pub(super) fn clone(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "o:pu", &[])?;
    let missing = ["missing source dataset argument", "missing target dataset argument"];
    let [origin, name] = getopt::exactly(&parsed.operands, missing)?;
    let line = command_line(Tool::Zfs, "clone", args);
    let source = &source.with_mounts_left(parsed.has('u'));
    block_on(async {
        let snapshot = existing(source, origin).await?;
        if !snapshot.is_snapshot() {
            return Err(Exit::failed(format!(
                "cannot open '{origin}': operation not applicable to this type of dataset"
            )));
        }
        let pool = pool_of(source, name).await?;
        if pool.guid() != snapshot.pool().guid() {
            return Err(cannot(name, "source and target pools differ"));
        }
        let kind = snapshot.kind().await?;
        let missing = ancestors(source, &pool, name, parsed.has('p').then_some(kind)).await?;
        let Some(missing) = missing else { return Ok(()) };
        let options = FileSystemOptions::below(source, &pool, name).await?;
        let kind = if kind == DatasetKind::Volume { 'v' } else { 'f' };
        let (mut settings, limits) = settings(name, &parsed, kind)?;
        if settings.iter().any(|(property, _)| encryption::is_of_key(property)) {
            let text = "Encryption properties must inherit from origin dataset.";
            return Err(cannot(name, text));
        }
        if number(&settings, "refreservation") == Some(setting::AUTO) {
            settings.retain(|(name, _)| name != "refreservation");
            let (head, _) = snapshot.name().split_once('@').unwrap_or((snapshot.name(), ""));
            let head = existing(source, head).await?;
            settings.push(whole_reservation(&snapshot, &head).await?);
        }
        permits::need_for(source, &snapshot, &["clone"], ("create", name)).await?;
        may_create(source, &pool, name, (&settings, &limits), &New::FileSystem).await?;
        drop((pool, snapshot));
        Writer::run(source, name, Some(&line), io, async |engine, _| {
            for ancestor in missing {
                options.make(engine, &ancestor, &[], NewEncryption::Inherited).await?;
            }
            let props = settings.into_iter().filter(|(name, _)| is_stored(name)).collect();
            let datasets = engine.datasets().by(&options.requester);
            let made = datasets.clone_snapshot(origin, name, props).await;
            made.map(drop).map_err(|error| cannot(name, wording(&error)))?;
            set_all(limits, engine, name).await
        })
        .await
    })
}
