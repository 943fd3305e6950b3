//! Rollback of file systems in use: the mount stays, and open files have the content of the
//! snapshot.

#![expect(clippy::disallowed_methods, reason = "users of a mount are watched in real time")]

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cenote_rt::seeded::Bug;
use cenote_testkit::faultfs::FaultLayer;
use cenote_testkit::{bugs, skip};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::daemon::{House, has_fuse};
use crate::mounts::is_root;
use crate::{SIZE, has, succeeds};

/// Size of a page.
const PAGE: usize = 4096;
/// Number of rollbacks under load.
const ROUNDS: usize = 20;

fn everything() -> bool {
    std::env::var_os("CENOTE_TEST_ALL").is_some()
}

/// Creates a pool `t` whose file system `t/a` is mounted.
fn mounted(stem: &str) -> Option<House> {
    if !has_fuse() {
        return None;
    }
    let house = House::new(stem);
    // Not inside of another mount of cenote's, where only root may mount.
    house.create("none");
    house.run(&format!("zfs create -o mountpoint={} t/a", house.text("at/a")));
    Some(house)
}

fn leave(house: &House) {
    house.run("zpool export t");
    house.run("daemon stop");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &house.text("pool"), "t"]));
    if let Some(zdb) = cenote_oracle::zdb() {
        let said = zdb.pool("t", Path::new(&house.text("pool")), &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
}

fn read_all(file: &File) -> std::io::Result<Vec<u8>> {
    let mut bytes = vec![0; 1 << 20];
    let len = file.read_at(&mut bytes, 0)?;
    bytes.truncate(len);
    Ok(bytes)
}

fn number<T>(result: std::io::Result<T>) -> i32 {
    result.err().and_then(|error| error.raw_os_error()).expect("an error of the system")
}

/// Checks a file that a rollback has removed; once its number is reused, the kernel reports that.
fn assert_lost<T>(result: std::io::Result<T>) {
    let number = number(result);
    assert!([Errno::STALE, Errno::IO].map(Errno::raw_os_error).contains(&number), "{number}");
}

/// A program with a request on each line of input, and an answer on each line of output.
struct Asked {
    child: Child,
    questions: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Asked {
    fn start(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let questions = child.stdin.take().unwrap();
        let answers = BufReader::new(child.stdout.take().unwrap());
        Self { child, questions, answers }
    }

    fn answer(&mut self) -> String {
        let mut line = String::new();
        self.answers.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn ask(&mut self, question: &str) -> String {
        writeln!(self.questions, "{question}").unwrap();
        self.answer()
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn rollback_keeps_open_files_and_working_directories() {
    let Some(house) = mounted("rollback-open") else { return };
    let at = |name: &str| house.path("at/a").join(name);
    fs::write(at("kept"), b"before").unwrap();
    fs::write(at("removed"), b"still here").unwrap();
    fs::write(at("long"), vec![5; 300_000]).unwrap();
    fs::create_dir_all(at("dir/sub")).unwrap();
    fs::write(at("dir/inner"), b"inner").unwrap();
    fs::write(at("moved"), b"moved").unwrap();
    // It had no name when the snapshot was taken, and stays open.
    let unnamed = OpenOptions::new().read(true).write(true).create_new(true).open(at("un"));
    let unnamed = unnamed.unwrap();
    unnamed.write_all_at(b"unnamed", 0).unwrap();
    fs::remove_file(at("un")).unwrap();
    house.run("zfs snapshot t/a@one");

    let kept = OpenOptions::new().read(true).write(true).open(at("kept")).unwrap();
    kept.write_all_at(b"what came after it", 0).unwrap();
    rustix::fs::flock(&kept, FlockOperation::LockExclusive).unwrap();
    let removed = File::open(at("removed")).unwrap();
    fs::remove_file(at("removed")).unwrap();
    let long = OpenOptions::new().read(true).write(true).open(at("long")).unwrap();
    long.set_len(1000).unwrap();
    let new = OpenOptions::new().read(true).write(true).create_new(true).open(at("new")).unwrap();
    new.write_all_at(b"new", 0).unwrap();
    new.sync_all().unwrap();
    fs::create_dir(at("newdir")).unwrap();
    fs::write(at("newdir/x"), b"x").unwrap();
    fs::rename(at("moved"), at("dir/moved")).unwrap();
    fs::remove_file(at("dir/inner")).unwrap();
    fs::write(at("dir/inner"), b"another inner").unwrap();
    assert!(!at("moved").exists(), "and the kernel believes so");
    let script = "while read -r line; do eval \"$line\"; done 2>&1";
    let mut inside = Asked::start(Command::new("sh").args(["-c", script]).current_dir(at("dir")));
    assert_eq!(inside.ask("cat inner; echo"), "another inner");
    let folder = File::open(at("newdir")).unwrap();

    house.run("zfs rollback t/a@one");
    assert_eq!(read_all(&kept).unwrap(), b"before");
    let other = File::open(at("kept")).unwrap();
    let locked = rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(locked, Err(Errno::WOULDBLOCK), "the lock is still held");
    assert_eq!(read_all(&removed).unwrap(), b"still here");
    assert_eq!(fs::read(at("removed")).unwrap(), b"still here");
    assert_eq!(read_all(&long).unwrap(), vec![5; 300_000]);
    assert_eq!(read_all(&unnamed).unwrap(), b"unnamed");
    assert_eq!(number(read_all(&new)), Errno::STALE.raw_os_error());
    assert_eq!(number(new.write_at(b"lost", 0)), Errno::STALE.raw_os_error());
    assert_eq!(number(new.metadata()), Errno::STALE.raw_os_error());
    for name in ["new", "newdir", "newdir/x", "dir/moved"] {
        assert_eq!(fs::metadata(at(name)).unwrap_err().kind(), ErrorKind::NotFound, "{name}");
    }
    assert_eq!(fs::read(at("moved")).unwrap(), b"moved");
    assert_eq!(inside.ask("cat inner; echo"), "inner");
    assert_eq!(inside.ask("pwd -P"), at("dir").to_str().unwrap());
    assert_eq!(inside.ask("ls | tr '\\n' ' '; echo"), "inner sub");
    let listed = match rustix::fs::Dir::read_from(&folder) {
        Ok(mut entries) => entries.find_map(Result::err),
        Err(errno) => Some(errno),
    };
    assert!(matches!(listed, Some(Errno::STALE | Errno::NOENT)), "{listed:?}");

    // Programs write again, durably: a crash replays that, and nothing from before the rollback.
    kept.write_all_at(b"AFTER", 1).unwrap();
    kept.sync_all().unwrap();
    assert_eq!(inside.ask("echo fresh > made; cat made"), "fresh");
    drop((inside, folder, new));
    house.kill();
    house.run("zpool list");
    assert_eq!(fs::read(at("kept")).unwrap(), b"bAFTER");
    assert!(!at("new").exists());
    drop((kept, removed, long, unnamed, other));
    leave(&house);
}

#[test]
fn rollback_resets_the_end_for_appends() {
    let Some(house) = mounted("rollback-append") else { return };
    let path = house.path("at/a/log");
    fs::write(&path, [b'a'; 100]).unwrap();
    house.run("zfs snapshot t/a@one");
    let mut log = OpenOptions::new().append(true).open(&path).unwrap();
    log.write_all(&vec![b'b'; 20_000]).unwrap();
    house.run("zfs rollback t/a@one");
    for _ in 0..3 {
        log.write_all(b"cccc").unwrap();
    }
    let wanted = [&[b'a'; 100][..], b"cccccccccccc"].concat();
    // The kernel is told after the answer to the write.
    let since = Instant::now();
    while fs::read(&path).unwrap() != wanted && since.elapsed() < Duration::from_secs(20) {
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(fs::read(&path).unwrap(), wanted);
    assert_eq!(fs::metadata(&path).unwrap().len(), 112);
    drop(log);
    leave(&house);
}

/// Stores that the kernel has not written back are discarded; later stores count.
#[test]
fn rollback_resets_mapped_pages() {
    let script = "import mmap, sys\n\
        f = open(sys.argv[1], 'r+b')\n\
        m = mmap.mmap(f.fileno(), 0)\n\
        for line in sys.stdin:\n\
        \x20   if line[0] == 'w':\n\
        \x20       m[0:3] = line[1:4].encode()\n\
        \x20   if line[0] == 's':\n\
        \x20       m.flush()\n\
        \x20   print(m[0:3].decode(), m[8192:8195].decode(), flush=True)\n";
    let Some(house) = mounted("rollback-mapped") else { return };
    if !has("python3") {
        return;
    }
    let path = house.path("at/a/file");
    fs::write(&path, [b'a'; 3 * PAGE]).unwrap();
    house.run("zfs snapshot t/a@one");
    let mut command = Command::new("python3");
    let mut user = Asked::start(command.args(["-c", script]).arg(&path));
    assert_eq!(user.ask("wnew"), "new aaa");
    house.run("zfs rollback t/a@one");
    assert_eq!(user.ask("r"), "aaa aaa");
    assert_eq!(fs::read(&path).unwrap(), [b'a'; 3 * PAGE]);
    assert_eq!(user.ask("wtwo"), "two aaa");
    assert_eq!(user.ask("s"), "two aaa");
    drop(user);
    house.kill();
    house.run("zpool list");
    let read = fs::read(&path).unwrap();
    assert_eq!((&read[..3], &read[3..]), (&b"two"[..], &[b'a'; 3 * PAGE - 3][..]));
    leave(&house);
}

/// Writes pages of `B` and `C` through a handle, and creates and removes files by name, until it is
/// told to stop. Returns the number of writes.
fn write_on(folder: &Path, is_over: &AtomicBool) -> usize {
    let page = OpenOptions::new().write(true).open(folder.join("page")).unwrap();
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        let byte = if count % 2 == 0 { b'B' } else { b'C' };
        page.write_all_at(&[byte; PAGE], 0).unwrap();
        if count % 8 == 0 {
            page.sync_all().unwrap();
        }
        let other = folder.join(format!("dir/f{}", count % 16));
        let made = fs::write(&other, [byte; 100]).and_then(|()| fs::remove_file(&other));
        // The file may be gone before it is written or removed.
        let numbers = [Errno::STALE, Errno::NOENT].map(Errno::raw_os_error);
        assert!(made.is_ok() || numbers.contains(&number(made)), "{}", other.display());
        count += 1;
    }
    count
}

/// Reads a page through a handle and by its name, until it is told to stop.
fn read_on(folder: &Path, is_over: &AtomicBool) -> usize {
    let page = File::open(folder.join("page")).unwrap();
    let mut count = 0;
    while !is_over.load(Ordering::Relaxed) {
        for read in [read_all(&page).unwrap(), fs::read(folder.join("page")).unwrap()] {
            assert_eq!(read.len(), PAGE);
            assert!(read.iter().all(|byte| b"ABC".contains(byte)), "{:?}", &read[..16]);
        }
        for entry in fs::read_dir(folder.join("dir")).unwrap() {
            entry.unwrap();
        }
        count += 1;
    }
    count
}

#[test]
fn rollbacks_under_load_keep_the_mount() {
    let Some(house) = mounted("rollback-load") else { return };
    let folder = house.path("at/a");
    fs::write(folder.join("page"), [b'A'; PAGE]).unwrap();
    fs::create_dir(folder.join("dir")).unwrap();
    if is_root() {
        house.run("zfs create t/a/child");
        fs::write(folder.join("child/own"), b"own").unwrap();
    }
    house.run("zfs snapshot t/a@one");
    let is_over = AtomicBool::new(false);
    let rounds = if everything() { 10 * ROUNDS } else { ROUNDS };
    let (written, read) = std::thread::scope(|scope| {
        let writers = [0, 1].map(|_| scope.spawn(|| write_on(&folder, &is_over)));
        let readers = [0, 1].map(|_| scope.spawn(|| read_on(&folder, &is_over)));
        for round in 0..rounds {
            let force = if round % 2 == 0 { "-f " } else { "" };
            let since = Instant::now();
            house.run(&format!("zfs rollback {force}t/a@one"));
            assert!(since.elapsed() < Duration::from_mins(1), "took {:?}", since.elapsed());
            std::thread::sleep(Duration::from_millis(30));
        }
        is_over.store(true, Ordering::Relaxed);
        let count = |handles: [std::thread::ScopedJoinHandle<'_, usize>; 2]| {
            handles.map(|handle| handle.join().unwrap()).iter().sum::<usize>()
        };
        (count(writers), count(readers))
    });
    assert!(written > rounds && read > rounds, "{written} writes, {read} reads");
    house.run("zfs rollback t/a@one");
    assert_eq!(fs::read(folder.join("page")).unwrap(), [b'A'; PAGE]);
    assert_eq!(fs::read_dir(folder.join("dir")).unwrap().count(), 0);
    if is_root() {
        assert_eq!(fs::read(folder.join("child/own")).unwrap(), b"own", "it stays mounted");
    }
    leave(&house);
}

/// A crash leaves the state before or after the rollback, and the old intent log is never replayed
/// after it.
#[test]
fn rollback_is_atomic_when_the_daemon_is_killed() {
    let Some(house) = mounted("rollback-killed") else { return };
    let path = house.path("at/a/file");
    fs::write(&path, b"old").unwrap();
    house.run("zfs snapshot t/a@one");
    let kills = if everything() { 60 } else { 6 };
    for seed in 0..kills {
        let made = house.path("at/a/made");
        for (path, bytes) in [(&path, &b"new"[..]), (&made, b"made")] {
            let mut file = File::create(path).unwrap();
            file.write_all(bytes).and_then(|()| file.sync_all()).unwrap();
        }
        // Every other time the rollback has finished.
        let mut rolling = house.command(&["zfs", "rollback", "t/a@one"]).spawn().unwrap();
        let is_ended = seed % 2 == 0;
        if is_ended {
            assert!(rolling.wait().unwrap().success());
        } else {
            std::thread::sleep(Duration::from_millis(seed * 7 % 60));
        }
        house.kill();
        let is_rolled_back = rolling.wait().unwrap().success();
        house.run("zpool list");
        let found = (fs::read(&path).unwrap(), fs::read(&made).ok());
        let (before, after) =
            ((b"new".to_vec(), Some(b"made".to_vec())), (b"old".to_vec(), None::<Vec<u8>>));
        assert!(found == after || !is_rolled_back && found == before, "{seed}: {found:?}");
    }
    leave(&house);
}

#[test]
fn rollback_invalidates_many_cached_nodes_in_bounded_time() {
    let Some(house) = mounted("rollback-many") else { return };
    let folder = house.path("at/a");
    let count = if everything() { 10_000 } else { 1_000 };
    let path = |index: usize| folder.join(format!("d{}/f{index}", index % 10));
    (0..10).for_each(|dir| fs::create_dir(folder.join(format!("d{dir}"))).unwrap());
    (0..count).for_each(|index| fs::write(path(index), b"old").unwrap());
    house.run("zfs snapshot t/a@one");
    for index in 0..count {
        match index % 4 {
            0 => fs::write(path(index), b"newer").unwrap(),
            1 => fs::remove_file(path(index)).unwrap(),
            2 => fs::rename(path(index), path(index).with_extension("moved")).unwrap(),
            _ => fs::write(path(index).with_extension("made"), b"made").unwrap(),
        }
    }
    let since = Instant::now();
    house.run("zfs rollback t/a@one");
    println!("{count} nodes: {:?}", since.elapsed());
    assert!(since.elapsed() < Duration::from_mins(1), "took {:?}", since.elapsed());
    for index in 0..count {
        assert_eq!(fs::read(path(index)).unwrap(), b"old");
        assert!(!path(index).with_extension("moved").exists());
        assert!(!path(index).with_extension("made").exists());
    }
    leave(&house);
}

/// Clones destroyed by the rollback are unmounted first, and with `-f` even if they are in use.
#[test]
fn rollback_refuses_to_destroy_clones_in_use() {
    let Some(house) = mounted("rollback-clones") else { return };
    let path = |name: &str| -> PathBuf { house.path("at").join(name) };
    fs::write(path("a/file"), b"one").unwrap();
    house.run("zfs snapshot t/a@one");
    fs::write(path("a/file"), b"two").unwrap();
    house.run("zfs snapshot t/a@two");
    let clone = house.text("at/clone");
    house.run(&format!("zfs clone -o mountpoint={clone} t/a@two t/clone"));
    fs::write(path("a/file"), b"three").unwrap();
    let held = File::open(path("a/file")).unwrap();
    let open = File::open(path("clone/file")).unwrap();
    let (_, said) = house.fails("zfs rollback -R t/a@one");
    assert!(said.contains("pool or dataset is busy"), "{said}");
    assert_eq!(read_all(&held).unwrap(), b"three");
    assert_eq!(read_all(&open).unwrap(), b"two");
    // A snapshot in use is destroyed by the rollback.
    assert_eq!(fs::read(path("a/.zfs/snapshot/two/file")).unwrap(), b"two");
    let looked = File::open(path("a/.zfs/snapshot/two")).unwrap();
    // Without root a mount in use can only be detached, and keeps its dataset.
    let open = is_root().then_some(open);
    house.run("zfs rollback -Rf t/a@one");
    assert_eq!(read_all(&held).unwrap(), b"one");
    assert!(!path("clone/file").exists() && !path("a/.zfs/snapshot/two").exists());
    assert_eq!(house.run("zfs list -H -o name -t all -r t"), "t\nt/a\nt/a@one\n");
    drop((held, open, looked));
    leave(&house);
}

/// The mount point of a file system is removed by the rollback of its parent.
#[test]
fn rollback_detaches_mounts_on_removed_directories() {
    if !is_root() {
        let test = skip::current_test();
        return skip::skip(&test, "only root mounts within a mount of its own");
    }
    let Some(house) = mounted("rollback-below") else { return };
    let path = |name: &str| house.path("at/a").join(name);
    fs::create_dir(path("folder")).unwrap();
    house.run(&format!("zfs create -o mountpoint={} t/kept", path("folder").display()));
    house.run("zfs snapshot t/a@one");
    house.run("zfs create t/a/since");
    fs::write(path("since/own"), b"own").unwrap();
    fs::write(path("folder/own"), b"kept").unwrap();
    let open = File::open(path("since/own")).unwrap();
    house.run("zfs rollback t/a@one");
    assert!(!path("since").exists());
    assert_eq!(fs::read(path("folder/own")).unwrap(), b"kept");
    assert_eq!(read_all(&open).unwrap(), b"own", "its users go on");
    assert_eq!(house.run("zfs get -H -o value mounted t/a/since t/kept"), "no\nyes\n");
    house.run("zfs mount t/a/since");
    assert_eq!(fs::read(path("since/own")).unwrap(), b"own");
    drop(open);
    // Of several concurrent rollbacks each succeeds or is refused.
    let rolling: Vec<Child> = (0..4)
        .map(|_| {
            let mut command = house.command(&["zfs", "rollback", "t/a@one"]);
            command.stderr(Stdio::piped()).spawn().unwrap()
        })
        .collect();
    let mut done = 0;
    for rolling in rolling {
        let output = rolling.wait_with_output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success() || said.contains("dataset is busy"), "{said}");
        done += usize::from(output.status.success());
    }
    assert!(done > 0);
    leave(&house);
}

/// An inode number that belongs to another node in the snapshot than in an open file.
#[test]
fn rollback_distinguishes_reused_inode_numbers() {
    let Some(house) = mounted("rollback-numbers") else { return };
    let at = |name: &str| house.path("at/a").join(name);
    house.run("zfs snapshot t/a@one");
    // A newly opened file system uses the lowest free number.
    house.run("zfs rollback t/a@one");
    let make = |name: &str, text: &str| {
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(at(name));
        let file = file.unwrap();
        file.write_all_at(text.as_bytes(), 0).unwrap();
        file
    };
    let first = make("x", "first");
    house.run("zfs rollback t/a@one");
    let second = make("x", "second");
    assert_eq!(fs::metadata(at("x")).unwrap().ino(), second.metadata().unwrap().ino());
    assert_lost(first.write_at(b"lost", 0));
    assert_lost(first.set_len(0));
    assert_lost(read_all(&first));
    assert_eq!(read_all(&second).unwrap(), b"second");
    let inode = second.metadata().unwrap().ino();
    drop((first, second));

    house.run("zfs snapshot t/a@two");
    fs::remove_file(at("x")).unwrap();
    house.run("zpool export t");
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    let third = make("y", "third");
    assert_eq!(third.metadata().unwrap().ino(), inode, "the number is used again");
    house.run("zfs rollback t/a@two");
    assert_eq!(number(read_all(&third)), Errno::STALE.raw_os_error());
    assert_eq!(fs::read(at("x")).unwrap(), b"second");
    assert_lost(third.write_at(b"lost", 0));
    assert_eq!(fs::read(at("x")).unwrap(), b"second");
    drop(third);

    // A mount with write-back caching is replaced. Only root has one.
    if is_root() {
        house.run("zfs unmount t/a");
        house.run("zfs mount -o writeback t/a");
        fs::write(at("x"), b"through the kernel's cache").unwrap();
        house.run("zfs rollback t/a@two");
        assert_eq!(fs::read(at("x")).unwrap(), b"second");
    }
    leave(&house);
}

/// A pool on devices that fail on command, with a file system that has a snapshot `t@one`.
struct Failing {
    file: File,
    /// Dropped before its directory.
    layer: FaultLayer,
    house: House,
}

impl Failing {
    fn new(stem: &str) -> Option<Self> {
        if !has_fuse() {
            return None;
        }
        let house = House::new(stem);
        let layer = FaultLayer::start("fault_layer", &house.path("pool"), &[SIZE / 2; 2])?;
        let (d0, d1, place) = (layer.leaf(0), layer.leaf(1), house.text("at"));
        house.run(&format!("zpool create -m {place} t mirror {} {}", d0.display(), d1.display()));
        let path = house.path("at/file");
        fs::write(&path, b"old").unwrap();
        house.run("zfs snapshot t@one");
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(b"new", 0).unwrap();
        Some(Self { file, layer, house })
    }

    fn until_suspended(&self) {
        let since = Instant::now();
        while self.house.run("zpool list -H -o health") != "SUSPENDED\n" {
            assert!(since.elapsed() < Duration::from_secs(90), "the pool is not suspended");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Starts a thread that syncs a file `count` times.
fn make_durable(file: &File, count: usize) -> std::thread::JoinHandle<std::io::Result<()>> {
    let file = file.try_clone().unwrap();
    std::thread::spawn(move || {
        (0..count).try_for_each(|_| file.write_all_at(b"new", 0).and_then(|()| file.sync_all()))
    })
}

#[test]
fn rollback_on_slow_devices_is_slow_or_refused() {
    let Some(failing) = Failing::new("rollback-slow") else { return };
    let Failing { house, layer, file } = &failing;
    (0..2).for_each(|leaf| layer.slow_down(leaf, Duration::from_millis(20)));
    let syncing = make_durable(file, 5);
    house.run("zfs rollback t@one");
    syncing.join().unwrap().unwrap();

    // A request that does not end does not block others for long.
    (0..2).for_each(|leaf| layer.slow_down(leaf, Duration::from_secs(3)));
    house.run("tunable set cenote_rollback_timeout_ms=200");
    let syncing = make_durable(file, 1);
    std::thread::sleep(Duration::from_millis(300));
    let (status, said) = house.fails("zfs rollback t@one");
    assert_eq!((status, said.as_str()), (1, "cannot rollback 't': dataset is busy\n"));
    assert_eq!(read_all(file).unwrap(), b"new", "and everybody goes on");
    layer.heal_all();
    syncing.join().unwrap().unwrap();
    house.run("tunable set cenote_rollback_timeout_ms=30000");
    house.run("zfs rollback t@one");
    assert_eq!(read_all(file).unwrap(), b"old");
    house.run("zpool export -f t");
}

/// The pool is suspended before or during the rollback.
#[test]
fn rollback_ends_on_a_suspended_pool() {
    let Some(failing) = Failing::new("rollback-suspended") else { return };
    let Failing { house, layer, file } = &failing;
    (0..2).for_each(|leaf| layer.take_away(leaf));
    let waiting = make_durable(file, 1);
    failing.until_suspended();
    let (status, said) = house.fails("zfs rollback t@one");
    let wanted = "cannot rollback 't': pool I/O is currently suspended\n";
    assert_eq!((status, said.as_str()), (1, wanted));
    layer.heal_all();
    house.run("zpool clear t");
    waiting.join().unwrap().unwrap();
    house.run("zfs rollback t@one");
    assert_eq!(read_all(file).unwrap(), b"old");

    for is_cleared in [true, false] {
        file.write_all_at(b"new", 0).unwrap();
        (0..2).for_each(|leaf| layer.take_away(leaf));
        let mut rolling = house.command(&["zfs", "rollback", "t@one"]).spawn().unwrap();
        failing.until_suspended();
        let reading = file.try_clone().unwrap();
        let reading = std::thread::spawn(move || reading.sync_all());
        if is_cleared {
            layer.heal_all();
            house.run("zpool clear t");
            assert!(rolling.wait().unwrap().success());
            reading.join().unwrap().unwrap();
            assert_eq!(read_all(file).unwrap(), b"old");
        } else {
            let since = Instant::now();
            house.run("zpool export -f t");
            assert!(since.elapsed() < Duration::from_mins(1), "took {:?}", since.elapsed());
            assert!(!rolling.wait().unwrap().success());
            reading.join().unwrap().unwrap_err();
        }
    }
    layer.heal_all();
    house.run(&format!("zpool import -d {} t", layer.leaves().display()));
    let found = fs::read(house.path("at/file")).unwrap();
    assert!(found == b"old" || found == b"new", "{found:?}");
    house.run("zpool export t");
}

/// Each seeded bug is found by a test above.
#[test]
fn seeded_bugs_of_rollbacks_are_found() {
    if !has_fuse() || !has("python3") {
        return;
    }
    // The daemon has the bug from its first command.
    bugs::check_found(&Bug::OF_ROLLBACKS, "panicked at", |bug| match bug {
        Bug::OpenGate => "rollback::rollbacks_under_load_keep_the_mount",
        Bug::KernelNotTold => "rollback::rollback_keeps_open_files_and_working_directories",
        Bug::OldPagesWritten => "rollback::rollback_resets_mapped_pages",
        _ => "rollback::rollback_distinguishes_reused_inode_numbers",
    });
}
