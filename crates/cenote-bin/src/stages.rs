//! Stops the process at a stage that a test names, in builds with debug assertions.
//!
//! `CENOTE_STAGES` names a directory. Every stage that is reached ([`cenote_rt::stages`]) is
//! appended to the file `reached` in it. The file `stop` holds the name of a stage and a count: the
//! process stops itself (`SIGSTOP`) when it reaches that stage this many times after the file was
//! written. The test then kills it there, or sends `SIGTERM` and continues it. The file `hold` has
//! the name of a stage: each thread that reaches the stage waits until the file is changed or
//! removed, while all other threads continue. A thread panics at the stage that the file `panic`
//! names.

use std::ffi::OsString;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::time::Duration;

use cenote_rt::lock::{Mutex, Rank};

use rustix::process::{Signal, getpid, kill_process};

/// Interval at which a held thread looks whether it may continue.
const HOLD_PAUSE: Duration = Duration::from_millis(5);

static FOLDER: OnceLock<OsString> = OnceLock::new();

/// The last contents of `stop`, and how often its stage is yet to be reached.
static ORDER: Mutex<(String, u64)> = Mutex::new(Rank::Stages, (String::new(), 0));

/// Observes stages if the environment asks for it.
pub(crate) fn observe_from_environment() {
    if let (true, Some(folder)) = (cfg!(debug_assertions), std::env::var_os("CENOTE_STAGES")) {
        let _ = FOLDER.set(folder);
        cenote_rt::stages::observe(reached);
    }
}

fn reached(stage: &str) {
    let Some(folder) = FOLDER.get().map(Path::new) else { return };
    record(folder, stage);
    hold(folder, stage);
    let ordered = std::fs::read_to_string(folder.join("panic")).unwrap_or_default();
    assert!(ordered.trim() != stage, "a test ordered this panic");
}

/// Waits while the file `hold` names this stage.
#[expect(clippy::disallowed_methods, reason = "a test in another process ends the wait")]
fn hold(folder: &Path, stage: &str) {
    while std::fs::read_to_string(folder.join("hold")).is_ok_and(|held| held.trim() == stage) {
        std::thread::sleep(HOLD_PAUSE);
    }
}

/// Appends the stage to the file `reached`, and stops the process if the test wants that.
fn record(folder: &Path, stage: &str) {
    // LOCK: held until the process has stopped, so that stages are in order.
    let mut order = ORDER.lock();
    let log = std::fs::File::options().create(true).append(true).open(folder.join("reached"));
    // Only the test would miss the line.
    let _ = log.and_then(|mut log| log.write_all(format!("{stage}\n").as_bytes()));
    let text = std::fs::read_to_string(folder.join("stop")).unwrap_or_default();
    let mut words = text.split_whitespace();
    let (name, count) = (words.next(), words.next().and_then(|count| count.parse().ok()));
    let (Some(name), Some(count)) = (name, count) else { return };
    if order.0 != text {
        *order = (text.clone(), count);
    }
    if name == stage && order.1 > 0 {
        order.1 -= 1;
        if order.1 == 0 {
            let _ = kill_process(getpid(), Signal::STOP);
        }
    }
}
