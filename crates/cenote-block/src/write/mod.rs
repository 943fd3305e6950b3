//! Writing a block: from the bytes that its user sees to a pointer to what was stored.
//!
//!     zeros? ---------------------------------------------------> Hole
//!     compress; small enough for the pointer? ------------------> Embedded
//!     checksum; the same block there already? (nopwrite) -------> Kept
//!     born in this txg, same stored size, late pass? rewrite ---> InPlace
//!     allocate, or split (gang); write all copies --------------> New
//!
//! The order is that of spec 02 §5.3, and a test pins what each step decides. CPU work is one
//! function on one buffer ([`prepare`]); where the bytes go is a tree of addresses ([`layout`]);
//! here is what decides between them.
//!
//! The caller keeps the old pointer until he has the new one, and then counts the old block as
//! dead, if `how` says that it is another ([`How::replaces`]). Nothing is freed here.
//!
//! Invariants
//! * W1 Only a block born in the syncing txg is written in place, asserted in release builds: any
//!   other may be in a snapshot, or be what a rollback returns to (spec 05 §5.5).
//! * W2 What was allocated for a write that failed is given back before the error is returned, and
//!   not earlier than a replacement was found, so that the same place is not tried twice.
//! * W3 The cache never holds other bytes under a key than those the pointer's checksum covers.
//!
//! Durability: a block that was written is on disk after the next flush of the tree, not before.
//! A write is driven to its end: if its future is dropped, its space stays taken.
//!
//! Sources: spec 02 §5, §6.3; spec 05 §5.5.

mod batch;
mod bound;
mod layout;
mod prepare;

use std::sync::Arc;

use cenote_codec::checksum::{ChecksumAlgorithm, Salt};
use cenote_ondisk::blkptr::{BLOCK_SIZE_MAX, BlockPtr, NewBlock, SECTOR_SIZE};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, Error, Kind, Result, tunables};
use cenote_vdev::{IoClass, Vdev, VdevKind};

use crate::alloc::{Placement, SpaceAllocator};
use crate::cache::Form;
use crate::error::WriteError;
use crate::policy::{CompressionPolicy, WritePolicy};
use crate::store::{BlockStore, key_of, located};
pub use batch::Draft;
pub use bound::SpaceBound;
use layout::Layout;
pub use prepare::{Prepared, Stored};

/// When, where and how urgently a block is written.
#[derive(Debug, Clone, Copy)]
pub struct WriteContext {
    /// Txg that the block is born in.
    pub txg: u64,
    /// Sync pass, from 1 on.
    pub pass: u64,
    /// Place of the block, for errors and for the choice of an allocator.
    pub place: Bookmark,
    /// Fill count of the new pointer.
    pub fill: u64,
    /// How urgent it is.
    pub class: IoClass,
}

impl WriteContext {
    /// A write of a syncing txg with fill count 1.
    #[must_use]
    pub const fn new(txg: u64, pass: u64, place: Bookmark) -> Self {
        Self { txg, pass, place, fill: 1, class: IoClass::AsyncWrite }
    }
}

/// How a block came to be where its pointer says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum How {
    /// At an address of its own.
    New,
    /// At the address of the old block, which was born in the same txg.
    InPlace,
    /// Not at all: the old block has the same bytes, and its pointer stays.
    Kept,
    /// It is zeros.
    Hole,
    /// In the pointer.
    Embedded,
}

impl How {
    /// Whether the old block is no longer needed.
    #[must_use]
    pub const fn replaces(self) -> bool {
        !matches!(self, Self::InPlace | Self::Kept)
    }
}

/// A block that was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its pointer.
    pub bp: BlockPtr,
    /// What was done.
    pub how: How,
}

/// Sizes that stored blocks are rounded to (spec 05 §8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Units {
    /// The smallest stored size that any vdev fills.
    pub(crate) min: u64,
    /// What all of them divide by.
    pub(crate) gcd: u64,
}

impl Units {
    /// `size` bytes as they are stored.
    pub(crate) fn round_up(self, size: u64) -> u64 {
        if size <= self.min { self.min } else { size.next_multiple_of(self.gcd) }
    }
}

impl BlockStore {
    /// Stores a block of any compression and checksum, in the place of `old` if there was one.
    ///
    /// # Errors
    /// `Kind::NoSpace` when not even single sectors are free; `Kind::Io` when the devices fail
    /// wherever it is tried; `Kind::ReadOnly` without allocator; `Kind::Unsupported` for blocks to
    /// be encrypted or deduplicated; `Kind::Invariant` when W1 would be broken.
    pub async fn write(
        &self,
        data: Buf,
        policy: &WritePolicy,
        old: Option<&BlockPtr>,
        context: &WriteContext,
    ) -> Result<Written> {
        let old = old.copied().unwrap_or(BlockPtr::HOLE);
        let draft = Draft { data, policy: *policy, old, context: *context };
        self.write_draft(&draft, None, Share::Own).await
    }

    async fn write_draft(
        &self,
        draft: &Draft,
        prepared: Option<Prepared>,
        share: Share,
    ) -> Result<Written> {
        let result = self.write_block(draft, prepared, share).await;
        result.map_err(|error| {
            let error = located(error, &draft.context.place);
            error.with_at(|at| at.txg = at.txg.or(Some(draft.context.txg)))
        })
    }

    async fn write_block(
        &self,
        draft: &Draft,
        prepared: Option<Prepared>,
        share: Share,
    ) -> Result<Written> {
        check(draft)?;
        let Draft { data, policy, old, context } = draft;
        let lsize = data.len() as u64;
        let prepared = match prepared {
            Some(prepared) => prepared,
            None => self.prepare(data, &policy_now(draft)).await?,
        };
        let stored = match prepared {
            Prepared::Zeros => return hole(lsize, policy, old, context),
            Prepared::Embedded { payload, compression } => {
                return embedded(&payload, compression, lsize, policy, context);
            }
            Prepared::Stored(stored) => stored,
        };
        let job = Job { store: self, policy, context, salt: self.salt(), lsize, stored, share };
        let previous = previous(old);
        if let Some(old) = previous
            && job.is_unchanged(old)
        {
            return Ok(Written { bp: *old, how: How::Kept });
        }
        let written = job.run(previous).await?;
        if let Some(key) = key_of(&written.bp, Form::Plain) {
            self.cache().insert(key, data.clone());
        }
        Ok(written)
    }

    /// What [`write`](Self::write) would store of a block, without storing it.
    ///
    /// # Errors
    /// When the policy names a salted checksum and the salt is not known.
    pub async fn prepare(&self, data: &Buf, policy: &WritePolicy) -> Result<Prepared> {
        let work = self.work(data, policy)?;
        cenote_rt::cpu(work.estimate_ns(), move || work.run()).await?
    }

    fn work(&self, data: &Buf, policy: &WritePolicy) -> Result<prepare::Work> {
        let salt = self.salt();
        if policy.checksum.is_salted() && salt.is_none() {
            let cause = crate::BlockError::NoSalt { checksum: policy.checksum.id() };
            return Err(Error::corrupt(cause));
        }
        Ok(prepare::Work {
            data: data.clone(),
            compression: policy.compression,
            checksum: policy.checksum,
            salt,
            units: self.units(),
            may_embed: policy.may_embed,
        })
    }
}

/// Refuses what is not written, and old blocks from the future.
fn check(draft: &Draft) -> Result<()> {
    let Draft { data, policy, old, context } = draft;
    let size = data.len() as u64;
    if size == 0 || size > BLOCK_SIZE_MAX || !size.is_multiple_of(SECTOR_SIZE) {
        return Err(Error::new(Kind::Invalid, WriteError::Size { size }));
    }
    if policy.is_encrypted || old.is_protected() {
        return Err(Error::new(Kind::Unsupported, WriteError::Encrypted));
    }
    if policy.is_dedup {
        return Err(Error::new(Kind::Unsupported, WriteError::Dedup));
    }
    if old.birth() > context.txg {
        let cause = WriteError::FromTheFuture { birth: old.birth(), txg: context.txg };
        return Err(Error::new(Kind::Invariant, cause));
    }
    Ok(())
}

/// The block before. A hole has no place of its own, whatever it remembers.
fn previous(old: &BlockPtr) -> Option<&BlockPtr> {
    Some(old).filter(|bp| !bp.is_hole())
}

/// The policy with what is compressed in this pass: nothing that is rewritten in a late one, so
/// that sizes, and with them addresses, stop changing and the txg converges (spec 05 §5.5).
fn policy_now(draft: &Draft) -> WritePolicy {
    let Draft { policy, old, context, .. } = draft;
    let is_late = context.pass >= tunables::SYNC_PASS_DONT_COMPRESS.get();
    match previous(old) {
        Some(old) if is_late && old.birth() == context.txg => {
            WritePolicy { compression: CompressionPolicy::Off, ..*policy }
        }
        _ => *policy,
    }
}

fn hole(
    lsize: u64,
    policy: &WritePolicy,
    old: &BlockPtr,
    context: &WriteContext,
) -> Result<Written> {
    // Zeros where there never was anything are not worth a birth (spec 02 §5.2).
    let is_punched = policy.punches_holes && old.birth() != 0;
    let birth = if is_punched { context.txg } else { 0 };
    let bp = BlockPtr::punched(lsize, policy.object_type, policy.level, birth);
    let bp = bp.ok_or_else(unrepresentable)?;
    Ok(Written { bp, how: How::Hole })
}

fn embedded(
    payload: &[u8],
    compression: u8,
    lsize: u64,
    policy: &WritePolicy,
    context: &WriteContext,
) -> Result<Written> {
    let bp = BlockPtr::embedding(payload, lsize, compression, policy.object_type, context.txg);
    let bp = bp.ok_or_else(unrepresentable)?;
    Ok(Written { bp, how: How::Embedded })
}

fn unrepresentable() -> Error {
    Error::new(Kind::Invariant, WriteError::Unrepresentable)
}

/// A block that is ready to be stored.
struct Job<'a> {
    store: &'a BlockStore,
    policy: &'a WritePolicy,
    context: &'a WriteContext,
    salt: Option<Arc<Salt>>,
    lsize: u64,
    stored: Stored,
    share: Share,
}

/// Who sees to the bound of what is on its way to the vdevs of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Share {
    /// The write itself.
    Own,
    /// Who writes several blocks, for all of them.
    Taken,
}

impl Job<'_> {
    fn psize(&self) -> u64 {
        self.stored.data.len() as u64
    }

    /// The pointer if the block lies at `dvas`.
    fn pointer(&self, dvas: &[cenote_ondisk::blkptr::Dva]) -> Result<BlockPtr> {
        let new = NewBlock {
            lsize: self.lsize,
            psize: self.psize(),
            object_type: self.policy.object_type,
            level: self.policy.level,
            compression: self.stored.compression,
            checksum_type: self.policy.checksum.id(),
            checksum: self.stored.checksum,
            dvas,
            birth: self.context.txg,
            fill: self.context.fill,
        };
        new.to_block_ptr().ok_or_else(unrepresentable)
    }

    /// Whether the old block can stay: data with a checksum that leaves no doubt, stored in the
    /// same way (spec 02 §5.4).
    fn is_unchanged(&self, old: &BlockPtr) -> bool {
        let Self { policy, stored, store, .. } = self;
        let is_candidate = tunables::NOPWRITE_ENABLED.get() != 0
            && policy.level == 0
            && !policy.is_metadata
            && policy.compression != CompressionPolicy::Off
            && ChecksumType::from_id(policy.checksum.id()).is_some_and(ChecksumType::is_nopwrite);
        if !is_candidate || old.is_embedded() || old.checksum() != stored.checksum {
            return false;
        }
        // Everything that the property word says: sizes, functions, type, byte order.
        let same = self.pointer(&[ANYWHERE]).is_ok_and(|new| new.words()[6] == old.words()[6]);
        let is_concrete =
            |vdev| store.tree().top(vdev).is_some_and(|top| top.kind() != VdevKind::Indirect);
        same && old.dva_count() == usize::from(policy.copies)
            && old.dvas().all(|dva| is_concrete(u64::from(dva.vdev)))
    }

    /// Whether the block takes the old one's place.
    fn is_in_place(&self, old: &BlockPtr) -> bool {
        // Without checksum two contents of one place would be one key of the cache (W3).
        let has_checksum =
            !matches!(self.policy.checksum, ChecksumAlgorithm::Off | ChecksumAlgorithm::NoParity);
        has_checksum
            && (old.birth() == self.context.txg || is_on(Bug::RewriteOfOldBlocks))
            && !old.is_embedded()
            && old.psize() == self.psize()
            && self.context.pass >= tunables::SYNC_PASS_REWRITE.get()
    }

    async fn run(&self, previous: Option<&BlockPtr>) -> Result<Written> {
        if let Some(old) = previous
            && self.is_in_place(old)
            && let Some(bp) = self.rewrite(old).await?
        {
            return Ok(Written { bp, how: How::InPlace });
        }
        Ok(Written { bp: self.write_anew().await?, how: How::New })
    }

    /// Writes over the old block. `None` if its devices fail: then the block goes elsewhere, and
    /// the old one dies like any other.
    async fn rewrite(&self, old: &BlockPtr) -> Result<Option<BlockPtr>> {
        assert_rewritable(old, self.context.txg)?;
        let layout = match Layout::of(self.store, old).await {
            Ok(layout) => layout,
            Err(error) if is_of_device(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (dvas, writes) = self.assemble(&layout)?;
        // The old bytes are gone from here on; whoever still holds the old pointer finds that its
        // checksum does not match, and no entry of the cache can say otherwise.
        if let Some(key) = key_of(old, Form::Plain) {
            self.store.cache().remove(&key);
        }
        match self.issue(writes).await {
            Ok(()) => Ok(Some(self.pointer(&dvas)?)),
            Err(error) if is_of_device(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes to space of its own; when the devices there fail, elsewhere.
    async fn write_anew(&self) -> Result<BlockPtr> {
        let space = self.store.space()?;
        // At most so much is on its way to the vdevs of a class, and whichever is done first is
        // there first for the next share (spec 05 §8.3). Who is waited for takes no turn.
        let _share = match (self.context.class, self.share) {
            (IoClass::AsyncWrite, Share::Own) => {
                let class = space.preferred_class(&placement(self.policy, self.psize()));
                let bytes = self.psize().saturating_mul(u64::from(self.policy.copies));
                Some(space.reserve([(class, bytes)]).await)
            }
            _ => None,
        };
        let mut given_up = Vec::new();
        let result = self.attempts(space, &mut given_up).await;
        // Not before a replacement was found: the allocator would offer the same place (W2).
        for layout in &given_up {
            layout.undo(space, self.context.txg)?;
        }
        result
    }

    async fn attempts(
        &self,
        space: &SpaceAllocator,
        given_up: &mut Vec<Layout>,
    ) -> Result<BlockPtr> {
        let attempts = tunables::WRITE_ATTEMPTS.get_usize();
        let mut failure: Option<Error> = None;
        loop {
            let failed = failure.as_ref().and_then(|error| self.failed_vdev(error));
            let layout = match self.lay_out(space, failed).await {
                Ok(layout) => layout,
                // That there is no other place is not what went wrong first.
                Err(error) => return Err(failure.unwrap_or(error)),
            };
            let (dvas, writes) = match self.assemble(&layout) {
                Ok(assembled) => assembled,
                Err(error) => {
                    given_up.push(layout);
                    return Err(error);
                }
            };
            match self.issue(writes).await {
                Ok(()) => return self.pointer(&dvas),
                Err(error) => {
                    given_up.push(layout);
                    if !is_of_device(&error) || given_up.len() >= attempts {
                        return Err(error);
                    }
                    failure = Some(error);
                }
            }
        }
    }

    /// The top-level vdev that an error of the devices is about.
    fn failed_vdev(&self, error: &Error) -> Option<u64> {
        let guid = error.at().vdev?;
        let tree = self.store.tree();
        tree.tops().find(|top| top.guid() == guid).map(Vdev::id)
    }
}

/// What decides on the class of a block of `psize` stored bytes.
fn placement(policy: &WritePolicy, psize: u64) -> Placement {
    let object_type = policy.object_type;
    Placement {
        is_metadata: object_type.is_metadata(),
        is_dedup_table: matches!(object_type, ObjectType::DDT_ZAP | ObjectType::DDT_STATS),
        level: policy.level,
        is_file_data: matches!(object_type, ObjectType::PLAIN_FILE_CONTENTS | ObjectType::ZVOL),
        psize,
        special_small_blocks: policy.special_small_blocks,
    }
}

/// An address for pointers of which only the properties matter.
const ANYWHERE: cenote_ondisk::blkptr::Dva =
    cenote_ondisk::blkptr::Dva { vdev: 0, offset: 0, asize: SECTOR_SIZE, gang: false };

/// Keeps W1 where it counts: right before the first byte is written over.
fn assert_rewritable(old: &BlockPtr, txg: u64) -> Result<()> {
    let is_ours = old.birth() == txg && old.physical_birth() == txg && !old.is_rewritten();
    if (is_ours || is_on(Bug::RewriteOfOldBlocks)) && !old.is_dedup() && !old.is_protected() {
        return Ok(());
    }
    let cause = WriteError::RewriteOfAnotherTxg { birth: old.physical_birth(), txg };
    Err(Error::new(Kind::Invariant, cause))
}

/// Whether an error is one of devices, which other devices may not have.
fn is_of_device(error: &Error) -> bool {
    matches!(error.kind(), Kind::Io | Kind::Checksum)
}
