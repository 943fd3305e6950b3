//! Batches of blocks: each block is stored as if it were written alone, they are adjacent on disk,
//! and the devices get few requests.

use cenote_block::{Draft, ReadContext, WriteMethod};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_rt::{Buf, Kind};
use cenote_vdev::queue::Direction;

use crate::bench::{Bench, Shape, Top, wait};
use crate::round_trip::{CONTENTS, Content, block, context, policy};

/// Not compressed.
const OFF: u64 = 2;
const LZ4: u64 = 15;

fn draft(data: Buf, compression: u64) -> Draft {
    let policy = policy(compression, ChecksumType::Fletcher4);
    Draft { data, policy, sent: None, old: BlockPtr::HOLE, keys: None, context: context() }
}

#[test]
fn small_blocks_reach_the_leaves_as_few_long_writes() {
    const COUNT: u64 = 64;
    for (top, leaves, writes_max) in
        [(Top::Single, 1, 5), (Top::Mirror(2), 2, 10), (Top::RaidZ { width: 6, nparity: 2 }, 4, 12)]
    {
        let bench = Bench::new(Shape::new(top, 12));
        let drafts: Vec<_> =
            (0..COUNT).map(|n| draft(block(Content::Random, 8192, n), OFF)).collect();
        let written = wait(bench.store.write_all(&drafts));
        let pointers: Vec<_> = written.into_iter().map(|written| written.unwrap().bp).collect();
        for pair in pointers.windows(2) {
            let [one, two] = [0, 1].map(|n| pair[n].dvas().next().unwrap());
            assert_eq!(one.offset + one.asize, two.offset, "{top:?}: side by side");
        }
        let stats = bench.tree().leaves().map(|(_, leaf)| leaf.queue_stats().unwrap());
        let counts = stats.map(|stats| stats.direction(Direction::Write).operations);
        let counts: Vec<_> = counts.filter(|count| *count > 0).collect();
        // On raidz2 two leaves would get only pads, and get nothing.
        assert_eq!(counts.len(), leaves, "{top:?}");
        let writes: u64 = counts.iter().sum();
        assert!(writes <= writes_max, "{top:?}: {writes} writes");
        for (draft, bp) in drafts.iter().zip(&pointers) {
            let stored = wait(bench.read_stored(bp)).unwrap();
            assert!(stored[..] == draft.data[..], "{top:?}");
        }
    }
}

#[test]
fn blocks_of_a_batch_are_stored_as_if_written_alone() {
    let together = Bench::new(Shape::new(Top::Single, 9));
    let alone = Bench::new(Shape::new(Top::Single, 9));
    let mut drafts: Vec<_> = CONTENTS
        .iter()
        .zip(0..)
        .map(|(content, seed)| draft(block(*content, 8192, seed), LZ4))
        .collect();
    // One block has an impossible size: the others are not affected.
    drafts.insert(2, draft(Buf::from(vec![1; 1000]), LZ4));
    let written = wait(together.store.write_all(&drafts));
    assert_eq!(written.len(), drafts.len());
    let mut hows = Vec::new();
    for (draft, written) in drafts.iter().zip(written) {
        let Draft { data, policy, context, .. } = draft;
        let single = wait(alone.store.write(data.clone(), policy, None, context));
        match (written, single) {
            (Ok(written), Ok(single)) => {
                assert_eq!(written.method, single.method);
                assert_eq!(written.bp.words()[6..], single.bp.words()[6..]);
                hows.push(written.method);
                let read = wait(together.store.read(&written.bp, &ReadContext::default()));
                // The pointer of a hole that never was a block does not tell its length.
                assert!(written.method == WriteMethod::Hole || read.unwrap()[..] == data[..]);
            }
            (Err(one), Err(other)) => {
                assert_eq!((one.kind(), other.kind()), (Kind::Invalid, Kind::Invalid));
                assert_eq!(one.to_string(), other.to_string());
            }
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(
        hows,
        [
            WriteMethod::Hole,
            WriteMethod::Embedded,
            WriteMethod::New,
            WriteMethod::New,
            WriteMethod::New
        ]
    );
    assert!(wait(together.store.write_all(&[])).is_empty());
}

#[test]
fn batches_larger_than_the_limit_in_flight_are_written() {
    let bench = Bench::new(Shape { metaslabs: 6, ..Shape::new(Top::Single, 12) });
    let drafts: Vec<_> =
        (0..80).map(|n| draft(block(Content::Random, 128 << 10, n), OFF)).collect();
    let (one, other) = drafts.split_at(40);
    let both = futures_util::future::join(bench.store.write_all(one), bench.store.write_all(other));
    let (one, other) = wait(both);
    assert!(one.iter().chain(&other).all(Result::is_ok));
}
