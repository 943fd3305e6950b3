//! Figures as files like those of the Linux kernel module below `/proc/spl/kstat/zfs`, for existing
//! programs.
//!
//! ```text
//!   kstat/zfs/arcstats, zil                     name  type  data
//!   kstat/zfs/POOL/state                        ONLINE
//!   kstat/zfs/POOL/io                           a line of names, one of numbers
//!   kstat/zfs/POOL/objset-0x36                  name  type  data, of a dataset that is open
//!   kstat/spl/kstat -> ..                       so that `kstat` can stand for `/proc`
//! ```
//!
//! Only counters that cenote has are present.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::io::Result;
use std::path::{Path, PathBuf};

use super::figures::{DatasetFigures, PoolFigures};
use cenote_pool::figures::{Direction, IoClass};

/// Types of values.
const UINT64: u32 = 4;
const STRING: u32 = 7;

/// The files below one directory.
#[derive(Debug)]
pub(super) struct Kstats {
    folder: PathBuf,
    /// Written files, relative to the directory.
    written: BTreeSet<PathBuf>,
    /// How many times the files were written.
    generation: u64,
}

impl Kstats {
    /// Creates `folder`, and removes files of an earlier daemon.
    pub(super) fn create(folder: &Path) -> Result<Self> {
        let zfs = folder.join("zfs");
        match std::fs::remove_dir_all(&zfs) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        std::fs::create_dir_all(&zfs)?;
        let spl = folder.join("spl");
        std::fs::create_dir_all(&spl)?;
        match std::os::unix::fs::symlink("..", spl.join("kstat")) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        Ok(Self { folder: zfs, written: BTreeSet::new(), generation: 0 })
    }

    /// Writes all files.
    pub(super) fn write(&mut self, pools: &[PoolFigures]) -> Result<()> {
        self.generation += 1;
        let mut now = BTreeSet::new();
        for (path, text) in self.files(pools) {
            let whole = self.folder.join(&path);
            if let Some(parent) = whole.parent() {
                std::fs::create_dir_all(parent)?;
            }
            // Readers never see a partial file.
            let draft = whole.with_extension("new");
            std::fs::write(&draft, text)?;
            std::fs::rename(&draft, &whole)?;
            now.insert(path);
        }
        for gone in self.written.difference(&now) {
            std::fs::remove_file(self.folder.join(gone)).ok();
            if let Some(pool) = gone.parent().filter(|pool| pool.components().count() > 0) {
                // Fails unless the last of its files is gone.
                std::fs::remove_dir(self.folder.join(pool)).ok();
            }
        }
        self.written = now;
        Ok(())
    }

    /// Removes the files.
    pub(super) fn remove(&self) {
        std::fs::remove_dir_all(&self.folder).ok();
    }

    fn files(&self, pools: &[PoolFigures]) -> Vec<(PathBuf, String)> {
        let mut files = vec![("arcstats".into(), self.arc(pools)), ("zil".into(), self.log(pools))];
        for pool in pools {
            let folder = PathBuf::from(&pool.name);
            let state = if pool.is_suspended { "SUSPENDED" } else { pool.state };
            files.push((folder.join("state"), format!("{state}\n")));
            files.push((folder.join("io"), self.io(pool)));
            for dataset in &pool.datasets {
                let name = format!("objset-{:#x}", dataset.object);
                files.push((folder.join(name), self.dataset(dataset)));
            }
        }
        files
    }

    fn arc(&self, pools: &[PoolFigures]) -> String {
        let sum = |part: fn(&PoolFigures) -> u64| pools.iter().map(part).sum();
        self.named(&[
            ("hits", sum(|pool| pool.cache.hits)),
            ("misses", sum(|pool| pool.cache.misses)),
            ("c", sum(|pool| pool.cache.capacity_bytes)),
            ("c_max", sum(|pool| pool.cache.capacity_bytes)),
            ("size", sum(|pool| pool.cache.bytes)),
            ("uncompressed_size", sum(|pool| pool.cache.bytes)),
        ])
    }

    fn log(&self, pools: &[PoolFigures]) -> String {
        let counts = || pools.iter().flat_map(|pool| &pool.datasets).map(|dataset| dataset.counts);
        self.named(&[
            ("zil_commit_count", counts().map(|counts| counts.commit_times.count()).sum()),
            ("zil_commit_writer_count", counts().map(|counts| counts.commit_times.count()).sum()),
            ("zil_itx_count", counts().map(|counts| counts.records).sum()),
        ])
    }

    fn dataset(&self, dataset: &DatasetFigures) -> String {
        let counts = &dataset.counts;
        let mut text = self.header(7);
        let _ = writeln!(text, "{:31} {STRING:<4} {}", "dataset_name", dataset.name);
        text + &rows(&[
            ("writes", counts.write_times.count()),
            ("nwritten", counts.written_bytes),
            ("reads", counts.read_times.count()),
            ("nread", counts.read_bytes),
            ("zil_commit_count", counts.commit_times.count()),
            ("zil_itx_count", counts.records),
        ])
    }

    /// Reads and writes of all devices; busy times are not counted.
    fn io(&self, pool: &PoolFigures) -> String {
        let (read, write) =
            (pool.io.direction(Direction::Read), pool.io.direction(Direction::Write));
        let classes = || IoClass::ALL.iter().map(|class| pool.io.class(*class));
        let waits: u64 = classes().map(|class| class.wait.sum()).sum();
        let served = read.service.sum() + write.service.sum();
        let numbers = [
            read.bytes,
            write.bytes,
            read.operations,
            write.operations,
            0,
            waits,
            0,
            0,
            served,
            0,
            classes().map(|class| class.queued).sum(),
            classes().map(|class| class.active).sum(),
        ];
        let names = "nread    nwritten reads    writes   wtime    wlentime wupdate  rtime    \
                     rlentime rupdate  wcnt     rcnt";
        let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:<8}")).collect();
        // Kind 3 has one row.
        let created = self.generation;
        format!("0 3 0x00 1 80 0 {created}\n{names}\n{}\n", numbers.join(" ").trim_end())
    }

    fn named(&self, pairs: &[(&str, u64)]) -> String {
        self.header(pairs.len()) + &rows(pairs)
    }

    /// Number, kind (1: named values), flags, number of values, bytes, creation time and snapshot
    /// time.
    fn header(&self, count: usize) -> String {
        let generation = self.generation;
        format!("0 1 0x01 {count} {} 0 {generation}\n{:31} type data\n", count * 48, "name")
    }
}

fn rows(pairs: &[(&str, u64)]) -> String {
    let row = |(name, value): &(&str, u64)| format!("{name:31} {UINT64:<4} {value}\n");
    pairs.iter().map(row).collect()
}
