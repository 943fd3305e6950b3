//! Finds datasets by name, and snapshots by guid (spec 07 B9.1).

use std::sync::Arc;

use cenote_pool::{Dataset, Pool};

use crate::io::Exit;
use crate::source::find;

/// Returns the name of the snapshot with this guid that is nearest to a dataset: in the dataset and
/// below it, then below its parent, and so on.
pub(super) async fn find_guid(
    pool: &Arc<Pool>,
    near: &str,
    guid: u64,
) -> Result<Option<String>, Exit> {
    let mut at = Some(near);
    let mut searched: Option<&str> = None;
    while let Some(name) = at {
        if let Some(dataset) = find(pool, name).await?
            && let Some(found) = below(dataset, guid, searched).await?
        {
            return Ok(Some(found));
        }
        searched = Some(name);
        at = name.rsplit_once('/').map(|(parent, _)| parent);
    }
    Ok(None)
}

/// Searches a dataset and all below it, without the branch that was searched.
async fn below(top: Dataset, guid: u64, searched: Option<&str>) -> Result<Option<String>, Exit> {
    let mut left = vec![top];
    while let Some(dataset) = left.pop() {
        if searched == Some(dataset.name()) {
            continue;
        }
        for snapshot in dataset.snapshots().await? {
            if snapshot.phys().guid == guid {
                return Ok(Some(snapshot.name().to_owned()));
            }
        }
        left.extend(dataset.children().await?);
    }
    Ok(None)
}
