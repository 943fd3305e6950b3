//! From block pointer to bytes: pipeline, cache, gang blocks, keys.
