//! `zpool remove` of vdevs with data: messages, and the pools that it leaves.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cenote_engine::Engine;
use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::WriteOptions;
use cenote_ondisk::indirect::{CONDENSING_INDIRECT, CondensingPhys};
use cenote_ondisk::zap::Value;
use cenote_rt::tunables::{
    CONDENSE_DELAY_MS, CONDENSE_MIN_MAPPING_BYTES, REMOVAL_SUSPEND_PROGRESS,
};
use cenote_rt::{Result, Rng, block_on};

use crate::status_errors::open;
use crate::{Shed, cenote};

/// Commands of the recording, in the order of execution here.
const RECORDED: &[&str] = &[
    "zpool create -f -O compression=off -m /mnt/t t /dev/shm/v/a /dev/shm/v/b",
    "zpool remove",
    "zpool remove t",
    "zpool remove nope /dev/shm/v/a",
    "zpool remove t /dev/shm/v/c",
    "zpool remove -s t",
    "zpool remove -nH t /dev/shm/v/b",
    "zpool remove -x t /dev/shm/v/b",
    "zpool wait -t remove t",
    "zpool remove t /dev/shm/v/b",
    "zpool remove t /dev/shm/v/a",
    "zpool remove t /dev/shm/v/b",
    "zpool remove -s t",
    "zpool remove -s t",
];

/// Commands of the recording of a RAID-Z.
const OF_RAIDZ: &[&str] = &[
    "zpool create -f -O compression=off -m /mnt/t t raidz1 /dev/shm/v/a /dev/shm/v/b /dev/shm/v/c",
    "zpool remove t raidz1-0",
    "zpool remove t /dev/shm/v/a",
];

/// Removals of the process stand still while it lives.
struct Suspended(#[expect(dead_code, reason = "held for its drop")] MutexGuard<'static, ()>);

impl Suspended {
    fn now() -> Self {
        static ONE: Mutex<()> = Mutex::new(());
        let guard = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        REMOVAL_SUSPEND_PROGRESS.set(1).expect("a value");
        Self(guard)
    }
}

impl Drop for Suspended {
    fn drop(&mut self) {
        REMOVAL_SUSPEND_PROGRESS.set(0).expect("a value");
    }
}

#[test]
fn messages_of_remove_are_those_of_openzfs() {
    let Some(all) = cenote_testkit::wordings("second.txt") else { return };
    let shed = Shed::new("remove-words", 0);
    for name in ["a", "b", "c"] {
        shed.add(name, 256 << 20);
    }
    let from = all.iter().position(|there| there.command == "zpool remove").expect("recorded");
    let create = all[..from].iter().rposition(|there| there.command == RECORDED[0]);
    let mut rest = all[create.expect("recorded")..].iter();
    let suspended = Suspended::now();
    for command in RECORDED {
        shed.run_as_recorded(&mut rest, command);
    }
    drop(suspended);
    shed.succeeds("zpool destroy t");
    let from = all.iter().position(|there| there.command == "zpool remove t raidz1-0");
    let create =
        all[..from.expect("recorded")].iter().rposition(|there| there.command == OF_RAIDZ[0]);
    let mut rest = all[create.expect("recorded")..].iter();
    for command in OF_RAIDZ {
        shed.run_as_recorded(&mut rest, command);
    }
}

#[test]
fn disks_and_mirrors_are_removed() {
    let shed = Shed::new("removed", 10);
    shed.succeeds(
        "zpool create t mirror d0 d1 mirror d2 d3 mirror d4 d5 mirror d6 d7 special mirror d8 d9",
    );
    shed.succeeds("zfs create t/a");
    let said = shed.succeeds("zpool remove -np t mirror-1");
    let bytes: u64 =
        said.trim_end().strip_prefix("mirror-1 ").expect("bytes").parse().expect("a number");
    assert!(bytes.is_multiple_of(24), "{said}");
    let said = shed.succeeds("zpool remove -n t mirror-1");
    assert!(said.starts_with("Memory that will be used after removing mirror-1: "), "{said}");
    assert_eq!(shed.succeeds("zpool remove -w t mirror-1"), "");
    let status = shed.succeeds("zpool status t");
    assert!(!status.contains("mirror-1") && status.contains("remove: Removal of vdev 1 copied "));
    shed.succeeds("zpool remove -w t mirror-4");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains("remove: Removal of vdev 4 copied "), "{status}");
    assert!(status.contains(" memory used for removed device mappings\n"), "{status}");
    let history = shed.succeeds("zpool history -i t");
    for text in ["vdev remove started t vdev 1 -", "vdev remove completed t vdev 4"] {
        assert!(history.contains(text), "{text}: {history}");
    }
    shed.succeeds("zfs destroy t/a");
    shed.judge("t");
}

/// Without a daemon a removal goes on with the commands that wait for it.
#[test]
fn removal_is_cancelled_and_waited_for() {
    let shed = Shed::new("remove-cancelled", 4);
    shed.succeeds("zpool create t d0 d1 d2 d3");
    let suspended = Suspended::now();
    shed.succeeds("zpool remove t d1");
    let d1 = shed.here("/dev/shm/v/d1");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains(&format!("remove: Evacuation of {d1} in progress since ")), "{status}");
    assert!(status.contains(&format!("{d1}  ONLINE       0     0     0  (removing)")), "{status}");
    shed.fails("zpool checkpoint t", "cannot checkpoint 't': device removal in progress");
    shed.fails(
        &format!("zpool remove t {d1}"),
        &format!("cannot remove {d1}: removal for this vdev is already in progress."),
    );
    shed.succeeds("zpool remove -s t");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains(&format!("remove: Removal of {d1} canceled on ")), "{status}");
    shed.fails("zpool remove -s t", "cannot cancel removal: operation is not in progress");
    shed.succeeds("zpool remove t d1");
    drop(suspended);
    shed.succeeds("zpool wait -t remove t");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains("remove: Removal of vdev 1 copied ") && !status.contains(&d1));
    shed.judge("t");
}

/// Mappings of the process are condensed however small they are, and stand still once begun.
struct SlowCondensing;

impl SlowCondensing {
    fn now() -> Self {
        CONDENSE_MIN_MAPPING_BYTES.set(0).expect("a value");
        CONDENSE_DELAY_MS.set(1 << 20).expect("a value");
        Self
    }
}

impl Drop for SlowCondensing {
    fn drop(&mut self) {
        for tunable in [&CONDENSE_MIN_MAPPING_BYTES, &CONDENSE_DELAY_MS] {
            tunable.set(tunable.default).expect("a value");
        }
    }
}

/// Writes a file of this many MiB.
async fn write_file(engine: &Arc<Engine>, dataset: &str, size: usize) -> Result<()> {
    let mount = Mount::open(engine, dataset).await?;
    let (root, new) = (Credentials::root(), NewNode::new(NewKind::Regular, 0o644));
    let file = mount.create(&root, mount.root(), b"file", &new).await?;
    let mut bytes = vec![0; 1 << 20];
    for part in 0..size {
        Rng::seeded(part as u64).fill(&mut bytes);
        let offset = (part * bytes.len()) as u64;
        mount.write(&root, file.object, offset, &bytes, WriteOptions::default()).await?;
    }
    Ok(())
}

/// Destroys a dataset, and closes the pool as soon as a mapping is being condensed.
async fn begin_condensing(shed: &Shed, dataset: &str) -> Result<CondensingPhys> {
    let engine = open(shed).await?;
    engine.datasets().destroy(dataset).await?;
    for _ in 0..600 {
        engine.sync().await?;
        let view = engine.view().await?;
        let words = view.directory_value(CONDENSING_INDIRECT).map(Value::words);
        drop(view);
        if let Some(words) = words {
            engine.export().await?;
            return Ok(CondensingPhys::decode(&words).expect("three words"));
        }
        cenote_rt::sleep(Duration::from_millis(100)).await;
    }
    panic!("no mapping is condensed");
}

/// `zdb` shows a mapping that is being condensed before it verifies the counts of removed vdevs, as
/// OpenZFS's does.
#[test]
fn zdb_shows_a_mapping_that_is_being_condensed() {
    let shed = Shed::new("condensing", 4);
    shed.succeeds("zpool create t d0 d1 d2 d3");
    shed.succeeds("zfs create t/a");
    let written = block_on(2, async {
        let engine = open(&shed).await?;
        write_file(&engine, "t/a", 16).await?;
        // What stays is copied to the next mapping, slowly.
        write_file(&engine, "t", 2).await?;
        engine.export().await
    });
    written.expect("a runtime").expect("written");
    shed.succeeds("zpool remove -w t d1");
    let state = {
        let _slow = SlowCondensing::now();
        block_on(2, begin_condensing(&shed, "t/a")).expect("a runtime").expect("begun")
    };
    let (vdev, map, mapping) = (state.vdev, state.prev_obsolete_sm_obj, state.next_mapping_obj);
    let wanted = format!(
        "Condensing indirect vdev {vdev}: new mapping object {mapping}, prev obsolete sm {map}\n\
         space map object {map}:\n  smp_length = 0x"
    );
    let folder = shed.path().to_str().expect("UTF-8");
    let (out, err, status) = cenote(&["zdb", "-e", "-p", folder, "-d", "t"]);
    assert_eq!((status, err.as_str()), (0, ""), "{out}");
    let (_, rest) = out.split_once(&wanted).unwrap_or_else(|| panic!("{wanted}{out}"));
    let mut lines = rest.lines().skip(1);
    assert!(lines.next().is_some_and(|line| line.starts_with("  smp_alloc = 0x")), "{out}");
    assert_eq!(lines.next(), Some(""), "{out}");
    let verified = "Verified device_removal feature refcount of 1 is correct";
    assert_eq!(lines.next(), Some(verified), "{out}");
    // Its entries.
    let (out, ..) = cenote(&["zdb", "-e", "-p", folder, "-dddddd", "t"]);
    let (_, rest) = out.split_once(&wanted).unwrap_or_else(|| panic!("{wanted}{out}"));
    assert!(rest.lines().nth(2).is_some_and(|line| line.starts_with("\t    [     0] ")), "{rest}");
    shed.judge("t");
}

/// The last part of the path denotes a spare or cache device too, unless a vdev of the tree has it.
#[test]
fn spares_and_caches_are_removed_by_short_names() {
    let shed = Shed::new("removed-names", 1);
    let folders = ["", "one", "two"].map(|name| shed.path().join(name).display().to_string());
    for folder in &folders[1..] {
        std::fs::create_dir(folder).expect("a folder");
    }
    for name in ["one/s", "one/c", "one/b", "two/b"] {
        shed.add(name, 64 << 20);
    }
    let run = |line: &str| {
        let words: Vec<&str> = line.split(' ').collect();
        let folders = folders.iter().flat_map(|folder| ["-d", folder]);
        let head: Vec<&str> = [words[0], "--embedded"].into_iter().chain(folders).collect();
        let (out, err, status) = cenote(&[&head, &words[1..]].concat());
        if status == 0 { out } else { err }
    };
    assert_eq!(run("zpool create t d0 one/b spare one/s two/b cache one/c"), "");
    assert_eq!(run("zpool remove t x"), "cannot remove x: no such device in pool\n");
    for line in ["zpool remove t s", "zpool remove t c", "zpool remove -w t b"] {
        assert_eq!(run(line), "", "{line}");
    }
    let status = run("zpool status t");
    assert!(status.contains("two/b") && !status.contains("one/"), "{status}");
    assert_eq!(run("zpool remove t b"), "");
    let status = run("zpool status t");
    assert!(!status.contains("spares"), "{status}");
}

/// The expected text is the output of OpenZFS's commands for such a pool, with whole paths.
#[test]
fn vdevs_without_allocations_are_shown_and_told() {
    let shed = Shed::new("allocating", 6);
    shed.succeeds("zpool create -f t mirror d0 d1 d2 special d3 spare d4");
    let get =
        |words: &str| shed.succeeds(&format!("zpool get -H -o value,source allocating t {words}"));
    for (command, text) in [
        ("off t mirror-0", "for mirror-0 on t: invalid argument for this pool operation"),
        ("off t d0", "for d0 on t: operation not supported on this type of vdev"),
        ("off t root", "for root-0 on t: operation not supported on this type of vdev"),
        ("1 t mirror-0", "for mirror-0 on t: 'allocating' must be one of 'on | off'"),
    ] {
        let text = format!("cannot set property allocating {text}");
        shed.fails(&format!("zpool set allocating={command}"), &text);
    }
    let spare = shed.here("/dev/shm/v/d4");
    shed.fails(
        &format!("zpool set allocating=off t {spare}"),
        &format!(
            "cannot set property allocating for {spare} on t: invalid argument for this pool \
             operation"
        ),
    );
    shed.succeeds("zpool set allocating=on t d0");
    shed.succeeds("zpool set allocating=off t d3");
    assert_eq!(get("root mirror-0 d0 d3"), "on\tdefault\non\tdefault\n-\t-\noff\tlocal\n");
    let status = shed.succeeds("zpool status t");
    let of_d3 = status.lines().find(|line| line.contains("d3")).expect("listed");
    assert!(of_d3.ends_with("ONLINE       0     0     0  (non-allocating)"), "{status}");
    let history = shed.succeeds("zpool history -i t");
    assert!(history.contains("] vdev set vdev_guid=") && history.contains(": allocating=0"));
    shed.succeeds("zpool set allocating=on t d3");
    assert_eq!(get("d3"), "on\tdefault\n");
    assert!(!shed.succeeds("zpool status t").contains("non-allocating"));
    // Its devices show it, too. Its space is no longer that of datasets: only the data must fit.
    shed.succeeds("zpool add -f t d5");
    shed.succeeds("zpool set allocating=off t mirror-0");
    let status = shed.succeeds("zpool status t");
    assert_eq!(status.matches("  (non-allocating)\n").count(), 4, "{status}");
    shed.succeeds("zpool remove -w t mirror-0");
    assert!(!shed.succeeds("zpool status t").contains("mirror-0"));
    shed.judge("t");
}
