//! Leaves that become smaller than their vdev.

use cenote_testkit::rng::{self, Rng};

use crate::layout::{LEAF, Layout, each};
use crate::load::Load;
use crate::site::{Site, pause};

/// A leaf is smaller when the pool is imported. Nothing is written to it: its labels would
/// overwrite file data.
fn shorter_at_import(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("shorter_at_import", seed);
    let Some(site) = Site::new("short", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(1200);
    let written = load.stop(&site);
    site.run("zpool export t");
    let leaf = layout.data_leaves() - 1;
    site.layer.shorten(leaf, LEAF / 8);
    let before = site.layer.counts(leaf).writes;
    site.run(&format!("zpool import -d {} t", site.text("leaves")));
    let status = site.status();
    let state = status.rows.iter().find(|row| row.name.ends_with(&format!("/d{leaf}")));
    assert!(state.is_none_or(|row| row.state == "UNAVAIL"), "{}\n{}", status.text, site.log());
    site.check(&written, "with a shorter leaf");
    site.run("zfs create t/c");
    assert_eq!(site.layer.counts(leaf).writes, before, "{}", site.log());
    site.run("zpool export t");
    site.layer.heal_all();
    site.run(&format!("zpool import -d {} t", site.text("leaves")));
    site.check(&written, "with the whole leaf");
    site.check_counts(&[], "with the whole leaf");
    site.judge(false);
}

#[test]
fn a_leaf_too_small_at_import_is_not_written() {
    each(&Layout::redundant_or(&[Layout::Mirror]), 50..51, shorter_at_import);
}

/// A leaf becomes smaller while it is in use: it fails, and the others have all data.
fn shorter_in_use(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("shorter_in_use", seed);
    let Some(site) = Site::new("shrinks", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(700);
    let leaf = rng.below(layout.data_leaves() as u64) as usize;
    site.layer.shorten(leaf, LEAF / 8);
    pause(1500);
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.check(&written, "with a shorter leaf");
    site.check_counts(&[leaf], "with a shorter leaf");
    site.run("zpool export t");
    site.layer.heal_all();
    site.run(&format!("zpool import -d {} t", site.text("leaves")));
    site.check(&written, "with the whole leaf");
    site.judge(false);
}

#[test]
fn a_leaf_that_shrinks_is_faulted_alone() {
    let layouts = Layout::redundant_or(&[]);
    each(&layouts, 51..52, shorter_in_use);
}

/// Bytes by which a leaf shrinks: a sector, a label, and about a metaslab.
const SHRINKS: [u64; 3] = [512, 256 << 10, 16 << 20];

/// A leaf is slightly smaller for a while, in use or at an import. Its data comes back whole.
fn shrinks_a_little(layout: Layout, seed: u64, shrink: u64) {
    let mut rng: Rng = rng::seeded("shrinks_a_little", seed);
    let Some(site) = Site::new("little", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(500);
    let leaf = rng.below(layout.data_leaves() as u64) as usize;
    site.layer.shorten(leaf, LEAF - shrink);
    pause(800);
    let written = load.stop(&site);
    println!("{layout:?} -{shrink}: {}", written.told());
    site.check(&written, "with a shorter leaf");
    site.check_counts(&[], "with a shorter leaf");
    site.run("zpool export t");
    site.run(&format!("zpool import -d {} t", site.text("leaves")));
    site.check(&written, "imported with a shorter leaf");
    site.check_counts(&[], "imported with a shorter leaf");
    site.run("zfs create t/c");
    site.run("zpool export t");
    site.layer.heal_all();
    site.run(&format!("zpool import -d {} t", site.text("leaves")));
    site.check(&written, "with the whole leaf");
    site.check_counts(&[], "with the whole leaf");
    site.judge(false);
}

#[test]
fn a_leaf_that_shrinks_a_little_comes_back_whole() {
    let all = rng::wants_all();
    let layouts: Vec<_> = if all { Layout::redundant().collect() } else { vec![Layout::Raidz1] };
    for shrink in SHRINKS.into_iter().take(if all { 3 } else { 1 }) {
        each(&layouts, 52..53, |layout, seed| shrinks_a_little(layout, seed, shrink));
    }
}
