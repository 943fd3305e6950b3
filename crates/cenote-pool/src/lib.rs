//! Import, MOS, datasets, properties, space maps, traversal.
