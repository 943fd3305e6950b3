//! A minimal importer that opens a golden pool's object sets.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use cenote_block::{BlockKeys, BlockStore, CacheConfig};
use cenote_codec::crypto::{KeyFormat, Pbkdf2, Purpose, WrappedKeys, WrappingKey};
use cenote_device::{Device, FileDevice, OpenMode};
use cenote_dmu::{ObjSet, Zap, read_bytes, read_nvlist};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::config::{PoolConfig, VdevConfig, VdevKind};
use cenote_ondisk::dsl::crypto;
use cenote_ondisk::dsl::dataset::DatasetPhys;
use cenote_ondisk::indirect::{MAPPING_ENTRY_LEN, MappingPhys};
use cenote_ondisk::object_type::ObjectType;
use cenote_testkit::golden::Golden;
use cenote_vdev::{BuildOptions, IndirectMap, Tree, labels};

const ROOT_BP_AT: usize = 128;

/// An open pool.
pub(crate) struct Pool {
    pub(crate) mos: Arc<ObjSet>,
    pub(crate) store: Arc<BlockStore>,
    /// Key files by format.
    key_files: BTreeMap<&'static str, PathBuf>,
}

impl Pool {
    /// Opens the pool in these files.
    pub(crate) async fn open(paths: &[PathBuf]) -> Self {
        let open = |path| FileDevice::open(path, OpenMode::ReadOnly).unwrap();
        let devices: Vec<_> = paths.iter().map(open).collect();
        Self::over(&devices).await
    }

    /// Opens the pool on these devices at its best uberblock.
    pub(crate) async fn over(all: &[Arc<dyn Device>]) -> Self {
        let mut devices = BTreeMap::new();
        let mut tops = BTreeMap::new();
        let mut found = Vec::new();
        let mut facts = None;
        for device in all {
            let labels = labels::read(&**device).await;
            if let Some(config) = labels.best_config(u64::MAX)
                && let Some(member) = &config.member
            {
                devices.insert(config.guid, Arc::clone(device));
                tops.insert(member.vdev_tree.id, (member.facts.txg, member.vdev_tree.clone()));
                facts = facts.max(Some((member.facts.txg, member.facts.clone().pool_guid)));
                found.extend(labels.best_uberblock(u64::MAX).map(|found| found.uberblock));
            }
        }
        let best = found.into_iter().max_by_key(|best| (best.txg, best.timestamp)).unwrap();
        let count = tops.keys().max().unwrap() + 1;
        let children = (0..count)
            .map(|id| tops.remove(&id).map_or_else(|| VdevConfig::missing(id), |(_, top)| top))
            .collect();
        let root = VdevConfig::root(facts.unwrap().1, children);
        let store = store_over(&root, &devices);
        let mos = ObjSet::open(store, &best.rootbp, None, 0).await.unwrap();

        // The labels do not list removed vdevs; the MOS does.
        let directory = Zap::open(&mos, 1).await.unwrap();
        let config = directory.require_u64("config").await.unwrap();
        let config = PoolConfig::decode(read_nvlist(&mos, config).await.unwrap()).unwrap();
        let store = store_over(&config.vdev_tree, &devices);
        for top in &config.vdev_tree.children {
            if top.kind == VdevKind::Indirect {
                let object = top.top.indirect_object.unwrap();
                store.tree().set_indirect(top.id, Arc::new(mapping(&mos, object).await));
            }
        }
        if let Some(salt) = directory.lookup("org.illumos:checksum_salt").await.unwrap() {
            store.set_salt(salt.as_bytes().unwrap().try_into().unwrap());
        }
        let mos = ObjSet::open(Arc::clone(&store), &best.rootbp, None, 0).await.unwrap();
        Self { mos, store, key_files: BTreeMap::new() }
    }

    /// The pool with the keys of g-crypt.
    pub(crate) async fn unlocked(golden: &Golden) -> Self {
        let names = [("raw", "raw"), ("hex", "hex"), ("passphrase", "pass")];
        let key_files = names.map(|(format, file)| (format, golden.key_file(file))).into();
        Self { key_files, ..Self::open(&golden.devices()).await }
    }

    /// The root pointers of all datasets except the MOS, by object.
    pub(crate) async fn datasets(&self) -> BTreeMap<u64, BlockPtr> {
        let mut datasets = BTreeMap::new();
        let mut objects = self.mos.dnodes(0);
        while let Some(dnode) = objects.next().await {
            let dnode = dnode.unwrap();
            if dnode.phys().bonus_type == ObjectType::DSL_DATASET {
                let root = BlockPtr::at(dnode.bonus().unwrap(), ROOT_BP_AT).unwrap();
                if !root.is_hole() {
                    datasets.insert(dnode.object(), root);
                }
            }
        }
        datasets
    }

    /// Every object set by its number, the MOS included.
    pub(crate) async fn sets(&self) -> BTreeMap<u64, Arc<ObjSet>> {
        let mut sets = BTreeMap::from([(0, Arc::clone(&self.mos))]);
        for (object, root) in self.datasets().await {
            let keys = self.keys(object).await;
            let store = Arc::clone(&self.store);
            sets.insert(object, ObjSet::open(store, &root, keys, object).await.unwrap());
        }
        sets
    }

    /// The keys of a dataset, if it is encrypted and one of the files has its wrapping key.
    async fn keys(&self, dataset: u64) -> Option<Arc<BlockKeys>> {
        let dataset = self.mos.dnode(dataset).await.unwrap();
        let dir = DatasetPhys::decode(dataset.bonus().unwrap()).unwrap().dir_obj;
        let dir = self.mos.dnode(dir).await.unwrap();
        if !dir.phys().object_type.is_zap() || self.key_files.is_empty() {
            return None;
        }
        let dir = Zap::of(dir).await.unwrap();
        let object = dir.lookup_u64("com.datto:crypto_key_obj").await.unwrap()?;
        let zap = Zap::open(&self.mos, object).await.unwrap();
        let number = async |name: &str| zap.lookup_u64(name).await.unwrap().unwrap_or(0);
        let wrapped = WrappedKeys {
            suite: number(crypto::SUITE).await,
            guid: number(crypto::GUID).await,
            version: number(crypto::VERSION).await,
            iv: bytes(&zap, crypto::IV).await,
            mac: bytes(&zap, crypto::MAC).await,
            master_key: bytes(&zap, crypto::MASTER_KEY).await,
            hmac_key: bytes(&zap, crypto::HMAC_KEY).await,
        };
        let format = KeyFormat::from_value(number(crypto::KEYFORMAT).await).unwrap();
        let salt = number(crypto::PBKDF2_SALT).await;
        let pbkdf2 = Pbkdf2 { salt, iterations: number(crypto::PBKDF2_ITERS).await };
        let material = std::fs::read(&self.key_files[format.name()]).unwrap();
        let key = WrappingKey::from_material(format, &material, pbkdf2, Purpose::Load).unwrap();
        Some(Arc::new(BlockKeys::unwrap(&key, &wrapped).unwrap()))
    }
}

async fn bytes<const N: usize>(zap: &Zap, name: &str) -> [u8; N] {
    zap.lookup(name).await.unwrap().unwrap().as_bytes().unwrap().try_into().unwrap()
}

fn store_over(root: &VdevConfig, devices: &BTreeMap<u64, Arc<dyn Device>>) -> Arc<BlockStore> {
    let open = |leaf: &VdevConfig| devices.get(&leaf.guid).cloned();
    let tree = Tree::build(root, open, &BuildOptions::default()).unwrap();
    BlockStore::new(tree, CacheConfig { capacity_bytes: 16 << 20 })
}

async fn mapping(mos: &Arc<ObjSet>, object: u64) -> IndirectMap {
    let dnode = mos.dnode(object).await.unwrap();
    let phys = MappingPhys::decode(dnode.bonus().unwrap()).unwrap();
    let len = phys.num_entries * MAPPING_ENTRY_LEN as u64;
    IndirectMap::decode(&read_bytes(&dnode, len, 1 << 24).await.unwrap()).unwrap()
}
