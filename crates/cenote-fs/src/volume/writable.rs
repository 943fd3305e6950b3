//! A volume that is open for writing.
//!
//! ```text
//!   open ── replays what the log has ── owns the head: no destroy, no rollback
//!   write, discard, write_zeroes ── transactions, each with its record ──> memory
//!   flush, or a write with FUA   ── log ──> durable
//! ```
//!
//! A request is atomic towards others that touch the same bytes; a crash may leave the beginning
//! of one that nobody was told of. What was flushed is there after any crash, and nothing comes
//! back that was discarded before a flush.
//!
//! Order of locks: a range of the volume, then those of the engine.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_dmu::live::Prefetcher;
use cenote_dmu::zap::edit as zap;
use cenote_engine::zil::VolumeReplayer;
use cenote_engine::{Engine, Head, Ownership};
use cenote_ondisk::master_node::{ZVOL_OBJ, ZVOL_SIZE, ZVOL_ZAP_OBJ};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, Kind, Notify, Result};

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
    resized: Notify,
    pub(super) locks: RangeLocks,
    /// Who reads from where.
    pub(super) ahead: Prefetcher,
}

impl WritableVolume {
    /// Opens a volume. What a crash left in its intent log is replayed first. One that somebody
    /// has open is the same for all.
    ///
    /// # Errors
    /// [`FsError::NotAVolume`]; `Kind::NotFound`; those of the replay.
    pub async fn open(engine: &Arc<Engine>, name: &str) -> Result<Arc<Self>> {
        Self::of(engine, name).await.map_err(|error| error.in_dataset(name))
    }

    async fn of(engine: &Arc<Engine>, name: &str) -> Result<Arc<Self>> {
        let head = engine.head(name).await?;
        if head.live().kind() != ObjSetType::Zvol {
            return Err(Error::new(Kind::Invalid, FsError::NotAVolume));
        }
        let owner = head.own();
        engine.replay_log(&head, &VolumeReplayer).await?;
        // Has the log look at the property `sync`: before that it commits only what asks for it.
        engine.commit_log(&head, None).await?;
        let (block_size, size) = head
            .live()
            .inspect(|tx| {
                let block_size = tx.dnode(ZVOL_OBJ)?.data_block_size();
                Ok((block_size, zap::require_u64(tx, ZVOL_ZAP_OBJ, ZVOL_SIZE)?))
            })
            .await?;
        geometry::check_size(size, block_size).map_err(Error::corrupt)?;
        let shared_by = Arc::clone(&head);
        // Who has it open shares its size and its locks.
        Ok(shared_by.share(Arc::new(Self {
            engine: Arc::clone(engine),
            head,
            _owner: owner,
            block_size,
            size: AtomicU64::new(size),
            resized: Notify::new(),
            locks: RangeLocks::default(),
            ahead: Prefetcher::default(),
        })))
    }

    /// The dataset's name now: it may be renamed while it is open.
    pub async fn name(&self) -> Result<String> {
        self.engine.dataset_name(self.head.object()).await
    }

    /// The head below.
    pub fn head(&self) -> &Arc<Head> {
        &self.head
    }

    /// The pool.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Bytes of a block (`volblocksize`): what is written in part is read first.
    pub fn block_size(&self) -> u64 {
        self.block_size
    }

    /// Bytes of the volume (`volsize`).
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Waits until the size is another than `known`, and gives it.
    pub async fn size_change(&self, known: u64) -> u64 {
        loop {
            // The wish to be woken is told before the look.
            let mut resized = std::pin::pin!(self.resized.notified());
            resized.as_mut().enable();
            let size = self.size();
            if size != known {
                return size;
            }
            resized.await;
        }
    }

    /// Makes everything durable that was written before. What returns later than this is called
    /// may be included or not.
    pub async fn flush(&self) -> Result<()> {
        self.engine.commit_log(&self.head, Some(ZVOL_OBJ)).await
    }

    /// Gives the volume another size (`zfs set volsize`). A reservation that was that of a volume
    /// of the old size becomes that of the new one. What is cut off is lost.
    ///
    /// # Errors
    /// `Kind::Invalid` if the size is zero or no multiple of the block size; `Kind::NoSpace` if
    /// there is no room for the reservation: nothing has changed then.
    pub async fn resize(&self, size: u64) -> Result<()> {
        geometry::check_size(size, self.block_size).map_err(|e| Error::new(Kind::Invalid, e))?;
        // Nobody reads or writes what goes.
        let _all = self.locks.exclusive(0..u64::MAX).await;
        let old = self.size();
        let name = self.name().await?;
        let tops = self.engine.vdev_config().children;
        let auto = |size| geometry::reservation(size, self.block_size, 1, &tops);
        let reserved = self.engine.own_number(&name, REFRESERVATION).await?;
        let is_followed = reserved == auto(old);
        let reserve = async |size| {
            let value = Value::U64(auto(size));
            self.engine.set_property(&name, REFRESERVATION, value).await
        };
        if size > old && is_followed {
            reserve(size).await?;
        }
        // Behind the end may be what an earlier cut left when a crash came in between.
        self.engine
            .apply(&self.head, |tx| {
                if size > old {
                    tx.free_range(ZVOL_OBJ, old, None)?;
                }
                zap::update(tx, ZVOL_ZAP_OBJ, ZVOL_SIZE, size)
            })
            .await?;
        // The new size is on disk, and with it everything that the log says of the old one, before
        // anything is freed: replayed later it would write behind the end.
        self.engine.sync().await?;
        self.size.store(size, Ordering::Release);
        self.resized.notify_waiters();
        if size < old {
            self.engine.apply(&self.head, |tx| tx.free_range(ZVOL_OBJ, size, None)).await?;
            if is_followed {
                reserve(size).await?;
            }
        }
        Ok(())
    }

    /// The range, if the volume has it. To be asked by who has a lock of it: a resize has them all,
    /// and what was asked before may not be there any more.
    pub(super) fn check(&self, offset: u64, len: u64) -> Result<Range<u64>> {
        let size = self.size();
        match offset.checked_add(len) {
            Some(end) if end <= size => Ok(offset..end),
            _ => Err(Error::new(Kind::Invalid, FsError::BehindEnd { offset, len, size })),
        }
    }
}

/// What a request locks, whether the volume has it or not.
pub(super) const fn span(offset: u64, len: u64) -> Range<u64> {
    offset..offset.saturating_add(len)
}
