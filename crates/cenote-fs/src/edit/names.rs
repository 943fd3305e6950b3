//! Names in directories: validity and lookup.

use cenote_dmu::TxResult;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::zap::NormFlags;
use cenote_ondisk::znode::DirEntry;
use cenote_rt::Kind;

use super::{Inode, Op, refuse};
use crate::directory::{self, Entry};
use crate::error::FsError;
use crate::filesystem::{CaseSensitivity, NameRules};

/// Maximum length of names without the feature `longname`.
const NAME_MAX: usize = 255;
/// Maximum length with the feature `longname`.
const LONG_NAME_MAX: usize = 1023;
/// The name in the root directory below which snapshots are found. It is never stored.
pub(crate) const CONTROL: &[u8] = b".zfs";

/// Checks whether a new node may have that name.
///
/// Names longer than 255 bytes need `longname=on`; an intent log may have such names from a time
/// when it was on.
pub(crate) fn check_new(op: &Op<'_, '_>, dir: u64, name: &[u8]) -> TxResult<()> {
    check(op, name)?;
    check_free(op, dir, name)?;
    let settings = op.facts.settings();
    let may_be_long = settings.has_long_names || op.cred.is_none() && settings.knows_long_names;
    if name.len() > NAME_MAX && !may_be_long {
        return Err(refuse(Kind::Invalid, FsError::NameTooLong));
    }
    Ok(())
}

/// Refuses the name of the control directory (spec 03 §15).
pub(crate) fn check_free(op: &Op<'_, '_>, dir: u64, name: &[u8]) -> TxResult<()> {
    if dir == op.facts.root && name == CONTROL {
        return Err(refuse(Kind::Exists, FsError::Exists));
    }
    Ok(())
}

/// Checks whether a name is valid.
pub(crate) fn check(op: &Op<'_, '_>, name: &[u8]) -> TxResult<()> {
    if name.is_empty() {
        return Err(refuse(Kind::NotFound, FsError::NoEntry));
    }
    if name == b"." || name == b".." {
        return Err(refuse(Kind::Invalid, FsError::WrongKind));
    }
    if name.contains(&b'/') || name.contains(&0) {
        return Err(refuse(Kind::Invalid, FsError::WrongKind));
    }
    if name.len() > LONG_NAME_MAX {
        return Err(refuse(Kind::Invalid, FsError::NameTooLong));
    }
    if op.facts.rules.is_utf8_only && std::str::from_utf8(name).is_err() {
        return Err(refuse(Kind::Invalid, FsError::NotUtf8));
    }
    Ok(())
}

/// Returns the entry of a name in a directory.
pub(crate) fn find(op: &mut Op<'_, '_>, dir: u64, name: &[u8]) -> TxResult<Option<Entry>> {
    directory::find(op.tx, dir, name, op.facts.rules.match_kind())
}

/// Returns the entry of a name in a directory, or an error if there is none.
pub(crate) fn require(op: &mut Op<'_, '_>, dir: u64, name: &[u8]) -> TxResult<Entry> {
    let is_too_long = name.len() > NAME_MAX && !op.facts.settings().has_long_names;
    find(op, dir, name)?.ok_or_else(|| {
        if is_too_long {
            refuse(Kind::Invalid, FsError::NameTooLong)
        } else {
            refuse(Kind::NotFound, FsError::NoEntry)
        }
    })
}

/// Adds an entry for an inode.
pub(crate) fn insert(op: &mut Op<'_, '_>, dir: u64, name: &[u8], inode: &Inode) -> TxResult<()> {
    let entry = DirEntry { file_type: inode.type_bits(), object: inode.object };
    if name.len() > NAME_MAX {
        op.tx.note_long_name();
    }
    zap::insert(op.tx, dir, name, entry.encode())
}

/// Removes an entry by its stored name.
pub(crate) fn remove(op: &mut Op<'_, '_>, dir: u64, name: &[u8]) -> TxResult<()> {
    zap::remove(op.tx, dir, name)
}

/// Returns the normalization flags of directories.
pub(crate) fn normflags(rules: NameRules) -> NormFlags {
    let mut flags = NormFlags::from_bits_retain(rules.normalization);
    if rules.case != CaseSensitivity::Sensitive {
        flags |= NormFlags::TOUPPER;
    }
    flags
}
