//! The model with which every state after a crash is compared.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_pool::{Dataset, Pool, leaks};
use cenote_rt::Rng;

use super::facts::{self, Facts, INDIRECT, POOL};
use super::keys;

/// Block size of the tests' objects.
pub const BLOCK: usize = 4096;

/// Blocks of an object, by number.
pub type Content = BTreeMap<u64, u64>;

/// Features that a new pool does not have, in the order in which they are enabled.
pub const UPGRADES: [&str; 6] = [
    "hole_birth",
    "filesystem_limits",
    "embedded_data",
    "async_destroy",
    "bookmark_written",
    "zstd_compress",
];

/// All datasets and snapshots by name, each with its objects, and the facts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct State {
    /// Objects with their contents, by dataset and object number.
    pub datasets: BTreeMap<String, BTreeMap<u64, Content>>,
    /// Everything else about the pool and its datasets.
    pub facts: Facts,
    /// Other values of facts, `None` if they may end, which an operation in the background may
    /// commit at any time.
    pub unsure: BTreeMap<(String, String), Option<String>>,
    /// Whether leaves are being filled, copied from or out of service: all devices are needed, and
    /// earlier txgs may not open.
    pub is_unsettled: bool,
    /// Whether a leaf is being replaced, also by a hot spare.
    pub is_replacing: bool,
    /// Whether copies of some blocks are bad.
    pub is_damaged: bool,
}

impl State {
    /// Whether a vdev was removed.
    pub(super) fn has_removed_vdevs(&self) -> bool {
        self.facts.values().any(|fact| fact == INDIRECT)
    }
}

/// The states of a run by the txg that committed them.
#[derive(Debug, Default)]
pub struct History {
    states: BTreeMap<u64, Noted>,
    /// Txgs of imports.
    openings: BTreeSet<u64>,
}

/// A state, and the first txg that may have committed it.
#[derive(Debug)]
struct Noted {
    since: u64,
    state: State,
}

impl History {
    /// Records the state that this txg committed.
    pub fn note(&mut self, txg: u64, state: &State) {
        self.note_since(txg, txg, state);
    }

    /// Records the state that one of the txgs `since` to `txg` committed: others may be committed
    /// in the background.
    pub fn note_since(&mut self, since: u64, txg: u64, state: &State) {
        let is_same = |noted: &&Noted| {
            noted.state.datasets == state.datasets && noted.state.facts == state.facts
        };
        let before = self.states.get(&txg).filter(is_same).map_or(since, |noted| noted.since);
        self.states.insert(txg, Noted { since: since.min(before), state: state.clone() });
    }

    /// Records an import of the pool as of this txg.
    pub fn note_opening(&mut self, txg: u64) {
        self.openings.insert(txg);
    }

    /// Whether space freed in `txg` or later is not reused yet: an import does not know recent
    /// frees.
    pub fn is_whole(&self, txg: u64, newest: u64) -> bool {
        self.openings.range(txg + 1..=newest).next().is_none()
    }

    /// Returns the state that exactly this txg committed.
    pub fn exactly(&self, txg: u64) -> Option<&State> {
        self.states.get(&txg).map(|noted| &noted.state)
    }

    /// Returns the state of a pool at this txg: that of the last txg with a change.
    pub fn at(&self, txg: u64) -> Option<&State> {
        self.states.range(..=txg).next_back().map(|(_, noted)| &noted.state)
    }

    /// Returns the next state, if this txg may have committed it.
    fn next_if_possible(&self, txg: u64) -> Option<&State> {
        let next = self.states.range(txg + 1..).next().map(|(_, noted)| noted);
        next.filter(|noted| noted.since <= txg).map(|noted| &noted.state)
    }

    /// Compares a pool with its state at its txg, and its space with the reachable blocks. Returns
    /// the state.
    ///
    /// # Errors
    /// A difference.
    pub async fn check(&self, pool: &Arc<Pool>) -> Result<&State, String> {
        let state = self.at(pool.txg()).ok_or("no such state")?;
        let Err(difference) = check_contents(pool, state).await else {
            return check_space(pool).await.map(|()| state);
        };
        let next = self.next_if_possible(pool.txg()).ok_or_else(|| difference.clone())?;
        check_contents(pool, next).await.map_err(|other| format!("{difference}; or {other}"))?;
        check_space(pool).await.map(|()| next)
    }

    /// Whether leaves may lack data, or are copied from, in any of these txgs.
    pub fn is_unsettled_in(&self, txgs: RangeInclusive<u64>) -> bool {
        let first = self.at(*txgs.start()).into_iter();
        let last = self.next_if_possible(*txgs.end()).into_iter();
        let noted = self.states.range(txgs).map(|(_, noted)| &noted.state);
        first.chain(noted).chain(last).any(|state| state.is_unsettled)
    }

    /// Whether the next txg changes the pool's guid.
    pub fn is_renumbered_after(&self, txg: u64) -> bool {
        let key = (POOL.to_owned(), "guid".to_owned());
        let guid = |state: &State| state.facts.get(&key).cloned();
        let next = self.states.range(txg + 1..).next().map(|(_, noted)| guid(&noted.state));
        next.is_some_and(|next| Some(next) != self.at(txg).map(guid))
    }
}

/// Returns the bytes of a block. A third compresses well, a third not at all.
pub fn bytes(number: u64, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let random = match salt % 3 {
        0 => 40,
        1 => BLOCK / 2,
        _ => BLOCK,
    };
    Rng::seeded(number << 40 ^ salt).fill(&mut bytes[..random]);
    bytes
}

/// Compares a pool with the model, and its space with the reachable blocks.
///
/// # Errors
/// A difference.
pub async fn check(pool: &Arc<Pool>, expected: &State) -> Result<(), String> {
    check_contents(pool, expected).await?;
    check_space(pool).await
}

pub(super) async fn check_space(pool: &Arc<Pool>) -> Result<(), String> {
    let report = leaks::check(pool).await.map_err(fail)?;
    if report.is_clean() { Ok(()) } else { Err(format!("space: {report:?}")) }
}

/// Compares the contents of a pool with the model.
///
/// # Errors
/// A difference.
pub async fn check_contents(pool: &Arc<Pool>, expected: &State) -> Result<(), String> {
    let found = check_datasets(pool, expected).await?;
    check_facts(&facts::of(pool, &found).await.map_err(fail)?, expected)
}

/// Compares the datasets of a pool and their objects with the model. Returns the datasets.
///
/// # Errors
/// A difference.
pub(super) async fn check_datasets(
    pool: &Arc<Pool>,
    expected: &State,
) -> Result<Vec<Dataset>, String> {
    keys::load_all(pool).await.map_err(fail)?;
    let mut found = Vec::new();
    for head in pool.datasets().await.map_err(fail)? {
        let snapshots = head.snapshots().await.map_err(fail)?;
        found.push(head);
        found.extend(snapshots);
    }
    let mut names: Vec<_> = found.iter().map(|dataset| dataset.name().to_owned()).collect();
    names.sort();
    if !names.iter().eq(expected.datasets.keys()) {
        let wanted: Vec<_> = expected.datasets.keys().collect();
        return Err(format!("datasets {names:?}, expected {wanted:?}"));
    }
    for dataset in &found {
        for (object, content) in &expected.datasets[dataset.name()] {
            check_object(dataset, *object, content).await?;
        }
    }
    Ok(found)
}

fn check_facts(found: &Facts, state: &State) -> Result<(), String> {
    let (expected, unsure) = (&state.facts, &state.unsure);
    let differs = |key: &&(String, String)| {
        let fact = found.get(*key);
        fact != expected.get(*key) && unsure.get(*key).is_none_or(|other| other.as_ref() != fact)
    };
    match found.keys().chain(expected.keys()).find(differs) {
        None => Ok(()),
        Some(key) => {
            let (found, wanted) = (found.get(key), expected.get(key));
            Err(format!("{} {}: {found:?}, expected {wanted:?}", key.0, key.1))
        }
    }
}

/// Compares an object of a dataset with the model.
///
/// # Errors
/// A difference.
pub async fn check_object(dataset: &Dataset, object: u64, content: &Content) -> Result<(), String> {
    let set = dataset.open().await.map_err(fail)?;
    check_set(dataset.name(), &set, object, content).await
}

/// Compares an object of an object set with the model.
///
/// # Errors
/// A difference; `name` is in the message.
pub async fn check_set(
    name: &str,
    set: &Arc<ObjSet>,
    object: u64,
    content: &Content,
) -> Result<(), String> {
    let dnode = set.dnode(object).await.map_err(fail)?;
    for block in 0..dnode.block_count() {
        let found = dnode.read_block(0, block).await.map_err(fail)?;
        let is_equal = match (content.get(&block), &found) {
            (Some(salt), Some(found)) => found[..] == bytes(block, *salt)[..],
            (None, found) => found.as_ref().is_none_or(|f| f.iter().all(|b| *b == 0)),
            (Some(_), None) => false,
        };
        if !is_equal {
            return Err(format!("{name} object {object} block {block} differs"));
        }
    }
    if content.keys().next_back().is_some_and(|last| *last >= dnode.block_count()) {
        return Err(format!("{name} object {object} is too short"));
    }
    Ok(())
}

#[expect(clippy::needless_pass_by_value, reason = "as errors are mapped")]
fn fail(error: cenote_rt::Error) -> String {
    format!("{error:?}")
}
