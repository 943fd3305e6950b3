//! Names compared by other rules than their bytes.

use cenote_dmu::zap::edit as zap;
use cenote_engine::ApplyOptions;
use cenote_engine::{NewDataset, NewEncryption};
use cenote_fs::FileSystem;
use cenote_fs::edit::{NewKind, NewNode, Rename, RenameMode};
use cenote_fs::format::NewFileSystem;
use cenote_fs::mount::errno;
use cenote_fs::{CaseSensitivity, Mount, Time};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::{Kind, Result, Rng, block_on};
use cenote_testkit::rng;
use std::collections::BTreeSet;
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
        encryption: NewEncryption::Inherited,
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

/// Returns a name from a small set of each case, in which many differ in case or normalization
/// only. Cases do not share names: the mount knows names of earlier ones, and the test changes
/// directories without it.
fn draw_name(rng: &mut Rng, case: u64) -> Vec<u8> {
    const PARTS: [&[u8]; 10] =
        [b"a", b"A", b"b", b"B", "é".as_bytes(), "e\u{301}".as_bytes(), b"/", b".", b"\xff", b"x"];
    let len = rng.below(3) + 1;
    let mut name = case.to_string().into_bytes();
    name.extend((0..len).flat_map(|_| PARTS[rng.below(10) as usize]));
    name
}

/// The reader of snapshots and a mount find the same names, whatever a directory contains.
#[test]
fn directories_of_committed_and_open_states_are_read_alike() {
    let mut rng = rng::seeded("directories", 0xd17);
    let cases = rng::cases(4, 60);
    block_on(2, async {
        let fixture = Fixture::new().await;
        for (name, case, normalization) in
            [("plain", 0, 0), ("insensitive", 1, 0), ("mixed", 2, FORM_D), ("normal", 0, FORM_D)]
        {
            let mount = dataset(&fixture, name, case, normalization).await;
            let file = make(&mount, "file").await.unwrap();
            for case in 0..cases {
                let entries: Vec<_> = (0..rng.below(30))
                    .map(|_| {
                        let value = match rng.below(8) {
                            0 => Value::U64(8 << 60),
                            1 => Value::words_of(&[]),
                            2 => Value::bytes_of(b"text\0"),
                            _ => Value::U64(8 << 60 | file),
                        };
                        let is_odd = rng.below(16) == 0;
                        let name = if is_odd { b"..".to_vec() } else { draw_name(&mut rng, case) };
                        (name, value)
                    })
                    .collect();
                let top = mount.root();
                let done = fixture.engine.apply(mount.head(), ApplyOptions::new(), |tx| {
                    for (name, value) in &entries {
                        zap::update(tx, top, name.as_slice(), value.clone())?;
                    }
                    Ok(())
                });
                done.await.unwrap();
                fixture.engine.sync().await.unwrap();
                let view = fixture.engine.view().await.unwrap();
                let committed = view.dataset(&format!("tank/{name}")).await.unwrap();
                let committed = FileSystem::open(&committed).await.unwrap();
                let directory = committed.root().await.unwrap();
                for asked in (0..40).map(|_| draw_name(&mut rng, case)) {
                    if asked.contains(&b'/') {
                        continue;
                    }
                    let open = mount.lookup(&root(), top, &asked).await;
                    let open = open.map(|found| found.object).map_err(|error| error.kind());
                    let found = directory.lookup(&asked).await;
                    let found = found.map(|node| node.object()).map_err(|error| error.kind());
                    assert_eq!(open, found, "{name}, case {case}: {asked:?}");
                }
                let mut listed = BTreeSet::new();
                let mut walk = directory.entries().await.unwrap();
                loop {
                    match walk.next().await {
                        Ok(Some(entry)) => listed.insert(entry.name),
                        Ok(None) => break,
                        Err(error) => {
                            assert_eq!(error.kind(), Kind::Corrupt);
                            continue;
                        }
                    };
                }
                let page = mount.read_dir(&root(), top, 0, 10_000).await.unwrap();
                let open: BTreeSet<_> =
                    page.entries.into_iter().skip(2).map(|entry| entry.name).collect();
                assert_eq!(open, listed, "{name}, case {case}");
            }
        }
    })
    .unwrap();
}
