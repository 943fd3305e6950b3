//! The state behind the allocator's lock.
//!
//! Invariants
//! * A1  Space is allocated only in txgs that are not committed, and no two of them share a set.
//! * A2  Frees, recorded passes, flushes and the commit belong to one txg at a time, the syncing
//!   one.
//! * A3  A range belongs to one metaslab and consists of whole sectors.
//! * A4  The allocated and deferred bytes of a group are the sums over its metaslabs, as of the
//!   last commit; deferred bytes are among the allocated ones.
//! * A5  Each metaslab with deferred ranges is in `deferring`, so that its ranges become free.
//! * A6  A commit finds all changes of its txg recorded, and none of an earlier txg.
//! * A7  Freed space stays allocated only for a checkpoint that exists.
//! * A8  A checkpoint is taken before its txg frees anything.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_ondisk::blkptr::Dva;
use cenote_rt::{FixedMap, Rng, Semaphore};

use super::class::Class;
use super::error::Violation;
use super::flush::FlushState;
use super::group::{Group, Vdev};
use super::metaslab::Metaslab;
use super::pin::PinState;
use super::policy::Policy;
use super::request::SpaceGeometry;

/// Position in the ring of vdevs, for one class and stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rotor {
    pub(super) vdev: u64,
    /// Bytes of the vdev's quota that are used.
    pub(super) used: u64,
}

/// Loaded metaslabs, by vdev and number, with their number of segments when last counted.
#[derive(Debug, Default)]
pub(super) struct LoadedMetaslabs {
    segments: BTreeMap<(u64, usize), u64>,
    /// The sum of `segments`: metaslabs are loaded one after the other, and each time the sum is
    /// needed.
    sum: u64,
}

impl LoadedMetaslabs {
    /// Records the number of segments of a metaslab; `None` if it is not loaded any more.
    pub(super) fn set(&mut self, key: (u64, usize), segments: Option<u64>) {
        let before = match segments {
            Some(segments) => self.segments.insert(key, segments),
            None => self.segments.remove(&key),
        };
        self.sum = self.sum - before.unwrap_or(0) + segments.unwrap_or(0);
    }

    /// Forgets the metaslabs of a vdev.
    pub(super) fn forget_vdev(&mut self, vdev: u64) {
        self.segments.retain(|(id, _), _| *id != vdev);
        self.sum = self.segments.values().sum();
    }

    /// The number of segments of all.
    pub(super) fn sum(&self) -> u64 {
        self.sum
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&(u64, usize), &u64)> {
        self.segments.iter()
    }
}

/// All state of the allocator.
pub(super) struct State {
    pub(super) policy: Arc<dyn Policy>,
    pub(super) geometry: Arc<dyn SpaceGeometry>,
    pub(super) vdevs: BTreeMap<u64, Vdev>,
    /// Ids of the vdevs of each class, ascending.
    pub(super) rings: BTreeMap<Class, Vec<u64>>,
    pub(super) rotors: BTreeMap<(Class, usize), Rotor>,
    pub(super) streams: usize,
    pub(super) has_logs: bool,
    /// Last committed txg.
    pub(super) committed: u64,
    /// The txg whose frees are being collected, if any.
    pub(super) freeing_txg: Option<u64>,
    /// The txg for which a pass was recorded.
    pub(super) recording_txg: Option<u64>,
    /// Metaslabs with changes to record or to finish, by txg.
    pub(super) dirty: BTreeMap<u64, BTreeSet<(u64, usize)>>,
    /// Metaslabs with deferred ranges.
    pub(super) deferring: BTreeSet<(u64, usize)>,
    pub(super) flush: FlushState,
    pub(super) loaded: LoadedMetaslabs,
    /// Permits for loading a metaslab: one task loads it, the others wait.
    pub(super) gates: FixedMap<(u64, usize), Arc<Semaphore>>,
    pub(super) memory_bytes: u64,
    /// Number of pauses of all metaslabs together.
    pub(super) disabled: u64,
    /// Pins, by number.
    pub(super) pins: BTreeMap<u64, Arc<PinState>>,
    /// Number of the next pin.
    pub(super) next_pin: u64,
    /// Incremented each time that ranges may become free.
    pub(super) epoch: Arc<AtomicU64>,
    /// Txg of the pool's checkpoint, if there is one.
    pub(super) checkpoint: Option<u64>,
    pub(super) rng: Rng,
}

impl State {
    /// Returns the metaslab that contains a whole range of whole sectors.
    pub(super) fn locate(
        &self,
        vdev: u64,
        offset: u64,
        asize: u64,
    ) -> Result<(usize, Range<u64>), Violation> {
        let error = Violation::Place { vdev, offset, asize };
        let Some(found) = self.vdevs.get(&vdev) else { return Err(error) };
        let id = offset.checked_shr(found.spec.metaslab_shift).unwrap_or(0) as usize;
        let (Some(metaslab), Some(end)) = (found.metaslabs.get(id), offset.checked_add(asize))
        else {
            return Err(error);
        };
        let sector = 1_u64 << found.spec.ashift;
        let own = metaslab.range();
        let fits = offset >= own.start
            && end <= own.end
            && asize > 0
            && offset.is_multiple_of(sector)
            && asize.is_multiple_of(sector);
        // Checks A3.
        if fits { Ok((id, offset..end)) } else { Err(error) }
    }

    /// Like [`locate`](Self::locate), for an address; that of a gang block covers its header only
    /// (spec 05 §5.6).
    pub(super) fn locate_dva(&self, dva: &Dva, txg: u64) -> Result<(usize, Range<u64>), Violation> {
        let vdev = u64::from(dva.vdev);
        let asize = if dva.gang {
            self.geometry.asize_for(vdev, GANG_HEADER_BYTES, txg).unwrap_or(0)
        } else {
            dva.asize
        };
        self.locate(vdev, dva.offset, asize)
    }

    /// Begins another epoch, in which ranges may become free, and returns its number.
    pub(super) fn next_epoch(&self) -> u64 {
        self.epoch.fetch_add(1, Ordering::AcqRel) + 1
    }

    pub(super) fn metaslab(&mut self, vdev: u64, id: usize) -> Option<&mut Metaslab> {
        self.vdevs.get_mut(&vdev)?.metaslabs.get_mut(id)
    }

    /// Records that a metaslab has changes in `txg`.
    pub(super) fn mark(&mut self, txg: u64, vdev: u64, id: usize) {
        self.dirty.entry(txg).or_default().insert((vdev, id));
    }

    /// Checks that `txg` is not committed yet, and one of the three that can be active.
    pub(super) fn check_open(&self, what: &'static str, txg: u64) -> Result<(), Violation> {
        // Two txgs whose numbers differ by a multiple of 4 would share a set.
        let clash = self.dirty.keys().any(|other| *other != txg && (other ^ txg).is_multiple_of(4));
        // Checks A1.
        if txg <= self.committed || clash {
            return Err(Violation::Order { what, txg, committed: self.committed });
        }
        Ok(())
    }

    /// Checks that frees and recording belong to one txg at a time, the syncing one.
    pub(super) fn check_syncing(&mut self, what: &'static str, txg: u64) -> Result<(), Violation> {
        self.check_open(what, txg)?;
        // Checks A2.
        match self.freeing_txg {
            Some(syncing) if syncing != txg => {
                Err(Violation::Order { what, txg, committed: self.committed })
            }
            _ => {
                self.freeing_txg = Some(txg);
                Ok(())
            }
        }
    }

    /// The groups that serve a class.
    pub(super) fn groups(&self, class: Class) -> impl Iterator<Item = (&Vdev, &Group)> {
        let ring = self.rings.get(&class).into_iter().flatten();
        ring.filter_map(move |id| {
            let vdev = self.vdevs.get(id)?;
            Some((vdev, &vdev.groups[vdev.group_for(class)?]))
        })
    }

    /// (space, allocated and deferred) of a class.
    pub(super) fn class_space(&self, class: Class) -> (u64, u64) {
        self.groups(class).fold((0, 0), |(space, allocated), (_, group)| {
            (space + group.space, allocated + group.allocated)
        })
    }
}

/// Size of a classic gang header.
const GANG_HEADER_BYTES: u64 = 512;
