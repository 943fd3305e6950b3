//! Begins a receive: one transaction on the MOS (spec 07 B9.3).

use std::collections::BTreeSet;
use std::sync::Arc;

use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::dsl::DatasetFlags;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::stream::{BeginFlags, StreamFeatures};
use cenote_ondisk::zap::Value;
use cenote_pool::keys::KeyStore;

use crate::dsl::api::keys::KeyPlan;
use crate::dsl::receive::{NewReceive, RECV, ReceivePoint, ReceiveRefusal, check, resume};
use crate::dsl::{
    Effects, Env, OpError, blocks, create, crypto, get_dataset, history, names, origin_snapshot,
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
    /// Whether the object set of the target or origin has another shape than that of a raw stream.
    pub(crate) has_other_root: bool,
    /// Loaded keys.
    pub(crate) keys: Arc<KeyStore>,
    /// Keys for a new dataset that is not raw, if it is to be encrypted.
    pub(crate) plan: Option<KeyPlan>,
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
    /// Dir and key object of a new dataset that got the planned keys.
    pub(crate) installed: Option<(u64, u64)>,
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
    if facts.has_other_root {
        return Err(ReceiveRefusal::RawWithout("meta-dnode").into());
    }
    let has_other_kind = facts.kind.is_some_and(|kind| kind != new.kind);
    if has_other_kind && !(new.is_full() && new.choices.is_forced) {
        return Err(ReceiveRefusal::Kind(new.kind.id()).into());
    }
    if new.is_resuming() {
        return resume_receive(tx, env, new, facts);
    }
    let begun = match names::head(tx, &new.target) {
        Ok(target) => into_existing(tx, env, new, facts, target)?,
        Err(step) if names::is_missing(&step) => into_new(tx, env, new, facts)?,
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
    if new.choices.is_resumable {
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
    check::existing(tx, env, new, facts, (target, &head))?;
    let source = if new.is_full() {
        None
    } else {
        let source = check::find_source(tx, &head, new.from_guid)?;
        let is_behind = new.is_raw() && head.prev_snap_obj != source;
        if !new.choices.is_forced && (facts.is_modified || is_behind) {
            return Err(ReceiveRefusal::Modified.into());
        }
        check::source(tx, env, new, facts, source)?;
        // Snapshots after the source have its contents, if nothing was modified.
        Some(if new.choices.is_forced { source } else { head.prev_snap_obj })
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
    Ok(Begun {
        object,
        is_child: true,
        is_empty: source.is_none(),
        start: ReceivePoint::START,
        installed: None,
    })
}

/// Creates the target.
fn into_new(tx: &mut Tx<'_>, env: &Env, new: &NewReceive, facts: &Facts) -> TxResult<Begun> {
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
            check::source(tx, env, new, facts, object)?;
            Some(object)
        }
    };
    if let Some((parent, _)) = names::Name::parse(&new.target).split_last() {
        let parent = names::dir(tx, parent)?;
        check::snapshot_limit(tx, env, parent)?;
    }
    let object = create::unlogged(tx, env, &new.target, origin)?;
    let mut installed = None;
    match (origin, new.raw_keys(), &facts.plan) {
        (None, Some(sent), _) => {
            let dir = get_dataset(tx, object)?.dir_obj;
            crypto::make_root(tx, dir, &sent.keys, "prompt")?;
            crypto::mark(tx, object)?;
        }
        (None, _, Some(plan)) => {
            if new.features.contains(StreamFeatures::EMBED_DATA) {
                return Err(ReceiveRefusal::EmbeddedOntoEncrypted.into());
            }
            installed = Some(plan.install(tx, object)?);
        }
        _ => {}
    }
    settings::apply_new(tx, env, object, &new.choices.props)?;
    Ok(Begun {
        object,
        is_child: false,
        is_empty: origin.is_none(),
        start: ReceivePoint::START,
        installed,
    })
}

/// Continues an interrupted receive.
fn resume_receive(tx: &mut Tx<'_>, env: &Env, new: &NewReceive, facts: &Facts) -> TxResult<Begun> {
    let (object, is_child, saved) = check::resumed(tx, new, facts)?;
    let phys = get_dataset(tx, object)?;
    if phys.bp.is_hole() {
        return Err(ReceiveRefusal::ResumeMismatch("the dataset has no object set").into());
    }
    history::log(tx, env, "resume receive", object, "")?;
    Ok(Begun { object, is_child, is_empty: false, start: saved.point, installed: None })
}
