//! What a comment or a document cites exists: a path in the checkout, `Type::function` in the
//! code, the id of an invariant.
//!
//! A path is a word that begins with a folder of the checkout, such as `docs/`; words with
//! placeholders (`NAME`, `*`, `<`, `{`, `$`) are none. Code blocks of documents are not searched.

use std::collections::BTreeSet;
use std::path::Path;

use super::Source;
use super::invariants::is_id;

/// Folders of the checkout.
const FOLDERS: [&str; 9] = [
    "bench/",
    "conformance/",
    "crates/",
    "demo/",
    "docs/",
    "fixtures/",
    "fuzz/",
    "packaging/",
    "xtask/",
];

/// Folders of a crate, whose files name them without the crate.
const OF_CRATE: [&str; 2] = ["src/", "tests/"];

/// Findings on all comments and documents.
pub(super) fn check(sources: &[Source], ids: &BTreeSet<String>, root: &Path) -> Vec<String> {
    let code: BTreeSet<&str> = sources
        .iter()
        .filter(|file| file.is("rs"))
        .flat_map(|file| file.text.lines())
        .flat_map(|line| words(&line[..line.len() - comment(line).len()]))
        .collect();
    let mut findings = Vec::new();
    for file in sources {
        let is_rust = file.is("rs");
        for (number, text) in prose(file) {
            let place = format!("{}:{number}", file.path);
            let package = file.path.match_indices('/').nth(1).map(|(end, _)| &file.path[..end]);
            let own = package.filter(|_| is_rust && file.path.starts_with("crates/"));
            let in_package = own.into_iter().flat_map(|own| {
                paths(text, &OF_CRATE).filter(move |path| !root.join(own).join(path).exists())
            });
            let missing = paths(text, &FOLDERS).filter(|path| !root.join(path).exists());
            let missing = missing.chain(in_package);
            findings.extend(missing.map(|path| format!("{place}: {path} does not exist")));
            if !is_rust {
                continue;
            }
            let names = text.split('`').skip(1).step_by(2).filter(|name| is_name(name));
            for name in names {
                if words(name).any(|word| !code.contains(word)) {
                    findings.push(format!("{place}: {name} does not exist"));
                }
            }
            let unknown = cited_ids(text).filter(|id| !ids.contains(*id));
            findings.extend(unknown.map(|id| format!("{place}: no essay defines {id}")));
        }
    }
    findings
}

/// The comment of a line, from its slashes on.
fn comment(line: &str) -> &str {
    let is_start = |at: &usize| {
        let before = &line[..*at];
        before.trim().is_empty()
            || before.ends_with(' ') && before.matches('"').count().is_multiple_of(2)
    };
    let start = line.match_indices("//").map(|(at, _)| at).find(is_start);
    &line[start.unwrap_or(line.len())..]
}

/// Numbers and texts of the lines that people read: comments, and documents without their code.
fn prose(file: &Source) -> impl Iterator<Item = (usize, &str)> {
    let (is_rust, is_document) = (file.is("rs"), file.is("md"));
    let mut in_code = false;
    let lines = file.text.lines().enumerate().filter(move |_| is_rust || is_document);
    lines.filter_map(move |(index, line)| {
        if is_rust {
            return Some((index + 1, comment(line)));
        }
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        (!in_code && !is_fence).then_some((index + 1, line))
    })
}

/// Identifiers.
fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_other = |c: char| !c.is_alphanumeric() && c != '_';
    text.split(is_other).filter(|word| !word.is_empty())
}

/// Whether the text between backquotes is a path of Rust: `Type::function`.
fn is_name(text: &str) -> bool {
    let text = text.strip_suffix("()").unwrap_or(text);
    let is_word = |word: &str| {
        word.starts_with(|c: char| c.is_alphabetic() || c == '_')
            && word.chars().all(|c| c.is_alphanumeric() || c == '_')
    };
    text.contains("::") && text.split("::").all(is_word)
}

/// Paths that begin with one of the folders.
fn paths<'t>(text: &'t str, folders: &'static [&'static str]) -> impl Iterator<Item = &'t str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "/._-".contains(c);
    let starts = folders.iter().flat_map(|folder| text.match_indices(folder));
    starts.filter_map(move |(at, _)| {
        let before = text[..at].chars().next_back();
        let end = text[at..].find(|c: char| !is_part(c)).map_or(text.len(), |len| at + len);
        let after = text[end..].chars().next();
        let path = text[at..end].trim_end_matches(['.', '/']);
        let is_placeholder = path.contains("NAME") || after.is_some_and(|c| "*<{$".contains(c));
        let is_whole = before.is_none_or(|c| !is_part(c) && c != '~' && c != '$');
        (is_whole && !is_placeholder).then_some(path)
    })
}

/// Ids of invariants, in parentheses: (M1), (M1, M2).
fn cited_ids(text: &str) -> impl Iterator<Item = &str> {
    let groups = text.split('(').skip(1).filter_map(|rest| rest.split_once(')'));
    groups.flat_map(|(group, _)| {
        let all: Vec<&str> = group.split(", ").collect();
        if all.iter().all(|id| is_id(id)) { all } else { Vec::new() }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn citations_that_exist_and_citations_that_do_not() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("in the checkout");
        let ids = BTreeSet::from(["M1".to_owned()]);
        for (path, text, count) in [
            ("crates/a/src/b.rs", "//! see docs/architecture.md, `docs/testing.md`.\n", 0),
            ("crates/a/src/b.rs", "//! see docs/gone.md.\n", 1),
            ("crates/cenote-rt/src/b.rs", "// src/lib.rs and tests/gone.rs\n", 1),
            ("crates/a/src/b.rs", "let x = \"docs/gone.md\"; // docs/gone.md\n", 1),
            ("crates/a/src/b.rs", "// fuzz/seeds/NAME, crates/*/src, usr/share/docs/a\n", 0),
            ("docs/c.md", "in `crates/gone/src`\n```\ncrates/gone\n```\n", 1),
            ("crates/a/src/b.rs", "struct A; fn f() {} // `A::f`, `A::g()`, `x::<T>`\n", 1),
            ("crates/a/src/b.rs", "// holds (M1), not (M2), (M1, M3), (spec 07 A1), (x)\n", 2),
        ] {
            let file = Source { path: path.into(), text: text.into() };
            assert_eq!(check(&[file], &ids, root).len(), count, "{text}");
        }
    }
}
