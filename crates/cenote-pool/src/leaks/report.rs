//! Findings of the leak check.

use std::sync::Arc;

use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::indirect::{MappingPhys, counts};
use cenote_ondisk::vdev_zap::{OBSOLETE_COUNTS_PRECISE, OBSOLETE_SM};
use cenote_rt::Result;

use super::LISTED_MAX;
use super::segments::Segment;
use super::shared::{Leftover, Table};
use crate::accounting::{VdevFigures, top_zap, vdev};
use crate::spacemaps::Fault;
use crate::{Pool, mos};

/// A list of segments of limited length, with exact totals.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Segments {
    /// The first segments.
    pub listed: Vec<Segment>,
    /// Total bytes.
    pub bytes: u64,
    /// Total number.
    pub count: u64,
}

impl Segments {
    fn add(&mut self, segment: Segment) {
        self.bytes += segment.end - segment.start;
        self.count += 1;
        if self.listed.len() < LISTED_MAX {
            self.listed.push(segment);
        }
    }
}

/// A removed vdev whose obsolete bytes are inconsistent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ObsoleteMismatch {
    /// The vdev.
    pub vdev: u64,
    /// Mapped bytes without references.
    pub found: u64,
    /// Recorded obsolete bytes.
    pub recorded: u64,
}

/// Findings of the leak check.
#[derive(Debug, Clone, Default)]
pub struct LeakReport {
    /// Bytes of all addresses, including repeated references.
    pub claimed: u64,
    /// Bytes of repeated references.
    pub shared: u64,
    /// Bytes that only the checkpoint holds.
    pub checkpoint: u64,
    /// Bytes of dedup entries without references, whose blocks are freed when the log is flushed.
    pub unreferenced: u64,
    /// Allocated bytes, from the headers of the space maps and the logs.
    pub allocated: u64,
    /// Allocated but not claimed.
    pub leaked: Segments,
    /// Claimed but not allocated.
    pub unallocated: Segments,
    /// Claimed by two blocks.
    pub doubles: Segments,
    /// Blocks whose allocated sizes are less than their vdevs need.
    pub short: Segments,
    /// References counted in tables that were not found.
    pub leftovers: Vec<Leftover>,
    /// Inconsistent entries of space maps.
    pub faults: Vec<Fault>,
    /// Removed vdevs whose obsolete counts are wrong.
    pub obsolete: Vec<ObsoleteMismatch>,
    /// Unreadable blocks: space below them counts as leaked.
    pub damage: Vec<String>,
    /// Referenced bytes of removed vdevs.
    referenced: Vec<(u64, u64)>,
}

impl LeakReport {
    /// Returns the bytes of all addresses, without repeated references.
    #[must_use]
    pub fn found(&self) -> u64 {
        let held = self.checkpoint.wrapping_add(self.unreferenced);
        self.claimed.wrapping_sub(self.shared).wrapping_add(held)
    }

    /// Whether there are no findings.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.leaked.count == 0
            && self.unallocated.count == 0
            && self.doubles.count == 0
            && self.short.count == 0
            && self.leftovers.is_empty()
            && self.faults.is_empty()
            && self.obsolete.is_empty()
            && self.damage.is_empty()
    }

    /// Returns the findings as lines of text.
    #[must_use]
    pub fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.damage.iter().map(|damage| format!("not looked at: {damage}")).collect();
        lines.extend(self.faults.iter().map(|fault| format!("space maps: {fault}")));
        let kinds = [
            ("leaked space", &self.leaked),
            ("block in free space", &self.unallocated),
            ("space of two blocks", &self.doubles),
            ("too little space of a block", &self.short),
        ];
        for (what, segments) in kinds {
            lines.extend(segments.listed.iter().map(|segment| {
                let &Segment { vdev, start, end } = segment;
                format!("{what}: vdev {vdev}, offset {start:#x}, size {}", end - start)
            }));
            if segments.count > segments.listed.len() as u64 {
                lines.push(format!("{what}: {} segments in all", segments.count));
            }
        }
        for leftover in &self.leftovers {
            let &Leftover { table, vdev, offset, references } = leftover;
            let what = match table {
                Table::Dedup => "DDT leak",
                Table::Clones => "BRT leak",
            };
            lines.push(format!("{what}: vdev {vdev}, offset {offset:#x}, {references} references"));
        }
        for mismatch in &self.obsolete {
            let &ObsoleteMismatch { vdev, found, recorded } = mismatch;
            lines.push(format!(
                "obsolete indirect mapping count mismatch: vdev {vdev}, found {found}, recorded {recorded}"
            ));
        }
        lines.push(if self.is_clean() {
            format!("no leaks: {} bytes, as the space maps have it", self.found())
        } else {
            let (found, allocated) = (self.found(), self.allocated);
            format!("{found} bytes found, {allocated} allocated, {} leaked", self.leaked.bytes)
        });
        lines
    }

    pub(super) fn note_leaked(&mut self, segments: impl Iterator<Item = Segment>) {
        segments.for_each(|segment| self.leaked.add(segment));
    }

    pub(super) fn note_unallocated(&mut self, segments: impl Iterator<Item = Segment>) {
        segments.for_each(|segment| self.unallocated.add(segment));
    }

    pub(super) fn note_doubles(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.doubles.add(*segment);
        }
    }

    pub(super) fn note_short(&mut self, segments: &[Segment]) {
        for segment in segments {
            self.short.add(*segment);
        }
    }

    /// Notes the bytes of a removed vdev that are still referenced.
    pub(super) fn note_referenced(&mut self, vdev: u64, bytes: u64) {
        self.referenced.push((vdev, bytes));
    }

    /// Adds up the allocated bytes and checks the counts of removed vdevs.
    pub(super) async fn sum_up(&mut self, pool: &Arc<Pool>, vdevs: &[VdevFigures]) {
        self.allocated = vdevs.iter().fold(0, |sum, vdev| sum.wrapping_add(vdev.allocated));
        for config in &pool.config().vdev_tree.children {
            let of_vdev = self.referenced.iter().filter(|(id, _)| *id == config.id);
            let referenced = of_vdev.map(|(_, bytes)| *bytes).sum();
            match check_obsolete(pool, config, referenced).await {
                Ok(mismatch) => self.obsolete.extend(mismatch),
                Err(error) => self.damage.push(format!("vdev {}: {error}", config.id)),
            }
        }
    }
}

/// Compares the unreferenced bytes of a removed vdev with its records, if those are precise.
async fn check_obsolete(
    pool: &Arc<Pool>,
    config: &VdevConfig,
    referenced: u64,
) -> Result<Option<ObsoleteMismatch>> {
    let mos = pool.mos();
    let is_removed = config.kind == VdevKind::Indirect;
    let Some(object @ 1..) = config.top.indirect_object.filter(|_| is_removed) else {
        return Ok(None);
    };
    let is_precise = top_zap(mos, config, OBSOLETE_COUNTS_PRECISE).await?.unwrap_or(0) != 0;
    let is_moving = pool.directory_object(cenote_ondisk::dsl::key::OBSOLETE_BPOBJ).is_some()
        || pool.directory_value(cenote_ondisk::indirect::CONDENSING_INDIRECT).is_some();
    if !is_precise || is_moving {
        return Ok(None);
    }
    let (_, bonus) = mos::bonus(mos, object).await?;
    let mapping = MappingPhys::decode(&bonus).map_err(mos::corrupt(object))?;
    let mut recorded = 0;
    if let Some(object @ 1..) = mapping.counts_obj {
        let dnode = mos.dnode(object).await?;
        let bytes = cenote_dmu::read_bytes(&dnode, mapping.num_entries * 4, u64::MAX).await?;
        recorded += counts(&bytes).map(u64::from).sum::<u64>();
    }
    if let Some(object) = top_zap(mos, config, OBSOLETE_SM).await? {
        recorded += vdev::header(mos, object).await?.allocated.max(0) as u64;
    }
    let found = mapping.bytes_mapped.saturating_sub(referenced);
    let vdev = config.id;
    Ok((found != recorded).then_some(ObsoleteMismatch { vdev, found, recorded }))
}
