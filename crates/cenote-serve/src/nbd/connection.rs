//! Requests of one connection: received in order, processed concurrently, answered as they
//! complete.
//!
//! ```text
//!   Receiver ── header ── memory budget ── data ──> started on this thread ──> Sender
//!                         (waits for it)            (a task only if it has to wait)
//! ```
//!
//! The memory of a connection is limited by [`ROOM`], that of all by the [`CommonRoom`]: a request
//! is received when there is room for its data and its answer. A client that sends invalid
//! requests, or more data than allowed, is disconnected; every other mistake is answered with an
//! error.
//!
//! Invariants
//! * P1  An answer to a read has exactly the bytes of the request: a client cannot notice others.

use std::sync::Arc;

use cenote_rt::lock::{AsyncMutex, Rank};
use cenote_rt::net::{Receiver, Sender, Tls};
use cenote_rt::trace::{self, Span};
use cenote_rt::{Buf, BufMut, Error, Kind, OwnedSemaphorePermit, Result, Runtime, Semaphore};

use super::export::{Export, Exports};
use super::handshake::{self, Agreed};
use super::negotiation::Negotiation;
use super::room::{CommonRoom, Part};
use super::wire::{
    self, Chunk, Command, Extent, REQUEST_LEN, Request, errno, extent_flag, request_flag,
};
use super::{CONTEXT_ID, ClientError, PAYLOAD_MAX};
use crate::stop::{Stop, first};

/// Memory of in-flight requests, in units of [`UNIT`] bytes: two of the longest.
const ROOM: u32 = 2 * PAYLOAD_MAX / UNIT + 64;
/// Unit of the memory budget. Each request takes at least one, which limits their number.
const UNIT: u32 = 64 << 10;
/// Memory for short requests that this client does not share with others, in units.
const SHORT_ROOM: u32 = 16;
/// Holes are not looked up for shorter reads.
const HOLES_MIN: u32 = 128 << 10;
/// A read with more pieces is answered as one.
const PIECES_MAX: usize = 64;
/// Bytes that are read ahead at a time.
const CACHED: u64 = 1 << 20;
/// Maximum extents of an answer.
const EXTENTS_MAX: usize = 2048;

/// Limits for the clients of a server.
pub(super) struct Limits {
    /// Each client that has selected an export takes one permit.
    pub(super) places: Arc<Semaphore>,
    /// Memory of requests.
    pub(super) common: Arc<CommonRoom>,
}

/// Serves one client until it disconnects, or the server stops.
///
/// # Errors
/// Errors of the socket; `Kind::Invalid` for a client that violates the protocol; `Kind::Limit` for
/// one that takes too long to select an export.
pub(super) async fn serve(
    exports: &Exports,
    tls: Option<&Tls>,
    (receiver, sender): (Receiver, Sender),
    stop: &Stop,
    negotiation: Arc<Negotiation>,
    Limits { places, common }: Limits,
) -> Result<()> {
    let agreeing = Box::pin(handshake::agree(exports, &negotiation, tls, receiver, sender));
    let Some((agreed, mut receiver, sender)) = stop.or(agreeing).await.transpose()?.flatten()
    else {
        return Ok(());
    };
    // The client was told that it may begin: it is not displaced any more if there is a place.
    let _place = if let Ok(place) = places.try_acquire() {
        place
    } else {
        let place = async { places.acquire().await.map_err(|error| Error::new(Kind::Io, error)) };
        let Some(place) = stop.or(negotiation.bound(place)).await.transpose()? else {
            return Ok(());
        };
        place
    };
    drop(negotiation);
    let short = Arc::new(Semaphore::new(SHORT_ROOM as usize));
    let (sender, left) = (AsyncMutex::new(Rank::NbdSender, sender), Stop::default());
    let connection = Arc::new(Connection { agreed, sender, common, short, left });
    let room = Arc::new(Semaphore::new(ROOM as usize));
    let taken = take(&connection, &mut receiver, &room, stop).await;
    // Received requests are answered before the connection ends.
    let _all = room.acquire_many(ROOM).await;
    taken
}

/// Receives requests until there are no more.
async fn take(
    connection: &Arc<Connection>,
    receiver: &mut Receiver,
    room: &Arc<Semaphore>,
    stop: &Stop,
) -> Result<()> {
    let runtime = Runtime::here();
    loop {
        let mut header = [0; REQUEST_LEN];
        let filled = stop.or(connection.left.or(receiver.fill(&mut header))).await;
        if filled.flatten().transpose()? != Some(true) {
            return Ok(());
        }
        let request = Request::decode(&header).map_err(|error| Error::new(Kind::Invalid, error))?;
        if request.command == Command::Disconnect {
            return Ok(());
        }
        if request.command == Command::Write && request.len > PAYLOAD_MAX {
            return Err(Error::new(Kind::Limit, ClientError::WriteTooLong));
        }
        let units = match request.command {
            Command::Read | Command::Write => request.len.min(PAYLOAD_MAX).div_ceil(UNIT).max(1),
            Command::Cache => (CACHED as u32).div_ceil(UNIT),
            _ => 1,
        };
        let closed = |error| Error::new(Kind::Io, error);
        let permit = Arc::clone(room).acquire_many_owned(units).await.map_err(closed)?;
        let share = connection.share(units).await?;
        let data = match request.command {
            Command::Write => {
                let received = connection.receive(receiver, &request);
                let received = first(connection.common.held_too_long(), received).await;
                received.ok_or_else(in_the_way)??
            }
            _ => Vec::new(),
        };
        let span = connection.span(&request);
        let connection = Arc::clone(connection);
        runtime.begin(span.run(async move {
            // If the answer cannot be sent, the client is gone, and the receiver gets the error.
            let _ = connection.answer(&request, data).await;
            drop((permit, share));
        }));
    }
}

/// An answer with an error.
struct Refusal {
    error: u32,
    message: String,
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        let number = match error.kind() {
            Kind::NoSpace | Kind::Quota => errno::ENOSPC,
            Kind::Invalid => errno::EINVAL,
            Kind::ReadOnly | Kind::Permission => errno::EPERM,
            Kind::Unsupported => errno::ENOTSUP,
            _ => errno::EIO,
        };
        Self { error: number, message: error.to_string() }
    }
}

fn refuse(error: u32, message: &str) -> Refusal {
    Refusal { error, message: message.to_owned() }
}

/// A successful answer.
enum Answer {
    Done,
    /// Data of a read, in order; holes have none.
    Data(Vec<Piece>),
    Extents(Vec<Extent>),
}

struct Piece {
    offset: u64,
    len: u32,
    data: Option<Buf>,
}

struct Connection {
    agreed: Agreed,
    /// Held for one answer.
    sender: AsyncMutex<Sender>,
    common: Arc<CommonRoom>,
    /// Memory for short requests of this client only.
    short: Arc<Semaphore>,
    /// The client kept others waiting: it is disconnected, and nothing is received or answered any
    /// more.
    left: Stop,
}

/// Memory of a request; returned when dropped.
enum Share {
    Own { _permit: OwnedSemaphorePermit },
    Common { _part: Part },
}

fn in_the_way() -> Error {
    Error::new(Kind::Limit, ClientError::InTheWay)
}

impl Connection {
    /// Returns the span of a request.
    fn span(&self, request: &Request) -> Span {
        trace::request(
            || format!("{:?}", request.command).to_lowercase(),
            || self.export().name().split('/').next().map(str::to_owned),
            || None,
        )
    }

    fn export(&self) -> &Export {
        &self.agreed.export
    }

    /// Waits for memory for a request of this many units. A short request waits only for earlier
    /// short ones of the same client.
    async fn share(&self, units: u32) -> Result<Share> {
        let bytes = u64::from(units) * u64::from(UNIT);
        if units > SHORT_ROOM {
            return Ok(Share::Common { _part: self.common.take(bytes).await });
        }
        if let Ok(permit) = Arc::clone(&self.short).try_acquire_many_owned(units) {
            return Ok(Share::Own { _permit: permit });
        }
        if let Some(part) = self.common.take_now(bytes) {
            return Ok(Share::Common { _part: part });
        }
        let closed = |error| Error::new(Kind::Io, error);
        let permit = Arc::clone(&self.short).acquire_many_owned(units).await.map_err(closed)?;
        Ok(Share::Own { _permit: permit })
    }

    /// Sends an answer. A client that does not receive it while others wait for memory is
    /// disconnected.
    async fn send(&self, parts: &[&[u8]]) -> Result<()> {
        let sending = async {
            let mut sender = self.sender.lock().await;
            // After a partly sent answer, the client would take the next one for the rest of it.
            if self.left.is_requested() { Err(in_the_way()) } else { sender.send(parts).await }
        };
        let too_long = async {
            self.common.held_too_long().await;
            // Before the lock is released.
            self.left.request();
        };
        first(too_long, sending).await.ok_or_else(in_the_way)?
    }

    /// Receives the data of a write, split at the blocks of the volume, so that whole blocks are
    /// stored without copying.
    async fn receive(&self, receiver: &mut Receiver, request: &Request) -> Result<Vec<Buf>> {
        let block = self.export().block_size();
        let (mut at, mut left) = (request.offset, u64::from(request.len));
        let mut bufs = Vec::new();
        while left > 0 {
            let len = (block - at % block).min(left);
            let mut buf = BufMut::for_filling(len as usize);
            if !receiver.fill(&mut buf).await? {
                return Err(Error::new(Kind::Io, ClientError::EndedInWrite));
            }
            bufs.push(buf.freeze());
            (at, left) = (at.wrapping_add(len), left - len);
        }
        Ok(bufs)
    }

    async fn answer(&self, request: &Request, data: Vec<Buf>) -> Result<()> {
        let answer = match self.check(request) {
            Ok(()) => self.perform(request, data).await,
            Err(refusal) => Err(refusal),
        };
        if self.agreed.is_structured {
            self.send_chunks(request, answer).await
        } else {
            self.send_simple(request, answer).await
        }
    }

    /// Checks whether a request is valid for this export.
    fn check(&self, request: &Request) -> Result<(), Refusal> {
        let Request { command, offset, len, flags, .. } = *request;
        let allowed = command.flags();
        let without_chunks = !self.agreed.is_structured && request.has(request_flag::DF);
        if flags & !allowed != 0 || without_chunks {
            return Err(refuse(errno::EINVAL, "the request has flags that it cannot have"));
        }
        let changes = matches!(command, Command::Write | Command::Trim | Command::WriteZeroes);
        if changes && self.export().is_read_only() {
            return Err(refuse(errno::EPERM, "the export is read only"));
        }
        if command == Command::Flush {
            return Ok(());
        }
        let end = offset.checked_add(u64::from(len));
        if end.is_none_or(|end| end > self.agreed.size) {
            let full = matches!(command, Command::Write | Command::WriteZeroes);
            let error = if full { errno::ENOSPC } else { errno::EINVAL };
            return Err(refuse(error, "the export ends before"));
        }
        if command == Command::Read && len > PAYLOAD_MAX {
            return Err(refuse(errno::EOVERFLOW, "the read is too long"));
        }
        Ok(())
    }

    async fn perform(&self, request: &Request, data: Vec<Buf>) -> Result<Answer, Refusal> {
        let (offset, len) = (request.offset, u64::from(request.len));
        let is_fua = request.has(request_flag::FUA);
        let export = self.export();
        match request.command {
            Command::Read => return self.read(request).await,
            Command::Write => export.write(offset, data, is_fua).await?,
            Command::Flush => export.flush().await?,
            Command::Trim => export.trim(offset, len, is_fua).await?,
            Command::WriteZeroes => {
                let no_hole = request.has(request_flag::NO_HOLE);
                if no_hole && request.has(request_flag::FAST_ZERO) {
                    return Err(refuse(errno::ENOTSUP, "zeros that keep their space are not fast"));
                }
                export.write_zeroes(offset, len, no_hole, is_fua).await?;
            }
            Command::Cache => {
                let mut at = offset;
                while at < offset + len {
                    let part = (offset + len - at).min(CACHED);
                    export.read(at, part as usize).await?;
                    at += part;
                }
            }
            Command::BlockStatus => return self.status(request).await,
            Command::Disconnect | Command::Unknown(_) => {
                return Err(refuse(errno::EINVAL, "there is no such command"));
            }
        }
        Ok(Answer::Done)
    }

    async fn read(&self, request: &Request) -> Result<Answer, Refusal> {
        let (offset, len) = (request.offset, request.len);
        if len == 0 {
            return Ok(Answer::Data(Vec::new()));
        }
        let mut pieces = Vec::new();
        let may_have_holes = self.agreed.is_structured && !request.has(request_flag::DF);
        if may_have_holes && len >= HOLES_MIN {
            pieces = self.pieces(offset, len).await?;
        }
        if pieces.len() > PIECES_MAX || pieces.iter().all(|piece| piece.data.is_some()) {
            pieces = vec![Piece { offset, len, data: Some(Buf::empty()) }];
        }
        for piece in &mut pieces {
            if let Some(data) = &mut piece.data {
                *data = self.export().read(piece.offset, piece.len as usize).await?;
                let (found, len) = (data.len(), piece.len);
                // Checks P1.
                if found != len as usize {
                    return Err(refuse(errno::EIO, &format!("{found} bytes were read of {len}")));
                }
            }
        }
        Ok(Answer::Data(pieces))
    }

    /// Returns data and holes of a whole range; the data is not read yet.
    async fn pieces(&self, offset: u64, len: u32) -> Result<Vec<Piece>, Refusal> {
        let extents = self.export().status(offset, u64::from(len)).await?;
        let mut pieces: Vec<Piece> = Vec::with_capacity(extents.len());
        for extent in &extents {
            let data = (!extent.is_hole).then(Buf::empty);
            pieces.push(Piece { offset: extent.offset, len: extent.len as u32, data });
        }
        let told: u32 = pieces.iter().map(|piece| piece.len).sum();
        // Checks P1.
        if told > len {
            return Err(refuse(errno::EIO, "the extents are longer than the request"));
        }
        if told < len {
            let at = offset + u64::from(told);
            pieces.push(Piece { offset: at, len: len - told, data: Some(Buf::empty()) });
        }
        Ok(pieces)
    }

    async fn status(&self, request: &Request) -> Result<Answer, Refusal> {
        if !self.agreed.has_status {
            return Err(refuse(errno::EINVAL, "no context was agreed on"));
        }
        if request.len == 0 {
            return Err(refuse(errno::EINVAL, "an empty range has no status"));
        }
        let found = self.export().status(request.offset, u64::from(request.len)).await?;
        let max = if request.has(request_flag::REQ_ONE) { 1 } else { EXTENTS_MAX };
        let hole = extent_flag::HOLE | extent_flag::ZERO;
        let extent = |found: &cenote_fs::VolumeExtent| Extent {
            len: found.len as u32,
            flags: if found.is_hole { hole } else { 0 },
        };
        Ok(Answer::Extents(found.iter().take(max).map(extent).collect()))
    }

    async fn send_simple(&self, request: &Request, answer: Result<Answer, Refusal>) -> Result<()> {
        let (error, pieces) = match answer {
            Ok(Answer::Data(pieces)) => (0, pieces),
            Ok(Answer::Done) => (0, Vec::new()),
            // Extents are only requested with structured replies.
            Ok(Answer::Extents(_)) => (errno::EINVAL, Vec::new()),
            Err(refusal) => (refusal.error, Vec::new()),
        };
        let header = wire::simple(request.cookie, error);
        let mut parts: Vec<&[u8]> = vec![&header];
        parts.extend(pieces.iter().filter_map(|piece| piece.data.as_deref()));
        self.send(&parts).await
    }

    async fn send_chunks(&self, request: &Request, answer: Result<Answer, Refusal>) -> Result<()> {
        let cookie = request.cookie;
        let one = |chunk: &Chunk<'_>| vec![wire::encode_chunk(cookie, chunk, true)];
        let (headers, data) = match &answer {
            Ok(Answer::Data(pieces)) if !pieces.is_empty() => {
                let header = |(index, piece): (usize, &Piece)| {
                    let is_last = index + 1 == pieces.len();
                    let (offset, len) = (piece.offset, piece.len);
                    let chunk = match piece.data {
                        Some(_) => Chunk::Data { offset, len },
                        None => Chunk::Hole { offset, len },
                    };
                    wire::encode_chunk(cookie, &chunk, is_last)
                };
                (pieces.iter().enumerate().map(header).collect(), &pieces[..])
            }
            Ok(Answer::Done | Answer::Data(_)) => (one(&Chunk::Done), &[][..]),
            Ok(Answer::Extents(extents)) => {
                (one(&Chunk::Status { context: CONTEXT_ID, extents }), &[][..])
            }
            Err(Refusal { error, message }) => {
                (one(&Chunk::Error { error: *error, message }), &[][..])
            }
        };
        let mut parts: Vec<&[u8]> = Vec::with_capacity(2 * headers.len());
        for (index, header) in headers.iter().enumerate() {
            parts.push(header);
            parts.extend(data.get(index).and_then(|piece| piece.data.as_deref()));
        }
        self.send(&parts).await
    }
}
