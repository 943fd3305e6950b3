//! Expands stored bytes to the block: decrypts, authenticates, decompresses, swaps byte order.
//!
//!     stored  --AEAD or HMAC-->  plain  --decompress-->  lsize bytes  --byteswap-->  little-endian
//!                                                        (indirect: MAC of MACs, object set: MACs)
//!
//! All of it is CPU work on one block. Short work runs in the calling task; long work runs on the
//! pool of blocking threads. The estimate comes from measurements and is deliberately coarse.
//!
//! Without keys, only blocks of encrypted types are refused. Dnode blocks are returned with their
//! protected bonus areas still encrypted, so that the tree can be walked; indirect blocks are
//! always authenticated, because that needs no key (spec 08 §7, §10).

use std::sync::Arc;

use cenote_codec::compress::{self, Compression};
use cenote_codec::crypto::{
    BlockKeys, BlockKind, ByteOrder, CryptError, Seal, intent_log_mac, verify_indirect,
};
use cenote_ondisk::blkptr::{BlockPtr, Protection};
use cenote_ondisk::byteswap;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, BufMut, Error, Kind, Result, tunables};

use crate::costs::{charge_cipher, charge_expand};
use crate::error::BlockError;

/// Expands the stored bytes of `bp`.
pub(crate) async fn expand(bp: BlockPtr, stored: Buf, keys: Option<Arc<BlockKeys>>) -> Result<Buf> {
    let estimate = estimate_ns(&bp, keys.is_some());
    cenote_rt::cpu(estimate, move || expand_now(&bp, stored, keys.as_deref())).await?
}

/// Decrypts and authenticates the stored bytes of `bp`, and leaves them compressed.
pub(crate) async fn decrypt(
    bp: BlockPtr,
    stored: Buf,
    keys: Option<Arc<BlockKeys>>,
) -> Result<Buf> {
    if bp.protection() == Protection::Unencrypted {
        return Ok(stored);
    }
    let estimate = estimate_ns(&bp, keys.is_some());
    cenote_rt::cpu(estimate, move || unprotect(&bp, stored, keys.as_deref())).await?
}

/// Estimates the time of the work, from measurements of a core that decodes LZ4 at 2 GB/s.
fn estimate_ns(bp: &BlockPtr, has_keys: bool) -> u64 {
    let per_kib = match bp.compression() {
        Some(CompressionType::Off) | None => 0,
        Some(CompressionType::Lz4 | CompressionType::Zle) => 500,
        Some(CompressionType::Zstd) => 1_200,
        Some(CompressionType::Lzjb) => 2_500,
        Some(_) => 3_500,
    };
    let cipher = if bp.is_encrypted() && has_keys { 1_000 } else { 0 };
    bp.lsize().div_ceil(1024) * per_kib + bp.psize().div_ceil(1024) * cipher
}

fn expand_now(bp: &BlockPtr, stored: Buf, keys: Option<&BlockKeys>) -> Result<Buf> {
    let plain = unprotect(bp, stored, keys)?;
    let block = decompress(bp, plain)?;
    if verifies() {
        authenticate(bp, &block, keys).map_err(refused)?;
    }
    Ok(to_little(bp, block))
}

/// The contents of an embedded block pointer.
pub(crate) fn expand_embedded(bp: &BlockPtr) -> Result<Buf> {
    bp.validate().map_err(Error::corrupt)?;
    let size = BlockError::Size { lsize: bp.lsize(), psize: bp.embedded_psize() };
    let payload = bp.embedded_payload().ok_or_else(|| Error::corrupt(size))?;
    let block = decompress(bp, Buf::from(payload.as_bytes().to_vec()))?;
    Ok(to_little(bp, block))
}

/// Whether authentication codes are verified; they are switched off together with checksums.
fn verifies() -> bool {
    tunables::VERIFY_CHECKSUMS.get() != 0
}

fn refused(cause: CryptError) -> Error {
    Error::new(Kind::Checksum, BlockError::Authentication(cause))
}

/// Decrypts level 0 of encrypted types, and checks the MAC of other level-0 blocks.
fn unprotect(bp: &BlockPtr, stored: Buf, keys: Option<&BlockKeys>) -> Result<Buf> {
    let object_type = bp.object_type();
    let is_sealed = match bp.protection() {
        Protection::Encrypted => true,
        Protection::Authenticated => object_type != ObjectType::OBJSET && verifies(),
        Protection::Unencrypted | Protection::IndirectMac => false,
    };
    let keys = match keys {
        Some(keys) if is_sealed => keys,
        None if bp.is_encrypted() && object_type != ObjectType::DNODE => {
            return Err(Error::new(Kind::KeyUnavailable, BlockError::NoKey));
        }
        _ => return Ok(stored),
    };
    let kind = BlockKind::of(object_type.0, order(bp));
    let mut seal = Seal::from_words(bp.words());
    if let (BlockKind::IntentLog(_), Some(mac)) = (kind, intent_log_mac(&stored)) {
        seal.mac = mac;
    }
    charge_cipher(keys.suite(), stored.len());
    let mut data = stored.into_mut();
    keys.decrypt_block(kind, &seal, &mut data).map_err(refused)?;
    Ok(data.freeze())
}

/// Checks the MACs that cover the decompressed block.
fn authenticate(bp: &BlockPtr, block: &[u8], keys: Option<&BlockKeys>) -> Result<(), CryptError> {
    match (bp.protection(), keys) {
        (Protection::IndirectMac, _) => verify_indirect(order(bp), block, &bp.mac()),
        (Protection::Authenticated, Some(keys)) if bp.object_type() == ObjectType::OBJSET => {
            keys.verify_objset(order(bp), block)
        }
        _ => Ok(()),
    }
}

fn order(bp: &BlockPtr) -> ByteOrder {
    match bp.endian() {
        Endian::Little => ByteOrder::Little,
        Endian::Big => ByteOrder::Big,
    }
}

/// Decompresses `stored` to `lsize` bytes.
fn decompress(bp: &BlockPtr, stored: Buf) -> Result<Buf> {
    let lsize = bp.lsize();
    let unknown = BlockError::Compression { compression: bp.compression_id() };
    let compression = Compression::from_id(bp.compression_id())
        .ok_or_else(|| Error::new(Kind::Unsupported, unknown))?;
    if compression == Compression::Off && stored.len() as u64 == lsize {
        return Ok(stored);
    }
    charge_expand(compression, lsize as usize);
    let mut block = BufMut::for_filling(lsize as usize);
    compress::decompress(compression, &stored, &mut block)
        .map_err(|cause| Error::corrupt(BlockError::Decompress { lsize, cause }))?;
    Ok(block.freeze())
}

/// Converts a block of foreign byte order to little-endian.
fn to_little(bp: &BlockPtr, block: Buf) -> Buf {
    if bp.endian() == Endian::Little {
        return block;
    }
    let mut block = block.into_mut();
    byteswap::block(&mut block, bp.object_type(), bp.level());
    block.freeze()
}
