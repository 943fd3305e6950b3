//! Following one uberblock to a whole pool (spec 01 §16.2).
//!
//!     labels' tree ──> MOS ──"config"──> trusted tree ──> MOS again, through it
//!                                                          |─ features, special dirs, salt
//!                                                          |─ mappings of removed vdevs
//!                                                          `─ dirty time logs, spares, caches
//!
//! The tree that the labels make up is only good for reaching the MOS; everything after that is
//! read through the tree that the MOS itself holds. What reading does not need (dirty time logs,
//! spares, history, space maps) may be damaged: it ends up among the warnings.

use std::sync::{Arc, Mutex};

use cenote_block::{BlockStore, CacheConfig, Grounds};
use cenote_device::Device;
use cenote_dmu::{ObjSet, SpaceMap};
use cenote_ondisk::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_ondisk::dsl::key;
use cenote_ondisk::label;
use cenote_ondisk::spacemap::{Geometry, Item};
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, FixedMap, Kind, Result, tunables};
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
/// Pool directory: the config.
const CONFIG: &str = "config";
/// Pool directory: secret of salted checksums.
const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";

/// Opens the pool that `uberblock` is the root of.
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
    let mut pool = Pool::assemble(PoolParts {
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
    pool.prepare_reading().await;
    let [spares, caches] = pool.aux_configs().await;
    pool.set_aux_devices(spares, caches, |guid| candidate.other(guid));
    Ok(pool)
}

/// The parts that [`Pool::assemble`] makes a pool of.
pub struct PoolParts<'a> {
    /// The pool's name.
    pub name: &'a str,
    /// The config, with the paths of devices that were found.
    pub config: PoolConfig,
    /// The uberblock that the pool is read by.
    pub uberblock: Uberblock,
    /// The vdevs.
    pub tree: Arc<Tree>,
    /// The blocks.
    pub store: Arc<BlockStore>,
    /// The meta object set of `uberblock`.
    pub mos: Arc<ObjSet>,
    /// Keys that were loaded.
    pub keys: Arc<KeyStore>,
    /// The pool's presence on this host.
    pub presence: Arc<Presence>,
    /// Why the pool's pointers stay valid.
    pub grounds: Grounds,
}

/// A random number that tells one opening of a pool from another.
fn load_guid() -> Result<u64> {
    let mut bytes = [0; 8];
    cenote_rt::secret_bytes(&mut bytes)?;
    Ok(u64::from_le_bytes(bytes))
}

/// The same error as one of opening; the place stays what it was.
pub(super) fn corrupt(error: Error) -> Error {
    if matches!(error.kind(), Kind::Limit | Kind::Overtaken) || error.cause::<OpenError>().is_some()
    {
        return error;
    }
    let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
    Error::from(OpenError::CorruptMos(cause)).with_at(|at| at.clone_from(error.at()))
}

/// Refuses features in the labels that are needed to read the MOS and that we do not know.
fn check_label_features(candidate: &Candidate, uberblock: &Uberblock) -> Result<()> {
    let configs = || candidate.devices.iter().flat_map(|found| &found.configs);
    let older = configs().filter(|config| config.txg <= uberblock.txg);
    // After a rewind, or an interrupted update, all labels may be newer. OpenZFS gives up there
    // unless told to be extreme; the features are in the MOS as well, so reading goes on.
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

/// Opens the MOS through a tree of that config.
async fn open_mos(
    candidate: &Candidate,
    root: &VdevConfig,
    uberblock: &Uberblock,
    is_writable: bool,
) -> Result<(Arc<Tree>, Arc<BlockStore>, Arc<ObjSet>)> {
    let options = BuildOptions { is_writable, ..BuildOptions::default() };
    let tree = Tree::build(root, |leaf| candidate.device(leaf), &options)?;
    tree.set_reflow(uberblock.raidz_reflow_info);
    let store = BlockStore::new(Arc::clone(&tree), CacheConfig::default());
    let mos =
        ObjSet::open(Arc::clone(&store), &uberblock.rootbp, None, 0).await.map_err(corrupt)?;
    Ok((tree, store, mos))
}

/// The config in the MOS, with the paths at which devices were found.
async fn trusted_config(candidate: &Candidate, uberblock: &Uberblock) -> Result<PoolConfig> {
    let (tree, _, mos) =
        open_mos(candidate, &candidate.root, uberblock, false).await.map_err(|error| {
            match missing_tops(candidate) {
                // A device that answered is no missing one: there is damage.
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

/// Slots of which no label tells anything, and vdevs whose devices cannot be used, for example
/// since they became too short. A removed vdev has no devices, so its slot is among them as long as
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

/// Checks that the trusted tree is whole.
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
    // Whether any log is on it is seen when the logs are claimed.
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
            dir_names: Mutex::new(FixedMap::default()),
            space: Mutex::new(None),
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

    /// Tells the tree and the store what they need to know of the pool to read it.
    async fn prepare_reading(&mut self) {
        let salt = self.directory_value(CHECKSUM_SALT).and_then(Value::as_bytes);
        if let Some(salt) = salt.and_then(|salt| salt.try_into().ok()) {
            self.store.set_salt(salt);
        }
        self.store.set_large_gang_headers(self.features.is_active("dynamic_gang_header"));
        let lost = indirect::load(&self.mos, &self.tree, &self.config.vdev_tree).await;
        self.warnings.extend(lost);
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

    /// The snapshot that ordinary file systems begin with: older pools have none.
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
            // It lives and dies with its dRAID.
            let top = self.tree.vdev(top_guid);
            let is_alive = top.is_some_and(|top| top.state().is_readable());
            let state = if is_alive { VdevState::Healthy } else { VdevState::CantOpen };
            // Its space is spread over the devices of the dRAID, as much as the smallest has.
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

    /// The device of a leaf.
    fn device(&self, guid: u64) -> Option<Arc<dyn Device>> {
        let leaf = self.tree.vdev(guid)?.leaf()?;
        self.tree.leaf(leaf).device()
    }
}
