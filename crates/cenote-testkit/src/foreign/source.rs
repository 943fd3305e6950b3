//! Reading the pool to be rewritten: only disks and mirrors, and no gang blocks.
//!
//! Uses the codecs, but neither the engine's vdevs nor its cache: a test's pool is small.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cenote_codec::checksum::embedded::{self, Embedded};
use cenote_codec::checksum::{self, ChecksumAlgorithm, Salt};
use cenote_codec::compress::{self, Compression};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::{LabelConfig, VdevConfig, VdevKind};
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::label::{self, LABEL_COUNT, LABEL_LEN, LABEL_START_LEN};
use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::objset::ObjSetPhys;
use cenote_ondisk::uberblock::{self, Uberblock};
use cenote_ondisk::zap::{Entry, Leaf, MicroZap, ZapKind};

use super::seal::KeyRing;

/// A device of the pool.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) path: PathBuf,
    file: File,
    pub(super) size: u64,
    /// Its top-level vdev; none for a spare or a cache device.
    pub(crate) top: Option<u64>,
    pub(crate) ashift: u64,
    /// The four labels, unchanged.
    pub(crate) labels: Vec<Vec<u8>>,
}

/// The pool.
pub(crate) struct Source {
    pub(crate) devices: Vec<Device>,
    /// Devices by top-level vdev.
    pub(crate) tops: BTreeMap<u64, Vec<usize>>,
    pub(crate) uberblock: Uberblock,
    pub(crate) salt: Option<Salt>,
    pub(super) keys: KeyRing,
}

impl Device {
    fn open(path: &Path) -> Self {
        let file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let size = file.metadata().expect("size of an image").len();
        let labels: Vec<_> = (0..LABEL_COUNT)
            .map(|index| {
                let offset = label::label_offset(size, index).expect("room for labels");
                let mut bytes = vec![0; LABEL_LEN as usize];
                file.read_exact_at(&mut bytes, offset).expect("a label");
                bytes
            })
            .collect();
        let config = NvList::decode_prefix(&labels[0][label::CONFIG.at as usize..]).expect("list");
        let config = LabelConfig::decode(config.0).expect("config");
        let tree = config.member.as_ref().map(|member| &member.vdev_tree);
        for vdev in tree.into_iter().flat_map(VdevConfig::walk) {
            let kind = &vdev.kind;
            assert!(matches!(kind, VdevKind::File | VdevKind::Disk | VdevKind::Mirror), "{kind:?}");
        }
        let (top, ashift) = (tree.map(|tree| tree.id), config.ashift);
        Self { path: path.to_path_buf(), file, size, top, ashift, labels }
    }

    /// Byte of label `index` on the device.
    pub(crate) fn label_offset(&self, index: usize) -> u64 {
        label::label_offset(self.size, index).expect("room for labels")
    }

    /// Bytes and place of each valid uberblock of a label, the place from the label's start.
    pub(crate) fn uberblocks(&self, label: usize) -> Vec<(u64, Uberblock)> {
        (0..uberblock::slot_count(self.ashift))
            .filter_map(|slot| {
                let at = label::slot_offset(0, self.ashift, slot)?;
                let len = uberblock::slot_size(self.ashift);
                let block = &self.labels[label][at as usize..(at + len) as usize];
                let offset = self.label_offset(label) + at;
                embedded::verify(Embedded::Label { offset }, block, false).ok()?;
                Some((at, Uberblock::decode(block).ok()?))
            })
            .filter(|(_, uberblock)| uberblock.txg != 0)
            .collect()
    }
}

impl Source {
    pub(crate) fn open(images: &[PathBuf], keys: KeyRing) -> Self {
        let devices: Vec<_> = images.iter().map(|path| Device::open(path)).collect();
        let mut tops: BTreeMap<u64, Vec<usize>> = BTreeMap::new();
        for (index, device) in devices.iter().enumerate() {
            if let Some(top) = device.top {
                tops.entry(top).or_default().push(index);
            }
        }
        let found = devices.iter().flat_map(|device| {
            (0..LABEL_COUNT).flat_map(|label| device.uberblocks(label)).collect::<Vec<_>>()
        });
        let found = found.map(|(_, uberblock)| (uberblock, ()));
        let uberblock = uberblock::best(found, u64::MAX).expect("an uberblock").0;
        let mut source = Self { devices, tops, uberblock, salt: None, keys };
        source.salt = source.read_salt();
        source
    }

    fn read_salt(&self) -> Option<Salt> {
        let directory = self.dnode(&self.uberblock.rootbp, 1).expect("the object directory");
        let value = self.zap_value(&directory, b"org.illumos:checksum_salt")?;
        Some(Salt::new(value.value.as_bytes()?.try_into().ok()?))
    }

    /// The stored bytes behind a pointer, decrypted.
    pub(crate) fn stored(&self, bp: &BlockPtr) -> Vec<u8> {
        if let Some(payload) = bp.embedded_payload() {
            return payload.as_bytes().to_vec();
        }
        assert!(!bp.is_gang(), "gang block: {}", bp.verbose());
        let algorithm = ChecksumAlgorithm::from_id(bp.checksum_id()).expect("a checksum");
        let mut bytes = vec![0; bp.psize() as usize];
        for dva in bp.dvas() {
            for device in &self.tops[&u64::from(dva.vdev)] {
                let file = &self.devices[*device].file;
                let at = dva.offset + LABEL_START_LEN;
                file.read_exact_at(&mut bytes, at).expect("a block");
                let words = checksum::compute(algorithm, &bytes, false, self.salt.as_ref());
                let is_folded = bp.has_short_checksum();
                if words.is_ok_and(|words| algorithm.matches(words, bp.checksum(), is_folded)) {
                    self.keys.open(bp, &mut bytes);
                    return bytes;
                }
            }
        }
        panic!("unreadable block: {}", bp.verbose());
    }

    /// The decompressed data.
    pub(crate) fn expand(bp: &BlockPtr, stored: &[u8]) -> Vec<u8> {
        let compression = Compression::from_id(bp.compression_id()).expect("a compression");
        let mut block = vec![0; bp.lsize() as usize];
        compress::decompress(compression, stored, &mut block).expect("a block decompresses");
        block
    }

    fn block(&self, bp: &BlockPtr) -> Option<Vec<u8>> {
        let has_data = bp.is_embedded_data() || (!bp.is_hole() && !bp.is_redacted());
        has_data.then(|| Self::expand(bp, &self.stored(bp)))
    }

    /// An object's dnode.
    pub(super) fn dnode(&self, objset: &BlockPtr, object: u64) -> Option<DnodePhys> {
        let objset = ObjSetPhys::decode(&self.block(objset)?).expect("an object set");
        let block = self.data_block(&objset.meta_dnode, object / 32)?;
        DnodePhys::decode(&block[(object % 32) as usize * 512..]).expect("a dnode")
    }

    /// A level-0 block of an object.
    pub(super) fn data_block(&self, dnode: &DnodePhys, blkid: u64) -> Option<Vec<u8>> {
        let fan_out = u32::from(dnode.indblkshift) - 7;
        let index_at = |level: u32| blkid.checked_shr(fan_out * level).unwrap_or(0);
        let top = u32::from(dnode.nlevels) - 1;
        let mut bp = *dnode.blkptrs.get(index_at(top) as usize)?;
        for level in (0..top).rev() {
            let index = index_at(level) & ((1 << fan_out) - 1);
            bp = BlockPtr::at(&self.block(&bp)?, index as usize * 128)?;
        }
        self.block(&bp)
    }

    /// All entries of a ZAP with string keys.
    pub(super) fn zap(&self, dnode: &DnodePhys) -> Vec<Entry> {
        let first = self.data_block(dnode, 0).unwrap_or_default();
        if ZapKind::of(&first).expect("a ZAP") == ZapKind::Micro {
            return MicroZap::decode(&first).expect("a micro ZAP").entries();
        }
        let blocks = (1..=dnode.maxblkid).filter_map(|blkid| self.data_block(dnode, blkid));
        let leaves = blocks.filter(|block| block[..8] == 0x8000_0000_0000_0000_u64.to_le_bytes());
        leaves
            .flat_map(|block| {
                Leaf::decode(&block, false).expect("a leaf").entries().expect("entries")
            })
            .collect()
    }

    /// The entry with this name.
    pub(super) fn zap_value(&self, dnode: &DnodePhys, name: &[u8]) -> Option<Entry> {
        self.zap(dnode).into_iter().find(|entry| entry.key.name() == Some(name))
    }
}
