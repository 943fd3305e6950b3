//! Ends a receive: one transaction on the MOS (spec 07 B9.5).
//!
//! ```text
//!   P ──> head  (as before)             P ──> S (received) ──> head
//!    `──> %recv (received)        =>     `──> %recv (as before) ──> destroyed
//! ```

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::DatasetFlags;
use cenote_rt::ensure;

use crate::dsl::receive::{NewReceive, ReceiveRefusal, resume};
use crate::dsl::{
    Effects, Env, OpError, blocks, crypto, destroy, features, get_dataset, get_dir, history, names,
    props, put_dataset, room, snapshot, swap,
};

/// Bytes by which received contents may exceed a refquota: a quota is checked with what is in
/// flight, and the sender's blocks may be smaller.
const REFQUOTA_SLACK: u64 = 1 << 20;

/// A dataset that was received completely.
#[derive(Debug, Clone)]
pub(crate) struct Received {
    /// The dataset.
    pub(crate) object: u64,
    /// Whether it is the child `%recv`.
    pub(crate) is_child: bool,
    /// Whether the target has changed since its latest snapshot.
    pub(crate) is_modified: bool,
}

/// Ends a receive. Returns the object of the snapshot.
pub(crate) fn end(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    new: &NewReceive,
    received: &Received,
) -> TxResult<u64> {
    let object = received.object;
    let phys = get_dataset(tx, object)?;
    let is_marked = phys.is_inconsistent();
    ensure!("RC1", is_marked, "dataset {object} was received, and is not marked");
    // The snapshot must be of contents that this txg has written.
    if env.unwritten.contains(&object) {
        return Err(OpError::SameTxg.into());
    }
    let text = format!("snap={}", new.snapshot);
    history::log(tx, env, "finish receiving", object, &text)?;
    if received.is_child {
        into_existing(tx, env, effects, new, received)
    } else {
        let snapshot = seal(tx, env, new, object)?;
        resume::remove(tx, object)?;
        Ok(snapshot)
    }
}

fn into_existing(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    new: &NewReceive,
    received: &Received,
) -> TxResult<u64> {
    let child = received.object;
    let target = names::head(tx, &new.target)?;
    // Another dataset may have got the name of the target since.
    let child_dir = get_dataset(tx, child)?.dir_obj;
    if get_dir(tx, child_dir)?.parent_obj != get_dataset(tx, target)?.dir_obj {
        return Err(OpError::NotFound.into());
    }
    if env.unwritten.contains(&target) {
        return Err(OpError::SameTxg.into());
    }
    if new.choices.is_forced {
        let source = get_dataset(tx, child)?.prev_snap_obj;
        destroy_later(tx, env, target, source)?;
    } else if received.is_modified {
        return Err(ReceiveRefusal::Modified.into());
    }
    let head = get_dataset(tx, target)?;
    if head.prev_snap_obj != get_dataset(tx, child)?.prev_snap_obj {
        return Err(ReceiveRefusal::Modified.into());
    }
    check_room(tx, env, target, child)?;
    swap::swap(tx, env, child, target)?;
    let snapshot = seal(tx, env, new, target)?;
    destroy::head_impl(tx, env, effects, child)?;
    effects.replaced.push(target);
    Ok(snapshot)
}

/// Destroys the snapshots of the target that are later than the source.
fn destroy_later(tx: &mut Tx<'_>, env: &Env, target: u64, source: u64) -> TxResult<()> {
    let dir = get_dataset(tx, target)?.dir_obj;
    loop {
        let latest = get_dataset(tx, target)?.prev_snap_obj;
        if latest == source {
            return Ok(());
        }
        // The source is gone, or belongs to another dataset since a promotion.
        if latest == 0 || get_dataset(tx, latest)?.dir_obj != dir {
            return Err(ReceiveRefusal::NoSource { guid: get_dataset(tx, source)?.guid }.into());
        }
        // The blocks to be freed at once were found for the present latest snapshot.
        if !features::is_enabled(tx, "async_destroy")? {
            return Err(ReceiveRefusal::FeatureDisabled("async_destroy").into());
        }
        snapshot::destroy(tx, env, latest)?;
    }
}

/// Checks the quota and the refreservation of the target with its new contents.
fn check_room(tx: &mut Tx<'_>, env: &Env, target: u64, child: u64) -> TxResult<()> {
    let (head, after) = (get_dataset(tx, target)?, get_dataset(tx, child)?);
    let dir = get_dir(tx, head.dir_obj)?;
    let refquota = props::own_number(tx, dir.props_zapobj, "refquota")?;
    if refquota != 0 && after.referenced_bytes > refquota.saturating_add(REFQUOTA_SLACK) {
        return Err(OpError::Quota.into());
    }
    let reserved = blocks::refreservation(tx, &dir)?;
    let more = reserved.min(head.unique_bytes).saturating_sub(reserved.min(after.unique_bytes));
    if more > room::available(tx, env, head.dir_obj)? {
        return Err(OpError::NoSpace.into());
    }
    Ok(())
}

/// Takes the snapshot of a received head, with the guid and the creation time that it has at the
/// sender. From here on the dataset is consistent.
fn seal(tx: &mut Tx<'_>, env: &Env, new: &NewReceive, head: u64) -> TxResult<u64> {
    let mut phys = get_dataset(tx, head)?;
    phys.flags.remove(DatasetFlags::INCONSISTENT);
    put_dataset(tx, head, &phys)?;
    let object = snapshot::take(tx, env, head, &new.snapshot)?;
    let mut taken = get_dataset(tx, object)?;
    taken.creation_time = new.creation_time;
    taken.guid = new.to_guid;
    put_dataset(tx, object, &taken)?;
    if let Some(sent) = new.raw_keys() {
        if let Some(guid) = sent.to_ivset {
            crypto::set_ivset(tx, object, guid)?;
        }
        crypto::wrap_as_sent(tx, taken.dir_obj, &sent.keys)?;
    }
    history::log(tx, env, "snapshot", object, "")?;
    Ok(object)
}

/// Finds what a discarded receive leaves: the child `%recv`, or the target itself. Returns its
/// name.
pub(crate) fn saved_dataset(tx: &mut Tx<'_>, target: &str) -> TxResult<String> {
    let child = format!("{target}/{}", super::RECV);
    for name in [child.as_str(), target] {
        let object = match names::head(tx, name) {
            Ok(object) => object,
            Err(step) if names::is_missing(&step) => continue,
            Err(step) => return Err(step),
        };
        if get_dataset(tx, object)?.is_inconsistent() && resume::saved(tx, object)?.is_some() {
            return Ok(name.to_owned());
        }
    }
    Err(ReceiveRefusal::NothingSaved.into())
}
