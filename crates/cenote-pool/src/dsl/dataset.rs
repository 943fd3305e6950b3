//! A dataset: the head of a file system or volume, or one of its snapshots.

use std::sync::Arc;

use cenote_codec::crypto::BlockKeys;
use cenote_dmu::{ObjSet, ReadObjects, TxResult};
use cenote_ondisk::dsl::{DatasetFlags, DatasetPhys, DirPhys, key};
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::{Error, Result};

use super::{Bookmark, Dir, DslError, bookmark};
use crate::keys::{KeyError, KeyInfo};
use crate::{Pool, mos};

/// Type of a dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DatasetKind {
    /// A file system.
    Filesystem,
    /// A volume.
    Volume,
    /// Any other type, or an empty dataset.
    Other,
}

/// A hold on a snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The tag.
    pub tag: String,
    /// Creation time, seconds since 1970.
    pub time: u64,
}

/// A head or a snapshot at the pool's txg. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Dataset {
    pool: Arc<Pool>,
    name: Arc<str>,
    object: u64,
    phys: Arc<DatasetPhys>,
    dir: Arc<Dir>,
}

impl Dataset {
    /// Reads the dataset in `object`, which belongs to `dir` and has the name `name`.
    pub(crate) async fn load(
        pool: &Arc<Pool>,
        object: u64,
        dir: Arc<Dir>,
        name: impl Into<Arc<str>>,
    ) -> Result<Self> {
        let phys = Arc::new(load_phys(pool.mos(), object).await?);
        Ok(Self { pool: Arc::clone(pool), name: name.into(), object, phys, dir })
    }

    /// The pool.
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Returns the full name: `pool/a` or `pool/a@s`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the MOS object, which is also the number of the object set.
    pub fn object(&self) -> u64 {
        self.object
    }

    /// Returns the stored dataset (`dsl_dataset_phys_t`).
    pub fn phys(&self) -> &DatasetPhys {
        &self.phys
    }

    /// Returns its directory; for a snapshot that of the head.
    pub fn dir(&self) -> &Arc<Dir> {
        &self.dir
    }

    /// Whether it is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.phys.num_children != 0
    }

    /// Returns the part after the `@`.
    pub fn snapshot_name(&self) -> Option<&str> {
        self.name.rsplit_once('@').map(|(_, short)| short)
    }

    /// Whether it is the target of an unfinished receive; its contents are then meaningless.
    pub fn is_inconsistent(&self) -> bool {
        self.phys.flags.contains(DatasetFlags::INCONSISTENT)
    }

    /// Whether it is encrypted.
    pub async fn is_encrypted(&self) -> Result<bool> {
        Ok(self.dir.crypto_key_object(self.mos()).await?.is_some())
    }

    pub(crate) fn mos(&self) -> &Arc<ObjSet> {
        self.pool.mos()
    }

    /// Returns the dataset's type, from the header of its object set.
    pub async fn kind(&self) -> Result<DatasetKind> {
        if self.phys.bp.is_hole() {
            return Ok(DatasetKind::Other);
        }
        let objset = self.open_without_key().await?;
        Ok(match objset.kind() {
            ObjSetType::Zfs => DatasetKind::Filesystem,
            ObjSetType::Zvol => DatasetKind::Volume,
            _ => DatasetKind::Other,
        })
    }

    /// Opens the object set, with its keys if it is encrypted.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if it is encrypted and its key has not been loaded.
    pub async fn open(&self) -> Result<Arc<ObjSet>> {
        let keys = match self.dir.crypto_key_object(self.mos()).await? {
            None => None,
            Some(object) => {
                let guid = KeyInfo::load(self.mos(), object).await?.wrapped.guid;
                let keys = self.pool.keys().block_keys(object, guid);
                let locked = || Error::from(KeyError::NotLoaded).in_dataset(&self.name);
                Some(keys.ok_or_else(locked)?)
            }
        };
        self.open_with(keys).await
    }

    /// Opens the object set without keys: encrypted contents cannot be read.
    pub async fn open_without_key(&self) -> Result<Arc<ObjSet>> {
        self.open_with(None).await
    }

    async fn open_with(&self, keys: Option<Arc<BlockKeys>>) -> Result<Arc<ObjSet>> {
        let (store, grounds) = (Arc::clone(self.pool.store()), self.pool.grounds().clone());
        ObjSet::open_on(store, &self.phys.bp, keys, self.object, grounds)
            .await
            .map_err(|error| error.in_dataset(&self.name))
    }

    /// Returns the head that a snapshot belongs to, or the dataset itself if it is a head.
    pub async fn head(&self) -> Result<Self> {
        if !self.is_snapshot() {
            return Ok(self.clone());
        }
        let name = self.dir.name.clone();
        Self::load(&self.pool, self.dir.phys.head_dataset_obj, Arc::clone(&self.dir), name).await
    }

    /// Returns its snapshots, oldest first.
    pub async fn snapshots(&self) -> Result<Vec<Self>> {
        let mut snapshots = Vec::new();
        for (short, object) in self.mos().read(|objects| snapshots_of(objects, &self.phys)).await? {
            let name = format!("{}@{short}", self.name);
            snapshots.push(Self::load(&self.pool, object, Arc::clone(&self.dir), name).await?);
        }
        snapshots
            .sort_by(|a, b| (a.phys.creation_txg, &a.name).cmp(&(b.phys.creation_txg, &b.name)));
        Ok(snapshots)
    }

    /// Returns the snapshot called `short`; case may differ if the dataset is case-insensitive.
    pub async fn snapshot(&self, short: &str) -> Result<Self> {
        let found = self.mos().read(|objects| find_snapshot(objects, &self.phys, short)).await?;
        let (short, object) =
            found.ok_or_else(|| Error::not_found(DslError::NoSnapshot).in_dataset(&self.name))?;
        let name = format!("{}@{short}", self.name);
        Self::load(&self.pool, object, Arc::clone(&self.dir), name).await
    }

    /// Returns the child file systems and volumes, in name order.
    pub async fn children(&self) -> Result<Vec<Self>> {
        let mut children = Vec::new();
        for dir in self.dir.children(self.mos()).await? {
            if dir.phys.head_dataset_obj != 0 {
                let (object, name) = (dir.phys.head_dataset_obj, dir.name.clone());
                children.push(Self::load(&self.pool, object, Arc::new(dir), name).await?);
            }
        }
        Ok(children)
    }

    /// Returns its bookmarks, oldest first.
    pub async fn bookmarks(&self) -> Result<Vec<Bookmark>> {
        let found = self.mos().read(|objects| bookmark::bookmarks_of(objects, self.object)).await?;
        let named = |(short, phys)| Bookmark { name: format!("{}#{short}", self.name), phys };
        Ok(found.into_iter().map(named).collect())
    }

    /// Returns the bookmark called `short`; case may differ if the dataset is case-insensitive.
    pub async fn bookmark(&self, short: &str) -> Result<Bookmark> {
        let mos = self.mos();
        let found =
            mos.read(|objects| bookmark::find_bookmark(objects, self.object, short)).await?;
        let (short, phys) =
            found.ok_or_else(|| Error::not_found(DslError::NoBookmark).in_dataset(&self.name))?;
        Ok(Bookmark { name: format!("{}#{short}", self.name), phys })
    }

    /// Returns the origin snapshot of a clone.
    pub async fn origin(&self) -> Result<Option<Self>> {
        let object = self.dir.phys.origin_obj;
        if self.is_snapshot() || object == 0 || Some(object) == self.pool.origin_snapshot() {
            return Ok(None);
        }
        self.pool.dataset_by_object(object).await.map(Some)
    }

    /// Returns the guid of the origin snapshot of a clone. Unlike [`origin`](Self::origin) it does
    /// not look for the origin's name, which takes time for each snapshot beside it.
    pub async fn origin_guid(&self) -> Result<Option<u64>> {
        let object = self.dir.phys.origin_obj;
        if self.is_snapshot() || object == 0 || Some(object) == self.pool.origin_snapshot() {
            return Ok(None);
        }
        Ok(Some(load_phys(self.mos(), object).await?.guid))
    }

    /// Returns the names of the clones of this snapshot, in name order.
    pub async fn clone_names(&self) -> Result<Vec<String>> {
        let zap = self.phys.next_clones_obj;
        let mut names = Vec::new();
        if zap != 0 {
            for (_, value) in mos::entries(self.mos(), zap).await? {
                if let Some(object) = value.first() {
                    // The ZAP holds the first dataset of each branch, which can be a snapshot: the
                    // head of its dir is the clone.
                    let dir = load_phys(self.mos(), object).await?.dir_obj;
                    names.push(self.pool.dir_name(dir).await?);
                }
            }
        }
        names.sort();
        Ok(names)
    }

    /// Returns the holds on this snapshot, by tag.
    pub async fn holds(&self) -> Result<Vec<Hold>> {
        self.mos().read(|objects| holds_of(objects, &self.phys)).await
    }

    /// Returns the guids of the redaction snapshots of a dataset that was received redacted.
    pub async fn redaction_snapshots(&self) -> Result<Option<Vec<u64>>> {
        if !self.pool().features().is_active("redacted_datasets") {
            return Ok(None);
        }
        let value = mos::extra(self.mos(), self.object, key::REDACTED_DATASETS).await?;
        Ok(value.map(|value| value.words()))
    }

    /// Returns a number from the extra keys of a zapified dataset (spec 04 §4.2).
    pub async fn extra(&self, key: &str) -> Result<Option<u64>> {
        mos::extra(self.mos(), self.object, key).await.map(|value| value.and_then(|v| v.first()))
    }
}

/// Reads the stored dataset in `object`.
pub(crate) async fn load_phys(mos: &Arc<ObjSet>, object: u64) -> Result<DatasetPhys> {
    mos.read(|objects| get_dataset(objects, object)).await
}

/// Returns the dataset in `object`.
///
/// # Errors
/// `Kind::Corrupt` if it is no dataset.
pub fn get_dataset(objects: &mut dyn ReadObjects, object: u64) -> TxResult<DatasetPhys> {
    let dnode = mos::dnode_with(objects, object, ObjectType::DSL_DATASET)?;
    DatasetPhys::decode(dnode.bonus()).map_err(|error| mos::corrupt(object)(error).into())
}

/// Returns the creation txg of a clone's origin, 0 for the dirs of other datasets.
///
/// # Errors
/// `Kind::Corrupt` if the origin is not a dataset.
pub fn origin_txg(objects: &mut dyn ReadObjects, dir: &DirPhys) -> TxResult<u64> {
    if dir.origin_obj == 0 {
        return Ok(0);
    }
    let origin = get_dataset(objects, dir.origin_obj)?;
    // Only `$ORIGIN@$ORIGIN` has no previous snapshot, and it has no data.
    Ok(if origin.prev_snap_obj == 0 { 0 } else { origin.creation_txg })
}

/// Returns the snapshots of a head as (name, dataset), in ZAP order.
///
/// # Errors
/// `Kind::Corrupt` if the list of snapshots is damaged.
pub fn snapshots_of(
    objects: &mut dyn ReadObjects,
    head: &DatasetPhys,
) -> TxResult<Vec<(String, u64)>> {
    match head.snapnames_zapobj {
        0 => Ok(Vec::new()),
        zap => mos::numbered(objects, zap),
    }
}

/// Returns the name, as stored, and the dataset of the snapshot of a head that is called `short`.
/// The file system decides whether case matters.
///
/// # Errors
/// `Kind::Corrupt` if the list of snapshots is damaged.
pub fn find_snapshot(
    objects: &mut dyn ReadObjects,
    head: &DatasetPhys,
    short: &str,
) -> TxResult<Option<(String, u64)>> {
    if head.snapnames_zapobj == 0 {
        return Ok(None);
    }
    let is_folded = head.flags.contains(DatasetFlags::CI_DATASET);
    let found = mos::find(objects, head.snapnames_zapobj, short, is_folded)?;
    Ok(found.and_then(|(name, value)| Some((name, value.first()?))))
}

/// Returns the holds on a snapshot, by tag.
///
/// # Errors
/// `Kind::Corrupt` if the list of holds is damaged.
pub fn holds_of(objects: &mut dyn ReadObjects, snapshot: &DatasetPhys) -> TxResult<Vec<Hold>> {
    let entries = match snapshot.userrefs_obj {
        0 => Vec::new(),
        zap => mos::named(objects, zap)?,
    };
    let hold = |(tag, value): (_, Value)| Hold { tag, time: value.first().unwrap_or(0) };
    let mut holds: Vec<_> = entries.into_iter().map(hold).collect();
    holds.sort_by(|a, b| a.tag.cmp(&b.tag));
    Ok(holds)
}
