//! Runs a plan: lives one after the other, and a last one that checks everything.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use cenote_device::{Device, PowerCut};
use cenote_dmu::Tx;
use cenote_engine::{Engine, NewDataset};
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::format::{NewFileSystem, fill_volume};
use cenote_fs::{Mount, WritableVolume};
use cenote_ondisk::objset::ObjSetType;
use cenote_ondisk::zap::Value;
use cenote_ondisk::znode::Time;
use cenote_pool::import::scan_devices;
use cenote_pool::{Candidate, OpenOptions};
use cenote_poolkit::{PoolBuilder, pools};
use cenote_rt::seeded::Bug;
use cenote_rt::{Error, task_report, tunables, until};
use futures_util::future::{Either, join_all, select};

use crate::check;
use crate::disks::{Event, Machine};
use crate::encryption;
use crate::look::directory;
use crate::model::datasets::Datasets;
use crate::model::files::Tree;
use crate::model::{Actor, Sequence};
use crate::plan::draw::SLOT;
use crate::plan::{End, Life, Plan, Role, TaskPlan};
use crate::tally::Tally;
use crate::tasks::{self, History, Running, dataset, spares, volume_dataset};
use crate::world;

/// Simulated time within which all tasks end once the pool is closed.
const TIME_TO_END: Duration = Duration::from_mins(10);
/// Milliseconds for which checks keep views.
const CHECK_MS: u64 = 100_000_000;
/// One history in this many without damage is checked by OpenZFS.
const JUDGED_OF: u64 = 8;

/// Makes the seed of the guids of a new pool of the seed of a plan, from which the engine's own
/// guids come.
const GUID_SEED: u64 = 0x6775_6964;

/// More imports of a life than it has faults.
const IMPORTS_MAX: usize = 20;

/// The error of a log block that a failing disk may have.
const MAY_CONTINUE: &str = "the block may have been freed";

/// The error of an import without the disk that has the newest txg.
const GOES_BACK: &str = "a missing disk has a newer txg";

/// Result of a history.
#[derive(Debug, Clone)]
pub(crate) struct Report {
    /// What it did.
    pub(crate) tally: Tally,
    /// How it failed, if it did.
    pub(crate) failure: Option<String>,
}

/// Runs a plan, in an engine with a mistake or without.
pub(crate) fn run(plan: &Plan, bug: Option<Bug>) -> Report {
    let history = History::new(plan.clone());
    let done = world::run(plan, bug, run_lives(Arc::clone(&history)));
    if let Err(what) = done {
        history.fail(what);
    }
    let mut tally = history.tally().clone();
    tally.histories = 1;
    tally.hash = history.machine.hash();
    *tally.layouts.entry(plan.layout.title()).or_default() += 1;
    for disk in 0..plan.layout.disks() {
        *tally.disks.entry(plan.layout.model(disk).to_owned()).or_default() += 1;
    }
    Report { tally, failure: history.failed() }
}

/// Runs one life after the other.
async fn run_lives(history: Arc<History>) -> Result<(), String> {
    let lives = &history.plan.lives;
    for number in 0..=lives.len() {
        let name = format!("life {number}");
        let life = run_life(Arc::clone(&history), number);
        let done = world::live(name.clone(), &history.machine, life).await;
        let life = lives.get(number);
        count(&history, life);
        done.map_err(|what| format!("{name}: {what}"))?;
        if history.failed().is_some() {
            return Ok(());
        }
        let Some(life) = life else { break };
        if life.end == End::PowerCut {
            history.machine.cut_power();
        }
        cenote_rt::sleep(Duration::from_secs(life.gap)).await;
        history.machine.jump(life.jump);
    }
    Ok(())
}

fn count(history: &History, life: Option<&Life>) {
    let mut tally = history.tally();
    tally.lives += 1;
    tally.time = cenote_rt::monotonic();
    tally.commands += history.machine.commands();
    let happened = history.machine.take_happened();
    for name in happened.faults {
        *tally.faults.entry(name).or_default() += 1;
    }
    let PowerCut { kept, lost, torn } = happened.cut;
    for (name, count) in [("kept", kept), ("lost", lost), ("torn", torn)] {
        *tally.cut_writes.entry(name).or_default() += count;
    }
    if let Some(life) = life {
        *tally.ends.entry(life.end.name()).or_default() += 1;
    }
}

/// Begins a life on the disks.
fn begin(machine: &Machine, life: &Life) {
    let faults = life.faults.iter().map(|plan| (plan.at, Event::Fault(plan.disk, plan.fault)));
    let end = match life.end {
        End::PowerCut => Event::PowerCut,
        End::Export | End::ForcedClose | End::Kill => Event::End,
    };
    let jumps = life.clock.iter().map(|(at, seconds)| (*at, Event::ClockJump(*seconds)));
    machine.begin(faults.chain(jumps).chain([(life.end_at, end)]).collect());
    if let Some(count) = life.end_at_label {
        machine.before_label_write(count, end);
    }
}

#[expect(clippy::needless_pass_by_value, reason = "as errors are mapped")]
fn fail(error: Error) -> String {
    format!("{error:?}")
}

/// One life: opens the pool, runs the tasks, and ends as planned.
async fn run_life(history: Arc<History>, number: usize) -> Result<(), String> {
    let history = &history;
    let machine = &history.machine;
    let life = history.plan.lives.get(number);
    machine.begin(Vec::new());
    let running = if number == 0 {
        let running = create(history).await?;
        if let Some(life) = life {
            begin(machine, life);
        }
        running
    } else {
        match life {
            Some(life) => begin(machine, life),
            None => machine.mend(),
        }
        // The process may end while it opens the pool.
        let is_sudden = life.is_some_and(|life| matches!(life.end, End::Kill | End::PowerCut));
        let ended = async {
            machine.until_ended().await;
            if !is_sudden {
                std::future::pending::<()>().await;
            }
        };
        match select(pin!(open(history, life)), pin!(ended)).await {
            Either::Left((opened, _)) => opened?,
            Either::Right(_) => return Ok(()),
        }
    };
    running.engine.start_sync_task();
    running.engine.removals().resume().await;
    running.engine.leaves().resume_reflow();
    let Some(life) = life else { return close(history, &running).await };
    let is_agent = |task: &&TaskPlan| task.role == Role::SpareAgent;
    let agents = life.tasks.iter().filter(is_agent);
    let agent = |_| cenote_rt::spawn(spares::agent(Arc::downgrade(&running)));
    let agents = join_all(agents.map(agent).collect::<Vec<_>>());
    let tasks = life
        .tasks
        .iter()
        .filter(|task| !is_agent(task))
        .map(|task| cenote_rt::spawn(tasks::run(Arc::clone(&running), task.clone())));
    let mut tasks = pin!(join_all(tasks));
    let (end, failure) = (pin!(machine.until_ended()), pin!(history.until_failed()));
    let ended = select(end, failure);
    let done = match select(&mut tasks, ended).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    };
    if history.failed().is_some() {
        return Ok(());
    }
    let is_done = done.is_some();
    for task in done.into_iter().flatten() {
        task.map_err(|error| format!("a task: {error}"))?;
    }
    if !matches!(life.end, End::Kill | End::PowerCut) {
        check::counts(history, &running.engine)?;
    }
    running.end();
    match life.end {
        End::Kill | End::PowerCut => return Ok(()),
        End::Export => {
            running.engine.export().await.map_err(|error| format!("export: {error:?}"))?;
        }
        End::ForcedClose => drop(running.engine.close_by_force().await),
    }
    let writes = machine.writes();
    let rest = async {
        let mut done = agents.await;
        if !is_done {
            done.extend(tasks.await);
        }
        done
    };
    let Some(done) = until(TIME_TO_END, rest).await else {
        let report = task_report().unwrap_or_default();
        return Err(format!("tasks do not end although the pool is closed:\n{report}"));
    };
    let late = machine.writes() - writes;
    if late > 0 {
        return Err(format!("the disks of the closed pool got {late} writes"));
    }
    done.into_iter().try_for_each(|task| task.map_err(|error| format!("a task: {error}")))
}

/// Creates the pool, its file systems and volumes.
async fn create(history: &Arc<History>) -> Result<Arc<Running>, String> {
    let plan = &history.plan;
    let builder = PoolBuilder::new(plan.layout.tops())
        .with_ashift(plan.layout.ashift)
        .with_seed(plan.seed ^ GUID_SEED)
        .with_file_system();
    let mut devices = history.machine.devices();
    devices.truncate(plan.layout.disks());
    let engine = builder.create(devices).await.map_err(fail)?;
    spares::connect(history, &engine);
    spares::add_first(history, &engine).await.map_err(fail)?;
    let values = |properties: &[(String, u64)]| -> Vec<(String, Value)> {
        properties.iter().map(|(name, value)| (name.clone(), Value::U64(*value))).collect()
    };
    let mut mounts = Vec::new();
    for (number, file_system) in plan.file_systems.iter().enumerate() {
        let new = empty_file_system(&dataset(number), values(&file_system.properties));
        let encryption = encryption::of(file_system.is_encrypted, number);
        let new = NewDataset { encryption, ..new };
        engine.datasets().create(new).await.map_err(fail)?;
        let mount = Mount::open(&engine, &dataset(number)).await.map_err(fail)?;
        for actor in 0..file_system.actors {
            let (root, new) = (Credentials::root(), NewNode::new(NewKind::Directory, 0o755));
            let made = mount.create(&root, mount.root(), &directory(actor), &new).await;
            let object = made.map_err(fail)?.object;
            let home = &mut history.model().file_systems[number];
            home.actors.push(Actor::from_tree(Tree::new(object, home.has_xattr_dirs)));
        }
        mounts.push(mount);
    }
    let mut volumes = Vec::new();
    for (number, volume) in plan.volumes.iter().enumerate() {
        let (size, block_size) = (volume.slots * SLOT, volume.block_size);
        let new = NewDataset {
            name: volume_dataset(number),
            kind: ObjSetType::Zvol,
            props: values(&volume.properties),
            encryption: encryption::of(volume.is_encrypted, number),
            fill: Box::new(move |tx| fill_volume(tx, size, block_size)),
        };
        let name = new.name.clone();
        engine.datasets().create(new).await.map_err(fail)?;
        volumes.push(WritableVolume::open(&engine, &name).await.map_err(fail)?);
    }
    for tree in trees(plan) {
        let root = format!("tank/d{tree}");
        engine.datasets().create(empty_file_system(&root, Vec::new())).await.map_err(fail)?;
        let states = Sequence::new(Datasets::new(&root));
        history.model().trees.insert(tree, (states, 0));
    }
    let txg = engine.sync().await.map_err(fail)?;
    history.model().acknowledge(txg);
    Ok(Running::new(history, engine, mounts, volumes))
}

fn empty_file_system(name: &str, props: Vec<(String, Value)>) -> NewDataset {
    let fill = Box::new(|tx: &mut Tx<'_>| NewFileSystem::at(Time::default()).fill(tx));
    NewDataset { props, fill, ..NewDataset::new(name, ObjSetType::Zfs) }
}

/// Returns the numbers of the trees of datasets that tasks use.
fn trees(plan: &Plan) -> std::collections::BTreeSet<usize> {
    let roles = plan.lives.iter().flat_map(|life| &life.tasks).map(|task| task.role);
    roles
        .filter_map(|role| match role {
            Role::Datasets { tree } => Some(tree),
            _ => None,
        })
        .collect()
}

/// Opens the pool, and compares it with the model.
///
/// An import is refused if a disk fails where an intent log may continue. Then the disk is
/// repaired, and the import repeated. Nobody imports a pool without the only disk that has its
/// newest txg, if that disk is to return: the other disks would get other blocks where that txg has
/// its own.
async fn open(history: &Arc<History>, life: Option<&Life>) -> Result<Arc<Running>, String> {
    let mut devices = history.machine.devices();
    let missing = life.map_or(&[][..], |life| &life.missing);
    let names: Vec<_> = missing.iter().map(|disk| format!("d{disk}")).collect();
    devices.retain(|device| !names.contains(&device.info().path));
    for _ in missing {
        *history.tally().faults.entry("disks missing at an import").or_default() += 1;
    }
    let mut imports = 0;
    let engine = loop {
        imports += 1;
        match import(history, devices.clone()).await {
            // The next one may meet another fault of this life.
            Err(error) if error.contains(MAY_CONTINUE) && imports < IMPORTS_MAX => {
                history.machine.repair();
                history.tally().check("imports refused for a log");
            }
            Err(error) if error == GOES_BACK && imports < IMPORTS_MAX => {
                history.machine.bring_back();
                devices = history.machine.devices();
                history.tally().check("imports that waited for a disk");
            }
            imported => break imported?,
        }
    };
    spares::connect(history, &engine);
    // No view of the comparison is overtaken, however slow the disks are.
    let usual = tunables::PIN_DEADLINE_MS.get();
    set_pin_deadline(CHECK_MS)?;
    // The txg of the crash, if this is not the first import after it.
    let txg = history.model().crash_txg.unwrap_or(0);
    let (mounts, volumes) = check::after_import(history, &engine, txg).await?;
    set_pin_deadline(usual)?;
    Ok(Running::new(history, engine, mounts, volumes))
}

fn set_pin_deadline(milliseconds: u64) -> Result<(), String> {
    tunables::PIN_DEADLINE_MS.set(milliseconds).map_err(|error| error.to_string())
}

async fn import(
    history: &Arc<History>,
    devices: Vec<Arc<dyn Device>>,
) -> Result<Arc<Engine>, String> {
    let scan = scan_devices(devices.clone()).await;
    let found = scan.find("tank").map_err(|error| format!("import: {error}"))?;
    let newest = newest_txg(found);
    if found.devices.len() < history.machine.devices().len() && is_behind(history, newest).await? {
        return Err(GOES_BACK.to_owned());
    }
    // A power cut during an earlier import may have taken back a txg that no flush had covered.
    // Nothing was told of it.
    let txg = history.model().crash_txg.map_or(newest, |txg| txg.min(newest));
    history.model().crash_txg = Some(txg);
    let options = OpenOptions::default();
    let engine = Engine::open_devices(devices, found.guid(), &options).await;
    engine.map_err(|error| format!("import: {error:?}"))
}

fn newest_txg(pool: &Candidate) -> u64 {
    pool.uberblocks().iter().map(|uberblock| uberblock.txg).max().unwrap_or(0)
}

/// Whether any disk, if it works or not, has an uberblock of a newer txg.
async fn is_behind(history: &History, txg: u64) -> Result<bool, String> {
    let contents = pools::as_devices(&pools::devices(history.machine.images()));
    let scan = scan_devices(contents).await;
    let found = scan.find("tank").map_err(|error| format!("contents of disks: {error}"))?;
    Ok(newest_txg(found) > txg)
}

/// Ends the history: the whole pool is checked, exported, and checked again.
async fn close(history: &Arc<History>, running: &Running) -> Result<(), String> {
    set_pin_deadline(CHECK_MS)?;
    check::removals(history, &running.engine).await?;
    check::whole(history, &running.engine).await?;
    let rewound = check::rewind(history, &running.engine).await?;
    let engine = rewound.as_ref().unwrap_or(&running.engine);
    check::scrubbed(history, engine).await?;
    engine.export().await.map_err(|error| format!("export: {error:?}"))?;
    let pool = pools::open_read_only(history.machine.devices()).await.map_err(fail)?;
    let report = cenote_pool::leaks::check(&pool).await.map_err(fail)?;
    if !report.is_clean() {
        return Err(format!("space after the export: {:?}", report.lines()));
    }
    if history.plan.is_undamaged() && history.plan.seed.is_multiple_of(JUDGED_OF) {
        check::judge(history)?;
    }
    Ok(())
}
