//! What a pool must hold: the model that every state after a crash is compared with.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_pool::{Pool, leaks};
use cenote_rt::Rng;

/// Bytes of a block of the tests' objects.
pub(crate) const BLOCK: usize = 4096;

/// Blocks of an object: number to what was written.
pub(crate) type Content = BTreeMap<u64, u64>;

/// All datasets and snapshots by name, each with its objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct State {
    pub(crate) datasets: BTreeMap<String, BTreeMap<u64, Content>>,
}

/// The states of a run by the txg that committed them.
#[derive(Debug, Default)]
pub(crate) struct History {
    states: BTreeMap<u64, State>,
}

impl History {
    pub(crate) fn note(&mut self, txg: u64, state: &State) {
        self.states.insert(txg, state.clone());
    }

    /// What that very txg committed.
    pub(crate) fn exactly(&self, txg: u64) -> Option<&State> {
        self.states.get(&txg)
    }

    /// What a pool of that txg holds: what the last txg with a change left.
    pub(crate) fn at(&self, txg: u64) -> Option<&State> {
        self.states.range(..=txg).next_back().map(|(_, state)| state)
    }
}

/// The bytes of a block. A third compresses well, a third not at all.
pub(crate) fn bytes(number: u64, salt: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK];
    let random = match salt % 3 {
        0 => 40,
        1 => BLOCK / 2,
        _ => BLOCK,
    };
    Rng::seeded(number << 40 ^ salt).fill(&mut bytes[..random]);
    bytes
}

/// Compares a pool with what it must hold, and its space with what is reachable.
pub(crate) async fn check(pool: &Arc<Pool>, expected: &State) -> Result<(), String> {
    let fail = |error: cenote_rt::Error| format!("{error:?}");
    let mut found = Vec::new();
    for head in pool.datasets().await.map_err(fail)? {
        found.push(head.name().to_string());
        for snapshot in head.snapshots().await.map_err(fail)? {
            found.push(snapshot.name().to_string());
        }
    }
    let mut names: Vec<_> = expected.datasets.keys().cloned().collect();
    found.sort();
    names.sort();
    if found != names {
        return Err(format!("datasets {found:?}, expected {names:?}"));
    }
    for (name, objects) in &expected.datasets {
        if objects.is_empty() {
            continue;
        }
        let dataset = pool.dataset(name).await.map_err(fail)?;
        let set = dataset.open().await.map_err(fail)?;
        for (object, content) in objects {
            let dnode = set.dnode(*object).await.map_err(fail)?;
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
        }
    }
    let report = leaks::check(pool).await.map_err(fail)?;
    if report.is_clean() { Ok(()) } else { Err(format!("space: {report:?}")) }
}
