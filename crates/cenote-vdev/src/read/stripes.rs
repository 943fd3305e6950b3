//! Reads RAID-Z and dRAID: columns, parity, and the search for wrong columns.
//!
//! 1. The data columns are read; if they verify, the read is done.
//! 2. If some could not be read, parity is read and they are reconstructed.
//! 3. If the block still does not verify, some column is wrong. Every remaining column is read, and
//!    the block is reconstructed again and again, each time without another set of up to `nparity`
//!    children, until it verifies: some of those children gave wrong bytes.
//!
//! A sequential rebuild has no block to verify: see [`super::reconstruct`].
//!
//! A scrub reads everything at once. When the block is known, so is every byte that each column
//! should hold, and each copy of each column is compared with it (spec 06 §4.6).
//!
//! Guarantees
//! * S1  One read per child and block, unless its parts are far apart or a read fails.
//! * S2  In no try are more than `nparity` columns of a row dead.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_codec::parity;
use cenote_rt::{Buf, BufMut, tunables, yield_now};
use futures_util::future::join_all;

use super::{BlockRead, Fail, Fetched, Piece, ReadRequest};
use crate::leaf::Freshness;
use crate::map::{Column, ColumnId, Map, charge_parity};
use crate::verdict::Cause;

/// Number of attempts after which the search yields to other tasks.
const TRIES_PER_YIELD: u64 = 32;

/// Adjacent columns of one child that are read at once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) child: usize,
    pub(super) offset: i64,
    pub(super) len: usize,
    /// The columns, and the offset of each in the run.
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
                    && !map.are_rows_apart
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

/// State of one column.
#[derive(Debug, Default)]
struct Cell {
    is_asked: bool,
    /// The copies read, the preferred one first; empty if none could be read.
    copies: Vec<Piece>,
}

/// A block being read.
pub(super) struct Stripes<'m> {
    map: &'m Map,
    /// Cells by row and column, as in the map.
    cells: Vec<Vec<Cell>>,
}

/// An attempt: which children are treated as failed, and which copy of the others is used.
#[derive(Debug, Default)]
pub(super) struct Guess {
    dead: Vec<usize>,
    /// Index of the copy by child; 0 where not listed.
    copy: BTreeMap<usize, usize>,
}

impl BlockRead<'_> {
    pub(super) async fn fetch_stripes(&self, vdev: usize, request: ReadRequest<'_>) -> Fetched {
        let map = self.map(vdev, request).ok_or(Fail::Absent)?;
        let mut stripes = Stripes::new(&map);
        let children = &self.tree.vdevs[vdev].children;
        let freshness = |column: &Column| match children.get(column.child) {
            Some(child) => self.tree.freshness(*child, self.birth),
            None => Freshness::Absent,
        };
        let is_fresh = |column: &Column| freshness(column) == Freshness::Fresh;
        let accepts = |data: &[u8]| request.accepts(data, self.psize);
        if request.is_scrub {
            self.fill(vdev, &mut stripes, request, true, |_, column| is_fresh(column)).await;
        } else {
            let is_data = |_, column: &Column| column.data_len > 0 && is_fresh(column);
            self.fill(vdev, &mut stripes, request, false, is_data).await;
            if let Some(data) = stripes.single().filter(|data| accepts(data)) {
                return Ok(Piece { data, from: None, is_fresh: true });
            }
            let lacking = stripes.lacking_rows();
            let is_parity = |id: ColumnId, column: &Column| lacking[id.row] && is_fresh(column);
            self.fill(vdev, &mut stripes, request, false, is_parity).await;
        }
        if let Some(data) = stripes.solve(&Guess::default()).filter(|data| accepts(data)) {
            self.audit(&stripes, &data, request.is_scrub);
            return Ok(Piece { data: data.freeze(), from: None, is_fresh: true });
        }
        let is_present = |_, column: &Column| freshness(column) != Freshness::Absent;
        // Children that are mirrors are read again, for their other copies.
        stripes.forget(|column| {
            let child = children.get(column.child).map(|child| &self.tree.vdevs[*child]);
            child.is_some_and(|child| !child.children.is_empty())
        });
        let quiet = ReadRequest { is_quiet: true, ..request };
        self.fill(vdev, &mut stripes, quiet, true, is_present).await;
        let suspects = stripes.suspects(|column| is_fresh(column));
        match stripes.search(&suspects, &accepts).await {
            Some(data) => {
                self.audit(&stripes, &data, request.is_scrub);
                Ok(Piece { data: data.freeze(), from: None, is_fresh: true })
            }
            None => Err(self.lost(&stripes, freshness)),
        }
    }

    /// Reads the wanted columns that were not requested yet.
    async fn fill(
        &self,
        vdev: usize,
        stripes: &mut Stripes<'_>,
        request: ReadRequest<'_>,
        all_copies: bool,
        wanted: impl Fn(ColumnId, &Column) -> bool,
    ) {
        let children = &self.tree.vdevs[vdev].children;
        let todo = runs(stripes.map, |id, column| {
            !stripes.cells[id.row][id.column].is_asked && wanted(id, column)
        });
        let reads = todo.iter().map(|run| async move {
            let Some(child) = children.get(run.child) else { return Vec::new() };
            let part = request.part(run.offset, run.len);
            // A run of several columns is read quietly, because it is read again in parts on
            // failure.
            let is_leaf = self.tree.vdevs[*child].children.is_empty();
            let part = ReadRequest {
                is_quiet: request.is_quiet || (is_leaf && run.parts.len() > 1),
                ..part
            };
            if all_copies {
                return self.copies(*child, part, request.is_quiet).await;
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
            let part = self.fetch(*child, request.part(column.offset, column.len)).await;
            stripes.cells[id.row][id.column].copies = part.into_iter().collect();
        }
    }

    /// Compares everything that was read with the known contents of the block.
    fn audit(&self, stripes: &Stripes<'_>, block: &[u8], is_scrub: bool) {
        let mut bad = stripes.differing(block, is_scrub);
        // The checksum does not cover the filler of the last sector, which is written as zeros. If
        // wrong filler explains as many differences, the filler is wrong, and not all of the
        // parity.
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

    /// Reports the parts of a block that could not be recovered, and returns why. Columns that may
    /// be older than the block are no evidence of damage: a row that lacks more fresh columns than
    /// its parity can replace fails because devices are unavailable, and can be read when they
    /// return. The block is damaged only if enough fresh columns answered, or no unavailable leaf
    /// has one.
    fn lost(&self, stripes: &Stripes<'_>, freshness: impl Fn(&Column) -> Freshness) -> Fail {
        let cells = || stripes.cells.iter().flatten();
        let is_any_there = cells().any(|cell| !cell.copies.is_empty());
        if is_any_there && !stripes.is_short(freshness) {
            for copy in cells().flat_map(|cell| &cell.copies) {
                self.report_copy(copy, Cause::Suspect);
            }
            return Fail::Checksum;
        }
        let bad = self.bad.lock();
        let error = bad.iter().find_map(|bad| match &bad.cause {
            Cause::Io(error) => Some(Fail::Io(Arc::clone(error))),
            _ => None,
        });
        error.unwrap_or(Fail::Absent)
    }

    /// Reports a copy as bad, unless it may be older than the block (J2): a distributed spare may
    /// lack the block where the device below it does not.
    fn report_copy(&self, copy: &Piece, cause: Cause) {
        if let Some(from) = copy.from.filter(|_| copy.is_fresh) {
            self.report(from, copy.data.len(), cause);
        }
    }
}

impl<'m> Stripes<'m> {
    pub(super) fn new(map: &'m Map) -> Self {
        let cells = map.rows.iter().map(|row| {
            // Columns without a place count as present and empty.
            row.columns.iter().map(|_| Cell::default()).collect()
        });
        Self { map, cells: cells.collect() }
    }

    /// Sets what was read of a column.
    pub(super) fn put(&mut self, id: ColumnId, piece: Piece) {
        self.cells[id.row][id.column].copies = vec![piece];
    }

    /// The bytes of a block that lies in one column, without copying.
    fn single(&self) -> Option<Buf> {
        let mut data = self.map.columns().filter(|(_, column)| column.data_len > 0);
        let (Some((id, column)), None) = (data.next(), data.next()) else { return None };
        self.cells[id.row][id.column].copies.first()?.data.slice(0..column.data_len)
    }

    /// The copies that differ from their expected bytes, if the block is `block`.
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
                charge_parity(nparity, &row.columns[nparity..]);
                let differs = parity::mismatch(&bytes, &data);
                let wrong = stored.into_iter().zip(differs).filter(|(_, differs)| *differs);
                found.extend(wrong.filter_map(|(copy, _)| copy));
            }
        }
        found
    }

    /// For each row, whether a data column is missing.
    fn lacking_rows(&self) -> Vec<bool> {
        let mut lacking = vec![false; self.map.rows.len()];
        for (id, column) in self.map.columns() {
            if column.data_len > 0 && self.cells[id.row][id.column].copies.is_empty() {
                lacking[id.row] = true;
            }
        }
        lacking
    }

    /// Whether some row lacks more fresh columns than its parity can replace, and one of them may
    /// become readable: its child is unavailable or failed to return it.
    fn is_short(&self, freshness: impl Fn(&Column) -> Freshness) -> bool {
        self.map.rows.iter().zip(&self.cells).any(|(row, cells)| {
            let is_lacking = |cell: &Cell| !cell.copies.iter().any(|copy| copy.is_fresh);
            let columns = row.columns.iter().zip(cells).filter(|(column, _)| column.len > 0);
            let lacking: Vec<_> = columns.filter(|(_, cell)| is_lacking(cell)).collect();
            let may_come = |(column, _): &(&Column, &Cell)| freshness(column) != Freshness::Stale;
            lacking.len() > self.map.nparity && lacking.iter().any(may_come)
        })
    }

    /// Forgets the reads of some children, so that their columns are read again.
    fn forget(&mut self, which: impl Fn(&Column) -> bool) {
        for (row, cells) in self.map.rows.iter().zip(&mut self.cells) {
            for (column, cell) in row.columns.iter().zip(cells) {
                if which(column) {
                    *cell = Cell::default();
                }
            }
        }
    }

    /// The children that returned data, stale ones first.
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

    /// Reconstructs the block under a guess; `None` if a row lacks too many columns, or the columns
    /// contradict the guess.
    pub(super) fn solve(&self, guess: &Guess) -> Option<BufMut> {
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
        // The data columns of a row lie in the block in ascending order, so the parts to compute
        // can be split off one after the other.
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
        charge_parity(nparity, &columns[nparity..]);
        parity::reconstruct(&parity, &mut data).ok()
    }

    /// Whether no row loses more columns than its parity under a guess (S2), and some row loses
    /// data.
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

    /// Tries all guesses, those with few failed children first, up to the limit of the tunable.
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
                    if tries % TRIES_PER_YIELD == 0 {
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

    /// The ways to choose among differing copies of the remaining children: usually one.
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

/// Advances to the next set of as many numbers below `bound`, in ascending order; false after the
/// last.
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
    fn each_combination_is_tried_once() {
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
