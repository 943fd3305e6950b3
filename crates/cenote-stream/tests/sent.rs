//! Streams sent from pools that OpenZFS made equal those that OpenZFS sent of them, record by
//! record.
//!
//! Listed differences
//! * The payload of BEGIN: OpenZFS 2.3 encodes it in the order of its host, cenote in XDR, padded to
//!   whole words. Their contents are equal.
//! * A spill block that is embedded in its pointer: OpenZFS sends it with `-e` as data far behind
//!   the file (spec 07 B15, defect 1), cenote as a spill block.
//! * Checksums, which follow from these. With OpenZFS's BEGIN in front, the streams are equal byte
//!   for byte.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;

use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::stream::{Range, Record};
use cenote_pool::{OpenOptions, Pool, ScanOptions, import};
use cenote_rt::{Kind, Result, block_on, tunables};
use cenote_stream::ResumePoint;
use cenote_stream::send::{From, Payload, RecordSink, Redaction, SendOptions, SendPlan};
use cenote_stream::{Item, StreamReader, StreamWriter};
use cenote_testkit::golden::{Golden, golden};
use cenote_testkit::streams::{RecordedStream, recorded};

/// Bytes of a device before its first allocatable one.
const LABELS_LEN: u64 = 4 << 20;

/// A send: its options, source and target.
#[derive(Debug, Clone, Default)]
struct Command {
    options: SendOptions,
    from: Option<String>,
    /// Short name of a redaction bookmark.
    redaction: Option<String>,
    target: String,
    resume: Option<ResumePoint>,
}

impl Command {
    /// Parses the arguments of `zfs send`; `None` for a package.
    fn parse(args: &str) -> Option<Self> {
        let mut command = Self::default();
        let mut words = args.split_whitespace();
        while let Some(word) = words.next() {
            match word.strip_prefix('-') {
                Some("i") => command.from = words.next().map(str::to_owned),
                Some("-redact") => command.redaction = words.next().map(str::to_owned),
                Some(letters) => {
                    for letter in letters.chars() {
                        let options = &mut command.options;
                        match letter {
                            'L' => options.large_blocks = true,
                            'e' => options.embedded = true,
                            'c' => options.compressed = true,
                            'w' => options.raw = true,
                            'D' => {}
                            _ => return None,
                        }
                    }
                }
                None => word.clone_into(&mut command.target),
            }
        }
        let head = command.target.split('@').next()?.to_owned();
        if let Some(from) = &mut command.from
            && from.starts_with(['@', '#'])
        {
            from.insert_str(0, &head);
        }
        Some(command)
    }
}

/// Collects a stream.
#[derive(Default)]
struct Collected(Vec<(Record, Vec<u8>)>);

impl RecordSink for Collected {
    async fn put(&mut self, record: &Record, payload: Payload) -> Result<()> {
        assert_eq!(record.payload_len(), payload.len() as u64, "{record:?}");
        self.0.push((record.clone(), payload.to_vec()));
        Ok(())
    }
}

async fn open(golden: &Golden) -> Arc<Pool> {
    open_at(golden, golden.images()).await
}

async fn open_at(golden: &Golden, folder: PathBuf) -> Arc<Pool> {
    let scan = import::scan(&ScanOptions { paths: vec![folder] }).await.unwrap();
    let found = scan.find(golden.name()).expect("the pool is found");
    let pool = Pool::open(found, &OpenOptions::default()).await.unwrap();
    let mut keys = golden.keys();
    if golden.name() == "g-send2" {
        keys.push(("g-send2/e", std::fs::read(golden.key_file("pass")).unwrap()));
    }
    for (name, key) in keys {
        pool.load_key(&pool.dataset(name).await.unwrap(), &key).await.unwrap();
    }
    pool
}

async fn send(pool: &Arc<Pool>, command: &Command) -> Result<Vec<(Record, Vec<u8>)>> {
    let target = pool.dataset(&command.target).await?;
    let from = match &command.from {
        None => None,
        Some(name) if name.contains('#') => {
            let head = pool.dataset(name.split('#').next().unwrap()).await?;
            Some(From::bookmark(&pool.bookmark(name).await?, &head, &target).await?)
        }
        Some(name) => Some(From::snapshot(&pool.dataset(name).await?, &target).await?),
    };
    let redaction = match &command.redaction {
        None => None,
        Some(short) => {
            let bookmark = target.head().await?.bookmark(short).await?;
            bookmark.redaction_list(pool.mos()).await?
        }
    };
    let Command { options, resume, .. } = command;
    let plan = SendPlan::new(&target, from.as_ref(), redaction.as_ref(), options, *resume).await?;
    let set = plan.open(&target).await?;
    let mut collected = Collected::default();
    plan.run(&set, &mut collected).await?;
    Ok(collected.0)
}

/// Compares what was sent with the recorded stream. Returns the number of listed differences other
/// than BEGIN's.
fn compare(stream: &RecordedStream, sent: &[(Record, Vec<u8>)]) -> usize {
    let name = &stream.name;
    let recorded: Vec<Item> = StreamReader::new(&stream.bytes[..]).map(Result::unwrap).collect();
    let mut differences = 0;
    let mut writer = StreamWriter::new(Vec::new());
    for (index, (item, (record, payload))) in recorded.iter().zip(sent).enumerate() {
        let place = format!("{name}, record {index}");
        let (mut record, mut payload) = (record.clone(), payload.clone());
        match (&item.record, &mut record) {
            (Record::Begin(theirs), Record::Begin(ours)) => {
                let list = |bytes: &[u8]| {
                    (!bytes.is_empty()).then(|| NvList::decode(bytes).expect("BEGIN's payload"))
                };
                assert_eq!(list(&payload), list(&item.payload), "{place}");
                ours.payload_len = theirs.payload_len;
                payload.clone_from(&item.payload);
            }
            (Record::End(theirs), Record::End(ours)) => ours.checksum = theirs.checksum,
            (Record::WriteEmbedded(theirs), Record::Spill(ours)) if theirs.is_spill() => {
                assert_eq!((theirs.object, theirs.len), (ours.object, ours.len), "{place}");
                differences += 1;
                record = item.record.clone();
                payload.clone_from(&item.payload);
            }
            _ => {}
        }
        assert_eq!(record, item.record, "{place}");
        assert!(payload == item.payload, "{place}: payload of {record:?}");
        writer.write(&record, &payload).unwrap();
    }
    assert_eq!(sent.len(), recorded.len(), "{name}");
    assert!(writer.into_inner() == stream.bytes, "{name}: bytes");
    differences
}

/// Sends what OpenZFS sent, and returns how often each listed difference was found.
fn compare_all(golden: &Golden, commands: &[(String, Command)]) -> usize {
    let streams = recorded(golden);
    let run = async {
        let pool = open(golden).await;
        let mut differences = 0;
        for (name, command) in commands {
            let stream = streams.iter().find(|stream| stream.name == *name);
            let stream = stream.unwrap_or_else(|| panic!("no stream {name}"));
            let sent = send(&pool, command).await;
            let sent = sent.unwrap_or_else(|error| panic!("{name}: {error}"));
            differences += compare(stream, &sent);
        }
        differences
    };
    block_on(2, run).unwrap()
}

#[test]
fn sent_streams_equal_those_of_openzfs() {
    let Some(golden) = golden("g-send2") else { return };
    let index = std::fs::read_to_string(golden.folder().join("streams/INDEX.tsv")).unwrap();
    let mut commands = Vec::new();
    for line in index.lines() {
        let (name, rest) = line.split_once('\t').unwrap();
        let Some((_, args)) = rest.split_once("\tzfs send ") else { continue };
        if let Some(command) = Command::parse(args) {
            commands.push((name.to_owned(), command));
        }
    }
    // OpenZFS's receiver had everything before object 2.
    let resume = Some(ResumePoint { object: 2, offset: 0 });
    let target = "g-send2/a@one".to_owned();
    commands.push(("resume-rest".to_owned(), Command { target, resume, ..Command::default() }));
    assert!(commands.len() >= 42, "{}", commands.len());
    // Of its spill blocks none is embedded. The order does not depend on how far is read ahead.
    let queue = &tunables::SEND_QUEUE_BYTES;
    for bytes in [queue.default, queue.min, queue.max] {
        queue.set(bytes).unwrap();
        assert_eq!(compare_all(&golden, &commands), 0);
        queue.set(queue.default).unwrap();
    }
}

/// Wherever a send continues, it sends what a whole one sends from there on.
#[test]
fn resumed_streams_are_ends_of_whole_ones() {
    let Some(golden) = golden("g-send2") else { return };
    let run = async {
        let pool = open(&golden).await;
        let redacted = "--redact book g-send2/a@two";
        for args in ["-Lc g-send2/large@1", "-w g-send2/e@1", "-i @1 g-send2/o@3", redacted] {
            let whole = Command::parse(args).unwrap();
            let all = send(&pool, &whole).await.unwrap();
            let place = |record: &Record| match record {
                Record::Write(write) => Some((write.object, write.offset)),
                _ => None,
            };
            let writes: Vec<usize> =
                (0..all.len()).filter(|index| place(&all[*index].0).is_some()).collect();
            for index in writes.iter().step_by(1 + writes.len() / 7) {
                let (object, offset) = place(&all[*index].0).unwrap();
                let resume = Some(ResumePoint { object, offset });
                let rest = send(&pool, &Command { resume, ..whole.clone() }).await.unwrap();
                let first = rest.iter().find_map(|(record, _)| match record {
                    Record::Object(object) => Some(object.object),
                    _ => None,
                });
                assert_eq!(first, Some(object), "{args}, at {resume:?}");
                // A range of holes may have begun before.
                let begin = rest.iter().position(|(record, _)| place(record).is_some()).unwrap();
                assert!(rest[begin..] == all[*index..], "{args}, at {resume:?}");
            }
        }
    };
    block_on(2, run).unwrap();
}

/// A block that cannot be read ends the stream without an END; with the tunable, a pattern takes
/// its place.
#[test]
fn unreadable_blocks_end_a_send_or_are_replaced() {
    let Some(golden) = golden("g-send2") else { return };
    let run = async {
        let pool = open(&golden).await;
        let target = pool.dataset("g-send2/a@one").await.unwrap();
        let set = target.open().await.unwrap();
        let (mut dnodes, mut found) = (set.dnodes(1), None);
        while let Some(dnode) = dnodes.next().await {
            let dnode = dnode.unwrap();
            if dnode.phys().object_type == ObjectType::PLAIN_FILE_CONTENTS
                && let Some(bp) = dnode.block_pointer(0, 0).await.unwrap()
                && let Some(dva) = bp.dva(0)
            {
                found = Some((dnode.object(), dva.offset, bp.lsize()));
                break;
            }
        }
        let (object, offset, len) = found.expect("a file with a block");
        let copy = golden.private_copy();
        let device = std::fs::OpenOptions::new().write(true).open(&copy.devices()[0]).unwrap();
        device.write_all_at(&[0x5a; 512], offset + LABELS_LEN).unwrap();
        let damaged = open_at(&golden, copy.path().to_owned()).await;
        let command = Command::parse("g-send2/a@one").unwrap();
        let error = send(&damaged, &command).await.unwrap_err();
        assert_eq!((error.kind(), error.at().object), (Kind::Checksum, Some(object)));
        tunables::SEND_CORRUPT_DATA.set(1).unwrap();
        let sent = send(&damaged, &command).await;
        tunables::SEND_CORRUPT_DATA.set(0).unwrap();
        let is_it = |record: &Record| matches!(record, Record::Write(write) if write.object == object && write.offset == 0);
        let sent = sent.unwrap();
        let (_, payload) = sent.iter().find(|(record, _)| is_it(record)).unwrap();
        assert_eq!(payload.len() as u64, len);
        assert!(payload.chunks(8).all(|word| word == 0x2f5_badd_b10c_u64.to_le_bytes()));
    };
    block_on(2, run).unwrap();
}

#[test]
fn streams_with_large_records_equal_those_of_openzfs() {
    let Some(golden) = golden("g-send") else { return };
    let rows = [
        ("full", "g-send/a@one"),
        ("full-Lec", "-Lec g-send/a@one"),
        ("inc", "-i @one g-send/a@two"),
        ("inc-Lec", "-Lec -i @one g-send/a@two"),
        ("vol", "g-send/v@s"),
        ("raw", "-w g-send/e@s"),
        ("raw-inc", "-w -i @s g-send/e@t"),
        ("redacted", "--redact book g-send/a@one"),
    ];
    let commands = rows.map(|(name, args)| (name.to_owned(), Command::parse(args).unwrap()));
    assert_eq!(compare_all(&golden, &commands), 1);
}

#[test]
fn redacted_streams_equal_those_of_openzfs() {
    let Some(golden) = golden("g-redacted") else { return };
    let command = Command::parse("--redact book g-redacted/src@one").unwrap();
    assert_eq!(compare_all(&golden, &[("redacted".to_owned(), command)]), 0);
}

/// What a redacted stream left out is sent later. OpenZFS 2.3 forgets the last block of each file.
#[test]
fn restoring_streams_have_what_those_of_openzfs_have() {
    let Some(golden) = golden("g-redacted") else { return };
    let recorded = recorded(&golden);
    let name = "inc-from-redaction-bookmark";
    let stream = recorded.iter().find(|stream| stream.name == name).unwrap();
    let theirs: Vec<Item> = StreamReader::new(&stream.bytes[..]).map(Result::unwrap).collect();
    let run = async {
        let pool = open(&golden).await;
        send(&pool, &Command::parse("-i #book g-redacted/src@two").unwrap()).await.unwrap()
    };
    let ours = block_on(2, run).unwrap();
    let (mut theirs, mut end, mut more) = (theirs.into_iter().peekable(), 0, Vec::new());
    for (record, payload) in ours {
        match (&record, theirs.peek().map(|item| &item.record)) {
            (Record::Begin(_), Some(Record::Begin(_))) | (Record::End(_), Some(Record::End(_))) => {
                theirs.next();
            }
            (_, Some(wanted)) if *wanted == record => {
                assert!(theirs.next().unwrap().payload == payload, "payload of {record:?}");
            }
            (Record::Write(write), _) => {
                assert_eq!(write.offset + write.logical_len, end, "{write:?}");
                more.push(write.object);
            }
            (_, wanted) => panic!("{record:?}, expected {wanted:?}"),
        }
        if let Record::Free(range) = record
            && range.len == Range::TO_THE_END
        {
            end = range.offset;
        }
    }
    assert!(theirs.next().is_none());
    // The secret file.
    assert_eq!(more, [9]);
}

/// The lists that OpenZFS's bookmarks have are found again.
#[test]
fn redaction_lists_equal_those_of_openzfs() {
    let mut lists = 0;
    for (name, rows) in [
        (
            "g-redacted",
            &[("src", "one", "book", &["r1@x", "r2@x"][..]), ("src", "one", "book1", &["r1@x"])][..],
        ),
        ("g-send", &[("a", "one", "book", &["rc@x"][..])]),
        ("g-send2", &[("a", "two", "book", &["c@x"][..])]),
    ] {
        let Some(golden) = golden(name) else { continue };
        let run = async {
            let pool = open(&golden).await;
            for (head, snapshot, bookmark, others) in rows {
                let head = pool.dataset(&format!("{name}/{head}")).await.unwrap();
                let bookmark = head.bookmark(bookmark).await.unwrap();
                let list = bookmark.redaction_list(pool.mos()).await.unwrap().expect("a list");
                let source = head.snapshot(snapshot).await.unwrap();
                let mut sets = Vec::new();
                for other in *others {
                    let other = pool.dataset(&format!("{name}/{other}")).await.unwrap();
                    assert!(list.guids.contains(&other.phys().guid));
                    sets.push(other.open().await.unwrap());
                }
                let set = source.open().await.unwrap();
                let txg = source.phys().creation_txg;
                let mut redaction = Redaction::new(&set, txg, &sets).await.unwrap();
                let mut found = Vec::new();
                while let Some(entry) = redaction.next().await.unwrap() {
                    found.push(entry);
                }
                assert_eq!(found, list.entries, "{name}: {}", bookmark.name);
                assert!(!found.is_empty(), "{name}");
            }
            rows.len()
        };
        lists += block_on(2, run).unwrap();
    }
    println!("{lists} lists");
}
