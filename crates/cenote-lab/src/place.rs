//! Where the disks of an experiment are: modelled, in virtual time, or files of a folder in real
//! time.
//!
//! Files are removed as soon as they are open: nothing is left of an experiment that is killed.
//! They are read and written past the page cache, if the file system of the folder can do that. An
//! error of one of them, for example because the file system is full, ends the experiment: its pool
//! would wait for somebody who mends the device.

use std::fs::{self, File};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use cenote_device::{Device, FileDevice, OpenMode};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::tunables::{self, Tunable};
use cenote_rt::{Error, Kind, Notify, Result, World, block_on, simulate};

/// Number of the next file of this process.
static NEXT_FILE: AtomicU64 = AtomicU64::new(0);

/// Where disks are.
#[derive(Debug, Clone, Default)]
pub enum Place {
    /// Modelled, in virtual time.
    #[default]
    Models,
    /// Files of this folder, in real time.
    Files(Folder),
}

impl Place {
    /// Whether disks are files.
    #[must_use]
    pub fn is_real(&self) -> bool {
        matches!(self, Self::Files(_))
    }

    /// Runs `work` in a world with these tunables. In real time it runs on all processors; nothing
    /// else of this process may use the engine meanwhile, because tunables are those of the
    /// process.
    ///
    /// # Errors
    /// Errors of the executor and of `work`; `Kind::Invalid` if a tunable is out of range.
    pub fn run<T>(&self, world: World, work: impl Future<Output = Result<T>>) -> Result<T> {
        match self {
            Self::Models => simulate(world, work)?,
            Self::Files(folder) => {
                let mut kept = Kept::default();
                kept.set(&tunables::DIRECT_IO, 1)?;
                for (tunable, value) in world.tunables {
                    kept.set(tunable, value)?;
                }
                block_on(0, folder.until_failure(work))?
            }
        }
    }
}

/// A folder of files that are disks.
#[derive(Debug, Clone)]
pub struct Folder {
    path: PathBuf,
    failure: Arc<Failure>,
}

/// The first error of a file.
#[derive(Debug)]
pub(crate) struct Failure {
    // Held for a few instructions.
    text: Mutex<Option<String>>,
    happened: Notify,
}

impl Failure {
    /// Takes note of an error.
    pub(crate) fn tell(&self, error: &Error) {
        self.text.lock().get_or_insert_with(|| error.to_string());
        self.happened.notify_one();
    }
}

impl Folder {
    /// Returns a folder, which need not exist yet.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        let text = Mutex::with_default(Rank::Recorder);
        let failure = Arc::new(Failure { text, happened: Notify::new() });
        Self { path: path.into(), failure }
    }

    pub(crate) fn failure(&self) -> Arc<Failure> {
        Arc::clone(&self.failure)
    }

    /// Waits for `work`, or for the first error of a file.
    async fn until_failure<T>(&self, work: impl Future<Output = Result<T>>) -> Result<T> {
        let (mut work, mut failed) = (pin!(work), pin!(self.failure.happened.notified()));
        std::future::poll_fn(|context| {
            if let Poll::Ready(done) = work.as_mut().poll(context) {
                return Poll::Ready(done);
            }
            failed.as_mut().poll(context).map(|()| {
                let text = self.failure.text.lock().take().unwrap_or_default();
                Err(Error::new(Kind::Io, std::io::Error::other(text)))
            })
        })
        .await
    }

    /// Creates a file of `size` bytes without blocks, opens it, and removes its name.
    ///
    /// # Errors
    /// `Kind::Io` if that fails, with the path.
    pub(crate) fn open_file(&self, size: u64) -> Result<Arc<dyn Device>> {
        let number = NEXT_FILE.fetch_add(1, Ordering::Relaxed);
        let path = self.path.join(format!("cenote-lab.{}.{number}", std::process::id()));
        let failed = |error| {
            let text = format!("cannot create {}: {error}", path.display());
            Error::new(Kind::Io, std::io::Error::other(text))
        };
        let file = File::create_new(&path).map_err(failed)?;
        let device = file.set_len(size).map_err(failed).and_then(|()| {
            drop(file);
            FileDevice::open(&path, OpenMode::Exclusive)
        });
        let removed = fs::remove_file(&path).map_err(failed);
        let device = device?;
        removed?;
        Ok(device)
    }
}

/// Tunables that get their values back.
#[derive(Debug, Default)]
struct Kept {
    values: Vec<(&'static Tunable, u64)>,
}

impl Kept {
    fn set(&mut self, tunable: &'static Tunable, value: u64) -> Result<()> {
        let before = tunable.get();
        tunable.set(value).map_err(|error| Error::new(Kind::Invalid, error))?;
        self.values.push((tunable, before));
        Ok(())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (tunable, before) in self.values.drain(..).rev() {
            // It had this value before.
            let _ = tunable.set(before);
        }
    }
}
