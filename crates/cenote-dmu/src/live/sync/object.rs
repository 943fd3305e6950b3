//! Writes the changes of one object.

use std::collections::BTreeMap;

use cenote_block::policy::BlockSpec;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::{DnodeFlags, DnodePhys};
use cenote_rt::Result;

use super::accounting::SpillAt;
use super::tree::{Freed, TreeChange};
use super::{Block, Change, SyncPass, broken};
use crate::dnode::SPILL_BLKID;
use crate::live::context::Facts;
use crate::live::error::LiveError;
use crate::live::layer::{Head, ObjectLayer, SpillChange};

/// Dnode flags that only writing determines.
const WRITTEN_FLAGS: DnodeFlags = DnodeFlags::USED_BYTES
    .union(DnodeFlags::USERUSED_ACCOUNTED)
    .union(DnodeFlags::USEROBJUSED_ACCOUNTED);

/// Copies the fields that only writing determines from the written dnode.
pub(super) fn take_written(head: &mut DnodePhys, written: &DnodePhys) {
    head.blkptrs.clone_from(&written.blkptrs);
    head.nlevels = written.nlevels;
    head.used = written.used;
    head.flags = head.flags.difference(WRITTEN_FLAGS) | written.flags & WRITTEN_FLAGS;
    if let (Some(spill), Some(written)) = (&mut head.spill, &written.spill) {
        *spill = *written;
    }
}

impl SyncPass<'_> {
    /// Writes an object's changes over its previous state, and returns both states.
    pub(super) async fn write_object(
        &self,
        object: u64,
        layer: &ObjectLayer,
        before: Option<DnodePhys>,
    ) -> Result<Change> {
        let place = self.place(object, 0, 0);
        let is_reshaped = |before: &DnodePhys, head: &DnodePhys| {
            before.nlevels > 1 && before.indblkshift != head.indblkshift
        };
        let found = match (&before, &layer.head, layer.is_fresh) {
            (Some(before), Head::Alive(head), false) if is_reshaped(before, head) => {
                Some("indirect blocks change their size")
            }
            (Some(_), _, true) => Some("an object is allocated twice"),
            (None, _, false) => Some("a free object is changed"),
            _ => None,
        };
        // Checks D4 and V5.
        if let Some(found) = found {
            return Err(broken(&place, LiveError::Layer(found)));
        }
        let owner_before = match &before {
            Some(before) => self.owner_of(object, before, SpillAt::OnDisk).await?,
            None => None,
        };
        let after = match &layer.head {
            Head::Freed { .. } => {
                if let Some(before) = &before {
                    self.free_object(object, before).await?;
                }
                None
            }
            Head::Alive(head) => {
                let after = self.write_alive(object, head, layer, before.as_ref()).await?;
                Some(after)
            }
        };
        let owner_after = match &after {
            Some(after) => self.owner_of(object, after, SpillAt::Changed(&layer.spill)).await?,
            None => None,
        };
        Ok(Change { object, before, after, owner_before, owner_after })
    }

    async fn write_alive(
        &self,
        object: u64,
        head: &DnodePhys,
        layer: &ObjectLayer,
        before: Option<&DnodePhys>,
    ) -> Result<DnodePhys> {
        let mut after = head.clone();
        let levels = head.nlevels;
        let mut old_spill = None;
        if let Some(before) = before {
            take_written(&mut after, before);
            old_spill = before.spill;
        }
        let spilled = self.write_spill(object, &mut after, &layer.spill, old_spill).await?;
        let change = TreeChange {
            object,
            head: &after,
            frees: &layer.frees,
            blocks: &layer.blocks,
            forms: &layer.forms,
            early: &layer.early,
            seals: &BTreeMap::new(),
            levels,
            old_max: before.map_or(0, |before| before.maxblkid),
        };
        let written = self.write_tree(&change).await?;
        (after.blkptrs, after.nlevels) = (written.blkptrs, written.nlevels);
        self.charge(object, &mut after, spilled + written.charged)?;
        self.mark_accounted(object, &mut after);
        if after.extra_slots > 0 {
            self.note(Facts { has_large_dnode: true, ..Facts::default() });
        }
        Ok(after)
    }

    /// Adds to the space in a dnode (D2).
    pub(super) fn charge(&self, object: u64, dnode: &mut DnodePhys, delta: i64) -> Result<()> {
        if delta == 0 {
            return Ok(());
        }
        let used = dnode.used_bytes();
        // Checks D2.
        let Some(sum) = used.checked_add_signed(delta) else {
            let place = self.place(object, 0, 0);
            return Err(broken(&place, LiveError::SpaceNegative { used, delta }));
        };
        dnode.used = sum;
        dnode.flags.insert(DnodeFlags::USED_BYTES);
        Ok(())
    }

    /// Writes or frees the spill block; returns the change of space.
    async fn write_spill(
        &self,
        object: u64,
        after: &mut DnodePhys,
        change: &SpillChange,
        old: Option<BlockPtr>,
    ) -> Result<i64> {
        let old = old.unwrap_or(BlockPtr::HOLE);
        match change {
            SpillChange::Unchanged => Ok(0),
            SpillChange::Removed => Ok(-self.kill(&old)),
            SpillChange::Set(data, form) => {
                let spec = BlockSpec {
                    is_spill: true,
                    dnode_checksum: after.checksum,
                    dnode_compression: after.compress,
                    ..BlockSpec::new(after.bonus_type, 0)
                };
                let place = self.place(object, 0, SPILL_BLKID);
                let block = Block { data: data.clone(), place, spec, fill: 1 };
                let (new, charged) = self.write_sent(block, form.clone(), &old).await?;
                after.spill = Some(new);
                Ok(charged)
            }
        }
    }

    /// Frees all blocks of an object (D1).
    async fn free_object(&self, object: u64, before: &DnodePhys) -> Result<()> {
        let charged = before.spill.map_or(0, |spill| self.kill(&spill));
        let mut found = Freed { charged, has_leaks: false };
        let top = before.nlevels.saturating_sub(1);
        for (number, pointer) in before.blkptrs.iter().enumerate() {
            found.add(self.free_subtree(object, before, top, number as u64, *pointer).await?);
        }
        let used = before.used_bytes();
        let less = (used as i64).saturating_sub(found.charged);
        // Checks D1.
        if less == 0 || less > 0 && found.has_leaks {
            return Ok(());
        }
        let cause = LiveError::SpaceLeft { used, found: found.charged as u64 };
        let error = broken(&self.place(object, 0, 0), cause);
        if less < 0 {
            return Err(error);
        }
        // An earlier change has leaked blocks of the object.
        self.context.sink.leaked(&error);
        Ok(())
    }
}
