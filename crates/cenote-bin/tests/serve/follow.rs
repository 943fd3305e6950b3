//! Mounts after a command: the daemon reads only the datasets that the command changed.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cenote_rt::monotonic;
use cenote_rt::seeded::Bug;
use cenote_testkit::bugs;

use crate::daemon::{House, has_fuse};
use crate::has;

/// Number of file systems that do not change.
const OTHERS: usize = 30;

/// A daemon that logs the number of datasets it reads, with a pool `t`.
fn house(stem: &str) -> House {
    let house = House::new(stem);
    let started = house.command(&["daemon", "start"]).env("CENOTE_LOG", "debug").status();
    assert!(started.unwrap().success());
    house.create(&house.text("mnt"));
    house
}

/// Runs a command. Returns how many datasets the daemon read after it, for its mounts.
fn datasets_read(house: &House, line: &str) -> usize {
    let looks = || {
        let log = std::fs::read_to_string(house.path("state/daemon.log")).unwrap();
        let looks = log.lines().filter(|line| line.contains("event=\"mounts followed\""));
        let count = |line: &str| -> usize {
            let field = line.split(' ').find_map(|field| field.strip_prefix("datasets="));
            field.unwrap().parse().unwrap()
        };
        looks.map(count).collect::<Vec<_>>()
    };
    let before = looks().len();
    house.run(line);
    looks()[before..].iter().sum()
}

#[test]
fn commands_read_only_the_datasets_that_they_change() {
    if !has_fuse() {
        return;
    }
    let house = house("follow-count");
    house.run("zfs create t/a");
    for number in 0..OTHERS {
        assert_eq!(datasets_read(&house, &format!("zfs create t/a/f{number}")), 1);
    }
    house.run("zfs create t/b");
    house.run("zfs snapshot t/a/f0@s");
    let at = house.text("elsewhere");
    for (line, wanted) in [
        ("zfs set atime=off t/a/f3".to_owned(), 1),
        ("zfs inherit atime t/a/f3".to_owned(), 1),
        (format!("zfs set mountpoint={at} t/a/f4"), 1),
        ("zfs set test:colour=blue t".to_owned(), 0),
        ("zfs snapshot -r t@all".to_owned(), 0),
        ("zfs hold tag t@all".to_owned(), 0),
        ("zfs bookmark t@all t#all".to_owned(), 0),
        ("zfs release tag t@all".to_owned(), 0),
        ("zfs destroy -r t@all".to_owned(), 0),
        ("zfs clone t/a/f0@s t/clone".to_owned(), 1),
        ("zfs promote t/clone".to_owned(), 0),
        ("zfs rollback t/clone@s".to_owned(), 1),
        ("zfs rename t/a/f5 t/b/f5".to_owned(), 1),
        ("zfs destroy t/a/f6".to_owned(), 0),
        ("zfs allow -e mount t/a".to_owned(), 0),
        ("zpool set comment=here t".to_owned(), 0),
        ("zpool sync t".to_owned(), 0),
        // These change inherited properties: `t/a` and its remaining descendants are read.
        ("zfs set devices=off t/a".to_owned(), OTHERS - 1),
        ("zfs rename t/a t/c".to_owned(), OTHERS - 1),
    ] {
        assert_eq!(datasets_read(&house, &line), wanted, "{line}");
    }
    let mounted = house.run("zfs list -H -o mounted,mountpoint,name");
    assert_eq!(mounted.lines().count(), OTHERS + 4 - 1);
    for line in mounted.lines() {
        let [is_mounted, place, name] = line.split('\t').collect::<Vec<_>>()[..] else {
            panic!("{line}")
        };
        let wanted = match name {
            "t" => house.text("mnt"),
            "t/c/f4" => at.clone(),
            _ => house.text(&name.replacen("t/", "mnt/", 1)),
        };
        assert_eq!((is_mounted, place), ("yes", wanted.as_str()), "{name}");
        let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        assert!(table.contains(&format!(" {wanted} ")), "{name} is not at {wanted}");
    }
    house.run("zpool export t");
}

/// Many clients change datasets concurrently: one command may process the changes of others.
#[test]
fn changes_of_commands_at_the_same_time_are_all_followed() {
    const CLIENTS: usize = 6;
    const EACH: usize = 5;
    if !has_fuse() {
        return;
    }
    let house = house("follow-many");
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            let house = &house;
            scope.spawn(move || {
                for number in 0..EACH {
                    let name = format!("t/c{client}n{number}");
                    house.run(&format!("zfs create {name}"));
                    match number % 3 {
                        0 => drop(house.run(&format!("zfs rename {name} {name}r"))),
                        1 => drop(house.run(&format!("zfs destroy {name}"))),
                        _ => {
                            let at = house.text(&format!("at{client}-{number}"));
                            house.run(&format!("zfs set mountpoint={at} {name}"));
                        }
                    }
                }
            });
        }
    });
    let mounts = house.run("zfs mount");
    let listed = house.run("zfs list -H -o name,mountpoint");
    assert_eq!(listed.lines().count(), 1 + CLIENTS * 3);
    let mut wanted: Vec<String> = listed
        .lines()
        .map(|line| {
            let (name, place) = line.split_once('\t').unwrap();
            format!("{name:<30}  {place}")
        })
        .collect();
    let mut found: Vec<String> = mounts.lines().map(str::to_owned).collect();
    wanted.sort();
    found.sort();
    assert_eq!(found, wanted);
    house.run("zpool export t");
    let left = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert!(!left.contains(&house.text("mnt")), "{left}");
}

/// If the daemon is not told of an operation, a file system stays unmounted.
#[test]
fn seeded_bugs_of_changes_are_found() {
    if !has_fuse() {
        return;
    }
    bugs::check_found(
        &Bug::OF_CHANGES,
        "panicked at",
        |_| "follow::commands_read_only_the_datasets_that_they_change",
    );
}

/// A process with copies of all mounts, like a container: unmounting does not end the connections.
/// Waiting for each of them would take seconds each.
#[test]
fn unmount_with_copies_in_another_namespace_is_fast() {
    const MOUNTS: usize = 8;
    /// Half of the time that the mounts would take one after the other.
    const LONG: Duration = Duration::from_secs(20);
    if !has_fuse() || !rustix::process::geteuid().is_root() || !has("unshare") {
        return;
    }
    let house = house("follow-copies");
    for number in 0..MOUNTS {
        house.run(&format!("zfs create t/f{number}"));
    }
    // Copies of the mounts of other daemons, which may run tests now, are unmounted immediately.
    let script = "grep ' - fuse' /proc/self/mountinfo | while read -r _ _ _ _ at _; do
        case $at in \"$0\"/*) ;; *) umount -l \"$at\" 2>/dev/null ;; esac
        done; grep -c ' - fuse' /proc/self/mountinfo; exec sleep 600";
    let mounts = house.path("mnt");
    let own = mounts.parent().unwrap();
    let copies = || {
        let mut keeper = Command::new("unshare");
        keeper.args(["-m", "--propagation", "private", "sh", "-c", script]).arg(own);
        let mut keeper = keeper.stdout(Stdio::piped()).spawn().unwrap();
        let mut copied = String::new();
        BufReader::new(keeper.stdout.as_mut().unwrap()).read_line(&mut copied).unwrap();
        assert_eq!(copied.trim(), (MOUNTS + 1).to_string());
        Keeper(keeper)
    };
    let at = house.text("moved");
    for line in ["daemon stop", &format!("zfs set mountpoint={at} t"), "zpool export t"] {
        let keeper = copies();
        let begin = monotonic();
        house.run(line);
        let took = monotonic().saturating_sub(begin);
        assert!(took < LONG, "{line} took {took:?}");
        drop(keeper);
        if line != "zpool export t" {
            let mounted = house.run("zfs list -H -o mounted");
            assert_eq!(mounted, "yes\n".repeat(MOUNTS + 1));
        }
    }
}

/// A process that is killed at the end.
struct Keeper(Child);

impl Drop for Keeper {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}
