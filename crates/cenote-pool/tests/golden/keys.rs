//! Loading keys when some key objects are damaged: the others are loaded.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

use std::sync::Arc;

use cenote_pool::import::{self, ScanOptions};
use cenote_pool::{OpenOptions, Pool};
use cenote_testkit::edit::{Editor, Set};
use cenote_testkit::golden;

async fn open(folder: &std::path::Path) -> Arc<Pool> {
    let scan = import::scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await.unwrap();
    Pool::open(scan.find("g-crypt").unwrap(), &OpenOptions::default()).await.unwrap()
}

#[test]
fn load_key_skips_damaged_key_objects() {
    let Some(golden) = golden("g-crypt") else { return };
    let copy = golden.private_copy();
    let material = std::fs::read(golden.key_file("pass")).unwrap();
    let material = material.trim_ascii_end();
    cenote_rt::block_on(2, async {
        let pool = open(copy.path()).await;
        let root = pool.dataset("g-crypt/gcm").await.unwrap();
        let all = pool.load_key(&root, material).await.unwrap();
        assert!(all > 1, "{all}");
        let child = pool.dataset("g-crypt/gcm/child").await.unwrap();
        let object = child.key_info().await.unwrap().unwrap().object;
        Editor::open(&copy.devices()).change(Set::Mos, object, 0, |block| block.fill(0));

        let pool = open(copy.path()).await;
        let root = pool.dataset("g-crypt/gcm").await.unwrap();
        assert!(pool.dataset("g-crypt/gcm/child").await.unwrap().key_info().await.is_err());
        assert_eq!(pool.load_key(&root, material).await.unwrap(), all - 1);
        pool.unload_key(&root).await.unwrap();
    })
    .unwrap();
}
