//! Counters that `zpool iostat`, kstats and metrics show: those of queues, leaves, cache and store.

pub use cenote_block::{CacheStats, StoreStats};
pub use cenote_vdev::queue::{
    BUCKETS, ClassStats, Direction, DirectionStats, Histogram, QueueStats,
};
pub use cenote_vdev::{IoClass, LeafStats};
