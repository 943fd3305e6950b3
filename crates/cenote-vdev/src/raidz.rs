//! RAID-Z geometry: allocated size, and the map of a block, also across expansions.
//!
//! All arithmetic is in sectors of the top-level vdev's ashift. A block of `s` data sectors at
//! sector `b` of the row-major space takes the sectors `b .. b + s + parity + pad`; sector `x` lies
//! on child `x % width`, at sector `x / width` of it. A block keeps the logical width of the time
//! it was born (*physical* birth), while its sectors are placed by the physical width, which is the
//! present number of children; where the two differ, each row has its own parity (spec 06 §4, §5).
//!
//! Invariants
//! * Z1  The columns of a map cover its data exactly once.
//! * Z2  No two columns of a row are on one child.

use cenote_rt::seeded::{Bug, is_on};

use crate::map::{Column, ColumnId, Map, Row, deal};

/// Bytes of the boot area, where the first rows of a running expansion are kept (spec 06 §5.4).
pub(crate) const SCRATCH_BYTES: i64 = 7 << 19;

/// Progress of an expansion, from the uberblock's reflow word (spec 06 §5.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reflow {
    /// Byte of the vdev up to which sectors have been moved to the new width, according to the last
    /// committed uberblock.
    pub offset: u64,
    /// Byte of the vdev up to which sectors have been copied to their new places. At or behind
    /// `offset`, except where only `offset` is known.
    pub next: u64,
    /// Whether the moved sectors must be read from the boot areas (state `SCRATCH_VALID`).
    pub is_scratch_valid: bool,
}

impl Reflow {
    /// Decodes the uberblock's word: bits 0-54 offset in units of 512 bytes, bits 55-63 state.
    pub fn from_word(word: u64) -> Self {
        let offset = (word & ((1 << 55) - 1)) << 9;
        Self { offset, next: offset, is_scratch_valid: word >> 55 == 1 }
    }
}

/// Geometry of a RAID-Z vdev, as stored in the config.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Raidz {
    /// Sector size, log2.
    pub ashift: u32,
    /// Number of children now.
    pub width: u64,
    /// Parity columns.
    pub nparity: u64,
    /// Physical births from which each further width applies, ascending.
    pub expand_txgs: Vec<u64>,
    /// Whether the last child is still being filled.
    pub is_expanding: bool,
}

impl Raidz {
    /// Whether the numbers describe a valid RAID-Z.
    pub fn is_valid(&self) -> bool {
        let steps = self.expand_txgs.len() as u64 + u64::from(self.is_expanding);
        (1..=3).contains(&self.nparity)
            && self.width <= 255
            && (9..=16).contains(&self.ashift)
            && self.expand_txgs.is_sorted()
            && self.width >= self.nparity + 1 + steps
    }

    /// Logical width of a block of this physical birth (spec 06 §5.2).
    pub fn width_at(&self, birth: u64) -> u64 {
        let later = self.expand_txgs.iter().filter(|txg| **txg > birth).count() as u64;
        self.width - u64::from(self.is_expanding) - later
    }

    /// Allocated bytes of `psize` bytes written at physical birth `birth` (spec 06 §4.2).
    pub fn asize(&self, psize: u64, birth: u64) -> u64 {
        let sectors = psize.div_ceil(1 << self.ashift);
        let stripes = sectors.div_ceil(self.width_at(birth) - self.nparity);
        let total = sectors + self.nparity * stripes;
        if is_on(Bug::DroppedPad) {
            return total << self.ashift;
        }
        total.next_multiple_of(self.nparity + 1) << self.ashift
    }

    /// The map of `psize` bytes at byte `offset`.
    pub fn map(&self, offset: u64, psize: u64, birth: u64, reflow: Reflow) -> Map {
        let logical_width = self.width_at(birth);
        let shape = Shape::new(self, offset, psize, logical_width);
        let rows = if logical_width == self.width {
            vec![self.plain_row(&shape)]
        } else {
            (0..shape.total.div_ceil(logical_width))
                .map(|row| self.expanded_row(&shape, row, reflow))
                .collect()
        };
        let size = (shape.sectors << self.ashift) as usize;
        Map { nparity: self.nparity as usize, size, are_rows_apart: false, rows }
    }

    /// Returns the pad sectors allocated with a block, as child and byte on it (spec 06 §4.3).
    /// Empty while an expansion runs: they may lie in a row that is being moved.
    pub fn pads(&self, offset: u64, psize: u64, birth: u64) -> Vec<(usize, i64)> {
        if self.is_expanding {
            return Vec::new();
        }
        let shape = Shape::new(self, offset, psize, self.width_at(birth));
        let end = shape.total.next_multiple_of(self.nparity + 1);
        (shape.total..end).map(|sector| self.place(shape.first + sector, self.width)).collect()
    }

    /// Returns all sectors of a range, as child, byte on it and length; empty while an expansion
    /// runs (spec 06 §4.9). The range's ends are whole sectors.
    pub fn child_ranges(&self, offset: u64, len: u64) -> Vec<(usize, i64, u64)> {
        if self.is_expanding {
            return Vec::new();
        }
        let (start, end) = (offset >> self.ashift, (offset + len) >> self.ashift);
        // Sectors below `sector` that lie on `child`.
        let below =
            |sector: u64, child: u64| (sector + self.width).saturating_sub(child + 1) / self.width;
        let child_ranges = (0..self.width).map(|child| {
            let (from, to) = (below(start, child), below(end, child));
            (child as usize, (from << self.ashift) as i64, (to - from) << self.ashift)
        });
        child_ranges.filter(|(.., len)| *len > 0).collect()
    }

    /// Returns the second places to which columns must be written while an expansion runs, as child
    /// and byte on it (`rc_shadow_offset`): sectors that were already copied to their new place, of
    /// rows that are still read from the old one. The expansion does not copy them again (spec 06
    /// §5.3).
    pub fn shadows(
        &self,
        offset: u64,
        psize: u64,
        birth: u64,
        reflow: Reflow,
    ) -> Vec<(ColumnId, usize, i64)> {
        if !self.is_expanding || is_on(Bug::ReflowWritesOnePlace) {
            return Vec::new();
        }
        let now = self.map(offset, psize, birth, reflow);
        let copied = reflow.next.max(reflow.offset) >> self.ashift;
        let at_the_end = Reflow { offset: u64::MAX, ..Reflow::default() };
        let then = self.map(offset, psize, birth, at_the_end);
        let pairs = now.columns().zip(then.columns());
        let moved = pairs.filter_map(|((id, now), (_, then))| {
            let sector = (then.offset as u64 >> self.ashift) * self.width + then.child as u64;
            let is_moved = (now.child, now.offset) != (then.child, then.offset);
            (is_moved && sector < copied).then_some((id, then.child, then.offset))
        });
        moved.collect()
    }

    /// The one row of a block whose logical width is the physical one.
    fn plain_row(&self, shape: &Shape) -> Row {
        let Shape { full_rows, big, first, .. } = *shape;
        let active = if full_rows == 0 { big } else { self.width };
        let (sector, data) = (1 << self.ashift, (active - self.nparity) as usize);
        let longer = big.saturating_sub(self.nparity);
        let mut dealt = deal(data, full_rows, longer, sector);
        let columns = (0..active).map(|index| {
            let len = ((full_rows + u64::from(index < big)) * sector) as usize;
            let (data_start, data_len) =
                if index < self.nparity { (0, 0) } else { dealt.next().unwrap_or_default() };
            let (child, offset) = self.place(first + index, self.width);
            Column { child, offset, len, data_start, data_len }
        });
        let mut columns: Vec<_> = columns.collect();
        swap_parity(shape, &mut columns);
        Row { columns }
    }

    /// Row number `row` of a block that lies across more children than it was written for.
    fn expanded_row(&self, shape: &Shape, row: u64, reflow: Reflow) -> Row {
        let &Shape { full_rows, rest, big, first, logical_width, total, .. } = shape;
        let rows = total.div_ceil(logical_width);
        let cols = total.min(logical_width);
        let start = first + row * logical_width;
        let is_in_old_place = self.is_expanding && start + cols > reflow.offset >> self.ashift;
        let width = self.width - u64::from(is_in_old_place);
        let shift = if reflow.is_scratch_valid && self.is_expanding && !is_in_old_place {
            SCRATCH_BYTES
        } else {
            0
        };
        let sector = 1_u64 << self.ashift;
        let is_last = row + 1 == rows && big != 0 && full_rows != 0;
        let columns = (0..cols).map(|index| {
            let (child, offset) = self.place(start + index, width);
            let offset = offset - shift;
            if is_last && index >= big {
                return Column { child, offset, len: 0, data_start: 0, data_len: 0 };
            }
            let len = sector as usize;
            let Some(data) = index.checked_sub(self.nparity) else {
                return Column { child, offset, len, data_start: 0, data_len: 0 };
            };
            // Column-major numbering, as if the block had its own width (spec 06 §5.3 step 5).
            let number = if index < big || rest == 0 {
                data * rows + row
            } else {
                rest * rows + (data - rest) * (rows - 1) + row
            };
            Column { child, offset, len, data_start: (number * sector) as usize, data_len: len }
        });
        let mut columns: Vec<_> = columns.collect();
        swap_parity(shape, &mut columns);
        Row { columns }
    }

    /// Child and byte on it of a sector of the row-major space.
    fn place(&self, sector: u64, width: u64) -> (usize, i64) {
        ((sector % width) as usize, ((sector / width) << self.ashift) as i64)
    }
}

/// The numbers of spec 06 §4.1 that plain and expanded maps share.
struct Shape {
    logical_width: u64,
    /// First sector, `b`.
    first: u64,
    /// Data sectors, `s`.
    sectors: u64,
    /// Full rows, `q`.
    full_rows: u64,
    /// Data sectors of the partial row, `r`.
    rest: u64,
    /// Columns that are one sector longer, `bc`.
    big: u64,
    /// Data and parity sectors, `tot`.
    total: u64,
    /// Whether P is swapped with the first data column.
    is_swapped: bool,
}

impl Shape {
    fn new(raidz: &Raidz, offset: u64, psize: u64, logical_width: u64) -> Self {
        let nparity = raidz.nparity;
        let data = logical_width - nparity;
        let sectors = psize.div_ceil(1 << raidz.ashift);
        let (full_rows, rest) = (sectors / data, sectors % data);
        Self {
            logical_width,
            first: offset >> raidz.ashift,
            sectors,
            full_rows,
            rest,
            big: if rest == 0 { 0 } else { rest + nparity },
            total: sectors + nparity * (full_rows + u64::from(rest != 0)),
            is_swapped: nparity == 1 && offset & (1 << 20) != 0,
        }
    }
}

/// RAID-Z1 in every second MiB: columns 0 and 1 swap places, not contents (spec 06 §4.1).
fn swap_parity(shape: &Shape, columns: &mut [Column]) {
    if let (true, [parity, data, ..]) = (shape.is_swapped, columns) {
        std::mem::swap(&mut parity.child, &mut data.child);
        std::mem::swap(&mut parity.offset, &mut data.offset);
    }
}

#[cfg(test)]
mod tests;
