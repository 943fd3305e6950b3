//! Sparse contents of a device far larger than memory: runs of the test pattern are stored as their
//! seed.
//!
//!     sectors   0 ........ 255   256   257 ..... 512   513 ...
//!     extent    run of seed s1   raw   run of seed s2  nothing: zeros
//!
//! Contents are extents, sorted by their first sector. A written range that is a run of the
//! [`pattern`](crate::pattern) becomes one extent of a few words, whatever its length; other data
//! are stored as they are. An experiment that writes such data through the engine without
//! compression needs memory for its metadata and about forty bytes per record and leaf. Copies of
//! extents share their raw bytes.
//!
//! Invariants
//! * S1  Extents do not overlap, and none is empty or all zeros.
//! * S2  The number of raw sectors is the sum over the raw extents.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_rt::Buf;

use crate::device::joined;
use crate::pattern::{self, SECTOR};

/// Other data are stored in pieces of at most this many sectors, so that little is copied when a
/// part is overwritten.
const RAW_SECTORS_MAX: usize = 128;

/// Contents of an extent.
#[derive(Debug, Clone)]
enum Content {
    /// The run of a seed.
    Run(u64),
    /// Raw bytes.
    Raw(Arc<[u8]>),
    /// Sectors that cannot be read until they are written again.
    Unreadable,
}

/// Contents of consecutive sectors.
#[derive(Debug, Clone)]
pub(crate) struct Extent {
    sectors: u32,
    content: Content,
}

impl Extent {
    /// The part of `sectors` sectors that begins `skip` sectors after its start.
    fn part(&self, skip: u64, sectors: u32) -> Self {
        let content = match &self.content {
            Content::Run(seed) => Content::Run(pattern::skip(*seed, skip)),
            Content::Unreadable => Content::Unreadable,
            Content::Raw(bytes) if sectors == self.sectors => Content::Raw(Arc::clone(bytes)),
            Content::Raw(bytes) => {
                let start = skip as usize * SECTOR;
                Content::Raw(bytes[start..start + sectors as usize * SECTOR].into())
            }
        };
        Self { sectors, content }
    }
}

/// Extents by their first sector.
#[derive(Debug, Clone, Default)]
pub(crate) struct Extents {
    by_start: BTreeMap<u64, Extent>,
    raw_sectors: u64,
}

impl Extents {
    fn insert(&mut self, start: u64, extent: Extent) {
        if let Content::Raw(_) = extent.content {
            self.raw_sectors += u64::from(extent.sectors);
        }
        // Checks S1.
        assert!(extent.sectors > 0, "an empty extent at sector {start}");
        let before = self.by_start.insert(start, extent);
        // Checks S1.
        assert!(before.is_none(), "two extents at sector {start}");
    }

    fn remove(&mut self, start: u64) -> Option<Extent> {
        let extent = self.by_start.remove(&start)?;
        if let Content::Raw(_) = extent.content {
            let left = self.raw_sectors.checked_sub(u64::from(extent.sectors));
            // Checks S2.
            self.raw_sectors = left.expect("a part of the sum");
        }
        Some(extent)
    }

    /// The extents that overlap `start..end`, last one first.
    fn touching(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, &Extent)> {
        let before = self.by_start.range(..end).rev();
        before
            .map(|(at, extent)| (*at, extent))
            .take_while(move |(at, extent)| at + u64::from(extent.sectors) > start)
    }

    /// Fills `start..end` with zeros: extents that reach beyond it keep their other parts.
    pub(crate) fn clear(&mut self, start: u64, end: u64) {
        self.take(start, end);
    }

    /// Fills `start..end` with zeros, and returns the extents that were there, cut to it, in any
    /// order.
    pub(crate) fn take(&mut self, start: u64, end: u64) -> Vec<(u64, Extent)> {
        let touched: Vec<u64> = self.touching(start, end).map(|(at, _)| at).collect();
        let mut taken = Vec::with_capacity(touched.len());
        for at in touched {
            let Some(extent) = self.remove(at) else { continue };
            let extent_end = at + u64::from(extent.sectors);
            if at < start {
                self.insert(at, extent.part(0, (start - at) as u32));
            }
            if extent_end > end {
                self.insert(end, extent.part(end - at, (extent_end - end) as u32));
            }
            let (from, to) = (at.max(start), extent_end.min(end));
            taken.push((from, extent.part(from - at, (to - from) as u32)));
        }
        taken
    }

    /// Replaces `start..end` by the parts of `extents` inside of it.
    pub(crate) fn put(&mut self, start: u64, end: u64, extents: &[(u64, Extent)]) {
        self.clear(start, end);
        for (at, extent) in extents {
            let (from, to) = (start.max(*at), end.min(at + u64::from(extent.sectors)));
            if from < to {
                self.insert(from, extent.part(from - at, (to - from) as u32));
            }
        }
    }

    /// Makes `start..end` unreadable until it is written again.
    pub(crate) fn damage(&mut self, start: u64, end: u64) {
        self.clear(start, end);
        let mut at = start;
        while at < end {
            let sectors = (end - at).min(u64::from(u32::MAX)) as u32;
            self.insert(at, Extent { sectors, content: Content::Unreadable });
            at += u64::from(sectors);
        }
    }

    /// Fills unreadable sectors with zeros. Returns whether there were any.
    pub(crate) fn replace_damaged(&mut self) -> bool {
        let before = self.by_start.len();
        self.by_start.retain(|_, extent| !matches!(extent.content, Content::Unreadable));
        self.by_start.len() < before
    }

    /// Number of sectors of `start..end` that are stored and readable.
    pub(crate) fn stored(&self, start: u64, end: u64) -> u64 {
        self.pieces(start, end).map(|(from, to)| to - from).sum()
    }

    /// The stored sector number `index` of `start..end`, in any order that depends on the contents
    /// only.
    pub(crate) fn nth_stored(&self, start: u64, end: u64, mut index: u64) -> Option<u64> {
        self.pieces(start, end).find_map(|(from, to)| {
            let found = from.checked_add(index).filter(|sector| *sector < to);
            index = index.saturating_sub(to - from);
            found
        })
    }

    /// Ranges of stored and readable sectors in `start..end`.
    pub(crate) fn pieces(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let readable =
            |(_, extent): &(u64, &Extent)| !matches!(extent.content, Content::Unreadable);
        let cut = move |(at, extent): (u64, &Extent)| {
            (at.max(start), (at + u64::from(extent.sectors)).min(end))
        };
        self.touching(start, end).filter(readable).map(cut)
    }

    /// Number of extents.
    pub(crate) fn len(&self) -> u64 {
        self.by_start.len() as u64
    }

    /// Bytes that are stored as they are.
    pub(crate) fn raw_bytes(&self) -> u64 {
        self.raw_sectors * SECTOR as u64
    }

    /// Writes whole sectors.
    pub(crate) fn write(&mut self, start: u64, bytes: &[u8]) {
        self.clear(start, start + (bytes.len() / SECTOR) as u64);
        self.fill(start, bytes);
    }

    /// Writes whole sectors to a range of zeros.
    fn fill(&mut self, start: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let (len, content) = recognize(&bytes[done..]);
            let at = start + (done / SECTOR) as u64;
            done += len;
            // S1: zeros are not stored.
            if !matches!(content, Content::Run(0)) {
                self.insert(at, Extent { sectors: (len / SECTOR) as u32, content });
            }
        }
    }

    /// Reads whole sectors.
    ///
    /// # Errors
    /// The number of the first unreadable sector.
    pub(crate) fn read(&self, start: u64, bytes: &mut [u8]) -> Result<(), u64> {
        bytes.fill(0);
        let end = start + (bytes.len() / SECTOR) as u64;
        let mut unreadable = None;
        for (at, extent) in self.touching(start, end) {
            let (from, to) = (at.max(start), (at + u64::from(extent.sectors)).min(end));
            let target = &mut bytes[(from - start) as usize * SECTOR..];
            let target = &mut target[..(to - from) as usize * SECTOR];
            match &extent.content {
                Content::Run(seed) => {
                    pattern::fill(pattern::skip(*seed, from - at), target);
                }
                Content::Raw(raw) => {
                    let skip = (from - at) as usize * SECTOR;
                    target.copy_from_slice(&raw[skip..skip + target.len()]);
                }
                // Earlier extents follow.
                Content::Unreadable => unreadable = Some(from),
            }
        }
        unreadable.map_or(Ok(()), Err)
    }

    /// Reads bytes at any offset.
    ///
    /// # Errors
    /// The number of the first unreadable sector.
    pub(crate) fn read_bytes(&self, offset: u64, bytes: &mut [u8]) -> Result<(), u64> {
        let sector = SECTOR as u64;
        let (start, skip) = (offset / sector, (offset % sector) as usize);
        if skip == 0 && bytes.len().is_multiple_of(SECTOR) {
            return self.read(start, bytes);
        }
        let mut whole = vec![0; (skip + bytes.len()).next_multiple_of(SECTOR)];
        self.read(start, &mut whole)?;
        bytes.copy_from_slice(&whole[skip..skip + bytes.len()]);
        Ok(())
    }

    /// Writes the bytes of `parts`, whole sectors in all, one after the other, to a range of zeros.
    pub(crate) fn fill_parts(&mut self, start: u64, parts: &[Buf]) {
        if !parts.iter().all(|part| part.len().is_multiple_of(SECTOR)) {
            return self.fill(start, &joined(parts));
        }
        let mut at = start;
        for part in parts {
            self.fill(at, part);
            at += (part.len() / SECTOR) as u64;
        }
    }
}

/// Recognizes the first extent of `bytes`: returns its length and its contents.
fn recognize(bytes: &[u8]) -> (usize, Content) {
    if let Some((seed, sectors)) = pattern::run_of(bytes) {
        return (sectors * SECTOR, Content::Run(seed));
    }
    let sectors = bytes.chunks(SECTOR).take(RAW_SECTORS_MAX);
    let len = sectors.take_while(|sector| pattern::run_of(sector).is_none()).count() * SECTOR;
    (len, Content::Raw(bytes[..len].into()))
}
