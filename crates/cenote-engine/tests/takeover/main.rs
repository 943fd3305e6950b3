//! OpenZFS's stress test goes on with pools that were made and written here; afterwards our
//! verdict on the pool is that of OpenZFS's checker.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

#[path = "../engine/pools.rs"]
#[expect(dead_code, reason = "the tests of the engine use more of it")]
mod pools;

use std::path::Path;
use std::sync::Arc;

use cenote_engine::{Creator, Engine};
use cenote_oracle::Shape;
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::verify::{self, Finding, Observer, Progress};
use cenote_pool::{OpenOptions, Pool, leaks};
use cenote_rt::{BoxFuture, Result, block_on};
use cenote_testkit::rng::wants_all;
use pools::{Layout, TempDir, TestPool};

/// Says what is wrong.
struct Print;

impl Observer for Print {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        println!("{finding:?}");
        Box::pin(async {})
    }
}

#[test]
fn ztest_takes_over_a_disk() {
    take_over(Layout { name: "disk", devices: 1, ashift: 12 }, Shape::Disk);
}

#[test]
fn ztest_takes_over_a_mirror() {
    take_over(Layout { name: "mirror", devices: 2, ashift: 12 }, Shape::Mirror);
}

#[test]
fn ztest_takes_over_a_raidz2() {
    take_over(Layout { name: "raidz2", devices: 6, ashift: 12 }, Shape::Raidz2);
}

fn take_over(layout: Layout, shape: Shape) {
    if !wants_all() {
        // Minutes, and never twice the same: for `./x test --all`.
        return;
    }
    let (Some(ztest), Some(zdb)) = (cenote_oracle::ztest(), cenote_oracle::zdb()) else { return };
    let dir = TempDir::new();
    let pool = TestPool::new(dir.path(), "tank", layout);
    block_on(2, async { fill(&*pool.create().await?).await }).unwrap().unwrap();
    let said = zdb.pool("tank", dir.path(), &["-bcc"]);
    assert!(said.is_clean(), "before: {said}");
    let said = ztest.run("tank", dir.path(), shape, 60);
    if !said.is_success() {
        let folder = dir.path().display().to_string();
        // What ztest asks of its checker and does not show.
        let theirs = zdb.pool("tank", dir.path(), &["-bcc", "-d", "-y"]);
        std::mem::forget(dir);
        panic!("the pool stays in {folder}: {said}{theirs}");
    }
    let theirs = zdb.pool("tank", dir.path(), &["-bcc"]);
    let ours = block_on(2, check(dir.path())).unwrap().unwrap();
    println!("{shape:?}: taken over; {ours:?}, clean there: {}", theirs.is_clean());
    // OpenZFS 2.3 leaks some blocks that ztest writes, in pools of its own as in these. What waits
    // in a dedup log to be freed is a leak to its checker only (spec 08 §25; the golden test of
    // leaks has such a pool).
    let is_agreed = ours.is_sound
        && match ours.leaked + ours.unreferenced {
            0 => theirs.is_clean(),
            leaked => theirs.has_leaks_only() && theirs.leaked() == leaked,
        };
    if !is_agreed {
        // Never twice the same: whoever is to find out why needs this one.
        let folder = dir.path().display().to_string();
        std::mem::forget(dir);
        panic!("{ours:?} is not the verdict there, the pool stays in {folder}: {theirs}");
    }
}

/// Some of everything.
async fn fill(engine: &Engine) -> Result<()> {
    let head = engine.datasets().create(pools::dataset("tank/a")).await?;
    let object = pools::new_object(engine, &head).await?;
    for round in 0..3 {
        for block in 0..30 {
            pools::write(engine, &head, object, block * 3 + round, round).await?;
        }
        engine.snapshots().create(vec![format!("tank/a@{round}")]).await?;
    }
    engine.datasets().clone_snapshot("tank/a@1", "tank/b", Vec::new(), Creator::ROOT).await?;
    engine.snapshots().destroy("tank/a@0").await?;
    engine.export().await
}

/// What we find.
#[derive(Debug)]
struct Verdict {
    /// Every copy is right, and space is accounted for, leaks apart.
    is_sound: bool,
    /// Bytes that nothing reaches.
    leaked: u64,
    /// Bytes of dedup entries without references.
    unreferenced: u64,
}

async fn check(dir: &Path) -> Result<Verdict> {
    // It attaches and replaces devices: the pool may be on other files of the folder now.
    let scan = scan(&ScanOptions { paths: vec![dir.to_path_buf()] }).await?;
    let candidate = scan.find("tank").expect("the pool is on its devices");
    let pool: Arc<Pool> = Pool::open(candidate, &OpenOptions::default()).await?;
    let summary = verify::pool(&pool, Arc::new(Print), Arc::new(Progress::default())).await?;
    let mut report = leaks::check(&pool).await?;
    if !report.is_clean() {
        println!("{:?}", report.lines());
    }
    let leaked = std::mem::take(&mut report.leaked).bytes;
    let is_sound = summary.is_clean() && report.is_clean();
    Ok(Verdict { is_sound, leaked, unreferenced: report.unreferenced })
}
