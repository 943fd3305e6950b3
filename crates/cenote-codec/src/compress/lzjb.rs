//! LZJB: control bytes, each before eight items that are a literal or a two-byte match.
//!
//!     control: bit i is the kind of item i, lowest first
//!     bit 0    one byte, itself
//!     bit 1    | length - 3, 6 bits | distance, 10 bits |   3..=66 bytes from 1..=1023 back
//!
//! There is no length and no end mark: decoding stops when the output is full, in the middle of a
//! match if need be.
//!
//! The encoder makes the same choices as OpenZFS's, so that equal blocks have equal checksums; the
//! test on real blocks in `tests/golden_blocks.rs` compares.
//!
//! Sources: spec 02 §4.2.

use super::DecompressError;

/// Shortest match; shorter ones are literals.
const MATCH_MIN: usize = 3;

/// Longest match that six bits express.
const MATCH_MAX: usize = 66;

/// Largest distance that ten bits express.
const DISTANCE_MAX: usize = 1023;

/// A control byte and eight matches: room that the encoder requires before each control byte.
const GROUP_MAX: usize = 17;

/// Bytes copied at once.
const CHUNK: usize = 16;

/// Slots of the encoder's table of places where three bytes were seen.
const SLOTS: usize = 1024;

/// Fills `dst` from `src`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let expected = dst.len();
    let mut input = src.iter();
    let mut out = 0;
    let mut items = 0u32;
    while out < expected {
        let truncated = DecompressError::Truncated { produced: out, expected };
        // The marker above the eight bits shows when they are used up.
        if items <= 1 {
            items = 0x100 | u32::from(*input.next().ok_or(truncated)?);
        }
        let first = *input.next().ok_or(truncated)?;
        if items & 1 == 0 {
            if let Some(byte) = dst.get_mut(out) {
                *byte = first;
            }
            out += 1;
        } else {
            let second = *input.next().ok_or(truncated)?;
            let distance = usize::from(first & 3) << 8 | usize::from(second);
            let length = usize::from(first >> 2) + MATCH_MIN;
            let length = length.min(expected - out);
            if distance == 0 || distance > out {
                return Err(DecompressError::Distance { distance, at: out });
            }
            copy_match(dst, out, distance, length);
            out += length;
        }
        items >>= 1;
    }
    Ok(())
}

/// Copies `length` bytes from `distance` before `out` to `out`; both lie in `dst`.
///
/// Most matches are short and neither overlap themselves nor lie at the end of the output: whole
/// chunks are copied for these, and excess bytes are overwritten by the items that follow. A match
/// that overlaps itself repeats its first `distance` bytes, with doubling.
fn copy_match(dst: &mut [u8], out: usize, distance: usize, length: usize) {
    let start = out - distance;
    if distance >= CHUNK && out + length + CHUNK <= dst.len() {
        for done in (0..length).step_by(CHUNK) {
            let chunk =
                dst.get(start + done..).and_then(|rest| rest.first_chunk::<CHUNK>()).copied();
            let place = dst.get_mut(out + done..).and_then(|rest| rest.first_chunk_mut::<CHUNK>());
            if let (Some(chunk), Some(place)) = (chunk, place) {
                *place = chunk;
            }
        }
        return;
    }
    let mut copied = 0;
    while copied < length {
        let run = (distance + copied).min(length - copied);
        dst.copy_within(start..start + run, out + copied);
        copied += run;
    }
}

/// Compresses `src` into `dst`; `None` if it does not fit.
pub fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let mut slots = [0; SLOTS];
    let (mut at, mut out) = (0, 0);
    while at < src.len() {
        if dst.len() - out < GROUP_MAX {
            return None;
        }
        let control = out;
        dst[control] = 0;
        out += 1;
        for bit in 0..8 {
            if at >= src.len() {
                break;
            }
            if let Some((distance, length)) = find_match(src, at, &mut slots) {
                dst[control] |= 1 << bit;
                dst[out] = ((length - MATCH_MIN) as u8) << 2 | (distance >> 8) as u8;
                dst[out + 1] = distance as u8;
                out += 2;
                at += length;
            } else {
                dst[out] = src[at];
                out += 1;
                at += 1;
            }
        }
    }
    Some(out)
}

/// Returns distance and length of a match for the bytes at `at`, which is entered into the table.
///
/// A slot holds the low sixteen bits of a position and only ten of them count, so an outdated or
/// unused slot also leads to some position within reach; the bytes there are compared in any case.
fn find_match(src: &[u8], at: usize, slots: &mut [u16; SLOTS]) -> Option<(usize, usize)> {
    let &[a, b, c] = src.get(at..)?.first_chunk::<MATCH_MIN>()?;
    // No match begins where a longest one would leave the block.
    if at + MATCH_MAX > src.len() {
        return None;
    }
    let mut key = u32::from_be_bytes([0, a, b, c]);
    key += key >> 9;
    key += key >> 5;
    let slot = &mut slots[key as usize % SLOTS];
    let before = std::mem::replace(slot, at as u16);
    let distance = usize::from((at as u16).wrapping_sub(before)) & DISTANCE_MAX;
    let candidate = at.checked_sub(distance).filter(|_| distance > 0)?;
    let pairs = src[at..].iter().zip(&src[candidate..]).take(MATCH_MAX);
    let length = pairs.take_while(|(new, old)| new == old).count();
    (length >= MATCH_MIN).then_some((distance, length))
}
