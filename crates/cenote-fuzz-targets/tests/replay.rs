//! Replays the fuzz targets' seeds with the stable compiler, and seeded mutations of them.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cenote_fuzz_targets::TARGETS;
use cenote_testkit::{place, rng};

/// The seeds of a target, with their names.
fn seeds(name: &str) -> Vec<(String, Vec<u8>)> {
    let folder = place::checkout().join("fuzz/seeds").join(name);
    let entries = std::fs::read_dir(&folder).expect("every target has seeds");
    let mut seeds: Vec<_> = entries
        .map(|entry| {
            let path = entry.expect("folder entry").path();
            (path.display().to_string(), std::fs::read(&path).expect("seed"))
        })
        .collect();
    seeds.sort();
    seeds
}

/// Mutates bytes in one of the most effective ways: bits, words, lengths, ends, pieces.
fn mutated(rng: &mut rng::Rng, seed: &[u8]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..=rng.below(4) {
        let len = bytes.len() as u64;
        if len == 0 {
            return (0..rng.below(64)).map(|_| rng.next_u64() as u8).collect();
        }
        let at = rng.below(len) as usize;
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = [0, 1, 0x7f, 0x80, 0xff][rng.below(5) as usize],
            2 => bytes.truncate(at),
            3 => {
                let word = [0, 1, u64::MAX, 1 << 63, rng.next_u64(), rng.below(1 << 16)];
                let word = word[rng.below(6) as usize].to_le_bytes();
                let start = at / 8 * 8;
                let end = bytes.len().min(start + 8);
                bytes[start..end].copy_from_slice(&word[..end - start]);
            }
            4 => {
                let piece = bytes[at..bytes.len().min(at + 64)].to_vec();
                bytes.extend(piece);
            }
            _ => {
                let other = rng.below(len) as usize;
                bytes.swap(at, other);
            }
        }
    }
    bytes
}

#[test]
fn no_decoder_panics_on_seeds_or_on_mutations_of_them() {
    let cases = rng::cases(2_000, 100_000);
    let mut failures = BTreeSet::new();
    for (name, target) in TARGETS {
        let mut rng = rng::seeded(name, 0x5eed);
        let seeds = seeds(name);
        assert!(!seeds.is_empty(), "{name} has no seeds");
        let mut run = |what: &str, bytes: &[u8]| {
            if catch_unwind(AssertUnwindSafe(|| target(bytes))).is_err() {
                let start = &bytes[..bytes.len().min(64)];
                failures.insert(*name);
                println!("{name}: panicked on {what}, {} bytes: {start:02x?}", bytes.len());
            }
        };
        for (path, bytes) in &seeds {
            run(path, bytes);
        }
        for case in 0..cases {
            let (path, bytes) = &seeds[(case % seeds.len() as u64) as usize];
            // Big seeds get fewer mutations, to limit the time.
            if case * (bytes.len() as u64) < cases * 2_048 {
                run(&format!("case {case}, a mutation of {path}"), &mutated(&mut rng, bytes));
            }
        }
    }
    assert!(failures.is_empty(), "{failures:?}");
}
