//! Histories with power cuts: names are those of a moment since the last fsync of anything, and
//! each file is as it was at a moment since its own last fsync.
//!
//! The two moments need not be the same: an fsync takes all operations on names along, and of the
//! others those on its file only. Of a write that was never asked to be durable a first part may be
//! there.
//!
//! `CENOTE_SEED` gives other histories; `CENOTE_TEST_ALL` runs many.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use cenote_device::{Image, ImageDevice, Log, Recorder};
use cenote_fs::edit::SetAttributes;
use cenote_fs::{FileKind, Mount};
use cenote_rt::{Error, Rng, block_on};
use cenote_testkit::{cuts, rng};

use crate::accounts;
use crate::fixture::{Fixture, root};
use crate::history::{Action, Pair, draw};
use crate::model::{Body, Id, Model, ROOT};
use crate::pools::{self, Shape};

/// Actions of a history.
const ACTIONS: usize = 50;
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
    /// The model after each step; the first is that of the empty file system.
    states: Vec<Model>,
    actions: Vec<Action>,
    /// By mark: what is durable, and the last step that was begun.
    marks: Vec<(Durable, usize)>,
}

struct Run {
    log: Log,
    history: History,
    place: String,
}

async fn run(seed: u64) -> Run {
    let mut rng = Rng::seeded(seed);
    let has_slog = rng.below(2) == 0;
    let shape = Shape { has_slog, ashift: 9 + 3 * rng.below(2), ..Shape::DISK };
    let place = format!("seed {seed}: slog {has_slog}, ashift {}", shape.ashift);
    let recorder = Recorder::new();
    let wrap = |(number, image): (usize, Image)| {
        let device = ImageDevice::new(format!("d{number}"), image.clone());
        recorder.wrap(Arc::new(device), image)
    };
    let devices = shape.images().into_iter().enumerate().map(wrap).collect();
    let engine = pools::make(&shape, seed, devices).await.unwrap();
    let mount = Mount::open(&engine, "tank").await.unwrap();
    let mut pair = Pair::over(Fixture { engine, devices: Vec::new(), mount });
    let history = Mutex::new(History { states: vec![pair.model.clone()], ..History::default() });
    let mut durable = Durable::default();
    // Noted before anything of it is written.
    let mark = |durable: &Durable, begun: usize| {
        let mut history = history.lock().unwrap();
        history.marks.push((durable.clone(), begun));
        recorder.mark(history.marks.len() as u64 - 1);
    };
    mark(&durable, 0);
    for step in 1..=ACTIONS {
        let action = match draw(&mut rng, FILE_MAX) {
            Action::Reopen => Action::Sync,
            Action::Read { node, .. } => Action::Fsync { node },
            action => action,
        };
        mark(&durable, step);
        history.lock().unwrap().actions.push(action);
        pair.perform(action).await.unwrap_or_else(|what| panic!("{place}, {step}: {what}"));
        match action {
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
    Run { log, history: history.into_inner().unwrap(), place }
}

/// What a name leads to: object, kind, target.
type Names = BTreeMap<Vec<u8>, (u64, FileKind, Vec<u8>)>;
/// What a file is: bytes, mode, owner, group.
type File = (Vec<u8>, u32, u32, u32);

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

/// Names and files as they are.
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
                    files.insert(entry.object, (bytes, told.mode, told.uid, told.gid));
                }
                _ => {}
            }
            names.insert(path, (entry.object, told.kind, target));
        }
    }
    Ok((names, files))
}

fn file_at(model: &Model, object: u64) -> Option<(Id, File)> {
    let (id, node) = model.nodes.iter().find(|(_, node)| node.object == object)?;
    match &node.body {
        Body::File(bytes) => Some((*id, (bytes.clone(), node.mode, node.uid, node.gid))),
        _ => None,
    }
}

/// Whether a file is as it was before a write, with a first part of that.
fn is_part(before: &File, after: &File, found: &File) -> bool {
    let is_same_but_bytes = (found.1, found.2, found.3) == (before.1, before.2, before.3);
    let same = found.0.iter().zip(&after.0).take_while(|(found, after)| found == after).count();
    let mut expected = after.0[..same].to_vec();
    expected.extend(before.0.get(same..).unwrap_or(&[]));
    is_same_but_bytes && found.0 == expected
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
        let was = |step: usize| file_at(&states[step], *object).map(|(_, file)| file);
        let is_whole = (from..=last).any(|step| was(step).as_ref() == Some(file));
        let is_part = || {
            (from..last).any(|step| match (was(step), was(step + 1)) {
                (Some(before), Some(after)) => is_part(&before, &after, file),
                _ => false,
            })
        };
        if !is_whole && !is_part() {
            let history: Vec<_> = (from..=last)
                .map(|step| was(step).map(|file| (file.0.len(), file.1, file.2)))
                .collect();
            let (len, mode) = (file.0.len(), file.1);
            let found = format!("object {object} ({len} bytes, {mode:o})");
            return Err(format!("{found} is as it never was in {from}..={last}: {history:?}"));
        }
    }
    Ok(())
}

async fn recover(run: &Run, images: Vec<Image>, mark: &(Durable, usize)) -> Result<(), String> {
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
    // It goes on.
    let wish = SetAttributes { uid: Some(7), ..SetAttributes::default() };
    mount.set_attributes(&root(), mount.root(), &wish).await.map_err(fail)?;
    drop(mount);
    engine.export().await.map_err(fail)?;
    accounts::check(&devices).await?;
    let images = devices.iter().map(|device| device.image());
    let space = pools::check_space(images.collect()).await;
    space.map_err(|error| format!("recovered: {error}"))
}

async fn explore(seed: u64, step: u64) -> usize {
    let run = run(seed).await;
    cuts::at_cuts(&run.log, seed, step, async |images, mark| {
        let recovered = recover(&run, images, &run.history.marks[mark]).await;
        recovered.map_err(|problem| format!("{}: {problem}\n{:#?}", run.place, run.history.actions))
    })
    .await
}

#[test]
fn what_was_made_durable_survives_every_cut() {
    let step = if rng::wants_all() { 1 } else { 6 };
    cuts::histories(3, 2_000, |seed| block_on(2, explore(seed, step)).unwrap());
}
