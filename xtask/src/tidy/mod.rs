//! Tidy: the project's rules that a machine can check and the compiler does not.
//!
//! | module     | rule |
//! |------------|------|
//! | `source`   | length of files and functions, columns, essays, `#[path]`, banned words, causes |
//! | `layers`   | crates use only those above them; the engine's dependency budget |
//! | `limits`   | structs have few fields, types few public methods |
//! | `docs`     | links in the documents resolve |
//! | `citations` | paths, names and ids of invariants in comments exist |
//! | `invariants` | invariants have ids and checks, and the document lists them |
//! | `locks`    | locks have ranks, and the document lists them |
//! | `decoders` | every decoder has a fuzz target, and every target its seeds |
//! | `features` | every verb, property and tunable has tests in docs/testing.md |
//! | `spec`     | citations of the format's description are well formed |
//! | `unused`   | every public item has a user |
//! | `words`    | how comments begin, and words that are no part of a name |
//!
//! Every rule has rows of tests beside it: what it finds, and what it lets pass.

mod citations;
mod decoders;
mod docs;
pub(crate) mod features;
pub(crate) mod invariants;
mod layers;
mod limits;
pub(crate) mod locks;
mod source;
pub(crate) mod spec;
mod unused;
mod words;

use std::path::Path;
use std::process::Command;

/// A file of the checkout, as tidy sees it.
#[derive(Debug, Clone)]
pub(crate) struct Source {
    /// Relative to the root.
    pub(crate) path: String,
    /// Its text.
    pub(crate) text: String,
}

impl Source {
    /// True if its name ends in `.kind`.
    pub(crate) fn is(&self, kind: &str) -> bool {
        Path::new(&self.path).extension().is_some_and(|extension| extension == kind)
    }
}

/// Every finding, as `path:line: what`.
pub(crate) fn run(root: &Path) -> Vec<String> {
    let sources = sources(root);
    let mut findings = Vec::new();
    for file in &sources {
        findings.extend(source::check(file));
        findings.extend(spec::check(file));
        findings.extend(words::check(file));
        findings.extend(docs::check(file, root));
        findings.extend(locks::check(file));
    }
    findings.extend(citations::check(&sources, &invariants::ids(&sources), root));
    findings.extend(layers::check(root));
    findings.extend(limits::check(&sources));
    findings.extend(unused::check(&sources));
    findings.extend(decoders::check(root));
    findings.extend(features::check(&sources, root));
    findings.extend(invariants::check(&sources));
    findings.extend(invariants::check_document(&sources, root));
    findings.extend(locks::check_ranks(&sources));
    findings.extend(locks::check_document(root));
    findings
}

/// All Rust, Markdown, TOML and shell files that git tracks or would add.
pub(crate) fn sources(root: &Path) -> Vec<Source> {
    let listing = ["ls-files", "--cached", "--others", "--exclude-standard"];
    let output = Command::new("git").arg("-C").arg(root).args(listing).output();
    let output = output.unwrap_or_else(|error| panic!("git ls-files: {error}"));
    let listing = String::from_utf8_lossy(&output.stdout).into_owned();
    let wanted = listing.lines().filter(|path| {
        let extension = Path::new(path).extension().unwrap_or_default();
        ["rs", "md", "toml", "sh"].iter().any(|kind| extension == *kind)
    });
    let read = |path: &str| {
        let text = std::fs::read_to_string(root.join(path)).ok()?;
        Some(Source { path: path.to_owned(), text })
    };
    wanted.filter_map(read).collect()
}
