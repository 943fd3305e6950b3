//! Sequential reading of a file: the contents of the object, cut at the file's size.
//!
//! An object may end before the file (the rest of the file is zeros), and its last block may extend
//! beyond the file's end (spec 03 §10.3).

use std::ops::Range;
use std::sync::Arc;

use cenote_dmu::{BlockStream, Dnode, Extent, Lost};

/// A sequential reader of a file or volume.
pub struct FileStream {
    blocks: BlockStream,
    next: u64,
    end: u64,
}

impl FileStream {
    pub(crate) fn new(dnode: &Arc<Dnode>, bytes: Range<u64>, size: u64) -> Self {
        let end = bytes.end.min(size);
        let next = bytes.start.min(end);
        Self { blocks: dnode.stream(next..end), next, end }
    }

    /// Returns a reader of all blocks of any object.
    pub fn of_object(dnode: &Arc<Dnode>) -> Self {
        Self::new(dnode, 0..u64::MAX, dnode.geometry().byte_count())
    }

    /// Returns the next piece. Pieces are adjacent; `None` after the last.
    pub async fn next(&mut self) -> Option<Result<Extent, Lost>> {
        let piece = self.blocks.next().await;
        match &piece {
            Some(Ok(Extent { offset, len, .. }) | Err(Lost { offset, len, .. })) => {
                self.next = offset.saturating_add(*len);
                piece
            }
            None if self.next < self.end => {
                let (offset, len) = (self.next, self.end - self.next);
                self.next = self.end;
                Some(Ok(Extent { offset, len, data: None }))
            }
            None => None,
        }
    }
}
