//! Gang blocks: forced, nested, in fragmented space, rewritten, freed.

use cenote_block::policy::WritePolicy;
use cenote_block::{Grounds, ReadContext, WriteContext, WriteMethod};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_rt::Kind;
use cenote_rt::seeded::{self, Bug};

use crate::bench::{Bench, Shape, TXG, Top, forced, wait};
use crate::round_trip::{CONTENTS, Content, block, context, policy};

/// The leader's addresses record the space that the gang takes.
async fn check_space(bench: &Bench, leader: &BlockPtr) {
    let members = bench
        .store
        .gang_members(leader, &cenote_block::Grounds::Allocated)
        .await
        .expect("it is there");
    assert!(members.len() <= 3);
    assert_eq!(members.iter().map(BlockPtr::psize).sum::<u64>(), leader.psize());
    for (index, dva) in leader.dvas().enumerate() {
        assert!(dva.gang);
        let header = bench.tree().asize_for(dva.vdev.into(), 512, TXG).expect("there");
        let parts = members.iter().filter_map(|member| member.dva(index));
        assert_eq!(dva.asize, header + parts.map(|dva| dva.asize).sum::<u64>());
    }
    for member in &members {
        assert_eq!((member.object_type().0, member.fill(), member.birth()), (0, 0, TXG));
        assert_eq!(member.checksum_id(), leader.checksum_id());
        if member.is_gang() {
            Box::pin(check_space(bench, member)).await;
        }
    }
}

#[test]
fn forced_gangs_read_back_and_are_freed_whole() {
    let tops = [
        Top::Single,
        Top::Mirror(2),
        Top::RaidZ { width: 3, nparity: 1 },
        Top::RaidZ { width: 6, nparity: 2 },
    ];
    forced(2048, || {
        for (top, ashift) in tops.into_iter().flat_map(|top| [(top, 9), (top, 12)]) {
            let bench = Bench::forced(Shape { tops: 2, metaslabs: 6, ..Shape::new(top, ashift) });
            wait(async {
                for size in [4096, 7168, 130_560, 1 << 20] {
                    for content in CONTENTS {
                        for (copies, checksum) in
                            [(1, ChecksumType::Fletcher4), (2, ChecksumType::Blake3)]
                        {
                            let gang_copies = copies + 1;
                            let policy = WritePolicy { copies, gang_copies, ..policy(2, checksum) };
                            let what = format!("{top:?} {ashift} {size} {content:?} {copies}");
                            let data = block(content, size, 1);
                            let store = &bench.store;
                            let bp = store.write(data.clone(), &policy, None, &context()).await;
                            let bp = bp.unwrap_or_else(|error| panic!("{what}: {error}")).bp;
                            let is_split = size > 1 << ashift;
                            assert_eq!(bp.is_gang(), is_split, "{what}");
                            let read = bench.read_stored(&bp).await;
                            let read = read.unwrap_or_else(|error| panic!("{what}: {error}"));
                            assert!(read[..] == data[..], "{what}");
                            assert!(
                                store
                                    .scrub(&bp, &cenote_block::Grounds::Allocated)
                                    .await
                                    .unwrap()
                                    .is_clean(),
                                "{what}"
                            );
                            if is_split {
                                assert_eq!(bp.dva_count(), usize::from(gang_copies), "{what}");
                                check_space(&bench, &bp).await;
                            }
                            store.free(&bp, TXG).await.expect("allocated");
                        }
                    }
                }
            });
            assert_eq!(bench.taken(), 0, "{top:?} {ashift}");
        }
    });
}

#[test]
fn a_gang_is_rewritten_in_place() {
    forced(2048, || {
        let bench = Bench::forced(Shape::new(Top::Single, 9));
        let policy = WritePolicy { copies: 2, gang_copies: 3, ..policy(2, ChecksumType::Sha256) };
        wait(async {
            let write = |seed, pass, old: Option<BlockPtr>| {
                let data = block(Content::Random, 8192, seed);
                let (store, context) = (&bench.store, WriteContext { pass, ..context() });
                async move { store.write(data, &policy, old.as_ref(), &context).await.unwrap() }
            };
            let old = write(1, 1, None).await.bp;
            let new = write(2, 2, Some(old)).await;
            assert!(old.is_gang() && new.method == WriteMethod::InPlace);
            assert!(new.bp.dvas().eq(old.dvas()));
            check_space(&bench, &new.bp).await;
            let read = bench.read_stored(&new.bp).await.unwrap();
            assert_eq!(read[..], block(Content::Random, 8192, 2)[..]);
            bench.store.free(&new.bp, TXG).await.unwrap();
        });
        assert_eq!(bench.taken(), 0);
    });
}

/// Rewrites gang blocks in place, and takes the later writes of one leaf back. Returns what is
/// wrong afterwards.
fn lost_rewrites(top: Top, leaves: u64, stale: u64) -> Option<&'static str> {
    let bench = Bench::forced(Shape::new(top, 9));
    let policy = WritePolicy { gang_copies: 2, ..policy(2, ChecksumType::Sha256) };
    let grounds = &Grounds::Allocated;
    wait(async {
        let write = |seed, pass, old: Option<BlockPtr>| {
            let data = block(Content::Random, 24 << 10, seed);
            let (store, context) = (&bench.store, WriteContext { pass, ..context() });
            async move { store.write(data, &policy, old.as_ref(), &context).await.unwrap() }
        };
        // A mirror reads each 2 MiB from another child: headers and members shall be in two of them.
        let mut filled = 0;
        while filled < (2 << 20) - 2048 {
            let filler = block(Content::Random, 1536, filled);
            let bp = bench.store.write(filler, &policy, None, &context()).await.unwrap().bp;
            filled = bp.dva(0).unwrap().offset + 1536;
        }
        let old = write(1, 1, None).await.bp;
        let copy_of = |leaf: u64| {
            let mut copy = Vec::new();
            bench.memory[&(100 + leaf)].edit(|bytes| copy.extend_from_slice(bytes));
            copy
        };
        let earlier = copy_of(stale);
        let new = write(2, 2, Some(old)).await;
        assert!(new.method == WriteMethod::InPlace && new.bp.is_gang());
        let written: Vec<_> = (0..leaves).map(copy_of).collect();
        assert!(earlier != written[stale as usize], "a leaf without a part of the block");
        bench.memory[&(100 + stale)].edit(|bytes| bytes.copy_from_slice(&earlier));

        let report = bench.store.scrub(&new.bp, grounds).await.unwrap();
        if report.unreadable > 0 {
            return Some("a scrub cannot read the block");
        }
        // A header is on some leaves of a RAID-Z vdev only.
        let is_everywhere = matches!(top, Top::Mirror(_));
        if is_everywhere && report.bad.iter().all(|part| !part.is_gang_header) {
            return Some("a scrub takes the earlier header for the latest one");
        }
        if report.bad.iter().any(|part| part.child.guid != 100 + stale) {
            return Some("a scrub blames a leaf that has the latest bytes");
        }
        // Children of a mirror are read in turn, and a header is repaired when it is read.
        for _ in 0..4 {
            match bench.read_stored(&new.bp).await {
                Ok(read) if read[..] == block(Content::Random, 24 << 10, 2)[..] => {}
                _ => return Some("the block is not read"),
            }
        }
        let changed = (0..leaves).filter(|leaf| copy_of(*leaf) != written[*leaf as usize]);
        if changed.into_iter().any(|leaf| leaf != stale) {
            return Some("latest bytes were overwritten");
        }
        None
    })
}

/// A leaf that lost the later writes has an earlier header, which verifies.
#[test]
fn a_leaf_that_lost_a_rewrite_is_found_and_destroys_nothing() {
    let tops = [
        (Top::Mirror(2), 2),
        (Top::Mirror(3), 3),
        (Top::RaidZ { width: 3, nparity: 1 }, 3),
        (Top::RaidZ { width: 5, nparity: 2 }, 5),
    ];
    let wrong = || {
        let mut cases =
            tops.iter().flat_map(|&(top, count)| (0..count).map(move |n| (top, count, n)));
        cases.find_map(|(top, count, stale)| lost_rewrites(top, count, stale))
    };
    forced(2048, || {
        assert_eq!(wrong(), None);
        if cfg!(debug_assertions) {
            for bug in Bug::OF_GANGS {
                seeded::set(Some(bug));
                let found = wrong();
                seeded::set(None);
                eprintln!("{bug:?}: {found:?}");
                assert!(found.is_some(), "{bug:?} is not found");
            }
        }
    });
}

/// Without forcing: free space is fragmented, then exhausted.
#[test]
fn full_pools_split_and_then_refuse_without_leaking() {
    let shape = Shape { metaslab_shift: 20, metaslabs: 4, ..Shape::new(Top::Single, 12) };
    let bench = Bench::new(shape);
    let raw = policy(2, ChecksumType::Fletcher4);
    wait(async {
        // Seven of these leave 100 KiB in each metaslab: then ask for 128 KiB.
        let mut held = Vec::new();
        let mut gangs = 0;
        let error = loop {
            let size = if held.len() < 4 * 7 { 132 << 10 } else { 128 << 10 };
            let data = block(Content::Random, size, held.len() as u64);
            match bench.store.write(data.clone(), &raw, None, &context()).await {
                Ok(written) => {
                    gangs += usize::from(written.bp.is_gang());
                    let read = bench.store.read(&written.bp, &ReadContext::default()).await;
                    assert!(read.unwrap()[..] == data[..]);
                    held.push((written.bp, data));
                }
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), Kind::NoSpace);
        // Space that is too little for a large block is enough for small ones.
        let small = block(Content::Random, 4096, 9);
        while let Ok(written) = bench.store.write(small.clone(), &raw, None, &context()).await {
            held.push((written.bp, small.clone()));
        }
        eprintln!("{} blocks, {gangs} of them split", held.len());
        assert!(gangs >= 2);
        let mut taken = 0;
        for (bp, data) in &held {
            let read = bench.read_stored(bp).await.expect("still there");
            assert!(read[..] == data[..]);
            taken += bp.asize_total();
        }
        assert_eq!(taken, 4 << 20, "every byte of the pool, once");
        assert_eq!(bench.taken(), taken);
        for (bp, _) in &held {
            bench.store.free(bp, TXG).await.expect("allocated");
        }
        let freed: u64 =
            bench.space.take_changes(TXG).unwrap().iter().map(|change| change.frees.bytes()).sum();
        assert_eq!(freed, taken);
    });
}

/// A gang block whose header cannot be read stays allocated.
#[test]
fn an_unreadable_header_frees_nothing() {
    forced(2048, || {
        let bench = Bench::forced(Shape::new(Top::Single, 9));
        let policy = WritePolicy { gang_copies: 1, ..policy(2, ChecksumType::Fletcher4) };
        let data = block(Content::Random, 8192, 1);
        wait(async {
            let bp = bench.store.write(data, &policy, None, &context()).await.unwrap().bp;
            let taken = bench.taken();
            assert_eq!(taken, bp.asize_total());
            bench.damage(100, bp.dva(0).unwrap().offset, 512);
            let error = bench.store.free(&bp, TXG).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Checksum);
            assert!(bench.space.take_changes(TXG).unwrap().is_empty());
        });
    });
}
