//! The block store: the interface through which the upper layers read and write blocks.
//!
//!     read(bp):  hole -> zeros     embedded -> from the pointer     redacted -> error
//!                cache  -- miss -->  fetch: copies, gang members, verified      (`fetch`)
//!                                    expand: decrypt, decompress, byteswap      (`expand`)
//!
//! A block is returned whole, decrypted and decompressed, in little-endian, and shared. Every error
//! carries the place in the object's tree that the caller gave.
//!
//! Rules
//! 1. A block of an encrypted type is never returned without keys, cached or not.
//! 2. In an object set known to be encrypted, a pointer without the X bit is refused (spec 08 §6).
//! 3. Bytes read without keys are never returned to a reader with keys, and vice versa.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_codec::checksum::Salt;
use cenote_codec::crypto::BlockKeys;
use cenote_ondisk::blkptr::{BlockPtr, Protection, SECTOR_SIZE};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::lock::{AsyncMutex, Rank, RwLock};
use cenote_rt::{Buf, BufMut, Error, Kind, Op, Result, Semaphore, tunables};
use cenote_vdev::{IoClass, Tree, VdevKind};

use crate::alloc::SpaceAllocator;
use crate::cache::{BlockCache, CacheConfig, CacheStats, Form, Key};
use crate::error::BlockError;
use crate::expand::{decrypt, expand, expand_embedded};
use crate::grounds::Grounds;
use crate::heal::Reporter;
use crate::moved::MovedBytes;
use crate::verify::Verifier;
use crate::write::Units;

/// Smallest size at which a block being prefetched is counted.
const PREFETCH_UNIT: u64 = 64 << 10;
/// Bytes being prefetched: a quarter of the cache, within these limits.
const PREFETCH_BYTES: (u64, u64) = (4 << 20, 64 << 20);

/// The reader of a block, and the block's place in the tree.
#[derive(Debug, Clone, Copy)]
pub struct ReadContext<'a> {
    /// Place of the block, for error messages.
    pub place: Bookmark,
    /// Keys of the object set, if it is encrypted and they are loaded.
    pub keys: Option<&'a Arc<BlockKeys>>,
    /// Whether the object set is known to be encrypted.
    pub is_encrypted: bool,
    /// Whether the block is read only once and should not be cached.
    pub bypass_cache: bool,
    /// How the reader obtained the pointer.
    pub grounds: &'a Grounds,
    /// Class of the reads of leaves.
    pub class: IoClass,
}

impl Default for ReadContext<'_> {
    fn default() -> Self {
        Self {
            place: Bookmark::default(),
            keys: None,
            is_encrypted: false,
            bypass_cache: false,
            grounds: &Grounds::Offline,
            class: IoClass::SyncRead,
        }
    }
}

/// Form of the bytes that [`BlockStore::read_stored`] returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoredForm {
    /// Compressed and encrypted as on disk. Needs no key.
    AsOnDisk,
    /// Compressed as on disk, but decrypted and authenticated.
    Decrypted,
}

/// Statistics of the store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Blocks read from devices.
    pub blocks_read: u64,
    /// Stored bytes read.
    pub bytes_read: u64,
    /// Blocks that were read although a copy, or a part of one, was bad.
    pub blocks_recovered: u64,
    /// Bad parts of such blocks that were repaired.
    pub parts_repaired: u64,
    /// Blocks written; a gang block counts once.
    pub blocks_written: u64,
    /// Bytes written: all copies and gang headers, without parity.
    pub bytes_written: u64,
}

/// Permits for prefetching.
struct Prefetches {
    permits: Arc<Semaphore>,
    /// Number of all permits; each is for [`PREFETCH_UNIT`] bytes.
    units: u64,
}

/// Reads and writes the blocks of a pool.
pub struct BlockStore {
    tree: Arc<Tree>,
    cache: BlockCache,
    salt: RwLock<Option<Arc<Salt>>>,
    has_large_gang_headers: AtomicBool,
    prefetches: Prefetches,
    blocks_read: AtomicU64,
    bytes_read: AtomicU64,
    blocks_recovered: AtomicU64,
    parts_repaired: AtomicU64,
    blocks_written: AtomicU64,
    bytes_written: AtomicU64,
    units: Units,
    /// LOCK: held while a batch of writes is submitted, across no await.
    batch_submission: AsyncMutex<()>,
    allocator: OnceLock<Arc<SpaceAllocator>>,
    moved: MovedBytes,
    reporter: OnceLock<Arc<dyn Reporter>>,
}

impl BlockStore {
    /// Returns a store over the vdevs of a pool.
    pub fn new(tree: Arc<Tree>, config: CacheConfig) -> Arc<Self> {
        let units = units(&tree);
        let (least, most) = PREFETCH_BYTES;
        let prefetch_units = (config.capacity_bytes / 4).clamp(least, most) / PREFETCH_UNIT;
        Arc::new(Self {
            tree,
            units,
            batch_submission: AsyncMutex::with_default(Rank::BlockBatch),
            allocator: OnceLock::new(),
            moved: MovedBytes::default(),
            reporter: OnceLock::new(),
            parts_repaired: AtomicU64::new(0),
            blocks_written: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            cache: BlockCache::new(config),
            salt: RwLock::new(Rank::Salt, None),
            has_large_gang_headers: AtomicBool::new(false),
            prefetches: Prefetches {
                permits: Arc::new(Semaphore::new(prefetch_units as usize)),
                units: prefetch_units,
            },
            blocks_read: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            blocks_recovered: AtomicU64::new(0),
        })
    }

    /// The vdev tree.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// The bytes of removed vdevs.
    pub fn moved(&self) -> &MovedBytes {
        &self.moved
    }

    /// Makes the store writable: space is allocated from `allocator`. Returns true the first time;
    /// a second allocator is ignored.
    pub fn set_allocator(&self, allocator: Arc<SpaceAllocator>) -> bool {
        self.allocator.set(allocator).is_ok()
    }

    /// The allocator, if the store is writable.
    pub fn allocator(&self) -> Option<&Arc<SpaceAllocator>> {
        self.allocator.get()
    }

    /// Sets the receiver of damage reports. Returns true the first time; a second one is ignored.
    pub fn set_reporter(&self, reporter: Arc<dyn Reporter>) -> bool {
        self.reporter.set(reporter).is_ok()
    }

    pub(crate) fn reporter(&self) -> Option<&dyn Reporter> {
        self.reporter.get().map(|reporter| &**reporter)
    }

    pub(crate) fn cache(&self) -> &BlockCache {
        &self.cache
    }

    pub(crate) fn batch_submission(&self) -> &AsyncMutex<()> {
        &self.batch_submission
    }

    pub(crate) fn units(&self) -> Units {
        self.units
    }

    /// Sets the pool's salt, without which skein, edonr and blake3 blocks cannot be read.
    pub fn set_salt(&self, salt: &[u8; 32]) {
        let salt = Some(Arc::new(Salt::new(salt)));
        *self.salt.write() = salt;
    }

    /// Sets whether gang headers may be larger than 512 bytes (feature
    /// `com.klarasystems:dynamic_gang_header` is active).
    pub fn set_large_gang_headers(&self, active: bool) {
        self.has_large_gang_headers.store(active, Ordering::Relaxed);
    }

    pub(crate) fn has_large_gang_headers(&self) -> bool {
        self.has_large_gang_headers.load(Ordering::Relaxed)
    }

    /// Statistics of the cache.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// Statistics of the store.
    pub fn stats(&self) -> StoreStats {
        StoreStats {
            blocks_read: self.blocks_read.load(Ordering::Relaxed),
            bytes_read: self.bytes_read.load(Ordering::Relaxed),
            blocks_recovered: self.blocks_recovered.load(Ordering::Relaxed),
            parts_repaired: self.parts_repaired.load(Ordering::Relaxed),
            blocks_written: self.blocks_written.load(Ordering::Relaxed),
            bytes_written: self.bytes_written.load(Ordering::Relaxed),
        }
    }

    /// Removes all blocks from the cache.
    pub fn clear_cache(&self) {
        self.cache.clear();
    }

    /// Changes the capacity of the cache.
    pub fn set_cache_capacity(&self, bytes: u64) {
        self.cache.set_capacity(bytes);
    }

    /// Reads the block at `bp`: verified, decrypted, decompressed, little-endian, `lsize` bytes.
    pub async fn read(&self, bp: &BlockPtr, context: &ReadContext<'_>) -> Result<Buf> {
        self.read_block(bp, context).await.map_err(|error| {
            let error = located(error, &context.place);
            self.report(&context.place, bp, &error);
            error
        })
    }

    async fn read_block(&self, bp: &BlockPtr, context: &ReadContext<'_>) -> Result<Buf> {
        context.grounds.check()?;
        if bp.is_redacted() {
            return Err(Error::new(Kind::Io, BlockError::Redacted));
        }
        if bp.is_embedded() {
            return expand_embedded(bp);
        }
        if bp.is_hole() {
            return Ok(BufMut::zeroed(bp.lsize() as usize).freeze());
        }
        let form = form_of(bp, context)?;
        let key = key_of(bp, form);
        let block = match key {
            Some(key) if !context.bypass_cache => {
                self.cache.get_or_fill(key, self.fill(bp, context)).await?
            }
            Some(key) => match self.cache.get(&key) {
                Some(block) => block,
                None => self.fill(bp, context).await?,
            },
            None => self.fill(bp, context).await?,
        };
        if block.len() as u64 == bp.lsize() {
            return Ok(block);
        }
        // The cached block has another size: one of the two pointers is wrong, and the checksum
        // tells which. Happens only in a damaged pool.
        self.fill(bp, context).await
    }

    async fn fill(&self, bp: &BlockPtr, context: &ReadContext<'_>) -> Result<Buf> {
        let stored = self.read_missed(bp, context).await?;
        expand(*bp, stored, context.keys.cloned()).await
    }

    /// Reads the stored bytes of a block that is not cached.
    async fn read_missed(&self, bp: &BlockPtr, context: &ReadContext<'_>) -> Result<Buf> {
        cenote_rt::charge(Op::ReadMissed, bp.psize());
        let stored = self.fetch(bp, context.grounds, context.class).await?;
        self.note_read(bp.psize());
        Ok(stored)
    }

    /// Returns the block at `bp` if that needs no I/O.
    pub fn cached(&self, bp: &BlockPtr, context: &ReadContext<'_>) -> Option<Buf> {
        if bp.is_embedded() {
            // An error is found by the reader that reads the block properly.
            return expand_embedded(bp).ok();
        }
        if bp.is_hole() || bp.is_redacted() || context.grounds.check().is_err() {
            return None;
        }
        let key = key_of(bp, form_of(bp, context).ok()?)?;
        self.cache.get(&key).filter(|block| block.len() as u64 == bp.lsize())
    }

    /// Starts reading the block at `bp` into the cache; returns false if too many prefetches are in
    /// flight.
    pub fn prefetch(self: &Arc<Self>, bp: &BlockPtr, context: &ReadContext<'_>) -> bool {
        if bp.is_embedded() || bp.is_hole() || self.cached(bp, context).is_some() {
            return true;
        }
        let units = bp.lsize().div_ceil(PREFETCH_UNIT).clamp(1, self.prefetches.units) as u32;
        let permit = Arc::clone(&self.prefetches.permits).try_acquire_many_owned(units);
        let Ok(permit) = permit else { return false };
        let (store, bp, keys) = (Arc::clone(self), *bp, context.keys.cloned());
        let grounds = context.grounds.clone();
        let (place, is_encrypted) = (context.place, context.is_encrypted);
        cenote_rt::spawn(async move {
            // Readers usually wait for it soon, and the limit of asynchronous reads is low.
            let (keys, grounds, class) = (keys.as_ref(), &grounds, IoClass::SyncRead);
            let bypass_cache = false;
            let context = ReadContext { place, keys, is_encrypted, bypass_cache, grounds, class };
            // An error is found by the reader that needs the block.
            let _ = store.read_block(&bp, &context).await;
            drop(permit);
        });
        true
    }

    /// Reads the stored bytes at `bp`, verified: compressed and encrypted as on disk.
    pub async fn read_raw(&self, bp: &BlockPtr, grounds: &Grounds) -> Result<Buf> {
        if bp.is_redacted() {
            return Err(Error::new(Kind::Io, BlockError::Redacted));
        }
        if let Some(payload) = bp.embedded_payload() {
            return Ok(Buf::from(payload.as_bytes().to_vec()));
        }
        if bp.is_hole() || bp.is_embedded() {
            return Err(Error::corrupt(BlockError::NoDva));
        }
        let stored = self.fetch(bp, grounds, IoClass::SyncRead).await?;
        self.note_read(bp.psize());
        Ok(stored)
    }

    /// Reads the stored bytes at `bp`, verified, `psize` of them: compressed as on disk. Like
    /// [`read`](Self::read), reports damage, but never caches the bytes.
    ///
    /// # Errors
    /// As [`read`](Self::read); `Kind::Corrupt` for a hole and for an embedded pointer.
    pub async fn read_stored(
        &self,
        bp: &BlockPtr,
        form: StoredForm,
        context: &ReadContext<'_>,
    ) -> Result<Buf> {
        let read = async {
            if context.is_encrypted && !bp.is_protected() {
                return Err(Error::corrupt(BlockError::Unprotected));
            }
            if bp.is_redacted() {
                return Err(Error::new(Kind::Io, BlockError::Redacted));
            }
            if bp.is_hole() || bp.is_embedded() {
                return Err(Error::corrupt(BlockError::NoDva));
            }
            let stored = self.read_missed(bp, context).await?;
            match form {
                StoredForm::AsOnDisk => Ok(stored),
                StoredForm::Decrypted => decrypt(*bp, stored, context.keys.cloned()).await,
            }
        };
        read.await.map_err(|error| {
            let error = located(error, &context.place);
            self.report(&context.place, bp, &error);
            error
        })
    }

    pub(crate) fn salt(&self) -> Option<Arc<Salt>> {
        self.salt.read().clone()
    }

    /// The verifier of the stored bytes at `bp`.
    pub(crate) fn verifier(&self, bp: &BlockPtr) -> Result<Verifier> {
        self.verifier_that(bp, self.verifies())
    }

    /// Like [`verifier`](Self::verifier); without `verifies` it accepts everything.
    pub(crate) fn verifier_that(&self, bp: &BlockPtr, verifies: bool) -> Result<Verifier> {
        let salt = self.salt();
        Verifier::of(bp, salt.as_ref(), verifies).map_err(|cause| {
            let kind = match cause {
                BlockError::NoSalt { .. } => Kind::Corrupt,
                _ => Kind::Unsupported,
            };
            Error::new(kind, cause)
        })
    }

    /// Whether checksums are verified; only tests switch that off.
    #[expect(clippy::unused_self, reason = "a property of the store for those who ask")]
    pub(crate) fn verifies(&self) -> bool {
        tunables::VERIFY_CHECKSUMS.get() != 0
    }

    fn note_read(&self, bytes: u64) {
        self.blocks_read.fetch_add(1, Ordering::Relaxed);
        self.bytes_read.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn note_recovered(&self) {
        self.blocks_recovered.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn note_repaired(&self, parts: u64) {
        self.parts_repaired.fetch_add(parts, Ordering::Relaxed);
    }

    pub(crate) fn note_written(&self, bytes: u64) {
        self.blocks_written.fetch_add(1, Ordering::Relaxed);
        self.bytes_written.fetch_add(bytes, Ordering::Relaxed);
    }
}

impl std::fmt::Debug for BlockStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BlockStore").field("cache", &self.cache.stats()).finish_non_exhaustive()
    }
}

/// The form in which the reader gets the block (rules 1 to 3).
fn form_of(bp: &BlockPtr, context: &ReadContext<'_>) -> Result<Form> {
    match (bp.protection(), context.keys) {
        (Protection::Unencrypted, _) if context.is_encrypted => {
            Err(Error::corrupt(BlockError::Unprotected))
        }
        (Protection::Encrypted, None) if bp.object_type() != ObjectType::DNODE => {
            Err(Error::new(Kind::KeyUnavailable, BlockError::NoKey))
        }
        (Protection::Encrypted | Protection::Authenticated, None) => Ok(Form::Locked),
        _ => Ok(Form::Plain),
    }
}

/// The cache key of the block. Log blocks are rewritten in place and never cached.
pub(crate) fn key_of(bp: &BlockPtr, form: Form) -> Option<Key> {
    if bp.object_type() == ObjectType::INTENT_LOG {
        return None;
    }
    let dva = bp.dva(0)?;
    let (vdev, offset) = (dva.vdev, dva.offset);
    Some(Key { vdev, form, offset, birth: bp.physical_birth(), checksum: bp.checksum() })
}

/// Adds the place of the block to an error.
pub(crate) fn located(error: Error, place: &Bookmark) -> Error {
    let error = error.in_object(place.objset, place.object);
    match u8::try_from(place.level) {
        Ok(level) => error.in_block(level, place.blkid),
        Err(_) => error,
    }
}

/// The sizes to which stored blocks are rounded up, over all vdevs except log vdevs.
fn units(tree: &Tree) -> Units {
    let takes_blocks = |kind| !matches!(kind, VdevKind::Hole | VdevKind::Missing);
    let tops = tree.tops().filter(|top| !top.is_log() && takes_blocks(top.kind()));
    let sizes = tops.filter_map(|top| allocation_unit(tree, top.id()));
    let units = sizes.fold(None, |units: Option<Units>, size| {
        let Units { min, gcd } = units.unwrap_or(Units { min: size, gcd: size });
        Some(Units { min: min.min(size), gcd: greatest_divisor(gcd, size) })
    });
    units.unwrap_or(Units { min: SECTOR_SIZE, gcd: SECTOR_SIZE })
}

/// The smallest payload that can be allocated on a top-level vdev: a sector, or one sector of each
/// data column on a dRAID.
pub(crate) fn allocation_unit(tree: &Tree, vdev: u64) -> Option<u64> {
    let top = tree.top(vdev)?;
    let sector = 1_u64.checked_shl(top.ashift())?;
    if top.kind() != VdevKind::Draid {
        return Some(sector);
    }
    let asize = tree.asize_for(vdev, sector, 0)?;
    asize.checked_sub(top.nparity().checked_mul(sector)?)
}

fn greatest_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
