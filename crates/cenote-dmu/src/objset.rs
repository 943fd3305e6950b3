//! Object sets: the MOS, file systems, volumes and snapshots of them.
//!
//!     root block   meta-dnode | intent log header | type, flags, MACs | accounting dnodes
//!     meta-dnode   its data are all dnodes: object o is at byte o * 512
//!
//! Objects 0, -1, -2 and -3 (the meta-dnode and the accounting by user, group and project) are
//! stored in the root block. A dnode has one or more slots of 512 bytes in one block of the
//! meta-dnode; interior slots hold bonus bytes and are never dnodes of their own (spec 02 §10).

use std::sync::Arc;

use cenote_block::{BlockKeys, BlockStore, Grounds, ReadContext};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_OBJSET, LEVEL_ZIL};
use cenote_ondisk::dnode::{self, DNODE_SLOT_LEN, DnodePhys, OBJECT_MAX, Slot};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::{
    GROUPUSED_OBJECT, ObjSetPhys, ObjSetType, PROJECTUSED_OBJECT, USERUSED_OBJECT,
};
use cenote_ondisk::zil::block_seq;
use cenote_rt::{Buf, Error, Kind, Result};

use crate::dnode::Dnode;
use crate::dnodes::Dnodes;
use crate::error::DmuError;
use crate::live::Tree;

/// Number of the meta-dnode.
pub const META_DNODE: u64 = 0;

/// Shared state of all objects of a set.
#[derive(Debug)]
pub(crate) struct Set {
    pub(crate) store: Arc<BlockStore>,
    pub(crate) keys: Option<Arc<BlockKeys>>,
    pub(crate) id: u64,
    pub(crate) is_encrypted: bool,
    /// How the pointers of the set were obtained.
    pub(crate) grounds: Grounds,
    /// The root block, and what was decoded of the blocks below it.
    pub(crate) tree: Tree,
}

impl Set {
    pub(crate) fn is_locked(&self) -> bool {
        self.is_encrypted && self.keys.is_none()
    }

    pub(crate) fn context(&self) -> ReadContext<'_> {
        let place = Bookmark { objset: self.id, ..Bookmark::default() };
        ReadContext {
            place,
            keys: self.keys.as_ref(),
            is_encrypted: self.is_encrypted,
            grounds: &self.grounds,
            ..ReadContext::default()
        }
    }
}

/// An open object set.
#[derive(Debug)]
pub struct ObjSet {
    set: Arc<Set>,
    meta: Arc<Dnode>,
}

impl ObjSet {
    /// Opens the object set at `root`; `id` is the number of its dataset, 0 for the MOS.
    ///
    /// For pools that are not being written; otherwise use [`open_on`](Self::open_on).
    ///
    /// # Errors
    /// `Kind::NotFound` if the pointer is a hole, like that of `$ORIGIN`.
    pub async fn open(
        store: Arc<BlockStore>,
        root: &BlockPtr,
        keys: Option<Arc<BlockKeys>>,
        id: u64,
    ) -> Result<Arc<Self>> {
        Self::open_on(store, root, keys, id, Grounds::Offline).await
    }

    /// Like [`open`](Self::open), for a reader that obtained its pointers as `grounds` says.
    ///
    /// # Errors
    /// As [`open`](Self::open); `Kind::Overtaken` if the space of the set was reused meanwhile.
    pub async fn open_on(
        store: Arc<BlockStore>,
        root: &BlockPtr,
        keys: Option<Arc<BlockKeys>>,
        id: u64,
        grounds: Grounds,
    ) -> Result<Arc<Self>> {
        let at = |error: Error| error.with_at(|at| at.objset = Some(id));
        if root.is_hole() {
            return Err(at(Error::not_found(DmuError::NoRoot)));
        }
        if root.object_type() != ObjectType::OBJSET || root.level() != 0 {
            let (found, level) = (root.object_type().0, root.level());
            return Err(at(Error::corrupt(DmuError::NotAnObjSet { found, level })));
        }
        let is_encrypted = root.is_protected();
        let keys = keys.filter(|_| is_encrypted);
        let place = Bookmark { objset: id, object: 0, level: LEVEL_OBJSET, blkid: 0 };
        let context = ReadContext {
            place,
            keys: keys.as_ref(),
            is_encrypted,
            grounds: &grounds,
            ..ReadContext::default()
        };
        let block = store.read(root, &context).await?;
        let phys = ObjSetPhys::decode(&block).map_err(|error| at(Error::corrupt(error)))?;
        let meta = phys.meta_dnode.clone();
        let tree = Tree::new(*root, phys);
        let set = Arc::new(Set { store, keys, id, is_encrypted, grounds, tree });
        let meta = Arc::new(Dnode::new(Arc::clone(&set), META_DNODE, meta));
        Ok(Arc::new(Self { set, meta }))
    }

    pub(crate) fn set(&self) -> &Set {
        &self.set
    }

    /// Number of the dataset; 0 for the MOS.
    pub fn id(&self) -> u64 {
        self.set.id
    }

    /// The contents of the root block.
    pub fn phys(&self) -> &ObjSetPhys {
        &self.set.tree.phys
    }

    /// The pointer to the root block.
    pub fn root(&self) -> &BlockPtr {
        &self.set.tree.root
    }

    /// Type of the object set.
    pub fn kind(&self) -> ObjSetType {
        self.phys().kind
    }

    /// Number of allocated objects, from the root pointer's fill count.
    pub fn object_count(&self) -> u64 {
        self.root().fill()
    }

    /// Whether the blocks of the set are encrypted or authenticated.
    pub fn is_encrypted(&self) -> bool {
        self.set.is_encrypted
    }

    /// Whether it is encrypted and no key was given.
    pub fn is_locked(&self) -> bool {
        self.set.is_locked()
    }

    /// The keys that were given.
    pub fn keys(&self) -> Option<&Arc<BlockKeys>> {
        self.set.keys.as_ref()
    }

    /// Reads the block of its intent log at `pointer`, past the cache.
    ///
    /// # Errors
    /// `Kind::Checksum` at the end of a chain, whose last block may never have been written.
    pub async fn read_log_block(&self, pointer: &BlockPtr) -> Result<Buf> {
        let blkid = block_seq(pointer);
        let place = Bookmark { objset: self.id(), object: 0, level: LEVEL_ZIL, blkid };
        let grounds = &Grounds::Speculative;
        let context = ReadContext { place, bypass_cache: true, grounds, ..self.set.context() };
        self.set.store.read(pointer, &context).await
    }

    /// The block store.
    pub fn store(&self) -> &Arc<BlockStore> {
        &self.set.store
    }

    /// How the pointers of the set were obtained.
    pub fn grounds(&self) -> &Grounds {
        &self.set.grounds
    }

    /// The meta-dnode, whose data are all dnodes.
    pub fn meta_dnode(&self) -> &Arc<Dnode> {
        &self.meta
    }

    /// Space and objects by user, if accounted.
    pub fn user_used(&self) -> Option<Arc<Dnode>> {
        self.special(USERUSED_OBJECT)
    }

    /// Space and objects by group, if accounted.
    pub fn group_used(&self) -> Option<Arc<Dnode>> {
        self.special(GROUPUSED_OBJECT)
    }

    /// Space and objects by project, if accounted.
    pub fn project_used(&self) -> Option<Arc<Dnode>> {
        self.special(PROJECTUSED_OBJECT)
    }

    fn special(&self, object: u64) -> Option<Arc<Dnode>> {
        let phys = self.phys().special_dnode(object)?;
        Some(self.object(object, phys.clone()))
    }

    fn object(&self, object: u64, phys: DnodePhys) -> Arc<Dnode> {
        Arc::new(Dnode::new(Arc::clone(&self.set), object, phys))
    }

    /// The object with this number. `Kind::NotFound` if it is free.
    pub async fn dnode(&self, object: u64) -> Result<Arc<Dnode>> {
        let at = |error: Error| error.in_object(self.id(), object);
        if object >= PROJECTUSED_OBJECT {
            let cause = DmuError::NoObject { object };
            return self.special(object).ok_or_else(|| at(Error::not_found(cause)));
        }
        if object == 0 || object >= OBJECT_MAX {
            return Err(at(Error::new(Kind::Invalid, DmuError::ObjectNumber { object })));
        }
        let slots = self.slots_per_block();
        let block = match self.meta.read_block(0, object / slots).await {
            Ok(Some(block)) => block,
            Ok(None) => return Err(at(Error::not_found(DmuError::NoObject { object }))),
            Err(error) => return Err(error),
        };
        let slot = (object % slots) as usize;
        let cause = match dnode::slot(&block, slot) {
            Slot::Head { slots } => {
                let start = slot * DNODE_SLOT_LEN;
                let bytes = block.get(start..start + slots * DNODE_SLOT_LEN).unwrap_or(&[]);
                let phys = DnodePhys::decode(bytes).map_err(|error| at(Error::corrupt(error)))?;
                match phys {
                    Some(phys) => return Ok(self.object(object, phys)),
                    None => DmuError::NoObject { object },
                }
            }
            Slot::Interior => DmuError::Interior { object },
            Slot::Free => DmuError::NoObject { object },
        };
        Err(at(Error::not_found(cause)))
    }

    /// The allocated objects from number `from` on, in order.
    pub fn dnodes(&self, from: u64) -> Dnodes {
        Dnodes::new(Arc::clone(&self.set), &self.meta, from..u64::MAX)
    }

    /// The allocated objects of a range of numbers, in order.
    pub fn dnodes_in(&self, objects: std::ops::Range<u64>) -> Dnodes {
        Dnodes::new(Arc::clone(&self.set), &self.meta, objects)
    }

    /// The objects in a dnode block that was already read; its first slot is object `first`.
    pub fn dnodes_of_block<'a>(
        &'a self,
        block: &'a [u8],
        first: u64,
    ) -> impl Iterator<Item = Result<Arc<Dnode>>> + 'a {
        dnode::slots(block).filter_map(move |(slot, bytes)| {
            let object = first.saturating_add(slot as u64);
            if object == META_DNODE {
                return None;
            }
            match DnodePhys::decode(bytes) {
                Ok(phys) => phys.map(|phys| Ok(self.object(object, phys))),
                Err(error) => Some(Err(Error::corrupt(error).in_object(self.id(), object))),
            }
        })
    }

    /// Number of dnode slots in a dnode block.
    pub fn slots_per_block(&self) -> u64 {
        (self.meta.geometry().block_size / DNODE_SLOT_LEN as u64).max(1)
    }
}
