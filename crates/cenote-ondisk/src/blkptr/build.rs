//! Builds block pointers: for a written block, for embedded data, for a hole (spec 02 §1).
//!
//! This program writes only little-endian blocks without dedup, so B is set (except in holes), and
//! D and R are not. Each constructor returns `None` if a value does not fit its field: a size that
//! is not whole sectors, more addresses than slots, an object type above eight bits. Words that are
//! not set are zero.

use crate::blkptr::{
    BlockPtr, CHECKSUM, COMPRESSION, Dva, EMBEDDED_MAX, ENCRYPTED_FILL, ENCRYPTED_IV2, IS_EMBEDDED,
    IS_LITTLE_ENDIAN, IS_PROTECTED, LEVEL, LSIZE, PSIZE, SECTOR_SIZE, TYPE, embedded,
};
use crate::endian::Endian;
use crate::object_type::ObjectType;

/// Word of the property field.
const PROPERTY_WORD: usize = 6;
/// Word of the logical birth.
const BIRTH_WORD: usize = 10;
/// Word of the fill count.
const FILL_WORD: usize = 11;

/// How the pointer to a new block protects it (spec 08 §6).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NewProtection {
    /// Not at all: the object set is not encrypted.
    #[default]
    None,
    /// By MACs in the block: the root block of an encrypted object set.
    Root,
    /// By a MAC in the pointer, which leaves two words for the checksum. Salt and IV are stored
    /// only in the pointer to a level-0 block of an encrypted type.
    Sealed {
        /// Salt of the block's key.
        salt: [u8; 8],
        /// Initialisation vector.
        iv: [u8; 12],
        /// Authentication tag or MAC.
        mac: [u8; 16],
    },
    /// By a tag in the block, with salt and IV in the pointer: a block of an intent log, whose
    /// pointer identifies it by all four words of the checksum.
    Log {
        /// Salt of the block's key.
        salt: [u8; 8],
        /// Initialisation vector.
        iv: [u8; 12],
    },
}

/// Parameters of the pointer to a block with an address.
#[derive(Debug, Clone, Copy)]
pub struct NewBlock<'a> {
    /// Logical size in bytes.
    pub lsize: u64,
    /// Physical size in bytes.
    pub psize: u64,
    /// Type of its object.
    pub object_type: ObjectType,
    /// Level in the tree of its object.
    pub level: u8,
    /// Number of the compression function.
    pub compression: u8,
    /// Number of the checksum function.
    pub checksum_type: u8,
    /// Checksum words; of a sealed block only the first two are stored.
    pub checksum: [u64; 4],
    /// How the block is protected.
    pub protection: NewProtection,
    /// The addresses, one to three, or two if the pointer has salt and IV.
    pub dvas: &'a [Dva],
    /// Txg in which it is written.
    pub birth: u64,
    /// Number of blocks or dnodes below.
    pub fill: u64,
}

impl NewBlock<'_> {
    /// Builds the pointer.
    #[must_use]
    pub fn to_block_ptr(&self) -> Option<BlockPtr> {
        let mut words = [0; 16];
        for (pair, dva) in words.as_chunks_mut::<2>().0.iter_mut().zip(self.dvas) {
            *pair = dva.to_words()?;
        }
        let mut property = LSIZE.with(0, sectors_biased(self.lsize)?)?;
        property = PSIZE.with(property, sectors_biased(self.psize)?)?;
        property = COMPRESSION.with(property, self.compression.into())?;
        property = CHECKSUM.with(property, self.checksum_type.into())?;
        property = TYPE.with(property, self.object_type.0.into())?;
        property = LEVEL.with(property, self.level.into())?;
        property = IS_LITTLE_ENDIAN.with(property, 1)?;
        let is_protected = self.protection != NewProtection::None;
        let [.., w6, _, _, _, w10, w11, c0, c1, c2, c3] = &mut words;
        *w6 = IS_PROTECTED.with(property, u64::from(is_protected))?;
        (*w10, *w11) = (self.birth, self.fill);
        [*c0, *c1, *c2, *c3] = self.checksum;
        let bp = BlockPtr::from_words(words);
        if self.dvas.is_empty() || self.dvas.len() > bp.dva_slots() {
            return None;
        }
        match self.protection {
            NewProtection::Sealed { salt, iv, mac } => bp.with_mac(mac).with_cipher(salt, iv),
            NewProtection::Log { salt, iv } => bp.with_cipher(salt, iv),
            NewProtection::None | NewProtection::Root => Some(bp),
        }
    }
}

impl BlockPtr {
    /// A hole with a birth; `birth` 0 gives a hole that was never written.
    #[must_use]
    pub fn punched(lsize: u64, object_type: ObjectType, level: u8, birth: u64) -> Option<Self> {
        if birth == 0 {
            return Some(Self::HOLE);
        }
        let mut property = LSIZE.with(0, sectors_biased(lsize)?)?;
        property = TYPE.with(property, object_type.0.into())?;
        property = LEVEL.with(property, level.into())?;
        Some(Self::HOLE.with_word(PROPERTY_WORD, property).with_word(BIRTH_WORD, birth))
    }

    /// A pointer that embeds its level-0 block as `payload`, compressed by function `compression`.
    #[must_use]
    pub fn embedding(
        payload: &[u8],
        lsize: u64,
        compression: u8,
        object_type: ObjectType,
        birth: u64,
    ) -> Option<Self> {
        let mut bytes = [0; EMBEDDED_MAX];
        bytes.get_mut(..payload.len())?.copy_from_slice(payload);
        let mut words = [0; 16];
        let carriers = words.iter_mut().enumerate();
        let carriers = carriers.filter(|(index, _)| !matches!(*index, PROPERTY_WORD | BIRTH_WORD));
        for ((_, word), chunk) in carriers.zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*chunk);
        }
        let psize = u64::try_from(payload.len()).ok()?;
        let mut property = embedded::sizes(lsize, psize)?;
        property = COMPRESSION.with(property, compression.into())?;
        property = IS_EMBEDDED.with(property, 1)?;
        property = TYPE.with(property, object_type.0.into())?;
        property = IS_LITTLE_ENDIAN.with(property, 1)?;
        let block = Self::from_words(words);
        Some(block.with_word(PROPERTY_WORD, property).with_word(BIRTH_WORD, birth))
    }

    /// Returns the pointer with another fill count. Embedded pointers and holes store none and stay
    /// unchanged; in encrypted ones only the lower half is the count.
    #[must_use]
    pub fn with_fill(self, fill: u64) -> Self {
        if self.is_embedded() || self.is_hole() {
            return self;
        }
        let old = self.words.get(FILL_WORD).copied().unwrap_or_default();
        let word = if self.is_encrypted() { old & !0xffff_ffff | fill & 0xffff_ffff } else { fill };
        self.with_word(FILL_WORD, word)
    }

    /// Returns the pointer with a MAC in place of the second half of its checksum.
    fn with_mac(mut self, mac: [u8; 16]) -> Self {
        let [.., w14, w15] = &mut self.words;
        for (word, half) in [w14, w15].into_iter().zip(mac.as_chunks::<8>().0) {
            *word = Endian::Little.u64(*half);
        }
        self
    }

    /// Returns the pointer with salt and IV, if it has them; `None` if the fill count leaves no
    /// space for them.
    fn with_cipher(mut self, salt: [u8; 8], iv: [u8; 12]) -> Option<Self> {
        if !self.is_encrypted() {
            return Some(self);
        }
        let [_, _, _, _, w4, w5, .., w11, _, _, _, _] = &mut self.words;
        let (head, tail) = (*iv.first_chunk()?, *iv.last_chunk()?);
        (*w4, *w5) = (Endian::Little.u64(salt), Endian::Little.u64(head));
        let fill = ENCRYPTED_FILL.with(0, *w11)?;
        *w11 = ENCRYPTED_IV2.with(fill, Endian::Little.u32(tail).into())?;
        Some(self)
    }

    fn with_word(mut self, index: usize, value: u64) -> Self {
        if let Some(word) = self.words.get_mut(index) {
            *word = value;
        }
        self
    }
}

/// A size in whole sectors minus one, as stored in the property word.
fn sectors_biased(size: u64) -> Option<u64> {
    if !size.is_multiple_of(SECTOR_SIZE) {
        return None;
    }
    (size / SECTOR_SIZE).checked_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The root pointer of spec 02 §1.8.
    #[test]
    fn a_real_pointer_is_made_again() {
        let words = [
            1,
            0x12_c75c,
            1,
            0x14_bf5d,
            1,
            0x36db,
            0x800b_070f_0000_0007,
            0,
            0,
            0,
            0x112,
            0x87,
            0x9_faa0_9717,
            0x41a_690a_8468,
            0xdbf9_5d95_8062,
            0x1f_481d_f99f_0158,
        ];
        let real = BlockPtr::from_words(words);
        let dvas: Vec<Dva> = real.dvas().collect();
        let new = NewBlock {
            lsize: 4096,
            psize: 512,
            object_type: ObjectType::OBJSET,
            level: 0,
            compression: 15,
            checksum_type: 7,
            checksum: real.checksum(),
            protection: NewProtection::None,
            dvas: &dvas,
            birth: 0x112,
            fill: 0,
        };
        assert_eq!(new.to_block_ptr().map(|bp| bp.with_fill(0x87)), Some(real));
        assert_eq!(NewBlock { lsize: 4097, ..new }.to_block_ptr(), None);
        assert_eq!(NewBlock { psize: 0, ..new }.to_block_ptr(), None);
        assert_eq!(NewBlock { dvas: &[], ..new }.to_block_ptr(), None);
    }

    /// The pointer of spec 08 §18.
    #[test]
    fn a_real_encrypted_pointer_is_made_again() {
        let mut words = [0; 16];
        (words[0], words[1]) = (0x1_0000_0001, 0x507);
        (words[4], words[5]) = (0xd86f_6daf_cf93_daea, 0x1a18_fb9b_1c25_723a);
        (words[6], words[10], words[11]) = (0xa013_0702_0000_0000, 0x11, 0xac8d_2ef8_0000_0001);
        words[12..].copy_from_slice(&[
            0x2_7b61_e205_6774,
            0x50_79a3_88e9_f20f,
            0x0d2f_666a_e486_d9c7,
            0xd08c_3178_ab05_3b18,
        ]);
        let real = BlockPtr::from_words(words);
        let dvas: Vec<Dva> = real.dvas().collect();
        let sealed = NewProtection::Sealed { salt: real.salt(), iv: real.iv(), mac: real.mac() };
        let new = NewBlock {
            lsize: 512,
            psize: 512,
            object_type: ObjectType::PLAIN_FILE_CONTENTS,
            level: 0,
            compression: 2,
            checksum_type: 7,
            checksum: real.checksum(),
            protection: sealed,
            dvas: &dvas,
            birth: 0x11,
            fill: 1,
        };
        assert_eq!(new.to_block_ptr(), Some(real));
        // Salt and IV leave two slots, and a fill count of 32 bits.
        let three = [dvas[0], dvas[0], dvas[0]];
        assert_eq!(NewBlock { dvas: &three, ..new }.to_block_ptr(), None);
        assert_eq!(NewBlock { fill: 1 << 32, ..new }.to_block_ptr(), None);
        // Other types and levels have neither.
        let object_type = ObjectType::MASTER_NODE;
        let plain = NewBlock { dvas: &three, object_type, ..new }.to_block_ptr().expect("it fits");
        assert_eq!((plain.dva_count(), plain.mac(), plain.fill()), (3, real.mac(), 1));
    }

    #[test]
    fn embedded_data_comes_back() {
        for len in [1, 8, 28, 111, 112] {
            let payload: Vec<u8> = (1..=len).collect();
            let bp = BlockPtr::embedding(&payload, 512, 15, ObjectType::DSL_DIR_CHILD_MAP, 6)
                .expect("it fits");
            assert_eq!(bp.embedded_payload().expect("embedded").as_bytes(), payload);
            assert_eq!((bp.lsize(), bp.birth(), bp.physical_birth(), bp.fill()), (512, 6, 0, 1));
            assert_eq!(bp.validate(), Ok(()));
            assert_eq!(bp.with_fill(9), bp);
        }
        let property = BlockPtr::embedding(&[0; 28], 512, 15, ObjectType::DSL_DIR_CHILD_MAP, 6);
        assert_eq!(property.expect("it fits").words()[6], 0x800d_008f_3600_01ff);
        assert_eq!(BlockPtr::embedding(&[0; 113], 512, 15, ObjectType::NONE, 6), None);
    }

    #[test]
    fn holes_record_their_birth() {
        let hole = BlockPtr::punched(131_072, ObjectType::PLAIN_FILE_CONTENTS, 1, 9).expect("fits");
        assert!(hole.is_hole());
        let (lsize, level, birth) = (hole.lsize(), hole.level(), hole.birth());
        assert_eq!((lsize, level, birth, hole.words()[6] >> 63), (131_072, 1, 9, 0));
        assert_eq!(BlockPtr::punched(512, ObjectType::SA, 0, 0), Some(BlockPtr::HOLE));
    }
}
