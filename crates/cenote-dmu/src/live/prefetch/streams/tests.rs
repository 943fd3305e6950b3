use super::*;

const OBJECT: ObjectShape = ObjectShape { block_size: 8 << 10, blocks: 1 << 20 };

fn limits() -> PrefetchLimits {
    PrefetchLimits {
        streams: 8,
        distance_min: 1 << 20,
        distance_max: 4 << 20,
        indirect_max: 64 << 20,
        reorder: 1 << 20,
        reap: Duration::from_secs(1),
    }
}

/// Streams with a reader that never waits.
#[derive(Default)]
struct Reader {
    streams: Streams,
    now: u64,
    /// All planned blocks.
    planned: Vec<u64>,
}

impl Reader {
    fn ask(&mut self, blocks: Range<u64>, waits: bool) -> Option<PrefetchPlan> {
        let now = Duration::from_millis(self.now);
        let plan = self.streams.note(blocks, waits, OBJECT, &limits(), now)?;
        self.streams.followed(&plan, None, plan.above.end);
        self.planned.extend(plan.data.iter().cloned().flatten());
        Some(plan)
    }
}

#[test]
fn sequential_prefetch_grows_and_reads_each_block_once() {
    let mut reader = Reader::default();
    assert_eq!(reader.ask(0..4, true), None);
    let mut ahead = Vec::new();
    for start in (4..4096).step_by(4) {
        reader.ask(start..start + 4, false).unwrap();
        ahead.push(reader.planned.last().unwrap() + 1 - (start + 4));
    }
    assert_eq!(ahead[..6], [8, 16, 32, 64, 128, 128], "doubles up to the minimum distance");
    assert!(reader.planned.iter().copied().eq(8..4096 + 128), "each block once, none left out");
    reader.ask(4096..4100, true);
    assert_eq!(
        reader.planned.last().unwrap() + 1 - 4100,
        144,
        "an eighth more for a waiting reader"
    );
    for start in (4100..8192).step_by(4) {
        reader.ask(start..start + 4, true).unwrap();
    }
    assert_eq!(reader.planned.last().unwrap() + 1 - 8192, 512, "no further than the maximum");
}

#[test]
fn parts_of_a_block_are_one_request() {
    let mut reader = Reader::default();
    for block in 0..10_u64 {
        for _ in 0..16 {
            reader.ask(block..block + 1, false);
        }
    }
    assert!(reader.planned.iter().copied().eq(2..reader.planned.len() as u64 + 2));
    assert!(reader.planned.len() > 10);
}

#[test]
fn strided_prefetch_works_in_both_directions() {
    for (start, step) in [(0_u64, 100_i64), (900_000, -100), (5000, -2)] {
        let mut reader = Reader::default();
        let at = |number: i64| start.checked_add_signed(step * number).unwrap();
        for number in 0..20 {
            let plan = reader.ask(at(number)..at(number) + 2, false);
            assert_eq!(plan.is_some(), number >= 2, "{step}: the third tells");
        }
        let starts: Vec<u64> = reader.planned.chunks(2).map(|pair| pair[0]).collect();
        let expected: Vec<u64> = (3..3 + starts.len() as i64).map(at).collect();
        assert_eq!(starts, expected, "{step}: each once");
        assert!(starts.len() > 40, "{step}");
    }
}

#[test]
fn prefetch_stops_at_the_end_of_the_object() {
    let mut reader = Reader::default();
    let end = OBJECT.blocks;
    for start in (end - 40..end).step_by(4) {
        reader.ask(start..start + 4, true);
    }
    assert!(reader.planned.iter().copied().eq(end - 32..end));
    assert!(reader.streams.sequences.is_empty(), "at the end a stream is over");
    let mut strides = Reader::default();
    for number in 1..6 {
        strides.ask(end - 100 * (6 - number)..end - 100 * (6 - number) + 1, true);
    }
    assert!(strides.planned.iter().all(|block| *block < end) && !strides.planned.is_empty());
}

#[test]
fn random_requests_are_not_prefetched() {
    // Even in an object so small that requests meet by chance.
    for (blocks, requests) in [(OBJECT.blocks, 50_000), (16_384, 200_000)] {
        let mut reader = Reader::default();
        let mut rng = cenote_rt::Rng::seeded(3);
        for _ in 0..requests {
            let start = rng.below(blocks - 1);
            reader.now += rng.below(2);
            reader.ask(start..start + 1, true);
            assert!(reader.streams.sequences.len() <= 8);
        }
        let count = reader.planned.len();
        assert!(count < requests / 100, "{count} of {blocks} blocks for nothing");
    }
}

#[test]
fn concurrent_readers_have_streams_of_their_own() {
    let mut reader = Reader::default();
    let starts: Vec<u64> = (0..8).map(|number| number * 100_000).collect();
    for round in 0..50 {
        for start in &starts {
            reader.ask(start + round * 2..start + round * 2 + 2, false);
        }
    }
    for start in &starts {
        let own = reader.planned.iter().filter(|block| (*start..start + 1000).contains(block));
        assert!(own.count() >= 100, "{start}");
    }
    // A ninth stream has to wait until one of them ends.
    assert!(reader.ask(950_000..950_002, false).is_none());
    assert!(reader.ask(950_002..950_004, false).is_none());
    reader.now = 2000;
    assert!(reader.ask(950_000..950_002, false).is_none());
    assert!(reader.ask(950_002..950_004, false).is_some());
}

#[test]
fn requests_out_of_order_belong_to_their_stream() {
    let mut reader = Reader::default();
    for block in 0..64_u64 {
        // In groups of four, the last first, once the stream is long enough.
        let place = if block < 16 { block } else { block ^ 3 };
        reader.ask(place..place + 1, false);
    }
    assert_eq!(reader.streams.sequences.len(), 1);
    let mut planned = reader.planned.clone();
    planned.sort_unstable();
    planned.dedup();
    assert_eq!(planned.len(), reader.planned.len(), "each block once");
    assert!(planned.last().unwrap() > &100);
}

#[test]
fn indirect_blocks_are_prefetched_further_ahead() {
    let mut reader = Reader::default();
    let mut above = 0;
    for start in (0..2048).step_by(4) {
        if let Some(plan) = reader.ask(start..start + 4, false) {
            assert!(plan.above.is_empty() || plan.above.start >= above);
            above = above.max(plan.above.end);
        }
    }
    let data = reader.planned.last().unwrap() + 1;
    assert_eq!(above - data, 256, "twice the distance of the data");
}
