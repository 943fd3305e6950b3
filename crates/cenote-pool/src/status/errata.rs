//! Errata: formats of early releases that have to be replaced (spec 06 §19.1).
//!
//! | Errata | Found by |
//! |---|---|
//! | 1, 2 | the label, where OpenZFS recorded them |
//! | 3 | an encrypted dir whose keys have the format of the first development version |
//! | 4 | `encryption` without `bookmark_v2`, or an encrypted snapshot without IV set guid |
//!
//! Errata 3 and 4 in a label are ignored: they may be resolved. The search reads all dirs of a pool
//! with encrypted datasets. Once it has found nothing it is not repeated until the next import,
//! because snapshots and keys of these formats are not created any more.

use std::sync::Arc;

use cenote_codec::crypto::KEY_VERSION_CURRENT;
use cenote_ondisk::dsl::{crypto, key};
use cenote_rt::Result;

use crate::dsl::dataset::{load_phys, snapshots_of};
use crate::dsl::dir::{children_of, get_dir};
use crate::features::FeatureState;
use crate::{Pool, mos};

/// Keys of the first development format.
const KEY_FORMAT: u64 = 3;
/// Snapshots whose raw streams cannot be checked.
const NO_IV_SET: u64 = 4;

/// Returns the number of the errata that apply to an open pool, 0 if there are none. Reads nothing
/// if the pool is suspended.
///
/// # Errors
/// Interruptions only: damaged dirs are skipped.
pub(super) async fn of_pool(pool: &Arc<Pool>) -> Result<u64> {
    let recorded = pool.config().facts.errata;
    let is_enabled = |name| pool.features().state(name) != FeatureState::Disabled;
    if pool.presence().suspended().is_some() {
        return Ok(recorded);
    }
    let recorded = if [KEY_FORMAT, NO_IV_SET].contains(&recorded) { 0 } else { recorded };
    if !is_enabled("encryption") {
        return Ok(recorded);
    }
    let is_searched = pool.presence().has_current_formats();
    let found = if pool.features().is_active("encryption") && !is_searched {
        search(pool).await?
    } else {
        Found::default()
    };
    if found.has_old_keys {
        return Ok(KEY_FORMAT);
    }
    if found.lacks_iv_set || !is_enabled("bookmark_v2") {
        return Ok(NO_IV_SET);
    }
    if !found.is_incomplete {
        pool.presence().set_current_formats();
    }
    Ok(recorded)
}

/// What a search has found.
#[derive(Debug, Default)]
struct Found {
    has_old_keys: bool,
    lacks_iv_set: bool,
    /// Whether a dir or snapshot could not be read.
    is_incomplete: bool,
}

/// Searches all dirs, until one has old keys.
async fn search(pool: &Arc<Pool>) -> Result<Found> {
    let mut found = Found::default();
    let mut pending = vec![pool.root_dir().object];
    while let Some(dir) = pending.pop()
        && !found.has_old_keys
    {
        let examined = mos::unless_interrupted(examine(pool, dir, &mut found).await)?;
        let children = pool.mos().read(|objects| children_of(objects, dir)).await;
        let children = mos::unless_interrupted(children)?;
        found.is_incomplete |= examined.is_err() || children.is_err();
        pending.extend(children.unwrap_or_default().into_iter().map(|(_, child)| child));
    }
    Ok(found)
}

/// Examines the keys of a dir and its snapshots, if it is encrypted.
async fn examine(pool: &Arc<Pool>, dir: u64, found: &mut Found) -> Result<()> {
    let mos = pool.mos();
    let keys = mos::extra(mos, dir, key::CRYPTO_KEY_OBJ).await?;
    let Some(keys) = keys.and_then(|value| value.first()) else { return Ok(()) };
    // The format before the entry existed was 0.
    let version = mos::u64(mos, keys, crypto::VERSION).await?.unwrap_or(0);
    if version != KEY_VERSION_CURRENT {
        found.has_old_keys = true;
        return Ok(());
    }
    if found.lacks_iv_set {
        return Ok(());
    }
    let head = mos.read(|objects| get_dir(objects, dir)).await?.head_dataset_obj;
    let head = load_phys(mos, head).await?;
    for (_, snapshot) in mos.read(|objects| snapshots_of(objects, &head)).await? {
        if mos::extra(mos, snapshot, key::IVSET_GUID).await?.is_none() {
            found.lacks_iv_set = true;
            return Ok(());
        }
    }
    Ok(())
}
