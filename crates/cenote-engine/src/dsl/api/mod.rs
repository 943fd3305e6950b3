//! Operations on datasets by name, for callers of the engine.

pub(crate) mod bookmarks;
pub(crate) mod datasets;
pub(crate) mod properties;
pub(crate) mod snapshots;

use cenote_dmu::{TxResult, TxStop};

/// Calls `act` with each of several datasets; an error names its dataset.
pub(crate) fn each<T>(
    wanted: &[T],
    name: impl Fn(&T) -> &str,
    mut act: impl FnMut(&T) -> TxResult<()>,
) -> TxResult<()> {
    wanted.iter().try_for_each(|one| {
        act(one).map_err(|step| match step {
            TxStop::Fail(error) => TxStop::Fail(error.in_dataset(name(one))),
            need @ TxStop::Need(_) => need,
        })
    })
}
