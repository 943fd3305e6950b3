//! The block cache: decompressed, immutable, shared blocks, bounded by bytes.
//!
//!     key  (vdev, offset, physical birth, checksum, form)  ->  Buf
//!
//! A block never changes once its txg is on disk, so its address and the txg in which its bytes
//! were written identify its contents for ever. Within the txg it may be rewritten in place with
//! another checksum: with the checksum in the key, a reader that used the old pointer and completes
//! late stores its bytes under the old key, which no reader with the new pointer uses. Clones and
//! dedup references share physical birth and checksum of the first writer and so share the entry.
//! The form distinguishes decrypted bytes from those that a reader without keys gets of the same
//! block.
//!
//! Guarantees
//! * C1  The weights of all entries together never exceed the capacity (`zfs_arc_max`); a block's
//!   weight is the size of its allocation, alignment included. Buffers that readers still hold
//!   after their entry was evicted are not counted.
//! * C2  One filler per block: the first reader that misses reads it, the others wait. If the
//!   filler fails or is dropped, the next waiting reader takes over; a failure is never cached.
//! * C3  Eviction is S3-FIFO with ghosts (quick_cache), so a single scan does not evict blocks that
//!   are used twice.

use std::future::Future;
use std::hash::{Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_rt::{Buf, Op, Result, buf};
use quick_cache::sync::{Cache, DefaultLifecycle};
use quick_cache::{OptionsBuilder, Weighter};

/// Minimum capacity of a shard, so that the largest records (16 MiB) can be cached.
const SHARD_BYTES_MIN: u64 = 64 << 20;
/// Lock contention ends well before this number of shards on the machines that were measured.
const SHARDS_MAX: u64 = 16;
/// Bytes that an entry takes beside its block: key, map slot, queue links, `Arc`.
const ENTRY_BYTES: u64 = 192;
/// Typical block size, from which the ghost queue is dimensioned.
const TYPICAL_BLOCK_BYTES: u64 = 32 << 10;

/// Share of the cache for blocks that were used again. Prefetched blocks are not used yet, and must
/// find room in the rest.
const HOT_SHARE: f64 = 0.6;

/// Which form of a block an entry holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    /// Decrypted, decompressed, little-endian.
    Plain,
    /// Decompressed and little-endian, protected parts still encrypted (dnodes read without keys).
    Locked,
}

/// Identifies the contents of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Key {
    pub(crate) vdev: u32,
    pub(crate) form: Form,
    pub(crate) offset: u64,
    pub(crate) birth: u64,
    pub(crate) checksum: [u64; 4],
}

impl Hash for Key {
    /// Hashes the address and a word of the checksum, which differ between keys except for form and
    /// rewrites; every cache lookup computes this. The high half of the product is folded into the
    /// low one: shards are chosen by bits that are equal in all multiples of a block size, and
    /// blocks of equal bytes would all be in one shard.
    fn hash<H: Hasher>(&self, state: &mut H) {
        let place = self.offset ^ u64::from(self.vdev) << 48;
        let place = place.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        state.write_u64(place ^ place >> 32);
        state.write_u64(self.checksum[0]);
    }
}

/// Limits of the cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CacheConfig {
    /// Most bytes of all entries together.
    pub capacity_bytes: u64,
}

impl CacheConfig {
    /// The capacity set by the tunable `zfs_arc_max`.
    #[must_use]
    pub fn from_tunables() -> Self {
        Self { capacity_bytes: cenote_rt::tunables::BLOCK_CACHE_BYTES.get() }
    }
}

impl Default for CacheConfig {
    fn default() -> Self {
        Self::from_tunables()
    }
}

/// Statistics of the cache.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Reads answered from memory, including those that waited for another filler.
    pub hits: u64,
    /// Reads that went to a device.
    pub misses: u64,
    /// Number of entries.
    pub blocks: u64,
    /// Bytes of all entries.
    pub bytes: u64,
    /// Most bytes that the entries ever took.
    pub peak_bytes: u64,
    /// Capacity.
    pub capacity_bytes: u64,
}

#[derive(Debug, Clone, Copy)]
struct ByAllocation;

impl Weighter<Key, Buf> for ByAllocation {
    fn weight(&self, _key: &Key, block: &Buf) -> u64 {
        block.len() as u64 + buf::ALIGN as u64 + ENTRY_BYTES
    }
}

type BuildHasher = std::hash::BuildHasherDefault<rustc_hash::FxHasher>;

/// A bounded cache of blocks.
pub(crate) struct BlockCache {
    entries: Cache<Key, Buf, ByAllocation, BuildHasher, DefaultLifecycle<Key, Buf>>,
    hits: AtomicU64,
    misses: AtomicU64,
    peak_bytes: AtomicU64,
}

impl BlockCache {
    pub(crate) fn new(config: CacheConfig) -> Self {
        let capacity = config.capacity_bytes;
        let shards = (capacity / SHARD_BYTES_MIN).clamp(1, SHARDS_MAX);
        let options = OptionsBuilder::new()
            .shards(shards as usize)
            .estimated_items_capacity((capacity / TYPICAL_BLOCK_BYTES).max(64) as usize)
            .weight_capacity(capacity)
            .hot_allocation(HOT_SHARE)
            .build()
            .expect("capacity and items are set");
        Self {
            entries: Cache::with_options(
                options,
                ByAllocation,
                BuildHasher::default(),
                DefaultLifecycle::default(),
            ),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            peak_bytes: AtomicU64::new(0),
        }
    }

    /// Returns the block of `key`; on a miss `fill` reads it, for all concurrent callers.
    pub(crate) async fn get_or_fill(
        &self,
        key: Key,
        fill: impl Future<Output = Result<Buf>>,
    ) -> Result<Buf> {
        match self.entries.get_value_or_guard_async(&key).await {
            Ok(block) => {
                self.note_hit();
                Ok(block)
            }
            Err(guard) => {
                self.misses.fetch_add(1, Ordering::Relaxed);
                let block = fill.await?;
                // The block is returned even if the placeholder was removed meanwhile.
                let _ = guard.insert(block.clone());
                self.peak_bytes.fetch_max(self.entries.weight(), Ordering::Relaxed);
                Ok(block)
            }
        }
    }

    /// Returns the block of `key` if it is cached.
    pub(crate) fn get(&self, key: &Key) -> Option<Buf> {
        let block = self.entries.get(key)?;
        self.note_hit();
        Some(block)
    }

    fn note_hit(&self) {
        self.hits.fetch_add(1, Ordering::Relaxed);
        cenote_rt::charge(Op::ReadCached, 0);
    }

    /// Caches a block that was just written.
    pub(crate) fn insert(&self, key: Key, block: Buf) {
        self.entries.insert(key, block);
        self.peak_bytes.fetch_max(self.entries.weight(), Ordering::Relaxed);
    }

    /// Removes a block.
    pub(crate) fn remove(&self, key: &Key) {
        self.entries.remove(key);
    }

    /// Removes all blocks.
    pub(crate) fn clear(&self) {
        self.entries.clear();
    }

    /// Changes the capacity; entries that do not fit are evicted.
    pub(crate) fn set_capacity(&self, bytes: u64) {
        self.entries.set_capacity(bytes);
    }

    pub(crate) fn stats(&self) -> CacheStats {
        CacheStats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            blocks: self.entries.len() as u64,
            bytes: self.entries.weight(),
            peak_bytes: self.peak_bytes.load(Ordering::Relaxed),
            capacity_bytes: self.entries.capacity(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_rt::{Error, Kind};

    fn key(offset: u64) -> Key {
        Key { vdev: 0, form: Form::Plain, offset, birth: 7, checksum: [1; 4] }
    }

    fn block(len: usize) -> Buf {
        Buf::from(vec![1; len])
    }

    #[test]
    fn the_capacity_is_kept_and_the_peak_is_reported() {
        let cache = BlockCache::new(CacheConfig { capacity_bytes: 4 << 20 });
        cenote_rt::block_on(1, async {
            for offset in 0..1000 {
                let len = [512, 16 << 10, 128 << 10, 1 << 20][offset as usize % 4];
                cache.get_or_fill(key(offset), async { Ok(block(len)) }).await.unwrap();
                assert!(cache.stats().bytes <= 4 << 20);
            }
            // Larger than the whole cache: returned, not cached.
            cache.get_or_fill(key(5000), async { Ok(block(8 << 20)) }).await.unwrap();
        })
        .unwrap();
        let stats = cache.stats();
        assert!(stats.peak_bytes <= stats.capacity_bytes && stats.peak_bytes > 1 << 20);
        cache.set_capacity(1 << 20);
        assert!(cache.stats().bytes <= 1 << 20);
    }

    #[test]
    fn equal_blocks_fill_the_whole_cache() {
        let cache = BlockCache::new(CacheConfig { capacity_bytes: 1 << 30 });
        // Equal bytes, and at most three quarters of the capacity.
        let (block, count) = (block(16 << 10), (3 << 28) / (21 << 10));
        for number in 0..count {
            cache.insert(key(number * (16 << 10)), block.clone());
        }
        let kept = (0..count).filter(|number| cache.get(&key(number * (16 << 10))).is_some());
        assert!(kept.count() as u64 > count - count / 50);
    }

    #[test]
    fn one_filler_and_failures_are_not_kept() {
        let cache = BlockCache::new(CacheConfig { capacity_bytes: 1 << 20 });
        let fills = AtomicU64::new(0);
        cenote_rt::block_on(2, async {
            let fail = cache.get_or_fill(key(1), async { Err(Error::new(Kind::Io, "no")) }).await;
            assert_eq!(fail.unwrap_err().kind(), Kind::Io);
            let readers = (0..16).map(|_| {
                cache.get_or_fill(key(1), async {
                    fills.fetch_add(1, Ordering::Relaxed);
                    cenote_rt::sleep(std::time::Duration::from_millis(2)).await;
                    Ok(block(4096))
                })
            });
            for result in futures_util::future::join_all(readers).await {
                assert_eq!(result.unwrap().len(), 4096);
            }
        })
        .unwrap();
        assert_eq!(fills.load(Ordering::Relaxed), 1);
        assert_eq!((cache.stats().hits, cache.stats().misses), (15, 2));
    }
}
