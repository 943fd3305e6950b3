//! Labels written and read back by the reader, and against bytes that OpenZFS wrote.

use std::sync::Arc;

use cenote_device::{FaultyDevice, MemoryDevice, WriteFault};
use cenote_ondisk::config::{PoolFacts, PoolState, VdevConfig, VdevKind as ConfigKind, label_list};
use cenote_ondisk::nvlist::NvString;
use cenote_ondisk::words;
use cenote_rt::Kind;

use super::*;
use crate::bench::{leaves, top, vdev, wait};
use crate::{BuildOptions, Tree};

/// Not a multiple of the label size: the bytes beyond the last whole label are not used.
const SIZE: usize = (64 << 20) + 77 * 512;
const BEFORE: u8 = 0xa5;

fn device_full_of_marker_bytes() -> MemoryDevice {
    MemoryDevice::new("mem", vec![BEFORE; SIZE])
}

fn facts(txg: u64) -> PoolFacts {
    PoolFacts {
        version: 5000,
        name: "tank".into(),
        state: PoolState::Active,
        txg,
        pool_guid: 1,
        errata: 0,
        comment: None,
        compatibility: None,
        hostid: 0,
        hostname: None,
        vdev_children: Some(1),
        hole_array: Vec::new(),
        features_for_read: Some(Vec::new()),
        split_guid: None,
        split_leaves: Vec::new(),
    }
}

fn mirror(ashift: u64) -> VdevConfig {
    top(vdev(ConfigKind::Mirror, 0, 2, leaves(2)), ashift)
}

fn config(txg: u64, ashift: u64) -> NvList {
    label_list(&facts(txg), &mirror(ashift).children[0], 100)
}

fn uberblock(txg: u64) -> Uberblock {
    // Test vector D of spec 01 §7.2, except for the txg.
    let mut words = vec![0xbab10c, 0x1388, txg, 0x0d63752605f1a6b1, 0x6b00fd32];
    words.extend([8, 0x68, 8, 0x8068, 8, 0x10060, 0x800b070200070007, 0, 0, 0, 4, 0x2c]);
    words.extend([0x96b7b4485, 0x23096c4ee0e2, 0x41481f74e8ba7f, 0x513df7056dd1fc0e]);
    words.extend([0x1388, 0xa11cea11, 0, 0, 0, 0]);
    Uberblock::decode(&words::to_bytes(&words)).expect("a real one")
}

fn txgs(labels: &DeviceLabels) -> Vec<Option<u64>> {
    labels.labels.iter().map(|label| label.valid_config().map(|config| config.txg)).collect()
}

#[test]
fn first_labels_are_those_of_openzfs() {
    let device = device_full_of_marker_bytes();
    wait(write_initial(&device, &config(0, 12))).expect("written");
    device.edit(|bytes| {
        // Test vector A of spec 01 §2.
        let l0: Vec<u8> = vec![
            0x11, 0x7a, 0x0c, 0xb1, 0x7a, 0xda, 0x10, 0x02, 0x3f, 0x2a, 0x6e, 0x7f, 0x80, 0x8f,
            0xf4, 0x97, 0xfc, 0xce, 0xaa, 0x58, 0x16, 0x9f, 0x90, 0xaf, 0x8b, 0xb4, 0x6d, 0xff,
            0x57, 0xea, 0xd1, 0xcb, 0xab, 0x5f, 0x46, 0x0d, 0xdb, 0x92, 0xc6, 0x6e,
        ];
        assert_eq!(bytes[0x4000 - 40..0x4000], l0);
        let words =
            [0xee7c57675241636f, 0x10970cd8ede4a49a, 0x9aae81488a35d5b7, 0x2b88d690470dd2ad];
        assert_eq!(bytes[0x44000 - 32..0x44000], words::to_bytes(&words));
        // The space for a partition table, the boot region and the data are not touched.
        let kept = [0..0x2000, 0x40000..0x42000, 0x80000..(64 << 20) - 0x80000, 64 << 20..SIZE];
        for range in kept {
            assert!(bytes[range].chunks(512).all(|sector| sector == [BEFORE; 512]));
        }
        assert!(bytes[0x20000..0x40000].chunks(512).all(|sector| sector == [0; 512]));
    });
    let labels = wait(read(&device));
    assert_eq!(txgs(&labels), [Some(0); 4]);
    assert!(labels.best_uberblock(u64::MAX).is_none());
    assert!(labels.labels.iter().all(|label| label.boot_env.is_some()));
}

#[test]
fn a_commit_is_read_back_at_every_step_and_sector_size() {
    for ashift in 9..=16 {
        let device = device_full_of_marker_bytes();
        wait(write_initial(&device, &config(0, ashift))).expect("written");
        for txg in [4, 5, 131, 1000] {
            let before = txgs(&wait(read(&device)))[1];
            wait(write_config(&device, Pair::Even, &config(txg, ashift))).expect("written");
            let labels = wait(read(&device));
            assert_eq!(txgs(&labels), [Some(txg), before, Some(txg), before]);
            let slot = slot_of(txg, ashift, false);
            wait(write_uberblock(&device, &uberblock(txg), ashift, slot)).expect("written");
            let labels = wait(read(&device));
            let found: Vec<_> = labels
                .uberblocks()
                .filter(|found| found.uberblock == uberblock(txg))
                .map(|found| (found.label, found.slot))
                .collect();
            assert_eq!(found, (0..4).map(|label| (label, slot)).collect::<Vec<_>>(), "{ashift}");
            assert_eq!(labels.best_uberblock(u64::MAX).map(|found| found.uberblock.txg), Some(txg));
            wait(write_config(&device, Pair::Odd, &config(txg, ashift))).expect("written");
            assert_eq!(txgs(&wait(read(&device))), [Some(txg); 4]);
        }
        assert_eq!(slot_of(131, ashift, true), 131 % heartbeat_slot(ashift));
        // The heartbeat uses the last slot of the ring.
        let last = heartbeat_slot(ashift);
        wait(write_uberblock(&device, &uberblock(2000), ashift, last)).expect("written");
        let error = wait(write_uberblock(&device, &uberblock(2001), ashift, last + 1));
        let error = error.expect_err("no slot");
        assert!(matches!(error.cause(), Some(LabelWriteError::Slot { .. })));
        let best = wait(read(&device)).best_uberblock(u64::MAX).map(|found| found.uberblock.txg);
        assert_eq!(best, Some(2000));
    }
}

#[test]
fn spares_caches_and_cleared_devices() {
    let path = NvString::from_bytes(b"/dev/x").expect("no NUL");
    let device = device_full_of_marker_bytes();
    wait(write_aux(&device, PoolState::Spare, 7, &path, 0)).expect("written");
    let labels = wait(read(&device));
    let spare = labels.first_config().expect("a label");
    assert_eq!((spare.state, spare.guid, spare.member.is_none()), (PoolState::Spare, 7, true));
    wait(write_aux(&device, PoolState::L2Cache, 8, &path, 12)).expect("written");
    let labels = wait(read(&device));
    let cache = labels.first_config().expect("a label");
    assert_eq!((cache.state, cache.guid, cache.ashift), (PoolState::L2Cache, 8, 12));
    wait(clear(&device)).expect("cleared");
    let labels = wait(read(&device));
    assert!(labels.first_config().is_none() && labels.owners().is_empty());
    device.edit(|bytes| {
        assert!(bytes[..0x2000].iter().all(|byte| *byte == BEFORE));
        assert!(bytes[4 << 20..(4 << 20) + 4096].iter().all(|byte| *byte == 0));
        assert_eq!(bytes[(4 << 20) + 4096], BEFORE);
    });
}

#[test]
fn labels_report_failed_writes() {
    let small = MemoryDevice::new("small", vec![0; (1 << 20) - 1]);
    let error = wait(write_config(&small, Pair::Odd, &config(4, 12))).expect_err("too small");
    assert_eq!(error.cause(), Some(&LabelWriteError::TooSmall { size: (1 << 20) - 1 }));
    let mut long = config(4, 12);
    long.insert("comment", "x".repeat(114_648).as_str());
    let device = Arc::new(device_full_of_marker_bytes());
    let error = wait(write_initial(&*device, &long)).expect_err("too long");
    assert!(matches!(error.cause(), Some(LabelWriteError::TooLong { max: 114_648, .. })));
    let failing = |ranges: &[(u64, u64)]| {
        let faulty = FaultyDevice::new(Arc::clone(&device) as _, 1);
        ranges.iter().fold(faulty, |faulty, (start, end)| {
            faulty.with_write_range(*start..*end, WriteFault::Eio)
        })
    };
    let l2 = (64_u64 << 20) - 0x80000;
    wait(write_initial(&*device, &config(0, 12))).expect("written");
    // A commit needs only one label of a pair; the first labels of a device need all four.
    let half = failing(&[(0, 0x40000)]);
    assert_eq!(wait(write_initial(&half, &config(0, 12))).expect_err("L0").kind(), Kind::Io);
    wait(write_config(&half, Pair::Even, &config(4, 12))).expect("L2 is there");
    wait(write_uberblock(&half, &uberblock(4), 12, 4)).expect("three are there");
    let labels = wait(read(&*device));
    assert_eq!(txgs(&labels), [Some(0), Some(0), Some(4), Some(0)]);
    assert_eq!(labels.uberblocks().count(), 3);
    let dead = failing(&[(0, 0x80000), (l2, l2 + 0x80000)]);
    assert_eq!(
        wait(write_config(&dead, Pair::Even, &config(4, 12))).expect_err("both").kind(),
        Kind::Io
    );
    assert_eq!(
        wait(write_uberblock(&dead, &uberblock(4), 12, 4)).expect_err("all").kind(),
        Kind::Io
    );
}

#[test]
fn trees_write_labels_of_their_leaves() {
    let device = Arc::new(device_full_of_marker_bytes());
    let config_of = |txg| config(txg, 13);
    let open = |leaf: &VdevConfig| (leaf.guid == 100).then(|| Arc::clone(&device) as _);
    let options = BuildOptions { is_writable: true, ..BuildOptions::default() };
    let tree = Tree::build(&mirror(13), open, &options).expect("root");
    let ids: Vec<_> = tree.leaves().map(|(id, _)| id).collect();
    wait(tree.write_label_config(ids[0], Pair::Even, &config_of(9))).expect("there");
    wait(tree.write_uberblock(ids[0], &uberblock(9), slot_of(9, 13, false))).expect("there");
    let error = wait(tree.write_uberblock(ids[1], &uberblock(9), 9)).expect_err("no device");
    assert_eq!(error.kind(), Kind::Io);
    let labels = wait(read(&*device));
    assert_eq!(txgs(&labels), [Some(9), None, Some(9), None]);
    let found = labels.best_uberblock(9).map(|found| (found.slot, found.slot_size));
    assert_eq!(found, Some((9, 8192)));
    let stats = tree.leaf(ids[0]).stats();
    assert_eq!((stats.writes, stats.flushes), (6, 0));
    assert!(wait(tree.flush()).expect("nothing fails").failed.is_empty());
    assert_eq!(tree.leaf(ids[0]).stats().flushes, 1);
    assert!(tree.changed_dtls().is_empty());
    let reading = Tree::build(&mirror(13), open, &BuildOptions::default()).expect("root");
    let error = wait(reading.write_label_config(ids[0], Pair::Odd, &config_of(9)));
    assert_eq!(error.expect_err("reading").kind(), Kind::ReadOnly);
}
