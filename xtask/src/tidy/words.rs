//! Plain words: how comments begin, and words that say nothing in a name.
//!
//! A comment that begins with a pronoun ("Those that ...", "Whoever ...") has to be read twice to
//! find its subject. Names made of such words have to be looked up. Both rules cover all Rust
//! files.

use super::Source;

/// Beginnings of comments that do not name their subject.
const OPENERS: [&str; 10] = [
    "What is ",
    "What was ",
    "What whoever ",
    "Who ",
    "Whoever ",
    "Those ",
    "As there",
    "The same",
    "Somebody",
    "Nobody",
];

/// "It is" begins a comment about something that the comment should name.
const IT_IS: &str = "It is ";

/// Words that are no part of a name, and the kind of word to use instead.
const WORDS: [(&str, &str); 12] = [
    ("deed", "an event"),
    ("deeds", "events"),
    ("aside", "the state of what was put away, such as `unmounted`"),
    ("brief", "what it holds, such as `CachedInode`"),
    ("briefs", "what it holds, such as `CachedInode`"),
    ("hope", "the condition"),
    ("hopes", "the condition"),
    ("attend", "`handle`"),
    ("patience", "`timeout`, or a limit"),
    ("patiently", "`retry`, or a limit"),
    ("turn", "`generation`, or what is rotated"),
    ("turns", "`generations`, or what is rotated"),
];

/// Findings in one file.
pub(super) fn check(file: &Source) -> Vec<String> {
    if !file.is("rs") {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut before = "";
    for (index, line) in file.text.lines().enumerate() {
        let place = || format!("{}:{}", file.path, index + 1);
        if begins_paragraph(before)
            && let Some(text) = comment(line)
            && let Some(opener) = opener_of(text)
        {
            findings.push(format!("{}: comment begins with `{opener}`: name the thing", place()));
        }
        for (word, instead) in banned_words(line) {
            findings.push(format!("{}: `{word}` in a name: use {instead}", place()));
        }
        before = line;
    }
    findings
}

/// The text of a line that is nothing but a comment.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.strip_prefix(['/', '!']).unwrap_or(text).trim())
}

/// Whether a comment in the next line begins a paragraph: the line before is code, an empty
/// comment, or a heading.
fn begins_paragraph(before: &str) -> bool {
    comment(before).is_none_or(|text| text.is_empty() || text.starts_with('#'))
}

fn opener_of(text: &str) -> Option<&'static str> {
    OPENERS.into_iter().chain([IT_IS]).find(|opener| text.starts_with(opener))
}

/// The words of names in the code of a line that are banned.
fn banned_words(line: &str) -> Vec<(&'static str, &'static str)> {
    if comment(line).is_some() {
        return Vec::new();
    }
    let mut found = Vec::new();
    // Text in quotes is no name; a quote that is a character or a lifetime costs nothing.
    for code in line.replace("\\\"", "").split('"').step_by(2) {
        let code = code.split("//").next().unwrap_or_default();
        for name in code.split(|c: char| !c.is_alphanumeric() && c != '_') {
            let is_banned = |(word, _): &(&str, &str)| words_of(name).any(|part| part == *word);
            found.extend(WORDS.into_iter().filter(is_banned));
        }
    }
    found
}

/// The words of a name in snake case or camel case, in lower case.
fn words_of(name: &str) -> impl Iterator<Item = String> {
    let mut words = Vec::new();
    for part in name.split('_') {
        let mut word = String::new();
        for c in part.chars() {
            if c.is_uppercase() && word.chars().last().is_some_and(char::is_lowercase) {
                words.push(std::mem::take(&mut word).to_lowercase());
            }
            word.push(c);
        }
        words.push(word.to_lowercase());
    }
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&Source { path: path.into(), text: text.into() })
    }

    #[test]
    fn comment_openers_and_banned_words() {
        for (text, want) in [
            ("/// Those of a leaf.\nfn f() {}\n", Some("begins with `Those `")),
            ("//! Whoever reads it.\n", Some("begins with `Whoever `")),
            ("    // It is done.\n", Some("begins with `It is `")),
            ("/// Reads.\n///\n/// # Errors\n/// As there.\n", Some("begins with `As there`")),
            ("/// Returns the names, and\n/// Those lines are one sentence.\n", None),
            ("/// Returns the whole.\n", None),
            ("let patience = 3;\n", Some("`patience` in a name")),
            ("struct TrimTurn;\n", Some("`turn` in a name")),
            ("fn spend_patience() {}\n", Some("`patience` in a name")),
            ("let returned = turnover(); // in turn\n", None),
            ("error(\"no patience\");\n", None),
        ] {
            let found = findings("crates/cenote-vdev/src/leaf.rs", text);
            match want {
                None => assert!(found.is_empty(), "{text}: {found:?}"),
                Some(part) => {
                    assert!(found.len() == 1 && found[0].contains(part), "{text}: {found:?}");
                }
            }
        }
    }
}
