//! The experiments by name.

mod ashift;
mod indirect;
mod log;
mod overwrite;
mod pads;
mod resilver;
mod scrub;
mod special;
mod volume;

use std::num::NonZero;

use cenote_rt::Costs;

use crate::place::Place;
use crate::policy::{self, Policy};
use crate::report::{Footer, Report};

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
pub enum LabError {
    /// The name is not that of an experiment.
    #[error("no experiment is named '{0}'; run 'cenote lab list'")]
    UnknownExperiment(String),
    /// The experiment does not compare this policy.
    #[error("experiment '{experiment}' has no policy '{policy}': {known}")]
    UnknownPolicy {
        /// The experiment.
        experiment: &'static str,
        /// The name that was given.
        policy: String,
        /// The policies that it compares.
        known: String,
    },
    /// The experiment has no meaning on files.
    #[error(
        "experiment '{experiment}' is about properties of modelled disks, and cannot run on \
         files: {known} can"
    )]
    OnlyModelled {
        /// The experiment.
        experiment: &'static str,
        /// Experiments that can.
        known: String,
    },
    /// The engine failed.
    #[error(transparent)]
    Engine(#[from] cenote_rt::Error),
}

/// How much an experiment runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scale {
    /// A part of the cases, for tests: some seconds.
    Small,
    /// The tables of the documentation: at most a minute.
    Default,
    /// The published scale, or all cases: minutes or hours.
    Full,
}

impl Scale {
    /// Returns its name in footers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Small => "small",
            Self::Default => "default",
            Self::Full => "full",
        }
    }
}

/// What a run of an experiment may be told.
#[derive(Debug, Clone)]
pub struct Options {
    /// Seed of everything random.
    pub seed: u64,
    /// How much is run.
    pub scale: Scale,
    /// Names of the policies to compare; empty for all of the experiment.
    pub policies: Vec<String>,
    /// Worlds at the same time; on files, one after the other.
    pub jobs: usize,
    /// Where the disks are.
    pub place: Place,
}

impl Options {
    /// Returns the options of a run without arguments, at a scale.
    #[must_use]
    pub fn new(scale: Scale) -> Self {
        let jobs = std::thread::available_parallelism().map_or(1, NonZero::get);
        Self { seed: 1, scale, policies: Vec::new(), jobs, place: Place::Models }
    }
}

/// An experiment.
#[derive(Debug)]
pub struct Experiment {
    /// Its name.
    pub name: &'static str,
    /// What it shows, in a line.
    pub title: &'static str,
    /// The report that it repeats.
    pub published: &'static str,
    /// Names of the policies that it compares.
    pub policies: &'static [&'static str],
    /// Models of its devices.
    pub devices: &'static [&'static str],
    /// Whether it can run on files.
    pub can_be_real: bool,
    measure: fn(&Options, &[&'static Policy]) -> Result<Measured, LabError>,
}

/// The parts of a report that an experiment fills in.
#[derive(Debug, Default)]
struct Measured {
    tables: Vec<crate::report::Table>,
    checks: Vec<crate::report::Check>,
    charts: Vec<crate::report::Chart>,
    findings: Vec<String>,
    hash: String,
}

/// All experiments.
pub static EXPERIMENTS: [Experiment; 9] = [
    indirect::EXPERIMENT,
    scrub::EXPERIMENT,
    pads::EXPERIMENT,
    volume::EXPERIMENT,
    overwrite::EXPERIMENT,
    ashift::EXPERIMENT,
    resilver::EXPERIMENT,
    special::EXPERIMENT,
    log::EXPERIMENT,
];

/// Returns an experiment by its name.
///
/// # Errors
/// [`LabError::UnknownExperiment`].
pub fn find(name: &str) -> Result<&'static Experiment, LabError> {
    let found = EXPERIMENTS.iter().find(|experiment| experiment.name == name);
    found.ok_or_else(|| LabError::UnknownExperiment(name.to_owned()))
}

impl Experiment {
    /// Runs the experiment.
    ///
    /// # Errors
    /// [`LabError::UnknownPolicy`], [`LabError::OnlyModelled`], [`LabError::Engine`].
    pub fn run(&'static self, options: &Options) -> Result<Report, LabError> {
        let policies = self.policies_of(options)?;
        let is_real = options.place.is_real();
        if is_real && !self.can_be_real {
            let known = EXPERIMENTS.iter().filter(|other| other.can_be_real);
            let known: Vec<_> = known.map(|other| other.name).collect();
            return Err(LabError::OnlyModelled { experiment: self.name, known: known.join(", ") });
        }
        let jobs = if is_real { 1 } else { options.jobs };
        let measured = (self.measure)(&Options { jobs, ..options.clone() }, &policies)?;
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let names: Vec<_> = policies.iter().map(|policy| policy.name).collect();
        let (hash, costs, devices) = if is_real {
            // In real time no two runs are the same.
            ("none".to_owned(), "none".to_owned(), owned(&["real"]))
        } else {
            (measured.hash, format!("{:08x}", Costs::frozen().hash()), owned(self.devices))
        };
        Ok(Report {
            experiment: self.name.to_owned(),
            title: self.title.to_owned(),
            published: self.published.to_owned(),
            tables: measured.tables,
            checks: measured.checks,
            charts: measured.charts,
            findings: measured.findings,
            footer: Footer {
                hash,
                seed: options.seed,
                costs,
                scale: options.scale.name().to_owned(),
                devices,
                policies: owned(&names),
            },
        })
    }

    fn policies_of(&'static self, options: &Options) -> Result<Vec<&'static Policy>, LabError> {
        for name in &options.policies {
            if !self.policies.contains(&name.as_str()) {
                return Err(LabError::UnknownPolicy {
                    experiment: self.name,
                    policy: name.clone(),
                    known: self.policies.join(", "),
                });
            }
        }
        let is_wanted = |name: &&&str| {
            options.policies.is_empty() || options.policies.iter().any(|wanted| wanted == **name)
        };
        let names = self.policies.iter().filter(is_wanted);
        Ok(names.filter_map(|name| policy::find(name)).collect())
    }
}
