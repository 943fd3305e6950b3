//! The chain of log blocks in memory, and the effect of a sync on it (spec 07 A10, A11).
//!
//! ```text
//!   header ──> written ──> written ──> being written ──> empty: the next to be filled
//!              `── freed once their txgs are synced      `── chosen before the one before
//! ```
//!
//! Invariants
//! * L1 The blocks are in the order of their sequence numbers; only the last is empty.
//! * L2 A block leaves the chain in the sync of a txg that contains its allocation and all its
//!   records, and the header of that txg names the next block.
//! * L7 Records are replayed in the order of their numbers, and of the txgs that replay them.
//! * L8 The logs are frozen until everything that froze them has ended: no chain begins meanwhile.
//! * L4 A hold on a txg is counted until it is released, and a txg with holds is not committed.
//! * L3 Blocks allocated in a txg can be reached from the header of that txg: its sync waits for
//!   the writes that lead there.

use std::collections::{BTreeMap, VecDeque};

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::zil::{ZilFlags, ZilHeader, block_seq};
use cenote_rt::seeded::{Bug, is_on};

/// State of a log block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum BlockState {
    /// Allocated, not filled.
    Empty,
    /// Being written.
    Writing,
    /// Written, or failed permanently.
    Written,
}

/// A block of the chain.
#[derive(Debug, Clone)]
pub(super) struct Link {
    pub(super) bp: BlockPtr,
    /// Newest txg of its records.
    pub(super) max_txg: u64,
    pub(super) state: BlockState,
}

/// State of a log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Stage {
    /// The header was not read yet.
    Unknown,
    /// There is no chain.
    None,
    /// A chain of this import.
    Live,
    /// The chain is removed as soon as everything in it is synced.
    Retiring,
    /// A chain of an earlier import, which is to be replayed.
    Claimed(ZilHeader),
    /// It was replayed: these blocks are to be freed.
    Discarding(Vec<BlockPtr>),
    /// A chain of an unknown format, which is not changed.
    Foreign,
    /// The dataset was destroyed.
    Gone,
}

/// The chain of a head.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) stage: Stage,
    /// The words that identify all blocks of the chain.
    pub(super) id: [u64; 2],
    pub(super) links: VecDeque<Link>,
    /// Sequence number of the next block, and of the last record.
    pub(super) next_block: u64,
    pub(super) last_record: u64,
    /// First block, according to the last header.
    header: Option<BlockPtr>,
    /// The first txg whose header names the chain.
    anchored: Option<u64>,
    /// That txg is on disk.
    pub(super) is_usable: bool,
    /// Blocks outside of every chain, to be freed in the txg of their allocation.
    orphans: Vec<BlockPtr>,
    /// Number of data blocks that are being written early, by txg.
    holds: BTreeMap<u64, usize>,
    /// Data blocks written early, until the sync of their txg.
    early: BTreeMap<u64, Vec<BlockPtr>>,
    /// Progress of the replay, by txg.
    replayed: BTreeMap<u64, u64>,
    /// The txg in which the current blocks are freed with their dataset.
    doomed: u64,
}

impl Default for Chain {
    fn default() -> Self {
        Self {
            stage: Stage::Unknown,
            id: [0; 2],
            links: VecDeque::new(),
            next_block: 1,
            last_record: 0,
            header: None,
            anchored: None,
            is_usable: false,
            orphans: Vec::new(),
            holds: BTreeMap::new(),
            early: BTreeMap::new(),
            replayed: BTreeMap::new(),
            doomed: 0,
        }
    }
}

/// The effect of a txg's sync on the log.
#[derive(Debug, Default)]
pub(super) struct Step {
    pub(super) header: Option<ZilHeader>,
    pub(super) freed: Vec<BlockPtr>,
    /// The chain is new, or was removed.
    pub(super) is_begun: bool,
    pub(super) is_ended: bool,
}

/// Returns a header without a chain.
pub(super) fn no_header() -> ZilHeader {
    ZilHeader {
        claim_txg: 0,
        replay_seq: 0,
        log: BlockPtr::HOLE,
        claim_blk_seq: 0,
        flags: ZilFlags::empty(),
        claim_lr_seq: 0,
        pad: [0; 3],
    }
}

impl Chain {
    /// Reads the header of the object set.
    pub(super) fn adopt(&mut self, header: ZilHeader) {
        if self.stage != Stage::Unknown {
            return;
        }
        self.stage = if header.log.is_hole() {
            Stage::None
        } else if header.is_claimed() {
            Stage::Claimed(header)
        } else {
            Stage::Foreign
        };
    }

    /// Starts a new chain with this identity, without blocks.
    pub(super) fn begin(&mut self, id: [u64; 2]) {
        self.stage = Stage::Live;
        self.id = id;
        // Checks L1: blocks of an earlier chain would never be freed.
        assert!(self.links.is_empty(), "a chain begins beside another");
        (self.next_block, self.last_record) = (1, 0);
        (self.header, self.anchored, self.is_usable) = (None, None, false);
    }

    /// Appends a block; if the chain was removed meanwhile, the block is freed and false returned.
    pub(super) fn push(&mut self, bp: BlockPtr) -> bool {
        if !matches!(self.stage, Stage::Live) {
            self.orphans.push(bp);
            return false;
        }
        let [.., seq] = bp.checksum();
        // Checks L1.
        assert_eq!(seq, self.next_block, "a log block has another number than the chain");
        let last = self.links.back();
        // Checks L1: the block before was filled, and was allocated before.
        assert!(
            last.is_none_or(|last| last.bp.birth() <= bp.birth() && last.bp.dva(0) != bp.dva(0)),
            "log block {seq} is older than the one before, or at its place"
        );
        self.next_block += 1;
        self.links.push_back(Link { bp, max_txg: 0, state: BlockState::Empty });
        true
    }

    /// Returns the first txg whose header names the chain.
    pub(super) const fn anchored(&self) -> Option<u64> {
        self.anchored
    }

    /// Returns the number of a block that was not written, of the last `count` before the empty
    /// one. Blocks that a sync has freed since were written.
    pub(super) fn unwritten_of_last(&self, count: usize) -> Option<u64> {
        let mut last = self.links.iter().rev().skip(1).take(count);
        last.find(|link| link.state != BlockState::Written).map(|link| block_seq(&link.bp))
    }

    /// Returns the birth of the oldest block on this top-level vdev, including blocks to be freed.
    pub(super) fn oldest_on(&self, vdev: u64) -> Option<u64> {
        let blocks = self.links.iter().map(|link| &link.bp).chain(&self.orphans);
        let there = blocks.filter(|bp| bp.dvas().any(|dva| u64::from(dva.vdev) == vdev));
        there.map(BlockPtr::birth).min()
    }

    /// Closes the chain for new records; it is removed when everything is synced.
    pub(super) fn retire(&mut self) {
        if self.stage == Stage::Live {
            self.stage = Stage::Retiring;
        }
    }

    /// Makes the sync of `txg` wait for a data block that is being written.
    pub(super) fn hold(&mut self, txg: u64) {
        *self.holds.entry(txg).or_default() += 1;
    }

    /// Ends a [`hold`](Self::hold).
    pub(super) fn release(&mut self, txg: u64) {
        // Checks L4.
        let count = self.holds.get_mut(&txg).expect("a counted hold");
        *count -= 1;
        if *count == 0 {
            self.holds.remove(&txg);
        }
    }

    /// Records a data block that was written early in `txg`.
    pub(super) fn note_early(&mut self, txg: u64, bp: BlockPtr) {
        self.early.entry(txg).or_default().push(bp);
    }

    /// Takes the data blocks that were written early in `txg`.
    pub(super) fn take_early(&mut self, txg: u64) -> Vec<BlockPtr> {
        self.early.remove(&txg).unwrap_or_default()
    }

    /// Whether blocks allocated in `txg` cannot be reached yet (L3), or are being allocated.
    pub(super) fn is_unsettled(&self, txg: u64) -> bool {
        if self.holds.range(..=txg).next().is_some() {
            return true;
        }
        let next = self.links.iter().skip(1);
        self.links
            .iter()
            .zip(next)
            .any(|(link, next)| link.state == BlockState::Writing && next.bp.birth() <= txg)
    }

    /// Records that a record was applied in `txg`.
    pub(super) fn note_replayed(&mut self, txg: u64, seq: u64) {
        let last = self.replayed.last_key_value().map_or((0, 0), |(txg, seq)| (*txg, *seq));
        // Checks L7.
        assert!(last.0 <= txg && last.1 < seq, "record {seq} in txg {txg} after {last:?}");
        self.replayed.insert(txg, seq);
    }

    /// Returns the effect of the sync of `txg` on the log, in its first pass.
    pub(super) fn step(&mut self, txg: u64) -> Step {
        let mut step = Step::default();
        let orphans = std::mem::take(&mut self.orphans);
        (step.freed, self.orphans) = orphans.into_iter().partition(|bp| bp.birth() <= txg);
        match &mut self.stage {
            Stage::Retiring if self.links.iter().all(|link| is_over(link, txg)) => {
                let blocks: Vec<_> = self.links.drain(..).map(|link| link.bp).collect();
                self.end(blocks, txg, &mut step);
            }
            Stage::Live | Stage::Retiring => self.advance(txg, &mut step),
            Stage::Discarding(blocks) => {
                let blocks = std::mem::take(blocks);
                self.header = Some(BlockPtr::HOLE);
                self.end(blocks, txg, &mut step);
            }
            Stage::Claimed(header) => {
                let synced = self.replayed.range(..=txg).next_back().map(|(_, seq)| *seq);
                self.replayed = self.replayed.split_off(&(txg + 1));
                if let Some(seq) = synced.filter(|seq| *seq > header.replay_seq) {
                    header.replay_seq = seq;
                    step.header = Some(header.clone());
                }
            }
            Stage::Unknown | Stage::None | Stage::Foreign | Stage::Gone => {}
        }
        step
    }

    /// Removes the chain with this txg: blocks and header together (spec 07 A18.4).
    fn end(&mut self, blocks: Vec<BlockPtr>, txg: u64, step: &mut Step) {
        let (old, young): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|bp| bp.birth() <= txg);
        step.freed.extend(old);
        self.orphans.extend(young);
        if self.header.take().is_some() {
            step.header = Some(no_header());
            step.is_ended = true;
        }
        (self.anchored, self.is_usable) = (None, false);
        self.replayed.clear();
        self.stage = Stage::None;
    }

    /// Frees synced blocks at the head of the chain, and updates the header.
    fn advance(&mut self, txg: u64, step: &mut Step) {
        while self.links.len() > 1 {
            let first = self.links.front().filter(|link| {
                link.state == BlockState::Written && link.bp.birth() <= txg && link.max_txg <= txg
            });
            if first.is_none() {
                break;
            }
            step.freed.extend(self.links.pop_front().map(|link| link.bp));
        }
        let Some(first) = self.links.front().map(|link| link.bp) else { return };
        let is_new = self.anchored.is_none();
        let is_current = self.header == Some(first) || !is_new && is_on(Bug::LogHeaderNotMoved);
        // The first header names a block of its own txg or an older one.
        if is_current || (is_new && first.birth() > txg) {
            return;
        }
        step.is_begun = is_new;
        self.anchored.get_or_insert(txg);
        self.header = Some(first);
        step.header = Some(ZilHeader { log: first, ..no_header() });
    }

    /// Records that `txg` is on disk.
    pub(super) fn committed(&mut self, txg: u64) {
        // Checks L3 and L4.
        assert!(!self.is_unsettled(txg), "txg {txg} was committed before blocks that lead to it");
        if self.anchored.is_some_and(|anchored| anchored <= txg) {
            self.is_usable = true;
        }
    }

    /// Returns the blocks to free with the dataset in `txg`, if the chain is in memory.
    pub(super) fn doom(&mut self, txg: u64) -> Option<Vec<BlockPtr>> {
        if !matches!(self.stage, Stage::Live | Stage::Retiring) {
            return None;
        }
        self.doomed = txg;
        let born = self.links.iter().map(|link| link.bp).filter(|bp| bp.birth() <= txg);
        Some(born.collect())
    }

    /// Closes the log of a destroyed dataset, whose blocks were returned by [`doom`](Self::doom).
    pub(super) fn close(&mut self) {
        let doomed = self.doomed;
        if matches!(self.stage, Stage::Live | Stage::Retiring) {
            let left = self.links.drain(..).map(|link| link.bp);
            self.orphans.extend(left.filter(|bp| bp.birth() > doomed));
        }
        self.stage = Stage::Gone;
    }

    /// Whether a later sync has blocks to free.
    pub(super) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty() || !self.early.is_empty() || !self.holds.is_empty()
    }
}

/// Whether a block is not needed after `txg` is synced.
fn is_over(link: &Link, txg: u64) -> bool {
    link.max_txg <= txg && link.state != BlockState::Writing
}
