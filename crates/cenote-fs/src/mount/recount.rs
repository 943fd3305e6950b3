//! Counts anew what each user, group and project has in a file system that was received without its
//! keys (spec 02 §13): in the background, from its first change on. Until then it stays as it was
//! received, so that it takes the next increment.
//!
//! ```text
//!   1  Forget   then a sync: every object that is written loses its mark
//!      every object that has a mark is written again
//!   2  a sync: no object has a mark.   Begin: nothing is accounted to anybody
//!      every object with an owner that has no mark is written again
//!   3  End      the accounting is complete.   a sync
//! ```
//!
//! It begins again with the first change of the next mount if the file system is unmounted, or the
//! process dies, before its end: step 1 takes back what was accounted in step 2.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use cenote_dmu::live::Recount;
use cenote_dmu::{Tx, TxResult};
use cenote_engine::{ApplyOptions, Charge, Engine, Head};
use cenote_ondisk::dnode::{DNODE_SLOTS_MAX, DnodeFlags, DnodePhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetFlags;
use cenote_rt::Result;

use super::Mount;

/// Objects that one transaction looks at: so many blocks of dnodes.
const LOOKED_AT: u64 = 32 * DNODE_SLOTS_MAX as u64;
/// Bytes of dnodes that one transaction writes again, at most.
const COST: u64 = LOOKED_AT * 512;

/// Starts counting with the first change of a file system.
#[derive(Debug)]
pub(super) struct Recounter {
    mount: Weak<Mount>,
    is_needed: AtomicBool,
}

impl Recounter {
    pub(super) fn new(mount: &Weak<Mount>, head: &Head) -> Self {
        Self { mount: Weak::clone(mount), is_needed: AtomicBool::new(is_needed(head)) }
    }

    /// A change was made.
    pub(super) fn note_change(&self, mount: &Mount) {
        if self.is_needed.load(Ordering::Relaxed) && self.is_needed.swap(false, Ordering::Relaxed) {
            start(mount, Weak::clone(&self.mount));
        }
    }
}

/// Whether what each owner has was not counted. Sets that are not encrypted were counted as they
/// were written, or are older than accounting.
fn is_needed(head: &Head) -> bool {
    let is_complete = head.live().flags().contains(ObjSetFlags::USERACCOUNTING_COMPLETE);
    !is_complete && head.is_encrypted()
}

/// Starts counting.
fn start(of: &Mount, mount: Weak<Mount>) {
    let (engine, head) = (Arc::downgrade(&of.engine), Arc::clone(&of.head));
    cenote_rt::spawn_background(async move {
        let permit = head.recount_permit().await;
        // Another mount may have counted.
        if permit.is_err() || !is_needed(&head) {
            return;
        }
        drop(head);
        // What ends it, such as a pool that is exported, stops all other work as well.
        let _ = run(&engine, &mount).await;
        drop(permit);
    });
}

async fn run(engine: &Weak<Engine>, mount: &Weak<Mount>) -> Result<()> {
    step(mount, Recount::Forget).await?;
    sync(engine).await?;
    rewrite(mount, |dnode| dnode.flags.contains(DnodeFlags::USERUSED_ACCOUNTED)).await?;
    sync(engine).await?;
    step(mount, Recount::Begin).await?;
    rewrite(mount, |dnode| {
        let has_owner = matches!(dnode.bonus_type, ObjectType::SA | ObjectType::ZNODE);
        has_owner && !dnode.flags.contains(DnodeFlags::USERUSED_ACCOUNTED)
    })
    .await?;
    step(mount, Recount::End).await?;
    sync(engine).await
}

async fn sync(engine: &Weak<Engine>) -> Result<()> {
    match engine.upgrade() {
        Some(engine) => engine.sync().await.map(drop),
        None => Ok(()),
    }
}

async fn step(mount: &Weak<Mount>, step: Recount) -> Result<()> {
    change(mount, 0, |tx| {
        tx.recount(step);
        Ok(())
    })
    .await
    .map(drop)
}

/// Writes every such object again, some in each transaction.
async fn rewrite(mount: &Weak<Mount>, is_wanted: fn(&DnodePhys) -> bool) -> Result<()> {
    let mut from = Some(1);
    while let Some(first) = from {
        let next = change(mount, COST, |tx| rewrite_some(tx, first, is_wanted)).await?;
        from = next.flatten();
    }
    Ok(())
}

/// Returns where to go on.
fn rewrite_some(
    tx: &mut Tx<'_>,
    first: u64,
    is_wanted: fn(&DnodePhys) -> bool,
) -> TxResult<Option<u64>> {
    let mut from = first;
    while let Some(object) = tx.next_object(from)? {
        if object >= first + LOOKED_AT {
            return Ok(Some(object));
        }
        if is_wanted(&*tx.dnode(object)?) {
            tx.rewrite_dnode(object)?;
        }
        from = object + 1;
    }
    Ok(None)
}

/// Makes a change, `None` if the file system is no longer mounted. The mount is held for the change
/// alone.
async fn change<T>(
    mount: &Weak<Mount>,
    bytes: u64,
    change: impl FnMut(&mut Tx<'_>) -> TxResult<T>,
) -> Result<Option<T>> {
    let Some(mount) = mount.upgrade() else { return Ok(None) };
    let options = ApplyOptions::charged(Charge::free(bytes));
    Ok(Some(mount.engine.apply(&mount.head, options, change).await?.0))
}
