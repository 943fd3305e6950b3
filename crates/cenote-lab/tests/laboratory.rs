//! The experiments at a small scale: their tables are the committed ones, and every run has the
//! same bytes of JSON.
//!
//! `CENOTE_BLESS=1` writes the tables of this build. `./x lab` compares those at the default scale.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::PathBuf;

use cenote_fs::NewVolume;
use cenote_lab::picture::{self, Theme};
use cenote_lab::space::{VdevSpace, VolumeSpace};
use cenote_lab::{Options, Report, Scale, experiment, text};
use cenote_ondisk::zap::Value;
use cenote_poolkit::PoolBuilder;
use cenote_rt::{Buf, Rng, block_on};
use cenote_testkit::rng::wants_all;

fn run(name: &str, scale: Scale, jobs: usize) -> Report {
    let options = Options { jobs, ..Options::new(scale) };
    experiment::find(name).unwrap().run(&options).unwrap()
}

/// Compares a report with its committed tables, but not the hash of its commands: any change of the
/// engine that moves a write by a nanosecond changes it.
fn compare(report: &Report, file: &str) {
    let footer = text::footer(report);
    let text = text::render(report, false).replace(&footer, "").trim_end().to_owned() + "\n";
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("golden").join(file);
    if std::env::var_os("CENOTE_BLESS").is_some() {
        std::fs::write(&golden, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(golden).unwrap(), "golden/{file}");
    assert!(report.passes(), "{text}");
}

/// Runs an experiment twice, and compares it with its golden table.
fn check(name: &str) {
    let report = run(name, Scale::Small, 2);
    compare(&report, &format!("{name}-small.txt"));
    let again = run(name, Scale::Small, 1);
    assert_eq!(report.to_json(), again.to_json(), "{name}: equal in every run");
    let stored = Report::from_json(&report.to_json()).unwrap();
    assert_eq!(picture::to_svg(&stored), picture::to_svg(&report));
    assert_ne!(picture::to_png(&stored, Theme::Light), picture::to_png(&stored, Theme::Dark));
}

#[test]
fn indirect_is_as_committed() {
    check("indirect");
}

#[test]
fn pads_is_as_committed() {
    check("pads");
}

#[test]
fn volume_is_as_committed() {
    check("volume");
}

#[test]
fn scrub_is_as_committed() {
    check("scrub");
}

#[test]
fn overwrite_is_as_committed() {
    check("overwrite");
}

#[test]
fn ashift_is_as_committed() {
    check("ashift");
}

#[test]
fn resilver_is_as_committed() {
    check("resilver");
}

#[test]
fn log_is_as_committed() {
    check("log");
}

#[test]
fn special_is_as_committed() {
    check("special");
}

/// The tables of the documentation: in the long form of the tests only. `overwrite` and `resilver`
/// have goals that are not met (docs/laboratory.md), so that only `./x lab` compares them.
#[test]
fn default_tables_are_as_committed() {
    if !wants_all() {
        return;
    }
    for name in ["pads", "volume", "scrub", "indirect", "ashift", "special", "log"] {
        compare(&run(name, Scale::Default, 2), &format!("{name}.txt"));
    }
}

#[test]
fn other_seeds_have_other_hashes() {
    let policies = vec!["cenote".to_owned()];
    let run = |seed| {
        let options = Options { seed, policies: policies.clone(), ..Options::new(Scale::Small) };
        experiment::find("pads").unwrap().run(&options).unwrap().footer.hash
    };
    assert_ne!(run(1), run(2));
}

#[test]
fn unknown_names_are_refused() {
    let error = experiment::find("nosuch").unwrap_err().to_string();
    assert_eq!(error, "no experiment is named 'nosuch'; run 'cenote lab list'");
    let options = Options { policies: vec!["nosuch".into()], ..Options::new(Scale::Small) };
    let error = experiment::find("pads").unwrap().run(&options).unwrap_err().to_string();
    assert!(
        error.starts_with("experiment 'pads' has no policy 'nosuch': before-8005, "),
        "{error}"
    );
}

/// Fills volumes with random bytes on real pools, and compares their space with the predictions.
#[test]
fn space_is_that_of_a_real_pool() {
    for (layout, width, ashift) in
        [("disk", 1, 9), ("disk", 1, 12), ("mirror", 2, 12), ("raidz1", 4, 12), ("raidz2", 6, 9)]
    {
        for block in [4 << 10, 16 << 10, 128 << 10] {
            let done = block_on(2, compare_space(layout, width, ashift, block));
            done.unwrap();
        }
    }
}

async fn compare_space(layout: &str, width: usize, ashift: u64, block: u64) {
    const SIZE: u64 = 8 << 20;
    const OFF: u64 = 2;
    let builder = PoolBuilder::of(layout, width).with_ashift(ashift).with_seed(3);
    let (engine, _devices) = builder.with_file_system().create_in_memory().await;
    let new = NewVolume::new("tank/v", SIZE).with_block_size(block);
    let volume = new.with("compression", Value::U64(OFF)).create(&engine).await.unwrap();
    let mut bytes = vec![0; SIZE as usize];
    Rng::seeded(block).fill(&mut bytes);
    volume.write(0, vec![Buf::from(bytes)], false).await.unwrap();
    engine.sync().await.unwrap();

    let view = engine.view().await.unwrap();
    let dataset = view.dataset("tank/v").await.unwrap();
    let objset = dataset.open().await.unwrap();
    let dnode = objset.dnode(1).await.unwrap();
    let mut allocated = 0;
    for number in 0..SIZE / block {
        let pointer = dnode.block_pointer(0, number).await.unwrap().unwrap();
        allocated += pointer.dvas().map(|dva| dva.asize).sum::<u64>();
    }
    let vdev = VdevSpace::new(layout, width as u64, ashift).unwrap();
    let volume = VolumeSpace::new(SIZE, block).unwrap();
    let wanted = volume.on(&vdev);
    let case = format!("{layout} of {width}, ashift {ashift}, blocks of {block}: {wanted:?}");
    assert_eq!(allocated, wanted.allocated, "{case}");
    let referenced = dataset.phys().referenced_bytes;
    assert_eq!(dataset.dir().phys.used_bytes, wanted.reservation().max(referenced), "{case}");
    // Besides its data, a volume has indirect blocks, a few objects and its object set.
    let others = referenced - wanted.data;
    let few = 16 * 3 * vdev.charged(16 << 10);
    assert!(others > 0 && others <= wanted.metadata_most + few, "{others}: {case}");
    assert!(volume.explain(&vdev).contains(&wanted.reservation().to_string()), "{case}");
}
