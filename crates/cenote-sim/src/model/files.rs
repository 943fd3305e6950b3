//! A directory tree of one actor: names, contents and attributes, and their comparison with what
//! is found.
//!
//! Each operation is chosen so that it succeeds: an operation without a suitable file or name is
//! left out. Its effect is computed before it is made.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Actor, Sequence, Verdict, fill};
use crate::plan::Op;

/// A node of the model.
pub(crate) type Id = u32;

/// The directory of the actor.
pub(crate) const ROOT: Id = 0;
/// Directories are nested at most this deep.
const DEPTH_MAX: usize = 4;
/// Longest file.
const FILE_MAX: usize = 400_000;
/// Files and directories of an actor at most.
const NODES_MAX: usize = 24;

/// Contents of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Body {
    /// A file.
    File(Arc<Vec<u8>>),
    /// A directory.
    Dir,
    /// A symbolic link.
    Link(Vec<u8>),
}

/// A node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Node {
    /// Object number; 0 until it is known.
    pub(crate) object: u64,
    /// Contents.
    pub(crate) body: Body,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Extended attributes.
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// One state of an actor's directory.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    /// Names by directory.
    names: BTreeMap<(Id, Vec<u8>), Id>,
    /// Nodes with a name, and the directory itself.
    nodes: BTreeMap<Id, Arc<Node>>,
    next: Id,
    /// Extended attributes are files of hidden directories: they are durable like names.
    has_xattr_dirs: bool,
}

/// What an operation changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Touch {
    /// Names.
    Names,
    /// A file.
    File(Id),
    /// The extended attributes of a file, in a directory of their own.
    Xattrs(Id),
}

/// An operation with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Call {
    /// Creates a file.
    CreateFile { parent: u64, name: Vec<u8>, mode: u32 },
    /// Creates a directory.
    CreateDir { parent: u64, name: Vec<u8> },
    /// Creates a symbolic link.
    CreateLink { parent: u64, name: Vec<u8>, target: Vec<u8> },
    /// Adds a name.
    Link { object: u64, parent: u64, name: Vec<u8> },
    /// Removes a name.
    Unlink { parent: u64, name: Vec<u8> },
    /// Removes a directory.
    Rmdir { parent: u64, name: Vec<u8> },
    /// Renames or exchanges.
    Rename { from: (u64, Vec<u8>), to: (u64, Vec<u8>), is_exchange: bool },
    /// Writes.
    Write { object: u64, offset: u64, bytes: Vec<u8>, is_append: bool, is_sync: bool },
    /// Changes the size.
    Truncate { object: u64, size: u64 },
    /// Writes zeros.
    Punch { object: u64, offset: u64, len: u64, extends: bool },
    /// Sets an extended attribute.
    SetXattr { object: u64, name: Vec<u8>, value: Vec<u8> },
    /// Removes an extended attribute.
    RemoveXattr { object: u64, name: Vec<u8> },
    /// Changes permission bits.
    Chmod { object: u64, mode: u32 },
}

/// A change: the call, what it touches, and the state afterwards.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    /// The operation.
    pub(crate) call: Call,
    /// What it changes.
    pub(crate) touch: Touch,
    /// The state afterwards.
    pub(crate) after: Tree,
    /// The node that it creates.
    pub(crate) created: Option<Id>,
}

fn name_of(number: u8) -> Vec<u8> {
    if number == 5 { vec![b'n'; 120] } else { vec![b'a' + number] }
}

fn xattr_name(number: u8) -> Vec<u8> {
    format!("user.x{number}").into_bytes()
}

impl Tree {
    /// Returns an empty directory.
    pub(crate) fn new(object: u64, has_xattr_dirs: bool) -> Self {
        let root = Node { object, body: Body::Dir, mode: 0o755, xattrs: BTreeMap::new() };
        Self {
            names: BTreeMap::new(),
            nodes: BTreeMap::from([(ROOT, Arc::new(root))]),
            next: ROOT + 1,
            has_xattr_dirs,
        }
    }

    /// Returns a node.
    pub(crate) fn node(&self, id: Id) -> Option<&Arc<Node>> {
        self.nodes.get(&id)
    }

    /// Sets the object number of a node that was created.
    pub(crate) fn set_object(&mut self, id: Id, object: u64) {
        if let Some(node) = self.nodes.get_mut(&id) {
            Arc::make_mut(node).object = object;
        }
    }

    fn is_dir(&self, id: Id) -> bool {
        self.nodes.get(&id).is_some_and(|node| node.body == Body::Dir)
    }

    fn pick(&self, number: u32, is_wanted: impl Fn(&Node) -> bool) -> Option<Id> {
        let wanted: Vec<Id> =
            self.nodes.iter().filter(|(_, node)| is_wanted(node)).map(|(id, _)| *id).collect();
        wanted.get(number as usize % wanted.len().max(1)).copied()
    }

    /// Returns the file that a number selects.
    pub(crate) fn file(&self, number: u32) -> Option<Id> {
        self.pick(number, |node| matches!(node.body, Body::File(_)))
    }

    /// Returns the directory that a number selects.
    pub(crate) fn dir(&self, number: u32) -> Option<Id> {
        self.pick(number, |node| node.body == Body::Dir)
    }

    fn entry(&self, number: u32) -> Option<((Id, Vec<u8>), Id)> {
        let count = self.names.len().max(1);
        self.names.iter().nth(number as usize % count).map(|(key, id)| (key.clone(), *id))
    }

    fn object(&self, id: Id) -> Option<u64> {
        self.nodes.get(&id).map(|node| node.object)
    }

    /// Returns the names of a directory.
    pub(crate) fn names_in(&self, dir: Id) -> BTreeSet<Vec<u8>> {
        self.names
            .keys()
            .filter(|(parent, _)| *parent == dir)
            .map(|(_, name)| name.clone())
            .collect()
    }

    fn is_empty_dir(&self, id: Id) -> bool {
        !self.names.keys().any(|(parent, _)| *parent == id)
    }

    /// Returns the directories from a directory up to the root.
    fn ancestors(&self, dir: Id) -> Vec<Id> {
        let mut found = vec![dir];
        let mut at = dir;
        while let Some(((parent, _), _)) =
            self.names.iter().find(|(_, id)| **id == at && at != ROOT)
        {
            at = *parent;
            found.push(at);
        }
        found
    }

    fn drop_unnamed(&mut self, id: Id) {
        if id != ROOT && !self.names.values().any(|named| *named == id) {
            self.nodes.remove(&id);
        }
    }

    /// Computes an operation; `None` if there is nothing that it can be applied to.
    pub(crate) fn effect(&self, op: Op, stamp: u64) -> Option<Effect> {
        match op {
            Op::Create { .. } | Op::Link { .. } => self.effect_of_new_name(op),
            Op::Remove { .. } | Op::Rename { .. } | Op::Exchange { .. } => {
                self.effect_of_old_name(op)
            }
            Op::Write { file, .. }
            | Op::Truncate { file, .. }
            | Op::Punch { file, .. }
            | Op::SetXattr { file, .. }
            | Op::RemoveXattr { file, .. }
            | Op::Chmod { file, .. } => self.effect_on_file(self.file(file)?, op, stamp),
            _ => None,
        }
    }

    fn effect_of_new_name(&self, op: Op) -> Option<Effect> {
        let mut after = self.clone();
        match op {
            Op::Create { dir, name, kind } => {
                let (dir, name) = (self.dir(dir)?, name_of(name));
                if self.names.contains_key(&(dir, name.clone())) || self.nodes.len() >= NODES_MAX {
                    return None;
                }
                let parent = self.object(dir)?;
                let id = after.next;
                let (body, call) = match kind {
                    0 if self.ancestors(dir).len() <= DEPTH_MAX => {
                        (Body::Dir, Call::CreateDir { parent, name: name.clone() })
                    }
                    1 => {
                        let target = vec![b't'; 1 + usize::from(kind) * 7 + dir as usize % 90];
                        let call =
                            Call::CreateLink { parent, name: name.clone(), target: target.clone() };
                        (Body::Link(target), call)
                    }
                    _ => {
                        let call = Call::CreateFile { parent, name: name.clone(), mode: 0o644 };
                        (Body::File(Arc::default()), call)
                    }
                };
                let mode = match body {
                    Body::Dir => 0o755,
                    Body::File(_) => 0o644,
                    Body::Link(_) => 0o777,
                };
                let node = Node { object: 0, body, mode, xattrs: BTreeMap::new() };
                after.next += 1;
                after.nodes.insert(id, Arc::new(node));
                after.names.insert((dir, name), id);
                Some(Effect { call, touch: Touch::Names, after, created: Some(id) })
            }
            Op::Link { file, dir, name } => {
                let (file, dir, name) = (self.file(file)?, self.dir(dir)?, name_of(name));
                if self.names.contains_key(&(dir, name.clone())) {
                    return None;
                }
                after.names.insert((dir, name.clone()), file);
                let call =
                    Call::Link { object: self.object(file)?, parent: self.object(dir)?, name };
                Some(Effect { call, touch: Touch::Names, after, created: None })
            }
            _ => None,
        }
    }

    fn effect_of_old_name(&self, op: Op) -> Option<Effect> {
        let mut after = self.clone();
        let call = match op {
            Op::Remove { entry } => {
                let ((dir, name), id) = self.entry(entry)?;
                if self.is_dir(id) && !self.is_empty_dir(id) {
                    return None;
                }
                after.names.remove(&(dir, name.clone()));
                after.drop_unnamed(id);
                let parent = self.object(dir)?;
                if self.is_dir(id) {
                    Call::Rmdir { parent, name }
                } else {
                    Call::Unlink { parent, name }
                }
            }
            Op::Rename { entry, dir, name } => {
                let (key, id) = self.entry(entry)?;
                let target = (self.dir(dir)?, name_of(name));
                let above = self.ancestors(target.0);
                if key == target || above.contains(&id) || above.len() > DEPTH_MAX {
                    return None;
                }
                let replaced = self.names.get(&target).copied();
                // A file replaces a file; two names of one file stay as they are.
                if let Some(replaced) = replaced
                    && (self.is_dir(replaced) || self.is_dir(id) || replaced == id)
                {
                    return None;
                }
                after.names.remove(&key);
                after.names.insert(target.clone(), id);
                if let Some(replaced) = replaced {
                    after.drop_unnamed(replaced);
                }
                let (from, to) = ((self.object(key.0)?, key.1), (self.object(target.0)?, target.1));
                Call::Rename { from, to, is_exchange: false }
            }
            Op::Exchange { entry, other } => {
                let (one, other) = (self.entry(entry)?, self.entry(other)?);
                let is_nested = self.ancestors(one.0.0).contains(&other.1)
                    || self.ancestors(other.0.0).contains(&one.1);
                if one.1 == other.1 || is_nested {
                    return None;
                }
                after.names.insert(one.0.clone(), other.1);
                after.names.insert(other.0.clone(), one.1);
                let from = (self.object(one.0.0)?, one.0.1);
                let to = (self.object(other.0.0)?, other.0.1);
                Call::Rename { from, to, is_exchange: true }
            }
            _ => return None,
        };
        Some(Effect { call, touch: Touch::Names, after, created: None })
    }

    fn effect_on_file(&self, file: Id, op: Op, stamp: u64) -> Option<Effect> {
        let mut after = self.clone();
        let node = Arc::make_mut(after.nodes.get_mut(&file)?);
        let object = node.object;
        let Body::File(content) = &mut node.body else { return None };
        let call = match op {
            Op::Write { offset, len, is_append, is_sync, .. } => {
                let offset = if is_append { content.len() } else { offset as usize };
                let len = (len as usize).min(FILE_MAX.saturating_sub(offset));
                if len == 0 {
                    return None;
                }
                let mut bytes = vec![0; len];
                fill(stamp, &mut bytes);
                let content = Arc::make_mut(content);
                content.resize(content.len().max(offset + len), 0);
                content[offset..offset + len].copy_from_slice(&bytes);
                Call::Write { object, offset: offset as u64, bytes, is_append, is_sync }
            }
            Op::Truncate { size, .. } => {
                Arc::make_mut(content).resize(size as usize, 0);
                Call::Truncate { object, size: u64::from(size) }
            }
            Op::Punch { offset, len, extends, .. } => {
                let (start, end) = (offset as usize, (offset + len) as usize);
                let content = Arc::make_mut(content);
                if extends && content.len() < end {
                    content.resize(end.min(FILE_MAX), 0);
                }
                let len_now = content.len();
                content[start.min(len_now)..end.min(len_now)].fill(0);
                let len =
                    if extends { end.min(FILE_MAX) - start.min(FILE_MAX) } else { end - start };
                if len == 0 {
                    return None;
                }
                Call::Punch { object, offset: u64::from(offset), len: len as u64, extends }
            }
            Op::SetXattr { name, len, .. } => {
                let mut value = vec![0; usize::from(len)];
                fill(stamp, &mut value);
                node.xattrs.insert(xattr_name(name), value.clone());
                Call::SetXattr { object, name: xattr_name(name), value }
            }
            Op::RemoveXattr { name, .. } => {
                node.xattrs.remove(&xattr_name(name))?;
                Call::RemoveXattr { object, name: xattr_name(name) }
            }
            Op::Chmod { mode, .. } => {
                node.mode = u32::from(mode);
                Call::Chmod { object, mode: node.mode }
            }
            _ => return None,
        };
        let is_of_xattrs = matches!(op, Op::SetXattr { .. } | Op::RemoveXattr { .. });
        let is_apart = is_of_xattrs && self.has_xattr_dirs;
        let touch = if is_apart { Touch::Xattrs(file) } else { Touch::File(file) };
        Some(Effect { call, touch, after, created: None })
    }

    /// Returns all names with their paths.
    fn paths(&self) -> BTreeMap<Vec<u8>, Id> {
        let mut paths = BTreeMap::new();
        let mut to_do = vec![(Vec::new(), ROOT)];
        while let Some((path, dir)) = to_do.pop() {
            for ((_, name), id) in self.names.range((dir, Vec::new())..(dir + 1, Vec::new())) {
                let path = [&path[..], b"/", name].concat();
                if self.is_dir(*id) {
                    to_do.push((path.clone(), *id));
                }
                paths.insert(path, *id);
            }
        }
        paths
    }

    /// Returns the same tree with the object numbers that were found.
    pub(crate) fn with_objects(&self, found: &Found) -> Self {
        let mut tree = self.clone();
        for (id, object) in self.has_names(found).unwrap_or_default() {
            tree.set_object(id, object);
        }
        tree
    }

    /// Whether the names are these. Returns the objects by node.
    fn has_names(&self, found: &Found) -> Option<BTreeMap<Id, u64>> {
        let paths = self.paths();
        if !paths.keys().eq(found.names.keys()) {
            return None;
        }
        let mut objects: BTreeMap<Id, u64> = BTreeMap::new();
        for ((_, id), name) in paths.iter().zip(found.names.values()) {
            let node = &self.nodes[id];
            let is_same_kind = match (&node.body, &name.kind) {
                (Body::File(_), FoundKind::File) | (Body::Dir, FoundKind::Dir) => true,
                (Body::Link(target), FoundKind::Link(found)) => target == found,
                _ => false,
            };
            let is_same_object = node.object == 0 || node.object == name.object;
            let before = objects.insert(*id, name.object);
            if !is_same_kind || !is_same_object || before.is_some_and(|one| one != name.object) {
                return None;
            }
        }
        let distinct: BTreeSet<u64> = objects.values().copied().collect();
        (distinct.len() == objects.len()).then_some(objects)
    }
}

/// What a name leads to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum FoundKind {
    /// A file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link with its target.
    Link(Vec<u8>),
}

/// A name that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundName {
    /// Object number.
    pub(crate) object: u64,
    /// What it is.
    pub(crate) kind: FoundKind,
}

/// A file that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FoundFile {
    /// Contents.
    pub(crate) bytes: Arc<Vec<u8>>,
    /// Permission bits.
    pub(crate) mode: u32,
    /// Extended attributes.
    pub(crate) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Number of names.
    pub(crate) links: u64,
}

/// A directory tree that was found.
#[derive(Debug, Clone, Default)]
pub(crate) struct Found {
    /// Names by path.
    pub(crate) names: BTreeMap<Vec<u8>, FoundName>,
    /// Files by object number.
    pub(crate) files: BTreeMap<u64, FoundFile>,
}

impl FoundFile {
    fn is(&self, node: &Node) -> bool {
        self.xattrs == node.xattrs && self.is_without_xattrs(node)
    }

    fn is_without_xattrs(&self, node: &Node) -> bool {
        let Body::File(bytes) = &node.body else { return false };
        self.mode == node.mode && self.bytes == *bytes
    }

    /// Whether each extended attribute has its value of one of two states, or a part of it.
    fn has_xattrs_between(&self, before: &Node, after: &Node) -> bool {
        let names = self.xattrs.keys().chain(before.xattrs.keys()).chain(after.xattrs.keys());
        let is_known = |name: &Vec<u8>| {
            let [found, one, other] =
                [&self.xattrs, &before.xattrs, &after.xattrs].map(|xattrs| xattrs.get(name));
            found == one || found == other || (found.is_some() && one != other)
        };
        names.into_iter().all(is_known)
    }

    /// Whether it has a part of a change.
    fn is_between(&self, before: &Node, after: &Node) -> bool {
        let (Body::File(one), Body::File(other)) = (&before.body, &after.body) else {
            return false;
        };
        // Bytes that are about to be truncated or written are zeros in the other state.
        let was = |at: usize, bytes: &[u8]| bytes.get(at).copied().unwrap_or(0);
        let is_known = |(at, byte): (usize, &u8)| *byte == was(at, one) || *byte == was(at, other);
        (self.mode == before.mode || self.mode == after.mode)
            && (one.len().min(other.len())..=one.len().max(other.len())).contains(&self.bytes.len())
            && self.bytes.iter().enumerate().all(is_known)
    }

    fn short(&self) -> String {
        let sum = self.bytes.iter().fold(0_u32, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte));
        let (len, mode, xattrs) = (self.bytes.len(), self.mode, self.xattrs.len());
        format!("{len} bytes (sum {sum:08x}), mode {mode:o}, {xattrs} xattrs")
    }
}

fn short(node: &Node) -> String {
    let Body::File(bytes) = &node.body else { return "no file".to_owned() };
    let found = FoundFile {
        bytes: Arc::clone(bytes),
        mode: node.mode,
        xattrs: node.xattrs.clone(),
        links: 0,
    };
    found.short()
}

fn lossy(paths: impl Iterator<Item = impl AsRef<[u8]>>) -> Vec<String> {
    paths.map(|path| String::from_utf8_lossy(path.as_ref()).into_owned()).collect()
}

/// Compares what was found exactly with one of the states of a range. Returns the state.
///
/// # Errors
/// A difference from all of them.
pub(crate) fn exact(
    states: &Sequence<Tree, Touch>,
    range: std::ops::RangeInclusive<usize>,
    found: &Found,
) -> Result<usize, String> {
    let mut why = String::new();
    for index in range.clone().rev() {
        match is_exactly(states.state(index), found) {
            Ok(()) => return Ok(index),
            Err(difference) => why = difference,
        }
    }
    Err(format!("is none of the states {range:?} of {}: {why}", states.len()))
}

/// Compares what was found with one state.
///
/// # Errors
/// The difference.
pub(crate) fn is_exactly(tree: &Tree, found: &Found) -> Verdict {
    let Some(objects) = tree.has_names(found) else {
        let (found, wanted) = (lossy(found.names.keys()), lossy(tree.paths().keys()));
        return Err(format!("names {found:?}, expected {wanted:?}"));
    };
    for (id, object) in objects {
        let node = &tree.nodes[&id];
        if !matches!(node.body, Body::File(_)) {
            continue;
        }
        let file = found.files.get(&object).ok_or_else(|| format!("object {object} not read"))?;
        if !file.is(node) {
            return Err(format!("object {object}: {}, expected {}", file.short(), short(node)));
        }
        let links = tree.names.values().filter(|named| **named == id).count() as u64;
        if file.links != links {
            return Err(format!("object {object}: {} links, expected {links}", file.links));
        }
    }
    Ok(())
}

impl Actor {
    /// Compares what was found after a crash at a txg. Returns the tree that was found.
    ///
    /// # Errors
    /// A difference from all allowed states.
    pub(crate) fn recover(&self, txg: u64, found: &Found) -> Result<Tree, String> {
        let states = &self.states;
        let is_in = |end: Option<u64>| end.is_some_and(|last| last <= txg);
        let in_txg =
            states.up_to_last(|change| change.touch == Touch::Names && is_in(change.txg_max));
        let least = self.durable_names.max(in_txg);
        let range = least..=states.len();
        let by_names = range
            .clone()
            .rev()
            .find_map(|index| states.state(index).has_names(found).map(|objects| (index, objects)));
        let Some((index, objects)) = by_names else {
            let (found, wanted) =
                (lossy(found.names.keys()), lossy(states.state(least).paths().keys()));
            return Err(format!(
                "names {found:?} are those of no state {range:?} at txg {txg}; at {least} they \
                 were {wanted:?}"
            ));
        };
        let mut tree = states.state(index).clone();
        tree.nodes.retain(|id, _| *id == ROOT || objects.contains_key(id));
        for (id, object) in objects {
            tree.set_object(id, object);
            if !matches!(tree.nodes[&id].body, Body::File(_)) {
                continue;
            }
            let file =
                found.files.get(&object).ok_or_else(|| format!("object {object} not read"))?;
            self.recover_file(txg, id, file)
                .map_err(|difference| format!("object {object}: {difference}"))?;
            let links = tree.names.values().filter(|named| **named == id).count() as u64;
            if file.links != links {
                return Err(format!("object {object}: {} links, expected {links}", file.links));
            }
            let node = Arc::make_mut(tree.nodes.get_mut(&id).expect("a node of the tree"));
            node.body = Body::File(Arc::clone(&file.bytes));
            (node.mode, node.xattrs) = (file.mode, file.xattrs.clone());
        }
        Ok(tree)
    }

    fn recover_file(&self, txg: u64, id: Id, found: &FoundFile) -> Verdict {
        let states = &self.states;
        let has_xattr_dirs = states.newest().has_xattr_dirs;
        let node = |index: usize| states.state(index).node(id);
        let up_to = |touch: Touch| {
            states.up_to_last(|change| {
                change.touch == touch && change.txg_max.is_some_and(|last| last <= txg)
            })
        };
        let durable = self.durable_files.get(&id).copied().unwrap_or(0);
        let range = up_to(Touch::File(id)).max(durable)..=states.len();
        let pair = |index: usize| node(index).zip(node(index + 1));
        let has_xattrs = |one: &Node, other: &Node| {
            has_xattr_dirs || found.xattrs == one.xattrs || found.xattrs == other.xattrs
        };
        let is_whole = |node: &Arc<Node>| {
            if has_xattr_dirs { found.is_without_xattrs(node) } else { found.is(node) }
        };
        let is_part = |(one, other): (&Arc<Node>, &Arc<Node>)| {
            found.is_between(one, other) && has_xattrs(one, other)
        };
        let is_known = range.clone().any(|index| node(index).is_some_and(is_whole))
            || (*range.start()..states.len()).any(|index| pair(index).is_some_and(is_part));
        if !is_known {
            let known = range.clone().filter_map(|index| Some((index, short(node(index)?))));
            let known: Vec<_> = known.map(|(index, text)| format!("{index}: {text}")).collect();
            return Err(format!(
                "{} is none of the states {range:?} at txg {txg}: {}",
                found.short(),
                known.join("; ")
            ));
        }
        if !has_xattr_dirs {
            return Ok(());
        }
        let least = up_to(Touch::Xattrs(id)).max(self.durable_names);
        let is_known = (least..=states.len())
            .any(|index| node(index).is_some_and(|node| node.xattrs == found.xattrs))
            || (least..states.len()).any(|index| {
                pair(index).is_some_and(|(one, other)| found.has_xattrs_between(one, other))
            });
        if is_known {
            return Ok(());
        }
        let names: Vec<_> = lossy(found.xattrs.keys());
        Err(format!("xattrs {names:?} are those of no state from {least} on"))
    }
}
