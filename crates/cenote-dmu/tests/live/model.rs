//! A model of an object set: objects as sparse arrays of sectors, and random operations.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::live::{Live, ObjectSpec, Tx, TxResult, TxStop};
use cenote_dmu::{Dnode, ObjSet};
use cenote_ondisk::dnode::DnodePhys;
use cenote_ondisk::object_type::ObjectType;
use cenote_rt::{Buf, Error, Kind, Rng};

const SECTOR: u64 = 512;

/// An object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Object {
    pub(crate) spec: ObjectSpec,
    pub(crate) kind: ObjectType,
    pub(crate) block_size: u64,
    pub(crate) bonus: Vec<u8>,
    pub(crate) spill: Option<Vec<u8>>,
    pub(crate) max_block: u64,
    /// Sectors that are not zero.
    pub(crate) sectors: BTreeMap<u64, Vec<u8>>,
    /// Number of times that the object number was allocated.
    pub(crate) generation: u64,
}

/// An object set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Model {
    pub(crate) objects: BTreeMap<u64, Object>,
    pub(crate) generation: u64,
}

/// A change.
#[derive(Debug, Clone)]
pub(crate) enum Op {
    Allocate(ObjectSpec),
    Free(u64),
    Write { object: u64, offset: u64, bytes: Vec<u8> },
    WriteBlock { object: u64, blkid: u64, byte: u8 },
    FreeRange { object: u64, offset: u64, len: Option<u64> },
    BlockSize { object: u64, size: u64 },
    Bonus { object: u64, bytes: Vec<u8> },
    Spill { object: u64, bytes: Option<Vec<u8>> },
    Type { object: u64, object_type: ObjectType },
}

impl Object {
    fn new(spec: ObjectSpec, generation: u64) -> Self {
        Self {
            spec,
            kind: spec.object_type,
            block_size: spec.block_size,
            bonus: vec![0; spec.bonus_len],
            spill: None,
            max_block: 0,
            sectors: BTreeMap::new(),
            generation,
        }
    }

    pub(crate) fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        let end = offset + len as u64;
        for (sector, content) in self.sectors.range(offset / SECTOR..end.div_ceil(SECTOR)) {
            for (index, byte) in content.iter().enumerate() {
                let at = sector * SECTOR + index as u64;
                if (offset..end).contains(&at) {
                    bytes[(at - offset) as usize] = *byte;
                }
            }
        }
        bytes
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        for sector in offset / SECTOR..(offset + bytes.len() as u64).div_ceil(SECTOR) {
            let content = self.sectors.entry(sector).or_insert_with(|| vec![0; 512]);
            for (index, byte) in content.iter_mut().enumerate() {
                let at = sector * SECTOR + index as u64;
                if let Some(new) = at.checked_sub(offset).and_then(|i| bytes.get(i as usize)) {
                    *byte = *new;
                }
            }
            if content.iter().all(|byte| *byte == 0) {
                self.sectors.remove(&sector);
            }
        }
    }

    fn zero(&mut self, start: u64, end: u64) {
        let touched: Vec<u64> = self
            .sectors
            .range(start / SECTOR..end.div_ceil(SECTOR))
            .map(|(sector, _)| *sector)
            .collect();
        for sector in touched {
            let from = (sector * SECTOR).max(start);
            let to = ((sector + 1) * SECTOR).min(end);
            self.write(from, &vec![0; (to - from) as usize]);
        }
    }

    /// Contents of the blocks that are not all zeros.
    pub(crate) fn blocks(&self) -> BTreeMap<u64, Vec<(u64, &[u8])>> {
        let mut blocks: BTreeMap<u64, Vec<(u64, &[u8])>> = BTreeMap::new();
        for (sector, content) in &self.sectors {
            let blkid = sector * SECTOR / self.block_size;
            blocks.entry(blkid).or_default().push((*sector, content));
        }
        blocks
    }
}

impl Op {
    /// A random operation, in most cases valid on the model.
    pub(crate) fn random(model: &Model, rng: &mut Rng) -> Self {
        let count = model.objects.len() as u64;
        if count < 3 || rng.below(100) < 6 && count < 40 {
            return Self::Allocate(random_spec(rng));
        }
        let index = rng.below(count) as usize;
        let (object, state) = model.objects.iter().nth(index).unwrap();
        let (object, size) = (*object, state.block_size);
        let is_single = !size.is_power_of_two();
        match rng.below(100) {
            0..4 => Self::Free(object),
            4..42 => {
                let offset = random_offset(rng, size, is_single);
                let room = if is_single { size - offset } else { u64::MAX };
                // Half of them within one block, where earlier ones have been.
                let most = if rng.below(2) == 0 { size / 2 } else { 3 * size };
                let len = (1 + rng.below(most)).min(40_000).min(room) as usize;
                Self::Write { object, offset, bytes: random_bytes(rng, len) }
            }
            42..58 => {
                let blkid = if is_single { 0 } else { random_block(rng) };
                Self::WriteBlock { object, blkid, byte: rng.below(4) as u8 }
            }
            58..78 => {
                let offset = random_offset(rng, size, false);
                let len = match rng.below(4) {
                    0 => None,
                    1 => Some(rng.below(2 * size)),
                    2 => Some(rng.below(64 * size)),
                    _ => Some(up_to(rng, 45)),
                };
                Self::FreeRange { object, offset, len }
            }
            78..84 => Self::BlockSize { object, size: (1 + rng.below(33)) * SECTOR },
            84..91 => Self::Bonus { object, bytes: random_bonus(state, rng) },
            91..97 => {
                let len = (1 + rng.below(6)) as usize * 512;
                let mut bytes = (rng.below(3) > 0).then(|| random_bytes(rng, len));
                if let Some(first) = bytes.as_mut().and_then(|bytes| bytes.first_mut()) {
                    *first = 1;
                }
                Self::Spill { object, bytes }
            }
            _ => Self::Type { object, object_type: random_type(rng) },
        }
    }

    /// Runs it on the object set; returns the number of the allocated object.
    pub(crate) fn run(&self, tx: &mut Tx<'_>) -> TxResult<u64> {
        match self {
            Self::Allocate(spec) => return tx.allocate(spec),
            Self::Free(object) => tx.free(*object)?,
            Self::Write { object, offset, bytes } => tx.write(*object, *offset, bytes)?,
            Self::WriteBlock { object, blkid, byte } => {
                let size = tx.dnode(*object)?.data_block_size() as usize;
                tx.write_block(*object, *blkid, Buf::from(vec![*byte; size]))?;
            }
            Self::FreeRange { object, offset, len } => tx.free_range(*object, *offset, *len)?,
            Self::BlockSize { object, size } => tx.set_block_size(*object, *size)?,
            Self::Bonus { object, bytes } => tx.set_bonus(*object, bytes)?,
            Self::Spill { object, bytes } => tx.set_spill(*object, bytes.as_deref())?,
            Self::Type { object, object_type } => tx.set_object_type(*object, *object_type)?,
        }
        Ok(0)
    }

    /// Applies it to the model.
    fn model(&self, model: &mut Model, number: u64) {
        if let Self::Allocate(spec) = self {
            model.generation += 1;
            let object = Object::new(*spec, model.generation);
            assert!(model.objects.insert(number, object).is_none(), "{number} given out twice");
            return;
        }
        if let Self::Free(object) = self {
            model.objects.remove(object).unwrap();
            return;
        }
        let state = model.objects.get_mut(&self.object()).unwrap();
        match self {
            Self::Allocate(_) | Self::Free(_) => {}
            Self::Write { offset, bytes, .. } => {
                state.write(*offset, bytes);
                let last = (offset + bytes.len() as u64 - 1) / state.block_size;
                state.max_block = state.max_block.max(last);
            }
            Self::WriteBlock { blkid, byte, .. } => {
                state.write(blkid * state.block_size, &vec![*byte; state.block_size as usize]);
                state.max_block = state.max_block.max(*blkid);
            }
            Self::FreeRange { offset, len, .. } => {
                let object_end = (state.max_block + 1) * state.block_size;
                let end = len.map_or(object_end, |len| offset + len).min(object_end);
                if *offset < end {
                    state.zero(*offset, end);
                    if len.is_none() {
                        state.max_block = offset.div_ceil(state.block_size).saturating_sub(1);
                    }
                }
            }
            Self::BlockSize { size, .. } if *size == state.block_size => {}
            Self::BlockSize { size, .. } => {
                state.block_size = *size;
                state.sectors.retain(|sector, _| *sector < size / SECTOR);
            }
            Self::Bonus { bytes, .. } => state.bonus.clone_from(bytes),
            Self::Spill { bytes, .. } => state.spill.clone_from(bytes),
            Self::Type { object_type, .. } => state.kind = *object_type,
        }
    }

    fn object(&self) -> u64 {
        match self {
            Self::Allocate(_) => 0,
            Self::Free(object)
            | Self::Write { object, .. }
            | Self::WriteBlock { object, .. }
            | Self::FreeRange { object, .. }
            | Self::BlockSize { object, .. }
            | Self::Bonus { object, .. }
            | Self::Spill { object, .. }
            | Self::Type { object, .. } => *object,
        }
    }

    /// Whether the object set must refuse it.
    fn is_refused(&self, model: &Model) -> bool {
        let Some(state) = model.objects.get(&self.object()) else { return false };
        let (head, pointers) = (64, pointer_count(&state.spec));
        let area = state.spec.slots * 512 - head - pointers * 128;
        let area = area - if state.spill.is_some() { 128 } else { 0 };
        match self {
            Self::BlockSize { size, .. } => state.max_block > 0 && *size != state.block_size,
            Self::Bonus { bytes, .. } => bytes.len() > area,
            Self::Spill { bytes: Some(_), .. } => {
                state.spill.is_none() && area < state.bonus.len() + 128
            }
            _ => false,
        }
    }
}

/// Applies one operation or several to both with each step, which is a seed.
pub(crate) async fn change(live: &Live, txg: u64, model: &mut Model, steps: &[u64]) {
    for step in steps {
        let rng = &mut Rng::seeded(*step);
        // Sometimes several in one transaction, of which all or none take effect.
        let mut next = model.clone();
        let mut ops = Vec::new();
        for _ in 0..=rng.below(3) {
            let op = Op::random(&next, rng);
            let is_refused = op.is_refused(&next);
            ops.push(op.clone());
            if is_refused || matches!(op, Op::Allocate(_)) {
                break;
            }
            op.model(&mut next, 0);
        }
        let last = ops.last().unwrap().clone();
        let is_refused = last.is_refused(&next);
        // The closure's own view of the object that it changed last.
        let seen = next.objects.get(&last.object()).filter(|_| !is_refused);
        let seen = seen.map(|state| (last.object(), state.read(0, 4 * state.block_size as usize)));
        let is_given_up = !is_refused && rng.below(20) == 0;
        let result = live
            .apply(txg, |tx| {
                let mut number = 0;
                for op in &ops {
                    number = op.run(tx)?;
                }
                if let Some((object, bytes)) = &seen {
                    assert!(tx.read(*object, 0, bytes.len())? == *bytes, "{ops:?}");
                }
                let given_up = || TxStop::Fail(Error::new(Kind::Limit, "given up"));
                if is_given_up { Err(given_up()) } else { Ok(number) }
            })
            .await;
        match result {
            Ok(number) => {
                assert!(!is_refused && !is_given_up, "{ops:?}");
                if matches!(last, Op::Allocate(_)) {
                    last.model(&mut next, number);
                }
                *model = next;
            }
            Err(error) if is_given_up => assert_eq!(error.kind(), Kind::Limit, "{error} {ops:?}"),
            Err(error) => assert!(is_refused, "{error}: {ops:?}"),
        }
        if rng.below(8) == 0 {
            look(live, model, rng).await;
        }
    }
}

/// Compares a random range with a closure's view.
async fn look(live: &Live, model: &Model, rng: &mut Rng) {
    let index = rng.below(model.objects.len().max(1) as u64) as usize;
    let Some((object, state)) = model.objects.iter().nth(index) else { return };
    let known = state.sectors.keys().nth(rng.below(state.sectors.len().max(1) as u64) as usize);
    let offset = known.map_or(0, |sector| (sector * SECTOR).saturating_sub(rng.below(3000)));
    let len = 1 + rng.below(9000) as usize;
    let seen = live
        .inspect(|tx| {
            let head = tx.dnode(*object)?;
            let spill = tx.spill(*object)?.map(|block| block.to_vec());
            let count = tx.object_count();
            Ok((head, tx.read(*object, offset, len)?, tx.bonus(*object)?, spill, count))
        })
        .await
        .unwrap();
    let (head, bytes, bonus, spill, count) = seen;
    assert!(bytes == state.read(offset, len), "object {object} at {offset}");
    assert!((&bonus, &spill) == (&state.bonus, &state.spill), "object {object}: bonus or spill");
    assert_eq!(count, model.objects.len() as u64);
    check_head(*object, &head, state);
}

/// Compares a whole set on disk.
pub(crate) async fn compare(set: &Arc<ObjSet>, model: &Model) {
    assert_eq!(set.object_count(), model.objects.len() as u64, "objects");
    let mut dnodes = set.dnodes(0);
    let mut found = Vec::new();
    while let Some(dnode) = dnodes.next().await {
        let dnode = dnode.unwrap();
        let object = dnode.object();
        let state = model.objects.get(&object).unwrap_or_else(|| panic!("object {object}"));
        check_head(object, dnode.phys(), state);
        assert_eq!(dnode.bonus().unwrap(), state.bonus, "object {object}: bonus");
        let spill = dnode.spill().await.unwrap().map(|block| block.to_vec());
        assert!(spill == state.spill, "object {object}: spill");
        compare_data(&dnode, state).await;
        found.push(object);
    }
    assert_eq!(found, model.objects.keys().copied().collect::<Vec<_>>());
}

async fn compare_data(dnode: &Arc<Dnode>, state: &Object) {
    let object = dnode.object();
    let mut stream = dnode.stream(0..u64::MAX);
    let mut sectors = BTreeMap::new();
    while let Some(extent) = stream.next().await {
        let extent = extent.unwrap_or_else(|lost| panic!("object {object}: {lost}"));
        let Some(data) = extent.data else { continue };
        for (index, content) in data.chunks(512).enumerate() {
            if content.iter().any(|byte| *byte != 0) {
                sectors.insert(extent.offset / SECTOR + index as u64, content.to_vec());
            }
        }
    }
    let keys = |map: &BTreeMap<u64, Vec<u8>>| map.keys().copied().collect::<Vec<_>>();
    assert_eq!(keys(&sectors), keys(&state.sectors), "object {object}: sectors");
    assert!(sectors == state.sectors, "object {object}: content");
}

fn check_head(object: u64, head: &DnodePhys, state: &Object) {
    assert_eq!(head.object_type, state.kind, "object {object}");
    assert_eq!(head.data_block_size(), state.block_size, "object {object}: block size");
    assert_eq!(head.maxblkid, state.max_block, "object {object}: maxblkid");
    assert_eq!(head.slots(), state.spec.slots, "object {object}: slots");
    assert_eq!(head.bonus_type, state.spec.bonus_type, "object {object}: bonus type");
}

fn pointer_count(spec: &ObjectSpec) -> usize {
    match spec.bonus_type {
        ObjectType::SA => 1,
        _ => (1 + (spec.slots * 512 - 192 - spec.bonus_len) / 128).min(3),
    }
}

fn random_spec(rng: &mut Rng) -> ObjectSpec {
    let slots = if rng.below(3) == 0 { 1 + rng.below(8) as usize } else { 1 };
    let bonus_type = [ObjectType::SA, ObjectType::DSL_DATASET][rng.below(2) as usize];
    let block_size = match rng.below(3) {
        0 => 512 * (1 + rng.below(40)),
        _ => 512 << rng.below(7),
    };
    ObjectSpec {
        number: None,
        object_type: random_type(rng),
        block_size,
        indirect_shift: if rng.below(4) == 0 { 17 } else { 12 + rng.below(3) as u8 },
        bonus_type,
        bonus_len: rng.below(321) as usize,
        has_spill: false,
        slots,
    }
}

fn random_type(rng: &mut Rng) -> ObjectType {
    let types = [ObjectType::PLAIN_FILE_CONTENTS, ObjectType::ZAP_METADATA, ObjectType::ZVOL];
    types[rng.below(3) as usize]
}

/// A number of random magnitude below `1 << bits`.
fn up_to(rng: &mut Rng, bits: u64) -> u64 {
    let bound = 1 << rng.below(bits);
    rng.below(bound)
}

fn random_block(rng: &mut Rng) -> u64 {
    match rng.below(10) {
        0..5 => rng.below(4),
        5..8 => rng.below(100),
        8 => rng.below(40_000),
        _ => up_to(rng, 36),
    }
}

fn random_offset(rng: &mut Rng, size: u64, is_single: bool) -> u64 {
    let blkid = if is_single { 0 } else { random_block(rng) };
    let within = if rng.below(2) == 0 { 0 } else { rng.below(size) };
    blkid * size + within
}

fn random_bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    match rng.below(4) {
        0 => {}
        1 => bytes.fill(rng.below(256) as u8),
        _ => rng.fill(&mut bytes),
    }
    bytes
}

fn random_bonus(state: &Object, rng: &mut Rng) -> Vec<u8> {
    let len = rng.below(state.spec.slots as u64 * 512 - 180) as usize;
    random_bytes(rng, len)
}
