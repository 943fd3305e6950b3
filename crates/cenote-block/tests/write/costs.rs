//! Processor time of blocks in a simulation: what the table of costs says, no more and no less.

use std::time::Duration;

use cenote_block::Draft;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_rt::{Costs, Op, World, monotonic, simulate, yield_now};

use crate::bench::{Bench, Shape, Top};
use crate::round_trip::{Content, block, context, policy};

const SIZE: u64 = 128 << 10;
const LZ4: u64 = 15;
/// Smaller debts are paid later.
const DEBT: Duration = Duration::from_micros(2);

/// Returns what these operations cost.
fn cost(ops: &[(Op, u64)]) -> Duration {
    let costs = Costs::frozen();
    Duration::from_nanos(ops.iter().map(|(op, bytes)| costs.ns(*op, *bytes)).sum())
}

/// Asserts that the work since the start of the simulation has cost this.
fn assert_cost(want: Duration) {
    let spent = monotonic();
    assert!(spent <= want && want < spent + DEBT, "{spent:?} instead of {want:?}");
}

#[test]
fn blocks_cost_what_the_table_says() {
    let world = World { processors: 1, costs: Some(Costs::frozen()), ..World::new(1) };
    simulate(world, async {
        let bench = Bench::new(Shape::new(Top::RaidZ { width: 6, nparity: 2 }, 12));
        // Does not compress, and is compressed in vain.
        let data = block(Content::Random, SIZE as usize, 1);
        let policy = policy(LZ4, ChecksumType::Fletcher4);
        let draft =
            Draft { data, policy, sent: None, old: BlockPtr::HOLE, keys: None, context: context() };
        let written = bench.store.write_all(&[draft]).await.remove(0).unwrap();
        yield_now().await;
        let mut want = cost(&[
            (Op::Lz4Compress, SIZE),
            (Op::Fletcher, SIZE),
            (Op::WriteBlock, SIZE),
            (Op::Space, SIZE),
            (Op::ParityPq, SIZE),
        ]);
        want += 6 * cost(&[(Op::Command, 0)]);
        assert_cost(want);
        bench.read_stored(&written.bp).await.unwrap();
        yield_now().await;
        // The four columns with data are read.
        want += cost(&[(Op::ReadMissed, SIZE), (Op::Fletcher, SIZE)]);
        want += 4 * cost(&[(Op::Command, 0)]);
        assert_cost(want);
    })
    .unwrap();
}
