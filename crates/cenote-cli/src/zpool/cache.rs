//! Cache files: the configs of the pools that a host had imported (spec 01 §17).
//!
//! A native nvlist with a list per pool, by name. What is asked of it here is which pools there
//! are and where their devices were; the configs themselves come from the labels.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use cenote_ondisk::endian::Endian;
use cenote_ondisk::nvlist::{CorruptNvList, Encoding, NvList, NvValue};
use cenote_rt::stages;

use crate::io::Exit;

/// Vdevs within vdevs that are followed.
const DEPTH_MAX: usize = 16;

/// What a cache file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// The pools.
    pub guids: Vec<u64>,
    /// Their devices.
    pub paths: Vec<PathBuf>,
}

impl Cached {
    /// What one config says.
    pub(crate) fn of(config: &NvList) -> Self {
        let mut cached = Self::default();
        cached.add(config);
        cached
    }

    fn add(&mut self, config: &NvList) {
        self.guids.extend(config.u64("pool_guid"));
        if let Some(tree) = config.list("vdev_tree") {
            collect(tree, 0, &mut self.paths);
        }
    }

    /// Where the devices were: they may be there under other names.
    pub(crate) fn folders(&self) -> BTreeSet<&Path> {
        self.paths.iter().map(|path| folder(path)).collect()
    }
}

/// Reads a cache file.
pub fn read(file: &Path) -> Result<Cached, Exit> {
    let bytes = std::fs::read(file)
        .map_err(|_| Exit::failed("cannot import: failed to open cache file"))?;
    let list = decode(&bytes)
        .map_err(|_| Exit::failed("cannot import: invalid or corrupt cache file contents"))?;
    let mut cached = Cached::default();
    for (_, value) in list.iter() {
        if let NvValue::List(config) = value {
            cached.add(config);
        }
    }
    Ok(cached)
}

/// The config of one pool in a cache file; none if the file knows no such pool, or is not there.
///
/// # Errors
/// Those of the file system, and of a file that is something else.
pub(crate) fn config_of(file: &Path, pool: &str) -> std::io::Result<Option<NvList>> {
    Ok(known(file)?.list(pool).cloned())
}

/// Adds a pool to a cache file, in the place of what the file says of it.
///
/// # Errors
/// Those of the file system.
pub fn write(file: &Path, pool: &str, config: NvList) -> std::io::Result<()> {
    change(file, |list| list.insert(pool, config))
}

/// Takes a pool out of a cache file.
///
/// # Errors
/// Those of the file system.
pub fn remove(file: &Path, pool: &str) -> std::io::Result<()> {
    change(file, |list| list.remove(pool))
}

/// LOCK: held from the reading of a cache file to its replacement, with the flushes in between:
/// commands on different pools run at the same time, and each of them must be remembered.
static CHANGING: Mutex<()> = Mutex::new(());

fn change(file: &Path, edit: impl FnOnce(&mut NvList)) -> std::io::Result<()> {
    let _changing = CHANGING.lock().unwrap_or_else(PoisonError::into_inner);
    let mut list = known(file)?;
    let encode = |list: &NvList| list.encode(Encoding::Native(Endian::Little));
    let before = encode(&list);
    edit(&mut list);
    let bytes = encode(&list);
    if bytes == before {
        return Ok(());
    }
    // In place of the old one at once: nobody finds half of it.
    let new =
        PathBuf::from([file.as_os_str(), OsStr::new(".tmp")].into_iter().collect::<OsString>());
    let replaced = || {
        let mut text = File::create(&new)?;
        text.write_all(&bytes)?;
        stages::reach("cache-file-written");
        // DURABILITY: the contents before the name, and the name before anybody is told.
        text.sync_all()?;
        stages::reach("cache-file-synced");
        std::fs::rename(&new, file)
    };
    replaced().inspect_err(|_| {
        // On a full disk half a file must not keep space.
        let _ = std::fs::remove_file(&new);
    })?;
    stages::reach("cache-file-renamed");
    std::fs::File::open(folder(file))?.sync_all()
}

/// Whether a pool can be added to a cache file: what is there is one, or could be.
///
/// # Errors
/// Those of the file system, and of a file that is something else.
pub fn check(file: &Path) -> std::io::Result<()> {
    known(file)?;
    std::fs::read_dir(folder(file)).map(drop)
}

/// The pools that a cache file knows; none if it is not there.
fn known(file: &Path) -> std::io::Result<NvList> {
    match std::fs::read(file) {
        // What cannot be read must not be replaced: other pools are in it.
        Ok(bytes) => decode(&bytes).map_err(std::io::Error::other),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(NvList::new()),
        Err(error) => Err(error),
    }
}

/// A pool is in it once, whatever the list says of its names; what comes last counts.
fn decode(bytes: &[u8]) -> Result<NvList, CorruptNvList> {
    let mut list = NvList::new();
    for (name, value) in NvList::decode(bytes)?.iter() {
        list.insert(name.clone(), value.clone());
    }
    Ok(list)
}

fn folder(file: &Path) -> &Path {
    match file.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn config(guid: u64) -> NvList {
        let mut config = NvList::new();
        config.insert("pool_guid", guid);
        config
    }

    #[test]
    fn a_pool_is_remembered_once() {
        let file = std::env::temp_dir().join(format!("cenote-cache-{}", std::process::id()));
        for (pool, guid) in [("a", 1), ("b", 2), ("a", 3)] {
            write(&file, pool, config(guid)).unwrap();
        }
        assert_eq!(read(&file).unwrap().guids, [3, 2]);
        // A list that permits the same name twice.
        let mut list = NvList { flags: 0, ..NvList::new() };
        for guid in [4, 5] {
            list.insert("a", config(guid));
        }
        std::fs::write(&file, list.encode(Encoding::Native(Endian::Little))).unwrap();
        assert_eq!(read(&file).unwrap().guids, [5]);
        write(&file, "a", config(6)).unwrap();
        assert_eq!(read(&file).unwrap().guids, [6]);
        remove(&file, "a").unwrap();
        assert_eq!(read(&file).unwrap(), Cached::default());
        std::fs::remove_file(file).unwrap();
    }
}
