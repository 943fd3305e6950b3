//! Walks a tree of files and reads the next nodes ahead.
//!
//!     frame per directory: its names, sorted | batches of nodes in flight | current position
//!
//! The names of a directory are listed completely and sorted; nodes are opened in batches, several
//! batches ahead. There are two orders: by whole path as Python sorts it, which golden manifests
//! use, and by object number with each directory followed by its contents, which is the order on
//! disk.
//!
//! In path order `a-b` sorts between `a` and `a/x`. A directory therefore has two entries in its
//! parent's list: its own, and one for its contents, sorted as if its name ended with a slash.
//!
//! Unreadable entries are steps of their own; the walk continues. A directory that was already
//! visited is not visited again: only a damaged pool has such loops, and the walk could go on for
//! ever.

use std::cmp::Ordering;
use std::collections::VecDeque;
use std::sync::Arc;

use cenote_fs::{Entry, FileKind, FileSystem, Node};
use cenote_rt::{Error, FixedMap, FixedSet, JoinHandle, Kind, Result};

use super::ReachedBefore;

/// Nodes opened by one task.
const BATCH: usize = 32;
/// Batches in flight.
const BATCHES_AHEAD: usize = 4;

/// Order of the nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// By whole path, each compared character by character.
    Path,
    /// By object number; directories before and around their contents.
    Object,
}

/// A step of a walk.
#[derive(Debug)]
pub(super) enum Step {
    /// A node; if it is a directory, its contents follow.
    Node {
        /// Path below the start.
        path: Vec<u8>,
        /// The node.
        node: Node,
    },
    /// The end of a directory's contents.
    Leave,
    /// Something unreadable: a node, or a part of a directory.
    Failed {
        /// Path below the start.
        path: Vec<u8>,
        /// The error.
        error: Error,
    },
}

/// A walk in progress. The start itself is not a step.
pub(super) struct Walk {
    fs: Arc<FileSystem>,
    order: Order,
    frames: Vec<Frame>,
    visited: FixedSet<u64>,
    failures: VecDeque<(Vec<u8>, Error)>,
}

struct Frame {
    path: Vec<u8>,
    items: Vec<Item>,
    next: usize,
    /// The nodes of the items that are not contents of directories.
    nodes: Nodes,
    /// Directories whose contents have not been visited yet.
    directories: FixedMap<u64, Node>,
}

struct Item {
    name: Vec<u8>,
    object: u64,
    is_contents: bool,
}

impl Walk {
    /// Returns a walk through the contents of `start`, whose path is `path`.
    pub(super) async fn new(start: &Node, path: Vec<u8>, order: Order) -> Self {
        let fs = Arc::clone(start.filesystem());
        let (visited, failures) = (FixedSet::default(), VecDeque::new());
        let mut walk = Self { fs, order, frames: Vec::new(), visited, failures };
        walk.enter(start, path).await;
        walk
    }

    /// Returns this walk limited to one directory.
    #[must_use]
    pub(super) fn shallow(mut self) -> Self {
        for frame in &mut self.frames {
            frame.items.retain(|item| !item.is_contents);
        }
        self.order = Order::Path;
        self
    }

    /// Returns the next step; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Step> {
        loop {
            if let Some((path, error)) = self.failures.pop_front() {
                return Some(Step::Failed { path, error });
            }
            let frame = self.frames.last_mut()?;
            let Some(item) = frame.items.get(frame.next) else {
                self.frames.pop();
                return Some(Step::Leave);
            };
            let path = join(&frame.path, &item.name);
            let (object, is_contents) = (item.object, item.is_contents);
            frame.next += 1;
            if is_contents {
                if let Some(directory) = frame.directories.remove(&object) {
                    self.enter(&directory, path).await;
                }
                continue;
            }
            let node = match frame.nodes.next().await? {
                Ok(node) => node,
                Err(error) => return Some(Step::Failed { path, error }),
            };
            if node.is_directory() && self.order == Order::Path {
                frame.directories.insert(object, node.clone());
            } else if node.is_directory() {
                self.enter(&node, path.clone()).await;
            }
            return Some(Step::Node { path, node });
        }
    }

    /// Lists a directory and makes its contents the next steps.
    async fn enter(&mut self, directory: &Node, path: Vec<u8>) {
        if !self.visited.insert(directory.object()) {
            let error = directory.dnode().locate(Error::corrupt(ReachedBefore));
            self.failures.push_back((path.clone(), error));
            self.push_frame(path, Vec::new());
            return;
        }
        let (entries, errors) = list(directory).await;
        self.failures.extend(errors.into_iter().map(|error| (path.clone(), error)));
        let mut items = Vec::with_capacity(entries.len());
        for Entry { name, object, kind } in entries {
            let may_be_directory = matches!(kind, None | Some(FileKind::Directory));
            if self.order == Order::Path && may_be_directory {
                items.push(Item { name: name.clone(), object, is_contents: true });
            }
            items.push(Item { name, object, is_contents: false });
        }
        match self.order {
            Order::Path => items.sort_by(by_path),
            Order::Object => items.sort_by_key(|item| item.object),
        }
        self.push_frame(path, items);
    }

    fn push_frame(&mut self, path: Vec<u8>, items: Vec<Item>) {
        let objects = items.iter().filter(|item| !item.is_contents).map(|item| item.object);
        let nodes = Nodes::new(&self.fs, objects.collect());
        self.frames.push(Frame { path, items, next: 0, nodes, directories: FixedMap::default() });
    }
}

/// The nodes of a list of objects, in order, opened in batches ahead of their reader.
pub(super) struct Nodes {
    fs: Arc<FileSystem>,
    objects: Vec<u64>,
    /// Index of the first object that no task was started for.
    planned: usize,
    batches: VecDeque<JoinHandle<Vec<Result<Node>>>>,
    ready: std::vec::IntoIter<Result<Node>>,
}

impl Nodes {
    /// Returns the nodes of `objects`.
    pub(super) fn new(fs: &Arc<FileSystem>, objects: Vec<u64>) -> Self {
        let (batches, ready) = (VecDeque::new(), Vec::new().into_iter());
        Self { fs: Arc::clone(fs), objects, planned: 0, batches, ready }
    }

    /// Returns the next node; `None` after the last.
    pub(super) async fn next(&mut self) -> Option<Result<Node>> {
        loop {
            if let Some(node) = self.ready.next() {
                return Some(node);
            }
            self.plan();
            let batch = self.batches.pop_front()?;
            self.ready = match batch.await {
                Ok(nodes) => nodes.into_iter(),
                Err(error) => return Some(Err(Error::new(Kind::Io, error))),
            };
        }
    }

    fn plan(&mut self) {
        while self.batches.len() < BATCHES_AHEAD && self.planned < self.objects.len() {
            let end = self.objects.len().min(self.planned + BATCH);
            let (fs, objects) = (Arc::clone(&self.fs), self.objects[self.planned..end].to_vec());
            self.planned = end;
            self.batches.push_back(cenote_rt::spawn(async move {
                let mut nodes = Vec::with_capacity(objects.len());
                for object in objects {
                    nodes.push(fs.node(object).await);
                }
                nodes
            }));
        }
    }
}

/// Returns all readable entries of a directory, and the errors.
pub(super) async fn list(directory: &Node) -> (Vec<Entry>, Vec<Error>) {
    let (mut entries, mut errors) = (Vec::new(), Vec::new());
    let mut reader = match directory.entries().await {
        Ok(reader) => reader,
        Err(error) => return (entries, vec![error]),
    };
    // A damaged directory returns an error for each bad part; the number of errors is bounded.
    while errors.len() < ERRORS_MAX {
        match reader.next().await {
            Ok(Some(entry)) => entries.push(entry),
            Ok(None) => break,
            Err(error) => errors.push(error),
        }
    }
    (entries, errors)
}

/// Number of errors after which a directory is abandoned.
const ERRORS_MAX: usize = 10_000;

/// Returns a path with one more component.
pub(super) fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    match path {
        [] => name.to_vec(),
        [.., b'/'] => [path, name].concat(),
        _ => [path, b"/", name].concat(),
    }
}

fn by_path(a: &Item, b: &Item) -> Ordering {
    let end = |item: &Item| if item.is_contents { &b"/"[..] } else { b"" };
    compare_with_ends((&a.name, end(a)), (&b.name, end(b)))
}

fn compare_with_ends(a: (&[u8], &[u8]), b: (&[u8], &[u8])) -> Ordering {
    let is_text = |name: &[u8]| std::str::from_utf8(name).is_ok();
    if is_text(a.0) && is_text(b.0) {
        return a.0.iter().chain(a.1).cmp(b.0.iter().chain(b.1));
    }
    let slash = |end: &[u8]| (!end.is_empty()).then_some(u32::from('/'));
    characters(a.0).chain(slash(a.1)).cmp(characters(b.0).chain(slash(b.1)))
}

/// Compares two names as Python does: a byte that is not UTF-8 counts as U+DC00 + byte.
pub(super) fn compare(a: &[u8], b: &[u8]) -> Ordering {
    compare_with_ends((a, b""), (b, b""))
}

/// Returns the characters of a name as numbers, with surrogates for bytes that are not UTF-8.
pub(super) fn characters(name: &[u8]) -> impl Iterator<Item = u32> + '_ {
    name.utf8_chunks().flat_map(|chunk| {
        let invalid = chunk.invalid().iter().map(|byte| 0xdc00 + u32::from(*byte));
        chunk.valid().chars().map(u32::from).chain(invalid)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_of_a_directory_sort_behind_names_that_extend_its_own() {
        let item = |name: &[u8], is_contents| Item { name: name.to_vec(), object: 0, is_contents };
        let mut items =
            [item(b"a", true), item(b"a0", false), item(b"a-b", false), item(b"a", false)];
        items.sort_by(by_path);
        let order: Vec<_> = items.iter().map(|item| (&item.name[..], item.is_contents)).collect();
        assert_eq!(order, [(&b"a"[..], false), (b"a-b", false), (b"a", true), (b"a0", false)]);
    }

    #[test]
    fn raw_bytes_sort_as_surrogates() {
        assert_eq!(compare(b"\xff", "\u{1f980}".as_bytes()), Ordering::Less);
        assert_eq!(compare(b"\xff", "\u{e9}".as_bytes()), Ordering::Greater);
        assert_eq!(compare(b"a", b"b"), Ordering::Less);
    }
}
