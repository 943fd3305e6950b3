//! Compares the commands with recorded outputs of OpenZFS, and with its zstream where that is
//! installed.

use std::io::Cursor;
use std::path::PathBuf;

use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{
    Begin, BeginFlags, End, HeaderType, Object, ObjectFlags, Range, Record, StreamFeatures,
    Write as WriteRecord, WriteByRef, WriteFlags, WriteKey,
};
use cenote_stream::{Item, RunningChecksum, StreamReader, StreamWriter, frame};
use cenote_testkit::golden::{Golden, PrivateFolder, golden};
use cenote_testkit::rng::seeded;
use cenote_testkit::streams::{RecordedStream, recorded, recorded_stream};

use super::{Streams, run_with};
use crate::Io;
use crate::program::finish_all;

/// Streams that were damaged on purpose.
const DAMAGED: [&str; 2] = ["truncated", "flipped"];

/// Standard output, standard error and status.
type Said = (Vec<u8>, String, i32);

fn run(args: &[&str], input: &[u8]) -> Said {
    let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let mut io = Io { out: &mut out, err: &mut err };
    let mut input = Cursor::new(input);
    let mut streams =
        Streams { input: &mut input, is_input_terminal: false, is_output_terminal: false };
    let result = run_with(&args, &mut streams, &mut io);
    let status = finish_all(result, &mut io);
    (out, String::from_utf8(err).expect("UTF-8"), status)
}

/// A file with a stream, removed when dropped.
struct Stored {
    folder: PrivateFolder,
}

impl Stored {
    fn new(bytes: &[u8]) -> Self {
        let stored = Self { folder: PrivateFolder::create("zstream") };
        std::fs::write(stored.path(), bytes).expect("file");
        stored
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("stream")
    }
}

fn pools() -> impl Iterator<Item = Golden> {
    ["g-streams", "g-send", "g-send2"].into_iter().filter_map(golden)
}

fn streams() -> impl Iterator<Item = RecordedStream> {
    pools().flat_map(|golden| recorded(&golden))
}

fn items(stream: &[u8]) -> Vec<Item> {
    let items: Result<_, _> = StreamReader::lenient(stream).collect();
    items.expect("valid stream")
}

#[test]
fn dumps_equal_those_of_openzfs() {
    for stream in streams() {
        let Some(want) = &stream.dump else { continue };
        let (out, err, status) = run(&["dump", "-v"], &stream.bytes);
        // The recording has both outputs.
        let out = err + &String::from_utf8_lossy(&out);
        let is_cut = !want.contains("\tTotal stream length = ");
        let is_same = if is_cut { out.starts_with(want) } else { out == *want };
        assert!(is_same && status == 0, "{}: {}", stream.name, difference(&out, want));
    }
}

/// The first lines that differ.
fn difference(ours: &str, theirs: &str) -> String {
    let mut lines = ours.lines().zip(theirs.lines()).enumerate();
    match lines.find(|(_, (a, b))| a != b) {
        Some((number, (ours, theirs))) => format!("line {}:\n{ours}\n{theirs}", number + 1),
        None => format!("{} and {} lines", ours.lines().count(), theirs.lines().count()),
    }
}

/// All forms of output, and what is refused, equal those of OpenZFS's zstream.
#[test]
fn dump_equals_zstream() {
    let Some(zstream) = cenote_oracle::zstream() else { return };
    for stream in streams().filter(|stream| stream.bytes.len() < 300_000) {
        let file = Stored::new(&stream.bytes);
        for options in [&["dump"][..], &["dump", "-vv"], &["dump", "-d"], &["dump", "-Cv"]] {
            let theirs = zstream.filter(options, &file.path());
            let (out, err, status) = run(options, &stream.bytes);
            let (out, want) =
                (String::from_utf8_lossy(&out), String::from_utf8_lossy(&theirs.stdout));
            assert!(out == want, "{} {options:?}: {}", stream.name, difference(&out, &want));
            assert_eq!(err.as_bytes(), theirs.stderr, "{} {options:?}", stream.name);
            assert_eq!(Some(status), theirs.status.code(), "{} {options:?}", stream.name);
        }
    }
}

#[test]
fn wrong_use_equals_zstream() {
    let Some(zstream) = cenote_oracle::zstream() else { return };
    let (none, path) = (Stored::new(&[]), "/nonexistent");
    for args in [
        &[][..],
        &["frob"],
        &["dump", "-x"],
        &["dump", path],
        &["dump"],
        &["redup"],
        &["redup", "-x"],
        &["redup", "a", "b"],
        &["redup", path],
        &["decompress", "-x"],
        &["decompress", "2"],
        &["decompress", "2,x"],
        &["decompress", "x,2"],
        &["decompress", "2,0,foo"],
        &["decompress", "2,0,lz4,x"],
        &["decompress", "99999999999999999999,1"],
        &["decompress", "08,1"],
        &["decompress", ",5", "1,", "0x10,010,lz4", " 7,18446744073709551615"],
        &["recompress"],
        &["recompress", "-x"],
        &["recompress", "-l"],
        &["recompress", "-l", "x", "zstd"],
        &["recompress", "-l", "", "zstd"],
        &["recompress", "-l", "3x", "zstd"],
        &["recompress", "foo"],
        &["recompress", "inherit"],
        &["recompress", "on"],
        &["recompress", "uncompressed"],
        &["recompress", "gzip"],
        &["recompress", "gzip-10"],
        &["recompress", "zstd-19"],
        &["recompress", "a", "b"],
        &["token"],
    ] {
        let theirs = zstream.filter(args, &none.path());
        let want = String::from_utf8_lossy(&theirs.stderr).into_owned();
        let (out, err, status) = run(args, &[]);
        // Our usage text has one command more.
        let ours = err.replace("\n\tzstream drop_record [-v] [OBJECT,OFFSET] ...\n", "");
        assert_eq!(ours, want, "{args:?}");
        assert_eq!(Some(status), theirs.status.code(), "{args:?}");
        assert_eq!(out, theirs.stdout, "{args:?}");
    }
}

#[test]
fn terminals_are_refused() {
    for (args, is_input, is_output, want) in [
        (&["dump"][..], true, false, "Error: The send stream is a binary format and can not be "),
        (&["decompress"], true, false, "Error: The send stream is a binary format and can not be "),
        (&["recompress", "lz4"], false, true, "Error: Stream can not be written to a terminal.\n"),
        (&["redup", "x"], false, true, "Error: Stream can not be written to a terminal.\n"),
        (&["drop_record"], true, true, "Error: The send stream is a binary format and can not be "),
    ] {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut io = Io { out: &mut out, err: &mut err };
        let mut streams = Streams {
            input: &mut Cursor::new(&[]),
            is_input_terminal: is_input,
            is_output_terminal: is_output,
        };
        let result = run_with(&args, &mut streams, &mut io);
        assert_eq!(finish_all(result, &mut io), 1);
        assert!(String::from_utf8_lossy(&err).starts_with(want), "{args:?}");
    }
}

/// Rewriting without a change gives what zstream gives, byte for byte. (Its ENDs of packages have
/// checksum words, and it aborts at redacted streams.)
#[test]
fn rewritten_streams_equal_those_of_zstream() {
    let zstream = cenote_oracle::zstream();
    for stream in streams().filter(|stream| !DAMAGED.contains(&&*stream.name)) {
        if stream.bytes.len() > 2 << 20 {
            continue;
        }
        let file = Stored::new(&stream.bytes);
        let path = file.path().to_string_lossy().into_owned();
        let (ours, err, status) = run(&["decompress"], &stream.bytes);
        assert_eq!((err.as_str(), status), ("", 0), "{}", stream.name);
        assert!(items(&ours).len() == items(&stream.bytes).len(), "{}", stream.name);
        let (dropped, _, _) = run(&["drop_record"], &stream.bytes);
        assert!(dropped == ours, "{}", stream.name);
        let (redupped, err, status) = run(&["redup", "-v", &path], &[]);
        assert!(redupped == ours && status == 0, "{}: {err}", stream.name);
        let is_package = ours.get(16..20).is_some_and(|word| word[0] & 3 == 2);
        assert!(is_package || ours == stream.bytes, "{}", stream.name);
        let Some(zstream) = zstream.as_ref().filter(|_| !stream.name.starts_with("redacted"))
        else {
            continue;
        };
        let theirs = zstream.filter(&["redup", "-v", &path], &file.path());
        assert!(theirs.stdout == ours, "{}", stream.name);
        assert_eq!(err.as_bytes(), theirs.stderr, "{}", stream.name);
        assert!(zstream.filter(&["decompress"], &file.path()).stdout == ours, "{}", stream.name);
    }
}

/// The places of some blocks of a stream.
fn some_blocks(stream: &[u8]) -> Vec<(u64, u64)> {
    let items = items(stream);
    let blocks = items.iter().filter_map(|item| match &item.record {
        Record::Write(write) => Some((write.object, write.offset)),
        _ => None,
    });
    let mut blocks: Vec<_> = blocks.collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.into_iter().step_by(3).take(8).collect()
}

/// Runs `decompress` on some blocks of a stream, and compares with zstream.
fn compare_decompress(stream: &[u8], name: &str, blocks: &[(u64, u64)], kind: &str) {
    let Some(zstream) = cenote_oracle::zstream() else { return };
    let file = Stored::new(stream);
    let mut args = vec!["decompress".to_owned(), "-v".to_owned()];
    args.extend(blocks.iter().map(|(object, offset)| format!("{object},{offset}{kind}")));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let theirs = zstream.filter(&args, &file.path());
    let (out, err, status) = run(&args, stream);
    assert_eq!(err, String::from_utf8_lossy(&theirs.stderr), "{name} {args:?}");
    assert!(out == theirs.stdout, "{name} {args:?}");
    assert_eq!(Some(status), theirs.status.code(), "{name} {args:?}");
}

/// Blocks of the given compression, or of another one: those remain as they are. (The decoders of
/// lzjb and zle take almost any bytes, and differ in what they make of other compressions.)
#[test]
fn decompressed_blocks_equal_those_of_zstream() {
    for stream in streams().filter(|stream| !DAMAGED.contains(&&*stream.name)) {
        let ends = ["-c", "-Lec", "-ec", "-Lc", "recompressed"];
        let is_taken = ends.iter().any(|end| stream.name.ends_with(end));
        if !is_taken || stream.bytes.len() > 300_000 {
            continue;
        }
        let blocks = some_blocks(&stream.bytes);
        for kind in ["", ",lz4", ",gzip", ",zstd"] {
            compare_decompress(&stream.bytes, &stream.name, &blocks, kind);
        }
        for (id, target, kind) in
            [(3, "lzjb", ",lzjb"), (14, "zle", ",zle"), (10, "gzip-6", ",gzip")]
        {
            let (again, _, _) = run(&["recompress", target], &stream.bytes);
            let items = items(&again);
            let blocks = items.iter().filter_map(|item| match &item.record {
                Record::Write(write) if write.compression == id => {
                    Some((write.object, write.offset))
                }
                _ => None,
            });
            compare_decompress(&again, &stream.name, &blocks.collect::<Vec<_>>(), kind);
        }
    }
}

/// Sets the features of all BEGINs to those that `like` has.
fn with_features(mut items: Vec<Item>, like: &[Item]) -> Vec<Item> {
    for (item, like) in items.iter_mut().zip(like) {
        if let (Record::Begin(begin), Record::Begin(like)) = (&mut item.record, &like.record) {
            begin.features = like.features;
        }
        if let (Record::End(end), Record::End(like)) = (&mut item.record, &like.record) {
            end.checksum = like.checksum;
        }
    }
    items
}

/// Blocks are compressed as zstream does where the format leaves no choice, and the content is the
/// same everywhere. The features in BEGIN differ on purpose.
#[test]
fn recompressed_streams_equal_those_of_zstream() {
    let zstream = cenote_oracle::zstream();
    for stream in streams().filter(|stream| !DAMAGED.contains(&&*stream.name)) {
        let is_raw = stream.name.contains("raw");
        if is_raw || stream.bytes.len() > 300_000 {
            continue;
        }
        let file = Stored::new(&stream.bytes);
        let (plain, err, status) = run(&["recompress", "off"], &stream.bytes);
        assert_eq!((err.as_str(), status), ("", 0), "{}", stream.name);
        for args in [
            &["off"][..],
            &["lzjb"],
            &["zle"],
            &["lz4"],
            &["gzip-1"],
            &["gzip-9"],
            &["-l", "4", "gzip-1"],
            &["-l", "3", "zstd"],
            &["-l", "19", "zstd"],
            &["zstd"],
        ] {
            let args = [&["recompress"], args].concat();
            let (out, err, status) = run(&args, &stream.bytes);
            assert_eq!((err.as_str(), status), ("", 0), "{} {args:?}", stream.name);
            let ours = items(&out);
            let (again, _, _) = run(&["recompress", "off"], &out);
            let is_same = items(&again) == with_features(items(&plain), &items(&again));
            assert!(is_same, "{} {args:?}", stream.name);
            let Some(zstream) = zstream.as_ref().filter(|_| !stream.name.starts_with("redacted"))
            else {
                continue;
            };
            let theirs = items(&zstream.filter(&args, &file.path()).stdout);
            let ours = with_features(ours, &theirs);
            let is_determined = args.iter().any(|arg| ["off", "lzjb", "zle", "lz4"].contains(arg));
            for (ours, theirs) in ours.iter().zip(&theirs).filter(|_| is_determined) {
                assert_eq!(ours.record, theirs.record, "{} {args:?}", stream.name);
                assert!(ours.payload == theirs.payload, "{} {:?}", stream.name, ours.record);
            }
        }
    }
}

#[test]
fn recompression_is_refused() {
    let Some(golden) = golden("g-streams") else { return };
    let raw = recorded_stream(&golden, "enc-raw-inc").bytes;
    let (out, err, status) = run(&["recompress", "lz4"], &raw);
    let want = "Error: encrypted send streams cannot be recompressed\n";
    assert_eq!((out.len(), err.as_str(), status), (0, want, 1));
    for (args, want) in [
        (["-l", "25", "zstd"], "invalid level 25 for zstd\n"),
        (["-l", "0", "gzip-1"], "invalid level 0 for gzip-1\n"),
        (["-l", "-3", "zstd"], "invalid level -3 for zstd\n"),
    ] {
        let (_, err, status) = run(&[&["recompress"], &args[..]].concat(), &raw);
        assert_eq!((err.as_str(), status), (want, 1));
    }
}

/// Records of a small stream with references to earlier blocks.
fn deduplicated_stream() -> Vec<u8> {
    let to_guid = 77;
    let begin = Begin {
        payload_len: 0,
        header: HeaderType::Substream,
        features: StreamFeatures::DEDUP,
        reserved: 0,
        creation_time: 0x6500_0000,
        objset_kind: 3,
        flags: BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK,
        to_guid,
        from_guid: 0,
        to_name: b"p/v@s".to_vec(),
    };
    let object = Object {
        object: 1,
        kind: 23,
        bonus_kind: 0,
        block_size: 4096,
        bonus_len: 0,
        checksum: 0,
        compression: 0,
        slots: 1,
        flags: ObjectFlags::empty(),
        raw_bonus_len: 0,
        to_guid,
        indirect_block_shift: 0,
        levels: 0,
        blkptr_count: 0,
        max_block: 0,
    };
    let write = |offset| WriteRecord {
        object: 1,
        kind: 23,
        offset,
        logical_len: 4096,
        to_guid,
        flags: WriteFlags::empty(),
        compression: 0,
        key: WriteKey { checksum_kind: 2, ..WriteKey::default() },
        compressed_len: 0,
        cipher: cenote_ondisk::stream::CipherParams::default(),
    };
    let reference = |offset, ref_offset| WriteByRef {
        object: 1,
        offset,
        len: 4096,
        to_guid,
        ref_guid: to_guid,
        ref_object: 1,
        ref_offset,
        flags: WriteFlags::empty(),
        key: WriteKey::default(),
    };
    let mut writer = StreamWriter::new(Vec::new());
    let mut put = |record: Record, payload: &[u8]| {
        writer.write(&record, payload).expect("memory takes everything");
    };
    put(Record::Begin(Box::new(begin)), &[]);
    put(Record::Object(object), &[]);
    let len = Range::TO_THE_END;
    put(Record::Free(Range { object: 1, offset: 1 << 20, len, to_guid }), &[]);
    put(Record::Write(write(0)), &[1; 4096]);
    put(Record::Write(write(4096)), &[2; 4096]);
    put(Record::WriteByRef(Box::new(reference(8192, 0))), &[]);
    put(Record::WriteByRef(Box::new(reference(12288, 4096))), &[]);
    put(Record::WriteByRef(Box::new(reference(16384, 0))), &[]);
    put(Record::End(End { checksum: [0; 4], to_guid }), &[]);
    writer.into_inner()
}

#[test]
fn references_become_blocks() {
    let stream = deduplicated_stream();
    let file = Stored::new(&stream);
    let path = file.path().to_string_lossy().into_owned();
    let (out, err, status) = run(&["redup", "-v", &path], &[]);
    let want = "converted stream with 9 total records, including 3 dedup records, using 80B \
                memory.\n";
    assert_eq!((err.as_str(), status), (want, 0));
    let found: Vec<_> = items(&out)
        .into_iter()
        .filter_map(|item| match item.record {
            Record::Write(write) => Some((write.offset, item.payload[0])),
            _ => None,
        })
        .collect();
    assert_eq!(found, [(0, 1), (4096, 2), (8192, 1), (12288, 2), (16384, 1)]);
    assert!(StreamReader::new(&out[..]).all(|item| item.is_ok()));
    for command in [&["decompress"][..], &["recompress", "off"], &["drop_record"]] {
        let (_, err, status) = run(command, &stream);
        assert_eq!((err.as_str(), status), ("Deduplicated streams are not supported\n", 1));
    }
    if let Some(zstream) = cenote_oracle::zstream() {
        let theirs = zstream.filter(&["redup", "-v", &path], &file.path());
        assert_eq!(err.as_bytes(), theirs.stderr);
        assert!(out == theirs.stdout);
        let (dump, _, _) = run(&["dump", "-vv"], &stream);
        assert!(dump == zstream.filter(&["dump", "-vv"], &file.path()).stdout);
    }
    // The reference at the end names a block that is not there.
    let mut items = items(&stream);
    items.remove(3);
    let mut writer = StreamWriter::new(Vec::new());
    for item in &items {
        writer.write(&item.record, &item.payload).expect("memory takes everything");
    }
    let file = Stored::new(&writer.into_inner());
    let (_, err, status) = run(&["redup", &file.path().to_string_lossy()], &[]);
    let want = "Error: object 1 offset 8192 refers to object 1 offset 0 of snapshot 0x4d, which is \
                not in the stream before it\n";
    assert_eq!((err.as_str(), status), (want, 1));
}

#[test]
fn dropped_records_are_missing() {
    let Some(golden) = golden("g-streams") else { return };
    let stream = recorded_stream(&golden, "emb-ec").bytes;
    let place = |record: &Record| match record {
        Record::Write(write) => Some((write.object, write.offset)),
        Record::WriteEmbedded(embedded) => Some((embedded.object, embedded.offset)),
        _ => None,
    };
    let before = items(&stream);
    let chosen: Vec<_> = before.iter().filter_map(|item| place(&item.record)).step_by(2).collect();
    let mut args = vec!["drop_record".to_owned(), "-v".to_owned()];
    args.extend(chosen.iter().map(|(object, offset)| format!("{object:#x},{offset}")));
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let (out, err, status) = run(&args, &stream);
    let after: Vec<_> = StreamReader::new(&out[..]).collect::<Result<_, _>>().expect("valid");
    let is_kept = |item: &&Item| place(&item.record).is_none_or(|place| !chosen.contains(&place));
    let kept: Vec<_> = before.iter().filter(is_kept).collect();
    assert!(status == 0 && kept.len() < before.len() && kept.len() == after.len());
    for (kept, after) in kept.iter().zip(&after) {
        let is_end = matches!(kept.record, Record::End(_));
        assert!(is_end || kept.record == after.record && kept.payload == after.payload);
    }
    assert_eq!(err.lines().count(), before.len() - after.len());
    let (object, offset) = chosen[0];
    let tail = format!(" record for object {object} offset {offset}");
    let first = err.lines().next().expect("a line");
    assert!(first.starts_with("zstream: dropping WRITE") && first.ends_with(&tail), "{first}");
}

/// What libzfs 2.3.2 prints of its own tokens and of damaged ones.
#[test]
fn tokens_are_shown() {
    let Some(golden) = golden("g-streams") else { return };
    let path = golden.folder().join("streams/resume.token.txt");
    let token = std::fs::read_to_string(path).expect("token");
    let (out, err, status) = run(&["token", token.trim()], &[]);
    let want = "     object: 2\n     offset: 0\n     bytes: 2248\n     toguid: 184064188700474948\n     \
                toname: 'g-send2/a@one'\n";
    assert_eq!((String::from_utf8_lossy(&out).as_ref(), err.as_str(), status), (want, "", 0));
    let with_wrong_len = token.trim().replace("-b8-", "-b7-");
    for (token, cause) in [
        ("foo", "invalid format"),
        ("", "invalid format"),
        ("-h", "invalid format"),
        ("2-11-11-11", "invalid version 2"),
        ("1-11-11-xx", "payload is not hex-encoded"),
        ("1-11-11-789c", "incorrect checksum"),
        (&with_wrong_len, "decompression failed"),
    ] {
        let (out, err, status) = run(&["token", token], &[]);
        let want = format!("Unable to parse resume token: resume token is corrupt ({cause})\n");
        assert_eq!((out.len(), err, status), (0, want, 1), "{token}");
    }
}

/// Streams in one file, or from a host of the other byte order.
#[test]
fn joined_and_foreign_streams_are_read() {
    let Some(golden) = golden("g-streams") else { return };
    let [a, b] = ["emb-ec", "clone-pkg"].map(|name| recorded_stream(&golden, name).bytes);
    let (joined, _, status) = run(&["decompress"], &[&a[..], &b].concat());
    assert_eq!(status, 0);
    assert!(joined == [run(&["decompress"], &a).0, run(&["decompress"], &b).0].concat());
    let mut checksum = RunningChecksum::new(Endian::Big);
    let mut foreign = Vec::new();
    for item in items(&a) {
        let bytes = frame(&mut checksum, Endian::Big, &item.record, &item.payload, false);
        foreign.extend_from_slice(&bytes);
        foreign.extend_from_slice(&item.payload);
    }
    let lines = |stream: &[u8]| -> Vec<String> {
        let (out, err, _) = run(&["dump", "-v"], stream);
        assert_eq!(err, "");
        let text = String::from_utf8_lossy(&out).into_owned();
        text.lines().filter(|line| !line.contains("checksum = ")).map(str::to_owned).collect()
    };
    assert_eq!(lines(&foreign), lines(&a));
    let (out, _, _) = run(&["decompress"], &foreign);
    assert!(out == foreign);
}

/// Damaged streams are never rewritten as if they were valid, and never make a command panic.
#[test]
fn damaged_streams_are_refused() {
    let Some(golden) = golden("g-streams") else { return };
    let commands: [&[&str]; 5] = [
        &["decompress", "2,0", "3,0,gzip"],
        &["recompress", "lz4"],
        &["drop_record", "2,0"],
        &["dump", "-d"],
        &["dump", "-Cv"],
    ];
    let mut rng = seeded("damaged_streams_are_refused", 1);
    for name in ["emb-ec", "clone-pkg", "spill-inc"] {
        let stream = recorded_stream(&golden, name).bytes;
        for round in 0..200 {
            let mut bytes = stream.clone();
            let at = 1 + rng.below(bytes.len() as u64 - 1) as usize;
            // No checksum covers the unused bytes in the ENDs of a package.
            if round % 2 == 0 || name == "clone-pkg" {
                bytes.truncate(at);
            } else {
                bytes[at] ^= 1 << rng.below(8);
            }
            for command in commands {
                let (_, err, status) = run(command, &bytes);
                let is_dump = command[0] == "dump";
                let is_refused = status == 1 && !err.is_empty();
                assert!(
                    is_dump || is_refused,
                    "{name} round {round}, byte {at}: {command:?} {err}"
                );
            }
        }
    }
}

#[test]
fn lengths_that_lie_take_no_memory() {
    let mut stream = deduplicated_stream();
    // The length of the first WRITE, at offset 32 of the fourth record.
    let at = 3 * 312 + 32;
    stream[at..at + 8].copy_from_slice(&(1_u64 << 60).to_le_bytes());
    let (_, err, status) = run(&["dump", "-C"], &stream);
    let want = "Error: WRITE record with 1152921504606846976 bytes of payload\n";
    assert_eq!((err.as_str(), status), (want, 1));
    let file = Stored::new(&stream);
    let (_, err, status) = run(&["redup", &file.path().to_string_lossy()], &[]);
    assert!(err.starts_with("Error: checksum mismatch") && status == 1, "{err}");
}

/// `nvlist_print` of libnvpair 2.3.2 for a list with all types.
#[test]
fn lists_are_printed_as_by_libnvpair() {
    use cenote_ondisk::nvlist::{NvList, NvValue};
    let x: NvList = [("x", 1_u64)].into_iter().collect();
    let m: NvList = [("m", x.clone())].into_iter().collect();
    let list: NvList = [
        ("b", NvValue::Boolean),
        ("boolean_value", NvValue::BooleanValue(true)),
        ("boolean_value_a", NvValue::BooleanArray(vec![true, true, false])),
        ("boolean_value_0", NvValue::BooleanArray(Vec::new())),
        ("byte", NvValue::Byte(7)),
        ("byte_a", NvValue::ByteArray(vec![7, 7, 0])),
        ("int8", NvValue::Int8(-7)),
        ("uint8_a", NvValue::Uint8Array(vec![200, 200, 0])),
        ("uint16", NvValue::Uint16(300)),
        ("int32_a", NvValue::Int32Array(vec![-5, -5, 0])),
        ("uint64_a", NvValue::Uint64Array(vec![99, 99, 0])),
        ("uint64_0", NvValue::Uint64Array(Vec::new())),
        ("str", NvValue::String("te xt".into())),
        ("strs", NvValue::StringArray(vec!["a".into(), "b".into()])),
        ("hr", NvValue::Hrtime(77)),
        ("dbl", NvValue::Double(1.5)),
        ("sub", NvValue::List(m.clone())),
        ("subs", NvValue::ListArray(vec![x, m])),
        ("subs0", NvValue::ListArray(Vec::new())),
        ("last", NvValue::Uint64(1)),
    ]
    .into_iter()
    .collect();
    let want = "nvlist version: 0\n\tb = 1\n\tboolean_value = 1\n\tboolean_value_a = 1 1 0\n\n\
                \tbyte = 0x07\n\tbyte_a = 0x07 0x07 0x00\n\tint8 = -7\n\tuint8_a = 0xc8 0xc8 0x0\n\
                \tuint16 = 0x12c\n\tint32_a = -5 -5 0\n\tuint64_a = 0x63 0x63 0x0\n\n\
                \tstr = te xt\n\tstrs = a b\n\thr = 0x4d\n\tdbl = 0x1.500000\n\
                \tsub = (embedded nvlist)\n\tnvlist version: 0\n\t\tm = (embedded nvlist)\n\
                \t\tnvlist version: 0\n\t\t\tx = 0x1\n\t\t(end m)\n\n\t(end sub)\n\n\
                \tsubs = (array of embedded nvlists)\n\t(start subs[0])\n\tnvlist version: 0\n\
                \t\tx = 0x1\n\t(end subs[0])\n\t(start subs[1])\n\tnvlist version: 0\n\
                \t\tm = (embedded nvlist)\n\t\tnvlist version: 0\n\t\t\tx = 0x1\n\t\t(end m)\n\n\
                \t(end subs[1])\n\n\tsubs0 = (array of embedded nvlists)\n\n\tlast = 0x1\n";
    let mut out = Vec::new();
    super::nvlist::print(&mut out, &list, 0).expect("memory takes everything");
    assert_eq!(String::from_utf8_lossy(&out), want);
}
