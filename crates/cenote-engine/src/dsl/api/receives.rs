//! Receiving a substream, for callers of the engine (spec 07 B9).
//!
//! ```text
//!   begin ──> Reception ── changes of its head, with their points ──> end
//!                 `── the stream ends early ──> abort: kept if resumable, else destroyed
//! ```

use std::sync::Arc;

use cenote_rt::{Error, Result};

use crate::dsl::operation::Request;
use crate::dsl::receive::task::{BeginReceive, EndReceive};
use crate::dsl::receive::{NewReceive, Reception, end};
use crate::{Answer, Engine, OpError};

/// Number of repetitions because something was created or changed in the same txg.
const RETRIES_MAX: usize = 8;

/// Operations that receive; made by [`Engine::receives`].
#[derive(Debug, Clone, Copy)]
pub struct Receives<'e> {
    pub(crate) engine: &'e Engine,
}

impl Receives<'_> {
    /// Begins a receive: creates the dataset that is received into, or opens that of an interrupted
    /// receive. Until [`end`](Self::end) the target is as before.
    ///
    /// # Errors
    /// [`ReceiveRefusal`](crate::ReceiveRefusal) and [`OpError`] as the causes of refusals, after
    /// which nothing has changed; errors of the pool.
    pub async fn begin(self, new: NewReceive) -> Result<Reception> {
        let mut tries = 0;
        loop {
            let answer = Answer::new();
            let task = BeginReceive { new: new.clone(), answer: Arc::clone(&answer) };
            self.engine.run_task(Box::new(task)).await?;
            match answer.take() {
                Err(error) if is_same_txg(&error) && tries < RETRIES_MAX => tries += 1,
                result => return result,
            }
        }
    }

    /// Ends a receive: takes the snapshot, and puts the contents in place of those of an existing
    /// target, which must not be owned. If this fails, nothing has changed, and the receive can be
    /// ended again or aborted.
    ///
    /// # Errors
    /// As [`begin`](Self::begin).
    pub async fn end(self, reception: &Reception) -> Result<()> {
        let mut tries = 0;
        loop {
            let answer = Answer::new();
            let task = EndReceive {
                new: reception.new.clone(),
                head: Arc::clone(&reception.head),
                is_child: reception.is_child,
                answer: Arc::clone(&answer),
            };
            self.engine.run_task(Box::new(task)).await?;
            match answer.take() {
                Err(error) if is_same_txg(&error) && tries < RETRIES_MAX => tries += 1,
                result => return result,
            }
        }
    }

    /// Gives a receive up. What was received is kept, and is durable, if the receive is resumable;
    /// otherwise it is destroyed.
    ///
    /// # Errors
    /// Errors of the pool; `Kind::Busy` if snapshots or children were made of what is to be
    /// destroyed.
    pub async fn abort(self, reception: Reception) -> Result<()> {
        if reception.is_resumable {
            self.engine.sync().await?;
            return Ok(());
        }
        let name = reception.dataset.clone();
        drop(reception);
        self.engine.datasets().destroy(&name).await
    }

    /// Destroys what an interrupted receive into `target` has left (`zfs receive -A`).
    ///
    /// # Errors
    /// [`ReceiveRefusal::NothingSaved`](crate::ReceiveRefusal::NothingSaved); `Kind::Busy` while it
    /// is being received; errors of the pool.
    pub async fn discard(self, target: &str) -> Result<()> {
        let name = self.engine.mos.inspect(|tx| end::saved_dataset(tx, target)).await?;
        let request = Request::free().dooming(&name).changing(&[&name]);
        let target = target.to_owned();
        self.engine
            .datasets()
            .operate(request, move |tx, env, effects| {
                // Another request may have ended it since.
                let name = end::saved_dataset(tx, &target)?;
                crate::dsl::destroy::head(tx, env, effects, &name)
            })
            .await
    }
}

fn is_same_txg(error: &Error) -> bool {
    matches!(error.cause(), Some(OpError::SameTxg))
}
