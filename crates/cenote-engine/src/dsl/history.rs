//! Records operations in the pool's history (spec 04 §23).

use cenote_dmu::history;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::history::key;
use cenote_ondisk::nvlist::NvList;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::Uts;

use crate::dsl::{Env, directory_object, names};

/// Pool directory entry: the history.
pub(crate) const HISTORY: &str = "history";

/// A record of the pool that is written with the next operation on it.
#[derive(Debug)]
pub(crate) struct PendingRecord {
    /// Name of the operation.
    pub(crate) event: &'static str,
    /// Its details.
    pub(crate) text: String,
}

/// The version of this program, with that of OpenZFS whose behaviour it has.
pub const SOFTWARE: &str = concat!("zfs-2.3.2-cenote-", env!("CARGO_PKG_VERSION"));

/// Returns the text of the records that name the software and the host: of the creation, the import
/// and the opening of a pool.
pub(crate) fn version_text(version: u64) -> String {
    format!("pool version {version}; software version {SOFTWARE}; uts {}", Uts::here())
}

/// Records an operation on a dataset, with its current name.
pub(crate) fn log(
    tx: &mut Tx<'_>,
    env: &Env,
    event: &str,
    dataset: u64,
    text: &str,
) -> TxResult<()> {
    let name = names::name_of(tx, env, dataset)?;
    record(tx, env, event, Some((&name, dataset)), text)
}

/// Records an operation on the pool.
pub(crate) fn log_pool(tx: &mut Tx<'_>, env: &Env, event: &str, text: &str) -> TxResult<()> {
    record(tx, env, event, None, text)
}

fn record(
    tx: &mut Tx<'_>,
    env: &Env,
    event: &str,
    dataset: Option<(&str, u64)>,
    text: &str,
) -> TxResult<()> {
    let mut list = NvList::new();
    list.insert(key::TIME, env.now);
    list.insert(key::HOSTNAME, env.host.as_str());
    list.insert(key::INTERNAL_NAME, event);
    list.insert(key::TXG, env.txg);
    if let Some((name, object)) = dataset {
        list.insert(key::DSNAME, name);
        list.insert(key::DSID, object);
    }
    // OpenZFS writes a space instead of an empty text.
    list.insert(key::INTERNAL_STR, if text.is_empty() { " " } else { text });
    let object = if let Some(object) = directory_object(tx, HISTORY)? {
        object
    } else {
        let object = history::create(tx, env.space.rdspace)?;
        zap::update(tx, DIRECTORY, HISTORY, object)?;
        object
    };
    history::append(tx, object, &list)
}
