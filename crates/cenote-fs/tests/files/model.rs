//! The model of a file system: names, nodes and contents in maps, with the errors of POSIX.

use std::collections::BTreeMap;

use cenote_fs::mount::{Allocate, errno};

/// A node of the model.
pub(crate) type Id = usize;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    File(Vec<u8>),
    Dir(BTreeMap<Vec<u8>, Id>),
    Link(Vec<u8>),
    Fifo,
    Whiteout,
}

/// A POSIX ACL with an entry for one user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Posix {
    pub(crate) owner: u16,
    pub(crate) user: u16,
    pub(crate) group: u16,
    pub(crate) mask: u16,
    pub(crate) other: u16,
}

impl Posix {
    fn rwx(&self) -> u32 {
        u32::from(self.owner << 6 | self.mask << 3 | self.other)
    }

    /// Returns the ACL after a chmod.
    fn follow(&mut self, mode: u32) {
        let class = |shift: u32| (mode >> shift & 7) as u16;
        (self.owner, self.mask, self.other) = (class(6), class(3), class(0));
    }

    /// Returns what a new node inherits from a default ACL.
    fn handed_down(&self, mode: u32) -> Self {
        let class = |shift: u32| (mode >> shift & 7) as u16;
        let (owner, mask, other) =
            (self.owner & class(6), self.mask & class(3), self.other & class(0));
        Self { owner, mask, other, ..*self }
    }
}

/// Attributes of a node besides names and contents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub(crate) access: Option<Posix>,
    pub(crate) default: Option<Posix>,
    /// Permissions of an NFSv4 ACL for owner, [`NAMED`], group, and everyone.
    pub(crate) nfs: Option<[u16; 4]>,
    pub(crate) project: Option<u32>,
    pub(crate) hands_down: bool,
    pub(crate) is_immutable: bool,
    pub(crate) is_append_only: bool,
}

impl Extra {
    /// Whether nothing but its flags can be changed.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_immutable || self.is_append_only
    }
}

/// The user that ACLs name, who owns nothing.
pub(crate) const NAMED: u32 = 7;
pub(crate) const CAPABILITY: &[u8] = b"security.capability";
const SET_GID: u32 = 0o2000;
const SET_IDS: u32 = 0o6000;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) extra: Extra,
    pub(crate) body: Body,
    pub(crate) links: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) parent: Id,
    /// Open count.
    pub(crate) holds: usize,
    /// Its number in the file system under test.
    pub(crate) object: u64,
}

impl Node {
    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
    }

    /// Updates privileges after a change of contents, by root or by an unprivileged user.
    pub(crate) fn lose_privileges(&mut self, is_root: bool) {
        self.extra.xattrs.remove(CAPABILITY);
        if !is_root && self.mode & 0o111 != 0 {
            self.mode &= !SET_IDS;
        }
    }

    /// Changes owner and group as chown does, with another mode or without.
    pub(crate) fn own(&mut self, uid: Option<u32>, gid: Option<u32>, mode: Option<u32>) {
        if (uid.is_some() || gid.is_some()) && !self.is_dir() {
            self.extra.xattrs.remove(CAPABILITY);
            self.mode &= if self.mode & 0o010 != 0 { !SET_IDS } else { !0o4000 };
        }
        self.uid = uid.unwrap_or(self.uid);
        self.gid = gid.unwrap_or(self.gid);
        let Some(mode) = mode else { return };
        self.mode = mode;
        self.extra.nfs = None;
        if let Some(acl) = &mut self.extra.access {
            acl.follow(mode);
        }
    }

    /// Sets the access ACL.
    pub(crate) fn set_access(&mut self, acl: Option<Posix>) {
        self.extra.access = acl;
        if let Some(acl) = acl {
            self.mode = self.mode & !0o777 | acl.rwx();
        }
    }

    /// Sets the permissions of the NFSv4 ACL.
    pub(crate) fn set_nfs(&mut self, allowed: [u16; 4]) {
        let [owner, _, group, everyone] = allowed.map(u32::from);
        let rwx = (owner | everyone) << 6 | (group | everyone) << 3 | everyone;
        self.mode = self.mode & !0o777 | rwx;
        self.extra.nfs = Some(allowed);
    }

    /// Whether an unprivileged user has these permissions: 4 read, 2 write, 1 execute.
    pub(crate) fn permits(&self, uid: u32, gid: u32, rwx: u16) -> bool {
        let class = |shift: u32| (self.mode >> shift & 7) as u16;
        let is_owner = uid == self.uid;
        if let Some([owner, named, group, everyone]) = self.extra.nfs {
            let of = |is_meant: bool, allowed: u16| if is_meant { allowed } else { 0 };
            let allowed = of(is_owner, owner)
                | of(uid == NAMED, named)
                | of(gid == self.gid, group)
                | everyone;
            return allowed & rwx == rwx;
        }
        let allowed = match self.extra.access {
            _ if is_owner => class(6),
            Some(acl) if uid == NAMED => acl.user & acl.mask,
            Some(acl) if gid == self.gid => acl.group & acl.mask,
            None if gid == self.gid => class(3),
            _ => class(0),
        };
        allowed & rwx == rwx
    }
}

/// A file system.
#[derive(Debug, Clone)]
pub(crate) struct Model {
    pub(crate) nodes: BTreeMap<Id, Node>,
    next: Id,
}

pub(crate) type Outcome<T> = Result<T, i32>;

pub(crate) const ROOT: Id = 0;

/// Variant of a rename.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Plain,
    NoReplace,
    Exchange,
    Whiteout,
}

impl Model {
    pub(crate) fn new(root_object: u64) -> Self {
        let root = Node {
            extra: Extra { project: Some(0), ..Extra::default() },
            body: Body::Dir(BTreeMap::new()),
            links: 2,
            mode: 0o755,
            uid: 0,
            gid: 0,
            parent: ROOT,
            holds: 0,
            object: root_object,
        };
        Self { nodes: BTreeMap::from([(ROOT, root)]), next: 1 }
    }

    pub(crate) fn dir(&self, id: Id) -> &BTreeMap<Vec<u8>, Id> {
        match &self.nodes[&id].body {
            Body::Dir(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    fn dir_mut(&mut self, id: Id) -> &mut BTreeMap<Vec<u8>, Id> {
        match &mut self.nodes.get_mut(&id).unwrap().body {
            Body::Dir(entries) => entries,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn file_mut(&mut self, id: Id) -> &mut Vec<u8> {
        match &mut self.nodes.get_mut(&id).unwrap().body {
            Body::File(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn bytes(&self, id: Id) -> &Vec<u8> {
        match &self.nodes[&id].body {
            Body::File(bytes) => bytes,
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn write(&mut self, id: Id, at: usize, data: &[u8], is_root: bool) {
        let bytes = self.file_mut(id);
        bytes.resize(bytes.len().max(at + data.len()), 0);
        bytes[at..at + data.len()].copy_from_slice(data);
        self.nodes.get_mut(&id).unwrap().lose_privileges(is_root);
    }

    /// Whether the flags of a file permit a change from an offset on.
    pub(crate) fn may_change(&self, id: Id, at: u64) -> Outcome<()> {
        let extra = &self.nodes[&id].extra;
        let is_inside = at < self.bytes(id).len() as u64;
        if extra.is_immutable || extra.is_append_only && is_inside {
            return Err(errno::EPERM);
        }
        Ok(())
    }

    pub(crate) fn may_allocate(&self, id: Id, (at, len): (u64, u64), how: Allocate) -> Outcome<()> {
        if frees(how) {
            self.may_change(id, at)?;
        }
        if extends(how) && at + len > self.bytes(id).len() as u64 {
            self.may_change(id, 0)?;
        }
        Ok(())
    }

    pub(crate) fn allocate(&mut self, id: Id, (at, len): (usize, usize), how: Allocate) {
        let bytes = self.file_mut(id);
        let is_longer = extends(how) && bytes.len() < at + len;
        if frees(how) {
            let (start, end) = (at.min(bytes.len()), (at + len).min(bytes.len()));
            bytes[start..end].fill(0);
        }
        if is_longer {
            bytes.resize(at + len, 0);
        }
        if frees(how) || is_longer {
            self.nodes.get_mut(&id).unwrap().lose_privileges(true);
        }
    }

    /// Returns one of the nodes that an action can apply to.
    pub(crate) fn pick(&self, number: usize, is_wanted: impl Fn(&Node) -> bool) -> Option<Id> {
        let wanted: Vec<Id> =
            self.nodes.iter().filter(|(_, node)| is_wanted(node)).map(|(id, _)| *id).collect();
        if wanted.is_empty() { None } else { Some(wanted[number % wanted.len()]) }
    }

    pub(crate) fn may_create(&self, dir: Id, name: &[u8]) -> Outcome<()> {
        if self.dir(dir).contains_key(name) {
            return Err(errno::EEXIST);
        }
        self.may_add(dir)
    }

    /// Whether a directory accepts another entry.
    pub(crate) fn may_add(&self, dir: Id) -> Outcome<()> {
        match &self.nodes[&dir] {
            node if node.links == 0 => Err(errno::ENOENT),
            node if node.extra.is_immutable => Err(errno::EPERM),
            _ => Ok(()),
        }
    }

    /// Returns group and project of a new node in a directory.
    pub(crate) fn owners_of_new(&self, dir: Id, has_project: bool) -> (u32, u32) {
        let dir = &self.nodes[&dir];
        let gid = if dir.mode & SET_GID != 0 { dir.gid } else { 0 };
        let hands_down = has_project && dir.extra.hands_down;
        (gid, if hands_down { dir.extra.project.unwrap_or(0) } else { 0 })
    }

    /// Adds a new node without a name, created in a directory.
    pub(crate) fn bear(&mut self, dir: Id, body: Body, mode: u32) -> Id {
        let id = self.next;
        self.next += 1;
        let is_dir = matches!(body, Body::Dir(_));
        let has_project = matches!(body, Body::Dir(_) | Body::File(_));
        let has_acl = !matches!(body, Body::Link(_) | Body::Whiteout);
        let (gid, project) = self.owners_of_new(dir, has_project);
        let parent = &self.nodes[&dir];
        let mut extra = Extra {
            project: has_project.then_some(project),
            hands_down: has_project && parent.extra.hands_down,
            ..Extra::default()
        };
        let mut mode = mode;
        if let Some(default) = parent.extra.default.filter(|_| has_acl) {
            let access = default.handed_down(mode);
            mode = mode & !0o777 | access.rwx();
            extra.access = Some(access);
            extra.default = is_dir.then_some(default);
        }
        if is_dir && parent.mode & SET_GID != 0 {
            mode |= SET_GID;
        }
        let links = if is_dir { 2 } else { 0 };
        let node = Node { extra, body, links, mode, uid: 0, gid, parent: dir, holds: 0, object: 0 };
        self.nodes.insert(id, node);
        id
    }

    pub(crate) fn put(&mut self, dir: Id, name: &[u8], body: Body, mode: u32) -> Id {
        let id = self.bear(dir, body, mode);
        if !self.nodes[&id].is_dir() {
            self.nodes.get_mut(&id).unwrap().links = 1;
        }
        self.enter(dir, name, id);
        id
    }

    fn enter(&mut self, dir: Id, name: &[u8], id: Id) {
        self.dir_mut(dir).insert(name.to_vec(), id);
        if self.nodes[&id].is_dir() {
            self.nodes.get_mut(&dir).unwrap().links += 1;
        }
    }

    fn leave(&mut self, dir: Id, name: &[u8]) -> Id {
        let id = self.dir_mut(dir).remove(name).unwrap();
        if self.nodes[&id].is_dir() {
            self.nodes.get_mut(&dir).unwrap().links -= 1;
        }
        id
    }

    pub(crate) fn link(&mut self, id: Id, dir: Id, name: &[u8]) -> Outcome<()> {
        if self.nodes[&id].is_dir() {
            return Err(errno::EPERM);
        }
        if self.is_foreign(dir, id) {
            return Err(errno::EXDEV);
        }
        self.may_create(dir, name)?;
        if self.nodes[&id].extra.is_closed() {
            return Err(errno::EPERM);
        }
        let node = self.nodes.get_mut(&id).unwrap();
        node.links += 1;
        node.parent = dir;
        self.enter(dir, name, id);
        Ok(())
    }

    /// Whether a directory passes on a project that a node does not have.
    fn is_foreign(&self, dir: Id, id: Id) -> bool {
        let (dir, node) = (&self.nodes[&dir].extra, &self.nodes[&id].extra);
        dir.hands_down && dir.project.unwrap_or(0) != node.project.unwrap_or(0)
    }

    fn may_delete(&self, dir: Id, id: Id) -> Outcome<()> {
        let is_closed = |id| self.nodes[&id].extra.is_closed();
        if is_closed(dir) || is_closed(id) { Err(errno::EPERM) } else { Ok(()) }
    }

    fn lose(&mut self, id: Id) {
        let node = self.nodes.get_mut(&id).unwrap();
        node.links = if node.is_dir() { 0 } else { node.links - 1 };
        self.collect(id);
    }

    fn collect(&mut self, id: Id) {
        if self.nodes.get(&id).is_some_and(|node| node.links == 0 && node.holds == 0) {
            self.nodes.remove(&id);
        }
    }

    pub(crate) fn release(&mut self, id: Id) {
        self.nodes.get_mut(&id).unwrap().holds -= 1;
        self.collect(id);
    }

    pub(crate) fn remove(&mut self, dir: Id, name: &[u8], wants_dir: bool) -> Outcome<()> {
        let Some(id) = self.dir(dir).get(name).copied() else { return Err(errno::ENOENT) };
        match (wants_dir, &self.nodes[&id].body) {
            (false, Body::Dir(_)) => return Err(errno::EISDIR),
            (true, Body::Dir(_)) | (false, _) => {}
            (true, _) => return Err(errno::ENOTDIR),
        }
        self.may_delete(dir, id)?;
        if matches!(&self.nodes[&id].body, Body::Dir(entries) if !entries.is_empty()) {
            return Err(errno::ENOTEMPTY);
        }
        self.leave(dir, name);
        self.lose(id);
        Ok(())
    }

    fn is_below(&self, id: Id, above: Id) -> bool {
        let mut at = id;
        loop {
            if at == above {
                return true;
            }
            if at == ROOT {
                return false;
            }
            at = self.nodes[&at].parent;
        }
    }

    fn may_move(&self, from: Id, to: Id, id: Id) -> Outcome<()> {
        self.may_delete(from, id)?;
        if from != to && self.nodes[&to].extra.is_immutable {
            return Err(errno::EPERM);
        }
        Ok(())
    }

    /// Whether a rename is possible; true if there is something to do.
    pub(crate) fn may_rename(
        &self,
        from: (Id, &[u8]),
        to: (Id, &[u8]),
        mode: Mode,
    ) -> Outcome<bool> {
        let Some(id) = self.dir(from.0).get(from.1).copied() else { return Err(errno::ENOENT) };
        let there = self.dir(to.0).get(to.1).copied();
        if from.0 != to.0 && self.is_foreign(to.0, id) {
            return Err(errno::EXDEV);
        }
        if there == Some(id) {
            return if mode == Mode::NoReplace { Err(errno::EEXIST) } else { Ok(false) };
        }
        let is_dir = self.nodes[&id].is_dir();
        if is_dir && from.0 != to.0 && self.is_below(to.0, id) {
            return Err(errno::EINVAL);
        }
        if mode == Mode::Exchange {
            let Some(other) = there else { return Err(errno::ENOENT) };
            if self.nodes[&other].is_dir() && from.0 != to.0 && self.is_below(from.0, other) {
                return Err(errno::EINVAL);
            }
            if from.0 != to.0 && self.is_foreign(from.0, other) {
                return Err(errno::EXDEV);
            }
            self.may_move(from.0, to.0, id)?;
            self.may_move(to.0, from.0, other)?;
            return Ok(true);
        }
        if self.nodes[&to.0].links == 0 {
            return Err(errno::ENOENT);
        }
        self.may_move(from.0, to.0, id)?;
        let Some(there) = there else { return Ok(true) };
        if mode == Mode::NoReplace {
            return Err(errno::EEXIST);
        }
        match (is_dir, &self.nodes[&there].body) {
            (true, Body::Dir(entries)) => {
                // The kernel looks at the flags before the file system looks into the directory.
                self.may_delete(to.0, there)?;
                if entries.is_empty() { Ok(true) } else { Err(errno::ENOTEMPTY) }
            }
            (true, _) => Err(errno::ENOTDIR),
            (false, Body::Dir(_)) => Err(errno::EISDIR),
            _ => self.may_delete(to.0, there).map(|()| true),
        }
    }

    /// Performs a permitted rename. Returns the whiteout that is left.
    pub(crate) fn rename(&mut self, from: (Id, &[u8]), to: (Id, &[u8]), mode: Mode) -> Option<Id> {
        let id = self.leave(from.0, from.1);
        let there = self.dir(to.0).get(to.1).copied();
        if let Some(there) = there {
            self.leave(to.0, to.1);
            if mode == Mode::Exchange {
                self.enter(from.0, from.1, there);
                self.nodes.get_mut(&there).unwrap().parent = from.0;
            } else {
                self.lose(there);
            }
        }
        self.enter(to.0, to.1, id);
        self.nodes.get_mut(&id).unwrap().parent = to.0;
        (mode == Mode::Whiteout).then(|| self.put(from.0, from.1, Body::Whiteout, 0))
    }
}

fn frees(how: Allocate) -> bool {
    matches!(how, Allocate::PunchHole | Allocate::ZeroRange | Allocate::ZeroRangeKeepSize)
}

fn extends(how: Allocate) -> bool {
    matches!(how, Allocate::Extend | Allocate::ZeroRange)
}
