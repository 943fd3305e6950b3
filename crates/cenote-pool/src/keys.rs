//! Keys of encrypted datasets: from the user's key to block keys (spec 08 §2-§4).
//!
//!     passphrase/hex/raw ──> wrapping key ──unwraps──> master key, HMAC key ──> BlockKeys
//!                            of the encryption root    of each dir below it
//!
//! A key is loaded for an encryption root and every dir below it that names this root. Each key
//! object is unwrapped right away, which verifies the key by its tag; so every dataset with keys in
//! the store is readable. Key material is wiped when it is dropped.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_codec::crypto::{
    self, BlockKeys, KeyFormat, MAC_BYTES, Pbkdf2, Purpose, WrappedKeys, WrappingKey,
};
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{ObjSet, ReadObjects, TxResult};
use cenote_ondisk::dsl::{crypto as entry, key};
use cenote_ondisk::zap::Value;
use cenote_rt::lock::{Mutex, MutexGuard, Rank};
use cenote_rt::{Error, Kind, Result};

use crate::dsl::dataset::{get_dataset, origin_txg};
use crate::dsl::dir::{children_of, get_dir};
use crate::dsl::{Dataset, DslError};
use crate::{Pool, mos};

/// Approximate cost of a PBKDF2 iteration.
const ITERATION_NS: u64 = 1000;

/// Reasons why a key cannot be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The dataset is encrypted and its key is not loaded.
    #[error("encryption key is not loaded")]
    NotLoaded,
    /// The dataset is not encrypted.
    #[error("dataset is not encrypted")]
    NotEncrypted,
    /// Another dataset is its encryption root.
    #[error("dataset inherits its key from another")]
    NotRoot,
    /// The key is already loaded.
    #[error("key is already loaded")]
    AlreadyLoaded,
    /// The key is wrong, or the key object is damaged.
    #[error(transparent)]
    Crypto(#[from] crypto::KeyError),
    /// A field of a key object has the wrong number of bytes.
    #[error("key object: entry '{0}' has the wrong length")]
    FieldLength(&'static str),
}

impl KeyError {
    fn kind(self) -> Kind {
        match self {
            Self::NotLoaded => Kind::KeyUnavailable,
            Self::NotEncrypted | Self::NotRoot | Self::AlreadyLoaded => Kind::Invalid,
            Self::Crypto(_) => Kind::WrongKey,
            Self::FieldLength(_) => Kind::Corrupt,
        }
    }
}

impl From<KeyError> for Error {
    fn from(error: KeyError) -> Self {
        Self::new(error.kind(), error)
    }
}

/// A DSL crypto key object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyInfo {
    /// Its MOS object.
    pub object: u64,
    /// The wrapped keys, with cipher suite and id.
    pub wrapped: WrappedKeys,
    /// Key format, as stored.
    pub format_value: u64,
    /// Salt and iterations of a passphrase.
    pub pbkdf2: Pbkdf2,
    /// DSL dir of the encryption root.
    pub root_dir: u64,
    /// Number of dirs that use this object.
    pub refcount: u64,
}

impl KeyInfo {
    /// Reads the key object.
    pub async fn load(mos: &Arc<ObjSet>, object: u64) -> Result<Self> {
        mos.read(|objects| Self::read(objects, object)).await
    }

    /// Reads the key object.
    ///
    /// # Errors
    /// `Kind::Corrupt` if it lacks something.
    pub fn read(objects: &mut dyn ReadObjects, object: u64) -> TxResult<Self> {
        let entries: BTreeMap<_, _> = mos::named(objects, object)?.into_iter().collect();
        let number = |key: &str| entries.get(key).and_then(Value::first);
        let required = |key: &'static str| {
            number(key).ok_or_else(|| mos::corrupt(object)(DslError::Missing { object, key }))
        };
        let iterations = number(entry::PBKDF2_ITERS).unwrap_or(0);
        Ok(Self {
            object,
            wrapped: WrappedKeys {
                suite: required(entry::SUITE)?,
                guid: required(entry::GUID)?,
                version: number(entry::VERSION).unwrap_or(0),
                iv: field(&entries, object, entry::IV)?,
                mac: field(&entries, object, entry::MAC)?,
                master_key: field(&entries, object, entry::MASTER_KEY)?,
                hmac_key: field(&entries, object, entry::HMAC_KEY)?,
            },
            format_value: number(entry::KEYFORMAT).unwrap_or(0),
            pbkdf2: Pbkdf2 { salt: number(entry::PBKDF2_SALT).unwrap_or(0), iterations },
            root_dir: required(entry::ROOT_DDOBJ)?,
            refcount: number(entry::REFCOUNT).unwrap_or(0),
        })
    }

    /// Returns the format of the user's key.
    pub fn format(&self) -> Result<KeyFormat, KeyError> {
        Ok(KeyFormat::from_value(self.format_value)?)
    }

    /// Derives the wrapping key from `material`. Slow for a passphrase.
    pub async fn wrapping_key(&self, material: &[u8]) -> Result<WrappingKey> {
        let (format, pbkdf2) = (self.format()?, self.pbkdf2);
        let material = material.to_vec();
        let estimate_ns = pbkdf2.iterations.saturating_mul(ITERATION_NS);
        let key = cenote_rt::cpu(estimate_ns, move || {
            WrappingKey::from_material(format, &material, pbkdf2, Purpose::Load)
        });
        Ok(key.await?.map_err(KeyError::from)?)
    }
}

/// How a dir that may use an encryption root is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeyPath {
    /// A search begins with this dir.
    First(u64),
    /// This dir is a child of one that uses the root.
    Child(u64),
    /// This dataset is a clone of one that uses the root. It may be anywhere.
    Clone(u64),
}

/// Returns the dir at the end of a path and its key object, unless it uses another encryption root
/// or none.
///
/// A clone shares the key object of its origin, and its descendants use the root of both. So it is
/// found through its origin, and not as the child of a dir that may use another root.
///
/// # Errors
/// `Kind::Corrupt` if the dir or its key object is damaged.
pub fn key_user(
    objects: &mut dyn ReadObjects,
    root: u64,
    path: KeyPath,
) -> TxResult<Option<(u64, u64)>> {
    let dir = match path {
        KeyPath::First(dir) | KeyPath::Child(dir) => dir,
        KeyPath::Clone(dataset) => get_dataset(objects, dataset)?.dir_obj,
    };
    if matches!(path, KeyPath::Child(_)) {
        let phys = get_dir(objects, dir)?;
        if origin_txg(objects, &phys)? != 0 {
            return Ok(None);
        }
    }
    let object = mos::extra_value(objects, dir, key::CRYPTO_KEY_OBJ)?;
    let Some(object) = object.and_then(|value| value.first()) else { return Ok(None) };
    let is_of_root = zap::lookup_u64(objects, object, entry::ROOT_DDOBJ)? == Some(root);
    Ok(is_of_root.then_some((dir, object)))
}

/// Returns the paths that go on from a dir that uses an encryption root.
///
/// # Errors
/// `Kind::Corrupt` if the list of its children or of its clones is damaged.
pub fn key_paths(objects: &mut dyn ReadObjects, dir: u64) -> TxResult<Vec<KeyPath>> {
    let children = children_of(objects, dir)?;
    let mut paths: Vec<_> = children.into_iter().map(|(_, dir)| KeyPath::Child(dir)).collect();
    let clones = get_dir(objects, dir)?.clones;
    if clones != 0 {
        let clones = zap::numbers(objects, clones)?.into_iter();
        paths.extend(clones.map(|(dataset, _)| KeyPath::Clone(dataset)));
    }
    Ok(paths)
}

fn field<const N: usize>(
    entries: &BTreeMap<String, Value>,
    object: u64,
    key: &'static str,
) -> Result<[u8; N]> {
    let bytes = entries.get(key).and_then(Value::as_bytes);
    bytes
        .and_then(|bytes| bytes.try_into().ok())
        .ok_or_else(|| mos::corrupt(object)(KeyError::FieldLength(key)))
}

/// Loaded keys.
#[derive(Debug)]
pub struct KeyStore(Mutex<Loaded>);

#[derive(Debug, Default)]
struct Loaded {
    /// Keys of blocks, by key object.
    blocks: BTreeMap<u64, Arc<BlockKeys>>,
    /// Keys that wrap them, by the dir of the encryption root.
    roots: BTreeMap<u64, RootKey>,
}

/// Keys that are about to be unloaded.
#[derive(Debug)]
pub struct TakenKeys {
    root: Option<(u64, RootKey)>,
    blocks: Vec<(u64, Arc<BlockKeys>)>,
}

/// The key of an encryption root.
#[derive(Debug, Clone)]
pub struct RootKey {
    /// The key that wraps those of the datasets.
    pub key: Arc<WrappingKey>,
    /// The tag of what it wraps in the key object of the root. After every change of the key that
    /// object has another tag: a key is used only for the one that it came from.
    pub tag: [u8; MAC_BYTES],
}

impl Default for KeyStore {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::Keys))
    }
}

impl KeyStore {
    // Held for a lookup.
    fn lock(&self) -> MutexGuard<'_, Loaded> {
        self.0.lock()
    }

    /// Takes the key of an encryption root and the keys of these key objects out of the store.
    pub fn take(&self, root: u64, objects: &[u64]) -> TakenKeys {
        let mut loaded = self.lock();
        let blocks = objects.iter().filter_map(|object| loaded.blocks.remove_entry(object));
        let blocks = blocks.collect();
        TakenKeys { root: loaded.roots.remove_entry(&root), blocks }
    }

    /// Puts back what was taken.
    pub fn put_back(&self, taken: TakenKeys) {
        let mut loaded = self.lock();
        loaded.roots.extend(taken.root);
        loaded.blocks.extend(taken.blocks);
    }

    /// Returns the keys of the key object for the master key `guid`, if loaded. Another key object
    /// may have had the same number.
    pub fn block_keys(&self, object: u64, guid: u64) -> Option<Arc<BlockKeys>> {
        self.lock().blocks.get(&object).filter(|keys| keys.guid() == guid).cloned()
    }

    /// Whether the keys of the key object are loaded.
    pub fn is_loaded(&self, info: &KeyInfo) -> bool {
        self.block_keys(info.object, info.wrapped.guid).is_some()
    }

    /// Whether the key of an encryption root with this key object is loaded, and the keys of its
    /// dataset.
    pub fn is_root_loaded(&self, info: &KeyInfo) -> bool {
        self.is_loaded(info) && self.root_key(info.root_dir, &info.wrapped.mac).is_some()
    }

    /// Returns the key of the encryption root with this dir and this tag in its key object, if it
    /// is loaded.
    pub fn root_key(&self, dir: u64, tag: &[u8; MAC_BYTES]) -> Option<Arc<WrappingKey>> {
        let loaded = self.lock();
        loaded.roots.get(&dir).filter(|root| root.tag == *tag).map(|root| Arc::clone(&root.key))
    }

    /// Adds the keys of a key object.
    pub fn add(&self, object: u64, keys: Arc<BlockKeys>) {
        self.lock().blocks.insert(object, keys);
    }

    /// Adds the key of an encryption root.
    pub fn add_root(&self, dir: u64, root: RootKey) {
        self.lock().roots.insert(dir, root);
    }

    /// Gives the key of an encryption root to the dir that is the root in its place.
    pub fn move_root(&self, from: u64, to: u64) {
        let mut loaded = self.lock();
        if let Some(root) = loaded.roots.remove(&from) {
            loaded.roots.insert(to, root);
        }
    }

    /// Forgets the keys of a key object.
    pub fn remove(&self, object: u64) {
        self.lock().blocks.remove(&object);
    }

    /// Forgets the key of an encryption root.
    pub fn remove_root(&self, dir: u64) {
        self.lock().roots.remove(&dir);
    }
}

impl Pool {
    /// Loads the key of an encryption root for all datasets that share it; returns the number of
    /// opened key objects.
    ///
    /// # Errors
    /// A [`KeyError`]; `Kind::WrongKey` if `material` is not the key.
    pub async fn load_key(&self, dataset: &Dataset, material: &[u8]) -> Result<usize> {
        let info = self.root_key(dataset).await.map_err(|e| e.in_dataset(dataset.name()))?;
        if self.keys().is_root_loaded(&info) {
            return Err(Error::from(KeyError::AlreadyLoaded).in_dataset(dataset.name()));
        }
        let key = info.wrapping_key(material).await.map_err(|e| e.in_dataset(dataset.name()))?;
        let unwrap = |wrapped: &WrappedKeys| BlockKeys::unwrap(&key, wrapped);
        let keys = unwrap(&info.wrapped)
            .map_err(|error| Error::from(KeyError::from(error)).in_dataset(dataset.name()))?;
        self.keys().add(info.object, Arc::new(keys));
        let mut count = 1;
        // Damaged dirs stay locked and do not prevent unlocking the others.
        for object in self.key_objects(info.root_dir).await? {
            let child = KeyInfo::load(self.mos(), object).await;
            let Ok(child) = mos::unless_interrupted(child)? else { continue };
            if self.keys().is_loaded(&child) {
                continue;
            }
            if let Ok(keys) = unwrap(&child.wrapped) {
                self.keys().add(object, Arc::new(keys));
                count += 1;
            }
        }
        let tag = info.wrapped.mac;
        self.keys().add_root(info.root_dir, RootKey { key: Arc::new(key), tag });
        Ok(count)
    }

    /// Unloads the key of an encryption root, for all datasets that share it.
    ///
    /// # Errors
    /// A [`KeyError`].
    pub async fn unload_key(&self, dataset: &Dataset) -> Result<()> {
        let info = dataset.loaded_root().await?;
        let mut objects = self.key_objects(info.root_dir).await?;
        objects.push(info.object);
        drop(self.keys().take(info.root_dir, &objects));
        Ok(())
    }

    /// Returns the key objects of all dirs that use an encryption root. Damaged dirs are left out.
    ///
    /// # Errors
    /// Errors that end a reader: the dirs that were not read would stay locked.
    async fn key_objects(&self, root: u64) -> Result<Vec<u64>> {
        let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
        let mut pending = vec![KeyPath::First(root)];
        while let Some(path) = pending.pop() {
            let user = self.mos().read(|objects| key_user(objects, root, path)).await;
            let Ok(Some((dir, object))) = mos::unless_interrupted(user)? else { continue };
            if !seen.insert(dir) {
                continue;
            }
            found.push(object);
            let paths = self.mos().read(|objects| key_paths(objects, dir)).await;
            pending.extend(mos::unless_interrupted(paths)?.unwrap_or_default());
        }
        Ok(found)
    }

    /// Reads the key object of an encryption root.
    async fn root_key(&self, dataset: &Dataset) -> Result<KeyInfo> {
        let info = dataset.key_info().await?.ok_or(KeyError::NotEncrypted)?;
        if info.root_dir != dataset.dir().object || dataset.is_snapshot() {
            return Err(KeyError::NotRoot.into());
        }
        Ok(info)
    }
}

impl Dataset {
    /// Reads the key object of an encryption root whose key is loaded.
    ///
    /// # Errors
    /// A [`KeyError`].
    pub async fn loaded_root(&self) -> Result<KeyInfo> {
        let info = self.pool().root_key(self).await.map_err(|e| e.in_dataset(self.name()))?;
        if !self.pool().keys().is_loaded(&info) {
            return Err(Error::from(KeyError::NotLoaded).in_dataset(self.name()));
        }
        Ok(info)
    }

    /// Returns the key object of the dataset, if it is encrypted.
    pub async fn key_info(&self) -> Result<Option<KeyInfo>> {
        match self.dir().crypto_key_object(self.mos()).await? {
            Some(object) => KeyInfo::load(self.mos(), object).await.map(Some),
            None => Ok(None),
        }
    }

    /// Returns the name of the dataset's encryption root, if it is encrypted.
    pub async fn encryption_root(&self) -> Result<Option<String>> {
        match self.key_info().await? {
            Some(info) => self.pool().dir_name(info.root_dir).await.map(Some),
            None => Ok(None),
        }
    }
}
