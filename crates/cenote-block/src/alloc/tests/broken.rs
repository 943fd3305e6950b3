//! Broken invariants are found: each test breaks one through the allocator's own state.

use std::sync::Arc;

use cenote_ondisk::blkptr::Dva;
use cenote_ranges::RangeSet;
use cenote_rt::invariant::Broken;
use cenote_rt::{Error, Kind, block_on};

use super::plain_pool;
use crate::alloc::metaslab::Deferral;
use crate::alloc::{Request, SpaceAllocator, StoredSpace, Violation};

/// Allocates one sector for txg 5.
fn allocate(space: &Arc<SpaceAllocator>) -> Dva {
    block_on(1, space.allocate(&Request::data(512, 5))).unwrap().unwrap()[0]
}

fn id_of(violation: &Violation) -> &'static str {
    match violation {
        Violation::Invariant(Broken { id, .. }) => id,
        other => panic!("{other}"),
    }
}

fn id_of_error(error: &Error) -> &'static str {
    assert_eq!(error.kind(), Kind::Invariant);
    error.cause::<Violation>().map(id_of).or(error.cause::<Broken>().map(|b| b.id)).unwrap()
}

#[test]
fn sums_of_a_group_below_zero_are_found() {
    let space = plain_pool();
    let mut state = space.lock();
    let group = &mut state.vdevs.get_mut(&0).unwrap().groups[0];
    assert_eq!(id_of(&group.change(-512, 0).unwrap_err()), "A4");
    group.change(512, 0).unwrap();
    // More bytes deferred than allocated.
    assert_eq!(id_of(&group.change(0, 1024).unwrap_err()), "A4");
}

#[test]
fn sums_of_a_group_that_differ_from_its_metaslabs_are_found() {
    let space = plain_pool();
    allocate(&space);
    space.take_changes(5).unwrap();
    space.lock().vdevs.get_mut(&0).unwrap().groups[0].allocated = 512;
    assert_eq!(id_of_error(&space.sync_done(5, 0).unwrap_err()), "A4");
}

#[test]
fn changes_of_an_earlier_txg_are_found() {
    let space = plain_pool();
    allocate(&space);
    space.take_changes(6).unwrap();
    assert_eq!(id_of_error(&space.sync_done(6, 0).unwrap_err()), "A6");
}

#[test]
fn more_bytes_than_an_unloaded_metaslab_has_are_found() {
    let space = plain_pool();
    let mut state = space.lock();
    let metaslab = &mut state.vdevs.get_mut(&0).unwrap().metaslabs[1];
    assert!(metaslab.loaded.is_none());
    metaslab.freed = metaslab.range().into();
    metaslab.check_sums().unwrap();
    metaslab.allocated = 512;
    assert_eq!(id_of(&metaslab.check_sums().unwrap_err()), "M2");
}

#[test]
fn maps_of_a_txg_that_is_not_recorded_are_found() {
    let space = plain_pool();
    let mut state = space.lock();
    let stored = |txg| StoredSpace { free: RangeSet::from(0..1 << 16), txg };
    assert_eq!(id_of_error(&state.install(0, 0, stored(5)).err().unwrap()), "B2");
    state.install(0, 0, stored(4)).unwrap();
}

#[test]
fn ranges_that_become_free_too_early_are_found() {
    let space = plain_pool();
    allocate(&space);
    let mut state = space.lock();
    let metaslab = &mut state.vdevs.get_mut(&0).unwrap().metaslabs[0];
    metaslab.record(5).unwrap();
    metaslab.freed.try_add(0..512).unwrap();
    metaslab.allocated -= 512;
    metaslab.finish(5, Deferral::TwoTxgs(u64::MAX)).unwrap();
    // Txg 7 uses this set as well; txg 5 again would free the ranges at once.
    assert_eq!(id_of(&metaslab.finish(5, Deferral::TwoTxgs(u64::MAX)).unwrap_err()), "M3");
}

#[test]
fn ranges_that_become_free_under_a_guard_are_found() {
    let space = plain_pool();
    allocate(&space);
    let mut state = space.lock();
    let metaslab = &mut state.vdevs.get_mut(&0).unwrap().metaslabs[0];
    metaslab.guards = 1;
    assert_eq!(id_of(&metaslab.make_free(&RangeSet::from(0..512)).unwrap_err()), "M6");
}

#[test]
fn recorded_ranges_outside_of_their_metaslab_are_found() {
    let space = plain_pool();
    let mut state = space.lock();
    let metaslab = &mut state.vdevs.get_mut(&0).unwrap().metaslabs[0];
    let end = metaslab.range().end;
    metaslab.allocating[1].try_add(end..end + 512).unwrap();
    assert_eq!(id_of(&metaslab.record(5).unwrap_err()), "M7");
}

#[test]
fn unflushed_txgs_and_segments_that_do_not_add_up_are_found() {
    let space = plain_pool();
    let mut state = space.lock();
    assert_eq!(id_of(&state.flush.change_segments(-1).unwrap_err()), "U2");
    state.set_unflushed(0, 0, 7).unwrap();
    assert_eq!(id_of(&state.set_unflushed(0, 0, 6).unwrap_err()), "U1");
    state.set_unflushed(0, 1, 9).unwrap();
    drop(state);
    space.forget_logs_before(6).unwrap();
    assert_eq!(id_of_error(&space.forget_logs_before(10).unwrap_err()), "U3");
}

#[test]
fn deferred_ranges_that_are_not_listed_are_found() {
    let space = plain_pool();
    let dva = allocate(&space);
    space.take_changes(5).unwrap();
    space.sync_done(5, 0).unwrap();
    space.free(&dva, 6).unwrap();
    space.take_changes(6).unwrap();
    space.sync_done(6, 0).unwrap();
    allocate_in(&space, 7);
    space.lock().deferring.clear();
    space.take_changes(7).unwrap();
    assert_eq!(id_of_error(&space.sync_done(7, 0).unwrap_err()), "A5");
}

fn allocate_in(space: &Arc<SpaceAllocator>, txg: u64) {
    block_on(1, space.allocate(&Request::data(512, txg))).unwrap().unwrap();
}

#[test]
fn space_held_for_no_checkpoint_is_found() {
    let space = plain_pool();
    let dva = allocate(&space);
    assert_eq!(id_of_error(&space.free_checkpointed(&dva, 5).unwrap_err()), "A7");
}

#[test]
fn frees_before_the_checkpoint_of_their_txg_are_found() {
    let space = plain_pool();
    let dva = allocate(&space);
    space.take_changes(5).unwrap();
    space.sync_done(5, 0).unwrap();
    space.free(&dva, 6).unwrap();
    assert_eq!(id_of_error(&space.set_checkpoint(Some(5)).unwrap_err()), "A8");
    space.set_checkpoint(None).unwrap();
}

#[test]
#[should_panic(expected = "has no guards")]
fn a_guard_that_was_not_counted_is_found() {
    let space = plain_pool();
    let since = space.epoch();
    let guard = space.guard(&[(0, 0..512)], since);
    space.lock().vdevs.get_mut(&0).unwrap().metaslabs[0].guards = 0;
    drop(guard);
}
