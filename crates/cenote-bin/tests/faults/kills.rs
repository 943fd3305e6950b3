//! The daemon is killed under load, on working devices.

use cenote_testkit::rng;

use crate::layout::{Layout, each};
use crate::load::Load;
use crate::site::{Site, pause};

fn killed(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("killed", seed);
    let Some(site) = Site::new("killed", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(300 + rng.below(900));
    site.kill();
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.start();
    site.check(&written, "after a kill");
    site.check_counts(&[], "after a kill");
    site.check_healthy("after a kill");
    site.judge(true);
}

#[test]
fn a_killed_daemon_loses_nothing() {
    let layouts = Layout::all_or(&[Layout::Mirror]);
    each(&layouts, 20..20 + rng::cases(1, 4), killed);
}

/// Kills the daemon while a leaf is removed. The leaf is back before the next daemon starts, or
/// later: the content is correct in both cases.
///
/// A leaf that is back early was removed during a txg that was never committed, which no dirty time
/// log has. Replaying the intent log finds the blocks that it misses by their checksums, counts
/// them as errors of this leaf and repairs them. A leaf that comes back later is known to be stale.
fn killed_with_a_leaf_away(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("killed_with_a_leaf_away", seed);
    let Some(site) = Site::new("away", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(600);
    let leaf = rng.below(layout.data_leaves() as u64) as usize;
    site.layer.take_away(leaf);
    pause(300 + rng.below(1500));
    site.kill();
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    let is_back_early = seed.is_multiple_of(2);
    if is_back_early {
        site.layer.heal_all();
    }
    site.start();
    site.check(&written, "after a kill");
    if !is_back_early {
        site.layer.heal_all();
        let path = site.layer.leaf(leaf).to_str().unwrap().to_owned();
        site.run(&format!("zpool online t {path}"));
        site.check(&written, "with all leaves");
    }
    let may_count: &[usize] = if is_back_early { &[leaf] } else { &[] };
    site.check_counts(may_count, "with all leaves");
    site.check_files("with all leaves");
    site.judge(false);
}

#[test]
fn a_daemon_killed_with_a_removed_leaf_reads_nothing_stale() {
    each(&Layout::redundant_or(&[]), 24..24 + rng::cases(0, 4), killed_with_a_leaf_away);
}
