//! A slot of a volume: 64 KiB that one actor writes, and their comparison with what is found.
//!
//! Slots of different actors lie side by side, so that actors share the blocks of a volume with
//! large blocks. Writes to a volume are atomic by sectors only, and the intent log may have the
//! data of a later write: each sector is compared on its own.

use std::sync::Arc;

use super::{SlotModel, Verdict, fill};
use crate::plan::Op;
use crate::plan::draw::SLOT;

const SECTOR: usize = 512;

/// Contents of a slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Slot(pub(crate) Arc<Vec<u8>>);

/// A request to a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Request {
    /// Writes bytes.
    Write { offset: u64, bytes: Vec<u8>, is_fua: bool },
    /// Writes zeros.
    Zero { offset: u64, len: u64, no_hole: bool },
    /// Discards whole blocks.
    Discard { offset: u64, len: u64 },
}

impl Slot {
    /// Returns a slot of zeros.
    pub(crate) fn zeros() -> Self {
        Self(Arc::new(vec![0; SLOT as usize]))
    }

    fn with(&self, at: usize, bytes: &[u8]) -> Self {
        let mut content = self.0.to_vec();
        content[at..at + bytes.len()].copy_from_slice(bytes);
        Self(Arc::new(content))
    }

    /// Computes an operation on the slot with this number: the request, and the contents
    /// afterwards.
    pub(crate) fn effect(
        &self,
        op: Op,
        slot: u64,
        block_size: u64,
        stamp: u64,
    ) -> Option<(Request, Self)> {
        let start = slot * SLOT;
        match op {
            Op::VolumeWrite { offset, len, is_fua, .. } => {
                let mut bytes = vec![0; len as usize];
                fill(stamp, &mut bytes);
                let after = self.with(offset as usize, &bytes);
                let offset = start + u64::from(offset);
                Some((Request::Write { offset, bytes, is_fua }, after))
            }
            Op::VolumeZero { offset, len, no_hole, .. } => {
                let after = self.with(offset as usize, &vec![0; len as usize]);
                let (offset, len) = (start + u64::from(offset), u64::from(len));
                Some((Request::Zero { offset, len, no_hole }, after))
            }
            Op::VolumeDiscard { offset, len, .. } => {
                let (from, len) = (start + u64::from(offset), u64::from(len));
                let (first, end) =
                    (from.next_multiple_of(block_size), (from + len) / block_size * block_size);
                let after = if first < end {
                    let zeros = vec![0; (end - first) as usize];
                    self.with((first - start) as usize, &zeros)
                } else {
                    self.clone()
                };
                Some((Request::Discard { offset: from, len }, after))
            }
            _ => None,
        }
    }
}

impl SlotModel {
    /// Compares bytes of the slot that were read while it was in any of the states of a range.
    ///
    /// # Errors
    /// The first sector that has none of their contents.
    pub(crate) fn check(
        &self,
        range: std::ops::RangeInclusive<usize>,
        at: usize,
        found: &[u8],
    ) -> Verdict {
        let mut from = at;
        let end = at + found.len();
        while from < end {
            let to = ((from / SECTOR + 1) * SECTOR).min(end);
            let part = &found[from - at..to - at];
            let is_known = |index: usize| self.states.state(index).0[from..to] == *part;
            if !range.clone().any(is_known) && !self.is_mixed(range.clone(), from, part) {
                let ever = (0..=self.states.len()).filter(|index| is_known(*index));
                let ever: Vec<_> = ever.collect();
                return Err(format!(
                    "bytes {from}..{to} of the slot are those of no state {range:?}, but of {ever:?}"
                ));
            }
            from = to;
        }
        Ok(())
    }

    /// Whether each byte of a sector is that of some state: requests that cover parts of sectors.
    fn is_mixed(&self, range: std::ops::RangeInclusive<usize>, from: usize, part: &[u8]) -> bool {
        let touches_part = range.clone().skip(1).any(|index| {
            let (before, after) = (self.states.state(index - 1), self.states.state(index));
            let sector = from / SECTOR * SECTOR..(from / SECTOR + 1) * SECTOR;
            let is_changed = |at: usize| before.0[at] != after.0[at];
            sector.clone().any(is_changed) && !sector.clone().all(is_changed)
        });
        touches_part
            && part.iter().enumerate().all(|(index, byte)| {
                range.clone().any(|state| self.states.state(state).0[from + index] == *byte)
            })
    }

    /// Compares the contents after a crash at a txg.
    ///
    /// # Errors
    /// The first sector that has none of the allowed contents.
    pub(crate) fn recover(&self, txg: u64, found: &[u8]) -> Verdict {
        let least = self.durable.max(self.states.certain_in(txg));
        self.check(least..=self.states.len(), 0, found)
    }
}
