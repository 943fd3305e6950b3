//! Streams that are damaged, refused or end early change nothing that users see.

use cenote_ondisk::endian::Endian;
use cenote_ondisk::stream::Record;
use cenote_rt::{Kind, block_on};
use cenote_stream::{ReceiveOptions, Receiver};
use cenote_testkit::compare;
use cenote_testkit::golden::golden;
use cenote_testkit::streams::recorded_stream;

use crate::fixture::{Target, entries, into, receive_items, substreams, without_root_number};

#[test]
fn a_damaged_stream_leaves_nothing() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let target = Target::new().await;
        for name in ["truncated", "flipped"] {
            let stream = recorded_stream(&golden, name);
            let error = target.receive(&stream.bytes, &into("tank/got")).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{name}: {error:?}");
            let error = target.engine.head("tank/got").await.unwrap_err();
            assert_eq!(error.kind(), Kind::NotFound, "{name}");
        }
        target.judge("damaged", &["-dddd"]).await;
    })
    .unwrap();
}

/// A receive into an existing dataset: refused, or given up, it leaves the dataset as it was.
#[test]
fn an_existing_target_is_kept_until_the_end() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let target = Target::new().await;
        let stream = |name: &str| recorded_stream(&golden, name).bytes;
        target.receive(&stream("full"), &into("tank/got")).await.unwrap();
        let refused = [
            ("full", Kind::Exists),
            ("clone-full", Kind::Exists),
            ("clone-inc", Kind::Invalid),
            ("obj-inc", Kind::NotFound),
            ("empty-inc", Kind::NotFound),
        ];
        for (name, kind) in refused {
            let error = target.receive(&stream(name), &into("tank/got")).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{name}: {error:?}");
        }
        let error = target.receive(&stream("inc"), &into("tank/none")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::NotFound, "{error:?}");
        // Half of an increment.
        let (items, _) = substreams(&stream("inc")).remove(0);
        let half = items[..items.len() / 2].to_vec();
        let early = cenote_rt::Error::new(Kind::Io, "the sender is gone");
        let error = receive_items(&target.engine, (half, Some(early)), into("tank/got")).await;
        assert_eq!(error.unwrap_err().kind(), Kind::Io);
        let (pool, _) = target.judge("existing", &["-dddd"]).await;
        let wanted = without_root_number(golden.manifest("received-a-full"));
        let ours = without_root_number(entries(&pool, "tank/got").await);
        compare::assert_entries("kept", &ours, &wanted);
        assert!(pool.dataset("tank/got/%recv").await.is_err());
    })
    .unwrap();
}

/// A target that was modified is refused, or rolled back with `-F`, which also destroys later
/// snapshots.
#[test]
fn force_discards_what_came_after_the_source() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let target = Target::new().await;
        let stream = |name: &str| recorded_stream(&golden, name).bytes;
        target.receive(&stream("full"), &into("tank/got")).await.unwrap();
        let head = target.engine.head("tank/got").await.unwrap();
        let options = cenote_engine::ApplyOptions::new();
        target
            .engine
            .apply(&head, options, |tx| {
                tx.next_object(100).and_then(|object| tx.free_range(object.unwrap_or(1), 0, None))
            })
            .await
            .unwrap();
        drop(head);
        target.engine.sync().await.unwrap();
        let error = target.receive(&stream("inc"), &into("tank/got")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error:?}");
        target.engine.snapshots().create(vec!["tank/got@later".into()]).await.unwrap();
        let error = target.receive(&stream("inc"), &into("tank/got")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Busy, "{error:?}");
        let forced = ReceiveOptions { is_forced: true, ..into("tank/got") };
        target.receive(&stream("inc"), &forced).await.unwrap();
        // A full stream replaces everything.
        let replaced = ReceiveOptions { snapshot: Some("full".into()), ..forced };
        target.receive(&stream("obj-full3"), &replaced).await.unwrap();
        let (pool, _) = target.judge("forced", &["-dddd"]).await;
        let wanted = without_root_number(golden.manifest("received-o-full3"));
        let ours = without_root_number(entries(&pool, "tank/got").await);
        compare::assert_entries("replaced", &ours, &wanted);
        for gone in ["tank/got@one", "tank/got@two", "tank/got@later"] {
            assert!(pool.dataset(gone).await.is_err(), "{gone}");
        }
    })
    .unwrap();
}

/// Records that go backwards, or change objects that do not exist.
#[test]
fn records_out_of_order_are_refused() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let target = Target::new().await;
        let (items, _) = substreams(&recorded_stream(&golden, "full").bytes).remove(0);
        let is_write = |item: &cenote_stream::Item| matches!(item.record, Record::Write(_));
        let first = items.iter().position(is_write).unwrap();
        let last = items.iter().rposition(is_write).unwrap();
        let mut swapped = items.clone();
        swapped.swap(first, last);
        let mut orphaned = items.clone();
        orphaned.retain(|item| !matches!(item.record, Record::Object(_)));
        let mut unended = items.clone();
        unended.pop();
        for (what, items) in [("swapped", swapped), ("orphaned", orphaned), ("unended", unended)] {
            let error =
                receive_items(&target.engine, (items, None), into("tank/got")).await.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{what}: {error:?}");
        }
        target.judge("out of order", &["-dddd"]).await;
    })
    .unwrap();
}

/// A pool that runs full refuses the rest of a stream, and works on.
#[test]
fn a_quota_ends_a_receive_and_not_the_pool() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let target = Target::new().await;
        let quota = cenote_ondisk::zap::Value::U64(1 << 20);
        target.engine.properties().set("tank", "quota", quota).await.unwrap();
        let stream = recorded_stream(&golden, "large-plain").bytes;
        let error = target.receive(&stream, &into("tank/got")).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Quota, "{error:?}");
        assert!(target.engine.head("tank/got").await.is_err());
        target.engine.sync().await.unwrap();
        target.judge("quota", &["-dddd"]).await;
    })
    .unwrap();
}

/// A mounted target is replaced once it is not in use any more.
#[test]
fn a_target_in_use_is_replaced_when_it_is_free() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let target = Target::new().await;
        let stream = |name: &str| recorded_stream(&golden, name).bytes;
        target.receive(&stream("full"), &into("tank/got")).await.unwrap();
        let (items, _) = substreams(&stream("inc")).remove(0);
        let engine = &target.engine;
        let mut receiver =
            Receiver::begin(engine, &items[0], Endian::Little, into("tank/got")).await.unwrap();
        for item in &items[1..] {
            receiver.apply(item.clone()).await.unwrap();
        }
        let owner = engine.head("tank/got").await.unwrap().own();
        assert_eq!(receiver.finish().await.unwrap_err().kind(), Kind::Busy);
        drop(owner);
        receiver.finish().await.unwrap();
        drop(receiver);
        let (pool, _) = target.judge("in use", &["-dddd"]).await;
        let wanted = without_root_number(golden.manifest("received-a-inc"));
        let ours = without_root_number(entries(&pool, "tank/got").await);
        compare::assert_entries("in use", &ours, &wanted);
    })
    .unwrap();
}

/// Snapshots are counted, also those that a receive takes. The superuser is not bound by limits.
#[test]
fn received_snapshots_are_counted() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let target = Target::new().await;
        let stream = |name: &str| recorded_stream(&golden, name).bytes;
        target.receive(&stream("full"), &into("tank/got")).await.unwrap();
        let one = cenote_ondisk::zap::Value::U64(1);
        target.engine.properties().set("tank/got", "snapshot_limit", one).await.unwrap();
        target.receive(&stream("inc"), &into("tank/got")).await.unwrap();
        target.judge("limits", &["-dddd"]).await;
    })
    .unwrap();
}
