//! Writers on the mounted file systems, each in its own directory, and one on the volume.
//!
//! A writer continues after a failed call; the failed change may be present or not. It ends when it
//! is told to, or when its directory is gone (the daemon was killed, the pool exported).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cenote_testkit::rng::Rng;

use crate::model::{Folder, Tracked, Wrong};
use crate::site::Site;
use crate::volume::{self, Blocks};

/// Number of writers on file systems.
const WRITERS: u64 = 3;
/// Number of files that a writer changes in place.
const CHANGED: u64 = 6;
/// Number of files that a writer replaces as a whole.
const REPLACED: u64 = 4;
/// Maximum number of files that a writer has created and not removed.
const CREATED_MAX: usize = 60;
/// Maximum size of a changed file.
const LEN_MAX: u64 = 300 << 10;
/// Maximum size of a write.
const WRITE_MAX: u64 = 140 << 10;
/// Writers end within this time when they are told to, even if the pool has just been cleared.
const END_MAX: Duration = Duration::from_mins(1);
const PAUSE: Duration = Duration::from_millis(5);

/// Running writers.
#[derive(Debug)]
pub(crate) struct Load {
    stop: Arc<AtomicBool>,
    writers: Vec<JoinHandle<Folder>>,
    volume: JoinHandle<Blocks>,
}

/// The changes of all writers.
#[derive(Debug)]
pub(crate) struct Written {
    folders: Vec<Folder>,
    blocks: Blocks,
}

impl Load {
    /// Starts the writers.
    pub(crate) fn start(site: &Site, seed: u64) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let writer = |number: u64| {
            let name = format!("{}/w{number}", if number.is_multiple_of(2) { "a" } else { "b" });
            let at = site.path("at").join(&name);
            std::fs::create_dir(&at).unwrap();
            // The directory itself is promised.
            File::open(&at).unwrap().sync_all().unwrap();
            let folder = Folder { name, ..Folder::default() };
            let (rng, stop) = (Rng::seeded(seed ^ number << 32), Arc::clone(&stop));
            let writer =
                Writer { at, folder, rng, stop, created: 0, given_up: [0; CHANGED as usize] };
            std::thread::spawn(move || writer.run())
        };
        let writers = (0..WRITERS).map(writer).collect();
        let (socket, ended) = (site.path("state/nbd.sock"), Arc::clone(&stop));
        let rng = Rng::seeded(seed ^ 0xb10c);
        let volume = std::thread::spawn(move || volume::write(&socket, rng, &ended));
        Self { stop, writers, volume }
    }

    /// Ends the writers.
    pub(crate) fn stop(self, site: &Site) -> Written {
        self.stop.store(true, Ordering::Relaxed);
        let started = Instant::now();
        let is_running = || {
            self.writers.iter().any(|writer| !writer.is_finished()) || !self.volume.is_finished()
        };
        while is_running() {
            if started.elapsed() > END_MAX {
                let status = site.attempt("zpool status -v").map(|output| output.stdout);
                let status = String::from_utf8_lossy(&status.unwrap_or_default()).into_owned();
                panic!("writers hang for {END_MAX:?}\n{status}\n{}", site.log());
            }
            std::thread::sleep(PAUSE);
        }
        let folders = self.writers.into_iter().map(|writer| writer.join().unwrap()).collect();
        Written { folders, blocks: self.volume.join().unwrap() }
    }
}

impl Written {
    /// Returns everything that is not as promised.
    pub(crate) fn faults(&self, site: &Site) -> Vec<Wrong> {
        let at = site.path("at");
        let mut faults: Vec<Wrong> =
            self.folders.iter().flat_map(|folder| folder.faults(&at)).collect();
        faults.extend(self.blocks.faults(&site.path("state/nbd.sock")));
        faults
    }

    /// Returns the figures of the run, for messages.
    pub(crate) fn told(&self) -> String {
        let synced: u64 = self.folders.iter().map(|folder| folder.synced).sum();
        let failed: u64 = self.folders.iter().map(|folder| folder.failed).sum();
        format!("{synced} fsyncs, {failed} failed calls, {}", self.blocks.told())
    }
}

/// A writer and its directory.
struct Writer {
    at: PathBuf,
    folder: Folder,
    rng: Rng,
    stop: Arc<AtomicBool>,
    created: u64,
    /// For each of the changed files, the number of abandoned ones.
    given_up: [u32; CHANGED as usize],
}

/// Whether the directory is gone for good.
fn is_gone(error: &io::Error) -> bool {
    const NOT_CONNECTED: i32 = 107;
    const NOT_FOUND: i32 = 2;
    const ABORTED: i32 = 103;
    matches!(error.raw_os_error(), Some(NOT_CONNECTED | NOT_FOUND | ABORTED))
}

impl Writer {
    fn run(mut self) -> Folder {
        while !self.stop.load(Ordering::Relaxed) {
            let done = match self.rng.below(10) {
                0..=3 => self.change(),
                4..=5 => self.replace(),
                6..=7 => self.create(),
                8 => self.rename(),
                _ => self.remove(),
            };
            if let Err(error) = done {
                self.folder.failed += 1;
                if is_gone(&error) {
                    break;
                }
                std::thread::sleep(PAUSE);
            }
        }
        self.folder
    }

    fn bytes(&mut self, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }

    /// Returns the index of the file of this name, and tracks it if it was not tracked.
    fn tracked(&mut self, name: &str) -> usize {
        let known = self.folder.files.iter().position(|file| file.name() == name);
        known.unwrap_or_else(|| {
            self.folder.files.push(Tracked::created(name));
            self.folder.files.len() - 1
        })
    }

    /// Syncs an open file, and records the promise.
    fn sync(&mut self, file: &File, index: usize) -> io::Result<()> {
        file.sync_all()?;
        self.folder.files[index].promise();
        self.folder.synced += 1;
        Ok(())
    }

    /// Changes a file in place. After a failed change the file is abandoned: a later `fsync` would
    /// promise unknown contents.
    fn change(&mut self) -> io::Result<()> {
        let slot = self.rng.below(CHANGED) as usize;
        let name = format!("c{slot}.{}", self.given_up[slot]);
        let index = self.tracked(&name);
        let changed = self.change_some(index, &name);
        if changed.is_err() {
            self.given_up[slot] += 1;
        }
        changed
    }

    /// Overwrites, appends to, and truncates a file, and often syncs it.
    fn change_some(&mut self, index: usize, name: &str) -> io::Result<()> {
        let mut options = File::options();
        let file = options.create(true).write(true).truncate(false).open(self.path(name))?;
        for _ in 0..=self.rng.below(3) {
            let len = self.folder.files[index].newest().len() as u64;
            if len > LEN_MAX {
                let to = self.rng.below(len);
                self.folder.files[index].change(|bytes| bytes.truncate(to as usize));
                file.set_len(to)?;
                continue;
            }
            let offset = if self.rng.below(2) == 0 { len } else { self.rng.below(len + 1) };
            let count = 1 + self.rng.below(WRITE_MAX);
            let bytes = self.bytes(count);
            let at = offset as usize;
            self.folder.files[index].change(|known| {
                known.resize(known.len().max(at + bytes.len()), 0);
                known[at..at + bytes.len()].copy_from_slice(&bytes);
            });
            file.write_all_at(&bytes, offset)?;
        }
        // Limits the number of possible contents of a file that is never synced.
        if self.rng.below(4) > 0 || self.folder.files[index].contents.len() > 12 {
            self.sync(&file, index)?;
        }
        Ok(())
    }

    /// Replaces a file by one that was synced before.
    fn replace(&mut self) -> io::Result<()> {
        let name = format!("r{}", self.rng.below(REPLACED));
        let len = 1 + self.rng.below(WRITE_MAX);
        let (bytes, new) = (self.bytes(len), self.path("new"));
        std::fs::write(&new, &bytes)?;
        File::open(&new)?.sync_all()?;
        let is_first = !self.folder.files.iter().any(|file| file.name() == name);
        let index = self.tracked(&name);
        let tracked = &mut self.folder.files[index];
        tracked.is_whole = true;
        if is_first {
            tracked.contents.clear();
        }
        tracked.contents.push(bytes);
        std::fs::rename(&new, self.path(&name))?;
        if self.rng.below(2) == 0 {
            self.sync(&File::open(&self.at)?, index)?;
        }
        Ok(())
    }

    /// Creates a file, writes it and syncs it.
    fn create(&mut self) -> io::Result<()> {
        let created = self.folder.files.iter().filter(|file| is_created(file)).count();
        if created > CREATED_MAX {
            return self.remove();
        }
        self.created += 1;
        let name = format!("n{}", self.created);
        let index = self.tracked(&name);
        let file = File::create_new(self.path(&name))?;
        let len = self.rng.below(40 << 10);
        let bytes = self.bytes(len);
        self.folder.files[index].change(|known| known.clone_from(&bytes));
        file.write_all_at(&bytes, 0)?;
        self.sync(&file, index)
    }

    /// Returns the index of a created file that is promised.
    fn any_created(&mut self) -> Option<usize> {
        let files = self.folder.files.iter().enumerate();
        let created: Vec<usize> = files
            .filter(|(_, file)| is_created(file) && file.is_promised && file.names.len() == 1)
            .map(|(index, _)| index)
            .collect();
        let chosen = self.rng.below(created.len() as u64) as usize;
        created.get(chosen).copied()
    }

    /// Renames a file, and syncs it under its new name.
    fn rename(&mut self) -> io::Result<()> {
        let Some(index) = self.any_created() else { return Ok(()) };
        let old = self.folder.files[index].name().to_owned();
        self.created += 1;
        let new = format!("m{}", self.created);
        self.folder.files[index].names.push(new.clone());
        std::fs::rename(self.path(&old), self.path(&new))?;
        let file = File::open(self.path(&new))?;
        self.sync(&file, index)?;
        self.folder.absent.push(old);
        Ok(())
    }

    /// Removes a file, and syncs the directory.
    fn remove(&mut self) -> io::Result<()> {
        let Some(index) = self.any_created() else { return Ok(()) };
        let name = self.folder.files[index].name().to_owned();
        self.folder.files[index].may_be_gone = true;
        std::fs::remove_file(self.path(&name))?;
        File::open(&self.at)?.sync_all()?;
        self.folder.synced += 1;
        self.folder.files.remove(index);
        self.folder.absent.push(name);
        Ok(())
    }
}

/// Whether a file is created once, and may be renamed and removed.
fn is_created(file: &Tracked) -> bool {
    file.name().starts_with(['n', 'm']) && !file.may_be_gone
}
