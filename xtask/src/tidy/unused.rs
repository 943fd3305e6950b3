//! Public items have callers: a public name that occurs nowhere else in the checkout is removed.
//!
//! The compiler finds unused private items, but takes every public item of a library for used. This
//! check goes by names: an item counts as used where its name occurs outside of comments, of
//! definitions, and of `pub use`. So an unused item with a common name is not found, and no item in
//! use is reported.
//!
//! Left out are the facade `cenote`, whose callers are elsewhere, the crates for tests, and the
//! constants of `cenote-ondisk`, which describe the format whether or not the engine needs each.

use std::collections::HashSet;

use super::Source;

const ITEMS: [&str; 7] = ["fn ", "struct ", "enum ", "trait ", "type ", "const ", "static "];
const EXEMPT: [&str; 6] = [
    "crates/cenote/",
    "crates/cenote-fuzz-targets/",
    "crates/cenote-oracle/",
    "crates/cenote-poolkit/",
    "crates/cenote-sim/",
    "crates/cenote-testkit/",
];

/// Findings on all public items of the workspace.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let rust = || sources.iter().filter(|source| source.is("rs"));
    let used: HashSet<&str> = rust().flat_map(|source| used_names(&source.text)).collect();
    let mut findings = Vec::new();
    for source in rust().filter(|source| source.path.contains("/src/")) {
        if EXEMPT.iter().any(|exempt| source.path.starts_with(exempt)) {
            continue;
        }
        for (index, line) in source.text.lines().enumerate() {
            let Some((item, name)) = public_item(line) else { continue };
            let is_format = item == "const " && source.path.starts_with("crates/cenote-ondisk/");
            if !is_format && !used.contains(name) {
                findings.push(format!("{}:{}: nothing uses {name}", source.path, index + 1));
            }
        }
    }
    findings
}

/// Returns the kind and name of the item that a line makes public.
fn public_item(line: &str) -> Option<(&str, &str)> {
    item(line.trim_start().strip_prefix("pub ")?)
}

/// Returns the kind and name of the item that a text without visibility begins.
fn item(text: &str) -> Option<(&str, &str)> {
    let mut text = text;
    // Of a constant function, the word `const` is no item.
    while let Some(rest) = ["async ", "unsafe ", "const fn ", "const async ", "const unsafe "]
        .iter()
        .find_map(|word| text.strip_prefix(word).map(|_| &text[word.find(' ').unwrap_or(0) + 1..]))
    {
        text = rest;
    }
    let kind = ITEMS.into_iter().find(|kind| text.starts_with(kind))?;
    let name = names(&text[kind.len()..]).next()?;
    Some((kind, name))
}

/// Returns the names of a file's code, without those that its definitions and `pub use` begin.
fn used_names(text: &str) -> Vec<&str> {
    let mut used = Vec::new();
    let mut is_in_export = false;
    for line in text.lines() {
        let code = line.split("//").next().unwrap_or_default();
        is_in_export |= code.trim_start().starts_with("pub use ");
        if !is_in_export {
            let defined = item(without_visibility(code.trim_start())).map(|(_, name)| name);
            // A definition may use its own name as well: only its first occurrence is left out.
            let mut is_left_out = false;
            used.extend(names(code).filter(|name| {
                let is_first = !is_left_out && Some(*name) == defined;
                is_left_out |= is_first;
                !is_first
            }));
        }
        is_in_export &= !code.contains(';');
    }
    used
}

fn without_visibility(text: &str) -> &str {
    let Some(rest) = text.strip_prefix("pub") else { return text };
    match rest.strip_prefix('(') {
        Some(scope) => scope.split_once(") ").map_or(text, |(_, rest)| rest),
        None => rest.trim_start(),
    }
}

/// Returns the identifiers of a text.
fn names(text: &str) -> impl Iterator<Item = &str> {
    text.split(|character: char| !character.is_alphanumeric() && character != '_')
        .filter(|word| word.starts_with(|first: char| first.is_alphabetic() || first == '_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> usize {
        let caller = "// lonely\nfn other() { used(); }\npub use a::lonely;\n";
        let sources = [(path, text), ("crates/b/src/lib.rs", caller)];
        check(&sources.map(|(path, text)| Source { path: path.into(), text: text.into() })).len()
    }

    #[test]
    fn unused_public_items_are_found() {
        for (text, count) in [
            ("pub fn used() {}", 0),
            ("pub fn lonely() {}", 1),
            ("    pub const fn lonely() {}", 1),
            ("pub async unsafe fn lonely<T>() {}", 1),
            ("pub(crate) fn lonely() {}", 0),
            ("pub struct Lonely;", 1),
            ("pub const LONELY: u8 = 1;", 1),
            ("pub fn lonely() {}\nfn x() { lonely() }", 0),
            ("pub fn lonely() { lonely() }", 0),
        ] {
            assert_eq!(findings("crates/a/src/lib.rs", text), count, "{text}");
        }
        assert_eq!(findings("crates/cenote-ondisk/src/a.rs", "pub const LONELY: u8 = 1;"), 0);
        assert_eq!(findings("crates/cenote/src/a.rs", "pub fn lonely() {}"), 0);
        assert_eq!(findings("crates/a/tests/a.rs", "pub fn lonely() {}"), 0);
    }
}
