//! Changing extended attributes (spec 03 §11).
//!
//! ```text
//!   xattr=sa    the list in the inode, as long as value and list are short enough, else
//!   xattr=dir   a file in the hidden directory of the inode
//! ```
//!
//! An attribute is stored in one of these places: setting it in one removes it from the other.
//! Names are stored as Linux has them; an attribute that another system stored without `user.` is
//! replaced. POSIX ACLs are extended attributes that change the mode ([`posix`](super::posix)).

use cenote_dmu::TxResult;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::znode::PFlags;
use cenote_rt::{Error, Kind};

use super::create::{self, NewKind, NewNode};
use super::data::{self, Place};
use super::names;
use super::remove::{self, Removed};
use super::{Inode, Op, posix, record, refuse};
use crate::access::{self, Capabilities, rules};
use crate::directory::Entry;
use crate::error::FsError;
use crate::xattr::{Pairs, USER, VALUE_LEN_MAX, XattrPlace, pack, unpack, visible};

/// Longest name.
const NAME_MAX: usize = 255;
/// Longest value that Linux accepts.
const VALUE_MAX: usize = 64 << 10;
/// Longest value that is stored in a list.
const LISTED_MAX: usize = 32 << 10;
/// Longest list that another attribute is added to.
const LIST_MAX_BEFORE: usize = 64 << 10;
/// Longest list.
const LIST_MAX: usize = u16::MAX as usize;
/// The extended attribute with a program's file capabilities.
const CAPABILITY: &[u8] = b"security.capability";
/// Namespaces, which are not valid names by themselves.
const NAMESPACES: [&[u8]; 4] = [USER, b"trusted.", b"security.", b"system."];
/// `xattr=off` and `xattr=sa`.
const OFF: u64 = 0;
const SA: u64 = 2;
/// Modes of hidden directories and of the files in them.
const HIDDEN_MODE: u32 = 0o1777;
const FILE_MODE: u32 = 0o644;

/// Condition on an attribute that is being set.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Existing {
    /// None.
    #[default]
    Any,
    /// It must not exist (`XATTR_CREATE`).
    Missing,
    /// It must exist (`XATTR_REPLACE`).
    There,
}

/// Returns the value of an attribute; `None` if it does not exist.
///
/// # Errors
/// Permission errors; [`FsError::XattrsOff`] if the file system has no extended attributes.
pub fn get(op: &mut Op<'_, '_>, object: u64, name: &[u8]) -> TxResult<Option<Vec<u8>>> {
    check_on(op, name)?;
    let inode = op.inode(object)?;
    if let Some(cred) = op.cred {
        let facts = access::Facts::of(op, &inode)?;
        match rules::may_get_xattr(&facts.subject(), cred, name) {
            Err(FsError::NoXattr) => return Ok(None),
            verdict => access::decided(verdict)?,
        }
    }
    value(op, &inode, name)
}

/// Returns the names of all attributes that the user may see.
///
/// # Errors
/// Errors of the transaction.
pub fn list(op: &mut Op<'_, '_>, object: u64) -> TxResult<Vec<Vec<u8>>> {
    let inode = op.inode(object)?;
    if op.facts.settings().xattr == OFF {
        return Ok(Vec::new());
    }
    let mut stored: Vec<Vec<u8>> = pairs(&inode)?.into_iter().map(|(name, _)| name).collect();
    let hidden = inode.xattr_dir();
    if hidden != 0 {
        for entry in cenote_dmu::zap::edit::entries(op.tx, hidden)? {
            stored.extend(entry.key.name().map(<[u8]>::to_vec));
        }
    }
    let has_acls = posix::is_on(op);
    let is_admin = op.cred.is_none_or(|cred| cred.can(Capabilities::SYS_ADMIN));
    let mut names: Vec<Vec<u8>> = Vec::with_capacity(stored.len());
    for name in stored.iter().filter_map(|name| visible(name, XattrPlace::List)) {
        let name = name.name;
        let is_shown = (has_acls || posix::Which::of(&name).is_none())
            && (is_admin || !name.starts_with(b"trusted."));
        if is_shown && !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

/// Sets an attribute.
///
/// # Errors
/// `Kind::Exists` or [`FsError::NoXattr`] if the condition does not hold;
/// [`FsError::XattrTooLong`]; permission and quota errors.
pub fn set(
    op: &mut Op<'_, '_>,
    object: u64,
    name: &[u8],
    value: &[u8],
    existing: Existing,
) -> TxResult<()> {
    if value.len() > VALUE_MAX {
        return Err(refuse(Kind::Limit, FsError::XattrTooLong));
    }
    let mut inode = permitted(op, object, name)?;
    if let Some(which) = posix::Which::of(name) {
        posix::set(op, &mut inode, which, Some(value))?;
    } else {
        put(op, &mut inode, name, value, existing)?;
    }
    op.touch_state(&mut inode);
    op.store(&inode)
}

/// Removes an attribute.
///
/// # Errors
/// [`FsError::NoXattr`] if it does not exist; permission errors.
pub fn remove(op: &mut Op<'_, '_>, object: u64, name: &[u8]) -> TxResult<()> {
    let mut inode = permitted(op, object, name)?;
    if let Some(which) = posix::Which::of(name) {
        posix::set(op, &mut inode, which, None)?;
    } else if !drop_all(op, &mut inode, name)? {
        return Err(refuse(Kind::NotFound, FsError::NoXattr));
    }
    op.touch_state(&mut inode);
    op.store(&inode)
}

fn check_on(op: &Op<'_, '_>, name: &[u8]) -> TxResult<()> {
    if NAMESPACES.contains(&name) {
        return Err(refuse(Kind::Invalid, FsError::WrongKind));
    }
    if op.facts.settings().xattr == OFF || posix::Which::of(name).is_some() && !posix::is_on(op) {
        return Err(refuse(Kind::Unsupported, FsError::XattrsOff));
    }
    Ok(())
}

/// Returns the inode, if its attribute of that name may be changed.
fn permitted(op: &mut Op<'_, '_>, object: u64, name: &[u8]) -> TxResult<Inode> {
    check_on(op, name)?;
    if name.is_empty() || name.len() > NAME_MAX || name.contains(&0) {
        return Err(refuse(Kind::Limit, FsError::XattrName));
    }
    let inode = op.inode(object)?;
    if let Some(cred) = op.cred {
        let facts = access::Facts::of(op, &inode)?;
        access::decided(rules::may_set_xattr(&facts.subject(), cred, name))?;
    }
    Ok(inode)
}

/// Returns the possible stored forms of a name: unchanged, and without the namespace that other
/// systems leave out.
fn spellings(name: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    std::iter::once(name).chain(name.strip_prefix(USER))
}

fn pairs(inode: &Inode) -> TxResult<Pairs> {
    let packed = inode.bytes(ZplAttr::Dxattr).unwrap_or(&[]);
    unpack(packed).map_err(|cause| Error::corrupt(cause).into())
}

/// Returns the value of an attribute, wherever it is stored.
pub(super) fn value(op: &mut Op<'_, '_>, inode: &Inode, name: &[u8]) -> TxResult<Option<Vec<u8>>> {
    if inode.bytes(ZplAttr::Dxattr).is_some() {
        let pairs = pairs(inode)?;
        for spelling in spellings(name) {
            if let Some((_, value)) = pairs.iter().find(|(stored, _)| stored == spelling) {
                return Ok(Some(value.clone()));
            }
        }
    }
    let Some((found, _)) = in_directory(op, inode, name)? else { return Ok(None) };
    let file = op.inode(found.object)?;
    let (len, max) = (file.size(), VALUE_LEN_MAX);
    if len > max {
        return Err(refuse(Kind::Limit, FsError::XattrLength { len, max }));
    }
    op.tx.read(found.object, 0, len as usize).map(Some)
}

/// Returns the file of an attribute, and the directory that it is in.
fn in_directory(op: &mut Op<'_, '_>, inode: &Inode, name: &[u8]) -> TxResult<Option<(Entry, u64)>> {
    let hidden = inode.xattr_dir();
    if hidden == 0 {
        return Ok(None);
    }
    for spelling in spellings(name) {
        if let Some(found) = names::find(op, hidden, spelling)? {
            return Ok(Some((found, hidden)));
        }
    }
    Ok(None)
}

/// Sets the value of an attribute. The caller stores the inode.
pub(super) fn put(
    op: &mut Op<'_, '_>,
    inode: &mut Inode,
    name: &[u8],
    value: &[u8],
    existing: Existing,
) -> TxResult<()> {
    let mut pairs = pairs(inode)?;
    let is_listed = spellings(name).any(|name| pairs.iter().any(|(stored, _)| stored == name));
    let file = in_directory(op, inode, name)?;
    match existing {
        Existing::Missing if is_listed || file.is_some() => {
            return Err(refuse(Kind::Exists, FsError::Exists));
        }
        Existing::There if !is_listed && file.is_none() => {
            return Err(refuse(Kind::NotFound, FsError::NoXattr));
        }
        _ => {}
    }
    if op.facts.settings().xattr == SA && value.len() <= LISTED_MAX {
        let before = inode.bytes(ZplAttr::Dxattr).map_or(0, <[u8]>::len);
        pairs.retain(|(stored, _)| spellings(name).all(|name| name != stored));
        pairs.push((name.to_vec(), value.to_vec()));
        let packed = pack(&pairs);
        if before <= LIST_MAX_BEFORE && packed.len() <= LIST_MAX {
            inode.set_bytes(ZplAttr::Dxattr, &packed);
            let Some((found, hidden)) = file else {
                record::set_xattr(op, inode, name, Some(value));
                return Ok(());
            };
            // Every commit includes the removal of the file, so it must include the new value as
            // well.
            op.naming(|op| record::set_xattr(op, inode, name, Some(value)));
            return of_node(op, inode, |op, _| drop_file(op, hidden, &found));
        }
    }
    of_node(op, inode, |op, inode| put_file(op, inode, name, value, file))?;
    drop_listed(op, inode, name)?;
    Ok(())
}

/// Removes an attribute, wherever it is stored. Returns true if it existed.
pub(super) fn drop_all(op: &mut Op<'_, '_>, inode: &mut Inode, name: &[u8]) -> TxResult<bool> {
    let is_listed = drop_listed(op, inode, name)?;
    match in_directory(op, inode, name)? {
        Some((found, hidden)) => {
            of_node(op, inode, |op, _| drop_file(op, hidden, &found))?;
            Ok(true)
        }
        None => Ok(is_listed),
    }
}

/// Runs a change of the hidden directory of an inode. It is logged only while the inode has a name:
/// after a crash an inode without a name does not exist.
fn of_node<T>(
    op: &mut Op<'_, '_>,
    inode: &mut Inode,
    part: impl FnOnce(&mut Op<'_, '_>, &mut Inode) -> TxResult<T>,
) -> TxResult<T> {
    if inode.links() > 0 { part(op, inode) } else { op.unlogged(|op| part(op, inode)) }
}

/// Removes a program's file capabilities, which applied to its old contents. The caller stores the
/// inode.
pub(super) fn drop_capability(op: &mut Op<'_, '_>, inode: &mut Inode) -> TxResult<()> {
    let list = inode.bytes(ZplAttr::Dxattr).unwrap_or(&[]);
    // Every write comes here: the list is unpacked only if it may contain the name.
    let may_have = list.windows(CAPABILITY.len()).any(|part| part == CAPABILITY);
    if may_have || inode.xattr_dir() != 0 {
        drop_all(op, inode, CAPABILITY)?;
    }
    Ok(())
}

fn drop_listed(op: &mut Op<'_, '_>, inode: &mut Inode, name: &[u8]) -> TxResult<bool> {
    let mut pairs = pairs(inode)?;
    let before = pairs.len();
    pairs.retain(|(stored, _)| spellings(name).all(|name| name != stored));
    if pairs.len() == before {
        return Ok(false);
    }
    inode.set_bytes(ZplAttr::Dxattr, &pack(&pairs));
    record::set_xattr(op, inode, name, None);
    Ok(true)
}

/// Adds an attribute to the list or removes it, in a replay: no other place is searched.
///
/// # Errors
/// `Kind::Limit` if the list becomes too long.
pub(crate) fn put_listed(
    op: &mut Op<'_, '_>,
    object: u64,
    name: &[u8],
    value: Option<&[u8]>,
) -> TxResult<()> {
    let mut inode = op.inode(object)?;
    let mut pairs = pairs(&inode)?;
    pairs.retain(|(stored, _)| stored != name);
    pairs.extend(value.map(|value| (name.to_vec(), value.to_vec())));
    let packed = pack(&pairs);
    if packed.len() > LIST_MAX || name.contains(&0) {
        return Err(refuse(Kind::Limit, FsError::XattrTooLong));
    }
    inode.set_bytes(ZplAttr::Dxattr, &packed);
    op.store(&inode)
}

/// Returns the hidden directory of an inode; creates it if there is none. The caller stores the
/// inode.
pub(crate) fn hidden_directory(
    op: &mut Op<'_, '_>,
    inode: &mut Inode,
    template: Option<&NewNode<'_>>,
) -> TxResult<Inode> {
    if inode.xattr_dir() != 0 {
        return op.inode(inode.xattr_dir());
    }
    let owner = Some((inode.uid(), inode.gid()));
    let new = NewNode { owner, ..NewNode::new(NewKind::Directory, HIDDEN_MODE) };
    let mut dir = create::make(op, inode, template.unwrap_or(&new))?;
    dir.set_flags(dir.flags() | PFlags::XATTR);
    op.store(&dir)?;
    inode.set_word(ZplAttr::Xattr, dir.object);
    record::make_hidden(op, inode.object, &dir);
    Ok(dir)
}

fn put_file(
    op: &mut Op<'_, '_>,
    inode: &mut Inode,
    name: &[u8],
    value: &[u8],
    file: Option<(Entry, u64)>,
) -> TxResult<()> {
    let object = if let Some((found, _)) = file {
        found.object
    } else {
        let mut dir = hidden_directory(op, inode, None)?;
        // The only thing inherited from the directory is that it is hidden.
        let owner = op.cred.map_or((0, 0), |cred| (cred.uid.into(), cred.gid.into()));
        let new = NewNode { owner: Some(owner), ..NewNode::new(NewKind::Regular, FILE_MODE) };
        let file = create::make(op, &dir, &new)?;
        names::insert(op, dir.object, name, &file)?;
        create::count_entry(op, &mut dir, &file);
        op.store(&dir)?;
        record::create(op, dir.object, name, &file, &new);
        file.object
    };
    // Permissions were checked on the node with the attribute; its hidden files need no checks.
    let cred = op.cred.take();
    let mut written = Ok(());
    if op.inode(object)?.size() > 0 {
        written = data::truncate(op, object, 0).map(|_| ());
    }
    if written.is_ok() && !value.is_empty() {
        written = data::write(op, object, Place::At(0), value, &[]).map(|_| ());
    }
    op.cred = cred;
    written
}

fn drop_file(op: &mut Op<'_, '_>, hidden: u64, found: &Entry) -> TxResult<()> {
    let mut dir = op.inode(hidden)?;
    let file = op.inode(found.object)?;
    names::remove(op, hidden, &found.name)?;
    remove::discount_entry(op, &mut dir, &file);
    op.store(&dir)?;
    let removed: Removed = remove::drop_name(op, file)?;
    record::remove(op, hidden, &found.name, false, &removed);
    Ok(())
}
