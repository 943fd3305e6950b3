//! Seeded mistakes that histories of whole pools find: see [`cenote_sim::bugs`].
//!
//! `CENOTE_TEST_ALL` searches for all of them.

use std::time::Duration;

use cenote_rt::seeded::Bug;
use cenote_sim::bugs::{self, Extent};
use cenote_testkit::bugs::are_missing;
use cenote_testkit::rng::wants_all;

/// Mistakes of a short run, each in another part of the engine.
const FEW: [Bug; 6] = [
    Bug::NoFlushBeforeLabels,
    Bug::LostFree,
    Bug::ClaimWithoutTail,
    Bug::RunningSyncJoined,
    Bug::TasksBeforeDatasets,
    Bug::DirtyDroppedEarly,
];

fn check_found(wanted: &[Bug], limit: Duration) {
    if are_missing() {
        return;
    }
    let extent = Extent { searches: 1, limit, ..Extent::default() };
    let mut rows = Vec::new();
    let is_found = bugs::search(wanted, extent, |row| {
        println!("{row}");
        rows.push(row.to_string());
    });
    assert!(is_found, "{}", rows.join("\n"));
}

/// A reader of an old state that repairs over live blocks.
#[test]
fn repair_without_evidence_is_found_within_a_minute() {
    check_found(&[Bug::RepairWithoutEvidence], Duration::from_mins(1));
}

#[test]
fn seeded_mistakes_are_found() {
    let wanted = if wants_all() { bugs::all() } else { FEW.to_vec() };
    check_found(&wanted, Extent::default().limit);
}
