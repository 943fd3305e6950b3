//! Keys that change beside everything else: whatever is created can be opened with the key of its
//! encryption root.

use std::sync::Arc;

use cenote_codec::crypto::Suite;
use cenote_device::{Device as _, ImageDevice};
use cenote_dmu::Tx;
use cenote_dmu::zap::edit as zap;
use cenote_engine::admin::PoolSetting;
use cenote_engine::{Engine, KeyChange, NewDataset, NewEncryption, UserKey};
use cenote_ondisk::dsl::{crypto as entry, key as extra};
use cenote_ondisk::feature::FEATURES;
use cenote_ondisk::objset::ObjSetType;
use cenote_pool::Reason;
use cenote_pool::features::table_of;
use cenote_pool::mos::DIRECTORY;
use cenote_poolkit::PoolBuilder;
use cenote_poolkit::pools::{as_devices, open_read_only, raw_key};
use cenote_rt::{Buf, Kind, Result, block_on};
use futures_util::future::{join, join_all};

fn key(number: u8) -> UserKey {
    raw_key([number; 32])
}

async fn create(engine: &Engine, name: &str, encryption: NewEncryption) -> Result<()> {
    let new = NewDataset { encryption, ..NewDataset::new(name, ObjSetType::Zfs) };
    engine.datasets().create(new).await.map(drop)
}

async fn pool() -> (Arc<Engine>, Vec<Arc<ImageDevice>>) {
    PoolBuilder::disks(1).with_file_system().with_seed(1).create_in_memory().await
}

fn root(number: u8) -> NewEncryption {
    NewEncryption::Root(Some(Suite::Aes256Gcm), key(number))
}

/// Unloads the key of a root and loads it again. All datasets with these names must have keys then.
async fn load_again(engine: &Engine, root: &str, number: u8, names: &[String]) {
    let view = engine.view().await.unwrap();
    let dataset = view.dataset(root).await.unwrap();
    view.unload_key(&dataset).await.unwrap();
    view.load_key(&dataset, &[number; 32]).await.unwrap();
    for name in names {
        let info = view.dataset(name).await.unwrap().key_info().await.unwrap().unwrap();
        assert!(view.keys().is_loaded(&info), "{name} cannot be opened with the key of {root}");
    }
}

#[test]
fn datasets_that_are_created_while_the_key_changes_can_be_opened() {
    block_on(2, async {
        let (engine, _devices) = pool().await;
        create(&engine, "tank/r", root(0)).await.unwrap();
        let mut names = Vec::new();
        for round in 1..=10 {
            let new: Vec<_> = (0..4).map(|number| format!("tank/r/{round}-{number}")).collect();
            let creating = new.iter().map(|name| create(&engine, name, NewEncryption::Inherited));
            let change = KeyChange::Root(key(round));
            let changing = engine.datasets().change_key("tank/r", change);
            let (changed, created) = join(changing, join_all(creating)).await;
            changed.unwrap();
            created.into_iter().collect::<Result<Vec<_>>>().unwrap();
            names.extend(new);
            load_again(&engine, "tank/r", round, &names).await;
        }
        // A child of its parent is created where a child stops being a root.
        create(&engine, "tank/r/kid", root(77)).await.unwrap();
        let inheriting = engine.datasets().change_key("tank/r/kid", KeyChange::Inherit);
        let creating = create(&engine, "tank/r/kid/below", NewEncryption::Inherited);
        let (changed, created) = join(inheriting, creating).await;
        changed.and(created).unwrap();
        names.extend(["tank/r/kid".to_owned(), "tank/r/kid/below".to_owned()]);
        load_again(&engine, "tank/r", 10, &names).await;
    })
    .unwrap();
}

#[test]
fn a_promoted_clone_has_the_key_of_its_origin() {
    block_on(2, async {
        let (engine, _devices) = pool().await;
        create(&engine, "tank/p", root(1)).await.unwrap();
        engine.snapshots().create(vec!["tank/p@s".to_owned()]).await.unwrap();
        engine.datasets().clone_snapshot("tank/p@s", "tank/pc", Vec::new()).await.unwrap();
        engine.datasets().promote("tank/pc").await.unwrap();
        create(&engine, "tank/pc/first", NewEncryption::Inherited).await.unwrap();
        engine.datasets().change_key("tank/pc", KeyChange::Root(key(2))).await.unwrap();
        create(&engine, "tank/pc/second", NewEncryption::Inherited).await.unwrap();
        engine.datasets().promote("tank/p").await.unwrap();
        create(&engine, "tank/p/third", NewEncryption::Inherited).await.unwrap();
        let names =
            ["p", "pc", "pc/first", "pc/second", "p/third"].map(|name| format!("tank/{name}"));
        load_again(&engine, "tank/p", 2, &names).await;
    })
    .unwrap();
}

/// Damage is found before anything is changed: the command fails, and the pool goes on.
#[test]
fn a_damaged_key_object_does_not_stop_the_pool() {
    block_on(2, async {
        let (engine, devices) = pool().await;
        create(&engine, "tank/r", root(1)).await.unwrap();
        create(&engine, "tank/r/kid", NewEncryption::Inherited).await.unwrap();
        engine.sync().await.unwrap();
        let view = engine.view().await.unwrap();
        let info = view.dataset("tank/r/kid").await.unwrap().key_info().await.unwrap().unwrap();
        let dnode = view.mos().dnode(info.object).await.unwrap();
        for blkid in 0..dnode.block_count() {
            let Some(bp) = dnode.block_pointer(0, blkid).await.unwrap() else { continue };
            for dva in bp.dvas() {
                let tree = engine.store().tree();
                for range in tree.layout_ranges(dva, bp.psize(), bp.physical_birth()) {
                    let garbage = vec![Buf::from(vec![7; 512])];
                    devices[0].write(range.offset, garbage).await.unwrap();
                }
            }
        }
        drop((view, dnode));
        engine.store().clear_cache();
        let change = KeyChange::Root(key(2));
        let error = engine.datasets().change_key("tank/r", change).await.unwrap_err();
        assert_eq!(error.kind(), Kind::Checksum, "{error:?}");
        create(&engine, "tank/r/other", NewEncryption::Inherited).await.unwrap();
        load_again(&engine, "tank/r", 1, &["tank/r".to_owned(), "tank/r/other".to_owned()]).await;
    })
    .unwrap();
}

/// The command that unloads a key looks at a state of the pool: what was created since keeps its
/// keys, if they are of another root.
#[test]
fn unloading_a_key_leaves_others_alone() {
    block_on(2, async {
        let (engine, _devices) = pool().await;
        create(&engine, "tank/a", root(1)).await.unwrap();
        create(&engine, "tank/b", root(2)).await.unwrap();
        let view = engine.view().await.unwrap();
        create(&engine, "tank/a/new", NewEncryption::Inherited).await.unwrap();
        view.unload_key(&view.dataset("tank/b").await.unwrap()).await.unwrap();
        drop(view);
        let view = engine.view().await.unwrap();
        for (name, is_loaded) in [("tank/a", true), ("tank/a/new", true), ("tank/b", false)] {
            let info = view.dataset(name).await.unwrap().key_info().await.unwrap().unwrap();
            assert_eq!(view.keys().is_loaded(&info), is_loaded, "{name}");
        }
    })
    .unwrap();
}

/// Errata #3 are keys of the first development format, errata #4 encrypted snapshots without IV set
/// guid, or the feature `encryption` without `bookmark_v2`. They end with their cause.
#[test]
fn errata_of_encrypted_datasets_are_found() {
    block_on(2, async {
        let (engine, devices) = pool().await;
        create(&engine, "tank/r", root(1)).await.unwrap();
        engine.snapshots().create(vec!["tank/r@s".into()]).await.unwrap();
        let reader = open_read_only(as_devices(&devices)).await.unwrap();
        let keys =
            reader.dataset("tank/r").await.unwrap().key_info().await.unwrap().unwrap().object;
        let snapshot = reader.dataset("tank/r@s").await.unwrap().object();
        let reason = async || {
            let reader = open_read_only(as_devices(&devices)).await.unwrap();
            reader.status().await.unwrap().reason
        };
        assert_eq!(reason().await, Reason::Ok);
        let version = async |version: u64| {
            let change = move |tx: &mut Tx<'_>| zap::update(tx, keys, entry::VERSION, version);
            engine.tamper(change).await.unwrap();
        };
        version(0).await;
        assert_eq!(reason().await, Reason::Errata(3));
        version(1).await;
        engine.tamper(move |tx| zap::remove(tx, snapshot, extra::IVSET_GUID)).await.unwrap();
        assert_eq!(reason().await, Reason::Errata(4));
        // Found again and again while the pool is open, until the cause is gone.
        let view = async || engine.view().await.unwrap().status().await.unwrap().reason;
        assert_eq!(view().await, Reason::Errata(4));
        engine.snapshots().destroy("tank/r@s").await.unwrap();
        assert_eq!(view().await, Reason::Ok);
        assert_eq!(reason().await, Reason::Ok);

        let feature = FEATURES.iter().find(|feature| feature.name == "bookmark_v2").unwrap();
        let disable = move |tx: &mut Tx<'_>| {
            let table = zap::require_u64(tx, DIRECTORY, table_of(feature))?;
            zap::remove(tx, table, feature.guid)
        };
        engine.tamper(disable).await.unwrap();
        assert_eq!(view().await, Reason::Errata(4));
        engine.admin().set(vec![PoolSetting::Feature(feature)]).await.unwrap();
        assert_eq!(view().await, Reason::Ok);
    })
    .unwrap();
}
