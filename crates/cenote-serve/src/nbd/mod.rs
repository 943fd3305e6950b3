//! Volumes over NBD: a server of our own.
//!
//! ```text
//!   Server ── accepts ──> connection ── handshake: which export, chunks, contexts
//!                                    `─ requests ──> Export: a volume, or a snapshot of one
//! ```
//!
//! Fixed newstyle, on unix and TCP sockets: several exports by name, structured replies, status of
//! blocks with holes, flushes, FUA, trim, zeros with and without holes, several connections that
//! share one volume. A volume that got another size has it for new connections. With a certificate
//! connections begin in the clear, and clients that do not encrypt them then are turned away.
//!
//! What was answered to a flush, or to a request with FUA, survives any crash; so does what was
//! answered before the server was stopped.
//!
//! Source: the protocol's description of the NBD project, `doc/proto.md`.

mod connection;
mod export;
mod handshake;
mod offers;
pub mod options;
mod room;
pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use cenote_rt::net::{Address, Listener, Tls};
use cenote_rt::{JoinHandle, Result, Semaphore};

use crate::stop::Stop;
pub use export::Exports;
pub use offers::{Offer, Offers, Subtree, only};
use room::CommonRoom;

/// The context of data and holes.
const CONTEXT: &str = "base:allocation";
/// Its number in our answers.
const CONTEXT_ID: u32 = 1;
/// Longest data of a request or an answer.
const PAYLOAD_MAX: u32 = 32 << 20;
/// Clients at a time.
const CLIENTS_MAX: u32 = 256;
/// How long nobody is let in when letting in failed, as it does when descriptors run out.
const PAUSE: Duration = Duration::from_millis(100);
/// How long clients have to take their last answers.
const FAREWELL: Duration = Duration::from_secs(10);

/// A server on one socket.
#[derive(Debug)]
pub struct Server {
    exports: Arc<Exports>,
    address: Address,
    stop: Arc<Stop>,
    /// One is taken by each client.
    places: Arc<Semaphore>,
    listening: JoinHandle<()>,
}

impl Server {
    /// Serves exports from here on.
    ///
    /// # Errors
    /// `Kind::Busy` if somebody listens there; `Kind::Io`.
    pub async fn start(exports: Arc<Exports>, address: &Address, tls: Option<Tls>) -> Result<Self> {
        Ok(Self::on(Listener::bind(address).await?, exports, tls))
    }

    /// Serves exports on a socket that is there.
    #[must_use]
    pub fn on(listener: Listener, exports: Arc<Exports>, tls: Option<Tls>) -> Self {
        let address = listener.address().clone();
        let stop = Arc::new(Stop::default());
        let places = Arc::new(Semaphore::new(CLIENTS_MAX as usize));
        let listening = cenote_rt::spawn(listen(
            listener,
            Arc::clone(&exports),
            tls,
            Arc::clone(&stop),
            Arc::clone(&places),
        ));
        Self { exports, address, stop, places, listening }
    }

    /// Where it listens, with the port that it got.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Lets nobody in any more, answers what was asked, and makes everything durable.
    ///
    /// # Errors
    /// Those of the pools; the message names every volume that could not be flushed.
    pub async fn stop(self) -> Result<()> {
        self.stop.wish();
        // It ends by itself, and drops the socket.
        let _ = self.listening.await;
        // Clients keep their volumes open: flushed before the last goes, and then again.
        let before = self.exports.flush().await;
        // Who does not take its answers does not hold the others up.
        let _ = cenote_rt::until(FAREWELL, self.places.acquire_many(CLIENTS_MAX)).await;
        // A volume that failed before may be closed by now, and is not tried again.
        self.exports.flush().await.and(before)
    }
}

async fn listen(
    listener: Listener,
    exports: Arc<Exports>,
    tls: Option<Tls>,
    stop: Arc<Stop>,
    places: Arc<Semaphore>,
) {
    let common = Arc::new(CommonRoom::default());
    loop {
        let Some(Ok(place)) = stop.or(Arc::clone(&places).acquire_owned()).await else { return };
        let Some(accepted) = stop.or(listener.accept()).await else { return };
        let Ok(halves) = accepted else {
            cenote_rt::sleep(PAUSE).await;
            continue;
        };
        let (exports, stop) = (Arc::clone(&exports), Arc::clone(&stop));
        let (tls, common) = (tls.clone(), Arc::clone(&common));
        cenote_rt::spawn(async move {
            // A client that breaks the rules is left; nobody else need hear of it.
            let serve = connection::serve(&exports, tls.as_ref(), halves, &stop, common);
            let _ = Box::pin(serve).await;
            drop(place);
        });
    }
}
