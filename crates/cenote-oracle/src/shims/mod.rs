//! Libraries that replace functions of the C library in OpenZFS's programs (`LD_PRELOAD`); the
//! build script compiles them.

use std::path::{Path, PathBuf};

/// The library with this name, if it could be compiled.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let library = Path::new(env!("OUT_DIR")).join(name).with_extension("so");
    library.is_file().then_some(library)
}
