//! Reading RAID-Z and dRAID: columns, parity, and the search for what is wrong.
//!
//! 1. The data columns are read; if they verify, that is all.
//! 2. If some could not be read, the parity is read and they are computed.
//! 3. If the whole still does not verify, something lies. Everything else there is is read, and
//!    the block is computed again and again, each time without another set of up to `nparity`
//!    children, until it verifies: those children, or some of them, gave wrong bytes.
//!
//! A scrub begins with everything. Once the block is known, so is every byte that any column
//! should have, and each copy of each is compared with it (spec 06 §4.6).
//!
//! Invariants
//! * S1  One read per child and block, unless its parts are far apart or a read fails.
//! * S2  In no try are more than `nparity` columns of a row dead.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError};

use cenote_codec::parity;
use cenote_rt::{Buf, BufMut, tunables, yield_now};
use futures_util::future::join_all;

use super::{Ask, Fail, Fetched, Job, Piece};
use crate::leaf::Freshness;
use crate::map::{Column, ColumnId, Map};
use crate::verdict::Cause;

/// Tries after which the search lets other tasks run.
const TRIES_PER_TURN: u64 = 32;

/// Columns of one child that are read as one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) child: usize,
    pub(super) offset: i64,
    pub(super) len: usize,
    /// The columns, and where in the run each begins.
    parts: Vec<(ColumnId, usize)>,
}

/// The reads for the wanted columns of a map: neighbours on one child together (S1).
pub(super) fn runs(map: &Map, wanted: impl Fn(ColumnId, &Column) -> bool) -> Vec<Run> {
    let gap = tunables::READ_GAP_LIMIT.get() as i64;
    let mut columns: Vec<_> = map.columns().filter(|(id, column)| wanted(*id, column)).collect();
    if map.rows.len() > 1 {
        columns.sort_by_key(|(_, column)| (column.child, column.offset));
    }
    let mut runs: Vec<Run> = Vec::with_capacity(columns.len());
    for (id, column) in columns {
        let &Column { child, offset, len, .. } = column;
        match runs.last_mut() {
            Some(run)
                if run.child == child
                    && offset >= run.offset + run.len as i64
                    && offset - (run.offset + run.len as i64) <= gap =>
            {
                let start = (offset - run.offset) as usize;
                run.parts.push((id, start));
                run.len = start + len;
            }
            _ => runs.push(Run { child, offset, len, parts: vec![(id, 0)] }),
        }
    }
    runs
}

/// What is known of one column.
#[derive(Debug, Default)]
struct Cell {
    is_asked: bool,
    /// What children gave, the preferred copy first; empty if it was asked for in vain.
    copies: Vec<Piece>,
}

/// A block on its way.
struct Stripes<'m> {
    map: &'m Map,
    /// By row and column, as in the map.
    cells: Vec<Vec<Cell>>,
}

/// Which of the children are taken as dead in a try, and which copy of the others counts.
#[derive(Debug, Default)]
struct Guess {
    dead: Vec<usize>,
    /// Number of the copy by child; 0 where not named.
    copy: BTreeMap<usize, usize>,
}

impl Job<'_> {
    pub(super) async fn fetch_stripes(&self, vdev: usize, ask: Ask<'_>) -> Fetched {
        let map = self.map(vdev, ask).ok_or(Fail::Absent)?;
        let mut stripes = Stripes::new(&map);
        let children = &self.tree.vdevs[vdev].children;
        let freshness = |column: &Column| match children.get(column.child) {
            Some(child) => self.tree.freshness(*child, self.birth),
            None => Freshness::Absent,
        };
        let is_fresh = |column: &Column| freshness(column) == Freshness::Fresh;
        let accepts = |data: &[u8]| ask.accepts(data, self.psize);
        if ask.is_scrub {
            self.fill(vdev, &mut stripes, ask, true, |_, column| is_fresh(column)).await;
        } else {
            let is_data = |_, column: &Column| column.data_len > 0 && is_fresh(column);
            self.fill(vdev, &mut stripes, ask, false, is_data).await;
            if let Some(data) = stripes.single().filter(|data| accepts(data)) {
                return Ok(Piece { data, from: None, is_fresh: true });
            }
            let lacking = stripes.lacking_rows();
            let is_parity = |id: ColumnId, column: &Column| lacking[id.row] && is_fresh(column);
            self.fill(vdev, &mut stripes, ask, false, is_parity).await;
        }
        if let Some(data) = stripes.solve(&Guess::default()).filter(|data| accepts(data)) {
            self.audit(&stripes, &data, ask.is_scrub);
            return Ok(Piece { data: data.freeze(), from: None, is_fresh: true });
        }
        let is_present = |_, column: &Column| freshness(column) != Freshness::Absent;
        // Children that are mirrors are asked again, for their other copies.
        stripes.forget(|column| {
            let child = children.get(column.child).map(|child| &self.tree.vdevs[*child]);
            child.is_some_and(|child| !child.children.is_empty())
        });
        let quiet = Ask { is_quiet: true, ..ask };
        self.fill(vdev, &mut stripes, quiet, true, is_present).await;
        let suspects = stripes.suspects(|column| is_fresh(column));
        match stripes.search(&suspects, &accepts).await {
            Some(data) => {
                self.audit(&stripes, &data, ask.is_scrub);
                Ok(Piece { data: data.freeze(), from: None, is_fresh: true })
            }
            None => Err(self.lost(&stripes, freshness)),
        }
    }

    /// Reads the wanted columns that were not asked for yet.
    async fn fill(
        &self,
        vdev: usize,
        stripes: &mut Stripes<'_>,
        ask: Ask<'_>,
        all_copies: bool,
        wanted: impl Fn(ColumnId, &Column) -> bool,
    ) {
        let children = &self.tree.vdevs[vdev].children;
        let todo = runs(stripes.map, |id, column| {
            !stripes.cells[id.row][id.column].is_asked && wanted(id, column)
        });
        let reads = todo.iter().map(|run| async move {
            let Some(child) = children.get(run.child) else { return Vec::new() };
            let part = ask.part(run.offset, run.len);
            // A run of several columns is asked for quietly: it is asked for again in parts.
            let is_leaf = self.tree.vdevs[*child].children.is_empty();
            let part = Ask { is_quiet: ask.is_quiet || (is_leaf && run.parts.len() > 1), ..part };
            if all_copies {
                return self.copies(*child, part, ask.is_quiet).await;
            }
            self.fetch(*child, part).await.into_iter().collect()
        });
        let mut again = Vec::new();
        for (run, copies) in todo.iter().zip(join_all(reads).await) {
            for (id, start) in &run.parts {
                let len = stripes.map.column(*id).len;
                let cell = &mut stripes.cells[id.row][id.column];
                cell.is_asked = true;
                cell.copies = copies.iter().filter_map(|copy| copy.part(*start, len)).collect();
                if copies.is_empty() && run.parts.len() > 1 {
                    again.push(*id);
                }
            }
        }
        for id in again {
            let column = *stripes.map.column(id);
            let Some(child) = children.get(column.child) else { continue };
            let part = self.fetch(*child, ask.part(column.offset, column.len)).await;
            stripes.cells[id.row][id.column].copies = part.into_iter().collect();
        }
    }

    /// Compares everything that was read with what it should be, now that the block is known.
    fn audit(&self, stripes: &Stripes<'_>, block: &[u8], is_scrub: bool) {
        let mut bad = stripes.differing(block, is_scrub);
        // The verdict does not cover the filler of the last sector, which is written as zeros: if
        // that explains as much, it is the filler that is wrong, and not all of the parity.
        let filler = block.get(self.psize..).unwrap_or(&[]);
        let clean;
        if is_scrub && !bad.is_empty() && filler.iter().any(|byte| *byte != 0) {
            clean = [&block[..self.psize], &vec![0; filler.len()]].concat();
            let other = stripes.differing(&clean, is_scrub);
            if other.len() <= bad.len() {
                bad = other;
            }
        }
        for copy in bad {
            self.report_copy(copy, Cause::Checksum);
        }
    }

    /// Reports the parts of a block that could not be recovered, and says why. Columns that may be
    /// older than the block are no evidence of damage: a row that lacks more fresh columns than its
    /// parity makes up for fails for want of devices, and can be read when they are back. Only if
    /// enough fresh columns answered, or nobody is away who has one, is the block damaged.
    fn lost(&self, stripes: &Stripes<'_>, freshness: impl Fn(&Column) -> Freshness) -> Fail {
        let cells = || stripes.cells.iter().flatten();
        for copy in cells().flat_map(|cell| &cell.copies) {
            self.report_copy(copy, Cause::Suspect);
        }
        let is_any_there = cells().any(|cell| !cell.copies.is_empty());
        if is_any_there && !stripes.is_short(freshness) {
            return Fail::Checksum;
        }
        let bad = self.bad.lock().unwrap_or_else(PoisonError::into_inner);
        let error = bad.iter().find_map(|bad| match &bad.cause {
            Cause::Io(error) => Some(Fail::Io(Arc::clone(error))),
            _ => None,
        });
        error.unwrap_or(Fail::Absent)
    }

    fn report_copy(&self, copy: &Piece, cause: Cause) {
        if let Some(from) = copy.from {
            self.report(from, copy.data.len(), cause);
        }
    }
}

impl<'m> Stripes<'m> {
    fn new(map: &'m Map) -> Self {
        let cells = map.rows.iter().map(|row| {
            // Absent columns are there, and empty.
            row.columns.iter().map(|_| Cell::default()).collect()
        });
        Self { map, cells: cells.collect() }
    }

    /// The bytes of a block that lies in one column, without a copy.
    fn single(&self) -> Option<Buf> {
        let mut data = self.map.columns().filter(|(_, column)| column.data_len > 0);
        let (Some((id, column)), None) = (data.next(), data.next()) else { return None };
        self.cells[id.row][id.column].copies.first()?.data.slice(0..column.data_len)
    }

    /// The copies that are not what they should be, if the block is `block`.
    fn differing(&self, block: &[u8], is_scrub: bool) -> Vec<&Piece> {
        let mut found = Vec::new();
        for (row, cells) in self.map.rows.iter().zip(&self.cells) {
            let nparity = self.map.nparity.min(row.columns.len());
            let data: Vec<&[u8]> = row.columns[nparity..]
                .iter()
                .map(|column| &block[column.data_start..column.data_start + column.data_len])
                .collect();
            for (want, cell) in data.iter().zip(&cells[nparity..]) {
                found.extend(cell.copies.iter().filter(|copy| {
                    let (bytes, pad) = copy.data.split_at(want.len().min(copy.data.len()));
                    bytes != *want || (is_scrub && pad.iter().any(|byte| *byte != 0))
                }));
            }
            let most = cells[..nparity].iter().map(|cell| cell.copies.len()).max().unwrap_or(0);
            for number in 0..most {
                let stored: Vec<Option<&Piece>> =
                    cells[..nparity].iter().map(|cell| cell.copies.get(number)).collect();
                let bytes: Vec<Option<&[u8]>> =
                    stored.iter().map(|copy| copy.map(|copy| &copy.data[..])).collect();
                let differs = parity::mismatch(&bytes, &data);
                let wrong = stored.into_iter().zip(differs).filter(|(_, differs)| *differs);
                found.extend(wrong.filter_map(|(copy, _)| copy));
            }
        }
        found
    }

    /// Rows that lack a data column.
    fn lacking_rows(&self) -> Vec<bool> {
        let mut lacking = vec![false; self.map.rows.len()];
        for (id, column) in self.map.columns() {
            if column.data_len > 0 && self.cells[id.row][id.column].copies.is_empty() {
                lacking[id.row] = true;
            }
        }
        lacking
    }

    /// Whether some row lacks more fresh columns than its parity makes up for, and one of them may
    /// be had later: its child is away, or failed to give it.
    fn is_short(&self, freshness: impl Fn(&Column) -> Freshness) -> bool {
        self.map.rows.iter().zip(&self.cells).any(|(row, cells)| {
            let is_lacking = |cell: &Cell| !cell.copies.iter().any(|copy| copy.is_fresh);
            let columns = row.columns.iter().zip(cells).filter(|(column, _)| column.len > 0);
            let lacking: Vec<_> = columns.filter(|(_, cell)| is_lacking(cell)).collect();
            let may_come = |(column, _): &(&Column, &Cell)| freshness(column) != Freshness::Stale;
            lacking.len() > self.map.nparity && lacking.iter().any(may_come)
        })
    }

    /// Makes the columns of some children unasked.
    fn forget(&mut self, which: impl Fn(&Column) -> bool) {
        for (row, cells) in self.map.rows.iter().zip(&mut self.cells) {
            for (column, cell) in row.columns.iter().zip(cells) {
                if which(column) {
                    *cell = Cell::default();
                }
            }
        }
    }

    /// The children that gave anything, those that may be stale first.
    fn suspects(&self, is_fresh: impl Fn(&Column) -> bool) -> Vec<usize> {
        let mut suspects = BTreeMap::new();
        for (id, column) in self.map.columns() {
            if !self.cells[id.row][id.column].copies.is_empty() {
                suspects.insert(column.child, is_fresh(column));
            }
        }
        let mut suspects: Vec<_> =
            suspects.into_iter().map(|(child, fresh)| (fresh, child)).collect();
        suspects.sort_unstable();
        suspects.into_iter().map(|(_, child)| child).collect()
    }

    /// The bytes of a column under a guess.
    fn bytes(&self, id: ColumnId, column: &Column, guess: &Guess) -> Option<&[u8]> {
        if guess.dead.contains(&column.child) {
            return None;
        }
        let copies = &self.cells[id.row][id.column].copies;
        let number = guess.copy.get(&column.child).copied().unwrap_or(0);
        copies.get(number).or(copies.first()).map(|copy| &copy.data[..])
    }

    /// The block under a guess; `None` if a row lacks too much, or what is there contradicts it.
    fn solve(&self, guess: &Guess) -> Option<BufMut> {
        // Every byte of it is filled (Z1).
        let mut block = BufMut::for_filling(self.map.size);
        for row in 0..self.map.rows.len() {
            self.solve_row(row, guess, &mut block)?;
        }
        Some(block)
    }

    fn solve_row(&self, row: usize, guess: &Guess, block: &mut [u8]) -> Option<()> {
        let columns = &self.map.rows[row].columns;
        let nparity = self.map.nparity.min(columns.len());
        let bytes = |column: usize| self.bytes(ColumnId { row, column }, &columns[column], guess);
        // The data columns of a row lie in the block in ascending order, so the parts that are to
        // be computed can be cut off it one after the other.
        let (mut rest, mut at) = (block, 0);
        let mut data = Vec::with_capacity(columns.len() - nparity);
        let mut is_complete = true;
        for (index, column) in columns.iter().enumerate().skip(nparity) {
            if column.data_len == 0 {
                data.push(parity::Column::Present(&[]));
                continue;
            }
            let (_, tail) = rest.split_at_mut_checked(column.data_start.checked_sub(at)?)?;
            let (part, tail) = tail.split_at_mut_checked(column.data_len)?;
            (rest, at) = (tail, column.data_start + column.data_len);
            if let Some(bytes) = bytes(index) {
                part.copy_from_slice(bytes.get(..column.data_len)?);
                data.push(parity::Column::Present(part));
            } else {
                is_complete = false;
                data.push(parity::Column::Missing(part));
            }
        }
        if is_complete {
            return Some(());
        }
        let parity: Vec<Option<&[u8]>> = (0..nparity).map(bytes).collect();
        parity::reconstruct(&parity, &mut data).ok()
    }

    /// Whether no row loses more than its parity under a guess (S2), and some row loses data.
    fn is_useful(&self, guess: &Guess) -> bool {
        let mut is_data_lost = false;
        for (row, columns) in self.map.rows.iter().enumerate() {
            let mut dead = 0;
            for (index, column) in columns.columns.iter().enumerate() {
                let id = ColumnId { row, column: index };
                if column.len > 0 && self.bytes(id, column, guess).is_none() {
                    dead += 1;
                    is_data_lost |= column.data_len > 0;
                }
            }
            if dead > self.map.nparity {
                return false;
            }
        }
        is_data_lost
    }

    /// Tries all guesses, few dead children first, within the bound of the tunable.
    async fn search(
        &self,
        suspects: &[usize],
        accepts: &(impl Fn(&[u8]) -> bool + Sync),
    ) -> Option<BufMut> {
        let mut tries = 0;
        let limit = tunables::RAIDZ_COMBINATIONS_MAX.get();
        for count in 0..=self.map.nparity.min(suspects.len()) {
            let mut chosen: Vec<usize> = (0..count).collect();
            loop {
                let dead: Vec<usize> = chosen.iter().map(|index| suspects[*index]).collect();
                for copy in self.copy_choices(&dead) {
                    let guess = Guess { dead: dead.clone(), copy };
                    if count > 0 && !self.is_useful(&guess) {
                        break;
                    }
                    tries += 1;
                    if tries > limit {
                        return None;
                    }
                    if tries % TRIES_PER_TURN == 0 {
                        yield_now().await;
                    }
                    if let Some(data) = self.solve(&guess).filter(|data| accepts(data)) {
                        return Some(data);
                    }
                }
                if !next_combination(&mut chosen, suspects.len()) {
                    break;
                }
            }
        }
        None
    }

    /// The ways to choose among differing copies of the children that are not dead: usually one.
    fn copy_choices(&self, dead: &[usize]) -> Vec<BTreeMap<usize, usize>> {
        let mut counts: BTreeMap<usize, usize> = BTreeMap::new();
        for (id, column) in self.map.columns() {
            let copies = &self.cells[id.row][id.column].copies;
            let differ = copies.windows(2).any(|pair| pair[0].data[..] != pair[1].data[..]);
            if differ && !dead.contains(&column.child) {
                let count = counts.entry(column.child).or_default();
                *count = copies.len().max(*count);
            }
        }
        let mut choices = vec![BTreeMap::new()];
        for (child, count) in counts {
            if choices.len().saturating_mul(count) > 4096 {
                break;
            }
            let longer = (0..count).flat_map(|number| {
                choices.iter().map(move |choice: &BTreeMap<usize, usize>| {
                    let mut choice = choice.clone();
                    choice.insert(child, number);
                    choice
                })
            });
            choices = longer.collect();
        }
        choices
    }
}

/// The next set of as many numbers below `bound`, in ascending order; false after the last.
fn next_combination(chosen: &mut [usize], bound: usize) -> bool {
    let count = chosen.len();
    for index in (0..count).rev() {
        if chosen[index] + (count - index) < bound {
            let start = chosen[index] + 1;
            for (step, slot) in chosen[index..].iter_mut().enumerate() {
                *slot = start + step;
            }
            return true;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn combinations_come_once_each() {
        for (count, bound, want) in [(0, 5, 1), (1, 5, 5), (2, 5, 10), (3, 3, 1), (3, 7, 35)] {
            let mut chosen: Vec<usize> = (0..count).collect();
            let mut seen = std::collections::BTreeSet::from([chosen.clone()]);
            while next_combination(&mut chosen, bound) {
                assert!(chosen.is_sorted() && seen.insert(chosen.clone()));
            }
            assert_eq!(seen.len(), want, "{count} of {bound}");
        }
    }
}
