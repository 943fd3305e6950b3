//! A file system: its master node, its rules of names, its registry of attributes.
//!
//! The master node is a ZAP in object 1. Version 5 file systems register their attribute names
//! (spec 03 §8.1); older ones do not, and an upgraded file system has both kinds of inodes. Parts
//! that reading does not need (the unlinked set, the FUID domain table) may be missing.

use std::sync::Arc;

use cenote_dmu::live::Prefetcher;
use cenote_dmu::zap::read as zap;
use cenote_dmu::{ObjSet, ReadObjects, TxResult, Zap};
use cenote_engine::{Engine, OpenSnapshot};
use cenote_ondisk::master_node::{
    CASESENSITIVITY, DELETE_QUEUE, FUID, FUID_DOMAIN, FUID_IDX, FUID_NVP_ARRAY, MASTER_NODE_OBJ,
    NORMALIZATION, ROOT, SA_ATTRS, SHARES, UTF8ONLY, VERSION, VERSION_MAX,
};
use cenote_ondisk::nvlist::NvList;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::sa::Registry;
use cenote_ondisk::sa::registry::{LAYOUTS, REGISTRY};
use cenote_ondisk::words;
use cenote_ondisk::zap::{MatchKind, Value};
use cenote_pool::Dataset;
use cenote_rt::{Error, Kind, Result};

use crate::error::FsError;
use crate::mount::control;

/// Largest FUID domain table that is read.
const DOMAINS_LEN_MAX: u64 = 16 << 20;

/// Treatment of names that differ only in case (`casesensitivity`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// They are different names.
    #[default]
    Sensitive,
    /// They are one name.
    Insensitive,
    /// They are different names, unless a request asks for the opposite.
    Mixed,
}

/// A file system's rules for names, and for comparing them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NameRules {
    /// `casesensitivity`
    pub case: CaseSensitivity,
    /// `normalization`, as stored; 0 = none.
    pub normalization: u64,
    /// `utf8only`, which any normalization implies.
    pub is_utf8_only: bool,
}

impl NameRules {
    /// Returns how names are compared.
    pub(crate) const fn match_kind(self) -> MatchKind {
        match self.case {
            CaseSensitivity::Insensitive => MatchKind::Normalized,
            CaseSensitivity::Mixed => MatchKind::NormalizedCase,
            CaseSensitivity::Sensitive if self.normalization != 0 => MatchKind::Normalized,
            CaseSensitivity::Sensitive => MatchKind::Exact,
        }
    }
}

/// The entries of a master node.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MasterNode {
    /// Version of the file system, 1 to 5.
    pub(crate) version: u64,
    /// The root directory.
    pub(crate) root: u64,
    /// The unlinked set.
    pub(crate) unlinked: Option<u64>,
    /// The directory for SMB shares.
    shares: Option<u64>,
    /// The table of FUID domains.
    domains: Option<u64>,
    /// The master node of system attributes.
    pub(crate) sa_attrs: Option<u64>,
    /// Rules for names.
    pub(crate) rules: NameRules,
}

impl MasterNode {
    /// Reads the master node of a file system.
    ///
    /// # Errors
    /// [`FsError::Version`] for an unsupported version, [`FsError::MissingEntry`] without a version
    /// or a root directory.
    pub(crate) fn read(objects: &mut dyn ReadObjects) -> TxResult<Self> {
        let version = required(number(objects, VERSION)?, VERSION)?;
        if version == 0 || version > VERSION_MAX {
            return Err(Error::new(Kind::Unsupported, FsError::Version { found: version }).into());
        }
        let case = match number(objects, CASESENSITIVITY)? {
            Some(1) => CaseSensitivity::Insensitive,
            Some(2) => CaseSensitivity::Mixed,
            _ => CaseSensitivity::Sensitive,
        };
        let normalization = number(objects, NORMALIZATION)?.unwrap_or(0);
        let is_utf8_only = number(objects, UTF8ONLY)?.unwrap_or(0) != 0 || normalization != 0;
        Ok(Self {
            version,
            root: required(number(objects, ROOT)?, ROOT)?,
            unlinked: number(objects, DELETE_QUEUE)?,
            shares: number(objects, SHARES)?,
            domains: number(objects, FUID)?,
            sa_attrs: number(objects, SA_ATTRS)?,
            rules: NameRules { case, normalization, is_utf8_only },
        })
    }
}

/// Returns the first integer of an entry of the master node.
fn number(objects: &mut dyn ReadObjects, name: &str) -> TxResult<Option<u64>> {
    Ok(zap::lookup(objects, MASTER_NODE_OBJ, name)?.as_ref().and_then(Value::first))
}

/// Returns an entry of the master node, or an error if it is missing.
pub(crate) fn required(entry: Option<u64>, name: &'static str) -> TxResult<u64> {
    entry.ok_or_else(|| {
        let missing = Error::corrupt(FsError::MissingEntry { name });
        missing.with_at(|at| at.object = Some(MASTER_NODE_OBJ)).into()
    })
}

/// Reads registry and layouts from the master node of system attributes. They are created with the
/// first attribute, so a file system that never had a file lacks them.
pub(crate) fn registry(objects: &mut dyn ReadObjects, master: Option<u64>) -> TxResult<Registry> {
    let mut registry = Registry::new();
    let Some(master) = master else { return Ok(registry) };
    let mut table = |name| match zap::lookup_u64(objects, master, name)? {
        Some(object) => zap::entries(objects, object),
        None => Ok(Vec::new()),
    };
    let (attributes, layouts) = (table(REGISTRY)?, table(LAYOUTS)?);
    for entry in attributes {
        if let (Some(name), Some(value)) = (entry.key.name(), entry.value.first()) {
            registry.add_attr(name, value);
        }
    }
    for entry in layouts {
        if let Some(name) = entry.key.name() {
            registry.add_layout(name, &entry.value.words());
        }
    }
    Ok(registry)
}

/// An open file system or a snapshot of one.
#[derive(Debug)]
pub struct FileSystem {
    name: String,
    pub(crate) objset: Arc<ObjSet>,
    pub(crate) registry: Registry,
    master: MasterNode,
    is_snapshot: bool,
    /// State of reading ahead.
    pub(crate) ahead: Prefetcher,
    /// Keeps the snapshot from being destroyed while the pool is open for writing.
    _hold: Option<OpenSnapshot>,
}

impl FileSystem {
    /// Opens the file system of a dataset.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if it is encrypted and its key is not loaded; an [`FsError`] if it is
    /// not a file system, or one of an unsupported version.
    pub async fn open(dataset: &Dataset) -> Result<Arc<Self>> {
        let objset = dataset.open().await?;
        let name = dataset.name();
        let opened = Self::of(objset, name, dataset.is_snapshot(), None).await;
        opened.map_err(|error| error.in_dataset(name))
    }

    /// Opens a snapshot, `pool/dataset@name`, of a pool that is open for writing. The snapshot
    /// cannot be destroyed while it is open.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such snapshot; the errors of [`open`](Self::open).
    pub async fn open_snapshot(engine: &Engine, name: &str) -> Result<Arc<Self>> {
        let opened = async {
            let snapshot = engine.snapshots().open_decrypted(name).await?;
            Self::of(Arc::clone(snapshot.contents()), name, true, Some(snapshot)).await
        };
        opened.await.map_err(|error| error.in_dataset(name))
    }

    async fn of(
        objset: Arc<ObjSet>,
        name: &str,
        is_snapshot: bool,
        hold: Option<OpenSnapshot>,
    ) -> Result<Arc<Self>> {
        if objset.kind() != ObjSetType::Zfs {
            return Err(Error::new(Kind::Invalid, FsError::NotAFilesystem));
        }
        let opened = objset.read(|objects| {
            let master = MasterNode::read(objects)?;
            Ok((master, registry(objects, master.sa_attrs)?))
        });
        let (master, registry) = opened.await?;
        Ok(Arc::new(Self {
            name: name.to_owned(),
            is_snapshot,
            ahead: Prefetcher::default(),
            _hold: hold,
            registry,
            master,
            objset,
        }))
    }

    /// The dataset's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The object set.
    pub fn objset(&self) -> &Arc<ObjSet> {
        &self.objset
    }

    /// Version of the file system, 1 to 5.
    pub fn version(&self) -> u64 {
        self.master.version
    }

    /// Object of the root directory.
    pub fn root_object(&self) -> u64 {
        self.master.root
    }

    /// Returns the inode number of `object` for users: the object number, except for the root of a
    /// snapshot, which is an entry of `.zfs/snapshot` (spec 03 §15).
    pub fn inode(&self, object: u64) -> u64 {
        if self.is_snapshot && object == self.master.root {
            control::root_of(self.objset.id())
        } else {
            object
        }
    }

    /// Returns its rules for names.
    pub fn rules(&self) -> NameRules {
        self.master.rules
    }

    /// Returns attributes and layouts.
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Returns the directory for SMB shares, which is in no directory.
    pub(crate) fn shares(&self) -> Option<u64> {
        self.master.shares
    }

    /// Returns the objects without a name that were not freed yet, in ZAP order.
    pub async fn unlinked(&self) -> Result<Vec<u64>> {
        let Some(object) = self.master.unlinked else { return Ok(Vec::new()) };
        let entries = Zap::open(&self.objset, object).await?.to_vec().await?;
        Ok(entries.iter().filter_map(|entry| entry.value.first()).collect())
    }

    /// Returns the FUID domains of foreign owners by index, which is the upper half of an owner.
    pub async fn domains(&self) -> Result<Vec<(u32, String)>> {
        let Some(object) = self.master.domains else { return Ok(Vec::new()) };
        let dnode = self.objset.dnode(object).await?;
        let [len] = words::padded(dnode.bonus()?);
        let bytes = cenote_dmu::read_bytes(&dnode, len, DOMAINS_LEN_MAX).await?;
        let list = NvList::decode(&bytes).map_err(|error| dnode.locate(Error::corrupt(error)))?;
        let rows = list.list_array(FUID_NVP_ARRAY).unwrap_or_default();
        let row =
            |row: &NvList| Some((row.u64(FUID_IDX)? as u32, row.str(FUID_DOMAIN)?.to_owned()));
        Ok(rows.iter().filter_map(row).collect())
    }
}
