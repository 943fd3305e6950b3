//! Delegated permissions, used by another user.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use cenote_testkit::skip;

use crate::daemon::{House, has_fuse};
use crate::receiving::leave;
use crate::succeeds;

/// Uid of a user without a name.
const STRANGER: u32 = 54_321;

/// Returns the status and output of a command of the stranger.
fn stranger(house: &House, line: &str) -> (i32, String) {
    let words: Vec<&str> = line.split_whitespace().collect();
    let mut command = house.command(&words);
    let output = command.uid(STRANGER).gid(STRANGER).current_dir("/").output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code().unwrap(), String::from_utf8_lossy(&said).into_owned())
}

#[test]
fn allow_lets_other_users_run_granted_commands() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let house = House::new("allow");
    house.create("none");
    house.run("zfs create t/a");
    house.run("zfs create t/b");
    assert_eq!(stranger(&house, "zfs list -H -o name").1, "t\nt/a\nt/b\n");
    let refused = |line: &str, said: &str| {
        assert_eq!(stranger(&house, line), (1, format!("{said}: permission denied\n")), "{line}");
    };
    let done = |line: &str| assert_eq!(stranger(&house, line), (0, String::new()), "{line}");
    refused("zfs snapshot t/a@one", "cannot create snapshot 't/a@one'");
    refused("zfs snap t/a@one", "cannot create snapshot 't/a@one'");
    house.run("zfs snapshot t/a@zero");
    refused("zfs diff t/a@zero", "cannot diff 't/a@zero'");
    refused("zfs destroy t/b", "cannot destroy 't/b'");
    refused("zpool export t", "cannot export");
    refused("zfs mount -a", "cannot mount");

    house.run(&format!("zfs allow -u {STRANGER} snapshot,hold,@make t/a"));
    house.run("zfs allow -s @make create,mount,compression,quota t");
    house.run("zfs allow -c destroy,userprop t/a");
    house.run("zfs allow -l -e bookmark t/a");
    house.run("zfs allow -d everyone release t/a");
    let wanted = format!(
        "---- Permissions on t/a ----------------------------------------------\n\
         Permission sets:\n\
         \tdestroy,userprop\n\
         Local permissions:\n\
         \teveryone bookmark\n\
         Descendent permissions:\n\
         \teveryone release\n\
         Local+Descendent permissions:\n\
         \tuser (unknown: {STRANGER}) @make,hold,snapshot\n\
         ---- Permissions on t ------------------------------------------------\n\
         Permission sets:\n\
         \t@make compression,create,mount,quota\n"
    );
    assert_eq!(house.run("zfs allow t/a"), wanted);
    done("zfs snapshot t/a@one");
    done("zfs hold x t/a@one");
    refused("zfs release x t/a@one", "cannot release 't/a@one'");
    done("zfs bookmark t/a@one t/a#one");
    done("zfs set compression=lz4 t/a");
    refused("zfs set atime=off t/a", "cannot set property for 't/a'");
    refused("zfs snapshot t/b@one", "cannot create snapshot 't/b@one'");
    refused("zfs create t/c", "cannot create 't/c'");
    // The creator of a dataset gets the permissions granted for creation.
    let (status, said) = stranger(&house, "zfs create -o quota=10M t/a/mine");
    let only_root = "filesystem successfully created, but it may only be mounted by root\n";
    assert_eq!((status, said.as_str()), (1, only_root));
    done("zfs set my:own=yes t/a/mine");
    done("zfs destroy t/a/mine");
    refused("zfs set my:own=yes t/a", "cannot set property for 't/a'");
    // A user can delegate only permissions that the user has and may delegate.
    let (status, said) = stranger(&house, "zfs allow -e snapshot t/a");
    assert_eq!(
        (status, said.as_str()),
        (1, "cannot set permissions on 't/a': permission denied\n")
    );
    let own = format!("zfs unallow -u {STRANGER} hold t/a");
    refused(&own, "cannot set permissions on 't/a'");
    house.run(&format!("zfs allow -u {STRANGER} allow t/a"));
    done(&own);
    house.run(&format!("zfs unallow -u {STRANGER} allow t/a"));
    refused("zfs hold y t/a@one", "cannot hold 't/a@one'");

    let (_, said) = house.fails("zfs allow -e fly t");
    assert_eq!(said, "invalid permission 'fly'\n");
    assert!(house.run("zfs allow -h").contains("receive:append"));
    house.kill();
    assert!(house.run("zfs allow t/a").contains("everyone bookmark"));
    for line in ["-c t/a", "-e t/a", "-u 54321 t/a", "-s @make t"] {
        house.run(&format!("zfs unallow {line}"));
    }
    assert_eq!(house.run("zfs allow t/a"), "");
    house.run("zfs allow everyone snapshot,@x t/b");
    house.run("zfs allow -s @x hold t/b");
    let history = house.run("zpool history -i t");
    assert!(history.contains("permission update t/b"), "{history}");
    house.run("zfs release x t/a@one");
    house.run("zpool export t");
    judge(&house);
}

/// Paths are looked for with the rights of the caller.
#[test]
fn paths_are_looked_for_with_the_rights_of_the_caller() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let house = House::new("allow-hidden");
    house.create("none");
    // Paths are looked for with the stranger's rights.
    let hidden = house.path("hidden");
    std::fs::create_dir(&hidden).unwrap();
    std::fs::write(hidden.join("there"), "").unwrap();
    std::fs::set_permissions(&hidden, std::fs::Permissions::from_mode(0o700)).unwrap();
    for (path, why) in [
        ("/", "not a ZFS filesystem"),
        ("/no/such/file", "No such file or directory"),
        (&house.text("hidden/there"), "Permission denied"),
        (&house.text("hidden/none"), "Permission denied"),
    ] {
        let said = format!("cannot open '{path}': {why}\n");
        assert_eq!(stranger(&house, &format!("zfs list {path}")), (1, said));
    }
}

/// A path below a mount point must exist: for another user as for root.
#[test]
fn paths_below_mounts_must_exist() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    if !has_fuse() {
        return;
    }
    let house = House::new("allow-paths");
    house.create(&house.text("at"));
    house.run("zfs create t/fs");
    std::os::unix::fs::symlink(house.path("at/fs"), house.path("link")).unwrap();
    for path in ["at/fs", "at/../at/fs/.", "link"] {
        let line = format!("zfs list -H -o name {}", house.text(path));
        assert_eq!(stranger(&house, &line), (0, "t/fs\n".to_owned()), "{path}");
    }
    let path = house.text("at/none");
    let said = format!("cannot open '{path}': No such file or directory\n");
    for verb in ["list", "get all", "userspace"] {
        let line = format!("zfs {verb} {path}");
        assert_eq!(stranger(&house, &line), (1, said.clone()), "{verb}");
        assert_eq!(house.fails(&line), (1, said.clone()), "{verb}");
    }
}

/// Keys are read with the rights of the user who wants them loaded.
#[test]
fn keys_are_read_with_the_rights_of_the_caller() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let house = House::new("allow-keys");
    house.create("none");
    std::fs::write(house.path("key"), "a long passphrase\n").unwrap();
    std::fs::set_permissions(house.path("key"), std::fs::Permissions::from_mode(0o600)).unwrap();
    let location = format!("file://{}", house.text("key"));
    house.run(&format!(
        "zfs create -o encryption=on -o keyformat=passphrase -o pbkdf2iters=100000 \
         -o keylocation={location} -o canmount=off t/e"
    ));
    house.run("zfs unload-key t/e");
    let refused = "cannot load key for 't/e': permission denied\n";
    assert_eq!(stranger(&house, "zfs load-key t/e"), (255, refused.to_owned()));
    house.run(&format!("zfs allow -u {STRANGER} load-key,change-key,keylocation t/e"));
    let said = stranger(&house, "zfs load-key t/e");
    let why = "Key load error: Failed to open key material file: Permission denied\n";
    assert_eq!(said, (255, why.to_owned()));
    // The stranger's own file, where the stranger can read it.
    let own = std::env::temp_dir().join(format!("cenote-key-{}", std::process::id()));
    std::fs::write(&own, "a long passphrase\n").unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o644)).unwrap();
    let own_location = format!("file://{}", own.display());
    let line = format!("zfs load-key -L {own_location} t/e");
    assert_eq!(stranger(&house, &line), (0, String::new()));
    let change = format!("zfs change-key -o pbkdf2iters=100000 -o keylocation={own_location}");
    assert_eq!(stranger(&house, &format!("{change} t/e")), (0, String::new()));
    // Other properties need their own permissions.
    let (status, said) = stranger(&house, &format!("{change} -o my:own=x t/e"));
    assert_eq!((status, said.as_str()), (1, "cannot change key for 't/e': permission denied\n"));
    house.run("zfs unload-key t/e");
    house.run("zfs load-key t/e");
    std::fs::remove_file(own).unwrap();
    leave(&house);
}

/// What OpenZFS's kernel module refuses, and what it permits beside it.
#[test]
fn allow_has_the_limits_of_openzfs() {
    if !rustix::process::geteuid().is_root() {
        return skip::skip(&skip::current_test(), "not root");
    }
    let house = House::new("allow-limits");
    house.create("none");
    for line in ["create t/a", "create -s -V 1M t/v", "snapshot t/a@s", "clone t/a@s t/clone"] {
        house.run(&format!("zfs {line}"));
    }
    let refused = |line: &str, said: &str| {
        assert_eq!(stranger(&house, line), (1, format!("{said}: permission denied\n")), "{line}");
    };
    let done = |line: &str| assert_eq!(stranger(&house, line), (0, String::new()), "{line}");
    let allow = |scope: &str, what: &str, name: &str| {
        house.run(&format!("zfs allow {scope} -u {STRANGER} {what} {name}"));
    };
    let no_more = || drop(house.run(&format!("zfs unallow -r -u {STRANGER} t")));
    let grants = "cannot set permissions on";

    // A user with `allow` can grant neither `allow` nor sets.
    house.run("zfs allow -s @ops snapshot t");
    allow("", "allow,snapshot,@ops", "t/a");
    refused("zfs allow -u 7 allow t/a", &format!("{grants} 't/a'"));
    refused("zfs allow -u 7 @ops t/a", &format!("{grants} 't/a'"));
    done("zfs allow -u 7 snapshot t/a");
    refused("zfs unallow -u 7 snapshot t/a", &format!("{grants} 't/a'"));
    no_more();
    refused(&format!("zfs unallow -u {STRANGER} snapshot t/a"), &format!("{grants} 't/a'"));

    // Snapshots are descendents of their dataset; holds are on the dataset.
    house.run("zfs snapshot t/a@t");
    allow("-l", "destroy,mount,hold", "t/a");
    refused("zfs destroy t/a@t", "cannot destroy 't/a@t'");
    done("zfs hold x t/a@t");
    house.run("zfs release x t/a@t");
    no_more();
    allow("-d", "destroy,mount", "t/a");
    done("zfs destroy t/a@t");
    no_more();

    // A rollback destroys later bookmarks.
    house.run("zfs snapshot t/a@u");
    house.run("zfs snapshot t/a@w");
    house.run("zfs bookmark t/a@w t/a#w");
    house.run("zfs destroy t/a@w");
    allow("", "rollback", "t/a");
    refused("zfs rollback -r t/a@u", "cannot destroy 't/a'");
    allow("", "destroy", "t/a");
    done("zfs rollback -r t/a@u");
    no_more();

    // Names are made where the new name is.
    allow("-d", "rename", "t");
    refused("zfs rename t/a@u t/a@v", "cannot rename 't/a@u'");
    allow("-d", "mount,create", "t");
    done("zfs rename t/a@u t/a@v");
    no_more();
    allow("", "bookmark", "t/a");
    refused("zfs bookmark t/a@s t/clone#x", "cannot create bookmark 't/clone#x'");
    done("zfs bookmark t/a@s t/a#x");
    no_more();

    // A property that exports a volume is no user property.
    allow("", "userprop", "t/v");
    done("zfs set my:own=yes t/v");
    refused("zfs set cenote:nbd=on t/v", "cannot set property for 't/v'");
    no_more();

    // Limits bind users who cannot change them.
    house.run("zfs set filesystem_limit=0 t/a");
    house.run("zfs create t/a/of-root");
    allow("", "create,mount", "t");
    let limit =
        (1, "cannot create 't/a/b': the filesystem or snapshot limit is reached\n".to_owned());
    assert_eq!(stranger(&house, "zfs create t/a/b"), limit);
    allow("", "filesystem_limit", "t");
    let (_, said) = stranger(&house, "zfs create t/a/b");
    assert!(said.contains("successfully created"), "{said}");

    // Long commands do not push others out of the history.
    let many = vec!["mount"; 20_000].join(",");
    house.run(&format!("zfs unallow -u 7 {many} t"));
    let history = house.run("zpool history t");
    assert!(history.lines().all(|line| line.len() < 8300) && history.contains("create -s -V 1M"));
    house.run("zpool export t");
}

/// `zdb` finds the grants, and no leak.
fn judge(house: &House) {
    let folder = house.text("pool");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &folder, "t"]));
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let folder = std::path::Path::new(&folder);
    let said = zdb.pool("t", folder, &["-bcc"]);
    assert!(said.is_clean(), "{said}");
    // Its search for leaked objects does not handle permission ZAPs (spec 04 §24).
    let said = zdb.pool("t", folder, &["-L", "-dddd"]).stdout;
    for wanted in ["ed$ = ", "El$ = ", "s-$@x = ", "snapshot = 0", "@x = 0", "hold = 0"] {
        assert!(said.contains(wanted), "{wanted}");
    }
}
