//! Comparison of a pool with the model: after each import, and at the end of a history.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cenote_device::Device;
use cenote_engine::create::{LeafSpec, plan_leaf};
use cenote_engine::{Attach, CheckpointState, Engine, Event, RemovalError, ScrubOptions};
use cenote_fs::format::FsOwners;
use cenote_fs::{FileSystem, Mount, WritableVolume};
use cenote_ondisk::scan::ScanFunc;
use cenote_pool::import::scan_devices;
use cenote_pool::verify::{self, Finding, Observer, Progress, Summary};
use cenote_pool::{Dataset, OpenOptions, Pool, leaks};
use cenote_poolkit::crash::facts;
use cenote_poolkit::crash::model::check_object;
use cenote_poolkit::pools;
use cenote_rt::{BoxFuture, Error, Kind, until};
use cenote_vdev::{ErrorRate, ErrorRates};

use crate::model::slots::Slot;
use crate::model::{Actor, Model, Rollback};
use crate::plan::draw::SLOT;
use crate::tasks::{History, dataset, spares, verify_pool, volume_dataset};
use crate::{encryption, hot_spares, look};

/// Simulated time in which a removal ends, if there is space.
const REMOVAL_TIME_MAX: Duration = Duration::from_mins(10);

/// Views of the whole pool that may be overtaken, one after the other.
const VIEWS_MAX: u32 = 5;

/// A check, or how it failed.
type Checked<T> = Result<T, String>;

#[expect(clippy::needless_pass_by_value, reason = "as errors are mapped")]
fn fail(error: Error) -> String {
    format!("{error:?}")
}

/// Mounted file systems, and open volumes.
type Opened = (Vec<Arc<Mount>>, Vec<Arc<WritableVolume>>);

/// Opens all file systems and volumes of a pool that was imported as of a txg, and compares
/// everything with the model, which then begins anew with what was found.
pub(crate) async fn after_import(
    history: &Arc<History>,
    engine: &Arc<Engine>,
    txg: u64,
) -> Checked<Opened> {
    // The model is the one at the crash, until all comparisons are done.
    let crashed = history.model().clone();
    if txg < crashed.acknowledged_txg {
        return Err(format!("txg {txg}, but {} was acknowledged", crashed.acknowledged_txg));
    }
    let owners = FsOwners { counts_objects: true, counts_projects: true };
    engine.datasets().set_owner_probe(Arc::new(owners));
    // Logs that are not replayed by the recovery are replayed when their datasets are opened.
    let is_locked = history.plan.seed.is_multiple_of(2);
    if !is_locked {
        encryption::load_keys(&history.plan, engine).await.map_err(fail)?;
    }
    for (object, replayed) in cenote_fs::recover(engine).await.map_err(fail)? {
        if let Some(failure) = replayed.failure {
            return Err(format!("replay of dataset {object}: {failure:?}"));
        }
    }
    if is_locked {
        encryption::load_keys(&history.plan, engine).await.map_err(fail)?;
    }
    let mut left = VIEWS_MAX;
    let (model, opened) = loop {
        left -= 1;
        if let Some(compared) = settled(compare(engine, crashed.clone(), txg).await, left) {
            break compared?;
        }
    };
    counts(history, engine)?;
    let mut current = history.model();
    *current = model;
    current.crash_txg = None;
    drop(current);
    history.tally().check("imports compared");
    Ok(opened)
}

/// The result of a check of a view. `None` if a vdev that goes took its blocks away from every
/// view: the check is to be made with another one, `left` times at most.
fn settled<T>(checked: cenote_rt::Result<Checked<T>>, left: u32) -> Option<Checked<T>> {
    match checked {
        Err(error) if error.kind() == Kind::Overtaken && left > 0 => None,
        Err(error) => Some(Err(fail(error))),
        Ok(checked) => Some(checked),
    }
}

/// Opens everything and compares it with a model. Returns the model as it is from now on.
async fn compare(
    engine: &Arc<Engine>,
    mut model: Model,
    txg: u64,
) -> cenote_rt::Result<Checked<(Model, Opened)>> {
    let view = engine.view().await?;
    if let Err(difference) = trees(&view, &mut model, txg).await? {
        return Ok(Err(difference));
    }
    let (mut mounts, mut volumes) = Opened::default();
    if let Err(difference) = hot_spares::compare(&view, &mut model) {
        return Ok(Err(difference));
    }
    if let Err(difference) = model.allocating.compare(&view.config().vdev_tree) {
        return Ok(Err(difference));
    }
    for number in 0..model.file_systems.len() {
        match file_system(engine, &view, &mut model, (number, txg)).await? {
            Ok(mount) => mounts.push(mount),
            Err(difference) => return Ok(Err(difference)),
        }
    }
    for number in 0..model.volumes.len() {
        match volume(engine, &mut model, (number, txg)).await? {
            Ok(open) => volumes.push(open),
            Err(difference) => return Ok(Err(difference)),
        }
    }
    Ok(Ok((model, (mounts, volumes))))
}

/// Compares the trees of datasets.
async fn trees(view: &Arc<Pool>, model: &mut Model, txg: u64) -> cenote_rt::Result<Checked<()>> {
    let heads = view.datasets().await?;
    for (number, (states, durable)) in &mut model.trees {
        let root = states.newest().root().to_owned();
        let below = format!("{root}/");
        let mut found = Vec::new();
        for head in &heads {
            if head.name() == root || head.name().starts_with(&below) {
                found.extend(head.snapshots().await?);
                found.push(head.clone());
            }
        }
        let mut facts = facts::of_datasets(view, &found).await?;
        facts.extend(look::grants(&found).await?);
        let names: BTreeSet<_> = found.iter().map(|dataset| dataset.name().to_owned()).collect();
        let range = (*durable).max(states.certain_in(txg))..=states.possible_in(txg);
        let mut why = String::new();
        let mut known = None;
        for index in range.clone().rev() {
            let wanted = &states.state(index).state;
            let difference = if !names.iter().eq(wanted.datasets.keys()) {
                Err(format!("datasets {names:?}, expected {:?}", wanted.datasets.keys()))
            } else if facts != wanted.facts {
                Err(format!("facts {facts:?}, expected {:?}", wanted.facts))
            } else {
                contents(&found, wanted).await
            };
            match difference {
                Ok(()) => {
                    known = Some(index);
                    break;
                }
                Err(difference) => {
                    // Another view is compared if this one was given up.
                    view.grounds().check()?;
                    why = difference;
                }
            }
        }
        let Some(index) = known else {
            return Ok(Err(format!(
                "tree {number} is none of the states {range:?} at txg {txg}: {why}"
            )));
        };
        let state = states.state(index).clone();
        states.restart(state);
        *durable = 0;
    }
    Ok(Ok(()))
}

async fn contents(found: &[Dataset], wanted: &cenote_poolkit::crash::model::State) -> Checked<()> {
    for dataset in found {
        for (object, content) in &wanted.datasets[dataset.name()] {
            check_object(dataset, *object, content).await?;
        }
    }
    Ok(())
}

/// Compares a file system and its snapshots.
async fn file_system(
    engine: &Arc<Engine>,
    view: &Arc<Pool>,
    model: &mut Model,
    (number, txg): (usize, u64),
) -> cenote_rt::Result<Checked<Arc<Mount>>> {
    let name = dataset(number);
    let mount = Mount::open(engine, &name).await?;
    let home = &mut model.file_systems[number];
    let head = view.dataset(&name).await?;
    let mut present = BTreeSet::new();
    for snapshot in head.snapshots().await? {
        present.extend(snapshot.name().split_once('@').map(|(_, name)| name.to_owned()));
    }
    for (snapshot, known) in &mut home.snapshots {
        known.end(&home.actors);
        if !present.contains(snapshot) && !known.is_uncertain {
            return Ok(Err(format!("{name}@{snapshot} is gone")));
        }
    }
    home.snapshots.retain(|snapshot, _| present.contains(snapshot));
    for snapshot in present {
        let full = format!("{name}@{snapshot}");
        let Some(known) = home.snapshots.get_mut(&snapshot) else {
            return Ok(Err(format!("{full} should not exist")));
        };
        known.is_uncertain = false;
        let opened = FileSystem::open_snapshot(engine, &full).await?;
        for actor in 0..home.actors.len() {
            let found = look::in_frozen(&opened, actor).await?;
            if let Err(what) = known.check(actor, &found) {
                return Ok(Err(format!("actor {actor} in {full}: {what}")));
            }
        }
    }
    for actor in 0..home.actors.len() {
        let (_, found) = look::in_mount(&mount, actor).await?;
        let tree = home.actors[actor].recover(txg, &found);
        if tree.is_err() && home.may_be_rolled_back(&found) {
            continue;
        }
        match tree {
            Ok(tree) => home.actors[actor] = Actor::from_tree(tree),
            Err(what) => return Ok(Err(format!("actor {actor} of {name}: {what}"))),
        }
    }
    home.rollback = Rollback::None;
    Ok(Ok(mount))
}

async fn volume(
    engine: &Arc<Engine>,
    model: &mut Model,
    (number, txg): (usize, u64),
) -> cenote_rt::Result<Checked<Arc<WritableVolume>>> {
    let name = volume_dataset(number);
    let open = WritableVolume::open(engine, &name).await?;
    for (slot, known) in model.volumes[number].slots.iter_mut().enumerate() {
        let found = open.read(slot as u64 * SLOT, SLOT as usize).await?;
        if let Err(what) = known.recover(txg, &found) {
            return Ok(Err(format!("slot {slot} of {name}: {what}")));
        }
        known.states.restart(Slot(Arc::new(found.to_vec())));
        known.durable = 0;
    }
    Ok(Ok(open))
}

/// Whether a disk reports all of its errors, so that the pool knows what the disk lacks.
pub(crate) fn is_honest(history: &History, disk: usize) -> bool {
    let mut faults = history.plan.lives.iter().flat_map(|life| &life.faults);
    faults.all(|of| of.disk != disk || of.fault.is_reported())
        && !history.machine.has_replaced(disk)
}

/// Whether a disk without faults may have wrong bytes: a sequential rebuild copies those of other
/// disks, and the scrub that follows it may not have come to them.
pub(crate) fn may_have_copied_faults(history: &History, disk: usize) -> bool {
    let layout = &history.plan.layout;
    disk >= layout.disks() && layout.victims.iter().any(|victim| !is_honest(history, *victim))
}

/// Checks that no errors were counted on disks without faults, no wrong bytes on disks that report
/// their errors, and nothing was lost.
pub(crate) fn counts(history: &History, engine: &Engine) -> Checked<()> {
    let victims = &history.plan.layout.victims;
    let victim_of = |path: &str| victims.iter().find(|victim| path == format!("d{victim}"));
    let mut victim_guids = Vec::new();
    let may_be_wrong = |path: &str| {
        let mut all = 0..history.plan.layout.all_disks();
        all.any(|disk| path == format!("d{disk}") && may_have_copied_faults(history, disk))
    };
    for (_, leaf) in engine.tree().leaves() {
        let stats = leaf.stats();
        if let Some(victim) = victim_of(leaf.path()) {
            victim_guids.push(leaf.guid());
            let count = stats.checksum_errors;
            if count > 0 && is_honest(history, *victim) {
                let mut bad = engine.health().events().after(0);
                bad.retain(|noted| match &noted.event {
                    Event::Bad { io, .. } => io.leaf == leaf.guid(),
                    _ => false,
                });
                let bad: Vec<_> = bad.into_iter().map(|noted| noted.event).collect();
                let path = leaf.path();
                return Err(format!("{path}: CKSUM {count}, although it reports errors: {bad:?}"));
            }
            continue;
        }
        let mut errors =
            [stats.read_errors, stats.write_errors, stats.checksum_errors, stats.repairs];
        if may_be_wrong(leaf.path()) {
            victim_guids.push(leaf.guid());
            (errors[2], errors[3]) = (0, 0);
        }
        if errors != [0; 4] {
            return Err(format!("{}: READ, WRITE, CKSUM, repairs {errors:?}", leaf.path()));
        }
    }
    for noted in engine.health().events().after(0) {
        match &noted.event {
            Event::Lost { .. } => return Err(format!("{:?}", noted.event)),
            // A disk that left the pool had faults.
            Event::Bad { io, .. }
                if !victim_guids.contains(&io.leaf) && engine.tree().leaf_of(io.leaf).is_some() =>
            {
                return Err(format!("{:?}", noted.event));
            }
            _ => {}
        }
    }
    if let Some(cause) = engine.health().stopped() {
        return Err(format!("the pool is stopped: {cause}"));
    }
    if let Some(cause) = engine.health().suspended() {
        return Err(format!("the pool is suspended: {cause:?}"));
    }
    Ok(())
}

/// Reads everything of a pool; returns what is wrong, and how much.
async fn findings_of(pool: &Arc<Pool>) -> cenote_rt::Result<(String, Summary)> {
    let (observer, progress) = (Arc::<Findings>::default(), Arc::<Progress>::default());
    verify::pool(pool, Arc::<Findings>::clone(&observer), Arc::clone(&progress)).await?;
    Ok((observer.take(), progress.summary()))
}

/// Checks a pool that was split off: it is whole, on its disks alone.
pub(crate) async fn split_off(
    history: &History,
    devices: Vec<Arc<dyn Device>>,
    guid: u64,
) -> Checked<()> {
    let scan = scan_devices(devices).await;
    let found = scan.find("split").map_err(|error| error.to_string())?;
    if found.guid() != guid {
        return Err(format!("the disks have pool {}, and not {guid}", found.guid()));
    }
    let pool = Pool::open(found, &OpenOptions::default()).await.map_err(fail)?;
    if !pool.spares().is_empty() {
        return Err(format!("the pool that was split off has hot spares: {:?}", pool.spares()));
    }
    let report = leaks::check(&pool).await.map_err(fail)?;
    if !report.is_clean() {
        return Err(format!("space of the pool that was split off: {:?}", report.lines()));
    }
    let (findings, summary) = findings_of(&pool).await.map_err(fail)?;
    if !summary.is_clean() {
        return Err(format!("in the pool that was split off: {findings}"));
    }
    history.tally().check("pools split off");
    Ok(())
}

/// Waits for the end of a removal, or cancels one that does not end: the other vdevs may be full.
pub(crate) async fn removals(history: &History, engine: &Arc<Engine>) -> Checked<()> {
    match until(REMOVAL_TIME_MAX, engine.removals().wait_condensed()).await {
        Some(condensed) => condensed.map_err(fail)?,
        None => return Err("a mapping is not condensed in the end".to_owned()),
    }
    if engine.removals().removing().is_none() {
        return Ok(());
    }
    match until(REMOVAL_TIME_MAX, engine.removals().wait()).await {
        Some(Ok(())) => history.tally().check("removals at the end"),
        Some(Err(error)) if error.cause::<RemovalError>().is_some() => {}
        Some(Err(error)) => return Err(fail(error)),
        None => {
            engine.removals().cancel().await.map_err(fail)?;
            history.tally().check("removals cancelled at the end");
        }
    }
    Ok(())
}

/// Checks the whole pool: nothing is lost, and its space is what its blocks take.
pub(crate) async fn whole(history: &History, engine: &Arc<Engine>) -> Checked<()> {
    for _ in 0..4 {
        engine.sync().await.map_err(fail)?;
    }
    while engine.space().has_pending_frees().await.map_err(fail)? {
        engine.sync().await.map_err(fail)?;
    }
    engine.store().clear_cache();
    let mut left = VIEWS_MAX;
    loop {
        left -= 1;
        if let Some(checked) = settled(view(history, engine).await, left) {
            checked?;
            break;
        }
    }
    counts(history, engine)
}

/// Checks everything that a view of the pool shows.
async fn view(history: &History, engine: &Arc<Engine>) -> cenote_rt::Result<Checked<()>> {
    let view = engine.view().await?;
    let report = leaks::check(&view).await?;
    if !report.is_clean() {
        return Ok(Err(format!("space: {:?}", report.lines())));
    }
    history.tally().check("leak checks");
    if let Err(findings) = verify_pool(&view, history).await? {
        return Ok(Err(findings));
    }
    history.tally().check("verifications");
    if !view.error_log().await?.is_empty() {
        return Ok(Err("the error log is not empty".into()));
    }
    Ok(Ok(()))
}

/// Keeps every disk in service, however many errors the scrub meets: sectors that could not be read
/// before are repaired by it.
fn set_no_error_rates(engine: &Engine) {
    let never = ErrorRate { count: 0, seconds: 1 };
    for (_, leaf) in engine.tree().leaves() {
        leaf.set_error_rates(ErrorRates { io: never, checksum: never, slow_io: None });
    }
}

/// One history in this many keeps the newest state of a pool with a checkpoint.
const NOT_REWOUND_OF: u64 = 3;
/// Scans that follow each other at most.
const SCANS_MAX: u32 = 8;

/// Whether there is a checkpoint that must be whole: no disk had faults or was away.
fn has_whole_checkpoint(history: &History, engine: &Engine) -> bool {
    let is_kept = matches!(engine.space().checkpoint_state(), CheckpointState::Kept(_));
    let is_in_service = engine.tree().leaves().all(|(_, leaf)| leaf.is_writable());
    is_kept && history.plan.is_undamaged() && is_in_service
}

/// Reads a pool in the state of its checkpoint. Its vdevs may lack parts that redundancy makes up
/// for: a resilver leaves out blocks that only the checkpoint has.
async fn checkpoint_state(pool: &Arc<Pool>) -> cenote_rt::Result<Checked<()>> {
    let (findings, summary) = findings_of(pool).await?;
    if summary.lost > 0 || summary.unreachable > 0 {
        return Ok(Err(format!("in the state of the checkpoint: {findings}")));
    }
    Ok(Ok(()))
}

/// Reads the state of the checkpoint in a pool that went back to it.
async fn rewound_state(engine: &Engine) -> cenote_rt::Result<Checked<()>> {
    let view = engine.view().await?;
    if let Err(difference) = checkpoint_state(&view).await? {
        return Ok(Err(difference));
    }
    let report = leaks::check(&view).await?;
    if !report.is_clean() {
        return Ok(Err(format!("space after a rewind: {:?}", report.lines())));
    }
    Ok(Ok(()))
}

/// Reads the state of the checkpoint, if there is one: none of its blocks was used again.
async fn checkpoint(history: &History, engine: &Arc<Engine>) -> Checked<()> {
    if !has_whole_checkpoint(history, engine) {
        return Ok(());
    }
    let scan = scan_devices(history.machine.devices()).await;
    let found = scan.find("tank").map_err(|error| error.to_string())?;
    let options = OpenOptions { checkpoint: true, ..OpenOptions::default() };
    let pool = Pool::open(found, &options).await.map_err(fail)?;
    checkpoint_state(&pool).await.map_err(fail)??;
    history.tally().check("checkpoints read");
    Ok(())
}

/// Goes back to the checkpoint, if there is one that must be whole and the seed wants it. Returns
/// the pool in the state of the checkpoint.
pub(crate) async fn rewind(
    history: &History,
    engine: &Arc<Engine>,
) -> Checked<Option<Arc<Engine>>> {
    if !has_whole_checkpoint(history, engine) || history.plan.seed.is_multiple_of(NOT_REWOUND_OF) {
        return Ok(None);
    }
    let guid = engine.guid();
    engine.export().await.map_err(fail)?;
    let options = OpenOptions { checkpoint: true, ..OpenOptions::default() };
    let devices = history.machine.devices();
    let opened = Engine::open_devices(devices, guid, &options).await;
    let rewound = opened.map_err(|error| format!("rewind: {error:?}"))?;
    spares::connect(history, &rewound);
    rewound.start_sync_task();
    encryption::load_keys(&history.plan, &rewound).await.map_err(fail)?;
    let mut left = VIEWS_MAX;
    loop {
        left -= 1;
        if let Some(checked) = settled(rewound_state(&rewound).await, left) {
            break checked?;
        }
    }
    rewound.removals().resume().await;
    rewound.leaves().resume_reflow();
    history.tally().check("rewinds to checkpoints");
    Ok(Some(rewound))
}

/// Brings every disk up to date, and scrubs the pool: afterwards nothing is wrong or missing on any
/// disk, also on those that had faults.
pub(crate) async fn scrubbed(history: &History, engine: &Arc<Engine>) -> Checked<()> {
    checkpoint(history, engine).await?;
    match engine.space().discard_checkpoint().await {
        Err(error) if error.kind() != Kind::NotFound => return Err(fail(error)),
        _ => {}
    }
    while engine.space().has_pending_frees().await.map_err(fail)? {
        engine.sync().await.map_err(fail)?;
    }
    set_no_error_rates(engine);
    // Leaves whose errors are too many already leave service now.
    engine.sync().await.map_err(fail)?;
    // Nothing is replaced by a resilver beside a rebuild.
    engine.scans().resume().await.map_err(fail)?;
    engine.scans().wait(ScanFunc::Resilver).await.map_err(fail)?;
    let out = engine.tree().leaves().filter(|(_, leaf)| !leaf.is_writable());
    let out: Vec<_> = out.map(|(_, leaf)| (leaf.guid(), leaf.path().to_owned())).collect();
    let mut back = Vec::new();
    for (leaf, path) in out {
        let devices = history.machine.devices();
        let device = devices.iter().find(|device| device.info().path == path);
        match engine.leaves().online(leaf, device.cloned()).await {
            Ok(()) => back.push(leaf),
            // A hot spare that came back with what it had before it stood in for a leaf.
            Err(error) if error.kind() == Kind::Invalid && hot_spares::is_in_use(engine, leaf) => {
                engine.leaves().detach(leaf, None).await.map_err(fail)?;
            }
            // It came back with what it had before it belonged to the pool.
            Err(error) if error.kind() == Kind::Invalid => {
                let device = device.ok_or_else(|| format!("{path}: {error:?}"))?;
                let new = plan_leaf(&LeafSpec::of(device.info()), Arc::clone(device));
                let new = new.map_err(fail)?;
                engine.leaves().attach(leaf, new, Attach::Replace).await.map_err(fail)?;
            }
            Err(error) => return Err(fail(error)),
        }
    }
    // Replacing a leaf has set them anew.
    set_no_error_rates(engine);
    let scans = engine.scans();
    // A rebuild is not stopped, and a scrub follows it.
    for tries in 0.. {
        match scans.stop().await {
            Err(error) if !matches!(error.kind(), Kind::NotFound | Kind::Busy) => {
                return Err(fail(error));
            }
            _ => {}
        }
        scans.resume().await.map_err(fail)?;
        scans.wait(ScanFunc::Resilver).await.map_err(fail)?;
        match scans.scrub(ScrubOptions::default()).await {
            Err(error) if error.kind() == Kind::Busy && tries < SCANS_MAX => {}
            begun => {
                begun.map_err(fail)?;
                break;
            }
        }
    }
    scans.wait(ScanFunc::Scrub).await.map_err(fail)?;
    scans.wait(ScanFunc::Resilver).await.map_err(fail)?;
    if engine.leaves().is_reflow_running() {
        // A vdev does not expand while a hot spare stands in for one of its leaves.
        hot_spares::send_back_all(engine).await?;
        // Every device has everything, so that the expansion goes on; a scrub follows it.
        let (mut last, mut is_repaired) = (None, false);
        while until(REMOVAL_TIME_MAX, engine.leaves().wait_for_reflow()).await.is_none() {
            // The number of bytes to copy changes with every txg.
            let progress = engine.leaves().reflow_progress().map(|progress| progress.copied);
            if progress == last && is_repaired {
                return Err(format!("an expansion does not go on: {progress:?}"));
            }
            if progress == last {
                // A sector that pads a block cannot be read: a scrub does not write it.
                history.machine.repair();
                is_repaired = true;
            }
            last = progress;
        }
        history.tally().check("expansions at the end");
        scans.wait(ScanFunc::Scrub).await.map_err(fail)?;
    }
    hot_spares::in_the_end(history, engine, &back).await?;
    let view = engine.view().await.map_err(fail)?;
    let progress = Arc::<Progress>::default();
    let observer = Arc::<Findings>::default();
    let run = verify::pool(&view, Arc::<Findings>::clone(&observer), Arc::clone(&progress));
    run.await.map_err(fail)?;
    let findings = observer.take();
    if !findings.is_empty() {
        return Err(format!("after a scrub: {findings}"));
    }
    let missing = progress.missing();
    if !missing.is_empty() {
        return Err(format!("after a resilver: {missing:?}"));
    }
    history.tally().check("scrubs of everything");
    Ok(())
}

/// Collects all findings of a verification.
#[derive(Default)]
struct Findings(Mutex<Vec<String>>);

impl Findings {
    fn take(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).join("; ")
    }
}

impl Observer for Findings {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{finding:?}"));
        Box::pin(async {})
    }
}

/// Has OpenZFS check the disks of an exported pool.
pub(crate) fn judge(history: &History) -> Checked<()> {
    let Some(zdb) = cenote_oracle::zdb() else { return Ok(()) };
    let folder = pools::unpack(&history.machine.images());
    let said = zdb.pool("tank", folder.path(), &["-bcc"]);
    if !said.is_clean() {
        return Err(format!("{said}"));
    }
    history.tally().check("checks by zdb");
    Ok(())
}
