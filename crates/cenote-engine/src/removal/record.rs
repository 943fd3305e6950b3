//! What the MOS has of removals: the state, mappings with births and counts, obsolete maps.

use std::collections::BTreeMap;

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::spacemap::edit as spacemap;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::dsl::key;
use cenote_ondisk::indirect::{
    BIRTH_ENTRY_LEN, BirthEntry, CONDENSING_INDIRECT, MAPPING_ENTRY_LEN, MappingEntry, MappingPhys,
    REMOVING, RemovingPhys, births_count,
};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::spacemap::{Action, Geometry};
use cenote_ondisk::vdev_zap::{OBSOLETE_COUNTS_PRECISE, OBSOLETE_SM};
use cenote_ondisk::zap::Value;
use cenote_pool::mos::DIRECTORY;
use cenote_ranges::RangeSet;
use cenote_rt::{Error, Result, ensure};

use crate::dsl::{self, features};
use crate::removal::{Removals, condense};
use crate::space::metaslabs;
use crate::{invariant, invariant_error};

/// States of a removal (`dsl_scan_state_t`).
pub(super) const RUNNING: u64 = 1;
pub(super) const FINISHED: u64 = 2;
pub(super) const CANCELED: u64 = 3;

/// The feature that is active with each mapping.
pub(super) const FEATURE: &str = "device_removal";
/// The feature whose refcount is the number of objects and marks about obsolete bytes.
pub(super) const COUNTS: &str = "obsolete_counts";
/// Block size of all of these objects.
const BLOCK: u64 = 128 << 10;

/// An entry that is added to a mapping.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewCopy {
    pub(super) entry: MappingEntry,
    /// Obsolete bytes of it: gaps, and what was freed since.
    pub(super) obsolete: u64,
}

/// Returns the stored state; `None` if no vdev was ever removed.
pub(super) fn state(tx: &mut Tx<'_>) -> TxResult<Option<RemovingPhys>> {
    let Some(value) = zap::lookup(tx, DIRECTORY, REMOVING)? else { return Ok(None) };
    let state = RemovingPhys::decode(&value.words());
    Ok(Some(state.map_err(|error| Error::corrupt(error).in_object(0, DIRECTORY))?))
}

/// Stores the state.
pub(super) fn set_state(tx: &mut Tx<'_>, state: &RemovingPhys) -> TxResult<()> {
    zap::update(tx, DIRECTORY, REMOVING, Value::words_of(&state.encode()))
}

/// Returns the state of the removal of this vdev, which runs.
pub(super) fn running(tx: &mut Tx<'_>, vdev: u64) -> TxResult<RemovingPhys> {
    let state = state(tx)?.filter(|state| (state.state, state.removing_vdev) == (RUNNING, vdev));
    state.ok_or_else(|| invariant(format!("the pool directory has no removal of vdev {vdev}")))
}

pub(super) fn zap_of(top: &VdevConfig) -> TxResult<u64> {
    let zap = top.top.zap_top;
    zap.ok_or_else(|| invariant(format!("vdev {} has no object for obsolete bytes", top.id)))
}

fn object_of(object: Option<u64>, vdev: u64) -> TxResult<u64> {
    object.ok_or_else(|| invariant(format!("vdev {vdev} has no mapping")))
}

/// Creates the mapping and the births of a vdev that is to be removed.
pub(super) fn create(tx: &mut Tx<'_>, top: &mut VdevConfig) -> TxResult<()> {
    features::add(tx, FEATURE, 1)?;
    if features::is_enabled(tx, COUNTS)? {
        zap::insert(tx, zap_of(top)?, OBSOLETE_COUNTS_PRECISE, 1)?;
        features::add(tx, COUNTS, 1)?;
    }
    let mapping = create_mapping(tx)?;
    let metadata = ObjectType::UINT64_METADATA;
    let births = tx.allocate(&ObjectSpec::new(metadata, BLOCK).with_bonus(metadata, 8))?;
    tx.set_bonus(births, &0_u64.to_le_bytes())?;
    (top.top.indirect_object, top.top.indirect_births) = (Some(mapping), Some(births));
    (top.top.removing, top.top.non_allocating) = (true, true);
    Ok(())
}

/// Creates an empty mapping.
pub(super) fn create_mapping(tx: &mut Tx<'_>) -> TxResult<u64> {
    let mut phys = MappingPhys::default();
    if features::is_enabled(tx, COUNTS)? {
        let counts = tx.allocate(&ObjectSpec::new(ObjectType::UINT32_METADATA, BLOCK))?;
        features::add(tx, COUNTS, 1)?;
        phys.counts_obj = Some(counts);
    }
    let metadata = ObjectType::UINT64_METADATA;
    let header = phys.encode();
    let spec = ObjectSpec::new(metadata, BLOCK).with_bonus(metadata, header.len());
    let mapping = tx.allocate(&spec)?;
    tx.set_bonus(mapping, &header)?;
    Ok(mapping)
}

/// Returns the header of a mapping.
pub(super) fn header(tx: &mut Tx<'_>, mapping: u64) -> TxResult<MappingPhys> {
    let phys = MappingPhys::decode(&tx.bonus(mapping)?);
    Ok(phys.map_err(|error| Error::corrupt(error).in_object(0, mapping))?)
}

/// Returns the header of the mapping of a vdev.
pub(super) fn mapping_of(tx: &mut Tx<'_>, top: &VdevConfig) -> TxResult<MappingPhys> {
    header(tx, object_of(top.top.indirect_object, top.id)?)
}

/// Adds the copies that the syncing txg has made.
pub(super) fn append(
    tx: &mut Tx<'_>,
    top: &VdevConfig,
    copies: &[NewCopy],
    txg: u64,
) -> TxResult<()> {
    let mapping = object_of(top.top.indirect_object, top.id)?;
    let end = add_entries(tx, mapping, copies)?;
    let births = object_of(top.top.indirect_births, top.id)?;
    let count = births_count(&tx.bonus(births)?);
    let count = count.map_err(|error| Error::corrupt(error).in_object(0, births))?;
    let birth = BirthEntry { offset: end, txg };
    tx.write(births, count * BIRTH_ENTRY_LEN as u64, &birth.encode())?;
    tx.set_bonus(births, &(count + 1).to_le_bytes())
}

/// Adds entries to a mapping. Returns the end of the last one.
pub(super) fn add_entries(tx: &mut Tx<'_>, mapping: u64, copies: &[NewCopy]) -> TxResult<u64> {
    let mut phys = header(tx, mapping)?;
    let (mut entries, mut counts) = (Vec::new(), Vec::new());
    for NewCopy { entry, obsolete } in copies {
        ensure!("RV3", entry.source >= phys.max_offset, "{entry:?} before {:#x}", phys.max_offset);
        let bytes = entry.encode();
        let bytes = bytes.ok_or_else(|| invariant(format!("{entry:?} cannot be encoded")))?;
        entries.extend_from_slice(&bytes);
        counts.extend_from_slice(&(*obsolete as u32).to_le_bytes());
        phys.max_offset = entry.end();
        phys.bytes_mapped += entry.target.asize;
    }
    tx.write(mapping, phys.num_entries * MAPPING_ENTRY_LEN as u64, &entries)?;
    if let Some(object) = phys.counts_obj {
        tx.write(object, phys.num_entries * 4, &counts)?;
    }
    phys.num_entries += copies.len() as u64;
    tx.set_bonus(mapping, &phys.encode())?;
    Ok(phys.max_offset)
}

/// Gives a vdev another mapping, and frees the one that it has.
pub(super) fn replace_mapping(tx: &mut Tx<'_>, top: &mut VdevConfig, new: u64) -> TxResult<()> {
    let old = object_of(top.top.indirect_object.replace(new), top.id)?;
    free_mapping(tx, old)
}

fn free_mapping(tx: &mut Tx<'_>, mapping: u64) -> TxResult<()> {
    if let Some(counts) = header(tx, mapping)?.counts_obj.filter(|object| *object != 0) {
        tx.free(counts)?;
        features::add(tx, COUNTS, -1)?;
    }
    tx.free(mapping)
}

/// Frees the mapping of a vdev, and everything about its obsolete bytes.
pub(super) fn destroy(tx: &mut Tx<'_>, top: &mut VdevConfig) -> TxResult<()> {
    features::add(tx, FEATURE, -1)?;
    let mapping = object_of(top.top.indirect_object.take(), top.id)?;
    free_mapping(tx, mapping)?;
    let births = object_of(top.top.indirect_births.take(), top.id)?;
    tx.free(births)?;
    let zap_top = zap_of(top)?;
    if zap::take(tx, zap_top, OBSOLETE_COUNTS_PRECISE)?.is_some() {
        features::add(tx, COUNTS, -1)?;
    }
    if let Some(map) = zap::lookup_u64(tx, zap_top, OBSOLETE_SM)? {
        metaslabs::free_map(tx, map)?;
        zap::remove(tx, zap_top, OBSOLETE_SM)?;
        features::add(tx, COUNTS, -1)?;
    }
    Ok(())
}

/// Adds ranges that became obsolete to the map of their vdev.
fn mark_obsolete(
    tx: &mut Tx<'_>,
    top: &VdevConfig,
    ranges: &RangeSet,
    stamp: spacemap::Stamp,
) -> TxResult<()> {
    if !features::is_enabled(tx, COUNTS)? {
        return Ok(());
    }
    let zap_top = zap_of(top)?;
    let map = if let Some(map) = zap::lookup_u64(tx, zap_top, OBSOLETE_SM)? {
        map
    } else {
        let has_histogram = features::is_enabled(tx, "spacemap_histogram")?;
        features::add(tx, COUNTS, 1)?;
        let form = spacemap::MapFormat { block_size: BLOCK, has_histogram };
        let map = metaslabs::new_map(tx, &form)?;
        zap::insert(tx, zap_top, OBSOLETE_SM, map)?;
        map
    };
    let has_v2 = features::is_active(tx, "spacemap_v2")?;
    let geometry = Geometry { start: 0, size: top.top.asize, shift: 0 };
    let words = spacemap::EntryFormat { geometry, has_v2, vdev: None };
    spacemap::append(tx, map, &words, Action::Alloc, ranges.iter(), stamp)
}

/// Whether the pool has lists of remapped blocks, which only OpenZFS makes: the refcount counts
/// more than the maps, counts and marks of the vdevs.
pub(super) fn has_remapped_blocks(tx: &mut Tx<'_>, root: &VdevConfig) -> TxResult<bool> {
    let Some(count) = features::count(tx, COUNTS)? else { return Ok(false) };
    if count == 0 {
        return Ok(false);
    }
    let mut known = 0;
    for top in root.children.iter().filter(|top| top.top.indirect_object.is_some()) {
        let zap_top = zap_of(top)?;
        known += u64::from(zap::lookup_u64(tx, zap_top, OBSOLETE_COUNTS_PRECISE)?.is_some());
        known += u64::from(zap::lookup_u64(tx, zap_top, OBSOLETE_SM)?.is_some());
        let mapping = object_of(top.top.indirect_object, top.id)?;
        known += u64::from(header(tx, mapping)?.counts_obj.is_some_and(|object| object != 0));
    }
    if zap::contains(tx, DIRECTORY, CONDENSING_INDIRECT)? {
        known += 2;
    }
    let has_list = dsl::directory_object(tx, key::OBSOLETE_BPOBJ)?.is_some();
    Ok(has_list || count > known)
}

impl Removals<'_> {
    /// Records what frees of moved bytes have changed since the last pass.
    pub(crate) async fn record_moved(self, txg: u64, pass: u32) -> Result<()> {
        let moved = self.engine.store.moved();
        if !moved.has_changes() {
            return Ok(());
        }
        let (obsolete, skipped) = (moved.take_obsolete(), moved.take_skipped());
        let root = self.engine.config().root;
        let tops = tops_of(&root, &obsolete)?;
        let removing = self.removing().filter(|_| skipped > 0);
        let stamp = spacemap::Stamp { txg, pass };
        let is_due = self
            .engine
            .mos_apply(txg, |tx| {
                for (top, ranges) in &tops {
                    mark_obsolete(tx, top, ranges, stamp)?;
                }
                if let Some(vdev) = removing {
                    let mut state = running(tx, vdev)?;
                    state.copied = state.copied.saturating_add(skipped);
                    set_state(tx, &state)?;
                }
                Ok(!tops.is_empty() && condense::is_due(tx, &root)?)
            })
            .await?;
        if is_due {
            self.start_condensing();
        }
        Ok(())
    }
}

fn tops_of<'a>(
    root: &'a VdevConfig,
    obsolete: &'a BTreeMap<u64, RangeSet>,
) -> Result<Vec<(&'a VdevConfig, &'a RangeSet)>> {
    let found = obsolete.iter().map(|(id, ranges)| {
        let top = usize::try_from(*id).ok().and_then(|id| root.children.get(id));
        let top = top.ok_or_else(|| invariant_error(format!("obsolete bytes of no vdev {id}")))?;
        Ok((top, ranges))
    });
    found.collect()
}
