//! Datasets below one dataset, which one task creates, changes and destroys.
//!
//! The state is that of the crash suite ([`cenote_poolkit::crash`]): objects with their contents
//! by dataset, and facts: properties, holds, bookmarks, origins. Each operation is chosen so that
//! it is allowed, except by limits of space; its effect is computed before it is made.

use std::collections::{BTreeMap, BTreeSet};

use cenote_ondisk::zap::Value;
use cenote_poolkit::crash::facts::text;
use cenote_poolkit::crash::model::{Content, State};

use crate::plan::Op;

/// Values of `compression`: off, lz4, gzip-6.
const COMPRESSIONS: [u64; 3] = [2, 15, 10];
/// Sets of permissions that creators get.
const PERMISSIONS: [&[&str]; 3] = [&["mount"], &["destroy", "mount", "snapshot"], &["hold"]];
/// Number of the first user.
const UID: u32 = 1000;
/// The fact that creators get permissions.
const OF_CREATORS: &str = "granted Create ";
/// A user property.
const USER: &str = "org.example:note";
/// Tag of all holds.
pub(crate) const TAG: &str = "tag";
/// Blocks of an object.
const BLOCKS: u32 = 120;
/// Datasets of a tree at most.
const HEADS_MAX: usize = 5;
/// Snapshots of a tree at most.
const SNAPSHOTS_MAX: usize = 12;
/// The fact that a head is a clone.
const ORIGIN: &str = "origin";
/// The fact that a snapshot is destroyed with its last reference.
const DEFERRED: &str = "deferred";

/// One state of a tree of datasets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Datasets {
    /// Name of the dataset above all.
    root: String,
    /// Objects and facts.
    pub(crate) state: State,
    /// Snapshots in the order of their creation.
    order: Vec<String>,
    /// Points in time of snapshots and bookmarks.
    points: BTreeMap<String, u64>,
    /// Number of points.
    next_point: u64,
    /// Snapshots that are equal, because they were sent and received, have equal numbers.
    ids: BTreeMap<String, u64>,
    /// Number of snapshots that were taken.
    next_id: u64,
}

/// An operation with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum DatasetCall {
    /// Creates a dataset as the user with this number.
    Create(String, u32),
    /// Grants permissions to users who create datasets below.
    Allow(String, Vec<&'static str>),
    /// Removes these permissions.
    Unallow(String),
    /// Creates an object of a dataset with this number.
    NewObject(String, u64),
    /// Writes blocks of an object: number and salt.
    Fill(String, u64, Vec<(u64, u64)>),
    /// Destroys a dataset.
    Destroy(String),
    /// Takes snapshots.
    Snapshot(Vec<String>),
    /// Destroys a snapshot.
    DestroySnapshot(String, bool),
    /// Clones a snapshot.
    Clone(String, String),
    /// Promotes a clone.
    Promote(String),
    /// Rolls back.
    Rollback(String),
    /// Renames a dataset.
    Rename(String, String),
    /// Renames a snapshot: dataset, old and new name.
    RenameSnapshot(String, String, String),
    /// Holds a snapshot.
    Hold(String),
    /// Releases a snapshot.
    Release(String),
    /// Creates a bookmark.
    Bookmark(String, String),
    /// Destroys a bookmark.
    DestroyBookmark(String),
    /// Sets a property.
    Set(String, &'static str, Value),
    /// Inherits a property.
    Inherit(String, &'static str),
    /// Sends a snapshot, and receives it.
    Receive(Transfer),
}

/// A snapshot that is sent and received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Transfer {
    /// The snapshot.
    pub(crate) source: String,
    /// The snapshot from which the changes are sent.
    pub(crate) from: Option<String>,
    /// The dataset that receives it.
    pub(crate) target: String,
    /// After how many records the receive is given up.
    pub(crate) records: u16,
    /// Whether blocks are sent as they are stored.
    pub(crate) is_compressed: bool,
}

impl DatasetCall {
    /// Whether it is durable when it has succeeded.
    pub(crate) const fn is_durable(&self) -> bool {
        !matches!(self, Self::NewObject(..) | Self::Fill(..))
    }
}

/// The first object of a dataset without contents.
pub(crate) const OBJECT: u64 = 1;

fn head_of(name: &str) -> &str {
    name.split_once('@').map_or(name, |(head, _)| head)
}

fn nth<T: Clone>(all: &[T], number: u32) -> Option<T> {
    all.get(number as usize % all.len().max(1)).cloned()
}

impl Datasets {
    /// Returns a tree that consists of an empty dataset.
    pub(crate) fn new(root: &str) -> Self {
        let datasets = BTreeMap::from([(root.to_owned(), BTreeMap::new())]);
        let state = State { datasets, ..State::default() };
        Self { root: root.to_owned(), state, ..Self::default() }
    }

    /// Name of the dataset above all.
    pub(crate) fn root(&self) -> &str {
        &self.root
    }

    /// Returns the heads below the root.
    pub(crate) fn heads(&self) -> Vec<String> {
        let names = self.state.datasets.keys();
        names.filter(|name| !name.contains('@') && **name != self.root).cloned().collect()
    }

    /// Returns the snapshots in the order of their creation.
    pub(crate) fn snapshots(&self) -> &[String] {
        &self.order
    }

    fn snapshots_of(&self, head: &str) -> Vec<String> {
        self.order.iter().filter(|name| head_of(name) == head).cloned().collect()
    }

    fn has(&self, whose: &str, what: &str) -> bool {
        self.state.facts.contains_key(&(whose.to_owned(), what.to_owned()))
    }

    fn say(&mut self, whose: &str, what: &str, value: String) {
        self.state.facts.insert((whose.to_owned(), what.to_owned()), value);
    }

    fn unsay(&mut self, whose: &str, what: &str) {
        self.state.facts.remove(&(whose.to_owned(), what.to_owned()));
    }

    fn with_fact(&self, what: &str) -> Vec<String> {
        let facts = self.state.facts.keys().filter(|(_, fact)| fact == what);
        facts.map(|(whose, _)| whose.clone()).collect()
    }

    fn origins(&self) -> impl Iterator<Item = &String> {
        self.state.facts.iter().filter(|((_, what), _)| what == ORIGIN).map(|(_, origin)| origin)
    }

    fn is_cloned(&self, snapshot: &str) -> bool {
        self.origins().any(|origin| origin == snapshot)
    }

    fn is_held(&self, snapshot: &str) -> bool {
        self.has(snapshot, &format!("hold {TAG}"))
    }

    /// Computes the operation; `None` if there is nothing that it can be applied to.
    pub(crate) fn effect(&self, op: Op, stamp: u64) -> Option<(DatasetCall, Self)> {
        let call = self.call(op, stamp)?;
        let mut after = self.clone();
        after.apply(&call);
        Some((call, after))
    }

    fn call(&self, op: Op, stamp: u64) -> Option<DatasetCall> {
        match op {
            Op::Fill { head, block, count } => {
                let name = nth(&self.heads(), head)?;
                let objects = &self.state.datasets[&name];
                if objects.is_empty() {
                    return Some(DatasetCall::NewObject(name, OBJECT));
                }
                let salt = |number| stamp << 16 | number;
                let blocks = (0..u64::from(count))
                    .map(|number| ((u64::from(block % BLOCKS) + number), salt(number)));
                Some(DatasetCall::Fill(name, OBJECT, blocks.collect()))
            }
            Op::CreateDataset { number } => {
                let name = format!("{}/h{number}", self.root);
                let is_new = !self.state.datasets.contains_key(&name);
                (is_new && self.heads().len() < HEADS_MAX).then_some(DatasetCall::Create(name, 0))
            }
            Op::CreateDatasetAs { number, user } => {
                let name = format!("{}/u{number}", self.root);
                let is_allowed =
                    !self.state.datasets.contains_key(&name) && self.heads().len() < HEADS_MAX;
                is_allowed.then_some(DatasetCall::Create(name, UID + u32::from(user)))
            }
            Op::AllowCreators { which } => {
                let root = self.root.clone();
                Some(match PERMISSIONS.get(usize::from(which)) {
                    Some(permissions) => DatasetCall::Allow(root, permissions.to_vec()),
                    None => DatasetCall::Unallow(root),
                })
            }
            Op::DestroyDataset { head } => {
                let idle: Vec<_> = self.heads();
                let idle: Vec<_> =
                    idle.into_iter().filter(|name| self.snapshots_of(name).is_empty()).collect();
                nth(&idle, head).map(DatasetCall::Destroy)
            }
            Op::Rollback { head } => {
                let name = nth(&self.heads(), head)?;
                // Clones of other snapshots and deferred ones do not matter: the latest one stays.
                (!self.snapshots_of(&name).is_empty()).then_some(DatasetCall::Rollback(name))
            }
            Op::RenameDataset { head, number } => {
                let name = nth(&self.heads(), head)?;
                let new = format!("{}/r{number}", self.root);
                let is_new = !self.state.datasets.contains_key(&new);
                is_new.then_some(DatasetCall::Rename(name, new))
            }
            Op::Property { head, which, value } => self.property_call(head, which, value),
            Op::Receive { snapshot, number, records, is_compressed } => {
                let (source, from) = (nth(&self.order, snapshot)?, None);
                let target = format!("{}/x{number}", self.root);
                let is_new = !self.state.datasets.contains_key(&target);
                let has_room = self.heads().len() < HEADS_MAX && self.order.len() < SNAPSHOTS_MAX;
                let transfer = Transfer { source, from, target, records, is_compressed };
                (is_new && has_room).then_some(DatasetCall::Receive(transfer))
            }
            Op::ReceiveIncrement { snapshot, records, is_compressed } => {
                let mut all = self.increments();
                all.retain(|_| self.order.len() < SNAPSHOTS_MAX);
                let (target, from, source) = nth(&all, snapshot)?;
                let from = Some(from);
                let transfer = Transfer { source, from, target, records, is_compressed };
                Some(DatasetCall::Receive(transfer))
            }
            Op::Promote { clone } => {
                let clone = nth(&self.with_fact(ORIGIN), clone)?;
                let origin = &self.state.facts[&(clone.clone(), ORIGIN.to_owned())];
                // Names of snapshots that move must be free.
                let moved = self.moved_by_promotion(origin);
                let is_free = |name: &String| {
                    let (_, name) = name.split_once('@').unwrap_or_default();
                    !self.state.datasets.contains_key(&format!("{clone}@{name}"))
                };
                let is_unused = |mark: &String| {
                    let (_, name) = mark.split_once('#').unwrap_or_default();
                    !self.has(&format!("{clone}#{name}"), "bookmark")
                };
                let is_allowed = moved.iter().all(is_free)
                    && self.marks_moved_by_promotion(origin).iter().all(is_unused);
                is_allowed.then_some(DatasetCall::Promote(clone))
            }
            _ => self.snapshot_call(op),
        }
    }

    /// Returns the increments that datasets can receive: target, source of the changes, snapshot.
    fn increments(&self) -> Vec<(String, String, String)> {
        let mut found = Vec::new();
        for target in self.heads() {
            let snapshots = self.snapshots_of(&target);
            let Some(latest) = snapshots.last() else { continue };
            // Nothing may have changed since.
            if self.state.datasets.get(latest) != self.state.datasets.get(&target) {
                continue;
            }
            let is_equal = |other: &&String| self.ids.get(*other) == self.ids.get(latest);
            for from in self.order.iter().filter(is_equal).filter(|from| *from != latest) {
                let of_source = self.snapshots_of(head_of(from)).into_iter();
                let later = of_source.skip_while(|name| name != from).skip(1);
                for source in later {
                    let name = source.split_once('@').map_or("", |(_, name)| name);
                    if !self.state.datasets.contains_key(&format!("{target}@{name}")) {
                        found.push((target.clone(), from.clone(), source));
                    }
                }
            }
        }
        found
    }

    fn receive(&mut self, transfer: &Transfer) {
        let Transfer { source, from, target, .. } = transfer;
        let content = self.state.datasets.get(source).cloned().unwrap_or_default();
        let name = source.split_once('@').map_or("", |(_, name)| name);
        let snapshot = format!("{target}@{name}");
        if from.is_none() {
            self.grant_creator(target, 0);
        }
        for name in [target, &snapshot] {
            self.state.datasets.insert(name.clone(), content.clone());
        }
        self.order.push(snapshot.clone());
        self.points.insert(snapshot.clone(), self.next_point);
        self.next_point += 1;
        let id = self.ids.get(source).copied().unwrap_or_default();
        self.ids.insert(snapshot, id);
    }

    fn property_call(&self, head: u32, which: u8, value: u8) -> Option<DatasetCall> {
        let name = nth(&self.heads(), head)?;
        let (property, number) = match which {
            0 => ("compression", COMPRESSIONS[usize::from(value) % 3]),
            1 => ("copies", 1 + u64::from(value) % 3),
            2 => ("checksum", [8, 7][usize::from(value) % 2]),
            _ => {
                let note = "x".repeat(1 + usize::from(value) * 40);
                return Some(DatasetCall::Set(name, USER, Value::text(&note)));
            }
        };
        if value == 7 && self.has(&name, property) {
            return Some(DatasetCall::Inherit(name, property));
        }
        Some(DatasetCall::Set(name, property, Value::U64(number)))
    }

    fn snapshot_call(&self, op: Op) -> Option<DatasetCall> {
        match op {
            Op::Snapshot { head, number, is_of_all } => {
                let heads = self.heads();
                let wanted = if is_of_all { heads } else { vec![nth(&heads, head)?] };
                let names: Vec<_> = wanted.iter().map(|head| format!("{head}@s{number}")).collect();
                let is_new = |name: &String| !self.state.datasets.contains_key(name);
                let has_room = self.order.len() + names.len() <= SNAPSHOTS_MAX;
                let is_allowed = !names.is_empty() && has_room && names.iter().all(is_new);
                is_allowed.then_some(DatasetCall::Snapshot(names))
            }
            Op::DestroySnapshot { snapshot, is_deferred } => {
                let may = |name: &&String| {
                    (is_deferred && !self.has(name, DEFERRED))
                        || (!self.is_held(name) && !self.is_cloned(name))
                };
                let idle: Vec<_> = self.order.iter().filter(may).cloned().collect();
                nth(&idle, snapshot).map(|name| DatasetCall::DestroySnapshot(name, is_deferred))
            }
            Op::Clone { snapshot, number } => {
                let alive: Vec<_> =
                    self.order.iter().filter(|name| !self.has(name, DEFERRED)).cloned().collect();
                let (origin, name) = (nth(&alive, snapshot)?, format!("{}/c{number}", self.root));
                let is_new = !self.state.datasets.contains_key(&name);
                let is_allowed = is_new && self.heads().len() < HEADS_MAX;
                is_allowed.then_some(DatasetCall::Clone(origin, name))
            }
            Op::RenameSnapshot { snapshot, number } => {
                let from = nth(&self.order, snapshot)?;
                let (head, old) = from.split_once('@')?;
                let new = format!("t{number}");
                let is_new = !self.state.datasets.contains_key(&format!("{head}@{new}"));
                let call = DatasetCall::RenameSnapshot(head.to_owned(), old.to_owned(), new);
                is_new.then_some(call)
            }
            Op::HoldSnapshot { snapshot } => {
                let free = |name: &&String| !self.is_held(name) && !self.has(name, DEFERRED);
                let free: Vec<_> = self.order.iter().filter(free).cloned().collect();
                nth(&free, snapshot).map(DatasetCall::Hold)
            }
            Op::ReleaseSnapshot { snapshot } => {
                let held: Vec<_> =
                    self.order.iter().filter(|name| self.is_held(name)).cloned().collect();
                nth(&held, snapshot).map(DatasetCall::Release)
            }
            Op::Bookmark { snapshot, number } => {
                let name = nth(&self.order, snapshot)?;
                let mark = format!("{}#b{number}", head_of(&name));
                let is_new = !self.has(&mark, "bookmark");
                is_new.then_some(DatasetCall::Bookmark(mark, name))
            }
            Op::DestroyBookmark { bookmark } => {
                nth(&self.with_fact("bookmark"), bookmark).map(DatasetCall::DestroyBookmark)
            }
            _ => None,
        }
    }

    /// Snapshots that a promotion of a clone of `origin` moves.
    fn moved_by_promotion(&self, origin: &str) -> Vec<String> {
        let all = self.snapshots_of(head_of(origin));
        let end = all.iter().position(|name| name == origin).map_or(0, |index| index + 1);
        all[..end].to_vec()
    }

    /// Bookmarks that a promotion of a clone of `origin` moves: those of points up to the origin.
    fn marks_moved_by_promotion(&self, origin: &str) -> Vec<String> {
        let marks = format!("{}#", head_of(origin));
        let end = self.points.get(origin).copied().unwrap_or(0);
        let is_moved = |(name, point): &(&String, &u64)| name.starts_with(&marks) && **point <= end;
        self.points.iter().filter(is_moved).map(|(name, _)| name.clone()).collect()
    }

    fn apply(&mut self, call: &DatasetCall) {
        let datasets = &mut self.state.datasets;
        match call {
            DatasetCall::Create(name, uid) => {
                datasets.insert(name.clone(), BTreeMap::new());
                self.grant_creator(name, *uid);
            }
            DatasetCall::Allow(name, permissions) => self.allow_creators(name, permissions),
            DatasetCall::Unallow(name) => self.unsay(name, OF_CREATORS),
            DatasetCall::NewObject(name, object) => {
                datasets.entry(name.clone()).or_default().insert(*object, Content::new());
            }
            DatasetCall::Fill(name, object, blocks) => {
                let objects = datasets.entry(name.clone()).or_default();
                objects.entry(*object).or_default().extend(blocks.iter().copied());
            }
            DatasetCall::Destroy(name) => self.forget(name),
            DatasetCall::Snapshot(names) => self.take_snapshots(names),
            DatasetCall::DestroySnapshot(name, _) => {
                if self.is_held(name) || self.is_cloned(name) {
                    self.say(name, DEFERRED, String::new());
                } else {
                    self.forget(name);
                }
            }
            DatasetCall::Clone(origin, name) => {
                let content = datasets.get(origin).cloned().unwrap_or_default();
                datasets.insert(name.clone(), content);
                self.say(name, ORIGIN, origin.clone());
                self.grant_creator(name, 0);
            }
            DatasetCall::Promote(clone) => self.promote(clone),
            DatasetCall::Rollback(name) => {
                let Some(latest) = self.snapshots_of(name).pop() else { return };
                let content = self.state.datasets.get(&latest).cloned().unwrap_or_default();
                self.state.datasets.insert(name.clone(), content);
            }
            DatasetCall::Rename(from, to) => {
                for snapshot in self.snapshots_of(from) {
                    let (_, name) = snapshot.split_once('@').unwrap_or_default();
                    self.move_dataset(&snapshot, &format!("{to}@{name}"));
                }
                self.move_dataset(from, to);
            }
            DatasetCall::RenameSnapshot(head, old, new) => {
                self.move_dataset(&format!("{head}@{old}"), &format!("{head}@{new}"));
            }
            DatasetCall::Hold(name) => self.say(name, &format!("hold {TAG}"), String::new()),
            DatasetCall::Release(name) => {
                self.unsay(name, &format!("hold {TAG}"));
                self.forget_if_deferred(name);
            }
            DatasetCall::Bookmark(mark, snapshot) => {
                self.say(mark, "bookmark", String::new());
                let point = self.points.get(snapshot).copied().unwrap_or(0);
                self.points.insert(mark.clone(), point);
            }
            DatasetCall::DestroyBookmark(mark) => {
                self.unsay(mark, "bookmark");
                self.points.remove(mark);
            }
            DatasetCall::Set(name, property, value) => self.say(name, property, text(value)),
            DatasetCall::Inherit(name, property) => self.unsay(name, property),
            DatasetCall::Receive(transfer) => self.receive(transfer),
        }
    }

    /// Adds to the permissions that creators get.
    fn allow_creators(&mut self, name: &str, permissions: &[&str]) {
        let key = (name.to_owned(), OF_CREATORS.to_owned());
        let old = self.state.facts.get(&key).map_or("", String::as_str);
        let all = old.split(',').filter(|old| !old.is_empty());
        let all: BTreeSet<_> = all.chain(permissions.iter().copied()).collect();
        let all = all.into_iter().collect::<Vec<_>>().join(",");
        self.state.facts.insert(key, all);
    }

    fn take_snapshots(&mut self, names: &[String]) {
        for name in names {
            let content = self.state.datasets.get(head_of(name)).cloned().unwrap_or_default();
            self.state.datasets.insert(name.clone(), content);
            self.order.push(name.clone());
            self.points.insert(name.clone(), self.next_point);
            self.next_id += 1;
            self.ids.insert(name.clone(), self.next_id);
        }
        self.next_point += 1;
    }

    /// Grants the user who created a dataset the permissions that creators get.
    fn grant_creator(&mut self, name: &str, uid: u32) {
        let granted = self.state.facts.get(&(self.root.clone(), OF_CREATORS.to_owned())).cloned();
        if let Some(granted) = granted {
            self.say(name, &format!("granted User {uid}"), granted);
        }
    }

    fn forget_if_deferred(&mut self, snapshot: &str) {
        let is_free = !self.is_held(snapshot) && !self.is_cloned(snapshot);
        if self.has(snapshot, DEFERRED) && is_free {
            self.forget(snapshot);
        }
    }

    fn forget(&mut self, name: &str) {
        let origin = self.state.facts.get(&(name.to_owned(), ORIGIN.to_owned())).cloned();
        let marks = format!("{name}#");
        self.state.datasets.remove(name);
        self.state.facts.retain(|(whose, _), _| whose != name && !whose.starts_with(&marks));
        self.order.retain(|snapshot| snapshot != name);
        self.points.retain(|point, _| point != name && !point.starts_with(&marks));
        self.ids.remove(name);
        if let Some(origin) = origin {
            self.forget_if_deferred(&origin);
        }
    }

    fn promote(&mut self, clone: &str) {
        let key = |name: &str| (name.to_owned(), ORIGIN.to_owned());
        let Some(origin) = self.state.facts.remove(&key(clone)) else { return };
        let parent = head_of(&origin).to_owned();
        for mark in self.marks_moved_by_promotion(&origin) {
            let (_, name) = mark.split_once('#').unwrap_or_default();
            let moved = format!("{clone}#{name}");
            self.unsay(&mark, "bookmark");
            self.say(&moved, "bookmark", String::new());
            let point = self.points.remove(&mark).unwrap_or(0);
            self.points.insert(moved, point);
        }
        for snapshot in self.moved_by_promotion(&origin) {
            let (_, name) = snapshot.split_once('@').unwrap_or_default();
            self.move_dataset(&snapshot, &format!("{clone}@{name}"));
        }
        if let Some(older) = self.state.facts.remove(&key(&parent)) {
            self.state.facts.insert(key(clone), older);
        }
        let (_, name) = origin.split_once('@').unwrap_or_default();
        self.state.facts.insert(key(&parent), format!("{clone}@{name}"));
    }

    fn move_dataset(&mut self, from: &str, to: &str) {
        let content = self.state.datasets.remove(from).unwrap_or_default();
        self.state.datasets.insert(to.to_owned(), content);
        for name in self.order.iter_mut().filter(|name| *name == from) {
            to.clone_into(name);
        }
        if let Some(id) = self.ids.remove(from) {
            self.ids.insert(to.to_owned(), id);
        }
        let marks = format!("{from}#");
        let points = std::mem::take(&mut self.points).into_iter();
        self.points = points
            .map(|(name, point)| match name.strip_prefix(&marks) {
                Some(mark) => (format!("{to}#{mark}"), point),
                None if name == from => (to.to_owned(), point),
                None => (name, point),
            })
            .collect();
        let facts = std::mem::take(&mut self.state.facts).into_iter();
        self.state.facts = facts
            .map(|((whose, what), mut value)| {
                if what == ORIGIN && value == from {
                    to.clone_into(&mut value);
                }
                let whose = match whose.strip_prefix(&marks) {
                    Some(mark) => format!("{to}#{mark}"),
                    None if whose == from => to.to_owned(),
                    None => whose,
                };
                ((whose, what), value)
            })
            .collect();
    }
}
