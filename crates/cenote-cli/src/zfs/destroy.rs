//! `zfs destroy`.
//!
//! What goes is found out first, on the pool as it is for readers, in the order in which it goes:
//! clones before their snapshots, children before parents. Then the pool is opened for writing.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use cenote_engine::{Engine, OpError};
use cenote_pool::{Dataset, DatasetKind};

use super::create::wording;
use super::permits;
use super::refuse::existing;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::{Source, dataset_of};
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::zpool::block_on;
use crate::{nicenum, out};

/// What whoever destroys must have been granted.
const RIGHTS: [&str; 2] = ["destroy", "mount"];

/// Runs `zfs destroy`.
pub(super) fn run(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "vpndfrR", &[])?;
    let name = match &parsed.operands[..] {
        [] => return Err(Exit::usage("missing dataset argument")),
        [name] => name,
        _ => return Err(Exit::usage("too many arguments")),
    };
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

/// What goes, in order.
#[derive(Debug, Default)]
struct Doomed {
    /// File systems, volumes and snapshots.
    names: Vec<String>,
    seen: BTreeSet<String>,
    /// Those of them whose dependents are looked for just now.
    entered: BTreeSet<String>,
    /// Clones that are elsewhere.
    foreign: Vec<String>,
}

/// A step on the way through what depends on a dataset.
enum Step {
    /// What depends on it goes first.
    Enter(Dataset),
    Leave(String),
}

impl Doomed {
    /// Everything that depends on a dataset, and itself. Clones of clones can be hundreds deep: the
    /// way is kept in a list, not on the stack.
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
                // It is a clone of what is below it.
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
            // The last is taken first.
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
    let mut doomed = Doomed::default();
    doomed.add(head.clone(), name, clones).await?;
    if !all && doomed.names.len() > 1 {
        let kind = if head.kind().await? == DatasetKind::Volume { "volume" } else { "filesystem" };
        let below = &doomed.names[..doomed.names.len() - 1];
        return Err(dependents(
            &format!("cannot destroy '{name}': {kind} has children"),
            'r',
            below,
        ));
    }
    if !doomed.foreign.is_empty() {
        let what = format!("cannot destroy '{name}': filesystem has dependent clones");
        return Err(dependents(&what, 'R', &doomed.foreign));
    }
    if is_pool {
        doomed.names.retain(|doomed| doomed != name);
    }
    permits::need_on(source, head.pool(), &doomed.names, &RIGHTS, "destroy").await?;
    tell(&doomed.names, parsed, io)?;
    if parsed.has('n') {
        return Ok(());
    }
    drop(head);
    source.let_go_of_snapshots(name);
    let work = Box::pin(Writer::run(source, name, Some(line), io, async |engine, _| {
        destroy(engine, &doomed.names, false).await
    }));
    source.without_mounts(&doomed.names, parsed.has('f'), work).await
}

fn dependents(what: &str, option: char, names: &[String]) -> Exit {
    let list = names.join("\n");
    Exit::failed(format!("{what}\nuse '-{option}' to destroy the following datasets:\n{list}"))
}

/// `-v` and `-n`: what goes.
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

/// Destroys in order; snapshots that follow each other go together.
async fn destroy(engine: &Engine, names: &[String], is_deferred: bool) -> CommandResult {
    let mut rest = names;
    while let [first, ..] = rest {
        let count = rest.iter().take_while(|name| name.contains('@')).count();
        if count == 0 {
            engine.destroy_dataset(first).await.map_err(|error| failure(first, &error))?;
            rest = &rest[1..];
            continue;
        }
        let (batch, later) = rest.split_at(count);
        let done = engine.destroy_snapshots(batch.to_vec(), is_deferred).await;
        done.map_err(|error| failure(&batch[0], &error))?;
        rest = later;
    }
    Ok(())
}

fn failure(name: &str, error: &cenote_rt::Error) -> Exit {
    Exit::failed(match error.cause::<OpError>() {
        Some(OpError::Busy) => format!("cannot destroy '{name}': dataset is busy"),
        _ => format!("cannot destroy '{name}': {}", wording(error)),
    })
}

/// The snapshots of a head that a list names: `a,b%c,%d`.
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
    let (mut doomed, mut reclaimed) = (Doomed::default(), Some(0));
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
                doomed.names.push(snapshot.name().to_owned());
            } else {
                doomed.add(snapshot.clone(), "", parsed.has('R')).await?;
            }
        }
    }
    if doomed.names.is_empty() {
        let text = "could not find any snapshots to destroy; check snapshot names.";
        return Err(Exit::failed(text));
    }
    permits::need_on(source, top.pool(), &doomed.names, &RIGHTS, "destroy").await?;
    tell(&doomed.names, parsed, io)?;
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
    source.let_go_of_snapshots(name);
    // Clones that go with them.
    let work = Box::pin(Writer::run(source, name, Some(line), io, async |engine, _| {
        destroy(engine, &doomed.names, parsed.has('d')).await
    }));
    source.without_mounts(&doomed.names, parsed.has('f'), work).await
}

/// What destroying the snapshots gives back; none if they do not follow each other.
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

/// What keeps a snapshot from going.
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
    if dataset.bookmark(short).await.is_err() {
        return Err(Exit::failed(format!("bookmark '{name}' does not exist.")));
    }
    permits::need_for(source, &dataset, &RIGHTS[..1], ("destroy", name)).await?;
    if parsed.has('n') {
        return Ok(());
    }
    drop(dataset);
    Writer::run(source, head, Some(line), io, async |engine, _| {
        let done = engine.destroy_bookmarks(vec![name.to_owned()]).await;
        done.map_err(|error| failure(name, &error))
    })
    .await
}
