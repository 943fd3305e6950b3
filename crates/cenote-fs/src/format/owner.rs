//! Owners of an object, for the space accounting by user, group and project.
//!
//! Owners are at fixed offsets after the header of a bonus, in every layout (spec 03 §8.5). Bonuses
//! of old file systems have other offsets (spec 03 §14).

use cenote_dmu::Dnode;
use cenote_dmu::live::{Owned, Owner, OwnerProbe};
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::SaHeader;
use cenote_ondisk::znode::{PFlags, ZNODE_PHYS_LEN};
use cenote_rt::Result;

/// Offsets after the header: owner, group, flags, project.
const SA: [usize; 4] = [24, 32, 48, 128];
/// Offsets in a legacy bonus: owner, group.
const ZNODE: [usize; 2] = [128, 136];

/// Reads the owners of a file system's objects.
#[derive(Debug, Clone, Copy)]
pub struct FsOwners {
    /// Whether objects are counted (feature `userobj_accounting`).
    pub counts_objects: bool,
    /// Whether projects are counted (feature `project_quota`).
    pub counts_projects: bool,
}

impl FsOwners {
    /// Returns the owner of an object, `None` if it has none.
    ///
    /// # Errors
    /// Errors of reading its spill block.
    pub async fn of(&self, dnode: &Dnode) -> Result<Option<Owner>> {
        let mut owned = self.owner(dnode.phys(), None);
        if owned == Owned::InSpill {
            owned = self.owner(dnode.phys(), dnode.spill().await?.as_deref());
        }
        Ok(if let Owned::By(owner) = owned { Some(owner) } else { None })
    }
}

impl OwnerProbe for FsOwners {
    fn owner(&self, dnode: &DnodePhys, spill: Option<&[u8]>) -> Owned {
        let buffer = match (dnode.bonus_type, spill) {
            (ObjectType::ZNODE, _) => return of_znode(dnode.bonus()),
            (ObjectType::SA, Some(spill)) => spill,
            (ObjectType::SA, None) if dnode.bonus().is_empty() && dnode.spill.is_some() => {
                return Owned::InSpill;
            }
            (ObjectType::SA, None) => dnode.bonus(),
            _ => return Owned::No,
        };
        of_attributes(buffer).map_or(Owned::No, Owned::By)
    }

    fn counts_objects(&self) -> bool {
        self.counts_objects
    }

    fn counts_projects(&self) -> bool {
        self.counts_projects
    }
}

fn of_attributes(buffer: &[u8]) -> Option<Owner> {
    let header = SaHeader::decode(buffer).ok().flatten()?;
    let word = |at: usize| word(buffer, header.size.checked_add(at)?, header.order);
    let [uid, gid, flags, project] = SA;
    let has_project = word(flags)? & PFlags::PROJID.bits() != 0;
    let project = if has_project { word(project)? } else { 0 };
    Some(Owner { uid: word(uid)?, gid: word(gid)?, project })
}

fn of_znode(bonus: &[u8]) -> Owned {
    let [uid, gid] = ZNODE.map(|at| word(bonus, at, Endian::Little));
    match (uid, gid) {
        (Some(uid), Some(gid)) if bonus.len() >= ZNODE_PHYS_LEN => {
            Owned::By(Owner { uid, gid, project: 0 })
        }
        _ => Owned::No,
    }
}

fn word(bytes: &[u8], at: usize, order: Endian) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|word| order.u64(*word))
}
