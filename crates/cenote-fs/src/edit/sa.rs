//! System attributes of an object in modifiable form: decoded from bonus and spill block, and
//! encoded into them again.
//!
//! ```text
//!   bonus ─┐                                   ┌─ fits: bonus alone
//!          ├─> Attrs: slots in stored order ──> ┤
//!   spill ─┘   over one run of bytes           └─ else: longest prefix in the bonus, rest in spill
//! ```
//!
//! A value that keeps its size keeps its place; a value of another size is packed anew at the same
//! position in the order; new attributes are appended. Only the project id has a fixed place,
//! because the space accounting reads it there (spec 03 §8.5). Unknown attributes are kept in their
//! places. Buffers of the other byte order are swapped as a whole when they are loaded.
//!
//! The layout of each buffer is looked up among those of the file system and registered if it is
//! missing; so are the names of attributes, all at once, before the first that needs one (spec 03
//! §8.2, §8.3). Both belong to the transaction: [`Schema`] is the transaction's copy, and replaces
//! the shared one when it succeeds.
//!
//! Sources: spec 03 §8.

use std::sync::Arc;

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::acl::{Ace, Acl};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::registry::{LAYOUTS, REGISTRY};
use cenote_ondisk::sa::{
    AttrInfo, CorruptSa, Registry, SA_MAGIC, SaBuffer, Swap, ZplAttr, header_size,
};
use cenote_ondisk::zap::Value;
use cenote_ondisk::znode::{FileAttributes, Fuid, Time};
use cenote_rt::{Error, Kind};

use crate::error::FsError;

/// The smallest layout number on disk.
const FIRST_LAYOUT: u64 = 2;
/// The largest layout number that a header can contain.
const LAST_LAYOUT: u64 = 1023;
/// Attributes that released software knows; later attributes are registered on first use.
const KNOWN: usize = 22;
/// Bytes of the bonus that a pointer to a spill block takes.
const SPILL_POINTER: usize = 128;
/// Sizes of spill blocks are multiples of this.
const SPILL_STEP: usize = 512;
/// Largest spill block.
const SPILL_MAX: usize = 128 << 10;
/// The first attributes of every layout, in this order.
const FIRST: [ZplAttr; 12] = [
    ZplAttr::Mode,
    ZplAttr::Size,
    ZplAttr::Gen,
    ZplAttr::Uid,
    ZplAttr::Gid,
    ZplAttr::Parent,
    ZplAttr::Flags,
    ZplAttr::Atime,
    ZplAttr::Mtime,
    ZplAttr::Ctime,
    ZplAttr::Crtime,
    ZplAttr::Links,
];

/// Attributes and layouts of a file system, indexed both ways.
#[derive(Debug, Clone, Default)]
pub struct Schema {
    registry: Registry,
    /// Known attributes by number.
    known: Vec<Option<ZplAttr>>,
}

impl Schema {
    /// Returns the schema of a registry.
    #[must_use]
    pub fn new(registry: Registry) -> Self {
        let mut schema = Self { registry, known: Vec::new() };
        schema.index();
        schema
    }

    /// Returns names, numbers and layouts.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    fn index(&mut self) {
        self.known.clear();
        for attr in ZplAttr::ALL {
            let Some(number) = self.registry.number(*attr) else { continue };
            let at = usize::from(number);
            if self.known.len() <= at {
                self.known.resize(at + 1, None);
            }
            if let Some(slot) = self.known.get_mut(at) {
                *slot = Some(*attr);
            }
        }
    }

    fn id_of(&self, number: u16) -> AttrId {
        let known = self.known.get(usize::from(number)).copied().flatten();
        known.map_or(AttrId::Foreign(number), AttrId::Known)
    }

    /// Returns the number of an attribute; if it has none, registers all missing names.
    fn number_of(&mut self, tx: &mut Tx<'_>, master: u64, id: AttrId) -> TxResult<u16> {
        let attr = match id {
            AttrId::Foreign(number) => return Ok(number),
            AttrId::Known(attr) => attr,
        };
        if let Some(number) = self.registry.number(attr) {
            return Ok(number);
        }
        let object = match zap::lookup_u64(tx, master, REGISTRY)? {
            Some(object) => object,
            None => new_table(tx, master, REGISTRY, ObjectType::SA_ATTR_REGISTRATION)?,
        };
        let newest = ZplAttr::ALL.iter().position(|other| *other == attr).unwrap_or(0);
        let mut next = zap::len(tx, object)?;
        for missing in ZplAttr::ALL.iter().take(KNOWN.max(newest + 1)) {
            if zap::contains(tx, object, missing.name())? {
                continue;
            }
            let info = AttrInfo { number: next as u16, ..missing.default_info() };
            zap::insert(tx, object, missing.name(), info.encode())?;
            self.registry.add_attr(missing.name().as_bytes(), info.encode());
            next += 1;
        }
        self.index();
        self.registry.number(attr).ok_or_else(|| fail(FsError::MissingEntry { name: attr.name() }))
    }

    /// Returns the number of the layout with those attributes in that order; registers it if
    /// missing.
    fn layout_of(&mut self, tx: &mut Tx<'_>, master: u64, ids: &[AttrId]) -> TxResult<u16> {
        let mut numbers = Vec::with_capacity(ids.len());
        for id in ids {
            numbers.push(self.number_of(tx, master, *id)?);
        }
        if let Some((number, _)) = self.registry.layouts().find(|(_, layout)| *layout == numbers) {
            return Ok(number);
        }
        let object = match zap::lookup_u64(tx, master, LAYOUTS)? {
            Some(object) => object,
            None => new_table(tx, master, LAYOUTS, ObjectType::SA_ATTR_LAYOUTS)?,
        };
        let number = FIRST_LAYOUT + zap::len(tx, object)?;
        if number > LAST_LAYOUT {
            return Err(Error::new(Kind::Limit, FsError::LayoutCount).into());
        }
        let bytes = numbers.iter().copied().flat_map(u16::to_be_bytes).collect();
        let value = Value::Array { integer_size: 2, bytes };
        zap::insert(tx, object, &number.to_string(), value)?;
        let words: Vec<u64> = numbers.iter().copied().map(u64::from).collect();
        self.registry.add_layout(number.to_string().as_bytes(), &words);
        Ok(number as u16)
    }
}

fn new_table(tx: &mut Tx<'_>, master: u64, key: &str, kind: ObjectType) -> TxResult<u64> {
    let spec = cenote_dmu::live::ObjectSpec::new(kind, 0);
    let object = zap::create(tx, &spec, zap::ZapOptions::default())?;
    zap::insert(tx, master, key, object)?;
    Ok(object)
}

/// An attribute, by its role if it is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AttrId {
    Known(ZplAttr),
    /// By its number in this file system.
    Foreign(u16),
}

#[derive(Debug, Clone, Copy)]
struct Slot {
    id: AttrId,
    is_variable: bool,
    start: usize,
    len: usize,
}

/// The attributes of an object.
#[derive(Debug, Clone, Default)]
pub struct Attrs {
    /// In stored order.
    slots: Vec<Slot>,
    data: Vec<u8>,
}

impl Attrs {
    /// Decodes the attributes in the buffers of an object.
    ///
    /// # Errors
    /// The reason why a buffer is unreadable.
    pub fn decode(bonus: &[u8], spill: Option<&[u8]>, schema: &Schema) -> Result<Self, CorruptSa> {
        let mut attrs = Self {
            slots: Vec::with_capacity(18),
            data: Vec::with_capacity(bonus.len() + spill.map_or(0, <[u8]>::len)),
        };
        attrs.append(bonus, schema)?;
        if let Some(spill) = spill {
            attrs.append(spill, schema)?;
        }
        Ok(attrs)
    }

    fn append(&mut self, buffer: &[u8], schema: &Schema) -> Result<(), CorruptSa> {
        for attr in SaBuffer::decode(buffer, &schema.registry)?.attrs {
            let id = schema.id_of(attr.number);
            let info = schema.registry.attr(attr.number);
            let start = self.data.len();
            if attr.order == Endian::Little {
                self.data.extend_from_slice(attr.bytes);
            } else {
                let swap = info.map_or(Swap::Bytes, |info| info.swap);
                let count = self.word(ZplAttr::DaclCount).unwrap_or(0);
                self.data.extend(swapped(attr.bytes, swap, count));
            }
            let len = self.data.len() - start;
            let is_variable = info.is_none_or(|info| info.len == 0);
            self.slots.push(Slot { id, is_variable, start, len });
        }
        Ok(())
    }

    fn find(&self, attr: ZplAttr) -> Option<&Slot> {
        self.slots.iter().find(|slot| slot.id == AttrId::Known(attr))
    }

    fn slice(&self, slot: &Slot) -> &[u8] {
        self.data.get(slot.start..slot.start + slot.len).unwrap_or(&[])
    }

    /// Returns the bytes of an attribute, little-endian.
    #[must_use]
    pub fn bytes(&self, attr: ZplAttr) -> Option<&[u8]> {
        self.find(attr).map(|slot| self.slice(slot))
    }

    /// Returns the first number of an attribute.
    #[must_use]
    pub fn word(&self, attr: ZplAttr) -> Option<u64> {
        self.bytes(attr)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
    }

    /// Returns an attribute that is a time.
    #[must_use]
    pub fn time(&self, attr: ZplAttr) -> Option<Time> {
        let bytes = self.bytes(attr)?;
        let seconds = i64::from_le_bytes(*bytes.first_chunk()?);
        let nanoseconds = u64::from_le_bytes(*bytes.get(8..)?.first_chunk()?);
        Some(Time { seconds, nanoseconds })
    }

    /// Sets an attribute to one number.
    pub fn set_word(&mut self, attr: ZplAttr, value: u64) {
        self.set_bytes(attr, &value.to_le_bytes());
    }

    /// Sets an attribute to a time.
    pub fn set_time(&mut self, attr: ZplAttr, time: Time) {
        let words = [time.seconds.to_le_bytes(), time.nanoseconds.to_le_bytes()];
        self.set_bytes(attr, words.as_flattened());
    }

    /// Sets an attribute to a value, in its place or else at the end.
    pub fn set_bytes(&mut self, attr: ZplAttr, bytes: &[u8]) {
        let at = self.slots.iter().position(|slot| slot.id == AttrId::Known(attr));
        if let Some(slot) = at.and_then(|at| self.slots.get(at)).copied()
            && slot.len == bytes.len()
        {
            if let Some(target) = self.data.get_mut(slot.start..slot.start + slot.len) {
                target.copy_from_slice(bytes);
            }
            return;
        }
        let is_variable = attr.default_info().len == 0;
        let start = self.data.len();
        let slot = Slot { id: AttrId::Known(attr), is_variable, start, len: bytes.len() };
        self.data.extend_from_slice(bytes);
        if let Some(there) = at.and_then(|at| self.slots.get_mut(at)) {
            *there = slot;
        } else {
            let place = if attr == ZplAttr::Projid { FIRST.len() } else { usize::MAX };
            self.slots.insert(place.min(self.slots.len()), slot);
        }
    }

    /// Removes an attribute.
    pub fn remove(&mut self, attr: ZplAttr) {
        self.slots.retain(|slot| slot.id != AttrId::Known(attr));
    }

    /// Returns the bytes of the first `count` attributes with their header.
    fn packed_len(slots: &[Slot]) -> usize {
        let variable = slots.iter().filter(|slot| slot.is_variable).count();
        let start = header_size(variable);
        slots.iter().fold(start, |len, slot| len.next_multiple_of(8) + slot.len)
    }

    fn encode(&self, slots: &[Slot], layout: u16) -> Vec<u8> {
        let variable = slots.iter().filter(|slot| slot.is_variable);
        let header = header_size(variable.clone().count());
        let mut buffer = Vec::with_capacity(Self::packed_len(slots));
        buffer.extend(SA_MAGIC.to_le_bytes());
        buffer.extend((layout | (header as u16 / 8) << 10).to_le_bytes());
        for slot in variable {
            buffer.extend((slot.len as u16).to_le_bytes());
        }
        buffer.resize(header, 0);
        for slot in slots {
            buffer.resize(buffer.len().next_multiple_of(8), 0);
            buffer.extend_from_slice(self.slice(slot));
        }
        buffer
    }

    /// Returns how many attributes stay in a bonus of `capacity` bytes without a spill block.
    fn split(&self, capacity: usize) -> usize {
        if Self::packed_len(&self.slots) <= capacity {
            return self.slots.len();
        }
        let room = capacity.saturating_sub(SPILL_POINTER);
        let fits = |count: &usize| {
            self.slots.get(..*count).is_some_and(|slots| Self::packed_len(slots) <= room)
        };
        (0..self.slots.len()).rev().find(fits).unwrap_or(0)
    }

    /// Returns the attributes of a file.
    ///
    /// # Errors
    /// An error if a mandatory one is missing.
    pub fn attributes(&self) -> Result<FileAttributes, CorruptSa> {
        let word = |attr: ZplAttr| self.word(attr).ok_or(CorruptSa::Missing { name: attr.name() });
        let time = |attr: ZplAttr| self.time(attr).ok_or(CorruptSa::Missing { name: attr.name() });
        let copy = |attr| self.bytes(attr).map(<[u8]>::to_vec);
        let count = self.word(ZplAttr::DaclCount).unwrap_or(0);
        let aces = self.bytes(ZplAttr::DaclAces).unwrap_or(&[]);
        Ok(FileAttributes {
            mode: word(ZplAttr::Mode)?,
            size: word(ZplAttr::Size)?,
            gen_: word(ZplAttr::Gen)?,
            uid: Fuid(word(ZplAttr::Uid)?),
            gid: Fuid(word(ZplAttr::Gid)?),
            parent: word(ZplAttr::Parent)?,
            flags: word(ZplAttr::Flags)?,
            atime: time(ZplAttr::Atime)?,
            mtime: time(ZplAttr::Mtime)?,
            ctime: time(ZplAttr::Ctime)?,
            crtime: time(ZplAttr::Crtime)?,
            links: word(ZplAttr::Links)?,
            rdev: self.word(ZplAttr::Rdev),
            projid: self.word(ZplAttr::Projid),
            xattr_obj: self.word(ZplAttr::Xattr).unwrap_or(0),
            dxattr: copy(ZplAttr::Dxattr),
            symlink: copy(ZplAttr::Symlink),
            acl: Acl::decode(aces, count, Endian::Little),
            znode_acl: None,
            scanstamp: self.bytes(ZplAttr::Scanstamp).and_then(|b| b.first_chunk()).copied(),
            seq: self.word(ZplAttr::Seq),
        })
    }

    /// Returns the bonus length that holds all attributes.
    #[must_use]
    pub fn bonus_len(&self) -> usize {
        Self::packed_len(&self.slots)
    }

    /// Packs the attributes into bonus and spill block of an object, whose bonus type is that of
    /// system attributes.
    ///
    /// # Errors
    /// `Kind::Limit` with [`FsError::AttributesTooLong`] if they do not fit; errors of the
    /// transaction.
    pub fn store(
        &self,
        tx: &mut Tx<'_>,
        schema: &mut Arc<Schema>,
        master: u64,
        object: u64,
    ) -> TxResult<()> {
        let dnode = tx.dnode(object)?;
        let has_spill = dnode.spill.is_some();
        let capacity = dnode.bonus_area.len() + if has_spill { SPILL_POINTER } else { 0 };
        let (kept, spilled) = self.slots.split_at(self.split(capacity));
        if spilled.iter().chain(kept).any(|slot| slot.len > usize::from(u16::MAX)) {
            return Err(too_long(self.data.len()));
        }
        let layout = layout(tx, schema, master, kept)?;
        let mut bonus = self.encode(kept, layout);
        if spilled.is_empty() {
            if has_spill {
                tx.set_spill(object, None)?;
            } else if dnode.bonus() == bonus {
                return Ok(());
            }
            // The shared dnode must be dropped before it is changed, or it would be copied.
            drop(dnode);
            return tx.set_bonus(object, &bonus);
        }
        let layout = self::layout(tx, schema, master, spilled)?;
        let mut spill = self.encode(spilled, layout);
        let before = tx.spill(object)?;
        let len = spill.len().next_multiple_of(SPILL_STEP);
        let len = len.max(before.as_ref().map_or(0, |before| before.len()));
        if len > SPILL_MAX {
            return Err(too_long(self.data.len()));
        }
        spill.resize(len, 0);
        bonus.resize(capacity - SPILL_POINTER, 0);
        tx.set_bonus(object, &bonus)?;
        if before.is_none_or(|before| *before != spill[..]) {
            tx.set_spill(object, Some(&spill))?;
        }
        Ok(())
    }

    /// For a new object: whether the attributes that the space accounting reads are in their
    /// places.
    #[must_use]
    pub fn is_canonical(&self) -> bool {
        let first = self.slots.iter().map(|slot| slot.id).take(FIRST.len());
        first.eq(FIRST.iter().map(|attr| AttrId::Known(*attr)))
    }
}

fn layout(tx: &mut Tx<'_>, schema: &mut Arc<Schema>, master: u64, slots: &[Slot]) -> TxResult<u16> {
    let is_same = |layout: &[u16]| {
        layout.len() == slots.len()
            && layout.iter().zip(slots).all(|(number, slot)| schema.id_of(*number) == slot.id)
    };
    if let Some((number, _)) = schema.registry.layouts().find(|(_, layout)| is_same(layout)) {
        return Ok(number);
    }
    let ids: Vec<AttrId> = slots.iter().map(|slot| slot.id).collect();
    Arc::make_mut(schema).layout_of(tx, master, &ids)
}

/// Returns bytes of the other byte order in native order.
fn swapped(bytes: &[u8], swap: Swap, ace_count: u64) -> Vec<u8> {
    let by = |width: usize| bytes.chunks(width).flat_map(|word| word.iter().rev()).copied();
    match swap {
        Swap::U64 => by(8).collect(),
        Swap::U32 => by(4).collect(),
        Swap::U16 => by(2).collect(),
        Swap::Bytes | Swap::Unknown(_) => bytes.to_vec(),
        Swap::Acl => {
            let acl = Acl::decode(bytes, ace_count, Endian::Big);
            acl.entries.iter().flat_map(Ace::encode).collect()
        }
    }
}

fn too_long(len: usize) -> cenote_dmu::TxStop {
    Error::new(Kind::Limit, FsError::AttributesTooLong { len }).into()
}

fn fail(cause: FsError) -> cenote_dmu::TxStop {
    Error::corrupt(cause).into()
}

#[cfg(test)]
mod tests;
