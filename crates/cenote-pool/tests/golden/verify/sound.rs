//! Verify and leak check on every golden pool: no errors and no leaks, except for the known damage
//! of two pools.

use cenote_pool::figures::IoClass;
use cenote_pool::leaks;
use cenote_pool::verify::Finding;
use cenote_testkit::golden;

use super::{open, verify};

#[test]
fn undamaged_pools_verify_without_errors_and_leaks() {
    for golden in golden::all() {
        let (name, images) = (golden.name().to_owned(), golden.images());
        let (summary, findings, leaks) = cenote_rt::block_on(2, async {
            let pool = open(&images, &name).await;
            let (summary, findings) = verify(&pool).await;
            let io = pool.status().await.unwrap().root.io();
            let reads = [IoClass::Scrub, IoClass::SyncRead].map(|class| io.class(class).service);
            assert!(reads.iter().all(|reads| reads.count() > 0), "{name}: {io:?}");
            (summary, findings, leaks::check(&pool).await.unwrap())
        })
        .unwrap();
        println!("{name}: {summary:?}, {} bytes claimed", leaks.claimed);
        // One disk of this pool was damaged; none of its data may be lost.
        if name == "g-degraded" {
            assert!(summary.lost == 0 && summary.unreachable == 0, "{name}: {summary:?}");
            let parts = findings.iter().filter_map(|finding| match finding {
                Finding::Part { part, .. } => Some(part.child.path.as_str()),
                _ => None,
            });
            assert!({ parts }.all(|path| path.ends_with("d3.img")), "{name}");
        } else {
            assert!(summary.is_clean(), "{name}: {summary:?} {:#?}", findings.first());
        }
        assert!(leaks.is_clean(), "{name}: {:#?}", leaks.lines());
        assert_eq!(leaks.found(), leaks.allocated, "{name}");
    }
}
