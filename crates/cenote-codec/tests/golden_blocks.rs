//! Real blocks of every checksum and compression: pool g-codecs, written by OpenZFS's module.
//!
//! `golden_blocks.tsv` lists the addresses that zdb reports for the blocks (`golden_blocks.py` made
//! it); the bytes come from the pool's image, and the expected contents of files from the pool's
//! manifests. So only this crate is under test. Skipped, with a message, if the pool is not
//! present.

use std::{collections::BTreeMap, fs::File, os::unix::fs::FileExt};

use cenote_codec::{
    checksum::{
        ChecksumAlgorithm, Salt, compute,
        embedded::{ByteOrder, Embedded, EmbeddedError, verify},
    },
    compress::{Compression, ZstdLevel, compress, decompress},
};
use cenote_testkit::golden;
use sha2::{Digest, Sha256};

/// Offset of the first allocatable byte of a leaf: behind two labels and the boot block.
const LEAF_START: u64 = 4 << 20;

struct Block {
    dataset: String,
    path: String,
    offset: u64,
    at: u64,
    psize: usize,
    lsize: usize,
    compression: String,
    checksum: String,
    words: [u64; 4],
}

fn hex(text: &str) -> u64 {
    u64::from_str_radix(text, 16).expect("hexadecimal")
}

fn table() -> (Salt, Vec<Block>) {
    let mut lines = include_str!("golden_blocks.tsv").lines().map(|line| line.split('\t'));
    let salt = lines.next().and_then(|mut line| line.nth(1)).expect("a first line");
    let salt: Vec<u8> = (0..32).map(|i| hex(&salt[2 * i..2 * i + 2]) as u8).collect();
    let salt = Salt::new(&salt.try_into().expect("32 bytes"));
    let block = |line: std::str::Split<'_, char>| {
        let fields: Vec<&str> = line.collect();
        let [dataset, path, offset, at, psize, lsize, compression, checksum, words] =
            fields[..].try_into().expect("nine fields");
        let words: Vec<u64> = words.split(':').map(hex).collect();
        Block {
            dataset: dataset.to_owned(),
            path: path.trim_start_matches('/').to_owned(),
            offset: hex(offset),
            at: hex(at),
            psize: hex(psize) as usize,
            lsize: hex(lsize) as usize,
            compression: compression.to_owned(),
            checksum: checksum.to_owned(),
            words: words.try_into().expect("four words"),
        }
    };
    (salt, lines.map(block).collect())
}

fn compression(name: &str) -> Compression {
    match name {
        "uncompressed" => Compression::Off,
        "lzjb" => Compression::Lzjb,
        "zle" => Compression::Zle,
        "lz4" => Compression::Lz4,
        "zstd" => Compression::Zstd,
        _ => {
            let level = name.strip_prefix("gzip-").and_then(|level| level.parse().ok());
            Compression::Gzip(level.unwrap_or_else(|| panic!("compression {name}")))
        }
    }
}

fn algorithm(name: &str) -> ChecksumAlgorithm {
    match name {
        "off" => ChecksumAlgorithm::Off,
        "fletcher2" => ChecksumAlgorithm::Fletcher2,
        "fletcher4" => ChecksumAlgorithm::Fletcher4,
        "sha256" => ChecksumAlgorithm::Sha256,
        "sha512" => ChecksumAlgorithm::Sha512,
        "skein" => ChecksumAlgorithm::Skein,
        "edonr" => ChecksumAlgorithm::EdonR,
        "blake3" => ChecksumAlgorithm::Blake3,
        _ => panic!("checksum {name}"),
    }
}

#[test]
fn blocks_of_a_real_pool_verify_and_expand() {
    let Some(golden) = golden("g-codecs") else { return };
    let (salt, blocks) = table();
    let images: Vec<File> =
        golden.devices().iter().map(|path| File::open(path).expect("an image")).collect();
    let mut files: BTreeMap<(&str, &str), Vec<u8>> = BTreeMap::new();
    for block in &blocks {
        let what = format!("{}/{} at {:#x}", block.dataset, block.path, block.offset);
        let mut stored = vec![0; block.psize];
        for image in &images {
            image.read_exact_at(&mut stored, LEAF_START + block.at).expect("inside the image");
            let words = compute(algorithm(&block.checksum), &stored, false, Some(&salt));
            assert_eq!(words, Ok(block.words), "{what}: {}", block.checksum);
        }
        let mut plain = vec![0; block.lsize];
        let result = decompress(compression(&block.compression), &stored, &mut plain);
        assert_eq!(result, Ok(()), "{what}: {}", block.compression);
        if block.path != "-" {
            let file = files.entry((&block.dataset, &block.path)).or_default();
            file.resize(file.len().max(block.offset as usize), 0);
            file.truncate(block.offset as usize);
            file.extend(plain);
        }
    }
    for ((dataset, path), mut contents) in files {
        let manifest = golden.manifest(dataset);
        let entry = manifest.iter().find(|entry| entry.path.0 == path.as_bytes());
        let entry = entry.unwrap_or_else(|| panic!("{dataset}/{path} is not in the manifest"));
        contents.resize(entry.size.expect("a file") as usize, 0);
        let expected = entry.sha256.as_deref().expect("a file");
        let expected: Vec<u8> = (0..32).map(|i| hex(&expected[2 * i..2 * i + 2]) as u8).collect();
        assert_eq!(Sha256::digest(&contents)[..], expected, "{dataset}/{path}");
    }
}

/// The configuration of each leaf, in the two labels at its front.
#[test]
fn labels_of_a_real_pool_verify_where_they_are() {
    const LABEL: u64 = 256 << 10;
    const CONFIG: u64 = 16 << 10;
    let Some(golden) = golden("g-codecs") else { return };
    for path in golden.devices() {
        let image = File::open(path).expect("an image");
        for offset in [CONFIG, LABEL + CONFIG] {
            let mut config = vec![0; 112 << 10];
            image.read_exact_at(&mut config, offset).expect("inside the image");
            let order = verify(Embedded::Label { offset }, &config, false);
            assert_eq!(order, Ok(ByteOrder::Little), "label at {offset:#x}");
            let elsewhere = verify(Embedded::Label { offset: offset + 512 }, &config, false);
            assert!(matches!(elsewhere, Err(EmbeddedError::Mismatch { .. })), "{elsewhere:?}");
        }
    }
}

/// Compares the output of our encoders with OpenZFS's. Equal bytes matter to nopwrite and dedup,
/// which compare checksums of compressed blocks.
#[test]
fn encoders_make_the_same_bytes() {
    const SECTOR: usize = 4096;
    let Some(golden) = golden("g-codecs") else { return };
    let image = File::open(&golden.devices()[0]).expect("an image");
    let (_salt, blocks) = table();
    // By format: number of blocks, of equal ones, and bytes of both.
    let mut tally: BTreeMap<String, [usize; 4]> = BTreeMap::new();
    for block in blocks.iter().filter(|block| block.compression != "uncompressed") {
        let form = compression(&block.compression);
        let mut stored = vec![0; block.psize];
        image.read_exact_at(&mut stored, LEAF_START + block.at).expect("inside the image");
        let mut plain = vec![0; block.lsize];
        decompress(form, &stored, &mut plain).expect("a good block");
        let level = match form {
            Compression::Zstd => ZstdLevel::from_id(stored[4]),
            _ => None,
        };
        let limit = block.lsize - block.lsize / 8;
        let limit = if form == Compression::Zle { limit } else { limit - limit % SECTOR };
        let mut packed = vec![0; limit];
        let len = compress(form, level.unwrap_or_default(), &plain, &mut packed);
        let len = len.unwrap_or_else(|| panic!("{}: does not compress", block.dataset));
        // Bytes behind the result are undefined.
        packed.truncate(len);
        packed.resize(len.next_multiple_of(SECTOR), 0);
        let name = match level {
            Some(level) => format!("zstd level {}", level.level()),
            None => block.compression.clone(),
        };
        let row = tally.entry(name).or_default();
        row[0] += 1;
        row[1] += usize::from(packed == stored);
        row[2] += packed.len();
        row[3] += stored.len();
    }
    for (name, [count, equal, ours, theirs]) in &tally {
        eprintln!("{name}: {equal} of {count} blocks equal, {ours} bytes, OpenZFS {theirs}");
        if matches!(name.as_str(), "lz4" | "lzjb" | "zle") {
            assert_eq!(equal, count, "{name}");
        }
        // The libraries have other versions than OpenZFS's: as good, but not identical.
        assert!(*ours <= theirs + theirs / 4, "{name}: {ours} bytes, OpenZFS has {theirs}");
    }
    assert!(tally["lz4"][0] > 30 && tally.contains_key("lzjb") && tally.contains_key("zle"));
}
