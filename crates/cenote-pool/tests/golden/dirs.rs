//! Damaged dataset trees: blocks with correct checksums in which a directory is the child of one
//! that is not its parent, or has two names. Without a check, walks over them take time exponential
//! in the length of a name.

#![expect(clippy::unwrap_used, reason = "what a test cannot go on from fails it")]

use std::path::Path;
use std::sync::Arc;

use cenote_pool::dsl::DslError;
use cenote_pool::{OpenOptions, Pool, ScanOptions, import};
use cenote_testkit::edit::{Editor, Set};
use cenote_testkit::golden;

async fn open(folder: &Path) -> Arc<Pool> {
    let scan = import::scan(&ScanOptions { paths: vec![folder.to_path_buf()] }).await.unwrap();
    Pool::open(scan.find("g-basic").unwrap(), &OpenOptions::default()).await.unwrap()
}

/// Returns the objects of the root's child ZAP, of the root, and of the directory of g-basic/plain.
async fn objects(folder: &Path) -> [u64; 3] {
    let pool = open(folder).await;
    let plain = pool.dataset("g-basic/plain").await.unwrap().dir().object;
    [pool.root_dir().phys.child_dir_zapobj, pool.root_dir().object, plain]
}

#[test]
fn directory_with_two_parents_is_refused() {
    let Some(golden) = golden("g-basic") else { return };
    for points_at_root in [true, false] {
        let copy = golden.private_copy();
        let [children, root, plain] = cenote_rt::block_on(2, objects(copy.path())).unwrap();
        let target = if points_at_root { root } else { plain };
        Editor::open(&copy.devices()).change(Set::Mos, children, 0, |micro| {
            let entries = micro.as_chunks_mut::<64>().0.iter_mut().skip(1);
            let lz4 = { entries }.find(|entry| entry[14..].starts_with(b"lz4\0")).unwrap();
            lz4[..8].copy_from_slice(&target.to_le_bytes());
        });
        let result = cenote_rt::block_on(2, async { open(copy.path()).await.datasets().await });
        let error = result.unwrap().unwrap_err();
        let expected = if points_at_root {
            DslError::Parent { object: root, parent: 0, expected: root }
        } else {
            DslError::TwoNames { object: plain, name: "plain".to_owned() }
        };
        assert_eq!(error.cause(), Some(&expected), "{error}");
    }
}
