//! Opens the pool of one uberblock (spec 01 §16.2).
//!
//!     labels' tree ──> MOS ──"config"──> trusted tree ──> MOS again, through it
//!                                                          |─ features, special dirs, salt
//!                                                          |─ mappings of removed vdevs
//!                                                          `─ dirty time logs, spares, caches
//!
//! The tree of the labels is used to reach the MOS only; everything else is read through the tree
//! in the MOS. Structures that reading does not need (dirty time logs, spares, history, space maps)
//! may be damaged, which adds a warning.

use std::sync::Arc;

use cenote_block::{BlockStore, CacheConfig, Grounds};
use cenote_device::Device;
use cenote_dmu::{ObjSet, SpaceMap};
use cenote_ondisk::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_ondisk::dsl::key;
use cenote_ondisk::label;
use cenote_ondisk::spacemap::{Geometry, Item};
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::zap::Value;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Error, Kind, Result, tunables};
use cenote_vdev::{BuildOptions, Tree, TxgRanges, VdevState};

use super::{OpenError, OpenOptions, Pool, indirect};
use crate::dsl::{Dir, DslError};
use crate::features::{FeatureEntry, FeatureTable, UnknownFeature, by_guid};
use crate::import::{AuxDevice, Candidate, Found};
use crate::keys::KeyStore;
use crate::{Presence, dsl, mos};

/// The last version before feature flags.
const VERSION_LEGACY_MAX: u64 = 28;
/// The version with feature flags.
const VERSION_FEATURES: u64 = 5000;
/// Pool directory entry: the config.
const CONFIG: &str = "config";
/// Pool directory entry: the salt of checksums.
const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";

/// Opens the pool whose root is `uberblock`.
pub(super) async fn load(
    candidate: &Candidate,
    uberblock: Uberblock,
    options: &OpenOptions,
) -> Result<Pool> {
    if !(1..=VERSION_LEGACY_MAX).contains(&uberblock.version)
        && uberblock.version != VERSION_FEATURES
    {
        return Err(OpenError::Version { version: uberblock.version }.into());
    }
    check_label_features(candidate, &uberblock)?;
    let config = trusted_config(candidate, &uberblock).await?;
    let (tree, store, mos) =
        open_mos(candidate, &config.vdev_tree, &uberblock, options.for_writing).await?;
    check_tree(&config.vdev_tree, &tree, &uberblock, options)?;
    let mut pool = assemble_apart(PoolParts {
        name: candidate.name(),
        config,
        uberblock,
        tree,
        store,
        mos,
        keys: Arc::default(),
        presence: Arc::default(),
        grounds: Grounds::Offline,
    })
    .await?;
    if options.txg.is_some() {
        pool.presence.set_past();
    }
    let [spares, caches] = pool.aux_configs().await;
    pool.set_aux_devices(spares, caches, |guid| candidate.other(guid));
    Ok(pool)
}

/// Arguments of [`Pool::assemble`].
pub struct PoolParts<'a> {
    /// The pool's name.
    pub name: &'a str,
    /// The config, with the current paths of the devices.
    pub config: PoolConfig,
    /// The uberblock of the state.
    pub uberblock: Uberblock,
    /// The vdev tree.
    pub tree: Arc<Tree>,
    /// The block store.
    pub store: Arc<BlockStore>,
    /// The meta object set of `uberblock`.
    pub mos: Arc<ObjSet>,
    /// Loaded keys.
    pub keys: Arc<KeyStore>,
    /// State of the pool on this host.
    pub presence: Arc<Presence>,
    /// Protection of the blocks of this state against reuse.
    pub grounds: Grounds,
}

/// Opens a pool on devices that no other pool uses: with its stored config, or another one.
///
/// # Errors
/// The errors of [`Pool::assemble`].
pub async fn assemble_apart(parts: PoolParts<'_>) -> Result<Pool> {
    // Any object of the MOS may be on a removed vdev.
    let lost = indirect::load(&parts.mos, &parts.tree, &parts.config.vdev_tree).await;
    let mut pool = Pool::assemble(parts).await?;
    pool.warnings.extend(lost);
    pool.prepare_reading().await;
    Ok(pool)
}

/// Returns a random number that identifies this import.
fn load_guid() -> Result<u64> {
    let mut bytes = [0; 8];
    cenote_rt::secret_bytes(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// Marks an error as a damaged MOS, and keeps its location.
pub(super) fn corrupt(error: Error) -> Error {
    let is_of_its_own = error.kind() == Kind::Limit || error.kind().is_interruption();
    if is_of_its_own || error.cause::<OpenError>().is_some() {
        return error;
    }
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    Error::from(OpenError::CorruptMos(cause)).with_at(|at| at.clone_from(error.at()))
}

/// Refuses unsupported features in the labels, which reading the MOS needs.
fn check_label_features(candidate: &Candidate, uberblock: &Uberblock) -> Result<()> {
    let configs = || candidate.devices.iter().flat_map(|found| &found.configs);
    let older = configs().filter(|config| config.txg <= uberblock.txg);
    // After a rewind or an interrupted update all labels may be newer. OpenZFS then requires an
    // extreme rewind. The features are in the MOS as well, so opening continues here.
    let label =
        older.max_by_key(|config| config.txg).or_else(|| configs().min_by_key(|config| config.txg));
    let features = label
        .and_then(|label| label.member.as_ref())
        .and_then(|member| member.facts.features_for_read.as_ref());
    let entry = FeatureEntry { refcount: 1, is_read_only_compatible: false, enabled_txg: None };
    let unknown: Vec<_> = features
        .into_iter()
        .flatten()
        .filter(|guid| by_guid(guid).is_none())
        .map(|guid| UnknownFeature { guid: guid.clone(), description: String::new(), entry })
        .collect();
    if unknown.is_empty() { Ok(()) } else { Err(OpenError::UnsupportedFeatures(unknown).into()) }
}

/// Opens the MOS through the vdev tree of a config.
async fn open_mos(
    candidate: &Candidate,
    root: &VdevConfig,
    uberblock: &Uberblock,
    is_writable: bool,
) -> Result<(Arc<Tree>, Arc<BlockStore>, Arc<ObjSet>)> {
    let options = BuildOptions { is_writable, ..BuildOptions::default() };
    let tree = Tree::build(root, |leaf| candidate.device(leaf), &options)?;
    tree.expansion().set_progress(uberblock.raidz_reflow_info);
    let store = BlockStore::new(Arc::clone(&tree), CacheConfig::default());
    let mos =
        ObjSet::open(Arc::clone(&store), &uberblock.rootbp, None, 0).await.map_err(corrupt)?;
    Ok((tree, store, mos))
}

/// Returns the config in the MOS, with the current paths of the devices.
async fn trusted_config(candidate: &Candidate, uberblock: &Uberblock) -> Result<PoolConfig> {
    let (tree, _, mos) =
        open_mos(candidate, &candidate.root, uberblock, false).await.map_err(|error| {
            match missing_tops(candidate) {
                // The devices answered: the error is damage, not a missing device.
                missing if missing.is_empty() || error.at().device.is_some() => error,
                missing => OpenError::MissingVdevs(missing).into(),
            }
        })?;
    let mut config = stored_config(&mos).await.map_err(corrupt)?;
    drop(tree);
    candidate.set_paths(&mut config.vdev_tree);
    Ok(config)
}

/// Returns the config that is stored in the MOS.
pub async fn stored_config(mos: &Arc<ObjSet>) -> Result<PoolConfig> {
    let object = mos::u64(mos, mos::DIRECTORY, CONFIG).await?.ok_or_else(|| {
        mos::corrupt(mos::DIRECTORY)(DslError::Missing { object: mos::DIRECTORY, key: CONFIG })
    })?;
    let list = cenote_dmu::read_nvlist(mos, object).await?;
    PoolConfig::decode(list).map_err(mos::corrupt(object))
}

/// Returns the ids of top-level vdevs that no label describes, or whose devices cannot be used, for
/// example because they are too short. Removed vdevs have no devices and are included as long as
/// only the labels are known.
fn missing_tops(candidate: &Candidate) -> Vec<u64> {
    let device = |leaf: &VdevConfig| candidate.device(leaf);
    let tree = Tree::build(&candidate.root, device, &BuildOptions::default()).ok();
    let is_dead = |top: &VdevConfig| {
        let vdev = tree.as_ref().and_then(|tree| tree.top(top.id));
        top.kind.is_concrete() && vdev.is_some_and(|vdev| !vdev.state().is_readable())
    };
    let tops = candidate.root.children.iter();
    tops.filter(|top| top.kind == VdevKind::Missing || is_dead(top)).map(|top| top.id).collect()
}

/// Checks that no required vdev of the trusted tree is missing.
fn check_tree(
    root: &VdevConfig,
    tree: &Tree,
    uberblock: &Uberblock,
    options: &OpenOptions,
) -> Result<()> {
    let dead: Vec<_> = root
        .children
        .iter()
        .filter(|config| config.kind.is_concrete())
        .filter(|config| tree.top(config.id).is_none_or(|top| !top.state().is_readable()))
        .collect();
    let missing: Vec<u64> =
        dead.iter().filter(|config| !config.top.is_log).map(|config| config.id).collect();
    if missing.len() as u64 > tunables::MAX_MISSING_TVDS.get() {
        return Err(OpenError::MissingVdevs(missing).into());
    }
    let is_offline =
        |config: &VdevConfig| config.leaves().all(|leaf| leaf.leaf.offline || leaf.leaf.faulted);
    let log = dead.iter().find(|config| config.top.is_log && !is_offline(config));
    // Claiming the logs shows later whether the missing vdev holds any.
    let is_missing_ok = options.missing_log_ok || options.unneeded_log_ok;
    if let (Some(log), false) = (log, is_missing_ok) {
        return Err(OpenError::MissingLog(log.id).into());
    }
    let found = root.guid_sum();
    if found != uberblock.guid_sum {
        return Err(OpenError::GuidSum { found, expected: uberblock.guid_sum }.into());
    }
    Ok(())
}

async fn root_dir(mos: &Arc<ObjSet>, directory: &mos::Entries, name: &str) -> Result<Arc<Dir>> {
    let entry = directory.iter().find(|(entry, _)| entry == key::ROOT_DATASET);
    let object = entry.and_then(|(_, value)| value.first()).ok_or_else(|| {
        let missing = DslError::Missing { object: mos::DIRECTORY, key: key::ROOT_DATASET };
        corrupt(mos::corrupt(mos::DIRECTORY)(missing))
    })?;
    Ok(Arc::new(Dir::load(mos, object, name).await.map_err(corrupt)?))
}

impl Pool {
    /// Reads the pool directory, the features and the root dir from the MOS.
    pub async fn assemble(parts: PoolParts<'_>) -> Result<Self> {
        let directory = mos::entries(&parts.mos, mos::DIRECTORY).await.map_err(corrupt)?;
        let mut pool = Self {
            root_dir: root_dir(&parts.mos, &directory, parts.name).await?,
            features: FeatureTable::load(&parts.mos, &directory).await.map_err(corrupt)?,
            config: parts.config,
            uberblock: parts.uberblock,
            tree: parts.tree,
            store: parts.store,
            mos: parts.mos,
            directory,
            origin_snapshot: None,
            spares: Vec::new(),
            caches: Vec::new(),
            keys: parts.keys,
            presence: parts.presence,
            is_deflated: false,
            rewound_from: None,
            warnings: Vec::new(),
            dir_names: Mutex::with_default(Rank::DirNames),
            space: Mutex::new(Rank::PoolSpace, None),
            load_guid: load_guid()?,
            grounds: parts.grounds,
        };
        let unreadable = pool.features.unreadable();
        if !unreadable.is_empty() {
            return Err(OpenError::UnsupportedFeatures(unreadable).into());
        }
        pool.is_deflated = pool.directory_value(key::DEFLATE).and_then(Value::first) == Some(1);
        pool.warnings.extend(pool.features.damage().iter().cloned());
        pool.origin_snapshot = pool.find_origin().await.map_err(corrupt)?;
        Ok(pool)
    }

    /// Passes settings of the pool that reading needs to the tree and the store.
    async fn prepare_reading(&mut self) {
        let salt = self.directory_value(CHECKSUM_SALT).and_then(Value::as_bytes);
        if let Some(salt) = salt.and_then(|salt| salt.try_into().ok()) {
            self.store.set_salt(salt);
        }
        self.store.set_large_gang_headers(self.features.is_active("dynamic_gang_header"));
        let leaves: Vec<_> = self
            .config
            .vdev_tree
            .leaves()
            .filter_map(|leaf| Some((leaf.guid, leaf.leaf.dtl_object?)))
            .collect();
        for (guid, object) in leaves {
            match self.dirty_time_log(object).await {
                Ok(ranges) => {
                    self.tree.set_dtl(guid, ranges);
                }
                Err(error) => self.warnings.push(format!("dirty time log of {guid}: {error}")),
            }
        }
    }

    /// Returns the configs of hot spares and of cache devices. Leaves out unreadable ones, with a
    /// warning.
    pub async fn aux_configs(&mut self) -> [Vec<VdevConfig>; 2] {
        [self.aux_list("spares").await, self.aux_list("l2cache").await]
    }

    /// Sets the hot spares and cache devices; `found` returns the device of a guid.
    pub fn set_aux_devices<'a>(
        &mut self,
        spares: Vec<VdevConfig>,
        caches: Vec<VdevConfig>,
        found: impl Fn(u64) -> Option<&'a Arc<Found>>,
    ) {
        let device = |config: VdevConfig| self.aux_device(found(config.guid), config);
        let (spares, caches) =
            (spares.into_iter().map(device).collect(), caches.into_iter().map(device).collect());
        (self.spares, self.caches) = (spares, caches);
    }

    /// Returns the origin snapshot of file systems that are no clones; old pools have none.
    async fn find_origin(&self) -> Result<Option<u64>> {
        let root = &self.root_dir;
        let children = root.phys.child_dir_zapobj;
        let Some(object) = mos::u64(&self.mos, children, key::ORIGIN_DIR).await? else {
            return Ok(None);
        };
        let dir = Dir::load(&self.mos, object, key::ORIGIN_DIR).await?;
        let head = dsl::dataset::load_phys(&self.mos, dir.phys.head_dataset_obj).await?;
        Ok(Some(head.prev_snap_obj).filter(|object| *object != 0))
    }

    async fn dirty_time_log(&self, object: u64) -> Result<TxgRanges> {
        let mut ranges = Vec::new();
        let map = SpaceMap::open(&self.mos, object).await?;
        map.for_each(Geometry::DTL, |item| {
            if let Item::Entry(entry) = item {
                ranges.push((entry.offset, entry.offset.saturating_add(entry.size)));
            }
            Ok(())
        })
        .await?;
        Ok(TxgRanges::new(ranges))
    }

    async fn aux_list(&mut self, list: &str) -> Vec<VdevConfig> {
        let Some(object) = self.directory_object(list) else { return Vec::new() };
        let packed = match cenote_dmu::read_nvlist(&self.mos, object).await {
            Ok(packed) => packed,
            Err(error) => {
                self.warnings.push(format!("{list}: {error}"));
                return Vec::new();
            }
        };
        let mut configs = Vec::new();
        for config in packed.list_array(list).unwrap_or_default() {
            match VdevConfig::decode(config) {
                Ok(config) => configs.push(config),
                Err(error) => self.warnings.push(format!("{list}: {error}")),
            }
        }
        configs
    }

    fn aux_device(&self, found: Option<&Arc<Found>>, mut config: VdevConfig) -> AuxDevice {
        let recorded_path = config.leaf.path.as_ref().map(ToString::to_string);
        if let VdevKind::DraidSpare { top_guid, .. } = config.kind {
            // A distributed spare has the state of its dRAID vdev.
            let top = self.tree.vdev(top_guid);
            let is_alive = top.is_some_and(|top| top.state().is_readable());
            let state = if is_alive { VdevState::Healthy } else { VdevState::CantOpen };
            // A distributed spare has the size of the smallest device of its dRAID vdev.
            let members = self.config.vdev_tree.find(top_guid).map(VdevConfig::leaves);
            let members = members.into_iter().flatten().filter_map(|leaf| self.device(leaf.guid));
            let device_size = members.map(|device| label::usable_size(device.info().size)).min();
            return AuxDevice {
                config,
                recorded_path,
                device_size,
                state,
                is_at_recorded_path: true,
            };
        }
        let is_at_recorded_path =
            found.is_some_and(|found| Some(&found.path) == recorded_path.as_ref());
        let device_size = found.map(|found| label::usable_size(found.device.info().size));
        if let Some(found) = found {
            config.leaf.path = Some(found.path.as_str().into());
        }
        let state = if found.is_some() { VdevState::Healthy } else { VdevState::CantOpen };
        AuxDevice { config, recorded_path, device_size, state, is_at_recorded_path }
    }

    /// Returns the device of a leaf.
    fn device(&self, guid: u64) -> Option<Arc<dyn Device>> {
        let leaf = self.tree.vdev(guid)?.leaf()?;
        self.tree.leaf(leaf).device()
    }
}
