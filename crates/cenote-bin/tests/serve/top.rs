//! `cenote top` beside a daemon with a pool: in a batch, and at a pseudo-terminal (`top.py`).
//! `cenote trace` of a file system.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};

use cenote_testkit::skip;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::daemon::{House, has_fuse};
use crate::has;
use crate::watch::until;

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/serve/top.py");
const PROGRAM: &str = env!("CARGO_BIN_EXE_cenote");

/// A user at a terminal, who runs `cenote top` every 0.2 s; `None` without python3.
fn user(house: &House, case: &str, args: &[&str]) -> Option<Command> {
    if !has("python3") {
        skip::skip(&skip::current_test(), "no python3");
        return None;
    }
    let mut user = Command::new("python3");
    user.arg(SCRIPT).arg(case).arg(PROGRAM).arg("top").args(args).arg("0.2");
    user.env("CENOTE_STATE_DIR", house.path("state")).env_remove("CENOTE_STAGES");
    Some(user)
}

fn succeeds(command: &mut Command) {
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command:?}\n{said}");
}

fn house(stem: &str) -> House {
    let house = House::new(stem);
    house.create("none");
    house
}

#[test]
fn top_answers_keys_and_fits_the_window() {
    let house = house("top-keys");
    if let Some(mut user) = user(&house, "keys", &["t"]) {
        succeeds(&mut user);
    }
}

#[test]
fn top_restores_the_terminal_after_signals() {
    let house = house("top-signals");
    if let Some(mut user) = user(&house, "signals", &[]) {
        succeeds(&mut user);
    }
}

#[test]
fn top_restores_the_terminal_after_a_panic() {
    let house = house("top-panic");
    let stages = house.path("stages");
    std::fs::create_dir(&stages).unwrap();
    std::fs::write(stages.join("panic"), "top-shown\n").unwrap();
    if let Some(mut user) = user(&house, "panic", &[]) {
        succeeds(user.env("CENOTE_STAGES", &stages));
    }
}

#[test]
fn top_survives_the_daemon() {
    let house = house("top-daemon");
    let Some(mut user) = user(&house, "daemon", &[]) else { return };
    let mut user =
        user.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let signal = |signal: Signal| {
        kill_process(Pid::from_raw(house.pid()).unwrap(), signal).unwrap();
    };
    let mut steps = BufReader::new(user.stdout.take().unwrap()).lines();
    let (mut done, mut count) = (user.stdin.take().unwrap(), 0);
    while let Some(Ok(step)) = steps.next() {
        match (step.as_str(), count) {
            ("does not answer" | "quit", _) => signal(Signal::STOP),
            ("DEVICE", 1) => signal(Signal::CONT),
            ("no daemon is running", _) => house.kill(),
            ("DEVICE", _) => drop(house.run("zpool list")),
            (step, _) => panic!("{step}"),
        }
        count += 1;
        writeln!(done, "done").unwrap();
    }
    signal(Signal::CONT);
    let mut said = String::new();
    user.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(user.wait().unwrap().success(), "{said}");
    assert_eq!(count, 5, "{said}");
}

#[test]
fn top_prints_frames_of_a_working_pool() {
    let house = House::new("top-batch");
    house.create(&if has_fuse() { house.text("at") } else { "none".to_owned() });
    let mut top = house.command(&["top", "-b", "t", "0.5", "3"]);
    let top = top.stdout(Stdio::piped()).spawn().unwrap();
    let json =
        house.command(&["top", "--json", "0.5", "3"]).stdout(Stdio::piped()).spawn().unwrap();
    if has_fuse() {
        for number in 0..60 {
            let path = house.path("at").join(format!("file{number}"));
            let mut file = std::fs::File::create(path).unwrap();
            file.write_all(&vec![7; 1 << 20]).unwrap();
            file.sync_all().unwrap();
        }
    } else {
        house.run("zfs create -o mountpoint=none t/a");
    }
    let text = String::from_utf8(top.wait_with_output().unwrap().stdout).unwrap();
    let frames: Vec<_> = text.split("\n\n").filter(|part| part.starts_with("cenote top")).collect();
    assert_eq!(frames.len(), 3, "{text}");
    for part in
        [" s, by operations\nt: ONLINE, ", "\n  active/pending: sync_read 0/0, ", " DEVICE\n"]
    {
        assert!(text.contains(part), "{part}\n{text}");
    }
    let text = String::from_utf8(json.wait_with_output().unwrap().stdout).unwrap();
    let frames: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(frames.len(), 3, "{text}");
    let figure = |frame: &Value, path: &str| frame.pointer(path).and_then(Value::as_f64);
    let sum =
        |path: &str| -> f64 { frames.iter().map(|frame| figure(frame, path).unwrap_or(0.0)).sum() };
    assert!(
        sum("/pools/0/write/bytes") > 0.0 && sum("/devices/0/write/operations") > 0.0,
        "{text}"
    );
    assert!(frames.iter().any(|frame| frame["pools"][0]["write"]["p99_ns"].is_u64()), "{text}");
    assert_eq!(frames[0]["devices"].as_array().unwrap().len(), 2, "{text}");
    if has_fuse() {
        let of_files = |frame: &&Value| frame["datasets"][0]["name"] == "t";
        let frame = frames.iter().find(of_files).expect("a frame of the dataset");
        assert!(figure(frame, "/datasets/0/write/bytes") > Some(1e6), "{text}");
        assert!(figure(frame, "/datasets/0/write/p99_ns") > Some(0.0), "{text}");
        assert!(sum("/datasets/0/commits") > 0.0, "{text}");
    }
    let (status, said) = house.fails("top -b none 0.1 1");
    assert_eq!((status, said.as_str()), (1, "cannot open 'none': no such pool\n"));
}

#[test]
fn top_shows_what_a_scan_waits_for() {
    if !has_fuse() {
        return;
    }
    let house = House::new("top-scan");
    house.create(&house.text("at"));
    let file = std::fs::File::create(house.path("at/file")).unwrap();
    for block in 0..64_u64 {
        file.write_all_at(&vec![block as u8 + 1; 128 << 10], block << 17).unwrap();
    }
    file.sync_all().unwrap();
    house.run("tunable set cenote_scan_throttle=1 zfs_scrub_delay=1000 zfs_scan_idle=100000");
    house.run("zpool scrub t");
    until("a frame with what the scan waits for", || {
        file.write_all_at(&[7; 4096], 0).unwrap();
        file.sync_all().unwrap();
        let frame: Value = serde_json::from_str(&house.run("top --json t 0.1 1")).unwrap();
        let scan = frame["pools"][0]["scan"].as_array().unwrap();
        let has = |begin: &str, end: &str| {
            let mut lines = scan.iter().filter_map(Value::as_str);
            lines.any(|line| line.starts_with(begin) && line.ends_with(end))
        };
        has("scan: scrub in progress since ", "")
            && has("waiting for: ordinary I/O, ", "; zfs_scrub_delay=1000")
    });
}

#[test]
fn top_says_that_there_is_no_daemon_and_ends_with_the_pipe() {
    let house = House::new("top-alone");
    let output = house.command(&["top", "-b", "0.1", "2"]).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(
        (output.status.code(), said.matches("no daemon is running\n").count()),
        (Some(1), 2)
    );
    let output = house.command(&["top", "--json", "0.1", "1"]).output().unwrap();
    let frame: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(frame["error"], "no daemon is running");
    // Nothing was started, and the state folder was not even made.
    assert!(!house.path("state").exists());
    let mut top = house.command(&["top", "0.1"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut first = [0; 10];
    top.stdout.take().unwrap().read_exact(&mut first).unwrap();
    assert_eq!((&first, top.wait().unwrap().code()), (b"cenote top", Some(141)));
}

#[test]
fn trace_records_places_and_lengths_of_a_mount() {
    if !has_fuse() {
        return;
    }
    let house = House::new("trace");
    house.create(&house.text("at"));
    let (file, recording) = (house.path("at/file"), house.path("recording"));
    let out = std::fs::File::create(&recording).unwrap();
    let mut trace = house.command(&["trace", "-n", "80", "t"]);
    let mut trace = trace.stdout(Stdio::from(out)).spawn().unwrap();
    until("the recording begins", || {
        crate::watch::read(&recording).starts_with("# cenote trace 1, of t\n")
    });
    let (status, said) = house.fails("trace t");
    assert_eq!((status, said.as_str()), (1, "cannot trace 't': it is being traced\n"));
    let data = std::fs::File::create(&file).unwrap();
    for number in 0..80 {
        data.write_all_at(&[7; 8192], number * 65_536).unwrap();
    }
    assert!(trace.wait().unwrap().success());
    let text = crate::watch::read(&recording);
    let accesses: Vec<Vec<&str>> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split(' ').skip(1).collect())
        .collect();
    assert_eq!(accesses.len(), 80, "{text}");
    for (number, access) in accesses.iter().enumerate() {
        let offset = (number * 65_536).to_string();
        assert!(access[0] == "W" && access[2..] == [offset.as_str(), "8192"], "{access:?}");
    }
    assert!(text.ends_with("# 80 accesses, 0 lost\n"), "{text}");
    let advice = house.run(&format!("lab recordsize {}", recording.display()));
    assert!(advice.contains("80 writes, half of them of 8K at most"), "{advice}");
    assert!(advice.contains("\nSSD: recordsize="), "{advice}");
    // The recording ended, and another one may begin; it ends by its time.
    let empty = house.run("trace -t 1 t");
    assert_eq!(empty, "# cenote trace 1, of t\n# 0 accesses, 0 lost\n");
    for (line, status, wanted) in [
        ("trace", 2, "one dataset is needed\n"),
        ("trace -t 0 t", 2, "-t: '0' is not a number from 1 to 86400\n"),
        ("trace t/none", 1, "cannot open 't/none': dataset does not exist\n"),
    ] {
        let (found, said) = house.fails(line);
        assert!(found == status && said.starts_with(wanted), "{line}: {said}");
    }
    house.run("zfs snapshot t@a");
    let (_, said) = house.fails("trace t@a");
    assert_eq!(said, "cannot trace 't@a': a snapshot has no head\n");
}
