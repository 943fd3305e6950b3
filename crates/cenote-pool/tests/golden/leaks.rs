//! The leak check on pools with planted faults: each is found with vdev, offset and size, and
//! nothing else is reported. The results are compared with those of the real zdb, if installed.
//!
//! Faults are planted by editing a block and the checksums above it ([`cenote_testkit::edit`]). The
//! pool `pending` has gang blocks, a destroyed file system that is being freed, and a deleted clone
//! with its livelist (`fixtures/tools/pendingpool.py`); the pool `dedup` has tables whose entries
//! changed later (`fixtures/tools/deduppool.py`); a device of the pool `removing` is partly removed
//! (`fixtures/tools/removingpool.py`).

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_dmu::{SpaceMap, Zap};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dsl::key;
use cenote_ondisk::spacemap::{Action, Entry, Geometry, Item};
use cenote_pool::import::{self, ScanOptions};
use cenote_pool::leaks::{self, LeakReport, Segment};
use cenote_pool::spacemaps::{self, RangeSet, Unflushed};
use cenote_pool::traverse::{self, Damage, Flow, Options, Visitor};
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::Result;
use cenote_testkit::edit::{Editor, Set};
use cenote_testkit::golden::{PrivateFolder, images_in};
use cenote_testkit::unpack;

/// A writable copy of a pool's images.
struct Copy {
    folder: PrivateFolder,
    name: &'static str,
}

impl Copy {
    fn of(name: &'static str) -> Option<Self> {
        let source = match name {
            "pending" | "dedup" | "removing" => {
                let packed = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(name);
                unpack::unpacked(name, &packed)
            }
            _ => cenote_testkit::golden(name)?.images(),
        };
        let folder = PrivateFolder::create(name);
        for image in images_in(&source) {
            unpack::copy_sparse(&image, &folder.path().join(image.file_name().unwrap()));
        }
        Some(Self { folder, name })
    }

    fn images(&self) -> Vec<PathBuf> {
        images_in(self.folder.path())
    }

    fn editor(&self) -> Editor {
        Editor::open(&self.images())
    }

    async fn open(&self) -> Arc<Pool> {
        let paths = vec![self.folder.path().to_path_buf()];
        let scan = import::scan(&ScanOptions { paths }).await.unwrap();
        Pool::open(scan.find(self.name).unwrap(), &OpenOptions::default()).await.unwrap()
    }

    async fn check(&self) -> LeakReport {
        leaks::check(&self.open().await).await.unwrap()
    }

    /// Compares the leaked ranges with those of the real zdb, if installed.
    fn ask_zdb(&self, leaked: &[Segment]) {
        let Some(zdb) = cenote_oracle::zdb() else { return };
        let said = zdb.pool(self.name, self.folder.path(), &["-b"]);
        let mut theirs: Vec<&str> =
            said.stdout.lines().filter(|line| line.starts_with("leaked space")).collect();
        let mut ours: Vec<String> = leaked
            .iter()
            .map(|&Segment { vdev, start, end }| {
                format!("leaked space: vdev {vdev}, offset {start:#x}, size {}", end - start)
            })
            .collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, theirs, "{said}");
    }
}

fn run<T>(work: impl Future<Output = T>) -> T {
    cenote_rt::block_on(2, work).unwrap()
}

fn segment(vdev: u64, start: u64, size: u64) -> Segment {
    Segment { vdev, start, end: start + size }
}

/// Joins adjacent segments, in order.
fn joined(segments: impl IntoIterator<Item = Segment>) -> Vec<Segment> {
    let mut sets: std::collections::BTreeMap<u64, RangeSet> = std::collections::BTreeMap::new();
    for segment in segments {
        sets.entry(segment.vdev).or_default().add(segment.start..segment.end);
    }
    let all = sets.iter().flat_map(|(vdev, set)| {
        set.iter().map(|range| Segment { vdev: *vdev, start: range.start, end: range.end })
    });
    all.collect()
}

/// An ALLOC entry that no other entry of its map overlaps.
struct Spot {
    vdev: u64,
    object: u64,
    word: usize,
    entry: Entry,
    unit: u64,
}

/// Entries of a map with the indices of their words.
async fn items(pool: &Pool, object: u64, geometry: Geometry) -> Vec<(usize, Entry)> {
    let (mut found, mut word) = (Vec::new(), 0);
    let map = SpaceMap::open(pool.mos(), object).await.unwrap();
    map.for_each(geometry, |item| {
        if let Item::Entry(entry) = item {
            found.push((word, entry));
            word += usize::from(entry.vdev.is_some());
        }
        word += 1;
        Ok(())
    })
    .await
    .unwrap();
    found
}

/// Finds an entry whose length can be changed by one unit so that only one range is wrong.
fn choose(all: &[(usize, Entry)], allocated: &RangeSet, unit: u64) -> Option<(usize, Entry)> {
    let suits = |(word, entry): &&(usize, Entry)| {
        let &Entry { action, offset, size, vdev } = entry;
        let end = offset + size;
        let others = all.iter().filter(|(other, _)| other != word);
        let is_alone = others
            .filter(|(_, other)| other.vdev == vdev || vdev.is_none() || other.vdev.is_none())
            .all(|(_, other)| other.offset + other.size <= offset || other.offset > end + unit);
        let is_there = allocated.iter().any(|range| range.start <= offset && range.end == end);
        action == Action::Alloc && size >= 2 * unit && is_alone && is_there
    };
    all.iter().find(suits).copied()
}

/// Finds a suitable entry in a metaslab's own space map.
async fn spot_in_map(pool: &Pool) -> Option<Spot> {
    let space = pool.space().await.unwrap();
    let unflushed = Unflushed::load(pool, &space.vdevs, |_, _| true).await.unwrap();
    for vdev in space.vdevs.iter().filter(|vdev| vdev.is_concrete) {
        for (number, metaslab) in (0..).zip(&vdev.metaslabs) {
            if metaslab.space_map == 0 {
                continue;
            }
            let geometry = spacemaps::geometry(pool, vdev, metaslab);
            let (object, unit) = (metaslab.space_map, 1 << geometry.shift);
            let all = items(pool, object, geometry).await;
            let (allocated, faults) =
                spacemaps::allocated(pool, vdev, number, &unflushed).await.unwrap();
            assert!(faults.is_empty());
            if let Some((word, entry)) = choose(&all, &allocated, unit) {
                return Some(Spot { vdev: vdev.id, object, word, entry, unit });
            }
        }
    }
    None
}

/// Finds a suitable entry in a log.
async fn spot_in_log(pool: &Pool) -> Option<Spot> {
    let space = pool.space().await.unwrap();
    let unflushed = Unflushed::load(pool, &space.vdevs, |_, _| true).await.unwrap();
    let vdev = &space.vdevs[0];
    let mut allocated = RangeSet::default();
    for number in 0..vdev.metaslabs.len() as u64 {
        let (ranges, _) = spacemaps::allocated(pool, vdev, number, &unflushed).await.unwrap();
        for range in ranges.iter() {
            allocated.add(range);
        }
    }
    let unit = 1 << spacemaps::geometry(pool, vdev, &vdev.metaslabs[0]).shift;
    for (txg, object) in spacemaps::logs(pool).await.unwrap() {
        let mut all = items(pool, object, Geometry::LOG).await;
        all.retain(|(_, entry)| {
            let number = (entry.offset >> vdev.metaslab_shift) as usize;
            entry.vdev == Some(0) && txg >= vdev.metaslabs[number].unflushed_txg
        });
        if let Some((word, entry)) = choose(&all, &allocated, unit) {
            return Some(Spot { vdev: 0, object, word, entry, unit });
        }
    }
    None
}

/// Changes the length of an entry by `units`.
fn lengthen(editor: &mut Editor, spot: &Spot, units: i64) {
    let block_len = editor.read(Set::Mos, spot.object, 0).len();
    let (blkid, at) = (spot.word * 8 / block_len, spot.word * 8 % block_len);
    editor.change(Set::Mos, spot.object, blkid as u64, |words| {
        let word = u64::from_le_bytes(*words[at..].first_chunk().unwrap());
        let by = if spot.entry.vdev.is_some() { units << 24 } else { units };
        let new = word.wrapping_add_signed(by);
        words[at..at + 8].copy_from_slice(&new.to_le_bytes());
    });
}

/// Plants a leak and then a block in free space at the entry.
async fn plant_both(copy: &Copy, spot: Spot) {
    let Entry { offset, size, .. } = spot.entry;
    let mut editor = copy.editor();
    lengthen(&mut editor, &spot, 1);
    let report = copy.check().await;
    let leaked = [segment(spot.vdev, offset + size, spot.unit)];
    assert_eq!(report.leaked.listed, leaked, "{:#?}", report.lines());
    assert_eq!(report.leaked.bytes, spot.unit);
    assert_eq!((report.unallocated.count, report.doubles.count), (0, 0));
    assert!(report.faults.is_empty() && report.damage.is_empty(), "{:#?}", report.lines());
    let line = format!(
        "leaked space: vdev {}, offset {:#x}, size {}",
        spot.vdev,
        offset + size,
        spot.unit
    );
    assert!(report.lines().contains(&line));
    copy.ask_zdb(&leaked);

    lengthen(&mut editor, &spot, -2);
    let report = copy.check().await;
    let free = [segment(spot.vdev, offset + size - spot.unit, spot.unit)];
    assert_eq!(report.unallocated.listed, free, "{:#?}", report.lines());
    assert_eq!((report.leaked.count, report.doubles.count), (0, 0));
    assert!(!report.is_clean());

    lengthen(&mut editor, &spot, 1);
    assert!(copy.check().await.is_clean());
}

#[test]
fn leaked_space_and_blocks_in_free_space_are_found() {
    for name in ["g-basic", "g-codecs", "g-zvol", "g-legacy"] {
        let Some(copy) = Copy::of(name) else { continue };
        run(async {
            let pool = copy.open().await;
            assert!(leaks::check(&pool).await.unwrap().is_clean(), "{name}");
            let spot = spot_in_map(&pool).await;
            plant_both(&copy, spot.unwrap_or_else(|| panic!("{name}: no entry suits"))).await;
        });
    }
}

#[test]
fn faults_in_log_space_maps_are_found() {
    let Some(copy) = Copy::of("pending") else { return };
    run(async {
        let pool = copy.open().await;
        let spot = spot_in_log(&pool).await;
        plant_both(&copy, spot.expect("a log with an entry that suits")).await;
    });
}

/// Data blocks of heads and snapshots.
struct Blocks(Vec<(BlockPtr, Bookmark)>);

impl Visitor for Blocks {
    async fn block(&mut self, bp: &BlockPtr, place: &Bookmark) -> Result<Flow> {
        let is_data = bp.level() == 0 && !bp.object_type().is_metadata() && place.object != 0;
        if is_data && place.objset != traverse::MOS && place.level == 0 && !bp.is_embedded() {
            self.0.push((*bp, *place));
        }
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Damage) {
        panic!("{damage:?}");
    }
}

/// Returns all space of a block: its members, and headers of one sector.
async fn space_of(pool: &Pool, bp: &BlockPtr) -> Vec<Segment> {
    let own = bp.dvas().map(|dva| {
        let size = if dva.gang { 512 } else { dva.asize };
        segment(dva.vdev.into(), dva.offset, size)
    });
    let mut all: Vec<Segment> = own.collect();
    if bp.is_gang() {
        for member in pool.store().gang_members(bp, &cenote_block::Grounds::Offline).await.unwrap()
        {
            all.extend(Box::pin(space_of(pool, &member)).await);
        }
    }
    all
}

/// Changes a block pointer so that it points at another block: one block is leaked, the other
/// claimed twice.
#[test]
fn block_claimed_twice_is_found() {
    type Suits = fn(&BlockPtr) -> bool;
    let cases: [(&str, Suits); 3] = [
        ("g-basic", |bp| !bp.is_gang()),
        ("g-codecs", |bp| bp.dva_count() > 1),
        ("pending", BlockPtr::is_gang),
    ];
    for (name, suits) in cases {
        let Some(copy) = Copy::of(name) else { continue };
        run(async {
            let pool = copy.open().await;
            let mut blocks = Blocks(Vec::new());
            traverse::pool(&pool, Options::default(), &mut blocks).await.unwrap();
            blocks.0.retain(|(bp, _)| suits(bp));
            let (lost, place) = blocks.0[0];
            let (twice, _) = *blocks.0.last().unwrap();
            assert_ne!(lost.dva(0), twice.dva(0));
            let (wanted_lost, wanted_twice) =
                (space_of(&pool, &lost).await, space_of(&pool, &twice).await);
            drop(pool);
            let set = Set::Dataset(place.objset);
            copy.editor().redirect(set, place.object, place.blkid, &twice);
            let report = copy.check().await;
            let leaked = report.leaked.listed.clone();
            assert_eq!(leaked, joined(wanted_lost), "{name}: {:#?}", report.lines());
            assert_eq!(joined(report.doubles.listed.clone()), joined(wanted_twice), "{name}");
            assert_eq!(report.unallocated.count, 0, "{name}");
            let Segment { vdev, start, end } = report.doubles.listed[0];
            let line = format!(
                "space of two blocks: vdev {vdev}, offset {start:#x}, size {}",
                end - start
            );
            assert!(report.lines().contains(&line), "{name}: {:#?}", report.lines());
        });
    }
}

#[test]
fn unfinished_frees_and_gang_blocks_are_no_leak() {
    let Some(copy) = Copy::of("pending") else { return };
    run(async {
        let pool = copy.open().await;
        assert!(pool.directory_object(key::BPTREE_OBJ).is_some());
        assert!(pool.directory_object(key::DELETED_CLONES).is_some());
        let report = leaks::check(&pool).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.lines());
        assert_eq!(report.found(), report.allocated);
    });
    copy.ask_zdb(&[]);
}

/// A partly freed file system: only blocks that are not freed yet are claimed.
#[test]
fn destroyed_file_system_is_claimed_from_its_resume_bookmark() {
    /// Range of the resume bookmark in an entry.
    const RESUME: std::ops::Range<usize> = 136..168;
    let Some(copy) = Copy::of("pending") else { return };
    run(async {
        let object = copy.open().await.directory_object(key::BPTREE_OBJ).unwrap();
        let mut editor = copy.editor();
        let mut resume = [0; 32];
        editor.change(Set::Mos, object, 0, |entry| {
            resume.copy_from_slice(&entry[RESUME]);
            entry[RESUME].fill(0);
        });
        assert_ne!(resume, [0; 32]);
        let report = copy.check().await;
        assert!(report.unallocated.bytes > 0 && report.leaked.count == 0, "{:#?}", report.lines());

        // One object further: the blocks of an object are not claimed and count as leaked.
        let mut further = resume;
        further[8] += 1;
        editor.change(Set::Mos, object, 0, |entry| entry[RESUME].copy_from_slice(&further));
        let report = copy.check().await;
        assert!(report.leaked.bytes > 0 && report.unallocated.count == 0, "{:#?}", report.lines());
        copy.ask_zdb(&report.leaked.listed);

        // The entry claims to be finished.
        editor.change(Set::Mos, object, 0, |entry| entry[RESUME].copy_from_slice(&resume));
        editor.change_bonus(Set::Mos, object, |header| {
            header.copy_within(8..16, 0);
            header[16..40].fill(0);
        });
        let report = copy.check().await;
        assert!(report.leaked.bytes > 0 && report.unallocated.count == 0, "{:#?}", report.lines());
        copy.ask_zdb(&report.leaked.listed);
    });
}

/// A deleted clone: blocks that its livelist has as freed are not claimed.
#[test]
fn livelist_of_a_deleted_clone_is_claimed() {
    /// Offset of the word of a pointer whose lowest bit marks a FREE.
    const FREED_AT: usize = 11 * 8;
    let Some(copy) = Copy::of("pending") else { return };
    run(async {
        let pool = copy.open().await;
        let object = pool.directory_object(key::DELETED_CLONES).unwrap();
        let clone = Zap::open(pool.mos(), object).await.unwrap().entries().next().await;
        let livelist = clone.unwrap().unwrap().value.first().unwrap();
        let mut entries = Zap::open(pool.mos(), livelist).await.unwrap().entries();
        let mut lists = Vec::new();
        while let Some(entry) = entries.next().await.unwrap() {
            lists.push(entry.value.first().unwrap());
        }
        // A list with a block that was not freed.
        let mut editor = copy.editor();
        let mut planted = None;
        for list in lists {
            if pool.mos().dnode(list).await.unwrap().phys().blkptrs[0].is_hole() {
                continue;
            }
            let block = editor.read(Set::Mos, list, 0);
            let all: Vec<BlockPtr> =
                BlockPtr::all_in(&block).take_while(|bp| !bp.is_hole()).collect();
            let is_freed = |bp: &BlockPtr| bp.words()[11] & 1 == 1;
            let freed = |bp: &BlockPtr| {
                all.iter().any(|other| is_freed(other) && other.dva(0) == bp.dva(0))
            };
            if let Some(index) = all.iter().position(|bp| !is_freed(bp) && !freed(bp)) {
                planted = Some((list, index, all[index]));
                break;
            }
        }
        let (list, index, bp) = planted.expect("a block that waits to be freed");
        let wanted = space_of(&pool, &bp).await;
        editor.change(Set::Mos, list, 0, |block| block[index * 128 + FREED_AT] |= 1);
        let report = copy.check().await;
        assert_eq!(report.leaked.listed, joined(wanted), "{:#?}", report.lines());
    });
}

/// A dedup entry grows with `copies`: older pointers without the later addresses reference all of
/// them. Entries without references stay in the log, with their blocks; OpenZFS's checker reports
/// those as leaked.
#[test]
fn dedup_entries_with_more_copies_or_no_references_are_no_leak() {
    let Some(copy) = Copy::of("dedup") else { return };
    run(async {
        let pool = copy.open().await;
        let report = leaks::check(&pool).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.lines());
        assert_eq!(report.found(), report.allocated);
        assert_eq!(report.unreferenced, 6 * 4096);
        let mut blocks = Blocks(Vec::new());
        traverse::pool(&pool, Options::default(), &mut blocks).await.unwrap();
        let deduped = blocks.0.iter().map(|(bp, _)| bp).filter(|bp| bp.is_dedup());
        let mut counts = std::collections::BTreeMap::<_, Vec<usize>>::new();
        for bp in deduped {
            counts.entry(bp.dva(0).map(|dva| dva.offset)).or_default().push(bp.dva_count());
        }
        // A pointer with fewer addresses than the entry.
        let grew = counts.values().filter(|counts| counts.first() < counts.last()).count();
        assert_eq!(grew, 6, "{counts:?}");
    });
    if let Some(zdb) = cenote_oracle::zdb() {
        let said = zdb.pool("dedup", copy.folder.path(), &["-b"]);
        assert!(said.has_leaks_only(), "{said}");
        assert_eq!(said.leaked(), 6 * 4096, "{said}");
    }
}

/// Blocks copied from a device that is being removed are allocated twice.
#[test]
fn running_device_removal_is_no_leak() {
    let Some(copy) = Copy::of("removing") else { return };
    run(async {
        let pool = copy.open().await;
        let leaving = &pool.config().vdev_tree.children[1].top;
        assert!(leaving.removing && leaving.indirect_object.is_some());
        let report = leaks::check(&pool).await.unwrap();
        assert!(report.is_clean(), "{:#?}", report.lines());
        // The copies are claimed but not counted as found.
        assert!(report.allocated > report.found() + (1 << 20));
    });
    copy.ask_zdb(&[]);
}
