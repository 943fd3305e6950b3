//! Opens a pool: chooses an uberblock that leads to a readable state.
//!
//! The newest uberblock is tried first. If its state cannot be opened and a rewind was requested,
//! older ones are tried as far as the rewind allows (spec 01 §16.4). The reported error is that of
//! the newest state. After a rewind, the metadata must be readable ([`metadata`]).

use std::sync::Arc;

use cenote_ondisk::checkpoint::{POOL_CHECKPOINT, uberblock_bytes};
use cenote_ondisk::uberblock::Uberblock;
use cenote_rt::{Error, Kind, Result};

use super::choose::{Rewind, best, next_max_txg};
use super::{OpenError, Pool, load, metadata};
use crate::import::{Candidate, Found, Host, LastUse, watch_time};
use crate::mos;

/// Options for opening a pool.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
pub struct OpenOptions {
    /// Open the state of this txg, or the last one before it (`-T`).
    pub txg: Option<u64>,
    /// Open the state of the pool's checkpoint.
    pub checkpoint: bool,
    /// Rewind if the newest state cannot be opened or its metadata cannot be read (`-F`, `-FX`).
    pub rewind: Rewind,
    /// Open without missing log devices and discard the intent logs on them.
    pub missing_log_ok: bool,
    /// Open without missing log devices if no intent log is on them.
    pub unneeded_log_ok: bool,
    /// Open a destroyed pool (`-D`).
    pub destroyed_ok: bool,
    /// This host, for checking that no other host uses the pool, as an import does. `None` skips
    /// the check: reading does no harm, but the pool may change meanwhile.
    pub host: Option<Host>,
    /// Open for writing: the devices are writable.
    pub for_writing: bool,
    /// With `host`: open a pool that another host did not export (`-f`).
    pub force: bool,
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        let kind = match &error {
            OpenError::NoUberblock { .. } | OpenError::NoCheckpoint => Kind::NotFound,
            OpenError::Version { .. }
            | OpenError::UnsupportedFeatures(_)
            | OpenError::ReadOnlyFeatures(_)
            | OpenError::ReflowProgress { .. } => Kind::Unsupported,
            OpenError::MissingVdevs(_) | OpenError::MissingLog(_) => Kind::Io,
            OpenError::GuidSum { .. } | OpenError::CorruptMos(_) => Kind::Corrupt,
            OpenError::ForeignHost { .. } | OpenError::ActiveElsewhere | OpenError::NoHostId => {
                Kind::Busy
            }
            OpenError::Destroyed => Kind::Invalid,
        };
        Self::new(kind, error)
    }
}

impl Pool {
    /// Opens a pool for reading.
    ///
    /// # Errors
    /// An [`OpenError`] as the cause, or the error of a device.
    pub async fn open(candidate: &Candidate, options: &OpenOptions) -> Result<Arc<Self>> {
        if candidate.is_destroyed() && !options.destroyed_ok {
            return Err(OpenError::Destroyed.into());
        }
        let uberblocks = candidate.uberblocks();
        if let Some(host) = &options.host {
            check_host(candidate, &uberblocks, host, options.force).await?;
        }
        if options.checkpoint {
            return open_checkpoint(candidate, &uberblocks, options).await;
        }
        let rewind = if options.txg.is_some() { Rewind::Extreme } else { options.rewind };
        let mut attempt = best(&uberblocks, options.txg.unwrap_or(u64::MAX))?;
        let newest = attempt.txg;
        let mut first_failure = None;
        loop {
            match open_checked(candidate, attempt, newest, options).await {
                Ok(pool) => return Ok(pool),
                Err(error) => first_failure.get_or_insert(error),
            };
            let older = next_max_txg(rewind, newest, attempt.txg)
                .and_then(|max_txg| best(&uberblocks, max_txg).ok());
            // Only a requested rewind goes below the safe window.
            match older.filter(|older| next_max_txg(rewind, newest, older.txg + 1).is_some()) {
                Some(older) => attempt = older,
                None => break,
            }
        }
        Err(first_failure.unwrap_or_else(|| OpenError::NoUberblock { max_txg: newest }.into()))
    }
}

/// Opens the state of one uberblock, and checks its metadata if a rewind may have led to it.
async fn open_checked(
    candidate: &Candidate,
    attempt: Uberblock,
    newest: u64,
    options: &OpenOptions,
) -> Result<Arc<Pool>> {
    let mut pool = load::load(candidate, attempt, options).await?;
    pool.rewound_from = (attempt.txg != newest).then_some(newest);
    let pool = Arc::new(pool);
    metadata::check(&pool, options.rewind, newest).await.map_err(load::corrupt)?;
    Ok(pool)
}

/// Opens the state of the checkpoint.
async fn open_checkpoint(
    candidate: &Candidate,
    uberblocks: &[Uberblock],
    options: &OpenOptions,
) -> Result<Arc<Pool>> {
    let newest = best(uberblocks, options.txg.unwrap_or(u64::MAX))?;
    let pool = load::load(candidate, newest, options).await?;
    let words = pool.directory_value(POOL_CHECKPOINT).ok_or(OpenError::NoCheckpoint)?.words();
    let bytes = uberblock_bytes(&words).map_err(mos::corrupt(mos::DIRECTORY))?;
    let uberblock = Uberblock::decode(&bytes).map_err(mos::corrupt(mos::DIRECTORY))?;
    let mut pool = load::load(candidate, uberblock, options).await?;
    pool.rewound_from = Some(newest.txg);
    Ok(Arc::new(pool))
}

fn random_byte() -> Result<u8> {
    let mut byte = [0];
    cenote_rt::secret_bytes(&mut byte)?;
    Ok(byte[0])
}

/// Refuses a pool that another host uses, or used last: in this order, so that the import of a pool
/// in use is not refused with the advice to force it.
async fn check_host(
    candidate: &Candidate,
    uberblocks: &[Uberblock],
    host: &Host,
    force: bool,
) -> Result<()> {
    let last = candidate.last_use();
    watch(candidate, uberblocks, last, host).await?;
    if last.is_foreign(host) && !force {
        return Err(OpenError::ForeignHost {
            hostid: last.hostid,
            hostname: candidate.facts.hostname.clone().unwrap_or_default(),
        }
        .into());
    }
    Ok(())
}

/// Watches the heartbeat of a pool, if it has one that may be another host's.
async fn watch(
    candidate: &Candidate,
    uberblocks: &[Uberblock],
    last: LastUse,
    host: &Host,
) -> Result<()> {
    let Some(newest) = uberblocks.iter().max_by_key(|uberblock| uberblock.rank()) else {
        return Ok(());
    };
    let mmp = newest.mmp();
    let Some(time) = watch_time(mmp.as_ref(), last, host) else { return Ok(()) };
    // A random part prevents two hosts from ending at the same time.
    let time = time + time.mul_f64(f64::from(random_byte()?) / 1024.0);
    if host.hostid == 0 {
        return Err(OpenError::NoHostId.into());
    }
    let end = cenote_rt::monotonic() + time;
    while cenote_rt::monotonic() < end {
        cenote_rt::sleep(std::time::Duration::from_secs(1).min(time)).await;
        for device in &candidate.devices {
            let again = Found::read(Arc::clone(&device.device)).await;
            let uberblocks = again.map(|found| found.uberblocks).unwrap_or_default();
            if uberblocks.iter().any(|uberblock| uberblock.rank() > newest.rank()) {
                return Err(OpenError::ActiveElsewhere.into());
            }
        }
    }
    Ok(())
}
