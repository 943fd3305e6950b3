//! Leaves: the end of every path through the tree, one device each.
//!
//! A leaf adds the 4 MiB of labels and boot area to an offset, counts what it does, and knows
//! which txgs it may lack. A distributed spare is a leaf too, with no device of its own: the tree
//! sends its reads on to a child of its dRAID (spec 06 §2, §6.6).

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use cenote_device::Device;
use cenote_rt::{Buf, BufMut, Error, Kind, Result};

use crate::dtl::TxgRanges;

/// Byte of a device at which its data area starts.
pub const DATA_START: u64 = 4 << 20;

/// A leaf of a tree: its index in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeafId(pub(crate) usize);

/// What a leaf has done since the tree was built.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeafStats {
    /// Reads that ended.
    pub reads: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Reads that failed.
    pub read_errors: u64,
    /// Blocks of which this leaf gave wrong bytes.
    pub checksum_errors: u64,
}

#[derive(Debug, Default)]
struct Counters {
    in_flight: AtomicU64,
    reads: AtomicU64,
    bytes: AtomicU64,
    read_errors: AtomicU64,
    checksum_errors: AtomicU64,
}

/// Whether a leaf can be asked for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Freshness {
    /// It should have it.
    Fresh,
    /// It may have something older at that place.
    Stale,
    /// It cannot be read.
    Absent,
}

/// One leaf.
#[derive(Debug)]
pub struct Leaf {
    pub(crate) guid: u64,
    pub(crate) path: String,
    pub(crate) device: Option<Arc<dyn Device>>,
    /// Whether its state lets data be read from it.
    pub(crate) is_readable: bool,
    /// Whether it may lack anything, as long as its log was not set.
    pub(crate) is_doubtful: bool,
    /// Whether it is read only because nothing was to be left out: always as a last resort.
    pub(crate) is_excluded: bool,
    dtl: RwLock<Option<TxgRanges>>,
    counters: Counters,
}

impl Leaf {
    pub(crate) fn new(guid: u64, path: String, device: Option<Arc<dyn Device>>) -> Self {
        let (is_readable, is_doubtful, is_excluded) = (true, false, false);
        let (dtl, counters) = (RwLock::default(), Counters::default());
        Self { guid, path, device, is_readable, is_doubtful, is_excluded, dtl, counters }
    }

    /// Its guid.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Path of its device; as the config has it if there is none.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Its device, if there is one.
    pub fn device(&self) -> Option<&Arc<dyn Device>> {
        self.device.as_ref()
    }

    /// What it has done.
    pub fn stats(&self) -> LeafStats {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        LeafStats {
            reads: get(&self.counters.reads),
            bytes: get(&self.counters.bytes),
            read_errors: get(&self.counters.read_errors),
            checksum_errors: get(&self.counters.checksum_errors),
        }
    }

    /// Reads under way.
    pub(crate) fn in_flight(&self) -> u64 {
        self.counters.in_flight.load(Ordering::Relaxed)
    }

    pub(crate) fn count_checksum_error(&self) {
        self.counters.checksum_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// The txgs that it may lack, as far as that is known.
    pub fn dtl(&self) -> Option<TxgRanges> {
        self.dtl.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn set_dtl(&self, ranges: TxgRanges) {
        *self.dtl.write().unwrap_or_else(PoisonError::into_inner) = Some(ranges);
    }

    /// Whether it can be asked for a block of that physical birth.
    pub(crate) fn freshness(&self, birth: u64) -> Freshness {
        if !self.is_readable {
            return Freshness::Absent;
        }
        let dtl = self.dtl.read().unwrap_or_else(PoisonError::into_inner);
        let may_lack = dtl.as_ref().map_or(self.is_doubtful, |ranges| ranges.contains(birth));
        if may_lack || self.is_excluded { Freshness::Stale } else { Freshness::Fresh }
    }

    /// Reads from its device; `offset` counts from the device's start.
    pub(crate) async fn read(&self, offset: u64, len: usize) -> Result<Buf> {
        let Some(device) = &self.device else {
            let error = Error::new(Kind::Io, NoDevice { guid: self.guid });
            return Err(error.on_device(&self.path, offset));
        };
        let _under_way = InFlight::start(&self.counters.in_flight);
        let result = device.read(offset, BufMut::for_filling(len)).await;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        match result {
            Ok(buf) => {
                self.counters.bytes.fetch_add(len as u64, Ordering::Relaxed);
                Ok(buf.freeze())
            }
            Err(error) => {
                self.counters.read_errors.fetch_add(1, Ordering::Relaxed);
                Err(error.with_at(|at| at.vdev = Some(self.guid)))
            }
        }
    }
}

/// A read of a leaf that has no device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("vdev {guid} has no device")]
pub struct NoDevice {
    /// Guid of the leaf.
    pub guid: u64,
}

/// Counts a read until it ends or its task is dropped.
struct InFlight<'a>(&'a AtomicU64);

impl<'a> InFlight<'a> {
    fn start(counter: &'a AtomicU64) -> Self {
        counter.fetch_add(1, Ordering::Relaxed);
        Self(counter)
    }
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}
