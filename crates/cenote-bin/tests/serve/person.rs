//! What a person at a terminal is told, and scripts are not: suggestions, short usage texts, what a
//! command waits for, and what an interrupt leaves.

#![expect(clippy::disallowed_methods, reason = "a terminal is watched in real time")]

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cenote_testkit::skip;

use crate::daemon::{House, has_fuse};
use crate::{has, succeeds, with_few_mounts};

/// Runs a command with hints, as at a terminal; returns its status and messages.
fn hinted(house: &House, line: &str) -> (i32, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = house.command(&words).env("CENOTE_HINTS", "on").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code().unwrap(), said)
}

/// Returns what makes a terminal and runs a command in it.
pub(crate) fn terminal(line: &str) -> Command {
    // Tests that run in the background have interrupts ignored.
    let mut command = Command::new("env");
    command.args(["--default-signal=INT", "script", "-q", "-e", "-f", "-c", line, "/dev/null"]);
    command
}

/// A terminal with a command in it, made by the program `script`.
pub(crate) struct Terminal {
    child: Child,
    shown: Arc<Mutex<String>>,
}

impl Terminal {
    fn run(house: &House, line: &str) -> Self {
        Self::start(Self::command(house, line))
    }

    fn command(house: &House, line: &str) -> Command {
        let mut command = terminal(&format!("{} {line}", env!("CARGO_BIN_EXE_cenote")));
        command.current_dir(house.path("."));
        command.env("CENOTE_STATE_DIR", house.path("state")).env_remove("CENOTE_SOCKET");
        command
    }

    pub(crate) fn start(mut command: Command) -> Self {
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a terminal");
        let mut screen = child.stdout.take().expect("a pipe");
        let shown = Arc::new(Mutex::new(String::new()));
        let text = Arc::clone(&shown);
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                let new = String::from_utf8_lossy(&bytes[..count]).replace('\r', "");
                text.lock().unwrap().push_str(&new);
            }
        });
        Self { child, shown }
    }

    pub(crate) fn shown(&self) -> String {
        self.shown.lock().unwrap().clone()
    }

    /// Waits until the terminal shows this text.
    fn shows(&self, text: &str) {
        let end = Instant::now() + Duration::from_secs(30);
        while !self.shown().contains(text) {
            assert!(Instant::now() < end, "no '{text}' in '{}'", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    pub(crate) fn types(&mut self, keys: &[u8]) {
        let mut input = self.child.stdin.as_ref().expect("a pipe");
        input.write_all(keys).and_then(|()| input.flush()).expect("typed");
    }

    /// Waits for the end of the command; returns its status and what was shown.
    fn ends(mut self) -> (Option<i32>, String) {
        let end = Instant::now() + Duration::from_secs(30);
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a process") {
                break status;
            }
            assert!(Instant::now() < end, "it does not end: {}", self.shown());
            std::thread::sleep(Duration::from_millis(20));
        };
        std::thread::sleep(Duration::from_millis(100));
        (status.code(), self.shown())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A command that waits for an activity shows how much of it is left, and clears that in the end.
#[test]
fn waits_for_activities_show_progress() {
    if !has("script") {
        return;
    }
    let house = House::new("person-progress");
    house.create("none");
    house.run("tunable set zfs_scan_suspend_progress=1");
    let terminal = Terminal::run(&house, "zpool scrub -w t");
    terminal.shows("\u{1b}[Kscrub: ");
    terminal.shows(" left");
    let other = Terminal::run(&house, "zpool wait -t scrub t");
    other.shows(" left");
    house.run("tunable set zfs_scan_suspend_progress=0");
    for terminal in [terminal, other] {
        let (status, shown) = terminal.ends();
        assert!(status == Some(0) && shown.ends_with("\u{1b}[K"), "{status:?} {shown:?}");
        assert!(!shown.contains("waiting"), "{shown:?}");
    }
    // Programs see nothing of it.
    let output = house.command(&["zpool", "scrub", "-w", "t"]).output().unwrap();
    assert_eq!((output.status.code(), &*output.stderr), (Some(0), &b""[..]));
}

#[test]
fn mistyped_names_get_suggestions() {
    let house = House::new("person-names");
    house.create("none");
    house.run("zfs create t/home");
    house.run("zfs snapshot t/home@monday t/home@tuesday");
    for (line, wanted) in [
        ("zfs lsit", "list"),
        ("zpool stauts", "status"),
        ("zpol list", "zpool"),
        ("verfy t", "verify"),
        ("zfs get compresion t", "compression"),
        ("zfs set recordsze=1M t", "recordsize"),
        ("zpool get helth t", "health"),
        ("zfs list t/hmoe", "t/home"),
        ("zfs list x/home", "t/home"),
        ("zfs hold tag t/home@mondy", "t/home@monday"),
        ("zfs rollback t/hoem@monday", "t/home@monday"),
        ("zfs destroy t/home@mondya", "t/home@monday"),
        ("zpool status tt", "t"),
    ] {
        let (status, said) = hinted(&house, line);
        assert_ne!(status, 0, "{line}");
        assert!(said.ends_with(&format!("did you mean '{wanted}'?\n")), "{line}: {said}");
        // Programs compare messages: not one byte more.
        let plain = house.fails(line);
        assert!(plain.0 == status && !plain.1.contains("did you mean"), "{line}: {}", plain.1);
    }
    for line in ["zfs list t/frobnicate", "zfs list t/home@friday2", "zpool status nosuch"] {
        let (_, said) = hinted(&house, line);
        assert!(!said.contains("did you mean"), "{line}: {said}");
    }
    house.run("zpool export t");
}

/// All data on special vdevs is rarely meant.
#[test]
fn special_small_blocks_of_a_whole_record_is_told() {
    let house = House::new("person-special");
    house.create("none");
    let told = |record: &str, name: &str| {
        let text = format!("note: special_small_blocks is {record}, and records of '{name}' have ");
        text + record + ": special vdevs take all of its data\n"
    };
    for (line, wanted) in [
        ("zfs set special_small_blocks=64K t", String::new()),
        ("zfs set special_small_blocks=128K t", told("128K", "t")),
        ("zfs set atime=off t", String::new()),
        ("zfs set recordsize=1M t", String::new()),
        ("zfs create -o mountpoint=none -o recordsize=128K t/a", told("128K", "t/a")),
        ("zfs create -V 1M t/v", String::new()),
        ("zfs set special_small_blocks=0 t", String::new()),
    ] {
        assert_eq!(hinted(&house, line), (0, wanted), "{line}");
    }
    // Programs compare messages: not one byte more.
    let plain = house.command(&["zfs", "set", "special_small_blocks=1M", "t"]).output().unwrap();
    assert!(plain.status.success() && plain.stderr.is_empty());
    house.run("zpool export t");
}

#[test]
fn usage_texts_are_short_for_a_person() {
    let house = House::new("person-usage");
    let (status, said) = hinted(&house, "zfs get -Q all t");
    assert_eq!(status, 2);
    assert!(said.starts_with("invalid option 'Q'\nusage:\n\tget "), "{said}");
    assert!(said.lines().count() < 8 && said.contains("run 'zfs help get' for more"), "{said}");
    let (_, said) = house.fails("zfs get -Q all t");
    assert!(said.contains("\tcompressratio  "), "{said}");
    let (_, said) = hinted(&house, "zpool frobnicate");
    let text = "unrecognized command 'frobnicate'\nrun 'zpool help' for the list of commands\n";
    assert_eq!(said, text);
}

/// Every command explains itself, on standard output and with status 0, and starts no daemon.
#[test]
fn every_command_has_help() {
    let house = House::new("person-help");
    let mut count = 0;
    let mut explains = |line: &str| {
        let said = house.run(line);
        let is_usage = said.to_lowercase().starts_with("usage:");
        assert!(is_usage && said.lines().count() > 1, "{line}: {said}");
        count += 1;
    };
    for tool in ["zpool", "zfs"] {
        let listed = house.run(&format!("{tool} help"));
        let verbs = listed.lines().filter_map(|line| line.strip_prefix('\t'));
        let verbs: std::collections::BTreeSet<&str> = verbs
            .filter(|line| !line.starts_with(' '))
            .filter_map(|line| line.split_whitespace().next())
            .collect();
        assert!(verbs.len() > 25, "{verbs:?}");
        for verb in verbs {
            explains(&format!("{tool} {verb} --help"));
            explains(&format!("{tool} help {verb}"));
        }
        explains(&format!("{tool} --help"));
        explains(&format!("help {tool}"));
    }
    let own = house.run("help");
    let own = own.lines().filter_map(|line| line.strip_prefix("  "));
    let own = own.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()));
    for name in own.filter_map(|line| line.split_whitespace().next()) {
        explains(&format!("{name} --help"));
        explains(&format!("help {name}"));
    }
    for line in ["zstream dump --help", "lab run --help", "tunable get --help", "daemon help"] {
        explains(line);
    }
    assert!(count > 150, "{count}");
    assert_eq!(house.fails("daemon status").0, 1);
}

#[test]
fn a_terminal_is_told_what_is_waited_for() {
    if !has("script") || !has_fuse() {
        return;
    }
    let house = House::new("person-waits");
    house.create(&house.text("at"));
    // A terminal gets suggestions without being asked for them.
    let (status, said) = Terminal::run(&house, "zfs lsit").ends();
    assert!(status == Some(2) && said.contains("did you mean 'list'?"), "{status:?}: {said}");
    for device in ["d0", "d1"] {
        house
            .run(&format!("zinject -d {} -e io -T write t", house.text(&format!("pool/{device}"))));
    }
    let mut terminal = Terminal::run(&house, "zfs snapshot t@one");
    terminal.shows("waiting: pool I/O of 't' is currently suspended");
    assert!(terminal.shown().contains("'zpool clear t' continues it"), "{}", terminal.shown());
    // Ctrl-C ends the waiting at once.
    let before = Instant::now();
    terminal.types(&[3]);
    let (status, said) = terminal.ends();
    assert!(before.elapsed() < Duration::from_secs(5));
    assert_ne!(status, Some(0));
    let text = "interrupted; the daemon may still finish 'zfs snapshot t@one'";
    assert!(said.contains(text), "{said}");
    house.run("zinject -c all");
    house.run("zpool clear t");
    // It did.
    let end = Instant::now() + Duration::from_secs(20);
    while !house.run("zfs list -H -o name -t snapshot").contains("t@one") {
        assert!(Instant::now() < end);
        std::thread::sleep(Duration::from_millis(50));
    }
    // Waiting on request is not explained.
    let terminal = Terminal::run(&house, "zpool events -f");
    std::thread::sleep(Duration::from_secs(4));
    assert!(!terminal.shown().contains("waiting"), "{}", terminal.shown());
    drop(terminal);
    house.run("zpool export t");
}

/// `ZFS_COLOR` colours the output at a terminal, and only there.
#[test]
fn colours_are_for_terminals() {
    if !has("script") {
        return;
    }
    let house = House::new("person-colours");
    house.create("none");
    let offline = format!("zpool offline t {}", house.text("pool/d1"));
    house.run(&offline);
    let shown = |variables: &[(&str, &str)]| {
        let mut terminal = Terminal::command(&house, "zpool status t");
        terminal.env_remove("NO_COLOR").env("TERM", "xterm").envs(variables.iter().copied());
        Terminal::start(terminal).ends().1
    };
    let text = shown(&[("ZFS_COLOR", "1")]);
    assert!(text.contains("\x1b[1m state:\x1b[0m\x1b[33m DEGRADED\x1b[0m\n"), "{text:?}");
    for others in [&[][..], &[("ZFS_COLOR", "1"), ("NO_COLOR", "1")]] {
        let text = shown(others);
        assert!(text.contains(" state: DEGRADED\n") && !text.contains('\x1b'), "{text:?}");
    }
    let mut command = house.command(&["zpool", "status", "t"]);
    assert!(!succeeds(command.env("ZFS_COLOR", "1")).contains('\x1b'));
    house.run("zpool export t");
}

/// An interrupt while a passphrase is typed leaves the terminal with echo.
#[test]
fn an_interrupted_prompt_leaves_the_terminal_as_it_was() {
    if !has("script") || !has("stty") {
        return;
    }
    let house = House::new("person-echo");
    house.create("none");
    let program = env!("CARGO_BIN_EXE_cenote");
    let create = "zfs create -o encryption=on -o keyformat=passphrase -o mountpoint=none t/e";
    let text = format!("#!/bin/bash\ntrap : INT\n{program} {create}\nstty -a\n");
    std::fs::write(house.path("type"), text).unwrap();
    let mut command = terminal("bash type");
    command.current_dir(house.path(".")).env("CENOTE_STATE_DIR", house.path("state"));
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(2));
    child.stdin.as_mut().unwrap().write_all(&[3]).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("Enter new passphrase"), "{said}");
    assert!(said.contains(" echo ") && !said.contains("-echo "), "{said}");
    house.run("zpool export t");
}

#[test]
fn exit_statuses_are_those_of_openzfs() {
    let house = House::new("person-status");
    house.create("none");
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for line in ["zpool list", "zfs list", "zpool status", "zfs get all t", "zpool history t"] {
        let words: Vec<&str> = line.split_whitespace().collect();
        let Output { status, stderr, .. } =
            house.command(&words).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        let said = String::from_utf8_lossy(&stderr);
        assert!(status.code() == Some(1) && said.contains("No space left"), "{line}: {said}");
    }
    for line in ["zpool iostat t 1 0", "zpool iostat t 0", "zpool list 0 1", "zpool status t 1 0"] {
        let (status, said) = house.fails(line);
        assert!(status == 2 && said.starts_with("interval cannot be zero\n"), "{line}: {said}");
    }
    let (status, said) = house.fails(&format!("zpool import -d {} t", house.text("pool")));
    let text = "cannot import 't': a pool with that name already exists\n";
    assert!(status == 1 && said.starts_with(text), "{said}");
    for property in ["sharenfs=on", "sharesmb=on"] {
        let (_, said) = house.fails(&format!("zfs set {property} t"));
        assert!(said.contains("is not supported by this version of cenote"), "{said}");
        house.fails(&format!("zfs create -o {property} t/shared"));
    }
    house.run("zfs set sharenfs=off t");
    succeeds(&mut house.command(&["zpool", "export", "t"]));
}

/// Several snapshots of one file system in one command.
#[test]
fn a_command_takes_several_snapshots_of_a_dataset() {
    let house = House::new("person-snapshots");
    house.create("none");
    house.run("zfs create t/a");
    house.run("zfs snapshot t@1 t/a@1 t@2 t/a@2 t@3");
    let listed = house.run("zfs list -H -o name -t snapshot -s name");
    assert_eq!(listed, "t/a@1\nt/a@2\nt@1\nt@2\nt@3\n");
    // The snapshots of a round are in one transaction group, and rounds follow one another.
    let txg = |name| house.run(&format!("zfs get -H -o value createtxg {name}")).trim().parse();
    let txgs: Vec<u64> = ["t@1", "t/a@1", "t@2", "t/a@2"].map(|name| txg(name).unwrap()).to_vec();
    assert!(txgs[0] == txgs[1] && txgs[2] == txgs[3] && txgs[1] < txgs[2], "{txgs:?}");
    // One that exists makes the whole command fail before anything is taken.
    let (_, said) = house.fails("zfs snapshot t@4 t@2");
    assert_eq!(said, "cannot create snapshot 't@2': dataset already exists\n");
    assert!(!house.run("zfs list -H -o name -t snapshot").contains("t@4"));
    house.run("zfs snapshot -r t@5 t/a@6");
    house.run("zpool export t");
}

/// Folders of mount points go when their file system goes or moves, unless a user has chosen them
/// or put something into them.
#[test]
fn folders_of_mount_points_go_with_their_file_systems() {
    if !has_fuse() {
        return;
    }
    let house = House::new("person-folders");
    house.create(&house.text("at"));
    let has = |name: &str| house.path(name).exists();
    house.run("zfs create -p t/a/b/c");
    house.run("zfs rename t/a t/x");
    assert!(!has("at/a") && has("at/x/b/c"));
    house.run("zfs destroy t/x/b/c");
    assert!(!has("at/x/b/c") && has("at/x/b"));
    house.run("zfs unmount t/x/b");
    house.run("zfs destroy t/x/b");
    assert!(!has("at/x/b"));
    let place = house.text("place");
    house.run(&format!("zfs set mountpoint={place} t/x"));
    assert!(!has("at/x") && has("place"));
    house.run("zfs create t/x/y");
    // The user chose the one, not the other.
    house.run("zfs destroy -r t/x");
    assert!(has("place") && !has("place/y"));
    // A folder that is not empty stays.
    house.run("zfs create t/full");
    house.run("zfs unmount t/full");
    std::fs::write(house.path("at/full/mine"), "kept").unwrap();
    house.run("zfs destroy t/full");
    assert_eq!(std::fs::read(house.path("at/full/mine")).unwrap(), b"kept");
    // A rename that fails leaves everything mounted.
    house.run("zfs create t/m");
    let held = std::fs::File::create(house.path("at/m/file")).unwrap();
    house.fails("zfs rename t/m t/n");
    assert!(has("at/m/file") && !has("at/n"));
    drop(held);
    house.run("zpool export t");
}

/// The session of an ordinary user: no option is needed for a pool that is mounted where the user
/// may, and what only root can do is refused with a hint that works.
#[test]
fn ordinary_users_get_mount_points_that_work() {
    const USER: u32 = 65534;
    if !has_fuse() || !has("fusermount3") {
        return;
    }
    let _few = with_few_mounts();
    if !rustix::process::geteuid().is_root() {
        return skip::skip(&skip::current_test(), "needs root, to become another user");
    }
    let house = House::new("person-user");
    let own = |name: &str| {
        std::os::unix::fs::chown(house.path(name), Some(USER), Some(USER)).unwrap();
    };
    std::fs::create_dir(house.path("home")).unwrap();
    // The program is reachable for the user, unlike the folder of the build.
    std::fs::copy(env!("CARGO_BIN_EXE_cenote"), house.path("home/cenote")).unwrap();
    for name in [".", "pool", "pool/d0", "home", "home/cenote"] {
        own(name);
    }
    let command = |line: &str| {
        let mut command = Command::new(house.path("home/cenote"));
        command.args(line.split_whitespace()).current_dir(house.path("home"));
        command.env("HOME", house.path("home")).env_remove("XDG_STATE_HOME");
        command.env_remove("CENOTE_STATE_DIR").env_remove("CENOTE_SOCKET");
        command.uid(USER).gid(USER).stdin(Stdio::null());
        command
    };
    let run = |line: &str| {
        let Output { status, stdout, stderr } = command(line).output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (status.code().unwrap(), text(&stdout), text(&stderr))
    };
    let (home, device) = (house.text("home"), house.text("pool/d0"));
    let (status, _, said) = run(&format!("zpool create tank {device}"));
    let text = format!("'tank' is mounted at '{home}/tank': only root can create '/tank'\n");
    assert_eq!((status, said), (0, text));
    let (_, shown, _) = run("zfs get -H -o value mountpoint,mounted tank");
    assert_eq!(shown, format!("{home}/tank\nyes\n"));
    // A child cannot be mounted inside; nothing is left where its files would go astray.
    let (status, _, said) = run("zfs create tank/a");
    let hint = format!("'zfs set mountpoint={home}/tank-a tank/a'\n");
    assert!(status == 1 && said.ends_with(&hint), "{said}");
    assert!(!house.path("home/tank/a").exists());
    // The hint works.
    let (status, _, said) = run(&hint.replace("'zfs", "zfs").replace('\'', ""));
    assert_eq!((status, said.as_str()), (0, ""));
    assert_eq!(run("zfs get -H -o value mounted tank/a").1, "yes\n");
    assert_eq!(run("zpool destroy tank").0, 0);
    assert_eq!(run("daemon stop").0, 0);
}
