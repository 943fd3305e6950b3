//! Citations of the format's description: `spec 05 §2.1`.
//!
//! Chapters 01 to 09 exist; a citation without its section helps nobody. The index lists, for
//! each cited section, the files that cite it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Source;

const CHAPTERS: std::ops::RangeInclusive<u32> = 1..=9;

/// Findings on the citations of one Rust file.
pub(super) fn check(file: &Source) -> Vec<String> {
    if !file.is("rs") || file.path.starts_with("xtask/") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for (chapter, _) in citations(line) {
            if !CHAPTERS.contains(&chapter) {
                findings.push(format!("{}:{}: no spec {chapter:02}", file.path, index + 1));
            }
        }
    }
    findings
}

/// For each section, the files that cite it, one section a line.
pub(crate) fn index(sources: &[Source]) -> String {
    let mut sections: BTreeMap<(u32, Vec<u32>), BTreeSet<&str>> = BTreeMap::new();
    for file in sources.iter().filter(|file| file.is("rs")) {
        for (chapter, section) in file.text.lines().flat_map(citations) {
            let parts = section.split('.').map(|part| part.parse().unwrap_or(0)).collect();
            sections.entry((chapter, parts)).or_default().insert(&file.path);
        }
    }
    let mut out = String::new();
    for ((chapter, parts), files) in sections {
        let parts: Vec<_> = parts.iter().map(u32::to_string).collect();
        let files: Vec<_> = files.into_iter().collect();
        let _ = writeln!(out, "spec {chapter:02} §{}: {}", parts.join("."), files.join(" "));
    }
    out
}

/// Chapter and section of every citation in a line. `§2.1, §3` after one chapter are two.
fn citations(line: &str) -> Vec<(u32, &str)> {
    let mut found = Vec::new();
    for after in line.split("spec ").skip(1) {
        let digits = after.get(..2).and_then(|digits| digits.parse().ok());
        let Some(chapter) = digits else { continue };
        for part in after[2..].split('§').skip(1) {
            let end = part.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(part.len());
            let section = part[..end].trim_end_matches('.');
            if !section.is_empty() {
                found.push((chapter, section));
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_are_found() {
        for (line, want) in [
            ("(spec 05 §2.1)", vec![(5, "2.1")]),
            ("spec 01 §14, §16.", vec![(1, "14"), (1, "16")]),
            ("spec 06 §3 and spec 08 §1.2.3.", vec![(6, "3"), (8, "1.2.3")]),
            ("inspect 05 pieces", vec![]),
            ("the spec says", vec![]),
        ] {
            assert_eq!(citations(line), want, "{line}");
        }
    }

    #[test]
    fn unknown_chapters_are_findings() {
        for (text, count) in [("// spec 05 §1", 0), ("// spec 10 §1", 1)] {
            let file = Source { path: "crates/a/src/b.rs".into(), text: text.into() };
            assert_eq!(check(&file).len(), count, "{text}");
        }
    }
}
