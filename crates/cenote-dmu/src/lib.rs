//! Objects: maps "byte N of object O in object set S" to blocks.
//!
//!     ObjSet   root block, meta-dnode; finds and lists dnodes        (`objset`, `dnodes`)
//!     Dnode    bonus, spill, block tree, reading and streaming       (`dnode`, `tree`, `stream`)
//!     Zap      names to values over an object                        (`zap`)
//!     and structures in objects: bpobjs, deadlists, bptrees, space maps, arrays, nvlists
//!
//! Readers never change anything: an object stays as it was when its dnode was read. Errors carry
//! object set, object, level and block. Every number from disk is checked against its neighbours
//! before it is used, so that damage causes an error and never an endless loop or a huge
//! allocation.
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

pub use array::{read_bytes, read_words};
pub use bpobj::Bpobj;
pub use bptree::Bptree;
pub use cenote_block::StoredForm;
pub use deadlist::Deadlist;
pub use dnode::{Dnode, SPILL_BLKID};
pub use dnodes::Dnodes;
pub use error::DmuError;
pub use geometry::Geometry;
pub use live::{Live, Tx, TxResult, TxStop};
pub use nvlist::read_nvlist;
pub use objects::{Objects, ReadObjects};
pub use objset::ObjSet;
pub use space::Space;
pub use spacemap::SpaceMap;
pub use stream::{BlockStream, Extent, Lost};
pub use tree::Run;
pub use zap::{Entries, FatStats, Zap, ZapError, ZapStats};
