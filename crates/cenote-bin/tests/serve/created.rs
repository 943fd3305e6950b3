//! Pools created by the daemon: mount points, names, cache files.

use std::fs;

use crate::daemon::{House, has_fuse};

#[test]
fn create_refuses_nonempty_mount_points() {
    if !has_fuse() {
        return;
    }
    let house = House::new("created-place");
    let (at, device) = (house.text("at"), house.text("pool/d0"));
    fs::create_dir_all(house.path("at/inside")).unwrap();
    let taken = format!(
        "mountpoint '{at}' exists and is not empty\nuse '-m' option to provide a different default\n"
    );
    for how in [format!("-m {at}"), format!("-O mountpoint={at}"), format!("-n -m {at}")] {
        let line = format!("zpool create {how} t {device}");
        assert_eq!(house.fails(&line), (1, taken.clone()), "{line}");
    }
    assert_eq!(house.run("zpool list"), "no pools available\n");
    // With another altroot the directory is another one; a default mount point is removed with the
    // pool.
    let root = house.text("root");
    house.run(&format!("zpool create -R {root} t {device}"));
    assert_eq!(house.run("zfs get -H -o value mountpoint,mounted t"), format!("{root}/t\nyes\n"));
    house.run("zfs create t/a");
    house.run("zpool destroy t");
    assert!(house.path("root").exists() && !house.path("root/t").exists());
    house.run(&format!("zpool create -o altroot={root} -m {at} t {device}"));
    assert_eq!(house.run("zpool get -H -o value altroot,cachefile t"), format!("{root}\nnone\n"));
    assert_eq!(house.run("zfs get -H -o value mountpoint,mounted t"), format!("{root}{at}\nyes\n"));
    let (_, said) = house.fails("zpool set altroot=/x t");
    let why = "property 'altroot' can only be set during pool creation or import";
    assert_eq!(said, format!("cannot set property for 't': {why}\n"));
    house.run("zpool export t");
    assert!(fs::exists(format!("{root}{at}")).unwrap());
    // A relative path becomes absolute.
    let folder = house.text("pool");
    for how in ["-R root", "-o altroot=root"] {
        let want = "invalid alternate root 'root': must be an absolute path\n".to_owned();
        assert_eq!(house.fails(&format!("zpool create -f {how} u {device}")), (1, want));
        let want = "cannot import pool 't': bad alternate root 'root'\n".to_owned();
        assert_eq!(house.fails(&format!("zpool import -d {folder} {how} t")), (1, want));
    }
    assert_eq!(house.run("zpool list"), "no pools available\n");
}

/// The devices of one pool are files in another one, which is opened first and closed last.
#[test]
fn pools_on_files_of_other_pools_are_opened_and_closed_in_order() {
    if !has_fuse() {
        return;
    }
    let house = House::new("created-within");
    house.create(&house.text("at"));
    for (name, at) in [("a", "at"), ("u", "at-a")] {
        let device = format!("{}/device", house.text(at));
        fs::File::create(&device).unwrap().set_len(64 << 20).unwrap();
        house
            .run(&format!("zpool create -m {} {name} {device}", house.text(&format!("at-{name}"))));
    }
    fs::write(house.path("at-u/file"), "kept").unwrap();
    house.run("daemon stop");
    assert_eq!(house.run("zpool list -H -o name"), "a\nt\nu\n");
    assert_eq!(fs::read_to_string(house.path("at-u/file")).unwrap(), "kept");
    for pool in ["u", "a", "t"] {
        house.run(&format!("zpool export {pool}"));
    }
}

#[test]
fn import_t_gives_a_temporary_name() {
    let house = House::new("created-name");
    let (pool, device) = (house.text("pool"), house.text("pool/d0"));
    house.run(&format!("zpool create -t u -m none -O quota=99M -o comment=hi t {device}"));
    assert_eq!(house.run("zpool list -H -o name"), "u\n");
    assert_eq!(house.run("zfs get -H -o value quota u"), "99M\n");
    assert_eq!(house.run("zpool get -H -o value comment,cachefile u"), "hi\nnone\n");
    house.run("zpool export u");
    house.run(&format!("zpool import -d {pool} t"));
    assert_eq!(house.run("zpool list -H -o name"), "t\n");
    house.run("zpool destroy t");
}

#[test]
fn cachefile_records_the_pool() {
    let house = House::new("created-memory");
    let (pool, file) = (house.text("pool"), house.text("cache"));
    let (d0, d1) = (house.text("pool/d0"), house.text("pool/d1"));
    house.run(&format!("zpool create -m none -o cachefile={file} t {d0}"));
    assert_eq!(house.run("zpool get -H -o value cachefile t"), format!("{file}\n"));
    // The state of the pool is recorded immediately.
    let knows = |what: &str| {
        let said = house.run(&format!("zdb -C -U {file}"));
        said.contains(what)
    };
    assert!(knows(&d0) && !knows(&d1));
    house.run(&format!("zpool add t {d1}"));
    house.run("zpool set comment=mine t");
    assert!(knows(&d1) && knows("mine"));
    let other = house.text("other");
    house.run(&format!("zpool set cachefile={other} t"));
    assert!(house.run(&format!("zdb -C -U {other}")).contains("mine") && !knows("mine"));
    house.run("zpool set cachefile= t");
    assert_eq!(house.run("zpool get -H -o value,source cachefile t"), "-\tdefault\n");
    // The daemon finds it again.
    house.run("daemon stop");
    assert_eq!(house.run("zpool list -H -o name"), "t\n");
    house.run("zpool set cachefile=none t");
    house.run("daemon stop");
    assert_eq!(house.run("zpool list"), "no pools available\n");
    house.run(&format!("zpool import -d {pool} -o cachefile={file} t"));
    assert!(knows("mine"));
    // Renamed devices are found in their directory.
    fs::copy(&file, &other).unwrap();
    house.run("zpool export t");
    assert!(!knows("mine"));
    fs::rename(&d0, format!("{d0}-moved")).unwrap();
    house.run(&format!("zpool import -c {other} t"));
    assert!(house.run("zpool status -P t").contains(&format!("{d0}-moved")));
    house.run("zpool destroy t");
}

/// `zdb` without `-e` reads the cache file of the daemon, as OpenZFS's reads that of the kernel.
#[test]
fn zdb_reads_the_cache_file_of_the_daemon() {
    let house = House::new("created-zdb");
    house.create("none");
    house.run("zfs create -o mountpoint=none t/a");
    let file = house.text("state/zpool.cache");
    let real = cenote_oracle::zdb();
    for (words, what) in [
        (["-C", "t"], "MOS Configuration:"),
        (["-d", "t/a"], "Dataset t/a"),
        (["-u", "t"], "txg = "),
    ] {
        let ours = house.run(&format!("zdb {}", words.join(" ")));
        assert!(ours.contains(what), "{ours}");
        if let Some(real) = &real {
            let said = real.run(&[&["-U", &file], &words[..]].concat());
            assert_eq!(ours, said.stdout, "{said}");
        }
    }
    // It needs no daemon, and reads another cache file if told to.
    let guid = house.run("zpool get -H -o value guid t");
    house.run("daemon stop");
    let config = house.run("zdb -C t");
    assert!(config.contains(&format!("pool_guid: {guid}")), "{config}");
    let both = house.run("zdb -CC t");
    assert!(both.starts_with("\nCached configuration:\n") && both.ends_with(&config), "{both}");
    let other = house.text("other");
    fs::copy(&file, &other).unwrap();
    house.run("zpool export t");
    let absent = (1, "zdb: can't open 't': No such file or directory\n".to_owned());
    assert_eq!(house.fails("zdb -C t"), absent);
    assert!(house.run(&format!("zdb -U {other} -C t")).contains(&guid));
    // There is another pool on the devices now.
    house.run(&format!("zpool create -f -m none t {}", house.text("pool/d0")));
    fs::remove_file(house.path("pool/d1")).unwrap();
    assert_eq!(house.fails(&format!("zdb -U {other} -C t")), absent);
    house.run("zpool destroy t");
}

/// Spares and cache devices of a destroyed pool are free.
#[test]
fn spares_and_cache_devices_of_other_pools_are_refused() {
    let house = House::new("created-aux");
    let device = |name: &str| house.text(&format!("pool/{name}"));
    for name in ["d1", "d2", "d3"] {
        fs::File::create(device(name)).unwrap().set_len(64 << 20).unwrap();
    }
    let create = |layout: &str| {
        let words = layout.split(' ').map(|word| match word.strip_prefix('d') {
            Some(_) => device(word),
            None => word.to_owned(),
        });
        format!("zpool create -O mountpoint=none {}", words.collect::<Vec<_>>().join(" "))
    };
    house.run(&create("t d0 spare d1 cache d2"));
    let said = house.fails(&create("u d1")).1;
    assert!(said.contains("d1 is reserved as a hot spare or cache device"), "{said}");
    house.run("zpool destroy t");
    house.run(&create("u mirror d1 d2 spare d3"));
    house.run("zpool destroy u");
}
