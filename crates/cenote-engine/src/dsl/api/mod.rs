//! Operations on datasets by name, for callers of the engine.

pub(crate) mod bookmarks;
pub(crate) mod datasets;
pub(crate) mod keys;
pub(crate) mod properties;
pub(crate) mod receives;
pub(crate) mod snapshots;

use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_rt::Result;

use crate::Datasets;
use crate::dsl::operation::{Body, Request};
use crate::dsl::{Effects, Env};

/// One of several datasets that an operation changes.
trait Wanted: Send + Sync + 'static {
    fn dataset(&self) -> &str;
}

impl Wanted for String {
    fn dataset(&self) -> &str {
        self
    }
}

/// A dataset, and the tag or source that belongs to it.
impl Wanted for (String, String) {
    fn dataset(&self) -> &str {
        &self.0
    }
}

impl Datasets<'_> {
    /// Changes several datasets in the same txg; an error names its dataset, and none is changed.
    async fn operate_each<W: Wanted>(
        self,
        request: Request,
        wanted: Vec<W>,
        act: impl Fn(&mut Tx<'_>, &Env, &mut Effects, &W) -> TxResult<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let parts = wanted.len();
        let act = move |tx: &mut Tx<'_>, env: &Env, effects: &mut Effects, part: usize| {
            let Some(one) = wanted.get(part) else { return Ok(()) };
            act(tx, env, effects, one).map_err(|step| match step {
                TxStop::Fail(error) => TxStop::Fail(error.in_dataset(one.dataset())),
                need @ TxStop::Need(_) => need,
            })
        };
        self.operate_with(request, Body::each(parts, act)).await
    }
}
