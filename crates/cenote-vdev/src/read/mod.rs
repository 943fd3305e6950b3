//! Reading a block: from an address on a top-level vdev to verified bytes.
//!
//!     Tree::read -> Job::fetch(top) -+- leaf:     read, verify
//!                                    |- mirror:   children in turn until one verifies
//!                                    |- raidz:    columns, then parity, then search  (stripes)
//!                                    `- indirect: stretches, then their copies       (split)
//!
//! A request walks down the tree as an [`Ask`]. It carries the verdict down to the lowest vdev
//! that sees the whole block, so that each leaf below a mirror is judged by itself; below RAID-Z
//! and split reads children give bytes without a verdict, and the parent judges the whole
//! (spec 06 §3.2). A scrub is the same walk with every copy and all parity read and compared.
//!
//! Invariants
//! * J1  Bytes that leave this module have passed the caller's [`Verify`].
//! * J2  A bad child is reported for what it gave, never for what it does not have to have: absent
//!   leaves and leaves whose dirty time log has the block's birth are not reported.
//! * J3  Nothing is counted against a leaf here for bytes that do not match: whether the block was
//!   still there is for the caller to know, who then tells [`Tree::count_checksum_errors`].

mod split;
mod stripes;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Mutex, PoisonError};

use cenote_rt::{BoxFuture, Buf, Error, Kind, Result};
use futures_util::future::join_all;

use crate::leaf::{DATA_START, Freshness, LeafId};
use crate::map::Map;
use crate::tree::{Layout, OFFSET_MAX, Place, Tree};
use crate::verdict::{BadChild, Cause, LeafRange, LeafReader, Read, ScrubRead, Verify};

/// Longest block that is read, above the format's own bound of 16 MiB.
const PSIZE_MAX: u64 = 32 << 20;

/// How deep vdevs may nest before an I/O gives up: distributed spares of spares can go round.
pub(crate) const DEPTH_MAX: u8 = 16;

/// Why a block was not read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// The address names no vdev.
    #[error("there is no top-level vdev {0}")]
    NoSuchVdev(u64),
    /// The address or length cannot be.
    #[error("{psize} bytes at {offset:#x} of vdev {vdev} cannot be")]
    Range {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
        /// Length asked for.
        psize: u64,
    },
    /// Too many devices are absent.
    #[error("no device has {psize} bytes at {offset:#x} of vdev {vdev}")]
    Absent {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
        /// Length asked for.
        psize: u64,
    },
    /// Devices answered, and no combination of what they gave is the block.
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

/// Bytes, and the leaf that gave them if it was one.
#[derive(Debug, Clone)]
struct Piece {
    data: Buf,
    from: Option<(LeafId, u64)>,
    /// Whether whoever gave it should have the block: not if its dirty time log has the birth.
    is_fresh: bool,
}

impl Piece {
    /// `len` bytes of it from `start`.
    fn part(&self, start: usize, len: usize) -> Option<Self> {
        let data = self.data.slice(start..start.checked_add(len)?)?;
        let from = self.from.map(|(leaf, offset)| (leaf, offset + start as u64));
        Some(Self { data, from, is_fresh: self.is_fresh })
    }
}

/// Why a vdev gave nothing; the last one wins when several children fail (spec 06 §1 rule 5).
#[derive(Debug, Clone)]
enum Fail {
    Absent,
    Unmapped {
        vdev: u64,
        offset: u64,
    },
    /// Wrong bytes where the block need not be: no evidence of anything.
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

/// A request on its way down the tree.
#[derive(Clone, Copy)]
struct Ask<'a> {
    /// Byte in the vdev's data area; negative in the boot area, below an expanding RAID-Z only.
    offset: i64,
    len: usize,
    /// The verdict, where the request is for a whole block.
    check: Option<&'a dyn Verify>,
    /// Whether every copy and all parity is to be read and compared.
    is_scrub: bool,
    /// Whether failures are to be kept from the report, since the asker will ask again in parts.
    is_quiet: bool,
    depth: u8,
}

impl Ask<'_> {
    /// The request for a part, without a verdict, one level down.
    fn part(self, offset: i64, len: usize) -> Self {
        Self { offset, len, check: None, is_scrub: false, depth: self.depth + 1, ..self }
    }

    /// Whether `data` passes: its first `psize` bytes, since the rest of a sector is filler.
    fn accepts(&self, data: &[u8], psize: usize) -> bool {
        match self.check {
            Some(verify) => data.get(..psize).is_some_and(|data| verify.verify(data)),
            None => true,
        }
    }
}

/// One block being read.
struct Job<'a> {
    tree: &'a Tree,
    reader: &'a dyn LeafReader,
    psize: usize,
    /// Physical birth.
    birth: u64,
    bad: Mutex<Vec<BadChild>>,
}

type Fetched = std::result::Result<Piece, Fail>;

impl Job<'_> {
    /// Reads what `ask` says from the subtree `vdev`.
    fn fetch<'b>(&'b self, vdev: usize, ask: Ask<'b>) -> BoxFuture<'b, Fetched> {
        Box::pin(async move {
            if ask.depth > DEPTH_MAX {
                return Err(Fail::Absent);
            }
            match &self.tree.vdevs[vdev].layout {
                Layout::Leaf(leaf) => self.fetch_leaf(*leaf, ask).await,
                Layout::DraidSpare(..) => match self.spare_target(vdev, ask.offset) {
                    Some(child) => {
                        let piece = self.fetch(child, Ask { depth: ask.depth + 1, ..ask }).await;
                        piece.map(|piece| self.of_spare(vdev, piece))
                    }
                    None => Err(Fail::Absent),
                },
                Layout::Mirror if ask.is_scrub => self.scrub_mirror(vdev, ask).await,
                Layout::Mirror => self.fetch_mirror(vdev, ask).await,
                Layout::Raidz(_) | Layout::Draid(_) => self.fetch_stripes(vdev, ask).await,
                Layout::Indirect => self.fetch_indirect(vdev, ask).await,
                Layout::Root | Layout::Absent => Err(Fail::Absent),
            }
        })
    }

    /// A piece that a distributed spare gave, by way of a child of its dRAID: both must have it.
    fn of_spare(&self, vdev: usize, piece: Piece) -> Piece {
        let is_fresh = self.tree.freshness(vdev, self.birth) == Freshness::Fresh;
        Piece { is_fresh: piece.is_fresh && is_fresh, ..piece }
    }

    async fn fetch_leaf(&self, id: LeafId, ask: Ask<'_>) -> Fetched {
        let leaf = self.tree.leaf(id);
        let freshness = leaf.freshness(self.birth);
        let offset =
            ask.offset.checked_add(DATA_START as i64).and_then(|at| u64::try_from(at).ok());
        let (Some(offset), true) = (offset, freshness != Freshness::Absent) else {
            return Err(Fail::Absent);
        };
        match self.reader.read_leaf(id, offset, ask.len).await {
            // A reader of extents may be wrong; what is short is worth nothing.
            Ok(data) if data.len() == ask.len && ask.accepts(&data, self.psize) => {
                let is_fresh = freshness == Freshness::Fresh;
                Ok(Piece { data, from: Some((id, offset)), is_fresh })
            }
            Ok(_) if freshness != Freshness::Fresh => Err(Fail::Stale),
            Ok(_) => {
                if !ask.is_quiet {
                    self.report((id, offset), ask.len, Cause::Checksum);
                }
                Err(Fail::Checksum)
            }
            Err(error) => {
                let is_closed = error.kind() == Kind::Closed;
                let error = Arc::new(error);
                if !ask.is_quiet && !is_closed {
                    self.report((id, offset), ask.len, Cause::Io(Arc::clone(&error)));
                }
                Err(Fail::Io(error))
            }
        }
    }

    async fn fetch_mirror(&self, vdev: usize, ask: Ask<'_>) -> Fetched {
        let mut fail = Fail::Absent;
        for child in self.tree.mirror_order(vdev, ask.offset, self.birth) {
            match self.fetch(child, Ask { depth: ask.depth + 1, ..ask }).await {
                Ok(piece) => return Ok(piece),
                Err(other) => fail = fail.or_worse(other),
            }
        }
        Err(self.of_mirror(vdev, fail))
    }

    /// What a mirror says that gave nothing: of old bytes where a child is away that may have the
    /// block, that it is away. The block may be whole when that child is back.
    fn of_mirror(&self, vdev: usize, fail: Fail) -> Fail {
        let is_away = |child: &usize| self.tree.is_away_with(*child, self.birth);
        match fail {
            Fail::Stale if self.tree.vdevs[vdev].children.iter().any(is_away) => Fail::Absent,
            fail => fail,
        }
    }

    /// Reads every child that should have the block; the others only if all of those fail.
    async fn scrub_mirror(&self, vdev: usize, ask: Ask<'_>) -> Fetched {
        let ask = Ask { depth: ask.depth + 1, ..ask };
        let children = self.tree.mirror_order(vdev, ask.offset, self.birth);
        let is_fresh = |child: &usize| self.tree.freshness(*child, self.birth) == Freshness::Fresh;
        let (fresh, stale): (Vec<_>, Vec<_>) = children.into_iter().partition(is_fresh);
        let mut result = Err(Fail::Absent);
        for other in join_all(fresh.into_iter().map(|child| self.fetch(child, ask))).await {
            result = better(result, other);
        }
        for child in stale {
            if result.is_ok() {
                break;
            }
            result = better(result, self.fetch(child, ask).await);
        }
        result.map_err(|fail| self.of_mirror(vdev, fail))
    }

    /// Every copy of a part that the subtree has, without a verdict: more than one below mirrors.
    /// `with_stale` takes those too that may be older than the block.
    fn copies<'b>(
        &'b self,
        vdev: usize,
        ask: Ask<'b>,
        with_stale: bool,
    ) -> BoxFuture<'b, Vec<Piece>> {
        Box::pin(async move {
            if ask.depth > DEPTH_MAX {
                return Vec::new();
            }
            match &self.tree.vdevs[vdev].layout {
                Layout::Mirror => {
                    let ask = Ask { depth: ask.depth + 1, ..ask };
                    let order = self.tree.mirror_order(vdev, ask.offset, self.birth);
                    let wanted = order.into_iter().filter(|child| {
                        with_stale || self.tree.freshness(*child, self.birth) == Freshness::Fresh
                    });
                    let copies = wanted.map(|child| self.copies(child, ask, with_stale));
                    join_all(copies).await.into_iter().flatten().collect()
                }
                Layout::DraidSpare(..) => match self.spare_target(vdev, ask.offset) {
                    Some(child) => {
                        let ask = Ask { depth: ask.depth + 1, ..ask };
                        let copies = self.copies(child, ask, with_stale).await;
                        copies.into_iter().map(|piece| self.of_spare(vdev, piece)).collect()
                    }
                    None => Vec::new(),
                },
                _ => self.fetch(vdev, ask).await.into_iter().collect(),
            }
        })
    }

    /// The copies that should be right, or if there are none those that may be stale.
    async fn best_copies(&self, vdev: usize, ask: Ask<'_>) -> Vec<Piece> {
        let copies = self.copies(vdev, ask, false).await;
        if copies.is_empty() { self.copies(vdev, ask, true).await } else { copies }
    }

    fn spare_target(&self, vdev: usize, offset: i64) -> Option<usize> {
        self.tree.spare_target(vdev, offset)
    }

    fn map(&self, vdev: usize, ask: Ask<'_>) -> Option<Map> {
        self.tree.map(vdev, ask.offset, ask.len, self.birth)
    }

    /// Reports a part of the block as bad, unless its leaf does not have to have it (J2).
    fn report(&self, (id, offset): (LeafId, u64), len: usize, cause: Cause) {
        let leaf = self.tree.leaf(id);
        if leaf.freshness(self.birth) != Freshness::Fresh {
            return;
        }
        let (guid, path, len) = (leaf.guid, leaf.path.clone(), len as u64);
        let bad = BadChild { leaf: id, guid, path, offset, len, cause };
        self.bad.lock().unwrap_or_else(PoisonError::into_inner).push(bad);
    }

    fn into_bad(self) -> Vec<BadChild> {
        self.bad.into_inner().unwrap_or_else(PoisonError::into_inner)
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
    /// The vdev on which a distributed spare has byte `offset`.
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
    pub(crate) fn map(&self, vdev: usize, offset: i64, len: usize, birth: u64) -> Option<Map> {
        let (offset, len) = (u64::try_from(offset).ok()?, len as u64);
        match &self.vdevs[vdev].layout {
            Layout::Raidz(raidz) => Some(raidz.map(offset, len, birth, self.reflow())),
            Layout::Draid(draid) => Some(draid.map(offset, len)),
            _ => None,
        }
    }

    /// Where the bytes of a removed vdev are, as vdev, byte in it and length.
    pub(crate) fn mapped(
        &self,
        vdev: usize,
        offset: i64,
        len: usize,
    ) -> Option<Vec<(usize, i64, usize)>> {
        let (psize, birth, bad) = (len, 0, Mutex::default());
        let job = Job { tree: self, reader: self, psize, birth, bad };
        let (is_scrub, is_quiet) = (false, true);
        let ask = Ask { offset, len, check: None, is_scrub, is_quiet, depth: 0 };
        let stretches = job.stretches(vdev, ask).ok()?;
        Some(stretches.into_iter().map(|s| (s.vdev, s.offset, s.len)).collect())
    }
}

/// Where a block lies, as it is found.
struct Ranges {
    found: Vec<LeafRange>,
    has_parity: bool,
    /// Whether leaves are included that are absent or may be stale.
    has_stale: bool,
}

impl LeafReader for Tree {
    fn read_leaf(&self, leaf: LeafId, offset: u64, len: usize) -> BoxFuture<'_, Result<Buf>> {
        Box::pin(self.leaf(leaf).read(offset, len))
    }
}

impl Tree {
    /// Reads the `psize` bytes of a block at `place`, of physical birth `birth`.
    ///
    /// # Errors
    /// `Kind::Checksum` if no copy passes `verify`, `Kind::Io` if devices fail or are absent,
    /// `Kind::Corrupt` if the address cannot be. The cause is a [`ReadError`] or the device's.
    pub async fn read(
        &self,
        place: impl Into<Place>,
        psize: u64,
        birth: u64,
        verify: &dyn Verify,
    ) -> Result<Read> {
        self.read_with(self, place, psize, birth, verify).await
    }

    /// Counts the parts that do not match against their leaves. To be called once it is certain
    /// that the block is where it was read (J3).
    pub fn count_checksum_errors<'a>(&self, bad: impl IntoIterator<Item = &'a BadChild>) {
        for bad in bad.into_iter().filter(|bad| matches!(bad.cause, Cause::Checksum)) {
            let leaf = self.leaf(bad.leaf);
            if leaf.guid == bad.guid {
                leaf.count_checksum_error();
            }
        }
    }

    /// Where `len` bytes at `place` lie on top-level vdevs that hold data themselves, as vdev and
    /// range: one place, or for a removed vdev those that its mapping names. `None` if the address
    /// leads nowhere.
    pub fn concrete_places(
        &self,
        place: impl Into<Place>,
        len: u64,
    ) -> Option<Vec<(u64, std::ops::Range<u64>)>> {
        let Place { vdev, offset } = place.into();
        let top = self.top_index(vdev).filter(|_| offset <= OFFSET_MAX)?;
        let stretches = self.mapped(top, offset as i64, usize::try_from(len).ok()?)?;
        let places = stretches.into_iter().map(|(vdev, offset, len)| {
            let start = u64::try_from(offset).ok()?;
            Some((self.vdevs[vdev].id, start..start.checked_add(len as u64)?))
        });
        places.collect()
    }

    /// [`read`](Self::read), with the bytes of leaves from `reader`.
    pub async fn read_with(
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

    /// [`read_with`](Self::read_with), which tells what was found wrong also if nothing was right.
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
    /// `Kind::Corrupt` if the address cannot be; what devices do is in the result.
    pub async fn scrub(
        &self,
        place: impl Into<Place>,
        psize: u64,
        birth: u64,
        verify: &dyn Verify,
    ) -> Result<ScrubRead> {
        self.scrub_with(self, place, psize, birth, verify).await
    }

    /// [`scrub`](Self::scrub), with the bytes of leaves from `reader`.
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

    /// The stretches of leaves that a scrub of a block reads, for sorting and aggregation. Leaves
    /// that are absent or may be stale are left out; so is everything if the address cannot be.
    pub fn leaf_ranges(&self, place: impl Into<Place>, psize: u64, birth: u64) -> Vec<LeafRange> {
        let ranges = Ranges { found: Vec::new(), has_parity: true, has_stale: false };
        self.ranges(place.into(), psize, birth, ranges)
    }

    /// Like [`leaf_ranges`](Self::leaf_ranges), with the leaves that are absent or may be stale:
    /// every stretch that the layout gives to the block.
    pub fn layout_ranges(&self, place: impl Into<Place>, psize: u64, birth: u64) -> Vec<LeafRange> {
        let ranges = Ranges { found: Vec::new(), has_parity: true, has_stale: true };
        self.ranges(place.into(), psize, birth, ranges)
    }

    /// Like [`leaf_ranges`](Self::leaf_ranges), without parity: what a read of a healthy block may
    /// ask for.
    pub fn data_ranges(&self, place: impl Into<Place>, psize: u64, birth: u64) -> Vec<LeafRange> {
        let ranges = Ranges { found: Vec::new(), has_parity: false, has_stale: false };
        self.ranges(place.into(), psize, birth, ranges)
    }

    fn ranges(&self, place: Place, psize: u64, birth: u64, mut ranges: Ranges) -> Vec<LeafRange> {
        if let Ok((top, len)) = self.check_range(place, psize) {
            self.add_ranges(top, (place.offset as i64, len), birth, 0, &mut ranges);
        }
        ranges.found
    }

    /// Arena index of the top-level vdev and bytes to read, if the address can be.
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
        let (top, len) = self.check_range(place, psize)?;
        let psize = psize as usize;
        let job = Job { tree: self, reader, psize, birth, bad: Mutex::default() };
        let (offset, check) = (place.offset as i64, Some(verify));
        let ask = Ask { offset, len, check, is_scrub, is_quiet: false, depth: 0 };
        let result = job.fetch(top, ask).await.and_then(|piece| {
            // The rest of the last sector is filler.
            piece.data.slice(0..psize).ok_or(Fail::Checksum)
        });
        if result.is_err() {
            // What was refused because the pool was closed under it is no error of a device.
            self.check_open()?;
        }
        Ok((result, job.into_bad()))
    }

    fn error(&self, place: Place, psize: u64, fail: Fail) -> Error {
        let Place { vdev, offset } = place;
        let error = match fail {
            Fail::Absent => Error::new(Kind::Io, ReadError::Absent { vdev, offset, psize }),
            // Nobody is away who could have it: then it is lost.
            Fail::Checksum | Fail::Stale => {
                Error::new(Kind::Checksum, ReadError::Checksum { vdev, offset, psize })
            }
            Fail::Unmapped { vdev, offset } => Error::corrupt(ReadError::Unmapped { vdev, offset }),
            Fail::Io(error) => match Arc::try_unwrap(error) {
                Ok(error) => return error,
                // The report holds it too.
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
        let job = Job { tree: self, reader: self, psize: len, birth, bad: Mutex::default() };
        let whole = (offset, len);
        let ask = Ask { offset, len, check: None, is_scrub: true, is_quiet: true, depth };
        match &node.layout {
            Layout::Leaf(leaf) => {
                if let Ok(offset) = u64::try_from(offset + DATA_START as i64) {
                    ranges.found.push(LeafRange { leaf: *leaf, offset, len: len as u64 });
                }
            }
            Layout::DraidSpare(..) => {
                if let Some(target) = job.spare_target(vdev, offset) {
                    self.add_ranges(target, whole, birth, depth + 1, ranges);
                }
            }
            Layout::Mirror => {
                for child in &node.children {
                    self.add_ranges(*child, whole, birth, depth + 1, ranges);
                }
            }
            Layout::Raidz(_) | Layout::Draid(_) => {
                let Some(map) = job.map(vdev, ask) else { return };
                let has_parity = ranges.has_parity;
                let runs = stripes::runs(&map, |_, column| has_parity || column.data_len > 0);
                for run in runs {
                    let Some(child) = node.children.get(run.child) else { continue };
                    self.add_ranges(*child, (run.offset, run.len), birth, depth + 1, ranges);
                }
            }
            Layout::Indirect => {
                for stretch in job.stretches(vdev, ask).unwrap_or_default() {
                    let whole = (stretch.offset, stretch.len);
                    self.add_ranges(stretch.vdev, whole, birth, depth + 1, ranges);
                }
            }
            Layout::Root | Layout::Absent => {}
        }
    }
}
