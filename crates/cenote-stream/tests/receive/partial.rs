//! Interrupted receives: saved, resumed, discarded; by cenote and by OpenZFS's kernel module.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::nvlist::{Encoding, NvList};
use cenote_ondisk::stream::{Record, StreamFeatures};
use cenote_pool::import::{ScanOptions, scan};
use cenote_pool::props::PropValue;
use cenote_pool::{OpenOptions, Pool};
use cenote_poolkit::pools;
use cenote_rt::{Kind, block_on};
use cenote_stream::{Item, ReceiveOptions, Receiver};
use cenote_testkit::golden::golden;
use cenote_testkit::streams::recorded_stream;
use cenote_testkit::{compare, unpack};

use crate::fixture::{Target, entries, into, receive_items, substreams, without_root_number};

/// Returns the stream that a sender sends for the rest: as `items`, from a point on.
pub(crate) fn rest_of(items: &[Item], object: u64, offset: u64) -> Vec<Item> {
    let mut rest = Vec::new();
    for item in items {
        let mut item = item.clone();
        let keeps = match &mut item.record {
            Record::Begin(begin) => {
                begin.features |= StreamFeatures::RESUMING;
                let mut list = NvList::new();
                list.insert("resume_object", object);
                list.insert("resume_offset", offset);
                item.payload = list.encode(Encoding::Xdr);
                begin.payload_len = item.payload.len() as u32;
                true
            }
            Record::Object(record) => record.object >= object,
            Record::Write(record) => (record.object, record.offset) >= (object, offset),
            Record::WriteEmbedded(record) => (record.object, record.offset) >= (object, offset),
            Record::Free(record) => record.object >= object,
            Record::Spill(record) => record.object >= object,
            Record::FreeObjects(record) => record.first >= object,
            _ => true,
        };
        if keeps {
            rest.push(item);
        }
    }
    rest
}

/// Applies the first `count` records of a substream, and leaves the receive as a crash does.
async fn cut(engine: &Arc<Engine>, items: &[Item], count: usize, options: ReceiveOptions) {
    let mut receiver = Receiver::begin(engine, &items[0], Endian::Little, options).await.unwrap();
    for item in &items[1..count] {
        receiver.apply(item.clone()).await.unwrap();
    }
    engine.sync().await.unwrap();
}

/// Opens the devices again, as after a crash.
async fn reopened(target: Target) -> Target {
    let Target { engine, devices } = target;
    drop(engine);
    let devices = pools::devices(pools::images_of(&devices));
    let engine = pools::open(pools::as_devices(&devices)).await.unwrap();
    Target { engine, devices }
}

/// Returns the resume keys of a dataset: object and offset.
pub(crate) async fn saved_point(
    devices: &[Arc<cenote_device::ImageDevice>],
    name: &str,
) -> (u64, u64) {
    let pool = pools::open_copy(devices).await.unwrap();
    let dataset = pool.dataset(name).await.unwrap();
    assert!(dataset.is_inconsistent());
    let token = dataset.props().await.unwrap().get("receive_resume_token").await.unwrap().unwrap();
    assert!(matches!(&token.value, PropValue::Text(text) if text.starts_with("1-")), "{token:?}");
    let object = dataset.object();
    let key = async |key: &'static str| {
        let look = pool.mos().read(|mos| cenote_pool::mos::extra_value(mos, object, key));
        look.await.unwrap().and_then(|value| value.first()).unwrap()
    };
    (
        key(cenote_ondisk::dsl::key::RESUME_OBJECT).await,
        key(cenote_ondisk::dsl::key::RESUME_OFFSET).await,
    )
}

/// A crash after any record: the rest completes the receive, from the point that is on disk.
#[test]
fn a_receive_cut_at_records_is_resumed() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| recorded_stream(&golden, name).bytes;
    let (full, _) = substreams(&stream("full-Lec")).remove(0);
    let (increment, _) = substreams(&stream("obj-jump")).remove(0);
    let cases = [
        (None, &full, "tank/got", "received-a-full"),
        (Some("obj-full"), &increment, "tank/got/%recv", "received-o-jump"),
    ];
    block_on(2, async {
        for (before, items, dataset, label) in cases {
            for part in 1..6 {
                let count = items.len() * part / 6;
                let target = Target::new().await;
                if let Some(before) = before {
                    target.receive(&stream(before), &into("tank/got")).await.unwrap();
                }
                let options = ReceiveOptions { is_resumable: true, ..into("tank/got") };
                cut(&target.engine, items, count, options.clone()).await;
                let target = reopened(target).await;
                let (object, offset) = saved_point(&target.devices, dataset).await;
                let rest = rest_of(items, object, offset);
                // Another point, and another stream, are refused.
                let wrong = rest_of(items, object, offset + 512);
                let error = receive_items(&target.engine, (wrong, None), options.clone()).await;
                assert_eq!(error.unwrap_err().kind(), Kind::Invalid);
                let whole = (items.clone(), None);
                let error = receive_items(&target.engine, whole, options.clone()).await;
                assert_eq!(error.unwrap_err().kind(), Kind::Busy);
                receive_items(&target.engine, (rest, None), options).await.unwrap();
                let what = format!("{label}, cut at record {count}");
                let (pool, _) = target.judge(&what, &["-dddd"]).await;
                let ours = without_root_number(entries(&pool, "tank/got").await);
                compare::assert_entries(&what, &ours, &without_root_number(golden.manifest(label)));
            }
        }
    })
    .unwrap();
}

/// Without resume keys nothing is left after a crash; with them it can be discarded.
#[test]
fn what_a_crash_leaves_is_destroyed() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| recorded_stream(&golden, name).bytes;
    let (increment, _) = substreams(&stream("inc")).remove(0);
    block_on(2, async {
        for is_resumable in [false, true] {
            let target = Target::new().await;
            target.receive(&stream("full"), &into("tank/got")).await.unwrap();
            let options = ReceiveOptions { is_resumable, ..into("tank/got") };
            cut(&target.engine, &increment, increment.len() / 2, options).await;
            let target = reopened(target).await;
            let left = target.engine.head("tank/got/%recv").await.err().map(|error| error.kind());
            let wanted = if is_resumable { Kind::Busy } else { Kind::NotFound };
            assert_eq!(left, Some(wanted));
            let discarded = target.engine.receives().discard("tank/got").await;
            assert_eq!(discarded.is_ok(), is_resumable, "{discarded:?}");
            let left = target.engine.head("tank/got/%recv").await.err().map(|error| error.kind());
            assert_eq!(left, Some(Kind::NotFound));
            let (pool, _) = target.judge("after a crash", &["-dddd"]).await;
            let wanted = without_root_number(golden.manifest("received-a-full"));
            let ours = without_root_number(entries(&pool, "tank/got").await);
            compare::assert_entries("kept", &ours, &wanted);
        }
    })
    .unwrap();
}

/// A dataset that is being received is not mounted, snapshotted or destroyed.
#[test]
fn a_receive_owns_its_dataset() {
    let Some(golden) = golden("g-send2") else { return };
    let (items, _) = substreams(&recorded_stream(&golden, "full").bytes).remove(0);
    block_on(2, async {
        let target = Target::new().await;
        let engine = &target.engine;
        let receiver =
            Receiver::begin(engine, &items[0], Endian::Little, into("tank/got")).await.unwrap();
        let busy = [
            engine.snapshots().create(vec!["tank/got@s".into()]).await,
            engine.datasets().destroy("tank/got").await,
        ];
        for result in busy {
            assert_eq!(result.unwrap_err().kind(), Kind::Busy);
        }
        receiver.abort().await.unwrap();
        assert!(engine.head("tank/got").await.is_err());
    })
    .unwrap();
}

/// The rest that OpenZFS sends for a resume token completes a receive that was cut at that point.
#[test]
fn the_rest_that_openzfs_sends_completes_a_receive() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| recorded_stream(&golden, name).bytes;
    let (full, _) = substreams(&stream("full")).remove(0);
    let (rest, _) = substreams(&stream("resume-rest")).remove(0);
    let list = NvList::decode_prefix(&rest[0].payload).unwrap().0;
    let point = (list.u64("resume_object").unwrap(), list.u64("resume_offset").unwrap());
    let is_at = |item: &Item| match &item.record {
        Record::Object(record) => (record.object, 0) == point,
        Record::Write(record) => (record.object, record.offset) == point,
        _ => false,
    };
    let count = full.iter().rposition(is_at).unwrap() + 1;
    block_on(2, async {
        let target = Target::new().await;
        let options = ReceiveOptions { is_resumable: true, ..into("tank/got") };
        cut(&target.engine, &full, count, options.clone()).await;
        let target = reopened(target).await;
        assert_eq!(saved_point(&target.devices, "tank/got").await, point);
        receive_items(&target.engine, (rest, None), options).await.unwrap();
        let (pool, _) = target.judge("resumed", &["-dddd"]).await;
        let ours = without_root_number(entries(&pool, "tank/got@one").await);
        let wanted = without_root_number(golden.manifest("received-a-full"));
        compare::assert_entries("resumed", &ours, &wanted);
    })
    .unwrap();
}

/// What OpenZFS received in part is completed here.
#[test]
fn what_the_kernel_began_is_completed() {
    let Some(golden) = golden("g-recv-partial") else { return };
    let copy = golden.private_copy();
    block_on(2, async {
        let found = scan(&ScanOptions { paths: copy.devices() }).await.unwrap();
        let candidate = found.find("g-recv-partial").unwrap();
        let opened = Engine::open(candidate, &OpenOptions::default()).await;
        let engine = match opened {
            Ok(engine) => engine,
            // The pool has encrypted datasets, with a feature that is read only here.
            Err(error) if error.kind() == Kind::Unsupported => {
                cenote_testkit::skip::skip(
                    "what_the_kernel_began_is_completed",
                    &error.to_string(),
                );
                return;
            }
            Err(error) => panic!("{error:?}"),
        };
        for name in ["full", "inc"] {
            let tail = unpack::decompress(&golden.folder().join(format!("tail.{name}.zst")));
            let options =
                ReceiveOptions { is_resumable: true, ..into(&format!("g-recv-partial/{name}")) };
            receive_items(&engine, substreams(&tail).remove(0), options).await.unwrap();
        }
        engine.export().await.unwrap();
        drop(engine);
        let found = scan(&ScanOptions { paths: copy.devices() }).await.unwrap();
        let candidate = found.find("g-recv-partial").unwrap();
        let pool: Arc<Pool> = Pool::open(candidate, &OpenOptions::default()).await.unwrap();
        for (ours, theirs) in [("full@one", "src@one"), ("inc@two", "src@two")] {
            let found =
                without_root_number(entries(&pool, &format!("g-recv-partial/{ours}")).await);
            compare::assert_entries(ours, &found, &without_root_number(golden.manifest(theirs)));
        }
    })
    .unwrap();
}
