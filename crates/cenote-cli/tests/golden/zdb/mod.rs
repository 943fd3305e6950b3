//! Runs cenote's `zdb` in this process and the real one, and filters their texts before they are
//! compared line by line. Every rule is in `docs/zdb.md` with its reason.

use std::path::Path;

/// A rule of the filter: a pattern, its replacement, and a condition.
///
/// In patterns `9` matches a digit, `_` a digit or blank, `A` a letter, every other character
/// itself.
pub(crate) struct Rule {
    /// The pattern to find.
    pub(crate) pattern: &'static str,
    /// The replacement.
    pub(crate) replacement: &'static str,
    /// Applies only if the local time zone is not UTC, in which the real zdb runs.
    pub(crate) is_zoned: bool,
}

/// The filter.
pub(crate) const RULES: &[Rule] = &[
    Rule { pattern: "AAA AAA _9 99:99:99 9999", replacement: "<time>", is_zoned: true },
    Rule { pattern: "9999-99-99.99:99:99", replacement: "<time>", is_zoned: true },
    Rule { pattern: "9 UTC = <time>", replacement: "9 <zone> = <time>", is_zoned: true },
];

/// Replacement of the folder with the devices, whose name varies.
const DEVICES: &str = "<devices>";

fn matches(pattern: u8, byte: u8) -> bool {
    match pattern {
        b'9' => byte.is_ascii_digit(),
        b'_' => byte.is_ascii_digit() || byte == b' ',
        b'A' => byte.is_ascii_alphabetic(),
        other => other == byte,
    }
}

fn replace(line: &str, rule: &Rule) -> String {
    let pattern = rule.pattern.as_bytes();
    let mut rest = line;
    let mut done = String::new();
    while let Some(start) = (0..rest.len()).find(|start| {
        let window = rest.as_bytes().get(*start..start + pattern.len());
        window.is_some_and(|window| window.iter().zip(pattern).all(|(b, p)| matches(*p, *b)))
    }) {
        done.push_str(&rest[..start]);
        done.push_str(rule.replacement);
        rest = &rest[start + pattern.len()..];
    }
    done + rest
}

fn is_utc() -> bool {
    let local = jiff::Timestamp::UNIX_EPOCH.to_zoned(jiff::tz::TimeZone::system());
    local.strftime("%Z").to_string() == "UTC"
}

/// Applies the filter to a text.
pub(crate) fn filter(text: &str, devices: &Path) -> String {
    let mut text = text.replace(&*devices.to_string_lossy(), DEVICES);
    if !is_utc() {
        for rule in RULES.iter().filter(|rule| rule.is_zoned) {
            let lines: Vec<String> = text.split('\n').map(|line| replace(line, rule)).collect();
            text = lines.join("\n");
        }
    }
    text
}

/// Runs cenote's `zdb` in this process: standard output, standard error, status.
pub(crate) fn cenote(args: &[&str]) -> (String, String, i32) {
    cenote_cli::run_captured(&[&["zdb"], args].concat())
}
