//! A client of a volume, and a model of its promised contents.
//!
//! Each write gives a range of 4 KiB blocks contents that a number determines. A successful flush
//! promises the newest contents of every block; later writes may be present or not, or some of
//! their sectors.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cenote_serve::nbd::options::{InfoRequest, OptionKind, encode_option};
use cenote_serve::nbd::wire::{Command, Request};
use cenote_testkit::rng::Rng;

use crate::model::Wrong;
use crate::site::VOLUME;

const BLOCK: u64 = 4096;
/// Unit in which a volume's writes are atomic.
const SECTOR: usize = 512;
/// Maximum number of blocks of a write.
const WRITE_MAX: u64 = 16;
/// An answer may have to wait until a suspended pool is cleared.
const ANSWER_MAX: Duration = Duration::from_mins(1);
const SIMPLE_REPLY: [u8; 4] = 0x6744_6698_u32.to_be_bytes();
/// The contents of a block that was never written.
const ZEROS: Version = Version { number: 0, is_done: true };
/// Positive reply to an option.
const ACK: u32 = 1;

/// Possible contents of a block.
#[derive(Debug, Clone, Copy)]
struct Version {
    /// Determines the contents; 0 means zeros.
    number: u64,
    /// The write was acknowledged.
    is_done: bool,
}

/// The possible contents of each block, oldest first; the first is promised.
#[derive(Debug)]
pub(crate) struct Blocks {
    versions: Vec<Vec<Version>>,
    /// The numbers of all writes of each block, for messages.
    history: Vec<Vec<u64>>,
    flushed: u64,
    failed: u64,
}

/// A connection to a volume.
struct Client(UnixStream);

impl Client {
    fn connect(socket: &Path) -> io::Result<Self> {
        let mut client = Self(UnixStream::connect(socket)?);
        client.0.set_read_timeout(Some(ANSWER_MAX))?;
        client.take(18)?;
        client.0.write_all(&3u32.to_be_bytes())?;
        let info = InfoRequest { name: "t/v".into(), wanted: Vec::new() };
        client.0.write_all(&encode_option(OptionKind::Go, &info.encode()))?;
        loop {
            let header = client.take(20)?;
            let word = |at: usize| u32::from_be_bytes(header[at..at + 4].try_into().unwrap());
            client.take(word(16) as usize)?;
            match word(12) {
                ACK => return Ok(client),
                3 => {}
                refusal => return Err(io::Error::other(format!("refused: {refusal:#x}"))),
            }
        }
    }

    fn take(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.0.read_exact(&mut bytes)?;
        Ok(bytes)
    }

    /// Returns the server's error number; fails only if the connection has ended.
    fn request(&mut self, command: Command, offset: u64, len: u64, data: &[u8]) -> io::Result<u32> {
        let wire = Request { command, flags: 0, cookie: 7, offset, len: len as u32 };
        self.0.write_all(&[&wire.encode()[..], data].concat())?;
        let reply = self.take(16)?;
        assert_eq!(reply[..4], SIMPLE_REPLY);
        Ok(u32::from_be_bytes(reply[4..8].try_into().unwrap()))
    }

    fn read(&mut self, offset: u64, len: u64) -> io::Result<Vec<u8>> {
        match self.request(Command::Read, offset, len, &[])? {
            0 => self.take(len as usize),
            error => Err(io::Error::from_raw_os_error(error as i32)),
        }
    }
}

/// Returns the bytes of a block with contents of this number.
fn contents(number: u64, block: u64) -> Vec<u8> {
    let mut bytes = vec![0; BLOCK as usize];
    if number > 0 {
        Rng::seeded(number << 24 ^ block).fill(&mut bytes);
    }
    bytes
}

/// Whether each sector of a block is that of one of its versions. A write that was not flushed may
/// be partial, and a log may end between sectors.
fn is_made_of(known: &[Version], block: u64, found: &[u8]) -> bool {
    // Usually the newest version.
    if known.last().is_some_and(|newest| contents(newest.number, block) == found) {
        return true;
    }
    let made: Vec<Vec<u8>> = known.iter().map(|version| contents(version.number, block)).collect();
    let sectors = found.chunks(SECTOR).enumerate();
    sectors.into_iter().all(|(index, sector)| {
        let range = index * SECTOR..(index + 1) * SECTOR;
        made.iter().any(|bytes| bytes[range.clone()] == *sector)
    })
}

/// Returns the number of the write of each sector's bytes, for messages.
fn told(history: &[u64], block: u64, found: &[u8]) -> String {
    let made: Vec<(u64, Vec<u8>)> =
        history.iter().map(|number| (*number, contents(*number, block))).collect();
    let origin = |(index, sector): (usize, &[u8])| {
        let range = index * SECTOR..(index + 1) * SECTOR;
        let from = made.iter().find(|(_, bytes)| bytes[range.clone()] == *sector);
        from.map_or("?".to_owned(), |(number, _)| number.to_string())
    };
    let origins: Vec<String> = found.chunks(SECTOR).enumerate().map(origin).collect();
    format!("its sectors are of the writes {}", origins.join(" "))
}

/// Writes and flushes until told to stop, or until the connection ends.
pub(crate) fn write(socket: &Path, mut rng: Rng, stop: &AtomicBool) -> Blocks {
    let count = VOLUME / BLOCK;
    let mut blocks = Blocks {
        versions: vec![vec![ZEROS]; count as usize],
        history: vec![vec![0]; count as usize],
        flushed: 0,
        failed: 0,
    };
    let Ok(mut client) = Client::connect(socket) else { panic!("no volume is served") };
    let mut number = 0;
    while !stop.load(Ordering::Relaxed) {
        number += 1;
        let done = if rng.below(8) == 0 {
            client.request(Command::Flush, 0, 0, &[]).map(|error| blocks.note_flush(error))
        } else {
            let first = rng.below(count);
            let last = (first + 1 + rng.below(WRITE_MAX)).min(count);
            let data: Vec<u8> = (first..last).flat_map(|block| contents(number, block)).collect();
            // Recorded before the answer: if the connection ends in between, the write may have
            // happened.
            for block in first..last {
                blocks.versions[block as usize].push(Version { number, is_done: false });
                blocks.history[block as usize].push(number);
            }
            let (offset, len) = (first * BLOCK, data.len() as u64);
            let range = first as usize..last as usize;
            let written = client.request(Command::Write, offset, len, &data);
            written.map(|error| blocks.note_write(error, range))
        };
        if done.is_err() {
            break;
        }
    }
    blocks
}

impl Blocks {
    fn note_write(&mut self, error: u32, range: std::ops::Range<usize>) {
        if error != 0 {
            self.failed += 1;
            return;
        }
        for known in &mut self.versions[range] {
            known.last_mut().unwrap().is_done = true;
        }
    }

    /// A successful flush promises the newest acknowledged contents of every block.
    fn note_flush(&mut self, error: u32) {
        if error != 0 {
            self.failed += 1;
            return;
        }
        self.flushed += 1;
        for known in &mut self.versions {
            let promised = known.iter().rposition(|version| version.is_done).unwrap_or(0);
            known.drain(..promised);
        }
    }

    /// Returns every block with contents that it may not have.
    pub(crate) fn faults(&self, socket: &Path) -> Vec<Wrong> {
        let mut client = match Client::connect(socket) {
            Ok(client) => client,
            Err(error) => return vec![Wrong::Lost(format!("the volume: {error}"))],
        };
        let mut faults = Vec::new();
        for (block, known) in (0..).zip(&self.versions) {
            match client.read(block * BLOCK, BLOCK) {
                Err(error) => {
                    faults.push(Wrong::Unreadable(format!("block {block}: {error}")));
                    if client.0.peer_addr().is_err() {
                        break;
                    }
                }
                Ok(found) if is_made_of(known, block, &found) => {}
                Ok(found) => {
                    let history = &self.history[block as usize];
                    let told = told(history, block, &found);
                    faults.push(Wrong::Bytes(format!(
                        "block {block} is none of {known:?} of {history:?}: {told}"
                    )));
                }
            }
        }
        faults
    }

    /// Returns the figures of the run, for messages.
    pub(crate) fn told(&self) -> String {
        format!("{} flushes of the volume, {} failed requests", self.flushed, self.failed)
    }
}
