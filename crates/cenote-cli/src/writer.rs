//! Commands that change a pool.
//!
//! ```text
//!   scan ──> Engine::open (devices locked) ──> operation, its command line recorded ──> left
//! ```
//!
//! Nobody keeps a pool between two commands: each opens it, changes it, and leaves it. A pool that
//! was exported is exported again; one that was in use stays so, and may be opened by the next
//! command of this host. Another host's pool is refused, as long as that host did not export it:
//! `zpool import -f` takes it over.
//!
//! What stands in the history is the command line as OpenZFS's tool would have had it, without our
//! own options in front.

use std::sync::Arc;

use cenote_fs::format::FsOwners;
use cenote_ondisk::config::PoolState;
use cenote_pool::engine::admin::Command;
use cenote_pool::engine::{Engine, EngineError, Notice};
use cenote_pool::import::{Candidate, Host};
use cenote_pool::{OpenError, OpenOptions};
use cenote_rt::{Error, Kind};

use crate::err;
use crate::io::{CommandResult, Exit, Io};
use crate::source::{self, Source};
use crate::usage::Tool;

/// A pool that is open for a command that changes it.
pub(crate) struct Writer {
    engine: Arc<Engine>,
    was_exported: bool,
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

/// Who owns objects, for a pool that counts everything it can.
pub(crate) fn owners(has_objects: bool, has_projects: bool) -> Arc<FsOwners> {
    Arc::new(FsOwners { counts_objects: has_objects, counts_projects: has_projects })
}

impl Writer {
    /// Opens the pool of a dataset for writing; its guid may stand for its name.
    pub(crate) async fn open(source: &Source, dataset: &str) -> Result<Self, Exit> {
        let name = dataset.split(['/', '@', '#']).next().unwrap_or(dataset);
        let scan = source.scan().await?;
        let candidate = scan.find(name).map_err(|error| source::find_failure(name, &error))?;
        let options = OpenOptions { host: Some(Host::current()), ..OpenOptions::default() };
        let engine = Engine::open(candidate, &options)
            .await
            .map_err(|error| open_failure(candidate, &error))?;
        let was_exported = candidate.facts.state == PoolState::Exported;
        Self::of(engine, was_exported).await
    }

    /// A pool that is open already.
    pub(crate) async fn of(engine: Arc<Engine>, was_exported: bool) -> Result<Self, Exit> {
        let has_objects = engine.has_feature("userobj_accounting").await?;
        let has_projects = engine.has_feature("project_quota").await?;
        engine.set_probe(owners(has_objects, has_projects));
        // What a crash left comes before anything new.
        cenote_fs::recover(&engine).await?;
        // A command that waited would wait for ever.
        engine.stop_at_failures();
        engine.serve(u64::from(rustix::process::getuid().as_raw()));
        Ok(Self { engine, was_exported })
    }

    /// The pool.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Records the command and leaves the pool as it was found.
    pub(crate) async fn finish(self, line: &str, io: &mut Io<'_>) -> CommandResult {
        self.record(line).await?;
        self.leave(io).await
    }

    /// Records the command.
    pub(crate) async fn record(&self, line: &str) -> CommandResult {
        let hostname = Host::current().hostname;
        let who = u64::from(rustix::process::getuid().as_raw());
        let command = Command { line: line.to_owned(), who, hostname };
        Ok(self.engine.record_command(command).await?)
    }

    /// Leaves the pool as it was found.
    pub(crate) async fn leave(self, io: &mut Io<'_>) -> CommandResult {
        if self.was_exported {
            self.engine.export().await?;
        } else {
            self.engine.rest().await?;
        }
        for notice in self.engine.take_notices() {
            err!(io, "warning: {}", told(&notice))?;
        }
        Ok(())
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
        Notice::LogCut { dataset, cause } => {
            format!("the end of the intent log of dataset {dataset} is lost: {cause}")
        }
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
