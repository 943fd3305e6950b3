//! Raw streams: encrypted datasets are received without their keys.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_codec::crypto::Suite;
use cenote_engine::{KeyChange, NewDataset, NewEncryption, ReceiveRefusal};
use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode, SetAttributes};
use cenote_fs::format::FsOwners;
use cenote_ondisk::objset::{ObjSetFlags, ObjSetType};
use cenote_ondisk::stream::{Range, Record};
use cenote_pool::Pool;
use cenote_pool::dsl::Dataset;
use cenote_pool::props::{SpaceOwner, SpaceRow};
use cenote_poolkit::pools::raw_key;
use cenote_rt::{Kind, block_on};
use cenote_stream::{Item, ReceiveOptions};
use cenote_testkit::compare;
use cenote_testkit::golden::{Golden, golden};
use cenote_testkit::streams::recorded_stream;

use crate::fixture::{Target, entries, into, receive_items, substreams, without_root_number};

/// Loads the key of a received encryption root.
async fn load_key(pool: &Arc<Pool>, golden: &Golden, name: &str, file: &str) {
    let key = std::fs::read(golden.key_file(file)).unwrap();
    let key = key.strip_suffix(b"\n").unwrap_or(&key);
    pool.load_key(&pool.dataset(name).await.unwrap(), key).await.unwrap();
}

/// The streams are received without the key, and have the sender's contents with it.
#[test]
fn raw_streams_give_what_the_sender_has() {
    let Some(golden) = golden("g-send2") else { return };
    for (streams, label) in [(&["enc-raw"][..], "e@1"), (&["enc-raw", "enc-raw-inc"], "e@2")] {
        block_on(2, async {
            let target = Target::new().await;
            for name in streams {
                let stream = recorded_stream(&golden, name);
                target.receive(&stream.bytes, &into("tank/got")).await.unwrap();
            }
            let locked = target.engine.head("tank/got").await.unwrap_err();
            assert_eq!(locked.kind(), Kind::KeyUnavailable, "{locked:?}");
            let (pool, _) = target.judge(&format!("{streams:?}"), &["-dddd"]).await;
            load_key(&pool, &golden, "tank/got", "pass").await;
            let wanted = without_root_number(golden.manifest(label));
            let snapshot = label.split_once('@').unwrap().1;
            for name in ["tank/got", &format!("tank/got@{snapshot}")] {
                let ours = without_root_number(entries(&pool, name).await);
                compare::assert_entries(&format!("{streams:?}: {name}"), &ours, &wanted);
            }
        })
        .unwrap();
    }
}

/// A stream that would change a block without the key for it is refused, and the pool goes on.
#[test]
fn raw_streams_change_nothing_that_needs_the_key() {
    let Some(golden) = golden("g-send2") else { return };
    let items = |name: &str| substreams(&recorded_stream(&golden, name).bytes).remove(0).0;
    block_on(2, async {
        let target = Target::new().await;
        let (full, increment) = (items("enc-raw"), items("enc-raw-inc"));
        receive_items(&target.engine, (full, None), into("tank/got")).await.unwrap();
        let Record::Begin(begin) = &increment[0].record else { panic!("no BEGIN") };
        // The master node is no object of an encrypted type: its block can be read.
        for (object, offset, len) in [(1, 0, 8), (1, 8, 100), (1, 100, Range::TO_THE_END)] {
            let mut items = increment.clone();
            let range = Range { object, offset, len, to_guid: begin.to_guid };
            let free =
                Item { record: Record::Free(range), payload: Vec::new(), ..items[1].clone() };
            items.insert(1, free);
            let done = receive_items(&target.engine, (items, None), into("tank/got")).await;
            let error = done.unwrap_err();
            assert_eq!(error.kind(), Kind::Invalid, "{object} {offset} {len}: {error:?}");
            target.engine.sync().await.unwrap();
        }
        receive_items(&target.engine, (increment, None), into("tank/got")).await.unwrap();
        target.judge("after hostile streams", &["-dddd"]).await;
    })
    .unwrap();
}

/// A dataset whose keys an increment wraps with the sender's key is an encryption root, even if it
/// has inherited another key here: either key opens what it wraps.
#[test]
fn an_increment_brings_the_key_of_the_sender_back() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| recorded_stream(&golden, name).bytes;
    block_on(2, async {
        let target = Target::new().await;
        let encryption = NewEncryption::Root(Some(Suite::Aes256Gcm), raw_key([9; 32]));
        let new = NewDataset { encryption, ..NewDataset::new("tank/p", ObjSetType::Zfs) };
        target.engine.datasets().create(new).await.unwrap();
        target.receive(&stream("enc-raw"), &into("tank/p/got")).await.unwrap();
        let view = target.engine.view().await.unwrap();
        load_key(&view, &golden, "tank/p/got", "pass").await;
        let datasets = target.engine.datasets();
        datasets.change_key("tank/p/got", KeyChange::Inherit).await.unwrap();
        drop(view);
        target.receive(&stream("enc-raw-inc"), &into("tank/p/got")).await.unwrap();
        let view = target.engine.view().await.unwrap();
        for name in ["tank/p", "tank/p/got"] {
            let dataset = view.dataset(name).await.unwrap();
            assert_eq!(dataset.encryption_root().await.unwrap().as_deref(), Some(name));
            view.unload_key(&dataset).await.unwrap();
        }
        view.load_key(&view.dataset("tank/p").await.unwrap(), &[9; 32]).await.unwrap();
        load_key(&view, &golden, "tank/p/got", "pass").await;
    })
    .unwrap();
}

/// Space and objects by owner, as the objects of a file system say.
async fn counted(dataset: &Dataset, owner: SpaceOwner) -> BTreeMap<u64, (u64, u64)> {
    let probe = FsOwners { counts_objects: true, counts_projects: true };
    let mut sums: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
    let mut dnodes = dataset.open().await.unwrap().dnodes(1);
    while let Some(dnode) = dnodes.next().await {
        let dnode = dnode.unwrap();
        let Some(of) = probe.of(&dnode).await.unwrap() else { continue };
        let id = match owner {
            SpaceOwner::User => of.uid,
            SpaceOwner::Group => of.gid,
            SpaceOwner::Project => of.project,
        };
        let sum = sums.entry(id).or_default();
        *sum = (sum.0 + 512 + dnode.phys().used_bytes(), sum.1 + 1);
    }
    sums
}

fn sums(rows: Vec<SpaceRow>) -> BTreeMap<u64, (u64, u64)> {
    rows.into_iter().map(|row| (row.id, (row.used, row.objects_used))).collect()
}

/// What each owner has is counted with the key: when somebody asks, and for good from the first
/// change on. That includes what had been counted before an increment changed it.
#[test]
fn what_owners_have_is_counted_with_the_key() {
    let Some(golden) = golden("g-send2") else { return };
    block_on(2, async {
        let target = Target::new().await;
        let probe = FsOwners { counts_objects: true, counts_projects: true };
        target.engine.datasets().set_owner_probe(Arc::new(probe));
        let forced = ReceiveOptions { is_forced: true, ..into("tank/got") };
        for (stream, options) in [("enc-raw", into("tank/got")), ("enc-raw-inc", forced)] {
            let stream = recorded_stream(&golden, stream);
            target.receive(&stream.bytes, &options).await.unwrap();
            let view = target.engine.view().await.unwrap();
            let dataset = view.dataset("tank/got").await.unwrap();
            if dataset.open().await.is_err() {
                load_key(&view, &golden, "tank/got", "pass").await;
            }
            for owner in SpaceOwner::ALL {
                let asked = cenote_fs::space_by_owner(&dataset, owner).await.unwrap();
                assert_eq!(sums(asked), counted(&dataset, owner).await, "{owner:?}, asked");
            }
            drop((dataset, view));

            // The first mount ends in the middle of that, the second one goes on changing files.
            for is_cut in [true, false] {
                let mount = Mount::open(&target.engine, "tank/got").await.unwrap();
                let live = Arc::clone(mount.head().live());
                let is_complete = || live.flags().contains(ObjSetFlags::USERACCOUNTING_COMPLETE);
                let (me, new) = (Credentials::root(), NewNode::new(NewKind::Regular, 0o644));
                for number in 0.. {
                    let name = format!("{is_cut} {number}").into_bytes();
                    let made = mount.create(&me, mount.root(), &name, &new).await.unwrap();
                    let uid = Some(number);
                    let change = SetAttributes { uid, ..SetAttributes::default() };
                    mount.set_attributes(&me, made.object, &change).await.unwrap();
                    if number % 2 == 1 {
                        mount.unlink(&me, mount.root(), &name).await.unwrap();
                    }
                    if is_complete() || is_cut {
                        break;
                    }
                    target.engine.sync().await.unwrap();
                }
            }
            let view = target.engine.view().await.unwrap();
            let dataset = view.dataset("tank/got").await.unwrap();
            for owner in SpaceOwner::ALL {
                let stored = dataset.space_by_owner(owner).await.unwrap();
                let counted = counted(&dataset, owner).await;
                assert!(!counted.is_empty());
                assert_eq!(sums(stored), counted, "{owner:?}, stored");
            }
        }
        target.judge("counted", &["-dddd"]).await;
    })
    .unwrap();
}

/// What does not fit the key or the source is refused, and changes nothing.
#[test]
fn raw_streams_that_do_not_fit_are_refused() {
    let Some(golden) = golden("g-send2") else { return };
    let stream = |name: &str| recorded_stream(&golden, name).bytes;
    block_on(2, async {
        let target = Target::new().await;
        target.receive(&stream("enc-raw"), &into("tank/raw")).await.unwrap();
        target.receive(&stream("enc-plain"), &into("tank/plain")).await.unwrap();
        let forced = |name: &str| {
            let snapshot = Some("other".into());
            ReceiveOptions { is_forced: true, snapshot, ..into(name) }
        };
        let refused = [
            ("enc-raw", forced("tank/raw"), ReceiveRefusal::ReplacesEncrypted),
            ("enc-raw", forced("tank/plain"), ReceiveRefusal::ReplacesEncrypted),
            ("full", forced("tank/raw"), ReceiveRefusal::ReplacesEncrypted),
            ("enc-raw-inc", into("tank/plain"), ReceiveRefusal::RawOntoPlain),
            ("enc-plain-inc", into("tank/raw"), ReceiveRefusal::KeyNotLoaded),
            ("enc-raw-inc", into("tank/new"), ReceiveRefusal::TargetMissing),
        ];
        for (name, options, refusal) in refused {
            let error = target.receive(&stream(name), &options).await.unwrap_err();
            assert_eq!(error.cause(), Some(&refusal), "{name}: {error:?}");
        }
        target.judge("refusals", &["-dddd"]).await;
    })
    .unwrap();
}
