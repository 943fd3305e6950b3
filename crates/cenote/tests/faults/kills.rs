//! The daemon is killed under load, on devices that are well.

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
    site.forgive_log_ends();
    site.check(&written, "after a kill");
    site.check_counts(&[], "after a kill");
    site.check_healthy("after a kill");
    site.judge(true);
}

#[test]
fn a_killed_daemon_loses_nothing() {
    let few = [Layout::Mirror];
    let layouts = if rng::wants_all() { Layout::ALL.to_vec() } else { few.to_vec() };
    each(&layouts, 20..20 + rng::cases(1, 4), killed);
}
