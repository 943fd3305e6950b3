//! Changes of a file system, as synchronous functions over one transaction.
//!
//! ```text
//!   mount (async, handles, locks) ──┐
//!                                   ├─> Op: create, link, remove, rename, write, ... ──> Tx
//!   replay of an intent log ────────┘       inodes, names, rights, records
//! ```
//!
//! An [`Op`] is a transaction on the object set, with the cached state of the file system. Every
//! operation is a function over it: it reads what it needs, checks, changes, and records the change
//! for the intent log. It either succeeds as a whole or has no effect. Because it may run several
//! times, it must have no effects outside of the `Op`. Effects outside of the object set
//! (registered layouts, records for the log) are published by [`Op::finish`], the last call of the
//! closure, while the object set is still locked: so the log has the order of the changes, and no
//! layout is registered twice.
//!
//! Permissions are checked for the [`Credentials`] of the `Op`; without credentials, as in a
//! replay, everything is allowed.
//!
//! Sources: spec 03 §8-§12, 07 A7.

mod acl;
mod attributes;
mod create;
mod data;
mod entries;
mod facts;
mod inode;
mod names;
pub(crate) mod permit;
mod posix;
mod record;
mod remove;
mod rename;
pub mod sa;
mod unlinked;
pub mod xattr;

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult, TxStop};
use cenote_engine::zil::{ChangedBytes, Log, LogBytes, LogRecord};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::{PFlags, Time};
use cenote_rt::{Error, Kind, ensure};

use crate::access::Credentials;
use crate::error::FsError;
use crate::mount::control::Virtual;

pub use acl::{acl, set_acl};
pub(crate) use attributes::lose_set_ids;
pub use attributes::{SetAttributes, SetTime, USER_FLAGS, set_attributes};
pub use create::{NewKind, NewNode, create, create_orphan, link};
pub use data::{Place, WriteFacts, block_size_for, free, truncate, write};
pub use entries::{DirEntry, ReadDirPage, list, lookup};
pub use facts::{Facts, Openers, Settings};
pub use inode::Inode;
pub(crate) use inode::{PERMISSION_MASK, SET_GID, SET_UID, STICKY, TYPE_MASK};
pub(crate) use names::CONTROL;
pub(crate) use posix::access_acl;
pub use remove::{Removed, Target, remove};
pub use rename::{Rename, RenameMode, rename};
pub use sa::{Attrs, Schema};
pub use unlinked::{Reaped, reap};

/// A transaction on a file system.
#[expect(clippy::struct_excessive_bools, reason = "each is noted by itself")]
pub struct Op<'a, 'tx> {
    /// The transaction on its object set.
    pub tx: &'a mut Tx<'tx>,
    /// Cached state of the file system.
    pub facts: &'a Facts,
    /// The user; `None` for internal operations, which are always allowed.
    pub cred: Option<&'a Credentials>,
    /// The time of the changes.
    pub now: Time,
    /// The write flushes a cached page: the flags of the node were checked when the page was
    /// changed.
    pub(crate) is_write_back: bool,
    schema: Arc<Schema>,
    is_schema_changed: bool,
    records: Vec<LogRecord>,
    /// Objects whose log records every commit must include.
    made_sync: Vec<u64>,
    /// Log records of objects belong to a name change now, and every commit includes them like name
    /// changes.
    is_naming: bool,
    /// Objects that have lost their last name.
    forgotten: Vec<u64>,
    /// An operation without a log record was done.
    is_unrecorded: bool,
    /// Changed bytes, whether logged or not.
    changed: Vec<ChangedBytes>,
}

impl<'a, 'tx> Op<'a, 'tx> {
    /// Starts an operation in a transaction.
    pub fn new(
        tx: &'a mut Tx<'tx>,
        facts: &'a Facts,
        cred: Option<&'a Credentials>,
        now: Time,
    ) -> Self {
        let schema = facts.schema();
        Self {
            tx,
            facts,
            cred,
            now,
            is_write_back: false,
            schema,
            is_schema_changed: false,
            records: Vec::new(),
            made_sync: Vec::new(),
            is_naming: false,
            forgotten: Vec::new(),
            is_unrecorded: false,
            changed: Vec::new(),
        }
    }

    /// Adds a log record.
    pub fn log(&mut self, record: LogRecord) {
        self.records.push(record);
    }

    /// Runs a part of an operation without logging it.
    pub(crate) fn unlogged<T>(
        &mut self,
        part: impl FnOnce(&mut Self) -> TxResult<T>,
    ) -> TxResult<T> {
        let (told, is_unrecorded) = (self.records.len(), self.is_unrecorded);
        let done = part(self);
        self.records.truncate(told);
        self.is_unrecorded = is_unrecorded;
        done
    }

    /// Runs a part whose records every commit includes, like those of name changes.
    pub(crate) fn naming<T>(&mut self, part: impl FnOnce(&mut Self) -> T) -> T {
        let was_naming = std::mem::replace(&mut self.is_naming, true);
        let done = part(self);
        self.is_naming = was_naming;
        done
    }

    /// Includes the records of an object in every commit from now on.
    pub(crate) fn make_sync(&mut self, object: u64) {
        self.made_sync.push(object);
    }

    /// Drops the log records of an object.
    pub(crate) fn forget(&mut self, object: u64) {
        self.forgotten.push(object);
    }

    /// Notes that an operation has no log record: making it durable takes a sync.
    pub fn log_unrecorded(&mut self) {
        self.is_unrecorded = true;
    }

    /// Notes that bytes of an object changed.
    pub(crate) fn note_changed(&mut self, object: u64, range: Range<u64>) {
        self.changed.push(ChangedBytes { object, range, is_freed: false });
    }

    /// Frees an object.
    pub(crate) fn free(&mut self, object: u64) -> TxResult<()> {
        let is_open = self.facts.openers.is_open(object);
        ensure!("O2", !is_open, "node {object} would be freed while it is open");
        self.changed.push(ChangedBytes { object, range: 0..u64::MAX, is_freed: true });
        self.tx.free(object)
    }

    /// Publishes the effects outside of the object set: the schema, and the records in `log`. Must
    /// be called last in the closure, which must not fail afterwards. In a replay `log` is `None`,
    /// and nothing is logged. Returns the bytes that the log may write for the records.
    ///
    /// # Errors
    /// Errors of the transaction; nothing is published then.
    pub fn finish(self, log: Option<&Log>) -> TxResult<LogBytes> {
        let logged = match log {
            // Data that log records of earlier writes need is read before its bytes are changed.
            Some(log) => {
                Some((log, log.log_bytes(&self.records), log.keep(self.tx, &self.changed)?))
            }
            None => None,
        };
        // From here on nothing fails.
        if self.is_schema_changed {
            self.facts.set_schema(self.schema);
        }
        let Some((log, bytes, kept)) = logged else { return Ok(LogBytes::default()) };
        let txg = self.tx.txg();
        log.give(txg, kept);
        if self.is_unrecorded {
            log.note_unrecorded(txg);
        }
        for object in self.made_sync {
            log.make_sync(object);
        }
        for record in self.records {
            log.record(txg, record);
        }
        for object in self.forgotten {
            log.forget(object);
        }
        Ok(bytes)
    }

    /// Returns attributes and layouts as this transaction sees them.
    pub fn schema(&self) -> &Schema {
        &self.schema
    }

    /// Returns the inode in `object`.
    ///
    /// # Errors
    /// `Kind::NotFound` if the object is free; `Kind::Corrupt` if it lacks the attributes of a
    /// file.
    pub fn inode(&mut self, object: u64) -> TxResult<Inode> {
        if Virtual::of(object).is_some() {
            // The control directory is not stored, and its contents cannot be changed.
            return Err(refuse(Kind::Permission, FsError::NotPermitted));
        }
        Inode::load(self.tx, &self.schema, object)
    }

    /// Stores the attributes of an inode.
    ///
    /// # Errors
    /// `Kind::ReadOnly` with [`FsError::LegacyNode`] for an inode of an old file system; errors of
    /// the transaction.
    pub fn store(&mut self, inode: &Inode) -> TxResult<()> {
        if inode.is_legacy() {
            return Err(refuse(Kind::ReadOnly, FsError::LegacyNode));
        }
        let before = Arc::as_ptr(&self.schema);
        let master = self.facts.sa_master;
        inode.attrs.store(self.tx, &mut self.schema, master, inode.object)?;
        self.is_schema_changed |= before != Arc::as_ptr(&self.schema);
        Ok(())
    }

    /// Updates mtime, ctime and the flags for archivers and scanners after a change of contents.
    pub fn touch_content(&self, inode: &mut Inode) {
        inode.set_time(ZplAttr::Mtime, self.now);
        inode.set_time(ZplAttr::Ctime, self.now);
        inode.set_flags(inode.flags() | PFlags::ARCHIVE | PFlags::AV_MODIFIED);
        inode.count_change(self.now);
    }

    /// Updates ctime after a change of attributes.
    pub fn touch_state(&self, inode: &mut Inode) {
        inode.set_time(ZplAttr::Ctime, self.now);
        inode.set_flags(inode.flags() | PFlags::ARCHIVE);
        inode.count_change(self.now);
    }

    /// Returns the directory in `object`, whether it still has a name or not.
    pub(crate) fn directory(&mut self, object: u64) -> TxResult<Inode> {
        let inode = self.inode(object)?;
        if !inode.is_directory() {
            return Err(refuse(Kind::Invalid, FsError::NotADirectory));
        }
        Ok(inode)
    }

    /// Adds an object to the unlinked set.
    pub(crate) fn add_unlinked(&mut self, object: u64) -> TxResult<()> {
        zap::insert_number(self.tx, self.facts.unlinked, object)
    }

    /// Removes an object from the unlinked set.
    pub(crate) fn remove_unlinked(&mut self, object: u64) -> TxResult<()> {
        zap::remove_number(self.tx, self.facts.unlinked, object)
    }
}

/// Returns a refusal.
pub(crate) fn refuse(kind: Kind, cause: FsError) -> TxStop {
    TxStop::Fail(Error::new(kind, cause))
}

/// Object type of all nodes except directories.
pub(crate) const FILE: ObjectType = ObjectType::PLAIN_FILE_CONTENTS;
