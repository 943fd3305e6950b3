//! Invariants have ids, and release builds check them.
//!
//! A module essay defines an invariant as an item of a list under `Invariants`:
//!
//! ```text
//! //! Invariants
//! //! * M2  While a metaslab is loaded, its allocated and its free bytes add up to its size.
//! ```
//!
//! A check of it, in code that release builds contain, has one of two forms:
//!
//! ```text
//! ensure!("M2", found == expected, "{found} bytes, expected {expected}");
//!
//! // Checks M2: reason.
//! if found != expected {
//!     return Err(Violation::Sum { found, expected });
//! }
//! ```
//!
//! The statement after the comment must be able to fail; `debug_assert!` does not count. An id is
//! unique within its crate, and a check names an id of its own crate, or one that only one crate
//! has. Lists under `Guarantees` have the same form and need no check: the compiler, or tests,
//! verify them. `docs/design/invariants.md` lists the invariants with their checks; `xtask
//! invariants` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

use super::Source;
use super::source::is_test;

/// Least number of checks in the workspace. Only ever raise it.
const CHECKS_MIN: usize = 313;

/// The document, and the marks around its table.
const DOCUMENT: &str = "docs/design/invariants.md";
const BEGIN: &str = "<!-- invariants: written by `cargo run -p xtask -- invariants` -->\n";
const END: &str = "<!-- end of invariants -->\n";

/// Crates whose code is in tests only.
const FOR_TESTS: [&str; 4] =
    ["cenote-testkit", "cenote-poolkit", "cenote-oracle", "cenote-fuzz-targets"];

/// Lines after a comment within which its check must stand.
const STATEMENT_LINES_MAX: usize = 8;

/// Parts of a statement that can fail.
const FAILURES: [&str; 12] = [
    "assert!(",
    "assert_eq!(",
    "assert_ne!(",
    "Err(",
    "ok_or",
    ".expect(",
    "map_err(",
    "invariant(",
    "invariant_error(",
    "fail(",
    "broken(",
    "return None",
];

/// An invariant as its module's essay defines it.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Invariant {
    package: String,
    id: String,
    text: String,
    path: String,
    line: usize,
}

/// A check, with the ids that it names.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Check {
    package: String,
    path: String,
    line: usize,
    ids: Vec<String>,
    can_fail: bool,
}

/// Invariants and checks of the workspace.
#[derive(Debug, Default)]
struct Index {
    invariants: Vec<Invariant>,
    checks: Vec<Check>,
}

impl Index {
    fn of(sources: &[Source]) -> Self {
        let mut index = Self::default();
        for file in sources.iter().filter(|file| file.is("rs") && !is_test(&file.path)) {
            let Some(package) = package(&file.path) else { continue };
            let end = file.text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(file.text.len());
            let text = &file.text[..end];
            index.invariants.extend(invariants(package, &file.path, text));
            index.checks.extend(checks(package, &file.path, text));
        }
        index
    }

    /// Indexes of the invariants that an id in a package may mean.
    fn named(&self, package: &str, id: &str) -> Vec<usize> {
        let with_id = self.invariants.iter().enumerate().filter(|(_, found)| found.id == id);
        let with_id: Vec<_> = with_id.collect();
        let own = with_id.iter().find(|(_, found)| found.package == package);
        match own {
            Some((index, _)) => vec![*index],
            None => with_id.iter().map(|(index, _)| *index).collect(),
        }
    }

    /// Number of checks of each invariant.
    fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.invariants.len()];
        for check in &self.checks {
            for id in &check.ids {
                if let [index] = *self.named(&check.package, id) {
                    counts[index] += 1;
                }
            }
        }
        counts
    }

    fn findings(&self, checks_min: usize) -> Vec<String> {
        let mut findings = Vec::new();
        let mut seen = BTreeMap::new();
        for (found, count) in self.invariants.iter().zip(self.counts()) {
            let place = format!("{}:{}", found.path, found.line);
            if let Some(first) = seen.insert((&found.package, &found.id), &found.path) {
                findings.push(format!("{place}: invariant {} is also in {first}", found.id));
            } else if count == 0 {
                findings.push(format!("{place}: invariant {} has no check", found.id));
            }
        }
        for check in &self.checks {
            let place = format!("{}:{}", check.path, check.line);
            if !check.can_fail {
                findings.push(format!("{place}: no check of {} follows", check.ids.join(", ")));
            }
            for id in &check.ids {
                match self.named(&check.package, id).len() {
                    1 => {}
                    0 => findings.push(format!("{place}: no essay defines invariant {id}")),
                    _ => findings.push(format!("{place}: several crates have invariant {id}")),
                }
            }
        }
        if self.checks.len() < checks_min {
            let count = self.checks.len();
            findings.push(format!("invariants: {count} checks, at least {checks_min}"));
        }
        findings
    }

    /// The invariants as a table of Markdown.
    fn table(&self) -> String {
        let mut rows: Vec<_> = self.invariants.iter().zip(self.counts()).collect();
        rows.sort_by_key(|(found, _)| (&found.package, &found.path, found.line));
        let mut table =
            String::from("| crate | id | invariant | essay | checks |\n|---|---|---|---|---|\n");
        for (found, count) in rows {
            let source = format!("crates/{}/src/", found.package);
            let file = found.path.strip_prefix(&source).unwrap_or(&found.path);
            let _ = writeln!(
                table,
                "| {} | {} | {} | [{file}](../../{}) | {count} |",
                found.package, found.id, found.text, found.path
            );
        }
        table
    }
}

/// Findings on invariants and their checks.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    Index::of(sources).findings(CHECKS_MIN)
}

/// The ids of all invariants and guarantees.
pub(super) fn ids(sources: &[Source]) -> BTreeSet<String> {
    let essays = sources.iter().filter(|file| file.is("rs"));
    let lines = essays.flat_map(|file| file.text.lines().map_while(|l| l.strip_prefix("//!")));
    let items = lines.filter_map(|line| line.strip_prefix(" * ").and_then(item));
    items.map(|(id, _)| id.to_owned()).collect()
}

/// Findings on the document.
pub(super) fn check_document(sources: &[Source], root: &Path) -> Option<String> {
    match (current(root), written(sources, root)) {
        (Ok(current), Ok(written)) if current == written => None,
        (Ok(_), Ok(_)) => {
            Some(format!("{DOCUMENT}: out of date: run `cargo run -p xtask -- invariants`"))
        }
        (Err(error), _) | (_, Err(error)) => Some(error),
    }
}

/// Writes the table into the document, and returns the number of invariants and of checks.
pub(crate) fn write(root: &Path) -> Result<(usize, usize), String> {
    let sources = super::sources(root);
    let text = written(&sources, root)?;
    std::fs::write(root.join(DOCUMENT), text).map_err(|error| format!("{DOCUMENT}: {error}"))?;
    let index = Index::of(&sources);
    Ok((index.invariants.len(), index.checks.len()))
}

fn current(root: &Path) -> Result<String, String> {
    std::fs::read_to_string(root.join(DOCUMENT)).map_err(|error| format!("{DOCUMENT}: {error}"))
}

fn written(sources: &[Source], root: &Path) -> Result<String, String> {
    let document = current(root)?;
    let marks = document
        .split_once(BEGIN)
        .and_then(|(before, after)| after.split_once(END).map(|(_, after)| (before, after)));
    let Some((before, after)) = marks else {
        return Err(format!("{DOCUMENT}: no marks around the table of invariants"));
    };
    Ok(format!("{before}{BEGIN}{}{END}{after}", Index::of(sources).table()))
}

/// The crate of a source file of the program; `None` for tests and tools.
fn package(path: &str) -> Option<&str> {
    let (package, inside) = path.strip_prefix("crates/")?.split_once('/')?;
    (inside.starts_with("src/") && !FOR_TESTS.contains(&package)).then_some(package)
}

/// Invariants that the essay of a file defines.
fn invariants(package: &str, path: &str, text: &str) -> Vec<Invariant> {
    let mut found: Vec<Invariant> = Vec::new();
    let mut is_listed = false;
    let essay = text.lines().map_while(|line| line.strip_prefix("//!"));
    for (index, line) in essay.enumerate() {
        let line = line.trim_end();
        if let Some((id, text)) = line.strip_prefix(" * ").and_then(item) {
            if is_listed {
                let (package, path) = (package.to_owned(), path.to_owned());
                let (id, text) = (id.to_owned(), text.to_owned());
                found.push(Invariant { package, id, text, path, line: index + 1 });
            }
        } else if line.starts_with("  ") && is_listed {
            if let Some(last) = found.last_mut() {
                let _ = write!(last.text, " {}", line.trim());
            }
        } else {
            is_listed = line.starts_with(" Invariants");
        }
    }
    for invariant in &mut found {
        if let Some((first, _)) = invariant.text.split_once(". ") {
            invariant.text = format!("{first}.");
        }
    }
    found
}

/// Id and text of an item of a list: capital letters, perhaps a hyphen, and a number.
fn item(item: &str) -> Option<(&str, &str)> {
    let (id, text) = item.split_once(' ')?;
    is_id(id).then_some((id, text.trim_start()))
}

/// Whether a word is an id: capital letters, perhaps a hyphen, and a number.
pub(super) fn is_id(word: &str) -> bool {
    let letters = word.trim_end_matches(|c: char| c.is_ascii_digit());
    let name = letters.strip_suffix('-').unwrap_or(letters);
    letters != word && !name.is_empty() && name.chars().all(|c| c.is_ascii_uppercase())
}

/// Checks in the code of a file.
fn checks(package: &str, path: &str, text: &str) -> Vec<Check> {
    let lines: Vec<_> = text.lines().map(str::trim).collect();
    let check = |line: usize, ids, can_fail| Check {
        package: package.to_owned(),
        path: path.to_owned(),
        line: line + 1,
        ids,
        can_fail,
    };
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate() {
        if let Some(note) = line.strip_prefix("// Checks ") {
            found.push(check(index, noted_ids(note), can_fail(&lines[index + 1..])));
        } else if let Some((before, after)) = line.split_once("ensure!(") {
            let is_call = !before.contains("//") && !before.contains('"');
            let first = if after.is_empty() { lines.get(index + 1).copied() } else { Some(after) };
            let id = first.and_then(|text| text.strip_prefix('"')?.split('"').next());
            if let (true, Some(id)) = (is_call, id) {
                found.push(check(index, vec![id.to_owned()], true));
            }
        }
    }
    found
}

/// The ids at the start of a comment: `M1`, `M1 and M2`, `M1, M2: reason`.
fn noted_ids(note: &str) -> Vec<String> {
    let ids = note.split([':', '.']).next().unwrap_or_default();
    let words = ids.split([',', ' ']).filter(|word| !word.is_empty() && *word != "and");
    words.map(str::to_owned).collect()
}

/// Whether the statement that follows a comment can fail.
fn can_fail(lines: &[&str]) -> bool {
    let code = lines.iter().skip_while(|line| line.starts_with("//"));
    let mut statement = code.take(STATEMENT_LINES_MAX).take_while(|line| !line.is_empty());
    statement.any(|line| {
        !line.contains("debug_assert") && FAILURES.iter().any(|failure| line.contains(failure))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ESSAY: &str = "//! A module.\n//!\n//! Invariants\n//! * M1  One thing holds, and\n//!   \
                         goes on. More words.\n//! * LOAN-2 Another holds.\n//!\n//! More.\n\n";

    fn index(files: &[(&str, &str)]) -> Index {
        let source = |(path, text): &(&str, &str)| Source {
            path: (*path).to_owned(),
            text: (*text).to_owned(),
        };
        Index::of(&files.iter().map(source).collect::<Vec<_>>())
    }

    #[test]
    fn an_essay_defines_invariants() {
        let found = invariants("a", "crates/a/src/b.rs", ESSAY);
        let found: Vec<_> = found.iter().map(|one| (&*one.id, &*one.text, one.line)).collect();
        assert_eq!(
            found,
            [("M1", "One thing holds, and goes on.", 4), ("LOAN-2", "Another holds.", 6)]
        );
        for (text, count) in [
            ("//! Invariants (each checked)\n//! * M1 a.\n", 1),
            ("//! Guarantees\n//! * M1 a.\n", 0),
            ("//! Invariants\n//! * m1 a.\n//! * M a.\n//! * 1 a.\n//! * M-1a a.\n", 0),
            ("//! Invariants\n//! * M1 a.\n//!\n//! * M2 a.\n", 1),
            ("//! A.\n\n/// Invariants\n/// * M1 a.\n", 0),
        ] {
            assert_eq!(invariants("a", "crates/a/src/b.rs", text).len(), count, "{text}");
        }
    }

    #[test]
    fn mistakes_are_found() {
        let good = "ensure!(\"M1\", a == b, \"{a}\");\n// Checks LOAN-2: why.\nif a {\n    \
                    return Err(b);\n}\n";
        let long = "ensure!(\n    \"M1\",\n    a\n);\n// Checks LOAN-2 and M1.\nassert!(a);\n";
        let unchecked = "ensure!(\"M1\", a);\n";
        let unknown = format!("{good}ensure!(\"M9\", a);\n");
        let debug = "ensure!(\"M1\", a);\n// Checks LOAN-2.\ndebug_assert!(a);\n";
        let far = format!("{good}// Checks M1.\n\nassert!(a);\n");
        let tests = "#[cfg(test)]\nmod tests {\n    // Checks M1.\n    assert!(a);\n}\n";
        let both = format!("{good}\n{tests}");
        for (code, checks_min, want) in [
            (good, 2, None),
            (long, 2, None),
            (good, 3, Some("2 checks, at least 3")),
            (unchecked, 0, Some("invariant LOAN-2 has no check")),
            (unknown.as_str(), 0, Some("no essay defines invariant M9")),
            (debug, 0, Some("no check of LOAN-2 follows")),
            (far.as_str(), 0, Some("no check of M1 follows")),
            (both.as_str(), 3, Some("2 checks, at least 3")),
        ] {
            let text = format!("{ESSAY}{code}");
            let findings = index(&[("crates/a/src/b.rs", &text)]).findings(checks_min);
            match want {
                None => assert!(findings.is_empty(), "{code}: {findings:?}"),
                Some(part) => {
                    assert_eq!(findings.len(), 1, "{code}: {findings:?}");
                    assert!(findings[0].contains(part), "{code}: {findings:?}");
                }
            }
        }
    }

    #[test]
    fn ids_belong_to_their_crates() {
        let checked = format!("{ESSAY}ensure!(\"M1\", a);\nensure!(\"LOAN-2\", a);\n");
        let same = [("crates/a/src/b.rs", &*checked), ("crates/a/src/c.rs", ESSAY)];
        let findings = index(&same).findings(0);
        assert!(findings.len() == 2 && findings[0].contains("is also in"), "{findings:?}");
        let others = [("crates/a/src/b.rs", &*checked), ("crates/c/src/b.rs", &*checked)];
        assert_eq!(index(&others).findings(4), Vec::<String>::new());
        let use_ = ("crates/d/src/b.rs", "//! A.\nensure!(\"M1\", a);\n");
        assert_eq!(index(&[others[0], use_]).findings(3), Vec::<String>::new());
        let findings = index(&[others[0], others[1], use_]).findings(0);
        assert!(findings.len() == 1 && findings[0].contains("several crates"), "{findings:?}");
    }

    #[test]
    fn tools_for_tests_have_no_checks() {
        let checked = format!("{ESSAY}ensure!(\"M1\", a);\n");
        for path in ["crates/cenote-testkit/src/a.rs", "crates/a/tests/b.rs", "xtask/src/a.rs"] {
            assert!(index(&[(path, &*checked)]).checks.is_empty(), "{path}");
        }
    }

    #[test]
    fn invariants_become_a_table() {
        let text = format!("{ESSAY}ensure!(\"M1\", a);\n");
        let table = index(&[("crates/a/src/b.rs", &text)]).table();
        let rows: Vec<_> = table.lines().skip(2).collect();
        let essay = "[b.rs](../../crates/a/src/b.rs)";
        assert_eq!(rows[0], format!("| a | M1 | One thing holds, and goes on. | {essay} | 1 |"));
        assert_eq!(rows[1], format!("| a | LOAN-2 | Another holds. | {essay} | 0 |"));
    }
}
