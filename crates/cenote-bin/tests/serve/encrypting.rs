//! Encrypted file systems and volumes through the command line and mounts: what is on the devices
//! tells nothing, what comes back is what was written, and raw streams carry it.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use crate::daemon::{House, has_fuse};
use crate::receiving::{leave, receive, receives, refuses, send};

/// Repeated in every file.
const SECRET: &[u8] = b"do not tell anyone of this ";
const PASSPHRASE: &str = "correct horse battery";

fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let files = entries.filter(|entry| entry.file_type().unwrap().is_file());
    let read = |entry: std::fs::DirEntry| {
        (entry.file_name().into_string().unwrap(), std::fs::read(entry.path()).unwrap())
    };
    files.map(read).collect()
}

/// Whether a device of the pool has the secret anywhere.
fn tells(house: &House) -> bool {
    let devices = std::fs::read_dir(house.path("pool")).unwrap().map(Result::unwrap);
    let mut bytes = devices.map(|device| std::fs::read(device.path()).unwrap());
    bytes.any(|bytes| bytes.windows(SECRET.len()).any(|window| window == SECRET))
}

/// Writes the key file.
fn with_key(house: &House, name: &str, passphrase: &str) -> String {
    std::fs::write(house.path(name), format!("{passphrase}\n")).unwrap();
    format!("file://{}", house.text(name))
}

/// A pool with the encryption root `t/e` at `e`, and its child `t/e/kid` there.
fn with_root(house: &House) {
    house.create("none");
    let location = with_key(house, "key", PASSPHRASE);
    let place = house.text("e");
    house.run(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o keylocation={location} \
         -o pbkdf2iters=100000 -o compression=off -o mountpoint={place} t/e"
    ));
    house.run("zfs create -o compression=on t/e/kid");
}

fn fill(folder: &Path, round: u8) {
    let secret = SECRET.repeat(20_000);
    std::fs::write(folder.join("large"), &secret).unwrap();
    std::fs::write(folder.join(format!("small{round}")), SECRET).unwrap();
    std::fs::write(folder.join("changed"), [&secret[..100_000], &[round; 5000]].concat()).unwrap();
    let sparse = File::create(folder.join("sparse")).unwrap();
    sparse.set_len(3 << 20).unwrap();
    let mut log = File::options().create(true).append(true).open(folder.join("log")).unwrap();
    for _ in 0..30 {
        log.write_all(SECRET).unwrap();
        log.sync_data().unwrap();
    }
}

fn value(house: &House, what: &str, name: &str) -> String {
    house.run(&format!("zfs get -H -o value {what} {name}")).trim().replace('\n', ",")
}

#[test]
fn what_was_written_comes_back_with_the_key_only() {
    if !has_fuse() {
        return;
    }
    let house = House::new("encrypting");
    with_root(&house);
    let shown = value(&house, "encryption,keyformat,pbkdf2iters,keystatus,encryptionroot", "t/e");
    assert_eq!(shown, "aes-256-gcm,passphrase,100000,available,t/e");
    let shown = value(&house, "encryption,keylocation,encryptionroot", "t/e/kid");
    assert_eq!(shown, "aes-256-gcm,none,t/e");
    for folder in ["e", "e/kid"] {
        fill(&house.path(folder), 1);
    }
    house.run("zfs snapshot -r t/e@one");
    for folder in ["e", "e/kid"] {
        fill(&house.path(folder), 2);
    }
    // Snapshots are visited with the keys of their file system.
    let small = std::fs::read(house.path("e/.zfs/snapshot/one/small1")).unwrap();
    assert_eq!(small, SECRET);
    assert!(!house.path("e/.zfs/snapshot/one/small2").exists());
    let differences = house.run("zfs diff t/e@one t/e");
    assert!(differences.contains("small2"), "{differences}");
    let whole = [contents(&house.path("e")), contents(&house.path("e/kid"))];
    house.run("zpool sync t");
    // What the log has since the last txg is replayed with the key.
    let mut last = File::create(house.path("e/last")).unwrap();
    last.write_all(SECRET).unwrap();
    last.sync_all().unwrap();
    house.kill();
    drop(last);
    assert!(!tells(&house), "a device tells the secret");
    assert_eq!(value(&house, "keystatus,mounted", "t/e"), "unavailable,no");
    let (status, said) = house.fails("zfs mount t/e");
    assert_eq!((status, said.as_str()), (1, "cannot mount 't/e': encryption key not loaded\n"));
    let (_, said) = house.fails("zfs create t/e/other");
    let locked = "cannot create 't/e/other': encryption root's key is not loaded or provided\n";
    assert_eq!(said, locked);
    house.run("zfs snapshot t/e/kid@locked");
    house.run("zfs load-key t/e");
    house.run("zfs mount -a");
    let last = std::fs::read(house.path("e/last")).unwrap();
    assert_eq!(last, SECRET, "the log is not replayed");
    std::fs::remove_file(house.path("e/last")).unwrap();
    assert!([contents(&house.path("e")), contents(&house.path("e/kid"))] == whole);
    let (_, said) = house.fails("zfs unload-key t/e");
    assert_eq!(said, "Key unload error: 't/e' is busy.\n");
    let key = house.text("key");
    house.run(&format!(
        "zfs change-key -o keyformat=passphrase -o keylocation=file://{key} t/e/kid"
    ));
    house.run("zfs unmount -u t/e");
    assert_eq!(value(&house, "keystatus", "t/e"), "unavailable");
    assert_eq!(value(&house, "keystatus", "t/e/kid"), "unavailable");
    house.run("zfs load-key -r t/e");
    house.run("zfs change-key -i t/e/kid");
    house.run("zfs unload-key t/e");
    let (_, said) = house.fails("zfs mount t/e");
    assert_eq!(said, "cannot mount 't/e': encryption key not loaded\n");
    // Without the key it can be destroyed.
    house.run("zfs destroy -r t/e/kid");
    assert!(!tells(&house), "a device tells the secret");
    leave_encrypted(&house, &["t/e"]);
}

/// OpenZFS accepts the pool, and what the key opens.
fn leave_encrypted(house: &House, names: &[&str]) {
    leave(house);
    let Some(zdb) = cenote_oracle::zdb() else { return };
    for name in names {
        let said = zdb.pool(name, &house.path("pool"), &["-K", PASSPHRASE, "-dddd"]);
        assert!(said.is_success(), "{name}: {said}");
    }
}

#[test]
fn raw_streams_carry_what_only_the_key_opens() {
    if !has_fuse() {
        return;
    }
    let house = House::new("encrypting-raw");
    with_root(&house);
    for folder in ["e", "e/kid"] {
        fill(&house.path(folder), 1);
    }
    house.run("zfs snapshot -r t/e@one");
    let first = [contents(&house.path("e")), contents(&house.path("e/kid"))];
    for folder in ["e", "e/kid"] {
        fill(&house.path(folder), 2);
        std::fs::remove_file(house.path(folder).join("large")).unwrap();
    }
    house.run("zfs snapshot -r t/e@two");
    let second = [contents(&house.path("e")), contents(&house.path("e/kid"))];

    let full = send(&house, "-w -R t/e@one");
    assert!(!full.windows(SECRET.len()).any(|window| window == SECRET), "a stream tells");
    receives(&house, "-u t/copy", &full);
    assert_eq!(value(&house, "encryptionroot,keystatus", "t/copy"), "t/copy,unavailable");
    assert_eq!(value(&house, "encryptionroot,keystatus", "t/copy/kid"), "t/copy,unavailable");
    let place = house.text("copy");
    house.run(&format!("zfs set mountpoint={place} t/copy"));
    house.run("zfs load-key t/copy");
    house.run("zfs mount -a");
    assert!([contents(&house.path("copy")), contents(&house.path("copy/kid"))] == first);
    house.run("zfs unmount t/copy");
    house.run("zfs unload-key t/copy");

    // An increment, without the key; interrupted, and continued.
    let more = send(&house, "-w -i @one t/e@two");
    assert_eq!(receive(&house, "-s -F t/copy", &more[..more.len() / 2]).status, 1);
    let token = value(&house, "receive_resume_token", "t/copy");
    let rest = send(&house, &format!("-t {token}"));
    receives(&house, "-s -F -u t/copy", &rest);
    receives(&house, "-F -u t/copy/kid", &send(&house, "-w -i @one t/e/kid@two"));
    house.run("zfs load-key t/copy");
    house.run("zfs mount -a");
    assert!([contents(&house.path("copy")), contents(&house.path("copy/kid"))] == second);

    // Not raw: encrypted again, with the key of the target; then no raw increment fits.
    house.run("zfs snapshot t/e@three");
    receives(&house, "-F -u t/copy", &send(&house, "-i @two t/e@three"));
    house.run("zfs snapshot t/e@four");
    let mismatch = "cannot receive incremental stream: IV set guid mismatch. See the 'zfs receive' \
                    man page section\ndiscussing the limitations of raw encrypted send streams.\n";
    refuses(&house, "-F t/copy", &send(&house, "-w -i @three t/e@four"), mismatch);
    // A plain dataset becomes an encrypted one below an encrypted parent.
    house.run(&format!("zfs create -o mountpoint={} t/plain", house.text("plain")));
    fill(&house.path("plain"), 3);
    house.run("zfs snapshot t/plain@one");
    receives(&house, "t/copy/below", &send(&house, "t/plain@one"));
    assert_eq!(value(&house, "encryptionroot", "t/copy/below"), "t/copy");
    assert!(contents(&house.path("copy/below")) == contents(&house.path("plain")));
    leave_encrypted(&house, &["t/e", "t/e/kid@one", "t/copy", "t/copy@one", "t/copy/kid"]);
}

#[test]
fn keys_are_changed_and_inherited() {
    if !has_fuse() {
        return;
    }
    let house = House::new("encrypting-keys");
    with_root(&house);
    fill(&house.path("e/kid"), 1);
    house.run("zfs snapshot t/e/kid@one");
    house.run("zfs clone t/e/kid@one t/e/clone");
    let whole = contents(&house.path("e/kid"));
    assert!(contents(&house.path("e/clone")) == whole);
    let (_, said) = house.fails("zfs rename t/e/kid t/kid");
    let outside = "cannot rename 't/e/kid': cannot move encrypted child outside of its encryption \
                   root\n";
    assert_eq!(said, outside);
    let (_, said) = house.fails("zfs create -o encryption=on t/x");
    assert_eq!(said, "cannot create 't/x': Keyformat required for new encryption root.\n");
    let (_, said) = house.fails("zfs change-key -i t/e/kid");
    let no_root = "Key change error: Key inheritting can only be performed on encryption roots.\n";
    assert_eq!(said, no_root);
    let (_, said) = house.fails("zfs change-key -o keyformat=raw t/e/clone");
    assert_eq!(said, "Key change error: Keys cannot be changed on clones.\n");

    // The child becomes a root, and can leave.
    std::fs::write(house.path("raw"), [7; 32]).unwrap();
    let raw = format!("file://{}", house.text("raw"));
    house.run(&format!("zfs change-key -o keyformat=raw -o keylocation={raw} t/e/kid"));
    assert_eq!(value(&house, "encryptionroot,keyformat", "t/e/kid"), "t/e/kid,raw");
    assert_eq!(value(&house, "encryptionroot", "t/e/clone"), "t/e/kid");
    house.run("zfs rename t/e/kid t/kid");
    // The parent gets another passphrase.
    let other = with_key(&house, "other", "another passphrase");
    house.run(&format!("zfs change-key -o keylocation={other} -o pbkdf2iters=100000 t/e"));
    // A clone takes over its origin, and the key.
    house.run("zfs promote t/e/clone");
    assert_eq!(value(&house, "encryptionroot", "t/kid"), "t/e/clone");
    assert_eq!(value(&house, "keylocation", "t/e/clone"), raw);
    house.run("zpool export t");
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    let (status, said) = house.fails(&format!("zfs load-key -L file://{} t/e", house.text("key")));
    assert_eq!(
        (status, said.as_str()),
        (255, "Key load error: Incorrect key provided for 't/e'.\n")
    );
    house.run("zfs load-key t/e");
    house.run("zfs load-key t/e/clone");
    house.run("zfs mount -a");
    assert!(contents(&house.path("e/clone")) == whole);
    // It uses its parent's key again; then one key opens both.
    house.run("zfs change-key -i t/e/clone");
    assert_eq!(value(&house, "encryptionroot,keylocation", "t/e/clone"), "t/e,none");
    house.run("zpool export t");
    house.run(&format!("zpool import -l -d {} t", house.text("pool")));
    assert!(contents(&house.path("e/clone")) == whole);
    leave(&house);
}

/// A raw increment brings the sender's new key. What was created here below the dataset keeps the
/// key that it has.
#[test]
fn a_new_key_of_the_sender_locks_nobody_out() {
    if !has_fuse() {
        return;
    }
    let house = House::new("encrypting-sender");
    with_root(&house);
    fill(&house.path("e"), 1);
    house.run("zfs snapshot t/e@one");
    receives(&house, "-u t/copy", &send(&house, "-w t/e@one"));
    let location = format!("file://{}", house.text("key"));
    house.run(&format!("zfs load-key -L {location} t/copy"));
    house.run("zfs create -o canmount=off t/copy/own");
    house.run(&format!("zfs create -o mountpoint={} t/copy/own/below", house.text("below")));
    fill(&house.path("below"), 1);
    // An increment with the key as before changes nothing, and more can be created.
    house.run("zfs snapshot t/e@two");
    receives(&house, "-F -u t/copy", &send(&house, "-w -i @one t/e@two"));
    house.run("zfs create -o canmount=off t/copy/other");
    let names = ["t/copy", "t/copy/own", "t/copy/own/below", "t/copy/other"];
    let roots = || names.map(|name| value(&house, "encryptionroot", name));
    assert_eq!(roots(), ["t/copy"; 4]);
    let new = with_key(&house, "new", "a new passphrase");
    house.run(&format!("zfs change-key -o keylocation={new} -o pbkdf2iters=100000 t/e"));
    house.run("zfs snapshot t/e@three");
    receives(&house, "-F -u t/copy", &send(&house, "-w -i @two t/e@three"));
    assert_eq!(roots(), ["t/copy", "t/copy/own", "t/copy/own", "t/copy/other"]);
    house.run("zpool export t");
    house.run(&format!("zpool import -N -d {} t", house.text("pool")));
    house.run(&format!("zfs load-key -L {new} t/copy"));
    for root in ["t/copy/own", "t/copy/other"] {
        house.fails(&format!("zfs load-key -L {new} {root}"));
        house.run(&format!("zfs load-key -L {location} {root}"));
    }
    house.run("zfs mount t/copy/own/below");
    assert_eq!(std::fs::read(house.path("below/small1")).unwrap(), SECRET);
    leave(&house);
}

/// A package brings the sender's keys to datasets that were given another one here, and to new ones
/// below them.
#[test]
fn packages_bring_the_keys_of_the_sender() {
    if !has_fuse() {
        return;
    }
    let house = House::new("encrypting-package");
    with_root(&house);
    let location = format!("file://{}", house.text("key"));
    house.run("zfs snapshot -r t/e@one");
    let own = with_key(&house, "own", "a passphrase of this place");
    house.run(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 \
         -o keylocation={own} -o canmount=off t/p"
    ));
    receives(&house, "-u t/p/r", &send(&house, "-w -R t/e@one"));
    house.run(&format!("zfs load-key -L {location} t/p/r"));
    house.run("zfs change-key -i t/p/r");
    let names = ["t/p", "t/p/r", "t/p/r/kid"];
    let roots = || names.map(|name| value(&house, "encryptionroot", name));
    assert_eq!(roots(), ["t/p"; 3]);
    fill(&house.path("e"), 1);
    house.run("zfs create t/e/later");
    house.run("zfs snapshot -r t/e@two");
    receives(&house, "-u -F t/p/r", &send(&house, "-w -R -I @one t/e@two"));
    assert_eq!(roots(), ["t/p", "t/p/r", "t/p/r"]);
    house.run("zpool export t");
    house.run(&format!("zpool import -N -d {} t", house.text("pool")));
    house.run("zfs load-key t/p");
    house.run(&format!("zfs load-key -L {location} t/p/r"));
    for name in ["t/p/r", "t/p/r/kid", "t/p/r/later"] {
        assert_eq!(value(&house, "keystatus", name), "available", "{name}");
    }
    // What comes below a loaded root can be opened at once.
    house.run("zfs load-key t/e");
    house.run("zfs create t/e/last");
    house.run("zfs snapshot -r t/e@three");
    receives(&house, "-u -F t/p/r", &send(&house, "-w -R -I @two t/e@three"));
    assert_eq!(value(&house, "keystatus,encryptionroot", "t/p/r/last"), "available,t/p/r");
    leave(&house);
}

/// A clone shares its key object with its origin, wherever it is, and what is below it uses the same
/// root. All of them follow when the key of that root changes.
#[test]
fn descendants_of_clones_follow_the_key_of_the_origin() {
    if !has_fuse() {
        return;
    }
    let house = House::new("encrypting-clones");
    with_root(&house);
    let place = |name: &str| house.text(name);
    let first = with_key(&house, "kid-key", "the first passphrase");
    let options = "-o keyformat=passphrase -o pbkdf2iters=100000";
    house.run("zfs snapshot t/e/kid@early");
    house.run("zfs create t/e/dir");
    house.run("zfs clone t/e/kid@early t/e/dir/clone");
    house.run("zfs create t/e/dir/clone/below");
    // A dir above the clone becomes a root. The clone stays with its origin.
    house.run(&format!("zfs change-key {options} -o keylocation={first} t/e/dir"));
    let roots = |names: &[&str]| -> Vec<String> {
        names.iter().map(|name| value(&house, "encryptionroot", name)).collect()
    };
    let inner = ["t/e/dir", "t/e/dir/clone", "t/e/dir/clone/below"];
    assert_eq!(roots(&inner), ["t/e/dir", "t/e", "t/e"]);
    house.run(&format!("zfs change-key {options} -o keylocation={first} t/e/kid"));
    assert_eq!(roots(&inner), ["t/e/dir", "t/e/kid", "t/e/kid"]);
    house.run(&format!("zfs clone -o mountpoint={} t/e/kid@early t/away", place("away")));
    house.run("zfs create t/away/below");
    let folders = ["e/dir/clone/below", "away/below"];
    for folder in folders {
        fill(&house.path(folder), 1);
    }
    let names = ["t/e/kid", "t/e/dir/clone", "t/e/dir/clone/below", "t/away", "t/away/below"];
    let check = |root: &str, keys: &[&str]| {
        assert_eq!(roots(&names), [root; 5]);
        house.run("zpool export t");
        house.run(&format!("zpool import -d {} t", place("pool")));
        for key in keys {
            house.run(&format!("zfs load-key {key}"));
        }
        for name in names {
            assert_eq!(value(&house, "keystatus", name), "available", "{name}, root {root}");
        }
        house.run("zfs mount -a");
        let whole = folders.map(|folder| contents(&house.path(folder)));
        assert!(whole[0] == whole[1] && whole[0].len() > 3, "root {root}");
        assert_eq!(std::fs::read(house.path("away/below/small1")).unwrap(), SECRET);
    };
    check("t/e/kid", &["t/e", "t/e/dir", "t/e/kid"]);
    // Another key for all of them.
    let second = with_key(&house, "kid-key-2", "the second passphrase");
    house.run(&format!("zfs change-key -o pbkdf2iters=100000 -o keylocation={second} t/e/kid"));
    check("t/e/kid", &["t/e", "t/e/dir", "t/e/kid"]);
    house.run("zfs unmount t/e/dir/clone/below");
    house.run("zfs unmount t/away");
    let (_, said) = house.fails("zfs unload-key t/e/kid");
    assert_eq!(said, "Key unload error: 't/e/kid' is busy.\n");
    // Another one of the family becomes the root.
    house.run("zfs promote t/away");
    check("t/away", &["t/e", "t/e/dir", "t/away"]);
    house.run("zfs promote t/e/kid");
    house.run("zfs change-key -i t/e/kid");
    check("t/e", &["t/e", "t/e/dir"]);
    leave(&house);
}

/// A key that is unloaded beside mounts: either the file system is mounted, and the key stays, or it
/// is not, and every message says why.
#[test]
fn keys_are_not_unloaded_below_mounts() {
    if !has_fuse() {
        return;
    }
    let house = House::new("encrypting-race");
    with_root(&house);
    std::fs::write(house.path("e/file"), SECRET).unwrap();
    let run = |line: &str| {
        let output = house.command(&line.split(' ').collect::<Vec<_>>()).output().unwrap();
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    std::thread::scope(|threads| {
        threads.spawn(|| {
            for _ in 0..40 {
                let unloaded = run("zfs unload-key -r t/e");
                assert!(unloaded.is_empty() || unloaded.contains("is busy"), "{unloaded}");
                run("zfs load-key -r t/e");
            }
        });
        threads.spawn(|| {
            for _ in 0..40 {
                let shown = house.run("zfs get -H -o value mounted,keystatus t/e");
                assert_ne!(shown, "yes\nunavailable\n");
            }
        });
        for _ in 0..40 {
            let said = run("zfs unmount t/e");
            let is_known = said.is_empty() || said.contains("not currently mounted");
            assert!(is_known, "{said}");
            let said = run("zfs mount t/e");
            let is_known =
                said.is_empty() || said == "cannot mount 't/e': encryption key not loaded\n";
            assert!(is_known, "{said}");
            if said.is_empty() {
                assert_eq!(std::fs::read(house.path("e/file")).unwrap(), SECRET);
            }
        }
    });
    run("zfs load-key -r t/e");
    run("zfs mount -a");
    assert_eq!(std::fs::read(house.path("e/file")).unwrap(), SECRET);
    house.run("zpool export t");
}

#[test]
fn a_pool_and_a_volume_are_encrypted() {
    let house = House::new("encrypting-pool");
    let location = with_key(&house, "key", PASSPHRASE);
    std::fs::create_dir_all(house.path("pool")).unwrap();
    let device = house.path("pool").join("d0");
    File::create(&device).unwrap().set_len(256 << 20).unwrap();
    house.run(&format!(
        "zpool create -O encryption=aes-128-ccm -O keyformat=passphrase -O keylocation={location} \
         -O pbkdf2iters=100000 -O mountpoint=none t {}",
        device.display()
    ));
    house.run("zfs create -V 8M -b 16K t/v");
    assert_eq!(value(&house, "encryption,encryptionroot", "t/v"), "aes-128-ccm,t");
    leave_encrypted(&house, &["t", "t/v"]);
}
