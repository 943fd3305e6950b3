//! Operations on files, each on the directory of one actor.

use std::sync::Arc;

use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::xattr::Existing;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode, SetAttributes};
use cenote_fs::mount::{Allocate, Handle, WriteOptions};
use cenote_rt::{Kind, Result};

use super::{Ended, FULL, Outcome, Running};
use crate::look;
use crate::model::Actor;
use crate::model::files::{Body, Call, Effect, Id, Touch};
use crate::plan::Op;

/// File system and actor.
type Place = (usize, usize);

/// Files that an actor keeps open.
#[derive(Default)]
pub(super) struct Held(Vec<Handle>);

impl Held {
    /// Closes all files.
    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

/// Files that are kept open at most.
const HELD_MAX: usize = 6;

pub(super) async fn perform(running: &Running, at: Place, op: Op, held: &mut Held) -> Ended {
    match op {
        Op::Read { file, offset, len } => read(running, at, file, (offset, len)).await,
        Op::List { dir } => list(running, at, dir).await,
        Op::Fsync { file } => fsync(running, at, Some(file)).await,
        Op::SyncFs => fsync(running, at, None).await,
        Op::Hold { file } => {
            let object = newest_file(running, at, file).map(|(_, object)| object);
            let Some(object) = object.filter(|_| held.0.len() < HELD_MAX) else {
                return Ok(Outcome::Refused);
            };
            match running.mount(at.0).hold(object).await {
                Ok(handle) => held.0.push(handle),
                Err(error) => return running.judge(&error, &[]),
            }
            Ok(Outcome::Done)
        }
        Op::Release => {
            held.0.clear();
            match running.mount(at.0).reap().await {
                Ok(()) => Ok(Outcome::Done),
                Err(error) => running.judge(&error, &FULL),
            }
        }
        _ => change(running, at, op).await,
    }
}

/// Returns the file that a number selects.
fn newest_file(running: &Running, at: Place, file: u32) -> Option<(Id, u64)> {
    let model = running.history.model();
    let tree = model.file_systems[at.0].actors[at.1].states.newest();
    let id = tree.file(file)?;
    Some((id, tree.node(id)?.object))
}

async fn change(running: &Running, at: Place, op: Op) -> Ended {
    let effect = {
        let mut model = running.history.model();
        let stamp = model.stamp();
        let states = &mut model.file_systems[at.0].actors[at.1].states;
        let Some(effect) = states.newest().effect(op, stamp) else { return Ok(Outcome::Refused) };
        states.begin(running.engine.open_txg(), effect.touch, effect.after.clone());
        effect
    };
    let done = call(&running.mount(at.0), &effect.call).await;
    let mut model = running.history.model();
    let now = model.tick();
    let file_system = &mut model.file_systems[at.0];
    let is_always_sync = file_system.is_always_sync;
    let has_sync = file_system.has_sync;
    let actor = &mut file_system.actors[at.1];
    match done {
        Ok(object) => {
            if let Some(id) = effect.created {
                actor.states.newest_mut().set_object(id, object);
            }
            actor.states.end(now, running.engine.open_txg());
            let is_sync = matches!(effect.call, Call::Write { is_sync: true, .. });
            if is_always_sync || (is_sync && has_sync) {
                promise(actor, &effect);
            }
            Ok(Outcome::Done)
        }
        Err(error) => {
            let ended = running.judge(&error, &FULL)?;
            if ended == Outcome::Refused {
                actor.states.take_back();
            }
            Ok(ended)
        }
    }
}

/// The last change is durable.
fn promise(actor: &mut Actor, effect: &Effect) {
    let count = actor.states.len();
    match effect.touch {
        Touch::Names | Touch::Xattrs(_) => actor.durable_names = count,
        Touch::File(id) => drop(actor.durable_files.insert(id, count)),
    }
}

/// Calls the file system. Returns the object that it created.
async fn call(mount: &Mount, call: &Call) -> Result<u64> {
    let root = Credentials::root();
    let create = async |parent: u64, name: &[u8], kind: NewKind<'_>, mode: u32| {
        let made = mount.create(&root, parent, name, &NewNode::new(kind, mode)).await?;
        Ok(made.object)
    };
    match call {
        Call::CreateFile { parent, name, mode } => {
            return create(*parent, name, NewKind::Regular, *mode).await;
        }
        Call::CreateDir { parent, name } => {
            return create(*parent, name, NewKind::Directory, 0o755).await;
        }
        Call::CreateLink { parent, name, target } => {
            return create(*parent, name, NewKind::Symlink(target), 0o777).await;
        }
        Call::Link { object, parent, name } => {
            mount.link(&root, *object, *parent, name).await?;
        }
        Call::Unlink { parent, name } => mount.unlink(&root, *parent, name).await?,
        Call::Rmdir { parent, name } => mount.rmdir(&root, *parent, name).await?,
        Call::Rename { from, to, is_exchange } => {
            let mode = if *is_exchange { RenameMode::Exchange } else { RenameMode::Plain };
            let request = Rename { from: (from.0, &from.1), to: (to.0, &to.1), mode };
            mount.rename(&root, &request).await?;
        }
        Call::Write { object, offset, bytes, is_append, is_sync } => {
            let options =
                WriteOptions { is_append: *is_append, is_sync: *is_sync, ..Default::default() };
            mount.write(&root, *object, *offset, bytes, options).await?;
        }
        Call::Truncate { object, size } => {
            let changes = SetAttributes { size: Some(*size), ..SetAttributes::default() };
            mount.set_attributes(&root, *object, &changes).await?;
        }
        Call::Punch { object, offset, len, extends } => {
            let how = if *extends { Allocate::ZeroRange } else { Allocate::PunchHole };
            mount.allocate(&root, *object, *offset, *len, how).await?;
        }
        Call::SetXattr { object, name, value } => {
            let how = Existing::Any;
            mount.set_xattr(&root, *object, name, value, how).await?;
        }
        Call::RemoveXattr { object, name } => mount.remove_xattr(&root, *object, name).await?,
        Call::Chmod { object, mode } => {
            let changes = SetAttributes { mode: Some(*mode), ..SetAttributes::default() };
            mount.set_attributes(&root, *object, &changes).await?;
        }
    }
    Ok(0)
}

async fn read(running: &Running, at: Place, file: u32, (offset, len): (u32, u32)) -> Ended {
    let Some((id, object)) = newest_file(running, at, file) else { return Ok(Outcome::Refused) };
    let mount = running.mount(at.0);
    let read = look::read_file(&mount, object, u64::from(offset), len as usize);
    let found = match read.await {
        Ok(found) => found,
        Err(error) => return running.judge(&error, &[]),
    };
    let model = running.history.model();
    let tree = model.file_systems[at.0].actors[at.1].states.newest();
    let node = tree.node(id).map(Arc::as_ref);
    let Some(Body::File(bytes)) = node.map(|node| &node.body) else { return Ok(Outcome::Done) };
    let wanted = part(bytes, offset as usize, len as usize);
    if found[..] == *wanted {
        return Ok(Outcome::Done);
    }
    let first = found.iter().zip(wanted).position(|(one, other)| one != other);
    Err(format!(
        "object {object}: {} bytes at {offset}, expected {}, first difference at {first:?}",
        found.len(),
        wanted.len()
    ))
}

/// Returns a part of a file.
pub(super) fn part(bytes: &[u8], offset: usize, len: usize) -> &[u8] {
    let start = offset.min(bytes.len());
    &bytes[start..(start + len).min(bytes.len())]
}

async fn list(running: &Running, at: Place, dir: u32) -> Ended {
    let dir = {
        let model = running.history.model();
        let tree = model.file_systems[at.0].actors[at.1].states.newest();
        let found = tree.dir(dir).and_then(|id| tree.node(id).map(|node| (id, node.object)));
        found.map(|(id, object)| (object, tree.names_in(id)))
    };
    let Some((object, wanted)) = dir else { return Ok(Outcome::Refused) };
    let page = running.mount(at.0).read_dir(&Credentials::root(), object, 0, usize::MAX).await;
    let page = match page {
        Ok(page) => page,
        Err(error) => return running.judge(&error, &[]),
    };
    let found: std::collections::BTreeSet<_> =
        page.entries.into_iter().skip(2).map(|entry| entry.name).collect();
    if found == wanted { Ok(Outcome::Done) } else { Err(format!("{found:?}, expected {wanted:?}")) }
}

/// Makes a file durable, or all.
async fn fsync(running: &Running, at: Place, file: Option<u32>) -> Ended {
    let selected = match file {
        None => None,
        Some(file) => match newest_file(running, at, file) {
            None => return Ok(Outcome::Refused),
            selected => selected,
        },
    };
    let begin = running.history.model().tick();
    let mount = running.mount(at.0);
    let done = match selected {
        Some((_, object)) => mount.fsync(object).await,
        None => mount.sync().await,
    };
    if let Err(error) = done {
        return running.judge(&error, &[Kind::NoSpace]);
    }
    let mut model = running.history.model();
    let file_system = &mut model.file_systems[at.0];
    if !file_system.has_sync {
        return Ok(Outcome::Done);
    }
    for (number, actor) in file_system.actors.iter_mut().enumerate() {
        let count = actor.states.ended_before(begin);
        actor.durable_names = actor.durable_names.max(count);
        let ids: Vec<Id> = match selected {
            Some((id, _)) if number == at.1 => vec![id],
            Some(_) => Vec::new(),
            None => actor
                .states
                .changes()
                .iter()
                .filter_map(|change| match change.touch {
                    Touch::File(id) => Some(id),
                    Touch::Names | Touch::Xattrs(_) => None,
                })
                .collect(),
        };
        for id in ids {
            let durable = actor.durable_files.entry(id).or_default();
            *durable = count.max(*durable);
        }
    }
    Ok(Outcome::Done)
}
