//! Single bit flips on mirror, RAID-Z and dRAID pools: verify finds each one in an allocated copy,
//! data column or parity column, with leaf and byte, and nothing else.
//!
//! The expected finding follows from the traversal and the vdevs' geometry. Half of the flips are
//! in allocated space, since pools are mostly empty. Two kinds may be found or not: padding after a
//! block in the last sector of a mirror's copy, and blocks of intent logs, which may never have
//! been written.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::Pool;
use cenote_pool::traverse::{self, Damage as Unreachable, Flow, Options, Visitor};
use cenote_pool::verify::Finding;
use cenote_rt::Result;
use cenote_testkit::damage::{Damage, SECTOR_BYTES};
use cenote_testkit::{golden, rng};

use super::{open, verify};

const POOLS: [&str; 6] = ["g-codecs", "g-raidz1", "g-raidz2", "g-raidz3", "g-draid", "g-expand"];

/// First byte of a leaf's data area.
const DATA_START: u64 = 4 << 20;
const TAIL: u64 = 512 << 10;

/// A range of a leaf.
#[derive(Debug, Clone)]
struct Stretch {
    path: String,
    start: u64,
    end: u64,
    /// Whether verify must find a flip in it.
    is_certain: bool,
}

/// The ranges of all blocks on leaves.
struct Stretches {
    pool: Arc<Pool>,
    all: Vec<Stretch>,
}

impl Visitor for Stretches {
    async fn block(&mut self, bp: &BlockPtr, _place: &Bookmark) -> Result<Flow> {
        let tree = self.pool.tree();
        for dva in bp.dvas() {
            assert!(!dva.gang, "no pool here has gang blocks");
            let is_striped = tree.top(dva.vdev.into()).unwrap().nparity() > 0;
            let is_certain = bp.object_type() != ObjectType::INTENT_LOG;
            for range in tree.leaf_ranges(dva, bp.psize(), bp.physical_birth()) {
                let path = tree.leaf(range.leaf).path().to_owned();
                let end = range.offset + range.len;
                let certain_end = if is_striped { end } else { range.offset + bp.psize() };
                let start = range.offset;
                self.all.push(Stretch { path: path.clone(), start, end: certain_end, is_certain });
                if certain_end < end {
                    self.all.push(Stretch { path, start: certain_end, end, is_certain: false });
                }
            }
        }
        Ok(Flow::Continue)
    }

    fn damage(&mut self, damage: Unreachable) {
        panic!("{damage:?}");
    }
}

async fn findings(pool: &Arc<Pool>) -> Vec<Finding> {
    pool.store().clear_cache();
    verify(pool).await.1
}

/// Whether a finding names this byte.
fn names(finding: &Finding, path: &str, offset: u64) -> bool {
    match finding {
        Finding::Part { part, .. } => {
            let child = &part.child;
            child.path == path && (child.offset..child.offset + child.len).contains(&offset)
        }
        _ => false,
    }
}

async fn check(stretches: &Stretches, path: &Path, offset: u64, bit: u8) -> bool {
    let name = path.to_string_lossy();
    let hit = stretches
        .all
        .iter()
        .filter(|stretch| stretch.path == name && (stretch.start..stretch.end).contains(&offset));
    let (mut must, mut may) = (false, false);
    for stretch in hit {
        must |= stretch.is_certain;
        may |= !stretch.is_certain;
    }
    let damage = Damage::FlipBit { offset, bit };
    damage.apply(path);
    let found = findings(&stretches.pool).await;
    // Flipping the same bit again restores the byte.
    damage.apply(path);
    if must {
        assert!(!found.is_empty(), "{name}: {damage}: not found");
        assert!(
            found.iter().all(|finding| names(finding, &name, offset)),
            "{name}: {damage}: {found:#?}"
        );
    } else if !may {
        assert!(found.is_empty(), "{name}: {damage}: in free space, and found: {found:#?}");
    }
    must
}

#[test]
fn verify_finds_every_flipped_bit_of_a_block() {
    let mut rng = rng::seeded("flips", 0x5eed_f11b);
    let cases = rng::cases(60, 1000);
    let pools: Vec<_> = POOLS.iter().filter_map(|name| golden(name)).collect();
    let (mut hits, mut all) = (0, 0);
    for (index, golden) in pools.iter().enumerate() {
        let count = pools.len() as u64;
        let own = cases / count + u64::from((index as u64) < cases % count);
        let copy = golden.private_copy();
        let devices: Vec<PathBuf> = copy.devices();
        cenote_rt::block_on(2, async {
            let pool = open(copy.path(), golden.name()).await;
            let mut stretches = Stretches { pool: Arc::clone(&pool), all: Vec::new() };
            traverse::pool(&pool, Options::default(), &mut stretches).await.unwrap();
            assert!(findings(&pool).await.is_empty(), "{}", golden.name());
            for _ in 0..own {
                let (path, offset) = if rng.below(2) == 0 {
                    let device = &devices[rng.below(devices.len() as u64) as usize];
                    let size = std::fs::metadata(device).unwrap().len();
                    let sectors = (size - TAIL - DATA_START) / SECTOR_BYTES;
                    (device.clone(), DATA_START + rng.below(sectors) * SECTOR_BYTES)
                } else {
                    let stretch = &stretches.all[rng.below(stretches.all.len() as u64) as usize];
                    let sectors = (stretch.end - stretch.start).div_ceil(SECTOR_BYTES);
                    let sector = stretch.start + rng.below(sectors) * SECTOR_BYTES;
                    (PathBuf::from(&stretch.path), sector)
                };
                let offset = offset + rng.below(SECTOR_BYTES);
                hits += u64::from(check(&stretches, &path, offset, rng.below(8) as u8).await);
                all += 1;
            }
        })
        .unwrap();
    }
    println!("{all} flips, {hits} in allocated space");
    assert!(pools.is_empty() || hits > all / 3);
}
