//! Changes of the shape of a config: a vdev above another one, and a leaf that goes (spec 06 §9.3).

use cenote_ondisk::config::{LeafConfig, VdevConfig, VdevKind};
use cenote_ondisk::nvlist::NvString;
use cenote_vdev::layout;

/// Appended to the path of a leaf that is replaced at its own path.
const OLD: &[u8] = b"/old";

/// A leaf that left a config.
#[derive(Debug, Clone)]
pub(super) struct Removed {
    /// The leaf as it was.
    pub(super) leaf: VdevConfig,
    /// A leaf that took the place of the top-level vdev above it: its guid before and now.
    pub(super) renamed: Option<(u64, u64)>,
    /// Guid of a hot spare that became an ordinary leaf.
    pub(super) unspared: Option<u64>,
}

/// Returns the top-level vdev that contains the vdev with this guid.
pub(super) fn top_of(root: &VdevConfig, guid: u64) -> Option<&VdevConfig> {
    root.children.iter().find(|top| top.find(guid).is_some())
}

/// Like [`top_of`], mutable.
pub(super) fn top_of_mut(root: &mut VdevConfig, guid: u64) -> Option<&mut VdevConfig> {
    root.children.iter_mut().find(|top| top.find(guid).is_some())
}

/// Returns the parent of the vdev with this guid.
pub(super) fn parent_of(root: &VdevConfig, guid: u64) -> Option<&VdevConfig> {
    root.walk().find(|vdev| vdev.children.iter().any(|child| child.guid == guid))
}

/// Returns the least number of bytes of data that a device in the place of the vdev `guid` must
/// hold.
pub(super) fn least_asize(top: &VdevConfig, guid: u64) -> Option<u64> {
    fn below(vdev: &VdevConfig, guid: u64, least: u64) -> Option<u64> {
        if vdev.guid == guid {
            return Some(least);
        }
        let least = layout::min_child_asize(vdev, least);
        vdev.children.iter().find_map(|child| below(child, guid, least))
    }
    below(top, guid, layout::min_asize(top))
}

/// Puts a vdev of `kind` with the guid `guid` above `vdev`, in its place.
fn add_parent(vdev: &mut VdevConfig, kind: VdevKind, guid: u64) {
    let id = vdev.id;
    let mut child = std::mem::replace(vdev, VdevConfig::hole(id));
    child.id = 0;
    *vdev = VdevConfig {
        kind,
        guid,
        create_txg: child.create_txg,
        top: std::mem::take(&mut child.top),
        leaf: LeafConfig::default(),
        children: vec![child],
        ..VdevConfig::hole(id)
    };
}

/// Adds `new` beside the leaf `beside`, below a vdev of `kind`; if the leaf's parent is none, it
/// gets one, with the guid `parent`. Returns whether the leaf was there.
pub(super) fn attach(
    top: &mut VdevConfig,
    beside: u64,
    mut new: VdevConfig,
    (kind, parent): (VdevKind, u64),
) -> bool {
    let Some(leaf) = top.find_mut(beside) else { return false };
    new.create_txg = leaf.create_txg;
    if new.leaf.path.is_some() && new.leaf.path == leaf.leaf.path {
        // The old device cannot be opened by its path any more.
        leaf.leaf.path = leaf
            .leaf
            .path
            .as_ref()
            .and_then(|path| NvString::from_bytes(&[path.as_bytes(), OLD].concat()));
        leaf.leaf.devid = None;
    }
    let above = parent_of(top, beside).filter(|above| above.kind == kind).map(|above| above.guid);
    let guid = above.unwrap_or_else(|| {
        if let Some(leaf) = top.find_mut(beside) {
            add_parent(leaf, kind, parent);
        }
        parent
    });
    let Some(parent) = top.find_mut(guid) else { return false };
    new.id = parent.children.len() as u64;
    parent.children.push(new);
    true
}

/// Removes a leaf below a mirror, replacing or spare vdev; a parent with one child is replaced by
/// the child. `None` if there is no such leaf, or its parent is of another kind.
pub(super) fn detach(top: &mut VdevConfig, guid: u64) -> Option<Removed> {
    let parent = parent_of(top, guid)?.guid;
    let is_top = top.guid == parent;
    let is_below_spare = parent_of(top, parent).is_some_and(|above| above.kind == VdevKind::Spare);
    let parent = top.find_mut(parent)?;
    if !is_group(&parent.kind) {
        return None;
    }
    let at = parent.children.iter().position(|child| child.guid == guid)?;
    let leaf = parent.children.remove(at);
    for (id, child) in (0..).zip(&mut parent.children) {
        child.id = id;
    }
    if parent.kind == VdevKind::Replacing && at > 0 {
        parent.children.iter_mut().for_each(|child| restore_path(child, &leaf));
    }
    let mut unspared = None;
    if parent.kind == VdevKind::Spare && at == 0 {
        // The device that the spare stood in for is gone: the spare stays in its place. A
        // distributed spare is still one, since it is a part of its vdev.
        for child in parent.children.iter_mut().filter(|child| child.kind.is_real_leaf()) {
            if std::mem::take(&mut child.leaf.is_spare) {
                child.leaf.unspare = false;
                unspared = Some(child.guid);
                break;
            }
        }
    }
    let mut renamed = None;
    if parent.children.len() == 1
        && let Some(mut child) = parent.children.pop()
    {
        child.id = parent.id;
        // A spare that stood in for the device that was replaced is not needed any more.
        child.leaf.unspare = is_below_spare && parent.kind == VdevKind::Replacing && at == 0;
        if is_top {
            // The guid of a top-level vdev does not change.
            renamed = Some((child.guid, parent.guid)).filter(|_| child.kind.is_leaf());
            child.guid = parent.guid;
        }
        child.top = std::mem::take(&mut parent.top);
        *parent = child;
    }
    Some(Removed { leaf, renamed, unspared })
}

/// Whether a leaf below a vdev of this kind can be detached.
pub(super) const fn is_group(kind: &VdevKind) -> bool {
    matches!(kind, VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare)
}

/// A replacement at the path of the device that it was to replace is gone: gives the path back.
fn restore_path(vdev: &mut VdevConfig, gone: &VdevConfig) {
    let Some(path) = &gone.leaf.path else { return };
    let old = [path.as_bytes(), OLD].concat();
    if vdev.leaf.path.as_ref().is_some_and(|path| path.as_bytes() == old) {
        vdev.leaf.path = Some(path.clone());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(guid: u64, path: &str) -> VdevConfig {
        let mut leaf = VdevConfig { kind: VdevKind::File, guid, ..VdevConfig::hole(0) };
        leaf.leaf.path = NvString::from_bytes(path.as_bytes());
        leaf
    }

    fn guids(top: &VdevConfig) -> Vec<(u64, u64)> {
        top.walk().map(|vdev| (vdev.guid, vdev.id)).collect()
    }

    #[test]
    fn disk_becomes_a_mirror_and_back() {
        let mut top = leaf(5, "/a");
        (top.id, top.top.ashift, top.top.zap_top) = (3, 12, Some(9));
        assert!(attach(&mut top, 5, leaf(6, "/b"), (VdevKind::Mirror, 7)));
        assert!(attach(&mut top, 5, leaf(8, "/c"), (VdevKind::Mirror, 70)));
        assert_eq!(guids(&top), [(7, 3), (5, 0), (6, 1), (8, 2)]);
        assert_eq!((top.top.zap_top, top.children[0].top.ashift), (Some(9), 0));
        assert_eq!(detach(&mut top, 6).unwrap().renamed, None);
        assert_eq!(guids(&top), [(7, 3), (5, 0), (8, 1)]);
        let removed = detach(&mut top, 5).unwrap();
        assert_eq!((removed.renamed, removed.leaf.guid), (Some((8, 7)), 5));
        assert_eq!(guids(&top), [(7, 3)]);
        assert_eq!((top.top.zap_top, top.top.ashift, &top.kind), (Some(9), 12, &VdevKind::File));
        assert!(
            detach(&mut top, 7).is_none()
                && !attach(&mut top, 1, leaf(2, ""), (VdevKind::Mirror, 3))
        );
    }

    #[test]
    fn replacement_at_the_same_path_is_told_apart() {
        let mut top = VdevConfig { kind: VdevKind::Mirror, guid: 1, ..VdevConfig::hole(0) };
        top.children = vec![leaf(5, "/a"), VdevConfig { id: 1, ..leaf(6, "/b") }];
        assert!(attach(&mut top, 6, leaf(7, "/b"), (VdevKind::Replacing, 8)));
        assert_eq!(guids(&top), [(1, 0), (5, 0), (8, 1), (6, 0), (7, 1)]);
        let path = |top: &VdevConfig, guid| top.find(guid).unwrap().leaf.path.clone().unwrap();
        assert_eq!(path(&top, 6).as_bytes(), b"/b/old");
        let mut cancelled = top.clone();
        assert_eq!(detach(&mut cancelled, 7).unwrap().leaf.guid, 7);
        assert_eq!(
            (guids(&cancelled), path(&cancelled, 6).as_bytes()),
            (vec![(1, 0), (5, 0), (6, 1)], &b"/b"[..])
        );
        detach(&mut top, 6).unwrap();
        assert_eq!(
            (guids(&top), path(&top, 7).as_bytes()),
            (vec![(1, 0), (5, 0), (7, 1)], &b"/b"[..])
        );
    }

    #[test]
    fn spare_takes_the_place_of_a_leaf_that_goes() {
        let mut top = leaf(5, "/a");
        let mut spare = leaf(6, "/s");
        spare.leaf.is_spare = true;
        assert!(attach(&mut top, 5, spare, (VdevKind::Spare, 7)));
        let mut back = top.clone();
        let removed = detach(&mut back, 6).unwrap();
        assert_eq!((removed.unspared, removed.renamed, back.guid), (None, Some((5, 7)), 7));
        let removed = detach(&mut top, 5).unwrap();
        assert_eq!((removed.unspared, removed.renamed), (Some(6), Some((6, 7))));
        assert!(!top.leaf.is_spare);
    }
}
