//! `mount`, `unmount`: mounts and unmounts file systems of the daemon's pools.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_engine::Engine;
use cenote_pool::props::PropValue;
use cenote_pool::{Dataset, DatasetKind};
use cenote_serve::fuse::MountOptions;

use super::change::below;
use super::keys;
use super::refuse::existing;
use crate::getopt::{self, Parsed};
use crate::host::{MountRequest, Session};
use crate::io::{CommandResult, Exit, Io};
use crate::source::{Source, dataset_of};
use crate::zpool::{block_on, json};
use crate::{argument, err, out};

/// The message when no host has pools open.
const NO_HOST: &str = "only the daemon mounts: give the command without '--embedded'";
/// Longest options of a mount.
const OPTIONS_MAX: usize = 4096;
/// `canmount` of file systems that `mount -a` mounts.
const CANMOUNT_ON: u64 = 1;

/// Runs `zfs mount`.
pub(super) fn mount(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, ":ajRlvo:Of", &[getopt::Long::flag("json", 'j')])?;
    if parsed.has('j') && (parsed.has('a') || !parsed.operands.is_empty()) {
        return Err(Exit::usage("too many arguments"));
    }
    let options = options(&parsed)?;
    let words: Vec<_> = options.split(',').filter(|word| *word != REMOUNT).collect();
    let request = MountRequest {
        is_remount: options.split(',').any(|word| word == REMOUNT),
        options: words.join(","),
        is_overlay: parsed.has('O'),
        is_forced: parsed.has('f'),
        ..MountRequest::default()
    };
    match (&parsed.operands[..], parsed.has('a'), parsed.has('R')) {
        ([], false, false) => list(source, &parsed, io),
        ([], false, true) => Err(Exit::usage("missing filesystem argument")),
        ([], true, _) => {
            let session = session(source, "mount")?;
            block_on(async {
                let mut all = Vec::new();
                for engine in session.host.pools() {
                    let root = engine.view().await?.root_dataset().await?;
                    all.push(root.clone());
                    below(&root, &mut all).await?;
                }
                mount_each(source, session, all, (&request, &parsed), io).await
            })
        }
        ([first, ..], false, true) => block_on(async {
            let mut all = Vec::new();
            for dataset in &parsed.operands {
                let root = existing(source, dataset).await?;
                all.push(root.clone());
                below(&root, &mut all).await?;
            }
            let session = session(source, first)?;
            mount_each(source, session, all, (&request, &parsed), io).await
        }),
        ([dataset], false, false) => block_on(async {
            let found = existing(source, dataset).await?;
            check_type(&found).await?;
            let session = session(source, dataset)?;
            if parsed.has('l') {
                unlock(source, &found, io).await?;
            }
            session.host.mount(dataset, &request).await
        }),
        _ => Err(Exit::usage("too many arguments")),
    }
}

/// The option that changes the options of a mounted file system.
const REMOUNT: &str = "remount";
/// Words of `/etc/fstab` that are not mount options.
const NO_OPTIONS: [&str; 9] =
    ["auto", "noauto", "nofail", "_netdev", "user", "nouser", "users", "zfsutil", "sync"];
/// Exit statuses of mount helpers.
const STATUS_OF_USE: i32 = 1;
const STATUS_OF_PLACE: i32 = 2;
const STATUS_OF_FAILURE: i32 = 32;

/// `mount.zfs DATASET FOLDER`: mounts a file system with `mountpoint=legacy`, at any place.
pub(crate) fn mount_for(session: &Session, args: &[String]) -> CommandResult {
    let usage = || {
        let text = "Usage: mount.zfs [-sfnvh] [-o options] <dataset> <mountpoint>";
        Exit::FailedWith(text.to_owned(), STATUS_OF_USE)
    };
    let (mut operands, mut words) = (Vec::new(), Vec::new());
    let (mut is_fake, mut is_sloppy) = (false, false);
    // Options may follow the operands, too.
    let mut rest = args.iter();
    while let Some(arg) = rest.next() {
        match arg.as_str() {
            "-o" => words.extend(rest.next().ok_or_else(usage)?.split(',')),
            "-f" => is_fake = true,
            "-s" => is_sloppy = true,
            "-n" | "-v" => {}
            _ if arg.starts_with('-') => return Err(usage()),
            _ => operands.push(arg),
        }
    }
    let [dataset, place] = &operands[..] else { return Err(usage()) };
    if !session.caller.is_trusted() {
        let text = format!("filesystem '{dataset}' can not be mounted due to insufficient rights");
        return Err(Exit::FailedWith(text, STATUS_OF_USE));
    }
    let is_util = words.contains(&"zfsutil");
    words.retain(|word| !NO_OPTIONS.contains(word) && !word.starts_with("x-"));
    if is_sloppy {
        words.retain(|word| MountOptions::parse(word).is_ok());
    }
    let (dataset, place) = (&named_dataset(session, dataset), argument::path(place));
    let place = session.caller.folder().join(place);
    if let Ok(false) = place.try_exists() {
        let text = format!(
            "filesystem '{dataset}' cannot be mounted at '{}' due to canonicalization error: No \
             such file or directory",
            place.display()
        );
        return Err(Exit::FailedWith(text, STATUS_OF_PLACE));
    }
    let source = Source { session: Some(session.clone()), ..Source::default() };
    let failed = |exit: Exit| Exit::FailedWith(exit.message(), STATUS_OF_FAILURE);
    let request =
        MountRequest { options: words.join(","), place: Some(place), ..MountRequest::default() };
    block_on(async {
        let found = source.dataset(dataset).await?;
        check_type(&found).await?;
        let mountpoint = found.props().await?.get("mountpoint").await?.map(|row| row.value);
        if !is_util && mountpoint != Some(PropValue::Text("legacy".to_owned())) {
            return Err(Exit::failed(format!(
                "filesystem '{dataset}' cannot be mounted using 'mount'.\nUse 'zfs set \
                 mountpoint=legacy' or 'zfs mount {dataset}'.\nSee zfs(8) for more information."
            )));
        }
        if is_fake { Ok(()) } else { session.host.mount(dataset, &request).await }
    })
    .map_err(failed)
}

/// Returns the dataset that `mount` names: by its name, by a name taken for a file in the caller's
/// working directory, or by a device of its pool.
fn named_dataset(session: &Session, text: &str) -> String {
    let path = Path::new(text);
    if !path.is_absolute() {
        return text.to_owned();
    }
    if let Some(name) = path.strip_prefix(session.caller.folder()).ok().and_then(Path::to_str)
        && session.pool(name.split('/').next().unwrap_or(name)).is_ok()
    {
        return name.to_owned();
    }
    let has_it = |engine: &Arc<Engine>| {
        let root = engine.admin().vdev_config();
        let mut leaves = root.leaves();
        leaves.any(|leaf| {
            leaf.leaf.path.as_ref().is_some_and(|path| path.as_bytes() == text.as_bytes())
        })
    };
    let pools = session.host.pools();
    pools
        .iter()
        .find(|engine| has_it(engine))
        .map_or_else(|| text.to_owned(), |engine| engine.name())
}

/// Returns the options of all `-o`, joined.
fn options(parsed: &Parsed) -> Result<String, Exit> {
    let mut options = String::new();
    for value in parsed.values('o') {
        if value.is_empty() {
            return Err(Exit::usage("empty mount options (-o) specified"));
        }
        if !options.is_empty() {
            options.push(',');
        }
        options.push_str(value);
    }
    if options.len() > OPTIONS_MAX {
        return Err(Exit::usage(format!(
            "the opts argument for 'o' option is too long (more than {OPTIONS_MAX} chars)"
        )));
    }
    Ok(options)
}

async fn check_type(dataset: &Dataset) -> CommandResult {
    if dataset.is_snapshot() || dataset.kind().await? != DatasetKind::Filesystem {
        let name = dataset.name();
        let text = "operation not applicable to datasets of this type";
        return Err(Exit::failed(format!("cannot open '{name}': {text}")));
    }
    Ok(())
}

/// Mounts the datasets that are to be mounted and are not, each before those whose mount points are
/// within its own.
async fn mount_each(
    source: &Source,
    session: &Session,
    datasets: Vec<Dataset>,
    (request, parsed): (&MountRequest, &Parsed),
    io: &mut Io<'_>,
) -> CommandResult {
    let mut wanted = Vec::new();
    let mut status = Ok(());
    for dataset in datasets {
        let Some(place) = wanted_place(&dataset, request.is_forced).await? else { continue };
        if parsed.has('l')
            && let Err(exit) = unlock(source, &dataset, io).await
        {
            err!(io, "{}", exit.message())?;
            status = Err(Exit::Status(1));
        }
        // Locked datasets are skipped.
        if !is_locked(&dataset).await? {
            wanted.push((PathBuf::from(place), dataset.name().to_owned()));
        }
    }
    wanted.sort();
    wanted.dedup();
    for (_, name) in &wanted {
        // A failure does not keep the others from being mounted.
        if let Err(exit) = session.host.mount(name, request).await {
            err!(io, "{}", exit.message())?;
            status = Err(Exit::Status(1));
        }
    }
    if parsed.has('v') && !wanted.is_empty() {
        let count = wanted.len();
        out!(io, "Mounting ZFS filesystems: ({count}/{count})")?;
    }
    status
}

/// Mounts the file systems that are to be mounted and are not. Reports those that cannot be
/// mounted.
pub(super) async fn mount_missing(
    source: &Source,
    names: &[String],
    io: &mut Io<'_>,
) -> CommandResult {
    let Some(session) = &source.session else { return Ok(()) };
    for name in names {
        let dataset = source.dataset(name).await?;
        if wanted_place(&dataset, false).await?.is_none() || is_locked(&dataset).await? {
            continue;
        }
        drop(dataset);
        report_not_mounted(session.host.mount(name, &MountRequest::default()).await, io)?;
    }
    Ok(())
}

/// The command succeeded although something could not be mounted afterwards: that is reported.
pub(super) fn report_not_mounted(done: CommandResult, io: &mut Io<'_>) -> CommandResult {
    match done {
        Err(Exit::NotMounted(message)) => err!(io, "{message}"),
        done => done,
    }
}

async fn is_locked(dataset: &Dataset) -> Result<bool, Exit> {
    let key = dataset.key_info().await?;
    Ok(key.is_some_and(|key| !dataset.pool().keys().is_loaded(&key)))
}

/// Loads the key of a dataset if needed (`-l`).
async fn unlock(source: &Source, dataset: &Dataset, io: &mut Io<'_>) -> CommandResult {
    if !is_locked(dataset).await? {
        return Ok(());
    }
    let Some(root) = dataset.encryption_root().await? else { return Ok(()) };
    let root = dataset_of(dataset.pool(), &root).await?;
    keys::load(source, &root, None, false, io).await
}

/// Unloads the key of an unmounted dataset, if the dataset is its encryption root (`-u`).
async fn lock(source: &Source, name: &str) -> CommandResult {
    let dataset = source.dataset(name).await?;
    match dataset.encryption_root().await? {
        Some(root) if root == name && !is_locked(&dataset).await? => {
            keys::unload(source, &dataset).await
        }
        _ => Ok(()),
    }
}

/// Returns the place where an unmounted file system is to be mounted; that of a redacted one only
/// if it is forced.
async fn wanted_place(dataset: &Dataset, is_forced: bool) -> Result<Option<String>, Exit> {
    if dataset.kind().await? != DatasetKind::Filesystem || dataset.is_inconsistent() {
        return Ok(None);
    }
    if !is_forced && dataset.redaction_snapshots().await?.is_some() {
        return Ok(None);
    }
    let props = dataset.props().await?;
    let value = async |name| Ok::<_, Exit>(props.get(name).await?.map(|row| row.value));
    let is_on = value("canmount").await? == Some(PropValue::Number(CANMOUNT_ON));
    let is_mounted = value("mounted").await? != Some(PropValue::Number(0));
    match value("mountpoint").await? {
        Some(PropValue::Text(path)) if path.starts_with('/') && is_on && !is_mounted => {
            Ok(Some(path))
        }
        _ => Ok(None),
    }
}

/// Runs `zfs unmount`.
pub(super) fn unmount(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "afu", &[])?;
    let is_forced = parsed.has('f');
    match (&parsed.operands[..], parsed.has('a')) {
        ([], true) => {
            let session = session(source, "unmount")?;
            let mut status = Ok(());
            // A mount within another, or on top of it, is unmounted before it.
            for (dataset, at) in session.host.mounts().into_iter().rev() {
                let done = block_on(async {
                    session.host.unmount(&dataset, Some(&at), is_forced).await?;
                    if parsed.has('u') { lock(source, &dataset).await } else { Ok(()) }
                });
                if let Err(exit) = done {
                    err!(io, "{}", exit.message())?;
                    status = Err(Exit::Status(1));
                }
            }
            status
        }
        ([what], false) => unmount_one(source, what, &parsed),
        ([], false) => Err(Exit::usage("missing filesystem argument")),
        _ => Err(Exit::usage("too many arguments")),
    }
}

fn unmount_one(source: &Source, what: &str, parsed: &Parsed) -> CommandResult {
    let session = session(source, what)?;
    let path = what.starts_with('/').then(|| source.path(what));
    let dataset = match &path {
        Some(path) => {
            let mounts = session.host.mounts();
            // The last of several mounts hides the others.
            let found = mounts.iter().rfind(|(_, at)| at == path);
            let found = found.map(|(dataset, _)| dataset.clone());
            found.ok_or_else(|| Exit::cannot("unmount", what, not_a_mount(path, &mounts)))?
        }
        None => what.to_owned(),
    };
    block_on(async {
        check_type(&existing(source, &dataset).await?).await?;
        let before = session.host.mounts();
        session.host.unmount(&dataset, path.as_deref(), parsed.has('f')).await?;
        if parsed.has('u') {
            // File systems below it were unmounted before it.
            let after = session.host.mounts();
            let is_below = |name: &str| {
                name.strip_prefix(&dataset)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            };
            let gone = before.iter().rev().filter(|mount| !after.contains(mount));
            for (name, _) in gone.filter(|(name, _)| is_below(name)) {
                lock(source, name).await?;
            }
        }
        Ok(())
    })
}

/// Returns why a path cannot be unmounted.
fn not_a_mount(path: &Path, mounts: &[(String, std::path::PathBuf)]) -> &'static str {
    if mounts.iter().any(|(_, at)| path.starts_with(at)) {
        return "not a mountpoint";
    }
    if path.exists() { "not a ZFS filesystem" } else { "No such file or directory" }
}

fn session<'a>(source: &'a Source, what: &str) -> Result<&'a Session, Exit> {
    source.session.as_ref().ok_or_else(|| Exit::failed(format!("cannot mount '{what}': {NO_HOST}")))
}

fn list(source: &Source, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let mut mounts = source.mounts();
    mounts.sort();
    if parsed.has('j') {
        let mut datasets = serde_json::Map::new();
        for (dataset, at) in mounts {
            let row = serde_json::json!({
                "filesystem": dataset,
                "mountpoint": at.display().to_string(),
            });
            datasets.insert(dataset, row);
        }
        let mut document = json::document("zfs mount");
        document.insert("datasets".into(), datasets.into());
        return json::print(document, io);
    }
    for (dataset, at) in mounts {
        out!(io, "{dataset:<30}  {}", at.display())?;
    }
    Ok(())
}
