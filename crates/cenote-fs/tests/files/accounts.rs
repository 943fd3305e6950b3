//! Recounts from disk what a file system stores about itself: links, sizes, parents, unreachable
//! objects, and the usage of users, groups and projects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_device::ImageDevice;
use cenote_dmu::Zap;
use cenote_fs::FileSystem;
use cenote_fs::format::FsOwners;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::quota::{GROUPUSED_OBJECT, PROJECTUSED_OBJECT, USERUSED_OBJECT, UsedKey};
use cenote_poolkit::pools;
use cenote_rt::Result;

/// Checks the root file system of the pool on these devices.
pub(crate) async fn check(devices: &[Arc<ImageDevice>]) -> std::result::Result<(), String> {
    let problems = problems(devices).await.map_err(|error| format!("{error:?}"))?;
    if problems.is_empty() { Ok(()) } else { Err(format!("{problems:#?}")) }
}

async fn problems(devices: &[Arc<ImageDevice>]) -> Result<Vec<String>> {
    let pool = pools::open_copy(devices).await?;
    let fs = FileSystem::open(&pool.dataset("tank").await?).await?;
    let mut problems = Vec::new();
    let reached = walk(&fs, &mut problems).await?;
    count(&fs, &reached, &mut problems).await?;
    Ok(problems)
}

/// Walks the tree. Returns the number of names of each object.
async fn walk(fs: &Arc<FileSystem>, problems: &mut Vec<String>) -> Result<BTreeMap<u64, u64>> {
    let mut names: BTreeMap<u64, u64> = BTreeMap::new();
    let mut to_do = vec![fs.root().await?];
    names.insert(fs.root_object(), 1);
    while let Some(dir) = to_do.pop() {
        let (mut count, mut subdirectories) = (0, 0);
        let mut entries = dir.entries().await?;
        while let Some(entry) = entries.next().await? {
            count += 1;
            *names.entry(entry.object).or_default() += 1;
            let node = fs.node(entry.object).await?;
            if entry.kind != Some(node.kind()) {
                problems.push(format!("{:?} is {:?}", entry, node.kind()));
            }
            if node.is_directory() {
                subdirectories += 1;
                if node.attributes().parent != dir.object() {
                    problems.push(format!("{entry:?}: parent {}", node.attributes().parent));
                }
                to_do.push(node);
            }
        }
        let found = (dir.size(), dir.attributes().links);
        let expected = (count + 2, subdirectories + 2);
        if found != expected {
            problems.push(format!("{}: size, links {found:?}, not {expected:?}", dir.object()));
        }
    }
    Ok(names)
}

async fn count(
    fs: &Arc<FileSystem>,
    names: &BTreeMap<u64, u64>,
    problems: &mut Vec<String>,
) -> Result<()> {
    let unlinked: BTreeSet<u64> = fs.unlinked().await?.into_iter().collect();
    let probe = FsOwners { counts_objects: true, counts_projects: true };
    let mut sums: BTreeMap<(u64, UsedKey), u64> = BTreeMap::new();
    let mut dnodes = fs.objset().dnodes(1);
    while let Some(dnode) = dnodes.next().await {
        let dnode = dnode?;
        let is_file = dnode.phys().bonus_type == ObjectType::SA;
        if is_file {
            let node = fs.node(dnode.object()).await?;
            let links = node.attributes().links;
            let expected = names.get(&dnode.object()).copied().unwrap_or(0);
            let is_hidden = node.attributes().flags & 1 != 0;
            if !node.is_directory() && links != expected && !is_hidden {
                problems.push(format!("{}: {links} links, {expected} names", dnode.object()));
            }
            if expected == 0 && !unlinked.contains(&dnode.object()) && !is_hidden {
                problems.push(format!("{}: nothing leads to it", dnode.object()));
            }
        }
        if let Some(owner) = probe.of(&dnode).await? {
            let of = [
                (USERUSED_OBJECT, owner.uid),
                (GROUPUSED_OBJECT, owner.gid),
                (PROJECTUSED_OBJECT, owner.project),
            ];
            for (object, id) in of {
                let space = 512 + dnode.phys().used_bytes();
                *sums.entry((object, UsedKey::Space(id))).or_default() += space;
                *sums.entry((object, UsedKey::Objects(id))).or_default() += 1;
            }
        }
    }
    let mut stored = BTreeMap::new();
    for object in [USERUSED_OBJECT, GROUPUSED_OBJECT, PROJECTUSED_OBJECT] {
        for entry in Zap::open(fs.objset(), object).await?.to_vec().await? {
            let key = UsedKey::parse(entry.key.name().unwrap()).unwrap();
            stored.insert((object, key), entry.value.first().unwrap());
        }
    }
    if sums != stored {
        problems.push(format!("used: counted {sums:?}, stored {stored:?}"));
    }
    Ok(())
}
