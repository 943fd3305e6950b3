//! Geometry and positioning against the figures of spec 09 §2.1.

use super::super::table::{HDD_10K_SAS, HDD_15K_SAS, HDD_7200};
use super::*;

fn near(found: f64, wanted: f64, tolerance: f64, what: &str) {
    assert!((found - wanted).abs() <= tolerance, "{what}: {found}, not {wanted}");
}

#[test]
fn seek_curves_equal_the_spec() {
    const DISTANCES: [f64; 5] = [0.001, 0.01, 0.1, 1.0 / 3.0, 1.0];
    for (name, params, curve, seeks) in [
        ("10k", HDD_10K_SAS, [0.300, 5.000, 2.500], [0.461, 0.825, 2.131, 4.020, 7.800]),
        ("15k", HDD_15K_SAS, [0.200, 3.833, 1.967], [0.323, 0.603, 1.609, 3.069, 6.000]),
        ("7200", HDD_7200, [0.500, 9.333, 7.567], [0.803, 1.509, 4.208, 8.411, 17.400]),
    ] {
        let geometry = Geometry::new(&params);
        for (found, wanted) in geometry.curve().iter().zip(curve) {
            near(found / 1e6, wanted, 0.0005, name);
        }
        for (distance, wanted) in DISTANCES.into_iter().zip(seeks) {
            near(geometry.seek_over(distance) / 1e6, wanted, 0.0006, name);
        }
        assert!(geometry.seek_over(0.0) == 0.0);
    }
}

#[test]
fn zones_and_angles_follow_from_the_capacity_of_cylinders() {
    let geometry = Geometry::new(&HDD_10K_SAS);
    let middle = geometry.place(HDD_10K_SAS.capacity / 2);
    near(middle.cylinder, 0.4384, 0.00005, "cylinder");
    near(middle.rate * 1e3, 123.69, 0.005, "MB/s");
    let [first, last] = [0, HDD_10K_SAS.capacity].map(|offset| geometry.place(offset));
    near(first.rate * 1e3, 150.0, 1e-9, "outermost");
    near(last.rate * 1e3, 90.0, 1e-9, "innermost");
    // A byte further along the track is reached later by its share of a revolution.
    for offset in [0, 10_u64 << 30, 70 << 30, 120 << 30] {
        let [from, to] = [offset, offset + 100_000].map(|offset| geometry.place(offset));
        let share = 100_000.0 / from.rate / geometry.revolution_ns;
        near((to.angle - from.angle).rem_euclid(1.0), share, 1e-4, "angle");
    }
    for (now_ns, phase) in [(0, 0.0), (3_000_000, 0.5), (6_000_000_000_000_000, 0.0)] {
        near(geometry.phase(now_ns), phase, 0.0, "phase");
    }
}

#[test]
fn stretched_disks_seek_like_whole_ones_at_the_same_speed() {
    let whole = Geometry::new(&HDD_10K_SAS);
    let stretched = Geometry::new(&RotatingParams { stretch: 64, ..HDD_10K_SAS });
    let pair = |geometry: &Geometry, part: u64| [0, part].map(|offset| geometry.place(offset));
    let [from, to] = pair(&stretched, 1 << 30);
    let [whole_from, whole_to] = pair(&whole, 64 << 30);
    near(stretched.seek(&from, &to), whole.seek(&whole_from, &whole_to), 1.0, "seek");
    near(to.rate, whole_to.rate, 1e-12, "rate");
    // Inside of 1 MiB nothing is stretched.
    let [from, to] = pair(&stretched, 950 << 10);
    let [whole_from, whole_to] = pair(&whole, 950 << 10);
    near(stretched.seek(&from, &to), whole.seek(&whole_from, &whole_to), 1000.0, "near seek");
    near(to.angle, whole_to.angle, 0.001, "angle");
}

/// Writes runs of `run` bytes with gaps between them, `depth` commands at a time, and returns the
/// time of a run.
fn run_ns(params: RotatingParams, depth: u64, run: u64, gap: u64) -> f64 {
    const RUNS: u64 = 200;
    let mut disk = Rotating::new(params, 1);
    let (mut next, mut now_ns, mut done) = (0, 0, Vec::new());
    let mut admit = |disk: &mut Rotating, now_ns| {
        let command = Command { id: next, op: Op::Write, offset: next * (run + gap), len: run };
        next += 1;
        if next <= RUNS {
            disk.admit(now_ns, command);
        }
    };
    (0..depth).for_each(|_| admit(&mut disk, 0));
    while let Some(at_ns) = disk.next_event() {
        now_ns = at_ns;
        disk.advance(at_ns, &mut done);
        done.drain(..).for_each(|_| admit(&mut disk, now_ns));
    }
    now_ns as f64 / RUNS as f64
}

#[test]
fn write_gaps_cost_their_length_or_a_revolution() {
    let params = RotatingParams { is_cache_on: false, ..HDD_7200 };
    let (run, gap) = (128 << 10, 4096);
    let [run_time, gap_time] = [run, gap].map(|bytes| bytes as f64 / 0.15);
    let queued = run_ns(params, 4, run, gap) - run_time;
    near(queued / gap_time, 1.0, 0.05, "gap with several tags");
    let alone = run_ns(params, 1, run, gap) - run_time;
    near(alone / (60e9 / 7200.0), 1.0, 0.02, "gap with one tag");
    near(run_ns(params, 1, run, 0) / run_time, 1.0, 0.01, "no gap");
    let cached = RotatingParams { is_cache_on: true, cache_bytes: 1 << 20, ..params };
    near((run_ns(cached, 1, run, gap) - run_time) / gap_time, 1.0, 1.5, "gap with a cache");
}

#[test]
fn the_write_cache_answers_at_once_and_a_flush_waits_for_the_medium() {
    const WRITES: u64 = 400;
    let mut rng = Rng::seeded(2);
    let mut disk = Rotating::new(HDD_7200, 1);
    let mut done = Vec::new();
    for id in 0..WRITES {
        let offset = rng.below(HDD_7200.capacity / 4096) * 4096;
        disk.admit(0, Command { id, op: Op::Write, offset, len: 4096 });
    }
    disk.advance(10_000_000, &mut done);
    assert_eq!(done.len() as u64, WRITES, "answered over the link");
    // Reads go before the cache.
    disk.admit(10_000_000, Command { id: 1000, op: Op::Flush, offset: 0, len: 0 });
    disk.admit(10_000_000, Command { id: 1001, op: Op::Read, offset: 1 << 40, len: 4096 });
    // A write behind the flush need not be on the medium for it.
    disk.admit(10_000_000, Command { id: 1002, op: Op::Write, offset: 1 << 30, len: 4096 });
    done.clear();
    while let Some(at_ns) = disk.next_event() {
        disk.advance(at_ns, &mut done);
    }
    let at = |id| done.iter().find(|done| done.id == id).expect("completed").at_ns as f64 / 1e6;
    assert!(at(1001) < 60.0, "a read waits for one write: {} ms", at(1001));
    assert!(at(1002) < 20.0, "a write is answered: {} ms", at(1002));
    let each = (at(1000) - 10.0) / WRITES as f64;
    // Ideal order among 400 writes is far better than order of arrival (12 ms).
    assert!((2.0..4.5).contains(&each), "{each} ms a write");
    assert_eq!(disk.stats().completed, WRITES + 3);
}

#[test]
fn a_full_cache_takes_writes_at_the_rate_of_the_medium() {
    let params = RotatingParams { cache_bytes: 1 << 20, ..HDD_7200 };
    let each = run_ns(params, 8, 64 << 10, 0);
    let run_time = f64::from(64 << 10) / 0.15;
    assert!((0.8..1.1).contains(&(each / run_time)), "{each} ns");
}

#[test]
fn starved_commands_and_flushes_go_first() {
    let mut disk = Rotating::new(RotatingParams { skill: 1.0, ..HDD_7200 }, 1);
    let mut done = Vec::new();
    let far = HDD_7200.capacity - 4096;
    let read = |id, offset| Command { id, op: Op::Read, offset, len: 4096 };
    disk.admit(0, read(0, 0));
    disk.admit(0, read(1, far));
    disk.admit(0, Command { id: 2, op: Op::Write, offset: 1 << 30, len: 4096 });
    disk.admit(0, Command { id: 3, op: Op::Flush, offset: 0, len: 0 });
    let (mut next, mut ended) = (4, [0; 4]);
    while ended.contains(&0) && next < 10_000 {
        // Two reads near the head are always in the drive.
        let now_ns = disk.next_event().expect("reads are in flight");
        disk.advance(now_ns, &mut done);
        for completion in done.drain(..) {
            if let Some(end) = ended.get_mut(completion.id as usize) {
                *end = completion.at_ns;
            }
            disk.admit(now_ns, read(next, (next * 3 % 1000) << 20));
            next += 1;
        }
    }
    for id in [1, 3] {
        let ms = ended[id] as f64 / 1e6;
        assert!((1000.0..1100.0).contains(&ms), "command {id} took {ms} ms");
    }
}
