//! `zpool trim` and `zpool initialize` of single devices.

use std::path::Path;

use cenote_engine::{Engine, Stop, TrimOptions};
use cenote_ondisk::config::VdevConfig;
use cenote_ondisk::leaf_work::LeafWorkKind;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};

use crate::Shed;

/// Suspends and cancels a trim in progress: the messages, and the state afterwards.
#[test]
fn trim_is_suspended_and_cancelled() {
    let shed = Shed::new("held", 2);
    let path = |name: &str| shed.path().join(name).to_string_lossy().into_owned();
    shed.succeeds("zpool create tank mirror d0 d1");
    cenote_rt::block_on(2, hold_trim(shed.path(), &path("d0"))).expect("a runtime").expect("held");
    let text = shed.succeeds("zpool status -t tank");
    assert!(text.contains("% trimmed, suspended, started at "), "{text}");
    let json = shed.succeeds("zpool status -j --json-int --json-flat-vdevs -t -i tank");
    let leaf = |name: &str, json: &str| {
        let whole: serde_json::Value = serde_json::from_str(json).expect("JSON");
        whole["pools"]["tank"]["vdevs"][path(name)].clone()
    };
    let held = leaf("d0", &json);
    assert_eq!((&held["trim_state"], &held["trim_notsup"]), (&"SUSPENDED".into(), &0.into()));
    let bytes = |key: &str| held[key].as_u64().expect("bytes");
    assert!(bytes("trimmed") < bytes("to_trim") && bytes("to_trim") > 50 << 20, "{held}");
    assert!(bytes("trim_time") > 0 && held["trim_errors"] == 0, "{held}");
    assert_eq!(
        (&held["init_state"], &held["initialized"]),
        (&"UNINITIALIZED".into(), &serde_json::Value::Null)
    );
    assert_eq!(leaf("d1", &json)["trim_state"], "UNTRIMMED");
    assert_eq!(
        leaf("d1", &shed.succeeds("zpool status -j tank"))["trim_state"],
        serde_json::Value::Null
    );
    let none = format!("cannot trim '{}': there is no active trim", path("d0"));
    shed.fails("zpool trim -s tank d0", &none);
    shed.succeeds("zpool trim -c tank d0");
    shed.fails("zpool trim -c tank d0", &none);
    let json = shed.succeeds("zpool status -j --json-flat-vdevs -t tank");
    assert_eq!(leaf("d0", &json)["trim_state"], "CANCELED");
    shed.succeeds("zpool trim -r 10G tank d0");
    let json = shed.succeeds("zpool status -j --json-flat-vdevs -t tank");
    let done = leaf("d0", &json);
    assert_eq!((&done["trim_state"], &done["trimmed"]), (&"COMPLETE".into(), &done["to_trim"]));
    // A file cannot guarantee that old contents are unreadable (`--secure`).
    let text =
        format!("cannot trim '{}': trim operations are not supported by this device", path("d0"));
    shed.fails("zpool trim -d tank", &text);
    let (_, err, status) = shed.run("zpool trim -d -c tank");
    assert!(status == 2 && err.starts_with("-d cannot be combined with the -c or -s options\n"));
    let (_, err, status) = shed.run("zpool trim -r nonsense tank");
    assert!(status == 2 && err.starts_with("invalid value for rate\n"), "{err}");
    shed.fails("zpool events -f tank", "cannot follow events: no daemon keeps pools open");
    shed.judge("tank");
}

/// Starts a slow trim of a device, and suspends it.
async fn hold_trim(folder: &Path, device: &str) -> cenote_rt::Result<()> {
    let options = ScanOptions { paths: vec![folder.to_path_buf()] };
    let scan = scan(&options).await?;
    let candidate = scan.find("tank").expect("the pool");
    let engine = Engine::open(candidate, &OpenOptions::default()).await?;
    let root = engine.admin().vdev_config();
    let is_it = |leaf: &&VdevConfig| {
        leaf.leaf.path.as_ref().is_some_and(|path| path.to_string_lossy() == device)
    };
    let leaf = [root.leaves().find(is_it).expect("the device").guid];
    let slowly = TrimOptions { rate: 4 << 20, ..TrimOptions::default() };
    engine.leaves().start_trim(&leaf, slowly).await?;
    engine.leaves().stop_work(&leaf, LeafWorkKind::Trim, Stop::Suspend).await?;
    engine.export().await
}

/// Work on a missing device is not waited for.
#[test]
fn wait_ignores_trim_of_missing_devices() {
    let shed = Shed::new("waits", 2);
    shed.succeeds("zpool create tank mirror d0 d1");
    let folder = shed.path().to_owned();
    cenote_rt::block_on(1, async {
        let scan = ScanOptions { paths: vec![folder] };
        let scan = cenote_pool::import::scan(&scan).await.expect("a scan");
        let found = scan.find("tank").expect("the pool");
        let engine = Engine::open(found, &OpenOptions::default()).await.expect("the pool");
        let leaf = engine.leaves().data_guids()[0];
        engine.leaves().start_initialize(&[leaf]).await.expect("the start");
    })
    .expect("a runtime");
    shed.succeeds("zpool offline tank d0");
    shed.succeeds("zpool wait tank");
    let status = shed.succeeds("zpool status -i tank");
    assert!(status.contains("% initialized, started at "), "{status}");
    shed.succeeds("zpool online tank d0");
    shed.succeeds("zpool wait -t initialize tank");
    let status = shed.succeeds("zpool status -i tank");
    assert!(status.contains("(100% initialized, completed at "), "{status}");
    shed.judge_with_stale_leaf("tank");
}
