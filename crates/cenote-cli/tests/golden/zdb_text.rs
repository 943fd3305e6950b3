//! Compares the output of `cenote zdb` for the golden pools with that of the real zdb.
//!
//! Where the real zdb is not installed, stored texts of some pools are used instead;
//! `CENOTE_BLESS=1` rewrites them (`zdb/POOL.txt.zst`, compressed with the program `zstd`).

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cenote_testkit::golden::PrivateFolder;
use cenote_testkit::{Golden, compare, golden, skip, unpack};

use crate::zdb;

/// Options on a pool whose whole text is compared.
const POOL_OPTIONS: [&str; 10] =
    ["-u", "-C", "-CC", "-h", "-hh", "-d", "-dd", "-ddd", "-dddd", "-i"];
/// Options on a device whose whole text is compared.
const DEVICE_OPTIONS: [&str; 4] = ["-l", "-ll", "-lu", "-lluuu"];
/// Pools with a stored text.
const KEPT: [&str; 6] = ["g-codecs", "g-crypt", "g-legacy", "g-removed", "g-zil", "g-zvol"];
/// The real zdb hangs when it is to show all of this pool, in a thread that is never woken. The
/// parts are compared instead.
const HANGS: &str = "g-send";

/// Returns the operands of each run with an option.
fn targets(golden: &Golden, option: &str) -> Vec<Vec<String>> {
    let pool = golden.name();
    let folder = golden.images();
    if option.starts_with("-l") {
        return golden.devices().iter().map(|device| vec![text(device)]).collect();
    }
    let before = |words: &[&str]| -> Vec<String> {
        let fixed = ["-e", "-p"].map(str::to_owned);
        let words = words.iter().map(|word| (*word).to_owned());
        fixed.into_iter().chain([text(&folder)]).chain(words).collect()
    };
    if pool != HANGS || !(option.starts_with("-d") || option == "-i") {
        return vec![before(&[pool])];
    }
    let (listing, _, _) = run(&before(&[pool]), "-d");
    let mut targets: Vec<Vec<String>> = listing
        .lines()
        .filter_map(|line| line.strip_prefix("Dataset ")?.split(' ').next())
        .filter(|name| name.contains(['/', '@']))
        .map(|name| before(&[name]))
        .collect();
    if option.len() > 2 {
        targets.push(before(&[pool, "0:-1"]));
    }
    targets
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

fn run(words: &[String], option: &str) -> (String, String, i32) {
    let args: Vec<&str> = [option].into_iter().chain(words.iter().map(String::as_str)).collect();
    zdb::cenote(&args)
}

/// Compares all runs of an option with the real zdb.
fn compare_all(options: &[&str]) {
    let Some(real) = cenote_oracle::zdb() else { return };
    for golden in cenote_testkit::golden::all() {
        for option in options {
            for words in targets(&golden, option) {
                let said = real.run(&[&[(*option).to_owned()][..], &words].concat());
                let (ours, _, status) = run(&words, option);
                let what = format!("zdb {option} {}", words.join(" "));
                let folder = golden.images();
                let filter = |text: &str| zdb::filter(text, &folder);
                compare::assert_text(&what, &filter(&ours), &filter(&said.stdout));
                assert_eq!(Some(status), said.code, "{what}");
            }
        }
    }
}

#[test]
fn labels() {
    compare_all(&DEVICE_OPTIONS);
}

#[test]
fn configs_uberblocks_histories() {
    compare_all(&["-u", "-C", "-CC", "-h", "-hh"]);
}

#[test]
fn datasets() {
    compare_all(&["-d", "-dd", "-ddd", "-i"]);
}

#[test]
fn objects() {
    compare_all(&["-dddd"]);
}

fn kept_path(pool: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden/zdb");
    folder.join(format!("{pool}.txt.zst"))
}

/// Returns everything that is stored for a pool, as `print` prints it.
fn transcript(golden: &Golden, print: impl Fn(&[String], &str) -> String) -> String {
    let folder = golden.images();
    let mut all = String::new();
    for option in DEVICE_OPTIONS.iter().take(1).chain(&POOL_OPTIONS) {
        for words in targets(golden, option) {
            let command = format!("zdb {option} {}", words.join(" "));
            let _ = writeln!(all, "### {}", zdb::filter(&command, &folder));
            all.push_str(&zdb::filter(&print(&words, option), &folder));
        }
    }
    all
}

/// Compares with the stored texts, which are in UTC.
#[test]
fn kept_texts() {
    if zdb::filter("Sat Nov 21 02:06:32 2026", Path::new("/")).starts_with('<') {
        skip::skip("kept_texts", "the local time is not UTC, in which the texts are kept");
        return;
    }
    for pool in KEPT {
        let Some(golden) = golden(pool) else { continue };
        if std::env::var_os("CENOTE_BLESS").is_some() {
            bless(&golden);
        }
        let kept = String::from_utf8_lossy(&unpack::decompress(&kept_path(pool))).into_owned();
        let ours = transcript(&golden, |words, option| run(words, option).0);
        compare::assert_text(pool, &ours, &kept);
    }
}

fn bless(golden: &Golden) {
    let Some(real) = cenote_oracle::zdb() else { return };
    let text = transcript(golden, |words, option| {
        real.run(&[&[option.to_owned()][..], words].concat()).stdout
    });
    let target = kept_path(golden.name());
    let plain = target.with_extension("");
    std::fs::write(&plain, text).expect("written");
    let status = Command::new("zstd").args(["-q", "-f", "--rm", "-19"]).arg(&plain).status();
    assert!(status.expect("zstd runs").success());
}

/// Wrong uses and missing objects: standard output, first line of standard error, and status.
#[test]
fn refusals() {
    let Some(real) = cenote_oracle::zdb() else { return };
    let Some(golden) = golden("g-quota") else { return };
    let folder = text(&golden.images());
    let lines = [
        "",
        "-e",
        "-Q",
        "--nope",
        "-p",
        "-d",
        "-C",
        "-l",
        "-l /nonexistent",
        "-l /etc/passwd",
        "-U /nonexistent",
        "-E",
        "-E 1:2",
        "-O g-quota",
        "-R g-quota",
        "nopool",
        "-e -p FOLDER nopool",
        "-e -p FOLDER -d g-quota/none",
        "-e -p FOLDER -dddd g-quota x",
    ];
    for line in lines {
        let words = line.replace("FOLDER", &folder);
        let args: Vec<&str> = words.split_whitespace().collect();
        let said = real.run(&args);
        let (out, err, status) = zdb::cenote(&args);
        let first = |text: &str| text.lines().next().unwrap_or_default().to_owned();
        let program = |text: String| text.replace(&said_program(&said.command), "zdb");
        assert_eq!(
            (out.as_str(), first(&err), Some(status)),
            (said.stdout.as_str(), program(first(&said.stderr)), said.code),
            "zdb {line}"
        );
    }
}

/// Returns the path of the program, with which its messages begin.
fn said_program(command: &str) -> String {
    command.split('"').find(|word| word.ends_with("/zdb")).unwrap_or("zdb").to_owned()
}

#[test]
fn embedded_block_pointers() {
    // Sixteen letters, not compressed, in a block pointer of a plain file.
    let words = "4847464544434241:504f4e4d4c4b4a49:0:0:0:0:801300821e00000f:0:0:0:6:0:0:0:0:0";
    let (ours, _, status) = run(&[words.to_owned()], "-E");
    assert_eq!((ours.as_str(), status), ("ABCDEFGHIJKLMNOP", 0));
    for wrong in ["1:2", "zz:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0", "0:0:0:0:0:0:0:0:0:0:0:0:0:0:0:0"] {
        assert_eq!(run(&[wrong.to_owned()], "-E").2, 1, "{wrong}");
    }
    let Some(real) = cenote_oracle::zdb() else { return };
    assert_eq!(real.run(&["-E", words]).stdout, ours);
}

/// Options without a fixed layout: the facts equal those of the real zdb, apart from empty lines
/// and the name of a pool at its checkpoint.
#[test]
fn paths_pieces_maps_and_checkpoints() {
    let Some(real) = cenote_oracle::zdb() else { return };
    let rows: [(&str, &[&str], &[&str]); 5] = [
        ("g-basic", &["-O"], &["g-basic/plain", "sizes/noise-512"]),
        ("g-basic", &["-ddddd"], &["g-basic/plain", "40"]),
        ("g-basic", &["-R"], &["g-basic", "0:214c00:20000"]),
        ("g-basic", &["-M"], &["g-basic"]),
        ("g-removed", &["-k", "-d"], &["g-removed"]),
    ];
    let lines = |text: &str| {
        let text = text.replace("_CHECKPOINTED_UNIVERSE", "");
        let lines = text.lines().filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join("\n")
    };
    for (pool, options, targets) in rows {
        let Some(golden) = golden(pool) else { continue };
        let folder = golden.images();
        let said = real.pool_with(&folder, options, targets);
        let folder = text(&folder);
        let (ours, err, status) =
            zdb::cenote(&[&["-e", "-p", folder.as_str()], options, targets].concat());
        let what = format!("{options:?} {targets:?}");
        assert!(!ours.is_empty() && said.is_success() && status == 0, "{what}: {err}{said}");
        compare::assert_text(&what, &lines(&ours), &lines(&said.stdout));
        let named = |text: &str| {
            let datasets = text.lines().filter(|line| line.starts_with("Dataset "));
            datasets.filter(|line| line.contains("_CHECKPOINTED_UNIVERSE")).count()
        };
        assert_eq!(named(&ours), named(&said.stdout), "{what}");
    }
    let Some(golden) = golden("g-basic") else { return };
    let target = PrivateFolder::create("zdb-copies");
    let copies = ["theirs", "ours"].map(|name| text(&target.path().join(name)));
    let (dataset, file) = ("g-basic/plain", "sizes/text-131073");
    let said = real.pool_with(&golden.images(), &["-r"], &[dataset, file, &copies[0]]);
    let folder = text(&golden.images());
    let (ours, _, status) = zdb::cenote(&["-e", "-p", &folder, "-r", dataset, file, &copies[1]]);
    let there = ours.replace(&copies[1], &copies[0]);
    assert_eq!((there.as_str(), Some(status)), (said.stdout.as_str(), said.code));
    let [theirs, ours] = copies.map(|path| std::fs::read(path).expect("a copy"));
    assert_eq!(ours.len(), 131_073);
    compare::assert_bytes("a copy", &ours, &theirs);
}
