//! Locks have ranks, and the document lists them as the code has them.
//!
//! The table of ranks is `cenote_rt::lock::rank`; `docs/design/locks.md` has the table between two
//! marks, and `xtask locks` writes it there. Code outside `cenote-rt` uses the ranked locks; only
//! tests use locks of `std`. Poisoned locks are handled in `cenote-rt` only.

use std::fmt::Write;
use std::path::Path;

use super::Source;

/// The file of the ranks, the document, and the marks around its table.
const RANKS: &str = "crates/cenote-rt/src/lock/rank.rs";
const DOCUMENT: &str = "docs/design/locks.md";
const BEGIN: &str = "<!-- ranks: written by `cargo run -p xtask -- locks` -->\n";
const END: &str = "<!-- end of ranks -->\n";

/// Folders that may use locks of `std`: the ranked locks themselves, crates for tests, and a crate
/// that cannot depend on `cenote-rt`.
const FREE: [&str; 6] = [
    "crates/cenote-rt/src/lock/",
    "crates/cenote-codec/",
    "crates/cenote-testkit/",
    "crates/cenote-oracle/",
    "crates/cenote-poolkit/",
    "crates/cenote-sim/",
];

/// The poisoned lock of `std`. Spelled in two halves, so that this file passes.
const POISON: (&str, &str) = ("Poison", "Error");

/// Findings on one Rust file.
pub(super) fn check(file: &Source) -> Vec<String> {
    if !file.is("rs") || !file.path.starts_with("crates/") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let poison = format!("{}{}", POISON.0, POISON.1);
    let is_free = FREE.iter().any(|folder| file.path.starts_with(folder));
    if is_free || super::source::is_test(&file.path) {
        return findings;
    }
    if let Some(line) = line_of(&file.text, &poison) {
        findings.push(format!("{}:{line}: {poison}: use cenote_rt::lock", file.path));
    }
    let end = file.text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(file.text.len());
    findings.extend(locks_of_std(&file.text[..end]).map(|(line, name)| {
        format!("{}:{line}: std::sync::{name} has no rank: use cenote_rt::lock", file.path)
    }));
    findings
}

fn line_of(text: &str, word: &str) -> Option<usize> {
    text.lines().position(|line| line.contains(word)).map(|index| index + 1)
}

/// Line and name of every lock of `std` that a text imports or names.
fn locks_of_std(text: &str) -> impl Iterator<Item = (usize, &'static str)> + '_ {
    text.match_indices("std::sync::").flat_map(|(at, path)| {
        let line = text[..at].matches('\n').count() + 1;
        let after = &text[at + path.len()..];
        let end = match after.strip_prefix('{') {
            Some(list) => list.find('}').map_or(after.len(), |end| end + 1),
            None => after.find(|c: char| !c.is_alphanumeric()).unwrap_or(after.len()),
        };
        let words = after[..end].split(|c: char| !c.is_alphanumeric());
        let words: Vec<_> = words.collect();
        let locks = ["Mutex", "RwLock", "Condvar"].into_iter();
        locks.filter(move |lock| words.contains(lock)).map(move |lock| (line, lock))
    })
}

/// Findings on the document.
pub(super) fn check_document(root: &Path) -> Option<String> {
    match (current(root), written(root)) {
        (Ok(current), Ok(written)) if current == written => None,
        (Ok(_), Ok(_)) => {
            Some(format!("{DOCUMENT}: out of date: run `cargo run -p xtask -- locks`"))
        }
        (Err(error), _) | (_, Err(error)) => Some(error),
    }
}

/// Writes the table of ranks into the document.
pub(crate) fn write(root: &Path) -> Result<(), String> {
    let text = written(root)?;
    std::fs::write(root.join(DOCUMENT), text).map_err(|error| format!("{DOCUMENT}: {error}"))
}

fn current(root: &Path) -> Result<String, String> {
    std::fs::read_to_string(root.join(DOCUMENT)).map_err(|error| format!("{DOCUMENT}: {error}"))
}

/// The document with the table of the ranks.
fn written(root: &Path) -> Result<String, String> {
    let ranks = std::fs::read_to_string(root.join(RANKS));
    let ranks = ranks.map_err(|error| format!("{RANKS}: {error}"))?;
    let document = current(root)?;
    let marks = document
        .split_once(BEGIN)
        .and_then(|(before, after)| after.split_once(END).map(|(_, after)| (before, after)));
    let Some((before, after)) = marks else {
        return Err(format!("{DOCUMENT}: no marks around the table of ranks"));
    };
    Ok(format!("{before}{BEGIN}{}{END}{after}", table(&ranks)))
}

/// The ranks as a table of Markdown.
fn table(ranks: &str) -> String {
    let mut table = String::from("| | lock | crate | what it protects |\n|---|---|---|---|\n");
    let mut number = 0;
    for line in ranks.lines().map(str::trim) {
        if line == "threads {" {
            table.push_str("| | *locks of tasks above, of threads below* | | |\n");
        }
        let Some([name, of, what]) = row(line) else { continue };
        number += 1;
        let _ = writeln!(table, "| {number} | {name} | {of} | {what} |");
    }
    table
}

/// Findings on ranks that no lock has.
pub(super) fn check_ranks(sources: &[Source]) -> Vec<String> {
    let Some(ranks) = sources.iter().find(|file| file.path == RANKS) else { return Vec::new() };
    let is_used = |name: &str| {
        let place = format!("Rank::{name}");
        let is_whole = |after: &str| !after.starts_with(char::is_alphanumeric);
        let uses = |text: &str| {
            text.match_indices(&place).any(|(at, _)| is_whole(&text[at + place.len()..]))
        };
        sources.iter().any(|file| file.is("rs") && uses(&file.text))
    };
    let rows = ranks.text.lines().map(str::trim).filter(|line| row(line).is_some());
    let unused = rows.filter_map(|line| line.split(' ').next()).filter(|name| !is_used(name));
    unused.map(|name| format!("{RANKS}: no lock has the rank {name}")).collect()
}

/// The texts of a row `Rank = ("name", "crate", "what"),`.
fn row(line: &str) -> Option<[&str; 3]> {
    let (name, texts) = line.split_once(" = (\"")?;
    let mut texts = texts.strip_suffix("\"),")?.split("\", \"");
    let is_name = name.chars().all(char::is_alphanumeric);
    is_name.then_some([texts.next()?, texts.next()?, texts.next()?])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_of_std_are_found() {
        let poison = format!("use std::sync::{}{};\n", POISON.0, POISON.1);
        for (path, text, count) in [
            ("crates/a/src/b.rs", "use std::sync::Arc;\n", 0),
            ("crates/a/src/b.rs", "use std::sync::{Arc, Mutex};\n", 1),
            ("crates/a/src/b.rs", "use std::sync::{\n    Arc, Condvar, RwLock,\n};\n", 2),
            ("crates/a/src/b.rs", "fn f() -> std::sync::MutexGuard<'_, u8> {}\n", 0),
            ("crates/a/src/b.rs", "static A: std::sync::Mutex<u8> = b;\n", 1),
            ("crates/a/src/b.rs", "use cenote_rt::lock::{Mutex, Rank};\n", 0),
            ("crates/a/src/b.rs", "\n#[cfg(test)]\nmod tests {\n    use std::sync::Mutex;\n", 0),
            ("crates/a/tests/b.rs", "use std::sync::Mutex;\n", 0),
            ("crates/a/src/b.rs", poison.as_str(), 1),
            ("crates/cenote-rt/src/lock/mod.rs", poison.as_str(), 0),
            ("crates/cenote-codec/src/a.rs", "use std::sync::RwLock;\n", 0),
        ] {
            let findings = check(&Source { path: path.into(), text: text.into() });
            assert_eq!(findings.len(), count, "{text}: {findings:?}");
        }
    }

    #[test]
    fn ranks_without_locks_are_found() {
        let ranks = "        Sync = (\"sync\", \"a\", \"One at a time.\"),\n        \
                     Synced = (\"synced\", \"a\", \"The last txg.\"),\n";
        let file = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
        let sources = [file(RANKS, ranks), file("crates/a/src/b.rs", "new(Rank::Synced, 1)")];
        assert_eq!(check_ranks(&sources), [format!("{RANKS}: no lock has the rank Sync")]);
    }

    #[test]
    fn ranks_become_a_table() {
        let ranks = "ranks! {\n    tasks {\n        Sync = (\"sync\", \"a\", \"One at a time.\"),\n    }\n\n    \
                     threads {\n        State = (\"state\", \"b\", \"Its state.\"),\n    }\n}\n";
        let table = table(ranks);
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(rows.len(), 3, "{table}");
        assert_eq!(rows[0], "| 1 | sync | a | One at a time. |");
        assert!(rows[1].contains("of threads below"));
        assert_eq!(rows[2], "| 2 | state | b | Its state. |");
    }
}
