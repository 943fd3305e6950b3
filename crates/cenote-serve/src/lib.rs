//! What a pool holds, for everybody: file systems mounted through FUSE, and volumes over NBD.
//!
//! ```text
//!   kernel ──/dev/fuse──> fuse: adapter ── Vfs ──> cenote_fs::Mount
//!   clients ──sockets───> nbd: handshake, connection ── Export ──> cenote_fs::WritableVolume
//! ```
//!
//! Both begin a request on the thread that received it and make a task of it only if it has to wait
//! for something: what is in memory is answered without a thread being woken.

pub mod fuse;
pub mod nbd;
mod signals;
mod stop;

pub use signals::Signals;
