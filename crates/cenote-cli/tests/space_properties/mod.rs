//! Compares the space figures of `zfs list` and `zpool list` with those that OpenZFS's own
//! libraries compute for the same pool.

use std::collections::BTreeMap;
use std::fs::OpenOptions;

use cenote_engine::Engine;
use cenote_fs::Mount;
use cenote_fs::access::Credentials;
use cenote_fs::edit::{NewKind, NewNode};
use cenote_fs::mount::WriteOptions;
use cenote_pool::import::{ScanOptions, scan};
use cenote_rt::{Result, Rng, block_on};

use crate::{SIZE, Shed};

/// Numeric properties of datasets: each must have been compared, and must differ from zero
/// somewhere.
const OF_DATASETS: &str = "used available referenced usedbysnapshots usedbydataset \
    usedbyrefreservation usedbychildren compressratio refcompressratio written logicalused \
    logicalreferenced quota reservation refquota refreservation userrefs createtxg objsetid guid";
/// Numeric properties of pools.
const OF_POOLS: &str = "size allocated free checkpoint fragmentation expandsize capacity \
    dedupratio bcloneratio guid";
/// Properties that are zero for the pools here.
const ZEROS: &str = "freeing leaked bcloneused bclonesaved dedup_table_size";

/// Writes files of half noise, and removes every other one.
fn fill(shed: &Shed, datasets: &[&str], seed: u64) {
    block_on(2, write(shed, datasets, seed)).expect("a runtime").expect("a pool");
}

async fn write(shed: &Shed, datasets: &[&str], seed: u64) -> Result<()> {
    let scan = scan(&ScanOptions { paths: vec![shed.path().to_path_buf()] }).await?;
    let engine =
        Engine::open(scan.find("t").expect("the pool"), &cenote_pool::OpenOptions::default())
            .await?;
    let (root, new) = (Credentials::root(), NewNode::new(NewKind::Regular, 0o644));
    let mut rng = Rng::seeded(seed);
    for dataset in datasets {
        let mount = Mount::open(&engine, dataset).await?;
        for number in 0..6 {
            let name = format!("{seed}-{number}");
            let file = mount.create(&root, mount.root(), name.as_bytes(), &new).await?;
            let mut bytes = vec![7; 1 + rng.below(300_000) as usize];
            let half = bytes.len() / 2;
            rng.fill(&mut bytes[..half]);
            mount.write(&root, file.object, 0, &bytes, WriteOptions::default()).await?;
            if number % 2 == 1 {
                engine.sync().await?;
                mount.unlink(&root, mount.root(), name.as_bytes()).await?;
            }
        }
        drop(mount);
    }
    engine.export().await
}

/// Creates a pool and datasets that have a value in every space column.
fn make(shed: &Shed, vdevs: &str) {
    let all = ["t", "t/a", "t/a/b", "t/limited"];
    shed.succeeds(&format!("zpool create t {vdevs}"));
    shed.succeeds("zfs create -o compression=zstd t/a");
    shed.succeeds("zfs create -o quota=40M -o refquota=30M t/a/b");
    shed.succeeds("zfs create -o reservation=20M -o refreservation=10M -o copies=2 t/limited");
    shed.succeeds("zfs create -V 8M t/thick");
    shed.succeeds("zfs create -s -V 64M t/thin");
    fill(shed, &all, 1);
    shed.succeeds("zfs snapshot -r t@one");
    shed.succeeds("zfs clone t/a@one t/clone");
    fill(shed, &["t/a", "t/clone", "t/limited"], 2);
    shed.succeeds("zfs snapshot -r t@two");
    shed.succeeds("zfs hold -r mine t@two");
    shed.succeeds("zfs clone t/a/b@two t/promoted");
    shed.succeeds("zfs promote t/promoted");
    shed.succeeds("zpool checkpoint t");
    fill(shed, &all[1..], 3);
    shed.succeeds("zfs destroy t/a@one -d");
    shed.succeeds("zfs destroy t/thin@one");
    fill(shed, &["t/promoted"], 4);
    // Space that the pool does not use yet (`expandsize`).
    for number in 0..6 {
        let path = shed.path().join(format!("d{number}"));
        let device = OpenOptions::new().write(true).open(path).expect("a device");
        device.set_len(SIZE + (100 << 20)).expect("its size");
    }
}

/// Returns numbers by name and property, from lines of three words.
fn table(text: &str, separator: char) -> BTreeMap<(String, String), String> {
    let mut table = BTreeMap::new();
    for line in text.lines() {
        let words: Vec<&str> = line.split(separator).collect();
        let [name, property, value, ..] = words[..] else { panic!("{line}") };
        table.insert((name.to_owned(), property.to_owned()), value.to_owned());
    }
    table
}

/// Parses a number into the engine's unit; ratios are hundredths there.
fn number(property: &str, shown: &str) -> Option<u64> {
    if property.ends_with("ratio") {
        let ratio: f64 = shown.parse().ok()?;
        return Some((ratio * 100.0).round() as u64);
    }
    if shown == "-" { Some(0) } else { shown.parse().ok() }
}

#[test]
fn space_properties_are_those_of_openzfs() {
    let Some(theirs) = cenote_oracle::libzpool() else { return };
    for vdevs in ["d0", "-o ashift=12 raidz2 d0 d1 d2 d3 d4 d5"] {
        let shed = Shed::new("figures", 6);
        make(&shed, vdevs);
        let said = theirs.pool("t", shed.path(), &["figures"]);
        let said = table(&said.stdout, ' ');
        let mut shown = table(&shed.succeeds("zfs get -Hpr all t"), '\t');
        for (place, value) in table(&shed.succeeds("zpool get -Hp all t"), '\t') {
            shown.insert(("pool".to_owned(), place.1), value);
        }
        let (mut compared, mut wrong) = (BTreeMap::new(), Vec::new());
        for ((name, property), theirs) in &said {
            let property = property.as_str();
            // Snapshots have only some of the properties.
            let Some(ours) = shown.get(&(name.clone(), property.to_owned())) else { continue };
            let Some(ours) = number(property, ours) else { continue };
            // The pool's root dataset has these properties too, with other values or none.
            let is_own = ["load_guid", "version"].contains(&property);
            let is_left_out = ["available", "usedbysnapshots"].contains(&property);
            if is_own || name.contains('@') && is_left_out {
                continue;
            }
            if ours.to_string() != *theirs {
                wrong.push(format!("{name} {property}: {ours}, OpenZFS {theirs}"));
            }
            let seen: &mut u64 = compared.entry(property).or_default();
            *seen = ours.max(*seen);
        }
        assert!(wrong.is_empty(), "{vdevs}: {wrong:#?}");
        for property in OF_DATASETS.split_whitespace().chain(OF_POOLS.split_whitespace()) {
            assert!(compared.get(property) > Some(&0), "{vdevs}: {property} {compared:?}");
        }
        for property in ZEROS.split_whitespace() {
            assert_eq!(compared.get(property), Some(&0), "{vdevs}: {property}");
        }
        shed.judge("t");
    }
}
