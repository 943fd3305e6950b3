//! What the accesses of a recording cost with a record size, by arithmetic.

use std::collections::{BTreeMap, BTreeSet};

use super::trace::Access;

/// Time after which a transaction group is written (`zfs_txg_timeout`), unless it fills the cache.
const TXG_US: u64 = 5_000_000;
/// Sectors of a device.
const SECTOR: u64 = 4096;
/// Bytes of a block pointer, and pointers of an indirect block.
const POINTER: u64 = 128;
const POINTERS: u64 = 1024;
/// Copies of metadata.
const METADATA_COPIES: u64 = 2;

/// What accesses cost.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cost {
    /// Bytes that programs read and wrote.
    pub read: u64,
    /// Bytes that programs wrote.
    pub written: u64,
    /// Reads of the device for them, with adjacent blocks as one, and their bytes.
    pub reads: u64,
    /// Bytes of these reads.
    pub read_bytes: u64,
    /// Blocks that were read because a write replaced a part of them.
    pub part_reads: u64,
    /// Bytes of these blocks.
    pub part_bytes: u64,
    /// Bytes of written blocks.
    pub write_bytes: u64,
    /// Bytes of indirect blocks that are written with them, at most: uncompressed.
    pub indirect_bytes: u64,
    /// Bytes behind the ends of files in their last blocks, which only compression saves.
    pub tail_bytes: u64,
}

/// A device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceTimes {
    /// Its name.
    pub name: &'static str,
    /// Time until the first byte of a read.
    pub access_s: f64,
    /// Bytes per second.
    pub rate: f64,
}

impl Cost {
    /// Returns how long a device is busy: each read that does not follow another one is an access,
    /// and what a transaction group writes is written in one go.
    #[must_use]
    pub fn seconds(&self, device: &DeviceTimes) -> f64 {
        let accesses = (self.reads + self.part_reads) as f64;
        let bytes = self.read_bytes + self.part_bytes + self.write_bytes + self.indirect_bytes;
        accesses * device.access_s + bytes as f64 / device.rate
    }
}

/// A file.
#[derive(Debug, Clone, Copy)]
struct File {
    /// Its end in the recording.
    end: u64,
    /// Its length so far if the recording begins with its creation.
    grown: Option<u64>,
}

/// Blocks in memory, by when they were used last.
struct Cache {
    blocks: BTreeMap<(u64, u64), u64>,
    by_use: BTreeMap<u64, (u64, u64)>,
    most: usize,
    uses: u64,
}

impl Cache {
    /// Uses a block. Returns whether it was in memory.
    fn touch(&mut self, block: (u64, u64)) -> bool {
        self.uses += 1;
        let before = self.blocks.insert(block, self.uses);
        if let Some(before) = before {
            self.by_use.remove(&before);
        }
        self.by_use.insert(self.uses, block);
        if self.blocks.len() > self.most
            && let Some((_, oldest)) = self.by_use.pop_first()
        {
            self.blocks.remove(&oldest);
        }
        before.is_some()
    }
}

/// The state of a replay.
struct Replay {
    record: u64,
    files: BTreeMap<u64, File>,
    cache: Cache,
    /// The block that the last read of the device ended with.
    last_read: Option<(u64, u64)>,
    /// Blocks of the open transaction group.
    dirty: BTreeSet<(u64, u64)>,
    cost: Cost,
}

/// Replays accesses with a record size and a cache of some bytes.
pub(super) fn replay(accesses: &[Access], record: u64, cache_bytes: u64) -> Cost {
    let most = usize::try_from(cache_bytes / record).unwrap_or(usize::MAX).max(1);
    let cache = Cache { blocks: BTreeMap::new(), by_use: BTreeMap::new(), most, uses: 0 };
    let (files, dirty, cost) = (files(accesses), BTreeSet::new(), Cost::default());
    let mut replay = Replay { record, files, cache, last_read: None, dirty, cost };
    let mut txg_start = 0;
    for access in accesses {
        if access.us.saturating_sub(txg_start) >= TXG_US {
            replay.sync();
            txg_start = access.us;
        }
        if access.is_write { replay.write(access) } else { replay.read(access) }
    }
    replay.sync();
    replay.cost.tail_bytes = replay.files.values().map(|file| replay.tail(file)).sum();
    replay.cost
}

fn files(accesses: &[Access]) -> BTreeMap<u64, File> {
    let mut files: BTreeMap<u64, File> = BTreeMap::new();
    for access in accesses {
        // A file whose first access writes its beginning is taken as new.
        let grown = (access.is_write && access.offset == 0).then_some(0);
        let file = files.entry(access.object).or_insert(File { end: 0, grown });
        file.end = file.end.max(access.end());
    }
    files
}

impl Replay {
    /// Returns the length of the blocks of a file: a file that is shorter than a record has one
    /// block of its own length.
    fn block_len(&self, file: &File) -> u64 {
        self.record.min(file.end.next_multiple_of(512)).next_multiple_of(SECTOR.min(self.record))
    }

    fn tail(&self, file: &File) -> u64 {
        let len = self.block_len(file);
        file.end.next_multiple_of(len) - file.end
    }

    fn file(&self, object: u64) -> File {
        self.files.get(&object).copied().unwrap_or(File { end: 0, grown: None })
    }

    fn read(&mut self, access: &Access) {
        self.cost.read += access.len;
        let len = self.block_len(&self.file(access.object));
        for number in access.offset / self.record..access.end().div_ceil(self.record) {
            let block = (access.object, number);
            if self.cache.touch(block) || self.dirty.contains(&block) {
                continue;
            }
            let follows = number.checked_sub(1).map(|before| (access.object, before));
            // The block before it was read last: one read of the device, or prefetched.
            let is_adjacent = follows.is_some() && self.last_read == follows;
            self.cost.reads += u64::from(!is_adjacent);
            self.cost.read_bytes += len;
            self.last_read = Some(block);
        }
    }

    fn write(&mut self, access: &Access) {
        self.cost.written += access.len;
        let file = self.file(access.object);
        let len = self.block_len(&file);
        for number in access.offset / self.record..access.end().div_ceil(self.record) {
            let block = (access.object, number);
            let start = number * self.record;
            let exists = file.grown.is_none_or(|grown| start < grown);
            let present_end = file.grown.unwrap_or(file.end).min(start + len);
            let is_whole = access.offset <= start && access.end() >= present_end;
            let is_known = self.cache.touch(block) || self.dirty.contains(&block);
            if exists && !is_whole && !is_known {
                self.cost.part_reads += 1;
                self.cost.part_bytes += len;
            }
            self.dirty.insert(block);
            if self.dirty.len() > self.cache.most {
                self.sync();
            }
        }
        if let Some(file) = self.files.get_mut(&access.object)
            && let Some(grown) = &mut file.grown
        {
            *grown = (*grown).max(access.end());
        }
    }

    /// Writes the blocks of a transaction group, and the indirect blocks above them.
    fn sync(&mut self) {
        let mut above: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for (object, number) in std::mem::take(&mut self.dirty) {
            let file = self.file(object);
            self.cost.write_bytes += self.block_len(&file);
            above.entry(object).or_default().insert(number / POINTERS);
        }
        for (object, mut numbers) in above {
            let mut blocks = self.file(object).end.div_ceil(self.record);
            while blocks > 1 {
                let of = |number: &u64| {
                    let pointers = blocks.saturating_sub(number * POINTERS).min(POINTERS);
                    (pointers * POINTER).next_multiple_of(SECTOR)
                };
                let bytes: u64 = numbers.iter().map(of).sum();
                self.cost.indirect_bytes += bytes * METADATA_COPIES;
                blocks = blocks.div_ceil(POINTERS);
                numbers = numbers.into_iter().map(|number| number / POINTERS).collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1 << 10;
    const CACHE: u64 = 1 << 20;
    const LARGE_CACHE: u64 = 64 << 20;

    fn access(us: u64, is_write: bool, offset: u64, len: u64) -> Access {
        Access { us, is_write, object: 1, offset, len }
    }

    /// 64 accesses of 4K, spread over a file of 64M.
    fn random(is_write: bool) -> Vec<Access> {
        (0..64).map(|n| access(n, is_write, (n * 37 % 64 + 1) * (1 << 20) - 4096, 4096)).collect()
    }

    #[test]
    fn random_reads_read_whole_records() {
        for record in [4 * KIB, 128 * KIB, 1 << 20] {
            let cost = replay(&random(false), record, CACHE);
            assert_eq!((cost.reads, cost.read_bytes), (64, 64 * record), "{record}");
        }
    }

    #[test]
    fn sequential_reads_cost_the_same_with_every_record() {
        let reads: Vec<_> = (0..256).map(|n| access(n, false, n * 4096, 4096)).collect();
        for record in [4 * KIB, 128 * KIB, 1 << 20] {
            let cost = replay(&reads, record, CACHE);
            assert_eq!((cost.reads, cost.read_bytes), (1, 1 << 20), "{record}");
        }
    }

    #[test]
    fn writes_of_parts_read_what_they_leave() {
        let cost = replay(&random(true), 128 * KIB, LARGE_CACHE);
        assert_eq!((cost.part_reads, cost.part_bytes), (64, 64 * 128 * KIB));
        assert_eq!(cost.write_bytes, 64 * 128 * KIB);
        // 512 blocks: an indirect block with 512 pointers, twice.
        assert_eq!(cost.indirect_bytes, 2 * 64 * KIB);
        let whole = replay(&random(true), 4 * KIB, LARGE_CACHE);
        assert_eq!((whole.part_reads, whole.write_bytes), (0, 64 * 4 * KIB));
        // 16,384 blocks: 16 indirect blocks of 128K, and one above them with 16 pointers.
        assert_eq!(whole.indirect_bytes, 2 * (16 * 128 * KIB + 4 * KIB));
        // Two txgs write the same blocks twice.
        let again: Vec<_> = random(true)
            .into_iter()
            .chain(random(true).into_iter().map(|mut access| {
                access.us += TXG_US;
                access
            }))
            .collect();
        assert_eq!(replay(&again, 128 * KIB, LARGE_CACHE).write_bytes, 2 * 64 * 128 * KIB);
    }

    #[test]
    fn new_files_are_not_read() {
        let writes: Vec<_> = (0..100).map(|n| access(n, true, n * 1000, 1000)).collect();
        for record in [4 * KIB, 128 * KIB] {
            assert_eq!(replay(&writes, record, CACHE).part_reads, 0, "{record}");
        }
        // 100,000 bytes: one block with large records, else a part of the last block is lost.
        assert_eq!(replay(&writes, 1 << 20, CACHE).tail_bytes, 102_400 - 100_000);
        assert_eq!(replay(&writes, 64 * KIB, CACHE).tail_bytes, 131_072 - 100_000);
        assert_eq!(replay(&writes, 1 << 20, CACHE).write_bytes, 102_400);
    }

    #[test]
    fn a_cache_keeps_what_was_used_last() {
        let twice: Vec<_> = random(false).into_iter().chain(random(false)).collect();
        assert_eq!(replay(&twice, 4 * KIB, CACHE).reads, 64);
        assert_eq!(replay(&twice, 4 * KIB, 8 * KIB).reads, 128);
        // More changes than fit are written sooner: each of 64 records twice.
        let writes: Vec<_> = random(true).into_iter().chain(random(true)).collect();
        assert_eq!(replay(&writes, 4 * KIB, LARGE_CACHE).write_bytes, 64 * 4 * KIB);
        assert_eq!(replay(&writes, 4 * KIB, 32 * KIB).write_bytes, 128 * 4 * KIB);
    }
}
