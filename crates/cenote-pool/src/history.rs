//! The pool's history: commands and internal events, oldest first (spec 01 §13, 08 §38).
//!
//! A damaged record ends the history at its place; it never prevents opening a pool.

use cenote_ondisk::history::{HistoryPhys, key, records};
use cenote_ondisk::nvlist::NvList;
use cenote_rt::{Error, Kind, Result};

use crate::{Pool, mos};

/// Pool directory entry: the history object.
const HISTORY: &str = "history";

/// Longest history that is read. The ring is a thousandth of the pool, at most 1 GiB.
const HISTORY_BYTES_MAX: u64 = 128 << 20;

/// Why a history cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HistoryError {
    /// The history is longer than what is read.
    #[error("history of {len} bytes, at most {HISTORY_BYTES_MAX} are read")]
    TooLong {
        /// Its length in bytes.
        len: u64,
    },
    /// It ends beyond its object.
    #[error("history ends at {end} of {size} bytes")]
    Beyond {
        /// Its end in bytes.
        end: u64,
        /// Bytes of the object.
        size: u64,
    },
}

/// The event of a record.
#[derive(Debug, Clone, PartialEq)]
pub enum HistoryEvent {
    /// A command with its arguments.
    Command(String),
    /// An internal event of the pool.
    Internal {
        /// Its txg.
        txg: u64,
        /// Its name.
        name: String,
        /// Name and object of its dataset.
        dataset: Option<(String, u64)>,
        /// Its details.
        text: String,
    },
    /// An ioctl.
    Ioctl {
        /// Its name.
        name: String,
        /// Its input.
        input: Option<NvList>,
        /// Its output.
        output: Option<NvList>,
        /// Size of an output that was too large to log.
        output_size: Option<u64>,
        /// Its errno, if it failed.
        errno: i64,
        /// Its duration.
        elapsed_ns: i64,
    },
    /// A record of an unknown kind.
    Other,
}

/// One record.
#[derive(Debug, Clone, PartialEq)]
pub struct HistoryRecord {
    /// Seconds since 1970.
    pub time: u64,
    /// The event.
    pub event: HistoryEvent,
    /// Uid of the user.
    pub who: Option<u64>,
    /// Name of the host.
    pub hostname: Option<String>,
    /// Name of the zone.
    pub zone: Option<String>,
    /// The whole record.
    pub list: NvList,
}

/// The readable part of a history.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct History {
    /// Its records, oldest first.
    pub records: Vec<HistoryRecord>,
    /// Number of records that were overwritten.
    pub lost: u64,
    /// Damage at which reading ended.
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

/// Returns the name of an event that old releases stored as a number.
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
    /// Reads the history.
    pub async fn history(&self) -> Result<History> {
        let Some(object) = self.directory_object(HISTORY) else { return Ok(History::default()) };
        let dnode = self.mos().dnode(object).await?;
        let phys = HistoryPhys::decode(dnode.bonus()?).map_err(mos::corrupt(object))?;
        let size = dnode.geometry().byte_count();
        let len = phys.create_len.saturating_add(phys.eof.saturating_sub(phys.bof));
        if len > HISTORY_BYTES_MAX {
            let cause = HistoryError::TooLong { len };
            return Err(Error::new(Kind::Limit, cause).in_object(0, object));
        }
        let [first, second] = phys.live();
        let mut bytes = Vec::new();
        for range in [0..phys.create_len, first, second] {
            if range.end > size {
                let cause = HistoryError::Beyond { end: range.end, size };
                return Err(Error::corrupt(cause).in_object(0, object));
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
