//! A volume that is open for writing.
//!
//! ```text
//!   open ── replays the intent log ── owns the head: no destroy, no rollback
//!   write, discard, write_zeroes ── transactions, each with its log record ──> memory
//!   flush, or a write with FUA   ── log ──> durable
//! ```
//!
//! A request is atomic towards others that touch the same bytes; after a crash, the beginning of an
//! unacknowledged request may be there. Flushed data survives every crash, and data that was
//! discarded before a flush does not come back.
//!
//! Order of locks: a range of the volume, then those of the engine.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_dmu::live::Prefetcher;
use cenote_dmu::zap::edit as zap;
use cenote_engine::zil::VolumeReplayer;
use cenote_engine::{ApplyOptions, Engine, Head, Ownership};
use cenote_ondisk::master_node::{ZVOL_OBJ, ZVOL_SIZE, ZVOL_ZAP_OBJ};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, Kind, Result};

use super::create::REFRESERVATION;
use super::geometry;
use crate::error::FsError;
use crate::range_lock::RangeLocks;

/// A volume that is open for writing.
#[derive(Debug)]
pub struct WritableVolume {
    pub(super) engine: Arc<Engine>,
    pub(super) head: Arc<Head>,
    /// Keeps the dataset from being destroyed or rolled back.
    _owner: Ownership,
    block_size: u64,
    size: AtomicU64,
    pub(super) locks: RangeLocks,
    /// State of reading ahead.
    pub(super) ahead: Prefetcher,
}

impl WritableVolume {
    /// Opens a volume, after replaying its intent log. All opens of a volume share one state.
    ///
    /// # Errors
    /// [`FsError::NotAVolume`]; `Kind::NotFound`; errors of the replay.
    pub async fn open(engine: &Arc<Engine>, name: &str) -> Result<Arc<Self>> {
        Self::of(engine, name).await.map_err(|error| error.in_dataset(name))
    }

    async fn of(engine: &Arc<Engine>, name: &str) -> Result<Arc<Self>> {
        let head = engine.head(name).await?;
        if head.live().kind() != ObjSetType::Zvol {
            return Err(Error::new(Kind::Invalid, FsError::NotAVolume));
        }
        let owner = head.own();
        engine.intent_logs().replay(&head, &VolumeReplayer).await?;
        // Makes the log read the property `sync`; without this it commits only explicit requests.
        engine.intent_logs().commit(&head, None).await?;
        let (block_size, size) = head
            .live()
            .inspect(|tx| {
                let block_size = tx.dnode(ZVOL_OBJ)?.data_block_size();
                Ok((block_size, zap::require_u64(tx, ZVOL_ZAP_OBJ, ZVOL_SIZE)?))
            })
            .await?;
        geometry::check_size(size, block_size).map_err(Error::corrupt)?;
        let shared_by = Arc::clone(&head);
        // All opens share the size and the range locks.
        Ok(shared_by.share(Arc::new(Self {
            engine: Arc::clone(engine),
            head,
            _owner: owner,
            block_size,
            size: AtomicU64::new(size),
            locks: RangeLocks::default(),
            ahead: Prefetcher::default(),
        })))
    }

    /// Returns the dataset's present name: it may be renamed while it is open.
    pub async fn name(&self) -> Result<String> {
        self.engine.datasets().name_of(self.head.object()).await
    }

    /// Returns the head dataset.
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// Returns the pool.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Returns the block size (`volblocksize`): partly written blocks are read first.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Returns the size in bytes (`volsize`).
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Makes all earlier writes durable. Writes that complete during the call may be included or
    /// not.
    pub async fn flush(&self) -> Result<()> {
        self.engine.intent_logs().commit(&self.head, Some(ZVOL_OBJ)).await
    }

    /// Changes the size of the volume (`zfs set volsize`). A reservation of exactly the old size
    /// becomes that of the new size. Data beyond a smaller size is lost.
    ///
    /// # Errors
    /// `Kind::Invalid` if the size is zero or not a multiple of the block size; `Kind::NoSpace` if
    /// there is no space for the reservation. Then nothing has changed.
    pub async fn resize(&self, size: u64) -> Result<()> {
        geometry::check_size(size, self.block_size).map_err(|e| Error::new(Kind::Invalid, e))?;
        // No reads or writes beyond the new end may run concurrently.
        let _all = self.locks.exclusive(0..u64::MAX).await;
        let old = self.size();
        let name = self.name().await?;
        let tops = self.engine.admin().vdev_config().children;
        let auto = |size| geometry::reservation(size, self.block_size, 1, &tops);
        let reserved = self.engine.properties().own_number(&name, REFRESERVATION).await?;
        let is_followed = reserved == auto(old);
        let reserve = async |size| {
            let value = Value::U64(auto(size));
            self.engine.properties().set(&name, REFRESERVATION, value).await
        };
        if size > old && is_followed {
            reserve(size).await?;
        }
        // There may be data beyond the end from an earlier resize that a crash interrupted.
        self.engine
            .apply(&self.head, ApplyOptions::new(), |tx| {
                if size > old {
                    tx.free_range(ZVOL_OBJ, old, None)?;
                }
                zap::update(tx, ZVOL_ZAP_OBJ, ZVOL_SIZE, size)
            })
            .await?;
        // The new size, and with it all changes that the log records for the old one, must be on
        // disk before anything is freed: a replay would otherwise write beyond the end.
        self.engine.sync().await?;
        self.size.store(size, Ordering::Release);
        if size < old {
            self.engine
                .apply(&self.head, ApplyOptions::new(), |tx| tx.free_range(ZVOL_OBJ, size, None))
                .await?;
            if is_followed {
                reserve(size).await?;
            }
        }
        Ok(())
    }

    /// Returns the range, if it is within the volume. The caller must hold a lock on it: a resize
    /// locks everything, and an earlier check may be outdated.
    pub(super) fn check(&self, offset: u64, len: u64) -> Result<Range<u64>> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(offset..end),
            _ => Err(Error::new(Kind::Invalid, FsError::BehindEnd { offset, len, size })),
        }
    }
}

/// Returns the range that a request locks, whether it is within the volume or not.
pub(super) const fn span(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}
