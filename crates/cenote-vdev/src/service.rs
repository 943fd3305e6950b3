//! Takes leaves out of service while the pool is in use, and returns them to service.
//!
//! ```text
//!   an I/O fails ──> suspect ──probe──> it answers: goes on
//!                                  `--> it does not: taken out, unless it has the only copy
//!   administrator ─────────────────────> taken out
//!   taken out ──device, probe──> back in service, with the log of what it lacks
//! ```
//!
//! The engine decides, and records the decision in the config; this module applies it to I/O. A
//! leaf out of service is neither read nor written, and every txg of which it would have received
//! blocks enters its dirty time log. So its contents are not taken for current when it returns
//! (spec 06 §2.3, §8).
//!
//! Order of removal: first no more I/O is sent to the leaf, then its unflushed writes are entered
//! in its log. In the other order, a write in between would be in neither. Writes that were sent
//! before and end after that are entered in the log when they end.

use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use cenote_device::Device;
use cenote_ondisk::label::{self, LABEL_COUNT};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BufMut, Error, Kind, Result};

use crate::leaf::{Leaf, LeafId};
use crate::state::{VdevAux, VdevState};
use crate::tree::{Tree, Vdev};

/// The area of each label that a probe reads and writes back; nothing else writes it while the pool
/// is in use.
const PROBED: label::Area = label::BOOT_ENV;

/// Why a leaf cannot return to service.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServiceError {
    /// No leaf has this guid.
    #[error("there is no leaf {0}")]
    NoSuchLeaf(u64),
    /// The leaf has no device, and none was given.
    #[error("leaf {0} has no device")]
    NoDevice(u64),
    /// The device has no room for the data of the leaf.
    #[error("device of {size} bytes for leaf {guid} is too small")]
    TooSmall {
        /// The leaf.
        guid: u64,
        /// Bytes of the device.
        size: u64,
    },
    /// The device cannot be read, written and flushed at its labels.
    #[error("leaf {0} failed its probe")]
    ProbeFailed(u64),
}

/// When a leaf is needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It has the only copy of some data.
    OnlyCopy,
    /// Also if it would have the only copy without the children of its RAID-Z or dRAID that are
    /// being replaced: for a leaf that fails and could stay.
    ReplacementsToo,
}

impl Tree {
    /// The leaf with this guid.
    pub fn leaf_of(&self, guid: u64) -> Option<LeafId> {
        self.leaves().find(|(_, leaf)| leaf.guid() == guid).map(|(id, _)| id)
    }

    /// The top-level vdev of the leaf with this guid.
    pub fn top_of(&self, guid: u64) -> Option<&Vdev> {
        Some(&self.vdevs[self.top_above(self.index_of(guid)?)?])
    }

    /// Counts how often leaves left service or got another device. A caller that writes, flushes,
    /// and finds the same count as before knows that the flush covered the devices that took its
    /// writes: a leaf that left service in between is not flushed, and fails no flush.
    pub fn service_changes(&self) -> u64 {
        // Also those that left the tree, so that the sum never falls.
        self.leaves.iter().map(Leaf::generation).sum()
    }

    /// Whether an I/O of some leaf failed since [`take_failed`](Self::take_failed).
    pub fn has_failed(&self) -> bool {
        self.leaves().any(|(_, leaf)| leaf.has_failed())
    }

    /// The leaves of which an I/O failed since the last call.
    pub fn take_failed(&self) -> Vec<LeafId> {
        self.leaves().filter(|(_, leaf)| leaf.take_failed()).map(|(id, _)| id).collect()
    }

    /// Probes the device of a leaf: checks its size, then reads the boot environment of a label and
    /// writes it back, trying one label after the other until that works once, and flushes.
    ///
    /// # Errors
    /// [`VdevAux::BadLabel`] if the device became shorter than the data of the leaf,
    /// [`VdevAux::ErrExceeded`] if the probe fails or there is no device.
    pub async fn probe(&self, id: LeafId) -> std::result::Result<(), VdevAux> {
        let leaf = self.leaf(id);
        let device = leaf.device().ok_or(VdevAux::ErrExceeded)?;
        match leaf.probe_device(&*device).await {
            Ok(()) => Ok(()),
            Err(ServiceError::TooSmall { .. }) => Err(VdevAux::BadLabel),
            Err(_) => Err(VdevAux::ErrExceeded),
        }
    }

    /// Takes a leaf out of service. Returns false if there is no such leaf.
    pub fn take_out_of_service(&self, guid: u64, state: VdevState, aux: VdevAux) -> bool {
        let Some(id) = self.leaf_of(guid) else { return false };
        let leaf = self.leaf(id);
        leaf.set_service(false, false);
        leaf.drop_unflushed();
        self.set_status(guid, state, aux);
        true
    }

    /// Takes a leaf out of service unless it is needed. Returns false if it stays, or if there is
    /// no such leaf.
    ///
    /// Ordering that data depends on: the leaf is marked as leaving before the logs of the others
    /// are examined, and a write enters its failures into those logs before it looks for leaving
    /// leaves ([`write`](Self::write)). So for a block that this leaf took and another one refused
    /// just now, one of the two sides sees the other: either the leaf stays, or the write fails.
    pub fn take_out_of_service_unless_needed(
        &self,
        guid: u64,
        state: VdevState,
        aux: VdevAux,
        need: Need,
    ) -> bool {
        let Some(id) = self.leaf_of(guid) else { return false };
        let leaf = self.leaf(id);
        leaf.set_leaving(true);
        fence(Ordering::SeqCst);
        let is_needed = match need {
            Need::OnlyCopy => self.is_dtl_required(guid),
            Need::ReplacementsToo => self.is_needed_by_replacements(guid),
        };
        let goes = !is_needed && self.take_out_of_service(guid, state, aux);
        leaf.set_leaving(false);
        goes
    }

    /// Sets the state of a leaf that stays in service.
    pub fn set_status(&self, guid: u64, state: VdevState, aux: VdevAux) {
        if let Some(vdev) = self.vdev(guid) {
            vdev.status.set((state, aux));
            self.derive_states();
        }
    }

    /// Returns a leaf to service, on `device` if one is given, else on the one it had. Its dirty
    /// time log keeps the txgs that it lacks.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such leaf; `Kind::Io` if it has no device, or the probe
    /// fails. The cause is a [`ServiceError`].
    pub async fn return_to_service(
        &self,
        guid: u64,
        device: Option<Arc<dyn Device>>,
    ) -> Result<()> {
        self.check_writable()?;
        let id = self.leaf_of(guid);
        let id = id.ok_or_else(|| Error::not_found(ServiceError::NoSuchLeaf(guid)))?;
        let leaf = self.leaf(id);
        let refuse = |why| Err(Error::new(Kind::Io, why));
        if let Some(device) = device {
            let trial = leaf.try_device(device)?;
            let answer = leaf.probe_device(trial.device()).await;
            leaf.end_trial(&trial, answer.is_ok())?;
            if let Err(why) = answer {
                return refuse(why);
            }
        } else {
            let Some(device) = leaf.device() else {
                return refuse(ServiceError::NoDevice(guid));
            };
            if let Err(why) = leaf.probe_device(&*device).await {
                return refuse(why);
            }
        }
        // If it stayed in service, its unflushed writes must be flushed before it gets more.
        leaf.flush().await.map_err(|(_, error)| error)?;
        leaf.take_failed();
        leaf.watch.diagnosis.reset();
        if is_on(Bug::DtlEmptiedEarly) {
            leaf.excise(u64::MAX);
        }
        leaf.set_service(true, true);
        self.set_status(guid, VdevState::Healthy, VdevAux::None);
        Ok(())
    }

    /// Resets the error counters of one leaf, or of all.
    pub fn clear_errors(&self, guid: Option<u64>) {
        for (_, leaf) in self.leaves() {
            if guid.is_none_or(|guid| guid == leaf.guid()) {
                leaf.clear_errors();
            }
        }
    }
}

impl Leaf {
    /// Checks whether a device can serve this leaf. The size comes first: on a device that is too
    /// short the probe itself would overwrite data.
    async fn probe_device(&self, device: &dyn Device) -> std::result::Result<(), ServiceError> {
        let guid = self.guid();
        let size = device.current_size().await.map_err(|_| ServiceError::ProbeFailed(guid))?;
        // Labels are where they were when the device was opened.
        let size = size.min(device.info().size);
        if !self.fits(size) {
            return Err(ServiceError::TooSmall { guid, size });
        }
        let fails = self.watch.injections.fails_probes();
        if !fails && probe_labels(device).await {
            Ok(())
        } else {
            Err(ServiceError::ProbeFailed(guid))
        }
    }
}

async fn probe_labels(device: &dyn Device) -> bool {
    let offsets = (0..LABEL_COUNT).filter_map(|n| label::label_offset(device.info().size, n));
    for offset in offsets {
        let at = offset + PROBED.at;
        let buf = BufMut::for_filling(PROBED.len as usize);
        let Ok(read) = device.read(at, buf).await else { continue };
        if device.write(at, vec![read.freeze()]).await.is_ok() {
            // A device that cannot flush is unusable.
            return device.flush().await.is_ok();
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use cenote_device::{FaultyDevice, MemoryDevice};
    use cenote_ondisk::config::VdevConfig;
    use cenote_rt::{Buf, block_on};

    use super::*;
    use crate::create::{self, CreateSpec, Guids, LeafSpec, Redundancy, TopSpec, VdevClass};
    use crate::dtl::TxgRanges;
    use crate::tree::Place;
    use crate::{BuildOptions, IoClass};

    const SIZE: u64 = 64 << 20;

    struct Fixture {
        tree: Arc<Tree>,
        devices: Vec<Arc<FaultyDevice>>,
        memory: Vec<Arc<MemoryDevice>>,
        guids: Vec<u64>,
    }

    impl Fixture {
        fn new(redundancy: Redundancy, count: usize) -> Self {
            let memory: Vec<_> = (0..count)
                .map(|n| Arc::new(MemoryDevice::new(format!("d{n}"), vec![0; SIZE as usize])))
                .collect();
            let devices: Vec<_> = memory
                .iter()
                .map(|device| {
                    let device = Arc::<MemoryDevice>::clone(device);
                    Arc::new(FaultyDevice::new(device, 1))
                })
                .collect();
            let leaves = devices.iter().map(|device| LeafSpec::of(device.info())).collect();
            let top = TopSpec { redundancy, class: VdevClass::Normal, leaves };
            let spec = CreateSpec { tops: vec![top], ashift: Some(9), ..CreateSpec::default() };
            let root = create::pool(&spec, 4, &mut Guids::unguessable()).expect("spec").root;
            let guids: Vec<_> = root.leaves().map(|leaf| leaf.guid).collect();
            let open = |leaf: &VdevConfig| {
                let index = guids.iter().position(|guid| *guid == leaf.guid)?;
                Some(Arc::<FaultyDevice>::clone(&devices[index]) as Arc<dyn Device>)
            };
            let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
            let tree = Tree::build(&root, open, &options).expect("tree");
            Self { tree, devices, memory, guids }
        }

        async fn write(&self, offset: u64, byte: u8, txg: u64) -> Result<()> {
            let place = Place { vdev: 0, offset };
            let data = Buf::from(vec![byte; 4096]);
            self.tree.write(place, data, txg, IoClass::AsyncWrite).await.map(drop)
        }

        fn dtl(&self, leaf: usize) -> TxgRanges {
            let id = self.tree.leaf_of(self.guids[leaf]).expect("leaf");
            self.tree.leaf(id).dtl().unwrap_or_default()
        }
    }

    #[test]
    fn writes_lost_by_a_device_cache_are_written_again() {
        block_on(1, async {
            let fixture = Fixture::new(Redundancy::Single, 1);
            fixture.write(0, 7, 5).await.expect("there");
            fixture.devices[0].set_offline(true);
            let error = fixture.tree.flush().await.expect_err("away");
            assert_eq!(error.kind(), Kind::Io);
            assert_eq!(fixture.dtl(0), TxgRanges::of(5));
            // The device loses its contents, and returns.
            fixture.memory[0].edit(|bytes| bytes.fill(0));
            fixture.devices[0].set_offline(false);
            fixture.tree.flush().await.expect("there again");
            assert_eq!(fixture.dtl(0), TxgRanges::default());
            let at = crate::DATA_START as usize;
            fixture.memory[0].edit(|bytes| assert!(bytes[at..at + 4096].iter().all(|b| *b == 7)));
        })
        .expect("runtime");
    }

    /// Two leaves change state at once: the parent's state must reflect both.
    #[test]
    fn a_parent_state_reflects_concurrent_changes_of_its_children() {
        let fixture = Fixture::new(Redundancy::Mirror, 2);
        let (tree, guids) = (&fixture.tree, &fixture.guids);
        let barrier = std::sync::Barrier::new(2);
        for round in 0..2000 {
            for guid in guids {
                tree.set_status(*guid, VdevState::Faulted, VdevAux::External);
            }
            std::thread::scope(|scope| {
                for guid in guids {
                    scope.spawn(|| {
                        barrier.wait();
                        tree.set_status(*guid, VdevState::Healthy, VdevAux::None);
                    });
                }
            });
            assert_eq!(tree.root().state(), VdevState::Healthy, "round {round}");
        }
    }

    #[test]
    fn a_refused_write_stays_missing() {
        block_on(1, async {
            let fixture = Fixture::new(Redundancy::Mirror, 2);
            fixture.write(0, 7, 5).await.expect("there");
            fixture.devices[1].set_offline(true);
            // A txg enters the log by a failed write and by a failed flush, in both orders.
            fixture.tree.flush().await.expect("one is enough");
            fixture.write(8192, 8, 5).await.expect("one is enough");
            fixture.write(16384, 8, 6).await.expect("one is enough");
            fixture.tree.flush().await.expect("one is enough");
            fixture.devices[1].set_offline(false);
            fixture.tree.flush().await.expect("there again");
            assert_eq!(fixture.dtl(1), TxgRanges::new([(5, 7)]));
            assert_eq!(fixture.dtl(0), TxgRanges::default());
        })
        .expect("runtime");
    }

    /// A device that becomes shorter in use is not written any more, and returns only when it is
    /// again as long as the data of the leaf.
    #[test]
    fn a_device_that_became_shorter_fails_its_probe() {
        block_on(1, async {
            let fixture = Fixture::new(Redundancy::Mirror, 2);
            let (tree, guid) = (&fixture.tree, fixture.guids[1]);
            let id = tree.leaf_of(guid).expect("leaf");
            fixture.write(0, 7, 5).await.expect("there");
            // The space behind the last metaslab is never written.
            let least = crate::DATA_START + (48 << 20) + (512 << 10);
            for (size, want) in [(SIZE - (1 << 20), Ok(())), (least, Ok(()))] {
                fixture.devices[1].set_size(size);
                assert_eq!(tree.probe(id).await, want, "{size}");
            }
            let before = fixture.memory[1].snapshot();
            fixture.devices[1].set_size(least - 1);
            assert_eq!(tree.probe(id).await, Err(VdevAux::BadLabel));
            assert!(tree.take_out_of_service(guid, VdevState::CantOpen, VdevAux::BadLabel));
            let error = tree.return_to_service(guid, None).await.expect_err("too short");
            let why = ServiceError::TooSmall { guid, size: least - 1 };
            assert_eq!(error.cause(), Some(&why));
            // Another device that is too short is refused as well.
            let short = MemoryDevice::new("short", vec![0; (least - 1) as usize]);
            let error =
                tree.return_to_service(guid, Some(Arc::new(short))).await.expect_err("too short");
            assert_eq!(error.cause(), Some(&why));
            assert!(fixture.memory[1].snapshot() == before, "it was written");
            fixture.devices[1].set_size(SIZE);
            tree.return_to_service(guid, None).await.expect("as long as it was");
        })
        .expect("runtime");
    }

    #[test]
    fn leaves_leave_and_come_back() {
        block_on(1, async {
            let fixture = Fixture::new(Redundancy::Mirror, 2);
            let (tree, guid) = (&fixture.tree, fixture.guids[1]);
            fixture.write(0, 7, 5).await.expect("there");
            fixture.devices[1].set_offline(true);
            fixture.write(8192, 7, 6).await.expect("one is enough");
            assert!(tree.has_failed());
            let failed = tree.take_failed();
            assert_eq!(failed, [tree.leaf_of(guid).expect("leaf")]);
            assert!(!tree.has_failed());
            assert_eq!(tree.probe(failed[0]).await, Err(VdevAux::ErrExceeded));
            assert!(!tree.is_dtl_required(guid) && tree.is_dtl_required(fixture.guids[0]));

            assert!(tree.take_out_of_service(guid, VdevState::Faulted, VdevAux::ErrExceeded));
            // Txgs of unflushed writes are missing too.
            assert_eq!(fixture.dtl(1), TxgRanges::new([(5, 7)]));
            let states: Vec<_> = tree.vdevs().map(Vdev::state).collect();
            let [healthy, degraded] = [VdevState::Healthy, VdevState::Degraded];
            assert_eq!(states, [degraded, degraded, healthy, VdevState::Faulted]);
            fixture.write(16384, 7, 8).await.expect("one is enough");
            assert!(!tree.has_failed(), "it is not asked any more");
            assert_eq!(fixture.dtl(1), TxgRanges::new([(5, 7), (8, 9)]));

            let error = tree.return_to_service(guid, None).await.expect_err("away");
            assert_eq!(error.cause(), Some(&ServiceError::ProbeFailed(guid)));
            fixture.devices[1].set_offline(false);
            tree.return_to_service(guid, None).await.expect("there");
            assert_eq!(tree.root().state(), VdevState::Healthy);
            fixture.write(0, 9, 9).await.expect("there");
            tree.flush().await.expect("there");
            assert_eq!(fixture.dtl(1), TxgRanges::new([(5, 7), (8, 9)]));
        })
        .expect("runtime");
    }
}
