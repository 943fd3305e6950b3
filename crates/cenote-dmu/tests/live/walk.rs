//! An independent walk over a whole object set that checks every invariant of spec 02 §9.7 with its
//! own arithmetic.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_block::{BlockKeys, BlockStore, ReadContext};
use cenote_dmu::live::Blocks;
use cenote_dmu::{Dnode, ObjSet};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dnode::{self, DnodePhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::Buf;

/// Result of a walk.
#[derive(Default)]
pub(crate) struct Walk {
    /// Every block, embedded ones included.
    pub(crate) blocks: Vec<BlockPtr>,
    /// By object, the births of data blocks or of the holes in their place, as (first, last,
    /// birth).
    pub(crate) births: BTreeMap<u64, Vec<(u64, u64, u64)>>,
    pub(crate) holes_with_birth: u64,
    pub(crate) deepest: u8,
    /// The keys of an encrypted set.
    keys: Option<Arc<BlockKeys>>,
}

/// A position in a tree, with the expectations of its parent.
#[derive(Clone, Copy)]
struct At {
    level: u8,
    number: u64,
    parent_birth: u64,
}

struct Tree<'a> {
    store: &'a Arc<BlockStore>,
    walk: &'a mut Walk,
    object: u64,
    phys: &'a DnodePhys,
    txg: u64,
    dsize: u64,
    last_block: Option<u64>,
}

/// Walks a set that is not encrypted.
pub(crate) async fn walk(set: &Arc<ObjSet>, txg: u64) -> Walk {
    walk_with(set, txg, None).await
}

/// Walks the set.
pub(crate) async fn walk_with(set: &Arc<ObjSet>, txg: u64, keys: Option<Arc<BlockKeys>>) -> Walk {
    let mut walk = Walk { keys, ..Walk::default() };
    let root = *set.root();
    walk.blocks.push(root);
    check_words(&root);
    let meta_fill = walk_object(set, &mut walk, 0, &set.phys().meta_dnode, txg).await;
    assert_eq!(root.fill(), meta_fill, "fill of the root");
    let mut count = 0;
    let mut dnodes = set.dnodes(0);
    while let Some(found) = dnodes.next().await {
        let found = found.unwrap();
        count += 1;
        walk_object(set, &mut walk, found.object(), found.phys(), txg).await;
    }
    assert_eq!(count, meta_fill, "number of dnodes");
    let special: [Option<Arc<Dnode>>; 3] = [set.user_used(), set.group_used(), set.project_used()];
    for dnode in special.into_iter().flatten() {
        walk_object(set, &mut walk, dnode.object(), dnode.phys(), txg).await;
    }
    walk
}

async fn walk_object(
    set: &Arc<ObjSet>,
    walk: &mut Walk,
    object: u64,
    phys: &DnodePhys,
    txg: u64,
) -> u64 {
    let store = set.store();
    walk.births.insert(object, Vec::new());
    let mut tree = Tree { store, walk, object, phys, txg, dsize: 0, last_block: None };
    let mut fill = 0;
    for (number, pointer) in phys.blkptrs.iter().enumerate() {
        let at = At { level: phys.nlevels - 1, number: number as u64, parent_birth: txg };
        fill += tree.pointer(pointer, at).await;
    }
    let (last, mut dsize) = (tree.last_block, tree.dsize);
    assert!(last.is_none_or(|last| last <= phys.maxblkid), "object {object}: maxblkid");
    assert_eq!(phys.flags.contains(dnode::DnodeFlags::SPILL_BLKPTR), phys.spill.is_some());
    if let Some(spill) = phys.spill {
        assert_eq!((spill.level(), spill.object_type()), (0, phys.bonus_type));
        assert!(!spill.is_hole() && spill.fill() == 1 && spill.birth() <= txg);
        read(store, &spill, walk.keys.as_ref()).await;
        walk.blocks.push(spill);
        dsize += store.dsize(&spill);
    }
    assert_eq!(phys.used_bytes(), dsize, "object {object}: used");
    let tail = &phys.bonus_area[usize::from(phys.bonus_len)..];
    assert!(tail.iter().all(|byte| *byte == 0), "object {object}: tail of the bonus");
    fill
}

impl Tree<'_> {
    /// Checks a pointer and the blocks below; returns its fill.
    async fn pointer(&mut self, pointer: &BlockPtr, at: At) -> u64 {
        let At { level, number, parent_birth } = at;
        let text = format!("object {} level {level} block {number}", self.object);
        let shift = u32::from(self.phys.indblkshift - 7) * u32::from(level);
        let first = number.checked_shl(shift).unwrap_or(0);
        let last = first + (1_u64.checked_shl(shift).unwrap_or(0)).wrapping_sub(1);
        assert!(pointer.birth() <= parent_birth.min(self.txg), "{text}: birth");
        check_words(pointer);
        let size =
            if level == 0 { self.phys.data_block_size() } else { self.phys.indirect_block_size() };
        if pointer.is_hole() {
            if pointer.birth() != 0 {
                self.walk.holes_with_birth += 1;
                assert_eq!(pointer.level(), level, "{text}: level of a hole");
            } else {
                assert_eq!(*pointer, BlockPtr::HOLE, "{text}: hole without birth");
            }
            assert_eq!(pointer.fill(), 0, "{text}: fill of a hole");
            self.note(first, last, pointer.birth());
            return 0;
        }
        assert_eq!((pointer.level(), pointer.lsize()), (level, size), "{text}");
        self.walk.blocks.push(*pointer);
        self.walk.deepest = self.walk.deepest.max(level);
        self.dsize += self.store.dsize(pointer);
        let block = read(self.store, pointer, self.walk.keys.as_ref()).await;
        if level == 0 {
            self.note(first, last, pointer.birth());
            self.last_block = self.last_block.max(Some(number));
            let is_meta = self.phys.object_type == ObjectType::DNODE;
            let expected = if is_meta { dnode::slots(&block).count() as u64 } else { 1 };
            assert_eq!(pointer.fill(), expected, "{text}: fill");
            return expected;
        }
        let entries: Vec<_> = BlockPtr::all_in(&block).collect();
        assert!(entries.iter().any(|entry| !entry.is_hole()), "{text}: only holes below");
        let mut fill = 0;
        let first_child = number * entries.len() as u64;
        for (index, entry) in entries.iter().enumerate() {
            let child = first_child + index as u64;
            let at = At { level: level - 1, number: child, parent_birth: pointer.birth() };
            fill += Box::pin(self.pointer(entry, at)).await;
        }
        assert_eq!(pointer.fill(), fill, "{text}: fill");
        fill
    }

    fn note(&mut self, first: u64, last: u64, birth: u64) {
        self.walk.births.get_mut(&self.object).unwrap().push((first, last, birth));
    }
}

fn check_words(pointer: &BlockPtr) {
    if !pointer.is_embedded() {
        assert_eq!((pointer.words()[7], pointer.words()[8]), (0, 0), "pads of {pointer:?}");
    }
}

async fn read(store: &Arc<BlockStore>, pointer: &BlockPtr, keys: Option<&Arc<BlockKeys>>) -> Buf {
    let is_encrypted = keys.is_some();
    let context = ReadContext { keys, is_encrypted, ..ReadContext::default() };
    store.read(pointer, &context).await.unwrap()
}
