//! Scripts that the daemon runs on events, and faults that are injected into its devices.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use cenote_oracle::zdb;

use crate::daemon::{House, has_fuse};
use crate::watch::{read, until};

fn script(house: &House, name: &str, text: &str, mode: u32) {
    let path = house.path("state/zed.d").join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn house(stem: &str) -> House {
    let house = House::new(stem);
    std::fs::create_dir_all(house.path("state/zed.d")).unwrap();
    house
}

/// Scripts run for the events that their names select, in order, with zed's variables; one that
/// hangs is killed, and others may not have written it.
#[test]
fn zedlets_run_on_events() {
    let house = house("zedlets");
    let out = house.text("out");
    script(&house, "all-log.sh", &format!("echo \"$ZEVENT_SUBCLASS\" >> {out}.all"), 0o755);
    script(&house, "statechange-notify.sh", &format!("env > {out}.env"), 0o700);
    script(&house, "pool_create-list.sh", &format!("$ZPOOL list -H -o name > {out}.list"), 0o755);
    script(&house, "vdev_clear-hang.sh", &format!("sleep 1000; touch {out}.late"), 0o755);
    // Not run: writable by others, not executable, a dot file, another class.
    let touch = format!("touch {out}.wrong");
    for (name, mode) in
        [("all-open.sh", 0o777), ("all-data", 0o644), (".all.sh", 0o755), ("state-x.sh", 0o755)]
    {
        script(&house, name, &touch, mode);
    }
    house.create("none");
    let d1 = house.text("pool/d1");
    house.run(&format!("zpool offline t {d1}"));
    let guid = house.run(&format!("zpool get -Hp -o value guid t {d1}")).trim().to_owned();
    until("the event is told", || read(Path::new(&format!("{out}.env"))).contains("ZFS_RELEASE="));
    let variables = read(Path::new(&format!("{out}.env")));
    let hexadecimal = format!("{:#018X}", guid.parse::<u64>().unwrap()).replacen("0X", "0x", 1);
    for line in [
        "ZEVENT_CLASS=resource.fs.zfs.statechange",
        "ZEVENT_SUBCLASS=statechange",
        "ZEVENT_POOL=t",
        "ZEVENT_VDEV_STATE=2",
        "ZEVENT_VDEV_STATE_STR=OFFLINE",
        &format!("ZEVENT_VDEV_PATH={d1}"),
        &format!("ZEVENT_VDEV_GUID={hexadecimal}"),
        &format!("ZED_PID={}", house.pid()),
        &format!("ZED_ZEDLET_DIR={}", house.text("state/zed.d")),
    ] {
        assert!(variables.lines().any(|there| there == line), "{line}\n{variables}");
    }
    for name in ["ZEVENT_EID", "ZEVENT_TIME_SECS", "ZEVENT_TIME_STRING", "ZEVENT_POOL_GUID"] {
        assert!(variables.contains(&format!("{name}=")), "{name}\n{variables}");
    }
    assert!(!variables.contains("HOME="), "{variables}");
    // Its commands reach the daemon.
    assert_eq!(read(Path::new(&format!("{out}.list"))), "t\n");

    house.run(&format!("zpool online t {d1}"));
    house.run("zpool clear t");
    // While a script hangs, commands work; then later events have their turn.
    house.run("zpool export t");
    until("later events are told", || {
        read(Path::new(&format!("{out}.all"))).contains("pool_export\n")
    });
    let all = read(Path::new(&format!("{out}.all")));
    let at = |class: &str| all.lines().position(|line| line == class);
    assert!(at("pool_create") < at("statechange") && at("statechange") < at("vdev_clear"), "{all}");
    assert!(!Path::new(&format!("{out}.late")).exists());
    assert!(!Path::new(&format!("{out}.wrong")).exists());
    let log = read(&house.path("state/daemon.log"));
    assert!(log.contains("zedlet killed") && log.contains("writable by group or other"), "{log}");
}

/// Errors that are injected fault a device; `zpool clear` brings it back.
#[test]
fn zinject_faults_a_device() {
    if !has_fuse() {
        return;
    }
    let house = house("zinject");
    let out = house.text("out");
    script(&house, "statechange-x.sh", &format!("echo $ZEVENT_VDEV_STATE_STR >> {out}"), 0o755);
    house.create(&house.text("at"));
    assert!(house.run("zinject").starts_with("No handlers registered."));
    let d1 = house.text("pool/d1");
    let added = house.run(&format!("zinject -d {d1} -e io -T write -f 100 t"));
    let first = added.lines().next().unwrap();
    let id = first.strip_prefix("Added handler ").and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(first.ends_with(" with the following properties:"), "{added}");
    let list = house.run("zinject");
    assert!(list.starts_with(" ID  POOL             GUID              TYPE   ERROR"), "{list}");
    assert!(list.contains("  write  io          100.0000%"), "{list}");
    house.run("zpool set io_n=5 t mirror-0");
    assert_eq!(house.run("zpool get -H -o value,source io_n t mirror-0"), "5\tlocal\n");
    for number in 0..20 {
        let bytes = vec![number; 256 << 10];
        std::fs::write(house.path(&format!("at/f{number}")), bytes).unwrap();
    }
    house.run("zpool sync t");
    let row = || {
        let status = house.run("zpool status t");
        status.lines().find(|line| line.contains(&d1)).unwrap_or_default().to_owned()
    };
    // The rate is exceeded by the writes of one txg, and applied in the next one.
    until("the device is faulted", || {
        house.run("zpool sync t");
        row().contains(" FAULTED ")
    });
    assert!(row().ends_with("  too many errors"), "{}", row());
    until("zedlets are told", || read(Path::new(&out)).contains("FAULTED\n"));
    assert_eq!(house.run(&format!("zinject -c {id}")), format!("removed handler {id}\n"));
    house.run("zpool clear t");
    until("it is back", || row().contains(" ONLINE ") && !row().contains("resilver"));
    house.run("zpool wait -t resilver t");

    // A delay makes I/Os slow; the action degrades at once.
    house.run("tunable set zio_slow_io_ms=50");
    house.run(&format!("zinject -d {d1} -D 100:1 -T write t"));
    assert!(house.run("zinject").contains("DELAY (ms)"));
    std::fs::write(house.path("at/slow"), vec![1; 256 << 10]).unwrap();
    house.run("zpool sync t");
    let status = house.run("zpool status -s t");
    let slow = status.lines().find(|line| line.contains(&d1)).unwrap();
    let count: u64 = slow.split_whitespace().nth(5).unwrap().parse().unwrap();
    assert!(status.contains("  SLOW\n") && count > 0, "{status}");
    // Slow I/Os alone make a device one that '-e' shows, if they are shown.
    for (options, is_shown) in [("-es", true), ("-e", false)] {
        let status = house.run(&format!("zpool status {options} t"));
        assert_eq!(status.contains(&d1), is_shown, "{options}: {status}");
        assert_eq!(status.contains("\t  mirror-0 "), is_shown, "{options}: {status}");
    }
    assert!(house.run("zpool events -H t").contains("ereport.fs.zfs.delay\n"));
    assert_eq!(house.run("zinject -c all"), "removed all registered handlers\n");
    house.run(&format!("zinject -d {d1} -A degrade t"));
    assert!(row().contains(" DEGRADED ") && row().contains("too many"), "{}", row());
    for (line, status, want) in [
        (format!("zinject -d {d1} -e checksum t"), 1, "device error type must be 'io'"),
        ("zinject -d nosuch t".to_owned(), 1, "cannot find device 'nosuch' in pool 't'"),
        (format!("zinject -d {d1} -L uber t"), 1, "cannot inject with '-L': faults of labels"),
        ("zinject -c 999".to_owned(), 1, "failed to remove handler 999"),
        ("zinject -t data x".to_owned(), 1, "'x' is not in a file system"),
        ("zinject -q".to_owned(), 2, "at least one of"),
    ] {
        let (was, said) = house.fails(&line);
        assert!(was == status && said.starts_with(want), "{line}: {was} {said}");
    }
    house.run("zpool export t");
    house.run("daemon stop");
    if let Some(zdb) = zdb() {
        let said = zdb.pool("t", &house.path("pool"), &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
}

/// A spare is called in for a device with too many errors, and given back once it works again.
#[test]
fn spare_is_called_in_for_a_device_with_too_many_errors() {
    let house = house("zinject-spare");
    house.create("none");
    let spare = house.text("pool/spare");
    std::fs::File::create(&spare).unwrap().set_len(256 << 20).unwrap();
    house.run(&format!("zpool add t spare {spare}"));
    house.run("zpool set io_n=5 t root");
    let d1 = house.text("pool/d1");
    house.run(&format!("zinject -d {d1} -e io -T write -f 100 t"));
    for number in 0..20 {
        house.run(&format!("zfs create -o mountpoint=none t/a{number}"));
    }
    let shows = |wanted: &[&str], absent: &str| {
        until(&format!("{wanted:?} and no {absent}"), || {
            house.run("zpool sync t");
            let status = house.run("zpool status t");
            wanted.iter().all(|text| status.contains(text)) && !status.contains(absent)
        });
    };
    shows(&["  spare-1", " FAULTED ", "too many errors", "INUSE     currently in use"], "AVAIL");
    house.run("zinject -c all");
    house.run("zpool wait -t resilver t");
    house.run("zpool clear t");
    shows(&["AVAIL", " state: ONLINE"], "  spare-1");
    house.run("zpool export t");
    house.run("daemon stop");
    if let Some(zdb) = zdb() {
        let said = zdb.pool("t", &house.path("pool"), &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
}
