//! Draws a plan from a seed.

use cenote_rt::Rng;

use super::{
    End, FaultPlan, FileSystemPlan, Layout, Life, Op, Plan, Role, Step, TaskPlan, VolumePlan,
};
use crate::disks::Fault;

/// Bytes of a slot of a volume.
pub(crate) const SLOT: u64 = 64 << 10;
/// Actors of a volume: each has every n-th slot.
pub(crate) const VOLUME_ACTORS: usize = 2;
/// Makes another seed of the seed of a plan.
const THROTTLE_SEED: u64 = 0x7468_726f_7474_6c65;
const ALLOCATOR_SEED: u64 = 0x616c_6c6f_6361_746f;
const REMOVAL_SEED: u64 = 0x7265_6d6f_7661_6c73;
const TUNING_SEED: u64 = 0x7475_6e69_6e67_7321;
const SPLIT_SEED: u64 = 0x7370_6c69_7473_2121;
const ENCRYPTION_SEED: u64 = 0x656e_6372_7970_7421;
const GROWTH_SEED: u64 = 0x6c6f_6e67_6572_2121;
const BESIDE_SEED: u64 = 0x6265_7369_6465_2121;
const SPARE_SEED: u64 = 0x7370_6172_6573_2121;
const ALLOCATING_SEED: u64 = 0x616c_6c6f_6361_7465;
/// Lives of a history at most.
const LIVES_MAX: u64 = 4;
/// Lengths and offsets in files, in the order of their probability.
const SIZES: [u64; 4] = [600, 9_000, 70_000, 300_000];

/// Faults of the disks of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FaultKind {
    /// The disks report everything that they lose.
    Reported,
    /// All faults.
    Any,
}

/// Draws the plan of a seed.
pub(crate) fn draw(seed: u64) -> Plan {
    let mut rng = Rng::seeded(seed);
    let layout = Layout::draw(&mut rng);
    let mut tunables = tunables(&mut rng);
    // Of its own generator, so that the rest of a seed's plan stays as it was without throttles.
    tunables.extend(throttle(&mut Rng::seeded(seed ^ THROTTLE_SEED)));
    tunables.extend(allocator(&mut Rng::seeded(seed ^ ALLOCATOR_SEED)));
    let mut file_systems: Vec<_> = (0..=rng.below(2)).map(|_| file_system(&mut rng)).collect();
    let mut volumes: Vec<_> = (0..rng.below(2)).map(|_| volume(&mut rng)).collect();
    let mut encryption = Rng::seeded(seed ^ ENCRYPTION_SEED);
    for of in &mut file_systems {
        of.is_encrypted = encrypt(&mut of.properties, &mut encryption);
    }
    for of in &mut volumes {
        of.is_encrypted = encrypt(&mut of.properties, &mut encryption);
    }
    let processors = 1 + rng.below(4) as usize;
    let interleave = (rng.below(2) == 0).then(|| rng.next_u64());
    let mut plan = Plan {
        seed,
        processors,
        has_costs: rng.below(4) != 0,
        interleave,
        layout,
        tunables,
        file_systems,
        volumes,
        lives: Vec::new(),
    };
    let lives = 2 + rng.below(LIVES_MAX - 1);
    let is_faulty = !plan.layout.victims.is_empty() && rng.below(4) != 0;
    let kind = match rng.below(3) {
        _ if !is_faulty => None,
        0 => Some(FaultKind::Reported),
        _ => Some(FaultKind::Any),
    };
    plan.lives = (0..lives).map(|_| life(&plan, kind, &mut rng)).collect();
    let mut rng = Rng::seeded(seed ^ REMOVAL_SEED);
    if rng.below(2) == 0 {
        plan.tunables.extend(removal_tunables(&mut rng));
        for life in &mut plan.lives {
            life.tasks.extend(removals(&plan.layout, &mut rng));
        }
    }
    let mut rng = Rng::seeded(seed ^ TUNING_SEED);
    for life in &mut plan.lives {
        life.tasks.extend(tuning(kind, &mut rng));
    }
    let mut rng = Rng::seeded(seed ^ SPLIT_SEED);
    if rng.below(2) == 0 {
        // Mappings of removed vdevs are small here.
        plan.tunables.push(("zfs_condense_min_mapping_bytes".to_owned(), 0));
    }
    if plan.layout.name.contains("mirror") {
        for life in &mut plan.lives {
            life.tasks.extend(splits(&mut rng));
        }
    }
    let mut rng = Rng::seeded(seed ^ GROWTH_SEED);
    for life in &mut plan.lives {
        life.tasks.extend(growth(&plan.layout, &mut rng));
    }
    let mut rng = Rng::seeded(seed ^ BESIDE_SEED);
    for life in &mut plan.lives {
        let task = beside_splits(life, &mut rng);
        life.tasks.extend(task);
    }
    let mut rng = Rng::seeded(seed ^ SPARE_SEED);
    if rng.below(3) == 0 && !plan.layout.name.contains("draid") {
        plan.layout.hot_spares = 1 + rng.below(2) as usize;
        for life in &mut plan.lives {
            if rng.below(3) != 0 {
                life.tasks.push(TaskPlan { role: Role::SpareAgent, steps: Vec::new() });
            }
            life.tasks.extend(spares(&mut rng));
        }
    }
    let mut rng = Rng::seeded(seed ^ ALLOCATING_SEED);
    for life in &mut plan.lives {
        life.tasks.extend(allocating(&plan.layout, &mut rng));
    }
    plan
}

fn tunables(rng: &mut Rng) -> Vec<(String, u64)> {
    let mut chosen = Vec::new();
    let mut maybe = |name: &str, one_in, values: &[u64]| {
        if rng.below(one_in) == 0 {
            chosen.push((name.to_owned(), values[rng.below(values.len() as u64) as usize]));
        }
    };
    // Freed space is reused as soon as possible.
    maybe("metaslab_df_alloc_threshold", 3, &[1 << 40]);
    maybe("cenote_metaslab_by_size_min", 3, &[0]);
    maybe("metaslab_force_ganging", 3, &[2048, 20_000]);
    maybe("metaslab_force_ganging_pct", 3, &[4, 30]);
    maybe("zfs_arc_max", 2, &[1 << 20, 3 << 20]);
    maybe("zfs_txg_timeout", 3, &[1, 30]);
    maybe("zfs_dirty_data_max", 2, &[1 << 20, 4 << 20]);
    maybe("metaslab_unload_delay", 3, &[0, 2]);
    maybe("metaslab_unload_delay_ms", 3, &[0]);
    maybe("zfs_immediate_write_sz", 4, &[512, 4096]);
    maybe("zil_maxblocksize", 4, &[4096, 16_384]);
    maybe("zfs_sync_pass_rewrite", 6, &[1, 8]);
    maybe("zfs_unflushed_log_txg_max", 4, &[2, 5]);
    maybe("zfs_unflushed_log_block_max", 4, &[1, 3]);
    maybe("zfs_metaslab_condense_pct", 5, &[101]);
    maybe("zfs_async_block_max_blocks", 4, &[1, 20]);
    maybe("zfs_initialize_chunk_size", 2, &[65_536]);
    maybe("cenote_pin_deadline_ms", 2, &[10, 1000]);
    maybe("zfs_prefetch_disable", 4, &[1]);
    maybe("zfs_vdev_aggregation_limit", 4, &[0, 16_384]);
    maybe("cenote_unflushed_max", 4, &[1 << 20]);
    maybe("cenote_scan_round_bytes", 2, &[65_536, 1 << 20]);
    chosen
}

/// Returns how scans are throttled.
fn throttle(rng: &mut Rng) -> Vec<(String, u64)> {
    let mut chosen = vec![("cenote_scan_throttle".to_owned(), rng.below(3))];
    let mut maybe = |name: &str, values: &[u64]| {
        if rng.below(3) == 0 {
            chosen.push((name.to_owned(), values[rng.below(values.len() as u64) as usize]));
        }
    };
    maybe("zfs_scrub_delay", &[0, 1, 20]);
    maybe("zfs_resilver_delay", &[0, 1, 20]);
    maybe("zfs_top_maxinflight", &[1, 2]);
    maybe("zfs_scan_min_time_ms", &[0, 50]);
    maybe("cenote_scrub_slowdown_pct", &[1, 200]);
    maybe("cenote_scrub_min_rate", &[0, 1 << 30]);
    chosen
}

/// Returns which free ranges are taken.
fn allocator(rng: &mut Rng) -> Option<(String, u64)> {
    let policy = rng.below(6);
    (1..3).contains(&policy).then(|| ("cenote_allocator".to_owned(), policy))
}

fn removal_tunables(rng: &mut Rng) -> Vec<(String, u64)> {
    let mut chosen = Vec::new();
    let mut maybe = |name: &str, values: &[u64]| {
        if rng.below(2) == 0 {
            chosen.push((name.to_owned(), values[rng.below(values.len() as u64) as usize]));
        }
    };
    // Many batches, so that a life ends between two of them.
    maybe("cenote_removal_batch_bytes", &[65_536, 1 << 20]);
    maybe("zfs_remove_max_segment", &[16_384, 1 << 20]);
    maybe("vdev_removal_max_span", &[512, 1 << 20]);
    maybe("raidz_expand_max_copy_bytes", &[1 << 20]);
    chosen
}

/// Returns a task that adds and removes vdevs, or expands them.
fn removals(layout: &Layout, rng: &mut Rng) -> Option<TaskPlan> {
    if rng.below(3) == 0 {
        return None;
    }
    let is_raidz = layout.name.contains("raidz");
    let op = |rng: &mut Rng| match rng.below(8) {
        1..8 if is_raidz => Op::Expand { with: number(rng) },
        0..3 => Op::AddVdev { with: number(rng) },
        3..7 => Op::RemoveVdev { vdev: number(rng) },
        _ => Op::CancelRemoval,
    };
    let steps = (0..=rng.below(8)).map(|_| Step { pause: 4 * pause(rng), op: op(rng) });
    Some(TaskPlan { role: Role::Operator, steps: steps.collect() })
}

/// Returns a task that sets which vdevs get new blocks: the only one of its life.
fn allocating(layout: &Layout, rng: &mut Rng) -> Option<TaskPlan> {
    if rng.below(3) != 0 || layout.name.contains("raid") {
        return None;
    }
    let op = |rng: &mut Rng| Op::SetAllocating { vdev: number(rng), is_on: rng.below(5) < 2 };
    let steps = (0..=rng.below(8)).map(|_| Step { pause: 4 * pause(rng), op: op(rng) });
    Some(TaskPlan { role: Role::Operator, steps: steps.collect() })
}

/// Returns a task that splits the pool, and gives its mirrors other sides before and afterwards.
fn splits(rng: &mut Rng) -> Option<TaskPlan> {
    if rng.below(3) != 0 {
        return None;
    }
    let op = |rng: &mut Rng| match rng.below(5) {
        0 | 1 => Op::Attach { disk: number(rng), with: number(rng) },
        _ => Op::Split { side: number(rng) },
    };
    let steps = (0..=rng.below(6)).map(|_| Step { pause: 4 * pause(rng), op: op(rng) });
    Some(TaskPlan { role: Role::Operator, steps: steps.collect() })
}

/// Returns a task that changes the state of leaves beside the splits of a life.
fn beside_splits(life: &Life, rng: &mut Rng) -> Option<TaskPlan> {
    let is_split =
        |task: &TaskPlan| task.steps.iter().any(|step| matches!(step.op, Op::Split { .. }));
    if !life.tasks.iter().any(is_split) || rng.below(2) == 0 {
        return None;
    }
    let op = |rng: &mut Rng| match rng.below(12) {
        0 | 1 => Op::Offline { disk: number(rng) },
        2 | 3 => Op::Online { disk: number(rng) },
        4 | 5 => Op::Fault { disk: number(rng), is_temporary: rng.below(2) == 0 },
        6 | 7 => Op::Clear,
        8 => Op::Detach { disk: number(rng) },
        9 => Op::Attach { disk: number(rng), with: number(rng) },
        _ => Op::Replace { disk: number(rng), with: number(rng) },
    };
    let steps = (0..=rng.below(24)).map(|_| Step { pause: pause(rng), op: op(rng) });
    Some(TaskPlan { role: Role::Operator, steps: steps.collect() })
}

/// Returns a task that makes disks longer, and calls in distributed spares and sends them back.
fn growth(layout: &Layout, rng: &mut Rng) -> Option<TaskPlan> {
    if rng.below(3) != 0 {
        return None;
    }
    let has_spare = layout.name.contains("draid");
    let op = |rng: &mut Rng| match rng.below(6) {
        1..6 if has_spare => Op::Spare { disk: number(rng) },
        0..3 => Op::Grow { disk: number(rng), is_of_all: false },
        _ => Op::Grow { disk: number(rng), is_of_all: true },
    };
    let steps = (0..=rng.below(5)).map(|_| Step { pause: 4 * pause(rng), op: op(rng) });
    Some(TaskPlan { role: Role::Operator, steps: steps.collect() })
}

/// Returns a task that calls in hot spares, sends them back and keeps them, adds and removes them;
/// disks that may have faults fail.
fn spares(rng: &mut Rng) -> Option<TaskPlan> {
    if rng.below(5) == 0 {
        return None;
    }
    let op = |rng: &mut Rng| match rng.below(20) {
        0..4 => Op::Fault { disk: number(rng), is_temporary: rng.below(2) == 0 },
        4..6 => Op::CallInSpare { disk: number(rng) },
        6..9 => Op::ReplaceBySpare { disk: number(rng), spare: number(rng) },
        9..11 => Op::SendBackSpare { spare: number(rng) },
        11..13 => Op::KeepSpare { spare: number(rng) },
        13..15 => Op::ReplaceSpared { spare: number(rng), with: number(rng) },
        15 | 16 => Op::Online { disk: number(rng) },
        17 | 18 => Op::AddSpare { with: number(rng) },
        _ => Op::RemoveSpare { spare: number(rng) },
    };
    let steps = (0..=rng.below(20)).map(|_| Step { pause: pause(rng), op: op(rng) });
    Some(TaskPlan { role: Role::Operator, steps: steps.collect() })
}

/// Returns a task that changes throttles of scans and, where disks may have faults, injects faults.
fn tuning(faults_of: Option<FaultKind>, rng: &mut Rng) -> Option<TaskPlan> {
    if rng.below(2) == 0 {
        return None;
    }
    let steps =
        (0..=rng.below(12)).map(|_| Step { pause: pause(rng), op: tuning_op(faults_of, rng) });
    Some(TaskPlan { role: Role::Operator, steps: steps.collect() })
}

fn tuning_op(faults_of: Option<FaultKind>, rng: &mut Rng) -> Op {
    let disk = number(rng);
    let most = if faults_of.is_some() { 16 } else { 6 };
    match rng.below(most) {
        0 | 1 => Op::Scrub,
        2..6 => {
            Op::Throttle { model: rng.below(3) as u8, delay: [0, 1, 4, 100][rng.below(4) as usize] }
        }
        6..11 => Op::Inject {
            disk,
            effect: rng.below(6) as u8,
            percent: [5, 30, 100][rng.below(3) as usize],
        },
        11 | 12 => Op::CancelInjections,
        13 | 14 => Op::ErrorRates { disk, count: [1, 3, 100][rng.below(3) as usize] },
        _ => Op::Clear,
    }
}

/// Properties that data of any kind has.
fn properties(rng: &mut Rng) -> Vec<(String, u64)> {
    let mut chosen = Vec::new();
    let mut maybe = |name: &str, one_in, values: &[u64]| {
        if rng.below(one_in) == 0 {
            chosen.push((name.to_owned(), values[rng.below(values.len() as u64) as usize]));
        }
    };
    // off, lz4, gzip-6.
    maybe("compression", 2, &[2, 15, 10]);
    // fletcher4, sha256, blake3.
    maybe("checksum", 3, &[7, 8, 14]);
    maybe("copies", 4, &[2, 3]);
    maybe("logbias", 4, &[1]);
    // always, disabled.
    maybe("sync", 5, &[1, 2]);
    maybe("redundant_metadata", 5, &[1, 2, 3]);
    chosen
}

/// Returns whether a dataset with these properties is encrypted.
fn encrypt(properties: &mut [(String, u64)], rng: &mut Rng) -> bool {
    let is_encrypted = rng.below(3) == 0;
    // There is no room for a third copy in the pointers of encrypted blocks.
    let copies = properties.iter_mut().find(|(name, _)| name == "copies").filter(|_| is_encrypted);
    if let Some((_, copies)) = copies {
        *copies = 2;
    }
    is_encrypted
}

fn file_system(rng: &mut Rng) -> FileSystemPlan {
    let mut properties = properties(rng);
    if rng.below(2) == 0 {
        properties.push(("recordsize".to_owned(), [4096, 16_384, 131_072][rng.below(3) as usize]));
    }
    // dir, sa.
    properties.push(("xattr".to_owned(), 1 + rng.below(2)));
    let rolls_back = rng.below(4) == 0;
    let actors = if rolls_back { 1 } else { 1 + rng.below(3) as usize };
    FileSystemPlan { properties, actors, rolls_back, is_encrypted: false }
}

fn volume(rng: &mut Rng) -> VolumePlan {
    let block_size = [4096, 16_384, 65_536, 131_072][rng.below(4) as usize];
    let slots = 2 * (4 + rng.below(8));
    VolumePlan { properties: properties(rng), block_size, slots, is_encrypted: false }
}

fn life(plan: &Plan, faults_of: Option<FaultKind>, rng: &mut Rng) -> Life {
    let mut tasks = Vec::new();
    for (number, file_system) in plan.file_systems.iter().enumerate() {
        if file_system.rolls_back {
            tasks.push(task(Role::Home { file_system: number }, 60, rng));
            continue;
        }
        for actor in 0..file_system.actors {
            if rng.below(4) != 0 {
                tasks.push(task(Role::Files { file_system: number, actor }, 60, rng));
            }
        }
        if rng.below(3) != 0 {
            tasks.push(task(Role::Snapshots { file_system: number }, 12, rng));
        }
    }
    for volume in 0..plan.volumes.len() {
        for actor in 0..VOLUME_ACTORS {
            if rng.below(4) != 0 {
                tasks.push(task(Role::Volume { volume, actor }, 40, rng));
            }
        }
    }
    for tree in 0..rng.below(3) as usize {
        tasks.push(task(Role::Datasets { tree }, 40, rng));
    }
    for _ in 0..rng.below(3) {
        tasks.push(task(Role::Reader, 15, rng));
    }
    tasks.push(task(Role::Operator, 20, rng));
    let end = [End::Export, End::ForcedClose, End::Kill, End::Kill, End::PowerCut, End::PowerCut];
    let end = end[rng.below(end.len() as u64) as usize];
    // Often before the tasks are done.
    let longest = [300, 2_000, 8_000, 30_000][rng.below(4) as usize];
    let end_at = rng.below(longest);
    let mut faults = Vec::new();
    for _ in 0..rng.below(3) {
        let disk = rng.below(plan.layout.disks() as u64) as usize;
        let fault = harmless_fault(rng);
        faults.push(FaultPlan { at: rng.below(end_at + 1), disk, fault });
    }
    let victims = &plan.layout.victims;
    if let Some(kind) = faults_of {
        for _ in 0..rng.below(6) {
            let disk = victims[rng.below(victims.len() as u64) as usize];
            faults.push(FaultPlan { at: rng.below(end_at + 1), disk, fault: fault(kind, rng) });
        }
    }
    faults.sort_by_key(|fault| fault.at);
    let gap = [0, 1, 3_600, 1_000_000][rng.below(4) as usize];
    let jump = [0, 0, 86_400, -7_200][rng.below(4) as usize];
    let clock = (0..rng.below(6).saturating_sub(3)).map(|_| {
        let seconds = [1, 40, 3_600, 500_000][rng.below(4) as usize];
        (rng.below(end_at + 1), if rng.below(2) == 0 { seconds } else { -seconds })
    });
    let clock = clock.collect();
    let may_miss = faults_of.is_some() && rng.below(4) == 0;
    let missing = victims.iter().copied().filter(|_| may_miss && rng.below(2) == 0).collect();
    let may_end_in_commit = matches!(end, End::Kill | End::PowerCut) && rng.below(2) == 0;
    let writes = [30, 100, 400][rng.below(3) as usize];
    let end_at_label = may_end_in_commit.then(|| rng.below(writes));
    Life { tasks, faults, missing, clock, end, end_at, end_at_label, gap, jump }
}

/// A fault that any disk may have.
fn harmless_fault(rng: &mut Rng) -> Fault {
    match rng.below(8) {
        0..4 => Fault::Slow(1 + rng.below(8) as u32),
        // Longer than OpenZFS's limits for a device that hangs, 300 s in its usual settings.
        4 | 5 => Fault::Hang([40, 320, 500][rng.below(3) as usize]),
        _ => Fault::Sluggish([3, 20, 100][rng.below(3) as usize]),
    }
}

fn fault(kind: FaultKind, rng: &mut Rng) -> Fault {
    let few = |rng: &mut Rng| 1 + rng.below(4) as u32;
    let number = match kind {
        FaultKind::Reported => [0, 1, 8, 9, 10][rng.below(5) as usize],
        FaultKind::Any => rng.below(14),
    };
    match number {
        0 | 1 => Fault::Latent,
        2 | 3 => Fault::Rot,
        4 => Fault::LostWrites(few(rng)),
        5 => Fault::MisdirectedWrites(few(rng)),
        6 => Fault::TornWrites(few(rng)),
        7 => Fault::LyingFlushes(few(rng) * 4),
        8 => Fault::FailingWrites(few(rng)),
        9 => Fault::FailingFlushes(few(rng)),
        10 => Fault::Outage(few(rng) * 10),
        11 => Fault::Reset(few(rng) * 2),
        _ => Fault::Gone { is_old: rng.below(2) == 0 },
    }
}

fn task(role: Role, most: u64, rng: &mut Rng) -> TaskPlan {
    let count = 1 + rng.below(most);
    let steps = (0..count).map(|_| Step { pause: pause(rng), op: op(role, rng) }).collect();
    TaskPlan { role, steps }
}

fn pause(rng: &mut Rng) -> u32 {
    let most = match rng.below(20) {
        0..8 => 1,
        8..14 => 500,
        14..19 => 20_000,
        // Long enough for the timeout of a txg.
        _ => 8_000_000,
    };
    rng.below(most) as u32
}

fn op(role: Role, rng: &mut Rng) -> Op {
    match role {
        Role::Files { .. } => file_op(rng),
        Role::Home { .. } => match rng.below(14) {
            0 => Op::RollbackMount,
            1 | 2 => snapshot(rng),
            3 => Op::DestroySnapshot { snapshot: number(rng), is_deferred: false },
            _ => file_op(rng),
        },
        Role::Volume { .. } => volume_op(rng),
        Role::Datasets { .. } => dataset_op(rng),
        Role::Snapshots { .. } => match rng.below(5) {
            0..3 => snapshot(rng),
            _ => Op::DestroySnapshot { snapshot: number(rng), is_deferred: false },
        },
        Role::Reader => reader_op(rng),
        Role::Operator | Role::SpareAgent => operator_op(rng),
    }
}

fn number(rng: &mut Rng) -> u32 {
    rng.next_u64() as u32
}

fn size(rng: &mut Rng) -> u32 {
    let max = SIZES[rng.below(12).saturating_sub(8).min(3) as usize];
    let size = rng.below(max);
    (if rng.below(3) == 0 { size & !511 } else { size }) as u32
}

fn snapshot(rng: &mut Rng) -> Op {
    let number_of = rng.below(1 << 16) as u16;
    Op::Snapshot { head: number(rng), number: number_of, is_of_all: rng.below(5) == 0 }
}

fn file_op(rng: &mut Rng) -> Op {
    let (file, dir, name) = (number(rng), number(rng), rng.below(6) as u8);
    match rng.below(60) {
        0..10 => Op::Create { dir, name, kind: rng.below(8) as u8 },
        10..12 => Op::Link { file, dir, name },
        12..15 => Op::Remove { entry: file },
        15..18 => Op::Rename { entry: file, dir, name },
        18 => Op::Exchange { entry: file, other: dir },
        19..32 => Op::Write {
            file,
            offset: size(rng),
            len: size(rng) + 1,
            is_append: rng.below(4) == 0,
            is_sync: rng.below(8) == 0,
        },
        32..34 => Op::Truncate { file, size: size(rng) },
        34..36 => {
            Op::Punch { file, offset: size(rng), len: size(rng) + 1, extends: rng.below(2) == 0 }
        }
        36..39 => Op::SetXattr { file, name: rng.below(4) as u8, len: rng.below(400) as u16 },
        39 => Op::RemoveXattr { file, name: rng.below(4) as u8 },
        40..42 => Op::Chmod { file, mode: rng.below(0o1000) as u16 },
        42..46 => Op::Read { file, offset: size(rng), len: size(rng) + 1 },
        46 => Op::List { dir },
        47..55 => Op::Fsync { file },
        55 => Op::SyncFs,
        56..58 => Op::Hold { file },
        _ => Op::Release,
    }
}

fn volume_op(rng: &mut Rng) -> Op {
    let slot = number(rng);
    let unit = [1, 512, 4096, 16_384][rng.below(4) as usize];
    let offset = rng.below(SLOT / unit) * unit;
    let len = (1 + rng.below((SLOT - offset) / unit)) * unit;
    let len = if rng.below(3) == 0 { len } else { len.min(4 * unit.max(512)).min(SLOT - offset) };
    let (offset, len) = (offset as u32, len as u32);
    match rng.below(20) {
        0..11 => Op::VolumeWrite { slot, offset, len, is_fua: rng.below(4) == 0 },
        11 | 12 => Op::VolumeZero { slot, offset, len, no_hole: rng.below(2) == 0 },
        13 | 14 => Op::VolumeDiscard { slot, offset, len },
        15 | 16 => Op::VolumeRead { slot, offset, len },
        _ => Op::VolumeFlush,
    }
}

fn dataset_op(rng: &mut Rng) -> Op {
    let (which, new) = (number(rng), rng.below(1 << 16) as u16);
    match rng.below(52) {
        44..48 => Op::Receive {
            snapshot: which,
            number: new,
            records: records(rng),
            is_compressed: rng.below(2) == 0,
        },
        48.. => Op::ReceiveIncrement {
            snapshot: which,
            records: records(rng),
            is_compressed: rng.below(2) == 0,
        },
        40 => Op::AllowCreators { which: rng.below(4) as u8 },
        41.. => Op::CreateDatasetAs { number: new, user: rng.below(3) as u8 },
        0..10 => Op::Fill { head: which, block: number(rng), count: 1 + rng.below(20) as u8 },
        10..13 => Op::CreateDataset { number: new },
        13 => Op::DestroyDataset { head: which },
        14..19 => snapshot(rng),
        19..22 => Op::DestroySnapshot { snapshot: which, is_deferred: rng.below(3) == 0 },
        22..25 => Op::Clone { snapshot: which, number: new },
        25 | 26 => Op::Promote { clone: which },
        27 => Op::Rollback { head: which },
        28 => Op::RenameDataset { head: which, number: new },
        29 => Op::RenameSnapshot { snapshot: which, number: new },
        30 => Op::HoldSnapshot { snapshot: which },
        31 => Op::ReleaseSnapshot { snapshot: which },
        32 | 33 => Op::Bookmark { snapshot: which, number: new },
        34 => Op::DestroyBookmark { bookmark: which },
        35 | 36 => {
            Op::Property { head: which, which: rng.below(4) as u8, value: rng.below(8) as u8 }
        }
        _ => Op::ReadDataset { which },
    }
}

/// After how many records a receive is given up: mostly never.
fn records(rng: &mut Rng) -> u16 {
    if rng.below(6) == 0 { rng.below(30) as u16 } else { u16::MAX }
}

fn reader_op(rng: &mut Rng) -> Op {
    let (file_system, snapshot) = (number(rng), number(rng));
    let seconds = [1, 8, 30, 90][rng.below(4) as usize];
    match rng.below(26) {
        20 | 21 => Op::KeepView { file_system, seconds },
        22..24 => Op::SlowList { file_system, actor: number(rng), dir: number(rng), seconds },
        24.. => Op::SlowDiff { file_system, snapshot, other: number(rng), seconds },
        0..5 => Op::View { file_system, keep: rng.below(400) as u16 },
        5..11 => Op::Peek {
            file_system,
            actor: number(rng),
            file: number(rng),
            offset: size(rng),
            len: size(rng) + 1,
        },
        11 => Op::ListPool,
        12 => Op::Verify,
        13 => Op::Leaks,
        14..18 => Op::OpenSnapshot { file_system, snapshot },
        _ => Op::Diff { file_system, snapshot, other: number(rng) },
    }
}

fn operator_op(rng: &mut Rng) -> Op {
    let disk = number(rng);
    match rng.below(48) {
        42..44 => Op::Replace { disk, with: number(rng) },
        44 | 45 => Op::Attach { disk, with: number(rng) },
        46.. => Op::Detach { disk },
        34..37 => Op::Scrub,
        37..40 => Op::Resilver,
        40 => Op::PauseScrub,
        41 => Op::StopScan,
        30..34 => Op::LimitCache { mib: [1, 1, 2, 64][rng.below(4) as usize] },
        0..14 => Op::Sync,
        14..19 => Op::DropCache,
        19 | 20 => Op::Offline { disk },
        21 | 22 => Op::Online { disk },
        23 | 24 => Op::Clear,
        25 => Op::Checkpoint,
        26 | 27 => Op::DiscardCheckpoint,
        28 => Op::Trim,
        _ => Op::Initialize { disk },
    }
}
