//! OpenZFS's engine in user space as a judge: it opens a pool that somebody else has made, replays
//! its logs, reads it, and counts its space.
//!
//! The engine is a library without headers, and a library with `forbid(unsafe_code)` cannot call
//! it: a script does (`libzpool/driver.py`, whose head says what it can be asked).

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::tool::{self, Said, Tool};

/// OpenZFS's engine, and what asks it.
#[derive(Debug, Clone)]
pub struct Libzpool {
    python: Tool,
    script: PathBuf,
}

/// The engine, if its library and Python are installed; else says that the running test skips.
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
    /// Asks of the pool on the images in a folder; the words say what.
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
