//! Sizes of vdevs: capacity, metaslabs, sector size.
//!
//! All sizes are computed once, when a top-level vdev is created or grows, and stored in the
//! config; from then on the stored values count (spec 01 §1, 05 §3.1, 06 §2, §4.8, §6.2).

use cenote_ondisk::config::{ASHIFT_MAX, ASHIFT_MIN, VdevConfig, VdevKind};
use cenote_ondisk::label;
use cenote_rt::tunables;

use crate::draid::{Draid, ROW_HEIGHT};

/// Smallest capacity of a top-level vdev: that of a leaf on the smallest device (spec 01 §1).
pub const ASIZE_MIN: u64 = label::leaf_asize(label::DEVICE_SIZE_MIN);

/// Bytes that a dRAID reserves on each child.
const DRAID_RESERVE: u64 = 32 << 20;

/// Capacity of a leaf on a device of that size; `None` if the device is too small to be a leaf.
pub fn leaf_asize(device_size: u64) -> Option<u64> {
    (label::usable_size(device_size) >= label::DEVICE_SIZE_MIN)
        .then(|| label::leaf_asize(device_size))
}

/// Capacity of a mirror: that of its smallest child.
pub fn mirror_asize(children: &[u64]) -> u64 {
    children.iter().copied().min().unwrap_or(0)
}

/// Capacity of a RAID-Z, parity included: the number of children times the smallest. While an
/// expansion runs, the last child does not count yet.
pub fn raidz_asize(children: &[u64], is_expanding: bool) -> u64 {
    let count = children.len() as u64 - u64::from(is_expanding && !children.is_empty());
    mirror_asize(children).saturating_mul(count)
}

/// Capacity of a dRAID, parity included and spares excluded: whole groups of whole rows.
pub fn draid_asize(draid: &Draid, children: &[u64]) -> u64 {
    let least = mirror_asize(children).saturating_sub(DRAID_RESERVE);
    let all = (least / ROW_HEIGHT * ROW_HEIGHT).saturating_mul(draid.disks());
    all / draid.group_bytes() * draid.group_bytes()
}

/// Capacity of a vdev, computed from the sizes of its leaves' devices. Children without a device
/// are left out; `None` if no child has a device, or one is too small.
pub fn asize(
    config: &VdevConfig,
    ashift: u32,
    size: &impl Fn(&VdevConfig) -> Option<u64>,
) -> Option<u64> {
    if config.kind.is_leaf() {
        return leaf_asize(size(config)?);
    }
    let children: Vec<u64> =
        config.children.iter().filter_map(|child| asize(child, ashift, size)).collect();
    if children.is_empty() {
        return None;
    }
    // Absent children count as large as the smallest present one.
    let mut all = children.clone();
    all.resize(config.children.len(), mirror_asize(&children));
    match &config.kind {
        VdevKind::Mirror | VdevKind::Replacing | VdevKind::Spare => Some(mirror_asize(&children)),
        VdevKind::RaidZ(raidz) => Some(raidz_asize(&all, raidz.expanding)),
        VdevKind::Draid(draid) => {
            let draid = Draid::of(draid, ashift, config.children.len())?;
            Some(draid_asize(&draid, &all))
        }
        _ => None,
    }
}

/// Smallest capacity of a child with which the vdev keeps `least` bytes (spec 06 §1, §6.2).
pub fn min_child_asize(config: &VdevConfig, least: u64) -> u64 {
    let count = config.children.len().max(1) as u64;
    match &config.kind {
        _ if least == 0 => 0,
        // While an expansion runs, all data may still lie on the other children.
        VdevKind::RaidZ(raidz) if raidz.expanding && count > 1 => least.div_ceil(count - 1),
        VdevKind::RaidZ(_) => least.div_ceil(count),
        VdevKind::Draid(draid) => {
            let disks = count.saturating_sub(draid.nspares).max(1);
            DRAID_RESERVE + least.div_ceil(disks).next_multiple_of(ROW_HEIGHT)
        }
        _ => least,
    }
}

/// Smallest capacity that a top-level vdev needs at import: all of its metaslabs. 0 if its config
/// does not say how large it is.
pub fn min_asize(config: &VdevConfig) -> u64 {
    let shift = config.top.metaslab_shift.min(63);
    config.top.asize >> shift << shift
}

/// Log2 of the size of the metaslabs of a vdev (spec 05 §3.1): about two hundred of them, between
/// 16 MiB and 16 GiB.
pub fn metaslab_shift(asize: u64) -> u32 {
    // One more than the logarithm, so that the count ends up below the target.
    let bits = |x: u64| u64::BITS - x.leading_zeros();
    let (usual, most) =
        (tunables::METASLAB_DEFAULT_SHIFT.get() as u32, tunables::METASLAB_MAX_SHIFT.get() as u32);
    let (fewest, wanted) =
        (tunables::METASLAB_MIN_COUNT.get(), tunables::METASLAB_DEFAULT_COUNT.get());
    let limit = tunables::METASLAB_COUNT_LIMIT.get();
    let count = asize >> usual;
    let shift = if count < fewest {
        bits(asize / fewest)
    } else if count > wanted {
        bits(asize / wanted)
    } else {
        usual
    };
    let least = tunables::METASLAB_MIN_SHIFT.get() as u32;
    if shift < least {
        least
    } else if shift > most {
        if asize >> most > limit { bits(asize / limit) } else { most }
    } else {
        shift
    }
}

/// Number of metaslabs; a remainder at the end of the vdev is not used.
pub fn metaslab_count(asize: u64, shift: u32) -> u64 {
    asize.checked_shr(shift).unwrap_or(0)
}

/// First byte and length of a metaslab on any vdev but a dRAID.
pub(crate) fn metaslab_range(index: u64, shift: u32) -> (u64, u64) {
    (index << shift, 1 << shift)
}

/// Returns the ashift of a vdev whose children report these (logical, physical) ashifts. `wanted`
/// is the one that the administrator requested. `None` if no valid ashift exists.
pub fn ashift(wanted: Option<u64>, children: &[(u64, u64)]) -> Option<u64> {
    let logical = children.iter().map(|(logical, _)| *logical).max().unwrap_or(0).max(ASHIFT_MIN);
    let physical = children.iter().map(|(_, physical)| *physical).max().unwrap_or(0);
    let most = tunables::MAX_AUTO_ASHIFT.get();
    let chosen = match wanted {
        Some(wanted) if wanted >= logical => wanted,
        // A requested ashift that is too small for the devices is ignored.
        _ if physical > logical && physical <= most => {
            physical.max(tunables::MIN_AUTO_ASHIFT.get()).min(most)
        }
        _ => logical.max(tunables::MIN_AUTO_ASHIFT.get()),
    };
    (ASHIFT_MIN..=ASHIFT_MAX).contains(&chosen).then_some(chosen)
}

/// Smallest allocation on a vdev: a sector, or on dRAID all data sectors of a stripe.
pub fn min_alloc(config: &VdevConfig) -> u64 {
    let sector = 1 << config.top.ashift.min(ASHIFT_MAX);
    match &config.kind {
        VdevKind::Draid(draid) => draid.ndata * sector,
        _ => sector,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draid::DraidConfig;

    #[test]
    fn shifts_as_checked_against_openzfs() {
        // Spec 01 §1.2 and 05 §3.1.
        let mib = |n: u64| leaf_asize(n << 20).expect("large enough");
        for (asize, shift, count) in [
            (mib(64), 24, 3),
            (mib(256), 24, 15),
            (mib(7680), 29, 14),
            (mib(9 << 10), 29, 17),
            (mib(100 << 10), 29, 199),
            (mib(150 << 10), 30, 149),
            (mib(3 << 20), 34, 191),
            (mib(5 << 20), 34, 319),
            (mib(3 << 30), 35, 98303),
            (163_053_568, 24, 9),
            (1_054_867_456, 26, 15),
            (388_497_408, 25, 11),
            (503_316_480, 25, 15),
        ] {
            let got = metaslab_shift(asize);
            assert_eq!((got, metaslab_count(asize, got)), (shift, count), "{asize}");
        }
    }

    #[test]
    fn sizes_as_checked_against_openzfs() {
        assert_eq!(leaf_asize(64 << 20), Some(62_390_272));
        assert_eq!(leaf_asize((64 << 20) - 1), None);
        let of = |mib: u64| leaf_asize(mib << 20).expect("large enough");
        assert_eq!(raidz_asize(&[of(96); 6], false), 575_668_224);
        assert_eq!(raidz_asize(&[of(96), of(96), of(128)], true), 2 * of(96));
        // Spec 06 §6.2, §6.8: draid2:4d:11c:1s of 96 MiB and draid2:3d:9c:1s of 256 MiB.
        let draid = |nparity, ndata, children, nspares, ngroups| {
            Draid::new(DraidConfig { ashift: 12, children, nparity, ndata, nspares, ngroups })
                .expect("valid")
        };
        assert_eq!(draid_asize(&draid(2, 4, 11, 1, 5), &[of(96); 11]), 503_316_480);
        assert_eq!(draid_asize(&draid(2, 3, 9, 1, 8), &[of(256); 9]), 1_677_721_600);
    }

    #[test]
    fn ashifts_suit_the_devices() {
        for (wanted, children, chosen) in [
            (None, &[(9, 9)][..], Some(9)),
            (None, &[(9, 12)], Some(12)),
            (None, &[(9, 9), (12, 12)], Some(12)),
            (None, &[(9, 15)], Some(9)),
            (Some(9), &[(9, 12)], Some(9)),
            (Some(9), &[(12, 12)], Some(12)),
            (Some(12), &[(9, 9)], Some(12)),
            (Some(16), &[(9, 9)], Some(16)),
            (Some(17), &[(9, 9)], None),
        ] {
            assert_eq!(ashift(wanted, children), chosen, "{wanted:?} {children:?}");
        }
    }
}
