//! Corrective receives: blocks without a good copy get their bytes from a stream.

use std::ops::Range;
use std::sync::Arc;

use cenote_device::{Device as _, ImageDevice};
use cenote_dmu::ObjSet;
use cenote_engine::Engine;
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::endian::Endian;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::stream::Record;
use cenote_poolkit::PoolBuilder;
use cenote_rt::{Buf, Kind, Result, block_on, tunables};
use cenote_stream::{Healed, Healer, Item, ReceiveError};
use cenote_testkit::compare;
use cenote_testkit::golden::golden;
use cenote_testkit::streams::recorded_stream;

use crate::fixture::{Target, entries, into, receive_items, substreams, without_root_number};

const SNAPSHOT: &str = "tank/got@one";

async fn heal(engine: &Arc<Engine>, items: &[Item], name: &str) -> Result<Healed> {
    let mut healer = Healer::begin(engine, &items[0], Endian::Little, name).await?;
    for item in &items[1..] {
        healer.apply(item.clone()).await?;
    }
    healer.finish().await
}

/// Where all copies and parts of a block are: numbers of devices, and ranges of them. Another test
/// of this process may have forced its write to gang blocks.
async fn places(target: &Target, set: &ObjSet, bp: BlockPtr) -> Vec<(usize, Range<u64>)> {
    let store = target.engine.store();
    let members =
        if bp.is_gang() { store.gang_members(&bp, set.grounds()).await.unwrap() } else { vec![bp] };
    let tree = store.tree();
    let ranges = members.iter().flat_map(|member| {
        let (len, birth) = (member.psize(), member.physical_birth());
        member.dvas().flat_map(move |dva| tree.layout_ranges(dva, len, birth))
    });
    let device_of = |leaf| {
        let path = tree.leaf(leaf).path();
        target.devices.iter().position(|device| device.info().path == path).unwrap()
    };
    ranges.map(|range| (device_of(range.leaf), range.offset..range.offset + range.len)).collect()
}

async fn flip(device: &ImageDevice, at: u64) {
    let mut sector = vec![0; 512];
    let at = at - at % 512;
    device.image().read_at(at, &mut sector);
    sector[7] ^= 1;
    device.write(at, vec![Buf::from(sector)]).await.unwrap();
}

/// Damages all copies and parts of the file blocks of the snapshot, and reads them so that the log
/// has them. Returns their objects and offsets.
async fn damage(target: &Target, snapshot: &str) -> Vec<(u64, u64)> {
    let engine = &target.engine;
    let set = engine.view().await.unwrap().dataset(snapshot).await.unwrap().open().await.unwrap();
    let (mut dnodes, mut found) = (set.dnodes(1), Vec::new());
    while let Some(dnode) = dnodes.next().await {
        let dnode = dnode.unwrap();
        if dnode.phys().object_type != ObjectType::PLAIN_FILE_CONTENTS {
            continue;
        }
        for blkid in 0..dnode.block_count() {
            let bp = dnode.block_pointer(0, blkid).await.unwrap();
            let Some(bp) = bp.filter(|bp| !bp.is_embedded()) else { continue };
            for (device, range) in places(target, &set, bp).await {
                flip(&target.devices[device], range.start).await;
            }
            found.push((dnode.object(), blkid * dnode.phys().data_block_size()));
        }
    }
    engine.store().clear_cache();
    let set = engine.view().await.unwrap().dataset(snapshot).await.unwrap().open().await.unwrap();
    for (object, offset) in &found {
        let dnode = set.dnode(*object).await.unwrap();
        let error = dnode.read_at(*offset, 1).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Checksum);
    }
    engine.sync().await.unwrap();
    assert!(!engine.view().await.unwrap().error_log().await.unwrap().is_empty());
    found
}

async fn received((layout, count, ashift): (&str, usize, u64), items: &[Item]) -> Target {
    let builder = PoolBuilder::of(layout, count).with_size(160 << 20).with_ashift(ashift);
    let (engine, devices) = builder.with_file_system().with_seed(3).create_in_memory().await;
    receive_items(&engine, (items.to_vec(), None), into("tank/got")).await.unwrap();
    Target { engine, devices }
}

#[test]
fn damaged_blocks_of_every_layout_are_healed() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| substreams(&recorded_stream(&golden, name).bytes).remove(0).0;
    let wanted = without_root_number(golden.manifest("received-a-full"));
    block_on(2, async {
        for (layout, before, healing, is_ganging) in [
            // Contents are compressed again, kept as sent, and both.
            (("disk", 1, 9), "full", "full", false),
            (("mirror", 2, 12), "full-Lec", "full-Lec", false),
            (("raidz1", 3, 12), "full", "recompressed", false),
            (("raidz2", 6, 9), "full-Lec", "full", false),
            (("mirror", 2, 9), "full", "full", true),
        ] {
            let what = format!("{layout:?}: {before}, {healing}, {is_ganging}");
            if is_ganging {
                tunables::FORCE_GANGING.set(16 << 10).unwrap();
                tunables::FORCE_GANGING_PCT.set(100).unwrap();
            }
            let target = received(layout, &stream(before)).await;
            tunables::FORCE_GANGING.set(tunables::FORCE_GANGING.default).unwrap();
            tunables::FORCE_GANGING_PCT.set(tunables::FORCE_GANGING_PCT.default).unwrap();
            let damaged = damage(&target, SNAPSHOT).await.len() as u64;
            assert!(damaged > 3, "{what}: {damaged}");
            let done = heal(&target.engine, &stream(healing), SNAPSHOT).await.unwrap();
            let wanted_counts = (damaged, 0);
            assert_eq!((done.healed, done.left), wanted_counts, "{what}: {done:?}");
            assert!(done.examined >= damaged, "{what}: {done:?}");
            let log = target.engine.view().await.unwrap().error_log().await.unwrap();
            assert_eq!(log, [], "{what}");
            let again = heal(&target.engine, &stream(healing), SNAPSHOT).await.unwrap();
            assert_eq!(again, Healed { healed: 0, ..done }, "{what}");
            let (pool, _) = target.judge(&what, &["-dddd"]).await;
            for name in [SNAPSHOT, "tank/got"] {
                let ours = without_root_number(entries(&pool, name).await);
                compare::assert_entries(&what, &ours, &wanted);
            }
        }
    })
    .unwrap();
}

/// Blocks of an encrypted snapshot are healed by a raw stream without keys, and with the keys by
/// one of the contents; the bytes are those that were there.
#[test]
fn encrypted_blocks_are_healed() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| substreams(&recorded_stream(&golden, name).bytes).remove(0).0;
    block_on(2, async {
        for (layout, healing, has_keys) in [
            (("mirror", 2, 12), "enc-raw", false),
            (("raidz1", 3, 9), "enc-raw", true),
            (("disk", 1, 9), "enc-plain", true),
            (("mirror", 2, 9), "enc-plain", false),
        ] {
            let what = format!("{layout:?}: {healing}, keys {has_keys}");
            let target = received(layout, &stream("enc-raw")).await;
            let engine = &target.engine;
            let key = std::fs::read(golden.key_file("pass")).unwrap();
            let key = key.strip_suffix(b"\n").unwrap_or(&key);
            let view = engine.view().await.unwrap();
            let root = view.dataset("tank/got").await.unwrap();
            view.load_key(&root, key).await.unwrap();
            let snapshots = root.snapshots().await.unwrap();
            let name = snapshots[0].name().to_owned();
            let damaged = damage(&target, &name).await.len() as u64;
            assert!(damaged > 0, "{what}");
            if !has_keys {
                view.unload_key(&root).await.unwrap();
            }
            drop((view, root, snapshots));
            let done = heal(engine, &stream(healing), &name).await;
            if !has_keys && healing == "enc-plain" {
                assert_eq!(done.unwrap_err().kind(), Kind::KeyUnavailable, "{what}");
                continue;
            }
            let done = done.unwrap();
            assert_eq!((done.healed, done.left), (damaged, 0), "{what}: {done:?}");
            assert_eq!(engine.view().await.unwrap().error_log().await.unwrap(), [], "{what}");
            target.judge(&what, &["-dddd"]).await;
        }
    })
    .unwrap();
}

/// A stream with other bytes changes nothing: the block is left, the others are healed.
#[test]
fn other_bytes_are_never_written() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| substreams(&recorded_stream(&golden, name).bytes).remove(0).0;
    block_on(2, async {
        let mut items = stream("full");
        let target = received(("mirror", 2, 9), &items).await;
        let damaged = damage(&target, SNAPSHOT).await;
        let before: Vec<_> = target.devices.iter().map(|device| device.image()).collect();
        let (object, offset) = damaged[1];
        let mut changed = None;
        for item in &mut items {
            if matches!(&item.record, Record::Write(write) if (write.object, write.offset) == (object, offset))
            {
                changed = Some(item.payload[100]);
                item.payload[100] ^= 1;
            }
        }
        assert!(changed.is_some(), "{object}, {offset}");
        let done = heal(&target.engine, &items, SNAPSHOT).await.unwrap();
        assert_eq!((done.healed, done.left), (damaged.len() as u64 - 1, 1));
        let view = target.engine.view().await.unwrap();
        let log = view.error_log().await.unwrap();
        assert!(!log.is_empty() && log.iter().all(|entry| entry.place.object == object), "{log:?}");
        // Nothing of the block was written.
        let set = view.dataset(SNAPSHOT).await.unwrap().open().await.unwrap();
        let dnode = set.dnode(object).await.unwrap();
        let blkid = offset / dnode.phys().data_block_size();
        let bp = dnode.block_pointer(0, blkid).await.unwrap().unwrap();
        for (device, range) in places(&target, &set, bp).await {
            let len = (range.end - range.start) as usize;
            let (mut now, mut then) = (vec![0; len], vec![1; len]);
            target.devices[device].image().read_at(range.start, &mut now);
            before[device].read_at(range.start, &mut then);
            assert!(now == then, "{range:?}");
        }
    })
    .unwrap();
}

#[test]
fn streams_of_other_snapshots_are_refused() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| substreams(&recorded_stream(&golden, name).bytes).remove(0).0;
    block_on(2, async {
        let full = stream("full");
        let target = received(("disk", 1, 12), &full).await;
        receive_items(&target.engine, (stream("inc"), None), into("tank/got")).await.unwrap();
        for (items, name) in
            [(&full, "tank/got@two"), (&stream("inc"), SNAPSHOT), (&full, "tank/got")]
        {
            let error = heal(&target.engine, items, name).await.unwrap_err();
            assert!(matches!(error.cause(), Some(ReceiveError::OtherSnapshot)), "{error:?}");
        }
        let missing = heal(&target.engine, &full, "tank/got@none").await.unwrap_err();
        assert_eq!(missing.kind(), Kind::NotFound);
        // Other lengths of blocks.
        let mut other = full.clone();
        let write = other.iter_mut().find_map(|item| match &mut item.record {
            Record::Write(write) => Some((write, &mut item.payload)),
            _ => None,
        });
        let (write, payload) = write.unwrap();
        write.logical_len += 512;
        payload.resize(payload.len() + 512, 0);
        let error = heal(&target.engine, &other, SNAPSHOT).await.unwrap_err();
        assert!(matches!(error.cause(), Some(ReceiveError::OtherBlock { .. })), "{error:?}");
        // A stream that ends early.
        let mut healer =
            Healer::begin(&target.engine, &full[0], Endian::Little, SNAPSHOT).await.unwrap();
        healer.apply(full[1].clone()).await.unwrap();
        assert_eq!(healer.finish().await.unwrap_err().kind(), Kind::Invalid);
        target.judge("refused", &[]).await;
    })
    .unwrap();
}
