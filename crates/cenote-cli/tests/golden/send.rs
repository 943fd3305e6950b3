//! `zfs send` on golden pools: streams and messages of OpenZFS.

use cenote_cli::{Io, run};
use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::stream::{BeginFlags, Record};
use cenote_stream::{Item, ResumeToken, StreamError, StreamReader};
use cenote_testkit::golden::{Golden, golden};
use cenote_testkit::streams::recorded_stream;
use cenote_testkit::unpack::decompress;
use cenote_testkit::wording::wordings;

/// Runs `zfs send` with these arguments; standard output may be a stream.
fn send(golden: &Golden, args: &str) -> (Vec<u8>, String, i32) {
    send_with(golden, "", args)
}

/// Like [`send`], with options before the verb.
fn send_with(golden: &Golden, leading: &str, args: &str) -> (Vec<u8>, String, i32) {
    let images = golden.images();
    let images = images.to_str().expect("UTF-8");
    let line = format!("zfs --embedded -d {images} {leading} send {args}");
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
        "zfs send -nv -R -i @one t/a",
        "zfs send -n -R -i @one t/a@three",
        "zfs send -nvt 1-abc",
        "zfs send -t 1-abc-def-1234",
        "zfs send -t xxx",
        "zfs send -t",
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

/// Packages of OpenZFS: headers and plain substreams byte for byte. The BEGIN of a raw substream
/// has its nvlist in XDR, where OpenZFS 2.3 has it in the order of its host; all checksums behind it
/// follow.
#[test]
fn packages_equal_those_of_openzfs() {
    let Some(golden) = golden("g-send2") else { return };
    let rows = [
        ("full-p", "-p g-send2/a@one"),
        ("full-b", "-b -p g-send2/a@one"),
        ("full-h", "-h -p g-send2/a@one"),
        ("multi", "-I @one g-send2/a@three"),
        ("multi-Lec", "-Lec -I @one g-send2/a@three"),
        ("repl", "-R g-send2/a@all"),
        ("repl-w", "-Rw g-send2/a@all"),
        ("repl-inc", "-R -I @one g-send2/a@all"),
        ("repl-i", "-R -i @two g-send2/a@all"),
        ("repl-h", "-R -h g-send2/a@all"),
        ("skip", "-R -s g-send2/a@all"),
        ("exclude", "-R -X g-send2/a/kid g-send2/a@all"),
        ("vol-w", "-w -p g-send2/v@2"),
        ("clone-pkg", "-R g-send2/c@x"),
        ("enc-raw-p", "-wp g-send2/e@2"),
    ];
    for (name, args) in rows {
        let (out, err, status) = send(&golden, args);
        assert_eq!((err.as_str(), status), ("", 0), "{args}");
        let recorded = recorded_stream(&golden, name).bytes;
        if name != "enc-raw-p" {
            assert!(out == recorded, "{args}");
            continue;
        }
        compare(&out, &recorded, name);
    }
}

/// Packages of a whole pool, as it was when OpenZFS sent it.
#[test]
fn packages_of_a_whole_pool_equal_those_of_openzfs() {
    let Some(golden) = golden("g-send") else { return };
    for (leading, name, args) in [
        ("", "multi", "-I @one g-send/a@three"),
        ("", "props", "-p g-send/a@one"),
        ("-T 31", "repl", "-R g-send@r"),
    ] {
        let (out, err, status) = send_with(&golden, leading, args);
        assert_eq!((err.as_str(), status), ("", 0), "{args}");
        assert!(out == recorded_stream(&golden, name).bytes, "{args}");
    }
}

/// Compares streams record by record. May differ: the encoding of BEGIN's nvlist, and checksums.
fn compare(sent: &[u8], recorded: &[u8], name: &str) {
    let read = |bytes: &[u8]| -> Vec<Item> {
        StreamReader::new(bytes).collect::<Result<_, _>>().expect("a valid stream")
    };
    let (sent, recorded) = (read(sent), read(recorded));
    for (index, (ours, theirs)) in sent.iter().zip(&recorded).enumerate() {
        let place = format!("{name}, record {index}");
        let payload = |item: &Item| match &item.record {
            Record::Begin(_) if !item.payload.is_empty() && !item.is_package => {
                NvList::decode(&item.payload).map(|list| list.pairs).expect("an nvlist")
            }
            _ => Vec::new(),
        };
        assert_eq!(payload(ours), payload(theirs), "{place}");
        match (&ours.record, &theirs.record) {
            (Record::Begin(ours), Record::Begin(theirs)) => {
                let mut begin = ours.clone();
                begin.payload_len = theirs.payload_len;
                assert_eq!(begin, *theirs, "{place}");
            }
            (Record::End(_), Record::End(_)) => {}
            (ours_record, theirs_record) => {
                assert_eq!(ours_record, theirs_record, "{place}");
                assert!(ours.payload == theirs.payload, "{place}");
            }
        }
    }
    assert_eq!(sent.len(), recorded.len(), "{name}");
}

/// The pool of the recorded words has other sizes, and snapshots of the same names but `all`.
#[test]
fn packages_are_reported_as_openzfs_reports_them() {
    let Some(golden) = golden("g-send2") else { return };
    let run = |args: &str| {
        let (out, err, status) = send(&golden, args);
        (String::from_utf8(out).expect("text"), err, status)
    };
    let names = |text: &str| -> Vec<String> {
        let line = |line: &str| line.rsplit_once('\t').map(|(names, _)| names.to_owned());
        text.lines().filter_map(line).collect()
    };
    let (out, err, status) = run("-nP -R g-send2/a@three");
    let wanted = [
        "full\tg-send2/a@one",
        "incremental\tone\tg-send2/a@two",
        "incremental\ttwo\tg-send2/a@three",
        "size",
    ];
    assert_eq!(names(&out), wanted);
    // The child was made after the snapshot.
    let skipped = "skipping snapshot g-send2/a@all because it was created after the destination \
                   snapshot (three)\nskipping dataset g-send2/a/kid: snapshot three does not exist\n";
    assert_eq!((err.as_str(), status), (skipped, 0));
    let sizes: Vec<u64> =
        out.lines().map(|line| line.rsplit('\t').next().unwrap().parse().unwrap()).collect();
    assert_eq!(sizes[3], sizes[..3].iter().sum::<u64>());

    let (out, err, _) = run("-nv -I @one g-send2/a@three");
    let words: Vec<&str> = out.lines().map(|l| l.split(" estimated").next().unwrap()).collect();
    let wanted = ["send from @one to g-send2/a@two", "send from @two to g-send2/a@three", "total"];
    assert_eq!((words, err.as_str()), (wanted.to_vec(), ""));
    // The first snapshot of a clone counts whole, though only its difference is sent.
    let (out, _, status) = run("-nvP -I g-send2/a@two g-send2/c@x");
    assert_eq!((names(&out), status), (vec!["full\tg-send2/c@x".to_owned(), "size".into()], 0));
    let (_, err, status) = run("-v -I @one g-send2/a@three > x");
    assert_eq!(status, 2, "{err}");
}

#[test]
fn packages_that_openzfs_refuses_are_refused() {
    let Some(golden) = golden("g-send2") else { return };
    let rows = [
        (
            "-I @three g-send2/a@one",
            "WARNING: could not send g-send2/a@one:\nincremental source (g-send2/a@three) does not exist\n",
            1,
        ),
        (
            "-R -i @three g-send2/a@one",
            "WARNING: could not send g-send2/a@one:\nincremental source (g-send2/a@three) is not \
          earlier than it\n",
            1,
        ),
        ("-I @nope g-send2/a@two", "cannot open 'g-send2/a@nope': dataset does not exist\n", 1),
        ("-R g-send2/a@nope", "cannot open 'g-send2/a@nope': dataset does not exist\n", 1),
        ("-R nope@x", "cannot open 'nope': dataset does not exist\n", 1),
        (
            "-p g-send2/e@1",
            "cannot send g-send2/e@1: encrypted dataset g-send2/e may not be sent with properties \
          without the raw flag\nwarning: cannot send 'g-send2/e@1': backup failed\n",
            1,
        ),
    ];
    for (args, message, code) in rows {
        let (out, err, status) = send(&golden, args);
        assert_eq!((out.len(), err.as_str(), status), (0, message, code), "{args}");
    }
}

/// The token of an interrupted receive, and the rest that OpenZFS sent for it.
#[test]
fn a_token_continues_a_stream_as_openzfs_does() {
    let Some(golden) = golden("g-send2") else { return };
    let token = golden.folder().join("streams/resume.token.txt");
    let token = std::fs::read_to_string(token).expect("a token");
    let (out, err, status) = send(&golden, &format!("-t {}", token.trim()));
    assert_eq!((err.as_str(), status), ("", 0));
    compare(&out, &recorded_stream(&golden, "resume-rest").bytes, "resume-rest");
}

/// What OpenZFS says about tokens, and the rests that it sends.
#[test]
fn tokens_of_partial_receives_are_continued_as_by_openzfs() {
    let Some(golden) = golden("g-recv-partial") else { return };
    for name in ["full", "inc", "raw"] {
        let read = |file: String| std::fs::read(golden.folder().join(file)).expect("a file");
        let token = String::from_utf8(read(format!("token.{name}.txt"))).expect("a token");
        let said = String::from_utf8(read(format!("token.{name}.dump.txt"))).expect("text");
        let begin = said.find("resume token contents:").expect("the contents");
        let (out, err, status) = send(&golden, &format!("-nvt {}", token.trim()));
        assert_eq!(String::from_utf8(out).expect("text"), said[begin..], "{name}");
        assert_eq!((err.as_str(), status), ("", 0), "{name}");
        let (out, err, status) = send(&golden, &format!("-t {}", token.trim()));
        assert_eq!((err.as_str(), status), ("", 0), "{name}");
        let tail = decompress(&golden.folder().join(format!("tail.{name}.zst")));
        compare(&out, &tail, name);
    }
}

/// What an interrupted receive has is sent as a part, which the token continues: together they are
/// the whole stream.
#[test]
fn saved_states_are_sent_as_parts() {
    let Some(golden) = golden("g-recv-partial") else { return };
    for name in ["full", "inc", "raw"] {
        let token = std::fs::read_to_string(golden.folder().join(format!("token.{name}.txt")));
        let token = ResumeToken::decode(token.expect("a token").trim()).expect("a token");
        let (out, err, status) = send(&golden, &format!("-S g-recv-partial/{name}"));
        assert_eq!((err.as_str(), status), ("", 0), "{name}");
        let mut writes = 0;
        let items: Vec<_> = StreamReader::new(&out[..]).collect();
        let (last, items) = items.split_last().expect("a record");
        assert!(matches!(last, Err(StreamError::Truncated { .. })), "{name}: it has an end");
        for item in items {
            match &item.as_ref().expect("a valid record").record {
                Record::Begin(begin) => {
                    assert_eq!(begin.to_guid, token.to_guid, "{name}");
                    assert_eq!(begin.from_guid, token.from_guid.unwrap_or(0), "{name}");
                    assert_eq!(begin.to_name, token.to_name.as_bytes(), "{name}");
                    assert!(!begin.flags.contains(BeginFlags::CLONE), "{name}");
                }
                Record::Write(write) => {
                    // What comes behind the point was not received.
                    let place = (write.object, write.offset);
                    assert!(place <= (token.object, token.offset), "{name}: {place:?}");
                    writes += 1;
                }
                _ => {}
            }
        }
        assert!(writes > 0, "{name}");
    }
}

/// Other kinds of streams are refused, and nothing is written.
#[test]
fn send_refuses_other_streams() {
    let Some(golden) = golden("g-send2") else { return };
    let (out, err, status) = send(&golden, "-S g-send2/a");
    let told = "warning: cannot send 'g-send2/a': it has no partially received state\n";
    assert_eq!((out.len(), err.as_str(), status), (0, told, 1));
    let refused = [
        ("--redact nope", "cannot open 'g-send2/a#nope': no such pool or dataset\n"),
        ("--redact one", "warning: cannot send 'g-send2/a@two': not a redaction bookmark\n"),
        ("-w --redact book", "Error: raw sends may not be redacted.\n"),
        ("-R --redact book", "Error: multiple snapshots cannot be sent redacted.\n"),
    ];
    for (args, message) in refused {
        let (out, err, status) = send(&golden, &format!("{args} g-send2/a@two"));
        assert_eq!((out.len(), err.as_str(), status), (0, message, 1), "{args}");
    }
    // Without its key an encrypted dataset is sent only raw.
    let (out, err, status) = send(&golden, "g-send2/e@1");
    assert_eq!((out.len(), status), (0, 1));
    assert_eq!(err, "warning: cannot send 'g-send2/e@1': dataset key must be loaded\n");
    assert_eq!(send(&golden, "-w g-send2/e@1").2, 0);
}
