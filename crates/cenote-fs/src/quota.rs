//! Quotas of users, groups and projects: on space and on objects (spec 03 §13.2).
//!
//! ```text
//!   master node   "userquota@" -> ZAP   "3e8" -> bytes         or "defaultuserquota" -> bytes
//!   object -1     "3e8" -> bytes used   "obj-3e8" -> objects   what the last sync accounted
//! ```
//!
//! An owner that has reached its quota gets no more: it cannot write, create, or be given a file.
//! Usage is known as of the last sync, so that writes within a few seconds may exceed a quota, as
//! in OpenZFS. Removing and truncating are never refused.

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::key::of_number;
use cenote_ondisk::master_node::MASTER_NODE_OBJ;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::quota::{GROUPUSED_OBJECT, PROJECTUSED_OBJECT, USERUSED_OBJECT, UsedKey};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Buf, Kind};

use crate::edit::{Op, refuse};
use crate::error::FsError;

/// The owner that a quota applies to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Holder {
    /// A user, by id.
    User(u64),
    /// A group.
    Group(u64),
    /// A project.
    Project(u64),
}

/// The limited resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Resource {
    /// Bytes.
    Space,
    /// Files, directories, and whatever else has an inode.
    Objects,
}

impl Holder {
    const fn id(self) -> u64 {
        match self {
            Self::User(id) | Self::Group(id) | Self::Project(id) => id,
        }
    }

    const fn used_object(self) -> u64 {
        match self {
            Self::User(_) => USERUSED_OBJECT,
            Self::Group(_) => GROUPUSED_OBJECT,
            Self::Project(_) => PROJECTUSED_OBJECT,
        }
    }

    /// Returns names in the master node: the ZAP of quotas, and the default quota.
    const fn keys(self, resource: Resource) -> (&'static str, &'static str) {
        match (self, resource) {
            (Self::User(_), Resource::Space) => ("userquota@", "defaultuserquota"),
            (Self::User(_), Resource::Objects) => ("userobjquota@", "defaultuserobjquota"),
            (Self::Group(_), Resource::Space) => ("groupquota@", "defaultgroupquota"),
            (Self::Group(_), Resource::Objects) => ("groupobjquota@", "defaultgroupobjquota"),
            (Self::Project(_), Resource::Space) => ("projectquota@", "defaultprojectquota"),
            (Self::Project(_), Resource::Objects) => ("projectobjquota@", "defaultprojectobjquota"),
        }
    }
}

/// Returns the quota of an owner; `None` if there is none.
///
/// # Errors
/// Errors of the transaction.
pub fn limit(tx: &mut Tx<'_>, holder: Holder, resource: Resource) -> TxResult<Option<u64>> {
    let (limits, default) = holder.keys(resource);
    if let Some(object) = zap::lookup_u64(tx, MASTER_NODE_OBJ, limits)?
        && let Some(limit) = zap::lookup_u64(tx, object, &of_number(holder.id()))?
    {
        return Ok(Some(limit));
    }
    let default = zap::lookup_u64(tx, MASTER_NODE_OBJ, default)?;
    Ok(default.filter(|limit| *limit > 0))
}

/// Returns the usage of an owner, as of the last sync.
///
/// # Errors
/// Errors of the transaction.
pub fn used(tx: &mut Tx<'_>, holder: Holder, resource: Resource) -> TxResult<u64> {
    let object = holder.used_object();
    if tx.find(object)?.is_none() {
        return Ok(0);
    }
    let id = holder.id();
    let key = match resource {
        Resource::Space => UsedKey::Space(id),
        Resource::Objects => UsedKey::Objects(id),
    };
    Ok(zap::lookup_u64(tx, object, &key.format())?.unwrap_or(0))
}

/// Sets the quota of an owner; 0 removes it.
///
/// # Errors
/// Errors of the transaction.
pub fn set_limit(tx: &mut Tx<'_>, holder: Holder, resource: Resource, limit: u64) -> TxResult<()> {
    let (limits, _) = holder.keys(resource);
    let key = of_number(holder.id());
    let object = match zap::lookup_u64(tx, MASTER_NODE_OBJ, limits)? {
        Some(object) => object,
        None if limit == 0 => return Ok(()),
        None => {
            let spec = ObjectSpec::new(ObjectType::USERGROUP_QUOTA, 0);
            let object = zap::create(tx, &spec, ZapOptions::default())?;
            zap::insert(tx, MASTER_NODE_OBJ, limits, object)?;
            object
        }
    };
    if limit > 0 {
        zap::update(tx, object, &key, limit)
    } else if zap::contains(tx, object, &key)? {
        zap::remove(tx, object, &key)
    } else {
        Ok(())
    }
}

/// The quota entries of the master node, by resource and kind of owner: the object of the ZAP of
/// quotas and the default quota, each 0 if missing.
#[derive(Debug, Clone, Copy, Default)]
struct Limits([(u64, u64); 6]);

impl Limits {
    fn read(tx: &mut Tx<'_>) -> TxResult<Self> {
        let mut all = Self::default();
        for holder in [Holder::User(0), Holder::Group(0), Holder::Project(0)] {
            for resource in [Resource::Space, Resource::Objects] {
                let (limits, default) = holder.keys(resource);
                let limits = zap::lookup_u64(tx, MASTER_NODE_OBJ, limits)?.unwrap_or(0);
                let default = zap::lookup_u64(tx, MASTER_NODE_OBJ, default)?.unwrap_or(0);
                if let Some(slot) = all.0.get_mut(slot(holder, resource)) {
                    *slot = (limits, default);
                }
            }
        }
        Ok(all)
    }

    fn of(&self, holder: Holder, resource: Resource) -> (u64, u64) {
        self.0.get(slot(holder, resource)).copied().unwrap_or_default()
    }
}

const fn slot(holder: Holder, resource: Resource) -> usize {
    let kind = match holder {
        Holder::User(_) => 0,
        Holder::Group(_) => 2,
        Holder::Project(_) => 4,
    };
    kind + resource as usize
}

/// The entries last read, and the master node's block that they come from: they are valid while the
/// node has that very block. LOCK: held for a lookup.
#[derive(Debug)]
pub(crate) struct LimitCache(Mutex<Option<(Buf, Limits)>>);

impl Default for LimitCache {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::FsLimits))
    }
}

impl LimitCache {
    fn get(&self, tx: &mut Tx<'_>) -> TxResult<Limits> {
        // A larger ZAP may change without its first block.
        let has_one = tx.dnode(MASTER_NODE_OBJ)?.maxblkid == 0;
        let block = if has_one { tx.block(MASTER_NODE_OBJ, 0)? } else { None };
        let mut cached = self.0.lock();
        match (&block, &*cached) {
            (Some(block), Some((known, limits)))
                if block.as_ptr() == known.as_ptr() && block.len() == known.len() =>
            {
                Ok(*limits)
            }
            _ => {
                let limits = Limits::read(tx)?;
                *cached = block.map(|block| (block, limits));
                Ok(limits)
            }
        }
    }
}

const BOTH: &[Resource] = &[Resource::Objects, Resource::Space];

/// Refuses if one of the owners has reached a quota. Quotas apply to every user: privileges do not
/// lift them.
fn check(
    op: &mut Op<'_, '_>,
    holders: impl IntoIterator<Item = Holder>,
    resources: &[Resource],
) -> TxResult<()> {
    let limits = op.facts.limits.get(op.tx)?;
    if limits.0 == Limits::default().0 {
        return Ok(());
    }
    for holder in holders {
        for resource in resources {
            check_one(op, &limits, holder, *resource)?;
        }
    }
    Ok(())
}

fn check_one(
    op: &mut Op<'_, '_>,
    limits: &Limits,
    holder: Holder,
    resource: Resource,
) -> TxResult<()> {
    let (limits, default) = limits.of(holder, resource);
    let own = match limits {
        0 => None,
        object => zap::lookup_u64(op.tx, object, &of_number(holder.id()))?,
    };
    let Some(limit) = own.or((default > 0).then_some(default)) else { return Ok(()) };
    if used(op.tx, holder, resource)? >= limit {
        return Err(refuse(Kind::Quota, FsError::OverQuota));
    }
    Ok(())
}

/// Checks whether owners may have one more object, and its space.
pub(crate) fn check_new(op: &mut Op<'_, '_>, uid: u64, gid: u64, project: u64) -> TxResult<()> {
    check(op, [Holder::User(uid), Holder::Group(gid), Holder::Project(project)], BOTH)
}

/// Checks whether the owners of a file may have more space.
pub(crate) fn check_space(op: &mut Op<'_, '_>, uid: u64, gid: u64, project: u64) -> TxResult<()> {
    let holders = [Holder::User(uid), Holder::Group(gid), Holder::Project(project)];
    check(op, holders, &[Resource::Space])
}

/// Checks whether a user or a group may be given a file.
pub(crate) fn check_owner(op: &mut Op<'_, '_>, uid: Option<u64>, gid: Option<u64>) -> TxResult<()> {
    check(op, uid.map(Holder::User).into_iter().chain(gid.map(Holder::Group)), BOTH)
}

/// Checks whether a project may be given a file.
pub(crate) fn check_project(op: &mut Op<'_, '_>, project: u64) -> TxResult<()> {
    check(op, [Holder::Project(project)], BOTH)
}
