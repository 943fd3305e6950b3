//! `zpool get` of properties of vdevs.

use std::collections::BTreeMap;

use crate::{SIZE, Shed};

/// Every property of a vdev is shown, in OpenZFS's order, and agrees with `zpool list` and `status`.
#[test]
fn vdev_properties_are_shown() {
    let shed = Shed::new("vdev-get", 3);
    shed.succeeds("zpool create -o ashift=12 t raidz1 d0 d1 d2");
    let all = |vdev: &str, count: usize| -> BTreeMap<String, String> {
        let text = shed.succeeds(&format!("zpool get -Hp -o property,value all t {vdev}"));
        assert_eq!(text.lines().count(), count, "{text}");
        let pair = |line: &str| line.split_once('\t').map(|(a, b)| (a.to_owned(), b.to_owned()));
        text.lines().map(|line| pair(line).expect("two columns")).collect()
    };
    // Only a RAID-Z vdev has `raidz_expanding`.
    let (top, leaf) = (all("raidz1-0", 51), all("d1", 50));
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
        (&top, "raidz_expanding", "off"),
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

/// Properties that are set on vdevs are stored where OpenZFS looks for them.
#[test]
fn zpool_set_sets_properties_of_vdevs() {
    let shed = Shed::new("vdev-set", 2);
    shed.succeeds("zpool create -o ashift=12 t mirror d0 d1");
    let get = |properties: &str, vdev: &str| {
        shed.succeeds(&format!("zpool get -Hp -o property,value,source {properties} t {vdev}"))
    };
    assert_eq!(get("io_n,comment", "mirror-0"), "io_n\t-\tdefault\ncomment\t-\tdefault\n");
    for (setting, vdev) in [
        ("io_n=5", "mirror-0"),
        ("comment=shelf", "d0"),
        ("checksum_t=none", "d0"),
        ("failfast=off", "d1"),
        ("org:rack=7", "d0"),
        ("slow_io_n=1K", "root"),
    ] {
        shed.succeeds(&format!("zpool set {setting} t {vdev}"));
    }
    assert_eq!(get("io_n", "mirror-0"), "io_n\t5\tlocal\n");
    assert_eq!(get("io_n", "d0"), "io_n\t-\tdefault\n");
    assert_eq!(get("comment", "d0"), "comment\tshelf\tlocal\n");
    assert_eq!(get("checksum_t", "d0"), "checksum_t\t-\tdefault\n");
    assert_eq!(get("failfast", "d1"), "failfast\toff\tlocal\n");
    assert_eq!(get("org:rack,slow_io_n", "root"), "org:rack\t-\tdefault\nslow_io_n\t1024\tlocal\n");
    assert!(get("all", "d0").ends_with("org:rack\t7\tlocal\n"));
    shed.succeeds("zpool set org:rack= t d0");
    shed.succeeds("zpool set comment= t d0");
    assert_eq!(get("comment,org:rack", "d0"), "comment\t-\tdefault\norg:rack\t-\tdefault\n");
    for (line, status, want) in [
        ("zpool set io_n=x t d0", 1, "cannot set property io_n for d0 on t: bad numeric value 'x'"),
        ("zpool set size=1 t d0", 1, "cannot set property size for d0 on t: 'size' is readonly"),
        ("zpool set no=1 t d0", 1, "cannot set property no for d0 on t: invalid property 'no'"),
        ("zpool set io_n=1 t d7", 22, "cannot find 'd7' in 't': device not in pool"),
        ("zpool set io_n=1 t d0 d1", 2, "too many pool names"),
    ] {
        let (_, err, was) = shed.run(line);
        assert!(was == status && err.starts_with(want), "{line}: {was} {err}");
    }
    assert!(shed.succeeds("zpool history t").contains("zpool set io_n=5 t mirror-0"));
    if let Some(zdb) = cenote_oracle::zdb() {
        let said = zdb.pool("t", shed.path(), &["-ddddd"]).to_string();
        assert!(said.contains("io_n = 5") && said.contains("failfast = 0"), "{said}");
    }
    shed.judge("t");
}

/// The JSON output of properties of vdevs has the keys of OpenZFS, in its order.
#[test]
fn json_of_vdev_properties() {
    let shed = Shed::new("vdev-json", 3);
    shed.succeeds("zpool create t mirror d0 d1 log d2");
    shed.succeeds("zpool set org:x=hello t d0");
    let guid = |vdev: &str| {
        shed.succeeds(&format!("zpool get -Hp -o value guid t {vdev}")).trim().to_owned()
    };
    let of_pool = shed.succeeds("zpool get -j size t");
    let (_, of_pool) = of_pool.split_once("\"type\":\"POOL\",").expect("as printed");
    let (of_pool, _) = of_pool.split_once(",\"properties\"").expect("as printed");
    let head = "{\"output_version\":{\"command\":\"zpool get\",\"vers_major\":0,\"vers_minor\":1},\
        \"pool\":{\"name\":\"t\",";
    let text = |value: &str, source: &str| {
        format!("{{\"value\":{value},\"source\":{{\"type\":\"{source}\",\"data\":\"-\"}}}}")
    };
    let path = shed.here("/dev/shm/v/d0");
    let leaf = |properties: &str| {
        format!(
            "{head}{of_pool}}},\"vdevs\":{{\"{path}\":{{\"name\":\"{path}\",\"type\":\"VDEV\",\
             \"vdev_type\":\"file\",\"guid\":\"{}\",\"path\":\"{path}\",\"class\":\"normal\",\
             \"state\":\"ONLINE\",\"properties\":{{{properties}}}}}}}}}\n",
            guid("d0")
        )
    };
    let found = shed.succeeds("zpool get -j comment,allocating,org:x t d0");
    let wanted = format!(
        "\"comment\":{},\"allocating\":{},\"org:x\":{}",
        text("\"-\"", "DEFAULT"),
        text("\"-\"", "NONE"),
        text("\"hello\"", "LOCAL")
    );
    assert_eq!(found, leaf(&wanted));
    let found = shed.succeeds("zpool get -j --json-int size,capacity t mirror-0");
    let wanted = format!(
        "\"vdevs\":{{\"mirror-0\":{{\"name\":\"mirror-0\",\"type\":\"VDEV\",\"vdev_type\":\"mirror\",\
         \"guid\":{},\"class\":\"normal\",\"state\":\"ONLINE\",\"properties\":{{\"size\":{},\
         \"capacity\":{}}}}}}}}}\n",
        guid("mirror-0"),
        text("117440512", "NONE"),
        text("0", "NONE")
    );
    assert!(found.ends_with(&wanted), "{found}\n{wanted}");
    let found = shed.succeeds("zpool get -j comment t all-vdevs");
    let names: Vec<&str> = found.split("\"name\":\"").skip(2).collect();
    let ends = names.iter().map(|text| text.split('"').next().expect("as printed"));
    let wanted =
        ["root-0", "mirror-0", &path, &shed.here("/dev/shm/v/d1"), &shed.here("/dev/shm/v/d2")];
    assert!(ends.eq(wanted), "{found}");
    assert!(found.contains("\"class\":\"log\""), "{found}");
}
