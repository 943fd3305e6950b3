//! The block store: what everything above reads and writes blocks through.
//!
//!     read(bp):  hole -> zeros     embedded -> from the pointer     redacted -> error
//!                cache  -- miss -->  fetch: copies, gang members, verified      (`fetch`)
//!                                    expand: decrypt, decompress, byteswap      (`expand`)
//!
//! A block is handed out whole, as its user sees it, little-endian and shared. Every error carries
//! the place in the object's tree that the caller gave.
//!
//! Rules
//! 1. A block of an encrypted type is never handed out without keys, cached or not.
//! 2. In an object set known to be encrypted, a pointer without the X bit is refused (spec 08 §6).
//! 3. What was read for a reader without keys never reaches one with keys, and the reverse.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use cenote_codec::checksum::Salt;
use cenote_codec::crypto::BlockKeys;
use cenote_ondisk::blkptr::{BlockPtr, Protection, SECTOR_SIZE};
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{AsyncMutex, Buf, BufMut, Error, Kind, Result, Semaphore, tunables};
use cenote_vdev::{Tree, VdevKind};

use crate::alloc::SpaceAllocator;
use crate::cache::{BlockCache, CacheConfig, CacheStats, Form, Key};
use crate::error::BlockError;
use crate::expand::{expand, expand_embedded};
use crate::grounds::Grounds;
use crate::heal::Reporter;
use crate::verify::Verifier;
use crate::write::Units;

/// What is counted of bytes that are being read ahead: so much, also of smaller blocks.
const PREFETCH_UNIT: u64 = 64 << 10;
/// Those may be a quarter of the cache, within these bounds.
const PREFETCH_BYTES: (u64, u64) = (4 << 20, 64 << 20);

/// For whom, and where in which tree, a block is read.
#[derive(Debug, Clone, Copy)]
pub struct ReadContext<'a> {
    /// Place of the block, for errors.
    pub place: Bookmark,
    /// Keys of the object set, if it is encrypted and they are loaded.
    pub keys: Option<&'a Arc<BlockKeys>>,
    /// Whether the object set is known to be encrypted.
    pub is_encrypted: bool,
    /// Whether the block is read once only and better not kept in the cache.
    pub bypass_cache: bool,
    /// How the reader came to the pointer.
    pub grounds: &'a Grounds,
}

impl Default for ReadContext<'_> {
    fn default() -> Self {
        Self {
            place: Bookmark::default(),
            keys: None,
            is_encrypted: false,
            bypass_cache: false,
            grounds: &Grounds::Offline,
        }
    }
}

/// What the store did so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Blocks that were read from devices.
    pub blocks_read: u64,
    /// Their stored bytes.
    pub bytes_read: u64,
    /// Blocks of which a copy, or a part of one, was bad, and that were read all the same.
    pub blocks_recovered: u64,
    /// Bad parts of such blocks that were written anew.
    pub parts_repaired: u64,
    /// Blocks that were written, gang blocks once.
    pub blocks_written: u64,
    /// Bytes written for them: all copies and gang headers, no parity.
    pub bytes_written: u64,
}

/// Reads and writes the blocks of a pool.
pub struct BlockStore {
    tree: Arc<Tree>,
    cache: BlockCache,
    salt: RwLock<Option<Arc<Salt>>>,
    has_large_gang_headers: AtomicBool,
    /// In units.
    prefetches: Arc<Semaphore>,
    prefetch_units: u64,
    blocks_read: AtomicU64,
    bytes_read: AtomicU64,
    blocks_recovered: AtomicU64,
    parts_repaired: AtomicU64,
    blocks_written: AtomicU64,
    bytes_written: AtomicU64,
    units: Units,
    /// LOCK: held by a batch of writes while it is begun, across no await.
    beginning: AsyncMutex<()>,
    allocator: OnceLock<Arc<SpaceAllocator>>,
    reporter: OnceLock<Arc<dyn Reporter>>,
}

impl BlockStore {
    /// A store over the vdevs of a pool.
    pub fn new(tree: Arc<Tree>, config: CacheConfig) -> Arc<Self> {
        let units = units(&tree);
        let (least, most) = PREFETCH_BYTES;
        let prefetch_units = (config.capacity_bytes / 4).clamp(least, most) / PREFETCH_UNIT;
        Arc::new(Self {
            tree,
            units,
            beginning: AsyncMutex::new(()),
            allocator: OnceLock::new(),
            reporter: OnceLock::new(),
            parts_repaired: AtomicU64::new(0),
            blocks_written: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            cache: BlockCache::new(config),
            salt: RwLock::new(None),
            has_large_gang_headers: AtomicBool::new(false),
            prefetches: Arc::new(Semaphore::new(prefetch_units as usize)),
            prefetch_units,
            blocks_read: AtomicU64::new(0),
            bytes_read: AtomicU64::new(0),
            blocks_recovered: AtomicU64::new(0),
        })
    }

    /// The vdevs.
    pub fn tree(&self) -> &Arc<Tree> {
        &self.tree
    }

    /// Makes the store writable: from here on space comes from `allocator`, and goes back to it.
    /// True the first time only; another allocator is not taken.
    pub fn set_allocator(&self, allocator: Arc<SpaceAllocator>) -> bool {
        self.allocator.set(allocator).is_ok()
    }

    /// The allocator, if the store is writable.
    pub fn allocator(&self) -> Option<&Arc<SpaceAllocator>> {
        self.allocator.get()
    }

    /// Who is told of damage. True the first time only.
    pub fn set_reporter(&self, reporter: Arc<dyn Reporter>) -> bool {
        self.reporter.set(reporter).is_ok()
    }

    pub(crate) fn reporter(&self) -> Option<&dyn Reporter> {
        self.reporter.get().map(|reporter| &**reporter)
    }

    pub(crate) fn cache(&self) -> &BlockCache {
        &self.cache
    }

    pub(crate) fn beginning(&self) -> &AsyncMutex<()> {
        &self.beginning
    }

    pub(crate) fn units(&self) -> Units {
        self.units
    }

    /// Makes the pool's salt known, without which skein, edonr and blake3 blocks cannot be read.
    pub fn set_salt(&self, salt: &[u8; 32]) {
        let salt = Some(Arc::new(Salt::new(salt)));
        *self.salt.write().unwrap_or_else(PoisonError::into_inner) = salt;
    }

    /// Whether gang headers may be larger than 512 bytes (feature
    /// `com.klarasystems:dynamic_gang_header` is active).
    pub fn set_large_gang_headers(&self, active: bool) {
        self.has_large_gang_headers.store(active, Ordering::Relaxed);
    }

    pub(crate) fn has_large_gang_headers(&self) -> bool {
        self.has_large_gang_headers.load(Ordering::Relaxed)
    }

    /// What the cache did so far.
    pub fn cache_stats(&self) -> CacheStats {
        self.cache.stats()
    }

    /// What the store did so far.
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

    /// Forgets all cached blocks.
    pub fn clear_cache(&self) {
        self.cache.clear();
    }

    /// Changes the bound of the cache.
    pub fn set_cache_capacity(&self, bytes: u64) {
        self.cache.set_capacity(bytes);
    }

    /// The block behind `bp`: verified, decrypted, decompressed, little-endian, `lsize` bytes.
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
        // The same address under another size: one of the two pointers is wrong, and the checksum
        // tells which. Only a damaged pool comes here.
        self.fill(bp, context).await
    }

    async fn fill(&self, bp: &BlockPtr, context: &ReadContext<'_>) -> Result<Buf> {
        let stored = self.fetch(bp, context.grounds).await?;
        self.note_read(bp.psize());
        expand(*bp, stored, context.keys.cloned()).await
    }

    /// The block behind `bp`, if it can be had without waiting.
    pub fn cached(&self, bp: &BlockPtr, context: &ReadContext<'_>) -> Option<Buf> {
        if bp.is_embedded() {
            // At hand; what is wrong with it whoever reads it will hear.
            return expand_embedded(bp).ok();
        }
        if bp.is_hole() || bp.is_redacted() || context.grounds.check().is_err() {
            return None;
        }
        let key = key_of(bp, form_of(bp, context).ok()?)?;
        self.cache.get(&key).filter(|block| block.len() as u64 == bp.lsize())
    }

    /// Starts reading the block behind `bp` into the cache; false if so much of that is going on
    /// that it is not begun.
    pub fn prefetch(self: &Arc<Self>, bp: &BlockPtr, context: &ReadContext<'_>) -> bool {
        if bp.is_embedded() || bp.is_hole() || self.cached(bp, context).is_some() {
            return true;
        }
        let units = bp.lsize().div_ceil(PREFETCH_UNIT).clamp(1, self.prefetch_units) as u32;
        let permit = Arc::clone(&self.prefetches).try_acquire_many_owned(units);
        let Ok(permit) = permit else { return false };
        let (store, bp, keys) = (Arc::clone(self), *bp, context.keys.cloned());
        let grounds = context.grounds.clone();
        let (place, is_encrypted) = (context.place, context.is_encrypted);
        cenote_rt::spawn(async move {
            let keys = keys.as_ref();
            let bypass_cache = false;
            let grounds = &grounds;
            let context = ReadContext { place, keys, is_encrypted, bypass_cache, grounds };
            // Whoever wants the block will see the error.
            let _ = store.read_block(&bp, &context).await;
            drop(permit);
        });
        true
    }

    /// The stored bytes behind `bp`, verified: compressed and encrypted as they are on disk.
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
        let stored = self.fetch(bp, grounds).await?;
        self.note_read(bp.psize());
        Ok(stored)
    }

    pub(crate) fn salt(&self) -> Option<Arc<Salt>> {
        self.salt.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The verifier of the stored bytes behind `bp`.
    pub(crate) fn verifier(&self, bp: &BlockPtr) -> Result<Verifier> {
        let salt = self.salt();
        Verifier::of(bp, salt.as_ref(), self.verifies()).map_err(|cause| {
            let kind = match cause {
                BlockError::NoSalt { .. } => Kind::Corrupt,
                _ => Kind::Unsupported,
            };
            Error::new(kind, cause)
        })
    }

    /// Whether checksums are verified at all; only tests of the tests switch that off.
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

/// In which form the reader gets the block (rules 1 to 3).
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

/// What the block is cached under. Log blocks are rewritten in place and never cached.
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

/// The sizes that stored blocks are rounded to: of all vdevs but those for the log alone.
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

/// The smallest payload that is allocated on a top-level vdev: a sector, or one of each data disk
/// of a dRAID.
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
