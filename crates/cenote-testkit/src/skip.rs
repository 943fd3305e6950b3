//! Reporting a skipped test: a line that the test harness does not capture, and a count.
//!
//! The harness captures what the print macros write, so the line goes to the stream itself.
//! With `CENOTE_SKIP_LOG` set, as `./x test` does, each skip is also appended to that file, and
//! the run ends with their number.

use std::fs::OpenOptions;
use std::io::Write;

/// Reports that a test, or a part of one, did not run, and why.
pub fn skip(test: &str, why: &str) {
    let line = format!("SKIPPED {test}: {why}\n");
    // A closed stderr is no reason to fail a test.
    let _ = std::io::stderr().write_all(line.as_bytes());
    if let Some(path) = std::env::var_os("CENOTE_SKIP_LOG") {
        let log = OpenOptions::new().create(true).append(true).open(&path);
        let written = log.and_then(|mut file| file.write_all(line.as_bytes()));
        written.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// The running test's name, as the harness calls its thread.
pub fn current_test() -> String {
    std::thread::current().name().unwrap_or("a test").to_owned()
}
