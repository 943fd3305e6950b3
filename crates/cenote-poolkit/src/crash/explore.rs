//! Every flush boundary of a run, with samples of lost unflushed writes.
//!
//! ```text
//!   log ──boundary──> nothing | everything | any part of what is in flight has arrived
//!                        |        one device, or as many as may be missing, as of long ago
//!                        `─> open ── model, space ── the two txgs before (uberblocks in reserve)
//!                                 `─ OpenZFS's checker
//!                                 `─ every copy verified, now or at the end of what goes on
//!                                 `─ open for writing ── changes ──cut again──> open ── ...
//! ```

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use cenote_device::{Device, Image, Pending, Recorder, Replay};
use cenote_dmu::Tx;
use cenote_engine::{ApplyOptions, Engine, ScrubOptions};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::bookmark::{Bookmark, LEVEL_ZIL};
use cenote_ondisk::scan::ScanFunc;
use cenote_oracle::Tool;
use cenote_pool::import::scan_devices;
use cenote_pool::traverse::{self, Damage, Flow, Visitor};
use cenote_pool::verify::{Finding, Observer, Summary};
use cenote_pool::{Candidate, OpenOptions, Pool};
use cenote_rt::{BoxFuture, Rng};
use cenote_testkit::cuts::keep;
use cenote_vdev::BadChild;

use super::keys;
use super::model::{self, BLOCK, History, State};
use super::workload::{Layout, Run, SPLIT_OFF};
use crate::audit::Auditor;
use crate::pools;

/// One in this many points that continue is brought to its end after the last of the further cuts.
const FINISHED_AGAIN_OF: usize = 4;
/// Attempts to bring everything to its end.
const ATTEMPTS_TO_END: usize = 4;

/// How thorough the exploration is.
#[derive(Debug, Clone, Copy)]
pub struct Depth {
    /// Every boundary has a sample; one in this many has all three kinds.
    pub whole: usize,
    /// One in this many boundaries is examined.
    pub stride: usize,
    /// One in this many points continues, and is cut again.
    pub resume: usize,
    /// One in this many points has stale devices.
    pub stale: usize,
    /// One in this many points is opened at earlier txgs, and at its checkpoint.
    pub rewind: usize,
    /// At one in this many points all sums of the datasets are recomputed; 0: none.
    pub audit: usize,
    /// One in this many points is checked by OpenZFS; 0: none.
    pub judge: usize,
    /// At one in this many points everything that was going on is brought to its end, and every
    /// copy of every block is verified; 0: none.
    pub finish: usize,
    /// At one in this many points every copy of every block is verified; 0: none.
    pub verify: usize,
}

impl Depth {
    /// For the suite itself. Stale points are not judged, so the two steps have no common factor.
    pub const FULL: Self = Self {
        whole: 40,
        stride: 1,
        resume: 10,
        stale: 8,
        rewind: 12,
        audit: 60,
        judge: 69,
        finish: 0,
        verify: 0,
    };
    /// For operations on leaves, at one in `stride` boundaries.
    pub const fn of_leaves(stride: usize) -> Self {
        Self { stride, resume: 8, finish: 11, verify: 3, ..Self::FULL }
    }
    /// For tests of the suite that look for one seeded bug in operations on leaves.
    pub const QUICK_OF_LEAVES: Self =
        Self { whole: 40, resume: 16, finish: 2, verify: 2, stride: 23, ..Self::QUICK };
    /// For tests of the suite, which look for one seeded bug.
    pub const QUICK: Self = Self {
        whole: 1,
        stride: 9,
        resume: 16,
        stale: 4,
        rewind: 4,
        audit: 0,
        judge: 0,
        finish: 0,
        verify: 0,
    };
}

/// Numbers of examined points.
#[derive(Debug, Clone, Copy, Default)]
pub struct Tally {
    /// All examined points.
    pub points: usize,
    /// Points from which the pool continued.
    pub resumed: usize,
    /// Points after a second cut.
    pub again: usize,
    /// Points with stale devices.
    pub stale: usize,
    /// Earlier txgs that were opened.
    pub rewound: usize,
    /// Checkpoints that were opened.
    pub checkpoints: usize,
    /// Points at which all sums of the datasets were recomputed.
    pub audited: usize,
    /// Gang blocks of heads at audited points.
    pub gangs: usize,
    /// Points that OpenZFS checked.
    pub judged: usize,
    /// Points from which everything was brought to its end.
    pub finished: usize,
    /// Points at which every copy of every block was verified.
    pub verified: usize,
}

/// Explores a run.
///
/// # Errors
/// The first difference between a pool after a cut and the model.
pub async fn explore(layout: Layout, seed: u64, run: &Run, depth: Depth) -> Result<Tally, String> {
    let mut explorer = Explorer {
        layout,
        depth,
        history: &run.history,
        rng: Rng::seeded(seed ^ 0x5eed),
        replay: Replay::new(&run.log),
        old: Vec::new(),
        tally: Tally::default(),
        zdb: if depth.judge > 0 { cenote_oracle::zdb() } else { None },
    };
    let mut boundary = 0;
    while explorer.replay.next_boundary() {
        let Some(acknowledged) = explorer.replay.mark() else { continue };
        boundary += 1;
        if boundary % 200 == 0 {
            explorer.old.push(explorer.replay.images(|_, _| false));
        }
        if boundary % depth.stride != 0 {
            continue;
        }
        // None of the unflushed writes, all of them, or any part: mostly the last.
        let first = explorer.rng.below(4).min(2) as usize;
        let samples = if boundary % depth.whole == 0 { 0..3 } else { first..first + 1 };
        for sample in samples {
            let event = explorer.replay.position();
            let result = explorer.point(acknowledged, sample).await;
            result.map_err(|error| {
                format!("{layout:?} seed {seed} event {event} sample {sample}: {error}")
            })?;
        }
    }
    Ok(explorer.tally)
}

struct Explorer<'a> {
    layout: Layout,
    depth: Depth,
    history: &'a History,
    rng: Rng,
    replay: Replay<'a>,
    /// The contents of the devices at earlier times.
    old: Vec<Vec<Image>>,
    tally: Tally,
    zdb: Option<Tool>,
}

impl Explorer<'_> {
    async fn point(&mut self, acknowledged: u64, sample: usize) -> Result<(), String> {
        let salt = self.rng.next_u64();
        let mut images = self.replay.images(|write, sector| keep(sample, salt, write, sector));
        self.tally.points += 1;
        let number = self.tally.points;
        let mut found = find(&images).await?;
        let newest = newest_txg(&found).max(acknowledged);
        let is_stale = number.is_multiple_of(self.depth.stale)
            && !self.history.is_unsettled_in(acknowledged..=newest)
            && self.make_stale(&mut images, &found);
        if is_stale {
            found = find(&images).await?;
        }
        let guid = found.guid();
        let pool = open_candidate(&found, &OpenOptions::default()).await?;
        if pool.txg() < acknowledged {
            return Err(format!("txg {} is older than {acknowledged}", pool.txg()));
        }
        let state = self.history.check(&pool).await?;
        if number.is_multiple_of(self.depth.rewind) {
            self.look_back(&images, pool.txg()).await?;
            if let Some(txg) = pool.checkpoint_txg() {
                self.look_at_checkpoint(&images, txg).await?;
            }
        }
        if self.depth.audit > 0 && number.is_multiple_of(self.depth.audit) {
            let problems = Auditor::new().audit(&pool).await.map_err(|error| error.to_string())?;
            if !problems.is_empty() {
                return Err(format!("txg {}: {}", pool.txg(), problems.join("; ")));
            }
            self.tally.audited += 1;
            self.tally.gangs += gangs(&pool).await.map_err(|error| error.to_string())?;
        }
        // A pool does not know what a stale device lacks.
        let is_one_of = |of: usize| of > 0 && !is_stale && number.is_multiple_of(of);
        if is_one_of(self.depth.verify) && !state.is_damaged {
            verify_all(&pool, self.replay.pending()).await?;
            self.tally.verified += 1;
        }
        if number.is_multiple_of(self.depth.resume) {
            let mut resumed = Resumed {
                pool: &pool,
                guid,
                state,
                in_flight: self.replay.pending(),
                rng: Rng::seeded(salt ^ 1),
                history: History::default(),
                is_finished: self.depth.finish > 0
                    && is_one_of(self.depth.resume * FINISHED_AGAIN_OF),
            };
            self.tally.resumed += 1;
            self.tally.again += resumed.run(&images).await?;
        }
        if is_one_of(self.depth.finish) {
            finish(&images, guid, state, self.replay.pending()).await?;
            self.tally.finished += 1;
        }
        let is_judged = self.depth.judge > 0 && number.is_multiple_of(self.depth.judge);
        // Of a pool with two guids OpenZFS opens one, and then takes the devices with the other
        // guid for another pool.
        let is_judged = is_judged && !is_stale && !self.history.is_renumbered_after(pool.txg());
        // Of a device that was about to take the guid of its mirror OpenZFS relies on the path,
        // and the devices of the test were moved.
        let is_moved = found.devices.iter().any(|device| device.is_of_several_leaves());
        // Of a block that a removal split in two, OpenZFS's checker compares both sides of a leaf
        // that is being replaced by a rebuild, one of which is not filled yet (conformance.md).
        let is_judged =
            is_judged && !is_moved && !(state.is_replacing && state.has_removed_vdevs());
        if is_judged && let Some(zdb) = &self.zdb {
            let said = zdb.pool("tank", pools::unpack(&images).path(), &["-bcc", "-h"]);
            if !said.is_clean() {
                return Err(said.to_string());
            }
            self.tally.judged += 1;
        }
        Ok(())
    }

    /// Gives old contents to as many devices of the first vdev as may be missing.
    fn make_stale(&mut self, images: &mut [Image], found: &Candidate) -> bool {
        let count = self.layout.spare_devices();
        if count == 0 || self.old.is_empty() {
            return false;
        }
        let old = &self.old[self.rng.below(self.old.len() as u64) as usize];
        let leaves: Vec<_> = found.root.children[0].leaves().collect();
        let first = self.rng.below(leaves.len() as u64) as usize;
        for number in 0..count {
            let leaf = leaves[(first + number) % leaves.len()];
            if let Some(device) = found.found(leaf.guid).and_then(|found| device_of(&found.path)) {
                let size = images[device].size();
                images[device] = old[device].clone();
                images[device].grow(size);
            }
        }
        self.tally.stale += 1;
        true
    }

    /// The two txgs before the newest are complete: their blocks are not reused yet.
    async fn look_back(&mut self, images: &[Image], newest: u64) -> Result<(), String> {
        for txg in [newest - 1, newest - 2] {
            // An expansion that went on since, for example, cannot be rewound.
            let is_unsettled = self.history.is_unsettled_in(txg..=newest);
            if !self.history.is_whole(txg, newest) || is_unsettled {
                continue;
            }
            let Some(state) = self.history.exactly(txg) else { continue };
            let options = OpenOptions { txg: Some(txg), ..OpenOptions::default() };
            let place = |error| format!("txg {txg} before {newest}: {error}");
            let pool = open(images, &options).await.map_err(place)?;
            if pool.txg() != txg {
                return Err(format!("txg {txg} is gone, {newest} is the newest"));
            }
            model::check(&pool, state).await.map_err(place)?;
            self.tally.rewound += 1;
        }
        Ok(())
    }

    /// The checkpoint of this txg is complete.
    async fn look_at_checkpoint(&mut self, images: &[Image], txg: u64) -> Result<(), String> {
        let options = OpenOptions { checkpoint: true, ..OpenOptions::default() };
        let place = |error| format!("checkpoint of {txg}: {error}");
        let pool = open(images, &options).await.map_err(place)?;
        let state = self.history.at(txg).ok_or("no such state")?;
        self.tally.checkpoints += 1;
        model::check_contents(&pool, state).await.map_err(place)
    }
}

/// Counts the gang blocks of heads.
async fn gangs(pool: &Arc<Pool>) -> cenote_rt::Result<usize> {
    let mut count = Gangs(0);
    for head in pool.datasets().await? {
        let options = traverse::Options::default();
        traverse::tree(pool, &head.phys().bp, head.object(), options, &mut count).await?;
    }
    Ok(count.0)
}

struct Gangs(usize);

impl Visitor for Gangs {
    async fn block(&mut self, bp: &BlockPtr, _: &Bookmark) -> cenote_rt::Result<Flow> {
        self.0 += usize::from(bp.is_gang());
        Ok(Flow::Continue)
    }

    fn damage(&mut self, _: Damage) {}
}

/// Finds the pool. A stale device may have another guid and look like another pool of the same
/// name: the newest one is found.
async fn find(images: &[Image]) -> Result<Candidate, String> {
    let scan = scan_devices(pools::as_devices(&pools::devices(images.to_vec()))).await;
    let of_name = scan.candidates.iter().filter(|candidate| candidate.name() != SPLIT_OFF);
    let found = of_name.max_by_key(|candidate| newest_txg(candidate)).cloned();
    found.ok_or_else(|| "no pool".to_owned())
}

fn newest_txg(found: &Candidate) -> u64 {
    found.uberblocks().iter().map(|uberblock| uberblock.txg).max().unwrap_or(0)
}

async fn open_candidate(found: &Candidate, options: &OpenOptions) -> Result<Arc<Pool>, String> {
    Pool::open(found, options).await.map_err(|error| format!("{error:?}"))
}

async fn open(images: &[Image], options: &OpenOptions) -> Result<Arc<Pool>, String> {
    open_candidate(&find(images).await?, options).await
}

/// Resumes scans, removals and expansions, as an import does.
async fn resume_all(engine: &Arc<Engine>) -> cenote_rt::Result<()> {
    engine.scans().resume().await?;
    engine.removals().resume().await;
    engine.leaves().resume_reflow();
    Ok(())
}

/// Opens a pool, brings everything that was going on to its end, and verifies every copy of every
/// block.
async fn finish(
    images: &[Image],
    guid: u64,
    state: &State,
    in_flight: &[Pending],
) -> Result<(), String> {
    let devices = pools::devices(images.to_vec());
    let place = |error: cenote_rt::Error| format!("to the end: {error:?}");
    end_all(pools::as_devices(&devices), guid, state.is_damaged).await.map_err(place)?;
    let pool = open(&pools::images_of(&devices), &OpenOptions::default()).await?;
    let place = |error| format!("in the end: {error}");
    model::check_datasets(&pool, state).await.map_err(place)?;
    if !verify_all(&pool, in_flight).await.map_err(place)? {
        return Err(place("leaves lack data".to_owned()));
    }
    model::check_space(&pool).await.map_err(place)
}

/// Verifies every copy of every block, except for what [`TornLogs`] permits. Returns whether no
/// leaf lacks any.
async fn verify_all(pool: &Arc<Pool>, in_flight: &[Pending]) -> Result<bool, String> {
    let torn = Arc::new(TornLogs {
        in_flight: in_flight.to_vec(),
        count: AtomicU64::new(0),
        other: OnceLock::new(),
    });
    let verified = pools::verify_with(pool, Arc::clone(&torn) as _).await;
    let (summary, is_whole) = verified.map_err(|error| format!("{error:?}"))?;
    let count = torn.count.load(Ordering::Relaxed);
    if !(Summary { parts: summary.parts - count, ..summary }).is_clean() {
        return Err(format!("copies: {summary:?}, {count} of torn logs; {:?}", torn.other));
    }
    Ok(is_whole)
}

/// Counts wrong parts of intent logs that were being written when the power was cut. Between the
/// flushes of two leaves, one of them has the block and the other does not: nobody was told that it
/// is durable, and the import takes it from the leaf that has it.
struct TornLogs {
    in_flight: Vec<Pending>,
    count: AtomicU64,
    /// The first other finding.
    other: OnceLock<Finding>,
}

impl TornLogs {
    fn is_torn(&self, part: &BadChild) -> bool {
        let BadChild { path, offset, len, .. } = part;
        let overlaps =
            |write: &Pending| write.offset < offset + len && *offset < write.offset + write.len;
        let device = device_of(path);
        self.in_flight.iter().any(|write| Some(write.device) == device && overlaps(write))
    }
}

impl Observer for TornLogs {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        match &finding {
            Finding::Part { place, part, .. }
                if place.level == LEVEL_ZIL && self.is_torn(&part.child) =>
            {
                self.count.fetch_add(1, Ordering::Relaxed);
            }
            _ => drop(self.other.set(finding)),
        }
        Box::pin(std::future::ready(()))
    }
}

/// Returns the number of the device with this path.
fn device_of(path: &str) -> Option<usize> {
    path.strip_prefix('d')?.parse().ok()
}

async fn end_all(
    devices: Vec<Arc<dyn Device>>,
    guid: u64,
    is_damaged: bool,
) -> cenote_rt::Result<()> {
    let engine = Engine::open_devices(devices, guid, &OpenOptions::default()).await?;
    // All leaves are in service again.
    for leaf in engine.leaves().data_guids() {
        if engine.tree().vdev(leaf).is_some_and(|leaf| !leaf.state().is_readable()) {
            engine.leaves().online(leaf, None).await?;
        }
    }
    // A scrub may be in progress.
    if is_damaged && engine.scans().in_progress().await?.is_none() {
        engine.scans().scrub(ScrubOptions::default()).await?;
    }
    // What ends may be followed by a resilver.
    for _ in 0..ATTEMPTS_TO_END {
        resume_all(&engine).await?;
        engine.leaves().wait_for_reflow().await;
        engine.removals().wait().await?;
        engine.removals().wait_condensed().await?;
        engine.scans().wait(ScanFunc::Resilver).await?;
        engine.scans().wait(ScanFunc::Scrub).await?;
        if engine.tree().leaves().all(|(_, leaf)| leaf.is_whole()) {
            break;
        }
    }
    engine.export().await
}

/// A pool that continues after a crash.
struct Resumed<'a> {
    pool: &'a Pool,
    guid: u64,
    state: &'a State,
    /// The writes that the cut interrupted.
    in_flight: &'a [Pending],
    rng: Rng,
    history: History,
    /// Whether everything is brought to its end after the last cut.
    is_finished: bool,
}

impl Resumed<'_> {
    /// Opens the pool for writing, changes it, and cuts it again meanwhile. Returns the number of
    /// examined points.
    async fn run(&mut self, images: &[Image]) -> Result<usize, String> {
        let recorder = Recorder::new();
        let devices = pools::recorded(&recorder, &pools::devices(images.to_vec()));
        let last = self.pool.txg();
        self.history.note(last, self.state);
        recorder.mark(last);
        let options = OpenOptions::default();
        let engine = Engine::open_devices(devices, self.guid, &options)
            .await
            .map_err(|error| format!("{error:?}"))?;
        let recovered = recorder.len() as u64;
        resume_all(&engine).await.map_err(|error| format!("{error:?}"))?;
        let view = engine.view().await.map_err(|error| format!("{error:?}"))?;
        keys::load_all(&view).await.map_err(|error| format!("{error:?}"))?;
        drop(view);
        let end = self.change(&engine, &recorder).await.map_err(|error| format!("{error:?}"))?;
        let log = recorder.log();
        let mut points = 0;
        // In the recovery, anywhere, and at the end.
        let ends = [recovered, log.events.len() as u64];
        let mut cuts = ends.map(|end| self.rng.below(end + 1) as usize).to_vec();
        cuts.push(log.events.len());
        cuts.sort_unstable();
        let mut replay = Replay::new(&log);
        for cut in cuts {
            replay.advance(cut);
            let (salt, sample) = (self.rng.next_u64(), self.rng.below(3) as usize);
            let images = replay.images(|write, sector| keep(sample, salt, write, sector));
            let place = |error| format!("after txg {last}, cut again at {cut}: {error}");
            let pool = open(&images, &OpenOptions::default()).await.map_err(place)?;
            let acknowledged = replay.mark().unwrap_or(last);
            if pool.txg() < acknowledged {
                return Err(place(format!("txg {} is older than {acknowledged}", pool.txg())));
            }
            let state = self.history.check(&pool).await.map_err(place)?;
            if self.is_finished && cut == log.events.len() {
                let in_flight = [self.in_flight, replay.pending()].concat();
                finish(&images, self.guid, state, &in_flight).await.map_err(place)?;
            }
            points += 1;
        }
        if engine.uberblock().txg < end {
            return Err(format!("txg {end} was not committed"));
        }
        Ok(points)
    }

    async fn change(&mut self, engine: &Engine, recorder: &Recorder) -> cenote_rt::Result<u64> {
        let mut state = self.state.clone();
        let heads: Vec<_> = state
            .datasets
            .iter()
            .filter(|(name, objects)| !name.contains('@') && !objects.is_empty())
            .map(|(name, objects)| (name.clone(), *objects.keys().next().expect("has one")))
            .collect();
        for (name, object) in heads {
            let head = engine.head(&name).await?;
            for _ in 0..4 {
                let (block, salt) = (self.rng.below(200), self.rng.next_u64());
                let bytes = model::bytes(block, salt);
                let write = |tx: &mut Tx<'_>| tx.write(object, block * BLOCK as u64, &bytes);
                let ((), txg) = engine.apply(&head, ApplyOptions::new(), write).await?;
                let objects = state.datasets.get_mut(&name).expect("it is there");
                objects.get_mut(&object).expect("it is there").insert(block, salt);
                self.history.note(txg, &state);
            }
        }
        engine.sync().await?;
        let txg = engine.uberblock().txg;
        self.history.note(txg, &state);
        recorder.mark(txg);
        engine.snapshots().create(vec!["tank@again".into()]).await?;
        state.datasets.insert("tank@again".into(), state.datasets["tank"].clone());
        let since = txg + 1;
        let txg = engine.uberblock().txg;
        self.history.note_since(since, txg, &state);
        recorder.mark(txg);
        engine.export().await?;
        let txg = engine.uberblock().txg;
        self.history.note(txg, &state);
        recorder.mark(txg);
        Ok(txg)
    }
}
