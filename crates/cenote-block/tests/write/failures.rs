//! Devices that fail while a block is written, and damage that a read repairs.

use cenote_block::policy::WritePolicy;
use cenote_block::{BlockError, WriteContext, WriteMethod};
use cenote_device::WriteFault;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_rt::Kind;

use crate::bench::{Bench, Shape, TXG, Top, wait};
use crate::round_trip::{Content, block, context, policy};

const ALL: std::ops::Range<u64> = 0..u64::MAX;
const SIZE: usize = 64 << 10;

fn raw(copies: u8) -> WritePolicy {
    WritePolicy { copies, ..policy(2, ChecksumType::Sha256) }
}

/// One of two disks refuses writes: blocks go to the other, and no space stays allocated on the
/// first.
#[test]
fn a_block_is_written_to_a_working_vdev() {
    let shape = Shape { tops: 2, ..Shape::new(Top::Single, 9) };
    let bench = Bench::with_faults(shape, |guid, device| match guid {
        100 => device.with_write_range(ALL, WriteFault::Eio),
        _ => device,
    });
    let data = block(Content::Random, 1 << 20, 1);
    wait(async {
        let mut asize = 0;
        for _ in 0..6 {
            let written = bench.store.write(data.clone(), &raw(1), None, &context()).await;
            let bp = written.expect("the second attempt begins with the other disk").bp;
            assert_eq!(bp.dva(0).unwrap().vdev, 1);
            asize += bp.asize_total();
            let read = bench.read_stored(&bp).await.unwrap();
            assert!(read[..] == data[..]);
        }
        assert_eq!(bench.taken(), asize, "failed allocations were freed");
    });
}

#[test]
fn failed_writes_free_their_space() {
    for top in [Top::Single, Top::Mirror(2), Top::RaidZ { width: 4, nparity: 1 }] {
        let bench = Bench::with_faults(Shape::new(top, 9), |_, device| {
            device.with_write_range(ALL, WriteFault::Eio)
        });
        let error =
            wait(bench.store.write(block(Content::Random, SIZE, 1), &raw(2), None, &context()));
        let error = error.unwrap_err();
        assert_eq!(
            (error.kind(), error.at().object, error.at().txg),
            (Kind::Io, Some(2), Some(TXG))
        );
        assert_eq!(bench.taken(), 0, "{top:?}");
    }
}

/// As many leaves as there is redundancy may miss a block; the read does not need them.
#[test]
fn redundancy_tolerates_failed_leaves() {
    let rows = [
        (Top::Mirror(2), 1),
        (Top::RaidZ { width: 3, nparity: 1 }, 1),
        (Top::RaidZ { width: 6, nparity: 2 }, 2),
        (Top::RaidZ { width: 7, nparity: 3 }, 3),
    ];
    for (top, failing) in rows {
        let bench = Bench::with_faults(Shape::new(top, 9), |guid, device| {
            if guid < 100 + failing {
                device.with_write_range(ALL, WriteFault::Eio)
            } else {
                device
            }
        });
        let data = block(Content::Random, SIZE, 1);
        wait(async {
            let written = bench.store.write(data.clone(), &raw(1), None, &context()).await;
            let bp = written.unwrap_or_else(|error| panic!("{top:?}: {error}")).bp;
            let read = bench.read_stored(&bp).await.unwrap();
            assert!(read[..] == data[..], "{top:?}");
        });
    }
}

/// Damage on `leaves` is repaired by one read: a scrub after it finds nothing.
async fn heals(bench: &Bench, bp: &BlockPtr, expected: &[u8], what: &str) {
    assert!(
        !bench.store.scrub(bp, &cenote_block::Grounds::Allocated).await.unwrap().is_clean(),
        "{what}"
    );
    let read = bench.read_stored(bp).await.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert!(read[..] == *expected, "{what}");
}

#[test]
fn a_read_repairs_the_columns_it_reconstructed() {
    // Every leaf whose damage one read may notice: the read uses the damaged leaf first or needs
    // it.
    let rows = [
        (Top::RaidZ { width: 3, nparity: 1 }, 1),
        (Top::RaidZ { width: 6, nparity: 2 }, 2),
        (Top::RaidZ { width: 7, nparity: 3 }, 3),
    ];
    for (top, count) in rows {
        let bench = Bench::new(Shape::new(top, 9));
        let data = block(Content::Random, SIZE, 1);
        wait(async {
            let bp = bench.store.write(data.clone(), &raw(1), None, &context()).await.unwrap().bp;
            for leaf in 0..count {
                // The last columns hold data, whichever way the parity is swapped.
                let width = bench.memory.len() as u64;
                bench.damage(100 + width - 1 - leaf, 0, SIZE);
            }
            let what = format!("{top:?}");
            heals(&bench, &bp, &data, &what).await;
            let stats = bench.store.stats();
            assert!(stats.parts_repaired >= 1 && stats.blocks_recovered == 1, "{what} {stats:?}");
            let notes = bench.notes.found_bad.lock().unwrap().clone();
            assert!(notes.iter().any(|(bad, repaired)| *bad > 0 && *repaired > 0), "{what}");
            let again = bench.store.scrub(&bp, &cenote_block::Grounds::Allocated).await.unwrap();
            assert!(again.is_clean(), "{what}: {again:?}");
        });
    }
}

#[test]
fn a_mirror_and_other_copies_heal() {
    let bench = Bench::new(Shape { tops: 2, ..Shape::new(Top::Mirror(2), 9) });
    let data = block(Content::Random, SIZE, 1);
    wait(async {
        let bp = bench.store.write(data.clone(), &raw(2), None, &context()).await.unwrap().bp;
        let dvas: Vec<_> = bp.dvas().collect();
        assert_ne!(dvas[0].vdev, dvas[1].vdev);
        // The first copy is damaged on both of its children: the second copy has to serve.
        for leaf in [0, 1] {
            bench.damage(100 + 20 * u64::from(dvas[0].vdev) + leaf, dvas[0].offset, SIZE);
        }
        heals(&bench, &bp, &data, "both children").await;
        let again = bench.store.scrub(&bp, &cenote_block::Grounds::Allocated).await.unwrap();
        assert!(again.is_clean(), "{again:?}");
        let checksum_errors: u64 =
            bench.tree().leaves().map(|(_, leaf)| leaf.stats().checksum_errors).sum();
        assert!(checksum_errors >= 2);
    });
}

#[test]
fn lost_blocks_are_reported_with_their_place() {
    let bench = Bench::new(Shape::new(Top::Mirror(2), 9));
    let data = block(Content::Random, SIZE, 1);
    wait(async {
        let bp = bench.store.write(data, &raw(1), None, &context()).await.unwrap().bp;
        for leaf in [100, 101] {
            bench.damage(leaf, bp.dva(0).unwrap().offset + 512, 512);
        }
        let error = bench.read_stored(&bp).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Checksum);
        let lost = bench.notes.lost.lock().unwrap().clone();
        let place = Bookmark { objset: 54, object: 3, level: 0, blkid: 9 };
        assert_eq!(lost.len(), 1);
        assert_eq!(lost[0].0, place);
        assert!(lost[0].1.contains("d100") && lost[0].1.contains("d101"), "{}", lost[0].1);
        // Both sides are told of, each with its first error.
        assert_eq!(*bench.notes.found_bad.lock().unwrap(), [(2, 0)]);
        let Some(BlockError::AllCopiesBad { copies }) = error.cause() else { panic!("{error}") };
        assert!(copies[0].bad.iter().all(|bad| bad.errors == 1), "{copies:?}");
        // There are no good bytes to repair with: the damage stays.
        assert_eq!(bench.store.stats().parts_repaired, 0);
    });
}

/// A rewrite whose device fails is written elsewhere, and the old block can be freed.
#[test]
fn a_failed_rewrite_goes_elsewhere() {
    let bench = Bench::new(Shape { tops: 2, ..Shape::new(Top::Single, 9) });
    let again = WriteContext { pass: 2, ..context() };
    wait(async {
        let first = block(Content::Random, 4096, 1);
        let old = bench.store.write(first, &raw(1), None, &context()).await.unwrap().bp;
        let vdev = old.dva(0).unwrap().vdev;
        bench.devices[&(100 + 20 * u64::from(vdev))].set_offline(true);
        let second = block(Content::Random, 4096, 2);
        let new = bench.store.write(second.clone(), &raw(1), Some(&old), &again).await.unwrap();
        assert_eq!((new.method, new.method.replaces()), (WriteMethod::New, true));
        assert_ne!(new.bp.dva(0).unwrap().vdev, vdev);
        let read = bench.read_stored(&new.bp).await.unwrap();
        assert_eq!(read[..], second[..]);
        bench.store.free(&old, TXG).await.expect("it was allocated");
        assert_eq!(bench.taken(), new.bp.asize_total());
    });
}
