//! The allocator.
mod api;
mod class;
mod error;
pub mod policy;
mod request;
mod tree;
mod weight;
pub use api::*;
pub use class::{Class, Placement};
pub use error::{AllocError, ClaimError, Violation};
pub use request::{
    MetaslabSpec, MetaslabStore, Request, SpaceGeometry, StoredSpace, VdevHealth, VdevSpec,
};
pub use tree::FreeTree;
pub use weight::Weight;
