//! Many mounted file systems, in a daemon that is killed while it mounts or unmounts them.

use std::time::Instant;

use cenote_testkit::faultfs::has_fuse;
use cenote_testkit::rng::wants_all;
use rustix::process::Signal;

use crate::home::{Home, keep};
use crate::stages::{FILE, Scenario, Stop};

/// Mounted file systems: 40, or 500 with `CENOTE_TEST_ALL`.
fn many() -> usize {
    if wants_all() { 500 } else { 40 }
}

#[test]
fn the_daemon_ends_while_it_mounts_or_unmounts_many() {
    if !has_fuse() {
        return;
    }
    let home = Home::with_pool("many");
    for number in 0..many() {
        home.run(&format!("zfs create t/n{number}"));
    }
    let prepare = |home: &Home| {
        keep(&home.path(FILE), b"kept");
        keep(&home.path("at/n7/kept"), b"kept");
    };
    let check = |home: &Home, _: bool| {
        let (mounted, not) = home.mounted();
        assert_eq!((mounted.len(), not.len()), (many() + 4, 0), "{not:?}\n{}", home.log());
        assert_eq!(std::fs::read(home.path("at/n7/kept")).unwrap(), b"kept");
    };
    let count = many() as u64;
    let stops = |stage: &str| -> Option<Vec<Stop>> {
        let at = if wants_all() { vec![1, count / 3, count / 2, count] } else { vec![count / 2] };
        Some(at.into_iter().map(|at| (stage.to_owned(), at)).collect())
    };
    let scenario = |name, line: Option<&str>, stops| {
        let line = line.map(str::to_owned);
        Scenario { name, home: &home, prepare: &prepare, line, stops, check: &check }.sweep(1);
    };
    scenario("mount many", None, stops("mount-attached"));
    scenario("unmount many", Some("daemon stop"), stops("unmount-detached"));

    let begin = Instant::now();
    home.signal(Signal::TERM);
    assert!(home.wait_for_end().success());
    let unmounted = begin.elapsed();
    let begin = Instant::now();
    home.start();
    home.wait_until_ready();
    println!("{} mounts: ended in {unmounted:?}, ready in {:?}", many(), begin.elapsed());
    check(&home, true);
    home.judge(&["t"]);
}
