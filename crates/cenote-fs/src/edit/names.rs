//! Names in directories: validity and lookup.

use cenote_dmu::TxResult;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::zap::{Key, MatchKind, NormFlags, Value};
use cenote_ondisk::znode::DirEntry;
use cenote_rt::{Error, Kind};

use super::{Inode, Op, refuse};
use crate::error::FsError;
use crate::filesystem::{CaseSensitivity, NameRules};

/// Maximum length of names without the feature `longname`.
const NAME_MAX: usize = 255;
/// Maximum length with the feature `longname`.
const LONG_NAME_MAX: usize = 1023;
/// The name in the root directory below which snapshots are found. It is never stored.
pub(crate) const CONTROL: &[u8] = b".zfs";

/// An entry that was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Found {
    /// The name as it is stored.
    pub(crate) name: Vec<u8>,
    /// The object.
    pub(crate) object: u64,
}

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
pub(crate) fn find(op: &mut Op<'_, '_>, dir: u64, name: &[u8]) -> TxResult<Option<Found>> {
    find_by(op, dir, name, op.facts.rules.match_kind())
}

/// Like [`find`], and distinguishes upper and lower case according to `kind`, as far as the
/// directory does.
pub(crate) fn find_by(
    op: &mut Op<'_, '_>,
    dir: u64,
    name: &[u8],
    kind: MatchKind,
) -> TxResult<Option<Found>> {
    if kind == MatchKind::Exact {
        let Some(value) = zap::lookup(op.tx, dir, name)? else { return Ok(None) };
        return found(name.to_vec(), &value).map(Some);
    }
    let Some(entry) = zap::lookup_normalized(op.tx, dir, name, kind)? else { return Ok(None) };
    match entry.key {
        Key::Name(stored) => found(stored, &entry.value).map(Some),
        Key::Words(_) => Err(corrupt(FsError::EntryName { name: String::new() })),
    }
}

/// Returns the entry of a name in a directory, or an error if there is none.
pub(crate) fn require(op: &mut Op<'_, '_>, dir: u64, name: &[u8]) -> TxResult<Found> {
    let is_too_long = name.len() > NAME_MAX && !op.facts.settings().has_long_names;
    find(op, dir, name)?.ok_or_else(|| {
        if is_too_long {
            refuse(Kind::Invalid, FsError::NameTooLong)
        } else {
            refuse(Kind::NotFound, FsError::NoEntry)
        }
    })
}

fn found(name: Vec<u8>, value: &Value) -> TxResult<Found> {
    match value.first().map(DirEntry::decode) {
        Some(entry) if entry.object != 0 => Ok(Found { name, object: entry.object }),
        _ => Err(corrupt(FsError::EntryValue { name: String::from_utf8_lossy(&name).into() })),
    }
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

fn corrupt(cause: FsError) -> cenote_dmu::TxStop {
    Error::corrupt(cause).into()
}
