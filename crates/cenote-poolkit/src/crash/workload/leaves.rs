//! Operations on leaves, vdevs and scans, each beside writes, and their effects on the model.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_device::{Device, Image, OpenMode};
use cenote_engine::admin::NewVdevs;
use cenote_engine::create::{LeafSpec, plan_leaf};
use cenote_engine::{Attach, DeviceSource, NewLeaf, ScrubOptions};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::scan::ScanFunc;
use cenote_rt::{BoxFuture, Kind, Result};
use cenote_vdev::create::{Redundancy, VdevClass};

use super::vdevs::Disturbed;
use super::{Layout, Script};
use crate::crash::facts::{FAULTED, OFFLINE, POOL};

/// Rounds after which the sequence of operations restarts.
pub const ROUNDS_OF_LEAVES: u64 = 21;
/// Snapshots at most.
const SNAPSHOTS_MAX: usize = 4;
/// Interval of looks at what goes on.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Looks until an operation does not end.
const POLLS_MAX: usize = 10_000;
/// Leaves of an expanded vdev at most.
const WIDTH_MAX: usize = 5;
/// Resilvers at most until no leaf lacks anything.
const RESILVERS_MAX: usize = 4;

/// Operations with every layout.
const OF_ALL: [&str; 23] = [
    "create",
    "sync",
    "write",
    "snapshot",
    "destroying a snapshot",
    "scrub",
    "the end of a scrub",
    "pausing a scrub",
    "resuming a scrub",
    "stopping a scrub",
    "the end of a resilver",
    "replace",
    "the end of a replacement",
    "cancelling a replacement",
    "a second new leaf",
    "adding a log",
    "synchronous writes",
    "removing a log",
    "adopting sizes",
    "growing",
    "export",
    "import",
    "import amid a scrub",
];
/// Operations with layouts with redundancy.
const OF_REDUNDANT: [&str; 8] = [
    "offline",
    "online",
    "fault",
    "replacing a failed leaf",
    "calling in a spare",
    "clear",
    "sending back a spare",
    "repairing damage",
];
/// Operations with spares that are disks.
const OF_SPARES: [&str; 2] = ["adding a spare", "removing a spare"];
/// Operations with disks and mirrors.
const OF_MIRRORED: [&str; 7] = [
    "attach",
    "detach",
    "adding a vdev",
    "remove",
    "cancelling a removal",
    "the end of a removal",
    "condensing",
];
/// Operations with mirrors.
const OF_MIRRORS: [&str; 2] = ["split", "the end of a removal beside an absent side"];
/// Operations with RAID-Z.
const OF_RAIDZ: [&str; 2] = ["expand", "the end of an expansion"];

/// Returns the operations of a run with this layout, each at least once.
pub fn operations_on_leaves(layout: Layout) -> Vec<&'static str> {
    let mut operations = OF_ALL.to_vec();
    if layout.is_mirrored() {
        operations.extend(OF_MIRRORED);
    }
    if layout.is_raidz() {
        operations.extend(OF_RAIDZ);
    }
    if layout.spare_devices() > 0 {
        operations.extend(OF_REDUNDANT);
        if layout != Layout::Draid {
            operations.extend(OF_SPARES);
        }
    }
    if layout.spare_devices() > 1 {
        operations.push("losing all that may be missing");
    }
    match layout {
        Layout::Mirror => operations.extend(OF_MIRRORS),
        Layout::Special => operations.push("adding a special vdev"),
        _ => {}
    }
    operations
}

/// All devices, by path.
#[derive(Debug)]
pub(super) struct Shelf(Mutex<Vec<Arc<dyn Device>>>);

impl Shelf {
    pub(super) fn new(devices: Vec<Arc<dyn Device>>) -> Self {
        Self(Mutex::new(devices))
    }

    fn devices(&self) -> MutexGuard<'_, Vec<Arc<dyn Device>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn all(&self) -> Vec<Arc<dyn Device>> {
        self.devices().clone()
    }

    /// Takes the present size of a device.
    pub(super) async fn follow(&self, number: usize) -> Result<()> {
        let device = Arc::clone(&self.devices()[number]);
        if let Some(longer) = device.grown().await? {
            self.devices()[number] = longer;
        }
        Ok(())
    }
}

impl DeviceSource for Shelf {
    fn open<'a>(&'a self, path: &'a str, _: OpenMode) -> BoxFuture<'a, Option<Arc<dyn Device>>> {
        let device = self.devices().iter().find(|device| device.info().path == path).cloned();
        Box::pin(std::future::ready(device))
    }
}

/// How a scrub ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScrubEnd {
    Complete,
    Paused,
    Stopped,
}

impl Script {
    /// One operation in each round.
    pub(super) async fn change_leaves(&mut self, round: u64) -> Result<()> {
        match round % ROUNDS_OF_LEAVES {
            0 => self.scrub(ScrubEnd::Complete).await,
            1 => self.offline_and_online(round.is_multiple_of(2)).await,
            2 => self.attach_and_detach(false).await,
            3 => self.scrub(ScrubEnd::Paused).await,
            4 => self.replace(false).await,
            5 => self.add_and_remove(Disturbed::No).await,
            6 => self.attach_and_detach(true).await,
            7 => self.scrub(ScrubEnd::Stopped).await,
            8 => self.replace(true).await,
            9 => self.use_hot_spare().await,
            10 => self.expand().await,
            11 => {
                self.import_amid_a_scrub().await?;
                self.add_and_remove(Disturbed::Cancelled).await
            }
            12 => self.replace_failed().await,
            13 => self.lose_all_that_may_be_missing().await,
            14 => self.cancel_replacement().await,
            15 => self.fill_two().await,
            16 => self.add_and_remove_log().await,
            17 => self.damage_and_scrub().await,
            18 => self.grow().await,
            19 => self.split().await,
            _ if self.layout == Layout::Mirror => self.add_and_remove(Disturbed::AbsentSide).await,
            _ => Ok(()),
        }
    }

    /// Records that leaves may lack data, or are copied from, from the next txg on.
    pub(super) fn begin_degraded(&mut self) {
        self.state.is_unsettled = true;
        self.history.note(self.engine.uberblock().txg, &self.state);
    }

    /// Whether no leaf lacks anything.
    fn is_whole(&self) -> bool {
        self.engine.tree().leaves().all(|(_, leaf)| leaf.is_whole())
    }

    /// Records that every leaf is whole again.
    pub(super) fn end_degraded(&mut self, what: &'static str) {
        assert!(self.is_whole(), "a leaf lacks data after {what}");
        self.state.is_unsettled = false;
        self.state.is_replacing = false;
        self.state.unsure.clear();
        self.acknowledge(what);
    }

    /// Marks the txgs that are committed in the background while it waits.
    pub(super) async fn wait_until(&self, is_over: impl AsyncFn() -> Result<bool>) -> Result<()> {
        for _ in 0..POLLS_MAX {
            let is_over = is_over().await?;
            self.recorder.mark(self.engine.uberblock().txg);
            if is_over {
                return Ok(());
            }
            cenote_rt::sleep(POLL_INTERVAL).await;
        }
        // Of a pool that was stopped.
        self.engine.sync().await?;
        assert!(is_over().await?, "an operation does not end");
        Ok(())
    }

    /// Waits until no scan runs.
    pub(super) async fn wait_for_scans(&self) -> Result<()> {
        let scans = self.engine.scans();
        self.wait_until(async || Ok(scans.in_progress().await?.is_none())).await?;
        scans.wait(ScanFunc::Resilver).await?;
        scans.wait(ScanFunc::Scrub).await
    }

    /// Writes, snapshots, and destroys snapshots.
    pub(super) async fn write_and_snapshot(&mut self) -> Result<()> {
        self.write().await?;
        let heads = self.heads();
        let head = self.pick(&heads).unwrap();
        let name = format!("{head}@s{}", self.operations);
        self.engine.snapshots().create(vec![name.clone()]).await?;
        let content = self.state.datasets[&head].clone();
        self.state.datasets.insert(name, content);
        self.acknowledge("snapshot");
        self.write().await?;
        let snapshots = self.snapshots("");
        if snapshots.len() > SNAPSHOTS_MAX
            && let Some(victim) = self.pick(&snapshots)
        {
            self.engine.snapshots().destroy(&victim).await?;
            self.forget(&victim);
            self.acknowledge("destroying a snapshot");
        }
        Ok(())
    }

    pub(super) fn top(&self) -> VdevConfig {
        self.engine.admin().vdev_config().children[0].clone()
    }

    /// Returns the shape of the first top-level vdev with so many leaves.
    pub(super) fn shape(&self, leaves: usize) -> String {
        let redundancy = match self.top().kind {
            VdevKind::RaidZ(raidz) => Redundancy::Raidz(raidz.nparity),
            _ if leaves > 1 => Redundancy::Mirror,
            _ => Redundancy::Single,
        };
        Layout::in_words(redundancy, VdevClass::Normal, leaves)
    }

    /// Picks a leaf of the first top-level vdev, which is a disk, a mirror or a RAID-Z vdev.
    pub(super) fn pick_leaf(&mut self) -> u64 {
        let leaves: Vec<_> = self.top().leaves().map(|leaf| leaf.guid).collect();
        leaves[self.rng.below(leaves.len() as u64) as usize]
    }

    pub(super) fn new_device(&self) -> Arc<dyn Device> {
        let mut devices = self.devices.devices();
        let device = (self.make)(format!("d{}", devices.len()), self.subject.device_size_max());
        let device = self.recorder.wrap(device, Image::zeroed(self.device_size));
        devices.push(Arc::clone(&device));
        device
    }

    pub(super) fn new_leaf(&self, is_sequential: bool) -> Result<NewLeaf> {
        let device = self.new_device();
        let new = plan_leaf(&LeafSpec::of(device.info()), device)?;
        Ok(NewLeaf { is_sequential, ..new })
    }

    /// Fills the leaves that lack data, beside writes.
    pub(super) async fn resilver(&mut self, what: &'static str) -> Result<()> {
        self.fill().await?;
        self.end_degraded(what);
        Ok(())
    }

    /// Like [`resilver`](Self::resilver), before it is recorded.
    async fn fill(&mut self) -> Result<()> {
        self.engine.scans().resume().await?;
        self.write_and_snapshot().await?;
        for _ in 0..RESILVERS_MAX {
            self.wait_for_scans().await?;
            if self.is_whole() {
                break;
            }
            self.engine.scans().resume().await?;
        }
        Ok(())
    }

    async fn scrub(&mut self, end: ScrubEnd) -> Result<()> {
        self.engine.scans().scrub(ScrubOptions::default()).await?;
        self.acknowledge("scrub");
        if end == ScrubEnd::Complete {
            self.write_and_snapshot().await?;
        }
        if end == ScrubEnd::Paused && unless_over(self.engine.scans().pause().await)? {
            self.acknowledge("pausing a scrub");
            self.write_and_snapshot().await?;
            self.engine.scans().scrub(ScrubOptions::default()).await?;
            self.acknowledge("resuming a scrub");
        }
        if end == ScrubEnd::Stopped {
            self.write().await?;
            if unless_over(self.engine.scans().stop().await)? {
                self.acknowledge("stopping a scrub");
            }
        }
        self.wait_for_scans().await?;
        self.acknowledge("the end of a scrub");
        Ok(())
    }

    /// The pool is exported and imported while a scrub runs.
    async fn import_amid_a_scrub(&mut self) -> Result<()> {
        self.engine.scans().scrub(ScrubOptions::default()).await?;
        self.acknowledge("scrub");
        if self.engine.scans().is_running(ScanFunc::Scrub) {
            self.did("import amid a scrub");
        }
        self.import_again().await?;
        self.engine.scans().resume().await?;
        self.write_and_snapshot().await?;
        self.wait_for_scans().await?;
        self.acknowledge("the end of a scrub");
        Ok(())
    }

    /// A leaf is out of service for a while.
    async fn offline_and_online(&mut self, is_temporary: bool) -> Result<()> {
        if self.layout.spare_devices() == 0 {
            return Ok(());
        }
        let leaf = self.pick_leaf();
        self.begin_degraded();
        self.take_offline(leaf, is_temporary).await?;
        self.write_and_snapshot().await?;
        self.bring_online(leaf).await?;
        self.resilver("the end of a resilver").await
    }

    pub(super) async fn take_offline(&mut self, leaf: u64, is_temporary: bool) -> Result<()> {
        self.engine.leaves().offline(leaf, is_temporary).await?;
        if !is_temporary {
            self.say(POOL, &format!("leaf {leaf}"), OFFLINE.to_owned());
        }
        self.acknowledge("offline");
        Ok(())
    }

    pub(super) async fn bring_online(&mut self, leaf: u64) -> Result<()> {
        self.engine.leaves().online(leaf, None).await?;
        self.unsay(POOL, &format!("leaf {leaf}"));
        self.acknowledge("online");
        Ok(())
    }

    async fn fault(&mut self, leaf: u64) -> Result<()> {
        self.engine.leaves().fault(leaf, false).await?;
        self.say(POOL, &format!("leaf {leaf}"), FAULTED.to_owned());
        self.acknowledge("fault");
        Ok(())
    }

    /// Another leaf joins the mirror, or makes the disk one, and an older one leaves it.
    async fn attach_and_detach(&mut self, is_sequential: bool) -> Result<()> {
        if !self.layout.is_mirrored() {
            return Ok(());
        }
        let top = self.top();
        let (old, count) = (self.pick_leaf(), top.leaves().count());
        let new = self.new_leaf(is_sequential)?;
        let (more, less) = (self.shape(count + 1), self.shape(count));
        self.begin_degraded();
        self.engine.leaves().attach(old, new, Attach::Mirror).await?;
        self.say(POOL, &format!("top {}", top.id), more);
        self.acknowledge("attach");
        self.resilver("the end of a resilver").await?;
        self.begin_degraded();
        self.engine.leaves().detach(old, None).await?;
        self.say(POOL, &format!("top {}", top.id), less);
        self.end_degraded("detach");
        Ok(())
    }

    /// A leaf is replaced.
    async fn replace(&mut self, is_sequential: bool) -> Result<()> {
        let old = self.pick_leaf();
        let new = self.new_leaf(is_sequential && !self.layout.is_raidz())?;
        self.state.is_replacing = true;
        self.begin_degraded();
        self.engine.leaves().attach(old, new, Attach::Replace).await?;
        self.acknowledge("replace");
        self.resilver("the end of a replacement").await?;
        assert!(self.top().find(old).is_none(), "leaf {old} was not replaced");
        Ok(())
    }

    /// A leaf fails and is replaced.
    async fn replace_failed(&mut self) -> Result<()> {
        if self.layout.spare_devices() == 0 {
            return Ok(());
        }
        let old = self.pick_leaf();
        let failed = format!("leaf {old}");
        self.begin_degraded();
        self.fault(old).await?;
        self.write_and_snapshot().await?;
        let new = self.new_leaf(false)?;
        self.state.is_replacing = true;
        self.state.unsure.insert((POOL.to_owned(), failed.clone()), None);
        self.begin_degraded();
        self.engine.leaves().attach(old, new, Attach::Replace).await?;
        self.acknowledge("replacing a failed leaf");
        self.fill().await?;
        self.unsay(POOL, &failed);
        self.end_degraded("the end of a replacement");
        assert!(self.top().find(old).is_none(), "leaf {old} was not replaced");
        Ok(())
    }

    /// As many leaves as redundancy allows are out of service, and return one after the other.
    async fn lose_all_that_may_be_missing(&mut self) -> Result<()> {
        let count = self.layout.spare_devices();
        if count < 2 {
            return Ok(());
        }
        let leaves: Vec<_> = self.top().leaves().map(|leaf| leaf.guid).collect();
        let first = self.rng.below(leaves.len() as u64) as usize;
        let absent: Vec<_> = leaves.iter().cycle().skip(first).take(count).copied().collect();
        self.begin_degraded();
        for leaf in &absent {
            self.take_offline(*leaf, false).await?;
            self.write_and_snapshot().await?;
        }
        self.did("losing all that may be missing");
        for leaf in &absent {
            self.bring_online(*leaf).await?;
            self.engine.scans().resume().await?;
            self.write_and_snapshot().await?;
        }
        self.resilver("the end of a resilver").await
    }

    /// A replacement is cancelled while the new leaf is filled.
    async fn cancel_replacement(&mut self) -> Result<()> {
        let (old, new) = (self.pick_leaf(), self.new_leaf(false)?);
        let guid = new.config.guid;
        self.state.is_replacing = true;
        self.begin_degraded();
        self.engine.leaves().attach(old, new, Attach::Replace).await?;
        self.acknowledge("replace");
        self.engine.scans().resume().await?;
        self.write().await?;
        if self.top().find(old).is_some() {
            self.engine.leaves().detach(guid, None).await?;
            self.did("cancelling a replacement");
        }
        self.resilver("the end of a resilver").await
    }

    /// A leaf is attached or replaced while another new one is filled.
    async fn fill_two(&mut self) -> Result<()> {
        let (old, count) = (self.pick_leaf(), self.top().leaves().count());
        let is_mirrored = self.layout.is_mirrored();
        let how = if is_mirrored { Attach::Mirror } else { Attach::Replace };
        self.state.is_replacing = !is_mirrored;
        self.begin_degraded();
        let mut next = old;
        for number in 1..=2 {
            let new = self.new_leaf(false)?;
            self.engine.leaves().attach(next, new, how).await?;
            if is_mirrored {
                let shape = self.shape(count + number);
                self.say(POOL, "top 0", shape);
            }
            self.acknowledge(if number == 1 { "a first new leaf" } else { "a second new leaf" });
            self.engine.scans().resume().await?;
            self.write().await?;
            let is_other = |child: &&VdevConfig| child.kind.is_leaf() && child.guid != old;
            next = self.top().children.iter().find(is_other).map_or(old, |leaf| leaf.guid);
        }
        self.resilver("the end of a resilver").await?;
        while is_mirrored && self.top().leaves().count() > count {
            let (leaf, left) = (self.pick_leaf(), self.top().leaves().count() - 1);
            self.begin_degraded();
            self.engine.leaves().detach(leaf, None).await?;
            let shape = self.shape(left);
            self.say(POOL, "top 0", shape);
            self.end_degraded("detach");
        }
        Ok(())
    }

    /// A hot spare stands in for a leaf until that is back.
    async fn use_hot_spare(&mut self) -> Result<()> {
        if self.layout.spare_devices() == 0 {
            return Ok(());
        }
        let is_distributed = self.layout == Layout::Draid;
        let spare = if is_distributed { self.spares().await?[0] } else { self.add_spare().await? };
        let leaf = self.pick_leaf();
        self.state.is_replacing = true;
        self.begin_degraded();
        self.fault(leaf).await?;
        let called = self.engine.leaves().call_in_spare(leaf).await?;
        assert_eq!(called, Some(spare), "no spare stands in for leaf {leaf}");
        self.acknowledge("calling in a spare");
        self.engine.scans().resume().await?;
        self.write_and_snapshot().await?;
        self.wait_for_scans().await?;
        self.engine.leaves().clear(Some(leaf)).await?;
        self.unsay(POOL, &format!("leaf {leaf}"));
        self.acknowledge("clear");
        self.engine.scans().resume().await?;
        self.write_and_snapshot().await?;
        self.wait_for_scans().await?;
        if self.top().find(spare).is_some() {
            self.engine.leaves().detach(spare, None).await?;
        }
        self.end_degraded("sending back a spare");
        if !is_distributed {
            self.engine.leaves().remove_aux(spare).await?;
            self.unsay(POOL, &format!("spare {spare}"));
            self.acknowledge("removing a spare");
        }
        Ok(())
    }

    async fn add_spare(&mut self) -> Result<u64> {
        let NewLeaf { mut config, device, .. } = self.new_leaf(false)?;
        config.leaf.is_spare = true;
        let spare = config.guid;
        let new = NewVdevs {
            tops: Vec::new(),
            spares: vec![config],
            caches: Vec::new(),
            devices: device.into_iter().map(|device| (spare, device)).collect(),
        };
        self.engine.admin().add_vdevs(new).await?;
        self.say(POOL, &format!("spare {spare}"), String::new());
        self.acknowledge("adding a spare");
        Ok(spare)
    }

    /// Returns the hot spares.
    pub(super) async fn spares(&self) -> Result<Vec<u64>> {
        let view = self.engine.view().await?;
        Ok(view.spares().iter().map(|spare| spare.config.guid).collect())
    }

    /// A RAID-Z vdev gets another leaf.
    async fn expand(&mut self) -> Result<()> {
        let top = self.top();
        let width = top.children.len() + 1;
        if !self.layout.is_raidz() || width > WIDTH_MAX {
            return Ok(());
        }
        let (new, shape) = (self.new_leaf(false)?, self.shape(width));
        self.begin_degraded();
        self.engine.leaves().expand_raidz(top.guid, new).await?;
        self.say(POOL, &format!("top {}", top.id), shape);
        self.acknowledge("expand");
        self.engine.leaves().resume_reflow();
        self.write_and_snapshot().await?;
        let leaves = self.engine.leaves();
        self.wait_until(async || Ok(leaves.reflow_progress().is_none())).await?;
        leaves.wait_for_reflow().await;
        self.end_degraded("the end of an expansion");
        Ok(())
    }
}

/// Returns false if what was to be stopped has ended.
pub(super) fn unless_over(stopped: Result<()>) -> Result<bool> {
    match stopped {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == Kind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
