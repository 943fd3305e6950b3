use super::methods::fill_by_pread;
use super::*;

/// A file of 1 MiB + 100 bytes in which every byte encodes its offset, removed when dropped.
struct Sample(std::path::PathBuf);

impl Sample {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("cenote-{}-{name}", std::process::id()));
        let bytes: Vec<u8> = (0..(1 << 20) + 100_u32).map(pattern).collect();
        std::fs::write(&path, bytes).expect("temporary file");
        Self(path)
    }
}

impl Drop for Sample {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn pattern(at: u32) -> u8 {
    (at.wrapping_mul(2_654_435_761) >> 24) as u8
}

const READS: [(u64, usize); 7] =
    [(0, 512), (1, 1), (4096, 4096), (4095, 8193), (0, 1 << 20), (1 << 20, 100), (77, 0)];

fn check(device: &dyn Device) {
    for (offset, len) in READS {
        let read = device.read(offset, BufMut::zeroed(len));
        let data = cenote_rt::block_on(1, read).expect("runtime").expect("inside");
        let want: Vec<u8> = (0..len as u32).map(|i| pattern(offset as u32 + i)).collect();
        assert!(data[..] == want[..], "{len} bytes at {offset}");
    }
    let outside = device.read(1 << 20, BufMut::zeroed(101));
    let error = cenote_rt::block_on(1, outside).expect("runtime").expect_err("outside");
    assert!(error.cause::<crate::OutOfRange>().is_some(), "{error}");
}

#[test]
fn every_way_of_reading_gives_the_same_bytes() {
    let sample = Sample::new("ways");
    let device = FileDevice::open_file(&sample.0, OpenMode::ReadOnly).expect("open");
    assert_eq!((device.info().size, device.info().is_block_device), ((1 << 20) + 100, false));
    check(&device);
    // Without the page cache shortcut: io_uring or pread.
    device.has_nowait.store(false, std::sync::atomic::Ordering::Relaxed);
    check(&device);
    cenote_rt::block_on(1, async {
        for (offset, len) in READS {
            let permit = Arc::clone(&device.depth).acquire_owned().await.expect("open");
            let (data, result) =
                fill_by_pread(&device.file, offset, (BufMut::zeroed(len), 0), &Arc::new(permit))
                    .await
                    .expect("runs");
            result.expect("inside");
            assert!(
                data.iter().enumerate().all(|(i, byte)| *byte == pattern(offset as u32 + i as u32))
            );
        }
    })
    .expect("runtime");
}

#[test]
fn many_reads_at_once_and_dropped_ones() {
    let sample = Sample::new("many");
    let device = Arc::new(FileDevice::open_file(&sample.0, OpenMode::ReadOnly).expect("open"));
    device.has_nowait.store(false, std::sync::atomic::Ordering::Relaxed);
    cenote_rt::block_on(2, async {
        let tasks: Vec<_> = (0..2000_u64)
            .map(|i| {
                let device = Arc::clone(&device);
                cenote_rt::spawn(async move {
                    let offset = i * 509 % (1 << 20);
                    let read = device.read(offset, BufMut::zeroed(64));
                    if i % 7 == 0 {
                        // Polled once and dropped: the kernel still uses the buffer.
                        let mut read = read;
                        let _ = futures_poll(&mut read);
                        return;
                    }
                    let data = read.await.expect("inside");
                    assert_eq!(data[0], pattern(offset as u32), "{i}");
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("task");
        }
    })
    .expect("runtime");
}

fn futures_poll<T>(future: &mut BoxFuture<'_, T>) -> std::task::Poll<T> {
    let waker = std::task::Waker::noop();
    future.as_mut().poll(&mut std::task::Context::from_waker(waker))
}

#[test]
fn reading_a_truncated_file_is_an_error() {
    let sample = Sample::new("short");
    let device = FileDevice::open_file(&sample.0, OpenMode::ReadOnly).expect("open");
    device.has_nowait.store(false, std::sync::atomic::Ordering::Relaxed);
    File::options().write(true).open(&sample.0).expect("open").set_len(1000).expect("truncate");
    let read = cenote_rt::block_on(1, device.read(512, BufMut::zeroed(4096))).expect("runtime");
    let error = read.expect_err("short");
    assert_eq!((error.kind(), error.at().offset), (Kind::Io, Some(512)));
}

#[test]
#[expect(clippy::disallowed_methods, reason = "the lock is the kernel's, and so is its time")]
fn open_errors_name_their_cause() {
    let missing = FileDevice::open("/nonexistent/cenote", OpenMode::ReadOnly).expect_err("missing");
    assert_eq!(missing.kind(), Kind::NotFound);
    let folder = FileDevice::open(std::env::temp_dir(), OpenMode::ReadOnly).expect_err("folder");
    assert!(matches!(folder.cause(), Some(OpenError::NotADevice(_))), "{folder}");
    let sample = Sample::new("lock");
    let held = FileDevice::open(&sample.0, OpenMode::Exclusive).expect("first");
    let second = FileDevice::open(&sample.0, OpenMode::Exclusive).expect_err("second");
    assert_eq!(second.kind(), Kind::Busy);
    FileDevice::open(&sample.0, OpenMode::ReadOnly).expect("readers take no lock");
    // Like a process that is being started: for a moment.
    let closing = std::thread::spawn(move || {
        std::thread::sleep(std::time::Duration::from_millis(20));
        drop(held);
    });
    FileDevice::open(&sample.0, OpenMode::Exclusive).expect("it is closed soon");
    closing.join().expect("no panic");
}

/// A device of `size` zero bytes, removed when the sample is dropped.
fn fresh(name: &str, size: u64) -> (Sample, FileDevice) {
    let path = std::env::temp_dir().join(format!("cenote-{}-{name}", std::process::id()));
    let _ = std::fs::remove_file(&path);
    create_file(&path, size).expect("new");
    assert_eq!(create_file(&path, size).expect_err("is there").kind(), Kind::Exists);
    let device = FileDevice::open_file(&path, OpenMode::Exclusive).expect("open");
    (Sample(path), device)
}

#[test]
fn every_way_of_writing_leaves_the_same_bytes() {
    let (_sample, mut device) = fresh("write", 1 << 20);
    let mut rng = cenote_rt::Rng::seeded(4);
    let mut model = vec![0; 1 << 20];
    for step in 0..60 {
        // Whole sectors half of the time, so that direct I/O is used.
        let grain = if step % 2 == 0 { 4096 } else { 1 };
        let offset = rng.below((1 << 20) / grain) * grain;
        let room = ((1 << 20) - offset).min(100_000) / grain + 1;
        let len = (rng.below(room) * grain) as usize;
        let mut parts = Vec::new();
        let mut at = offset as usize;
        while at < offset as usize + len {
            let part = (rng.below(20_000) as usize + 1).min(offset as usize + len - at);
            let mut bytes = BufMut::zeroed(part);
            rng.fill(&mut bytes);
            model[at..at + part].copy_from_slice(&bytes);
            at += part;
            parts.push(bytes.freeze());
        }
        if step == 30 {
            let flags = OFlags::RDWR | OFlags::DIRECT;
            let direct = rustix::fs::open(&device.info.path, flags, Mode::empty());
            device.direct = direct.ok().map(|file| Arc::new(File::from(file)));
        }
        cenote_rt::block_on(1, async {
            if step % 3 == 0 {
                let permit = Arc::clone(&device.depth).acquire_owned().await.expect("open");
                let permit = Arc::new(permit);
                methods::store_by_pwrite(&device.file, offset, parts, &permit).await.expect("room");
            } else {
                device.write(offset, parts).await.expect("room");
            }
            device.flush().await.expect("a file");
            let read = device.read(0, BufMut::zeroed(1 << 20)).await.expect("inside");
            assert!(read[..] == model[..], "step {step}");
        })
        .expect("runtime");
    }
}

#[test]
fn writes_of_more_parts_than_the_kernel_takes() {
    let (_sample, device) = fresh("parts", 4096);
    let parts: Vec<Buf> = (0..3000_u32).map(|i| Buf::from(vec![pattern(i)])).collect();
    cenote_rt::block_on(1, async {
        device.write(7, parts).await.expect("inside");
        let read = device.read(7, BufMut::zeroed(3000)).await.expect("inside");
        assert!(read.iter().enumerate().all(|(i, byte)| *byte == pattern(i as u32)));
        let error = device.write(4000, vec![Buf::from(vec![0; 97])]).await.expect_err("outside");
        assert!(error.cause::<crate::OutOfRange>().is_some(), "{error}");
    })
    .expect("runtime");
}

#[test]
fn a_discarded_range_of_a_file_is_zeros() {
    let (_sample, device) = fresh("discard", 1 << 20);
    cenote_rt::block_on(1, async {
        device.write(0, vec![Buf::from(vec![1; 1 << 20])]).await.expect("inside");
        match device.discard(4096, 65536).await {
            Ok(()) => {
                let read = device.read(0, BufMut::zeroed(1 << 20)).await.expect("inside");
                let is_zero = |at: usize| (4096..69632).contains(&at);
                assert!((0..1 << 20).all(|at| (read[at] == 0) == is_zero(at)));
            }
            Err(error) => assert_eq!(error.kind(), Kind::Unsupported),
        }
        device.discard(1 << 20, 1).await.expect_err("outside");
    })
    .expect("runtime");
}

#[test]
fn a_device_open_for_reading_cannot_be_written() {
    let sample = Sample::new("readonly");
    let device = FileDevice::open(&sample.0, OpenMode::ReadOnly).expect("open");
    cenote_rt::block_on(1, async {
        let write = device.write(0, vec![Buf::from(vec![1])]).await.expect_err("read-only");
        let discard = device.discard(0, 1).await.expect_err("read-only");
        assert_eq!((write.kind(), discard.kind()), (Kind::ReadOnly, Kind::ReadOnly));
    })
    .expect("runtime");
}

#[test]
fn a_write_with_a_dropped_future_is_completed() {
    let (_sample, device) = fresh("dropped", 1 << 20);
    cenote_rt::block_on(1, async {
        let mut write = device.write(0, vec![Buf::from(vec![5; 1 << 20])]);
        let _ = futures_poll(&mut write);
        drop(write);
        // It counts against the queue depth until the kernel is done.
        let all = tunables::DEVICE_QUEUE_DEPTH.get() as u32;
        let _done = device.depth.acquire_many(all).await.expect("open");
        let read = device.file.as_ref();
        let mut bytes = vec![0; 1 << 20];
        std::os::unix::fs::FileExt::read_exact_at(read, &mut bytes, 0).expect("whole");
        assert!(bytes.iter().all(|byte| *byte == 5));
    })
    .expect("runtime");
}

#[test]
fn a_device_that_is_closed_can_be_opened_at_once() {
    let (sample, device) = fresh("reopen", 1 << 20);
    drop(device);
    cenote_rt::block_on(2, async {
        for round in 0..300 {
            let device = FileDevice::open(&sample.0, OpenMode::Exclusive).expect("closed before");
            device.write(round * 512, vec![Buf::from(vec![1; 512])]).await.expect("inside");
            device.flush().await.expect("a file");
        }
    })
    .expect("runtime");
}

#[test]
fn small_writes_and_flushes_run_inline() {
    use std::sync::OnceLock;
    use std::thread;
    let sample = Sample::new("inline");
    let device = Arc::new(FileDevice::open_file(&sample.0, OpenMode::Exclusive).expect("open"));
    cenote_rt::block_on(1, async {
        // Long writes run on another thread, whatever the budget for inline waits.
        for (len, is_at_once) in [(4096, true), (128 << 10, true), (256 << 10, false)] {
            let place = Arc::new(OnceLock::new());
            let (device, done) = (Arc::clone(&device), Arc::clone(&place));
            let (ended, end) = cenote_rt::oneshot::channel();
            cenote_rt::Runtime::here().begin_with_inline_waits(2, async move {
                let data = Buf::from(vec![len as u8 | 1; len]);
                device.write(4096, vec![data]).await.expect("written");
                device.flush().await.expect("flushed");
                done.set(thread::current().id()).expect("once");
                let _ = ended.send(());
            });
            let is_done = place.get().is_some();
            end.await.expect("ends");
            // Another thread may have been faster than this one.
            let is_inline = is_done && place.get() == Some(&thread::current().id());
            assert_eq!(is_inline, is_at_once, "{len} bytes");
            let bytes = std::fs::read(&sample.0).expect("there");
            assert!(bytes[4096..4096 + len].iter().all(|byte| *byte == len as u8 | 1));
        }
    })
    .expect("runtime");
}
