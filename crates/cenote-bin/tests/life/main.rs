//! The life of the daemon: killed or told to stop at every stage of its work, with few descriptors,
//! tasks, memory or disk space, and with hundreds of mounted file systems.
//!
//! After each of these a new daemon has the pools within seconds, with everything mounted; synced
//! files are there; no command hangs; nothing of the old daemon remains: no process, no connection
//! of `/dev/fuse` and no mount that does not answer ([`home::Home::revive`]).
//!
//! The stages are named points in the program (`cenote_rt::stages`), so that a run is
//! deterministic: a first run of a command records its stages, and then the command is run again
//! for each of them, with the daemon stopped exactly there. Some of the stages are run always, all
//! of them with `CENOTE_TEST_ALL`; `CENOTE_SEED` chooses others.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]
#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

mod full;
mod home;
mod laboratory;
mod limits;
mod many;
mod proc;
mod records;
mod stages;
mod suspended;

use cenote_testkit::skip;

/// Whether a program is installed; else reports that a part of the test is skipped.
fn has(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = std::env::split_paths(&path).any(|folder| folder.join(program).is_file());
    if !is_there {
        skip::skip(&skip::current_test(), &format!("no {program} here"));
    }
    is_there
}

/// The process of the fault layer of each test; tests nothing itself.
#[test]
fn fault_layer() {
    cenote_testkit::faultfs::serve_if_started();
}
