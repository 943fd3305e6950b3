//! Checks before a receive begins (spec 07 B9.2).

use cenote_codec::crypto::{KEY_VERSION_CURRENT, KeyFormat};
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::{DatasetPhys, key};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::stream::{BeginFlags, StreamFeatures};
use cenote_pool::mos::extra_value;
use cenote_rt::tunables;

use crate::admin::is_maintained;
use crate::dsl::counts::{self, Count};
use crate::dsl::crypto::{self, StoredKeys};
use crate::dsl::receive::begin::Facts;
use crate::dsl::receive::{NewReceive, ReceiveRefusal, resume};
use crate::dsl::{Env, OpError, features, get_dataset, get_dir, names, redaction, snapshot};

/// Features of streams that can be received, and the pool features that they need.
const NEEDS: [(StreamFeatures, Option<&str>); 12] = [
    (StreamFeatures::SA_SPILL, None),
    (StreamFeatures::RESUMING, None),
    (StreamFeatures::COMPRESSED, None),
    (StreamFeatures::SWITCH_TO_LARGE_BLOCKS, None),
    (StreamFeatures::EMBED_DATA, Some("embedded_data")),
    (StreamFeatures::LZ4, Some("lz4_compress")),
    (StreamFeatures::LARGE_BLOCKS, Some("large_blocks")),
    (StreamFeatures::LARGE_DNODE, Some("large_dnode")),
    (StreamFeatures::ZSTD, Some("zstd_compress")),
    (StreamFeatures::LONGNAME, Some("longname")),
    (StreamFeatures::REDACTED, Some("redacted_datasets")),
    (StreamFeatures::RAW, Some("encryption")),
];

/// Most redaction snapshots of a dataset: its list is one value of a ZAP.
const REDACTION_SNAPSHOTS_MAX: usize = 1024;

/// Features of streams that are known, and cannot be received.
const REFUSED: [(StreamFeatures, &str); 3] = [
    (StreamFeatures::DEDUP, "a deduplicated stream (convert it with 'zstream redup')"),
    (StreamFeatures::LARGE_MICROZAP, "a stream with large micro ZAPs"),
    (StreamFeatures::HOLDS, "a substream with holds"),
];

/// Refuses streams with features that are unknown, cannot be received, or need a feature that is
/// not enabled on the pool.
pub(super) fn features(tx: &mut Tx<'_>, new: &NewReceive) -> TxResult<()> {
    if !matches!(new.kind, ObjSetType::Zfs | ObjSetType::Zvol) {
        return Err(ReceiveRefusal::Kind(new.kind.id()).into());
    }
    if let Some((_, what)) = REFUSED.iter().find(|(bit, _)| new.features.intersects(*bit)) {
        return Err(ReceiveRefusal::NotSupported(what).into());
    }
    if new.is_redacted() && new.redaction.of_snapshot.is_none() {
        return Err(ReceiveRefusal::NoRedactionSnapshots.into());
    }
    raw(new)?;
    let known = NEEDS.iter().fold(StreamFeatures::empty(), |known, (bit, _)| known.union(*bit));
    let lists = [&new.redaction.of_snapshot, &new.redaction.of_source];
    if lists.into_iter().flatten().any(|guids| guids.len() > REDACTION_SNAPSHOTS_MAX) {
        return Err(OpError::TooLong.into());
    }
    let unknown = new.features.difference(known);
    if !unknown.is_empty() {
        return Err(ReceiveRefusal::UnknownFeatures(unknown.bits()).into());
    }
    let needed = NEEDS.iter().filter(|(bit, _)| new.features.contains(*bit));
    let needed = needed.filter_map(|(_, feature)| *feature);
    for feature in needed.chain(new.choices.is_resumable.then_some("extensible_dataset")) {
        if !is_maintained(features::known(feature)) || !features::is_enabled(tx, feature)? {
            return Err(ReceiveRefusal::FeatureDisabled(feature).into());
        }
    }
    Ok(())
}

/// Checks what a raw stream says of its keys.
fn raw(new: &NewReceive) -> TxResult<()> {
    if !new.is_raw() {
        return Ok(());
    }
    if new.features.contains(StreamFeatures::EMBED_DATA) {
        return Err(ReceiveRefusal::EmbeddedOntoEncrypted.into());
    }
    if !new.flags.contains(BeginFlags::SPILL_BLOCK) {
        return Err(ReceiveRefusal::NoSpillFlags.into());
    }
    let keys = new.keys.as_ref().ok_or(ReceiveRefusal::RawWithout("keys"))?;
    if !keys.root.is_possible() {
        return Err(ReceiveRefusal::RawWithout("meta-dnode").into());
    }
    let StoredKeys { wrapped, format, pbkdf2 } = &keys.keys;
    if wrapped.version != KEY_VERSION_CURRENT {
        return Err(ReceiveRefusal::KeyVersion(wrapped.version).into());
    }
    if wrapped.suite().is_err() {
        return Err(ReceiveRefusal::Suite(wrapped.suite).into());
    }
    let format = KeyFormat::from_value(*format);
    let is_passphrase = matches!(format, Ok(KeyFormat::Passphrase));
    let numbers = [pbkdf2.salt, pbkdf2.iterations];
    if format.is_err() || numbers.iter().any(|number| (*number != 0) != is_passphrase) {
        return Err(ReceiveRefusal::RawWithout("format of the key").into());
    }
    Ok(())
}

/// Checks that the stream can be received into a dataset of this dir, or into a clone of one: a raw
/// stream if the key is the same, another stream if the key is loaded.
pub(super) fn encryption(
    tx: &mut Tx<'_>,
    new: &NewReceive,
    facts: &Facts,
    dir: u64,
) -> TxResult<()> {
    match (crypto::guid_of(tx, dir)?, new.raw_keys()) {
        (None, Some(_)) => Err(ReceiveRefusal::RawOntoPlain.into()),
        (Some(guid), Some(sent)) if guid != sent.keys.wrapped.guid => {
            Err(ReceiveRefusal::OtherKey.into())
        }
        (None, None) | (Some(_), Some(_)) => Ok(()),
        (Some(_), None) if new.features.contains(StreamFeatures::EMBED_DATA) => {
            Err(ReceiveRefusal::EmbeddedOntoEncrypted.into())
        }
        (Some(_), None) => {
            let found = crypto::key_and_guid(tx, dir)?;
            let keys = found.and_then(|(object, guid)| facts.keys.block_keys(object, guid));
            if keys.is_some() { Ok(()) } else { Err(ReceiveRefusal::KeyNotLoaded.into()) }
        }
    }
}

/// Checks that the IVs of the source of a raw increment are those of the sender's: else blocks
/// that are not sent are not those of the sender.
fn iv_set(tx: &mut Tx<'_>, new: &NewReceive, source: u64) -> TxResult<()> {
    let Some(sent) = new.raw_keys().filter(|_| !new.is_full()) else {
        return Ok(());
    };
    if tunables::DISABLE_IVSET_GUID_CHECK.get() != 0 {
        return Ok(());
    }
    let theirs = sent.from_ivset.filter(|guid| *guid != 0);
    match (theirs, crypto::ivset_of(tx, source)?) {
        (Some(theirs), Some(ours)) if theirs == ours => Ok(()),
        (Some(_), Some(_)) => Err(ReceiveRefusal::OtherIvSet.into()),
        _ => Err(ReceiveRefusal::NoIvSet.into()),
    }
}

/// Checks a source or origin whose clone is received into.
pub(super) fn source(
    tx: &mut Tx<'_>,
    env: &Env,
    new: &NewReceive,
    facts: &Facts,
    object: u64,
) -> TxResult<()> {
    let phys = get_dataset(tx, object)?;
    // Its branch would begin in the txg of its source.
    if phys.creation_txg >= env.txg {
        return Err(OpError::SameTxg.into());
    }
    encryption(tx, new, facts, phys.dir_obj)?;
    iv_set(tx, new, object)?;
    let active = snapshot::feature_keys(tx, object)?;
    let has_large_blocks = active.iter().any(|(feature, _)| *feature == "large_blocks");
    if !new.is_full()
        && let Some(of_source) = redaction::snapshots_of(tx, object)?
        && !new.fits_redacted(&of_source)
    {
        return Err(ReceiveRefusal::RedactedSource.into());
    }
    if has_large_blocks && !new.is_full() && !new.features.contains(StreamFeatures::LARGE_BLOCKS) {
        return Err(ReceiveRefusal::LargeBlockMismatch.into());
    }
    Ok(())
}

/// Checks an existing target.
pub(super) fn existing(
    tx: &mut Tx<'_>,
    env: &Env,
    new: &NewReceive,
    facts: &Facts,
    (object, head): (u64, &DatasetPhys),
) -> TxResult<()> {
    if new.flags.contains(BeginFlags::CLONE) || new.origin.is_some() {
        return Err(ReceiveRefusal::OriginForExisting.into());
    }
    if head.is_inconsistent() || resume::saved(tx, object)?.is_some() {
        return Err(OpError::Busy.into());
    }
    if names::found(names::head(tx, &new.child()))? {
        return Err(OpError::Busy.into());
    }
    if names::has_snapshot(tx, head, &new.snapshot)? {
        return Err(OpError::Exists.into());
    }
    let dir = get_dir(tx, head.dir_obj)?;
    if new.kind == ObjSetType::Zvol && zap::len(tx, dir.child_dir_zapobj)? != 0 {
        return Err(ReceiveRefusal::VolumeWithChildren.into());
    }
    if new.is_full() && !new.choices.is_forced {
        return Err(ReceiveRefusal::TargetExists.into());
    }
    if new.is_full() && (new.is_raw() || crypto::key_object(tx, head.dir_obj)?.is_some()) {
        return Err(ReceiveRefusal::ReplacesEncrypted.into());
    }
    encryption(tx, new, facts, head.dir_obj)?;
    snapshot_limit(tx, env, head.dir_obj)
}

/// Refuses a receive whose snapshot would exceed a limit at its end.
pub(super) fn snapshot_limit(tx: &mut Tx<'_>, env: &Env, dir: u64) -> TxResult<()> {
    counts::check(tx, env, dir, (Count::Snapshots, 1), 0)
}

/// Finds the snapshot of a head that is the source of an increment, the newest first.
pub(crate) fn find_source(tx: &mut Tx<'_>, head: &DatasetPhys, guid: u64) -> TxResult<u64> {
    let mut object = head.prev_snap_obj;
    while object != 0 {
        let snapshot = get_dataset(tx, object)?;
        if snapshot.dir_obj != head.dir_obj {
            break;
        }
        if snapshot.guid == guid {
            return Ok(object);
        }
        object = snapshot.prev_snap_obj;
    }
    Err(ReceiveRefusal::NoSource { guid }.into())
}

/// Finds the dataset whose interrupted receive the stream continues, and checks that it does.
/// Returns it with whether it is `%recv`, and its state.
pub(super) fn resumed(
    tx: &mut Tx<'_>,
    new: &NewReceive,
    facts: &Facts,
) -> TxResult<(u64, bool, resume::Saved)> {
    let child = names::head(tx, &new.child());
    let (object, is_child) = match child {
        Ok(object) => (object, true),
        Err(step) if names::is_missing(&step) => (names::head(tx, &new.target)?, false),
        Err(step) => return Err(step),
    };
    let mismatch = |what| Err(ReceiveRefusal::ResumeMismatch(what).into());
    let phys = get_dataset(tx, object)?;
    if !phys.is_inconsistent() {
        return mismatch("the dataset is not partially received");
    }
    let Some(saved) = resume::saved(tx, object)? else {
        return mismatch("the dataset has no resume point");
    };
    if saved.to_guid != new.to_guid {
        return mismatch("another snapshot is being received");
    }
    if facts.owned.contains(&object) {
        return Err(OpError::Busy.into());
    }
    if get_dataset(tx, phys.prev_snap_obj)?.dir_obj == phys.dir_obj {
        return mismatch("the dataset has a snapshot");
    }
    if saved.from_guid != new.from_guid {
        return mismatch("it has another source");
    }
    if is_child && new.is_full() && !new.choices.is_forced {
        return Err(ReceiveRefusal::ResumeExists.into());
    }
    if new.resumes_at != Some((saved.point.object, saved.point.offset)) {
        return mismatch("the stream begins at another point");
    }
    if is_child {
        // Its name may have been taken since.
        let target = names::head(tx, &new.target)?;
        let head = get_dataset(tx, target)?;
        if names::has_snapshot(tx, &head, &new.snapshot)? {
            return Err(OpError::Exists.into());
        }
    }
    if extra_value(tx, object, key::RESUME_RAWOK)?.is_some() != new.is_raw() {
        return mismatch("only one of both is raw");
    }
    encryption(tx, new, facts, phys.dir_obj)?;
    if !new.is_full() {
        iv_set(tx, new, phys.prev_snap_obj)?;
    }
    Ok((object, is_child, saved))
}
