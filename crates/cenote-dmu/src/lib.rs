//! Objects: what lies between "a block" and "byte N of object O in object set S".
//!
//!     ObjSet   root block, meta-dnode; finds and lists dnodes        (`objset`, `dnodes`)
//!     Dnode    bonus, spill, block tree, reading and streaming       (`dnode`, `tree`, `stream`)
//!     Zap      names to values over an object                        (`zap`)
//!     and what the pool keeps in objects: bpobjs, deadlists, bptrees, space maps, arrays, nvlists
//!
//! Reading never changes anything: an object is as it was when its dnode was read. Errors carry
//! object set, object, level and block. No number from disk is believed before it was checked
//! against its neighbours, so that damage costs an error and never a loop or memory.
//!
//! Sources: spec 02 §7-§11, 03 §1-§7, 04 §10-§13, 05 §2.

pub mod array;
pub mod bpobj;
pub mod bptree;
pub mod deadlist;
pub mod dnode;
pub mod dnodes;
pub mod error;
pub mod geometry;
pub mod history;
pub mod live;
pub mod nvlist;
pub mod objects;
pub mod objset;
pub mod space;
pub mod spacemap;
pub mod stream;
pub mod tree;
pub mod zap;

pub use array::{read_bytes, read_nvlist, read_words};
pub use bpobj::Bpobj;
pub use bptree::Bptree;
pub use deadlist::Deadlist;
pub use dnode::{Dnode, SPILL_BLKID};
pub use dnodes::Dnodes;
pub use error::DmuError;
pub use geometry::Geometry;
pub use live::{Live, Step, Tx, TxResult};
pub use objects::Objects;
pub use objset::ObjSet;
pub use space::Space;
pub use spacemap::SpaceMap;
pub use stream::{BlockStream, Extent, Lost};
pub use tree::Run;
pub use zap::{Entries, FatStats, Zap, ZapError, ZapStats};
