//! Reads and checks the labels of a device; writes them ([`write_config`] and its neighbours).
//!
//!     | L0 | L1 | boot | data ............................ | L2 | L3 |
//!
//! Four copies, written two at a time, so that one pair is whole at every moment. This module does
//! not choose between them: each label is returned with its config, if that can be decoded, and,
//! separately, with the result of checking its trailer, since OpenZFS's scanner accepts a config
//! whose trailer is bad and its import does not (spec 01 §1, §2, §7). Every slot of every uberblock
//! ring is examined; the slot of a txg cannot be assumed.

#[cfg(test)]
mod tests;
mod write;

use std::collections::BTreeSet;

use cenote_codec::checksum::embedded::{self, Embedded, EmbeddedError};
use cenote_device::Device;
use cenote_ondisk::bootenv::BootEnv;
use cenote_ondisk::config::{CorruptConfig, LabelConfig};
use cenote_ondisk::label::{self, Area, LABEL_COUNT, LABEL_LEN};
use cenote_ondisk::nvlist::{CorruptNvList, NvList};
use cenote_ondisk::uberblock::{self, Uberblock};
use cenote_rt::{BufMut, Error};

pub use write::{
    LabelWriteError, Pair, aux_config, clear, copy_uberblocks, heartbeat_slot, slot_of, write_aux,
    write_config, write_initial, write_uberblock,
};

/// Size of the pieces in which a label is read when reading it at once fails.
const PIECE_LEN: usize = 8 << 10;

/// Why a label has no config.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CorruptLabel {
    /// The area does not hold a valid nvlist.
    #[error(transparent)]
    NvList(#[from] CorruptNvList),
    /// The nvlist is not a valid config; that of a device that left its pool may name no pool.
    #[error("{cause}")]
    Config {
        /// The nvlist.
        list: NvList,
        /// The error in it.
        #[source]
        cause: CorruptConfig,
    },
}

/// An uberblock whose trailer is valid.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundUberblock {
    /// Index of the label.
    pub label: usize,
    /// Index of the slot, counted in slots of `slot_size`.
    pub slot: u64,
    /// Bytes of a slot.
    pub slot_size: u64,
    /// Byte offset on the device.
    pub offset: u64,
    /// The uberblock.
    pub uberblock: Uberblock,
}

/// One of a device's labels.
#[derive(Debug)]
pub struct Label {
    /// Index, 0 to 3.
    pub index: usize,
    /// Byte offset on the device.
    pub offset: u64,
    /// Why parts of the label could not be read; unreadable bytes count as zeros.
    pub error: Option<Error>,
    /// The config, whether its trailer is valid or not.
    pub config: Result<LabelConfig, CorruptLabel>,
    /// Result of checking the config's trailer.
    pub config_trailer: Result<(), EmbeddedError>,
    /// The boot environment, if its trailer is valid and it can be decoded.
    pub boot_env: Option<BootEnv>,
    /// The uberblocks with valid trailers, by slot. Uberblocks of txg 0 are left out: they mark a
    /// device that belongs to no pool.
    pub uberblocks: Vec<FoundUberblock>,
}

impl Label {
    /// The nvlist in the config area, whether it is a valid config or not. An area of zeros is no
    /// nvlist, although it decodes as an empty one.
    pub fn list(&self) -> Option<&NvList> {
        match &self.config {
            Ok(config) => Some(&config.raw),
            Err(CorruptLabel::Config { list, .. }) => Some(list).filter(|list| !list.is_empty()),
            Err(CorruptLabel::NvList(_)) => None,
        }
    }

    /// The config, if its trailer is valid.
    pub fn valid_config(&self) -> Option<&LabelConfig> {
        self.config.as_ref().ok().filter(|_| self.config_trailer.is_ok())
    }
}

/// The labels of a device.
#[derive(Debug)]
pub struct DeviceLabels {
    /// The four labels; empty if the device is too small for them.
    pub labels: Vec<Label>,
}

impl DeviceLabels {
    /// Returns the config to use: valid trailer, pool member or not, highest txg up to `txg_max`;
    /// the first of equals.
    pub fn best_config(&self, txg_max: u64) -> Option<&LabelConfig> {
        let valid = self.labels.iter().filter_map(Label::valid_config);
        valid
            .filter(|config| config.txg <= txg_max)
            .reduce(|best, next| if next.txg > best.txg { next } else { best })
    }

    /// Returns the first config that can be decoded, even if its trailer is bad, as OpenZFS's
    /// scanner does.
    pub fn first_config(&self) -> Option<&LabelConfig> {
        self.labels.iter().find_map(|label| label.config.as_ref().ok())
    }

    /// All uberblocks with valid trailers.
    pub fn uberblocks(&self) -> impl Iterator<Item = &FoundUberblock> {
        self.labels.iter().flat_map(|label| &label.uberblocks)
    }

    /// The best uberblock with a txg up to `txg_max` (spec 01 §7.2).
    pub fn best_uberblock(&self, txg_max: u64) -> Option<&FoundUberblock> {
        let candidates = self.uberblocks().map(|found| (found.uberblock, found));
        uberblock::best(candidates, txg_max).map(|(_, found)| found)
    }

    /// The pools and leaves that the valid labels name, as `(pool guid, leaf guid)`; spares and
    /// cache devices have pool guid 0. More than one pair means that relabelling was interrupted,
    /// or that labels of an earlier pool are left.
    pub fn owners(&self) -> BTreeSet<(u64, u64)> {
        let valid = self.labels.iter().filter_map(Label::valid_config);
        let pool = |config: &LabelConfig| {
            config.member.as_ref().map_or(0, |member| member.facts.pool_guid)
        };
        valid.map(|config| (pool(config), config.guid)).collect()
    }
}

/// Reads the labels of `device`. Read errors are recorded in each label.
pub async fn read(device: &dyn Device) -> DeviceLabels {
    let mut raw = Vec::new();
    for index in 0..LABEL_COUNT {
        let Some(offset) = label::label_offset(device.info().size, index) else { break };
        let (bytes, error) = read_label(device, offset).await;
        raw.push((index, offset, bytes, error));
    }
    let mut labels: Vec<Label> = raw
        .iter_mut()
        .map(|(index, offset, bytes, error)| judge(*index, *offset, bytes, error.take()))
        .collect();
    // A label without a config of its own gets the slot size from the other labels' ashift.
    let trusted = labels.iter().filter_map(Label::valid_config).max_by_key(|config| config.txg);
    let ashift = trusted
        .or_else(|| labels.iter().find_map(|label| label.config.as_ref().ok()))
        .map(|config| config.ashift)
        .filter(|ashift| *ashift != 0);
    for (label, (_, _, bytes, _)) in labels.iter_mut().zip(&raw) {
        // An ashift in another pool's label must not decide for all labels.
        let own = label.valid_config().map(|config| config.ashift).filter(|ashift| *ashift != 0);
        label.uberblocks = find_uberblocks(label, bytes, own.or(ashift));
    }
    DeviceLabels { labels }
}

/// Reads a label at once, or in pieces if that fails.
async fn read_label(device: &dyn Device, offset: u64) -> (BufMut, Option<Error>) {
    let error = match device.read(offset, BufMut::zeroed(LABEL_LEN as usize)).await {
        Ok(bytes) => return (bytes, None),
        Err(error) => error,
    };
    let mut bytes = BufMut::zeroed(LABEL_LEN as usize);
    for start in (0..LABEL_LEN as usize).step_by(PIECE_LEN) {
        if let Ok(piece) = device.read(offset + start as u64, BufMut::zeroed(PIECE_LEN)).await {
            bytes[start..start + PIECE_LEN].copy_from_slice(&piece);
        }
    }
    (bytes, Some(error))
}

/// Returns the bytes of an area of a label, and its byte offset on the device.
fn area(bytes: &[u8], label_offset: u64, area: Area) -> (&[u8], u64) {
    let range = area.at as usize..(area.at + area.len) as usize;
    (bytes.get(range).unwrap_or_default(), label_offset + area.at)
}

fn judge(index: usize, offset: u64, bytes: &[u8], error: Option<Error>) -> Label {
    let (config_area, at) = area(bytes, offset, label::CONFIG);
    let config_trailer = check(config_area, at);
    let config = decode_config(config_area);
    let (boot_area, at) = area(bytes, offset, label::BOOT_ENV);
    let boot_env = check(boot_area, at).ok().and_then(|()| BootEnv::decode(boot_area).ok());
    let uberblocks = Vec::new();
    Label { index, offset, error, config, config_trailer, boot_env, uberblocks }
}

fn decode_config(area: &[u8]) -> Result<LabelConfig, CorruptLabel> {
    let list = || NvList::decode_prefix(area).map(|(list, _)| list);
    let decoded = LabelConfig::decode(list()?);
    // Rare: the list is decoded once more, so that no label needs a copy of it.
    decoded.or_else(|cause| Err(CorruptLabel::Config { list: list()?, cause }))
}

/// Checks the trailer of a block at byte `offset` of the device.
fn check(block: &[u8], offset: u64) -> Result<(), EmbeddedError> {
    embedded::verify(Embedded::Label { offset }, block, false).map(|_order| ())
}

/// Finds the valid uberblocks of a label's ring, in slots of the size that `ashift` implies, or of
/// any size if `ashift` is `None`.
fn find_uberblocks(label: &Label, bytes: &[u8], ashift: Option<u64>) -> Vec<FoundUberblock> {
    let (ring, ring_offset) = area(bytes, label.offset, label::RING);
    let min = u64::from(uberblock::UBERBLOCK_SHIFT_MIN);
    let max = u64::from(uberblock::UBERBLOCK_SHIFT_MAX);
    let sizes: Vec<u64> = match ashift {
        Some(ashift) => vec![uberblock::slot_size(ashift)],
        None => (min..=max).map(uberblock::slot_size).collect(),
    };
    let mut found: Vec<FoundUberblock> = Vec::new();
    for slot_size in sizes {
        for (slot, block) in (0..).zip(ring.chunks_exact(slot_size as usize)) {
            let offset = ring_offset + slot * slot_size;
            // Checking the magic is cheap; most slots of a young pool are empty.
            let Ok(uberblock) = Uberblock::decode(block) else { continue };
            if uberblock.txg == 0 || check(block, offset).is_err() {
                continue;
            }
            found.push(FoundUberblock { label: label.index, slot, slot_size, offset, uberblock });
        }
    }
    found.sort_by_key(|found| found.offset);
    found
}
