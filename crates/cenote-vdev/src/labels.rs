//! The labels of a device, read and judged; and written ([`write_config`] and its neighbours).
//!
//!     | L0 | L1 | boot | data ............................ | L2 | L3 |
//!
//! Four copies, written two at a time, so that one pair is whole at every moment. Nothing here
//! chooses: each label is told with its config, if that can be decoded, and with the verdict of
//! its trailer, apart from each other, since OpenZFS's scanner takes a config whose trailer is
//! bad and its opening does not (spec 01 §1, §2, §7). Every slot of every ring is looked at;
//! nobody may assume in which slot a txg is.

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
    LabelWriteError, Pair, aux_config, clear, heartbeat_slot, slot_of, write_aux, write_config,
    write_initial, write_uberblock,
};

/// Pieces in which a label is read when it cannot be read at once.
const PIECE_LEN: usize = 8 << 10;

/// Why a label has no config.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CorruptLabel {
    /// The area is no list.
    #[error(transparent)]
    NvList(#[from] CorruptNvList),
    /// The list is no config.
    #[error(transparent)]
    Config(#[from] CorruptConfig),
}

/// An uberblock whose trailer is right.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundUberblock {
    /// Number of the label.
    pub label: usize,
    /// Number of the slot, in slots of `slot_size`.
    pub slot: u64,
    /// Bytes of a slot.
    pub slot_size: u64,
    /// Byte on the device.
    pub offset: u64,
    /// It.
    pub uberblock: Uberblock,
}

/// One of a device's labels.
#[derive(Debug)]
pub struct Label {
    /// Which of the four.
    pub index: usize,
    /// Byte on the device.
    pub offset: u64,
    /// Why some of it could not be read; what could not counts as zeros.
    pub error: Option<Error>,
    /// The config, whatever its trailer says.
    pub config: Result<LabelConfig, CorruptLabel>,
    /// The verdict of the config's trailer.
    pub config_trailer: Result<(), EmbeddedError>,
    /// The boot environment, if its trailer is right and it can be decoded.
    pub boot_env: Option<BootEnv>,
    /// The uberblocks whose trailers are right, by slot. Those of txg 0 are left out: they mark a
    /// device that is no member.
    pub uberblocks: Vec<FoundUberblock>,
}

impl Label {
    /// The config, if its trailer is right.
    pub fn valid_config(&self) -> Option<&LabelConfig> {
        self.config.as_ref().ok().filter(|_| self.config_trailer.is_ok())
    }
}

/// The labels of a device.
#[derive(Debug)]
pub struct DeviceLabels {
    /// The four; none if the device is too small for them.
    pub labels: Vec<Label>,
}

impl DeviceLabels {
    /// The config that counts: right trailer, member or not, highest txg up to `txg_max`; the
    /// first of equals.
    pub fn best_config(&self, txg_max: u64) -> Option<&LabelConfig> {
        let valid = self.labels.iter().filter_map(Label::valid_config);
        valid
            .filter(|config| config.txg <= txg_max)
            .reduce(|best, next| if next.txg > best.txg { next } else { best })
    }

    /// The first config that can be decoded, whatever its trailer says, as OpenZFS's scanner
    /// takes it.
    pub fn first_config(&self) -> Option<&LabelConfig> {
        self.labels.iter().find_map(|label| label.config.as_ref().ok())
    }

    /// All uberblocks with right trailers.
    pub fn uberblocks(&self) -> impl Iterator<Item = &FoundUberblock> {
        self.labels.iter().flat_map(|label| &label.uberblocks)
    }

    /// The best uberblock with a txg up to `txg_max` (spec 01 §7.2).
    pub fn best_uberblock(&self, txg_max: u64) -> Option<&FoundUberblock> {
        let candidates = self.uberblocks().map(|found| (found.uberblock, found));
        uberblock::best(candidates, txg_max).map(|(_, found)| found)
    }

    /// The pools and leaves that the valid labels name, as `(pool guid, leaf guid)`; spares and
    /// cache devices have pool guid 0. More than one: the device was relabelled half-way, or
    /// labels of an earlier owner are left.
    pub fn owners(&self) -> BTreeSet<(u64, u64)> {
        let valid = self.labels.iter().filter_map(Label::valid_config);
        let pool = |config: &LabelConfig| {
            config.member.as_ref().map_or(0, |member| member.facts.pool_guid)
        };
        valid.map(|config| (pool(config), config.guid)).collect()
    }
}

/// Reads the labels of `device`. What cannot be read is told in each label.
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
    // A label whose own config is lost has slots of the size that the others tell.
    let trusted = labels.iter().filter_map(Label::valid_config).max_by_key(|config| config.txg);
    let ashift = trusted
        .or_else(|| labels.iter().find_map(|label| label.config.as_ref().ok()))
        .map(|config| config.ashift)
        .filter(|ashift| *ashift != 0);
    for (label, (_, _, bytes, _)) in labels.iter_mut().zip(&raw) {
        // Another owner's label among them must not tell for all.
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

/// The bytes of an area of a label, and its byte on the device.
fn area(bytes: &[u8], label_offset: u64, area: Area) -> (&[u8], u64) {
    let range = area.at as usize..(area.at + area.len) as usize;
    (bytes.get(range).unwrap_or_default(), label_offset + area.at)
}

fn judge(index: usize, offset: u64, bytes: &[u8], error: Option<Error>) -> Label {
    let (config_area, at) = area(bytes, offset, label::CONFIG);
    let config_trailer = check(config_area, at);
    let list = NvList::decode_prefix(config_area).map(|(list, _)| list);
    let config = list.map_err(CorruptLabel::from).and_then(|list| Ok(LabelConfig::decode(list)?));
    let (boot_area, at) = area(bytes, offset, label::BOOT_ENV);
    let boot_env = check(boot_area, at).ok().and_then(|()| BootEnv::decode(boot_area).ok());
    let uberblocks = Vec::new();
    Label { index, offset, error, config, config_trailer, boot_env, uberblocks }
}

/// Checks the trailer of a block at byte `offset` of the device.
fn check(block: &[u8], offset: u64) -> Result<(), EmbeddedError> {
    embedded::verify(Embedded::Label { offset }, block, false).map(|_order| ())
}

/// The valid uberblocks of a label's ring, in slots of the size that `ashift` means, or of any
/// size if it is not known.
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
            // The magic costs nothing; most slots of a young pool are empty.
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
