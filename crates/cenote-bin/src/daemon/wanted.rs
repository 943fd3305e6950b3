//! The mounts that the properties of file systems specify.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use cenote_cli::io::words;
use cenote_cli::{CommandResult, Exit};
use cenote_engine::{ChangedDatasets, Engine};
use cenote_pool::props::{PropValue, Source, dataset_property};
use cenote_pool::{Dataset, DatasetKind, Pool};
use cenote_rt::Kind;
use cenote_rt::lock::Mutex;
use cenote_serve::fuse::{self, FuseError, MountOptions};

use super::place::Place as DaemonPlace;

/// `canmount=off` and `canmount=on`.
pub(super) const CANMOUNT_OFF: u64 = 0;
pub(super) const CANMOUNT_ON: u64 = 1;
/// `acltype=posix`
const POSIX: u64 = 1;
/// Attempts to read the file systems if blocks of the state are reused meanwhile.
const READ_TRIES: u32 = 8;

/// The mount properties of a file system.
#[derive(Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
pub(super) struct Wanted {
    pub(super) object: u64,
    /// Distinguishes the dataset from a later one with the same number.
    pub(super) guid: u64,
    pub(super) dataset: String,
    /// `None` for `none` and `legacy`.
    pub(super) place: Option<PathBuf>,
    pub(super) mountpoint: String,
    /// The place is the default one.
    pub(super) is_by_default: bool,
    pub(super) canmount: u64,
    /// Its key is not loaded.
    pub(super) is_locked: bool,
    /// It lacks blocks that were redacted: it is mounted only if that is requested.
    pub(super) is_redacted: bool,
    /// It belongs to a container (`zoned`).
    pub(super) is_zoned: bool,
    /// It may be mounted over a directory that is not empty.
    pub(super) is_overlay: bool,
    /// `atime` and `relatime`.
    pub(super) noting: [u64; 2],
    /// `acltype=posix`: the kernel checks POSIX ACLs.
    pub(super) has_posix_acls: bool,
    pub(super) options: MountOptions,
}

impl Wanted {
    /// One file system.
    pub(super) async fn of(engine: &Engine, dataset: &Dataset) -> Result<Self, Exit> {
        let props = dataset.props().await?;
        let mut numbers = [0; 10];
        let names = [
            "canmount", "overlay", "readonly", "setuid", "devices", "exec", "acltype", "atime",
            "relatime", "zoned",
        ];
        for (number, name) in numbers.iter_mut().zip(names) {
            // The stored value, without the effect of mount options.
            let property = dataset_property(name);
            let value = property.map(|property| props.chain().native(property).0);
            if let Some(PropValue::Number(value)) = value {
                *number = value;
            }
        }
        let [canmount, overlay, readonly, setuid, devices, exec, acltype, atime, relatime, zoned] =
            numbers;
        let noting = [atime, relatime];
        let row = props.get("mountpoint").await?;
        let is_by_default = row
            .as_ref()
            .is_some_and(|row| matches!(row.source, Source::Default | Source::Inherited(_)));
        let mountpoint = match row.map(|row| row.value) {
            Some(PropValue::Text(text)) => text,
            _ => "none".to_owned(),
        };
        let place = mountpoint.starts_with('/').then(|| PathBuf::from(&mountpoint));
        let is_locked = match dataset.key_info().await? {
            Some(key) => !dataset.pool().keys().is_loaded(&key),
            None => false,
        };
        Ok(Self {
            object: dataset.object(),
            guid: dataset.phys().guid,
            dataset: dataset.name().to_owned(),
            place,
            mountpoint,
            is_by_default,
            canmount,
            is_overlay: overlay == 1,
            noting,
            has_posix_acls: acltype == POSIX,
            is_locked,
            is_redacted: dataset.redaction_snapshots().await?.is_some(),
            is_zoned: zoned == 1,
            options: MountOptions {
                is_read_only: readonly == 1 || engine.is_read_only(),
                nosuid: setuid == 0,
                nodev: devices == 0,
                noexec: exec == 0,
                ..MountOptions::default()
            }
            .permitted(),
        })
    }

    /// Whether it can be mounted without being asked for.
    pub(super) const fn comes_by_itself(&self) -> bool {
        self.place.is_some() && !self.is_locked && !self.is_redacted && !self.is_zoned
    }

    /// Creates a directory to mount at, and checks that the mount hides nothing important.
    pub(super) async fn make_room(&self, place: &Path) -> CommandResult {
        let (dataset, at) = (&self.dataset, place.display());
        // No thread of the daemon may enter one of its own mounts, and its state is there.
        let check = |place: &Path| match DaemonPlace::kept_within(place) {
            Some(kept) => {
                let why = format!("the daemon keeps its state in it, at '{}'", kept.display());
                Err(Exit::NotMounted(format!("cannot mount '{dataset}': {why}")))
            }
            None => Ok(()),
        };
        check(place)?;
        let error = match fuse::make_room(place, !self.is_overlay).await {
            // Links may lead there.
            Ok(resolved) => return check(&resolved),
            Err(error) => error,
        };
        Err(Exit::NotMounted(match error.cause() {
            Some(FuseError::Create { error, .. }) => {
                format!("cannot mount '{at}': failed to create mountpoint: {}", words(error))
            }
            Some(FuseError::NotEmpty { .. }) => {
                format!("cannot mount '{at}': directory is not empty")
            }
            _ => format!("cannot mount '{dataset}': {error}"),
        }))
    }

    /// Whether a mount with these properties stays in its place. A rename moves only mounts in
    /// places that properties determined.
    pub(super) fn stays(&self, now: &Self) -> bool {
        let is_elsewhere = self.mountpoint != now.mountpoint
            || self.mountpoint.starts_with('/') && self.dataset != now.dataset;
        !is_elsewhere && now.canmount != CANMOUNT_OFF
    }
}

/// File systems with their mount properties, in mount order: each before those whose places are
/// inside of it.
#[derive(Default)]
pub(super) struct Look {
    pub(super) wanted: Vec<Wanted>,
    /// Number of datasets that were read, of any kind.
    pub(super) read_count: usize,
}

/// The datasets to read.
pub(super) enum Scope<'a> {
    /// Every dataset of the pool.
    All,
    /// The datasets that changed since the last such look, which are added to `changed` even if
    /// reading fails; and the datasets in `pending`.
    Changed { pending: &'a ChangedDatasets, changed: &'a Mutex<ChangedDatasets> },
    /// Datasets by number, with their last known names. Destroyed ones are omitted.
    Numbers(&'a [(u64, Option<String>)]),
}

impl Look {
    /// Reads datasets.
    ///
    /// If blocks of the state are reused meanwhile, it is read again: the mounts must not depend on
    /// how fast space is reused.
    pub(super) async fn at(engine: &Engine, scope: Scope<'_>) -> Result<Self, Exit> {
        for _ in 1..READ_TRIES {
            match Self::once(engine, &scope).await {
                Err(Exit::Overtaken) => {}
                look => return look,
            }
        }
        Self::once(engine, &scope).await
    }

    async fn once(engine: &Engine, scope: &Scope<'_>) -> Result<Self, Exit> {
        let view = engine.view().await?;
        let mut look = Self::default();
        match scope {
            Scope::All => look.below(engine, view.root_dataset().await?).await?,
            Scope::Changed { pending, changed } => {
                let taken = engine.datasets().take_changes(view.txg());
                let mut both = {
                    let mut changed = changed.lock();
                    changed.merge(taken);
                    changed.clone()
                };
                both.merge((*pending).clone());
                match both.roots() {
                    None => look.below(engine, view.root_dataset().await?).await?,
                    Some(names) => {
                        for name in names {
                            if let Some(dataset) = found(view.dataset(name).await)? {
                                look.below(engine, dataset).await?;
                            }
                        }
                    }
                }
            }
            Scope::Numbers(datasets) => {
                for (object, name) in *datasets {
                    if let Some(dataset) = by_number(&view, *object, name.as_deref()).await? {
                        look.read(engine, &dataset).await?;
                    }
                }
            }
        }
        look.wanted.sort_by(|one, other| {
            one.place.cmp(&other.place).then_with(|| one.dataset.cmp(&other.dataset))
        });
        Ok(look)
    }

    /// Reads a dataset and its descendants.
    async fn below(&mut self, engine: &Engine, dataset: Dataset) -> Result<(), Exit> {
        let mut left = vec![dataset];
        while let Some(dataset) = left.pop() {
            left.extend(dataset.children().await?);
            self.read(engine, &dataset).await?;
        }
        Ok(())
    }

    async fn read(&mut self, engine: &Engine, dataset: &Dataset) -> Result<(), Exit> {
        self.read_count += 1;
        // A file system that is partially received is not mounted.
        if !dataset.is_inconsistent() && dataset.kind().await? == DatasetKind::Filesystem {
            self.wanted.push(Wanted::of(engine, dataset).await?);
        }
        Ok(())
    }
}

/// Returns the dataset with a number, if it exists. Without its name, the lookup reads the names of
/// all siblings.
async fn by_number(
    view: &Arc<Pool>,
    object: u64,
    name: Option<&str>,
) -> cenote_rt::Result<Option<Dataset>> {
    if let Some(name) = name
        && let Some(dataset) = found(view.dataset(name).await)?
        && dataset.object() == object
    {
        return Ok(Some(dataset));
    }
    found(view.dataset_by_object(object).await)
}

/// Returns a dataset, or `None` if it does not exist.
fn found(dataset: cenote_rt::Result<Dataset>) -> cenote_rt::Result<Option<Dataset>> {
    match dataset {
        Err(error) if error.kind() == Kind::NotFound => Ok(None),
        dataset => dataset.map(Some),
    }
}
