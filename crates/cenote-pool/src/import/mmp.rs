//! Multihost protection: whether another host has the pool imported (spec 01 §16.3, §17).
//!
//! The hostid in the config is that of the last host; a pool that this host did not export is
//! opened only by force. A heartbeat in the uberblocks shows that a host has the pool imported now:
//! the importer watches for a while, and any change of the best uberblock means that the pool is in
//! use, which force does not override.

use std::time::Duration;

use cenote_ondisk::uberblock::Mmp;
use cenote_rt::{Uts, tunables};

/// Minimum time to watch.
const WATCH_MIN: Duration = Duration::from_secs(1);

/// Identity of this host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Its hostid, 0 if unset.
    pub hostid: u64,
    /// Its name.
    pub hostname: String,
}

/// The last use of a pool, from its config.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastUse {
    /// Hostid in the config, 0 if unset.
    pub hostid: u64,
    /// Whether the pool was exported or destroyed since.
    pub is_released: bool,
}

impl LastUse {
    /// Whether another host used the pool last and did not export it.
    #[must_use]
    pub fn is_foreign(self, host: &Host) -> bool {
        !self.is_released && self.hostid != host.hostid
    }
}

/// Returns how long to watch the uberblocks before the pool may be opened for writing, `None` if
/// there is no heartbeat to watch.
#[must_use]
pub fn watch_time(mmp: Option<&Mmp>, last: LastUse, host: &Host) -> Option<Duration> {
    let mmp = mmp.filter(|mmp| mmp.delay_ns != 0)?;
    if last.is_released && last.hostid == host.hostid && host.hostid != 0 {
        return None;
    }
    let intervals = tunables::MULTIHOST_IMPORT_INTERVALS.get();
    let own_ms = tunables::MULTIHOST_INTERVAL.get();
    let base_ms = intervals.saturating_mul(own_ms);
    let delay_ms = mmp.delay_ns / 1_000_000;
    let wanted_ms = match (mmp.interval_ms, mmp.fail_intervals) {
        (Some(interval), Some(fail @ 1..)) => fail.saturating_mul(interval).saturating_mul(2),
        (Some(interval), _) => {
            base_ms.max(interval.saturating_add(delay_ms).saturating_mul(intervals))
        }
        (None, _) => base_ms.max(own_ms.saturating_add(delay_ms).saturating_mul(intervals)),
    };
    Some(Duration::from_millis(wanted_ms).max(WATCH_MIN))
}

impl Host {
    /// Returns this host, as OpenZFS reads it: `ZFS_HOSTID` or `/etc/hostid`, and the kernel's node
    /// name.
    #[must_use]
    pub fn current() -> Self {
        let of_file = || {
            let bytes = std::fs::read("/etc/hostid").ok()?;
            Some(u64::from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)))
        };
        let set = std::env::var("ZFS_HOSTID").ok();
        let hostid = set.and_then(|text| parse_hostid(&text)).or_else(of_file).unwrap_or(0);
        Self { hostid, hostname: Uts::here().node }
    }
}

/// Parses a hostid: decimal, or hexadecimal after `0x`.
fn parse_hostid(text: &str) -> Option<u64> {
    match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mmp(delay_ns: u64, interval_ms: Option<u64>, fail_intervals: Option<u64>) -> Mmp {
        Mmp { delay_ns, interval_ms, sequence: Some(1), fail_intervals }
    }

    #[test]
    fn multihost_import_watch_time() {
        let host = Host { hostid: 7, hostname: String::new() };
        let other = LastUse { hostid: 8, is_released: false };
        let own = LastUse { hostid: 7, is_released: true };
        for (beat, last, want) in [
            (None, other, None),
            (Some(mmp(0, Some(1000), Some(10))), other, None),
            (Some(mmp(1, Some(1000), Some(10))), own, None),
            (Some(mmp(1, Some(1000), Some(10))), other, Some(20_000)),
            (Some(mmp(1, Some(100), Some(1))), other, Some(1_000)),
            (Some(mmp(2_000_000_000, Some(1000), Some(0))), other, Some(60_000)),
            (Some(mmp(1_000_000_000, None, None)), other, Some(40_000)),
        ] {
            let got = watch_time(beat.as_ref(), last, &host);
            assert_eq!(got, want.map(Duration::from_millis), "{beat:?}");
        }
    }

    #[test]
    fn hostids_are_parsed() {
        assert_eq!(
            (parse_hostid("0xff"), parse_hostid("12"), parse_hostid("x")),
            (Some(255), Some(12), None)
        );
    }

    #[test]
    fn last_use_by_another_host_is_foreign() {
        let host = Host { hostid: 7, hostname: String::new() };
        let use_by = |hostid, is_released| LastUse { hostid, is_released };
        assert!(use_by(8, false).is_foreign(&host));
        assert!(!use_by(8, true).is_foreign(&host));
        assert!(!use_by(7, false).is_foreign(&host));
    }
}
