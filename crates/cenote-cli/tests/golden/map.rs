//! `cenote map` on every golden pool: its figures agree with each other and with the space maps.

use cenote_testkit::golden;
use serde_json::Value;

/// Metaslabs of a vdev whose free ranges are read.
const READ: usize = 4;

fn map(pool: &golden::Golden, options: &[&str]) -> String {
    let images = pool.images();
    let folder = images.to_string_lossy();
    let args = [&["map", "-d", &folder][..], options, &[pool.name()]].concat();
    let (text, errors, status) = cenote_cli::run_captured(&args);
    assert!(errors.is_empty() && status == 0, "{} {options:?}: {errors}", pool.name());
    text
}

fn number(value: &Value, key: &str) -> u64 {
    value[key].as_u64().unwrap_or_else(|| panic!("{key} of {value}"))
}

#[test]
fn free_ranges_are_the_free_space_of_each_metaslab() {
    let mut count = 0;
    for pool in golden::all() {
        let all: Value = serde_json::from_str(&map(&pool, &["--json"])).expect("JSON");
        let shown = map(&pool, &[]);
        for vdev in all["vdevs"].as_array().expect("vdevs") {
            let (name, cells) = (vdev["name"].as_str().unwrap(), vdev["cells"].as_array().unwrap());
            let of = |key| cells.iter().map(|cell| number(cell, key)).sum::<u64>();
            assert_eq!(of("size") - of("free"), number(vdev, "allocated"), "{name}");
            let head = format!("{name}, {}: {} meta", vdev["class"].as_str().unwrap(), cells.len());
            assert!(shown.contains(&head), "{head} in {shown}");
            for cell in cells.iter().take(READ) {
                let metaslab = format!("{}:{}", number(vdev, "id"), number(cell, "id"));
                let text = map(&pool, &["-m", &metaslab]);
                let lengths = text.lines().map(|line| line.split_once('\t').unwrap().1);
                let free: u64 = lengths.map(|len| len.parse::<u64>().unwrap()).sum();
                assert_eq!(free, number(cell, "free"), "{} metaslab {metaslab}", pool.name());
                count += 1;
            }
        }
    }
    assert!(count > 100, "{count} metaslabs");
}

#[test]
fn wrong_use_is_refused() {
    let Some(pool) = golden::find("g-basic") else { panic!("a golden pool of the repository") };
    let images = pool.images();
    let folder = images.to_string_lossy();
    for (args, status) in [
        (&["map"][..], 2),
        (&["map", "-d", &folder], 2),
        (&["map", "-d", &folder, "g-basic", "g-basic"], 2),
        (&["map", "-d", &folder, "no-such-pool"], 1),
        (&["map", "-d", &folder, "-m", "9:0", "g-basic"], 1),
        (&["map", "-d", &folder, "-m", "100000", "g-basic"], 1),
        (&["map", "-d", &folder, "--wrong", "g-basic"], 2),
    ] {
        let (out, errors, found) = cenote_cli::run_captured(args);
        assert!(found == status && out.is_empty() && !errors.is_empty(), "{args:?}: {errors}");
    }
}
