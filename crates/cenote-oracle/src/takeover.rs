//! OpenZFS's stress test on our pools: it takes an exported pool over and writes to it.
//!
//! `ztest -E` works on an existing pool in files. It first asks the kernel through `/dev/zfs`
//! whether the pool is in use there. If the kernel module is not loaded, that request fails, and a
//! small preloaded library gives the right answer: there is no such pool.
//!
//! The features encryption, bookmark_v2, bookmark_written and livelist must be enabled in the pool,
//! and its sectors must have 4096 bytes. Afterwards the pool may have leaked space, which ztest can
//! leave in pools of OpenZFS too, so the results of two checkers are compared. After each pass
//! ztest itself runs `zdb -bcc -d -y`. That ends with status 2, and ztest with it, if counts are
//! wrong: of references to space maps, of obsolete bytes of removed devices, of features, or of
//! objects; not for leaked space or for bad blocks.

#![expect(clippy::disallowed_methods, reason = "a child process lives in real time")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use crate::shims;
use crate::tool::{self, Said};

/// The layout of a pool, which ztest needs as arguments.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    /// One disk.
    Disk,
    /// A mirror of two.
    Mirror,
    /// A RAID-Z2 of six.
    Raidz2,
}

impl Shape {
    fn options(self) -> [&'static str; 4] {
        let (mirror, width, parity) = match self {
            Self::Disk => ("-m0", "-r1", "-R1"),
            Self::Mirror => ("-m2", "-r1", "-R1"),
            Self::Raidz2 => ("-m0", "-r6", "-R2"),
        };
        ["-v1", mirror, width, parity]
    }
}

/// `ztest` with its shim.
#[derive(Debug, Clone)]
pub struct Takeover {
    ztest: PathBuf,
    shim: PathBuf,
}

/// `ztest`, if it and a C compiler are installed; otherwise reports that the running test is
/// skipped.
pub fn ztest() -> Option<Takeover> {
    static FOUND: OnceLock<Result<Takeover, String>> = OnceLock::new();
    tool::found_or_skip(FOUND.get_or_init(find))
}

fn find() -> Result<Takeover, String> {
    let ztest = tool::locate("ztest").ok_or("no ztest here to take pools over")?;
    let shim = shims::find("nokernel").ok_or("no C compiler here for what ztest needs")?;
    Ok(Takeover { ztest, shim })
}

impl Takeover {
    /// Runs ztest for so many seconds on the pool whose devices are the files in `folder`.
    pub fn run(&self, pool: &str, folder: &Path, shape: Shape, seconds: u64) -> Said {
        let seconds_given = seconds.to_string();
        let mut command = Command::new(&self.ztest);
        command.args(["-E", "-p", pool, "-f"]).arg(folder).args(shape.options());
        command.args(["-K", "raidz", "-a", "12", "-k", "0", "-V"]);
        command.args(["-T", &seconds_given, "-P", &seconds_given]);
        command.current_dir(folder).env("LD_PRELOAD", &self.shim).env("TZ", "UTC");
        let shown = format!("{command:?}");
        let fail = |error: std::io::Error| -> ! { panic!("{shown}: {error}") };
        // Outside of the folder that is searched for pools, and unique: several may run at once.
        let log = folder.with_extension("ztest");
        let output = File::create(&log).unwrap_or_else(|error| fail(error));
        let errors = output.try_clone().unwrap_or_else(|error| fail(error));
        command.stdin(Stdio::null()).stdout(output).stderr(errors);
        let mut child = command.spawn().unwrap_or_else(|error| fail(error));
        // Much more time than ztest needs on a busy machine: slow progress is not a hang.
        let limit = Instant::now() + Duration::from_secs(10 * seconds + 600);
        let status = loop {
            match child.try_wait().unwrap_or_else(|error| fail(error)) {
                Some(status) => break status,
                None if Instant::now() > limit => {
                    // The output shows how far it got.
                    child.kill().unwrap_or_else(|error| fail(error));
                    break child.wait().unwrap_or_else(|error| fail(error));
                }
                None => std::thread::sleep(Duration::from_millis(200)),
            }
        };
        let text = std::fs::read(&log).unwrap_or_default();
        std::fs::remove_file(&log).ok();
        let stdout = String::from_utf8_lossy(&text).into_owned();
        Said { command: shown, code: status.code(), stdout, stderr: String::new() }
    }
}
