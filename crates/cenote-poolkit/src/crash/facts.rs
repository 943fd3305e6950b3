//! The state of a pool and its datasets, except their contents: one line for each fact, so that
//! every difference is found.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::Zap;
use cenote_ondisk::config::VdevKind;
use cenote_ondisk::dsl::DatasetFlags;
use cenote_ondisk::leaf_work::LeafWorkState;
use cenote_ondisk::zap::{Entry, Value};
use cenote_pool::dsl::redaction::redaction_header;
use cenote_pool::{Dataset, Pool};
use cenote_rt::Result;

use super::model::UPGRADES;

/// Owner and kind of a fact, and its value.
pub type Facts = BTreeMap<(String, String), String>;

/// Owner of facts about the pool itself.
pub const POOL: &str = "pool";

/// The shape of a vdev that was removed.
pub(super) const INDIRECT: &str = "indirect";
/// The shape of a log vdev that was removed.
pub(super) const HOLE: &str = "hole";
/// The state of a leaf out of service.
pub(super) const OFFLINE: &str = "offline";
/// The state of a leaf that failed.
pub(super) const FAULTED: &str = "faulted";

/// Returns a property value as one word.
pub fn text(value: &Value) -> String {
    value.as_str().map_or_else(|| format!("{:?}", value.words()), str::to_owned)
}

/// Returns all facts of a pool with these heads and snapshots.
///
/// # Errors
/// Errors of reading the pool.
pub async fn of(pool: &Arc<Pool>, datasets: &[Dataset]) -> Result<Facts> {
    let mut facts = of_pool(pool).await?;
    facts.extend(of_datasets(pool, datasets).await?);
    Ok(facts)
}

/// Returns the facts of heads and snapshots.
///
/// # Errors
/// Errors of reading the pool.
pub async fn of_datasets(pool: &Arc<Pool>, datasets: &[Dataset]) -> Result<Facts> {
    let mut facts = Facts::new();
    for dataset in datasets {
        let phys = dataset.phys();
        let props = if dataset.is_snapshot() {
            for hold in dataset.holds().await? {
                add(&mut facts, dataset.name(), format!("hold {}", hold.tag), String::new());
            }
            if phys.flags.contains(DatasetFlags::DEFER_DESTROY) {
                add(&mut facts, dataset.name(), "deferred".into(), String::new());
            }
            phys.props_obj
        } else {
            for mark in dataset.bookmarks().await? {
                let list = match mark.phys.redaction_obj {
                    0 => String::new(),
                    object => {
                        let (_, header) = redaction_header(pool.mos(), object).await?;
                        list_text(header.num_entries, header.is_complete())
                    }
                };
                add(&mut facts, &mark.name, "bookmark".into(), list);
            }
            if let Some(origin) = dataset.origin().await? {
                add(&mut facts, dataset.name(), "origin".into(), origin.name().to_owned());
            }
            let dir = &dataset.dir().phys;
            for (what, number) in [("dir quota", dir.quota), ("dir reserved", dir.reserved)] {
                if number != 0 {
                    add(&mut facts, dataset.name(), what.into(), number.to_string());
                }
            }
            dir.props_zapobj
        };
        for entry in entries(pool, props).await? {
            let name = String::from_utf8_lossy(entry.key.name().unwrap_or_default()).into_owned();
            // It goes with the encryption root, which changes with the origins of clones.
            if name == "keylocation" {
                continue;
            }
            add(&mut facts, dataset.name(), name, text(&entry.value));
        }
    }
    Ok(facts)
}

/// Describes the list of a redaction bookmark.
pub(super) fn list_text(entries: u64, is_complete: bool) -> String {
    format!("{entries} entries, {}", if is_complete { "complete" } else { "incomplete" })
}

async fn of_pool(pool: &Arc<Pool>) -> Result<Facts> {
    let mut facts = Facts::new();
    let mut say = |what: &str, which: String| add(&mut facts, POOL, what.to_owned(), which);
    say("guid", pool.guid().to_string());
    say("comment", pool.config().facts.comment.clone().unwrap_or_default());
    if pool.checkpoint_txg().is_some() {
        say("checkpoint", String::new());
    }
    for name in UPGRADES {
        if pool.features().entry(feature(name)).is_some() {
            say(name, "enabled".into());
        }
    }
    if let Some(props) = pool.directory_object("pool_props") {
        for entry in entries(pool, props).await? {
            let name = String::from_utf8_lossy(entry.key.name().unwrap_or_default()).into_owned();
            say(&name, text(&entry.value));
        }
    }
    for leaf in pool.config().vdev_tree.leaves() {
        let states = [(leaf.leaf.offline, OFFLINE), (leaf.leaf.faulted, FAULTED)];
        if let Some((_, state)) = states.into_iter().find(|(is_so, _)| *is_so) {
            say(&format!("leaf {}", leaf.guid), state.to_owned());
        }
    }
    for spare in pool.spares() {
        say(&format!("spare {}", spare.config.guid), String::new());
    }
    for (top, number) in pool.status().await?.root.children.iter().zip(0..) {
        let class = top.class.map_or_else(String::new, |class| format!("{class:?}"));
        say(&format!("top {number}"), shape(&top.kind, top.children.len(), &class));
        for leaf in top.walk().filter(|vdev| vdev.kind.is_real_leaf()) {
            for (what, progress) in [("trim", &leaf.trim), ("initialize", &leaf.initialize)] {
                if progress.work.state != LeafWorkState::None {
                    say(&format!("{what} {}", leaf.guid), format!("{:?}", progress.work.state));
                }
            }
        }
    }
    Ok(facts)
}

/// Describes a top-level vdev.
fn shape(kind: &VdevKind, children: usize, class: &str) -> String {
    match kind {
        VdevKind::Mirror => format!("mirror of {children}, {class}"),
        VdevKind::RaidZ(raidz) => format!("raidz{} of {children}, {class}", raidz.nparity),
        VdevKind::Draid(draid) => format!("draid{} of {children}, {class}", draid.nparity),
        VdevKind::Indirect => INDIRECT.to_owned(),
        VdevKind::Hole => HOLE.to_owned(),
        _ => format!("disk, {class}"),
    }
}

/// Returns the guid of a feature.
fn feature(name: &str) -> &'static str {
    cenote_ondisk::feature::by_name(name).expect("a known feature").guid
}

fn add(facts: &mut Facts, whose: &str, what: String, which: String) {
    facts.insert((whose.to_owned(), what), which);
}

async fn entries(pool: &Arc<Pool>, object: u64) -> Result<Vec<Entry>> {
    if object == 0 { Ok(Vec::new()) } else { Zap::open(pool.mos(), object).await?.to_vec().await }
}
