//! Golden pools with random damage return the right bytes or an error that says where.
//!
//!     a test ──one process per pool──> worker: reads the pool undamaged, then case after case
//!                                      (1 GiB of address space, 20 s a case)
//!
//! A case is damage made from a seed: bits, sectors, swapped sectors, truncated devices, labels of
//! other pools; half of it is aimed by the block map at the MOS, indirect blocks, dnodes and ZAPs,
//! and space maps. It is an overlay over the images, which are never written. Never accepted: a
//! wrong fact, a panic in any thread, a case of more than 20 s, memory beyond the limit, and an
//! error that does not name device, offset and object.
//!
//! A failing case prints how to repeat it alone: `CENOTE_CASE=g-basic:17`, with the seed.
//!
//! The suite itself is tested: with checksums switched off it must find wrong bytes. Because the
//! decoders then see all the damage, that run must also be free of panics and within its limits.

mod case;
mod facts;
mod files;
mod map;
mod observe;
mod worker;

use std::sync::{Arc, Mutex};

use cenote_device::{Device, FileDevice, OpenMode};
use cenote_testkit::damage::Damage;
use cenote_testkit::golden::{self, Golden};
use cenote_testkit::overlay::{Overlay, OverlayDevice};
use cenote_testkit::rng;

use worker::{Report, Run};

/// Seed of the cases when none is given.
const SEED: u64 = 0x0dab_a6ed_0000_0001;

/// Cases of each pool in the short form, and in the long form, in which all golden pools have at
/// least 5,000.
const FEW: u64 = 14;
const ALL: u64 = 280;

/// The entry point of the child processes; does nothing otherwise.
#[test]
fn worker() {
    worker::main();
}

#[test]
fn damage_never_gives_wrong_bytes() {
    let seed = rng::number("CENOTE_SEED").unwrap_or(SEED);
    if let Some((pool, case)) = one_case() {
        let Some(golden) = cenote_testkit::golden(&pool) else { return };
        let run = Run { seed, cases: case..case + 1, is_verified: true };
        let report = run.of(&golden);
        println!("{report}");
        assert!(report.failures.is_empty(), "{report}");
        return;
    }
    let cases = rng::cases(FEW, ALL);
    let total = over_all(&Run { seed, cases: 0..cases, is_verified: true });
    println!("damage, seed {seed:#x}: {total}");
    assert!(total.failures.is_empty(), "seed {seed:#x}: {total}");
    assert!(total.right > 0 && total.lost > 0, "damage of both kinds: {total}");
}

#[test]
fn without_checksums_wrong_bytes_are_found_and_nothing_panics() {
    let seed = rng::number("CENOTE_SEED").unwrap_or(SEED ^ 1);
    if one_case().is_some() {
        return;
    }
    let cases = rng::cases(FEW, ALL / 4);
    let total = over_all(&Run { seed, cases: 0..cases, is_verified: false });
    println!("damage without checksums, seed {seed:#x}: {total}");
    if total.cases() > 0 {
        let wrong = total.failures.iter().filter(|text| text.contains("wrong bytes")).count();
        assert!(wrong > 10, "the suite sees wrong bytes: {total}");
    }
    let fatal: Vec<_> = total.failures.iter().filter(|text| worker::is_fatal(text)).collect();
    assert!(fatal.is_empty(), "seed {seed:#x}: {fatal:#?}");
}

#[test]
fn one_foreign_label_of_four_hides_nothing() {
    let Some(golden) = cenote_testkit::golden("g-basic") else { return };
    let Some(other) = cenote_testkit::golden("g-codecs") else { return };
    let (image, source) = (golden.devices().remove(0), other.devices().remove(0));
    for label in 0..4 {
        let damage = Damage::ForeignLabel { source: source.clone(), label };
        let inner = FileDevice::open(&image, OpenMode::ReadOnly).expect("image");
        let overlay = Overlay::new(&image, std::slice::from_ref(&damage));
        let device: Arc<dyn Device> = Arc::new(OverlayDevice::new(inner, overlay));
        let opened = cenote_rt::block_on(1, observe::open(&[device], "g-basic")).expect("runtime");
        match opened {
            observe::Opened::Pool(_) => {}
            observe::Opened::NotFound => panic!("{damage}: not found"),
            observe::Opened::Failed(error) => panic!("{damage}: {error:?}"),
        }
    }
}

/// Returns the requested case: `POOL:NUMBER`.
fn one_case() -> Option<(String, u64)> {
    let text = std::env::var("CENOTE_CASE").ok()?;
    let (pool, case) = text.split_once(':').expect("CENOTE_CASE is POOL:NUMBER");
    Some((pool.to_owned(), case.parse().expect("CENOTE_CASE is POOL:NUMBER")))
}

/// Runs the cases on every pool, as many at a time as there are processors.
fn over_all(run: &Run) -> Report {
    let mut pools = golden::all();
    if pools.is_empty() {
        cenote_testkit::skip::skip("golden_damage", "no golden pool is here");
    }
    if let Ok(name) = std::env::var("CENOTE_POOL") {
        pools.retain(|pool| pool.name() == name);
    }
    let (queue, total) = (Mutex::new(pools), Mutex::new(Report::default()));
    let next = || -> Option<Golden> { queue.lock().expect("no panic").pop() };
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(golden) = next() {
                    let report = run.of(&golden);
                    println!("{}: {report}", golden.name());
                    total.lock().expect("no panic").add(report);
                }
            });
        }
    });
    total.into_inner().expect("no panic")
}
