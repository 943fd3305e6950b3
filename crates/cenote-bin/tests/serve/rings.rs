//! Mounts whose requests come through io_uring. Root can let the kernel offer it; other users cannot.

#![expect(clippy::disallowed_methods, reason = "processes are watched in real time")]

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use cenote_rt::Rng;
use cenote_testkit::skip;
use rustix::fs::XattrFlags;

use crate::daemon::{House, has_fuse};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// Limit for what does not depend on the speed of the machine.
const SOON: Duration = Duration::from_secs(30);

static OFFERS: Mutex<()> = Mutex::new(());

/// The kernel's offer, which is as before when this is dropped.
struct Offer {
    before: String,
    _alone: MutexGuard<'static, ()>,
}

impl Offer {
    fn make() -> Option<Self> {
        if !has_fuse() {
            return None;
        }
        let alone = OFFERS.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let before = fs::read_to_string(PARAMETER).unwrap_or_default();
        // 2: for nobody.
        let permitted = fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
        let is_forbidden = permitted.is_ok_and(|value| value.trim() == "2");
        if is_forbidden || fs::write(PARAMETER, "Y").is_err() {
            skip::skip(&skip::current_test(), "no FUSE over io_uring, or not root");
            return None;
        }
        Some(Self { before, _alone: alone })
    }
}

impl Drop for Offer {
    fn drop(&mut self) {
        let _ = fs::write(PARAMETER, self.before.trim());
    }
}

/// Returns the number of mounts whose requests come through io_uring, and of the others.
fn transports(house: &House) -> (usize, usize) {
    let report = house.run("daemon status");
    let count = |end: &str| {
        report.lines().filter(|line| line.starts_with("mount ") && line.ends_with(end)).count()
    };
    (count("  io_uring"), count("  /dev/fuse"))
}

/// A house with a pool, whose daemon runs.
fn house(stem: &str) -> (House, PathBuf) {
    let house = House::new(stem);
    let at = house.path("at");
    house.run("daemon start");
    (house, at)
}

fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    rng.fill(&mut bytes);
    bytes
}

#[test]
fn files_are_served_through_io_uring() {
    let Some(offer) = Offer::make() else { return };
    let (house, at) = house("rings-files");
    // Memory is given back whenever a thread waits.
    house.run("tunable set cenote_mount_ring_idle_bytes=0");
    house.create(at.to_str().unwrap());
    assert_eq!(transports(&house), (1, 0), "{}", house.run("daemon status"));

    let mut rng = Rng::seeded(7);
    // Requests of all lengths, up to several of the longest.
    for len in [0, 1, 100, 4095, 4096, 4097, 65_536, 262_144, 262_145, 5 << 20] {
        let (path, wanted) = (at.join(format!("f{len}")), bytes(&mut rng, len));
        fs::write(&path, &wanted).unwrap();
        assert!(fs::read(&path).unwrap() == wanted, "{len} bytes");
    }
    // Names and values that do not fit into the arguments of a request.
    let name = "n".repeat(255);
    for len in [1, 4000, 5000, 60_000] {
        let value = bytes(&mut rng, len);
        let path = at.join("f100");
        rustix::fs::setxattr(&path, format!("user.{len}"), &value, XattrFlags::empty()).unwrap();
        let mut found = vec![0; len];
        let count = rustix::fs::getxattr(&path, format!("user.{len}"), &mut found[..]).unwrap();
        assert!(count == len && found == value, "{len} bytes");
    }
    std::os::unix::fs::symlink("t".repeat(4000), at.join(&name)).unwrap();
    assert_eq!(fs::read_link(at.join(&name)).unwrap().as_os_str().len(), 4000);
    let error = fs::read(at.join("missing")).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::NotFound);
    fs::create_dir(at.join("many")).unwrap();
    for number in 0..1500 {
        fs::write(at.join("many").join(format!("{name:.200}{number}")), b"x").unwrap();
    }
    assert_eq!(fs::read_dir(at.join("many")).unwrap().count(), 1500);
    fs::remove_dir_all(at.join("many")).unwrap();

    // Many programs at a time, on all processors.
    std::thread::scope(|scope| {
        for thread in 0..24_u64 {
            let at = &at;
            scope.spawn(move || {
                let mut rng = Rng::seeded(thread);
                let path = at.join(format!("own{thread}"));
                let file = fs::File::create_new(&path).unwrap();
                let mut wanted = vec![0; 300_000];
                file.set_len(wanted.len() as u64).unwrap();
                for round in 0..40 {
                    let len = rng.below(70_000) as usize;
                    let start = rng.below((wanted.len() - len) as u64) as usize;
                    let new = bytes(&mut rng, len);
                    wanted[start..start + len].copy_from_slice(&new);
                    file.write_all_at(&new, start as u64).unwrap();
                    if round % 8 == 0 {
                        file.sync_all().unwrap();
                    }
                }
                assert!(fs::read(&path).unwrap() == wanted, "thread {thread}");
            });
        }
    });
    // What comes another way: interrupted and forgotten requests.
    house.run("zfs snapshot t@1");
    assert!(fs::read(at.join(".zfs/snapshot/1/f100")).unwrap().len() == 100);
    house.run("zfs rollback t@1");
    assert_eq!(fs::read(at.join("f4097")).unwrap().len(), 4097);

    // The transport is chosen when a file system is mounted.
    house.run("zfs unmount t");
    house.run("tunable set cenote_mount_ring_slots=0");
    house.run("zfs mount t");
    assert_eq!(transports(&house), (0, 1));
    assert_eq!(fs::read(at.join("f4097")).unwrap().len(), 4097);
    house.run("zfs unmount t");
    house.run("tunable set cenote_mount_ring_slots=8192");
    house.run("zfs mount t");
    assert_eq!(transports(&house), (1, 0));
    house.run("zfs unmount t");
    fs::write(PARAMETER, "N").unwrap();
    house.run("zfs mount t");
    assert_eq!(transports(&house), (0, 1));
    drop(offer);
    house.run("zpool export t");
    house.run(&format!("verify --leaks -d {} t", house.text("pool")));
}

/// Programs do not wait for a daemon that was killed, and the next one serves the same files.
#[test]
fn a_killed_daemon_leaves_nobody_waiting() {
    let Some(_offer) = Offer::make() else { return };
    let (house, at) = house("rings-killed");
    house.create(at.to_str().unwrap());
    for round in 0..3 {
        assert_eq!(transports(&house), (1, 0));
        fs::write(at.join("kept"), format!("{round}")).unwrap();
        fs::File::open(at.join("kept")).unwrap().sync_all().unwrap();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..12)
                .map(|number| {
                    let path = at.join(format!("w{number}"));
                    scope.spawn(move || {
                        loop {
                            let written = fs::File::create(&path).and_then(|file| {
                                file.write_all_at(&vec![1; 20_000], 0)?;
                                file.sync_all()
                            });
                            if let Err(error) = written {
                                return error;
                            }
                        }
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(300));
            let begin = Instant::now();
            house.kill();
            for worker in workers {
                let error = worker.join().unwrap();
                assert!(begin.elapsed() < SOON, "{error}");
            }
        });
        house.run("daemon start");
        assert_eq!(fs::read_to_string(at.join("kept")).unwrap(), format!("{round}"));
    }
    house.run("zpool export t");
    house.run(&format!("verify --leaks -d {} t", house.text("pool")));
}

/// Slots are bounded: later mounts work without a ring, and slots are used again.
#[test]
fn mounts_share_the_slots() {
    let Some(_offer) = Offer::make() else { return };
    let (house, at) = house("rings-shared");
    // Four for each processor and mount: enough for four mounts.
    house.run("tunable set cenote_mount_ring_slots=16");
    house.create(at.to_str().unwrap());
    for number in 0..6 {
        house.run(&format!("zfs create t/f{number}"));
    }
    let (through_rings, others) = transports(&house);
    assert_eq!(through_rings + others, 7);
    // Fewer if there are processors that are not online.
    assert!((1..=4).contains(&through_rings), "{through_rings}");
    let files: Vec<PathBuf> = (0..6).map(|number| at.join(format!("f{number}/file"))).collect();
    for path in &files {
        fs::write(path, path.to_str().unwrap()).unwrap();
    }
    for path in &files {
        assert_eq!(fs::read_to_string(path).unwrap(), path.to_str().unwrap());
    }
    for number in 0..6 {
        house.run(&format!("zfs unmount t/f{number}"));
    }
    assert_eq!(transports(&house), (1, 0));
    // The kernel returns the slots a moment after the file system is gone.
    let begin = Instant::now();
    loop {
        house.run("zfs mount t/f5");
        if transports(&house) == (2, 0) {
            break;
        }
        assert!(begin.elapsed() < SOON, "slots are not used again");
        house.run("zfs unmount t/f5");
    }
    // More programs than slots.
    std::thread::scope(|scope| {
        for thread in 0..64 {
            let path = at.join(format!("f5/t{thread}"));
            scope.spawn(move || {
                for round in 0..5 {
                    fs::write(&path, vec![round; 9000 + thread]).unwrap();
                    fs::File::open(&path).unwrap().sync_all().unwrap();
                }
                assert_eq!(fs::read(&path).unwrap(), vec![4; 9000 + thread]);
            });
        }
    });
    house.run("zpool export t");
}
