//! Whether a vdev can be removed (spec 08 §34).

use cenote_block::alloc::{Class, VdevSpace};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::dsl::key;
use cenote_vdev::{DtlKind, TxgRanges};

use super::RemovalError;
use crate::Engine;
use crate::dsl::{Env, need_directory_object, room};

/// The space of the pool as far as a removal needs it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Room {
    /// Class of the vdev, and whether it gets new blocks.
    class: Class,
    is_allocating: bool,
    /// Deflated capacity of the vdev, and what is allocated there.
    space: u64,
    allocated: u64,
    /// Bytes free in the normal class, where new blocks are allocated.
    normal_free: u64,
}

impl Room {
    /// Returns the figures for the vdev with this id.
    pub(super) fn of(engine: &Engine, vdev: u64) -> Option<Self> {
        let all = engine.alloc.vdev_figures();
        let figures = all.iter().find(|figures| figures.id == vdev)?;
        let tops = engine.config().root.children;
        let is_allocating =
            |of: &VdevSpace| tops.iter().any(|top| top.id == of.id && !top.top.non_allocating);
        let normal = engine.alloc.class_figures(Class::Normal);
        let unused = |of: &VdevSpace| of.space.space.saturating_sub(of.space.allocated);
        let idle = all.iter().filter(|of| of.class == Class::Normal && !is_allocating(of));
        let free = normal.space.saturating_sub(normal.allocated);
        Some(Self {
            class: figures.class,
            is_allocating: is_allocating(figures),
            space: figures.space.deflated_space,
            allocated: figures.space.allocated,
            normal_free: free.saturating_sub(idle.map(unused).sum()),
        })
    }

    /// Refuses a removal for which the other vdevs have too little space.
    pub(super) fn check(&self, tx: &mut Tx<'_>, env: &Env) -> TxResult<()> {
        let has_room = if self.class == Class::Normal {
            let root = need_directory_object(tx, key::ROOT_DATASET)?;
            let available = room::available(tx, env, root)?;
            // The data of a vdev without allocations counts as used, but its space does not count.
            if self.is_allocating { available >= self.space } else { available > 0 }
        } else {
            self.normal_free >= self.allocated
        };
        if has_room { Ok(()) } else { Err(RemovalError::NoSpace.into()) }
    }
}

/// Returns the top-level vdev with this guid if it is one with data, and not removed yet.
pub(super) fn find(root: &VdevConfig, guid: u64) -> Result<&VdevConfig, RemovalError> {
    let vdev = root.find(guid).ok_or(RemovalError::NoSuchVdev)?;
    let top = root.children.iter().find(|top| top.guid == guid);
    let top = top.filter(|top| top.kind.is_concrete() && !top.top.is_log);
    match top {
        Some(top) if top.top.removing => Err(RemovalError::Already),
        Some(top) => Ok(top),
        None if vdev.kind == VdevKind::Indirect => Err(RemovalError::NoSuchVdev),
        None => Err(RemovalError::NotSupported),
    }
}

/// Checks everything about the vdev and its pool except for space.
pub(super) fn check(
    engine: &Engine,
    root: &VdevConfig,
    top: &VdevConfig,
) -> Result<(), RemovalError> {
    if root.children.iter().any(|other| other.top.removing) {
        return Err(RemovalError::Busy);
    }
    let is_readable =
        |guid: u64| engine.tree.vdev(guid).is_some_and(|vdev| vdev.state().is_readable());
    if !is_readable(top.guid) {
        return Err(RemovalError::Unreadable);
    }
    // One whole side is enough: the others are not read (SD1).
    let is_whole = |leaf: &VdevConfig| {
        let missing = engine.tree.dtl(leaf.guid, DtlKind::Missing);
        is_readable(leaf.guid) && missing.is_some_and(|missing| missing == TxgRanges::default())
    };
    if !top.leaves().any(is_whole) {
        return Err(RemovalError::Busy);
    }
    let fits = |other: &VdevConfig| match other.kind {
        VdevKind::Hole | VdevKind::Missing | VdevKind::Indirect => true,
        VdevKind::RaidZ(_) | VdevKind::Draid(_) => false,
        // Mirrors of leaves only: no replacement is running.
        _ => {
            other.top.ashift == top.top.ashift
                && other.children.iter().all(|child| child.kind.is_leaf())
        }
    };
    if root.children.iter().all(fits) { Ok(()) } else { Err(RemovalError::Layout) }
}
