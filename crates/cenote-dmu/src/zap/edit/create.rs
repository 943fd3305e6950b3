//! Creates ZAPs (spec 03 §1, §2, §3).

use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::zap::fat::{BLOCK_SHIFT_MAX, BLOCK_SHIFT_MIN};
use cenote_ondisk::zap::{FatHeader, NormFlags, ZapFlags, ZapHash, leaf_edit, micro_edit};
use cenote_rt::Kind;

use crate::live::{ObjectSpec, TxResult};
use crate::objects::{Objects, fail};
use crate::zap::ZapError;

/// Options of a new ZAP.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZapOptions {
    /// Normalization of names before they are hashed.
    pub normflags: NormFlags,
    /// Kind of keys; any flag makes the ZAP fat from the start.
    pub flags: ZapFlags,
    /// Salt of the hash, which decides the order of entries; 0: derived from the object's number.
    pub salt: u64,
}

/// Creates an object with an empty ZAP; its block size is that of a micro ZAP or, with flags, of
/// the fat ZAP's blocks.
pub fn create(tx: &mut dyn Objects, spec: &ObjectSpec, options: ZapOptions) -> TxResult<u64> {
    let object = tx.allocate(spec)?;
    format(tx, object, options)?;
    Ok(object)
}

/// Creates an empty ZAP in an object that has a ZAP's type and no data.
pub fn format(tx: &mut dyn Objects, object: u64, options: ZapOptions) -> TxResult<()> {
    let dnode = tx.dnode(object)?;
    if !dnode.object_type.is_zap() {
        let cause = ZapError::NotAZap { object_type: dnode.object_type.0 };
        return fail(Kind::Invalid, object, cause);
    }
    let ZapOptions { normflags, flags, salt } = options;
    let salt = if salt == 0 { salt_of(object) } else { salt };
    if flags.is_empty() {
        let size = dnode.data_block_size() as usize;
        return tx.write_block(object, 0, micro_edit::format(size, salt, normflags).into());
    }
    let block_shift = fat_shift(object, &dnode)?;
    let header = FatHeader::fresh(block_shift, ZapHash { salt, normflags, flags });
    let leaf = leaf_edit::format(block_shift, 0, 0, !normflags.is_empty());
    tx.write_block(object, 0, header.fresh_block().into())?;
    tx.write_block(object, 1, leaf.into())
}

fn fat_shift(object: u64, dnode: &DnodePhys) -> TxResult<u32> {
    let size = dnode.data_block_size();
    let shift = size.checked_ilog2().unwrap_or(0);
    if size.is_power_of_two() && (BLOCK_SHIFT_MIN..=BLOCK_SHIFT_MAX).contains(&shift) {
        return Ok(shift);
    }
    fail(Kind::Invalid, object, ZapError::BlockSize { size })
}

/// A salt that is never 0, and differs strongly between similar numbers.
fn salt_of(object: u64) -> u64 {
    object.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29) | 1
}
