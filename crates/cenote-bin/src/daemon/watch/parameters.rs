//! Tunables as files, one each, as a kernel module has its parameters.
//!
//! ```text
//!   written by somebody ──inotify──> parsed ──> set ──> the engine acts by it
//!                                          `──> refused: logged, the file says what holds
//!   set by a command ──> the file is replaced
//! ```
//!
//! A file is replaced as a whole, so that nobody reads half a number; our own writing is seen, too,
//! says what holds, and ends there. What was written and not looked at yet is not written over:
//! only files whose tunable has changed since it was shown last are.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::super::log;
use cenote_rt::tunables::{self, Tunable};
use rustix::fs::inotify;

/// What is read of a file: more than any number has.
const TEXT_MAX: u64 = 64;
/// Bytes of notes that are taken at a time.
const NOTES: usize = 4 << 10;

/// The folder of the files.
pub(super) fn place(state: &Path) -> PathBuf {
    match std::env::var_os("CENOTE_PARAMETERS_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => folder.into(),
        None => state.join("parameters"),
    }
}

/// The files.
#[derive(Debug)]
pub(super) struct Parameters {
    folder: PathBuf,
    /// The values that the files say. Held while files are read and written.
    shown: Mutex<BTreeMap<&'static str, u64>>,
}

impl Parameters {
    /// Writes the files, and from then on does what is written to them; `act` comes after that.
    pub(super) fn start(
        folder: &Path,
        act: impl Fn() + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let parameters = Self::create(folder)?;
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC)?;
        let written = inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&watch, folder, written)?;
        let looking = Arc::clone(&parameters);
        std::thread::Builder::new().name("parameters".to_owned()).spawn(move || {
            if let Err(error) = looking.look(watch, act) {
                let folder = looking.folder.display();
                log::warn("files of tunables not watched", &[("path", &folder), ("cause", &error)]);
            }
        })?;
        Ok(parameters)
    }

    fn create(folder: &Path) -> std::io::Result<Arc<Self>> {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        let parameters =
            Arc::new(Self { folder: folder.to_owned(), shown: Mutex::new(BTreeMap::new()) });
        parameters.show();
        Ok(parameters)
    }

    fn shown(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes what has changed since it was written.
    pub(super) fn show(&self) {
        let mut shown = self.shown();
        for tunable in tunables::ALL {
            if shown.get(tunable.name) != Some(&tunable.get()) {
                self.write(tunable, &mut shown);
            }
        }
    }

    /// Removes the files, and the folder if nothing else is in it.
    pub(super) fn remove(&self) {
        for name in std::mem::take(&mut *self.shown()).keys() {
            std::fs::remove_file(self.folder.join(name)).ok();
        }
        std::fs::remove_dir(&self.folder).ok();
    }

    /// Does what is written, until nothing can be seen any more.
    fn look(&self, watch: OwnedFd, act: impl Fn()) -> std::io::Result<()> {
        let mut notes = [MaybeUninit::uninit(); NOTES];
        let mut notes = inotify::Reader::new(watch, &mut notes);
        loop {
            let note = notes.next()?;
            let name = note.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            let is_new = match name {
                Some(name) => name.to_str().and_then(tunables::find).is_some_and(|t| self.came(t)),
                // Notes were lost: anything may have been written.
                None => tunables::ALL.iter().filter(|tunable| self.came(tunable)).count() > 0,
            };
            if is_new {
                act();
            }
        }
    }

    /// A file was written: whether that has changed what holds.
    fn came(&self, tunable: &'static Tunable) -> bool {
        let mut shown = self.shown();
        let Ok(text) = self.read(tunable.name) else { return false };
        if text.is_empty() {
            // Somebody has opened it to write, while the note is of what was before. What he writes
            // must not go into a file that is replaced meanwhile; a note of it is to come.
            return false;
        }
        let before = tunable.get();
        let set = tunable.parse(text.trim()).and_then(|value| tunable.set(value));
        if let Err(error) = set {
            log::warn("tunable not set", &[("name", &tunable.name), ("cause", &error)]);
        }
        if text == line(tunable) {
            shown.insert(tunable.name, tunable.get());
        } else {
            self.write(tunable, &mut shown);
        }
        tunable.get() != before
    }

    fn read(&self, name: &str) -> std::io::Result<String> {
        let mut bytes = Vec::new();
        std::fs::File::open(self.folder.join(name))?.take(TEXT_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes one file anew.
    fn write(&self, tunable: &'static Tunable, shown: &mut BTreeMap<&'static str, u64>) {
        let text = line(tunable);
        // By a name that is no tunable's.
        let draft = self.folder.join(format!(".{}", tunable.name));
        let written = std::fs::write(&draft, &text)
            .and_then(|()| std::fs::rename(&draft, self.folder.join(tunable.name)));
        match written {
            Ok(()) => {
                shown.insert(tunable.name, tunable.get());
            }
            Err(error) => {
                log::warn("file not written", &[("path", &draft.display()), ("cause", &error)]);
            }
        }
    }
}

/// What a file says.
fn line(tunable: &Tunable) -> String {
    format!("{}\n", tunable.get())
}

#[cfg(test)]
mod tests {
    use cenote_testkit::golden::PrivateFolder;

    use super::*;

    #[test]
    fn files_are_what_holds() {
        let folder = PrivateFolder::create("parameters");
        let at = folder.path().join("parameters");
        let parameters = Parameters::create(&at).expect("files");
        let names = std::fs::read_dir(&at).expect("files").count();
        assert_eq!(names, tunables::ALL.len());
        let tunable = tunables::find("zfs_max_missing_tvds").expect("a tunable");
        let file = at.join(tunable.name);
        let says = || std::fs::read_to_string(&file).expect("its file");
        for (text, is_new, then) in [
            ("7\n", true, "7\n"),
            ("7\n", false, "7\n"),
            (" 0x10", true, "16\n"),
            ("nonsense", false, "16\n"),
            ("", false, ""),
            ("99999999\n", false, "16\n"),
            ("\u{0}\u{0}", false, "16\n"),
        ] {
            std::fs::write(&file, text).expect("a write");
            assert_eq!(parameters.came(tunable), is_new, "{text:?}");
            assert_eq!(says(), then, "{text:?}");
        }
        tunable.set(0).expect("the default");
        // What somebody wrote and nobody saw yet stays, and what has changed is shown.
        std::fs::write(at.join("zfs_txg_timeout"), "9\n").expect("a write");
        parameters.show();
        assert_eq!(says(), "0\n");
        assert_eq!(std::fs::read_to_string(at.join("zfs_txg_timeout")).expect("it"), "9\n");
        parameters.remove();
        assert!(!at.exists());
    }
}
