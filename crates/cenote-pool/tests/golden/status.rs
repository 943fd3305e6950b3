//! History, scans, removal, expansion, checkpoint, holds and names of the golden pools.

use std::sync::Arc;

use cenote_ondisk::scan::{ScanFunc, ScanState};
use cenote_pool::history::HistoryEvent;
use cenote_pool::props::PropRow;
use cenote_pool::status::{ExpansionState, Reason, state_name};
use cenote_pool::{DatasetKind, KeyError, OpenOptions, Pool, ScanOptions, import};
use cenote_rt::Kind;
use cenote_testkit::{Golden, golden};

async fn open(golden: &Golden) -> Arc<Pool> {
    let scan = import::scan(&ScanOptions { paths: vec![golden.images()] }).await.expect("scan");
    let candidate = scan.find(golden.name()).expect("found");
    Pool::open(candidate, &OpenOptions::default()).await.expect("opens")
}

fn on(name: &str, test: impl AsyncFnOnce(Arc<Pool>, Golden)) {
    let Some(golden) = golden(name) else { return };
    cenote_rt::block_on(2, async {
        let pool = open(&golden).await;
        test(pool, golden).await;
    })
    .expect("runtime");
}

/// Every record that OpenZFS printed is present, in order; the export adds more.
#[test]
fn history_equals_openzfs() {
    cenote_rt::block_on(2, async {
        for name in cenote_testkit::golden_names() {
            let Some(golden) = golden(&name) else { continue };
            let Some(wanted) = golden.text("history.txt") else { continue };
            let history = open(&golden).await.history().await.expect("history");
            assert_eq!((history.damage, history.lost), (None, 0), "{name}");
            let mut ours = history.records.iter().filter_map(|record| match &record.event {
                HistoryEvent::Command(command) => Some(command.clone()),
                HistoryEvent::Internal { txg, name, dataset, text } => {
                    let dataset = dataset.as_ref().map(|(name, id)| format!("{name} ({id}) "));
                    Some(format!("[txg:{txg}] {name} {}{text}", dataset.unwrap_or_default()))
                }
                HistoryEvent::Ioctl { name, elapsed_ns, .. } => {
                    Some(format!("({}ms) ioctl {name}", elapsed_ns / 1_000_000))
                }
                HistoryEvent::Other => None,
            });
            let mut count = 0;
            for line in wanted.lines().filter(|line| line.starts_with("20")) {
                let (_, line) = line.split_once(' ').expect("time and text");
                let line = line.rsplit_once(" [").map_or(line, |(text, _)| text);
                let ours = ours.next().expect("a record");
                assert_eq!(ours.trim_end(), line.trim_end(), "{name}");
                count += 1;
            }
            assert!(count > 10, "{name}");
        }
    })
    .expect("runtime");
}

/// State and message id of every pool, compared with `zpool status`.
#[test]
fn status_states_and_message_ids_equal_openzfs() {
    cenote_rt::block_on(2, async {
        for name in cenote_testkit::golden_names() {
            let Some(golden) = golden(&name) else { continue };
            let Some(wanted) = golden.text("zpool-status.txt") else { continue };
            let status = open(&golden).await.status().await.expect("status");
            let line =
                |start: &str| wanted.lines().find_map(|line| line.trim_start().strip_prefix(start));
            let state = state_name(status.root.state, status.root.aux);
            assert_eq!(line("state: "), Some(state), "{name}");
            let id = line("see: ").and_then(|url| url.rsplit('-').next());
            assert_eq!(status.reason.message_id(), id, "{name}: {:?}", status.reason);
            let says_something = line("status: ").is_some();
            assert_eq!(status.reason != Reason::Ok, says_something, "{name}: {:?}", status.reason);
        }
    })
    .expect("runtime");
}

#[test]
fn status_of_a_running_resilver() {
    on("g-scan", async |pool, _| {
        let status = pool.status().await.expect("status");
        assert_eq!(status.reason, Reason::Resilvering);
        let scan = status.scan.expect("scan");
        assert_eq!((scan.func, scan.state), (ScanFunc::Resilver, ScanState::Scanning));
    });
}

#[test]
fn status_of_a_raidz_expansion_and_its_scrub() {
    on("g-expand", async |pool, _| {
        let status = pool.status().await.expect("status");
        assert_eq!(status.reason, Reason::Ok);
        let scan = status.scan.expect("scan");
        assert_eq!((scan.func, scan.state), (ScanFunc::Scrub, ScanState::Finished));
        assert_eq!((scan.processed, scan.errors), (0, 0));
        let [expansion] = status.expansions[..] else { panic!("{:?}", status.expansions) };
        assert_eq!((expansion.vdev, expansion.state), (0, ExpansionState::Finished));
        // "copied 452K"
        assert_eq!(expansion.copied >> 10, 452);
    });
}

#[test]
fn status_of_a_removal_and_a_checkpoint() {
    on("g-removed", async |pool, _| {
        let status = pool.status().await.expect("status");
        let removal = status.removal.expect("removal");
        assert_eq!((removal.phys.state, removal.phys.removing_vdev), (2, 1));
        assert_eq!((removal.mapping_bytes, (removal.phys.copied * 100) >> 20), (72, 268));
        let checkpoint = status.checkpoint.expect("checkpoint");
        assert!(checkpoint.bytes > 140 << 10 && checkpoint.time > removal.phys.end_time);
    });
}

#[test]
fn import_of_the_checkpoint() {
    let Some(golden) = golden("g-removed") else { return };
    cenote_rt::block_on(2, async {
        let scan = import::scan(&ScanOptions { paths: vec![golden.images()] }).await.expect("scan");
        let candidate = scan.find("g-removed").expect("found");
        let options = OpenOptions { checkpoint: true, ..OpenOptions::default() };
        let pool = Pool::open(candidate, &options).await.expect("opens");
        let now = open(&golden).await;
        assert_eq!(Some(pool.txg()), now.checkpoint_txg());
        assert!(pool.checkpoint_txg().is_none());
        assert!(pool.dataset("g-removed/a").await.is_ok());
    })
    .expect("runtime");
}

#[test]
fn status_of_a_degraded_pool() {
    on("g-degraded", async |pool, _| {
        let status = pool.status().await.expect("status");
        assert_eq!(status.reason, Reason::MissingReplicated);
        let absent = status.root.walk().find(|vdev| vdev.is_absent).expect("absent");
        assert_eq!(absent.name, "11483021572564583263");
        assert_eq!(absent.path.as_deref(), Some("/dev/shm/v/d1"));
        assert_eq!(status.error_count, 0);
    });
}

#[test]
fn datasets_are_found_by_name_and_by_number() {
    on("g-basic", async |pool, _| {
        for name in ["g-basic", "g-basic/lz4", "g-basic/lz4@two", "g-basic/clone@rec"] {
            let dataset = pool.dataset(name).await.expect(name);
            assert_eq!(dataset.name(), name);
            let again = pool.dataset_by_object(dataset.object()).await.expect(name);
            assert_eq!(again.name(), name);
            assert_eq!(dataset.kind().await.expect("kind"), DatasetKind::Filesystem);
        }
        for (name, kind) in [
            ("g-basic/none", Kind::NotFound),
            ("g-basic/lz4@none", Kind::NotFound),
            ("g-basic/lz4#none", Kind::Invalid),
            ("other/lz4", Kind::NotFound),
            ("g-basic/$MOS", Kind::NotFound),
            ("g-basic//a", Kind::Invalid),
        ] {
            assert_eq!(pool.dataset(name).await.expect_err(name).kind(), kind, "{name}");
        }
        let mark = pool.bookmark("g-basic/lz4#mark").await.expect("bookmark");
        assert_eq!(mark.phys.creation_txg, 24);
        let names: Vec<_> = pool.datasets().await.expect("datasets");
        let names: Vec<_> = names.iter().map(cenote_pool::Dataset::name).collect();
        let wanted = ["g-basic", "g-basic/acl", "g-basic/clone", "g-basic/lz4", "g-basic/plain"];
        assert_eq!(names, wanted);
    });
}

#[test]
fn holds_clones_and_written_properties() {
    on("g-basic", async |pool, _| {
        let two = pool.dataset("g-basic/lz4@two").await.expect("snapshot");
        assert_eq!(two.holds().await.expect("holds").len(), 1);
        let clone = pool.dataset("g-basic/clone").await.expect("clone");
        let origin = clone.origin().await.expect("origin").expect("a clone");
        assert_eq!(origin.name(), "g-basic/lz4@one");
        assert_eq!(origin.clone_names().await.expect("clones"), ["g-basic/clone"]);
        let value = async |dataset: &str, property: &str| {
            let props = pool.dataset(dataset).await.expect(dataset).props().await.expect("props");
            let row = props.get(property).await.expect(property);
            row.as_ref().map(PropRow::literal)
        };
        // Spec 04 §17.3: since the first snapshot, written = referenced - its own + what died.
        let since_one = value("g-basic/lz4", "written@one").await.expect("written");
        assert_eq!(value("g-basic/lz4", "written#mark").await, Some(since_one.clone()));
        let since_two = value("g-basic/lz4", "written@two").await.expect("written");
        assert!(since_one.parse::<u64>().unwrap() >= since_two.parse::<u64>().unwrap());
        assert_eq!(
            value("g-basic/clone", "written@g-basic/lz4@one").await.map(|v| v != "0"),
            Some(true)
        );
        assert_eq!(value("g-basic/plain", "written@g-basic/lz4@one").await, None);
        assert_eq!(value("g-basic/lz4", "written@none").await, None);
        assert_eq!(value("g-basic/lz4", "volsize").await, None);
        assert_eq!(value("g-basic/lz4", "user:note").await.as_deref(), Some("hello"));
        assert_eq!(value("g-basic/lz4", "userused@0").await.map(|v| v != "0"), Some(true));
        let one = pool.dataset("g-basic/lz4@one").await.expect("snapshot");
        let freed = one.space_of_snapshots(&one).await.expect("space");
        assert_eq!(freed, one.phys().unique_bytes);
    });
}

#[test]
fn load_key_opens_the_datasets_of_its_encryption_root() {
    on("g-crypt", async |pool, golden| {
        let gcm = pool.dataset("g-crypt/gcm").await.expect("dataset");
        let child = pool.dataset("g-crypt/gcm/child").await.expect("dataset");
        assert_eq!(gcm.open().await.expect_err("locked").kind(), Kind::KeyUnavailable);
        let cause = |error: cenote_rt::Error| error.cause::<KeyError>().copied();
        let wrong = pool.load_key(&gcm, b"wrong passphrase\n").await.expect_err("wrong");
        assert_eq!(wrong.kind(), Kind::WrongKey);
        let inherits = pool.load_key(&child, b"x").await.expect_err("inherits");
        assert_eq!(cause(inherits), Some(KeyError::NotRoot));
        let root = pool.root_dataset().await.expect("root");
        let plain = pool.load_key(&root, b"x").await.expect_err("not encrypted");
        assert_eq!(cause(plain), Some(KeyError::NotEncrypted));
        let key = std::fs::read(golden.key_file("pass")).expect("key");
        // The dataset, its child and its volume.
        assert_eq!(pool.load_key(&gcm, &key).await.expect("key"), 3);
        let twice = pool.load_key(&gcm, &key).await.expect_err("loaded");
        assert_eq!(cause(twice), Some(KeyError::AlreadyLoaded));
        for name in ["g-crypt/gcm", "g-crypt/gcm/child", "g-crypt/gcm/vol", "g-crypt/gcm@s"] {
            let dataset = pool.dataset(name).await.expect(name);
            assert!(!dataset.open().await.expect(name).is_locked());
            assert_eq!(
                dataset.encryption_root().await.expect(name).as_deref(),
                Some("g-crypt/gcm")
            );
        }
        pool.unload_key(&gcm).await.expect("unload");
        assert_eq!(child.open().await.expect_err("locked").kind(), Kind::KeyUnavailable);
    });
}

/// The intent log is not replayed when a pool is opened for reading.
#[test]
fn import_of_a_pool_with_an_intent_log() {
    on("g-zil", async |pool, _| {
        assert_eq!(pool.rewound_from(), None);
        assert!(pool.datasets().await.expect("datasets").len() > 1);
        assert!(pool.space().await.expect("space").damage.is_empty());
    });
}
