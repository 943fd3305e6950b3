//! Commands that change a pool.
//!
//! ```text
//!   scan ──> Engine::open (devices locked) ──> operation, its command line recorded ──> left
//! ```
//!
//! [`Writer::run`] is that whole way. A pool is left the same way whether the operation went well
//! or not: part of it may be done, and an exported pool must not stay in use because a command
//! failed. As with OpenZFS, the command line is recorded only if it went well.
//!
//! Nobody keeps a pool between two commands: each opens it, changes it, and leaves it. A pool that
//! was exported is exported again; one that was in use stays so, and may be opened by the next
//! command of this host. Another host's pool is refused, as long as that host did not export it:
//! `zpool import -f` takes it over.
//!
//! What stands in the history is the command line as OpenZFS's tool would have had it, without our
//! own options in front.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cenote_engine::admin::Command;
use cenote_engine::{Engine, EngineError, Notice};
use cenote_fs::format::FsOwners;
use cenote_ondisk::config::PoolState;
use cenote_pool::import::{Candidate, FindError, Host};
use cenote_pool::{OpenError, OpenOptions};
use cenote_rt::{Error, Kind};
use futures_util::future::{Either, select};

use crate::err;
use crate::host::{self, Taken};
use crate::io::{CommandResult, Exit, Io};
use crate::source::{self, Source};
use crate::usage::Tool;

/// A pool that is open for a command that changes it.
pub(crate) struct Writer {
    engine: Arc<Engine>,
    /// What becomes of it if the command fails.
    found: After,
    /// What becomes of it if the command goes well.
    done: After,
    /// Who gives the command.
    uid: u32,
}

/// What becomes of a pool when the command is done with it.
#[derive(Clone)]
pub(crate) enum After {
    /// It is exported, as it was.
    Export,
    /// It is destroyed, as it was.
    Destroy,
    /// It stays in use by this host, without anybody who has it open.
    Rest,
    /// Whoever has it open keeps it, and looks at what has changed; with true, mounts stay.
    Stay(Arc<dyn host::Host>, bool),
    /// Whoever has pools open gets it.
    Keep(Arc<dyn host::Host>, Taken),
}

impl After {
    /// What leaves a pool as it was found.
    pub(crate) fn as_found(candidate: &Candidate) -> Self {
        match candidate.facts.state {
            PoolState::Exported => Self::Export,
            PoolState::Destroyed => Self::Destroy,
            _ => Self::Rest,
        }
    }

    /// What a command leaves that made a pool one of this host's.
    pub(crate) fn taken(source: &Source, how: Taken) -> Self {
        match &source.session {
            Some(session) => Self::Keep(Arc::clone(&session.host), how),
            None => Self::Rest,
        }
    }
}

/// Readies a pool that was opened for writing, and that stays open.
///
/// # Errors
/// Those of reading it, and of what a crash left.
pub async fn prepare(engine: &Arc<Engine>) -> Result<(), Exit> {
    if engine.is_read_only() {
        return Ok(());
    }
    let has_objects = engine.has_feature("userobj_accounting").await?;
    let has_projects = engine.has_feature("project_quota").await?;
    engine.set_probe(owners(has_objects, has_projects));
    // What a crash left comes before anything new.
    cenote_fs::recover(engine).await?;
    Ok(())
}

/// The command line that is recorded.
pub(crate) fn command_line(tool: Tool, verb: &str, args: &[String]) -> String {
    let mut line = format!("{} {verb}", tool.name());
    for arg in args {
        line.push(' ');
        line.push_str(arg);
    }
    line
}

/// What is said of a failure: its cause, if it is one of these, and else all that is known.
pub(crate) fn said<E: std::error::Error + 'static>(error: &Error) -> String {
    error.cause::<E>().map_or_else(|| error.to_string(), E::to_string)
}

/// Who owns objects, for a pool that counts everything it can.
pub(crate) fn owners(has_objects: bool, has_projects: bool) -> Arc<FsOwners> {
    Arc::new(FsOwners { counts_objects: has_objects, counts_projects: has_projects })
}

impl Writer {
    /// Opens the pool of a dataset for writing; its guid may stand for its name.
    pub(crate) async fn open(source: &Source, dataset: &str) -> Result<Self, Exit> {
        let name = dataset.split(['/', '@', '#']).next().unwrap_or(dataset);
        if !source.has_pools() {
            return Err(source::find_failure(name, &FindError::NotFound));
        }
        if let Some(session) = &source.session {
            let engine = session.pool(name)?;
            let uid = source.uid();
            let stay = After::Stay(Arc::clone(&session.host), source.leaves_mounts);
            return Ok(Self { engine, found: stay.clone(), done: stay, uid });
        }
        let scan = source.scan().await?;
        let candidate = scan.find(name).map_err(|error| source::find_failure(name, &error))?;
        let options = OpenOptions {
            host: Some(Host::current()),
            unneeded_log_ok: true,
            ..OpenOptions::default()
        };
        let engine = Engine::open(candidate, &options)
            .await
            .map_err(|error| open_failure(candidate, &error))?;
        let found = After::as_found(candidate);
        Self::of(source, engine, found.clone(), found).await
    }

    /// A pool that this command has opened or made.
    pub(crate) async fn of(
        source: &Source,
        engine: Arc<Engine>,
        found: After,
        done: After,
    ) -> Result<Self, Exit> {
        let writer = Self { engine, found, done, uid: source.uid() };
        let engine = &writer.engine;
        if source.session.is_none() {
            // A command that waited would wait for ever.
            engine.stop_at_failures();
        }
        match prepare(engine).await {
            Ok(()) => Ok(writer),
            Err(exit) => {
                // What went wrong first is what is told.
                let _ = writer.part(&writer.found).await;
                Err(exit)
            }
        }
    }

    /// Opens the pool of a dataset, and carries `work` out in it: see [`Self::carry_out`].
    pub(crate) async fn run(
        source: &Source,
        dataset: &str,
        line: Option<&str>,
        io: &mut Io<'_>,
        work: impl AsyncFnOnce(&Arc<Engine>, &mut Io<'_>) -> CommandResult,
    ) -> CommandResult {
        Self::open(source, dataset).await?.carry_out(line, io, work).await
    }

    /// Does `work`, records the command line if that went well, and leaves the pool in any case.
    pub(crate) async fn carry_out(
        self,
        line: Option<&str>,
        io: &mut Io<'_>,
        work: impl AsyncFnOnce(&Arc<Engine>, &mut Io<'_>) -> CommandResult,
    ) -> CommandResult {
        let mut outcome = work(&self.engine, io).await;
        if let Some(line) = line.filter(|_| outcome.is_ok()) {
            outcome = self.record(line).await;
        }
        let left = self.part(if outcome.is_ok() { &self.done } else { &self.found }).await;
        self.tell(io)?;
        if let (Err(_), Err(Exit::Failed(error))) = (&outcome, &left) {
            err!(io, "warning: the pool is not left as it was found: {error}")?;
        }
        outcome.and(left)
    }

    /// The pool.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Records the command.
    pub(crate) async fn record(&self, line: &str) -> CommandResult {
        if self.engine.is_read_only() {
            return Ok(());
        }
        let hostname = Host::current().hostname;
        let who = u64::from(self.uid);
        let command = Command { line: line.to_owned(), who, hostname };
        Ok(self.engine.record_command(command).await?)
    }

    /// Records the command in a pool that it exports or destroys. Where that fails the pool is left
    /// as it was found; with force it is closed in any case, within seconds.
    pub(crate) async fn close(
        self,
        line: &str,
        is_forced: bool,
        io: &mut Io<'_>,
        how: impl AsyncFnOnce(&Engine) -> cenote_rt::Result<()>,
    ) -> CommandResult {
        let name = self.engine.name();
        let deed = line.split(' ').nth(1).unwrap_or_default();
        let host = match &self.found {
            After::Stay(host, _) => Some(Arc::clone(host)),
            _ => None,
        };
        if self.engine.suspended().is_some() && !is_forced {
            return Err(suspended(deed, &name));
        }
        let orderly = async {
            if let Some(host) = &host {
                host.release(&name, deed, is_forced).await?;
            }
            self.record(line).await?;
            how(&self.engine).await.map_err(|error| close_failure(deed, &name, error))
        };
        let (closed, is_by_force) = if is_forced {
            or_by_force(&self.engine, orderly).await
        } else {
            (orderly.await, false)
        };
        match (closed, host) {
            (Ok(()), host) => {
                if let Some(host) = host {
                    host.forget(&self.engine).await?;
                }
                self.tell(io)?;
                if is_by_force && deed == "destroy" {
                    let why = "the pool could not be written: it was closed, and is not destroyed";
                    return Err(Exit::cannot(deed, &name, why));
                }
                Ok(())
            }
            (Err(exit), Some(host)) => {
                let kept = host.keep(&self.engine).await;
                self.tell(io)?;
                if let Err(Exit::Failed(error)) = kept {
                    err!(io, "warning: the pool is not left as it was found: {error}")?;
                }
                Err(exit)
            }
            (Err(exit), None) => self.carry_out(None, io, async |_, _| Err(exit)).await,
        }
    }

    async fn part(&self, after: &After) -> CommandResult {
        let left = match after {
            After::Export => self.engine.export().await,
            After::Destroy => self.engine.destroy().await,
            After::Rest => self.engine.rest().await.map(drop),
            After::Stay(..) | After::Keep(..) => Ok(()),
        };
        if left.is_err() {
            // Nobody has it from here on: its devices are not to stay locked.
            self.engine.close_by_force().await;
        }
        left?;
        match after {
            After::Export | After::Destroy | After::Rest => {}
            After::Stay(host, is_quiet) => host.follow(&self.engine.name(), *is_quiet).await?,
            After::Keep(host, how) => host.take(Arc::clone(&self.engine), how.clone()).await?,
        }
        Ok(())
    }

    /// Says what happened beside what was asked for.
    fn tell(&self, io: &mut Io<'_>) -> CommandResult {
        for notice in self.engine.take_notices() {
            err!(io, "warning: {}", told(&notice))?;
        }
        Ok(())
    }
}

/// How long what is left of an orderly closing may take once the pool was closed by force.
const REST_PATIENCE: Duration = Duration::from_secs(30);

/// Waits for an orderly closing, or closes the pool by force once devices do not let it come to its
/// end. Returns true if it was by force.
///
/// A suspended pool is closed although clients have its volumes open: they wait for the devices,
/// too, and could not close a volume in order.
async fn or_by_force(
    engine: &Arc<Engine>,
    orderly: impl Future<Output = CommandResult>,
) -> (CommandResult, bool) {
    let mut orderly = pin!(orderly);
    match select(orderly.as_mut(), pin!(engine.until_stuck())).await {
        Either::Left((Err(_), _)) if engine.suspended().is_some() => {
            engine.close_by_force().await;
            (Ok(()), true)
        }
        Either::Left((closed, _)) => (closed, false),
        Either::Right(_) => {
            engine.close_by_force().await;
            // Now everything that it waits for fails; what is mounted goes all the same.
            let _ = cenote_rt::until(REST_PATIENCE, orderly).await;
            (Ok(()), true)
        }
    }
}

fn suspended(deed: &str, name: &str) -> Exit {
    Exit::cannot(deed, name, "pool I/O is currently suspended")
}

/// What is said when a pool is not closed.
fn close_failure(deed: &str, name: &str, error: Error) -> Exit {
    match error.cause::<EngineError>() {
        Some(EngineError::Suspended(_)) => suspended(deed, name),
        _ => error.into(),
    }
}

fn told(notice: &Notice) -> String {
    match notice {
        Notice::ScanCancelled { txg } => {
            format!("the scan that was under way is cancelled in txg {txg}: datasets change")
        }
        Notice::DeadTreeDamaged { cause } => {
            format!("a destroyed dataset cannot be freed, its space stays taken: {cause}")
        }
        Notice::AbandonedDestroyed { names } => {
            format!("half received datasets were destroyed: {}", names.join(", "))
        }
        Notice::HoldsReleased { count } => format!("{count} temporary holds were released"),
        Notice::LogsDropped { datasets } => {
            let numbers: Vec<_> = datasets.iter().map(u64::to_string).collect();
            format!(
                "intent logs were given up, and with them the last synchronous writes, of the \
                 datasets number {}",
                numbers.join(", ")
            )
        }
        Notice::LogsUnread { datasets } => {
            let numbers: Vec<_> = datasets.iter().map(u64::to_string).collect();
            format!(
                "the datasets number {} are damaged so that their intent logs cannot be read: \
                 their last synchronous writes are lost",
                numbers.join(", ")
            )
        }
        Notice::LogCut { dataset, cause } => {
            format!("the end of the intent log of dataset {dataset} is lost: {cause}")
        }
        Notice::NotWritten(lost) => format!(
            "the pool was closed by force: changes of transaction groups {} to {}, about {} bytes \
             of files and volumes, were not written; what was synced with fsync is replayed when \
             the pool is imported",
            lost.first_txg, lost.last_txg, lost.bytes
        ),
        Notice::SilentDevices { paths } => format!(
            "devices did not answer: {}; they stay locked until they do, and what they were asked \
             before may still be written then: do not use them elsewhere before that",
            paths.join(", ")
        ),
        #[expect(unreachable_patterns, reason = "notices come with operations")]
        other => format!("{other:?}"),
    }
}

/// What is said when a pool that is there cannot be opened for writing.
pub(crate) fn open_failure(candidate: &Candidate, error: &Error) -> Exit {
    let name = candidate.name();
    if let Some(OpenError::ForeignHost { hostid, hostname }) = error.cause() {
        return Exit::failed(format!(
            "cannot open '{name}': pool was previously in use from another system \
             ({hostname}, hostid={hostid:x})\nuse 'zpool import -f' to take it over"
        ));
    }
    match error.cause::<EngineError>() {
        Some(EngineError::OldVersion(_) | EngineError::Unmaintained(_)) => {
            Exit::failed(format!("cannot change '{name}': pool is read-only ({error})"))
        }
        _ if error.kind() == Kind::Busy => {
            Exit::failed(format!("cannot open '{name}': pool is in use by another program"))
        }
        _ => source::open_failure(candidate, error),
    }
}
