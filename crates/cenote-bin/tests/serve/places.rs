//! Places at which the daemon mounts file systems: at several places, over one another, and again.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::daemon::{House, has_fuse};
use crate::mounts::{is_root, kernel_options, mount_helper};

/// Runs a command that must succeed, and returns its standard error.
fn complains(house: &House, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let output = house.command(&words).output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn mounted(house: &House, names: &str) -> String {
    house.run(&format!("zfs get -H -o value mounted {names}"))
}

/// Symbolic links of another user do not redirect mounts.
#[test]
fn mount_follows_no_links_of_other_users() {
    const OTHER: u32 = 54_321;
    if !has_fuse() || !is_root() {
        return;
    }
    let house = House::new("places-links");
    house.create("none");
    let own = |name: &str| std::os::unix::fs::lchown(house.path(name), Some(OTHER), None).unwrap();
    for folder in ["victim", "home", "shared"] {
        fs::create_dir(house.path(folder)).unwrap();
    }
    let link = |target: &str, at: &str| {
        std::os::unix::fs::symlink(house.path(target), house.path(at)).unwrap();
    };
    let refused = |at: &str| {
        let place = house.text(at);
        house.run("zfs create -o canmount=noauto t/x");
        house.run(&format!("zfs set mountpoint={place} t/x"));
        let (status, said) = house.fails("zfs mount t/x");
        let wanted = format!(
            "cannot mount 't/x': a symbolic link in '{place}' belongs to another user, or lies \
             where another user can write\n"
        );
        assert_eq!((status, said), (1, wanted));
        house.run("zfs destroy t/x");
        assert_eq!(fs::read_dir(house.path("victim")).unwrap().count(), 0, "nothing is made");
    };
    // The user's own link in the user's own directory, and root's in a directory of the user's.
    own("home");
    link("victim", "home/tank");
    refused("home/tank/x");
    own("home/tank");
    refused("home/tank");
    refused("home/tank/x/y");
    // A directory writable by everyone, and one that is sticky.
    link("victim", "shared/tank");
    let mode = |mode| {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(mode);
        fs::set_permissions(house.path("shared"), mode).unwrap();
    };
    mode(0o777);
    refused("shared/tank/x");
    mode(0o1777);
    house.run(&format!("zfs create -o mountpoint={} t/y", house.text("shared/tank/y")));
    assert_eq!(mounted(&house, "t/y"), "yes\n");
    let places = house.run("zfs mount");
    assert!(places.contains(&house.text("victim/y")), "{places}");
    // A directory of the user's without links is permitted.
    house.run(&format!("zfs create -o mountpoint={} t/z", house.text("home/z/z")));
    assert_eq!(mounted(&house, "t/z"), "yes\n");
    // The daemon's state is not hidden through a link either.
    link("state", "alias");
    house.run(&format!("zfs create -o canmount=noauto -o mountpoint={} t/s", house.text("alias")));
    let (_, said) = house.fails("zfs mount t/s");
    assert!(said.contains("the daemon keeps its state in it"), "{said}");
    house.run("zpool export t");
}

/// One file system in the kernel, too: data written at one place is visible at the other, whatever
/// pages the kernel has cached.
#[test]
fn mount_at_several_places() {
    if !has_fuse() || !is_root() {
        return;
    }
    let house = House::new("places-several");
    house.create(&house.text("at"));
    house.run("zfs create t/a");
    let (own, second, third) = (house.text("at/a"), house.text("second"), house.text("third"));
    fs::write(house.path("at/a/file"), "one").unwrap();
    let mount = |words: &[&str]| {
        let done = mount_helper(&house, words);
        (done.status.code().unwrap(), String::from_utf8_lossy(&done.stderr).into_owned())
    };
    let read = |name: &str| fs::read_to_string(house.path(name)).unwrap();

    let (status, said) = mount(&["-o", "zfsutil", "t/a", &second]);
    assert_eq!(status, 2, "{said}");
    assert!(said.contains("No such file or directory"), "{said}");
    assert!(!house.path("second").exists(), "it is not made");
    fs::create_dir(&second).unwrap();
    fs::create_dir(&third).unwrap();
    assert_eq!(mount(&["-o", "zfsutil", "t/a", &second]), (0, String::new()));
    assert_eq!(mount(&["-o", "zfsutil,ro,noexec", "t/a", &third]), (0, String::new()));
    let device = |name: &str| fs::metadata(house.path(name)).unwrap().dev();
    assert_eq!((device("at/a"), device("at/a")), (device("second"), device("third")));
    assert!(
        kernel_options(&third).contains("noexec") && !kernel_options(&second).contains("noexec")
    );
    assert_eq!((read("at/a/file"), read("second/file")), ("one".to_owned(), "one".to_owned()));
    fs::write(house.path("at/a/file"), "two").unwrap();
    assert_eq!((read("second/file"), read("third/file")), ("two".to_owned(), "two".to_owned()));
    assert!(fs::write(house.path("third/file"), "three").is_err());
    let (status, said) = mount(&["-o", "zfsutil,noatime", "t/a", &third]);
    let wanted = "cannot mount 't/a': it is mounted with other options already\n";
    assert_eq!((status, said.as_str()), (32, wanted));
    assert_eq!(
        house.fails("zfs mount t/a"),
        (1, "cannot mount 't/a': filesystem already mounted\n".to_owned())
    );
    let row = |name: &str, at: &str| format!("{name:<30}  {at}\n");
    let all = |name: &str, places: [&str; 3]| {
        let rows: String = places.iter().map(|at| row(name, at)).collect();
        row("t", &house.text("at")) + &rows
    };
    assert_eq!(house.run("zfs mount"), all("t/a", [&own, &second, &third]));

    // Its own place changes with its name; places of explicit mounts stay.
    house.run("zfs rename t/a t/b");
    assert_eq!(house.run("zfs mount"), all("t/b", [&house.text("at/b"), &second, &third]));
    fs::write(house.path("at/b/file"), "four").unwrap();
    assert_eq!((read("second/file"), read("third/file")), ("four".to_owned(), "four".to_owned()));
    let (_, said) = house.fails("zfs destroy t/b");
    assert_eq!(said, "cannot destroy 't/b': dataset is busy\n");
    assert_eq!(mounted(&house, "t/b"), "yes\n");

    // Each place is unmounted by itself; the last one ends the mount.
    house.run("zfs unmount t/b");
    assert!(!house.path("at/b/file").exists());
    assert_eq!(
        (mounted(&house, "t/b"), read("second/file")),
        ("yes\n".to_owned(), "four".to_owned())
    );
    house.run("zfs set readonly=on t/b");
    assert!(fs::write(house.path("second/file"), "five").is_err());
    house.run("zfs set readonly=off t/b");
    fs::write(house.path("second/file"), "five").unwrap();
    house.run(&format!("zfs unmount {second}"));
    assert_eq!(read("third/file"), "five");
    house.run(&format!("zfs unmount {third}"));
    assert_eq!(mounted(&house, "t/b"), "no\n");

    house.run("zfs mount t/b");
    assert_eq!(mount(&["-o", "zfsutil", "t/b", &second]).0, 0);
    let open = fs::File::open(house.path("second/file")).unwrap();
    house.run("zfs destroy -f t/b");
    assert!(!house.path("second/file").exists() && !house.path("at/b/file").exists());
    drop(open);
    house.run("zfs create t/c");
    assert_eq!(mount(&["-o", "zfsutil", "t/c", &second]).0, 0);
    house.run("zpool export t");
    assert_eq!(device("second"), device("third"), "nothing is mounted");
}

#[test]
fn overlay_mounts_hide_one_another() {
    if !has_fuse() {
        return;
    }
    let house = House::new("places-hide");
    house.create("none");
    let at = house.text("at");
    house.run(&format!("zfs create -o mountpoint={at} t/a"));
    fs::write(house.path("at/a"), "a").unwrap();
    // Mounted over the file system that contains the place.
    house.run(&format!("zfs create -o mountpoint={at}/in t/b"));
    fs::write(house.path("at/in/b"), "b").unwrap();
    house.run(&format!("zfs create -o mountpoint={at} t/c"));
    fs::write(house.path("at/c"), "c").unwrap();
    assert!(!house.path("at/a").exists() && !house.path("at/in").exists());
    let (_, said) = house.fails("zfs unmount t/a");
    assert_eq!(said, format!("cannot unmount '{at}': pool or dataset is busy\n"));
    assert_eq!(fs::read_to_string(house.path("at/c")).unwrap(), "c", "the other one is there");
    house.run("zfs unmount -a");
    assert_eq!(mounted(&house, "t/a t/b t/c"), "no\nno\nno\n");
    house.run("zfs mount t/a");
    house.run("zfs mount t/c");
    house.run(&format!("zfs unmount {at}"));
    assert_eq!(mounted(&house, "t/a t/c"), "yes\nno\n");

    // With overlay=off it is not mounted over a nonempty directory; the property is set anyway.
    house.run("zfs create -u -o overlay=off t/d");
    let not_there = format!("cannot mount '{at}': directory is not empty\n");
    assert_eq!(complains(&house, &format!("zfs set mountpoint={at} t/d")), not_there);
    assert_eq!(house.run("zfs get -H -o value mountpoint,mounted t/d"), format!("{at}\nno\n"));
    assert_eq!(house.fails("zfs mount t/d"), (1, not_there));
    house.run("zfs mount -O t/d");
    assert!(!house.path("at/a").exists());
    house.run("zpool export t");
    assert_eq!(fs::read_dir(&at).unwrap().count(), 0);
}

#[test]
fn mountpoint_set_again_mounts() {
    if !has_fuse() {
        return;
    }
    let house = House::new("places-again");
    let at = house.text("at");
    house.create(&at);
    house.run("zfs create -p t/a/b");
    house.run("zfs create -o canmount=noauto t/a/c");
    let all = "t t/a t/a/b t/a/c";
    house.run("zfs unmount -a");
    house.run(&format!("zfs set -u mountpoint={at} t"));
    assert_eq!(mounted(&house, all), "no\nno\nno\nno\n");
    house.run(&format!("zfs set mountpoint={at} t"));
    assert_eq!(mounted(&house, all), "yes\nyes\nyes\nno\n");
    // A mounted file system stays, even if it is in use.
    let open = fs::File::create(house.path("at/a/file")).unwrap();
    house.run(&format!("zfs set mountpoint={at} t"));
    drop(open);

    // A file cannot be mounted at: the property is set, and the failure reported.
    let file = house.text("file");
    fs::write(&file, "kept").unwrap();
    let said = complains(&house, &format!("zfs set mountpoint={file} t/a/b"));
    assert_eq!(said, format!("cannot mount '{file}': failed to create mountpoint: File exists\n"));
    assert_eq!(house.run("zfs get -H -o value mountpoint,mounted t/a/b"), format!("{file}\nno\n"));
    assert_eq!(complains(&house, "zfs inherit mountpoint t/a/b"), "");
    assert_eq!(mounted(&house, all), "yes\nyes\nyes\nno\n");

    // Children of a file system that is not mounted any more stay.
    house.run("zfs set canmount=off t/a");
    assert_eq!(mounted(&house, all), "yes\nno\nyes\nno\n");
    house.run("zpool export t");
}

/// A default mount point moves like an inherited one.
#[test]
fn mountpoint_of_descendants_follows_a_default_one() {
    if !has_fuse() {
        return;
    }
    let house = House::new("places-default");
    let (root, d0) = (house.text("root"), house.text("pool/d0"));
    house.run(&format!("zpool create -R {root} t {d0}"));
    house.run("zfs create t/a");
    assert_eq!(mounted(&house, "t t/a"), "yes\nyes\n");
    house.run("zfs set mountpoint=none t");
    assert_eq!(mounted(&house, "t t/a"), "no\nno\n");
    house.run("zfs inherit mountpoint t");
    assert_eq!(mounted(&house, "t t/a"), "yes\nyes\n");
    house.run("zpool export t");
}

/// At any place; all of them, or none.
#[test]
fn unmount_includes_descendants() {
    if !has_fuse() {
        return;
    }
    let house = House::new("places-below");
    house.create(&house.text("at"));
    house.run("zfs create t/a");
    house.run(&format!("zfs create -o mountpoint={} t/a/b", house.text("elsewhere")));
    house.run("zfs create t/ab");
    let all = "t t/a t/a/b t/ab";
    let busy = fs::File::create(house.path("at/a/file")).unwrap();
    house.fails("zfs unmount t/a");
    assert_eq!(mounted(&house, all), "yes\nyes\nyes\nyes\n");
    drop(busy);
    house.run("zfs unmount t/a");
    assert_eq!(mounted(&house, all), "yes\nno\nno\nyes\n");
    // Through an unmounted parent its children cannot be reached.
    house.run("zfs mount t/a/b");
    let said = house.fails("zfs unmount t/a").1;
    assert_eq!(said, "cannot unmount 't/a': not currently mounted\n");
    house.run("zfs unmount t");
    assert_eq!(mounted(&house, all), "no\nno\nno\nno\n");
    house.run("zpool export t");
}
