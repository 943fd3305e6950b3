//! Libraries that go before the functions of OpenZFS's programs (`LD_PRELOAD`); the build script
//! compiles them.

use std::path::{Path, PathBuf};

/// The one of this name, if it could be compiled.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let library = Path::new(env!("OUT_DIR")).join(name).with_extension("so");
    library.is_file().then_some(library)
}
