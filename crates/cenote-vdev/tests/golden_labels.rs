//! Decodes the labels of every golden pool, written by the kernel module, and encodes them to the
//! same bytes again.

#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use cenote_codec::checksum::embedded::{self, Embedded};
use cenote_ondisk::config::{LabelConfig, PoolState, label_list};
use cenote_ondisk::label::{self, Area, CONFIG, LABEL_COUNT, RING};
use cenote_ondisk::nvlist::{Encoding, NvList, NvPair, NvValue};
use cenote_ondisk::uberblock::{self, UBERBLOCK_LEN, Uberblock};
use cenote_testkit::golden;
use cenote_vdev::labels;

struct Device {
    file: File,
    size: u64,
}

impl Device {
    fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap();
        let size = file.metadata().unwrap().len();
        Self { file, size }
    }

    fn read(&self, offset: u64, len: u64) -> Vec<u8> {
        let mut bytes = vec![0; len as usize];
        self.file.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    fn area(&self, label_offset: u64, area: Area) -> Vec<u8> {
        self.read(label_offset + area.at, area.len)
    }
}

/// The labels of a device whose config has a valid trailer.
fn configs(device: &Device) -> Vec<(u64, LabelConfig)> {
    let mut found = Vec::new();
    for index in 0..LABEL_COUNT {
        let at = label::label_offset(device.size, index).unwrap();
        let area = device.area(at, CONFIG);
        let kind = Embedded::Label { offset: at + CONFIG.at };
        if embedded::verify(kind, &area, false).is_err() {
            continue;
        }
        let (list, used) = NvList::decode_prefix(&area).unwrap();
        let bytes = list.encode(Encoding::Xdr);
        assert_eq!(bytes, area[..used], "label {index} is encoded as it was");
        assert!(area[used..CONFIG.content_len()].iter().all(|byte| *byte == 0));
        for encoding in [Encoding::Native(cenote_ondisk::endian::Endian::Little), Encoding::Xdr] {
            assert_eq!(NvList::decode(&list.encode(encoding)).as_ref(), Ok(&list));
        }
        found.push((at, LabelConfig::decode(list).unwrap()));
    }
    found
}

/// Removes the entries that only record history, which are not kept.
fn known(list: &NvList) -> NvList {
    let mut known = NvList { flags: list.flags, pairs: Vec::new() };
    for (name, value) in list.iter().filter(|(name, _)| **name != "expansion_time") {
        let value = match value {
            NvValue::List(inner) => NvValue::List(self::known(inner)),
            NvValue::ListArray(inner) => {
                NvValue::ListArray(inner.iter().map(self::known).collect())
            }
            other => other.clone(),
        };
        known.pairs.push(NvPair { name: name.clone(), value });
    }
    known
}

/// All valid uberblocks of a label's ring.
fn uberblocks(device: &Device, label_offset: u64, ashift: u64) -> Vec<Uberblock> {
    let ring = device.area(label_offset, RING);
    let size = uberblock::slot_size(ashift) as usize;
    let mut found = Vec::new();
    for (slot, bytes) in ring.chunks_exact(size).enumerate() {
        let offset = label::slot_offset(label_offset, ashift, slot as u64).unwrap();
        if embedded::verify(Embedded::Label { offset }, bytes, false).is_err() {
            continue;
        }
        let Ok(uberblock) = Uberblock::decode(bytes) else { continue };
        assert_eq!(uberblock.encode(), bytes[..UBERBLOCK_LEN]);
        assert_eq!(uberblock.rootbp.validate(), Ok(()));
        found.push(uberblock);
    }
    found
}

#[test]
fn labels_and_uberblocks_of_all_pools() {
    let pools = golden::all();
    if pools.is_empty() {
        cenote_testkit::skip::skip("labels_and_uberblocks_of_all_pools", "no golden pools here");
    }
    for pool in pools {
        let (mut label_count, mut uberblock_count) = (0, 0);
        for path in pool.devices() {
            let device = Device::open(&path);
            for (at, config) in configs(&device) {
                label_count += 1;
                let Some(member) = &config.member else {
                    assert!(matches!(config.state, PoolState::Spare | PoolState::L2Cache));
                    let path = config.raw.string("path").unwrap();
                    let again = labels::aux_config(config.state, config.guid, path, config.ashift);
                    assert_eq!(again, config.raw);
                    continue;
                };
                if config.txg != 0 {
                    let again = label_list(&member.facts, &member.vdev_tree, config.guid);
                    assert_eq!(again, known(&config.raw), "{}", path.display());
                }
                assert_eq!(member.facts.name, pool.name());
                // A removed device (txg 0) names the indirect vdev that took its place, and does
                // not name itself.
                let is_in_tree = member.vdev_tree.find(config.guid).is_some();
                assert_eq!(is_in_tree, config.txg != 0, "{}", path.display());
                let rings = uberblocks(&device, at, config.ashift);
                uberblock_count += rings.len();
                let found = rings.into_iter().map(|uberblock| (uberblock, ()));
                let Some((best, ())) = uberblock::best(found, u64::MAX) else { continue };
                if member.facts.vdev_children == Some(1) && best.txg == member.facts.txg {
                    let sum = member.vdev_tree.guid_sum().wrapping_add(member.facts.pool_guid);
                    assert_eq!(best.guid_sum, sum, "{}", path.display());
                }
            }
        }
        assert!(label_count >= 4 && uberblock_count > 0, "{}", pool.name());
        println!("{}: {label_count} labels, {uberblock_count} uberblocks", pool.name());
    }
}
