//! Tests of single rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_ondisk::blkptr::Dva;
use cenote_rt::{Kind, Result, block_on};

use super::disk::{Disk, TestLayout, TestVdev};
use crate::alloc::{
    ClaimError, Class, MetaslabSpec, Placement, Request, SpaceAllocator, Violation,
};

fn pool(vdevs: &[TestVdev]) -> Arc<SpaceAllocator> {
    Disk { txg: 4, ..Disk::default() }.import(vdevs, true, 0).0
}

fn allocate(space: &SpaceAllocator, request: &Request) -> Result<Vec<Dva>> {
    block_on(1, space.allocate(request)).unwrap()
}

/// Records and commits all changes.
fn commit(space: &SpaceAllocator, txg: u64) {
    space.take_changes(txg).unwrap();
    space.sync_done(txg, 0).unwrap();
}

#[test]
fn freed_space_is_reused_after_three_txgs() {
    let space = pool(&[TestVdev::plain(Class::Normal, 16, 3)]);
    // With no free space nothing would be deferred, so one metaslab gets fewer blocks.
    allocate(&space, &Request::data(512, 5)).unwrap();
    let all = Request::data(1 << 16, 5);
    let dvas = [allocate(&space, &all).unwrap()[0], allocate(&space, &all).unwrap()[0]];
    assert_eq!(allocate(&space, &all).unwrap_err().kind(), Kind::NoSpace);
    commit(&space, 5);
    space.free(&dvas[0], 6).unwrap();
    for txg in 6..9 {
        let request = Request { txg, ..all };
        assert!(allocate(&space, &request).is_err(), "txg {txg}");
        commit(&space, txg);
    }
    let again = allocate(&space, &Request { txg: 9, ..all }).unwrap();
    assert_eq!(again, [dvas[0]]);
}

/// Without logs, the third copies of blocks do not use one metaslab after the other.
#[test]
fn three_copies_of_blocks_use_three_metaslabs() {
    let vdevs = [TestVdev::plain(Class::Normal, 24, 40)];
    let space = Disk { txg: 4, ..Disk::default() }.import(&vdevs, false, 0).0;
    let mut used = BTreeSet::new();
    for txg in 5..15 {
        for _ in 0..20 {
            let request = Request { copies: 3, ..Request::data(4096, txg) };
            let dvas = allocate(&space, &request).unwrap();
            used.extend(dvas.iter().map(|dva| dva.offset >> 24));
        }
        commit(&space, txg);
    }
    assert_eq!(used.len(), 3, "{used:?}");
}

#[test]
fn calls_out_of_order_are_refused() {
    let space = pool(&[TestVdev::plain(Class::Normal, 16, 2)]);
    let cause = |error: cenote_rt::Error| {
        assert_eq!(error.kind(), Kind::Invariant);
        error.cause::<Violation>().cloned().unwrap()
    };
    let order = |error| assert!(matches!(cause(error), Violation::Order { .. }));
    order(allocate(&space, &Request::data(512, 4)).unwrap_err());
    let dva = allocate(&space, &Request::data(512, 5)).unwrap()[0];
    order(allocate(&space, &Request::data(512, 9)).unwrap_err());
    order(space.sync_done(5, 0).unwrap_err());
    commit(&space, 5);
    order(space.sync_done(5, 0).unwrap_err());
    space.free(&dva, 6).unwrap();
    order(space.free_range(0, 4096, 512, 7).unwrap_err());
    let place = |error| assert!(matches!(cause(error), Violation::Place { .. }));
    for (vdev, offset, asize) in
        [(1, 0, 512), (0, 1 << 17, 512), (0, 65_536 - 512, 1024), (0, 100, 512), (0, 0, 0)]
    {
        place(space.free_range(vdev, offset, asize, 6).unwrap_err());
    }
}

#[test]
fn classes_fall_back_and_special_keeps_a_reserve() {
    let vdevs = [
        TestVdev::plain(Class::Normal, 16, 8),
        TestVdev::plain(Class::Special, 16, 2),
        TestVdev::plain(Class::Log, 16, 2),
    ];
    let space = pool(&vdevs);
    for (class, copies, want) in [
        (Class::Special, 1, 1),
        (Class::Dedup, 1, 1),
        (Class::Log, 1, 2),
        (Class::EmbeddedLog, 1, 0),
    ] {
        let request = Request { class, copies, ..Request::data(4096, 5) };
        assert_eq!(allocate(&space, &request).unwrap()[0].vdev, want, "{class:?}");
    }
    let small = Placement {
        is_file_data: true,
        psize: 4096,
        special_small_blocks: 8192,
        ..Placement::default()
    };
    assert_eq!(space.preferred_class(&small), Class::Special);
    assert_eq!(space.preferred_class(&Placement { psize: 16384, ..small }), Class::Normal);
    let metadata = Placement { is_metadata: true, ..Placement::default() };
    assert_eq!(space.preferred_class(&metadata), Class::Special);
    let indirect = Placement { level: 1, psize: 16384, ..small };
    assert_eq!(space.preferred_class(&indirect), Class::Special);
    let table = Placement { is_dedup_table: true, ..metadata };
    assert_eq!(space.preferred_class(&table), Class::Special);
    // Three quarters full: metadata only. Full: the normal class.
    let request = Request { class: Class::Special, ..Request::data(32768, 5) };
    for want in [1, 1, 1, 0] {
        assert_eq!(allocate(&space, &request).unwrap()[0].vdev, want);
    }
    commit(&space, 5);
    assert_eq!(space.preferred_class(&small), Class::Normal);
    assert_eq!(space.preferred_class(&metadata), Class::Special);
}

#[test]
fn copies_spread_over_vdevs_then_metaslabs() {
    let vdevs = [
        TestVdev::plain(Class::Normal, 16, 4),
        TestVdev::plain(Class::Normal, 16, 4),
        TestVdev { layout: TestLayout::Raidz(3, 1), ..TestVdev::plain(Class::Normal, 16, 4) },
    ];
    let request = Request { copies: 3, ..Request::data(1024, 5) };
    let space = pool(&vdevs);
    let mut on: Vec<_> =
        allocate(&space, &request).unwrap().iter().map(|dva| (dva.vdev, dva.asize)).collect();
    on.sort_unstable();
    assert_eq!(on, [(0, 1024), (1, 1024), (2, 2048)]);
    let space = pool(&vdevs[..1]);
    let dvas = allocate(&space, &request).unwrap();
    let mut metaslabs: Vec<_> = dvas.iter().map(|dva| dva.offset >> 16).collect();
    metaslabs.sort_unstable();
    metaslabs.dedup();
    assert_eq!(metaslabs.len(), 3);
    // One metaslab left for three copies: side by side rather than not at all.
    let space = pool(&[TestVdev::plain(Class::Normal, 16, 1)]);
    assert_eq!(allocate(&space, &request).unwrap().len(), 3);
}

#[test]
fn rotor_gives_emptier_vdevs_more() {
    let vdevs = [TestVdev::plain(Class::Normal, 26, 8), TestVdev::plain(Class::Normal, 26, 8)];
    let space = pool(&vdevs);
    let mut bytes = [0_u64; 2];
    for _ in 0..256 {
        let dva = allocate(&space, &Request::data(131_072, 5)).unwrap()[0];
        bytes[dva.vdev as usize] += dva.asize;
    }
    assert_eq!(bytes[0], bytes[1]);
    // A third, empty vdev is added: it gets more.
    commit(&space, 5);
    let whole =
        |id: u64| MetaslabSpec { allocated: 48 << 20, ..MetaslabSpec::empty(id << 26, 1 << 26) };
    let full = TestVdev::plain(Class::Normal, 26, 8);
    let vdevs = [full.clone(), full];
    let space = pool(&[]);
    space.set_geometry(Arc::new(super::disk::Geometry(vdevs.to_vec())));
    let empty = (0..8).map(|id| MetaslabSpec::empty(id << 26, 1 << 26)).collect();
    space
        .add_vdev(super::disk::vdev_spec(0, &vdevs[0]), (0..8).map(whole).collect(), None)
        .unwrap();
    space.add_vdev(super::disk::vdev_spec(1, &vdevs[1]), empty, None).unwrap();
    let mut bytes = [0_u64; 2];
    for _ in 0..512 {
        let dva = allocate(&space, &Request::data(131_072, 5)).unwrap()[0];
        bytes[dva.vdev as usize] += dva.asize;
    }
    assert!(bytes[1] > bytes[0] * 3 / 2, "{bytes:?}");
}

#[test]
fn claims() {
    let space = pool(&[TestVdev::plain(Class::Normal, 16, 2)]);
    let dva = |offset, asize| Dva { vdev: 0, offset, asize, gang: false };
    let claim = |dva: Dva, dry| block_on(1, space.claim(&dva, 5, dry)).unwrap();
    let cause = |error: cenote_rt::Error| error.cause::<ClaimError>().cloned().unwrap();
    claim(dva(4096, 4096), true).unwrap();
    claim(dva(4096, 4096), false).unwrap();
    let error = cause(claim(dva(6144, 512), true).unwrap_err());
    assert_eq!(error, ClaimError::NotFree { vdev: 0, offset: 6144, asize: 512 });
    let error = cause(claim(dva(1 << 17, 512), true).unwrap_err());
    assert!(matches!(error, ClaimError::Beyond { .. }));
    let changes = space.take_changes(5).unwrap();
    assert_eq!(changes[0].allocs, (4096..8192).into());
    // A gang block is freed with the size of its header.
    space.sync_done(5, 0).unwrap();
    space.free(&Dva { gang: true, ..dva(4096, 4096) }, 6).unwrap();
    assert_eq!(space.take_changes(6).unwrap()[0].frees.bytes(), 512);
}

#[test]
fn space_used_by_a_checkpoint_stays_allocated() {
    let space = pool(&[TestVdev::plain(Class::Normal, 16, 1)]);
    let dva = allocate(&space, &Request::data(4096, 5)).unwrap()[0];
    commit(&space, 5);
    space.set_checkpoint(Some(5)).unwrap();
    space.free_checkpointed(&dva, 6).unwrap();
    let changes = space.take_changes(6).unwrap();
    assert_eq!((changes[0].held.bytes(), changes[0].frees.bytes()), (4096, 0));
    space.sync_done(6, 0).unwrap();
    assert_eq!(space.class_figures(Class::Normal).allocated, 4096);
}

#[test]
fn new_space_is_used_after_its_txg() {
    let vdev = TestVdev::plain(Class::Normal, 16, 1);
    let space = pool(&[vdev]);
    space.grow_vdev(0, vec![MetaslabSpec::empty(1 << 16, 1 << 16)], 5);
    let all = Request::data(1 << 16, 6);
    assert_eq!(allocate(&space, &all).unwrap()[0].offset, 0);
    assert!(allocate(&space, &all).is_err());
    assert_eq!(space.class_figures(Class::Normal).space, 1 << 16);
    commit(&space, 5);
    assert_eq!(space.class_figures(Class::Normal).space, 2 << 16);
    assert_eq!(allocate(&space, &all).unwrap()[0].offset, 1 << 16);
    commit(&space, 6);
    space.set_allocating(0, false);
    assert_eq!(space.normal_space(), 0);
    space.remove_vdev(0).unwrap();
    assert!(allocate(&space, &Request { txg: 7, ..all }).is_err());
}

#[test]
fn a_paused_metaslab_is_skipped() {
    let space = pool(&[TestVdev::plain(Class::Normal, 16, 2)]);
    let paused = block_on(1, space.pause(0, 0)).unwrap().unwrap().unwrap();
    assert_eq!(paused.free(0, 9).bytes(), 1 << 16);
    assert_eq!(paused.free(1 << 12, 9).bytes(), 15 << 12);
    assert!(paused.free(0, 0).is_empty());
    let some = (1 << 15..1 << 17).into();
    assert_eq!(paused.free_of(&some), (1 << 15..1 << 16).into());
    let request = Request::data(1 << 16, 5);
    assert_eq!(allocate(&space, &request).unwrap()[0].offset, 1 << 16);
    // There is no other metaslab: the allocation waits.
    let dva = block_on(1, async {
        let waits = space.allocate(&request);
        let wants = async {
            while !space.is_wanted() {
                cenote_rt::sleep(std::time::Duration::from_millis(1)).await;
            }
            drop(paused);
        };
        futures_util::future::join(waits, wants).await.0
    });
    assert_eq!(dva.unwrap().unwrap()[0].offset, 0);
    assert!(allocate(&space, &request).is_err());
}

/// A request that does not fit into the paused metaslab has nothing to wait for.
#[test]
fn allocation_does_not_wait_for_a_paused_metaslab_without_room() {
    let space =
        pool(&[TestVdev::plain(Class::Normal, 16, 1), TestVdev::plain(Class::Special, 16, 1)]);
    allocate(&space, &Request::data(3 << 14, 5)).unwrap();
    let _paused = block_on(1, space.pause(0, 0)).unwrap().unwrap().unwrap();
    let _other = block_on(1, space.pause(1, 0)).unwrap().unwrap().unwrap();
    let refused = allocate(&space, &Request::data(1 << 15, 5)).unwrap_err();
    assert_eq!(refused.kind(), Kind::NoSpace);
    assert!(!space.is_wanted());
}

/// Two tasks pause one metaslab alternately, so that it is never usable for long.
#[test]
fn allocation_makes_progress_between_pauses() {
    let space = pool(&[TestVdev::plain(Class::Normal, 16, 1)]);
    let is_done = std::sync::atomic::AtomicBool::new(false);
    let pause_repeatedly = async |first: u64| {
        cenote_rt::sleep(std::time::Duration::from_millis(first)).await;
        while !is_done.load(std::sync::atomic::Ordering::Acquire) {
            let paused = space.pause(0, 0).await.unwrap().unwrap();
            cenote_rt::sleep(std::time::Duration::from_millis(4)).await;
            drop(paused);
        }
    };
    let allocated = block_on(1, async {
        let served = async {
            cenote_rt::sleep(std::time::Duration::from_millis(3)).await;
            let request = Request::data(1 << 16, 5);
            let dvas = space.allocate(&request);
            let dvas = cenote_rt::until(std::time::Duration::from_secs(20), dvas).await;
            is_done.store(true, std::sync::atomic::Ordering::Release);
            dvas
        };
        futures_util::future::join3(pause_repeatedly(0), pause_repeatedly(2), served).await.2
    });
    assert_eq!(allocated.unwrap().expect("an answer").unwrap()[0].offset, 0);
}

#[test]
fn space_freed_in_an_unloaded_metaslab_is_found() {
    let space = pool(&[TestVdev::plain(Class::Normal, 16, 1)]);
    space.set_memory(0);
    let dva = allocate(&space, &Request::data((1 << 16) - 1024, 5)).unwrap()[0];
    commit(&space, 5);
    assert_eq!(space.vdev_figures()[0].loaded, 0);
    space.free(&dva, 6).unwrap();
    (6..9).for_each(|txg| commit(&space, txg));
    assert_eq!(space.vdev_figures()[0].loaded, 0);
    assert!(space.metaslab_figures(0)[0].usable == 1 << 16);
    // The map on the test's disk is as empty as at the start, and so is the metaslab.
    assert!(allocate(&space, &Request::data(1 << 16, 9)).is_ok());
}
