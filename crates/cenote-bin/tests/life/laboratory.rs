//! Experiments of the laboratory on files: `cenote lab run --real`.

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use crate::home::Home;

/// Longest time until an experiment has opened its files, or has ended.
const TIME_MAX: Duration = Duration::from_mins(2);

fn start(folder: &Path) -> Child {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
    command.args(["lab", "run", "--small", "--real"]).arg(folder).arg("volume");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn is_empty(folder: &Path) -> bool {
    std::fs::read_dir(folder).unwrap().next().is_none()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn ended(child: Child) -> Output {
    let output = child.wait_with_output().unwrap();
    println!("{}{}", text(&output.stdout), text(&output.stderr));
    output
}

/// Whether a process has a file open that has no name any more and is in this folder.
fn has_nameless(child: &Child, folder: &Path) -> bool {
    let Ok(entries) = std::fs::read_dir(format!("/proc/{}/fd", child.id())) else { return false };
    let links = entries.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    let mut links = links.map(|link| link.to_string_lossy().into_owned());
    let folder = folder.canonicalize().unwrap();
    links.any(|link| link.starts_with(folder.to_str().unwrap()) && link.ends_with("(deleted)"))
}

#[test]
fn experiment_on_files_prints_its_tables_and_leaves_nothing() {
    let home = Home::new("lab");
    let folder = home.path("stages");
    let output = ended(start(&folder));
    let printed = text(&output.stdout);
    assert!(output.status.success());
    assert!(printed.contains("\n  file    128K ") && printed.contains("pass  volumes whose USED "));
    assert!(
        printed.ends_with("hash none seed 1 costs none scale small devices real policies cenote\n")
    );
    assert!(is_empty(&folder));
}

#[test]
fn killed_experiment_leaves_no_file() {
    let home = Home::new("lab-killed");
    let folder = home.path("stages");
    let mut child = start(&folder);
    let begun = Instant::now();
    while !has_nameless(&child, &folder) {
        assert!(child.try_wait().unwrap().is_none(), "ended before it opened a file");
        assert!(begun.elapsed() < TIME_MAX, "opened no file");
        std::thread::yield_now();
    }
    child.kill().unwrap();
    let output = ended(child);
    assert!(output.status.code().is_none() && output.stdout.is_empty());
    assert!(is_empty(&folder));
}

/// The pool of the experiment would wait for space.
#[test]
fn full_file_system_ends_an_experiment() {
    let home = Home::new("lab-full");
    if !home.mount_small("small", 60 << 20) {
        return;
    }
    let output = ended(start(&home.path("small")));
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        said.starts_with("cannot run the experiment: device ") && said.contains("(os error 28)")
    );
    assert!(is_empty(&home.path("small")));
}

#[test]
fn experiments_that_need_models_and_places_that_are_none_are_refused() {
    let home = Home::new("lab-refused");
    let run = |folder: &str, experiment: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cenote"));
        let output = command.args(["lab", "run", "--real", folder, experiment]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{folder} {experiment}");
        text(&output.stderr)
    };
    let said = run(&home.text("stages"), "pads");
    assert!(said.ends_with("cannot run on files: scrub, volume, overwrite can\n"), "{said}");
    for place in [home.text("nonexistent"), home.text("pool/d0")] {
        let said = run(&place, "volume");
        let want = format!("cannot run the experiment: cannot create {place}/cenote-lab.");
        assert!(said.starts_with(&want), "{said}");
    }
    let size = std::fs::metadata(home.path("pool/d0")).unwrap().len();
    assert_eq!(size, 96 << 20);
}
