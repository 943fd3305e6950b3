//! Running the scripts of `zpool iostat -c` and `zpool status -c`, one per leaf and name.
//!
//! As for keys, the process that received the command does it: with the rights of the user, and
//! only scripts from folders that this user's variables name. OpenZFS's scripts run unchanged:
//!
//! ```text
//!   ZPOOL_SCRIPTS_PATH, or ~/.zpool.d:/etc/zfs/zpool.d ──> first executable file of the name
//!   environment: PATH, POOL_NAME, VDEV_PATH, VDEV_UPATH, VDEV_ENC_SYSFS_PATH; no input, no errors
//!   output: name=value, each name once, up to the first line of another form, which is kept, too
//! ```
//!
//! A script that fails has no output. Several run at a time, without a limit of time. Ctrl-C ends
//! them with the command; a command whose daemon ends does not wait for them.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};

use nix::sys::signal::{SigSet, Signal};
use rustix::fs::{Access, access, major, minor};

/// Folders of scripts, separated by colons, and where they are unless this variable is set: in the
/// home directory, and the system's.
const PATH: &str = "ZPOOL_SCRIPTS_PATH";
const OWN_FOLDER: &str = ".zpool.d";
const FOLDER: &str = "/etc/zfs/zpool.d";
/// The search path of a script's own commands.
const COMMANDS: &str = "/bin:/sbin:/usr/bin:/usr/sbin";
/// Bytes and lines of output that are kept for a leaf, of all scripts.
const OUTPUT_MAX: usize = 4 << 10;
const LINES_MAX: usize = 200;
/// Bytes of the names of scripts, and of the leaves in a request.
pub(crate) const NAMES_MAX: usize = 4 << 10;
const LEAVES_MAX: usize = 32 << 10;
/// Leaves in a request.
const LEAF_COUNT: usize = 64;
/// Bytes of an answer.
pub const ANSWER_MAX: usize = LEAF_COUNT * (OUTPUT_MAX + 1);
/// Layers below a device that are followed to the disk.
const LAYERS_MAX: usize = 8;
/// Scripts that run at once, per processor.
const PER_PROCESSOR: usize = 5;

/// A leaf, as scripts know it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leaf {
    /// Name of its pool.
    pub pool: String,
    /// Path of its device.
    pub path: String,
}

/// The scripts to run, and for which leaves. Without leaves, the scripts that could be run are
/// requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Names, separated by commas.
    pub scripts: String,
    /// The leaves, at most as many as [`Self::split`] has in one request.
    pub leaves: Vec<Leaf>,
}

impl Request {
    /// Splits the work into requests whose messages have a limited size. Leaves whose names alone
    /// exceed it are left out.
    #[must_use]
    pub fn split(scripts: &str, leaves: Vec<Leaf>) -> Vec<Self> {
        let mut requests: Vec<Self> = Vec::new();
        let mut size = 0;
        for leaf in leaves {
            let own = leaf.pool.len() + leaf.path.len() + 2;
            if own > LEAVES_MAX {
                continue;
            }
            size += own;
            match requests.last_mut() {
                Some(last) if size <= LEAVES_MAX && last.leaves.len() < LEAF_COUNT => {
                    last.leaves.push(leaf);
                }
                _ => {
                    size = own;
                    requests.push(Self { scripts: scripts.to_owned(), leaves: vec![leaf] });
                }
            }
        }
        requests
    }

    /// Returns the request as bytes: words that end in NUL.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let leaves = self.leaves.iter().flat_map(|leaf| [&leaf.pool, &leaf.path]);
        let words = std::iter::once(&self.scripts).chain(leaves);
        words.flat_map(|word| word.bytes().filter(|byte| *byte != 0).chain([0])).collect()
    }

    /// Decodes a request; `None` if it is not one.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let mut words = text.strip_suffix('\0')?.split('\0').map(str::to_owned);
        let scripts = words.next()?;
        let mut leaves = Vec::new();
        while let Some(pool) = words.next() {
            leaves.push(Leaf { pool, path: words.next()? });
        }
        (leaves.len() <= LEAF_COUNT).then_some(Self { scripts, leaves })
    }

    /// Whether the words of a command line ask for these scripts.
    #[must_use]
    pub fn is_asked_for_by(&self, args: &[OsString]) -> bool {
        let words = args.iter().filter_map(|word| word.to_str());
        let words: Vec<&str> = words.take_while(|word| *word != "--").collect();
        if !words.iter().any(|word| matches!(*word, "iostat" | "status")) {
            return false;
        }
        // The text after the option's letter; if there is none, the next word is its argument.
        let attached = |word: &&str| {
            let letters = word.strip_prefix('-').filter(|letters| !letters.starts_with('-'))?;
            Some(letters.split_once('c')?.1.to_owned())
        };
        if self.leaves.is_empty() {
            return words.last().and_then(attached).is_some_and(|rest| rest.is_empty());
        }
        words.iter().enumerate().any(|(at, word)| match attached(word) {
            Some(rest) if rest.is_empty() => words.get(at + 1) == Some(&&*self.scripts),
            rest => rest.as_ref() == Some(&self.scripts),
        })
    }

    /// Runs the scripts. Returns the lines of each leaf, or, without leaves, one list of all
    /// scripts with their descriptions.
    #[must_use]
    pub fn run(&self) -> Vec<Vec<String>> {
        let folders = folders();
        if self.leaves.is_empty() {
            return vec![available(&folders)];
        }
        let scripts = found(&self.scripts, &folders);
        in_parallel(&self.leaves, |leaf| output(&scripts, leaf))
    }
}

/// Encodes the lines of each leaf, as far as all leaves get the same part of [`ANSWER_MAX`].
#[must_use]
pub fn encode_lines(leaves: &[Vec<String>]) -> Vec<u8> {
    let most = ANSWER_MAX / leaves.len().max(1) - 1;
    let mut bytes = Vec::new();
    for lines in leaves {
        let end = bytes.len() + most;
        for line in lines {
            if bytes.len() + line.len() + 1 > end {
                break;
            }
            bytes.extend(line.bytes().filter(|byte| !matches!(byte, 0 | b'\n')).chain([b'\n']));
        }
        bytes.push(0);
    }
    bytes
}

/// Decodes the lines of this number of leaves, within the part of the limits that each has.
#[must_use]
pub fn decode_lines(bytes: &[u8], leaves: usize) -> Vec<Vec<String>> {
    let leaves = leaves.max(1);
    let (most, lines_max) = (ANSWER_MAX / leaves - 1, LINES_MAX * LEAF_COUNT / leaves);
    let decode = |lines: &[u8]| {
        let lines = String::from_utf8_lossy(lines.get(..most).unwrap_or(lines));
        lines.lines().take(lines_max).map(str::to_owned).collect()
    };
    let parts = bytes.strip_suffix(&[0]).unwrap_or(bytes).split(|byte| *byte == 0);
    parts.take(leaves).map(decode).collect()
}

fn folders() -> Vec<PathBuf> {
    if let Some(path) = std::env::var_os(PATH) {
        return std::env::split_paths(&path).filter(|path| !path.as_os_str().is_empty()).collect();
    }
    let own = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(OWN_FOLDER));
    own.into_iter().chain([FOLDER.into()]).collect()
}

/// Returns the files of the scripts, in the order of the names. A name with a slash has none.
fn found(names: &str, folders: &[PathBuf]) -> Vec<PathBuf> {
    let names = names.split(',').filter(|name| !name.is_empty() && !name.contains('/'));
    let file = |name: &str| {
        let mut files = folders.iter().map(|folder| folder.join(name));
        files.find(|file| access(file, Access::EXEC_OK).is_ok())
    };
    names.filter_map(file).collect()
}

/// Returns a line for each line of description that a script in the folders has.
fn available(folders: &[PathBuf]) -> Vec<String> {
    let mut files = Vec::new();
    for folder in folders {
        let Ok(entries) = std::fs::read_dir(folder) else { continue };
        let mut found: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        found.sort();
        files.append(&mut found);
    }
    files.retain(|file| {
        let facts = std::fs::metadata(file);
        facts.is_ok_and(|facts| facts.is_file() && facts.permissions().mode() & 0o100 != 0)
    });
    let described = in_parallel(&files, |file| {
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let mut command = command(file);
        command.arg("-h");
        let lines = lines_of(command, OUTPUT_MAX);
        let lines = lines.iter().filter(|line| !line.trim().is_empty());
        lines.map(|line| format!("  {name:<14}  {line}")).collect::<Vec<_>>()
    });
    described.into_iter().flatten().collect()
}

/// Applies `work` to each of `items`, on several threads as far as they can be started.
fn in_parallel<T: Sync, U: Send>(items: &[T], work: impl Fn(&T) -> U + Sync) -> Vec<U> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let (next, (done, results)) = (AtomicUsize::new(0), channel());
    let do_some = |done: Sender<(usize, U)>| {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(number) else { break };
            // The receiver lives as long as the threads.
            let _ = done.send((number, work(item)));
        }
    };
    std::thread::scope(|threads| {
        for _ in 1..items.len().min(PER_PROCESSOR * processors) {
            let (done, do_some) = (done.clone(), &do_some);
            let thread = std::thread::Builder::new().name("scripts".to_owned());
            drop(thread.spawn_scoped(threads, move || do_some(done)));
        }
        do_some(done);
    });
    let mut results: Vec<(usize, U)> = results.into_iter().collect();
    results.sort_unstable_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Runs all scripts for a leaf, one after another.
fn output(scripts: &[PathBuf], leaf: &Leaf) -> Vec<String> {
    let disk = disk_below(Path::new(&leaf.path));
    let enclosure = enclosure(&disk);
    let (mut kept, mut names, mut left) = (Vec::new(), BTreeSet::new(), OUTPUT_MAX);
    for script in scripts {
        let mut command = command(script);
        command.env("POOL_NAME", &leaf.pool).env("VDEV_PATH", &leaf.path);
        command.env("VDEV_UPATH", &disk).env("VDEV_ENC_SYSFS_PATH", &enclosure);
        for line in lines_of(command, left) {
            let is_text = match line.split_once('=') {
                Some((name, _)) if !names.insert(name.to_owned()) => continue,
                Some(_) => false,
                None => true,
            };
            left = left.saturating_sub(line.len() + 1);
            if kept.len() < LINES_MAX {
                kept.push(line);
            }
            if is_text {
                break;
            }
        }
    }
    kept
}

/// Returns the command that runs a script in its own environment.
fn command(script: &Path) -> Command {
    let mut command = Command::new(script);
    command.env_clear().env("PATH", COMMANDS);
    command.stdin(Stdio::null()).stderr(Stdio::null()).stdout(Stdio::piped());
    command
}

/// Runs a script, and returns the whole lines of its output within this many bytes. A script that
/// fails has none, unless it printed more.
fn lines_of(mut command: Command, most: usize) -> Vec<String> {
    // A process inherits the signals that this thread blocks: Ctrl-C must end it.
    let interrupt: SigSet = [Signal::SIGINT].into_iter().collect();
    let _ = interrupt.thread_unblock();
    let Ok(mut child) = command.spawn() else { return Vec::new() };
    let mut bytes = Vec::new();
    let read = match child.stdout.take() {
        Some(output) => output.take(most as u64).read_to_end(&mut bytes),
        None => Ok(0),
    };
    let is_full = bytes.len() == most;
    let is_done = child.wait().is_ok_and(|status| status.success());
    if read.is_err() || !(is_done || is_full) {
        return Vec::new();
    }
    if is_full {
        let end = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        bytes.truncate(end);
    }
    String::from_utf8_lossy(&bytes).lines().map(|line| line.replace('\0', "")).collect()
}

/// Returns the disk that holds a partition, or that lies below a mapped device; the path itself if
/// it is not a block device.
fn disk_below(path: &Path) -> PathBuf {
    let Some(mut device) = sysfs_of(path) else { return path.to_owned() };
    for _ in 0..LAYERS_MAX {
        let parent = device.parent().filter(|_| device.join("partition").exists());
        let slaves = || {
            let all = std::fs::read_dir(device.join("slaves")).ok()?;
            all.flatten().map(|entry| entry.path()).min()?.canonicalize().ok()
        };
        device = match parent.map(Path::to_owned).or_else(slaves) {
            Some(below) => below,
            None => break,
        };
    }
    device.file_name().map_or_else(|| path.to_owned(), |name| Path::new("/dev").join(name))
}

/// Returns the folder of a block device in sysfs.
fn sysfs_of(device: &Path) -> Option<PathBuf> {
    let facts = std::fs::metadata(device).ok()?;
    let number = facts.file_type().is_block_device().then(|| facts.rdev())?;
    let name = format!("{}:{}", major(number), minor(number));
    Path::new("/sys/dev/block").join(name).canonicalize().ok()
}

/// Returns the folder in sysfs of the slot of an enclosure that a disk is in; empty if it is in
/// none.
fn enclosure(disk: &Path) -> PathBuf {
    let slot = || {
        let entries = std::fs::read_dir(sysfs_of(disk)?.join("device")).ok()?;
        let mut names = entries.flatten();
        let slot = names
            .find(|name| name.file_name().to_string_lossy().starts_with("enclosure_device"))?;
        slot.path().canonicalize().ok()
    };
    slot().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_testkit::golden::PrivateFolder;

    fn leaf(path: &str) -> Leaf {
        Leaf { pool: "t".to_owned(), path: path.to_owned() }
    }

    /// Writes a script, and returns its file. This process never has it open for writing: a child
    /// of another test would inherit that, and the script could not be run.
    fn script(folder: &Path, name: &str, text: &str) -> PathBuf {
        let (file, source) = (folder.join(name), folder.join("text"));
        std::fs::write(&source, format!("#!/bin/sh\n{text}\n")).expect("written");
        let mut install = Command::new("install");
        let made = install.args(["-m", "755"]).arg(&source).arg(&file).status();
        assert!(made.expect("'install'").success());
        std::fs::remove_file(source).expect("removed");
        file
    }

    #[test]
    fn requests_are_split_and_decoded() {
        let leaves: Vec<Leaf> = (0..150).map(|number| leaf(&format!("/dev/{number}"))).collect();
        let requests = Request::split("a,b", leaves.clone());
        assert_eq!(requests.iter().map(|one| one.leaves.len()).collect::<Vec<_>>(), [64, 64, 22]);
        for request in &requests {
            assert_eq!(Request::decode(&request.encode()).as_ref(), Some(request));
        }
        assert_eq!(requests.into_iter().flat_map(|one| one.leaves).collect::<Vec<_>>(), leaves);
        let long = |count| Request::split("a", vec![leaf(&"x".repeat(12_000)); count]);
        assert_eq!(long(3).iter().map(|one| one.leaves.len()).collect::<Vec<_>>(), [2, 1]);
        assert_eq!(Request::split("a", vec![leaf(&"x".repeat(LEAVES_MAX))]), []);
        for wrong in [&b""[..], b"a", b"a\0p\0", b"\xff\0", &b"x\0".repeat(2 * LEAF_COUNT + 3)] {
            assert_eq!(Request::decode(wrong), None);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused() {
        let mut rng = cenote_rt::Rng::seeded(24);
        for _ in 0..20_000 {
            let len = rng.below(40) as usize;
            let some = [0, b'a', b'\n', b'=', 0xc3, 0xa4, 0xff];
            let bytes: Vec<u8> =
                (0..len).map(|_| some[rng.below(some.len() as u64) as usize]).collect();
            if let Some(request) = Request::decode(&bytes) {
                assert_eq!(request.encode(), bytes);
            }
            let leaves = decode_lines(&bytes, 5);
            assert!((1..=5).contains(&leaves.len()), "{bytes:?}");
            assert_eq!(decode_lines(&encode_lines(&leaves), 5), leaves, "{bytes:?}");
        }
    }

    #[test]
    fn lines_of_leaves_are_decoded() {
        let leaves = [vec!["a=1".to_owned(), "b".to_owned()], vec![], vec![String::new()]];
        assert_eq!(decode_lines(&encode_lines(&leaves), 3), leaves);
        assert_eq!(decode_lines(b"", 2), [Vec::<String>::new()]);
        // More leaves, or more of one, than were asked for.
        assert_eq!(decode_lines(b"a\0b\0c", 2), [["a"], ["b"]]);
        let long = decode_lines(&b"a=1\n".repeat(ANSWER_MAX / 4), LEAF_COUNT);
        assert_eq!((long.len(), long[0].len()), (1, LINES_MAX));
        let long = decode_lines(&b"a=1234567890123456789\n".repeat(ANSWER_MAX / 22), LEAF_COUNT);
        assert_eq!((long.len(), long[0].len()), (1, OUTPUT_MAX.div_ceil(22)));
        // Bytes that are not text are longer as text.
        let most = vec![vec!["\u{fffd}".repeat(OUTPUT_MAX / 3 - 1), "a".to_owned()]; LEAF_COUNT];
        let encoded = encode_lines(&most);
        assert!(encoded.len() <= ANSWER_MAX);
        assert_eq!(decode_lines(&encoded, LEAF_COUNT).len(), LEAF_COUNT);
        let list = vec![vec!["x".repeat(100); ANSWER_MAX / 100]];
        assert!(encode_lines(&list).len() <= ANSWER_MAX);
    }

    #[test]
    fn only_scripts_of_the_command_line_are_run() {
        let is_asked = |scripts: &str, leaves: Vec<Leaf>, line: &str| {
            let args: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            Request { scripts: scripts.to_owned(), leaves }.is_asked_for_by(&args)
        };
        for (scripts, line, wanted) in [
            ("a,b", "zpool iostat -c a,b t", true),
            ("a,b", "zpool status -vca,b", true),
            ("", "zpool status -c  t", true),
            ("b", "zpool iostat -c a,b t", false),
            ("c,a", "zpool iostat -c a,b t", false),
            ("a", "zpool status a", false),
            ("status", "zpool status -c a", false),
            ("t", "zpool status -c a t", false),
            ("a", "zpool status --c a", false),
            ("a", "zpool status -- -c a", false),
            ("t", "zpool trim -c t", false),
        ] {
            assert_eq!(is_asked(scripts, vec![leaf("/d")], line), wanted, "{scripts}: {line}");
        }
        for (line, wanted) in [
            ("zpool iostat -c", true),
            ("zpool iostat -vc", true),
            ("zpool iostat -c a", false),
            ("zpool iostat -ca", false),
            ("zpool iostat c", false),
        ] {
            assert_eq!(is_asked("", Vec::new(), line), wanted, "{line}");
        }
    }

    #[test]
    fn output_is_that_which_openzfs_shows() {
        let folder = PrivateFolder::create("leaf-scripts");
        let at = folder.path();
        let lines = |text: &str| output(&[script(at, "s", text)], &leaf("/none"));
        assert_eq!(lines("echo a=1; echo b=; echo; echo c=3"), ["a=1", "b=", ""]);
        assert_eq!(lines("echo a=1; echo text; echo c=3"), ["a=1", "text"]);
        assert_eq!(lines("echo a=1; echo a=2; echo c=3"), ["a=1", "c=3"]);
        assert_eq!(lines("echo a=1; exit 1"), [""; 0]);
        assert_eq!(lines("echo a=1; kill -9 $$"), [""; 0]);
        assert_eq!(lines("cat; echo wrong >&2; echo $#"), ["0"]);
        let names = "env | sort | sed 's/^\\(PWD\\|_\\|SHLVL\\|OLDPWD\\)=.*//; /^$/d'";
        assert_eq!(
            lines(names),
            [
                "PATH=/bin:/sbin:/usr/bin:/usr/sbin",
                "POOL_NAME=t",
                "VDEV_ENC_SYSFS_PATH=",
                "VDEV_PATH=/none",
                "VDEV_UPATH=/none"
            ]
        );
        // A script that prints without an end is ended by its pipe.
        let endless = lines("seq -f a%1.0f=1 1000000000");
        assert_eq!(endless.len(), LINES_MAX);
        assert_eq!(
            (&*endless[0], endless.last().map(|line| line.ends_with("=1"))),
            ("a1=1", Some(true))
        );
        assert_eq!(lines("head -c 10000 /dev/zero"), [""; 0]);
    }

    #[test]
    fn scripts_are_the_first_executable_files_of_their_names() {
        let folder = PrivateFolder::create("leaf-scripts-found");
        let (one, two) = (folder.path().join("1"), folder.path().join("2"));
        for at in [&one, &two] {
            std::fs::create_dir(at).expect("a folder");
        }
        let both = [one.clone(), two.clone()];
        let first = script(&one, "a", "[ \"$1\" = -h ] && echo Show a.");
        let second = script(&two, "b", "echo Show b.; echo; echo More.");
        script(&two, "a", "exit 1");
        std::fs::write(one.join("b"), "").expect("written");
        assert_eq!(found("b,a,,../1/a,none", &both), [second, first]);
        assert_eq!(
            available(&both),
            ["  a               Show a.", "  b               Show b.", "  b               More."]
        );
    }

    #[test]
    fn work_is_done_once_and_in_order() {
        let items: Vec<u64> = (0..1000).collect();
        assert_eq!(in_parallel(&items, |item| item + 1), (1..1001).collect::<Vec<_>>());
        assert_eq!(in_parallel::<u64, u64>(&[], |item| *item), Vec::<u64>::new());
    }
}
