//! Records operations in the pool's history (spec 04 §23).

use cenote_dmu::history;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::history::key;
use cenote_ondisk::nvlist::NvList;
use cenote_pool::mos::DIRECTORY;

use crate::dsl::{Env, directory_object, names};

/// Pool directory entry: the history.
pub(crate) const HISTORY: &str = "history";

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
