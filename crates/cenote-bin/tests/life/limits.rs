//! Daemons with few descriptors, few tasks, or little memory: operations fail, and nothing hangs or
//! is lost.

use std::path::PathBuf;
use std::process::Command;

use cenote_testkit::faultfs::has_fuse;
use cenote_testkit::rng::wants_all;
use cenote_testkit::skip;
use rustix::process::Signal;

use crate::home::Home;
use crate::stages::check_t;

/// Number of concurrent commands.
const AT_ONCE: usize = 24;

/// Writes and syncs a file, as another process with a time limit. Returns whether that succeeded.
pub(crate) fn keeps(home: &Home, name: &str) -> bool {
    let script = "echo kept > \"$0\" && sync \"$0\"";
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "30", "sh", "-c", script]).arg(home.path(name));
    let output = command.output().unwrap();
    assert_ne!(output.status.code(), Some(137), "{name}: a write hangs\n{}", home.log());
    output.status.success()
}

/// Creates and mounts file systems under a limit until that fails or there are `count`, kills the
/// daemon, and checks that one without a limit has everything that was acknowledged.
fn work_under(home: &Home, limit: &[&str], count: usize) {
    home.signal(Signal::TERM);
    assert!(home.wait_for_end().success());
    *home.limit.lock().unwrap() = limit.iter().map(|&word| word.to_owned()).collect();
    home.start();
    home.wait_until_ready();
    let (mut made, mut kept) = (Vec::new(), Vec::new());
    for number in 0..count {
        let (status, said) = home.ends(&format!("zfs create t/n{number}"));
        if status.success() {
            made.push(format!("t/n{number}"));
            let name = format!("at/n{number}/kept");
            if keeps(home, &name) {
                kept.push(name);
            }
        } else {
            println!("{limit:?}: {number}: {said}");
            break;
        }
    }
    let running: Vec<_> = (0..AT_ONCE).map(|_| home.begin("zfs list -t all")).collect();
    let succeeded = running.into_iter().map(|one| one.end(home).0.success());
    let succeeded = succeeded.filter(|is_done| *is_done).count();
    println!("{limit:?}: {} made, {} kept, {succeeded} commands", made.len(), kept.len());
    assert!(!kept.is_empty() && succeeded > 0, "{limit:?}\n{}", home.log());
    let remains = home.remains();
    home.signal(Signal::KILL);
    home.wait_for_end();
    home.limit.lock().unwrap().clear();
    home.revive(&remains);
    let (mounted, not) = home.mounted();
    assert!(not.is_empty(), "{not:?}\n{}", home.log());
    assert!(made.iter().all(|name| mounted.contains(name)), "{made:?} {mounted:?}");
    for name in kept {
        assert_eq!(std::fs::read(home.path(&name)).unwrap(), b"kept\n", "{name}");
    }
    for name in mounted.iter().filter(|name| name.starts_with("t/n")) {
        home.run(&format!("zfs destroy {name}"));
    }
}

#[test]
fn a_daemon_with_few_descriptors_or_little_memory_loses_nothing() {
    if !has_fuse() || !crate::has("prlimit") {
        return;
    }
    let home = Home::with_pool("limits");
    std::fs::write(home.path(crate::stages::FILE), b"kept").unwrap();
    let (descriptors, count) = if wants_all() { (256, 300) } else { (72, 40) };
    let descriptors = format!("--nofile={descriptors}:{descriptors}");
    work_under(&home, &["prlimit", &descriptors], count);
    work_under(&home, &["prlimit", "--as=1500000000"], if wants_all() { 40 } else { 6 });
    check_t(&home);
    home.judge(&["t"]);
}

/// A control group with few tasks, removed on drop.
struct FewTasks(PathBuf);

impl FewTasks {
    fn new(count: usize) -> Option<Self> {
        let name = format!("cenote-life-{}", std::process::id());
        for root in ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"] {
            let group = PathBuf::from(root).join(&name);
            if !std::path::Path::new(root).join("cgroup.procs").exists() {
                continue;
            }
            let made = std::fs::create_dir(&group)
                .and_then(|()| std::fs::write(group.join("pids.max"), count.to_string()));
            if made.is_ok() {
                return Some(Self(group));
            }
            let _ = std::fs::remove_dir(&group);
        }
        skip::skip(&skip::current_test(), "no control group for tasks can be made");
        None
    }
}

impl Drop for FewTasks {
    fn drop(&mut self) {
        // The last of its processes may just be ending.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}

#[test]
fn a_daemon_with_few_tasks_loses_nothing() {
    if !has_fuse() {
        return;
    }
    let Some(group) = FewTasks::new(120) else { return };
    let home = Home::with_pool("tasks");
    std::fs::write(home.path(crate::stages::FILE), b"kept").unwrap();
    let join = format!("echo $$ > {}/cgroup.procs && exec \"$0\" \"$@\"", group.0.display());
    for count in if wants_all() { vec![120, 60, 40] } else { vec![120, 40] } {
        std::fs::write(group.0.join("pids.max"), count.to_string()).unwrap();
        work_under(&home, &["sh", "-c", &join], if wants_all() { 40 } else { 6 });
    }
    check_t(&home);
    home.judge(&["t"]);
}
