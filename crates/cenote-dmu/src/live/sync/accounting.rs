//! User, group and project accounting of space and objects.
//!
//!     object -1 users, -2 groups, -3 projects:   "1f4" -> bytes,   "obj-1f4" -> objects
//!
//! For every written object of a file system, the amounts accounted before are subtracted and the
//! present ones are added: 512 bytes and the space of its dnode, for each of its three owners. The
//! dnode's flags tell whether it was accounted at all. The previous owner is determined before
//! anything is written, because a spill block born in this txg may be rewritten in place.
//!
//! The accounting objects have their dnodes in the root block. They are created with the first
//! accounted object, and are changed only here, through a transaction on the tree that was synced
//! last (spec 02 §13).
//!
//! What a stream brought without keys is not accounted: owners are encrypted. With the keys it is
//! counted anew, while the set is in use ([`Recount`]):
//!
//! ```text
//!   Forget   objects that are written lose their marks, and their owners the amounts; the caller
//!            has every object written that has a mark
//!   Begin    what is left in the accounting objects is not right, and goes; no object has a mark
//!   End      the caller has had every object written again: the accounting is complete
//! ```

use std::collections::{BTreeMap, VecDeque};

use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dnode::{DNODE_SLOT_LEN, DnodeFlags, DnodePhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::{
    GROUPUSED_OBJECT, ObjSetFlags, ObjSetPhys, ObjSetType, PROJECTUSED_OBJECT, USERUSED_OBJECT,
};
use cenote_rt::{Buf, Result};

use super::tree::is_damage;
use super::{Change, SyncPass, special_mut};
use crate::dnode::SPILL_BLKID;
use crate::live::alloc::Cursor;
use crate::live::context::{Owned, Owner, OwnerProbe, Recount};
use crate::live::layer::{Layer, SpillChange};
use crate::live::stop::{TxResult, TxStop};
use crate::live::tx::{Source, Tx};
use crate::live::view::{Fetched, Tree};
use crate::zap::edit;

/// Flags of a dnode that is accounted.
const MARKS: DnodeFlags = DnodeFlags::USERUSED_ACCOUNTED.union(DnodeFlags::USEROBJUSED_ACCOUNTED);

/// Amounts to add, by accounting object and key.
type Deltas = BTreeMap<(u64, String), i64>;

/// Where to find the spill block of an object.
pub(super) enum SpillAt<'a> {
    /// At the pointer in its dnode.
    OnDisk,
    /// In memory, if it was changed.
    Changed(&'a SpillChange),
}

impl SyncPass<'_> {
    /// The owner probe, if objects are accounted in this set: owners are encrypted.
    pub(super) fn probe(&self) -> Option<&dyn OwnerProbe> {
        self.context.probe.filter(|_| self.kind == ObjSetType::Zfs && !self.is_locked())
    }

    /// The owner of an object.
    pub(super) async fn owner_of(
        &self,
        object: u64,
        dnode: &DnodePhys,
        spill: SpillAt<'_>,
    ) -> Result<Option<Owner>> {
        let has_owner = matches!(dnode.bonus_type, ObjectType::SA | ObjectType::ZNODE);
        let Some(probe) = self.probe().filter(|_| has_owner && object < PROJECTUSED_OBJECT) else {
            return Ok(None);
        };
        match probe.owner(dnode, None) {
            Owned::No => return Ok(None),
            Owned::By(owner) => return Ok(Some(owner)),
            Owned::InSpill => {}
        }
        let block = match spill {
            SpillAt::Changed(SpillChange::Set(block, _)) => Some(block.clone()),
            SpillAt::Changed(SpillChange::Removed) => None,
            SpillAt::OnDisk | SpillAt::Changed(SpillChange::Unchanged) => {
                self.read_spill(object, dnode).await?
            }
        };
        match block.map(|block| probe.owner(dnode, Some(&block))) {
            Some(Owned::By(owner)) => Ok(Some(owner)),
            _ => Ok(None),
        }
    }

    async fn read_spill(&self, object: u64, dnode: &DnodePhys) -> Result<Option<Buf>> {
        match dnode.spill {
            Some(pointer) if !pointer.is_hole() => {
                let place = Bookmark { objset: self.id, object, level: 0, blkid: SPILL_BLKID };
                match self.blocks.read_for_sync(pointer, place).await {
                    // Without its owner an object is not accounted.
                    Err(error) if is_damage(&error) => Ok(None),
                    read => read.map(Some),
                }
            }
            _ => Ok(None),
        }
    }

    /// Sets the flags that mark a dnode as accounted, or removes them.
    pub(super) fn mark_accounted(&self, object: u64, dnode: &mut DnodePhys) {
        if object >= PROJECTUSED_OBJECT {
            return;
        }
        if self.is_forgetting {
            dnode.flags.remove(MARKS);
            return;
        }
        if let Some(probe) = self.probe() {
            dnode.flags.insert(DnodeFlags::USERUSED_ACCOUNTED);
            if probe.counts_objects() {
                dnode.flags.insert(DnodeFlags::USEROBJUSED_ACCOUNTED);
            }
        }
    }

    /// Updates the accounting objects in `phys` for the written objects.
    pub(super) async fn account(
        &self,
        tree: &Tree,
        phys: &mut ObjSetPhys,
        changes: &[Change],
        recount: Option<Recount>,
    ) -> Result<()> {
        let Some(probe) = self.probe() else { return Ok(()) };
        if tree.root.is_hole() || recount == Some(Recount::End) {
            phys.flags.insert(ObjSetFlags::USERACCOUNTING_COMPLETE);
            phys.flags.set(ObjSetFlags::USEROBJACCOUNTING_COMPLETE, probe.counts_objects());
            phys.flags.set(ObjSetFlags::PROJECTQUOTA_COMPLETE, probe.counts_projects());
        }
        let deltas = deltas(changes, probe);
        let is_anew = recount == Some(Recount::Begin);
        if deltas.is_empty() && !is_anew {
            return Ok(());
        }
        let edit = |tx: &mut Tx<'_>| {
            if is_anew {
                forget_all(tx)?;
            }
            apply(tx, &deltas)
        };
        let layer = self.edit_special(tree, edit).await?;
        for (object, changes) in &layer.objects {
            let before = tree.phys.special_dnode(*object).cloned();
            let change = self.write_object(*object, changes, before).await?;
            if let Some(slot) = special_mut(phys, *object) {
                *slot = change.after;
            }
        }
        Ok(())
    }

    /// Runs a closure on the synced tree until it has all blocks; returns its changes.
    async fn edit_special(
        &self,
        tree: &Tree,
        edit: impl Fn(&mut Tx<'_>) -> TxResult<()>,
    ) -> Result<Layer> {
        let mut fetched = Fetched::default();
        loop {
            let missing = {
                let (blocks, id) = (self.blocks, self.id);
                let below = &VecDeque::new();
                let (fetched, since) = (&fetched, cenote_block::Since::default());
                let source =
                    Source { blocks, id, indirect_shift: 0, below, base: tree, fetched, since };
                let mut tx = Tx::new(self.context.txg, source, Cursor::default());
                match edit(&mut tx) {
                    Ok(()) => return Ok(tx.overlay),
                    Err(TxStop::Fail(error)) => return Err(error),
                    Err(TxStop::Need(missing)) => missing,
                }
            };
            let block = self.blocks.read_for_sync(missing.pointer, missing.place).await?;
            fetched.insert(missing.pointer, block);
        }
    }
}

fn apply(tx: &mut Tx<'_>, deltas: &Deltas) -> TxResult<()> {
    for ((object, key), delta) in deltas {
        if tx.find(*object)?.is_none() {
            tx.make_special(*object)?;
            edit::format(tx, *object, edit::ZapOptions::default())?;
        }
        edit::increment(tx, *object, key.as_str(), *delta)?;
    }
    Ok(())
}

/// Removes what is accounted to anybody.
fn forget_all(tx: &mut Tx<'_>) -> TxResult<()> {
    for object in [USERUSED_OBJECT, GROUPUSED_OBJECT, PROJECTUSED_OBJECT] {
        if tx.find(object)?.is_some() {
            for entry in edit::entries(tx, object)? {
                edit::remove(tx, object, &entry.key)?;
            }
        }
    }
    Ok(())
}

/// Sum of all changes, by key, without zeros.
fn deltas(changes: &[Change], probe: &dyn OwnerProbe) -> Deltas {
    let mut deltas = Deltas::new();
    for change in changes {
        if let (Some(before), Some(owner)) = (&change.before, change.owner_before) {
            add(&mut deltas, probe, before, owner, -1);
        }
        if let (Some(after), Some(owner)) = (&change.after, change.owner_after) {
            add(&mut deltas, probe, after, owner, 1);
        }
    }
    deltas.retain(|_, delta| *delta != 0);
    deltas
}

fn add(deltas: &mut Deltas, probe: &dyn OwnerProbe, dnode: &DnodePhys, owner: Owner, sign: i64) {
    let space = DNODE_SLOT_LEN as u64 + dnode.used_bytes();
    let owners = [
        (USERUSED_OBJECT, owner.uid),
        (GROUPUSED_OBJECT, owner.gid),
        (PROJECTUSED_OBJECT, owner.project),
    ];
    for (object, id) in owners {
        if object == PROJECTUSED_OBJECT && !probe.counts_projects() {
            continue;
        }
        if dnode.flags.contains(DnodeFlags::USERUSED_ACCOUNTED) {
            *deltas.entry((object, format!("{id:x}"))).or_default() += sign * space as i64;
        }
        if dnode.flags.contains(DnodeFlags::USEROBJUSED_ACCOUNTED) {
            *deltas.entry((object, format!("obj-{id:x}"))).or_default() += sign;
        }
    }
}
