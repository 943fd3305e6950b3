//! A tree that the kernel wrote, written again here: OpenZFS's zdb tells the same of both.
//!
//! The tree has files of all sizes around the edges of blocks, holes, many entries, long and
//! foreign names, all kinds of nodes, owners, modes, extended attributes in and beside the inode.
//! Compared, by path: kind, levels, block size, allocated part, mode, size, links, owner, group,
//! flags, project, device, and the extended attributes that are in the inode.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote_fs::edit::xattr::Existing;
use cenote_fs::edit::{NewKind, NewNode, SetAttributes, SetTime};
use cenote_fs::mount::{WriteOptions, encode_rdev};
use cenote_fs::{FileKind, FileSystem, Node};
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool};
use cenote_rt::{Result, block_on};
use cenote_testkit::{cuts, golden};

use crate::fixture::{Fixture, root};
use crate::pools::{self, Shape};

const POOL: &str = "g-basic";
const DATASET: &str = "g-basic/plain";

/// Copies everything below a directory.
async fn copy(fixture: &Fixture, from: Node, to: u64) -> Result<()> {
    let mut copied: BTreeMap<u64, u64> = BTreeMap::new();
    let mut to_do = vec![(from, to)];
    while let Some((source, target)) = to_do.pop() {
        let mut entries = source.entries().await?;
        while let Some(entry) = entries.next().await? {
            let node = source.filesystem().node(entry.object).await?;
            if let Some(there) = copied.get(&entry.object) {
                fixture.mount.link(&root(), *there, target, &entry.name).await?;
                continue;
            }
            let made = copy_node(fixture, &node, target, &entry.name).await?;
            copied.insert(entry.object, made);
            if node.is_directory() {
                to_do.push((node, made));
            }
        }
    }
    Ok(())
}

async fn copy_node(fixture: &Fixture, node: &Node, parent: u64, name: &[u8]) -> Result<u64> {
    let (mount, me) = (&fixture.mount, root());
    let link = if node.kind() == FileKind::Symlink { node.target().await? } else { Vec::new() };
    let rdev = node.device().map_or(0, |(major, minor)| encode_rdev(major, minor));
    let kind = match node.kind() {
        FileKind::Directory => NewKind::Directory,
        FileKind::Symlink => NewKind::Symlink(&link),
        FileKind::Fifo => NewKind::Fifo,
        FileKind::Socket => NewKind::Socket,
        FileKind::CharDevice => NewKind::CharDevice(rdev),
        FileKind::BlockDevice => NewKind::BlockDevice(rdev),
        _ => NewKind::Regular,
    };
    let from = node.attributes();
    let mode = (from.mode & 0o7777) as u32;
    let made = mount.create(&me, parent, name, &NewNode::new(kind, mode & 0o777)).await?.object;
    if node.kind() == FileKind::Regular {
        let mut at = node.next_data(0).await?;
        while let Some(start) = at {
            let end = node.next_hole(start).await?.unwrap_or(node.size());
            let bytes = node.read_at(start, (end - start) as usize).await?;
            mount.write(&me, made, start, &bytes, WriteOptions::default()).await?;
            at = node.next_data(end).await?;
        }
        let wish = SetAttributes { size: Some(node.size()), ..SetAttributes::default() };
        if mount.attributes(made).await?.size != node.size() {
            mount.set_attributes(&me, made, &wish).await?;
        }
    }
    for attribute in node.xattr_names().await? {
        let value = node.xattr(&attribute.name).await?.unwrap();
        mount.set_xattr(&me, made, &attribute.name, &value, Existing::Any).await?;
    }
    let is_link = node.kind() == FileKind::Symlink;
    let wish = SetAttributes {
        mode: (!is_link).then_some(mode),
        uid: Some(from.uid.0 as u32),
        gid: Some(from.gid.0 as u32),
        atime: Some(SetTime::To(from.atime)),
        mtime: Some(SetTime::To(from.mtime)),
        ..SetAttributes::default()
    };
    mount.set_attributes(&me, made, &wish).await?;
    Ok(made)
}

/// What zdb tells of each path.
fn told(text: &str) -> BTreeMap<String, Vec<String>> {
    let mut all = BTreeMap::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        if !line.trim_start().starts_with("Object  lvl") {
            continue;
        }
        let Some(head) = lines.next() else { break };
        let words: Vec<&str> = head.split_whitespace().collect();
        let kind = words.get(8..).unwrap_or(&[]).join(" ");
        let mut facts = vec![kind.clone()];
        if kind == "ZFS plain file" {
            // Levels, block size, logical size, allocated part.
            facts.extend([1, 3, 6, 7].map(|at| words[at].to_owned()));
        }
        let mut path = None;
        while let Some(line) = lines.next_if(|line| !line.trim_start().starts_with("Object  lvl")) {
            let Some((key, value)) = line.trim_start().split_once('\t') else {
                // An extended attribute; entries of directories have other numbers.
                if line.starts_with("\t\t") && line.contains(" = ") && !line.contains("(type: ") {
                    facts.push(line.trim().to_owned());
                }
                continue;
            };
            match key {
                "path" => path = Some(value.to_owned()),
                "mode" | "size" | "links" | "uid" | "gid" | "pflags" | "projid" | "rdev"
                | "target" => {
                    facts.push(format!("{key} {value}"));
                }
                _ => {}
            }
            if key.trim() == "mtime" && kind == "ZFS plain file" {
                facts.push(line.trim().to_owned());
            }
        }
        if let Some(path) = path {
            all.insert(path, facts);
        }
    }
    all
}

fn open_golden() -> Option<(Arc<Pool>, golden::Golden)> {
    let golden = golden::golden(POOL)?;
    let paths = golden.devices();
    let pool = block_on(2, async move {
        let found = scan(&ScanOptions { paths }).await.unwrap();
        Pool::open(found.find(POOL).unwrap(), &OpenOptions::default()).await.unwrap()
    });
    Some((pool.unwrap(), golden))
}

#[test]
fn a_tree_of_the_kernel_is_written_the_same() {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    let Some((pool, golden)) = open_golden() else { return };
    let theirs = zdb.pool(DATASET, &golden.images(), &["-ddddd"]);
    assert!(theirs.is_success(), "{theirs}");
    let theirs = told(&theirs.to_string());
    assert!(theirs.len() > 500, "{}", theirs.len());
    let devices = block_on(2, async {
        let source = FileSystem::open(&pool.dataset(DATASET).await.unwrap()).await.unwrap();
        let fixture = Fixture::of(&Shape { ashift: 9, size: 256 << 20, ..Shape::DISK }).await;
        // As the original has it.
        fixture.engine.set_property("tank", "compression", 2.into()).await.unwrap();
        let top = fixture.mount.root();
        copy(&fixture, source.root().await.unwrap(), top).await.unwrap();
        let Fixture { engine, devices, mount } = fixture;
        drop(mount);
        engine.export().await.unwrap();
        devices
    });
    let devices = devices.unwrap();
    let folder = std::env::temp_dir().join(format!("cenote-copied-{}", std::process::id()));
    cuts::unpack(&pools::images_of(&devices), &folder);
    let said = zdb.pool("tank", &folder, &["-bcc"]);
    assert!(said.is_clean(), "{said}");
    let ours = zdb.pool("tank", &folder, &["-ddddd"]);
    assert!(ours.is_success(), "{ours}");
    let ours = told(&ours.to_string());
    compare(&theirs, &ours);
    copies_out(&zdb, &folder, &golden.images());
    std::fs::remove_dir_all(&folder).ok();
}

fn compare(theirs: &BTreeMap<String, Vec<String>>, ours: &BTreeMap<String, Vec<String>>) {
    // A file of several names has the path that it got last; hidden files are elsewhere.
    let is_elsewhere = ["links/hard", "links/target", "moved-hard", "<xattrdir>"];
    let is_compared = |path: &&String| !is_elsewhere.iter().any(|part| path.contains(part));
    let mut problems = Vec::new();
    for path in theirs.keys().filter(is_compared) {
        match ours.get(path) {
            Some(found) if *found == theirs[path] => {}
            found => problems.push(format!("{path}\n  {:?}\n  {found:?}", theirs[path])),
        }
    }
    let count = problems.len();
    problems.truncate(12);
    assert!(problems.is_empty(), "{count} paths differ:\n{}", problems.join("\n"));
}

/// Files come out of both pools with the same bytes.
fn copies_out(zdb: &cenote_oracle::Tool, ours: &Path, theirs: &Path) {
    let paths = ["sizes/noise-512", "sizes/text-131073", "sparse/punched", "edits/overwritten"];
    for path in paths {
        let copy = |devices: &Path, dataset: &str| {
            let target = std::env::temp_dir().join(format!("cenote-out-{}", std::process::id()));
            let to = target.to_string_lossy();
            let said = zdb.pool_with(devices, &["-r"], &[dataset, path, to.as_ref()]);
            assert!(said.is_success(), "{said}");
            let bytes = std::fs::read(&target).unwrap();
            std::fs::remove_file(&target).unwrap();
            bytes
        };
        assert!(copy(ours, "tank") == copy(theirs, DATASET), "{path}");
    }
}
