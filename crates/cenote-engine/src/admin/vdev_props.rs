//! Properties of vdevs: entries of the vdevs' ZAPs (spec 06 §17.2; vdevprops(7)).
//!
//! A number is stored as such, a text as a string, each under the name of the property: in the ZAP
//! of the root, of a top-level vdev, or else of the leaf. Properties that were never set have no
//! entry.

use cenote_block::alloc::Class;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::zap::Value;
use cenote_pool::mos;
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{Error, Kind, Result};

use crate::dsl::history;
use crate::{Admin, Engine, EngineError};

/// Property of a top-level vdev: whether new blocks are allocated there. The config has it, too.
pub(crate) const ALLOCATING: &str = "allocating";

impl Admin<'_> {
    /// Sets whether new blocks are allocated on the top-level vdev with this guid. Blocks that are
    /// there stay, as do those that the open txg has placed there.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such vdev; [`EngineError::NoAllocations`] if it is no
    /// top-level vdev for data; [`EngineError::LastAllocating`] if it is the last one for ordinary
    /// data; errors of a sync.
    pub async fn set_allocating(self, guid: u64, is_allocating: bool) -> Result<()> {
        self.engine
            .even_alone(move |engine| async move {
                // A removal ends the allocations on its vdev for itself: no blocks may be placed
                // there again.
                let _control = engine.removals().control().await;
                let figures = engine.alloc.vdev_figures().into_iter();
                let normal: Vec<u64> = figures
                    .filter(|figures| figures.class == Class::Normal)
                    .map(|figures| figures.id)
                    .collect();
                let changed = engine.admin().change_recorded(move |tx, env, config| {
                    let found = config.root.find(guid);
                    found.ok_or_else(|| Error::not_found(EngineError::NoSuchLeaf(guid)))?;
                    let top = config.root.children.iter().find(|top| top.guid == guid);
                    let top = top.filter(|top| top.kind.is_concrete() && !top.top.is_log);
                    let Some((id, zap)) = top.and_then(|top| Some((top.id, top.top.zap_top?)))
                    else {
                        // As in OpenZFS, nothing is asked of another vdev that way.
                        return if is_allocating {
                            Ok(None)
                        } else {
                            let cause = EngineError::NoAllocations(guid);
                            Err(Error::new(Kind::Unsupported, cause).into())
                        };
                    };
                    let is_used = |other: &VdevConfig| {
                        other.id != id && normal.contains(&other.id) && !other.top.non_allocating
                    };
                    if !is_allocating
                        && normal.contains(&id)
                        && !config.root.children.iter().any(is_used)
                    {
                        let cause = EngineError::LastAllocating(guid);
                        return Err(Error::new(Kind::Invalid, cause).into());
                    }
                    zap::update(tx, zap, ALLOCATING, Value::U64(is_allocating.into()))?;
                    let text = format!("vdev_guid={guid}: allocating={}", u64::from(is_allocating));
                    history::log_pool(tx, env, "vdev set", &text)?;
                    let top = config.root.children.iter_mut().find(|top| top.id == id);
                    // That of a removed vdev stays as it is until the removal is cancelled.
                    let Some(top) = top.filter(|top| !top.top.removing) else { return Ok(None) };
                    if !is_on(Bug::AllocatingNotRecorded) {
                        top.top.non_allocating = !is_allocating;
                    }
                    config.touch();
                    Ok(Some(id))
                });
                if let Some(id) = changed.await? {
                    engine.alloc.set_allocating(id, is_allocating);
                }
                Ok(())
            })
            .await
    }

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
        let change = self.change_recorded(move |tx, env, config| {
            let vdev = config.root.find(guid);
            let vdev = vdev.ok_or_else(|| Error::not_found(EngineError::NoSuchLeaf(guid)))?;
            let Some(object) = vdev.properties_object() else {
                return Err(Error::new(Kind::Unsupported, EngineError::NoVdevZap(guid)).into());
            };
            match &value {
                Some(value) => zap::update(tx, object, &*name, value.clone())?,
                None => zap::take(tx, object, &*name).map(drop)?,
            }
            let text = format!("vdev_guid={guid}: {name}={}", text_of(value.as_ref()));
            history::log_pool(tx, env, "vdev set", &text)
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

/// Returns a value as OpenZFS's history has it: a number with a sign, and an empty text for a
/// property that was removed.
fn text_of(value: Option<&Value>) -> String {
    match value {
        Some(Value::U64(number)) => number.cast_signed().to_string(),
        Some(Value::Array { bytes, .. }) => {
            let text = bytes.strip_suffix(b"\0").unwrap_or(bytes);
            String::from_utf8_lossy(text).into_owned()
        }
        None => String::new(),
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
