//! Intent log blocks: one address, an identity, a trailer.

use cenote_block::WriteError;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zil::LogBlock;
use cenote_rt::{BufMut, Kind};

use crate::bench::{Bench, Shape, TXG, Top, wait};

const CHAIN: [u64; 3] = [0x1111_2222, 0x3333_4444, 54];

fn identity(sequence: u64) -> [u64; 4] {
    [CHAIN[0], CHAIN[1], CHAIN[2], sequence]
}

/// A block as the log fills it: pointer to the next, bytes used, records.
fn filled(size: u64, next: &BlockPtr, records: &[u8]) -> BufMut {
    let mut block = BufMut::zeroed(size as usize);
    block[8..136].copy_from_slice(&next.to_bytes());
    let used = 184 + records.len() as u64;
    block[136..144].copy_from_slice(&used.to_le_bytes());
    block[184..184 + records.len()].copy_from_slice(records);
    block
}

#[test]
fn a_chain_is_written_and_read_and_ends() {
    for top in [Top::Single, Top::Mirror(2), Top::RaidZ { width: 4, nparity: 1 }] {
        let bench = Bench::new(Shape::new(top, 12));
        wait(async {
            let mut bp = bench.store.alloc_log(4096, TXG, identity(1), None).await.unwrap();
            let first = bp;
            for sequence in 1..=5_u64 {
                let size = [4096, 12288, 131_072][sequence as usize % 3];
                let next =
                    bench.store.alloc_log(size, TXG, identity(sequence + 1), None).await.unwrap();
                let records = vec![sequence as u8; 8 * sequence as usize];
                let block = filled(bp.psize(), &next, &records);
                bench.store.write_log(&bp, block, None).await.unwrap();
                bp = next;
            }
            let mut at = first;
            for sequence in 1..=5_u64 {
                assert_eq!((at.object_type(), at.dva_count()), (ObjectType::INTENT_LOG, 1));
                assert_eq!((at.birth(), at.fill(), at.checksum()), (TXG, 0, identity(sequence)));
                let block = bench.store.read_log(&at, None).await.unwrap();
                let log = LogBlock::decode(&block, &at).expect("well formed");
                assert_eq!(log.records, vec![sequence as u8; 8 * sequence as usize], "{top:?}");
                at = log.next;
            }
            let end = bench.store.read_log(&at, None).await.unwrap_err();
            assert_eq!(
                end.kind(),
                Kind::Checksum,
                "{top:?}: the chain ends at what was not written"
            );
        });
    }
}

/// The unused part of a block is not written, so the bytes on the disk there stay.
#[test]
fn only_the_used_part_is_written() {
    let bench = Bench::new(Shape::new(Top::Single, 9));
    wait(async {
        let bp = bench.store.alloc_log(32768, TXG, identity(1), None).await.unwrap();
        let next = bench.store.alloc_log(4096, TXG, identity(2), None).await.unwrap();
        let start = (4 << 20) + bp.dva(0).unwrap().offset as usize;
        bench.memory[&100].edit(|bytes| bytes[start..start + 32768].fill(0xee));
        let block = filled(32768, &next, &[1; 5000]);
        bench.store.write_log(&bp, block, None).await.unwrap();
        bench.memory[&100].edit(|bytes| {
            assert!(bytes[start + 8192..start + 32768].iter().all(|byte| *byte == 0xee));
            assert!(bytes[start..start + 8192].iter().all(|byte| *byte != 0xee));
        });
        bench.store.read_log(&bp, None).await.expect("verified by its used part");
        assert_eq!(bench.store.stats().bytes_written, 8192);
    });
}

#[test]
fn log_blocks_are_claimed_and_refused() {
    let bench = Bench::new(Shape::new(Top::Single, 9));
    wait(async {
        let bp = bench.store.alloc_log(4096, TXG, identity(1), None).await.unwrap();
        bp.dvas().try_for_each(|dva| bench.space.unallocate(&dva, TXG)).unwrap();
        bench.store.claim(&bp, TXG, true).await.expect("free now");
        bench.store.claim(&bp, TXG, false).await.expect("free now");
        let twice = bench.store.claim(&bp, TXG, true).await.unwrap_err();
        assert_eq!(twice.kind(), Kind::NotFound);
        bench.store.free(&bp, TXG).await.expect("claimed");

        for size in [0, 512, 4097] {
            let error = bench.store.alloc_log(size, TXG, identity(1), None).await.unwrap_err();
            assert_eq!(error.cause(), Some(&WriteError::Size { size }));
        }
        let other = bench.store.alloc_log(8192, TXG, identity(2), None).await.unwrap();
        let short = BufMut::zeroed(4096);
        let error = bench.store.write_log(&other, short, None).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Invalid);
    });
}
