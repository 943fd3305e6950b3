//! Opens pools for writing (spec 01 §16, 05 §4.5).
//!
//! ```text
//!   candidate ── its devices, locked ──> labels again ──> Pool ──> Engine
//!                                                          |  space maps' headers, logs
//!                                                          `─ refused if a feature in use is not
//!                                                          kept
//! ```
//!
//! The labels are read again after the devices are locked: they may have changed since the search.

use std::convert::Infallible;
use std::sync::Arc;

use cenote_block::alloc::{self, Class, MetaslabSpec, SpaceAllocator, VdevSpec};
use cenote_block::policy::PoolPolicy;
use cenote_device::{Device, FileDevice, OpenMode};
use cenote_dmu::{Live, SpaceMap};
use cenote_ondisk::config::{PoolState, VdevConfig, VdevKind};
use cenote_ondisk::dsl::key;
use cenote_ondisk::spacemap::{Geometry, Item};
use cenote_pool::accounting::{AllocationClass, VdevFigures, row_size};
use cenote_pool::features::FeatureState;
use cenote_pool::import::{Candidate, Found, scan_devices};
use cenote_pool::pool::{OpenError, OpenOptions};
use cenote_pool::{Pool, mos, spacemaps};
use cenote_rt::{Error, Kind, Result, stages, trace, tunables};
use cenote_vdev::{Tree, Vdev, VdevState};

use crate::admin::events::{Event, PoolEvent};
use crate::admin::health::Notice;
use crate::admin::told_history::ToldHistory;
use crate::leaf::leaves;
use crate::txg::{closing, store};
use crate::{Config, Engine, EngineError, Parts, SuspendAwareStore, Suspension};

impl Engine {
    /// Locks the devices of a pool and opens it for writing.
    ///
    /// # Errors
    /// `Kind::Busy` if another process has a device open; `Kind::Unsupported` if an active feature
    /// cannot be maintained; the errors of [`Pool::open`].
    pub async fn open(candidate: &Candidate, options: &OpenOptions) -> Result<Arc<Self>> {
        let opened = async {
            let mut devices: Vec<Arc<dyn Device>> = Vec::new();
            for found in &candidate.devices {
                let path = found.path.clone();
                let device = cenote_rt::blocking(move || {
                    FileDevice::open(std::path::Path::new(&path), OpenMode::Exclusive)
                });
                devices.push(device.await??);
            }
            Self::open_devices(devices, candidate.guid(), options).await
        };
        trace::import(candidate.name()).run(opened).await
    }

    /// Opens a pool for reading: nothing is written to its devices, the contents of its intent logs
    /// are not visible, and features that only writing needs are ignored. Its devices are not
    /// locked.
    ///
    /// # Errors
    /// The errors of [`Pool::open`].
    pub async fn open_read_only(candidate: &Candidate, options: &OpenOptions) -> Result<Arc<Self>> {
        let options = OpenOptions { for_writing: false, ..options.clone() };
        let opened = async {
            let pool = Pool::open(candidate, &options).await?;
            Self::over(&pool, pool.txg(), true).await
        };
        trace::import(candidate.name()).run(opened).await
    }

    /// Opens a pool on devices that are already open for writing.
    pub async fn open_devices(
        devices: Vec<Arc<dyn Device>>,
        guid: u64,
        options: &OpenOptions,
    ) -> Result<Arc<Self>> {
        let scan = scan_devices(devices.clone()).await;
        let candidate = scan
            .candidates
            .iter()
            .find(|candidate| candidate.guid() == guid)
            .ok_or_else(|| Error::not_found(EngineError::Gone(guid)))?;
        let options = OpenOptions { for_writing: true, ..options.clone() };
        if options.checkpoint {
            let txg = Self::rewind_to_checkpoint(candidate, &options).await?;
            let options = OpenOptions { checkpoint: false, ..options };
            let engine = Box::pin(Self::open_devices(devices, guid, &options)).await?;
            engine.space().note_rewind(txg).await?;
            return Ok(engine);
        }
        let pool = Pool::open(candidate, &options).await?;
        let newest = candidate.uberblocks().iter().map(|uberblock| uberblock.txg).max();
        let base_txg = newest.unwrap_or(0).max(pool.txg());
        // Leaves that other pools were made of, by a split of this one.
        let split = scan.candidates.iter().filter(|found| found.facts.split_guid == Some(guid));
        let split: Vec<_> = split.flat_map(|found| &found.devices).map(|dev| dev.guid()).collect();
        let opened = Self::take_over(&pool, candidate, base_txg, (&options, &split)).await;
        if opened.is_err() {
            // Running tasks may still reference the tree, and must not be waited for.
            pool.tree().close(closing::answer_timeout()).await;
        }
        opened
    }

    /// Takes over the pool for this host, with all steps that must precede changes.
    async fn take_over(
        pool: &Arc<Pool>,
        candidate: &Candidate,
        base_txg: u64,
        (options, split): (&OpenOptions, &[u64]),
    ) -> Result<Arc<Self>> {
        let engine = Self::from_pool(pool, base_txg).await?;
        stages::reach("import-space-loaded");
        engine.space().adopt_checkpoint(pool).await?;
        engine.removals().adopt(pool).await?;
        // Before any write: on a pool with multihost, heartbeats begin now and use the slots of its
        // uberblocks.
        engine.admin().apply_properties().await?;
        if engine.health.multihost.is_on()
            && options.host.as_ref().is_some_and(|host| host.hostid == 0)
        {
            // The owner of heartbeats without a hostid is unknown.
            engine.stop("the pool has the multihost property on and this system has no hostid");
            return Err(OpenError::NoHostId.into());
        }
        // Before anything that was read is told: a killed process may have left it in the caches of
        // the devices, and a power cut would take it back. An `fsync` of what is read unchanged
        // flushes nothing.
        engine.tree.flush().await?;
        // A rewind goes back to an uberblock that newer ones hide in any case.
        if pool.txg() == base_txg {
            let holds = |found: &Arc<Found>| found.holds(pool.uberblock());
            engine.complete_commit(|guid| candidate.found(guid).is_some_and(holds)).await?;
        }
        // Before any write: the boot areas may have the only copy of the first rows.
        engine.leaves().restore_first_rows().await?;
        // Before any allocation: blocks of the logs must not be overwritten.
        engine.intent_logs().claim(pool, options.missing_log_ok).await?;
        stages::reach("import-logs-claimed");
        engine.admin().note_version("open");
        // Before any dataset changes.
        if let Err(error) = engine.scans().drop_damaged().await {
            engine.check_stopped()?;
            engine.health().add_notice(Notice::ScanStalled { cause: error.to_string() });
        }
        engine.datasets().remove_leftovers().await?;
        if engine.health.multihost.is_on() {
            // Other hosts can see the new owner before anything changes.
            engine.sync().await?;
        }
        engine.health.suspension.tell(engine.health().events());
        engine.health.suspension.arm();
        engine.leaves().settle_split(split).await?;
        engine.leaves().expand_if_wanted().await?;
        for (_, leaf) in engine.tree.leaves() {
            let state = engine.tree.vdev(leaf.guid()).map_or(VdevState::Closed, Vdev::state);
            engine.health().events().know_state(leaf.guid(), state);
        }
        engine.health.damage.note(Event::Pool(PoolEvent::Imported));
        Ok(engine)
    }

    /// Opens a pool for writing whose devices are open for writing. Its first txg is after
    /// `base_txg`, so that its uberblocks win over those that a rewind discarded (spec 01 §16.2).
    async fn from_pool(pool: &Arc<Pool>, base_txg: u64) -> Result<Arc<Self>> {
        check_features(pool)?;
        Self::over(pool, base_txg, false).await
    }

    /// Makes an engine of a pool that was read on devices open for writing.
    pub(crate) async fn over(
        pool: &Arc<Pool>,
        base_txg: u64,
        is_read_only: bool,
    ) -> Result<Arc<Self>> {
        let txg = base_txg;
        let suspension = Arc::<Suspension>::default();
        let maps = store::Maps::new(pool.store(), &suspension);
        let config = pool.config();
        maps.committed(txg, &pool.uberblock().rootbp, &config.vdev_tree.children);
        let alloc = SpaceAllocator::new(alloc::Options {
            store: Arc::<store::Maps>::clone(&maps),
            geometry: Arc::<Tree>::clone(pool.tree()),
            txg,
            has_logs: pool.features().state("log_spacemap") != FeatureState::Disabled,
            allocators: tunables::NUM_ALLOCATORS.get_usize(),
            seed: pool.load_guid(),
        });
        match load_space(pool, &alloc).await {
            // A read-only pool works without space maps.
            Err(_) if is_read_only => {}
            loaded => loaded?,
        }
        if !is_read_only {
            pool.store().set_allocator(Arc::clone(&alloc));
        }
        let mos_dir = mos::u64(pool.mos(), pool.root_dir().phys.child_dir_zapobj, key::MOS_DIR);
        let mos_dir = match mos_dir.await? {
            Some(object) => object,
            None if is_read_only => 0,
            None => return Err(crate::invariant_error("the pool has no $MOS".into())),
        };
        let mut facts = config.facts.clone();
        facts.state = PoolState::Active;
        pool.name().clone_into(&mut facts.name);
        let mut config = Config {
            facts,
            stored_name: None,
            has_vdev_zaps: config.has_per_vdev_zaps,
            root: config.vdev_tree.clone(),
            is_unrecorded: false,
            is_dirty: false,
            revision: 0,
        };
        leaves::clear_faults(&mut config.root);
        // The next commit writes the new owner to every label.
        config.touch();
        Ok(Self::assemble(Parts {
            tree: Arc::clone(pool.tree()),
            store: Arc::clone(pool.store()),
            alloc,
            mos: Live::open(SuspendAwareStore::mos(pool.store(), &suspension), pool.mos())?,
            suspension,
            mos_dir,
            config,
            base_txg,
            uberblock: *pool.uberblock(),
            policy: policy_of(pool),
            maps,
            keys: Arc::clone(pool.keys()),
            seed: pool.load_guid(),
            is_read_only,
            history: ToldHistory::of(pool).await,
        }))
    }
}

/// Returns the block policy of the pool's features.
fn policy_of(pool: &Pool) -> PoolPolicy {
    let Ok(policy) = PoolPolicy::of(|name| Ok::<_, Infallible>(pool.features().is_active(name)));
    policy
}

/// Active features that this engine maintains. Others may be enabled, which has no effect.
pub(crate) const MAINTAINED: &[&str] = &[
    "async_destroy",
    "empty_bpobj",
    "lz4_compress",
    "spacemap_histogram",
    "enabled_txg",
    "hole_birth",
    "extensible_dataset",
    "embedded_data",
    "bookmarks",
    "filesystem_limits",
    "large_blocks",
    "large_dnode",
    "sha512",
    "skein",
    "edonr",
    "userobj_accounting",
    "project_quota",
    "zpool_checkpoint",
    "spacemap_v2",
    "allocation_classes",
    "device_removal",
    "obsolete_counts",
    "resilver_defer",
    "bookmark_v2",
    "encryption",
    "redaction_bookmarks",
    "redacted_datasets",
    "bookmark_written",
    "log_spacemap",
    "device_rebuild",
    "zstd_compress",
    "draid",
    "zilsaxattr",
    "head_errlog",
    "blake3",
    "vdev_zaps_v2",
    "redaction_list_spill",
    "raidz_expansion",
    "longname",
];

fn check_features(pool: &Pool) -> Result<()> {
    if pool.version() < 5000 {
        return Err(Error::new(Kind::Unsupported, EngineError::OldVersion(pool.version())));
    }
    let unknown: Vec<_> = pool
        .features()
        .iter()
        .filter(|(_, entry)| entry.refcount > 0)
        .filter(|(guid, _)| {
            let known = cenote_ondisk::feature::by_guid(guid);
            known.is_none_or(|feature| !MAINTAINED.contains(&feature.name))
        })
        .map(|(guid, _)| guid.to_owned())
        .collect();
    if unknown.is_empty() {
        return Ok(());
    }
    Err(Error::new(Kind::Unsupported, EngineError::Unmaintained(unknown)))
}

/// Loads the space map headers and the logs into the allocator.
async fn load_space(pool: &Arc<Pool>, alloc: &SpaceAllocator) -> Result<()> {
    let space = pool.space().await?;
    for figures in &space.vdevs {
        if let Some(damage) = &figures.damage {
            let (vdev, damage) = (figures.id, damage.clone());
            return Err(Error::corrupt(EngineError::SpaceMaps { vdev, damage }));
        }
        let Some(top) = pool.config().vdev_tree.children.get(figures.id as usize) else { continue };
        if figures.is_concrete {
            let spec = vdev_spec(pool.tree(), top, class_of(figures.class));
            alloc.add_vdev(spec, metaslabs(figures), None)?;
        }
    }
    let vdevs: Vec<_> =
        space.vdevs.iter().filter(|vdev| vdev.is_concrete).map(|vdev| vdev.id).collect();
    for (txg, object) in spacemaps::logs(pool).await? {
        let map = SpaceMap::open(pool.mos(), object).await?;
        let blocks = map.phys().length.div_ceil(128 << 10);
        map.for_each(Geometry::LOG, |item| {
            let Item::Entry(entry) = item else { return Ok(()) };
            let Some(vdev) = entry.vdev.map(u64::from) else { return Ok(()) };
            // The vdev was removed since.
            if !vdevs.contains(&vdev) {
                return Ok(());
            }
            alloc.replay(txg, vdev, entry.action, entry.offset, entry.size)
        })
        .await?;
        alloc.note_log(txg, blocks);
    }
    Ok(())
}

/// Returns the allocator's description of a top-level vdev.
pub(crate) fn vdev_spec(tree: &Tree, top: &VdevConfig, class: Class) -> VdevSpec {
    let sector = 1_u64 << top.top.ashift;
    let (width, nparity, min_alloc) = match &top.kind {
        VdevKind::RaidZ(raidz) => (top.children.len() as u64, raidz.nparity, sector),
        VdevKind::Draid(draid) => {
            (draid.ndata + draid.nparity, draid.nparity, draid.ndata * sector)
        }
        _ => (1, 0, sector),
    };
    VdevSpec {
        id: top.id,
        class,
        ashift: top.top.ashift as u8,
        metaslab_shift: top.top.metaslab_shift as u32,
        align: row_size(top).max(sector),
        width,
        nparity,
        deflate_ratio: tree.deflate_ratio(top.id).unwrap_or(512),
        min_alloc,
        is_allocating: !top.top.non_allocating,
    }
}

fn metaslabs(figures: &VdevFigures) -> Vec<MetaslabSpec> {
    let specs = figures.metaslabs.iter().map(|metaslab| {
        let header = metaslab.header.as_ref();
        MetaslabSpec {
            start: metaslab.start,
            size: metaslab.size,
            allocated: header.map_or(0, |header| header.allocated.max(0) as u64),
            histogram: header.and_then(|header| header.histogram),
            has_map: metaslab.space_map != 0,
            unflushed_txg: metaslab.unflushed_txg,
        }
    });
    specs.collect()
}

fn class_of(class: AllocationClass) -> Class {
    match class {
        AllocationClass::Normal => Class::Normal,
        AllocationClass::Log => Class::Log,
        AllocationClass::Special => Class::Special,
        AllocationClass::Dedup => Class::Dedup,
    }
}
