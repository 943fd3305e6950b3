//! Makes changes durable.

use cenote_rt::Result;

use super::Mount;

impl Mount {
    /// Makes all earlier changes of a node durable, and all earlier changes of names (`fsync`).
    /// Does nothing with `sync=disabled`.
    ///
    /// # Errors
    /// Errors of the pool, which is then suspended.
    pub async fn fsync(&self, object: u64) -> Result<()> {
        self.make_durable(Some(object)).await
    }

    /// Makes all earlier changes durable (`syncfs`).
    ///
    /// # Errors
    /// The errors of [`fsync`](Self::fsync).
    pub async fn sync(&self) -> Result<()> {
        self.make_durable(None).await
    }

    pub(super) async fn make_durable(&self, object: Option<u64>) -> Result<()> {
        self.refresh().await?;
        if self.is_read_only {
            return Ok(());
        }
        self.engine.intent_logs().commit(&self.head, object).await
    }
}
