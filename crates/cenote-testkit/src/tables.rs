//! OpenZFS's scripted output (`-H`): rows of fields separated by tabs.

use std::collections::BTreeMap;

/// Splits every line at its tabs.
pub fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split('\t').collect()).collect()
}

/// What `zfs get -Hp` or `zpool get -Hp` printed: (name, property) to (value, source).
pub fn properties(text: &str) -> BTreeMap<(&str, &str), (&str, &str)> {
    let mut table = BTreeMap::new();
    for row in rows(text) {
        if let [name, property, value, source] = row[..] {
            table.insert((name, property), (value, source));
        } else {
            panic!("not four fields: {row:?}");
        }
    }
    table
}
