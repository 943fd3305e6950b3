//! `zfs destroy` of datasets with dependents.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::Result;

use crate::Shed;

/// More nested clones than would fit on a stack that recursed through them.
const DEPTH: usize = 300;

async fn nest(shed: &Shed) -> Result<()> {
    let scan = scan(&ScanOptions { paths: vec![shed.path().to_path_buf()] }).await?;
    let engine: Arc<Engine> =
        Engine::open(scan.find("t").expect("the pool"), &OpenOptions::default()).await?;
    engine.snapshots().create(vec!["t/0@s".into()]).await?;
    for number in 1..DEPTH {
        let (origin, name) = (format!("t/{}@s", number - 1), format!("t/{number}"));
        engine.datasets().clone_snapshot(&origin, &name, Vec::new()).await?;
        engine.snapshots().create(vec![format!("{name}@s")]).await?;
    }
    engine.export().await
}

#[test]
fn destroy_removes_hundreds_of_nested_clones() {
    let shed = Shed::new("nested", 1);
    shed.succeeds("zpool create -O mountpoint=none t d0");
    shed.succeeds("zfs create t/0");
    cenote_rt::block_on(2, nest(&shed)).expect("a runtime").expect("a pool");
    let told = shed.succeeds("zfs destroy -nRv t/0");
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines.len(), 2 * DEPTH);
    // The last clone is destroyed first.
    let last = DEPTH - 1;
    assert_eq!(lines[0], format!("would destroy t/{last}@s"));
    assert_eq!(lines[2 * last..], ["would destroy t/0@s", "would destroy t/0"]);
    shed.succeeds("zfs destroy -R t/0");
    assert_eq!(shed.succeeds("zfs list -H -o name -t all"), "t\n");
    shed.judge("t");
}

#[test]
fn destroy_refuses_a_clone_of_its_own_descendant() {
    let shed = Shed::new("circle", 1);
    shed.succeeds("zpool create -O mountpoint=none t d0");
    for line in
        ["zfs create t/a", "zfs snapshot t/a@s", "zfs clone t/a@s t/a/b", "zfs promote t/a/b"]
    {
        shed.succeeds(line);
    }
    let told = "cannot determine dependent datasets: recursive dependency at 't/a'";
    shed.fails("zfs destroy -R t/a", told);
    shed.fails("zfs destroy -r t/a", told);
    shed.succeeds("zfs promote t/a");
    shed.succeeds("zfs destroy -r t/a");
    shed.judge("t");
}
