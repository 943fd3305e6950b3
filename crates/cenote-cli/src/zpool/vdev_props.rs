//! Properties of vdevs: `zpool get PROPERTY POOL VDEV...`.
//!
//! Values come from the pool's status and listing. Settable properties show their defaults, because
//! cenote never stores them. Figures that are not counted are dashes.
//!
//! Source: the manual page vdevprops(7).

use cenote_ondisk::config::VdevKind;
use cenote_pool::props::Source as Origin;
use cenote_pool::status::{PoolStatus, VdevReport, state_name};

use super::names::Names;
use crate::io::Exit;
use crate::nicenum;
use crate::zfs::columns::split;
use crate::zfs::get::Row;

/// All properties, in display order.
const PROPERTIES: [&str; 50] = [
    "capacity",
    "state",
    "guid",
    "asize",
    "psize",
    "ashift",
    "size",
    "free",
    "allocated",
    "comment",
    "expandsize",
    "fragmentation",
    "bootsize",
    "parity",
    "path",
    "devid",
    "physpath",
    "encpath",
    "fru",
    "parent",
    "children",
    "numchildren",
    "read_errors",
    "write_errors",
    "checksum_errors",
    "initialize_errors",
    "null_ops",
    "read_ops",
    "write_ops",
    "free_ops",
    "claim_ops",
    "trim_ops",
    "null_bytes",
    "read_bytes",
    "write_bytes",
    "free_bytes",
    "claim_bytes",
    "trim_bytes",
    "removing",
    "allocating",
    "failfast",
    "checksum_n",
    "checksum_t",
    "io_n",
    "io_t",
    "slow_io_n",
    "slow_io_t",
    "trim_support",
    "trim_errors",
    "slow_ios",
];
/// The settable properties.
const SETTABLE: [&str; 9] = [
    "comment",
    "allocating",
    "failfast",
    "checksum_n",
    "checksum_t",
    "io_n",
    "io_t",
    "slow_io_n",
    "slow_io_t",
];

/// Returns the properties that a list names.
pub(super) fn columns(list: &str) -> Result<Vec<&'static str>, Exit> {
    if list == "all" {
        return Ok(PROPERTIES.to_vec());
    }
    let one = |name: &str| {
        let known = PROPERTIES.iter().copied().find(|property| *property == name);
        let text = || format!("bad property list: invalid property '{name}'");
        known.ok_or_else(|| Exit::usage(text()))
    };
    split(list)?.map(one).collect()
}

/// Returns the vdevs that words denote; `None` if one of the words denotes none.
pub(super) fn find<'a>(
    status: &'a PoolStatus,
    words: &[String],
    names: &Names,
) -> Option<Vec<&'a VdevReport>> {
    if let [word] = words
        && word == "all-vdevs"
    {
        return Some(status.root.walk().collect());
    }
    let is = |vdev: &VdevReport, word: &str| {
        if vdev.kind == VdevKind::Root {
            return matches!(word, "root" | "root-0");
        }
        let path = vdev.path.as_deref();
        path == Some(word)
            || names.vdev(vdev) == word
            || vdev.guid.to_string() == word
            || path.is_some_and(|path| path.rsplit('/').next() == Some(word))
    };
    words.iter().map(|word| status.root.walk().find(|vdev| is(vdev, word))).collect()
}

/// Returns the lines of one vdev.
pub(super) fn rows(
    status: &PoolStatus,
    vdev: &VdevReport,
    wanted: &[&'static str],
    names: &Names,
    is_literal: bool,
) -> Vec<Row> {
    let shown = shown_name(vdev, names);
    let row = |property: &&'static str| {
        let value = value(status, vdev, property, names, is_literal);
        let is_default = SETTABLE.contains(property);
        Row {
            name: shown.clone(),
            property: (*property).to_owned(),
            value,
            received: String::new(),
            source: if is_default { Origin::Default } else { Origin::None },
        }
    };
    wanted.iter().map(row).collect()
}

fn shown_name(vdev: &VdevReport, names: &Names) -> String {
    if vdev.kind == VdevKind::Root { "root-0".to_owned() } else { names.vdev(vdev) }
}

fn value(
    status: &PoolStatus,
    vdev: &VdevReport,
    property: &str,
    names: &Names,
    is_literal: bool,
) -> String {
    let bytes = |number: u64| if is_literal { number.to_string() } else { nicenum::bytes(number) };
    let sum = |part: fn(&VdevReport) -> u64| vdev.walk().map(part).sum::<u64>();
    let figures = vdev.walk().filter_map(|below| below.figures.as_ref());
    let (mut size, mut allocated, mut fragmentation, mut expandable) = (0, 0, 0, 0);
    for figures in figures {
        size += figures.size;
        allocated += figures.allocated;
        expandable += figures.expandable;
        fragmentation = fragmentation.max(figures.fragmentation.unwrap_or(0));
    }
    let percent = |part: u64| if is_literal { part.to_string() } else { format!("{part}%") };
    let device = || vdev.device_size.map(bytes);
    let text = match property {
        "state" => Some(state_name(vdev.state, vdev.aux).to_owned()),
        "guid" => Some(vdev.guid.to_string()),
        "capacity" => Some(percent((allocated * 100).checked_div(size).unwrap_or(0))),
        "fragmentation" => Some(percent(fragmentation)),
        "size" | "asize" => {
            Some(bytes(if size == 0 { vdev.device_size.unwrap_or(0) } else { size }))
        }
        "free" => Some(bytes(size - allocated.min(size))),
        "allocated" => Some(bytes(allocated)),
        "expandsize" => Some(expandable).filter(|bytes| *bytes != 0).map(bytes),
        "psize" => Some(device().unwrap_or_else(|| bytes(0))),
        "ashift" => Some(vdev.ashift.to_string()),
        "parity" => Some(parity(vdev).to_string()),
        "path" => vdev.path.clone(),
        "parent" => parent(&status.root, vdev.guid).map(|parent| shown_name(parent, names)),
        "children" => {
            let children: Vec<_> = vdev.children.iter().map(|child| names.vdev(child)).collect();
            Some(children.join(",")).filter(|text| !text.is_empty())
        }
        "numchildren" => Some(vdev.children.len().to_string()),
        "read_errors" => Some(sum(|vdev| vdev.stats.read_errors).to_string()),
        "write_errors" => Some(sum(|vdev| vdev.stats.write_errors).to_string()),
        "checksum_errors" => Some(sum(|vdev| vdev.stats.checksum_errors).to_string()),
        "read_ops" => Some(sum(|vdev| vdev.stats.reads).to_string()),
        "write_ops" => Some(sum(|vdev| vdev.stats.writes).to_string()),
        "read_bytes" => Some(bytes(sum(|vdev| vdev.stats.bytes))),
        "write_bytes" => Some(bytes(sum(|vdev| vdev.stats.write_bytes))),
        "initialize_errors" | "trim_errors" | "slow_ios" => Some("0".to_owned()),
        "removing" => Some(on_off(vdev.is_removing)),
        "allocating" => Some(on_off(!vdev.is_non_allocating)),
        "failfast" => Some(on_off(true)),
        _ => None,
    };
    text.unwrap_or_else(|| "-".to_owned())
}

fn on_off(is_on: bool) -> String {
    if is_on { "on" } else { "off" }.to_owned()
}

fn parity(vdev: &VdevReport) -> u64 {
    match &vdev.kind {
        VdevKind::RaidZ(raidz) => raidz.nparity,
        VdevKind::Draid(draid) => draid.nparity,
        _ => 0,
    }
}

fn parent(root: &VdevReport, guid: u64) -> Option<&VdevReport> {
    root.walk().find(|vdev| vdev.children.iter().any(|child| child.guid == guid))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_name_what_there_is() {
        assert_eq!(columns("all").map(|all| all.len()), Ok(50));
        assert_eq!(columns("guid,parity"), Ok(vec!["guid", "parity"]));
        let text = "bad property list: invalid property 'x'";
        assert_eq!(columns("guid,x"), Err(Exit::usage(text)));
    }
}
