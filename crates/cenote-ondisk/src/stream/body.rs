//! Records inside a substream (spec 07 B3).

use super::field::{Fields, FieldsMut};
use crate::object_type::ObjectType;
use bitflags::bitflags;

/// Rounds up to whole words.
const fn up8(len: u64) -> u64 {
    len.saturating_add(7) & !7
}

bitflags! {
    /// Flags of OBJECT, SPILL and OBJECT_RANGE records.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct ObjectFlags: u8 {
        /// Raw blocks are in the other byte order than the stream.
        const RAW_BYTESWAPPED = 2;
        /// OBJECT: the object has a spill block. SPILL: it did not change.
        const SPILL = 4;

        /// Flags of other systems, kept as found.
        const _ = !0;
    }

    /// Flags of a WRITE.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct WriteFlags: u8 {
        /// The checksum is strong enough for deduplication.
        const CHECKSUM_DEDUP = 1;
        /// The raw block is in the other byte order than the stream.
        const RAW_BYTESWAPPED = 2;

        /// Flags of other systems, kept as found.
        const _ = !0;
    }
}

/// Parameters of a block's encryption.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct CipherParams {
    /// Salt of the key's derivation.
    pub salt: [u8; 8],
    /// Initialization vector.
    pub iv: [u8; 12],
    /// Authentication code.
    pub mac: [u8; 16],
}

impl CipherParams {
    fn decode(fields: Fields<'_>, at: usize) -> Self {
        let [iv_at, mac_at] = Self::offsets(at);
        Self { salt: fields.bytes(at), iv: fields.bytes(iv_at), mac: fields.bytes(mac_at) }
    }

    fn encode(&self, fields: &mut FieldsMut<'_>, at: usize) {
        let [iv_at, mac_at] = Self::offsets(at);
        fields.put(at, &self.salt);
        fields.put(iv_at, &self.iv);
        fields.put(mac_at, &self.mac);
    }

    const fn offsets(at: usize) -> [usize; 2] {
        [at.saturating_add(8), at.saturating_add(20)]
    }
}

/// An object's dnode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Object {
    /// Object number.
    pub object: u64,
    /// Type.
    pub kind: u32,
    /// Type of the bonus.
    pub bonus_kind: u32,
    /// Bytes of a data block.
    pub block_size: u32,
    /// Bytes of the bonus.
    pub bonus_len: u32,
    /// The dnode's checksum property; 0 inherits.
    pub checksum: u8,
    /// The dnode's compression property; 0 inherits.
    pub compression: u8,
    /// Slots of the dnode; 0 means 1.
    pub slots: u8,
    /// Flags.
    pub flags: ObjectFlags,
    /// Raw streams: bytes of the bonus area that follow.
    pub raw_bonus_len: u32,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Raw streams: logarithm of an indirect block's bytes.
    pub indirect_block_shift: u8,
    /// Raw streams: levels.
    pub levels: u8,
    /// Raw streams: block pointers in the dnode.
    pub blkptr_count: u8,
    /// Raw streams: number of the last block.
    pub max_block: u64,
}

impl Object {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            kind: fields.u32(16),
            bonus_kind: fields.u32(20),
            block_size: fields.u32(24),
            bonus_len: fields.u32(28),
            checksum: fields.u8(32),
            compression: fields.u8(33),
            slots: fields.u8(34),
            flags: ObjectFlags::from_bits_retain(fields.u8(35)),
            raw_bonus_len: fields.u32(36),
            to_guid: fields.u64(40),
            indirect_block_shift: fields.u8(48),
            levels: fields.u8(49),
            blkptr_count: fields.u8(50),
            max_block: fields.u64(56),
        }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u64(8, self.object);
        fields.put_u32(16, self.kind);
        fields.put_u32(20, self.bonus_kind);
        fields.put_u32(24, self.block_size);
        fields.put_u32(28, self.bonus_len);
        fields.put_u8(32, self.checksum);
        fields.put_u8(33, self.compression);
        fields.put_u8(34, self.slots);
        fields.put_u8(35, self.flags.bits());
        fields.put_u32(36, self.raw_bonus_len);
        fields.put_u64(40, self.to_guid);
        fields.put_u8(48, self.indirect_block_shift);
        fields.put_u8(49, self.levels);
        fields.put_u8(50, self.blkptr_count);
        fields.put_u64(56, self.max_block);
    }

    pub(super) const fn payload_len(&self) -> u64 {
        if self.raw_bonus_len == 0 { up8(self.bonus_len as u64) } else { self.raw_bonus_len as u64 }
    }

    /// Slots of the dnode, at least 1.
    #[must_use]
    pub const fn slot_count(&self) -> u64 {
        if self.slots == 0 { 1 } else { self.slots as u64 }
    }
}

/// A range of objects that do not exist at the sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FreeObjects {
    /// First object number.
    pub first: u64,
    /// How many.
    pub count: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
}

impl FreeObjects {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self { first: fields.u64(8), count: fields.u64(16), to_guid: fields.u64(24) }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u64(8, self.first);
        fields.put_u64(16, self.count);
        fields.put_u64(24, self.to_guid);
    }
}

/// Informational words of a block's place in a dedup table, as the sender's pointer has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WriteKey {
    /// Number of the checksum's type.
    pub checksum_kind: u8,
    /// The block's checksum.
    pub checksum: [u64; 4],
    /// Sizes and compression of the block, as a dedup table's key has them.
    pub properties: u64,
}

/// A block of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write {
    /// Object number.
    pub object: u64,
    /// Type of the object.
    pub kind: u32,
    /// Offset in the object.
    pub offset: u64,
    /// Bytes that the payload expands to.
    pub logical_len: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Flags.
    pub flags: WriteFlags,
    /// Number of the payload's compression; 0 if it is not compressed.
    pub compression: u8,
    /// The sender's checksum and sizes.
    pub key: WriteKey,
    /// Bytes of a compressed payload.
    pub compressed_len: u64,
    /// Raw streams: parameters of the block's encryption.
    pub cipher: CipherParams,
}

impl Write {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            kind: fields.u32(16),
            offset: fields.u64(24),
            logical_len: fields.u64(32),
            to_guid: fields.u64(40),
            flags: WriteFlags::from_bits_retain(fields.u8(49)),
            compression: fields.u8(50),
            key: WriteKey {
                checksum_kind: fields.u8(48),
                checksum: fields.words(56),
                properties: fields.u64(88),
            },
            compressed_len: fields.u64(96),
            cipher: CipherParams::decode(fields, 104),
        }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u64(8, self.object);
        fields.put_u32(16, self.kind);
        fields.put_u64(24, self.offset);
        fields.put_u64(32, self.logical_len);
        fields.put_u64(40, self.to_guid);
        fields.put_u8(48, self.key.checksum_kind);
        fields.put_u8(49, self.flags.bits());
        fields.put_u8(50, self.compression);
        fields.put_words(56, self.key.checksum);
        fields.put_u64(88, self.key.properties);
        fields.put_u64(96, self.compressed_len);
        self.cipher.encode(fields, 104);
    }

    pub(super) const fn payload_len(&self) -> u64 {
        if self.compression == 0 { self.logical_len } else { self.compressed_len }
    }
}

/// A range of an object: FREE, REDACT.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Object number.
    pub object: u64,
    /// Offset in the object.
    pub offset: u64,
    /// Bytes; [`Range::TO_THE_END`] for everything behind the offset.
    pub len: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
}

impl Range {
    /// Length of a range without an end.
    pub const TO_THE_END: u64 = u64::MAX;

    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            offset: fields.u64(16),
            len: fields.u64(24),
            to_guid: fields.u64(32),
        }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u64(8, self.object);
        fields.put_u64(16, self.offset);
        fields.put_u64(24, self.len);
        fields.put_u64(32, self.to_guid);
    }
}

/// Ends a substream or a package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct End {
    /// Checksum of the stream before this record.
    pub checksum: [u64; 4],
    /// Guid of the snapshot.
    pub to_guid: u64,
}

impl End {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self { checksum: fields.words(8), to_guid: fields.u64(40) }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_words(8, self.checksum);
        fields.put_u64(40, self.to_guid);
    }
}

/// A block that equals one sent before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteByRef {
    /// Object number.
    pub object: u64,
    /// Offset in the object.
    pub offset: u64,
    /// Bytes of the block.
    pub len: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the snapshot that has the other block.
    pub ref_guid: u64,
    /// Object of the other block.
    pub ref_object: u64,
    /// Offset of the other block.
    pub ref_offset: u64,
    /// Flags.
    pub flags: WriteFlags,
    /// The block's checksum and sizes.
    pub key: WriteKey,
}

impl WriteByRef {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            offset: fields.u64(16),
            len: fields.u64(24),
            to_guid: fields.u64(32),
            ref_guid: fields.u64(40),
            ref_object: fields.u64(48),
            ref_offset: fields.u64(56),
            flags: WriteFlags::from_bits_retain(fields.u8(65)),
            key: WriteKey {
                checksum_kind: fields.u8(64),
                checksum: fields.words(72),
                properties: fields.u64(104),
            },
        }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u64(8, self.object);
        fields.put_u64(16, self.offset);
        fields.put_u64(24, self.len);
        fields.put_u64(32, self.to_guid);
        fields.put_u64(40, self.ref_guid);
        fields.put_u64(48, self.ref_object);
        fields.put_u64(56, self.ref_offset);
        fields.put_u8(64, self.key.checksum_kind);
        fields.put_u8(65, self.flags.bits());
        fields.put_words(72, self.key.checksum);
        fields.put_u64(104, self.key.properties);
    }
}

/// An object's spill block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Spill {
    /// Object number.
    pub object: u64,
    /// Bytes of the block.
    pub len: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Flags.
    pub flags: ObjectFlags,
    /// Raw streams: number of the block's compression.
    pub compression: u8,
    /// Raw streams: bytes of the payload.
    pub compressed_len: u64,
    /// Raw streams: parameters of the block's encryption.
    pub cipher: CipherParams,
    /// Type of the block; senders write 0.
    pub kind: u32,
}

impl Spill {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            len: fields.u64(16),
            to_guid: fields.u64(24),
            flags: ObjectFlags::from_bits_retain(fields.u8(32)),
            compression: fields.u8(33),
            compressed_len: fields.u64(40),
            cipher: CipherParams::decode(fields, 48),
            kind: fields.u32(84),
        }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u64(8, self.object);
        fields.put_u64(16, self.len);
        fields.put_u64(24, self.to_guid);
        fields.put_u8(32, self.flags.bits());
        fields.put_u8(33, self.compression);
        fields.put_u64(40, self.compressed_len);
        self.cipher.encode(fields, 48);
        fields.put_u32(84, self.kind);
    }

    pub(super) const fn payload_len(&self) -> u64 {
        if self.compressed_len == 0 { self.len } else { self.compressed_len }
    }
}

/// A block that is stored in its pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Embedded {
    /// Object number.
    pub object: u64,
    /// Offset in the object.
    pub offset: u64,
    /// Bytes of the object's block.
    pub len: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Number of the compression.
    pub compression: u8,
    /// Number of the embedded type: 0 is data.
    pub embedded_kind: u8,
    /// Bytes that the payload expands to.
    pub logical_len: u32,
    /// Bytes of the payload without padding.
    pub physical_len: u32,
}

impl Embedded {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            object: fields.u64(8),
            offset: fields.u64(16),
            len: fields.u64(24),
            to_guid: fields.u64(32),
            compression: fields.u8(40),
            embedded_kind: fields.u8(41),
            logical_len: fields.u32(48),
            physical_len: fields.u32(52),
        }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u64(8, self.object);
        fields.put_u64(16, self.offset);
        fields.put_u64(24, self.len);
        fields.put_u64(32, self.to_guid);
        fields.put_u8(40, self.compression);
        fields.put_u8(41, self.embedded_kind);
        fields.put_u32(48, self.logical_len);
        fields.put_u32(52, self.physical_len);
    }

    pub(super) const fn payload_len(&self) -> u64 {
        up8(self.physical_len as u64)
    }

    /// Whether the record is a spill block that a sender took for data: its offset is block -2
    /// (spec 07 B15, defect 1).
    #[must_use]
    pub const fn is_spill(&self) -> bool {
        self.len != 0 && self.offset == self.len.wrapping_mul(2).wrapping_neg()
    }
}

/// Encryption parameters of a block of dnodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObjectRange {
    /// First object number of the block.
    pub first: u64,
    /// Slots of the block.
    pub slots: u64,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Parameters of the block's encryption.
    pub cipher: CipherParams,
    /// Flags.
    pub flags: ObjectFlags,
}

impl ObjectRange {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        Self {
            first: fields.u64(8),
            slots: fields.u64(16),
            to_guid: fields.u64(24),
            cipher: CipherParams::decode(fields, 32),
            flags: ObjectFlags::from_bits_retain(fields.u8(68)),
        }
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u64(8, self.first);
        fields.put_u64(16, self.slots);
        fields.put_u64(24, self.to_guid);
        self.cipher.encode(fields, 32);
        fields.put_u8(68, self.flags.bits());
    }
}

/// The type of an object by its number in a record; `None` if it is not a type.
#[must_use]
pub fn object_type(number: u32) -> Option<ObjectType> {
    let kind = ObjectType(u8::try_from(number).ok()?);
    kind.is_valid().then_some(kind)
}
