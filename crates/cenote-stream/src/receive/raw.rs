//! Raw streams: dnodes and blocks as the sender has encrypted them (spec 07 B10).
//!
//! ```text
//!   OBJECT_RANGE   salt, IV and tag of a block of 32 dnodes      for the OBJECTs that follow
//!   OBJECT         a dnode with its whole bonus area, and the shape of its tree
//!   WRITE, SPILL   stored bytes with salt, IV and tag            stored as they are
//! ```
//!
//! Nothing can be decrypted here, so nothing is checked but lengths: whether the contents are those
//! of the sender shows when they are read with the key. Everything that is authenticated must be as
//! at the sender: object numbers, slots, pointers in a dnode, sizes, levels, the highest block,
//! the stored length of blocks, and the byte order.

use cenote_block::{Seal, SentForm};
use cenote_codec::compress::Compression;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::{Geometry, Tx, TxResult};
use cenote_engine::{Charge, SentKeys, StoredKeys};
use cenote_ondisk::blkptr::SECTOR_SIZE;
use cenote_ondisk::dnode::{DNODE_SLOTS_MAX, DnodePhys};
use cenote_ondisk::stream::{
    CipherParams, Object, ObjectFlags, ObjectRange, Spill, Write, WriteFlags,
};
use cenote_rt::{Buf, BufMut, Result};

use super::batch::{Contents, Piece};
use super::objects::{self, ObjectRules, Put};
use super::{DNODE_COST, ReceiveError, Receiver};
use crate::CryptKeyData;

/// State of a raw receive.
#[derive(Debug, Default)]
pub(super) struct Raw {
    /// First object of the block of dnodes that is being received, and what protects it.
    range: Option<(u64, Seal)>,
    /// Zeros in place of contents that are not known, as long as the last block.
    zeros: Option<Buf>,
}

impl Raw {
    /// A buffer of `len` bytes that stands for the contents of an encrypted block.
    fn unknown(&mut self, len: usize) -> Buf {
        let last = self.zeros.take().filter(|zeros| zeros.len() == len);
        let zeros = last.unwrap_or_else(|| BufMut::zeroed(len).freeze());
        self.zeros = Some(zeros.clone());
        zeros
    }

    /// What protects the block of dnodes with this object.
    fn seal_of(&self, object: u64) -> Result<(u64, Seal), ReceiveError> {
        let first = object - object % DNODE_SLOTS_MAX as u64;
        self.range.filter(|(of, _)| *of == first).ok_or(ReceiveError::NoRange { object })
    }
}

/// Returns what BEGIN says of keys and root.
pub(super) fn sent_keys(data: &CryptKeyData) -> SentKeys {
    use cenote_codec::crypto::{Pbkdf2, WrappedKeys};
    let CryptKeyData { suite, guid, version, master_key, hmac_key, iv, mac, .. } = *data;
    let meta = &data.meta_dnode;
    SentKeys {
        keys: StoredKeys {
            wrapped: WrappedKeys { suite, guid, version, iv, mac, master_key, hmac_key },
            format: data.key_format,
            pbkdf2: Pbkdf2 { salt: data.pbkdf2_salt, iterations: data.pbkdf2_iterations },
        },
        root: cenote_dmu::live::SentRoot {
            portable_mac: data.portable_mac,
            checksum: meta.checksum,
            compression: meta.compression,
            levels: meta.levels,
            block_size: meta.block_size.into(),
            indirect_shift: meta.indirect_block_shift,
            max_block: meta.max_block,
        },
        to_ivset: data.to_ivset_guid,
        from_ivset: data.from_ivset_guid,
    }
}

fn seal(cipher: &CipherParams) -> Seal {
    let CipherParams { salt, iv, mac } = *cipher;
    Seal { salt, iv, mac }
}

/// Blocks of the other byte order would have to be written in that order.
fn check_order(object: u64, flags: ObjectFlags) -> Result<(), ReceiveError> {
    if flags.contains(ObjectFlags::RAW_BYTESWAPPED) {
        return Err(ReceiveError::ForeignOrder { object });
    }
    Ok(())
}

/// Returns the form of a block, and checks that it can be one.
fn form(
    object: u64,
    stored: Vec<u8>,
    compression: u8,
    cipher: &CipherParams,
    rules: ObjectRules,
) -> Result<SentForm, ReceiveError> {
    let unknown = ReceiveError::Compression { object, compression };
    let compression = match Compression::from_id(compression) {
        Some(Compression::Zstd) if !rules.has_zstd => return Err(unknown),
        Some(function) => function,
        None => return Err(unknown),
    };
    if stored.is_empty() || !(stored.len() as u64).is_multiple_of(SECTOR_SIZE) {
        return Err(ReceiveError::StoredLength { object, len: stored.len() });
    }
    let bytes = Buf::from(stored);
    Ok(SentForm { bytes, compression, is_embedded: false, seal: Some(seal(cipher)) })
}

impl Receiver {
    /// The state of a raw receive; an error for a record that only raw streams have.
    fn raw(&mut self, name: &'static str) -> Result<&mut Raw, ReceiveError> {
        self.raw.as_mut().ok_or(ReceiveError::Misplaced { name })
    }

    pub(super) fn object_range(&mut self, record: &ObjectRange) -> Result<()> {
        check_order(record.first, record.flags)?;
        self.raw("OBJECT_RANGE")?.range = Some((record.first, seal(&record.cipher)));
        Ok(())
    }

    pub(super) async fn object_raw(
        &mut self,
        record: &Object,
        area: &[u8],
        bytes: u64,
    ) -> Result<()> {
        check_order(record.object, record.flags)?;
        let point = self.point_of_object(record, bytes)?;
        let sealed = self.raw("OBJECT")?.seal_of(record.object)?;
        let area = area.get(..record.raw_bonus_len as usize).unwrap_or(area);
        let rules = self.rules;
        self.put_object(record.object, point, |tx| put(tx, record, area, rules, sealed)).await
    }

    pub(super) async fn write_raw(
        &mut self,
        record: &Write,
        stored: Vec<u8>,
        bytes: u64,
    ) -> Result<()> {
        let (object, offset) = (record.object, record.offset);
        if record.flags.contains(WriteFlags::RAW_BYTESWAPPED) {
            return Err(ReceiveError::ForeignOrder { object }.into());
        }
        let point = self.point_at(object, offset, bytes)?;
        let shape = self.shape_of(object).await?;
        let wanted = record.logical_len;
        if wanted != shape.block_size || !offset.is_multiple_of(wanted) {
            let found = shape.block_size;
            return Err(ReceiveError::BlockSize { object, found, wanted }.into());
        }
        let form = form(object, stored, record.compression, &record.cipher, self.rules)?;
        let data = self.raw("WRITE")?.unknown(wanted as usize);
        let contents = Contents::Ready(data, Some(form));
        self.add((object, shape), Piece { offset, len: wanted, contents }, point).await
    }

    pub(super) async fn spill_raw(&mut self, record: &Spill, stored: Vec<u8>) -> Result<()> {
        let object = record.object;
        check_order(object, record.flags)?;
        let form = form(object, stored, record.compression, &record.cipher, self.rules)?;
        let block = self.raw("SPILL")?.unknown(record.len as usize);
        let charge = Charge::write(DNODE_COST).with_blocks(1, record.len);
        self.change(charge, None, |tx| {
            objects::check_spill(tx, object)?;
            tx.set_sent_spill(object, block.clone(), form.clone())?;
            Ok(((), false))
        })
        .await
    }
}

/// Applies an OBJECT.
fn put(
    tx: &mut Tx<'_>,
    record: &Object,
    area: &[u8],
    rules: ObjectRules,
    (first, seal): (u64, Seal),
) -> TxResult<Put> {
    let (kind, bonus_kind) = objects::types(record)?;
    let (object, slots) = (record.object, record.slot_count());
    let (levels, max_block) = (record.levels, record.max_block);
    check_tree(record)?;
    let mut has_freed = objects::free_inner(tx, object, slots)?;
    let before = tx.find(object)?;
    if let Some(before) = &before
        && has_other_shape(record, before)
    {
        tx.free(object)?;
        has_freed = true;
    }
    if has_freed {
        return Ok(Put::Freed);
    }
    let bonus_len = record.bonus_len as usize;
    match before {
        None => {
            let spec = ObjectSpec {
                slots: slots as usize,
                indirect_shift: record.indirect_block_shift,
                ..ObjectSpec::new(kind, record.block_size.into())
                    .with_bonus(bonus_kind, bonus_len)
                    .with_number(object)
            };
            tx.allocate(&spec)?;
        }
        Some(before) => {
            if before.data_block_size() != u64::from(record.block_size) {
                tx.free_range(object, 0, None)?;
            } else if before.maxblkid > max_block {
                let end = max_block.saturating_add(1).saturating_mul(record.block_size.into());
                tx.free_range(object, end, None)?;
            }
            objects::retype(tx, record, (kind, bonus_kind), &before, rules)?;
        }
    }
    tx.set_tree_shape(object, levels, max_block)?;
    tx.set_block_policy(object, record.checksum, record.compression)?;
    tx.set_sealed_bonus(object, bonus_len, area)?;
    tx.seal_dnodes(first, seal);
    Ok(Put::Done)
}

/// Whether an object must be freed and allocated anew to become the one of the record.
fn has_other_shape(record: &Object, before: &DnodePhys) -> bool {
    before.slots() as u64 != record.slot_count()
        || before.nblkptr() != usize::from(record.blkptr_count)
        || before.indblkshift != record.indirect_block_shift
        || before.nlevels > record.levels
}

/// Refuses a tree whose highest block is beyond its pointers: it would get more levels.
fn check_tree(record: &Object) -> Result<(), ReceiveError> {
    let Object { object, levels, max_block, .. } = *record;
    let tree = Geometry {
        levels,
        pointer_count: record.blkptr_count,
        indirect_shift: record.indirect_block_shift.into(),
        block_size: record.block_size.into(),
        max_block,
    };
    if tree.indirect_shift == 0 || max_block >= tree.capacity() {
        return Err(ReceiveError::Tree { object, levels, max_block });
    }
    Ok(())
}
