//! Opens and closes a file system, and holds nodes.

use std::sync::Arc;

use cenote_dmu::TxResult;
use cenote_dmu::live::Prefetcher;
use cenote_engine::{Charge, Engine};
use cenote_ondisk::znode::PFlags;
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::{Error, Kind, Result};

use super::control::Virtual;
use super::inode_cache::InodeCache;
use super::recount::Recounter;
use super::{ATTRIBUTES_COST, Attributes, Mount, Shared, lock, now};
use crate::access::{self, Credentials, OpenFor};
use crate::acl::Want;
use crate::edit::{self, Facts, Inode, Op, permit};
use crate::error::FsError;

/// A hold on a node: the node is not freed when it loses its last name.
#[derive(Debug)]
pub struct Handle {
    object: u64,
    facts: Arc<Facts>,
    to_reap: Arc<Mutex<Vec<u64>>>,
}

impl Handle {
    /// Returns the node.
    #[must_use]
    pub fn object(&self) -> u64 {
        self.object
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        self.facts.openers.add(self.object);
        Self {
            object: self.object,
            facts: Arc::clone(&self.facts),
            to_reap: Arc::clone(&self.to_reap),
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.facts.openers.remove(self.object) {
            lock(&self.to_reap).push(self.object);
        }
    }
}

impl Mount {
    /// Opens the file system of a dataset for reading and writing: first replays its intent log,
    /// then frees nodes without a name.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such dataset; an [`FsError`] if it is not a file system, or
    /// one that cenote only reads; errors of the pool.
    pub async fn open(engine: &Arc<Engine>, dataset: &str) -> Result<Arc<Self>> {
        Self::open_with(engine, dataset, false).await
    }

    /// Opens it for reading; the unlinked set is left alone. Keys of the first development format
    /// are accepted.
    ///
    /// # Errors
    /// The errors of [`open`](Self::open).
    pub async fn open_read_only(engine: &Arc<Engine>, dataset: &str) -> Result<Arc<Self>> {
        Self::open_with(engine, dataset, true).await
    }

    async fn open_with(
        engine: &Arc<Engine>,
        dataset: &str,
        is_read_only: bool,
    ) -> Result<Arc<Self>> {
        let mount = Self::attach(engine, dataset, is_read_only).await;
        let mount = mount.map_err(|error| error.in_dataset(dataset))?;
        mount.drain().await;
        Ok(mount)
    }

    /// Opens the file system of a dataset, and leaves its unlinked set alone.
    pub(super) async fn attach(
        engine: &Arc<Engine>,
        dataset: &str,
        is_read_only: bool,
    ) -> Result<Arc<Self>> {
        let head = if is_read_only {
            engine.datasets().head_for_reading(dataset).await?
        } else {
            engine.head(dataset).await?
        };
        let ownership = head.own();
        let facts = Facts::read(engine, &head).await?;
        if !is_read_only && head.log().is_claimed() {
            // Before anything else: the records in the log precede all new changes.
            crate::replay(engine, &head).await?;
        }
        // Checks L11.
        if !is_read_only && head.log().awaits_replay() {
            return Err(Error::new(Kind::Unsupported, FsError::Unreplayed));
        }
        // The replay may have registered layouts.
        let facts = if is_read_only { facts } else { Facts::read(engine, &head).await? };
        let settings = facts.settings();
        let shared =
            Shared { facts: Arc::new(facts), locks: Mutex::with_default(Rank::FsNodeLocks) };
        let shared = head.share(Arc::new(shared));
        // The shared state may have been read long ago by another mount.
        shared.facts.set_settings(settings);
        let mount = Arc::new_cyclic(|me| Self {
            recounter: Recounter::new(me, &head),
            name: dataset.to_owned(),
            engine: Arc::clone(engine),
            settings_count: Mutex::new(Rank::FsSettingsCount, head.settings_count()),
            head,
            ownership: Mutex::new(Rank::FsOwnership, Some(ownership)),
            opened: now(),
            snapshots_seen: Mutex::with_default(Rank::FsSnapshotsSeen),
            is_read_only,
            access_times: Mutex::with_default(Rank::FsAccessTimes),
            shared,
            inodes: InodeCache::default(),
            ahead: Prefetcher::default(),
            to_reap: Arc::new(Mutex::with_default(Rank::FsReap)),
            unreaped: Mutex::with_default(Rank::FsUnreaped),
        });
        // Makes the log read the property `sync`.
        mount.engine.intent_logs().commit(&mount.head, None).await?;
        Ok(mount)
    }

    /// Frees everything in the unlinked set that is not open, if the file system is writable.
    /// Damage in the set does not make opening the file system fail.
    pub async fn drain(&self) {
        if self.is_read_only() {
            return;
        }
        let set = self.shared.facts.unlinked;
        let members = self.inspect(None, |op| {
            let numbers = cenote_dmu::zap::edit::numbers(op.tx, set)?;
            Ok(numbers.into_iter().map(|(number, _)| number).collect::<Vec<_>>())
        });
        let members = members.await.unwrap_or_default();
        lock(&self.to_reap).extend(members);
        self.reap_pending().await;
    }

    /// Frees nodes that have lost their names and their handles. Modifying operations do this as
    /// well.
    ///
    /// # Errors
    /// Errors of the pool, after every node was tried. Nodes that could not be freed stay in the
    /// unlinked set; the next call and the next mount try them again.
    pub async fn reap(&self) -> Result<()> {
        let again = std::mem::take(&mut *lock(&self.unreaped));
        lock(&self.to_reap).extend(again);
        self.reap_pending().await.map_or(Ok(()), Err)
    }

    /// Frees queued nodes after an operation, whose result does not depend on that. Returns the
    /// first error.
    pub(super) async fn reap_pending(&self) -> Option<Error> {
        let mut first = None;
        loop {
            let Some(object) = lock(&self.to_reap).pop() else { return first };
            if let Err(error) = self.reap_one(object).await {
                lock(&self.unreaped).push(object);
                first.get_or_insert(error);
            }
        }
    }

    async fn reap_one(&self, object: u64) -> Result<()> {
        loop {
            let charge = Charge::free(ATTRIBUTES_COST);
            let reaped = self.apply(charge, None, |op| edit::reap(op, object)).await?;
            if let Some(next) = reaped.next {
                lock(&self.to_reap).push(next);
            }
            if !reaped.is_unfinished {
                return Ok(());
            }
        }
    }

    /// Frees a node without a name, now or after its last close.
    pub(super) fn free_when_closed(&self, object: u64) {
        if !self.shared.facts.openers.mark_unlinked(object) {
            lock(&self.to_reap).push(object);
        }
    }

    /// Takes a hold on a node, without permission checks.
    ///
    /// # Errors
    /// `Kind::NotFound` if it does not exist.
    pub async fn hold(&self, object: u64) -> Result<Handle> {
        let is_control = Virtual::of(object).is_some();
        let held = self.hold_if(None, |op| {
            if !is_control {
                op.inode(object)?;
            }
            Ok((object, ()))
        });
        held.await.map(|((), handle)| handle)
    }

    /// Takes a hold on a node and returns its attributes, if the node has that generation.
    ///
    /// # Errors
    /// `Kind::NotFound` if it does not exist, or has another generation.
    pub async fn hold_generation(
        &self,
        object: u64,
        generation: Option<u64>,
    ) -> Result<(Attributes, Handle)> {
        if let Some(place) = Virtual::of(object) {
            return Ok((self.control_attributes(place).await?, self.hold(object).await?));
        }
        self.hold_if(None, |op| {
            let inode = op.inode(object)?;
            if generation.is_some_and(|known| known != inode.generation()) {
                return Err(edit::refuse(Kind::NotFound, FsError::NoEntry));
            }
            with_attributes(op, &inode)
        })
        .await
    }

    /// Returns the node of a name, as [`lookup`](Self::lookup) does, with a hold.
    ///
    /// # Errors
    /// The errors of [`lookup`](Self::lookup).
    pub async fn lookup_held(
        &self,
        cred: &Credentials,
        parent: u64,
        name: &[u8],
    ) -> Result<(Attributes, Handle)> {
        if let Some(found) = self.control_lookup(cred, parent, name).await? {
            return Ok((found, self.hold(found.object).await?));
        }
        self.hold_if(Some(cred), |op| {
            let inode = edit::lookup(op, parent, name)?;
            with_attributes(op, &inode)
        })
        .await
    }

    /// Takes a hold on the node that `find` returns.
    async fn hold_if<T>(
        &self,
        cred: Option<&Credentials>,
        mut find: impl FnMut(&mut Op<'_, '_>) -> TxResult<(u64, T)>,
    ) -> Result<(T, Handle)> {
        // Counted under the object set's lock, in the transaction that found it: a removal either
        // sees the count or came before, and the number still belongs to that node.
        let found = self.inspect(cred, |op| {
            let found = find(op)?;
            // Last: the closure runs again if it fails.
            self.shared.facts.openers.add(found.0);
            Ok(found)
        });
        let (object, told) = found.await?;
        let (facts, to_reap) = (Arc::clone(&self.shared.facts), Arc::clone(&self.to_reap));
        Ok((told, Handle { object, facts, to_reap }))
    }

    /// Opens a node for `cred` with the permissions `want`. Permissions are checked only here, not
    /// on each read or write.
    ///
    /// # Errors
    /// `Kind::NotFound` if it does not exist; permission errors.
    pub async fn open_node(&self, cred: &Credentials, object: u64, want: Want) -> Result<Handle> {
        if self.is_read_only() && want.intersects(Want::WRITE | Want::APPEND) {
            return Err(Error::new(Kind::ReadOnly, FsError::ReadOnly));
        }
        if Virtual::of(object).is_some() {
            return self.hold_control(object, want).await;
        }
        let held = self.hold_if(Some(cred), |op| {
            let inode = op.inode(object)?;
            if inode.is_directory() && want.intersects(Want::WRITE | Want::APPEND) {
                return Err(edit::refuse(Kind::Invalid, FsError::IsADirectory));
            }
            permit::check(op, &inode, want)?;
            Ok((object, ()))
        });
        held.await.map(|((), handle)| handle)
    }

    /// Checks whether the flags of a node permit opening it. Permissions are not checked. Returns
    /// whether the file can only be appended to.
    ///
    /// # Errors
    /// `Kind::NotFound` if it does not exist; `FsError::NotPermitted`, `FsError::AccessDenied`.
    pub async fn check_open(
        &self,
        cred: &Credentials,
        object: u64,
        wanted: OpenFor,
    ) -> Result<bool> {
        if Virtual::of(object).is_some() {
            return Ok(false);
        }
        self.inspect(None, |op| {
            let inode = op.inode(object)?;
            access::check_open(&inode, cred, wanted)?;
            Ok(inode.flags().contains(PFlags::APPENDONLY))
        })
        .await
    }

    /// Opens a directory of the control directory.
    async fn hold_control(&self, object: u64, want: Want) -> Result<Handle> {
        if want.intersects(Want::WRITE | Want::APPEND) {
            return Err(Error::new(Kind::Invalid, FsError::IsADirectory));
        }
        self.hold(object).await
    }

    /// Checks whether `cred` has the permissions `want` (`access`).
    ///
    /// # Errors
    /// The errors of [`open_node`](Self::open_node).
    pub async fn access(&self, cred: &Credentials, object: u64, want: Want) -> Result<()> {
        if self.is_read_only() && want.intersects(Want::WRITE | Want::APPEND) {
            return Err(Error::new(Kind::ReadOnly, FsError::ReadOnly));
        }
        if Virtual::of(object).is_some() {
            return Ok(());
        }
        self.inspect(Some(cred), |op| {
            let inode = op.inode(object)?;
            permit::check(op, &inode, want)
        })
        .await
    }
}

/// Returns a node that was found, and its attributes.
fn with_attributes(op: &Op<'_, '_>, inode: &Inode) -> TxResult<(u64, Attributes)> {
    Attributes::of(op, inode).map(|attributes| (attributes.object, attributes))
}
