//! `zfs destroy`.
//!
//! The datasets to destroy are collected first, on a read-only view of the pool, in the order of
//! destruction: clones before their snapshots, children before parents. Then the pool is opened for
//! writing.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use cenote_engine::admin::Ioctl;
use cenote_engine::{Engine, OpError};
use cenote_ondisk::nvlist::NvValue;
use cenote_pool::{Dataset, DatasetKind, mos};

use super::create::wording;
use super::permits;
use super::refuse::existing;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::{Source, dataset_of};
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::zpool::block_on;
use crate::{hints, nicenum, out};

/// Permissions for destroying a dataset.
const RIGHTS: [&str; 2] = ["destroy", "mount"];

/// Number of attempts to destroy snapshots that are in use, and the pause between them.
const TRIES: u32 = 10;
const PAUSE: Duration = Duration::from_millis(50);

/// Runs `zfs destroy`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "vpndfrR", &[])?;
    let [name] = getopt::exactly(&parsed.operands, ["missing dataset argument"])?;
    let line = command_line(Tool::Zfs, "destroy", args);
    block_on(async {
        if let Some((head, list)) = name.split_once('@') {
            return snapshots(source, (head, list), name, &parsed, &line, io).await;
        }
        if let Some((head, _)) = name.split_once('#') {
            return bookmark(source, head, name, &parsed, &line, io).await;
        }
        dataset(source, name, &parsed, &line, io).await
    })
}

/// The datasets to destroy, in order.
#[derive(Debug, Default)]
struct DestroyList {
    /// File systems, volumes and snapshots.
    names: Vec<String>,
    seen: BTreeSet<String>,
    /// Datasets whose dependents are being collected.
    entered: BTreeSet<String>,
    /// Clones outside of the destroyed subtree.
    foreign: Vec<String>,
}

/// A step of collecting the dependents of a dataset.
enum Step {
    /// Collect its dependents first.
    Enter(Dataset),
    Leave(String),
}

impl DestroyList {
    /// Adds everything that depends on a dataset, then the dataset. Clones of clones can be
    /// hundreds deep: the steps are kept in a list, not on the stack.
    async fn add(&mut self, dataset: Dataset, target: &str, with_clones: bool) -> CommandResult {
        let mut steps = vec![Step::Enter(dataset)];
        while let Some(step) = steps.pop() {
            let dataset = match step {
                Step::Enter(dataset) => dataset,
                Step::Leave(name) => {
                    self.entered.remove(&name);
                    self.names.push(name);
                    continue;
                }
            };
            let name = dataset.name();
            if self.entered.contains(name) {
                // The dataset is a clone of one of its own descendants.
                return Err(Exit::failed(format!(
                    "cannot determine dependent datasets: recursive dependency at '{name}'"
                )));
            }
            if !self.seen.insert(name.to_owned()) {
                continue;
            }
            self.entered.insert(name.to_owned());
            steps.push(Step::Leave(name.to_owned()));
            let before = steps.len();
            if dataset.is_snapshot() {
                for name in dataset.clone_names().await? {
                    let below = name.strip_prefix(target).is_some_and(|rest| rest.starts_with('/'));
                    if !below && !with_clones && !self.entered.contains(&name) {
                        self.foreign.push(name);
                        continue;
                    }
                    steps.push(Step::Enter(dataset_of(dataset.pool(), &name).await?));
                }
            } else {
                steps.extend(dataset.children().await?.into_iter().map(Step::Enter));
                steps.extend(dataset.snapshots().await?.into_iter().map(Step::Enter));
            }
            // The last step is taken first.
            steps[before..].reverse();
        }
        Ok(())
    }
}

async fn dataset(
    source: &Source,
    name: &str,
    parsed: &Parsed,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    if parsed.has('d') {
        return Err(Exit::usage("-d: this option may only be used with snapshots"));
    }
    let head = existing(source, name).await?;
    let (all, clones) = (parsed.has('r') || parsed.has('R'), parsed.has('R'));
    let is_pool = !name.contains('/');
    if is_pool && !all {
        return Err(Exit::failed(format!(
            "cannot destroy '{name}': operation does not apply to pools\n\
             use 'zfs destroy -r {name}' to destroy all datasets in the pool\n\
             use 'zpool destroy {name}' to destroy the pool itself"
        )));
    }
    let mut targets = DestroyList::default();
    targets.add(head.clone(), name, clones).await?;
    if !all && targets.names.len() > 1 {
        let kind = if head.kind().await? == DatasetKind::Volume { "volume" } else { "filesystem" };
        let below = &targets.names[..targets.names.len() - 1];
        return Err(dependents(
            &format!("cannot destroy '{name}': {kind} has children"),
            'r',
            below,
        ));
    }
    if !targets.foreign.is_empty() {
        let what = format!("cannot destroy '{name}': filesystem has dependent clones");
        return Err(dependents(&what, 'R', &targets.foreign));
    }
    if is_pool {
        targets.names.retain(|target| target != name);
    }
    permits::need_on(source, head.pool(), &targets.names, &RIGHTS, "destroy").await?;
    tell(&targets.names, parsed, io)?;
    if parsed.has('n') {
        return Ok(());
    }
    drop(head);
    let work = Box::pin(Writer::run(source, name, Some(line), io, async |engine, _| {
        destroy(source, engine, &targets.names, false).await
    }));
    source.without_mounts(&targets.names, parsed.has('f'), work).await
}

fn dependents(what: &str, option: char, names: &[String]) -> Exit {
    let list = names.join("\n");
    Exit::failed(format!("{what}\nuse '-{option}' to destroy the following datasets:\n{list}"))
}

/// Prints the list for `-v` and `-n`.
fn tell(names: &[String], parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    if !parsed.has('v') {
        return Ok(());
    }
    for name in names {
        match (parsed.has('p'), parsed.has('n')) {
            (true, _) => out!(io, "destroy\t{name}")?,
            (false, true) => out!(io, "would destroy {name}")?,
            (false, false) => out!(io, "will destroy {name}")?,
        }
    }
    Ok(())
}

/// Destroys in order; consecutive snapshots are destroyed together.
async fn destroy(
    source: &Source,
    engine: &Engine,
    names: &[String],
    is_deferred: bool,
) -> CommandResult {
    let mut rest = names;
    while let [first, ..] = rest {
        let count = rest.iter().take_while(|name| name.contains('@')).count();
        if count == 0 {
            engine.datasets().destroy(first).await.map_err(|error| failure(first, &error))?;
            rest = &rest[1..];
            continue;
        }
        let (batch, later) = rest.split_at(count);
        destroy_snapshots(source, engine, batch, is_deferred).await?;
        rest = later;
    }
    Ok(())
}

/// Destroys snapshots. Programs that visit `.zfs` open snapshots at any time, so a snapshot in use
/// is tried again a few times.
async fn destroy_snapshots(
    source: &Source,
    engine: &Engine,
    names: &[String],
    is_deferred: bool,
) -> CommandResult {
    let mut tries_left = TRIES;
    loop {
        tries_left -= 1;
        source.close_unused_snapshots(&names[0]);
        let done = engine.snapshots().destroy_all(names.to_vec(), is_deferred).await;
        match done.as_ref().map_err(|error| error.cause::<OpError>()) {
            Err(Some(OpError::Busy)) if tries_left > 0 => cenote_rt::sleep(PAUSE).await,
            _ => return done.map_err(|error| failure(&names[0], &error)),
        }
    }
}

fn failure(name: &str, error: &cenote_rt::Error) -> Exit {
    Exit::failed(match error.cause::<OpError>() {
        Some(OpError::Busy) => format!("cannot destroy '{name}': dataset is busy"),
        _ => format!("cannot destroy '{name}': {}", wording(error)),
    })
}

/// Returns the snapshots of a head that a list names: `a,b%c,%d`.
async fn listed(head: &Dataset, list: &str) -> Result<Vec<Dataset>, Exit> {
    let all = head.snapshots().await?;
    let at = |short: &str| all.iter().position(|found| found.snapshot_name() == Some(short));
    let mut wanted = BTreeSet::new();
    for part in list.split(',') {
        match part.split_once('%') {
            Some((first, last)) => {
                let first = if first.is_empty() { Some(0) } else { at(first) };
                let last = if last.is_empty() { all.len().checked_sub(1) } else { at(last) };
                if let (Some(first), Some(last)) = (first, last) {
                    wanted.extend(first..=last);
                }
            }
            None => wanted.extend(at(part)),
        }
    }
    Ok(wanted.into_iter().filter_map(|index| all.get(index).cloned()).collect())
}

async fn snapshots(
    source: &Source,
    (head, list): (&str, &str),
    name: &str,
    parsed: &Parsed,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let top = existing(source, head).await?;
    let mut heads = vec![top.clone()];
    if parsed.has('r') || parsed.has('R') {
        super::change::below(&top, &mut heads).await?;
    }
    let (mut targets, mut reclaimed) = (DestroyList::default(), Some(0));
    for head in &heads {
        let found = listed(head, list).await?;
        reclaimed = match (reclaimed, reclaim(head, &found).await?) {
            (Some(sum), Some(more)) => Some(sum + more),
            _ => None,
        };
        for snapshot in &found {
            if !parsed.has('d') {
                check_snapshot(snapshot, parsed).await?;
            }
            if parsed.has('d') {
                targets.names.push(snapshot.name().to_owned());
            } else {
                targets.add(snapshot.clone(), "", parsed.has('R')).await?;
            }
        }
    }
    if targets.names.is_empty() {
        return Err(Exit::failed(hints::NO_SNAPSHOTS));
    }
    permits::need_on(source, top.pool(), &targets.names, &RIGHTS, "destroy").await?;
    tell(&targets.names, parsed, io)?;
    if let Some(bytes) = reclaimed.filter(|_| parsed.has('v') && !parsed.has('d')) {
        let size = nicenum::bytes_b(bytes);
        match (parsed.has('p'), parsed.has('n')) {
            (true, _) => out!(io, "reclaim\t{bytes}")?,
            (false, true) => out!(io, "would reclaim {size}")?,
            (false, false) => out!(io, "will reclaim {size}")?,
        }
    }
    if parsed.has('n') {
        return Ok(());
    }
    drop((top, heads));
    let snapshots = targets.names.iter().filter(|name| name.contains('@'));
    let names = snapshots.map(|name| (name.clone(), NvValue::Boolean)).collect();
    let ioctl = Ioctl { name: "destroy_snaps", key: Some("snaps"), names };
    // Clones that are destroyed with them.
    let work = Box::pin(Writer::run_ioctl(source, name, (line, ioctl), io, async |engine, _| {
        destroy(source, engine, &targets.names, parsed.has('d')).await
    }));
    source.without_mounts(&targets.names, parsed.has('f'), work).await
}

/// Returns the space that destroying the snapshots reclaims; none if they are not consecutive.
async fn reclaim(head: &Dataset, found: &[Dataset]) -> Result<Option<u64>, Exit> {
    let (Some(first), Some(last)) = (found.first(), found.last()) else { return Ok(Some(0)) };
    let all = head.snapshots().await?;
    let at = |one: &Dataset| all.iter().position(|other| other.object() == one.object());
    match (at(first), at(last)) {
        (Some(from), Some(to)) if to - from + 1 == found.len() => {
            Ok(Some(first.space_of_snapshots(last).await?))
        }
        _ => Ok(None),
    }
}

/// Returns an error if something keeps a snapshot from being destroyed.
async fn check_snapshot(snapshot: &Dataset, parsed: &Parsed) -> CommandResult {
    let name = snapshot.name();
    if !snapshot.holds().await?.is_empty() {
        return Err(Exit::failed(format!(
            "cannot destroy snapshot {name}: it's being held. \
             Run 'zfs holds -r {name}' to see holders."
        )));
    }
    let clones = snapshot.clone_names().await?;
    if clones.is_empty() || parsed.has('R') {
        return Ok(());
    }
    let mut text = format!("cannot destroy '{name}': snapshot has dependent clones\n");
    let _ = write!(text, "use '-R' to destroy the following datasets:\n{}", clones.join("\n"));
    Err(Exit::failed(text))
}

async fn bookmark(
    source: &Source,
    head: &str,
    name: &str,
    parsed: &Parsed,
    line: &str,
    io: &mut Io<'_>,
) -> CommandResult {
    let dataset = existing(source, head).await?;
    let short = name.split_once('#').map_or("", |(_, short)| short);
    if mos::optional(dataset.bookmark(short).await)?.is_none() {
        return Err(Exit::failed(format!("bookmark '{name}' does not exist.")));
    }
    permits::need_for(source, &dataset, &RIGHTS[..1], ("destroy", name)).await?;
    if parsed.has('n') {
        return Ok(());
    }
    drop(dataset);
    Writer::run(source, head, Some(line), io, async |engine, _| {
        let done = engine.bookmarks().destroy_all(vec![name.to_owned()]).await;
        done.map_err(|error| failure(name, &error))
    })
    .await
}
