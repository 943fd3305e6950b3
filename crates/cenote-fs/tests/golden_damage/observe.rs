//! Reads a pool as its users do, and records every fact and every error.
//!
//! The undamaged pool is read completely as the reference. In a damaged pool everything cheap is
//! read (labels, MOS, figures, history, names), and of the rest the objects touched by the damage
//! and a few random ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use cenote_device::Device;
use cenote_dmu::{Dnode, ObjSet, Zap};
use cenote_ondisk::object_type::ObjectType;
use cenote_pool::import::scan_devices;
use cenote_pool::props::PropValue;
use cenote_pool::verify::{Finding, Observer};
use cenote_pool::{Dataset, OpenOptions, Pool};
use cenote_rt::{BoxFuture, Error, Result, Rng};

use crate::facts::{Facts, Place};
use crate::files;

/// Bytes read of one object at one place.
const PIECE_LEN: u64 = 2 << 20;
/// Datasets and objects read in addition to those touched by the damage.
const DATASETS_BY_CHANCE: u64 = 2;
const OBJECTS_BY_CHANCE: u64 = 6;
/// One case in this many verifies the pool.
const VERIFY_EVERY: u64 = 12;

/// The part of the pool to read.
#[derive(Debug)]
pub(crate) enum Scope {
    /// Everything, completely.
    All,
    /// The touched objects, at the touched offsets, and some more.
    Some { touched: BTreeMap<Place, BTreeSet<u64>>, names: Vec<String>, rng: Rng },
}

/// Result of opening a pool.
pub(crate) enum Opened {
    /// No device has its labels.
    Pool(Arc<Pool>),
    /// Its state cannot be opened.
    NotFound,
    /// It cannot be opened.
    Failed(Error),
}

/// Finds and opens the pool called `name` on these devices.
pub(crate) async fn open(devices: &[Arc<dyn Device>], name: &str) -> Opened {
    let scan = scan_devices(devices.to_vec()).await;
    let Ok(candidate) = scan.find(name) else { return Opened::NotFound };
    match Pool::open(candidate, &OpenOptions::default()).await {
        Ok(pool) => Opened::Pool(pool),
        Err(error) => Opened::Failed(error),
    }
}

/// Returns every dataset and snapshot, with its number.
pub(crate) async fn all_datasets(pool: &Arc<Pool>) -> Result<Vec<Dataset>> {
    let mut all = Vec::new();
    for dataset in pool.datasets().await? {
        let snapshots = dataset.snapshots().await?;
        all.push(dataset);
        all.extend(snapshots);
    }
    Ok(all)
}

/// Reads `scope` of an open pool.
pub(crate) async fn observe(pool: &Arc<Pool>, mut scope: Scope) -> Facts {
    let mut facts = Facts::default();
    whole_pool(&mut facts, pool).await;
    objset(&mut facts, pool.mos(), &mut scope).await;
    if let Scope::Some { rng, .. } = &mut scope
        && rng.below(VERIFY_EVERY) == 0
    {
        verify(&mut facts, pool).await;
    }
    let names = names(&mut facts, pool).await;
    let wanted: Vec<String> = match &mut scope {
        Scope::All => names,
        Scope::Some { names, rng, .. } => {
            let mut wanted: BTreeSet<String> = BTreeSet::new();
            while wanted.len() < names.len() && (wanted.len() as u64) < DATASETS_BY_CHANCE {
                wanted.insert(names[rng.below(names.len() as u64) as usize].clone());
            }
            wanted.into_iter().collect()
        }
    };
    let mut done = BTreeSet::new();
    for name in &wanted {
        let found = pool.dataset(name).await;
        if let Some(found) = facts.take(format!("dataset {name}"), found) {
            done.insert(found.object());
            dataset(&mut facts, &found, &mut scope).await;
        }
    }
    let numbers: BTreeSet<u64> = match &scope {
        Scope::All => BTreeSet::new(),
        Scope::Some { touched, .. } => touched.keys().map(|(objset, _)| *objset).collect(),
    };
    for number in numbers.into_iter().filter(|number| *number != 0 && !done.contains(number)) {
        let found = pool.dataset_by_object(number).await;
        if let Some(found) = facts.take(format!("dataset {number}"), found) {
            dataset(&mut facts, &found, &mut scope).await;
        }
    }
    facts
}

/// Reads what belongs to no dataset.
async fn whole_pool(facts: &mut Facts, pool: &Arc<Pool>) {
    facts.see("uberblock", Ok(pool.uberblock()));
    facts.see("directory", Ok(pool.directory()));
    facts.see("config guid", Ok(pool.guid()));
    if pool.warnings().is_empty() {
        facts.see("features", Ok(pool.features()));
    }
    if let Some(history) = facts.take("history", pool.history().await)
        && history.damage.is_none()
    {
        facts.see("history", Ok(history.records));
    }
    facts.see("error log", pool.error_log().await);
    facts.see("damaged objects", pool.damaged_objects().await);
    if let Some(space) = facts.take("space", pool.space().await)
        && space.damage.is_empty()
    {
        facts.see("space", Ok(space));
    }
    // The state of devices depends on the damage; that it can be read does not.
    facts.take("status", pool.status().await);
    let props = pool.props().await;
    if let Some(props) = facts.take("pool properties", props) {
        for row in props.all() {
            // Devices may be in a worse state than before; sums without a device's part are not
            // compared.
            if row.value != PropValue::Absent && !["health", "load_guid"].contains(&&*row.name) {
                facts.see(format!("pool property {}", row.name), Ok(row));
            }
        }
    }
}

/// Verifies everything: findings must have a place.
async fn verify(facts: &mut Facts, pool: &Arc<Pool>) {
    let findings = Arc::new(Findings::default());
    let observer: Arc<dyn Observer> = findings.clone();
    let summary = cenote_pool::verify::pool(pool, observer, Arc::default()).await;
    facts.take("verify", summary);
    let findings = std::mem::take(&mut *findings.0.lock().expect("no panic"));
    for finding in findings {
        match finding {
            Finding::Part { part, .. } => assert!(!part.child.path.is_empty()),
            Finding::Lost { cause: Some(error), .. } => facts.fail("verify: lost", error),
            Finding::Lost { .. } => {}
            Finding::Unreachable(damage) => facts.fail("verify: unreachable", damage.error),
        }
    }
}

#[derive(Default)]
struct Findings(Mutex<Vec<Finding>>);

impl Observer for Findings {
    fn finding(&self, finding: Finding) -> BoxFuture<'_, ()> {
        self.0.lock().expect("no panic").push(finding);
        Box::pin(std::future::ready(()))
    }
}

/// Returns the names of all datasets, except unreadable ones.
async fn names(facts: &mut Facts, pool: &Arc<Pool>) -> Vec<String> {
    let listed = all_datasets(pool).await;
    let named = listed.map(|all| all.iter().map(|one| one.name().to_owned()).collect::<Vec<_>>());
    facts.see("names", named).unwrap_or_default()
}

async fn dataset(facts: &mut Facts, dataset: &Dataset, scope: &mut Scope) {
    let name = dataset.name();
    facts.see(format!("phys of {name}"), Ok(dataset.phys()));
    facts.see(format!("dir of {name}"), Ok(&dataset.dir().phys));
    facts.see(format!("kind of {name}"), dataset.kind().await);
    facts.see(format!("written of {name}"), dataset.written().await);
    facts.see(format!("holds of {name}"), dataset.holds().await);
    facts.see(format!("clones of {name}"), dataset.clone_names().await);
    facts.see(format!("bookmarks of {name}"), dataset.bookmarks().await);
    let origin = dataset.origin().await;
    facts.see(format!("origin of {name}"), origin.map(|one| one.map(|one| one.object())));
    if let Some(props) = facts.take(format!("properties of {name}"), dataset.props().await)
        && let Some(rows) = facts.take(format!("properties of {name}"), props.all().await)
    {
        for row in rows {
            facts.see(format!("property {} of {name}", row.name), Ok(row));
        }
    }
    let opened = dataset.open().await;
    if let Some(set) = facts.take(format!("object set of {name}"), opened) {
        let objects = objset(facts, &set, scope).await;
        files::dataset(facts, dataset, &objects).await;
    }
}

/// Reads objects; returns their numbers, with their bonus types.
async fn objset(facts: &mut Facts, set: &Arc<ObjSet>, scope: &mut Scope) -> Vec<(u64, ObjectType)> {
    let id = set.id();
    facts.see(format!("object set {id}"), Ok((set.root(), set.phys())));
    let special = [set.user_used(), set.group_used(), set.project_used()];
    let mut dnodes: Vec<Arc<Dnode>> = special.into_iter().flatten().collect();
    let (mut is_whole, mut count) = (true, 0_u64);
    let mut walk = set.dnodes(0);
    while let Some(dnode) = walk.next().await {
        match dnode {
            Ok(dnode) => {
                count += 1;
                facts.entry((id, dnode.object()), dnode.phys());
                dnodes.push(dnode);
            }
            Err(error) => {
                is_whole = false;
                facts.fail(format!("objects of {id}"), error);
            }
        }
    }
    if is_whole {
        facts.see(format!("number of objects of {id}"), Ok(count));
    }
    let mut seen = Vec::new();
    for (index, starts) in chosen(id, &dnodes, scope) {
        let dnode = &dnodes[index];
        object(facts, set, dnode, &starts).await;
        seen.push((dnode.object(), dnode.phys().bonus_type));
    }
    seen
}

/// Returns the objects to read, and the first bytes; none for everything.
fn chosen(id: u64, dnodes: &[Arc<Dnode>], scope: &mut Scope) -> Vec<(usize, Vec<u64>)> {
    let all = || (0..dnodes.len()).map(|index| (index, Vec::new())).collect();
    match scope {
        Scope::All => all(),
        // The MOS completely, because everything depends on it.
        Scope::Some { .. } if id == 0 => all(),
        Scope::Some { touched, rng, .. } => {
            let mut chosen = Vec::new();
            let by_chance: BTreeSet<u64> =
                (0..OBJECTS_BY_CHANCE).map(|_| rng.below(dnodes.len() as u64)).collect();
            for (index, dnode) in dnodes.iter().enumerate() {
                if let Some(starts) = touched.get(&(id, dnode.object())) {
                    chosen.push((index, starts.iter().take(4).copied().collect()));
                } else if by_chance.contains(&(index as u64)) {
                    chosen.push((index, vec![0]));
                }
            }
            chosen
        }
    }
}

async fn object(facts: &mut Facts, set: &Arc<ObjSet>, dnode: &Arc<Dnode>, starts: &[u64]) {
    let place = (set.id(), dnode.object());
    if let Some(spill) = facts.take(format!("spill of {place:?}"), dnode.spill().await) {
        facts.see(format!("spill of {place:?}"), Ok(spill.as_deref()));
    }
    if starts.is_empty() {
        bytes(facts, place, dnode, 0..u64::MAX).await;
    }
    for start in starts {
        let size = dnode.geometry().block_size;
        let start = start / size * size;
        bytes(facts, place, dnode, start..start.saturating_add(PIECE_LEN.max(size) / size * size))
            .await;
    }
    if dnode.phys().object_type.is_zap() {
        zap(facts, place, dnode).await;
    }
}

async fn bytes(facts: &mut Facts, place: Place, dnode: &Arc<Dnode>, range: std::ops::Range<u64>) {
    let mut stream = dnode.stream(range);
    while let Some(extent) = stream.next().await {
        match extent {
            Ok(extent) => match &extent.data {
                Some(data) => facts.block(place, extent.offset, data),
                None => facts.hole(place, extent.offset, extent.len),
            },
            Err(lost) => facts.fail(format!("{place:?} at {:#x}", lost.offset), lost.error),
        }
    }
}

async fn zap(facts: &mut Facts, place: Place, dnode: &Arc<Dnode>) {
    let name = format!("ZAP {place:?}");
    let Some(zap) = facts.take(&*name, Zap::of(Arc::clone(dnode)).await) else { return };
    let (mut is_whole, mut count) = (true, 0_u64);
    let mut entries = zap.entries();
    loop {
        match entries.next().await {
            Ok(Some(entry)) => {
                facts.entry(place, &entry);
                count += 1;
                if count.is_multiple_of(16)
                    && let Some(key) = entry.key.name()
                {
                    // The damage does not change, so a listed entry is found as it was listed.
                    match zap.lookup(key).await {
                        Ok(found) if found.as_ref() == Some(&entry.value) => {}
                        other => drop(facts.see(format!("{name}: lookup of {key:?}"), other)),
                    }
                }
            }
            Ok(None) => break,
            Err(error) => {
                is_whole = false;
                facts.fail(&*name, error);
            }
        }
    }
    if is_whole {
        facts.see(name, Ok(count));
    }
}
