//! Tests that find seeded bugs.
//!
//! A bug is on in a whole process, so a test that finds one runs again, in a process of its own.

use std::process::Command;

pub use cenote_rt::seeded::switch_on;
use cenote_rt::seeded::{Bug, VARIABLE};

use crate::skip::{current_test, skip};

/// Skips the running test, and returns true, in a build that has no bugs.
pub fn are_missing() -> bool {
    let are_missing = !cfg!(debug_assertions);
    if are_missing {
        skip(&current_test(), "the bugs are not in a build without assertions");
    }
    are_missing
}

/// Runs a test of this program again, with a bug and variables. Returns what it says if it fails.
pub fn failure(test: &str, bug: Bug, variables: &[(&str, &str)]) -> Option<String> {
    let said = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", test, "--nocapture"])
        .envs([(VARIABLE, format!("{bug:?}")), ("RUST_BACKTRACE", "0".into())])
        .envs(variables.iter().copied())
        .output()
        .expect("this program starts");
    (!said.status.success()).then(|| String::from_utf8_lossy(&said.stderr).into_owned())
}

/// Checks that a test of this program fails with each of `bugs`, and says `why`.
pub fn check_found(bugs: &[Bug], why: &str, test_of: impl Fn(Bug) -> &'static str) {
    if are_missing() {
        return;
    }
    for bug in bugs {
        let said = failure(test_of(*bug), *bug, &[]);
        let said = said.unwrap_or_else(|| panic!("{bug:?} is not found"));
        assert!(said.contains(why), "{bug:?}: {said}");
    }
}
