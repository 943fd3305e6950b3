//! OpenZFS's scripted output (`-H`): rows of fields separated by tabs.
//!
//! Tables of golden pools are those of the txg just before the export, which itself writes to the
//! MOS and changes what is allocated and available: [`at_listing`] finds that txg.

use std::collections::BTreeMap;

use crate::Golden;

/// Properties of datasets that need not match, each with the reason: (pool or "*", property,
/// reason).
pub const EXEMPT_DATASET: &[(&str, &str, &str)] = &[
    ("*", "mounted", "whether it is mounted is a fact of the host"),
    ("g-legacy", "snapshots_changed", "kept in memory only on pools without extensible_dataset"),
];

/// Properties of pools that need not match, in the same form.
pub const EXEMPT_POOL: &[(&str, &str, &str)] = &[
    ("*", "load_guid", "a random number of each import"),
    ("*", "readonly", "how the pool was imported"),
    ("g-classes", "dedup_table_size", "kept in memory until a table changes, logs emptied or not"),
    ("g-scan", "allocated", "counts what was freed in the last two txgs, a fact of memory"),
    ("g-scan", "free", "the same"),
];

/// Splits every line at its tabs.
pub fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().map(|line| line.split('\t').collect()).collect()
}

/// Parses the output of `zfs get -Hp` or `zpool get -Hp`: (name, property) to (value, source).
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

/// A table of properties without the rows of those that `list` names for this pool.
pub fn without_exempt(text: &str, list: &[(&str, &str, &str)], pool: &str) -> String {
    let is_exempt = |property: &str| {
        list.iter().any(|(on, name, _)| (*on == "*" || *on == pool) && *name == property)
    };
    let keep = |line: &&str| line.split('\t').nth(1).is_none_or(|property| !is_exempt(property));
    text.lines().filter(keep).flat_map(|line| [line, "\n"]).collect()
}

/// The pool at each txg at which the allocated space equals the listing's, newest first: only idle
/// txgs follow the first of them. `open` gives the pool at a txg and the bytes in use, or none if
/// blocks of that txg were reused. Without a listing, the last state is returned.
pub async fn at_listing<P>(
    golden: &Golden,
    txgs: impl IntoIterator<Item = u64>,
    open: impl AsyncFn(u64) -> Option<(P, u64)>,
) -> Vec<P> {
    let list = golden.text("zfs-list.tsv").unwrap_or_default();
    let listed = list.lines().next().and_then(|line| line.split('\t').nth(2)?.parse::<u64>().ok());
    let mut txgs: Vec<u64> = txgs.into_iter().collect();
    txgs.sort_unstable();
    txgs.dedup();
    let mut pools = Vec::new();
    for txg in txgs.into_iter().rev() {
        let Some((pool, used)) = open(txg).await else { break };
        if listed.is_none_or(|listed| listed == used) {
            pools.push(pool);
            if listed.is_none() {
                break;
            }
        } else if !pools.is_empty() {
            break;
        }
    }
    pools
}
