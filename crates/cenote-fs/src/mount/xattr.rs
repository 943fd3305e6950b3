//! Extended attributes, ACLs and quotas of a mounted file system.

use cenote_engine::Charge;
use cenote_ondisk::acl::Ace;
use cenote_ondisk::znode::PFlags;
use cenote_rt::{Error, Kind, Result};

use super::control::Virtual;
use super::{ATTRIBUTES_COST, Mount};
use crate::access::Credentials;
use crate::edit;
use crate::edit::xattr::{self, Existing};
use crate::error::FsError;
use crate::quota::{self, Holder, Resource};

impl Mount {
    /// The value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoXattr`] if there is no such; refusals of rights.
    pub async fn xattr(&self, cred: &Credentials, object: u64, name: &[u8]) -> Result<Vec<u8>> {
        check_stored(object)?;
        let found = self.look(Some(cred), |op| xattr::get(op, object, name)).await?;
        found.ok_or_else(|| Error::not_found(FsError::NoXattr))
    }

    /// The names of all extended attributes that somebody may see.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn xattrs(&self, cred: &Credentials, object: u64) -> Result<Vec<Vec<u8>>> {
        check_stored(object)?;
        self.look(Some(cred), |op| xattr::list(op, object)).await
    }

    /// Sets an extended attribute; a POSIX ACL is one, and may change the mode.
    ///
    /// # Errors
    /// `Kind::Exists` or [`FsError::NoXattr`] if it is not as expected; refusals of rights and
    /// quotas.
    pub async fn set_xattr(
        &self,
        cred: &Credentials,
        object: u64,
        name: &[u8],
        value: &[u8],
        existing: Existing,
    ) -> Result<()> {
        let charge = Charge::write(ATTRIBUTES_COST + value.len() as u64);
        self.change(charge, Some(cred), |op| xattr::set(op, object, name, value, existing)).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoXattr`] if there is no such; refusals of rights.
    pub async fn remove_xattr(&self, cred: &Credentials, object: u64, name: &[u8]) -> Result<()> {
        let charge = Charge::free(ATTRIBUTES_COST);
        self.change(charge, Some(cred), |op| xattr::remove(op, object, name)).await
    }

    /// The entries of the NFSv4 ACL of a node.
    ///
    /// # Errors
    /// Refusals of rights.
    pub async fn acl(&self, cred: &Credentials, object: u64) -> Result<Vec<Ace>> {
        self.look(Some(cred), |op| edit::acl(op, object)).await
    }

    /// Replaces the NFSv4 ACL of a node, and with it its mode.
    ///
    /// # Errors
    /// Refusals of rights; [`FsError::BadAcl`].
    pub async fn set_acl(&self, cred: &Credentials, object: u64, aces: &[Ace]) -> Result<()> {
        let charge = Charge::write(ATTRIBUTES_COST);
        self.change(charge, Some(cred), |op| edit::set_acl(op, object, aces, PFlags::empty())).await
    }

    /// The limit of a user, group or project; none if there is none.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn quota(&self, holder: Holder, resource: Resource) -> Result<Option<u64>> {
        self.look(None, |op| quota::limit(op.tx, holder, resource)).await
    }

    /// What a user, group or project has used, as of the last sync.
    ///
    /// # Errors
    /// Those of reading.
    pub async fn used(&self, holder: Holder, resource: Resource) -> Result<u64> {
        self.look(None, |op| quota::used(op.tx, holder, resource)).await
    }

    /// Sets the limit of a user, group or project; 0 takes it away.
    ///
    /// # Errors
    /// Those of a change.
    pub async fn set_quota(&self, holder: Holder, resource: Resource, limit: u64) -> Result<()> {
        let charge = Charge::write(ATTRIBUTES_COST);
        self.change(charge, None, |op| {
            // What a limit is counted against is known to the master node only.
            op.log_unrecorded();
            quota::set_limit(op.tx, holder, resource, limit)
        })
        .await
    }
}

/// What is not stored has no extended attributes.
fn check_stored(object: u64) -> Result<()> {
    match Virtual::of(object) {
        Some(_) => Err(Error::new(Kind::Unsupported, FsError::XattrsOff)),
        None => Ok(()),
    }
}
