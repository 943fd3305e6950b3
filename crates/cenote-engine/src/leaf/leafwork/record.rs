//! The stored state of trim and initialize, in the ZAPs of leaves.

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::leaf_work::{LeafWork, LeafWorkKind, LeafWorkState};

/// Reads the stored state.
pub(super) fn read(tx: &mut Tx<'_>, leaf_zap: u64, kind: LeafWorkKind) -> TxResult<LeafWork> {
    let keys = kind.keys();
    let mut word =
        |name: &str| -> TxResult<u64> { Ok(zap::lookup_u64(tx, leaf_zap, name)?.unwrap_or(0)) };
    let mut work = LeafWork {
        state: LeafWorkState::of_number(word(keys.state)?),
        offset: word(keys.offset)?,
        time: word(keys.time)?,
        ..LeafWork::default()
    };
    if let Some([rate, partial, secure]) = keys.settings {
        work.rate = word(rate)?;
        work.is_partial = word(partial)? != 0;
        work.is_secure = word(secure)? != 0;
    }
    Ok(work)
}

/// Stores the state. Zero values that were never stored are omitted, except the state itself.
pub(super) fn write(
    tx: &mut Tx<'_>,
    leaf_zap: u64,
    kind: LeafWorkKind,
    work: &LeafWork,
) -> TxResult<()> {
    let keys = kind.keys();
    let mut entries = vec![(keys.offset, work.offset), (keys.time, work.time)];
    if let Some([rate, partial, secure]) = keys.settings {
        let (is_partial, is_secure) = (u64::from(work.is_partial), u64::from(work.is_secure));
        entries.extend([(rate, work.rate), (partial, is_partial), (secure, is_secure)]);
    }
    for (name, word) in entries {
        if word != 0 || zap::contains(tx, leaf_zap, name)? {
            zap::update(tx, leaf_zap, name, word)?;
        }
    }
    zap::update(tx, leaf_zap, keys.state, work.state.number())
}

/// Removes the stored state.
pub(super) fn forget(tx: &mut Tx<'_>, leaf_zap: u64, kind: LeafWorkKind) -> TxResult<()> {
    let keys = kind.keys();
    let names = [keys.state, keys.offset, keys.time];
    for name in names.into_iter().chain(keys.settings.into_iter().flatten()) {
        zap::take(tx, leaf_zap, name)?;
    }
    Ok(())
}
