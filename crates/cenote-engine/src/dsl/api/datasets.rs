//! Operations on file systems, volumes and clones.
//!
//! Space is that of the last commit, as in OpenZFS's `statfs`: changes of the open txg do not count
//! (spec 04 §17).

use std::sync::Arc;

use cenote_block::{BlockStore, SealKeys};
use cenote_dmu::live::OwnerProbe;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Live, Tx, TxResult};
use cenote_ondisk::dsl::key;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_pool::dsl::deleg::Requester;
use cenote_rt::{BoxFuture, Kind, Result};

use crate::admin::create::Fill;
use crate::dsl::api::keys::NewEncryption;
use crate::dsl::deleg::{self, GrantChange};
use crate::dsl::operation::{Body, Request};
use crate::dsl::{
    self, blocks, create, destroy, directory_object, hold, names, need_directory_object, promote,
    props, rename, room, settings, swap,
};
use crate::txg::suspend::HeadKeys;
use crate::{Answer, Engine, Head, Notice, Scope, SuspendAwareStore, Task};

/// A dataset to create.
pub struct NewDataset {
    /// Full name.
    pub name: String,
    /// File system or volume.
    pub kind: ObjSetType,
    /// Local properties.
    pub props: Vec<(String, Value)>,
    /// How it is encrypted.
    pub encryption: NewEncryption,
    /// Fills its object set.
    pub fill: Fill,
}

impl NewDataset {
    /// Returns a dataset without properties and contents, encrypted as its parent is.
    pub fn new(name: &str, kind: ObjSetType) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            props: Vec::new(),
            encryption: NewEncryption::Inherited,
            fill: Box::new(|_| Ok(())),
        }
    }
}

pub(crate) fn parent_of(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(parent, _)| parent)
}

/// Space of a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeadSpace {
    /// Referenced bytes.
    pub referenced: u64,
    /// Available bytes.
    pub available: u64,
    /// Number of objects.
    pub objects: u64,
    /// Identity of its contents (`fsid_guid`).
    pub fsid: u64,
}

/// Operations on file systems, volumes and clones; made by [`Engine::datasets`].
#[derive(Debug, Clone, Copy)]
pub struct Datasets<'e> {
    pub(crate) engine: &'e Engine,
    pub(crate) requester: &'e Requester,
}

impl<'e> Datasets<'e> {
    /// Returns the operations as requested by this user, instead of the superuser: the user gets
    /// the create-time permissions of new datasets, and limits bind the user.
    #[must_use]
    pub fn by(self, requester: &'e Requester) -> Self {
        Self { requester, ..self }
    }

    /// Creates a file system or volume, and opens it.
    pub async fn create(self, new: NewDataset) -> Result<Arc<Head>> {
        let answer = Answer::new();
        let requester = self.requester.clone();
        let task = CreateDataset { new, requester, answer: Arc::clone(&answer) };
        self.engine.run_task(Box::new(task)).await?;
        answer.take()
    }

    /// Creates a clone of a snapshot, with its own properties, and opens it.
    pub async fn clone_snapshot(
        self,
        origin: &str,
        name: &str,
        props: Vec<(String, Value)>,
    ) -> Result<Arc<Head>> {
        let (origin, new) = (origin.to_owned(), name.to_owned());
        let request = Request::normal(6).below(parent_of(name)).changing(&[name]);
        self.operate(request, move |tx, env, effects| {
            let head = create::clone(tx, env, &new, &origin)?;
            settings::apply_new(tx, env, head, &props)?;
            effects.cloned.push(head);
            Ok(())
        })
        .await?;
        self.engine.head(name).await
    }

    /// Destroys a file system or volume. Its space is freed in this txg and later ones.
    pub async fn destroy(self, name: &str) -> Result<()> {
        let request = Request::free().dooming(name).changing(&[name]);
        let name = name.to_owned();
        self.operate(request, move |tx, env, effects| destroy::head(tx, env, effects, &name)).await
    }

    /// Promotes a clone: it becomes the owner of the snapshots that it shares with its origin.
    pub async fn promote(self, name: &str) -> Result<()> {
        let name = name.to_owned();
        // Its charge depends on the number of snapshots that move, and is checked with them.
        let request = Request::half(2).changing(&[]);
        self.operate(request, move |tx, env, effects| promote::promote(tx, env, effects, &name))
            .await
    }

    /// Rolls back to the latest snapshot, which must be `wanted` if that is given, and returns its
    /// name. An open head is another one afterwards.
    pub async fn rollback(self, name: &str, wanted: Option<&str>) -> Result<String> {
        let request = Request { blocks: 1, ..Request::half(1).dooming(name).changing(&[name]) };
        let (name, wanted) = (name.to_owned(), wanted.map(str::to_owned));
        self.operate(request, move |tx, env, effects| {
            let latest = swap::rollback(tx, env, effects, &name, wanted.as_deref())?;
            names::name_of(tx, env, latest)
        })
        .await
    }

    /// Renames a file system or volume and its descendants.
    pub async fn rename(self, from: &str, to: &str) -> Result<()> {
        let request = Request::half(3).below(parent_of(to)).changing(&[from, to]);
        let (from, to) = (from.to_owned(), to.to_owned());
        self.operate(request, move |tx, env, effects| rename::dataset(tx, env, effects, &from, &to))
            .await
    }

    /// Grants permissions on a dataset (`zfs allow`).
    pub async fn allow(self, name: &str, grants: Vec<GrantChange>) -> Result<()> {
        let (name, blocks) = (name.to_owned(), 2 * grants.len() as u64);
        let request = Request::half(blocks).changing(&[]);
        self.operate(request, move |tx, env, _| deleg::allow(tx, env, &name, &grants)).await
    }

    /// Removes permissions on datasets (`zfs unallow`), in one txg.
    pub async fn unallow(self, names: Vec<String>, grants: Vec<GrantChange>) -> Result<()> {
        self.operate_each(Request::free().changing(&[]), names, move |tx, env, _, name| {
            deleg::unallow(tx, env, name, &grants)
        })
        .await
    }

    /// Removes leftovers of ended programs: partially received datasets that cannot be resumed, and
    /// temporary holds (spec 04 §20, end). Called once the pool is open and its logs are claimed.
    pub(crate) async fn remove_leftovers(self) -> Result<()> {
        let pool = self.engine.config().facts.name;
        let (abandoned, has_holds) = self
            .engine
            .mos
            .inspect(|tx| {
                let root = need_directory_object(tx, key::ROOT_DATASET)?;
                let mut names = Vec::new();
                for head in destroy::abandoned(tx, root)? {
                    names.push(names::name_below(tx, &pool, head)?);
                }
                let holds = directory_object(tx, key::TMP_USERREFS)?;
                let has_holds = holds.map(|table| zap::len(tx, table)).transpose()?;
                Ok((names, has_holds.is_some_and(|len| len > 0)))
            })
            .await?;
        let mut destroyed = Vec::new();
        for name in abandoned {
            match self.destroy(&name).await {
                Ok(()) => destroyed.push(name),
                // With children or snapshots it was not created by a receive.
                Err(error) if error.kind() == Kind::Busy => {}
                Err(error) => return Err(error),
            }
        }
        if !destroyed.is_empty() {
            self.engine.health().add_notice(Notice::AbandonedDestroyed { names: destroyed });
        }
        if has_holds {
            let request = Request::free().changing(&[]);
            let count =
                self.operate(request, |tx, env, _| hold::release_temporary(tx, env, None)).await?;
            self.engine.health().add_notice(Notice::HoldsReleased { count });
        }
        Ok(())
    }

    /// Returns the space of a head (spec 04 §17.5).
    ///
    /// # Errors
    /// Errors of reading the MOS; `Kind::NotFound` if the dataset was destroyed.
    pub async fn space_of(self, head: &Head) -> Result<HeadSpace> {
        let (object, env) = (head.object(), self.env(self.engine.open_txg()));
        let objects = head.live().inspect(|tx| Ok(tx.object_count())).await?;
        self.engine
            .mos
            .inspect(|tx| -> TxResult<HeadSpace> {
                let phys = dsl::get_dataset(tx, object)?;
                let dir = dsl::get_dir(tx, phys.dir_obj)?;
                let mut available = room::available(tx, &env, phys.dir_obj)?;
                let reserved = blocks::refreservation(tx, &dir)?;
                available = available.saturating_add(reserved.saturating_sub(phys.unique_bytes));
                let quota = props::own_number(tx, dir.props_zapobj, "refquota")?;
                if quota != 0 {
                    available = available.min(quota.saturating_sub(phys.referenced_bytes));
                }
                let referenced = phys.referenced_bytes;
                Ok(HeadSpace { referenced, available, objects, fsid: phys.fsid_guid })
            })
            .await
    }

    /// Returns the name of a head by its number.
    ///
    /// # Errors
    /// `Kind::NotFound` if it was destroyed.
    pub async fn name_of(self, head: u64) -> Result<String> {
        let pool = self.engine.config().facts.name;
        self.engine.mos.inspect(|tx| names::name_below(tx, &pool, head)).await
    }

    /// Whether a user has all of these permissions on a head, or on its snapshots.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn permits(
        self,
        head: &Head,
        is_snapshot: bool,
        requester: &Requester,
        permissions: &[&str],
    ) -> Result<bool> {
        let permits = |tx: &mut Tx<'_>| {
            let dir = dsl::get_dataset(tx, head.object())?.dir_obj;
            cenote_pool::dsl::deleg::permits(tx, (dir, is_snapshot), requester, permissions)
        };
        self.engine.mos.inspect(permits).await
    }

    /// Sets the probe that finds the owners of objects in heads that are opened from now on.
    pub fn set_owner_probe(self, probe: Arc<dyn OwnerProbe>) {
        *self.engine.heads.owner_probe.lock() = Some(probe);
    }

    /// Whether a probe finds the owners of objects.
    pub fn has_owner_probe(self) -> bool {
        self.owner_probe().is_some()
    }
}

/// The task of [`Datasets::create`].
struct CreateDataset {
    new: NewDataset,
    requester: Requester,
    answer: Arc<Answer<Arc<Head>>>,
}

impl CreateDataset {
    /// Creates the dataset without its contents. Returns its number and keys.
    async fn create(&mut self, scope: &Scope<'_>) -> Result<(u64, HeadKeys)> {
        let Scope { engine, context } = scope;
        let NewDataset { name, kind, props, encryption, fill } = &mut self.new;
        // Invalid contents are detected before anything is changed.
        let trial = Live::create(Arc::<BlockStore>::clone(&engine.store), u64::MAX, *kind);
        trial.apply(context.txg, |tx| fill(tx)).await?;
        let request = Request::normal(6).below(parent_of(name)).changing(&[name.as_str()]);
        let datasets = engine.datasets().by(&self.requester);
        let keys = datasets.plan_keys(parent_of(name), encryption).await?;
        let (name, props, plan) = (name.clone(), props.clone(), keys.clone());
        let body = Body::one(move |tx, env, _| {
            let head = create::dataset(tx, env, &name, None)?;
            let place = plan.as_ref().map(|plan| plan.install(tx, head)).transpose()?;
            settings::apply_new(tx, env, head, &props)?;
            Ok((head, place))
        });
        let (head, place) = datasets.perform(context.txg, &request, &body).await?.0;
        let (Some(plan), Some((dir, object))) = (keys, place) else {
            return Ok((head, HeadKeys::Plain));
        };
        datasets.note_keys(&plan, dir, object);
        Ok((head, HeadKeys::Loaded(SealKeys::new(plan.keys)?)))
    }

    async fn fill(
        &mut self,
        scope: &Scope<'_>,
        (object, keys): (u64, HeadKeys),
    ) -> Result<Arc<Head>> {
        let Scope { engine, context } = scope;
        let blocks =
            SuspendAwareStore::head(&engine.store, &engine.health.suspension, keys.clone());
        let live = Live::create(blocks, object, self.new.kind);
        live.apply(context.txg, |tx| (self.new.fill)(tx)).await?;
        engine.admin().mark_case_insensitive(context.txg, object, &live).await?;
        let policy = engine.datasets().settings_of(object).await?;
        let probe = engine.datasets().owner_probe();
        let head = Head::new((object, keys), live, engine.pool_policy(), policy, probe);
        Ok(engine.heads.insert(head))
    }
}

impl Task for CreateDataset {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match self.create(scope).await {
                Err(error) if error.kind() == Kind::Invariant => Err(error),
                Ok(created) => {
                    // From here on the dataset exists in this txg, and must get its contents in it.
                    let head = self.fill(scope, created).await?;
                    self.answer.put(Ok(head));
                    Ok(())
                }
                Err(error) => {
                    self.answer.put(Err(error));
                    Ok(())
                }
            }
        })
    }
}
