//! `zdb -R`: prints the bytes at an address of the pool, without knowing what they are.
//!
//! The block is `VDEV:OFFSET:SIZE[:FLAGS]`, with hexadecimal numbers except for the vdev. VDEV is
//! the number of a top-level vdev, a child of one by numbers (`0.1`), or a vdev name as `zpool`
//! takes it; a leaf's bytes are read at that offset of the leaf. Flags: `d` finds a compression
//! that fits, `i` shows block pointers, `r` writes raw bytes, `e` swaps the bytes of words, `b`
//! shows the block pointer at an offset (`bOFFSET`), `g` reads a gang header, `v` reports the
//! attempts.

use cenote_codec::compress::{Compression, decompress};
use cenote_ondisk::blkptr::{BLOCK_PTR_LEN, BLOCK_SIZE_MAX, BlockPtr, SECTOR_SIZE};
use cenote_ondisk::config::{VdevConfig, VdevKind};

use super::pool::Show;
use crate::io::{CommandResult, Exit, Io};
use crate::zpool::names;
use crate::{argument, err, out};

/// Bytes of a gang header.
const GANG_LEN: u64 = 512;
/// Compression algorithms in the order of attempts.
const TRIED: [(&str, Compression); 4] = [
    ("lz4", Compression::Lz4),
    ("lzjb", Compression::Lzjb),
    ("gzip-1", Compression::Gzip(1)),
    ("zstd", Compression::Zstd),
];

/// A block as given in the operand.
struct Spec<'a> {
    vdev: &'a str,
    offset: u64,
    lsize: u64,
    psize: u64,
    flags: &'a str,
}

/// Shows the blocks in the operands after the pool.
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
        vdev,
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
    let Some(vdev) = find(&show.pool.config().vdev_tree, spec.vdev) else {
        show.has_failed = true;
        return err!(show.io, "***Invalid vdev: {}", spec.vdev);
    };
    if spec.flags.contains('v') {
        err!(show.io, "Found vdev type: {}", type_name(&vdev.kind))?;
    }
    let read = show.pool.vdevs().read(vdev, spec.offset, spec.psize).await;
    let mut bytes = read
        .map(|bytes| bytes.to_vec())
        .map_err(|error| Exit::failed(format!("Read of {text} failed, error: {error}")))?;
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

/// Returns the vdev that an operand names.
fn find<'c>(root: &'c VdevConfig, name: &str) -> Option<&'c VdevConfig> {
    let mut numbers = name.split('.').map(str::parse::<u64>);
    if let Some(Ok(id)) = numbers.next()
        && let Some(top) = usize::try_from(id).ok().and_then(|id| root.children.get(id))
    {
        let down = numbers.try_fold(top, |vdev, number| {
            let number = number.ok()?;
            vdev.children.iter().find(|child| child.id == number)
        });
        if down.is_some() {
            return down;
        }
    }
    names::find(root, name, &argument::path(name)).ok().filter(|vdev| vdev.guid != 0)
}

fn type_name(kind: &VdevKind) -> &'static str {
    match kind {
        VdevKind::Root => "Root",
        VdevKind::File => "File",
        VdevKind::Disk => "Disk",
        VdevKind::Mirror => "Mirror",
        VdevKind::Replacing => "Replacing",
        VdevKind::Spare => "Spare",
        VdevKind::RaidZ(_) => "Raidz",
        VdevKind::Draid(_) => "Draid",
        VdevKind::DraidSpare { .. } => "DraidSpare",
        VdevKind::Indirect => "Indirect",
        VdevKind::Hole => "Hole",
        VdevKind::Missing => "Missing",
    }
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

/// Tries compression algorithms and sizes until one fits.
///
/// Without a logical size in the operand, the smallest size that the bytes expand to is taken.
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

/// Prints bytes as hexadecimal words and as text, sixteen per line.
pub(super) fn dump(io: &mut Io<'_>, label: &str, bytes: &[u8]) -> CommandResult {
    out!(io, "\n{label}\n{:6}    0 1 2 3 4 5 6 7   8 9 a b c d e f  0123456789abcdef", "")?;
    for (line, chunk) in bytes.chunks(16).enumerate() {
        let mut words = [0_u64; 2];
        for (word, piece) in words.iter_mut().zip(chunk.chunks(8)) {
            let mut whole = [0; 8];
            whole[..piece.len()].copy_from_slice(piece);
            *word = u64::from_be_bytes(whole);
        }
        // In the order on disk, like the words.
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
    use cenote_pool::import::{self, ScanOptions};
    use cenote_pool::{OpenOptions, Pool};

    #[test]
    fn vdevs_have_names() {
        let Some(golden) = cenote_testkit::golden("g-codecs") else { return };
        let scan = ScanOptions { paths: vec![golden.images()] };
        let found = cenote_rt::block_on(1, async {
            let scan = import::scan(&scan).await.expect("a scan");
            let pool = scan.find("g-codecs").expect("the pool");
            let pool = Pool::open(pool, &OpenOptions::default()).await.expect("opens");
            let root = &pool.config().vdev_tree;
            let second = root.leaves().nth(1).expect("two");
            let path = golden.devices()[1].to_string_lossy().into_owned();
            let guid = second.guid.to_string();
            let top = root.children.first().map(|top| top.guid);
            let others = ["1", "0.2", "0.1.0", "x", "mirror-1"].map(|name| (name, None));
            let second_names =
                ["0.1", "d1.img", &path, &guid].map(|name| (name, Some(second.guid)));
            let tops = ["0", "mirror-0"].map(|name| (name, top));
            for (name, want) in second_names.into_iter().chain(tops).chain(others) {
                assert_eq!(find(root, name).map(|vdev| vdev.guid), want, "{name}");
            }
            let spec = parse("0.1:3059000:1000").expect("valid");
            let read = |vdev| pool.vdevs().read(vdev, spec.offset, spec.psize);
            let own = read(second).await.expect("bytes");
            assert!(own[..] == read(&root.children[0]).await.expect("bytes")[..]);
        });
        found.expect("a runtime");
    }

    #[test]
    fn block_specifiers() {
        let spec = parse("1:6400:20000/400:dv").expect("valid");
        let numbers = (spec.offset, spec.lsize, spec.psize);
        assert_eq!((spec.vdev, numbers), ("1", (0x6400, 0x20000, 0x400)));
        assert_eq!(spec.flags, "dv");
        for bad in ["", "0", "0:200", "0:201:200", "0:200:0", "0:200:ffffffff"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
