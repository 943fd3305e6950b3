//! Hot spares that stand in for leaves that failed, and spares and cache devices that leave the
//! pool (spec 06 §9.3, §10).

use std::sync::Arc;

use cenote_device::{Device, OpenMode};
use cenote_dmu::{Tx, TxStop};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_pool::import::Found;
use cenote_rt::{Error, Result};
use cenote_vdev::{VdevAux, VdevState, labels};

use super::{Attach, NewLeaf, ShapeError, config};
use crate::admin::aux::{self, Aux};
use crate::admin::create::plan_distributed_spare;
use crate::admin::events::Event;
use crate::dsl::{Env, history};
use crate::space::checkpoint;
use crate::{Config, Leaves};

impl Leaves<'_> {
    /// Lets the first hot spare that can stand in for a leaf do so. Returns its guid; `None` if
    /// there is no such spare, or the leaf needs none. A resilver is to be started.
    ///
    /// # Errors
    /// Errors of a sync.
    pub async fn call_in_spare(self, failed: u64) -> Result<Option<u64>> {
        if !self.needs_spare(failed) {
            return Ok(None);
        }
        let view = self.engine.view().await?;
        for spare in view.spares() {
            let root = self.engine.config().root;
            let is_free =
                spare.state == VdevState::Healthy && root.find(spare.config.guid).is_none();
            if is_free && self.stand_in(failed, &spare.config).await? {
                return Ok(Some(spare.config.guid));
            }
        }
        Ok(None)
    }

    /// Lets a hot spare stand in for a leaf. Returns false if it cannot.
    async fn stand_in(self, failed: u64, spare: &VdevConfig) -> Result<bool> {
        let mut config = spare.clone();
        config.leaf.is_spare = true;
        let new = if spare.kind.is_real_leaf() {
            let Some(device) = self.open_spare(spare).await else { return Ok(false) };
            let ashift = u64::from(device.info().logical_ashift);
            NewLeaf { config, device: Some(device), ashift, is_sequential: false }
        } else {
            // As ZED does: a distributed spare is filled in the order of the disks.
            NewLeaf { is_sequential: true, ..plan_distributed_spare(spare) }
        };
        let attached = match self.attach(failed, new.clone(), Attach::Replace).await {
            Err(error) if new.is_sequential && is_order_refused(&error) => {
                let new = NewLeaf { is_sequential: false, ..new };
                self.attach(failed, new, Attach::Replace).await
            }
            attached => attached,
        };
        match attached {
            Ok(()) => Ok(true),
            // The device is too small or of another vdev, or came into use meanwhile.
            Err(error) if error.cause::<ShapeError>().is_some() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a leaf failed and nothing stands in for it.
    fn needs_spare(self, guid: u64) -> bool {
        let root = self.engine.config().root;
        let has_failed = self.engine.tree.vdev(guid).is_some_and(|vdev| match vdev.state() {
            VdevState::Faulted | VdevState::Removed | VdevState::CantOpen => true,
            VdevState::Degraded => vdev.aux() == VdevAux::ErrExceeded,
            _ => false,
        });
        let is_alone = config::parent_of(&root, guid)
            .is_some_and(|parent| !matches!(parent.kind, VdevKind::Spare | VdevKind::Replacing));
        let is_data = config::top_of(&root, guid).is_some_and(|top| !top.top.is_log);
        has_failed && is_alone && is_data && root.find(guid).is_some_and(|vdev| vdev.kind.is_leaf())
    }

    /// Removes a hot spare or cache device from the pool, and clears the labels of its device if
    /// that is at its path.
    ///
    /// # Errors
    /// [`ShapeError::InUse`] if the spare stands in for a leaf, [`ShapeError::NoSuchLeaf`] if there
    /// is no such device, a [`CheckpointError`](crate::CheckpointError); errors of a sync.
    pub async fn remove_aux(self, guid: u64) -> Result<()> {
        self.engine.space().check_no_checkpoint()?;
        let view = self.engine.view().await?;
        let spares = view.spares().iter().map(|aux| ("spare", aux));
        let mut all = spares.chain(view.caches().iter().map(|aux| ("l2cache", aux)));
        let found = all.find(|(_, aux)| aux.config.guid == guid);
        let (kind, aux) = found.ok_or_else(|| Error::from(ShapeError::NoSuchLeaf))?;
        let (device, state) = (aux.config.clone(), aux.state);
        drop(view);
        let path = device.leaf.path.as_ref().map(|path| path.to_string_lossy().into_owned());
        let of_record = path.clone().unwrap_or_else(|| "-".to_owned());
        let change = move |tx: &mut Tx<'_>, env: &Env, config: &mut Config| {
            checkpoint::check_none(tx)?;
            if config.root.find(guid).is_some() {
                return Err(TxStop::from(ShapeError::InUse));
            }
            let is_other = |vdev: &VdevConfig| vdev.guid != guid;
            aux::retain(tx, Aux::Spares, is_other)?;
            aux::retain(tx, Aux::Caches, is_other)?;
            config.touch();
            let text = format!("{} vdev ({kind}) {of_record}", config.facts.name);
            history::log_pool(tx, env, "vdev remove", &text)
        };
        self.engine.admin().change_recorded(change).await?;
        self.engine.health.damage.note(Event::AuxRemoved { device: guid, state, path });
        if let Some(device) = self.open_spare(&device).await {
            // A device that fails keeps its labels, which name no pool.
            self.relabel(async { drop(labels::clear(&*device).await) }).await;
        }
        Ok(())
    }

    /// Opens the device of a spare or cache device for writing, if its labels are still that one's.
    /// A crash after a spare was sent back leaves the labels of a leaf of this pool on it.
    async fn open_spare(self, config: &VdevConfig) -> Option<Arc<dyn Device>> {
        let path = config.leaf.path.as_ref()?.to_str()?;
        let device = self.open_at_path(path, OpenMode::Exclusive).await?;
        let found = Found::read(Arc::clone(&device)).await?;
        let pool = self.engine.guid();
        let is_it = found.configs.iter().any(|label| {
            let of = label.member.as_ref().map(|member| member.facts.pool_guid);
            label.guid == config.guid && of.is_none_or(|of| of == pool)
        });
        is_it.then_some(device)
    }
}

/// Whether a leaf was refused only because it was to be rebuilt sequentially.
fn is_order_refused(error: &Error) -> bool {
    let cause = error.cause::<ShapeError>();
    matches!(cause, Some(ShapeError::Resilvering | ShapeError::NoRebuildFeature))
}
