//! ZAP objects: names (or arrays of u64) to arrays of integers.
//!
//! `cenote-ondisk` decodes the blocks of a ZAP; this module finds and reads them. [`read`] looks up
//! keys in any [`ReadObjects`]: it reads the header, one pointer and one leaf, whatever the size of
//! the ZAP. A pointer table that does not fit into the header has blocks of its own, which are read
//! when needed. A [`Zap`] is one of a frozen object set; its iteration is in cursor order,
//! ascending (hash, cd), and holds one leaf.
//!
//! Damage causes errors, not loops: a pointer must refer to a block of the object that holds a leaf
//! owning the hash, so a walk always advances (spec 03 §5.2, §6.9).
//!
//! Sources: spec 03 §1-§7.

pub mod edit;
mod entries;
mod fat;
pub mod read;
mod stats;

use std::sync::Arc;

use cenote_ondisk::zap::hash::high_bits;
use cenote_ondisk::zap::{
    CorruptZap, Cursor, Entry, FatHeader, Key, KeyRef, Leaf, MatchKind, MicroZap, NormFlags, Value,
    ZapFlags, ZapHash, ZapKind,
};
use cenote_rt::{Buf, Error, Kind, Result};

use crate::{Dnode, ObjSet, ReadObjects};

pub use entries::Entries;
pub use stats::{FatStats, HISTOGRAM_LEN, ZapStats};

/// Errors of a ZAP, apart from those within a single block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ZapError {
    /// The object does not have a ZAP's type.
    #[error("object type {object_type:#x} is not a ZAP type")]
    NotAZap {
        /// Type of the object.
        object_type: u8,
    },
    /// A block of the ZAP is a hole.
    #[error("zap: block {block} is a hole")]
    Hole {
        /// Block of the object.
        block: u64,
    },
    /// The external pointer table lies beyond the end of the object.
    #[error("zap: pointer table of {count} blocks at {block}, object has {object_blocks}")]
    TableRange {
        /// First block of the table.
        block: u64,
        /// Number of its blocks.
        count: u64,
        /// Blocks of the object.
        object_blocks: u64,
    },
    /// A pointer leads to a leaf that does not own the hash.
    #[error("zap: leaf {block} with prefix {prefix:#x}/{prefix_len} is not for hash {hash:#x}")]
    Leaf {
        /// Block of the leaf.
        block: u64,
        /// Prefix of the leaf.
        prefix: u64,
        /// Number of prefix bits.
        prefix_len: u16,
        /// Hash that led to the leaf.
        hash: u64,
    },
    /// The walk was given up because too many leaves are damaged.
    #[error("zap: gave up after {count} damaged leaves")]
    TooDamaged {
        /// Number of damaged leaves.
        count: u32,
    },
    /// The key exists.
    #[error("zap: '{key}' exists")]
    Exists {
        /// The key.
        key: String,
    },
    /// The key does not exist.
    #[error("zap: no entry '{key}'")]
    NoEntry {
        /// The key.
        key: String,
    },
    /// The key is empty, too long, contains a NUL, or is of the wrong kind for this ZAP.
    #[error("zap: invalid key of {len} bytes (uint64 keys: {has_words})")]
    Key {
        /// Bytes of the key, with NUL.
        len: usize,
        /// Whether the ZAP has keys of words (`ZAP_FLAG_UINT64_KEY`).
        has_words: bool,
    },
    /// The value is too long, or its integers have an invalid size.
    #[error("zap: value of {len} bytes, integers of {size}")]
    Value {
        /// Bytes of the value.
        len: usize,
        /// Bytes of an integer.
        size: u8,
    },
    /// The entry is larger than a leaf.
    #[error("zap: entry takes {cost} chunks, a leaf has {count}")]
    EntryCost {
        /// Chunks needed.
        cost: usize,
        /// Chunks of a leaf.
        count: usize,
    },
    /// The pointer table cannot grow any more: too many keys have similar hashes.
    #[error("zap: pointer table of 2^{shift} entries is at its limit")]
    TableFull {
        /// Log2 of its entries.
        shift: u32,
    },
    /// Invalid block size of a fat ZAP.
    #[error("zap: blocks of {size} bytes")]
    BlockSize {
        /// Bytes of a block.
        size: u64,
    },
    /// A search with folded names in a ZAP without normalization.
    #[error("zap: names of this object are not normalized")]
    NotNormalized,
    /// The value is not a single integer.
    #[error("zap: value has {count} integers of {size} bytes, expected one of 8")]
    NotSingle {
        /// Integers stored.
        count: usize,
        /// Bytes of each.
        size: u8,
    },
}

/// An open ZAP.
#[derive(Debug, Clone)]
pub struct Zap {
    dnode: Arc<Dnode>,
    body: Body,
}

#[derive(Debug, Clone)]
enum Body {
    Micro(Buf),
    Fat { header: FatHeader, block: Buf },
}

impl Zap {
    /// Opens the ZAP of `object`.
    pub async fn open(set: &Arc<ObjSet>, object: u64) -> Result<Self> {
        Self::of(set.dnode(object).await?).await
    }

    /// Opens the ZAP of an object whose dnode was already read.
    pub async fn of(dnode: Arc<Dnode>) -> Result<Self> {
        let object_type = dnode.phys().object_type;
        if !object_type.is_zap() {
            let cause = ZapError::NotAZap { object_type: object_type.0 };
            return Err(dnode.locate(Error::new(Kind::Invalid, cause)));
        }
        let Some(block) = dnode.read_block(0, 0).await? else {
            return Err(dnode.locate(Error::corrupt(ZapError::Hole { block: 0 })));
        };
        let body =
            Self::decode(&dnode, block).map_err(|error| dnode.locate(error).in_block(0, 0))?;
        Ok(Self { dnode, body })
    }

    fn decode(dnode: &Dnode, block: Buf) -> Result<Body> {
        match ZapKind::of(&block).map_err(Error::corrupt)? {
            ZapKind::Micro => {
                MicroZap::decode(&block).map_err(Error::corrupt)?;
                Ok(Body::Micro(block))
            }
            ZapKind::Fat => {
                let header = FatHeader::decode(&block).map_err(Error::corrupt)?;
                let object_blocks = dnode.block_count();
                let (first, count) = (header.table_block, header.table_block_count);
                if first.checked_add(count).is_none_or(|end| end > object_blocks) {
                    let cause = ZapError::TableRange { block: first, count, object_blocks };
                    return Err(Error::corrupt(cause));
                }
                Ok(Body::Fat { header, block })
            }
        }
    }

    /// The object.
    pub fn dnode(&self) -> &Arc<Dnode> {
        &self.dnode
    }

    /// Whether it is a micro ZAP.
    pub fn is_micro(&self) -> bool {
        matches!(self.body, Body::Micro(_))
    }

    /// Salt, normalization and kind of keys.
    pub fn hash(&self) -> ZapHash {
        match &self.body {
            // Checked when the ZAP was opened.
            Body::Micro(block) => MicroZap::decode(block).map_or(
                ZapHash { salt: 0, normflags: NormFlags::empty(), flags: ZapFlags::empty() },
                |zap| zap.hash(),
            ),
            Body::Fat { header, .. } => header.hash(),
        }
    }

    /// Number of entries (for a fat ZAP, according to its header).
    pub fn entry_count(&self) -> u64 {
        match &self.body {
            Body::Micro(block) => {
                MicroZap::decode(block).map_or(0, |zap| zap.slots().count() as u64)
            }
            Body::Fat { header, .. } => header.entry_count,
        }
    }

    /// The value of exactly this name.
    pub async fn lookup(&self, name: impl AsRef<[u8]> + Send) -> Result<Option<Value>> {
        self.find(KeyRef::Name(name.as_ref())).await
    }

    async fn find(&self, key: KeyRef<'_>) -> Result<Option<Value>> {
        let object = self.dnode.object();
        match self.dnode.read_set(|objects| read::lookup(objects, object, key)).await {
            // No entry has such a key.
            Err(error) if matches!(error.cause(), Some(ZapError::Key { .. })) => Ok(None),
            found => found,
        }
    }

    /// The single integer of exactly this name; any other value is an error.
    pub async fn lookup_u64(&self, name: impl AsRef<[u8]> + Send) -> Result<Option<u64>> {
        match self.lookup(name).await? {
            None => Ok(None),
            Some(value) => self.single(&value).map(Some),
        }
    }

    /// The single integer of a name that must exist.
    pub async fn require_u64(&self, name: &str) -> Result<u64> {
        self.lookup_u64(name).await?.ok_or_else(|| {
            let cause = ZapError::NoEntry { key: name.to_owned() };
            self.dnode.locate(Error::not_found(cause))
        })
    }

    fn single(&self, value: &Value) -> Result<u64> {
        value.single().ok_or_else(|| {
            let cause = ZapError::NotSingle { count: value.count(), size: value.integer_size() };
            self.dnode.locate(Error::new(Kind::Invalid, cause))
        })
    }

    /// The value of a key of words.
    pub async fn lookup_words(&self, key: &[u64]) -> Result<Option<Value>> {
        self.find(KeyRef::Words(key)).await
    }

    /// The first entry, in cursor order, whose name matches by `kind`.
    ///
    /// The entry has the name as stored. `Kind::Unsupported` if names are to be folded and the ZAP
    /// does not fold them.
    pub async fn lookup_normalized(&self, name: &[u8], kind: MatchKind) -> Result<Option<Entry>> {
        let object = self.dnode.object();
        let look =
            |objects: &mut dyn ReadObjects| read::lookup_normalized(objects, object, name, kind);
        self.dnode.read_set(look).await
    }

    /// The name of the first entry whose first integer, masked, is `value`.
    pub async fn name_of(&self, value: u64, mask: u64) -> Result<Option<Vec<u8>>> {
        let mut entries = self.entries();
        while let Some(entry) = entries.next().await? {
            if entry.value.first().is_some_and(|found| found & mask == value)
                && let Key::Name(name) = entry.key
            {
                return Ok(Some(name));
            }
        }
        Ok(None)
    }

    /// All entries in cursor order.
    pub fn entries(&self) -> Entries {
        Entries::new(self.clone(), Some(Cursor::default()))
    }

    /// The entries from a cookie on ([`Entries::cookie`]).
    pub fn entries_from(&self, cookie: u64) -> Entries {
        let place = Cursor::deserialize(cookie, self.hash().bits());
        Entries::new(self.clone(), place)
    }

    /// All entries at once, for ZAPs that are known to be small.
    pub async fn to_vec(&self) -> Result<Vec<Entry>> {
        let mut all = Vec::new();
        let mut entries = self.entries();
        while let Some(entry) = entries.next().await? {
            all.push(entry);
        }
        Ok(all)
    }

    /// The statistics that `zdb -dddd` prints.
    pub async fn stats(&self) -> Result<ZapStats> {
        stats::gather(self).await
    }

    /// Number and bytes of the leaf for a hash.
    async fn leaf_of(&self, header: &FatHeader, hash: u64) -> Result<(u64, Buf)> {
        let number = self.pointer(header, header.pointer_index(hash)).await?;
        Ok((number, self.require_block(number).await?))
    }

    /// The pointer at `index` of the table.
    async fn pointer(&self, header: &FatHeader, index: u64) -> Result<u64> {
        let place = header.place(index);
        let table = self.table_block(place.block).await?;
        header.pointer(&table, index).map_err(|error| self.corrupt(error, place.block))
    }

    /// A block of the pointer table; 0 is the header.
    async fn table_block(&self, number: u64) -> Result<Buf> {
        match &self.body {
            Body::Fat { block, .. } if number == 0 => Ok(block.clone()),
            _ => self.require_block(number).await,
        }
    }

    async fn require_block(&self, number: u64) -> Result<Buf> {
        let block = self.dnode.read_block(0, number).await?;
        block.ok_or_else(|| {
            let error = Error::corrupt(ZapError::Hole { block: number });
            self.dnode.locate(error).in_block(0, number)
        })
    }

    /// Decodes a leaf and checks that it owns `hash`.
    fn decode_leaf<'a>(
        &self,
        header: &FatHeader,
        block: &'a Buf,
        number: u64,
        hash: u64,
    ) -> Result<Leaf<'a>> {
        let has_word_keys = header.flags.contains(ZapFlags::UINT64_KEY);
        let leaf =
            Leaf::decode(block, has_word_keys).map_err(|error| self.corrupt(error, number))?;
        let (prefix, prefix_len) = (leaf.header().prefix, leaf.header().prefix_len);
        let owns = high_bits(hash, prefix_len.into()) == prefix;
        if !owns || u32::from(prefix_len) > header.table_shift {
            let cause = ZapError::Leaf { block: number, prefix, prefix_len, hash };
            return Err(self.dnode.locate(Error::corrupt(cause)).in_block(0, number));
        }
        Ok(leaf)
    }

    fn corrupt(&self, error: CorruptZap, block: u64) -> Error {
        self.dnode.locate(Error::corrupt(error)).in_block(0, block)
    }
}
