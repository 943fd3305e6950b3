//! What the program prints of pools that OpenZFS made, against what OpenZFS printed.

mod commands;
mod files;
#[path = "../program/mod.rs"]
mod program;
mod zdb;
mod zdb_space;
mod zdb_text;
