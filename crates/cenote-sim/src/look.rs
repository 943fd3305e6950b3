//! Reads the directory of an actor: in a mounted file system, in a view or in a snapshot.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_fs::access::Credentials;
use cenote_fs::mount::Attributes;
use cenote_fs::{FileKind, FileSystem, Mount, Node};
use cenote_pool::Dataset;
use cenote_pool::dsl::deleg::Grant;
use cenote_poolkit::crash::facts::Facts;
use cenote_rt::{Error, Kind, Result};

use crate::model::files::{Found, FoundFile, FoundKind, FoundName};

/// Returns the name of an actor's directory.
pub(crate) fn directory(actor: usize) -> Vec<u8> {
    format!("a{actor}").into_bytes()
}

/// A node of a kind that no task creates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an unexpected {0:?}")]
struct UnexpectedNode(FileKind);

fn strange(kind: FileKind) -> Error {
    Error::new(Kind::Corrupt, UnexpectedNode(kind))
}

/// Reads a part of a file in a mounted file system: fewer bytes at its end.
///
/// # Errors
/// Errors of reading.
pub(crate) async fn read_file(
    mount: &Mount,
    object: u64,
    offset: u64,
    len: usize,
) -> Result<Vec<u8>> {
    let mut bytes = vec![0; len];
    let count = mount.read(object, offset, &mut bytes).await?;
    bytes.truncate(count);
    Ok(bytes)
}

/// Reads the directory in a mounted file system. Returns its object, too.
///
/// # Errors
/// Errors of reading.
pub(crate) async fn in_mount(mount: &Mount, actor: usize) -> Result<(u64, Found)> {
    let root = Credentials::root();
    let top = mount.lookup(&root, mount.root(), &directory(actor)).await?.object;
    let mut found = Found::default();
    let mut to_do = vec![(Vec::new(), top)];
    while let Some((path, dir)) = to_do.pop() {
        let page = mount.read_dir(&root, dir, 0, usize::MAX).await?;
        for entry in page.entries.into_iter().skip(2) {
            let path = [&path[..], b"/", &entry.name].concat();
            let told = mount.attributes(entry.object).await?;
            let kind = match told.kind {
                FileKind::Directory => {
                    to_do.push((path.clone(), entry.object));
                    FoundKind::Dir
                }
                FileKind::Symlink => FoundKind::Link(mount.read_link(entry.object).await?),
                FileKind::Regular => {
                    let bytes = read_file(mount, entry.object, 0, told.size as usize).await?;
                    let mut xattrs = BTreeMap::new();
                    for name in mount.xattrs(&root, entry.object).await? {
                        let value = mount.xattr(&root, entry.object, &name).await?;
                        xattrs.insert(name, value);
                    }
                    found.files.insert(entry.object, file(&told, bytes, xattrs));
                    FoundKind::File
                }
                kind => return Err(strange(kind)),
            };
            found.names.insert(path, FoundName { object: entry.object, kind });
        }
    }
    Ok((top, found))
}

fn file(told: &Attributes, bytes: Vec<u8>, xattrs: BTreeMap<Vec<u8>, Vec<u8>>) -> FoundFile {
    FoundFile { bytes: Arc::new(bytes), mode: told.mode, xattrs, links: told.links }
}

/// Reads the directory in a state that does not change.
///
/// # Errors
/// Errors of reading.
pub(crate) async fn in_frozen(file_system: &Arc<FileSystem>, actor: usize) -> Result<Found> {
    let mut found = Found::default();
    let top = match file_system.root().await?.lookup(&directory(actor)).await {
        // Older than the directory.
        Err(error) if error.kind() == Kind::NotFound => return Ok(found),
        top => top?,
    };
    let mut to_do = vec![(Vec::new(), top)];
    while let Some((path, dir)) = to_do.pop() {
        let mut entries = dir.entries().await?;
        while let Some(entry) = entries.next().await? {
            let path = [&path[..], b"/", &entry.name].concat();
            let node = file_system.node(entry.object).await?;
            let kind = match node.kind() {
                FileKind::Directory => {
                    to_do.push((path.clone(), node));
                    FoundKind::Dir
                }
                FileKind::Symlink => FoundKind::Link(node.target().await?),
                FileKind::Regular => {
                    found.files.insert(entry.object, frozen_file(&node).await?);
                    FoundKind::File
                }
                kind => return Err(strange(kind)),
            };
            found.names.insert(path, FoundName { object: entry.object, kind });
        }
    }
    Ok(found)
}

async fn frozen_file(node: &Node) -> Result<FoundFile> {
    let bytes = node.read_at(0, node.size() as usize).await?.to_vec();
    let mut xattrs = BTreeMap::new();
    for name in node.xattr_names().await? {
        if let Some(value) = node.xattr(&name.name).await? {
            xattrs.insert(name.name, value.to_vec());
        }
    }
    Ok(file(&Attributes::of_node(node), bytes, xattrs))
}

/// Returns the permissions that datasets grant, a fact for each user and for creators.
///
/// # Errors
/// Errors of reading.
pub(crate) async fn grants(datasets: &[Dataset]) -> Result<Facts> {
    let mut facts = Facts::new();
    for dataset in datasets.iter().filter(|dataset| !dataset.is_snapshot()) {
        let all = dataset.delegations().await?;
        for own in all.into_iter().filter(|one| one.dataset == dataset.name()) {
            for Grant { who, id, permissions } in own.grants {
                let names: Vec<_> = permissions.into_keys().collect();
                let what = format!("granted {who:?} {id}");
                facts.insert((dataset.name().to_owned(), what), names.join(","));
            }
        }
    }
    Ok(facts)
}
