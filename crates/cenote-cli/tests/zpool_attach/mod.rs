//! `zpool attach`, `zpool replace` and `zpool detach`: messages, and the pools that they leave.

use crate::Shed;
use crate::zpool_scrub::json;

/// Commands of the recording, in the order of execution here.
const RECORDED: &[&str] = &[
    "zpool create -f -O compression=off -O atime=off -m /mnt/t t /dev/shm/v/a",
    "zpool attach",
    "zpool attach t",
    "zpool attach t /dev/shm/v/a",
    "zpool attach nope /dev/shm/v/a /dev/shm/v/b",
    "zpool attach t /dev/shm/v/b /dev/shm/v/c",
    "zpool attach t /dev/shm/v/a /dev/shm/v/nope",
    "zpool attach t /dev/shm/v/a /dev/shm/v/tiny",
    "zpool attach t /dev/shm/v/a /dev/shm/v/small",
    "zpool attach t /dev/shm/v/a /dev/shm/v/b /dev/shm/v/c",
    "zpool attach -o ashift=12 t /dev/shm/v/a /dev/shm/v/b",
    "zpool attach -o nosuch=1 t /dev/shm/v/a /dev/shm/v/b",
    "zpool attach -x t /dev/shm/v/a /dev/shm/v/b",
    "zpool attach -w t /dev/shm/v/a /dev/shm/v/b",
    "zpool attach t /dev/shm/v/a /dev/shm/v/b",
    "zpool attach t mirror-0 /dev/shm/v/c",
    "zpool detach",
    "zpool detach t",
    "zpool detach nope /dev/shm/v/a",
    "zpool detach t /dev/shm/v/c",
    "zpool detach t mirror-0",
    "zpool detach t /dev/shm/v/b",
    "zpool detach t /dev/shm/v/a",
    "zpool detach -x t /dev/shm/v/a",
    "zpool replace",
    "zpool replace t",
    "zpool replace t /dev/shm/v/nope /dev/shm/v/b",
    "zpool replace t /dev/shm/v/a",
    "zpool replace t /dev/shm/v/a /dev/shm/v/a",
    "zpool replace t /dev/shm/v/a /dev/shm/v/tiny",
    "zpool replace t /dev/shm/v/a /dev/shm/v/small",
    "zpool replace t /dev/shm/v/a /dev/shm/v/nope",
    "zpool replace -w t /dev/shm/v/a /dev/shm/v/b",
    "zpool replace t /dev/shm/v/a /dev/shm/v/c",
];

#[test]
fn messages_of_attach_replace_and_detach_are_those_of_openzfs() {
    let Some(all) = cenote_testkit::wordings("second.txt") else { return };
    let shed = Shed::new("attach-words", 0);
    for name in ["a", "b", "c"] {
        shed.add(name, crate::SIZE);
    }
    shed.add("tiny", 32 << 20);
    shed.add("small", 96 << 20);
    let folder = shed.here("/dev/shm/v/");
    let from = all.iter().position(|there| there.command == "zpool attach").expect("recorded");
    let create = all[..from].iter().rposition(|there| there.command.contains("zpool create"));
    let mut rest = all[create.expect("recorded")..].iter();
    for command in RECORDED {
        if *command == "zpool detach t /dev/shm/v/b" {
            // With --embedded nobody has resilvered it yet.
            shed.succeeds("zpool wait -t resilver t");
        }
        shed.run_as_recorded(&mut rest, command);
    }
    let status = shed.succeeds("zpool status t");
    assert!(
        status.contains(&format!("  {folder}b  ONLINE")) && !status.contains("mirror"),
        "{status}"
    );
    let history = shed.succeeds("zpool history -i t");
    for text in [
        format!("vdev attach attach vdev={folder}b to vdev={folder}a"),
        format!("detach vdev={folder}b"),
        format!("vdev attach replace vdev={folder}b for vdev={folder}a"),
        format!("detach vdev={folder}a"),
    ] {
        assert!(history.contains(&text), "{text}: {history}");
    }
    shed.judge("t");
}

/// Devices of each layout are replaced one after the other, also one that is gone, and by its own
/// path.
#[test]
fn devices_are_replaced_in_every_layout() {
    for (layout, count) in [("mirror", 2), ("raidz1", 3), ("raidz2", 4)] {
        let shed = Shed::new("replaced", count + 2);
        let devices: Vec<_> = (0..count).map(|number| format!("d{number}")).collect();
        shed.succeeds(&format!("zpool create t {layout} {}", devices.join(" ")));
        shed.succeeds("zfs create t/a");
        shed.succeeds(&format!("zpool replace t d0 d{count}"));
        let status = shed.succeeds("zpool status t");
        assert!(status.contains("    replacing-0 "), "{status}");
        shed.succeeds("zpool wait -t replace t");
        let status = shed.succeeds("zpool status t");
        assert!(!status.contains("replacing"), "{status}");
        // The first one is nobody's, and comes back in place of a device that is gone.
        std::fs::remove_file(shed.path().join("d1")).expect("removed");
        std::fs::rename(shed.path().join("d0"), shed.path().join("d1")).expect("renamed");
        let status = shed.succeeds("zpool status t");
        assert!(status.contains("DEGRADED"), "{status}");
        let path = shed.path().join("d1");
        let path = path.to_str().expect("UTF-8");
        shed.succeeds(&format!("zpool replace -w t {path}"));
        let status = shed.succeeds("zpool status t");
        assert!(status.contains(" state: ONLINE") && !status.contains("old"), "{status}");
        shed.succeeds("zpool scrub -w t");
        shed.judge("t");
    }
}

/// A replacement is cancelled, and a spare takes the place of a device.
#[test]
fn spares_are_used_and_given_back() {
    let shed = Shed::new("spares", 4);
    shed.succeeds("zpool create t mirror d0 d1 spare d2");
    shed.succeeds("zpool replace t d0 d3");
    shed.succeeds("zpool detach t d3");
    shed.succeeds("zpool offline -f t d0");
    shed.succeeds("zpool replace -w t d0 d2");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains("    spare-0 "), "{status}");
    assert!(status.contains("  INUSE     currently in use\n"), "{status}");
    // A rewind needs the vdevs of the checkpoint.
    shed.succeeds("zpool checkpoint t");
    let (_, err, status) = shed.run("zpool detach t d2");
    assert_eq!((err.trim_end(), status), ("cannot detach d2: checkpoint exists", 255));
    shed.succeeds("zpool checkpoint -d -w t");
    shed.succeeds("zpool detach t d2");
    let status = shed.succeeds("zpool status t");
    assert!(!status.contains("spare-0") && status.contains("AVAIL"), "{status}");
    shed.succeeds("zpool checkpoint t");
    let spare = shed.path().join("d2");
    let spare = spare.to_str().expect("UTF-8");
    let refused = format!("cannot remove {spare}: checkpoint exists");
    shed.fails(&format!("zpool remove t {spare}"), &refused);
    shed.succeeds("zpool checkpoint -d -w t");
    shed.succeeds("zpool replace -w t d0 d2");
    shed.succeeds("zpool detach t d0");
    let status = shed.succeeds("zpool status t");
    assert!(!status.contains("\tspares\n") && status.contains(" state: ONLINE"), "{status}");
    let (_, err, status) = shed.run("zpool detach t d0");
    assert_eq!((err.trim_end(), status), ("cannot detach d0: no such device in pool", 255));
    shed.judge("t");
}

/// The fields of OpenZFS 2.3.2's recording, in its order.
const REBUILD_FIELDS: &[&str] = &[
    "name",
    "vdev_type",
    "guid",
    "class",
    "state",
    "start_time",
    "end_time",
    "scan_time",
    "scanned",
    "issued",
    "rebuilt",
    "to_scan",
    "errors",
    "pass_time",
    "pass_scanned",
    "pass_issued",
    "pass_skipped",
];

/// After a completed rebuild of `mirror-0` and a scrub.
fn rebuild_is_in_the_json(shed: &Shed) {
    let (scan, _) = json(shed, "");
    assert_eq!(scan["function"], "SCRUB");
    let rebuild = scan["rebuild_stats"]["mirror-0"].as_object().expect("a rebuild");
    assert!(rebuild.keys().eq(REBUILD_FIELDS), "{rebuild:?}");
    let texts = ["name", "vdev_type", "class", "state", "errors"].map(|key| &rebuild[key]);
    assert_eq!(texts, ["mirror-0", "mirror", "normal", "COMPLETE", "0"]);
    let (scan, _) = json(shed, "--json-int ");
    let numbers = &scan["rebuild_stats"]["mirror-0"];
    let [scanned, rebuilt, errors] =
        ["scanned", "rebuilt", "errors"].map(|key| numbers[key].as_u64().expect("a number"));
    assert!(scanned > 0 && rebuilt == scanned && errors == 0, "{numbers}");
}

/// A new device is rebuilt sequentially, with OpenZFS's lines, and a scrub verifies what it copied.
#[test]
fn devices_are_rebuilt_sequentially() {
    let shed = Shed::new("rebuild", 3);
    shed.succeeds("zpool create t d0");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zpool attach -s -w t d0 d1");
    let status = shed.succeeds("zpool status t");
    let shown = "  scan: resilvered (mirror-0) ";
    assert!(status.contains(shown) && status.contains(" with 0 errors on "), "{status}");
    // The scrub ended with the command, or goes on with this one.
    shed.succeeds("zpool wait -t scrub t");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains("  scan: scrub repaired 0B in ") && status.contains(shown), "{status}");
    assert!(!status.contains("status:"), "{status}");
    rebuild_is_in_the_json(&shed);
    shed.succeeds("zpool replace -s -w t d0 d2");
    shed.succeeds("zpool wait t");
    let status = shed.succeeds("zpool status t");
    assert!(!status.contains("d0") && status.contains(shown), "{status}");
    let history = shed.succeeds("zpool history -i t");
    for text in ["rebuild vdev_id=0 vdev_guid=", " started", " complete", "zpool attach -s -w t"] {
        assert!(history.contains(text), "{text}: {history}");
    }
    shed.judge("t");
    shed.succeeds("zpool destroy t");
    shed.succeeds("zpool create -f t raidz d0 d1");
    let refused = |line: &str, why: &str| {
        let (_, said, status) = shed.run(line);
        assert_eq!((status, said.trim_end()), (255, why), "{line}");
    };
    refused(
        "zpool replace -f -s t d0 d2",
        "cannot replace d0 with d2: only mirror and dRAID vdevs support sequential reconstruction",
    );
    shed.succeeds("zpool destroy t");
    shed.succeeds("zpool create -f -o feature@device_rebuild=disabled t d0");
    refused(
        "zpool attach -f -s t d0 d1",
        "cannot attach d1 to d0: device_rebuild feature must be enabled in order to use \
         sequential reconstruction",
    );
}

/// Commands of the recording about a RAID-Z vdev, in the order of execution here.
const EXPANSIONS: &[&str] = &[
    "zpool create -f -O compression=off -m /mnt/t t raidz1 /dev/shm/v/a /dev/shm/v/b /dev/shm/v/c",
    "zpool attach t /dev/shm/v/a /dev/shm/v/d",
    "zpool attach t raidz1-1 /dev/shm/v/d",
    "zpool attach t raidz1-0 /dev/shm/v/tiny",
    "zpool attach -s t raidz1-0 /dev/shm/v/d",
    "zpool offline t /dev/shm/v/b",
    "zpool attach t raidz1-0 /dev/shm/v/d",
    "zpool online t /dev/shm/v/b",
    "zpool wait -t resilver t",
    "zpool checkpoint t",
    "zpool attach t raidz1-0 /dev/shm/v/d",
    "zpool checkpoint -d -w t",
    "zpool attach t raidz1-0 /dev/shm/v/d",
    "zpool attach t raidz1-0 /dev/shm/v/e",
    "zpool checkpoint t",
    "zpool wait -t nosuch t",
    "zpool detach t /dev/shm/v/d",
    "zpool wait -t raidz_expand t",
];

#[test]
fn messages_of_raidz_expansions_are_those_of_openzfs() {
    let Some(all) = cenote_testkit::wordings("second.txt") else { return };
    let shed = Shed::new("expand-words", 0);
    for name in ["a", "b", "c", "d", "e"] {
        shed.add(name, crate::SIZE);
    }
    shed.add("tiny", 32 << 20);
    let from = all.iter().position(|there| there.command == EXPANSIONS[0]).expect("recorded");
    let mut rest = all[from..].iter();
    let size = |status: &str| status.split_whitespace().next().expect("a size").to_owned();
    for command in EXPANSIONS {
        shed.run_as_recorded(&mut rest, command);
        if *command == "zpool wait -t nosuch t" {
            let expanding = shed.succeeds("zpool get -Ho value raidz_expanding t raidz1-0");
            assert_eq!(expanding.trim(), "on");
            // With --embedded it has not begun to copy.
            let status = shed.succeeds("zpool status t");
            for text in ["expand: expansion of raidz1-0 in progress since ", " copied at ", "0.0"] {
                assert!(status.contains(text), "{status}");
            }
            let status = shed.succeeds("zpool status -j t");
            assert!(status.contains("\"waiting_for_resilver\":\"0\""), "{status}");
            assert_eq!(size(&shed.succeeds("zpool list -Ho size t")), "352M");
        }
    }
    // The scrub has begun with the end of the expansion.
    shed.succeeds("zpool wait -t scrub t");
    let status = shed.succeeds("zpool status t");
    for text in ["expand: expanded raidz1-0 copied ", "  scan: scrub repaired 0B in "] {
        assert!(status.contains(text), "{status}");
    }
    assert_eq!(size(&shed.succeeds("zpool list -Ho size t")), "480M");
    let history = shed.succeeds("zpool history -i t");
    for text in [
        "raidz vdev expansion started t vdev 0 new width 4",
        "to vdev=raidz1-0",
        "raidz vdev expansion completed t vdev 0 new width 4",
    ] {
        assert!(history.contains(text), "{text}: {history}");
    }
    shed.judge("t");
}

/// `attach -w` waits until everything was moved.
#[test]
fn attach_to_a_raidz_waits() {
    let shed = Shed::new("expand", 6);
    shed.succeeds("zpool create t raidz2 d0 d1 d2 d3");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zpool attach -w t raidz2-0 d4");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains("expand: expanded raidz2-0 copied "), "{status}");
    shed.succeeds("zpool attach -w t raidz2-0 d5");
    assert_eq!(shed.succeeds("zpool get -Ho value raidz_expanding t raidz2-0").trim(), "off");
    shed.succeeds("zpool wait t");
    shed.judge("t");
}
