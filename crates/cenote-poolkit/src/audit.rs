//! An auditor: recomputes all sums, sets and counts of the dataset layer from the blocks that
//! datasets reach (spec 04 §8, §10.2, §17.2, §4.3, §15, §18).
//!
//! Nothing of the engine's arithmetic is used: block sets are compared as sets.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_dmu::{Bpobj, Bptree, Deadlist, Space, Zap};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dsl::{BookmarkFlags, BookmarkPhys, DatasetPhys, DirPhys, key};
use cenote_ondisk::feature::{FEATURES, FeatureFlags, by_name};
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::Pool;
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_rt::Result;

type Sizes = [i64; 3];

fn add(sum: &mut Sizes, more: Sizes) {
    for (sum, more) in sum.iter_mut().zip(more) {
        *sum += more;
    }
}

/// A block with its place in a dataset.
type BlockId = (u64, i64, u64, [u8; 128]);
/// Blocks with their sizes and births.
type BlockSet = BTreeMap<BlockId, (Sizes, u64)>;

fn sum<'a>(blocks: impl Iterator<Item = &'a (Sizes, u64)>) -> Sizes {
    let mut total = [0; 3];
    blocks.for_each(|(sizes, _)| add(&mut total, *sizes));
    total
}

fn sizes_of(pool: &Pool, bp: &BlockPtr) -> Sizes {
    let is_meta = bp.level() > 0 || bp.object_type().is_metadata();
    if bp.is_embedded() {
        return [0, 0, if is_meta { 0 } else { bp.lsize() as i64 }];
    }
    let dsize: u64 = (0..3)
        .filter_map(|copy| bp.dva(copy))
        .map(|dva| (dva.asize >> 9) * pool.vdevs().deflate_ratio(u64::from(dva.vdev)))
        .sum();
    let psize = bp.psize() as i64;
    [dsize as i64, psize, if is_meta { psize } else { bp.lsize() as i64 }]
}

struct Collect<'a> {
    pool: &'a Pool,
    blocks: BlockSet,
    damage: Vec<String>,
}

impl Visitor for Collect<'_> {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        let id = (place.object, place.level, place.blkid, bp.to_bytes());
        self.blocks.insert(id, (sizes_of(self.pool, bp), bp.allocation_birth()));
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        self.damage.push(format!("{:?}: {}", damage.place, damage.error));
    }
}

/// A dataset with its reachable blocks.
struct Member {
    phys: DatasetPhys,
    is_zapified: bool,
    blocks: BlockSet,
    bookmarks: Vec<(String, BookmarkPhys)>,
}

/// A dir.
struct Node {
    phys: DirPhys,
    is_zapified: bool,
    children: Vec<(String, u64)>,
    refreservation: u64,
}

/// Audits the states of one pool, one after the other.
#[derive(Default)]
pub struct Auditor {
    /// Blocks of all snapshots ever seen, by guid, for checking bookmarks.
    seen: BTreeMap<u64, BlockSet>,
}

struct Audit<'a> {
    pool: &'a Arc<Pool>,
    dirs: BTreeMap<u64, Node>,
    datasets: BTreeMap<u64, Member>,
    problems: Vec<String>,
}

impl Auditor {
    /// Returns an auditor that has seen no snapshots.
    pub fn new() -> Self {
        Self::default()
    }

    /// Audits a pool on disk; returns the differences.
    ///
    /// # Errors
    /// Errors of reading the pool.
    pub async fn audit(&mut self, pool: &Arc<Pool>) -> Result<Vec<String>> {
        let mut audit =
            Audit { pool, dirs: BTreeMap::new(), datasets: BTreeMap::new(), problems: Vec::new() };
        audit.load().await?;
        for member in audit.datasets.values().filter(|member| member.phys.is_snapshot()) {
            self.seen.insert(member.phys.guid, member.blocks.clone());
        }
        audit.chains().await?;
        audit.deadlists().await?;
        audit.dirs().await?;
        audit.special_dirs().await?;
        audit.features().await?;
        audit.bookmarks(&self.seen);
        Ok(audit.problems)
    }
}

async fn numbers(pool: &Pool, object: u64) -> Result<BTreeSet<u64>> {
    let mut found = BTreeSet::new();
    if object != 0 {
        for entry in Zap::open(pool.mos(), object).await?.to_vec().await? {
            let name = entry.key.name().unwrap();
            assert_eq!(key::to_number(name), entry.value.first());
            found.insert(entry.value.first().unwrap());
        }
    }
    Ok(found)
}

async fn names(pool: &Pool, object: u64) -> Result<Vec<(String, u64)>> {
    let mut found = Vec::new();
    for entry in Zap::open(pool.mos(), object).await?.to_vec().await? {
        let name = String::from_utf8(entry.key.name().unwrap().to_vec()).unwrap();
        found.push((name, entry.value.first().unwrap()));
    }
    Ok(found)
}

impl Audit<'_> {
    #[expect(clippy::needless_pass_by_value, reason = "computed for the call")]
    fn check<T: PartialEq + std::fmt::Debug>(&mut self, what: impl AsRef<str>, got: T, want: T) {
        if got != want {
            let what = what.as_ref();
            self.problems.push(format!("{what}: {got:?}, computed {want:?}"));
        }
    }

    async fn load(&mut self) -> Result<()> {
        let pool = self.pool;
        let mut dnodes = pool.mos().dnodes(1);
        while let Some(dnode) = dnodes.next().await {
            let dnode = dnode?;
            let is_zapified = dnode.phys().object_type == ObjectType::ZAP_METADATA;
            let object = dnode.object();
            match dnode.phys().bonus_type {
                ObjectType::DSL_DIR => {
                    let phys = DirPhys::decode(dnode.phys().bonus()).unwrap();
                    let children = names(pool, phys.child_dir_zapobj).await?;
                    let props = Zap::open(pool.mos(), phys.props_zapobj).await?;
                    let refreservation = props.lookup_u64("refreservation").await?.unwrap_or(0);
                    self.check(
                        format!("quota of dir {object}"),
                        props.lookup_u64("quota").await?.unwrap_or(0),
                        phys.quota,
                    );
                    self.check(
                        format!("reservation of dir {object}"),
                        props.lookup_u64("reservation").await?.unwrap_or(0),
                        phys.reserved,
                    );
                    let node = Node { phys, is_zapified, children, refreservation };
                    self.dirs.insert(object, node);
                }
                ObjectType::DSL_DATASET => {
                    let phys = DatasetPhys::decode(dnode.phys().bonus()).unwrap();
                    let member = self.member(object, phys, is_zapified).await?;
                    self.datasets.insert(object, member);
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn member(&mut self, object: u64, phys: DatasetPhys, zapified: bool) -> Result<Member> {
        let pool = self.pool;
        let mut collect = Collect { pool, blocks: BlockSet::new(), damage: Vec::new() };
        let options = traverse::Options::default();
        traverse::tree(pool, &phys.bp, object, options, &mut collect).await?;
        for damage in collect.damage {
            self.problems.push(format!("dataset {object}: {damage}"));
        }
        let mut bookmarks = Vec::new();
        if zapified
            && let Some(table) =
                Zap::open(pool.mos(), object).await?.lookup_u64(key::BOOKMARKS).await?
        {
            for entry in Zap::open(pool.mos(), table).await?.to_vec().await? {
                let name = String::from_utf8(entry.key.name().unwrap().to_vec()).unwrap();
                bookmarks.push((name, BookmarkPhys::decode(&entry.value.words()).unwrap()));
            }
            assert!(!bookmarks.is_empty(), "an empty table of bookmarks stays");
        }
        Ok(Member { phys, is_zapified: zapified, blocks: collect.blocks, bookmarks })
    }

    /// Returns the dataset after `object` in its own line.
    fn unique(&self, object: u64) -> i64 {
        let member = &self.datasets[&object];
        let born = member.blocks.iter().filter(|(_, (_, b))| *b > member.phys.prev_snap_txg);
        if !member.phys.is_snapshot() {
            return sum(born.map(|(_, block)| block))[0];
        }
        let next = &self.datasets[&member.phys.next_snap_obj].blocks;
        sum(born.filter(|(id, _)| !next.contains_key(*id)).map(|(_, block)| block))[0]
    }

    /// I1, I2, I3, I4, I5, I7, I8.
    async fn chains(&mut self) -> Result<()> {
        let objects: Vec<u64> = self.datasets.keys().copied().collect();
        let mut next_clones: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let mut names_of: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for object in objects {
            let phys = self.datasets[&object].phys.clone();
            let blocks = &self.datasets[&object].blocks;
            let total = sum(blocks.values());
            let newest = blocks.values().map(|(_, birth)| *birth).max().unwrap_or(0);
            let unique = self.unique(object);
            let stored = [phys.referenced_bytes, phys.compressed_bytes, phys.uncompressed_bytes];
            self.check(format!("I5 sizes of {object}"), stored.map(|size| size as i64), total);
            self.check(format!("unique of {object}"), phys.unique_bytes as i64, unique);
            let last = if phys.is_snapshot() { phys.creation_txg } else { self.pool.txg() };
            if newest > last {
                self.problems.push(format!("I8 {object}: a block of {newest}, made in {last}"));
            }
            if phys.prev_snap_obj == 0 {
                self.check(format!("I1 {object}"), phys.prev_snap_txg, 0);
            } else {
                let prev = self.datasets[&phys.prev_snap_obj].phys.clone();
                self.check(format!("I1 {object}"), phys.prev_snap_txg, prev.creation_txg);
                if prev.next_snap_obj != object {
                    next_clones.entry(phys.prev_snap_obj).or_default().insert(object);
                }
            }
            if phys.is_snapshot() {
                names_of.entry(phys.dir_obj).or_default().insert(object);
            } else {
                let head = self.dirs[&phys.dir_obj].phys.head_dataset_obj;
                self.check(format!("head of the dir of {object}"), head, object);
            }
        }
        for (object, member) in &self.datasets {
            let phys = &member.phys;
            let clones = next_clones.remove(object).unwrap_or_default();
            if phys.is_snapshot() {
                let stored = numbers(self.pool, phys.next_clones_obj).await?;
                if stored != clones || phys.num_children != 1 + clones.len() as u64 {
                    let count = phys.num_children;
                    let text = format!("I2 {object}: {stored:?} {count}, computed {clones:?}");
                    self.problems.push(text);
                }
            } else {
                let names = names(self.pool, phys.snapnames_zapobj).await?;
                let listed: BTreeSet<u64> = names.iter().map(|(_, object)| *object).collect();
                let owned = names_of.remove(&phys.dir_obj).unwrap_or_default();
                if listed != owned {
                    self.problems.push(format!("I4 {object}: {listed:?}, computed {owned:?}"));
                }
            }
        }
        Ok(())
    }

    /// Deadlists contain the blocks that the previous dataset has and this one does not, in the
    /// right bpobjs (§10.1) and with the right keys (§10.2).
    async fn deadlists(&mut self) -> Result<()> {
        let objects: Vec<u64> = self.datasets.keys().copied().collect();
        for object in objects {
            let phys = self.datasets[&object].phys.clone();
            let list = Deadlist::open(self.pool.mos(), phys.deadlist_obj).await?;
            let entries = list.entries().expect("a new deadlist").iter();
            let entries: Vec<_> = entries.map(|(key, bpobj)| (*key, *bpobj)).collect();
            let mut dead: Vec<(Sizes, u64)> = Vec::new();
            if phys.prev_snap_obj != 0 {
                let before = &self.datasets[&phys.prev_snap_obj].blocks;
                let own = &self.datasets[&object].blocks;
                let gone = before.iter().filter(|(id, _)| !own.contains_key(*id));
                dead.extend(gone.map(|(_, block)| *block));
            }
            let Space { used, comp, uncomp } = list.sums();
            let total = [used as i64, comp as i64, uncomp as i64];
            self.check(format!("deadlist of {object}"), total, sum(dead.iter()));
            for (index, (key, bpobj)) in entries.iter().enumerate() {
                let end = entries.get(index + 1).map_or(u64::MAX, |(key, _)| *key);
                let here = dead.iter().filter(|(_, birth)| *birth > *key && *birth <= end);
                let want = sum(here);
                let bpobj = Bpobj::open(self.pool.mos(), *bpobj).await?;
                let (mut got, mut births) = ([0; 3], Vec::new());
                let pool = self.pool;
                bpobj
                    .for_each(|bp| {
                        add(&mut got, sizes_of(pool, bp));
                        births.push(bp.allocation_birth());
                        Ok(())
                    })
                    .await?;
                self.check(format!("deadlist of {object}, key {key}"), got, want);
                let header = [bpobj.phys().bytes, bpobj.phys().comp, bpobj.phys().uncomp];
                self.check(format!("bpobj of {object}, key {key}"), header.map(|s| s as i64), got);
                if births.iter().any(|birth| *birth <= *key || *birth > end) {
                    self.problems.push(format!("deadlist of {object}: births beside key {key}"));
                }
            }
            self.keys(object, &entries.iter().map(|(key, _)| *key).collect());
        }
        Ok(())
    }

    fn keys(&mut self, object: u64, keys: &BTreeSet<u64>) {
        let phys = self.datasets[&object].phys.clone();
        let mut want = BTreeSet::new();
        if phys.prev_snap_txg > 0 {
            want.insert(0);
            let mut at = phys.prev_snap_obj;
            while at != 0 {
                let prev = &self.datasets[&at].phys;
                want.insert(prev.creation_txg);
                at = prev.prev_snap_obj;
            }
            let head = self.dirs[&phys.dir_obj].phys.head_dataset_obj;
            for (_, mark) in &self.datasets[&head].bookmarks {
                if mark.flags.contains(BookmarkFlags::HAS_FBN) {
                    want.insert(mark.creation_txg);
                }
            }
            want.retain(|key| *key < phys.prev_snap_txg);
        }
        if !keys.is_superset(&want) {
            self.problems.push(format!("keys of {object}: {keys:?}, computed {want:?}"));
        }
    }

    fn origin_txg(&self, node: &Node) -> u64 {
        match self.datasets.get(&node.phys.origin_obj) {
            Some(origin) if origin.phys.prev_snap_obj != 0 => origin.phys.creation_txg,
            _ => 0,
        }
    }

    /// Returns the distinct blocks of a dir born after its origin: of the head, and of snapshots
    /// only.
    fn own_blocks(&self, object: u64) -> (Sizes, Sizes) {
        let node = &self.dirs[&object];
        let Some(head) = self.datasets.get(&node.phys.head_dataset_obj) else {
            return ([0; 3], [0; 3]);
        };
        let after = self.origin_txg(node);
        let of_head = sum(head.blocks.values().filter(|(_, birth)| *birth > after));
        let mut others = BlockSet::new();
        for member in self.datasets.values() {
            if member.phys.dir_obj == object && member.phys.is_snapshot() {
                let own = member
                    .blocks
                    .iter()
                    .filter(|(id, (_, birth))| *birth > after && !head.blocks.contains_key(*id));
                others.extend(own.map(|(id, block)| (*id, *block)));
            }
        }
        (of_head, sum(others.values()))
    }

    /// §17.2, I3, §18.
    async fn dirs(&mut self) -> Result<()> {
        let objects: Vec<u64> = self.dirs.keys().copied().collect();
        for object in objects {
            let node = &self.dirs[&object];
            let (phys, refreservation) = (node.phys, node.refreservation);
            let (of_head, of_snapshots) = self.own_blocks(object);
            let words = phys.breakdown;
            let (mut children, mut reserved) = ([0; 3], 0);
            for (name, child) in node.children.clone() {
                let child = &self.dirs[&child];
                let used = child.phys.used_bytes;
                add(
                    &mut children,
                    [
                        used as i64,
                        child.phys.compressed_bytes as i64,
                        child.phys.uncompressed_bytes as i64,
                    ],
                );
                reserved += child.phys.reserved.saturating_sub(used);
                let parent = child.phys.parent_obj;
                self.check(format!("parent of {name}"), parent, object);
            }
            let label = |what: &str| format!("{what} of dir {object}");
            self.check(label("CHILD"), words.child as i64, children[0]);
            self.check(label("CHILD_RSRV"), words.child_reserved, reserved);
            let all =
                [words.head, words.snap, words.child, words.child_reserved, words.refreserved];
            self.check(label("used"), phys.used_bytes, all.iter().sum());
            let origin = self.datasets.get(&phys.head_dataset_obj);
            if let Some(head) = origin {
                let unfilled = refreservation.saturating_sub(head.phys.unique_bytes);
                self.check(label("REFRSRV"), words.refreserved, unfilled);
                self.check(label("HEAD"), words.head as i64, of_head[0]);
                self.check(label("SNAP"), words.snap as i64, of_snapshots[0]);
                let mut own = of_head;
                add(&mut own, of_snapshots);
                add(&mut own, children);
                let stored = [phys.compressed_bytes as i64, phys.uncompressed_bytes as i64];
                self.check(label("sizes"), stored, [own[1], own[2]]);
            }
            let mut clones = BTreeSet::new();
            for other in self.dirs.values() {
                let origin = self.datasets.get(&other.phys.origin_obj);
                if origin.is_some_and(|origin| origin.phys.dir_obj == object) {
                    clones.insert(other.phys.head_dataset_obj);
                }
            }
            let stored = numbers(self.pool, phys.clones).await?;
            self.check(format!("I3 clones of dir {object}"), stored, clones);
            self.counts(object).await?;
        }
        Ok(())
    }

    fn count_below(&self, object: u64) -> (u64, u64) {
        let node = &self.dirs[&object];
        let own = self.datasets.values();
        let own = own.filter(|m| m.phys.dir_obj == object && m.phys.is_snapshot()).count() as u64;
        let (mut filesystems, mut snapshots) = (0, own);
        for (name, child) in &node.children {
            if !name.starts_with('$') {
                let (below, theirs) = self.count_below(*child);
                filesystems += 1 + below;
                snapshots += theirs;
            }
        }
        (filesystems, snapshots)
    }

    async fn counts(&mut self, object: u64) -> Result<()> {
        if !self.dirs[&object].is_zapified {
            return Ok(());
        }
        let zap = Zap::open(self.pool.mos(), object).await?;
        let (filesystems, snapshots) = self.count_below(object);
        for (key, want) in [(key::FILESYSTEM_COUNT, filesystems), (key::SNAPSHOT_COUNT, snapshots)]
        {
            if let Some(got) = zap.lookup_u64(key).await? {
                self.check(format!("{key} of dir {object}"), got, want);
            }
        }
        Ok(())
    }

    /// `$MOS` is charged for the MOS, `$FREE` for queued frees.
    async fn special_dirs(&mut self) -> Result<()> {
        let pool = self.pool;
        let root = pool.root_dir().object;
        let children = self.dirs[&root].children.clone();
        let find = |name: &str| children.iter().find(|(n, _)| n == name).unwrap().1;
        let sizes = |dir: &DirPhys| {
            [dir.used_bytes as i64, dir.compressed_bytes as i64, dir.uncompressed_bytes as i64]
        };
        let mut collect = Collect { pool, blocks: BlockSet::new(), damage: Vec::new() };
        let options = traverse::Options::default();
        traverse::tree(pool, &pool.uberblock().rootbp, 0, options, &mut collect).await?;
        let mos = sizes(&self.dirs[&find("$MOS")].phys);
        self.check("$MOS", mos, sum(collect.blocks.values()));

        let free = Bpobj::open(pool.mos(), pool.directory_object(key::FREE_BPOBJ).unwrap()).await?;
        let mut waiting =
            [free.phys().bytes, free.phys().comp, free.phys().uncomp].map(|size| size as i64);
        let queue = pool.directory_object(key::BPTREE_OBJ).filter(|object| *object != 0);
        let is_active = pool.features().is_active("async_destroy");
        self.check("async_destroy", is_active, queue.is_some());
        if let Some(queue) = queue {
            let queue = Bptree::open(pool.mos(), queue).await?;
            let phys = *queue.phys();
            add(&mut waiting, [phys.bytes, phys.comp, phys.uncomp].map(|size| size as i64));
        }
        self.check("$FREE", sizes(&self.dirs[&find("$FREE")].phys), waiting);
        Ok(())
    }

    /// Refcounts.
    async fn features(&mut self) -> Result<()> {
        let pool = self.pool;
        let mut want: BTreeMap<&str, u64> = BTreeMap::new();
        let shared = pool.directory_object(key::EMPTY_BPOBJ);
        for name in ["extensible_dataset", "bookmarks", "bookmark_v2", "bookmark_written"] {
            want.insert(name, 0);
        }
        want.insert("empty_bpobj", 0);
        for feature in FEATURES.iter().filter(|f| f.flags.contains(FeatureFlags::PER_DATASET)) {
            want.insert(feature.name, 0);
        }
        let mut bump = |name: &'static str, more: u64| *want.entry(name).or_default() += more;
        bump("extensible_dataset", self.dirs.values().filter(|n| n.is_zapified).count() as u64);
        for (object, member) in &self.datasets {
            if member.is_zapified {
                bump("extensible_dataset", 1);
                let zap = Zap::open(pool.mos(), *object).await?;
                for feature in &FEATURES {
                    if feature.flags.contains(FeatureFlags::PER_DATASET)
                        && zap.lookup(feature.guid).await?.is_some()
                    {
                        bump(feature.name, 1);
                    }
                }
            }
            bump("bookmarks", u64::from(!member.bookmarks.is_empty()));
            for (_, mark) in &member.bookmarks {
                bump("bookmark_v2", u64::from(mark.word_count > 3));
                let has_sums = mark.flags.contains(BookmarkFlags::HAS_FBN);
                bump("bookmark_written", u64::from(has_sums));
            }
            let list = Deadlist::open(pool.mos(), member.phys.deadlist_obj).await?;
            if let Some(entries) = list.entries() {
                let empty = entries.values().filter(|bpobj| Some(**bpobj) == shared).count();
                bump("empty_bpobj", empty as u64);
            }
        }
        for (name, want) in want {
            let guid = by_name(name).unwrap().guid;
            let got = pool.features().entry(guid).map_or(0, |entry| entry.refcount);
            self.check(format!("count of feature {name}"), got, want);
        }
        Ok(())
    }

    /// "Freed before next" of bookmarks, computed from the blocks of their snapshots.
    fn bookmarks(&mut self, seen: &BTreeMap<u64, BlockSet>) {
        let mut checks = Vec::new();
        for (object, member) in &self.datasets {
            for (name, mark) in &member.bookmarks {
                let Some(blocks) = seen.get(&mark.guid) else { continue };
                if !mark.flags.contains(BookmarkFlags::HAS_FBN) {
                    continue;
                }
                let referenced = sum(blocks.values());
                let stored = mark.referenced.map(|size| size as i64);
                checks.push((format!("sizes of #{name} of {object}"), stored, referenced));
                // The first dataset after that point.
                let (mut next, mut at) = (*object, member.phys.prev_snap_obj);
                while at != 0 && self.datasets[&at].phys.creation_txg > mark.creation_txg {
                    next = at;
                    at = self.datasets[&at].phys.prev_snap_obj;
                }
                if self.datasets[&next].phys.dir_obj != member.phys.dir_obj {
                    // A point of an origin's line, which continues without this bookmark.
                    continue;
                }
                let after = &self.datasets[&next].blocks;
                let gone = blocks.iter().filter(|(id, _)| !after.contains_key(*id));
                let gone = sum(gone.map(|(_, block)| block));
                let stored = mark.freed_before_next.map(|size| size as i64);
                checks.push((format!("FBN of #{name} of {object}"), stored, gone));
            }
        }
        for (what, got, want) in checks {
            self.check(what, got, want);
        }
    }
}
