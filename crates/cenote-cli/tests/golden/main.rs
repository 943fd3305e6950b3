//! Compares the program's output for pools made by OpenZFS with OpenZFS's output.

mod commands;
mod files;
mod map;
mod send;
mod zdb;
mod zdb_space;
mod zdb_text;
