//! Import of several pools in one directory, copied devices, damaged labels, missing devices, and
//! pools of other hosts.

use std::fs::{self, OpenOptions as FileOptions};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use cenote_ondisk::blkptr::BlockPtr;
use cenote_ondisk::label::{LABEL_START_LEN, label_offset};
use cenote_pool::import::{FindError, Scan};
use cenote_pool::pool::Rewind;
use cenote_pool::status::{examine, state_name};
use cenote_pool::{Host, OpenError, OpenOptions, Pool, Reason, ScanOptions, import};
use cenote_testkit::golden;
use cenote_testkit::golden::PrivateFolder;

async fn scan(path: &Path) -> Scan {
    import::scan(&ScanOptions { paths: vec![path.to_owned()] }).await.expect("scan")
}

async fn open(
    scan: &Scan,
    name: &str,
    options: &OpenOptions,
) -> cenote_rt::Result<std::sync::Arc<Pool>> {
    Pool::open(scan.find(name).expect("found"), options).await
}

fn cause(result: cenote_rt::Result<std::sync::Arc<Pool>>) -> OpenError {
    let error = result.expect_err("refused");
    error.cause::<OpenError>().cloned().unwrap_or_else(|| panic!("{error}"))
}

fn run(test: impl Future<Output = ()>) {
    cenote_rt::block_on(2, test).expect("runtime");
}

fn zero(device: &Path, offset: u64, len: usize) {
    let file = FileOptions::new().write(true).open(device).expect("device");
    file.write_all_at(&vec![0; len], offset).expect("write");
}

/// Zeroes every copy of a block of a pool on one device.
fn zero_block(device: &Path, pointer: &BlockPtr) {
    for dva in pointer.dvas() {
        zero(device, dva.offset + LABEL_START_LEN, dva.asize as usize);
    }
}

#[test]
fn import_finds_several_pools_in_one_directory() {
    let names = ["g-basic", "g-raidz1", "g-classes", "g-legacy"];
    let pools: Vec<_> = names.iter().filter_map(|name| golden(name)).collect();
    if pools.len() != names.len() {
        return;
    }
    run(async {
        let folder = PrivateFolder::create("several");
        for pool in &pools {
            for (index, device) in pool.devices().iter().enumerate() {
                let name = format!("disk-{}-{index}", pool.name());
                symlink(device, folder.path().join(name)).expect("link");
            }
        }
        fs::write(folder.path().join("short"), b"no pool").expect("file");
        let noise = fs::File::create(folder.path().join("empty")).expect("file");
        noise.set_len(65 << 20).expect("size");
        fs::create_dir(folder.path().join("folder")).expect("folder");
        symlink("nowhere", folder.path().join("dangling")).expect("link");
        let scan = scan(folder.path()).await;
        assert_eq!((scan.candidates.len(), scan.failures.len()), (names.len(), 0));
        for name in names {
            let pool = open(&scan, name, &OpenOptions::default()).await.expect(name);
            assert_eq!(pool.name(), name);
            let guid = pool.guid().to_string();
            assert_eq!(scan.find(&guid).expect("by guid").name(), name);
        }
        assert_eq!(scan.find("g-none").map(|_| ()), Err(FindError::NotFound));
        let asked = ScanOptions { paths: vec![folder.path().join("none")] };
        assert_eq!(import::scan(&asked).await.expect("scan").failures.len(), 1);
    });
}

#[test]
fn import_ignores_a_copy_of_a_device() {
    let Some(golden) = golden("g-basic") else { return };
    run(async {
        let copy = golden.private_copy();
        fs::copy(copy.device(0), copy.path().join("backup.img")).expect("copy");
        // The device with fewer valid labels loses.
        zero(&copy.path().join("backup.img"), 0, 256 << 10);
        let scan = scan(copy.path()).await;
        let candidate = scan.find("g-basic").expect("found");
        assert_eq!((candidate.devices.len(), candidate.duplicates.len()), (1, 1));
        assert!(candidate.duplicates[0].path.ends_with("backup.img"));
    });
}

#[test]
fn import_needs_one_valid_label() {
    let Some(golden) = golden("g-basic") else { return };
    run(async {
        let copy = golden.private_copy();
        let size = fs::metadata(copy.device(0)).expect("device").len();
        for label in 0..3 {
            zero(&copy.device(0), label_offset(size, label).expect("label"), 256 << 10);
        }
        let found = scan(copy.path()).await;
        open(&found, "g-basic", &OpenOptions::default()).await.expect("opens");
        zero(&copy.device(0), label_offset(size, 3).expect("label"), 256 << 10);
        assert!(scan(copy.path()).await.candidates.is_empty());
    });
}

#[test]
fn import_refuses_half_a_stripe() {
    let Some(golden) = golden("g-crypt") else { return };
    run(async {
        let copy = golden.private_copy();
        fs::remove_file(copy.device(1)).expect("remove");
        let scan = scan(copy.path()).await;
        let refusal = cause(open(&scan, "g-crypt", &OpenOptions::default()).await);
        assert_eq!(refusal, OpenError::MissingVdevs(vec![1]));
        let status = examine(&scan.candidates[0], &Host::default()).await;
        assert_eq!(state_name(status.root.state, status.root.aux), "UNAVAIL");
        assert_eq!(status.reason, Reason::MissingNoReplicas);
    });
}

#[test]
fn import_opens_half_a_mirror() {
    let Some(golden) = golden("g-codecs") else { return };
    run(async {
        let copy = golden.private_copy();
        fs::remove_file(copy.device(0)).expect("remove");
        let scan = scan(copy.path()).await;
        open(&scan, "g-codecs", &OpenOptions::default()).await.expect("opens");
        let status = examine(&scan.candidates[0], &Host::default()).await;
        assert_eq!(state_name(status.root.state, status.root.aux), "DEGRADED");
        assert_eq!(status.reason, Reason::MissingReplicated);
    });
}

#[test]
fn import_m_opens_without_a_log_device() {
    let Some(golden) = golden("g-zil") else { return };
    run(async {
        let copy = golden.private_copy();
        fs::remove_file(copy.device(2)).expect("remove");
        let scan = scan(copy.path()).await;
        let refusal = cause(open(&scan, "g-zil", &OpenOptions::default()).await);
        assert!(matches!(refusal, OpenError::MissingLog(_)), "{refusal}");
        let options = OpenOptions { missing_log_ok: true, ..OpenOptions::default() };
        open(&scan, "g-zil", &options).await.expect("opens");
        let status = examine(&scan.candidates[0], &Host::default()).await;
        // A foreign hostid takes precedence over a missing device.
        let reason = if status.facts.hostid == 0 { Reason::BadLog } else { Reason::HostIdMismatch };
        assert_eq!(status.reason, reason);
    });
}

#[test]
fn import_f_takes_a_pool_of_another_host() {
    let Some(golden) = golden("g-zil") else { return };
    run(async {
        let scan = scan(&golden.images()).await;
        let candidate = scan.find("g-zil").expect("found");
        let hostid = candidate.facts.hostid;
        let host = |hostid| Some(Host { hostid, hostname: "here".to_owned() });
        let refused = OpenOptions { host: host(hostid + 1), ..OpenOptions::default() };
        let refusal = cause(Pool::open(candidate, &refused).await);
        assert!(matches!(refusal, OpenError::ForeignHost { .. }), "{refusal}");
        for options in [
            OpenOptions { host: host(hostid + 1), force: true, ..OpenOptions::default() },
            OpenOptions { host: host(hostid), ..OpenOptions::default() },
        ] {
            Pool::open(candidate, &options).await.expect("opens");
        }
    });
}

#[test]
fn import_rewinds_from_a_lost_root_block() {
    let Some(golden) = golden("g-basic") else { return };
    run(async {
        let copy = golden.private_copy();
        let before = scan(copy.path()).await;
        let pool = open(&before, "g-basic", &OpenOptions::default()).await.expect("opens");
        let newest = pool.txg();
        zero_block(&copy.device(0), &pool.uberblock().rootbp);
        let after = scan(copy.path()).await;
        let refusal = cause(open(&after, "g-basic", &OpenOptions::default()).await);
        assert!(matches!(refusal, OpenError::CorruptMos(_)), "{refusal}");
        let options = OpenOptions { rewind: Rewind::Extreme, ..OpenOptions::default() };
        let pool = open(&after, "g-basic", &options).await.expect("rewinds");
        assert!(pool.txg() < newest);
        assert_eq!(pool.rewound_from(), Some(newest));
        let status = examine(&after.candidates[0], &Host::default()).await;
        assert_eq!(status.reason, Reason::CorruptPool);
        assert_eq!(state_name(status.root.state, status.root.aux), "FAULTED");
        let options = OpenOptions { txg: Some(1), ..OpenOptions::default() };
        let refusal = cause(open(&after, "g-basic", &options).await);
        assert_eq!(refusal, OpenError::NoUberblock { max_txg: 1 });
    });
}

/// Space maps and their logs are not needed for reading data.
#[test]
fn import_reads_data_despite_damaged_space_maps() {
    let Some(golden) = golden("g-basic") else { return };
    run(async {
        let copy = golden.private_copy();
        let before = scan(copy.path()).await;
        let pool = open(&before, "g-basic", &OpenOptions::default()).await.expect("opens");
        let zap = pool.directory_object("com.delphix:log_spacemap_zap").expect("logs");
        let logs = cenote_dmu::Zap::open(pool.mos(), zap).await.expect("zap").to_vec().await;
        for log in logs.expect("entries") {
            let object = log.value.first().expect("object");
            let dnode = pool.mos().dnode(object).await.expect("log");
            let pointer = dnode.block_pointer(0, 0).await.expect("pointer").expect("a block");
            zero_block(&copy.device(0), &pointer);
        }
        let after = scan(copy.path()).await;
        let pool = open(&after, "g-basic", &OpenOptions::default()).await.expect("opens");
        let space = pool.space().await.expect("space");
        assert_eq!(space.damage.len(), 1, "{:?}", space.damage);
        let dataset = pool.dataset("g-basic/lz4").await.expect("dataset");
        assert!(!dataset.props().await.expect("props").all().await.expect("all").is_empty());
    });
}

/// Random bytes in labels: the result is a pool or none, never a panic.
#[test]
fn random_bytes_in_labels() {
    let Some(golden) = golden("g-grub2") else { return };
    run(async {
        let copy = golden.private_copy();
        let device = copy.device(0);
        let size = fs::metadata(&device).expect("device").len();
        let mut random = cenote_testkit::rng::seeded("random_bytes_in_labels", 1);
        for _ in 0..100 {
            let file = FileOptions::new().write(true).open(&device).expect("device");
            for label in 0..4 {
                let start = label_offset(size, label).expect("label");
                let at = start + random.below(256 << 10);
                file.write_all_at(&[random.next_u64() as u8], at).expect("write");
            }
            for candidate in &scan(copy.path()).await.candidates {
                let _ = examine(candidate, &Host::default()).await;
            }
        }
    });
}
