//! Names, holes, paths, ACLs and volumes of golden pools, beyond what manifests show.

use std::sync::Arc;

use cenote_fs::acl;
use cenote_fs::{FileKind, FileSystem, Follow, FsError, Node, Volume, Who};
use cenote_ondisk::nvlist::{Encoding, NvList};
use cenote_pool::{OpenOptions, Pool, ScanOptions, import};
use cenote_rt::Result;
use cenote_testkit::golden;

async fn open(name: &str, paths: Vec<std::path::PathBuf>) -> Result<Arc<Pool>> {
    let scan = import::scan(&ScanOptions { paths }).await?;
    Pool::open(scan.find(name).expect("the pool is found"), &OpenOptions::default()).await
}

/// Runs `test` on a golden pool.
fn with_pool(name: &str, test: impl AsyncFnOnce(Arc<Pool>) -> Result<()>) {
    let Some(golden) = golden(name) else { return };
    cenote_rt::block_on(2, async { test(open(name, vec![golden.images()]).await?).await })
        .expect("runtime")
        .expect("reads");
}

async fn files(pool: &Arc<Pool>, name: &str) -> Result<Arc<FileSystem>> {
    FileSystem::open(&pool.dataset(name).await?).await
}

/// Checks that pieces are adjacent, and agree with seeks and with direct reads.
async fn check_stream(node: &Node) -> Result<u32> {
    let (mut next, mut holes) = (0, 0);
    let mut stream = node.stream()?;
    while let Some(piece) = stream.next().await {
        let piece = piece?;
        assert_eq!(piece.offset, next);
        next += piece.len;
        if let Some(data) = &piece.data {
            assert_eq!(node.next_data(piece.offset).await?, Some(piece.offset));
            assert_eq!(node.read_at(piece.offset, data.len()).await?[..], data[..]);
        } else {
            holes += 1;
            assert_eq!(node.next_hole(piece.offset).await?, Some(piece.offset));
            assert_ne!(node.next_data(piece.offset).await?, Some(piece.offset));
            let probe = node.read_at(piece.offset, 4096).await?;
            let inside = probe.len().min(piece.len as usize);
            assert!(probe[..inside].iter().all(|byte| *byte == 0));
        }
    }
    assert_eq!(next, node.size());
    assert!(node.read_at(node.size(), 10).await?.is_empty());
    assert_eq!(node.next_hole(node.size()).await?, None);
    Ok(holes)
}

#[test]
fn streams_seeks_and_reads_agree() {
    with_pool("g-basic", async |pool| {
        let fs = files(&pool, "g-basic/plain").await?;
        let mut holes = 0;
        for directory in ["sparse", "sizes", "edits"] {
            let directory = fs.walk(directory.as_bytes(), Follow::Yes).await?;
            let mut entries = directory.entries().await?;
            while let Some(entry) = entries.next().await? {
                let node = fs.node(entry.object).await?;
                assert_eq!(entry.kind, Some(node.kind()));
                assert_eq!(node.parent().await?.object(), directory.object());
                if node.kind() == FileKind::Regular {
                    holes += check_stream(&node).await?;
                }
            }
        }
        assert!(holes > 3);
        let islands = fs.walk(b"sparse/islands", Follow::No).await?;
        assert!(islands.stat_blocks() * 512 < islands.size() / 10);
        let part: Vec<_> = {
            let mut stream = islands.stream_range(100..5_000_000)?;
            let mut lens = Vec::new();
            while let Some(piece) = stream.next().await {
                lens.push(piece?.len);
            }
            lens
        };
        assert_eq!(part.iter().sum::<u64>(), 5_000_000 - 100);
        Ok(())
    });
}

#[test]
fn paths_lead_to_nodes_and_back() {
    with_pool("g-basic", async |pool| {
        let fs = files(&pool, "g-basic/plain").await?;
        let root = fs.root().await?;
        for path in ["/", "", ".", "..", "sizes/..", "/sizes/../.."] {
            assert_eq!(
                fs.walk(path.as_bytes(), Follow::Yes).await?.object(),
                root.object(),
                "{path}"
            );
        }
        assert_eq!(fs.path_of(root.object()).await?.as_deref(), Some(&b"/"[..]));
        let deep = fs.walk(b"deep/deep1/deep2/deep3", Follow::Yes).await?;
        let path = fs.path_of(deep.object()).await?;
        assert_eq!(path.as_deref(), Some(&b"/deep/deep1/deep2/deep3"[..]));
        for (path, want) in [
            (&b"nope"[..], FsError::NoEntry),
            (b"sizes/nope/more", FsError::NoEntry),
            (b"sparse/islands/more", FsError::NotADirectory),
            (b"sparse/islands/", FsError::NotADirectory),
        ] {
            let error = fs.walk(path, Follow::Yes).await.expect_err("no such path");
            assert_eq!(error.cause::<FsError>(), Some(&want), "{path:?}");
        }
        let error = root.read_at(0, 1).await.expect_err("a directory");
        assert_eq!(error.cause::<FsError>(), Some(&FsError::IsADirectory));
        assert!(fs.unlinked().await?.is_empty());
        Ok(())
    });
}

#[test]
fn a_directory_can_be_read_in_parts() {
    with_pool("g-basic", async |pool| {
        let fs = files(&pool, "g-basic/plain").await?;
        let many = fs.walk(b"many", Follow::Yes).await?;
        let mut whole = many.entries().await?;
        let (mut names, mut resumed) = (Vec::new(), Vec::new());
        while let Some(entry) = whole.next().await? {
            names.push(entry.name);
        }
        let mut cookie = None;
        loop {
            let mut part = match cookie {
                None => many.entries().await?,
                Some(cookie) => many.entries_from(cookie).await?,
            };
            for _ in 0..37 {
                resumed.extend(part.next().await?.map(|entry| entry.name));
            }
            let place = part.cookie();
            if cookie == Some(place) || resumed.len() >= names.len() {
                break;
            }
            cookie = Some(place);
        }
        assert_eq!(resumed, names);
        assert_eq!(names.len() as u64 + 2, many.size());
        Ok(())
    });
}

#[test]
fn names_follow_the_rules_of_their_dataset() {
    with_pool("g-legacy", async |pool| {
        for (name, version) in [("v1", 1), ("v3", 3), ("v4", 4), ("v5", 5)] {
            let fs = files(&pool, &format!("g-legacy/{name}")).await?;
            assert_eq!(fs.version(), version);
            assert!(fs.root().await?.find(b"TINY").await?.is_none());
        }
        let root = files(&pool, "g-legacy/ci").await?.root().await?;
        // Composed and decomposed forms, in either case, are one name; the stored form is returned.
        for name in ["ünï", "u\u{308}ni\u{308}", "ÜNÏ", "U\u{308}NI\u{308}"] {
            let found = root.find(name.as_bytes()).await?.expect(name);
            assert_eq!(found.name, "ünï".as_bytes());
        }
        let error = root.find(b"\xff").await.expect_err("no UTF-8");
        assert_eq!(error.cause::<FsError>(), Some(&FsError::NotUtf8));
        Ok(())
    });
    with_pool("g-quota", async |pool| {
        let root = files(&pool, "g-quota/a").await?.root().await?;
        assert!(root.find(b"nope").await?.is_none());
        let error = root.find(b"nope\xff").await.expect_err("no UTF-8");
        assert_eq!(error.cause::<FsError>(), Some(&FsError::NotUtf8));
        let root = files(&pool, "g-quota/ln").await?.root().await?;
        let mut entries = root.entries().await?;
        let mut longest = 0;
        while let Some(entry) = entries.next().await? {
            assert_eq!(root.lookup(&entry.name).await?.object(), entry.object);
            longest = longest.max(entry.name.len());
        }
        assert!(longest > 255, "{longest}");
        Ok(())
    });
}

#[test]
fn trivial_acls_say_what_the_mode_says() {
    for (pool, dataset) in
        [("g-legacy", "g-legacy/v1"), ("g-legacy", "g-legacy/v3"), ("g-basic", "g-basic/acl")]
    {
        with_pool(pool, async |pool| {
            let root = files(&pool, dataset).await?.root().await?;
            let acl = root.acl().await?;
            assert!(!acl.is_truncated);
            assert!((3..=6).contains(&acl.entries.len()), "{dataset}: {acl:?}");
            let last = acl.entries.last().expect("entries");
            assert_eq!((last.who(), last.kind), (Who::Everyone, 0), "{dataset}");
            Ok(())
        });
    }
}

/// ACLs for every mode, and lists of extended attributes, equal those that the kernel module wrote.
#[test]
fn acls_and_lists_are_made_as_they_were() {
    let datasets = [
        ("g-basic", "g-basic/plain"),
        ("g-basic", "g-basic/lz4"),
        ("g-basic", "g-basic/acl"),
        ("g-quota", "g-quota/a"),
    ];
    for (pool, dataset) in datasets {
        with_pool(pool, async |pool| {
            let fs = files(&pool, dataset).await?;
            let (mut open, mut nodes, mut lists) = (vec![fs.root().await?], 0, 0);
            while let Some(node) = open.pop() {
                check_acl(&node, dataset == "g-basic/acl").await?;
                nodes += 1;
                if let Some(packed) = node.attributes().dxattr.as_deref() {
                    let list = NvList::decode(packed).expect("a list");
                    assert!(list.encode(Encoding::Xdr) == packed, "{}", node.object());
                    lists += 1;
                }
                if node.is_directory() {
                    let mut entries = node.entries().await?;
                    while let Some(entry) = entries.next().await? {
                        open.push(fs.node(entry.object).await?);
                    }
                }
            }
            println!("{dataset}: {nodes} ACLs, {lists} lists");
            assert!(nodes > 30);
            Ok(())
        });
    }
}

/// Checks that the ACL of a node equals that of its mode, and its flags those of the ACL.
async fn check_acl(node: &Node, has_posix_acls: bool) -> Result<()> {
    let file = node.attributes();
    let aces = node.acl().await?.entries;
    let ids = acl::Ids { uid: file.uid.0, gid: file.gid.0 };
    let place = format!("object {}: mode {:o}", node.object(), file.mode);
    if has_posix_acls {
        // With acltype=posix the kernel module applies the umask to the mode after the ACL was
        // written, and leaves the ACL alone when a POSIX ACL changes the mode.
        assert!(acl::is_trivial(&aces), "{place}");
        return Ok(());
    }
    assert_eq!(aces, acl::trivial(file.mode, node.is_directory()), "{place}");
    let again = acl::set(aces, file.pflags(), file.mode, ids, node.is_directory());
    assert_eq!(again.mode, file.mode, "{place}");
    assert_eq!(again.apply(file.pflags()), file.pflags(), "{place}");
    Ok(())
}

#[test]
fn volumes_have_their_sizes() {
    with_pool("g-zvol", async |pool| {
        for (name, block_size) in [("v4K", 4096), ("v8K", 8192), ("v128K", 131_072)] {
            let volume = Volume::open(&pool.dataset(&format!("g-zvol/{name}")).await?).await?;
            assert_eq!((volume.size(), volume.block_size()), (33_554_432, block_size));
            assert_eq!(volume.read_at(volume.size() - 5, 10).await?.len(), 5);
            let mut stream = volume.stream_range(1000..3000);
            let mut bytes = Vec::new();
            while let Some(piece) = stream.next().await {
                let piece = piece?;
                bytes
                    .extend(piece.data.map_or_else(|| vec![0; piece.len as usize], |d| d.to_vec()));
            }
            assert_eq!(bytes, volume.read_at(1000, 2000).await?.to_vec());
            let error = files(&pool, &format!("g-zvol/{name}")).await.expect_err("a volume");
            assert_eq!(error.cause::<FsError>(), Some(&FsError::NotAFilesystem));
        }
        Ok(())
    });
}
