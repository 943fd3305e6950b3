//! Operations on snapshots.

use std::sync::Arc;

use cenote_block::{Grounds, Hold};
use cenote_dmu::ObjSet;
use cenote_dmu::zap::edit as zap;
use cenote_ondisk::dsl::key;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::zap::Value;
use cenote_pool::dsl::dataset::snapshots_of;
use cenote_pool::dsl::deleg::Requester;
use cenote_rt::{Error, Kind, Result};

use crate::dsl::opened::{OpenCount, OpenSnapshot};
use crate::dsl::operation::Request;
use crate::dsl::settings::{self, Change};
use crate::dsl::{self, OpError, features, hold, names, rename, snapshot};
use crate::{Datasets, Engine, Head};

/// Operations on snapshots; made by [`Engine::snapshots`].
#[derive(Debug, Clone, Copy)]
pub struct Snapshots<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) requester: &'e Requester,
}

impl<'e> Snapshots<'e> {
    /// Returns the operations as requested by this user, instead of the superuser: limits bind the
    /// user.
    #[must_use]
    pub fn by(self, requester: &'e Requester) -> Self {
        Self { requester, ..self }
    }

    fn datasets(self) -> Datasets<'e> {
        self.engine.datasets().by(self.requester)
    }

    /// Takes snapshots, `pool/fs@name` each, in one txg.
    pub async fn create(self, wanted: Vec<String>) -> Result<()> {
        self.create_with(wanted, Vec::new()).await
    }

    /// Like [`create`](Self::create), with user properties for each snapshot.
    pub async fn create_with(self, wanted: Vec<String>, props: Vec<(String, Value)>) -> Result<()> {
        let request = Request::normal(3 * wanted.len() as u64).changing(&[]);
        let props: Vec<_> =
            props.into_iter().map(|(name, value)| (name, Change::Set(value))).collect();
        self.datasets()
            .operate_each(request, wanted, move |tx, env, effects, name| {
                snapshot::take_named(tx, env, name)?;
                settings::apply(tx, env, effects, name, &props)
            })
            .await
    }

    /// Destroys a snapshot.
    pub async fn destroy(self, name: &str) -> Result<()> {
        self.destroy_all(vec![name.to_owned()], false).await
    }

    /// Destroys snapshots in one txg. With `is_deferred`, those in use are destroyed later. One
    /// that does not exist counts as destroyed.
    pub async fn destroy_all(self, wanted: Vec<String>, is_deferred: bool) -> Result<()> {
        let request = Request::free().changing(&[]);
        self.datasets()
            .operate_each(request, wanted, move |tx, env, _, name| {
                snapshot::destroy_named(tx, env, name, is_deferred)
            })
            .await
    }

    /// Renames the snapshot `dataset@from` to `to`; with `is_recursive` also snapshots with this
    /// name of descendants.
    pub async fn rename(
        self,
        dataset: &str,
        from: &str,
        to: &str,
        is_recursive: bool,
    ) -> Result<()> {
        let (dataset, from, to) = (dataset.to_owned(), from.to_owned(), to.to_owned());
        self.datasets()
            .operate(Request::half(1).changing(&[]), move |tx, env, _| {
                rename::snapshot(tx, env, &dataset, (&from, &to), is_recursive)
            })
            .await
    }

    /// Holds snapshots, (name, tag) each, in one txg. Temporary holds end when the pool is opened
    /// for writing again.
    pub async fn hold(self, wanted: Vec<(String, String)>, is_temporary: bool) -> Result<()> {
        let request = Request::half(wanted.len() as u64).changing(&[]);
        self.datasets()
            .operate_each(request, wanted, move |tx, env, _, (name, tag)| {
                hold::hold(tx, env, name, tag, is_temporary)
            })
            .await
    }

    /// Releases holds, (name, tag) each, in one txg. Snapshots whose destruction was deferred are
    /// destroyed with the last.
    pub async fn release(self, wanted: Vec<(String, String)>) -> Result<()> {
        let request = Request::free().changing(&[]);
        self.datasets()
            .operate_each(request, wanted, |tx, env, _, (name, tag)| {
                hold::release(tx, env, name, tag)
            })
            .await
    }

    /// Releases all temporary holds with this tag, in one txg. Snapshots that were renamed since
    /// are released, too.
    pub async fn release_temporary(self, tag: &str) -> Result<()> {
        let tag = tag.to_owned();
        let request = Request::free().changing(&[]);
        self.datasets()
            .operate(request, move |tx, env, _| hold::release_temporary(tx, env, Some(&tag)))
            .await?;
        Ok(())
    }

    /// Opens a snapshot, `pool/dataset@name`, for reading.
    ///
    /// # Errors
    /// `Kind::NotFound` if the snapshot does not exist.
    pub async fn open(self, name: &str) -> Result<OpenSnapshot> {
        self.open_as(name, false).await
    }

    /// Like [`open`](Self::open), with the keys of an encrypted dataset.
    ///
    /// # Errors
    /// Also `Kind::KeyUnavailable` if the keys are not loaded.
    pub async fn open_decrypted(self, name: &str) -> Result<OpenSnapshot> {
        self.open_as(name, true).await
    }

    async fn open_as(self, name: &str, is_decrypted: bool) -> Result<OpenSnapshot> {
        let found = self
            .engine
            .mos
            .inspect(|tx| {
                let object = names::dataset(tx, name)?;
                let phys = dsl::get_dataset(tx, object)?;
                if !phys.is_snapshot() {
                    return Err(Error::new(Kind::Invalid, OpError::Name).into());
                }
                // Last: the closure runs again if it fails.
                self.engine.heads.opened.add(object);
                Ok((object, phys.bp, phys.dir_obj))
            })
            .await;
        let (object, root, dir) = found?;
        let hold = Arc::<Hold>::default();
        let (opened, grounds) =
            (Arc::clone(&self.engine.heads.opened), Grounds::Held(Arc::clone(&hold)));
        let count = OpenCount { object, opened, hold };
        let store = Arc::clone(&self.engine.store);
        let keys = if is_decrypted { self.datasets().keys_of(dir).await? } else { None };
        let contents = ObjSet::open_on(store, &root, keys, object, grounds).await?;
        Ok(OpenSnapshot { contents, _count: count })
    }

    /// Returns the snapshots of a head as (name, number), by number.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn of_head(self, head: &Head) -> Result<Vec<(String, u64)>> {
        let mut found = self
            .engine
            .mos
            .inspect(|tx| {
                let head = dsl::get_dataset(tx, head.object())?;
                snapshots_of(tx, &head)
            })
            .await?;
        found.sort_unstable_by_key(|(_, object)| *object);
        Ok(found)
    }

    /// Returns the time of the last change of a head's snapshots in seconds and nanoseconds, 0
    /// before the first one; `None` if the pool does not store it.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn changed(self, head: &Head) -> Result<Option<(u64, u64)>> {
        self.engine
            .mos
            .inspect(|tx| {
                if !features::is_enabled(tx, "extensible_dataset")? {
                    return Ok(None);
                }
                let dir = dsl::get_dataset(tx, head.object())?.dir_obj;
                let stored = match tx.dnode(dir)?.object_type {
                    ObjectType::ZAP_METADATA => zap::lookup(tx, dir, key::SNAPSHOTS_CHANGED)?,
                    _ => None,
                };
                let words = stored.map(|value| value.words()).unwrap_or_default();
                let word = |index: usize| words.get(index).copied().unwrap_or(0);
                Ok(Some((word(0), word(1))))
            })
            .await
    }

    /// Returns the number of a head's snapshot, with the file system's rules for case.
    ///
    /// # Errors
    /// `Kind::NotFound` if it does not exist.
    pub async fn find(self, head: &Head, name: &str) -> Result<u64> {
        self.engine
            .mos
            .inspect(|tx| {
                let head = dsl::get_dataset(tx, head.object())?;
                names::snapshot(tx, &head, name)
            })
            .await
    }
}
