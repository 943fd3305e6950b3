//! Report of everything lost or omitted: printed as it happens, and summed up at the end.

use cenote_fs::Lost;
use cenote_rt::Error;

use super::target::Omitted;
use crate::err;
use crate::io::{CommandResult, Exit, Io};
use crate::verbs::{Progress, describe, shown};

/// A lost range, not printed yet because the next one may continue it.
struct Range {
    path: Vec<u8>,
    offset: u64,
    len: u64,
    cause: String,
}

/// Everything that went wrong.
#[derive(Default)]
pub(super) struct Report {
    is_strict: bool,
    pending: Option<Range>,
    lost_ranges: u64,
    lost_bytes: u64,
    failures: u64,
}

impl Report {
    pub(super) fn new(is_strict: bool) -> Self {
        Self { is_strict, ..Self::default() }
    }

    /// Records an unreadable range of a file, which becomes a hole.
    pub(super) fn lost(&mut self, path: &[u8], lost: &Lost, io: &mut Io<'_>) -> CommandResult {
        self.lost_bytes += lost.len;
        if let Some(range) = &mut self.pending
            && range.path == path
            && range.offset + range.len == lost.offset
            && !self.is_strict
        {
            range.len += lost.len;
            return Ok(());
        }
        self.tell(io)?;
        self.lost_ranges += 1;
        self.pending = Some(Range {
            path: path.to_vec(),
            offset: lost.offset,
            len: lost.len,
            cause: lost.error.to_string(),
        });
        if self.is_strict { self.stop(io) } else { Ok(()) }
    }

    /// Records an entry, or a part of its attributes, that was not copied.
    pub(super) fn failed(&mut self, path: &[u8], what: &str, io: &mut Io<'_>) -> CommandResult {
        self.tell(io)?;
        self.failures += 1;
        err!(io, "cp: {}: {what}", shown(path))?;
        if self.is_strict { self.stop(io) } else { Ok(()) }
    }

    /// Records an entry that cannot be read.
    pub(super) fn unreadable(
        &mut self,
        path: &[u8],
        error: &Error,
        io: &mut Io<'_>,
    ) -> CommandResult {
        self.failed(path, &describe(error), io)
    }

    fn stop(&mut self, io: &mut Io<'_>) -> CommandResult {
        self.tell(io)?;
        Err(Exit::failed("cp: stopped at the first damage (--strict)"))
    }

    fn tell(&mut self, io: &mut Io<'_>) -> CommandResult {
        let Some(Range { path, offset, len, cause }) = self.pending.take() else { return Ok(()) };
        err!(io, "cp: {}: {len} bytes at offset {offset} are lost: {cause}", shown(&path))
    }

    /// Prints the totals. Status 1 if anything was lost or not copied.
    pub(super) fn finish(
        mut self,
        omitted: &Omitted,
        progress: &mut Progress,
        io: &mut Io<'_>,
    ) -> CommandResult {
        progress.clear(io.err)?;
        self.tell(io)?;
        for (count, what) in [
            (omitted.devices, "devices were not made"),
            (omitted.owners, "owners were not set"),
            (omitted.xattrs, "extended attributes were not set"),
        ] {
            if count > 0 {
                err!(io, "cp: {count} {what}: not permitted, or not supported here")?;
            }
        }
        if self.lost_ranges == 0 && self.failures == 0 {
            return Ok(());
        }
        err!(
            io,
            "cp: {} bytes in {} places are lost, {} entries were not copied as they are",
            self.lost_bytes,
            self.lost_ranges,
            self.failures
        )?;
        Err(Exit::Status(1))
    }
}
