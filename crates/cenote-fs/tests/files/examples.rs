//! The examples of the library, as programs.

use std::path::{Path, PathBuf};
use std::process::Command;

use cenote_testkit::skip;

/// The program of an example: `cargo test` builds it beside the tests, unless it is told to build
/// one test only.
fn program(name: &str) -> Option<PathBuf> {
    let test = std::env::current_exe().unwrap();
    let found = test.parent()?.parent()?.join("examples").join(name);
    if found.exists() {
        return Some(found);
    }
    skip::skip(&skip::current_test(), "the examples are not built");
    None
}

fn run(program: &Path, folder: &Path) -> String {
    let output = Command::new(program).arg(folder).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

fn judge(folder: &Path) {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let said = zdb.pool("demo", folder, &["-bcc"]);
    assert!(said.is_clean(), "{said}");
}

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("cenote-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn a_pool_on_files_is_made_and_opened_and_has_snapshots() {
    let Some(program) = program("files") else { return };
    let folder = folder("example-files");
    let first = run(&program, &folder);
    let expected = ["made demo\n", "note-0: This is note-0", "took demo@txg", " has 1 notes\n"];
    for part in expected {
        assert!(first.contains(part), "{part}: {first}");
    }
    let second = run(&program, &folder);
    assert!(!second.contains("made"), "{second}");
    for part in ["note-0: This is note-0", "note-1: This is note-1", " has 2 notes\n"] {
        assert!(second.contains(part), "{part}: {second}");
    }
    judge(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn the_bytes_of_a_volume_are_served() {
    let Some(program) = program("volume") else { return };
    let folder = folder("example-volume");
    let said = run(&program, &folder);
    let expected = [
        "demo/disk: 16777216 bytes in blocks of 16384\n",
        "read: \"first sector",
        "       0 + 1081344  hole\n",
        "before: \"first sector",
        "again: 33554432 bytes, the first 0\n",
    ];
    for part in expected {
        assert!(said.contains(part), "{part}: {said}");
    }
    judge(&folder);
    std::fs::remove_dir_all(&folder).unwrap();
}
