//! Writable object sets: what changes in memory, and how it gets to disk.
//!
//!     Tx -> overlay -> layer of the open txg      newest      (`tx`, `layer`)
//!                      layer of the quiescing txg
//!                      layers of the syncing txg, one for each pass
//!                      committed tree                oldest   (`view`)
//!
//! A [`Live`] holds what is committed plus a layer of changes for every txg that is not committed.
//! Whoever changes something runs a closure over a [`Tx`], which writes to an overlay of its own;
//! the overlay is merged into the layer of its txg if the closure succeeds, and is forgotten if it
//! does not. Reads look at the overlay, then at the layers from the newest to the oldest, then at
//! the committed tree. A closure never waits: if it needs a block that is not in memory it ends
//! with [`Step::Need`], the block is read, and it runs again on a fresh overlay.
//!
//! Syncing takes the oldest layer and writes it over the tree that the layer before it left, from
//! the data up to the root block (`sync`). The layer stays, so that reads need nothing of the tree
//! that is being written, until [`Live::committed`] drops it and moves the committed tree on.
//!
//! Invariants
//! * V1  Layers are in the order of txgs and passes; only the last of a txg takes changes, and none
//!   that is being synced does.
//! * V2  A closure in txg t sees no change of a later txg: it is refused (`TxgPassed`) if there is
//!   one, because what it wrote would be hidden by that change.
//! * V3  Within a layer frees come before writes: a block that is in a freed range and in `blocks`
//!   was written after it was freed.
//! * V4  Reads never walk the tree of an uncommitted txg, whose blocks may be written in place.
//! * V5  An object number freed in a txg is not given out before that txg is committed.
//! * V6  Few bytes of a block that the open layer has are kept in the overlay as a patch, and
//!   changed in place when it is merged, under the same hold of the mutex: no layer has patches.
//!
//! Concurrency: one mutex per set, never held across I/O; a closure runs under it. One sync at a
//! time. Durability: nothing here flushes; the new root counts when the uberblock is on disk.
//!
//! Sources: spec 02 §9-§13, 04 §9, §19.

mod ahead;
mod alloc;
mod blocks;
mod context;
mod early;
mod error;
mod extent;
mod footprint;
mod layer;
mod object;
mod peek;
mod set;
mod step;
mod sync;
mod tx;
mod view;
mod write;

pub use ahead::ReadAhead;
pub use blocks::Blocks;
pub use context::{BlockSink, Facts, Owned, Owner, OwnerProbe, PolicySource, SyncContext, Synced};
pub use early::Early;
pub use error::LiveError;
pub use extent::Run;
pub use footprint::{BlockCount, Footprint};
pub use peek::Piece;
pub use set::Live;
pub use step::{Missing, ObjectSpec, Step, TxResult};
pub use tx::Tx;
