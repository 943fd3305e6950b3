//! Operations on datasets, by name: each is one task of a sync, all of it or nothing.

use std::sync::Arc;

use cenote_block::BlockStore;
use cenote_block::policy::DatasetPolicy;
use cenote_dmu::live::OwnerProbe;
use cenote_dmu::{Live, ObjSet};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_rt::{BoxFuture, Result};

use super::create::Fill;
use super::dsl::{self, OpError, create, names, props, snapshot};
use super::{Answer, Engine, Head, Scope, Task, is_fatal};

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
}

impl Engine {
    /// Makes a file system or volume, and opens it.
    pub async fn create_dataset(&self, new: NewDataset) -> Result<Arc<Head>> {
        let answer = Answer::new();
        let task = CreateDataset { new, answer: Arc::clone(&answer) };
        self.run_task(Box::new(task)).await?;
        answer.take()
    }

    /// Takes a snapshot of each head named, all in one txg: `pool/fs@name`.
    pub async fn snapshot(&self, wanted: Vec<String>) -> Result<()> {
        self.run(move |tx, ctx| {
            for name in &wanted {
                let name = names::Name::parse(name);
                let snapshot_name = name.snapshot.ok_or(OpError::Name)?;
                let head = names::head(tx, name.dataset)?;
                snapshot::take(tx, ctx, head, snapshot_name)?;
            }
            Ok(())
        })
        .await
    }

    /// Destroys a snapshot.
    pub async fn destroy_snapshot(&self, name: &str) -> Result<()> {
        let (name, tree) = (name.to_owned(), Arc::clone(&self.tree));
        self.run(move |tx, ctx| {
            let object = names::dataset(tx, &name)?;
            let snapshot_name = names::name_of_snapshot(tx, object)?;
            snapshot::destroy(tx, ctx, &tree, object, &snapshot_name)
        })
        .await
    }

    /// Opens a head for writing.
    pub async fn head(&self, name: &str) -> Result<Arc<Head>> {
        let object = self.mos.inspect(|tx| names::head(tx, name)).await?;
        self.head_of_object(object).await
    }

    pub(super) async fn head_of_object(&self, object: u64) -> Result<Arc<Head>> {
        if let Some(head) = self.heads.get(object) {
            return Ok(head);
        }
        let (root, dir) = self
            .mos
            .inspect(|tx| dsl::get_dataset(tx, object).map(|head| (head.bp, head.dir_obj)))
            .await?;
        let set = ObjSet::open(Arc::clone(&self.store), &root, None, object).await?;
        let live = Live::open(Arc::<BlockStore>::clone(&self.store), &set)?;
        let policy = self.mos.inspect(|tx| props::policy(tx, dir)).await?;
        let head = Head::new(object, live, self.policy, policy, self.probe());
        Ok(self.heads.insert(head))
    }

    /// How a head's properties want its blocks to be written.
    pub(super) async fn settings_of(&self, object: u64) -> Result<DatasetPolicy> {
        self.mos
            .inspect(|tx| {
                let dir = dsl::get_dataset(tx, object)?.dir_obj;
                props::policy(tx, dir)
            })
            .await
    }

    /// Who tells the owners of objects.
    pub(super) fn probe(&self) -> Option<Arc<dyn OwnerProbe>> {
        None
    }
}

/// The task of [`Engine::create_dataset`].
struct CreateDataset {
    new: NewDataset,
    answer: Arc<Answer<Arc<Head>>>,
}

impl CreateDataset {
    async fn create(&mut self, scope: &Scope<'_>) -> Result<Arc<Head>> {
        let Scope { engine, context } = scope;
        let NewDataset { name, kind, props: wanted, fill } = &mut self.new;
        let (name, wanted) = (name.clone(), wanted.clone());
        let object = engine
            .mos_apply(context.txg, |tx| {
                let name = names::Name::parse(&name);
                let (parent, last) = name.split_last().ok_or(OpError::Exists)?;
                let parent = names::dir(tx, parent)?;
                let siblings = dsl::get_dir(tx, parent)?.child_dir_zapobj;
                if cenote_dmu::zap::edit::contains(tx, siblings, last)? {
                    return Err(OpError::Exists.into());
                }
                let dir = create::child_dir(tx, context, parent, last)?;
                let origin = dsl::origin_snapshot(tx)?;
                let head = create::head(tx, context, dir, origin)?;
                let props_object = dsl::get_dir(tx, dir)?.props_zapobj;
                for (name, value) in &wanted {
                    props::set(tx, props_object, name, value)?;
                }
                Ok(head)
            })
            .await?;
        // From here on the dataset exists in this txg, and must get its contents with it.
        let live = Live::create(Arc::<BlockStore>::clone(&engine.store), object, *kind);
        live.apply(context.txg, |tx| fill(tx)).await?;
        let policy = engine.settings_of(object).await?;
        let head = Head::new(object, live, engine.policy, policy, engine.probe());
        Ok(engine.heads.insert(head))
    }
}

impl Task for CreateDataset {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            match self.create(scope).await {
                Err(error) if is_fatal(&error) => Err(error),
                result => {
                    self.answer.put(result);
                    Ok(())
                }
            }
        })
    }
}
