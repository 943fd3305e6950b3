//! Streams of a hostile sender: bits flipped, records with lying fields, missing, doubled and out of
//! order, payloads of other lengths, all under checksums that match. Each is refused or received;
//! one that is refused leaves nothing, and the pool is whole.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::{CHECKSUM_AT, Record};
use cenote_rt::{Kind, Rng, block_on};
use cenote_stream::{Item, ReceiveOptions};
use cenote_testkit::golden::golden;
use cenote_testkit::rng::{cases, seeded};
use cenote_testkit::streams::recorded_stream;

use crate::fixture::{Target, into, receive_items, substreams};

/// Streams of a run, and of one with `CENOTE_TEST_ALL=1`.
const STREAMS: [u64; 2] = [250, 5000];
/// Streams that one pool gets.
const EACH_POOL: u64 = 250;
/// Numbers that senders lie with.
const LIES: [u64; 12] = [
    0,
    1,
    511,
    512,
    1 << 12,
    1 << 17,
    (1 << 17) + 512,
    1 << 24,
    1 << 32,
    1 << 48,
    u64::MAX - 1,
    u64::MAX,
];

/// Changes a record's bytes; `None` if the result is no record.
fn changed(record: &Record, rng: &mut Rng) -> Option<Record> {
    let mut bytes = record.encode(Endian::Little);
    // The type stays: it is covered by records that are exchanged.
    let at = 8 + rng.below(CHECKSUM_AT as u64 / 2) as usize;
    if rng.below(2) == 0 {
        bytes[at] ^= 1 << rng.below(8);
    } else {
        let word = at / 8 * 8;
        let lie = LIES[rng.below(LIES.len() as u64) as usize];
        bytes[word..word + 8].copy_from_slice(&lie.to_le_bytes());
    }
    Record::decode(&bytes, Endian::Little).ok()
}

/// Returns the records with one to four lies.
fn hostile(items: &[Item], rng: &mut Rng) -> Vec<Item> {
    let mut items = items.to_vec();
    for _ in 0..=rng.below(4) {
        let at = rng.below(items.len() as u64) as usize;
        match rng.below(8) {
            0 => drop(items.remove(at.max(1).min(items.len() - 1))),
            1 => items.insert(at, items[at].clone()),
            2 => {
                let other = rng.below(items.len() as u64) as usize;
                items.swap(at, other);
            }
            3 => {
                let len = rng.below(items[at].payload.len() as u64 + 2) as usize;
                items[at].payload.resize(len, 7);
            }
            4 if !items[at].payload.is_empty() => {
                let byte = rng.below(items[at].payload.len() as u64) as usize;
                items[at].payload[byte] ^= 1 << rng.below(8);
            }
            _ => {
                if let Some(record) = changed(&items[at].record, rng) {
                    items[at].record = record;
                }
            }
        }
    }
    items
}

/// Destroys what was received.
async fn clear(engine: &Arc<Engine>, name: &str) {
    // A dataset that was received raw has no keys here.
    let view = engine.view().await.unwrap();
    let snapshots = view.dataset(name).await.unwrap().snapshots().await.unwrap();
    let names = snapshots.iter().map(|snapshot| snapshot.name().to_owned()).collect();
    drop((snapshots, view));
    engine.snapshots().destroy_all(names, false).await.unwrap();
    engine.datasets().destroy(name).await.unwrap();
}

#[test]
fn hostile_streams_leave_nothing() {
    let streams: Vec<Vec<Item>> = [
        ("g-streams", "emb-ec"),
        ("g-send2", "spill"),
        ("g-send2", "empty"),
        ("g-streams", "enc-raw"),
    ]
    .into_iter()
    .filter_map(|(pool, name)| Some(recorded_stream(&golden(pool)?, name).bytes))
    .map(|bytes| substreams(&bytes).remove(0).0)
    .collect();
    let [few, all] = STREAMS;
    let count = cases(few, all);
    let mut rng = seeded("hostile_streams_leave_nothing", 0x5eed);
    block_on(2, async {
        let (mut received, mut refused) = (0, 0);
        for _ in 0..count / EACH_POOL {
            let target = Target::new().await;
            for number in 0..EACH_POOL {
                let items = hostile(&streams[number as usize % streams.len()], &mut rng);
                let what =
                    format!("{:?}", items.iter().map(|item| &item.record).collect::<Vec<_>>());
                let options = ReceiveOptions { snapshot: Some("s".into()), ..into("tank/got") };
                match receive_items(&target.engine, (items, None), options).await {
                    Ok(()) => {
                        received += 1;
                        clear(&target.engine, "tank/got").await;
                    }
                    Err(error) => {
                        refused += 1;
                        let kinds = [
                            Kind::Invalid,
                            Kind::Unsupported,
                            Kind::NotFound,
                            Kind::Exists,
                            Kind::Busy,
                        ];
                        assert!(kinds.contains(&error.kind()), "{error:?}\n{what}");
                        let gone = target.engine.head("tank/got").await.unwrap_err();
                        assert_eq!(gone.kind(), Kind::NotFound, "{error:?}\n{what}");
                    }
                }
            }
            target.judge("hostile streams", &["-dddd"]).await;
        }
        println!("{received} received, {refused} refused");
        // Neither is nearly all.
        assert!(received.min(refused) > count / 20, "{received} received, {refused} refused");
    })
    .unwrap();
}
