//! The pool's history: commands and internal events, oldest first (spec 01 §13, 08 §38).
//!
//! A broken record ends the history where it stands; it never keeps a pool from opening.

use cenote_ondisk::history::{HistoryPhys, key, records};
use cenote_ondisk::nvlist::NvList;
use cenote_rt::{Error, Kind, Result};

use crate::{Pool, mos};

/// Pool directory: the history object.
const HISTORY: &str = "history";

/// A ring has a thousandth of the pool, at most 1 GiB; one this full has not been seen.
const HISTORY_BYTES_MAX: u64 = 128 << 20;

/// What a record tells.
#[derive(Debug, Clone, PartialEq)]
pub enum HistoryEvent {
    /// A command line.
    Command(String),
    /// Something that the pool did.
    Internal {
        /// When, in txgs.
        txg: u64,
        /// What.
        name: String,
        /// To which dataset: its name and object.
        dataset: Option<(String, u64)>,
        /// How.
        text: String,
    },
    /// An ioctl.
    Ioctl {
        /// Its name.
        name: String,
        /// What it was given.
        input: Option<NvList>,
        /// What it gave back.
        output: Option<NvList>,
        /// Bytes given back, where that was too much to log.
        output_size: Option<u64>,
        /// Its result, if it failed.
        errno: i64,
        /// How long it took.
        elapsed_ns: i64,
    },
    /// A record of a kind we do not know.
    Other,
}

/// One record.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryRecord {
    /// When, seconds since 1970.
    pub time: u64,
    /// What.
    pub event: HistoryEvent,
    /// Uid of who did it.
    pub who: Option<u64>,
    /// On which host.
    pub hostname: Option<String>,
    /// In which zone.
    pub zone: Option<String>,
    /// The whole record.
    pub list: NvList,
}

/// A history, as far as it can be read.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Its records, oldest first.
    pub records: Vec<HistoryRecord>,
    /// Records that were overwritten by later ones.
    pub lost: u64,
    /// What ended it early.
    pub damage: Option<String>,
}

impl HistoryRecord {
    fn of(list: NvList) -> Self {
        let text = |name: &str| list.string(name).map(|text| text.to_string_lossy().into_owned());
        let event = if let Some(command) = text(key::COMMAND) {
            HistoryEvent::Command(command)
        } else if let Some(name) = text(key::IOCTL) {
            HistoryEvent::Ioctl {
                name,
                input: list.list(key::INPUT).cloned(),
                output: list.list(key::OUTPUT).cloned(),
                output_size: list.u64(key::OUTPUT_SIZE),
                errno: list.i64(key::ERRNO).unwrap_or(0),
                elapsed_ns: list.i64(key::ELAPSED_NS).unwrap_or(0),
            }
        } else if let Some(name) = text(key::INTERNAL_NAME).or_else(|| old_event(&list)) {
            HistoryEvent::Internal {
                txg: list.u64(key::TXG).unwrap_or(0),
                name,
                dataset: text(key::DSNAME).zip(list.u64(key::DSID)),
                text: text(key::INTERNAL_STR).unwrap_or_default(),
            }
        } else {
            HistoryEvent::Other
        };
        Self {
            time: list.u64(key::TIME).unwrap_or(0),
            event,
            who: list.u64(key::WHO),
            hostname: text(key::HOSTNAME),
            zone: text(key::ZONE),
            list,
        }
    }
}

/// The name of an event that old releases stored as a number.
fn old_event(list: &NvList) -> Option<String> {
    const NAMES: [&str; 35] = [
        "invalid event",
        "pool create",
        "vdev add",
        "pool remove",
        "pool destroy",
        "pool export",
        "pool import",
        "vdev attach",
        "vdev replace",
        "vdev detach",
        "vdev online",
        "vdev offline",
        "vdev upgrade",
        "pool clear",
        "pool scrub",
        "pool property set",
        "create",
        "clone",
        "destroy",
        "destroy_begin_sync",
        "inherit",
        "property set",
        "quota set",
        "permission update",
        "permission remove",
        "permission who remove",
        "promote",
        "receive",
        "rename",
        "reservation set",
        "replay_inc_sync",
        "replay_full_sync",
        "rollback",
        "snapshot",
        "filesystem version upgrade",
    ];
    let number = usize::try_from(list.u64(key::INTERNAL_EVENT)?).ok()?;
    Some(NAMES.get(number).map_or_else(|| format!("event {number}"), |name| (*name).to_owned()))
}

impl Pool {
    /// The history, as far as it can be read.
    pub async fn history(&self) -> Result<History> {
        let Some(object) = self.directory_object(HISTORY) else { return Ok(History::default()) };
        let dnode = self.mos().dnode(object).await?;
        let phys = HistoryPhys::decode(dnode.bonus()?).map_err(mos::corrupt(object))?;
        let size = dnode.geometry().byte_count();
        let len = phys.create_len.saturating_add(phys.eof.saturating_sub(phys.bof));
        if len > HISTORY_BYTES_MAX {
            let text = format!("history of {len} bytes, at most {HISTORY_BYTES_MAX} are read");
            return Err(Error::new(Kind::Limit, text).in_object(0, object));
        }
        let [first, second] = phys.live();
        let mut bytes = Vec::new();
        for range in [0..phys.create_len, first, second] {
            if range.end > size {
                let text = format!("history ends at {} of {size} bytes", range.end);
                return Err(Error::corrupt(text).in_object(0, object));
            }
            let len = range.end.saturating_sub(range.start) as usize;
            if len != 0 {
                bytes.extend_from_slice(&dnode.read_at(range.start, len).await?);
            }
        }
        let mut history = History { lost: phys.records_lost, ..History::default() };
        for record in records(&bytes) {
            let list = record
                .map_err(|error| error.to_string())
                .and_then(|record| NvList::decode(record).map_err(|error| error.to_string()));
            match list {
                Ok(list) => history.records.push(HistoryRecord::of(list)),
                Err(damage) => {
                    history.damage = Some(damage);
                    break;
                }
            }
        }
        Ok(history)
    }
}
