//! Changes of delegated permissions, and the permissions of new datasets (spec 04 §24).

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::dsl::dir::ancestry;
use cenote_pool::mos::named;
use cenote_rt::seeded::{Bug, is_on};

use crate::dsl::{Env, get_dir, history, names, new_zap, put_dir};

/// Create-time permissions, and create-time sets.
const CREATE_TIME: [(&str, &str); 2] = [("c-$", "ul$"), ("C-$", "Ul$")];

/// Grants the user who created the dataset of `dir` the create-time permissions of its ancestors.
pub(crate) fn copy_create_time(tx: &mut Tx<'_>, env: &Env, dir: u64) -> TxResult<()> {
    let uid = env.requester.uid;
    let uid = if is_on(Bug::OneCreatorPerTxg) { env.first_creator.of(tx.txg(), uid) } else { uid };
    for (source, target) in CREATE_TIME {
        let mut granted = BTreeSet::new();
        for (_, above) in ancestry(tx, dir)?.into_iter().skip(1) {
            if above.deleg_zapobj != 0
                && let Some(jump) = zap::lookup_u64(tx, above.deleg_zapobj, source)?
            {
                granted.extend(named(tx, jump)?.into_iter().map(|(name, _)| name));
            }
        }
        if granted.is_empty() {
            continue;
        }
        let mut phys = get_dir(tx, dir)?;
        if phys.deleg_zapobj == 0 {
            phys.deleg_zapobj = new_zap(tx, ObjectType::DSL_PERMS)?;
            put_dir(tx, dir, &phys)?;
        }
        let jump = new_zap(tx, ObjectType::DSL_PERMS)?;
        for permission in &granted {
            zap::insert(tx, jump, permission, 0)?;
        }
        zap::insert(tx, phys.deleg_zapobj, &format!("{target}{uid}"), jump)?;
    }
    Ok(())
}

/// The user of the first creation in a txg, for [`Bug::OneCreatorPerTxg`].
#[derive(Debug, Default)]
pub(crate) struct FirstCreator {
    txg: AtomicU64,
    uid: AtomicU32,
}

impl FirstCreator {
    /// Returns the user of the first creation in `txg`, which is `uid` if there was none.
    fn of(&self, txg: u64, uid: u32) -> u32 {
        if self.txg.swap(txg, Ordering::Relaxed) != txg {
            self.uid.store(uid, Ordering::Relaxed);
        }
        self.uid.load(Ordering::Relaxed)
    }
}

/// A change under one key of a dataset's delegation ZAP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GrantChange {
    /// Grantee and scope: `ul$1000`.
    pub key: String,
    /// Permissions or sets; when removing, an empty list stands for all.
    pub names: Vec<String>,
}

/// Grants permissions on a dataset (`zfs allow`).
pub(crate) fn allow(
    tx: &mut Tx<'_>,
    env: &Env,
    dataset: &str,
    grants: &[GrantChange],
) -> TxResult<()> {
    names::check_pool(env, dataset)?;
    let dir = names::dir(tx, dataset)?;
    let mut phys = get_dir(tx, dir)?;
    if phys.deleg_zapobj == 0 {
        phys.deleg_zapobj = new_zap(tx, ObjectType::DSL_PERMS)?;
        put_dir(tx, dir, &phys)?;
    }
    for grant in grants {
        let jump = if let Some(jump) = zap::lookup_u64(tx, phys.deleg_zapobj, &grant.key)? {
            jump
        } else {
            let jump = new_zap(tx, ObjectType::DSL_PERMS)?;
            zap::insert(tx, phys.deleg_zapobj, &grant.key, jump)?;
            jump
        };
        for name in &grant.names {
            zap::update(tx, jump, name, 0)?;
            let text = format!("{} {name}", grant.key);
            history::log(tx, env, "permission update", phys.head_dataset_obj, &text)?;
        }
    }
    Ok(())
}

/// Removes permissions from a dataset (`zfs unallow`). A missing grant is no error.
pub(crate) fn unallow(
    tx: &mut Tx<'_>,
    env: &Env,
    dataset: &str,
    grants: &[GrantChange],
) -> TxResult<()> {
    names::check_pool(env, dataset)?;
    let dir = names::dir(tx, dataset)?;
    let phys = get_dir(tx, dir)?;
    let deleg = phys.deleg_zapobj;
    if deleg == 0 {
        return Ok(());
    }
    for grant in grants {
        let Some(jump) = zap::lookup_u64(tx, deleg, &grant.key)? else { continue };
        for name in &grant.names {
            if zap::take(tx, jump, name)?.is_some() {
                let text = format!("{} {name}", grant.key);
                history::log(tx, env, "permission remove", phys.head_dataset_obj, &text)?;
            }
        }
        if grant.names.is_empty() {
            let head = phys.head_dataset_obj;
            history::log(tx, env, "permission who remove", head, &grant.key)?;
        }
        if grant.names.is_empty() || zap::len(tx, jump)? == 0 {
            zap::remove(tx, deleg, &grant.key)?;
            zap::destroy(tx, jump)?;
        }
    }
    Ok(())
}

/// Frees the permissions of a destroyed dir.
pub(crate) fn destroy(tx: &mut Tx<'_>, deleg: u64) -> TxResult<()> {
    if deleg == 0 {
        return Ok(());
    }
    for entry in zap::entries(tx, deleg)? {
        if let Some(jump) = entry.value.first() {
            zap::destroy(tx, jump)?;
        }
    }
    zap::destroy(tx, deleg)
}
