//! Maps a block to rows of columns, for RAID-Z, expanded RAID-Z and dRAID alike.
//!
//!     plain RAID-Z: one row, columns as tall as the block     expanded: one row per stripe,
//!     P  D0 D1 D2                                             columns of one sector
//!     P  D0 D1 D2                                             P D0 D1 | P D0 D1 | P D0
//!     P  D0
//!
//! A row is the unit of parity: P, Q and R are computed over its columns, each extended with zeros
//! to the height of the first. Columns below `nparity` are parity, the others data in the block's
//! order. A column may be absent (the unused tail of the last row of an expanded block): it has no
//! place on disk, no bytes, and counts as zeros. A dRAID column may be taller than its data: its
//! tail is zeros on disk (spec 06 §4.1, §5.3, §6.5).

use cenote_rt::{Op, charge};

/// A column of a row: one contiguous range of one child.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Column {
    /// Index of the child.
    pub child: usize,
    /// Byte on the child, relative to its data area; negative only in the boot area (RAID-Z
    /// expansion scratch).
    pub offset: i64,
    /// Bytes on the child; 0 if absent.
    pub len: usize,
    /// First byte in the block, data columns only.
    pub data_start: usize,
    /// Number of bytes of the block in it; 0 for parity.
    pub data_len: usize,
}

/// A parity group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// Columns, parity first.
    pub columns: Vec<Column>,
}

/// Charges the computation of a row's parity to the processors of a simulation.
pub(crate) fn charge_parity(nparity: usize, data: &[Column]) {
    let op = match nparity {
        0 => return,
        1 => Op::ParityP,
        2 => Op::ParityPq,
        _ => Op::ParityPqr,
    };
    charge(op, data.iter().map(|column| column.data_len as u64).sum());
}

/// The layout of a whole block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Map {
    /// Parity columns per row.
    pub nparity: usize,
    /// Bytes of the block, rounded up to the sector.
    pub size: usize,
    /// Whether parts of different rows are read apart even if they are adjacent on a child: a
    /// distributed spare may have them on different devices.
    pub are_rows_apart: bool,
    /// The parity groups.
    pub rows: Vec<Row>,
}

/// Position of a column in its map: row, and index in the row.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ColumnId {
    /// Index of the row.
    pub row: usize,
    /// Index of the column.
    pub column: usize,
}

impl Row {
    /// Whether no child has two columns that take space.
    pub(crate) fn has_distinct_children(&self) -> bool {
        let mut seen = [0_u64; 4];
        self.columns.iter().filter(|column| column.len > 0).all(|column| {
            let (word, bit) = (column.child / 64 % 4, 1 << (column.child % 64));
            let is_new = seen[word] & bit == 0;
            seen[word] |= bit;
            is_new
        })
    }
}

impl Map {
    /// Whether the data columns together have the length of the block, and none ends beyond it.
    pub(crate) fn covers(&self, len: usize) -> bool {
        let columns = self.rows.iter().flat_map(|row| &row.columns);
        let mut sum = 0;
        let mut fits = self.size == len;
        for column in columns {
            sum += column.data_len;
            fits &= column.data_start + column.data_len <= len && column.data_len <= column.len;
        }
        fits && sum == len
    }

    /// Every column that has a place.
    pub fn columns(&self) -> impl Iterator<Item = (ColumnId, &Column)> {
        self.rows.iter().enumerate().flat_map(|(row, r)| {
            let columns = r.columns.iter().enumerate().filter(|(_, column)| column.len > 0);
            columns.map(move |(column, c)| (ColumnId { row, column }, c))
        })
    }

    /// The column named `id`.
    pub fn column(&self, id: ColumnId) -> &Column {
        &self.rows[id.row].columns[id.column]
    }
}

/// Splits `size` bytes among the columns of one row; returns `(first byte, length)` by data column.
///
/// Column-major: the first column holds the first bytes. `data` columns get `full_rows` sectors
/// each, and the first `longer` of them one more.
pub(crate) fn deal(
    data: usize,
    full_rows: u64,
    longer: u64,
    sector: u64,
) -> impl Iterator<Item = (usize, usize)> {
    (0..data as u64).scan(0_u64, move |start, index| {
        let len = (full_rows + u64::from(index < longer)) * sector;
        let dealt = (*start as usize, len as usize);
        *start += len;
        Some(dealt)
    })
}
