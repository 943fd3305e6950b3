//! Tests of single rules.

use cenote_dmu::live::{Live, LiveError, ObjectSpec};
use cenote_dmu::{Dnode, ObjSet};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::{ObjSetFlags, ObjSetType};
use cenote_rt::Kind;
use std::sync::Arc;

use crate::bench::{Bench, Layout};
use crate::walk::walk;

const FILE: ObjectType = ObjectType::PLAIN_FILE_CONTENTS;

fn run(test: impl AsyncFnOnce(Bench)) {
    let bench = Bench::new(Layout::Single { ashift: 9 }, 1);
    cenote_rt::block_on(2, test(bench)).unwrap();
}

async fn open(bench: &Bench, live: &Live) -> Arc<ObjSet> {
    ObjSet::open(bench.store.clone(), &live.root(), None, live.id()).await.unwrap()
}

async fn dnode(bench: &Bench, live: &Live, object: u64) -> Arc<Dnode> {
    open(bench, live).await.dnode(object).await.unwrap()
}

/// Blocks of 512 bytes, 32 pointers to an indirect block.
fn narrow() -> ObjectSpec {
    ObjectSpec { indirect_shift: 12, ..ObjectSpec::new(FILE, 512) }
}

#[test]
fn a_new_set_equals_openzfs() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        assert!(live.is_dirty(4) && live.root().is_hole());
        assert!(bench.sync(&live, 4).await.is_changed);
        let set = open(&bench, &live).await;
        let meta = &set.phys().meta_dnode;
        assert_eq!((set.kind(), set.phys().len, set.object_count()), (ObjSetType::Zfs, 4096, 0));
        assert_eq!((meta.nlevels, meta.nblkptr(), meta.data_block_size()), (6, 3, 16384));
        assert_eq!((meta.indblkshift, meta.flags.bits(), meta.used), (17, 0, 0));
        assert_eq!(set.phys().flags, ObjSetFlags::empty());
        // Without changes nothing is written.
        assert!(!live.is_dirty(5));
        let synced = bench.sync(&live, 5).await;
        assert!(!synced.is_changed && synced.root == live.root());
        let mos = Live::create(bench.blocks(), 0, ObjSetType::Meta);
        bench.sync(&mos, 6).await;
        assert_eq!(open(&bench, &mos).await.phys().meta_dnode.nlevels, 1);
    });
}

#[test]
fn object_numbers_are_claimed_and_not_reused_at_once() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        let take = async |txg, spec: ObjectSpec| live.apply(txg, |tx| tx.allocate(&spec)).await;
        let one = ObjectSpec::new(FILE, 512).with_number(1);
        assert_eq!(take(4, one).await.unwrap(), 1);
        assert_eq!(take(4, one).await.unwrap_err().kind(), Kind::Exists);
        assert_eq!(take(4, ObjectSpec::new(FILE, 512)).await.unwrap(), 32);
        let large = ObjectSpec { slots: 20, ..ObjectSpec::new(FILE, 512) };
        assert_eq!(take(4, large).await.unwrap(), 33);
        // The next one does not fit into the same dnode block.
        assert_eq!(take(4, large).await.unwrap(), 64);
        let inside = take(4, one.with_number(40)).await.unwrap_err();
        assert_eq!(inside.kind(), Kind::Exists);
        let crossing = ObjectSpec { slots: 2, number: Some(31), ..one };
        assert_eq!(take(4, crossing).await.unwrap_err().kind(), Kind::Invalid);
        assert_eq!(take(4, one.with_number(0)).await.unwrap_err().kind(), Kind::Invalid);
        live.apply(4, |tx| tx.free(1)).await.unwrap();
        assert_eq!(take(4, one).await.unwrap_err().kind(), Kind::Exists);
        assert_eq!(live.inspect(|tx| tx.dnode(1)).await.unwrap_err().kind(), Kind::NotFound);
        // A claim may reuse it a txg later; the search only after the commit.
        assert_eq!(take(5, one).await.unwrap(), 1);
        bench.sync(&live, 4).await;
        bench.sync(&live, 5).await;
        let set = open(&bench, &live).await;
        assert_eq!(set.object_count(), 4);
        assert!(bench.facts.lock().unwrap().has_large_dnode);
        assert_eq!(set.dnode(40).await.unwrap_err().kind(), Kind::NotFound);
    });
}

#[test]
fn a_passed_txg_refuses_changes() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        live.apply(5, |tx| tx.allocate(&narrow())).await.unwrap();
        let error = live.apply(4, |tx| tx.allocate(&narrow())).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy);
        assert_eq!(error.cause(), Some(&LiveError::TxgPassed { txg: 4, newest: 5 }));
        // The header of the log may change in the syncing txg, even after changes in the open one.
        live.set_zil_header(4, [9; 192]).unwrap();
        assert_eq!(live.zil_header(), [9; 192]);
        bench.sync(&live, 4).await;
        let set = open(&bench, &live).await;
        assert_eq!((set.phys().zil_header, set.object_count()), ([9; 192], 0));
        bench.sync(&live, 5).await;
        assert_eq!(open(&bench, &live).await.object_count(), 1);
        assert_eq!(live.dirty_bytes(5), 0);
    });
}

/// A punched range becomes one hole with a birth; writing into it materializes all entries of the
/// new indirect block with that birth; growth keeps them.
#[test]
fn hole_births_survive_writing_into_the_hole_and_growth() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        let object = live.apply(4, |tx| tx.allocate(&narrow())).await.unwrap();
        let mut noise = vec![0; 200 * 512];
        cenote_rt::Rng::seeded(3).fill(&mut noise);
        live.apply(4, |tx| tx.write(object, 0, &noise)).await.unwrap();
        bench.sync(&live, 4).await;
        // Blocks 96..200: three whole indirect blocks and a part of one.
        live.apply(5, |tx| tx.free_range(object, 96 * 512, Some(104 * 512))).await.unwrap();
        bench.sync(&live, 5).await;
        let file = dnode(&bench, &live, object).await;
        assert_eq!((file.phys().nlevels, file.phys().maxblkid), (3, 199));
        let hole = file.stored_pointer(1, 4).await.unwrap();
        assert_eq!((hole.is_hole(), hole.birth(), hole.level()), (true, 5, 1));
        live.apply(6, |tx| tx.write(object, 130 * 512, &noise[..512])).await.unwrap();
        bench.sync(&live, 6).await;
        let file = dnode(&bench, &live, object).await;
        let births =
            async |file: &Arc<Dnode>, blkid| file.stored_pointer(0, blkid).await.unwrap().birth();
        assert_eq!(births(&file, 129).await, 5);
        assert_eq!((births(&file, 130).await, births(&file, 131).await), (6, 5));
        assert_eq!(file.stored_pointer(1, 5).await.unwrap().birth(), 5);
        // Far beyond the end: three more levels.
        live.apply(7, |tx| tx.write(object, 4_000_000 * 512, &noise[..512])).await.unwrap();
        bench.sync(&live, 7).await;
        let file = dnode(&bench, &live, object).await;
        assert_eq!(file.phys().nlevels, 6);
        assert_eq!((births(&file, 129).await, births(&file, 131).await), (5, 5));
        assert_eq!(births(&file, 3_999_999).await, 0);
        let walked = walk(&open(&bench, &live).await, 7).await;
        bench.check_alive(&walked.blocks, "grown");
        // Truncation keeps the levels and lowers the highest block.
        live.apply(8, |tx| tx.free_range(object, 700, None)).await.unwrap();
        bench.sync(&live, 8).await;
        let file = dnode(&bench, &live, object).await;
        assert_eq!((file.phys().nlevels, file.phys().maxblkid), (6, 1));
        let bytes = file.read_at(0, 2000).await.unwrap();
        assert!(bytes[..700] == noise[..700] && bytes[700..].iter().all(|byte| *byte == 0));
        live.apply(9, |tx| tx.free(object)).await.unwrap();
        bench.sync(&live, 9).await;
        let walked = walk(&open(&bench, &live).await, 9).await;
        bench.check_alive(&walked.blocks, "freed");
        assert_eq!(walked.blocks.len(), 1, "only the root is left");
    });
}

#[test]
fn the_three_old_pointers_move_into_one_block() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        let object = live.apply(4, |tx| tx.allocate(&narrow())).await.unwrap();
        live.apply(4, |tx| tx.write(object, 0, &[1; 3 * 512])).await.unwrap();
        bench.sync(&live, 4).await;
        let before = dnode(&bench, &live, object).await;
        let before: Vec<BlockPtr> = before.pointers().collect();
        assert!(before.iter().all(|pointer| !pointer.is_hole()));
        live.apply(5, |tx| tx.write(object, 3 * 512, &[2; 512])).await.unwrap();
        bench.sync(&live, 5).await;
        let after = dnode(&bench, &live, object).await;
        let top: Vec<BlockPtr> = after.pointers().collect();
        assert_eq!((after.phys().nlevels, top[0].level(), top[0].fill()), (2, 1, 4));
        assert!(top[1..].iter().all(|pointer| *pointer == BlockPtr::HOLE));
        for (blkid, pointer) in before.iter().enumerate() {
            assert_eq!(after.stored_pointer(0, blkid as u64).await.unwrap(), *pointer);
        }
    });
}

#[test]
fn sync_reports_blocks_that_activate_features() {
    run(async |mut bench| {
        bench.policies.0.compression =
            cenote_block::policy::CompressionSetting::from_property(16).unwrap();
        bench.policies.0.checksum = ChecksumType::Blake3;
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        let spec = ObjectSpec::new(FILE, 1 << 20);
        let object = live.apply(4, |tx| tx.allocate(&spec)).await.unwrap();
        bench.sync(&live, 4).await;
        assert!(!bench.facts.lock().unwrap().has_large_block);
        let text = b"the same again and again ".repeat(1 << 16);
        live.apply(5, |tx| tx.write(object, 0, &text)).await.unwrap();
        bench.sync(&live, 5).await;
        let facts = *bench.facts.lock().unwrap();
        assert!(
            facts.has_large_block && facts.has_zstd && facts.has_checksum(ChecksumType::Blake3)
        );
        assert!(!facts.has_large_dnode && !facts.has_checksum(ChecksumType::Sha512));
        let file = dnode(&bench, &live, object).await;
        assert!(file.read_at(0, text.len()).await.unwrap()[..] == text[..]);
        // Equal bytes are not written again (nopwrite).
        live.apply(6, |tx| tx.write(object, 0, &text)).await.unwrap();
        bench.sync(&live, 6).await;
        assert!(bench.how("kept") > 0);
        let walked = walk(&open(&bench, &live).await, 6).await;
        bench.check_alive(&walked.blocks, "kept");
    });
}

/// Many objects: the search skips full dnode blocks, and a reopened set finds gaps.
#[test]
fn numbers_of_many_objects() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 0, ObjSetType::Meta);
        let spec = ObjectSpec::new(FILE, 512);
        for _ in 0..2000 {
            live.apply(4, |tx| tx.allocate(&spec)).await.unwrap();
        }
        bench.sync(&live, 4).await;
        for object in 500..600 {
            live.apply(5, |tx| tx.free(object)).await.unwrap();
        }
        bench.sync(&live, 5).await;
        let set = open(&bench, &live).await;
        assert_eq!((set.object_count(), set.phys().meta_dnode.nlevels), (1900, 2));
        let live = Live::open(bench.blocks(), &set).unwrap();
        bench.store.clear_cache();
        bench.set_misses(100);
        let mut found = Vec::new();
        for _ in 0..140 {
            found.push(live.apply(6, |tx| tx.allocate(&spec)).await.unwrap());
        }
        // Unused numbers in the first block, the gap, and then the numbers behind the last.
        let expected = (1..32).chain(500..600).chain(2032..2041);
        assert_eq!(found, expected.collect::<Vec<_>>());
        bench.sync(&live, 6).await;
        let walked = walk(&open(&bench, &live).await, 6).await;
        bench.check_alive(&walked.blocks, "many objects");
    });
}

#[test]
fn indirect_blocks_keep_their_size_once_there_are_some() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        let set = async |txg, object, shift| {
            live.apply(txg, |tx| tx.set_indirect_shift(object, shift)).await
        };
        let object = live.apply(4, |tx| tx.allocate(&narrow())).await.unwrap();
        set(4, object, 13).await.unwrap();
        live.apply(4, |tx| tx.write(object, 0, &[7; 9000])).await.unwrap();
        assert_eq!(set(4, object, 14).await.unwrap_err().kind(), Kind::Invalid);
        // The levels are added by the sync of txg 4, although the layer is gone from memory.
        live.apply(5, |tx| tx.free_range(object, 0, None)).await.unwrap();
        assert_eq!(set(5, object, 14).await.unwrap_err().kind(), Kind::Invalid);
        bench.sync(&live, 4).await;
        assert_eq!(set(5, object, 14).await.unwrap_err().kind(), Kind::Invalid);
        bench.sync(&live, 5).await;
        let file = dnode(&bench, &live, object).await;
        assert_eq!((file.phys().nlevels, file.phys().indblkshift, file.phys().used), (2, 13, 0));
        assert_eq!(set(6, object, 14).await.unwrap_err().kind(), Kind::Invalid);
    });
}

/// The engine's tasks hold these futures.
#[test]
fn changing_and_syncing_can_move_between_threads() {
    fn is_send<T: Send>(_: &T) {}
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        is_send(&live.apply(4, |tx| tx.allocate(&narrow())));
        is_send(&bench.pass(&live, 4, 1, None));
    });
}

#[test]
fn small_changes_of_a_dirty_block_copy_nothing() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        let spec = ObjectSpec::new(FILE, 128 << 10);
        let object = live.apply(4, |tx| tx.allocate(&spec)).await.unwrap();
        live.apply(4, |tx| tx.write(object, 0, &vec![1; 128 << 10])).await.unwrap();
        let block = async || live.inspect(|tx| tx.block(object, 0)).await.unwrap().unwrap();
        let place = block().await.as_ptr();
        for round in 0..50 {
            live.apply(4, |tx| tx.write(object, round * 1000, &[2; 500])).await.unwrap();
        }
        let changed = block().await;
        assert_eq!((changed.as_ptr(), &changed[49_499..49_501]), (place, &[2, 1][..]));

        // A buffer that a reader holds does not change.
        live.apply(4, |tx| tx.write(object, 0, &[3; 10])).await.unwrap();
        assert_eq!(
            (&changed[..10], &block().await[..11]),
            (&[2; 10][..], &[&[3; 10][..], &[2]].concat()[..])
        );
        drop(changed);

        // A dropped change is never seen; a finished one is seen at once.
        let given_up = live
            .apply(4, |tx| {
                tx.write(object, 5, &[4; 10])?;
                assert_eq!(tx.read(object, 4, 12)?, [3, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 2]);
                tx.free_range(object, 0, Some(128 << 10))?;
                tx.write(object, 7, &[5])?;
                assert_eq!(tx.read(object, 4, 5)?, [0, 0, 0, 5, 0]);
                tx.set_bonus(object, &[0; 4000])
            })
            .await;
        assert_eq!(given_up.unwrap_err().kind(), Kind::Invalid);
        assert_eq!(block().await[..12], [3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 2, 2]);

        // The next txg has its own copy, and the synced bytes are those of the first.
        live.apply(5, |tx| tx.write(object, 0, &[6])).await.unwrap();
        bench.sync(&live, 4).await;
        let read = async || dnode(&bench, &live, object).await.read_at(0, 2).await.unwrap();
        assert_eq!(read().await[..], [3, 3]);
        bench.sync(&live, 5).await;
        assert_eq!(read().await[..], [6, 3]);
    });
}

/// Committed objects, new ones, and those that were freed since.
#[test]
fn the_next_object_is_found_in_all_layers() {
    run(async |bench| {
        let live = Live::create(bench.blocks(), 54, ObjSetType::Zfs);
        let next = async |from| live.inspect(|tx| tx.next_object(from)).await.unwrap();
        assert_eq!(next(0).await, None);
        let claim = async |txg, number| {
            let spec = ObjectSpec::new(FILE, 512).with_number(number);
            live.apply(txg, |tx| tx.allocate(&spec)).await.unwrap();
        };
        for number in [3, 40, 5000, 400_000] {
            claim(4, number).await;
        }
        bench.sync(&live, 4).await;
        claim(5, 20).await;
        live.apply(5, |tx| tx.free(40)).await.unwrap();
        for (from, found) in [
            (0, Some(3)),
            (3, Some(3)),
            (4, Some(20)),
            (21, Some(5000)),
            (5001, Some(400_000)),
            (400_001, None),
            (u64::MAX, None),
        ] {
            assert_eq!(next(from).await, found, "from {from}");
        }
        // The numbers inside of a large dnode are not objects.
        let large = ObjectSpec { slots: 8, ..ObjectSpec::new(FILE, 512).with_number(100) };
        live.apply(5, |tx| tx.allocate(&large)).await.unwrap();
        bench.sync(&live, 5).await;
        assert_eq!((next(100).await, next(101).await), (Some(100), Some(5000)));
    });
}
