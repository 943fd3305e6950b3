//! Pools that OpenZFS made, unchanged and with planted faults.

mod dirs;
mod import;
mod import_shapes;
mod keys;
mod leaks;
mod properties;
mod status;
mod traverse;
mod verify;
