//! POSIX ACLs of inodes: setting them changes the mode, and chmod changes them (spec 03 §11.4).
//!
//! A mode that an ACL changed is a mode like any other: the NFSv4 ACL is made from it.

use cenote_dmu::TxResult;
use cenote_ondisk::acl::{POSIX_ACCESS, POSIX_DEFAULT};
use cenote_ondisk::sa::ZplAttr;
use cenote_rt::{Error, Kind};

use super::attributes::SetAttributes;
use super::inode::PERMISSION_MASK;
use super::xattr::{self, Existing};
use super::{Inode, Op, permit, record, refuse};
use crate::acl::posix::PosixAcl;
use crate::error::FsError;
use crate::node::FileKind;

/// `acltype=posix`
const POSIX: u64 = 1;

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// What decides about the node.
    Access,
    /// What new nodes in the directory get.
    Default,
}

impl Which {
    /// The ACL that an attribute is.
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        match name {
            name if name == POSIX_ACCESS.as_bytes() => Some(Self::Access),
            name if name == POSIX_DEFAULT.as_bytes() => Some(Self::Default),
            _ => None,
        }
    }

    fn name(self) -> &'static [u8] {
        match self {
            Self::Access => POSIX_ACCESS.as_bytes(),
            Self::Default => POSIX_DEFAULT.as_bytes(),
        }
    }
}

/// Whether the file system has such ACLs.
pub(super) fn is_on(op: &Op<'_, '_>) -> bool {
    let settings = op.facts.settings();
    settings.acl_type == POSIX && settings.xattr != 0
}

/// Whether an inode may have one, as far as that is known without looking for it.
pub(super) fn may_have_acl(op: &Op<'_, '_>, inode: &Inode) -> bool {
    let has_xattrs = inode.bytes(ZplAttr::Dxattr).is_some() || inode.xattr_dir() != 0;
    has_xattrs && is_on(op) && inode.kind() != FileKind::Symlink
}

fn load(op: &mut Op<'_, '_>, inode: &Inode, which: Which) -> TxResult<Option<PosixAcl>> {
    if !may_have_acl(op, inode) {
        return Ok(None);
    }
    let Some(value) = xattr::value(op, inode, which.name())? else { return Ok(None) };
    PosixAcl::decode(&value).map_err(|cause| Error::corrupt(cause).into())
}

/// The ACL that decides about an inode, if there is one beside its mode.
pub(crate) fn access_acl(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<Option<PosixAcl>> {
    load(op, inode, Which::Access)
}

/// Sets an ACL, or takes it away. The inode is the caller's to store.
pub(super) fn set(
    op: &mut Op<'_, '_>,
    inode: &mut Inode,
    which: Which,
    value: Option<&[u8]>,
) -> TxResult<()> {
    let acl = match value {
        Some(value) => {
            PosixAcl::decode(value).map_err(|cause| refuse(Kind::Invalid, cause.into()))?
        }
        None => None,
    };
    if which == Which::Default && !inode.is_directory() && acl.is_some() {
        return Err(refuse(Kind::Permission, FsError::AccessDenied));
    }
    let Some(acl) = acl else {
        xattr::drop_all(op, inode, which.name())?;
        return Ok(());
    };
    if which == Which::Default {
        return xattr::put(op, inode, which.name(), &acl.encode(), Existing::Any);
    }
    let mode = permit::mode_of_chmod(op, inode.gid(), acl.mode(inode.mode()));
    if mode != inode.mode() {
        permit::set_mode(op, inode, mode & PERMISSION_MASK)?;
        let wish =
            SetAttributes { mode: Some((mode & PERMISSION_MASK) as u32), ..Default::default() };
        record::set_attributes(op, inode, &wish);
    }
    if acl.is_mode() {
        xattr::drop_all(op, inode, which.name())?;
        Ok(())
    } else {
        xattr::put(op, inode, which.name(), &acl.encode(), Existing::Any)
    }
}

/// The mode of an inode was changed: so is its ACL. The inode is the caller's to store.
pub(super) fn follow_mode(op: &mut Op<'_, '_>, inode: &mut Inode) -> TxResult<()> {
    let Some(acl) = access_acl(op, inode)? else { return Ok(()) };
    let changed = acl.chmod(inode.mode());
    if changed == acl {
        return Ok(());
    }
    xattr::put(op, inode, Which::Access.name(), &changed.encode(), Existing::Any)
}

/// What a new node gets of the default ACL of its directory.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    access: Option<PosixAcl>,
    default: Option<PosixAcl>,
}

impl Inherited {
    /// That of a directory for a node of the given mode, and the mode that the node gets. Without
    /// a default ACL the mode is as it was. A replay inherits nothing: what was inherited is in the
    /// log.
    pub(super) fn of(
        op: &mut Op<'_, '_>,
        dir: &Inode,
        is_directory: bool,
        mode: u32,
    ) -> TxResult<Option<(Self, u32)>> {
        if op.cred.is_none() {
            return Ok(None);
        }
        let Some(default) = load(op, dir, Which::Default)? else { return Ok(None) };
        let (access, mode) = default.for_new(mode.into());
        let access = Some(access).filter(|acl| !acl.is_mode());
        let default = is_directory.then_some(default);
        Ok(Some((Self { access, default }, mode as u32)))
    }

    /// Gives it to the new node, and stores that.
    pub(super) fn give(&self, op: &mut Op<'_, '_>, inode: &mut Inode) -> TxResult<()> {
        let acls = [(Which::Access, &self.access), (Which::Default, &self.default)];
        let mut is_changed = false;
        for (which, acl) in acls {
            let Some(acl) = acl else { continue };
            let (name, value) = (which.name(), acl.encode());
            // Nobody is to find the name without what it inherits: the mode alone may allow more.
            op.naming(|op| xattr::put(op, inode, name, &value, Existing::Any))?;
            is_changed = true;
        }
        if is_changed { op.store(inode) } else { Ok(()) }
    }
}
