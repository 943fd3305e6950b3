//! Random histories of operations: the file system behaves like the model.
//!
//! A history is drawn from a seed as a list of actions that select nodes by numbers, modulo the
//! number of existing nodes. Any part of the list is therefore a history as well, and a failing one
//! can be shortened by leaving actions out.
//!
//! After some of them, with `CENOTE_TEST_ALL` after all, OpenZFS's zdb checks the pool: nothing
//! leaks, and the usage of users, groups and projects equals the sum over their objects.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode, SetAttributes};
use cenote_fs::mount::{Allocate, Attributes, Handle, WriteOptions, errno};
use cenote_fs::{FileKind, Mount, PFlags};
use cenote_rt::{Error, Rng, block_on};
use cenote_testkit::cuts;
use cenote_testkit::rng::wants_all;
use cenote_testkit::shrink::shorter;

use crate::accounts;
use crate::fixture::{Fixture, root};
use crate::model::{Body, Id, Mode, Model, NAMED, Node, Outcome, ROOT};
use crate::owners;

/// Longest file of the model.
const FILE_MAX: u64 = 700_000;
/// Actions of a history.
pub(crate) const ACTIONS: usize = 200;
/// Permission bits of new nodes.
const MODE: u32 = 0o754;

/// An action; numbers are taken modulo the number of candidates.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Action {
    Create {
        dir: usize,
        name: u8,
        kind: u8,
    },
    Link {
        node: usize,
        dir: usize,
        name: u8,
    },
    Remove {
        dir: usize,
        name: u8,
        wants_dir: bool,
    },
    Rename {
        from: (usize, u8),
        to: (usize, u8),
        mode: Mode,
    },
    Write {
        node: usize,
        offset: u64,
        len: u64,
        byte: u8,
        how: How,
    },
    Resize {
        node: usize,
        size: u64,
    },
    Allocate {
        node: usize,
        offset: u64,
        len: u64,
        how: Allocate,
    },
    Copy {
        from: usize,
        to: usize,
        at: (u64, u64),
        len: u64,
    },
    Read {
        node: usize,
        offset: u64,
        len: u64,
    },
    Own {
        node: usize,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    SetXattr {
        node: usize,
        name: u8,
        len: usize,
        byte: u8,
    },
    RemoveXattr {
        node: usize,
        name: u8,
    },
    /// Place of extended attributes from now on.
    XattrPlace {
        is_dir: bool,
    },
    /// Permissions of an ACL, three bits for each class; none removes it.
    SetAcl {
        node: usize,
        is_default: bool,
        bits: Option<u16>,
    },
    Project {
        node: usize,
        project: u32,
        hands_down: bool,
    },
    Flags {
        node: usize,
        is_immutable: bool,
        is_append_only: bool,
    },
    /// A quota of this much beyond the present usage; none removes it.
    Quota {
        holder: usize,
        is_objects: bool,
        slack: Option<u64>,
    },
    Access {
        node: usize,
        uid: u32,
        gid: u32,
        rwx: u16,
    },
    /// Creates a file without a name.
    Unnamed {
        dir: usize,
    },
    Hold {
        node: usize,
    },
    Release {
        handle: usize,
    },
    List {
        dir: usize,
        step: usize,
    },
    Fsync {
        node: usize,
    },
    Sync,
    Reopen,
}

/// The user and position of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    Plain,
    Append,
    /// By a user without privileges.
    Unprivileged,
}

/// The kind of ACLs of a file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AclType {
    Off,
    Posix,
    Nfs,
}

impl AclType {
    /// Returns the kind for the history of a seed.
    pub(crate) fn of(seed: u64) -> Self {
        [Self::Posix, Self::Nfs, Self::Off][(seed % 3) as usize]
    }
}

/// Draws an action on files of at most this size.
pub(crate) fn draw(rng: &mut Rng, file_max: u64) -> Action {
    let node = rng.below(1 << 20) as usize;
    let dir = rng.below(1 << 20) as usize;
    let name = rng.below(6) as u8;
    let size = |rng: &mut Rng| {
        let max = [600, 5_000, 140_000, file_max][rng.below(4) as usize];
        rng.below(max.min(file_max))
    };
    match rng.below(57) {
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
            let how = [How::Plain, How::Plain, How::Append, How::Unprivileged];
            Action::Write { node, offset, len, byte, how: how[rng.below(4) as usize] }
        }
        26..=27 => Action::Resize { node, size: size(rng) },
        28..=30 => {
            use Allocate as A;
            let (offset, len) = (size(rng), size(rng) + 1);
            let how = [A::PunchHole, A::ZeroRange, A::ZeroRangeKeepSize, A::Extend, A::KeepSize];
            Action::Allocate { node, offset, len, how: how[rng.below(5) as usize] }
        }
        31 => Action::Read { node, offset: size(rng), len: size(rng) },
        32 => {
            let (from, at) = (rng.below(1 << 20) as usize, (size(rng), size(rng)));
            Action::Copy { from, to: node, at, len: size(rng) + 1 }
        }
        33..=35 => Action::Hold { node },
        36..=37 => Action::Release { handle: node },
        38 => Action::List { dir, step: 1 + rng.below(5) as usize },
        39 => Action::Fsync { node },
        40 => Action::Sync,
        41 => Action::Reopen,
        42 => Action::Unnamed { dir },
        _ => draw_attributes(rng, node),
    }
}

/// Draws an action on attributes other than names and contents.
fn draw_attributes(rng: &mut Rng, node: usize) -> Action {
    match rng.below(28) {
        0..=4 => {
            let (uid, gid) = (rng.below(4) as u32 * 500, rng.below(4) as u32 * 100);
            let mode = rng.below(0o10_000) as u32;
            let [mode, uid, gid] =
                [mode, uid, gid].map(|changes| (rng.below(2) == 0).then_some(changes));
            Action::Own { node, mode, uid, gid }
        }
        5..=9 => {
            let max = [20, 300, 3_000, 60_000][rng.below(4) as usize];
            let len = rng.below(max) as usize;
            Action::SetXattr { node, name: rng.below(6) as u8, len, byte: rng.below(256) as u8 }
        }
        10..=11 => Action::RemoveXattr { node, name: rng.below(6) as u8 },
        12 => Action::XattrPlace { is_dir: rng.below(2) == 0 },
        13..=16 => {
            let bits = (rng.below(4) != 0).then_some(rng.below(1 << 15) as u16);
            Action::SetAcl { node, is_default: rng.below(2) == 0, bits }
        }
        17..=18 => {
            let project = rng.below(3) as u32;
            Action::Project { node, project, hands_down: rng.below(2) == 0 }
        }
        19..=21 => {
            let [is_immutable, is_append_only] = [rng.below(5) == 0, rng.below(5) == 0];
            Action::Flags { node, is_immutable, is_append_only }
        }
        22..=23 => {
            let (holder, is_objects) = (rng.below(6) as usize, rng.below(2) == 0);
            let slack = if is_objects { rng.below(4) } else { rng.below(200_000) };
            Action::Quota { holder, is_objects, slack: (rng.below(2) == 0).then_some(slack) }
        }
        _ => {
            let uid = [0, 500, 1000, NAMED][rng.below(4) as usize].max(1);
            let (gid, rwx) = (rng.below(4) as u32 * 100 + 1, 1 + rng.below(7) as u16);
            // Groups that own nodes, and some that own none.
            Action::Access { node, uid, gid: gid - rng.below(2) as u32, rwx }
        }
    }
}

fn name_of(number: u8) -> Vec<u8> {
    if number == 5 { vec![b'n'; 200] } else { vec![b'a' + number] }
}

/// The file system under test and its model.
pub(crate) struct Pair {
    /// `None` while it is opened again.
    fixture: Option<Fixture>,
    pub(crate) acl_type: AclType,
    pub(crate) model: Model,
    handles: Vec<(Id, Handle)>,
}

/// A failed comparison, or success.
pub(crate) type Verdict = Result<(), String>;

pub(crate) fn same<T: PartialEq + std::fmt::Debug>(what: &str, found: &T, expected: &T) -> Verdict {
    if found == expected {
        return Ok(());
    }
    Err(format!("{what}: found {found:?}, expected {expected:?}"))
}

pub(crate) fn number<T>(result: Result<T, Error>) -> Outcome<T> {
    result.map_err(|error| {
        let number = errno::of(&error);
        assert!(number != errno::EIO, "{error:?}");
        number
    })
}

impl Pair {
    /// Returns a pair over an empty file system.
    pub(crate) async fn over(fixture: Fixture, acl_type: AclType) -> Self {
        let value = [AclType::Off, AclType::Posix, AclType::Nfs];
        let value = value.iter().position(|one| *one == acl_type).unwrap();
        fixture.engine.properties().set("tank", "acltype", (value as u64).into()).await.unwrap();
        let model = Model::new(fixture.mount.root());
        Self { fixture: Some(fixture), acl_type, model, handles: Vec::new() }
    }

    pub(crate) fn fixture(&self) -> &Fixture {
        self.fixture.as_ref().unwrap()
    }

    pub(crate) fn mount(&self) -> Arc<Mount> {
        Arc::clone(&self.fixture().mount)
    }

    pub(crate) fn object(&self, id: Id) -> u64 {
        self.model.nodes[&id].object
    }

    pub(crate) fn dir(&self, number: usize) -> Id {
        self.model.pick(number, Node::is_dir).unwrap_or(ROOT)
    }

    /// Returns the file that a number selects.
    pub(crate) fn file(&self, number: usize) -> Option<Id> {
        self.model.pick(number, |node| matches!(node.body, Body::File(_)))
    }

    /// Performs an action on both.
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
            Action::Unnamed { dir } => self.create_unnamed(self.dir(dir)).await,
            Action::Write { .. }
            | Action::Resize { .. }
            | Action::Allocate { .. }
            | Action::Copy { .. }
            | Action::Read { .. }
            | Action::Fsync { .. } => self.on_file(action).await,
            _ => self.on_attributes(action).await,
        }
    }

    /// Whether a directory accepts another node, quotas included.
    async fn room_for(&self, dir: Id, may: Outcome<()>, has_project: bool) -> Outcome<()> {
        may?;
        let (gid, project) = self.model.owners_of_new(dir, has_project);
        if self.is_full(0, gid, project, true).await { Err(errno::EDQUOT) } else { Ok(()) }
    }

    async fn settled_for(
        &self,
        dir: Id,
        found: Option<&i32>,
        may: Outcome<()>,
        has_project: bool,
    ) -> Outcome<()> {
        let (gid, project) = self.model.owners_of_new(dir, has_project);
        self.settled(found.copied(), may, (0, gid, project), true).await
    }

    async fn create_unnamed(&mut self, dir: Id) -> Verdict {
        let may = self.room_for(dir, self.model.may_add(dir), true).await;
        let new = NewNode::new(NewKind::Regular, MODE);
        let found = number(self.mount().create_unnamed(&root(), self.object(dir), &new).await);
        let may = self.settled_for(dir, found.as_ref().err(), may, true).await;
        match (found, may) {
            (Ok((handle, found)), Ok(())) => {
                let id = self.model.bear(dir, Body::File(Vec::new()), MODE);
                let node = self.model.nodes.get_mut(&id).unwrap();
                (node.object, node.holds) = (found.object, 1);
                self.handles.push((id, handle));
                self.check(id, &found)
            }
            (found, expected) => same("create unnamed", &found.map(drop), &expected),
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
        let new = NewNode::new(kind, MODE);
        let has_project = matches!(kind, NewKind::Regular | NewKind::Directory);
        let may = self.room_for(dir, self.model.may_create(dir, &name), has_project).await;
        let found = number(self.mount().create(&root(), self.object(dir), &name, &new).await);
        let may = self.settled_for(dir, found.as_ref().err(), may, has_project).await;
        match (found, may) {
            (Ok(found), Ok(())) => {
                let id = self.model.put(dir, &name, body, MODE);
                self.model.nodes.get_mut(&id).unwrap().object = found.object;
                self.check(id, &found)
            }
            (found, expected) => same("create", &found.map(drop), &expected),
        }
    }

    async fn rename(&mut self, from: (usize, u8), to: (usize, u8), mode: Mode) -> Verdict {
        let (source, target) = (self.dir(from.0), self.dir(to.0));
        let (old, new) = (name_of(from.1), name_of(to.1));
        let changes = Rename {
            from: (self.object(source), &old),
            to: (self.object(target), &new),
            mode: match mode {
                Mode::Plain => RenameMode::Plain,
                Mode::NoReplace => RenameMode::NoReplace,
                Mode::Exchange => RenameMode::Exchange,
                Mode::Whiteout => RenameMode::Whiteout,
            },
        };
        let found = number(self.mount().rename(&root(), &changes).await);
        let mut may = self.model.may_rename((source, &old), (target, &new), mode);
        if may == Ok(true) && mode == Mode::Whiteout {
            may = self.room_for(source, Ok(()), false).await.map(|()| true);
            let settled = self.settled_for(source, found.as_ref().err(), may.map(drop), false);
            may = settled.await.map(|()| true);
        }
        same("rename", &found, &may.map(drop))?;
        if may == Ok(true)
            && let Some(whiteout) = self.model.rename((source, &old), (target, &new), mode)
        {
            let there = self.mount().lookup(&root(), self.object(source), &old).await;
            self.model.nodes.get_mut(&whiteout).unwrap().object = there.unwrap().object;
        }
        Ok(())
    }

    async fn on_file(&mut self, action: Action) -> Verdict {
        let (Action::Write { node, .. }
        | Action::Resize { node, .. }
        | Action::Allocate { node, .. }
        | Action::Copy { to: node, .. }
        | Action::Read { node, .. }
        | Action::Fsync { node }) = action
        else {
            return Ok(());
        };
        let Some(id) = self.file(node) else { return Ok(()) };
        let (object, mount) = (self.object(id), self.mount());
        let fail = |error: Error| format!("{error:?}");
        match action {
            Action::Write { offset, len, byte, how, .. } => {
                let end = self.model.bytes(id).len() as u64;
                let at = if how == How::Append { end } else { offset };
                let data: Vec<u8> =
                    (0..len).map(|n| byte.wrapping_add((n / 512) as u8).max(1)).collect();
                let options =
                    WriteOptions { is_append: how == How::Append, ..WriteOptions::default() };
                let is_root = how != How::Unprivileged;
                let who = if is_root { root() } else { Credentials::user(9, 9, vec![]) };
                let may = self.may_write(id, at).await;
                let found = number(mount.write(&who, object, offset, &data, options).await);
                let may = self.settled_write(id, found.as_ref().err(), may).await;
                same("write", &found.map(drop), &may)?;
                if may.is_ok() {
                    self.model.write(id, at as usize, &data, is_root);
                }
            }
            Action::Resize { size, .. } => {
                let changes = SetAttributes { size: Some(size), ..SetAttributes::default() };
                let found = number(mount.set_attributes(&root(), object, &changes).await);
                let may = self.model.may_change(id, 0);
                same("resize", &found.map(drop), &may)?;
                if may.is_ok() {
                    self.model.file_mut(id).resize(size as usize, 0);
                    self.model.nodes.get_mut(&id).unwrap().lose_privileges(true);
                }
            }
            Action::Allocate { offset, len, how, .. } => {
                let found = number(mount.allocate(&root(), object, offset, len, how).await);
                let may = self.model.may_allocate(id, (offset, len), how);
                same("allocate", &found, &may)?;
                if may.is_ok() {
                    self.model.allocate(id, (offset as usize, len as usize), how);
                }
            }
            Action::Copy { from, at: (start, place), len, .. } => {
                let source = self.file(from).unwrap_or(id);
                if source == id && start.abs_diff(place) < len {
                    return Ok(());
                }
                let bytes = self.model.bytes(source);
                let end = bytes.len().min((start + len) as usize);
                let data = bytes.get(start as usize..end).unwrap_or(&[]).to_vec();
                let may = if data.is_empty() { Ok(()) } else { self.may_write(id, place).await };
                let (from, to) = ((self.object(source), start), (object, place));
                let found = number(mount.copy_range(&root(), from, to, len).await);
                let may = self.settled_write(id, found.as_ref().err(), may).await;
                same("copy", &found, &may.map(|()| data.len() as u64))?;
                if may.is_ok() && !data.is_empty() {
                    self.model.write(id, place as usize, &data, true);
                }
            }
            Action::Read { offset, len, .. } => {
                let mut into = vec![0xaa; len as usize];
                let count = mount.read(object, offset, &mut into).await.map_err(fail)?;
                let bytes = self.model.bytes(id);
                let start = (offset as usize).min(bytes.len());
                let end = ((offset + len) as usize).min(bytes.len());
                if into[..count] != bytes[start..end] {
                    return Err(format!("read {offset}+{len}: other bytes"));
                }
            }
            _ => mount.fsync(object).await.map_err(fail)?,
        }
        self.check(id, &mount.attributes(object).await.map_err(fail)?)
    }

    async fn settled_write(&self, id: Id, found: Option<&i32>, may: Outcome<()>) -> Outcome<()> {
        let node = &self.model.nodes[&id];
        let owners = (node.uid, node.gid, node.extra.project.unwrap_or(0));
        self.settled(found.copied(), may, owners, false).await
    }

    /// Whether flags and quotas permit a write.
    async fn may_write(&self, id: Id, at: u64) -> Outcome<()> {
        self.model.may_change(id, at)?;
        let node = &self.model.nodes[&id];
        let (uid, gid, project) = (node.uid, node.gid, node.extra.project.unwrap_or(0));
        if self.is_full(uid, gid, project, false).await { Err(errno::EDQUOT) } else { Ok(()) }
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

    /// Compares the attributes of a node.
    pub(crate) fn check(&self, id: Id, found: &Attributes) -> Verdict {
        let node = &self.model.nodes[&id];
        let (kind, size) = match &node.body {
            Body::File(bytes) => (FileKind::Regular, bytes.len() as u64),
            Body::Dir(entries) => (FileKind::Directory, entries.len() as u64 + 2),
            Body::Link(target) => (FileKind::Symlink, target.len() as u64),
            Body::Fifo => (FileKind::Fifo, 0),
            Body::Whiteout => (FileKind::CharDevice, 0),
        };
        let extra = &node.extra;
        let flags = [
            (PFlags::IMMUTABLE, extra.is_immutable),
            (PFlags::APPENDONLY, extra.is_append_only),
            (PFlags::PROJINHERIT, extra.hands_down),
        ];
        for (flag, is_set) in flags {
            same("flag", &(flag, found.flags.contains(flag)), &(flag, is_set))?;
        }
        same("project", &found.project, &extra.project)?;
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
            self.check_attributes(*id).await?;
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

    /// Exports the pool, and has OpenZFS check it.
    async fn judge(mut self, what: &str) -> Verdict {
        self.handles.clear();
        let fixture = self.fixture.take().unwrap();
        let said = fixture.judge(what, &["-P", "-dddd"]).await;
        said.map_or(Ok(()), |text| owners::check(&text))
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

/// Performs a history, and has OpenZFS check the resulting pool if it has a name.
async fn run(acl_type: AclType, actions: &[Action], judged: Option<&str>) -> Verdict {
    let mut pair = Pair::over(Fixture::new().await, acl_type).await;
    for (index, action) in actions.iter().enumerate() {
        let verdict = pair.perform(*action).await;
        verdict.map_err(|what| format!("action {index}, {action:?}: {what}"))?;
    }
    pair.check_all().await.map_err(|what| format!("at the end: {what}"))?;
    pair.reopen().await.map_err(|what| format!("at the end, opened again: {what}"))?;
    let Some(name) = judged else { return Ok(()) };
    pair.judge(name).await.map_err(|what| format!("at the end, to OpenZFS: {what}"))
}

/// Whether OpenZFS checks the history of a seed: some of them, or all in the long form.
pub(crate) fn is_judged(seed: u64) -> bool {
    wants_all() || seed.is_multiple_of(4)
}

fn explore(seed: u64) -> usize {
    block_on(1, async move {
        let mut rng = Rng::seeded(seed);
        let acl_type = AclType::of(seed);
        let actions: Vec<Action> = (0..ACTIONS).map(|_| draw(&mut rng, FILE_MAX)).collect();
        let name = format!("history-{seed}");
        let judged = is_judged(seed).then_some(name.as_str());
        let Err(what) = run(acl_type, &actions, judged).await else { return 1 };
        let fails = async |actions: &[Action]| run(acl_type, actions, judged).await.is_err();
        let short = shorter(actions, fails).await;
        let again = run(acl_type, &short, judged).await;
        panic!("seed {seed}: {what}\nshortened: {short:#?}\n{again:?}");
    })
    .unwrap()
}

#[test]
fn random_histories_equal_the_model() {
    cuts::histories(24, 2_000, explore);
}
