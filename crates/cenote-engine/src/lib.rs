//! A pool that is open for writing.
//!
//! ```text
//!   Engine::apply   changes to a head, in the open txg          many at once
//!   Engine::run     changes to the MOS: tasks of the next sync  one after the other
//!   Engine::sync    open txg ──close──> syncing txg ──passes, labels, uberblock──> committed
//! ```
//!
//! Everything that users do changes an object set in memory, in the open txg; administrative
//! operations are tasks that change the MOS while a txg is synced. A txg takes effect completely
//! when its uberblock is on disk, and not at all before.
//!
//! The rooms:
//! ```text
//!   txg     what enters the open txg; syncing it, committing it, suspending it
//!   dsl     operations on datasets, snapshots, bookmarks and their properties
//!   zil     intent logs
//!   space   space maps, the checkpoint, giving back what was destroyed
//!   leaf    devices that fail and come back, come and go; trim and initialize
//!   admin   creating, opening and setting up the pool itself; its events and views
//! ```
//!
//! Order of locks: the ranks of `cenote_rt::lock`. Of the locks of an engine only `syncing` is held
//! across the I/O of a sync.
//!
//! If devices fail during a sync, the pool is suspended until it is cleared (`suspend`). A broken
//! invariant stops it: no uberblock is written any more, committed data stays, and every later
//! change is refused.
//!
//! Sources: spec 01 §14-§18, 04 §9-§20, 05 §4-§5.

mod background;
mod config;
mod engine;
mod error;

pub mod admin;
pub(crate) mod dsl;
mod leaf;
mod removal;
mod scan;
mod space;
#[cfg(test)]
mod testing;
mod txg;
pub mod zil;

pub use admin::Admin;
pub use admin::create;
pub use admin::events::{
    Event, EventLog, HistoryNote, NotedEvent, PoolEvent, StateCause, TrimEvent, WrongBytes,
};
pub use admin::health::{Health, Notice};
pub use cenote_vdev::queue::{ScanKind, ScanWait, ThrottleModel};
pub use cenote_vdev::{FaultEffect, FaultSpec, Faults, Injection, IoKind, LeafIo, Symptom};
pub use dsl::OpError;
pub use dsl::api::bookmarks::Bookmarks;
pub use dsl::api::datasets::{Datasets, HeadSpace, NewDataset};
pub use dsl::api::keys::{KeyChange, NewEncryption, UserKey};
pub use dsl::api::properties::Properties;
pub use dsl::api::receives::Receives;
pub use dsl::api::snapshots::Snapshots;
pub use dsl::changed::ChangedDatasets;
pub use dsl::crypto::{SentKeys, StoredKeys};
pub use dsl::deleg::GrantChange;
pub use dsl::history::SOFTWARE;
pub use dsl::opened::OpenSnapshot;
pub use dsl::receive::{
    NewReceive, ReceiveChoices, ReceivePoint, ReceivePoints, ReceiveRefusal, Reception,
    RedactionGuids,
};
pub use dsl::redaction::{BegunRedaction, RedactionPart};
pub use dsl::settings::Change as PropertyChange;
pub use engine::Engine;
pub use error::EngineError;
pub use leaf::Leaves;
pub use leaf::device_source::DeviceSource;
pub use leaf::leafwork::{LeafWorkError, Stop, TrimOptions};
pub use leaf::reflow::ReflowProgress;
pub use leaf::shape::autoreplace::is_blank_at;
pub use leaf::shape::{Attach, NewLeaf, ShapeError, SplitError, SplitPool};
pub use leaf::spare_agent::{SpareReport, call_in_spares};
pub use removal::{RemovalError, Removals};
pub use scan::{ScanError, ScanPass, Scans, ScrubOptions};
pub use space::SpaceManager;
pub use space::checkpoint::{CheckpointError, CheckpointState};
pub use txg::accesses::{Access, Recording};
pub use txg::activity::{Activity, ActivityCounts};
pub use txg::admission::Charge;
pub use txg::apply::{ApplyOptions, LogMode, Logged, Unlogged};
pub use txg::closing::{ClosedByForce, Unwritten};
pub use txg::heads::{Head, Ownership};
pub use txg::suspend::{FailMode, Suspended};
pub use zil::IntentLogs;

pub(crate) use config::Config;
pub(crate) use engine::{Parts, random_seed};
pub(crate) use error::{invariant, invariant_error, is_txg_passed};
pub(crate) use txg::suspend::{SuspendAwareStore, Suspension};
pub(crate) use txg::tasks::{Answer, Scope, Task};
