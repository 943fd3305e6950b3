//! Blocks that are lost: noted as they are met, written to the pool's error log by the next sync
//! (spec 04 §22), and a ring of what happened for whoever looks.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Mutex, PoisonError};

use cenote_block::Reporter;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::errlog::{ERRLOG_LAST, HeadEntry, format_plain};
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, Result};
use cenote_vdev::{BadChild, VdevState};

use super::Engine;
use super::dsl::{errors, features, get_dataset, get_dir};

/// Events that are kept.
const EVENTS_MAX: usize = 1000;
/// Lost blocks that may wait for the next sync.
const LOST_MAX: usize = 100_000;

/// Something that happened to the pool's devices or data.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// No copy of a block can be read.
    Lost {
        /// Where the block belongs.
        place: Bookmark,
        /// What each copy says.
        cause: String,
    },
    /// A leaf left service, or came back.
    State {
        /// Guid of the leaf.
        leaf: u64,
        /// How it is now.
        state: VdevState,
    },
    /// Part of a block on a leaf was wrong.
    Bad {
        /// Guid of the leaf.
        leaf: u64,
        /// Byte on the device.
        offset: u64,
        /// What was wrong.
        cause: String,
        /// Whether all that was bad of the block was written anew.
        is_repaired: bool,
    },
}

/// Hears of damage.
#[derive(Debug, Default)]
pub(super) struct Damage {
    // Held for a few instructions, never across I/O.
    noted: Mutex<Noted>,
}

#[derive(Debug, Default)]
struct Noted {
    lost: BTreeSet<(u64, u64, i64, u64, u64)>,
    events: VecDeque<Event>,
}

impl Damage {
    /// The last events, from the oldest.
    pub(super) fn events(&self) -> Vec<Event> {
        self.lock().events.iter().cloned().collect()
    }

    pub(super) fn note(&self, event: Event) {
        self.lock().push(event);
    }

    fn take_lost(&self) -> BTreeSet<(u64, u64, i64, u64, u64)> {
        std::mem::take(&mut self.lock().lost)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Noted {
    fn push(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }
}

impl Reporter for Damage {
    fn unrecoverable(&self, place: &Bookmark, bp: &BlockPtr, error: &Error) {
        let mut noted = self.lock();
        if noted.lost.len() < LOST_MAX {
            let birth = bp.physical_birth();
            noted.lost.insert((place.objset, place.object, place.level, place.blkid, birth));
        }
        noted.push(Event::Lost { place: *place, cause: error.to_string() });
    }

    fn recovered(&self, _: &BlockPtr, bad: &[BadChild], repaired: usize) {
        let mut noted = self.lock();
        for child in bad {
            noted.push(Event::Bad {
                leaf: child.guid,
                offset: child.offset,
                cause: child.cause.to_string(),
                is_repaired: repaired >= bad.len(),
            });
        }
    }
}

impl Engine {
    /// What happened to devices and data, from the oldest of the last thousand events.
    pub fn events(&self) -> Vec<Event> {
        self.damage.events()
    }

    /// Writes lost blocks down. Whether a log already names one makes no difference.
    pub(super) async fn record_damage(&self, txg: u64) -> Result<()> {
        let lost = self.damage.take_lost();
        if lost.is_empty() {
            return Ok(());
        }
        self.mos_apply(txg, |tx| {
            let by_head = features::is_active(tx, "head_errlog")?;
            let log = errors::need_log(tx, ERRLOG_LAST)?;
            for &(objset, object, level, blkid, birth) in &lost {
                let place = Bookmark { objset, object, level, blkid };
                if by_head {
                    note_by_head(tx, log, &place, birth)?;
                } else {
                    zap::update(tx, log, &format_plain(&place), Value::text(""))?;
                }
            }
            Ok(())
        })
        .await
    }
}

/// The log of the head that the damaged dataset belongs to, made if there is none.
fn note_by_head(tx: &mut Tx<'_>, log: u64, place: &Bookmark, birth: u64) -> TxResult<()> {
    let head = match place.objset {
        // The MOS has no head; its errors stand under its own number.
        0 => 0,
        dataset => {
            if tx.find(dataset)?.is_none() {
                return Ok(());
            }
            let dir = get_dataset(tx, dataset)?.dir_obj;
            get_dir(tx, dir)?.head_dataset_obj
        }
    };
    let errors = errors::need_log_of(tx, log, head)?;
    let entry = HeadEntry { object: place.object, level: place.level, blkid: place.blkid, birth };
    zap::update(tx, errors, &entry.format(), Value::text(""))
}
