//! Layout of a block: one place in one or more copies, or split into a gang.
//!
//!     Whole [dva, dva]                      Gang  header [dva, dva, dva]
//!                                                 |- 0..4096      Whole [dva, dva]
//!                                                 |- 4096..8192   Gang ...
//!                                                 `- 8192..9216   Whole [dva, dva]
//!
//! All space is allocated before anything is written, so that a split that runs out of space half
//! way costs no I/O. The members' pointers with their own checksums, the headers with their
//! trailers, and the leader's addresses, which count the space of the whole gang, are then computed
//! bottom up from the layout. When a gang block is rewritten in place, its layout is read back from
//! its headers.
//!
//! Headers always have the classic size and three members, whatever the pool's features allow:
//! every reader supports them (spec 02 §6.3).
//!
//! Invariants
//! * G1  The members of a gang block are its bytes, once and in order, and fit into its header.
//! * G2  A gang header has at least as many copies as each of its members.
//!
//! Sources: spec 02 §6.

use std::ops::Range;

use cenote_codec::checksum::embedded::{self, Embedded};
use cenote_codec::checksum::{self};
use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BlockPtr, Dva, NewBlock, NewProtection};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result, ensure};
use futures_util::future::join_all;

use super::{BlockWrite, placement};
use crate::alloc::{Class, Request, SpaceAllocator};
use crate::costs::charge_checksum;
use crate::error::WriteError;
use crate::gang::{GANG_DEPTH_MAX, HEADER_SIZE};
use crate::store::BlockStore;

/// Members of a classic header.
const MEMBERS_MAX: u64 = 3;
/// Compression number of members: "off".
const COMPRESSION_OFF: u8 = 2;

/// The addresses of a block or of a part of one.
#[derive(Debug)]
pub(super) enum Layout {
    Whole {
        dvas: Vec<Dva>,
    },
    Gang {
        /// Addresses of the header only.
        header: Vec<Dva>,
        members: Vec<Member>,
    },
}

/// A part of a gang block.
#[derive(Debug)]
pub(super) struct Member {
    /// Its range within the bytes of the whole layout.
    range: Range<usize>,
    layout: Layout,
}

/// A write to one address.
#[derive(Debug)]
pub(super) struct Write {
    dva: Dva,
    data: Buf,
}

/// Properties that all parts of a block share.
struct LayoutRequest {
    class: Class,
    copies: u8,
    gang_copies: u8,
    txg: u64,
    stream: u64,
    is_metadata: bool,
    units: super::Units,
}

impl LayoutRequest {
    fn request(&self, psize: u64, copies: u8, near: Option<u64>, is_gang_part: bool) -> Request {
        let Self { class, txg, stream, is_metadata, .. } = *self;
        Request { class, psize, copies, txg, stream, near, is_gang_part, is_metadata }
    }

    /// Allocates space for `range`, split if necessary; all of it or none.
    fn place<'a>(
        &'a self,
        space: &'a SpaceAllocator,
        range: Range<usize>,
        near: Option<u64>,
        depth: u32,
    ) -> BoxFuture<'a, Result<Layout>> {
        Box::pin(async move {
            let psize = range.len() as u64;
            // A block that cannot be split is exempt from `metaslab_force_ganging`.
            let is_part = depth > 0 || psize <= self.units.min;
            let request = self.request(psize, self.copies, near, is_part);
            match space.allocate(&request).await {
                Ok(dvas) => Ok(Layout::Whole { dvas }),
                Err(error) if error.kind() != Kind::NoSpace => Err(error),
                Err(error) if psize <= self.units.min || depth >= GANG_DEPTH_MAX => Err(error),
                Err(_) => self.split(space, range, near, depth).await,
            }
        })
    }

    async fn split(
        &self,
        space: &SpaceAllocator,
        range: Range<usize>,
        near: Option<u64>,
        depth: u32,
    ) -> Result<Layout> {
        let header = self.place_header(space, near).await?;
        let near = header.first().map(|dva| u64::from(dva.vdev));
        let mut members = Vec::new();
        let mut start = range.start;
        for slots in (1..=MEMBERS_MAX).rev() {
            let left = (range.end - start) as u64;
            if left == 0 {
                break;
            }
            let share = self.units.round_up(left.div_ceil(slots)).min(left);
            let part = start..start + share as usize;
            match self.place(space, part.clone(), near, depth + 1).await {
                Ok(layout) => members.push(Member { range: part.clone(), layout }),
                Err(error) => {
                    Layout::Gang { header, members }.undo(space, self.txg)?;
                    return Err(error);
                }
            }
            start = part.end;
        }
        Ok(Layout::Gang { header, members })
    }

    /// The header may have more copies than its members; additional copies are optional.
    async fn place_header(&self, space: &SpaceAllocator, near: Option<u64>) -> Result<Vec<Dva>> {
        let mut copies = self.gang_copies.max(self.copies);
        loop {
            match space.allocate(&self.request(HEADER_SIZE, copies, near, true)).await {
                Err(error) if error.kind() == Kind::NoSpace && copies > self.copies => copies -= 1,
                result => return result,
            }
        }
    }
}

impl Layout {
    /// The layout of an existing block.
    pub(super) async fn of(store: &BlockStore, bp: &BlockPtr) -> Result<Self> {
        Self::read(store, bp, 0, 0).await
    }

    fn read<'a>(
        store: &'a BlockStore,
        bp: &'a BlockPtr,
        start: usize,
        depth: u32,
    ) -> BoxFuture<'a, Result<Self>> {
        Box::pin(async move {
            if !bp.is_gang() {
                return Ok(Self::Whole { dvas: bp.dvas().collect() });
            }
            if depth >= GANG_DEPTH_MAX {
                let cause = crate::BlockError::GangDepth { limit: GANG_DEPTH_MAX };
                return Err(Error::corrupt(cause));
            }
            let birth = bp.physical_birth();
            let header = bp.dvas().map(|dva| store.header_of(dva, birth)).collect::<Result<_>>()?;
            let mut members = Vec::new();
            let mut start = start;
            for member in store.gang_members(bp, &crate::Grounds::Allocated).await? {
                let range = start..start + member.psize() as usize;
                start = range.end;
                let layout = Self::read(store, &member, range.start, depth + 1).await?;
                members.push(Member { range, layout });
            }
            Ok(Self::Gang { header, members })
        })
    }

    /// Frees the space of a block that was never written.
    pub(super) fn undo(&self, space: &SpaceAllocator, txg: u64) -> Result<()> {
        let mut dvas = Vec::new();
        self.addresses(&mut dvas);
        dvas.iter().try_for_each(|dva| space.unallocate(dva, txg))
    }

    /// Returns the first address.
    pub(super) fn first(&self) -> Option<&Dva> {
        match self {
            Self::Whole { dvas } | Self::Gang { header: dvas, .. } => dvas.first(),
        }
    }

    /// Appends every address with the space of that address.
    pub(super) fn addresses(&self, into: &mut Vec<Dva>) {
        match self {
            Self::Whole { dvas } => into.extend(dvas),
            Self::Gang { header, members } => {
                into.extend(header);
                for member in members {
                    member.layout.addresses(into);
                }
            }
        }
    }
}

impl BlockWrite<'_> {
    /// Allocates space for the block, preferably on other top-level vdevs than `failed`.
    pub(super) async fn lay_out(
        &self,
        space: &SpaceAllocator,
        failed: Option<u64>,
    ) -> Result<Layout> {
        let place = self.context.place;
        let request = LayoutRequest {
            class: space.preferred_class(&placement(self.policy, self.psize())),
            copies: self.policy.copies,
            gang_copies: self.policy.gang_copies,
            txg: self.context.txg,
            stream: place.objset.rotate_left(32) ^ place.object,
            is_metadata: self.policy.is_metadata,
            units: self.store.units(),
        };
        // Beyond the last vdev the first follows.
        let near = failed.map(|id| id + 1);
        request.place(space, 0..self.stored.data.len(), near, 0).await
    }

    /// Returns the addresses for the pointer, and all writes of the block.
    pub(super) fn assemble(&self, layout: &Layout) -> Result<(Vec<Dva>, Vec<Write>)> {
        let mut writes = Vec::new();
        let dvas = self.assemble_part(layout, &self.stored.data, 0, &mut writes)?;
        Ok((dvas, writes))
    }

    /// `data` are the bytes of this part, which start at `start` of the block.
    fn assemble_part(
        &self,
        layout: &Layout,
        data: &Buf,
        start: usize,
        writes: &mut Vec<Write>,
    ) -> Result<Vec<Dva>> {
        let (header, members) = match layout {
            Layout::Whole { dvas } => {
                writes.extend(dvas.iter().map(|&dva| Write { dva, data: data.clone() }));
                return Ok(dvas.clone());
            }
            Layout::Gang { header, members } => (header, members),
        };
        let mut leader: Vec<Dva> = header.iter().map(|dva| Dva { gang: true, ..*dva }).collect();
        let mut block = BufMut::zeroed(HEADER_SIZE as usize);
        let slots = block.as_chunks_mut::<BLOCK_PTR_LEN>().0;
        let mut next = start;
        for (member, slot) in members.iter().zip(slots) {
            let Range { start: from, end: to } = member.range;
            ensure!("G1", from == next, "a member begins at {from}, the one before ends at {next}");
            next = to;
            let bp = self.member(member, data, start, writes)?;
            let (copies, parts) = (leader.len(), bp.dva_count());
            ensure!("G2", parts <= copies, "a member has {parts} copies, its header {copies}");
            for (whole, part) in leader.iter_mut().zip(bp.dvas()) {
                whole.asize += part.asize;
            }
            *slot = bp.to_bytes();
        }
        let end = start + data.len();
        ensure!("G1", next == end, "the members end at byte {next}, the block at {end}");
        // Checks G2.
        let first = header.first().ok_or_else(super::unrepresentable)?;
        let (vdev, offset, birth) = (u64::from(first.vdev), first.offset, self.context.txg);
        let kind = Embedded::GangHeader { vdev, offset, birth };
        let is_folded = matches!(self.stored.protection, NewProtection::Sealed { .. });
        embedded::seal(kind, &mut block, is_folded)
            .map_err(|error| Error::new(Kind::Invariant, error))?;
        let block = block.freeze();
        writes.extend(header.iter().map(|&dva| Write { dva, data: block.clone() }));
        Ok(leader)
    }

    /// The pointer to a member: uncompressed, type 0, with the leader's checksum function.
    fn member(
        &self,
        member: &Member,
        data: &Buf,
        start: usize,
        writes: &mut Vec<Write>,
    ) -> Result<BlockPtr> {
        let Range { start: from, end: to } = member.range;
        let part = from.checked_sub(start).zip(to.checked_sub(start));
        let part = part.and_then(|(from, to)| data.slice(from..to));
        // Checks G1.
        let part = part.ok_or_else(super::unrepresentable)?;
        let dvas = self.assemble_part(&member.layout, &part, from, writes)?;
        let algorithm = self.policy.checksum;
        charge_checksum(algorithm, part.len());
        let checksum = checksum::compute(algorithm, &part, false, self.salt.as_deref())
            .map_err(Error::corrupt)?;
        let new = NewBlock {
            lsize: part.len() as u64,
            psize: part.len() as u64,
            object_type: ObjectType::NONE,
            level: 0,
            compression: COMPRESSION_OFF,
            checksum_type: algorithm.id(),
            checksum,
            protection: NewProtection::None,
            dvas: &dvas,
            birth: self.context.txg,
            fill: 0,
        };
        // Checks W5.
        new.to_block_ptr().ok_or_else(super::unrepresentable)
    }

    /// Submits all writes at once. Returns the first error, after every write has ended.
    pub(super) async fn issue(&self, writes: Vec<Write>) -> Result<()> {
        let (tree, txg, class) = (self.store.tree(), self.context.txg, self.context.class);
        let bytes = writes.iter().map(|write| write.data.len() as u64).sum();
        let all = writes.into_iter().map(|Write { dva, data }| tree.write(dva, data, txg, class));
        for result in join_all(all).await {
            // Leaves that missed their part of a readable block were recorded by the vdev tree.
            result?;
        }
        self.store.note_written(bytes);
        Ok(())
    }
}

impl BlockStore {
    /// The address of a gang header itself, from that of the whole gang.
    pub(crate) fn header_of(&self, dva: Dva, birth: u64) -> Result<Dva> {
        let asize = self.tree().asize_for(u64::from(dva.vdev), HEADER_SIZE, birth);
        let cause = crate::BlockError::Vdev { vdev: dva.vdev };
        let asize = asize.ok_or_else(|| Error::corrupt(cause))?;
        Ok(Dva { asize, gang: false, ..dva })
    }

    /// The allocator, if the pool is writable.
    pub(crate) fn space(&self) -> Result<&SpaceAllocator> {
        self.allocator()
            .map(|space| &**space)
            .ok_or_else(|| Error::new(Kind::ReadOnly, WriteError::NoAllocator))
    }
}
