//! The daemon ends while a pool loses its devices, is suspended, cleared or closed by force.

use std::time::{Duration, Instant};

use cenote_testkit::faultfs::FaultLayer;

use crate::home::{Home, keep};
use crate::stages::{FILE, Scenario, Stop, check_t, has};

/// Size of each device of the pool `s`.
const SIZE: u64 = 96 << 20;
/// Limit for a pool without devices to be suspended.
const SUSPEND_MAX: Duration = Duration::from_secs(30);

/// In addition to the pool `t`, a pool `s` on devices that can be removed.
struct Failing {
    /// Dropped before its directory.
    layer: FaultLayer,
    home: Home,
}

impl Failing {
    fn new(stem: &str) -> Option<Self> {
        let home = Home::new(stem);
        let layer = FaultLayer::start("fault_layer", home.folder(), &[SIZE; 2])?;
        home.start_with_pool();
        let (at, d0, d1) = (home.text("failing"), layer.leaf(0), layer.leaf(1));
        home.run(&format!("zpool create -m {at} s mirror {} {}", d0.display(), d1.display()));
        Some(Self { layer, home })
    }

    /// Restores the devices; the pool `s` is then open, with a synced file.
    fn heal(&self, home: &Home) {
        self.layer.heal_all();
        if has(home, "s") {
            home.run("zpool clear s");
        } else {
            home.run(&format!("zpool import -f -d {} s", self.layer.leaves().display()));
        }
    }

    fn prepare(&self, home: &Home) {
        self.heal(home);
        keep(&home.path(FILE), b"kept");
        keep(&home.path("failing/kept"), b"kept");
    }

    /// Removes the devices while changes are to be written.
    fn take_away(&self, home: &Home) {
        std::fs::write(home.path("failing/unsynced"), vec![7; 300_000]).unwrap();
        (0..2).for_each(|leaf| self.layer.take_away(leaf));
    }

    /// Removes the devices, and waits until the pool is suspended.
    fn suspend(&self, home: &Home) {
        self.prepare(home);
        self.take_away(home);
        // This command ends when the pool is cleared or closed.
        drop(home.begin("zpool sync s"));
        let begin = Instant::now();
        while home.run("zpool list -H -o health s") != "SUSPENDED\n" {
            assert!(begin.elapsed() < SUSPEND_MAX, "not suspended\n{}", home.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn check(&self, home: &Home) {
        check_t(home);
        self.heal(home);
        assert_eq!(std::fs::read(home.path("failing/kept")).unwrap(), b"kept", "{}", home.log());
    }
}

#[test]
fn the_daemon_ends_while_a_pool_is_suspended() {
    let Some(failing) = Failing::new("suspend") else { return };
    let home = &failing.home;
    let check = |home: &Home, _: bool| failing.check(home);
    let prepare = |home: &Home| {
        failing.prepare(home);
        failing.take_away(home);
    };
    let stop = |stage: &str| -> Stop { (stage.to_owned(), 1) };
    let scenario = |name, prepare, line: &str, stops| {
        let line = Some(line.to_owned());
        Scenario { name, home, prepare, line, stops, check: &check }
    };
    scenario("suspend", &prepare, "zpool sync s", Some(vec![stop("suspend-held")])).sweep(1);

    let prepare = |home: &Home| {
        failing.suspend(home);
        failing.layer.heal_all();
    };
    scenario("clear", &prepare, "zpool clear s", None).sweep(3);

    let prepare = |home: &Home| failing.suspend(home);
    scenario("export by force", &prepare, "zpool export -f s", None).sweep(4);
    // Told to stop while the pool is suspended, and killed on the way.
    let stops = ["daemon-ending", "suspend-abandoned", "pool-left-at-end"].map(stop).to_vec();
    scenario("stop", &prepare, "daemon stop", Some(stops)).sweep(2);

    home.run("zpool export s");
    let images = failing.layer.images();
    home.run(&format!("verify --leaks -d {} s", images.display()));
    home.judge(&["t"]);
}
