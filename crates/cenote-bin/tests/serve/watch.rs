//! Monitoring the daemon: tunables, figures, events, through commands, files and sockets.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use crate::daemon::{House, has_fuse};

/// Waits until a condition holds: effects of files and other processes are delayed.
pub(crate) fn until(what: &str, holds: impl FnMut() -> bool) {
    assert!(eventually(holds), "never: {what}");
}

/// Waits for a condition, and returns whether it holds.
#[expect(clippy::disallowed_methods, reason = "other processes have a time of their own")]
pub(crate) fn eventually(mut holds: impl FnMut() -> bool) -> bool {
    for _ in 0..2000 {
        if holds() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    false
}

pub(crate) fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Returns the head of the answer to a request, and its body.
fn answer(house: &House, target: &str) -> (String, String) {
    let mut stream = UnixStream::connect(house.path("state/metrics.sock")).unwrap();
    write!(stream, "GET {target} HTTP/1.1\r\nHost: here\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.to_owned(), body.to_owned())
}

/// Returns a page of the daemon's metrics.
fn page(house: &House, target: &str) -> String {
    let (head, body) = answer(house, target);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{target}: {head}");
    body
}

#[test]
fn page_shows_pools_and_changes_nothing() {
    let house = House::new("watch-page");
    house.create("none");
    house.run("zfs create -o mountpoint=none t/a");
    let html = page(&house, "/");
    for part in ["page.js", "page.css", "uplot.js", "uplot.css"] {
        assert!(html.contains(&format!("\"{part}\"")), "{part}");
        assert!(page(&house, &format!("/{part}")).len() > 100, "{part}");
    }
    let figures: serde_json::Value = serde_json::from_str(&page(&house, "/watch.json")).unwrap();
    let pool = &figures["pools"][0];
    assert_eq!((pool["name"].as_str(), pool["state"].as_str()), (Some("t"), Some("ONLINE")));
    assert!(pool["io"]["write"]["times"]["counts"].as_array().unwrap().len() > 1, "{pool}");
    let map: serde_json::Value = serde_json::from_str(&page(&house, "/map/t.json")).unwrap();
    let cells = map["vdevs"][0]["cells"].as_array().unwrap();
    let used: u64 = cells
        .iter()
        .map(|cell| cell["size"].as_u64().unwrap() - cell["free"].as_u64().unwrap())
        .sum();
    assert_eq!(Some(used), map["vdevs"][0]["allocated"].as_u64());
    assert_eq!(page(&house, "/status/t.txt"), house.run("zpool status t"));
    // The command shows the same vdev.
    assert!(house.run("map t").contains(&format!(", normal: {} metaslabs of ", cells.len())));

    // The client writes the file of a picture, which has a square for each metaslab.
    let picture = house.text("picture.svg");
    assert_eq!(house.run(&format!("map --svg {picture} t")), "");
    let svg = read(Path::new(&picture));
    let title = format!(", normal: {} metaslabs of ", cells.len());
    assert!(svg.contains(&title) && svg == house.run("map --svg - t"), "{svg}");
    let (status, said) = house.fails("map --png /nonexistent/x t");
    let why = "cannot write /nonexistent/x: No such file or directory\n";
    assert_eq!((status, said.as_str()), (1, why));
    let (status, said) = house.fails(&format!("map --svg {picture} none"));
    assert!(status == 1 && said.contains("no such pool"), "{said}");
    assert_eq!(read(Path::new(&picture)), svg);

    assert_eq!(page(&house, "/lab.json"), "[]");
    std::fs::create_dir(house.path("state/lab")).unwrap();
    std::fs::write(house.path("state/lab/pads.svg"), "<svg/>").unwrap();
    assert_eq!(page(&house, "/lab.json"), "[\"pads\"]");
    assert_eq!(page(&house, "/lab/pads.svg"), "<svg/>");
    for target in [
        "/map/none.json",
        "/status/none.txt",
        "/status/-v.txt",
        "/status/t%2fa.txt",
        "/lab/..%2f..%2fdaemon.svg",
        "/lab/%00.svg",
        "/page/index.html",
        "/x",
    ] {
        assert!(answer(&house, target).0.starts_with("HTTP/1.1 404 "), "{target}");
    }
    // A client that names files has them read by its own process, with its own rights.
    let (status, said) = house.fails("map -d /etc t");
    assert!(status == 1 && said.contains("no such pool"), "{said}");
    house.run("daemon stop");
}

#[test]
fn tunables_are_set_by_commands_and_by_files() {
    let house = House::new("watch-tunables");
    assert_eq!(house.run("tunable get zfs_txg_timeout"), "5\n");
    let file = house.path("state/parameters/zfs_txg_timeout");
    assert_eq!(read(&file), "5\n");
    house.run("tunable set zfs_txg_timeout=0x7 zfs_arc_max=33554432");
    assert_eq!(house.run("tunable get zfs_txg_timeout"), "7\n");
    assert_eq!(read(&file), "7\n");
    let list = house.run("tunable list -H txg_timeout");
    assert_eq!(list, "zfs_txg_timeout\t7\t5\t1\t3600\n");
    // The tunables are those of the daemon, and not of a command.
    assert_eq!(house.run("tunable --embedded get zfs_txg_timeout"), "5\n");
    let (status, said) = house.fails("tunable set zfs_txg_timeout=0 zfs_arc_max=1048576");
    assert_eq!((status, said.as_str()), (1, "zfs_txg_timeout takes 1 to 3600, not 0\n"));
    assert_eq!(house.run("tunable get zfs_arc_max"), "33554432\n");

    std::fs::write(&file, "0x9\n").unwrap();
    // Before the next command, whether or not the daemon was told in the meantime.
    assert_eq!(house.run("tunable get zfs_txg_timeout"), "9\n");
    until("the file says it as others do", || read(&file) == "9\n");
    std::fs::write(&file, "never").unwrap();
    until("what is no number is taken back", || read(&file) == "9\n");
    let log = read(&house.path("state/daemon.log"));
    let warning =
        "level=warn event=\"tunable not set\" name=zfs_txg_timeout cause=\"'never' is not";
    assert!(log.contains(warning), "{log}");
    // The cache of an open pool adapts.
    house.create("none");
    std::fs::write(house.path("state/parameters/zfs_arc_max"), "16777216").unwrap();
    let capacity = "cenote_cache_capacity_bytes{pool=\"t\"} 16777216\n";
    until("the cache is smaller", || page(&house, "/metrics").contains(capacity));
    house.run("daemon stop");
    let log = read(&house.path("state/daemon.log"));
    for event in ["\"daemon started\" version=", "\"pool created\" pool=t", "\"daemon stopped\""] {
        assert!(log.contains(&format!(" level=info event={event}")), "{event}\n{log}");
    }
    assert!(log.lines().all(|line| line.starts_with("time=")), "{log}");
    assert!(!file.exists());
    assert_eq!(house.run("tunable get zfs_txg_timeout"), "5\n");
}

#[test]
fn cenote_log_adds_spans_of_txgs_to_the_daemons_log() {
    let house = House::new("watch-spans");
    let log = || read(&house.path("state/daemon.log"));
    house.create("none");
    house.run("zfs create -o mountpoint=none t/a");
    house.run("daemon stop");
    let quiet = log();
    assert!(!quiet.contains("level=debug") && !quiet.contains("txg="), "{quiet}");

    let mut start = house.command(&["daemon", "start"]);
    assert!(start.env("CENOTE_LOG", "cenote=debug").status().unwrap().success());
    let other = house.path("other.img");
    std::fs::File::create(&other).unwrap().set_len(256 << 20).unwrap();
    house.run(&format!("zpool create -O mountpoint=none u {}", other.display()));
    house.run("zfs create -o mountpoint=none t/b");
    house.run("daemon stop");
    let log = log();
    let lines: Vec<_> = log.strip_prefix(&*quiet).unwrap_or(&log).lines().collect();
    let has = |text: &str| lines.iter().any(|line| line.contains(text));
    // The field `pool` distinguishes the pools of one process.
    for pool in ["t", "u"] {
        let begin = format!(" level=debug event=txg pool={pool} txg=");
        let line = lines.iter().find(|line| line.contains(&begin));
        let line = line.unwrap_or_else(|| panic!("no txg of {pool}\n{log}"));
        assert!(line.starts_with("time=") && line.contains(" ms="), "{line}");
    }
    assert!(has(" level=debug event=import pool=t "), "{log}");
    assert!(has(" level=debug event=command uid="), "{log}");
    // Requests and passes have the level `trace`.
    assert!(!has("level=trace"), "{log}");
    // Opening a pool ends before the pool is closed.
    let import = lines.iter().position(|line| line.contains(" event=import pool=t "));
    let stopped = lines.iter().position(|line| line.contains(" event=\"pool exported\""));
    let left = stopped.or_else(|| lines.iter().position(|line| line.contains("daemon stopped")));
    assert!(import < left, "{log}");

    // An invalid filter is reported by the command that starts the daemon; an empty one is none.
    let output = house.command(&["zpool", "list"]).env("CENOTE_LOG", "inof").output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("CENOTE_LOG: 'inof' is neither"), "{text}");
    assert!(house.command(&["zpool", "list"]).env("CENOTE_LOG", "").status().unwrap().success());
    house.run("daemon stop");
}

#[test]
fn iostat_metrics_and_kstats_are_live() {
    let house = House::new("watch-figures");
    house.create("none");
    let pairs = |text: &str| -> Vec<u64> {
        text.split_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    // Since the import, and in an interval with a write.
    let before = pairs(&house.run("zpool iostat -Hp t"));
    assert!(before.len() == 6 && before[3] > 0, "{before:?}");
    let mut watched = house.command(&["zpool", "iostat", "-Hpy", "t", "0.3", "2"]);
    let child = watched.stdout(Stdio::piped()).spawn().unwrap();
    house.run("zfs create -o mountpoint=none t/a");
    let said = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let rows: Vec<_> = said.lines().map(pairs).collect();
    assert_eq!(rows.len(), 2, "{said}");
    let after = pairs(&house.run("zpool iostat -Hp t"));
    assert_eq!(after.len(), 6);
    let leaves = house.run("zpool iostat -vHp t");
    assert_eq!(leaves.lines().count(), 4, "{leaves}");
    let histogram = house.run("zpool iostat -rHp t");
    assert!(histogram.lines().skip(2).flat_map(pairs).sum::<u64>() > 0, "{histogram}");

    let text = page(&house, "/metrics");
    for line in [
        "# TYPE cenote_pool_size_bytes gauge",
        "cenote_pool_suspended{pool=\"t\"} 0",
        "# TYPE cenote_vdev_service_seconds histogram",
        "cenote_tunable{name=\"zfs_txg_timeout\"} 5",
    ] {
        assert!(text.lines().any(|there| there == line), "{line}\n{text}");
    }
    assert!(text.contains("cenote_pool_state{pool=\"t\",guid=\""), "{text}");
    let json = page(&house, "/metrics.json");
    assert!(json.starts_with("{\"cenote_info\":[{\"labels\":{\"version\":"), "{json}");

    let kstat = house.path("state/kstat/zfs");
    house.run("tunable set cenote_kstat_interval=1");
    until("the pool is among the files", || {
        let is_there = read(&kstat.join("t/state")) == "ONLINE\n";
        // Files appear one after the other.
        is_there && kstat.join("t/io").exists()
    });
    let arc = read(&kstat.join("arcstats"));
    let hits = arc.lines().find(|line| line.starts_with("hits ")).unwrap();
    assert_eq!(hits.split_whitespace().nth(1), Some("4"), "{arc}");
    let io = read(&kstat.join("t/io"));
    assert_eq!(
        io.lines().map(|line| line.split_whitespace().count()).collect::<Vec<_>>()[1..],
        [12, 12]
    );
    // As a directory to be mounted in place of /proc.
    assert!(house.path("state/kstat/spl/kstat/zfs/t/io").exists());
    house.run("zpool export t");
    until("a pool that left leaves no files", || !kstat.join("t").exists());
    house.run("daemon stop");
    assert!(!kstat.exists() && !house.path("state/metrics.sock").exists());
}

#[test]
fn iostat_shows_reads_by_class() {
    if !has_fuse() {
        return;
    }
    let house = House::new("watch-classes");
    house.create(&house.text("at"));
    house.run("zfs set compression=off t");
    let file = house.path("at/file");
    std::fs::write(&file, vec![7; 16 << 20]).unwrap();
    house.run("zpool export t");
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    assert_eq!(std::fs::read(&file).unwrap().len(), 16 << 20);
    house.run("zpool scrub -w t");
    // Rows of the table are sizes; each class has a column of single and one of aggregated I/Os.
    let histogram = house.run("zpool iostat -rHp t");
    let sum = |column: usize| -> u64 {
        let cells = histogram.lines().filter_map(|line| line.split('\t').nth(column));
        cells.filter_map(|cell| cell.parse::<u64>().ok()).sum()
    };
    let [sync, scrub] = [1, 9].map(sum);
    // The file has 128 blocks.
    assert!(sync >= 128 && scrub >= 16, "{histogram}");
}

#[test]
fn events_f_follows_new_events() {
    let house = House::new("watch-events");
    house.run("daemon start");
    let mut follow = house.command(&["zpool", "events", "-f", "-H", "t"]);
    let mut follower = follow.stdout(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(follower.stdout.take().unwrap()).lines();
    house.create("none");
    let d1 = house.text("pool/d1");
    house.run(&format!("zpool offline t {d1}"));
    house.run(&format!("zpool online t {d1}"));
    house.run("zpool trim -w t");
    house.run("zpool export t");
    let mut classes = Vec::new();
    while classes.last().is_none_or(|class| class != "sysevent.fs.zfs.pool_export") {
        let line = said.next().unwrap().unwrap();
        classes.push(line.split_once('\t').unwrap().1.to_owned());
    }
    follower.kill().unwrap();
    follower.wait().unwrap();
    for class in [
        "sysevent.fs.zfs.pool_create",
        "resource.fs.zfs.statechange",
        "sysevent.fs.zfs.trim_start",
        "sysevent.fs.zfs.trim_finish",
    ] {
        assert!(classes.iter().any(|there| there == class), "{classes:?}");
    }
    let all = house.run("zpool events");
    assert!(all.starts_with("TIME                           CLASS\n"), "{all}");
    assert_eq!(all.lines().count(), classes.len() + 1, "{all}");
    assert_eq!(house.run("zpool events -H other"), "");
    let verbose = house.run("zpool events -v t");
    for line in [
        "class = \"resource.fs.zfs.statechange\"",
        "vdev_state = \"OFFLINE\" (0x2)",
        "pool = \"t\"",
    ] {
        assert!(verbose.lines().any(|there| there.trim() == line), "{line}\n{verbose}");
    }
    assert_eq!(house.run("zpool events -c"), format!("cleared {} events\n", classes.len()));
    assert_eq!(house.run("zpool events -H"), "");
}

/// Names of what the events of these classes tell, between the facts of the pool and the time, as in
/// recordings of OpenZFS.
const PAYLOADS: [(&str, &str); 11] = [
    ("sysevent.fs.zfs.scrub_start", ""),
    ("sysevent.fs.zfs.scrub_finish", ""),
    ("sysevent.fs.zfs.config_sync", ""),
    ("sysevent.fs.zfs.pool_import", ""),
    ("sysevent.fs.zfs.resilver_finish", "resilver_type"),
    ("sysevent.fs.zfs.vdev_attach", "vdev_guid vdev_state vdev_path"),
    ("sysevent.fs.zfs.vdev_add", ""),
    ("sysevent.fs.zfs.vdev_remove_aux", "vdev_guid vdev_state vdev_path"),
    ("sysevent.fs.zfs.vdev_online", "vdev_guid vdev_state vdev_path"),
    ("sysevent.fs.zfs.vdev_spare", "vdev_guid vdev_state vdev_path"),
    ("resource.fs.zfs.statechange", "vdev_guid vdev_state vdev_path vdev_laststate"),
];
const OF_HISTORY: &str =
    "history_hostname history_internal_str history_internal_name history_txg history_time";
const OF_DATASETS: &str = "history_hostname history_dsname history_internal_str \
     history_internal_name history_dsid history_txg history_time";

#[test]
fn payloads_of_events_are_those_of_openzfs() {
    let house = House::new("watch-payloads");
    house.create("none");
    let [d0, d1, d2, d3, d4] =
        ["d0", "d1", "d2", "d3", "d4"].map(|name| house.text("pool/") + name);
    let size = std::fs::metadata(&d0).unwrap().len();
    for path in [&d2, &d3, &d4] {
        std::fs::File::create(path).unwrap().set_len(size).unwrap();
    }
    house.run("zpool export t");
    house.run(&format!("zpool import -d {} t", house.text("pool")));
    house.run("zfs create -o canmount=off t/fs");
    house.run("zpool scrub -w t");
    house.run(&format!("zpool offline t {d1}"));
    house.run(&format!("zpool online t {d1}"));
    house.run(&format!("zpool attach -w t {d0} {d2}"));
    house.run(&format!("zpool add t spare {d3}"));
    house.run(&format!("zpool replace -w t {d2} {d3}"));
    house.run(&format!("zpool add t cache {d4}"));
    house.run(&format!("zpool remove t {d4}"));
    house.run("zpool set comment=shelf t");
    house.run(&format!("zpool set io_n=4 t {d1}"));
    let said = house.run("zpool events -v t");
    let mut found: Vec<(String, Vec<(&str, &str)>)> = Vec::new();
    for line in said.lines().skip(1) {
        match line.trim_start().split_once(" = ") {
            Some(pair) if line.starts_with(' ') => found.last_mut().unwrap().1.push(pair),
            None if !line.is_empty() => {
                found.push((line.split_whitespace().last().unwrap().to_owned(), Vec::new()));
            }
            _ => {}
        }
    }
    let names = |pairs: &[(&str, &str)]| {
        let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
        let (first, rest) = names.split_at(6);
        assert_eq!(first, ["version", "class", "pool", "pool_guid", "pool_state", "pool_context"]);
        let [between @ .., "time", "eid"] = rest else { panic!("{rest:?}") };
        between.join(" ")
    };
    for (class, wanted) in PAYLOADS {
        let of_class: Vec<_> = found.iter().filter(|(there, _)| there == class).collect();
        assert!(!of_class.is_empty(), "{class}\n{said}");
        for (_, pairs) in of_class {
            assert_eq!(names(pairs), wanted, "{class}");
        }
    }
    let history = found.iter().filter(|(class, _)| class == "sysevent.fs.zfs.history_event");
    let history: Vec<_> = history.map(|(_, pairs)| (names(pairs), pairs)).collect();
    assert!(history.iter().all(|(names, _)| names == OF_HISTORY || names == OF_DATASETS));
    let has = |wanted: &[(&str, &str)]| {
        let is_there = |pairs: &&Vec<(&str, &str)>| wanted.iter().all(|pair| pairs.contains(pair));
        history.iter().map(|(_, pairs)| *pairs).any(|pairs| is_there(&pairs))
    };
    assert!(has(&[("history_internal_name", "\"create\""), ("history_dsname", "\"t/fs\"")]));
    for name in ["scan setup", "open", "import", "vdev set", "vdev remove"] {
        let quoted = format!("\"{name}\"");
        assert!(has(&[("history_internal_name", quoted.as_str())]), "{name}\n{said}");
    }
    let comment = ("history_internal_str", "\"comment=shelf\"");
    assert!(has(&[("history_internal_name", "\"set\""), comment]), "{said}");
    let last = found.iter().rev().find(|(class, _)| class.ends_with("statechange"));
    assert!(last.unwrap().1.contains(&("vdev_laststate", "\"OFFLINE\" (0x2)")), "{said}");
    // The creation is before the export.
    let number = |pairs: &[(&str, &str)]| {
        let txg = pairs.iter().find(|(name, _)| *name == "history_txg").unwrap().1;
        u64::from_str_radix(txg.trim_start_matches("0x"), 16).unwrap()
    };
    let txgs: Vec<u64> = history.iter().map(|(_, pairs)| number(pairs)).collect();
    assert!(txgs.is_sorted(), "{txgs:?}");
}

#[test]
fn primarycache_decides_whether_the_kernel_keeps_data() {
    if !has_fuse() {
        return;
    }
    let house = House::new("watch-primarycache");
    house.create(&house.text("at"));
    let file = house.path("at/file");
    std::fs::write(&file, vec![7; 1 << 20]).unwrap();
    // The bytes that the daemon is asked for when the file is read again.
    let asked = || {
        let total = || -> u64 {
            let page = page(&house, "/metrics");
            let name = "cenote_dataset_read_bytes_total{";
            let line = page.lines().find(|line| line.starts_with(name)).expect("a dataset");
            line.rsplit(' ').next().and_then(|text| text.parse().ok()).expect("a number")
        };
        let before = total();
        assert_eq!(std::fs::read(&file).unwrap().len(), 1 << 20);
        total() - before
    };
    asked();
    assert_eq!(asked(), 0);
    house.run("zfs set primarycache=metadata t");
    assert_eq!(asked(), 1 << 20);
    assert_eq!(asked(), 1 << 20);
    house.run("zfs inherit primarycache t");
    assert_eq!(asked(), 0);
}
