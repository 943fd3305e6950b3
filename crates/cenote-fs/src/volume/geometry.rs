//! Sizes of volumes: valid sizes, the default block size for the vdevs, and the reservation that
//! guarantees that a volume can be filled (spec 03 §16.1, §16.2).
//!
//! ```text
//!   reservation = data, as RAID-Z stores it in blocks of that size   (in units of 128K records)
//!               + indirect blocks of 1024 pointers, 7 more; two copies of each, three with copies
//! ```

use cenote_ondisk::blkptr::{BLOCK_SIZE_MAX, SMALL_BLOCK_MAX};
use cenote_ondisk::config::{VdevConfig, VdevKind};

use crate::error::FsError;

/// The default block size, if it suits the vdevs.
pub const DEFAULT_BLOCK_SIZE: u64 = 16 << 10;
const BLOCK_MIN: u64 = 512;
/// Block size for which deflated space is computed, and the size of an indirect block.
const RECORD: u64 = 128 << 10;
/// Pointers in an indirect block.
const POINTERS: u64 = 1024;
/// Minimum number of metadata blocks of a volume.
const METADATA_MIN: u64 = 7;

/// Returns the default block size of a new volume on these top-level vdevs.
#[must_use]
pub fn default_block_size(tops: &[VdevConfig]) -> u64 {
    let unit = |top: &VdevConfig| {
        let sector = 1_u64.checked_shl(top.top.ashift as u32).unwrap_or(0);
        match &top.kind {
            VdevKind::RaidZ(raidz) if raidz.nparity == 1 => 2 * sector,
            VdevKind::RaidZ(_) => 4 * sector,
            VdevKind::Draid(draid) => draid.ndata * sector,
            _ => sector,
        }
    };
    let most = tops.iter().map(unit).max().unwrap_or(0);
    let mut block = DEFAULT_BLOCK_SIZE;
    while block * 2 <= most && block < SMALL_BLOCK_MAX {
        block *= 2;
    }
    block
}

/// Returns the maximum space of a volume of that size, including metadata (`refreservation=auto`).
/// `copies` counts when the volume is created; later the rule takes 1.
#[must_use]
pub fn reservation(size: u64, block_size: u64, copies: u64, tops: &[VdevConfig]) -> u64 {
    let block_size = block_size.max(1);
    let blocks = size / block_size;
    let on = |top: &VdevConfig| {
        let (one, record) = (raid_size(top, block_size)?, raid_size(top, RECORD)? >> 9);
        let scaled = u128::from(blocks) * u128::from(one) / u128::from(record.max(1)) * 256;
        Some(u64::try_from(scaled).unwrap_or(u64::MAX))
    };
    let data = tops.iter().filter_map(on).max().unwrap_or(blocks.saturating_mul(block_size));
    let mut metadata = METADATA_MIN;
    let mut level = blocks;
    while level > 1 {
        level = level.div_ceil(POINTERS);
        metadata += level;
    }
    let metadata = metadata.saturating_mul((copies + 1).min(3)).saturating_mul(RECORD);
    data.saturating_mul(copies).saturating_add(metadata)
}

/// Returns the space of `bytes` on a vdev with parity; `None` on others, where it equals `bytes`.
fn raid_size(top: &VdevConfig, bytes: u64) -> Option<u64> {
    let sector = 1_u64.checked_shl(top.top.ashift as u32)?;
    match &top.kind {
        VdevKind::RaidZ(raidz) => {
            let (width, parity) = (top.children.len() as u64, raidz.nparity);
            let data = bytes.div_ceil(sector);
            let all = data + parity * data.div_ceil(width.saturating_sub(parity).max(1));
            Some(all.next_multiple_of(parity + 1) * sector)
        }
        VdevKind::Draid(draid) => {
            let row = draid.ndata.max(1) * sector;
            Some(bytes.div_ceil(row) * (draid.ndata + draid.nparity) * sector)
        }
        _ => None,
    }
}

/// Refuses invalid block sizes.
pub(super) fn check_block_size(block_size: u64) -> Result<(), FsError> {
    if block_size.is_power_of_two() && (BLOCK_MIN..=BLOCK_SIZE_MAX).contains(&block_size) {
        return Ok(());
    }
    Err(FsError::VolumeBlockSize { block_size })
}

/// Refuses invalid sizes.
pub(super) fn check_size(size: u64, block_size: u64) -> Result<(), FsError> {
    if size == 0 || size > i64::MAX as u64 || !size.is_multiple_of(block_size) {
        return Err(FsError::VolumeSize { size, block_size });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use cenote_ondisk::config::{Draid, RaidZ};

    use super::*;

    const GIB: u64 = 1 << 30;

    fn with(kind: VdevKind, children: usize) -> VdevConfig {
        let children = (0..children as u64).map(VdevConfig::missing).collect();
        let mut top = VdevConfig { kind, children, ..VdevConfig::missing(0) };
        top.top.ashift = 12;
        top
    }

    fn raidz(children: usize, nparity: u64) -> VdevConfig {
        let (expanding, expand_txgs) = (false, Vec::new());
        with(VdevKind::RaidZ(RaidZ { nparity, expanding, expand_txgs }), children)
    }

    #[test]
    fn refreservation_of_volumes_follows_the_formula() {
        assert_eq!(reservation(GIB, 16 << 10, 1, &[]), 1_092_616_192);
        assert_eq!(reservation(GIB, 16 << 10, 2, &[]), 2_175_795_200);
        assert_eq!(reservation(GIB, 16 << 10, 1, &[raidz(3, 1)]), 1_092_616_192);
        assert_eq!(reservation(GIB, 16 << 10, 1, &[raidz(5, 2)]), 1_450_530_048);
        assert_eq!(reservation(10 * GIB, 8 << 10, 1, &[raidz(6, 2)]), 21_813_002_240);
        let draid = Draid { ndata: 8, nparity: 2, nspares: 0, ngroups: 1, nchildren: None };
        assert_eq!(
            reservation(GIB, 16 << 10, 1, &[with(VdevKind::Draid(draid), 10)]),
            2_166_358_016
        );
    }

    #[test]
    fn volblocksize_default_depends_on_the_widest_vdev() {
        let both = [raidz(3, 1), raidz(5, 2), VdevConfig::missing(2)];
        assert_eq!(reservation(GIB, 16 << 10, 1, &both), 1_450_530_048);
        assert_eq!(default_block_size(&both), 16 << 10);
        let mut coarse = raidz(5, 2);
        coarse.top.ashift = 14;
        assert_eq!(default_block_size(&[coarse]), 64 << 10);
    }

    #[test]
    fn invalid_volsize_is_refused() {
        assert!(check_block_size(512).is_ok() && check_block_size(16 << 20).is_ok());
        for size in [0, 256, 513, 12 << 10, 32 << 20] {
            assert_eq!(check_block_size(size), Err(FsError::VolumeBlockSize { block_size: size }));
        }
        assert!(check_size(8 << 10, 4 << 10).is_ok());
        for size in [0, 4097, 1 << 63] {
            assert_eq!(check_size(size, 4096), Err(FsError::VolumeSize { size, block_size: 4096 }));
        }
    }
}
