use super::*;

/// A file of 1 MiB + 100 bytes whose bytes tell their offset, removed when dropped.
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
    // Without the page cache's short cut: whichever of ring and pread is at hand.
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
                        // Polled once and dropped: the kernel still has the buffer.
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
fn a_truncated_file_is_an_error_not_a_hang() {
    let sample = Sample::new("short");
    let device = FileDevice::open_file(&sample.0, OpenMode::ReadOnly).expect("open");
    device.has_nowait.store(false, std::sync::atomic::Ordering::Relaxed);
    File::options().write(true).open(&sample.0).expect("open").set_len(1000).expect("truncate");
    let read = cenote_rt::block_on(1, device.read(512, BufMut::zeroed(4096))).expect("runtime");
    let error = read.expect_err("short");
    assert_eq!((error.kind(), error.at().offset), (Kind::Io, Some(512)));
}

#[test]
fn opening_says_why_not() {
    let missing = FileDevice::open("/nonexistent/cenote", OpenMode::ReadOnly).expect_err("missing");
    assert_eq!(missing.kind(), Kind::NotFound);
    let folder = FileDevice::open(std::env::temp_dir(), OpenMode::ReadOnly).expect_err("folder");
    assert!(matches!(folder.cause(), Some(OpenError::NotADevice(_))), "{folder}");
    let sample = Sample::new("lock");
    let _held = FileDevice::open(&sample.0, OpenMode::Exclusive).expect("first");
    let second = FileDevice::open(&sample.0, OpenMode::Exclusive).expect_err("second");
    assert_eq!(second.kind(), Kind::Busy);
    FileDevice::open(&sample.0, OpenMode::ReadOnly).expect("readers take no lock");
}
