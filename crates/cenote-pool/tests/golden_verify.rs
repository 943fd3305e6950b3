//! Verify and leak check on every golden pool: what OpenZFS made has neither errors nor leaks,
//! but for the damage that two of the pools were given.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

use std::path::Path;
use std::sync::{Arc, Mutex};

use cenote_pool::import::{self, ScanOptions};
use cenote_pool::verify::{self, Finding, Observer, Progress};
use cenote_pool::{OpenOptions, Pool, leaks};
use cenote_rt::BoxFuture;
use cenote_testkit::golden;

#[derive(Default)]
struct Collected(Mutex<Vec<Finding>>);

impl Observer for Collected {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        self.0.lock().unwrap().push(finding);
        Box::pin(std::future::ready(()))
    }
}

async fn open(folder: &Path, name: &str) -> Arc<Pool> {
    let scan = import::scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await.unwrap();
    let candidate = scan.find(name).unwrap();
    Pool::open(candidate, &OpenOptions::default()).await.unwrap()
}

async fn verify(pool: &Arc<Pool>) -> (verify::Summary, Vec<Finding>) {
    let found = Arc::new(Collected::default());
    let observer: Arc<dyn Observer> = Arc::clone(&found) as Arc<dyn Observer>;
    let summary = verify::pool(pool, observer, Arc::new(Progress::default())).await.unwrap();
    let findings = std::mem::take(&mut *found.0.lock().unwrap());
    (summary, findings)
}

#[test]
fn sound_pools_have_no_errors_and_no_leaks() {
    for golden in golden::all() {
        let (name, images) = (golden.name().to_owned(), golden.images());
        let (summary, findings, leaks) = cenote_rt::block_on(2, async {
            let pool = open(&images, &name).await;
            let (summary, findings) = verify(&pool).await;
            (summary, findings, leaks::check(&pool).await.unwrap())
        })
        .unwrap();
        println!("{name}: {summary:?}, {} bytes claimed", leaks.claimed);
        // One disk of this pool was damaged on purpose; nothing of it may be lost.
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
