//! Every decoder has a fuzz target, and every target has seeds.
//!
//! The list is written out here, so that a target is not removed by accident.

use std::collections::BTreeSet;
use std::path::Path;

/// The decoders: one target each in `fuzz/fuzz_targets`, one folder each in `fuzz/seeds`.
const DECODERS: [&str; 38] = [
    "acl",
    "blkptr",
    "bpobj",
    "bptree",
    "brt",
    "checksum",
    "ddt",
    "ddt_log",
    "dnode",
    "dsl",
    "errlog",
    "fuse",
    "gzip",
    "history",
    "indirect",
    "label",
    "lz4",
    "lzjb",
    "nbd",
    "nvlist_native",
    "nvlist_xdr",
    "objset",
    "receive",
    "redaction",
    "sa",
    "scan",
    "spacemap",
    "stream",
    "token",
    "uberblock",
    "vdev_config",
    "zap_fat",
    "zap_leaf",
    "zap_micro",
    "zil",
    "zle",
    "znode",
    "zstd",
];

/// Findings on the fuzz targets.
pub(super) fn check(root: &Path) -> Vec<String> {
    let targets = names(&root.join("fuzz/fuzz_targets"));
    let seeds = names(&root.join("fuzz/seeds"));
    let manifest = std::fs::read_to_string(root.join("fuzz/Cargo.toml")).unwrap_or_default();
    differences(&DECODERS, &targets, &seeds, &manifest)
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let stem =
        |entry: std::fs::DirEntry| Some(entry.path().file_stem()?.to_string_lossy().into_owned());
    entries.filter_map(stem).collect()
}

fn differences(
    decoders: &[&str],
    targets: &BTreeSet<String>,
    seeds: &BTreeSet<String>,
    manifest: &str,
) -> Vec<String> {
    let mut findings = Vec::new();
    for decoder in decoders {
        if !targets.contains(*decoder) {
            findings.push(format!("fuzz/fuzz_targets/{decoder}.rs: missing"));
        }
        if !seeds.contains(*decoder) {
            findings.push(format!("fuzz/seeds/{decoder}: missing"));
        }
        if !manifest.contains(&format!("name = \"{decoder}\"")) {
            findings.push(format!("fuzz/Cargo.toml: no target {decoder}"));
        }
    }
    let unknown = targets.iter().filter(|target| !decoders.contains(&target.as_str()));
    findings.extend(unknown.map(|target| format!("{target}: not in xtask's list of decoders")));
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_differences() {
        let set = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        for (targets, seeds, manifest, count) in [
            (&["lz4"][..], &["lz4"][..], "name = \"lz4\"", 0),
            (&[], &["lz4"], "name = \"lz4\"", 1),
            (&["lz4"], &[], "name = \"lz4\"", 1),
            (&["lz4"], &["lz4"], "", 1),
            (&["lz4", "odd"], &["lz4"], "name = \"lz4\"", 1),
        ] {
            let findings = differences(&["lz4"], &set(targets), &set(seeds), manifest);
            assert_eq!(findings.len(), count, "{findings:?}");
        }
    }
}
