//! I/O methods: io_uring, or blocking calls on the blocking pool.
//!
//! Each function repeats short reads and writes until all bytes are transferred. The task that does
//! the work owns the buffers, so dropping a future does not free them.

use std::fs::File;
use std::io::{self, IoSlice};
use std::num::NonZeroU64;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use cenote_rt::{Buf, BufMut};
use tokio::sync::OwnedSemaphorePermit;

#[cfg(target_os = "linux")]
use crate::ring::{PARTS_MAX, Ring, Work};

/// Most parts of one blocking write.
#[cfg(not(target_os = "linux"))]
const PARTS_MAX: usize = 1024;

/// The ring, if io_uring is enabled and available.
#[cfg(target_os = "linux")]
fn ring() -> Option<&'static Ring> {
    static IS_FORBIDDEN: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
    let is_forbidden = *IS_FORBIDDEN
        .get_or_init(|| std::env::var_os("CENOTE_IO_URING").is_some_and(|value| value == "0"));
    let is_wanted = !is_forbidden && cenote_rt::tunables::IO_URING.get() == 1;
    is_wanted.then(crate::ring::ring).flatten()
}

/// Reads `buf[filled..]` to its end. An outer error means that the buffer is lost.
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

/// Concatenates parts until there are at most as many as the kernel accepts.
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

/// Smallest write for which the kernel is asked to start writeback at once. Otherwise it would wait
/// for the flush, and the disk would be idle until then.
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
        // Starts writeback of dirty pages, which stay in the cache. It is only advice: if it is
        // refused nothing is lost, and only flushed bytes are durable.
        let _ = rustix::fs::fadvise(file, start, Some(len), rustix::fs::Advice::DontNeed);
    }
    Ok(())
}

/// Removes the first `count` bytes.
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

/// Makes writes to `file` durable, with a blocking call: io_uring also hands fdatasync to a thread,
/// and completes it before the kernel has released the file and its lock.
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
