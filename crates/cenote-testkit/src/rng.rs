//! Seeded randomness for tests: the seed is always printed, and can be given.
//!
//! `CENOTE_SEED=N` (decimal or 0x hexadecimal) repeats a run; without it each test has its own
//! constant seed, so that a plain `cargo test` is repeatable. `CENOTE_TEST_ALL=1` asks for the
//! long form of tests that have one ([`cases`]).

pub use cenote_rt::Rng;

/// The generator for `CENOTE_SEED`, else for `seed`. Prints the seed, so that a failing test shows
/// it.
pub fn seeded(test: &str, seed: u64) -> Rng {
    let seed = number("CENOTE_SEED").unwrap_or(seed);
    println!("{test}: CENOTE_SEED={seed:#x}");
    Rng::seeded(seed)
}

/// True when the long form of the tests is wanted (`./x test --all`).
pub fn wants_all() -> bool {
    std::env::var_os("CENOTE_TEST_ALL").is_some_and(|value| value != "0")
}

/// How many cases to run: `few` normally, `all` under `./x test --all`, or `CENOTE_CASES`.
pub fn cases(few: u64, all: u64) -> u64 {
    number("CENOTE_CASES").unwrap_or(if wants_all() { all } else { few })
}

/// The number in an environment variable, decimal or 0x hexadecimal.
pub fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().map(|text| parse(&text))
}

fn parse(text: &str) -> u64 {
    let parsed = match text.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => text.parse(),
    };
    parsed.unwrap_or_else(|error| panic!("{text:?} is not a number: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_decimal_or_hexadecimal() {
        for (text, want) in [("7", 7), ("0x7", 7), ("0xffffffffffffffff", u64::MAX)] {
            assert_eq!(parse(text), want, "{text}");
        }
    }
}
