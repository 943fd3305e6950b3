//! Readers of old and live states: views, snapshots, differences, checks of the whole pool.

use std::sync::{Arc, Mutex, PoisonError};

use cenote_fs::FileSystem;
use cenote_fs::diff::Diff;
use cenote_pool::verify::{self, Finding, Observer, Progress};
use cenote_pool::{Pool, leaks};
use cenote_rt::{BoxFuture, Error, Kind, Result};
use cenote_vdev::Cause;

use super::files::part;
use super::operators::leaf_on;
use super::snapshots::dataset;
use super::{Chosen, Ended, History, Outcome, Running, rest};
use crate::check::{is_honest, may_have_copied_faults};
use crate::look;
use crate::model::files::{Body, exact};
use crate::plan::Op;

/// Microseconds of the unit in which views are kept.
const KEEP_MICROS: u32 = 1_000;
/// Findings of a verification in a message.
const FINDINGS_SHOWN: usize = 4;
/// Errors of a view whose space was needed.
const OVERTAKEN: [Kind; 1] = [Kind::Overtaken];

pub(super) async fn perform(running: &Running, op: Op) -> Ended {
    match op {
        Op::View { file_system, keep } => {
            let file_system = file_system as usize % running.mounts.len();
            view(running, file_system, u32::from(keep) * KEEP_MICROS, 1).await
        }
        Op::KeepView { file_system, seconds } => {
            let file_system = file_system as usize % running.mounts.len();
            let rounds = 1 + u32::from(seconds % 3);
            view(running, file_system, u32::from(seconds) * 1_000_000 / rounds, rounds).await
        }
        Op::SlowList { file_system, actor, dir, seconds } => {
            let file_system = file_system as usize % running.mounts.len();
            let pause = u32::from(seconds) * 1_000_000;
            super::lists::perform(running, file_system, (actor, dir), pause).await
        }
        Op::Peek { file_system, actor, file, offset, len } => {
            let file_system = file_system as usize % running.mounts.len();
            peek(running, file_system, (actor, file), (offset, len)).await
        }
        Op::ListPool => settle(running, list(running).await),
        Op::Verify => verify(running).await,
        Op::Leaks => leak_check(running).await,
        Op::OpenSnapshot { file_system, snapshot } => {
            open_snapshot(running, file_system as usize % running.mounts.len(), snapshot).await
        }
        Op::Diff { file_system, snapshot, other } => {
            let file_system = file_system as usize % running.mounts.len();
            diff(running, file_system, [snapshot, other], 0).await
        }
        Op::SlowDiff { file_system, snapshot, other, seconds } => {
            let file_system = file_system as usize % running.mounts.len();
            let pause = u32::from(seconds) * 1_000_000;
            diff(running, file_system, [snapshot, other], pause).await
        }
        _ => Ok(Outcome::Refused),
    }
}

fn settle(running: &Running, done: Result<()>) -> Ended {
    match done {
        Ok(()) => Ok(Outcome::Done),
        Err(error) => running.judge(&error, &OVERTAKEN),
    }
}

/// Reads the files of all actors as of a committed txg, once and then once more each round. The
/// view is kept for some time after each file.
async fn view(running: &Running, file_system: usize, keep: u32, rounds: u32) -> Ended {
    // The states of a file system that is rolled back are not known by their txgs.
    if running.history.plan.file_systems[file_system].rolls_back {
        return Ok(Outcome::Refused);
    }
    let opened = async {
        let view = running.engine.view().await?;
        let dataset = view.dataset(&dataset(file_system)).await?;
        Ok::<_, Error>((FileSystem::open(&dataset).await?, view))
    };
    let (opened, view) = match opened.await {
        Ok(opened) => opened,
        Err(error) => return running.judge(&error, &OVERTAKEN),
    };
    let actors = running.history.model().file_systems[file_system].actors.len();
    for actor in (0..rounds).flat_map(|_| 0..actors) {
        let found = match look::in_frozen(&opened, actor).await {
            Ok(found) => found,
            Err(error) => return running.judge(&error, &OVERTAKEN),
        };
        {
            let model = running.history.model();
            let states = &model.file_systems[file_system].actors[actor].states;
            let range = states.certain_in(view.txg())..=states.possible_in(view.txg());
            if let Err(difference) = exact(states, range, &found) {
                return Err(format!(
                    "actor {actor} in the view of txg {}: {difference}",
                    view.txg()
                ));
            }
        }
        rest(keep).await;
    }
    Ok(Outcome::Done)
}

/// Reads a part of a file that an actor may be changing.
async fn peek(
    running: &Running,
    file_system: usize,
    (actor, file): (u32, u32),
    (offset, len): (u32, u32),
) -> Ended {
    let mount = &running.mount(file_system);
    if running.history.plan.file_systems[file_system].rolls_back {
        return Ok(Outcome::Refused);
    }
    let chosen = running.choose_node(file_system, actor, |tree| tree.file(file));
    let Some(Chosen { actor, id, object, first }) = chosen else {
        return Ok(Outcome::Refused);
    };
    // The file may be removed meanwhile.
    let read = look::read_file(mount, object, u64::from(offset), len as usize).await;
    let model = running.history.model();
    let states = &model.file_systems[file_system].actors[actor].states;
    let range = first..=states.len();
    let was = |index: usize| states.state(index).node(id);
    if range.clone().any(|index| was(index).is_none()) {
        return Ok(Outcome::Refused);
    }
    let found = match read {
        Ok(found) => found,
        Err(error) => return running.judge(&error, &[]),
    };
    let is_known = |index: usize| match was(index).map(|node| &node.body) {
        Some(Body::File(bytes)) => *part(bytes, offset as usize, len as usize) == found[..],
        _ => false,
    };
    if range.clone().any(is_known) {
        return Ok(Outcome::Done);
    }
    Err(format!(
        "object {object}: {} bytes at {offset} are those of no state {range:?}",
        found.len()
    ))
}

/// Reads names, properties and holds of everything.
async fn list(running: &Running) -> Result<()> {
    let view = running.engine.view().await?;
    for head in view.datasets().await? {
        head.bookmarks().await?;
        for snapshot in head.snapshots().await? {
            snapshot.holds().await?;
        }
    }
    view.status().await?;
    Ok(())
}

/// Collects findings on disks without faults.
struct Strict {
    view: Arc<Pool>,
    /// Disks that may have faults, or bytes of such disks, as they appear in findings, and whether
    /// they report all errors.
    victims: Vec<(String, bool)>,
    findings: Mutex<Vec<String>>,
}

impl Observer for Strict {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        let is_of_victim = match &finding {
            Finding::Part { part, .. } => {
                let (text, is_io) = (format!("{part:?}"), matches!(part.child.cause, Cause::Io(_)));
                let is_allowed =
                    |(of, is_honest): &(String, bool)| text.contains(of) && (is_io || !is_honest);
                self.victims.iter().any(is_allowed)
            }
            _ => false,
        };
        if !is_of_victim && self.view.check_valid().is_ok() {
            let mut findings = self.findings.lock().unwrap_or_else(PoisonError::into_inner);
            findings.push(format!("{finding:?}"));
        }
        Box::pin(async {})
    }
}

/// Verifies a pool: nothing is lost, nothing is wrong on disks without faults, and no bytes are
/// wrong on disks that report their errors.
///
/// # Errors
/// Errors of the run; the findings.
pub(crate) async fn verify_pool(
    view: &Arc<Pool>,
    history: &History,
) -> Result<std::result::Result<(), String>> {
    let layout = &history.plan.layout;
    let victims = (0..layout.all_disks()).filter_map(|disk| {
        let has_copied = may_have_copied_faults(history, disk);
        if !has_copied && !layout.victims.contains(&disk) {
            return None;
        }
        let leaf = leaf_on(&view.config().vdev_tree, disk)?;
        Some((format!("guid: {leaf},"), !has_copied && is_honest(history, disk)))
    });
    let victims = victims.collect();
    let findings = Mutex::default();
    let observer = Arc::new(Strict { view: Arc::clone(view), victims, findings });
    verify::pool(view, Arc::<Strict>::clone(&observer), Arc::<Progress>::default()).await?;
    let findings = observer.findings.lock().unwrap_or_else(PoisonError::into_inner);
    if findings.is_empty() {
        return Ok(Ok(()));
    }
    let more = findings.len().saturating_sub(FINDINGS_SHOWN);
    let shown = &findings[..findings.len() - more];
    Ok(Err(format!("{}; and {more} more", shown.join("; "))))
}

async fn verify(running: &Running) -> Ended {
    let view = match running.engine.view().await {
        Ok(view) => view,
        Err(error) => return running.judge(&error, &OVERTAKEN),
    };
    match verify_pool(&view, &running.history).await {
        Ok(Ok(())) => Ok(Outcome::Done),
        Ok(Err(findings)) => Err(findings),
        Err(error) => running.judge(&error, &OVERTAKEN),
    }
}

async fn leak_check(running: &Running) -> Ended {
    let checked = async {
        let view = running.engine.view().await?;
        leaks::check(&view).await
    };
    match checked.await {
        Ok(report) if report.is_clean() => Ok(Outcome::Done),
        Ok(report) => Err(format!("{:?}", report.lines())),
        Err(error) => running.judge(&error, &OVERTAKEN),
    }
}

/// Returns the name of a snapshot that exists.
fn known_snapshot(running: &Running, file_system: usize, number: u32) -> Option<String> {
    let model = running.history.model();
    let home = &model.file_systems[file_system];
    let known: Vec<_> = home.snapshots.iter().filter(|(_, one)| one.is_known()).collect();
    known.get(number as usize % known.len().max(1)).map(|(name, _)| (*name).clone())
}

async fn open(running: &Running, file_system: usize, name: &str) -> Result<Arc<FileSystem>> {
    let full = format!("{}@{name}", dataset(file_system));
    FileSystem::open_snapshot(&running.engine, &full).await
}

/// Reads the files of all actors in a snapshot.
async fn open_snapshot(running: &Running, file_system: usize, number: u32) -> Ended {
    let Some(name) = known_snapshot(running, file_system, number) else {
        return Ok(Outcome::Refused);
    };
    let opened = match open(running, file_system, &name).await {
        Ok(opened) => opened,
        // It was destroyed meanwhile.
        Err(error) => return running.judge(&error, &[Kind::NotFound]),
    };
    let actors = running.history.model().file_systems[file_system].actors.len();
    for actor in 0..actors {
        let found = match look::in_frozen(&opened, actor).await {
            Ok(found) => found,
            Err(error) => return running.judge(&error, &[]),
        };
        let mut model = running.history.model();
        let Some(snapshot) = model.file_systems[file_system].snapshots.get_mut(&name) else {
            return Ok(Outcome::Done);
        };
        snapshot.check(actor, &found).map_err(|what| format!("actor {actor} in {name}: {what}"))?;
    }
    Ok(Outcome::Done)
}

/// Reads the differences between two snapshots, with a pause after the first one.
async fn diff(running: &Running, file_system: usize, numbers: [u32; 2], pause: u32) -> Ended {
    let [Some(one), Some(other)] =
        numbers.map(|number| known_snapshot(running, file_system, number))
    else {
        return Ok(Outcome::Refused);
    };
    let compared = async {
        let (one, other) =
            (open(running, file_system, &one).await?, open(running, file_system, &other).await?);
        let mut differences = Diff::new(&one, &other);
        if differences.next().await?.is_some() {
            rest(pause).await;
            while differences.next().await?.is_some() {}
        }
        Ok(())
    };
    match compared.await {
        Ok(()) => Ok(Outcome::Done),
        Err(error) => running.judge(&error, &[Kind::NotFound]),
    }
}
