//! What was written, what of it was promised, and whether it is there.
//!
//! A file has a list of contents, each the result of one change. An `fsync` that returned 0
//! promises the newest: the list then begins with it. After a crash each byte may come from any of
//! the list (a change may be there in part), and the length lies between those of the list. A file
//! that is replaced by `rename` has one of the contents as a whole.
//!
//! A change that failed may be there or not, so its result is listed like one that succeeded.

use std::fmt;
use std::path::Path;

/// A file, its possible names, and its possible contents.
#[derive(Debug, Clone)]
pub(crate) struct Tracked {
    /// Names that it may have, the newest last.
    pub(crate) names: Vec<String>,
    /// Contents that it may have, the newest last.
    pub(crate) contents: Vec<Vec<u8>>,
    /// An `fsync` has returned 0, so the first of the contents is promised.
    pub(crate) is_promised: bool,
    /// It may have been removed.
    pub(crate) may_be_gone: bool,
    /// It is replaced as a whole.
    pub(crate) is_whole: bool,
}

impl Tracked {
    /// A file that was just created, empty.
    pub(crate) fn created(name: &str) -> Self {
        Self {
            names: vec![name.to_owned()],
            contents: vec![Vec::new()],
            is_promised: false,
            may_be_gone: false,
            is_whole: false,
        }
    }

    /// Its newest name.
    pub(crate) fn name(&self) -> &str {
        self.names.last().unwrap()
    }

    /// Its newest contents.
    pub(crate) fn newest(&self) -> &[u8] {
        self.contents.last().unwrap()
    }

    /// It has been changed, or may have been.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut next = self.newest().to_vec();
        change(&mut next);
        self.contents.push(next);
    }

    /// An `fsync` has returned 0: the newest name and contents are promised.
    pub(crate) fn promise(&mut self) {
        self.contents.drain(..self.contents.len() - 1);
        self.names.drain(..self.names.len() - 1);
        self.is_promised = true;
    }

    /// What is wrong with the file below `folder`, if something is.
    fn fault(&self, folder: &Path) -> Option<Wrong> {
        let mut present = self.names.iter().rev().filter(|name| folder.join(name).exists());
        let Some(name) = present.next() else {
            let is_lost = self.is_promised && !self.may_be_gone;
            return is_lost.then(|| Wrong::Lost(format!("{} is gone", self.name())));
        };
        let found = match std::fs::read(folder.join(name)) {
            Ok(found) => found,
            Err(error) => return Some(Wrong::Unreadable(format!("{name}: {error}"))),
        };
        if self.is_whole {
            let is_known = self.contents.contains(&found);
            return (!is_known).then(|| Wrong::Bytes(format!("{name}: {}", self.told(&found))));
        }
        let lengths = self.contents.iter().map(Vec::len);
        let (least, most) = (lengths.clone().min()?, lengths.max()?);
        let is_known = |(at, byte): (usize, &u8)| {
            self.contents.iter().any(|known| known.get(at) == Some(byte))
        };
        let is_right =
            (least..=most).contains(&found.len()) && found.iter().enumerate().all(is_known);
        (!is_right).then(|| Wrong::Bytes(format!("{name}: {}", self.told(&found))))
    }

    /// Where contents differ from those that are possible, for a message.
    fn told(&self, found: &[u8]) -> String {
        let lengths: Vec<usize> = self.contents.iter().map(Vec::len).collect();
        let is_known = |at: usize| self.contents.iter().any(|known| known.get(at) == found.get(at));
        let wrong: Vec<usize> = (0..found.len()).filter(|at| !is_known(*at)).collect();
        let zeros = wrong.iter().filter(|at| found[**at] == 0).count();
        format!(
            "{} bytes, {} of them wrong ({zeros} of these are 0) from {:?} on; possible lengths {lengths:?}",
            found.len(),
            wrong.len(),
            wrong.first()
        )
    }
}

/// Something that is not as it was promised.
#[derive(Debug, Clone)]
pub(crate) enum Wrong {
    /// A promised file is not there.
    Lost(String),
    /// A file or block cannot be read.
    Unreadable(String),
    /// Bytes that nobody wrote there, or not any more.
    Bytes(String),
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lost(what) => write!(f, "lost: {what}"),
            Self::Unreadable(what) => write!(f, "unreadable: {what}"),
            Self::Bytes(what) => write!(f, "wrong: {what}"),
        }
    }
}

/// What one writer has done in its folder.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// The folder's name below the mounted pool.
    pub(crate) name: String,
    pub(crate) files: Vec<Tracked>,
    /// Names that must not be there: removed, or renamed, and the folder synced after that.
    pub(crate) absent: Vec<String>,
    /// Calls of `fsync` that returned 0.
    pub(crate) synced: u64,
    /// Calls that failed.
    pub(crate) failed: u64,
}

impl Folder {
    /// Everything that is wrong below the mounted pool.
    pub(crate) fn faults(&self, at: &Path) -> Vec<Wrong> {
        let folder = at.join(&self.name);
        let mut faults: Vec<Wrong> =
            self.files.iter().filter_map(|file| file.fault(&folder)).collect();
        let back = self.absent.iter().filter(|name| folder.join(name).exists());
        faults.extend(back.map(|name| Wrong::Bytes(format!("{name} is back"))));
        faults
    }
}
