//! Speed of the codecs on this machine, one thread, in 10^9 bytes of logical data per second.
//!
//!     cargo run --release -p cenote-bench --bin cenote-bench [-- FILTER]
//!
//! Each result is the best of several runs, each long enough for the clock and short enough to pass
//! between two interruptions. If a kernel has a vector and a scalar form, both are shown. Data is
//! in the second-level cache, like a block that has just been read; parity counts data columns
//! only.

mod data;
mod measure;

use std::hint::black_box;

use cenote_codec::{
    checksum::{ChecksumAlgorithm, Salt, compute},
    compress::{Compression, ZstdLevel, compress, decompress},
    fletcher::{fletcher2, fletcher2_scalar, fletcher4, fletcher4_be, fletcher4_scalar},
    parity::{Column, generate, generate_scalar, mismatch, reconstruct, reconstruct_scalar},
};
use measure::Report;

/// Bytes of a block in these measurements: OpenZFS's default record size.
const RECORD: usize = 128 << 10;

fn main() {
    let report = Report::new(std::env::args().nth(1));
    report.title("kernel", "vectors", "scalar");
    fletchers(&report);
    parities(&report);
    report.title("checksum", "GB/s", "");
    checksums(&report);
    report.title("compression", "decode", "encode");
    compressions(&report);
    report.title("lz4, decoding", "ours", "lz4_flex");
    lz4_decoding(&report);
}

/// Keeps the compiler from removing unused computations.
fn keep<T>(value: T) {
    let _ = black_box(value);
}

fn fletchers(report: &Report) {
    let block = data::noise(RECORD);
    report.pair(
        "fletcher4",
        RECORD,
        || keep(fletcher4(black_box(&block))),
        || keep(fletcher4_scalar(black_box(&block), false)),
    );
    report.pair(
        "fletcher4, big-endian",
        RECORD,
        || keep(fletcher4_be(black_box(&block))),
        || keep(fletcher4_scalar(black_box(&block), true)),
    );
    report.pair(
        "fletcher2",
        RECORD,
        || keep(fletcher2(black_box(&block))),
        || keep(fletcher2_scalar(black_box(&block), false)),
    );
}

/// A row of 8 data columns.
fn parities(report: &Report) {
    let data: Vec<Vec<u8>> = (0..8).map(|_| data::noise(RECORD / 8)).collect();
    let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
    let mut parity = vec![vec![0; RECORD / 8]; 3];
    for (count, name) in [(1, "P"), (2, "P+Q"), (3, "P+Q+R")] {
        let work = |generate: fn(&mut [&mut [u8]], &[&[u8]]), parity: &mut [Vec<u8>]| {
            let mut out: Vec<&mut [u8]> = parity.iter_mut().map(Vec::as_mut_slice).collect();
            generate(black_box(&mut out), black_box(&data));
        };
        let name = format!("generate {name}, 8 data columns");
        let mut other = parity.clone();
        let parity = &mut parity[..count];
        report.pair(
            &name,
            RECORD,
            || work(generate, parity),
            || work(generate_scalar, &mut other[..count]),
        );
    }
    let stored: Vec<Option<&[u8]>> = parity.iter().map(|column| Some(column.as_slice())).collect();
    report.single("compare P+Q+R", RECORD, || keep(mismatch(&stored, black_box(&data))));
    // From the first parity columns, and from the last ones.
    for (missing, first) in [(1, 0), (1, 1), (1, 2), (2, 0), (2, 1), (3, 0)] {
        let survivors: Vec<_> = (0..3).map(|k| stored[k].filter(|_| k >= first)).collect();
        reconstruction(report, &data, &survivors, missing, first);
    }
}

fn reconstruction(
    report: &Report,
    data: &[&[u8]],
    parity: &[Option<&[u8]>],
    missing: usize,
    first: usize,
) {
    let run = |reconstruct: Reconstruct, lost: &mut [Vec<u8>]| {
        let mut columns: Vec<Column<'_>> = lost.iter_mut().map(|c| Column::Missing(c)).collect();
        columns.extend(data[missing..].iter().map(|column| Column::Present(column)));
        assert!(reconstruct(parity, black_box(&mut columns)).is_ok(), "solvable");
    };
    let from = &["P", "Q", "R"][first..first + missing].concat();
    let name = format!("reconstruct {missing} of 8 from {from}");
    let mut lost = vec![vec![0; RECORD / 8]; missing];
    let mut other = lost.clone();
    report.pair(
        &name,
        RECORD,
        || run(reconstruct, &mut lost),
        || run(reconstruct_scalar, &mut other),
    );
}

type Reconstruct =
    fn(&[Option<&[u8]>], &mut [Column<'_>]) -> Result<(), cenote_codec::parity::ReconstructError>;

fn checksums(report: &Report) {
    let block = data::noise(RECORD);
    let salt = Salt::new(&[7; 32]);
    for (algorithm, name) in [
        (ChecksumAlgorithm::Sha256, "sha256"),
        (ChecksumAlgorithm::Sha512, "sha512/256"),
        (ChecksumAlgorithm::Skein, "skein"),
        (ChecksumAlgorithm::EdonR, "edonr"),
        (ChecksumAlgorithm::Blake3, "blake3"),
    ] {
        report.single(name, RECORD, || {
            keep(compute(algorithm, black_box(&block), false, Some(&salt)));
        });
    }
}

/// LZ4 compared with a library's decoder: file data, and an indirect block that is mostly holes.
fn lz4_decoding(report: &Report) {
    for (name, block) in [
        ("text", data::text(RECORD)),
        ("half noise", data::half_noise(RECORD)),
        ("one word", data::words(RECORD)),
        ("indirect block", data::hole_pointers(RECORD)),
    ] {
        let mut stored = vec![0; 2 * RECORD];
        let level = ZstdLevel::default();
        let len = compress(Compression::Lz4, level, &block, &mut stored).expect("room enough");
        let (mut ours, mut theirs) = (vec![0; RECORD], vec![0; RECORD]);
        report.pair(
            &format!("lz4 of {name}"),
            RECORD,
            || keep(decompress(Compression::Lz4, black_box(&stored[..len]), &mut ours)),
            || keep(lz4_flex::block::decompress_into(black_box(&stored[4..len]), &mut theirs)),
        );
    }
}

fn compressions(report: &Report) {
    for len in [8 << 10, RECORD] {
        let block = data::half_noise(len);
        let mut target = vec![0; len];
        report.single(&format!("lz4, half noise, {}K", len >> 10), len, || {
            keep(compress(Compression::Lz4, ZstdLevel::default(), black_box(&block), &mut target));
        });
    }
    let block = data::text(RECORD);
    for (compression, level, name) in [
        (Compression::Lzjb, 3, "lzjb"),
        (Compression::Gzip(1), 3, "gzip-1"),
        (Compression::Gzip(6), 3, "gzip-6"),
        (Compression::Zle, 3, "zle"),
        (Compression::Lz4, 3, "lz4"),
        (Compression::Zstd, 103, "zstd-fast"),
        (Compression::Zstd, 3, "zstd-3"),
        (Compression::Zstd, 19, "zstd-19"),
    ] {
        let level = ZstdLevel::from_id(level).unwrap_or_default();
        let mut stored = vec![0; 2 * RECORD];
        let mut target = stored.clone();
        let Some(len) = compress(compression, level, &block, &mut stored) else { continue };
        let mut back = vec![0; RECORD];
        let name = format!("{name}, ratio {:.2}", RECORD as f64 / len as f64);
        report.pair(
            &name,
            RECORD,
            || {
                let result = decompress(compression, black_box(&stored[..len]), &mut back);
                assert!(result.is_ok(), "our own bytes");
            },
            || {
                let len = compress(compression, level, black_box(&block), &mut target);
                assert!(len.is_some(), "room enough");
            },
        );
    }
}
