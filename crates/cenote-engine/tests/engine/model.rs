//! Random operations on datasets against a tree of maps.
//!
//! The model predicts of each operation whether it succeeds, and the contents of every dataset and
//! snapshot afterwards. Every few operations the pool on disk is compared with it, and all sums are
//! recomputed. A history is a list of steps, each with its own seed, so that a failing one can be
//! shortened by omitting steps.

use std::collections::BTreeMap;

use cenote_engine::{ApplyOptions, OpError};
use cenote_ondisk::zap::Value;
use cenote_pool::Pool;
use cenote_rt::{Error, Kind, Result, Rng, block_on};
use cenote_testkit::rng::{cases, number};
use cenote_testkit::shrink::{play, steps};

use crate::memory::{BLOCK, Budget, MemoryPool, content, filesystem, need_object};

/// Objects of a dataset, and blocks of an object.
const OBJECTS: u64 = 4;
const BLOCKS: u64 = 24;
/// Operations between two checks of the disk.
const CHECK_EVERY: u64 = 6;
/// Operations of a history.
const STEPS: usize = 120;

type Contents = BTreeMap<(u64, u64), u64>;
type SnapId = u64;

#[derive(Debug, Clone)]
struct Snap {
    id: SnapId,
    name: String,
    contents: Contents,
    holds: Vec<String>,
    is_deferred: bool,
}

#[derive(Debug, Clone, Default)]
struct Dataset {
    contents: Contents,
    /// Oldest first.
    snaps: Vec<Snap>,
    origin: Option<SnapId>,
    /// By name: the snapshot.
    bookmarks: BTreeMap<String, SnapId>,
}

struct Model {
    datasets: BTreeMap<String, Dataset>,
    next_id: SnapId,
    /// Of the current step.
    rng: Rng,
    salt: u64,
}

impl Model {
    fn new() -> Self {
        let datasets = BTreeMap::from([("tank".to_owned(), Dataset::default())]);
        Self { datasets, next_id: 1, rng: Rng::seeded(0), salt: 0 }
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.rng.next_u64() % bound
    }

    fn pick(&mut self) -> String {
        let index = self.below(self.datasets.len() as u64) as usize;
        self.datasets.keys().nth(index).unwrap().clone()
    }

    fn pick_snap(&mut self) -> Option<(String, usize)> {
        let all: Vec<_> = self
            .datasets
            .iter()
            .flat_map(|(name, dataset)| (0..dataset.snaps.len()).map(move |i| (name.clone(), i)))
            .collect();
        if all.is_empty() {
            return None;
        }
        let index = self.below(all.len() as u64) as usize;
        Some(all[index].clone())
    }

    fn snap_name(&self, (dataset, index): &(String, usize)) -> String {
        format!("{dataset}@{}", self.datasets[dataset].snaps[*index].name)
    }

    fn has_clones(&self, id: SnapId) -> bool {
        self.datasets.values().any(|dataset| dataset.origin == Some(id))
    }

    fn has_children(&self, name: &str) -> bool {
        let prefix = format!("{name}/");
        self.datasets.keys().any(|other| other.starts_with(&prefix))
    }

    fn find(&self, id: SnapId) -> Option<(String, usize)> {
        self.datasets.iter().find_map(|(name, dataset)| {
            let index = dataset.snaps.iter().position(|snap| snap.id == id)?;
            Some((name.clone(), index))
        })
    }

    /// Removes a snapshot whose destruction was deferred, after its last user.
    fn settle(&mut self, id: SnapId) {
        let Some((name, index)) = self.find(id) else { return };
        let snap = &self.datasets[&name].snaps[index];
        if snap.is_deferred && snap.holds.is_empty() && !self.has_clones(id) {
            self.datasets.get_mut(&name).unwrap().snaps.remove(index);
        }
    }
}

/// Checks that the engine's result is the model's.
fn agree<T>(what: &str, result: Result<T>, want: std::result::Result<(), OpError>) -> bool {
    match (result, want) {
        (Ok(_), Ok(())) => true,
        (Err(error), Err(want)) => {
            assert_eq!(cause(&error), Some(want), "{what}: {error}");
            false
        }
        (Ok(_), Err(want)) => panic!("{what} worked, and should say: {want}"),
        (Err(error), Ok(())) => panic!("{what}: {error}"),
    }
}

fn cause(error: &Error) -> Option<OpError> {
    error.cause::<OpError>().copied()
}

struct Run {
    pool: MemoryPool,
    model: Model,
    trace: Vec<String>,
}

impl Drop for Run {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{} operations:\n{}", self.trace.len(), self.trace.join("\n"));
        }
    }
}

impl Run {
    async fn step(&mut self) {
        match self.model.below(26) {
            0..=6 => self.write().await,
            7 => self.punch().await,
            8 => self.create().await,
            9..=11 => self.snapshot().await,
            12 | 13 => self.destroy_snapshots().await,
            14 => self.clone().await,
            15 => self.destroy().await,
            16 => self.promote().await,
            17 => self.rollback().await,
            18 => self.rename().await,
            19 => self.rename_snapshot().await,
            20 => self.bookmark().await,
            21 => self.destroy_bookmark().await,
            22 => self.hold_or_release().await,
            23 => self.reserve().await,
            24 => self.remove_object().await,
            _ => {
                self.pool.engine.sync().await.unwrap();
            }
        }
    }

    fn note(&mut self, what: String) {
        self.trace.push(what);
    }

    async fn write(&mut self) {
        let name = self.model.pick();
        let head = self.pool.engine.head(&name).await.unwrap();
        let object = 1 + self.model.below(OBJECTS);
        let first = self.model.below(BLOCKS);
        let count = 1 + self.model.below(8);
        self.note(format!("write {name} {object} {first}+{count}"));
        for block in first..first + count {
            self.model.salt += 1;
            let salt = self.model.salt;
            let bytes = content(salt);
            self.pool
                .engine
                .apply(&head, ApplyOptions::new(), |tx| {
                    need_object(tx, object)?;
                    tx.write(object, block * BLOCK, &bytes)
                })
                .await
                .unwrap();
            let dataset = self.model.datasets.get_mut(&name).unwrap();
            dataset.contents.insert((object, block), salt);
        }
    }

    async fn punch(&mut self) {
        let name = self.model.pick();
        let head = self.pool.engine.head(&name).await.unwrap();
        let object = 1 + self.model.below(OBJECTS);
        let (first, count) = (self.model.below(BLOCKS), 1 + self.model.below(BLOCKS));
        self.note(format!("punch {name} {object} {first}+{count}"));
        self.pool
            .engine
            .apply(&head, ApplyOptions::new(), |tx| {
                need_object(tx, object)?;
                tx.free_range(object, first * BLOCK, Some(count * BLOCK))
            })
            .await
            .unwrap();
        let dataset = self.model.datasets.get_mut(&name).unwrap();
        dataset.contents.retain(|(o, b), _| *o != object || !(first..first + count).contains(b));
    }

    async fn remove_object(&mut self) {
        let name = self.model.pick();
        let head = self.pool.engine.head(&name).await.unwrap();
        let object = 1 + self.model.below(OBJECTS);
        self.note(format!("remove {name} {object}"));
        self.pool
            .engine
            .apply(&head, ApplyOptions::new(), |tx| match tx.find(object)? {
                Some(_) => tx.free(object),
                None => Ok(()),
            })
            .await
            .unwrap();
        let dataset = self.model.datasets.get_mut(&name).unwrap();
        dataset.contents.retain(|(o, _), _| *o != object);
        // Its number is not reused before the txg is committed.
        self.pool.engine.sync().await.unwrap();
    }

    async fn create(&mut self) {
        let name = format!("{}/d{}", self.model.pick(), self.model.below(4));
        self.note(format!("create {name}"));
        let is_there = self.model.datasets.contains_key(&name);
        let want = if is_there { Err(OpError::Exists) } else { Ok(()) };
        if agree(&name, self.pool.engine.datasets().create(filesystem(&name)).await, want) {
            self.model.datasets.insert(name, Dataset::default());
        }
    }

    async fn snapshot(&mut self) {
        let short = format!("s{}", self.model.below(5));
        let mut heads = vec![self.model.pick()];
        if self.model.below(3) == 0 {
            let other = self.model.pick();
            if !heads.contains(&other) {
                heads.push(other);
            }
        }
        let names: Vec<_> = heads.iter().map(|head| format!("{head}@{short}")).collect();
        self.note(format!("snapshot {names:?}"));
        let is_taken = heads
            .iter()
            .any(|head| self.model.datasets[head].snaps.iter().any(|snap| snap.name == short));
        let want = if is_taken { Err(OpError::Exists) } else { Ok(()) };
        if agree("snapshot", self.pool.engine.snapshots().create(names).await, want) {
            for head in heads {
                let id = self.model.next_id;
                self.model.next_id += 1;
                let dataset = self.model.datasets.get_mut(&head).unwrap();
                let contents = dataset.contents.clone();
                let (holds, name) = (Vec::new(), short.clone());
                dataset.snaps.push(Snap { id, name, contents, holds, is_deferred: false });
            }
        }
    }

    async fn destroy_snapshots(&mut self) {
        let Some(first) = self.model.pick_snap() else { return };
        let mut wanted = vec![first];
        for _ in 0..self.model.below(3) {
            let other = self.model.pick_snap().unwrap();
            if !wanted.contains(&other) {
                wanted.push(other);
            }
        }
        let is_deferred = self.model.below(3) == 0;
        let names: Vec<_> = wanted.iter().map(|snap| self.model.snap_name(snap)).collect();
        self.note(format!("destroy {names:?} deferred: {is_deferred}"));
        let ids: Vec<_> =
            wanted.iter().map(|(name, index)| self.model.datasets[name].snaps[*index].id).collect();
        let mut want = Ok(());
        for (name, index) in &wanted {
            let snap = &self.model.datasets[name].snaps[*index];
            if is_deferred || want.is_err() {
                continue;
            }
            if !snap.holds.is_empty() {
                want = Err(OpError::Held);
            } else if self.model.has_clones(snap.id) {
                want = Err(OpError::HasClones);
            }
        }
        let result = self.pool.engine.snapshots().destroy_all(names, is_deferred).await;
        if agree("destroy", result, want) {
            for id in ids {
                let (name, index) = self.model.find(id).unwrap();
                self.model.datasets.get_mut(&name).unwrap().snaps[index].is_deferred = true;
                self.model.settle(id);
            }
        }
    }

    async fn clone(&mut self) {
        let Some(snap) = self.model.pick_snap() else { return };
        let name = format!("{}/c{}", self.model.pick(), self.model.below(3));
        let origin = self.model.snap_name(&snap);
        self.note(format!("clone {origin} {name}"));
        let is_there = self.model.datasets.contains_key(&name);
        let want = if is_there { Err(OpError::Exists) } else { Ok(()) };
        let result = self.pool.engine.datasets().clone_snapshot(&origin, &name, Vec::new()).await;
        if agree("clone", result, want) {
            let snap = &self.model.datasets[&snap.0].snaps[snap.1];
            let (contents, origin) = (snap.contents.clone(), Some(snap.id));
            let dataset = Dataset { contents, origin, ..Dataset::default() };
            self.model.datasets.insert(name, dataset);
        }
    }

    async fn destroy(&mut self) {
        let name = self.model.pick();
        self.note(format!("destroy {name}"));
        let dataset = &self.model.datasets[&name];
        let want = if name == "tank" {
            Err(OpError::IsPool)
        } else if !dataset.snaps.is_empty() {
            Err(OpError::HasSnapshots)
        } else if self.model.has_children(&name) {
            Err(OpError::HasChildren)
        } else {
            Ok(())
        };
        if agree("destroy", self.pool.engine.datasets().destroy(&name).await, want) {
            let dataset = self.model.datasets.remove(&name).unwrap();
            if let Some(origin) = dataset.origin {
                self.model.settle(origin);
            }
        }
    }

    async fn promote(&mut self) {
        let name = self.model.pick();
        self.note(format!("promote {name}"));
        let dataset = self.model.datasets[&name].clone();
        let found = dataset.origin.and_then(|origin| self.model.find(origin));
        let want = match &found {
            None => Err(OpError::NotAClone),
            Some((owner, index)) => {
                let theirs = &self.model.datasets[owner];
                let shared = &theirs.snaps[..=*index];
                let conflicts =
                    shared.iter().any(|snap| dataset.snaps.iter().any(|own| own.name == snap.name));
                let last = shared.last().unwrap().id;
                let marks = theirs
                    .bookmarks
                    .iter()
                    .any(|(mark, point)| *point <= last && dataset.bookmarks.contains_key(mark));
                if conflicts || marks { Err(OpError::Exists) } else { Ok(()) }
            }
        };
        if agree("promote", self.pool.engine.datasets().promote(&name).await, want) {
            let (owner, index) = found.unwrap();
            let theirs = self.model.datasets.get_mut(&owner).unwrap();
            let mut shared: Vec<_> = theirs.snaps.drain(..=index).collect();
            let last = shared.last().unwrap().id;
            let moved: Vec<_> = theirs
                .bookmarks
                .iter()
                .filter(|(_, point)| **point <= last)
                .map(|(name, point)| (name.clone(), *point))
                .collect();
            theirs.bookmarks.retain(|_, point| *point > last);
            let first = theirs.origin.replace(last);
            let ours = self.model.datasets.get_mut(&name).unwrap();
            shared.append(&mut ours.snaps);
            ours.snaps = shared;
            ours.origin = first;
            ours.bookmarks.extend(moved);
        }
    }

    async fn rollback(&mut self) {
        let name = self.model.pick();
        self.note(format!("rollback {name}"));
        let dataset = self.model.datasets[&name].clone();
        let want = match dataset.snaps.last() {
            None => Err(OpError::NoSnapshot),
            Some(last) if dataset.bookmarks.values().any(|point| *point > last.id) => {
                Err(OpError::NotLatest)
            }
            Some(_) => Ok(()),
        };
        if agree("rollback", self.pool.engine.datasets().rollback(&name, None).await, want) {
            let contents = dataset.snaps.last().unwrap().contents.clone();
            self.model.datasets.get_mut(&name).unwrap().contents = contents;
        }
    }

    async fn rename(&mut self) {
        let (from, parent) = (self.model.pick(), self.model.pick());
        let to = format!("{parent}/r{}", self.model.below(3));
        self.note(format!("rename {from} {to}"));
        let prefix = format!("{from}/");
        let want = if from == "tank" {
            Err(OpError::IsPool)
        } else if self.model.datasets.contains_key(&to) {
            Err(OpError::Exists)
        } else if parent == from || parent.starts_with(&prefix) {
            Err(OpError::Cycle)
        } else {
            Ok(())
        };
        if agree("rename", self.pool.engine.datasets().rename(&from, &to).await, want) {
            let moved: Vec<_> = self
                .model
                .datasets
                .keys()
                .filter(|name| **name == from || name.starts_with(&prefix))
                .cloned()
                .collect();
            for name in moved {
                let dataset = self.model.datasets.remove(&name).unwrap();
                self.model.datasets.insert(format!("{to}{}", &name[from.len()..]), dataset);
            }
        }
    }

    async fn rename_snapshot(&mut self) {
        let Some((dataset, index)) = self.model.pick_snap() else { return };
        let from = self.model.datasets[&dataset].snaps[index].name.clone();
        let to = format!("s{}", self.model.below(7));
        self.note(format!("rename {dataset}@{from} @{to}"));
        let snaps = &self.model.datasets[&dataset].snaps;
        let is_there = snaps.iter().any(|snap| snap.name == to);
        let want = if is_there { Err(OpError::Exists) } else { Ok(()) };
        let result = self.pool.engine.snapshots().rename(&dataset, &from, &to, false).await;
        if agree("rename", result, want) {
            self.model.datasets.get_mut(&dataset).unwrap().snaps[index].name = to;
        }
    }

    async fn bookmark(&mut self) {
        let Some(snap) = self.model.pick_snap() else { return };
        let short = format!("m{}", self.model.below(4));
        let name = format!("{}#{short}", snap.0);
        let source = self.model.snap_name(&snap);
        self.note(format!("bookmark {name} {source}"));
        let is_there = self.model.datasets[&snap.0].bookmarks.contains_key(&short);
        let want = if is_there { Err(OpError::Exists) } else { Ok(()) };
        if agree("bookmark", self.pool.engine.bookmarks().create(vec![(name, source)]).await, want)
        {
            let dataset = self.model.datasets.get_mut(&snap.0).unwrap();
            let id = dataset.snaps[snap.1].id;
            dataset.bookmarks.insert(short, id);
        }
    }

    async fn destroy_bookmark(&mut self) {
        let name = self.model.pick();
        let dataset = self.model.datasets.get_mut(&name).unwrap();
        let Some((mark, _)) = dataset.bookmarks.pop_first() else { return };
        self.note(format!("destroy {name}#{mark}"));
        self.pool.engine.bookmarks().destroy_all(vec![format!("{name}#{mark}")]).await.unwrap();
    }

    async fn hold_or_release(&mut self) {
        let Some((dataset, index)) = self.model.pick_snap() else { return };
        let name = self.model.snap_name(&(dataset.clone(), index));
        let snap = &mut self.model.datasets.get_mut(&dataset).unwrap().snaps[index];
        let id = snap.id;
        if let Some(tag) = snap.holds.pop() {
            self.pool.engine.snapshots().release(vec![(name.clone(), tag)]).await.unwrap();
            self.note(format!("release {name}"));
            self.model.settle(id);
        } else {
            let tag = "tag".to_owned();
            snap.holds.push(tag.clone());
            self.pool.engine.snapshots().hold(vec![(name.clone(), tag)], false).await.unwrap();
            self.note(format!("hold {name}"));
        }
    }

    /// Success depends on sums that the model does not have.
    async fn reserve(&mut self) {
        let name = self.model.pick();
        let which = ["reservation", "refreservation", "quota", "refquota"];
        let which = which[self.model.below(4) as usize];
        let value = match which {
            "quota" | "refquota" => [0, 64 << 20][self.model.below(2) as usize],
            _ => self.model.below(4) * (600 << 10),
        };
        self.note(format!("set {which}={value} {name}"));
        let result = self.pool.engine.properties().set(&name, which, Value::U64(value)).await;
        if let Err(error) = result {
            assert_eq!(error.kind(), Kind::NoSpace, "{error}");
        }
    }

    /// Compares the pool on disk with the model.
    async fn compare(&mut self) {
        self.pool.engine.sync().await.unwrap();
        self.pool.check().await;
        let reader = self.pool.reader().await;
        for (name, dataset) in &self.model.datasets {
            compare_contents(&reader, name, &dataset.contents).await;
            for snap in &dataset.snaps {
                let name = format!("{name}@{}", snap.name);
                compare_contents(&reader, &name, &snap.contents).await;
            }
            let head = reader.dataset(name).await.unwrap();
            let mut names: Vec<_> = head
                .snapshots()
                .await
                .unwrap()
                .into_iter()
                .map(|snap| snap.name().rsplit_once('@').unwrap().1.to_owned())
                .collect();
            names.sort();
            let mut want: Vec<_> = dataset.snaps.iter().map(|snap| snap.name.clone()).collect();
            want.sort();
            assert_eq!(names, want, "snapshots of {name}");
        }
    }
}

async fn compare_contents(pool: &std::sync::Arc<Pool>, name: &str, contents: &Contents) {
    let dataset = pool.dataset(name).await.unwrap();
    let set = dataset.open().await.unwrap();
    for object in 1..=OBJECTS {
        let Ok(dnode) = set.dnode(object).await else {
            assert!(!contents.keys().any(|(o, _)| *o == object), "{name}: no object {object}");
            continue;
        };
        for block in 0..2 * BLOCKS {
            let read = dnode.read_at(block * BLOCK, BLOCK as usize).await.unwrap();
            let salt = contents.get(&(object, block)).copied();
            let want = salt.map_or_else(|| vec![0; BLOCK as usize], content);
            assert!(read[..] == want[..], "{name}: block {block} of object {object}");
        }
    }
}

/// Runs steps, each by its seed.
async fn history(steps: &[u64], is_judged: bool) {
    let pool = MemoryPool::new().await;
    let mut run = Run { pool, model: Model::new(), trace: Vec::new() };
    for (number, seed) in (1..).zip(steps) {
        run.model.rng = Rng::seeded(*seed);
        run.step().await;
        if number % CHECK_EVERY == 0 {
            run.compare().await;
        }
        if number % 40 == 0 {
            run.pool.reopen().await;
        }
    }
    run.compare().await;
    run.pool.settle().await;
    run.pool.check().await;
    if is_judged {
        run.pool.engine.export().await.unwrap();
        run.pool.judge_as_it_is();
    }
}

#[test]
fn random_dataset_operations_equal_the_model() {
    // Dead trees are freed over several txgs.
    let rate = Budget::take();
    rate.set(50);
    let first = number("CENOTE_SEED").unwrap_or(0);
    for seed in first..first + cases(3, 100) {
        println!("CENOTE_SEED={seed}");
        let is_judged = seed % 4 == 0;
        play(steps(seed, STEPS), |steps| block_on(2, history(steps, is_judged)).unwrap());
    }
}
