//! Golden pools, damage, byte-order rewriting, models for tests.
