//! Devices that come to a pool (`zpool add`; spec 01 §14, end).
//!
//! ```text
//!   labels of txg 0 ──flush──> config with the new vdevs, committed ──> opened again: metaslabs
//! ```
//!
//! A vdev takes nothing before a commit has told every label of it: until then its labels, of txg
//! 0, say that nobody has it. Its metaslabs are made by whoever opens the pool next, here or
//! elsewhere; a vdev without is no error.

use std::sync::Arc;

use cenote_device::Device;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::config::{PoolFacts, PoolState, VdevConfig, VdevKind, label_list};
use cenote_ondisk::vdev_zap::ALLOCATION_BIAS;
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, Kind, Result};
use cenote_vdev::create::VdevClass;
use cenote_vdev::labels;

use super::aux::{self, Aux};
use super::{Added, Engine, write_aux_label};
use crate::engine::dsl::{self, features};
use crate::engine::{EngineError, birth};

/// Pool directory: objects of the vdevs' properties.
const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";

/// Vdevs to be added.
pub struct NewVdevs {
    /// Top-level vdevs, and what each is for. Their ids follow those of the pool.
    pub tops: Vec<(VdevConfig, VdevClass)>,
    /// Hot spares, distributed ones included.
    pub spares: Vec<VdevConfig>,
    /// Cache devices.
    pub caches: Vec<VdevConfig>,
    /// The devices by guid of their leaves, open for writing.
    pub devices: Vec<(u64, Arc<dyn Device>)>,
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

impl Engine {
    /// The id of the next top-level vdev.
    pub fn next_vdev_id(&self) -> u64 {
        self.config().root.children.len() as u64
    }

    /// The vdevs.
    pub fn vdev_config(&self) -> VdevConfig {
        self.config().root
    }

    /// Adds vdevs. They are used from the next opening of the pool on.
    ///
    /// # Errors
    /// A device's, before anything of the pool is changed; those of a sync.
    pub async fn add_vdevs(&self, new: NewVdevs) -> Result<()> {
        let facts = self.config().facts;
        let blank = PoolFacts { txg: 0, ..facts };
        for (top, _) in &new.tops {
            for leaf in top.leaves() {
                let device = new.device(leaf.guid)?;
                labels::write_initial(&**device, &label_list(&blank, top, leaf.guid)).await?;
                device.flush().await?;
                self.note_added(leaf.guid, device);
            }
        }
        let real = new.spares.iter().filter(|spare| spare.kind.is_real_leaf());
        for spare in real {
            write_aux_label(new.device(spare.guid)?, PoolState::Spare, spare).await?;
        }
        for cache in &new.caches {
            write_aux_label(new.device(cache.guid)?, PoolState::L2Cache, cache).await?;
        }
        let NewVdevs { tops, spares, caches, .. } = new;
        self.administer(move |tx, ctx, config| {
            let map = if config.has_vdev_zaps {
                Some(dsl::need_directory_object(tx, VDEV_ZAP_MAP)?)
            } else {
                None
            };
            for (top, class) in &tops {
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
            aux::write(tx, Aux::Spares, &spares)?;
            aux::write(tx, Aux::Caches, &caches)?;
            config.facts.vdev_children = Some(config.root.children.len() as u64);
            config.touch();
            Ok(())
        })
        .await
    }

    fn note_added(&self, guid: u64, device: &Arc<dyn Device>) {
        let mut added = self.added.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        added.push(Added { guid, device: Arc::clone(device) });
    }

    /// The device of a leaf that the tree does not have yet.
    pub(in crate::engine) fn added_device(&self, guid: u64) -> Option<Arc<dyn Device>> {
        let added = self.added.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        added.iter().find(|added| added.guid == guid).map(|added| Arc::clone(&added.device))
    }

    /// Flushes the devices that the tree does not have yet.
    pub(in crate::engine) async fn flush_added(&self) -> Result<()> {
        let devices: Vec<_> = {
            let added = self.added.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            added.iter().map(|added| Arc::clone(&added.device)).collect()
        };
        for device in devices {
            device.flush().await?;
        }
        Ok(())
    }
}

/// The vdev and those below it are born in `txg`.
fn set_births(vdev: &mut VdevConfig, txg: u64) {
    vdev.create_txg = txg;
    vdev.children.iter_mut().for_each(|child| set_births(child, txg));
}
