//! Scrubs and resilvers that another program left running (spec 04 §21).
//!
//! The state of a scan names datasets, and would have to follow every change of their structure.
//! The engine does not continue scans, so a scan is cancelled before the first such change, and the
//! history records that. Missing data of devices stays in their DTLs: a needed resilver starts
//! again.

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::scan::{ERROR_SCRUB, ErrorScrubPhys, SCAN, ScanFlags, ScanPhys, ScanState};
use cenote_ondisk::zap::Value;
use cenote_pool::mos::DIRECTORY;
use cenote_rt::Error;

use crate::dsl::{Env, OpError, history};

/// Cancels a running scan. Returns true if there was one.
pub(crate) fn cancel(tx: &mut Tx<'_>, env: &Env) -> TxResult<bool> {
    let scrubbed = cancel_scan(tx, env)?;
    Ok(cancel_error_scrub(tx, env)? || scrubbed)
}

fn cancel_scan(tx: &mut Tx<'_>, env: &Env) -> TxResult<bool> {
    let Some(value) = zap::lookup(tx, DIRECTORY, SCAN)? else { return Ok(false) };
    let words = value.words();
    let mut scan = ScanPhys::decode(&words).map_err(|error| {
        // 25 words: damage by old releases, which only they can repair.
        Error::corrupt(error).in_object(0, DIRECTORY)
    })?;
    if scan.state != ScanState::Scanning {
        return Ok(false);
    }
    if scan.queue_obj != 0 {
        if tx.find(scan.queue_obj)?.is_none() {
            return Err(OpError::Busy.into());
        }
        zap::destroy(tx, scan.queue_obj)?;
    }
    scan.queue_obj = 0;
    scan.state = ScanState::Canceled;
    scan.end_time = env.now;
    scan.flags.remove(ScanFlags::PAUSED);
    zap::update(tx, DIRECTORY, SCAN, Value::words_of(&scan.encode()))?;
    let text = format!("errors={}, cancelled: datasets change", scan.errors);
    history::log_pool(tx, env, "scan cancelled", &text)?;
    Ok(true)
}

fn cancel_error_scrub(tx: &mut Tx<'_>, env: &Env) -> TxResult<bool> {
    let Some(value) = zap::lookup(tx, DIRECTORY, ERROR_SCRUB)? else { return Ok(false) };
    let Ok(mut scrub) = ErrorScrubPhys::decode(&value.words()) else { return Ok(false) };
    if scrub.state != ScanState::ErrorScrubbing {
        return Ok(false);
    }
    scrub.state = ScanState::Canceled;
    scrub.end_time = env.now;
    scrub.paused_flags = 0;
    zap::update(tx, DIRECTORY, ERROR_SCRUB, Value::words_of(&scrub.encode()))?;
    history::log_pool(tx, env, "scan cancelled", "error scrub, cancelled: datasets change")?;
    Ok(true)
}
