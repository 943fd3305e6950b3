//! Recorded send streams of golden pools, with what `zstream dump -v` said of them.
//!
//! A pool's folder has them one by one (`streams/full.zst`, `full.dump.zst`), or all in one archive
//! (`streams/streams.tar.zst`, `dumps.tar.zst`), because they share most of their bytes.

use std::fs;
use std::path::Path;

use crate::golden::Golden;
use crate::unpack;

/// Bytes of a block of an archive.
const TAR_BLOCK: usize = 512;

/// A recorded stream.
#[derive(Debug, Clone)]
pub struct RecordedStream {
    /// Name: what was sent, and how.
    pub name: String,
    /// The stream.
    pub bytes: Vec<u8>,
    /// The beginning of what `zstream dump -v` printed; cut in the middle of a line if it was long.
    pub dump: Option<String>,
}

/// All recorded streams of a golden pool, sorted by name.
pub fn recorded(golden: &Golden) -> Vec<RecordedStream> {
    let mut folder = golden.folder().join("streams");
    if !folder.is_dir() {
        golden.folder().clone_into(&mut folder);
    }
    let archive = folder.join("streams.tar.zst");
    let (streams, dumps) = if archive.is_file() {
        (unpack_archive(&archive), unpack_archive(&folder.join("dumps.tar.zst")))
    } else {
        let is_dump = |name: &str| name.strip_suffix(".dump").is_some();
        let (dumps, streams): (Vec<_>, Vec<_>) =
            files(&folder).into_iter().partition(|(name, _)| is_dump(name));
        (streams, dumps)
    };
    let dump_of = |name: &str| {
        let file = format!("{name}.dump");
        let (_, text) = dumps.iter().find(|(dump, _)| *dump == file)?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let mut recorded: Vec<RecordedStream> = streams
        .into_iter()
        .map(|(name, bytes)| RecordedStream { dump: dump_of(&name), name, bytes })
        .collect();
    recorded.sort_by(|a, b| a.name.cmp(&b.name));
    recorded
}

/// The recorded stream `name` of a golden pool.
pub fn recorded_stream(golden: &Golden, name: &str) -> RecordedStream {
    let found = recorded(golden).into_iter().find(|stream| stream.name == name);
    found.unwrap_or_else(|| panic!("{}: no stream {name}", golden.name()))
}

/// The compressed files of a folder: names without their ending, and contents.
fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.map(|entry| entry.expect("folder entry").path());
    let packed = paths.filter(|path| path.extension().is_some_and(|end| end == "zst"));
    let named = packed.map(|path| {
        let stem = path.file_stem().expect("a file's name").to_string_lossy().into_owned();
        (stem, path)
    });
    // Images of devices may be beside them.
    let streams = named.filter(|(stem, _)| stem.strip_suffix(".img").is_none());
    let named = streams.map(|(stem, path)| (stem, unpack::decompress(&path)));
    named.collect()
}

/// The regular files of an archive in the format of POSIX's `ustar`.
fn unpack_archive(packed: &Path) -> Vec<(String, Vec<u8>)> {
    let bytes = unpack::decompress(packed);
    let mut rest = &bytes[..];
    let mut found = Vec::new();
    while let Some((header, behind)) = rest.split_at_checked(TAR_BLOCK) {
        if header.iter().all(|byte| *byte == 0) {
            break;
        }
        let text = |from: usize, len: usize| {
            let field = header[from..from + len].split(|byte| *byte == 0).next();
            String::from_utf8_lossy(field.unwrap_or_default()).trim().to_owned()
        };
        let len = usize::from_str_radix(&text(124, 12), 8).expect("size of an archived file");
        if matches!(header[156], 0 | b'0') {
            let name = text(0, 100).trim_start_matches("./").to_owned();
            found.push((name, behind[..len].to_vec()));
        }
        rest = &behind[len.next_multiple_of(TAR_BLOCK).min(behind.len())..];
    }
    found
}
