//! `zdb -O` and `-r`: shows or copies the object at a path. Also finds the path of an object.

use std::io::Write;
use std::sync::Arc;

use cenote_dmu::{Dnode, ObjSet, Zap};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::znode::DirEntry;
use cenote_pool::Dataset;

use super::dataset::{ObjectRange, Set, Target};
use super::pool::Show;
use super::{dataset, znode};
use crate::io::{CommandResult, Exit, words};
use crate::{err, out};

/// Maximum number of components of a path.
const DEPTH_MAX: usize = 4096;
/// Object number of the master node.
const MASTER_NODE: u64 = 1;
/// Status for a path that does not exist: the system's errno.
const ENOENT: i32 = 2;
/// Mode of a copied file.
const COPY_MODE: u32 = 0o644;
/// Zeros for holes in a copy.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Shows or copies the object at the path in the second operand.
pub(super) async fn run(show: &mut Show<'_, '_>, dataset: &Dataset) -> CommandResult {
    let options = show.options;
    let path = options.operands.get(1).map_or("", String::as_str);
    let objset = dataset::open(dataset).await?;
    let object = match find(&objset, path).await {
        Ok(Some(object)) => object,
        Ok(None) => {
            err!(show.io, "failed to lookup {path}: No such file or directory")?;
            return Err(Exit::Status(ENOENT));
        }
        Err(error) => return Err(Exit::failed(format!("failed to lookup {path}: {error}"))),
    };
    if options.has('r') {
        let target = options.operands.get(2).map_or("", String::as_str);
        return copy(show, &objset, object, target).await;
    }
    let ranges = dataset::parse_ranges(&[object.to_string()])?;
    show.found(dataset, &ranges).await
}

impl Show<'_, '_> {
    async fn found(&mut self, dataset: &Dataset, ranges: &[ObjectRange]) -> CommandResult {
        self.objset(&Target::Dataset(dataset), ranges).await
    }
}

/// Returns the object at `path`, starting at the root directory.
async fn find(objset: &Arc<ObjSet>, path: &str) -> cenote_rt::Result<Option<u64>> {
    let master = Zap::open(objset, MASTER_NODE).await?;
    let mut object = master.require_u64("ROOT").await?;
    for component in path.split('/').filter(|component| !component.is_empty()) {
        let dnode = objset.dnode(object).await?;
        if dnode.phys().object_type != ObjectType::DIRECTORY_CONTENTS {
            return Ok(None);
        }
        let entry = Zap::of(dnode).await?.lookup(component).await?;
        match entry.and_then(|value| value.first()) {
            Some(word) => object = DirEntry::decode(word).object,
            None => return Ok(None),
        }
    }
    Ok(Some(object))
}

async fn copy(
    show: &mut Show<'_, '_>,
    objset: &Arc<ObjSet>,
    object: u64,
    target: &str,
) -> CommandResult {
    let dnode: Arc<Dnode> = objset.dnode(object).await?;
    let set = Set::new(Arc::clone(objset), false).await;
    let size = znode::attributes(&set, &dnode).await?.map_or(0, |attributes| attributes.size);
    let mut file = {
        use std::os::unix::fs::OpenOptionsExt;
        let mut open = std::fs::OpenOptions::new();
        open.write(true).create(true).truncate(true).mode(COPY_MODE);
        open.open(target)
            .map_err(|error| Exit::failed(format!("Failed to open {target}: {}", words(&error))))?
    };
    out!(show.io, "Copying object {object} to file {target}")?;
    out!(show.io, "Object {object} is {size} bytes")?;
    let failed = |error: std::io::Error| Exit::failed(format!("Write to {target} failed: {error}"));
    let mut stream = dnode.stream(0..size);
    while let Some(extent) = stream.next().await {
        let extent = extent.map_err(|lost| {
            Exit::failed(format!(
                "Read offset={} size={} error={}",
                lost.offset, lost.len, lost.error
            ))
        })?;
        let len = (size - extent.offset.min(size)).min(extent.len) as usize;
        if let Some(data) = &extent.data {
            file.write_all(data.get(..len).unwrap_or(data)).map_err(failed)?;
            continue;
        }
        let mut left = len;
        while left > 0 {
            let piece = left.min(ZEROS.len());
            file.write_all(ZEROS.get(..piece).unwrap_or(&ZEROS)).map_err(failed)?;
            left -= piece;
        }
    }
    Ok(())
}

/// Returns the path of an object from the root directory, following the parent attribute of files;
/// `None` if that does not lead to the root.
pub(super) async fn of_object(set: &Set, object: u64) -> Option<String> {
    let objset = &set.objset;
    let root = Zap::open(objset, MASTER_NODE).await.ok()?.lookup_u64("ROOT").await.ok()??;
    let mut names: Vec<String> = Vec::new();
    let mut current = object;
    for _ in 0..DEPTH_MAX {
        if current == root {
            // The root itself has no name.
            names.push(String::new());
            names.reverse();
            let path = names.join("/");
            return Some(if path.is_empty() { "/".to_owned() } else { path });
        }
        let dnode = objset.dnode(current).await.ok()?;
        let attributes = znode::attributes(set, &dnode).await.ok()??;
        let parent = attributes.parent;
        if attributes.pflags().contains(cenote_ondisk::znode::PFlags::XATTR)
            && dnode.phys().object_type == ObjectType::DIRECTORY_CONTENTS
        {
            names.push("<xattrdir>".to_owned());
        } else {
            let name = Zap::open(objset, parent).await.ok()?.name_of(current, NUMBER_MASK).await;
            names.push(String::from_utf8_lossy(&name.ok()??).into_owned());
        }
        current = parent;
    }
    None
}

/// Bits of a directory entry that hold the object number.
const NUMBER_MASK: u64 = (1 << 48) - 1;
