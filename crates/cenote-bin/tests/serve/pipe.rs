//! A listing whose output nobody reads, while the space of what it lists is reused.

use std::collections::BTreeMap;
use std::io::{ErrorKind, PipeReader, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::time::Duration;

use cenote_rt::Rng;
use rustix::io::ioctl_fionbio;

use crate::daemon::{House, has_fuse};
use crate::succeeds;

/// A user without a name.
const USER: u32 = 54_324;
const DEVICE_LEN: u64 = 96 << 20;
const FILE_LEN: usize = 1 << 20;
const SNAPSHOTS: u64 = 8;
const LISTING: &str = "zfs list -Hp -t snapshot -o name,used,audit:x,creation,written,refer \
                       -r t/a t/nosuch";

/// Files in `t/a`, and the seeds of their contents.
struct Files {
    folder: PathBuf,
    seeds: BTreeMap<u64, u64>,
}

impl Files {
    fn content(seed: u64) -> Vec<u8> {
        let mut bytes = vec![0; FILE_LEN];
        Rng::seeded(seed).fill(&mut bytes);
        bytes
    }

    /// Writes a file and waits until it is on the devices. Returns false if the pool is full.
    fn write(&mut self, file: u64, seed: u64) -> bool {
        let path = self.folder.join(file.to_string());
        let written = std::fs::File::create(&path).and_then(|mut file| {
            file.write_all(&Self::content(seed))?;
            file.sync_all()
        });
        match written {
            Ok(()) => drop(self.seeds.insert(file, seed)),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{error}");
                self.seeds.remove(&file);
                if path.exists() {
                    std::fs::remove_file(path).unwrap();
                }
                return false;
            }
        }
        true
    }

    fn check(&self) {
        for (file, seed) in &self.seeds {
            let read = std::fs::read(self.folder.join(file.to_string())).unwrap();
            assert!(read == Self::content(*seed), "file {file} has other contents");
        }
    }
}

/// A pipe that takes no more bytes.
fn full_pipe() -> (PipeReader, std::io::PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    ioctl_fionbio(&writer, true).unwrap();
    while writer.write(&[b'.'; 4096]).is_ok() {}
    ioctl_fionbio(&writer, false).unwrap();
    (reader, writer)
}

/// Field report: on a mirror of healthy disks, blocks were lost on both sides.
#[test]
#[expect(clippy::disallowed_methods, reason = "the daemon works meanwhile")]
fn a_listing_that_nobody_reads_damages_nothing() {
    if !has_fuse() {
        return;
    }
    let house = House::new("pipe");
    for device in ["pool/d0", "pool/d1"] {
        let device = std::fs::File::options().write(true).open(house.path(device)).unwrap();
        device.set_len(DEVICE_LEN).unwrap();
    }
    house.create(&house.text("t"));
    house.run("zfs create t/a");
    house.run(&format!("zfs set audit:x={} t/a", "x".repeat(8000)));
    let mut files = Files { folder: house.path("t/a"), seeds: BTreeMap::new() };
    for snapshot in 0..SNAPSHOTS {
        (0..3).for_each(|file| assert!(files.write(file, snapshot << 8 | file)));
        house.run(&format!("zfs snapshot t/a@{snapshot}"));
    }
    let (mut reader, writer) = full_pipe();
    let mut listing = house.command(&LISTING.split_whitespace().collect::<Vec<_>>());
    if rustix::process::geteuid().is_root() {
        listing.uid(USER).gid(USER).current_dir("/");
    }
    listing.stdout(writer.try_clone().unwrap()).stderr(writer);
    let mut child = listing.spawn().unwrap();
    drop(listing);
    std::thread::sleep(Duration::from_secs(1));

    house.run(&format!("zfs destroy t/a@0%{}", SNAPSHOTS - 1));
    let mut file = 3;
    while files.write(file, 1 << 16 | file) {
        file += 1;
    }
    assert!(file > 20, "only {file} files fit");
    for round in 2..6_u64 {
        for file in (0..file).step_by(3) {
            files.write(file, round << 16 | file);
        }
    }

    let mut listed = Vec::new();
    reader.read_to_end(&mut listed).unwrap();
    assert!(!child.wait().unwrap().success(), "t/nosuch is not there");
    let listed = String::from_utf8(listed).unwrap();
    assert!(listed.contains("'t/nosuch'"), "{listed}");
    let pool = house.text("pool");
    house.run("zpool export t");
    house.run(&format!("zpool import -d {pool} t"));
    files.check();
    let status = house.run("zpool status -p t");
    assert_eq!(status.matches("ONLINE       0     0     0").count(), 4, "{status}");
    assert!(status.contains("errors: No known data errors"), "{status}");
    house.run("zpool export t");
    succeeds(&mut house.command(&["verify", "--leaks", "-d", &pool, "t"]));
    if let Some(zdb) = cenote_oracle::zdb() {
        let said = zdb.pool("t", &house.path("pool"), &["-bcc"]);
        assert!(said.is_clean(), "{said}");
    }
}
