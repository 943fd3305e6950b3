//! Reads a block: from an address on a top-level vdev to verified bytes.
//!
//!     Tree::read -> BlockRead::fetch(top) -+- leaf:     read, verify
//!                                    |- mirror:   children in turn until one verifies
//!                                    |- raidz:    columns, then parity, then search  (stripes)
//!                                    `- indirect: segments, then their copies       (split)
//!
//! A [`ReadRequest`] is passed down the tree. It carries the checksum test down to the lowest vdev
//! that sees the whole block, so that each leaf below a mirror is checked by itself; below RAID-Z
//! and split reads children return unchecked bytes, and the parent checks the whole (spec 06 §3.2).
//! A scrub is the same walk with every copy and all parity read and compared.
//!
//! Invariants
//! * J1  Bytes that leave this module have passed the caller's [`Verify`].
//!
//! Guarantees
//! * J2  A bad child is reported only for data that it should have: absent leaves, and leaves whose
//!   dirty time log has the block's birth, are not reported.
//! * J3  A checksum mismatch is not counted against a leaf here: only the caller knows whether the
//!   block is still at this address, and calls [`Tree::count_checksum_errors`] then.

mod reconstruct;
mod split;
mod stripes;
#[cfg(test)]
mod tests;

pub use reconstruct::{GroupReader, RebuildPiece};

use std::sync::Arc;

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Buf, Error, Kind, Result};
use futures_util::future::join_all;

use crate::IoClass;
use crate::leaf::{DATA_START, Freshness, LeafId};
use crate::map::{ColumnId, Map};
use crate::raidz::Reflow;
use crate::reflow::Ticket;
use crate::tree::{Layout, OFFSET_MAX, Place, Tree};
use crate::verdict::{BadChild, Cause, LeafRange, LeafReader, Read, ScrubRead, Verify};

/// Longest block that is read; above the format's own bound of 16 MiB.
const PSIZE_MAX: u64 = 32 << 20;

/// Deepest nesting of vdevs before an I/O fails: distributed spares of spares can form a cycle.
pub(crate) const DEPTH_MAX: u8 = 16;

/// Why a block was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The address names no vdev.
    #[error("there is no top-level vdev {0}")]
    NoSuchVdev(u64),
    /// The address or length is out of range.
    #[error("{psize} bytes at {offset:#x} of vdev {vdev} are out of range")]
    Range {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
        /// Length asked for.
        psize: u64,
    },
    /// Too many devices are absent.
    #[error("no available device has {psize} bytes at {offset:#x} of vdev {vdev}")]
    Absent {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
        /// Length asked for.
        psize: u64,
    },
    /// Devices answered, but no combination of their bytes matches the checksum.
    #[error("no copy of {psize} bytes at {offset:#x} of vdev {vdev} matches its checksum")]
    Checksum {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
        /// Length asked for.
        psize: u64,
    },
    /// A removed vdev's mapping has no entry for the address, or was not loaded.
    #[error("byte {offset:#x} of the removed vdev {vdev} is not mapped")]
    Unmapped {
        /// Id of the removed vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
    },
}

/// Bytes read, and the leaf they came from if it was a single one.
#[derive(Debug, Clone)]
struct Piece {
    data: Buf,
    from: Option<(LeafId, u64)>,
    /// Whether the source should have the block; false if its dirty time log has the birth.
    is_fresh: bool,
}

impl Piece {
    /// Returns the `len` bytes from `start`.
    fn part(&self, start: usize, len: usize) -> Option<Self> {
        let data = self.data.slice(start..start.checked_add(len)?)?;
        let from = self.from.map(|(leaf, offset)| (leaf, offset + start as u64));
        Some(Self { data, from, is_fresh: self.is_fresh })
    }
}

/// Why a vdev returned no bytes; the last one wins when several children fail (spec 06 §1 rule 5).
#[derive(Debug, Clone)]
enum Fail {
    Absent,
    Unmapped {
        vdev: u64,
        offset: u64,
    },
    /// Wrong bytes from a leaf that need not have the block: no evidence of damage.
    Stale,
    Checksum,
    Io(Arc<Error>),
}

impl Fail {
    fn rank(&self) -> u8 {
        match self {
            Self::Absent => 0,
            Self::Unmapped { .. } => 1,
            Self::Stale => 2,
            Self::Checksum => 3,
            Self::Io(_) => 4,
        }
    }

    fn or_worse(self, other: Self) -> Self {
        if other.rank() > self.rank() { other } else { self }
    }
}

/// A read that is passed down the tree.
#[derive(Clone, Copy)]
struct ReadRequest<'a> {
    /// Byte in the vdev's data area; negative in the boot area, below an expanding RAID-Z only.
    offset: i64,
    len: usize,
    /// The checksum test, if the request is for a whole block.
    check: Option<&'a dyn Verify>,
    /// Whether every copy and all parity is read and compared.
    is_scrub: bool,
    /// Whether failures are not reported, since the parent will read again in parts.
    is_quiet: bool,
    depth: u8,
}

impl ReadRequest<'_> {
    /// The request for a part, without a checksum test, one level down.
    fn part(self, offset: i64, len: usize) -> Self {
        Self { offset, len, check: None, is_scrub: false, depth: self.depth + 1, ..self }
    }

    /// Whether `data` passes: only its first `psize` bytes count, the rest of a sector is filler.
    fn accepts(&self, data: &[u8], psize: usize) -> bool {
        match self.check {
            Some(verify) => data.get(..psize).is_some_and(|data| verify.verify(data)),
            None => true,
        }
    }
}

/// The state of reading one block.
struct BlockRead<'a> {
    tree: &'a Tree,
    reader: &'a dyn LeafReader,
    psize: usize,
    /// Physical birth.
    birth: u64,
    reflow: Reflow,
    bad: Mutex<Vec<BadChild>>,
}

type Fetched = std::result::Result<Piece, Fail>;

impl BlockRead<'_> {
    /// Reads `request` from the subtree `vdev`.
    fn fetch<'b>(&'b self, vdev: usize, request: ReadRequest<'b>) -> BoxFuture<'b, Fetched> {
        Box::pin(async move {
            if request.depth > DEPTH_MAX {
                return Err(Fail::Absent);
            }
            match &self.tree.vdevs[vdev].layout {
                Layout::Leaf(leaf) => self.fetch_leaf(*leaf, request).await,
                Layout::DraidSpare(..) => match self.spare_target(vdev, request.offset) {
                    Some(child) => {
                        let piece = self
                            .fetch(child, ReadRequest { depth: request.depth + 1, ..request })
                            .await;
                        piece.map(|piece| self.of_spare(vdev, piece))
                    }
                    None => Err(Fail::Absent),
                },
                Layout::Mirror if request.is_scrub => self.scrub_mirror(vdev, request).await,
                Layout::Mirror => self.fetch_mirror(vdev, request).await,
                Layout::Raidz(_) | Layout::Draid(_) => self.fetch_stripes(vdev, request).await,
                Layout::Indirect => self.fetch_indirect(vdev, request).await,
                Layout::Root | Layout::Absent => Err(Fail::Absent),
            }
        })
    }

    /// A piece from a distributed spare, read through a child of its dRAID: fresh only if both are.
    fn of_spare(&self, vdev: usize, piece: Piece) -> Piece {
        let is_fresh = self.tree.freshness(vdev, self.birth) == Freshness::Fresh;
        Piece { is_fresh: piece.is_fresh && is_fresh, ..piece }
    }

    async fn fetch_leaf(&self, id: LeafId, request: ReadRequest<'_>) -> Fetched {
        let leaf = self.tree.leaf(id);
        let freshness = leaf.freshness(self.birth);
        let offset =
            request.offset.checked_add(DATA_START as i64).and_then(|at| u64::try_from(at).ok());
        let (Some(offset), true) = (offset, freshness != Freshness::Absent) else {
            return Err(Fail::Absent);
        };
        // Checks J1.
        match self.reader.read_leaf(id, offset, request.len).await {
            // A `LeafReader` may be wrong; short data is an error.
            Ok(data) if data.len() == request.len && request.accepts(&data, self.psize) => {
                let is_fresh = freshness == Freshness::Fresh;
                Ok(Piece { data, from: Some((id, offset)), is_fresh })
            }
            Ok(_) if freshness != Freshness::Fresh => Err(Fail::Stale),
            Ok(_) => {
                if !request.is_quiet {
                    self.report((id, offset), request.len, Cause::Checksum);
                }
                Err(Fail::Checksum)
            }
            Err(error) => {
                let is_closed = error.kind() == Kind::Closed;
                let error = Arc::new(error);
                if !request.is_quiet && !is_closed {
                    self.report((id, offset), request.len, Cause::Io(Arc::clone(&error)));
                }
                Err(Fail::Io(error))
            }
        }
    }

    async fn fetch_mirror(&self, vdev: usize, request: ReadRequest<'_>) -> Fetched {
        let mut fail = Fail::Absent;
        for child in self.tree.mirror_order(vdev, request.offset, self.birth) {
            match self.fetch(child, ReadRequest { depth: request.depth + 1, ..request }).await {
                Ok(piece) => return Ok(piece),
                Err(other) => fail = fail.or_worse(other),
            }
        }
        Err(self.of_mirror(vdev, fail))
    }

    /// The failure of a mirror all of whose children failed. Stale bytes while a child that may
    /// have the block is unavailable mean `Absent`: the block may be readable when that child
    /// returns.
    fn of_mirror(&self, vdev: usize, fail: Fail) -> Fail {
        let is_unavailable =
            |child: &usize| self.tree.may_be_on_unavailable_leaf(*child, self.birth);
        match fail {
            Fail::Stale if self.tree.vdevs[vdev].children.iter().any(is_unavailable) => {
                Fail::Absent
            }
            fail => fail,
        }
    }

    /// Reads every child that should have the block; the others only if all of those fail.
    async fn scrub_mirror(&self, vdev: usize, request: ReadRequest<'_>) -> Fetched {
        let request = ReadRequest { depth: request.depth + 1, ..request };
        let children = self.tree.mirror_order(vdev, request.offset, self.birth);
        let is_fresh = |child: &usize| self.tree.freshness(*child, self.birth) == Freshness::Fresh;
        let (fresh, stale): (Vec<_>, Vec<_>) = children.into_iter().partition(is_fresh);
        let mut result = Err(Fail::Absent);
        for other in join_all(fresh.into_iter().map(|child| self.fetch(child, request))).await {
            result = better(result, other);
        }
        for child in stale {
            if result.is_ok() {
                break;
            }
            result = better(result, self.fetch(child, request).await);
        }
        result.map_err(|fail| self.of_mirror(vdev, fail))
    }

    /// Returns every copy of a part in the subtree, unchecked: more than one below mirrors.
    /// `with_stale` includes copies that may be older than the block.
    fn copies<'b>(
        &'b self,
        vdev: usize,
        request: ReadRequest<'b>,
        with_stale: bool,
    ) -> BoxFuture<'b, Vec<Piece>> {
        Box::pin(async move {
            if request.depth > DEPTH_MAX {
                return Vec::new();
            }
            match &self.tree.vdevs[vdev].layout {
                Layout::Mirror => {
                    let request = ReadRequest { depth: request.depth + 1, ..request };
                    let order = self.tree.mirror_order(vdev, request.offset, self.birth);
                    let wanted = order.into_iter().filter(|child| {
                        with_stale || self.tree.freshness(*child, self.birth) == Freshness::Fresh
                    });
                    let copies = wanted.map(|child| self.copies(child, request, with_stale));
                    join_all(copies).await.into_iter().flatten().collect()
                }
                Layout::DraidSpare(..) => match self.spare_target(vdev, request.offset) {
                    Some(child) => {
                        let request = ReadRequest { depth: request.depth + 1, ..request };
                        let copies = self.copies(child, request, with_stale).await;
                        copies.into_iter().map(|piece| self.of_spare(vdev, piece)).collect()
                    }
                    None => Vec::new(),
                },
                _ => self.fetch(vdev, request).await.into_iter().collect(),
            }
        })
    }

    /// Returns the fresh copies, or the stale ones if there is no fresh copy.
    async fn best_copies(&self, vdev: usize, request: ReadRequest<'_>) -> Vec<Piece> {
        let copies = self.copies(vdev, request, false).await;
        if copies.is_empty() { self.copies(vdev, request, true).await } else { copies }
    }

    fn spare_target(&self, vdev: usize, offset: i64) -> Option<usize> {
        self.tree.spare_target(vdev, offset)
    }

    fn map(&self, vdev: usize, request: ReadRequest<'_>) -> Option<Map> {
        self.tree.map(vdev, request.offset, request.len, self.birth, self.reflow)
    }

    /// Reports a part of the block as bad, unless its leaf need not have the block (J2).
    fn report(&self, (id, offset): (LeafId, u64), len: usize, cause: Cause) {
        let leaf = self.tree.leaf(id);
        if leaf.freshness(self.birth) != Freshness::Fresh {
            return;
        }
        let (guid, path, len) = (leaf.guid(), leaf.path.clone(), len as u64);
        let bad = BadChild { leaf: id, guid, path, offset, len, cause, errors: 0 };
        self.bad.lock().push(bad);
    }

    fn into_bad(self) -> Vec<BadChild> {
        self.bad.into_inner()
    }
}

/// The first success, or the worse failure.
fn better(one: Fetched, other: Fetched) -> Fetched {
    match (one, other) {
        (Ok(piece), _) | (Err(_), Ok(piece)) => Ok(piece),
        (Err(fail), Err(other)) => Err(fail.or_worse(other)),
    }
}

impl Tree {
    /// The vdev on which a distributed spare stores byte `offset`.
    pub(crate) fn spare_target(&self, vdev: usize, offset: i64) -> Option<usize> {
        let Layout::DraidSpare(_, Some(draid), spare) = &self.vdevs[vdev].layout else {
            return None;
        };
        let parent = &self.vdevs[*draid];
        let Layout::Draid(geometry) = &parent.layout else { return None };
        let child = geometry.spare_child(*spare, u64::try_from(offset).ok()?)?;
        parent.children.get(child).copied()
    }

    /// The map of a block on a RAID-Z or dRAID.
    pub(crate) fn map(
        &self,
        vdev: usize,
        offset: i64,
        len: usize,
        birth: u64,
        reflow: Reflow,
    ) -> Option<Map> {
        let (offset, len) = (u64::try_from(offset).ok()?, len as u64);
        match &self.vdevs[vdev].layout {
            Layout::Raidz(raidz) => Some(raidz.map(offset, len, birth, reflow)),
            Layout::Draid(draid) => Some(draid.map(offset, len)),
            _ => None,
        }
    }

    /// The second places of the columns of a block on a RAID-Z that expands, as child and byte.
    pub(crate) fn shadows(
        &self,
        vdev: usize,
        (offset, len): (i64, usize),
        birth: u64,
        reflow: Reflow,
    ) -> Vec<(ColumnId, usize, i64)> {
        match (&self.vdevs[vdev].layout, u64::try_from(offset)) {
            (Layout::Raidz(raidz), Ok(offset)) => raidz.shadows(offset, len as u64, birth, reflow),
            _ => Vec::new(),
        }
    }

    /// Takes a ticket for I/O of a block ([`crate::reflow`]); on vdevs that never expand it is an
    /// empty one.
    pub(crate) async fn enter(
        &self,
        place: Place,
        psize: u64,
        birth: u64,
        is_write: bool,
    ) -> Ticket {
        let is_raidz = |top: usize| matches!(self.vdevs[top].layout, Layout::Raidz(_));
        if !self.top_index(place.vdev).is_some_and(is_raidz) {
            return Ticket::default();
        }
        let asize = self.asize_for(place.vdev, psize, birth).unwrap_or(psize);
        let range = place.offset..place.offset.saturating_add(asize);
        self.gate.enter(place.vdev, range, is_write).await
    }

    /// The places to which the bytes of a removed vdev were moved, as vdev, byte in it and length.
    pub(crate) fn mapped(
        &self,
        vdev: usize,
        offset: i64,
        len: usize,
    ) -> Option<Vec<(usize, i64, usize)>> {
        let (psize, birth, bad) = (len, 0, Mutex::with_default(Rank::BadChildren));
        let reflow = Reflow::default();
        let read = BlockRead { tree: self, reader: self, psize, birth, reflow, bad };
        let (is_scrub, is_quiet) = (false, true);
        let request = ReadRequest { offset, len, check: None, is_scrub, is_quiet, depth: 0 };
        let segments = read.segments(vdev, request).ok()?;
        Some(segments.into_iter().map(|s| (s.vdev, s.offset, s.len)).collect())
    }
}

/// Collects the ranges of leaves that hold a block.
struct Ranges {
    found: Vec<LeafRange>,
    /// For each range, whether it is a part that a distributed spare in service lacks.
    is_lacking: Vec<bool>,
    /// Number of spares above the vdev at hand that lack the block.
    lacking_above: usize,
    has_parity: bool,
    /// Whether leaves that are absent or may be stale are included.
    has_stale: bool,
    /// Whether the second places of moving rows are included.
    has_shadows: bool,
    reflow: Reflow,
}

impl Ranges {
    fn new(tree: &Tree, has_parity: bool, has_stale: bool) -> Self {
        Self {
            found: Vec::new(),
            is_lacking: Vec::new(),
            lacking_above: 0,
            has_parity,
            has_stale,
            has_shadows: false,
            reflow: tree.reflow(),
        }
    }
}

/// Reads for which a caller waits.
impl LeafReader for Tree {
    fn read_leaf(&self, leaf: LeafId, offset: u64, len: usize) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(self.leaf(leaf).read(offset, len, IoClass::SyncRead))
    }
}

/// Reads leaves as I/O of one class.
#[derive(Debug, Clone, Copy)]
pub struct ClassReader<'a> {
    tree: &'a Tree,
    class: IoClass,
}

impl LeafReader for ClassReader<'_> {
    fn read_leaf(&self, leaf: LeafId, offset: u64, len: usize) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(self.tree.leaf(leaf).read(offset, len, self.class))
    }
}

impl<'a> ClassReader<'a> {
    /// Returns a reader of the leaves of `tree`.
    pub fn new(tree: &'a Tree, class: IoClass) -> Self {
        Self { tree, class }
    }

    /// Returns the tree whose leaves are read.
    pub const fn tree(&self) -> &'a Tree {
        self.tree
    }

    /// Reads a range of a leaf that contains many blocks; `None` if that fails. The error says
    /// nothing about the device: the caller then reads the blocks one by one.
    pub async fn read_extent(&self, leaf: LeafId, offset: u64, len: usize) -> Option<Buf> {
        if self.tree.is_moving() {
            // A block may have another place by the time at which it is looked for in the extent.
            return None;
        }
        self.tree.leaf(leaf).read_extent(offset, len, self.class).await
    }
}

impl Tree {
    /// Reads the `psize` bytes of a block at `place`, of physical birth `birth`.
    ///
    /// # Errors
    /// `Kind::Checksum` if no copy passes `verify`, `Kind::Io` if devices fail or are absent,
    /// `Kind::Corrupt` if the address is out of range. Its cause: [`ReadError`] or the device.
    pub async fn read(
        &self,
        place: impl Into<Place>,
        psize: u64,
        birth: u64,
        verify: &dyn Verify,
    ) -> Result<Read> {
        self.read_with(self, place, psize, birth, verify).await
    }

    /// Counts mismatching parts, read by I/O of this class, against their leaves. To be called once
    /// it is certain that the block is still where it was read (J3). Each part gets the number of
    /// errors that its leaf has then.
    pub fn count_checksum_errors<'a>(
        &self,
        bad: impl IntoIterator<Item = &'a mut BadChild>,
        class: IoClass,
    ) {
        for bad in bad.into_iter().filter(|bad| bad.cause.is_checksum()) {
            let leaf = self.leaf(bad.leaf);
            if leaf.guid() == bad.guid {
                bad.errors = leaf.count_checksum_error(bad.offset, class);
            }
        }
    }

    /// Returns where `len` bytes at `place` lie on top-level vdevs that hold data themselves, as
    /// vdev and range: one place, or for a removed vdev the places in its mapping. `None` if the
    /// address is not mapped.
    pub fn concrete_places(
        &self,
        place: impl Into<Place>,
        len: u64,
    ) -> Option<Vec<(u64, std::ops::Range<u64>)>> {
        let Place { vdev, offset } = place.into();
        let top = self.top_index(vdev).filter(|_| offset <= OFFSET_MAX)?;
        let segments = self.mapped(top, offset as i64, usize::try_from(len).ok()?)?;
        let places = segments.into_iter().map(|(vdev, offset, len)| {
            let start = u64::try_from(offset).ok()?;
            Some((self.vdevs[vdev].id, start..start.checked_add(len as u64)?))
        });
        places.collect()
    }

    /// Like [`read`](Self::read), but reads leaves through `reader`.
    pub(crate) async fn read_with(
        &self,
        reader: &dyn LeafReader,
        place: impl Into<Place>,
        psize: u64,
        birth: u64,
        verify: &dyn Verify,
    ) -> Result<Read> {
        let (result, bad) = self.read_reporting(reader, place, psize, birth, verify).await;
        result.map(|data| Read { data, bad })
    }

    /// Like [`read_with`](Self::read_with), and returns the bad children even if the read fails.
    pub async fn read_reporting(
        &self,
        reader: &dyn LeafReader,
        place: impl Into<Place>,
        psize: u64,
        birth: u64,
        verify: &dyn Verify,
    ) -> (Result<Buf>, Vec<BadChild>) {
        let (place, is_scrub) = (place.into(), false);
        match self.run(reader, place, (psize, birth), verify, is_scrub).await {
            Ok((result, bad)) => (result.map_err(|fail| self.error(place, psize, fail)), bad),
            Err(error) => (Err(error), Vec::new()),
        }
    }

    /// Reads every copy and all parity of a block and compares them.
    ///
    /// # Errors
    /// `Kind::Corrupt` if the address is out of range; device errors are in the result.
    pub async fn scrub(
        &self,
        place: impl Into<Place>,
        psize: u64,
        birth: u64,
        verify: &dyn Verify,
    ) -> Result<ScrubRead> {
        let reader = ClassReader::new(self, IoClass::Scrub);
        self.scrub_with(&reader, place, psize, birth, verify).await
    }

    /// Like [`scrub`](Self::scrub), but reads leaves through `reader`.
    pub async fn scrub_with(
        &self,
        reader: &dyn LeafReader,
        place: impl Into<Place>,
        psize: u64,
        birth: u64,
        verify: &dyn Verify,
    ) -> Result<ScrubRead> {
        let (result, bad) = self.run(reader, place.into(), (psize, birth), verify, true).await?;
        Ok(ScrubRead { good: result.ok(), bad })
    }

    /// The ranges of leaves that a scrub of a block reads, for sorting and aggregation. Leaves that
    /// are absent or may be stale are left out; an address out of range yields nothing.
    pub fn leaf_ranges(&self, place: impl Into<Place>, psize: u64, birth: u64) -> Vec<LeafRange> {
        let ranges = Ranges::new(self, true, false);
        self.ranges(place.into(), psize, birth, ranges)
    }

    /// Like [`leaf_ranges`](Self::leaf_ranges), including leaves that are absent or may be stale:
    /// every range that the layout assigns to the block.
    pub fn layout_ranges(&self, place: impl Into<Place>, psize: u64, birth: u64) -> Vec<LeafRange> {
        let ranges = Ranges::new(self, true, true);
        self.ranges(place.into(), psize, birth, ranges)
    }

    /// The parts of a block that leaves in service lack, according to their dirty time logs.
    pub fn missing_parts(&self, place: impl Into<Place>, psize: u64, birth: u64) -> Vec<BadChild> {
        if !self.leaves().any(|(_, leaf)| leaf.is_missing(birth)) {
            return Vec::new();
        }
        let has_parity = !is_on(Bug::ParityNotMended);
        let ranges = Ranges { has_shadows: true, ..Ranges::new(self, has_parity, true) };
        let ranges = self.ranges_of(place.into(), psize, birth, ranges);
        let with_spares = !is_on(Bug::SparePartsNotMended);
        let ranges = ranges.found.into_iter().zip(ranges.is_lacking);
        let lacking = ranges.filter_map(|(range, is_lacking)| {
            let leaf = self.leaf(range.leaf);
            // What a spare lacks counts where its leaf is out of service, too: the spare is not
            // whole without it.
            let lacks = leaf.is_missing(birth) || with_spares && is_lacking;
            let (guid, path, cause) = (leaf.guid(), leaf.path.clone(), Cause::Missing);
            let LeafRange { leaf, offset, len } = range;
            lacks.then_some(BadChild { leaf, guid, path, offset, len, cause, errors: 0 })
        });
        lacking.collect()
    }

    /// Like [`leaf_ranges`](Self::leaf_ranges), without parity: what a read of a healthy block may
    /// request.
    pub fn data_ranges(&self, place: impl Into<Place>, psize: u64, birth: u64) -> Vec<LeafRange> {
        let ranges = Ranges::new(self, false, false);
        self.ranges(place.into(), psize, birth, ranges)
    }

    fn ranges(&self, place: Place, psize: u64, birth: u64, ranges: Ranges) -> Vec<LeafRange> {
        self.ranges_of(place, psize, birth, ranges).found
    }

    fn ranges_of(&self, place: Place, psize: u64, birth: u64, mut ranges: Ranges) -> Ranges {
        if let Ok((top, len)) = self.check_range(place, psize) {
            self.add_ranges(top, (place.offset as i64, len), birth, 0, &mut ranges);
        }
        ranges
    }

    /// Arena index of the top-level vdev and number of bytes to read, if the address is in range.
    fn check_range(&self, place: Place, psize: u64) -> Result<(usize, usize)> {
        let Place { vdev, offset } = place;
        let no_vdev = || Error::corrupt(ReadError::NoSuchVdev(vdev));
        let top = self.top_index(vdev).ok_or_else(no_vdev)?;
        let ashift = self.vdevs[top].ashift;
        let is_aligned = offset.is_multiple_of(1 << ashift.clamp(9, 16));
        if offset > OFFSET_MAX || !is_aligned || psize == 0 || psize > PSIZE_MAX {
            return Err(Error::corrupt(ReadError::Range { vdev, offset, psize }));
        }
        Ok((top, psize.next_multiple_of(1 << ashift) as usize))
    }

    async fn run(
        &self,
        reader: &dyn LeafReader,
        place: Place,
        (psize, birth): (u64, u64),
        verify: &dyn Verify,
        is_scrub: bool,
    ) -> Result<(std::result::Result<Buf, Fail>, Vec<BadChild>)> {
        self.check_open()?;
        // Before the vdev is looked for: its shape may change with the progress.
        let ticket = self.enter(place, psize, birth, false).await;
        let (top, len) = self.check_range(place, psize)?;
        let psize = psize as usize;
        let read = BlockRead {
            tree: self,
            reader,
            psize,
            birth,
            reflow: ticket.reflow,
            bad: Mutex::with_default(Rank::BadChildren),
        };
        let (offset, check) = (place.offset as i64, Some(verify));
        let request = ReadRequest { offset, len, check, is_scrub, is_quiet: false, depth: 0 };
        let result = read.fetch(top, request).await.and_then(|piece| {
            // The rest of the last sector is filler.
            // Checks J1.
            piece.data.slice(0..psize).ok_or(Fail::Checksum)
        });
        if result.is_err() {
            // Errors that come from closing the pool concurrently are not errors of a device.
            self.check_open()?;
        }
        Ok((result, read.into_bad()))
    }

    fn error(&self, place: Place, psize: u64, fail: Fail) -> Error {
        let Place { vdev, offset } = place;
        let error = match fail {
            Fail::Absent => Error::new(Kind::Io, ReadError::Absent { vdev, offset, psize }),
            // No unavailable leaf could have the block: it is lost.
            Fail::Checksum | Fail::Stale => {
                Error::new(Kind::Checksum, ReadError::Checksum { vdev, offset, psize })
            }
            Fail::Unmapped { vdev, offset } => Error::corrupt(ReadError::Unmapped { vdev, offset }),
            Fail::Io(error) => match Arc::try_unwrap(error) {
                Ok(error) => return error,
                // The error is shared with the report.
                Err(error) => Error::new(error.kind(), error.to_string())
                    .with_at(|at| at.clone_from(error.at())),
            },
        };
        let guid = self.top(vdev).map(|top| top.guid);
        error.with_at(|at| {
            at.vdev = at.vdev.or(guid);
            at.offset.get_or_insert(offset);
        })
    }

    fn add_ranges(
        &self,
        vdev: usize,
        (offset, len): (i64, usize),
        birth: u64,
        depth: u8,
        ranges: &mut Ranges,
    ) {
        let node = &self.vdevs[vdev];
        let is_left_out = !ranges.has_stale && self.freshness(vdev, birth) != Freshness::Fresh;
        if depth > DEPTH_MAX || is_left_out {
            return;
        }
        let read = BlockRead {
            tree: self,
            reader: self,
            psize: len,
            birth,
            reflow: ranges.reflow,
            bad: Mutex::with_default(Rank::BadChildren),
        };
        let whole = (offset, len);
        let request =
            ReadRequest { offset, len, check: None, is_scrub: true, is_quiet: true, depth };
        match &node.layout {
            Layout::Leaf(leaf) => {
                if let Ok(offset) = u64::try_from(offset + DATA_START as i64) {
                    ranges.found.push(LeafRange { leaf: *leaf, offset, len: len as u64 });
                    ranges.is_lacking.push(ranges.lacking_above > 0);
                }
            }
            Layout::DraidSpare(spare, ..) => {
                if let Some(target) = read.spare_target(vdev, offset) {
                    let lacking = usize::from(self.leaf(*spare).is_missing(birth));
                    ranges.lacking_above += lacking;
                    self.add_ranges(target, whole, birth, depth + 1, ranges);
                    ranges.lacking_above -= lacking;
                }
            }
            Layout::Mirror => {
                for child in &node.children {
                    self.add_ranges(*child, whole, birth, depth + 1, ranges);
                }
            }
            Layout::Raidz(_) | Layout::Draid(_) => {
                let Some(map) = read.map(vdev, request) else { return };
                let has_parity = ranges.has_parity;
                let runs = stripes::runs(&map, |_, column| has_parity || column.data_len > 0);
                for run in runs {
                    let Some(child) = node.children.get(run.child) else { continue };
                    self.add_ranges(*child, (run.offset, run.len), birth, depth + 1, ranges);
                }
                if ranges.has_shadows {
                    for (_, child, at) in self.shadows(vdev, whole, birth, ranges.reflow) {
                        let Some(child) = node.children.get(child) else { continue };
                        let sector = 1 << node.ashift;
                        self.add_ranges(*child, (at, sector), birth, depth + 1, ranges);
                    }
                }
            }
            Layout::Indirect => {
                for segment in read.segments(vdev, request).unwrap_or_default() {
                    let whole = (segment.offset, segment.len);
                    self.add_ranges(segment.vdev, whole, birth, depth + 1, ranges);
                }
            }
            Layout::Root | Layout::Absent => {}
        }
    }
}
