//! Sizes of types: at most 15 fields in a struct, and 40 public methods over all `impl` blocks.
//!
//! A type beyond that does several things and is divided into parts that own their fields. The
//! few that may be larger stand in [`FIELDS`] and [`METHODS`] with their size and a reason; an
//! entry that is larger than its type is a finding, too, so that the lists only shrink.
//!
//! Types are found by their indentation, which `cargo fmt` guarantees. Tests are left out.

use std::collections::BTreeMap;

use super::Source;

/// Fields of a struct.
const FIELDS_MAX: usize = 15;
/// Public methods of a type.
const METHODS_MAX: usize = 40;

/// A type that may be larger: its crate and name, its size, and why.
type Exception = (&'static str, &'static str, usize, &'static str);

const ON_DISK: &str = "one field for each field on disk";
const FIGURES: &str = "plain figures for display, without behaviour";
const WHOLE: &str = "not divided yet";

/// Structs with more fields.
const FIELDS: [Exception; 14] = [
    ("cenote-ondisk", "DatasetPhys", 21, ON_DISK),
    ("cenote-ondisk", "DirPhys", 16, ON_DISK),
    ("cenote-ondisk", "DnodePhys", 16, ON_DISK),
    ("cenote-ondisk", "FileAttributes", 21, ON_DISK),
    ("cenote-ondisk", "LeafConfig", 20, ON_DISK),
    ("cenote-ondisk", "ScanPhys", 18, ON_DISK),
    ("cenote-bin", "PoolFigures", 16, FIGURES),
    ("cenote-fs", "Attributes", 18, FIGURES),
    ("cenote-pool", "PoolStatus", 16, FIGURES),
    ("cenote-pool", "VdevReport", 22, FIGURES),
    ("cenote-block", "BlockStore", 16, WHOLE),
    ("cenote-block", "Metaslab", 34, WHOLE),
    ("cenote-block", "State", 22, WHOLE),
    ("cenote-pool", "Pool", 20, WHOLE),
];

/// Types with more public methods.
const METHODS: [Exception; 5] = [
    ("cenote-ondisk", "BlockPtr", 52, "one method for each bit field on disk"),
    ("cenote-block", "SpaceAllocator", 46, WHOLE),
    ("cenote-fs", "Mount", 55, WHOLE),
    ("cenote-pool", "Pool", 46, WHOLE),
    ("cenote-vdev", "Tree", 67, WHOLE),
];

/// Sizes by crate and type.
type Sizes = BTreeMap<(String, String), usize>;

/// Findings on all types of the workspace.
pub(super) fn check(sources: &[Source]) -> Vec<String> {
    let (fields, methods) = measure(sources);
    let mut findings = judge(&fields, "fields", FIELDS_MAX, &FIELDS);
    findings.extend(judge(&methods, "public methods", METHODS_MAX, &METHODS));
    findings
}

/// Counts the fields of structs and the public methods of types.
fn measure(sources: &[Source]) -> (Sizes, Sizes) {
    let (mut fields, mut methods) = (Sizes::new(), Sizes::new());
    for source in sources {
        let Some(owner) = crate_of(&source.path) else { continue };
        let mut item: Option<(Item, usize)> = None;
        let mut count = 0;
        for line in source.text.lines() {
            let indent = line.len() - line.trim_start().len();
            let text = line.trim_start();
            let Some((kind, open)) = &item else {
                (item, count) = (opened(text).map(|item| (item, indent)), 0);
                continue;
            };
            if text.starts_with('}') && indent <= *open {
                match kind {
                    // A crate may have several structs of that name: the largest counts.
                    Item::Struct(name) => {
                        let size = fields.entry((owner.to_owned(), name.clone())).or_default();
                        *size = count.max(*size);
                    }
                    Item::Impl(name) => {
                        *methods.entry((owner.to_owned(), name.clone())).or_default() += count;
                    }
                }
                item = None;
            } else if indent == open + 4 {
                let counts = match kind {
                    Item::Struct(_) => is_field(text),
                    Item::Impl(_) => is_public_method(text),
                };
                count += usize::from(counts);
            }
        }
    }
    (fields, methods)
}

/// Findings on sizes, by a limit and its exceptions.
fn judge(sizes: &Sizes, what: &str, max: usize, exceptions: &[Exception]) -> Vec<String> {
    let mut findings = Vec::new();
    for ((owner, name), size) in sizes {
        let exception = exceptions.iter().find(|(of, listed, ..)| of == owner && listed == name);
        let allowed = exception.map_or(max, |(_, _, allowed, _)| *allowed);
        if *size > allowed {
            findings.push(format!("{owner}: {name} has {size} {what}, at most {allowed}"));
        }
    }
    for (owner, name, allowed, _) in exceptions {
        let size = sizes.get(&((*owner).to_owned(), (*name).to_owned())).copied().unwrap_or(0);
        if size < *allowed {
            findings.push(format!(
                "xtask: {owner}: {name} has {size} {what}: lower or remove its exception"
            ));
        }
    }
    findings
}

/// A block of code whose lines are counted.
#[derive(Debug, PartialEq, Eq)]
enum Item {
    Struct(String),
    Impl(String),
}

/// The crate that a file's code belongs to; none for tests, examples and benchmarks.
fn crate_of(path: &str) -> Option<&str> {
    let (owner, file) = path.strip_prefix("crates/")?.split_once("/src/")?;
    let is_code = std::path::Path::new(file).extension().is_some_and(|kind| kind == "rs");
    (is_code && !file.ends_with("tests.rs") && !file.contains("tests/")).then_some(owner)
}

/// The struct or `impl` that a line opens.
fn opened(text: &str) -> Option<Item> {
    if let Some(rest) = text.strip_prefix("impl") {
        if text.ends_with('}') || !rest.starts_with(['<', ' ']) {
            return None;
        }
        let rest = if rest.starts_with('<') { skip_generics(rest)? } else { rest };
        if rest.contains(" for ") {
            return None;
        }
        return Some(Item::Impl(identifier(rest.trim_start())));
    }
    let name = without_visibility(text).strip_prefix("struct ")?;
    text.ends_with('{').then(|| Item::Struct(identifier(name)))
}

/// What follows the generics that a text begins with.
fn skip_generics(text: &str) -> Option<&str> {
    let mut depth = 0_usize;
    let mut last = ' ';
    for (index, character) in text.char_indices() {
        match character {
            '<' => depth += 1,
            '>' if last != '-' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return text.get(index + 1..);
        }
        last = character;
    }
    None
}

fn identifier(text: &str) -> String {
    text.chars().take_while(|character| character.is_alphanumeric() || *character == '_').collect()
}

/// An item or field without `pub` or `pub(scope)`.
fn without_visibility(text: &str) -> &str {
    match text.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(") ").map_or(text, |(_, rest)| rest),
        Some(rest) if rest.starts_with(' ') => rest.trim_start(),
        _ => text,
    }
}

/// `name: Type`, with or without a visibility.
fn is_field(text: &str) -> bool {
    let text = without_visibility(text);
    let name = identifier(text);
    !name.is_empty() && text[name.len()..].starts_with(": ")
}

/// A method that other crates see.
fn is_public_method(text: &str) -> bool {
    let Some(mut text) = text.strip_prefix("pub ") else { return false };
    for word in ["const ", "async ", "unsafe "] {
        text = text.strip_prefix(word).unwrap_or(text);
    }
    text.starts_with("fn ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(text: &str) -> Source {
        Source { path: "crates/c/src/lib.rs".into(), text: text.into() }
    }

    #[test]
    fn fields_and_public_methods_are_counted() {
        let text = "pub(crate) struct A<T: Fn() -> u8> {\n    /// x: y\n    pub a: u8,\n    b: T,\n}\n\
                    impl<T: Fn() -> u8> A<T> {\n    pub fn a() {\n        x: u8;\n    }\n    \
                    pub const fn b() {}\n    fn c() {}\n    pub(crate) fn d() {}\n}\n\
                    impl Clone for A {\n    pub fn e() {}\n}\nimpl A<'_> {\n    pub async fn f() {}\n}\n";
        let (fields, methods) = measure(&[source(text)]);
        let a = ("c".to_owned(), "A".to_owned());
        assert_eq!((fields.get(&a), methods.get(&a)), (Some(&2), Some(&3)));
    }

    #[test]
    fn large_types_and_stale_exceptions_are_found() {
        let sizes = Sizes::from([(("c".into(), "A".into()), 4), (("c".into(), "B".into()), 3)]);
        let none = judge(&sizes, "fields", 4, &[]);
        assert!(none.is_empty(), "{none:?}");
        assert_eq!(judge(&sizes, "fields", 3, &[]).len(), 1);
        assert!(judge(&sizes, "fields", 3, &[("c", "A", 4, "why")]).is_empty());
        assert_eq!(judge(&sizes, "fields", 4, &[("c", "A", 5, "why")]).len(), 1);
    }
}
