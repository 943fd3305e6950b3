//! Begins a receive: one transaction on the MOS (spec 07 B9.3).

use std::collections::BTreeSet;

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::DatasetFlags;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::stream::{BeginFlags, StreamFeatures};
use cenote_ondisk::zap::Value;

use crate::dsl::receive::{NewReceive, RECV, ReceivePoint, ReceiveRefusal, check, resume};
use crate::dsl::{
    Effects, Env, OpError, blocks, create, get_dataset, history, names, origin_snapshot,
    put_dataset, settings,
};

/// State outside the MOS that the checks need.
#[derive(Debug, Clone, Default)]
pub(crate) struct Facts {
    /// Owned heads.
    pub(crate) owned: BTreeSet<u64>,
    /// Whether the existing target has changed since the source of the increment.
    pub(crate) is_modified: bool,
    /// Type of the existing target, or of the origin.
    pub(crate) kind: Option<ObjSetType>,
}

/// A receive whose dataset exists.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Begun {
    /// The dataset that is received into.
    pub(crate) object: u64,
    pub(crate) is_child: bool,
    /// Its object set is empty and is to be created in this txg.
    pub(crate) is_empty: bool,
    pub(crate) start: ReceivePoint,
}

/// Begins a receive.
pub(crate) fn begin(
    tx: &mut Tx<'_>,
    env: &Env,
    effects: &mut Effects,
    new: &NewReceive,
    facts: &Facts,
) -> TxResult<Begun> {
    check::features(tx, new)?;
    names::check_new(env, &format!("{}@{}", new.target, new.snapshot))?;
    let has_other_kind = facts.kind.is_some_and(|kind| kind != new.kind);
    if has_other_kind && !(new.is_full() && new.is_forced) {
        return Err(ReceiveRefusal::Kind(new.kind.id()).into());
    }
    if new.is_resuming() {
        return resume_receive(tx, env, new, facts);
    }
    let begun = match names::head(tx, &new.target) {
        Ok(target) => into_existing(tx, env, new, facts, target)?,
        Err(step) if names::is_missing(&step) => into_new(tx, env, new)?,
        Err(step) => return Err(step),
    };
    mark(tx, new, begun.object)?;
    if !begun.is_empty {
        effects.cloned.push(begun.object);
    }
    history::log(tx, env, "receive", begun.object, "")?;
    Ok(begun)
}

/// Marks the new dataset as one that is being received (RC1), and stores what a resumption needs.
fn mark(tx: &mut Tx<'_>, new: &NewReceive, object: u64) -> TxResult<()> {
    let mut phys = get_dataset(tx, object)?;
    phys.flags |= DatasetFlags::INCONSISTENT;
    if new.flags.contains(BeginFlags::CI_DATA) {
        phys.flags |= DatasetFlags::CI_DATASET;
    }
    put_dataset(tx, object, &phys)?;
    if new.is_resumable {
        resume::add(tx, object, new)?;
    }
    let activated =
        [(StreamFeatures::LARGE_BLOCKS, "large_blocks"), (StreamFeatures::LONGNAME, "longname")];
    for (feature, name) in activated {
        if new.features.contains(feature) {
            blocks::activate(tx, object, name)?;
        }
    }
    // What the source lacks, the stream may have.
    blocks::deactivate(tx, object, "redacted_datasets")?;
    if let (true, Some(guids)) = (new.is_redacted(), &new.redaction.of_snapshot) {
        blocks::activate_with(tx, object, "redacted_datasets", Value::words_of(guids))?;
    }
    Ok(())
}

/// Creates `%recv` below an existing target.
fn into_existing(
    tx: &mut Tx<'_>,
    env: &Env,
    new: &NewReceive,
    facts: &Facts,
    target: u64,
) -> TxResult<Begun> {
    let head = get_dataset(tx, target)?;
    check::existing(tx, env, new, target, &head)?;
    let source = if new.is_full() {
        None
    } else {
        let source = check::find_source(tx, &head, new.from_guid)?;
        if !new.is_forced && facts.is_modified {
            return Err(ReceiveRefusal::Modified.into());
        }
        check::source(tx, env, new, source)?;
        // Snapshots after the source have its contents, if nothing was modified.
        Some(if new.is_forced { source } else { head.prev_snap_obj })
    };
    let from = match source {
        Some(source) if get_dataset(tx, source)?.creation_txg >= env.txg => {
            return Err(OpError::SameTxg.into());
        }
        Some(source) => source,
        None => origin_snapshot(tx)?,
    };
    let dir = create::dir(tx, env, head.dir_obj, RECV)?;
    let object = create::head(tx, env, dir, from)?;
    Ok(Begun { object, is_child: true, is_empty: source.is_none(), start: ReceivePoint::START })
}

/// Creates the target.
fn into_new(tx: &mut Tx<'_>, env: &Env, new: &NewReceive) -> TxResult<Begun> {
    let is_clone = new.flags.contains(BeginFlags::CLONE);
    let origin = match &new.origin {
        None if is_clone => return Err(ReceiveRefusal::NeedsOrigin.into()),
        None if !new.is_full() => return Err(ReceiveRefusal::TargetMissing.into()),
        None => None,
        Some(_) if new.is_full() && !new.flags.contains(BeginFlags::FREERECORDS) => {
            return Err(ReceiveRefusal::NoFreeRecords.into());
        }
        Some(origin) => {
            names::check_pool(env, origin)?;
            let object = names::snapshot_of(tx, origin)?;
            let found = get_dataset(tx, object)?.guid;
            let guid = new.from_guid;
            if !new.is_full() && found != guid {
                return Err(ReceiveRefusal::WrongOrigin { guid, found }.into());
            }
            check::source(tx, env, new, object)?;
            Some(object)
        }
    };
    if let Some((parent, _)) = names::Name::parse(&new.target).split_last() {
        let parent = names::dir(tx, parent)?;
        check::not_encrypted(tx, parent)?;
        check::snapshot_limit(tx, env, parent)?;
    }
    let object = create::unlogged(tx, env, &new.target, origin)?;
    settings::apply_new(tx, env, object, &new.props)?;
    Ok(Begun { object, is_child: false, is_empty: origin.is_none(), start: ReceivePoint::START })
}

/// Continues an interrupted receive.
fn resume_receive(tx: &mut Tx<'_>, env: &Env, new: &NewReceive, facts: &Facts) -> TxResult<Begun> {
    let (object, is_child, saved) =
        check::resumed(tx, new, |object| facts.owned.contains(&object))?;
    let phys = get_dataset(tx, object)?;
    if phys.bp.is_hole() {
        return Err(ReceiveRefusal::ResumeMismatch("the dataset has no object set").into());
    }
    history::log(tx, env, "resume receive", object, "")?;
    Ok(Begun { object, is_child, is_empty: false, start: saved.point })
}
