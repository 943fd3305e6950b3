//! `cenote map` on every golden pool: its figures agree with each other, with the space maps, and
//! with its pictures.

use cenote_lab::picture::colour;
use cenote_testkit::golden::{self, PrivateFolder};
use cenote_testkit::place;
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

/// The least count over all pools: of those of the repository, and of a larger set.
fn least(of_repository: usize, of_more: usize) -> usize {
    if place::golden_folders().len() > 1 { of_more } else { of_repository }
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
    assert!(count >= least(80, 101), "{count} metaslabs");
}

/// Returns the colours of all cells of a picture: its squares, chart by chart.
fn cells_of(svg: &str) -> Vec<String> {
    let attribute = |line: &str, name: &str| {
        let after = line.split(&format!(" {name}=\"")).nth(1)?;
        Some(after.split('"').next()?.to_owned())
    };
    let square = |line: &str| {
        let is_square = attribute(line, "width") == attribute(line, "height");
        (line.starts_with("<rect x=") && is_square).then(|| attribute(line, "fill")).flatten()
    };
    svg.lines().filter_map(square).collect()
}

#[test]
fn pictures_have_the_figures_of_the_json() {
    let hex = |part: f64| {
        let [red, green, blue] = colour(part);
        format!("#{red:02x}{green:02x}{blue:02x}")
    };
    // Pictures round to a tenth of a percent.
    let tenth = |percent: f64| (percent * 10.0).round() / 10.0;
    let mut count = 0;
    for pool in golden::all() {
        let all: Value = serde_json::from_str(&map(&pool, &["--json"])).expect("JSON");
        let vdevs = all["vdevs"].as_array().expect("vdevs");
        let cells = vdevs.iter().flat_map(|vdev| vdev["cells"].as_array().expect("cells"));
        let free = cells.clone().map(|cell| {
            hex(tenth(number(cell, "free") as f64 / number(cell, "size") as f64 * 100.0) / 100.0)
        });
        let known = cells.clone().filter_map(|cell| cell["frag"].as_u64());
        let fragmentation = known.map(|percent| hex((100.0 - percent as f64) / 100.0));
        let wanted: Vec<_> = free.chain(fragmentation).collect();
        let svg = map(&pool, &["--svg", "-"]);
        assert_eq!(cells_of(&svg), wanted, "{}", pool.name());
        assert!(svg.contains(&format!("pool {}, txg {}", pool.name(), all["txg"])), "{svg}");
        count += wanted.len();
    }
    assert!(count >= least(361, 501), "{count} cells");
}

#[test]
fn pictures_are_written_to_files() {
    let Some(pool) = golden::find("g-basic") else { panic!("a golden pool of the repository") };
    let folder = PrivateFolder::create("map-pictures");
    let written = |options: &[&str]| {
        let file = folder.path().join("picture");
        let name = file.to_string_lossy();
        assert_eq!(map(&pool, &[options, &[&name]].concat()), "");
        std::fs::read(&file).expect("a picture")
    };
    assert_eq!(written(&["--svg"]), map(&pool, &["--svg", "-"]).into_bytes());
    let (light, dark) = (written(&["--png"]), written(&["--dark", "--png"]));
    assert!(
        light.starts_with(b"\x89PNG\r\n\x1a\n") && dark.starts_with(b"\x89PNG") && light != dark
    );
    let images = pool.images();
    let args = ["map", "-d", &images.to_string_lossy(), "--svg", "/nonexistent/x", "g-basic"];
    let (_, errors, status) = cenote_cli::run_captured(&args);
    let why = "cannot write /nonexistent/x: No such file or directory\n";
    assert_eq!((errors.as_str(), status), (why, 1));
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
        (&["map", "-d", &folder, "--svg", "-", "--png", "-", "g-basic"], 2),
        (&["map", "-d", &folder, "--svg", "-", "--json", "g-basic"], 2),
        (&["map", "-d", &folder, "--svg", "-", "--dark", "g-basic"], 2),
        (&["map", "-d", &folder, "--svg", "-", "-f", "g-basic"], 2),
    ] {
        let (out, errors, found) = cenote_cli::run_captured(args);
        assert!(found == status && out.is_empty() && !errors.is_empty(), "{args:?}: {errors}");
    }
}
