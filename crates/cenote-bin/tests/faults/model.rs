//! A model of files: what was written, what was promised, and whether it is there.
//!
//! A file has a list of contents, each the result of one change. A successful `fsync` promises the
//! newest, which then becomes the first of the list. After a crash each byte may be that of any of
//! the list (a change may be partial), and the length is between those of the list. A file that is
//! replaced by `rename` has one of the contents as a whole.
//!
//! A failed change may be present or not, so it is listed like a successful one.

use std::fmt;
use std::path::Path;

/// A file, its possible names, and its possible contents.
#[derive(Debug, Clone)]
pub(crate) struct Tracked {
    /// Its possible names, the newest last.
    pub(crate) names: Vec<String>,
    /// Its possible contents, the newest last.
    pub(crate) contents: Vec<Vec<u8>>,
    /// An `fsync` succeeded, so the first of the contents is promised.
    pub(crate) is_promised: bool,
    /// It may have been removed.
    pub(crate) may_be_gone: bool,
    /// The file is replaced as a whole.
    pub(crate) is_whole: bool,
}

impl Tracked {
    /// Returns a new empty file.
    pub(crate) fn created(name: &str) -> Self {
        Self {
            names: vec![name.to_owned()],
            contents: vec![Vec::new()],
            is_promised: false,
            may_be_gone: false,
            is_whole: false,
        }
    }

    /// Returns its newest name.
    pub(crate) fn name(&self) -> &str {
        self.names.last().unwrap()
    }

    /// Returns its newest contents.
    pub(crate) fn newest(&self) -> &[u8] {
        self.contents.last().unwrap()
    }

    /// Records a change, successful or not.
    pub(crate) fn change(&mut self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut next = self.newest().to_vec();
        change(&mut next);
        self.contents.push(next);
    }

    /// Records a successful `fsync`: the newest name and contents are promised.
    pub(crate) fn promise(&mut self) {
        self.contents.drain(..self.contents.len() - 1);
        self.names.drain(..self.names.len() - 1);
        self.is_promised = true;
    }

    /// Returns how the file below `folder` differs from the model.
    fn fault(&self, folder: &Path) -> Option<Wrong> {
        let mut present = self.names.iter().rev().filter(|name| folder.join(name).exists());
        let Some(name) = present.next() else {
            let is_lost = self.is_promised && !self.may_be_gone;
            let why = || match std::fs::symlink_metadata(folder.join(self.name())) {
                Ok(_) => "it is back".to_owned(),
                Err(error) => error.to_string(),
            };
            return is_lost.then(|| Wrong::Lost(format!("{} is gone: {}", self.name(), why())));
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

    /// Describes where contents differ from the possible ones.
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

/// A difference from the promised state.
#[derive(Debug, Clone)]
pub(crate) enum Wrong {
    /// A promised file does not exist.
    Lost(String),
    /// A file or block cannot be read.
    Unreadable(String),
    /// Bytes that were never written there, or are outdated.
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

/// The changes of one writer in its directory.
#[derive(Debug, Default)]
pub(crate) struct Folder {
    /// The directory's name below the mounted pool.
    pub(crate) name: String,
    pub(crate) files: Vec<Tracked>,
    /// Names that must not exist: removed, or renamed, and the directory synced after that.
    pub(crate) absent: Vec<String>,
    /// Number of successful calls of `fsync`.
    pub(crate) synced: u64,
    /// Number of failed calls.
    pub(crate) failed: u64,
}

impl Folder {
    /// Returns all differences below the mounted pool.
    pub(crate) fn faults(&self, at: &Path) -> Vec<Wrong> {
        let folder = at.join(&self.name);
        let mut faults: Vec<Wrong> =
            self.files.iter().filter_map(|file| file.fault(&folder)).collect();
        let back = self.absent.iter().filter(|name| folder.join(name).exists());
        faults.extend(back.map(|name| Wrong::Bytes(format!("{name} is back"))));
        faults
    }
}
