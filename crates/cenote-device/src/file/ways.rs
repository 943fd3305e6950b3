//! The ways to the kernel: io_uring, or blocking calls on the blocking pool.
//!
//! Each function goes on until everything is done: short reads and writes end here. Buffers are
//! owned by whoever does the work, so a future that is dropped takes nothing from under it.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cenote_rt::{Buf, BufMut};
use tokio::sync::OwnedSemaphorePermit;

#[cfg(target_os = "linux")]
use crate::ring::{PARTS_MAX, Ring, Work};

/// Parts of one blocking write.
#[cfg(not(target_os = "linux"))]
const PARTS_MAX: usize = 1024;

/// The ring, if it is wanted and to be had.
#[cfg(target_os = "linux")]
fn ring() -> Option<&'static Ring> {
    static IS_FORBIDDEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let is_forbidden = *IS_FORBIDDEN
        .get_or_init(|| std::env::var_os("CENOTE_IO_URING").is_some_and(|value| value == "0"));
    let is_wanted = !is_forbidden && cenote_rt::tunables::IO_URING.get() == 1;
    is_wanted.then(crate::ring::ring).flatten()
}

/// Reads `buf[filled..]` to its end. The outer error means that the buffer is lost.
pub(super) async fn fill(
    file: &Arc<File>,
    offset: u64,
    rest: (BufMut, usize),
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<(BufMut, io::Result<()>)> {
    #[cfg(target_os = "linux")]
    if let Some(ring) = ring() {
        return fill_by_ring(ring, file, offset, rest, permit).await;
    }
    fill_by_pread(file, offset, rest, permit).await
}

#[cfg(target_os = "linux")]
async fn fill_by_ring(
    ring: &Ring,
    file: &Arc<File>,
    offset: u64,
    (mut buf, mut filled): (BufMut, usize),
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<(BufMut, io::Result<()>)> {
    while filled < buf.len() {
        let answer = ring.start_work(file, offset, Work::Read(buf, filled), permit).await;
        let (Work::Read(returned, _), result) = answer.map_err(io::Error::other)? else {
            return Err(io::ErrorKind::Other.into());
        };
        buf = returned;
        match result {
            Ok(0) => return Ok((buf, Err(io::ErrorKind::UnexpectedEof.into()))),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Ok((buf, Err(error))),
        }
    }
    Ok((buf, Ok(())))
}

pub(super) async fn fill_by_pread(
    file: &Arc<File>,
    offset: u64,
    (mut buf, filled): (BufMut, usize),
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<(BufMut, io::Result<()>)> {
    let (file, permit) = (Arc::clone(file), Arc::clone(permit));
    let work = move || {
        let result = file.read_exact_at(&mut buf[filled..], offset + filled as u64);
        drop(permit);
        (buf, result)
    };
    cenote_rt::blocking(work).await.map_err(io::Error::other)
}

/// Writes `parts` from `offset` on.
pub(super) async fn store(
    file: &Arc<File>,
    offset: u64,
    parts: Vec<Buf>,
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    if let Some(ring) = ring() {
        return store_by_ring(ring, file, offset, bounded(parts), permit).await;
    }
    store_by_pwrite(file, offset, bounded(parts), permit).await
}

/// As many parts as the kernel takes.
pub(super) fn bounded(parts: Vec<Buf>) -> Vec<Buf> {
    if parts.len() > PARTS_MAX { vec![crate::device::joined(&parts).freeze()] } else { parts }
}

#[cfg(target_os = "linux")]
async fn store_by_ring(
    ring: &Ring,
    file: &Arc<File>,
    mut offset: u64,
    mut parts: Vec<Buf>,
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<()> {
    parts.retain(|part| !part.is_empty());
    while !parts.is_empty() {
        let answer = ring.start_work(file, offset, Work::Write(parts), permit).await;
        let (Work::Write(returned), result) = answer.map_err(io::Error::other)? else {
            return Err(io::ErrorKind::Other.into());
        };
        parts = returned;
        match result {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                offset += count as u64;
                drop_front(&mut parts, count);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

pub(super) async fn store_by_pwrite(
    file: &Arc<File>,
    offset: u64,
    parts: Vec<Buf>,
    permit: &Arc<OwnedSemaphorePermit>,
) -> io::Result<()> {
    let (file, permit) = (Arc::clone(file), Arc::clone(permit));
    let work = move || {
        let result = write_now(&file, offset, parts);
        drop(permit);
        result
    };
    cenote_rt::blocking(work).await.map_err(io::Error::other)?
}

/// From how many bytes on the kernel is asked to begin with a write at once. It would wait for the
/// flush, and the disk would have nothing to do until then.
const BEGIN_MIN: u64 = 128 << 10;

/// Writes on this thread, however long it takes.
pub(super) fn write_now(file: &File, mut offset: u64, mut parts: Vec<Buf>) -> io::Result<()> {
    let start = offset;
    parts.retain(|part| !part.is_empty());
    while !parts.is_empty() {
        let slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
        match rustix::io::pwritev(file, &slices, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => {
                drop(slices);
                offset += count as u64;
                drop_front(&mut parts, count);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    if let Some(len) = NonZeroU64::new(offset - start).filter(|len| len.get() >= BEGIN_MIN) {
        // Pages that are not on the disk yet are written and stay in the cache. An advice: that it
        // is refused changes nothing, and durable is only what is flushed.
        let _ = rustix::fs::fadvise(file, start, Some(len), rustix::fs::Advice::DontNeed);
    }
    Ok(())
}

/// Takes the first `count` bytes off.
fn drop_front(parts: &mut Vec<Buf>, mut count: usize) {
    let whole = parts.iter().take_while(|part| match count.checked_sub(part.len()) {
        Some(rest) => {
            count = rest;
            true
        }
        None => false,
    });
    let whole = whole.count();
    parts.drain(..whole);
    if count > 0
        && let Some(first) = parts.first_mut()
        && let Some(rest) = first.slice(count..first.len())
    {
        *first = rest;
    }
}

/// Makes durable what was written to `file`: by a call that blocks, for io_uring hands it to a
/// thread too, and answers before that has let go of the file and its lock.
pub(super) async fn sync(file: &Arc<File>, permit: &Arc<OwnedSemaphorePermit>) -> io::Result<()> {
    let (file, permit) = (Arc::clone(file), Arc::clone(permit));
    let work = move || {
        let result = file.sync_data();
        drop(permit);
        result
    };
    cenote_rt::blocking_here(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_short_write_goes_on_where_it_ended() {
        let whole = || ["abc", "de", "f"].map(|text| Buf::from(text.as_bytes().to_vec())).to_vec();
        for (count, want) in [(0, "abcdef"), (1, "bcdef"), (3, "def"), (4, "ef"), (6, "")] {
            let mut parts = whole();
            drop_front(&mut parts, count);
            let rest: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
            assert_eq!((rest, parts.iter().any(|part| part.is_empty())), (want.into(), false));
        }
    }
}
