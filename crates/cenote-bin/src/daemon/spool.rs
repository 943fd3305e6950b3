//! Buffers the output of a command until it may be sent: in memory up to a limit, then in a file.
//!
//! The file has no name, so nothing remains if the process dies.
//!
//! Invariants (docs/design/rules.md, rule 5)
//! * SHARE-4  The requests, the collected rows and the buffered output of users other than root and
//!   the daemon's own are limited, for each of them and for all.
//! * SHARE-6  The bytes of a user are the sum over the user's shares.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use rustix::fs::{Mode, OFlags};

/// Bytes buffered in memory for each command.
const MEMORY_MAX: usize = 1 << 20;
/// Bytes that are read from the file at a time.
const PIECE: usize = 64 << 10;

/// Limits the buffered bytes of other users.
#[derive(Debug)]
pub(super) struct Budget {
    /// Limit of each user.
    each: u64,
    /// Limit of all of them together.
    all: u64,
    /// Bytes by uid. Held for single reads and updates.
    used: Mutex<BTreeMap<u32, u64>>,
}

impl Budget {
    pub(super) fn new(each: u64, all: u64) -> Arc<Self> {
        Arc::new(Self { each, all, used: Mutex::with_default(Rank::DaemonSpool) })
    }

    /// Returns an empty share of a user.
    pub(super) fn share(self: &Arc<Self>, uid: u32) -> Share {
        Share { budget: Arc::clone(self), uid, bytes: 0 }
    }
}

/// Bytes of a user's budget, released on drop.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    uid: u32,
    bytes: u64,
}

impl Share {
    /// Returns an empty share of the same user, and releases this one.
    pub(super) fn renewed(self) -> Self {
        self.budget.share(self.uid)
    }

    /// Adds bytes, if the budget permits.
    pub(super) fn grow(&mut self, bytes: u64) -> bool {
        let mut used = self.budget.used.lock();
        let (own, all) = (used.get(&self.uid).copied().unwrap_or(0), used.values().sum::<u64>());
        let has_room = own + bytes <= self.budget.each && all + bytes <= self.budget.all
            || is_on(Bug::UnlimitedOutput);
        if has_room {
            *used.entry(self.uid).or_default() += bytes;
            self.bytes += bytes;
        }
        has_room
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        let mut used = self.budget.used.lock();
        if let Some(bytes) = used.get_mut(&self.uid) {
            // Checks SHARE-6.
            *bytes = bytes.checked_sub(self.bytes).expect("a part of the sum");
            if *bytes == 0 {
                used.remove(&self.uid);
            }
        }
    }
}

/// Bytes to be sent.
#[derive(Debug)]
pub(super) struct Spool {
    /// Directory of the file.
    folder: PathBuf,
    memory: Vec<u8>,
    /// The bytes that did not fit into memory.
    file: Option<File>,
    /// Bytes in memory and in the file.
    len: u64,
    /// `None` for users without a limit.
    share: Option<Share>,
}

impl Spool {
    pub(super) fn new(folder: &Path, share: Option<Share>) -> Self {
        Self { folder: folder.to_owned(), memory: Vec::new(), file: None, len: 0, share }
    }

    /// Returns an empty spool of the same user, in addition to this one.
    pub(super) fn renewed(&self) -> Self {
        let share = self.share.as_ref().map(|share| share.budget.share(share.uid));
        Self { folder: self.folder.clone(), memory: Vec::new(), file: None, len: 0, share }
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// `QuotaExceeded` if the user's budget is used up, and errors of the file.
    pub(super) fn append(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        // Checks SHARE-4.
        if self.share.as_mut().is_some_and(|share| !share.grow(bytes.len() as u64)) {
            return Err(std::io::ErrorKind::QuotaExceeded.into());
        }
        self.len += bytes.len() as u64;
        if self.file.is_none() && self.memory.len() + bytes.len() <= MEMORY_MAX {
            self.memory.extend_from_slice(bytes);
            return Ok(());
        }
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(unnamed_file(&self.folder)?),
        };
        file.write_all(bytes)
    }

    /// Passes all bytes in order, in pieces, to `send`, and frees the buffer.
    ///
    /// # Errors
    /// Errors of `send` and of the file.
    pub(super) fn drain(
        mut self,
        mut send: impl FnMut(&[u8]) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        send(&self.memory)?;
        self.memory = Vec::new();
        let Some(mut file) = self.file.take() else { return Ok(()) };
        file.seek(SeekFrom::Start(0))?;
        let mut piece = vec![0; PIECE];
        loop {
            let count = file.read(&mut piece)?;
            if count == 0 {
                return Ok(());
            }
            send(piece.get(..count).unwrap_or_default())?;
        }
    }
}

/// Creates a file without a name.
fn unnamed_file(folder: &Path) -> std::io::Result<File> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(folder, flags | OFlags::TMPFILE, Mode::RUSR | Mode::WUSR) {
        return Ok(file.into());
    }
    // Not every file system supports `O_TMPFILE`.
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("output.{}.{number}", std::process::id()));
    let flags = flags | OFlags::CREATE | OFlags::EXCL;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR)?;
    std::fs::remove_file(&path)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spool_returns_all_bytes_in_order_and_frees_the_budget() {
        let budget = Budget::new(4 << 20, 5 << 20);
        let folder = std::env::temp_dir();
        let mut spool = Spool::new(&folder, Some(budget.share(7)));
        let mut wanted = Vec::new();
        for round in 0..300_u32 {
            let bytes = vec![round as u8; 10_000 + round as usize];
            spool.append(&bytes).unwrap();
            wanted.extend(bytes);
        }
        assert!(spool.file.is_some() && spool.memory.len() <= MEMORY_MAX);
        let mut got = Vec::new();
        spool
            .drain(|piece| {
                got.extend_from_slice(piece);
                Ok(())
            })
            .unwrap();
        assert_eq!(got, wanted);
        assert!(budget.used.lock().is_empty());
    }

    #[test]
    fn spool_refuses_more_than_the_share_of_a_user() {
        cenote_rt::seeded::set_from_environment();
        let budget = Budget::new(100, 150);
        let mut one = budget.share(1);
        assert!(one.grow(60) && !one.grow(41) && one.grow(40));
        let mut other = budget.share(2);
        assert!(!other.grow(51) && other.grow(50));
        drop(one);
        assert!(other.grow(50) && !other.grow(1));
    }
}
