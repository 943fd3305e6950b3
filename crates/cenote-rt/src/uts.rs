//! The host as its kernel names it (`uname`), for records of who changed a pool.

use std::ffi::CStr;
use std::fmt;

/// Names of the host and its kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uts {
    /// Name of the host in its network.
    pub node: String,
    /// Release of the kernel.
    pub release: String,
    /// Version of the kernel.
    pub version: String,
    /// Kind of its processor.
    pub machine: String,
}

impl Uts {
    /// Returns the names of this host; in a simulation, the same names on every host.
    #[must_use]
    pub fn here() -> Self {
        if crate::simulation::is_here() {
            let [node, release, version, machine] =
                ["simulated", "1.0", "#1", "none"].map(str::to_owned);
            return Self { node, release, version, machine };
        }
        let found = rustix::system::uname();
        let text = |name: &CStr| name.to_string_lossy().into_owned();
        Self {
            node: text(found.nodename()),
            release: text(found.release()),
            version: text(found.version()),
            machine: text(found.machine()),
        }
    }
}

impl fmt::Display for Uts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, release, version, machine } = self;
        write!(f, "{node} {release} {version} {machine}")
    }
}
