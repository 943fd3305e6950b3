//! Progress of trim and initialize of each leaf (spec 05 §9).

use cenote_ondisk::config::{VdevConfig, VdevKind};
use cenote_ondisk::leaf_work::{LeafWork, LeafWorkKind, LeafWorkState};
use cenote_rt::Result;

use super::VdevReport;
use crate::accounting::VdevFigures;
use crate::{Pool, mos};

/// Progress of trim or initialize of a leaf.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LeafProgress {
    /// The stored state.
    pub work: LeafWork,
    /// Finished bytes of the leaf's free space.
    pub done: u64,
    /// All bytes of the leaf's free space.
    pub total: u64,
}

impl LeafProgress {
    /// Returns the finished percentage of the free space.
    #[must_use]
    pub fn percent(&self) -> u64 {
        if self.work.state == LeafWorkState::Complete {
            return 100;
        }
        (u128::from(self.done) * 100 / (u128::from(self.total) + 1)) as u64
    }
}

/// Adds the progress to a report that has space figures.
pub(super) async fn complete(pool: &Pool, root: &mut VdevReport) {
    for top in &mut root.children {
        let Some(figures) = top.figures.clone() else { continue };
        let width = top.children.len().max(1) as u64;
        // Each child of a mirror has all of its space, each child of a RAID-Z a part.
        let is_striped = matches!(top.kind, VdevKind::RaidZ(_) | VdevKind::Draid(_));
        let width = if is_striped { width } else { 1 };
        fill(pool, top, &figures, width).await;
    }
}

fn fill<'a>(
    pool: &'a Pool,
    vdev: &'a mut VdevReport,
    figures: &'a VdevFigures,
    width: u64,
) -> cenote_rt::BoxFuture<'a, ()> {
    Box::pin(async move {
        if let Some(config) = pool.config().vdev_tree.find(vdev.guid) {
            for kind in [LeafWorkKind::Trim, LeafWorkKind::Initialize] {
                // Unreadable state is shown as never started.
                let mut work = read(pool, config, kind).await.unwrap_or_default();
                if work.state == LeafWorkState::Active
                    && let Some(offset) = pool.presence().leaf_work(vdev.guid, kind)
                {
                    work.offset = offset;
                }
                let progress = progress(work, figures, width);
                match kind {
                    LeafWorkKind::Trim => vdev.trim = progress,
                    LeafWorkKind::Initialize => vdev.initialize = progress,
                }
            }
        }
        for child in &mut vdev.children {
            fill(pool, child, figures, width).await;
        }
    })
}

async fn read(pool: &Pool, leaf: &VdevConfig, kind: LeafWorkKind) -> Result<LeafWork> {
    let Some(zap) = leaf.leaf.zap_leaf else { return Ok(LeafWork::default()) };
    let keys = kind.keys();
    let word = async |name| {
        Ok::<u64, cenote_rt::Error>(mos::u64(pool.mos(), zap, name).await?.unwrap_or(0))
    };
    Ok(LeafWork {
        state: LeafWorkState::of_number(word(keys.state).await?),
        offset: word(keys.offset).await?,
        time: word(keys.time).await?,
        ..LeafWork::default()
    })
}

/// Returns the progress: free bytes before the stored offset, and all free bytes. The metaslab with
/// the offset counts partly.
fn progress(work: LeafWork, figures: &VdevFigures, width: u64) -> LeafProgress {
    let reached = work.offset.saturating_mul(width);
    let (mut done, mut total) = (0_u128, 0_u128);
    for metaslab in &figures.metaslabs {
        let free = u128::from(metaslab.size.saturating_sub(metaslab.allocated));
        let part = u128::from(reached.saturating_sub(metaslab.start).min(metaslab.size));
        total += free;
        done += free * part / u128::from(metaslab.size.max(1));
    }
    if work.state == LeafWorkState::Complete {
        done = total;
    }
    let of_leaf = |bytes: u128| u64::try_from(bytes / u128::from(width.max(1))).unwrap_or(u64::MAX);
    LeafProgress { work, done: of_leaf(done), total: of_leaf(total) }
}
