//! The resume keys of a dataset that is being received (spec 07 B8).
//!
//! They are extra keys of the dataset object. `toguid` marks a dataset as resumable; the point
//! (`object`, `offset`, `bytes`) changes with the data.

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::key;
use cenote_ondisk::stream::StreamFeatures;
use cenote_ondisk::zap::Value;
use cenote_pool::mos::extra_value;
use cenote_rt::ensure;

use crate::dsl::blocks;
use crate::dsl::receive::{NewReceive, ReceivePoint};

/// Keys that the end of a receive removes. Those of the stream's features are left behind, as
/// OpenZFS does: readers look at `toguid` first.
const REMOVED: [&str; 7] = [
    key::RESUME_FROMGUID,
    key::RESUME_OBJECT,
    key::RESUME_OFFSET,
    key::RESUME_BYTES,
    key::RESUME_TOGUID,
    key::RESUME_TONAME,
    key::RESUME_REDACT_SNAPS,
];

/// Features that the sender of the rest must use again.
const FEATURES: [(StreamFeatures, &str); 4] = [
    (StreamFeatures::LARGE_BLOCKS, key::RESUME_LARGEBLOCKOK),
    (StreamFeatures::EMBED_DATA, key::RESUME_EMBEDOK),
    (StreamFeatures::COMPRESSED, key::RESUME_COMPRESSOK),
    (StreamFeatures::RAW, key::RESUME_RAWOK),
];

/// State of a receive that can be resumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Saved {
    pub(crate) to_guid: u64,
    /// 0 for a full stream.
    pub(crate) from_guid: u64,
    pub(crate) point: ReceivePoint,
}

/// Adds the keys to a new dataset.
pub(crate) fn add(tx: &mut Tx<'_>, dataset: u64, new: &NewReceive) -> TxResult<()> {
    blocks::zapify(tx, dataset)?;
    if new.from_guid != 0 {
        zap::insert(tx, dataset, key::RESUME_FROMGUID, new.from_guid)?;
    }
    zap::insert(tx, dataset, key::RESUME_TOGUID, new.to_guid)?;
    let name: Vec<u8> = new.sender_name.iter().copied().chain([0]).collect();
    zap::insert(tx, dataset, key::RESUME_TONAME, Value::bytes_of(&name))?;
    put_point(tx, dataset, ReceivePoint::START)?;
    if let Some(guids) = &new.redaction.of_source {
        zap::insert(tx, dataset, key::RESUME_REDACT_SNAPS, Value::words_of(guids))?;
    }
    for (feature, name) in FEATURES {
        if new.features.contains(feature) {
            zap::insert(tx, dataset, name, 1)?;
        }
    }
    Ok(())
}

/// Returns the saved state, `None` if the dataset cannot be resumed.
pub(crate) fn saved(tx: &mut Tx<'_>, dataset: u64) -> TxResult<Option<Saved>> {
    let mut number =
        |name| extra_value(tx, dataset, name).map(|value| value.and_then(|value| value.first()));
    let Some(to_guid) = number(key::RESUME_TOGUID)? else { return Ok(None) };
    let from_guid = number(key::RESUME_FROMGUID)?.unwrap_or(0);
    let start = ReceivePoint::START;
    let point = ReceivePoint {
        object: number(key::RESUME_OBJECT)?.unwrap_or(start.object),
        offset: number(key::RESUME_OFFSET)?.unwrap_or(start.offset),
        bytes: number(key::RESUME_BYTES)?.unwrap_or(start.bytes),
    };
    Ok(Some(Saved { to_guid, from_guid, point }))
}

/// Stores the point with the root of the head that carries the data in front of it.
pub(crate) fn store_point(tx: &mut Tx<'_>, dataset: u64, point: ReceivePoint) -> TxResult<()> {
    let Some(before) = saved(tx, dataset)? else { return Ok(()) };
    let place = |point: ReceivePoint| (point.object, point.offset);
    let is_ahead = place(before.point) <= place(point);
    ensure!("RC2", is_ahead, "dataset {dataset}: {point:?} after {:?}", before.point);
    put_point(tx, dataset, point)
}

fn put_point(tx: &mut Tx<'_>, dataset: u64, point: ReceivePoint) -> TxResult<()> {
    zap::update(tx, dataset, key::RESUME_OBJECT, point.object)?;
    zap::update(tx, dataset, key::RESUME_OFFSET, point.offset)?;
    zap::update(tx, dataset, key::RESUME_BYTES, point.bytes)
}

/// Removes the keys at the end of a receive.
pub(crate) fn remove(tx: &mut Tx<'_>, dataset: u64) -> TxResult<()> {
    for name in REMOVED {
        if extra_value(tx, dataset, name)?.is_some() {
            zap::remove(tx, dataset, name)?;
        }
    }
    Ok(())
}
