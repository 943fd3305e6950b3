//! Tests of the layer's documented behaviour, through its mount.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};

use super::*;
use crate::golden::PrivateFolder;

const ENTRY: &str = "faultfs::tests::layer_process";
const SIZE: u64 = 1 << 20;
const EIO: i32 = 5;
const ENXIO: i32 = 6;
const ENOSPC: i32 = 28;

/// Not a test by itself: the process of every layer of these tests.
#[test]
fn layer_process() {
    serve_if_started();
}

fn layer(stem: &str, leaves: usize) -> Option<(FaultLayer, PrivateFolder)> {
    let folder = PrivateFolder::create(stem);
    let layer = FaultLayer::start(ENTRY, folder.path(), &vec![SIZE; leaves])?;
    // The layer must be dropped first.
    Some((layer, folder))
}

fn open(layer: &FaultLayer, leaf: usize) -> io::Result<File> {
    File::options().read(true).write(true).open(layer.leaf(leaf))
}

fn code<T: std::fmt::Debug>(result: io::Result<T>) -> i32 {
    result.expect_err("a fault").raw_os_error().expect("an error of the system")
}

fn bytes(file: &File, offset: u64, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    file.read_exact_at(&mut bytes, offset).unwrap();
    bytes
}

#[test]
fn leaves_are_files_with_locks_and_direct_io() {
    let Some((layer, _folder)) = layer("faultfs-plain", 2) else { return };
    let mut names: Vec<_> = fs::read_dir(layer.leaves())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["d0", "d1"]);
    let file = open(&layer, 0).unwrap();
    assert_eq!(file.metadata().unwrap().len(), SIZE);
    file.write_all_at(&vec![7; 300_000], 4096).unwrap();
    assert_eq!(bytes(&file, 4096, 300_000), vec![7; 300_000]);
    assert_eq!(fs::read(layer.images().join("d0")).unwrap()[4096], 7, "at once in the image");
    file.sync_data().unwrap();
    let counts = layer.counts(0);
    assert!(counts.writes >= 1 && counts.flushes == 1 && counts.unflushed == 0, "{counts:?}");

    let lock = FlockOperation::NonBlockingLockExclusive;
    rustix::fs::flock(&file, lock).unwrap();
    let other = open(&layer, 0).unwrap();
    assert_eq!(rustix::fs::flock(&other, lock), Err(rustix::io::Errno::WOULDBLOCK));
    let flags = OFlags::RDWR | OFlags::DIRECT;
    rustix::fs::open(layer.leaf(1), flags, Mode::empty()).unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 8192, 4096).unwrap();
    assert_eq!(bytes(&file, 8192, 4097)[4095..], [0, 7]);
}

#[test]
fn requests_fail_by_kind_range_number_and_time() {
    let Some((layer, _folder)) = layer("faultfs-errors", 2) else { return };
    let (file, other) = (open(&layer, 0).unwrap(), open(&layer, 1).unwrap());
    layer.inject(0, Fault::all(Op::Read).within(4096..8192));
    assert_eq!(code(file.read_at(&mut [0; 512], 4096)), EIO);
    assert_eq!(code(file.read_at(&mut [0; 512], 8191)), EIO);
    assert_eq!(file.read_at(&mut [0; 512], 8192).unwrap(), 512);
    file.write_all_at(&[1; 512], 4096).unwrap();

    layer.heal(0);
    layer.inject(0, Fault::all(Op::Write).every(3).with(FaultError::NoSpace));
    let failed = |_| file.write_at(&[1; 512], 0).err().and_then(|error| error.raw_os_error());
    let wanted = [Some(ENOSPC), None, None, Some(ENOSPC), None, None];
    assert_eq!((0..6).map(failed).collect::<Vec<_>>(), wanted);
    layer.inject(0, Fault::all(Op::Flush));
    assert_eq!(code(file.sync_data()), EIO);
    assert!(layer.counts(0).unflushed > 0, "a failed flush makes nothing durable");
    other.sync_data().unwrap();

    layer.heal(0);
    layer.inject(0, Fault::all(Op::Read).lasting(Duration::ZERO));
    assert_eq!(file.read_at(&mut [0; 512], 0).unwrap(), 512);
    layer.inject(0, Fault::all(Op::Write).torn());
    assert_eq!(code(file.write_at(&vec![9; 64 << 10], 0)), EIO);
    layer.heal(0);
    let found = bytes(&file, 0, 64 << 10);
    let torn = found.iter().take_while(|byte| **byte == 9).count();
    assert!(torn < found.len() && torn.is_multiple_of(512), "{torn}");
    assert!(found[torn..].iter().all(|byte| *byte != 9));
}

#[test]
fn a_leaf_goes_and_comes_back_stale() {
    let Some((layer, _folder)) = layer("faultfs-gone", 1) else { return };
    let file = open(&layer, 0).unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    layer.remember(0);
    file.write_all_at(&[2; 4096], 0).unwrap();
    layer.take_away(0);
    assert_eq!(code(file.read_at(&mut [0; 512], 0)), ENXIO);
    assert_eq!(code(file.sync_data()), ENXIO);
    assert_eq!(code(open(&layer, 0)), ENXIO);
    assert!(layer.leaf(0).exists());
    layer.hide(0);
    assert!(!layer.leaf(0).exists());
    layer.heal(0);
    assert_eq!(bytes(&file, 0, 4096), [2; 4096]);
    layer.recall(0);
    assert_eq!(bytes(&file, 0, 4096), [1; 4096]);
}

#[test]
fn a_leaf_becomes_shorter_and_its_host_full() {
    let Some((layer, _folder)) = layer("faultfs-short", 1) else { return };
    let file = open(&layer, 0).unwrap();
    layer.shorten(0, 8192);
    assert_eq!(layer.leaf(0).metadata().unwrap().len(), 8192);
    assert_eq!(file.read_at(&mut [0; 4096], 6144).unwrap(), 2048);
    assert_eq!(code(file.write_at(&[1; 4096], 6144)), EIO);
    layer.heal(0);
    file.write_all_at(&[1; 4096], 4096).unwrap();
    layer.fill_host(0);
    file.write_all_at(&[2; 4096], 4096).unwrap();
    assert_eq!(code(file.write_at(&[1; 4096], 512 << 10)), ENOSPC);
    layer.heal(0);
    file.write_all_at(&[1; 4096], 512 << 10).unwrap();
    layer.slow_down(0, Duration::from_millis(1));
    assert_eq!(bytes(&file, 4096, 1), [2]);
}

/// The contents after a power cut with `kept` percent of the unflushed writes.
fn after_cut(layer: &FaultLayer, seed: u64, kept: u64) -> Vec<u8> {
    let file = open(layer, 0).unwrap();
    for index in 0..64u64 {
        file.write_all_at(&[1; 4096], index * 4096).unwrap();
    }
    file.sync_data().unwrap();
    for index in 0..64u64 {
        file.write_all_at(&[2; 8192], index * 4096).unwrap();
    }
    layer.cut(PowerCut { seed, kept_percent: kept, torn_percent: 50 });
    assert_eq!(code(file.read_at(&mut [0; 512], 0)), ENXIO);
    assert_eq!(code(open(layer, 0)), ENXIO);
    layer.power_on();
    bytes(&file, 0, 64 * 4096)
}

#[test]
fn a_power_cut_keeps_flushed_writes_and_a_seeded_part_of_the_others() {
    let Some((layer, _folder)) = layer("faultfs-cut", 1) else { return };
    assert!(after_cut(&layer, 1, 0).iter().all(|byte| *byte == 1));
    let first = after_cut(&layer, 1, 50);
    assert!(first.contains(&1) && first.contains(&2));
    assert!(first.chunks(512).all(|sector| sector.iter().all(|byte| *byte == sector[0])));
    assert!(first == after_cut(&layer, 1, 50), "a seed says it all");
    assert!(first != after_cut(&layer, 2, 50));
    let file = open(&layer, 0).unwrap();
    layer.lie_at_flush(0);
    file.write_all_at(&[3; 4096], 0).unwrap();
    file.sync_data().unwrap();
    layer.cut(PowerCut { seed: 1, kept_percent: 0, torn_percent: 0 });
    layer.power_on();
    assert!(bytes(&file, 0, 4096).iter().all(|byte| *byte != 3), "the flush lied");
}

#[test]
fn nothing_stays_of_a_layer_whose_test_ends_early() {
    let Some((mut layer, folder)) = layer("faultfs-end", 1) else { return };
    let file = open(&layer, 0).unwrap();
    // The kernel does the same for a test that is killed.
    drop(layer.line.lock().unwrap().take());
    assert!(layer.process.wait().unwrap().success());
    assert!(!is_mounted(&layer.leaves()));
    assert!((&file).read(&mut [0; 1]).is_err());
    drop(layer);

    // The mount of a killed layer is removed when the layer is dropped.
    let mut layer = FaultLayer::start(ENTRY, folder.path(), &[SIZE]).unwrap();
    let file = open(&layer, 0).unwrap();
    layer.process.kill().unwrap();
    layer.process.wait().unwrap();
    assert!((&file).write(&[0; 1]).is_err());
    let at = layer.leaves();
    assert!(is_mounted(&at));
    drop(layer);
    assert!(!is_mounted(&at));
}

#[test]
fn a_hanging_leaf_answers_when_it_is_healed() {
    let Some((layer, _folder)) = layer("faultfs-hang", 2) else { return };
    let (file, other) = (open(&layer, 0).unwrap(), open(&layer, 1).unwrap());
    layer.hang(0);
    let requests = (0..12_u64).map(|number| {
        let file = file.try_clone().unwrap();
        std::thread::spawn(move || file.write_all_at(&[9; 4096], number * 4096))
    });
    let requests: Vec<_> = requests.collect();
    other.write_all_at(&[3; 4096], 0).unwrap();
    assert_eq!(bytes(&other, 0, 4096), [3; 4096], "more requests than threads hang elsewhere");
    assert!(requests.iter().all(|request| !request.is_finished()));
    layer.heal(0);
    for request in requests {
        request.join().unwrap().unwrap();
    }
    assert_eq!(bytes(&file, 11 * 4096, 4096), [9; 4096]);
}
