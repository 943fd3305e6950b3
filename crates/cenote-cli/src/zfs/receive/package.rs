//! Receives a package: its substreams one after the other. Before and after those of a replication
//! (`send -R -i`) the datasets here are made like the sender's (spec 07 B9.6).
//!
//! Datasets are matched by the guids of snapshots, so that renamed ones are found. A pass changes
//! one dataset, or the snapshots of all, and looks again; passes end when there is nothing left to
//! change.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_engine::{Engine, KeyChange};
use cenote_ondisk::nvlist::NvValue;
use cenote_ondisk::stream::Record;
use cenote_ondisk::zap::Value;
use cenote_pool::props::text as setting;
use cenote_pool::{Dataset, Pool};
use cenote_stream::{Item, Package, PackageDataset};

use super::naming::Sent;
use super::one::{Stream, change_props};
use super::place::Context;
use super::{Command, failure, props};
use crate::io::{CommandResult, Exit, Io};
use crate::source::find;
use crate::zfs::create::wording;
use crate::{err, out};

/// Datasets of a package by the guids of their snapshots, with the snapshots' names there.
type ByGuid<'a> = BTreeMap<u64, (&'a PackageDataset, String)>;

/// A dataset here.
#[derive(Debug)]
struct Local {
    name: String,
    /// Short names and guids, oldest first.
    snapshots: Vec<(String, u64)>,
    /// Guid of the origin, and the txg of its creation.
    origin: Option<(u64, u64)>,
}

/// A step that makes the datasets here more like the sender's.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Step {
    Promote(String),
    DestroySnapshots(Vec<String>),
    RenameSnapshot { head: String, from: String, to: String },
    Destroy(String),
    Rename { from: String, to: String },
}

impl Step {
    const fn is_of_snapshots(&self) -> bool {
        matches!(self, Self::DestroySnapshots(_) | Self::RenameSnapshot { .. })
    }
}

impl Command {
    /// Receives the package that `first` begins; `top` was given to `zfs send`.
    pub(super) async fn package(
        &self,
        engine: Option<&Arc<Engine>>,
        stream: &mut Stream,
        (first, top): (&Item, &str),
        io: &mut Io<'_>,
    ) -> CommandResult {
        let decoded = (!first.payload.is_empty()).then(|| Package::decode(&first.payload));
        let package = decoded.transpose().map_err(|error| {
            failure::cannot_receive(format_args!("invalid backup stream: {error}"))
        })?;
        let at_end = |error| failure::cannot_receive(failure::stream_words(&error));
        // The END of the header.
        stream.next().transpose().map_err(at_end)?;
        let by_guid = package.as_ref().map(by_guid).unwrap_or_default();
        let is_recursive = package.as_ref().is_some_and(|package| package.is_recursive);
        let replicated = package.as_ref().filter(|_| is_recursive && !self.heals());
        let replicated = replicated.filter(|package| package.from_snap.is_some());
        let mut is_alike = true;
        if let (Some(engine), Some(package)) = (engine, replicated) {
            is_alike &= self.make_alike(engine, (package, &by_guid), top, io).await?;
        }
        while let Some(item) = stream.next().transpose().map_err(at_end)? {
            let Record::Begin(begin) = &item.record else { break };
            let dataset = by_guid.get(&begin.to_guid).map(|(dataset, _)| *dataset);
            let context = Context { top, is_recursive, dataset };
            Box::pin(self.substream(engine, stream, item, context, io)).await?;
        }
        if let (Some(engine), Some(package)) = (engine, replicated) {
            is_alike &= self.make_alike(engine, (package, &by_guid), top, io).await?;
        }
        if let (Some(engine), Some(package)) = (engine, package.as_ref().filter(|p| p.is_raw))
            && !self.heals()
        {
            is_alike &= self.use_sent_keys(engine, (package, &by_guid), top, io).await?;
        }
        if is_alike { Ok(()) } else { Err(Exit::Status(1)) }
    }

    /// Returns the name here of the dataset at the top of a package.
    fn head_of(&self, package: &Package, top: &str) -> Result<String, Exit> {
        let snapshot = format!("{top}@{}", package.to_snap.to_string_lossy());
        let sent = Sent { snapshot: &snapshot, top, is_recursive: package.is_recursive };
        let name = self.naming.name(&self.argument, sent).map_err(failure::cannot_receive)?;
        Ok(name.split('@').next().unwrap_or_default().to_owned())
    }

    /// Makes the datasets of a raw package encryption roots, or users of their parent's key, as
    /// they are at the sender. Each was received as a root. Returns false if a change failed, which
    /// was reported.
    async fn use_sent_keys(
        &self,
        engine: &Arc<Engine>,
        (package, by_guid): (&Package, &ByGuid<'_>),
        top: &str,
        io: &mut Io<'_>,
    ) -> Result<bool, Exit> {
        let head = self.head_of(package, top)?;
        let view = engine.view().await?;
        let mut are_done = true;
        for local in gather(&view, &head).await? {
            let known = |(_, guid): &(String, u64)| by_guid.get(guid);
            let Some((sent, _)) = local.snapshots.iter().find_map(known) else { continue };
            let Some(dataset) = find(&view, &local.name).await? else { continue };
            let Some(key) = dataset.key_info().await? else { continue };
            let is_root = key.root_dir == dataset.dir().object;
            let change = match (sent.is_encryption_root, is_root) {
                (true, false) if local.origin.is_none() => Some(KeyChange::ForceRoot),
                (false, true) if local.name != head => Some(KeyChange::ForceInherit),
                _ => None,
            };
            if let Some(change) = change
                && let Err(error) = engine.datasets().change_key(&local.name, change).await
            {
                err!(io, "cannot change key of '{}': {}", local.name, wording(&error))?;
                are_done = false;
                continue;
            }
            let location = sent.props.iter().find(|(name, _)| name.to_str() == Some("keylocation"));
            if let (true, Some((_, NvValue::String(text)))) = (sent.is_encryption_root, location)
                && let Some(text) = text.to_str().filter(|text| setting::is_key_location(text))
            {
                let change = vec![(
                    "keylocation".to_owned(),
                    cenote_engine::PropertyChange::Set(Value::text(text)),
                )];
                change_props(engine, &local.name, change, io).await?;
            }
        }
        Ok(are_done)
    }

    /// Promotes, renames and, with `-F`, destroys datasets and snapshots here as the sender did.
    /// Returns false if a step failed, which was reported.
    async fn make_alike(
        &self,
        engine: &Arc<Engine>,
        (package, by_guid): (&Package, &ByGuid<'_>),
        top: &str,
        io: &mut Io<'_>,
    ) -> Result<bool, Exit> {
        let head = self.head_of(package, top)?;
        // No step is taken twice: a snapshot that is to be destroyed stays while a clone needs it.
        // Only what could not be destroyed is tried again when something else was: its clone may
        // have been that.
        let (mut tried, mut failures) = (Vec::new(), Vec::<(Step, Exit)>::new());
        loop {
            let locals = gather(&engine.view().await?, &head).await?;
            // A target that the sender knows nothing of was named by mistake: nothing of it is
            // destroyed, and the increment will not be received either.
            let knows = |(_, guid): &(String, u64)| by_guid.contains_key(guid);
            if !locals.first().is_some_and(|top| top.snapshots.iter().any(knows)) {
                break;
            }
            let mut steps = self.steps(&locals, package, by_guid, &head);
            steps.retain(|step| !tried.contains(step));
            let Some(first) = steps.first() else { break };
            // Steps on snapshots are independent of each other.
            let count = if first.is_of_snapshots() {
                steps.iter().take_while(|step| step.is_of_snapshots()).count()
            } else {
                1
            };
            for step in steps.into_iter().take(count) {
                match self.take(engine, &step, &locals, io).await {
                    Err(exit) => failures.push((step.clone(), exit)),
                    Ok(()) if matches!(step, Step::Destroy(_)) => {
                        failures.retain(|(failed, _)| !matches!(failed, Step::Destroy(_)));
                        tried.retain(|tried| !matches!(tried, Step::Destroy(_)));
                    }
                    Ok(()) => {}
                }
                tried.push(step);
            }
        }
        for (_, exit) in &failures {
            err!(io, "{}", exit.message())?;
        }
        for local in gather(&engine.view().await?, &head).await? {
            self.set_snapshot_props(engine, &local, by_guid, io).await?;
        }
        Ok(failures.is_empty())
    }

    /// Returns the steps that are to be taken, in the order in which they are tried.
    fn steps(
        &self,
        locals: &[Local],
        package: &Package,
        by_guid: &ByGuid<'_>,
        head: &str,
    ) -> Vec<Step> {
        let mut steps = Vec::new();
        let matching = |local: &Local| {
            local.snapshots.iter().rev().find_map(|(_, guid)| by_guid.get(guid)).map(|(it, _)| *it)
        };
        for local in locals {
            let Some(dataset) = matching(local) else { continue };
            if let Some((origin, born)) = local.origin
                && dataset.origin != Some(origin)
                && is_older(dataset.origin, born, locals)
            {
                steps.push(Step::Promote(local.name.clone()));
            }
        }
        for local in locals {
            let gone = local.snapshots.iter().filter(|(_, guid)| !by_guid.contains_key(guid));
            let gone: Vec<_> = gone.map(|(short, _)| format!("{}@{short}", local.name)).collect();
            if self.is_forced() && !gone.is_empty() {
                steps.push(Step::DestroySnapshots(gone));
            }
            let taken: BTreeMap<&String, u64> =
                local.snapshots.iter().map(|(short, guid)| (short, *guid)).collect();
            for (number, (short, guid)) in local.snapshots.iter().enumerate() {
                let Some((_, sent)) = by_guid.get(guid).filter(|(_, sent)| sent != short) else {
                    continue;
                };
                let to = match taken.get(sent) {
                    None => sent.clone(),
                    // It gets another name, or is destroyed: the next pass takes the name.
                    Some(holder) if self.is_forced() || by_guid.contains_key(holder) => {
                        format!("recv-{number}")
                    }
                    Some(_) => continue,
                };
                let (head, from) = (local.name.clone(), short.clone());
                steps.push(Step::RenameSnapshot { head, from, to });
            }
        }
        // Children before parents. The dataset that the command names stays.
        for local in locals.iter().rev().filter(|local| local.name != head) {
            if self.is_forced() && matching(local).is_none() {
                steps.push(Step::Destroy(local.name.clone()));
            }
        }
        let from_snap = package.from_snap.as_ref().map(|name| name.to_string_lossy().into_owned());
        for local in locals.iter().filter(|local| local.name != head) {
            // One without the source of the increment was made again here: it is left alone.
            let has_source =
                local.snapshots.iter().any(|(short, _)| Some(short) == from_snap.as_ref());
            let Some(dataset) = matching(local).filter(|_| has_source) else { continue };
            if let Some(to) = new_name(local, dataset, locals) {
                steps.push(Step::Rename { from: local.name.clone(), to });
            }
        }
        steps
    }

    /// Takes one step.
    async fn take(
        &self,
        engine: &Arc<Engine>,
        step: &Step,
        locals: &[Local],
        io: &mut Io<'_>,
    ) -> CommandResult {
        let below = |top: &str| {
            let is_below = |name: &str| name == top || name.starts_with(&format!("{top}/"));
            let names = locals.iter().map(|local| local.name.clone());
            names.filter(|name| is_below(name)).collect::<Vec<_>>()
        };
        let text = match step {
            Step::Promote(name) => format!("promoting {name}"),
            Step::DestroySnapshots(names) => format!("attempting destroy {}", names.join(" ")),
            Step::RenameSnapshot { head, from, to } => {
                format!("attempting rename {head}@{from} to {head}@{to}")
            }
            Step::Destroy(name) => format!("attempting destroy {name}"),
            Step::Rename { from, to } => format!("attempting rename {from} to {to}"),
        };
        if self.is_verbose() {
            out!(io, "{text}")?;
        }
        let cannot = |action: &str, name: &str, error: &cenote_rt::Error| {
            Exit::cannot(action, name, wording(error))
        };
        match step {
            Step::Promote(name) => {
                let done = engine.datasets().promote(name).await;
                done.map_err(|error| cannot("promote", name, &error))
            }
            Step::DestroySnapshots(names) => {
                let first = names.first().map_or("", String::as_str);
                self.source.close_unused_snapshots(first);
                let done = engine.snapshots().destroy_all(names.clone(), true).await;
                done.map_err(|error| cannot("destroy", first, &error))
            }
            Step::RenameSnapshot { head, from, to } => {
                let done = engine.snapshots().rename(head, from, to, false).await;
                done.map_err(|error| cannot("rename", &format!("{head}@{from}"), &error))
            }
            Step::Destroy(name) => {
                let work = async {
                    let done = engine.datasets().destroy(name).await;
                    done.map_err(|error| cannot("destroy", name, &error))
                };
                self.source.without_mounts(&below(name), self.unmounts_by_force(), work).await
            }
            Step::Rename { from, to } => {
                let work = async {
                    let done = engine.datasets().rename(from, to).await;
                    done.map_err(|error| cannot("rename", from, &error))
                };
                self.source.without_mounts(&below(from), self.unmounts_by_force(), work).await
            }
        }
    }

    async fn set_snapshot_props(
        &self,
        engine: &Arc<Engine>,
        local: &Local,
        by_guid: &ByGuid<'_>,
        io: &mut Io<'_>,
    ) -> CommandResult {
        for (short, guid) in &local.snapshots {
            let Some((dataset, sent)) = by_guid.get(guid) else { continue };
            if let Some(list) = dataset.props_of_snapshot(sent) {
                let name = format!("{}@{short}", local.name);
                change_props(engine, &name, props::of_snapshot(list), io).await?;
            }
        }
        Ok(())
    }
}

fn by_guid(package: &Package) -> ByGuid<'_> {
    let snapshots = |dataset: &'_ PackageDataset| {
        let named = |(name, guid): &(cenote_ondisk::nvlist::NvString, u64)| {
            (*guid, name.to_string_lossy().into_owned())
        };
        dataset.snaps.iter().map(named).collect::<Vec<_>>()
    };
    let all = package.datasets.iter().flat_map(|dataset| {
        snapshots(dataset).into_iter().map(move |(guid, name)| (guid, (dataset, name)))
    });
    all.collect()
}

/// Whether the origin that the sender has is older than that of a dataset here, or there is none: a
/// promotion made it so.
fn is_older(sent: Option<u64>, born: u64, locals: &[Local]) -> bool {
    let Some(sent) = sent else { return true };
    let of = locals.iter().find_map(|local| local.origin.filter(|(guid, _)| *guid == sent));
    of.is_some_and(|(_, other)| other < born)
}

/// Returns the name that a dataset gets because the sender renamed it, if it did.
fn new_name(local: &Local, sent: &PackageDataset, locals: &[Local]) -> Option<String> {
    let (parent, last) = local.name.rsplit_once('/')?;
    let sent_name = sent.name.to_string_lossy();
    let sent_last = sent_name.rsplit('/').next().unwrap_or_default();
    let has =
        |local: &&Local| local.snapshots.iter().any(|(_, guid)| *guid == sent.parent_from_snap);
    let sent_parent = locals.iter().find(has).map(|local| local.name.as_str());
    let new_parent = sent_parent.unwrap_or(parent);
    // A dataset does not move below itself.
    let is_inside = new_parent == local.name || new_parent.starts_with(&format!("{}/", local.name));
    if is_inside || new_parent == parent && sent_last == last {
        return None;
    }
    let name = format!("{new_parent}/{sent_last}");
    if !locals.iter().any(|other| other.name == name) {
        return Some(name);
    }
    // The name is still taken: by one that gets another name later.
    (1..=locals.len() + 1)
        .map(|number| format!("{new_parent}/recv-{number}"))
        .find(|name| *name != local.name && !locals.iter().any(|other| other.name == *name))
}

/// Returns the datasets here from `top` on, parents before children.
async fn gather(pool: &Arc<Pool>, top: &str) -> Result<Vec<Local>, Exit> {
    let mut found = Vec::new();
    let mut left: Vec<Dataset> = find(pool, top).await?.into_iter().collect();
    while let Some(dataset) = left.pop() {
        let snapshots = dataset.snapshots().await?.into_iter();
        let snapshots = snapshots.map(|snapshot| {
            let short = snapshot.snapshot_name().unwrap_or_default().to_owned();
            (short, snapshot.phys().guid)
        });
        let origin = dataset.origin().await?;
        found.push(Local {
            name: dataset.name().to_owned(),
            snapshots: snapshots.collect(),
            origin: origin.map(|origin| (origin.phys().guid, origin.phys().creation_txg)),
        });
        let mut children = dataset.children().await?;
        children.reverse();
        left.append(&mut children);
    }
    Ok(found)
}
