//! Daemons that are killed or lack threads and memory: the process is gone within seconds, and the
//! next one mounts everything.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use cenote_rt::Rng;
use rustix::process::{Pid, Signal, kill_process};

use crate::daemon::{House, has_fuse};
use crate::mounts::is_root;
use crate::watch::{eventually, until};
use crate::{has, succeeds, with_many_mounts};

/// Number of mounted file systems when a daemon is killed.
const FILESYSTEMS: usize = 24;
/// Readers of a pool in a mount, and their limit.
const READERS: u64 = 30;
const READ_LIMIT: Duration = Duration::from_secs(100);
/// Limit for the end of a killed process.
const SOON: Duration = Duration::from_secs(10);

/// Number of daemons that are killed while they mount: 6, or 60 with `CENOTE_TEST_ALL`.
fn kills() -> u64 {
    if std::env::var_os("CENOTE_TEST_ALL").is_some() { 60 } else { 6 }
}

/// Returns the process that holds the lock of the state directory, if any.
fn pid(house: &House) -> Option<i32> {
    let text = std::fs::read_to_string(house.path("state/daemon.lock")).ok()?;
    let pid = text.trim().parse().ok()?;
    Path::new(&format!("/proc/{pid}")).exists().then_some(pid)
}

/// Kills a daemon at any stage, and waits until all of it is gone.
fn kill(house: &House) {
    let Some(pid) = pid(house) else { return };
    let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
    let begin = Instant::now();
    while Path::new(&format!("/proc/{pid}")).exists() {
        assert!(begin.elapsed() < SOON, "process {pid} does not end: {}", stacks(pid));
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Returns the kernel stacks of the threads of a process.
fn stacks(pid: i32) -> String {
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return String::new() };
    let stack = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stack")).ok();
    tasks.filter_map(|task| stack(task.ok()?)).collect::<Vec<_>>().join("\n")
}

/// Returns a number below `end` from a seed, spread evenly enough.
fn spread(seed: u64, end: u64) -> u64 {
    (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) % end
}

#[test]
fn a_daemon_killed_while_it_mounts_is_gone_and_the_next_mounts_everything() {
    if !has_fuse() {
        return;
    }
    let house = House::new("deaths");
    house.create(&house.text("mnt"));
    house.run("zfs create t/a");
    house.run("zfs create t/a/b");
    for number in 0..FILESYSTEMS {
        let parent = ["t", "t/a", "t/a/b"][number % 3];
        house.run(&format!("zfs create {parent}/f{number}"));
    }
    house.kill();
    for seed in 0..kills() {
        let mut starting = house.command(&["daemon", "start"]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(20 + spread(seed, 600)));
        kill(&house);
        // It may have been killed before it answered.
        let _ = starting.wait();
        kill(&house);
    }
    let begin = Instant::now();
    let mounted = house.run("zfs list -H -o name,mounted");
    assert!(begin.elapsed() < Duration::from_secs(30), "took {:?}", begin.elapsed());
    assert_eq!(mounted.lines().filter(|line| line.ends_with("yes")).count(), FILESYSTEMS + 3);
    assert!(mounted.lines().all(|line| line.ends_with("yes")), "{mounted}");
    std::fs::write(house.path("mnt/a/b/f2/file"), b"here").unwrap();
    house.run("zpool export t");
    let left = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!left.contains(&house.text("mnt")), "{left}");
}

/// Returns a megabyte that does not compress.
fn noise(seed: u64) -> Vec<u8> {
    let mut bytes = vec![0; 1 << 20];
    Rng::seeded(seed).fill(&mut bytes);
    bytes
}

/// Pools on files in mounts of pools: reads of one wait for reads of the other, as many as there are.
#[test]
fn pools_in_mounts_of_pools_are_read_by_many() {
    if !has_fuse() {
        return;
    }
    let house = House::new("nested");
    house.create(&house.text("mnt"));
    let (outer, inner) = (house.text("outer"), house.text("inner"));
    for (pool, folder, at, mib) in
        [("u", house.text("mnt"), &outer, 128), ("v", outer.clone(), &inner, 80)]
    {
        let device = format!("{folder}/device");
        std::fs::File::create(&device).unwrap().set_len(mib << 20).unwrap();
        house.run(&format!("zpool create -O primarycache=metadata -m {at} {pool} {device}"));
    }
    let path = |number: u64| format!("{inner}/f{number}");
    for number in 0..READERS {
        std::fs::write(path(number), noise(number)).unwrap();
    }
    // Nothing stays in the kernel's memory.
    house.run("zpool export v");
    house.run("zpool export u");
    house.run(&format!("zpool import -d {} u", house.text("mnt")));
    house.run(&format!("zpool import -d {outer} v"));
    let read = |number| {
        let limit = format!("{}", READ_LIMIT.as_secs());
        let mut command = Command::new("timeout");
        command.args([&limit, "cat", &path(number)]).stdout(Stdio::piped());
        std::thread::spawn(move || command.output().unwrap())
    };
    let readers: Vec<_> = (0..READERS).map(read).collect();
    for (number, reader) in readers.into_iter().enumerate() {
        let found = reader.join().unwrap();
        assert!(found.status.success() && found.stdout == noise(number as u64), "{number}");
    }
    for pool in ["v", "u", "t"] {
        house.run(&format!("zpool export {pool}"));
    }
}

/// A pool on a file in another pool's mount makes the daemon its own client: its threads wait for
/// its own mount whenever they access that device.
#[test]
fn a_daemon_that_waits_for_its_own_mount_ends_when_it_is_killed() {
    if !has_fuse() {
        return;
    }
    let house = House::new("own-client");
    house.create(&house.text("mnt"));
    let (device, at) = (house.text("mnt/device"), house.text("inner"));
    std::fs::File::create(&device).unwrap().set_len(128 << 20).unwrap();
    house.run(&format!("zpool create -m {at} u {device}"));
    for seed in 0..kills().min(12) {
        let script = "i=0; while echo $i > $0/f$((i % 50)) && sync $0/f$((i % 50)); do \
                      i=$((i+1)); done 2>/dev/null";
        let kept = house.path("inner").join(format!("kept{seed}"));
        let mut file = std::fs::File::create(&kept).unwrap();
        file.write_all(b"kept").and_then(|()| file.sync_all()).unwrap();
        drop(file);
        let mut writer = Command::new("sh").args(["-c", script, &at]).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(100 + spread(seed, 300)));
        kill(&house);
        writer.wait().unwrap();
        assert_eq!(house.run("zpool list -H -o name"), "t\nu\n");
        assert_eq!(std::fs::read(&kept).unwrap(), b"kept");
    }
    house.run("zpool export u");
    house.run("zpool export t");
}

/// A file without a name is gone after a crash, with its space; one that was given a name is there,
/// with all that `fsync` has written.
#[test]
fn unnamed_files_stay_only_with_a_name() {
    use rustix::fs::{AtFlags, CWD, Mode, OFlags, linkat, open};
    use std::os::fd::AsRawFd;
    if !has_fuse() {
        return;
    }
    let house = House::new("deaths-unnamed");
    house.create(&house.text("at"));
    let at = house.path("at");
    let unnamed = |bytes: usize| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        let file = fs::File::from(open(&at, flags, Mode::from_bits_retain(0o644)).unwrap());
        std::io::Write::write_all(&mut &file, &vec![7; bytes]).unwrap();
        file.sync_all().unwrap();
        file
    };
    let give = |file: &fs::File, name: &str| {
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        linkat(CWD, path, CWD, at.join(name), AtFlags::SYMLINK_FOLLOW).unwrap();
    };
    let kept = unnamed(300_000);
    give(&kept, "kept");
    std::os::unix::fs::FileExt::write_all_at(&kept, b"new", 0).unwrap();
    kept.sync_all().unwrap();
    // Named and removed again: it has no name either.
    let removed = unnamed(1000);
    give(&removed, "removed");
    fs::remove_file(at.join("removed")).unwrap();
    let lost: Vec<_> = (0..50).map(|_| unnamed(2 << 20)).collect();
    house.kill();
    drop((kept, removed, lost));
    assert_eq!(house.run("zpool list -H -o name"), "t\n");
    assert_eq!(fs::read_dir(&at).unwrap().count(), 1);
    let bytes = fs::read(at.join("kept")).unwrap();
    assert!(bytes.len() == 300_000 && bytes.starts_with(b"new\x07") && bytes.ends_with(b"\x07"));
    house.run("zpool sync t");
    let used: u64 = house.run("zfs get -Hp -o value used t").trim().parse().unwrap();
    assert!(used < 10 << 20, "{used} bytes are in use");
    house.run("zpool export t");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &house.text("pool"), "t"]));
}

/// Number of concurrently mounted file systems: 60, or 2 000 with `CENOTE_TEST_ALL`.
fn many() -> usize {
    if std::env::var_os("CENOTE_TEST_ALL").is_some() { 2000 } else { 60 }
}

/// Returns a number from `/proc/PID/status`.
fn status(pid: i32, name: &str) -> usize {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_mount_costs_two_descriptors_and_little_memory_and_no_thread() {
    /// KiB of memory that a mount may cost.
    const MOUNT_KIB: usize = 200;
    if !has_fuse() {
        return;
    }
    let _many = (many() > 500).then(with_many_mounts);
    let house = House::new("many");
    house.create(&house.text("mnt"));
    for number in 0..many() {
        house.run(&format!("zfs create -o canmount=noauto t/f{number}"));
    }
    // Memory used by creation does not count for mounts.
    house.run("daemon stop");
    house.run("zfs list -H -o name t");
    let pid = pid(&house).unwrap();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    let mount = |number: usize| {
        house.run(&format!("zfs mount t/f{number}"));
        std::fs::write(house.path(&format!("mnt/f{number}/file")), b"x").unwrap();
    };
    (0..10).for_each(mount);
    let before = (status(pid, "Threads:"), descriptors(), status(pid, "VmRSS:"));
    (10..many()).for_each(mount);
    let after = (status(pid, "Threads:"), descriptors(), status(pid, "VmRSS:"));
    let count = many() - 10;
    println!("{count} mounts: {before:?} -> {after:?}");
    // Threads that run commands and wait for the system end when they have been idle for a while.
    let is_as_before = || status(pid, "Threads:") < before.0 + 12;
    assert!(eventually(is_as_before), "threads: {before:?} -> {after:?}");
    assert!(after.1 < before.1 + 2 * count + 20, "descriptors: {before:?} -> {after:?}");
    let cost = after.2.saturating_sub(before.2) / count;
    assert!(cost < MOUNT_KIB, "{cost} KiB a mount: {before:?} -> {after:?}");
    house.run("zpool export t");
}

/// The guard may be killed, by a system that is short of memory, say: the next one knows all mounts.
#[test]
fn a_guard_that_was_killed_is_replaced() {
    // Others may be unable to open the control files.
    if !has_fuse() || !is_root() {
        return;
    }
    let house = House::new("guard-killed");
    house.create(&house.text("mnt"));
    house.run("zfs create t/a");
    let server = pid(&house).unwrap();
    let first = guard(server).unwrap();
    until("the guard has two control files", || control_files(first) == 2);
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    house.run("zfs create t/b");
    let next = guard(server).unwrap();
    assert_ne!(next, first);
    until("the next guard has three control files", || control_files(next) == 3);
    house.run("zpool export t");
}

/// Returns the guard of a daemon.
fn guard(server: i32) -> Option<i32> {
    let wanted = format!("cenote\0fuse-guard\0{server}\0");
    let processes = std::fs::read_dir("/proc").unwrap();
    let found = processes.filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    found.into_iter().find(|pid: &i32| {
        std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line == wanted.as_bytes())
    })
}

/// Returns how many control files of connections a process has open.
fn control_files(pid: i32) -> usize {
    let Ok(open) = std::fs::read_dir(format!("/proc/{pid}/fd")) else { return 0 };
    let targets = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.ends_with("abort")).count()
}

/// A daemon without enough threads or memory reports that or ends; its mounts and their users do
/// not hang.
#[test]
fn daemon_without_threads_or_memory_blocks_no_user() {
    if !has_fuse() || !has("prlimit") {
        return;
    }
    let house = House::new("limits");
    house.create(&house.text("mnt"));
    for number in 0..4 {
        house.run(&format!("zfs create t/f{number}"));
    }
    house.run("daemon stop");
    for limit in ["--as=400000000", "--as=700000000", "--as=1500000000", "--nofile=40"] {
        let mut command = Command::new("prlimit");
        command.args([limit, env!("CARGO_BIN_EXE_cenote"), "daemon", "start"]);
        command.env("CENOTE_STATE_DIR", house.path("state")).env_remove("CENOTE_SOCKET");
        let begin = Instant::now();
        let mut starting = command.stdin(std::process::Stdio::null()).spawn().unwrap();
        while starting.try_wait().unwrap().is_none() {
            assert!(begin.elapsed() < Duration::from_secs(90), "{limit}");
            std::thread::sleep(Duration::from_millis(50));
        }
        std::thread::sleep(Duration::from_millis(500));
        // Every mount answers, or reports that its server is gone.
        let mut look = Command::new("timeout");
        look.args(["20", "ls", "-R"]).arg(house.path("mnt"));
        let looked = look.output().unwrap();
        assert_ne!(looked.status.code(), Some(124), "{limit}: a mount hangs");
        kill(&house);
    }
    let mounted = house.run("zfs list -H -o mounted");
    assert_eq!(mounted, "yes\n".repeat(5));
    house.run("zpool export t");
}

#[test]
fn state_directory_is_not_hidden_by_mounts() {
    if !has_fuse() {
        return;
    }
    let house = House::new("own-state");
    house.create(&house.text("mnt"));
    house.run("zfs create -o canmount=noauto t/a");
    house.run(&format!("zfs set mountpoint={} t/a", house.text("state")));
    let (status, said) = house.fails("zfs mount t/a");
    assert_eq!(status, 1);
    assert!(said.contains("cannot mount 't/a': the daemon keeps its state in it"), "{said}");
    house.run("zpool export t");
}
