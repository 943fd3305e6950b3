//! Converts numbers, times and attributes between cenote's types and those of the wire.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cenote_fs::mount::{Attributes, errno};
use cenote_fs::{FileKind, Time};
use cenote_rt::Error;

use super::wire::{Errno, FileAttr, FileType, Generation, INodeNo};

/// Limits of the block size reported to the kernel: the size in which programs read and write.
const BLOCK_MIN: u64 = 4 << 10;
const BLOCK_MAX: u64 = 1 << 20;
const NANOSECONDS: u64 = 1_000_000_000;

/// Returns the number of an error.
pub(super) fn errno_of(error: &Error) -> Errno {
    match errno::of(error) {
        // As for other disks: OpenZFS's number for checksum errors is specific to OpenZFS.
        errno::ECKSUM => Errno::EIO,
        number => Errno::from_i32(number),
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Directory => FileType::Directory,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Socket => FileType::Socket,
        FileKind::Regular | FileKind::Other(_) => FileType::RegularFile,
    }
}

/// Converts attributes for the wire. Their node number is the object number, also for the root.
pub(super) fn attributes(from: &Attributes) -> FileAttr {
    let block = from.block_size.clamp(BLOCK_MIN, BLOCK_MAX).next_power_of_two();
    FileAttr {
        ino: INodeNo(from.object),
        size: from.size,
        blocks: from.blocks,
        atime: system_time(from.atime),
        mtime: system_time(from.mtime),
        ctime: system_time(from.ctime),
        crtime: system_time(from.crtime),
        kind: file_type(from.kind),
        perm: from.mode as u16,
        nlink: u32::try_from(from.links).unwrap_or(u32::MAX),
        uid: from.uid,
        gid: from.gid,
        rdev: from.device.map_or(0, |(major, minor)| device_number(major, minor)),
        blksize: block as u32,
    }
}

/// Attributes in the answer about a missing name.
pub(super) const NOTHING: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
};

pub(super) fn generation(from: &Attributes) -> Generation {
    Generation(from.generation)
}

/// Returns a device number in the kernel's wire format.
const fn device_number(major: u32, minor: u32) -> u32 {
    minor & 0xff | (major & 0xfff) << 8 | (minor & 0xfff00) << 12
}

fn system_time(time: Time) -> SystemTime {
    let part = Duration::from_nanos(time.nanoseconds.min(999_999_999));
    let seconds = Duration::from_secs(time.seconds.unsigned_abs());
    let whole = if time.seconds < 0 {
        UNIX_EPOCH.checked_sub(seconds)
    } else {
        UNIX_EPOCH.checked_add(seconds)
    };
    whole.and_then(|whole| whole.checked_add(part)).unwrap_or(UNIX_EPOCH)
}

/// Converts a time of a request. Nanoseconds count forward, also before 1970.
pub(super) fn time(from: SystemTime) -> Time {
    match from.duration_since(UNIX_EPOCH) {
        Ok(since) => Time {
            seconds: i64::try_from(since.as_secs()).unwrap_or(i64::MAX),
            nanoseconds: since.subsec_nanos().into(),
        },
        Err(before) => {
            let before = before.duration();
            let seconds = i64::try_from(before.as_secs()).map_or(i64::MIN, |seconds| -seconds);
            match u64::from(before.subsec_nanos()) {
                0 => Time { seconds, nanoseconds: 0 },
                part => {
                    Time { seconds: seconds.saturating_sub(1), nanoseconds: NANOSECONDS - part }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_fs::mount::decode_dev;

    #[test]
    fn device_numbers_survive_the_round_trip() {
        for (major, minor) in [(8, 17), (259, 0xf_ffff), (0, 0), (0xfff, 0xff)] {
            assert_eq!(decode_dev(device_number(major, minor).into()), (major, minor));
        }
    }

    #[test]
    fn times_survive_the_round_trip_also_before_1970() {
        let day = Time { seconds: 86_400, nanoseconds: 5 };
        assert_eq!(time(system_time(day)), day);
        // 1.2 s before 1970: two seconds before, and 0.8 seconds forward.
        let before = Time { seconds: -2, nanoseconds: 800_000_000 };
        assert_eq!(system_time(before), UNIX_EPOCH - Duration::from_millis(1200));
        assert_eq!(time(system_time(before)), before);
    }
}
