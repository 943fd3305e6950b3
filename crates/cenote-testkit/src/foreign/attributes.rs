//! Byte-swapping system attributes, by the layouts that the file system registered (spec 03 §8).
//!
//! A big-endian host would have written these buffers in its order, which their magic shows; a
//! reader has to swap them attribute by attribute.

use std::collections::BTreeMap;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::zap::{Entry, Value};

use super::source::Source;
use super::swap;

const MAGIC: u64 = 0x002f_505a;

/// Attributes and layouts of one file system.
#[derive(Debug, Default, Clone)]
pub(super) struct Layouts {
    /// Swap class and length by number.
    attributes: BTreeMap<u16, (u8, u16)>,
    layouts: BTreeMap<u16, Vec<u16>>,
}

impl Layouts {
    /// The layouts of the object set behind `objset`; none if it has no system attributes.
    pub(super) fn load(source: &Source, objset: &BlockPtr) -> Self {
        Self::try_load(source, objset).unwrap_or_default()
    }

    fn try_load(source: &Source, objset: &BlockPtr) -> Option<Self> {
        let named = |object: u64, name: &str| {
            let dnode = source.dnode(objset, object)?;
            source.zap_value(&dnode, name.as_bytes())?.value.first()
        };
        let master = named(1, "SA_ATTRS")?;
        let entries = |name| {
            let object = named(master, name)?;
            Some(source.zap(&source.dnode(objset, object)?))
        };
        let attributes = entries("REGISTRY")?.into_iter().map(|entry| {
            let value = entry.value.first().expect("a registered attribute");
            (value as u16, ((value >> 16) as u8, (value >> 24) as u16))
        });
        let attributes = attributes.collect();
        let layouts = entries("LAYOUTS").unwrap_or_default();
        Some(Self { attributes, layouts: layouts.iter().map(layout).collect() })
    }

    /// Swaps a buffer; one that was never written stays as it is.
    pub(super) fn swap(&self, buffer: &mut [u8]) {
        if buffer.len() < 8 || swap::number(&buffer[..4]) != MAGIC {
            return;
        }
        let word = swap::number(&buffer[4..6]);
        let header_len = (word >> 10) as usize * 8;
        let mut lengths = buffer[6..header_len]
            .chunks_exact(2)
            .map(|length| swap::number(length) as usize)
            .collect::<Vec<_>>()
            .into_iter();
        buffer[..4].reverse();
        swap::units(&mut buffer[4..header_len], 2);
        let number = (word & 0x3ff) as u16;
        let empty = Vec::new();
        let layout = if number < 2 { &empty } else { &self.layouts[&number] };
        let mut at = header_len;
        for attribute in layout {
            let (class, len) = self.attributes[attribute];
            let len = if len == 0 { lengths.next().expect("a length") } else { usize::from(len) };
            let bytes = &mut buffer[at..at + len];
            match class {
                0 => swap::units(bytes, 8),
                1 => swap::units(bytes, 4),
                2 => swap::units(bytes, 2),
                4 => swap::acl(bytes),
                _ => {}
            }
            at = (at + len).next_multiple_of(8);
        }
    }
}

fn layout(entry: &Entry) -> (u16, Vec<u16>) {
    let name = entry.key.name().and_then(|name| str::from_utf8(name).ok());
    let number = name.and_then(|name| name.parse().ok()).expect("a layout's number");
    let Value::Array { integer_size: 2, bytes } = &entry.value else {
        panic!("layout {number} is no array of u16")
    };
    let attributes = bytes.as_chunks::<2>().0.iter().map(|bytes| u16::from_be_bytes(*bytes));
    (number, attributes.collect())
}
