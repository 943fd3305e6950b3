//! Links in documents resolve: `[text](path)` names a file or folder that exists.
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
    for (line, target) in links(&file.text) {
        let path = target.split('#').next().unwrap_or_default();
        if path.is_empty() || path.contains("://") || path.starts_with("mailto:") {
            continue;
        }
        if !root.join(plain(&folder.join(path))).exists() {
            findings.push(format!("{}:{line}: {target} does not exist", file.path));
        }
    }
    findings
}

/// Line and target of every inline link outside of code blocks.
fn links(text: &str) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_code = false;
    for (index, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        }
        let mut rest = if in_code { "" } else { line };
        while let Some((_, after)) = rest.split_once("](") {
            let end = after.find(')').unwrap_or(after.len());
            found.push((index + 1, &after[..end]));
            rest = &after[end..];
        }
    }
    found
}

/// Without `.` and `..`.
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
        ] {
            let file = Source { path: "docs.md".into(), text: text.into() };
            // Relative to xtask: `..` stays inside the checkout.
            assert_eq!(check(&file, root).len(), count, "{text}");
        }
    }
}
