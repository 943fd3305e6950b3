//! Tables as OpenZFS prints them: each column as wide as its widest cell, two spaces between
//! columns. With `-H`, tabs and no header.

/// Alignment of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Align {
    /// For text.
    Left,
    /// For numbers.
    Right,
}

/// Rows of cells under a header.
#[derive(Debug, Clone)]
pub struct Table {
    columns: Vec<(String, Align)>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns a table with these columns.
    pub fn new(columns: impl IntoIterator<Item = (impl Into<String>, Align)>) -> Self {
        let columns = columns.into_iter().map(|(name, align)| (name.into(), align)).collect();
        Self { columns, rows: Vec::new() }
    }

    /// Adds a row with one cell per column.
    pub fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// Whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Renders the table: aligned under a header, or tab-separated without one.
    pub fn render(&self, scripted: bool) -> String {
        let mut text = String::new();
        if scripted {
            for row in &self.rows {
                text.push_str(&row.join("\t"));
                text.push('\n');
            }
            return text;
        }
        let widths: Vec<usize> = (0..self.columns.len()).map(|i| self.width(i)).collect();
        let header: Vec<&str> = self.columns.iter().map(|(name, _)| name.as_str()).collect();
        self.render_row(&header, &widths, &mut text);
        for row in &self.rows {
            let cells: Vec<&str> = row.iter().map(String::as_str).collect();
            self.render_row(&cells, &widths, &mut text);
        }
        text
    }

    fn width(&self, column: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(column));
        let widest = cells.map(|cell| cell.chars().count()).max().unwrap_or(0);
        widest.max(self.columns[column].0.chars().count())
    }

    fn render_row(&self, cells: &[&str], widths: &[usize], text: &mut String) {
        let last = cells.len().saturating_sub(1);
        for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
            let pad = width - cell.chars().count().min(*width);
            match self.columns[index].1 {
                Align::Right => {
                    text.extend(std::iter::repeat_n(' ', pad));
                    text.push_str(cell);
                }
                Align::Left => {
                    text.push_str(cell);
                    // The last column is not padded: scripts match to the end of the line.
                    if index != last {
                        text.extend(std::iter::repeat_n(' ', pad));
                    }
                }
            }
            if index != last {
                text.push_str("  ");
            }
        }
        text.push('\n');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_align_and_scripts_get_tabs() {
        let mut table = Table::new([("NAME", Align::Left), ("USED", Align::Right)]);
        table.row(vec!["t/long".into(), "1K".into()]);
        assert_eq!(table.render(false), "NAME    USED\nt/long    1K\n");
        assert_eq!(table.render(true), "t/long\t1K\n");
    }
}
