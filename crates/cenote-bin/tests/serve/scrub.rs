//! Scrubs by the daemon: a damaged side of a mirror is repaired, and a scrub survives the daemon.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use cenote_rt::Rng;

use crate::daemon::{House, has_fuse};
use crate::succeeds;
use crate::watch::{eventually, until};

/// Size of a record.
const RECORD: usize = 128 << 10;
/// Records of the file.
const RECORDS: usize = 64;

/// Overwrites every second record of `t/file` on the device `d0` with zeros, and returns their
/// number.
fn damage(house: &House) -> usize {
    let folder = house.text("pool");
    let shown = succeeds(&mut house.command(&["where", "-H", "-d", &folder, "t", "file"]));
    let device = File::options().write(true).open(house.path("pool/d0")).unwrap();
    let extents = shown.lines().map(|line| line.split('\t').collect::<Vec<_>>());
    let on_device: Vec<_> = extents.filter(|row| row[4].ends_with("/d0")).collect();
    assert_eq!(on_device.len(), RECORDS, "{shown}");
    let damaged = on_device.iter().step_by(2);
    for row in damaged.clone() {
        let (at, len): (u64, usize) = (row[1].parse().unwrap(), row[2].parse().unwrap());
        assert_eq!((row[3], len), ("data", RECORD), "{shown}");
        device.write_all_at(&vec![0; len], at).unwrap();
    }
    device.sync_all().unwrap();
    damaged.len()
}

/// Returns the counters of the device `d0`.
fn counters(status: &str) -> [&str; 3] {
    let row = status.lines().find(|line| line.contains("/pool/d0 ")).expect("the device");
    let words: Vec<_> = row.split_whitespace().collect();
    [words[2], words[3], words[4]]
}

fn judge(house: &House) {
    let folder = house.text("pool");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &folder, "t"]));
    if let Some(zdb) = cenote_oracle::zdb() {
        let said = zdb.pool("t", Path::new(&folder), &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
}

#[test]
fn scrub_repairs_a_damaged_side_of_a_mirror() {
    if !has_fuse() {
        return;
    }
    let house = House::new("scrub-repairs");
    house.create(&house.text("at"));
    let mut bytes = vec![0; RECORDS * RECORD];
    Rng::seeded(1).fill(&mut bytes);
    std::fs::write(house.path("at/file"), &bytes).unwrap();
    house.run("zpool export t");
    house.run("daemon stop");
    let damaged = damage(&house);

    house.run(&format!("zpool import -d {} t", house.text("pool")));
    house.run("zpool events -c");
    assert_eq!(house.run("zpool scrub -w t"), "");
    let status = house.run("zpool status t");
    assert!(status.contains("  scan: scrub repaired 4M in 00:00:"), "{status}");
    assert!(status.contains(" with 0 errors on "), "{status}");
    assert!(status.contains("status: One or more devices has experienced an unrecoverable error."));
    assert_eq!(counters(&status), ["0", "0", &damaged.to_string()], "{status}");
    assert!(!status.contains("(repairing)"), "a note of a scrub in progress: {status}");
    assert!(status.ends_with("errors: No known data errors\n"), "{status}");
    let json: serde_json::Value =
        serde_json::from_str(&house.run("zpool status -j --json-int t")).unwrap();
    let scan = &json["pools"]["t"]["scan_stats"];
    assert_eq!((&scan["state"], &scan["processed"]), (&"FINISHED".into(), &(4 << 20).into()));
    assert!(scan["issued"].as_u64() > Some(RECORDS as u64 * RECORD as u64), "{scan}");
    let events = house.run("zpool events -H");
    let class = |name: &str| events.lines().filter(|line| line.ends_with(name)).count();
    assert_eq!((class("fs.zfs.scrub_start"), class("fs.zfs.scrub_finish")), (1, 1), "{events}");
    assert_eq!(class("ereport.fs.zfs.checksum"), damaged, "{events}");
    assert_eq!(std::fs::read(house.path("at/file")).unwrap(), bytes);

    house.run("zpool clear t");
    house.run("zpool scrub -w t");
    let status = house.run("zpool status t");
    assert!(status.contains("  scan: scrub repaired 0B in "), "{status}");
    assert_eq!(counters(&status), ["0"; 3], "{status}");
    assert_eq!(house.run("zpool status -x t"), "pool 't' is healthy\n");
    house.run("zpool export t");
    house.run("daemon stop");
    judge(&house);
}

/// A disk dies under load, and is replaced; the daemon is killed in the middle. Then a third side
/// comes to the mirror, and an old one leaves.
#[test]
fn devices_are_replaced_under_load() {
    if !has_fuse() {
        return;
    }
    let house = House::new("replaces");
    house.create(&house.text("at"));
    let device = |name: &str| {
        let path = house.path(&format!("pool/{name}"));
        File::create(&path).unwrap().set_len(256 << 20).unwrap();
        house.text(&format!("pool/{name}"))
    };
    let (old, new, third) = (house.text("pool/d0"), device("new"), device("third"));
    let mut bytes = vec![0; RECORDS * RECORD];
    Rng::seeded(2).fill(&mut bytes);
    std::fs::write(house.path("at/file"), &bytes).unwrap();
    house.run(&format!("zpool offline -f t {old}"));
    let is_done = AtomicBool::new(false);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let mut round = 0;
            while !is_done.load(Ordering::Relaxed) && round < 200 {
                // The mount goes with the daemon that is killed.
                let _ = std::fs::write(house.path(&format!("at/{}", round % 8)), &bytes[..1 << 20]);
                round += 1;
            }
        });
        house.run(&format!("zpool replace t {old} {new}"));
        house.kill();
        house.run("zpool wait -t replace t");
        is_done.store(true, Ordering::Relaxed);
    });
    let status = house.run("zpool status t");
    assert!(status.contains(" state: ONLINE") && !status.contains("replacing"), "{status}");
    assert!(status.contains(&new) && !status.contains(&format!("{old} ")), "{status}");
    house.run(&format!("zpool attach -w t {new} {third}"));
    house.run(&format!("zpool detach t {new}"));
    house.run("zpool scrub -w t");
    let status = house.run("zpool status t");
    assert!(status.contains(" with 0 errors on ") && !status.contains(&new), "{status}");
    let events = house.run("zpool events -H");
    assert!(events.contains("fs.zfs.vdev_attach") && events.contains("fs.zfs.vdev_remove"));
    assert_eq!(std::fs::read(house.path("at/file")).unwrap(), bytes);
    house.run("zpool export t");
    house.run("daemon stop");
    judge(&house);
}

/// Waits until the status of the pool has these texts and lacks another.
fn shows(house: &House, wanted: &[&str], absent: &str) {
    let mut status = String::new();
    let is_shown = eventually(|| {
        status = house.run("zpool status t");
        wanted.iter().all(|text| status.contains(text)) && !status.contains(absent)
    });
    assert!(is_shown, "never: {wanted:?} and no {absent}; at last:\n{status}");
}

/// A device dies; a spare is called in, unless that is switched off, and given back once the device
/// is replaced.
#[test]
fn spare_is_called_in_and_given_back() {
    let house = House::new("spare-called");
    let device = |name: &str| {
        File::create(house.path(&format!("pool/{name}"))).unwrap().set_len(256 << 20).unwrap();
        house.text(&format!("pool/{name}"))
    };
    let (spare, new, cache) = (device("spare"), device("new"), device("cache"));
    house.create("none");
    house.run(&format!("zpool add t spare {spare}"));
    house.run("zfs create t/a");
    let old = house.text("pool/d0");
    house.run("tunable set cenote_spares_auto=0");
    house.run(&format!("zpool offline -f t {old}"));
    for _ in 0..10 {
        house.run("zpool sync t");
        assert!(house.run("zpool status t").contains(" AVAIL "));
    }
    house.run("zpool clear t");
    house.run("tunable set cenote_spares_auto=1");
    house.run(&format!("zpool offline -f t {old}"));
    let shows = |wanted: &[&str], absent: &str| shows(&house, wanted, absent);
    shows(&["    spare-0 ", "INUSE     currently in use", "scan: resilvered "], "replacing");
    let (_, said) = house.fails(&format!("zpool remove t {spare}"));
    let why = "Pool busy; removal may already be in progress";
    assert_eq!(said, format!("cannot remove {spare}: {why}\n"));
    house.run(&format!("zpool replace -w t {old} {new}"));
    shows(&[&new, "AVAIL", " state: ONLINE"], " spare-0 ");
    house.run(&format!("zpool add t cache {cache}"));
    house.run(&format!("zpool remove t {spare} {cache}"));
    shows(&[&new], "\tspares\n");
    let (_, said) = house.fails(&format!("zpool remove t {spare} {new}"));
    let ours = "operation not supported on this type of pool";
    assert_eq!(
        said,
        format!("cannot remove {spare}: no such device in pool\ncannot remove {new}: {ours}\n")
    );
    // Its labels are gone.
    house.fails(&format!("zpool labelclear {spare}"));
    house.run("zpool export t");
    house.run("daemon stop");
    judge(&house);
}

/// The labels of a device that its pool uses are not cleared; those of a faulted one are, by force,
/// and then the device takes its own place like a new one.
#[test]
fn labels_of_a_faulted_device_are_cleared_by_force() {
    let house = House::new("labelclear-faulted");
    house.create("none");
    house.run("zfs create t/a");
    let d0 = house.text("pool/d0");
    let (_, said) = house.fails(&format!("zpool labelclear -f {d0}"));
    assert_eq!(said, format!("{d0} is a member (ACTIVE) of a pool in use\n"));
    house.run(&format!("zpool offline -f t {d0}"));
    house.fails(&format!("zpool labelclear {d0}"));
    house.run(&format!("zpool labelclear -f {d0}"));
    house.run("zpool clear t");
    let status = house.run("zpool status t");
    assert!(status.contains(" UNAVAIL ") && !status.contains("FAULTED"), "{status}");
    house.run("zfs create t/b");
    house.run(&format!("zpool replace -w t {d0}"));
    until("the pool is healthy", || house.run("zpool status t").contains(" state: ONLINE"));
    // An offline device that has lost its labels is replaced in its place without force.
    house.run(&format!("zpool offline t {d0}"));
    let file = File::options().write(true).open(&d0).unwrap();
    let size = file.metadata().unwrap().len();
    file.set_len(0).unwrap();
    file.set_len(size).unwrap();
    house.run(&format!("zpool replace -w t {d0}"));
    until("the pool is healthy", || house.run("zpool status t").contains(" state: ONLINE"));
    house.run("zpool export t");
    house.run("daemon stop");
    judge(&house);
}

/// A device of a dRAID dies; its distributed spare is called in and rebuilt sequentially, and given
/// back once the device is replaced.
#[test]
fn distributed_spare_is_called_in_and_given_back() {
    let house = House::new("draid-called");
    let devices: Vec<_> = (0..7)
        .map(|number| {
            let name = format!("pool/e{number}");
            File::create(house.path(&name)).unwrap().set_len(128 << 20).unwrap();
            house.text(&name)
        })
        .collect();
    let (new, members) = devices.split_last().unwrap();
    house.run(&format!("zpool create -m none t draid2:2d:6c:1s {}", members.join(" ")));
    for number in 0..10 {
        house.run(&format!("zfs create t/a{number}"));
    }
    house.run(&format!("zpool offline -f t {}", members[3]));
    let shows = |wanted: &[&str], absent: &str| shows(&house, wanted, absent);
    let rebuilt = "scan: resilvered (draid2:2d:6c:1s-0) ";
    shows(&["    spare-3 ", "INUSE     currently in use"], "UNKNOWN");
    // Also if the rebuild has not begun yet.
    house.run("zpool wait -t resilver t");
    let status = house.run("zpool status t");
    assert!(status.contains(rebuilt), "{status}");
    shows(&[rebuilt], "in progress");
    house.run(&format!("zpool replace -w t {} {new}", members[3]));
    shows(&[new, "AVAIL", " state: ONLINE"], " spare-3 ");
    house.run("zpool scrub -w t");
    house.run("zpool export t");
    house.run("daemon stop");
    judge(&house);
}

/// A scrub goes on with the next daemon.
#[test]
fn scrub_goes_on_after_a_kill() {
    let house = House::new("scrub-kill");
    house.create("none");
    for number in 0..20 {
        house.run(&format!("zfs create -o mountpoint=none t/a{number}"));
    }
    house.run("zpool scrub t");
    house.kill();
    house.run("zpool wait -t scrub t");
    let status = house.run("zpool status t");
    assert!(status.contains("  scan: scrub repaired 0B in "), "{status}");
    let (_, said) = house.fails("zpool scrub -s t");
    assert_eq!(said, "cannot cancel scrubbing t: there is no active scrub\n");
    house.run("zpool export t");
    house.run("daemon stop");
    judge(&house);
}
