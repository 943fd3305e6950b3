//! A device with a ZFS label.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::Device;
use cenote_ondisk::config::{LabelConfig, VdevConfig};
use cenote_ondisk::label::LABEL_COUNT;
use cenote_ondisk::uberblock::Uberblock;
use cenote_vdev::VdevState;
use cenote_vdev::labels::{self, Label};

/// A device with at least one usable label.
#[derive(Debug)]
pub struct Found {
    /// Its path.
    pub path: String,
    /// The device, open for reading.
    pub device: Arc<dyn Device>,
    /// Of its label configs the one with the highest txg.
    pub config: LabelConfig,
    /// The configs of its valid labels, one for each txg.
    pub configs: Vec<LabelConfig>,
    /// Number of valid labels.
    pub good_labels: usize,
    /// Every valid uberblock of its labels.
    pub uberblocks: Vec<Uberblock>,
    /// Other pool guids in its labels: a crash interrupted `zpool reguid` before it updated all
    /// labels.
    pub(super) other_guids: Vec<u64>,
    /// Other leaf guids in labels of its pool: a crash interrupted the sync in which the leaf took
    /// the place and the guid of its mirror, before all labels were updated.
    pub(super) other_leaves: Vec<u64>,
    /// The device as that of the pool from which its pool was being split, if its labels still
    /// have that pool.
    pub(super) before_split: Option<Arc<Self>>,
}

impl Found {
    /// Whether its labels name several leaves: a crash came while it took the guid of its mirror.
    pub fn is_of_several_leaves(&self) -> bool {
        !self.other_leaves.is_empty()
    }

    /// Reads the labels of a device; `None` if it has no usable label.
    pub async fn read(device: Arc<dyn Device>) -> Option<Self> {
        let labels = labels::read(&*device).await.labels;
        let owner = owner(&labels)?;
        let mut found = Self::of_owner(&device, &labels, owner)?;
        let split = found.config.member.as_ref().and_then(|member| member.facts.split_guid);
        if let Some(before) = split {
            let before = Self::of_owner(&device, &labels, (Some(before), owner.1));
            found.before_split = before.map(Arc::new);
        }
        Some(found)
    }

    /// Returns the device as that of one of the owners that its labels have.
    fn of_owner(
        device: &Arc<dyn Device>,
        labels: &[Label],
        owner: (Option<u64>, u64),
    ) -> Option<Self> {
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
        let other_guids = other_guids(labels, &config);
        let in_use =
            labels.iter().filter_map(Label::valid_config).filter(|config| is_in_use(config));
        let same_pool = in_use.filter(|config| owner_of(config).0 == owner.0);
        let other_leaves = same_pool.map(|config| config.guid).filter(|guid| *guid != config.guid);
        let other_leaves = other_leaves.collect();
        Some(Self {
            path: device.info().path.clone(),
            device: Arc::clone(device),
            config,
            configs,
            good_labels,
            uberblocks,
            other_guids,
            other_leaves,
            before_split: None,
        })
    }

    /// Returns the guid of its leaf.
    pub fn guid(&self) -> u64 {
        self.config.guid
    }

    /// Whether each of its labels has this uberblock.
    pub fn holds(&self, uberblock: &Uberblock) -> bool {
        self.uberblocks.iter().filter(|found| *found == uberblock).count() >= LABEL_COUNT
    }

    /// Returns the pool's guid, `None` for idle spares and cache devices.
    pub fn pool_guid(&self) -> Option<u64> {
        self.config.member.as_ref().map(|member| member.facts.pool_guid)
    }

    /// Sort key among devices that claim to be the same leaf; the highest is trusted.
    pub(super) fn rank(&self) -> (u64, usize) {
        (self.config.txg, self.good_labels)
    }
}

/// Returns other pool guids in the labels with the pool name and leaf of `config`.
fn other_guids(labels: &[Label], config: &LabelConfig) -> Vec<u64> {
    let Some(own) = &config.member else { return Vec::new() };
    let is_same = |label: &&LabelConfig| is_in_use(label) && label.guid == config.guid;
    let configs = labels.iter().filter_map(Label::valid_config).filter(is_same);
    let facts = configs.filter_map(|label| label.member.as_ref().map(|member| &member.facts));
    let others = facts
        .filter(|facts| facts.name == own.facts.name && facts.pool_guid != own.facts.pool_guid);
    others.map(|facts| facts.pool_guid).collect()
}

/// Whether the device is in use: a label of txg 0 is that of a removed device or of one that was
/// never added.
fn is_in_use(config: &LabelConfig) -> bool {
    config.member.is_none() || config.txg != 0
}

/// Returns the pool and leaf of a label; spares and cache devices have no pool.
fn owner_of(config: &LabelConfig) -> (Option<u64>, u64) {
    (config.member.as_ref().map(|member| member.facts.pool_guid), config.guid)
}

/// Returns the owner of a device: the one with most of its labels, then with the highest txg. So a
/// single stale or misplaced label of another pool does not take the device away.
fn owner(labels: &[Label]) -> Option<(Option<u64>, u64)> {
    let mut votes: BTreeMap<_, (usize, u64)> = BTreeMap::new();
    let in_use = labels.iter().filter_map(Label::valid_config).filter(|config| is_in_use(config));
    for config in in_use {
        let vote = votes.entry(owner_of(config)).or_default();
        *vote = (vote.0 + 1, vote.1.max(config.txg));
    }
    votes.into_iter().max_by_key(|(_, vote)| *vote).map(|(owner, _)| owner)
}

/// A hot spare or cache device of a pool.
#[derive(Debug, Clone)]
pub struct AuxDevice {
    /// Its config in the MOS, with the path at which it was found.
    pub config: VdevConfig,
    /// Its path in the MOS.
    pub recorded_path: Option<String>,
    /// Size of its device, if found.
    pub device_size: Option<u64>,
    /// Healthy if a device with its guid was found.
    pub state: VdevState,
    /// Whether a device with its guid is at the recorded path.
    pub is_at_recorded_path: bool,
}
