//! What a send has: its BEGIN record, the form of its payloads, and its run (spec 07 B2, B5, B10).

use std::sync::Arc;

use cenote_dmu::{Dnode, ObjSet, SPILL_BLKID};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::dsl::{DatasetFlags, key};
use cenote_ondisk::endian::Endian;
use cenote_ondisk::master_node::{MASTER_NODE_OBJ, VERSION, VERSION_SA};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::redaction::RedactionEntry;
use cenote_ondisk::stream::{
    Begin, BeginFlags, End, HeaderType, Object, ObjectFlags, ObjectRange, Range, Record,
    StreamFeatures,
};
use cenote_pool::{Dataset, RedactionList, features, mos};
use cenote_rt::{Buf, Result};

use super::block::{Form, cipher_of};
use super::emit::Emitter;
use super::merge::Merge;
use super::read::{Next, Reader};
use super::walk::{Step, Walk};
use super::{From, Payload, RecordSink, SendError, SendOptions};
use crate::{BeginPayload, CryptKeyData, MetaDnodeGeometry, ResumePoint, ResumeToken};

/// Version of key objects that raw sends need.
const KEY_VERSION: u64 = 1;
/// End of the name of a head, which is no snapshot.
const HEAD_SUFFIX: &str = "@--head--";

/// What a send has, before its first block is read.
#[derive(Debug)]
pub struct SendPlan {
    begin: Begin,
    payload: Vec<u8>,
    form: Form,
    resume: Option<ResumePoint>,
    /// Blocks that are left out.
    left_out: Arc<[RedactionEntry]>,
    /// Blocks that the source was sent without.
    restored: Arc<[RedactionEntry]>,
    /// Whether it is the whole snapshot, and not a part.
    is_whole: bool,
}

impl SendPlan {
    /// Plans the send of a snapshot; whole, or what it has beyond `from`; without the blocks of
    /// `redaction`.
    ///
    /// # Errors
    /// [`SendError`]: the dataset cannot be sent with these options; errors of reading the pool.
    pub async fn new(
        dataset: &Dataset,
        from: Option<&From>,
        redaction: Option<&RedactionList>,
        options: &SendOptions,
        resume: Option<ResumePoint>,
    ) -> Result<Self> {
        if redaction.is_some() && options.raw {
            return Err(SendError::RawRedacted.into());
        }
        if dataset.is_inconsistent() {
            return Err(SendError::Inconsistent.into());
        }
        Self::of(dataset, from, redaction, options, resume).await
    }

    /// Plans the send of what an interrupted receive has received; `saved` is its state. The
    /// stream has no END, so that it can only be received as a part, and continued.
    ///
    /// # Errors
    /// As [`new`](Self::new).
    pub async fn saved(
        dataset: &Dataset,
        from: Option<&From>,
        saved: &ResumeToken,
    ) -> Result<Self> {
        let options = SendOptions {
            large_blocks: saved.allows_large_blocks,
            embedded: saved.allows_embedded,
            compressed: saved.allows_compressed,
            raw: saved.is_raw,
        };
        let mut plan = Self::of(dataset, from, None, &options, None).await?;
        let is_redacted = saved.redact_snaps.is_some();
        plan.begin.features.set(StreamFeatures::REDACTED, is_redacted);
        (plan.begin.to_guid, plan.form.to_guid) = (saved.to_guid, saved.to_guid);
        plan.begin.to_name = saved.to_name.as_bytes().to_vec();
        plan.is_whole = false;
        Ok(plan)
    }

    async fn of(
        dataset: &Dataset,
        from: Option<&From>,
        redaction: Option<&RedactionList>,
        options: &SendOptions,
        resume: Option<ResumePoint>,
    ) -> Result<Self> {
        let set = dataset.open_without_key().await?;
        let objset_kind = match set.kind() {
            ObjSetType::Zfs | ObjSetType::Zvol => set.kind().id() as u32,
            _ => return Err(SendError::Type.into()),
        };
        let mut features = features_of(dataset, &set, options, resume.is_some()).await?;
        features.set(StreamFeatures::REDACTED, redaction.is_some());
        let redact_snaps = match redaction {
            Some(list) => Some(list.guids.clone()),
            None => dataset.redaction_snapshots().await?,
        };
        let mut payload = BeginPayload {
            redact_snaps,
            redact_from_snaps: from.and_then(|from| from.redaction.clone()),
            resume,
            crypt_keydata: None,
        };
        if features.contains(StreamFeatures::RAW) {
            payload.crypt_keydata = Some(key_data(dataset, &set, from).await?);
        }
        let payload = payload.encode();
        let phys = dataset.phys();
        let mut flags = BeginFlags::FREERECORDS | BeginFlags::SPILL_BLOCK;
        flags.set(BeginFlags::CLONE, from.is_some_and(|from| from.is_clone));
        flags.set(BeginFlags::CI_DATA, phys.flags.contains(DatasetFlags::CI_DATASET));
        let suffix = if dataset.is_snapshot() { "" } else { HEAD_SUFFIX };
        let begin = Begin {
            payload_len: payload.len() as u32,
            header: HeaderType::Substream,
            features,
            reserved: 0,
            creation_time: phys.creation_time,
            objset_kind,
            flags,
            to_guid: phys.guid,
            from_guid: from.map_or(0, |from| from.guid),
            to_name: format!("{}{suffix}", dataset.name()).into_bytes(),
        };
        let from_txg = from.map_or(0, |from| from.txg);
        let form = Form { features, to_guid: phys.guid, from_txg };
        let left_out = redaction.map_or_else(Vec::new, |list| list.entries.clone()).into();
        let restored = from.map_or_else(|| [].into(), |from| Arc::clone(&from.restored));
        Ok(Self { begin, payload, form, resume, left_out, restored, is_whole: true })
    }

    /// The BEGIN record.
    #[must_use]
    pub const fn begin(&self) -> &Begin {
        &self.begin
    }

    /// Whether the object set is read without its keys.
    #[must_use]
    pub fn is_raw(&self) -> bool {
        self.form.is_raw()
    }

    /// Opens the object set of the planned dataset as the send needs it: for a raw send without
    /// keys.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if it is encrypted and its key is not loaded; errors of reading it.
    pub async fn open(&self, dataset: &Dataset) -> Result<Arc<ObjSet>> {
        if self.is_raw() { dataset.open_without_key().await } else { dataset.open().await }
    }

    /// Sends the substream, from BEGIN to END, which a saved part does not have. `set` is the
    /// object set of the planned dataset.
    ///
    /// # Errors
    /// Errors of reading the dataset and of the sink; then the stream ends without an END
    /// (SEND-2).
    pub async fn run(&self, set: &Arc<ObjSet>, sink: &mut impl RecordSink) -> Result<()> {
        let walk = Walk::new(set, self.form.from_txg, self.resume).await?;
        let steps = Merge::new(walk, set, &self.left_out, &self.restored);
        let mut reader = Reader::new(steps, self.form);
        let begin = Record::Begin(Box::new(self.begin.clone()));
        sink.put(&begin, Buf::from(self.payload.clone()).into()).await?;
        let blocks = set.meta_dnode().geometry().max_block.saturating_add(1);
        let object_end = blocks.saturating_mul(set.slots_per_block());
        let to_guid = self.form.to_guid;
        let mut emitter = Emitter::new(sink, to_guid, object_end);
        // SEND-2: an error leaves before the END below.
        while let Some(next) = reader.next().await? {
            match next {
                Next::Block(sent) => {
                    for (record, payload) in sent {
                        emitter.put(&record, payload).await?;
                    }
                }
                Next::Step(step) => self.emit(step, &mut emitter).await?,
            }
        }
        if !self.is_whole {
            return emitter.flush().await;
        }
        emitter.put(&Record::End(End { to_guid, ..End::default() }), Payload::empty()).await
    }

    async fn emit<S: RecordSink>(&self, step: Step, emitter: &mut Emitter<'_, S>) -> Result<()> {
        match step {
            Step::ObjectRange { bp, first, slots } if self.is_raw() => {
                let range = self.object_range(&bp, first, slots);
                emitter.put(&Record::ObjectRange(range), Payload::empty()).await
            }
            Step::FreeObjects { first, count } => emitter.free_objects(first, count).await,
            Step::Object { dnode, bp } => self.emit_object(&dnode, &bp, emitter).await,
            Step::Absent { dnode, blocks, is_redacted } => {
                let Some((offset, len)) = bytes_of(&dnode, &blocks) else { return Ok(()) };
                if is_redacted {
                    emitter.redact(dnode.object(), offset, len).await
                } else {
                    emitter.free(dnode.object(), offset, len).await
                }
            }
            Step::Redacted { object, offset, len } => emitter.redact(object, offset, len).await,
            // Only raw streams have ranges, and the reader has turned blocks into records.
            Step::ObjectRange { .. } | Step::Block { .. } => Ok(()),
        }
    }

    fn object_range(&self, bp: &BlockPtr, first: u64, slots: u64) -> ObjectRange {
        let mut flags = ObjectFlags::empty();
        flags.set(ObjectFlags::RAW_BYTESWAPPED, bp.endian() == Endian::Big);
        ObjectRange { first, slots, to_guid: self.form.to_guid, cipher: cipher_of(bp), flags }
    }

    async fn emit_object<S: RecordSink>(
        &self,
        dnode: &Arc<Dnode>,
        bp: &BlockPtr,
        emitter: &mut Emitter<'_, S>,
    ) -> Result<()> {
        let (record, bonus) = self.object(dnode, bp)?;
        emitter.put(&Record::Object(record), bonus.into()).await?;
        // Without it a truncated file would keep its end at the receiver.
        let end = dnode.phys().data_len_max();
        emitter.free(dnode.object(), end, Range::TO_THE_END).await?;
        match dnode.phys().spill() {
            Some(spill) if !spill.is_hole() && spill.birth() <= self.form.from_txg => {
                let spill = self.form.read(Arc::clone(dnode), *spill, SPILL_BLKID);
                for (record, payload) in spill.await? {
                    emitter.put(&record, payload).await?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn object(&self, dnode: &Dnode, bp: &BlockPtr) -> Result<(Object, Buf)> {
        let phys = dnode.phys();
        let mut record = Object {
            object: dnode.object(),
            kind: phys.object_type.0.into(),
            bonus_kind: phys.bonus_type.0.into(),
            block_size: self.form.block_size(dnode) as u32,
            bonus_len: phys.bonus_len.into(),
            checksum: phys.checksum,
            compression: phys.compress,
            slots: phys.extra_slots + 1,
            flags: ObjectFlags::empty(),
            raw_bonus_len: 0,
            to_guid: self.form.to_guid,
            indirect_block_shift: 0,
            levels: 0,
            blkptr_count: 0,
            max_block: 0,
        };
        record.flags.set(ObjectFlags::SPILL, phys.spill().is_some());
        let mut len = usize::from(phys.bonus_len).next_multiple_of(8);
        if self.is_raw() {
            record.flags.set(ObjectFlags::RAW_BYTESWAPPED, bp.endian() == Endian::Big);
            record.indirect_block_shift = phys.indblkshift;
            record.levels = phys.nlevels;
            record.blkptr_count = phys.nblkptr() as u8;
            record.max_block = phys.maxblkid;
            if len != 0 {
                // All of the area is ciphertext.
                len = phys.bonus_area.len();
                record.raw_bonus_len = len as u32;
            }
        } else {
            // Refuses a bonus that is still encrypted.
            dnode.bonus()?;
        }
        let area = phys.bonus_area.get(..len);
        let bonus = area.ok_or(SendError::Bonus { object: dnode.object(), len: phys.bonus_len })?;
        Ok((record, Buf::from(bonus.to_vec())))
    }
}

/// Returns offset and length of blocks of an object; `None` if they are behind 2^64.
fn bytes_of(dnode: &Dnode, blocks: &std::ops::Range<u64>) -> Option<(u64, u64)> {
    let size = dnode.geometry().block_size;
    let offset = blocks.start.checked_mul(size)?;
    Some((offset, blocks.end.saturating_mul(size).saturating_sub(offset)))
}

/// Chooses the features of the stream (spec 07 B2.1).
async fn features_of(
    dataset: &Dataset,
    set: &Arc<ObjSet>,
    options: &SendOptions,
    is_resumed: bool,
) -> Result<StreamFeatures> {
    let &SendOptions { large_blocks, embedded, compressed, raw } = options;
    let mut chosen = StreamFeatures::empty();
    if set.kind() == ObjSetType::Zfs {
        let version = mos::u64(set, MASTER_NODE_OBJ, VERSION).await?.unwrap_or(0);
        chosen.set(StreamFeatures::SA_SPILL, version >= VERSION_SA);
    }
    let has_large_blocks = is_active_on(dataset, "large_blocks").await?;
    chosen.set(StreamFeatures::LARGE_BLOCKS, (large_blocks || raw) && has_large_blocks);
    let table = dataset.pool().features();
    // Encrypted datasets have no embedded blocks.
    let may_embed = !set.is_encrypted() && table.is_active("embedded_data");
    chosen.set(StreamFeatures::EMBED_DATA, (embedded || raw) && may_embed);
    chosen.set(StreamFeatures::COMPRESSED, compressed || raw);
    chosen.set(StreamFeatures::RAW, raw && set.is_encrypted());
    let stored = StreamFeatures::COMPRESSED | StreamFeatures::RAW;
    let has_stored = chosen.intersects(stored);
    let has_lz4 = table.is_active("lz4_compress");
    let needs_lz4 = chosen.intersects(stored | StreamFeatures::EMBED_DATA);
    chosen.set(StreamFeatures::LZ4, needs_lz4 && has_lz4);
    let has_zstd = is_active_on(dataset, "zstd_compress").await?;
    chosen.set(StreamFeatures::ZSTD, has_stored && has_zstd);
    chosen.set(StreamFeatures::RESUMING, is_resumed);
    let has_large_dnodes = is_active_on(dataset, "large_dnode").await?;
    chosen.set(StreamFeatures::LARGE_DNODE, has_large_dnodes);
    chosen.set(StreamFeatures::LONGNAME, is_active_on(dataset, "longname").await?);
    if is_active_on(dataset, "large_microzap").await? {
        // A micro ZAP must not be cut into pieces.
        if !chosen.contains(StreamFeatures::LARGE_BLOCKS) {
            return Err(SendError::LargeMicrozap.into());
        }
        chosen |= StreamFeatures::LARGE_MICROZAP;
    }
    Ok(chosen)
}

/// Whether a feature is active on a dataset itself.
async fn is_active_on(dataset: &Dataset, name: &str) -> Result<bool> {
    match features::by_name(name) {
        Some(feature) => Ok(dataset.extra(feature.guid).await?.is_some()),
        None => Ok(false),
    }
}

/// The keys of a raw stream, wrapped, and the shape of the meta-dnode (spec 07 B10).
async fn key_data(
    dataset: &Dataset,
    set: &Arc<ObjSet>,
    from: Option<&From>,
) -> Result<CryptKeyData> {
    let missing = || cenote_rt::Error::from(SendError::KeyVersion).in_dataset(dataset.name());
    let own = dataset.key_info().await?.ok_or_else(missing)?;
    if own.wrapped.version != KEY_VERSION {
        return Err(missing());
    }
    let pool = dataset.pool();
    let root = pool.dataset(&pool.dir_name(own.root_dir).await?).await?;
    let root = root.key_info().await?.ok_or_else(missing)?;
    let wrapped = &own.wrapped;
    let meta = &set.phys().meta_dnode;
    Ok(CryptKeyData {
        suite: wrapped.suite,
        guid: wrapped.guid,
        version: wrapped.version,
        master_key: wrapped.master_key,
        hmac_key: wrapped.hmac_key,
        iv: wrapped.iv,
        mac: wrapped.mac,
        portable_mac: set.phys().portable_mac,
        key_format: root.format_value,
        pbkdf2_iterations: root.pbkdf2.iterations,
        pbkdf2_salt: root.pbkdf2.salt,
        meta_dnode: MetaDnodeGeometry {
            checksum: meta.checksum,
            compression: meta.compress,
            levels: meta.nlevels,
            block_size: meta.data_block_size() as u32,
            indirect_block_shift: meta.indblkshift,
            blkptr_count: meta.nblkptr() as u8,
            max_block: meta.maxblkid,
        },
        to_ivset_guid: Some(dataset.extra(key::IVSET_GUID).await?.unwrap_or(0)),
        from_ivset_guid: Some(from.and_then(|from| from.ivset_guid).unwrap_or(0)),
    })
}
