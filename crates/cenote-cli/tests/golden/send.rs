//! `zfs send` on golden pools: streams and messages of OpenZFS.

use cenote_cli::{Io, run};
use cenote_testkit::golden::{Golden, golden};
use cenote_testkit::streams::recorded_stream;
use cenote_testkit::wording::wordings;

/// Runs `zfs send` with these arguments; standard output may be a stream.
fn send(golden: &Golden, args: &str) -> (Vec<u8>, String, i32) {
    let images = golden.images();
    let images = images.to_str().expect("UTF-8");
    let line = format!("zfs --embedded -d {images} send {args}");
    let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = run(&args, &mut Io { out: &mut out, err: &mut err });
    (out, String::from_utf8(err).expect("UTF-8"), status)
}

#[test]
fn send_writes_the_streams_of_openzfs() {
    let Some(golden) = golden("g-send2") else { return };
    let rows = [
        ("full", "g-send2/a@one"),
        ("full-Lec", "-Lec g-send2/a@one"),
        ("full-w", "--raw g-send2/a@one"),
        ("inc", "-i @one g-send2/a@two"),
        ("inc-bookmark", "-i #one g-send2/a@two"),
        ("clone-inc", "-i g-send2/a@two g-send2/c@x"),
        ("vol-Lec", "-Lec g-send2/v@1"),
        ("empty-inc", "-i g-send2/empty@1 g-send2/empty@2"),
    ];
    for (name, args) in rows {
        let (out, err, status) = send(&golden, args);
        assert_eq!((err.as_str(), status), ("", 0), "{args}");
        assert!(out == recorded_stream(&golden, name).bytes, "{args}");
    }
}

/// The recorded pool has the same names, and other sizes.
#[test]
fn send_reports_what_openzfs_reports() {
    let Some(golden) = golden("g-send2") else { return };
    let Some(wordings) = wordings("second.txt") else { return };
    let here = |text: &str| text.replace("t/", "g-send2/").replace("v@s", "v@1");
    let rows = [
        "zfs send -n  t/a@two",
        "zfs send -n -s t/a@two",
        "zfs send -n -D t/a@two",
        "zfs send -nv t/a",
        "zfs send -nvP -i t/a@three t/c@x",
        "zfs send -nv -i @three t/a@one",
        "zfs send -nv -i @one t/a@one",
        "zfs send -nv -i @nope t/a@two",
        "zfs send -nv t/a@nope",
        "zfs send -nv t/nope@x",
        "zfs send -R t/a",
        "zfs send -nv -X t/a/kid t/a@two",
        "zfs send",
        "zfs send -q t/a@one",
        "zfs send -i",
        "zfs send t/a@one t/a@two",
    ];
    let rewrite = |text: &str| text.replace("snapshot|bookmark", "\u{1}");
    for row in rows {
        let wording = wordings.iter().find(|wording| wording.command == row);
        let wording = wording.unwrap_or_else(|| panic!("{row} is not there"));
        let args = here(row.trim_start_matches("zfs send"));
        let (out, err, status) = send(&golden, &args);
        let out = String::from_utf8(out).expect("a message");
        let wanted = (here(&wording.out), here(&rewrite(&wording.err)), wording.status);
        assert_eq!((out, rewrite(&err), status), wanted, "{row}");
    }
}

/// An estimate is close to the stream's length, and its forms are those of OpenZFS.
#[test]
fn send_estimates_are_close() {
    let Some(golden) = golden("g-send2") else { return };
    for (args, first) in [
        ("g-send2/large@1", "full\tg-send2/large@1\t"),
        ("-Lc g-send2/large@1", "full\tg-send2/large@1\t"),
        ("-i @1 g-send2/o@2", "incremental\tg-send2/o@1\tg-send2/o@2\t"),
        ("-i #one g-send2/a@two", "incremental\tg-send2/a#one\tg-send2/a@two\t"),
        ("-Lec g-send2/v@1", "full\tg-send2/v@1\t"),
    ] {
        let len = send(&golden, args).0.len() as f64;
        let (out, err, status) = send(&golden, &format!("-nP {args}"));
        assert_eq!((err.as_str(), status), ("", 0), "{args}");
        let out = String::from_utf8(out).expect("a table");
        let size = out.strip_prefix(first).unwrap_or_else(|| panic!("{args}: {out}"));
        let (size, total) = size.split_once('\n').expect("two lines");
        assert_eq!(total, format!("size\t{size}\n"), "{args}");
        let ratio = size.parse::<f64>().expect("a size") / len;
        assert!((0.3..3.0).contains(&ratio), "{args}: {size} for {len} bytes");
        let (out, err, status) = send(&golden, &format!("-vP {args}"));
        assert_eq!((out.len() as f64, status), (len, 0), "{args}");
        assert_eq!(err, format!("{first}{size}\nsize\t{size}\n"), "{args}");
    }
    let (out, ..) = send(&golden, "-nv g-send2/empty@1");
    let out = String::from_utf8(out).expect("text");
    assert!(out.starts_with("full send of g-send2/empty@1 estimated size is "), "{out}");
    let (_, err, _) = send(&golden, "-v g-send2/empty@1");
    assert!(err.ends_with("TIME        SENT   SNAPSHOT g-send2/empty@1\n"), "{err}");
}

/// Other kinds of streams are refused, and nothing is written.
#[test]
fn send_refuses_packages_and_other_streams() {
    let Some(golden) = golden("g-send2") else { return };
    for args in ["-R", "-I @one", "-p", "-b", "-h", "--redact book"] {
        let (out, err, status) = send(&golden, &format!("{args} g-send2/a@two"));
        assert!(out.is_empty() && status == 1, "{args}");
        assert!(err.contains("is not supported by this version of cenote"), "{args}: {err}");
    }
    // Without its key an encrypted dataset is sent only raw.
    let (out, err, status) = send(&golden, "g-send2/e@1");
    assert_eq!((out.len(), status), (0, 1));
    assert_eq!(err, "warning: cannot send 'g-send2/e@1': dataset key must be loaded\n");
    assert_eq!(send(&golden, "-w g-send2/e@1").2, 0);
}
