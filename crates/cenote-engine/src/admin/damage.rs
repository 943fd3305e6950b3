//! Lost blocks: recorded when they are found, as events and, by the next sync, in the pool's error
//! log (spec 04 §22).

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cenote_block::Reporter;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::errlog::{ERRLOG_LAST, ERRLOG_SCRUB, format_plain};
use cenote_ondisk::zap::Value;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Error, Kind, Result};
use cenote_vdev::{BadChild, IoClass, IoKind, LeafIo, LeafObserver};

use crate::Health;
use crate::admin::events::{Event, EventLog, WrongBytes};
use crate::dsl::errors;
use crate::scan::record as scan;

/// Maximum number of lost blocks until the next sync.
const LOST_MAX: usize = 100_000;

/// Records lost blocks.
#[derive(Debug)]
pub(crate) struct Damage {
    // Held for a few instructions, never across I/O.
    lost: Mutex<BTreeSet<LostBlock>>,
    /// The pool's events.
    events: Arc<EventLog>,
}

/// Object set, object, level and block number of a lost block, and its birth.
type LostBlock = (u64, u64, i64, u64, u64);

impl Damage {
    /// Returns the record of a pool.
    pub(crate) fn new(pool: &str, guid: u64) -> Self {
        Self {
            lost: Mutex::with_default(Rank::Damage),
            events: Arc::new(EventLog::new(pool, guid)),
        }
    }

    pub(crate) fn note(&self, event: Event) {
        self.events.note(event);
    }

    /// Whether lost blocks are to be written to the error log.
    pub(crate) fn has_lost(&self) -> bool {
        !self.lost().is_empty()
    }

    fn lost(&self) -> MutexGuard<'_, BTreeSet<LostBlock>> {
        self.lost.lock()
    }
}

impl Reporter for Damage {
    fn unrecoverable(&self, place: &Bookmark, bp: &BlockPtr, error: &Error) {
        let mut lost = self.lost();
        if lost.len() < LOST_MAX {
            let birth = bp.physical_birth();
            lost.insert((place.objset, place.object, place.level, place.blkid, birth));
        }
        drop(lost);
        self.note(Event::Lost { place: *place, cause: error.to_string() });
    }

    fn found_bad(&self, bad: &[BadChild], class: IoClass, repaired: usize) {
        // A failed I/O has its event when it fails.
        for child in bad.iter().filter(|child| child.cause.is_checksum()) {
            self.note(Event::Bad {
                io: LeafIo {
                    leaf: child.guid,
                    kind: IoKind::Read,
                    offset: child.offset,
                    len: child.len,
                },
                cause: child.cause.to_string(),
                checksum: Some(WrongBytes { class, errors: child.errors }),
                is_repaired: repaired >= bad.len(),
            });
        }
    }
}

impl LeafObserver for Damage {
    fn slow(&self, io: &LeafIo, took: Duration) {
        self.note(Event::Slow { io: *io, took });
    }

    fn hung(&self, io: &LeafIo, age: Duration) {
        self.note(Event::Hung { io: *io, age });
    }

    fn is_repeated(&self, io: &LeafIo) -> bool {
        self.events.is_repeated(*io)
    }

    fn failed(&self, io: &LeafIo, error: &Error) {
        self.note(Event::Bad {
            io: *io,
            cause: error.to_string(),
            checksum: None,
            is_repaired: false,
        });
    }
}

impl<'e> Health<'e> {
    /// Returns the pool's events: a ring of the last thousand.
    pub fn events(self) -> &'e Arc<EventLog> {
        &self.engine.health.damage.events
    }

    /// Writes lost blocks to the error log; those that it has already do no harm.
    pub(crate) async fn record_damage(self, txg: u64) -> Result<()> {
        let lost = std::mem::take(&mut *self.engine.health.damage.lost());
        if lost.is_empty() {
            return Ok(());
        }
        let noted = self.engine.mos_apply(txg, |tx| {
            let by_head = errors::are_by_head(tx)?;
            // Damage found during a scan belongs to its result.
            let name = if scan::is_running(tx)? { ERRLOG_SCRUB } else { ERRLOG_LAST };
            let log = errors::need_log(tx, name)?;
            for &(objset, object, level, blkid, birth) in &lost {
                let place = Bookmark { objset, object, level, blkid };
                if by_head {
                    errors::note_by_head(tx, log, &place, birth)?;
                } else {
                    zap::update(tx, log, &format_plain(&place), Value::text(""))?;
                }
            }
            Ok(())
        });
        match noted.await {
            // A lost error log is no reason to stop the pool.
            Err(error) if matches!(error.kind(), Kind::Checksum | Kind::Corrupt) => Ok(()),
            noted => noted,
        }
    }
}

#[cfg(test)]
mod tests {
    use cenote_rt::block_on;

    use super::*;
    use crate::testing;

    /// Readers of a destroyed dataset may find damage when its number is already reused: no reason
    /// to stop the pool.
    #[test]
    fn damage_in_destroyed_datasets_does_not_stop_the_pool() {
        block_on(1, async {
            let engine = testing::pool().await;
            let root = engine.head("t").await.expect("there").object();
            // The pool directory, which is no dataset; a nonexistent object; the root dataset.
            for objset in [cenote_pool::mos::DIRECTORY, 1 << 40, root] {
                let place = Bookmark { objset, object: 7, level: 0, blkid: 3 };
                let error = Error::new(Kind::Checksum, "lost");
                engine.health.damage.unrecoverable(&place, &BlockPtr::HOLE, &error);
                engine.sync().await.expect("the pool goes on");
            }
            let found = engine.mos.inspect(|tx| {
                let log = errors::need_log(tx, ERRLOG_LAST)?;
                Ok((errors::are_by_head(tx)?, zap::len(tx, log)?))
            });
            assert_eq!(found.await.expect("readable"), (true, 1));
        })
        .expect("runtime");
    }
}
