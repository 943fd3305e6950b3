//! Case-insensitive file systems: the names of their snapshots are case-insensitive, too.

use cenote_dmu::Live;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::dsl::DatasetFlags;
use cenote_ondisk::master_node::{CASESENSITIVITY, MASTER_NODE_OBJ};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::Result;

use crate::Admin;
use crate::dsl;

/// The value of the master node's entry.
const INSENSITIVE: u64 = 1;

impl Admin<'_> {
    /// Marks a dataset if its new contents are case-insensitive (spec 03 §7, end).
    pub(crate) async fn mark_case_insensitive(
        self,
        txg: u64,
        object: u64,
        live: &Live,
    ) -> Result<()> {
        let case = live
            .inspect(|tx| match tx.find(MASTER_NODE_OBJ)? {
                Some(dnode) if dnode.object_type == ObjectType::MASTER_NODE => {
                    zap::lookup_u64(tx, MASTER_NODE_OBJ, CASESENSITIVITY)
                }
                _ => Ok(None),
            })
            .await?;
        if case != Some(INSENSITIVE) {
            return Ok(());
        }
        self.engine
            .mos_apply(txg, |tx| {
                let mut phys = dsl::get_dataset(tx, object)?;
                phys.flags |= DatasetFlags::CI_DATASET;
                dsl::put_dataset(tx, object, &phys)
            })
            .await
    }
}
