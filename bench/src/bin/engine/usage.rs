//! The resource usage of the process, as reported by Linux.

use std::time::Duration;

/// Seconds of processor time, of all threads, including the kernel.
pub(crate) fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // After the name, which is in brackets: fields 14 and 15 of all, in hundredths.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks =
        fields.split_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok());
    ticks.sum::<f64>() / 100.0
}

/// MiB of a line of `/proc/self/status`: `VmHWM` is the peak, `VmRSS` the resident memory now.
pub(crate) fn memory_mib(name: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    let kib = line.and_then(|line| line.trim_start_matches(':').split_whitespace().next());
    kib.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) / 1024
}

/// Makes the peak of the memory that of now.
///
/// # Errors
/// Errors of the kernel's file.
pub(crate) fn forget_peak() -> std::io::Result<()> {
    std::fs::write("/proc/self/clear_refs", "5")
}

/// Time since an earlier value of `cenote_rt::monotonic`.
pub(crate) fn since(start: Duration) -> Duration {
    cenote_rt::monotonic().saturating_sub(start)
}

/// Elapsed time and processor time.
pub(crate) struct Clock {
    wall: Duration,
    cpu: f64,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self { wall: cenote_rt::monotonic(), cpu: cpu_seconds() }
    }

    /// Prints the rate of so much work since the start.
    pub(crate) fn tell(&self, label: &str, unit: &str, amount: f64) {
        let (wall, cpu) = (since(self.wall).as_secs_f64(), cpu_seconds() - self.cpu);
        println!("{label}: {:.0} {unit}, {wall:.2} s, cpu {cpu:.2} s", amount / wall);
    }
}

/// Sorted times, for percentiles.
pub(crate) struct Times(Vec<Duration>);

impl Times {
    pub(crate) fn new(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        Self(times)
    }

    /// The time, in milliseconds, that this many of a thousand do not exceed.
    pub(crate) fn per_mille(&self, part: usize) -> f64 {
        let index = (self.0.len().saturating_sub(1)) * part / 1000;
        self.0.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}
