//! The daemon ends at each stage of a command.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use cenote_testkit::faultfs::has_fuse;
use cenote_testkit::rng;
use rustix::process::Signal;

use crate::home::{COMMAND_MAX, Home, Running, keep};
use crate::proc;

/// A stage, and how many times it was reached since the command began.
pub(crate) type Stop = (String, u64);

/// How the daemon is ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    /// Killed at the stage.
    Kill,
    /// Told to end at the stage.
    Term,
}

/// A command with its preparation and check.
pub(crate) struct Scenario<'a> {
    pub(crate) name: &'a str,
    pub(crate) home: &'a Home,
    /// Prepares the home for the command.
    pub(crate) prepare: &'a dyn Fn(&Home),
    /// The command, `None` for the start of the daemon itself.
    pub(crate) line: Option<String>,
    /// The stages, for a command that does not end by itself.
    pub(crate) stops: Option<Vec<Stop>>,
    /// Checks the state with a new daemon; the argument tells whether the command succeeded.
    pub(crate) check: &'a dyn Fn(&Home, bool),
}

impl Scenario<'_> {
    /// Starts the command or the daemon.
    fn begin(&self) -> Option<Running> {
        let Some(line) = &self.line else {
            self.home.start();
            return None;
        };
        Some(self.home.begin(line))
    }

    /// Prepares the home. A scenario of the daemon's start begins without one.
    fn prepare(&self) {
        (self.prepare)(self.home);
        if self.line.is_none() {
            self.home.signal(Signal::KILL);
            self.home.wait_for_end();
        }
    }

    /// Runs the command once, and returns its stages.
    fn record(&self) -> Vec<Stop> {
        self.prepare();
        let reached = self.home.path("stages/reached");
        let before = std::fs::read_to_string(&reached).unwrap_or_default().len();
        match self.begin() {
            Some(running) => {
                let (status, said) = running.end(self.home);
                assert!(status.success(), "{}: {said}\n{}", self.name, self.home.log());
            }
            None => self.home.wait_until_ready(),
        }
        let is_ended = self.line.as_deref() == Some("daemon stop");
        if is_ended {
            self.home.wait_for_end();
        }
        let text = std::fs::read_to_string(&reached).unwrap();
        if is_ended {
            self.home.start();
            self.home.wait_until_ready();
        }
        let mut counts = BTreeMap::<String, u64>::new();
        let stop = |line: &str| {
            let count = counts.entry(line.to_owned()).or_default();
            *count += 1;
            (line.to_owned(), *count)
        };
        text[before..].lines().map(stop).collect()
    }

    /// Ends the daemon at a stage, and checks that a new one has everything.
    fn run(&self, stop: &Stop, end: End) -> bool {
        self.prepare();
        let (home, order) = (self.home, self.home.path("stages/stop"));
        let (stage, count) = stop;
        std::fs::write(&order, format!("{stage} {count} {:?}", Instant::now())).unwrap();
        let reached = || std::fs::read_to_string(home.path("stages/reached")).unwrap_or_default();
        let before = reached().len();
        let running = self.begin();
        let begin = Instant::now();
        let is_reached = loop {
            if proc::state(home.pid()) == Some('T') {
                break true;
            }
            let is_over = if let Some(running) = &running {
                !running.is_running()
            } else {
                // A little later, for work in the background.
                std::thread::sleep(Duration::from_millis(100));
                let is_serving = reached()[before..].contains("daemon-serving");
                is_serving && proc::state(home.pid()) != Some('T')
            };
            // Some stages belong to background work, which has its own timing.
            if is_over {
                break false;
            }
            assert!(begin.elapsed() < COMMAND_MAX, "{} hangs before {stop:?}", self.name);
            std::thread::sleep(Duration::from_millis(1));
        };
        if !is_reached {
            // It must not stop there later, when the test does not wait for it.
            std::fs::remove_file(&order).unwrap();
        }
        let remains = home.remains();
        match end {
            End::Kill => home.signal(Signal::KILL),
            End::Term => {
                home.signal(Signal::TERM);
                home.signal(Signal::CONT);
            }
        }
        home.wait_for_end();
        let _ = std::fs::remove_file(&order);
        let is_done = running.is_some_and(|running| running.end(home).0.success());
        home.revive(&remains);
        (self.check)(home, is_done);
        is_reached
    }

    /// Ends the daemon at all stages, or at every `step`th one.
    pub(crate) fn sweep(&self, step: usize) {
        let stops = self.stops.clone().unwrap_or_else(|| self.record());
        let mut rng = rng::seeded(self.name, 7);
        let step = if rng::wants_all() { 1 } else { step };
        let first = rng.below(step as u64) as usize;
        let ends = if rng::wants_all() { vec![End::Kill, End::Term] } else { Vec::new() };
        let (mut runs, mut reached) = (0, 0);
        for (index, stop) in stops.iter().enumerate().skip(first).step_by(step) {
            let few = [if (index / step).is_multiple_of(3) { End::Term } else { End::Kill }];
            for end in if ends.is_empty() { &few[..] } else { &ends } {
                println!("{}: {end:?} at {stop:?}", self.name);
                runs += 1;
                reached += u32::from(self.run(stop, *end));
            }
        }
        println!("{}: {} stages, {reached} of {runs} runs reached theirs", self.name, stops.len());
        // Some recorded stages belong to background syncs, which have their own timing.
        assert!(reached * 3 > runs, "{}: {reached} of {runs}", self.name);
    }
}

pub(crate) const FILE: &str = "at/a/b/kept";

/// A file in the pool `t` exists if it was synced, and all of `t` is mounted.
pub(crate) fn check_t(home: &Home) {
    let (mounted, not) = home.mounted();
    let of_t = |names: &[String]| names.iter().filter(|name| is_of(name, "t")).count();
    assert_eq!((of_t(&mounted), of_t(&not)), (4, 0), "{mounted:?} {not:?}\n{}", home.log());
    assert_eq!(std::fs::read(home.path(FILE)).unwrap(), b"kept", "{}", home.log());
}

fn is_of(dataset: &str, pool: &str) -> bool {
    dataset.split('/').next() == Some(pool)
}

/// Whether the daemon has a pool.
pub(crate) fn has(home: &Home, pool: &str) -> bool {
    home.open_pools().iter().any(|name| name == pool)
}

fn create_u(home: &Home) -> String {
    let (at, d2) = (home.text("other"), home.text("pool/d2"));
    format!("zpool create -f -m {at} u {d2}")
}

/// Creates the pool `u` with a file system and a synced file.
fn make_u(home: &Home) {
    if !has(home, "u") {
        let folder = home.text("pool");
        if !home.ends(&format!("zpool import -f -d {folder} u")).0.success() {
            home.run(&create_u(home));
            home.run("zfs create u/x");
        }
    }
    keep(&home.path("other/x/kept"), b"kept");
}

fn check_u(home: &Home) {
    assert_eq!(std::fs::read(home.path("other/x/kept")).unwrap(), b"kept", "{}", home.log());
}

/// After a command that may have been interrupted, the pool `u` is open or can be imported.
fn check_u_is_somewhere(home: &Home) {
    if !has(home, "u") {
        let folder = home.text("pool");
        home.run(&format!("zpool import -f -d {folder} u"));
    }
    check_u(home);
}

fn sweep(name: &str, step: usize, home: &Home, prepare: &dyn Fn(&Home), line: Option<String>) {
    let check = |home: &Home, _: bool| check_t(home);
    Scenario { name, home, prepare, line, stops: None, check: &check }.sweep(step);
}

#[test]
fn the_daemon_ends_while_it_starts_and_mounts() {
    if !has_fuse() {
        return;
    }
    let home = Home::with_pool("start");
    let prepare = |home: &Home| keep(&home.path(FILE), b"kept");
    sweep("start", 6, &home, &prepare, None);
    home.judge(&["t"]);
}

#[test]
fn the_daemon_is_killed_while_it_stops() {
    if !has_fuse() {
        return;
    }
    let home = Home::with_pool("stop");
    let prepare = |home: &Home| keep(&home.path(FILE), b"kept");
    sweep("stop", 5, &home, &prepare, Some("daemon stop".into()));
    home.judge(&["t"]);
}

#[test]
fn the_daemon_ends_while_file_systems_are_mounted_and_unmounted() {
    if !has_fuse() {
        return;
    }
    let home = Home::with_pool("mounts");
    let prepare = |home: &Home| {
        home.ends("zfs mount -a");
        keep(&home.path(FILE), b"kept");
    };
    sweep("unmount", 3, &home, &prepare, Some("zfs unmount t/a".into()));
    let prepare = |home: &Home| {
        prepare(home);
        home.run("zfs unmount t/a");
    };
    sweep("mount", 3, &home, &prepare, Some("zfs mount -a".into()));
    let prepare = |home: &Home| {
        home.ends("zfs mount -a");
        home.ends("zfs destroy t/n");
        keep(&home.path(FILE), b"kept");
    };
    let check = |home: &Home, is_done: bool| {
        let (mounted, not) = home.mounted();
        assert!(not.is_empty(), "{not:?}");
        assert!(!is_done || mounted.iter().any(|name| name == "t/n"), "{mounted:?}");
        home.ends("zfs destroy t/n");
        check_t(home);
    };
    let line = Some("zfs create t/n".to_owned());
    Scenario { name: "dataset", home: &home, prepare: &prepare, line, stops: None, check: &check }
        .sweep(4);
    home.judge(&["t"]);
}

#[test]
fn the_daemon_ends_while_a_pool_is_created() {
    if !has_fuse() {
        return;
    }
    let home = Home::with_pool("create");
    let prepare = |home: &Home| {
        if has(home, "u") {
            home.run("zpool destroy u");
        }
        keep(&home.path(FILE), b"kept");
    };
    let check = |home: &Home, is_done: bool| {
        check_t(home);
        let is_there = has(home, "u");
        assert!(is_there || !is_done, "created, and not there\n{}", home.log());
        if is_there {
            let (_, not) = home.mounted();
            assert!(not.is_empty(), "{not:?}");
            return;
        }
        // Whatever exists of it can be imported or overwritten.
        let folder = home.text("pool");
        if !home.ends(&format!("zpool import -f -d {folder} u")).0.success() {
            home.run(&create_u(home));
        }
    };
    let line = Some(create_u(&home));
    Scenario { name: "create", home: &home, prepare: &prepare, line, stops: None, check: &check }
        .sweep(7);
    home.judge(&["t", "u"]);
}

#[test]
fn the_daemon_ends_while_a_pool_is_exported_and_imported() {
    if !has_fuse() {
        return;
    }
    let home = Home::with_pool("export");
    let prepare = |home: &Home| {
        make_u(home);
        keep(&home.path(FILE), b"kept");
    };
    let check = |home: &Home, is_done: bool| {
        check_t(home);
        assert!(!is_done || !has(home, "u"), "exported, and there\n{}", home.log());
        check_u_is_somewhere(home);
    };
    let line = Some("zpool export u".to_owned());
    Scenario { name: "export", home: &home, prepare: &prepare, line, stops: None, check: &check }
        .sweep(6);
    let prepare = |home: &Home| {
        make_u(home);
        home.run("zpool export u");
        keep(&home.path(FILE), b"kept");
    };
    let check = |home: &Home, is_done: bool| {
        check_t(home);
        assert!(!is_done || has(home, "u"), "imported, and not there\n{}", home.log());
        check_u_is_somewhere(home);
    };
    let folder = home.text("pool");
    // After an interrupted import the pool is in use by this host, and must be forced.
    let line = Some(format!("zpool import -f -d {folder} u"));
    Scenario { name: "import", home: &home, prepare: &prepare, line, stops: None, check: &check }
        .sweep(8);
    home.judge(&["t", "u"]);
}
