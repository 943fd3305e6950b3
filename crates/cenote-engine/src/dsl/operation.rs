//! Operations on datasets: each is one task of a sync, all of it or nothing (spec 04 §20).
//!
//! ```text
//!   caller ── task ──> next sync, pass 1:   prepare (reads)
//!                                           one transaction on the MOS: room, operation,
//!                                             of which each dataset may be a part
//!                                           effects on heads that are open
//!          <── answer, when the uberblock is on disk
//! ```
//!
//! Checks run in the same transaction as the changes, where nothing else can change the MOS. An
//! operation on something created in the same txg may have to wait for the next: the task is then
//! repeated.

use std::sync::Arc;

use cenote_block::Grounds;
use cenote_block::SealKeys;
use cenote_block::alloc::{Class, Pin};
use cenote_block::policy::DatasetPolicy;
use cenote_codec::crypto::BlockKeys;
use cenote_dmu::live::OwnerProbe;
use cenote_dmu::{Live, ObjSet, Tx, TxResult};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::Bookmark;
use cenote_ondisk::objset::{ObjSetType, ZIL_HEADER_LEN};
use cenote_pool::dsl::deleg::Requester;
use cenote_pool::keys::KeyError;
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Error, Kind, Result, Uts};
use cenote_vdev::Leaf;

use crate::Datasets;
use crate::config::Config;
use crate::dsl;
use crate::dsl::changed::ChangedDatasets;
use crate::dsl::room;
use crate::dsl::room::{PoolSpace, Reserve};
use crate::dsl::{Effects, Env, OpError, crypto, names, props};
use crate::error::invariant_error;
use crate::scan::deferral;
use crate::txg::suspend::HeadKeys;
use crate::zil::adopt;
use crate::{Answer, Engine, Head, Scope, SuspendAwareStore, Task};

/// Maximum number of repetitions because something was created in the same txg.
const RETRIES_MAX: usize = 8;

/// The changes of an operation, in its transaction.
pub(crate) struct Body<T> {
    /// Number of parts, of which each sees what those before it did: then only the part that needs
    /// a block is run again.
    parts: usize,
    act: Box<Act<T>>,
}

type Act<T> = dyn Fn(&mut Tx<'_>, &Env, &mut Effects, usize) -> TxResult<T> + Send + Sync;

impl<T> Body<T> {
    /// A body of one part.
    pub(crate) fn one(
        act: impl Fn(&mut Tx<'_>, &Env, &mut Effects) -> TxResult<T> + Send + Sync + 'static,
    ) -> Self {
        Self { parts: 1, act: Box::new(move |tx, env, effects, _| act(tx, env, effects)) }
    }

    /// A body of several parts, at least of one. Its value is that of the last part.
    pub(crate) fn each(
        parts: usize,
        act: impl Fn(&mut Tx<'_>, &Env, &mut Effects, usize) -> TxResult<T> + Send + Sync + 'static,
    ) -> Self {
        Self { parts: parts.max(1), act: Box::new(act) }
    }
}

/// Requirements of an operation before its transaction.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    /// The part of the pool's reserve that it may use, and the number of MOS blocks that it
    /// changes.
    pub(crate) reserve: Reserve,
    pub(crate) blocks: u64,
    /// The parent of a new dataset, whose type must be known.
    pub(crate) parent: Option<String>,
    /// Heads that must not be open, and whose blocks and logs are freed.
    pub(crate) doomed: Vec<String>,
    /// Datasets that are created, destroyed, renamed, rolled back or get other properties; all,
    /// unless the operation names them (CHG-2).
    pub(crate) changes: ChangedDatasets,
}

impl Request {
    /// Returns a request that uses space.
    pub(crate) const fn normal(blocks: u64) -> Self {
        Self::of(Reserve::Normal, blocks)
    }

    /// Returns a request of administrative work.
    pub(crate) const fn half(blocks: u64) -> Self {
        Self::of(Reserve::Half, blocks)
    }

    /// Returns a request that works on a full pool.
    pub(crate) const fn free() -> Self {
        Self::of(Reserve::Most, 0)
    }

    const fn of(reserve: Reserve, blocks: u64) -> Self {
        let changes = ChangedDatasets::All;
        Self { reserve, blocks, parent: None, doomed: Vec::new(), changes }
    }

    /// Names the datasets that the operation changes, each with its descendants.
    pub(crate) fn changing(self, names: &[&str]) -> Self {
        Self { changes: ChangedDatasets::below(names), ..self }
    }

    pub(crate) fn below(self, parent: Option<&str>) -> Self {
        Self { parent: parent.map(str::to_owned), ..self }
    }

    pub(crate) fn dooming(self, head: &str) -> Self {
        Self { doomed: vec![head.to_owned()], ..self }
    }
}

/// The task of an operation.
struct Operation<T> {
    requester: Requester,
    request: Request,
    body: Arc<Body<T>>,
    answer: Arc<Answer<T>>,
}

impl<T: Send + 'static> Task for Operation<T> {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let datasets = scope.engine.datasets().by(&self.requester);
            let done = datasets.perform(scope.context.txg, &self.request, &self.body).await;
            let Some((value, effects)) = self.answer.unless_failed(done)? else { return Ok(()) };
            // From here on the MOS has changed: a failure is one of the txg.
            datasets.take_effect(scope.context.txg, &effects).await?;
            if effects.takes_deferred {
                deferral::forget_marks(scope);
            }
            self.answer.put(Ok(value));
            Ok(())
        })
    }
}

impl Datasets<'_> {
    /// Runs an operation in the next sync, and waits for the commit.
    pub(crate) async fn operate<T: Send + 'static>(
        self,
        request: Request,
        body: impl Fn(&mut Tx<'_>, &Env, &mut Effects) -> TxResult<T> + Send + Sync + 'static,
    ) -> Result<T> {
        self.operate_with(request, Body::one(body)).await
    }

    /// Like [`operate`](Self::operate), with a body that may have several parts.
    pub(crate) async fn operate_with<T: Send + 'static>(
        self,
        request: Request,
        body: Body<T>,
    ) -> Result<T> {
        let body = Arc::new(body);
        let mut tries = 0;
        loop {
            let answer = Answer::new();
            let (request, body) = (request.clone(), Arc::clone(&body));
            let requester = self.requester.clone();
            let task = Operation { requester, request, body, answer: Arc::clone(&answer) };
            self.engine.run_task(Box::new(task)).await?;
            match answer.take() {
                Err(error) if is_same_txg(&error) && tries < RETRIES_MAX => tries += 1,
                result => return result,
            }
        }
    }

    pub(crate) async fn perform<T>(
        self,
        txg: u64,
        request: &Request,
        body: &Body<T>,
    ) -> Result<(T, Effects)> {
        let mut env = self.env(txg);
        if let Some(parent) = &request.parent {
            env.parent = self.kind_of(parent).await?;
        }
        let logs = self.prepare_doomed(txg, request, &mut env).await?;
        let change = |tx: &mut Tx<'_>, part: usize| {
            let mut effects = Effects::default();
            if part == 0 {
                room::check_pool(tx, &env, request.reserve, request.blocks)?;
            }
            let value = (body.act)(tx, &env, &mut effects, part)?;
            Ok((value, effects))
        };
        let (value, mut effects) = if body.parts == 1 {
            self.engine.mos_apply(txg, |tx| change(tx, 0)).await?
        } else {
            let parts = self.engine.mos.apply_parts(txg, body.parts, change).await?;
            let mut all = Effects::default();
            let values = parts.into_iter().map(|(value, effects)| {
                all.add(effects);
                value
            });
            let last = values.last();
            (last.ok_or_else(|| invariant_error("an operation had no parts".into()))?, all)
        };
        self.engine.views.changes.note(txg, &request.changes);
        effects.logs = logs;
        Ok((value, effects))
    }

    /// Prepares heads for their destruction: they must not be open; their logs are not charged to
    /// datasets and are freed separately. Returns the blocks of the logs.
    async fn prepare_doomed(
        self,
        txg: u64,
        request: &Request,
        env: &mut Env,
    ) -> Result<Vec<BlockPtr>> {
        let mut logs = Blocks::default();
        for name in &request.doomed {
            let found = self.engine.mos.inspect(|tx| names::dataset(tx, name)).await;
            let Ok(object) = found else { continue };
            let open = self.engine.heads.get(object);
            if open.as_ref().is_some_and(|head| head.is_owned()) {
                return Err(OpError::Busy.into());
            }
            let (phys, is_queued) = self
                .engine
                .mos
                .inspect(|tx| {
                    let phys = dsl::get_dataset(tx, object)?;
                    Ok((phys, dsl::features::is_enabled(tx, "async_destroy")?))
                })
                .await?;
            if phys.is_snapshot() || phys.bp.is_hole() {
                continue;
            }
            let (store, grounds) = (Arc::clone(&self.engine.store), Grounds::Allocated);
            let set = ObjSet::open_on(store, &phys.bp, None, object, grounds).await?;
            // Memory may have more of a log than this txg's header.
            if let Some(blocks) = open.as_ref().and_then(|head| head.log().doom(txg)) {
                logs.0.extend(blocks);
            } else {
                let start_txg = self.engine.intent_logs().start_txg(object, txg);
                traverse::log(&set, start_txg, &mut logs).await?;
            }
            if !is_queued {
                env.doomed = self.engine.space().whole_tree(&phys.bp, phys.prev_snap_txg).await?;
            }
        }
        Ok(logs.0)
    }

    /// Returns the environment of an operation in `txg`.
    pub(crate) fn env(self, txg: u64) -> Env {
        let Config { facts, root, .. } = self.engine.config();
        let dirty = self.engine.heads.dirty(txg);
        Env {
            context: self.engine.context(txg),
            tree: Arc::clone(&self.engine.tree),
            vdevs: root,
            pool: facts.name,
            host: Uts::here().node,
            space: self.pool_space(),
            unwritten: dirty
                .iter()
                .filter(|_| !is_on(Bug::TasksBeforeDatasets))
                .map(|head| head.object())
                .collect(),
            parent: None,
            opened: Arc::clone(&self.engine.heads.opened),
            doomed: Vec::new(),
            requester: self.requester.clone(),
            first_creator: Arc::clone(&self.engine.txgs.first_creator),
        }
    }

    /// Returns the pool's space (spec 04 §17.1).
    pub(crate) fn pool_space(self) -> PoolSpace {
        let rdspace = self.engine.alloc.normal_space();
        let others =
            [Class::Special, Class::Dedup].map(|class| self.engine.alloc.class_figures(class));
        let others: u64 = others.iter().map(|figures| figures.deflated_allocated).sum();
        let deferred = self.engine.alloc.class_figures(Class::Normal).deferred;
        let (slop, checkpoint) =
            (self.engine.space().slop(), self.engine.space().checkpoint_bytes());
        PoolSpace { rdspace, dspace: rdspace + others, slop, deferred, checkpoint }
    }

    /// Returns the type of a head, `None` if it does not exist.
    async fn kind_of(self, name: &str) -> Result<Option<ObjSetType>> {
        loop {
            let since = self.engine.store.since(true);
            let found = self
                .engine
                .mos
                .inspect(|tx| {
                    let object = names::head(tx, name)?;
                    Ok((object, dsl::get_dataset(tx, object)?.bp))
                })
                .await;
            let (object, root) = match found {
                Ok(found) => found,
                Err(error) if error.kind() == Kind::NotFound => return Ok(None),
                Err(error) => return Err(error),
            };
            if let Some(head) = self.engine.heads.get(object) {
                return Ok(Some(head.live().kind()));
            }
            let (store, grounds) = (Arc::clone(&self.engine.store), Grounds::Live(since));
            match ObjSet::open_on(store, &root, None, object, grounds).await {
                // The head has another root now.
                Err(error) if error.kind() == Kind::Overtaken => {}
                set => return Ok(Some(set?.kind())),
            }
        }
    }

    /// Applies the effects of an operation to open heads.
    pub(crate) async fn take_effect(self, txg: u64, effects: &Effects) -> Result<()> {
        for block in &effects.logs {
            self.engine.store.free(block, txg).await?;
        }
        let keys = &self.engine.views.keys;
        effects.lost_keys.iter().for_each(|object| keys.remove(*object));
        effects.lost_roots.iter().for_each(|dir| keys.remove_root(*dir));
        effects.new_keys.iter().for_each(|(object, new)| keys.add(*object, Arc::clone(new)));
        effects.moved_roots.iter().for_each(|(from, to)| keys.move_root(*from, *to));
        // In the task that stores them: the next task wraps the keys of new datasets with them.
        effects.new_roots.iter().for_each(|(dir, root)| keys.add_root(*dir, root.clone()));
        for object in effects.gone.iter().chain(&effects.replaced) {
            if let Some(head) = self.engine.heads.remove(*object) {
                // Before the commit that frees its blocks.
                head.mark_gone();
            }
        }
        for object in effects.replaced.iter().chain(&effects.cloned) {
            // The log belongs to the dataset that the contents came from. The head must not be
            // found by anybody before it has the empty header: the log would be freed twice.
            let open = self.engine.heads.get(*object);
            let is_open = open.is_some();
            let head = match open {
                Some(open) => open,
                None => self.make_head(*object, self.keys_of_object(*object).await?).await?,
            };
            if head.live().zil_header() != [0; ZIL_HEADER_LEN] {
                head.live().set_zil_header(txg, [0; ZIL_HEADER_LEN])?;
                if !is_open {
                    self.engine.heads.insert(head);
                }
            }
        }
        if let Some((start_time, limits)) = effects.begun_scan {
            self.engine.scans().note_begun(start_time, limits);
        }
        let is_resilvered = effects.scanned.is_some() || effects.rebuilt.is_some();
        let lacks = |leaf: &Leaf| leaf.dtl().is_some_and(|missing| !missing.is_empty());
        if is_resilvered && self.engine.tree.leaves().any(|(_, leaf)| lacks(leaf)) {
            // Views of earlier states have blocks that were freed before they were written there.
            Pin::overtake_all(&self.engine.alloc);
        }
        if let Some(txg) = effects.scanned {
            self.engine.tree.leaves().for_each(|(_, leaf)| leaf.end_scan(txg));
        }
        if let Some((txg, leaves)) = &effects.rebuilt {
            let tree = &self.engine.tree;
            let rebuilt = tree.leaves().filter(|(_, leaf)| leaves.contains(&leaf.guid()));
            rebuilt.for_each(|(_, leaf)| leaf.end_rebuild(*txg));
        }
        for head in self.heads_below(&effects.settings_changed).await? {
            head.set_policy(self.settings_of(head.object()).await?);
        }
        Ok(())
    }

    /// Returns the open heads of dirs and their descendants. Walks down from the dirs for as many
    /// steps as there are open heads, and returns all open heads if that does not suffice.
    async fn heads_below(self, dirs: &[u64]) -> Result<Vec<Arc<Head>>> {
        if dirs.is_empty() {
            return Ok(Vec::new());
        }
        let (mut left, mut found) = (dirs.to_vec(), Vec::new());
        let all = self.engine.heads.all();
        let mut steps = 0;
        while let Some(dir) = left.pop() {
            steps += 1;
            if steps > all.len() {
                return Ok(all);
            }
            let (head, children) = self
                .engine
                .mos
                .inspect(|tx| {
                    let head = dsl::get_dir(tx, dir)?.head_dataset_obj;
                    Ok((head, names::children(tx, dir)?))
                })
                .await?;
            found.extend(self.engine.heads.get(head));
            left.extend(children.into_iter().map(|(_, child)| child));
        }
        Ok(found)
    }

    pub(crate) async fn head_of_object(self, object: u64) -> Result<Arc<Head>> {
        if let Some(head) = self.engine.heads.get(object) {
            return Ok(head);
        }
        self.open_head(object, self.keys_of_object(object).await?).await
    }

    /// Returns the keys of a head, as far as they are loaded.
    async fn keys_of_object(self, object: u64) -> Result<HeadKeys> {
        let dir = self.engine.mos.inspect(|tx| dsl::get_dataset(tx, object)).await?.dir_obj;
        self.head_keys(dir).await
    }

    /// Opens a head with these keys, which are those of its dir or none.
    pub(crate) async fn open_head(self, object: u64, keys: HeadKeys) -> Result<Arc<Head>> {
        let head = self.make_head(object, keys).await?;
        // A log that waited for its keys: whoever opens the head next must see that it is claimed.
        if head.seal_keys().is_some() {
            adopt(&head);
        }
        // Keys are kept by the open head: nothing else tells its users when they are unloaded.
        if head.is_encrypted() && self.engine.is_read_only {
            return Ok(head);
        }
        Ok(self.engine.heads.insert(head))
    }

    /// Returns a head that nobody finds yet, with these keys.
    async fn make_head(self, object: u64, keys: HeadKeys) -> Result<Arc<Head>> {
        let (root, dir) = self
            .engine
            .mos
            .inspect(|tx| dsl::get_dataset(tx, object).map(|head| (head.bp, head.dir_obj)))
            .await?;
        let is_locked = matches!(keys, HeadKeys::Locked);
        if is_locked && self.engine.is_read_only {
            return Err(KeyError::NotLoaded.into());
        }
        let block_keys = keys.loaded().map(|keys| Arc::clone(keys.keys()));
        // The root stays allocated until a sync replaces it, and no sync runs meanwhile.
        let (store, grounds) = (Arc::clone(&self.engine.store), Grounds::Allocated);
        let set = ObjSet::open_on(store, &root, block_keys, object, grounds).await?;
        let suspension = &self.engine.health.suspension;
        let blocks = SuspendAwareStore::head(&self.engine.store, suspension, keys.clone());
        let live = if self.engine.is_read_only || is_locked {
            Live::open_locked(blocks, &set)
        } else {
            Live::open(blocks, &set)?
        };
        let policy = self.engine.mos.inspect(|tx| props::policy(tx, dir)).await?;
        let (pool, probe) = (self.engine.pool_policy(), self.owner_probe());
        Ok(Head::new((object, keys), live, pool, policy, probe))
    }

    /// Returns the keys of the head of a dir, as far as they are loaded.
    pub(crate) async fn head_keys(self, dir: u64) -> Result<HeadKeys> {
        match self.keys_of(dir).await {
            Ok(None) => Ok(HeadKeys::Plain),
            Ok(Some(keys)) => Ok(HeadKeys::Loaded(SealKeys::new(keys)?)),
            Err(error) if error.kind() == Kind::KeyUnavailable => Ok(HeadKeys::Locked),
            Err(error) => Err(error),
        }
    }

    /// Opens a head for reading.
    ///
    /// # Errors
    /// `Kind::NotFound`; [`OpError::Busy`] while it is partially received: only a receive may
    /// change it; `Kind::KeyUnavailable` if it is encrypted and its key is not loaded.
    pub async fn head_for_reading(self, name: &str) -> Result<Arc<Head>> {
        let find = |tx: &mut Tx<'_>| {
            let object = names::head(tx, name)?;
            if dsl::get_dataset(tx, object)?.is_inconsistent() {
                return Err(OpError::Busy.into());
            }
            Ok(object)
        };
        let engine = self.engine;
        if let Some(head) = engine.heads.get(engine.mos.inspect(find).await?) {
            return self.unlocked(head).await;
        }
        let head = {
            // During a sync the dataset may be replaced.
            let _between = engine.txgs.syncing.lock().await;
            let object = engine.mos.inspect(find).await?;
            self.head_of_object(object).await?
        };
        self.unlocked(head).await
    }

    /// Returns a head for a user: an encrypted one is opened again if it is open without its keys.
    ///
    /// # Errors
    /// `Kind::KeyUnavailable` if they are not loaded; `Kind::Busy` while a receive uses it without
    /// them.
    async fn unlocked(self, head: Arc<Head>) -> Result<Arc<Head>> {
        if !head.is_encrypted() || self.engine.is_read_only {
            return Ok(head);
        }
        let dir = self.engine.mos.inspect(|tx| dsl::get_dataset(tx, head.object())).await?.dir_obj;
        // They may have been unloaded since.
        self.keys_of(dir).await?;
        if head.seal_keys().is_some() {
            return Ok(head);
        }
        // Changes that were made without keys are on disk before any is made with them.
        while head.live().has_changes() && !head.is_owned() {
            self.engine.sync().await?;
        }
        let _between = self.engine.txgs.syncing.lock().await;
        if head.is_owned() || head.live().has_changes() {
            return Err(OpError::Busy.into());
        }
        self.engine.heads.remove(head.object());
        self.head_of_object(head.object()).await
    }

    /// Returns the keys of a dir, if it is encrypted.
    pub(crate) async fn keys_of(self, dir: u64) -> Result<Option<Arc<BlockKeys>>> {
        let found = self.engine.mos.inspect(|tx| crypto::key_and_guid(tx, dir)).await?;
        let Some((object, guid)) = found else { return Ok(None) };
        let keys = self.engine.views.keys.block_keys(object, guid);
        keys.map(Some).ok_or_else(|| KeyError::NotLoaded.into())
    }

    /// Returns the block policy in a head's properties.
    pub(crate) async fn settings_of(self, object: u64) -> Result<DatasetPolicy> {
        self.engine
            .mos
            .inspect(|tx| {
                let dir = dsl::get_dataset(tx, object)?.dir_obj;
                props::policy(tx, dir)
            })
            .await
    }

    /// Returns the probe that finds the owners of objects.
    pub(crate) fn owner_probe(self) -> Option<Arc<dyn OwnerProbe>> {
        self.engine.heads.owner_probe.lock().clone()
    }
}

impl Engine {
    /// Opens a head for writing.
    ///
    /// # Errors
    /// The errors of [`Datasets::head_for_reading`]; `Kind::ReadOnly` if the format
    /// of its keys is too old.
    pub async fn head(&self, name: &str) -> Result<Arc<Head>> {
        let head = self.datasets().head_for_reading(name).await?;
        if !self.is_read_only {
            head.check_key_version()?;
        }
        Ok(head)
    }
}

fn is_same_txg(error: &Error) -> bool {
    matches!(error.cause(), Some(OpError::SameTxg))
}

/// Collects blocks.
#[derive(Debug, Default)]
struct Blocks(Vec<BlockPtr>);

impl Visitor for Blocks {
    async fn block(&mut self, bp: &BlockPtr, _: &Bookmark) -> Result<Flow> {
        self.0.push(*bp);
        Ok(Flow::Continue)
    }

    fn damage(&mut self, _: Damage) {}
}
