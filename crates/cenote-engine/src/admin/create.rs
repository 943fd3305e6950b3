//! Creates pools (spec 01 §18).
//!
//! ```text
//!   devices ── labels of txg 0, empty rings ──flush──> MOS of txg 4 ──> the first commit
//! ```
//!
//! Until the first uberblock is on disk, the devices belong to no pool: their labels have txg 0,
//! which every importer ignores, and no uberblock of an earlier pool is left (spec 01 §18.1).

use std::convert::Infallible;
use std::sync::Arc;

use cenote_block::alloc::{self, Class, MetaslabSpec, SpaceAllocator};
use cenote_block::policy::PoolPolicy;
use cenote_block::{BlockStore, CacheConfig, SealKeys};
use cenote_device::Device;
use cenote_dmu::live::OwnerProbe;
use cenote_dmu::{Live, Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::{PoolFacts, PoolState, VdevConfig, label_list};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::feature::Feature;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::accounting::{metaslab_range, row_size};
use cenote_pool::features;
use cenote_rt::{BoxFuture, Error, Kind, Result, stages, tunables};
use cenote_vdev::create::Created;
use cenote_vdev::{BuildOptions, Tree, labels, layout};

use crate::admin::birth;
use crate::admin::birth::NewPool;
use crate::admin::events::{Event, PoolEvent};
use crate::admin::import;
pub use crate::admin::layout::{
    CreateError, LeafDevices, LeafSpec, PoolLayout, Redundancy, TopSpec, VdevClass, new_guid,
    plan_distributed_spare, plan_leaf, plan_pool,
};
use crate::admin::settings::{PoolSetting, SET, text_of};
use crate::admin::told_history::ToldHistory;
use crate::dsl::api::keys::NewEncryption;
use crate::dsl::create::TXG_INITIAL;
use crate::dsl::{Env, history};
use crate::txg::store;
use crate::txg::suspend::HeadKeys;
use crate::{
    Config, Engine, EngineError, Head, Parts, Scope, SuspendAwareStore, Suspension, Task, admin,
};

/// First txg of a new pool, in which its vdevs are created.
pub const FIRST_TXG: u64 = TXG_INITIAL;
/// Pool version with feature flags.
const VERSION: u64 = 5000;

/// Fills the object set of a new file system or volume.
pub type Fill = Box<dyn FnMut(&mut Tx<'_>) -> TxResult<()> + Send + Sync>;

/// Specification of a new pool.
pub struct CreateSpec {
    /// Its name.
    pub name: String,
    /// The vdevs with their allocation classes.
    pub vdevs: Created,
    /// The devices by leaf guid, open for writing.
    pub devices: LeafDevices,
    /// Features to enable.
    pub features: Vec<&'static Feature>,
    /// The property `comment`.
    pub comment: Option<String>,
    /// The property `compatibility`.
    pub compatibility: Option<String>,
    /// Hostid and name of this host, if they are to be stored.
    pub host: Option<(u64, String)>,
    /// How the root file system is encrypted.
    pub encryption: NewEncryption,
    /// Fills the root file system.
    pub fill_root: Fill,
    /// Finds the owners of objects.
    pub probe: Option<Arc<dyn OwnerProbe>>,
}

impl CreateSpec {
    /// Returns a specification with these vdevs, devices for the leaves in their order, the default
    /// features and an empty root file system.
    #[must_use]
    pub fn new(name: &str, vdevs: Created, devices: Vec<Arc<dyn Device>>) -> Self {
        let guids: Vec<_> = vdevs.root.leaves().map(|leaf| leaf.guid).collect();
        Self {
            name: name.to_owned(),
            vdevs,
            devices: guids.into_iter().zip(devices).collect(),
            features: features::identity().collect(),
            comment: None,
            compatibility: None,
            host: None,
            encryption: NewEncryption::Off,
            fill_root: Box::new(|_| Ok(())),
            probe: None,
        }
    }
}

impl Engine {
    /// Creates a pool and opens it for writing. Existing data on the devices is lost.
    ///
    /// # Errors
    /// Errors of a device. The devices then belong to no pool.
    pub async fn create(spec: CreateSpec) -> Result<Arc<Self>> {
        let facts = facts_of(&spec);
        for top in &spec.vdevs.root.children {
            for leaf in top.leaves() {
                let device = device_of(&spec, leaf.guid)?;
                let facts = PoolFacts { txg: 0, ..facts.clone() };
                let label = label_list(&facts, top, leaf.guid);
                labels::write_initial(&**device, &label).await?;
                // Old uberblocks must be durably gone before anything new is written.
                device.flush().await?;
                stages::reach("create-leaf-labelled");
            }
        }
        let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
        let open = |leaf: &VdevConfig| device_of(&spec, leaf.guid).ok().map(Arc::clone);
        let tree = Tree::build(&spec.vdevs.root, open, &options)?;
        let mut salt = [0; 32];
        cenote_rt::secret_bytes(&mut salt)?;
        let blocks = BlockStore::new(Arc::clone(&tree), CacheConfig::default());
        blocks.set_salt(&salt);
        let suspension = Arc::<Suspension>::default();
        let maps = store::Maps::new(&blocks, &suspension);
        let alloc = new_allocator(&spec, &tree, &maps)?;
        blocks.set_allocator(Arc::clone(&alloc));
        let mos = Live::create(SuspendAwareStore::mos(&blocks, &suspension), 0, ObjSetType::Meta);
        let mut config = Config {
            facts,
            stored_name: None,
            has_vdev_zaps: true,
            root: spec.vdevs.root.clone(),
            is_unrecorded: false,
            is_dirty: false,
            revision: 0,
        };
        config.touch();
        let engine = Self::assemble(Parts {
            tree,
            store: blocks,
            alloc,
            mos,
            suspension,
            mos_dir: 0,
            config,
            base_txg: 0,
            uberblock: first_uberblock(spec.vdevs.root.guid_sum()),
            policy: policy_of(&spec.features),
            maps,
            keys: Arc::default(),
            seed: crate::random_seed()?,
            is_read_only: false,
            history: ToldHistory::default(),
        });
        if let Some(probe) = &spec.probe {
            engine.datasets().set_owner_probe(Arc::clone(probe));
        }
        label_aux(&spec).await?;
        let birth = Box::new(Birth { spec, salt });
        engine.run_task(birth).await?;
        stages::reach("create-first-txg");
        engine.health.suspension.tell(engine.health().events());
        engine.health.suspension.arm();
        engine.health.damage.note(Event::Pool(PoolEvent::Created));
        Ok(engine)
    }
}

/// Labels hot spares and cache devices; the labels do not name the pool.
async fn label_aux(spec: &CreateSpec) -> Result<()> {
    let spares = spec.vdevs.spares.iter().filter(|spare| spare.kind.is_real_leaf());
    let spares = spares.map(|spare| (PoolState::Spare, spare));
    let caches = spec.vdevs.caches.iter().map(|cache| (PoolState::L2Cache, cache));
    for (state, config) in spares.chain(caches) {
        admin::write_aux_label(device_of(spec, config.guid)?, state, config).await?;
    }
    Ok(())
}

fn device_of(spec: &CreateSpec, guid: u64) -> Result<&Arc<dyn Device>> {
    let device = spec.devices.iter().find(|(leaf, _)| *leaf == guid);
    device.map(|(_, device)| device).ok_or_else(|| {
        Error::new(Kind::Invalid, EngineError::Invariant(format!("leaf {guid} has no device")))
    })
}

fn facts_of(spec: &CreateSpec) -> PoolFacts {
    PoolFacts {
        version: VERSION,
        name: spec.name.clone(),
        state: PoolState::Active,
        txg: TXG_INITIAL,
        pool_guid: spec.vdevs.root.guid,
        errata: 0,
        comment: spec.comment.clone(),
        compatibility: spec.compatibility.clone(),
        hostid: spec.host.as_ref().map_or(0, |(id, _)| *id),
        hostname: spec.host.as_ref().map(|(_, name)| name.clone()),
        vdev_children: Some(spec.vdevs.root.children.len() as u64),
        hole_array: Vec::new(),
        features_for_read: Some(Vec::new()),
        split_guid: None,
        split_leaves: Vec::new(),
    }
}

/// Returns the block policy of the pool's features.
fn policy_of(features: &[&Feature]) -> PoolPolicy {
    let has = |name: &str| features.iter().any(|feature| feature.name == name);
    let Ok(policy) = PoolPolicy::of(|name| Ok::<_, Infallible>(has(name)));
    policy
}

/// Returns the predecessor of the first uberblock.
fn first_uberblock(guid_sum: u64) -> Uberblock {
    Uberblock {
        endian: Endian::Little,
        version: VERSION,
        txg: 0,
        guid_sum,
        timestamp: 0,
        rootbp: BlockPtr::HOLE,
        software_version: VERSION,
        mmp_magic: 0,
        mmp_delay: 0,
        mmp_config: 0,
        checkpoint_txg: 0,
        raidz_reflow_info: 0,
    }
}

fn new_allocator(
    spec: &CreateSpec,
    tree: &Arc<Tree>,
    maps: &Arc<store::Maps>,
) -> Result<Arc<SpaceAllocator>> {
    let alloc = SpaceAllocator::new(alloc::Options {
        store: Arc::<store::Maps>::clone(maps),
        geometry: Arc::<Tree>::clone(tree),
        txg: TXG_INITIAL - 1,
        has_logs: spec.features.iter().any(|feature| feature.name == "log_spacemap"),
        allocators: tunables::NUM_ALLOCATORS.get_usize(),
        seed: spec.vdevs.root.guid,
    });
    for (top, class) in spec.vdevs.root.children.iter().zip(&spec.vdevs.classes) {
        let spec = import::vdev_spec(tree, top, class_of(*class));
        alloc.add_vdev(spec, empty_metaslabs(top), None)?;
    }
    Ok(alloc)
}

/// Returns the allocation class of a vdev.
pub(crate) const fn class_of(class: VdevClass) -> Class {
    match class {
        VdevClass::Log => Class::Log,
        VdevClass::Special => Class::Special,
        VdevClass::Dedup => Class::Dedup,
        VdevClass::Normal => Class::Normal,
    }
}

/// Returns the metaslabs of a new vdev.
pub(crate) fn empty_metaslabs(top: &VdevConfig) -> Vec<MetaslabSpec> {
    let shift = top.top.metaslab_shift as u32;
    let count = layout::metaslab_count(top.top.asize, shift);
    let row = row_size(top);
    let range = |id| metaslab_range(id, shift, row);
    (0..count).map(range).map(|(start, size)| MetaslabSpec::empty(start, size)).collect()
}

/// The task of the first txg.
struct Birth {
    spec: CreateSpec,
    salt: [u8; 32],
}

impl Birth {
    /// Records the creation and each property and feature, in the order of OpenZFS.
    fn record(&self, tx: &mut Tx<'_>, env: &Env) -> TxResult<()> {
        history::log_pool(tx, env, "create", &history::version_text(VERSION))?;
        let comment = self.spec.comment.clone();
        let compatibility = self.spec.compatibility.clone();
        let properties = comment.map(|text| PoolSetting::Comment(Some(text))).into_iter();
        let properties = properties
            .chain(compatibility.map(|text| PoolSetting::Compatibility(Some(text))))
            .chain(self.spec.features.iter().map(|feature| PoolSetting::Feature(feature)));
        for setting in properties {
            history::log_pool(tx, env, SET, &text_of(&setting))?;
        }
        Ok(())
    }

    /// Encrypts the root file system, if that is wanted.
    async fn install_keys(&self, scope: &Scope<'_>, root: u64) -> Result<HeadKeys> {
        let (engine, txg) = (scope.engine, scope.context.txg);
        let plan = engine.datasets().plan_keys(None, &self.spec.encryption).await?;
        let Some(plan) = plan else { return Ok(HeadKeys::Plain) };
        let (dir, object) = engine.mos_apply(txg, |tx| plan.install(tx, root)).await?;
        engine.datasets().note_keys(&plan, dir, object);
        Ok(HeadKeys::Loaded(SealKeys::new(plan.keys)?))
    }
}

impl Task for Birth {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let new =
                NewPool { features: &self.spec.features, vdevs: &self.spec.vdevs, salt: self.salt };
            let mos = engine.mos_apply(context.txg, |tx| birth::fill(tx, context, &new)).await?;
            let env = Env { context: *context, ..engine.datasets().env(context.txg) };
            engine.mos_apply(context.txg, |tx| self.record(tx, &env)).await?;
            engine.config.set_mos_dir(mos.mos_dir);
            scope.change_config(|config| {
                config.root = mos.root.clone();
                config.touch();
            });
            let keys = self.install_keys(scope, mos.root_dataset).await?;
            let suspension = &engine.health.suspension;
            let live = Live::create(
                SuspendAwareStore::head(&engine.store, suspension, keys.clone()),
                mos.root_dataset,
                ObjSetType::Zfs,
            );
            live.apply(context.txg, |tx| (self.spec.fill_root)(tx)).await?;
            engine.admin().mark_case_insensitive(context.txg, mos.root_dataset, &live).await?;
            let settings = engine.datasets().settings_of(mos.root_dataset).await?;
            let policy = engine.pool_policy();
            let head = Head::new(
                (mos.root_dataset, keys),
                live,
                policy,
                settings,
                engine.datasets().owner_probe(),
            );
            engine.heads.insert(head);
            Ok(())
        })
    }
}
