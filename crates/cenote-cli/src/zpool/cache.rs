//! Cache files: the configs of the pools that a host had imported (spec 01 §17).
//!
//! A native nvlist with a list per pool, by name. What is asked of it here is which pools there
//! are and where their devices were; the configs themselves come from the labels.

use std::path::{Path, PathBuf};

use cenote_ondisk::endian::Endian;
use cenote_ondisk::nvlist::{Encoding, NvList, NvValue};

use crate::io::Exit;

/// Vdevs within vdevs that are followed.
const DEPTH_MAX: usize = 16;

/// What a cache file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Cached {
    /// The pools.
    pub(super) guids: Vec<u64>,
    /// Their devices.
    pub(super) paths: Vec<PathBuf>,
}

/// Reads a cache file.
pub(super) fn read(file: &Path) -> Result<Cached, Exit> {
    let bytes = std::fs::read(file)
        .map_err(|_| Exit::failed("cannot import: failed to open cache file"))?;
    let list = NvList::decode(&bytes)
        .map_err(|_| Exit::failed("cannot import: invalid or corrupt cache file contents"))?;
    let mut cached = Cached::default();
    for (_, value) in list.iter() {
        let NvValue::List(config) = value else { continue };
        cached.guids.extend(config.u64("pool_guid"));
        if let Some(tree) = config.list("vdev_tree") {
            collect(tree, 0, &mut cached.paths);
        }
    }
    Ok(cached)
}

/// Adds a pool to a cache file, in the place of what the file says of it.
///
/// # Errors
/// Those of the file system.
pub(super) fn write(file: &Path, pool: &str, config: NvList) -> std::io::Result<()> {
    let known = std::fs::read(file).ok().and_then(|bytes| NvList::decode(&bytes).ok());
    let mut list = known.unwrap_or_default();
    list.insert(pool, config);
    let bytes = list.encode(Encoding::Native(Endian::Little));
    // In place of the old one at once: nobody finds half of it.
    let new = file.with_extension("tmp");
    std::fs::write(&new, bytes)?;
    std::fs::File::open(&new)?.sync_all()?;
    std::fs::rename(&new, file)
}

fn collect(vdev: &NvList, depth: usize, paths: &mut Vec<PathBuf>) {
    paths.extend(vdev.str("path").map(PathBuf::from));
    for kind in ["children", "spares", "l2cache"] {
        for child in vdev.list_array(kind).unwrap_or_default() {
            if depth < DEPTH_MAX {
                collect(child, depth + 1, paths);
            }
        }
    }
}
