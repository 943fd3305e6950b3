//! Refcounts of features, in the MOS (spec 01 §11, 04 §4.3).
//!
//! A count that changes from or to 0 may change the list in the labels: then the function returns
//! true, and the caller marks the config dirty.

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::feature::{Feature, FeatureFlags, by_name};
use cenote_ondisk::zap::Value;
use cenote_pool::features::{DESCRIPTIONS, ENABLED_TXG, refcount, table_of};

use crate::dsl::{directory_object, need_directory_object};
use crate::invariant;

/// Returns the feature with this short name.
pub(crate) fn known(name: &'static str) -> &'static Feature {
    by_name(name).unwrap_or_else(|| unreachable!("{name} is in the table of features"))
}

/// Returns the refcount, `None` if the feature is not enabled.
pub(crate) fn count(tx: &mut Tx<'_>, name: &'static str) -> TxResult<Option<u64>> {
    refcount(tx, known(name))
}

/// Whether the feature is enabled.
pub(crate) fn is_enabled(tx: &mut Tx<'_>, name: &'static str) -> TxResult<bool> {
    Ok(count(tx, name)?.is_some())
}

/// Whether the feature is active.
pub(crate) fn is_active(tx: &mut Tx<'_>, name: &'static str) -> TxResult<bool> {
    Ok(count(tx, name)?.is_some_and(|count| count > 0))
}

/// Changes the refcount. Returns true if a feature in the labels' list was activated or
/// deactivated.
pub(crate) fn add(tx: &mut Tx<'_>, name: &'static str, delta: i64) -> TxResult<bool> {
    let feature = known(name);
    let table = need_directory_object(tx, table_of(feature))?;
    // Checks FC1.
    let before = refcount(tx, feature)?
        .ok_or_else(|| invariant(format!("feature {name} is used and not enabled")))?;
    // Checks FC1.
    let after = before
        .checked_add_signed(delta)
        .ok_or_else(|| invariant(format!("feature {name}: count {before} changed by {delta}")))?;
    zap::update(tx, table, feature.guid, after)?;
    let is_listed = feature.flags.contains(FeatureFlags::IN_LABEL);
    Ok(is_listed && (before == 0) != (after == 0))
}

/// Enables a feature and its dependencies. Returns true if the list in the labels changes.
pub(crate) fn enable(tx: &mut Tx<'_>, feature: &Feature, txg: u64) -> TxResult<bool> {
    let table = need_directory_object(tx, table_of(feature))?;
    if refcount(tx, feature)?.is_some() {
        return Ok(false);
    }
    let mut is_label_changed = false;
    for needed in feature.needs {
        is_label_changed |= enable(tx, known(needed), txg)?;
    }
    let descriptions = need_directory_object(tx, DESCRIPTIONS)?;
    zap::update(tx, descriptions, feature.guid, Value::text(feature.description))?;
    let is_active = feature.flags.contains(FeatureFlags::ACTIVE_ON_ENABLE);
    zap::insert(tx, table, feature.guid, u64::from(is_active))?;
    is_label_changed |= is_active && feature.flags.contains(FeatureFlags::IN_LABEL);
    if is_enabled(tx, "enabled_txg")? {
        let times = match directory_object(tx, ENABLED_TXG)? {
            Some(times) => times,
            None => crate::dsl::new_directory_zap(tx, ENABLED_TXG)?,
        };
        zap::update(tx, times, feature.guid, txg)?;
        add(tx, "enabled_txg", 1)?;
    }
    Ok(is_label_changed)
}

/// Returns the guids of the active features for the labels' list.
pub(crate) fn for_label(tx: &mut Tx<'_>) -> TxResult<Vec<String>> {
    let mut names = Vec::new();
    for feature in &cenote_ondisk::feature::FEATURES {
        let is_listed = feature.flags.contains(FeatureFlags::IN_LABEL);
        if is_listed && refcount(tx, feature)?.is_some_and(|count| count > 0) {
            names.push(feature.guid.to_owned());
        }
    }
    Ok(names)
}
