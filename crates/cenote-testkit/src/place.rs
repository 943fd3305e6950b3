//! Paths: the checkout, its fixtures, the golden set, the target folder.
//!
//! A golden pool is looked for in this order, and the first place that has a folder of its name
//! wins:
//!
//! 1. `$CENOTE_GOLDEN`, a folder with one folder per pool;
//! 2. `../shared/golden` beside the checkout: the whole golden set;
//! 3. `fixtures/` in the repository: the chosen pools that every clone has.

use std::path::{Path, PathBuf};

/// The root of the checkout that this crate was built from.
pub fn checkout() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).expect("crates/NAME lies two below the root").to_path_buf()
}

/// Cargo's target folder: caches and private copies live below it.
pub fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| checkout().join("target"), PathBuf::from)
}

/// The pools that are in the repository.
pub fn fixtures() -> PathBuf {
    checkout().join("fixtures")
}

/// Every folder that may hold golden pools, first choice first.
pub fn golden_folders() -> Vec<PathBuf> {
    let named = std::env::var_os("CENOTE_GOLDEN").map(PathBuf::from);
    let beside = checkout().parent().map(|parent| parent.join("shared/golden"));
    named.into_iter().chain(beside).chain([fixtures()]).filter(|path| path.is_dir()).collect()
}

/// The folder of one pool, or of `wording`.
pub fn golden_folder(name: &str) -> Option<PathBuf> {
    golden_folders().into_iter().map(|folder| folder.join(name)).find(|path| path.is_dir())
}
