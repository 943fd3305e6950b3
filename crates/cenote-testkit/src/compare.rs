//! Comparisons with the output of OpenZFS, whose failures show the first differences and not two
//! megabytes of text.

use std::collections::BTreeMap;
use std::fmt::{Debug, Write};

use crate::manifest::Entry;

/// At most so many differences are shown.
const SHOWN: usize = 20;

/// Panics unless the two texts are equal line by line; shows the lines that differ.
pub fn assert_text(what: &str, ours: &str, wanted: &str) {
    if let Some(report) = text_difference(ours, wanted) {
        panic!("{what}:\n{report}");
    }
}

/// The lines that are in only one of two texts, in order, with their numbers; none if the texts are
/// equal.
pub fn text_difference(ours: &str, wanted: &str) -> Option<String> {
    if ours == wanted {
        return None;
    }
    let (ours, wanted): (Vec<_>, Vec<_>) = (ours.lines().collect(), wanted.lines().collect());
    let mut report = String::new();
    let (mut left, mut right, mut shown) = (0, 0, 0);
    while (left < ours.len() || right < wanted.len()) && shown < SHOWN {
        if ours.get(left) == wanted.get(right) {
            (left, right) = (left + 1, right + 1);
            continue;
        }
        let (skip_left, skip_right) = resynchronize(&ours[left..], &wanted[right..]);
        for line in &ours[left..left + skip_left] {
            let _ = writeln!(report, "  ours   {:>5}: {line}", left + 1);
            left += 1;
        }
        for line in &wanted[right..right + skip_right] {
            let _ = writeln!(report, "  wanted {:>5}: {line}", right + 1);
            right += 1;
        }
        shown += skip_left + skip_right;
    }
    if shown == 0 {
        report.push_str("  they differ in the last line's end only\n");
    }
    let _ = writeln!(report, "  ({} lines, {} wanted)", ours.len(), wanted.len());
    Some(report)
}

/// How many lines to leave out on each side until the two texts agree again: the fewest in total.
fn resynchronize(ours: &[&str], wanted: &[&str]) -> (usize, usize) {
    for sum in 1..200 {
        for left in 0..=sum {
            let right = sum - left;
            if left > ours.len() || right > wanted.len() {
                continue;
            }
            match (ours.get(left), wanted.get(right)) {
                (Some(a), Some(b)) if a == b => return (left, right),
                (None, None) => return (left, right),
                _ => {}
            }
        }
    }
    (ours.len(), wanted.len())
}

/// Panics unless the two lists of entries are equal, in any order; shows entries by path.
pub fn assert_entries(what: &str, ours: &[Entry], wanted: &[Entry]) {
    let differences = entry_differences(ours, wanted);
    if !differences.is_empty() {
        let shown = differences[..differences.len().min(SHOWN)].join("\n");
        panic!("{what}: {} entries differ\n{shown}", differences.len());
    }
}

/// One line for each entry that is missing, extra or different.
pub fn entry_differences(ours: &[Entry], wanted: &[Entry]) -> Vec<String> {
    let ours: BTreeMap<_, _> = ours.iter().map(|entry| (&entry.path, entry)).collect();
    let wanted: BTreeMap<_, _> = wanted.iter().map(|entry| (&entry.path, entry)).collect();
    let mut differences = Vec::new();
    for (path, want) in &wanted {
        match ours.get(path) {
            None => differences.push(format!("{path}: missing, wanted {want:?}")),
            Some(our) if our != want => {
                differences.push(format!("{path}:\n  ours   {our:?}\n  wanted {want:?}"));
            }
            Some(_) => {}
        }
    }
    let extra = ours.keys().filter(|path| !wanted.contains_key(*path));
    differences.extend(extra.map(|path| format!("{path}: not wanted")));
    differences
}

/// Panics unless two byte strings are equal; shows where they first differ.
pub fn assert_bytes(what: &str, ours: &[u8], wanted: &[u8]) {
    if ours == wanted {
        return;
    }
    let same = ours.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    let around = |bytes: &[u8]| -> String {
        let part = &bytes[same.min(bytes.len())..bytes.len().min(same + 16)];
        part.iter().fold(String::new(), |shown, byte| format!("{shown}{byte:02x} "))
    };
    panic!(
        "{what}: differs from byte {same:#x} on ({} bytes, {} wanted)\n  ours   {}\n  wanted {}",
        ours.len(),
        wanted.len(),
        around(ours),
        around(wanted)
    );
}

/// Panics with all rows that differ at once, each with its name; for tables of numbers.
pub fn assert_rows<T: PartialEq + Debug>(what: &str, rows: &[(String, T, T)]) {
    let differ = rows.iter().filter(|(_, ours, wanted)| ours != wanted);
    let shown: Vec<_> = differ
        .map(|(name, ours, wanted)| format!("  {name}: ours {ours:?}, wanted {wanted:?}"))
        .collect();
    let first = &shown[..shown.len().min(SHOWN)];
    assert!(shown.is_empty(), "{what}: {} rows differ\n{}", shown.len(), first.join("\n"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_differences_name_lines() {
        for (ours, wanted, shown) in [
            ("a\nb\nc\n", "a\nb\nc\n", None),
            ("a\nx\nc\n", "a\nb\nc\n", Some(["ours       2: x", "wanted     2: b"])),
            ("a\nc\n", "a\nb\nc\n", Some(["wanted     2: b", "(2 lines, 3 wanted)"])),
            ("a", "a\n", Some(["last line's end", "(1 lines, 1 wanted)"])),
        ] {
            let report = text_difference(ours, wanted);
            match shown {
                None => assert_eq!(report, None),
                Some(parts) => {
                    let report = report.unwrap();
                    assert!(parts.iter().all(|part| report.contains(part)), "{report}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "differs from byte 0x2")]
    fn byte_differences_name_the_offset() {
        assert_bytes("row", b"abX", b"abc");
    }
}
