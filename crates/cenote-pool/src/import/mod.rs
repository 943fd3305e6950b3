//! Finding pools: which devices carry labels, which of them belong together, what they say.
//!
//!     paths ──> devices ──labels──> Found ──group by pool──> Candidate
//!               (bounded           config of highest txg     top-level configs of highest txg,
//!                concurrency)      of all four labels        holes and missing slots filled
//!
//! Labels are hints: they are not covered by checksums up from the uberblock, each describes its
//! own top-level vdev only, and any of them may be old. So a candidate is what the labels together
//! say at best, enough to open the MOS, where the whole truth lies ([`crate::Pool::open`]).
//!
//! What is told apart (spec 01 §16.1):
//! * two devices that claim to be the same leaf: the later label wins, then more good labels;
//! * a device that left its pool, or never became a member (txg 0): ignored;
//! * pools of one name: told by guid;
//! * idle hot spares and cache devices: known by guid only, offered to every candidate.

mod candidate;
mod device;
mod mmp;
mod scan;

pub use candidate::Candidate;
pub use device::{AuxDevice, Found};
pub use mmp::{Host, LastUse, watch_time};
pub use scan::{FindError, Scan, ScanOptions, scan, scan_devices};
