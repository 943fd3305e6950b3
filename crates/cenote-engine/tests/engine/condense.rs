//! Mappings of removed vdevs are condensed (spec 05 §11): entries in use stay, with a crash at any
//! point, beside frees and views; OpenZFS goes on with what was begun here.

use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Image, Recorder, Replay};
use cenote_ondisk::indirect::{CONDENSING_INDIRECT, CondensingPhys};
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{self, as_devices};
use cenote_rt::{Kind, Rng, block_on, simulate, tunables};
use cenote_testkit::cuts;

use crate::removals::{Batches, mirrors, pool_of};
use crate::scans::{BLOCKS, Fixture, verify_of};

/// A pool from which the vdev with most of both file systems was removed in small segments, so that its
/// mapping has many entries. The mapping is to be condensed as soon as a quarter of it is obsolete.
async fn pool_after_removal(builder: &PoolBuilder, width: usize) -> Fixture {
    let _small = Batches::of(64 << 10);
    tunables::CONDENSE_MIN_MAPPING_BYTES.set(0).unwrap();
    let mut pool = pool_of(builder).await;
    let (most, _) = pool.vdev_with_most(&["tank/a", "tank/b"]).await;
    pool.remove(most).await;
    pool.devices.drain(most * width..(most + 1) * width);
    pool
}

impl Fixture {
    fn entries(&self) -> usize {
        (0..4).filter_map(|id| self.engine.tree().indirect(id)).map(|map| map.entries().len()).sum()
    }

    /// Frees most of what was on the removed vdev, until its mapping is condensed.
    async fn make_obsolete(&self) {
        self.write("tank/b", 0..BLOCKS, 5).await;
        self.settle().await;
        self.engine.removals().wait_condensed().await.unwrap();
    }

    async fn condensing(&self) -> Option<CondensingPhys> {
        let view = self.engine.view().await.unwrap();
        condensing(&view)
    }
}

fn condensing(pool: &Pool) -> Option<CondensingPhys> {
    let words = pool.directory_value(CONDENSING_INDIRECT)?.words();
    Some(CondensingPhys::decode(&words).unwrap())
}

/// A mapping is condensed twice: the second time counts what was obsolete before the first.
pub(crate) async fn mapping_is_condensed_twice() {
    let mut pool = pool_after_removal(&PoolBuilder::disks(4), 1).await;
    let before = pool.entries();
    pool.make_obsolete().await;
    let after = pool.entries();
    assert!(after < before && after > 0, "{before} entries, then {after}");
    assert_eq!(pool.condensing().await, None);
    pools::judge_devices(&pool.devices, "condensed", &[]);
    pools::check_space(pools::images_of(&pool.devices)).await.unwrap();
    assert_eq!(pool.scrub().await.errors, 0);
    pool.engine.export().await.unwrap();
    pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
    assert_eq!(pool.entries(), after);
    pool.engine.snapshots().destroy("tank/a@1").await.unwrap();
    pool.write("tank/a", 0..BLOCKS, 6).await;
    pool.settle().await;
    pool.engine.removals().wait_condensed().await.unwrap();
    assert!(pool.entries() < after, "{after} entries, then {}", pool.entries());
    pools::check_space(pools::images_of(&pool.devices)).await.unwrap();
    assert!(pool.finish().await.is_clean());
}

#[test]
fn mappings_are_condensed() {
    simulate(1, mapping_is_condensed_twice()).unwrap();
}

#[test]
fn mappings_of_mirrors_are_condensed() {
    simulate(2, async {
        let pool = pool_after_removal(&mirrors(4), 2).await;
        let before = pool.entries();
        pool.make_obsolete().await;
        assert!(pool.entries() < before);
        assert!(pool.finish().await.is_clean());
    })
    .unwrap();
}

/// Stops half way, and returns the pool: some entries are in the new mapping.
async fn half_way() -> Fixture {
    let pool = pool_after_removal(&PoolBuilder::disks(4), 1).await;
    // Forty entries take forty seconds.
    tunables::CONDENSE_DELAY_MS.set(1000).unwrap();
    pool.write("tank/b", 0..BLOCKS, 5).await;
    pool.settle().await;
    cenote_rt::sleep(Duration::from_millis(3500)).await;
    assert!(pool.condensing().await.is_some());
    // Frees meanwhile are in another map.
    pool.write("tank/a", 2..9, 50).await;
    pool
}

/// It stands still while the pool is exported, and beside a checkpoint, and goes on afterwards.
async fn condensing_goes_on(with_checkpoint: bool) {
    let mut pool = half_way().await;
    let before = pool.entries();
    pool.engine.export().await.unwrap();
    pools::judge_devices(&pool.devices, "half way", &[]);
    pool.engine = pools::open(as_devices(&pool.devices)).await.unwrap();
    assert!(pool.condensing().await.is_some());
    tunables::CONDENSE_DELAY_MS.set(0).unwrap();
    if with_checkpoint {
        pool.engine.space().take_checkpoint().await.unwrap();
        pool.engine.removals().resume().await;
        pool.engine.removals().wait_condensed().await.unwrap();
        pool.write("tank/b", 0..4, 51).await;
        pool.engine.removals().wait_condensed().await.unwrap();
        assert!(pool.condensing().await.is_some(), "the checkpoint needs the mapping");
        pools::judge_checkpoint(&pools::images_of(&pool.devices));
        pool.engine.space().discard_checkpoint().await.unwrap();
        pool.settle().await;
    }
    pool.engine.removals().resume().await;
    pool.engine.removals().wait_condensed().await.unwrap();
    assert_eq!(pool.condensing().await, None);
    assert!(pool.entries() < before);
    assert!(pool.finish().await.is_clean());
}

#[test]
fn condensing_stops_half_way_and_goes_on() {
    for with_checkpoint in [false, true] {
        simulate(1, condensing_goes_on(with_checkpoint)).unwrap();
    }
}

/// Power cuts at flushes of the work: the pool is whole, and the next import goes on to the end.
/// Returns how many cuts found it half way.
async fn cuts_lose_nothing(seed: u64) -> usize {
    let mut pool = pool_after_removal(&PoolBuilder::disks(4), 1).await;
    pool.engine.export().await.unwrap();
    let recorder = Recorder::new();
    pool.engine = pools::open(pools::recorded(&recorder, &pool.devices)).await.unwrap();
    tunables::CONDENSE_DELAY_MS.set(1).unwrap();
    pool.make_obsolete().await;
    pool.engine.export().await.unwrap();
    tunables::CONDENSE_DELAY_MS.set(0).unwrap();
    let log = recorder.log();
    let (mut replay, mut rng) = (Replay::new(&log), Rng::seeded(seed));
    let (mut boundary, mut half_way, mut checked) = (0_u64, 0, 0_u64);
    while replay.next_boundary() {
        boundary += 1;
        if boundary % 11 != seed % 11 {
            continue;
        }
        let (sample, images) = cuts::leave(&replay, &mut rng);
        let at = format!("seed {seed} event {} sample {sample}", replay.position());
        let devices = pools::devices(images);
        let (summary, _) = verify_of(as_devices(&devices)).await;
        assert!(summary.is_clean(), "{at}: {summary:?}");
        let engine = pools::open(as_devices(&devices)).await.unwrap();
        let pool = Fixture { devices, engine };
        half_way += usize::from(pool.condensing().await.is_some());
        pool.write("tank/a", 4..8, 80).await;
        pool.engine.removals().resume().await;
        pool.engine.removals().wait_condensed().await.unwrap();
        assert_eq!(pool.condensing().await, None, "{at}");
        pool.engine.export().await.unwrap();
        let images = pools::images_of(&pool.devices);
        pools::check_space(images.clone()).await.unwrap_or_else(|error| panic!("{at}: {error}"));
        checked += 1;
        if checked % 16 == 1 {
            pools::judge_images(&images);
        }
    }
    half_way
}

#[test]
fn power_cuts_at_flushes_lose_nothing() {
    let half_way: usize = (0..2).map(|seed| simulate(seed, cuts_lose_nothing(seed)).unwrap()).sum();
    assert!(half_way > 5, "only {half_way} cuts were half way");
}

async fn images_half_way() -> Vec<Image> {
    let pool = half_way().await;
    pool.engine.export().await.unwrap();
    pools::images_of(&pool.devices)
}

/// OpenZFS's engine finishes what was begun here.
#[test]
fn condensing_ends_in_openzfs() {
    let Some(theirs) = cenote_oracle::libzpool() else { return };
    let folder = pools::unpack(&simulate(1, images_half_way()).unwrap());
    theirs.pool("tank", folder.path(), &["figures"]);
    pools::judge(folder.path(), "tank");
    block_on(1, async {
        let options = ScanOptions { paths: vec![folder.path().to_path_buf()] };
        let found = scan(&options).await.unwrap();
        let candidate = found.find("tank").unwrap();
        let pool = Pool::open(candidate, &OpenOptions::default()).await.unwrap();
        pools::assert_no_leaks(&pool).await;
        assert_eq!(condensing(&pool), None, "OpenZFS has not ended it");
    })
    .unwrap();
}

/// A view that began before reads blocks that were freed since: it is told to begin again.
async fn view_ends_with_the_mapping() {
    let pool = pool_after_removal(&PoolBuilder::disks(4), 1).await;
    let (object, _) = pool.block_of("tank/b", 0).await;
    let view = pool.engine.view_for(Duration::from_hours(1)).await.unwrap();
    let old = view.dataset("tank/b").await.unwrap().open().await.unwrap();
    let dnode = old.dnode(object).await.unwrap();
    pool.make_obsolete().await;
    assert_eq!(pool.condensing().await, None);
    pool.engine.store().clear_cache();
    let len = dnode.geometry().byte_count() as usize;
    assert_eq!(dnode.read_at(0, len).await.unwrap_err().kind(), Kind::Overtaken);
    let view: Arc<Pool> = pool.engine.view().await.unwrap();
    assert_eq!(view.error_log().await.unwrap(), []);
}

#[test]
fn views_of_earlier_states_end_with_the_mapping() {
    simulate(1, view_ends_with_the_mapping()).unwrap();
}
