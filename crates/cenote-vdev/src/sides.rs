//! Copies ranges of a vdev that is being removed, without block pointers: the sides of a mirror
//! stay apart (spec 08 §34).
//!
//! ```text
//!   mirror: child 0  child 1  child 2           equal everywhere: one buffer
//!              |        |        |              different: one buffer for each child
//!   mirror: child 0  child 1  child 2 = child 0 of the source if that has two
//! ```
//!
//! A range has no checksum of its own, so no side can be told to be wrong. If all sides are copied,
//! each block finds its good one by its own checksum, as before.
//!
//! Invariant
//! * SD1  A child of a mirror that may lack data is never read: its old bytes could become the only
//!   copy. If no other child can be read, the range is unreadable.

use cenote_rt::{Buf, Error, Kind, Result};
use futures_util::future::join_all;

use crate::tree::{Layout, Place, Tree};
use crate::{IoClass, LeafId, TxgRanges, WriteOutcome};

/// Why the sides of a range cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SideError {
    /// The vdev is no disk and no mirror.
    #[error("vdev {0} is no disk and no mirror")]
    Layout(u64),
    /// No child can be read.
    #[error("{len} bytes at {offset:#x} of vdev {vdev} cannot be read: {cause}")]
    Unreadable {
        /// Id of the top-level vdev.
        vdev: u64,
        /// Byte in it.
        offset: u64,
        /// Length.
        len: usize,
        /// Error of the last child.
        cause: String,
    },
}

/// The bytes of a range: one buffer if all sides are equal, else one for each child of the vdev.
#[derive(Debug, Clone)]
pub struct Sides(Vec<Buf>);

impl Sides {
    /// Returns sides that are all equal.
    #[must_use]
    pub fn equal(data: Buf) -> Self {
        Self(vec![data])
    }

    /// Returns the bytes for child `index` of the target.
    pub(crate) fn of_child(&self, index: usize) -> &Buf {
        &self.0[index % self.0.len()]
    }

    /// Number of different sides.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns a part of each side; `None` if it is out of range.
    #[must_use]
    pub fn slice(&self, range: std::ops::Range<usize>) -> Option<Self> {
        self.0.iter().map(|side| side.slice(range.clone())).collect::<Option<_>>().map(Self)
    }
}

impl Sides {
    /// Reads a range of the top-level vdev `vdev`, a disk or mirror, from all of its children.
    /// Children of a mirror that may lack data are left out, and so are those that fail if there
    /// are others.
    ///
    /// # Errors
    /// `Kind::Io` if no child can be read, `Kind::Invalid` if it is another vdev; the cause is a
    /// [`SideError`].
    pub async fn read(tree: &Tree, at: Place, len: usize, class: IoClass) -> Result<Self> {
        let Place { vdev, offset } = at;
        let invalid = || Error::new(Kind::Invalid, SideError::Layout(vdev));
        let top = tree.top_index(vdev).ok_or_else(invalid)?;
        // Keeps SD1. A single disk is read in any case: what it lacks is nowhere else.
        let (children, is_whole) = match &tree.vdevs[top].layout {
            Layout::Leaf(_) => (vec![top], false),
            Layout::Mirror => (tree.vdevs[top].children.clone(), true),
            _ => return Err(invalid()),
        };
        let read = tree.read_children(&children, at, len, class, is_whole).await;
        let mut cause = "no device".to_owned();
        let mut sides = Vec::with_capacity(read.len());
        for side in read {
            match side {
                Ok(side) => sides.push(side),
                Err(error) => {
                    cause = error.to_string();
                    sides.push(None);
                }
            }
        }
        let Some(good) = sides.iter().flatten().next().cloned() else {
            let error = SideError::Unreadable { vdev, offset, len, cause };
            return Err(Error::new(Kind::Io, error));
        };
        if sides.iter().flatten().all(|side| **side == *good) {
            return Ok(Self(vec![good]));
        }
        Ok(Self(sides.into_iter().map(|side| side.unwrap_or_else(|| good.clone())).collect()))
    }

    /// Writes the sides, whole sectors, like a block of physical birth `txg`.
    ///
    /// # Errors
    /// The errors of [`Tree::write`].
    pub async fn write(
        &self,
        tree: &Tree,
        place: Place,
        txg: u64,
        class: IoClass,
    ) -> Result<WriteOutcome> {
        tree.write_sides(place, self, txg, class).await
    }

    /// Extends the log of each leaf that lacks `txg`, in which old blocks were copied, to all txgs
    /// from `first` on: the copies have the births of the originals. Returns whether there is such
    /// a leaf.
    pub fn note_missing(tree: &Tree, first: u64, txg: u64) -> bool {
        let all = TxgRanges::new([(first, txg + 1)]);
        let lacking = tree.leaves().filter(|(_, leaf)| leaf.lacks(txg));
        lacking.map(|(_, leaf)| leaf.note_missing(&all)).count() > 0
    }
}

impl Tree {
    /// Reads a range from the best leaf at or below each vdev; `None` if it has no such leaf.
    async fn read_children(
        &self,
        children: &[usize],
        at: Place,
        len: usize,
        class: IoClass,
        is_whole: bool,
    ) -> Vec<Result<Option<Buf>>> {
        let reads = children.iter().map(|child| async move {
            let leaves = self.leaves_below(*child);
            let Some(leaf) = leaves.into_iter().find(|leaf| self.has_side(*leaf, is_whole)) else {
                return Ok(None);
            };
            let offset = at.offset + crate::leaf::DATA_START;
            self.leaf(leaf).read(offset, len, class).await.map(Some)
        });
        join_all(reads).await
    }

    fn has_side(&self, id: LeafId, is_whole: bool) -> bool {
        let leaf = self.leaf(id);
        // A leaf without a stored log is whole unless its log could not be loaded.
        let lacks_nothing = || match leaf.dtl() {
            Some(lacks) => lacks.is_empty(),
            None => !leaf.is_stale_until_dtl_loaded,
        };
        leaf.is_readable() && leaf.has_device() && (!is_whole || lacks_nothing())
    }
}

#[cfg(test)]
mod tests {
    use cenote_device::{Device, Fault};
    use cenote_ondisk::config::{VdevConfig, VdevKind as ConfigKind};
    use cenote_rt::BufMut;

    use super::*;
    use crate::bench::{BIRTH, Bench, DATA, leaves, top, vdev, wait};
    use crate::leaf::DATA_START;

    /// Two mirrors: of 3 leaves (guids 100 to 102), and of 2 (200 and 201).
    fn bench() -> Bench {
        let mut two = leaves(2);
        for leaf in &mut two {
            leaf.guid += 100;
        }
        let mut root = top(vdev(ConfigKind::Mirror, 0, 2, leaves(3)), 9);
        let mut second = vdev(ConfigKind::Mirror, 1, 3, two);
        second.top.ashift = 9;
        root.children.push(second);
        Bench::new(VdevConfig::root(1, root.children))
    }

    fn put(bench: &Bench, guid: u64, byte: u8) {
        let data = Buf::from(vec![byte; 4096]);
        wait(bench.devices[&guid].write(DATA_START, vec![data])).unwrap();
    }

    fn get(bench: &Bench, guid: u64) -> u8 {
        wait(bench.devices[&guid].read(DATA_START + 512, BufMut::zeroed(512))).unwrap()[0]
    }

    #[test]
    fn sides_that_differ_stay_apart() {
        let bench = bench();
        for (guid, byte) in [(100, 7), (101, 7), (102, 7)] {
            put(&bench, guid, byte);
            bench.tree.set_dtl(guid, TxgRanges::default());
        }
        let read = |tree: &Tree| {
            wait(Sides::read(tree, Place { vdev: 0, offset: 0 }, 4096, IoClass::Removal))
        };
        assert_eq!(read(&bench.tree).unwrap().count(), 1);
        put(&bench, 101, 8);
        let sides = read(&bench.tree).unwrap();
        assert_eq!(sides.count(), 3);
        let part = sides.slice(0..1024).unwrap();
        let place = Place { vdev: 1, offset: 0 };
        wait(part.write(&bench.tree, place, BIRTH, IoClass::Removal)).unwrap();
        assert_eq!((get(&bench, 200), get(&bench, 201)), (7, 8));
        // A child that fails, or lacks something, is left out.
        let lacks_nothing = |tree: &Tree| {
            (100..103).for_each(|guid| assert!(tree.set_dtl(guid, TxgRanges::default())));
        };
        let unreadable = |tree: &Tree| {
            matches!(read(tree).unwrap_err().cause(), Some(SideError::Unreadable { .. }))
        };
        let faulty = bench.tree_with(&[], &[(101, DATA, Fault::Eio)]);
        lacks_nothing(&faulty);
        assert_eq!(read(&faulty).unwrap().count(), 1);
        bench.tree.set_dtl(101, TxgRanges::new([(1, 2)]));
        assert_eq!(read(&bench.tree).unwrap().count(), 1);
        // Not even if all others fail.
        let faulty = bench.tree_with(&[], &[(100, DATA, Fault::Eio), (102, DATA, Fault::Eio)]);
        lacks_nothing(&faulty);
        assert_eq!(read(&faulty).unwrap().count(), 1);
        faulty.set_dtl(101, TxgRanges::new([(1, 2)]));
        assert!(unreadable(&faulty));
        let all: Vec<_> = (100..103).map(|guid| (guid, DATA, Fault::Eio)).collect();
        let failed = bench.tree_with(&[], &all);
        lacks_nothing(&failed);
        assert!(unreadable(&failed));
        assert!(sides.slice(4096..4097).is_none());
    }

    #[test]
    fn copies_that_a_leaf_lacks_have_old_births() {
        let bench = bench();
        let leaf = bench.tree.leaf_of(200).unwrap();
        let leaf = || bench.tree.leaf(leaf);
        bench.tree.set_dtl(200, TxgRanges::default());
        assert!(!Sides::note_missing(&bench.tree, 4, BIRTH) && !leaf().lacks(BIRTH));
        leaf().note_missing_txg(BIRTH);
        assert!(Sides::note_missing(&bench.tree, 4, BIRTH));
        assert!(leaf().lacks(4) && leaf().lacks(BIRTH) && !leaf().lacks(BIRTH + 1));
    }
}
