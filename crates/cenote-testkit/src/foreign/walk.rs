//! The walk over all blocks below the root pointer, children first.
//!
//!     block(bp):  read, decompress
//!                 level > 0: each pointer in it -> block(..)
//!                 level 0:   dnodes and object sets by part, the rest by class
//!                 compress, put, checksum  -> the pointer's new words
//!
//! Snapshots and clones share blocks, and a block is rewritten once: it is identified by its first
//! address, type and physical birth.

use std::collections::BTreeMap;

use cenote_codec::compress::{self, Compression, zstd::ZstdLevel};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::endian::Endian;

use super::attributes::Layouts;
use super::history;
use super::seal;
use super::source::Source;
use super::swap::{self, Class, number};
use super::target::{self, Target};
use super::{Options, Order, Packing, Report};

/// Bit 63 of a property word: the block is little-endian.
const LITTLE: u64 = 1 << 63;
/// Object types and bonus kinds that are handled specially.
const OBJSET: u8 = 11;
const DSL_DATASET: u8 = 16;
const PACKED_NVLIST: u8 = 3;
const HISTORY: u8 = 29;
const FUID: u8 = 35;
/// Data that fits into a pointer.
const EMBEDDED_MAX: usize = 112;
/// The words of a pointer that hold embedded data.
const PAYLOAD_WORDS: [usize; 14] = [0, 1, 2, 3, 4, 5, 7, 8, 9, 11, 12, 13, 14, 15];

/// Rewrites blocks.
pub(super) struct Walk<'a> {
    pub(super) source: &'a Source,
    pub(super) target: Target,
    pub(super) options: Options,
    pub(super) report: Report,
    /// New words of pointers, by what identifies the block.
    known: BTreeMap<[u64; 4], [u64; 16]>,
    /// Attributes of the object set that is being walked.
    layouts: Layouts,
    /// Order of the block that is being written.
    order: Endian,
}

/// Content in its new form, ready to be written.
struct Packed {
    order: Endian,
    compression: u8,
    bytes: Vec<u8>,
    /// The MAC over the MACs in an indirect block.
    mac: Option<[u8; 16]>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(source: &'a Source, target: Target, options: Options) -> Self {
        let (report, known, layouts) = (Report::default(), BTreeMap::new(), Layouts::default());
        let order = Endian::Big;
        Self { source, target, options, report, known, layouts, order }
    }

    /// Rewrites the block behind a pointer, and all below it; gives the pointer's new words.
    pub(super) fn block(&mut self, bp: &BlockPtr) -> [u64; 16] {
        let words = *bp.words();
        if bp.is_redacted() || (bp.is_hole() && !bp.is_embedded()) {
            return words;
        }
        let identity = [words[0], words[1], bp.physical_birth(), words[6]];
        let known = if bp.is_embedded() { None } else { self.known.get(&identity) };
        if let Some(known) = known {
            // Births and fill belong to the reference, not to the block.
            let mut words = words;
            for index in [0, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15] {
                words[index] = known[index];
            }
            if bp.is_encrypted() {
                words[11] = known[11];
            }
            return words;
        }
        let stored = self.source.stored(bp);
        let little = Source::expand(bp, &stored);
        let order = self.order_of(&words);
        let outer = std::mem::replace(&mut self.order, order);
        let content = self.content(bp, &little);
        self.order = outer;
        let has_mac = bp.is_protected() && bp.level() > 0;
        let mac = has_mac.then(|| seal::indirect_mac(&content, order));
        let mut packed = self.pack(bp, order, stored, &little, content);
        packed.mac = mac;
        if bp.is_embedded() {
            return self.put_embedded(bp, packed);
        }
        let new = self.put(bp, words, packed);
        self.known.insert(identity, new);
        new
    }

    /// The order that a block gets, which depends on its pointer and the seed only.
    fn order_of(&self, words: &[u64; 16]) -> Endian {
        let Order::Mixed(seed) = self.options.order else { return Endian::Big };
        let mixed = words.iter().fold(seed, |mixed, word| {
            (mixed ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29)
        });
        if mixed.count_ones() % 2 == 0 { Endian::Little } else { Endian::Big }
    }

    fn content(&mut self, bp: &BlockPtr, little: &[u8]) -> Vec<u8> {
        let is_big = self.order == Endian::Big;
        self.report.little += u64::from(!is_big);
        if bp.level() > 0 {
            self.report.indirect += u64::from(is_big);
            return self.pointers(little);
        }
        let object_type = bp.object_type().0;
        let class = Class::of(object_type);
        *self.report.contents.entry(class).or_default() += u64::from(is_big);
        if self.options.forget == Some(class) && !matches!(class, Class::Dnodes | Class::ObjSet) {
            return little.to_vec();
        }
        match object_type {
            OBJSET => return self.objset(bp, little),
            _ if class == Class::Dnodes => return self.dnodes(little),
            _ => {}
        }
        let mut big = little.to_vec();
        match object_type {
            _ if !is_big => {}
            PACKED_NVLIST | FUID if big[..4] == [1, 1, 0, 0] => big[1] = 0,
            HISTORY => history::swap(&mut big),
            _ if class == Class::Attributes => self.layouts.swap(&mut big),
            _ => swap::content(&mut big, class),
        }
        big
    }

    /// Rewrites the blocks behind an array of pointers, and gives the array's new form.
    fn pointers(&mut self, little: &[u8]) -> Vec<u8> {
        let mut big = vec![0; little.len()];
        for (new, bp) in big.chunks_exact_mut(128).zip(BlockPtr::all_in(little)) {
            let words = self.block(&bp);
            target::put_words(self.order, new, &words);
        }
        big
    }

    fn objset(&mut self, bp: &BlockPtr, little: &[u8]) -> Vec<u8> {
        let has_files = number(&little[704..712]) == 2;
        let layouts = if has_files { Layouts::load(self.source, bp) } else { Layouts::default() };
        let outer = std::mem::replace(&mut self.layouts, layouts);
        let mut big = vec![0; little.len()];
        for start in [0, 1024, 1536, 2048] {
            if let Some(slot) = little.get(start..start + 512) {
                big[start..start + 512].copy_from_slice(&self.dnode(slot));
            }
        }
        // The intent log is dropped: its header stays zero. Behind type and flags are bytes.
        let mut tail = little[704..1024].to_vec();
        if self.is_swapped(Class::ObjSet) {
            swap::units(&mut tail[..16], 8);
        }
        big[704..1024].copy_from_slice(&tail);
        self.layouts = outer;
        if bp.is_protected() {
            self.source.keys.seal_objset(self.order, &mut big);
        }
        big
    }

    fn dnodes(&mut self, little: &[u8]) -> Vec<u8> {
        let mut big = Vec::with_capacity(little.len());
        while big.len() < little.len() {
            let rest = &little[big.len()..];
            let slots = if rest[0] == 0 { 1 } else { usize::from(rest[12]) + 1 };
            big.extend(self.dnode(&rest[..slots * 512]));
        }
        big
    }

    fn dnode(&mut self, little: &[u8]) -> Vec<u8> {
        if little[0] == 0 {
            return vec![0; little.len()];
        }
        self.report.dnodes += 1;
        let mut big = little.to_vec();
        let pointers_end = 64 + usize::from(little[3]) * 128;
        let has_spill = little[7] & 4 != 0;
        let bonus_end = little.len() - if has_spill { 128 } else { 0 };
        big[64..pointers_end].copy_from_slice(&self.pointers(&little[64..pointers_end]));
        if has_spill {
            self.report.spills += 1;
            big[bonus_end..].copy_from_slice(&self.pointers(&little[bonus_end..]));
        }
        let bonus_len = number(&little[10..12]) as usize;
        self.bonus(little[4], &mut big[pointers_end..bonus_end], bonus_len);
        if self.is_swapped(Class::Dnodes) {
            swap::units(&mut big[8..12], 2);
            swap::units(&mut big[16..32], 8);
        }
        big
    }

    fn bonus(&mut self, object_type: u8, area: &mut [u8], len: usize) {
        let class = Class::of(object_type);
        if len == 0 {
            return;
        }
        *self.report.contents.entry(class).or_default() += u64::from(self.order == Endian::Big);
        if self.options.forget == Some(class) {
            return;
        }
        let root = BlockPtr::at(area, 128).filter(|_| object_type == DSL_DATASET);
        let dir = number(&area[..8]);
        match class {
            Class::Attributes => self.layouts.swap(&mut area[..len]),
            _ if self.is_swapped(class) => swap::content(area, class),
            _ => {}
        }
        if let Some(root) = root {
            let outer = self.source.keys.enter(self.source, dir);
            let words = self.block(&root);
            self.source.keys.leave(outer);
            target::put_words(self.order, &mut area[128..256], &words);
        }
    }

    /// Whether content of this class is swapped in the current block.
    fn is_swapped(&self, class: Class) -> bool {
        self.order == Endian::Big && self.options.forget != Some(class)
    }

    /// Compresses content like the old one, unless everything is to be stored uncompressed.
    fn pack(
        &self,
        bp: &BlockPtr,
        order: Endian,
        stored: Vec<u8>,
        little: &[u8],
        content: Vec<u8>,
    ) -> Packed {
        let off = Compression::Off.id();
        let compression = bp.compression_id();
        if self.options.packing == Packing::Stored || compression == off {
            return Packed { order, compression: off, bytes: content, mac: None };
        }
        if little == content {
            return Packed { order, compression, bytes: stored, mac: None };
        }
        let function = Compression::from_id(compression).expect("a compression");
        let level = ZstdLevel::from_id(3).expect("a level");
        let mut bytes = vec![0; content.len()];
        match compress::compress(function, level, &content, &mut bytes) {
            Some(len) => {
                bytes.truncate(len);
                Packed { order, compression, bytes, mac: None }
            }
            None => Packed { order, compression: off, bytes: content, mac: None },
        }
    }

    /// Writes a block with its old number of copies; returns the pointer's new words.
    fn put(&mut self, bp: &BlockPtr, mut words: [u64; 16], packed: Packed) -> [u64; 16] {
        let off = Compression::Off.id();
        let tops: Vec<u64> = bp.dvas().map(|dva| u64::from(dva.vdev)).collect();
        let tops = if tops.is_empty() { vec![self.target.any_top()] } else { tops };
        let sector = self.sector_len(&tops);
        let Packed { order, compression, mut bytes, mac } = packed;
        if compression != off {
            bytes.resize(bytes.len().next_multiple_of(sector), 0);
        }
        let mac = mac.or_else(|| self.source.keys.seal(bp, order, &mut bytes));
        words[..6].fill(0);
        if self.options.gangs && !bp.is_protected() && bytes.len() > sector {
            self.put_gang(order, &tops, &mut words, &bytes);
        } else {
            for (index, top) in tops.iter().enumerate() {
                words[2 * index..2 * index + 2].copy_from_slice(&self.target.put(*top, &bytes));
            }
        }
        let sectors = bytes.len() as u64 / 512 - 1;
        words[6] &= !(LITTLE | 0xffff << 16 | 0x7f << 32);
        words[6] |= sectors << 16 | u64::from(compression) << 32 | order_bit(order);
        let id = (words[6] >> 40) as u8;
        let checksum = target::checksum(id, order, &bytes, self.source.salt.as_ref());
        seal::put_into(&mut words, bp, order, checksum, mac);
        self.report.bytes += bytes.len() as u64 * tops.len() as u64;
        words
    }

    /// Bytes of a sector of these top-level vdevs.
    pub(super) fn sector_len(&self, tops: &[u64]) -> usize {
        1 << tops.iter().map(|top| self.target.ashift(*top)).max().unwrap_or(9)
    }

    /// Embeds data into the pointer again, or writes a block if it has become too long.
    fn put_embedded(&mut self, bp: &BlockPtr, packed: Packed) -> [u64; 16] {
        let (lsize, mut words) = (bp.lsize(), [0; 16]);
        words[10] = bp.birth();
        let kind = bp.words()[6] & (0xff << 48);
        if packed.bytes.len() > EMBEDDED_MAX {
            self.report.disembedded += 1;
            words[6] = kind | 7 << 40 | (lsize / 512 - 1);
            words[11] = 1;
            return self.put(bp, words, packed);
        }
        self.report.embedded += 1;
        let psize = packed.bytes.len() as u64;
        words[6] = kind | 1 << 39 | u64::from(packed.compression) << 32;
        words[6] |= (psize - 1) << 25 | (lsize - 1) | order_bit(packed.order);
        for (index, bytes) in PAYLOAD_WORDS.iter().zip(packed.bytes.chunks(8)) {
            words[*index] = number(bytes);
        }
        words
    }
}

/// The bit of a property word for the order.
pub(super) fn order_bit(order: Endian) -> u64 {
    if order == Endian::Little { LITTLE } else { 0 }
}
