//! ZLE: runs of zeros are counted, all other bytes are literals.
//!
//!     byte c below 64:    c + 1 literal bytes follow
//!     byte c from 64 on:  c - 63 zeros, 1..=192
//!
//! Sources: spec 02 §4.2.

use super::DecompressError;

/// Longest run of literals; the format's parameter `n`.
const LITERALS_MAX: usize = 64;

/// Longest run of zeros in one byte.
const ZEROS_MAX: usize = 192;

/// Shortest run of zeros that interrupts literals: a shorter one would cost as much as it saves.
const ZEROS_MIN: usize = 2;

/// Fills `dst` from `src`.
pub fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    let expected = dst.len();
    let (mut input, mut out) = (src, dst);
    while !out.is_empty() {
        let truncated = DecompressError::Truncated { produced: expected - out.len(), expected };
        let (&code, rest) = input.split_first().ok_or(truncated)?;
        let count = usize::from(code) + 1;
        let run = if count <= LITERALS_MAX { count } else { count - LITERALS_MAX };
        let (head, tail) =
            out.split_at_mut_checked(run).ok_or(DecompressError::Long { expected })?;
        if count <= LITERALS_MAX {
            let (literals, rest) = rest.split_at_checked(run).ok_or(truncated)?;
            head.copy_from_slice(literals);
            input = rest;
        } else {
            head.fill(0);
            input = rest;
        }
        out = tail;
    }
    Ok(())
}

/// Compresses `src` into `dst`; `None` if it does not fit.
pub fn compress(src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let (mut input, mut out) = (src, 0);
    while !input.is_empty() {
        let zeros = zeros_at_start(input).min(ZEROS_MAX);
        if zeros > 0 {
            *dst.get_mut(out)? = (LITERALS_MAX + zeros - 1) as u8;
            out += 1;
            input = &input[zeros..];
        } else {
            let end = literals_at_start(input);
            *dst.get_mut(out)? = (end - 1) as u8;
            dst.get_mut(out + 1..out + 1 + end)?.copy_from_slice(&input[..end]);
            out += 1 + end;
            input = &input[end..];
        }
    }
    Some(out)
}

fn zeros_at_start(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|&&byte| byte == 0).count()
}

/// Number of bytes up to the next run of zeros that is long enough, at most [`LITERALS_MAX`]. A run
/// of full length and the last one of a block do not end with a zero, which OpenZFS leaves to a run
/// of zeros.
fn literals_at_start(bytes: &[u8]) -> usize {
    let run = bytes.windows(ZEROS_MIN).take(LITERALS_MAX).position(|pair| pair == [0; ZEROS_MIN]);
    run.unwrap_or_else(|| {
        let most = LITERALS_MAX.min(bytes.len());
        if bytes.get(most - 1) == Some(&0) { most - 1 } else { most }
    })
}
