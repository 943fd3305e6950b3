//! Fetches the stored bytes of a block pointer: copies and gang blocks.
//!
//!     for each DVA in order: vdev read (all children, all reconstructions) -> verified? done
//!     none: the block is lost, and the error names every DVA, device and offset
//!
//! A gang block's DVAs address headers; the header's members, read in order and recursively, are
//! the stored bytes of the leader. The header's own checksum has a verifier made of the leader's
//! first DVA, whichever copy is read, and its physical birth. Pools with large gang headers may
//! still contain small ones, so the large size is tried first and the small one after a mismatch.
//!
//! Limits: members must add up to the leader's size before any is read, and nesting ends at
//! [`GANG_DEPTH_MAX`]; so a header that refers to itself costs only a few reads (spec 02 §6).

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result};
use cenote_vdev::{BadChild, ClassReader, IoClass, Verify};
use futures_util::future::try_join_all;

use crate::alloc::Guard;
use crate::error::{BlockError, CopyFailure};
use crate::gang::{self, GANG_DEPTH_MAX};
use crate::grounds::{Evidence, Grounds, ReadAttempt, overtaken};
use crate::store::{BlockStore, allocation_unit};
use crate::verify::Verifier;

/// How often a block is read again while its pointer stays valid.
const TRIES_MAX: u32 = 16;

/// A block none of whose copies verified.
struct FailedCopies {
    kind: Kind,
    copies: Vec<CopyFailure>,
    guard: Option<Guard>,
}

/// Whether the block is read again after its metaslab was reused, because its pointer stays valid
/// regardless.
fn may_repeat(error: &Error, grounds: &Grounds, tries: u32) -> bool {
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
                self.fetch_gang(bp, 0, reading).await
            } else {
                self.fetch_plain(bp, reading).await
            };
            match result {
                Err(error) if may_repeat(&error, grounds, tries) => tries += 1,
                result => return result,
            }
        }
    }

    fn check_vdevs(&self, bp: &BlockPtr) -> Result<()> {
        // OpenZFS refuses a pointer if any of its vdevs does not exist; with one good copy left,
        // reading it is the better answer.
        let exists = |dva: &Dva| self.tree().top(u64::from(dva.vdev)).is_some();
        match bp.dvas().next() {
            None => Err(Error::corrupt(BlockError::NoDva)),
            Some(_) if bp.dvas().any(|dva| exists(&dva)) => Ok(()),
            Some(dva) => Err(Error::corrupt(BlockError::Vdev { vdev: dva.vdev })),
        }
    }

    async fn fetch_plain(&self, bp: &BlockPtr, reading: ReadAttempt<'_>) -> Result<Buf> {
        let verifier = self.verifier(bp)?;
        self.read_copies(bp, bp.psize(), &verifier, reading).await
    }

    /// Reads `psize` bytes from the first DVA that verifies.
    async fn read_copies(
        &self,
        bp: &BlockPtr,
        psize: u64,
        verify: &dyn Verify,
        reading: ReadAttempt<'_>,
    ) -> Result<Buf> {
        let (kind, mut copies, guard) = match self.try_copies(bp, psize, verify, reading).await? {
            Ok(data) => return Ok(data),
            Err(FailedCopies { kind, copies, guard }) => (kind, copies, guard),
        };
        // Checks E2.
        match self.judge(bp, reading, guard) {
            Evidence::Proven(_) => {
                let bad = copies.iter_mut().flat_map(|copy| &mut copy.bad);
                self.tree().count_checksum_errors(bad, reading.class);
                self.report_bad(copies.iter().flat_map(|copy| &copy.bad), reading.class, 0);
                Err(self.lost(kind, copies))
            }
            // An I/O error says nothing about the block.
            Evidence::Overtaken if kind == Kind::Checksum => Err(overtaken()),
            Evidence::Overtaken if matches!(reading.grounds, Grounds::Pinned(_)) => {
                Err(overtaken())
            }
            Evidence::Overtaken | Evidence::Unproven => {
                Err(Error::new(kind, BlockError::Unproven { copies }))
            }
        }
    }

    /// Reads `psize` bytes from the first DVA that verifies; if none does, returns the errors
    /// found. Nothing is counted then.
    async fn try_copies(
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
                    if !copies.is_empty() || !bad.is_empty() {
                        let evidence = self.judge(bp, reading, guard);
                        let found = (copies, reading.class);
                        self.heal(bp, &data, (&dva, bad), found, evidence).await;
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

    fn fetch_gang<'a>(
        &'a self,
        bp: &'a BlockPtr,
        depth: u32,
        reading: ReadAttempt<'a>,
    ) -> BoxFuture<'a, Result<Buf>> {
        Box::pin(async move {
            if depth >= GANG_DEPTH_MAX {
                let cause = BlockError::GangDepth { limit: GANG_DEPTH_MAX };
                return Err(Error::corrupt(cause));
            }
            let members = self.members(bp, reading).await?;
            let parts = try_join_all(members.iter().map(|member| async move {
                member.validate().map_err(Error::corrupt)?;
                self.check_vdevs(member)?;
                if member.is_gang() {
                    self.fetch_gang(member, depth + 1, reading).await
                } else {
                    self.fetch_plain(member, reading).await
                }
            }))
            .await?;
            let mut data = BufMut::for_filling(bp.psize() as usize);
            let mut rest = &mut data[..];
            for part in &parts {
                let (head, tail) = rest.split_at_mut(part.len().min(rest.len()));
                head.copy_from_slice(&part[..head.len()]);
                rest = tail;
            }
            // Each member has its own checksum; the leader's checksum covers their order.
            if depth == 0 && !self.verifier(bp)?.verify(&data) {
                let copies = Vec::new();
                return Err(match self.judge(bp, reading, None) {
                    Evidence::Proven(_) => {
                        Error::new(Kind::Checksum, BlockError::AllCopiesBad { copies })
                    }
                    Evidence::Overtaken => overtaken(),
                    Evidence::Unproven => {
                        Error::new(Kind::Checksum, BlockError::Unproven { copies })
                    }
                });
            }
            Ok(data.freeze())
        })
    }

    /// Returns the members of a gang block, whose sizes add up to the leader's.
    ///
    /// # Errors
    /// Errors of reading a block; `Kind::Corrupt` if the members do not add up.
    pub async fn gang_members(&self, bp: &BlockPtr, grounds: &Grounds) -> Result<Vec<BlockPtr>> {
        let mut tries = 0;
        loop {
            grounds.check()?;
            match self.members(bp, self.reading(grounds, tries)).await {
                Err(error) if may_repeat(&error, grounds, tries) => tries += 1,
                result => return result,
            }
        }
    }

    async fn members(&self, bp: &BlockPtr, reading: ReadAttempt<'_>) -> Result<Vec<BlockPtr>> {
        let header = self.gang_header(bp, reading).await?;
        gang::members(&header, bp).map_err(Error::corrupt)
    }

    pub(crate) async fn gang_header(&self, bp: &BlockPtr, reading: ReadAttempt<'_>) -> Result<Buf> {
        let verifier = Verifier::gang_header(bp, self.verifies());
        let mut sizes = self.gang_header_sizes(bp);
        let last = sizes.pop().unwrap_or(gang::HEADER_SIZE);
        for size in sizes {
            // A header of another size is no damage.
            if let Ok(header) = self.try_copies(bp, size, &verifier, reading).await? {
                return Ok(header);
            }
        }
        self.read_copies(bp, last, &verifier, reading).await
    }

    /// The possible sizes of the header, in the order in which they are tried.
    pub(crate) fn gang_header_sizes(&self, bp: &BlockPtr) -> Vec<u64> {
        let mut sizes = Vec::new();
        if self.has_large_gang_headers() {
            let unit = |dva: Dva| allocation_unit(self.tree(), u64::from(dva.vdev));
            let units = bp.dvas().filter_map(unit);
            sizes.extend(units.min().filter(|size| *size > gang::HEADER_SIZE));
        }
        sizes.push(gang::HEADER_SIZE);
        sizes
    }
}

pub(crate) fn failure(index: usize, dva: &Dva, error: &Error, bad: Vec<BadChild>) -> CopyFailure {
    let (vdev, offset, cause) = (dva.vdev, dva.offset, error.to_string());
    CopyFailure { dva: index as u8, vdev, offset, bad, cause }
}
