//! Writable object sets: changes in memory, and how they are written to disk.
//!
//!     Tx -> overlay -> layer of the open txg      newest      (`tx`, `layer`)
//!                      layer of the quiescing txg
//!                      layers of the syncing txg, one for each pass
//!                      committed tree                oldest   (`view`)
//!
//! A [`Live`] holds the committed tree plus a layer of changes for every uncommitted txg. A change
//! is a closure over a [`Tx`], which writes to its own overlay; the overlay is merged into the
//! layer of its txg if the closure succeeds, and dropped if it fails. Reads consult the overlay,
//! then the layers from the newest to the oldest, then the committed tree. A closure never waits:
//! if it needs a block that is not in memory it ends with [`TxStop::Need`], the block is read, and
//! the closure runs again on a new overlay. Of a change in parts ([`Live::apply_parts`]), only the
//! part that needs the block does.
//!
//! Syncing takes the oldest layer and writes it over the tree that the previous layer left, from
//! the data up to the root block (`sync`). The layer stays until [`Live::committed`] drops it and
//! replaces the committed tree, so that reads never use the tree that is being written.
//!
//! Invariants
//! * V1  Layers are in the order of txgs and passes; only the last layer of a txg accepts changes,
//!   and none that is being synced does.
//! * V2  A closure in txg t sees no change of a later txg: it is refused (`TxgPassed`) if there is
//!   one, because what it wrote would be hidden by that change.
//! * V5  An object number freed in a txg is not given out before that txg is committed.
//! * V6  A change of a few bytes of a block in the open layer is kept in the overlay as a patch,
//!   and applied in place when the overlay is merged, under the same hold of the mutex: no layer
//!   has patches.
//! * V7  A block that was written early is used by the sync only if the layer still has it.
//! * V8  The bytes and the footprint of a layer are the sums over its objects.
//! * V9  The root of a tree that becomes the committed one was born in the txg that is committed.
//!
//! Guarantees
//! * V3  Within a layer frees come before writes: a block that is in a freed range and in `blocks`
//!   was written after it was freed.
//! * V4  Reads never walk the tree of an uncommitted txg, whose blocks may be written in place.
//! * A change is refused if its sync could not read an indirect block that it needs (`readable`).
//!
//! Concurrency: one mutex per set, never held across I/O; a closure runs under it. One sync at a
//! time. Durability: nothing here flushes; the new root is durable when the uberblock is on disk.
//!
//! Sources: spec 02 §9-§13, 04 §9, §19.

mod alloc;
mod blocks;
mod context;
mod early;
mod error;
mod extent;
mod footprint;
mod frozen;
mod layer;
mod next;
mod object;
mod parts;
mod peek;
mod prefetch;
mod readable;
mod set;
mod stop;
mod sync;
mod tx;
mod view;
mod write;

pub use blocks::{Blocks, ReadBlocks};
pub use context::{
    BlockSink, Facts, Owned, Owner, OwnerProbe, PolicySource, Recount, SyncContext, Synced,
};
pub use early::EarlyBlock;
pub use error::LiveError;
pub use extent::BlockRun;
pub use footprint::{BlockCount, Footprint};
pub use peek::Piece;
pub use prefetch::Prefetcher;
pub use set::{Live, SentRoot};
pub use stop::{Missing, ObjectSpec, TxResult, TxStop};
pub use tx::Tx;
pub(crate) use view::Tree;
