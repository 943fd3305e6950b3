//! `cenote verify-stream`: checks stored send streams from their first byte to the last, without a
//! pool.
//!
//! The checks cover checksums, the order of records, the fields of each record, the nvlists, and
//! the order of blocks, which receivers demand. The report has the snapshots in the streams, and
//! the snapshots and features that a receiver must have. Payloads are not decompressed or
//! decrypted.
//!
//! Streams may follow one another, as `cat a b` gives them: a snapshot that an earlier stream has
//! is not needed from elsewhere.

use std::collections::BTreeSet;
use std::io::BufReader;

use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{Begin, BeginFlags, HeaderType, Record, StreamFeatures};
use cenote_stream::{BeginPayload, Item, Package};
use serde_json::{Value, json};

use super::Progress;
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum::bytes_b;
use crate::out;
use crate::zstream::{Strictness, for_each_record, open, with_standard_input};

/// The usage text.
const USAGE: &str = "\
usage: cenote verify-stream [--json] FILE|-
  Checks send streams in a file or in standard input: checksums, order and fields of all records.
  Prints the snapshots that a receiver gets, and the snapshots and features that it must have.
Status: 0 no errors, 1 otherwise, 2 wrong use.
";

/// Bytes that are read at once.
const BUFFER_LEN: usize = 1 << 20;

/// Features of streams that need a feature of the pool.
const POOL_FEATURES: [(StreamFeatures, &str); 9] = [
    (StreamFeatures::EMBED_DATA, "embedded_data"),
    (StreamFeatures::LZ4, "lz4_compress"),
    (StreamFeatures::LARGE_BLOCKS, "large_blocks"),
    (StreamFeatures::REDACTED, "redacted_datasets"),
    (StreamFeatures::LARGE_DNODE, "large_dnode"),
    (StreamFeatures::RAW, "encryption"),
    (StreamFeatures::ZSTD, "zstd_compress"),
    (StreamFeatures::LONGNAME, "longname"),
    (StreamFeatures::LARGE_MICROZAP, "large_microzap"),
];
/// Features of streams that need nothing of the pool.
const OTHER_FEATURES: StreamFeatures = StreamFeatures::SA_SPILL
    .union(StreamFeatures::COMPRESSED)
    .union(StreamFeatures::RESUMING)
    .union(StreamFeatures::HOLDS)
    .union(StreamFeatures::SWITCH_TO_LARGE_BLOCKS);

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let longs = [Long::flag("help", '?'), Long::flag("json", 'j')];
    let parsed = getopt::parse(args, "", &longs).map_err(|exit| match exit {
        Exit::Usage(message) => super::wrong_use(&message, USAGE),
        other => other,
    })?;
    if parsed.has('?') {
        return Ok(write!(io.out, "{USAGE}")?);
    }
    let [path] = &parsed.operands[..] else {
        let is_missing = parsed.operands.is_empty();
        let message = if is_missing { "missing file name" } else { "too many arguments" };
        return Err(super::wrong_use(message, USAGE));
    };
    if path != "-" {
        let file = open(path)?;
        let total = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|meta| meta.len());
        let mut input = BufReader::with_capacity(BUFFER_LEN, file);
        return verify(&mut input, total, &parsed, io);
    }
    with_standard_input(|streams| {
        if streams.is_input_terminal {
            return Err(Exit::failed("a send stream cannot be read from a terminal"));
        }
        verify(streams.input, None, &parsed, io)
    })
}

fn verify(
    input: &mut dyn std::io::BufRead,
    total: Option<u64>,
    parsed: &Parsed,
    io: &mut Io<'_>,
) -> CommandResult {
    let mut progress = Progress::new(false, total);
    let mut report = Report::default();
    let result = for_each_record(input, Strictness::Strict, |item, endian| {
        progress.add(item.stored_len(), io.err)?;
        report.add(&item, endian)
    });
    progress.clear(io.err)?;
    let error = match result {
        Ok(()) if report.bytes == 0 => Some("Error: the input is empty".to_owned()),
        Ok(()) => None,
        Err(Exit::Failed(message)) => Some(message),
        Err(other) => return Err(other),
    };
    if parsed.has('j') {
        out!(io, "{:#}", report.to_json(error.as_deref()))?;
    } else {
        report.print(io)?;
    }
    match error {
        None => Ok(()),
        Some(_) if parsed.has('j') => Err(Exit::Status(1)),
        Some(message) => Err(Exit::failed(message)),
    }
}

/// A snapshot in a stream.
struct Snapshot {
    begin: Begin,
    endian: Endian,
    offset: u64,
    bytes: u64,
    records: u64,
    /// Number of the package that it belongs to.
    package: Option<usize>,
    resume: Option<(u64, u64)>,
    is_complete: bool,
}

/// A package of snapshots.
struct PackageSummary {
    name: String,
    offset: u64,
    header: Option<Package>,
}

/// Snapshots and packages found so far.
#[derive(Default)]
struct Report {
    bytes: u64,
    records: u64,
    packages: Vec<PackageSummary>,
    snapshots: Vec<Snapshot>,
    is_in_package: bool,
    /// Object and offset of the last block.
    last_block: (u64, u64),
}

impl Report {
    /// Counts a record, and checks what its fields alone do not show.
    fn add(&mut self, item: &Item, endian: Endian) -> CommandResult {
        self.bytes = item.offset + item.stored_len();
        self.records += 1;
        match &item.record {
            Record::Begin(begin) if item.is_package => self.begin_package(begin, item)?,
            Record::Begin(begin) => self.begin(begin, item, endian)?,
            Record::Write(write) => self.block(item, (write.object, write.offset))?,
            // Spill blocks that a sender took for data are behind all data.
            Record::WriteEmbedded(embedded) if !embedded.is_spill() => {
                self.block(item, (embedded.object, embedded.offset))?;
            }
            _ => {}
        }
        if item.is_package {
            // The second END of a package: nothing of the package follows.
            let is_end = matches!(item.record, Record::End(end) if end.checksum == [0; 4]);
            self.is_in_package &= !is_end;
            return Ok(());
        }
        if let Some(snapshot) = self.snapshots.last_mut() {
            snapshot.bytes += item.stored_len();
            snapshot.records += 1;
            snapshot.is_complete = matches!(item.record, Record::End(_));
        }
        Ok(())
    }

    fn begin_package(&mut self, begin: &Begin, item: &Item) -> CommandResult {
        let header = match &item.payload[..] {
            [] => None,
            bytes => {
                Some(Package::decode(bytes).map_err(|error| invalid(item, &error.to_string()))?)
            }
        };
        let name = String::from_utf8_lossy(&begin.to_name).into_owned();
        self.packages.push(PackageSummary { name, offset: item.offset, header });
        self.is_in_package = true;
        Ok(())
    }

    fn begin(&mut self, begin: &Begin, item: &Item, endian: Endian) -> CommandResult {
        if !matches!(begin.objset_kind, 2 | 3) {
            let kind = begin.objset_kind;
            return Err(invalid(item, &format!("object set of type {kind}")));
        }
        debug_assert!(begin.header == HeaderType::Substream, "packages are handled before");
        let payload = BeginPayload::decode(&item.payload);
        let payload = payload.map_err(|error| invalid(item, &error.to_string()))?;
        if begin.features.contains(StreamFeatures::RAW) && payload.crypt_keydata.is_none() {
            return Err(invalid(item, "a raw stream without a key"));
        }
        self.last_block = (0, 0);
        self.snapshots.push(Snapshot {
            begin: begin.clone(),
            endian,
            offset: item.offset,
            bytes: 0,
            records: 0,
            package: self.is_in_package.then(|| self.packages.len().saturating_sub(1)),
            resume: payload.resume.map(|point| (point.object, point.offset)),
            is_complete: false,
        });
        Ok(())
    }

    /// Receivers refuse blocks that go backwards.
    fn block(&mut self, item: &Item, block: (u64, u64)) -> CommandResult {
        let (object, offset) = self.last_block;
        if block < self.last_block {
            let why = format!("it follows the block at object {object} offset {offset}");
            return Err(invalid(item, &why));
        }
        self.last_block = block;
        Ok(())
    }

    /// Guids of snapshots that the receiver must have: sources of increments that no earlier stream
    /// has.
    fn needed(&self) -> Vec<u64> {
        let (mut given, mut needed) = (BTreeSet::new(), Vec::new());
        for Snapshot { begin, .. } in &self.snapshots {
            let from = begin.from_guid;
            if from != 0 && !given.contains(&from) && !needed.contains(&from) {
                needed.push(from);
            }
            given.insert(begin.to_guid);
        }
        needed
    }

    /// Features that the receiving pool must have.
    fn pool_features(&self) -> Vec<&'static str> {
        let features = self.features();
        let needed = POOL_FEATURES.iter().filter(|(feature, _)| features.contains(*feature));
        needed.map(|(_, name)| *name).collect()
    }

    /// Features of streams that OpenZFS 2.3 does not know, and would refuse.
    fn unknown_features(&self) -> StreamFeatures {
        let known = POOL_FEATURES.iter().fold(OTHER_FEATURES, |all, (feature, _)| all | *feature);
        self.features() - known
    }

    fn features(&self) -> StreamFeatures {
        let each = self.snapshots.iter().map(|snapshot| snapshot.begin.features);
        each.fold(StreamFeatures::empty(), |all, features| all | features)
    }

    fn print(&self, io: &mut Io<'_>) -> CommandResult {
        for (index, package) in self.packages.iter().enumerate() {
            let what = match &package.header {
                None => "snapshots without properties".to_owned(),
                Some(header) => format!("datasets with properties: {}", header.datasets.len()),
            };
            out!(io, "package {}: {what}", package.name)?;
            self.print_snapshots(Some(index), "  ", io)?;
        }
        self.print_snapshots(None, "", io)?;
        for guid in self.needed() {
            out!(io, "needs snapshot: guid {guid}")?;
        }
        let features = self.pool_features();
        if !features.is_empty() {
            out!(io, "needs pool features: {}", features.join(", "))?;
        }
        let unknown = self.unknown_features();
        if !unknown.is_empty() {
            out!(io, "needs unknown stream features: {unknown:#x}")?;
        }
        let complete = self.snapshots.iter().filter(|snapshot| snapshot.is_complete).count();
        out!(
            io,
            "verified: {complete} snapshots, {} records, {}",
            self.records,
            bytes_b(self.bytes)
        )
    }

    fn print_snapshots(
        &self,
        package: Option<usize>,
        indent: &str,
        io: &mut Io<'_>,
    ) -> CommandResult {
        for snapshot in self.snapshots.iter().filter(|snapshot| snapshot.package == package) {
            let Snapshot { begin, records, bytes, .. } = snapshot;
            let name = String::from_utf8_lossy(&begin.to_name);
            let from = match begin.from_guid {
                0 => "full".to_owned(),
                guid if begin.flags.contains(BeginFlags::CLONE) => format!("clone of {guid}"),
                guid => format!("from {guid}"),
            };
            let mut notes = String::new();
            if let Some((object, offset)) = snapshot.resume {
                notes = format!(", continues at object {object} offset {offset}");
            }
            if !snapshot.is_complete {
                notes.push_str(", INCOMPLETE");
            }
            let (guid, size) = (begin.to_guid, bytes_b(*bytes));
            out!(io, "{indent}{name}: guid {guid}, {from}, {records} records, {size}{notes}")?;
        }
        Ok(())
    }

    fn to_json(&self, error: Option<&str>) -> Value {
        let snapshots: Vec<Value> = self.snapshots.iter().map(Snapshot::to_json).collect();
        let packages = self.packages.iter().map(|package| {
            let header = package.header.as_ref();
            json!({
                "name": package.name,
                "offset": package.offset,
                "datasets": header.map(|header| header.datasets.len()),
                "recursive": header.map(|header| header.is_recursive),
            })
        });
        json!({
            "packages": packages.collect::<Vec<_>>(),
            "snapshots": snapshots,
            "needs": {
                "guids": self.needed(),
                "pool_features": self.pool_features(),
                "unknown_stream_features": self.unknown_features().bits(),
            },
            "records": self.records,
            "bytes": self.bytes,
            "error": error,
        })
    }
}

impl Snapshot {
    fn to_json(&self) -> Value {
        let begin = &self.begin;
        let known = begin.features.iter_names().map(|(name, _)| name.to_ascii_lowercase());
        json!({
            "name": String::from_utf8_lossy(&begin.to_name),
            "guid": begin.to_guid,
            "from_guid": (begin.from_guid != 0).then_some(begin.from_guid),
            "clone": begin.flags.contains(BeginFlags::CLONE),
            "type": if begin.objset_kind == 3 { "volume" } else { "filesystem" },
            "creation": begin.creation_time,
            "features": known.collect::<Vec<_>>(),
            "byte_order": if self.endian == Endian::Big { "big" } else { "little" },
            "package": self.package,
            "resume": self.resume.map(|(object, offset)| json!({"object": object, "offset": offset})),
            "offset": self.offset,
            "records": self.records,
            "bytes": self.bytes,
            "complete": self.is_complete,
        })
    }
}

fn invalid(item: &Item, why: &str) -> Exit {
    let (name, offset) = (item.record.name(), item.offset);
    Exit::failed(format!("Error: {name} record at byte {offset} of the stream is invalid: {why}"))
}

#[cfg(test)]
mod tests {
    use cenote_testkit::golden::{Golden, PrivateFolder, golden};
    use cenote_testkit::streams::{recorded, recorded_stream};
    use serde_json::Value;

    use crate::run_captured;

    fn pools() -> impl Iterator<Item = Golden> {
        ["g-streams", "g-send", "g-send2"].into_iter().filter_map(golden)
    }

    fn verified(bytes: &[u8], options: &[&str]) -> (String, String, i32) {
        let folder = PrivateFolder::create("verify-stream");
        let path = folder.path().join("stream");
        std::fs::write(&path, bytes).expect("file");
        let path = path.to_string_lossy();
        run_captured(&[&["verify-stream"], options, &[&*path]].concat())
    }

    #[test]
    fn recorded_streams_are_verified() {
        for stream in pools().flat_map(|golden| recorded(&golden)) {
            let is_damaged = ["truncated", "flipped"].contains(&&*stream.name);
            let (out, err, status) = verified(&stream.bytes, &[]);
            assert_eq!(status, i32::from(is_damaged), "{}: {out}{err}", stream.name);
            assert_eq!(err.is_empty(), !is_damaged, "{}: {err}", stream.name);
            assert_eq!(out.contains("INCOMPLETE"), is_damaged, "{}: {out}", stream.name);
            assert!(!out.contains("unknown"), "{}: {out}", stream.name);
        }
    }

    #[test]
    fn needed_and_given_snapshots_are_listed() {
        let Some(golden) = golden("g-streams") else { return };
        let [package, increment] =
            ["clone-pkg", "spill-inc"].map(|name| recorded_stream(&golden, name).bytes);
        let (out, _, _) = verified(&package, &[]);
        let origin = 0x4384cfd70557f5a7_u64;
        assert!(out.starts_with("package g-send2/c@x: datasets with properties: 1\n"), "{out}");
        let line = format!("  g-send2/c@x: guid 12323310792049270715, clone of {origin}, ");
        assert!(out.contains(&line), "{out}");
        assert!(out.contains(&format!("needs snapshot: guid {origin}\n")), "{out}");
        let both = [&package[..], &increment, &increment].concat();
        let (out, _, status) = verified(&both, &["--json"]);
        let document: Value = serde_json::from_str(&out).expect("JSON");
        assert_eq!(status, 0);
        assert_eq!(document["error"], Value::Null);
        assert_eq!(document["bytes"], both.len());
        let snapshots = document["snapshots"].as_array().expect("list");
        assert_eq!(snapshots.len(), 3);
        assert_eq!(snapshots[0]["package"], 0);
        assert_eq!(snapshots[1]["package"], Value::Null);
        assert_eq!(snapshots[1]["name"], "g-send2/spill@2");
        assert_eq!(snapshots[1]["offset"], package.len());
        assert_eq!(document["needs"]["guids"].as_array().expect("list").len(), 2);
        assert_eq!(document["needs"]["guids"][1], snapshots[1]["from_guid"]);
    }

    #[test]
    fn errors_name_record_and_offset() {
        let Some(golden) = golden("g-streams") else { return };
        let stream = recorded_stream(&golden, "emb-ec").bytes;
        let (out, err, status) = verified(&stream[..1000], &[]);
        assert_eq!(err, "Error: unexpected end-of-file at byte 1000\n", "{out}");
        assert!(status == 1 && out.contains("g-send2/emb@1: "), "{out}");
        let mut damaged = stream.clone();
        damaged[330] ^= 1;
        let (_, err, _) = verified(&damaged, &[]);
        let want = "Error: checksum mismatch in the OBJECT record at byte 312 of the stream, or \
                    before it\n";
        assert_eq!(err, want);
        let (out, err, status) = verified(&damaged, &["--json"]);
        let document: Value = serde_json::from_str(&out).expect("JSON");
        assert!(status == 1 && err.is_empty() && document["error"] == want.trim_end(), "{out}");
        let twice = [&stream[..], b"x"].concat();
        let (_, err, status) = verified(&twice, &[]);
        let want = format!("Error: unexpected end-of-file at byte {}\n", twice.len());
        assert_eq!((err, status), (want, 1));
        assert_eq!(verified(&[], &[]).1, "Error: the input is empty\n");
    }

    #[test]
    fn wrong_use_is_reported() {
        for (args, status, want) in [
            (&[][..], 2, "missing file name\nusage: cenote verify-stream "),
            (&["a", "b"], 2, "too many arguments\n"),
            (&["-x"], 2, "invalid option 'x'\n"),
            (&["/nonexistent"], 1, "Error while opening file '/nonexistent': No such file or "),
        ] {
            let (_, err, was) = run_captured(&[&["verify-stream"], args].concat());
            assert!(was == status && err.starts_with(want), "{args:?}: {was} {err}");
        }
        let (out, _, status) = run_captured(&["verify-stream", "--help"]);
        assert!(status == 0 && out.starts_with("usage: "), "{out}");
    }
}
