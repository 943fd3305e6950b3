//! Opening and closing a file system, and holding on to nodes.

use std::sync::{Arc, Mutex};

use cenote_dmu::TxResult;
use cenote_dmu::live::Prefetcher;
use cenote_engine::{Charge, Engine};
use cenote_ondisk::znode::PFlags;
use cenote_rt::{Error, Kind, Result};

use super::brief::Briefs;
use super::control::Virtual;
use super::{ATTRIBUTES_COST, Attributes, Mount, Shared, lock, now};
use crate::access::{self, Credentials};
use crate::acl::Want;
use crate::edit::{self, Facts, Inode, Op, permit};
use crate::error::FsError;

/// Somebody's hold on a node: it is not freed when it loses its last name.
#[derive(Debug)]
pub struct Handle {
    object: u64,
    facts: Arc<Facts>,
    to_reap: Arc<Mutex<Vec<u64>>>,
}

impl Handle {
    /// The node.
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
    /// Opens the file system of a dataset for reading and writing: what an intent log left is done
    /// first, then nodes are freed that have no names.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is no such dataset; an [`FsError`] if it is no file system or one
    /// that is read only here; those of the pool.
    pub async fn open(engine: &Arc<Engine>, dataset: &str) -> Result<Arc<Self>> {
        Self::open_with(engine, dataset, false).await
    }

    /// Opens it for reading: what is in the unlinked set stays there.
    ///
    /// # Errors
    /// As [`open`](Self::open).
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

    /// Opens the file system of a dataset and leaves its unlinked set as it is.
    pub(super) async fn attach(
        engine: &Arc<Engine>,
        dataset: &str,
        is_read_only: bool,
    ) -> Result<Arc<Self>> {
        let head = engine.head(dataset).await?;
        let ownership = head.own();
        let facts = Facts::read(engine, &head).await?;
        if !is_read_only && head.log().is_claimed() {
            // Before anything else: what is in the log happened before what comes now.
            crate::replay(engine, &head).await?;
        }
        if !is_read_only && head.log().awaits_replay() {
            return Err(Error::new(Kind::Unsupported, FsError::Unreplayed));
        }
        // Layouts may have been registered meanwhile.
        let facts = if is_read_only { facts } else { Facts::read(engine, &head).await? };
        let settings = facts.settings();
        let shared = Shared { facts: Arc::new(facts), locks: Mutex::default() };
        let shared = head.share(Arc::new(shared));
        // Who shared them first may have read them long ago.
        shared.facts.set_settings(settings);
        let mount = Arc::new(Self {
            name: dataset.to_owned(),
            engine: Arc::clone(engine),
            settings_count: Mutex::new(head.settings_count()),
            head,
            ownership: Mutex::new(Some(ownership)),
            opened: now(),
            snapshots_seen: Mutex::default(),
            is_read_only,
            access_times: Mutex::default(),
            shared,
            briefs: Briefs::default(),
            ahead: Prefetcher::default(),
            to_reap: Arc::default(),
            unreaped: Mutex::default(),
        });
        // Has the log look at the property `sync`.
        mount.engine.commit_log(&mount.head, None).await?;
        Ok(mount)
    }

    /// Frees everything in the unlinked set that nobody has open, if the file system is writable.
    /// What is damaged there does not keep the file system from being opened.
    pub async fn drain(&self) {
        if self.is_read_only() {
            return;
        }
        let set = self.shared.facts.unlinked;
        let members = self.look(None, |op| {
            let numbers = cenote_dmu::zap::edit::numbers(op.tx, set)?;
            Ok(numbers.into_iter().map(|(number, _)| number).collect::<Vec<_>>())
        });
        let members = members.await.unwrap_or_default();
        lock(&self.to_reap).extend(members);
        self.reap_pending().await;
    }

    /// Frees nodes that lost their names and their handles. Operations that change something do
    /// this too.
    ///
    /// # Errors
    /// Those of the pool, when everything was tried. What could not be freed stays in the unlinked
    /// set; the next call tries it again, as does the next mount.
    pub async fn reap(&self) -> Result<()> {
        let again = std::mem::take(&mut *lock(&self.unreaped));
        lock(&self.to_reap).extend(again);
        self.reap_pending().await.map_or(Ok(()), Err)
    }

    /// The same behind an operation, which was done: that something else cannot be freed is no
    /// failure of it. Gives the first error.
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

    /// Sees that a node without a name is freed, now or when the last has closed it.
    pub(super) fn doom(&self, object: u64) {
        if !self.shared.facts.openers.doom(object) {
            lock(&self.to_reap).push(object);
        }
    }

    /// Takes hold of a node, whoever asks.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is none.
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

    /// Takes hold of a node and tells of it, if it is the one of that generation.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is none, or another.
    pub async fn hold_known(
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
            told(op, &inode)
        })
        .await
    }

    /// The node of a name, as [`lookup`](Self::lookup) finds it, held.
    ///
    /// # Errors
    /// As [`lookup`](Self::lookup).
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
            told(op, &inode)
        })
        .await
    }

    /// Takes hold of the node that `find` finds, with what it tells of it.
    async fn hold_if<T>(
        &self,
        cred: Option<&Credentials>,
        mut find: impl FnMut(&mut Op<'_, '_>) -> TxResult<(u64, T)>,
    ) -> Result<(T, Handle)> {
        // Counted under the object set's lock, in the look that found it: a removal either sees it
        // or was before, and the number is still that node's.
        let found = self.look(cred, |op| {
            let found = find(op)?;
            // Last: the look runs again if it fails.
            self.shared.facts.openers.add(found.0);
            Ok(found)
        });
        let (object, told) = found.await?;
        let (facts, to_reap) = (Arc::clone(&self.shared.facts), Arc::clone(&self.to_reap));
        Ok((told, Handle { object, facts, to_reap }))
    }

    /// Opens a node, for `cred` to do with it what `want` says. Whether it may is asked here only,
    /// not when it is read or written.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is none; refusals of rights.
    pub async fn open_node(&self, cred: &Credentials, object: u64, want: Want) -> Result<Handle> {
        if self.is_read_only() && want.intersects(Want::WRITE | Want::APPEND) {
            return Err(Error::new(Kind::ReadOnly, FsError::ReadOnly));
        }
        if Virtual::of(object).is_some() {
            return self.hold_to_look(object, want).await;
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

    /// Whether the flags of a node let it be opened, whoever asks: for writing (only at its end
    /// with `appends`), for cutting it off, or else for reading. Rights are not looked at. Returns
    /// whether the file can only be appended to.
    ///
    /// # Errors
    /// `Kind::NotFound` if there is none; `FsError::NotPermitted`, `FsError::AccessDenied`.
    pub async fn check_open(
        &self,
        object: u64,
        writes: bool,
        appends: bool,
        truncates: bool,
    ) -> Result<bool> {
        if Virtual::of(object).is_some() {
            return Ok(false);
        }
        self.look(None, |op| {
            let inode = op.inode(object)?;
            access::check_open(&inode, writes, appends, truncates)?;
            Ok(inode.flags().contains(PFlags::APPENDONLY))
        })
        .await
    }

    /// Opens a directory that is not stored.
    async fn hold_to_look(&self, object: u64, want: Want) -> Result<Handle> {
        if want.intersects(Want::WRITE | Want::APPEND) {
            return Err(Error::new(Kind::Invalid, FsError::IsADirectory));
        }
        self.hold(object).await
    }

    /// Whether `cred` may do what `want` says (`access`).
    ///
    /// # Errors
    /// As [`open_node`](Self::open_node).
    pub async fn access(&self, cred: &Credentials, object: u64, want: Want) -> Result<()> {
        if self.is_read_only() && want.intersects(Want::WRITE | Want::APPEND) {
            return Err(Error::new(Kind::ReadOnly, FsError::ReadOnly));
        }
        if Virtual::of(object).is_some() {
            return Ok(());
        }
        self.look(Some(cred), |op| {
            let inode = op.inode(object)?;
            permit::check(op, &inode, want)
        })
        .await
    }
}

/// A node that was found, and what is told of it.
fn told(op: &Op<'_, '_>, inode: &Inode) -> TxResult<(u64, Attributes)> {
    Attributes::of(op, inode).map(|attributes| (attributes.object, attributes))
}
