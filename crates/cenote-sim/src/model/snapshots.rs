//! Snapshots of file systems that are written meanwhile.
//!
//! A snapshot has the state of each actor at one moment between the begin and the end of the
//! operation. The first comparison narrows the candidates down to the state that was found, which
//! the snapshot has from then on.

use std::collections::BTreeMap;

use super::files::{Found, Tree, is_exactly};
use super::{Actor, Verdict};

/// A snapshot of a file system.
#[derive(Debug, Clone)]
pub(crate) struct HomeSnapshot {
    /// While it is created: the number of changes that each actor had completed before.
    completed: Option<Vec<usize>>,
    /// Possible states of each actor.
    candidates: BTreeMap<usize, Vec<Tree>>,
    /// It may not exist: its creation or its destruction has not ended.
    pub(crate) is_uncertain: bool,
}

impl HomeSnapshot {
    /// Returns a snapshot whose creation begins when the actors have completed these numbers of
    /// changes.
    pub(crate) fn begun(completed: Vec<usize>) -> Self {
        Self { completed: Some(completed), candidates: BTreeMap::new(), is_uncertain: true }
    }

    /// The creation has ended, or the process.
    pub(crate) fn end(&mut self, actors: &[Actor]) {
        let Some(completed) = self.completed.take() else { return };
        let candidates =
            actors.iter().zip(completed).enumerate().map(|(number, (actor, first))| {
                let states = first..=actor.states.len();
                (number, states.map(|index| actor.states.state(index).clone()).collect())
            });
        self.candidates = candidates.collect();
    }

    /// Whether its creation has ended, so that it can be compared.
    pub(crate) fn is_known(&self) -> bool {
        self.completed.is_none() && !self.is_uncertain
    }

    /// Returns the state of an actor, once it was found.
    pub(crate) fn tree(&self, actor: usize) -> Option<&Tree> {
        match &self.candidates.get(&actor)?[..] {
            [tree] => Some(tree),
            _ => None,
        }
    }

    /// Compares what was found of an actor.
    ///
    /// # Errors
    /// The difference from the only or the last candidate.
    pub(crate) fn check(&mut self, actor: usize, found: &Found) -> Verdict {
        let Some(candidates) = self.candidates.get_mut(&actor) else { return Ok(()) };
        let mut why = String::new();
        let known = candidates.iter().position(|tree| match is_exactly(tree, found) {
            Ok(()) => true,
            Err(difference) => {
                why = difference;
                false
            }
        });
        let Some(known) = known else {
            return Err(format!("is none of {} states: {why}", candidates.len()));
        };
        candidates.swap(0, known);
        candidates.truncate(1);
        Ok(())
    }
}
