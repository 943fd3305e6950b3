//! The paths of the daemon's state and sockets.
//!
//! | | root | others |
//! |---|---|---|
//! | state (`CENOTE_STATE_DIR`) | `/var/lib/cenote` | `cenote` in `$XDG_STATE_HOME` |
//! | socket (`CENOTE_SOCKET`) | `control.sock` there | the same |
//! | NBD | `nbd.sock` there | the same |
//! | NBD over TCP (`CENOTE_NBD_LISTEN`) | off | off |
//! | certificate for TCP (`CENOTE_NBD_TLS_CERTIFICATES`) | none: not encrypted | the same |
//!
//! `$XDG_STATE_HOME` defaults to `~/.local/state`.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cenote_cli::environment;

/// The paths and addresses of one daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// The directory of its state.
    pub(super) state: PathBuf,
    /// The socket for commands.
    pub(super) socket: PathBuf,
    /// `HOST:PORT` for NBD over TCP.
    pub(super) nbd_listen: Option<String>,
    /// The directory of the certificate for NBD over TCP; `None` for no encryption.
    pub(super) nbd_certificates: Option<PathBuf>,
    /// Whether clients need a certificate as well (`CENOTE_NBD_TLS_VERIFY_PEER=1`).
    pub(super) nbd_verifies: bool,
}

/// Paths that the daemon of this process opens: as configured, and with links resolved. Commands
/// bring their callers' environment, which may differ.
static KEPT: OnceLock<Vec<PathBuf>> = OnceLock::new();

impl Place {
    /// Returns the place that the environment determines, `None` without a home directory.
    pub(super) fn of_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        // Absolute, because the daemon changes its working directory.
        let absolute = |path: PathBuf| std::path::absolute(&path).unwrap_or(path);
        let state = absolute(environment::state_folder()?);
        let socket = variable("CENOTE_SOCKET").map(PathBuf::from).map(absolute);
        let socket = socket.unwrap_or_else(|| state.join("control.sock"));
        let nbd_listen = variable("CENOTE_NBD_LISTEN");
        let nbd_listen = nbd_listen.map(|address| address.to_string_lossy().into_owned());
        let nbd_certificates = variable("CENOTE_NBD_TLS_CERTIFICATES");
        let nbd_certificates = nbd_certificates.map(PathBuf::from).map(absolute);
        let nbd_verifies = variable("CENOTE_NBD_TLS_VERIFY_PEER").is_some_and(|value| value != "0");
        Some(Self { state, socket, nbd_listen, nbd_certificates, nbd_verifies })
    }

    /// Passes this place to a daemon that this process starts.
    pub(super) fn give_to(&self, command: &mut Command) {
        command.env("CENOTE_STATE_DIR", &self.state).env("CENOTE_SOCKET", &self.socket);
        if let Some(folder) = &self.nbd_certificates {
            command.env("CENOTE_NBD_TLS_CERTIFICATES", folder);
        }
    }

    /// Makes this the place of this process, which is a daemon. To be called when its directory
    /// exists and nothing is mounted: later the paths may lead through its own mounts.
    pub(super) fn become_own(&self) {
        let folder = self.socket.parent().and_then(|folder| folder.canonicalize().ok());
        let socket = folder.zip(self.socket.file_name()).map(|(folder, name)| folder.join(name));
        let given = [self.state.clone(), self.socket.clone()];
        let resolved = self.state.canonicalize().ok().into_iter().chain(socket);
        // A process is one daemon at most.
        let _ = KEPT.set(given.into_iter().chain(resolved).collect());
    }

    /// Creates the directory of the state. Other users may reach the socket in it, where they are
    /// identified.
    pub(super) fn make(&self) -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.state)
    }

    /// Returns the cache file of the imported pools.
    pub(super) fn pools(&self) -> PathBuf {
        environment::cache_file(&self.state)
    }

    /// Returns a path of this process's daemon at or below a directory.
    pub(super) fn kept_within(folder: &Path) -> Option<&'static Path> {
        let kept = KEPT.get().map(Vec::as_slice).unwrap_or_default();
        kept.iter().map(PathBuf::as_path).find(|kept| kept.starts_with(folder))
    }

    /// Returns the socket for NBD.
    pub(super) fn nbd(&self) -> PathBuf {
        self.state.join("nbd.sock")
    }

    /// Returns the lock file, locked while the daemon runs.
    pub(super) fn lock(&self) -> PathBuf {
        self.state.join("daemon.lock")
    }

    /// Returns the log file.
    pub(super) fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }
}
