//! gzip-N: a zlib stream (RFC 1950) of level N. Bytes after its end are padding.
//!
//! OpenZFS compresses with the kernel's old zlib, whose choices no library reproduces: blocks that
//! we write are as good, but not identical (spec 02 §4.2).

use std::cell::RefCell;

use flate2::{Compress, Decompress, FlushCompress, FlushDecompress, Status};

use super::{DecompressError, complete};

/// Levels 1 to 9.
const LEVELS: usize = 9;

/// The library's level 1 compresses much worse than zlib's: 62 % more bytes on real text.
const LIBRARY_LEVEL_MIN: u32 = 2;

thread_local! {
    static INFLATE: RefCell<Decompress> = RefCell::new(Decompress::new(true));
    static DEFLATE: RefCell<[Option<Compress>; LEVELS]> =
        const { RefCell::new([const { None }; LEVELS]) };
}

pub(super) fn decompress(src: &[u8], dst: &mut [u8]) -> Result<(), DecompressError> {
    INFLATE.with_borrow_mut(|inflate| {
        inflate.reset(true);
        let broken = DecompressError::Broken { form: "gzip" };
        let expected = dst.len();
        let status = inflate.decompress(src, dst, FlushDecompress::Finish).map_err(|_| broken)?;
        let produced = usize::try_from(inflate.total_out()).unwrap_or(usize::MAX);
        match status {
            Status::StreamEnd => complete(produced, dst),
            _ if produced < expected => Err(DecompressError::Truncated { produced, expected }),
            // The output is full and the stream has not ended: either there are more bytes in it,
            // or its end was cut off. One spare output byte decides.
            _ => {
                let read = usize::try_from(inflate.total_in()).unwrap_or(usize::MAX);
                let rest = src.get(read..).unwrap_or_default();
                match inflate.decompress(rest, &mut [0], FlushDecompress::Finish) {
                    Ok(Status::StreamEnd) => complete(inflate.total_out() as usize, dst),
                    Ok(_) if inflate.total_out() as usize > expected => {
                        Err(DecompressError::Long { expected })
                    }
                    Ok(_) => Err(DecompressError::Truncated { produced, expected }),
                    Err(_) => Err(broken),
                }
            }
        }
    })
}

pub(super) fn compress(level: u8, src: &[u8], dst: &mut [u8]) -> Option<usize> {
    let level = usize::from(level).clamp(1, LEVELS);
    DEFLATE.with_borrow_mut(|deflates| {
        let fresh =
            || Compress::new(flate2::Compression::new((level as u32).max(LIBRARY_LEVEL_MIN)), true);
        let deflate = deflates[level - 1].get_or_insert_with(fresh);
        deflate.reset();
        let status = deflate.compress(src, dst, FlushCompress::Finish).ok()?;
        (status == Status::StreamEnd).then(|| deflate.total_out() as usize)
    })
}
