//! OpenZFS's engine in user space: it opens a pool that cenote has made, replays its logs, reads
//! it, and counts its space.
//!
//! The engine is a library without headers, and this crate cannot call it because of
//! `forbid(unsafe_code)`. A script does (`libzpool/driver.py`; the head of the script lists the
//! requests).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::tool::{self, Said, Tool};

/// OpenZFS's engine, and the script that calls it.
#[derive(Debug, Clone)]
pub struct Libzpool {
    python: Tool,
    script: PathBuf,
}

/// The engine, if its library and Python are installed; otherwise reports that the running test is
/// skipped.
pub fn libzpool() -> Option<Libzpool> {
    static FOUND: OnceLock<Result<Libzpool, String>> = OnceLock::new();
    tool::found_or_skip(FOUND.get_or_init(find))
}

fn find() -> Result<Libzpool, String> {
    let python = tool::locate("python3").ok_or("no python3 here to call libzpool with")?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/libzpool/driver.py");
    let engine = Libzpool { python: Tool::new(python), script };
    match engine.ask(&[]) {
        said if said.is_success() => Ok(engine),
        said if said.code == Some(77) => Err("no libzpool.so.6 here to judge".to_owned()),
        said => panic!("{said}"),
    }
}

impl Libzpool {
    /// Runs requests on the pool whose images are in a folder.
    ///
    /// # Panics
    /// If it fails.
    pub fn pool(&self, pool: &str, folder: &Path, words: &[&str]) -> Said {
        let mut all = vec![folder.as_os_str(), OsStr::new(pool)];
        all.extend(words.iter().map(OsStr::new));
        let said = self.ask(&all);
        assert!(said.is_success(), "{said}");
        said
    }

    fn ask(&self, words: &[&OsStr]) -> Said {
        self.python.run(&[&[self.script.as_os_str()], words].concat())
    }
}
