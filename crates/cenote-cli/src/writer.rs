//! Commands that change a pool.
//!
//! ```text
//!   scan ──> Engine::open (devices locked) ──> operation, its command line recorded ──> release
//! ```
//!
//! [`Writer::run`] does all of this. The pool is released in the same way whether the operation
//! succeeded or failed: part of it may be done, and an exported pool must not stay in use because a
//! command failed. As with OpenZFS, the command line is recorded only on success.
//!
//! With `--embedded` no process keeps the pool between two commands: each command opens, changes
//! and releases it. A pool that was exported is exported again. A pool that was in use stays marked
//! as in use, and the next command of this host may open it. A pool of another host is refused as
//! long as that host has not exported it; `zpool import -f` takes it over.
//!
//! The history records the command line as OpenZFS's tool would have received it, without cenote's
//! own options in front.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cenote_engine::admin::{Command, Ioctl};
use cenote_engine::{CheckpointError, Engine, EngineError, Notice};
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
    /// How the pool is released if the command fails.
    found: After,
    /// How the pool is released if the command succeeds.
    done: After,
    /// Uid of the caller.
    uid: u32,
    /// Recorded with the command line.
    ioctl: Option<Ioctl>,
}

/// How a pool is released at the end of a command.
#[derive(Clone)]
pub(crate) enum After {
    /// Export it again.
    Export,
    /// Destroy it again.
    Destroy,
    /// Detach, and leave the pool marked as in use by this host; no process has it open.
    KeepActive,
    /// The host keeps it open, and updates its mounts; if true, mounts stay.
    Remain(Arc<dyn host::Host>, bool),
    /// The host takes it over.
    HandOver(Arc<dyn host::Host>, Taken),
}

impl After {
    /// Returns the way that leaves a pool as it was found.
    pub(crate) fn as_found(candidate: &Candidate) -> Self {
        match candidate.facts.state {
            PoolState::Exported => Self::Export,
            PoolState::Destroyed => Self::Destroy,
            _ => Self::KeepActive,
        }
    }

    /// Returns the way for a command that made the pool one of this host's.
    pub(crate) fn taken(source: &Source, how: Taken) -> Self {
        match &source.session {
            Some(session) => Self::HandOver(Arc::clone(&session.host), how),
            None => Self::KeepActive,
        }
    }
}

/// Returns the command line to record.
pub(crate) fn command_line(tool: Tool, verb: &str, args: &[String]) -> String {
    let mut line = format!("{} {verb}", tool.name());
    for arg in args {
        line.push(' ');
        line.push_str(arg);
    }
    line
}

/// Returns the text of a failure: its cause if that is an `E`, else the whole error chain.
pub(crate) fn cause_text<E: std::error::Error + 'static>(error: &Error) -> String {
    error.cause::<E>().map_or_else(|| error.to_string(), E::to_string)
}

/// Like [`cause_text`], for what a checkpoint may refuse, too.
pub(crate) fn cause_or_checkpoint<E: std::error::Error + 'static>(error: &Error) -> String {
    let checkpoint = error.cause::<CheckpointError>();
    checkpoint.map_or_else(|| cause_text::<E>(error), ToString::to_string)
}

/// Returns the probe for owners of objects, which counts everything that the pool's features allow.
pub(crate) fn owners(has_objects: bool, has_projects: bool) -> Arc<FsOwners> {
    Arc::new(FsOwners { counts_objects: has_objects, counts_projects: has_projects })
}

impl Writer {
    /// Opens the pool of a dataset for writing; the pool's guid may replace its name.
    pub(crate) async fn open(source: &Source, dataset: &str) -> Result<Self, Exit> {
        let name = dataset.split(['/', '@', '#']).next().unwrap_or(dataset);
        if !source.has_pools() {
            return Err(source::find_failure(name, &FindError::NotFound));
        }
        if let Some(session) = &source.session {
            let engine = session.pool(name)?;
            let uid = source.uid();
            let stay = After::Remain(Arc::clone(&session.host), source.leaves_mounts);
            return Ok(Self { engine, found: stay.clone(), done: stay, uid, ioctl: None });
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

    /// Returns a writer for a pool that this command has opened or created.
    pub(crate) async fn of(
        source: &Source,
        engine: Arc<Engine>,
        found: After,
        done: After,
    ) -> Result<Self, Exit> {
        let writer = Self { engine, found, done, uid: source.uid(), ioctl: None };
        let engine = &writer.engine;
        if source.session.is_none() {
            // With `--embedded`, a command that waited for a suspended pool would wait for ever.
            engine.health().stop_at_failures();
        }
        match cenote_fs::prepare(engine).await {
            Ok(()) => Ok(writer),
            Err(error) => {
                // The first error is the one to report.
                let _ = writer.part(&writer.found).await;
                Err(error.into())
            }
        }
    }

    /// Opens the pool of a dataset, and runs `work` on it: see [`Self::carry_out`].
    pub(crate) async fn run(
        source: &Source,
        dataset: &str,
        line: Option<&str>,
        io: &mut Io<'_>,
        work: impl AsyncFnOnce(&Arc<Engine>, &mut Io<'_>) -> CommandResult,
    ) -> CommandResult {
        Self::open(source, dataset).await?.carry_out(line, io, work).await
    }

    /// Like [`Self::run`], for a command that OpenZFS's history has with its ioctl.
    pub(crate) async fn run_ioctl(
        source: &Source,
        dataset: &str,
        (line, ioctl): (&str, Ioctl),
        io: &mut Io<'_>,
        work: impl AsyncFnOnce(&Arc<Engine>, &mut Io<'_>) -> CommandResult,
    ) -> CommandResult {
        let writer = Self { ioctl: Some(ioctl), ..Self::open(source, dataset).await? };
        writer.carry_out(Some(line), io, work).await
    }

    /// Like [`run`](Self::run), for a command whose argument must be the name of a pool.
    pub(crate) async fn run_on_pool(
        source: &Source,
        name: &str,
        line: Option<&str>,
        io: &mut Io<'_>,
        work: impl AsyncFnOnce(&Arc<Engine>, &mut Io<'_>) -> CommandResult,
    ) -> CommandResult {
        if let Some(found) = name.chars().find(|c| "/@#".contains(*c)) {
            let text = format!("cannot open '{name}': invalid character '{found}' in pool name");
            return Err(Exit::failed(text));
        }
        Self::run(source, name, line, io, work).await
    }

    /// Runs `work`, records the command line if it succeeded, and releases the pool in any case.
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
            err!(
                io,
                "warning: the state of the pool before the command cannot be restored: {error}"
            )?;
        }
        outcome.and(left)
    }

    /// Returns the open pool.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Records the command line in the pool's history.
    pub(crate) async fn record(&self, line: &str) -> CommandResult {
        if self.engine.is_read_only() {
            return Ok(());
        }
        let hostname = Host::current().hostname;
        let who = u64::from(self.uid);
        let ioctl = self.ioctl.clone();
        let command = Command { line: line.to_owned(), ioctl, who, hostname };
        Ok(self.engine.admin().record_command(command).await?)
    }

    /// Records the command in a pool that it exports or destroys. If that fails, the pool is
    /// released as it was found; with `is_forced` it is closed in any case, within seconds. An
    /// export also closes a stopped pool, which cannot be written any more.
    pub(crate) async fn close(
        self,
        line: &str,
        is_forced: bool,
        io: &mut Io<'_>,
        how: impl AsyncFnOnce(&Engine) -> cenote_rt::Result<()>,
    ) -> CommandResult {
        let name = self.engine.name();
        let action = line.split(' ').nth(1).unwrap_or_default();
        let host = match &self.found {
            After::Remain(host, _) => Some(Arc::clone(host)),
            _ => None,
        };
        if self.engine.health().suspended().is_some() && !is_forced {
            return Err(suspended(action, &name));
        }
        let is_released = Cell::new(false);
        let orderly = async {
            if let Some(host) = &host {
                host.release(&name, action, is_forced).await?;
            }
            is_released.set(true);
            self.record(line).await?;
            how(&self.engine).await.map_err(|error| close_failure(action, &name, error))
        };
        let (closed, is_by_force) = if is_forced {
            or_by_force(&self.engine, orderly).await
        } else {
            match orderly.await {
                Err(_) if is_released.get() && action == "export" && is_stopped(&self.engine) => {
                    self.engine.close_by_force().await;
                    (Ok(()), true)
                }
                closed => (closed, false),
            }
        };
        match (closed, host) {
            (Ok(()), host) => {
                if let Some(host) = host {
                    host.forget(&self.engine).await?;
                }
                self.tell(io)?;
                if is_by_force && action == "destroy" {
                    let why = "the pool could not be written: it was closed, and is not destroyed";
                    return Err(Exit::cannot(action, &name, why));
                }
                Ok(())
            }
            (Err(exit), Some(host)) => {
                let kept = host.keep(&self.engine).await;
                self.tell(io)?;
                if let Err(Exit::Failed(error)) = kept {
                    err!(
                        io,
                        "warning: the state of the pool before the command cannot be restored: {error}"
                    )?;
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
            After::KeepActive => self.engine.detach_and_keep_active().await.map(drop),
            After::Remain(..) | After::HandOver(..) => Ok(()),
        };
        if left.is_err() {
            // From here on no one uses it: its devices must not stay locked.
            self.engine.close_by_force().await;
        }
        left?;
        match after {
            After::Export | After::Destroy | After::KeepActive => {}
            After::Remain(host, is_quiet) => host.follow(&self.engine.name(), *is_quiet).await?,
            After::HandOver(host, how) => host.take(Arc::clone(&self.engine), how.clone()).await?,
        }
        Ok(())
    }

    /// Prints warnings about side effects of the operation.
    fn tell(&self, io: &mut Io<'_>) -> CommandResult {
        for notice in self.engine.health().take_notices() {
            err!(io, "warning: {}", notice_text(&notice))?;
        }
        Ok(())
    }
}

/// Limit for the remaining steps of an orderly close after the pool was closed by force.
const CLOSE_AFTER_FORCE_MAX: Duration = Duration::from_secs(30);

/// Waits for an orderly close, or closes the pool by force when devices block it. Returns true if
/// it was closed by force.
///
/// A suspended pool is closed although clients have its volumes open: they wait for the devices as
/// well, and could not close a volume in order.
async fn or_by_force(
    engine: &Arc<Engine>,
    orderly: impl Future<Output = CommandResult>,
) -> (CommandResult, bool) {
    let mut orderly = pin!(orderly);
    match select(orderly.as_mut(), pin!(engine.health().until_stuck())).await {
        Either::Left((Err(_), _))
            if engine.health().suspended().is_some() || is_stopped(engine) =>
        {
            engine.close_by_force().await;
            (Ok(()), true)
        }
        Either::Left((closed, _)) => (closed, false),
        Either::Right(_) => {
            engine.close_by_force().await;
            // From here on, everything that the close waits for fails; mounts disappear all the
            // same.
            let _ = cenote_rt::until(CLOSE_AFTER_FORCE_MAX, orderly).await;
            (Ok(()), true)
        }
    }
}

/// Whether an error has stopped the pool: nothing of it can be written, and it can only be closed.
fn is_stopped(engine: &Engine) -> bool {
    engine.health().stopped().is_some()
}

fn suspended(action: &str, name: &str) -> Exit {
    Exit::cannot(action, name, "pool I/O is currently suspended")
}

/// Returns the message for a pool that could not be closed.
fn close_failure(action: &str, name: &str, error: Error) -> Exit {
    match error.cause::<EngineError>() {
        Some(EngineError::Suspended(_)) => suspended(action, name),
        _ => error.into(),
    }
}

fn notice_text(notice: &Notice) -> String {
    match notice {
        Notice::RemovalStalled { cause } => {
            format!("the removal of a device does not go on: {cause}")
        }
        Notice::ScanStalled { cause } => {
            format!("the scan cannot go on, and is tried again every 10 seconds: {cause}")
        }
        Notice::ScanDropped { cause } => format!(
            "the state of a scan that had not ended is damaged, and the scan was dropped: a \
             resilver begins again by itself, a scrub by 'zpool scrub': {cause}"
        ),
        Notice::DeadTreeDamaged { cause } => {
            format!("a destroyed dataset cannot be freed, and its space stays allocated: {cause}")
        }
        Notice::BlocksLeaked { cause } => {
            format!("freed blocks cannot be found because of damage, and stay allocated: {cause}")
        }
        Notice::AbandonedDestroyed { names } => {
            format!("partially received datasets were destroyed: {}", names.join(", "))
        }
        Notice::HoldsReleased { count } => format!("{count} temporary holds were released"),
        Notice::LogsDropped { datasets } => {
            let numbers: Vec<_> = datasets.iter().map(u64::to_string).collect();
            format!(
                "the intent logs of the datasets with the numbers {} were dropped, and with them \
                 the last synchronous writes",
                numbers.join(", ")
            )
        }
        Notice::LogsUnread { datasets } => {
            let numbers: Vec<_> = datasets.iter().map(u64::to_string).collect();
            format!(
                "the intent logs of the datasets with the numbers {} cannot be read because of \
                 damage: their last synchronous writes are lost",
                numbers.join(", ")
            )
        }
        Notice::LogCut { dataset, cause } => {
            format!("the end of the intent log of dataset {dataset} is lost: {cause}")
        }
        Notice::NotWritten(lost) => format!(
            "the pool was closed by force: changes of transaction groups {} to {}, about {} bytes \
             of files and volumes, were not written; changes that were synced with fsync are \
             replayed when the pool is imported",
            lost.first_txg, lost.last_txg, lost.bytes
        ),
        Notice::SilentDevices { paths } => format!(
            "devices did not answer: {}; they stay locked until they do, and writes in flight may \
             still reach them: do not use them elsewhere before that",
            paths.join(", ")
        ),
        #[expect(unreachable_patterns, reason = "notices come with operations")]
        other => format!("{other:?}"),
    }
}

/// Returns the message for an existing pool that cannot be opened for writing.
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
