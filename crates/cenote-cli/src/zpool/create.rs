//! `zpool create` and `zpool add`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_engine::create::{
    CreateError, CreateSpec, PoolLayout, Redundancy, VdevClass, plan_pool,
};
use cenote_engine::{Engine, NewEncryption, PropertyChange};
use cenote_fs::format::NewFileSystem;
use cenote_pool::dsl::check_pool_name;
use cenote_pool::import::Host;
use cenote_pool::props::text::{self as setting, Moment, Setting, is_stored};
use cenote_pool::{AllocationClass, Pool, features};

use super::block_on;
use super::config_table::{SECTIONS, section};
use super::layout::{Devices, Layout};
use super::redundancy;
use super::setting::Wanted;
use crate::err;
use crate::getopt::{self, Long, Parsed};
use crate::host::Taken;
use crate::io::{CommandResult, Exit, Io, words};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{After, Writer, command_line, owners};
use crate::zfs::encryption::{self, KeyInput};
use crate::zfs::{Limit, refuse};

/// The options of `create`.
struct Options {
    pool: Wanted,
    root: Vec<Setting>,
    /// Quotas of users, groups and projects in the root file system.
    limits: Vec<Limit>,
    no_features: bool,
    force: bool,
}

/// Runs `zpool create`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, ":fndR:m:o:O:t:", &[])?;
    let mut options = options(&parsed)?;
    let [name, words @ ..] = &parsed.operands[..] else {
        return Err(Exit::usage("missing pool name argument"));
    };
    if words.is_empty() {
        return Err(Exit::usage("missing vdev specification"));
    }
    check_name(name)?;
    options.pool.check_bootfs(name).map_err(|why| Exit::cannot("create", name, why))?;
    let layout = Layout::parse(words)?;
    if layout.groups.is_empty() {
        let text = "at least one toplevel vdev must be specified";
        return Err(Exit::failed(format!("invalid vdev specification: {text}")));
    }
    let line = command_line(Tool::Zpool, "create", args);
    block_on(async {
        let cannot = format!("cannot create '{name}'");
        let devices = Devices::open(source, &layout, options.force).await?;
        devices.check_reserved(source, (&layout, None), &cannot, options.force).await?;
        if !options.force {
            devices.check_redundancy(&layout)?;
        }
        let altroot = options.pool.root(parsed.value('R')).map_err(|folder| {
            Exit::failed(format!("invalid alternate root '{folder}': must be an absolute path"))
        })?;
        let shown = parsed.value('t').unwrap_or(name);
        let own_place = own_place(source, name, &options).filter(|_| altroot.is_none());
        if let Some(place) = &own_place {
            let setting = setting::parse("mountpoint", place, 'f', Moment::Creation);
            options.root.extend(setting.ok());
        }
        if source.session.is_some() {
            check_mount_point(name, &options, altroot.as_deref())?;
        }
        if parsed.has('n') {
            let preview = layout.preview(name, &BTreeMap::new());
            write!(io.out, "would create '{name}' with the following layout:\n\n{preview}")?;
            return Ok(());
        }
        check_absent(source, shown, &devices).await?;
        devices.check_each(&cannot)?;
        if !source.has_pools() {
            let text = "a pool is made with 'zpool --embedded' only";
            return Err(Exit::failed(format!("{cannot}: {text}")));
        }
        let cache_file = options.pool.cache_file(parsed.has('t'));
        let how = Taken { altroot, cache_file, ..Taken::default() };
        let features = options.pool.new_features(options.no_features);
        let has = |wanted: &&str| features.iter().any(|feature| feature.name == *wanted);
        let has_encryption = encryption::FEATURES.iter().all(has);
        let encryption = encryption::Wanted::of(&options.root);
        let encryption = encryption.for_new(source, None, has_encryption, KeyInput::Free, io).await;
        let encryption = encryption.map_err(|why| Exit::failed(format!("{cannot}: {why}")))?;
        let engine = create(name, &layout, devices, (&options, encryption)).await?;
        if shown != name {
            engine.admin().set_temporary_name(shown).await;
        }
        let done = After::taken(source, how);
        let writer = Writer::of(source, engine, After::KeepActive, done).await?;
        match set_up(writer.engine(), shown, &options).await {
            Ok(()) => {
                if let Some(place) = &own_place {
                    err!(io, "'{name}' is mounted at '{place}': only root can create '/{name}'")?;
                }
                writer.carry_out(Some(&line), io, async |_, _| Ok(())).await
            }
            Err(error) => {
                // A pool without the requested properties must not remain.
                writer.engine().destroy().await?;
                Err(Exit::cannot("create", name, error))
            }
        }
    })
}

fn options(parsed: &Parsed) -> Result<Options, Exit> {
    let pool = parsed.operands.first().map_or("", String::as_str);
    let mut options = Options {
        pool: Wanted::default(),
        root: Vec::new(),
        limits: Vec::new(),
        no_features: parsed.has('d'),
        force: parsed.has('f'),
    };
    let mut seen = Vec::new();
    for (letter, text) in &parsed.options {
        let Some(text) = text else { continue };
        let (name, value) = match letter {
            'o' | 'O' => text
                .split_once('=')
                .ok_or_else(|| Exit::usage(format!("missing '=' for -{letter} option")))?,
            'm' => ("mountpoint", text.as_str()),
            _ => continue,
        };
        if seen.contains(&(*letter, name)) {
            return Err(Exit::failed(format!("property '{name}' specified multiple times")));
        }
        seen.push((*letter, name));
        let is_pool = *letter == 'o';
        let outcome = if is_pool {
            options.pool.add(name, value, true)
        } else if let Some(limit) = Limit::parse(name, value, 'f') {
            limit.map(|limit| options.limits.push(limit))
        } else {
            refuse::sharing(name, value)
                .and_then(|()| setting::parse(name, value, 'f', Moment::Creation))
                .map(|setting| options.root.push(setting))
        };
        outcome.map_err(|why| unusable(pool, name, is_pool, &why))?;
    }
    setting::check_names(&options.root).map_err(|why| unusable(pool, "utf8only", false, &why))?;
    Ok(options)
}

/// Returns the mount point of a new pool of a user other than root who has not chosen one: a folder
/// in the home directory of the process that mounts it. Only root can create folders in `/`.
fn own_place(source: &Source, name: &str, options: &Options) -> Option<String> {
    let is_chosen =
        options.root.iter().any(|(name, _)| matches!(&**name, "mountpoint" | "canmount"));
    let is_needless = source.session.is_none() || rustix::process::geteuid().is_root();
    if is_chosen || is_needless || Path::new("/").join(name).is_dir() {
        return None;
    }
    // That of this process, which a caller may not share.
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_dir())?;
    home.is_absolute().then(|| home.join(name).to_str().map(str::to_owned))?
}

/// Refuses a mount point of the root file system that is not empty.
fn check_mount_point(name: &str, options: &Options, altroot: Option<&Path>) -> CommandResult {
    let wanted = options.root.iter().find(|(property, _)| property == "mountpoint");
    let wanted = match wanted.and_then(|(_, value)| value.as_str()) {
        Some("none" | "legacy") => return Ok(()),
        Some(folder) => folder.to_owned(),
        None => format!("/{name}"),
    };
    let folder = match altroot {
        Some(root) => root.join(wanted.trim_start_matches('/')),
        None => PathBuf::from(wanted),
    };
    let is_empty = std::fs::read_dir(&folder).map(|mut found| found.next().is_none());
    let why = match is_empty {
        Ok(true) => return Ok(()),
        Ok(false) => "exists and is not empty".to_owned(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => format!(": {}", words(&error)),
    };
    let how = "use '-m' option to provide a different default";
    Err(Exit::failed(format!("mountpoint '{}' {why}\n{how}", folder.display())))
}

/// Returns the message for a property that a new pool cannot have.
fn unusable(pool: &str, name: &str, is_pool: bool, why: &str) -> Exit {
    match (why.starts_with("invalid property"), is_pool) {
        (true, true) => unknown(name),
        (true, false) => {
            Exit::failed(format!("property '{name}' is not a valid filesystem property"))
        }
        (false, _) => Exit::cannot("create", pool, why),
    }
}

/// Returns the message for an unknown property.
fn unknown(name: &str) -> Exit {
    Exit::failed(format!("property '{name}' is not a valid pool or vdev property"))
}

/// Refuses names that no pool may have.
pub(super) fn check_name(name: &str) -> CommandResult {
    let Err(why) = check_pool_name(name) else { return Ok(()) };
    let hint = if name.contains('/') {
        "use 'zfs create' to create a dataset"
    } else {
        "pool name may have been omitted"
    };
    Err(Exit::failed(format!("cannot create '{name}': {why}\n{hint}")))
}

/// Refuses the name of an existing pool, unless that pool is on the very devices that are taken.
async fn check_absent(source: &Source, name: &str, devices: &Devices) -> CommandResult {
    if !source.has_pools() {
        return Ok(());
    }
    if let Some(session) = &source.session {
        if session.has_pool(name) {
            return Err(Exit::cannot("create", name, "pool already exists"));
        }
        return Ok(());
    }
    let scan = source.scan().await?;
    let mut named = scan.candidates.iter().filter(|candidate| candidate.name() == name);
    let is_there = named.any(|candidate| {
        let is_left = |path: &str| !devices.has(path);
        !candidate.is_destroyed() && candidate.devices.iter().any(|found| is_left(&found.path))
    });
    if is_there {
        return Err(Exit::failed(format!("cannot create '{name}': pool already exists")));
    }
    Ok(())
}

async fn create(
    name: &str,
    layout: &Layout,
    devices: Devices,
    (options, encryption): (&Options, NewEncryption),
) -> Result<Arc<Engine>, Exit> {
    let wanted = PoolLayout { ashift: options.pool.ashift, ..devices.specs(layout) };
    let (vdevs, vdev_devices) = plan_pool(&wanted, &devices.opened())
        .map_err(|error| vdev_failure(&format!("cannot create '{name}'"), &error))?;
    let features = options.pool.new_features(options.no_features);
    let has = |name: &str| features.iter().any(|feature| feature.name == name);
    let (has_objects, has_projects) = (has("userobj_accounting"), has("project_quota"));
    check_class_features(layout, &features)?;
    let new = new_file_system(&options.root, has_projects);
    let host = Host::current();
    let host = (host.hostid != 0).then_some((host.hostid, host.hostname));
    let made = Engine::create(CreateSpec {
        name: name.to_owned(),
        vdevs,
        devices: vdev_devices,
        features,
        comment: None,
        compatibility: None,
        host,
        encryption,
        fill_root: Box::new(move |tx| new.fill(tx)),
        probe: Some(owners(has_objects, has_projects)),
    })
    .await;
    made.map_err(|error| Exit::cannot("create", name, error))
}

/// Sets properties of the pool and of its root file system.
async fn set_up(engine: &Engine, name: &str, options: &Options) -> cenote_rt::Result<()> {
    if !options.pool.settings.is_empty() {
        engine.admin().set(options.pool.settings.clone()).await?;
    }
    let stored = options.root.iter().filter(|(name, _)| is_stored(name));
    let changes: Vec<_> =
        stored.map(|(name, value)| (name.clone(), PropertyChange::Set(value.clone()))).collect();
    if !changes.is_empty() {
        engine.properties().change(name, changes).await?;
    }
    for limit in &options.limits {
        limit.set(engine, name).await?;
    }
    Ok(())
}

/// Returns the options of a new file system from its properties; the caller owns it.
pub(crate) fn new_file_system(settings: &[Setting], has_projects: bool) -> NewFileSystem {
    NewFileSystem {
        has_projects,
        uid: u64::from(rustix::process::getuid().as_raw()),
        gid: u64::from(rustix::process::getgid().as_raw()),
        ..NewFileSystem::of_properties(settings)
    }
}

/// Refuses classes and layouts whose features are not enabled.
fn check_class_features(layout: &Layout, features: &[&features::Feature]) -> CommandResult {
    let has = |name: &str| features.iter().any(|feature| feature.name == name);
    let is_special = |class| matches!(class, VdevClass::Special | VdevClass::Dedup);
    let needs = |name: &str, is_needed: bool| {
        if is_needed && !has(name) {
            let text = format!("feature '{name}' is not enabled");
            return Err(Exit::failed(format!("invalid vdev specification: {text}")));
        }
        Ok(())
    };
    let groups = &layout.groups;
    needs("allocation_classes", groups.iter().any(|group| is_special(group.class)))?;
    let is_draid = |redundancy| matches!(redundancy, Redundancy::Draid { .. });
    needs("draid", groups.iter().any(|group| is_draid(group.redundancy)))
}

/// Returns the message for vdevs that cannot be created.
fn vdev_failure(cannot: &str, error: &cenote_rt::Error) -> Exit {
    Exit::failed(match error.cause::<CreateError>() {
        Some(CreateError::TooSmall { .. } | CreateError::NoRoom { .. }) => {
            format!("{cannot}: one or more devices is less than the minimum size (64M)")
        }
        Some(cause) => format!("invalid vdev specification: {cause}"),
        None => format!("{cannot}: {error}"),
    })
}

/// Letters under which [`getopt`] reports the long options.
const IN_USE: char = '1';
const REPLICATION: char = '2';
const ASHIFT: char = '3';
/// The checks that `zpool add -f` disables, one by one; sector sizes may differ without it.
const OVERRIDES: [Long; 3] = [
    Long::flag("allow-in-use", IN_USE),
    Long::flag("allow-replication-mismatch", REPLICATION),
    Long::flag("allow-ashift-mismatch", ASHIFT),
];

/// Runs `zpool add`.
pub(super) fn add(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "fgLno:P", &OVERRIDES)?;
    let mut wanted = Wanted::default();
    for text in parsed.values('o') {
        match text.split_once('=') {
            Some(("ashift", value)) => {
                wanted.add("ashift", value, true).map_err(Exit::failed)?;
            }
            Some((name, _)) => return Err(unknown(name)),
            None => return Err(Exit::usage("missing '=' for -o option")),
        }
    }
    let [name, words @ ..] = &parsed.operands[..] else {
        return Err(Exit::usage("missing pool name argument"));
    };
    if words.is_empty() {
        return Err(Exit::usage("missing vdev specification"));
    }
    let is_dry = parsed.has('n');
    let line = command_line(Tool::Zpool, "add", args);
    let line = (!is_dry).then_some(&line[..]);
    if parsed.has('f') && OVERRIDES.iter().any(|long| parsed.has(long.letter)) {
        return Err(Exit::usage(
            "'-f' option is not allowed with '--allow-replication-mismatch', \
             '--allow-ashift-mismatch', or '--allow-in-use'",
        ));
    }
    block_on(Writer::run_on_pool(source, name, line, io, async |engine, io| {
        let layout = Layout::parse(words)?;
        let cannot = format!("cannot add to '{name}'");
        let takes_used = parsed.has('f') || parsed.has(IN_USE);
        let devices = Devices::open(source, &layout, takes_used).await?;
        let places = (&layout, Some(engine));
        devices.check_reserved(source, places, &cannot, takes_used).await?;
        let root = engine.admin().vdev_config();
        if !parsed.has('f') && !parsed.has(REPLICATION) {
            devices.check_redundancy(&layout)?;
            if let Some(text) = redundancy::mismatch_with(&root, &layout.groups) {
                let how = "use '-f' to override the following errors:";
                return Err(Exit::failed(format!("invalid vdev specification\n{how}\n{text}")));
            }
        }
        if is_dry {
            let pool = engine.view().await?;
            let preview = layout.preview(name, &sections(&pool).await?);
            write!(io.out, "would update '{name}' to the following configuration:\n\n{preview}")?;
            return Ok(());
        }
        devices.check_each(&cannot)?;
        let wanted = PoolLayout { ashift: wanted.ashift, ..devices.specs(&layout) };
        let new = (engine.admin().plan_vdevs(&wanted, &devices.opened()))
            .map_err(|error| vdev_failure(&cannot, &error))?;
        Ok(engine.admin().add_vdevs(new).await?)
    }))
}

/// Returns the existing vdevs of a pool as lines of a preview, by section.
async fn sections(pool: &Arc<Pool>) -> Result<BTreeMap<&'static str, Vec<String>>, Exit> {
    let status = pool.status().await?;
    let mut sections: BTreeMap<_, Vec<String>> = BTreeMap::new();
    let titles = [("", AllocationClass::Normal)];
    let others = SECTIONS.iter().map(|(class, title)| (*title, *class));
    for (title, class) in titles.into_iter().chain(others) {
        for top in section(&status.root, class) {
            let is_numbered = title.is_empty() || top.children.is_empty();
            // Only normal vdevs are numbered there.
            let name = if is_numbered { &top.name } else { top.kind.name() };
            let lines = sections.entry(title).or_default();
            lines.push(format!("  {name}"));
            lines.extend(top.children.iter().map(|leaf| format!("    {}", leaf.name)));
        }
    }
    for (title, devices) in [("cache", &status.caches), ("spares", &status.spares)] {
        let lines = devices.iter().map(|device| format!("  {}", device.name));
        sections.insert(title, lines.collect());
    }
    Ok(sections)
}
