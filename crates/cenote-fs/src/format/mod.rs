//! Initial contents of a new file system or volume.
//!
//! ```text
//!   1  master node ── normalization, utf8only, casesensitivity, VERSION
//!        SA_ATTRS ──> registry of attributes, layouts
//!        DELETE_QUEUE ──> unlinked set, empty
//!        ROOT ──> a directory of mode 0755 that is its own parent
//! ```
//!
//! Everything is created in the transaction that creates the object set, in OpenZFS's order, so
//! that a partly initialized file system is never visible.
//!
//! Sources: spec 03 §8, §9, §12.4, §16.

mod owner;
mod sa;

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit::{self as zap, ZapOptions};
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::acl::{ACE_ALLOW, ACE_EVERYONE, ACE_GROUP, ACE_OWNER, Ace};
use cenote_ondisk::master_node as key;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::ZplAttr;
use cenote_ondisk::zap::NormFlags;
use cenote_ondisk::znode::{PFlags, Time};
use cenote_pool::props::text::Setting;

use crate::filesystem::CaseSensitivity;
use crate::mount::now;
pub use owner::FsOwners;
use sa::Attributes;

/// Mode of a new root directory.
const ROOT_MODE: u64 = 0o040_755;
/// Size of an empty directory, and its links: for `.` and `..`.
const EMPTY_DIRECTORY: u64 = 2;

/// Properties and owner of a new file system.
#[derive(Debug, Clone, Copy)]
pub struct NewFileSystem {
    /// Unicode form of names, as the property's number.
    pub normalization: u64,
    /// Whether names must be UTF-8.
    pub is_utf8_only: bool,
    /// Upper and lower case.
    pub case: CaseSensitivity,
    /// Whether objects have project ids (feature `project_quota`).
    pub has_projects: bool,
    /// Owner of the root directory.
    pub uid: u64,
    /// Its group.
    pub gid: u64,
    /// Value for all its times.
    pub now: Time,
}

impl NewFileSystem {
    /// Returns a file system with default rules for names, owned by root.
    #[must_use]
    pub const fn at(now: Time) -> Self {
        Self {
            normalization: 0,
            is_utf8_only: false,
            case: CaseSensitivity::Sensitive,
            has_projects: true,
            uid: 0,
            gid: 0,
            now,
        }
    }

    /// Returns a file system of now whose rules for names are these properties, owned by root.
    #[must_use]
    pub fn of_properties(properties: &[Setting]) -> Self {
        let number = |wanted: &str| {
            let found = properties.iter().find(|(name, _)| name == wanted);
            found.and_then(|(_, value)| value.single()).unwrap_or(0)
        };
        Self {
            normalization: number("normalization"),
            is_utf8_only: number("utf8only") != 0,
            case: match number("casesensitivity") {
                1 => CaseSensitivity::Insensitive,
                2 => CaseSensitivity::Mixed,
                _ => CaseSensitivity::Sensitive,
            },
            ..Self::at(now())
        }
    }

    /// Returns the normalization flags of directories.
    fn normflags(&self) -> NormFlags {
        let mut flags = NormFlags::from_bits_retain(self.normalization);
        if self.case != CaseSensitivity::Sensitive {
            flags |= NormFlags::TOUPPER;
        }
        flags
    }

    /// Fills an empty object set of type ZFS.
    ///
    /// # Errors
    /// Errors of the transaction.
    pub fn fill(&self, tx: &mut Tx<'_>) -> TxResult<()> {
        let master = ObjectSpec::new(ObjectType::MASTER_NODE, 0).with_number(key::MASTER_NODE_OBJ);
        let master = zap::create(tx, &master, ZapOptions::default())?;
        let case = match self.case {
            CaseSensitivity::Sensitive => 0,
            CaseSensitivity::Insensitive => 1,
            CaseSensitivity::Mixed => 2,
        };
        let is_utf8_only = self.is_utf8_only || self.normalization != 0;
        zap::insert(tx, master, key::NORMALIZATION, self.normalization)?;
        zap::insert(tx, master, key::UTF8ONLY, u64::from(is_utf8_only))?;
        zap::insert(tx, master, key::CASESENSITIVITY, case)?;
        zap::insert(tx, master, key::VERSION, key::VERSION_MAX)?;
        let attrs = new_zap(tx, ObjectType::SA_MASTER_NODE)?;
        zap::insert(tx, master, key::SA_ATTRS, attrs)?;
        let unlinked = new_zap(tx, ObjectType::UNLINKED_SET)?;
        zap::insert(tx, master, key::DELETE_QUEUE, unlinked)?;
        let root = self.root_directory(tx, attrs)?;
        zap::insert(tx, master, key::ROOT, root)
    }

    fn root_directory(&self, tx: &mut Tx<'_>, attrs: u64) -> TxResult<u64> {
        let mut root = Attributes::default();
        let projects = if self.has_projects { PFlags::PROJID } else { PFlags::empty() };
        let flags = PFlags::ARCHIVE
            | PFlags::AV_MODIFIED
            | PFlags::ACL_AUTO_INHERIT
            | PFlags::ACL_TRIVIAL
            | PFlags::NO_EXECS_DENIED
            | projects;
        root.number(ZplAttr::Mode, ROOT_MODE);
        root.number(ZplAttr::Size, EMPTY_DIRECTORY);
        root.number(ZplAttr::Gen, tx.txg());
        root.number(ZplAttr::Uid, self.uid);
        root.number(ZplAttr::Gid, self.gid);
        // Its own number, which is known only after its creation.
        root.number(ZplAttr::Parent, 0);
        root.number(ZplAttr::Flags, flags.bits());
        for time in [ZplAttr::Atime, ZplAttr::Mtime, ZplAttr::Ctime, ZplAttr::Crtime] {
            root.time(time, self.now);
        }
        root.number(ZplAttr::Links, EMPTY_DIRECTORY);
        if self.has_projects {
            root.number(ZplAttr::Projid, 0);
        }
        let acl = trivial_acl_of_root();
        root.number(ZplAttr::DaclCount, acl.len() as u64);
        root.bytes(ZplAttr::DaclAces, &acl.iter().flat_map(Ace::encode).collect::<Vec<_>>());

        let spec = ObjectSpec::new(ObjectType::DIRECTORY_CONTENTS, 0)
            .with_bonus(ObjectType::SA, root.bonus_len());
        let options = ZapOptions { normflags: self.normflags(), ..ZapOptions::default() };
        let object = zap::create(tx, &spec, options)?;
        root.set_number(ZplAttr::Parent, object);
        let layout = sa::register(tx, attrs, &root)?;
        tx.set_bonus(object, &root.encode(layout))?;
        Ok(object)
    }
}

/// Fills an empty object set of type ZVOL: the data of the volume, and its size.
///
/// # Errors
/// Errors of the transaction.
pub fn fill_volume(tx: &mut Tx<'_>, size: u64, block_size: u64) -> TxResult<()> {
    fill_volume_with(tx, size, block_size, 0)
}

/// Like [`fill_volume`], with indirect blocks of `1 << indirect_shift` bytes, 12 to 17; 0 for the
/// default.
///
/// # Errors
/// Errors of the transaction.
pub fn fill_volume_with(
    tx: &mut Tx<'_>,
    size: u64,
    block_size: u64,
    indirect_shift: u8,
) -> TxResult<()> {
    let data = ObjectSpec::new(ObjectType::ZVOL, block_size).with_number(key::ZVOL_OBJ);
    tx.allocate(&ObjectSpec { indirect_shift, ..data })?;
    let facts = ObjectSpec::new(ObjectType::ZVOL_PROP, 0).with_number(key::ZVOL_ZAP_OBJ);
    let facts = zap::create(tx, &facts, ZapOptions::default())?;
    zap::insert(tx, facts, key::ZVOL_SIZE, size)
}

fn new_zap(tx: &mut Tx<'_>, object_type: ObjectType) -> TxResult<u64> {
    zap::create(tx, &ObjectSpec::new(object_type, 0), ZapOptions::default())
}

/// Returns the ACL of a directory with mode 0755.
fn trivial_acl_of_root() -> [Ace; 3] {
    let allow = |flags, mask| Ace { kind: ACE_ALLOW, flags, mask, id: 0, object: None };
    [allow(ACE_OWNER, 0x1e_01ff), allow(ACE_GROUP, 0x12_00a9), allow(ACE_EVERYONE, 0x12_00a9)]
}

#[cfg(test)]
mod tests;
