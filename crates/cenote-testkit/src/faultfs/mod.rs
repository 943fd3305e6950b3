//! Devices that fail on command: a FUSE file system whose files are the leaves of a pool.
//!
//!     daemon under test --> FOLDER/leaves/d0 .. dN --> layer process --> FOLDER/backing/images/d0
//!                                                          ^
//!     test ---------- orders: inject, heal, cut, ... ------+
//!
//! The layer is a process of its own: a daemon under test that is killed, and a test that panics,
//! leave no hung mount behind, because the layer detaches its mount and ends as soon as the test's
//! end of the socket is closed. The process is the test's own program, started again with the name
//! of one test function that calls [`serve_if_started`]:
//!
//!     fn fault_layer() { cenote_testkit::faultfs::serve_if_started(); }    // with #[test]
//!
//!     let sizes = [256 << 20; 3];
//!     let Some(layer) = FaultLayer::start("fault_layer", &folder, &sizes) else { return };
//!     ... zpool create t mirror layer.leaf(0) layer.leaf(1) ...
//!     layer.inject(1, Fault::all(Op::Write).every(3));
//!
//! A leaf is opened with direct I/O in the layer's mount: no page cache lies between the daemon and
//! the injected faults. Locks (`flock`) are the kernel's. Each leaf has a volatile write cache
//! ([`leaf`]): a write is durable after the next flush that succeeds and does not lie, and a power
//! cut keeps only a part of the others, chosen by a seed.
//!
//! The images in the backing folder can be read at any time, for example by `zdb` after an export.

mod leaf;
mod order;
mod process;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

pub use order::{Counts, Fault, FaultError, Op, PowerCut};

use crate::skip;
use order::{Answer, Order};

/// Names the folder of the layer that the process is to serve.
const FOLDER: &str = "CENOTE_FAULT_LAYER";
/// The folder with all files of the layer, inside the test's folder.
const BACKING: &str = "backing";
/// The folder with the leaves' files, inside `BACKING`.
const IMAGES: &str = "images";
/// The folder where the leaves are mounted, inside the test's folder.
const MOUNTED: &str = "leaves";
/// An order takes at most this long.
const ANSWER_MAX: Duration = Duration::from_mins(1);
/// Leaves of a layer.
const LEAVES_MAX: usize = 1 << 10;
/// How often, and with which pause, a process that should end is checked.
const END_TRIES: u32 = 200;
const END_PAUSE: Duration = Duration::from_millis(25);

/// Leaves that fail on command. Dropping it takes the mount away.
#[derive(Debug)]
pub struct FaultLayer {
    folder: PathBuf,
    leaf_count: usize,
    process: Child,
    /// Orders are carried out one at a time. None: the layer is ending.
    line: Mutex<Option<BufReader<UnixStream>>>,
}

/// Serves the layer if this process was started for it, and then does not return.
pub fn serve_if_started() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        process::serve(Path::new(&folder));
    }
}

/// Reports that the running test is skipped if FUSE is not available.
pub fn has_fuse() -> bool {
    let is_there = Path::new("/dev/fuse").exists();
    if !is_there {
        skip::skip(&skip::current_test(), "no /dev/fuse");
    }
    is_there
}

impl FaultLayer {
    /// Starts a layer in `folder` with sparse leaves `d0`, `d1`, ... of these sizes in bytes.
    ///
    /// `entry` is the full name of the test function of this program that calls
    /// [`serve_if_started`]. Returns none, and reports the skipped test, if FUSE is not available.
    pub fn start(entry: &str, folder: &Path, sizes: &[u64]) -> Option<Self> {
        if !has_fuse() {
            return None;
        }
        let images = folder.join(BACKING).join(IMAGES);
        fs::create_dir_all(&images).expect("the folder of images");
        assert!(sizes.len() <= LEAVES_MAX, "at most {LEAVES_MAX} leaves");
        fs::create_dir_all(folder.join(MOUNTED)).expect("the place of the leaves");
        for (index, size) in sizes.iter().enumerate() {
            let image = fs::File::create(images.join(format!("d{index}"))).expect("an image");
            image.set_len(*size).expect("the size of an image");
        }
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_read_timeout(Some(ANSWER_MAX)).expect("a time limit");
        let process = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", entry, "--nocapture", "--test-threads=1"])
            .env(FOLDER, folder)
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .expect("the layer's process");
        let line = Mutex::new(Some(BufReader::new(ours)));
        let layer = Self { folder: folder.to_path_buf(), leaf_count: sizes.len(), process, line };
        match layer.answer() {
            Answer::Mounted => Some(layer),
            Answer::Refused(why) => {
                skip::skip(&skip::current_test(), &format!("FUSE is not available: {why}"));
                None
            }
            other => panic!("the layer answered {other:?} when it was started"),
        }
    }

    /// The folder of the mounted leaves.
    pub fn leaves(&self) -> PathBuf {
        self.folder.join(MOUNTED)
    }

    /// The mounted file of a leaf.
    pub fn leaf(&self, index: usize) -> PathBuf {
        self.leaves().join(format!("d{index}"))
    }

    /// The number of leaves.
    pub fn leaf_count(&self) -> usize {
        self.leaf_count
    }

    /// The folder of the leaves' files behind the layer.
    pub fn images(&self) -> PathBuf {
        self.folder.join(BACKING).join(IMAGES)
    }

    /// Adds a fault to a leaf.
    pub fn inject(&self, leaf: usize, fault: Fault) {
        self.order(&Order::Inject(leaf, fault));
    }

    /// Removes everything that was done to a leaf: faults, delay, hanging, end, lies, absence.
    pub fn heal(&self, leaf: usize) {
        self.order(&Order::Heal(leaf));
    }

    /// Heals every leaf.
    pub fn heal_all(&self) {
        (0..self.leaf_count).for_each(|leaf| self.heal(leaf));
    }

    /// Every request of the leaf fails with ENXIO, openings included.
    pub fn take_away(&self, leaf: usize) {
        self.order(&Order::Gone(leaf));
    }

    /// Like [`Self::take_away`], and the leaf has no name in its folder.
    pub fn hide(&self, leaf: usize) {
        self.order(&Order::Absent(leaf));
    }

    /// The host's disk is full: writes of the leaf that need new space fail with ENOSPC.
    pub fn fill_host(&self, leaf: usize) {
        self.order(&Order::Full(leaf));
    }

    /// The leaf ends at `size` bytes.
    pub fn shorten(&self, leaf: usize, size: u64) {
        self.order(&Order::Resize(leaf, size));
    }

    /// Every request of the leaf takes this much longer.
    pub fn slow_down(&self, leaf: usize, delay: Duration) {
        self.order(&Order::Delay(leaf, delay));
    }

    /// Requests of the leaf get no answer until it is healed. Then they are carried out, in order.
    pub fn hang(&self, leaf: usize) {
        self.order(&Order::Hang(leaf));
    }

    /// Flushes of the leaf succeed and make nothing durable.
    pub fn lie_at_flush(&self, leaf: usize) {
        self.order(&Order::LyingFlush(leaf));
    }

    /// Keeps a copy of the leaf's bytes for [`Self::recall`].
    pub fn remember(&self, leaf: usize) {
        self.order(&Order::Remember(leaf));
    }

    /// Restores the remembered bytes of the leaf, like a device that comes back stale.
    pub fn recall(&self, leaf: usize) {
        self.order(&Order::Recall(leaf));
    }

    /// Cuts the power: unflushed writes are lost as `cut` says, and every later request fails with
    /// ENXIO.
    pub fn cut(&self, cut: PowerCut) {
        self.order(&Order::Cut(cut));
    }

    /// Gives the leaves their power back, without faults.
    pub fn power_on(&self) {
        self.order(&Order::PowerOn);
    }

    /// The number of requests of a leaf so far.
    pub fn counts(&self, leaf: usize) -> Counts {
        match self.send(&Order::Count(leaf)) {
            Answer::Counts(counts) => counts,
            other => panic!("the layer answered {other:?} when it was asked for counts"),
        }
    }

    fn order(&self, order: &Order) {
        let answer = self.send(order);
        assert_eq!(answer, Answer::Done, "{order:?}");
    }

    fn send(&self, order: &Order) -> Answer {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        let line = line.as_mut().expect("the layer serves");
        let text = serde_json::to_string(order).expect("an order is JSON") + "\n";
        line.get_mut().write_all(text.as_bytes()).expect("the layer's process is alive");
        read_answer(line)
    }

    fn answer(&self) -> Answer {
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        read_answer(line.as_mut().expect("the layer serves"))
    }
}

fn read_answer(line: &mut BufReader<UnixStream>) -> Answer {
    let mut text = String::new();
    line.read_line(&mut text).expect("the layer answers in time");
    assert!(!text.is_empty(), "the layer's process has ended");
    serde_json::from_str(&text).expect("the layer's answer")
}

impl Drop for FaultLayer {
    #[expect(clippy::disallowed_methods, reason = "a test waits in real time")]
    fn drop(&mut self) {
        // The process ends when the socket is closed.
        self.line.lock().unwrap_or_else(PoisonError::into_inner).take();
        for _ in 0..END_TRIES {
            if !matches!(self.process.try_wait(), Ok(None)) {
                break;
            }
            std::thread::sleep(END_PAUSE);
        }
        // Both fail if the process has ended normally.
        let _ = self.process.kill();
        let _ = self.process.wait();
        detach(&self.leaves());
    }
}

/// Unmounts the file system at a path, if there is one. Without root `fusermount3` does it.
fn detach(at: &Path) {
    if rustix::mount::unmount(at, rustix::mount::UnmountFlags::DETACH).is_err() && is_mounted(at) {
        // A mount that is left behind is noticed by the next test that uses the folder.
        let _ = Command::new("fusermount3").arg("-uzq").arg(at).status();
    }
}

/// Returns whether something is mounted at a path, without a request to a file system.
fn is_mounted(at: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let at = at.to_string_lossy();
    table.lines().any(|line| line.split(' ').nth(1) == Some(&at))
}

/// The files of the leaves, `d0` first.
fn leaf_paths(images: &Path) -> Vec<PathBuf> {
    let paths = (0..LEAVES_MAX).map(|index| images.join(format!("d{index}")));
    paths.take_while(|path| path.exists()).collect()
}
