//! Changes that consist of parts: all of them are made, or none.
//!
//! ```text
//!   committed tree < layers < parts so far < part      Need: only this part is run again
//! ```
//!
//! [`Live::apply`] runs a closure again from its beginning for each block that is not in memory. A
//! change of a thousand datasets would take time with the square of their number. Here each part is
//! a closure of its own: what it changed is kept in a layer that nobody else sees, and which is
//! merged into the layer of the txg at the end. When a part needs a block, those behind it are run
//! to see what they need, and all these blocks are read at the same time.
//!
//! The mutex is held for some parts, and not for all. If anybody else changes the set meanwhile,
//! all parts start over.

use std::collections::VecDeque;
use std::sync::Arc;

use cenote_rt::lock::branch;
use cenote_rt::{Error, Kind, Result, yield_now};
use futures_util::future::join_all;

use super::alloc::Cursor;
use super::error::LiveError;
use super::layer::Layer;
use super::set::{Entry, Live, REPLACED_MAX};
use super::stop::{Missing, TxResult, TxStop};
use super::tx::Tx;
use super::view::Fetched;

/// Parts that are run under one hold of the mutex, and whose blocks are read together.
const WINDOW: usize = 16;

/// The parts that have been run.
struct Parts<T> {
    txg: u64,
    /// [`State::changes`](super::set::State::changes) when the first one began.
    changes: u64,
    layer: Layer,
    cursor: Cursor,
    values: Vec<T>,
}

/// How far a run of parts came.
enum Progress {
    /// Some parts are done.
    Some,
    /// The next part, and perhaps parts behind it, need these blocks.
    Need(Vec<Missing>),
    /// The set was changed by others.
    Overtaken,
}

impl Live {
    /// Changes the set in `txg` with `count` calls of `change`, in order: each sees what those
    /// before it did. Either all of their changes are made or, if one fails, none. Returns their
    /// values. A call may be repeated, and its value dropped.
    ///
    /// # Errors
    /// As [`apply`](Self::apply); `Kind::Busy` with [`LiveError::Restless`] if others keep changing
    /// the set.
    pub async fn apply_parts<T>(
        &self,
        txg: u64,
        count: usize,
        mut change: impl FnMut(&mut Tx<'_>, usize) -> TxResult<T>,
    ) -> Result<Vec<T>> {
        for _ in 0..REPLACED_MAX {
            let (changes, cursor) = {
                let state = self.lock();
                (state.changes, state.cursor)
            };
            let layer = Layer::default();
            let mut parts = Parts { txg, changes, layer, cursor, values: Vec::new() };
            if self.run_parts(&mut parts, count, &mut change).await? && self.make(&mut parts)? {
                return Ok(parts.values);
            }
        }
        Err(self.locate(Error::new(Kind::Busy, LiveError::Restless { txg })))
    }

    /// Runs all parts; returns false if they must start over.
    async fn run_parts<T>(
        &self,
        parts: &mut Parts<T>,
        count: usize,
        change: &mut impl FnMut(&mut Tx<'_>, usize) -> TxResult<T>,
    ) -> Result<bool> {
        let (mut fetched, mut overtaken) = (Fetched::default(), 0);
        while parts.values.len() < count {
            match self.run_window(parts, count, (&fetched, overtaken > 0), change)? {
                Progress::Overtaken => return Ok(false),
                Progress::Some => {
                    fetched.clear();
                    yield_now().await;
                }
                Progress::Need(missing) => {
                    let reads = missing.iter().map(|missing| branch(self.blocks.read(*missing)));
                    let mut read = missing.iter().zip(join_all(reads).await);
                    match read.next() {
                        Some((_, Err(error)))
                            if error.kind() == Kind::Overtaken && overtaken < REPLACED_MAX =>
                        {
                            overtaken += 1;
                        }
                        Some((_, Err(error))) => return Err(error),
                        Some((missing, Ok(block))) => drop(fetched.insert(missing.pointer, block)),
                        None => {}
                    }
                    // The error of another block is found by the part that needs it.
                    fetched.extend(
                        read.filter_map(|(missing, block)| Some((missing.pointer, block.ok()?))),
                    );
                }
            }
        }
        Ok(true)
    }

    /// Runs the next parts.
    fn run_window<T>(
        &self,
        parts: &mut Parts<T>,
        count: usize,
        (fetched, is_retry): (&Fetched, bool),
        change: &mut impl FnMut(&mut Tx<'_>, usize) -> TxResult<T>,
    ) -> Result<Progress> {
        // Before the tree is looked at.
        let since = self.since(is_retry);
        let state = self.lock();
        self.check_txg(&state, parts.txg)?;
        if state.changes != parts.changes {
            return Ok(Progress::Overtaken);
        }
        let mut below = state.layers.clone();
        let layer = Arc::new(std::mem::take(&mut parts.layer));
        below.push_back(Entry { txg: parts.txg, is_sealed: false, layer });
        let begin = parts.values.len();
        let end = count.min((begin / WINDOW + 1).saturating_mul(WINDOW));
        let mut missing: Vec<Missing> = Vec::new();
        for part in begin..end {
            let source = self.source((&below, &state.base), fetched, since);
            let mut tx = Tx::new(parts.txg, source, parts.cursor);
            match (change(&mut tx, part), missing.is_empty()) {
                (Ok(value), true) => {
                    let (overlay, cursor) = (tx.overlay, tx.cursor);
                    // Checks V6 and V8.
                    own(&mut below)
                        .and_then(|layer| layer.merge(overlay))
                        .map_err(|cause| self.broken(cause))?;
                    parts.cursor = cursor;
                    parts.values.push(value);
                }
                (Err(TxStop::Fail(error)), true) => return Err(error),
                (Err(TxStop::Need(need)), is_first) => {
                    if is_first && !tx.has_found_number {
                        // Numbers found to be allocated need not be examined again.
                        parts.cursor.next = tx.cursor.next;
                    }
                    if missing.iter().all(|missing| missing.pointer != need.pointer) {
                        missing.push(*need);
                    }
                }
                // This part is run again, above those before it.
                (_, false) => {}
            }
        }
        let layer = own(&mut below).map_err(|cause| self.broken(cause))?;
        parts.layer = std::mem::take(layer);
        Ok(if missing.is_empty() { Progress::Some } else { Progress::Need(missing) })
    }

    /// Makes the changes of all parts; returns false if somebody else has changed the set.
    fn make<T>(&self, parts: &mut Parts<T>) -> Result<bool> {
        let mut state = self.lock();
        self.check_txg(&state, parts.txg)?;
        if state.changes != parts.changes {
            return Ok(false);
        }
        self.check_sealed(&parts.layer)?;
        state.cursor = parts.cursor;
        self.merge(&mut state, parts.txg, std::mem::take(&mut parts.layer))?;
        Ok(true)
    }
}

/// The layer of the parts, above all others.
fn own(below: &mut VecDeque<Entry>) -> std::result::Result<&mut Layer, LiveError> {
    let layer = below.back_mut().and_then(|own| Arc::get_mut(&mut own.layer));
    layer.ok_or(LiveError::Layer("layer is shared"))
}
