//! LZ4: the length of the block (u32 BE), then an LZ4 block.
//!
//! The decoder is our own because of runs in metadata: indirect blocks and dnodes mostly repeat the
//! same few bytes, which libraries copy byte by byte. The encoder is our own because the exact
//! output matters: dedup and nopwrite compare checksums of compressed bytes, so a block written by
//! us should equal the same block written by OpenZFS. It makes the same choices as the 2012 variant
//! of LZ4 in OpenZFS:
//!
//! * A table holds the last position of each hash of four bytes: 2^13 slots for blocks below 65,547
//!   bytes, 2^12 above. All slots start at position 0.
//! * A search tries one position after the other, at growing distances: attempt `i` is followed by
//!   a step of `(67 + i) / 64`. A match has four equal bytes and lies at most 65,535 back. It is
//!   extended backwards over the literals, then forwards, but not into the last five bytes.
//! * No match starts in the last twelve bytes. After a match, the position two before its end
//!   enters the table, and the position at its end is tried at once, before a new search.
//! * It gives up as soon as the output might not fit, by a bound that is not tight.
//!
//! Sources: spec 02 §4.3, docs/decisions/0009-lz4-decoder.md; `tests/libzpool.rs` checks that the
//! output is that of libzpool.

use super::{DecompressError, complete};

/// Bytes of the length in front.
const HEADER_LEN: usize = 4;

/// Shortest match.
const MATCH_MIN: usize = 4;

/// The last bytes of a block are always literals.
const LAST_LITERALS: usize = 5;

/// No match starts within this many bytes of the end.
const MATCH_START_LIMIT: usize = 12;

/// Largest distance that two bytes can express.
const DISTANCE_MAX: usize = 65_535;

/// From this size on, the table has fewer slots, and distances must be checked.
const LARGE: usize = 65_547;

/// Slots for small blocks.
const SMALL_SLOTS: usize = 1 << 13;

/// Slots for large blocks.
const LARGE_SLOTS: usize = 1 << 12;

/// Most literals that are copied in one piece.
const SHORT: usize = 48;

/// Attempts before the first step longer than one, counted so that `attempts / 64` is the step.
const FIRST_ATTEMPT: usize = 67;

/// Largest length that a token's four bits express before more bytes follow.
const NIBBLE_MAX: usize = 15;

/// Longest copy that is made with a fixed length, if there is room: a copy of fixed length takes an
/// instruction or two.
const PIECE: usize = 32;

/// Fills `dst` from `src`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let no_header = DecompressError::NoHeader { len: src.len() };
    let (&header, rest) = src.split_first_chunk::<HEADER_LEN>().ok_or(no_header)?;
    let length = u32::from_be_bytes(header);
    let too_long = DecompressError::Length { length: length.into(), available: rest.len() };
    let block = rest.get(..length as usize).ok_or(too_long)?;
    let broken = DecompressError::Broken { form: "lz4" };
    let produced = decode(block, dst).ok_or(broken)?;
    complete(produced, dst)
}

/// Decodes a block to the front of `dst` and returns the number of bytes; `None` if it is invalid
/// or too large. A fixed-length copy may leave garbage behind that number of bytes.
fn decode(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (mut at, mut out) = (0, 0);
    loop {
        (at, out) = short_sequences(src, at, dst, out);
        let token = usize::from(*src.get(at)?);
        at += 1;
        let literals = length(src, &mut at, token >> 4)?;
        match (src.get(at..at + PIECE), dst.get_mut(out..out + PIECE)) {
            (Some(from), Some(to)) if literals <= PIECE => to.copy_from_slice(from),
            _ => dst.get_mut(out..out + literals)?.copy_from_slice(src.get(at..at + literals)?),
        }
        (at, out) = (at + literals, out + literals);
        if at == src.len() {
            return Some(out);
        }
        let distance = usize::from(u16::from_le_bytes(*src.get(at..)?.first_chunk()?));
        at += 2;
        let matched = length(src, &mut at, token & NIBBLE_MAX)? + MATCH_MIN;
        if distance == 0 || distance > out || matched > dst.len() - out {
            return None;
        }
        repeat(dst, out - distance, out, matched);
        out += matched;
    }
}

/// Decodes sequences as long as lengths are in the tokens alone and a fixed-length copy fits. Most
/// sequences of most blocks are such.
fn short_sequences(src: &[u8], mut at: usize, dst: &mut [u8], mut out: usize) -> (usize, usize) {
    while let Some(&[token, ref rest @ ..]) = src.get(at..).and_then(<[u8]>::first_chunk::<17>) {
        let (literals, matched) = (usize::from(token >> 4), usize::from(token & 15));
        let distance = u16::from_le_bytes([rest[literals & 15], rest[(literals + 1) & 15]]);
        let (distance, from) = (usize::from(distance), out + literals);
        let is_short = literals < NIBBLE_MAX && matched < NIBBLE_MAX && distance >= PIECE;
        if !is_short || distance > from || from + PIECE > dst.len() {
            break;
        }
        dst[out..out + 16].copy_from_slice(rest);
        dst.copy_within(from - distance..from - distance + PIECE, from);
        (at, out) = (at + 3 + literals, from + matched + MATCH_MIN);
    }
    (at, out)
}

/// Decodes a length from a token's four bits and the bytes that follow.
fn length(src: &[u8], at: &mut usize, nibble: usize) -> Option<usize> {
    let mut length = nibble;
    let mut more = nibble == NIBBLE_MAX;
    while more {
        let byte = *src.get(*at)?;
        *at += 1;
        length += usize::from(byte);
        more = byte == u8::MAX;
    }
    Some(length)
}

/// Repeats the bytes from `start` to `out` until `len` bytes are written at `out`. Indirect blocks
/// and dnodes are full of such runs: each copy is twice as long as the one before.
fn repeat(dst: &mut [u8], start: usize, out: usize, len: usize) {
    let (mut at, end) = (out, out + len);
    if len <= PIECE && at - start >= PIECE && at + PIECE <= dst.len() {
        return dst.copy_within(start..start + PIECE, at);
    }
    while at < end {
        let piece = (at - start).min(end - at);
        dst.copy_within(start..start + piece, at);
        at += piece;
    }
}

/// Compresses `src` into `dst`, with the same output as OpenZFS for the same room; `None` if it
/// does not fit. Bytes of `dst` behind the result are undefined.
pub fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (header, room) = dst.split_first_chunk_mut::<HEADER_LEN>()?;
    // The table is cleared for each block, so its slots are as small as possible.
    let length = if src.len() < LARGE {
        Encoder::<u16, SMALL_SLOTS>::new(src, room).run()?
    } else {
        Encoder::<u32, LARGE_SLOTS>::new(src, room).run()?
    };
    *header = u32::try_from(length).ok()?.to_be_bytes();
    Some(HEADER_LEN + length)
}

/// A position in a block, as stored in the table.
trait Slot: Copy {
    /// Initial value of all slots.
    const START: Self;
    fn of(place: usize) -> Self;
    fn place(self) -> usize;
}

impl Slot for u16 {
    const START: Self = 0;

    /// A block that is not large has no match behind 65,534.
    fn of(place: usize) -> Self {
        place as Self
    }

    fn place(self) -> usize {
        self.into()
    }
}

impl Slot for u32 {
    const START: Self = 0;

    fn of(place: usize) -> Self {
        place as Self
    }

    fn place(self) -> usize {
        self as usize
    }
}

struct Encoder<'a, S, const SLOTS: usize> {
    src: &'a [u8],
    dst: &'a mut [u8],
    /// Bytes written.
    out: usize,
    /// First byte that is not written yet.
    anchor: usize,
    /// Last position of each hash.
    slots: [S; SLOTS],
}

/// Two positions with equal bytes.
#[derive(Clone, Copy)]
struct Match {
    at: usize,
    candidate: usize,
}

impl<'a, S: Slot, const SLOTS: usize> Encoder<'a, S, SLOTS> {
    fn new(src: &'a [u8], dst: &'a mut [u8]) -> Self {
        Self { src, dst, out: 0, anchor: 0, slots: [S::START; SLOTS] }
    }

    fn run(mut self) -> Option<usize> {
        if self.src.len() > MATCH_START_LIMIT {
            let mut next = self.search(1);
            while let Some(found) = next {
                let found = self.extend_backwards(found);
                let end = self.emit(found)?;
                next = self.follow(end);
            }
        }
        self.finish()
    }

    /// Last position at which a match may start.
    fn limit(&self) -> usize {
        self.src.len() - MATCH_START_LIMIT
    }

    /// Enters `at` into the table and returns the match with the position there before, if it is
    /// one.
    #[inline]
    fn look_up(&mut self, at: usize) -> Option<Match> {
        look_up(self.src, &mut self.slots, at)
    }

    /// The first match from `at` on.
    #[inline]
    fn search(&mut self, mut at: usize) -> Option<Match> {
        // In registers: this is where the time goes.
        let (src, limit) = (self.src, self.limit());
        for attempt in FIRST_ATTEMPT.. {
            let after = at + attempt / 64;
            if after > limit {
                break;
            }
            let found = look_up(src, &mut self.slots, at);
            if found.is_some() {
                return found;
            }
            at = after;
        }
        None
    }

    #[inline]
    fn extend_backwards(&self, mut found: Match) -> Match {
        while found.at > self.anchor
            && found.candidate > 0
            && self.src[found.at - 1] == self.src[found.candidate - 1]
        {
            found.at -= 1;
            found.candidate -= 1;
        }
        found
    }

    /// Writes the literals up to a match, and the match; returns the end of the match.
    #[inline]
    fn emit(&mut self, found: Match) -> Option<usize> {
        let literals = found.at - self.anchor;
        let token = self.out;
        self.out += 1;
        // Literals, their length, an offset, and the final literals of a block.
        if self.out + literals + literals / 256 + 3 + LAST_LITERALS > self.dst.len() {
            return None;
        }
        self.dst[token] = (literals.min(NIBBLE_MAX) as u8) << 4;
        self.put_length(literals);
        self.put_literals(found.at);

        let distance = (found.at - found.candidate) as u16;
        self.dst[self.out..self.out + 2].copy_from_slice(&distance.to_le_bytes());
        self.out += 2;
        let end = self.src.len() - LAST_LITERALS;
        let (new, old) = (found.at + MATCH_MIN, found.candidate + MATCH_MIN);
        let more = common_prefix(&self.src[new..end], &self.src[old..]);
        if self.out + more / 256 + 1 + LAST_LITERALS > self.dst.len() {
            return None;
        }
        self.dst[token] |= more.min(NIBBLE_MAX) as u8;
        self.put_length(more);
        self.anchor = new + more;
        Some(self.anchor)
    }

    /// The next match after one that ended at `end`: at that position, or by a search. A match at
    /// that position has no literals, so it is not extended backwards.
    #[inline]
    fn follow(&mut self, end: usize) -> Option<Match> {
        if end > self.limit() {
            return None;
        }
        self.look_up(end - 2);
        self.look_up(end).or_else(|| self.search(end + 1))
    }

    /// The literals after the last match.
    fn finish(mut self) -> Option<usize> {
        let literals = self.src.len() - self.anchor;
        let length_bytes = (literals + 255 - NIBBLE_MAX) / 255;
        if self.out + 1 + length_bytes + literals > self.dst.len() {
            return None;
        }
        self.dst[self.out] = (literals.min(NIBBLE_MAX) as u8) << 4;
        self.out += 1;
        self.put_length(literals);
        self.put_literals(self.src.len());
        Some(self.out)
    }

    /// Writes the bytes behind a token for a length that does not fit into the token.
    #[inline]
    fn put_length(&mut self, length: usize) {
        let Some(mut rest) = length.checked_sub(NIBBLE_MAX) else { return };
        while rest >= 255 {
            self.dst[self.out] = 255;
            self.out += 1;
            rest -= 255;
        }
        self.dst[self.out] = rest as u8;
        self.out += 1;
    }

    #[inline]
    fn put_literals(&mut self, end: usize) {
        let (from, to) = (&self.src[self.anchor..], &mut self.dst[self.out..]);
        let length = end - self.anchor;
        // There are mostly few literals. A copy of fixed length is a few moves; excess bytes are
        // overwritten by the following output.
        match (from.first_chunk::<SHORT>(), to.first_chunk_mut::<SHORT>()) {
            (Some(from), Some(to)) if length <= SHORT => *to = *from,
            _ => to[..length].copy_from_slice(&from[..length]),
        }
        self.out += length;
    }
}

#[inline]
fn look_up<S: Slot, const SLOTS: usize>(
    src: &[u8],
    slots: &mut [S; SLOTS],
    at: usize,
) -> Option<Match> {
    let word = word(src, at);
    let hash = word.wrapping_mul(2_654_435_761) >> (32 - SLOTS.trailing_zeros());
    let slot = &mut slots[hash as usize % SLOTS];
    let candidate = std::mem::replace(slot, S::of(at)).place();
    let is_near = SLOTS == SMALL_SLOTS || at - candidate <= DISTANCE_MAX;
    let is_match = is_near && self::word(src, candidate) == word;
    is_match.then_some(Match { at, candidate })
}

#[inline]
fn word(src: &[u8], at: usize) -> u32 {
    src.get(at..at + 4).and_then(<[u8]>::first_chunk).map_or(0, |&bytes| u32::from_le_bytes(bytes))
}

/// Number of equal bytes at the start of both.
fn common_prefix(new: &[u8], old: &[u8]) -> usize {
    let words = new.as_chunks::<8>().0.iter().zip(old.as_chunks::<8>().0);
    let mut length = 0;
    for (&a, &b) in words {
        let difference = u64::from_le_bytes(a) ^ u64::from_le_bytes(b);
        if difference != 0 {
            return length + (difference.trailing_zeros() / 8) as usize;
        }
        length += 8;
    }
    length + new[length..].iter().zip(&old[length..]).take_while(|(a, b)| a == b).count()
}
