//! A pool as a big-endian host would have written it.
//!
//! There is no such pool among the golden ones, and no such host to make one. So one is made of a
//! little-endian pool: each block that the active uberblock leads to is read, its content turned,
//! and written to fresh images with the checksum, the pointer and the label of a big-endian host.
//! What a reader shows of the two pools must be the same:
//!
//! | part | becomes |
//! |---|---|
//! | blocks | content turned by type, checksum over big-endian words, byte-order bit cleared |
//! | embedded data | the same in the pointer's payload, or a block if it does not fit any more |
//! | system attributes, history | turned too, though they tell their order themselves |
//! | packed nvlists | XDR as before; the writer's byte in front says big-endian |
//! | blocks under encryption | sealed anew, MACs and what goes with them in the pointers |
//! | intent logs | left behind, their headers empty |
//! | labels | trailers in words of that order, all uberblocks turned |
//!
//! What refers to blocks without leading to them, such as deadlists, space maps and dedup tables,
//! is turned but still has the old addresses: the result is for reading, not for checking space.
//! Pools of disks and mirrors without gang blocks can be rewritten, encrypted datasets with their
//! keys.
//!
//! A pool that has moved between hosts has blocks of both orders, anywhere; [`Order::Mixed`] makes
//! such a one. To see that a test would notice, [`Options::forget`] leaves one class of content as
//! it was.

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
    /// Each with the compression that it had, as far as it helps.
    #[default]
    AsBefore,
    /// All uncompressed, and none in its pointer unless it is that short.
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

/// What to do.
#[derive(Debug, Clone, Copy, Default)]
pub struct Options {
    /// Which blocks become big-endian.
    pub order: Order,
    /// How blocks are stored.
    pub packing: Packing,
    /// Whether blocks of more than a sector are split into gang blocks.
    pub gangs: bool,
    /// A class that is left as it was: a bug that a test must notice.
    pub forget: Option<Class>,
}

/// What was rewritten.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Level-0 blocks, embedded ones too, and bonus buffers that were turned, by class.
    pub contents: BTreeMap<Class, u64>,
    /// Blocks that stayed little-endian.
    pub little: u64,
    /// Blocks of pointers that were turned.
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

/// The same for a pool with encrypted datasets: `keys` are the contents of the key files.
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
