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
        let log = self.head.log();
        if self.is_read_only || log.mode() == cenote_pool::engine::zil::SyncMode::Disabled {
            return Ok(());
        }
        // What the log cannot tell of is durable with its txg only. Records of that txg go with it.
        if self.facts.unrecorded() > self.engine.uberblock().txg {
            return self.engine.sync().await.map(drop);
        }
        self.engine.commit_log(&self.head, object).await
    }
}
