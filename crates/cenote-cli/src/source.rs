//! The pools that a command works on: directories, devices, and keys given on the command line.
//!
//! `cenote zpool|zfs [--embedded -d DIR]... [-k DATASET=KEYFILE]... VERB …` opens pools in this
//! process; cenote's own verbs have `-d`, `-p` and `-k` among their options. A source only collects
//! these options; nothing is opened until a command asks for a pool ([`Source::pool`],
//! [`Source::dataset`]). Pools are opened for reading and without a hostid check: other users of
//! the pool are not disturbed.
//!
//! Messages about pools that cannot be opened are OpenZFS's and are defined only in this file;
//! commands just pass the [`Exit`] on.

use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cenote_codec::crypto;
use cenote_pool::dsl::deleg::Requester;
use cenote_pool::dsl::{BadName, DslError};
use cenote_pool::import::{self, Candidate, FindError, Scan};
use cenote_pool::{Dataset, DatasetName, KeyError, OpenError, OpenOptions, Pool, ScanOptions, mos};
use cenote_rt::{Error, Kind};
use futures_util::future::{Either, select};

use crate::host::{CallerStreams, OpenPools, Session};
use crate::io::{CommandResult, Exit, Io};
use crate::key_place::{read_key_at, read_key_file};
use crate::{argument, environment, key_input, leaf_scripts};

/// Attempts of a read-only command whose view of the pool is dropped.
pub(crate) const READ_ATTEMPTS: usize = 5;
/// Memory of a cell in addition to its text: the string, its place in a row, and its share of the
/// allocation.
const CELL: u64 = 48;
/// Memory of a property in JSON output in addition to its value.
const JSON_CELL: u64 = 512;
/// Interval of checks whether the caller still waits.
const GONE_INTERVAL: Duration = Duration::from_millis(100);
/// Directory that is searched for devices when none is named.
const DEFAULT_DIRECTORY: &str = "/dev";

/// Runs the asynchronous part of a command on all processors.
pub fn run<T>(command: impl Future<Output = Result<T, Exit>>) -> Result<T, Exit> {
    cenote_rt::block_on(0, command)?
}

/// How long a command that reads a whole pool may hold its view.
pub(crate) const WHOLE_POOL_TIME: std::time::Duration = std::time::Duration::from_hours(24);

/// Command-line options that say where pools are.
#[derive(Debug, Clone, Default)]
pub struct Source {
    /// Directories and devices to look in, in order (`-d`, `-p`).
    pub paths: Vec<String>,
    /// Key files by dataset (`-k DATASET=KEYFILE`).
    pub keys: Vec<(String, String)>,
    /// Whether pools are opened in this process.
    pub embedded: bool,
    /// The txg to open pools at, if given (`-T`).
    pub txg: Option<u64>,
    /// The session, if another process has the pools open.
    pub session: Option<Session>,
    /// Mounts stay where they are, whatever changes (`-u`).
    pub leaves_mounts: bool,
}

impl Source {
    /// Returns the datasets that the daemon has mounted, and their mount points.
    pub(crate) fn mounts(&self) -> Vec<(String, PathBuf)> {
        self.session.as_ref().map(|session| session.host.mounts()).unwrap_or_default()
    }

    /// Adds an option value `DATASET=KEYFILE`.
    pub fn add_key(&mut self, text: &str) -> Result<(), Exit> {
        let (dataset, file) = text
            .split_once('=')
            .ok_or_else(|| Exit::usage(format!("'{text}' is not of the form DATASET=KEYFILE")))?;
        self.keys.push((dataset.to_owned(), file.to_owned()));
        Ok(())
    }

    /// Removes the leading `--embedded`, `-d`, `-k` and `-T` from the arguments of `zpool` or
    /// `zfs`.
    pub fn take_leading(self, args: &[String]) -> Result<(Self, &[String]), Exit> {
        let mut source = self;
        let mut rest = args;
        loop {
            rest = match rest {
                [flag, tail @ ..] if flag == "--embedded" && source.session.is_none() => {
                    source.embedded = true;
                    tail
                }
                [flag, value, tail @ ..] if source.embedded && flag == "-d" => {
                    source.paths.push(value.clone());
                    tail
                }
                [flag, value, tail @ ..] if source.embedded && flag == "-k" => {
                    source.add_key(value)?;
                    tail
                }
                [flag, value, tail @ ..] if source.embedded && flag == "-T" => {
                    let txg = value.parse();
                    source.txg =
                        Some(txg.map_err(|_| Exit::usage(format!("invalid txg '{value}'")))?);
                    tail
                }
                [flag] if source.embedded && matches!(flag.as_str(), "-d" | "-k" | "-T") => {
                    return Err(Exit::usage(format!(
                        "missing argument for '{}' option",
                        &flag[1..]
                    )));
                }
                _ => return Ok((source, rest)),
            };
        }
    }

    /// Returns this source with `leaves_mounts` set if `is_wanted`.
    pub(crate) fn with_mounts_left(&self, is_wanted: bool) -> Self {
        Self { leaves_mounts: self.leaves_mounts || is_wanted, ..self.clone() }
    }

    /// Whether any place to look for pools is given.
    pub(crate) fn has_pools(&self) -> bool {
        self.embedded || self.session.is_some()
    }

    /// Returns the path of an argument, relative to the caller's working directory.
    pub(crate) fn path(&self, text: &str) -> PathBuf {
        self.where_given(argument::path(text))
    }

    fn where_given(&self, path: PathBuf) -> PathBuf {
        match &self.session {
            Some(session) => session.caller.folder().join(path),
            None => path,
        }
    }

    /// Whether the caller may do everything.
    pub(crate) fn is_trusted(&self) -> bool {
        self.session.as_ref().is_none_or(|session| session.caller.is_trusted())
    }

    /// Returns the caller's standard streams, if another process gave the command.
    pub(crate) fn streams(&self) -> Option<&Arc<dyn CallerStreams>> {
        self.session.as_ref()?.caller.streams()
    }

    /// Asks the caller for a key. Returns it, and whether it was typed at a terminal.
    pub(crate) fn ask_key(
        &self,
        prompt: &str,
        is_raw: bool,
        io: &mut Io<'_>,
    ) -> std::io::Result<(Vec<u8>, bool)> {
        match self.streams() {
            Some(streams) => streams.ask_key(prompt, is_raw),
            None => key_input::read_key(prompt, is_raw, io.out),
        }
    }

    /// Has the caller's process read the key at a location other than `prompt`.
    ///
    /// # Errors
    /// OpenZFS's words for it.
    pub(crate) fn key_at(&self, location: &str) -> Result<Vec<u8>, String> {
        match self.streams() {
            Some(streams) => streams.ask_key_at(location).map_err(|error| error.to_string()),
            None if self.is_trusted() => read_key_at(location),
            None => Err("permission denied".to_owned()),
        }
    }

    /// Has the caller's process run scripts for leaves, see [`leaf_scripts`]. No view of a pool may
    /// be held. Returns the lines of each leaf.
    ///
    /// # Errors
    /// Why they were not run.
    pub(crate) fn run_scripts(
        &self,
        request: &leaf_scripts::Request,
    ) -> Result<Vec<Vec<String>>, String> {
        match self.streams() {
            Some(streams) => streams.run_scripts(request).map_err(|error| error.to_string()),
            None if self.is_trusted() => Ok(request.run()),
            None => Err("permission denied".to_owned()),
        }
    }

    /// Charges a row of a table to the caller, for as long as the command collects rows: see
    /// [`CallerStreams::charge`].
    ///
    /// # Errors
    /// The caller may not have so many bytes in memory.
    pub(crate) fn charge_row<'a>(&self, cells: impl Iterator<Item = &'a String>) -> CommandResult {
        self.charge(cells.map(|cell| CELL + cell.len() as u64).sum())
    }

    /// Charges a property in JSON output, like [`charge_row`](Self::charge_row).
    pub(crate) fn charge_json(&self, value: &str) -> CommandResult {
        self.charge(JSON_CELL + value.len() as u64)
    }

    /// Charges memory to the caller, like [`charge_row`](Self::charge_row).
    pub(crate) fn charge(&self, bytes: u64) -> CommandResult {
        match self.streams().map_or(Ok(()), |streams| streams.charge(bytes)) {
            Ok(()) => Ok(()),
            Err(error) => Err(Exit::failed(format!("cannot collect output: {error}"))),
        }
    }

    /// Returns the result of `work`, or `None` as soon as the caller has stopped waiting.
    pub(crate) async fn while_waited_for<T>(&self, work: impl Future<Output = T>) -> Option<T> {
        let gone = pin!(async { while self.sleep(GONE_INTERVAL).await {} });
        match select(pin!(work), gone).await {
            Either::Left((done, _)) => Some(done),
            Either::Right(_) => None,
        }
    }

    /// Delivers the output so far to the caller. No view of a pool may be held: see [`Self::step`].
    pub(crate) fn deliver(&self, io: &mut Io<'_>) -> CommandResult {
        io.out.flush()?;
        match self.streams() {
            Some(streams) => Ok(streams.deliver()?),
            None => Ok(()),
        }
    }

    /// Runs one step of a repeating command, then delivers its output to the caller. The step must
    /// drop every view of a pool before it returns: delivering may take as long as the caller does
    /// not read (docs/design/rules.md, rule 1). If the view that the step read was dropped, or a
    /// pool was closed meanwhile, its output is discarded and the step runs again; it must
    /// therefore be read-only.
    pub(crate) async fn step<T>(
        &self,
        io: &mut Io<'_>,
        step: impl AsyncFnMut(&mut Io<'_>) -> Result<T, Exit>,
    ) -> Result<T, Exit> {
        let value = self.prepare(io, step).await?;
        self.deliver(io)?;
        Ok(value)
    }

    /// Runs one step as [`step`](Self::step) does, but does not deliver its output: before that the
    /// caller drops what it holds for the step.
    pub(crate) async fn prepare<T>(
        &self,
        io: &mut Io<'_>,
        mut step: impl AsyncFnMut(&mut Io<'_>) -> Result<T, Exit>,
    ) -> Result<T, Exit> {
        let mut left = READ_ATTEMPTS;
        loop {
            left -= 1;
            let open = self.session.as_ref().map(OpenPools::of);
            let done = step(io).await;
            let is_stale = matches!(done, Err(Exit::Overtaken))
                || open.is_some_and(|open| open.is_one_closed());
            match self.streams() {
                Some(streams) if is_stale && left > 0 => streams.discard(),
                _ => return done,
            }
        }
    }

    /// Returns the uid of the caller.
    pub(crate) fn uid(&self) -> u32 {
        match &self.session {
            Some(session) => session.caller.uid(),
            None => rustix::process::getuid().as_raw(),
        }
    }

    /// Returns the caller as the user of requests.
    pub(crate) fn requester(&self) -> Requester {
        match &self.session {
            Some(session) => session.caller.requester().clone(),
            None => Requester { uid: self.uid(), ..Requester::ROOT },
        }
    }

    /// Sleeps for this time. Returns false as soon as the caller has stopped waiting.
    pub(crate) async fn sleep(&self, time: Duration) -> bool {
        let Some(streams) = self.streams() else {
            cenote_rt::sleep(time).await;
            return true;
        };
        let mut left = time;
        while !streams.is_gone() {
            let next = left.min(GONE_INTERVAL);
            cenote_rt::sleep(next).await;
            left -= next;
            if left.is_zero() {
                return !streams.is_gone();
            }
        }
        false
    }

    /// Runs `work` with these file systems unmounted. If one of them cannot be unmounted, nothing
    /// is done. File systems that still exist afterwards are mounted again.
    pub(crate) async fn without_mounts(
        &self,
        names: &[String],
        is_forced: bool,
        work: impl Future<Output = CommandResult>,
    ) -> CommandResult {
        let (Some(session), Some(first)) = (&self.session, names.first()) else {
            return work.await;
        };
        let unmounted = session.host.unmount_temporarily(names, is_forced).await?;
        let done = work.await;
        if unmounted.is_empty() {
            return done;
        }
        let pool = first.split(['/', '@']).next().unwrap_or_default();
        done.and(session.host.mount_again(pool, unmounted).await)
    }

    /// Replaces the contents of a file system (`work`) by those of a snapshot, or of a dataset that
    /// was received, with its requests suspended: users of the mount see either the old or the new
    /// contents. The action is for messages.
    pub(crate) async fn suspended(
        &self,
        dataset: &str,
        (contents, action): (&str, &str),
        work: impl Future<Output = CommandResult>,
    ) -> CommandResult {
        let Some(session) = &self.session else { return work.await };
        let pool = dataset.split('/').next().unwrap_or_default();
        if session.pool(pool)?.health().suspended().is_some() {
            // The work would wait for the pool, and every user of the file system for the work.
            return Err(Exit::cannot(action, dataset, "pool I/O is currently suspended"));
        }
        let suspended = session.host.suspend(dataset, contents, action).await?;
        let done = work.await;
        done.and(session.host.resume(pool, suspended).await)
    }

    /// Returns the file systems whose mounts a change moves. Returns none, without evaluating
    /// `names`, if mounts are to stay where they are.
    pub(crate) async fn moved(
        &self,
        names: impl Future<Output = Result<Vec<String>, Exit>>,
    ) -> Result<Vec<String>, Exit> {
        if self.leaves_mounts { Ok(Vec::new()) } else { names.await }
    }

    /// Closes unused snapshots in the pool of a dataset: some may be about to be destroyed.
    pub(crate) fn close_unused_snapshots(&self, dataset: &str) {
        let name = dataset.split(['/', '@']).next().unwrap_or(dataset);
        if let Some(session) = &self.session
            && let Ok(engine) = session.pool(name)
        {
            session.host.close_unused_snapshots(&engine.name());
        }
    }

    /// Scans all directories and devices for pools; opens none.
    pub async fn scan(&self) -> Result<Scan, Exit> {
        let mut paths: Vec<PathBuf> = self.paths.iter().map(|path| self.path(path)).collect();
        if paths.is_empty() {
            let variable = environment::variable(environment::IMPORT_PATH);
            let named = variable.iter().flat_map(std::env::split_paths);
            paths.extend(named.map(|path| self.where_given(path)));
        }
        if paths.is_empty() {
            paths.push(PathBuf::from(DEFAULT_DIRECTORY));
        }
        let scan = import::scan(&ScanOptions { paths }).await?;
        match scan.failures.first() {
            Some((path, error)) if error.kind() == Kind::NotFound => {
                Err(Exit::failed(format!("cannot resolve path '{}'", path.display())))
            }
            Some((path, error)) => {
                Err(Exit::failed(format!("cannot open '{}': {error}", path.display())))
            }
            None => Ok(scan),
        }
    }

    /// Opens a pool by name or guid for reading, with the given keys.
    pub async fn pool(&self, name: &str) -> Result<Arc<Pool>, Exit> {
        self.pool_with(name, &OpenOptions::default()).await
    }

    /// Like [`pool`](Self::pool), for a command that reads the whole pool: its view of a pool that
    /// is being written is dropped only when the pool needs the space, or after a day.
    pub async fn whole_pool(&self, name: &str) -> Result<Arc<Pool>, Exit> {
        match &self.session {
            Some(session) => Ok(session.pool(name)?.view_for(WHOLE_POOL_TIME).await?),
            None => self.pool(name).await,
        }
    }

    /// Like [`pool`](Self::pool), with other open options.
    pub async fn pool_with(&self, name: &str, options: &OpenOptions) -> Result<Arc<Pool>, Exit> {
        if let Some(session) = &self.session {
            return Ok(session.pool(name)?.view().await?);
        }
        let scan = self.scan().await?;
        let candidate = scan.find(name).map_err(|error| find_failure(name, &error))?;
        self.open(candidate, options).await
    }

    /// Opens a pool that a scan found, and loads the keys that were given for it.
    pub async fn open(
        &self,
        candidate: &Candidate,
        options: &OpenOptions,
    ) -> Result<Arc<Pool>, Exit> {
        let mut options = options.clone();
        options.txg = options.txg.or(self.txg);
        // Reading shows synced data only, never the contents of intent logs.
        options.missing_log_ok = true;
        let opened = Pool::open(candidate, &options).await;
        let pool = opened.map_err(|error| open_failure(candidate, &error))?;
        for (dataset, file) in &self.keys {
            if dataset.split('/').next() == Some(pool.name()) {
                load_key(&pool, dataset, file).await?;
            }
        }
        Ok(pool)
    }

    /// Opens a file system, volume or snapshot by name; the pool's guid may replace its name.
    pub async fn dataset(&self, name: &str) -> Result<Dataset, Exit> {
        let parsed = DatasetName::parse(name).map_err(|error| bad_name(name, error))?;
        if let Some(session) = &self.session {
            let engine = session.pool(parsed.pool).map_err(|exit| {
                if session.absent_pool(parsed.pool).is_some() { exit } else { no_dataset(name) }
            })?;
            let below = &name[parsed.pool.len()..];
            return dataset_of(&engine.view().await?, &format!("{}{below}", engine.name())).await;
        }
        let scan = self.scan().await?;
        let candidate = match scan.find(parsed.pool) {
            Ok(candidate) => candidate,
            Err(FindError::NotFound) => return Err(no_dataset(name)),
            Err(error) => return Err(find_failure(parsed.pool, &error)),
        };
        let pool = self.open(candidate, &OpenOptions::default()).await?;
        let below = &name[parsed.pool.len()..];
        dataset_of(&pool, &format!("{}{below}", pool.name())).await
    }
}

/// Opens a dataset of an open pool, or returns OpenZFS's message about why it cannot be opened.
pub async fn dataset_of(pool: &Arc<Pool>, name: &str) -> Result<Dataset, Exit> {
    pool.dataset(name).await.map_err(|error| match error.cause::<BadName>() {
        Some(cause) => bad_name(name, *cause),
        None if error.cause::<DslError>().is_some() && error.kind() == Kind::NotFound => {
            no_dataset(name)
        }
        None => Exit::of(&error, format!("cannot open '{name}': {error}")),
    })
}

/// Returns a dataset; `None` if there is none of this name.
pub(crate) async fn dataset_if_any(pool: &Arc<Pool>, name: &str) -> Result<Option<Dataset>, Exit> {
    match pool.dataset(name).await {
        Err(error) if error.cause::<BadName>().is_some() => Ok(None),
        found => found_if_any(name, found),
    }
}

/// Like [`dataset_if_any`], but a name that no dataset may have is an error.
pub(crate) async fn find(pool: &Arc<Pool>, name: &str) -> Result<Option<Dataset>, Exit> {
    found_if_any(name, pool.dataset(name).await)
}

/// Only "not found" means that there is none: else it may exist, and not be readable.
fn found_if_any(name: &str, found: cenote_rt::Result<Dataset>) -> Result<Option<Dataset>, Exit> {
    mos::optional(found).map_err(|error| Exit::of(&error, format!("cannot open '{name}': {error}")))
}

/// Returns the nearest existing dataset above a name.
pub(crate) async fn nearest_above(pool: &Arc<Pool>, name: &str) -> Result<Option<Dataset>, Exit> {
    let mut at = name;
    while let Some((parent, _)) = at.rsplit_once('/') {
        if let Some(found) = dataset_if_any(pool, parent).await? {
            return Ok(Some(found));
        }
        at = parent;
    }
    Ok(None)
}

/// Returns the message for a dataset whose contents cannot be read.
pub fn contents_failure(name: &str, error: &Error) -> Exit {
    match error.kind() {
        Kind::KeyUnavailable => {
            Exit::failed(format!("cannot open '{name}': encryption key not loaded"))
        }
        _ => Exit::of(error, format!("cannot open '{name}': {error}")),
    }
}

fn no_dataset(name: &str) -> Exit {
    Exit::failed(format!("cannot open '{name}': dataset does not exist"))
}

fn bad_name(name: &str, error: BadName) -> Exit {
    Exit::failed(format!("cannot open '{name}': {error}"))
}

/// Returns the message for a pool that is not found.
pub(crate) fn find_failure(name: &str, error: &FindError) -> Exit {
    Exit::failed(match error {
        FindError::NotFound => format!("cannot open '{name}': no such pool"),
        FindError::Ambiguous(guids) => {
            let guids: Vec<String> = guids.iter().map(u64::to_string).collect();
            let guids = guids.join(", ");
            format!("cannot open '{name}': more than one matching pool; use a guid: {guids}")
        }
    })
}

/// Returns the message for an existing pool that cannot be opened.
pub fn open_failure(candidate: &Candidate, error: &Error) -> Exit {
    let name = candidate.name();
    Exit::failed(match error.cause::<OpenError>() {
        Some(OpenError::Destroyed) => {
            format!("cannot open '{name}': no such pool (it was destroyed)")
        }
        Some(OpenError::MissingVdevs(_)) => {
            format!("cannot open '{name}': one or more devices is currently unavailable ({error})")
        }
        Some(OpenError::Version { .. } | OpenError::UnsupportedFeatures(_)) => {
            format!("cannot open '{name}': unsupported version or feature ({error})")
        }
        _ => format!("cannot open '{name}': {error}"),
    })
}

/// Loads the key of one encryption root from a file.
async fn load_key(pool: &Arc<Pool>, name: &str, file: &str) -> Result<(), Exit> {
    let dataset = dataset_of(pool, name).await?;
    let failed = |text: String| Exit::failed(format!("Key load error: {text}"));
    let material = read_key_file(file)
        .map_err(|error| failed(format!("Failed to open key material file: {file}: {error}")))?;
    match pool.load_key(&dataset, &material).await {
        Ok(_) => Ok(()),
        Err(error) => Err(key_failure(&dataset, &error).await),
    }
}

/// Returns the message for a key that could not be loaded.
pub(crate) async fn key_failure(dataset: &Dataset, error: &Error) -> Exit {
    let name = dataset.name();
    let text = match error.cause::<KeyError>() {
        Some(KeyError::NotEncrypted) => format!("'{name}' is not encrypted."),
        Some(KeyError::NotRoot) => {
            let root = dataset.encryption_root().await.ok().flatten().unwrap_or_default();
            format!("Keys must be loaded for encryption root of '{name}' ({root}).")
        }
        Some(KeyError::AlreadyLoaded) => format!("Key already loaded for '{name}'."),
        Some(KeyError::Crypto(crypto::KeyError::WrongKey)) => {
            format!("Incorrect key provided for '{name}'.")
        }
        _ => error.to_string(),
    };
    Exit::of(error, format!("Key load error: {text}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_before_the_verb_are_taken_off() {
        let args: Vec<String> = [
            "--embedded",
            "-d",
            "/a",
            "-k",
            "p/x=/key",
            "--embedded",
            "-d",
            "/b",
            "list",
            "-d",
            "1",
        ]
        .map(str::to_owned)
        .to_vec();
        let (source, rest) = Source::default().take_leading(&args).expect("valid");
        assert_eq!(source.paths, ["/a", "/b"]);
        assert_eq!(source.keys, [("p/x".to_owned(), "/key".to_owned())]);
        assert_eq!(rest, ["list", "-d", "1"]);
    }
}
