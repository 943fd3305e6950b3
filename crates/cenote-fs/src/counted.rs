//! Usage by owner of file systems whose accounting is not complete: what was received without keys.

use std::collections::BTreeMap;

use cenote_ondisk::dnode::DNODE_SLOT_LEN;
use cenote_ondisk::objset::ObjSetFlags;
use cenote_pool::dsl::Dataset;
use cenote_pool::props::{SpaceOwner, SpaceRow};
use cenote_rt::Result;

use crate::format::FsOwners;

/// Returns usage and quotas of every user, group or project that has any, by id. What was received
/// without keys is counted, since that could not be done then; nothing is changed.
///
/// # Errors
/// Errors of reading the dataset; `Kind::KeyUnavailable` if its key is not loaded.
pub async fn space_by_owner(dataset: &Dataset, owner: SpaceOwner) -> Result<Vec<SpaceRow>> {
    let rows = dataset.space_by_owner(owner).await?;
    let objset = dataset.open().await?;
    let is_complete = objset.phys().flags.contains(ObjSetFlags::USERACCOUNTING_COMPLETE);
    if is_complete || dataset.key_info().await?.is_none() {
        return Ok(rows);
    }
    let unused = |row: SpaceRow| (row.id, SpaceRow { used: 0, objects_used: 0, ..row });
    let mut rows: BTreeMap<u64, SpaceRow> = rows.into_iter().map(unused).collect();
    let probe = FsOwners { counts_objects: true, counts_projects: true };
    let mut dnodes = objset.dnodes(1);
    while let Some(dnode) = dnodes.next().await {
        let dnode = dnode?;
        let Some(found) = probe.of(&dnode).await? else { continue };
        let id = match owner {
            SpaceOwner::User => found.uid,
            SpaceOwner::Group => found.gid,
            SpaceOwner::Project => found.project,
        };
        let row = rows.entry(id).or_insert(SpaceRow { id, ..SpaceRow::default() });
        let space = dnode.phys().used_bytes().saturating_add(DNODE_SLOT_LEN as u64);
        row.used = row.used.saturating_add(space);
        row.objects_used = row.objects_used.saturating_add(1);
    }
    let has_any = |row: &SpaceRow| row.objects_used | row.quota | row.objects_quota != 0;
    Ok(rows.into_values().filter(has_any).collect())
}
