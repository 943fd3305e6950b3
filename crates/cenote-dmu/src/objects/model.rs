//! Objects in memory for tests: maps of blocks, with checks of the callers' requests.
//!
//! With [`Model::with_misses`] any access to a block may fail with `Need`, as if it were not in
//! memory; [`Model::apply`] then undoes the closure's changes and runs it again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::dnode::{DnodeFlags, DnodePhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, Error, Kind, Result};

use super::{Objects, ReadObjects};
use crate::error::DmuError;
use crate::live::{LiveError, Missing, ObjectSpec, TxResult, TxStop};

#[derive(Debug, Clone)]
struct Object {
    dnode: DnodePhys,
    blocks: BTreeMap<u64, Buf>,
}

/// How to undo a change.
#[derive(Debug, Clone)]
enum Undo {
    Block { object: u64, blkid: u64, before: Option<Buf> },
    Dnode { object: u64, before: Box<DnodePhys> },
    Object { object: u64, before: Option<Box<Object>> },
}

/// A set of objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    objects: BTreeMap<u64, Object>,
    next: u64,
    misses: bool,
    present: BTreeSet<(u64, u64)>,
    journal: Vec<Undo>,
}

impl Model {
    /// A model in which every block that was not written or read before is missing.
    pub(crate) fn with_misses() -> Self {
        Self { misses: true, ..Self::default() }
    }

    /// Makes all blocks missing again.
    pub(crate) fn evict(&mut self) {
        self.present.clear();
    }

    /// Runs a closure as a transaction.
    pub(crate) fn apply<T>(
        &mut self,
        mut change: impl FnMut(&mut dyn Objects) -> TxResult<T>,
    ) -> Result<T> {
        loop {
            let next = self.next;
            match change(self) {
                Ok(done) => {
                    self.journal.clear();
                    return Ok(done);
                }
                Err(TxStop::Fail(error)) => {
                    self.roll_back(next);
                    return Err(error);
                }
                Err(TxStop::Need(missing)) => {
                    self.roll_back(next);
                    let fresh = self.present.insert((missing.place.object, missing.place.blkid));
                    assert!(fresh, "a block that is there was asked for: {missing:?}");
                }
            }
        }
    }

    fn roll_back(&mut self, next: u64) {
        self.next = next;
        for undo in std::mem::take(&mut self.journal).into_iter().rev() {
            match undo {
                Undo::Object { object, before: Some(before) } => {
                    self.objects.insert(object, *before);
                }
                Undo::Object { object, before: None } => {
                    self.objects.remove(&object);
                }
                Undo::Dnode { object, before } => {
                    self.objects.get_mut(&object).unwrap().dnode = *before;
                }
                Undo::Block { object, blkid, before } => {
                    let blocks = &mut self.objects.get_mut(&object).unwrap().blocks;
                    match before {
                        Some(before) => blocks.insert(blkid, before),
                        None => blocks.remove(&blkid),
                    };
                }
            }
        }
    }

    /// The dnode, mutable.
    fn head(&mut self, object: u64) -> TxResult<&mut DnodePhys> {
        let before = Box::new(self.get(object)?.dnode.clone());
        self.journal.push(Undo::Dnode { object, before });
        Ok(&mut self.get(object)?.dnode)
    }

    fn put(&mut self, object: u64, blkid: u64, data: Option<Buf>) -> TxResult<()> {
        let blocks = &mut self.get(object)?.blocks;
        let before = match data {
            Some(data) => blocks.insert(blkid, data),
            None => blocks.remove(&blkid),
        };
        self.journal.push(Undo::Block { object, blkid, before });
        Ok(())
    }

    pub(crate) fn object_numbers(&self) -> Vec<u64> {
        self.objects.keys().copied().collect()
    }

    /// Numbers of the blocks of an object that are not holes.
    pub(crate) fn block_numbers(&self, object: u64) -> Vec<u64> {
        self.objects[&object].blocks.keys().copied().collect()
    }

    fn get(&mut self, object: u64) -> TxResult<&mut Object> {
        self.objects
            .get_mut(&object)
            .ok_or_else(|| TxStop::Fail(Error::not_found(DmuError::NoObject { object })))
    }

    fn need(&self, object: u64, blkid: u64) -> TxResult<()> {
        if !self.misses || self.present.contains(&(object, blkid)) {
            return Ok(());
        }
        let place = Bookmark { objset: 0, object, level: 0, blkid };
        Err(TxStop::Need(Box::new(Missing {
            pointer: BlockPtr::HOLE,
            place,
            since: cenote_block::Since::default(),
        })))
    }
}

impl ReadObjects for Model {
    fn dnode(&mut self, object: u64) -> TxResult<Arc<DnodePhys>> {
        self.get(object).map(|found| Arc::new(found.dnode.clone()))
    }

    fn block(&mut self, object: u64, blkid: u64) -> TxResult<Option<Buf>> {
        let Some(block) = self.get(object)?.blocks.get(&blkid).cloned() else { return Ok(None) };
        self.need(object, blkid)?;
        Ok(Some(block))
    }

    fn bonus(&mut self, object: u64) -> TxResult<Vec<u8>> {
        Ok(self.get(object)?.dnode.bonus().to_vec())
    }

    fn spill(&mut self, _object: u64) -> TxResult<Option<Buf>> {
        Ok(None)
    }

    fn prefetch(&mut self, _object: u64, _blkid: u64) {}
}

impl Objects for Model {
    fn write(&mut self, object: u64, offset: u64, bytes: &[u8]) -> TxResult<()> {
        let size = self.get(object)?.dnode.data_block_size();
        let mut done = 0;
        while done < bytes.len() {
            let at = offset + done as u64;
            let (blkid, within) = (at / size, (at % size) as usize);
            let run = (bytes.len() - done).min(size as usize - within);
            let mut block = match self.block(object, blkid)? {
                Some(block) => block.to_vec(),
                None => vec![0; size as usize],
            };
            block[within..within + run].copy_from_slice(&bytes[done..done + run]);
            self.write_block(object, blkid, block.into())?;
            done += run;
        }
        Ok(())
    }

    fn write_block(&mut self, object: u64, blkid: u64, data: Buf) -> TxResult<()> {
        let dnode = &self.get(object)?.dnode;
        assert_eq!(data.len() as u64, dnode.data_block_size());
        assert!(blkid == 0 || data.len().is_power_of_two(), "several blocks of odd size");
        if dnode.maxblkid < blkid {
            self.head(object)?.maxblkid = blkid;
        }
        self.put(object, blkid, Some(data))?;
        self.present.insert((object, blkid));
        Ok(())
    }

    fn free_range(&mut self, object: u64, offset: u64, len: Option<u64>) -> TxResult<()> {
        let size = self.get(object)?.dnode.data_block_size();
        let end = len.map_or(u64::MAX, |len| offset + len);
        if len.is_none() {
            self.head(object)?.maxblkid = offset.div_ceil(size).saturating_sub(1);
        }
        let touched: Vec<u64> = self.get(object)?.blocks.keys().copied().collect();
        for blkid in touched {
            let block = blkid * size..(blkid + 1) * size;
            if offset <= block.start && block.end <= end {
                self.put(object, blkid, None)?;
            } else if offset < block.end && block.start < end {
                let from = offset.max(block.start);
                let zeros = vec![0; (end.min(block.end) - from) as usize];
                self.write(object, from, &zeros)?;
            }
        }
        Ok(())
    }

    fn allocate(&mut self, spec: &ObjectSpec) -> TxResult<u64> {
        let object = spec.number.unwrap_or(self.next + 1);
        self.next = self.next.max(object);
        let dnode = DnodePhys {
            object_type: spec.object_type,
            indblkshift: if spec.indirect_shift == 0 { 17 } else { spec.indirect_shift },
            nlevels: 1,
            bonus_type: spec.bonus_type,
            checksum: 0,
            compress: 0,
            flags: DnodeFlags::USED_BYTES,
            data_block_sectors: spec.block_size.div_ceil(512).max(1) as u16,
            bonus_len: spec.bonus_len as u16,
            extra_slots: 0,
            maxblkid: 0,
            used: 0,
            reserved: [0; 35],
            blkptrs: vec![BlockPtr::HOLE],
            bonus_area: vec![0; 320],
            spill: None,
        };
        let fresh = Object { dnode, blocks: BTreeMap::new() };
        assert!(self.objects.insert(object, fresh).is_none(), "number in use");
        self.journal.push(Undo::Object { object, before: None });
        Ok(object)
    }

    fn free(&mut self, object: u64) -> TxResult<()> {
        self.get(object)?;
        let before = self.objects.remove(&object).map(Box::new);
        self.journal.push(Undo::Object { object, before });
        Ok(())
    }

    fn set_bonus(&mut self, object: u64, bytes: &[u8]) -> TxResult<()> {
        let dnode = self.head(object)?;
        if bytes.len() > dnode.bonus_area.len() {
            let (len, capacity) = (bytes.len(), dnode.bonus_area.len());
            let cause = LiveError::BonusLength { len, capacity };
            return Err(TxStop::Fail(Error::new(Kind::Invalid, cause)));
        }
        dnode.bonus_len = bytes.len() as u16;
        dnode.bonus_area[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn set_object_type(&mut self, object: u64, object_type: ObjectType) -> TxResult<()> {
        self.head(object)?.object_type = object_type;
        Ok(())
    }

    fn set_block_size(&mut self, object: u64, size: u64) -> TxResult<()> {
        let dnode = self.head(object)?;
        assert_eq!(dnode.maxblkid, 0);
        dnode.data_block_sectors = (size / 512) as u16;
        if let Some(block) = self.get(object)?.blocks.get(&0) {
            let mut bytes = block.to_vec();
            bytes.resize(size as usize, 0);
            self.put(object, 0, Some(bytes.into()))?;
        }
        Ok(())
    }
}
