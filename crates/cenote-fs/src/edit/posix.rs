//! POSIX ACLs of inodes: setting one changes the mode, and chmod changes it (spec 03 §11.4).
//!
//! After such a change of the mode, the NFSv4 ACL is computed from it as always.

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

/// The two kinds of POSIX ACLs of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    /// The ACL that controls access.
    Access,
    /// The ACL that new nodes in the directory inherit.
    Default,
}

impl Which {
    /// Returns the ACL that is stored in the extended attribute `name`.
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

/// Whether the file system supports POSIX ACLs.
pub(super) fn is_on(op: &Op<'_, '_>) -> bool {
    let settings = op.facts.settings();
    settings.acl_type == POSIX && settings.xattr != 0
}

/// Whether an inode may have one, as far as can be told without a lookup.
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

/// Returns the ACL that controls access to an inode, if there is one in addition to its mode.
pub(crate) fn access_acl(op: &mut Op<'_, '_>, inode: &Inode) -> TxResult<Option<PosixAcl>> {
    load(op, inode, Which::Access)
}

/// Sets or removes an ACL. The caller stores the inode.
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
        let changes =
            SetAttributes { mode: Some((mode & PERMISSION_MASK) as u32), ..Default::default() };
        record::set_attributes(op, inode, &changes);
    }
    if acl.is_mode() {
        xattr::drop_all(op, inode, which.name())?;
        Ok(())
    } else {
        xattr::put(op, inode, which.name(), &acl.encode(), Existing::Any)
    }
}

/// Updates the ACL of an inode after a change of its mode. The caller stores the inode.
pub(super) fn update_acl(op: &mut Op<'_, '_>, inode: &mut Inode) -> TxResult<()> {
    let Some(acl) = access_acl(op, inode)? else { return Ok(()) };
    let changed = acl.chmod(inode.mode());
    if changed == acl {
        return Ok(());
    }
    xattr::put(op, inode, Which::Access.name(), &changed.encode(), Existing::Any)
}

/// The ACLs that a new node inherits from the default ACL of its directory.
#[derive(Debug, Default)]
pub(super) struct Inherited {
    access: Option<PosixAcl>,
    default: Option<PosixAcl>,
}

impl Inherited {
    /// Returns the inherited ACLs for a node of the given mode, and the resulting mode. Without a
    /// default ACL the mode is unchanged. A replay inherits nothing: the log has records of
    /// inherited ACLs.
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

    /// Stores the ACLs in the new node.
    pub(super) fn give(&self, op: &mut Op<'_, '_>, inode: &mut Inode) -> TxResult<()> {
        let acls = [(Which::Access, &self.access), (Which::Default, &self.default)];
        let mut is_changed = false;
        for (which, acl) in acls {
            let Some(acl) = acl else { continue };
            let (name, value) = (which.name(), acl.encode());
            // The name must never be durable without the inherited ACL: the mode alone may allow
            // more.
            op.naming(|op| xattr::put(op, inode, name, &value, Existing::Any))?;
            is_changed = true;
        }
        if is_changed { op.store(inode) } else { Ok(()) }
    }
}
