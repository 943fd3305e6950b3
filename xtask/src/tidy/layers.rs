//! Crates are layers: each uses only those above it in the table; and few third-party packages.
//!
//! The compiler prevents cycles; this checks the directions of `docs/architecture.md`. The data
//! comes from cargo (`metadata`, `tree`), so it is that of the actual build.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use serde::Deserialize;

/// Lowest layer first: a crate may use any crate before it, unless [`ALONE`] restricts it.
const LAYERS: [&str; 23] = [
    "cenote-allocator",
    "cenote-fuse-ring",
    "cenote-rt",
    "cenote-ranges",
    "cenote-ondisk",
    "cenote-codec",
    "cenote-device",
    "cenote-vdev",
    "cenote-block",
    "cenote-dmu",
    "cenote-pool",
    "cenote-engine",
    "cenote-fs",
    "cenote-stream",
    "cenote",
    "cenote-serve",
    "cenote-lab",
    "cenote-cli",
    "cenote-bin",
    "cenote-testkit",
    "cenote-oracle",
    "cenote-poolkit",
    "cenote-sim",
];

/// Crates that may use only some of those above them, and which.
const ALONE: [(&str, &[&str]); 7] = [
    ("cenote-fuse-ring", &[]),
    ("cenote-rt", &[]),
    ("cenote-ranges", &[]),
    ("cenote-ondisk", &[]),
    ("cenote-codec", &[]),
    ("cenote-device", &["cenote-rt"]),
    ("xtask", &[]),
];

/// Front ends, and the crates whose types they do not name: the pool and the engine offer in their
/// own terms what front ends need of blocks, vdevs and devices. Their tests are exempt.
const FRONT_ENDS: [&str; 4] = ["cenote", "cenote-serve", "cenote-cli", "cenote-bin"];
const HIDDEN: [&str; 3] = ["cenote-device", "cenote-vdev", "cenote-block"];

/// Crates that others may use in their tests only, if at all.
const FOR_TESTS: [&str; 6] = [
    "cenote-testkit",
    "cenote-oracle",
    "cenote-poolkit",
    "cenote-sim",
    "cenote-fuzz-targets",
    "cenote-bench",
];

/// Third-party packages that only one crate may use: all others call `cenote_rt::trace`.
const OF_ONE: [(&str, &str); 2] = [("tracing", "cenote-rt"), ("tracing-subscriber", "cenote-bin")];

/// The engine as a library, and how many third-party packages may be linked into it: helpers of the
/// compiler (macros, build scripts) run on the builder's machine only and don't count.
const ENGINE: &str = "cenote";
const ENGINE_PACKAGES_MAX: usize = 60;
const TARGET: &str = "x86_64-unknown-linux-gnu";

#[derive(Debug, Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Debug, Deserialize)]
struct Package {
    name: String,
    dependencies: Vec<Dependency>,
}

#[derive(Debug, Deserialize)]
struct Dependency {
    name: String,
    kind: Option<String>,
}

/// Findings on the workspace's crates.
pub(super) fn check(root: &Path) -> Vec<String> {
    let metadata = match read(root) {
        Ok(metadata) => metadata,
        Err(error) => return vec![format!("cargo metadata: {error}")],
    };
    let mut findings = Vec::new();
    for package in &metadata.packages {
        for dependency in &package.dependencies {
            let is_for_tests = dependency.kind.as_deref() == Some("dev");
            findings.extend(arrow(&package.name, &dependency.name, is_for_tests));
        }
    }
    findings.extend(budget(root));
    findings
}

/// The crates of the workspace.
fn read(root: &Path) -> Result<Metadata, String> {
    let args = ["metadata", "--format-version=1", "--locked", "--no-deps"];
    serde_json::from_slice(&output(root, &args)?).map_err(|error| error.to_string())
}

/// The output of cargo.
fn output(root: &Path, args: &[&str]) -> Result<Vec<u8>, String> {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    let output =
        command.current_dir(root).args(args).output().map_err(|error| error.to_string())?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(output.stdout)
}

/// The finding about one crate's use of another, if any.
fn arrow(from: &str, to: &str, is_for_tests: bool) -> Option<String> {
    let place = |name: &str| LAYERS.iter().position(|layer| *layer == name);
    let is_ours = |name: &str| name.starts_with("cenote");
    if is_ours(from) && place(from).is_none() && !FOR_TESTS.contains(&from) {
        return Some(format!("{from}: not in the table of layers"));
    }
    if let Some((_, user)) = OF_ONE.iter().find(|(name, user)| *name == to && *user != from) {
        return Some(format!("{from} -> {to}: only {user} may use {to}"));
    }
    if !is_ours(to) || is_for_tests && FOR_TESTS.contains(&to) {
        return None;
    }
    if FOR_TESTS.contains(&to) && !FOR_TESTS.contains(&from) {
        return Some(format!("{from} -> {to}: only tests may use {to}"));
    }
    if let Some((_, allowed)) = ALONE.iter().find(|(name, _)| *name == from)
        && !allowed.contains(&to)
    {
        return Some(format!("{from} -> {to}: {from} may use only {allowed:?}"));
    }
    if FRONT_ENDS.contains(&from) && HIDDEN.contains(&to) && !is_for_tests {
        return Some(format!("{from} -> {to}: only through cenote-pool and cenote-engine"));
    }
    match (place(from), place(to)) {
        (Some(from_place), Some(to_place)) if from_place <= to_place => {
            Some(format!("{from} -> {to}: points up the table of layers"))
        }
        _ => None,
    }
}

/// The number of third-party packages in the engine by itself: with its own features, not with
/// those that other crates of the workspace enable.
fn budget(root: &Path) -> Option<String> {
    let tree = ["tree", "--locked", "--package", ENGINE, "--target", TARGET];
    let linked = ["--edges", "normal,no-proc-macro", "--prefix", "none", "--format", "{p}"];
    let listed = match output(root, &[&tree[..], &linked].concat()) {
        Ok(listed) => String::from_utf8_lossy(&listed).into_owned(),
        Err(error) => return Some(error),
    };
    let lines = listed.lines().map(|line| line.trim_end_matches(" (*)"));
    // Packages of the workspace are listed with their folder.
    let foreign = lines.filter(|line| !line.contains('(')).collect::<BTreeSet<_>>().len();
    (foreign > ENGINE_PACKAGES_MAX).then(|| {
        format!("{ENGINE} links {foreign} packages of others, at most {ENGINE_PACKAGES_MAX}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arrows_point_down_the_table() {
        for (from, to, is_for_tests, is_fine) in [
            ("cenote-vdev", "cenote-device", false, true),
            ("cenote-device", "cenote-vdev", false, false),
            ("cenote-ondisk", "cenote-rt", false, false),
            ("cenote-codec", "cenote-ondisk", false, false),
            ("cenote-device", "cenote-rt", false, true),
            ("cenote-pool", "cenote-testkit", true, true),
            ("cenote-pool", "cenote-testkit", false, false),
            ("cenote-oracle", "cenote-testkit", false, true),
            ("cenote-poolkit", "cenote-engine", false, true),
            ("cenote-engine", "cenote-poolkit", true, true),
            ("cenote-engine", "cenote-poolkit", false, false),
            ("cenote-dmu", "cenote-dmu", false, false),
            ("cenote-vdev", "cenote-block", true, false),
            ("cenote-engine", "cenote-pool", false, true),
            ("cenote-pool", "cenote-engine", false, false),
            ("cenote-pool", "cenote-engine", true, false),
            ("cenote-cli", "cenote-engine", false, true),
            ("cenote-cli", "cenote-vdev", false, false),
            ("cenote-serve", "cenote-block", false, false),
            ("cenote", "cenote-device", false, false),
            ("cenote-bin", "cenote-device", false, false),
            ("cenote-bin", "cenote-device", true, true),
            ("cenote-helpers", "cenote-rt", false, false),
            ("cenote-rt", "tokio", false, true),
            ("cenote-rt", "tracing", false, true),
            ("cenote-fs", "tracing", false, false),
            ("cenote-bin", "tracing-subscriber", false, true),
            ("cenote-cli", "tracing-subscriber", true, false),
        ] {
            let finding = arrow(from, to, is_for_tests);
            assert_eq!(finding.is_none(), is_fine, "{from} -> {to}: {finding:?}");
        }
    }
}
