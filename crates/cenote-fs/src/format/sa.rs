//! System attributes of a new object: packing them, and registering their layout.
//!
//! Sources: spec 03 §8.

use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Tx, TxResult};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::sa::registry::{LAYOUTS, REGISTRY};
use cenote_ondisk::sa::{SA_MAGIC, ZplAttr, header_size};
use cenote_ondisk::zap::Value;
use cenote_ondisk::znode::Time;

use super::new_zap;

/// The smallest layout number on disk.
const FIRST_LAYOUT: u16 = 2;
/// Attributes that released software knows; newer software registers the later ones.
const KNOWN: usize = 22;

/// Attributes in stored order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Attributes(Vec<(ZplAttr, Vec<u8>)>);

impl Attributes {
    /// Adds an attribute with a single number.
    pub(super) fn number(&mut self, attr: ZplAttr, value: u64) {
        self.bytes(attr, &value.to_le_bytes());
    }

    /// Adds a time.
    pub(super) fn time(&mut self, attr: ZplAttr, time: Time) {
        let words = [time.seconds.to_le_bytes(), time.nanoseconds.to_le_bytes()];
        self.bytes(attr, words.as_flattened());
    }

    /// Adds any other attribute.
    pub(super) fn bytes(&mut self, attr: ZplAttr, bytes: &[u8]) {
        self.0.push((attr, bytes.to_vec()));
    }

    /// Changes an attribute with a single number.
    pub(super) fn set_number(&mut self, attr: ZplAttr, value: u64) {
        if let Some((_, bytes)) = self.0.iter_mut().find(|(there, _)| *there == attr) {
            *bytes = value.to_le_bytes().to_vec();
        }
    }

    /// Returns the numbers of the attributes in order.
    fn layout(&self) -> Vec<u16> {
        self.0.iter().map(|(attr, _)| attr.default_info().number).collect()
    }

    fn variable(&self) -> impl Iterator<Item = usize> {
        let is_variable = |attr: &ZplAttr| attr.default_info().len == 0;
        self.0.iter().filter(move |(attr, _)| is_variable(attr)).map(|(_, bytes)| bytes.len())
    }

    /// Returns the bytes of all attributes with their header.
    pub(super) fn bonus_len(&self) -> usize {
        let start = header_size(self.variable().count());
        self.0.iter().fold(start, |len, (_, bytes)| len.next_multiple_of(8) + bytes.len())
    }

    /// Returns the buffer.
    pub(super) fn encode(&self, layout: u16) -> Vec<u8> {
        let header = header_size(self.variable().count());
        let mut buffer = Vec::with_capacity(self.bonus_len());
        buffer.extend(SA_MAGIC.to_le_bytes());
        buffer.extend((layout | (header as u16 / 8) << 10).to_le_bytes());
        for len in self.variable() {
            buffer.extend((len as u16).to_le_bytes());
        }
        buffer.resize(header, 0);
        for (_, bytes) in &self.0 {
            buffer.resize(buffer.len().next_multiple_of(8), 0);
            buffer.extend(bytes);
        }
        buffer
    }
}

/// Creates the registry and the layouts of a new file system, with the first layout. Returns the
/// number of that layout.
pub(super) fn register(tx: &mut Tx<'_>, master: u64, first: &Attributes) -> TxResult<u16> {
    let registry = new_zap(tx, ObjectType::SA_ATTR_REGISTRATION)?;
    zap::insert(tx, master, REGISTRY, registry)?;
    for attr in ZplAttr::ALL.iter().take(KNOWN) {
        zap::insert(tx, registry, attr.name(), attr.default_info().encode())?;
    }
    let layouts = new_zap(tx, ObjectType::SA_ATTR_LAYOUTS)?;
    zap::insert(tx, master, LAYOUTS, layouts)?;
    let bytes = first.layout().into_iter().flat_map(u16::to_be_bytes).collect();
    let value = Value::Array { integer_size: 2, bytes };
    zap::insert(tx, layouts, &FIRST_LAYOUT.to_string(), value)?;
    Ok(FIRST_LAYOUT)
}
