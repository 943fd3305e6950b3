//! Loads metaslabs from their space maps as of the last commit (spec 05 §2.5).
//!
//! Loading reads the blocks of the committed MOS and not the object set that is being changed: a
//! sync may wait for the space.

use std::sync::{Arc, Weak};

use cenote_block::BlockStore;
use cenote_block::Grounds;
use cenote_block::alloc::{MetaslabStore, StoredSpace};
use cenote_dmu::{ObjSet, SpaceMap, array};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::spacemap::{Action, Geometry, Item};
use cenote_pool::accounting::{metaslab_range, row_size};
use cenote_ranges::RangeSet;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{BoxFuture, Error, Kind, Result};

use crate::{EngineError, Suspension, invariant_error};

/// Reads space maps of the last commit.
pub(crate) struct Maps {
    // Weak: the store owns the allocator, which owns this.
    store: Weak<BlockStore>,
    suspension: Arc<Suspension>,
    // Replaced after each commit; held for a copy, never across I/O.
    committed: Mutex<Option<Committed>>,
}

/// The last commit.
#[derive(Clone)]
struct Committed {
    txg: u64,
    root: BlockPtr,
    tops: Arc<Vec<VdevConfig>>,
}

impl Maps {
    /// Returns the maps of a pool without a commit: every metaslab is free.
    pub(crate) fn new(store: &Arc<BlockStore>, suspension: &Arc<Suspension>) -> Arc<Self> {
        Arc::new(Self {
            store: Arc::downgrade(store),
            suspension: Arc::clone(suspension),
            committed: Mutex::new(Rank::MetaslabMaps, None),
        })
    }

    /// Sets the last commit: metaslabs are loaded from the MOS with the root `root`.
    pub(crate) fn committed(&self, txg: u64, root: &BlockPtr, tops: &[VdevConfig]) {
        let tops = Arc::new(tops.to_vec());
        let committed = Committed { txg, root: *root, tops };
        let before = self.committed.lock().replace(committed).map_or(0, |before| before.txg);
        // Checks T1.
        assert!(before <= txg, "space maps of txg {txg} after those of txg {before}");
    }

    fn latest(&self) -> Option<Committed> {
        self.committed.lock().clone()
    }

    async fn read(&self, vdev: u64, metaslab: u64) -> Result<StoredSpace> {
        loop {
            let store = self.store.upgrade();
            let store = store.ok_or_else(|| Error::new(Kind::Io, EngineError::Closed))?;
            let resume_count = self.suspension.resume_count();
            // Pinned before the commit is read: loading may take longer than the commits after
            // which the maps' blocks are reused.
            let grounds = match store.allocator() {
                Some(space) => Grounds::Pinned(Arc::new(space.pin())),
                None => Grounds::Offline,
            };
            match self.read_from(store, vdev, metaslab, &grounds).await {
                // The space was needed. This does not affect the map: a later commit has it too.
                Err(error) if error.kind() == Kind::Overtaken => {}
                Err(error) => self.suspension.hold(resume_count, error).await?,
                space => return space,
            }
        }
    }

    async fn read_from(
        &self,
        store: Arc<BlockStore>,
        vdev: u64,
        metaslab: u64,
        grounds: &Grounds,
    ) -> Result<StoredSpace> {
        let Some(Committed { txg, root, tops }) = self.latest() else {
            // Checks T5.
            return Err(invariant_error("a metaslab of a pool that is not committed".into()));
        };
        // Checks T5.
        let top = usize::try_from(vdev).ok().and_then(|id| tops.get(id)).ok_or_else(|| {
            Error::new(Kind::Invariant, EngineError::Invariant(format!("no vdev {vdev}")))
        })?;
        let (start, size) = metaslab_range(metaslab, top.top.metaslab_shift as u32, row_size(top));
        let mut free = RangeSet::new();
        free.add(start..start + size);
        let mos = ObjSet::open_on(store, &root, None, 0, grounds.clone()).await?;
        let object = match top.top.metaslab_array {
            0 => 0,
            array => mos.read(|objects| array::word(objects, array, metaslab)).await?,
        };
        if object != 0 {
            let map = SpaceMap::open(&mos, object).await?;
            let geometry = Geometry { start, size, shift: top.top.ashift as u8 };
            map.for_each(geometry, |item| {
                let Item::Entry(entry) = item else { return Ok(()) };
                let range = entry.offset..entry.offset.saturating_add(entry.size);
                let fits = match entry.action {
                    Action::Alloc => free.try_remove(range),
                    Action::Free => free.try_add(range),
                };
                fits.map_err(|error| Error::corrupt(error).in_object(0, object))
            })
            .await?;
        }
        Ok(StoredSpace { free, txg })
    }
}

impl MetaslabStore for Maps {
    fn load(&self, vdev: u64, metaslab: u64) -> BoxFuture<'_, Result<StoredSpace>> {
        Box::pin(self.read(vdev, metaslab))
    }
}
