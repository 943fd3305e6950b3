//! Redacted streams through the command line and mounts: what must not leave does not, what was
//! left out can be restored.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::daemon::{House, has_fuse};
use crate::receiving::{leave, receive, receives, refuses, send};

/// Repeated in every block that must not leave.
const SECRET: &[u8] = b"do not tell anyone of this ";

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    entries.map(read).collect()
}

fn tells(stream: &[u8]) -> bool {
    stream.windows(SECRET.len()).any(|bytes| bytes == SECRET)
}

/// A file system `t/a` at `a` with secrets, its snapshot `one`, and clones `t/r1` and `t/r2` without
/// them, whose snapshots are `x`.
fn with_secrets(house: &House) {
    house.create("none");
    let create = "zfs create -o recordsize=16K -o compression=off -o mountpoint";
    house.run(&format!("{create}={} t/a", house.text("a")));
    let secret = SECRET.repeat(8000);
    let public: Vec<u8> = (0..300_000_u32).map(|index| (index / 16_384) as u8).collect();
    for (name, bytes) in
        [("public", &public[..]), ("secret", &secret), ("reused", &secret), ("small", b"little")]
    {
        std::fs::write(house.path("a").join(name), bytes).unwrap();
    }
    house.run("zfs snapshot t/a@one");
    for clone in ["r1", "r2"] {
        let place = house.path(clone);
        house.run(&format!("zfs clone -o mountpoint={} t/a@one t/{clone}", place.display()));
        std::fs::write(place.join("secret"), b"nothing").unwrap();
        let number = std::fs::metadata(place.join("reused")).unwrap().ino();
        std::fs::remove_file(place.join("reused")).unwrap();
        // The kernel forgets the file at the latest now.
        house.run(&format!("zfs unmount t/{clone}"));
        house.run(&format!("zfs mount t/{clone}"));
        house.run("zpool sync t");
        // Another object, of one block, gets the number of the secret one.
        let is_reused = (0..4000).any(|index| {
            let path = place.join(format!("new{index}"));
            std::fs::write(&path, b"new").unwrap();
            let is_it = std::fs::metadata(&path).unwrap().ino() == number;
            if !is_it {
                std::fs::remove_file(&path).unwrap();
            }
            if index % 100 == 99 {
                house.run("zpool sync t");
            }
            is_it
        });
        assert!(is_reused, "{clone}: object {number} is not used again");
    }
    // Changed in one of them only: still public.
    std::fs::write(house.path("r1/public"), b"other").unwrap();
    house.run("zfs snapshot t/r1@x");
    house.run("zfs snapshot t/r2@x");
}

#[test]
fn redacted_streams_do_not_tell_and_are_completed_later() {
    if !has_fuse() {
        return;
    }
    let house = House::new("redacting");
    with_secrets(&house);
    let whole = contents(&house.path("a"));
    house.run("zfs redact t/a@one book t/r1@x t/r2@x");
    let guids = ["t/r1@x", "t/r2@x"]
        .map(|name| house.run(&format!("zfs get -Hp -o value guid {name}")).trim().to_owned());
    let redact_snaps = house.run("zfs get -H -o value redact_snaps t/a#book");
    assert_eq!(redact_snaps.trim(), guids.join(","));

    assert!(tells(&send(&house, "t/a@one")));
    let redacted = send(&house, "--redact book t/a@one");
    assert!(!tells(&redacted), "a redacted stream has a secret");
    let estimate = house.run("zfs send -nP --redact book t/a@one");
    assert!(estimate.ends_with(&format!("size\t{}\n", redacted.len())), "{estimate}");

    let place = house.text("b");
    receives(&house, &format!("-o mountpoint={place} t/b"), &redacted);
    assert_eq!(house.run("zfs get -H -o value redacted,mounted t/b"), "1\nno\n");
    let (status, said) = house.fails("zfs mount t/b");
    let incomplete = "cannot mount 't/b': Dataset is not complete, was created by receiving a \
                      redacted zfs send stream.\n";
    assert_eq!((status, said.as_str()), (1, incomplete));
    house.run("zfs mount -a");
    assert_eq!(house.run("zfs get -H -o value mounted t/b"), "no\n");
    house.run("zfs mount -f t/b");
    let found = contents(&house.path("b"));
    for name in ["public", "small"] {
        assert!(found[name] == whole[name], "{name}");
    }
    for name in ["secret", "reused"] {
        let zeros = vec![0; whole[name].len()];
        assert!(found[name] == zeros, "{name} is not all zeros");
    }
    house.run("zfs unmount t/b");
    // Its files were read.
    house.run("zfs rollback t/b@one");

    // An interrupted one is continued; also another with what it had received.
    let half = &redacted[..redacted.len() / 2];
    assert_eq!(receive(&house, "-s -u t/part", half).status, 1);
    let saved = send(&house, "-S t/part");
    assert_eq!(receive(&house, "-s -u t/copy", &saved).status, 1);
    for name in ["t/part", "t/copy"] {
        let token = house.run(&format!("zfs get -H -o value receive_resume_token {name}"));
        let tail = send(&house, &format!("-t {}", token.trim()));
        assert!(!tells(&tail) && tail.len() < redacted.len(), "{name}");
        receives(&house, &format!("-s -u {name}"), &tail);
        let found = house.run(&format!("zfs get -H -o value redact_snaps {name}@one"));
        assert_eq!(found.trim(), guids.join(","), "{name}");
    }

    // The blocks that were left out, as a clone; and with those that have changed since.
    let rest = send(&house, "-i #book t/a@one");
    assert!(tells(&rest) && rest.len() < send(&house, "t/a@one").len());
    let options = format!("-o origin=t/b@one -o mountpoint={} t/c", house.text("c"));
    receives(&house, &options, &rest);
    assert!(contents(&house.path("c")) == whole);
    std::fs::write(house.path("a/small"), b"larger").unwrap();
    house.run("zfs snapshot t/a@two");
    let unfit = "cannot receive incremental stream: invalid backup stream: the source of the \
                 increment is redacted, and the stream is not one for it\n";
    refuses(&house, "t/b", &send(&house, "-i @one t/a@two"), unfit);
    receives(&house, "t/b", &send(&house, "-i #book t/a@two"));
    // The whole file system can be mounted.
    assert_eq!(house.run("zfs get -H -o value redacted,mounted t/b"), "0\nno\n");
    house.run("zfs mount t/b");
    assert!(contents(&house.path("b")) == contents(&house.path("a")));
    leave(&house);
}

#[test]
fn redactions_are_refused_as_by_openzfs() {
    let house = House::new("redacting-refused");
    house.create("none");
    for line in [
        "zfs create -o mountpoint=none t/a",
        "zfs snapshot t/a@one",
        "zfs snapshot t/a@two",
        "zfs clone t/a@one t/r1",
        "zfs snapshot t/r1@x",
        "zfs bookmark t/a@one t/a#plain",
    ] {
        house.run(line);
    }
    let usage = house.fails("zfs redact t/a@two book");
    assert!(usage.0 == 2 && usage.1.starts_with("too few arguments\nusage:"), "{usage:?}");
    let descendant = "redaction snapshot must be descendent of snapshot being redacted\n";
    let missing = "cannot open 't/no@x': dataset does not exist\n\
                   provided snapshot t/no@x does not exist\n";
    let exists = "specified redaction bookmark (plain) provided already exists\n";
    for (args, status, said) in [
        ("t/a@two book t/r1@x", 22, descendant),
        ("t/a@one book t/a@one", 22, descendant),
        ("t/a book t/r1@x", 22, descendant),
        ("t/a#plain book t/r1@x", 22, descendant),
        ("t/a@one b@d t/r1@x", 22, descendant),
        ("t/a@one t/a#b t/r1@x", 22, "redaction bookmark name must not contain '#'\n"),
        ("t/a@one book t/no@x", 2, missing),
        ("t/no@x book t/r1@x", 2, missing),
        ("t/a@one plain t/r1@x", 17, exists),
    ] {
        assert_eq!(house.fails(&format!("zfs redact {args}")), (status, said.to_owned()), "{args}");
    }
    house.run("zfs redact t/a@one book t/r1@x t/a@two");
    for (args, status, said) in [
        ("t/r1@x t/a@two", 17, "specified redaction bookmark (book) provided already exists\n"),
        ("t/r1@x", 3, "attempted to resume redaction  with a mismatched redaction list\n"),
    ] {
        let line = format!("zfs redact t/a@one book {args}");
        assert_eq!(house.fails(&line), (status, said.to_owned()), "{args}");
    }
    // Its list goes with a bookmark, and a copy of it has none.
    house.run("zfs bookmark t/a#book t/a#copy");
    assert_eq!(house.run("zfs get -H -o value redact_snaps t/a#copy"), "-\n");
    assert_eq!(house.run("zpool get -H -o value feature@redaction_bookmarks t"), "active\n");
    house.run("zfs destroy t/a#book");
    assert_eq!(house.run("zpool get -H -o value feature@redaction_bookmarks t"), "enabled\n");
    house.run("zfs redact t/a@one again t/r1@x t/r1@x");
    house.run("zfs promote t/r1");
    assert_eq!(house.run("zfs list -H -o name -t bookmark"), "t/r1#again\nt/r1#copy\nt/r1#plain\n");
    leave(&house);
}

/// More redaction snapshots than fit in the dnode of the list: they are in its spill block.
#[test]
fn lists_name_many_snapshots() {
    let house = House::new("redacting-many");
    house.create("none");
    house.run("zfs create -o mountpoint=none t/a");
    house.run("zfs snapshot t/a@one");
    let clones: Vec<String> = (0..40).map(|number| format!("t/r{number}")).collect();
    for clone in &clones {
        house.run(&format!("zfs clone t/a@one {clone}"));
    }
    let snapshots: Vec<String> = clones.iter().map(|clone| format!("{clone}@x")).collect();
    let snapshots = snapshots.join(" ");
    house.run(&format!("zfs snapshot {snapshots}"));
    for mark in ["first", "book"] {
        house.run(&format!("zfs redact t/a@one {mark} {snapshots}"));
    }
    house.run("zfs destroy t/a#first");
    let told = house.run("zfs get -H -o value redact_snaps t/a#book");
    assert_eq!(told.trim_end().split(',').count(), clones.len(), "{told}");
    let feature = "zpool get -H -o value feature@redaction_list_spill t";
    assert_eq!(house.run(feature), "active\n");
    assert!(!send(&house, "--redact book t/a@one").is_empty());
    leave(&house);
}
