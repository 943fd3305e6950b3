//! The example, as a program.

use std::path::PathBuf;
use std::process::Command;

use cenote_testkit::skip;

/// Returns the path of the example. `cargo test` builds it with the tests, except when building a
/// single test.
fn program() -> Option<PathBuf> {
    let test = std::env::current_exe().ok()?;
    let found = test.parent()?.parent()?.join("examples").join("library");
    if found.exists() {
        return Some(found);
    }
    skip::skip(&skip::current_test(), "the examples are not built");
    None
}

#[test]
fn example_keeps_notes_and_openzfs_reads_its_pool() {
    let Some(program) = program() else { return };
    let folder = std::env::temp_dir().join(format!("cenote-example-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let run = || {
        let output = Command::new(&program).arg(&folder).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
        text
    };
    let first = run();
    assert_eq!(first, "creating demo\nThis is note 0.\ndemo@after-0 has 1 notes\n");
    let second = run();
    for line in ["This is note 0.\n", "This is note 1.\n", "demo@after-1 has 2 notes\n"] {
        assert!(second.contains(line), "{line}: {second}");
    }
    if let Some(zdb) = cenote_oracle::zdb() {
        let said = zdb.pool("demo", &folder, &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}
