//! What a file system should be: names, nodes and bytes in maps, with the errors of POSIX.

use std::collections::BTreeMap;

use cenote_fs::mount::errno;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    pub(crate) body: Body,
    pub(crate) links: u64,
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) parent: Id,
    /// How many have it open.
    pub(crate) holds: usize,
    /// Its number in the file system under test.
    pub(crate) object: u64,
}

impl Node {
    pub(crate) fn is_dir(&self) -> bool {
        matches!(self.body, Body::Dir(_))
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

/// How to rename.
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

    /// Nodes that a request can be about.
    pub(crate) fn pick(&self, number: usize, is_wanted: impl Fn(&Node) -> bool) -> Option<Id> {
        let wanted: Vec<Id> =
            self.nodes.iter().filter(|(_, node)| is_wanted(node)).map(|(id, _)| *id).collect();
        if wanted.is_empty() { None } else { Some(wanted[number % wanted.len()]) }
    }

    pub(crate) fn create(&mut self, dir: Id, name: &[u8], body: Body, mode: u32) -> Outcome<Id> {
        if self.dir(dir).contains_key(name) {
            return Err(errno::EEXIST);
        }
        if self.nodes[&dir].links == 0 {
            return Err(errno::ENOENT);
        }
        Ok(self.put(dir, name, body, mode))
    }

    fn put(&mut self, dir: Id, name: &[u8], body: Body, mode: u32) -> Id {
        let id = self.next;
        self.next += 1;
        let is_dir = matches!(body, Body::Dir(_));
        let links = if is_dir { 2 } else { 1 };
        let node = Node { body, links, mode, uid: 0, gid: 0, parent: dir, holds: 0, object: 0 };
        self.nodes.insert(id, node);
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
        if self.dir(dir).contains_key(name) {
            return Err(errno::EEXIST);
        }
        if self.nodes[&dir].links == 0 {
            return Err(errno::ENOENT);
        }
        let node = self.nodes.get_mut(&id).unwrap();
        node.links += 1;
        node.parent = dir;
        self.enter(dir, name, id);
        Ok(())
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
            (true, Body::Dir(entries)) if !entries.is_empty() => return Err(errno::ENOTEMPTY),
            (true, Body::Dir(_)) | (false, _) => {}
            (true, _) => return Err(errno::ENOTDIR),
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

    pub(crate) fn rename(
        &mut self,
        from: (Id, &[u8]),
        to: (Id, &[u8]),
        mode: Mode,
    ) -> Outcome<Option<Id>> {
        let Some(id) = self.dir(from.0).get(from.1).copied() else { return Err(errno::ENOENT) };
        let there = self.dir(to.0).get(to.1).copied();
        if there == Some(id) {
            return if mode == Mode::NoReplace { Err(errno::EEXIST) } else { Ok(None) };
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
            self.leave(from.0, from.1);
            self.leave(to.0, to.1);
            self.enter(from.0, from.1, other);
            self.enter(to.0, to.1, id);
            self.nodes.get_mut(&id).unwrap().parent = to.0;
            self.nodes.get_mut(&other).unwrap().parent = from.0;
            return Ok(None);
        }
        if self.nodes[&to.0].links == 0 {
            return Err(errno::ENOENT);
        }
        if let Some(there) = there {
            if mode == Mode::NoReplace {
                return Err(errno::EEXIST);
            }
            match (is_dir, &self.nodes[&there].body) {
                (true, Body::Dir(entries)) if !entries.is_empty() => {
                    return Err(errno::ENOTEMPTY);
                }
                (true, Body::Dir(_)) => {}
                (true, _) => return Err(errno::ENOTDIR),
                (false, Body::Dir(_)) => return Err(errno::EISDIR),
                _ => {}
            }
            self.leave(to.0, to.1);
            self.lose(there);
        }
        self.leave(from.0, from.1);
        self.enter(to.0, to.1, id);
        self.nodes.get_mut(&id).unwrap().parent = to.0;
        let whiteout = mode == Mode::Whiteout;
        Ok(whiteout.then(|| self.put(from.0, from.1, Body::Whiteout, 0)))
    }
}
