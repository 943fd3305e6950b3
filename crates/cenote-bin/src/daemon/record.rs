//! The entry of a pool in its cache file.
//!
//! ```text
//!   import ──> list ──> cache file        export ──> cache file ──> list
//!              `─ record lock ──┘                    `─ record lock ─┘
//! ```
//!
//! Invariants
//! * REG-1  The list of pools and the cache files change together. The lock of a pool's record is
//!   held from the first of the two changes to the second, and a pool that is not listed is never
//!   written to a cache file. Otherwise a command that has looked a pool up would write it again
//!   after an export removed it, and the next daemon would import an exported pool.
//!
//! An export removes the pool from the cache file first, because its name is free as soon as the
//! list does not have it: another pool of that name could be in the file by then.

use std::path::{Path, PathBuf};

use cenote_cli::cache_file;
use cenote_cli::{CommandResult, Exit};
use cenote_engine::Engine;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::stages;

/// What helps if a cache file cannot be read: it is not replaced, because it may list other pools.
const IF_DAMAGED: &str = "if the file is damaged, move it away, and import its pools again";

/// The entry of a pool in its cache file.
#[derive(Debug)]
pub(super) struct Record {
    /// LOCK: keeps REG-1. Held across the replacement of a cache file with its flushes, and never
    /// across an await.
    entry: Mutex<Entry>,
}

#[derive(Debug)]
struct Entry {
    /// The cache file; `None` if the pool is recorded in no file.
    file: Option<PathBuf>,
    /// The pool is in the list of pools.
    is_listed: bool,
}

impl Entry {
    /// Writes the pool's present config to a cache file.
    fn write(file: Option<&Path>, engine: &Engine) -> CommandResult {
        let Some(file) = file else { return Ok(()) };
        let (name, list) = engine.admin().config_list();
        cache_file::write(file, &name, list).map_err(|error| {
            let file = file.display();
            Exit::failed(format!(
                "the pool '{name}' is open, but it is not remembered in '{file}': {error}\n\
                 {IF_DAMAGED}"
            ))
        })
    }
}

impl Record {
    /// Returns the record of a pool that is not listed yet.
    pub(super) fn new(file: Option<PathBuf>) -> Self {
        Self { entry: Mutex::new(Rank::DaemonRecord, Entry { file, is_listed: false }) }
    }

    /// Adds the pool to the list with `list`, and to its cache file. Returns the result of writing
    /// the file: the pool stays listed if that fails.
    ///
    /// # Errors
    /// The reason of `list`; the cache file is unchanged.
    pub(super) fn begin<E>(
        &self,
        engine: &Engine,
        list: impl FnOnce() -> Result<(), E>,
    ) -> Result<CommandResult, E> {
        let mut entry = self.entry.lock();
        list()?;
        entry.is_listed = true;
        stages::reach("pool-listed");
        Ok(Entry::write(entry.file.as_deref(), engine))
    }

    /// Writes the present config of a listed pool to its cache file; does nothing for others.
    pub(super) fn update(&self, engine: &Engine) -> CommandResult {
        stages::reach("pool-recording");
        let entry = self.entry.lock();
        if !entry.is_listed {
            return Ok(());
        }
        stages::reach("pool-record-locked");
        Entry::write(entry.file.as_deref(), engine)
    }

    /// Records a listed pool in another cache file. The property `cachefile` then is `shown`.
    ///
    /// # Errors
    /// The pool is not listed any more, or a cache file cannot be written.
    pub(super) fn change_file(
        &self,
        engine: &Engine,
        file: Option<PathBuf>,
        shown: Option<&str>,
    ) -> CommandResult {
        stages::reach("pool-recording");
        let mut entry = self.entry.lock();
        let name = engine.name();
        // Checks REG-1.
        if !entry.is_listed {
            return Err(Exit::failed(format!("cannot open '{name}': no such pool")));
        }
        stages::reach("pool-record-locked");
        Entry::write(file.as_deref(), engine)?;
        engine.presence().set_cache_file(shown);
        let before = std::mem::replace(&mut entry.file, file);
        match before.filter(|before| Some(before) != entry.file.as_ref()) {
            Some(before) => Ok(cache_file::remove(&before, &name)?),
            None => Ok(()),
        }
    }

    /// Removes a closed pool from its cache file, and from the list with `unlist`, which is called
    /// even if the file cannot be written. Does nothing if the pool is not listed any more.
    pub(super) fn end(&self, engine: &Engine, unlist: impl FnOnce()) -> CommandResult {
        let mut entry = self.entry.lock();
        if !entry.is_listed {
            return Ok(());
        }
        let removed = entry.file.as_deref().map_or(Ok(()), |file| {
            let name = engine.name();
            cache_file::remove(file, &name).map_err(|error| {
                let file = file.display();
                Exit::failed(format!(
                    "the pool '{name}' is closed, but its record in '{file}' cannot be removed: \
                     {error}\n{IF_DAMAGED}"
                ))
            })
        });
        stages::reach("pool-forgotten");
        unlist();
        entry.is_listed = false;
        stages::reach("pool-unlisted");
        removed
    }

    /// Whether the cache file names the pool.
    pub(super) fn is_written(&self, engine: &Engine) -> bool {
        let file = self.entry.lock().file.clone();
        let known = file.as_deref().map(cache_file::read);
        known.is_some_and(|known| known.is_ok_and(|known| known.guids.contains(&engine.guid())))
    }
}
