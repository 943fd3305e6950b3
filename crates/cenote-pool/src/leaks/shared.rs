//! Blocks with several references: dedup tables and clone tables (spec 08 §22, §24, §27).
//!
//! A block in a table has as many references as the table counts. The first one claims its space;
//! each other one decrements the count. At the end all counts must be zero, and no reference may be
//! found after that.
//!
//! The value of a dedup entry is that of the active log, else of the log that is being flushed,
//! else of the store. An entry of the newest layout has one set of addresses, which grows with
//! `copies`: older pointers have fewer addresses but reference all of them. An entry without
//! references stays in the log, with its blocks allocated, until it is flushed.

use std::sync::Arc;

use cenote_codec::compress::{Compression, decompress};
use cenote_dmu::{ObjSet, Zap};
use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_ondisk::brt::{BRT_KEY_PREFIX, BrtPhys, entry_count};
use cenote_ondisk::ddt::log::records;
use cenote_ondisk::ddt::{
    DDT_STATISTICS, DdtKey, DdtLayout, DdtPhys, DdtSlot, DdtValue, LogFlags, LogPhys,
};
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Error, FixedMap, FixedSet, Result};

use super::Reference;
use crate::{Pool, mos};

const DDT_PREFIX: &str = "DDT-";
const LOG_PREFIX: &str = "DDT-log-";

/// The table that counts a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// Deduplication.
    Dedup,
    /// Cloning.
    Clones,
}

#[derive(Debug, Clone, Copy)]
struct Counted {
    /// References that were not found yet.
    left: u64,
    /// Physical birth; 0 for any.
    birth: u64,
    is_found: bool,
    table: Table,
}

/// Refcounts of all deduplicated and cloned blocks.
#[derive(Debug, Default)]
pub(super) struct Refcounts {
    /// By vdev and offset of the first address.
    dedup: FixedMap<(u32, u64), Counted>,
    clones: FixedMap<(u32, u64), Counted>,
    /// Addresses of dedup entries that have several, shared by all pointers.
    extended: FixedMap<(u32, u64), DdtSlot>,
    /// Blocks of dedup entries without references.
    unreferenced: Vec<BlockPtr>,
}

/// Counted references that were not found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Leftover {
    /// The table that counts them.
    pub table: Table,
    /// Vdev of the block's first address.
    pub vdev: u32,
    /// Offset of the block's first address.
    pub offset: u64,
    /// Number of references.
    pub references: u64,
}

impl Refcounts {
    /// Reads all tables.
    pub(super) async fn load(pool: &Pool) -> Result<Self> {
        let mut shared = Self::default();
        for (name, value) in pool.directory() {
            let Some(object @ 1..) = value.first() else { continue };
            if let Some(vdev) = name.strip_prefix(BRT_KEY_PREFIX) {
                shared.load_clones(pool.mos(), vdev.parse().unwrap_or(u32::MAX), object).await?;
            } else if name.starts_with(DDT_PREFIX) && name != DDT_STATISTICS {
                shared.load_dedup(pool.mos(), object).await?;
            }
        }
        Ok(shared)
    }

    async fn load_clones(&mut self, mos: &Arc<ObjSet>, vdev: u32, object: u64) -> Result<()> {
        let (_, bonus) = mos::bonus(mos, object).await?;
        let phys = BrtPhys::decode(&bonus).map_err(mos::corrupt(object))?;
        if phys.entries_obj == 0 {
            return Ok(());
        }
        let mut entries = Zap::open(mos, phys.entries_obj).await?.entries();
        while let Some(entry) = entries.next().await? {
            let offset = entry.key.words().and_then(|words| words.first().copied());
            let count = entry_count(&entry.value, phys.order());
            if let (Some(offset), Some(count)) = (offset, count) {
                let left = count.saturating_add(1);
                let counted = Counted { left, birth: 0, is_found: false, table: Table::Clones };
                self.clones.insert((vdev, offset), counted);
            }
        }
        Ok(())
    }

    async fn load_dedup(&mut self, mos: &Arc<ObjSet>, object: u64) -> Result<()> {
        let mut known = FixedSet::default();
        if mos::object_type(mos, object).await? == ObjectType::DDT_ZAP {
            return self.load_store(mos, object, DdtLayout::Legacy, &known).await;
        }
        let members = mos::entries(mos, object).await?;
        let of = |is_log: bool| {
            members.iter().filter_map(move |(name, value)| {
                let is_member =
                    name.starts_with(DDT_PREFIX) && name.starts_with(LOG_PREFIX) == is_log;
                value.first().filter(|object| is_member && *object != 0)
            })
        };
        let mut logs = Vec::new();
        for object in of(true) {
            let (_, bonus) = mos::bonus(mos, object).await?;
            let phys = LogPhys::decode(&bonus).map_err(mos::corrupt(object))?;
            logs.push((phys.flags.contains(LogFlags::FLUSHING), object, phys));
        }
        logs.sort_by_key(|(is_flushing, object, _)| (*is_flushing, *object));
        for (_, object, phys) in logs {
            self.load_log(mos, object, &phys, &mut known).await?;
        }
        for object in of(false) {
            self.load_store(mos, object, DdtLayout::Flat, &known).await?;
        }
        Ok(())
    }

    async fn load_log(
        &mut self,
        mos: &Arc<ObjSet>,
        object: u64,
        phys: &LogPhys,
        known: &mut FixedSet<[u64; 5]>,
    ) -> Result<()> {
        let dnode = mos.dnode(object).await?;
        let mut newest: FixedMap<[u64; 5], DdtPhys> = FixedMap::default();
        let mut stream = dnode.stream(0..phys.length);
        while let Some(extent) = stream.next().await {
            let extent = extent?;
            for record in records(extent.data.as_deref().unwrap_or(&[])) {
                let record = record.map_err(mos::corrupt(object))?;
                newest.insert(record.key.to_words(), record.phys);
            }
        }
        let done = phys.flags.contains(LogFlags::CHECKPOINT).then(|| phys.checkpoint.to_words());
        for (key, value) in newest {
            if done.is_some_and(|done| key <= done) || !known.insert(key) {
                continue;
            }
            if let Ok(key) = DdtKey::from_words(&key) {
                self.add(&key, &value);
            }
        }
        Ok(())
    }

    async fn load_store(
        &mut self,
        mos: &Arc<ObjSet>,
        object: u64,
        layout: DdtLayout,
        known: &FixedSet<[u64; 5]>,
    ) -> Result<()> {
        let mut entries = Zap::open(mos, object).await?.entries();
        while let Some(entry) = entries.next().await? {
            let Some(words) = entry.key.words() else { continue };
            let key = DdtKey::from_words(words).map_err(mos::corrupt(object))?;
            if known.contains(&key.to_words()) {
                continue;
            }
            let value = DdtValue::decode(entry.value.as_bytes().unwrap_or(&[]))
                .map_err(mos::corrupt(object))?;
            let mut plain = vec![0; layout.phys_len()];
            let bytes = if value.is_zle {
                decompress(Compression::Zle, value.payload, &mut plain)
                    .map_err(|error| Error::corrupt(error).in_object(0, object))?;
                &plain[..]
            } else {
                value.payload
            };
            let phys = DdtPhys::decode(bytes, layout, value.order).map_err(mos::corrupt(object))?;
            self.add(&key, &phys);
        }
        Ok(())
    }

    fn add(&mut self, key: &DdtKey, phys: &DdtPhys) {
        for slot in phys.slots().iter().filter(|slot| slot.is_used()) {
            let mut dvas = slot.dvas(key);
            let Some(dva) = dvas.next() else { continue };
            if slot.refcount == 0 {
                self.unreferenced.extend(slot.to_block_ptr(key));
                continue;
            }
            let at = (dva.vdev, dva.offset);
            if matches!(phys, DdtPhys::Flat { .. }) && dvas.next().is_some() {
                self.extended.insert(at, *slot);
            }
            let (left, birth) = (slot.refcount, slot.birth);
            let counted = Counted { left, birth, is_found: false, table: Table::Dedup };
            self.dedup.insert(at, counted);
        }
    }

    /// Returns the pointer with all addresses of its dedup entry.
    pub(super) fn whole(&self, bp: &BlockPtr) -> BlockPtr {
        let dva = bp.dva(0).filter(|_| bp.is_dedup());
        let slot = dva.and_then(|dva| self.extended.get(&(dva.vdev, dva.offset)));
        slot.filter(|slot| slot.matches(bp)).map_or(*bp, |slot| slot.extend(bp))
    }

    /// Returns the blocks that are still allocated for entries without references.
    pub(super) fn unreferenced(&self) -> &[BlockPtr] {
        &self.unreferenced
    }

    pub(super) fn count_reference(&mut self, bp: &BlockPtr) -> Reference {
        let Some(Dva { vdev, offset, .. }) = bp.dva(0) else { return Reference::First };
        let at = (vdev, offset);
        let can_be_cloned = bp.level() == 0 && !bp.object_type().is_metadata();
        let by_dedup = if bp.is_dedup() {
            self.dedup.get_mut(&at).filter(|counted| counted.birth == bp.physical_birth())
        } else {
            None
        };
        let counted = match by_dedup {
            Some(counted) => Some(counted),
            None if can_be_cloned => self.clones.get_mut(&at),
            None => None,
        };
        let Some(counted) = counted.filter(|counted| counted.left > 0) else {
            return Reference::First;
        };
        counted.left -= 1;
        let is_again = std::mem::replace(&mut counted.is_found, true);
        if is_again { Reference::Again(counted.table) } else { Reference::First }
    }

    /// Returns the references that were not found.
    pub(super) fn leftovers(&self) -> Vec<Leftover> {
        let all = self.dedup.iter().chain(&self.clones);
        let mut leftovers: Vec<Leftover> = all
            .filter(|(_, counted)| counted.left > 0)
            .map(|((vdev, offset), counted)| {
                let (table, references) = (counted.table, counted.left);
                Leftover { table, vdev: *vdev, offset: *offset, references }
            })
            .collect();
        leftovers.sort_by_key(|leftover| (leftover.vdev, leftover.offset));
        leftovers
    }
}
