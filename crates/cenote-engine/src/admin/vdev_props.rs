//! Properties of vdevs: entries of the vdevs' ZAPs (spec 06 §17.2; vdevprops(7)).
//!
//! A number is stored as such, a text as a string, each under the name of the property: in the ZAP
//! of the root, of a top-level vdev, or else of the leaf. Properties that were never set have no
//! entry.

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::zap::Value;
use cenote_pool::mos;
use cenote_rt::{Error, Kind, Result};

use crate::{Admin, Engine, EngineError};

impl Admin<'_> {
    /// Sets a property of the vdev with this guid; `None` removes it.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such vdev; `Kind::Unsupported` if it has no ZAP, because it
    /// is the root of a pool without the feature `vdev_zaps_v2`, or no device or top-level vdev;
    /// errors of a sync.
    pub async fn set_vdev_property(
        self,
        guid: u64,
        name: &str,
        value: Option<Value>,
    ) -> Result<()> {
        let name = name.to_owned();
        let change = self.change(move |tx, _, config| {
            let vdev = config.root.find(guid);
            let vdev = vdev.ok_or_else(|| Error::not_found(EngineError::NoSuchLeaf(guid)))?;
            let Some(object) = vdev.properties_object() else {
                return Err(Error::new(Kind::Unsupported, EngineError::NoVdevZap(guid)).into());
            };
            match &value {
                Some(value) => zap::update(tx, object, &*name, value.clone()),
                None => zap::take(tx, object, &*name).map(drop),
            }
        });
        change.await?;
        self.engine.leaves().apply_error_rates().await
    }

    /// Returns the entries of a vdev's ZAP; none if it has no ZAP, or has left the pool.
    pub(crate) async fn properties_of(self, vdev: &VdevConfig) -> Result<Vec<(String, Value)>> {
        let Some(object) = vdev.properties_object() else { return Ok(Vec::new()) };
        let found = self.engine.inspect_vdev(vdev.guid, |tx| mos::named(tx, object)).await?;
        Ok(found.unwrap_or_default())
    }
}

impl Engine {
    /// Looks at an object of a vdev; returns `None` if the vdev has left the pool: then the number
    /// of its object may be another object's. Not to be called by a sync.
    pub(crate) async fn inspect_vdev<T>(
        &self,
        guid: u64,
        look: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
    ) -> Result<Option<T>> {
        let found = self.mos.inspect(look).await;
        if found.is_err() {
            // The task that freed the object may not have changed the config yet.
            drop(self.txgs.syncing.lock().await);
        }
        let is_there = self.with_config(|config| config.root.find(guid).is_some());
        if is_there { found.map(Some) } else { Ok(None) }
    }
}
