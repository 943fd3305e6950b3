//! Serves the contents of a pool: file systems mounted through FUSE, and volumes over NBD.
//!
//! ```text
//!   kernel ──/dev/fuse──> fuse: adapter ── Vfs ──> cenote_fs::Mount
//!   clients ──sockets───> nbd: handshake, connection ── Export ──> cenote_fs::WritableVolume
//! ```
//!
//! Both start a request on the thread that received it, and continue it as a task only if it has to
//! wait: requests served from memory are answered without waking a thread.

pub mod fuse;
pub mod nbd;
mod signals;
mod stop;

pub use signals::Signals;
