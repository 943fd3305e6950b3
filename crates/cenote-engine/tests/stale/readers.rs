//! All kinds of readers. Each reads what the model has, is overtaken, or finds the pool exported;
//! anything else is a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cenote_pool::verify::{self, Finding, Observer, Progress};
use cenote_pool::{Pool, leaks};
use cenote_rt::{BoxFuture, Error, JoinHandle, Kind, Result, Rng};

use crate::slow::wait;
use crate::world::{BLOCK, DATASET, World, salt_of};

/// Results of readers.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Number of blocks read.
    pub(crate) reads: u64,
    /// Number of overtaken readers.
    pub(crate) overtaken: u64,
    /// Number of readers that found the pool exported.
    pub(crate) closed: u64,
    /// Number of verifies and leak checks.
    pub(crate) checks: u64,
}

#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    overtaken: AtomicU64,
    closed: AtomicU64,
    checks: AtomicU64,
}

/// Readers that run.
pub(crate) struct Readers {
    tasks: Vec<JoinHandle<()>>,
    counts: Arc<Counts>,
}

impl Readers {
    /// Waits until all have ended.
    pub(crate) async fn join(self) -> Seen {
        for task in self.tasks {
            task.await.expect("a reader failed");
        }
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { reads, overtaken, closed, checks } = &*self.counts;
        let (overtaken, closed) = (get(overtaken), get(closed));
        Seen { reads: get(reads), overtaken, closed, checks: get(checks) }
    }
}

/// Starts them all.
pub(crate) fn start(world: &Arc<World>) -> Readers {
    let counts = Arc::<Counts>::default();
    let mut tasks = Vec::new();
    for number in 0..3 {
        let (world, counts) = (Arc::clone(world), Arc::clone(&counts));
        tasks.push(cenote_rt::spawn(async move { hold_views(&world, &counts, number).await }));
    }
    for number in 0..4 {
        let (world, counts) = (Arc::clone(world), Arc::clone(&counts));
        tasks.push(cenote_rt::spawn(async move { read_live(&world, &counts, number).await }));
    }
    let (all, count) = (Arc::clone(world), Arc::clone(&counts));
    tasks.push(cenote_rt::spawn(async move { read_snapshots(&all, &count).await }));
    let (all, count) = (Arc::clone(world), Arc::clone(&counts));
    tasks.push(cenote_rt::spawn(async move { check_all(&all, &count).await }));
    Readers { tasks, counts }
}

fn rng_of(world: &World, kind: u64, number: u64) -> Rng {
    Rng::seeded(world.seed << 16 | kind << 8 | number)
}

async fn rest(rng: &mut Rng, steps: u64) {
    wait(rng.below(steps)).await;
}

/// The number of exports and imports before a reader used the engine.
#[derive(Clone, Copy)]
struct Since(u64);

impl Since {
    /// Most readers wait while the pool is exported, one in ten tries to read.
    async fn now(world: &World, rng: &mut Rng) -> Self {
        while world.is_exported() && rng.below(10) != 0 {
            cenote_rt::sleep(Duration::from_secs(1)).await;
        }
        Self(world.changes())
    }

    /// Whether an error is expected: the view was overtaken, or the pool was exported meanwhile.
    fn expects(self, error: &Error, world: &World) -> bool {
        match error.kind() {
            Kind::Overtaken => true,
            Kind::Closed => world.is_exported() || world.changes() > self.0,
            _ => false,
        }
    }

    /// Returns the result, `None` for an expected error.
    fn check<T>(self, result: Result<T>, world: &World, counts: &Counts) -> Option<T> {
        match result {
            Ok(read) => return Some(read),
            Err(error) if !self.expects(&error, world) => panic!("{error:?}"),
            Err(error) if error.kind() == Kind::Closed => &counts.closed,
            Err(_) => &counts.overtaken,
        }
        .fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Like [`Self::check`], for readers that are never overtaken.
    fn check_held<T>(self, result: Result<T>, world: &World, counts: &Counts) -> Option<T> {
        let error = result.as_ref().err();
        assert_ne!(error.map(Error::kind), Some(Kind::Overtaken), "{error:?}");
        self.check(result, world, counts)
    }
}

/// Takes views and reads in them for as long as possible.
async fn hold_views(world: &World, counts: &Counts, number: u64) {
    let mut rng = rng_of(world, 1, number);
    while !world.is_over() {
        wait(1).await;
        let since = Since::now(world, &mut rng).await;
        let view = world.engine().view().await;
        let Some(view) = since.check(view, world, counts) else { continue };
        since.check(read_view(world, counts, &view, &mut rng).await, world, counts);
    }
}

async fn read_view(world: &World, counts: &Counts, view: &Arc<Pool>, rng: &mut Rng) -> Result<()> {
    let set = view.dataset(DATASET).await?.open().await?;
    let dnode = set.dnode(world.object).await?;
    // For a moment, or for many txgs.
    let end = view.txg() + if rng.below(2) == 0 { 2 } else { rng.below(60) };
    while world.engine().uberblock().txg < end {
        let block = rng.below(world.blocks());
        match rng.below(8) {
            0 => dnode.prefetch_block(0, block).await,
            1 => drop(view.dataset(DATASET).await?.snapshots().await?),
            _ => {}
        }
        let salt = salt_of(block, &dnode.read_at(block * BLOCK, BLOCK as usize).await?);
        let is_right = {
            let model = world.model();
            match model.committed.get(&view.txg()) {
                Some(salts) => salts[block as usize] == salt,
                None => model.history[block as usize].contains(&salt),
            }
        };
        assert!(is_right, "block {block} of the view of txg {} is {salt:#x}", view.txg());
        counts.reads.fetch_add(1, Ordering::Relaxed);
        rest(rng, 1000).await;
        if world.is_over() {
            break;
        }
    }
    Ok(())
}

/// Reads the head while it is changed.
async fn read_live(world: &World, counts: &Counts, number: u64) {
    let mut rng = rng_of(world, 2, number);
    while !world.is_over() {
        let block = rng.below(world.blocks());
        let (since, head) = (Since::now(world, &mut rng).await, world.head());
        let first = world.model().returned[block as usize];
        let live = head.live();
        let read = live.inspect(|tx| tx.read(world.object, block * BLOCK, BLOCK as usize)).await;
        let Some(read) = since.check_held(read, world, counts) else {
            wait(1).await;
            continue;
        };
        let salt = salt_of(block, &read);
        assert!(
            world.model().history[block as usize][first..].contains(&salt),
            "block {block} is {salt:#x}"
        );
        counts.reads.fetch_add(1, Ordering::Relaxed);
        if rng.below(50) == 0 {
            world.engine().store().clear_cache();
        }
        rest(&mut rng, 100).await;
    }
}

/// Opens snapshots, and reads them completely.
async fn read_snapshots(world: &World, counts: &Counts) {
    let mut rng = rng_of(world, 3, 0);
    while !world.is_over() {
        wait(1).await;
        let names: Vec<_> = world.model().snapshots.keys().cloned().collect();
        if names.is_empty() {
            continue;
        }
        let name = &names[rng.below(names.len() as u64) as usize];
        let since = Since::now(world, &mut rng).await;
        let open = match world.engine().snapshots().open(name).await {
            Err(error) if error.kind() == Kind::NotFound => continue,
            open => since.check_held(open, world, counts),
        };
        let Some(open) = open else { continue };
        let Some(salts) = world.model().snapshots.get(name).cloned() else { continue };
        let dnode = open.contents().dnode(world.object).await;
        let Some(dnode) = since.check_held(dnode, world, counts) else { continue };
        for _ in 0..rng.below(200) {
            let block = rng.below(salts.len() as u64);
            let read = dnode.read_at(block * BLOCK, BLOCK as usize).await;
            let Some(read) = since.check_held(read, world, counts) else { break };
            assert_eq!(salt_of(block, &read), salts[block as usize], "block {block} of {name}");
            counts.reads.fetch_add(1, Ordering::Relaxed);
            rest(&mut rng, 100).await;
        }
        // After that its contents cannot be read.
        drop(open);
        let late = dnode.read_at(0, BLOCK as usize).await;
        assert!(late.is_err_and(|error| since.expects(&error, world)));
    }
}

/// Every finding is a failure, unless the view was overtaken.
struct Strict(Arc<Pool>);

impl Observer for Strict {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        assert!(self.0.check_valid().is_err(), "found on a whole pool: {finding:?}");
        Box::pin(async {})
    }
}

/// Verifies the pool, and checks it for leaks.
async fn check_all(world: &World, counts: &Counts) {
    let mut rng = rng_of(world, 4, 0);
    while !world.is_over() {
        rest(&mut rng, 40_000).await;
        wait(1).await;
        let since = Since::now(world, &mut rng).await;
        let view = world.engine().view().await;
        let Some(view) = since.check(view, world, counts) else { continue };
        let observer = Arc::new(Strict(Arc::clone(&view)));
        let verified = verify::pool(&view, observer, Arc::<Progress>::default()).await;
        if since.check(verified, world, counts).is_some() {
            counts.checks.fetch_add(1, Ordering::Relaxed);
        }
        let view = world.engine().view().await;
        let Some(view) = since.check(view, world, counts) else { continue };
        let checked = leaks::check(&view).await;
        if let Some(report) = since.check(checked, world, counts) {
            assert!(report.is_clean(), "{:?}", report.lines());
            counts.checks.fetch_add(1, Ordering::Relaxed);
        }
    }
}
