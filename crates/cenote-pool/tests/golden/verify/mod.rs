//! Verify and leak check on golden pools: unchanged, and with single bit flips.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

mod flips;
mod sound;

use std::path::Path;
use std::sync::{Arc, Mutex};

use cenote_pool::import::{self, ScanOptions};
use cenote_pool::verify::{self, Finding, Observer, Progress};
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::BoxFuture;

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
    Pool::open(scan.find(name).unwrap(), &OpenOptions::default()).await.unwrap()
}

async fn verify(pool: &Arc<Pool>) -> (verify::Summary, Vec<Finding>) {
    let found = Arc::new(Collected::default());
    let observer: Arc<dyn Observer> = Arc::clone(&found) as Arc<dyn Observer>;
    let summary = verify::pool(pool, observer, Arc::new(Progress::default())).await.unwrap();
    let findings = std::mem::take(&mut *found.0.lock().unwrap());
    (summary, findings)
}
