//! The walk over all that the root pointer leads to, children first.
//!
//!     block(bp):  read, decompress
//!                 level > 0: each pointer in it -> block(..)
//!                 level 0:   dnodes and object sets by part, the rest by class
//!                 compress, put, checksum  -> the pointer's new words
//!
//! Snapshots and clones share blocks, and a block is rewritten once: it is known again by its
//! first address, type and physical birth.

use std::collections::BTreeMap;

use cenote_codec::compress::{self, Compression, zstd::ZstdLevel};
use cenote_ondisk::blkptr::BlockPtr;

use super::attributes::Layouts;
use super::history;
use super::source::Source;
use super::swap::{self, Class, number};
use super::target::{self, Target};
use super::{Options, Packing, Report};

/// Bit 63 of a property word: the block is little-endian.
const LITTLE: u64 = 1 << 63;
/// Types and kinds with a meaning of their own here.
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
}

/// Content in its new form, ready to be put.
struct Packed {
    compression: u8,
    bytes: Vec<u8>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(source: &'a Source, target: Target, options: Options) -> Self {
        let (report, known, layouts) = (Report::default(), BTreeMap::new(), Layouts::default());
        Self { source, target, options, report, known, layouts }
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
            // Births and fill are the reference's own.
            let mut words = words;
            for index in [0, 1, 2, 3, 4, 5, 6, 12, 13, 14, 15] {
                words[index] = known[index];
            }
            return words;
        }
        let stored = self.source.stored(bp);
        let little = Source::expand(bp, &stored);
        let big = self.content(bp, &little);
        let packed = self.pack(bp, stored, &little, big);
        if bp.is_embedded() {
            return self.put_embedded(bp, packed);
        }
        let new = self.put(bp, words, packed);
        self.known.insert(identity, new);
        new
    }

    fn content(&mut self, bp: &BlockPtr, little: &[u8]) -> Vec<u8> {
        if bp.level() > 0 {
            self.report.indirect += 1;
            return self.pointers(little);
        }
        let object_type = bp.object_type().0;
        let class = Class::of(object_type);
        *self.report.contents.entry(class).or_default() += 1;
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
            target::put_words(new, &self.block(&bp));
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
        // The intent log is left behind: its header stays zero. Behind type and flags are bytes.
        let mut tail = little[704..1024].to_vec();
        if self.options.forget != Some(Class::ObjSet) {
            swap::units(&mut tail[..16], 8);
        }
        big[704..1024].copy_from_slice(&tail);
        self.layouts = outer;
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
        if self.options.forget != Some(Class::Dnodes) {
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
        *self.report.contents.entry(class).or_default() += 1;
        if self.options.forget == Some(class) {
            return;
        }
        let root = BlockPtr::at(area, 128).filter(|_| object_type == DSL_DATASET);
        match class {
            Class::Attributes => self.layouts.swap(&mut area[..len]),
            _ => swap::content(area, class),
        }
        if let Some(root) = root {
            target::put_words(&mut area[128..256], &self.block(&root));
        }
    }

    /// Compresses content as the old one was, unless all is to be stored as it is.
    fn pack(&self, bp: &BlockPtr, stored: Vec<u8>, little: &[u8], big: Vec<u8>) -> Packed {
        let off = Compression::Off.id();
        let compression = bp.compression_id();
        if self.options.packing == Packing::Stored || compression == off {
            return Packed { compression: off, bytes: big };
        }
        if little == big {
            return Packed { compression, bytes: stored };
        }
        let function = Compression::from_id(compression).expect("a compression");
        let level = ZstdLevel::from_id(3).expect("a level");
        let mut bytes = vec![0; big.len()];
        match compress::compress(function, level, &big, &mut bytes) {
            Some(len) => {
                bytes.truncate(len);
                Packed { compression, bytes }
            }
            None => Packed { compression: off, bytes: big },
        }
    }

    /// Writes a block to as many places as it had; gives the pointer's new words.
    fn put(&mut self, bp: &BlockPtr, mut words: [u64; 16], packed: Packed) -> [u64; 16] {
        let off = Compression::Off.id();
        let tops: Vec<u64> = bp.dvas().map(|dva| u64::from(dva.vdev)).collect();
        let tops = if tops.is_empty() { vec![self.target.any_top()] } else { tops };
        let ashift = tops.iter().map(|top| self.target.ashift(*top)).max().unwrap_or(9);
        let Packed { compression, mut bytes } = packed;
        if compression != off {
            bytes.resize(bytes.len().next_multiple_of(1 << ashift), 0);
        }
        words[..6].fill(0);
        for (index, top) in tops.iter().enumerate() {
            words[2 * index..2 * index + 2].copy_from_slice(&self.target.put(*top, &bytes));
        }
        let sectors = bytes.len() as u64 / 512 - 1;
        words[6] &= !(LITTLE | 0xffff << 16 | 0x7f << 32);
        words[6] |= sectors << 16 | u64::from(compression) << 32;
        let id = (words[6] >> 40) as u8;
        let checksum = target::checksum(id, &bytes, self.source.salt.as_ref());
        words[12..].copy_from_slice(&checksum);
        self.report.bytes += bytes.len() as u64 * tops.len() as u64;
        words
    }

    /// Puts data into the pointer again, or beside it if it has become too long.
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
        words[6] |= (psize - 1) << 25 | (lsize - 1);
        for (index, bytes) in PAYLOAD_WORDS.iter().zip(packed.bytes.chunks(8)) {
            words[*index] = number(bytes);
        }
        words
    }
}
