//! `zpool get` of properties of vdevs.

use std::collections::BTreeMap;

use crate::{SIZE, Shed};

/// Every property of a vdev is shown, in OpenZFS's order, and agrees with `zpool list` and `status`.
#[test]
fn vdev_properties_are_shown() {
    let shed = Shed::new("vdev-get", 3);
    shed.succeeds("zpool create -o ashift=12 t raidz1 d0 d1 d2");
    let all = |vdev: &str| -> BTreeMap<String, String> {
        let text = shed.succeeds(&format!("zpool get -Hp -o property,value all t {vdev}"));
        assert_eq!(text.lines().count(), 50, "{text}");
        let pair = |line: &str| line.split_once('\t').map(|(a, b)| (a.to_owned(), b.to_owned()));
        text.lines().map(|line| pair(line).expect("two columns")).collect()
    };
    let (top, leaf) = (all("raidz1-0"), all("d1"));
    let listed = shed.succeeds("zpool list -vHp t");
    let row: Vec<&str> = listed.lines().nth(1).expect("the vdev").split('\t').collect();
    let columns = [("size", 2), ("allocated", 3), ("free", 4)];
    for (property, column) in columns {
        assert_eq!(top[property], row[column], "{property}: {listed}");
    }
    let path = shed.path().join("d1").to_str().expect("UTF-8").to_owned();
    let guid = shed.succeeds("zpool get -Hp -o value guid t d1").trim().to_owned();
    let size: u64 = leaf["psize"].parse().expect("a size");
    assert!(size > SIZE / 2 && size <= SIZE, "{size}");
    for (vdev, property, want) in [
        (&top, "state", "ONLINE"),
        (&top, "parity", "1"),
        (&top, "numchildren", "3"),
        (&top, "children", "d0,d1,d2"),
        (&top, "parent", "root-0"),
        (&top, "path", "-"),
        (&top, "allocating", "on"),
        (&top, "removing", "off"),
        (&leaf, "state", "ONLINE"),
        (&leaf, "parent", "raidz1-0"),
        (&leaf, "path", path.as_str()),
        (&leaf, "guid", guid.as_str()),
        (&leaf, "parity", "0"),
        (&leaf, "children", "-"),
        (&leaf, "ashift", "12"),
        (&leaf, "read_errors", "0"),
        (&leaf, "checksum_errors", "0"),
        (&leaf, "failfast", "on"),
        (&leaf, "devid", "-"),
    ] {
        // The names of files are their whole paths.
        let found = vdev[property].replace(&format!("{}/", shed.path().display()), "");
        let want = want.replace(&format!("{}/", shed.path().display()), "");
        assert_eq!(found, want, "{property}");
    }
    shed.judge("t");
}
