//! Pools with failing or hanging leaves are closed in time, in every way, and opened again with all
//! promised data.

use std::time::{Duration, Instant};

use cenote_testkit::rng;
use rustix::process::Signal;

use crate::layout::{Layout, each};
use crate::load::Load;
use crate::site::{Site, pause};

/// Limit for closing a pool that cannot be written, on a busy machine.
pub(crate) const CLOSE_MAX: Duration = Duration::from_secs(40);

/// Limit for `zpool status` of a suspended pool, on a busy machine.
pub(crate) const STATUS_MAX: Duration = Duration::from_secs(15);

/// The ways to close a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Close {
    Export,
    Destroy,
    Stop,
    Terminate,
    Kill,
}

impl Close {
    const ALL: [Self; 5] = [Self::Export, Self::Destroy, Self::Stop, Self::Terminate, Self::Kill];

    /// Whether the daemon opens the pool again by itself.
    fn is_remembered(self) -> bool {
        !matches!(self, Self::Export | Self::Destroy)
    }

    /// Closes the pool; the daemon has ended afterwards, or was told to.
    fn run(self, site: &Site) {
        let started = Instant::now();
        match self {
            Self::Export => {
                let (status, said) = site.ends("zpool export -f t");
                assert!(status.success(), "{said}\n{}", site.log());
            }
            Self::Destroy => {
                let (status, said) = site.ends("zpool destroy -f t");
                let is_told = said.contains("it was closed, and is not destroyed");
                assert!(!status.success() && is_told, "{status}: {said}\n{}", site.log());
            }
            Self::Stop => drop(site.ends("daemon stop")),
            Self::Terminate => drop(site.signal(Signal::TERM)),
            Self::Kill => site.kill(),
        }
        assert!(started.elapsed() < CLOSE_MAX, "{self:?} took {:?}", started.elapsed());
        if !self.is_remembered() {
            let listed = site.run("zpool list -H -o name");
            assert_eq!(listed.trim(), "no pools available", "{}", site.log());
        }
    }
}

/// All leaves of a pool under load are removed, so that it is suspended, and it is closed.
fn suspended(layout: Layout, seed: u64, close: Close) {
    let mut rng = rng::seeded("closed_while_suspended", seed);
    let Some(site) = Site::new("closed", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(600);
    (0..site.layer.leaf_count()).for_each(|leaf| site.layer.take_away(leaf));
    let since = Instant::now();
    while site.run("zpool list -H -o health t").trim() != "SUSPENDED" {
        assert!(since.elapsed() < CLOSE_MAX, "it is not suspended\n{}", site.log());
        pause(100);
    }
    // From now on devices hang, and little is cached.
    (0..site.layer.leaf_count()).for_each(|leaf| site.layer.hang(leaf));
    site.run("tunable set zfs_arc_max=1048576");
    let since = Instant::now();
    let status = site.status();
    assert!(status.text.contains("state: SUSPENDED"), "{}\n{}", status.text, site.log());
    assert!(!status.text.contains("resilver needed"), "{}", status.text);
    assert!(since.elapsed() < STATUS_MAX, "{:?}\n{}", since.elapsed(), status.text);
    println!("{layout:?}, status after {:?}:\n{}", since.elapsed(), status.text);
    (0..site.layer.leaf_count()).for_each(|leaf| site.layer.heal(leaf));
    (0..site.layer.leaf_count()).for_each(|leaf| site.layer.take_away(leaf));
    close.run(&site);
    let written = load.stop(&site);
    println!("{layout:?} {close:?}: {}", written.told());
    if !close.is_remembered() {
        site.stop();
    }
    site.await_end();
    site.layer.heal_all();
    reopened(&site, &written, close);
}

/// A new daemon opens the pool, and all promised data is there.
fn reopened(site: &Site, written: &crate::load::Written, close: Close) {
    site.start();
    if !close.is_remembered() {
        site.run(&format!("zpool import -d {} t", site.text("leaves")));
    }
    site.check(written, "after it was closed");
    site.check_counts(&[], "after it was closed");
    site.judge(false);
}

#[test]
fn a_suspended_pool_is_closed_in_time() {
    let layouts = Layout::all_or(&[Layout::Mirror]);
    let ways = if rng::wants_all() { &Close::ALL[..] } else { &[Close::Destroy, Close::Terminate] };
    for close in ways {
        each(&layouts, 31..32, |layout, seed| suspended(layout, seed, *close));
    }
}

/// The leaves of a pool under load hang. `daemon stop` still ends in time. The kernel keeps
/// requests in flight: the process and its locks on the devices are gone when the leaves answer
/// again.
fn hanging(layout: Layout, seed: u64) {
    let mut rng = rng::seeded("closed_while_hanging", seed);
    let Some(site) = Site::new("hangs", layout) else { return };
    let load = Load::start(&site, rng.next_u64());
    pause(600);
    (0..site.layer.leaf_count()).for_each(|leaf| site.layer.hang(leaf));
    pause(1000);
    Close::Stop.run(&site);
    assert!(site.log().contains("device does not answer"), "{}", site.log());
    site.layer.heal_all();
    let written = load.stop(&site);
    println!("{layout:?}: {}", written.told());
    site.await_end();
    reopened(&site, &written, Close::Stop);
}

/// Closing waits 10 seconds or more before it counts devices as hanging.
#[test]
fn a_daemon_with_hanging_leaves_stops_in_time() {
    let layouts = Layout::all_or(&[]);
    each(&layouts, 33..34, hanging);
}
