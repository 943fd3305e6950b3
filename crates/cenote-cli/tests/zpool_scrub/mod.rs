//! `zpool scrub` and `zpool resilver`: messages, and what `zpool status` shows of a scan.

use cenote_dmu::live::ObjectSpec;
use cenote_dmu::zap::edit as zap;
use cenote_engine::Engine;
use cenote_ondisk::object_type::ObjectType;
use cenote_ondisk::scan::{SCAN, ScanFlags, ScanFunc, ScanPhys, ScanState};
use cenote_ondisk::zap::Value;
use cenote_pool::OpenOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::block_on;

use crate::Shed;

const SCAN_QUEUE: ObjectType = ObjectType(38);
const STARTED: u64 = 1_795_420_312;

/// A scan in progress, with the figures of a recording of OpenZFS.
fn in_progress(func: ScanFunc) -> ScanPhys {
    ScanPhys {
        func,
        state: ScanState::Scanning,
        max_txg: 4,
        start_time: STARTED,
        to_examine: 87_672_320,
        ..ScanPhys::decode(&[]).expect("no words are zeros")
    }
}

fn paused() -> ScanPhys {
    ScanPhys { flags: ScanFlags::PAUSED, ..in_progress(ScanFunc::Scrub) }
}

/// Records a scan in the pool `t`.
fn record(shed: &Shed, phys: ScanPhys) {
    let folder = shed.path().to_owned();
    let recorded = block_on(2, async {
        let found = scan(&ScanOptions { paths: vec![folder] }).await?;
        let candidate = found.find("t").expect("the pool");
        let engine = Engine::open(candidate, &OpenOptions::default()).await?;
        let record = move |tx: &mut cenote_dmu::Tx<'_>| {
            let mut phys = phys;
            let old = zap::lookup(tx, 1, SCAN)?;
            if let Some(old) = old.and_then(|value| ScanPhys::decode(&value.words()).ok())
                && old.queue_obj != 0
            {
                zap::destroy(tx, old.queue_obj)?;
            }
            if phys.state == ScanState::Scanning {
                let spec = ObjectSpec::new(SCAN_QUEUE, 0);
                phys.queue_obj = zap::create(tx, &spec, zap::ZapOptions::default())?;
            }
            zap::update(tx, 1, SCAN, Value::words_of(&phys.encode()))
        };
        engine.tamper(record).await?;
        engine.export().await
    });
    recorded.expect("a runtime").expect("recorded");
}

fn new_pool(name: &str) -> Shed {
    let shed = Shed::new(name, 2);
    shed.succeeds("zpool create t mirror d0 d1");
    shed
}

/// Returns the text after `scan: ` in the status of `t`.
fn shown(shed: &Shed) -> String {
    let status = shed.succeeds("zpool status t");
    let (_, text) = status.split_once("\n  scan: ").unwrap_or_else(|| panic!("{status}"));
    text.split_once("config:\n").expect("the devices").0.to_owned()
}

/// Returns the scan of `t` in the JSON output, and its other fields.
pub(crate) fn json(shed: &Shed, options: &str) -> (serde_json::Value, serde_json::Value) {
    let text = shed.succeeds(&format!("zpool status -j {options}t"));
    let whole: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let pool = whole["pools"]["t"].clone();
    (pool["scan_stats"].clone(), pool)
}

/// Commands of the recording, in the order of execution here.
const RECORDED: &[&str] = &[
    "zpool create -f -O compression=off -O atime=off -m /mnt/t t mirror /dev/shm/v/a /dev/shm/v/b",
    "zpool scrub",
    "zpool scrub nope",
    "zpool scrub -x t",
    "zpool scrub -s t",
    "zpool scrub -p t",
    "zpool scrub -s -p t",
    "zpool scrub -p -w t",
    "zpool scrub -C t",
    "zpool wait -t scrub t",
    "zpool scrub -e t",
    "zpool wait -t scrub t",
    "zpool scrub -s nope",
    "zpool resilver t",
    "zpool wait -t resilver t",
    "zpool resilver",
    "zpool resilver nope",
    "zpool wait -t nosuch t",
    "zpool wait t",
    "zpool scrub -w t",
    "zpool scrub -C t",
    "zpool wait -t scrub t",
];

#[test]
fn messages_of_scrub_and_resilver_are_those_of_openzfs() {
    let Some(all) = cenote_testkit::wordings("second.txt") else { return };
    let shed = Shed::new("scrub-words", 0);
    shed.add("a", crate::SIZE);
    shed.add("b", crate::SIZE);
    let mut rest = all.iter();
    for command in RECORDED {
        shed.run_as_recorded(&mut rest, command);
    }
    for (line, want) in [
        ("zpool scrub -p -C t", "-p and -C are mutually exclusive"),
        ("zpool scrub -s -C t", "-s and -C are mutually exclusive"),
        ("zpool scrub -e -C t", "-e and -C are mutually exclusive"),
        ("zpool scrub -w -s t", "-w cannot be used with -p or -s"),
    ] {
        let (_, err, status) = shed.run(line);
        let first = err.lines().next().unwrap_or_default();
        assert_eq!((status, first), (2, &*format!("invalid option combination: {want}")), "{line}");
    }
    let history = shed.succeeds("zpool history t");
    assert!(history.contains(" zpool scrub -w t") && history.contains("scrub -e"), "{history}");
    shed.judge("t");
}

/// A scan that runs, is paused, was cancelled or has ended, in text and in JSON.
#[test]
fn states_of_scans_are_shown() {
    let shed = new_pool("scan-states");
    assert_eq!(json(&shed, "").0, serde_json::Value::Null);
    let running =
        ScanPhys { examined: 41_339_904, skipped: 62_464, ..in_progress(ScanFunc::Scrub) };
    record(&shed, running);
    let text = shown(&shed);
    assert!(text.starts_with("scrub in progress since "), "{text}");
    let figures = "\n\t39.4M / 83.6M scanned, 39.4M / 83.6M issued\n\
                   \t0B repaired, 47.12% done, no estimated completion time\n";
    assert!(text.ends_with(figures), "{text}");
    let (scan, _) = json(&shed, "");
    for (key, want) in [
        ("function", "SCRUB"),
        ("state", "SCANNING"),
        ("end_time", "-"),
        ("to_examine", "83.6M"),
        ("skipped", "61K"),
        ("processed", "0B"),
        ("errors", "0"),
        ("bytes_per_scan", "0B"),
        ("scrub_pause", "-"),
        ("scrub_spent_paused", "0"),
        ("issued_bytes_per_scan", "0B"),
        ("issued", "39.4M"),
    ] {
        assert_eq!(scan[key], want, "{key}: {scan}");
    }
    assert_ne!(scan["start_time"], "-");
    let (scan, _) = json(&shed, "--json-int ");
    for (key, want) in [
        ("start_time", STARTED),
        ("end_time", 0),
        ("to_examine", 87_672_320),
        ("examined", 41_339_904),
        ("scrub_pause", 0),
        ("issued", 41_277_440),
    ] {
        assert_eq!(scan[key], want, "{key}: {scan}");
    }
    record(&shed, ScanPhys { flags: ScanFlags::PAUSED, ..running });
    let text = shown(&shed);
    assert!(text.starts_with("scrub paused since "), "{text}");
    assert!(text.contains("\n\tscrub started on ") && text.ends_with("47.12% done\n"), "{text}");
    record(&shed, ScanPhys { state: ScanState::Canceled, end_time: STARTED + 2, ..running });
    let text = shown(&shed);
    assert!(text.starts_with("scrub canceled on ") && text.lines().count() == 1, "{text}");
    assert_eq!(json(&shed, "").0["state"], "CANCELED");
    let (state, end_time) = (ScanState::Finished, STARTED + 105);
    record(&shed, ScanPhys { state, end_time, processed: 1_447_034, errors: 3, ..running });
    let text = shown(&shed);
    assert!(text.starts_with("scrub repaired 1.38M in 00:01:45 with 3 errors on "), "{text}");

    record(&shed, ScanPhys { processed: 4 << 20, func: ScanFunc::Resilver, ..running });
    let status = shed.succeeds("zpool status t");
    for text in [
        "status: One or more devices is currently being resilvered.  The pool will\n\
         \tcontinue to function, possibly in a degraded state.\n\
         action: Wait for the resilver to complete.\n  scan: resilver in progress since ",
        "\n\t4M resilvered, 47.12% done, no estimated completion time\n",
    ] {
        assert!(status.contains(text), "{status}");
    }
    let (scan, pool) = json(&shed, "");
    assert_eq!(scan["function"], "RESILVER");
    assert_eq!(
        pool["status"],
        "One or more devices is currently being resilvered.  The pool will\n\tcontinue to \
         function, possibly in a degraded state.\n"
    );
    assert_eq!(pool["action"], "Wait for the resilver to complete.\n");
    record(&shed, ScanPhys { state, end_time, func: ScanFunc::Resilver, ..running });
    assert!(shown(&shed).starts_with("resilvered 0B in 00:01:45 with 0 errors on "));
}

/// A scan in progress refuses what it excludes, also before it is resumed after an import.
#[test]
fn scans_in_progress_refuse_others() {
    let shed = new_pool("scan-refuses");
    record(&shed, in_progress(ScanFunc::Resilver));
    for (options, action) in
        [("", "scrub"), ("-e ", "scrub"), ("-s ", "cancel scrubbing"), ("-p ", "pause scrubbing")]
    {
        let want = format!("cannot {action} t: currently resilvering");
        shed.fails(&format!("zpool scrub {options}t"), &want);
    }
    record(&shed, in_progress(ScanFunc::Scrub));
    let busy = "cannot scrub t: currently scrubbing; use 'zpool scrub -s' to cancel scrub";
    for options in ["", "-C ", "-e ", "-w "] {
        shed.fails(&format!("zpool scrub {options}t"), busy);
    }
    // It has no part in a resilver of nothing.
    shed.succeeds("zpool resilver t");
    assert!(shown(&shed).starts_with("scrub in progress since "));
    shed.succeeds("zpool scrub -p t");
    assert!(shown(&shed).starts_with("scrub paused since "));
    shed.fails(
        "zpool scrub -p t",
        "cannot pause scrubbing t: scrub is paused; use 'zpool scrub' to resume scrub",
    );
    shed.fails(
        "zpool scrub -e t",
        "cannot scrub t: scrub is paused; use 'zpool scrub' to resume or 'zpool scrub -s' to \
         cancel scrub",
    );
    // A paused scrub is not waited for, and has nothing left.
    assert_eq!(shed.succeeds("zpool wait -H -p -t resilver,scrub t 1"), "0\t0\n");
    assert!(shown(&shed).starts_with("scrub paused since "));
    shed.succeeds("zpool scrub -s t");
    assert!(shown(&shed).starts_with("scrub canceled on "));
    shed.fails("zpool scrub -s t", "cannot cancel scrubbing t: there is no active scrub");
    shed.judge("t");
}

/// A paused scrub is resumed and completed, and so is one that was running at the export.
#[test]
fn scrubs_are_resumed_and_completed() {
    let shed = new_pool("scrub-resumed");
    shed.succeeds("zfs create t/a");
    record(&shed, paused());
    shed.succeeds("zpool scrub -w t");
    let text = shown(&shed);
    assert!(
        text.starts_with("scrub repaired 0B in ") && text.contains(" with 0 errors "),
        "{text}"
    );
    let scrubbed = || -> u64 {
        let text = shed.succeeds("zpool get -H -o value last_scrubbed_txg t");
        text.trim().parse().expect("a txg")
    };
    let first = scrubbed();
    assert!(first > 0);
    shed.succeeds("zfs create t/b");
    record(&shed, in_progress(ScanFunc::Scrub));
    shed.succeeds("zpool export t");
    let said = shed.succeeds("zpool wait -p -t scrub t 1");
    assert!(said.starts_with("   SCRUB\n"), "{said}");
    assert!(shown(&shed).starts_with("scrub repaired 0B in "));
    shed.succeeds("zpool scrub -C -w t");
    assert!(scrubbed() > first);
    let (scan, _) = json(&shed, "--json-int ");
    assert_eq!((&scan["state"], &scan["errors"]), (&"FINISHED".into(), &0.into()));
    assert!(scan["end_time"].as_u64() >= scan["start_time"].as_u64(), "{scan}");
    shed.judge("t");
}

#[test]
fn scrub_leaves_out_the_blocks_of_a_checkpoint() {
    let shed = new_pool("scrub-checkpoint");
    shed.succeeds("zpool checkpoint t");
    let said = "warning: will not scrub state that belongs to the checkpoint of pool 't'\n";
    assert_eq!(shed.succeeds("zpool scrub -w t"), said);
    let text = shown(&shed);
    let warning = "    scan warning: skipped blocks that are only referenced by the checkpoint.\n";
    assert!(text.contains(warning), "{text}");
}

#[test]
fn scrub_goes_on_with_the_other_pools() {
    let shed = new_pool("scrub-several");
    shed.add("d2", crate::SIZE);
    shed.succeeds("zpool create u d2");
    shed.fails("zpool scrub -w t nope u t", "cannot open 'nope': no such pool");
    for pool in ["t", "u"] {
        let status = shed.succeeds(&format!("zpool status {pool}"));
        assert!(status.contains("  scan: scrub repaired 0B in "), "{status}");
        let history = shed.succeeds(&format!("zpool history {pool}"));
        assert_eq!(history.matches(" zpool scrub -w t nope u t").count(), 1, "{history}");
    }
}

#[test]
fn resilver_brings_a_stale_device_up_to_date() {
    let shed = new_pool("resilvered");
    shed.succeeds("zpool offline t d1");
    shed.succeeds("zfs create t/a");
    shed.succeeds("zpool online t d1");
    shed.succeeds("zpool resilver t");
    shed.succeeds("zpool wait -t resilver t");
    let status = shed.succeeds("zpool status t");
    assert!(status.contains("  scan: resilvered ") && !status.contains(" 0B in "), "{status}");
    assert!(!status.contains("resilver needed"), "{status}");
    assert!(status.ends_with("errors: No known data errors\n"), "{status}");
    shed.judge("t");

    let old = Shed::new("resilver-old", 1);
    old.succeeds("zpool create -d t d0");
    old.fails(
        "zpool resilver t",
        "cannot restart resilver on t: this action requires the resilver_defer feature",
    );
}
