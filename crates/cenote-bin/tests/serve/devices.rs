//! Commands on the devices of a pool in use, and what they refuse.

use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use crate::daemon::{House, has_fuse};
use crate::watch::until;

#[test]
fn trim_and_initialize_return_at_once() {
    let house = House::new("devices-work");
    house.create("none");
    // A command that waited would take minutes.
    house.run("tunable set zfs_initialize_chunk_size=512");
    for verb in ["trim -r 64K", "initialize"] {
        let word = verb.split(' ').next().unwrap();
        house.run(&format!("zpool {verb} t"));
        if word == "trim" {
            let status = house.run("zpool status -t t");
            assert!(status.contains("% trimmed, started at "), "{status}");
            let (_, said) = house.fails("zpool trim t");
            assert!(said.contains("currently trimming"), "{said}");
            house.run("zpool trim -c t");
        }
        house.run(&format!("zpool wait -t {word} t"));
    }
    let status = house.run("zpool status -i t");
    assert!(status.contains("100% initialized"), "{status}");
    house.run("zpool trim -w t");
    let status = house.run("zpool status -t t");
    assert!(status.contains("100% trimmed"), "{status}");
}

#[test]
fn mount_options_of_an_import_are_no_properties() {
    if !has_fuse() {
        return;
    }
    let house = House::new("devices-import");
    house.create(&house.text("at"));
    std::fs::write(house.path("at/file"), "1").unwrap();
    house.run("zpool export t");
    house.run(&format!("zpool import -o ro -d {} t", house.text("pool")));
    assert_eq!(house.run("zpool get -H -o value readonly t"), "off\n");
    assert!(std::fs::write(house.path("at/file"), "2").is_err());
    house.run("zpool set comment=written t");
    house.run("zpool export t");
    house.run(&format!("zpool import -o readonly=on -d {} t", house.text("pool")));
    for line in ["clear t", "offline t mirror-0", "online t mirror-0"] {
        let (_, said) = house.fails(&format!("zpool {line}"));
        assert!(said.contains(" t: pool is read-only"), "{line}: {said}");
    }
    // Destroying a read-only pool closes it, and writes nothing.
    house.run("zpool destroy t");
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    assert_eq!(house.run("zpool get -H -o value comment t"), "written\n");
    std::fs::write(house.path("at/file"), "2").unwrap();
}

#[test]
fn names_of_datasets_are_no_pools() {
    let house = House::new("devices-names");
    house.create("none");
    house.run("zfs create t/fs");
    let d1 = house.text("pool/d1");
    for line in [
        format!("online t/fs {d1}"),
        format!("offline t/fs {d1}"),
        "clear t/fs".to_owned(),
        format!("detach t/fs {d1}"),
        "scrub t/fs".to_owned(),
        "trim t/fs".to_owned(),
    ] {
        let (_, said) = house.fails(&format!("zpool {line}"));
        let want = "cannot open 't/fs': invalid character '/' in pool name\n";
        assert_eq!(said, want, "{line}");
    }
    let (status, said) = house.fails("zpool events t/fs");
    assert!(status == 2 && said.starts_with("invalid pool name 't/fs'"), "{said}");
}

/// Pages of a file that the kernel has do not hide faults that are injected with a remount.
#[test]
fn zinject_remounts_the_file_system_of_a_file() {
    if !has_fuse() {
        return;
    }
    let house = House::new("devices-remount");
    house.create(&house.text("at"));
    let file = house.path("at/one");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    assert_eq!(std::fs::read(&file).unwrap().len(), 1 << 20);
    // A file system in use stays mounted, and nothing is injected.
    let open = File::open(&file).unwrap();
    let one = house.text("at/one");
    let words = ["zinject", "-t", "data", "-e", "checksum", "-am", &one];
    let line = words.join(" ");
    let (_, said) = house.fails(&line);
    assert!(said.starts_with("cannot unmount '"), "{said}");
    assert!(house.run("zinject").starts_with("No handlers registered."));
    drop(open);
    // The daemon gets the end of the file some time after its close.
    until("the file is closed", || house.command(&words).output().unwrap().status.success());
    assert!(std::fs::read(&file).is_err());
    house.run("zinject -c all");
    until("the devices are no longer blamed", || std::fs::read(&file).is_ok());
}

/// The blocks of one file fail or are wrong on all devices, and no others.
#[test]
fn zinject_faults_the_data_of_a_file() {
    if !has_fuse() {
        return;
    }
    let house = House::new("devices-data");
    house.create(&house.text("at"));
    house.run("zfs set primarycache=none t");
    for name in ["one", "two"] {
        let bytes: Vec<u8> = (0..1_u32 << 18).flat_map(u32::to_le_bytes).collect();
        std::fs::write(house.path(&format!("at/{name}")), bytes).unwrap();
    }
    let one = house.text("at/one");
    for error in ["io", "checksum"] {
        let added = house.run(&format!("zinject -a -t data -e {error} {one}"));
        assert!(added.contains("  pool: t\n") && added.contains(" range: all\n"), "{added}");
        assert!(std::fs::read(Path::new(&one)).is_err(), "{error}");
        assert_eq!(std::fs::read(house.path("at/two")).unwrap().len(), 1 << 20);
        assert_eq!(house.run("zinject -c all"), "removed all registered handlers\n");
        until("the device is no longer blamed", || std::fs::read(Path::new(&one)).is_ok());
        house.run("zpool clear t");
    }
    // The first block alone.
    let (objset, object) = {
        let listed = house.run("zdb -d t/");
        let id = listed.split(" ID ").nth(1).and_then(|rest| rest.split(',').next()).unwrap();
        (id.parse::<u64>().unwrap(), std::fs::metadata(&one).unwrap().ino())
    };
    let added = house.run(&format!("zinject -a -b {objset:x}:{object:x}:0:0:0 t"));
    assert!(added.contains(&format!("objset: {objset}\nobject: {object}\n")), "{added}");
    let mut file = File::open(&one).unwrap();
    let mut bytes = [0; 4096];
    assert!(file.read_exact(&mut bytes).is_err());
    file.seek(SeekFrom::Start(512 << 10)).unwrap();
    file.read_exact(&mut bytes).unwrap();
    house.run("zinject -c all");
    let (_, said) = house.fails(&format!("zinject -b {objset:x}:2 t"));
    assert!(said.starts_with(&format!("bad raw spec '{objset:x}:2'")), "{said}");
    let (_, said) = house.fails(&format!("zinject -t dnode {one}"));
    assert!(said.contains("cannot inject with '-t dnode'"), "{said}");
}

#[test]
fn files_have_the_sectors_of_tunables() {
    let house = House::new("devices-sectors");
    for (tunable, value) in [("physical", 12), ("logical", 13)] {
        house.run(&format!("tunable set vdev_file_{tunable}_ashift={value}"));
        house.create("none");
        let config = house.run("zdb -C t");
        assert!(config.contains(&format!("ashift: {value}\n")), "{tunable}: {config}");
        house.run("zpool destroy t");
    }
}

/// An empty disk in the place of one that is in use replaces it, with `-f`.
#[test]
fn blank_device_replaces_itself() {
    let house = House::new("devices-blank");
    house.create("none");
    let d1 = house.text("pool/d1");
    house.run("zfs create t/a");
    let (_, said) = house.fails(&format!("zpool replace -f t {d1}"));
    assert!(said.contains("is part of active pool 't'"), "{said}");
    let size = std::fs::metadata(&d1).unwrap().len();
    let file = std::fs::File::options().write(true).open(&d1).unwrap();
    file.set_len(0).unwrap();
    file.set_len(size).unwrap();
    house.run(&format!("zpool replace -fw t {d1}"));
    let status = house.run("zpool status t");
    assert!(!status.contains("replacing") && !status.contains("OFFLINE"), "{status}");
    house.run("zpool scrub -w t");
    let status = house.run("zpool status t");
    assert!(status.contains("scrub repaired 0B") && status.contains("with 0 errors"), "{status}");
}
