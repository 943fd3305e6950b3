//! Pools created and changed through the commands. The pools are checked by cenote and, where
//! installed, by OpenZFS; the messages are compared with OpenZFS's.

mod old_keys;
mod resilver;
mod space_properties;
mod status_errors;
mod zfs_create;
mod zfs_destroy;
mod zfs_send;
mod zfs_set;
mod zpool_add;
mod zpool_attach;
mod zpool_draid;
mod zpool_get;
mod zpool_import;
mod zpool_iostat;
mod zpool_refused;
mod zpool_remove;
mod zpool_reopen;
mod zpool_scrub;
mod zpool_split;
mod zpool_trim;

use std::path::Path;

use cenote_cli::run_captured as cenote;
use cenote_pool::import::PoolDevice;
use cenote_testkit::golden::PrivateFolder;
use cenote_testkit::wording::Wording;

/// Size of a device.
const SIZE: u64 = 128 << 20;

/// A folder of devices, and the commands on them.
struct Shed {
    folder: PrivateFolder,
}

impl Shed {
    /// Creates devices `d0`, `d1`, ... of one size, and `a`, `b`, `c` as in the recorded commands.
    fn new(name: &str, count: usize) -> Self {
        let shed = Self { folder: PrivateFolder::create(name) };
        for number in 0..count {
            shed.add(&format!("d{number}"), SIZE);
        }
        shed
    }

    fn add(&self, name: &str, size: u64) {
        let file = std::fs::File::create(self.path().join(name)).expect("a device");
        file.set_len(size).expect("its size");
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Runs one command, its words separated by blanks.
    fn run(&self, line: &str) -> (String, String, i32) {
        let words: Vec<&str> = line.split(' ').collect();
        self.run_words(&words)
    }

    fn run_words(&self, words: &[&str]) -> (String, String, i32) {
        let folder = self.path().to_str().expect("UTF-8");
        let head = [words[0], "--embedded", "-d", folder];
        cenote(&[&head, &words[1..]].concat())
    }

    /// Runs a command that must succeed and print nothing on standard error.
    fn succeeds(&self, line: &str) -> String {
        let (out, err, status) = self.run(line);
        assert_eq!((status, err.as_str()), (0, ""), "{line}");
        out
    }

    /// Runs a command that must fail with this message.
    fn fails(&self, line: &str, want: &str) {
        let (_, err, status) = self.run(line);
        assert_eq!((status, err.trim_end()), (1, want), "{line}");
    }

    /// Returns a text of a recording, with the folder of these devices.
    fn here(&self, text: &str) -> String {
        text.replace("/dev/shm/v/", &format!("{}/", self.path().to_str().expect("UTF-8")))
    }

    /// Runs the next recording of a command here: what it prints and its status are those recorded.
    /// Returns the status.
    fn run_as_recorded<'w>(
        &self,
        rest: &mut impl Iterator<Item = &'w Wording>,
        command: &str,
    ) -> i32 {
        let want = rest.find(|there| there.command == command);
        let want = want.unwrap_or_else(|| panic!("{command} is not there"));
        let said = self.run(&self.here(command));
        let wanted = (self.here(&want.out), self.here(&want.err), want.status);
        assert_eq!(said, wanted, "{command}");
        want.status
    }

    /// Asserts that the pool has no errors and no leaks.
    fn judge(&self, pool: &str) {
        self.judge_with(pool, 0, "no errors");
    }

    /// Asserts that the pool has no errors, but one leaf with a DTL of the time it was offline.
    fn judge_with_stale_leaf(&self, pool: &str) {
        self.judge_with(pool, 1, "nothing that was read is wrong, but 1 device may lack blocks");
    }

    fn judge_with(&self, pool: &str, want: i32, sum: &str) {
        let folder = self.path().to_str().expect("UTF-8");
        let (out, err, status) = cenote(&["verify", "--leaks", "-d", folder, pool]);
        assert!(status == want && out.contains(&format!("{pool}: {sum}\n")), "{out}{err}");
        assert!(out.contains("\nno leaks: "), "{out}{err}");
        let Some(zdb) = cenote_oracle::zdb() else { return };
        let said = zdb.pool(pool, self.path(), &["-bcc", "-dddd", "-y", "-h"]);
        assert!(said.is_success() && said.stdout.contains("No leaks"), "{said}");
    }
}

#[test]
fn create_makes_every_vdev_layout() {
    for vdevs in [
        "d0",
        "d0 d1 d2",
        "mirror d0 d1 mirror d2 d3",
        "raidz d0 d1 d2",
        "raidz2 d0 d1 d2 d3 d4 d5",
        "raidz3 d0 d1 d2 d3 d4",
        "draid1:2d:5c:1s d0 d1 d2 d3 d4",
        "-f mirror d0 d1 log d2 special mirror d3 d4 dedup mirror d5 d6 cache d7 spare d8",
        "-o ashift=12 raidz2 d0 d1 d2 d3",
        "-o compatibility=grub2 d0",
        "-d d0",
        "-O compression=zstd -O recordsize=1M -O casesensitivity=insensitive d0",
    ] {
        let shed = Shed::new("layouts", 9);
        let at = vdevs.split(' ').take_while(|word| word.starts_with('-') || word.contains('='));
        let at: usize = at.map(|word| word.len() + 1).sum();
        let (options, vdevs) = vdevs.split_at(at);
        shed.succeeds(&format!("zpool create {options}t {vdevs}"));
        shed.succeeds("zfs create t/a");
        shed.succeeds("zfs create -V 4M t/v");
        shed.succeeds("zfs snapshot -r t@x");
        let list = shed.succeeds("zfs list -H -o name -t all");
        assert_eq!(list, "t\nt@x\nt/a\nt/a@x\nt/v\nt/v@x\n", "{vdevs}");
        shed.judge("t");
    }
}

#[test]
fn add_export_and_import() {
    let shed = Shed::new("grows", 9);
    shed.succeeds("zpool create t mirror d0 d1");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zpool add t mirror d2 d3");
    shed.succeeds("zpool add t log d4 cache d5 spare d6");
    shed.succeeds("zpool add -f t special mirror d7 d8");
    shed.succeeds("zfs create t/b");
    shed.judge("t");
    shed.succeeds("zpool reguid -g 4711 t");
    shed.succeeds("zpool set comment=mine t");
    shed.succeeds("zpool export t");
    // A command on an exported pool exports it again.
    shed.succeeds("zfs create t/c");
    shed.succeeds("zpool import 4711 u");
    shed.fails(
        "zpool import 4711",
        "cannot import 'u': a pool with that name already exists\n\
        use the form 'zpool import <pool | id> <newpool>' to give it a new name",
    );
    assert_eq!(shed.succeeds("zpool list -H -o name,guid,comment"), "u\t4711\tmine\n");
    assert_eq!(shed.succeeds("zfs list -H -o name"), "u\nu/a\nu/b\nu/c\n");
    shed.judge("u");
    shed.succeeds("zpool destroy u");
    assert_eq!(shed.succeeds("zpool list"), "no pools available\n");
    shed.succeeds("zpool import -D u");
    shed.succeeds("zpool sync");
    shed.judge("u");
    let history = shed.succeeds("zpool history u");
    assert!(history.contains("zpool import 4711 u\n"), "{history}");
}

#[test]
fn upgrade_enables_features() {
    let shed = Shed::new("features", 1);
    shed.succeeds("zpool create -d t d0");
    shed.succeeds("zpool set feature@lz4_compress=enabled t");
    let state = shed.succeeds("zpool get -H -o value feature@lz4_compress,feature@zstd_compress t");
    assert_eq!(state, "active\ndisabled\n");
    shed.succeeds("zfs create t/before");
    shed.succeeds("zpool upgrade t");
    shed.succeeds("zfs create -o compression=zstd t/after");
    shed.judge("t");
}

/// Devices of other pools are refused.
#[test]
fn create_refuses_devices_in_use() {
    let shed = Shed::new("in-use", 3);
    let path = |name: &str| shed.path().join(name).to_string_lossy().into_owned();
    shed.succeeds("zpool create t d0");
    let refused = |pool: &str, state: &str| {
        format!(
            "invalid vdev specification\nuse '-f' to override the following errors:\n\
             {} is part of {state} pool '{pool}'",
            path("d0")
        )
    };
    let line = format!("zpool create u {}", path("d0"));
    shed.fails(&line, &refused("t", "potentially active"));
    shed.succeeds("zpool export t");
    shed.fails(&line, &refused("t", "exported"));
    shed.fails("zpool create t d1", "cannot create 't': pool already exists");
    shed.add("tiny", 1 << 20);
    shed.fails(
        "zpool create u tiny",
        "cannot create 'u': one or more devices is less than the minimum size (64M)",
    );
    let device = path("d0");
    let held = PoolDevice::open_exclusively(Path::new(&device));
    let held = cenote_rt::block_on(1, held).expect("a runtime").expect("opens");
    shed.fails(
        &format!("zpool create -f u {}", path("d0")),
        &format!(
            "invalid vdev specification\nthe following errors must be manually repaired:\n\
             {} is part of active pool 't'",
            path("d0")
        ),
    );
    drop(held);
    shed.fails(
        &format!("zpool labelclear {}", path("d0")),
        &format!(
            "use '-f' to override the following error:\n{} is a member of exported pool \"t\"",
            path("d0")
        ),
    );
    shed.succeeds(&format!("zpool labelclear -f {}", path("d0")));
    let assert_blank = |disk: &str| {
        let (_, err, status) = shed.run(&format!("zpool labelclear {}", path(disk)));
        let message = format!("failed to clear label for {}\n", path(disk));
        assert_eq!((status, err), (255, message));
    };
    assert_blank("d0");
    // A device that has left its pool has labels, which name none.
    shed.succeeds(&format!("zpool create u mirror {} {}", path("d0"), path("d1")));
    shed.succeeds(&format!("zpool detach u {}", path("d1")));
    let (shown, _, status) = cenote(&["zdb", "-l", &path("d1")]);
    let is_shown = shown.contains("    txg: 0\n") && shown.contains("labels = 0 1 2 3");
    assert!(status == 0 && is_shown, "{shown}");
    shed.succeeds(&format!("zpool labelclear {}", path("d1")));
    assert_blank("d1");
    shed.judge("u");
}

/// Recorded commands, in the order in which they run here; space figures, which differ, are not
/// compared.
const CARRIED_OUT: &[&str] = &[
    "zpool create t /dev/shm/v/none",
    "zpool create t /dev/shm/v/tiny",
    "zpool create t mirror /dev/shm/v/a",
    "zpool create t raidz2 /dev/shm/v/a /dev/shm/v/b",
    "zpool create -o nosuch=1 t /dev/shm/v/a",
    "zpool create -O nosuch=1 t /dev/shm/v/a",
    "zpool create t /dev/shm/v/a /dev/shm/v/a",
    "zpool create t mirror /dev/shm/v/a /dev/shm/v/b /dev/shm/v/c raidz1 /dev/shm/v/a /dev/shm/v/b /dev/shm/v/c",
    "zpool create -n t mirror /dev/shm/v/a /dev/shm/v/b",
    "zpool create -m /mnt/t t mirror /dev/shm/v/a /dev/shm/v/b",
    "zpool create -f t /dev/shm/v/c",
    "zfs create t/a",
    "zfs create t/a",
    "zfs create t/x/y",
    "zfs create -p t/x/y",
    "zfs create t/bad@name",
    "zfs create -o nosuch=1 t/b",
    "zfs create -o compression=nope t/b",
    "zfs create -o recordsize=3000 t/b",
    "zfs create -V 1 t/v",
    "zfs create -V 10M -b 3000 t/v",
    "zfs create -V 10M t/v",
    "zfs create -s -V 10G t/sp",
    "zfs create -V 10G t/big",
    "zfs set quota=1K t/a",
    "zfs set reservation=10G t/a",
    "zfs set nosuch=1 t/a",
    "zfs set user:prop=hello t/a",
    "zfs get user:prop t/a",
    "zfs set compression=lz4 t/nope",
    "zfs inherit compression t/a",
    "zfs inherit used t/a",
    "zfs set used=1 t/a",
    "zfs snapshot t/a@s",
    "zfs snapshot t/a@s",
    "zfs snapshot t/nope@s",
    "zfs snapshot t/a",
    "zfs snapshot -r t@r",
    "zfs clone t/a@s t/c",
    "zfs clone t/a@nope t/d",
    "zfs destroy t/a@s",
    "zfs destroy t/a",
    "zfs destroy -nv -R t/a",
    "zfs destroy t/nope",
    "zfs destroy t/nope@x",
    "zfs hold k t/a@r",
    "zfs hold k t/a@r",
    "zfs destroy t/a@r",
    "zfs release nope t/a@r",
    "zfs release k t/a@r",
    "zfs bookmark t/a@r t/a#b",
    "zfs bookmark t/a@r t/a#b",
    "zfs rollback t/a@s",
    "zfs rollback -r t/a@s",
    "zfs promote t/a",
    "zfs promote t/c",
    "zfs rename t/c t/a",
    "zfs rename t/c t2/c",
    "zfs rename t/c t/cc",
    "zfs destroy -r t/x",
    "zfs destroy t/a@%r",
    "zfs destroy t/cc@s,r",
    "zfs diff t/cc@nope t/cc",
    "zpool set nosuch=1 t",
    "zpool set comment=hi t",
    "zpool get comment t",
    "zpool add t /dev/shm/v/c",
    "zpool add -n t mirror /dev/shm/v/c /dev/shm/v/tiny",
    "zpool export nope",
];

#[test]
fn messages_of_changing_commands_are_those_of_openzfs() {
    let Some(all) = cenote_testkit::wordings("wording.txt") else { return };
    let shed = Shed::new("wordings", 0);
    for name in ["a", "b", "c"] {
        shed.add(name, SIZE);
    }
    shed.add("tiny", 1 << 20);
    let (mut rest, mut carried_out) = (all.iter(), Vec::new());
    for command in CARRIED_OUT {
        let status = shed.run_as_recorded(&mut rest, command);
        if status == 0 && !command.contains(" -n") && !command.contains(" get ") {
            carried_out.push(shed.here(command));
        }
    }
    let history = shed.succeeds("zpool history t");
    let commands = history
        .lines()
        .filter_map(|line| line.split_once(' ').filter(|(time, _)| time.starts_with('2')));
    let commands: Vec<_> = commands.map(|(_, command)| command.to_owned()).collect();
    assert_eq!(commands, carried_out);
    shed.judge("t");
}

#[test]
fn create_p_takes_existing_datasets() {
    let shed = Shed::new("create-p", 1);
    shed.succeeds("zpool create t d0");
    shed.succeeds("zfs create -p t/a/b");
    for existing in ["t", "t/a", "t/a/b"] {
        shed.succeeds(&format!("zfs create -p {existing}"));
    }
    shed.judge("t");
}

/// All changes of a `zfs set` are one operation, whose room is checked for the worst case; a small
/// pool has not enough for 1,000 of them.
#[test]
fn set_takes_hundreds_of_properties_in_a_small_pool() {
    let shed = Shed::new("set-many", 1);
    shed.succeeds("zpool create t d0");
    let settings: Vec<_> = (0..1000).map(|number| format!("org.x:p{number}={number}")).collect();
    shed.succeeds(&format!("zfs set {} t", settings.join(" ")));
    assert_eq!(shed.succeeds("zfs get -H -o value org.x:p0 t"), "0\n");
    assert_eq!(shed.succeeds("zfs get -H -o value org.x:p999 t"), "999\n");
    assert_eq!(shed.succeeds("zfs get -H -o property -s local all t").lines().count(), 1000);
    shed.judge("t");
}

#[test]
fn destroy_takes_ranges_and_lists_of_snapshots() {
    let shed = Shed::new("ranges", 1);
    shed.succeeds("zpool create t d0");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zfs create t/a/b");
    for name in ["one", "two", "three", "four", "five"] {
        shed.succeeds(&format!("zfs snapshot -r t/a@{name}"));
    }
    assert_eq!(shed.succeeds("zfs diff @one t/a@two"), "");
    shed.fails(
        "zfs diff t/a@two t/a@one",
        "Unable to obtain diffs: \n   Not an earlier snapshot from the same fs",
    );
    shed.fails("zfs diff t/a@two @no", "Unable to obtain diffs: No such file or directory");
    shed.fails("zfs diff t/no@two", "cannot open 't/no': dataset does not exist");
    shed.succeeds("zfs destroy t/a@two%three,five");
    assert_eq!(shed.succeeds("zfs list -H -o name -t snapshot t/a"), "t/a@one\nt/a@four\n");
    shed.succeeds("zfs rename -r t/a@four t/a@4");
    shed.succeeds("zfs destroy -r t/a@%");
    assert_eq!(shed.succeeds("zfs list -H -o name -r -t all t"), "t\nt/a\nt/a/b\n");
    shed.succeeds("zfs create -V 8M t/v");
    shed.succeeds("zfs set volsize=16M t/v");
    assert_eq!(shed.succeeds("zfs get -Hp -o value volsize t/v"), "16777216\n");
    shed.judge("t");
}

#[test]
fn userquota_groupquota_and_projectquota_are_set_and_shown() {
    let shed = Shed::new("limits", 1);
    shed.succeeds("zpool create t d0");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zfs set userquota@1000=1M projectobjquota@42=7 groupquota@root=2G t/a");
    let value = |property: &str| {
        shed.succeeds(&format!("zfs get -H -o value {property} t/a")).trim().to_owned()
    };
    assert_eq!(value("userquota@1000"), "1M");
    assert_eq!(value("projectobjquota@42"), "7");
    assert_eq!(value("groupquota@0"), "2G");
    shed.succeeds("zfs set userquota@1000=none t/a");
    assert_eq!(value("userquota@1000"), "none");
    assert_eq!(value("groupquota@root"), "2G");
    assert_eq!(value("groupquota@0"), "2G");
    assert_eq!(value("userquota@no.such.user"), "-");
    shed.succeeds("zfs create -o userquota@root=3M -o projectquota@7=1G t/made");
    shed.succeeds("zfs snapshot t/made@s");
    shed.succeeds("zfs clone -o userobjquota@root=5 t/made@s t/cloned");
    for (name, property, wanted) in [
        ("t/made", "userquota@root", "3M"),
        ("t/made@s", "projectquota@7", "1G"),
        ("t/cloned", "userquota@0", "3M"),
        ("t/cloned", "userobjquota@root", "5"),
    ] {
        let shown = shed.succeeds(&format!("zfs get -H -o value {property} {name}"));
        assert_eq!(shown.trim(), wanted, "{property} of {name}");
    }
    let (_, err, status) = shed.run("zfs create -V 1M -o userquota@root=3M t/v");
    let why = "'userquota@root' does not apply to datasets of this type";
    assert_eq!((err, status), (format!("cannot create 't/v': {why}\n"), 1));
    let (_, err, status) = shed.run("zfs set userused@5=1 t/a");
    let want = "cannot set property for 't/a': 'userused@5' is readonly";
    assert_eq!((status, err.trim_end()), (255, want));
    shed.judge("t");
}

/// The table of features in the documentation equals that in the code.
#[test]
fn features_are_as_documented() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/compatibility.md");
    let text = std::fs::read_to_string(path).expect("the documentation");
    for feature in cenote_pool::features::identity() {
        let start = format!("| `{}` |", feature.name);
        let row = text.lines().find(|line| line.starts_with(&start));
        let row = row.unwrap_or_else(|| panic!("{} is not documented", feature.name));
        let is_maintained = cenote_engine::admin::is_maintained(feature);
        assert_eq!(row.ends_with("| yes |"), is_maintained, "{row}");
    }
}

/// Checks the reservation of `refreservation=auto`, also after a change of the volume's size.
#[test]
fn refreservation_auto_equals_openzfs() {
    let shed = Shed::new("volumes", 0);
    shed.add("d0", 64 << 30);
    let path = shed.path().join("d0");
    shed.succeeds(&format!("zpool create -o ashift=12 t {}", path.display()));
    shed.succeeds("zfs create -V 16384M -b 4K t/fine");
    shed.succeeds("zfs create -V 16384M -b 128K t/coarse");
    shed.succeeds("zfs create -s -V 16384M -b 4K t/sparse");
    let used = |name: &str| shed.succeeds(&format!("zfs list -H -o used {name}")).trim().to_owned();
    assert_eq!([used("t/fine"), used("t/coarse")], ["17.0G", "16.0G"]);
    assert_ne!(used("t/sparse"), "17.0G");
    shed.succeeds("zfs set refreservation=auto t/sparse");
    assert_eq!(used("t/sparse"), "17.0G");
    // The reservation follows the size, unless it was set differently.
    shed.succeeds("zfs set volsize=8192M t/fine");
    assert_eq!(used("t/fine"), "8.50G");
    shed.succeeds("zfs set refreservation=1G t/coarse");
    shed.succeeds("zfs set volsize=8192M t/coarse");
    assert_eq!(used("t/coarse"), "1G");
    let sizes = shed.succeeds("zfs list -H -p -o volsize,refreservation t/fine");
    assert_eq!(sizes.trim(), format!("{}\t{}", 8_u64 << 30, (8_u64 << 30) + 4116 * (128 << 10)));
    shed.judge("t");
}

/// A folder in memory, whose files may be larger than file systems on disks allow.
struct MemoryFolder(std::path::PathBuf);

impl Drop for MemoryFolder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// Entries of old space maps have 47 bits for an offset in sectors, and a checkpoint's map has
/// offsets within the whole vdev. Creating such a pool takes a second, not minutes.
#[test]
fn checkpoint_of_a_vdev_beyond_old_space_maps_is_refused() {
    let folder = MemoryFolder(format!("/dev/shm/cenote-huge-{}", std::process::id()).into());
    let path = folder.0.to_str().expect("UTF-8");
    let device = format!("{path}/disk");
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        cenote(&[&["zpool", "--embedded", "-d", path], &words[..]].concat())
    };
    for (pebibytes, said) in
        [(64, ""), (65, "cannot checkpoint 't': device exceeds supported size")]
    {
        std::fs::create_dir_all(path).expect("a folder");
        let file = std::fs::File::create(&device).expect("a file");
        file.set_len(pebibytes << 50).expect("its size");
        let create = format!("create -d t {device}");
        for line in [create.as_str(), "set feature@zpool_checkpoint=enabled t"] {
            let (_, err, status) = run(line);
            assert_eq!((status, err.as_str()), (0, ""), "{line}");
        }
        let (_, err, status) = run("checkpoint t");
        assert_eq!((status, err.trim_end()), (i32::from(!said.is_empty()), said));
        std::fs::remove_dir_all(path).expect("the folder");
    }
}

/// Takes, shows, discards and rewinds to a checkpoint, and adds devices while there is one.
#[test]
fn checkpoint_is_taken_rewound_to_and_discarded() {
    let shed = Shed::new("checkpoint", 2);
    let usage = |err: &str| err.lines().next().unwrap_or_default().to_owned();
    shed.succeeds("zpool create tank d0");
    shed.succeeds("zfs create tank/old");
    shed.fails("zpool checkpoint nosuch", "cannot open 'nosuch': no such pool");
    shed.fails(
        "zpool checkpoint tank/old",
        "cannot open 'tank/old': invalid character '/' in pool name\n'zpool checkpoint' doesn't \
         work on datasets. To save the state of a dataset from a specific point in time please \
         use 'zfs snapshot'",
    );
    let (_, err, status) = shed.run("zpool checkpoint -w tank");
    let said = "--wait only valid when --discard also specified";
    assert_eq!((status, usage(&err).as_str()), (2, said));
    let gone = "cannot discard checkpoint in 'tank': checkpoint does not exist";
    shed.fails("zpool checkpoint -d tank", gone);
    shed.succeeds("zpool checkpoint tank");
    shed.fails("zpool checkpoint tank", "cannot checkpoint 'tank': checkpoint exists");
    shed.fails("zpool reguid tank", "cannot reguid 'tank': checkpoint exists");
    shed.succeeds("zfs destroy tank/old");
    shed.succeeds("zfs create tank/new");
    shed.succeeds("zpool add tank d1");
    let status = shed.succeeds("zpool status tank");
    assert!(status.contains("checkpoint: created ") && status.contains(", consumes "), "{status}");
    shed.succeeds("zpool export tank");
    shed.judge("tank");
    shed.succeeds("zpool import --rewind-to-checkpoint tank");
    assert_eq!(shed.succeeds("zfs list -H -o name"), "tank\ntank/old\n");
    let status = shed.succeeds("zpool status tank");
    assert!(!status.contains("checkpoint:"), "{status}");
    assert!(!status.contains("d1"), "{status}");
    let history = shed.succeeds("zpool history -i tank");
    assert!(history.contains("checkpoint rewind rewound state to txg="), "{history}");
    shed.succeeds("zpool export tank");
    std::fs::remove_file(shed.path().join("d1")).expect("d1");
    let none = "cannot import 'tank': checkpoint does not exist";
    shed.fails("zpool import --rewind-to-checkpoint tank", none);
    shed.succeeds("zpool import tank");
    shed.succeeds("zpool checkpoint tank");
    shed.succeeds("zfs destroy tank/old");
    shed.succeeds("zpool checkpoint -d -w tank");
    shed.succeeds("zpool wait tank");
    shed.judge("tank");
}

/// A failing command leaves the pool as it was found, and only successful commands are in the
/// history.
#[test]
fn failing_commands_leave_the_pool_as_found() {
    let shed = Shed::new("fails", 2);
    shed.succeeds("zpool create tank d0");
    for line in [
        "zpool checkpoint -d tank",
        "zpool trim -c tank",
        "zpool trim tank nosuch",
        "zpool offline tank nosuch",
        "zpool add tank nosuch",
        "zpool set bootfs=tank/nosuch tank",
        "zfs set reservation=10G tank",
    ] {
        shed.succeeds("zpool export tank");
        let (_, err, status) = shed.run(line);
        assert!(status != 0 && !err.contains("warning"), "{line}: {err}");
        // An active pool is not imported again.
        shed.succeeds("zpool import tank");
    }
    let foreign = "'other' is an invalid name";
    let cannot = format!("cannot set property for 'tank': {foreign}");
    shed.fails("zpool set bootfs=other tank", &cannot);
    shed.fails("zpool create -o bootfs=other u d1", &format!("cannot create 'u': {foreign}"));
    shed.succeeds("zpool export tank");
    let cannot = format!("cannot import pool 'tank': {foreign}");
    shed.fails("zpool import -o bootfs=other tank", &cannot);
    let (_, err, status) = shed.run("zpool import -o bootfs=tank/nosuch tank");
    assert!(status == 1 && !err.contains("warning"), "{err}");
    shed.succeeds("zpool import tank");
    shed.succeeds("zpool destroy tank");
    let (_, err, status) = shed.run("zpool import -D -o bootfs=tank/nosuch tank");
    assert!(status == 1 && !err.contains("warning"), "{err}");
    assert_eq!(shed.succeeds("zpool list"), "no pools available\n");
    shed.succeeds("zpool import -D tank");
    let history = shed.succeeds("zpool history tank");
    assert!(!history.contains("nosuch") && !history.contains("-c tank"), "{history}");
    shed.judge("tank");
}

/// Trims and initializes free space: the lines of the status, and the messages about failures.
#[test]
fn trim_and_initialize_work_on_free_space() {
    let shed = Shed::new("trim", 2);
    let usage = |err: &str| err.lines().next().unwrap_or_default().to_owned();
    let path = |name: &str| shed.path().join(name).to_string_lossy().into_owned();
    shed.succeeds("zpool create tank mirror d0 d1");
    let none = format!("cannot trim '{}': there is no active trim", path("d0"));
    shed.fails("zpool trim -c tank", &none);
    shed.fails("zpool trim tank nosuch", "cannot trim 'nosuch': no such device in pool");
    let (_, err, status) = shed.run("zpool trim -w -s tank");
    assert!(status == 2 && err.starts_with("-w cannot be used with -c or -s\n"), "{err}");
    shed.succeeds("zpool trim tank d0");
    let status = shed.succeeds("zpool status -t tank");
    assert!(status.contains("  (100% trimmed, completed at "), "{status}");
    assert!(status.contains("  (untrimmed)\n"), "{status}");
    shed.succeeds("zpool initialize -w tank");
    let status = shed.succeeds("zpool status -i tank");
    assert_eq!(status.matches("  (100% initialized, completed at ").count(), 2, "{status}");
    let blocks = |name: &str| {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(path(name)).expect("a device").blocks() * 512
    };
    assert!(blocks("d0") > 100 << 20 && blocks("d1") > 100 << 20);
    shed.succeeds("zpool trim -r 4G tank");
    assert!(blocks("d0") < 20 << 20 && blocks("d1") < 20 << 20, "{}", blocks("d0"));
    shed.succeeds("zpool initialize -u tank");
    let status = shed.succeeds("zpool status -i tank");
    assert_eq!(status.matches("  (uninitialized)\n").count(), 2, "{status}");
    let none = format!("cannot initialize '{}': there is no active initialization", path("d0"));
    shed.fails("zpool initialize -s tank d0", &none);
    shed.succeeds("zpool wait -t trim,initialize tank");
    let (_, err, status) = shed.run("zpool wait -t nosuch tank");
    assert!(status == 2 && err.starts_with("invalid activity 'nosuch'\n"), "{err}");
    // The name only filters.
    for line in ["zpool events tank", "zpool events nosuch"] {
        assert_eq!(shed.succeeds(line), "TIME                           CLASS\n");
    }
    for (line, want) in [
        ("zpool events -c tank", "invalid options combined with -c"),
        ("zpool events -c -H", "invalid options combined with -c"),
        ("zpool events tank@x", "invalid pool name 'tank@x'"),
    ] {
        let (_, err, status) = shed.run(line);
        assert_eq!((status, usage(&err).as_str()), (2, want), "{line}");
    }
    shed.judge("tank");
}

/// Takes devices offline and online, with the messages; a cache file names the pool.
#[test]
fn offline_online_and_clear() {
    let shed = Shed::new("service", 2);
    let device = |name: &str| shed.path().join(name).to_str().expect("UTF-8").to_owned();
    let state = |name: &str| {
        let status = shed.succeeds("zpool status -P tank");
        let line = status.lines().find(|line| line.contains(&device(name))).expect("the device");
        line.split_whitespace().nth(1).expect("its state").to_owned()
    };
    shed.succeeds("zpool create tank mirror d0 d1");
    let absent = "cannot offline nosuch: no such device in pool";
    shed.fails("zpool offline tank nosuch", absent);
    let absent_online = "couldn't find device \"nosuch\" in pool \"tank\"";
    shed.fails("zpool online tank nosuch", absent_online);
    shed.succeeds("zpool online -e tank d0");
    // A failure does not keep the others from being processed.
    shed.fails("zpool offline tank nosuch d0", absent);
    assert_eq!(state("d0"), "OFFLINE");
    let needed = format!("cannot offline {}: no valid replicas", device("d1"));
    shed.fails("zpool offline tank d1", &needed);
    shed.succeeds("zfs create tank/a");
    shed.succeeds("zpool clear tank");
    assert_eq!(state("d0"), "OFFLINE");
    shed.succeeds("zpool online tank d0");
    assert_eq!(state("d0"), "ONLINE");
    // The only up-to-date copy of its data is on the other device.
    shed.fails("zpool offline tank d1", &needed);
    shed.succeeds("zpool offline -t tank d0");
    assert_eq!(state("d0"), "ONLINE");
    shed.succeeds("zpool offline -f tank d0");
    assert_eq!(state("d0"), "FAULTED");
    shed.succeeds("zpool clear tank mirror-0");
    assert_eq!(state("d0"), "ONLINE");
    shed.fails("zpool clear tank nosuch", "cannot clear errors for nosuch: no such device in pool");
    let (_, err, status) = shed.run("zpool clear -n tank");
    assert!(status == 2 && err.starts_with("-n or -X only meaningful with -F\n"), "{err}");
    let written = || std::fs::metadata(device("d0")).and_then(|found| found.modified()).unwrap();
    let before = written();
    shed.succeeds("zpool clear -nF tank");
    assert_eq!(written(), before);
    shed.succeeds("zpool export tank");
    let cache = shed.path().join("cache");
    let line = format!("zpool import -F -o cachefile={} tank", cache.display());
    // A file that cannot be parsed is not replaced: it may list other pools.
    std::fs::write(&cache, "something else").expect("a file");
    let (_, err, status) = shed.run(&line);
    assert!(status == 1 && err.starts_with("cannot import 'tank': cachefile: "), "{err}");
    assert_eq!(std::fs::read(&cache).expect("the file"), b"something else");
    std::fs::remove_file(&cache).expect("the file");
    // The import failed, so the pool still has its old name.
    shed.succeeds(&line.replace("-F ", ""));
    shed.succeeds("zpool export tank");
    shed.succeeds(&line);
    shed.succeeds("zpool export tank");
    shed.succeeds(&format!("zpool import -c {} tank", cache.display()));
    shed.judge_with_stale_leaf("tank");
}

/// Changes of a pool with the internal record of each.
const RECORDS: [(&str, &str); 17] = [
    ("zpool set comment=shelf t", "set comment=shelf"),
    ("zpool set comment= t", "set comment="),
    ("zpool set compatibility=off t", "set compatibility=off"),
    ("zpool set autotrim=on t", "set autotrim=1"),
    ("zpool set dedup_table_quota=auto t", "set dedup_table_quota=-1"),
    ("zpool set org:x=y t", "set org:x=y"),
    ("zpool set org:x= t", "set org:x="),
    ("zpool set bootfs=t t", "set bootfs=ROOT"),
    ("zpool set bootfs= t", "set bootfs=0"),
    ("zpool set feature@draid=enabled t", "set feature@draid=enabled"),
    ("zpool set io_n=4 t d0", "vdev set vdev_guid=GUID: io_n=4"),
    ("zpool set io_t=none t d0", "vdev set vdev_guid=GUID: io_t=-1"),
    ("zpool set comment=left t d0", "vdev set vdev_guid=GUID: comment=left"),
    ("zpool set comment= t d0", "vdev set vdev_guid=GUID: comment="),
    ("zpool remove t d1", "vdev remove t vdev (spare) /dev/shm/v/d1"),
    ("zpool remove t d2", "vdev remove t vdev (l2cache) /dev/shm/v/d2"),
    ("zpool reguid -g 4711 t", "guid change old=OLD new=4711"),
];

/// Records of the pool itself are those of OpenZFS.
#[test]
fn history_has_records_of_the_pool_itself() {
    let shed = Shed::new("pool-records", 3);
    shed.succeeds("zpool create -o feature@draid=disabled -o ashift=12 t d0 spare d1 cache d2");
    let value = |line: &str| shed.succeeds(line).trim().to_owned();
    let root = value("zfs get -Hp -o value objsetid t");
    let old = value("zpool get -Hp -o value guid t");
    let guid = value("zpool get -Hp -o value guid t d0");
    for (line, _) in RECORDS {
        shed.succeeds(line);
    }
    shed.succeeds("zpool export t");
    shed.succeeds("zpool import t");
    let history = shed.succeeds("zpool history -i t");
    let internal = history.lines().filter(|line| line.contains(" [txg:"));
    let internal: Vec<_> =
        internal.map(|line| line.split_once("] ").expect("a record").1).collect();
    let is_version = |text: &str, event: &str| {
        let uts = format!("; uts {}", cenote_rt::Uts::here());
        let head = format!("{event} pool version 5000; software version zfs-2.3.2-cenote-");
        text.starts_with(&head) && text.ends_with(&uts)
    };
    assert!(is_version(internal[0], "create"), "{history}");
    let features = cenote_pool::features::identity().filter(|feature| feature.name != "draid");
    let mut wanted: Vec<_> =
        features.map(|feature| format!("set feature@{}=enabled", feature.name)).collect();
    wanted.push("set ashift=12".to_owned());
    wanted.extend(RECORDS.iter().map(|(_, record)| {
        let record = record.replace("ROOT", &root).replace("GUID", &guid).replace("OLD", &old);
        shed.here(&record)
    }));
    // Each command opens the pool.
    let is_opening = |text: &&&str| is_version(text, "open");
    assert!(internal.iter().filter(is_opening).count() >= RECORDS.len(), "{history}");
    let others: Vec<_> = internal[1..].iter().filter(|text| !is_version(text, "open")).collect();
    let (imported, others) = others.split_last().expect("records");
    assert!(is_version(imported, "import"), "{history}");
    let is_of_pool = |text: &&&&str| !text.contains(" t (");
    let others: Vec<_> = others.iter().filter(is_of_pool).map(|text| (**text).to_owned()).collect();
    assert_eq!(others, wanted);
    shed.judge("t");
}

/// What OpenZFS records of snapshots and holds: internal events, the ioctl, and the command.
#[test]
fn history_has_the_ioctls_of_snapshots_and_holds() {
    let shed = Shed::new("ioctls", 1);
    shed.succeeds("zpool create t d0");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zfs snapshot -r t@s");
    shed.succeeds("zfs hold -r tag t@s");
    shed.succeeds("zfs release -r tag t@s");
    shed.succeeds("zfs rollback t/a@s");
    shed.succeeds("zfs destroy -r t@s");
    let history = shed.succeeds("zpool history -i t");
    for (name, input, line) in [
        ("snapshot", "snaps:\n            t@s\n            t/a@s", "zfs snapshot -r t@s"),
        ("hold", "holds:\n            t@s: 'tag'\n            t/a@s: 'tag'", "zfs hold -r tag t@s"),
        (
            "release",
            "t@s:\n            tag\n        t/a@s:\n            tag",
            "zfs release -r tag t@s",
        ),
        ("destroy_snaps", "snaps:\n            t@s\n            t/a@s", "zfs destroy -r t@s"),
    ] {
        let record = format!("ioctl {name}\n    input:\n        {input}\n");
        let at = history.find(&record).unwrap_or_else(|| panic!("{name}: {history}"));
        assert!(history[at..].contains(line), "{line} follows: {history}");
    }
    let swapped = history.find("clone swap t/a/%rollback (").expect("the rollback");
    assert!(history[swapped..].lines().next().is_some_and(|line| line.ends_with(") parent=a")));
    assert!(history[swapped..].contains("] destroy t/a/%rollback ("), "{history}");
    assert!(!shed.succeeds("zpool history t").contains("ioctl"));
    shed.judge("t");
}
