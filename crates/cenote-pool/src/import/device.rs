//! A device that carries a label.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::Device;
use cenote_ondisk::config::{LabelConfig, VdevConfig};
use cenote_ondisk::uberblock::Uberblock;
use cenote_vdev::VdevState;
use cenote_vdev::labels::{self, Label};

/// A device with at least one usable label.
#[derive(Debug)]
pub struct Found {
    /// Where it was found.
    pub path: String,
    /// The device, open for reading.
    pub device: Arc<dyn Device>,
    /// The config of the highest txg among its labels.
    pub config: LabelConfig,
    /// All configs whose labels are good, each txg once.
    pub configs: Vec<LabelConfig>,
    /// Labels that are good.
    pub good_labels: usize,
    /// Every valid uberblock in any of its labels.
    pub uberblocks: Vec<Uberblock>,
    /// Other guids that its labels have for the pool: it was given another one, and a crash came
    /// before all labels told so.
    pub(super) other_guids: Vec<u64>,
}

impl Found {
    /// Reads the labels of a device; none if it carries none that can be used.
    pub async fn read(device: Arc<dyn Device>) -> Option<Self> {
        let labels = labels::read(&*device).await.labels;
        let owner = owner(&labels)?;
        let is_own =
            |label: &&Label| label.valid_config().is_none_or(|config| owner_of(config) == owner);
        let good = labels.iter().filter(is_own).filter_map(Label::valid_config);
        let mut configs: Vec<LabelConfig> = good.cloned().collect();
        let good_labels = configs.len();
        configs.retain(is_in_use);
        configs.sort_by_key(|config| std::cmp::Reverse(config.txg));
        configs.dedup_by_key(|config| (config.txg, config.guid));
        let config = configs.first().cloned()?;
        let uberblocks = labels.iter().filter(is_own).flat_map(|label| &label.uberblocks);
        let uberblocks = uberblocks.map(|found| found.uberblock).collect();
        let other_guids = other_guids(&labels, &config);
        let path = device.info().path.clone();
        Some(Self { path, device, config, configs, good_labels, uberblocks, other_guids })
    }

    /// Guid of the leaf that it is.
    pub fn guid(&self) -> u64 {
        self.config.guid
    }

    /// The pool that it belongs to; none for idle spares and caches.
    pub fn pool_guid(&self) -> Option<u64> {
        self.config.member.as_ref().map(|member| member.facts.pool_guid)
    }

    /// Order of trust among devices that claim to be the same leaf.
    pub(super) fn rank(&self) -> (u64, usize) {
        (self.config.txg, self.good_labels)
    }
}

/// Guids by which other labels call the pool that `config` tells of: the same leaf of a pool of the
/// same name.
fn other_guids(labels: &[Label], config: &LabelConfig) -> Vec<u64> {
    let Some(own) = &config.member else { return Vec::new() };
    let is_same = |label: &&LabelConfig| is_in_use(label) && label.guid == config.guid;
    let configs = labels.iter().filter_map(Label::valid_config).filter(is_same);
    let facts = configs.filter_map(|label| label.member.as_ref().map(|member| &member.facts));
    let others = facts
        .filter(|facts| facts.name == own.facts.name && facts.pool_guid != own.facts.pool_guid);
    others.map(|facts| facts.pool_guid).collect()
}

/// A label of txg 0 is that of a device that left, or never became a member.
fn is_in_use(config: &LabelConfig) -> bool {
    config.member.is_none() || config.txg != 0
}

/// Pool and leaf that a label names; spares and cache devices have no pool.
fn owner_of(config: &LabelConfig) -> (Option<u64>, u64) {
    (config.member.as_ref().map(|member| member.facts.pool_guid), config.guid)
}

/// Whose device it is: his who has most of its labels, then the highest txg. So one label of
/// another pool, left from earlier or written by mistake, does not take the device away.
fn owner(labels: &[Label]) -> Option<(Option<u64>, u64)> {
    let mut votes: BTreeMap<_, (usize, u64)> = BTreeMap::new();
    let in_use = labels.iter().filter_map(Label::valid_config).filter(|config| is_in_use(config));
    for config in in_use {
        let vote = votes.entry(owner_of(config)).or_default();
        *vote = (vote.0 + 1, vote.1.max(config.txg));
    }
    votes.into_iter().max_by_key(|(_, vote)| *vote).map(|(owner, _)| owner)
}

/// A hot spare or a cache device of a pool.
#[derive(Debug, Clone)]
pub struct AuxDevice {
    /// Its config in the MOS, with the path at which it was found.
    pub config: VdevConfig,
    /// Where the MOS says it is.
    pub recorded_path: Option<String>,
    /// Bytes of its device, if it was found.
    pub device_size: Option<u64>,
    /// Healthy if a device with its guid was found.
    pub state: VdevState,
    /// Whether a device with its guid is at the recorded path too.
    pub is_at_recorded_path: bool,
}
