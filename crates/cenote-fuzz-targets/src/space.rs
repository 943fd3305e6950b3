//! Space and its users: space maps, lists of block pointers, tables of dedup and of clones, maps of
//! removed vdevs, redaction lists.

use std::hint::black_box;

use cenote_ondisk::bpobj::{self, BpobjPhys};
use cenote_ondisk::bptree::{BptreeEntry, BptreePhys};
use cenote_ondisk::brt::{self, BrtPhys};
use cenote_ondisk::ddt::{DdtHistogram, DdtKey, DdtLayout, DdtPhys, DdtValue, LogPhys, log};
use cenote_ondisk::deadlist::DeadlistPhys;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::indirect::{
    self, CondensingPhys, Mapping, MappingPhys, RemovingPhys, birth_of, births,
};
use cenote_ondisk::redaction::{self, RedactionPhys};
use cenote_ondisk::spacemap::{Decoder, Geometry, SpaceMapPhys};

use crate::words;

/// A space map: the header, and the entries in three geometries.
pub fn spacemap(bytes: &[u8]) {
    if let Ok(phys) = SpaceMapPhys::decode(bytes) {
        black_box(phys.check_size(u64::MAX).is_ok());
        // A header without histogram is written without the reserved words before it.
        let bytes = phys.encode();
        assert_eq!(SpaceMapPhys::decode(&bytes).map(|again| again.encode()), Ok(bytes));
    }
    let metaslab = Geometry { start: 1 << 24, size: 1 << 24, shift: 9 };
    let strange = Geometry { start: u64::MAX - 5, size: u64::MAX, shift: 63 };
    for geometry in [metaslab, strange, Geometry::LOG, Geometry::DTL] {
        let mut decoder = Decoder::new(geometry);
        // In two blocks, as entries may not cross them.
        let (first, second) = bytes.split_at(bytes.len() / 2 / 8 * 8);
        let count = decoder.block(first).count() + decoder.block(second).count();
        assert!(count <= bytes.len() / 8 + 2, "{count} entries");
    }
}

/// A bpobj's header and contents, and a deadlist's header.
pub fn bpobj(bytes: &[u8]) {
    if let Ok(phys) = BpobjPhys::decode(bytes) {
        black_box((phys.check_size(0).is_ok(), phys.has_sums(), phys.is_empty()));
        assert_eq!(BpobjPhys::decode(&phys.encode()).as_ref(), Ok(&phys));
    }
    black_box(DeadlistPhys::decode(bytes).is_ok());
    black_box((bpobj::entries(bytes).count(), bpobj::subobjs(bytes).count()));
}

/// A bptree: header and entry.
pub fn bptree(bytes: &[u8]) {
    if let Ok(phys) = BptreePhys::decode(bytes) {
        assert_eq!(BptreePhys::decode(&phys.encode()).as_ref(), Ok(&phys));
    }
    if let Ok(entry) = BptreeEntry::decode(bytes) {
        assert_eq!(BptreeEntry::decode(&entry.encode()).as_ref(), Ok(&entry));
    }
}

/// The table of clones of one vdev.
pub fn brt(bytes: &[u8]) {
    if let Ok(phys) = BrtPhys::decode(bytes) {
        black_box((phys.order(), phys.region_of(0), phys.region_of(u64::MAX)));
        black_box(phys.encode());
    }
    let counters = brt::counters(bytes, false).len();
    assert_eq!(counters, brt::counters(bytes, true).len());
    assert!(counters <= bytes.len() / 2 + 1, "{counters} counters");
}

/// Entries of the dedup table: keys, values, histograms.
pub fn ddt(bytes: &[u8]) {
    let words = words(bytes);
    if let Ok(key) = DdtKey::from_words(&words) {
        black_box((key.lsize(), key.psize(), key.is_encrypted()));
    }
    black_box(DdtValue::decode(bytes).is_ok());
    for layout in [DdtLayout::Legacy, DdtLayout::Flat] {
        for order in [Endian::Little, Endian::Big] {
            if let Ok(phys) = DdtPhys::decode(bytes, layout, order) {
                black_box(phys.refcount());
                assert_eq!(DdtPhys::decode(&phys.encode(), layout, Endian::Little), Ok(phys));
            }
        }
    }
    if let Ok(mut histogram) = DdtHistogram::decode(&words) {
        let copy = histogram.clone();
        assert_eq!(DdtHistogram::decode(&copy.encode()).as_ref(), Ok(&copy));
        histogram.add(&copy);
        black_box(histogram.total());
    }
}

/// The log of the dedup table: header and records.
pub fn ddt_log(bytes: &[u8]) {
    if let Ok(phys) = LogPhys::decode(bytes) {
        assert_eq!(LogPhys::decode(&phys.encode()).as_ref(), Ok(&phys));
    }
    assert!(log::records(bytes).count() <= bytes.len() / 8 + 1);
}

/// Metadata of a removed vdev: its mapping, the births, the state of removal.
pub fn indirect(bytes: &[u8]) {
    if let Ok(phys) = MappingPhys::decode(bytes) {
        black_box(phys.encode());
    }
    if let Ok(mapping) = Mapping::decode(bytes) {
        for entry in mapping.entries() {
            black_box(entry.end());
        }
        for (offset, size) in [(0, 1 << 17), (1 << 20, u64::MAX), (u64::MAX, 1)] {
            black_box(mapping.pieces(offset, size));
        }
    }
    black_box(indirect::births_count(bytes).is_ok());
    let births: Vec<_> = births(bytes).collect();
    black_box((birth_of(&births, 0), birth_of(&births, u64::MAX)));
    black_box(indirect::counts(bytes).count());
    let words = words(bytes);
    black_box((RemovingPhys::decode(&words).is_ok(), CondensingPhys::decode(&words).is_ok()));
}

/// A redaction list: header and entries.
pub fn redaction(bytes: &[u8]) {
    if let Ok(phys) = RedactionPhys::decode(bytes) {
        black_box(phys.is_complete());
        assert_eq!(RedactionPhys::decode(&phys.encode()).as_ref(), Ok(&phys));
    }
    black_box(redaction::entries(bytes).count());
}
