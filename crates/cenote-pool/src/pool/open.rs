//! Opening a pool: from candidates for the uberblock to one that leads to a whole pool.
//!
//! The newest uberblock is tried first. When what it leads to cannot be opened, and a rewind was
//! asked for, older ones are tried as far as the rewind allows (spec 01 §16.4). What is reported
//! in the end is why the newest state failed, not the oldest. A state that a rewind may lead to
//! must have its metadata ([`sound`]).

use std::sync::Arc;

use cenote_ondisk::checkpoint::{POOL_CHECKPOINT, uberblock_bytes};
use cenote_ondisk::uberblock::Uberblock;
use cenote_rt::{Error, Kind, Result};

use super::choose::{Rewind, best, next_max_txg};
use super::{OpenError, Pool, load, sound};
use crate::import::{Candidate, Found, Host, watch_time};
use crate::mos;

/// What is allowed when opening.
#[derive(Debug, Clone, Default)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
pub struct OpenOptions {
    /// Take the state of this txg, or the last one before it (`-T`).
    pub txg: Option<u64>,
    /// Take the state of the pool's checkpoint.
    pub checkpoint: bool,
    /// Go back when the newest state cannot be opened, or metadata of it cannot be read (`-F`,
    /// `-FX`).
    pub rewind: Rewind,
    /// Open without log devices that are missing; what they alone hold is not replayed anyway.
    pub missing_log_ok: bool,
    /// The same, but only if no log is on them: who opens a pool for writing that was imported
    /// without a log device gives up nothing more.
    pub unneeded_log_ok: bool,
    /// Open a destroyed pool (`-D`).
    pub destroyed_ok: bool,
    /// Check that no other host uses the pool, as an import does. Without it nothing is checked:
    /// reading harms nobody, and may see a pool that changes.
    pub host: Option<Host>,
    /// The devices are open for writing, and the pool is to be written.
    pub for_writing: bool,
    /// With `host`: take a pool that another host did not export (`-f`).
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
            match attempted(candidate, attempt, newest, options).await {
                Ok(pool) => return Ok(pool),
                Err(error) => first_failure.get_or_insert(error),
            };
            let older = next_max_txg(rewind, newest, attempt.txg)
                .and_then(|max_txg| best(&uberblocks, max_txg).ok());
            // Below the safe window only as far as was asked for.
            match older.filter(|older| next_max_txg(rewind, newest, older.txg + 1).is_some()) {
                Some(older) => attempt = older,
                None => break,
            }
        }
        Err(first_failure.unwrap_or_else(|| OpenError::NoUberblock { max_txg: newest }.into()))
    }
}

/// Opens the state of one uberblock, which is sound if one may go back to it.
async fn attempted(
    candidate: &Candidate,
    attempt: Uberblock,
    newest: u64,
    options: &OpenOptions,
) -> Result<Arc<Pool>> {
    let mut pool = load::load(candidate, attempt, options).await?;
    pool.rewound_from = (attempt.txg != newest).then_some(newest);
    let pool = Arc::new(pool);
    sound::check(&pool, options.rewind, newest).await.map_err(load::corrupt)?;
    Ok(pool)
}

/// Opens the state that the checkpoint holds.
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

/// Refuses a pool that another host uses.
async fn check_host(
    candidate: &Candidate,
    uberblocks: &[Uberblock],
    host: &Host,
    force: bool,
) -> Result<()> {
    let last = candidate.last_use();
    if last.is_foreign(host) && !force {
        return Err(OpenError::ForeignHost {
            hostid: last.hostid,
            hostname: candidate.facts.hostname.clone().unwrap_or_default(),
        }
        .into());
    }
    let Some(newest) = uberblocks.iter().max_by_key(|uberblock| uberblock.rank()) else {
        return Ok(());
    };
    let mmp = newest.mmp();
    let Some(time) = watch_time(mmp.as_ref(), last, host) else { return Ok(()) };
    // Two hosts that begin at once do not end at once.
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
