//! Block pointers and the blocks that they lead to first: dnodes, object sets, uberblocks, log
//! blocks.

use std::hint::black_box;

use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BlockPtr};
use cenote_ondisk::dnode::{self, DnodePhys};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::objset::ObjSetPhys;
use cenote_ondisk::uberblock::Uberblock;
use cenote_ondisk::zil::{self, LogBlock, ZilHeader};

/// Block pointers: every accessor, both forms of print, both byte orders.
pub fn blkptr(bytes: &[u8]) {
    for bp in BlockPtr::all_in(bytes) {
        look_at(&bp);
        let mut swapped = bp.to_bytes();
        for word in swapped.chunks_exact_mut(8) {
            word.reverse();
        }
        assert_eq!(BlockPtr::from_bytes_in(&swapped, Endian::Big), bp);
    }
}

fn look_at(bp: &BlockPtr) {
    black_box((bp.validate().is_ok(), bp.lsize(), bp.psize(), bp.asize_total(), bp.fill()));
    black_box((bp.is_hole(), bp.is_gang(), bp.protection(), bp.level(), bp.object_type()));
    black_box((bp.embedded_payload(), bp.embedded_lsize(), bp.salt(), bp.iv(), bp.mac()));
    black_box((bp.birth(), bp.physical_birth(), bp.allocation_birth(), bp.dvas().count()));
    black_box(format!("{} {} {}", bp.compact(true), bp.compact(false), bp.verbose()));
    assert_eq!(BlockPtr::decode(&bp.to_bytes()), *bp);
}

/// A block of dnodes.
pub fn dnode(bytes: &[u8]) {
    for (index, slots) in dnode::slots(bytes) {
        assert!(!slots.is_empty() && slots.len() <= bytes.len(), "slot {index}");
        let Ok(Some(dnode)) = DnodePhys::decode(slots) else { continue };
        for bp in dnode.blkptrs().iter().chain(dnode.spill()) {
            look_at(bp);
        }
        black_box((dnode.bonus().len(), dnode.data_block_size(), dnode.indirect_block_size()));
        black_box((dnode.used_bytes(), dnode.data_len_max(), dnode.indirect_ptrs_shift()));
        for level in 0..=dnode.nlevels.saturating_add(1) {
            black_box(dnode.level_shift(level));
        }
        let again = DnodePhys::decode(&dnode.encode());
        assert_eq!(again.as_ref().ok().and_then(Option::as_ref), Some(&dnode));
    }
    for index in [0, 1, 31, usize::MAX] {
        black_box(dnode::slot(bytes, index));
    }
}

/// An object set's block.
pub fn objset(bytes: &[u8]) {
    if let Ok(objset) = ObjSetPhys::decode(bytes) {
        for object in [0, u64::MAX, u64::MAX - 1, u64::MAX - 2] {
            black_box(objset.special_dnode(object));
        }
        assert_eq!(ObjSetPhys::decode(&objset.encode()).as_ref(), Ok(&objset));
    }
}

/// An uberblock slot.
pub fn uberblock(bytes: &[u8]) {
    if let Ok(uberblock) = Uberblock::decode(bytes) {
        black_box((uberblock.mmp(), uberblock.raidz_reflow(), uberblock.rank()));
        assert_eq!(Uberblock::decode(&uberblock.encode()).as_ref(), Ok(&uberblock));
    }
}

/// Intent log: header, block with its pointer in front, records in either form.
pub fn zil(bytes: &[u8]) {
    if let Ok(header) = ZilHeader::decode(bytes) {
        black_box((header.is_claimed(), header.limits()));
        assert_eq!(ZilHeader::decode(&header.encode()).as_ref(), Ok(&header));
    }
    if let Some((pointer, block)) = bytes.split_first_chunk::<BLOCK_PTR_LEN>()
        && let Ok(block) = LogBlock::decode(block, &BlockPtr::decode(pointer))
    {
        black_box(&block);
    }
    for record in zil::record::records(bytes).flatten() {
        black_box((record.kind(), zil::Body::decode(&record, record.bytes).is_ok()));
        let written = zil::record::unswap(record.bytes);
        black_box(zil::Body::decode(&record, &written).is_ok());
    }
}
