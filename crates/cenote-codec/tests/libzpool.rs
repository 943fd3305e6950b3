//! Compares our codecs with OpenZFS's own, if libzpool is installed.
//!
//! `libzpool.py` calls its functions, which a crate with `forbid(unsafe_code)` cannot do. The
//! records are made of this test's own executable and sources: machine code, symbols, text and
//! zeros, like the contents of files.
//!
//! Checked: our LZ4 produces identical bytes; we decompress what OpenZFS compressed, and it
//! decompresses what we compressed.

use std::{
    io::Write,
    path::Path,
    process::{Command, Stdio},
    thread,
};

use cenote_codec::compress::{Compression, ZstdLevel, compress, decompress};

const REFUSED: u32 = u32::MAX;

struct Record {
    bytes: Vec<u8>,
    room: usize,
}

/// Runs the script over `records`; `None` if there is no libzpool.
fn judge(
    direction: &str,
    form: &str,
    level: &str,
    records: &[Record],
) -> Option<Vec<Option<Vec<u8>>>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/libzpool.py");
    let mut command = Command::new("python3");
    command.arg(script).args([direction, form, level]);
    let spawned = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
    let Ok(mut child) = spawned else {
        eprintln!("SKIPPED: no python3 to call libzpool with");
        return None;
    };
    let mut input = Vec::new();
    for record in records {
        input.extend((record.bytes.len() as u32).to_le_bytes());
        input.extend((record.room as u32).to_le_bytes());
        input.extend(&record.bytes);
    }
    let mut stdin = child.stdin.take().expect("piped");
    let writer = thread::spawn(move || {
        // Without libzpool the script ends before it has read anything.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("the script ends");
    writer.join().expect("the writer does not panic");
    if output.status.code() == Some(77) {
        eprintln!("SKIPPED: no libzpool.so.6 to compare {form} with");
        return None;
    }
    assert!(output.status.success(), "{direction} {form}: {}", output.status);

    let mut answers = Vec::new();
    let mut rest = output.stdout.as_slice();
    while let Some((&length, behind)) = rest.split_first_chunk::<4>() {
        let length = u32::from_le_bytes(length);
        let taken = if length == REFUSED { 0 } else { length as usize };
        let (bytes, behind) = behind.split_at(taken);
        answers.push((length != REFUSED).then(|| bytes.to_vec()));
        rest = behind;
    }
    assert_eq!(answers.len(), records.len());
    Some(answers)
}

/// Records of all sizes and kinds; at most `total` bytes of each size.
fn records(total: usize) -> Vec<Vec<u8>> {
    let mut sources = std::fs::read(std::env::current_exe().expect("running")).expect("readable");
    sources.truncate(total);
    let mut text = include_bytes!("libzpool.rs").repeat(3);
    text.extend(include_bytes!("../src/compress/lz4.rs"));
    text.extend(include_bytes!("../src/compress/tests.rs").repeat(4));
    text.extend(include_bytes!("../Cargo.toml"));
    sources.splice(total / 2..total / 2, text);
    let mut state = 1u64;
    sources.extend(
        std::iter::repeat_with(|| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .take(300_000),
    );

    let mut records = Vec::new();
    for size in [512, 1536, 4096, 16 << 10, 64 << 10, 65_546, 65_547, 128 << 10, 1 << 20] {
        records.extend(sources.chunks(size).map(<[u8]>::to_vec));
    }
    // Lengths just above the header of a Zstandard block.
    records.extend((9..300).map(|len| sources[..len].to_vec()));
    records.push(vec![0; 1 << 20]);
    records
}

#[test]
fn lz4_makes_the_same_bytes() {
    let mut work = Vec::new();
    for bytes in records(2 << 20) {
        // Room for a block that must save an eighth, and for one that must save at least one byte.
        for room in [bytes.len() - bytes.len() / 8, bytes.len()] {
            if room > 4 {
                work.push(Record { bytes: bytes.clone(), room });
            }
        }
    }
    let Some(answers) = judge("compress", "lz4", "0", &work) else { return };
    let mut compressed = 0;
    for (record, theirs) in work.iter().zip(&answers) {
        let mut dst = vec![0; record.room];
        let len = compress(Compression::Lz4, ZstdLevel::default(), &record.bytes, &mut dst);
        let ours = len.map(|len| &dst[..len]).filter(|ours| ours.len() < record.bytes.len());
        let size = record.bytes.len();
        assert!(ours == theirs.as_deref(), "record of {size} bytes, room for {}", record.room);
        compressed += usize::from(ours.is_some());
    }
    eprintln!("{compressed} of {} records compress, all the same", work.len());
    assert!(compressed > 1000);
}

const FORMS: [(Compression, &str, &str); 7] = [
    (Compression::Lzjb, "lzjb", "0"),
    (Compression::Gzip(1), "gzip", "1"),
    (Compression::Gzip(9), "gzip", "9"),
    (Compression::Zle, "zle", "64"),
    (Compression::Lz4, "lz4", "0"),
    (Compression::Zstd, "zstd", "3"),
    (Compression::Zstd, "zstd", "112"),
];

#[test]
fn each_side_decompresses_the_other() {
    let work: Vec<Record> =
        records(512 << 10).into_iter().map(|bytes| Record { room: bytes.len(), bytes }).collect();
    for (compression, form, level) in FORMS {
        let Some(answers) = judge("compress", form, level, &work) else { return };
        for (record, theirs) in work.iter().zip(&answers) {
            let Some(theirs) = theirs else { continue };
            let mut back = vec![0; record.bytes.len()];
            assert_eq!(decompress(compression, theirs, &mut back), Ok(()), "{form}-{level}");
            assert!(back == record.bytes, "{form}-{level}");
        }

        let zstd_level = ZstdLevel::from_id(level.parse().expect("a number")).unwrap_or_default();
        let mut ours = Vec::new();
        let mut originals = Vec::new();
        for record in &work {
            let mut dst = vec![0; record.room];
            if let Some(len) = compress(compression, zstd_level, &record.bytes, &mut dst) {
                dst.truncate(len);
                ours.push(Record { bytes: dst, room: record.bytes.len() });
                originals.push(&record.bytes);
            }
        }
        let Some(answers) = judge("decompress", form, level, &ours) else { return };
        for (original, answer) in originals.iter().zip(&answers) {
            assert!(answer.as_ref() == Some(*original), "{form}-{level}: {} bytes", original.len());
        }
        eprintln!("{form}-{level}: {} of {} records compress", ours.len(), work.len());
    }
}
