//! Volumes of cells, and all of their states.

use std::sync::{Arc, Mutex};

use cenote_dmu::Tx;
use cenote_dmu::live::ObjectSpec;
use cenote_engine::zil::LogRecord;
use cenote_engine::{ApplyOptions, Engine, Head, NewDataset};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_rt::{BufMut, Result, Rng};

/// Size of a cell: a part of a block, so that writes change parts of blocks.
pub(crate) const CELL: u64 = 4096;
/// Cells of a volume.
pub(crate) const CELLS: u64 = 64;
/// The object with the cells.
pub(crate) const OBJECT: u64 = 1;

/// An operation: these cells get this salt, or are freed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Op {
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) salt: Option<u64>,
}

/// The operations of a volume in the order of their application, and the number of durable ones.
#[derive(Debug, Default)]
pub(crate) struct History {
    pub(crate) ops: Mutex<Vec<Op>>,
    acknowledged: Mutex<usize>,
}

impl History {
    pub(crate) fn acknowledge(&self, count: usize) {
        let mut acknowledged = self.acknowledged.lock().unwrap();
        *acknowledged = count.max(*acknowledged);
    }

    pub(crate) fn acknowledged(&self) -> usize {
        *self.acknowledged.lock().unwrap()
    }

    pub(crate) fn len(&self) -> usize {
        self.ops.lock().unwrap().len()
    }

    /// Returns the number of operations, at least `least`, after which the volume has these
    /// contents. The beginning of the next one may be present: long writes have several records,
    /// and this one was not acknowledged.
    pub(crate) fn find(&self, found: &[u8], least: usize) -> Option<usize> {
        let mut bytes = vec![0; (CELLS * CELL) as usize];
        let ops = self.ops.lock().unwrap();
        for count in 0..=ops.len() {
            let before = bytes.clone();
            if let Some(op) = ops.get(count) {
                op.apply(&mut bytes);
            }
            // Up to here as after the next operation, and from here on as before it.
            let same = bytes.iter().zip(found).take_while(|(a, b)| a == b).count();
            if count >= least && before[same..] == found[same..] {
                return Some(count);
            }
        }
        None
    }
}

impl Op {
    fn apply(&self, bytes: &mut [u8]) {
        let range = (self.first * CELL) as usize..((self.first + self.count) * CELL) as usize;
        match self.salt {
            Some(_) => bytes[range].copy_from_slice(&content(self)),
            None => bytes[range].fill(0),
        }
    }
}

/// Returns the contents of a cell.
fn cell(number: u64, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; CELL as usize];
    Rng::seeded(number << 40 ^ salt).fill(&mut bytes[8..2000]);
    bytes[..8].copy_from_slice(&salt.to_le_bytes());
    bytes
}

pub(crate) fn content(op: &Op) -> Vec<u8> {
    let salt = op.salt.unwrap();
    (op.first..op.first + op.count).flat_map(|number| cell(number, salt)).collect()
}

/// Returns a random operation: mostly writes, some of them longer than a log block.
pub(crate) fn draw(rng: &mut Rng) -> Op {
    let count = match rng.below(10) {
        0 => 1 + rng.below(CELLS - 1),
        1..4 => 1 + rng.below(8),
        _ => 1,
    };
    let first = rng.below(CELLS - count + 1);
    let salt = (rng.below(6) > 0).then(|| rng.next_u64() | 1);
    Op { first, count, salt }
}

/// An open volume.
#[derive(Clone)]
pub(crate) struct Volume {
    pub(crate) head: Arc<Head>,
    pub(crate) history: Arc<History>,
}

/// Creates a volume: an object set with one object.
pub(crate) async fn make(engine: &Engine, name: &str, kind: ObjSetType) -> Result<Arc<Head>> {
    let fill = Box::new(|tx: &mut Tx<'_>| {
        let spec = ObjectSpec::new(ObjectType::PLAIN_FILE_CONTENTS, 16 << 10).with_number(OBJECT);
        tx.allocate(&spec)?;
        Ok(())
    });
    engine.datasets().create(NewDataset { fill, ..NewDataset::new(name, kind) }).await
}

impl Volume {
    /// Applies and records an operation. Returns its position.
    pub(crate) async fn apply(&self, engine: &Engine, op: Op, is_later: bool) -> Result<usize> {
        let (offset, len) = (op.first * CELL, op.count * CELL);
        let bytes = op.salt.map(|_| content(&op));
        let (place, _) = engine
            .apply(&self.head, ApplyOptions::new().logged(), |tx| {
                let record = if let Some(bytes) = &bytes {
                    tx.write(OBJECT, offset, bytes)?;
                    if is_later {
                        LogRecord::write_later(OBJECT, offset, len)
                    } else {
                        let mut buf = BufMut::zeroed(bytes.len());
                        buf.copy_from_slice(bytes);
                        LogRecord::write(OBJECT, offset, buf.freeze())
                    }
                } else {
                    tx.free_range(OBJECT, offset, Some(len))?;
                    LogRecord::truncate(OBJECT, offset, len)
                };
                let bytes = self.head.log().append(tx, vec![record])?;
                let mut ops = self.history.ops.lock().unwrap();
                ops.push(op);
                Ok((ops.len(), bytes))
            })
            .await?;
        Ok(place)
    }

    /// Makes it durable, with all earlier operations.
    pub(crate) async fn commit(&self, engine: &Engine, place: usize) -> Result<()> {
        engine.intent_logs().commit(&self.head, Some(OBJECT)).await?;
        self.history.acknowledge(place);
        Ok(())
    }
}

/// Returns the contents of the volume.
pub(crate) async fn read(head: &Head) -> Result<Vec<u8>> {
    head.live().inspect(|tx| tx.read(OBJECT, 0, (CELL * CELLS) as usize)).await
}
