//! What a file system or volume asks about its dataset while it is in use.
//!
//! Properties are those in effect, wherever they are set. Space is that of the last commit, as
//! OpenZFS tells it to `statfs`: what is under way does not count (spec 04 §17).

use cenote_dmu::TxResult;
use cenote_rt::Result;

use crate::dsl;
use crate::dsl::{blocks, props, room};
use crate::{Engine, Head};

/// Space of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSpace {
    /// Bytes that it refers to.
    pub referenced: u64,
    /// Bytes that it may still refer to.
    pub available: u64,
    /// Objects that it has.
    pub objects: u64,
    /// Identity of its contents (`fsid_guid`).
    pub fsid: u64,
}

impl Engine {
    /// The value in effect of properties with numbers, each with what it is when nobody set it.
    ///
    /// # Errors
    /// Those of reading the MOS; `Kind::NotFound` if the dataset is gone.
    pub async fn head_numbers(&self, head: &Head, wanted: &[(&str, u64)]) -> Result<Vec<u64>> {
        let object = head.object();
        self.mos
            .inspect(|tx| {
                let dir = dsl::get_dataset(tx, object)?.dir_obj;
                let number = |(name, default): &(&str, u64)| props::number(tx, dir, name, *default);
                wanted.iter().map(number).collect()
            })
            .await
    }

    /// The space of a head (spec 04 §17.5).
    ///
    /// # Errors
    /// As [`head_numbers`](Self::head_numbers).
    pub async fn head_space(&self, head: &Head) -> Result<HeadSpace> {
        let (object, env) = (head.object(), self.env(self.open_txg()));
        let objects = head.live().inspect(|tx| Ok(tx.object_count())).await?;
        self.mos
            .inspect(|tx| -> TxResult<HeadSpace> {
                let phys = dsl::get_dataset(tx, object)?;
                let dir = dsl::get_dir(tx, phys.dir_obj)?;
                let mut available = room::available(tx, &env, phys.dir_obj)?;
                let reserved = blocks::refreservation(tx, &dir)?;
                available = available.saturating_add(reserved.saturating_sub(phys.unique_bytes));
                let quota = props::own_number(tx, dir.props_zapobj, "refquota")?;
                if quota != 0 {
                    available = available.min(quota.saturating_sub(phys.referenced_bytes));
                }
                let referenced = phys.referenced_bytes;
                Ok(HeadSpace { referenced, available, objects, fsid: phys.fsid_guid })
            })
            .await
    }
}
