//! Power cuts: random histories on recorded devices, cut at every flush, compared with a model.
//!
//! ```text
//!   workload ──> log of writes and flushes, and the model's state of each txg
//!     explore    cuts the log, opens each state, and compares it with the model
//!     order      checks that no commit writes anything too early
//! ```

pub mod explore;
pub mod facts;
pub mod keys;
pub mod model;
pub mod order;
pub mod workload;
