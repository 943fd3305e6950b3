//! Holds: tags that prevent the destruction of a snapshot (spec 04 §16).

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{DatasetFlags, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::mos::{DIRECTORY, named};
use cenote_rt::seeded::{Bug, is_on};

use crate::dsl::{
    Env, OpError, directory_object, get_dataset, history, names, new_zap, put_dataset, snapshot,
};

/// Maximum length of a tag.
const TAG_MAX: usize = 256;
/// Length of the prefix of a temporary hold's entry: an object number and a dash.
const PREFIX_MAX: usize = 17;

/// Holds a snapshot. A temporary hold ends when the pool is opened for writing again.
pub(crate) fn hold(
    tx: &mut Tx<'_>,
    env: &Env,
    name: &str,
    tag: &str,
    is_temporary: bool,
) -> TxResult<()> {
    names::check_pool(env, name)?;
    let max = if is_temporary { TAG_MAX - PREFIX_MAX } else { TAG_MAX };
    if tag.len() > max || tag.is_empty() {
        return Err(OpError::TooLong.into());
    }
    let object = names::snapshot_of(tx, name)?;
    let mut phys = get_dataset(tx, object)?;
    if phys.userrefs_obj == 0 {
        phys.userrefs_obj = new_zap(tx, ObjectType::USERREFS)?;
        put_dataset(tx, object, &phys)?;
    } else if zap::contains(tx, phys.userrefs_obj, tag)? {
        return Err(OpError::TagExists.into());
    }
    zap::insert(tx, phys.userrefs_obj, tag, env.now)?;
    if is_temporary {
        let table = if let Some(table) = directory_object(tx, key::TMP_USERREFS)? {
            table
        } else {
            let table = new_zap(tx, ObjectType::USERREFS)?;
            zap::update(tx, DIRECTORY, key::TMP_USERREFS, table)?;
            table
        };
        zap::insert(tx, table, &format!("{object:x}-{tag}"), env.now)?;
    }
    let text = format!(
        "tag={tag} temp={} refs={}",
        u8::from(is_temporary),
        zap::len(tx, phys.userrefs_obj)?
    );
    history::log(tx, env, "hold", object, &text)
}

/// Releases a hold. A snapshot whose destruction was deferred is destroyed with its last hold.
pub(crate) fn release(tx: &mut Tx<'_>, env: &Env, name: &str, tag: &str) -> TxResult<()> {
    names::check_pool(env, name)?;
    let object = names::snapshot_of(tx, name)?;
    release_object(tx, env, object, tag)
}

fn release_object(tx: &mut Tx<'_>, env: &Env, object: u64, tag: &str) -> TxResult<()> {
    let phys = get_dataset(tx, object)?;
    if phys.userrefs_obj == 0 || zap::take(tx, phys.userrefs_obj, tag)?.is_none() {
        return Err(OpError::NoTag.into());
    }
    if let Some(table) = directory_object(tx, key::TMP_USERREFS)? {
        zap::take(tx, table, &format!("{object:x}-{tag}"))?;
    }
    let left = zap::len(tx, phys.userrefs_obj)?;
    history::log(tx, env, "release", object, &format!("tag={tag} refs={left}"))?;
    if is_due(tx, object)? && !is_on(Bug::DeferredDestroyForgotten) {
        snapshot::destroy(tx, env, object)?;
    }
    Ok(())
}

/// Whether a snapshot is to be destroyed and has no holds or clones.
pub(super) fn is_due(tx: &mut Tx<'_>, object: u64) -> TxResult<bool> {
    let phys = get_dataset(tx, object)?;
    Ok(phys.flags.contains(DatasetFlags::DEFER_DESTROY)
        && phys.num_children == 1
        && snapshot::holds(tx, &phys)? == 0)
}

/// Releases all temporary holds, whose programs have ended; or only those with the tag `only`,
/// whatever their snapshots are called by now. Returns their number.
pub(crate) fn release_temporary(tx: &mut Tx<'_>, env: &Env, only: Option<&str>) -> TxResult<u64> {
    let Some(table) = directory_object(tx, key::TMP_USERREFS)? else { return Ok(0) };
    let mut count = 0;
    for (entry, _) in named(tx, table)? {
        let Some((object, tag)) = entry.split_once('-') else { continue };
        if only.is_some_and(|only| only != tag) {
            continue;
        }
        let Some(object) = key::to_number(object.as_bytes()) else { continue };
        let is_held = match tx.find(object)? {
            Some(dnode) if dnode.bonus_type == ObjectType::DSL_DATASET => {
                let phys = get_dataset(tx, object)?;
                phys.userrefs_obj != 0 && zap::contains(tx, phys.userrefs_obj, tag)?
            }
            _ => false,
        };
        if is_held {
            release_object(tx, env, object, tag)?;
            count += 1;
        } else {
            zap::take(tx, table, &entry)?;
        }
    }
    Ok(count)
}
