//! `zdb -R`: bytes at an address of the pool, whatever they are.
//!
//! The block is `VDEV:OFFSET:SIZE[:FLAGS]`, numbers in hexadecimal but for the vdev. Flags: `d`
//! finds a compression that makes sense of it, `i` shows block pointers, `r` writes raw bytes,
//! `e` swaps the words' bytes, `b` shows the block pointer at an offset (`bOFFSET`), `g` reads a
//! gang header, `v` tells what was tried.

use cenote_codec::compress::{Compression, decompress};
use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BLOCK_SIZE_MAX, BlockPtr, SECTOR_SIZE};
use cenote_vdev::Place;

use super::pool::Show;
use crate::io::{CommandResult, Exit, Io};
use crate::{err, out};

/// Bytes of a gang header.
const GANG_LEN: u64 = 512;
/// Compressions in the order in which they are tried.
const TRIED: [(&str, Compression); 4] = [
    ("lz4", Compression::Lz4),
    ("lzjb", Compression::Lzjb),
    ("gzip-1", Compression::Gzip(1)),
    ("zstd", Compression::Zstd),
];

/// A block as the operand names it.
struct Spec<'a> {
    vdev: u64,
    offset: u64,
    lsize: u64,
    psize: u64,
    flags: &'a str,
}

/// Shows the blocks that the operands behind the pool name.
pub(super) async fn run(show: &mut Show<'_, '_>) -> CommandResult {
    for text in show.options.operands.get(1..).unwrap_or_default() {
        let result = one(show, text).await;
        show.tolerate(result)?;
    }
    Ok(())
}

fn parse(text: &str) -> Result<Spec<'_>, &'static str> {
    let mut parts = text.splitn(4, ':');
    let mut next = || parts.next().filter(|part| !part.is_empty());
    let vdev = next().ok_or("empty vdev")?;
    let offset = next().ok_or("empty offset")?;
    let size = next().ok_or("empty size")?;
    let hex = |text: &str| u64::from_str_radix(text.trim_start_matches("0x"), 16).ok();
    let (lsize, psize) = size.split_once('/').unwrap_or((size, size));
    let spec = Spec {
        vdev: vdev.parse().map_err(|_| "invalid vdev")?,
        offset: hex(offset).ok_or("invalid offset")?,
        lsize: hex(lsize).ok_or("invalid logical size")?,
        psize: hex(psize).ok_or("invalid physical size")?,
        flags: parts.next().unwrap_or(""),
    };
    let is_aligned = |size: u64| size.is_multiple_of(SECTOR_SIZE);
    match () {
        () if !is_aligned(spec.offset) => Err("offset must be a multiple of sector size"),
        () if spec.psize == 0 || spec.lsize == 0 => Err("size must not be zero"),
        () if !is_aligned(spec.psize) => Err("size must be a multiple of sector size"),
        () if spec.psize.max(spec.lsize) > BLOCK_SIZE_MAX => Err("size too large"),
        () => Ok(spec),
    }
}

async fn one(show: &mut Show<'_, '_>, text: &str) -> CommandResult {
    let mut spec = match parse(text) {
        Ok(spec) => spec,
        Err(why) => {
            show.has_failed = true;
            return err!(show.io, "Invalid block specifier: {text}  - {why}");
        }
    };
    if let Some(flag) = spec.flags.chars().find(|flag| !"bdegirvc0123456789abcdef".contains(*flag))
    {
        show.has_failed = true;
        return err!(show.io, "***Invalid flag: {text} {flag}");
    }
    let has = |flag: char| spec.flags.contains(flag);
    if has('g') {
        spec.psize = GANG_LEN;
        spec.lsize = GANG_LEN;
    }
    let Some(top) = show.pool.tree().top(spec.vdev) else {
        show.has_failed = true;
        return err!(show.io, "***Invalid vdev: {}", spec.vdev);
    };
    let kind = top.kind();
    if spec.flags.contains('v') {
        err!(show.io, "Found vdev type: {kind:?}")?;
    }
    let place = Place { vdev: spec.vdev, offset: spec.offset };
    // Nobody knows a checksum for it.
    let read = show.pool.tree().read(place, spec.psize, 0, &|_: &[u8]| true).await;
    let mut bytes = match read {
        Ok(read) => read.data.to_vec(),
        Err(error) => return Err(Exit::failed(format!("Read of {text} failed, error: {error}"))),
    };
    if spec.flags.contains('d') {
        bytes = expand(show, &bytes, spec.lsize, spec.flags.contains('v'))?
            .ok_or_else(|| Exit::failed(format!("Decompress of {text} failed")))?;
    }
    if spec.flags.contains('e') {
        for word in bytes.chunks_exact_mut(8) {
            word.reverse();
        }
    }
    print(show, text, &spec, &bytes)
}

fn print(show: &mut Show<'_, '_>, text: &str, spec: &Spec<'_>, bytes: &[u8]) -> CommandResult {
    if let Some((_, offset)) = spec.flags.split_once('b') {
        let digits: String = offset.chars().take_while(char::is_ascii_hexdigit).collect();
        let offset = usize::from_str_radix(&digits, 16).unwrap_or(0);
        let pointer = BlockPtr::at(bytes, offset).unwrap_or(BlockPtr::HOLE);
        return out!(show.io, "{}", pointer.verbose());
    }
    if spec.flags.contains('r') {
        return Ok(show.io.out.write_all(bytes)?);
    }
    if spec.flags.contains('i') || spec.flags.contains('g') {
        let end = if spec.flags.contains('g') { 3 * BLOCK_PTR_LEN } else { bytes.len() };
        for pointer in BlockPtr::all_in(bytes.get(..end).unwrap_or(bytes)) {
            out!(show.io, "{}", pointer.verbose())?;
        }
        return Ok(());
    }
    dump(show.io, text, bytes)
}

/// Tries compressions and sizes until one fits.
///
/// Without a logical size in the operand the smallest size to which the bytes expand is taken.
fn expand(
    show: &mut Show<'_, '_>,
    bytes: &[u8],
    lsize: u64,
    is_verbose: bool,
) -> CommandResult<Option<Vec<u8>>> {
    let psize = bytes.len() as u64;
    let sizes: Vec<u64> = if lsize > psize {
        vec![lsize]
    } else {
        let first = psize + SECTOR_SIZE;
        (first..=BLOCK_SIZE_MAX.min(first + (128 << 10))).step_by(SECTOR_SIZE as usize).collect()
    };
    for size in sizes {
        for (name, compression) in TRIED {
            if is_verbose {
                err!(show.io, "Trying {psize:05x} -> {size:05x} ({name})")?;
            }
            let mut expanded = vec![0; size as usize];
            if decompress(compression, bytes, &mut expanded).is_ok() {
                return Ok(Some(expanded));
            }
        }
    }
    Ok(None)
}

/// Bytes as words in hexadecimal and as text, sixteen to a line.
pub(super) fn dump(io: &mut Io<'_>, label: &str, bytes: &[u8]) -> CommandResult {
    out!(io, "\n{label}\n{:6}    0 1 2 3 4 5 6 7   8 9 a b c d e f  0123456789abcdef", "")?;
    for (line, chunk) in bytes.chunks(16).enumerate() {
        let mut words = [0_u64; 2];
        for (word, piece) in words.iter_mut().zip(chunk.chunks(8)) {
            let mut whole = [0; 8];
            whole[..piece.len()].copy_from_slice(piece);
            *word = u64::from_be_bytes(whole);
        }
        // In the order on disk, as the words are written too.
        let text: String = words
            .iter()
            .flat_map(|word| word.to_be_bytes())
            .map(|byte| if byte.is_ascii_graphic() || byte == b' ' { byte as char } else { '.' })
            .collect();
        out!(io, "{:06x}:  {:016x}  {:016x}  {text}", line * 16, words[0], words[1])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn block_specifiers() {
        let spec = parse("1:6400:20000/400:dv").expect("valid");
        assert_eq!((spec.vdev, spec.offset, spec.lsize, spec.psize), (1, 0x6400, 0x20000, 0x400));
        assert_eq!(spec.flags, "dv");
        for bad in ["", "0", "0:200", "0:201:200", "0:200:0", "x:200:200", "0:200:ffffffff"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
