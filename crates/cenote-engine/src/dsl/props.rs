//! Block policies in the open state of the MOS, and changes of properties (spec 04 §7).
//!
//! [`Settings`] finds effective values, for readers of committed states as well.

use cenote_block::policy::{CompressionSetting, DatasetPolicy, RedundantMetadata};
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::dsl::props::{
    HAS_RECEIVED, INHERIT_SUFFIX as INHERIT, IUV_SUFFIX as IUV, RECEIVED_SUFFIX as RECEIVED,
};
use cenote_ondisk::zap::{KEY_LEN_MAX, Value};
use cenote_pool::props::lookup::{Settings, own_value};

use crate::dsl::crypto;

/// Returns the block policy in the properties of a dir.
pub(crate) fn policy(tx: &mut Tx<'_>, dir: u64) -> TxResult<DatasetPolicy> {
    let default = DatasetPolicy::DEFAULT;
    let settings = Settings::of_dir(tx, dir)?;
    let compression = settings.number("compression", 1);
    let checksum = settings.number("checksum", 1);
    let copies = settings.number("copies", 1);
    let redundant = settings.number("redundant_metadata", 0);
    Ok(DatasetPolicy {
        compression: CompressionSetting::from_property(compression).unwrap_or(default.compression),
        checksum: u8::try_from(checksum)
            .ok()
            .and_then(ChecksumType::from_id)
            .unwrap_or(default.checksum),
        copies: copies.clamp(1, 3) as u8,
        redundant_metadata: RedundantMetadata::from_id(redundant)
            .unwrap_or(default.redundant_metadata),
        special_small_blocks: settings.number("special_small_blocks", 0),
        // New blocks are never put into dedup tables: nothing on disk requires it.
        is_dedup: false,
        is_encrypted: crypto::key_object(tx, dir)?.is_some(),
        indirect_shift: indirect_shift(&settings),
    })
}

/// User property: size of the indirect blocks of new objects, 4K to 128K, for measurements; other
/// values are ignored.
pub(crate) const INDIRECT_BLOCK_SIZE: &str = "cenote:indirect_block_size";

fn indirect_shift(settings: &Settings) -> u8 {
    let value = settings.find(INDIRECT_BLOCK_SIZE, true);
    value.and_then(|(value, _)| shift_of(value.as_str()?)).unwrap_or(0)
}

/// Returns log2 of a valid size of indirect blocks.
fn shift_of(text: &str) -> Option<u8> {
    let kilo = text.strip_suffix(['K', 'k']);
    let number: u64 = kilo.unwrap_or(text).parse().ok()?;
    let bytes = number.checked_mul(if kilo.is_some() { 1024 } else { 1 })?;
    let fits = bytes.is_power_of_two() && (4 << 10..=128 << 10).contains(&bytes);
    fits.then(|| bytes.ilog2() as u8)
}

/// Returns a dir's own number for a property that is not inherited, 0 if it has none.
pub(crate) fn own_number(tx: &mut Tx<'_>, props: u64, name: &str) -> TxResult<u64> {
    Ok(own_value(tx, props, name)?.and_then(|(value, _)| value.first()).unwrap_or(0))
}

/// Removes the entry of a name with a suffix, if the name leaves space for the suffix.
fn take(tx: &mut Tx<'_>, props: u64, name: &str, suffix: &str) -> TxResult<()> {
    let key = format!("{name}{suffix}");
    if key.len() < KEY_LEN_MAX {
        zap::take(tx, props, &key)?;
    }
    Ok(())
}

/// Sets a local value (`zfs set`).
pub(crate) fn set(tx: &mut Tx<'_>, props: u64, name: &str, value: &Value) -> TxResult<()> {
    take(tx, props, name, INHERIT)?;
    take(tx, props, name, IUV)?;
    match hidden_value(name, value) {
        Some(shown) => {
            zap::update(tx, props, name, shown)?;
            zap::update(tx, props, &format!("{name}{IUV}"), value.clone())
        }
        None => zap::update(tx, props, name, value.clone()),
    }
}

/// Removes the local value (`zfs inherit`); a received one stays hidden.
pub(crate) fn inherit(tx: &mut Tx<'_>, props: u64, name: &str) -> TxResult<()> {
    zap::take(tx, props, name)?;
    take(tx, props, name, IUV)?;
    if zap::contains(tx, props, HAS_RECEIVED)? {
        zap::update(tx, props, &format!("{name}{INHERIT}"), 0)?;
    }
    Ok(())
}

/// Restores the received value (`zfs inherit -S`).
pub(crate) fn revert(tx: &mut Tx<'_>, props: u64, name: &str) -> TxResult<()> {
    zap::take(tx, props, name)?;
    take(tx, props, name, INHERIT)?;
    Ok(())
}

/// Stores a value that came with a stream (spec 04 §7.3).
pub(crate) fn receive(tx: &mut Tx<'_>, props: u64, name: &str, value: &Value) -> TxResult<()> {
    zap::update(tx, props, HAS_RECEIVED, 0)?;
    zap::update(tx, props, &format!("{name}{RECEIVED}"), value.clone())
}

/// Removes a received value, with the mark that hides it.
pub(crate) fn drop_received(tx: &mut Tx<'_>, props: u64, name: &str) -> TxResult<()> {
    take(tx, props, name, RECEIVED)?;
    take(tx, props, name, INHERIT)
}

/// Returns the value for software that does not know this one (spec 04 §7.1).
fn hidden_value(name: &str, value: &Value) -> Option<u64> {
    match (name, value.single()?) {
        ("redundant_metadata", 2 | 3) | ("snapdir", 2) => Some(0),
        _ => None,
    }
}
