//! Name-value lists, and the configurations that come as such lists.

use std::hint::black_box;

use cenote_ondisk::config::{LabelConfig, PoolConfig, VdevConfig};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::nvlist::{Encoding, NvList};

/// A packed list whose header names its encoding, mostly XDR.
pub fn nvlist_xdr(bytes: &[u8]) {
    round_trip(bytes, Encoding::Xdr);
}

/// A packed list, with seeds in the native encoding.
pub fn nvlist_native(bytes: &[u8]) {
    round_trip(bytes, Encoding::Native(Endian::Little));
}

fn round_trip(bytes: &[u8], encoding: Encoding) {
    black_box(NvList::encoding(bytes).is_ok());
    if let Ok((list, used)) = NvList::decode_prefix(bytes) {
        assert!(used <= bytes.len(), "{used} of {} bytes", bytes.len());
        black_box(list.iter().count());
        // Compared as bytes: a list may hold a NaN.
        let bytes = list.encode(encoding);
        assert_eq!(NvList::decode(&bytes).map(|again| again.encode(encoding)), Ok(bytes));
    }
}

/// A label's list, as found behind the label's blank and boot areas.
pub fn label(bytes: &[u8]) {
    if let Ok((list, _)) = NvList::decode_prefix(bytes) {
        black_box(LabelConfig::decode(list.clone()).is_ok());
        black_box(PoolConfig::decode(list).is_ok());
    }
}

/// A vdev tree: in a list of its own, or in a label's.
pub fn vdev_config(bytes: &[u8]) {
    let Ok((list, _)) = NvList::decode_prefix(bytes) else { return };
    for list in [Some(&list), list.list("vdev_tree")].into_iter().flatten() {
        if let Ok(tree) = VdevConfig::decode(list) {
            black_box((tree.walk().count(), tree.leaves().count(), tree.guid_sum()));
            black_box(tree.find(tree.guid).is_some());
        }
    }
}
