//! Imports count no errors of healthy devices: the unwritten end of a log is how every log ends.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_poolkit::pools;
use cenote_rt::block_on;

use crate::layout::Layout;
use crate::model::Op;
use crate::volume;

/// Returns the leaves with errors, and their numbers.
fn blamed(engine: &Engine) -> Vec<(String, u64)> {
    let leaves = engine.tree().leaves().map(|(_, leaf)| {
        let stats = leaf.stats();
        let errors = stats.read_errors + stats.write_errors + stats.checksum_errors;
        (leaf.path().to_owned(), errors)
    });
    leaves.filter(|(_, errors)| *errors > 0).collect()
}

#[test]
fn import_after_a_kill_counts_no_device_errors() {
    for layout in Layout::ALL {
        block_on(2, async {
            let (engine, devices) = layout.builder(7).create_in_memory().await;
            let volume = volume(&engine, "tank/v").await.unwrap();
            for round in 0..20 {
                let op = Op { first: round, count: 3, salt: Some(round + 1) };
                let place = volume.apply(&engine, op, false).await.unwrap();
                volume.commit(&engine, place).await.unwrap();
            }
            // As after a kill: nothing is closed, and the log has records after the last commit.
            drop((engine, volume));
            // Claimed by one import, and replayed by the next.
            for is_replayed in [false, true] {
                let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
                assert_eq!(blamed(&engine), [], "{layout:?}");
                let head = engine.head("tank/v").await.unwrap();
                if is_replayed {
                    let replayer = &cenote_engine::zil::VolumeReplayer;
                    engine
                        .intent_logs()
                        .replay(&head, replayer)
                        .await
                        .unwrap()
                        .expect("there is a log");
                    engine.export().await.unwrap();
                } else {
                    engine.sync().await.unwrap();
                }
                assert_eq!(blamed(&engine), [], "{layout:?}");
                assert_eq!(engine.health().take_notices(), [], "{layout:?}");
            }
        })
        .unwrap();
    }
}

#[test]
fn import_of_openzfs_logs_counts_no_device_errors() {
    for golden in cenote_testkit::golden::all() {
        let copy = golden.private_copy();
        block_on(2, async {
            let found = scan(&ScanOptions { paths: copy.devices() }).await.unwrap();
            let Some(candidate) = found.candidates.first() else { return };
            // Some can be opened for reading only.
            let Ok(engine) = Engine::open(candidate, &OpenOptions::default()).await else { return };
            let engine: Arc<Engine> = engine;
            assert_eq!(blamed(&engine), [], "{}", golden.name());
            engine.export().await.unwrap();
            assert_eq!(blamed(&engine), [], "{}", golden.name());
        })
        .unwrap();
    }
}
