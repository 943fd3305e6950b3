//! Every verb, property and tunable has a row in `docs/testing.md`, whose tests exist.
//!
//! A row is a line of a table: features in its first cell, tests as `file::name` in its second,
//! each between backquotes. `file` is the stem of the file that has the test, or the name of its
//! folder for `mod.rs`, `main.rs` and `tests.rs`. A row without a test begins its second cell with
//! "none" and says why. The features come from the program's own tables: the usage texts, the
//! tables of properties, and the table of tunables.
//!
//! Rows count for the group that the nearest heading above them names.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Source;

/// The document with the tables.
const DOCUMENT: &str = "docs/testing.md";

/// A group of features: heading in the document, and file and function that lists them.
type Group = (&'static str, &'static str, fn(&str) -> Vec<String>);

const GROUPS: [Group; 7] = [
    ("zpool", "crates/cenote-cli/src/usage/zpool.txt", verbs),
    ("zfs", "crates/cenote-cli/src/usage/zfs.txt", verbs),
    ("cenote", "crates/cenote-cli/src/verbs/mod.rs", own_verbs),
    ("Properties of datasets", "crates/cenote-pool/src/props/table.rs", dataset_properties),
    ("Properties of pools", "crates/cenote-pool/src/props/table.rs", pool_properties),
    ("Properties of vdevs", "crates/cenote-cli/src/zpool/vdev_props.rs", vdev_properties),
    ("Tunables", "crates/cenote-rt/src/tunables.rs", tunables),
];

/// Findings on the document: missing rows, rows of unknown features, and tests that do not exist.
pub(super) fn check(sources: &[Source], root: &Path) -> Vec<String> {
    let text = |path: &str| std::fs::read_to_string(root.join(path)).ok();
    let Some(document) = text(DOCUMENT) else {
        return vec![format!("{DOCUMENT}:1: the document is missing")];
    };
    let mut findings = Vec::new();
    let mut groups = BTreeMap::new();
    for (heading, path, list) in GROUPS {
        let features = text(path).map(|text| list(&text)).unwrap_or_default();
        if features.is_empty() {
            findings.push(format!("{path}:1: tidy finds no features here for `{heading}`"));
        }
        groups.insert(heading, features);
    }
    let tests = tests(sources).into_iter().map(|test| test.name).collect();
    findings.extend(compare(&document, &groups, &tests));
    findings
}

/// Compares the rows of the document with the features of each group and the existing tests.
fn compare(
    document: &str,
    groups: &BTreeMap<&'static str, Vec<String>>,
    tests: &BTreeSet<String>,
) -> Vec<String> {
    let mut findings = Vec::new();
    let mut covered: BTreeSet<(&str, String)> = BTreeSet::new();
    let mut group = None;
    for (index, line) in document.lines().enumerate() {
        let at = format!("{DOCUMENT}:{}", index + 1);
        if let Some(heading) = line.strip_prefix("## ") {
            group = groups.get_key_value(heading.trim());
        }
        let (Some((heading, features)), Some(row)) = (group, line.strip_prefix("| `")) else {
            continue;
        };
        let row = format!("`{row}");
        let mut cells = row.split(" | ");
        let (names, covering) =
            (quoted(cells.next().unwrap_or("")), cells.next().unwrap_or("").trim());
        for name in names {
            if !features.contains(&name) {
                findings.push(format!("{at}: `{heading}` has no `{name}`"));
            }
            covered.insert((heading, name));
        }
        let named: Vec<_> =
            quoted(covering).into_iter().filter(|name| name.contains("::")).collect();
        if named.is_empty() && !covering.starts_with("none") {
            findings.push(format!("{at}: the row names no test; write \"none\" and why"));
        }
        for test in named.iter().filter(|test| !tests.contains(*test)) {
            findings.push(format!("{at}: there is no test `{test}`"));
        }
    }
    for (heading, features) in groups {
        for feature in features {
            if !covered.contains(&(*heading, feature.clone())) {
                findings.push(format!("{DOCUMENT}:1: `{feature}` has no row under `{heading}`"));
            }
        }
    }
    findings
}

/// Returns the texts between backquotes.
fn quoted(cell: &str) -> Vec<String> {
    cell.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

/// A test of the checkout.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    /// `file::name`.
    name: String,
    /// The package that has it.
    package: String,
}

/// Returns the packages with tests whose `file::name` contains `pattern` on one line, and the names
/// of these functions on the next; `None` if there is no such test.
pub(crate) fn matching(sources: &[Source], pattern: &str) -> Option<String> {
    let found: Vec<_> =
        tests(sources).into_iter().filter(|test| test.name.contains(pattern)).collect();
    let packages: BTreeSet<_> = found.iter().map(|test| test.package.as_str()).collect();
    let function = |test: &'_ Test| test.name.rsplit("::").next().map(str::to_owned);
    let functions: BTreeSet<_> = found.iter().filter_map(function).collect();
    let line = |words: Vec<&str>| words.join(" ");
    (!found.is_empty()).then(|| {
        let functions = functions.iter().map(String::as_str).collect();
        format!("{}\n{}\n", line(packages.into_iter().collect()), line(functions))
    })
}

/// Returns every test of the checkout.
fn tests(sources: &[Source]) -> BTreeSet<Test> {
    let mut found = BTreeSet::new();
    let packages = packages(sources);
    for file in sources.iter().filter(|file| file.is("rs")) {
        let Some(label) = label(&file.path) else { continue };
        let mut is_test = false;
        for line in file.text.lines().map(str::trim) {
            if line.starts_with("#[test]") {
                is_test = true;
            } else if let Some((_, rest)) = line.split_once("fn ").filter(|_| is_test) {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                let name = format!("{label}::{name}");
                found.insert(Test { name, package: package_of(&packages, &file.path) });
                is_test = false;
            }
        }
    }
    found
}

/// Returns the folders of packages, with their names.
fn packages(sources: &[Source]) -> BTreeMap<String, String> {
    let of = |file: &Source| {
        let folder = file.path.strip_suffix("/Cargo.toml")?;
        let package = file.text.split_once("[package]")?.1;
        let name = package.split_once("name = \"")?.1.split('"').next()?;
        Some((folder.to_owned(), name.to_owned()))
    };
    sources.iter().filter_map(of).collect()
}

/// Returns the package that a file belongs to: the one of the innermost folder.
fn package_of(packages: &BTreeMap<String, String>, path: &str) -> String {
    let mut folders = Path::new(path).ancestors().filter_map(Path::to_str);
    folders.find_map(|folder| packages.get(folder)).cloned().unwrap_or_default()
}

/// Returns the stem of a file, or the name of its folder if the stem says nothing.
fn label(path: &str) -> Option<&str> {
    let path = Path::new(path);
    let stem = path.file_stem()?.to_str()?;
    if ["mod", "main", "tests"].contains(&stem) {
        return path.parent()?.file_name()?.to_str();
    }
    Some(stem)
}

/// Returns the verbs of a usage text: its lines begin with a tab and a verb.
fn verbs(text: &str) -> Vec<String> {
    let of = |line: &str| {
        let line = line.strip_prefix('\t')?;
        let verb = line.split(' ').next().filter(|verb| !verb.is_empty())?;
        Some(verb.to_owned())
    };
    unique(text.lines().filter_map(of))
}

/// Returns the own verbs: arms of the `match` in `verbs::run`.
fn own_verbs(text: &str) -> Vec<String> {
    let body = text.split_once("pub fn run(").map_or("", |(_, rest)| rest);
    let body = body.split_once("\n}").map_or(body, |(body, _)| body);
    let of = |line: &str| {
        let (verb, rest) = line.trim().strip_prefix('"')?.split_once('"')?;
        rest.trim_start().starts_with("=>").then(|| verb.to_owned())
    };
    unique(body.lines().filter_map(of))
}

fn dataset_properties(text: &str) -> Vec<String> {
    rows(text, "pub const DATASET_PROPERTIES")
}

fn pool_properties(text: &str) -> Vec<String> {
    rows(text, "pub const POOL_PROPERTIES")
}

/// Returns the names in a table of properties: each row is a call whose first argument is the name.
fn rows(text: &str, start: &str) -> Vec<String> {
    let of = |line: &str| {
        let (function, rest) = line.trim().split_once("(\"")?;
        let is_name = |text: &str| text.chars().all(|c| c.is_ascii_lowercase() || c == '_');
        is_name(function).then(|| rest.split('"').next().unwrap_or_default().to_owned())
    };
    unique(table(text, start).lines().filter_map(of))
}

/// Returns the names in the table of properties of vdevs, which are plain texts.
fn vdev_properties(text: &str) -> Vec<String> {
    let names = table(text, "const PROPERTIES").split('"').skip(1).step_by(2).map(str::to_owned);
    unique(names)
}

/// Returns the names of tunables: `IDENTIFIER = "name", default, ...`.
fn tunables(text: &str) -> Vec<String> {
    let of = |line: &str| {
        let (identifier, rest) = line.trim().split_once(" = \"")?;
        let is_static = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
        let name = rest.split_once("\",")?.0;
        identifier.chars().all(is_static).then(|| name.to_owned())
    };
    unique(text.lines().filter_map(of))
}

/// Returns the text of a table from `start` to the bracket that ends it.
fn table<'a>(text: &'a str, start: &str) -> &'a str {
    let rest = text.split_once(start).map_or("", |(_, rest)| rest);
    rest.split_once("\n];").map_or(rest, |(table, _)| table)
}

fn unique(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut seen = BTreeSet::new();
    names.filter(|name| seen.insert(name.clone())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(document: &str) -> Vec<String> {
        let features = vec!["create".to_owned(), "list".to_owned()];
        let tests = ["write::create_works", "list::rows"].map(str::to_owned);
        compare(document, &BTreeMap::from([("zpool", features)]), &BTreeSet::from(tests))
    }

    #[test]
    fn rows_cover_features_with_tests_that_exist() {
        let head = "## zpool\n| verb | tests |\n|---|---|\n";
        for (rows, want) in [
            ("| `create` | `write::create_works` |\n| `list` | `list::rows` |\n", &[][..]),
            ("| `create`, `list` | `write::create_works` |\n", &[]),
            ("| `create`, `list` | none: not done |\n", &[]),
            ("| `create` | `write::create_works` |\n", &["`list` has no row"]),
            ("| `create`, `list` | see there |\n", &["names no test"]),
            ("| `create`, `list` | `write::gone` |\n", &["no test `write::gone`"]),
            ("| `create`, `list`, `x` | `list::rows` |\n", &["`zpool` has no `x`"]),
            ("## other\n| `x` | y |\n", &["`create` has no row", "`list` has no row"]),
        ] {
            let found = findings(&format!("{head}{rows}"));
            assert_eq!(found.len(), want.len(), "{rows}: {found:?}");
            for (found, part) in found.iter().zip(want) {
                assert!(found.contains(part), "{rows}: {found}");
            }
        }
    }

    #[test]
    fn features_are_read_from_the_tables() {
        assert_eq!(
            verbs("\tcreate [-f] <pool>\n\t    [-O x]\n\n\tload-key -a\n\tcreate\n"),
            ["create", "load-key"]
        );
        let table = "pub const A: &[P] = &[\n    row(\"used\", B),\n    text(\"type\", C),\n];\n";
        assert_eq!(rows(table, "pub const A"), ["used", "type"]);
        let tunable = "    TXG_TIMEOUT = \"zfs_txg_timeout\", 5, (1, 9),\n        \"help\";\n";
        assert_eq!(tunables(tunable), ["zfs_txg_timeout"]);
        let run = "pub fn run(verb: &str) {\n    match verb {\n        \"ls\" => ls(),\n    }\n}\n";
        assert_eq!(own_verbs(run), ["ls"]);
        assert_eq!(vdev_properties("const PROPERTIES: [&str; 1] = [\n    \"size\",\n];"), ["size"]);
    }

    #[test]
    fn tests_are_named_by_file_or_folder() {
        for (path, want) in [
            ("crates/a/tests/write.rs", "write"),
            ("crates/a/tests/zpool_trim/mod.rs", "zpool_trim"),
            ("crates/a/src/queue/tests.rs", "queue"),
        ] {
            assert_eq!(label(path), Some(want), "{path}");
        }
        let text = "#[test]\nfn one() {}\nfn other() {}\n    #[test]\n    fn two() {}\n".to_owned();
        let manifest = "[package]\nname = \"house\"\n".to_owned();
        let sources = [
            Source { path: "a/Cargo.toml".into(), text: manifest },
            Source { path: "a/tests/b.rs".into(), text },
        ];
        let names: Vec<_> = tests(&sources).into_iter().map(|test| test.name).collect();
        assert_eq!(names, ["b::one", "b::two"]);
        assert_eq!(matching(&sources, "b::").as_deref(), Some("house\none two\n"));
        assert_eq!(matching(&sources, "tw").as_deref(), Some("house\ntwo\n"));
        assert_eq!(matching(&sources, "other"), None);
    }
}
