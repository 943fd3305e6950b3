//! Checks after a scenario: contents, the status of the pool, and `zdb`.

use std::fmt::Write;

use crate::load::Written;
use crate::model::Wrong;
use crate::site::Site;

/// A line of the table of `zpool status`.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) state: String,
    /// Read, write and checksum errors.
    pub(crate) errors: [u64; 3],
}

/// `zpool status -v`, parsed.
#[derive(Debug)]
pub(crate) struct Status {
    pub(crate) text: String,
    pub(crate) rows: Vec<Row>,
}

impl Site {
    /// Returns the status of the pool, within a time limit.
    pub(crate) fn status(&self) -> Status {
        let text = self.run("zpool status -v -p t");
        let row = |line: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [name, state, read, write, checksum, ..] = words[..] else { return None };
            let errors = [read.parse().ok()?, write.parse().ok()?, checksum.parse().ok()?];
            Some(Row { name: name.to_owned(), state: state.to_owned(), errors })
        };
        let rows = text.lines().filter_map(row).collect();
        Status { text, rows }
    }

    /// Checks that all promised data is there, and nothing else.
    pub(crate) fn check(&self, written: &Written, when: &str) {
        let faults = written.faults(self);
        if faults.is_empty() {
            return;
        }
        let mut said = format!(
            "{when}: {} things are not as promised ({:?}; {})\n",
            faults.len(),
            self.layout,
            written.told()
        );
        for fault in faults.iter().take(12) {
            let _ = writeln!(said, "  {fault}");
        }
        let lost = faults.iter().filter(|fault| !matches!(fault, Wrong::Bytes(_))).count();
        let status = self.status().text;
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let place = self.text("at");
        let mounts: Vec<&str> = mounts.lines().filter(|line| line.contains(&place)).collect();
        let mounts = mounts.join("\n");
        let log = self.log();
        panic!("{said}  {lost} of them lost or unreadable\n{status}\n{mounts}\n{log}");
    }

    /// Checks that no leaf has checksum errors, except these leaves.
    pub(crate) fn check_counts(&self, except: &[usize], when: &str) {
        let status = self.status();
        let excepted =
            |row: &Row| except.iter().any(|leaf| row.name.ends_with(&format!("/d{leaf}")));
        for row in status.rows.iter().filter(|row| row.name.contains("/d") && !excepted(row)) {
            let checksum = row.errors[2];
            assert_eq!(checksum, 0, "{when}: {}\n{}\n{}", row.name, status.text, self.log());
        }
    }

    /// Checks that no file has errors, whatever the state of the leaves.
    pub(crate) fn check_files(&self, when: &str) {
        let text = self.status().text;
        // Leaves that were removed may be stale, which is no error of a file.
        let is_clean = text.contains("errors: No known data errors")
            || text.contains("errors: None in data that was read");
        assert!(is_clean, "{when}:\n{text}\n{}", self.log());
    }

    /// Checks that the pool is ONLINE with all of its leaves, and no file has errors.
    pub(crate) fn check_healthy(&self, when: &str) {
        let status = self.status();
        let all_online = status.rows.iter().all(|row| matches!(&*row.state, "ONLINE" | "AVAIL"));
        let is_healthy = all_online && status.text.contains("errors: No known data errors");
        assert!(is_healthy, "{when}:\n{}\n{}", status.text, self.log());
    }

    /// Exports the pool, and checks the images with `zdb` and `cenote verify`.
    ///
    /// Leaves that were removed miss later writes, since nothing resilvers them: `is_whole` is
    /// false then, and `verify` may report that. With `is_whole` everything that it reads is
    /// correct; leaves may still be stale, because a write of the txg failed at first.
    pub(crate) fn judge(&self, is_whole: bool) {
        self.run("zpool export t");
        let images = self.layer.images();
        if let Some(zdb) = cenote_oracle::zdb() {
            let said = zdb.pool("t", &images, &["-bcc"]);
            assert!(said.is_clean(), "{said}\n{}", self.log());
        }
        let folder = images.to_str().unwrap().to_owned();
        let (status, said) = self.ends(&format!("verify --leaks -d {folder} t"));
        let is_right = status.success() || said.contains("t: nothing that was read is wrong, but ");
        assert!(is_right || !is_whole, "{said}\n{}", self.log());
        self.stop();
    }
}
