//! Volumes over NBD: what the pools offer, and the sockets that it is offered on.
//!
//! The property `cenote:nbd` decides, which children inherit: `on` exports a volume under its name,
//! and its snapshots, read-only, where `snapdev=visible`; `volmode=none` keeps it back. Properties
//! are looked at when a client comes. Who has a volume open keeps it, whatever is set later, and
//! keeps it from being destroyed, and its pool from being exported.
//!
//! Clients of the socket in the file system are those whom its rights let in: the daemon's user,
//! and root. Whoever can connect to the TCP port may read and write every export.

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

/// How often the pools are read for a client whose state was given up meanwhile.
const READ_TRIES: u32 = 8;
/// The property that exports a volume.
const PROPERTY: &str = "cenote:nbd";
/// `volmode` of volumes that nobody is to see.
const VOLMODE_NONE: u64 = 3;
/// `snapdev` of volumes whose snapshots are to be seen.
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
            // A state that is given up while it is read is read again: a client cannot do that.
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

/// How a volume is shown.
struct Shown {
    is_read_only: bool,
    has_snapshots: bool,
}

/// How a dataset is shown, if it is.
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

/// Why nobody's certificate can be looked at.
const NO_CERTIFICATES: &str = "CENOTE_NBD_TLS_CERTIFICATES is not set";

/// What the TCP port is encrypted with; none if it is not to be.
fn tls_of(place: &Place) -> Result<Option<Tls>> {
    match &place.nbd_certificates {
        Some(folder) => Tls::from_folder(folder, place.nbd_verifies).map(Some),
        // Asked for without a certificate of ours: not in the clear.
        None if place.nbd_verifies => Err(Error::new(Kind::Invalid, NO_CERTIFICATES)),
        None => Ok(None),
    }
}

/// Serves exports on the socket in the file system, which is listened on already, and on a TCP
/// port where one is asked for, encrypted where that is.
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
                log::warn("volumes not exported", &[("path", &path.display()), ("cause", &error)]);
            }
        }
    }
    if let Some(address) = &place.nbd_listen {
        let address = Address::Tcp(address.clone());
        let started = async { Server::start(Arc::clone(exports), &address, tls_of(place)?).await };
        match started.await {
            Ok(server) => servers.push(server),
            Err(error) => {
                log::warn("volumes not exported", &[("address", &address), ("cause", &error)]);
            }
        }
    }
    servers
}
