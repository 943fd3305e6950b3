//! Pools of development versions of encryption, from the images of OpenZFS's test suite.

use std::fs::File;
use std::process::Command;
use std::sync::Arc;

use cenote_engine::Engine;
use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Kind, Result, block_on};
use cenote_testkit::skip::{current_test, skip};

use crate::Shed;

/// Where the package of the test suite has its images.
const IMAGES: &str = "/usr/share/zfs/zfs-tests/tests/functional/cli_root/zpool_import/blockfiles";

/// Unpacks an image, if the test suite is installed.
fn unpacked(name: &str) -> Option<Shed> {
    let Ok(packed) = File::open(format!("{IMAGES}/{name}.dat.bz2")) else {
        skip(&current_test(), "the test suite of OpenZFS is not installed");
        return None;
    };
    let shed = Shed::new(name, 0);
    let image = File::create(shed.path().join("d0")).expect("an image");
    let unpacked = Command::new("bzip2").arg("-dc").stdin(packed).stdout(image).status();
    if !unpacked.is_ok_and(|status| status.success()) {
        skip(&current_test(), "bzip2 is not installed");
        return None;
    }
    Some(shed)
}

async fn open(shed: &Shed, pool: &str) -> Result<Arc<Engine>> {
    let scan = scan(&ScanOptions { paths: vec![shed.path().to_path_buf()] }).await?;
    Engine::open(scan.find(pool).expect("the pool"), &OpenOptions::default()).await
}

/// A file system with keys of the first development format can be read, but not written.
async fn read(shed: &Shed) -> Result<()> {
    const NAME: &str = "cryptv0/testfs";
    let engine = open(shed, "cryptv0").await?;
    let view = engine.view().await?;
    view.load_key(&view.dataset(NAME).await?, b"password").await?;
    drop(view);
    assert_eq!(Mount::open(&engine, NAME).await.expect_err("refused").kind(), Kind::ReadOnly);
    let mount = Mount::open_read_only(&engine, NAME).await?;
    let root = Credentials::root();
    let file = mount.lookup(&root, mount.root(), b"testfile").await?;
    let mut bytes = [0; 512];
    mount.read(file.object, 0, &mut bytes).await?;
    let new = NewNode::new(NewKind::Regular, 0o644);
    let refused = mount.create(&root, mount.root(), b"new", &new).await.expect_err("refused");
    assert_eq!(refused.kind(), Kind::ReadOnly);
    drop(mount);
    // The refused mount left nothing to be written.
    engine.sync().await?;
    engine.export().await
}

#[test]
fn errata_3_is_shown_and_its_datasets_can_be_read() {
    let Some(shed) = unpacked("cryptv0") else { return };
    let status = shed.succeeds("zpool status cryptv0");
    assert!(status.contains("status: Errata #3 detected.\n"), "{status}");
    assert!(status.contains("/ZFS-8000-ER\n"), "{status}");
    block_on(2, read(&shed)).expect("a runtime").expect("read");
    shed.succeeds("zfs destroy -r cryptv0/testfs");
    shed.succeeds("zfs destroy -r cryptv0/testvol");
    let status = shed.succeeds("zpool status cryptv0");
    assert!(!status.contains("Errata #3"), "{status}");
}

#[test]
fn errata_4_is_shown_until_its_datasets_are_gone() {
    let Some(shed) = unpacked("missing_ivset") else { return };
    let errata = |shed: &Shed| shed.succeeds("zpool status missing_ivset").contains("Errata #4");
    assert!(errata(&shed));
    shed.succeeds("zpool set feature@bookmark_v2=enabled missing_ivset");
    assert!(errata(&shed), "snapshots without IV set guid");
    shed.succeeds("zfs destroy -r missing_ivset/testfs");
    shed.succeeds("zfs destroy -r missing_ivset/testvol");
    assert!(!errata(&shed));
}
