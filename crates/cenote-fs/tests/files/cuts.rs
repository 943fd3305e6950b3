//! Random histories with power cuts: the names are those of a moment since the last fsync of
//! anything, and each file has its state at a moment since its own last fsync.
//!
//! The two moments need not be the same: an fsync commits all operations on names, but of other
//! operations only those on its file. Of a write that was never synced a first part may be there,
//! and of an operation with several log records (a write that removes privileges, an ACL that
//! changes the mode) some.
//!
//! Extended attributes stay in the lists of inodes here: an attribute in a file of its own behaves
//! like a file.
//!
//! `CENOTE_SEED` gives other histories; `CENOTE_TEST_ALL` runs many.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cenote_device::{Image, ImageDevice, Log, Recorder};
use cenote_fs::edit::SetAttributes;
use cenote_fs::{FileKind, Mount, PFlags};
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{Error, Rng, block_on};
use cenote_testkit::shrink::shorter;
use cenote_testkit::{cuts, rng};

use crate::accounts;
use crate::extras::expected_xattrs;
use crate::fixture::{Fixture, root};
use crate::history::{ACTIONS, AclType, Action, Pair, draw, is_judged};
use crate::model::{Body, Model, ROOT};
use crate::owners;

/// Actions of a history in the short form.
const ACTIONS_FEW: usize = 60;
/// Longest extended attribute.
const XATTR_MAX: usize = 600;
/// Longest file.
const FILE_MAX: u64 = 40_000;

/// What must be there: step of names, and of files by their objects.
#[derive(Debug, Clone, Default)]
struct Durable {
    names: usize,
    files: BTreeMap<u64, usize>,
}

#[derive(Debug, Default)]
struct History {
    /// The model after each step; the first is the empty file system.
    states: Vec<Model>,
    /// By mark: the durable steps, and the last step that was started.
    marks: Vec<(Durable, usize)>,
}

struct Run {
    log: Log,
    history: History,
}

/// The pool and properties for a history.
#[derive(Debug, Clone, Copy)]
struct Setting {
    seed: u64,
    has_slog: bool,
    ashift: u64,
    acl_type: AclType,
}

/// Returns the setting and the actions of a seed.
fn drawn(seed: u64, count: usize) -> (Setting, Vec<Action>) {
    let mut rng = Rng::seeded(seed);
    let (has_slog, ashift) = (rng.below(2) == 0, 9 + 3 * rng.below(2));
    let action = |_| match draw(&mut rng, FILE_MAX) {
        Action::Reopen | Action::XattrPlace { .. } => Action::Sync,
        Action::Read { node, .. } => Action::Fsync { node },
        Action::SetXattr { node, name, len, byte } => {
            Action::SetXattr { node, name, len: len % XATTR_MAX, byte }
        }
        action => action,
    };
    let actions = (0..count).map(action).collect();
    (Setting { seed, has_slog, ashift, acl_type: AclType::of(seed) }, actions)
}

async fn run(setting: &Setting, actions: &[Action]) -> Result<Run, String> {
    let builder = PoolBuilder::file_system().with_logs(setting.has_slog.into());
    let builder = builder.with_ashift(setting.ashift).with_seed(setting.seed);
    let recorder = Recorder::new();
    let devices = pools::recorded(&recorder, &builder.memory_devices());
    let engine = builder.create(devices).await.unwrap();
    let mount = Mount::open(&engine, "tank").await.unwrap();
    let fixture = Fixture { engine, devices: Vec::new(), mount };
    let mut pair = Pair::over(fixture, setting.acl_type).await;
    let history = Mutex::new(History { states: vec![pair.model.clone()], ..History::default() });
    let mut durable = Durable::default();
    // Recorded before anything of the step is written.
    let mark = |durable: &Durable, begun: usize| {
        let mut history = history.lock().unwrap();
        history.marks.push((durable.clone(), begun));
        recorder.mark(history.marks.len() as u64 - 1);
    };
    mark(&durable, 0);
    for (step, action) in (1..).zip(actions) {
        mark(&durable, step);
        let done = pair.perform(*action).await;
        done.map_err(|what| format!("step {step}, {action:?}: {what}"))?;
        match *action {
            Action::Sync => {
                let files = pair.model.nodes.values().map(|node| (node.object, step));
                durable = Durable { names: step, files: files.collect() };
            }
            Action::Fsync { node } => {
                if let Some(id) = pair.file(node) {
                    durable.names = step;
                    durable.files.insert(pair.model.nodes[&id].object, step);
                }
            }
            _ => {}
        }
        history.lock().unwrap().states.push(pair.model.clone());
        mark(&durable, step);
    }
    drop(pair);
    let log = recorder.log();
    Ok(Run { log, history: history.into_inner().unwrap() })
}

/// Object, kind and target of each name.
type Names = BTreeMap<Vec<u8>, (u64, FileKind, Vec<u8>)>;

/// The state of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct File {
    bytes: Vec<u8>,
    /// Owner, group, project.
    owners: (u32, u32, Option<u32>),
    mode: u32,
    flags: (bool, bool),
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

impl File {
    /// Formats everything except the contents, of which only a digest.
    fn short(&self) -> String {
        let names: Vec<_> = self.xattrs.keys().map(|name| String::from_utf8_lossy(name)).collect();
        let Self { bytes, owners, mode, flags, .. } = self;
        format!("{} bytes, {mode:o}, {owners:?}, {flags:?}, {names:?}", bytes.len())
    }
}

fn names_of(model: &Model) -> Names {
    let mut names = Names::new();
    let mut to_do = vec![(Vec::new(), ROOT)];
    while let Some((path, dir)) = to_do.pop() {
        for (name, id) in model.dir(dir) {
            let path = [&path[..], b"/", name].concat();
            let node = &model.nodes[id];
            let (kind, target) = match &node.body {
                Body::File(_) => (FileKind::Regular, Vec::new()),
                Body::Dir(_) => (FileKind::Directory, Vec::new()),
                Body::Link(target) => (FileKind::Symlink, target.clone()),
                Body::Fifo => (FileKind::Fifo, Vec::new()),
                Body::Whiteout => (FileKind::CharDevice, Vec::new()),
            };
            if kind == FileKind::Directory {
                to_do.push((path.clone(), *id));
            }
            names.insert(path, (node.object, kind, target));
        }
    }
    names
}

/// Returns the names and files of a mount.
async fn found(mount: &Mount) -> Result<(Names, BTreeMap<u64, File>), Error> {
    let (mut names, mut files) = (Names::new(), BTreeMap::new());
    let mut to_do = vec![(Vec::new(), mount.root())];
    while let Some((path, dir)) = to_do.pop() {
        let page = mount.read_dir(&root(), dir, 0, usize::MAX).await?;
        for entry in page.entries.into_iter().skip(2) {
            let path = [&path[..], b"/", &entry.name].concat();
            let told = mount.attributes(entry.object).await?;
            let mut target = Vec::new();
            match told.kind {
                FileKind::Directory => to_do.push((path.clone(), entry.object)),
                FileKind::Symlink => target = mount.read_link(entry.object).await?,
                FileKind::Regular => {
                    let mut bytes = vec![0; told.size as usize];
                    assert_eq!(mount.read(entry.object, 0, &mut bytes).await?, bytes.len());
                    let mut xattrs = BTreeMap::new();
                    for name in mount.xattrs(&root(), entry.object).await? {
                        let value = mount.xattr(&root(), entry.object, &name).await?;
                        xattrs.insert(name, value);
                    }
                    let has = |flag| told.flags.contains(flag);
                    let file = File {
                        bytes,
                        owners: (told.uid, told.gid, told.project),
                        mode: told.mode,
                        flags: (has(PFlags::IMMUTABLE), has(PFlags::APPENDONLY)),
                        xattrs,
                    };
                    files.insert(entry.object, file);
                }
                _ => {}
            }
            names.insert(path, (entry.object, told.kind, target));
        }
    }
    Ok((names, files))
}

fn file_at(model: &Model, object: u64) -> Option<File> {
    let (_, node) = model.nodes.iter().find(|(_, node)| node.object == object)?;
    let Body::File(bytes) = &node.body else { return None };
    let extra = &node.extra;
    Some(File {
        bytes: bytes.clone(),
        owners: (node.uid, node.gid, extra.project),
        mode: node.mode,
        flags: (extra.is_immutable, extra.is_append_only),
        xattrs: expected_xattrs(extra),
    })
}

fn is_one<T: PartialEq>(found: &T, before: &T, after: &T) -> bool {
    found == before || found == after
}

/// Whether a file has its state before an operation, part of the operation, or its state after it.
fn is_part([before, after]: [&File; 2], found: &File) -> bool {
    let lens = [before.bytes.len(), after.bytes.len()];
    // Bytes that an operation is about to truncate or to write are zeros in the other state.
    let was = |at: usize, state: &File| state.bytes.get(at).copied().unwrap_or(0);
    let is_known = |(at, byte)| [before, after].iter().any(|one| was(at, one) == byte);
    is_one(&found.owners, &before.owners, &after.owners)
        && is_one(&found.mode, &before.mode, &after.mode)
        && is_one(&found.flags, &before.flags, &after.flags)
        && is_one(&found.xattrs, &before.xattrs, &after.xattrs)
        && (lens[0].min(lens[1])..=lens[0].max(lens[1])).contains(&found.bytes.len())
        && found.bytes.iter().copied().enumerate().all(is_known)
}

fn check(
    run: &Run,
    (durable, begun): &(Durable, usize),
    names: &Names,
    files: &BTreeMap<u64, File>,
) -> Result<(), String> {
    let states = &run.history.states;
    let last = (*begun).min(states.len() - 1);
    if !(durable.names..=last).any(|step| names_of(&states[step]) == *names) {
        let wanted = names_of(&states[durable.names]);
        return Err(format!(
            "names {names:?}\nare those of no step {}..={last}: {wanted:?}",
            durable.names
        ));
    }
    for (object, file) in files {
        let from = durable.files.get(object).copied().unwrap_or(0);
        let was = |step: usize| file_at(&states[step], *object);
        let is_whole = (from..=last).any(|step| was(step).as_ref() == Some(file));
        let is_part = || {
            let states: Vec<File> = (from..=last).filter_map(was).collect();
            states.windows(2).any(|pair| is_part([&pair[0], &pair[1]], file))
        };
        // The record of a name may be there without that of its ACL, as long as neither was synced.
        let is_bare = || {
            let born = (from..=last).find_map(|step| was(step).map(|file| (step, file)));
            born.is_some_and(|(step, born)| {
                let bare = File { xattrs: BTreeMap::new(), ..born };
                step > durable.names && *file == bare
            })
        };
        if !is_whole && !is_part() && !is_bare() {
            let history: Vec<_> =
                (from..=last).map(|step| was(step).map(|file| file.short())).collect();
            let found = format!("object {object} ({})", file.short());
            return Err(format!("{found} is as it never was in {from}..={last}: {history:#?}"));
        }
    }
    Ok(())
}

/// Opens the pool after a cut, and continues with it. Returns the devices afterwards.
async fn recover(
    run: &Run,
    images: Vec<Image>,
    mark: &(Durable, usize),
) -> Result<Vec<Arc<ImageDevice>>, String> {
    let fail = |error: Error| format!("{error:?}");
    let devices = pools::devices(images);
    let engine = pools::open(pools::as_devices(&devices)).await.map_err(fail)?;
    for (object, replayed) in cenote_fs::recover(&engine).await.map_err(fail)? {
        if let Some(failure) = replayed.failure {
            return Err(format!("replay of {object}: {failure:?}"));
        }
    }
    let mount = Mount::open(&engine, "tank").await.map_err(fail)?;
    let (names, files) = found(&mount).await.map_err(fail)?;
    check(run, mark, &names, &files)?;
    // The file system can be used.
    let changes = SetAttributes { uid: Some(7), ..SetAttributes::default() };
    mount.set_attributes(&root(), mount.root(), &changes).await.map_err(fail)?;
    drop(mount);
    engine.export().await.map_err(fail)?;
    accounts::check(&devices).await?;
    let images = devices.iter().map(|device| device.image());
    let space = pools::check_space(images.collect()).await;
    space.map_err(|error| format!("recovered: {error}"))?;
    Ok(devices)
}

/// Runs a history and cuts it off at every `step`th commit point. Returns how many there were.
async fn cut(setting: &Setting, actions: &[Action], step: u64) -> Result<usize, String> {
    let run = run(setting, actions).await?;
    // OpenZFS checks one cut per history.
    let is_due = Cell::new(is_judged(setting.seed));
    cuts::try_cuts(&run.log, setting.seed, step, async |images, mark| {
        let devices = recover(&run, images, &run.history.marks[mark]).await?;
        if !is_due.replace(false) {
            return Ok(());
        }
        let said =
            pools::judge_devices(&devices, &format!("cut-{}", setting.seed), &["-P", "-dddd"]);
        said.map_or(Ok(()), |text| owners::check(&text))
    })
    .await
}

async fn explore(seed: u64, count: usize, step: u64) -> usize {
    let (setting, actions) = drawn(seed, count);
    let what = match cut(&setting, &actions, step).await {
        Ok(points) => return points,
        Err(what) => what,
    };
    let fails = async |actions: &[Action]| cut(&setting, actions, step).await.is_err();
    let short = shorter(actions, fails).await;
    let again = cut(&setting, &short, step).await;
    panic!("{setting:?}: {what}\nshortened: {short:#?}\n{again:?}");
}

#[test]
fn fsync_survives_every_power_cut() {
    // A fraction of the commit points of each history: over many histories none is left out.
    let (count, step) = if rng::wants_all() { (ACTIONS, 3) } else { (ACTIONS_FEW, 6) };
    let step = rng::number("CENOTE_STEP").unwrap_or(step);
    cuts::histories(24, 2_000, |seed| block_on(1, explore(seed, count, step)).unwrap());
}
