//! Pools created by OpenZFS: opened for writing, changed, and checked by it; or refused, without a
//! changed byte.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use cenote_engine::{ApplyOptions, Engine, EngineError};
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool, leaks};
use cenote_poolkit::pools;
use cenote_rt::{Result, block_on};
use cenote_testkit::golden::{self, Golden};
use cenote_testkit::rng::wants_all;

/// Pools with an active feature that is not maintained, or of an old version.
const REFUSED: [&str; 5] = ["g-basic", "g-classes", "g-legacy", "g-removed", "g-send"];
/// Some of the others.
const FEW: [&str; 5] = ["g-crypt", "g-expand", "g-quota", "g-raidz2", "g-zil"];

#[test]
fn pools_of_openzfs_are_changed_or_refused() {
    for golden in golden::all() {
        let name = golden.name().to_owned();
        let is_refused = REFUSED.contains(&name.as_str());
        if !is_refused && !FEW.contains(&name.as_str()) && !wants_all() {
            continue;
        }
        let copy = golden.private_copy();
        match block_on(2, change(copy.path(), &name)).unwrap() {
            Ok(()) => {
                assert!(!is_refused, "{name} was opened");
                judge(&golden, copy.path());
            }
            Err(error) => {
                let cause = error.cause::<EngineError>();
                let is_meant = matches!(
                    cause,
                    Some(EngineError::OldVersion(_) | EngineError::Unmaintained(_))
                );
                assert!(is_meant && is_refused, "{name}: {error:?}");
                for (theirs, ours) in golden.devices().iter().zip(copy.devices()) {
                    assert!(is_same(theirs, &ours), "{name}: {} was written", ours.display());
                }
            }
        }
    }
}

/// Adds a dataset with a history.
async fn change(folder: &Path, name: &str) -> Result<()> {
    let scan = scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await?;
    let candidate = scan.find(name).expect("the pool is in its folder");
    let engine = Engine::open(candidate, &OpenOptions::default()).await?;
    let dataset = format!("{name}/ours");
    let head = engine.datasets().create(pools::dataset(&dataset)).await?;
    let object = pools::new_object(&engine, &head).await?;
    for round in 0..3_u64 {
        for block in 0..12 {
            pools::write(&engine, &head, object, block * 5 + round, round).await?;
        }
        engine
            .snapshots()
            .create(vec![format!("{dataset}@{round}"), format!("{name}@{round}")])
            .await?;
    }
    engine
        .datasets()
        .clone_snapshot(&format!("{dataset}@1"), &format!("{name}/clone"), Vec::new())
        .await?;
    engine.snapshots().destroy(&format!("{dataset}@0")).await?;
    engine.snapshots().destroy(&format!("{name}@1")).await?;
    engine.apply(&head, ApplyOptions::new(), |tx| tx.free_range(object, 0, Some(20 << 17))).await?;
    engine.export().await
}

/// Checks the pool with cenote and with OpenZFS.
fn judge(golden: &Golden, folder: &Path) {
    let name = golden.name();
    let report = block_on(2, async {
        let scan = scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await?;
        let pool = Pool::open(scan.find(name).expect("the pool"), &OpenOptions::default()).await?;
        leaks::check(&pool).await
    });
    let report = report.unwrap().unwrap();
    assert!(report.is_clean(), "{name}: {:#?}", report.lines());
    pools::judge(folder, name);
}

/// Whether two files have the same contents.
fn is_same(one: &Path, other: &Path) -> bool {
    let mut files = [one, other].map(|path| File::open(path).unwrap());
    let mut parts = [vec![0; 1 << 20], vec![0; 1 << 20]];
    loop {
        let counts: Vec<usize> =
            files.iter_mut().zip(&mut parts).map(|(file, part)| file.read(part).unwrap()).collect();
        if counts[0] != counts[1] || parts[0][..counts[0]] != parts[1][..counts[1]] {
            return false;
        }
        if counts[0] == 0 {
            return true;
        }
    }
}
