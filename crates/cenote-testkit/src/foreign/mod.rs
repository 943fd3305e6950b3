//! Rewrites a pool as a big-endian host would have written it.
//!
//! There is no such golden pool, and no big-endian host to create one. So it is made from a
//! little-endian pool: each block that the active uberblock leads to is read, its content is
//! byte-swapped, and it is written to new images with the checksum, the pointer and the label of a
//! big-endian host. A reader must show the same contents for both pools:
//!
//! | part | becomes |
//! |---|---|
//! | blocks | content swapped by type, checksum over big-endian words, byte-order bit cleared |
//! | embedded data | the same in the pointer's payload, or a block if it does not fit any more |
//! | system attributes, history | swapped too, though they contain a mark of their order |
//! | packed nvlists | XDR as before; the header byte of the writer's order says big-endian |
//! | blocks under encryption | encrypted again, with new MACs in the pointers |
//! | intent logs | dropped, their headers empty |
//! | labels | trailers in words of that order, all uberblocks swapped |
//!
//! Structures that refer to blocks by address but not by pointer, such as deadlists, space maps and
//! dedup tables, are swapped but keep the old addresses: the result can be read, but its space
//! cannot be checked. Pools of disks and mirrors without gang blocks can be rewritten, encrypted
//! datasets with their keys.
//!
//! A pool that has moved between hosts has blocks of both orders, anywhere; [`Order::Mixed`] makes
//! such a pool. To check that a test detects errors, [`Options::forget`] leaves one class of
//! content unswapped.

mod attributes;
mod gang;
mod history;
pub(crate) mod seal;
pub(crate) mod source;
mod swap;
pub(crate) mod target;
mod walk;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

pub use swap::Class;

use seal::KeyRing;
use source::Source;
use target::Target;
use walk::Walk;

/// How the rewritten blocks are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Packing {
    /// Each with its old compression, if that makes it smaller.
    #[default]
    AsBefore,
    /// All uncompressed, and embedded in the pointer only if they are short enough.
    Stored,
}

/// Which blocks become big-endian. Labels and uberblocks do always.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Order {
    /// All.
    #[default]
    Big,
    /// About half of them, chosen by a seed: a pool that has moved between hosts.
    Mixed(u64),
}

/// Options of a rewrite.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Which blocks become big-endian.
    pub order: Order,
    /// How blocks are stored.
    pub packing: Packing,
    /// Whether blocks of more than a sector are split into gang blocks.
    pub gangs: bool,
    /// A class that is not swapped: an error that a test must detect.
    pub forget: Option<Class>,
}

/// Counts of the rewritten structures.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Level-0 blocks, including embedded ones, and bonus buffers that were swapped, by class.
    pub contents: BTreeMap<Class, u64>,
    /// Blocks that stayed little-endian.
    pub little: u64,
    /// Indirect blocks that were swapped.
    pub indirect: u64,
    /// Dnodes in use.
    pub dnodes: u64,
    /// Dnodes with a spill block.
    pub spills: u64,
    /// Pointers that hold their data.
    pub embedded: u64,
    /// Pointers whose data became a block.
    pub disembedded: u64,
    /// Blocks that were split.
    pub gangs: u64,
    /// Bytes written, all copies counted.
    pub bytes: u64,
}

/// Writes the pool in `images` as a big-endian host would have, to images of the same names in
/// `folder`.
pub fn rewrite(images: &[PathBuf], folder: &Path, options: Options) -> Report {
    rewrite_with_keys(images, folder, options, &[])
}

/// Rewrites a pool with encrypted datasets: `keys` are the contents of the key files.
pub fn rewrite_with_keys(
    images: &[PathBuf],
    folder: &Path,
    options: Options,
    keys: &[Vec<u8>],
) -> Report {
    let source = Source::open(images, KeyRing::new(keys));
    let target = Target::create(&source, folder);
    let mut walk = Walk::new(&source, target, options);
    let root = walk.block(&source.uberblock.rootbp);
    walk.target.put_labels(&source, &root);
    walk.report
}
