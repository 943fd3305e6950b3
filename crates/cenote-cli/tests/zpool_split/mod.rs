//! `zpool split`, and log vdevs that are removed: messages, and the pools that they leave.

use crate::Shed;

/// Commands of the recording, in the order of execution.
const RECORDED: &[&str] = &[
    "zpool split",
    "zpool split t",
    "zpool split t t",
    "zpool split nope t2",
    "zpool split t 9bad",
    "zpool split -n t t2",
    "zpool split -n t t2 /dev/shm/v/a",
    "zpool split t t2 /dev/shm/v/nope",
    "zpool split t t2 /dev/shm/v/a /dev/shm/v/b",
    "zpool split -l -n t t2",
    "zpool split -o nosuch=1 t t2",
    "zpool split t t2",
    "zpool split t t3",
];

#[test]
fn messages_of_split_are_those_of_openzfs() {
    let Some(all) = cenote_testkit::wordings("second.txt") else { return };
    let shed = Shed::new("split-words", 0);
    for name in ["a", "b"] {
        shed.add(name, crate::SIZE);
    }
    let folder = shed.here("/dev/shm/v/");
    shed.succeeds("zpool create -f -m /mnt/t t mirror a b");
    shed.succeeds("zfs create t/a");
    let mut rest = all.iter();
    for command in RECORDED {
        shed.run_as_recorded(&mut rest, command);
    }
    let status = shed.succeeds("zpool status t");
    assert!(status.contains(&format!("\n\t  {folder}a  ONLINE")), "{status}");
    assert!(!status.contains("mirror"), "{status}");
    let history = shed.succeeds("zpool history -i t");
    assert!(history.contains(&format!(" detach vdev={folder}b\n")), "{history}");
    assert!(history.contains("zpool split t t2\n"), "{history}");
    shed.judge("t");
    // The new pool has the data of the old one.
    shed.succeeds("zpool import t2");
    assert_eq!(shed.succeeds("zfs list -H -o name -r t2"), "t2\nt2/a\n");
    let history = shed.succeeds("zpool history -i t2");
    assert!(history.contains(" split from pool t\n"), "{history}");
    shed.judge("t2");
}

/// Named sides go; log vdevs, spares and cache devices stay; properties are set.
#[test]
fn named_sides_become_the_new_pool() {
    let shed = Shed::new("split-sides", 9);
    let at = shed.here("/dev/shm/v/");
    shed.succeeds("zpool create -f t mirror d0 d1 log d2 spare d7 cache d8");
    shed.succeeds("zpool add -f t special mirror d3 d4 d5");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zfs snapshot t/a@1");
    let preview = shed.succeeds("zpool split -n t u d0 d4");
    let said = format!(
        "would create 'u' with the following layout:\n\n\tu\n\t  {at}d0\n\tspecial\n\t  {at}d4\n"
    );
    assert_eq!(preview, said);
    shed.succeeds("zpool split -o comment=half t u d0 d4");
    let status = shed.succeeds("zpool status t");
    for there in ["d1", "d2", "d3", "d5", "d7", "d8", "spares", "cache", "logs"] {
        assert!(status.contains(there), "{there}: {status}");
    }
    assert!(!status.contains("d0") && !status.contains("d4"), "{status}");
    shed.judge("t");
    shed.succeeds("zpool import u");
    let status = shed.succeeds("zpool status u");
    assert!(status.contains(" state: ONLINE") && !status.contains("spares"), "{status}");
    assert_eq!(shed.succeeds("zpool get -H -o value comment u"), "half\n");
    shed.succeeds("zfs create u/b");
    shed.judge("u");
    // The last side of each is left.
    let refused = "Source pool must be composed only of mirrors";
    shed.fails("zpool split t w", &format!("Unable to split t: {refused}"));
    // A side that is out of service.
    shed.add("d9", crate::SIZE);
    shed.succeeds("zpool create v mirror d6 d9");
    shed.succeeds("zpool offline v d9");
    shed.fails("zpool split v w", "Unable to split v: invalid argument for this pool operation");
}

/// With `-R` the new pool is imported.
#[test]
fn new_pool_is_imported() {
    let shed = Shed::new("split-import", 2);
    shed.succeeds("zpool create t mirror d0 d1");
    let alt = shed.path().join("alt");
    let (_, err, status) = shed.run("zpool split -o ro t u");
    let text = "setting mntopts is only valid when importing the pool\nusage:\n\tsplit [-gLnPl]";
    assert!(status == 2 && err.starts_with(text), "{err}");
    for (setting, why) in [
        ("bootfs=u/x", "cannot be set at creation or import time"),
        ("feature@async_destroy=disabled", "can only be set to 'disabled' at creation time"),
    ] {
        let name = setting.split('=').next().expect("a name");
        let want = format!("Unable to split t: property '{name}' {why}");
        shed.fails(&format!("zpool split -o {setting} t u"), &want);
    }
    shed.succeeds(&format!("zpool split -R {} t u", alt.to_str().expect("UTF-8")));
    assert_eq!(shed.succeeds("zpool list -H -o name"), "t\nu\n");
    shed.judge("t");
    shed.judge("u");
}

/// Log vdevs are removed by the names that `zpool status` shows.
#[test]
fn log_vdevs_are_removed() {
    let shed = Shed::new("log-removal", 4);
    shed.succeeds("zpool create -f t d0 log d3 mirror d1 d2");
    shed.succeeds("zfs create t/a");
    shed.fails("zpool remove t mirror-7", "cannot remove mirror-7: no such device in pool");
    shed.succeeds("zpool remove -n t mirror-2");
    shed.succeeds("zpool remove t mirror-2");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains("logs") && !status.contains("mirror"), "{status}");
    shed.judge("t");
    shed.succeeds("zpool checkpoint t");
    shed.fails("zpool remove t d3", "cannot remove d3: checkpoint exists");
    shed.succeeds("zpool checkpoint -d -w t");
    shed.succeeds("zpool remove t d3");
    let status = shed.succeeds("zpool status t");
    assert!(!status.contains("logs"), "{status}");
    let history = shed.succeeds("zpool history -i t");
    assert!(history.contains(" vdev remove t vdev 2 (log) -\n"), "{history}");
    // The slots stay empty, and their devices are free.
    shed.succeeds("zpool add -f t log d1 d2");
    shed.succeeds("zfs create t/b");
    shed.judge("t");
    shed.succeeds("zpool export t");
    shed.succeeds("zpool import t");
    shed.judge("t");
}
