//! Cache files: the configs of the pools that a host has imported (spec 01 §17).
//!
//! A native nvlist with one nested list per pool, by name. Only the pools and the paths of their
//! devices are read from it here; the configs themselves come from the labels.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};

use cenote_ondisk::config::PoolConfig;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::nvlist::{CorruptNvList, Encoding, NvList, NvValue};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::stages;
use rustix::fs::{Mode, OFlags};

use crate::io::Exit;

/// Maximum depth of nested vdevs.
const DEPTH_MAX: usize = 16;

/// The pools and devices in a cache file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Cached {
    /// Guids of the pools.
    pub guids: Vec<u64>,
    /// Paths of their devices.
    pub paths: Vec<PathBuf>,
}

impl Cached {
    /// Returns the pool and devices of one config.
    #[must_use]
    pub fn of(config: &NvList) -> Self {
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

    /// Returns the folders of the devices, which may be there under other names.
    pub(crate) fn folders(&self) -> BTreeSet<&Path> {
        self.paths.iter().map(|path| folder(path)).collect()
    }
}

fn list(file: &Path) -> Result<NvList, Exit> {
    let bytes =
        contents(file).map_err(|_| Exit::failed("cannot import: failed to open cache file"))?;
    decode(&bytes)
        .map_err(|_| Exit::failed("cannot import: invalid or corrupt cache file contents"))
}

/// Reads a cache file.
pub fn read(file: &Path) -> Result<Cached, Exit> {
    let mut cached = Cached::default();
    for (_, value) in list(file)?.iter() {
        if let NvValue::List(config) = value {
            cached.add(config);
        }
    }
    Ok(cached)
}

/// The whole configs in a cache file.
#[derive(Debug, Default)]
pub struct Recorded {
    /// The configs.
    pub pools: Vec<PoolConfig>,
    /// Names of pools whose configs cannot be decoded.
    pub unread: Vec<String>,
}

/// Returns the configs of the pools in a cache file.
pub fn pools(file: &Path) -> Result<Recorded, Exit> {
    let mut recorded = Recorded::default();
    for (name, value) in list(file)?.iter() {
        let NvValue::List(config) = value else { continue };
        match PoolConfig::decode(config.clone()) {
            Ok(config) => recorded.pools.push(config),
            Err(_) => recorded.unread.push(name.to_str().unwrap_or_default().to_owned()),
        }
    }
    Ok(recorded)
}

/// Returns the config of one pool in a cache file; `None` if the pool or the file does not exist.
///
/// # Errors
/// Errors of the file system; an error if the file is not a cache file.
pub(crate) fn config_of(file: &Path, pool: &str) -> std::io::Result<Option<NvList>> {
    Ok(known(file)?.list(pool).cloned())
}

/// Adds a pool to a cache file, replacing the previous entry of that name.
///
/// # Errors
/// Errors of the file system.
pub fn write(file: &Path, pool: &str, config: NvList) -> std::io::Result<()> {
    change(file, |list| list.insert(pool, config))
}

/// Removes a pool from a cache file.
///
/// # Errors
/// Errors of the file system.
pub fn remove(file: &Path, pool: &str) -> std::io::Result<()> {
    change(file, |list| list.remove(pool))
}

/// Removes the pool with this guid from a cache file.
///
/// # Errors
/// Errors of the file system.
pub fn remove_pool(file: &Path, guid: u64) -> std::io::Result<()> {
    change(file, |list| {
        let is_pool = |value: &NvValue| match value {
            NvValue::List(config) => config.u64("pool_guid") == Some(guid),
            _ => false,
        };
        let names = list.iter().filter(|(_, value)| is_pool(value)).map(|(name, _)| name.clone());
        for name in names.collect::<Vec<_>>() {
            list.remove(name.to_str().unwrap_or_default());
        }
    })
}

/// LOCK: held from reading a cache file to replacing it, including the flushes: commands on
/// different pools run concurrently, and each of their pools must be recorded.
static CHANGING: Mutex<()> = Mutex::new(Rank::CacheFile, ());

fn change(file: &Path, edit: impl FnOnce(&mut NvList)) -> std::io::Result<()> {
    let _changing = CHANGING.lock();
    let mut list = known(file)?;
    let encode = |list: &NvList| list.encode(Encoding::Native(Endian::Little));
    let before = encode(&list);
    edit(&mut list);
    let bytes = encode(&list);
    if bytes == before {
        return Ok(());
    }
    // Replaced atomically: readers never see half of it.
    let new =
        PathBuf::from([file.as_os_str(), OsStr::new(".tmp")].into_iter().collect::<OsString>());
    let replaced = || {
        let mut text = File::create(&new)?;
        text.write_all(&bytes)?;
        stages::reach("cache-file-written");
        // DURABILITY: the contents before the name, and the name before the command reports
        // success.
        text.sync_all()?;
        stages::reach("cache-file-synced");
        std::fs::rename(&new, file)
    };
    replaced().inspect_err(|_| {
        // A partly written file must not take up space on a full disk.
        let _ = std::fs::remove_file(&new);
    })?;
    stages::reach("cache-file-renamed");
    std::fs::File::open(folder(file))?.sync_all()
}

/// Checks that a pool can be added to a cache file: the file is a cache file, or can be created.
///
/// # Errors
/// Errors of the file system; an error if the file is something else.
pub fn check(file: &Path) -> std::io::Result<()> {
    known(file)?;
    std::fs::read_dir(folder(file)).map(drop)
}

/// Returns the pools in a cache file; none if it does not exist.
fn known(file: &Path) -> std::io::Result<NvList> {
    match contents(file) {
        // A file that cannot be parsed must not be replaced: it may list other pools.
        Ok(bytes) => decode(&bytes).map_err(std::io::Error::other),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(NvList::new()),
        Err(error) => Err(error),
    }
}

/// Returns the bytes of a cache file. A pipe or device is refused: reading it could block every
/// command that changes a cache file.
fn contents(file: &Path) -> std::io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let mut file = File::from(rustix::fs::open(file, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(std::io::Error::new(ErrorKind::InvalidInput, "not a regular file"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Each pool is kept once, even if the list has duplicate names; the last entry wins.
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
    fn cachefile_has_each_pool_once() {
        let file = std::env::temp_dir().join(format!("cenote-cache-{}", std::process::id()));
        for (pool, guid) in [("a", 1), ("b", 2), ("a", 3)] {
            write(&file, pool, config(guid)).unwrap();
        }
        assert_eq!(read(&file).unwrap().guids, [3, 2]);
        // A list that permits duplicate names.
        let mut list = NvList { flags: 0, ..NvList::new() };
        for guid in [4, 5] {
            list.insert("a", config(guid));
        }
        std::fs::write(&file, list.encode(Encoding::Native(Endian::Little))).unwrap();
        assert_eq!(read(&file).unwrap().guids, [5]);
        write(&file, "a", config(6)).unwrap();
        assert_eq!(read(&file).unwrap().guids, [6]);
        write(&file, "b", config(7)).unwrap();
        remove_pool(&file, 6).unwrap();
        assert_eq!(read(&file).unwrap().guids, [7]);
        remove_pool(&file, 8).unwrap();
        remove(&file, "b").unwrap();
        assert_eq!(read(&file).unwrap(), Cached::default());
        std::fs::remove_file(&file).unwrap();
        // A pipe without a writer does not block.
        rustix::fs::mknodat(rustix::fs::CWD, &file, rustix::fs::FileType::Fifo, Mode::RUSR, 0)
            .unwrap();
        let error = write(&file, "a", config(9)).unwrap_err();
        assert_eq!(error.to_string(), "not a regular file");
        std::fs::remove_file(file).unwrap();
    }
}
