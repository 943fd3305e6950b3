//! Test bed for reading and writing: vdev trees over devices in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_device::{Device, Fault, FaultyDevice, MemoryDevice};
use cenote_ondisk::config::{Draid, RaidZ, VdevConfig, VdevKind as ConfigKind};
use cenote_rt::Rng;

use crate::leaf::DATA_START;
use crate::tree::Layout;
use crate::{BuildOptions, Tree};

pub(crate) const DEVICE_LEN: usize = 40 << 20;
pub(crate) const BIRTH: u64 = 100;

pub(crate) fn vdev(kind: ConfigKind, id: u64, guid: u64, children: Vec<VdevConfig>) -> VdevConfig {
    VdevConfig { kind, guid, children, ..VdevConfig::missing(id) }
}

/// Leaves with guids 100, 101, ...
pub(crate) fn leaves(count: u64) -> Vec<VdevConfig> {
    (0..count).map(|id| vdev(ConfigKind::File, id, 100 + id, Vec::new())).collect()
}

pub(crate) fn top(mut config: VdevConfig, ashift: u64) -> VdevConfig {
    config.top.ashift = ashift;
    VdevConfig::root(1, vec![config])
}

pub(crate) fn raidz(ashift: u64, width: u64, nparity: u64) -> VdevConfig {
    let kind = RaidZ { nparity, expanding: false, expand_txgs: Vec::new() };
    top(vdev(ConfigKind::RaidZ(kind), 0, 2, leaves(width)), ashift)
}

pub(crate) fn draid(
    ashift: u64,
    children: u64,
    nparity: u64,
    ndata: u64,
    nspares: u64,
) -> VdevConfig {
    let width = nparity + ndata;
    let ngroups =
        (1..256).find(|n| (n * width).is_multiple_of(children - nspares)).expect("finite");
    let kind = Draid { nparity, ndata, nspares, ngroups, nchildren: None };
    top(vdev(ConfigKind::Draid(kind), 0, 2, leaves(children)), ashift)
}

pub(crate) type Range = (u64, u64);
/// The data area of a leaf.
pub(crate) const DATA: Range = (DATA_START, DEVICE_LEN as u64);

/// Build options of a writable tree.
fn writable() -> BuildOptions {
    BuildOptions { is_writable: true, ..BuildOptions::default() }
}

/// Devices in memory by guid, and the tree over them.
pub(crate) struct Bench {
    pub(crate) config: VdevConfig,
    pub(crate) devices: BTreeMap<u64, Arc<MemoryDevice>>,
    pub(crate) tree: Arc<Tree>,
}

impl Bench {
    pub(crate) fn new(config: VdevConfig) -> Self {
        // Rows of a dRAID are 16 MiB high.
        let is_tall = config.walk().any(|vdev| matches!(vdev.kind, ConfigKind::Draid(_)));
        let len = if is_tall { DEVICE_LEN } else { 16 << 20 };
        let devices = config.leaves().filter(|leaf| leaf.kind == ConfigKind::File).map(|leaf| {
            let memory = MemoryDevice::new(format!("d{}", leaf.guid), vec![0; len]);
            (leaf.guid, Arc::new(memory))
        });
        let devices: BTreeMap<_, _> = devices.collect();
        let open =
            |leaf: &VdevConfig| devices.get(&leaf.guid).map(|d| Arc::clone(d) as Arc<dyn Device>);
        let tree = Tree::build(&config, open, &writable()).expect("root");
        Self { config, devices, tree }
    }

    /// Builds the tree without the devices in `absent`, and with `faults` on other devices.
    pub(crate) fn tree_with(&self, absent: &[u64], faults: &[(u64, Range, Fault)]) -> Arc<Tree> {
        let open = |leaf: &VdevConfig| {
            let device = self.devices.get(&leaf.guid).filter(|_| !absent.contains(&leaf.guid))?;
            let device: Arc<dyn Device> = Arc::clone(device) as _;
            let faulty = faults.iter().filter(|(guid, ..)| *guid == leaf.guid);
            let faulty = faulty.fold(FaultyDevice::new(device, 7), |faulty, (_, range, fault)| {
                faulty.with_range(range.0..range.1, *fault)
            });
            Some(Arc::new(faulty) as _)
        };
        Tree::build(&self.config, open, &writable()).expect("root")
    }
}

pub(crate) fn wait<T>(future: impl Future<Output = T>) -> T {
    cenote_rt::block_on(1, future).expect("runtime")
}

/// RAID-Z and dRAID layouts of many shapes, each with the number of children that may be absent.
pub(crate) fn shapes() -> Vec<(&'static str, VdevConfig, usize)> {
    let grown = |width, nparity, txgs: &[u64]| {
        let kind = RaidZ { nparity, expanding: false, expand_txgs: txgs.to_vec() };
        top(vdev(ConfigKind::RaidZ(kind), 0, 2, leaves(width)), 9)
    };
    vec![
        ("raidz1 of 2", raidz(9, 2, 1), 1),
        ("raidz1 of 3", raidz(9, 3, 1), 1),
        ("raidz2 of 6", raidz(12, 6, 2), 2),
        ("raidz3 of 7", raidz(9, 7, 3), 3),
        ("raidz1 grown from 3 to 5", grown(5, 1, &[200, 300]), 1),
        ("raidz2 grown from 4 to 6", grown(6, 2, &[50, 200]), 2),
        ("draid1 of 4", draid(9, 4, 1, 2, 1), 1),
        ("draid2 of 9", draid(12, 9, 2, 3, 1), 2),
        ("draid3 of 8", draid(9, 8, 3, 5, 0), 3),
    ]
}

/// Random offsets and lengths of blocks on this vdev.
pub(crate) fn places(bench: &Bench, rng: &mut Rng) -> Vec<(u64, u64)> {
    let step = match &bench.tree.vdevs[1].layout {
        Layout::Draid(draid) => draid.stripe_bytes(),
        _ => 1 << bench.tree.vdevs[1].ashift,
    };
    let psizes = [512, 1000, 4096, 5 << 9, 0x3600, 128 << 10];
    let place = |psize| (rng.below((8 << 20) / step) * step, psize);
    psizes.into_iter().map(place).collect()
}

/// Picks `count` different leaves out of `width`.
pub(crate) fn some_leaves(rng: &mut Rng, width: u64, count: usize) -> Vec<u64> {
    let mut all: Vec<u64> = (100..100 + width).collect();
    (0..count).map(|_| all.swap_remove(rng.below(all.len() as u64) as usize)).collect()
}
