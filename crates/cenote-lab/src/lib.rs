//! The laboratory: published reports about ZFS as experiments, which the real engine repeats on
//! modelled disks in virtual time.
//!
//! ```text
//!   experiment  runs worlds: a policy, a pool on modelled disks, a load       -> Report
//!      uses     policy (settings by name), machine (disks, pool, records of the commands)
//!   space       space of volumes by arithmetic
//!   report      all results as plain data; JSON
//!   text        tables, checks and footer of a report
//!   picture     charts of a report: SVG and PNG
//! ```
//!
//! A report is a function of the experiment, its scale and its seed: no real time is in it, and two
//! runs have equal bytes of JSON. Text and pictures are drawn from the report alone, so that a
//! stored report can be shown again.
//!
//! Each report compares with the figures that were published, and judges itself: every tolerance is
//! a [`Check`](report::Check) with figure, bound and verdict. Figures that differ stay different:
//! the engine is never changed to meet a published number.
//!
//! Sources: spec 09.

pub mod experiment;
pub mod machine;
pub mod picture;
pub mod place;
pub mod policy;
pub mod recordsize;
pub mod report;
pub mod space;
pub mod text;

pub use experiment::{Experiment, LabError, Options, Scale};
pub use place::{Folder, Place};
pub use report::Report;
