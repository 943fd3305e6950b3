//! Cached state of a file system that is open for writing.
//!
//! The master node never changes except for quotas. Properties may change at any time, and are read
//! again when the head reports a change. The open files are recorded here as well, because a file
//! that loses its last name is freed in the same transaction if it is not open.
//!
//! Invariants
//! * O1  A node counts its handles: it is freed when it has neither a handle nor a name.
//! * O2  A node with a handle is not freed.

use std::sync::Arc;

use cenote_dmu::{Tx, TxResult};
use cenote_engine::{Engine, Head};
use cenote_ondisk::master_node as key;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::sa::Registry;
use cenote_rt::lock::{Mutex, MutexGuard, Rank, RwLock};
use cenote_rt::{Error, FixedMap, Kind, Result};

use super::sa::Schema;
use crate::error::FsError;
use crate::filesystem::{MasterNode, NameRules, registry, required};
use crate::format::FsOwners;
use crate::quota::LimitCache;

/// The version that is written.
const VERSION: u64 = 5;
/// Bytes of a slot of dnodes.
const SLOT: u64 = 512;

/// Properties of the dataset that affect files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "each is a property of its own")]
pub struct Settings {
    /// Largest block of a new file (`recordsize`).
    pub record_size: u64,
    /// Whether reads update the access time (`atime`).
    pub has_atime: bool,
    /// Whether only some reads do (`relatime`).
    pub is_relatime: bool,
    /// `readonly`
    pub is_read_only: bool,
    /// Where extended attributes are stored (`xattr`): 0 nowhere, 1 directories, 2 system
    /// attributes.
    pub xattr: u64,
    /// `acltype`: 0 off, 1 POSIX, 2 NFSv4.
    pub acl_type: u64,
    /// Effect of chmod on an ACL (`aclmode`).
    pub acl_mode: u64,
    /// Inheritance of ACLs (`aclinherit`).
    pub acl_inherit: u64,
    /// Whether `.zfs` is shown (`snapdir`): 0 hidden, 1 visible, 2 disabled.
    pub snapdir: u64,
    /// Whether names may be longer than 255 bytes (`longname`).
    pub has_long_names: bool,
    /// Whether longer names may exist (feature `longname`).
    pub knows_long_names: bool,
    /// Slots of a new dnode (`dnodesize`).
    pub dnode_slots: usize,
    /// Whether data of files is cached (`primarycache` is `all`).
    pub caches_data: bool,
}

/// Properties by name, with their default values.
const PROPERTIES: [(&str, u64); 12] = [
    ("recordsize", 128 << 10),
    ("atime", 1),
    ("relatime", 1),
    ("readonly", 0),
    ("xattr", 2),
    ("acltype", 0),
    ("aclmode", 0),
    ("aclinherit", 4),
    ("snapdir", 0),
    ("longname", 0),
    ("dnodesize", 0),
    ("primarycache", CACHE_ALL),
];
/// Value `all` of `primarycache`.
const CACHE_ALL: u64 = 2;

impl Settings {
    /// Reads the properties of a head.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn read(engine: &Engine, head: &Head) -> Result<Self> {
        let values = engine.properties().numbers_of(head, &PROPERTIES).await?;
        let knows_long_names = engine.admin().has_feature("longname").await?;
        let value = |name: &str| {
            let found = PROPERTIES.iter().zip(&values).find(|((known, _), _)| *known == name);
            found.map_or(0, |(_, value)| *value)
        };
        // 0 is the minimum, 1 is "auto", which is twice the minimum.
        let slots = match value("dnodesize") {
            0 => 1,
            1 => 2,
            size => size.div_ceil(SLOT).clamp(1, 32),
        };
        Ok(Self {
            record_size: value("recordsize").clamp(SLOT, 16 << 20).next_power_of_two(),
            has_atime: value("atime") != 0,
            is_relatime: value("relatime") != 0,
            is_read_only: value("readonly") != 0,
            xattr: value("xattr"),
            acl_type: value("acltype"),
            acl_mode: value("aclmode"),
            acl_inherit: value("aclinherit"),
            snapdir: value("snapdir"),
            has_long_names: knows_long_names && value("longname") != 0,
            knows_long_names,
            dnode_slots: slots as usize,
            caches_data: value("primarycache") == CACHE_ALL,
        })
    }
}

/// Open count of an object.
#[derive(Debug, Clone, Copy, Default)]
struct Opener {
    count: u64,
    /// Whether it has lost its last name.
    is_unlinked: bool,
}

/// Open counts of all open objects.
#[derive(Debug)]
pub struct Openers(Mutex<FixedMap<u64, Opener>>);

impl Default for Openers {
    fn default() -> Self {
        Self(Mutex::with_default(Rank::FsOpeners))
    }
}

impl Openers {
    // LOCK: held for a lookup. Taken inside of closures, under the object set's lock.
    fn lock(&self) -> MutexGuard<'_, FixedMap<u64, Opener>> {
        self.0.lock()
    }

    /// Whether the object is open.
    pub fn is_open(&self, object: u64) -> bool {
        self.lock().contains_key(&object)
    }

    /// Increments the open count.
    pub fn add(&self, object: u64) {
        self.lock().entry(object).or_default().count += 1;
    }

    /// Marks an object without a name as unlinked if it is open. Returns whether it is open; then
    /// its last close frees it.
    pub fn mark_unlinked(&self, object: u64) -> bool {
        match self.lock().get_mut(&object) {
            Some(opener) => {
                opener.is_unlinked = true;
                true
            }
            None => false,
        }
    }

    /// Decrements the open count. Returns true if that was the last open of an unlinked object.
    pub fn remove(&self, object: u64) -> bool {
        let mut open = self.lock();
        // Checks O1: otherwise a removed file would be freed while it is open, or never.
        let opener = open.get_mut(&object).expect("a counted handle");
        // Checks O1.
        assert!(opener.count > 0, "node {object} has no handles");
        opener.count -= 1;
        if opener.count > 0 {
            return false;
        }
        let is_unlinked = opener.is_unlinked;
        open.remove(&object);
        is_unlinked
    }
}

/// Cached state of a file system.
#[derive(Debug)]
pub struct Facts {
    /// Version of the file system.
    pub version: u64,
    /// Root directory.
    pub root: u64,
    /// Unlinked set.
    pub unlinked: u64,
    /// Master node of system attributes.
    pub sa_master: u64,
    /// Rules for names.
    pub rules: NameRules,
    /// Whether objects have project ids (feature `project_quota`).
    pub has_projects: bool,
    /// Whether the log may have records of extended attributes (feature `zilsaxattr`).
    pub logs_xattrs: bool,
    /// Cached quotas of users, groups and projects.
    pub(crate) limits: LimitCache,
    /// Open counts of objects.
    pub openers: Openers,
    // LOCK: each held for a copy.
    settings: RwLock<Settings>,
    schema: Mutex<Arc<Schema>>,
}

impl Facts {
    /// Reads the state of a head's file system.
    ///
    /// # Errors
    /// [`FsError`] if it is not a file system, or not of the version that is written; errors of
    /// reading.
    pub async fn read(engine: &Engine, head: &Head) -> Result<Self> {
        if head.live().kind() != ObjSetType::Zfs {
            return Err(Error::new(Kind::Invalid, FsError::NotAFilesystem));
        }
        let settings = Settings::read(engine, head).await?;
        let has_projects = engine.admin().has_feature("project_quota").await?;
        if !engine.datasets().has_owner_probe() {
            // All writes from here on, including a replay, are accounted to their owners.
            let counts_objects = engine.admin().has_feature("userobj_accounting").await?;
            engine.datasets().set_owner_probe(Arc::new(FsOwners {
                counts_objects,
                counts_projects: has_projects,
            }));
        }
        let (mut facts, registry) = head.live().inspect(|tx| master_node(tx, settings)).await?;
        facts.has_projects = has_projects;
        facts.logs_xattrs = engine.admin().has_feature("zilsaxattr").await?;
        facts.set_schema(Arc::new(Schema::new(registry)));
        Ok(facts)
    }

    /// Returns the properties.
    pub fn settings(&self) -> Settings {
        *self.settings.read()
    }

    /// Replaces the properties.
    pub fn set_settings(&self, settings: Settings) {
        *self.settings.write() = settings;
    }

    /// Returns attributes and layouts.
    pub fn schema(&self) -> Arc<Schema> {
        Arc::clone(&self.schema.lock())
    }

    pub(super) fn set_schema(&self, schema: Arc<Schema>) {
        *self.schema.lock() = schema;
    }
}

fn master_node(tx: &mut Tx<'_>, settings: Settings) -> TxResult<(Facts, Registry)> {
    let master = MasterNode::read(tx)?;
    if master.version != VERSION {
        let error = Error::new(Kind::ReadOnly, FsError::OldVersion { found: master.version });
        return Err(error.into());
    }
    let facts = Facts {
        version: master.version,
        root: master.root,
        unlinked: required(master.unlinked, key::DELETE_QUEUE)?,
        sa_master: required(master.sa_attrs, key::SA_ATTRS)?,
        rules: master.rules,
        has_projects: false,
        logs_xattrs: false,
        limits: LimitCache::default(),
        openers: Openers::default(),
        settings: RwLock::new(Rank::FsSettings, settings),
        schema: Mutex::with_default(Rank::FsSchema),
    };
    Ok((facts, registry(tx, master.sa_attrs)?))
}
