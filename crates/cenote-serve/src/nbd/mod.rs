//! An NBD server for volumes.
//!
//! ```text
//!   Server ── accepts ──> connection ── handshake: which export, chunks, contexts
//!                                    `─ requests ──> Export: a volume, or a snapshot of one
//! ```
//!
//! Fixed newstyle, on unix and TCP sockets: several exports by name, structured replies, block
//! status with holes, flushes, FUA, trim, zeros with and without holes, several connections that
//! share one volume. A resized volume has its new size for new connections. With a certificate,
//! connections start unencrypted, and clients that do not then encrypt them are rejected.
//!
//! Data covered by an answered flush or FUA request survives any crash; so do all requests answered
//! before the server was stopped.
//!
//! Source: the protocol's description of the NBD project, `doc/proto.md`.

mod connection;
mod export;
mod handshake;
mod negotiation;
mod offers;
pub mod options;
mod room;
pub mod wire;

use std::sync::Arc;
use std::time::Duration;

use cenote_rt::net::{Address, Listener, Tls};
use cenote_rt::{JoinHandle, Result, Semaphore};

use crate::stop::Stop;
use connection::Limits;
pub use export::Exports;
use negotiation::{NEGOTIATING_MAX, Negotiations};
pub use offers::{Offer, Offers, Subtree, only};
use room::CommonRoom;

/// Why the connection of a client is closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// It did not select an export in time, or while others waited.
    #[error("a client does not select an export")]
    Undecided,
    /// It wants flags that the protocol does not have.
    #[error("a client wants flags that nobody knows")]
    Flags,
    /// It sends an option that is longer than what is skipped.
    #[error("an option is too long")]
    OptionTooLong,
    /// It sends too many options.
    #[error("a client asks and asks")]
    TooManyOptions,
    /// It announces more data than a request may have.
    #[error("a write is too long")]
    WriteTooLong,
    /// It keeps memory that others wait for.
    #[error("a client that stopped reading or sending kept others waiting")]
    InTheWay,
    /// Its connection ended before the data of a write.
    #[error("a client ended in the middle of a write")]
    EndedInWrite,
}

/// The context of data and holes.
const CONTEXT: &str = "base:allocation";
/// Its number in our answers.
const CONTEXT_ID: u32 = 1;
/// Longest data of a request or an answer.
const PAYLOAD_MAX: u32 = 32 << 20;
/// Maximum number of clients that have selected an export.
const CLIENTS_MAX: u32 = 256;
/// Maximum number of connections. Some are of clients that negotiate, and as many are of clients
/// that were displaced and are about to end.
const CONNECTIONS_MAX: u32 = CLIENTS_MAX + 2 * NEGOTIATING_MAX as u32;
/// Pause after a failed `accept` (for example when file descriptors run out).
const PAUSE: Duration = Duration::from_millis(100);
/// Time limit for clients to receive their last answers.
const LAST_ANSWERS_MAX: Duration = Duration::from_secs(10);

/// A server on one socket.
#[derive(Debug)]
pub struct Server {
    exports: Arc<Exports>,
    address: Address,
    stop: Arc<Stop>,
    /// Each connection takes one permit.
    connections: Arc<Semaphore>,
    listening: JoinHandle<()>,
}

impl Server {
    /// Starts to serve exports.
    ///
    /// # Errors
    /// `Kind::Busy` if another server listens there; `Kind::Io`.
    pub async fn start(exports: Arc<Exports>, address: &Address, tls: Option<Tls>) -> Result<Self> {
        Ok(Self::on(Listener::bind(address).await?, exports, tls))
    }

    /// Starts to serve exports on an existing socket.
    #[must_use]
    pub fn on(listener: Listener, exports: Arc<Exports>, tls: Option<Tls>) -> Self {
        let address = listener.address().clone();
        let stop = Arc::new(Stop::default());
        let connections = Arc::new(Semaphore::new(CONNECTIONS_MAX as usize));
        let listening = cenote_rt::spawn(listen(
            listener,
            Arc::clone(&exports),
            tls,
            Arc::clone(&stop),
            Arc::clone(&connections),
        ));
        Self { exports, address, stop, connections, listening }
    }

    /// Returns the address, with the assigned port.
    #[must_use]
    pub fn address(&self) -> &Address {
        &self.address
    }

    /// Stops accepting clients, answers received requests, and makes everything durable.
    ///
    /// # Errors
    /// Errors of the pools; the message names every volume that could not be flushed.
    pub async fn stop(self) -> Result<()> {
        self.stop.request();
        // It ends by itself, and drops the socket.
        let _ = self.listening.await;
        // Clients keep their volumes open: the volumes are flushed before the last client
        // disconnects, and again after that.
        let before = self.exports.flush().await;
        // A client that does not receive its answers does not delay the others.
        let all = self.connections.acquire_many(CONNECTIONS_MAX);
        let _ = cenote_rt::until(LAST_ANSWERS_MAX, all).await;
        // A volume that failed before may be closed by now, and is not tried again.
        self.exports.flush().await.and(before)
    }
}

async fn listen(
    listener: Listener,
    exports: Arc<Exports>,
    tls: Option<Tls>,
    stop: Arc<Stop>,
    connections: Arc<Semaphore>,
) {
    let common = Arc::new(CommonRoom::default());
    let places = Arc::new(Semaphore::new(CLIENTS_MAX as usize));
    let mut negotiations = Negotiations::default();
    loop {
        let permit = stop.or(Arc::clone(&connections).acquire_owned()).await;
        let Some(Ok(permit)) = permit else { return };
        let Some(accepted) = stop.or(listener.accept()).await else { return };
        let Ok(halves) = accepted else {
            cenote_rt::sleep(PAUSE).await;
            continue;
        };
        let (exports, stop) = (Arc::clone(&exports), Arc::clone(&stop));
        let (tls, negotiation) = (tls.clone(), negotiations.begin());
        let limits = Limits { places: Arc::clone(&places), common: Arc::clone(&common) };
        cenote_rt::spawn(async move {
            // A client that violates the protocol is disconnected; the error is not reported.
            let tls = tls.as_ref();
            let serve = connection::serve(&exports, tls, halves, &stop, negotiation, limits);
            let _ = Box::pin(serve).await;
            drop(permit);
        });
    }
}
