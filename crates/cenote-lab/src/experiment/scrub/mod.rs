//! Report 001: a scrub that was slowed down to 3 MB/s by its throttle.
//!
//! ```text
//!   hdd-7200   pool of one disk, 24 000 records of 128K at the default scale
//!   load       none, or reads of 8K over half of the disk, at random times or one each half second
//!   scrub      again and again, for some virtual minutes
//!   settings   zfs_scrub_delay 4, 2, 1, 0; OpenZFS's queue limits; a share of the disk's time
//! ```
//!
//! Before each read, the throttle of 2010 to 2018 waits for `zfs_scrub_delay` ticks of 10 ms if any
//! other I/O happened in the last `zfs_scan_idle` (50) ticks. One read of another user per half
//! second is enough to clamp a scrub to 25 reads a second.
//!
//! A last world changes the tunables while one scrub runs, and samples its rate each second.
//!
//! Sources: spec 09 §3.2, §4.2; spec 06 §11.4, §14.

mod tables;
mod worlds;

use self::worlds::{Figures, Load, Setting};
use super::{Experiment, LabError, Measured, Options, Scale};
use crate::machine::{joined_hash, run_all};
use crate::policy::Policy;

pub(super) const EXPERIMENT: Experiment = Experiment {
    name: "scrub",
    title: "rate of a scrub and latency of other reads, by throttle",
    published: "C. Siebenmann, 2015: under 3 MB/s with zfs_scrub_delay 4, 100 MB/s with 0",
    policies: &["cenote"],
    devices: &["hdd-7200"],
    can_be_real: true,
    measure,
};

/// Loads beside the scrub.
const LOADS: [Load; 5] =
    [Load::None, Load::Regular(2), Load::Random(2), Load::Random(20), Load::Random(60)];

const REAL_LOADS: [Load; 2] = [Load::None, Load::Random(20)];

/// Settings of a short run, and one of each kind.
const FEW: [Setting; 3] = [Setting::Delay(4), Setting::Delay(0), Setting::Share(25)];
const KINDS: [Setting; 5] =
    [Setting::Off, Setting::Delay(4), Setting::Delay(0), Setting::QueueLimits, Setting::Share(25)];

/// Results of one setting, by load.
#[derive(Debug, Clone)]
struct SettingRun {
    setting: Setting,
    figures: Vec<(Load, Figures)>,
}

fn measure(options: &Options, _: &[&'static Policy]) -> std::result::Result<Measured, LabError> {
    // Seconds of files are real ones.
    let (records, seconds, loads, settings): (u64, u64, &[Load], &[Setting]) =
        match (options.scale, options.place.is_real()) {
            (Scale::Small, false) => {
                (2_000, 20, &[Load::None, Load::Regular(2), Load::Random(20)], &FEW)
            }
            (Scale::Small, true) => (2_000, 2, &REAL_LOADS, &FEW),
            (Scale::Default, false) => (24_000, 120, &LOADS, &Setting::ALL),
            (Scale::Default, true) => (24_000, 12, &REAL_LOADS, &KINDS),
            (Scale::Full, false) => (96_000, 600, &LOADS, &Setting::ALL),
            (Scale::Full, true) => (96_000, 60, &LOADS, &Setting::ALL),
        };
    let run = |setting: &Setting| {
        worlds::run(&options.place, options.seed, *setting, loads, records, seconds)
    };
    let runs = run_all(options.jobs, settings, run)?;
    // As many records as are read before the last changes.
    let (change, change_hash) = worlds::changes(&options.place, options.seed, records.max(6_000))?;
    let hashes = runs.iter().map(|(_, hash)| *hash).chain([change_hash]);
    let mut measured = Measured { hash: joined_hash(hashes), ..Measured::default() };
    let runs: Vec<_> = settings
        .iter()
        .zip(runs)
        .map(|(setting, (figures, _))| SettingRun { setting: *setting, figures })
        .collect();
    tables::add(&mut measured, &runs, &change, options.place.is_real());
    Ok(measured)
}
