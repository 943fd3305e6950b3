//! Encrypted blocks: keys, and the encryption parameters that a host of either order puts into
//! their pointers.
//!
//! Salt, initialisation vector and MAC are bytes, which lie in the words of a pointer as they do in
//! the memory of the host that wrote the block. The stored form of a block is encrypted, so swapped
//! content is encrypted again, with the same salt and vector: nothing here is secret.
//!
//! The ciphers are the engine's; MACs over MACs are computed here. Sources: spec 08 §6-§11.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use cenote_codec::checksum::ChecksumAlgorithm;
use cenote_codec::crypto::{
    BlockKeys, BlockKind, ByteOrder, KeyFormat, Pbkdf2, Purpose, Seal, WrappedKeys, WrappingKey,
};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dsl::{crypto as entry, key};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::{Entry, Value};
use sha2::{Digest, Sha512};

use super::source::Source;
use super::swap::Class;

/// Keys by DSL directory, loaded on demand.
#[derive(Default)]
pub(crate) struct KeyRing {
    /// The user's keys: passphrases and the like.
    materials: Vec<Vec<u8>>,
    wrapping: RefCell<BTreeMap<(u64, u64, u64), Vec<WrappingKey>>>,
    by_dir: RefCell<BTreeMap<u64, Option<Rc<BlockKeys>>>>,
    current: RefCell<Option<Rc<BlockKeys>>>,
}

impl KeyRing {
    pub(crate) fn new(materials: &[Vec<u8>]) -> Self {
        Self { materials: materials.to_vec(), ..Self::default() }
    }

    /// The keys of the object set that is being walked.
    pub(super) fn current(&self) -> Rc<BlockKeys> {
        self.current.borrow().clone().expect("the keys of an encrypted dataset")
    }

    /// Makes the keys of a DSL directory current, and returns the previous ones.
    pub(super) fn enter(&self, source: &Source, dir: u64) -> Option<Rc<BlockKeys>> {
        let known = self.by_dir.borrow().get(&dir).cloned();
        let keys = known.unwrap_or_else(|| {
            let keys = self.find(source, dir).map(Rc::new);
            self.by_dir.borrow_mut().insert(dir, keys.clone());
            keys
        });
        self.current.replace(keys)
    }

    /// Makes these keys current again.
    pub(super) fn leave(&self, outer: Option<Rc<BlockKeys>>) {
        self.current.replace(outer);
    }

    fn find(&self, source: &Source, dir: u64) -> Option<BlockKeys> {
        let root = &source.uberblock.rootbp;
        let dir = source.dnode(root, dir)?;
        if Class::of(dir.object_type.0) != Class::Zap {
            return None;
        }
        let object = source.zap_value(&dir, key::CRYPTO_KEY_OBJ.as_bytes())?.value.first()?;
        let entries = source.zap(&source.dnode(root, object)?);
        let wrapped = WrappedKeys {
            suite: word(&entries, entry::SUITE),
            guid: word(&entries, entry::GUID),
            version: word(&entries, entry::VERSION),
            iv: bytes(&entries, entry::IV),
            mac: bytes(&entries, entry::MAC),
            master_key: bytes(&entries, entry::MASTER_KEY),
            hmac_key: bytes(&entries, entry::HMAC_KEY),
        };
        let format = word(&entries, entry::KEYFORMAT);
        let salt = word(&entries, entry::PBKDF2_SALT);
        let iterations = word(&entries, entry::PBKDF2_ITERS);
        let mut wrapping = self.wrapping.borrow_mut();
        let candidates = wrapping.entry((format, salt, iterations)).or_insert_with(|| {
            let format = KeyFormat::from_value(format).expect("a key format");
            let key = |material: &Vec<u8>| {
                let pbkdf2 = Pbkdf2 { salt, iterations };
                WrappingKey::from_material(format, material, pbkdf2, Purpose::Load).ok()
            };
            self.materials.iter().filter_map(key).collect()
        });
        let keys = candidates.iter().find_map(|key| BlockKeys::unwrap(key, &wrapped).ok());
        Some(keys.expect("a key that opens the dataset"))
    }

    /// Decrypts the stored data of a pointer, if it is encrypted.
    pub(super) fn open(&self, bp: &BlockPtr, stored: &mut [u8]) {
        if is_sealed(bp) {
            let kind = BlockKind::of(bp.object_type().0, ByteOrder::Little);
            let seal = Seal { salt: bp.salt(), iv: bp.iv(), mac: bp.mac() };
            self.current().decrypt_block(kind, &seal, stored).expect("a block opens");
        }
    }

    /// Encrypts the data to be stored for a pointer; returns its MAC.
    pub(super) fn seal(&self, bp: &BlockPtr, order: Endian, stored: &mut [u8]) -> Option<[u8; 16]> {
        is_sealed(bp).then(|| {
            let kind = BlockKind::of(bp.object_type().0, byte_order(order));
            self.current().encrypt_block(kind, bp.salt(), &bp.iv(), stored).expect("a block seals")
        })
    }

    /// Renews the MACs in the root block of an object set.
    pub(super) fn seal_objset(&self, order: Endian, block: &mut [u8]) {
        let (keys, order) = (self.current(), byte_order(order));
        let portable = keys.portable_mac(order, block).expect("a root block");
        let local = keys.local_mac(order, block).expect("a root block");
        block[720..752].copy_from_slice(&portable);
        block[752..784].copy_from_slice(&local);
    }
}

/// Level 0, except the root of an object set, which has its MACs inside.
fn is_sealed(bp: &BlockPtr) -> bool {
    bp.is_protected() && bp.level() == 0 && bp.object_type() != ObjectType::OBJSET
}

fn byte_order(order: Endian) -> ByteOrder {
    match order {
        Endian::Little => ByteOrder::Little,
        Endian::Big => ByteOrder::Big,
    }
}

fn find<'a>(entries: &'a [Entry], name: &str) -> Option<&'a Value> {
    let mut named = entries.iter().filter(|entry| entry.key.name() == Some(name.as_bytes()));
    named.next().map(|entry| &entry.value)
}

fn word(entries: &[Entry], name: &str) -> u64 {
    find(entries, name).and_then(Value::first).unwrap_or(0)
}

fn bytes<const N: usize>(entries: &[Entry], name: &str) -> [u8; N] {
    let value = find(entries, name).and_then(Value::as_bytes).expect("a field of the key object");
    value.try_into().expect("the field's length")
}

/// The MAC of an indirect block: over the encryption parameters and the MACs of its pointers.
pub(super) fn indirect_mac(block: &[u8], order: Endian) -> [u8; 16] {
    let mut hash = Sha512::new();
    for pointer in block.as_chunks::<128>().0 {
        let bp = BlockPtr::from_bytes_in(pointer, order);
        let mut record = [0; 32];
        if !bp.is_hole() {
            let mut property = bp.words()[6] & !(1 << 62 | 0xff << 40);
            if bp.level() != 0 {
                property &= !(1 << 63 | 0x7f << 32 | 0xffff << 16);
            }
            record[..8].copy_from_slice(&property.to_le_bytes());
            record[8..24].copy_from_slice(&bp.mac());
        }
        hash.update(record);
    }
    *hash.finalize().first_chunk().expect("a long digest")
}

/// Puts checksum, MAC, salt and initialisation vector into a pointer under encryption.
pub(super) fn put_into(
    words: &mut [u64; 16],
    bp: &BlockPtr,
    order: Endian,
    checksum: [u64; 4],
    mac: Option<[u8; 16]>,
) {
    let Some(mac) = mac else {
        words[12..].copy_from_slice(&checksum);
        return;
    };
    let algorithm = ChecksumAlgorithm::from_id(bp.checksum_id()).expect("a checksum");
    words[12..14].copy_from_slice(&algorithm.fold(checksum));
    let word = |bytes: &[u8]| order.u64(*bytes.first_chunk().expect("eight bytes"));
    (words[14], words[15]) = (word(&mac[..8]), word(&mac[8..]));
    if bp.is_encrypted() {
        let iv = bp.iv();
        (words[4], words[5]) = (word(&bp.salt()), word(&iv[..8]));
        let tail = order.u32(*iv[8..].first_chunk().expect("four bytes"));
        words[11] = bp.fill() | u64::from(tail) << 32;
    }
}
