//! Writes a block: stores its bytes and returns the pointer.
//!
//!     zeros? ---------------------------------------------------> Hole
//!     compress; small enough for the pointer? ------------------> Embedded
//!     protect ([`seal`]); checksum; the same block there already? (nopwrite) -------> Kept
//!     born in this txg, same stored size, late pass? rewrite ---> InPlace
//!     allocate, or split (gang); write all copies --------------> New
//!
//! The order of the steps is that of spec 02 §5.3, and a test pins their decisions. CPU work is one
//! function on one buffer ([`prepare`]); the space of the block is a tree of addresses
//! ([`layout`]); this module makes the decisions between them.
//!
//! The caller keeps the old pointer until it has the new one, and then frees the old block if
//! [`WriteMethod::replaces`] says so. Nothing is freed here.
//!
//! Invariants
//! * W1 Only a block born in the syncing txg is rewritten in place, asserted in release builds: any
//!   other may be in a snapshot, or be needed by a rewind (spec 05 §5.5).
//! * W2 Space allocated for a write that failed is freed before the error is returned, and not
//!   before a replacement was found, so that the same place is not tried twice.
//! * W3 The cache never holds bytes under a key that the pointer's checksum does not cover.
//! * W4 No block is replaced or freed in a txg before its birth.
//! * W5 A pointer can represent what was allocated and stored.
//! * W6 A stored block is not longer than its contents.
//!
//! Durability: a written block is durable after the next flush of the tree, not before. A write
//! must be awaited to its end: if its future is dropped, its space stays allocated.
//!
//! Sources: spec 02 §5, §6.3; spec 05 §5.5.

mod batch;
mod bound;
mod layout;
mod prepare;
mod seal;

use std::sync::Arc;

use cenote_codec::checksum::{ChecksumAlgorithm, Salt};
use cenote_ondisk::blkptr::{BLOCK_SIZE_MAX, BlockPtr, NewBlock, SECTOR_SIZE};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Buf, Error, Kind, Op, Result, ensure, tunables};
use cenote_vdev::{IoClass, Vdev, VdevKind};

use crate::alloc::{Placement, SpaceAllocator};
use crate::cache::Form;
use crate::error::WriteError;
use crate::policy::{CompressionPolicy, WritePolicy};
use crate::store::{BlockStore, key_of, located};
pub use batch::Draft;
pub use bound::SpaceBound;
use layout::Layout;
pub use prepare::{Prepared, SentForm, Stored};
pub use seal::SealKeys;
use seal::Sealing;
pub(crate) use seal::no_keys;

/// Txg, pass, place and urgency of a write.
#[derive(Debug, Clone, Copy)]
pub struct WriteContext {
    /// Txg in which the block is born.
    pub txg: u64,
    /// Sync pass, from 1 on.
    pub pass: u64,
    /// Place of the block, for errors and for the choice of a stream.
    pub place: Bookmark,
    /// Fill count of the new pointer.
    pub fill: u64,
    /// I/O class.
    pub class: IoClass,
}

impl WriteContext {
    /// A write in a syncing txg with fill count 1.
    #[must_use]
    pub const fn new(txg: u64, pass: u64, place: Bookmark) -> Self {
        Self { txg, pass, place, fill: 1, class: IoClass::AsyncWrite }
    }
}

/// How a block was stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WriteMethod {
    /// At a newly allocated address.
    New,
    /// At the address of the old block, which was born in the same txg.
    InPlace,
    /// Not written: the old block has the same bytes, and its pointer stays (nopwrite).
    Kept,
    /// As a hole: it is all zeros.
    Hole,
    /// Embedded in the pointer.
    Embedded,
}

impl WriteMethod {
    /// Whether the old block is no longer referenced.
    #[must_use]
    pub const fn replaces(self) -> bool {
        !matches!(self, Self::InPlace | Self::Kept)
    }
}

/// Result of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// Its pointer.
    pub bp: BlockPtr,
    /// How it was stored.
    pub method: WriteMethod,
}

/// Sizes to which stored blocks are rounded up (spec 05 §8.1).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Units {
    /// The smallest stored size that wastes no space on any vdev.
    pub(crate) min: u64,
    /// Greatest common divisor of all allocation units.
    pub(crate) gcd: u64,
}

impl Units {
    /// Rounds `size` up to a stored size.
    pub(crate) fn round_up(self, size: u64) -> u64 {
        if size <= self.min { self.min } else { size.next_multiple_of(self.gcd) }
    }
}

impl BlockStore {
    /// Writes a block with any compression and checksum, in place of `old` if there is one.
    ///
    /// # Errors
    /// `Kind::NoSpace` if not even single sectors are free; `Kind::Io` if the devices fail at every
    /// place that is tried; `Kind::ReadOnly` without an allocator; `Kind::Unsupported` for blocks
    /// to be deduplicated; `Kind::KeyUnavailable` for level-0 blocks of encrypted object sets;
    /// `Kind::Invariant` if W1 would be broken.
    pub async fn write(
        &self,
        data: Buf,
        policy: &WritePolicy,
        old: Option<&BlockPtr>,
        context: &WriteContext,
    ) -> Result<Written> {
        let old = old.copied().unwrap_or(BlockPtr::HOLE);
        let (policy, context) = (*policy, *context);
        let draft = Draft { data, policy, sent: None, old, keys: None, context };
        self.write_one(&draft).await
    }

    /// Writes a block, like [`write`](Self::write).
    ///
    /// # Errors
    /// Errors of [`write`](Self::write).
    pub async fn write_one(&self, draft: &Draft) -> Result<Written> {
        self.write_draft(draft, None, ThrottleShare::Reserve).await
    }

    async fn write_draft(
        &self,
        draft: &Draft,
        prepared: Option<Prepared>,
        share: ThrottleShare,
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
        share: ThrottleShare,
    ) -> Result<Written> {
        check(draft)?;
        let Draft { data, policy, old, context, .. } = draft;
        let lsize = data.len() as u64;
        let prepared = match prepared {
            Some(prepared) => prepared,
            None => run(self.work(draft)?).await?,
        };
        let stored = match prepared {
            Prepared::Zeros => return hole(lsize, policy, old, context),
            Prepared::Embedded { payload, compression } => {
                return embedded(&payload, compression, lsize, policy, context);
            }
            Prepared::Stored(stored) => stored,
        };
        let psize = stored.data.len() as u64;
        ensure!("W6", psize <= lsize, "{psize} bytes are stored for a block of {lsize}");
        let write =
            BlockWrite { store: self, policy, context, salt: self.salt(), lsize, stored, share };
        let previous = previous(old);
        if let Some(old) = previous
            && write.is_unchanged(old)
        {
            return Ok(Written { bp: *old, method: WriteMethod::Kept });
        }
        let written = write.run(previous).await?;
        if let Some(key) = cached_form(draft).and_then(|form| key_of(&written.bp, form)) {
            let (len, birth) = (written.bp.lsize(), written.bp.physical_birth());
            ensure!(
                "W3",
                len == lsize && birth == context.txg,
                "a block of {lsize} bytes of txg {} has a pointer of {len} bytes, birth {birth}",
                context.txg
            );
            self.cache().insert(key, data.clone());
        }
        Ok(written)
    }

    /// Returns the bytes that [`write`](Self::write) would store, without storing them.
    ///
    /// # Errors
    /// If the policy names a salted checksum and the salt is not loaded.
    pub async fn prepare(&self, data: &Buf, policy: &WritePolicy) -> Result<Prepared> {
        run(self.work_on(data, policy, None, None)?).await
    }

    fn work(&self, draft: &Draft) -> Result<prepare::Work> {
        let (sent, keys) = (draft.sent.clone(), draft.keys.clone());
        self.work_on(&draft.data, &policy_now(draft), sent, keys)
    }

    fn work_on(
        &self,
        data: &Buf,
        policy: &WritePolicy,
        sent: Option<SentForm>,
        keys: Option<Arc<SealKeys>>,
    ) -> Result<prepare::Work> {
        let salt = self.salt();
        if policy.checksum.is_salted() && salt.is_none() {
            let cause = crate::BlockError::NoSalt { checksum: policy.checksum.id() };
            return Err(Error::corrupt(cause));
        }
        Ok(prepare::Work {
            data: data.clone(),
            sent,
            compression: policy.compression,
            checksum: policy.checksum,
            salt,
            units: self.units(),
            may_embed: policy.may_embed,
            sealing: policy.is_encrypted.then_some(Sealing {
                object_type: policy.object_type,
                level: policy.level,
                keys,
            }),
        })
    }
}

async fn run(work: prepare::Work) -> Result<Prepared> {
    cenote_rt::cpu(work.estimate_ns(), move || work.run()).await?
}

/// The form in which the contents of a written block are cached. Those of a block that another
/// pool has encrypted are not known, except for dnodes.
fn cached_form(draft: &Draft) -> Option<Form> {
    let Draft { policy, keys, .. } = draft;
    let is_sealed = draft.is_sealed();
    match policy.level {
        _ if is_sealed && policy.object_type != ObjectType::DNODE => None,
        0 if policy.is_encrypted && (is_sealed || keys.is_none()) => Some(Form::Locked),
        _ => Some(Form::Plain),
    }
}

/// Refuses unsupported blocks, and old blocks born in a later txg.
fn check(draft: &Draft) -> Result<()> {
    let Draft { data, policy, old, context, .. } = draft;
    let size = data.len() as u64;
    if size == 0 || size > BLOCK_SIZE_MAX || !size.is_multiple_of(SECTOR_SIZE) {
        return Err(Error::new(Kind::Invalid, WriteError::Size { size }));
    }
    let is_sealed = draft.is_sealed();
    let needs_keys = policy.is_encrypted && Sealing::needs_keys(policy.object_type, policy.level);
    if needs_keys && !is_sealed && draft.keys.is_none() {
        return Err(no_keys());
    }
    let (is_protected, is_encrypted) = (old.is_protected(), policy.is_encrypted);
    let fits = previous(old).is_none() || is_protected == is_encrypted;
    ensure!("W7", fits, "a block (protected: {is_protected}) is replaced by one ({is_encrypted})");
    ensure!("W7", is_encrypted || !is_sealed, "a sealed block in an object set without encryption");
    if policy.is_dedup {
        return Err(Error::new(Kind::Unsupported, WriteError::Dedup));
    }
    // Checks W4.
    if old.birth() > context.txg {
        let cause = WriteError::FromTheFuture { birth: old.birth(), txg: context.txg };
        return Err(Error::new(Kind::Invariant, cause));
    }
    Ok(())
}

/// The old block, if there is one. A hole has no space of its own, even if it records a birth.
fn previous(old: &BlockPtr) -> Option<&BlockPtr> {
    Some(old).filter(|bp| !bp.is_hole())
}

/// The policy for this pass: nothing that is rewritten in a late pass is compressed, so that sizes,
/// and with them addresses, stop changing and the txg converges (spec 05 §5.5).
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
    // Zeros where no block ever was do not record a birth (spec 02 §5.2).
    let is_punched = policy.punches_holes && old.birth() != 0;
    let birth = if is_punched { context.txg } else { 0 };
    let bp = BlockPtr::punched(lsize, policy.object_type, policy.level, birth);
    // Checks W5.
    let bp = bp.ok_or_else(unrepresentable)?;
    Ok(Written { bp, method: WriteMethod::Hole })
}

fn embedded(
    payload: &[u8],
    compression: u8,
    lsize: u64,
    policy: &WritePolicy,
    context: &WriteContext,
) -> Result<Written> {
    let bp = BlockPtr::embedding(payload, lsize, compression, policy.object_type, context.txg);
    // Checks W5.
    let bp = bp.ok_or_else(unrepresentable)?;
    Ok(Written { bp, method: WriteMethod::Embedded })
}

fn unrepresentable() -> Error {
    Error::new(Kind::Invariant, WriteError::Unrepresentable)
}

/// A block that is ready to be stored.
struct BlockWrite<'a> {
    store: &'a BlockStore,
    policy: &'a WritePolicy,
    context: &'a WriteContext,
    salt: Option<Arc<Salt>>,
    lsize: u64,
    stored: Stored,
    share: ThrottleShare,
}

/// Which code reserves the bytes in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThrottleShare {
    /// This write.
    Reserve,
    /// The caller, for a whole batch.
    Reserved,
}

impl BlockWrite<'_> {
    fn psize(&self) -> u64 {
        self.stored.data.len() as u64
    }

    /// The block's pointer if it is stored at `dvas`.
    fn pointer(&self, dvas: &[cenote_ondisk::blkptr::Dva]) -> Result<BlockPtr> {
        let new = NewBlock {
            lsize: self.lsize,
            psize: self.psize(),
            object_type: self.policy.object_type,
            level: self.policy.level,
            compression: self.stored.compression,
            checksum_type: self.policy.checksum.id(),
            checksum: self.stored.checksum,
            protection: self.stored.protection,
            dvas,
            birth: self.context.txg,
            fill: self.context.fill,
        };
        // Checks W5.
        new.to_block_ptr().ok_or_else(unrepresentable)
    }

    /// Whether the old block can stay (nopwrite): data with a strong checksum, stored in the same
    /// form (spec 02 §5.4).
    fn is_unchanged(&self, old: &BlockPtr) -> bool {
        let Self { policy, stored, store, .. } = self;
        let is_candidate = tunables::NOPWRITE_ENABLED.get() != 0
            && policy.level == 0
            && !policy.is_metadata
            && !policy.is_encrypted
            && policy.compression != CompressionPolicy::Off
            && ChecksumType::from_id(policy.checksum.id()).is_some_and(ChecksumType::is_nopwrite);
        if !is_candidate || old.is_embedded() || old.checksum() != stored.checksum {
            return false;
        }
        // Compares the whole property word: sizes, functions, type, byte order.
        let same = self.pointer(&[ANYWHERE]).is_ok_and(|new| new.has_same_properties(old));
        let is_concrete =
            |vdev| store.tree().top(vdev).is_some_and(|top| top.kind() != VdevKind::Indirect);
        same && old.dva_count() == usize::from(policy.copies)
            && old.dvas().all(|dva| is_concrete(u64::from(dva.vdev)))
    }

    /// Whether the block is rewritten in place.
    fn is_in_place(&self, old: &BlockPtr) -> bool {
        // Without checksum, two contents of one place would have the same cache key (W3).
        let has_checksum =
            !matches!(self.policy.checksum, ChecksumAlgorithm::Off | ChecksumAlgorithm::NoParity);
        has_checksum
            && (old.birth() == self.context.txg || is_on(Bug::RewriteOfOldBlocks))
            && !old.is_embedded()
            && old.psize() == self.psize()
            && self.context.pass >= tunables::SYNC_PASS_REWRITE.get()
    }

    async fn run(&self, previous: Option<&BlockPtr>) -> Result<Written> {
        cenote_rt::charge(Op::WriteBlock, self.psize());
        if let Some(old) = previous
            && self.is_in_place(old)
            && let Some(bp) = self.rewrite(old).await?
        {
            return Ok(Written { bp, method: WriteMethod::InPlace });
        }
        Ok(Written { bp: self.write_anew().await?, method: WriteMethod::New })
    }

    /// Overwrites the old block. `None` if its devices fail: then the block is stored elsewhere,
    /// and the old one is freed like any other.
    async fn rewrite(&self, old: &BlockPtr) -> Result<Option<BlockPtr>> {
        assert_rewritable(old, self.context.txg)?;
        let checksum = self.policy.checksum;
        let has_checksum =
            !matches!(checksum, ChecksumAlgorithm::Off | ChecksumAlgorithm::NoParity);
        ensure!("W3", has_checksum, "{checksum:?} does not tell two contents of one place apart");
        let layout = match Layout::of(self.store, old).await {
            Ok(layout) => layout,
            Err(error) if is_of_device(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let (dvas, writes) = self.assemble(&layout)?;
        // The old bytes are gone from here on; a reader with the old pointer finds a checksum
        // mismatch, and the cache must not return the old bytes.
        for key in [Form::Plain, Form::Locked].into_iter().filter_map(|form| key_of(old, form)) {
            self.store.cache().remove(&key);
        }
        match self.issue(writes).await {
            Ok(()) => Ok(Some(self.pointer(&dvas)?)),
            Err(error) if is_of_device(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Writes to newly allocated space; if the devices there fail, elsewhere.
    async fn write_anew(&self) -> Result<BlockPtr> {
        let space = self.store.space()?;
        // The bytes in flight to the vdevs of a class are limited, so that the fastest vdev gets
        // the next share first (spec 05 §8.3). Synchronous writes are exempt.
        let _share = match (self.context.class, self.share) {
            (IoClass::AsyncWrite, ThrottleShare::Reserve) => {
                let class = space.preferred_class(&placement(self.policy, self.psize()));
                let bytes = self.psize().saturating_mul(u64::from(self.policy.copies));
                Some(space.reserve([(class, bytes)]).await)
            }
            _ => None,
        };
        let mut given_up = Vec::new();
        let result = self.attempts(space, &mut given_up).await;
        // Not before a replacement was found: the allocator would return the same place (W2).
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
                // Having no other place is not the original error.
                Err(error) => return Err(failure.unwrap_or(error)),
            };
            ensure!(
                "W2",
                given_up.iter().all(|failed| failed.first() != layout.first()),
                "{:?} was tried before",
                layout.first()
            );
            let (dvas, writes) = match self.assemble(&layout) {
                Ok(assembled) => assembled,
                Err(error) => {
                    given_up.push(layout);
                    return Err(error);
                }
            };
            match self.issue(writes).await {
                Ok(()) => {
                    let (found, copies) = (dvas.len(), usize::from(self.policy.copies));
                    ensure!("G2", found >= copies, "{found} addresses for {copies} copies");
                    return self.pointer(&dvas);
                }
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

    /// The top-level vdev that an error of the devices concerns.
    fn failed_vdev(&self, error: &Error) -> Option<u64> {
        let guid = error.at().vdev?;
        let tree = self.store.tree();
        tree.tops().find(|top| top.guid() == guid).map(Vdev::id)
    }
}

/// The properties that decide the class of a block of `psize` stored bytes.
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

/// Placeholder address for pointers of which only the properties are compared.
const ANYWHERE: cenote_ondisk::blkptr::Dva =
    cenote_ondisk::blkptr::Dva { vdev: 0, offset: 0, asize: SECTOR_SIZE, gang: false };

/// Asserts W1, right before the first byte is overwritten.
fn assert_rewritable(old: &BlockPtr, txg: u64) -> Result<()> {
    let is_ours = old.birth() == txg && old.physical_birth() == txg && !old.is_rewritten();
    if (is_ours || is_on(Bug::RewriteOfOldBlocks)) && !old.is_dedup() {
        return Ok(());
    }
    // Checks W1.
    let cause = WriteError::RewriteOfAnotherTxg { birth: old.physical_birth(), txg };
    Err(Error::new(Kind::Invariant, cause))
}

/// Whether an error concerns devices, so that other devices may succeed.
fn is_of_device(error: &Error) -> bool {
    matches!(error.kind(), Kind::Io | Kind::Checksum)
}
