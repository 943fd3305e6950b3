//! Pools that are made and written here, judged by OpenZFS's own tools.

mod pools;

use cenote_rt::block_on;
use pools::{Layout, TestPool, judge};

#[test]
fn a_new_pool_is_clean() {
    for layout in Layout::ALL {
        let dir = tempfile_dir();
        let pool = TestPool::new(dir.path(), "tank", layout);
        block_on(2, async {
            let engine = pool.create().await.unwrap();
            engine.export().await.unwrap();
        });
        judge(dir.path(), "tank");
    }
}

fn tempfile_dir() -> pools::TempDir {
    pools::TempDir::new()
}
