//! The allocator against a model: plain sets of ranges, and maps and logs as a pool keeps them.

mod disk;
mod model;
mod rows;
