//! Intent log blocks: allocated before their contents exist, written once, with a trailer.
//!
//!     alloc_log --> pointer, into the block before it --> ... --> write_log
//!
//! The checksum words of a log block's pointer identify it in its chain and are chosen by the log;
//! the checksum itself is stored in the block. So the pointer is complete when the space is
//! allocated. A log block has one address; it is never a gang block, compressed or cached.
//!
//! Durability: `write_log` returns when the devices have the block; it is durable, and may be
//! acknowledged, only after they were flushed. Every earlier block of the chain must be durable too
//! (spec 07 A9).
//!
//! Invariants
//! * H1  A log block has one address, and is not a gang block.
//!
//! Sources: spec 07 A3, A4, A10; spec 02 §3.4.

use std::sync::Arc;

use cenote_codec::checksum::ChecksumAlgorithm;
use cenote_codec::checksum::embedded::{self, Embedded};
use cenote_codec::crypto::{BlockKind, ByteOrder};
use cenote_ondisk::blkptr::{BLOCK_SIZE_MAX, BlockPtr, NewBlock, NewProtection};
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zil::{LogBlock, ZIL_CHAIN_LEN};
use cenote_rt::{Buf, BufMut, Error, Kind, Result, ensure};
use cenote_vdev::IoClass;

use crate::alloc::{Class, Request};
use crate::costs::charge_cipher;
use crate::error::{BlockError, WriteError};
use crate::expand::decrypt;
use crate::grounds::Grounds;
use crate::store::BlockStore;
use crate::write::{SealKeys, no_keys};

/// Alignment of the size of log blocks, and of the part of them that is written.
pub const LOG_BLOCK_ALIGN: u64 = 4096;

impl BlockStore {
    /// Allocates a log block of `size` bytes in the open txg `txg`; `identity` are the words that
    /// identify it: two of the chain, the object set, the sequence number. The block of an
    /// encrypted object set needs its `keys`: salt and IV are chosen here.
    ///
    /// # Errors
    /// `Kind::NoSpace`: the caller falls back to waiting for the txg. `Kind::Invalid` if `size` is
    /// not a multiple of 4096.
    pub async fn alloc_log(
        &self,
        size: u64,
        txg: u64,
        identity: [u64; 4],
        keys: Option<&SealKeys>,
    ) -> Result<BlockPtr> {
        if size == 0 || size > BLOCK_SIZE_MAX || !size.is_multiple_of(LOG_BLOCK_ALIGN) {
            return Err(Error::new(Kind::Invalid, WriteError::Size { size }));
        }
        let [.., objset, _sequence] = identity;
        let request = Request { class: Class::Log, stream: objset, ..Request::data(size, txg) };
        // `is_gang_part` exempts it from `metaslab_force_ganging`: a log block is never a gang
        // block.
        let request = Request { is_gang_part: true, ..request };
        let protection = match keys.map(SealKeys::fresh).transpose()? {
            Some((salt, iv)) => NewProtection::Log { salt, iv },
            None => NewProtection::None,
        };
        let dvas = self.space()?.allocate(&request).await?;
        let is_one = dvas.len() == 1 && dvas.iter().all(|dva| !dva.gang);
        ensure!("H1", is_one, "a log block at {dvas:?}");
        let new = NewBlock {
            lsize: size,
            psize: size,
            object_type: ObjectType::INTENT_LOG,
            level: 0,
            compression: CompressionType::Off.id(),
            checksum_type: ChecksumAlgorithm::Zilog2.id(),
            checksum: identity,
            protection,
            dvas: &dvas,
            birth: txg,
            fill: 0,
        };
        let cause = WriteError::Unrepresentable;
        // Checks W5.
        new.to_block_ptr().ok_or_else(|| Error::new(Kind::Invariant, cause))
    }

    /// Writes `block`, complete except for magic and checksum, at the address of `bp`; encrypted
    /// with `keys` if the pointer says so. To be called once: no other contents may be encrypted
    /// with the pointer's IV.
    ///
    /// Only the used part is written, if the vdev allows that; readers ignore the bytes behind it.
    ///
    /// # Errors
    /// `Kind::Io` if it cannot be read back; `Kind::Invalid` if pointer and block do not match.
    pub async fn write_log(
        &self,
        bp: &BlockPtr,
        mut block: BufMut,
        keys: Option<&SealKeys>,
    ) -> Result<()> {
        let (found, expected) = (block.len(), bp.psize());
        if bp.checksum_id() != ChecksumAlgorithm::Zilog2.id() || found as u64 != expected {
            return Err(Error::new(Kind::Invalid, BlockError::Length { found, expected }));
        }
        let dva = bp.dva(0).ok_or_else(|| Error::new(Kind::Invalid, BlockError::NoDva))?;
        // As long as the records are: encryption does not change it.
        let used = used_part(&block);
        let is_folded = bp.is_protected();
        if is_folded {
            let keys = keys.ok_or_else(no_keys)?.keys();
            charge_cipher(keys.suite(), used);
            let kind = BlockKind::IntentLog(ByteOrder::Little);
            keys.encrypt_block(kind, bp.salt(), &bp.iv(), &mut block)
                .map_err(|error| Error::new(Kind::Invalid, WriteError::Sealing(error)))?;
        }
        embedded::seal(Embedded::Zilog2 { pointer: bp.checksum() }, &mut block, is_folded)
            .map_err(|error| Error::new(Kind::Invalid, error))?;
        let top = self.tree().top(u64::from(dva.vdev));
        let has_parity = top.is_none_or(|top| top.nparity() > 0);
        let block = block.freeze();
        // Parity covers the whole block, which readers request.
        let data = if has_parity { block } else { block.slice(0..used).unwrap_or(block) };
        let bytes = data.len() as u64;
        self.tree().write(dva, data, bp.birth(), IoClass::SyncWrite).await?;
        self.note_written(bytes);
        Ok(())
    }

    /// Reads the log block at `bp`: verified, the whole block; decrypted if `keys` are given.
    /// Without them only what claiming the log needs can be read of an encrypted block.
    ///
    /// # Errors
    /// `Kind::Checksum` at the end of a chain, which is normal.
    pub async fn read_log(&self, bp: &BlockPtr, keys: Option<&SealKeys>) -> Result<Buf> {
        let stored = self.read_raw(bp, &Grounds::Speculative).await?;
        match keys {
            Some(keys) => decrypt(*bp, stored, Some(Arc::clone(keys.keys()))).await,
            None => Ok(stored),
        }
    }
}

/// Number of bytes of a log block that must be written.
fn used_part(block: &[u8]) -> usize {
    let used = LogBlock::used_of_slim(block).unwrap_or(0);
    let used = used.clamp(ZIL_CHAIN_LEN as u64, block.len() as u64);
    used.next_multiple_of(LOG_BLOCK_ALIGN) as usize
}
