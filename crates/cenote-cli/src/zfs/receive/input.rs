//! Standard input of the command: of this process, or of the process that gave the command to the
//! daemon.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::sync::Arc;

use crate::host::CallerStreams;
use crate::source::Source;

/// Bytes that are read at a time.
const PIECE: usize = 256 << 10;

/// Reads standard input piece by piece. Reading blocks for as long as no input comes, so no view
/// of a pool, lock or pin may be held (docs/design/rules.md, rule 1).
#[derive(Debug)]
pub(super) struct Input {
    from: From,
    piece: Vec<u8>,
    /// How much of the piece was taken.
    taken: usize,
}

#[derive(Debug)]
enum From {
    Own(File),
    Caller(Arc<dyn CallerStreams>),
}

impl Input {
    /// Returns the standard input of the caller.
    pub(super) fn of(source: &Source) -> io::Result<Self> {
        let from = match source.streams() {
            Some(streams) => From::Caller(Arc::clone(streams)),
            None => From::Own(io::stdin().as_fd().try_clone_to_owned()?.into()),
        };
        Ok(Self { from, piece: Vec::new(), taken: 0 })
    }

    fn fill(&mut self) -> io::Result<()> {
        self.taken = 0;
        match &mut self.from {
            From::Caller(streams) => self.piece = streams.read_input()?,
            From::Own(file) => {
                self.piece.resize(PIECE, 0);
                let count = file.read(&mut self.piece)?;
                self.piece.truncate(count);
            }
        }
        Ok(())
    }
}

impl Read for Input {
    fn read(&mut self, room: &mut [u8]) -> io::Result<usize> {
        if self.taken == self.piece.len() {
            self.fill()?;
        }
        let mut left = self.piece.get(self.taken..).unwrap_or_default();
        let count = left.read(room)?;
        self.taken += count;
        Ok(count)
    }
}
