//! Names of damaged files in `zpool status`.

use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cenote_cli::run_captured as cenote;
use cenote_engine::Engine;
use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::WriteOptions;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Kind, Result, Rng, block_on};

use crate::Shed;

/// Record size: the second record of the file is damaged.
const RECORD: usize = 128 << 10;

pub(crate) async fn open(shed: &Shed) -> Result<Arc<Engine>> {
    let scan = scan(&ScanOptions { paths: vec![shed.path().to_path_buf()] }).await?;
    Engine::open(scan.find("t").expect("the pool"), &OpenOptions::default()).await
}

/// Creates a file, a snapshot with it and a clone of the snapshot.
async fn fill(shed: &Shed) -> Result<()> {
    let engine = open(shed).await?;
    let mount = Mount::open(&engine, "t").await?;
    let (root, new) = (Credentials::root(), NewNode::new(NewKind::Regular, 0o644));
    let file = mount.create(&root, mount.root(), b"lost", &new).await?;
    let mut bytes = vec![0; 2 * RECORD];
    Rng::seeded(1).fill(&mut bytes);
    mount.write(&root, file.object, 0, &bytes, WriteOptions::default()).await?;
    drop(mount);
    engine.snapshots().create(vec!["t@s".into()]).await?;
    engine.datasets().clone_snapshot("t@s", "t/c", Vec::new()).await?;
    engine.export().await
}

/// Reads the damaged record, which adds it to the error log.
async fn read(shed: &Shed) -> Result<()> {
    let engine = open(shed).await?;
    let mount = Mount::open(&engine, "t").await?;
    let file = mount.lookup(&Credentials::root(), mount.root(), b"lost").await?;
    let mut bytes = [0; 16];
    assert_eq!(mount.read(file.object, 0, &mut bytes).await?, 16);
    let error = mount.read(file.object, RECORD as u64, &mut bytes).await.expect_err("lost");
    assert_eq!(error.kind(), Kind::Checksum);
    drop(mount);
    engine.sync().await?;
    engine.export().await
}

/// Returns the files that `zpool status` names, sorted.
fn damaged_files(shed: &Shed) -> Vec<String> {
    let status = shed.succeeds("zpool status -v t");
    let head = "errors: Permanent errors have been detected in the following files:\n\n";
    let (_, list) = status.split_once(head).unwrap_or_else(|| panic!("{status}"));
    let mut found: Vec<_> = list.lines().map(|line| line.trim_start().to_owned()).collect();
    found.sort_unstable();
    found
}

/// With `head_errlog` a damaged file is named in every dataset that shares the block, else only
/// where it was read, and error scrubs are refused, until the feature is enabled.
#[test]
fn status_names_damaged_files() {
    for (options, names) in [
        ("", &["t/c:/lost", "t:/lost", "t@s:/lost"][..]),
        ("-o compatibility=grub2 ", &["t:/lost"]),
    ] {
        let shed = Shed::new("lost", 1);
        shed.succeeds(&format!("zpool create {options}t d0"));
        block_on(2, fill(&shed)).expect("a runtime").expect("written");
        let folder = shed.path().to_str().expect("UTF-8");
        let (shown, ..) = cenote(&["where", "-H", "-d", folder, "t", "lost"]);
        let place = shown.lines().find_map(|line| line.strip_prefix(&format!("{RECORD}\t")));
        let place = place.and_then(|line| line.split('\t').next()?.parse().ok());
        let device = std::fs::File::options().read(true).write(true).open(shed.path().join("d0"));
        let place = place.unwrap_or_else(|| panic!("{shown}"));
        let (device, mut was) = (device.expect("a device"), [0; 512]);
        device.read_exact_at(&mut was, place).expect("what was there");
        device.write_all_at(&[0x5a; 512], place).expect("damage");
        block_on(2, read(&shed)).expect("a runtime").expect("read");
        let status = shed.succeeds("zpool status t");
        assert!(status.ends_with("\nerrors: 1 data errors, use '-v' for a list\n"), "{status}");
        assert!(status.contains("status: One or more devices has experienced an error resulting"));
        assert_eq!(damaged_files(&shed), names, "{options}");
        if !options.is_empty() {
            let refused = "cannot scrub t: operation not supported on this type of pool";
            shed.fails("zpool scrub -e -w t", refused);
            // The feature keeps the errors, and names all datasets that have the block.
            shed.succeeds("zpool set compatibility=off t");
            shed.succeeds("zpool set feature@head_errlog=enabled t");
            assert_eq!(damaged_files(&shed), ["t/c:/lost", "t:/lost", "t@s:/lost"]);
            continue;
        }
        // An error scrub reads it again: in vain, and then with success.
        for (bytes, errors) in [(None, "1 data errors, use"), (Some(was), "No known data errors")] {
            if let Some(bytes) = bytes {
                device.write_all_at(&bytes, place).expect("restored");
            }
            shed.succeeds("zpool scrub -e -w t");
            let status = shed.succeeds("zpool status t");
            let told = "\n scrub: scrubbed 1 error blocks in 0 days 00:00:0";
            assert!(status.contains(told) && status.contains(errors), "{status}");
        }
    }
}

/// Overwrites what the pool has at a record of a file.
fn damage(shed: &Shed, dataset: &str, file: &str, record: usize) {
    let folder = shed.path().to_str().expect("UTF-8");
    let (shown, ..) = cenote(&["where", "-H", "-d", folder, dataset, file]);
    let start = format!("{}\t", record * RECORD);
    let place = shown.lines().find_map(|line| line.strip_prefix(&start));
    let place = place.and_then(|line| line.split('\t').next()?.parse().ok());
    let place = place.unwrap_or_else(|| panic!("{shown}"));
    let device = std::fs::File::options().write(true).open(shed.path().join("d0"));
    device.expect("a device").write_all_at(&[0x5a; 512], place).expect("damage");
}

/// Two damaged records of a file that only a snapshot has are listed there alone, and nowhere once
/// the snapshot is destroyed.
#[test]
fn status_omits_blocks_that_no_dataset_has() {
    let shed = Shed::new("gone", 1);
    shed.succeeds("zpool create t d0");
    block_on(2, fill(&shed)).expect("a runtime").expect("written");
    shed.succeeds("zfs destroy t/c");
    damage(&shed, "t", "lost", 0);
    damage(&shed, "t", "lost", 1);
    let work = async {
        let engine = open(&shed).await?;
        let mount = Mount::open(&engine, "t").await?;
        let root = Credentials::root();
        let file = mount.lookup(&root, mount.root(), b"lost").await?;
        for record in 0..2 {
            let read = mount.read(file.object, (record * RECORD) as u64, &mut [0; 16]).await;
            assert_eq!(read.expect_err("lost").kind(), Kind::Checksum);
        }
        engine.sync().await?;
        mount.unlink(&root, mount.root(), b"lost").await?;
        drop(mount);
        engine.export().await
    };
    block_on(2, work).expect("a runtime").expect("removed");
    let status = shed.succeeds("zpool status -v t");
    let head = "errors: Permanent errors have been detected in the following files:\n\n";
    let (_, list) = status.split_once(head).unwrap_or_else(|| panic!("{status}"));
    assert_eq!(list, "        t@s:/lost\n");
    let status = shed.succeeds("zpool status t");
    assert!(status.ends_with("\nerrors: 1 data errors, use '-v' for a list\n"), "{status}");
    shed.succeeds("zfs destroy t@s");
    let status = shed.succeeds("zpool status -v t");
    assert!(status.ends_with("\nerrors: No known data errors\n"), "{status}");
}
