//! Links in documents resolve: `[text](path)` names a file or folder that exists, and a link
//! whose text is a function, as in `` [`Type::function`](path.rs) ``, a file that defines it.
//!
//! Links to elsewhere are not followed: a test must not need the net.

use std::path::{Component, Path, PathBuf};

use super::Source;

/// Findings on the links of one Markdown file.
pub(super) fn check(file: &Source, root: &Path) -> Vec<String> {
    if !file.is("md") {
        return Vec::new();
    }
    let folder = Path::new(&file.path).parent().unwrap_or(Path::new(""));
    let mut findings = Vec::new();
    for (line, text, target) in links(&file.text) {
        let path = target.split('#').next().unwrap_or_default();
        if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
            continue;
        }
        let path = root.join(plain(&folder.join(path)));
        if !path.exists() {
            findings.push(format!("{}:{line}: {target} does not exist", file.path));
            continue;
        }
        let Some(function) = function_of(text) else { continue };
        let source = std::fs::read_to_string(&path).unwrap_or_default();
        let defines = |end| source.contains(&format!("fn {function}{end}"));
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        if is_rust && !defines('(') && !defines('<') {
            findings.push(format!("{}:{line}: {target} defines no function {function}", file.path));
        }
    }
    findings
}

/// Returns the function that the text of a link names: `` `Type::function` ``.
fn function_of(text: &str) -> Option<&str> {
    let (of, function) = text.strip_prefix('`')?.strip_suffix('`')?.rsplit_once("::")?;
    let is_function = function.starts_with(|first: char| first.is_ascii_lowercase());
    (is_function && of.starts_with(|first: char| first.is_ascii_uppercase())).then_some(function)
}

/// Line, text and target of every inline link outside of code blocks.
fn links(text: &str) -> Vec<(usize, &str, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let mut rest = if in_code { "" } else { line };
        while let Some((before, after)) = rest.split_once("](") {
            let text = before.rsplit('[').next().unwrap_or_default();
            let end = after.find(')').unwrap_or(after.len());
            found.push((index + 1, text, &after[..end]));
            rest = &after[end..];
        }
    }
    found
}

/// The path without `.` and `..`.
fn plain(path: &Path) -> PathBuf {
    let mut plain = PathBuf::new();
    for part in path.components() {
        match part {
            Component::ParentDir => drop(plain.pop()),
            Component::CurDir => {}
            other => plain.push(other),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_that_resolve_and_links_that_do_not() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        for (text, count) in [
            ("see [a](Cargo.toml) and [b](src/main.rs#l1)", 0),
            ("see [a](missing.md)", 1),
            ("see [a](../Cargo.toml)", 0),
            ("see [a](https://example.org/x)", 0),
            ("see [a](#here)", 0),
            ("```\n[a](missing.md)\n```\n[b](gone.md)", 1),
            ("[`Tidy::run`](src/tidy/mod.rs), [`Tidy::gone`](src/tidy/mod.rs)", 1),
            ("[`Source`](src/tidy/mod.rs), [`docs::Gone`](src/tidy/mod.rs)", 0),
        ] {
            let file = Source { path: "docs.md".into(), text: text.into() };
            // Relative to xtask: `..` stays inside the checkout.
            assert_eq!(check(&file, root).len(), count, "{text}");
        }
    }
}
