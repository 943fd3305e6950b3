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
    /// Returns the value of an extended attribute.
    ///
    /// # Errors
    /// [`FsError::NoXattr`] if it does not exist; permission errors.
    pub async fn xattr(&self, cred: &Credentials, object: u64, name: &[u8]) -> Result<Vec<u8>> {
        check_stored(object)?;
        let found = self.inspect(Some(cred), |op| xattr::get(op, object, name)).await?;
        found.ok_or_else(|| Error::not_found(FsError::NoXattr))
    }

    /// Returns the names of all extended attributes that the user may see.
    ///
    /// # Errors
    /// Read errors.
    pub async fn xattrs(&self, cred: &Credentials, object: u64) -> Result<Vec<Vec<u8>>> {
        check_stored(object)?;
        self.inspect(Some(cred), |op| xattr::list(op, object)).await
    }

    /// Sets an extended attribute. POSIX ACLs are extended attributes, and may change the mode.
    ///
    /// # Errors
    /// `Kind::Exists` or [`FsError::NoXattr`] if the condition does not hold; permission errors
    /// and quotas.
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
    /// [`FsError::NoXattr`] if it does not exist; permission errors.
    pub async fn remove_xattr(&self, cred: &Credentials, object: u64, name: &[u8]) -> Result<()> {
        let charge = Charge::free(ATTRIBUTES_COST);
        self.change(charge, Some(cred), |op| xattr::remove(op, object, name)).await
    }

    /// Returns the entries of the NFSv4 ACL of a node.
    ///
    /// # Errors
    /// Permission errors.
    pub async fn acl(&self, cred: &Credentials, object: u64) -> Result<Vec<Ace>> {
        self.inspect(Some(cred), |op| edit::acl(op, object)).await
    }

    /// Replaces the NFSv4 ACL of a node, and sets its mode accordingly.
    ///
    /// # Errors
    /// Permission errors; [`FsError::BadAcl`].
    pub async fn set_acl(&self, cred: &Credentials, object: u64, aces: &[Ace]) -> Result<()> {
        let charge = Charge::write(ATTRIBUTES_COST);
        self.change(charge, Some(cred), |op| edit::set_acl(op, object, aces, PFlags::empty())).await
    }

    /// Returns the quota of a user, group or project; `None` if there is none.
    ///
    /// # Errors
    /// Read errors.
    pub async fn quota(&self, holder: Holder, resource: Resource) -> Result<Option<u64>> {
        self.inspect(None, |op| quota::limit(op.tx, holder, resource)).await
    }

    /// Returns the usage of a user, group or project, as of the last sync.
    ///
    /// # Errors
    /// Read errors.
    pub async fn used(&self, holder: Holder, resource: Resource) -> Result<u64> {
        self.inspect(None, |op| quota::used(op.tx, holder, resource)).await
    }

    /// Sets the quota of a user, group or project; 0 removes it.
    ///
    /// # Errors
    /// Errors of the transaction.
    pub async fn set_quota(&self, holder: Holder, resource: Resource, limit: u64) -> Result<()> {
        let charge = Charge::write(ATTRIBUTES_COST);
        self.change(charge, None, |op| {
            // Quotas are in the master node, for which there are no log records.
            op.log_unrecorded();
            quota::set_limit(op.tx, holder, resource, limit)
        })
        .await
    }
}

/// Refuses control directories, which have no extended attributes.
fn check_stored(object: u64) -> Result<()> {
    match Virtual::of(object) {
        Some(_) => Err(Error::new(Kind::Unsupported, FsError::XattrsOff)),
        None => Ok(()),
    }
}
