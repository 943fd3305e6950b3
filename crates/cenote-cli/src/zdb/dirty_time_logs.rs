//! Dirty time logs: the txgs that each vdev is missing, and the vdevs that are required for
//! reading.
//!
//! ```text
//!   missing  a leaf: its DTL              partial  missing from any child
//!   outage   a leaf: missing, or all      outage   missing from more children than may fail
//! ```
//!
//! A vdev is required if the pool would lose some txg without it (spec 06 on dirty time logs).

use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_pool::vdevs::Vdevs;

use super::pool::Show;
use crate::io::CommandResult;
use crate::out;

/// Half-open ranges of txgs, disjoint and ascending.
type Ranges = Vec<(u64, u64)>;

/// All txgs: the DTL of an unreadable vdev.
const ALL: (u64, u64) = (0, u64::MAX);

/// Prints the dirty time logs of all vdevs.
pub(super) fn run(show: &mut Show<'_, '_>) -> CommandResult {
    let pool = std::sync::Arc::clone(&show.pool);
    let root = &pool.config().vdev_tree;
    out!(show.io, "\nDirty time logs:\n")?;
    out!(show.io, "\t{} [DTL-required]", pool.name())?;
    for top in &root.children {
        one(show, pool.vdevs(), top, top, 4)?;
    }
    Ok(())
}

fn one(
    show: &mut Show<'_, '_>,
    vdevs: Vdevs<'_>,
    top: &VdevConfig,
    vdev: &VdevConfig,
    indent: usize,
) -> CommandResult {
    let logs = Logs { vdevs, removed: None };
    let without = Logs { vdevs, removed: Some(vdev.guid) };
    let is_required = vdev.guid == top.guid || !without.outage(top).is_empty();
    let verdict = if is_required { "DTL-required" } else { "DTL-expendable" };
    let name = match &vdev.leaf.path {
        Some(path) if vdev.kind.is_leaf() => path.to_string_lossy().into_owned(),
        _ => vdev.kind.name().to_owned(),
    };
    out!(show.io, "\t{:indent$}{name} [{verdict}]", "")?;
    let missing = if vdev.kind.is_leaf() { logs.missing(vdev) } else { Ranges::new() };
    print(show, &logs, vdev, indent + 2, &missing, &logs.outage(vdev))?;
    for child in &vdev.children {
        one(show, vdevs, top, child, indent + 4)?;
    }
    Ok(())
}

fn print(
    show: &mut Show<'_, '_>,
    logs: &Logs<'_>,
    vdev: &VdevConfig,
    indent: usize,
    missing: &Ranges,
    outage: &Ranges,
) -> CommandResult {
    let partial = logs.partial(vdev);
    for (name, ranges) in [("missing", missing), ("partial", &partial), ("outage", outage)] {
        for (start, end) in ranges {
            let length = end - start;
            out!(show.io, "\t{:indent$}{name} [{start},{end}) length {length}", "")?;
        }
    }
    Ok(())
}

/// The dirty time logs of a tree, optionally with one vdev removed.
struct Logs<'a> {
    vdevs: Vdevs<'a>,
    removed: Option<u64>,
}

impl Logs<'_> {
    fn missing(&self, leaf: &VdevConfig) -> Ranges {
        self.vdevs.missing_txgs(leaf.guid).iter().collect()
    }

    fn is_lost(&self, vdev: &VdevConfig) -> bool {
        self.removed == Some(vdev.guid) || self.vdevs.is_unreadable(vdev.guid)
    }

    /// Returns the txgs missing from at least one child.
    fn partial(&self, vdev: &VdevConfig) -> Ranges {
        if vdev.kind.is_leaf() {
            return self.missing(vdev);
        }
        let children: Vec<_> = vdev.children.iter().map(|child| self.partial(child)).collect();
        in_at_least(1, &children)
    }

    /// Returns the txgs that cannot be read from the vdev.
    fn outage(&self, vdev: &VdevConfig) -> Ranges {
        if vdev.kind.is_leaf() || vdev.children.is_empty() {
            let is_lost = vdev.kind.is_leaf() && self.is_lost(vdev);
            return if is_lost { vec![ALL] } else { self.missing(vdev) };
        }
        if self.removed == Some(vdev.guid) {
            return vec![ALL];
        }
        let children: Vec<_> = vdev.children.iter().map(|child| self.outage(child)).collect();
        let limit = match &vdev.kind {
            VdevKind::RaidZ(raidz) => raidz.nparity as usize + 1,
            VdevKind::Draid(draid) => draid.nparity as usize + 1,
            VdevKind::Root => 1,
            _ => children.len(),
        };
        in_at_least(limit, &children)
    }
}

/// Returns the txgs that are in at least `limit` of the sets.
fn in_at_least(limit: usize, sets: &[Ranges]) -> Ranges {
    let mut edges: Vec<(u64, i64)> = Vec::new();
    for (start, end) in sets.iter().flatten() {
        edges.extend([(*start, 1), (*end, -1)]);
    }
    // At equal txgs starts sort before ends, so that adjacent ranges are merged.
    edges.sort_by_key(|(txg, step)| (*txg, -step));
    let (mut depth, mut start, mut found) = (0_i64, None, Ranges::new());
    for (txg, step) in edges {
        depth += step;
        match (depth >= limit as i64, start) {
            (true, None) => start = Some(txg),
            (false, Some(from)) => {
                found.push((from, txg));
                start = None;
            }
            _ => {}
        }
    }
    found.retain(|(start, end)| start < end);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn txgs_in_several_logs() {
        let logs = [vec![(1, 5), (9, 12)], vec![(3, 6)], vec![ALL]];
        assert_eq!(in_at_least(1, &logs), [ALL]);
        assert_eq!(in_at_least(2, &logs), [(1, 6), (9, 12)]);
        assert_eq!(in_at_least(3, &logs), [(3, 5)]);
        assert!(in_at_least(4, &logs).is_empty());
    }
}
