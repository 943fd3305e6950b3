//! The pool as it is committed, for whoever reads it while it is being written.
//!
//! A view is a [`Pool`] of one txg over the engine's own devices, counters and cache. As long as
//! somebody has it, space that is given up later is not given out again, so that everything the
//! view leads to stays in place: views are for commands, which last for moments. Datasets that stay
//! open are opened through the engine.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use cenote_device::{FileDevice, OpenMode};
use cenote_dmu::ObjSet;
use cenote_ondisk::config::{PoolConfig, VdevConfig};
use cenote_rt::Result;

use super::{Config, Engine};
use crate::import::Found;
use crate::keys::KeyStore;
use crate::pool::load::{Parts, stored_config};
use crate::{Pool, Presence};

/// What views have in common.
#[derive(Debug, Default)]
pub(super) struct Views {
    /// Keys that were loaded, for as long as the pool is open.
    pub(super) keys: Arc<KeyStore>,
    /// Where the pool mounts, and what of it.
    pub(super) presence: Arc<Presence>,
    /// The newest view, while somebody has it.
    pub(super) last: Mutex<Weak<Pool>>,
}

impl Engine {
    /// What is not stored in the pool: where it mounts, and what of it.
    pub fn presence(&self) -> &Arc<Presence> {
        &self.views.presence
    }

    /// The pool as of the last committed txg. Let go of it soon.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub async fn view(&self) -> Result<Arc<Pool>> {
        // Before the look at the uberblock: what it leads to is kept from then on.
        let pin = self.alloc.pin();
        let uberblock = self.uberblock();
        let last = || self.views.last.lock().unwrap_or_else(PoisonError::into_inner);
        let newest = last().upgrade();
        if let Some(view) = newest.filter(|view| *view.uberblock() == uberblock) {
            return Ok(view);
        }
        let mos = ObjSet::open(Arc::clone(&self.store), &uberblock.rootbp, None, 0).await?;
        let config = self.config();
        let name = config.facts.name.clone();
        let mut view = Pool::assemble(Parts {
            name: &name,
            config: recorded_config(&mos, config).await?,
            uberblock,
            tree: Arc::clone(&self.tree),
            store: Arc::clone(&self.store),
            mos,
            keys: Arc::clone(&self.views.keys),
            presence: Arc::clone(&self.views.presence),
            pin: Some(pin),
        })
        .await?;
        let [spares, caches] = view.aux_configs().await;
        let found = look_for(spares.iter().chain(&caches)).await;
        view.set_aux_devices(spares, caches, |guid| {
            found.iter().find(|found| found.guid() == guid)
        });
        let view = Arc::new(view);
        *last() = Arc::downgrade(&view);
        Ok(view)
    }
}

/// The config of the MOS, with what the engine knows of devices and of the pool's state.
async fn recorded_config(mos: &Arc<ObjSet>, known: Config) -> Result<PoolConfig> {
    let mut config = stored_config(mos).await?;
    config.facts = known.facts;
    config.vdev_tree = known.root;
    Ok(config)
}

/// Hot spares and cache devices that are where the MOS says.
async fn look_for(configs: impl Iterator<Item = &VdevConfig>) -> Vec<Arc<Found>> {
    let mut found = Vec::new();
    for path in configs.filter_map(|config| config.leaf.path.as_ref()) {
        let path = path.to_string();
        let open = move || FileDevice::open(path, OpenMode::ReadOnly);
        let Ok(Ok(device)) = cenote_rt::blocking(open).await else { continue };
        found.extend(Found::read(device).await.map(Arc::new));
    }
    found
}
