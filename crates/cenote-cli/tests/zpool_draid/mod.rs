//! Distributed spares and sequential rebuilds of a dRAID: messages, and the pools that they leave.

use cenote_testkit::wording::Wording;

use crate::Shed;

const CREATE: &str = "zpool create -f -m /mnt/t t draid1:3d:6c:1s /dev/shm/v/a /dev/shm/v/b \
                      /dev/shm/v/c /dev/shm/v/d /dev/shm/v/e /dev/shm/v/f";

/// Runs the next recording of `zpool status t`; what it says about scans has times and sizes.
fn status_as_recorded<'w>(shed: &Shed, rest: &mut impl Iterator<Item = &'w Wording>) {
    let want = rest.find(|there| there.command == "zpool status t").expect("recorded");
    let without_scans = |text: &str| -> Vec<String> {
        // Columns follow the length of the paths.
        let lines = text.lines().filter(|line| !line.starts_with("  scan:"));
        lines.map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
    };
    let scans = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| line.starts_with("  scan:"));
        lines.map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")).collect()
    };
    let told = shed.succeeds("zpool status t");
    assert_eq!(without_scans(&told), without_scans(&shed.here(&want.out)), "{told}");
    let kinds = |text: &str| -> Vec<bool> {
        scans(text).iter().map(|scan| scan.contains("draid1:3d:6c:1s-0")).collect()
    };
    assert_eq!(kinds(&told), kinds(&want.out), "{told}");
}

#[test]
fn messages_of_distributed_spares_are_those_of_openzfs() {
    let Some(all) = cenote_testkit::wordings("second.txt") else { return };
    let shed = Shed::new("draid-words", 0);
    for name in ["a", "b", "c", "d", "e", "f", "g"] {
        shed.add(name, 96 << 20);
    }
    let from = all.iter().position(|there| there.command == CREATE).expect("recorded");
    let mut rest = all[from..].iter();
    let mut run = |command: &str| shed.run_as_recorded(&mut rest, command);
    run(CREATE);
    status_as_recorded(&shed, &mut rest);
    let mut run = |command: &str| shed.run_as_recorded(&mut rest, command);
    run("zpool attach t draid1-0 /dev/shm/v/g");
    run("zpool remove t draid1-0-0");
    run("zpool offline t /dev/shm/v/b");
    run("zpool replace t /dev/shm/v/b draid1-0-0");
    run("zpool wait -t resilver t");
    status_as_recorded(&shed, &mut rest);
    let mut run = |command: &str| shed.run_as_recorded(&mut rest, command);
    run("zpool replace t /dev/shm/v/c draid1-0-0");
    run("zpool replace t /dev/shm/v/c draid1-0-7");
    run("zpool detach t draid1-0-0");
    run("zpool online t /dev/shm/v/b");
    run("zpool wait -t resilver t");
    status_as_recorded(&shed, &mut rest);
    let mut run = |command: &str| shed.run_as_recorded(&mut rest, command);
    run("zpool replace -s -w t /dev/shm/v/b /dev/shm/v/g");
    // The scrub ended with the command, or goes on with this one.
    shed.succeeds("zpool wait -t scrub t");
    status_as_recorded(&shed, &mut rest);
    shed.judge("t");
}

/// Spares are called in in the order of the list: others first, as in OpenZFS.
#[test]
fn distributed_spares_are_listed_last() {
    let shed = Shed::new("draid-spares-last", 6);
    let path = |number: u32| format!("{}/d{number}", shed.path().display());
    let members: Vec<_> = (0..5).map(path).collect();
    let create = format!("zpool create t draid1:2d:5c:1s {} spare {}", members.join(" "), path(5));
    shed.succeeds(&create);
    let status = shed.succeeds("zpool status t");
    let (_, spares) = status.split_once("\tspares\n").expect("spares");
    let place = |name: &str| spares.find(name).unwrap_or_else(|| panic!("{name}: {status}"));
    assert!(place("/d5") < place("draid1-0-0"), "{status}");
    shed.judge("t");
}

/// A spare is filled sequentially, and stays until the device is replaced; it belongs to one dRAID.
#[test]
fn distributed_spares_are_of_their_vdev() {
    let shed = Shed::new("draid-spares", 9);
    shed.succeeds("zpool create t draid1:1d:4c:1s d0 d1 d2 d3");
    shed.succeeds("zpool add t draid1:1d:4c:1s d4 d5 d6 d7");
    shed.succeeds("zfs create t/a");
    let (_, said, status) = shed.run("zpool replace t d0 draid1-1-0");
    let why = "dRAID spares can only replace child devices in their parent's dRAID vdev";
    let wanted = format!("cannot replace d0 with draid1-1-0: {why}");
    assert_eq!((status, said.trim_end()), (255, wanted.as_str()));
    shed.succeeds("zpool offline -f t d5");
    shed.succeeds("zpool replace -s -w t d5 draid1-1-0");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains("    spare-1 ") && status.contains("INUSE"), "{status}");
    assert!(status.contains("resilvered (draid1:1d:4c:1s-1) "), "{status}");
    shed.succeeds("zpool wait t");
    let listed = shed.succeeds("zpool list -v t");
    assert!(listed.contains("draid1-1-0"), "{listed}");
    shed.succeeds("zpool replace -w t d5 d8");
    let status = shed.succeeds("zpool status t");
    assert!(!status.contains("spare-1") && !status.contains("INUSE"), "{status}");
    assert_eq!(status.matches("  AVAIL").count(), 2, "{status}");
    shed.succeeds("zpool scrub -w t");
    shed.judge("t");
}

/// As OpenZFS does it: a distributed spare whose device was detached is still in the list of spares,
/// and available once another device has replaced it.
#[test]
fn a_distributed_spare_stays_a_spare_without_its_device() {
    let shed = Shed::new("draid-spare-alone", 6);
    shed.succeeds("zpool create t draid1:1d:4c:2s d0 d1 d2 d3 spare d4");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zpool replace -w t d3 draid1-0-0");
    shed.succeeds("zpool detach t d3");
    let spares = || {
        let status = shed.succeeds("zpool status t");
        let (_, spares) = status.split_once("\tspares\n").expect("spares");
        let rows = spares.lines().map(|row| row.split_whitespace().take(2).collect::<Vec<_>>());
        rows.filter(|row| row.len() == 2 && row[0].starts_with("draid"))
            .map(|row| row.join(" "))
            .collect::<Vec<_>>()
    };
    let in_use = ["draid1-0-0 INUSE", "draid1-0-1 AVAIL"];
    assert_eq!(spares(), in_use);
    shed.fails(
        "zpool remove t draid1-0-0",
        "cannot remove draid1-0-0: dRAID spares cannot be removed",
    );
    let (_, said, status) = shed.run("zpool replace t d2 draid1-0-0");
    let busy = "cannot replace d2 with draid1-0-0: draid1-0-0 is busy";
    assert!(status == 255 && said.starts_with(busy), "{status}: {said}");
    shed.succeeds("zpool export t");
    shed.succeeds("zpool import t");
    assert_eq!(spares(), in_use);
    shed.succeeds("zpool replace -w t draid1-0-0 d5");
    assert_eq!(spares(), ["draid1-0-0 AVAIL", "draid1-0-1 AVAIL"]);
    shed.succeeds("zpool scrub -w t");
    shed.judge("t");
}
