//! Fetches the stored bytes of a block pointer.
//!
//!     for each DVA in order: vdev read (all children, all reconstructions) -> verified? done
//!     none: the block is lost, and the error names every DVA, device and offset
//!
//! Gang blocks are read by [`crate::assemble`].

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_rt::{Buf, Error, Kind, Result};
use cenote_vdev::{BadChild, ClassReader, IoClass, Verify};

use crate::alloc::Guard;
use crate::assemble::Finding;
use crate::error::{BlockError, CopyFailure};
use crate::grounds::{Evidence, Grounds, ReadAttempt, overtaken};
use crate::heal::Recovered;
use crate::store::BlockStore;

/// How often a block is read again while its pointer stays valid.
const TRIES_MAX: u32 = 16;

/// A block none of whose copies verified.
#[derive(Debug)]
pub(crate) struct FailedCopies {
    pub(crate) kind: Kind,
    pub(crate) copies: Vec<CopyFailure>,
    pub(crate) guard: Option<Guard>,
}

/// Whether the block is read again after its metaslab was reused, because its pointer stays valid
/// regardless.
pub(crate) fn may_repeat(error: &Error, grounds: &Grounds, tries: u32) -> bool {
    error.kind() == Kind::Overtaken
        && matches!(grounds, Grounds::Held(_) | Grounds::Allocated)
        && tries < TRIES_MAX
}

impl BlockStore {
    /// Returns the verified stored bytes of a block that has an address, `psize` of them.
    pub(crate) async fn fetch(
        &self,
        bp: &BlockPtr,
        grounds: &Grounds,
        class: IoClass,
    ) -> Result<Buf> {
        bp.validate().map_err(Error::corrupt)?;
        self.check_vdevs(bp)?;
        let mut tries = 0;
        let class = grounds.class(class);
        loop {
            grounds.check()?;
            let reading = self.reading(grounds, tries).of_class(class);
            let result = if bp.is_gang() {
                self.fetch_gang(bp, reading).await
            } else {
                self.fetch_plain(bp, reading).await
            };
            match result {
                Err(error) if may_repeat(&error, grounds, tries) => tries += 1,
                result => return result,
            }
        }
    }

    pub(crate) fn check_vdevs(&self, bp: &BlockPtr) -> Result<()> {
        // OpenZFS refuses a pointer if any of its vdevs does not exist; with one good copy left,
        // reading it is the better answer.
        let exists = |dva: &Dva| self.tree().top(u64::from(dva.vdev)).is_some();
        match bp.dvas().next() {
            None => Err(Error::corrupt(BlockError::NoDva)),
            Some(_) if bp.dvas().any(|dva| exists(&dva)) => Ok(()),
            Some(dva) => Err(Error::corrupt(BlockError::Vdev { vdev: dva.vdev })),
        }
    }

    pub(crate) async fn fetch_plain(&self, bp: &BlockPtr, reading: ReadAttempt<'_>) -> Result<Buf> {
        let verifier = self.verifier(bp)?;
        self.read_copies(bp, bp.psize(), &verifier, reading).await
    }

    /// Reads `psize` bytes from the first DVA that verifies.
    pub(crate) async fn read_copies(
        &self,
        bp: &BlockPtr,
        psize: u64,
        verify: &dyn Verify,
        reading: ReadAttempt<'_>,
    ) -> Result<Buf> {
        let failed = match self.try_copies(bp, psize, verify, reading).await? {
            Ok(data) => return Ok(data),
            Err(failed) => failed,
        };
        match reading.findings {
            Some(findings) => {
                let error = self.lost(failed.kind, failed.copies.clone());
                findings.note(Finding::Lost { bp: *bp, failed });
                Err(error)
            }
            // Checks E2.
            None => Err(self.judge_lost(bp, failed, reading)),
        }
    }

    /// Returns the error for a block none of whose copies verified, and counts and reports them if
    /// there is proof that they are bad.
    pub(crate) fn judge_lost(
        &self,
        bp: &BlockPtr,
        FailedCopies { kind, mut copies, guard }: FailedCopies,
        reading: ReadAttempt<'_>,
    ) -> Error {
        match self.judge(bp, reading, guard) {
            Evidence::Proven(_) => {
                let bad = copies.iter_mut().flat_map(|copy| &mut copy.bad);
                self.tree().count_checksum_errors(bad, reading.class);
                self.report_bad(copies.iter().flat_map(|copy| &copy.bad), reading.class, 0);
                self.lost(kind, copies)
            }
            // An I/O error says nothing about the block.
            Evidence::Overtaken if kind == Kind::Checksum => overtaken(),
            Evidence::Overtaken if matches!(reading.grounds, Grounds::Pinned(_)) => overtaken(),
            Evidence::Overtaken | Evidence::Unproven => {
                Error::new(kind, BlockError::Unproven { copies })
            }
        }
    }

    /// Reads `psize` bytes from the first DVA that verifies; if none does, returns the errors
    /// found. Nothing is counted then.
    pub(crate) async fn try_copies(
        &self,
        bp: &BlockPtr,
        psize: u64,
        verify: &dyn Verify,
        reading: ReadAttempt<'_>,
    ) -> Result<std::result::Result<Buf, FailedCopies>> {
        let guard = self.guard_first(bp, reading)?;
        let mut copies = Vec::new();
        let mut kind = Kind::Io;
        for (index, dva) in bp.dvas().enumerate() {
            let (tree, birth) = (&**self.tree(), bp.physical_birth());
            let reader = ClassReader::new(tree, reading.class);
            let (result, bad) = tree.read_reporting(&reader, &dva, psize, birth, verify).await;
            match result {
                Ok(data) => {
                    if copies.is_empty() && bad.is_empty() {
                        return Ok(Ok(data));
                    }
                    let found = Recovered { bp: *bp, data: data.clone(), dva, bad, copies, guard };
                    match reading.findings {
                        Some(findings) => findings.note(Finding::Recovered(found)),
                        None => self.heal(found, reading).await,
                    }
                    return Ok(Ok(data));
                }
                // The pool was closed: no copy of the block is bad.
                Err(error) if error.kind() == Kind::Closed => return Err(error),
                Err(error) => {
                    if error.kind() == Kind::Checksum {
                        kind = Kind::Checksum;
                    }
                    copies.push(failure(index, &dva, &error, bad));
                }
            }
        }
        Ok(Err(FailedCopies { kind, copies, guard }))
    }

    /// The error for a block whose copies all failed. It names the first device that returned wrong
    /// bytes, or the vdev if no device returned anything.
    fn lost(&self, kind: Kind, copies: Vec<CopyFailure>) -> Error {
        let bad = copies.iter().flat_map(|copy| &copy.bad).next();
        let device = bad.map(|bad| (bad.path.clone(), bad.offset));
        let vdev = copies
            .first()
            .and_then(|copy| Some((self.tree().top(u64::from(copy.vdev))?.guid(), copy.offset)));
        let error = Error::new(kind, BlockError::AllCopiesBad { copies });
        match (device, vdev) {
            (Some((path, offset)), _) => error.on_device(&path, offset),
            (None, Some((guid, offset))) => {
                error.with_at(|at| (at.vdev, at.offset) = (Some(guid), Some(offset)))
            }
            (None, None) => error,
        }
    }
}

pub(crate) fn failure(index: usize, dva: &Dva, error: &Error, bad: Vec<BadChild>) -> CopyFailure {
    let (vdev, offset, cause) = (dva.vdev, dva.offset, error.to_string());
    CopyFailure { dva: index as u8, vdev, offset, bad, cause }
}
