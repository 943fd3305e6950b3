//! NBD exports: the volumes of the pools, and the sockets on which they are served.
//!
//! The property `cenote:nbd`, which children inherit, decides: `on` exports a volume under its
//! name, and its snapshots read-only if `snapdev=visible`; `volmode=none` prevents the export.
//! Properties are read when a client connects. A connected client keeps the volume, whatever is set
//! later; a volume in use cannot be destroyed, and its pool cannot be exported.
//!
//! Clients of the Unix socket are those whom its permissions admit: the daemon's user, and root.
//! Any client that can connect to the TCP port may read and write every export.

use std::os::unix::net::UnixListener;
use std::sync::{Arc, Weak};

use cenote_fs::FsError;
use cenote_pool::props::PropValue;
use cenote_pool::{Dataset, DatasetKind};
use cenote_rt::net::{Address, Listener, Tls};
use cenote_rt::{BoxFuture, Error, Kind, Result};
use cenote_serve::nbd::{self, Exports, Offer, Offers, Server};

use super::log;
use super::place::Place;
use super::pools::Pools;

/// Attempts to read the pools if blocks of the state are reused meanwhile.
const READ_TRIES: u32 = 8;
/// The property that exports a volume.
const PROPERTY: &str = "cenote:nbd";
/// `volmode=none`.
const VOLMODE_NONE: u64 = 3;
/// `snapdev=visible`.
const SNAPDEV_VISIBLE: u64 = 1;

/// The volumes of all pools.
#[derive(Debug)]
pub(super) struct Volumes(pub(super) Weak<Pools>);

impl Volumes {
    async fn all(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        let engines = self.0.upgrade().map(|pools| pools.offering()).unwrap_or_default();
        for engine in engines {
            let view = engine.view().await?;
            for dataset in view.datasets().await? {
                let Some(shown) = shown(&dataset).await? else { continue };
                names.push(dataset.name().to_owned());
                if shown.has_snapshots {
                    let snapshots = dataset.snapshots().await?;
                    names.extend(snapshots.iter().map(|snapshot| snapshot.name().to_owned()));
                }
            }
        }
        names.sort();
        Ok(names)
    }

    async fn one(&self, name: &str) -> Result<Offer> {
        if name.is_empty() {
            let all = self.all().await?;
            let only = nbd::only(&all).ok_or_else(absent)?;
            return Box::pin(self.one(only)).await;
        }
        let pools = self.0.upgrade().ok_or_else(absent)?;
        let first = name.split(['/', '@']).next().unwrap_or_default();
        let mut engines = pools.offering().into_iter();
        let engine = engines.find(|engine| engine.name() == first).ok_or_else(absent)?;
        let head = name.split('@').next().unwrap_or_default();
        let head = engine.view().await?.dataset(head).await?;
        let shown = shown(&head).await?.ok_or_else(absent)?;
        if name.contains('@') && !shown.has_snapshots {
            return Err(absent());
        }
        Ok(Offer { engine, name: name.to_owned(), is_read_only: shown.is_read_only })
    }
}

impl Offers for Volumes {
    fn names(&self) -> BoxFuture<'_, Result<Vec<String>>> {
        Box::pin(async move {
            // A state whose blocks were reused is read again, because clients do not retry.
            for _ in 1..READ_TRIES {
                match self.all().await {
                    Err(error) if error.kind() == Kind::Overtaken => {}
                    read => return read,
                }
            }
            self.all().await
        })
    }

    fn find<'a>(&'a self, name: &'a str) -> BoxFuture<'a, Result<Offer>> {
        Box::pin(async move {
            for _ in 1..READ_TRIES {
                match self.one(name).await {
                    Err(error) if error.kind() == Kind::Overtaken => {}
                    read => return read,
                }
            }
            self.one(name).await
        })
    }
}

fn absent() -> Error {
    Error::not_found(FsError::NotAVolume)
}

/// How a volume is exported.
struct Shown {
    is_read_only: bool,
    has_snapshots: bool,
}

/// Returns how a dataset is exported, if it is.
async fn shown(dataset: &Dataset) -> Result<Option<Shown>> {
    if dataset.is_snapshot() || dataset.kind().await? != DatasetKind::Volume {
        return Ok(None);
    }
    let props = dataset.props().await?;
    let is_on = matches!(
        props.get(PROPERTY).await?.map(|row| row.value),
        Some(PropValue::Text(text)) if text == "on"
    );
    let mut numbers = [0; 3];
    for (number, name) in numbers.iter_mut().zip(["volmode", "snapdev", "readonly"]) {
        if let Some(PropValue::Number(value)) = props.get(name).await?.map(|row| row.value) {
            *number = value;
        }
    }
    let [volmode, snapdev, readonly] = numbers;
    let shown = Shown { is_read_only: readonly == 1, has_snapshots: snapdev == SNAPDEV_VISIBLE };
    Ok((is_on && volmode != VOLMODE_NONE).then_some(shown))
}

/// There are no certificates to verify clients with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("CENOTE_NBD_TLS_CERTIFICATES is not set")]
struct NoCertificates;

/// Returns the TLS settings of the TCP port, `None` for no encryption.
fn tls_of(place: &Place) -> Result<Option<Tls>> {
    match &place.nbd_certificates {
        Some(folder) => Tls::from_folder(folder, place.nbd_verifies).map(Some),
        // Clients are to be verified, but the server has no certificate: it does not serve in the
        // clear.
        None if place.nbd_verifies => Err(Error::new(Kind::Invalid, NoCertificates)),
        None => Ok(None),
    }
}

/// Serves exports on the Unix socket, which is already listening, and on the TCP port if one is
/// configured, with TLS if configured.
pub(super) async fn serve(
    exports: &Arc<Exports>,
    socket: Option<UnixListener>,
    place: &Place,
) -> Vec<Server> {
    let mut servers = Vec::new();
    if let Some(socket) = socket {
        match Listener::over(socket, place.nbd()) {
            Ok(listener) => servers.push(Server::on(listener, Arc::clone(exports), None)),
            Err(error) => {
                let path = place.nbd();
                log::warn!(path = %path.display(), cause = %error, "volumes not exported");
            }
        }
    }
    if let Some(address) = &place.nbd_listen {
        let address = Address::Tcp(address.clone());
        let started = async { Server::start(Arc::clone(exports), &address, tls_of(place)?).await };
        match started.await {
            Ok(server) => servers.push(server),
            Err(error) => {
                log::warn!(address = %address, cause = %error, "volumes not exported");
            }
        }
    }
    servers
}
