//! Reads the labels of all devices in some directories.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenMode};
use cenote_ondisk::label::DEVICE_SIZE_MIN;
use cenote_rt::{Error, Kind, Result, tunables};
use futures_util::StreamExt;

use super::candidate::Candidate;
use super::device::Found;

/// Where to search for pools.
#[derive(Debug, Clone, Default)]
pub struct ScanOptions {
    /// Devices, and directories of which every file and block device is read.
    pub paths: Vec<PathBuf>,
}

/// The result of a scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// Pools, in the order of listings.
    pub candidates: Vec<Candidate>,
    /// Requested paths that could not be read.
    pub failures: Vec<(PathBuf, Error)>,
}

/// Reasons why no pool was found by name or guid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FindError {
    /// There is no such pool.
    #[error("no such pool available")]
    NotFound,
    /// There are several pools with this name.
    #[error("more than one matching pool")]
    Ambiguous(Vec<u64>),
}

impl Scan {
    /// Returns the pool with this name, or this guid in decimal. A destroyed pool is found only if
    /// there is no other, because its name is free again.
    pub fn find(&self, name: &str) -> Result<&Candidate, FindError> {
        let matching = |candidate: &&Candidate| {
            candidate.name() == name || name.parse() == Ok(candidate.guid())
        };
        let mut matches: Vec<_> = self.candidates.iter().filter(matching).collect();
        if matches.len() > 1 {
            matches.retain(|candidate| !candidate.is_destroyed());
        }
        match matches[..] {
            [] => Err(FindError::NotFound),
            [only] => Ok(only),
            _ => Err(FindError::Ambiguous(matches.iter().map(|pool| pool.guid()).collect())),
        }
    }
}

/// Reads labels and groups the devices into pools. Unreadable devices are skipped, unless they were
/// requested by path.
pub async fn scan(options: &ScanOptions) -> Result<Scan> {
    let (mut devices, mut failures) = (Vec::new(), Vec::new());
    for path in &options.paths {
        match list(path).await {
            Ok(list) => devices.extend(list),
            Err(error) => failures.push((path.clone(), error)),
        }
    }
    devices.sort();
    devices.dedup();
    let concurrent = tunables::IMPORT_DEVICES.get_usize();
    let mut found: Vec<Arc<Found>> = futures_util::stream::iter(devices)
        .map(read)
        .buffered(concurrent)
        .filter_map(std::future::ready)
        .map(Arc::new)
        .collect()
        .await;
    // A file found in two directories is one device.
    found.dedup_by(|a, b| a.path == b.path);
    Ok(Scan { candidates: group(found), failures })
}

/// Groups opened devices into pools, like [`scan`].
pub async fn scan_devices(devices: Vec<Arc<dyn Device>>) -> Scan {
    let mut found = Vec::new();
    for device in devices {
        found.extend(Found::read(device).await.map(Arc::new));
    }
    Scan { candidates: group(found), failures: Vec::new() }
}

/// Returns the devices of a path: itself, or the contents of a directory.
async fn list(path: &Path) -> Result<Vec<PathBuf>> {
    let path = path.to_owned();
    cenote_rt::blocking(move || {
        let failed = |error: std::io::Error| {
            let kind = match error.kind() {
                std::io::ErrorKind::NotFound => Kind::NotFound,
                std::io::ErrorKind::PermissionDenied => Kind::Permission,
                _ => Kind::Io,
            };
            Error::new(kind, error).with_at(|at| at.device = Some(path.display().to_string()))
        };
        if !std::fs::metadata(&path).map_err(failed)?.is_dir() {
            return Ok(vec![path]);
        }
        let entries = std::fs::read_dir(&path).map_err(failed)?;
        Ok(entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
    })
    .await?
}

/// Reads the device at `path`; `None` if it has no usable label.
async fn read(path: PathBuf) -> Option<Found> {
    let opened = cenote_rt::blocking(move || {
        use std::os::unix::fs::FileTypeExt;
        let meta = std::fs::metadata(&path).ok()?;
        let is_device = meta.is_file() || meta.file_type().is_block_device();
        if !is_device || (meta.is_file() && meta.len() < DEVICE_SIZE_MIN) {
            return None;
        }
        FileDevice::open(&path, OpenMode::ReadOnly).ok()
    });
    let device = opened.await.ok()??;
    Found::read(device).await
}

/// Joins the devices of a pool whose guid was being changed when the host crashed: its labels have
/// two guids, on one device or on several. The newest label decides.
fn join_reguided(pools: &mut BTreeMap<u64, Vec<Arc<Found>>>) {
    let found = pools.values().flatten();
    let pairs: Vec<(u64, u64)> = found
        .flat_map(|found| {
            let own = found.pool_guid();
            found.other_guids.iter().filter_map(move |other| Some((own?, *other)))
        })
        .collect();
    for (own, other) in pairs {
        let newest = |guid| pools.get(guid)?.iter().map(|found| found.config.txg).max();
        let (to, from) = match (newest(&own), newest(&other)) {
            (Some(own_txg), Some(other_txg)) if own_txg < other_txg => (other, own),
            (Some(_), Some(_)) => (own, other),
            _ => continue,
        };
        let devices = pools.remove(&from).unwrap_or_default();
        pools.entry(to).or_default().extend(devices);
    }
}

/// Gives devices back to the pool from which another one was being split when the host crashed: no
/// uberblock of the new pool is on any of them.
fn undo_splits(pools: &mut BTreeMap<u64, Vec<Arc<Found>>>, order: &mut Vec<u64>) {
    let is_begun = |devices: &Vec<Arc<Found>>| {
        let txg = devices.iter().map(|found| found.config.txg).max();
        let uberblocks = devices.iter().flat_map(|found| &found.uberblocks);
        uberblocks.map(|uberblock| uberblock.txg).max() < txg
            && devices.iter().any(|found| found.before_split.is_some())
    };
    let undone = pools.iter().filter(|(_, devices)| is_begun(devices)).map(|(guid, _)| *guid);
    for guid in undone.collect::<Vec<_>>() {
        let (given, kept): (Vec<_>, Vec<_>) = pools
            .remove(&guid)
            .unwrap_or_default()
            .into_iter()
            .partition(|found| found.before_split.is_some());
        if !kept.is_empty() {
            pools.insert(guid, kept);
        }
        for found in given.iter().filter_map(|found| found.before_split.as_ref()) {
            let Some(owner) = found.pool_guid() else { continue };
            if !pools.contains_key(&owner) {
                order.insert(0, owner);
            }
            pools.entry(owner).or_default().push(Arc::clone(found));
        }
    }
}

/// Groups devices into pools. As in OpenZFS's listings, the pool whose first device comes last is
/// first.
fn group(found: Vec<Arc<Found>>) -> Vec<Candidate> {
    let mut order: Vec<u64> = Vec::new();
    let mut pools: BTreeMap<u64, Vec<Arc<Found>>> = BTreeMap::new();
    let mut others = Vec::new();
    for device in found {
        match device.pool_guid() {
            None => others.push(device),
            Some(pool) => {
                if !pools.contains_key(&pool) {
                    order.insert(0, pool);
                }
                pools.entry(pool).or_default().push(device);
            }
        }
    }
    undo_splits(&mut pools, &mut order);
    join_reguided(&mut pools);
    order.retain(|pool| pools.contains_key(pool));
    let merge = |pool: &u64| Candidate::merge(pools.remove(pool)?, others.clone());
    order.iter().filter_map(merge).collect()
}
