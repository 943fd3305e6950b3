//! Views: the last committed state of the pool, for readers while it is being written.
//!
//! A view is a [`Pool`] of one txg over the engine's devices, counters and cache. A pin keeps the
//! blocks of the view in place until the pool needs the space or the pin's deadline has passed.
//! Then the view is *overtaken*: reads through it fail with `Kind::Overtaken`, and a checksum
//! mismatch does not count as damage. Views are for short commands, which start again with another
//! view. Datasets that stay open are opened through the engine. Nothing is repaired through a view.

use std::sync::{Arc, Weak};
use std::time::Duration;

use cenote_block::Grounds;
use cenote_block::alloc::Pin;
use cenote_device::OpenMode;
use cenote_dmu::ObjSet;
use cenote_ondisk::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::import::Found;
use cenote_pool::keys::KeyStore;
use cenote_pool::pool::{PoolParts, stored_config};
use cenote_pool::{Pool, Presence};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Result, tunables};

use crate::dsl::changed::ChangeLog;
use crate::{Config, Engine};

/// State shared by all views.
#[derive(Debug)]
pub(crate) struct Views {
    /// Loaded keys, kept while the pool is open.
    pub(crate) keys: Arc<KeyStore>,
    /// The state of the pool on this host.
    pub(crate) presence: Arc<Presence>,
    /// The newest view, while it is referenced.
    pub(crate) last: Mutex<Weak<Pool>>,
    /// Changed datasets, for a host that mounts them.
    pub(crate) changes: ChangeLog,
}

impl Default for Views {
    fn default() -> Self {
        Self {
            keys: Arc::default(),
            presence: Arc::default(),
            last: Mutex::with_default(Rank::Views),
            changes: ChangeLog::default(),
        }
    }
}

impl Engine {
    /// Returns the state of the pool on this host, for example its mounts.
    pub fn presence(&self) -> &Arc<Presence> {
        &self.views.presence
    }

    /// Returns the pool at the last committed txg. Drop it soon: when its space is needed, or after
    /// the time in the tunable `cenote_pin_deadline_ms`, reads fail with `Kind::Overtaken`, and the
    /// reader starts again with another view.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn view(&self) -> Result<Arc<Pool>> {
        self.views.presence.set_leaf_work(self.leaf.works.offsets());
        let time = Duration::from_millis(tunables::PIN_DEADLINE_MS.get());
        let last = || self.views.last.lock();
        loop {
            // Pinned before the uberblock is read, so that its blocks are kept.
            let pin = Arc::new(self.alloc.pin_for(time));
            let uberblock = self.uberblock();
            let newest = last().upgrade();
            let is_good = |view: &Arc<Pool>| *view.uberblock() == uberblock && has_time(view, time);
            if let Some(view) = newest.filter(is_good) {
                return Ok(view);
            }
            match self.view_of(uberblock, &pin).await {
                // The state became invalid, whatever the error was.
                Err(_) if !pin.is_valid() => {}
                view => {
                    let view = view?;
                    *last() = Arc::downgrade(&view);
                    return Ok(view);
                }
            }
        }
    }

    /// Like [`view`](Self::view), for a reader of the whole pool: the view ends only when its space
    /// is needed, or after `time`. Its reads are I/O of scans ([`cenote_vdev::IoClass::Scrub`]).
    ///
    /// # Errors
    /// The errors of [`view`](Self::view).
    pub async fn view_for(&self, time: Duration) -> Result<Arc<Pool>> {
        self.view_with(|| self.alloc.pin_for(time).of_scan()).await
    }

    /// Like [`view_for`](Self::view_for), and repairs bad copies that reads find.
    ///
    /// # Errors
    /// The errors of [`view`](Self::view).
    pub(crate) async fn view_of_scan(&self, time: Duration) -> Result<Arc<Pool>> {
        self.view_with(|| self.alloc.pin_for(time).of_scan().repairing()).await
    }

    async fn view_with(&self, pin: impl Fn() -> Pin) -> Result<Arc<Pool>> {
        loop {
            let pin = Arc::new(pin());
            match self.view_of(self.uberblock(), &pin).await {
                Err(_) if !pin.is_valid() => {}
                view => return view,
            }
        }
    }

    async fn view_of(&self, uberblock: Uberblock, pin: &Arc<Pin>) -> Result<Arc<Pool>> {
        let grounds = Grounds::Pinned(Arc::clone(pin));
        let (store, root) = (Arc::clone(&self.store), &uberblock.rootbp);
        let mos = ObjSet::open_on(store, root, None, 0, grounds.clone()).await?;
        let config = self.config();
        let name = config.facts.name.clone();
        let mut view = Pool::assemble(PoolParts {
            name: &name,
            config: recorded_config(&mos, config).await?,
            uberblock,
            tree: Arc::clone(&self.tree),
            store: Arc::clone(&self.store),
            mos,
            keys: Arc::clone(&self.views.keys),
            presence: Arc::clone(&self.views.presence),
            grounds,
        })
        .await?;
        let [spares, caches] = view.aux_configs().await;
        let found = self.look_for(spares.iter().chain(&caches)).await;
        view.set_aux_devices(spares, caches, |guid| {
            found.iter().find(|found| found.guid() == guid)
        });
        // The calls above ignore some read errors.
        pin.check()?;
        Ok(Arc::new(view))
    }

    /// Returns the hot spares and cache devices that are at their recorded paths.
    async fn look_for(&self, configs: impl Iterator<Item = &VdevConfig>) -> Vec<Arc<Found>> {
        let mut found = Vec::new();
        for path in configs.filter_map(|config| config.leaf.path.as_ref()) {
            let path = path.to_string();
            let opened = self.leaves().open_at_path(&path, OpenMode::ReadOnly).await;
            let Some(device) = opened else { continue };
            found.extend(Found::read(device).await.map(Arc::new));
        }
        found
    }
}

/// Whether an existing view lasts long enough for another reader.
fn has_time(view: &Pool, time: Duration) -> bool {
    match view.grounds() {
        Grounds::Pinned(pin) => pin.is_valid() && pin.remaining() >= time / 2,
        _ => true,
    }
}

/// Returns the config in the MOS, with the engine's current devices and pool state. The objects of
/// vdevs are those that the MOS has: a vdev may be about to be added, or its objects about to be
/// freed. A vdev whose removal begins or ends in the txg that is being synced is as the MOS has it.
async fn recorded_config(mos: &Arc<ObjSet>, known: Config) -> Result<PoolConfig> {
    let mut config = stored_config(mos).await?;
    let recorded = std::mem::replace(&mut config.vdev_tree, known.root);
    config.facts = known.facts;
    for top in &mut config.vdev_tree.children {
        let before = recorded.children.iter().find(|before| before.id == top.id);
        let state = |top: &VdevConfig| (top.kind == VdevKind::Indirect, top.top.indirect_object);
        match before {
            Some(before) if state(before) != state(top) => *top = before.clone(),
            _ => take_objects(top, before),
        }
    }
    Ok(config)
}

/// Gives a top-level vdev the objects of the recorded one; none if that is `None`.
fn take_objects(top: &mut VdevConfig, recorded: Option<&VdevConfig>) {
    (top.top.metaslab_array, top.top.zap_top) =
        recorded.map_or((0, None), |recorded| (recorded.top.metaslab_array, recorded.top.zap_top));
    take_leaf_objects(top, recorded);
}

fn take_leaf_objects(vdev: &mut VdevConfig, recorded: Option<&VdevConfig>) {
    let before = recorded.and_then(|recorded| recorded.find(vdev.guid));
    let leaf = &mut vdev.leaf;
    (leaf.dtl_object, leaf.zap_leaf) =
        before.map_or((None, None), |before| (before.leaf.dtl_object, before.leaf.zap_leaf));
    vdev.children.iter_mut().for_each(|child| take_leaf_objects(child, recorded));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vdev(kind: VdevKind, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
        VdevConfig { kind, guid, children, ..VdevConfig::root(guid, Vec::new()) }
    }

    /// A leaf with these objects.
    fn leaf(guid: u64, dtl_object: u64, zap_leaf: u64) -> VdevConfig {
        let mut leaf = vdev(VdevKind::File, guid, Vec::new());
        (leaf.leaf.dtl_object, leaf.leaf.zap_leaf) = (Some(dtl_object), Some(zap_leaf));
        leaf
    }

    /// A disk that becomes a mirror has the recorded objects, and its new side none; neither has a
    /// vdev that is being added.
    #[test]
    fn vdevs_of_a_view_have_the_objects_that_the_mos_has() {
        let mut recorded = leaf(10, 100, 101);
        (recorded.top.metaslab_array, recorded.top.zap_top) = (50, Some(51));
        let mut mirror = vdev(VdevKind::Mirror, 1, vec![leaf(10, 200, 101), leaf(11, 202, 203)]);
        (mirror.top.metaslab_array, mirror.top.zap_top) = (60, Some(61));
        let objects = |top: &VdevConfig| {
            let leaves = top.leaves().map(|leaf| (leaf.leaf.dtl_object, leaf.leaf.zap_leaf));
            (top.top.metaslab_array, top.top.zap_top, leaves.collect::<Vec<_>>())
        };
        let mut new = mirror.clone();
        take_objects(&mut mirror, Some(&recorded));
        let leaves = vec![(Some(100), Some(101)), (None, None)];
        assert_eq!(objects(&mirror), (50, Some(51), leaves));
        take_objects(&mut new, None);
        assert_eq!(objects(&new), (0, None, vec![(None, None); 2]));
    }
}
