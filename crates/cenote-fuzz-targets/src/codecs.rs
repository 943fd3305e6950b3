//! Codecs: decompressing arbitrary bytes to arbitrary sizes, and round trips of the compressors.

use std::hint::black_box;

use cenote_codec::checksum::{ChecksumAlgorithm, Salt, compute, embedded};
use cenote_codec::compress::{Compression, ZstdLevel, compress, decompress};

/// LZ4 behind its length.
pub fn lz4(bytes: &[u8]) {
    codec(Compression::Lz4, bytes);
}

/// LZJB.
pub fn lzjb(bytes: &[u8]) {
    codec(Compression::Lzjb, bytes);
}

/// Runs of zeroes.
pub fn zle(bytes: &[u8]) {
    codec(Compression::Zle, bytes);
}

/// zlib.
pub fn gzip(bytes: &[u8]) {
    codec(Compression::Gzip(6), bytes);
}

/// Zstandard behind its length and level.
pub fn zstd(bytes: &[u8]) {
    codec(Compression::Zstd, bytes);
}

fn codec(compression: Compression, bytes: &[u8]) {
    for size in [0, 512, 4096, 1 << 16] {
        let mut plain = vec![0xa5; size];
        black_box(decompress(compression, bytes, &mut plain).is_ok());
    }
    let level = ZstdLevel::from_id(3).expect("level 3 exists");
    let mut packed = vec![0; bytes.len()];
    if let Some(used) = compress(compression, level, bytes, &mut packed) {
        let mut plain = vec![0; bytes.len()];
        // Blocks are stored padded with zeroes to whole sectors.
        packed[used..].fill(0);
        let result = decompress(compression, &packed, &mut plain);
        assert!(result.is_ok() && plain == bytes, "{result:?}");
    }
}

/// Every checksum in both byte orders; the embedded forms find and prove their trailers.
pub fn checksum(bytes: &[u8]) {
    let salt = Salt::new(&[7; 32]);
    for id in 0..=u8::MAX {
        let Some(algorithm) = ChecksumAlgorithm::from_id(id) else { continue };
        // Fletcher works on whole words, as blocks are.
        let whole = &bytes[..bytes.len() / 16 * 16];
        let one = compute(algorithm, whole, false, Some(&salt));
        assert_eq!(one, compute(algorithm, whole, false, Some(&salt)));
        black_box(compute(algorithm, whole, true, Some(&salt)).is_ok());
    }
    let header = embedded::Embedded::GangHeader { vdev: 1, offset: 2, birth: 3 };
    for kind in [embedded::Embedded::Label { offset: 0x4000 }, header] {
        for folded in [false, true] {
            black_box(embedded::verify(kind, bytes, folded).is_ok());
            let mut sealed = bytes.to_vec();
            if embedded::seal(kind, &mut sealed, folded).is_ok() {
                assert!(embedded::verify(kind, &sealed, folded).is_ok());
            }
        }
    }
}
