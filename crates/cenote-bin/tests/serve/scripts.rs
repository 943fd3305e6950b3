//! `zpool iostat -c` and `zpool status -c`: scripts run in the command's process, with the rights of
//! its user. The expected columns are those of OpenZFS's commands for the same scripts and layout.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};

use cenote_testkit::skip;

use crate::daemon::House;
use crate::person::{Terminal, terminal};
use crate::unkind::request;
use crate::watch::until;
use crate::{has, succeeds};

/// Uid of a user without a name.
const STRANGER: u32 = 54_324;

/// Writes a script. This process never has it open for writing: a child of another test would
/// inherit that, and the script could not be run.
fn script(house: &House, name: &str, text: &str) {
    let (folder, source) = (house.path("scripts"), house.path("text"));
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).unwrap();
    let mut install = Command::new("install");
    assert!(
        install.args(["-m", "755"]).arg(&source).arg(folder.join(name)).status().unwrap().success()
    );
}

fn command(house: &House, line: &str) -> Command {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut command = house.command(&words);
    command.env("ZPOOL_SCRIPTS_PATH", house.path("scripts")).env("ZPOOL_SCRIPTS_AS_ROOT", "1");
    command
}

fn run(house: &House, line: &str) -> String {
    succeeds(&mut command(house, line))
}

/// Returns the message of a command that must fail, run with one more variable.
fn fails(house: &House, line: &str, (name, value): (&str, &str)) -> String {
    let output = command(house, line).env(name, value).output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{line}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Sends the request of a command that runs scripts, also for root.
fn ask(house: &House, line: &str) -> UnixStream {
    let mut stream = UnixStream::connect(house.path("state/control.sock")).unwrap();
    let mut variables = request(line);
    let words = ["ZPOOL_SCRIPTS_AS_ROOT", "1"];
    let added: Vec<u8> = words
        .iter()
        .flat_map(|word| [&(word.len() as u32).to_le_bytes()[..], word.as_bytes()].concat())
        .collect();
    variables[8] = 1;
    variables[12] += 2;
    let at = 16;
    variables.splice(at..at, added);
    let length = (variables.len() - 8) as u32;
    variables[4..8].copy_from_slice(&length.to_le_bytes());
    stream.write_all(&variables).unwrap();
    let mut accepted = [0; 5];
    stream.read_exact(&mut accepted).unwrap();
    assert_eq!(&accepted, b"a\0\0\0\0");
    stream
}

/// Returns the scripts and leaves of the daemon's next request.
fn next_request(stream: &mut UnixStream) -> Vec<u8> {
    let mut header = [0; 5];
    stream.read_exact(&mut header).unwrap();
    assert_eq!(header[0], b'p');
    let length = u32::from_le_bytes(header[1..].try_into().unwrap());
    let mut payload = vec![0; length as usize];
    stream.read_exact(&mut payload).unwrap();
    payload
}

/// Returns the answer that scripts printed this.
fn reply(bytes: &[u8]) -> Vec<u8> {
    [&[0][..], &(bytes.len() as u32).to_le_bytes(), bytes].concat()
}

/// Returns what follows the counters of each line of a table.
fn ends<'a>(table: &'a str) -> Vec<&'a str> {
    let lines = table.lines().filter(|line| line.starts_with('\t'));
    let marks = ["CKSUM", "     0     0     0", "AVAIL   "];
    let end = |line: &'a str| marks.iter().find_map(|mark| Some(line.split_once(mark)?.1));
    lines.filter_map(end).collect()
}

/// Returns what follows the columns of each line of `zpool iostat`.
fn iostat_ends(table: &str) -> Vec<&str> {
    let dashes = table.lines().find(|line| line.starts_with("---")).unwrap();
    let start = dashes.find(' ').unwrap() + 6 * "  alloc".len();
    table.lines().map(|line| line.get(start..).unwrap_or("(short)")).collect()
}

/// Creates the pool: a mirror, a log, a cache device and a hot spare.
fn create(house: &House) {
    for (name, size) in [("a", 100_u64), ("b", 100), ("l", 64), ("ca", 64), ("sp", 100)] {
        let device = std::fs::File::create(house.path("pool").join(name)).unwrap();
        device.set_len(size << 20).unwrap();
    }
    let [a, b, l, ca, sp] = ["a", "b", "l", "ca", "sp"].map(|name| house.text("pool/") + name);
    house.run(&format!("zpool create -m none t mirror {a} {b} log {l} cache {ca} spare {sp}"));
    script(house, "dup", "echo a=1; echo a=2; echo b=3");
    script(house, "free", "echo x=1; echo hello world; echo y=2");
    let part = "case $VDEV_PATH in */a) echo only=longvalue;; */b) echo other=22;; esac";
    script(house, "part", part);
    script(house, "fail", "echo z=1; exit 3");
}

const PART: [&str; 8] = [
    "  a  b       only  other",
    "",
    "",
    "  1  3  longvalue      -",
    "  1  3          -     22",
    "  1  3          -      -",
    "  1  3          -      -",
    "  1  3          -      -",
];

#[test]
fn scripts_add_columns() {
    let house = House::new("scripts");
    create(&house);
    assert_eq!(ends(&run(&house, "zpool status -c dup,part t")), PART);
    let free = "  x|||  1  hello world|  1  hello world|  1  hello world|  1  hello world|  1  hello world";
    let shown = run(&house, "zpool status -c free t");
    assert_eq!(ends(&shown), free.split('|').collect::<Vec<_>>());
    let output = command(&house, "zpool").args(["status", "-c", "", "t"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(ends(&String::from_utf8_lossy(&output.stdout))[3..], ["  "; 5]);
    let shown = run(&house, "zpool status -c fail,../scripts/dup,none t");
    assert_eq!(ends(&shown), ["", "", "", "  ", "  ", "  ", "  ", "  "]);
    let shown = run(&house, "zpool status -sidt -c dup t");
    let leaf = "     0     0  1  3  (uninitialized)  (untrimmed)";
    let spare = "  1  3  (uninitialized)  (untrimmed)";
    let inner = "     -     0";
    assert_eq!(ends(&shown), ["  SLOW   DIO  a  b", inner, inner, leaf, leaf, leaf, leaf, spare]);
    // Without its path, too.
    assert_eq!(ends(&run(&house, "zpool status -g -c dup,part t")), PART);
    let json = run(&house, "zpool status -j -c dup,free t");
    let wanted = r#""slow_ios":"0","a":"1","b":"3","x":"1","extra_1":"hello world"}"#;
    assert_eq!(json.matches(wanted).count(), 4, "{json}");
    assert!(json.contains(r#""state":"AVAIL","a":"1","b":"3","x":"1","extra_1""#), "{json}");

    let shown = run(&house, "zpool iostat -c dup,part t");
    let wanted = [
        "",
        PART[0],
        "  -  -  ---------  -----",
        "",
        "",
        PART[3],
        PART[4],
        "",
        PART[5],
        "",
        PART[6],
        "  -  -  ---------  -----",
    ];
    assert_eq!(iostat_ends(&shown)[..], wanted, "{shown}");
    let shown = run(&house, &format!("zpool iostat -Hc part t {}", house.text("pool/b")));
    assert!(shown.ends_with("  22\n") && !shown.contains("only"), "{shown}");
    // Of several reports each has its own.
    script(&house, "count", "date +n=%N");
    let shown = run(&house, &format!("zpool iostat -c count {} 0.1 2", house.text("pool/a")));
    let rows = shown.lines().filter(|line| line.contains("pool/a"));
    let counts: Vec<_> = rows.filter_map(|line| line.split_whitespace().last()).collect();
    assert!(matches!(counts[..], [one, two] if one != two), "{shown}");

    for verb in ["iostat", "status"] {
        let listed = run(&house, &format!("zpool {verb} -c"));
        let wanted = format!(
            "Available 'zpool {verb} -c' commands:\n\
             \x20 count           n="
        );
        assert!(listed.starts_with(&wanted), "{listed}");
        assert!(listed.contains("\n  free            hello world\n  free            y=2\n"));
        assert!(!listed.contains("fail"));
        for (line, variable, text) in [
            (
                "-c dup",
                ("ZPOOL_SCRIPTS_ENABLED", "0"),
                "Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.\n",
            ),
            (
                "-c dup",
                ("ZPOOL_SCRIPTS_ENABLED", ""),
                "Can't run -c, disabled by ZPOOL_SCRIPTS_ENABLED.\n",
            ),
            ("-c dup -c dup", ("ZPOOL_SCRIPTS_ENABLED", "1"), "Can't set -c flag twice\n"),
        ] {
            assert_eq!(fails(&house, &format!("zpool {verb} {line}"), variable), text);
        }
        if rustix::process::geteuid().is_root() {
            let said =
                fails(&house, &format!("zpool {verb} -c dup"), ("ZPOOL_SCRIPTS_AS_ROOT", "0"));
            let wanted = "Can't run -c with root privileges unless ZPOOL_SCRIPTS_AS_ROOT is set.\n";
            assert_eq!(said, wanted);
        }
    }
    house.run("zpool export t");
    let folder = house.text("pool");
    let embedded = format!("zpool --embedded -d {folder}");
    assert_eq!(ends(&run(&house, &format!("{embedded} status -c dup,part t"))), PART);
    assert_eq!(iostat_ends(&run(&house, &format!("{embedded} iostat -c dup,part t"))), wanted);
}

/// While scripts run, for as long as they like, the pool can be exported; and the end of the daemon
/// ends the command.
#[test]
fn scripts_hold_nothing() {
    let house = House::new("scripts-wait");
    create(&house);
    let waiting = |line: &str| {
        for file in ["gate", "begun"] {
            std::fs::remove_file(house.path(file)).ok();
        }
        let mut command = command(&house, line);
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        until("a script that runs", || house.path("begun").exists());
        child
    };
    // For one device; it ends with the test in any case.
    let text = format!(
        "case $VDEV_PATH in */pool/a) ;; *) exit;; esac; touch {0}/begun; \
         for i in $(seq 600); do [ -d {0} ] && [ ! -e {0}/gate ] && sleep 0.1; done; echo a=1",
        house.path("pool/..").display()
    );
    script(&house, "wait", &text);
    let child = waiting("zpool status -c wait t");
    house.run("zpool export t");
    std::fs::write(house.path("gate"), "").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "cannot open 't': no such pool\n");
    let folder = house.text("pool");
    house.run(&format!("zpool import -d {folder} t"));
    // The script goes on, until it finds the gate open.
    let child = waiting("zpool iostat -c wait t");
    house.run("daemon stop");
    let output = child.wait_with_output().unwrap();
    std::fs::write(house.path("gate"), "").unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("it ended while it ran"), "{said}");
}

/// At a terminal Ctrl-C ends the scripts, too.
#[test]
fn interrupts_end_scripts() {
    if !has("script") {
        return;
    }
    let house = House::new("scripts-interrupt");
    create(&house);
    let here = house.path(".");
    let text = format!(
        "case $VDEV_PATH in */pool/a) ;; *) exit;; esac; \
         echo $$ > {0}/at; mv {0}/at {0}/script; exec sleep 100",
        here.display()
    );
    script(&house, "endless", &text);
    let line = format!("{} zpool status -c endless t", env!("CARGO_BIN_EXE_cenote"));
    let mut command = terminal(&line);
    command.env("CENOTE_STATE_DIR", house.path("state")).env_remove("CENOTE_SOCKET");
    command.env("ZPOOL_SCRIPTS_PATH", house.path("scripts")).env("ZPOOL_SCRIPTS_AS_ROOT", "1");
    let mut shown = Terminal::start(command);
    until("a script that runs", || house.path("script").exists());
    let number = std::fs::read_to_string(house.path("script")).unwrap();
    let process = Path::new("/proc").join(number.trim());
    assert!(process.exists());
    shown.types(b"\x03");
    until("the end of the script", || !process.exists());
}

/// The daemon is root's, the scripts are another user's, and run with this user's rights only.
#[test]
fn scripts_run_as_the_caller() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let house = House::new("scripts-user");
    create(&house);
    script(&house, "who", "echo uid=$(id -u); echo path=$VDEV_PATH");
    let of_stranger = |line: &str| {
        let mut command = command(&house, line);
        command.env_remove("ZPOOL_SCRIPTS_AS_ROOT").current_dir("/");
        let output = command.uid(STRANGER).gid(STRANGER).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!((output.status.code(), &*said), (Some(0), ""), "{line}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    let shown = of_stranger("zpool status -c who t");
    let words = |line: &'_ str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let of_a = shown.lines().map(words).find(|words| words.last() == Some(&house.text("pool/a")));
    assert_eq!(
        of_a.as_ref().and_then(|words| words.get(5)),
        Some(&STRANGER.to_string()),
        "{shown}"
    );

    // A client that is no friend.
    let asked = || {
        let mut stream = ask(&house, "zpool status -c who t");
        let payload = next_request(&mut stream);
        assert!(payload.starts_with(b"who\0t\0"), "{payload:?}");
        stream
    };
    let answers = |mut stream: UnixStream, reply: &[u8]| {
        stream.write_all(reply).unwrap();
        let mut answers = Vec::new();
        stream.read_to_end(&mut answers).unwrap();
        String::from_utf8_lossy(&answers).into_owned()
    };
    let said = answers(asked(), &reply(b"z=1\0\0\0\0\0\0\0\0\0\0more\0"));
    assert!(said.contains("CKSUM  z\n"), "{said}");
    let said = answers(asked(), &reply(&[0xff, b'=', 0xff, b'\n', b'\n', 0, b'\r', 0x1b]));
    assert!(said.contains("CKSUM  \u{fffd}\n"), "{said}");
    let said = answers(asked(), &reply(b""));
    assert!(said.contains("ONLINE"), "{said}");
    let said = answers(asked(), &[2, 4, 0, 0, 0, b'n', b'o', b'p', b'e']);
    assert!(said.contains("cannot run 'who': nope"), "{said}");
    let said = answers(asked(), &[0, 0xff, 0xff, 0xff, 0x7f]);
    assert!(!said.contains("ONLINE"), "{said}");
    // Too many columns, and too wide ones.
    let many: Vec<u8> =
        (0..20_000).flat_map(|number| format!("{number}=\n").into_bytes()).collect();
    let said = answers(asked(), &reply(&many));
    assert!(said.contains("more than 100 columns") && !said.contains("ONLINE"), "{said}");
    let wide = format!("a={}", "x".repeat(70_000));
    let said = answers(asked(), &reply(wide.as_bytes()));
    assert!(said.contains("too wide ones") && !said.contains("ONLINE"), "{said}");
    let log = std::fs::read_to_string(house.path("state/daemon.log")).unwrap();
    assert!(!log.contains("panic"), "{log}");
    drop(asked());
    assert_eq!(house.run("zpool list -H -o name"), "t\n");
}

/// Leaves of a pool with many.
const MANY: usize = 200;

/// The daemon asks for the scripts of many leaves in several requests. A client that is slow
/// between two of them, or goes, holds up nobody.
#[test]
fn scripts_of_many_leaves_run_in_parts() {
    let house = House::new("scripts-many");
    let mut line = "zpool create -m none t".to_owned();
    for number in 0..MANY {
        let name = format!("pool/d{number:03}");
        std::fs::File::create(house.path(&name)).unwrap().set_len(64 << 20).unwrap();
        write!(line, " {}", house.text(&name)).unwrap();
    }
    house.run(&line);
    script(&house, "own", "echo own=${VDEV_PATH##*/d}");
    let wanted: Vec<String> = (0..MANY).map(|number| format!("{number:03}")).collect();
    for line in ["zpool status -c own t", "zpool iostat -vc own t"] {
        let shown = run(&house, line);
        let rows = shown.lines().filter(|line| line.contains("pool/d"));
        let found: Vec<_> = rows.filter_map(|line| line.split_whitespace().last()).collect();
        assert_eq!(found, wanted, "{line}");
    }

    let leaves_of = |request: &[u8]| request.split(|byte| *byte == 0).count() / 2 - 1;
    let first = |house: &House| {
        let mut stream = ask(house, "zpool status -c own t");
        let asked = leaves_of(&next_request(&mut stream));
        assert!(asked < MANY / 2);
        stream.write_all(&reply(&b"own=1\n\0".repeat(asked))).unwrap();
        assert_eq!(leaves_of(&next_request(&mut stream)), asked);
        stream
    };
    drop(first(&house));
    let (slow, mut slower) = (first(&house), first(&house));
    let folder = house.text("pool");
    house.run("zpool export t");
    house.run(&format!("zpool import -d {folder} t"));
    slower.write_all(&reply(b"")[..3]).unwrap();
    house.run("daemon stop");
    for mut stream in [slow, slower] {
        let mut rest = Vec::new();
        stream.read_to_end(&mut rest).unwrap();
        assert!(!String::from_utf8_lossy(&rest).contains("ONLINE"), "{rest:?}");
    }
}
