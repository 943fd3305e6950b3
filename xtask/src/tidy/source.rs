//! Rules on one file's text.
//!
//! The scanner relies on rustfmt, which `./x check` runs first: a function starts at a line with
//! `fn` and ends at the next line that consists of its indentation and a brace.

use super::Source;

/// Lines of a Rust file, without its tests.
const FILE_LINES_MAX: usize = 1000;
/// Lines of a function; the aim is 70.
const FUNCTION_LINES_MAX: usize = 100;
/// Characters in a line.
const COLUMNS_MAX: usize = 100;

/// Words that must not be committed, and what to do instead. Spelled in two halves, so that this
/// file passes.
const BANNED: [(&str, &str, &str); 9] = [
    ("todo", "!(", "finish it"),
    ("unimplemented", "!(", "finish it, or return a typed refusal"),
    ("dbg", "!(", "remove it"),
    ("TO", "DO", "a limit goes to docs/status.md"),
    ("FIX", "ME", "a limit goes to docs/status.md"),
    ("#[ign", "ore", "skip loudly, through cenote_testkit::skip"),
    ("/wo", "rk/", "no paths of one machine"),
    ("<<<<", "<<< ", "both sides of a merge are there"),
    (">>>>", ">>> ", "both sides of a merge are there"),
];

/// Findings of all rules on one file.
pub(super) fn check(file: &Source) -> Vec<String> {
    let is_rust = file.is("rs");
    let mut findings = banned(file);
    if is_rust {
        findings.extend(module_paths(file));
    }
    if is_rust && !is_test(&file.path) {
        findings.extend(essay(file));
        findings.extend(causes(file));
        findings.extend(lengths(file));
        findings.extend(columns(file));
    }
    findings
}

/// Test files may have any length: rows of cases are data.
pub(super) fn is_test(path: &str) -> bool {
    path.ends_with("/tests.rs") || path.contains("/tests/") || path.ends_with("_tests.rs")
}

/// The lines before the unit tests at the end of a file.
fn without_tests(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let end = text.find("\n#[cfg(test)]\nmod tests {").unwrap_or(text.len());
    text[..end].lines().enumerate().map(|(index, line)| (index + 1, line))
}

fn banned(file: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    for (index, line) in file.text.lines().enumerate() {
        for (first, second, instead) in BANNED {
            let word = format!("{first}{second}");
            if line.contains(&word) {
                findings.push(format!("{}:{}: `{word}`: {instead}", file.path, index + 1));
            }
        }
    }
    findings
}

/// `#[path]` names only files of its own directory: code that several test targets need belongs in
/// a crate for tests.
fn module_paths(file: &Source) -> Vec<String> {
    let lines = file.text.lines().enumerate();
    let paths = lines.filter_map(|(index, line)| {
        let path = line.trim_start().strip_prefix("#[path = \"")?.split('"').next()?;
        Some((index + 1, path))
    });
    let others = paths.filter(|(_, path)| path.contains('/'));
    others
        .map(|(number, path)| {
            format!("{}:{number}: #[path] to another directory: {path}", file.path)
        })
        .collect()
}

/// The cause of an error is a type, which callers can match, and not a text. Not checked: programs
/// that only print their errors, and the runtime's refusals of calls that are bugs of the caller.
fn causes(file: &Source) -> Vec<String> {
    const EXEMPT: [&str; 4] =
        ["bench/", "xtask/", "crates/cenote-rt/src/task.rs", "crates/cenote-rt/src/simulation/"];
    if EXEMPT.iter().any(|start| file.path.starts_with(start)) {
        return Vec::new();
    }
    let code: Vec<_> = without_tests(&file.text).map(|(_, line)| line.trim()).collect();
    let mut findings = Vec::new();
    for (index, line) in code.iter().enumerate().filter(|(_, line)| !line.starts_with("//")) {
        let constructors = ["Error::new(", "Error::corrupt(", "Error::not_found("];
        let call = constructors.iter().find_map(|name| Some(line.split_once(name)?.1));
        let Some(first) = call else { continue };
        // The arguments may be on the next lines.
        let next = code[index + 1..].iter().take(2).copied();
        let arguments = [first].into_iter().chain(next).collect::<Vec<_>>().join(" ");
        let arguments = arguments.trim_start();
        let cause = match arguments.strip_prefix("Kind::") {
            Some(kind) => kind.split_once(',').map_or("", |(_, cause)| cause.trim_start()),
            None => arguments,
        };
        if ["\"", "format!("].iter().any(|text| cause.starts_with(text)) {
            findings.push(format!("{}:{}: a text as the cause of an error", file.path, index + 1));
        }
    }
    findings
}

fn essay(file: &Source) -> Option<String> {
    let mut lines = file.text.lines();
    let has_essay =
        lines.next().is_some_and(|line| line.starts_with("//!") || line == "#![no_main]");
    (!has_essay).then(|| format!("{}:1: no essay: start with `//!` and what this is", file.path))
}

fn columns(file: &Source) -> Vec<String> {
    let long = without_tests(&file.text)
        .filter(|(_, line)| line.chars().count() > COLUMNS_MAX && !is_row(line));
    long.map(|(number, line)| {
        format!("{}:{number}: {} columns, at most {COLUMNS_MAX}", file.path, line.chars().count())
    })
    .collect()
}

/// Rows of a table, and lines that are long because of a string: they cannot be broken.
fn is_row(line: &str) -> bool {
    let code = line.trim_start();
    !code.starts_with("//") && (code.contains('"') || code.starts_with(['(', '[']))
}

fn lengths(file: &Source) -> Vec<String> {
    let mut findings = Vec::new();
    let count = without_tests(&file.text).count();
    if count > FILE_LINES_MAX {
        findings.push(format!("{}:1: {count} lines, at most {FILE_LINES_MAX}", file.path));
    }
    for (number, name, lines) in functions(&file.text) {
        if lines > FUNCTION_LINES_MAX {
            findings.push(format!(
                "{}:{number}: fn {name} has {lines} lines, at most {FUNCTION_LINES_MAX}",
                file.path
            ));
        }
    }
    findings
}

/// Line, name and number of lines of every function outside of tests.
fn functions(text: &str) -> Vec<(usize, String, usize)> {
    let lines: Vec<_> = without_tests(text).collect();
    let mut found = Vec::new();
    for (index, (number, line)) in lines.iter().enumerate() {
        let Some((indentation, name)) = function_start(line) else { continue };
        let end = format!("{}}}", " ".repeat(indentation));
        let length = if line.ends_with('}') || line.ends_with(';') {
            1
        } else {
            // A declaration in a trait ends with its arguments.
            let last = format!("{})", " ".repeat(indentation));
            let is_end = |line: &str| line == end || line.starts_with(&last) && line.ends_with(';');
            let rest = lines[index..].iter().position(|(_, line)| is_end(line));
            rest.map_or(1, |distance| distance + 1)
        };
        found.push((*number, name.to_owned(), length));
    }
    found
}

/// Indentation and name, if a function starts in this line.
fn function_start(line: &str) -> Option<(usize, &str)> {
    let code = line.trim_start();
    let (before, after) = code.split_once("fn ")?;
    let is_qualifier = |word: &str| {
        word.starts_with("pub")
            || ["const", "async", "unsafe", "extern", "\"C\"", "in", "crate)", "super)"]
                .contains(&word)
    };
    if !before.split_whitespace().all(is_qualifier) {
        return None;
    }
    let name = after.split(['(', '<']).next()?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_alphanumeric() || c == '_');
    is_name.then_some((line.len() - code.len(), name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rust(text: &str) -> Source {
        Source { path: "crates/a/src/b.rs".into(), text: text.into() }
    }

    #[test]
    fn rows_that_pass_and_rows_that_do_not() {
        let word = |first: &str, second: &str| format!("//! a\nfn f() {{ {first}{second} }}\n");
        let long_line = format!("//! a\n// {}\n", "x".repeat(98));
        let fitting_line = format!("//! a\n// {}\n", "x".repeat(97));
        let function =
            |n: usize| format!("//! a\npub fn f() {{\n{}}}\n", "    g();\n".repeat(n - 2));
        let file = |n: usize| format!("//! a\n{}", "use a;\n".repeat(n - 1));
        let tested =
            |n: usize| format!("//! a\n\n#[cfg(test)]\nmod tests {{\n{}}}\n", "\n".repeat(n));
        for (text, want) in [
            ("//! a\nfn f() {}\n".to_owned(), None),
            ("fn f() {}\n".to_owned(), Some("no essay")),
            (word("todo", "!()"), Some("finish it")),
            (word("dbg", "!(1)"), Some("remove it")),
            (word("#[ign", "ore]"), Some("skip loudly")),
            (word("// TO", "DO later"), Some("docs/status.md")),
            (word("//\n<<<<", "<<< HEAD\n"), Some("both sides of a merge")),
            (long_line, Some("101 columns")),
            (fitting_line, None),
            (format!("//! a\n    (1, {}),\n", "2, ".repeat(50)), None),
            (format!("//! a\n    f(\"{}\");\n", "x".repeat(100)), None),
            (function(100), None),
            (function(101), Some("fn f has 101 lines")),
            (file(1000), None),
            (file(1001), Some("1001 lines")),
            (tested(2000), None),
            ("//! a\nfn f() { Error::new(Kind::Io, \"x\") }\n".to_owned(), Some("a text as")),
            ("//! a\nError::new(\n    Kind::Io,\n    \"x\",\n)\n".to_owned(), Some("a text as")),
            ("//! a\nError::corrupt(format!(\"x\"))\n".to_owned(), Some("a text as")),
            ("//! a\nError::new(Kind::Io, cause(\"x\"))\n".to_owned(), None),
            ("//! a\n// Error::corrupt(\"x\")\n".to_owned(), None),
            ("//! a\n#[path = \"b_tests.rs\"]\nmod tests;\n".to_owned(), None),
            ("//! a\n#[path = \"../b.rs\"]\nmod b;\n".to_owned(), Some("another directory")),
            ("//! a\n    #[path = \"c/b.rs\"]\nmod b;\n".to_owned(), Some("another directory")),
        ] {
            let findings = check(&rust(&text));
            match want {
                None => assert!(findings.is_empty(), "{findings:?}"),
                Some(part) => {
                    assert_eq!(findings.len(), 1, "{findings:?}");
                    assert!(findings[0].contains(part), "{findings:?}");
                }
            }
        }
    }

    #[test]
    fn functions_are_found_with_their_qualifiers() {
        for (line, want) in [
            ("fn a() {", Some((0, "a"))),
            ("    pub(crate) async fn b<T>(", Some((4, "b"))),
            ("pub(in crate::x) const unsafe fn c(", None),
            ("    pub const fn d(self) -> u8 {", Some((4, "d"))),
            ("let x: fn (u8) = y;", None),
            ("// a fn that", None),
        ] {
            assert_eq!(function_start(line), want, "{line}");
        }
    }

    #[test]
    fn test_files_may_be_long() {
        let text = format!("//! a\n{}", "use a;\n".repeat(3000));
        let file = Source { path: "crates/a/tests/golden.rs".into(), text };
        assert!(check(&file).is_empty());
    }
}
