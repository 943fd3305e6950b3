//! `zdb -C`: prints the config in the MOS; `-CC`: also the config that the import started from,
//! which comes from a cache file or is assembled from the labels.

use cenote_dmu::read_nvlist;
use cenote_ondisk::nvlist::{NvList, NvString, NvValue};
use cenote_pool::{Candidate, Pool};

use super::{Options, text};
use crate::io::{CommandResult, Io};
use crate::out;

/// Columns before the pairs of a config.
const INDENT: usize = 8;
/// Rewind policy of an import without rewind.
const NEVER_REWIND: u64 = 2;

/// Prints the config in the MOS.
pub(super) async fn run(pool: &Pool, io: &mut Io<'_>) -> CommandResult {
    out!(io, "\nMOS Configuration:")?;
    match pool.directory_object("config") {
        Some(object) => text::nvlist(io, &read_nvlist(pool.mos(), object).await?, INDENT),
        None => Ok(()),
    }
}

/// Prints a config from a cache file.
pub(super) fn cached(config: &NvList, io: &mut Io<'_>) -> CommandResult {
    out!(io, "\nCached configuration:")?;
    text::nvlist(io, config, INDENT)
}

/// Prints the config assembled from the labels.
pub(super) fn for_import(
    candidate: &Candidate,
    options: &Options,
    io: &mut Io<'_>,
) -> CommandResult {
    out!(io, "\nConfiguration for import:")?;
    text::nvlist(io, &import_list(candidate, options), INDENT)
}

fn import_list(candidate: &Candidate, options: &Options) -> NvList {
    let facts = &candidate.facts;
    let mut list = NvList::new();
    let count = facts.vdev_children.unwrap_or(candidate.root.children.len() as u64);
    list.insert("vdev_children", NvValue::Uint64(count));
    if !facts.hole_array.is_empty() {
        list.insert("hole_array", NvValue::Uint64Array(facts.hole_array.clone()));
    }
    list.insert("version", NvValue::Uint64(facts.version));
    list.insert("pool_guid", NvValue::Uint64(facts.pool_guid));
    list.insert("name", NvValue::String(facts.name.as_str().into()));
    for (name, text) in [("comment", &facts.comment), ("compatibility", &facts.compatibility)] {
        if let Some(text) = text {
            list.insert(name, NvValue::String(text.as_str().into()));
        }
    }
    list.insert("state", NvValue::Uint64(facts.state.id()));
    if facts.hostid != 0 {
        list.insert("hostid", NvValue::Uint64(facts.hostid));
        if let Some(hostname) = &facts.hostname {
            list.insert("hostname", NvValue::String(hostname.as_str().into()));
        }
    }
    list.insert("vdev_tree", NvValue::List(tree(candidate)));
    let mut policy = NvList::new();
    policy.insert("load-request-txg", NvValue::Uint64(options.txg.unwrap_or(u64::MAX)));
    policy.insert("load-rewind-policy", NvValue::Uint64(NEVER_REWIND));
    list.insert("load-policy", NvValue::List(policy));
    list
}

fn tree(candidate: &Candidate) -> NvList {
    let root = &candidate.root;
    let children = root.children.iter().map(|top| {
        newest_label_of(candidate, top.guid).map_or_else(
            || {
                let mut list = NvList::new();
                list.insert("type", NvValue::String(top.kind.name().into()));
                list.insert("id", NvValue::Uint64(top.id));
                list.insert("guid", NvValue::Uint64(0));
                list
            },
            |list| with_paths(candidate, list),
        )
    });
    let children = children.collect();
    let mut list = NvList::new();
    list.insert("type", NvValue::String("root".into()));
    list.insert("id", NvValue::Uint64(0));
    list.insert("guid", NvValue::Uint64(root.guid));
    list.insert("children", NvValue::ListArray(children));
    list
}

/// Returns the tree of a top-level vdev from the newest label that has it.
fn newest_label_of(candidate: &Candidate, guid: u64) -> Option<NvList> {
    let labels = candidate.devices.iter().filter_map(|found| {
        let member = found.config.member.as_ref()?;
        (member.top_guid == guid).then_some(&found.config)
    });
    labels.max_by_key(|config| config.txg)?.raw.list("vdev_tree").cloned()
}

/// Replaces the paths of leaves by those at which the devices were found.
fn with_paths(candidate: &Candidate, mut list: NvList) -> NvList {
    for pair in &mut list.pairs {
        if let NvValue::ListArray(children) = &mut pair.value {
            for child in children {
                *child = with_paths(candidate, std::mem::take(child));
            }
        }
    }
    let found = list.u64("guid").and_then(|guid| candidate.found(guid));
    if let (Some(found), None) = (found, list.list_array("children")) {
        list.pairs.retain(|pair| pair.name != "path");
        list.insert("path", NvValue::String(NvString::from(found.path.as_str())));
    }
    list
}
