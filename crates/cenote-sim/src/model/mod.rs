//! Operations that were done and acknowledged, and the states that may therefore be found.
//!
//! ```text
//!   Sequence   states of one thing, one after each change, with the time and the txg of the change
//!   files      directory tree of an actor            Sequence<Tree>
//!   slots      contents of a volume's slots          Sequence<Slot>
//!   datasets   datasets below one dataset            Sequence<Datasets>
//! ```
//!
//! A change is added before it is made, so that readers may see it from then on, and taken back
//! if it fails without an effect. The clock of the model counts begins and ends of all operations
//! of a history: an operation is before another one if it ended before that began.
//!
//! After a crash at txg T, according to the newest uberblock, a change must be there if it was
//! made in a txg up to T, or acknowledged as durable; a change that no intent log records must not
//! be there if it was made in a later txg. Everything else may be there, in the order of changes.

pub(crate) mod datasets;
pub(crate) mod files;
pub(crate) mod slots;
pub(crate) mod snapshots;

use std::collections::BTreeMap;

use crate::allocating::Allocating;
use crate::plan::Plan;
use datasets::Datasets;
use files::{Found, Touch, Tree};
use slots::Slot;
use snapshots::HomeSnapshot;

/// A result of a comparison: the difference.
pub(crate) type Verdict = Result<(), String>;

/// A change of a sequence.
#[derive(Debug, Clone)]
pub(crate) struct Change<S, T> {
    /// Time of the end; `None` while it is made, and if its end is unknown.
    pub(crate) end: Option<u64>,
    /// The open txg before it.
    pub(crate) txg_min: u64,
    /// The open txg after it.
    pub(crate) txg_max: Option<u64>,
    /// What it changes.
    pub(crate) touch: T,
    /// The state afterwards.
    pub(crate) after: S,
}

/// States of one thing.
#[derive(Debug, Clone)]
pub(crate) struct Sequence<S, T> {
    base: S,
    changes: Vec<Change<S, T>>,
}

impl<S: Clone, T> Sequence<S, T> {
    /// Returns a sequence with one state.
    pub(crate) fn new(base: S) -> Self {
        Self { base, changes: Vec::new() }
    }

    /// Returns a state by the number of changes before it.
    pub(crate) fn state(&self, index: usize) -> &S {
        match index.checked_sub(1) {
            None => &self.base,
            Some(change) => &self.changes[change].after,
        }
    }

    /// Returns the newest state.
    pub(crate) fn newest(&self) -> &S {
        self.state(self.changes.len())
    }

    /// Returns the newest state, to complete it.
    pub(crate) fn newest_mut(&mut self) -> &mut S {
        match self.changes.last_mut() {
            None => &mut self.base,
            Some(change) => &mut change.after,
        }
    }

    /// Number of changes.
    pub(crate) fn len(&self) -> usize {
        self.changes.len()
    }

    /// Returns the changes.
    pub(crate) fn changes(&self) -> &[Change<S, T>] {
        &self.changes
    }

    /// Adds a change that begins now.
    pub(crate) fn begin(&mut self, txg: u64, touch: T, after: S) {
        self.changes.push(Change { end: None, txg_min: txg, txg_max: None, touch, after });
    }

    /// The last change has ended.
    pub(crate) fn end(&mut self, now: u64, txg: u64) {
        if let Some(change) = self.changes.last_mut() {
            (change.end, change.txg_max) = (Some(now), Some(txg));
        }
    }

    /// The last change had no effect.
    pub(crate) fn take_back(&mut self) {
        self.changes.pop();
    }

    /// Number of changes that ended before a time.
    pub(crate) fn ended_before(&self, time: u64) -> usize {
        let is_over = |change: &Change<S, T>| change.end.is_some_and(|end| end < time);
        self.changes.iter().take_while(|change| is_over(change)).count()
    }

    /// Number of changes, up to the last one of those that meet a condition.
    pub(crate) fn up_to_last(&self, is_wanted: impl Fn(&Change<S, T>) -> bool) -> usize {
        self.changes.iter().rposition(is_wanted).map_or(0, |index| index + 1)
    }

    /// Number of changes that are certainly part of the state of this txg.
    pub(crate) fn certain_in(&self, txg: u64) -> usize {
        self.up_to_last(|change| change.txg_max.is_some_and(|last| last <= txg))
    }

    /// Number of changes that may be part of the state of this txg.
    pub(crate) fn possible_in(&self, txg: u64) -> usize {
        self.changes.iter().take_while(|change| change.txg_min <= txg).count()
    }

    /// Begins anew with one state.
    pub(crate) fn restart(&mut self, base: S) {
        *self = Self::new(base);
    }
}

/// A directory tree, and what of it was acknowledged as durable.
#[derive(Debug, Clone)]
pub(crate) struct Actor {
    /// Its states.
    pub(crate) states: Sequence<Tree, Touch>,
    /// Number of changes up to which names are durable.
    pub(crate) durable_names: usize,
    /// Number of changes up to which each file is durable.
    pub(crate) durable_files: BTreeMap<files::Id, usize>,
}

impl Actor {
    /// Returns an actor with that tree, all of which is durable.
    pub(crate) fn from_tree(tree: Tree) -> Self {
        Self { states: Sequence::new(tree), durable_names: 0, durable_files: BTreeMap::new() }
    }
}

/// Whether a file system is being rolled back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Rollback {
    /// No rollback has begun, or the last one has ended.
    #[default]
    None,
    /// A rollback has begun, and its effect is unknown.
    Begun,
}

/// A file system.
#[derive(Debug, Clone, Default)]
pub(crate) struct FileSystemModel {
    /// Its actors.
    pub(crate) actors: Vec<Actor>,
    /// Snapshots by name, without the dataset.
    pub(crate) snapshots: BTreeMap<String, HomeSnapshot>,
    /// Whether `fsync` promises anything.
    pub(crate) has_sync: bool,
    /// Whether every change is durable when it returns.
    pub(crate) is_always_sync: bool,
    /// Whether extended attributes are files of hidden directories.
    pub(crate) has_xattr_dirs: bool,
    /// Its rollback.
    pub(crate) rollback: Rollback,
}

impl FileSystemModel {
    /// The only actor's directory has the contents of a snapshot again.
    ///
    /// # Errors
    /// The difference from the snapshot.
    pub(crate) fn rolled_back(&mut self, snapshot: &str, found: &Found) -> Verdict {
        let known = self.snapshots.get_mut(snapshot).ok_or("not known")?;
        known.check(0, found)?;
        let tree = known.tree(0).ok_or("not of this actor")?.with_objects(found);
        self.actors[0] = Actor::from_tree(tree);
        Ok(())
    }

    /// Compares what was found of the only actor after a crash during a rollback: the contents of
    /// any snapshot.
    pub(crate) fn may_be_rolled_back(&mut self, found: &Found) -> bool {
        let names: Vec<_> = self.snapshots.keys().cloned().collect();
        self.rollback == Rollback::Begun
            && names.iter().any(|name| self.rolled_back(name, found).is_ok())
    }
}

/// A slot of a volume, and how many of its changes are durable.
#[derive(Debug, Clone)]
pub(crate) struct SlotModel {
    /// Its states.
    pub(crate) states: Sequence<Slot, ()>,
    /// Number of durable changes.
    pub(crate) durable: usize,
}

/// A volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct VolumeModel {
    /// Its slots.
    pub(crate) slots: Vec<SlotModel>,
    /// Whether a flush promises anything.
    pub(crate) has_sync: bool,
    /// Whether every change is durable when it returns.
    pub(crate) is_always_sync: bool,
}

/// Everything that is known about a pool.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    clock: u64,
    /// The last txg whose commit was acknowledged.
    pub(crate) acknowledged_txg: u64,
    /// The txg of the last crash, until the pool was compared after it.
    pub(crate) crash_txg: Option<u64>,
    /// File systems, by number.
    pub(crate) file_systems: Vec<FileSystemModel>,
    /// Volumes, by number.
    pub(crate) volumes: Vec<VolumeModel>,
    /// Subtrees of datasets, by number, each with the number of its durable changes.
    pub(crate) trees: BTreeMap<usize, (Sequence<Datasets, ()>, usize)>,
    /// Hot spares by guid, each with the number of operations that may have added it or taken it
    /// out of the list and have not ended, or ended in an unknown way.
    pub(crate) hot_spares: BTreeMap<u64, u32>,
    /// Vdevs that get new blocks or not.
    pub(crate) allocating: Allocating,
    /// Number of contents that were written.
    stamps: u64,
}

impl Model {
    /// An operation begins that may take one of these hot spares out of the list.
    pub(crate) fn doubt_spares(&mut self, guids: &[u64]) {
        for guid in guids {
            if let Some(doubts) = self.hot_spares.get_mut(guid) {
                *doubts += 1;
            }
        }
    }

    /// An operation has ended and did not take these hot spares out of the list.
    pub(crate) fn trust_spares(&mut self, guids: &[u64]) {
        for guid in guids {
            if let Some(doubts) = self.hot_spares.get_mut(guid) {
                *doubts = doubts.saturating_sub(1);
            }
        }
    }

    /// Compares the hot spares with those that a pool has, which are certain from now on.
    pub(crate) fn compare_spares(&mut self, found: &[u64]) -> Verdict {
        for (guid, doubts) in &self.hot_spares {
            if *doubts == 0 && !found.contains(guid) {
                return Err(format!("hot spare {guid} is not in the list"));
            }
        }
        if let Some(guid) = found.iter().find(|guid| !self.hot_spares.contains_key(guid)) {
            return Err(format!("hot spare {guid} should not be in the list"));
        }
        self.hot_spares = found.iter().map(|guid| (*guid, 0)).collect();
        Ok(())
    }

    /// Returns the model of a pool that does not exist.
    pub(crate) fn new(plan: &Plan) -> Self {
        let value = |properties: &[(String, u64)], wanted: &str| {
            properties.iter().find(|(name, _)| name == wanted).map_or(0, |(_, value)| *value)
        };
        let file_systems = plan.file_systems.iter().map(|of| {
            let sync = value(&of.properties, "sync");
            FileSystemModel {
                has_sync: sync != 2,
                is_always_sync: sync == 1,
                has_xattr_dirs: value(&of.properties, "xattr") == 1,
                ..Default::default()
            }
        });
        let volumes = plan.volumes.iter().map(|of| {
            let sync = value(&of.properties, "sync");
            let slot = SlotModel { states: Sequence::new(Slot::zeros()), durable: 0 };
            VolumeModel {
                slots: vec![slot; of.slots as usize],
                has_sync: sync != 2,
                is_always_sync: sync == 1,
            }
        });
        Self { file_systems: file_systems.collect(), volumes: volumes.collect(), ..Self::default() }
    }

    /// Returns the next time.
    pub(crate) fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// Returns a number that no content has.
    pub(crate) fn stamp(&mut self) -> u64 {
        self.stamps += 1;
        self.stamps
    }

    /// A commit of this txg was acknowledged.
    pub(crate) fn acknowledge(&mut self, txg: u64) {
        self.acknowledged_txg = self.acknowledged_txg.max(txg);
    }
}

/// Fills bytes with the content of a stamp: a third compresses well, a third not at all.
pub(crate) fn fill(stamp: u64, bytes: &mut [u8]) {
    let mut rng = cenote_rt::Rng::seeded(stamp);
    match stamp % 3 {
        0 => rng.fill(bytes),
        1 => {
            for piece in bytes.chunks_mut(256) {
                let word = rng.next_u64().to_le_bytes();
                for (byte, value) in piece.iter_mut().zip(word.iter().cycle()) {
                    *byte = value | 1;
                }
            }
        }
        _ => {
            for piece in bytes.chunks_mut(1024) {
                let (noise, rest) = piece.split_at_mut(piece.len() / 2);
                rng.fill(noise);
                rest.fill(stamp as u8 | 1);
            }
        }
    }
}
