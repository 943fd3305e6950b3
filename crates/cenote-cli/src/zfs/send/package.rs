//! Plans a package: the snapshots between two (`-I`), a file system with everything below it
//! (`-R`), or both.

use cenote_pool::Dataset;
use cenote_rt::Error;
use cenote_stream::Package;

use super::command::Command;
use super::header::{Gatherer, Header};
use super::increment::{self, Increment};
use super::order::{self, Chooser};
use super::plan::{Part, Place, Plan};
use super::{cannot_send, estimate, failure};
use crate::err;
use crate::io::{Exit, Io};
use crate::source::{Source, dataset_of};
use crate::zfs::refuse::existing;

/// Plans the package.
pub(super) async fn plan(
    command: &Command,
    source: &Source,
    io: &mut Io<'_>,
) -> Result<Plan, Exit> {
    let (head, to) = command.target.split_once('@').unwrap_or((&command.target, ""));
    let head = existing(source, head).await?;
    let from = SourceOfPackage::find(command, &head).await?;
    if let Some(from) = from.short() {
        dataset_of(head.pool(), &format!("{}@{from}", head.name())).await?;
    }
    let target = dataset_of(head.pool(), &format!("{}@{to}", head.name())).await?;
    let place = Place::of(source, &target)?;
    let gatherer = Gatherer { command, source, from: from.short(), to, is_single: false };
    let package = gatherer.gather(head, io).await?;
    let (parts, held) = choose(command, &from, to, &package, io)?;
    if command.has_estimate() {
        report(command, &target, &parts, io).await?;
    }
    let lists = Some(&package).filter(|_| command.has_header());
    let header = Some(Header::new(target.name(), lists, command.has_holds())?);
    Ok(Plan { place, options: command.options, header, parts, held })
}

/// The source of the increment of a package.
enum SourceOfPackage {
    Nothing,
    /// Short name of a snapshot, in each dataset that has it.
    Snapshot(String),
    /// The origin of the clone that is sent.
    Origin,
}

impl SourceOfPackage {
    async fn find(command: &Command, head: &Dataset) -> Result<Self, Exit> {
        let Some(name) = &command.from else { return Ok(Self::Nothing) };
        let Some((dataset, short)) = name.split_once('@') else {
            return Self::short_of(name, head);
        };
        let origin = head.origin().await.map_err(|error| failure(head.name(), &error))?;
        if origin.is_some_and(|origin| origin.name() == name) {
            return Ok(Self::Origin);
        }
        if !dataset.is_empty() && dataset != head.name() {
            return Err(Exit::usage("incremental source must be in same filesystem"));
        }
        Self::short_of(short, head)
    }

    fn short_of(short: &str, head: &Dataset) -> Result<Self, Exit> {
        if short.contains(['@', '/']) {
            return Err(Exit::usage("invalid incremental source"));
        }
        if short.is_empty() {
            return Err(Exit::cannot("send", head.name(), "zero-length incremental source"));
        }
        Ok(Self::Snapshot(short.to_owned()))
    }

    fn short(&self) -> Option<&str> {
        match self {
            Self::Snapshot(short) => Some(short),
            Self::Nothing | Self::Origin => None,
        }
    }
}

/// Chooses the substreams in order, and the snapshots to hold.
fn choose(
    command: &Command,
    from: &SourceOfPackage,
    to: &str,
    package: &Package,
    io: &mut Io<'_>,
) -> Result<(Vec<Part>, Vec<String>), Exit> {
    let looped = |_| cannot_send(&command.target, "the origins of its clones are a loop");
    let order = order::order_of(&package.datasets).map_err(looped)?;
    let is_from_origin = matches!(from, SourceOfPackage::Origin);
    let chooser = Chooser::new(command, (from.short(), to), is_from_origin, package);
    let (mut parts, mut held, mut is_whole) = (Vec::new(), Vec::new(), true);
    for dataset in order.into_iter().filter_map(|index| package.datasets.get(index)) {
        let chosen = chooser.choose(dataset);
        if let Some(warning) = chosen.warning {
            err!(io, "{warning}")?;
            is_whole = false;
        }
        if !chosen.parts.is_empty() {
            held.extend(chosen.from);
        }
        held.extend(chosen.parts.iter().map(|part| part.name.clone()));
        parts.extend(chosen.parts);
    }
    if is_whole { Ok((parts, held)) } else { Err(Exit::Status(1)) }
}

/// Writes the estimates of all substreams. A clone's first one counts whole, as with OpenZFS.
async fn report(
    command: &Command,
    target: &Dataset,
    parts: &[Part],
    io: &mut Io<'_>,
) -> Result<(), Exit> {
    let pool = target.pool();
    let mut lines = estimate::Lines::new(command.is_parsable());
    let mut previous: Option<(Dataset, u64)> = None;
    for part in parts {
        let failed = |error: Error| failure(&part.name, &error);
        let target = dataset_of(pool, &part.name).await?;
        let block_size = match &previous {
            Some((before, size)) if before.dir().object == target.dir().object => *size,
            _ => estimate::block_size(&target).await.map_err(failed)?,
        };
        let from = match (&part.from, &previous) {
            (increment::Source::Named { name, .. }, Some((before, _))) if before.name() == name => {
                Increment::Snapshot(before.clone())
            }
            (increment::Source::Named { .. }, _) => part.from.open(&target).await?,
            _ => Increment::Full,
        };
        let size = estimate::size(&target, (&from, None), &command.options, block_size).await;
        let short = part.from.name().and_then(|name| name.rsplit('@').next());
        lines.add(&part.name, short.map(estimate::FromText::Short), size.map_err(failed)?);
        previous = Some((target, block_size));
    }
    super::reports(command, io).write_all(lines.finish().as_bytes())?;
    Ok(())
}
