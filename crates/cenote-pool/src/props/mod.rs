//! Properties of datasets and pools: the table, effective values and their sources.
//!
//! [`table`] is what `zfs get` and `zpool get` know of each property, [`lookup`] decides who has
//! the say on one that is stored, [`dataset`] and [`pool`] compute the rest. A listing is a vector
//! of [`PropRow`] in the table's order, with facts only: numbers stay numbers. [`text`]
//! parses values as users type them (`recordsize=1M`).
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
    Access, DATASET_FAMILIES, DATASET_PROPERTIES, Form, POOL_PROPERTIES, PropDefault, PropType,
    Property, dataset_property, pool_property, property_named,
};
pub use userspace::{SpaceKind, SpaceOwner, SpaceRow};
pub use value::{PropRow, PropValue, Source, literal};
