//! Writing a layer over the tree before it.

use cenote_rt::Result;

use super::context::{SyncContext, Synced};
use super::set::Live;

pub(super) async fn run(_live: &Live, _context: &SyncContext<'_>) -> Result<Synced> {
    todo!()
}
