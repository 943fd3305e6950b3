//! Reads gang blocks: finds the header that leads to the block, and puts its members together.
//!
//! ```text
//!   header of the leader -> members, in order, recursively -> bytes with the leader's checksum?
//!        ^                                                      |- yes: the block
//!        `---------- another copy of it, not like those before -´  no
//! ```
//!
//! The header's own checksum has a verifier made of the leader's first DVA, whichever copy is read,
//! and its physical birth. A block that is rewritten in place keeps both. So a leaf that lost the
//! later writes has an earlier header, which verifies, and may have the members that belong to it:
//! only the checksum of the leader tells which header is the latest one. Members of the earlier
//! header seem to be bad on the leaves that have the latest ones, and repairing them would destroy
//! the block.
//!
//! Pools with large gang headers may still contain small ones, so the large size is tried first and
//! the small one after a mismatch.
//!
//! Invariants
//! * E3  Nothing about a gang block is counted or repaired before the checksum of its leader has
//!   proven its header, or no header led to the block.
//!
//! Limits: members must add up to the leader's size before any is read, and nesting ends at
//! [`GANG_DEPTH_MAX`], so a header that refers to itself costs only a few reads; a block is read
//! with at most [`STALE_MAX`] headers that do not lead to it (spec 02 §6).

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use cenote_ondisk::blkptr::{BlockPtr, Dva};
use cenote_rt::lock::{Mutex, Rank};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Buf, BufMut, Error, Kind, Result};
use cenote_vdev::{IoClass, Verify};
use futures_util::future::try_join_all;

use crate::error::BlockError;
use crate::fetch::{FailedCopies, may_repeat};
use crate::gang::{self, GANG_DEPTH_MAX};
use crate::grounds::{Evidence, Grounds, ReadAttempt, overtaken};
use crate::heal::Recovered;
use crate::store::{BlockStore, allocation_unit};
use crate::verify::Verifier;

/// Most headers, those of nested gangs included, that may turn out not to lead to the block.
const STALE_MAX: u32 = 32;

/// Something bad that was found while a gang block was read.
#[derive(Debug)]
pub(crate) enum Finding {
    /// A part was read although copies or parts of it were bad.
    Recovered(Recovered),
    /// No copy of a part verified.
    Lost { bp: BlockPtr, failed: FailedCopies },
}

/// Everything bad that was found while a gang block was read.
#[derive(Debug)]
pub(crate) struct Findings {
    list: Mutex<Vec<Finding>>,
    /// Headers of the block that did not lead to it.
    stale: Arc<AtomicU32>,
}

impl Findings {
    fn new(outer: Option<&Self>) -> Self {
        let stale = outer.map_or_else(Default::default, |outer| Arc::clone(&outer.stale));
        Self { list: Mutex::new(Rank::GangFindings, Vec::new()), stale }
    }

    pub(crate) fn note(&self, finding: Finding) {
        self.list.lock().push(finding);
    }

    fn take(&self) -> Vec<Finding> {
        std::mem::take(&mut *self.list.lock())
    }
}

/// What the headers of a gang block lead to.
struct Search {
    /// The header that leads to the block.
    header: Option<Buf>,
    /// The bytes below that header, or without one: what the first header led to.
    result: Result<Buf>,
    findings: Vec<Finding>,
}

/// Accepts a header that verifies and is none of those that did not lead to the block.
struct OtherHeader<'a> {
    verifier: &'a Verifier,
    stale: &'a [Buf],
}

impl Verify for OtherHeader<'_> {
    fn verify(&self, data: &[u8]) -> bool {
        self.verifier.verify(data) && !self.stale.iter().any(|header| header[..] == *data)
    }
}

impl BlockStore {
    /// Reads a gang block.
    pub(crate) async fn fetch_gang(&self, bp: &BlockPtr, reading: ReadAttempt<'_>) -> Result<Buf> {
        let Search { header, result, findings } = self.search(bp, 0, reading).await?;
        // Checks E3.
        let Some(_) = header else {
            return Err(self.judge_unproven(bp, result, findings, reading));
        };
        for finding in findings {
            if let Finding::Recovered(found) = finding {
                self.heal(found, reading).await;
            }
        }
        result
    }

    /// Returns the error for a gang block to which no header leads.
    fn judge_unproven(
        &self,
        bp: &BlockPtr,
        result: Result<Buf>,
        findings: Vec<Finding>,
        reading: ReadAttempt<'_>,
    ) -> Error {
        for finding in findings {
            if let Finding::Lost { bp, failed } = finding {
                return self.judge_lost(&bp, failed, reading);
            }
        }
        if let Err(error) = result {
            return error;
        }
        // Each member verifies, and the whole does not.
        let copies = Vec::new();
        match self.judge(bp, reading, None) {
            Evidence::Proven(_) => Error::new(Kind::Checksum, BlockError::AllCopiesBad { copies }),
            Evidence::Overtaken => overtaken(),
            Evidence::Unproven => Error::new(Kind::Checksum, BlockError::Unproven { copies }),
        }
    }

    /// Returns the header that leads to a gang block at this depth, for a scan; `None` if no header
    /// does. Nothing is counted.
    ///
    /// # Errors
    /// `Kind::Overtaken`, `Kind::Closed`; `Kind::Corrupt` if the pointer is invalid.
    pub(crate) async fn proven_header(
        &self,
        bp: &BlockPtr,
        depth: u32,
        grounds: &Grounds,
    ) -> Result<Option<Buf>> {
        if is_on(Bug::StaleHeaderAccepted) {
            return Ok(None);
        }
        let findings = Findings::new(None);
        let reading = self.reading(grounds, 0).of_class(IoClass::Scrub).noting(&findings);
        Ok(self.search(bp, depth, reading).await?.header)
    }

    /// Looks for the header that leads to the block.
    fn search<'a>(
        &'a self,
        bp: &'a BlockPtr,
        depth: u32,
        reading: ReadAttempt<'a>,
    ) -> BoxFuture<'a, Result<Search>> {
        Box::pin(async move {
            if depth >= GANG_DEPTH_MAX {
                let cause = BlockError::GangDepth { limit: GANG_DEPTH_MAX };
                return Err(Error::corrupt(cause));
            }
            let verifier = self.verifier(bp)?;
            let (mut stale, mut first) = (Vec::new(), None);
            loop {
                let findings = Findings::new(reading.findings);
                let early = is_on(Bug::GangHealedEarly);
                let attempt = if early { reading } else { reading.noting(&findings) };
                let (header, result) = match self.gang_header(bp, &stale, attempt).await {
                    Ok(header) => {
                        let result = self.assemble(&header, bp, depth, attempt).await;
                        (Some(header), result)
                    }
                    Err(error) => (None, Err(error)),
                };
                let result = match result {
                    // Another header would not help.
                    Err(error) if matches!(error.kind(), Kind::Overtaken | Kind::Closed) => {
                        return Err(error);
                    }
                    result => result,
                };
                let is_proven = result.as_ref().is_ok_and(|data| verifier.verify(data));
                if is_proven {
                    return Ok(Search { header, result, findings: findings.take() });
                }
                let (first_result, first_findings) =
                    first.get_or_insert_with(|| (result, findings.take()));
                let may_try = findings.stale.fetch_add(1, Ordering::Relaxed) < STALE_MAX;
                match header {
                    Some(header) if may_try => stale.push(header),
                    _ => {
                        let result = std::mem::replace(first_result, Err(overtaken()));
                        let findings = std::mem::take(first_findings);
                        return Ok(Search { header: None, result, findings });
                    }
                }
            }
        })
    }

    /// Reads the members that a header names, in order.
    async fn assemble(
        &self,
        header: &Buf,
        bp: &BlockPtr,
        depth: u32,
        reading: ReadAttempt<'_>,
    ) -> Result<Buf> {
        let members = gang::members(header, bp).map_err(Error::corrupt)?;
        let parts = try_join_all(members.iter().map(|member| async move {
            member.validate().map_err(Error::corrupt)?;
            self.check_vdevs(member)?;
            if !member.is_gang() {
                return self.fetch_plain(member, reading).await;
            }
            // A nested gang whose checksum is wrong is judged by that of the leader.
            let Search { result, findings, .. } = self.search(member, depth + 1, reading).await?;
            if let Some(outer) = reading.findings {
                for finding in findings {
                    outer.note(finding);
                }
            }
            result
        }))
        .await?;
        let mut data = BufMut::for_filling(bp.psize() as usize);
        let mut rest = &mut data[..];
        for part in &parts {
            let (head, tail) = rest.split_at_mut(part.len().min(rest.len()));
            head.copy_from_slice(&part[..head.len()]);
            rest = tail;
        }
        Ok(data.freeze())
    }

    /// Returns the members of a gang block, whose sizes add up to the leader's: their addresses are
    /// right even if the header is stale, since a block that is rewritten in place keeps them.
    ///
    /// # Errors
    /// Errors of reading a block; `Kind::Corrupt` if the members do not add up.
    pub async fn gang_members(&self, bp: &BlockPtr, grounds: &Grounds) -> Result<Vec<BlockPtr>> {
        let mut tries = 0;
        loop {
            grounds.check()?;
            match self.gang_header(bp, &[], self.reading(grounds, tries)).await {
                Err(error) if may_repeat(&error, grounds, tries) => tries += 1,
                header => return gang::members(&header?, bp).map_err(Error::corrupt),
            }
        }
    }

    /// Reads a header that is none of `stale`.
    pub(crate) async fn gang_header(
        &self,
        bp: &BlockPtr,
        stale: &[Buf],
        reading: ReadAttempt<'_>,
    ) -> Result<Buf> {
        let verifier = &Verifier::gang_header(bp, self.verifies());
        let verifier = &OtherHeader { verifier, stale };
        let mut sizes = self.gang_header_sizes(bp);
        let last = sizes.pop().unwrap_or(gang::HEADER_SIZE);
        for size in sizes {
            // A header of another size is no damage.
            if let Ok(header) = self.try_copies(bp, size, verifier, reading).await? {
                return Ok(header);
            }
        }
        self.read_copies(bp, last, verifier, reading).await
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
