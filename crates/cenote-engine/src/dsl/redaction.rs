//! Builds the lists of redaction bookmarks (spec 08 §29).
//!
//! ```text
//!   begin     bookmark, with an empty list: incomplete
//!   extend    a part of the entries, one txg each; the header says how far the list goes
//!   extend    the last part: complete
//! ```
//!
//! A list that was not finished stays incomplete, and nothing is sent without its blocks. A new
//! begin with the same snapshots empties it and starts over; to find the entries again takes
//! seconds, and nobody has to know where another program had stopped.

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::redaction::{
    REDACTION_BLOCK_SIZE, REDACTION_ENTRY_LEN, RedactionEntry, RedactionPhys,
};
use cenote_pool::dsl::bookmark::find_bookmark;
use cenote_pool::mos::extra_value;
use cenote_rt::Error;

use crate::dsl::{Env, OpError, bookmark, features, get_dataset, names};

/// Header bytes for which the bonus buffer has room.
const BONUS_MAX: usize = 320;
/// Header bytes for which a spill block has room.
const SPILL_MAX: usize = 128 << 10;
/// Unit of spill blocks.
const SECTOR: usize = 512;

/// A redaction that has begun.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BegunRedaction {
    /// Object of the list.
    pub list: u64,
    /// Txg in which the redacted snapshot was taken.
    pub txg: u64,
    /// Objects of the redacted snapshot and of the redaction snapshots.
    pub objects: Vec<u64>,
}

/// A part of a redaction list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedactionPart {
    /// Number of entries before these.
    pub before: u64,
    /// The entries.
    pub entries: Vec<RedactionEntry>,
    /// Whether they are the last ones.
    pub is_last: bool,
}

/// Returns the guids of the redaction snapshots of a dataset that was received redacted.
pub(super) fn snapshots_of(tx: &mut Tx<'_>, dataset: u64) -> TxResult<Option<Vec<u64>>> {
    let feature = features::known("redacted_datasets");
    Ok(extra_value(tx, dataset, feature.guid)?.map(|value| value.words()))
}

/// Begins to redact the snapshot `source` with respect to `snapshots`, in the bookmark `name`.
pub(crate) fn begin(
    tx: &mut Tx<'_>,
    env: &Env,
    name: &str,
    source: &str,
    snapshots: &[String],
) -> TxResult<BegunRedaction> {
    // With respect to no snapshot, a stream would be without all blocks.
    if snapshots.is_empty() {
        return Err(OpError::Value.into());
    }
    names::check_pool(env, source)?;
    let object = names::snapshot_of(tx, source)?;
    let (dataset, short) = bookmark::parts(name)?;
    if snapshots_of(tx, object)?.is_some() {
        return Err(OpError::IsRedacted.into());
    }
    let txg = get_dataset(tx, object)?.creation_txg;
    let (mut guids, mut objects) = (Vec::new(), vec![object]);
    for name in snapshots {
        names::check_pool(env, name)?;
        let snapshot = names::snapshot_of(tx, name)?;
        if snapshot == object || !bookmark::is_before(tx, object, txg, snapshot)? {
            return Err(OpError::NotAnAncestor.into());
        }
        if snapshots_of(tx, snapshot)?.is_some() {
            return Err(OpError::IsRedacted.into());
        }
        guids.push(get_dataset(tx, snapshot)?.guid);
        objects.push(snapshot);
    }
    let head = names::head(tx, dataset)?;
    let Some((_, mark)) = find_bookmark(tx, head, short)? else {
        if !features::is_enabled(tx, "redaction_bookmarks")? {
            return Err(OpError::Unsupported.into());
        }
        let list = create(tx, &RedactionPhys { guids, ..RedactionPhys::default() })?;
        bookmark::create_redacted(tx, env, name, source, list)?;
        return Ok(BegunRedaction { list, txg, objects });
    };
    let list = mark.redaction_obj;
    if list == 0 || mark.guid != get_dataset(tx, object)?.guid {
        return Err(OpError::Exists.into());
    }
    let header = header(tx, list)?;
    let is_same =
        header.guids.len() == guids.len() && guids.iter().all(|guid| header.guids.contains(guid));
    if !is_same {
        return Err(OpError::OtherRedaction.into());
    }
    if header.is_complete() {
        return Err(OpError::Exists.into());
    }
    tx.free_range(list, 0, None)?;
    put_header(tx, list, &RedactionPhys { guids: header.guids, ..RedactionPhys::default() })?;
    Ok(BegunRedaction { list, txg, objects })
}

/// Adds entries to the list of the bookmark `name`.
pub(crate) fn extend(tx: &mut Tx<'_>, name: &str, list: u64, part: &RedactionPart) -> TxResult<()> {
    let (dataset, short) = bookmark::parts(name)?;
    let head = names::head(tx, dataset)?;
    let found = find_bookmark(tx, head, short)?.filter(|(_, mark)| mark.redaction_obj == list);
    if found.is_none() {
        return Err(OpError::NotFound.into());
    }
    let mut header = header(tx, list)?;
    if header.is_complete() || header.num_entries != part.before {
        // Another command builds the same list.
        return Err(OpError::Busy.into());
    }
    let encoded: Option<Vec<_>> = part.entries.iter().map(RedactionEntry::encode).collect();
    let bytes = encoded.ok_or(OpError::Value)?.concat();
    tx.write(list, part.before.saturating_mul(REDACTION_ENTRY_LEN as u64), &bytes)?;
    header.num_entries = part.before.saturating_add(part.entries.len() as u64);
    if let Some(last) = part.entries.last() {
        (header.last_object, header.last_blkid) = (last.object, last.end().unwrap_or(u64::MAX));
    }
    if part.is_last {
        (header.last_object, header.last_blkid) = (u64::MAX, u64::MAX);
    }
    put_header(tx, list, &header)
}

/// Creates a complete list without entries, for a bookmark of a redacted snapshot.
pub(super) fn create_complete(tx: &mut Tx<'_>, guids: Vec<u64>) -> TxResult<u64> {
    create(
        tx,
        &RedactionPhys { last_object: u64::MAX, last_blkid: u64::MAX, num_entries: 0, guids },
    )
}

fn create(tx: &mut Tx<'_>, header: &RedactionPhys) -> TxResult<u64> {
    let len = header.encode().len();
    let needs_spill = len > BONUS_MAX;
    if len > SPILL_MAX || needs_spill && !features::is_enabled(tx, "redaction_list_spill")? {
        return Err(OpError::TooLong.into());
    }
    let metadata = ObjectType::UINT64_METADATA;
    let spec = ObjectSpec::new(metadata, REDACTION_BLOCK_SIZE.into());
    let spec = if needs_spill {
        spec.with_bonus(metadata, 0).with_spill()
    } else {
        spec.with_bonus(metadata, len)
    };
    let list = tx.allocate(&spec)?;
    put_header(tx, list, header)?;
    Ok(list)
}

/// Frees a list.
pub(super) fn free(tx: &mut Tx<'_>, list: u64) -> TxResult<()> {
    tx.free(list)
}

/// Counts the features of a list that a head gets (1) or loses (-1).
pub(super) fn count(tx: &mut Tx<'_>, list: u64, delta: i64) -> TxResult<()> {
    features::add(tx, "redaction_bookmarks", delta)?;
    if tx.spill(list)?.is_some() {
        features::add(tx, "redaction_list_spill", delta)?;
    }
    Ok(())
}

fn header(tx: &mut Tx<'_>, list: u64) -> TxResult<RedactionPhys> {
    let decoded = match tx.spill(list)? {
        Some(spill) => RedactionPhys::decode(&spill),
        None => RedactionPhys::decode(&tx.bonus(list)?),
    };
    decoded.map_err(|cause| Error::corrupt(cause).in_object(0, list).into())
}

fn put_header(tx: &mut Tx<'_>, list: u64, header: &RedactionPhys) -> TxResult<()> {
    let mut bytes = header.encode();
    if bytes.len() <= BONUS_MAX {
        return tx.set_bonus(list, &bytes);
    }
    bytes.resize(bytes.len().next_multiple_of(SECTOR), 0);
    tx.set_spill(list, Some(&bytes))
}
