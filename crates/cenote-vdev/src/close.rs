//! Closes a tree: afterwards nothing of it reads or writes a device.
//!
//! ```text
//!   close ──> nothing begins ──> what is in flight ends ──> devices dropped, locks released
//!                             `─ not in time: its callers get an error, and the device is named
//! ```
//!
//! A tree is shared by the engine, by views that callers hold for as long as they like, and by
//! tasks, so dropping one reference does not close it. [`Tree::close`] revokes the devices instead
//! ([`Revocable`](cenote_device::Revocable)): remaining users get `Kind::Closed`, which is not a
//! device error and is counted nowhere.
//!
//! Invariants
//! * T1  When `close` returns and names no device, nothing of the tree reads or writes a device any
//!   more, and the devices are unlocked.
//! * T2  A device that `close` names gets no new requests. Requests that were sent before may still
//!   be carried out when the device answers again, and it stays locked until then.
//! * T3  A device on trial is known until its trial ends, so that it is closed with the others.

use std::sync::atomic::Ordering;
use std::time::Duration;

use cenote_device::Device;
use cenote_rt::Result;
use futures_util::future::join_all;

use crate::leaf::{Leaf, closed};
use crate::tree::Tree;

impl Tree {
    /// Whether the tree was closed.
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Checks that the tree was not closed.
    ///
    /// # Errors
    /// `Kind::Closed`; the cause is a [`TreeClosed`](crate::TreeClosed).
    pub fn check_open(&self) -> Result<()> {
        // Checks T2.
        if self.is_closed() { Err(closed()) } else { Ok(()) }
    }

    /// Closes all devices: see T1 and T2. I/O in flight has `timeout` to end. Returns the paths of
    /// the devices that did not answer in that time.
    pub async fn close(&self, timeout: Duration) -> Vec<String> {
        self.is_closed.store(true, Ordering::Release);
        let handles: Vec<_> = self.leaves.iter().flat_map(Leaf::revoke).collect();
        // All devices are revoked before the first is waited for.
        let closed = join_all(handles.iter().map(|handle| handle.close(timeout))).await;
        let silent = handles.iter().zip(closed).filter(|(_, is_quiet)| !is_quiet);
        let silent: Vec<_> = silent.map(|(handle, _)| handle.info().path.clone()).collect();
        // Checks T1.
        assert!(!silent.is_empty() || self.in_flight() == 0, "I/O in flight on a closed device");
        silent
    }

    /// Returns for each leaf that the tree ever had the number of I/Os in flight on its devices,
    /// and the number of I/Os answered so far. A leaf hangs when the first is not zero and the
    /// second does not grow.
    pub fn activity(&self) -> Vec<(usize, u64)> {
        self.leaves.iter().map(Leaf::activity).collect()
    }

    /// Returns the number of I/Os in flight on all devices.
    pub fn in_flight(&self) -> usize {
        self.activity().into_iter().map(|(in_flight, _)| in_flight).sum()
    }

    /// Revokes the devices of leaves that were added while the tree was being closed.
    pub(crate) fn revoke_leaves(&self) {
        for handle in self.leaves.iter().flat_map(Leaf::revoke) {
            handle.revoke();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use cenote_device::{DeviceClosed, MemoryDevice};
    use cenote_ondisk::config::VdevKind as ConfigKind;
    use cenote_ondisk::uberblock::Uberblock;
    use cenote_rt::{Buf, BufMut, Error, Kind};

    use super::*;
    use crate::bench::{BIRTH, Bench, leaves, shapes, top, vdev, wait};
    use crate::{BadChild, Cause, IoClass, LeafId, Place, Rewrite, TreeClosed};

    const TIMEOUT: Duration = Duration::from_secs(5);
    const PLACE: Place = Place { vdev: 0, offset: 0 };

    /// Tries every way of writing to a tree; each must be refused.
    async fn refusals(tree: &Tree, leaf: LeafId, guid: u64) -> Vec<Error> {
        let data = || Buf::from(vec![9; 4096]);
        let spare = Arc::new(MemoryDevice::new("spare", vec![0; 16 << 20]));
        let mut bytes = vec![0; 1024];
        bytes[..8].copy_from_slice(&0x00ba_b10c_u64.to_le_bytes());
        let uberblock = Uberblock::decode(&bytes).expect("magic");
        let results = [
            tree.write(PLACE, data(), BIRTH, IoClass::AsyncWrite).await.map(drop),
            tree.write_leaf(leaf, 8 << 20, data(), IoClass::SyncWrite).await,
            tree.discard(PLACE, 4096).await,
            tree.discard_leaf(leaf, 8 << 20, 4096).await,
            tree.write_uberblock(leaf, &uberblock, 0).await,
            tree.write_heartbeat(leaf, &uberblock, 0).await,
            tree.return_to_service(guid, None).await,
            tree.return_to_service(guid, Some(spare)).await,
            tree.read(PLACE, 4096, BIRTH, &|_: &[u8]| true).await.map(drop),
            tree.scrub(PLACE, 4096, BIRTH, &|_: &[u8]| true).await.map(drop),
        ];
        results.into_iter().map(|result| result.expect_err("closed")).collect()
    }

    #[test]
    fn a_closed_tree_does_nothing() {
        let mut all = shapes();
        all.push(("mirror", top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), 9), 1));
        for (name, shape, _) in all {
            let bench = Bench::new(shape);
            let tree = &bench.tree;
            let data = Buf::from(vec![7; 4096]);
            let written = wait(tree.write(PLACE, data, BIRTH, IoClass::SyncWrite));
            written.expect("open");
            wait(tree.flush()).expect("open");
            let handles: Vec<_> = tree.leaves().filter_map(|(_, leaf)| leaf.device()).collect();
            let contents = |bench: &Bench| -> Vec<Vec<u8>> {
                let mut all = Vec::new();
                for device in bench.devices.values() {
                    device.edit(|bytes| all.push(bytes.to_vec()));
                }
                all
            };
            let before = contents(&bench);
            assert!(tree.is_writable() && !tree.is_closed());

            assert_eq!(wait(tree.close(TIMEOUT)), Vec::<String>::new(), "{name}");
            assert!(tree.is_closed() && !tree.is_writable());
            // T1: the bench has the only handle of each device left.
            assert!(bench.devices.values().all(|device| Arc::strong_count(device) == 1), "{name}");
            let (leaf, guid) = tree.leaves().map(|(id, leaf)| (id, leaf.guid())).next().unwrap();
            for error in wait(refusals(tree, leaf, guid)) {
                assert_eq!(error.kind(), Kind::Closed, "{name}: {error}");
                assert_eq!(error.cause(), Some(&TreeClosed), "{name}: {error}");
            }
            assert!(wait(tree.probe(leaf)).is_err());
            let path = String::new();
            let (offset, len, cause) = (8 << 20, 4096, Cause::Checksum);
            let bad = BadChild { leaf, guid, path, offset, len, cause, errors: 0 };
            let repaired =
                wait(tree.repair(PLACE, &Buf::from(vec![9; 4096]), BIRTH, &[bad], Rewrite::Repair));
            assert!(repaired.is_ok_and(|outcome| outcome.repaired.is_empty()));
            for handle in handles {
                let error = wait(handle.read(0, BufMut::zeroed(512))).expect_err("closed");
                assert_eq!(error.cause(), Some(&DeviceClosed));
            }
            assert_eq!(contents(&bench), before, "{name}");
            for (_, leaf) in tree.leaves() {
                let stats = leaf.stats();
                let errors = [stats.read_errors, stats.write_errors, stats.checksum_errors];
                assert_eq!((errors, leaf.has_failed()), ([0; 3], false), "{name}");
            }
        }
    }
}
