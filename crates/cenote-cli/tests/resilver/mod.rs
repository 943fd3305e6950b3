//! Output of `status`, `import` and `verify` for devices that were offline while data was written.

use cenote_cli::run_captured as cenote;

use crate::Shed;

fn verify(shed: &Shed) -> (String, i32) {
    let folder = shed.path().to_str().expect("UTF-8");
    let (out, _, status) = cenote(&["verify", "-d", folder, "t"]);
    (out, status)
}

/// Creates a pool whose device `d1` was offline while data was written.
fn stale(name: &str, vdevs: &str) -> Shed {
    let shed = Shed::new(name, vdevs.split(' ').count() - 1);
    shed.succeeds(&format!("zpool create t {vdevs}"));
    assert!(shed.succeeds("zpool status t").ends_with("errors: No known data errors\n"));
    let (said, status) = verify(&shed);
    assert!(status == 0 && said.contains("t: no errors"), "{said}");
    shed.succeeds("zpool offline t d1");
    for number in 0..4 {
        shed.succeeds(&format!("zfs create t/a{number}"));
    }
    shed.succeeds("zpool online t d1");
    shed
}

/// Every command that judges a pool reports a leaf in use whose dirty time log is not empty.
#[test]
fn status_import_and_verify_report_a_stale_leaf() {
    for vdevs in ["mirror d0 d1", "raidz1 d0 d1 d2", "draid1:2d:4c:1s d0 d1 d2 d3"] {
        let shed = stale("stale", vdevs);
        let status = shed.succeeds("zpool status t");
        assert!(
            status.contains("One or more devices are missing data that was written"),
            "{status}"
        );
        let notes = |line: &&str| line.ends_with("  (resilver needed)");
        let noted: Vec<_> = status.lines().filter(notes).collect();
        assert!(matches!(noted[..], [row] if row.contains("/d1  ONLINE")), "{status}");
        let errors = "errors: None in data that was read; 1 device needs a resilver\n";
        assert!(status.ends_with(errors), "{status}");
        let healthy = shed.succeeds("zpool status -x");
        assert!(healthy.contains("resilver needed") && !healthy.contains("healthy"), "{healthy}");
        let (said, status) = verify(&shed);
        assert_eq!(status, 1, "{said}");
        assert!(
            said.contains("/d1: may lack ") && said.contains(" of blocks, written in "),
            "{said}"
        );
        assert!(!said.contains("/d0: "), "{said}");
        let sum = "t: nothing that was read is wrong, but 1 device may lack blocks";
        assert!(said.contains(sum), "{said}");
    }
}

/// An import without the only up-to-date leaf is refused or warned about: refused where the newest
/// uberblocks and the metadata that they point to are only on the missing leaf.
#[test]
fn import_without_the_up_to_date_leaf_is_reported() {
    let shed = stale("unfresh", "mirror d0 d1");
    shed.succeeds("zpool export t");
    std::fs::rename(shed.path().join("d0"), shed.path().with_extension("away")).expect("a rename");
    let (listing, ..) = shed.run("zpool import");
    let (_, err, code) = shed.run("zpool import t");
    if code == 0 {
        assert!(listing.contains("have data which no other device has"), "{listing}");
        assert!(err.contains("warning: data that was written in txgs"), "{err}");
        assert!(err.contains("/d0"), "{err}");
        let (status, ..) = shed.run("zpool status t");
        assert!(status.contains("That data cannot be read."), "{status}");
        assert!(!status.contains("No known data errors"), "{status}");
    } else {
        assert!(listing.contains(" state: FAULTED"), "{listing}");
        assert!(err.contains("cannot import 't'"), "{err}");
    }
    std::fs::rename(shed.path().with_extension("away"), shed.path().join("d0")).expect("a rename");
    if code != 0 {
        shed.succeeds("zpool import t");
        assert!(shed.succeeds("zfs list -H -o name").contains("t/a3\n"));
    }
}

#[test]
fn an_absent_device_counts_as_missing_redundancy() {
    let shed = Shed::new("absent", 2);
    shed.succeeds("zpool create t mirror d0 d1");
    shed.succeeds("zpool export t");
    std::fs::remove_file(shed.path().join("d1")).expect("a device");
    let (said, status) = verify(&shed);
    assert_eq!(status, 1, "{said}");
    assert!(said.contains("d1: not available, ") && said.contains("belong on it"), "{said}");
}
