//! Rollback of mounted file systems, and receiving into them: requests are suspended meanwhile, and
//! the mount stays.

use cenote_cli::{CommandResult, Exit, Suspended};
use cenote_engine::OpError;
use cenote_rt::Result;
use cenote_serve::fuse::Suspension;

use super::log;
use super::mounts::Mounts;

impl Mounts {
    /// Suspends all requests to a file system whose contents are about to be replaced by those of
    /// a snapshot or of another dataset, if it is mounted. If that fails, the file system is
    /// unmounted by force.
    pub(super) async fn suspend(
        &self,
        dataset: &str,
        contents: &str,
        action: &str,
    ) -> Result<Suspended, Exit> {
        let mut suspended = Suspended::default();
        let Some(fuse) = self.fuse_of(dataset) else { return Ok(suspended) };
        if !fuse.can_be_suspended() {
            suspended.unmounted = self.unmount_temporarily(&[dataset.to_owned()], true).await?;
            return Ok(suspended);
        }
        let mount = fuse.suspend(contents).await.map_err(|error| {
            let why = error.cause::<OpError>().map_or(error.to_string(), ToString::to_string);
            Exit::cannot(action, dataset, why)
        })?;
        suspended.mount = Some(mount);
        Ok(suspended)
    }

    /// Resumes the requests.
    pub(super) async fn resume(&self, suspended: Suspended) -> CommandResult {
        if let Some(Err(error)) = match suspended.mount.map(Suspension::resume) {
            Some(resumed) => Some(resumed.await),
            None => None,
        } {
            // Its requests fail; it is mounted again when the change is processed.
            log::warn!(cause = %error, "not resumed");
        }
        self.mount_again(&suspended.unmounted).await
    }
}
