//! Operations on top-level vdevs and on all leaves of one, and their effects on the model.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::Tx;
use cenote_engine::zil::LogRecord;
use cenote_engine::{ApplyOptions, Attach, ScrubOptions, SplitPool};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::label::LABEL_COUNT;
use cenote_pool::import::scan_devices;
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::{BufMut, Result};
use cenote_vdev::create::{Redundancy, VdevClass};

use super::leaves::unless_over;
use super::{Layout, SPLIT_OFF, Script};
use crate::crash::facts::{HOLE, INDIRECT, OFFLINE, POOL};
use crate::crash::model::{self, BLOCK, State};

/// Txgs of writes to a vdev that is to be removed.
const WRITES_BEFORE_REMOVAL: u64 = 10;
/// Txgs of writes after a removal, most of which free something on the removed vdev.
const WRITES_AFTER_REMOVAL: u64 = 8;
/// Writes to intent logs.
const LOGGED_WRITES: u64 = 4;
/// Bytes by which devices become longer.
const GROWTH: u64 = 64 << 20;
/// Bytes between two places that are damaged, and of the parts with labels.
const DAMAGE_STEP: u64 = 32 << 10;
const LABELS: u64 = 4 << 20;
const SECTOR: u64 = 512;

/// How a removal is disturbed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Disturbed {
    No,
    /// Cancelled at first.
    Cancelled,
    /// A side of the mirror that gets the data is out of service.
    AbsentSide,
}

impl Script {
    /// A vdev is added, gets data, and is removed.
    pub(super) async fn add_and_remove(&mut self, disturbed: Disturbed) -> Result<()> {
        if !self.layout.is_mirrored() {
            return Ok(());
        }
        let id = self.engine.admin().next_vdev_id();
        // Special vdevs come and go, too.
        if self.layout == Layout::Special && disturbed == Disturbed::Cancelled {
            self.add(Redundancy::Single, VdevClass::Special, 1, "adding a special vdev").await?;
        } else {
            self.add_for_data().await?;
        }
        for _ in 0..WRITES_BEFORE_REMOVAL {
            self.write().await?;
        }
        let absent = self.pick_leaf();
        if disturbed == Disturbed::AbsentSide {
            self.begin_degraded();
            self.take_offline(absent, false).await?;
        }
        let guid = self.engine.admin().vdev_config().children[id as usize].guid;
        self.begin_removal(id, guid).await?;
        if disturbed == Disturbed::Cancelled && unless_over(self.engine.removals().cancel().await)?
        {
            self.end_degraded("cancelling a removal");
            self.write().await?;
            self.begin_removal(id, guid).await?;
        }
        self.write_and_snapshot().await?;
        let removals = self.engine.removals();
        self.wait_until(async || Ok(!removals.is_running())).await?;
        removals.wait().await?;
        self.say(POOL, &format!("top {id}"), INDIRECT.to_owned());
        if disturbed == Disturbed::AbsentSide {
            self.acknowledge("the end of a removal beside an absent side");
            self.bring_online(absent).await?;
            self.resilver("the end of a resilver").await?;
        } else {
            self.end_degraded("the end of a removal");
        }
        self.condense(id).await
    }

    async fn begin_removal(&mut self, id: u64, guid: u64) -> Result<()> {
        let is_removed = Some(INDIRECT.to_owned());
        self.state.unsure.insert((POOL.to_owned(), format!("top {id}")), is_removed);
        self.begin_degraded();
        self.engine.removals().begin(guid).await?;
        self.acknowledge("remove");
        Ok(())
    }

    /// Frees some of what was on a removed vdev, whose mapping is condensed meanwhile.
    async fn condense(&mut self, id: u64) -> Result<()> {
        let entries = |script: &Self| {
            script.engine.tree().indirect(id).map_or(0, |mapping| mapping.entries().len())
        };
        let before = entries(self);
        for _ in 0..WRITES_AFTER_REMOVAL {
            self.write().await?;
        }
        self.engine.removals().wait_condensed().await?;
        self.acknowledge("sync");
        if entries(self) < before {
            self.did("condensing");
        }
        Ok(())
    }

    /// A log vdev is added, used, and removed.
    pub(super) async fn add_and_remove_log(&mut self) -> Result<()> {
        let id = self.engine.admin().next_vdev_id();
        self.add(Redundancy::Single, VdevClass::Log, 1, "adding a log").await?;
        self.write_logged().await?;
        let guid = self.engine.admin().vdev_config().children[id as usize].guid;
        self.engine.leaves().remove_log(guid).await?;
        self.say(POOL, &format!("top {id}"), HOLE.to_owned());
        self.acknowledge("removing a log");
        self.write_logged().await
    }

    /// Writes that are in an intent log until they are synced.
    async fn write_logged(&mut self) -> Result<()> {
        let heads = self.heads();
        let name = self.pick(&heads).unwrap();
        let head = self.engine.head(&name).await?;
        let Some(object) = self.objects(&name).keys().next().copied() else { return Ok(()) };
        for block in 0..LOGGED_WRITES {
            let salt = self.rng.next_u64();
            let (bytes, offset) = (model::bytes(block, salt), block * BLOCK as u64);
            let write = |tx: &mut Tx<'_>| {
                tx.write(object, offset, &bytes)?;
                let record = LogRecord::write_later(object, offset, BLOCK as u64);
                Ok(((), head.log().append(tx, vec![record])?))
            };
            let options = ApplyOptions::new().logged();
            let ((), txg) = self.engine.apply(&head, options, write).await?;
            self.objects(&name).get_mut(&object).unwrap().insert(block, salt);
            self.changed(txg, "write");
            self.engine.intent_logs().commit(&head, Some(object)).await?;
        }
        self.engine.sync().await?;
        self.acknowledge("synchronous writes");
        Ok(())
    }

    /// The devices of a vdev become longer, and the vdev larger.
    pub(super) async fn grow(&mut self) -> Result<()> {
        let before = self.top().top.asize;
        self.device_size += GROWTH;
        for leaf in self.top().leaves() {
            let number = self.device_number(leaf.guid);
            self.recorder.grow(number, self.device_size);
            self.devices.follow(number).await?;
        }
        self.engine.leaves().adopt_sizes().await?;
        self.acknowledge("adopting sizes");
        self.write_and_snapshot().await?;
        self.engine.leaves().expand(None).await?;
        self.acknowledge("growing");
        assert!(self.top().top.asize > before, "the vdev has not grown");
        self.write_and_snapshot().await
    }

    /// One side of each mirror becomes another pool, and new ones are attached.
    pub(super) async fn split(&mut self) -> Result<()> {
        if self.layout != Layout::Mirror {
            return Ok(());
        }
        let root = self.engine.admin().vdev_config();
        let side = |top: &VdevConfig| match top.kind {
            VdevKind::Mirror => top.children.last().map(|leaf| leaf.guid),
            _ => None,
        };
        // Without holes at the end.
        let last = root.children.iter().rposition(|top| top.kind != VdevKind::Hole);
        let leaves: Vec<_> =
            root.children.iter().take(last.map_or(0, |last| last + 1)).map(side).collect();
        // The sides are taken out of service first; an import may end what was begun.
        let shape = self.shape(1);
        self.state.unsure.insert((POOL.to_owned(), "top 0".to_owned()), Some(shape.clone()));
        for side in leaves.iter().flatten() {
            let key = (POOL.to_owned(), format!("leaf {side}"));
            self.state.unsure.insert(key, Some(OFFLINE.to_owned()));
        }
        self.begin_degraded();
        let new = SplitPool { name: SPLIT_OFF.into(), leaves, settings: Vec::new() };
        self.engine.leaves().split(new).await?;
        self.state.unsure.clear();
        self.say(POOL, "top 0", shape);
        self.acknowledge("split");
        self.check_split_off().await?;
        let (old, new) = (self.pick_leaf(), self.new_leaf(false)?);
        self.engine.leaves().attach(old, new, Attach::Mirror).await?;
        let shape = self.shape(2);
        self.say(POOL, "top 0", shape);
        self.acknowledge("attach");
        self.resilver("the end of a resilver").await
    }

    /// Checks that the pool that was split off has everything.
    async fn check_split_off(&self) -> Result<()> {
        let datasets = self.state.datasets.iter();
        let renamed = |(name, objects): (&String, &_)| {
            (name.replacen("tank", SPLIT_OFF, 1), BTreeMap::clone(objects))
        };
        let state = State { datasets: datasets.map(renamed).collect(), ..State::default() };
        let scan = scan_devices(self.devices.all()).await;
        let found = scan.find(SPLIT_OFF).expect("there is the other pool");
        let pool = Pool::open(found, &OpenOptions::default()).await?;
        let same = model::check_datasets(&pool, &state).await.map(drop);
        assert_eq!(same, Ok(()), "the pool that was split off");
        Ok(())
    }

    /// A leaf has bad sectors everywhere; a scrub repairs them.
    pub(super) async fn damage_and_scrub(&mut self) -> Result<()> {
        if self.layout.spare_devices() == 0 {
            return Ok(());
        }
        let leaf = self.pick_leaf();
        self.state.is_damaged = true;
        self.begin_degraded();
        self.damage(self.device_number(leaf)).await?;
        self.engine.store().clear_cache();
        self.engine.scans().scrub(ScrubOptions::default()).await?;
        self.acknowledge("scrub");
        self.write_and_snapshot().await?;
        self.wait_for_scans().await?;
        self.state.is_damaged = false;
        self.end_degraded("repairing damage");
        Ok(())
    }

    /// Changes a byte of every 32 KiB between the labels, where anything is stored.
    async fn damage(&self, device: usize) -> Result<()> {
        let device = Arc::clone(&self.devices.all()[device]);
        let mut count = 0;
        for at in (LABELS..device.info().size - LABELS).step_by(DAMAGE_STEP as usize) {
            let mut sector = device.read(at, BufMut::zeroed(SECTOR as usize)).await?;
            if sector.iter().any(|byte| *byte != 0) {
                sector[7] ^= 1;
                device.write(at, vec![sector.freeze()]).await?;
                count += 1;
            }
        }
        assert!(count > 0, "nothing was damaged");
        device.flush().await
    }

    /// Returns the number of the device of a leaf.
    fn device_number(&self, leaf: u64) -> usize {
        let root = self.engine.admin().vdev_config();
        let path = root.find(leaf).and_then(|leaf| leaf.leaf.path.as_ref()).expect("it has a path");
        let path = String::from_utf8_lossy(path.as_bytes());
        let number = path.rsplit_once('d').and_then(|(_, number)| number.parse().ok());
        number.expect("a device of this run")
    }

    /// Checks that the leaves of the exported pool have all their labels, and other devices none.
    pub(super) async fn check_departed(&self) {
        let leaves: Vec<_> = self.engine.tree().leaves().map(|(_, leaf)| leaf.guid()).collect();
        let scan = scan_devices(self.devices.all()).await;
        let of_pool = scan.candidates.iter().filter(|pool| pool.guid() == self.engine.guid());
        for found in of_pool.flat_map(|pool| &pool.devices) {
            let path = &found.path;
            assert!(leaves.contains(&found.guid()), "{path} has left the pool, and has its labels");
            assert_eq!(found.good_labels, LABEL_COUNT, "{path} has not all its labels");
        }
    }
}
