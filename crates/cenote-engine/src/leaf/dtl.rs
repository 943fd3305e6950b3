//! Dirty time logs of leaves, kept in the MOS (spec 06 §8).
//!
//! A leaf that was absent or failed a write has the txg in its DTL before the block counts as
//! written; here the DTL becomes a space map that the leaf's config names, in the same txg. Units
//! are txgs. An empty DTL has no object.
//!
//! Invariants
//! * DT1  Each leaf with a DTL is in the config, which names the object of the DTL.

use cenote_dmu::spacemap::edit as spacemap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::spacemap::{Action, Geometry};
use cenote_rt::{Result, ensure};
use cenote_vdev::{Sides, TxgRanges};

use crate::Leaves;
use crate::Scope;
use crate::admin::create::FIRST_TXG;
use crate::dsl::features;
use crate::space::metaslabs;

/// Block size of a DTL's space map.
const BLOCK: u64 = 4 << 10;

impl Leaves<'_> {
    /// Writes the DTLs that changed since the last pass.
    pub(crate) async fn record_dtls(self, scope: &Scope<'_>, pass: u32) -> Result<()> {
        let txg = scope.context.txg;
        if self.engine.removals().has_copied_in(txg)
            && Sides::note_missing(&self.engine.tree, FIRST_TXG, txg)
        {
            self.engine.removals().note_lacking(true);
        }
        for (guid, ranges) in self.engine.tree.changed_dtls() {
            let object = self.dtl_object(guid);
            let stamp = spacemap::Stamp { txg, pass };
            let new = self.engine.mos_apply(txg, |tx| store(tx, object, &ranges, stamp)).await?;
            let is_whole = ranges.is_empty();
            if new != object || is_whole {
                let is_stored = scope.change_config(|config| {
                    let Some(leaf) = config.root.find_mut(guid) else { return false };
                    leaf.leaf.dtl_object = new;
                    if is_whole {
                        (leaf.leaf.resilver_txg, leaf.leaf.rebuild_txg) = (None, None);
                    }
                    config.touch();
                    true
                });
                ensure!("DT1", is_stored, "leaf {guid} has a DTL and is not in the config");
            }
        }
        Ok(())
    }

    fn dtl_object(self, guid: u64) -> Option<u64> {
        self.engine.config().root.find(guid).and_then(|leaf| leaf.leaf.dtl_object)
    }
}

/// Frees the DTL of a leaf that left the pool.
pub(crate) fn free(tx: &mut Tx<'_>, object: Option<u64>, txg: u64) -> TxResult<()> {
    let stamp = spacemap::Stamp { txg, pass: 1 };
    store(tx, object, &TxgRanges::default(), stamp).map(drop)
}

/// Makes the space map contain `ranges`. Returns its object, which is freed when `ranges` is empty.
fn store(
    tx: &mut Tx<'_>,
    object: Option<u64>,
    ranges: &TxgRanges,
    stamp: spacemap::Stamp,
) -> TxResult<Option<u64>> {
    let has_histogram = features::is_enabled(tx, "spacemap_histogram")?;
    let form = spacemap::MapFormat { block_size: BLOCK, has_histogram };
    if ranges.is_empty() {
        if let Some(object) = object {
            metaslabs::free_map(tx, object)?;
        }
        return Ok(None);
    }
    // The format of an existing map does not change, and neither does the feature's refcount.
    let object = if let Some(object) = object {
        let (_, has_histogram) = spacemap::length(tx, object)?;
        spacemap::truncate(tx, object, &spacemap::MapFormat { has_histogram, ..form })?
    } else {
        metaslabs::new_map(tx, &form)?
    };
    let has_v2 = features::is_active(tx, "spacemap_v2")?;
    let words = spacemap::EntryFormat { geometry: Geometry::DTL, has_v2, vdev: None };
    let ranges = ranges.iter().map(|(start, end)| start..end);
    spacemap::append(tx, object, &words, Action::Alloc, ranges, stamp)?;
    Ok(Some(object))
}
