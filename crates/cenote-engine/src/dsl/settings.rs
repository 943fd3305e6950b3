//! Sets properties: permitted values, and effects other than the stored value (spec 04 §7.3, §17.4,
//! §18).
//!
//! ```text
//!   quota, reservation        list and dir          reservation moves CHILD_RSRV of the parent
//!   refquota                  list
//!   refreservation            list                  moves REFRSRV
//!   *_limit                   list                  begins the counting below
//!   compression=zstd          list                  the dataset carries the feature
//! ```

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::DatasetPhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::props::lookup::Settings;
use cenote_pool::props::table::{Access, PropType, Property, dataset_property};

use crate::dsl::space;
use crate::dsl::space::{Sizes, Use};
use crate::dsl::{
    Effects, Env, OpError, blocks, counts, features, get_dataset, get_dir, history, names, new_zap,
    props, put_dataset, put_dir, room,
};

/// Maximum length of a name, and of a text with its NUL.
const NAME_MAX: usize = 256;
const TEXT_MAX: usize = 8192;
/// Compression zstd; its level is above these bits.
const COMPRESSION_MASK: u64 = 0x7f;
const ZSTD: u64 = 16;
const RECORD_MIN: u64 = 512;
const RECORD_MAX: u64 = 16 << 20;
const SMALL_RECORD_MAX: u64 = 128 << 10;

/// A change of one property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// `zfs set`.
    Set(Value),
    /// `zfs inherit`.
    Inherit,
    /// `zfs inherit -S`: restores the received value.
    Revert,
    /// A value from a stream.
    Receive(Value),
    /// Removes the received value.
    DropReceived,
}

/// Changes properties of a file system, volume or snapshot.
pub(crate) fn apply(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    name: &str,
    changes: &[(String, Change)],
) -> TxResult<()> {
    names::check_pool(env, name)?;
    let object = names::dataset(tx, name)?;
    let phys = get_dataset(tx, object)?;
    let is_snapshot = phys.is_snapshot();
    for (property, change) in changes {
        check(tx, property, change, is_snapshot)?;
        if is_snapshot {
            change_snapshot(tx, object, property, change)?;
        } else {
            change_head(tx, env, object, property, change)?;
        }
        let (event, text) = describe(tx, object, property, change)?;
        history::log(tx, env, event, object, &text)?;
    }
    if !is_snapshot {
        effects.settings_changed.push(phys.dir_obj);
    }
    Ok(())
}

/// Changes properties of a new head.
pub(crate) fn apply_new(
    tx: &mut Tx<'_>,
    env: &Env,
    object: u64,
    values: &[(String, Value)],
) -> TxResult<()> {
    for (property, value) in values {
        let change = Change::Set(value.clone());
        check(tx, property, &change, false)?;
        change_head(tx, env, object, property, &change)?;
        let (event, text) = describe(tx, object, property, &change)?;
        history::log(tx, env, event, object, &text)?;
    }
    Ok(())
}

fn describe(
    tx: &mut Tx<'_>,
    object: u64,
    property: &str,
    change: &Change,
) -> TxResult<(&'static str, String)> {
    let event = match change {
        Change::Set(_) | Change::Receive(_) => "set",
        Change::Inherit | Change::Revert | Change::DropReceived => "inherit",
    };
    let dir = get_dataset(tx, object)?.dir_obj;
    let is_inherited = dataset_property(property).is_none_or(|property| property.is_inheritable);
    let value = match change {
        Change::Set(value) => Some(value.clone()),
        _ => Settings::of_dir(tx, dir)?.find(property, is_inherited).map(|(value, _)| value),
    };
    let value = match value {
        Some(value) => value.single().map_or_else(
            || value.as_str().unwrap_or_default().to_owned(),
            |number| number.to_string(),
        ),
        None => String::new(),
    };
    Ok((event, format!("{property}={value}")))
}

/// Refuses invalid changes.
fn check(tx: &mut Tx<'_>, name: &str, change: &Change, is_snapshot: bool) -> TxResult<()> {
    if name.len() >= NAME_MAX {
        return Err(OpError::TooLong.into());
    }
    let value = match change {
        Change::Set(value) | Change::Receive(value) => Some(value),
        Change::Inherit | Change::Revert | Change::DropReceived => None,
    };
    if let Some(Value::Array { bytes, .. }) = value
        && bytes.len() > TEXT_MAX
    {
        return Err(OpError::TooLong.into());
    }
    if name.contains(':') {
        let is_legal = |c: char| matches!(c, 'a'..='z' | '0'..='9' | '-' | '_' | '.' | ':');
        let is_text = value.is_none_or(|value| value.as_str().is_some());
        return if name.chars().all(is_legal) && is_text {
            Ok(())
        } else {
            Err(OpError::Name.into())
        };
    }
    let property = dataset_property(name).ok_or(OpError::NoProperty)?;
    if property.access == Access::ReadOnly || is_snapshot {
        return Err(OpError::ReadOnlyProperty.into());
    }
    match value {
        Some(value) => check_value(tx, property, value),
        None => Ok(()),
    }
}

fn check_value(tx: &mut Tx<'_>, property: &Property, value: &Value) -> TxResult<()> {
    let number = value.single();
    let is_of_type = match property.value_type {
        PropType::Text => number.is_none() && value.as_str().is_some(),
        PropType::Number(_) => number.is_some(),
        PropType::Index(_) => number.is_some_and(|n| property.index_name(n).is_some()),
    };
    if !is_of_type {
        return Err(OpError::Value.into());
    }
    let number = number.unwrap_or(0);
    match property.name {
        "recordsize"
            if !number.is_power_of_two() || !(RECORD_MIN..=RECORD_MAX).contains(&number) =>
        {
            Err(OpError::Value.into())
        }
        "recordsize" if number > SMALL_RECORD_MAX => need(tx, "large_blocks"),
        "special_small_blocks"
            if number != 0 && !(number.is_power_of_two() && number <= RECORD_MAX) =>
        {
            Err(OpError::Value.into())
        }
        "compression" if number & COMPRESSION_MASK == ZSTD => need(tx, "zstd_compress"),
        "compression" if number == 15 => need(tx, "lz4_compress"),
        "checksum" => match number {
            11 => need(tx, "sha512"),
            12 => need(tx, "skein"),
            13 => need(tx, "edonr"),
            14 => need(tx, "blake3"),
            _ => Ok(()),
        },
        "dnodesize" if number != 0 => need(tx, "large_dnode"),
        "longname" if number != 0 => need(tx, "longname"),
        // Dedup tables are not written (docs/compatibility.md).
        "dedup" if number != 2 => Err(OpError::Unsupported.into()),
        _ => Ok(()),
    }
}

fn need(tx: &mut Tx<'_>, feature: &'static str) -> TxResult<()> {
    if features::is_enabled(tx, feature)? { Ok(()) } else { Err(OpError::Unsupported.into()) }
}

fn store(tx: &mut Tx<'_>, list: u64, name: &str, change: &Change) -> TxResult<()> {
    match change {
        Change::Set(value) => props::set(tx, list, name, value),
        Change::Inherit => props::inherit(tx, list, name),
        Change::Revert => props::revert(tx, list, name),
        Change::Receive(value) => props::receive(tx, list, name, value),
        Change::DropReceived => props::drop_received(tx, list, name),
    }
}

fn change_snapshot(tx: &mut Tx<'_>, object: u64, name: &str, change: &Change) -> TxResult<()> {
    let mut phys = get_dataset(tx, object)?;
    if phys.props_obj == 0 {
        phys.props_obj = new_zap(tx, ObjectType::DSL_PROPS)?;
        put_dataset(tx, object, &phys)?;
    }
    store(tx, phys.props_obj, name, change)?;
    if zap::len(tx, phys.props_obj)? == 0 {
        zap::destroy(tx, phys.props_obj)?;
        phys.props_obj = 0;
        put_dataset(tx, object, &phys)?;
    }
    Ok(())
}

fn change_head(
    tx: &mut Tx<'_>,
    env: &Env,
    object: u64,
    name: &str,
    change: &Change,
) -> TxResult<()> {
    let head = get_dataset(tx, object)?;
    let dir_object = head.dir_obj;
    let list = get_dir(tx, dir_object)?.props_zapobj;
    let before = props::own_number(tx, list, name)?;
    store(tx, list, name, change)?;
    let after = props::own_number(tx, list, name)?;
    match name {
        "quota" => set_quota(tx, dir_object, after),
        "reservation" => {
            check_reserved(tx, env, dir_object, after)?;
            set_reserved(tx, dir_object, after)
        }
        "refquota" => {
            let reserved = props::own_number(tx, list, "refreservation")?;
            if after != 0 && (after < head.referenced_bytes || after < reserved) {
                return Err(OpError::NoSpace.into());
            }
            Ok(())
        }
        "refreservation" => {
            let more = head.unique_bytes.max(after).saturating_sub(head.unique_bytes.max(before));
            let refquota = props::own_number(tx, list, "refquota")?;
            if more > 0 && more > room::available(tx, env, dir_object)?
                || after > before && refquota != 0 && after > refquota
            {
                return Err(OpError::NoSpace.into());
            }
            move_refreserved(tx, dir_object, &head, before, after)
        }
        "filesystem_limit" | "snapshot_limit" => match change {
            Change::Set(_) | Change::Receive(_) => counts::activate(tx, dir_object),
            Change::Inherit | Change::Revert | Change::DropReceived => Ok(()),
        },
        "compression" if after & COMPRESSION_MASK == ZSTD => {
            blocks::activate(tx, object, "zstd_compress")
        }
        _ => Ok(()),
    }
}

/// Sets the quota of a dir.
fn set_quota(tx: &mut Tx<'_>, object: u64, quota: u64) -> TxResult<()> {
    let mut dir = get_dir(tx, object)?;
    if quota != 0 && (quota < dir.reserved || quota < dir.used_bytes) {
        return Err(OpError::NoSpace.into());
    }
    dir.quota = quota;
    put_dir(tx, object, &dir)
}

fn check_reserved(tx: &mut Tx<'_>, env: &Env, object: u64, reserved: u64) -> TxResult<()> {
    let dir = get_dir(tx, object)?;
    let more = dir.used_bytes.max(reserved).saturating_sub(room::share(&dir));
    if more == 0 {
        return Ok(());
    }
    let available = match dir.parent_obj {
        0 => {
            let parked = room::parked(tx)?;
            env.space.usable(room::Reserve::Normal, parked).saturating_sub(dir.used_bytes)
        }
        parent => room::available(tx, env, parent)?,
    };
    if more > available || dir.quota != 0 && reserved > dir.quota {
        return Err(OpError::NoSpace.into());
    }
    Ok(())
}

/// Sets the reservation of a dir.
pub(super) fn set_reserved(tx: &mut Tx<'_>, object: u64, reserved: u64) -> TxResult<()> {
    let mut dir = get_dir(tx, object)?;
    let before = room::share(&dir);
    dir.reserved = reserved;
    put_dir(tx, object, &dir)?;
    let delta = room::share(&dir) as i64 - before as i64;
    if dir.parent_obj != 0 && delta != 0 {
        let sizes = Sizes { used: delta, ..Sizes::default() };
        space::did_use(tx, dir.parent_obj, Use::ChildReserved, sizes)?;
    }
    Ok(())
}

/// Sets the refreservation of a head, in the property ZAP as well.
pub(super) fn set_refreservation(
    tx: &mut Tx<'_>,
    dir: u64,
    head: &DatasetPhys,
    reserved: u64,
) -> TxResult<()> {
    let phys = get_dir(tx, dir)?;
    let before = blocks::refreservation(tx, &phys)?;
    if before == reserved {
        return Ok(());
    }
    props::set(tx, phys.props_zapobj, "refreservation", &Value::U64(reserved))?;
    move_refreserved(tx, dir, head, before, reserved)
}

fn move_refreserved(
    tx: &mut Tx<'_>,
    dir: u64,
    head: &DatasetPhys,
    before: u64,
    after: u64,
) -> TxResult<()> {
    let unfilled = |reserved: u64| reserved.saturating_sub(head.unique_bytes) as i64;
    let used = unfilled(after) - unfilled(before);
    if used == 0 {
        return Ok(());
    }
    space::did_use(tx, dir, Use::RefReserved, Sizes { used, ..Sizes::default() })
}
