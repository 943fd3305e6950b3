//! Log space maps: changes of metaslabs since their own space maps were written (spec 05 §4).

use cenote_dmu::SpaceMap;
use cenote_ondisk::dsl::key;
use cenote_ondisk::spacemap::{Action, Geometry, Item, LOG_SPACEMAP_ZAP};
use cenote_rt::Result;

use super::VdevFigures;
use crate::{Pool, mos};

/// Returns (txg, space map object) of each log, oldest first.
pub async fn list(pool: &Pool) -> Result<Vec<(u64, u64)>> {
    let Some(zap) = pool.directory_object(LOG_SPACEMAP_ZAP) else { return Ok(Vec::new()) };
    let mut logs: Vec<_> = mos::entries(pool.mos(), zap)
        .await?
        .into_iter()
        .filter_map(|(txg, value)| Some((key::to_number(txg.as_bytes())?, value.first()?)))
        .collect();
    logs.sort_unstable();
    Ok(logs)
}

/// Applies the logs to the figures of the metaslabs.
pub(super) async fn apply(pool: &Pool, vdevs: &mut [VdevFigures]) -> Result<()> {
    for (txg, object) in list(pool).await? {
        let map = SpaceMap::open(pool.mos(), object).await?;
        map.for_each(Geometry::LOG, |item| {
            let Item::Entry(entry) = item else { return Ok(()) };
            let vdev = entry.vdev.and_then(|id| vdevs.iter_mut().find(|v| v.id == u64::from(id)));
            if let Some(vdev) = vdev.filter(|vdev| vdev.is_concrete) {
                vdev.apply_log(entry.offset, entry.size, entry.action == Action::Alloc, txg);
            }
            Ok(())
        })
        .await?;
    }
    Ok(())
}
