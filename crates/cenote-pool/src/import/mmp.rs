//! Is the pool in use on another host? The rules of `multihost` (spec 01 §16.3, §17).
//!
//! Two signs. The hostid in the config says who used the pool last, and if it was not exported,
//! only force takes it. A heartbeat in the uberblocks says who uses it now: then the importer must
//! watch for a while, and any change of the best uberblock means that somebody is writing, which
//! no force overrides.

use std::time::Duration;

use cenote_ondisk::uberblock::Mmp;
use cenote_rt::tunables;

/// Shortest time to watch.
const WATCH_MIN: Duration = Duration::from_secs(1);

/// What is known about the host we run on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Host {
    /// Its hostid, 0 if it has none.
    pub hostid: u64,
    /// Its name.
    pub hostname: String,
}

/// What the pool says of the host that used it last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LastUse {
    /// Hostid in the config, 0 if it has none.
    pub hostid: u64,
    /// Whether it was exported or destroyed since.
    pub is_released: bool,
}

impl LastUse {
    /// Whether another host used it last and did not export it.
    #[must_use]
    pub fn is_foreign(self, host: &Host) -> bool {
        !self.is_released && self.hostid != host.hostid
    }
}

/// How long to watch the uberblocks before the pool may be opened for writing; none if there is
/// no heartbeat to watch for.
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
    /// The host we run on: `/etc/hostid`, unless `ZFS_HOSTID` is set, and the kernel's node name,
    /// as OpenZFS reads them.
    #[must_use]
    pub fn current() -> Self {
        let of_file = || {
            let bytes = std::fs::read("/etc/hostid").ok()?;
            Some(u64::from(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?)))
        };
        let set = std::env::var("ZFS_HOSTID").ok();
        let hostid = set.and_then(|text| parse_hostid(&text)).or_else(of_file).unwrap_or(0);
        let hostname = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Self { hostid, hostname: hostname.trim_end().to_owned() }
    }
}

/// A hostid in decimal, or in hex behind `0x`.
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
    fn watching_times() {
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
    fn hostids() {
        assert_eq!(
            (parse_hostid("0xff"), parse_hostid("12"), parse_hostid("x")),
            (Some(255), Some(12), None)
        );
    }

    #[test]
    fn last_use() {
        let host = Host { hostid: 7, hostname: String::new() };
        let use_by = |hostid, is_released| LastUse { hostid, is_released };
        assert!(use_by(8, false).is_foreign(&host));
        assert!(!use_by(8, true).is_foreign(&host));
        assert!(!use_by(7, false).is_foreign(&host));
    }
}
