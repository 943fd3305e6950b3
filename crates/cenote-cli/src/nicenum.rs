//! Numbers for people, rounded and cut as OpenZFS's `nicenum` does, because scripts parse them.
//!
//! A number takes at most five characters: as many decimals as fit, none for exact multiples of a
//! unit.

use cenote_pool::status::TxgRanges;

/// Formats a size in steps of 1024, without "B" on plain bytes (see [`bytes_b`]).
pub fn bytes(value: u64) -> String {
    scaled(value, &["", "K", "M", "G", "T", "P", "E"])
}

/// Formats a size like [`bytes`], with a "B" on values below one kibibyte.
pub fn bytes_b(value: u64) -> String {
    scaled(value, &["B", "K", "M", "G", "T", "P", "E"])
}

fn scaled(value: u64, units: &[&str]) -> String {
    let index = (0..units.len() - 1).find(|i| value >> (10 * (i + 1)) == 0);
    let index = index.unwrap_or(units.len() - 1);
    let unit = units[index];
    let shift = 10 * index as u32;
    let whole = value >> shift;
    if index == 0 || value & ((1 << shift) - 1) == 0 {
        return format!("{whole}{unit}");
    }
    let scaled = value as f64 / (1u64 << shift) as f64;
    for precision in [2, 1, 0] {
        let text = format!("{scaled:.precision$}{unit}");
        if text.len() <= 5 {
            return text;
        }
    }
    format!("{whole}{unit}")
}

/// Formats nanoseconds as `zpool iostat -l` does: whole units, a dash for zero.
pub fn time(ns: u64) -> String {
    const UNITS: [(&str, u64); 4] =
        [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000), ("ns", 1)];
    let unit = UNITS.iter().find(|(_, scale)| ns >= *scale);
    unit.map_or_else(|| "-".to_owned(), |(unit, scale)| format!("{}{unit}", ns / scale))
}

/// Formats a set of txgs with inclusive ends: `12-40, 52`.
pub(crate) fn txgs(ranges: &TxgRanges) -> String {
    let texts: Vec<_> = ranges
        .iter()
        .map(|(start, end)| match end - start {
            1 => start.to_string(),
            _ if end == u64::MAX => format!("from {start} on"),
            _ => format!("{start}-{}", end - 1),
        })
        .collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_keep_five_characters() {
        for (value, want) in [
            (0, "0"),
            (512, "512"),
            (1023, "1023"),
            (1024, "1K"),
            (1536, "1.50K"),
            (117_440_512, "112M"),
            (161_280, "158K"),
            (1_048_575, "1024K"),
            (58_615_398, "55.9M"),
            (10_737_418_240, "10G"),
            (u64::MAX, "16.0E"),
        ] {
            assert_eq!(bytes(value), want, "{value}");
        }
        assert_eq!(bytes_b(24), "24B");
    }

    #[test]
    fn times_are_whole() {
        for (ns, want) in [
            (0, "-"),
            (1, "1ns"),
            (999, "999ns"),
            (1_000, "1us"),
            (2_999_999, "2ms"),
            ((1 << 37) - 1, "137s"),
        ] {
            assert_eq!(time(ns), want, "{ns}");
        }
    }
}
