//! Finds pools: reads the labels of devices and groups devices into pools.
//!
//!     paths ──> devices ──labels──> Found ──group by pool──> Candidate
//!               (bounded           config of highest txg     top-level configs of highest txg,
//!                concurrency)      of all four labels        holes and missing slots filled
//!
//! Labels are hints: no uberblock checksum covers them, each describes its own top-level vdev only,
//! and any of them may be stale. A candidate merges them, which is enough to open the MOS; the MOS
//! is authoritative ([`crate::Pool::open`]).
//!
//! Special cases (spec 01 §16.1):
//! * two devices that claim to be the same leaf: the later label wins, then the one with more valid
//!   labels;
//! * a device that was removed from its pool, or never added (txg 0): ignored;
//! * pools with the same name: distinguished by guid;
//! * idle hot spares and cache devices: known by guid only, offered to every candidate.

mod candidate;
mod device;
mod mmp;
mod opened;
mod scan;

pub use candidate::Candidate;
pub use cenote_vdev::labels::{DeviceLabels, Label};
pub use device::{AuxDevice, Found};
pub use mmp::{Host, LastUse, watch_time};
pub use opened::{DeviceError, PoolDevice};
pub use scan::{FindError, Scan, ScanOptions, scan, scan_devices};
