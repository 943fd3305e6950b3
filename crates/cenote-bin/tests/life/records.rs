//! The list of pools and the cache files change together (invariant REG-1): an exported pool does
//! not come back, whatever other commands and deaths of the daemon do meanwhile.

use std::time::{Duration, Instant};

use cenote_testkit::skip;
use rustix::process::Signal;

use crate::home::{COMMAND_MAX, Home};
use crate::proc;
use crate::stages::has;

const PAUSE: Duration = Duration::from_millis(5);

fn wait_until(home: &Home, what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < COMMAND_MAX, "{what}\n{}", home.log());
        std::thread::sleep(PAUSE);
    }
}

/// Returns how often the daemon has reached a stage.
fn count(home: &Home, stage: &str) -> usize {
    let reached = std::fs::read_to_string(home.path("stages/reached")).unwrap_or_default();
    reached.lines().filter(|line| *line == stage).count()
}

/// Makes every thread that reaches a stage wait.
fn hold(home: &Home, stage: &str) {
    std::fs::write(home.path("stages/hold"), stage).unwrap();
}

fn release(home: &Home) {
    std::fs::remove_file(home.path("stages/hold")).unwrap();
}

/// Returns a home with a pool `t` that is not mounted; `None` in a build without stages.
fn home(stem: &str) -> Option<Home> {
    if !cfg!(debug_assertions) {
        skip::skip(&skip::current_test(), "the stages are not in a build without assertions");
        return None;
    }
    let home = Home::new(stem);
    home.start();
    home.wait_until_ready();
    let (d0, d1) = (home.text("pool/d0"), home.text("pool/d1"));
    home.run(&format!("zpool create -m none t mirror {d0} {d1}"));
    Some(home)
}

/// Kills the daemon, and starts another one.
fn restart(home: &Home) {
    home.signal(Signal::KILL);
    home.wait_for_end();
    home.start();
    home.wait_until_ready();
}

/// Checks that neither the list nor a cache file has the exported pool, and imports it.
fn check_exported(home: &Home, what: &str) {
    assert!(!has(home, "t"), "{what}: exported, and listed");
    let other = home.text("other.cache");
    if std::path::Path::new(&other).exists() {
        let said = home.ends(&format!("zpool import -c {other}")).1;
        assert!(!said.contains("pool: t"), "{what}: exported, and in {other}: {said}");
    }
    restart(home);
    assert!(!has(home, "t"), "{what}: exported, and there again\n{}", home.log());
    let folder = home.text("pool");
    home.run(&format!("zpool import -d {folder} t"));
    assert!(has(home, "t"), "{what}");
}

/// The command has looked the pool up, and is to record it, when an export closes the pool.
#[test]
fn command_beside_an_export_does_not_record_the_pool() {
    let Some(home) = home("recording") else { return };
    let other = home.text("other.cache");
    for line in ["zfs set a:b=c t".to_owned(), format!("zpool set cachefile={other} t")] {
        let before = count(&home, "pool-recording");
        hold(&home, "pool-recording");
        let running = home.begin(&line);
        wait_until(&home, "a command that records", || count(&home, "pool-recording") > before);
        home.run("zpool export t");
        release(&home);
        let (status, said) = running.end(&home);
        if line.starts_with("zpool") {
            assert_eq!((status.code(), &*said), (Some(1), "cannot open 't': no such pool\n"));
        }
        check_exported(&home, &line);
    }
    home.judge(&["t"]);
}

/// The command is recording the pool in its new cache file when an export removes it.
#[test]
fn export_waits_for_a_command_that_records_the_pool() {
    let Some(home) = home("recorded") else { return };
    let other = home.text("other.cache");
    for line in ["zfs set a:b=c t".to_owned(), format!("zpool set cachefile={other} t")] {
        let before = (count(&home, "pool-record-locked"), count(&home, "pool-closed"));
        hold(&home, "pool-record-locked");
        let running = home.begin(&line);
        wait_until(&home, "the lock", || count(&home, "pool-record-locked") > before.0);
        let export = home.begin("zpool export t");
        wait_until(&home, "a closed pool", || count(&home, "pool-closed") > before.1);
        // Commands on all pools leave out the closed one.
        let (status, said) = home.ends("zfs list -H -o name");
        assert_eq!((status.code(), &*said), (Some(0), "no datasets available\n"));
        let (status, said) = home.ends("zpool list -H -o name");
        assert_eq!((status.code(), &*said), (Some(0), "no pools available\n"));
        assert!(export.is_running());
        release(&home);
        let (status, said) = export.end(&home);
        assert!(status.success(), "{said}");
        running.end(&home);
        check_exported(&home, &line);
    }
    home.judge(&["t"]);
}

/// The daemon dies when the labels say that the pool is exported, and the cache file still has it.
#[test]
fn pool_of_an_interrupted_export_stays_exported() {
    let Some(home) = home("interrupted") else { return };
    for (round, stage) in ["pool-closed", "pool-forgotten"].into_iter().enumerate() {
        std::fs::write(home.path("stages/stop"), format!("{stage} 1 {round}")).unwrap();
        let export = home.begin("zpool export t");
        wait_until(&home, "a stopped daemon", || proc::state(home.pid()) == Some('T'));
        std::fs::remove_file(home.path("stages/stop")).unwrap();
        restart(&home);
        // The client sends a command that was not answered to the next daemon only if it was not
        // accepted.
        export.end(&home);
        check_exported(&home, stage);
    }
    home.judge(&["t"]);
}
