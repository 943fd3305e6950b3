//! Loads the mappings of removed vdevs from the MOS into the vdev tree (spec 05 §11).
//!
//! A mapping may itself be on a vdev that was removed later, so mappings are loaded from the newest
//! to the oldest.

use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::indirect::{MAPPING_ENTRY_LEN, MappingPhys};
use cenote_rt::{Error, Result};
use cenote_vdev::{IndirectMap, Tree};

use crate::mos;

/// Maximum size of a mapping: ten million entries.
const MAPPING_BYTES_MAX: u64 = 10_000_000 * MAPPING_ENTRY_LEN as u64;

/// Loads every mapping of the pool, newest first. A damaged mapping makes only the blocks of its
/// vdev unreadable; the returned warnings name it, and the pool opens.
pub(super) async fn load(mos: &Arc<ObjSet>, tree: &Tree, root: &VdevConfig) -> Vec<String> {
    let mut warnings = Vec::new();
    for vdev in order(root) {
        let Some(object @ 1..) = vdev.top.indirect_object else { continue };
        match read(mos, object).await {
            Ok(map) => tree.set_indirect(vdev.id, Arc::new(map)),
            Err(error) => warnings.push(format!("mapping of vdev {}: {error}", vdev.id)),
        }
    }
    warnings
}

/// Returns the current mapping of the vdev that is being removed: the copies of its blocks so far.
/// The blocks are still read from the vdev.
pub(crate) async fn of_removing(
    mos: &Arc<ObjSet>,
    root: &VdevConfig,
) -> Result<Option<(u64, IndirectMap)>> {
    for vdev in root.children.iter().filter(|vdev| vdev.kind != VdevKind::Indirect) {
        if let Some(object @ 1..) = vdev.top.indirect_object {
            return Ok(Some((vdev.id, read(mos, object).await?)));
        }
    }
    Ok(None)
}

/// Returns the removed vdevs, the last removed first.
fn order(root: &VdevConfig) -> Vec<&VdevConfig> {
    let mut left: Vec<&VdevConfig> =
        root.children.iter().filter(|vdev| vdev.kind == VdevKind::Indirect).collect();
    let mut order = Vec::with_capacity(left.len());
    while !left.is_empty() {
        // The last removed is no other's predecessor.
        let is_named = |vdev: &&VdevConfig| {
            left.iter().any(|other| other.top.prev_indirect_vdev == Some(vdev.id))
        };
        let newest = left.iter().position(|vdev| !is_named(vdev)).unwrap_or(0);
        order.push(left.remove(newest));
    }
    order
}

/// A mapping has more entries than its object, or than are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("mapping of {count} entries does not fit its object")]
struct MappingLength {
    count: u64,
}

async fn read(mos: &Arc<ObjSet>, object: u64) -> Result<IndirectMap> {
    let dnode = mos.dnode(object).await?;
    let phys = MappingPhys::decode(dnode.bonus()?).map_err(mos::corrupt(object))?;
    let len = phys.num_entries.saturating_mul(MAPPING_ENTRY_LEN as u64);
    if len > dnode.geometry().byte_count() || len > MAPPING_BYTES_MAX {
        let cause = MappingLength { count: phys.num_entries };
        return Err(Error::corrupt(cause).in_object(0, object));
    }
    let bytes = dnode.read_at(0, len as usize).await?;
    IndirectMap::decode(&bytes).map_err(mos::corrupt(object))
}
