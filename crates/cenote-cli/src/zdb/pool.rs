//! Opens the pool that the operands name, and prints its parts in zdb's order.

use std::path::PathBuf;
use std::sync::Arc;

use cenote_ondisk::checkpoint::{POOL_CHECKPOINT, uberblock_bytes};
use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::uberblock::Uberblock;
use cenote_pool::import::{Scan, scan};
use cenote_pool::pool::Rewind;
use cenote_pool::{Dataset, OpenOptions, Pool, ScanOptions};

use super::dataset::Target;
use super::{
    Options, blocks, config, dataset, deadlists, dirty_time_logs, features, history, metaslabs,
    path, raw_block, uberblock,
};
use crate::io::{CommandResult, Exit, Io, words};
use crate::zpool::cache::{self, Cached};
use crate::{err, out};

/// Directory that is searched for devices without `-p`.
const DEFAULT_DIRECTORY: &str = "/dev";

/// State of a listing.
pub(super) struct Show<'a, 'io> {
    pub(super) pool: Arc<Pool>,
    pub(super) options: &'a Options,
    pub(super) io: &'a mut Io<'io>,
    /// Whether something could not be read.
    pub(super) has_failed: bool,
}

impl Show<'_, '_> {
    /// Reports something unreadable and lets the listing continue; only a closed output ends it.
    pub(super) fn tolerate(&mut self, result: CommandResult) -> CommandResult {
        match result {
            Err(Exit::Failed(message)) => {
                self.has_failed = true;
                err!(self.io, "zdb: {message}")
            }
            other => other,
        }
    }
}

/// Shows the pool, dataset or objects that the operands name.
pub(super) async fn run(options: &Options, io: &mut Io<'_>) -> CommandResult {
    check_operands(options)?;
    let name = options.operands.first().map_or("", String::as_str);
    let pool_name = options.pool_name().unwrap_or(name);
    let (scan, cached) = find(options, pool_name).await?;
    let Ok(candidate) = scan.find(pool_name) else {
        err!(io, "zdb: can't open '{name}': No such file or directory")?;
        return Err(Exit::Status(1));
    };
    if options.count('C') > 1 {
        match &cached {
            Some(config) => config::cached(config, io)?,
            None => config::for_import(candidate, options, io)?,
        }
    }
    let pool = match Pool::open(candidate, &open_options(options)).await {
        Ok(pool) => pool,
        Err(error) => {
            err!(io, "zdb: can't open '{name}': {error}")?;
            return Err(Exit::Status(1));
        }
    };
    let mut show = Show { pool, options, io, has_failed: false };
    show.run(name).await?;
    if show.has_failed { Err(Exit::Status(1)) } else { Ok(()) }
}

fn check_operands(options: &Options) -> CommandResult {
    let count = options.operands.len();
    let wanted = match () {
        () if options.has('r') => 3,
        () if options.has('O') => 2,
        () if options.has('R') => 2,
        () => return Ok(()),
    };
    let is_right = if options.has('R') { count >= wanted } else { count == wanted };
    if is_right { Ok(()) } else { Err(Exit::usage(String::new())) }
}

/// Finds the pool: in the directories of `-p`, or at the paths in a cache file; then also returns
/// the config in that file.
async fn find(options: &Options, pool: &str) -> CommandResult<(Scan, Option<NvList>)> {
    if options.has('e') {
        let mut paths = options.paths.clone();
        if paths.is_empty() {
            paths.push(PathBuf::from(DEFAULT_DIRECTORY));
        }
        return Ok((scan(&ScanOptions { paths }).await?, None));
    }
    for file in options.cache_files() {
        let unread =
            |error| Exit::failed(format!("cannot open '{}': {}", file.display(), words(&error)));
        let Some(config) = cache::config_of(&file, pool).map_err(unread)? else { continue };
        let Cached { guids, paths } = Cached::of(&config);
        let mut scan = scan(&ScanOptions { paths }).await?;
        // The devices of the cache file may belong to other pools by now.
        scan.candidates.retain(|found| guids.contains(&found.guid()));
        return Ok((scan, Some(config)));
    }
    Ok((Scan::default(), None))
}

fn open_options(options: &Options) -> OpenOptions {
    let rewind = match (options.has('X'), options.has('F')) {
        (true, _) => Rewind::Extreme,
        (_, true) => Rewind::Safe,
        _ => Rewind::default(),
    };
    OpenOptions {
        txg: options.txg,
        checkpoint: options.has('k'),
        rewind,
        missing_log_ok: true,
        destroyed_ok: true,
        ..OpenOptions::default()
    }
}

impl Show<'_, '_> {
    async fn run(&mut self, name: &str) -> CommandResult {
        let options = self.options;
        if options.has('R') {
            return raw_block::run(self).await;
        }
        if name.contains('#') {
            let result = match self.pool.bookmark(name).await {
                Ok(found) => deadlists::bookmark(self, &found, true, options.verbose > 1).await,
                Err(error) => {
                    let text = super::error_text(&error);
                    err!(self.io, "failed to hold bookmark '{name}': {text}")?;
                    Err(Exit::Status(1))
                }
            };
            return result;
        }
        let is_pool = !name.contains(['/', '@']) && !options.names_dataset;
        if options.has('O') || options.has('r') {
            let dataset = self.dataset(name).await?;
            return path::run(self, &dataset).await;
        }
        let objects = dataset::parse_ranges(options.operands.get(1..).unwrap_or_default())?;
        if !is_pool {
            let dataset = self.dataset(name).await?;
            return self.objset(&Target::Dataset(&dataset), &objects).await;
        }
        if !objects.is_empty() && !options.has('m') {
            return self.objset(&Target::Mos, &objects).await;
        }
        self.whole().await
    }

    /// Opens a dataset by name, or by number after the pool's name, and loads its key.
    async fn dataset(&mut self, name: &str) -> CommandResult<Dataset> {
        let number = name.split_once('/').and_then(|(_, rest)| rest.parse().ok());
        let found = match self.pool.dataset(name).await {
            Err(error) => match number {
                Some(number) => self.pool.dataset_by_object(number).await,
                None => Err(error),
            },
            found => found,
        };
        let dataset = match found {
            Ok(dataset) => dataset,
            Err(error) => {
                let text = super::error_text(&error);
                err!(self.io, "failed to hold dataset '{name}': {text}")?;
                err!(self.io, "zdb: can't open '{name}': {text}")?;
                return Err(Exit::Status(1));
            }
        };
        if let Some(key) = &self.options.key
            && dataset.is_encrypted().await?
        {
            let head = dataset.head().await?;
            let root = head.encryption_root().await?;
            let root = root.unwrap_or_else(|| head.name().to_owned());
            let root = self.pool.dataset(&root).await?;
            if let Err(error) = self.pool.load_key(&root, key.as_bytes()).await {
                err!(self.io, "couldn't load encryption key for {name}: {error}")?;
                return Err(Exit::Status(1));
            }
            out!(self.io, "Unlocked encryption root: {}", root.name())?;
        }
        Ok(dataset)
    }

    /// Shows everything that the options request of the whole pool.
    async fn whole(&mut self) -> CommandResult {
        let options = self.options;
        if options.has('C') {
            let result = config::run(&self.pool, self.io).await;
            self.tolerate(result)?;
        }
        if options.has('u') {
            out!(self.io, "\nUberblock:")?;
            uberblock::print(self.io, self.pool.uberblock())?;
            out!(self.io)?;
        }
        if options.count('d') > 2 || options.has('m') {
            let result = metaslabs::run(&self.pool, options, self.io).await;
            self.tolerate(result)?;
        }
        if options.has('M') {
            let result = metaslabs::run_groups(&self.pool, options, self.io).await;
            self.tolerate(result)?;
        }
        if options.has('d') || options.has('i') {
            self.datasets().await?;
        }
        if options.has('b') || options.has('c') {
            let result = blocks::run(&self.pool, options, self.io).await;
            self.tolerate(result)?;
        }
        if options.has('h') {
            let result = history::run(&self.pool, options, self.io).await;
            self.tolerate(result)?;
        }
        self.checkpoint()
    }

    /// Shows the MOS, all datasets, and the sums over them.
    async fn datasets(&mut self) -> CommandResult {
        let result = self.objset(&Target::Mos, &[]).await;
        self.tolerate(result)?;
        if self.options.count('d') >= 3 {
            let result = self.pool_lists().await;
            self.tolerate(result)?;
            dirty_time_logs::run(self)?;
        }
        let root = self.pool.root_dataset().await?;
        let mut all = Vec::new();
        dataset::in_order(&self.pool, &root, &mut all).await?;
        for dataset in &all {
            let result = self.objset(&Target::Dataset(dataset), &[]).await;
            self.tolerate(result)?;
        }
        if self.options.count('d') >= 3 {
            let result = self.origin_deadlists().await;
            self.tolerate(result)?;
        }
        let result = features::run(self, &all).await;
        self.tolerate(result)
    }

    /// Prints the uberblock of the checkpoint, if there is one.
    fn checkpoint(&mut self) -> CommandResult {
        if let Some(uberblock) = self.checkpoint_uberblock() {
            out!(self.io, "\nCheckpointed uberblock found:")?;
            uberblock::print(self.io, &uberblock)?;
            out!(self.io)?;
        }
        Ok(())
    }
}

impl Show<'_, '_> {
    fn checkpoint_uberblock(&self) -> Option<Uberblock> {
        let words = self.pool.directory_value(POOL_CHECKPOINT)?.words();
        Uberblock::decode(&uberblock_bytes(&words).ok()?).ok()
    }
}
