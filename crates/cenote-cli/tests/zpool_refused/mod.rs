//! Device commands that are refused write nothing to devices of other pools or of no pool, and
//! leave the vdevs of the pool as they are.

use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::{SIZE, Shed};

/// Bytes at both ends of a device, where labels are.
const ENDS: usize = 1 << 20;

/// A device of the exported pool `h`, one of the imported pool `g`, one that is too small, and one
/// with the contents of somebody else.
const OTHERS: [&str; 4] = ["theirs", "active", "small", "used"];

/// Command lines, and what the message contains.
const REFUSED: &[(&str, &str)] = &[
    ("zpool attach t d0 theirs", "theirs is part of exported pool 'h'"),
    ("zpool replace t d0 theirs", "theirs is part of exported pool 'h'"),
    ("zpool add t mirror theirs used", "theirs is part of exported pool 'h'"),
    ("zpool add t spare theirs", "theirs is part of exported pool 'h'"),
    ("zpool add -f t log theirs nosuch", "nosuch"),
    ("zpool create u theirs", "theirs is part of exported pool 'h'"),
    ("zpool attach t d0 active", "active is part of potentially active pool 'g'"),
    ("zpool replace t d0 active", "active is part of potentially active pool 'g'"),
    ("zpool add t spare active", "active is part of potentially active pool 'g'"),
    ("zpool create u active", "active is part of potentially active pool 'g'"),
    ("zpool labelclear active", "active"),
    ("zpool labelclear theirs", "theirs"),
    ("zpool attach t d0 small", "device is too small"),
    ("zpool replace t d0 small", "device is too small"),
    ("zpool add -f t small", "less than the minimum size"),
    ("zpool create u small", "less than the minimum size"),
    ("zpool attach t d0 d0", "d0"),
    ("zpool attach -f t d0 d1", "d1"),
    ("zpool attach t d0 l", "l is part of active pool 't'"),
    ("zpool attach t d0 sp", "sp is reserved as a hot spare"),
    ("zpool attach t nosuch used", "nosuch"),
    ("zpool replace t nosuch used", "nosuch"),
    ("zpool replace t ca used", "no such device in pool"),
    ("zpool add t mirror d1 used", "d1"),
    ("zpool add t spare sp", "one or more vdevs refer to the same device"),
    ("zpool add t cache ca", "ca is reserved as"),
    ("zpool add t mirror used used", "one or more vdevs refer to the same device"),
    ("zpool add t used", "mismatched replication level"),
    ("zpool add t raidz used theirs", "theirs is part of exported pool 'h'"),
    ("zpool create u mirror used used", "one or more vdevs refer to the same device"),
    ("zpool create u d0", "d0 is part of potentially active pool 't'"),
    ("zpool labelclear d0", "d0"),
    ("zpool detach t l", "only applicable to mirror and replacing vdevs"),
    ("zpool detach t nosuch", "no such device in pool"),
    ("zpool remove t d0", "cannot remove d0"),
    ("zpool remove t mirror-0", "cannot remove mirror-0"),
    ("zpool remove t nosuch", "no such device in pool"),
    ("zpool offline t nosuch", "nosuch"),
    ("zpool online t nosuch", "nosuch"),
    ("zpool clear t nosuch", "no such device in pool"),
    ("zpool split t", "Missing new pool name"),
    ("zpool split t u nosuch", "nosuch"),
    ("zpool initialize t nosuch", "nosuch"),
    ("zpool trim t nosuch", "nosuch"),
    ("zpool scrub -s t", "there is no active scrub"),
    ("zpool set allocating=off t mirror-0", "mirror-0"),
];

fn hash_of(path: &Path) -> u64 {
    let (mut file, mut hasher) = (File::open(path).expect("a device"), DefaultHasher::new());
    let mut piece = vec![0; 1 << 20];
    loop {
        match file.read(&mut piece).expect("bytes") {
            0 => return hasher.finish(),
            count => hasher.write(&piece[..count]),
        }
    }
}

fn ends_of(path: &Path) -> [Vec<u8>; 2] {
    let file = File::open(path).expect("a device");
    let last = file.metadata().expect("its size").len() - ENDS as u64;
    [0, last].map(|at| {
        let mut bytes = vec![0; ENDS];
        file.read_exact_at(&mut bytes, at).expect("bytes");
        bytes
    })
}

#[test]
fn refused_device_commands_write_nothing() {
    let shed = Shed::new("refused", 2);
    for name in ["l", "ca", "sp", "theirs", "active", "used"] {
        shed.add(name, SIZE);
    }
    shed.add("small", 32 << 20);
    std::fs::write(shed.path().join("used"), vec![0x5a; SIZE as usize]).expect("contents");
    shed.succeeds("zpool create t mirror d0 d1 log l cache ca spare sp");
    shed.succeeds("zpool create h theirs");
    shed.succeeds("zpool export h");
    shed.succeeds("zpool create g active");
    let hashes = |names: &[&str]| -> Vec<u64> {
        names.iter().map(|name| hash_of(&shed.path().join(name))).collect()
    };
    let ends = || OTHERS.map(|name| ends_of(&shed.path().join(name)));
    let state = || {
        let shown = ["status -P t", "get -H -o name,value guid t all-vdevs"];
        shown.map(|line| shed.succeeds(&format!("zpool {line}")))
    };
    let (others, before) = (hashes(&OTHERS), state());
    let ends_before = ends();
    let mut wrong = Vec::new();
    for (line, want) in REFUSED {
        let (_, err, status) = shed.run(line);
        if status == 0 || !err.contains(want) {
            wrong.push(format!("{line}: {status}\n{err}"));
        }
        if ends() != ends_before {
            wrong.push(format!("{line}: wrote to a device that is not the pool's"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(state(), before);
    assert!(hashes(&OTHERS) == others, "a device was written that is not the pool's");
    shed.judge("t");
    shed.judge("h");
}
