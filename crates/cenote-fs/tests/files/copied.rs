//! Trees that the kernel module wrote are copied; OpenZFS's zdb then prints the same of both.
//!
//! The trees have files of all sizes around block boundaries, holes, many entries, long and foreign
//! names, all kinds of nodes, owners, modes, projects, POSIX ACLs, extended attributes inside and
//! outside of the inode, and the results of changing, moving and removing files.
//!
//! Compared in the output of zdb, by path: kind, levels, block size, allocated part, mode, size,
//! links, owner, group, flags, project, device, and the extended attributes in the inode; and the
//! usage of users, groups and projects. Compared node by node: contents, holes, targets, all
//! extended attributes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use cenote_fs::edit::xattr::Existing;
use cenote_fs::edit::{NewKind, NewNode, SetAttributes, SetTime};
use cenote_fs::mount::{WriteOptions, encode_rdev};
use cenote_fs::{FileKind, FileSystem, Node, PFlags};
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::{Result, block_on};
use cenote_testkit::{cuts, golden};

use crate::accounts;
use crate::fixture::{Fixture, root};

/// A tree, and the properties of the file system that it is copied into.
struct Case {
    pool: &'static str,
    dataset: &'static str,
    properties: &'static [(&'static str, u64)],
    /// Lower bound of the number of paths.
    least: usize,
    /// Files that zdb copies out of both pools.
    files: &'static [&'static str],
}

const CASES: [Case; 4] = [
    Case {
        pool: "g-basic",
        dataset: "g-basic/plain",
        properties: &[("compression", 2)],
        least: 500,
        files: &[
            "sizes/noise-512",
            "sizes/text-131073",
            "sizes/text-1048583",
            "sparse/punched",
            "edits/overwritten",
            "edits/appended",
            "edits/truncated",
            "xattr/many",
        ],
    },
    // Extended attributes in directories, and POSIX ACLs.
    Case {
        pool: "g-basic",
        dataset: "g-basic/acl",
        properties: &[("xattr", 1), ("acltype", 1)],
        least: 500,
        files: &["sizes/text-131071", "xattr/posix-acl"],
    },
    // Projects, and owners with quotas.
    Case { pool: "g-quota", dataset: "g-quota/a", properties: &[], least: 500, files: &[] },
    Case {
        pool: "g-quota",
        dataset: "g-quota/ln",
        properties: &[("longname", 1)],
        least: 1,
        files: &[],
    },
];

/// Longer files without data were created by setting their size.
const ZEROS_MAX: u64 = 1 << 20;

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
        if at.is_none() && node.size() < ZEROS_MAX {
            // Written zeros, of which compression makes holes.
            let zeros = vec![0; node.size() as usize];
            mount.write(&me, made, 0, &zeros, WriteOptions::default()).await?;
        }
        while let Some(start) = at {
            let end = node.next_hole(start).await?.unwrap_or(node.size());
            let bytes = node.read_at(start, (end - start) as usize).await?;
            mount.write(&me, made, start, &bytes, WriteOptions::default()).await?;
            at = node.next_data(end).await?;
        }
        let changes = SetAttributes { size: Some(node.size()), ..SetAttributes::default() };
        if mount.attributes(made).await?.size != node.size() {
            mount.set_attributes(&me, made, &changes).await?;
        }
    }
    for attribute in node.xattr_names().await? {
        let value = node.xattr(&attribute.name).await?.unwrap();
        mount.set_xattr(&me, made, &attribute.name, &value, Existing::Any).await?;
    }
    let is_link = node.kind() == FileKind::Symlink;
    let changes = SetAttributes {
        mode: (!is_link).then_some(mode),
        uid: Some(from.uid.0 as u32),
        gid: Some(from.gid.0 as u32),
        atime: Some(SetTime::To(from.atime)),
        mtime: Some(SetTime::To(from.mtime)),
        ..SetAttributes::default()
    };
    mount.set_attributes(&me, made, &changes).await?;
    let hands_down = node.attributes().flags & PFlags::PROJINHERIT.bits() != 0;
    let project = from.projid.unwrap_or(0);
    if hands_down || project != 0 {
        let mut flags = mount.attributes(made).await?.flags;
        flags.set(PFlags::PROJINHERIT, hands_down);
        let (flags, project) = (Some(flags), Some(project as u32));
        let changes = SetAttributes { flags, project, ..SetAttributes::default() };
        mount.set_attributes(&me, made, &changes).await?;
    }
    Ok(made)
}

/// Returns zdb's facts about each path.
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

/// Returns zdb's usage of users, groups and projects, by object and key.
fn used(text: &str) -> BTreeMap<(String, String), String> {
    let (mut all, mut object) = (BTreeMap::new(), None);
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line.trim_start().starts_with("Object  lvl") {
            let number = lines.next().and_then(|line| line.split_whitespace().next());
            object = number.filter(|number| number.starts_with('-')).map(str::to_owned);
        } else if let (Some(object), Some((key, value))) = (&object, line.split_once(" = ")) {
            all.insert((object.clone(), key.trim().to_owned()), value.to_owned());
        }
    }
    all
}

/// Root's usage may differ: it includes the file system's own objects, which other software lays
/// out differently.
fn compare_used(theirs: &str, ours: &str) {
    let of_others = |text: &str| {
        let mut used = used(text);
        assert!(used.len() >= 6, "{used:?}");
        used.retain(|(_, key), _| key != "0");
        used
    };
    assert_eq!(of_others(theirs), of_others(ours));
}

fn open_golden(case: &Case) -> Option<(Arc<Pool>, golden::Golden)> {
    let golden = golden::golden(case.pool)?;
    let paths = golden.devices();
    let name = case.pool;
    let pool = block_on(2, async move {
        let found = scan(&ScanOptions { paths }).await.unwrap();
        Pool::open(found.find(name).unwrap(), &OpenOptions::default()).await.unwrap()
    });
    Some((pool.unwrap(), golden))
}

/// Compares two trees node by node, through the reader.
async fn compare_nodes(theirs: &Arc<FileSystem>, ours: &Arc<FileSystem>) -> usize {
    let mut to_do = vec![(Vec::new(), theirs.root().await.unwrap(), ours.root().await.unwrap())];
    let mut count = 0;
    while let Some((path, theirs, ours)) = to_do.pop() {
        let place = String::from_utf8_lossy(&path).into_owned();
        count += 1;
        assert_eq!(theirs.kind(), ours.kind(), "{place}");
        assert_eq!(theirs.device(), ours.device(), "{place}");
        let values = async |node: &Node| {
            let mut all = BTreeMap::new();
            for found in node.xattr_names().await.unwrap() {
                let value = node.xattr(&found.name).await.unwrap().unwrap();
                all.insert(found.name, value.to_vec());
            }
            all
        };
        assert!(values(&theirs).await == values(&ours).await, "{place}: extended attributes");
        match theirs.kind() {
            FileKind::Directory => {
                let mut entries = theirs.entries().await.unwrap();
                while let Some(entry) = entries.next().await.unwrap() {
                    let path = [&path[..], b"/", &entry.name].concat();
                    let node = theirs.filesystem().node(entry.object).await.unwrap();
                    let there = ours.lookup(&entry.name).await;
                    to_do.push((path, node, there.unwrap_or_else(|_| panic!("{place}"))));
                }
                assert_eq!(theirs.size(), ours.size(), "{place}: entries");
            }
            FileKind::Symlink => {
                assert_eq!(theirs.target().await.unwrap(), ours.target().await.unwrap(), "{place}");
            }
            FileKind::Regular => {
                let mut at = Some(0);
                while let Some(start) = at {
                    let data = theirs.next_data(start).await.unwrap();
                    assert_eq!(data, ours.next_data(start).await.unwrap(), "{place}: {start}");
                    let Some(data) = data else { break };
                    at = theirs.next_hole(data).await.unwrap();
                    assert_eq!(at, ours.next_hole(data).await.unwrap(), "{place}: {data}");
                    let len = (at.unwrap_or(theirs.size()) - data) as usize;
                    let bytes = theirs.read_at(data, len).await.unwrap();
                    let written = ours.read_at(data, len).await.unwrap();
                    assert!(bytes[..] == written[..], "{place}: {data}");
                }
                assert_eq!(theirs.size(), ours.size(), "{place}");
            }
            _ => {}
        }
    }
    count
}

#[test]
fn copied_trees_equal_those_of_the_kernel_module() {
    let Some(zdb) = cenote_oracle::zdb() else { return };
    for case in &CASES {
        write_again(&zdb, case);
    }
}

fn write_again(zdb: &cenote_oracle::Tool, case: &Case) {
    let Some((pool, golden)) = open_golden(case) else { return };
    let said = zdb.pool(case.dataset, &golden.images(), &["-ddddd"]);
    assert!(said.is_success(), "{said}");
    let theirs_said = said.to_string();
    let theirs = told(&theirs_said);
    assert!(theirs.len() > case.least, "{}: {}", case.dataset, theirs.len());
    let (dataset, properties) = (case.dataset, case.properties);
    let devices = block_on(2, async move {
        let source = FileSystem::open(&pool.dataset(dataset).await.unwrap()).await.unwrap();
        let fixture =
            Fixture::of(&PoolBuilder::file_system().with_ashift(9).with_size(256 << 20)).await;
        for (name, value) in properties {
            fixture.engine.properties().set("tank", name, (*value).into()).await.unwrap();
        }
        let top = fixture.mount.root();
        copy(&fixture, source.root().await.unwrap(), top).await.unwrap();
        let Fixture { engine, devices, mount } = fixture;
        drop(mount);
        engine.export().await.unwrap();
        accounts::check(&devices).await.unwrap();
        let written = pools::open_copy(&devices).await.unwrap();
        let written = FileSystem::open(&written.dataset("tank").await.unwrap()).await.unwrap();
        let count = compare_nodes(&source, &written).await;
        println!("{dataset}: {count} nodes");
        devices
    });
    let devices = devices.unwrap();
    let folder = std::env::temp_dir().join(format!("cenote-copied-{}", std::process::id()));
    cuts::unpack(&pools::images_of(&devices), &folder);
    let said = zdb.pool("tank", &folder, &["-bcc"]);
    assert!(said.is_clean(), "{said}");
    let ours = zdb.pool("tank", &folder, &["-ddddd"]);
    assert!(ours.is_success(), "{ours}");
    let ours = ours.to_string();
    compare_used(&theirs_said, &ours);
    compare(&theirs, &told(&ours));
    copies_out(zdb, case, &folder, &golden.images());
    std::fs::remove_dir_all(&folder).ok();
}

fn compare(theirs: &BTreeMap<String, Vec<String>>, ours: &BTreeMap<String, Vec<String>>) {
    // A file with several names has the path of the last link; hidden files are elsewhere.
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

/// Checks that files copied out of both pools by zdb have the same bytes.
fn copies_out(zdb: &cenote_oracle::Tool, case: &Case, ours: &Path, theirs: &Path) {
    for path in case.files {
        let copy = |devices: &Path, dataset: &str| {
            let target = std::env::temp_dir().join(format!("cenote-out-{}", std::process::id()));
            let to = target.to_string_lossy();
            let said = zdb.pool_with(devices, &["-r"], &[dataset, path, to.as_ref()]);
            assert!(said.is_success(), "{said}");
            let bytes = std::fs::read(&target).unwrap();
            std::fs::remove_file(&target).unwrap();
            bytes
        };
        assert!(copy(ours, "tank") == copy(theirs, case.dataset), "{path}");
    }
}
