//! Writing blocks and labels as a big-endian host does.
//!
//! The images are empty at first, so that nothing of the old pool can be read by mistake. Blocks
//! are written one after the other from the first byte of each top-level vdev; the pool's space
//! maps do not match that, and are not changed.
//!
//! Checksums (spec 02 §3.2): the fletchers are computed over words in the host's order, and also
//! here; SHA-256's words are big-endian numbers on every host; words of the other hashes are read
//! in the host's order, so each is the byte-swapped word of a little-endian host.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use cenote_codec::checksum::{self, ChecksumAlgorithm, Salt};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::label::{BOOT_ENV, CONFIG, LABEL_COUNT, LABEL_LEN, LABEL_START_LEN};
use cenote_ondisk::uberblock;

use super::source::{Device, Source};
use crate::unpack;

/// Magic of the trailers in labels.
const TRAILER_MAGIC: u64 = 0x0210_da7a_b10c_7a11;
/// Bytes of a device that hold no data: four labels and the boot region.
const OVERHEAD: u64 = LABEL_START_LEN + 2 * LABEL_LEN;

/// The images that are written.
pub(super) struct Target {
    files: Vec<File>,
    tops: BTreeMap<u64, Top>,
}

struct Top {
    devices: Vec<usize>,
    ashift: u64,
    next: u64,
    end: u64,
}

impl Target {
    /// Creates empty images in `folder`, with the names and sizes of the source's. The content of a
    /// cache device is copied.
    pub(super) fn create(source: &Source, folder: &Path) -> Self {
        let create = |device: &Device| {
            let path = Self::path(folder, device);
            match device.top {
                Some(_) => drop(File::create_new(&path).expect("a new image")),
                None => unpack::copy_sparse(&device.path, &path),
            }
            let file = OpenOptions::new().write(true).open(&path);
            let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            file.set_len(device.size).expect("size of an image");
            file
        };
        let files = source.devices.iter().map(create).collect();
        let tops = source.tops.iter().map(|(top, devices)| {
            let of_top = || devices.iter().map(|index| &source.devices[*index]);
            let size = of_top().map(|device| device.size).min().expect("a device");
            let ashift = of_top().map(|device| device.ashift).max().expect("a device");
            let end = size / LABEL_LEN * LABEL_LEN - OVERHEAD;
            (*top, Top { devices: devices.clone(), ashift, next: 0, end })
        });
        Self { files, tops: tops.collect() }
    }

    fn path(folder: &Path, device: &Device) -> PathBuf {
        folder.join(device.path.file_name().expect("an image has a name"))
    }

    /// Writes a block to a top-level vdev; returns the two words of its address.
    pub(super) fn put(&mut self, top: u64, bytes: &[u8]) -> [u64; 2] {
        let (offset, asize) = self.allocate(top, bytes.len());
        self.write(top, offset, bytes);
        [(asize / 512) | (top << 32), offset / 512]
    }

    /// Allocates `len` bytes on a top-level vdev; returns offset and size.
    pub(super) fn allocate(&mut self, top: u64, len: usize) -> (u64, u64) {
        let vdev = self.tops.get_mut(&top).expect("a top-level vdev");
        let asize = (len as u64).next_multiple_of(1 << vdev.ashift);
        let offset = vdev.next;
        vdev.next += asize;
        assert!(vdev.next <= vdev.end, "the rewritten pool does not fit");
        (offset, asize)
    }

    /// Writes to all devices of a top-level vdev.
    pub(super) fn write(&mut self, top: u64, offset: u64, bytes: &[u8]) {
        for device in &self.tops[&top].devices {
            let at = offset + LABEL_START_LEN;
            self.files[*device].write_all_at(bytes, at).expect("a block is written");
        }
    }

    /// Log2 of the sector of a top-level vdev.
    pub(super) fn ashift(&self, top: u64) -> u64 {
        self.tops[&top].ashift
    }

    /// The number of one of the top-level vdevs.
    pub(super) fn any_top(&self) -> u64 {
        *self.tops.keys().next().expect("a top-level vdev")
    }

    /// Writes the labels: boot environment, config and all uberblocks, of which those of the
    /// rewritten txg get the rewritten root.
    pub(super) fn put_labels(&self, source: &Source, root: &[u64; 16]) {
        for (device, file) in source.devices.iter().zip(&self.files) {
            for index in 0..LABEL_COUNT {
                let mut bytes = vec![0; LABEL_LEN as usize];
                let offset = device.label_offset(index);
                let old = &device.labels[index];
                for area in [BOOT_ENV, CONFIG] {
                    let range = area.at as usize..(area.at + area.len) as usize;
                    let block = &mut bytes[range.clone()];
                    block.copy_from_slice(&old[range]);
                    if block[..4] == [1, 1, 0, 0] {
                        block[1] = 0;
                    }
                    seal(Endian::Big, block, [offset + area.at, 0, 0, 0]);
                }
                for (at, uberblock) in device.uberblocks(index) {
                    let len = uberblock::slot_size(device.ashift);
                    let slot = &mut bytes[at as usize..(at + len) as usize];
                    let mut old: Vec<u64> = old[at as usize..][..216]
                        .chunks_exact(8)
                        .map(super::swap::number)
                        .collect();
                    if uberblock.txg == source.uberblock.txg {
                        old[5..21].copy_from_slice(root);
                    }
                    put_words(Endian::Big, slot, &old);
                    seal(Endian::Big, slot, [offset + at, 0, 0, 0]);
                }
                file.write_all_at(&bytes, offset).expect("a label is written");
            }
        }
    }
}

/// Writes words to the start of `bytes`.
pub(super) fn put_words(order: Endian, bytes: &mut [u8], words: &[u64]) {
    for (place, word) in bytes.chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&order.bytes64(*word));
    }
}

/// Gives a block its trailer; `verifier` replaces the checksum while that is computed: for a label,
/// its offset on the device.
pub(crate) fn seal(order: Endian, block: &mut [u8], verifier: [u64; 4]) {
    let at = block.len() - 40;
    put_words(order, &mut block[at..], &[TRAILER_MAGIC]);
    put_words(order, &mut block[at + 8..], &verifier);
    let words = checksum::compute(ChecksumAlgorithm::Sha256, block, false, None).expect("no salt");
    put_words(order, &mut block[at + 8..], &words);
}

/// The words that a host of this order stores as the checksum of a block.
pub(super) fn checksum(id: u8, order: Endian, bytes: &[u8], salt: Option<&Salt>) -> [u64; 4] {
    let algorithm = ChecksumAlgorithm::from_id(id).expect("a checksum");
    let little = || checksum::compute(algorithm, bytes, false, salt).expect("the salt");
    match algorithm {
        _ if order == Endian::Little => little(),
        ChecksumAlgorithm::Fletcher2 => fletcher2(bytes),
        ChecksumAlgorithm::Fletcher4 => fletcher4(bytes),
        ChecksumAlgorithm::Off | ChecksumAlgorithm::NoParity => [0; 4],
        ChecksumAlgorithm::Sha256 => little(),
        _ => little().map(u64::swap_bytes),
    }
}

fn fletcher2(bytes: &[u8]) -> [u64; 4] {
    let mut sums = [0_u64; 4];
    for pair in bytes.as_chunks::<16>().0 {
        let [x, y] = [0, 8].map(|at| {
            let mut word = [0; 8];
            word.copy_from_slice(&pair[at..at + 8]);
            u64::from_be_bytes(word)
        });
        sums[0] = sums[0].wrapping_add(x);
        sums[1] = sums[1].wrapping_add(y);
        sums[2] = sums[2].wrapping_add(sums[0]);
        sums[3] = sums[3].wrapping_add(sums[1]);
    }
    sums
}

fn fletcher4(bytes: &[u8]) -> [u64; 4] {
    let mut sums = [0_u64; 4];
    for word in bytes.as_chunks::<4>().0 {
        sums[0] = sums[0].wrapping_add(u64::from(u32::from_be_bytes(*word)));
        for index in 1..4 {
            sums[index] = sums[index].wrapping_add(sums[index - 1]);
        }
    }
    sums
}
