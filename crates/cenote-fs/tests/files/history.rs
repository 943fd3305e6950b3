//! Random histories of operations: the file system does what the model does.
//!
//! A history is drawn from a seed as a list of actions that name nodes by numbers, taken modulo the
//! nodes that there are: so that any part of the list is a history as well, and one that fails can
//! be made shorter by leaving actions out.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode, SetAttributes};
use cenote_fs::mount::{Allocate, Attributes, Handle, WriteOptions, errno};
use cenote_fs::{FileKind, Mount};
use cenote_rt::{Error, Rng, block_on};

use crate::accounts;
use crate::fixture::{Fixture, root};
use crate::model::{Body, Id, Mode, Model, Node, Outcome, ROOT};

/// Longest file of the model.
const FILE_MAX: u64 = 700_000;
/// Actions of a history.
const ACTIONS: usize = 200;

/// What is done; numbers are taken modulo what there is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    Create { dir: usize, name: u8, kind: u8 },
    Link { node: usize, dir: usize, name: u8 },
    Remove { dir: usize, name: u8, wants_dir: bool },
    Rename { from: (usize, u8), to: (usize, u8), mode: Mode },
    Write { node: usize, offset: u64, len: u64, byte: u8, is_append: bool },
    Resize { node: usize, size: u64 },
    Cut { node: usize, offset: u64, len: u64, extends: bool },
    Read { node: usize, offset: u64, len: u64 },
    Change { node: usize, mode: u32, uid: u32, gid: u32 },
    Hold { node: usize },
    Release { handle: usize },
    List { dir: usize, step: usize },
    Fsync { node: usize },
    Sync,
    Reopen,
}

/// An action on files of at most so many bytes.
pub(crate) fn draw(rng: &mut Rng, file_max: u64) -> Action {
    let node = rng.below(1 << 20) as usize;
    let dir = rng.below(1 << 20) as usize;
    let name = rng.below(6) as u8;
    let size = |rng: &mut Rng| {
        let max = [600, 5_000, 140_000, file_max][rng.below(4) as usize];
        rng.below(max.min(file_max))
    };
    match rng.below(40) {
        0..=7 => Action::Create { dir, name, kind: rng.below(9) as u8 },
        8..=9 => Action::Link { node, dir, name },
        10..=13 => Action::Remove { dir, name, wants_dir: rng.below(3) == 0 },
        14..=17 => {
            let mode = [Mode::Plain, Mode::Plain, Mode::NoReplace, Mode::Exchange, Mode::Whiteout];
            let mode = mode[rng.below(5) as usize];
            Action::Rename { from: (dir, name), to: (node, rng.below(6) as u8), mode }
        }
        18..=25 => {
            let (offset, len) = (size(rng), size(rng) + 1);
            let byte = rng.below(255) as u8 + 1;
            Action::Write { node, offset, len, byte, is_append: rng.below(5) == 0 }
        }
        26..=27 => Action::Resize { node, size: size(rng) },
        28..=29 => {
            let (offset, len) = (size(rng), size(rng) + 1);
            Action::Cut { node, offset, len, extends: rng.below(2) == 0 }
        }
        30..=31 => Action::Read { node, offset: size(rng), len: size(rng) },
        32..=33 => {
            let (mode, uid, gid) = (rng.below(0o1000), rng.below(4) * 500, rng.below(4) * 100);
            Action::Change { node, mode: mode as u32, uid: uid as u32, gid: gid as u32 }
        }
        34 => Action::Hold { node },
        35 => Action::Release { handle: node },
        36 => Action::List { dir, step: 1 + rng.below(5) as usize },
        37 => Action::Fsync { node },
        38 => Action::Sync,
        _ => Action::Reopen,
    }
}

fn name_of(number: u8) -> Vec<u8> {
    if number == 5 { vec![b'n'; 200] } else { vec![b'a' + number] }
}

/// The file system under test beside its model.
pub(crate) struct Pair {
    /// None while it is opened again.
    fixture: Option<Fixture>,
    pub(crate) model: Model,
    handles: Vec<(Id, Handle)>,
}

/// What went wrong.
pub(crate) type Verdict = Result<(), String>;

fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Verdict {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, expected {expected:?}"))
}

fn number<T>(result: Result<T, Error>) -> Outcome<T> {
    result.map_err(|error| {
        let number = errno::of(&error);
        assert!(number != errno::EIO, "{error:?}");
        number
    })
}

impl Pair {
    async fn new() -> Self {
        Self::over(Fixture::new().await)
    }

    /// A pair over an empty file system.
    pub(crate) fn over(fixture: Fixture) -> Self {
        let model = Model::new(fixture.mount.root());
        Self { fixture: Some(fixture), model, handles: Vec::new() }
    }

    fn fixture(&self) -> &Fixture {
        self.fixture.as_ref().unwrap()
    }

    fn mount(&self) -> Arc<Mount> {
        Arc::clone(&self.fixture().mount)
    }

    fn object(&self, id: Id) -> u64 {
        self.model.nodes[&id].object
    }

    fn dir(&self, number: usize) -> Id {
        self.model.pick(number, Node::is_dir).unwrap_or(ROOT)
    }

    /// The file that a number stands for.
    pub(crate) fn file(&self, number: usize) -> Option<Id> {
        self.model.pick(number, |node| matches!(node.body, Body::File(_)))
    }

    /// Does the same to both.
    pub(crate) async fn perform(&mut self, action: Action) -> Verdict {
        match action {
            Action::Create { dir, name, kind } => self.create(dir, name, kind).await,
            Action::Link { node, dir, name } => {
                let id = self.model.pick(node, |_| true).unwrap_or(ROOT);
                let (dir, name) = (self.dir(dir), name_of(name));
                let (object, parent) = (self.object(id), self.object(dir));
                let found = self.mount().link(&root(), object, parent, &name).await;
                same("link", &number(found.map(drop)), &self.model.link(id, dir, &name))
            }
            Action::Remove { dir, name, wants_dir } => {
                let (dir, name) = (self.dir(dir), name_of(name));
                let (mount, parent) = (self.mount(), self.object(dir));
                let found = if wants_dir {
                    mount.rmdir(&root(), parent, &name).await
                } else {
                    mount.unlink(&root(), parent, &name).await
                };
                same("remove", &number(found), &self.model.remove(dir, &name, wants_dir))
            }
            Action::Rename { from, to, mode } => self.rename(from, to, mode).await,
            Action::Hold { node } => {
                let Some(id) = self.model.pick(node, |node| node.holds == 0) else { return Ok(()) };
                let handle = number(self.mount().hold(self.object(id)).await);
                let handle = handle.map_err(|number| format!("hold: {number}"))?;
                self.model.nodes.get_mut(&id).unwrap().holds += 1;
                self.handles.push((id, handle));
                Ok(())
            }
            Action::Release { handle } => {
                if self.handles.is_empty() {
                    return Ok(());
                }
                let index = handle % self.handles.len();
                let (id, handle) = self.handles.swap_remove(index);
                drop(handle);
                self.model.release(id);
                number(self.mount().reap().await).map_err(|number| format!("{number}"))
            }
            Action::List { dir, step } => self.list(self.dir(dir), step).await,
            Action::Sync => {
                self.fixture().engine.sync().await.map_err(|error| format!("{error:?}"))?;
                Ok(())
            }
            Action::Reopen => self.reopen().await,
            _ => self.on_file(action).await,
        }
    }

    async fn create(&mut self, dir: usize, name: u8, kind: u8) -> Verdict {
        let (dir, name) = (self.dir(dir), name_of(name));
        let target: &[u8] = if kind == 5 { &[b't'; 300] } else { b"target" };
        let (body, kind) = match kind {
            0..=3 => (Body::File(Vec::new()), NewKind::Regular),
            4..=5 => (Body::Link(target.to_vec()), NewKind::Symlink(target)),
            6 => (Body::Fifo, NewKind::Fifo),
            _ => (Body::Dir(BTreeMap::new()), NewKind::Directory),
        };
        let new = NewNode::new(kind, 0o700);
        let found = self.mount().create(&root(), self.object(dir), &name, &new).await;
        match (number(found), self.model.create(dir, &name, body, 0o700)) {
            (Ok(found), Ok(id)) => {
                self.model.nodes.get_mut(&id).unwrap().object = found.object;
                self.check(id, &found)
            }
            (found, expected) => same("create", &found.map(drop), &expected.map(drop)),
        }
    }

    async fn rename(&mut self, from: (usize, u8), to: (usize, u8), mode: Mode) -> Verdict {
        let (source, target) = (self.dir(from.0), self.dir(to.0));
        let (old, new) = (name_of(from.1), name_of(to.1));
        let wish = Rename {
            from: (self.object(source), &old),
            to: (self.object(target), &new),
            mode: match mode {
                Mode::Plain => RenameMode::Plain,
                Mode::NoReplace => RenameMode::NoReplace,
                Mode::Exchange => RenameMode::Exchange,
                Mode::Whiteout => RenameMode::Whiteout,
            },
        };
        let found = number(self.mount().rename(&root(), &wish).await);
        let expected = self.model.rename((source, &old), (target, &new), mode);
        if let Ok(Some(whiteout)) = expected {
            let there = self.mount().lookup(&root(), self.object(source), &old).await;
            self.model.nodes.get_mut(&whiteout).unwrap().object = there.unwrap().object;
        }
        same("rename", &found, &expected.map(drop))
    }

    async fn on_file(&mut self, action: Action) -> Verdict {
        let (Action::Write { node, .. }
        | Action::Resize { node, .. }
        | Action::Cut { node, .. }
        | Action::Read { node, .. }
        | Action::Change { node, .. }
        | Action::Fsync { node }) = action
        else {
            return Ok(());
        };
        let Some(id) = self.file(node) else { return Ok(()) };
        let (object, mount) = (self.object(id), self.mount());
        let fail = |error: Error| format!("{error:?}");
        match action {
            Action::Write { offset, len, byte, is_append, .. } => {
                let bytes = self.model.file_mut(id);
                let at = if is_append { bytes.len() as u64 } else { offset } as usize;
                let data: Vec<u8> =
                    (0..len).map(|n| byte.wrapping_add((n / 512) as u8).max(1)).collect();
                let options = WriteOptions { is_append, is_sync: false };
                mount.write(&root(), object, offset, &data, options).await.map_err(fail)?;
                bytes.resize(bytes.len().max(at + data.len()), 0);
                bytes[at..at + data.len()].copy_from_slice(&data);
            }
            Action::Resize { size, .. } => {
                let wish = SetAttributes { size: Some(size), ..SetAttributes::default() };
                mount.set_attributes(&root(), object, &wish).await.map_err(fail)?;
                self.model.file_mut(id).resize(size as usize, 0);
            }
            Action::Cut { offset, len, extends, .. } => {
                let how = if extends { Allocate::ZeroRange } else { Allocate::PunchHole };
                mount.allocate(&root(), object, offset, len, how).await.map_err(fail)?;
                let bytes = self.model.file_mut(id);
                let end = (offset + len) as usize;
                if extends && bytes.len() < end {
                    bytes.resize(end, 0);
                }
                let (start, end) = ((offset as usize).min(bytes.len()), end.min(bytes.len()));
                bytes[start..end].fill(0);
            }
            Action::Read { offset, len, .. } => {
                let mut into = vec![0xaa; len as usize];
                let count = mount.read(object, offset, &mut into).await.map_err(fail)?;
                let bytes = self.model.file_mut(id);
                let start = (offset as usize).min(bytes.len());
                let end = ((offset + len) as usize).min(bytes.len());
                if into[..count] != bytes[start..end] {
                    return Err(format!("read {offset}+{len}: other bytes"));
                }
            }
            Action::Change { mode, uid, gid, .. } => {
                let wish = SetAttributes {
                    mode: Some(mode),
                    uid: Some(uid),
                    gid: Some(gid),
                    ..SetAttributes::default()
                };
                let found = mount.set_attributes(&root(), object, &wish).await.map_err(fail)?;
                let node = self.model.nodes.get_mut(&id).unwrap();
                (node.mode, node.uid, node.gid) = (mode, uid, gid);
                self.check(id, &found)?;
            }
            _ => mount.fsync(object).await.map_err(fail)?,
        }
        Ok(())
    }

    async fn list(&self, dir: Id, step: usize) -> Verdict {
        let mut cookie = 0;
        let mut found = Vec::new();
        loop {
            let page = self.mount().read_dir(&root(), self.object(dir), cookie, step).await;
            let page = page.map_err(|error| format!("{error:?}"))?;
            if let Some(last) = page.entries.last() {
                cookie = last.cookie;
            }
            let is_end = page.is_end || page.entries.is_empty();
            found.extend(page.entries.into_iter().map(|entry| (entry.name, entry.object)));
            if is_end {
                break;
            }
        }
        let parent = if self.model.nodes[&dir].links == 0 { None } else { Some(self.parent(dir)) };
        let dots = [(b".".to_vec(), self.object(dir))];
        same("dot", &found[0], &dots[0])?;
        if let Some(parent) = parent {
            same("dots", &found[1], &(b"..".to_vec(), parent))?;
        }
        let mut rest = found.split_off(2);
        rest.sort();
        let entries = self.model.dir(dir).iter();
        let expected: Vec<_> = entries.map(|(name, id)| (name.clone(), self.object(*id))).collect();
        same("entries", &rest, &expected)
    }

    fn parent(&self, dir: Id) -> u64 {
        self.object(self.model.nodes[&dir].parent)
    }

    /// Compares what is told of a node.
    fn check(&self, id: Id, found: &Attributes) -> Verdict {
        let node = &self.model.nodes[&id];
        let (kind, size) = match &node.body {
            Body::File(bytes) => (FileKind::Regular, bytes.len() as u64),
            Body::Dir(entries) => (FileKind::Directory, entries.len() as u64 + 2),
            Body::Link(target) => (FileKind::Symlink, target.len() as u64),
            Body::Fifo => (FileKind::Fifo, 0),
            Body::Whiteout => (FileKind::CharDevice, 0),
        };
        let found = (found.kind, found.size, found.links, found.mode, found.uid, found.gid);
        let mode = if kind == FileKind::Symlink { found.3 } else { node.mode };
        same("attributes", &found, &(kind, size, node.links, mode, node.uid, node.gid))
    }

    /// Compares everything.
    async fn check_all(&self) -> Verdict {
        let mount = self.mount();
        for (id, node) in &self.model.nodes {
            let found = mount.attributes(node.object).await.map_err(|e| format!("{e:?}"))?;
            self.check(*id, &found)?;
            match &node.body {
                Body::File(bytes) => {
                    let found = self.fixture().read_all(node.object).await;
                    if found.map_err(|e| format!("{e:?}"))? != *bytes {
                        return Err(format!("node {id}: other bytes"));
                    }
                }
                Body::Dir(_) => self.list(*id, 4).await?,
                Body::Link(target) => {
                    let found = mount.read_link(node.object).await.map_err(|e| format!("{e:?}"))?;
                    same("target", &found, target)?;
                }
                Body::Fifo | Body::Whiteout => {}
            }
        }
        Ok(())
    }

    async fn reopen(&mut self) -> Verdict {
        for (id, handle) in self.handles.drain(..) {
            drop(handle);
            self.model.release(id);
        }
        let fixture = self.fixture.take().unwrap();
        self.fixture = Some(fixture.reopen().await);
        self.check_all().await?;
        accounts::check(&self.fixture().devices).await
    }
}

async fn run(actions: &[Action]) -> Verdict {
    let mut pair = Pair::new().await;
    for (index, action) in actions.iter().enumerate() {
        let verdict = pair.perform(*action).await;
        verdict.map_err(|what| format!("action {index}, {action:?}: {what}"))?;
    }
    pair.check_all().await.map_err(|what| format!("at the end: {what}"))?;
    pair.reopen().await.map_err(|what| format!("at the end, opened again: {what}"))
}

/// Leaves out what is not needed for a failure.
async fn shrink(mut actions: Vec<Action>) -> Vec<Action> {
    let mut size = actions.len() / 2;
    while size > 0 {
        let mut at = 0;
        while at < actions.len() {
            let end = (at + size).min(actions.len());
            let without = [&actions[..at], &actions[end..]].concat();
            if run(&without).await.is_err() {
                actions = without;
            } else {
                at = end;
            }
        }
        size /= 2;
    }
    actions
}

#[test]
fn histories_are_those_of_the_model() {
    let all = std::env::var_os("CENOTE_TEST_ALL").is_some();
    let (from, count) = match std::env::var("CENOTE_SEED") {
        Ok(seed) => (seed.parse().unwrap(), 1),
        Err(_) => (1, if all { 2_000 } else { 12 }),
    };
    for seed in from..from + count {
        block_on(1, async move {
            let mut rng = Rng::seeded(seed);
            let actions: Vec<Action> = (0..ACTIONS).map(|_| draw(&mut rng, FILE_MAX)).collect();
            let Err(what) = run(&actions).await else { return };
            let short = shrink(actions).await;
            let again = run(&short).await;
            panic!("seed {seed}: {what}\nshortened: {short:#?}\n{again:?}");
        })
        .unwrap();
    }
}
