//! The configuration of a pool in labels, the MOS and `zpool.cache`.
//!
//! ```text
//!   label of a leaf   LabelConfig: pool facts, this leaf's guid, and the tree of its top-level
//!   MOS "config"      PoolConfig:  pool facts, and the tree from the root: the trusted one
//!   spares, l2cache   VdevConfig of each device; their labels have little more than a guid
//! ```
//!
//! Both keep the nvlist from which they were decoded, in order, for zdb's output. Unknown keys are
//! ignored, as in OpenZFS. Conditions without which nothing can be done with a tree are checked
//! here; conditions on devices or on several labels are checked by the vdev and pool layers.
//!
//! Sources: spec 01 §4-§6, §10.

mod encode;
mod pool;
#[cfg(test)]
mod tests;
mod vdev;

pub use encode::{Audience, label_list, pool_list};
pub use pool::{LabelConfig, MemberConfig, PoolConfig, PoolFacts, PoolState};
pub use vdev::{Draid, LeafConfig, RaidZ, TopConfig, VdevConfig, VdevKind};

use crate::nvlist::NvList;

/// Deepest tree that is read; OpenZFS makes four levels.
pub const VDEV_DEPTH_MAX: usize = 16;
/// Smallest ashift.
pub const ASHIFT_MIN: u64 = 9;
/// Largest ashift.
pub const ASHIFT_MAX: u64 = 16;

/// Why a configuration is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CorruptConfig {
    /// A required key is absent or of another type.
    #[error("config: no usable {key}")]
    Missing {
        /// The key.
        key: &'static str,
    },
    /// A number is out of range.
    #[error("config: {key} is {value}")]
    Value {
        /// The key.
        key: &'static str,
        /// The number found.
        value: u64,
    },
    /// A vdev type that does not exist.
    #[error("config: vdev type \"{kind}\" is unknown")]
    VdevType {
        /// The type found.
        kind: String,
    },
    /// A vdev's id is not its position.
    #[error("config: child {position} of vdev {parent} has id {id}")]
    ChildId {
        /// Guid of the parent.
        parent: u64,
        /// Its index in the parent's children.
        position: usize,
        /// The id found.
        id: u64,
    },
    /// A vdev has an impossible number of children.
    #[error("config: vdev {guid} has {count} children, its type needs {needed}")]
    Children {
        /// Guid of the vdev.
        guid: u64,
        /// Children found.
        count: usize,
        /// Smallest valid number.
        needed: u64,
    },
    /// The tree is deeper than any that OpenZFS creates.
    #[error("config: vdev tree deeper than {VDEV_DEPTH_MAX} levels")]
    Depth,
}

fn need(list: &NvList, key: &'static str) -> Result<u64, CorruptConfig> {
    list.u64(key).ok_or(CorruptConfig::Missing { key })
}

/// A number that defaults to `default` if absent, and is refused if out of range.
fn ranged(
    list: &NvList,
    key: &'static str,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Result<u64, CorruptConfig> {
    let value = list.u64(key).unwrap_or(default);
    if range.contains(&value) { Ok(value) } else { Err(CorruptConfig::Value { key, value }) }
}

/// Whether a flag is present and set.
fn flag(list: &NvList, key: &str) -> bool {
    list.bool(key).or_else(|| list.u64(key).map(|value| value != 0)).unwrap_or(false)
}

fn text(list: &NvList, key: &str) -> Option<String> {
    list.string(key).map(|text| text.to_string_lossy().into_owned())
}
