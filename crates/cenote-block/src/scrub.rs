//! Scrubs a block: reads all DVAs, all children, all parity, all gang members.
//!
//! A scrub of a block finds whether it can be read at all, and which parts of it are bad, on which
//! leaf at which offset. The cache is not used, and nothing is decrypted or decompressed: the
//! checksum covers the stored bytes. The bytes may come from extents that the caller has read in
//! device order before ([`cenote_vdev::LeafReader`]).

use cenote_ondisk::blkptr::{BlockPtr, DVAS_PER_BLOCK_PTR, Dva};
use cenote_rt::seeded::{Bug, is_on};
use cenote_rt::{BoxFuture, Buf, Error, Result};
use cenote_vdev::{BadChild, ClassReader, IoClass, LeafRange, LeafReader, Rewrite, Verify};

use crate::error::CopyFailure;
use crate::fetch::failure;
use crate::gang;
use crate::grounds::{Evidence, Grounds, ReadAttempt, overtaken};
use crate::store::BlockStore;
use crate::verify::Verifier;

/// A bad part of a block.
#[derive(Debug, Clone)]
pub struct BadPart {
    /// Index of the DVA; for a gang member, index of the member's DVA.
    pub dva: u8,
    /// Whether it belongs to a gang header.
    pub is_gang_header: bool,
    /// Leaf, offset and cause.
    pub child: BadChild,
}

/// Result of scrubbing one block.
#[derive(Debug, Clone, Default)]
pub struct ScrubReport {
    /// Every bad part.
    pub bad: Vec<BadPart>,
    /// DVAs from which the bytes could not be read.
    pub lost: Vec<CopyFailure>,
    /// Number of blocks, gang headers or members without a readable DVA: data is lost if not 0.
    pub unreadable: u64,
    /// Physical bytes checked, parity included.
    pub bytes: u64,
}

impl ScrubReport {
    /// Whether nothing was bad.
    pub fn is_clean(&self) -> bool {
        self.bad.is_empty() && self.lost.is_empty() && self.unreadable == 0
    }

    /// Whether the block can be read.
    pub fn is_readable(&self) -> bool {
        self.unreadable == 0
    }

    fn take(&mut self, other: Self) {
        self.bad.extend(other.bad);
        self.lost.extend(other.lost);
        self.unreadable += other.unreadable;
        self.bytes += other.bytes;
    }
}

impl BlockStore {
    /// Reads every copy of the block at `bp`. Holes, embedded and redacted pointers are clean.
    ///
    /// # Errors
    /// If the pointer itself is invalid; everything else is in the report. `Kind::Overtaken` if the
    /// state being read was released; `Kind::Closed` if the pool was closed.
    pub async fn scrub(&self, bp: &BlockPtr, grounds: &Grounds) -> Result<ScrubReport> {
        let reader = ClassReader::new(self.tree(), IoClass::Scrub);
        let reading = self.reading(grounds, 0);
        let report = self.scrub_parts(bp, &reader, grounds).await?;
        self.judged(bp, reading, report)
    }

    /// Counts proven errors in the report against the devices; returns the report.
    fn judged(
        &self,
        bp: &BlockPtr,
        reading: ReadAttempt<'_>,
        mut report: ScrubReport,
    ) -> Result<ScrubReport> {
        if report.is_clean() {
            return Ok(report);
        }
        // The devices were closed under the reader: what could not be read is not bad.
        self.tree().check_open()?;
        // Checks E2.
        match self.judge(bp, reading, None) {
            Evidence::Proven(_) => {
                let bad = report.bad.iter_mut().map(|part| &mut part.child);
                self.tree().count_checksum_errors(bad, IoClass::Scrub);
                Ok(report)
            }
            Evidence::Unproven => Ok(report),
            Evidence::Overtaken => Err(overtaken()),
        }
    }

    async fn scrub_parts(
        &self,
        bp: &BlockPtr,
        reader: &dyn LeafReader,
        grounds: &Grounds,
    ) -> Result<ScrubReport> {
        if bp.is_hole() || bp.is_embedded() {
            return Ok(ScrubReport::default());
        }
        bp.validate().map_err(Error::corrupt)?;
        if bp.is_gang() {
            return self.scrub_gang(bp, reader, 0, grounds).await;
        }
        let verifier = self.verifier(bp)?;
        Ok(self.scrub_copies(bp, bp.psize(), &verifier, reader, false).await)
    }

    /// Reads one copy, at DVA number `index`, of a block that is not a gang block. The report's
    /// `unreadable` concerns this copy only.
    pub async fn scrub_copy_with(
        &self,
        bp: &BlockPtr,
        index: usize,
        reader: &dyn LeafReader,
        grounds: &Grounds,
    ) -> Result<ScrubReport> {
        let reading = self.reading(grounds, 0);
        bp.validate().map_err(Error::corrupt)?;
        let verifier = self.verifier(bp)?;
        let mut report = ScrubReport::default();
        if let Some(dva) = bp.dva(index) {
            let (psize, whose) = (bp.psize(), (index, false));
            let is_readable =
                self.scrub_copy(bp, (&dva, psize), &verifier, reader, whose, &mut report).await;
            report.unreadable = u64::from(!is_readable);
        }
        self.judged(bp, reading, report)
    }

    /// Writes the bytes of a block where a copy, a part or parity lacks them, because no flush had
    /// followed when the power was cut. Nothing is counted: no device is wrong. The caller has just
    /// claimed the block, so nobody else uses its space.
    ///
    /// # Errors
    /// Errors of reading the block.
    pub async fn complete(&self, bp: &BlockPtr) -> Result<()> {
        let grounds = &Grounds::Speculative;
        let tree = std::sync::Arc::clone(self.tree());
        if bp.is_gang() {
            for member in self.gang_members(bp, grounds).await? {
                Box::pin(self.complete(&member)).await?;
            }
            let header = self.scrub_header(bp, &*tree).await;
            if header.is_clean() {
                return Ok(());
            }
            let data = self.gang_header(bp, &[], self.reading(grounds, 0)).await?;
            return self.complete_parts(bp, &data, header).await;
        }
        let report = self.scrub_parts(bp, &*tree, grounds).await?;
        if report.is_clean() {
            return Ok(());
        }
        let data = self.read_raw(bp, grounds).await?;
        self.complete_parts(bp, &data, report).await
    }

    async fn complete_parts(&self, bp: &BlockPtr, data: &Buf, report: ScrubReport) -> Result<()> {
        for (index, dva) in bp.dvas().enumerate() {
            let parts = report.bad.iter().filter(|part| usize::from(part.dva) == index);
            let bad: Vec<_> = parts.map(|part| part.child.clone()).collect();
            let birth = bp.physical_birth();
            self.tree().repair(dva, data, birth, &bad, Rewrite::Unwritten(birth)).await?;
        }
        Ok(())
    }

    /// Verifies stored bytes that the caller has read itself.
    pub fn accepts(&self, bp: &BlockPtr, stored: &[u8]) -> bool {
        self.verifier(bp).is_ok_and(|verifier| verifier.verify(stored))
    }

    /// The ranges of leaves that a scrub of the block reads first: of a gang block, only those of
    /// its header.
    pub fn leaf_ranges(&self, bp: &BlockPtr) -> Vec<LeafRange> {
        if bp.is_hole() || bp.is_embedded() {
            return Vec::new();
        }
        let size = if bp.is_gang() { gang::HEADER_SIZE } else { bp.psize() };
        let birth = bp.physical_birth();
        bp.dvas().flat_map(|dva| self.tree().leaf_ranges(dva, size, birth)).collect()
    }

    /// The ranges of leaves that the layout assigns to the copy at DVA number `index`, or to all
    /// copies, whether or not the leaves have the data. Of a gang block: only those of its header.
    pub fn layout_ranges(&self, bp: &BlockPtr, index: Option<usize>) -> Vec<LeafRange> {
        if bp.is_hole() || bp.is_embedded() {
            return Vec::new();
        }
        let size = if bp.is_gang() { gang::HEADER_SIZE } else { bp.psize() };
        let dvas = (0..DVAS_PER_BLOCK_PTR).filter(|at| index.is_none_or(|index| index == *at));
        let dvas = dvas.filter_map(|at| bp.dva(at));
        dvas.flat_map(|dva| self.tree().layout_ranges(dva, size, bp.physical_birth())).collect()
    }

    /// Reads `psize` bytes at every DVA.
    async fn scrub_copies(
        &self,
        bp: &BlockPtr,
        psize: u64,
        verify: &dyn Verify,
        reader: &dyn LeafReader,
        is_gang_header: bool,
    ) -> ScrubReport {
        let mut report = ScrubReport::default();
        let mut is_readable = false;
        for (index, dva) in bp.dvas().enumerate() {
            let whose = (index, is_gang_header);
            is_readable |=
                self.scrub_copy(bp, (&dva, psize), verify, reader, whose, &mut report).await;
        }
        report.unreadable = u64::from(!is_readable);
        report
    }

    /// Reads `psize` bytes at one DVA; returns whether they could be read.
    async fn scrub_copy(
        &self,
        bp: &BlockPtr,
        (dva, psize): (&Dva, u64),
        verify: &dyn Verify,
        reader: &dyn LeafReader,
        (index, is_gang_header): (usize, bool),
        report: &mut ScrubReport,
    ) -> bool {
        let birth = bp.physical_birth();
        report.bytes += self.tree().asize_for(dva.vdev.into(), psize, birth).unwrap_or(psize);
        match self.tree().scrub_with(reader, dva, psize, birth, verify).await {
            Ok(read) => {
                let is_readable = read.good.is_some();
                if !is_readable {
                    report.lost.push(lost_copy(index, dva, read.bad.clone()));
                }
                let part = |child| BadPart { dva: index as u8, is_gang_header, child };
                report.bad.extend(read.bad.into_iter().map(part));
                is_readable
            }
            Err(error) => {
                report.lost.push(failure(index, dva, &error, Vec::new()));
                false
            }
        }
    }

    fn scrub_gang<'a>(
        &'a self,
        bp: &'a BlockPtr,
        reader: &'a dyn LeafReader,
        depth: u32,
        grounds: &'a Grounds,
    ) -> BoxFuture<'a, Result<ScrubReport>> {
        Box::pin(async move {
            let proven = self.proven_header(bp, depth, grounds).await?;
            let (mut report, members) = if let Some(header) = &proven {
                let same = |data: &[u8]| data == &header[..];
                let size = header.len() as u64;
                let report = self.scrub_copies(bp, size, &same, reader, true).await;
                (report, gang::members(header, bp).map_err(Error::corrupt)?)
            } else {
                let report = self.scrub_header(bp, reader).await;
                if !report.is_readable() {
                    return Ok(report);
                }
                (report, self.gang_members(bp, grounds).await?)
            };
            for member in members {
                let part = if member.is_gang() {
                    self.scrub_gang(&member, reader, depth + 1, grounds).await
                } else {
                    self.scrub_parts(&member, reader, grounds).await
                };
                report.take(part?);
            }
            // Each part may verify, and the whole does not.
            let is_lost = proven.is_none() && depth == 0 && !is_on(Bug::StaleHeaderAccepted);
            report.unreadable = report.unreadable.max(u64::from(is_lost));
            Ok(report)
        })
    }

    /// Scrubs the gang header, in the size that it has.
    async fn scrub_header(&self, bp: &BlockPtr, reader: &dyn LeafReader) -> ScrubReport {
        let verifier = Verifier::gang_header(bp, self.verifies());
        let mut last = ScrubReport::default();
        for size in self.gang_header_sizes(bp) {
            last = self.scrub_copies(bp, size, &verifier, reader, true).await;
            if last.is_readable() {
                break;
            }
        }
        last
    }
}

fn lost_copy(index: usize, dva: &Dva, bad: Vec<BadChild>) -> CopyFailure {
    let (vdev, offset) = (dva.vdev, dva.offset);
    let cause = "no combination of its parts has the right checksum".to_owned();
    CopyFailure { dva: index as u8, vdev, offset, bad, cause }
}
