//! `zpool add` of devices that are hot spares or cache devices already: refused, under any name.

use crate::Shed;

const SAME: &str = "cannot add to 't': one or more vdevs refer to the same device, or one of\n\
                    the devices is part of an active md or lvm device";

#[test]
fn add_refuses_spares_and_caches_in_use() {
    let shed = Shed::new("reserved", 6);
    shed.succeeds("zpool create t mirror d0 d1 cache d2 spare d3");
    std::os::unix::fs::symlink("d2", shed.path().join("cache-by-id")).expect("a link");
    std::os::unix::fs::symlink("d3", shed.path().join("spare-by-id")).expect("a link");
    for cache in ["d2", "cache-by-id"] {
        for role in ["spare", "cache", "log", "special"] {
            let (_, err, status) = shed.run(&format!("zpool add t {role} {cache}"));
            assert!(status == 1 && err.contains("invalid vdev specification"), "{role}: {err}");
            shed.fails(&format!("zpool add -f t {role} {cache}"), SAME);
        }
    }
    for spare in ["d3", "spare-by-id"] {
        for force in ["", "-f "] {
            shed.fails(&format!("zpool add {force}t spare {spare}"), SAME);
        }
        for role in ["cache", "log"] {
            let (_, err, status) = shed.run(&format!("zpool add -f t {role} {spare}"));
            let want = format!("{spare} is reserved as a hot spare for pool t");
            assert!(status == 1 && err.contains(&want), "{role}: {err}");
        }
    }
    // Devices used for data are refused, too.
    for role in ["spare", "cache", "log"] {
        let (_, err, status) = shed.run(&format!("zpool add -f t {role} d0"));
        assert!(status == 1 && err.contains("d0"), "{role}: {err}");
    }
    shed.succeeds("zpool add t spare d4 cache d5");
    let status = shed.succeeds("zpool status t");
    assert!(!status.contains("UNAVAIL") && !status.contains("FAULTED"), "{status}");
    shed.judge("t");
}
