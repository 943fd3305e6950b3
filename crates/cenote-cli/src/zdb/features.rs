//! Counts the users of each feature, and compares them with the pool's reference counts; before
//! the counts of removed devices, shows the mapping that is being condensed.

use std::collections::BTreeMap;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dsl::{BookmarkFlags, key};
use cenote_ondisk::feature::{FEATURES, Feature, by_name};
use cenote_ondisk::indirect::{CONDENSING_INDIRECT, CondensingPhys, MappingPhys};
use cenote_ondisk::spacemap::Geometry;
use cenote_ondisk::vdev_zap::{OBSOLETE_COUNTS_PRECISE, OBSOLETE_SM};
use cenote_ondisk::zap::Key;
use cenote_pool::Dataset;

use super::metaslabs;
use super::pool::Show;
use crate::io::CommandResult;
use crate::out;

/// Returns the features that are counted per dataset or bookmark, in the order of the table.
fn counted() -> impl Iterator<Item = &'static Feature> {
    let by_other = ["redaction_bookmarks", "bookmark_written", "livelist", "redaction_list_spill"];
    FEATURES
        .iter()
        .filter(move |feature| feature.is_per_dataset() || by_other.contains(&feature.name))
}

/// Prints whether the reference counts of features are right.
pub(super) async fn run(show: &mut Show<'_, '_>, datasets: &[Dataset]) -> CommandResult {
    let mut counts = BTreeMap::new();
    for dataset in datasets {
        count_dataset(show, dataset, &mut counts).await?;
    }
    for feature in counted() {
        let Some(entry) = show.pool.features().entry(feature.guid) else { continue };
        let (found, kept) = (counts.get(feature.name).copied().unwrap_or(0), entry.refcount);
        verdict(show, feature.name, found, kept)?;
    }
    if let Some(condensing) = show.pool.directory_value(CONDENSING_INDIRECT) {
        let condensing = CondensingPhys::decode(&condensing.words())
            .map_err(|error| crate::Exit::failed(error.to_string()))?;
        print_condensing(show, &condensing).await?;
    }
    indirect(show, datasets).await
}

/// Prints the state of condensing, and the space map of the ranges that were obsolete before.
async fn print_condensing(show: &mut Show<'_, '_>, state: &CondensingPhys) -> CommandResult {
    if state.next_mapping_obj == 0 {
        return Ok(());
    }
    let CondensingPhys { vdev, prev_obsolete_sm_obj: map, next_mapping_obj: mapping } = *state;
    out!(
        show.io,
        "Condensing indirect vdev {vdev}: new mapping object {mapping}, prev obsolete sm {map}"
    )?;
    if map == 0 {
        return Ok(());
    }
    let pool = std::sync::Arc::clone(&show.pool);
    let top = pool.config().vdev_tree.children.iter().find(|top| top.id == vdev);
    let size = top.map_or(u64::MAX, |top| top.top.asize);
    let geometry = Geometry { start: 0, size, shift: 0 };
    metaslabs::print_space_map(&pool, map, geometry, show.options, show.io).await?;
    out!(show.io)
}

fn verdict(show: &mut Show<'_, '_>, name: &str, found: u64, kept: u64) -> CommandResult {
    if found == kept {
        return out!(show.io, "Verified {name} feature refcount of {kept} is correct");
    }
    out!(show.io, "{name} feature refcount mismatch: {found} consumers != {kept} refcount")
}

async fn count_dataset(
    show: &Show<'_, '_>,
    dataset: &Dataset,
    counts: &mut BTreeMap<&'static str, u64>,
) -> CommandResult {
    let mos = show.pool.mos();
    let mut add = |name: &'static str| *counts.entry(name).or_insert(0) += 1;
    let dnode = mos.dnode(dataset.object()).await?;
    if dnode.phys().object_type.is_zap() {
        for entry in cenote_dmu::Zap::of(dnode).await?.to_vec().await? {
            let Key::Name(name) = &entry.key else { continue };
            let feature = FEATURES.iter().find(|feature| feature.guid.as_bytes() == name);
            if let Some(feature) = feature.filter(|feature| feature.is_per_dataset()) {
                add(feature.name);
            }
        }
    }
    if dataset.is_snapshot() {
        return Ok(());
    }
    if dataset.dir().extra(mos, key::LIVELIST).await?.is_some() {
        add("livelist");
    }
    for bookmark in dataset.bookmarks().await? {
        if bookmark.phys.redaction_obj != 0 {
            add("redaction_bookmarks");
            let list = mos.dnode(bookmark.phys.redaction_obj).await?;
            if list.phys().spill().is_some_and(|pointer| *pointer != BlockPtr::HOLE) {
                add("redaction_list_spill");
            }
        }
        if bookmark.phys.flags.contains(BookmarkFlags::HAS_FBN) {
            add("bookmark_written");
        }
    }
    Ok(())
}

/// Counts removed devices, and the objects that track obsolete parts of their mappings.
async fn indirect(show: &mut Show<'_, '_>, datasets: &[Dataset]) -> CommandResult {
    let pool = std::sync::Arc::clone(&show.pool);
    let tops = &pool.config().vdev_tree.children;
    let (mut vdevs, mut users) = (0, 0);
    for top in tops {
        if let Some(object) = top.top.indirect_object {
            vdevs += 1;
            let dnode = pool.mos().dnode(object).await?;
            let phys = MappingPhys::decode(dnode.bonus()?)
                .map_err(|error| crate::Exit::failed(error.to_string()))?;
            users += u64::from(phys.counts_obj.is_some_and(|object| object != 0));
        }
        if let Some(zap) = top.top.zap_top {
            let zap = cenote_dmu::Zap::open(pool.mos(), zap).await?;
            for key in [OBSOLETE_SM, OBSOLETE_COUNTS_PRECISE] {
                users += u64::from(zap.lookup(key).await?.is_some());
            }
        }
    }
    users += u64::from(pool.directory_object(key::OBSOLETE_BPOBJ).is_some());
    if let Some(condensing) = pool.directory_value(CONDENSING_INDIRECT) {
        // Vdev, old space map, new mapping: the last two are objects.
        let objects = condensing.words().into_iter().skip(1);
        users += objects.filter(|object| *object != 0).count() as u64;
    }
    for dataset in datasets {
        users += u64::from(dataset.extra(key::REMAP_DEADLIST).await?.is_some());
    }
    let kept = |name: &str| {
        let entry = by_name(name).and_then(|feature| pool.features().entry(feature.guid));
        entry.map_or(0, |entry| entry.refcount)
    };
    let removal = kept("device_removal");
    if vdevs == removal {
        verdict(show, "device_removal", vdevs, removal)?;
    } else {
        out!(
            show.io,
            "Number of indirect vdevs ({vdevs}) does not match feature count ({removal})"
        )?;
    }
    let obsolete = kept("obsolete_counts");
    if users == obsolete {
        return verdict(show, "indirect_refcount", users, obsolete);
    }
    out!(
        show.io,
        "Number of obsolete counts objects ({users}) does not match feature count ({obsolete})"
    )
}
