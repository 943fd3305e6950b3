//! Changes of the dataset layer: functions over a transaction on the MOS, in syncing context.
//!
//! ```text
//!   create, clone, snapshot, destroy, promote, swap, rename   the tree     (spec 04 §14)
//!   bookmark, redaction, hold, settings, deleg                its labels   (spec 04 §7, §15, §16)
//!   crypto                     keys of encrypted datasets                  (spec 08 §2, §14)
//!   receive                    begins and ends receives                    (spec 07 B9)
//!   blocks                     what heads gained and lost                  (spec 04 §9)
//!   space, room                who is charged for what, what is left       (spec 04 §17)
//!   counts, features           reference counts                            (spec 04 §18, 01 §11)
//!   history                    what was done                               (spec 04 §23)
//! ```
//!
//! Each function either makes all of its changes, or fails and its transaction is dropped. Checks
//! come first and return the problem of the request (`OpError`); an impossible number (a count
//! below zero, a missing entry) is `Kind::Invariant` and stops the pool before it writes.
//!
//! Invariants
//! * SZ1  No size of a dataset or a dir goes below zero.
//! * SZ2  A dir that is destroyed is charged nothing.
//! * FC1  A feature that is used is enabled, and its count is the number of its uses.
//! * SN1  Snapshots, heads and clones form a tree: what follows a snapshot names it as the one
//!   before, and a clone begins at its origin.
//! * SN2  Each snapshot and each dir has a name.
//! * SN3  A head is not older than its latest snapshot.
//! * CT1  Counts of file systems and snapshots never go below zero.

pub(crate) mod api;
pub(crate) mod blocks;
pub(crate) mod bookmark;
pub(crate) mod changed;
pub(crate) mod counts;
pub(crate) mod create;
pub(crate) mod crypto;
pub(crate) mod deleg;
pub(crate) mod destroy;
pub(crate) mod errors;
pub(crate) mod features;
pub(crate) mod history;
pub(crate) mod hold;
pub(crate) mod names;
pub(crate) mod opened;
pub(crate) mod operation;
pub(crate) mod promote;
pub(crate) mod props;
pub(crate) mod receive;
pub(crate) mod redaction;
pub(crate) mod rename;
pub(crate) mod room;
pub(crate) mod settings;
pub(crate) mod snapshot;
pub(crate) mod space;
pub(crate) mod swap;

use std::collections::BTreeSet;
use std::ops::Deref;
use std::sync::Arc;

use cenote_codec::crypto::BlockKeys;
use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::dsl::{DatasetPhys, DirPhys, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
pub(crate) use cenote_pool::dsl::dataset::get_dataset;
use cenote_pool::dsl::deleg::Requester;
pub(crate) use cenote_pool::dsl::dir::get_dir;
use cenote_pool::keys::RootKey;
use cenote_pool::mos::DIRECTORY;
pub(crate) use cenote_pool::mos::directory_object;
use cenote_rt::{Error, Kind};
use cenote_vdev::Tree;

use crate::dsl::opened::Opened;

/// Time and random numbers of an operation.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Context {
    /// The syncing txg.
    pub(crate) txg: u64,
    /// Seconds since 1970.
    pub(crate) now: u64,
    /// Nanoseconds since then.
    pub(crate) now_nanoseconds: u64,
    /// The first of a sequence of random numbers for guids.
    pub(crate) seed: u64,
}

impl Context {
    /// Returns the `index`th guid of this operation: random, not 0.
    pub(crate) fn guid(&self, index: u64) -> u64 {
        cenote_rt::Rng::seeded(self.seed.wrapping_add(index)).next_u64() | 1
    }

    /// Returns the `index`th guid in 56 bits.
    pub(crate) fn fsid_guid(&self, index: u64) -> u64 {
        self.guid(index) >> 8 | 1
    }
}

/// State other than the MOS that operations need.
pub(crate) struct Env {
    /// Time and random numbers.
    pub(crate) context: Context,
    /// The vdevs, for the allocated sizes of blocks.
    pub(crate) tree: Arc<Tree>,
    /// The config of the vdevs, as the tasks before this one left it.
    pub(crate) vdevs: VdevConfig,
    /// Name of the pool.
    pub(crate) pool: String,
    /// Name of this host, for the history.
    pub(crate) host: String,
    pub(crate) space: room::PoolSpace,
    /// Heads that this txg still writes: no snapshot or clone of them can be taken in it.
    pub(crate) unwritten: BTreeSet<u64>,
    /// Type of the parent of a new dataset, `None` if the parent does not exist.
    pub(crate) parent: Option<ObjSetType>,
    /// Open snapshots.
    pub(crate) opened: Arc<Opened>,
    /// Blocks of a tree that is destroyed at once, on pools without the queue.
    pub(crate) doomed: Vec<cenote_ondisk::blkptr::BlockPtr>,
    /// The user of the operation.
    pub(crate) requester: Requester,
    /// For a seeded bug.
    pub(crate) first_creator: Arc<deleg::FirstCreator>,
}

impl Deref for Env {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

/// Effects of an operation on open heads.
#[derive(Debug, Clone, Default)]
pub(crate) struct Effects {
    /// Destroyed heads.
    pub(crate) gone: Vec<u64>,
    /// Heads whose contents were replaced.
    pub(crate) replaced: Vec<u64>,
    /// New heads with the contents of another dataset, whose log they must not replay.
    pub(crate) cloned: Vec<u64>,
    /// Key objects that were destroyed, and dirs that are no longer encryption roots.
    pub(crate) lost_keys: Vec<u64>,
    pub(crate) lost_roots: Vec<u64>,
    /// Keys of key objects that can be opened from now on.
    pub(crate) new_keys: Vec<(u64, Arc<BlockKeys>)>,
    /// New keys of encryption roots, by dir; and dirs that gave their keys to another.
    pub(crate) new_roots: Vec<(u64, RootKey)>,
    pub(crate) moved_roots: Vec<(u64, u64)>,
    /// Dirs whose properties may have changed, and those of their descendants.
    pub(crate) settings_changed: Vec<u64>,
    /// Blocks of the intent logs of destroyed heads.
    pub(crate) logs: Vec<BlockPtr>,
    /// A scan that began: its start, and the bounds of the births of its blocks.
    pub(crate) begun_scan: Option<(u64, (u64, u64))>,
    /// A resilver began that writes also what was left to a later one.
    pub(crate) takes_deferred: bool,
    /// Leaves in service have every block that was born before this txg.
    pub(crate) scanned: Option<u64>,
    /// These leaves were given everything that was allocated before this txg.
    pub(crate) rebuilt: Option<(u64, Vec<u64>)>,
}

impl Effects {
    /// Adds the effects of a later part of the same operation.
    pub(crate) fn add(&mut self, later: Self) {
        // Named one by one, so that none is forgotten.
        let Self {
            gone,
            replaced,
            cloned,
            lost_keys,
            lost_roots,
            new_keys,
            new_roots,
            moved_roots,
            settings_changed,
            logs,
            begun_scan,
            takes_deferred,
            scanned,
            rebuilt,
        } = later;
        self.gone.extend(gone);
        self.replaced.extend(replaced);
        self.cloned.extend(cloned);
        self.lost_keys.extend(lost_keys);
        self.lost_roots.extend(lost_roots);
        self.new_keys.extend(new_keys);
        self.new_roots.extend(new_roots);
        self.moved_roots.extend(moved_roots);
        self.settings_changed.extend(settings_changed);
        self.logs.extend(logs);
        self.begun_scan = begun_scan.or(self.begun_scan);
        self.takes_deferred |= takes_deferred;
        self.scanned = scanned.or(self.scanned);
        self.rebuilt = rebuilt.or_else(|| self.rebuilt.take());
    }
}

/// Reasons to refuse a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// It already exists.
    #[error("dataset already exists")]
    Exists,
    /// It does not exist.
    #[error("dataset does not exist")]
    NotFound,
    /// The dataset is in use, or partially received.
    #[error("dataset is busy")]
    Busy,
    /// It was created in the same txg: retried in the next one.
    #[error("try again in the next txg")]
    SameTxg,
    /// Clones depend on it.
    #[error("snapshot has dependent clones")]
    HasClones,
    /// It has holds.
    #[error("snapshot is held")]
    Held,
    /// It has children.
    #[error("filesystem has children")]
    HasChildren,
    /// It has snapshots.
    #[error("filesystem has snapshots")]
    HasSnapshots,
    /// A limit on counts is reached.
    #[error("limit on file systems or snapshots is reached")]
    Limit,
    /// A quota would be exceeded.
    #[error("quota exceeded")]
    Quota,
    /// The pool is full.
    #[error("out of space")]
    NoSpace,
    /// The name is invalid.
    #[error("invalid name")]
    Name,
    /// The number is invalid.
    #[error("invalid value")]
    Value,
    /// It would be moved below itself.
    #[error("cannot be moved below itself")]
    Cycle,
    /// There are later snapshots or bookmarks.
    #[error("more recent snapshots or bookmarks exist")]
    NotLatest,
    /// The dataset is not a clone.
    #[error("not a cloned filesystem")]
    NotAClone,
    /// A volume cannot have children.
    #[error("parent is not a filesystem")]
    WrongParent,
    /// The name, or the resulting name of a descendant, is too long or too deep.
    #[error("name is too long")]
    NameTooLong,
    /// The name is that of another pool.
    #[error("dataset is in another pool")]
    OtherPool,
    /// The dataset is not a snapshot.
    #[error("not a snapshot")]
    NotASnapshot,
    /// The dataset is not a file system or volume.
    #[error("not a filesystem or volume")]
    NotAHead,
    /// The root file system can be neither destroyed nor renamed.
    #[error("operation does not apply to pools")]
    IsPool,
    /// It must not be promoted.
    #[error("dataset cannot be promoted")]
    NoPromote,
    /// There is no snapshot to roll back to.
    #[error("filesystem has no snapshots")]
    NoSnapshot,
    /// The property cannot be set this way.
    #[error("property cannot be set")]
    ReadOnlyProperty,
    /// The property does not exist.
    #[error("no such property")]
    NoProperty,
    /// A feature, or this program, does not support the value.
    #[error("property value is not supported")]
    Unsupported,
    /// A bookmark must be of an earlier state of the same dataset.
    #[error("source is not an ancestor of the bookmark's filesystem")]
    NotAnAncestor,
    /// The dataset was received redacted.
    #[error("the dataset is redacted")]
    IsRedacted,
    /// The bookmark has an unfinished redaction list of other snapshots.
    #[error("the redaction list of the bookmark is one of other snapshots")]
    OtherRedaction,
    /// The tag is already in use.
    #[error("tag already exists on this snapshot")]
    TagExists,
    /// There is no hold with this tag.
    #[error("no such tag on this snapshot")]
    NoTag,
    /// The dataset uses the key of another one, and would no longer be below it.
    #[error("the dataset uses the encryption key of another one")]
    OtherKey,
    /// The dataset is not encrypted.
    #[error("the dataset is not encrypted")]
    NotEncrypted,
    /// Another dataset is its encryption root.
    #[error("the dataset is not an encryption root")]
    NotKeyRoot,
    /// A clone uses the key of its origin.
    #[error("the key of a clone is that of its origin")]
    IsClone,
    /// There is no key to encrypt a new dataset with.
    #[error("no key is given, and the parent is not encrypted")]
    NoKey,
    /// A tag or value is too long.
    #[error("too long")]
    TooLong,
}

impl From<OpError> for Error {
    fn from(error: OpError) -> Self {
        let kind = match error {
            OpError::Exists | OpError::TagExists => Kind::Exists,
            OpError::NotFound | OpError::NoTag | OpError::NoSnapshot => Kind::NotFound,
            OpError::Unsupported => Kind::Unsupported,
            OpError::OtherKey => Kind::Permission,
            OpError::Limit | OpError::Quota => Kind::Quota,
            OpError::NoSpace => Kind::NoSpace,
            OpError::Busy
            | OpError::SameTxg
            | OpError::HasClones
            | OpError::Held
            | OpError::HasChildren
            | OpError::HasSnapshots
            | OpError::NotLatest => Kind::Busy,
            OpError::Name
            | OpError::Value
            | OpError::Cycle
            | OpError::NotAClone
            | OpError::WrongParent
            | OpError::NameTooLong
            | OpError::OtherPool
            | OpError::NotASnapshot
            | OpError::NotAHead
            | OpError::IsPool
            | OpError::NotEncrypted
            | OpError::NotKeyRoot
            | OpError::IsClone
            | OpError::NoKey
            | OpError::NoPromote
            | OpError::ReadOnlyProperty
            | OpError::NoProperty
            | OpError::NotAnAncestor
            | OpError::IsRedacted
            | OpError::OtherRedaction
            | OpError::TooLong => Kind::Invalid,
        };
        Self::new(kind, error)
    }
}

impl From<OpError> for TxStop {
    fn from(error: OpError) -> Self {
        Self::Fail(error.into())
    }
}

/// Stores a dir.
pub(crate) fn put_dir(tx: &mut Tx<'_>, object: u64, dir: &DirPhys) -> TxResult<()> {
    tx.set_bonus(object, &dir.encode())
}

/// Stores a dataset.
pub(crate) fn put_dataset(tx: &mut Tx<'_>, object: u64, dataset: &DatasetPhys) -> TxResult<()> {
    tx.set_bonus(object, &dataset.encode())
}

/// Returns the object of a required entry of the pool directory.
pub(crate) fn need_directory_object(tx: &mut Tx<'_>, name: &'static str) -> TxResult<u64> {
    directory_object(tx, name)?.ok_or_else(|| {
        let missing = cenote_pool::dsl::DslError::Missing { object: DIRECTORY, key: name };
        TxStop::Fail(Error::corrupt(missing).in_object(0, DIRECTORY))
    })
}

/// Returns the origin snapshot of datasets that are no clones.
pub(crate) fn origin_snapshot(tx: &mut Tx<'_>) -> TxResult<u64> {
    let dir = names::dir(tx, &format!("/{}", key::ORIGIN_DIR))?;
    let head = get_dir(tx, dir)?.head_dataset_obj;
    Ok(get_dataset(tx, head)?.prev_snap_obj)
}

/// Creates a generic ZAP that the pool directory names.
pub(crate) fn new_directory_zap(tx: &mut Tx<'_>, name: &str) -> TxResult<u64> {
    let object = new_zap(tx, ObjectType::ZAP_METADATA)?;
    zap::insert(tx, DIRECTORY, name, object)?;
    Ok(object)
}

/// Creates a ZAP without normalization.
pub(crate) fn new_zap(tx: &mut Tx<'_>, object_type: ObjectType) -> TxResult<u64> {
    zap::create(tx, &ObjectSpec::new(object_type, 0), ZapOptions::default())
}

/// Creates an object with contents in its bonus buffer only.
pub(crate) fn new_bonus_object(
    tx: &mut Tx<'_>,
    object_type: ObjectType,
    bonus: &[u8],
) -> TxResult<u64> {
    let spec = ObjectSpec::new(object_type, 0).with_bonus(object_type, bonus.len());
    let object = tx.allocate(&spec)?;
    tx.set_bonus(object, bonus)?;
    Ok(object)
}
