//! The sessions that the documents show, typed at a terminal, as root and as an ordinary user: each
//! command succeeds, and prints what the document shows, if it shows that. Figures are not compared.

#![expect(clippy::disallowed_methods, reason = "a terminal is watched in real time")]

use std::fs;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cenote_testkit::golden::{PrivateFolder, golden};
use cenote_testkit::skip;

use crate::daemon::has_fuse;
use crate::person::{Terminal, terminal};
use crate::{has, with_few_mounts};

/// An ordinary user.
const USER: u32 = 65534;
/// Time limit for one command.
const COMMAND_MAX: Duration = Duration::from_mins(1);
/// What the shell prints when it waits for a command; the status of the last one follows.
const PROMPT: &str = "\n(ready ";

/// A command, and the lines that it prints; `...` stands for any further lines.
#[derive(Debug, PartialEq, Eq)]
struct Step {
    command: String,
    prints: Vec<String>,
}

/// Returns the session of a document that has this command.
fn session(document: &str, with: &str) -> Vec<Step> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let text = fs::read_to_string(path).unwrap();
    // Every second part is inside a block.
    let block = text.split("```").skip(1).step_by(2).find(|block| block.contains(with));
    let mut steps: Vec<Step> = Vec::new();
    for line in block.unwrap_or_else(|| panic!("no session in {document} has '{with}'")).lines() {
        if let Some(command) = line.strip_prefix("$ ") {
            steps.push(Step { command: command.to_owned(), prints: Vec::new() });
        } else if let Some(step) = steps.last_mut() {
            step.prints.push(line.to_owned());
        }
    }
    steps
}

/// A line without blanks at its end, in which every number with its unit is `#`.
fn shape(line: &str) -> String {
    let mut shape = String::new();
    let mut letters = line.trim_end().chars().peekable();
    while let Some(letter) = letters.next() {
        if !letter.is_ascii_digit() {
            shape.push(letter);
            continue;
        }
        while letters.next_if(|next| next.is_ascii_digit() || *next == '.').is_some() {}
        letters.next_if(|next| "KMGT".contains(*next));
        shape.push('#');
    }
    // Columns are as wide as their widest figure.
    shape.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Whether these lines are what a command has printed.
fn prints(shown: &str, wanted: &[String]) -> bool {
    let lines = |text: &mut dyn Iterator<Item = &str>| -> Vec<String> {
        text.map(shape).filter(|line| !line.is_empty()).collect()
    };
    let shown = lines(&mut shown.lines());
    let wanted = lines(&mut wanted.iter().map(String::as_str));
    match wanted.split_last() {
        Some((last, before)) if last == "..." => shown.starts_with(before),
        _ => shown == wanted,
    }
}

/// A home directory with the program, devices, and a shell at a terminal.
struct Desk {
    folder: PrivateFolder,
    shell: Terminal,
    user: Option<u32>,
    /// Length of the text that was shown before the present command.
    seen: usize,
}

impl Desk {
    fn new(stem: &str, user: Option<u32>) -> Self {
        let folder = PrivateFolder::create(stem);
        let path = |name: &str| folder.path().join(name);
        for name in ["home", "home/disks", "bin"] {
            fs::create_dir(path(name)).unwrap();
        }
        for number in 0..6 {
            let device = fs::File::create(path(&format!("home/disks/d{number}"))).unwrap();
            device.set_len(128 << 20).unwrap();
        }
        // The program is reachable for the user, unlike the folder of the build.
        fs::copy(env!("CARGO_BIN_EXE_cenote"), path("bin/cenote")).unwrap();
        fs::write(path("start"), "PS1=$'\\n(ready $?) '\n").unwrap();
        let start = path("start").display().to_string();
        let mut command = terminal(&format!("bash --noprofile --rcfile {start}"));
        command.current_dir(path("home")).env("HOME", path("home"));
        let old = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{old}", path("bin").display()));
        command.env("CENOTE_STATE_DIR", path("home/state")).env_remove("CENOTE_SOCKET");
        command.env("TZ", "UTC").env("TERM", "dumb").env_remove("PROMPT_COMMAND");
        if let Some(user) = user {
            command.uid(user).gid(user);
        }
        let mut desk = Self { shell: Terminal::start(command), folder, user, seen: 0 };
        desk.give(Path::new("."));
        desk.prompt();
        desk
    }

    fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Makes the user the owner of a folder and of all that is in it.
    fn give(&self, name: &Path) {
        let Some(user) = self.user else { return };
        let path = self.path(name);
        chown(&path, Some(user), Some(user)).unwrap();
        if path.is_dir() {
            for entry in fs::read_dir(&path).unwrap() {
                self.give(&name.join(entry.unwrap().file_name()));
            }
        }
    }

    /// Waits until the shell is ready; returns the status and the output of the last command.
    fn prompt(&mut self) -> (i32, String) {
        let end = Instant::now() + COMMAND_MAX;
        loop {
            let shown = self.shell.shown();
            let new = &shown[self.seen..];
            if let Some((output, prompt)) = new.rsplit_once(PROMPT)
                && let Some((status, "")) = prompt.split_once(") ")
            {
                let output = output.to_owned();
                let status = status.parse().expect("a status");
                self.seen = shown.len();
                return (status, output);
            }
            assert!(Instant::now() < end, "no end of the command in '{new}'");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Types a command; returns its status and its output.
    fn types(&mut self, command: &str) -> (i32, String) {
        self.shell.types(format!("{command}\n").as_bytes());
        let (status, shown) = self.prompt();
        // The terminal shows what was typed.
        let output = shown.split_once('\n').map_or("", |(_, output)| output);
        (status, output.to_owned())
    }

    /// Types a session in which the folder `/disks` is that of this desk.
    fn session(&mut self, document: &str, with: &str) {
        let disks = format!("{}/", self.path("home/disks").display());
        for Step { command, prints: wanted } in session(document, with) {
            let (status, output) = self.types(&command.replace("/disks/", &disks));
            assert_eq!(status, 0, "{document}: '{command}' said '{output}'");
            let is_shown = wanted.iter().any(|line| !line.is_empty());
            assert!(
                !is_shown || prints(&output, &wanted),
                "{document}: '{command}' said '{output}'"
            );
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // After a failed test no process remains.
        let mut stop = Command::new(self.path("bin/cenote"));
        stop.args(["daemon", "stop"]).env("CENOTE_STATE_DIR", self.path("home/state"));
        let _ = stop.stdin(Stdio::null()).output();
    }
}

/// A desk for each kind of user that this process can be.
fn desks(stem: &str) -> Vec<Desk> {
    if !has("script") || !has("bash") {
        return Vec::new();
    }
    let mut desks = vec![Desk::new(stem, None)];
    if rustix::process::geteuid().is_root() {
        desks.push(Desk::new(&format!("{stem}-user"), Some(USER)));
    } else {
        skip::skip(&skip::current_test(), "needs root, to become another user");
    }
    desks
}

#[test]
fn the_readmes_session_without_a_daemon_is_as_shown() {
    let Some(pool) = golden("g-basic") else { return };
    for mut desk in desks("sessions-embedded") {
        let copy = pool.private_copy();
        fs::create_dir(desk.path("home/pool")).unwrap();
        for (number, device) in copy.devices().iter().enumerate() {
            let name = format!("home/pool/disk{number}");
            cenote_testkit::unpack::copy_sparse(device, &desk.path(name));
        }
        desk.give(Path::new("home/pool"));
        desk.session("README.md", "$ cenote zpool --embedded import -d pool");
        assert!(desk.path("home/out").is_dir());
        desk.session("README.md", "$ zpool create -O compression=zstd tank raidz2");
    }
}

#[test]
fn the_sessions_with_a_daemon_are_as_shown() {
    if !has_fuse() || !has("fusermount3") {
        return;
    }
    let _few = with_few_mounts();
    for mut desk in desks("sessions-daemon") {
        desk.session("README.md", "$ cenote zpool create -m ~/tank -O canmount=off tank");
        assert_eq!(desk.types("cenote zfs get -H -o value mounted tank/home"), (0, "yes\n".into()));
        let home = desk.path("home/tank/home");
        assert_eq!(desk.types("touch ~/tank/home/file").0, 0);
        assert!(home.join("file").exists() || desk.user.is_some());
        assert_eq!(desk.types("cenote zpool destroy tank").0, 0);
        desk.session("docs/serving.md", "$ cenote zpool create -m ~/tank -O canmount=off tank");
        assert_eq!(desk.types("cenote zpool destroy tank").0, 0);
        assert_eq!(desk.types("cenote daemon stop").0, 0);
    }
}

#[test]
fn sessions_are_found_in_documents() {
    let steps = session("README.md", "$ cenote zpool --embedded import -d pool");
    assert_eq!(steps[0].command, "cenote zpool --embedded import -d pool");
    assert_eq!(steps[0].prints[0], "  pool: g-basic");
    let wanted = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    assert!(prints("t  9.97M in 0.06s (181M/s)\n\n", &wanted(&["t 1K in 12s (1.5G/s)"])));
    assert!(!prints("t  9.97M in 0.06s\n", &wanted(&["u 9.97M in 0.06s"])));
    assert!(!prints("a\nb\n", &wanted(&["a"])) && prints("a\nb\n", &wanted(&["a", "..."])));
}
