//! Names compared by other rules than their bytes.

use cenote_engine::NewDataset;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode};
use cenote_fs::format::NewFileSystem;
use cenote_fs::mount::errno;
use cenote_fs::{CaseSensitivity, Mount, Time};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::{Result, block_on};
use std::sync::Arc;

use crate::fixture::{Fixture, root};

const FORM_D: u64 = 0x10;

async fn dataset(fixture: &Fixture, name: &str, case: u64, normalization: u64) -> Arc<Mount> {
    let name = format!("tank/{name}");
    let first = NewFileSystem {
        normalization,
        case: match case {
            1 => CaseSensitivity::Insensitive,
            2 => CaseSensitivity::Mixed,
            _ => CaseSensitivity::Sensitive,
        },
        ..NewFileSystem::at(Time::default())
    };
    let props = [("casesensitivity", case), ("normalization", normalization)];
    let new = NewDataset {
        name: name.clone(),
        kind: ObjSetType::Zfs,
        props: props.map(|(name, value)| (name.to_owned(), Value::U64(value))).to_vec(),
        fill: Box::new(move |tx| first.fill(tx)),
    };
    fixture.engine.datasets().create(new).await.unwrap();
    Mount::open(&fixture.engine, &name).await.unwrap()
}

async fn make(mount: &Mount, name: &str) -> Result<u64> {
    let new = NewNode::new(NewKind::Regular, 0o644);
    Ok(mount.create(&root(), mount.root(), name.as_bytes(), &new).await?.object)
}

async fn find(mount: &Mount, name: &str) -> std::result::Result<u64, i32> {
    let found = mount.lookup(&root(), mount.root(), name.as_bytes()).await;
    found.map(|found| found.object).map_err(|error| errno::of(&error))
}

async fn names(mount: &Mount) -> Vec<String> {
    let page = mount.read_dir(&root(), mount.root(), 0, 100).await.unwrap();
    let text = |name: Vec<u8>| String::from_utf8(name).unwrap();
    let mut names: Vec<_> = page.entries.into_iter().skip(2).map(|e| text(e.name)).collect();
    names.sort();
    names
}

async fn rename(mount: &Mount, from: &str, to: &str) -> std::result::Result<(), i32> {
    let (top, mode) = (mount.root(), RenameMode::Plain);
    let changes = Rename { from: (top, from.as_bytes()), to: (top, to.as_bytes()), mode };
    mount.rename(&root(), &changes).await.map_err(|error| errno::of(&error))
}

#[test]
fn casesensitivity_and_normalization_compare_names() {
    block_on(2, async {
        let fixture = Fixture::new().await;
        let mount = dataset(&fixture, "insensitive", 1, 0).await;
        let file = make(&mount, "File").await.unwrap();
        let other = make(&mount, "other").await.unwrap();
        assert_eq!(find(&mount, "fILE").await, Ok(file));
        assert_eq!(errno::of(&make(&mount, "FILE").await.unwrap_err()), errno::EEXIST);
        // Another case is not another name, but the name can be renamed to it.
        rename(&mount, "File", "FILE").await.unwrap();
        assert_eq!(names(&mount).await, ["FILE", "other"]);
        rename(&mount, "OTHER", "file").await.unwrap();
        assert_eq!(find(&mount, "File").await, Ok(other));
        assert_eq!(names(&mount).await.len(), 1);
        mount.unlink(&root(), mount.root(), b"fILe").await.unwrap();
        assert_eq!(find(&mount, "file").await, Err(errno::ENOENT));
        drop(mount);

        let mount = dataset(&fixture, "mixed", 2, 0).await;
        let file = make(&mount, "File").await.unwrap();
        let other = make(&mount, "file").await.unwrap();
        assert_eq!((find(&mount, "File").await, find(&mount, "file").await), (Ok(file), Ok(other)));
        assert_eq!(find(&mount, "FILE").await, Err(errno::ENOENT));
        mount.unlink(&root(), mount.root(), b"File").await.unwrap();
        assert_eq!(names(&mount).await, ["file"]);
        drop(mount);

        let mount = dataset(&fixture, "forms", 0, FORM_D).await;
        let file = make(&mount, "ünï").await.unwrap();
        assert_eq!(find(&mount, "u\u{308}ni\u{308}").await, Ok(file));
        assert_eq!(find(&mount, "ÜNÏ").await, Err(errno::ENOENT));
        let again = make(&mount, "u\u{308}nï").await.unwrap_err();
        assert_eq!(errno::of(&again), errno::EEXIST);
        // Names are stored as they were given.
        rename(&mount, "ünï", "u\u{308}ni\u{308}").await.unwrap();
        assert_eq!(names(&mount).await, ["u\u{308}ni\u{308}"]);
        let new = NewNode::new(NewKind::Regular, 0o644);
        let bad = mount.create(&root(), mount.root(), b"\xff", &new).await.unwrap_err();
        assert_eq!(errno::of(&bad), errno::EILSEQ);
        drop(mount);
        fixture.judge("spelling", &["-dddd"]).await;
    })
    .unwrap();
}
