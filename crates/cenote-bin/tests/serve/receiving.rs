//! Streams that are received into pools of the daemon: what is printed, who may, what is left by a
//! stream that ends early, and receives beside everything else.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Output, Stdio};
use std::time::{Duration, Instant};

use cenote_stream::StreamReader;
use cenote_testkit::golden::{Golden, golden};
use cenote_testkit::skip;
use cenote_testkit::streams::recorded_stream;

use crate::daemon::{House, has_fuse};
use crate::mounts::is_root;
use crate::succeeds;

/// A user without rights.
const NOBODY: u32 = 54_322;

pub(crate) struct Said {
    pub(crate) status: i32,
    out: String,
    err: String,
}

impl From<Output> for Said {
    fn from(output: Output) -> Self {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self {
            status: output.status.code().unwrap_or(-1),
            out: text(&output.stdout),
            err: text(&output.stderr),
        }
    }
}

fn begin(house: &House, line: &str) -> Child {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut command = house.command(&words);
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// Runs a command with this standard input, all of which it need not read.
fn with_input(house: &House, line: &str, input: &[u8]) -> Said {
    let mut child = begin(house, line);
    drop(child.stdin.take().unwrap().write_all(input));
    child.wait_with_output().unwrap().into()
}

pub(crate) fn receive(house: &House, args: &str, stream: &[u8]) -> Said {
    with_input(house, &format!("zfs receive {args}"), stream)
}

pub(crate) fn receives(house: &House, args: &str, stream: &[u8]) -> String {
    let said = receive(house, args, stream);
    assert_eq!((said.status, said.err.as_str()), (0, ""), "receive {args}");
    said.out
}

pub(crate) fn refuses(house: &House, args: &str, stream: &[u8], expected: &str) {
    let said = receive(house, args, stream);
    assert_eq!((said.status, said.err.as_str()), (1, expected), "receive {args}");
}

pub(crate) fn send(house: &House, args: &str) -> Vec<u8> {
    let line = format!("zfs send {args}");
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = house.command(&words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

fn stream(golden: &Golden, name: &str) -> Vec<u8> {
    recorded_stream(golden, name).bytes
}

/// Removes the times and rates of a verbose receive.
fn untimed(text: &str) -> String {
    let lines = text.lines().map(|line| match line.split_once(" stream in ") {
        Some((before, _)) => before,
        None => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// What the daemon has written passes OpenZFS's check.
pub(crate) fn leave(house: &House) {
    house.run("zpool export t");
    house.run("daemon stop");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &house.text("pool"), "t"]));
    if let Some(zdb) = cenote_oracle::zdb() {
        let said = zdb.pool("t", &house.path("pool"), &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
}

#[test]
fn receives_say_what_openzfs_says() {
    let Some(golden) = golden("g-send2") else { return };
    let (full, inc) = (stream(&golden, "full-Lec"), stream(&golden, "inc"));
    let house = House::new("receiving");
    house.create("none");
    let said = receives(&house, "-nv t/a", &full);
    assert_eq!(said, "would receive full stream of g-send2/a@one into t/a@one\n");
    assert_eq!(receives(&house, "-n t/a", &full), "");
    assert_eq!(house.run("zfs list -H -o name"), "t\n");
    let missing = "cannot receive incremental stream: destination 't/a' does not exist\n";
    refuses(&house, "t/a", &inc, missing);
    let said = receives(&house, "-v t/a", &full);
    assert!(said.starts_with("receiving full stream of g-send2/a@one into t/a@one\nreceived "));
    assert!(said.ends_with("/sec)\n"), "{said}");
    for args in ["t/a", "t/a@other"] {
        let exists = "cannot receive new filesystem stream: destination 't/a' exists\n\
                      must specify -F to overwrite it\n";
        refuses(&house, args, &full, exists);
    }
    let has_snapshots = "cannot receive new filesystem stream: destination has snapshots \
                         (eg. t/a@one)\nmust destroy them to overwrite it\n";
    refuses(&house, "-F t/a", &full, has_snapshots);
    let said = receives(&house, "-v t/a", &inc);
    assert!(said.starts_with("receiving incremental stream of g-send2/a@two into t/a@two\n"));
    assert_eq!(receives(&house, "t/a", &inc), "");
    let said = untimed(&receives(&house, "-v t/a", &inc));
    let ignored = "receiving incremental stream of g-send2/a@two into t/a@two\n\
                   snap t/a@two already exists; ignoring\nreceived 0B";
    assert_eq!(said, ignored);
    for (line, expected) in [
        ("t/nope/a", "cannot open 't/nope': dataset does not exist\n"),
        ("nope/a", "cannot open 'nope': dataset does not exist\n"),
    ] {
        let expected = format!(
            "{expected}cannot receive new filesystem stream: unable to restore to destination\n"
        );
        refuses(&house, line, &full, &expected);
    }
    for line in ["t/a/", "t/9@@"] {
        refuses(&house, line, &full, "cannot receive: invalid name\n");
    }
    refuses(&house, "-d t/nope", &full, "cannot receive: specified fs (t/nope) does not exist\n");
    for input in [&b""[..], b"hello\n"] {
        refuses(&house, "t/z", input, "cannot receive: failed to read from stream\n");
    }
    let magic = "cannot receive: invalid stream (bad magic number)\n";
    refuses(&house, "t/z", &[0; 700], magic);
    for (line, expected) in [
        ("", "missing snapshot argument\n"),
        ("-x", "missing argument for 'x' option\n"),
        ("-q t/z", "invalid option 'q'\n"),
        ("t/z t/y", "too many arguments\n"),
        ("-d -e t", "invalid option combination: -d and -e are mutually exclusive\n"),
        ("-o compression=off -x compression t/y", "property 'compression' specified multiple"),
        ("-A t/nope", "cannot open 't/nope': dataset does not exist\n"),
    ] {
        let said = receive(&house, line, b"");
        assert_eq!(said.status, 2, "{line}");
        assert!(said.err.starts_with(expected), "{line}: {}", said.err);
        assert!(said.err.contains("receive -A <filesystem|volume>"), "{line}");
    }
    for args in [
        "-o nosuch=1 t/y",
        "-o used=1 t/y",
        "-x nosuch t/y",
        "-x version t/y",
        "-o volsize=1M t/y",
        "-o utf8only=on t/y",
    ] {
        let said = receive(&house, args, &full);
        assert_eq!(said.status, 1);
        assert!(said.err.starts_with("cannot receive: cannot receive: invalid property '"));
    }
    house.run("zfs create -V 8M t/v");
    let parent = "cannot receive new filesystem stream: parent 't/v' is not a filesystem\n";
    refuses(&house, "t/v/kid", &full, parent);
    // Changed since, and changed names.
    house.run("zfs rollback -r t/a@one");
    receives(&house, "-F t/a@named", &inc);
    assert_eq!(house.run("zfs list -H -t snapshot -o name t/a"), "t/a@one\nt/a@named\n");
    let history = house.run("zpool history t");
    assert!(history.contains("zfs receive -F t/a@named"), "{history}");
    leave(&house);
}

/// Streams that end early, or are damaged, change nothing but what can be resumed.
#[test]
fn streams_that_end_early_leave_nothing_or_what_can_be_resumed() {
    let Some(golden) = golden("g-send2") else { return };
    let (full, inc) = (stream(&golden, "full-Lec"), stream(&golden, "inc"));
    let house = House::new("receiving-cut");
    house.create("none");
    let cut = &full[..full.len() * 2 / 3];
    let mut flipped = full.clone();
    flipped[full.len() / 2] ^= 1;
    let new = "cannot receive new filesystem stream:";
    refuses(&house, "t/a", cut, &format!("{new} incomplete stream\n"));
    refuses(&house, "t/a", &flipped, &format!("{new} checksum mismatch\n"));
    assert_eq!(house.run("zfs list -H -o name"), "t\n");
    let said = receive(&house, "-s t/a", cut);
    assert_eq!(said.status, 1);
    let start = format!(
        "{new} checksum mismatch or incomplete stream.\nPartially received snapshot is saved.\n\
         A resuming stream can be generated on the sending system by running:\n    zfs send -t 1-"
    );
    assert!(said.err.starts_with(&start), "{}", said.err);
    let token = house.run("zfs get -H -o value receive_resume_token t/a");
    assert!(said.err.trim_end().ends_with(token.trim_end()), "{token}");
    // Until it is complete nothing else is done with it.
    let exists = format!("{new} destination 't/a' exists\nmust specify -F to overwrite it\n");
    refuses(&house, "-s t/a", &full, &exists);
    let partial = "cannot receive incremental stream: destination t/a contains \
                   partially-complete state from \"zfs receive -s\".\n";
    refuses(&house, "t/a", &inc, partial);
    let partial = |name| {
        format!(
            "{new} destination {name} contains partially-complete state from \"zfs receive -s\".\n"
        )
    };
    refuses(&house, "-F t/a", &full, &partial("t/a"));
    // Also if it is received in place of another dataset.
    house.run("zfs create t/old");
    assert_eq!(receive(&house, "-s -F t/old", cut).status, 1);
    refuses(&house, "-F t/old", &full, &partial("t/old"));
    receives(&house, "-A t/old", b"");
    receives(&house, "-F t/old", &full);
    house.run("zfs destroy -r t/old");
    let (_, said) = house.fails("zfs snapshot t/a@x");
    assert_eq!(said, "cannot create snapshot 't/a@x': dataset is busy\n");
    let (_, said) = house.fails("zfs mount t/a");
    assert!(said.contains("Contains partially-completed state"), "{said}");
    let (_, said) = house.fails("zfs set userquota@7=1M t/a");
    assert!(said.contains("busy"), "{said}");
    // It outlives a crash, and is given up.
    house.kill();
    assert_eq!(house.run("zfs get -H -o value receive_resume_token t/a"), token);
    receives(&house, "-A t/a", b"");
    let (_, said) = house.fails("zfs get receive_resume_token t/a");
    assert_eq!(said, "cannot open 't/a': dataset does not exist\n");

    receives(&house, "t/a", &full);
    refuses(
        &house,
        "t/a",
        &inc[..inc.len() / 2],
        "cannot receive incremental stream: incomplete stream\n",
    );
    let said = receive(&house, "-s t/a", &inc[..inc.len() / 2]);
    assert!(said.err.contains("Partially received snapshot is saved."), "{}", said.err);
    assert_ne!(house.run("zfs get -H -o value receive_resume_token t/a"), "-\n");
    receives(&house, "-A t/a", b"");
    let said = receive(&house, "-A t/a", b"");
    let nothing = "'t/a' does not have any resumable receive state to abort\n";
    assert_eq!((said.status, said.err.as_str()), (1, nothing));
    assert_eq!(house.run("zfs list -H -t all -o name -r t/a"), "t/a\nt/a@one\n");
    receives(&house, "t/a", &inc);
    leave(&house);
}

/// A sender that is silent holds up nothing else: not the pool, not its export, not the daemon's
/// end. A client that is killed leaves nothing.
#[test]
fn silent_senders_hold_up_nothing() {
    let Some(golden) = golden("g-send2") else { return };
    let full = stream(&golden, "full-Lec");
    let house = House::new("receiving-silent");
    house.create("none");
    let stalled = |args: &str| {
        let mut child = begin(&house, &format!("zfs receive {args}"));
        child.stdin.as_mut().unwrap().write_all(&full[..full.len() / 2]).unwrap();
        let name = args.rsplit(' ').next().unwrap();
        until(|| house.run("zfs list -H -o name").lines().any(|line| line == name));
        child
    };
    let mut child = stalled("t/a");
    let (_, said) = house.fails("zfs destroy t/a");
    assert!(said.contains("busy"), "{said}");
    house.run("zfs create -o mountpoint=none t/other");
    house.run("zfs snapshot t@now");
    assert!(house.run("daemon status").starts_with("running"));
    child.kill().unwrap();
    child.wait().unwrap();
    until(|| house.run("zfs list -H -o name") == "t\nt/other\n");

    // What another one keeps is there after the daemon's end, and after a kill.
    for (name, end) in [("t/b", "stop"), ("t/c", "kill")] {
        let child = stalled(&format!("-s {name}"));
        match end {
            "stop" => drop(house.run("daemon stop")),
            _ => house.kill(),
        }
        let output = child.wait_with_output();
        drop(output);
        let token = house.run(&format!("zfs get -H -o value receive_resume_token {name}"));
        assert!(token.starts_with("1-"), "{end}: {token}");
        receives(&house, &format!("-A {name}"), b"");
    }
    let mut child = stalled("t/d");
    house.run("zpool export -f t");
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert!(!output.status.success());
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    assert_eq!(house.run("zfs list -H -o name"), "t\nt/other\n");
    leave(&house);
}

fn until(mut is_so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_mins(1);
    while !is_so() {
        assert!(Instant::now() < end, "it does not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The mount of a file system stays while an increment is received into it: an open file has the
/// new contents, names come and go.
#[test]
fn increments_are_received_into_mounted_file_systems() {
    if !has_fuse() {
        return;
    }
    let house = House::new("receiving-mounted");
    house.create("none");
    house.run(&format!("zfs create -o mountpoint={} t/a", house.text("a")));
    let write = |name: &str, text: &str| std::fs::write(house.path("a").join(name), text).unwrap();
    write("kept", "first");
    write("gone", "old");
    house.run("zfs snapshot t/a@one");
    receives(
        &house,
        &format!("-o atime=off -o mountpoint={} t/b", house.text("b")),
        &send(&house, "t/a@one"),
    );
    let place = house.path("b");
    assert_eq!(std::fs::read_to_string(place.join("kept")).unwrap(), "first");
    let open = std::fs::File::open(place.join("kept")).unwrap();
    write("kept", "other");
    std::fs::remove_file(house.path("a/gone")).unwrap();
    write("new", "n");
    house.run("zfs snapshot t/a@two");
    let inc = send(&house, "-i @one t/a@two");
    // Changed since, so that only -F replaces it.
    std::fs::write(place.join("mine"), "m").unwrap();
    let modified = "cannot receive incremental stream: destination t/b has been modified\n\
                    since most recent snapshot\n";
    refuses(&house, "t/b", &inc, modified);
    assert_eq!(std::fs::read_to_string(place.join("mine")).unwrap(), "m");
    receives(&house, "-F t/b", &inc);
    let mut bytes = [0; 5];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"other");
    let mut names: Vec<_> =
        std::fs::read_dir(&place).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["kept", "new"]);
    drop(open);
    // Unchanged since: nothing has to be forced.
    write("new", "more");
    house.run("zfs snapshot t/a@three");
    receives(&house, "t/b", &send(&house, "-i @two t/a@three"));
    assert_eq!(std::fs::read_to_string(place.join("new")).unwrap(), "more");
    // A full stream takes the place of a file system without snapshots, which is unmounted.
    house.run(&format!("zfs create -o mountpoint={} t/c", house.text("c")));
    receives(&house, "-F t/c", &send(&house, "t/a@two"));
    assert_eq!(std::fs::read_to_string(house.path("c/new")).unwrap(), "n");
    // With -u it is mounted later.
    receives(
        &house,
        &format!("-u -o mountpoint={} t/d", house.text("d")),
        &send(&house, "t/a@two"),
    );
    assert_eq!(house.run("zfs get -H -o value mounted t/d"), "no\n");
    house.run("zfs mount t/d");
    assert_eq!(std::fs::read_to_string(house.path("d/new")).unwrap(), "n");
    leave(&house);
}

/// Values of the stream are received values; `-o` and `-x` override them.
#[test]
fn properties_are_received() {
    let Some(golden) = golden("g-send2") else { return };
    let house = House::new("receiving-properties");
    house.create("none");
    let (full, inc) = (stream(&golden, "full-p"), stream(&golden, "inc"));
    receives(&house, "t/a", &full);
    let got = |name: &str, property: &str| {
        house.run(&format!("zfs get -H -o value,received,source {property} {name}"))
    };
    assert_eq!(got("t/a", "user:note"), "hello\thello\treceived\n");
    let record = got("t/a", "recordsize");
    assert!(record.ends_with("\treceived\n"), "{record}");
    // What a stream without properties brings changes none.
    receives(&house, "t/a", &inc);
    assert_eq!(got("t/a", "user:note"), "hello\thello\treceived\n");
    receives(&house, "-o compress=off -x user:note t/b", &full);
    let compression = got("t/b", "compression");
    assert!(
        compression.starts_with("off\t") && compression.ends_with("\tlocal\n"),
        "{compression}"
    );
    // The received value is there, and hidden.
    assert_eq!(got("t/b", "user:note"), "-\thello\t-\n");
    house.run("zfs inherit -S user:note t/b");
    assert_eq!(got("t/b", "user:note"), "hello\thello\treceived\n");
    // One that the contents are checked with is set behind them.
    receives(&house, "-o refquota=4M t/c", &full);
    assert_eq!(got("t/c", "refquota"), "4M\t-\tlocal\n");
    let said = receive(&house, "-o refquota=64K t/d", &full);
    assert_eq!(said.err, "cannot receive refquota property on t/d: out of space\n");
    assert_eq!(got("t/d", "refquota"), "none\t-\tdefault\n");
    leave(&house);
}

/// Packages: all snapshots of several datasets, with properties and holds. A second one makes the
/// datasets here like those of the sender.
#[test]
fn packages_are_received() {
    let Some(golden) = golden("g-send2") else { return };
    let house = House::new("receiving-packages");
    house.create("none");
    let names = |top: &str| house.run(&format!("zfs list -H -t all -o name -s createtxg -r {top}"));
    let said = untimed(&receives(&house, "-v t/r", &stream(&golden, "repl-h")));
    let lines: Vec<_> = said.lines().filter(|line| line.starts_with("receiving")).collect();
    let wanted = [
        "receiving full stream of g-send2/a@one into t/r@one",
        "receiving incremental stream of g-send2/a@two into t/r@two",
        "receiving incremental stream of g-send2/a@three into t/r@three",
        "receiving incremental stream of g-send2/a@all into t/r@all",
        "receiving full stream of g-send2/a/kid@all into t/r/kid@all",
    ];
    assert_eq!(lines, wanted);
    let all = "t/r\nt/r@one\nt/r@two\nt/r@three\nt/r@all\nt/r/kid\nt/r/kid@all\n";
    assert_eq!(names("t/r"), all);
    assert!(house.run("zfs holds -H t/r@one").starts_with("t/r@one\tkeep\t"));
    assert_eq!(house.run("zfs get -H -o value,source user:note t/r"), "hello\treceived\n");
    // Nothing new.
    refuses(
        &house,
        "t/r",
        &stream(&golden, "repl"),
        "cannot receive new filesystem stream: destination 't/r' exists\n\
         must specify -F to overwrite it\n",
    );
    refuses(
        &house,
        "t/r@x",
        &stream(&golden, "repl"),
        "cannot receive: cannot specify snapshot name for multi-snapshot stream\n",
    );
    receives(&house, "-h -d t/r/kid", &stream(&golden, "repl-h"));
    let below = "t/r/kid/a\nt/r/kid/a@one\nt/r/kid/a@two\nt/r/kid/a@three\nt/r/kid/a@all\n\
                 t/r/kid/a/kid\nt/r/kid/a/kid@all\n";
    assert_eq!(names("t/r/kid/a"), below);
    assert_eq!(house.run("zfs holds -H t/r/kid/a@one"), "");
    house.run("zfs destroy -r t/r/kid/a");

    // An increment: snapshots that the sender does not have, and datasets, go with -F alone.
    let inc = stream(&golden, "repl-inc");
    for (top, args) in [("t/i", "t/i"), ("t/j", "-F t/j")] {
        receives(&house, &format!("-o compression=gzip {top}"), &stream(&golden, "full-p"));
        house.run(&format!("zfs rename {top}@one {top}@first"));
        house.run(&format!("zfs snapshot {top}@mine"));
        house.run(&format!("zfs create {top}/other"));
        house.run(&format!("zfs snapshot {top}/other@mine"));
        if top == "t/j" {
            // The name that @first gets is still that of another one.
            house.run(&format!("zfs rename {top}@mine {top}@one"));
        }
        receives(&house, args, &inc);
        let kept = if top == "t/i" { "t/i@mine\nt/i/other\nt/i/other@mine\n" } else { "" };
        let all = format!(
            "{top}\n{top}@one\n{kept}{top}@two\n{top}@three\n{top}@all\n{top}/kid\n{top}/kid@all\n"
        );
        assert_eq!(names(top), all);
        let source = house.run(&format!("zfs get -H -o value,source compression {top}"));
        assert_eq!(source, "gzip\tlocal\n");
    }
    // A target that has nothing of the sender's stays as it is.
    house.run("zfs create t/wrong");
    house.run("zfs create t/wrong/kid");
    house.run("zfs snapshot -r t/wrong@mine");
    let said = receive(&house, "-F t/wrong", &inc);
    assert!(said.err.contains("match incremental source"), "{}", said.err);
    assert_eq!(names("t/wrong"), "t/wrong\nt/wrong/kid\nt/wrong@mine\nt/wrong/kid@mine\n");
    // All snapshots at once.
    receives(&house, "t/m", &stream(&golden, "full"));
    receives(&house, "t/m", &stream(&golden, "multi"));
    assert_eq!(names("t/m"), "t/m\nt/m@one\nt/m@two\nt/m@three\n");
    // A clone finds its origin by the guid.
    let said = receives(&house, "-v t/c", &stream(&golden, "clone-pkg"));
    assert!(said.starts_with("found clone origin t/"), "{said}");
    assert!(house.run("zfs get -H -o value origin t/c").ends_with("@two\n"));
    receives(&house, "-o origin=t/m@two t/c2", &stream(&golden, "clone-inc"));
    assert_eq!(house.run("zfs get -H -o value origin t/c2"), "t/m@two\n");
    house.run("zfs release keep t/r@one");
    leave(&house);
}

/// With `-F` everything goes that the sender no longer has, clones before their origins, whatever
/// their names are.
#[test]
fn clones_that_the_sender_lacks_go_before_their_origins() {
    let house = House::new("receiving-clones");
    house.create("none");
    for name in ["t/a", "t/a/b", "t/a/z", "t/k"] {
        house.run(&format!("zfs create {name}"));
    }
    house.run("zfs snapshot t/a/z@x");
    house.run("zfs clone t/a/z@x t/a/b/clone");
    house.run("zfs snapshot t/a/b/clone@y");
    house.run("zfs clone t/a/b/clone@y t/a/zz");
    house.run("zfs snapshot -r t/a@1");
    receives(&house, "-u t/k/a", &send(&house, "-R t/a@1"));
    house.run("zfs destroy -R t/a/z");
    house.run("zfs destroy -r t/a/b");
    house.run("zfs snapshot -r t/a@2");
    receives(&house, "-u -F t/k/a", &send(&house, "-R -I @1 t/a@2"));
    let left = house.run("zfs list -H -t all -o name -r t/k");
    assert_eq!(left, "t/k\nt/k/a\nt/k/a@1\nt/k/a@2\n");
    leave(&house);
}

/// Others need the permissions that OpenZFS asks for.
#[test]
fn receives_of_others_need_permission() {
    let Some(golden) = golden("g-send2") else { return };
    if !is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let (full, inc) = (stream(&golden, "full-Lec"), stream(&golden, "inc"));
    let house = House::new("receiving-others");
    house.create("none");
    house.run("zfs create t/mine");
    let as_nobody = |args: &str, stream: &[u8]| -> Said {
        let line = format!("zfs receive {args}");
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut command = house.command(&words);
        let command = command.uid(NOBODY).gid(NOBODY).current_dir("/");
        let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(child.stdin.take().unwrap().write_all(stream));
        child.wait_with_output().unwrap().into()
    };
    let said = as_nobody("t/mine/a", &full);
    assert_eq!(said.err, "cannot receive 't/mine/a': permission denied\n");
    house.run(&format!("zfs allow -u {NOBODY} receive,create,mount t/mine"));
    let said = as_nobody("-u t/mine/a", &full);
    assert_eq!((said.status, said.err.as_str()), (0, ""));
    let said = as_nobody("-u t/mine/a", &inc);
    assert_eq!((said.status, said.err.as_str()), (0, ""));
    // Properties need permissions of their own.
    let said = as_nobody("-u -o setuid=on t/mine/b", &full);
    assert_eq!((said.status, &said.err[..]), (1, "cannot receive 't/mine/b': permission denied\n"));
    let said = as_nobody("-u t/mine/b", &stream(&golden, "full-p"));
    assert_eq!(said.status, 0);
    assert!(said.err.contains("cannot receive user:note property on t/mine/b: permission denied"));
    assert_eq!(house.run("zfs get -H -o value user:note t/mine/b"), "-\n");
    house.run(&format!("zfs allow -u {NOBODY} userprop,destroy t/mine"));
    house.run("zfs destroy -r t/mine/b");
    let said = as_nobody("-u t/mine/b", &stream(&golden, "full-p"));
    assert!(!said.err.contains("user:note"), "{}", said.err);
    assert_eq!(house.run("zfs get -H -o value user:note t/mine/b"), "hello\n");
    house.run("zfs destroy -r t/mine/b");
    let said = as_nobody("t/other", &full);
    assert_eq!(said.err, "cannot receive 't/other': permission denied\n");
    assert_eq!(house.run("zfs list -H -o name"), "t\nt/mine\nt/mine/a\n");
    // One who may only append does not destroy.
    house.run(&format!("zfs unallow -u {NOBODY} receive t/mine"));
    house.run(&format!("zfs allow -u {NOBODY} receive:append t/mine"));
    house.run("zfs rollback -r t/mine/a@one");
    let said = as_nobody("-u -F t/mine/a", &inc);
    assert_eq!(said.err, "cannot receive 't/mine/a': permission denied\n");
    let said = as_nobody("-u t/mine/a", &inc);
    assert_eq!((said.status, said.err.as_str()), (0, ""));
    leave(&house);
}

/// Changes a byte wherever the devices of the pool have these bytes. Returns how often.
fn damage(house: &House, needle: &[u8]) -> usize {
    let mut count = 0;
    for name in ["pool/d0", "pool/d1"] {
        let path = house.path(name);
        let contents = std::fs::read(&path).unwrap();
        let device = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
        for at in (0..contents.len() - needle.len()).step_by(512) {
            if contents[at..].starts_with(needle) {
                device.write_all_at(&[!needle[0]], at as u64).unwrap();
                count += 1;
            }
        }
    }
    count
}

/// Returns the first bytes of some blocks of a stream, with which no others begin.
fn beginnings(stream: &[u8]) -> Vec<Vec<u8>> {
    let mut found: BTreeMap<Vec<u8>, usize> = BTreeMap::new();
    for item in StreamReader::new(stream) {
        let item = item.unwrap();
        if item.record.name() == "WRITE" && item.payload.len() >= 512 {
            *found.entry(item.payload[..64].to_vec()).or_default() += 1;
        }
    }
    // Neither zeros nor words of a list, with which metadata may begin.
    let is_own = |bytes: &[u8]| bytes.iter().collect::<BTreeSet<_>>().len() > 8;
    found.retain(|bytes, count| *count == 1 && is_own(bytes));
    found.into_keys().collect()
}

#[test]
fn a_damaged_snapshot_is_healed_by_its_stream() {
    let Some(golden) = golden("g-send2") else { return };
    let (full, inc) = (stream(&golden, "full"), stream(&golden, "inc"));
    let house = House::new("healing");
    house.create("none");
    receives(&house, "-o compression=off t/a", &full);
    let before = send(&house, "t/a@one");
    house.run("zpool export t");
    // Blocks of directories are compressed here.
    let counts: Vec<_> = beginnings(&full).iter().map(|needle| damage(&house, needle)).collect();
    assert!(counts.iter().filter(|count| **count == 2).count() >= 3, "{counts:?}");
    assert!(counts.iter().all(|count| [0, 2].contains(count)), "{counts:?}");
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    house.run("zpool scrub -w t");
    let status = house.run("zpool status -v t");
    assert!(status.contains("t/a@one:"), "{status}");
    // What cannot be done changes nothing.
    let no_snapshot = "corrective recv must specify an existing snapshot to heal";
    let other = "local snapshot doesn't match the snapshot in the provided stream";
    let combined = "corrective recv can not be used when combined with this flag";
    for (args, why) in [
        ("-c t/a@two", no_snapshot),
        ("-c t/none@one", no_snapshot),
        ("-c -F t/a", combined),
        ("-c t/a@one", "incomplete stream"),
    ] {
        let expected = format!("cannot receive new filesystem stream: {why}\n");
        refuses(&house, args, &full[..full.len() / 2], &expected);
    }
    house.run("zfs snapshot t/a@two");
    let expected = format!("cannot receive incremental stream: {other}\n");
    refuses(&house, "-c t/a", &inc, &expected);
    house.run("zfs destroy t/a@two");
    assert!(house.run("zpool status -v t").contains("t/a@one:"));
    let said = receives(&house, "-cnv t/a", &full);
    let of = "corrective full stream of g-send2/a@one into t/a@one";
    assert_eq!(said, format!("would receive {of}\n"));
    let said = untimed(&receives(&house, "-cv t/a", &full));
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[0], format!("receiving {of}"));
    // A cut stream healed the first ones already.
    assert!(lines[1].starts_with("healed ") && lines[2].starts_with("received "), "{said}");
    assert!(house.run("zpool status -v t").contains("No known data errors"));
    house.run("zpool scrub -w t");
    let status = house.run("zpool status -v t");
    assert!(status.contains("repaired 0B") && status.contains("No known data errors"), "{status}");
    assert!(send(&house, "t/a@one") == before, "the snapshot is what it was");
    leave(&house);
}
