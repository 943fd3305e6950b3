//! The operations by name.

use std::sync::{Arc, PoisonError};

use cenote_block::BlockStore;
use cenote_dmu::zap::edit as zap;
use cenote_dmu::{Live, Tx, TxResult, TxStop};
use cenote_ondisk::dsl::key;
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::{BoxFuture, Kind, Result};

use crate::Steady;
use crate::admin::create::Fill;
use crate::dsl::changed::ChangedDatasets;
use crate::dsl::deleg;
use crate::dsl::deleg::{Creator, GrantChange};
use crate::dsl::operation::{Body, Request};
use crate::dsl::settings;
use crate::dsl::settings::Change;
use crate::dsl::{
    Effects, bookmark, create, destroy, directory_object, hold, names, need_directory_object,
    promote, rename, snapshot, swap,
};
use crate::{Answer, Engine, Head, Scope, Task, Unwritten};

/// A dataset to be made.
pub struct NewDataset {
    /// Full name.
    pub name: String,
    /// File system or volume.
    pub kind: ObjSetType,
    /// Local properties.
    pub props: Vec<(String, Value)>,
    /// What it begins with.
    pub fill: Fill,
    /// The user who asks for it.
    pub creator: Creator,
}

/// Something that whoever works with the pool should be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Notice {
    /// A scrub or resilver was under way and cannot go on, since the datasets change.
    ScanCancelled {
        /// In which txg.
        txg: u64,
    },
    /// A dead tree cannot be read: its space stays taken until the pool is opened again.
    DeadTreeDamaged {
        /// Where, and why.
        cause: String,
    },
    /// Half-received datasets without a way to go on were destroyed.
    AbandonedDestroyed {
        /// Their names.
        names: Vec<String>,
    },
    /// Holds of programs that are gone were released.
    HoldsReleased {
        /// How many.
        count: u64,
    },
    /// Intent logs were given up when the pool was opened: what was promised to be durable since
    /// the last commit is lost.
    LogsDropped {
        /// Numbers of the datasets.
        datasets: Vec<u64>,
    },
    /// The root blocks of these datasets are damaged, so that their intent logs could not be looked
    /// at: what was promised to be durable since the last commit is lost.
    LogsUnread {
        /// Numbers of the datasets.
        datasets: Vec<u64>,
    },
    /// An intent log could not be replayed to its end: what it promised behind that is lost.
    LogCut {
        /// Number of the dataset.
        dataset: u64,
        /// Why.
        cause: String,
    },
    /// The pool was closed by force, and changes in memory are lost.
    NotWritten(Unwritten),
    /// Devices did not answer when the pool was closed: what they were asked before may still be
    /// written when they do, and they are locked until then.
    SilentDevices {
        /// Their paths.
        paths: Vec<String>,
    },
}

fn parent_of(name: &str) -> Option<&str> {
    name.rsplit_once('/').map(|(parent, _)| parent)
}

/// Does something with each of several datasets; an error tells with which one.
fn each<T>(
    wanted: &[T],
    name: impl Fn(&T) -> &str,
    mut act: impl FnMut(&T) -> TxResult<()>,
) -> TxResult<()> {
    wanted.iter().try_for_each(|one| {
        act(one).map_err(|step| match step {
            TxStop::Fail(error) => TxStop::Fail(error.in_dataset(name(one))),
            need @ TxStop::Need(_) => need,
        })
    })
}

impl Engine {
    /// Makes a file system or volume, and opens it.
    pub async fn create_dataset(&self, new: NewDataset) -> Result<Arc<Head>> {
        let answer = Answer::new();
        let task = CreateDataset { new, answer: Arc::clone(&answer) };
        self.run_task(Box::new(task)).await?;
        answer.take()
    }

    /// Makes a clone of a snapshot, with properties of its own, and opens it.
    pub async fn clone_dataset(
        &self,
        origin: &str,
        name: &str,
        props: Vec<(String, Value)>,
        creator: Creator,
    ) -> Result<Arc<Head>> {
        let (origin, new) = (origin.to_owned(), name.to_owned());
        let request = Request::normal(6).below(parent_of(name)).changing(&[name]);
        self.operate(request, move |tx, env, effects| {
            let head = create::clone(tx, env, creator, &new, &origin)?;
            settings::apply_new(tx, env, head, &props)?;
            effects.cloned.push(head);
            Ok(())
        })
        .await?;
        self.head(name).await
    }

    /// Destroys a file system or volume. Its space comes back bit by bit, in this txg and later
    /// ones.
    pub async fn destroy_dataset(&self, name: &str) -> Result<()> {
        let request = Request::free().dooming(name).changing(&[name]);
        let name = name.to_owned();
        self.operate(request, move |tx, env, effects| destroy::head(tx, env, effects, &name)).await
    }

    /// Takes a snapshot of each head named, all in one txg: `pool/fs@name`.
    pub async fn snapshot(&self, wanted: Vec<String>) -> Result<()> {
        self.snapshot_with(wanted, Vec::new()).await
    }

    /// The same, with user properties for each of them.
    pub async fn snapshot_with(
        &self,
        wanted: Vec<String>,
        props: Vec<(String, Value)>,
    ) -> Result<()> {
        let request = Request::normal(3 * wanted.len() as u64).ending_scan().changing(&[]);
        let props: Vec<_> =
            props.into_iter().map(|(name, value)| (name, Change::Set(value))).collect();
        self.operate(request, move |tx, env, effects| {
            each(
                &wanted,
                |name| name,
                |name| {
                    snapshot::take_named(tx, env, name)?;
                    settings::apply(tx, env, effects, name, &props)
                },
            )
        })
        .await
    }

    /// Destroys a snapshot.
    pub async fn destroy_snapshot(&self, name: &str) -> Result<()> {
        self.destroy_snapshots(vec![name.to_owned()], false).await
    }

    /// Destroys snapshots, all in one txg. With `is_deferred` those that somebody needs go later.
    /// One that is not there counts as destroyed.
    pub async fn destroy_snapshots(&self, wanted: Vec<String>, is_deferred: bool) -> Result<()> {
        let request = Request::free().ending_scan().changing(&[]);
        self.operate(request, move |tx, env, _| {
            each(&wanted, |name| name, |name| snapshot::destroy_named(tx, env, name, is_deferred))
        })
        .await
    }

    /// Makes a clone the owner of the snapshots that it shares with its origin.
    pub async fn promote(&self, name: &str) -> Result<()> {
        let name = name.to_owned();
        // Its charge depends on how many snapshots move, and is checked with them.
        let request = Request::half(2).ending_scan().changing(&[]);
        self.operate(request, move |tx, env, _| promote::promote(tx, env, &name)).await
    }

    /// Goes back to the latest snapshot, which must be `wanted` if that is given. Gives its name.
    /// A head that is open is another one afterwards.
    pub async fn rollback(&self, name: &str, wanted: Option<&str>) -> Result<String> {
        let request = Request { blocks: 1, ..Request::half(1).dooming(name).changing(&[name]) };
        let (name, wanted) = (name.to_owned(), wanted.map(str::to_owned));
        self.operate(request, move |tx, env, effects| {
            let latest = swap::rollback(tx, env, effects, &name, wanted.as_deref())?;
            names::name_of(tx, env, latest)
        })
        .await
    }

    /// Gives a file system or volume, with all below it, another name.
    pub async fn rename(&self, from: &str, to: &str) -> Result<()> {
        let request = Request::half(3).below(parent_of(to)).changing(&[from, to]);
        let (from, to) = (from.to_owned(), to.to_owned());
        self.operate(request, move |tx, env, effects| rename::dataset(tx, env, effects, &from, &to))
            .await
    }

    /// Gives the snapshot `dataset@from` the name `to`; with `is_recursive` also those of that name
    /// below the dataset.
    pub async fn rename_snapshot(
        &self,
        dataset: &str,
        from: &str,
        to: &str,
        is_recursive: bool,
    ) -> Result<()> {
        let (dataset, from, to) = (dataset.to_owned(), from.to_owned(), to.to_owned());
        self.operate(Request::half(1).changing(&[]), move |tx, env, _| {
            rename::snapshot(tx, env, &dataset, (&from, &to), is_recursive)
        })
        .await
    }

    /// Makes the bookmarks `pool/fs#name`, each of a snapshot or another bookmark, in one txg.
    pub async fn bookmark(&self, wanted: Vec<(String, String)>) -> Result<()> {
        let request = Request::normal(wanted.len() as u64).changing(&[]);
        self.operate(request, move |tx, env, _| {
            each(
                &wanted,
                |(name, _)| name,
                |(name, source)| bookmark::create(tx, env, name, source),
            )
        })
        .await
    }

    /// Destroys bookmarks in one txg. One that is not there counts as destroyed.
    pub async fn destroy_bookmarks(&self, wanted: Vec<String>) -> Result<()> {
        let request = Request::half(wanted.len() as u64).changing(&[]);
        self.operate(request, move |tx, env, _| {
            each(&wanted, |name| name, |name| bookmark::destroy(tx, env, name))
        })
        .await
    }

    /// Holds snapshots, (name, tag) each, in one txg. Temporary holds end when the pool is opened
    /// for writing again.
    pub async fn hold(&self, wanted: Vec<(String, String)>, is_temporary: bool) -> Result<()> {
        let request = Request::half(wanted.len() as u64).changing(&[]);
        self.operate(request, move |tx, env, _| {
            each(
                &wanted,
                |(name, _)| name,
                |(name, tag)| hold::hold(tx, env, name, tag, is_temporary),
            )
        })
        .await
    }

    /// Takes holds off snapshots, (name, tag) each, in one txg. What only waited for that goes.
    pub async fn release(&self, wanted: Vec<(String, String)>) -> Result<()> {
        let request = Request::free().ending_scan().changing(&[]);
        self.operate(request, move |tx, env, _| {
            each(&wanted, |(name, _)| name, |(name, tag)| hold::release(tx, env, name, tag))
        })
        .await
    }

    /// Grants permissions on a dataset (`zfs allow`).
    pub async fn allow(&self, name: &str, grants: Vec<GrantChange>) -> Result<()> {
        let (name, blocks) = (name.to_owned(), 2 * grants.len() as u64);
        let request = Request::half(blocks).changing(&[]);
        self.operate(request, move |tx, env, _| deleg::allow(tx, env, &name, &grants)).await
    }

    /// Takes permissions on datasets away (`zfs unallow`), in one txg.
    pub async fn unallow(&self, names: Vec<String>, grants: Vec<GrantChange>) -> Result<()> {
        self.operate(Request::free().changing(&[]), move |tx, env, _| {
            each(&names, |name| name, |name| deleg::unallow(tx, env, name, &grants))
        })
        .await
    }

    /// Changes properties of a dataset or snapshot in one txg. Heads that are open follow.
    pub async fn change_properties(
        &self,
        name: &str,
        changes: Vec<(String, Change)>,
    ) -> Result<()> {
        let name = name.to_owned();
        let is_charged = |(name, change): &&(String, Change)| {
            let is_limit =
                matches!(name.as_str(), "quota" | "refquota" | "reservation" | "refreservation");
            !is_limit && matches!(change, Change::Set(_) | Change::Receive(_))
        };
        let blocks = 2 * changes.iter().filter(is_charged).count() as u64;
        // A snapshot has user properties only, and those say nothing about mounts.
        let is_shown = changes.iter().any(|(property, _)| !property.contains(':'));
        let changing = if is_shown { &[name.as_str()][..] } else { &[] };
        let request = Request::half(blocks).changing(changing);
        self.operate(request, move |tx, env, effects| {
            settings::apply(tx, env, effects, &name, &changes)
        })
        .await
    }

    /// Sets a property (`zfs set`).
    pub async fn set_property(&self, name: &str, property: &str, value: Value) -> Result<()> {
        self.change_properties(name, vec![(property.to_owned(), Change::Set(value))]).await
    }

    /// Takes a property's local value off (`zfs inherit`, with `-S` if `is_reverted`).
    pub async fn inherit_property(
        &self,
        name: &str,
        property: &str,
        is_reverted: bool,
    ) -> Result<()> {
        let change = if is_reverted { Change::Revert } else { Change::Inherit };
        self.change_properties(name, vec![(property.to_owned(), change)]).await
    }

    /// Changes the MOS in the next sync in whatever way. For laboratories and tests: nothing is
    /// checked, and the pool may be ruined.
    pub async fn tamper<T: Send + 'static>(
        &self,
        mut change: impl FnMut(&mut Tx<'_>) -> TxResult<T> + Send + 'static,
    ) -> Result<T> {
        let done = self.run(move |tx, _| change(tx)).await;
        self.changes.note(self.uberblock().txg, &ChangedDatasets::All);
        done
    }

    /// What happened that nobody asked for, since this was called last.
    pub fn take_notices(&self) -> Vec<Notice> {
        std::mem::take(&mut self.notices.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn note(&self, notice: Notice) {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).push(notice);
    }

    /// Clears away what programs that are gone have left: half-received datasets that cannot go on,
    /// and temporary holds (spec 04 §20, end). Called once the pool is open and its logs are
    /// claimed.
    pub(crate) async fn tidy(&self) -> Result<()> {
        let pool = self.config().facts.name;
        let (abandoned, has_holds) = self
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
            match self.destroy_dataset(&name).await {
                Ok(()) => destroyed.push(name),
                // It has children or snapshots: not a dataset that a receive has made.
                Err(error) if error.kind() == Kind::Busy => {}
                Err(error) => return Err(error),
            }
        }
        if !destroyed.is_empty() {
            self.note(Notice::AbandonedDestroyed { names: destroyed });
        }
        if has_holds {
            let request = Request::free().ending_scan().changing(&[]);
            let count =
                self.operate(request, |tx, env, _| hold::release_temporary(tx, env)).await?;
            self.note(Notice::HoldsReleased { count });
        }
        Ok(())
    }
}

/// The task of [`Engine::create_dataset`].
struct CreateDataset {
    new: NewDataset,
    answer: Arc<Answer<Arc<Head>>>,
}

impl CreateDataset {
    async fn create(&mut self, scope: &Scope<'_>) -> Result<u64> {
        let Scope { engine, context } = scope;
        let NewDataset { name, kind, props, fill, creator } = &mut self.new;
        let creator = *creator;
        // Contents that cannot be made are found out before anything is changed.
        let trial = Live::create(Arc::<BlockStore>::clone(&engine.store), u64::MAX, *kind);
        trial.apply(context.txg, |tx| fill(tx)).await?;
        let request = Request::normal(6).below(parent_of(name)).changing(&[name.as_str()]);
        let (name, props) = (name.clone(), props.clone());
        let body: Body<u64> = Arc::new(move |tx, env, _: &mut Effects| {
            let head = create::dataset(tx, env, creator, &name, None)?;
            settings::apply_new(tx, env, head, &props)?;
            Ok(head)
        });
        Ok(engine.perform(context.txg, &request, &body).await?.0)
    }

    async fn fill(&mut self, scope: &Scope<'_>, object: u64) -> Result<Arc<Head>> {
        let Scope { engine, context } = scope;
        let blocks = Steady::head(&engine.store, &engine.suspension, None);
        let live = Live::create(blocks, object, self.new.kind);
        live.apply(context.txg, |tx| (self.new.fill)(tx)).await?;
        engine.note_case(context.txg, object, &live).await?;
        let policy = engine.settings_of(object).await?;
        let head = Head::new(object, live, engine.pool_policy(), policy, engine.probe());
        Ok(engine.heads.insert(head))
    }
}

impl Task for CreateDataset {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match self.create(scope).await {
                Err(error) if error.kind() == Kind::Invariant => Err(error),
                Ok(object) => {
                    // From here on the dataset exists in this txg, and must get its contents with
                    // it.
                    let head = self.fill(scope, object).await?;
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
