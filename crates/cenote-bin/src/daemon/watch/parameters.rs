//! Tunables as files, one each, like the parameters of a kernel module.
//!
//! ```text
//!   written by somebody ──inotify──> parsed ──> set ──> the engine acts by it
//!                                          `──> refused: logged, the file says what holds
//!   set by a command ──> the file is replaced
//! ```
//!
//! A thread waits for changes. Each command processes them first ([`Parameters::settle`]), so that
//! a value that was written before a command began holds for that command.
//!
//! A file is replaced as a whole, so that readers never see a partial number; the daemon's own
//! writes are noticed, too, change nothing, and end there. A change by a user that was not
//! processed yet is not overwritten: only files whose tunable has changed since it was written last
//! are rewritten.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io::Read;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::super::log;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::tunables::{self, Tunable};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::inotify;
use rustix::io::Errno;

/// Maximum length of a file's contents.
const TEXT_MAX: u64 = 64;
/// Size of the buffer for inotify events.
const NOTES: usize = 4 << 10;

/// Returns the directory of the files.
pub(super) fn place(state: &Path) -> PathBuf {
    match std::env::var_os("CENOTE_PARAMETERS_DIR").filter(|folder| !folder.is_empty()) {
        Some(folder) => folder.into(),
        None => state.join("parameters"),
    }
}

/// The tunable files.
#[derive(Debug)]
pub(super) struct Parameters {
    folder: PathBuf,
    /// The values in the files. Held while changes are read from `watch`, and while files are read
    /// and written: whoever gets it finds all earlier changes processed.
    shown: Mutex<BTreeMap<&'static str, u64>>,
    /// Changes of files, which never blocks a reader.
    watch: OwnedFd,
}

impl Parameters {
    /// Creates the files, and processes changes to them; calls `act` after each change.
    pub(super) fn start(
        folder: &Path,
        act: impl Fn() + Send + 'static,
    ) -> std::io::Result<Arc<Self>> {
        let parameters = Self::create(folder)?;
        let written = inotify::WatchFlags::CLOSE_WRITE | inotify::WatchFlags::MOVED_TO;
        inotify::add_watch(&parameters.watch, folder, written)?;
        let looking = Arc::clone(&parameters);
        std::thread::Builder::new().name("parameters".to_owned()).spawn(move || {
            if let Err(error) = looking.look(act) {
                let folder = looking.folder.display();
                log::warn!(path = %folder, cause = %error, "files of tunables not watched");
            }
        })?;
        Ok(parameters)
    }

    fn create(folder: &Path) -> std::io::Result<Arc<Self>> {
        std::fs::DirBuilder::new().recursive(true).mode(0o755).create(folder)?;
        let flags = inotify::CreateFlags::CLOEXEC | inotify::CreateFlags::NONBLOCK;
        let parameters = Arc::new(Self {
            folder: folder.to_owned(),
            shown: Mutex::new(Rank::DaemonParameters, BTreeMap::new()),
            watch: inotify::init(flags)?,
        });
        parameters.show();
        Ok(parameters)
    }

    fn shown(&self) -> MutexGuard<'_, BTreeMap<&'static str, u64>> {
        self.shown.lock()
    }

    /// Writes the files of changed tunables.
    pub(super) fn show(&self) {
        let mut shown = self.shown();
        for tunable in tunables::ALL {
            if shown.get(tunable.name) != Some(&tunable.get()) {
                self.write(tunable, &mut shown);
            }
        }
    }

    /// Removes the files, and the directory if it is empty.
    pub(super) fn remove(&self) {
        for name in std::mem::take(&mut *self.shown()).keys() {
            std::fs::remove_file(self.folder.join(name)).ok();
        }
        std::fs::remove_dir(&self.folder).ok();
    }

    /// Processes changes of the files for as long as the process lives.
    fn look(&self, act: impl Fn()) -> std::io::Result<()> {
        loop {
            match poll(&mut [PollFd::new(&self.watch, PollFlags::IN)], None) {
                Err(Errno::INTR) => {}
                polled => drop(polled?),
            }
            if self.settle()? {
                act();
            }
        }
    }

    /// Processes all changes so far; returns whether a tunable has changed. Does not wait.
    pub(super) fn settle(&self) -> std::io::Result<bool> {
        let mut shown = self.shown();
        let mut notes = [MaybeUninit::uninit(); NOTES];
        let mut notes = inotify::Reader::new(&self.watch, &mut notes);
        let mut is_new = false;
        loop {
            let note = match notes.next() {
                Err(Errno::AGAIN) => return Ok(is_new),
                note => note?,
            };
            let name = note.file_name().map(|name| OsStr::from_bytes(name.to_bytes()));
            match name {
                Some(name) => {
                    let tunable = name.to_str().and_then(tunables::find);
                    is_new |= tunable.is_some_and(|tunable| self.came(tunable, &mut shown));
                }
                // Events were lost: any file may have changed.
                None => tunables::ALL.iter().for_each(|t| is_new |= self.came(t, &mut shown)),
            }
        }
    }

    /// Processes a written file; returns whether its tunable has changed.
    fn came(&self, tunable: &'static Tunable, shown: &mut BTreeMap<&'static str, u64>) -> bool {
        let Ok(text) = self.read(tunable.name) else { return false };
        if text.is_empty() {
            // The file is open for writing again since this event. It must not be replaced
            // meanwhile; another event will follow.
            return false;
        }
        let before = tunable.get();
        let set = tunable.parse(text.trim()).and_then(|value| tunable.set(value));
        if let Err(error) = set {
            log::warn!(name = %tunable.name, cause = %error, "tunable not set");
        }
        if text == line(tunable) {
            shown.insert(tunable.name, tunable.get());
        } else {
            self.write(tunable, shown);
        }
        tunable.get() != before
    }

    fn read(&self, name: &str) -> std::io::Result<String> {
        let mut bytes = Vec::new();
        std::fs::File::open(self.folder.join(name))?.take(TEXT_MAX).read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Writes a file.
    fn write(&self, tunable: &'static Tunable, shown: &mut BTreeMap<&'static str, u64>) {
        let text = line(tunable);
        // Under a name that no tunable has.
        let draft = self.folder.join(format!(".{}", tunable.name));
        let written = std::fs::write(&draft, &text)
            .and_then(|()| std::fs::rename(&draft, self.folder.join(tunable.name)));
        match written {
            Ok(()) => {
                shown.insert(tunable.name, tunable.get());
            }
            Err(error) => {
                log::warn!(path = %draft.display(), cause = %error, "file not written");
            }
        }
    }
}

/// Returns the contents of a file.
fn line(tunable: &Tunable) -> String {
    format!("{}\n", tunable.get())
}

#[cfg(test)]
mod tests {
    use cenote_testkit::golden::PrivateFolder;

    use super::*;

    #[test]
    fn tunable_files_show_current_values() {
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
            assert_eq!(parameters.came(tunable, &mut parameters.shown()), is_new, "{text:?}");
            assert_eq!(says(), then, "{text:?}");
        }
        tunable.set(0).expect("the default");
        // A user's change that was not processed yet stays; changed tunables are written.
        std::fs::write(at.join("zfs_txg_timeout"), "9\n").expect("a write");
        parameters.show();
        assert_eq!(says(), "0\n");
        assert_eq!(std::fs::read_to_string(at.join("zfs_txg_timeout")).expect("it"), "9\n");
        parameters.remove();
        assert!(!at.exists());
    }
}
