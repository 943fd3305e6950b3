//! Properties of vdevs: `zpool get PROPERTY POOL VDEV...`.
//!
//! Values come from the pool's status and listing, and from the object with the vdev's properties.
//! Figures that are not counted are dashes.
//!
//! Source: the manual page vdevprops(7).

use cenote_ondisk::config::VdevKind;
use cenote_ondisk::zap::Value;
use cenote_pool::props::Source as Origin;
use cenote_pool::status::{PoolStatus, VdevReport, state_name};

use super::names::Names;
use crate::io::Exit;
use crate::nicenum;
use crate::zfs::columns::split;
use crate::zfs::get::Row;

/// The property that only RAID-Z vdevs have.
const RAIDZ_EXPANDING: &str = "raidz_expanding";
/// The property that only the root and top-level vdevs have: what counts is the config.
pub(super) const ALLOCATING: &str = "allocating";
/// All properties, in display order.
pub(super) const PROPERTIES: [&str; 51] = [
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
    "raidz_expanding",
    "slow_io_n",
    "slow_io_t",
    "trim_support",
    "trim_errors",
    "slow_ios",
];
/// The settable properties.
pub(super) const SETTABLE: [&str; 9] = [
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

/// The thresholds of error rates.
pub(super) const RATES: [&str; 6] =
    ["checksum_n", "checksum_t", "io_n", "io_t", "slow_io_n", "slow_io_t"];
/// Prefixes of the entries of OpenZFS's own in a vdev's object.
const INTERNAL: [&str; 4] =
    ["com.delphix:", "com.klarasystems:", "org.openzfs:", "org.zfsonlinux:"];

/// Whether an entry of a vdev's object is no property.
pub(super) fn is_internal(name: &str) -> bool {
    INTERNAL.iter().any(|prefix| name.starts_with(prefix))
}

/// Returns the properties that a list names.
pub(super) fn columns(list: &str) -> Result<Vec<String>, Exit> {
    if list == "all" {
        return Ok(PROPERTIES.map(str::to_owned).to_vec());
    }
    let one = |name: &str| {
        let is_user = name.contains(':') && !is_internal(name);
        let is_known = is_user || PROPERTIES.contains(&name);
        let text = || format!("bad property list: invalid property '{name}'");
        is_known.then(|| name.to_owned()).ok_or_else(|| Exit::usage(text()))
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

/// What rows of properties are made of.
pub(super) struct Shown<'a> {
    /// The pool.
    pub(super) status: &'a PoolStatus,
    /// How vdevs are named.
    pub(super) names: &'a Names,
    /// Whether numbers are shown in full.
    pub(super) is_literal: bool,
}

/// Returns the lines of one vdev; `stored` is the contents of its object. With `is_all`, its user
/// properties follow.
pub(super) fn rows(
    shown: &Shown<'_>,
    vdev: &VdevReport,
    stored: &[(String, Value)],
    (wanted, is_all): (&[String], bool),
) -> Vec<Row> {
    let name = shown_name(vdev, shown.names);
    let set = |property: &str| stored.iter().find(|(stored, _)| stored == property);
    let shown_value = |property: &str| {
        let value = || value_of(shown, vdev, property);
        if property == ALLOCATING {
            let value = value();
            let source = match &*value {
                "on" => Origin::Default,
                "off" => Origin::Local,
                _ => Origin::None,
            };
            return (value, source);
        }
        if !SETTABLE.contains(&property) && !property.contains(':') {
            return (value(), Origin::None);
        }
        match set(property).and_then(|(_, value)| set_value(property, value)) {
            Some(value) => (value, Origin::Local),
            None => (value(), Origin::Default),
        }
    };
    let row = |property: &str| {
        let (value, source) = shown_value(property);
        let (name, property) = (name.clone(), property.to_owned());
        Row { name, property, value, received: String::new(), source }
    };
    let mut user: Vec<&str> = stored.iter().map(|(name, _)| name.as_str()).collect();
    user.retain(|name| is_all && name.contains(':') && !is_internal(name));
    user.sort_unstable();
    let is_raidz = matches!(vdev.kind, VdevKind::RaidZ(_));
    let is_shown = |name: &&str| !is_all || is_raidz || *name != RAIDZ_EXPANDING;
    wanted.iter().map(String::as_str).filter(is_shown).chain(user).map(row).collect()
}

/// Returns a value that was set, as text; `None` for one that stands for the default.
fn set_value(property: &str, value: &Value) -> Option<String> {
    match (property, value) {
        ("failfast", Value::U64(number)) => Some(on_off(*number != 0)),
        // Only thresholds are numbers.
        (_, Value::U64(u64::MAX)) => None,
        (_, Value::U64(number)) => Some(number.to_string()),
        (_, value) => {
            let bytes = value.stored();
            let text = bytes.strip_suffix(&[0]).unwrap_or(&bytes);
            Some(String::from_utf8_lossy(text).into_owned())
        }
    }
}

pub(super) fn shown_name(vdev: &VdevReport, names: &Names) -> String {
    if vdev.kind == VdevKind::Root { "root-0".to_owned() } else { names.vdev(vdev) }
}

fn value_of(shown: &Shown<'_>, vdev: &VdevReport, property: &str) -> String {
    let Shown { status, names, is_literal } = *shown;
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
    let (size_of, unused) = vdev.device.map_or((None, 0), |of| (Some(of.size), of.unused));
    let device = || size_of.map(bytes);
    let text = match property {
        "state" => Some(state_name(vdev.state, vdev.aux).to_owned()),
        "guid" => Some(vdev.guid.to_string()),
        "capacity" => Some(percent((allocated * 100).checked_div(size).unwrap_or(0))),
        "fragmentation" => Some(percent(fragmentation)),
        "size" | "asize" => Some(bytes(if size == 0 { size_of.unwrap_or(0) } else { size })),
        "free" => Some(bytes(size - allocated.min(size))),
        "allocated" => Some(bytes(allocated)),
        "expandsize" => Some(expandable.max(unused)).filter(|bytes| *bytes != 0).map(bytes),
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
        "slow_ios" => Some(sum(|vdev| vdev.stats.slow_ios).to_string()),
        "initialize_errors" | "trim_errors" => Some("0".to_owned()),
        "removing" => Some(on_off(vdev.is_removing)),
        RAIDZ_EXPANDING => match &vdev.kind {
            VdevKind::RaidZ(raidz) => Some(on_off(raidz.expanding)),
            _ => None,
        },
        ALLOCATING => {
            let is_top =
                |vdev: &VdevReport| status.root.children.iter().any(|top| top.guid == vdev.guid);
            let has_it = vdev.kind == VdevKind::Root || is_top(vdev);
            has_it.then(|| on_off(vdev.is_removing || !vdev.is_non_allocating))
        }
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
        assert_eq!(columns("all").map(|all| all.len()), Ok(51));
        let two = vec!["guid".to_owned(), "parity".to_owned()];
        assert_eq!(columns("guid,parity"), Ok(two));
        assert!(columns("org:x").is_ok() && columns("com.delphix:x").is_err());
        let text = "bad property list: invalid property 'x'";
        assert_eq!(columns("guid,x"), Err(Exit::usage(text)));
    }
}
