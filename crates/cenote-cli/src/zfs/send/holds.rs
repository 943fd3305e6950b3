//! Temporary holds: they keep the snapshots of a package until it has been sent.
//!
//! OpenZFS's tags are `.send-PID-NUMBER`, and so are these. If the process dies, the holds end when
//! the pool is opened for writing again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_engine::Engine;
use cenote_pool::dsl::deleg::Requester;

use crate::io::Exit;

/// Holds that are made in one txg.
const AT_ONCE: usize = 1000;

/// Number of the last tag of this process.
static LAST: AtomicU64 = AtomicU64::new(0);

/// The holds of a command.
#[derive(Debug)]
pub(super) struct Holds {
    engine: Arc<Engine>,
    requester: Requester,
    tag: String,
}

impl Holds {
    /// Holds snapshots.
    pub(super) async fn place(
        engine: &Arc<Engine>,
        requester: Requester,
        wanted: &[String],
    ) -> Result<Self, Exit> {
        let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
        let tag = format!(".send-{}-{number}", std::process::id());
        let holds = Self { engine: Arc::clone(engine), requester, tag };
        for names in wanted.chunks(AT_ONCE) {
            let pairs = names.iter().map(|name| (name.clone(), holds.tag.clone())).collect();
            let held = engine.snapshots().by(&holds.requester).hold(pairs, true).await;
            if let Err(error) = held {
                holds.release().await;
                return Err(Exit::of(&error, format!("cannot hold snapshots: {error}")));
            }
        }
        Ok(holds)
    }

    /// Releases them. In a pool that was closed meanwhile they end when it is opened again.
    pub(super) async fn release(self) {
        let Self { engine, requester, tag } = self;
        let _ = engine.snapshots().by(&requester).release_temporary(&tag).await;
    }
}
