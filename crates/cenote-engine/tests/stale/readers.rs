//! All kinds of readers. Each reads what the model has, or is overtaken; anything else is a failure.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_pool::verify::{self, Finding, Observer, Progress};
use cenote_pool::{Pool, leaks};
use cenote_rt::{BoxFuture, JoinHandle, Kind, Result, Rng, yield_now};

use crate::world::{BLOCK, DATASET, World, salt_of};

/// What readers did.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    /// Blocks.
    pub(crate) reads: u64,
    /// Readers whose state was given up.
    pub(crate) overtaken: u64,
    /// Pools that were verified, or checked for leaks.
    pub(crate) checks: u64,
}

#[derive(Debug, Default)]
struct Counts {
    reads: AtomicU64,
    overtaken: AtomicU64,
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
        let Counts { reads, overtaken, checks } = &*self.counts;
        Seen { reads: get(reads), overtaken: get(overtaken), checks: get(checks) }
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

async fn rest(rng: &mut Rng, turns: u64) {
    for _ in 0..rng.below(turns) {
        yield_now().await;
    }
}

/// True if that is a good end; a state that was given up is one.
fn is_overtaken<T>(result: &Result<T>, counts: &Counts) -> bool {
    match result {
        Ok(_) => false,
        Err(error) if error.kind() == Kind::Overtaken => {
            counts.overtaken.fetch_add(1, Ordering::Relaxed);
            true
        }
        Err(error) => panic!("{error:?}"),
    }
}

/// Takes views and reads on in them for as long as it goes.
async fn hold_views(world: &World, counts: &Counts, number: u64) {
    let mut rng = rng_of(world, 1, number);
    while !world.is_over() {
        let view = world.engine.view().await.unwrap();
        let result = read_view(world, counts, &view, &mut rng).await;
        is_overtaken(&result, counts);
    }
}

async fn read_view(world: &World, counts: &Counts, view: &Arc<Pool>, rng: &mut Rng) -> Result<()> {
    let set = view.dataset(DATASET).await?.open().await?;
    let dnode = set.dnode(world.object).await?;
    // For a moment, or for many txgs.
    let end = view.txg() + if rng.below(2) == 0 { 2 } else { rng.below(60) };
    while world.engine.uberblock().txg < end {
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
        let since = world.model().returned[block as usize];
        let read = world
            .head
            .live()
            .inspect(|tx| tx.read(world.object, block * BLOCK, BLOCK as usize))
            .await
            .unwrap_or_else(|error| panic!("a live read of block {block}: {error:?}"));
        let salt = salt_of(block, &read);
        assert!(
            world.model().history[block as usize][since..].contains(&salt),
            "block {block} is {salt:#x}"
        );
        counts.reads.fetch_add(1, Ordering::Relaxed);
        if rng.below(50) == 0 {
            world.engine.store().clear_cache();
        }
        rest(&mut rng, 100).await;
    }
}

/// Opens snapshots, and reads them whole while they are held.
async fn read_snapshots(world: &World, counts: &Counts) {
    let mut rng = rng_of(world, 3, 0);
    while !world.is_over() {
        yield_now().await;
        let names: Vec<_> = world.model().snapshots.keys().cloned().collect();
        if names.is_empty() {
            continue;
        }
        let name = &names[rng.below(names.len() as u64) as usize];
        let open = match world.engine.snapshots().open(name).await {
            Ok(open) => open,
            Err(error) => {
                assert_eq!(error.kind(), Kind::NotFound, "{error}");
                continue;
            }
        };
        let Some(salts) = world.model().snapshots.get(name).cloned() else { continue };
        let dnode = open.contents().dnode(world.object).await.expect("it is held");
        for _ in 0..rng.below(200) {
            let block = rng.below(salts.len() as u64);
            let read = dnode.read_at(block * BLOCK, BLOCK as usize).await.expect("it is held");
            assert_eq!(salt_of(block, &read), salts[block as usize], "block {block} of {name}");
            counts.reads.fetch_add(1, Ordering::Relaxed);
            rest(&mut rng, 100).await;
        }
        // Whoever keeps the contents for longer hears that they are gone.
        drop(open);
        let late = dnode.read_at(0, BLOCK as usize).await;
        assert!(late.is_err_and(|error| error.kind() == Kind::Overtaken));
    }
}

/// Takes every finding for a failure, unless the state was given up.
struct Strict(Arc<Pool>);

impl Observer for Strict {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        assert!(self.0.check_valid().is_err(), "found on a whole pool: {finding:?}");
        Box::pin(async {})
    }
}

/// Verifies the pool, and looks for leaks.
async fn check_all(world: &World, counts: &Counts) {
    let mut rng = rng_of(world, 4, 0);
    while !world.is_over() {
        rest(&mut rng, 40_000).await;
        let view = world.engine.view().await.unwrap();
        let observer = Arc::new(Strict(Arc::clone(&view)));
        let verified = verify::pool(&view, observer, Arc::<Progress>::default()).await;
        if !is_overtaken(&verified, counts) {
            counts.checks.fetch_add(1, Ordering::Relaxed);
        }
        let view = world.engine.view().await.unwrap();
        let checked = leaks::check(&view).await;
        if !is_overtaken(&checked, counts) {
            let report = checked.unwrap();
            assert!(report.is_clean(), "{:?}", report.lines());
            counts.checks.fetch_add(1, Ordering::Relaxed);
        }
    }
}
