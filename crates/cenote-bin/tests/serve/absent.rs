//! Recorded pools whose devices are missing: shown with the reason, opened when the devices are
//! back, and forgotten on request.

#![expect(clippy::disallowed_methods, reason = "the daemon looks for devices in real time")]

use std::fs;
use std::time::{Duration, Instant};

use crate::daemon::House;

/// A house with the pools `t` (a mirror) and `u` (one device), whose device is then taken away.
fn without_device(stem: &str) -> House {
    let house = House::new(stem);
    house.create("none");
    fs::File::create(house.path("pool/e0")).unwrap().set_len(64 << 20).unwrap();
    house.run(&format!("zpool create -m none u {}", house.text("pool/e0")));
    house.run("zfs create u/a");
    house.run("daemon stop");
    fs::rename(house.path("pool/e0"), house.path("e0")).unwrap();
    house
}

fn bring_back(house: &House) {
    fs::rename(house.path("e0"), house.path("pool/e0")).unwrap();
}

/// Waits until `zpool list` shows the pool's health like this.
fn becomes(house: &House, health: &str) {
    let end = Instant::now() + Duration::from_secs(40);
    while house.run("zpool list -H -o health u").trim() != health {
        assert!(Instant::now() < end, "not {health}\n{}", house.run("zpool status u"));
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn pools_without_devices_are_shown_and_come_back() {
    let house = without_device("absent-back");
    for attempt in 0..2 {
        let listed = house.run("zpool list -H -o name,size,health");
        assert!(listed.starts_with("t\t") && listed.ends_with("\nu\t-\tUNAVAIL\n"), "{listed}");
        // After a kill, too.
        if attempt == 0 {
            house.kill();
        }
    }
    let status = house.run("zpool status u");
    for part in [
        " state: UNAVAIL\n",
        "status: One or more devices could not be opened.  There are insufficient\n",
        "UNAVAIL      0     0     0  insufficient replicas\n",
        &format!("was {}\n", house.text("pool/e0")),
    ] {
        assert!(status.contains(part), "{part}\n{status}");
    }
    assert!(!status.contains("errors:"), "{status}");
    assert!(house.run("zpool status -x").contains("pool: u"));
    assert!(house.run("zpool list -j").contains(r#""state":"UNAVAIL""#));
    assert_eq!(house.run("zpool get -H -o value health,free u"), "UNAVAIL\n-\n");
    assert!(house.run("daemon status").contains("pool    u  unavailable\n"));
    // Its datasets are not shown, and other pools work as ever.
    assert_eq!(house.run("zfs list -H -o name"), "t\n");
    house.run("zfs create t/a");
    for line in ["zfs list u/a", "zpool scrub u", "zpool destroy u", "zpool set comment=x u"] {
        let (status, said) = house.fails(line);
        assert!(status == 1 && said.contains("'u': pool is unavailable\n"), "{line}: {said}");
    }
    // No other pool gets its name.
    fs::File::create(house.path("pool/e1")).unwrap().set_len(64 << 20).unwrap();
    let (_, said) = house.fails(&format!("zpool create -m none u {}", house.text("pool/e1")));
    assert_eq!(said, "cannot create 'u': pool already exists\n");
    bring_back(&house);
    becomes(&house, "ONLINE");
    assert_eq!(house.run("zfs list -H -o name -r u"), "u\nu/a\n");
    house.run("zfs create u/b");
    house.run("zpool export -a");
}

#[test]
fn absent_pools_are_opened_on_request() {
    let house = without_device("absent-request");
    for line in ["zpool import u", "zpool clear u"] {
        assert_eq!(house.run("zpool list -H -o health u"), "UNAVAIL\n");
        assert_eq!(house.fails(line).0, 1);
        bring_back(&house);
        // At once, not when the daemon looks next.
        house.run(line);
        assert_eq!(house.run("zpool list -H -o health u"), "ONLINE\n", "{line}");
        house.run("daemon stop");
        fs::rename(house.path("pool/e0"), house.path("e0")).unwrap();
    }
    // From another place it is imported under its own name.
    assert_eq!(house.run("zpool list -H -o health u"), "UNAVAIL\n");
    fs::create_dir(house.path("other")).unwrap();
    fs::rename(house.path("e0"), house.path("other/e0")).unwrap();
    house.run(&format!("zpool import -d {} u", house.text("other")));
    assert_eq!(house.run("zpool list -H -o name,health"), "t\tONLINE\nu\tONLINE\n");
    house.run("zpool export -a");
}

#[test]
fn absent_pools_are_forgotten_by_an_export() {
    let house = without_device("absent-forgotten");
    assert_eq!(house.run("zpool list -H -o name"), "t\nu\n");
    house.run("zpool export u");
    assert_eq!(house.run("zpool list -H -o name"), "t\n");
    house.kill();
    bring_back(&house);
    assert_eq!(house.run("zpool list -H -o name"), "t\n");
    // Nothing was written to its device: it counts as in use by this host.
    house.run(&format!("zpool import -f -d {} u", house.text("pool")));
    assert_eq!(house.run("zfs list -H -o name -r u"), "u\nu/a\n");
    house.run("zpool export -a");
}

/// A device that is there but damaged: the pool is tried again only after a pause, so the log has
/// one line about it.
#[test]
fn damaged_pools_are_shown_and_not_tried_all_the_time() {
    let house = without_device("absent-damaged");
    let bytes = fs::read(house.path("e0")).unwrap();
    // The labels stay; the rest is zeros.
    let mut damaged = bytes.clone();
    let end = damaged.len() - (512 << 10);
    damaged[(4 << 20)..end].fill(0);
    fs::write(house.path("pool/e0"), damaged).unwrap();
    assert_eq!(house.run("zpool list -H -o health u"), "FAULTED\n");
    std::thread::sleep(Duration::from_secs(12));
    let log = fs::read_to_string(house.path("state/daemon.log")).unwrap();
    assert_eq!(log.matches("event=\"pool not opened\" pool=u").count(), 1, "{log}");
    fs::write(house.path("pool/e0"), bytes).unwrap();
    house.run("zpool clear u");
    assert_eq!(house.run("zpool list -H -o health u"), "ONLINE\n");
    house.run("zpool export -a");
}

/// Too few devices for an import are told apart from damaged metadata.
#[test]
fn imports_with_too_few_devices_say_so() {
    let house = House::new("absent-import");
    let devices: Vec<String> =
        (0..3).map(|number| house.text(&format!("pool/r{number}"))).collect();
    for device in &devices {
        fs::File::create(device).unwrap().set_len(80 << 20).unwrap();
    }
    house.run(&format!("zpool create -m none r raidz1 {}", devices.join(" ")));
    house.run("zpool export r");
    for device in &devices[..2] {
        fs::remove_file(device).unwrap();
    }
    let (status, said) = house.fails(&format!("zpool import -d {} r", house.text("pool")));
    let text = "cannot import 'r': one or more devices is currently unavailable\n";
    assert_eq!((status, said.as_str()), (1, text));
}

/// A damaged cache file is told of, kept as it is, and in nobody's way once it is moved away.
#[test]
fn damaged_cache_files_are_told_of_and_kept() {
    let house = House::new("absent-cache");
    house.create("none");
    house.run("daemon stop");
    let file = house.path("state/zpool.cache");
    let mut bytes = fs::read(&file).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 100].fill(0xff);
    fs::write(&file, &bytes).unwrap();
    assert_eq!(house.run("zpool list"), "no pools available\n");
    let told = format!("records {}  cannot be read: ", file.display());
    assert!(house.run("daemon status").contains(&told), "{}", house.run("daemon status"));
    // The pool is found without it, and the file is not replaced.
    let folder = house.text("pool");
    let (_, said) = house.fails(&format!("zpool import -d {folder} t"));
    assert!(said.contains("it is not remembered") && said.contains("move it away"), "{said}");
    assert_eq!(house.run("zpool list -H -o name"), "t\n");
    assert_eq!(fs::read(&file).unwrap(), bytes);
    let (_, said) = house.fails("zpool export t");
    assert!(said.contains("is closed, but its record") && said.contains("move it away"), "{said}");
    assert_eq!(house.run("zpool list"), "no pools available\n");
    fs::rename(&file, house.path("damaged")).unwrap();
    house.run(&format!("zpool import -d {folder} t"));
    assert!(!house.run("daemon status").contains("record"));
    house.kill();
    assert_eq!(house.run("zpool list -H -o name"), "t\n");
    house.run("zpool export t");
}

/// Number of absent pools: 20, or 100 with `CENOTE_TEST_ALL`.
fn many() -> usize {
    if std::env::var_os("CENOTE_TEST_ALL").is_some() { 100 } else { 20 }
}

/// Many pools whose devices are away cost the others nothing, and come back together.
#[test]
fn many_absent_pools_hold_up_nothing() {
    let house = House::new("absent-many");
    house.create("none");
    for number in 0..many() {
        let device = house.text(&format!("pool/m{number}"));
        fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
        house.run(&format!("zpool create -m none m{number} {device}"));
    }
    house.run("daemon stop");
    fs::create_dir(house.path("away")).unwrap();
    let moves = |from: &str, to: &str| {
        for number in 0..many() {
            let name = |folder: &str| house.path(&format!("{folder}/m{number}"));
            fs::rename(name(from), name(to)).unwrap();
        }
    };
    moves("pool", "away");
    let count = |health: &str| house.run("zpool list -H -o health").matches(health).count();
    assert_eq!(count("UNAVAIL"), many());
    // Other commands, while the daemon looks for the devices.
    let end = Instant::now() + Duration::from_secs(8);
    while Instant::now() < end {
        let begin = Instant::now();
        house.run("zfs create -o mountpoint=none t/a");
        house.run("zfs destroy t/a");
        assert!(begin.elapsed() < Duration::from_secs(3), "{:?}", begin.elapsed());
    }
    moves("away", "pool");
    let end = Instant::now() + Duration::from_mins(1);
    while count("ONLINE") != many() + 1 {
        assert!(Instant::now() < end, "{}", house.run("zpool list"));
        std::thread::sleep(Duration::from_millis(200));
    }
    house.run("zpool export -a");
}
