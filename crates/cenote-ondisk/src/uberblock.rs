//! The uberblock: the root of the pool's tree, one per committed txg in a ring of slots in each
//! label.
//!
//! ```text
//!     0 magic   8 version   16 txg   24 guid sum   32 timestamp   40 root bp (128)
//!   168 software version   176 MMP magic   184 MMP delay   192 MMP config
//!   200 checkpoint txg     208 raidz reflow               216 zero .. trailer in the last 40
//!
//!   MMP config  63       48 47      32 31               8 7     0
//!              +-----------+----------+------------------+-------+
//!              | fail ints | sequence |   interval, ms   | valid |
//!              +-----------+----------+------------------+-------+
//!   reflow      63       55 54                                  0
//!              +-----------+-------------------------------------+
//!              |   state   |          offset, sectors            |
//!              +-----------+-------------------------------------+
//! ```
//!
//! Written in the byte order of its host, which the magic shows. It is valid if the magic *and* the
//! trailer of the slot are (see [`crate::label`]); the best of all valid ones is the greatest by
//! [`Uberblock::rank`]. The slot of a txg cannot be assumed: all slots are read (spec 01 §7).

use crate::bits::Bits;
use crate::blkptr::{BLOCK_PTR_LEN, BlockPtr, SECTOR_SIZE};
use crate::bytes::Reader;
use crate::endian::Endian;
use crate::words;

/// First word of an uberblock.
pub const UBERBLOCK_MAGIC: u64 = 0x00ba_b10c;
/// Second magic, in front of the MMP fields.
pub const MMP_MAGIC: u64 = 0xa11c_ea11;
/// Bytes of an uberblock.
pub const UBERBLOCK_LEN: usize = 216;
/// Bytes of the ring in a label.
pub const UBERBLOCK_RING_LEN: u64 = 128 << 10;
/// Log2 of the smallest slot.
pub const UBERBLOCK_SHIFT_MIN: u32 = 10;
/// Log2 of the largest slot.
pub const UBERBLOCK_SHIFT_MAX: u32 = 13;

const HAS_INTERVAL: Bits<0, 1> = Bits;
const HAS_SEQUENCE: Bits<1, 1> = Bits;
const HAS_FAIL_INTERVALS: Bits<2, 1> = Bits;
const INTERVAL_MS: Bits<8, 24> = Bits;
const SEQUENCE: Bits<32, 16> = Bits;
const FAIL_INTERVALS: Bits<48, 16> = Bits;

const REFLOW_SECTOR: Bits<0, 55> = Bits;
const REFLOW_STATE: Bits<55, 9> = Bits;

/// Why an uberblock is invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum CorruptUberblock {
    /// Too few bytes.
    #[error("uberblock: {len} bytes, expected 216")]
    Length {
        /// Bytes found.
        len: usize,
    },
    /// Another magic in either byte order.
    #[error("uberblock: magic {found:#x}, expected 0xbab10c")]
    Magic {
        /// The word found, read little-endian.
        found: u64,
    },
}

/// State of the scratch area of a RAID-Z expansion.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReflowState {
    /// No scratch area in use.
    NotInUse,
    /// The scratch area holds the only good copy of the start of the vdev.
    Valid,
    /// It was copied back and synced.
    InvalidSynced,
    /// It was copied back and synced during import.
    InvalidSyncedOnImport,
    /// It was copied back and synced, and the reflow continues.
    InvalidSyncedReflow,
    /// An unknown number.
    Unknown(u16),
}

/// Progress of a RAID-Z expansion as of an uberblock (`ub_raidz_reflow_info`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct RaidzReflow {
    /// Bytes of the vdev that have been reflowed.
    pub offset: u64,
    /// State of the scratch area.
    pub state: ReflowState,
}

/// Multihost state that the importing host announces to others (spec 01 §17). By default nothing is
/// announced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mmp {
    /// Nanoseconds between heartbeats; 0 = multihost is off.
    pub delay_ns: u64,
    /// Milliseconds between writes, if present.
    pub interval_ms: Option<u64>,
    /// Counter within a second, if present; at most [`MMP_SEQUENCE_MAX`].
    pub sequence: Option<u64>,
    /// Missed intervals until the host suspends the pool, if present; 0 = never.
    pub fail_intervals: Option<u64>,
}

/// Largest sequence number of a heartbeat.
pub const MMP_SEQUENCE_MAX: u64 = u16::MAX as u64;

/// An uberblock (`uberblock_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Uberblock {
    /// Byte order in which it was written.
    pub endian: Endian,
    /// Pool version, 5000 with feature flags.
    pub version: u64,
    /// The txg that it commits.
    pub txg: u64,
    /// Wrapping sum of the guids of all vdevs.
    pub guid_sum: u64,
    /// Seconds since 1970.
    pub timestamp: u64,
    /// Root of the MOS.
    pub rootbp: BlockPtr,
    /// Highest pool version that the writer knew.
    pub software_version: u64,
    /// [`MMP_MAGIC`] if the two fields below are valid.
    pub mmp_magic: u64,
    /// MMP delay word.
    pub mmp_delay: u64,
    /// MMP config word.
    pub mmp_config: u64,
    /// Nonzero only in a checkpointed uberblock, and after rewinding to one.
    pub checkpoint_txg: u64,
    /// RAID-Z reflow word.
    pub raidz_reflow_info: u64,
}

impl Uberblock {
    /// Decodes 216 bytes (of a slot, which may be longer) in either byte order.
    pub fn decode(bytes: &[u8]) -> Result<Self, CorruptUberblock> {
        let short = CorruptUberblock::Length { len: bytes.len() };
        let magic = words::array_at::<8>(bytes, 0).ok_or(short)?;
        let endian = Endian::of_magic(magic, UBERBLOCK_MAGIC)
            .ok_or(CorruptUberblock::Magic { found: u64::from_le_bytes(magic) })?;
        Self::read(bytes, endian).ok_or(short)
    }

    /// From the 27 words of the checkpoint entry in the pool directory.
    pub fn from_words(words: &[u64]) -> Result<Self, CorruptUberblock> {
        Self::decode(&words::to_bytes(words))
    }

    fn read(bytes: &[u8], endian: Endian) -> Option<Self> {
        let mut reader = Reader::new(bytes, endian);
        let _magic = reader.u64()?;
        Some(Self {
            endian,
            version: reader.u64()?,
            txg: reader.u64()?,
            guid_sum: reader.u64()?,
            timestamp: reader.u64()?,
            rootbp: BlockPtr::from_bytes_in(&reader.array::<BLOCK_PTR_LEN>()?, endian),
            software_version: reader.u64()?,
            mmp_magic: reader.u64()?,
            mmp_delay: reader.u64()?,
            mmp_config: reader.u64()?,
            checkpoint_txg: reader.u64()?,
            raidz_reflow_info: reader.u64()?,
        })
    }

    /// The 216 bytes, in the order of [`Self::endian`].
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let head = [UBERBLOCK_MAGIC, self.version, self.txg, self.guid_sum, self.timestamp];
        let tail = [
            self.software_version,
            self.mmp_magic,
            self.mmp_delay,
            self.mmp_config,
            self.checkpoint_txg,
            self.raidz_reflow_info,
        ];
        let words = head.iter().chain(self.rootbp.words()).chain(&tail);
        words.flat_map(|word| self.endian.bytes64(*word)).collect()
    }

    /// The MMP fields, if the writer supported them.
    #[must_use]
    pub fn mmp(&self) -> Option<Mmp> {
        if self.mmp_magic != MMP_MAGIC {
            return None;
        }
        let word = self.mmp_config;
        Some(Mmp {
            delay_ns: self.mmp_delay,
            interval_ms: HAS_INTERVAL.is_set(word).then(|| INTERVAL_MS.get(word)),
            sequence: HAS_SEQUENCE.is_set(word).then(|| SEQUENCE.get(word)),
            fail_intervals: HAS_FAIL_INTERVALS.is_set(word).then(|| FAIL_INTERVALS.get(word)),
        })
    }

    /// Sets the MMP fields. A number that does not fit becomes the largest that does.
    pub fn set_mmp(&mut self, mmp: Mmp) {
        self.mmp_magic = MMP_MAGIC;
        self.mmp_delay = mmp.delay_ns;
        self.mmp_config = [
            told(HAS_INTERVAL, INTERVAL_MS, mmp.interval_ms),
            told(HAS_SEQUENCE, SEQUENCE, mmp.sequence),
            told(HAS_FAIL_INTERVALS, FAIL_INTERVALS, mmp.fail_intervals),
        ]
        .into_iter()
        .fold(0, |word, part| word | part);
    }

    /// Progress of a RAID-Z expansion.
    #[must_use]
    pub const fn raidz_reflow(&self) -> RaidzReflow {
        let state = match REFLOW_STATE.get(self.raidz_reflow_info) {
            0 => ReflowState::NotInUse,
            1 => ReflowState::Valid,
            2 => ReflowState::InvalidSynced,
            3 => ReflowState::InvalidSyncedOnImport,
            4 => ReflowState::InvalidSyncedReflow,
            other => ReflowState::Unknown(other as u16),
        };
        let sector = REFLOW_SECTOR.get(self.raidz_reflow_info);
        RaidzReflow { offset: sector.saturating_mul(SECTOR_SIZE), state }
    }

    /// Sort key of valid uberblocks: the greatest is best, the first found wins a tie (spec 01
    /// §7.2).
    #[must_use]
    pub fn rank(&self) -> (u64, u64, u64) {
        let sequence = self.mmp().and_then(|mmp| mmp.sequence).unwrap_or(0);
        (self.txg, self.timestamp, sequence)
    }
}

/// A number with its validity bit; 0 if `None`.
fn told<const FLAG: u32, const SHIFT: u32, const WIDTH: u32>(
    flag: Bits<FLAG, 1>,
    field: Bits<SHIFT, WIDTH>,
    value: Option<u64>,
) -> u64 {
    let value = value.map(|value| value.min(Bits::<SHIFT, WIDTH>::MAX));
    value.and_then(|value| field.with(flag.with(0, 1)?, value)).unwrap_or(0)
}

/// Returns the best of several valid uberblocks with a txg up to `txg_max`, as the item that
/// contains it, so that the caller learns its location. `None` if there is none, or only txg 0.
pub fn best<T>(
    candidates: impl IntoIterator<Item = (Uberblock, T)>,
    txg_max: u64,
) -> Option<(Uberblock, T)> {
    candidates
        .into_iter()
        .filter(|(uberblock, _)| (1..=txg_max).contains(&uberblock.txg))
        .reduce(|best, next| if next.0.rank() > best.0.rank() { next } else { best })
}

/// Bytes of a slot, from the ashift of the leaf's top-level vdev.
#[must_use]
pub fn slot_size(ashift: u64) -> u64 {
    let shift = ashift.clamp(u64::from(UBERBLOCK_SHIFT_MIN), u64::from(UBERBLOCK_SHIFT_MAX));
    1 << shift
}

/// Slots in the ring.
#[must_use]
pub fn slot_count(ashift: u64) -> u64 {
    UBERBLOCK_RING_LEN / slot_size(ashift)
}

/// Byte offset of a slot in the ring; `None` beyond the last.
#[must_use]
pub fn slot_offset(ashift: u64, slot: u64) -> Option<u64> {
    (slot < slot_count(ashift)).then(|| slot * slot_size(ashift))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Test vector D of spec 01 §7.2.
    pub(super) const WORDS: [u64; 27] = [
        0xbab10c,
        0x1388,
        4,
        0x0d63752605f1a6b1,
        0x6b00fd32,
        8,
        0x68,
        8,
        0x8068,
        8,
        0x10060,
        0x800b070200070007,
        0,
        0,
        0,
        4,
        0x2c,
        0x96b7b4485,
        0x23096c4ee0e2,
        0x41481f74e8ba7f,
        0x513df7056dd1fc0e,
        0x1388,
        0xa11cea11,
        0,
        0,
        0,
        0,
    ];

    #[test]
    fn a_real_uberblock_in_both_orders() {
        let bytes = words::to_bytes(&WORDS);
        let uberblock = Uberblock::decode(&bytes).unwrap();
        assert_eq!((uberblock.txg, uberblock.version, uberblock.timestamp), (4, 5000, 0x6b00fd32));
        let offsets: Vec<u64> = uberblock.rootbp.dvas().map(|dva| dva.offset).collect();
        assert_eq!(offsets, [0xd000, 0x100d000, 0x200c000]);
        assert_eq!(uberblock.rootbp.fill(), 44);
        assert_eq!(uberblock.encode(), bytes);
        assert_eq!(uberblock.guid_sum, 434978232144962785_u64.wrapping_add(529765319211385296));
        let foreign = Uberblock { endian: Endian::Big, ..uberblock };
        assert_eq!(Uberblock::decode(&foreign.encode()), Ok(foreign));
        assert_eq!(Uberblock::from_words(&WORDS), Ok(uberblock));
        assert!(Uberblock::decode(&bytes[..215]).is_err());
        assert_eq!(Uberblock::decode(&[0; 216]), Err(CorruptUberblock::Magic { found: 0 }));
    }

    #[test]
    fn mmp_and_reflow_words() {
        let mut words = WORDS;
        words[23] = 5;
        words[24] = 0x000a_0001_0003_e807;
        words[26] = 3 << 55 | 7;
        let uberblock = Uberblock::from_words(&words).unwrap();
        let mmp = uberblock.mmp().unwrap();
        assert_eq!((mmp.delay_ns, mmp.interval_ms), (5, Some(1000)));
        assert_eq!((mmp.sequence, mmp.fail_intervals), (Some(1), Some(10)));
        let reflow = uberblock.raidz_reflow();
        assert_eq!((reflow.offset, reflow.state), (7 * 512, ReflowState::InvalidSyncedOnImport));
        words[22] = 0;
        assert_eq!(Uberblock::from_words(&words).unwrap().mmp(), None);
    }

    #[test]
    fn mmp_words_are_those_of_real_pools() {
        let mut uberblock = Uberblock::from_words(&WORDS).unwrap();
        let mmp = |sequence| Mmp {
            delay_ns: 5,
            interval_ms: Some(1000),
            sequence: Some(sequence),
            fail_intervals: Some(10),
        };
        for (mmp, word) in [
            (mmp(0), 0x000a_0000_0003_e807),
            (mmp(1), 0x000a_0001_0003_e807),
            (Mmp { sequence: None, ..mmp(0) }, 0x000a_0000_0003_e805),
            (Mmp::default(), 0),
        ] {
            uberblock.set_mmp(mmp);
            assert_eq!((uberblock.mmp_config, uberblock.mmp()), (word, Some(mmp)));
        }
        uberblock.set_mmp(Mmp { interval_ms: Some(u64::MAX), ..mmp(1 << 16) });
        let (interval, sequence) = (Some(0xff_ffff), Some(0xffff));
        let bounded = Mmp { interval_ms: interval, sequence, ..mmp(0) };
        assert_eq!(uberblock.mmp(), Some(bounded));
    }

    #[test]
    fn choosing() {
        let make = |txg, timestamp, sequence: u64| {
            let mut words = WORDS;
            (words[2], words[4], words[24]) = (txg, timestamp, sequence << 32 | 2);
            Uberblock::from_words(&words).unwrap()
        };
        let rows = [make(0, 99, 0), make(5, 1, 1), make(5, 1, 2), make(5, 1, 2), make(9, 0, 0)];
        let find = |max| best(rows.iter().copied().zip(0..), max).map(|(_, index)| index);
        assert_eq!(find(u64::MAX), Some(4));
        assert_eq!(find(8), Some(2));
        assert_eq!(find(4), None);
    }

    #[test]
    fn slots_by_ashift() {
        let rows = [(0, 1024, 128), (9, 1024, 128), (11, 2048, 64), (12, 4096, 32), (16, 8192, 16)];
        for (ashift, size, count) in rows {
            assert_eq!((slot_size(ashift), slot_count(ashift)), (size, count), "{ashift}");
        }
        assert_eq!(slot_offset(12, 31), Some(31 * 4096));
        assert_eq!(slot_offset(12, 32), None);
    }

    proptest! {
        #[test]
        fn any_bytes(mut bytes in proptest::collection::vec(any::<u8>(), 0..300), good: bool) {
            if good && bytes.len() >= 8 {
                bytes[..8].copy_from_slice(&UBERBLOCK_MAGIC.to_be_bytes());
            }
            if let Ok(uberblock) = Uberblock::decode(&bytes) {
                prop_assert_eq!(&uberblock.encode()[..], &bytes[..UBERBLOCK_LEN]);
                let _ = (uberblock.mmp(), uberblock.raidz_reflow(), uberblock.rank());
            }
        }
    }
}
