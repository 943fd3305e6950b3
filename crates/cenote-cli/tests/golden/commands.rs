//! Compares the output of `zpool` and `zfs` for the golden pools with that of OpenZFS.
//!
//! A pool is opened through links whose names are as long as the names of its devices when the
//! tables were made, so that even the column widths are equal. The tables show the txg just before
//! the export, which itself writes to the pool: `-T` opens that txg.

use std::path::PathBuf;

use cenote_cli::run_captured as cenote;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::nvlist::{Encoding, NvList, NvValue};
use cenote_pool::{OpenOptions, Pool, ScanOptions, import};
use cenote_testkit::golden::{PrivateFolder, on_each, wording};
use cenote_testkit::tables::{EXEMPT_DATASET, EXEMPT_POOL, without_exempt};
use cenote_testkit::{Golden, compare, golden, tables, wordings};

/// Lines of tables that are not compared: (pool, start of the line, reason).
const EXEMPT_LINES: &[(&str, &str, &str)] = &[
    ("g-classes", "\t/dev/shm/v/d6\t", "what is in a cache device is known once it is in use"),
    ("g-scan", "g-scan\t", "counts what was freed in the last two txgs, a fact of memory"),
    ("g-scan", "\traidz1-0\t", "the same"),
    ("g-degraded", "\t    /dev/shm/v/d3 ", "errors are counted from the import on"),
];

/// Runs a command that must succeed and print nothing on standard error.
fn succeeds(args: &[&str]) -> String {
    let (out, err, status) = cenote(args);
    assert_eq!((status, err.as_str()), (0, ""), "{args:?}");
    out
}

/// A directory whose name is ten bytes long, with links `d0`, `d1`, ... to the images in `below`.
struct Links {
    root: PathBuf,
}

impl Links {
    fn new(golden: &Golden, below: &str) -> Self {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let root = loop {
            let number = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            let name = (std::process::id() * 64 + number) % 100_000;
            let root = PathBuf::from(format!("/tmp/{name:05}"));
            if std::fs::create_dir(&root).is_ok() {
                break root;
            }
        };
        let folder = root.join(below);
        std::fs::create_dir_all(&folder).expect("folder of links");
        for device in golden.devices() {
            let name = device.file_stem().expect("an image has a name");
            std::os::unix::fs::symlink(&device, folder.join(name)).expect("link");
        }
        Self { root }
    }

    fn path(&self) -> &str {
        self.root.to_str().expect("UTF-8")
    }

    /// Replaces the directory by `place`, which has the same length.
    fn as_if_in(&self, place: &str, text: &str) -> String {
        assert_eq!(self.path().len(), place.len());
        text.replace(self.path(), place)
    }
}

impl Drop for Links {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.root);
    }
}

/// Returns the txgs at which the used space equals that in the tables, newest first.
fn matching_txgs(golden: &Golden) -> Vec<u64> {
    let matching = async {
        let options = ScanOptions { paths: vec![golden.images()] };
        let scan = import::scan(&options).await.expect("scan");
        let candidate = scan.find(golden.name()).expect("the pool is found");
        let txgs = candidate.uberblocks().into_iter().map(|uberblock| uberblock.txg);
        tables::at_listing(golden, txgs, async |txg| {
            let options = OpenOptions { txg: Some(txg), ..OpenOptions::default() };
            let pool = Pool::open(candidate, &options).await.ok()?;
            Some((txg, pool.root_dir().phys.used_bytes))
        })
        .await
    };
    cenote_rt::block_on(2, matching).expect("runtime")
}

/// Returns the output of `tool args...` for the pool at the time of the tables. If several txgs
/// match, the one accepted by `same`, or the oldest.
fn at_tables(
    golden: &Golden,
    args: &[&str],
    same: impl Fn(&str) -> Option<String>,
) -> Option<String> {
    let links = Links::new(golden, "");
    let folder = PrivateFolder::create("keys");
    let keys = golden.key_options(&folder);
    let mut difference = Some("no txg at which the tables were printed".to_owned());
    for txg in matching_txgs(golden) {
        let txg = txg.to_string();
        let mut line = vec![args[0], "--embedded", "-d", links.path(), "-T", &txg];
        line.extend(keys.iter().map(String::as_str));
        line.extend(&args[1..]);
        difference = same(&links.as_if_in("/dev/shm/v", &succeeds(&line)));
        if difference.is_none() {
            break;
        }
    }
    difference
}

fn without_lines(text: &str, pool: &str) -> String {
    let is_exempt = |line: &str| {
        EXEMPT_LINES.iter().any(|(on, start, _)| *on == pool && line.starts_with(start))
    };
    text.lines().filter(|line| !is_exempt(line)).flat_map(|line| [line, "\n"]).collect()
}

#[test]
fn import_listings() {
    let Some(text) = wording("import-listings.txt") else { return };
    on_each(|golden| {
        let title = format!("## {}\n", golden.name());
        let part = text.split(&title).nth(1).expect("the pool is listed");
        let part = part.split("\nexit 0").next().expect("its end");
        let wanted = part.split_once('\n').expect("a command line").1.to_owned() + "\n";
        // The pool was not exported: a listing on another host says so.
        let foreign = "status: The pool was last accessed by another system.\n\
                       action: The pool can be imported using its name or numeric identifier and\n\
                       \tthe '-f' flag.\n   \
                       see: https://openzfs.github.io/openzfs-docs/msg/ZFS-8000-EY\n";
        let own = "action: The pool can be imported using its name or numeric identifier.\n";
        let links = Links::new(golden, golden.name());
        let folder = format!("{}/{}", links.path(), golden.name());
        let ours = succeeds(&["zpool", "import", "-d", &folder]);
        let ours = if golden.name() == "g-zil" { ours.replace(foreign, own) } else { ours };
        compare::text_difference(&links.as_if_in("/dev/shm/g", &ours), &wanted)
    });
}

#[test]
fn dataset_lists() {
    on_each(|golden| {
        let wanted = golden.text("zfs-list.tsv")?;
        let columns = "name,type,used,available,referenced,mountpoint,creation";
        let args = ["zfs", "list", "-Hp", "-t", "all", "-r", "-o", columns];
        at_tables(golden, &args, |ours| compare::text_difference(ours, &wanted))
    });
}

#[test]
fn dataset_properties() {
    on_each(|golden| {
        let wanted = golden.text("zfs-get-all.tsv")?;
        let kept = |text: &str| without_exempt(text, EXEMPT_DATASET, golden.name());
        at_tables(golden, &["zfs", "get", "-Hp", "-t", "all", "-r", "all", golden.name()], |ours| {
            compare::text_difference(&kept(ours), &kept(&wanted))
        })
    });
}

#[test]
fn pool_properties() {
    on_each(|golden| {
        let wanted = golden.text("zpool-get-all.tsv")?;
        let kept = |text: &str| without_exempt(text, EXEMPT_POOL, golden.name());
        at_tables(golden, &["zpool", "get", "-Hp", "all"], |ours| {
            compare::text_difference(&kept(ours), &kept(&wanted))
        })
    });
}

#[test]
fn pool_lists() {
    on_each(|golden| {
        let wanted = golden.text("zpool-list-v.tsv")?;
        let kept = |text: &str| without_lines(text, golden.name());
        at_tables(golden, &["zpool", "list", "-Hpv"], |ours| {
            compare::text_difference(&kept(ours), &kept(&wanted))
        })
    });
}

#[test]
fn pool_statuses() {
    on_each(|golden| {
        let wanted = golden.text("zpool-status.txt")?;
        let kept = |text: &str| without_lines(text, golden.name());
        at_tables(golden, &["zpool", "status", "-v"], |ours| {
            compare::text_difference(&kept(ours), &kept(&wanted))
        })
    });
}

/// The history continues after the tables were made: with the export, if at all.
#[test]
fn histories() {
    on_each(|golden| {
        let wanted = golden.text("history.txt")?;
        let images = golden.images();
        let images = images.to_str().expect("UTF-8");
        let ours = succeeds(&["zpool", "--embedded", "-d", images, "history", "-il"]);
        let wanted = wanted.strip_suffix('\n').expect("an empty line at its end");
        let ours = ours.get(..wanted.len()).unwrap_or(&ours);
        compare::text_difference(ours, wanted)
    });
}

#[test]
fn space_of_users_groups_projects() {
    let Some(golden) = golden("g-quota") else { return };
    let Some(wanted) = golden.text("userspace.tsv") else { return };
    let images = golden.images();
    let images = images.to_str().expect("UTF-8");
    let mut ours = String::new();
    for verb in ["userspace", "groupspace", "projectspace"] {
        let args = ["zfs", "--embedded", "-d", images, verb, "-Hp", "g-quota/a"];
        ours.push_str(&succeeds(&args));
    }
    // Names of users, and the order that depends on them, differ between hosts.
    let without_names = |text: &str| {
        let rows = tables::rows(text).into_iter();
        let mut rows: Vec<String> =
            rows.map(|row| [&row[..1], &row[2..]].concat().join("\t")).collect();
        rows.sort();
        rows.join("\n")
    };
    compare::assert_text("userspace", &without_names(&ours), &without_names(&wanted));
}

/// Selection of datasets: arguments, types, depth, order.
#[test]
fn selections() {
    let Some(golden) = golden("g-basic") else { return };
    let images = golden.images();
    let images = images.to_str().expect("UTF-8");
    for (line, want) in [
        ("-d 0", "g-basic"),
        ("-d 1 -t snapshot g-basic", "g-basic@rec"),
        ("-t snapshot g-basic/lz4", "g-basic/lz4@one g-basic/lz4@two g-basic/lz4@rec"),
        ("-t bookmark -r g-basic", "g-basic/lz4#mark"),
        ("-t bookmark g-basic/lz4", "g-basic/lz4#mark"),
        ("g-basic/lz4@one g-basic/lz4", "g-basic/lz4 g-basic/lz4@one"),
        (
            "-t all -d 1 g-basic/lz4",
            "g-basic/lz4 g-basic/lz4@one g-basic/lz4@two g-basic/lz4@rec g-basic/lz4#mark",
        ),
        ("-r g-basic", "g-basic g-basic/acl g-basic/clone g-basic/lz4 g-basic/plain"),
        ("-S name -d 1", "g-basic/plain g-basic/lz4 g-basic/clone g-basic/acl g-basic"),
        ("-s used -t snapshot g-basic/lz4", "g-basic/lz4@two g-basic/lz4@rec g-basic/lz4@one"),
        ("-s origin", "g-basic/clone g-basic g-basic/acl g-basic/lz4 g-basic/plain"),
        ("-S origin", "g-basic/clone g-basic g-basic/acl g-basic/lz4 g-basic/plain"),
        ("-t volume", ""),
    ] {
        let mut args = vec!["zfs", "--embedded", "-d", images, "list", "-H", "-o", "name"];
        args.extend(line.split(' '));
        let (out, _, status) = cenote(&args);
        assert_eq!((out.trim_end().replace('\n', " "), status), (want.to_owned(), 0), "{line}");
    }
}

#[test]
fn holds() {
    let Some(golden) = golden("g-basic") else { return };
    let images = golden.images();
    let images = images.to_str().expect("UTF-8");
    let holds = |args: &[&str]| {
        succeeds(&[&["zfs", "--embedded", "-d", images, "holds", "-Hp"], args].concat())
    };
    let held = holds(&["g-basic/lz4@two"]);
    assert_eq!(held, "g-basic/lz4@two\tkeep\t1795226803\n");
    assert_eq!(holds(&["-r", "g-basic@two"]), held);
    assert_eq!(holds(&["g-basic/lz4@one"]), "");
    let (_, err, status) =
        cenote(&["zfs", "--embedded", "-d", images, "holds", "g-basic/lz4@nope"]);
    assert_eq!(err, "cannot open 'g-basic/lz4@nope': dataset does not exist\n");
    assert_eq!(status, 1);
}

/// Imports with a cache file, which names pools and their devices.
#[test]
fn imports_by_a_cache_file() {
    let (Some(golden), Some(other)) = (golden("g-basic"), golden("g-quota")) else { return };
    let folder = cenote_testkit::golden::PrivateFolder::create("cache-file");
    let file = folder.path().join("zpool.cache");
    let listed = |golden: &Golden, guid: u64| {
        let (mut leaf, mut root, mut config) = (NvList::new(), NvList::new(), NvList::new());
        let path = golden.devices()[0].to_string_lossy().into_owned();
        leaf.insert("path", NvValue::String(path.as_str().into()));
        root.insert("children", NvValue::ListArray(vec![leaf]));
        config.insert("pool_guid", NvValue::Uint64(guid));
        config.insert("vdev_tree", NvValue::List(root));
        config
    };
    let mut cache = NvList::new();
    cache.insert("g-basic", NvValue::List(listed(&golden, 15_274_282_956_942_670_383)));
    // Another pool is on the device by now.
    cache.insert("gone", NvValue::List(listed(&other, 7)));
    std::fs::write(&file, cache.encode(Encoding::Native(Endian::Little))).expect("a file");
    let text = succeeds(&["zpool", "import", "-c", &file.to_string_lossy()]);
    assert!(text.contains("pool: g-basic") && !text.contains("g-quota"), "{text}");
    std::fs::write(&file, b"nonsense").expect("a file");
    let (_, err, status) = cenote(&["zpool", "import", "-c", &file.to_string_lossy()]);
    assert!(err.contains("invalid or corrupt cache file contents"), "{err}");
    assert_eq!(status, 1);
}

/// A pool that is named is checked as an import checks it.
#[test]
fn imports_are_refused() {
    let Some(golden) = golden("g-basic") else { return };
    let images = golden.images();
    let images = images.to_str().expect("UTF-8");
    for (args, want, status) in [
        (&["nope"][..], "cannot import 'nope': no such pool available", 1),
        (&["g-basic"], "cannot import 'g-basic': a permanent import is not supported", 1),
        (&["15274282956942670383"], "cannot import '15274282956942670383': a permanent import", 1),
        (&["-D"], "no pools available to import", 0),
        (&["-n", "g-basic"], "-n or -X only meaningful with -F", 2),
        (&["-T", "x", "g-basic"], "invalid txg value", 2),
        (&["-T", "1", "g-basic"], "cannot import 'g-basic': I/O error", 1),
        (&["a", "b", "c"], "too many arguments", 2),
    ] {
        let (out, err, found) = cenote(&[&["zpool", "import", "-d", images], args].concat());
        assert!(err.starts_with(want), "{args:?}: {err}");
        assert_eq!((out.as_str(), found), ("", status), "{args:?}");
    }
}

/// Every verb with `-?`.
#[test]
fn usage_texts() {
    let mut count = 0;
    for file in ["usage-zfs.txt", "usage-zpool.txt"] {
        let Some(wordings) = wordings(file) else { return };
        for wording in wordings {
            let args: Vec<&str> = wording.command.split(' ').collect();
            let (out, err, status) = cenote(&args);
            compare::assert_text(&wording.command, &err, &wording.err);
            assert_eq!((out.as_str(), status), ("", wording.status), "{}", wording.command);
            count += 1;
        }
    }
    assert!(count > 70, "{count}");
}

/// Recorded commands whose messages are the same for a pool that is only read. The recorded pool is
/// `t` with a file system `t/a`; here it is g-basic with g-basic/lz4, whose first snapshot is
/// `one`.
const SAME: &[&str] = &[
    "zpool list nope",
    "zfs list nope",
    "zfs list nope/x",
    "zfs get all nope",
    "zpool status nope",
    "zpool get all nope",
    "zpool create",
    "zpool create t",
    "zpool create t /dev/shm/v/none",
    "zpool create mirror /dev/shm/v/a /dev/shm/v/b",
    "zpool create 9t /dev/shm/v/a",
    "zpool create -Z t /dev/shm/v/a",
    "zfs create t/a",
    "zfs create t/x/y",
    "zfs create t/bad@name",
    "zfs set nosuch=1 t/a",
    "zfs set compression=lz4 t/nope",
    "zfs inherit used t/a",
    "zfs set used=1 t/a",
    "zfs get",
    "zfs get nosuch t/a",
    "zfs get -t nosuch all t/a",
    "zfs snapshot t/nope@s",
    "zfs snapshot t/a",
    "zfs clone t/a@nope t/d",
    "zfs destroy t/nope",
    "zfs destroy t/nope@x",
    "zfs destroy t/a@%r",
    "zfs promote t/a",
    "zfs list -t nosuch",
    "zfs list -o nosuch",
    "zfs mount t/nope",
    "zfs send t/cc@nope",
    "zfs receive",
    "zfs receive -A t/a",
    "zfs upgrade",
    "zpool upgrade",
    "zfs",
    "zpool",
    "zfs nosuch",
    "zpool nosuch",
    "zfs list -Z",
    "zpool get nosuch t",
    "zpool set nosuch=1 t",
    "zpool export nope",
    "zpool import -d /dev/shm/none",
];

#[test]
fn wordings_on_a_pool() {
    let Some(wordings) = wordings("wording.txt") else { return };
    let Some(golden) = golden("g-basic") else { return };
    let images = golden.images();
    let images = images.to_str().expect("UTF-8");
    // Names are quoted in messages, and not in commands.
    let here = |text: &str| {
        text.replace("'t'", "'g-basic'")
            .replace("'t/", "'g-basic/")
            .replace("g-basic/a'", "g-basic/lz4'")
            .replace("g-basic/a@", "g-basic/lz4@")
            .replace("g-basic/cc@", "g-basic/lz4@")
    };
    for command in SAME {
        // Some commands are recorded twice, before and after an operation.
        let mut same = wordings.iter().filter(|wording| wording.command == *command);
        let first = same.next().unwrap_or_else(|| panic!("{command} is not there"));
        let wording = if first.err.is_empty() { same.next_back().unwrap_or(first) } else { first };
        let words: Vec<String> = command
            .split(' ')
            .map(|word| here(&format!("'{word}'")).trim_matches('\'').to_owned())
            .collect();
        let mut args = vec![words[0].as_str(), "--embedded", "-d", images];
        args.extend(words[1..].iter().map(String::as_str));
        let (out, err, status) = cenote(&args);
        compare::assert_text(command, &err, &here(&wording.err));
        compare::assert_text(command, &out, &here(&wording.out));
        assert_eq!(status, wording.status, "{command}");
    }
}

/// Without a pool the output is that of OpenZFS on a system without pools.
#[test]
fn wordings_without_pools() {
    let Some(wordings) = wordings("wording.txt") else { return };
    let mut count = 0;
    for wording in wordings.iter().take(9) {
        let args: Vec<&str> = wording.command.split(' ').collect();
        let (out, err, status) = cenote(&args);
        let ours = (out.as_str(), err.as_str(), status);
        let wanted = (wording.out.as_str(), wording.err.as_str(), wording.status);
        assert_eq!(ours, wanted, "{}", wording.command);
        count += 1;
    }
    assert_eq!(count, 9);
}

/// Returns the keys of a document, by path, in order.
fn json_keys(value: &serde_json::Value, at: &str, rename: &dyn Fn(&str) -> String) -> Vec<String> {
    let Some(map) = value.as_object() else { return Vec::new() };
    let mut keys = Vec::new();
    for (key, value) in map {
        let path = format!("{at}/{}", rename(key));
        keys.push(path.clone());
        keys.extend(json_keys(value, &path, rename));
    }
    keys
}

/// Keys of JSON output and their order; the recorded pool is a mirror, as g-codecs is.
#[test]
fn json_documents() {
    let Some(wordings) = wordings("wording.txt") else { return };
    let Some(golden) = golden("g-codecs") else { return };
    let links = Links::new(&golden, "");
    for (command, limit) in [
        ("zpool status -j t", ""),
        ("zfs list -j", "g-codecs"),
        ("zpool list -j", ""),
        ("zfs get -j used,compression t", ""),
    ] {
        let wording = wordings.iter().find(|wording| wording.command == command).expect("there");
        let mut args: Vec<&str> = command.split(' ').collect();
        args.splice(1..1, ["--embedded", "-d", links.path()]);
        if args.last() == Some(&"t") {
            args.pop();
            args.push("g-codecs");
        }
        if !limit.is_empty() {
            args.push(limit);
        }
        let out = succeeds(&args);
        assert_eq!(out.lines().count(), 1);
        let parse = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
        let rename = |key: &str| {
            let key = links.as_if_in("/dev/shm/v", key);
            let key = if key == "g-codecs" { "t".to_owned() } else { key };
            key.replace("v/d0", "v/a").replace("v/d1", "v/b")
        };
        let ours = json_keys(&parse(&out), "", &rename).join("\n");
        let wanted = json_keys(&parse(&wording.out), "", &str::to_owned).join("\n");
        compare::assert_text(command, &ours, &wanted);
    }
}

/// Compares with `zdb -DD` of OpenZFS for the same tables.
#[test]
fn dedup_tables() {
    let Some(golden) = golden("g-classes") else { return };
    let folder = golden.images();
    let folder = folder.to_str().expect("UTF-8");
    let said = succeeds(&["zpool", "--embedded", "-d", folder, "status", "-D", "g-classes"]);
    let (_, table) = said.split_once("errors: No known data errors\n\n").expect("it comes last");
    assert!(table.starts_with(" dedup: DDT entries 57, size "), "{table}");
    let (_, table) = table.split_once("on disk, 0B in core\n").expect("sizes");
    let wanted = [
        "",
        "bucket              allocated                       referenced          ",
        "______   ______________________________   ______________________________",
        "refcnt   blocks   LSIZE   PSIZE   DSIZE   blocks   LSIZE   PSIZE   DSIZE",
        "------   ------   -----   -----   -----   ------   -----   -----   -----",
        "     2       57   2.11M    864K    864K      134   6.18M   2.46M   2.46M",
        " Total       57   2.11M    864K    864K      134   6.18M   2.46M   2.46M",
        "",
    ];
    assert_eq!(table, wanted.join("\n"));
}
