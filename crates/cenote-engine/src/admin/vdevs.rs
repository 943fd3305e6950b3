//! Adds vdevs to a pool (`zpool add`; spec 01 §14, end).
//!
//! ```text
//!   labels of txg 0 ──flush──> config with the new vdevs, committed ──> blocks go there
//! ```
//!
//! A new vdev is used after a commit has updated every label: until then its labels have txg 0 and
//! no owner. The tree and the allocator contain it from the task on that writes it to the config,
//! so that the commit of that txg finds its leaves; its metaslabs are empty, and get space maps
//! with their first blocks.

use std::sync::Arc;

use cenote_device::Device;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::{PoolFacts, PoolState, VdevConfig, VdevKind, label_list, pool_list};
use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::vdev_zap::ALLOCATION_BIAS;
use cenote_ondisk::zap::Value;
use cenote_rt::{BoxFuture, Error, Kind, Result};
use cenote_vdev::create::VdevClass;
use cenote_vdev::labels;

use crate::Admin;
use crate::admin::aux;
use crate::admin::aux::Aux;
use crate::admin::events::{Event, PoolEvent};
use crate::admin::layout::LeafDevices;
use crate::admin::{Engine, write_aux_label};
use crate::admin::{birth, create, import};
use crate::dsl;
use crate::dsl::{Context, features};
use crate::{Answer, Config, EngineError, RemovalError, Scope, Task};

/// Vdevs to be added.
pub struct NewVdevs {
    /// Top-level vdevs with their allocation classes. Their ids follow those of the pool.
    pub tops: Vec<(VdevConfig, VdevClass)>,
    /// Hot spares, distributed ones included.
    pub spares: Vec<VdevConfig>,
    /// Cache devices.
    pub caches: Vec<VdevConfig>,
    /// The devices by leaf guid, open for writing and exclusively: one that left this pool is
    /// written to until the pool has closed it.
    pub devices: LeafDevices,
}

impl NewVdevs {
    fn device(&self, guid: u64) -> Result<&Arc<dyn Device>> {
        let found = self.devices.iter().find(|(leaf, _)| *leaf == guid);
        found.map(|(_, device)| device).ok_or_else(|| {
            let cause = EngineError::Invariant(format!("leaf {guid} has no device"));
            Error::new(Kind::Invalid, cause)
        })
    }
}

impl Admin<'_> {
    /// Returns the id of the next top-level vdev.
    pub fn next_vdev_id(self) -> u64 {
        self.engine.config().root.children.len() as u64
    }

    /// Returns the pool's name and config in the form of a cache file.
    pub fn config_list(self) -> (String, NvList) {
        let config = self.engine.config();
        let list = pool_list(&config.facts, &config.root, config.has_vdev_zaps);
        (config.facts.name, list)
    }

    /// Returns the vdev tree of the config.
    pub fn vdev_config(self) -> VdevConfig {
        self.engine.config().root
    }

    /// Adds vdevs, which are used from the next txg on.
    ///
    /// # Errors
    /// Errors of a device, before anything in the pool is changed; `Kind::Busy` if another request
    /// added vdevs concurrently; errors of a sync.
    pub async fn add_vdevs(self, new: NewVdevs) -> Result<()> {
        // Nothing is written to the devices of a pool that was closed.
        let cut = async { Err(Error::new(Kind::Closed, EngineError::Closed)) };
        self.engine.leaves().before_close(self.label(&new), cut).await?;
        let answer = Answer::new();
        self.engine.run_task(Box::new(Add { new, answer: Arc::clone(&answer) })).await?;
        answer.take()?;
        self.engine.health.damage.note(Event::Pool(PoolEvent::VdevsAdded));
        // The new leaves inherit the properties of the root.
        self.engine.leaves().apply_error_rates().await
    }

    /// Writes the first labels of new vdevs.
    async fn label(self, new: &NewVdevs) -> Result<()> {
        let facts = self.engine.config().stored();
        let blank = PoolFacts { txg: 0, ..facts };
        for (top, _) in &new.tops {
            for leaf in top.leaves() {
                let device = new.device(leaf.guid)?;
                labels::write_initial(&**device, &label_list(&blank, top, leaf.guid)).await?;
                device.flush().await?;
            }
        }
        let real = new.spares.iter().filter(|spare| spare.kind.is_real_leaf());
        for spare in real {
            write_aux_label(new.device(spare.guid)?, PoolState::Spare, spare).await?;
        }
        for cache in &new.caches {
            write_aux_label(new.device(cache.guid)?, PoolState::L2Cache, cache).await?;
        }
        Ok(())
    }
}

impl Engine {
    /// Returns the pool's name.
    pub fn name(&self) -> String {
        self.with_config(|config| config.facts.name.clone())
    }

    /// Returns the pool's guid.
    pub fn guid(&self) -> u64 {
        self.with_config(|config| config.facts.pool_guid)
    }
}

/// The task that adds vdevs.
struct Add {
    new: NewVdevs,
    answer: Arc<Answer<()>>,
}

impl Task for Add {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let Scope { engine, context } = scope;
            let (before, new) = (engine.config(), &self.new);
            let ids = before.root.children.len() as u64..;
            if new.tops.iter().zip(ids).any(|((top, _), id)| top.id != id) {
                // Checks C2.
                self.answer.put(Err(Error::new(Kind::Busy, EngineError::VdevsAdded)));
                return Ok(());
            }
            if !can_add(&before.root, new) {
                self.answer.put(Err(RemovalError::AddsParity.into()));
                return Ok(());
            }
            let result = engine
                .mos_apply(context.txg, |tx| {
                    // The closure may run several times: each time from the same state.
                    let mut config = before.clone();
                    record(tx, context, &mut config, new)?;
                    Ok(config)
                })
                .await;
            if let Some(config) = self.answer.unless_refused(result)? {
                // The MOS contains the vdevs: from here on a failure is one of the pool.
                let known = before.root.children.len();
                engine.admin().add_tops(&config.root.children[known..], new, context.txg)?;
                scope.replace_config(config)?;
                self.answer.put(Ok(()));
            }
            Ok(())
        })
    }
}

impl Admin<'_> {
    /// Adds top-level vdevs to the tree and the allocator. They are allocated from once `txg`,
    /// which writes their labels, is committed: before that an import would not find their blocks.
    fn add_tops(self, tops: &[VdevConfig], new: &NewVdevs, txg: u64) -> Result<()> {
        for (top, (_, class)) in tops.iter().zip(&new.tops) {
            self.engine.tree.grow(top, |leaf| new.device(leaf.guid).ok().map(Arc::clone))?;
            let spec = import::vdev_spec(&self.engine.tree, top, create::class_of(*class));
            self.engine.alloc.add_vdev(spec, create::empty_metaslabs(top), Some(txg))?;
        }
        Ok(())
    }
}

/// Whether the pool can have these vdevs: mappings of removed vdevs need others without parity, and
/// with sectors of the same size.
fn can_add(root: &VdevConfig, new: &NewVdevs) -> bool {
    let moved = root.children.iter().find(|top| top.top.indirect_object.is_some());
    let Some(moved) = moved else { return true };
    new.tops.iter().filter(|(top, _)| !top.top.is_log).all(|(top, _)| {
        !matches!(top.kind, VdevKind::RaidZ(_) | VdevKind::Draid(_))
            && top.top.ashift == moved.top.ashift
    })
}

/// Writes new vdevs to the config and the MOS.
fn record(tx: &mut Tx<'_>, ctx: &Context, config: &mut Config, new: &NewVdevs) -> TxResult<()> {
    let map = if config.has_vdev_zaps {
        Some(dsl::need_directory_object(tx, birth::VDEV_ZAP_MAP)?)
    } else {
        None
    };
    for (top, class) in &new.tops {
        let mut top = top.clone();
        set_births(&mut top, ctx.txg);
        if let Some(map) = map {
            birth::add_vdev_zaps(tx, map, &mut top, true)?;
        }
        if let (Some(bias), Some(object)) = (class.bias(), top.top.zap_top) {
            zap::insert(tx, object, ALLOCATION_BIAS, Value::text(bias))?;
        }
        if matches!(class, VdevClass::Special | VdevClass::Dedup) {
            features::add(tx, "allocation_classes", 1)?;
        }
        if matches!(top.kind, VdevKind::Draid(_)) {
            features::add(tx, "draid", 1)?;
        }
        config.root.children.push(top);
    }
    aux::write(tx, Aux::Spares, &new.spares)?;
    aux::write(tx, Aux::Caches, &new.caches)?;
    config.facts.vdev_children = Some(config.root.children.len() as u64);
    config.touch();
    Ok(())
}

/// Sets the birth txg of a vdev and its descendants.
fn set_births(vdev: &mut VdevConfig, txg: u64) {
    vdev.create_txg = txg;
    vdev.children.iter_mut().for_each(|child| set_births(child, txg));
}
