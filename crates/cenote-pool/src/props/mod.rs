//! Properties of datasets and pools: the table, effective values and their sources.
//!
//! [`table`] describes each property of `zfs get` and `zpool get`, [`lookup`] finds the effective
//! value of a stored one, [`dataset`] and [`pool`] compute the others. A listing is a vector of
//! [`PropRow`] in the table's order; numbers are not formatted. [`text`] parses values as users
//! type them (`recordsize=1M`).
//!
//! Sources: spec 04 §7, §17.3, spec 01 §12, spec 08 §16.

pub mod dataset;
pub mod lookup;
pub mod pool;
pub mod quantity;
pub mod table;
pub mod text;
pub mod userspace;
pub mod value;
mod zpl;

pub use lookup::PropChain;
pub use table::{
    Access, DATASET_PROPERTIES, Form, POOL_PROPERTIES, PropDefault, PropType, Property,
    dataset_property, pool_property, property_named,
};
pub use userspace::{SpaceKind, SpaceOwner, SpaceRow};
pub use value::{PropRow, PropValue, Source, literal};
