//! Checks that the vdevs of a pool have equal redundancy. The vdev with the least redundancy
//! determines the safety of the whole pool, so mismatches are refused unless forced.

use cenote_engine::create::{LeafSpec, Redundancy, VdevClass};
use cenote_ondisk::config::{VdevConfig, VdevKind};

use super::layout::Group;

/// Tolerated size difference between the devices of a vdev.
const SIZE_FUZZ: u64 = 16 << 20;

/// Redundancy of a vdev.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Safety {
    /// Word for the kind: that of the device if there is only one.
    kind: &'static str,
    /// Parity, or number of copies that may be lost.
    parity: u64,
    /// Devices.
    children: u64,
}

impl Safety {
    fn of(redundancy: Redundancy, children: u64, is_disk: bool) -> Self {
        let (kind, parity) = match redundancy {
            Redundancy::Single => (if is_disk { "disk" } else { "file" }, 0),
            Redundancy::Mirror => ("mirror", 0),
            Redundancy::Raidz(parity) => ("raidz", parity),
            Redundancy::Draid { nparity, .. } => ("draid", nparity),
        };
        Self { kind, parity, children }
    }

    fn of_config(vdev: &VdevConfig) -> Option<Self> {
        let children = vdev.children.len() as u64;
        let (kind, parity) = match &vdev.kind {
            VdevKind::Mirror => ("mirror", 0),
            VdevKind::RaidZ(raidz) => ("raidz", raidz.nparity),
            VdevKind::Draid(draid) => ("draid", draid.nparity),
            VdevKind::Disk => ("disk", 0),
            VdevKind::File => ("file", 0),
            _ => return None,
        };
        Some(Self { kind, parity, children: children.max(1) })
    }

    fn has_parity(&self) -> bool {
        matches!(self.kind, "raidz" | "draid")
    }

    fn is_mirror(&self) -> bool {
        self.kind == "mirror"
    }
}

/// Returns what is wrong with the requested vdevs, if anything.
pub(super) fn mismatch(groups: &[(&Group, Vec<&LeafSpec>)]) -> Option<String> {
    let mut last: Option<Safety> = None;
    for (group, leaves) in groups {
        if let Some(text) = uneven(group, leaves) {
            return Some(text);
        }
        if group.class == VdevClass::Log {
            continue;
        }
        let is_disk = leaves.first().is_some_and(|leaf| leaf.is_disk);
        let safety = Safety::of(group.redundancy, leaves.len() as u64, is_disk);
        if let Some(last) = &last
            && let Some(text) = differ(last, &safety)
        {
            return Some(format!("mismatched replication level: {text}"));
        }
        last = Some(safety);
    }
    None
}

fn uneven(group: &Group, leaves: &[&LeafSpec]) -> Option<String> {
    let word = group.word.as_deref()?;
    let word = word.split([':', '1', '2', '3']).next().unwrap_or(word);
    if leaves.iter().any(|leaf| leaf.is_disk) && leaves.iter().any(|leaf| !leaf.is_disk) {
        let text = "contains both files and devices";
        return Some(format!("mismatched replication level: {word} {text}"));
    }
    let sizes = leaves.iter().map(|leaf| leaf.size);
    let (least, most) = (sizes.clone().min()?, sizes.max()?);
    (most - least > SIZE_FUZZ).then(|| format!("{word} contains devices of different sizes"))
}

/// Returns the message about two different vdevs of a new pool.
fn differ(last: &Safety, new: &Safety) -> Option<String> {
    let striped = if last.has_parity() { (last, new) } else { (new, last) };
    if striped.0.has_parity() && striped.1.is_mirror() {
        let (striped, mirror) = striped;
        let copies = mirror.children - 1;
        return (striped.parity != copies).then(|| {
            format!(
                "{} and {} vdevs with different redundancy, {} vs. {copies} ({}-way) are present",
                striped.kind, mirror.kind, striped.parity, mirror.children
            )
        });
    }
    if last.has_parity() && new.has_parity() && last.kind != new.kind {
        return (last.parity != new.parity).then(|| {
            let (raidz, draid) = if last.kind == "raidz" { (last, new) } else { (new, last) };
            format!(
                "{} and {} vdevs with different redundancy, {} vs. {} are present",
                raidz.kind, draid.kind, raidz.parity, draid.parity
            )
        });
    }
    if last.kind != new.kind {
        return Some(format!("both {} and {} vdevs are present", last.kind, new.kind));
    }
    if last.parity != new.parity {
        let (a, b) = (last.parity, new.parity);
        return Some(format!("both {a} and {b} device parity {} vdevs are present", new.kind));
    }
    if last.children != new.children {
        let (a, b) = (last.children, new.children);
        return Some(format!("both {a}-way and {b}-way {} vdevs are present", new.kind));
    }
    None
}

/// Returns what is wrong with vdevs that are to join a pool.
pub(super) fn mismatch_with(root: &VdevConfig, groups: &[Group]) -> Option<String> {
    let tops = root.children.iter().filter(|top| !top.top.is_log);
    let there = tops.filter_map(Safety::of_config).next_back()?;
    for group in groups.iter().filter(|group| group.class != VdevClass::Log) {
        let new = Safety::of(group.redundancy, group.paths.len() as u64, there.kind == "disk");
        let text = if there.kind != new.kind {
            let copies = |safety: &Safety| {
                if safety.is_mirror() { safety.children - 1 } else { safety.parity }
            };
            let is_as_safe = copies(&there) == copies(&new) && copies(&new) > 0;
            if is_as_safe {
                continue;
            }
            format!("pool uses {} and new vdev is {}", there.kind, new.kind)
        } else if there.parity != new.parity {
            format!("pool uses {} device parity and new vdev uses {}", there.parity, new.parity)
        } else if there.children != new.children {
            format!(
                "pool uses {}-way {} and new vdev uses {}-way {}",
                there.children, there.kind, new.children, new.kind
            )
        } else {
            continue;
        };
        return Some(format!("mismatched replication level: {text}"));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differences_are_worded_as_openzfs_does() {
        let safety = |kind, parity, children| Safety { kind, parity, children };
        for (one, other, want) in [
            (
                safety("mirror", 0, 3),
                safety("raidz", 1, 3),
                Some(
                    "raidz and mirror vdevs with different redundancy, 1 vs. 2 (3-way) are present",
                ),
            ),
            (safety("mirror", 0, 2), safety("raidz", 1, 3), None),
            (safety("file", 0, 1), safety("file", 0, 1), None),
            (
                safety("mirror", 0, 2),
                safety("file", 0, 1),
                Some("both mirror and file vdevs are present"),
            ),
            (
                safety("raidz", 1, 4),
                safety("raidz", 2, 4),
                Some("both 1 and 2 device parity raidz vdevs are present"),
            ),
            (
                safety("mirror", 0, 2),
                safety("mirror", 0, 3),
                Some("both 2-way and 3-way mirror vdevs are present"),
            ),
        ] {
            assert_eq!(differ(&one, &other).as_deref(), want);
        }
    }
}
