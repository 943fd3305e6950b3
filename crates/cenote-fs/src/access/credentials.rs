//! The credentials of the user who makes a request.

use bitflags::bitflags;

bitflags! {
    /// Privileges, as Linux names them.
    #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
    pub struct Capabilities: u32 {
        /// Change the owner of nodes.
        const CHOWN = 1;
        /// Read, write and search regardless of permissions.
        const DAC_OVERRIDE = 1 << 1;
        /// Read and search regardless of permissions.
        const DAC_READ_SEARCH = 1 << 2;
        /// Act as the owner.
        const FOWNER = 1 << 3;
        /// Keep and set set-id bits.
        const FSETID = 1 << 4;
        /// Change the flags that forbid changes.
        const LINUX_IMMUTABLE = 1 << 9;
        /// Administrate.
        const SYS_ADMIN = 1 << 21;
        /// Make devices.
        const MKNOD = 1 << 27;
    }
}

/// User, groups and privileges of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Credentials {
    /// User.
    pub uid: u32,
    /// Primary group, which new nodes get.
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Privileges.
    pub capabilities: Capabilities,
}

impl Credentials {
    /// Returns the credentials of the superuser.
    #[must_use]
    pub const fn root() -> Self {
        Self { uid: 0, gid: 0, groups: Vec::new(), capabilities: Capabilities::all() }
    }

    /// Returns the credentials of a user without privileges; uid 0 has them all.
    #[must_use]
    pub const fn user(uid: u32, gid: u32, groups: Vec<u32>) -> Self {
        let capabilities = if uid == 0 { Capabilities::all() } else { Capabilities::empty() };
        Self { uid, gid, groups, capabilities }
    }

    /// Whether the user belongs to a group.
    #[must_use]
    pub fn is_member(&self, gid: u64) -> bool {
        u64::from(self.gid) == gid || self.groups.iter().any(|group| u64::from(*group) == gid)
    }

    /// Whether the user has a privilege.
    #[must_use]
    pub const fn can(&self, capability: Capabilities) -> bool {
        self.capabilities.contains(capability)
    }

    /// Whether the user has this uid.
    #[must_use]
    pub fn is(&self, uid: u64) -> bool {
        u64::from(self.uid) == uid
    }
}
