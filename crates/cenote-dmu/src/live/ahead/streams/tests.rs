use super::*;

const OBJECT: Extent = Extent { block_size: 8 << 10, blocks: 1 << 20 };

fn bounds() -> Bounds {
    Bounds {
        streams: 8,
        distance_min: 1 << 20,
        distance_max: 4 << 20,
        indirect_max: 64 << 20,
        reorder: 1 << 20,
        reap: Duration::from_secs(1),
    }
}

/// Streams with a reader who is never late.
#[derive(Default)]
struct Reader {
    streams: Streams,
    now: u64,
    /// All that was wished for.
    wished: Vec<u64>,
}

impl Reader {
    fn ask(&mut self, blocks: Range<u64>, waits: bool) -> Option<Wish> {
        let now = Duration::from_millis(self.now);
        let wish = self.streams.note(blocks, waits, OBJECT, &bounds(), now)?;
        self.streams.followed(&wish, None, wish.above.end);
        self.wished.extend(wish.data.iter().cloned().flatten());
        Some(wish)
    }
}

#[test]
fn a_sequence_is_wished_for_once_and_ever_further_ahead() {
    let mut reader = Reader::default();
    assert_eq!(reader.ask(0..4, true), None);
    let mut ahead = Vec::new();
    for start in (4..4096).step_by(4) {
        reader.ask(start..start + 4, false).unwrap();
        ahead.push(reader.wished.last().unwrap() + 1 - (start + 4));
    }
    assert_eq!(ahead[..6], [8, 16, 32, 64, 128, 128], "twice as far up to the least distance");
    assert!(reader.wished.iter().copied().eq(8..4096 + 128), "each block once, none left out");
    reader.ask(4096..4100, true);
    assert_eq!(reader.wished.last().unwrap() + 1 - 4100, 144, "an eighth more for who waits");
    for start in (4100..8192).step_by(4) {
        reader.ask(start..start + 4, true).unwrap();
    }
    assert_eq!(reader.wished.last().unwrap() + 1 - 8192, 512, "no further than the greatest");
}

#[test]
fn parts_of_a_block_are_one_request() {
    let mut reader = Reader::default();
    for block in 0..10_u64 {
        for _ in 0..16 {
            reader.ask(block..block + 1, false);
        }
    }
    assert!(reader.wished.iter().copied().eq(2..reader.wished.len() as u64 + 2));
    assert!(reader.wished.len() > 10);
}

#[test]
fn equal_steps_are_followed_either_way() {
    for (start, step) in [(0_u64, 100_i64), (900_000, -100), (5000, -2)] {
        let mut reader = Reader::default();
        let at = |number: i64| start.checked_add_signed(step * number).unwrap();
        for number in 0..20 {
            let wish = reader.ask(at(number)..at(number) + 2, false);
            assert_eq!(wish.is_some(), number >= 2, "{step}: the third tells");
        }
        let starts: Vec<u64> = reader.wished.chunks(2).map(|pair| pair[0]).collect();
        let expected: Vec<u64> = (3..3 + starts.len() as i64).map(at).collect();
        assert_eq!(starts, expected, "{step}: each once");
        assert!(starts.len() > 40, "{step}");
    }
}

#[test]
fn the_end_is_not_passed() {
    let mut reader = Reader::default();
    let end = OBJECT.blocks;
    for start in (end - 40..end).step_by(4) {
        reader.ask(start..start + 4, true);
    }
    assert!(reader.wished.iter().copied().eq(end - 32..end));
    assert!(reader.streams.sequences.is_empty(), "at the end a stream is over");
    let mut steps = Reader::default();
    for number in 1..6 {
        steps.ask(end - 100 * (6 - number)..end - 100 * (6 - number) + 1, true);
    }
    assert!(steps.wished.iter().all(|block| *block < end) && !steps.wished.is_empty());
}

#[test]
fn random_requests_are_left_alone() {
    // Even in an object so small that they meet one another.
    for (blocks, requests) in [(OBJECT.blocks, 50_000), (16_384, 200_000)] {
        let mut reader = Reader::default();
        let mut rng = cenote_rt::Rng::seeded(3);
        for _ in 0..requests {
            let start = rng.below(blocks - 1);
            reader.now += rng.below(2);
            reader.ask(start..start + 1, true);
            assert!(reader.streams.sequences.len() <= 8);
        }
        let count = reader.wished.len();
        assert!(count < requests / 100, "{count} of {blocks} blocks for nothing");
    }
}

#[test]
fn readers_beside_one_another_have_their_own() {
    let mut reader = Reader::default();
    let starts: Vec<u64> = (0..8).map(|number| number * 100_000).collect();
    for turn in 0..50 {
        for start in &starts {
            reader.ask(start + turn * 2..start + turn * 2 + 2, false);
        }
    }
    for start in &starts {
        let own = reader.wished.iter().filter(|block| (*start..start + 1000).contains(block));
        assert!(own.count() >= 100, "{start}");
    }
    // A ninth has to wait until one of them stops.
    assert!(reader.ask(950_000..950_002, false).is_none());
    assert!(reader.ask(950_002..950_004, false).is_none());
    reader.now = 2000;
    assert!(reader.ask(950_000..950_002, false).is_none());
    assert!(reader.ask(950_002..950_004, false).is_some());
}

#[test]
fn requests_out_of_order_are_of_their_stream() {
    let mut reader = Reader::default();
    for block in 0..64_u64 {
        // In fours, the last first, once the stream is long enough.
        let place = if block < 16 { block } else { block ^ 3 };
        reader.ask(place..place + 1, false);
    }
    assert_eq!(reader.streams.sequences.len(), 1);
    let mut wished = reader.wished.clone();
    wished.sort_unstable();
    wished.dedup();
    assert_eq!(wished.len(), reader.wished.len(), "each block once");
    assert!(wished.last().unwrap() > &100);
}

#[test]
fn blocks_above_are_wished_for_further_ahead() {
    let mut reader = Reader::default();
    let mut above = 0;
    for start in (0..2048).step_by(4) {
        if let Some(wish) = reader.ask(start..start + 4, false) {
            assert!(wish.above.is_empty() || wish.above.start >= above);
            above = above.max(wish.above.end);
        }
    }
    let data = reader.wished.last().unwrap() + 1;
    assert_eq!(above - data, 256, "twice the distance of the data");
}
