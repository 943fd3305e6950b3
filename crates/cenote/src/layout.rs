//! The devices and the redundancy of a new pool.

use std::path::{Path, PathBuf};

use cenote_engine::create::{LeafSpec, PoolLayout, Redundancy, TopSpec, VdevClass};
use cenote_ondisk::config::PoolState;
use cenote_pool::import::PoolDevice;
use cenote_rt::{Error, Kind, Result};

/// Minimum size of a device, as in OpenZFS's tools.
const DEVICE_SIZE_MIN: u64 = 64 << 20;

/// The devices of a new pool: block devices, or files.
///
/// Calls add top-level vdevs; the pool stripes data over those of the normal class.
///
/// ```
/// use cenote::Layout;
/// // Two mirrors, and a mirrored log on faster devices.
/// let layout = Layout::mirror(["/dev/sda", "/dev/sdb"])
///     .and_mirror(["/dev/sdc", "/dev/sdd"])
///     .with_log(["/dev/nvme0n1p1", "/dev/nvme1n1p1"]);
/// # let _ = layout;
/// ```
#[derive(Debug, Clone, Default)]
pub struct Layout {
    groups: Vec<Group>,
    spares: Vec<PathBuf>,
    file_size: Option<u64>,
}

/// One top-level vdev.
#[derive(Debug, Clone)]
struct Group {
    redundancy: Redundancy,
    class: VdevClass,
    paths: Vec<PathBuf>,
}

/// Reasons to refuse a layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum BadLayout {
    #[error("a pool needs at least one vdev for data")]
    NoData,
    #[error("{kind} needs at least {least} devices, {found} given")]
    TooFew { kind: String, least: u64, found: usize },
    #[error("device {0} is named twice")]
    Twice(String),
    #[error("device {path} has {size} bytes, at least {DEVICE_SIZE_MIN} are needed")]
    TooSmall { path: String, size: u64 },
    #[error("device {path} is part of {state} pool '{pool}'")]
    InUse { path: String, state: &'static str, pool: String },
    #[error("path {0} holds a NUL byte")]
    Path(String),
}

impl From<BadLayout> for Error {
    fn from(cause: BadLayout) -> Self {
        let kind =
            if matches!(cause, BadLayout::InUse { .. }) { Kind::Busy } else { Kind::Invalid };
        Self::new(kind, cause)
    }
}

impl Layout {
    /// A stripe over devices without redundancy.
    #[must_use]
    pub fn stripe<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        paths.into_iter().fold(Self::default(), |layout, path| {
            layout.and(Redundancy::Single, VdevClass::Normal, [path])
        })
    }

    /// A mirror: every device has all data.
    #[must_use]
    pub fn mirror<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Self {
        Self::default().and_mirror(paths)
    }

    /// RAID-Z with the parity of `parity` (1 to 3) devices: as many devices may fail.
    #[must_use]
    pub fn raidz<P: AsRef<Path>>(parity: u8, paths: impl IntoIterator<Item = P>) -> Self {
        Self::default().and_raidz(parity, paths)
    }

    /// Adds a mirror.
    #[must_use]
    pub fn and_mirror<P: AsRef<Path>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.and(Redundancy::Mirror, VdevClass::Normal, paths)
    }

    /// Adds a RAID-Z vdev.
    #[must_use]
    pub fn and_raidz<P: AsRef<Path>>(self, parity: u8, paths: impl IntoIterator<Item = P>) -> Self {
        self.and(Redundancy::Raidz(parity.into()), VdevClass::Normal, paths)
    }

    /// Adds a log vdev for synchronous writes; more than one device is a mirror.
    #[must_use]
    pub fn with_log<P: AsRef<Path>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.and_single_or_mirror(VdevClass::Log, paths)
    }

    /// Adds a vdev for metadata (allocation class `special`); more than one device is a mirror.
    #[must_use]
    pub fn with_special<P: AsRef<Path>>(self, paths: impl IntoIterator<Item = P>) -> Self {
        self.and_single_or_mirror(VdevClass::Special, paths)
    }

    /// Adds hot spares.
    #[must_use]
    pub fn with_spares<P: AsRef<Path>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        self.spares.extend(paths.into_iter().map(|path| path.as_ref().to_owned()));
        self
    }

    /// Creates paths that do not exist as sparse files of this size when the pool is created.
    #[must_use]
    pub fn file_size(mut self, bytes: u64) -> Self {
        self.file_size = Some(bytes);
        self
    }

    fn and_single_or_mirror<P: AsRef<Path>>(
        self,
        class: VdevClass,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        let paths: Vec<P> = paths.into_iter().collect();
        let redundancy = if paths.len() == 1 { Redundancy::Single } else { Redundancy::Mirror };
        self.and(redundancy, class, paths)
    }

    fn and<P: AsRef<Path>>(
        mut self,
        redundancy: Redundancy,
        class: VdevClass,
        paths: impl IntoIterator<Item = P>,
    ) -> Self {
        let paths = paths.into_iter().map(|path| path.as_ref().to_owned()).collect();
        self.groups.push(Group { redundancy, class, paths });
        self
    }

    /// Checks the layout.
    fn check(&self) -> Result<(), BadLayout> {
        if !self.groups.iter().any(|group| group.class == VdevClass::Normal) {
            return Err(BadLayout::NoData);
        }
        for group in &self.groups {
            let least = match group.redundancy {
                Redundancy::Raidz(parity) => parity + 1,
                Redundancy::Mirror => 2,
                _ => 1,
            };
            let found = group.paths.len();
            if (found as u64) < least {
                return Err(BadLayout::TooFew { kind: group.redundancy.to_string(), least, found });
            }
        }
        let mut paths: Vec<_> = self.paths().collect();
        paths.sort();
        match paths.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(BadLayout::Twice(pair[0].display().to_string())),
            None => Ok(()),
        }
    }

    /// Returns every path, vdevs first.
    fn paths(&self) -> impl Iterator<Item = &PathBuf> {
        self.groups.iter().flat_map(|group| &group.paths).chain(&self.spares)
    }

    /// Creates missing files, and opens and locks all devices. With `force`, devices of pools that
    /// are not open are taken over.
    pub(crate) async fn open(&self, force: bool) -> Result<Devices> {
        self.check()?;
        let (mut specs, mut opened) = (Vec::new(), Vec::new());
        for path in self.paths() {
            let (spec, device) = open(path, self.file_size, force).await?;
            specs.push(spec);
            opened.push(device);
        }
        let mut specs = specs.into_iter();
        let tops = self.groups.iter().map(|group| TopSpec {
            redundancy: group.redundancy,
            class: group.class,
            leaves: specs.by_ref().take(group.paths.len()).collect(),
        });
        let tops = tops.collect();
        let layout = PoolLayout { tops, spares: specs.collect(), ..PoolLayout::default() };
        Ok(Devices { layout, opened })
    }
}

/// The devices of a layout.
pub(crate) struct Devices {
    /// Their vdevs.
    pub(crate) layout: PoolLayout,
    /// The devices, locked.
    pub(crate) opened: Vec<PoolDevice>,
}

async fn open(path: &Path, file_size: Option<u64>, force: bool) -> Result<(LeafSpec, PoolDevice)> {
    let shown = path.display().to_string();
    let path = std::path::absolute(path).map_err(|error| Error::new(Kind::Invalid, error))?;
    if let Some(size) = file_size.filter(|_| !path.exists()) {
        PoolDevice::create_file(&path, size).await?;
    }
    let device = PoolDevice::open_exclusively(&path).await?;
    let spec = device.leaf_spec().ok_or_else(|| BadLayout::Path(shown.clone()))?;
    if spec.size < DEVICE_SIZE_MIN {
        return Err(BadLayout::TooSmall { path: shown, size: spec.size }.into());
    }
    if let Some((pool, state)) = owner(&device).await
        && !force
    {
        return Err(BadLayout::InUse { path: shown, state, pool }.into());
    }
    Ok((spec, device))
}

/// Returns the name and state of the pool in a device's label, unless it was destroyed.
async fn owner(device: &PoolDevice) -> Option<(String, &'static str)> {
    let found = device.found().await?;
    let facts = &found.config.member.as_ref()?.facts;
    let state = match facts.state {
        PoolState::Active => "potentially active",
        PoolState::Exported => "exported",
        _ => return None,
    };
    Some((facts.name.clone(), state))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_layouts_are_refused() {
        let none: [&str; 0] = [];
        for (layout, want) in [
            (Layout::default(), "a pool needs at least one vdev for data"),
            (Layout::stripe(none).with_log(["l"]), "a pool needs at least one vdev for data"),
            (Layout::mirror(["a"]), "mirror needs at least 2 devices, 1 given"),
            (Layout::raidz(2, ["a", "b"]), "raidz2 needs at least 3 devices, 2 given"),
            (Layout::mirror(["a", "b"]).with_spares(["a"]), "device a is named twice"),
        ] {
            assert_eq!(layout.check().map_err(|error| error.to_string()), Err(want.to_owned()));
        }
        assert_eq!(Layout::raidz(1, ["a", "b", "c"]).with_log(["d"]).check(), Ok(()));
    }
}
