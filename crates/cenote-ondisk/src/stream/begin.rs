//! BEGIN: what a substream, or a package of them, is (spec 07 B2).

use super::field::{Fields, FieldsMut};
use crate::bits::Bits;
use bitflags::bitflags;

/// Offset of the snapshot's name.
const NAME_AT: usize = 56;
/// Bytes of the name's field, with the NUL that ends it.
const NAME_LEN: usize = 256;

const HEADER_TYPE: Bits<0, 2> = Bits;
const FEATURES: Bits<2, 56> = Bits;

bitflags! {
    /// Features of a stream (spec 07 B2.1), as `zstream dump` prints them.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct StreamFeatures: u64 {
        /// Has `WRITE_BYREF` records.
        const DEDUP = 1 << 0;
        /// Deduplicated by a special checksum.
        const DEDUP_PROPS = 1 << 1;
        /// Objects may have spill blocks.
        const SA_SPILL = 1 << 2;
        /// Has `WRITE_EMBEDDED` records.
        const EMBED_DATA = 1 << 16;
        /// Blocks may be compressed with lz4.
        const LZ4 = 1 << 17;
        /// Blocks may be longer than 128 KiB.
        const LARGE_BLOCKS = 1 << 19;
        /// Continues an interrupted receive.
        const RESUMING = 1 << 20;
        /// Has REDACT records.
        const REDACTED = 1 << 21;
        /// Blocks may be compressed.
        const COMPRESSED = 1 << 22;
        /// Dnodes may take more than one slot.
        const LARGE_DNODE = 1 << 23;
        /// Blocks are sent as they are on disk, encrypted.
        const RAW = 1 << 24;
        /// Blocks may be compressed with zstd.
        const ZSTD = 1 << 25;
        /// The package lists holds.
        const HOLDS = 1 << 26;
        /// The source of the increment had no large blocks.
        const SWITCH_TO_LARGE_BLOCKS = 1 << 27;
        /// Names of directory entries may be longer than 255 bytes.
        const LONGNAME = 1 << 28;
        /// Micro ZAPs may be longer than 128 KiB.
        const LARGE_MICROZAP = 1 << 29;

        /// Features of other systems, kept as found.
        const _ = !0;
    }

    /// Flags of a BEGIN.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct BeginFlags: u32 {
        /// An increment whose source is in another dataset.
        const CLONE = 1;
        /// The dataset ignores case.
        const CI_DATA = 2;
        /// Has FREE and FREEOBJECTS records also if it is full.
        const FREERECORDS = 4;
        /// Says of each object whether it keeps its spill block.
        const SPILL_BLOCK = 8;

        /// Flags of other systems, kept as found.
        const _ = !0;
    }
}

/// Kind of BEGIN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeaderType {
    /// One snapshot.
    Substream,
    /// A package of snapshots.
    Compound,
    /// No known kind: 0 or 3.
    Unknown(u8),
}

impl HeaderType {
    const fn from_number(number: u64) -> Self {
        match number {
            1 => Self::Substream,
            2 => Self::Compound,
            other => Self::Unknown((other & 3) as u8),
        }
    }

    /// The stored number.
    #[must_use]
    pub const fn number(self) -> u64 {
        match self {
            Self::Substream => 1,
            Self::Compound => 2,
            Self::Unknown(number) => (number & 3) as u64,
        }
    }
}

/// Begins a substream or a package.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Begin {
    /// Bytes of the nvlist that follows.
    pub payload_len: u32,
    /// Kind.
    pub header: HeaderType,
    /// Features.
    pub features: StreamFeatures,
    /// Reserved bits 58 to 63 of the version word, as found.
    pub reserved: u8,
    /// When the snapshot was made, in seconds.
    pub creation_time: u64,
    /// Type of the object set: 2 a file system, 3 a volume, 0 in a package's header.
    pub objset_kind: u32,
    /// Flags.
    pub flags: BeginFlags,
    /// Guid of the snapshot.
    pub to_guid: u64,
    /// Guid of the source of an increment; 0 if full.
    pub from_guid: u64,
    /// Name of the snapshot at the sender, without the NUL that ends it.
    pub to_name: Vec<u8>,
}

impl Begin {
    pub(super) fn decode(fields: Fields<'_>) -> Self {
        let version = fields.u64(16);
        let name = fields.bytes::<NAME_LEN>(NAME_AT);
        let name = name.split(|byte| *byte == 0).next().unwrap_or_default();
        Self {
            payload_len: fields.u32(4),
            header: HeaderType::from_number(HEADER_TYPE.get(version)),
            features: StreamFeatures::from_bits_retain(FEATURES.get(version)),
            reserved: (version >> 58) as u8,
            creation_time: fields.u64(24),
            objset_kind: fields.u32(32),
            flags: BeginFlags::from_bits_retain(fields.u32(36)),
            to_guid: fields.u64(40),
            from_guid: fields.u64(48),
            to_name: name.to_vec(),
        }
    }

    /// The word that holds header type and features.
    #[must_use]
    pub const fn version_info(&self) -> u64 {
        let features = self.features.bits() & (u64::MAX >> 8);
        (self.reserved as u64) << 58 | features << 2 | self.header.number()
    }

    pub(super) fn encode(&self, fields: &mut FieldsMut<'_>) {
        fields.put_u32(4, self.payload_len);
        fields.put_u64(8, super::STREAM_MAGIC);
        fields.put_u64(16, self.version_info());
        fields.put_u64(24, self.creation_time);
        fields.put_u32(32, self.objset_kind);
        fields.put_u32(36, self.flags.bits());
        fields.put_u64(40, self.to_guid);
        fields.put_u64(48, self.from_guid);
        let name = self.to_name.get(..NAME_LEN.saturating_sub(1)).unwrap_or(&self.to_name);
        fields.put(NAME_AT, name);
    }
}
