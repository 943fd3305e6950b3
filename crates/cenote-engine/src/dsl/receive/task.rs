//! The tasks that begin and end a receive, each in one sync.
//!
//! ```text
//!   facts (heads that are owned, roots that differ) ──> transaction on the MOS ──> open heads
//! ```
//!
//! Whether a head has changed since a snapshot is decided by their root blocks: if only the header
//! of an intent log differs, it has not. The roots are read before the transaction; no other task
//! changes the MOS in between.

use std::sync::Arc;

use cenote_block::Grounds;
use cenote_dmu::{Live, ObjSet, Tx, TxResult, TxStop};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::objset::ZIL_HEADER_LEN;
use cenote_rt::{BoxFuture, Kind, Result, ensure};

use crate::dsl::api::datasets::parent_of;
use crate::dsl::crypto::SentKeys;
use crate::dsl::operation::{Body, Request};
use crate::dsl::receive::begin::{self, Begun, Facts};
use crate::dsl::receive::end::{self, Received};
use crate::dsl::receive::{NewReceive, Reception, check};
use crate::dsl::{OpError, get_dataset, names};
use crate::txg::suspend::HeadKeys;
use crate::{Answer, Datasets, Head, Scope, SuspendAwareStore, Task};

/// The moment for which a target is compared with a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Moment {
    /// Compares with the source of the increment.
    Begin,
    /// Compares with the latest snapshot.
    End,
}

/// A dataset's number, its root, and the txg in which it was created.
#[derive(Debug, Clone, Copy)]
struct Root {
    object: u64,
    bp: BlockPtr,
    creation_txg: u64,
}

impl Root {
    fn of(tx: &mut Tx<'_>, object: u64) -> TxResult<Self> {
        let phys = get_dataset(tx, object)?;
        Ok(Self { object, bp: phys.bp, creation_txg: phys.creation_txg })
    }
}

/// Returns an existing target, and the snapshot to compare it with.
fn compared(
    tx: &mut Tx<'_>,
    new: &NewReceive,
    moment: Moment,
) -> TxResult<Option<(Root, Option<Root>)>> {
    let target = match names::head(tx, &new.target) {
        Ok(target) => target,
        Err(step) if names::is_missing(&step) => return Ok(None),
        Err(step) => return Err(step),
    };
    let head = get_dataset(tx, target)?;
    let source = match moment {
        Moment::End => Some(head.prev_snap_obj),
        Moment::Begin if new.is_full() => None,
        Moment::Begin => match check::find_source(tx, &head, new.from_guid) {
            Ok(source) => Some(source),
            // The transaction will refuse it.
            Err(TxStop::Fail(error)) if error.kind() == Kind::NotFound => None,
            Err(step) => return Err(step),
        },
    };
    let source = source.filter(|source| *source != 0);
    let source = source.map(|source| Root::of(tx, source)).transpose()?;
    Ok(Some((Root::of(tx, target)?, source)))
}

impl Datasets<'_> {
    async fn read_root(self, root: &Root) -> Result<Arc<ObjSet>> {
        // The root stays allocated until a sync replaces it, and this one has not yet.
        let store = Arc::clone(&self.engine.store);
        ObjSet::open_on(store, &root.bp, None, root.object, Grounds::Allocated).await
    }

    /// Whether a head differs from a snapshot in more than its intent log.
    async fn differs(self, head: &Root, snapshot: &Root) -> Result<bool> {
        if head.bp.birth() <= snapshot.creation_txg || head.bp == snapshot.bp {
            return Ok(false);
        }
        if head.bp.is_hole() || snapshot.bp.is_hole() {
            return Ok(true);
        }
        let (head, snapshot) = (self.read_root(head).await?, self.read_root(snapshot).await?);
        Ok(head.phys().meta_dnode != snapshot.phys().meta_dnode)
    }

    /// Notes the type of a dataset with this root, and whether a raw stream is one for it.
    async fn note_root(self, new: &NewReceive, root: &Root, facts: &mut Facts) -> Result<()> {
        if root.bp.is_hole() {
            return Ok(());
        }
        let set = self.read_root(root).await?;
        facts.kind = Some(set.kind());
        let fits = |sent: &SentKeys| sent.root.fits(&set.phys().meta_dnode);
        facts.has_other_root = new.raw_keys().is_some_and(|sent| !fits(sent));
        Ok(())
    }

    async fn receive_facts(self, new: &NewReceive) -> Result<Facts> {
        let owned = self.engine.heads.all().into_iter().filter(|head| head.is_owned());
        let mut facts = Facts {
            owned: owned.map(|head| head.object()).collect(),
            keys: Arc::clone(&self.engine.views.keys),
            ..Facts::default()
        };
        let found = self.engine.mos.inspect(|tx| compared(tx, new, Moment::Begin)).await?;
        if let Some((target, source)) = found {
            self.note_root(new, &target, &mut facts).await?;
            if let Some(source) = source {
                facts.is_modified = self.differs(&target, &source).await?;
            }
        } else if let Some(origin) = &new.origin {
            let look = |tx: &mut Tx<'_>| {
                let origin = names::snapshot_of(tx, origin)?;
                Root::of(tx, origin)
            };
            match self.engine.mos.inspect(look).await {
                Ok(root) => self.note_root(new, &root, &mut facts).await?,
                // The transaction will refuse it.
                Err(error) if error.kind() == Kind::NotFound || error.kind() == Kind::Invalid => {}
                Err(error) => return Err(error),
            }
        } else if !new.is_raw() {
            let parent = parent_of(&new.target);
            facts.plan = self.plan_keys(parent, &new.choices.encryption).await?;
        }
        Ok(facts)
    }
}

/// The task that begins a receive.
pub(crate) struct BeginReceive {
    pub(crate) new: NewReceive,
    pub(crate) answer: Arc<Answer<Reception>>,
}

impl BeginReceive {
    async fn begin(&self, scope: &Scope<'_>) -> Result<(Begun, crate::dsl::Effects)> {
        let datasets = scope.engine.datasets().by(&self.new.choices.requester);
        let facts = datasets.receive_facts(&self.new).await?;
        let target = self.new.target.as_str();
        let request = Request::normal(8).below(parent_of(target)).changing(&[target]);
        let (new, plan) = (self.new.clone(), facts.plan.clone());
        let body = Body::one(move |tx, env, effects| begin::begin(tx, env, effects, &new, &facts));
        let (begun, effects) = datasets.perform(scope.context.txg, &request, &body).await?;
        if let (Some(plan), Some((dir, object))) = (plan, begun.installed) {
            datasets.note_keys(&plan, dir, object);
        }
        Ok((begun, effects))
    }

    /// Opens the head. A new object set is created in this txg.
    async fn open(&self, scope: &Scope<'_>, begun: &Begun) -> Result<Arc<Head>> {
        let (engine, txg) = (scope.engine, scope.context.txg);
        let object = begun.object;
        let dir = engine.mos.inspect(|tx| get_dataset(tx, object)).await?.dir_obj;
        // Blocks of a raw stream are not encrypted again.
        let sent = self.new.raw_keys();
        let keys = match sent {
            Some(_) => HeadKeys::Locked,
            None => engine.datasets().head_keys(dir).await?,
        };
        if begun.is_empty {
            let blocks =
                SuspendAwareStore::head(&engine.store, &engine.health.suspension, keys.clone());
            let live = match sent {
                Some(sent) => Live::create_locked(blocks, object, self.new.kind, &sent.root),
                None => Live::create(blocks, object, self.new.kind),
            };
            let policy = engine.datasets().settings_of(object).await?;
            let probe = engine.datasets().owner_probe();
            let head = Head::new((object, keys), live, engine.pool_policy(), policy, probe);
            return Ok(engine.heads.insert(head));
        }
        let head = match engine.heads.get(object) {
            Some(head) => head,
            None => engine.datasets().open_head(object, keys).await?,
        };
        if let Some(sent) = sent {
            ensure!("RC3", head.is_locked(), "dataset {object} is received raw, and has its keys");
            head.live().set_sent_root(txg, sent.root)?;
        }
        // A log would be replayed on contents that it does not belong to. It is removed before the
        // snapshot is taken, which shares the root.
        if head.live().zil_header() != [0; ZIL_HEADER_LEN] {
            head.live().set_zil_header(txg, [0; ZIL_HEADER_LEN])?;
        }
        Ok(head)
    }
}

impl Task for BeginReceive {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let begun = self.begin(scope).await;
            let Some((begun, effects)) = self.answer.unless_refused(begun)? else { return Ok(()) };
            // From here on the dataset exists in this txg, and must get its object set in it: a
            // failure is one of the txg.
            // First: it may have to be opened without its keys.
            let head = self.open(scope, &begun).await?;
            scope.engine.datasets().take_effect(scope.context.txg, &effects).await?;
            let ownership = head.own();
            let new = self.new.clone();
            let dataset = if begun.is_child { new.child() } else { new.target.clone() };
            let is_resumable = new.choices.is_resumable || new.is_resuming();
            let Begun { is_child, start, .. } = begun;
            self.answer.put(Ok(Reception {
                new,
                dataset,
                head,
                _ownership: ownership,
                is_child,
                is_resumable,
                start,
            }));
            Ok(())
        })
    }
}

/// The task that ends a receive.
pub(crate) struct EndReceive {
    pub(crate) new: NewReceive,
    pub(crate) head: Arc<Head>,
    pub(crate) is_child: bool,
    pub(crate) answer: Arc<Answer<()>>,
}

impl EndReceive {
    async fn end(&self, scope: &Scope<'_>) -> Result<((), crate::dsl::Effects)> {
        let datasets = scope.engine.datasets().by(&self.new.choices.requester);
        // Changes that came after this txg was closed are not in its snapshot: the next sync has
        // them.
        if self.head.live().is_dirty(scope.context.txg.saturating_add(1)) {
            return Err(OpError::SameTxg.into());
        }
        let target = self.new.target.as_str();
        let mut is_modified = false;
        let mut request = Request { blocks: 2, ..Request::half(2) }.changing(&[target]);
        if self.is_child {
            request = request.dooming(target);
            let found = scope.engine.mos.inspect(|tx| compared(tx, &self.new, Moment::End)).await?;
            if let Some((head, Some(snapshot))) = found {
                is_modified = datasets.differs(&head, &snapshot).await?;
            }
        }
        let (object, is_child) = (self.head.object(), self.is_child);
        let received = Received { object, is_child, is_modified };
        let new = self.new.clone();
        let body = Body::one(move |tx, env, effects| {
            end::end(tx, env, effects, &new, &received).map(drop)
        });
        datasets.perform(scope.context.txg, &request, &body).await
    }
}

impl Task for EndReceive {
    fn run<'a>(&'a mut self, scope: &'a Scope<'_>) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let ended = self.end(scope).await;
            let Some(((), effects)) = self.answer.unless_failed(ended)? else { return Ok(()) };
            scope.engine.datasets().take_effect(scope.context.txg, &effects).await?;
            self.answer.put(Ok(()));
            Ok(())
        })
    }
}
