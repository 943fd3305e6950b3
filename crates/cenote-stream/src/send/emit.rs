//! Emits records: adjacent ranges of holes become one record (spec 07 B5.1).

use cenote_ondisk::stream::{FreeObjects, Range, Record};
use cenote_rt::Result;

use super::{Payload, RecordSink};

/// Gives records to a sink, and keeps the last range back as long as it may grow.
pub(super) struct Emitter<'s, S> {
    sink: &'s mut S,
    to_guid: u64,
    /// Object numbers are below this, for FREEOBJECTS.
    object_end: u64,
    pending: Option<Record>,
}

impl<'s, S: RecordSink> Emitter<'s, S> {
    pub(super) fn new(sink: &'s mut S, to_guid: u64, object_end: u64) -> Self {
        Self { sink, to_guid, object_end, pending: None }
    }

    /// Emits a record, after the pending range.
    pub(super) async fn put(&mut self, record: &Record, payload: Payload) -> Result<()> {
        self.flush().await?;
        self.sink.put(record, payload).await
    }

    /// Emits the pending range.
    pub(super) async fn flush(&mut self) -> Result<()> {
        match self.pending.take() {
            Some(record) => self.sink.put(&record, Payload::empty()).await,
            None => Ok(()),
        }
    }

    /// Emits a hole of an object; [`Range::TO_THE_END`] as its length stands for everything behind
    /// `offset`.
    pub(super) async fn free(&mut self, object: u64, offset: u64, len: u64) -> Result<()> {
        if let Some(Record::Free(range)) = &mut self.pending
            && grows(range, object, offset, len)
        {
            return Ok(());
        }
        self.flush().await?;
        let is_last = len == Range::TO_THE_END;
        let len = if offset.checked_add(len).is_none() { Range::TO_THE_END } else { len };
        let record = Record::Free(Range { object, offset, len, to_guid: self.to_guid });
        if is_last {
            return self.sink.put(&record, Payload::empty()).await;
        }
        self.pending = Some(record);
        Ok(())
    }

    /// Emits a range of an object that was left out of the dataset when it was received.
    pub(super) async fn redact(&mut self, object: u64, offset: u64, len: u64) -> Result<()> {
        if let Some(Record::Redact(range)) = &mut self.pending
            && grows(range, object, offset, len)
        {
            return Ok(());
        }
        self.flush().await?;
        let range = Range { object, offset, len, to_guid: self.to_guid };
        self.pending = Some(Record::Redact(range));
        Ok(())
    }

    /// Emits a range of objects that do not exist, as far as the receiver may have any.
    pub(super) async fn free_objects(&mut self, first: u64, count: u64) -> Result<()> {
        let Some(room) = self.object_end.checked_sub(first).filter(|room| *room > 0) else {
            return Ok(());
        };
        let count = count.min(room);
        if let Some(Record::FreeObjects(range)) = &mut self.pending
            && range.first.checked_add(range.count) == Some(first)
        {
            range.count = range.count.saturating_add(count);
            return Ok(());
        }
        self.flush().await?;
        let range = FreeObjects { first, count, to_guid: self.to_guid };
        self.pending = Some(Record::FreeObjects(range));
        Ok(())
    }
}

/// Adds a range to the pending one, if it continues it.
fn grows(range: &mut Range, object: u64, offset: u64, len: u64) -> bool {
    if range.object != object || range.offset.checked_add(range.len) != Some(offset) {
        return false;
    }
    range.len = match offset.checked_add(len) {
        Some(end) if len != Range::TO_THE_END => end.saturating_sub(range.offset),
        _ => Range::TO_THE_END,
    };
    true
}
