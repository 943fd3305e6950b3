//! The reads of seed 000 as the reference model has them: `labmodel.py reads`.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use cenote_rt::{FixedMap, FixedSet, Rng};

use super::super::table::HDD_10K_SAS;
use super::super::*;
use super::within;

/// One thread of the experiment: the levels that it still has to read, and their block.
type Reader = (u64, u64);

/// A disk, reads that wait for it (number, offset, length), and the number that it holds.
struct Leaf {
    disk: Rotating,
    queue: VecDeque<(u64, u64, u64)>,
    active: usize,
}

/// Random reads of aligned 8K blocks through two levels of indirect blocks, on three disks with at
/// most 10 reads each: `labmodel.py reads`.
struct Indirect {
    fan: u64,
    sizes: [u64; 3],
    span: u64,
    align: u64,
    left: u64,
    rng: Rng,
    leaves: Vec<Leaf>,
    cached: FixedMap<(u64, u64), Vec<Reader>>,
    filled: FixedSet<(u64, u64)>,
    counts: [u64; 3],
    keys: Vec<(u64, u64)>,
    timers: BinaryHeap<Reverse<u64>>,
}

const BLOCKS: u64 = 10_000_000;

impl Indirect {
    fn new(shift: u32, align: u64, reads: u64) -> Self {
        let is_small = shift == 14;
        Self {
            fan: 1 << (shift - 7),
            sizes: if is_small { [8192, 1024, 7168] } else { [8192, 5632, 53 << 10] },
            span: BLOCKS * 8192 / 3,
            align,
            left: reads,
            rng: Rng::seeded(1),
            leaves: (0..3)
                .map(|k| Leaf {
                    disk: Rotating::new(HDD_10K_SAS, k),
                    queue: VecDeque::new(),
                    active: 0,
                })
                .collect(),
            cached: FixedMap::default(),
            filled: FixedSet::default(),
            counts: [0; 3],
            keys: Vec::new(),
            timers: (0..16).map(|_| Reverse(0)).collect(),
        }
    }

    /// Reads block `index` of `level`, for a reader that wants `block`, once its parent is there.
    fn fetch(&mut self, now_ns: u64, level: u64, block: u64) {
        let index = block / self.fan.pow(level as u32);
        if self.filled.contains(&(level, index)) {
            return self.arrived(now_ns, level, block);
        }
        if let Some(waiting) = self.cached.get_mut(&(level, index)) {
            return waiting.push((level, block));
        }
        self.cached.insert((level, index), vec![(level, block)]);
        if level < 2 {
            self.fetch(now_ns, level + 1, block);
        } else {
            self.read(now_ns, level, index);
        }
    }

    /// Level `level` of a reader is in memory.
    fn arrived(&mut self, now_ns: u64, level: u64, block: u64) {
        if level == 0 {
            self.timers.push(Reverse(now_ns + 30_000));
        } else {
            self.read(now_ns, level - 1, block / self.fan.pow(level as u32 - 1));
        }
    }

    fn read(&mut self, now_ns: u64, level: u64, index: u64) {
        let mut first = (index * self.fan.pow(level as u32) * 8192) as i64;
        if level > 0 {
            first += Rng::seeded(index << 2 | level).below(128 << 20) as i64 - (64 << 20);
        }
        let first = first.clamp(0, (3 * self.span - (1 << 20)) as i64) as u64;
        let copy = if level > 0 { self.rng.below(2) } else { 0 };
        let leaf = ((first / (512 << 10) + copy) % 3) as usize;
        let id = self.keys.len() as u64;
        self.keys.push((level, index));
        self.counts[level as usize] += 1;
        let io = (id, first / 3 / 512 * 512, self.sizes[level as usize]);
        self.leaves[leaf].queue.push_back(io);
        self.pump(now_ns, leaf);
    }

    fn pump(&mut self, now_ns: u64, leaf: usize) {
        let Leaf { disk, queue, active } = &mut self.leaves[leaf];
        while *active < 10
            && let Some((id, offset, len)) = queue.pop_front()
        {
            *active += 1;
            disk.admit(now_ns, Command { id, op: Op::Read, offset, len });
        }
    }

    /// Returns reads per second.
    fn run(mut self) -> (f64, [u64; 3]) {
        let reads = self.left as f64;
        let mut done = Vec::new();
        loop {
            let timer = self.timers.peek().map(|at| at.0);
            let events = self.leaves.iter().filter_map(|leaf| leaf.disk.next_event());
            let Some(now_ns) = events.chain(timer).min() else { break (0.0, self.counts) };
            if timer == Some(now_ns) {
                self.timers.pop();
                if self.left > 0 {
                    self.left -= 1;
                    let block = self.rng.below(BLOCKS / self.align) * self.align;
                    self.fetch(now_ns, 0, block);
                } else if self.timers.is_empty() && self.cached.is_empty() {
                    break (reads / now_ns as f64 * 1e9, self.counts);
                }
            }
            for leaf in 0..3 {
                self.leaves[leaf].disk.advance(now_ns, &mut done);
                for completion in std::mem::take(&mut done) {
                    self.leaves[leaf].active -= 1;
                    let key = self.keys[completion.id as usize];
                    self.filled.insert(key);
                    for (level, block) in self.cached.remove(&key).unwrap_or_default() {
                        self.arrived(now_ns, level, block);
                    }
                    self.pump(now_ns, leaf);
                }
            }
        }
    }
}

#[test]
fn reads_through_indirect_blocks_equal_the_reference_model() {
    for (reads, align, shift, wanted, counts) in [
        (9_700, 1024, 14, 597.8, [6145, 6145, 611]),
        (9_700, 1024, 17, 628.6, [6124, 6124, 10]),
        (97_000, 128, 14, 693.6, [55_555, 55_555, 611]),
        (97_000, 128, 17, 1167.0, [55_701, 9764, 10]),
    ] {
        let (found, read) = Indirect::new(shift, align, reads).run();
        let what = format!("{reads} reads with shift {shift}");
        within(found, wanted, 3.0, &what);
        for (found, wanted) in read.into_iter().zip(counts) {
            within(found as f64, f64::from(wanted), 1.5, &format!("I/Os of {what}"));
        }
    }
}
