//! Consistent but wrong blocks: changes the content of a block, and all checksums above it.
//!
//!     uberblock ── MOS ── dnodes ── dataset ── object set ── dnodes ── indirect ── block
//!         ^─────────────── checksums, written over the old blocks, up to here ──────'
//!
//! Blocks keep their places and sizes, so that space maps remain right; the new content has to fit.
//! All copies and mirror halves are written. Works for pools of disks and mirrors, and for blocks
//! that are neither encrypted, ganged nor embedded.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use cenote_codec::checksum::{self, ChecksumAlgorithm};
use cenote_codec::compress::{self, Compression, ZstdLevel};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::label::{LABEL_COUNT, LABEL_START_LEN};
use cenote_ondisk::uberblock;

use crate::foreign::seal::KeyRing;
use crate::foreign::source::Source;
use crate::foreign::target;

/// Bytes of a block pointer.
const POINTER: usize = 128;
/// Bytes of a dnode before its pointers.
const DNODE_HEAD: usize = 64;
/// Where the root pointer is in a dataset's bonus buffer.
const DATASET_ROOT: usize = 128;

/// An object set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Set {
    /// The meta object set.
    Mos,
    /// The object set of the dataset or snapshot in this object.
    Dataset(u64),
}

/// A pool that is being edited.
pub struct Editor {
    source: Source,
}

/// The path to a pointer: its place in the root block, in the block below, and so on.
type Way = Vec<usize>;

impl Editor {
    /// Opens the pool in these images for editing; the images are written.
    pub fn open(images: &[PathBuf]) -> Self {
        Self { source: Source::open(images, KeyRing::new(&[])) }
    }

    /// Data block `blkid` of an object.
    pub fn read(&self, set: Set, object: u64, blkid: u64) -> Vec<u8> {
        self.content(&self.find(set, object, blkid).1)
    }

    /// Changes data block `blkid` of an object; object 0 has the dnodes.
    pub fn change(&mut self, set: Set, object: u64, blkid: u64, change: impl FnOnce(&mut [u8])) {
        let (way, _) = self.find(set, object, blkid);
        self.rewrite(&way, change);
    }

    /// Changes the bonus buffer of an object, from its first byte to the end of the dnode.
    pub fn change_bonus(&mut self, set: Set, object: u64, change: impl FnOnce(&mut [u8])) {
        self.change(set, 0, object / 32, |dnodes| {
            let dnode = &mut dnodes[(object % 32) as usize * 512..][..512];
            let start = DNODE_HEAD + dnode_pointers_len(dnode);
            change(&mut dnode[start..]);
        });
    }

    /// Replaces the pointer to data block `blkid` of an object by `to`.
    pub fn redirect(&mut self, set: Set, object: u64, blkid: u64, to: &BlockPtr) {
        let (mut way, _) = self.find(set, object, blkid);
        let at = way.pop().expect("a way");
        self.rewrite(&way, |block| block[at..at + POINTER].copy_from_slice(&to.to_bytes()));
    }

    fn content(&self, bp: &BlockPtr) -> Vec<u8> {
        assert!(!bp.is_hole() && !bp.is_embedded(), "no block to be edited: {}", bp.verbose());
        Source::expand(bp, &self.source.stored(bp))
    }

    fn find(&self, set: Set, object: u64, blkid: u64) -> (Way, BlockPtr) {
        let mut way = Way::new();
        let mut root = self.content(&self.source.uberblock.rootbp);
        if let Set::Dataset(dataset) = set {
            let dnodes = self.content(&self.descend(&root, 0, dataset / 32, &mut way));
            let base = (dataset % 32) as usize * 512;
            let at = base + DNODE_HEAD + dnode_pointers_len(&dnodes[base..]) + DATASET_ROOT;
            way.push(at);
            root = self.content(&BlockPtr::at(&dnodes, at).expect("a root pointer"));
        }
        if object == 0 {
            let bp = self.descend(&root, 0, blkid, &mut way);
            return (way, bp);
        }
        let dnodes = self.content(&self.descend(&root, 0, object / 32, &mut way));
        let bp = self.descend(&dnodes, (object % 32) as usize * 512, blkid, &mut way);
        (way, bp)
    }

    /// Finds the pointer of a data block, starting from the dnode at `base`.
    fn descend(&self, block: &[u8], base: usize, blkid: u64, way: &mut Way) -> BlockPtr {
        let dnode = DnodePhys::decode(&block[base..]).expect("a dnode").expect("in use");
        let fan_out = u32::from(dnode.indblkshift) - 7;
        let top = u32::from(dnode.nlevels) - 1;
        let mut at = base + DNODE_HEAD + (blkid >> (fan_out * top)) as usize * POINTER;
        let mut bp = BlockPtr::at(block, at).expect("a pointer");
        way.push(at);
        for level in (0..top).rev() {
            let index = blkid >> (fan_out * level) & ((1 << fan_out) - 1);
            at = index as usize * POINTER;
            bp = BlockPtr::at(&self.content(&bp), at).expect("a pointer");
            way.push(at);
        }
        bp
    }

    /// Changes the block at the end of a path, and all blocks on the path.
    fn rewrite(&mut self, way: &[usize], change: impl FnOnce(&mut [u8])) {
        let mut pointers = vec![self.source.uberblock.rootbp];
        let mut blocks = vec![self.content(&pointers[0])];
        for (at, depth) in way.iter().zip(0..) {
            let blocks_above: &Vec<u8> = &blocks[depth];
            let bp = BlockPtr::at(blocks_above, *at).expect("a pointer");
            blocks.push(self.content(&bp));
            pointers.push(bp);
        }
        change(blocks.last_mut().expect("a block"));
        let mut places = way.iter().rev();
        while let (Some(bp), Some(block)) = (pointers.pop(), blocks.pop()) {
            let new = self.store(&bp, &block);
            match (blocks.last_mut(), places.next()) {
                (Some(above), Some(at)) => {
                    above[*at..*at + POINTER].copy_from_slice(&new.to_bytes());
                }
                _ => self.put_root(new),
            }
        }
    }

    /// Writes a block over its old copies; gives the new pointer.
    fn store(&self, bp: &BlockPtr, block: &[u8]) -> BlockPtr {
        assert!(!bp.is_protected(), "an encrypted block");
        let compression = Compression::from_id(bp.compression_id()).expect("a compression");
        let level = ZstdLevel::from_id(3).expect("a level");
        let mut bytes = vec![0; block.len()];
        let len = compress::compress(compression, level, block, &mut bytes);
        let room = bp.psize() as usize;
        assert!(len.is_some_and(|len| len <= room), "{len:?} bytes: {}", bp.verbose());
        bytes.truncate(len.unwrap_or(0));
        bytes.resize(room, 0);
        let algorithm = ChecksumAlgorithm::from_id(bp.checksum_id()).expect("a checksum");
        let sum = checksum::compute(algorithm, &bytes, false, self.source.salt.as_ref());
        let mut words = *bp.words();
        words[12..].copy_from_slice(&sum.expect("the salt"));
        for dva in bp.dvas() {
            for device in &self.source.tops[&u64::from(dva.vdev)] {
                self.write(*device, dva.offset + LABEL_START_LEN, &bytes);
            }
        }
        BlockPtr::from_words(words)
    }

    /// Puts a new root pointer into the active uberblock.
    fn put_root(&mut self, root: BlockPtr) {
        for (index, device) in self.source.devices.iter().enumerate() {
            for label in 0..LABEL_COUNT {
                let offset = device.label_offset(label);
                for (at, found) in device.uberblocks(label) {
                    if found.txg != self.source.uberblock.txg {
                        continue;
                    }
                    let len = uberblock::slot_size(device.ashift) as usize;
                    let mut slot = device.labels[label][at as usize..][..len].to_vec();
                    slot[40..40 + POINTER].copy_from_slice(&root.to_bytes());
                    target::seal(Endian::Little, &mut slot, [offset + at, 0, 0, 0]);
                    self.write(index, offset + at, &slot);
                }
            }
        }
        self.source.uberblock.rootbp = root;
    }

    fn write(&self, device: usize, at: u64, bytes: &[u8]) {
        let path = &self.source.devices[device].path;
        let file = OpenOptions::new().write(true).open(path);
        let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        file.write_all_at(bytes, at).expect("a block is written");
    }
}

/// Bytes of the pointers of the dnode that `bytes` begins with.
fn dnode_pointers_len(bytes: &[u8]) -> usize {
    usize::from(bytes[3]) * POINTER
}
