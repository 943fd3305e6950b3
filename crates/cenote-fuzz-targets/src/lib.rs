//! The fuzz targets, one function per decoder. The fuzzer calls them, and every test run replays
//! their seeds.
//!
//! Each function takes arbitrary bytes, decodes them in every way that the structure offers, and
//! uses all parts of the result. It may not panic, hang, or allocate out of proportion. If a
//! structure can also be written, an accepted value must survive a round trip: `decode(encode(x))
//! == x`.
//!
//! `fuzz/fuzz_targets/NAME.rs` calls the function of that name under libFuzzer (`./x fuzz NAME`);
//! `tests/replay.rs` feeds it the seeds of `fuzz/seeds/NAME`, and seeded mutations of them, with
//! the stable compiler.

pub mod blocks;
pub mod codecs;
pub mod lists;
pub mod objects;
pub mod space;
pub mod streams;
pub mod wire;
pub mod zaps;

/// Name and function of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// All targets, by the decoder's name.
pub const TARGETS: &[Target] = &[
    ("acl", objects::acl),
    ("blkptr", blocks::blkptr),
    ("bpobj", space::bpobj),
    ("bptree", space::bptree),
    ("brt", space::brt),
    ("checksum", codecs::checksum),
    ("ddt", space::ddt),
    ("ddt_log", space::ddt_log),
    ("dnode", blocks::dnode),
    ("dsl", objects::dsl),
    ("errlog", objects::errlog),
    ("fuse", wire::fuse),
    ("gzip", codecs::gzip),
    ("history", objects::history),
    ("indirect", space::indirect),
    ("label", lists::label),
    ("lz4", codecs::lz4),
    ("lzjb", codecs::lzjb),
    ("nbd", wire::nbd),
    ("nvlist_native", lists::nvlist_native),
    ("nvlist_xdr", lists::nvlist_xdr),
    ("objset", blocks::objset),
    ("receive", streams::receive),
    ("redaction", space::redaction),
    ("sa", objects::sa),
    ("scan", objects::scan),
    ("spacemap", space::spacemap),
    ("stream", streams::stream),
    ("token", streams::token),
    ("uberblock", blocks::uberblock),
    ("vdev_config", lists::vdev_config),
    ("zap_fat", zaps::zap_fat),
    ("zap_leaf", zaps::zap_leaf),
    ("zap_micro", zaps::zap_micro),
    ("zil", blocks::zil),
    ("zle", codecs::zle),
    ("znode", objects::znode),
    ("zstd", codecs::zstd),
];

/// The words of a byte string, little-endian; a rest of less than a word is left out.
fn words(bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks_exact(8)
        .map(|chunk| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)))
        .collect()
}
