//! One case: damage made from a seed, and the result of reading the damaged pool.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use cenote_device::{Device, FileDevice, OpenMode};
use cenote_pool::Pool;
use cenote_rt::Rng;
use cenote_testkit::Golden;
use cenote_testkit::damage::Damage;
use cenote_testkit::golden;
use cenote_testkit::overlay::{Overlay, OverlayDevice};

use crate::facts::{Facts, digest, vagueness};
use crate::map::{BlockMap, Content, Stretch};
use crate::observe::{self, Opened, Scope};

/// Bytes at each end of a device that hold its labels.
const LABELS_LEN: u64 = 512 << 10;
/// Maximum failures printed per case.
const TOLD_MAX: usize = 6;

/// An undamaged pool: its images, its facts, and the map of its blocks.
pub(crate) struct Subject {
    name: String,
    images: Vec<PathBuf>,
    sizes: Vec<u64>,
    devices: Vec<Arc<dyn Device>>,
    foreign: Vec<PathBuf>,
    keys: Vec<(&'static str, Vec<u8>)>,
    reference: Facts,
    names: Vec<String>,
    map: BlockMap,
    txg: u64,
}

/// Outcome of a case.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Everything that was read is right.
    Right,
    /// Something is lost, and errors say what.
    Lost,
    /// An older state was opened, because only its labels are intact.
    Older,
    /// The pool cannot be opened, and the error says why.
    Closed,
    /// The labels are damaged so much that the pool, or one of its devices, is not found.
    Unlabelled,
}

impl Subject {
    /// Reads a golden pool completely.
    pub(crate) async fn new(golden: &Golden) -> Self {
        let images = golden.devices();
        let open = |path: &PathBuf| FileDevice::open(path, OpenMode::ReadOnly).expect("image");
        let devices: Vec<_> = images.iter().map(open).collect();
        let sizes = devices.iter().map(|device| device.info().size).collect();
        let paths: Vec<_> = devices.iter().map(|device| device.info().path.clone()).collect();
        let keys = golden.keys();
        let Opened::Pool(pool) = observe::open(&devices, golden.name()).await else {
            panic!("{} opens undamaged", golden.name());
        };
        let errors = load_keys(&pool, &keys).await;
        assert!(errors.errors().is_empty(), "{:?}", errors.errors());
        let map = BlockMap::new(&pool, &paths).await.expect("block map");
        let reference = observe::observe(&pool, Scope::All).await;
        assert!(reference.errors().is_empty(), "{}: {:?}", golden.name(), reference.errors());
        let names = observe::all_datasets(&pool).await.expect("datasets");
        Self {
            name: golden.name().to_owned(),
            foreign: foreign(golden.name()),
            names: names.iter().map(|dataset| dataset.name().to_owned()).collect(),
            txg: pool.txg(),
            images,
            sizes,
            devices,
            keys,
            reference,
            map,
        }
    }

    /// Returns the number of facts and blocks in the reference.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.reference.block_count(), self.map.blocks().len())
    }

    /// Returns the damage of a case, by device.
    pub(crate) fn damage(&self, seed: u64, case: u64) -> Vec<(usize, Damage)> {
        let mut rng = self.rng(seed, case);
        let mut damage = Vec::new();
        if case.is_multiple_of(2) {
            for _ in 0..=rng.below(3) {
                self.aim(&mut rng, &mut damage);
            }
        } else {
            for _ in 0..=rng.below(6) {
                self.strew(&mut rng, &mut damage);
            }
        }
        damage
    }

    fn rng(&self, seed: u64, case: u64) -> Rng {
        let mut words = seed.to_le_bytes().to_vec();
        words.extend(case.to_le_bytes());
        words.extend(self.name.as_bytes());
        Rng::seeded(digest(&words))
    }

    /// Damages one important block: a part of it, or all copies and parity.
    fn aim(&self, rng: &mut Rng, damage: &mut Vec<(usize, Damage)>) {
        let contents = [Content::Mos, Content::Indirect, Content::Directory, Content::SpaceMap];
        let blocks = self.map.of(contents[rng.below(4) as usize]);
        if blocks.is_empty() {
            return self.aim_at_any(rng, damage);
        }
        let block = blocks[rng.below(blocks.len() as u64) as usize];
        self.hit(&block.stretches, rng, damage);
    }

    fn aim_at_any(&self, rng: &mut Rng, damage: &mut Vec<(usize, Damage)>) {
        let blocks = self.map.blocks();
        let block = &blocks[rng.below(blocks.len() as u64) as usize];
        self.hit(&block.stretches, rng, damage);
    }

    fn hit(&self, stretches: &[Stretch], rng: &mut Rng, damage: &mut Vec<(usize, Damage)>) {
        if stretches.is_empty() {
            return;
        }
        let all = rng.below(2) == 0;
        let one = rng.below(stretches.len() as u64) as usize;
        for (index, (device, offset, len)) in stretches.iter().enumerate() {
            if all || index == one {
                let within = *offset..offset + len;
                // Only damage within the block, so that the aim counts.
                let kind = loop {
                    match Damage::random(rng, &within, self.sizes[*device], &[]) {
                        Damage::Truncate { .. } => {}
                        kind => break kind,
                    }
                };
                damage.push((*device, kind));
            }
        }
    }

    /// Adds damage in labels, in allocated space, or anywhere.
    fn strew(&self, rng: &mut Rng, damage: &mut Vec<(usize, Damage)>) {
        let device = rng.below(self.images.len() as u64) as usize;
        let size = self.sizes[device];
        let within = match rng.below(8) {
            0 => 0..LABELS_LEN,
            1 => size.saturating_sub(LABELS_LEN)..size,
            2..6 => return self.aim_at_any(rng, damage),
            _ => 0..size,
        };
        damage.push((device, Damage::random(rng, &within, size, &self.foreign)));
    }

    /// Reads the damaged pool. Returns an error text for everything that is not as it must be.
    pub(crate) async fn run(&self, seed: u64, case: u64) -> Result<Outcome, Vec<String>> {
        let damage = self.damage(seed, case);
        let mut touched = BTreeMap::new();
        let mut devices = Vec::new();
        for (index, inner) in self.devices.iter().enumerate() {
            let own: Vec<_> =
                damage.iter().filter(|(at, _)| *at == index).map(|(_, one)| one.clone()).collect();
            if own.is_empty() {
                devices.push(Arc::clone(inner));
                continue;
            }
            let overlay = Overlay::new(&self.images[index], &own);
            for sector in overlay.sectors() {
                self.map.owners_at(index, sector, &mut touched);
            }
            devices.push(Arc::new(OverlayDevice::new(Arc::clone(inner), overlay)));
        }
        let pool = match observe::open(&devices, &self.name).await {
            Opened::Pool(pool) => pool,
            Opened::NotFound => return Ok(Outcome::Unlabelled),
            Opened::Failed(error) if is_about_labels(&error) => return Ok(Outcome::Unlabelled),
            Opened::Failed(error) => {
                return match vagueness(&error) {
                    None => Ok(Outcome::Closed),
                    Some(lack) => Err(vec![format!("{lack}: opening: {error:?}")]),
                };
            }
        };
        self.look(&pool, touched, self.rng(seed, !case)).await
    }

    async fn look(
        &self,
        pool: &Arc<Pool>,
        touched: BTreeMap<(u64, u64), BTreeSet<u64>>,
        rng: Rng,
    ) -> Result<Outcome, Vec<String>> {
        let key_errors = load_keys(pool, &self.keys).await;
        let names = self.names.clone();
        let facts = observe::observe(pool, Scope::Some { touched, names, rng }).await;
        let mut failures = facts.vague(!key_errors.errors().is_empty());
        failures.extend(key_errors.vague(false));
        let is_older = pool.txg() < self.txg;
        if !is_older {
            let is_locked = !key_errors.errors().is_empty();
            let wrong = facts.wrong(&self.reference);
            let told = |text: &String| !(is_locked && text.contains("property keystatus of"));
            failures.extend(wrong.into_iter().filter(told));
        }
        if !failures.is_empty() {
            failures.truncate(TOLD_MAX);
            return Err(failures);
        }
        Ok(match facts.errors() {
            _ if is_older => Outcome::Older,
            [] => Outcome::Right,
            _ => Outcome::Lost,
        })
    }
}

/// Whether an error concerns only labels, which have no object and whose devices are all listed.
fn is_about_labels(error: &cenote_rt::Error) -> bool {
    use cenote_pool::OpenError as Cause;
    matches!(
        error.cause::<Cause>(),
        Some(
            Cause::NoUberblock { .. }
                | Cause::MissingVdevs(_)
                | Cause::MissingLog(_)
                | Cause::GuidSum { .. }
                | Cause::UnsupportedFeatures(_)
                | Cause::Version { .. }
        )
    )
}

/// Returns images of other pools, to take labels from.
fn foreign(name: &str) -> Vec<PathBuf> {
    let others = golden::all().into_iter().filter(|other| other.name() != name);
    others.filter_map(|other| other.devices().into_iter().next()).collect()
}

async fn load_keys(pool: &Arc<Pool>, keys: &[(&'static str, Vec<u8>)]) -> Facts {
    let mut facts = Facts::default();
    for (name, key) in keys {
        let Some(dataset) = facts.take(*name, pool.dataset(name).await) else { continue };
        facts.take(format!("key of {name}"), pool.load_key(&dataset, key).await);
    }
    facts
}
