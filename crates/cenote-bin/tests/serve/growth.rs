//! Pools in use lose their log device, become larger and are split, while a program writes.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_rt::Rng;

use crate::daemon::{House, has_fuse};
use crate::succeeds;
use crate::watch::until;

const BYTES: usize = 4 << 20;

fn judge(house: &House, folder: &str, pool: &str) {
    succeeds(&mut house.command(&["verify", "--leaks", "-d", folder, pool]));
    if let Some(zdb) = cenote_oracle::zdb() {
        let said = zdb.pool(pool, Path::new(folder), &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
}

/// Writes a file with `fsync` over and over; not for ever, in case that the test fails.
fn keep_writing(path: &Path, is_done: &AtomicBool) {
    for round in 0..20_000_u32 {
        if is_done.load(Ordering::Relaxed) {
            return;
        }
        let mut file = File::create(path).unwrap();
        file.write_all(&vec![round as u8; 40_000]).unwrap();
        file.sync_all().unwrap();
    }
}

#[test]
fn pool_in_use_changes_its_shape() {
    if !has_fuse() {
        return;
    }
    let house = House::new("grows-and-splits");
    let folder = house.text("pool");
    std::fs::create_dir_all(&folder).unwrap();
    let resize = |name: &str, mib: u64| {
        let path = house.path(&format!("pool/{name}"));
        let file = File::options().create(true).truncate(false).write(true).open(path).unwrap();
        file.set_len(mib << 20).unwrap();
        house.text(&format!("pool/{name}"))
    };
    let [a, b, log] = ["a", "b", "log"].map(|name| resize(name, 128));
    let at = house.text("at");
    house.run(&format!("zpool create -m {at} t mirror {a} {b} log {log}"));
    let mut bytes = vec![0; BYTES];
    Rng::seeded(3).fill(&mut bytes);
    std::fs::write(house.path("at/file"), &bytes).unwrap();
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| keep_writing(&house.path("at/busy"), &is_done));
        house.run(&format!("zpool remove t {log}"));
        assert!(!house.run("zpool status t").contains("logs"));
        assert!(house.run("zpool events -H").contains("sysevent.fs.zfs.vdev_remove_dev"));
        resize("a", 256);
        resize("b", 256);
        assert_eq!(house.run("zpool get -H -o value expandsize t"), "-\n");
        house.run("zpool reopen t");
        assert_eq!(house.run("zpool get -H -o value expandsize t"), "128M\n");
        let list = house.run("zpool list -vH t");
        let row = list.lines().find(|line| line.contains("/pool/b")).unwrap();
        assert!(row.contains("\t128M\t"), "{list}");
        let size = house.run("zpool get -Hp -o value size t");
        house.run(&format!("zpool online -e t {a}"));
        // The other side does not count yet.
        assert_eq!(house.run("zpool get -Hp -o value size t"), size);
        house.run(&format!("zpool online -e t {b}"));
        let now: u64 = house.run("zpool get -Hp -o value size t").trim().parse().unwrap();
        assert_eq!(now, size.trim().parse::<u64>().unwrap() + (128 << 20));
        assert_eq!(house.run("zpool get -H -o value expandsize t"), "-\n");
        let alt = house.text("alt");
        house.run(&format!("zpool split -R {alt} t u"));
        assert_eq!(house.run("zpool list -H -o name,health"), "t\tONLINE\nu\tONLINE\n");
        is_done.store(true, Ordering::Relaxed);
    });
    assert_eq!(std::fs::read(house.path("at/file")).unwrap(), bytes);
    let half = house.path("alt").join(at.trim_start_matches('/')).join("file");
    assert_eq!(std::fs::read(half).unwrap(), bytes);
    house.run("zpool export u");
    let kept = std::fs::read(house.path("at/busy")).unwrap();
    house.run("zpool export t");
    house.run(&format!("zpool import -d {folder} t"));
    assert_eq!(std::fs::read(house.path("at/busy")).unwrap(), kept);
    // The disk of the other pool comes back, after a device vanished.
    house.run(&format!("zpool attach -f -w t {a} {b}"));
    std::fs::rename(&a, house.path("pool/gone")).unwrap();
    house.run("zpool reopen t");
    let status = house.run("zpool status t");
    assert!(status.contains("DEGRADED") && status.contains("UNAVAIL"), "{status}");
    std::fs::rename(house.path("pool/gone"), &a).unwrap();
    house.run("zpool reopen t");
    house.run("zpool wait -t resilver t");
    let status = house.run("zpool status t");
    assert!(status.contains(" state: ONLINE"), "{status}");
    house.run("zpool export t");
    house.run("daemon stop");
    judge(&house, &folder, "t");
}

/// A pool with `autoreplace` takes a blank device in the place of one that is gone, and no other.
#[test]
fn autoreplace_replaces_a_device_that_is_gone() {
    let house = House::new("autoreplace");
    let folder = house.text("pool");
    std::fs::create_dir_all(&folder).unwrap();
    let make = |path: &Path| File::create(path).unwrap().set_len(128 << 20).unwrap();
    let [a, b] = ["a", "b"].map(|name| {
        let path = house.text(&format!("pool/{name}"));
        make(Path::new(&path));
        path
    });
    house.run(&format!("zpool create -m none -o autoreplace=on t mirror {a} {b}"));
    let guid = house.run(&format!("zpool get -H -o value guid t {b}"));
    std::fs::remove_file(&b).unwrap();
    house.run("zpool reopen t");
    assert!(house.run("zpool status t").contains("UNAVAIL"));
    // Prepared elsewhere, so that the daemon does not find it half done.
    let used = house.path("used");
    make(&used);
    std::os::unix::fs::FileExt::write_at(
        &File::options().write(true).open(&used).unwrap(),
        b"x",
        5000,
    )
    .unwrap();
    let bytes = std::fs::read(&used).unwrap();
    std::fs::rename(&used, &b).unwrap();
    let refusals = || {
        let log = std::fs::read_to_string(house.path("state/daemon.log")).unwrap();
        log.matches("not replaced by the device at its path").count()
    };
    until("a look at it", || refusals() == 1);
    assert!(house.run("zpool status t").contains("UNAVAIL") && std::fs::read(&b).unwrap() == bytes);
    let small = house.path("small");
    File::create(&small).unwrap().set_len(64 << 20).unwrap();
    std::fs::rename(&small, &b).unwrap();
    until("a look at the small one", || refusals() == 2);
    assert!(std::fs::read(&b).unwrap().iter().all(|byte| *byte == 0));
    let blank = house.path("blank");
    make(&blank);
    std::fs::rename(&blank, &b).unwrap();
    until("the new device", || house.run("zpool status t").contains(" state: ONLINE"));
    house.run("zpool wait -t resilver,replace t");
    assert_ne!(house.run(&format!("zpool get -H -o value guid t {b}")), guid);
    assert_eq!(refusals(), 2, "each is told once");
    assert!(house.run("zpool events -H").contains("sysevent.fs.zfs.vdev_attach"));
    house.run("zpool export t");
    house.run("daemon stop");
    judge(&house, &folder, "t");
}
