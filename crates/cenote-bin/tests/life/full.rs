//! The host's disk is full, below the pool's devices or below the daemon's state directory.

use cenote_testkit::faultfs::has_fuse;
use rustix::process::Signal;

use crate::home::{Home, keep};
use crate::limits::keeps;
use crate::stages::{FILE, check_t, has};

/// Fills a file system completely.
fn fill(home: &Home, name: &str) {
    let mut file = std::fs::File::create(home.path(name)).unwrap();
    for size in [1 << 20, 4096, 1] {
        let piece = vec![1; size];
        while std::io::Write::write_all(&mut file, &piece).is_ok() {}
    }
}

fn kill_and_revive(home: &Home) {
    let remains = home.remains();
    home.signal(Signal::KILL);
    home.wait_for_end();
    home.revive(&remains);
}

/// Commands succeed or fail while nothing can be recorded, and their results are durable; a daemon
/// that is killed comes back while the disk is still full.
#[test]
fn host_disk_full_below_the_daemons_state() {
    if !has_fuse() {
        return;
    }
    let home = Home::new("full-state");
    if !home.mount_small("state", 8 << 20) {
        return;
    }
    home.start_with_pool();
    keep(&home.path(FILE), b"kept");
    fill(&home, "state/ballast");
    let (at, d2) = (home.text("other"), home.text("pool/d2"));
    let (created, said) = home.ends(&format!("zpool create -f -m {at} u {d2}"));
    println!("{created}: {said}");
    assert!(keeps(&home, "at/c/kept"));
    let (listed, _) = home.ends("zfs list -t all");
    assert!(listed.success());
    kill_and_revive(&home);
    check_t(&home);
    assert_eq!(std::fs::read(home.path("at/c/kept")).unwrap(), b"kept\n");
    assert!(!created.success() || has(&home, "u"), "created, and forgotten\n{}", home.log());

    home.run("zfs create t/n");
    std::fs::remove_file(home.path("state/ballast")).unwrap();
    kill_and_revive(&home);
    if !has(&home, "u") {
        home.run(&format!("zpool create -f -m {at} u {d2}"));
    }
    home.run("zfs destroy t/n");
    check_t(&home);
    kill_and_revive(&home);
    assert!(has(&home, "u"));
    home.judge(&["t", "u"]);
}

/// Writes end in time, successful or not; acknowledged data is there once there is space, even if
/// the daemon was killed meanwhile.
#[test]
fn host_disk_full_below_the_devices() {
    if !has_fuse() {
        return;
    }
    let home = Home::new("full-devices");
    if !home.mount_small("small", 80 << 20) {
        return;
    }
    home.make_device("small/e0");
    home.make_device("small/e1");
    home.start_with_pool();
    keep(&home.path(FILE), b"kept");
    let (at, e0, e1) = (home.text("other"), home.text("small/e0"), home.text("small/e1"));
    home.run(&format!("zpool create -f -m {at} u mirror {e0} {e1}"));
    home.run("zfs set compression=off u");
    keep(&home.path("other/kept"), b"kept");
    fill(&home, "small/ballast");
    // Once the pool is suspended, writes wait, and end with the daemon.
    let script = "for i in 1 2 3 4 5 6; do echo kept > $0/f$i && sync $0/f$i && touch $1/$i && \
                  dd if=/dev/urandom of=$0/big$i bs=1M count=2 status=none; done 2>/dev/null";
    std::fs::create_dir(home.path("acknowledged")).unwrap();
    let mut writer = std::process::Command::new("sh")
        .args(["-c", script, &at, &home.text("acknowledged")])
        .spawn()
        .unwrap();
    std::thread::sleep(std::time::Duration::from_secs(2));
    // Not `zpool sync` and the like, which rightly wait for space.
    let (_, said) = home.ends("zpool status -v u");
    println!("{said}");
    check_t(&home);
    let remains = home.remains();
    home.signal(Signal::KILL);
    home.wait_for_end();
    // The guard ends the connections and so the waiting requests.
    writer.wait().unwrap();
    home.revive(&remains);
    check_t(&home);
    std::fs::remove_file(home.path("small/ballast")).unwrap();
    if has(&home, "u") {
        home.run("zpool clear u");
    } else {
        home.run(&format!("zpool import -f -d {} u", home.text("small")));
    }
    let acknowledged = std::fs::read_dir(home.path("acknowledged")).unwrap();
    for entry in acknowledged {
        let name = format!("other/f{}", entry.unwrap().file_name().to_str().unwrap());
        let found = std::fs::read(home.path(&name)).unwrap();
        assert_eq!(found, b"kept\n", "{name}\n{}", home.log());
    }
    assert_eq!(std::fs::read(home.path("other/kept")).unwrap(), b"kept");
    home.run("zpool export u");
    home.run(&format!("verify --leaks -d {} u", home.text("small")));
    home.judge(&["t"]);
}

/// A pool that was suspended because the host was full continues by itself when there is space.
#[test]
fn pool_continues_when_the_host_has_space() {
    if !has_fuse() {
        return;
    }
    let home = Home::new("full-continues");
    if !home.mount_small("small", 80 << 20) {
        return;
    }
    home.make_device("small/e0");
    home.start_with_pool();
    let (at, e0) = (home.text("other"), home.text("small/e0"));
    home.run(&format!("zpool create -f -m {at} -O compression=off u {e0}"));
    fill(&home, "small/ballast");
    let script = "dd if=/dev/urandom of=$0/big bs=1M count=8 status=none && sync $0/big";
    let mut writer = std::process::Command::new("sh").args(["-c", script, &at]).spawn().unwrap();
    let becomes = |health: &str| {
        let end = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while home.run("zpool list -H -o health u").trim() != health {
            assert!(std::time::Instant::now() < end, "not {health}\n{}", home.log());
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
    };
    becomes("SUSPENDED");
    // Without space it stays as it is.
    std::thread::sleep(std::time::Duration::from_secs(5));
    becomes("SUSPENDED");
    std::fs::remove_file(home.path("small/ballast")).unwrap();
    becomes("ONLINE");
    assert!(writer.wait().unwrap().success(), "{}", home.log());
    assert_eq!(std::fs::metadata(home.path("other/big")).unwrap().len(), 8 << 20);
    assert!(home.log().contains("pool continued, the host has space"), "{}", home.log());
    // The txg whose writes failed at first counts as missing until a resilver has read its blocks.
    home.run("zpool resilver u");
    home.run("zpool wait -t resilver u");
    home.run("zpool export u");
    home.run(&format!("verify --leaks -d {} u", home.text("small")));
}
