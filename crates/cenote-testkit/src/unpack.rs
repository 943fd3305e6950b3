//! Unpacking golden images into a cache that all tests and test processes share.
//!
//!     target/golden-cache/NAME.lock              held while unpacking
//!     target/golden-cache/NAME-SIGNATURE/dN.img  sparse, mode 0444
//!     target/golden-cache/NAME-SIGNATURE/done    present when all images are
//!
//! The signature covers the names, sizes and times of the packed files, so that a replaced
//! fixture is unpacked again. Images are written without their zeroes: 128 MiB of pool take the
//! few MiB that the pool uses.
//!
//! `dN.img.zst` is an image by itself, `dN.from-dM.img.zst` its difference from image M (zstd's
//! `--patch-from`): the second half of a mirror then takes a few kilobytes.

use std::fs::{self, File, Permissions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Zeroes are skipped in pieces of this size.
const PIECE: usize = 4096;
const ZEROES: [u8; PIECE] = [0; PIECE];

/// Unpacks every `*.img.zst` of `folder` unless that is done already; returns where.
///
/// Safe to call from many threads and processes at once: one unpacks, the others wait.
pub fn unpacked(name: &str, folder: &Path) -> PathBuf {
    let cache = crate::place::target().join("golden-cache");
    fs::create_dir_all(&cache).unwrap_or_else(|error| panic!("{}: {error}", cache.display()));
    let packed = packed_images(folder);
    let images = cache.join(format!("{name}-{:016x}", signature(&packed)));
    if images.join("done").exists() {
        return images;
    }
    let lock = File::create(cache.join(format!("{name}.lock"))).expect("lock file of the cache");
    lock.lock().expect("lock of the cache");
    if !images.join("done").exists() {
        // Remains of an interrupted run.
        let _ = fs::remove_dir_all(&images);
        fs::create_dir_all(&images).expect("folder of the cache");
        unpack_all(&packed, &images);
        File::create(images.join("done")).expect("mark of a complete cache");
    }
    images
}

/// Unpacks a pool's images into `images`, which exists and is empty.
pub fn unpack_all(packed: &[PathBuf], images: &Path) {
    for path in packed {
        unpack_image(path, images);
    }
}

/// The packed images of a pool's folder, sorted by number, so that each follows the one that it is
/// a difference from.
pub fn packed_images(folder: &Path) -> Vec<PathBuf> {
    let entries =
        fs::read_dir(folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.expect("folder entry").path());
    let mut packed: Vec<_> =
        paths.filter(|path| path.to_string_lossy().ends_with(".img.zst")).collect();
    packed.sort_by_key(|path| number(path));
    packed
}

/// The number in `dN...`, by which images are sorted.
pub(crate) fn number(image: &Path) -> u64 {
    let name = image.file_name().unwrap_or_default().to_string_lossy();
    let digits = name.trim_start_matches('d').split('.').next().unwrap_or_default();
    digits.parse().unwrap_or(u64::MAX)
}

fn signature(packed: &[PathBuf]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for path in packed {
        let meta = fs::metadata(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let facts = format!("{} {} {}\n", path.display(), meta.len(), meta.mtime_nsec());
        for byte in facts.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}

fn unpack_image(packed: &Path, images: &Path) {
    let name = packed.file_name().expect("an image has a name").to_string_lossy();
    let stem = name.trim_end_matches(".img.zst");
    let (stem, before) = match stem.split_once(".from-") {
        Some((stem, before)) => (stem, read(&images.join(format!("{before}.img")))),
        None => (stem, Vec::new()),
    };
    let mut output = File::create(images.join(format!("{stem}.img"))).expect("image in the cache");
    let size =
        decompress_file(packed, &before, |offset, bytes| write_sparse(&mut output, offset, bytes));
    output.set_len(size).expect("size of an image");
    output.set_permissions(Permissions::from_mode(0o444)).expect("mode of an image");
}

fn read(path: &Path) -> Vec<u8> {
    fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Decompresses a whole file into memory, such as a manifest.
pub fn decompress(packed: &Path) -> Vec<u8> {
    let mut whole = Vec::new();
    decompress_file(packed, &[], |_, bytes| whole.extend_from_slice(bytes));
    whole
}

/// Passes the decompressed bytes of `packed` to `sink` piece by piece; returns their number.
///
/// `before` is the content that the file is a difference from, or empty.
fn decompress_file(packed: &Path, before: &[u8], mut sink: impl FnMut(u64, &[u8])) -> u64 {
    let check = |result: zstd_safe::SafeResult| {
        result.unwrap_or_else(|code| {
            panic!("{}: {}", packed.display(), zstd_safe::get_error_name(code))
        })
    };
    let mut context = zstd_safe::DCtx::create();
    check(context.set_parameter(zstd_safe::DParameter::WindowLogMax(31)));
    if !before.is_empty() {
        check(context.ref_prefix(before));
    }
    let source = read(packed);
    let mut from = zstd_safe::InBuffer::around(&source);
    let mut plain = vec![0; 1 << 20];
    let mut offset = 0;
    loop {
        let mut into = zstd_safe::OutBuffer::around(&mut plain[..]);
        let wanted = check(context.decompress_stream(&mut into, &mut from));
        let len = into.pos();
        sink(offset, &plain[..len]);
        offset += len as u64;
        let at_end = from.pos() == source.len();
        assert!(!at_end || wanted == 0 || len > 0, "{}: ends too early", packed.display());
        if at_end && wanted == 0 {
            return offset;
        }
    }
}

/// Writes `bytes` at `offset`, leaving out pieces that are all zeroes.
pub(crate) fn write_sparse(output: &mut File, offset: u64, bytes: &[u8]) {
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        if piece != &ZEROES[..piece.len()] {
            let at = offset + (index * PIECE) as u64;
            output.seek(SeekFrom::Start(at)).expect("seek in an image");
            output.write_all(piece).expect("write of an image");
        }
    }
}

/// Copies a sparse file by its data segments; the copy is writable.
pub fn copy_sparse(source: &Path, target: &Path) {
    let fail = |error: std::io::Error| -> ! { panic!("{}: {error}", source.display()) };
    let mut input = File::open(source).unwrap_or_else(|error| fail(error));
    let size = input.metadata().unwrap_or_else(|error| fail(error)).len();
    let mut output = File::create(target).unwrap_or_else(|error| fail(error));
    let mut buffer = vec![0; 1 << 20];
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(&input, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(&input, rustix::fs::SeekFrom::Hole(start)).unwrap_or(size);
        input.seek(SeekFrom::Start(start)).unwrap_or_else(|error| fail(error));
        at = start;
        while at < end {
            let want = buffer.len().min(usize::try_from(end - at).unwrap_or(usize::MAX));
            let len = input.read(&mut buffer[..want]).unwrap_or_else(|error| fail(error));
            if len == 0 {
                break;
            }
            write_sparse(&mut output, at, &buffer[..len]);
            at += len as u64;
        }
        at = end;
    }
    output.set_len(size).unwrap_or_else(|error| fail(error));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_copy_has_the_same_bytes_and_takes_no_more_room() {
        let folder = crate::golden::PrivateFolder::create("sparse");
        let (source, target) = (folder.path().join("a"), folder.path().join("b"));
        let mut file = File::create(&source).unwrap();
        write_sparse(&mut file, 8 << 20, b"data in a hole");
        write_sparse(&mut file, 0, &[0; 100]);
        file.set_len(16 << 20).unwrap();
        copy_sparse(&source, &target);
        assert_eq!(fs::read(&source).unwrap(), fs::read(&target).unwrap());
        assert!(fs::metadata(&target).unwrap().blocks() * 512 < 1 << 20);
    }
}
