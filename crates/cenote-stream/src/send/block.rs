//! From a block to its records (spec 07 B5.3).

use std::sync::Arc;

use cenote_block::StoredForm;
use cenote_dmu::{Dnode, SPILL_BLKID};
use cenote_ondisk::bits::Bits;
use cenote_ondisk::blkptr::{BlockPtr, SECTOR_SIZE, SMALL_BLOCK_MAX};
use cenote_ondisk::checksum_type::ChecksumType;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{
    CipherParams, Embedded, ObjectFlags, Record, Spill, StreamFeatures, Write, WriteFlags, WriteKey,
};
use cenote_rt::{Buf, BufMut, Result, tunables};

use super::Payload;

/// Number of the checksum function "off": the record has no checksum of the block.
const NO_CHECKSUM: u8 = 2;
/// Fills blocks that cannot be read, with `zfs_send_corrupt_data`.
const CORRUPT_PATTERN: u64 = 0x2f5_badd_b10c;
/// First compression that needs a feature of the stream.
const FIRST_WITH_FEATURE: u8 = 15;

const KEY_LSIZE: Bits<0, 16> = Bits;
const KEY_PSIZE: Bits<16, 16> = Bits;
const KEY_COMPRESSION: Bits<32, 7> = Bits;
const KEY_IS_ENCRYPTED: u64 = 1 << 39;

/// A record with its payload.
pub(super) type Sent = (Record, Payload);

/// The form in which a stream has its blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) features: StreamFeatures,
    pub(super) to_guid: u64,
    pub(super) from_txg: u64,
}

impl Form {
    fn has(&self, feature: StreamFeatures) -> bool {
        self.features.contains(feature)
    }

    pub(super) fn is_raw(&self) -> bool {
        self.has(StreamFeatures::RAW)
    }

    /// The size that an object's blocks have in the stream.
    pub(super) fn block_size(&self, dnode: &Dnode) -> u64 {
        let size = dnode.geometry().block_size;
        if self.has(StreamFeatures::LARGE_BLOCKS) { size } else { size.min(SMALL_BLOCK_MAX) }
    }

    /// Reads a data block or the spill block of an object, and returns its records.
    ///
    /// # Errors
    /// Errors of reading the block.
    pub(super) async fn read(
        self,
        dnode: Arc<Dnode>,
        bp: BlockPtr,
        blkid: u64,
    ) -> Result<Vec<Sent>> {
        if blkid == SPILL_BLKID {
            return self.spill(&dnode, &bp).await.map(|sent| vec![sent]);
        }
        if self.is_sent_embedded(&bp)
            && let Some(sent) = self.embedded(&dnode, &bp, blkid)
        {
            return Ok(vec![sent]);
        }
        match self.write(&dnode, &bp, blkid).await {
            Err(error)
                if tunables::SEND_CORRUPT_DATA.get() != 0
                    && !error.kind().is_interruption()
                    && !self.is_raw() =>
            {
                let words = dnode.geometry().block_size as usize / size_of::<u64>();
                let block = CORRUPT_PATTERN.to_le_bytes().repeat(words);
                Ok(self.logical(&dnode, &bp, blkid, &Buf::from(block)))
            }
            sent => sent,
        }
    }

    /// Whether a pointer with data is sent as it is.
    fn is_sent_embedded(&self, bp: &BlockPtr) -> bool {
        let compression = bp.compression_id();
        let is_zstd = compression == CompressionType::Zstd.id();
        bp.is_embedded_data()
            && self.has(StreamFeatures::EMBED_DATA)
            && (compression < FIRST_WITH_FEATURE || self.has(StreamFeatures::LZ4))
            && (!is_zstd || self.has(StreamFeatures::ZSTD))
            // A receiver without large blocks could not store it.
            && (bp.lsize() <= SMALL_BLOCK_MAX || self.has(StreamFeatures::LARGE_BLOCKS))
    }

    /// Whether a block is sent compressed.
    fn is_sent_compressed(&self, bp: &BlockPtr) -> bool {
        self.has(StreamFeatures::COMPRESSED)
            && !self.is_split(bp)
            && bp.endian() == Endian::Little
            && !bp.is_embedded()
            && !bp.object_type().is_metadata()
            && bp.compression() != Some(CompressionType::Off)
    }

    /// Whether a block is cut into pieces.
    fn is_split(&self, bp: &BlockPtr) -> bool {
        bp.lsize() > SMALL_BLOCK_MAX && !self.has(StreamFeatures::LARGE_BLOCKS)
    }

    fn embedded(&self, dnode: &Dnode, bp: &BlockPtr, blkid: u64) -> Option<Sent> {
        let len = dnode.geometry().block_size;
        let mut payload = bp.embedded_payload()?.as_bytes().to_vec();
        let record = Record::WriteEmbedded(Embedded {
            object: dnode.object(),
            offset: blkid.saturating_mul(len),
            len,
            to_guid: self.to_guid,
            compression: bp.compression_id(),
            embedded_kind: bp.embedded_type_id()?,
            logical_len: u32::try_from(bp.embedded_lsize()).ok()?,
            physical_len: u32::try_from(bp.embedded_psize()).ok()?,
        });
        payload.resize(payload.len().next_multiple_of(8), 0);
        Some((record, Buf::from(payload).into()))
    }

    async fn write(&self, dnode: &Arc<Dnode>, bp: &BlockPtr, blkid: u64) -> Result<Vec<Sent>> {
        let form = match (self.is_raw(), self.is_sent_compressed(bp)) {
            (true, _) => StoredForm::AsOnDisk,
            (false, true) => StoredForm::Decrypted,
            (false, false) => {
                let block = dnode.read_pointer(bp, 0, blkid, true).await?;
                return Ok(self.logical(dnode, bp, blkid, &block));
            }
        };
        let payload = dnode.read_stored(bp, blkid, form).await?;
        let record = Write {
            compression: bp.compression_id(),
            compressed_len: payload.len() as u64,
            cipher: if self.is_raw() { cipher_of(bp) } else { CipherParams::default() },
            flags: self.flags(bp),
            ..self.plain_write(dnode, bp, blkid)
        };
        Ok(vec![(Record::Write(record), payload.into())])
    }

    /// The records of a block that is sent as its user sees it.
    fn logical(&self, dnode: &Dnode, bp: &BlockPtr, blkid: u64, block: &Buf) -> Vec<Sent> {
        let whole = self.plain_write(dnode, bp, blkid);
        if !self.is_split(bp) {
            return vec![(Record::Write(whole), block.clone().into())];
        }
        let step = SMALL_BLOCK_MAX as usize;
        let pieces = (0..block.len()).step_by(step).filter_map(|start| {
            let payload = block.slice(start..block.len().min(start.saturating_add(step)))?;
            let record = Write {
                offset: whole.offset.saturating_add(start as u64),
                logical_len: payload.len() as u64,
                ..whole
            };
            Some((Record::Write(record), payload.into()))
        });
        pieces.collect()
    }

    /// The record of a whole block, uncompressed.
    fn plain_write(&self, dnode: &Dnode, bp: &BlockPtr, blkid: u64) -> Write {
        let block_size = dnode.geometry().block_size;
        let key = self.key(bp);
        Write {
            object: dnode.object(),
            kind: u32::from(dnode.phys().object_type.0),
            offset: blkid.saturating_mul(block_size),
            logical_len: block_size,
            to_guid: self.to_guid,
            flags: self.flags(bp) & WriteFlags::CHECKSUM_DEDUP,
            compression: 0,
            key,
            compressed_len: 0,
            cipher: CipherParams::default(),
        }
    }

    /// Whether the checksum of the stored block says something about the payload.
    fn has_key(&self, bp: &BlockPtr) -> bool {
        !self.is_split(bp) && !bp.is_embedded() && (self.is_raw() || !bp.is_protected())
    }

    fn key(&self, bp: &BlockPtr) -> WriteKey {
        if !self.has_key(bp) {
            return WriteKey { checksum_kind: NO_CHECKSUM, ..WriteKey::default() };
        }
        let sectors = |bytes: u64| (bytes / SECTOR_SIZE).saturating_sub(1);
        let word = KEY_LSIZE.with(0, sectors(bp.lsize()));
        let word = word.and_then(|word| KEY_PSIZE.with(word, sectors(bp.psize())));
        let word = word.and_then(|word| KEY_COMPRESSION.with(word, bp.compression_id().into()));
        let encrypted = if bp.is_protected() { KEY_IS_ENCRYPTED } else { 0 };
        WriteKey {
            checksum_kind: bp.checksum_id(),
            checksum: bp.checksum(),
            properties: word.unwrap_or(0) | encrypted,
        }
    }

    fn flags(&self, bp: &BlockPtr) -> WriteFlags {
        let mut flags = WriteFlags::empty();
        let is_dedup = bp.checksum_type().is_some_and(ChecksumType::is_dedup);
        flags.set(WriteFlags::CHECKSUM_DEDUP, self.has_key(bp) && is_dedup);
        flags.set(WriteFlags::RAW_BYTESWAPPED, self.is_raw() && bp.endian() == Endian::Big);
        flags
    }

    async fn spill(&self, dnode: &Dnode, bp: &BlockPtr) -> Result<Sent> {
        let mut record = Spill {
            object: dnode.object(),
            len: bp.lsize(),
            to_guid: self.to_guid,
            flags: ObjectFlags::empty(),
            compression: 0,
            compressed_len: 0,
            cipher: CipherParams::default(),
            kind: 0,
        };
        record.flags.set(ObjectFlags::SPILL, bp.birth() <= self.from_txg);
        if !self.is_raw() {
            let block = dnode.spill().await?;
            let zeros = || BufMut::zeroed(bp.lsize() as usize).freeze();
            return Ok((Record::Spill(record), block.unwrap_or_else(zeros).into()));
        }
        let payload = dnode.read_stored(bp, SPILL_BLKID, StoredForm::AsOnDisk).await?;
        record.flags.set(ObjectFlags::RAW_BYTESWAPPED, bp.endian() == Endian::Big);
        record.compression = bp.compression_id();
        record.compressed_len = payload.len() as u64;
        record.cipher = cipher_of(bp);
        Ok((Record::Spill(record), payload.into()))
    }
}

/// The parameters of a block's encryption; an authenticated block has only a MAC.
pub(super) fn cipher_of(bp: &BlockPtr) -> CipherParams {
    let none = CipherParams { mac: bp.mac(), ..CipherParams::default() };
    if bp.is_encrypted() { CipherParams { salt: bp.salt(), iv: bp.iv(), ..none } } else { none }
}
