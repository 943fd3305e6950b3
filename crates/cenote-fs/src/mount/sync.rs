//! Making changes durable.

use cenote_rt::Result;

use super::Mount;

impl Mount {
    /// What was done with a node before this call is on disk when it returns, with all that was
    /// done to names (`fsync`). With `sync=disabled` it does nothing.
    ///
    /// # Errors
    /// Those of the pool: it is suspended then.
    pub async fn fsync(&self, object: u64) -> Result<()> {
        self.make_durable(Some(object)).await
    }

    /// The same for all nodes (`syncfs`).
    ///
    /// # Errors
    /// As [`fsync`](Self::fsync).
    pub async fn sync(&self) -> Result<()> {
        self.make_durable(None).await
    }

    pub(super) async fn make_durable(&self, object: Option<u64>) -> Result<()> {
        self.refresh().await?;
        if self.is_read_only {
            return Ok(());
        }
        self.engine.commit_log(&self.head, object).await
    }
}
