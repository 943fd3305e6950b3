//! Where the daemon keeps what it remembers, and where it listens.
//!
//! | | root | others |
//! |---|---|---|
//! | state (`CENOTE_STATE_DIR`) | `/var/lib/cenote` | `cenote` in `$XDG_STATE_HOME` |
//! | socket (`CENOTE_SOCKET`) | `control.sock` there | the same |
//! | volumes over NBD | `nbd.sock` there | the same |
//! | the same by TCP (`CENOTE_NBD_LISTEN`) | nowhere | nowhere |
//! | its certificate (`CENOTE_NBD_TLS_CERTIFICATES`) | none: in the clear | the same |
//!
//! `$XDG_STATE_HOME` is `~/.local/state` where it is not set.

use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use cenote_cli::environment;

/// The folder and the socket of one daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// What it remembers.
    pub(super) state: PathBuf,
    /// Where it listens.
    pub(super) socket: PathBuf,
    /// `HOST:PORT` where volumes are served beside their socket.
    pub(super) nbd_listen: Option<String>,
    /// What is there is encrypted, by the certificate in that folder.
    pub(super) nbd_certificates: Option<PathBuf>,
    /// Clients must have one as well (`CENOTE_NBD_TLS_VERIFY_PEER=1`).
    pub(super) nbd_verifies: bool,
}

/// Paths that the daemon of this process opens: as they were given, and without links. The
/// environment of a command is the caller's, and does not tell them.
static KEPT: OnceLock<Vec<PathBuf>> = OnceLock::new();

impl Place {
    /// As the environment says; none if it says nothing and there is no home.
    pub(super) fn of_environment() -> Option<Self> {
        let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
        // Absolute: the daemon leaves the working directory that they are relative to.
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

    /// Has a daemon that is started by this process be at this place, whatever its own working
    /// directory.
    pub(super) fn give_to(&self, command: &mut Command) {
        command.env("CENOTE_STATE_DIR", &self.state).env("CENOTE_SOCKET", &self.socket);
        if let Some(folder) = &self.nbd_certificates {
            command.env("CENOTE_NBD_TLS_CERTIFICATES", folder);
        }
    }

    /// Makes this the place of this process, which is a daemon. To be called when its folder is
    /// there and nothing is mounted: later the paths may lead through mounts of its own.
    pub(super) fn become_own(&self) {
        let folder = self.socket.parent().and_then(|folder| folder.canonicalize().ok());
        let socket = folder.zip(self.socket.file_name()).map(|(folder, name)| folder.join(name));
        let given = [self.state.clone(), self.socket.clone()];
        let resolved = self.state.canonicalize().ok().into_iter().chain(socket);
        // A process is one daemon at most.
        let _ = KEPT.set(given.into_iter().chain(resolved).collect());
    }

    /// Makes the folder of the state. Others may reach the socket in it, and are told apart there.
    pub(super) fn make(&self) -> std::io::Result<()> {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(&self.state)
    }

    /// The pools that were in use.
    pub(super) fn pools(&self) -> PathBuf {
        environment::cache_file(&self.state)
    }

    /// Which of the paths that the daemon of this process opens lies at or below a folder.
    pub(super) fn kept_within(folder: &Path) -> Option<&'static Path> {
        let kept = KEPT.get().map(Vec::as_slice).unwrap_or_default();
        kept.iter().map(PathBuf::as_path).find(|kept| kept.starts_with(folder))
    }

    /// Where volumes are served.
    pub(super) fn nbd(&self) -> PathBuf {
        self.state.join("nbd.sock")
    }

    /// Held by the daemon as long as it runs.
    pub(super) fn lock(&self) -> PathBuf {
        self.state.join("daemon.lock")
    }

    /// What it says.
    pub(super) fn log(&self) -> PathBuf {
        self.state.join("daemon.log")
    }
}
