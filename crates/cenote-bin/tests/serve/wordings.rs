//! Messages for a pool in use, compared with the recorded ones of OpenZFS's commands.

use std::fs::File;

use cenote_testkit::wordings;

use crate::daemon::{House, has_fuse};

/// Size of a device.
const SIZE: u64 = 128 << 20;

/// Commands of the recording, in the order of execution here.
const IN_USE: &[&str] = &[
    "zpool create -m /mnt/t t mirror /dev/shm/v/a /dev/shm/v/b",
    "zpool create t2 /dev/shm/v/a",
    "zpool status t",
    "zfs create t/a",
    "zfs mount t/a",
    "zfs unmount t/a",
    "zfs unmount t/a",
    "zfs userspace t/a",
    "zfs allow t/a",
    "zpool set comment=hi t",
    "zpool wait t",
    "zpool export t",
    "zpool import -d /dev/shm/v nope",
    "zpool import -d /dev/shm/v t newt",
    "zpool destroy newt",
    "zpool import -d /dev/shm/v",
    "zpool import -d /dev/shm/v -D",
];

/// Device names are longer here, and so are their columns.
fn in_words(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split_whitespace().collect()).collect()
}

#[test]
fn messages_for_a_pool_in_use_equal_openzfs() {
    let Some(all) = wordings("wording.txt") else { return };
    if !has_fuse() {
        return;
    }
    let house = House::new("wordings");
    for name in ["a", "b", "c"] {
        File::create(house.path("pool").join(name)).unwrap().set_len(SIZE).unwrap();
    }
    let (folder, at) = (house.text("pool"), house.text("at"));
    let mut guid = String::new();
    let mut rest = all.iter();
    for command in IN_USE {
        let want = rest.find(|there| there.command == *command);
        let want = want.unwrap_or_else(|| panic!("{command} is not there"));
        let here = |text: &str| {
            text.replace("/dev/shm/v", &folder)
                .replace("/mnt/t", &at)
                .replace("17861640615570465212", &guid)
        };
        let line = here(command);
        let words: Vec<&str> = line.split(' ').collect();
        let said = house.command(&words).output().unwrap();
        let (out, err) = (String::from_utf8(said.stdout), String::from_utf8(said.stderr));
        assert_eq!(err.unwrap(), here(&want.err), "{command}");
        let out = out.unwrap();
        assert_eq!(in_words(&out), in_words(&here(&want.out)), "{command}");
        assert_eq!(said.status.code(), Some(want.status), "{command}");
        if guid.is_empty() {
            guid = house.run("zpool get -H -o value guid t").trim().to_owned();
        }
    }
}
