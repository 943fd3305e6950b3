//! Reads files, directories and volumes as their users do.

use std::sync::Arc;

use cenote_fs::{FileKind, FileSystem, Node, Volume};
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::{Dataset, DatasetKind};

use crate::facts::{Facts, Place};

/// Bytes read at the start of a file.
const HEAD_LEN: usize = 64 << 10;
/// The path of one node in this many is looked up, which reads its directories.
const PATHS_EVERY: u64 = 8;

/// Reads some objects of a dataset.
pub(crate) async fn dataset(facts: &mut Facts, dataset: &Dataset, objects: &[(u64, ObjectType)]) {
    match dataset.kind().await {
        Ok(DatasetKind::Filesystem) => filesystem(facts, dataset, objects).await,
        Ok(DatasetKind::Volume) => {
            let name = format!("volume {}", dataset.name());
            if let Some(volume) = facts.take(&*name, Volume::open(dataset).await) {
                facts.see(name, Ok((volume.size(), volume.block_size())));
            }
        }
        _ => {}
    }
}

async fn filesystem(facts: &mut Facts, dataset: &Dataset, objects: &[(u64, ObjectType)]) {
    let name = dataset.name();
    let opened = FileSystem::open(dataset).await;
    let Some(fs) = facts.take(format!("file system {name}"), opened) else { return };
    facts.see(format!("rules of {name}"), Ok((fs.version(), fs.root_object(), fs.rules())));
    facts.see(format!("unlinked of {name}"), fs.unlinked().await);
    facts.see(format!("domains of {name}"), fs.domains().await);
    let root = fs.root_object();
    let nodes = objects.iter().filter(|(object, bonus)| {
        *object != root && [ObjectType::SA, ObjectType::ZNODE].contains(bonus)
    });
    let nodes = nodes.map(|(object, _)| *object);
    for object in std::iter::once(root).chain(nodes) {
        let place = (dataset.object(), object);
        let found = fs.node(object).await;
        let Some(found) = facts.take(format!("node {place:?}"), found) else { continue };
        node(facts, place, &fs, &found).await;
    }
}

async fn node(facts: &mut Facts, place: Place, fs: &Arc<FileSystem>, node: &Node) {
    facts.see(format!("attributes of {place:?}"), Ok((node.attributes(), node.stat_blocks())));
    facts.see(format!("ACL of {place:?}"), node.acl().await);
    if let Some(names) = facts.see(format!("xattrs of {place:?}"), node.xattr_names().await) {
        for name in names {
            let value = node.xattr(&name.name).await;
            let value = value.map(|value| value.map(|value| value.to_vec()));
            facts.see(format!("xattr {:?} of {place:?}", name.name), value);
        }
    }
    match node.kind() {
        FileKind::Symlink => drop(facts.see(format!("target of {place:?}"), node.target().await)),
        FileKind::Directory => directory(facts, place, node).await,
        FileKind::Regular => {
            let head = node.read_at(0, HEAD_LEN).await.map(|bytes| bytes.to_vec());
            facts.see(format!("head of {place:?}"), head);
            facts.see(format!("first data of {place:?}"), node.next_data(0).await);
        }
        _ => {}
    }
    if place.1.is_multiple_of(PATHS_EVERY) {
        facts.see(format!("path of {place:?}"), fs.path_of(place.1).await);
    }
}

async fn directory(facts: &mut Facts, place: Place, node: &Node) {
    let name = format!("directory {place:?}");
    let Some(mut entries) = facts.take(&*name, node.entries().await) else { return };
    let (mut is_whole, mut count) = (true, 0_u64);
    loop {
        match entries.next().await {
            Ok(Some(entry)) => {
                count += 1;
                facts.entry(place, &entry);
                if count.is_multiple_of(16) {
                    match node.find(&entry.name).await {
                        Ok(Some(found)) if found == entry => {}
                        other => drop(facts.see(format!("{name}: {:?}", entry.name), other)),
                    }
                }
            }
            Ok(None) => break,
            Err(error) => {
                is_whole = false;
                facts.fail(&*name, error);
            }
        }
    }
    if is_whole {
        facts.see(name, Ok(count));
    }
}
