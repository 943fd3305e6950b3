//! Payloads: expanded, and in the byte order of this pool (spec 07 B4).
//!
//! A sender of the other byte order sends blocks as its host sees them. Their type says how to swap
//! them; system attributes record their own order.

use std::borrow::Cow;

use cenote_block::{SentForm, charge_expand};
use cenote_codec::compress::{self, Compression};
use cenote_ondisk::byteswap;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::{Byteswap, ObjectType};
use cenote_ondisk::stream::{Object, object_type};
use cenote_rt::{Buf, Result};

use super::ReceiveError;

/// Coarse estimate of the time to expand a KiB.
const EXPAND_NS_PER_KIB: u64 = 500;

/// Returns the bonus of an object, without the padding of its payload.
pub(super) fn bonus<'a>(record: &Object, payload: &'a [u8], endian: Endian) -> Cow<'a, [u8]> {
    let bonus = payload.get(..record.bonus_len as usize).unwrap_or(payload);
    let class = object_type(record.bonus_kind).unwrap_or(ObjectType::NONE).byteswap();
    if endian == Endian::Little || matches!(class, Byteswap::Dnode | Byteswap::ObjSet) {
        return Cow::Borrowed(bonus);
    }
    let mut bonus = bonus.to_vec();
    byteswap::content(&mut bonus, class);
    Cow::Owned(bonus)
}

/// Returns a block of an object of this type, with zeros up to `len`.
pub(super) fn block(mut payload: Vec<u8>, len: usize, kind: ObjectType, endian: Endian) -> Buf {
    payload.resize(len.max(payload.len()), 0);
    if endian != Endian::Little {
        byteswap::content(&mut payload, kind.byteswap());
    }
    Buf::from(payload)
}

/// Expands a stored block to `len` bytes. Returns the form in which it was sent with them.
pub(super) async fn expand(
    (object, offset): (u64, u64),
    stored: Vec<u8>,
    compression: u8,
    len: usize,
) -> Result<(Vec<u8>, SentForm)> {
    let function = Compression::from_id(compression)
        .ok_or(ReceiveError::Compression { object, compression })?;
    let estimate = (len as u64).div_ceil(1024) * EXPAND_NS_PER_KIB;
    let expanded = cenote_rt::cpu(estimate, move || {
        charge_expand(function, len);
        let mut block = vec![0; len];
        compress::decompress(function, &stored, &mut block)?;
        let bytes = Buf::from(stored);
        Ok((block, SentForm { bytes, compression: function, is_embedded: false, seal: None }))
    });
    let expanded = expanded.await?;
    expanded.map_err(|source| ReceiveError::Decompress { object, offset, source }.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_a_foreign_sender_are_swapped_by_their_type() {
        let payload = [1, 2, 3, 4, 5, 6, 7, 8];
        let words = block(payload.to_vec(), 16, ObjectType::SA_MASTER_NODE, Endian::Little);
        assert_eq!(words[..8], payload);
        assert_eq!(words.len(), 16);
        let file = block(payload.to_vec(), 8, ObjectType::PLAIN_FILE_CONTENTS, Endian::Big);
        assert_eq!(file[..], payload);
        let words = block(payload.to_vec(), 8, ObjectType::OBJECT_ARRAY, Endian::Big);
        assert_eq!(words[..], [8, 7, 6, 5, 4, 3, 2, 1]);
    }
}
