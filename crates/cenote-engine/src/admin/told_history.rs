//! Events of the pool's history: each internal record that a txg adds is an event once the txg is
//! committed, as in OpenZFS.

use std::sync::atomic::{AtomicU64, Ordering};

use cenote_dmu::history;
use cenote_ondisk::history::{HistoryPhys, key, records};
use cenote_ondisk::nvlist::NvList;
use cenote_pool::Pool;
use cenote_rt::{Error, Result, tunables};

use crate::Engine;
use crate::admin::events::{Event, HistoryNote};
use crate::dsl::directory_object;
use crate::dsl::history::HISTORY;

/// Bytes of new records at most; the event log keeps fewer events than these have.
const NEW_MAX: usize = 16 << 20;

/// How much of the history was told. Only the sync changes it.
#[derive(Debug, Default)]
pub(crate) struct ToldHistory {
    /// Number of the object; 0 if there is none yet.
    object: AtomicU64,
    /// The end of the history up to which its records were told.
    end: AtomicU64,
}

impl ToldHistory {
    /// Everything that a pool has at its import counts as told. Without a readable history nothing
    /// is told of it.
    pub(crate) async fn of(pool: &Pool) -> Self {
        let Some(object) = pool.directory_object(HISTORY) else { return Self::default() };
        let end = end_of(pool, object).await.unwrap_or(u64::MAX);
        Self { object: AtomicU64::new(object), end: AtomicU64::new(end) }
    }
}

async fn end_of(pool: &Pool, object: u64) -> Result<u64> {
    let dnode = pool.mos().dnode(object).await?;
    let phys = HistoryPhys::decode(dnode.bonus()?).map_err(Error::corrupt)?;
    Ok(phys.eof)
}

impl Engine {
    /// Returns events of the records that the txg which is being synced has added; none if they
    /// have more than [`NEW_MAX`] bytes. To be called while these are in memory: no device is read
    /// for a txg that has added none.
    pub(crate) async fn new_history(&self) -> Vec<Event> {
        let told = &self.health.history;
        let from = told.end.load(Ordering::Acquire);
        let known = told.object.load(Ordering::Acquire);
        let found = self.mos.inspect(|tx| {
            let object = match known {
                0 => directory_object(tx, HISTORY)?,
                object => Some(object).filter(|object| tx.is_pending(*object)),
            };
            let Some(object) = object else { return Ok(None) };
            let (end, bytes) = history::records_from(tx, object, from, NEW_MAX)?;
            Ok(Some((object, end, bytes)))
        });
        let Ok(Some((object, end, bytes))) = found.await else { return Vec::new() };
        told.object.store(object, Ordering::Release);
        told.end.store(end, Ordering::Release);
        let lists = records(&bytes).map_while(std::result::Result::ok);
        let notes = lists.filter_map(|record| note_of(&NvList::decode(record).ok()?));
        let mut notes: Vec<_> = notes.map(|note| Event::History(Box::new(note))).collect();
        let too_many = notes.len().saturating_sub(tunables::ZEVENT_LEN_MAX.get_usize());
        notes.drain(..too_many);
        notes
    }
}

/// Returns what an internal record tells; `None` for commands.
fn note_of(list: &NvList) -> Option<HistoryNote> {
    let text = |name: &str| list.string(name).map(|text| text.to_string_lossy().into_owned());
    Some(HistoryNote {
        name: text(key::INTERNAL_NAME)?,
        host: text(key::HOSTNAME).unwrap_or_default(),
        text: text(key::INTERNAL_STR).unwrap_or_default(),
        dataset: text(key::DSNAME).zip(list.u64(key::DSID)),
        txg: list.u64(key::TXG).unwrap_or(0),
        time: list.u64(key::TIME).unwrap_or(0),
    })
}
