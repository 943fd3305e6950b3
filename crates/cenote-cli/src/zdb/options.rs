//! The command line of `zdb`.
//!
//! Letters count: `-dddd` is `-d` four times, and every `-v` adds one to each letter given. Without
//! an output letter all of them are on, one step more than when given alone.

use std::path::PathBuf;

use crate::environment;
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit};
use crate::nicenum;

/// The short options, in getopt's form.
const SHORT: &str = "AbBcCdDeEFGhiI:k:K:lLmMNo:Op:PqrRsSt:TuU:vVx:XYyZ";
/// Letters that request output; without any of them everything is shown.
const OUTPUT: &str = "bBcCdDEhilmMOrRsSTuyZ";
/// Letters that are on by default.
const DEFAULT: &str = "bcCdDGhimMsTu";

const LONG: &[Long] = &[
    Long::flag("ignore-assertions", 'A'),
    Long::flag("block-stats", 'b'),
    Long::flag("backup", 'B'),
    Long::flag("checksum", 'c'),
    Long::flag("config", 'C'),
    Long::flag("datasets", 'd'),
    Long::flag("dedup-stats", 'D'),
    Long::flag("exported", 'e'),
    Long::flag("embedded-block-pointer", 'E'),
    Long::flag("automatic-rewind", 'F'),
    Long::flag("dump-debug-msg", 'G'),
    Long::flag("history", 'h'),
    Long::flag("intent-logs", 'i'),
    Long::with_argument("inflight", 'I'),
    Long::flag("checkpointed-state", 'k'),
    Long::with_argument("key", 'K'),
    Long::flag("label", 'l'),
    Long::flag("disable-leak-tracking", 'L'),
    Long::flag("metaslabs", 'm'),
    Long::flag("metaslab-groups", 'M'),
    Long::flag("numeric", 'N'),
    Long::with_argument("option", 'o'),
    Long::flag("object-lookups", 'O'),
    Long::with_argument("path", 'p'),
    Long::flag("parseable", 'P'),
    Long::flag("skip-label", 'q'),
    Long::flag("copy-object", 'r'),
    Long::flag("read-block", 'R'),
    Long::flag("io-stats", 's'),
    Long::flag("simulate-dedup", 'S'),
    Long::with_argument("txg", 't'),
    Long::flag("brt-stats", 'T'),
    Long::flag("uberblock", 'u'),
    Long::with_argument("cachefile", 'U'),
    Long::flag("verbose", 'v'),
    Long::flag("verbatim", 'V'),
    Long::with_argument("dump-blocks", 'x'),
    Long::flag("extreme-rewind", 'X'),
    Long::flag("all-reconstruction", 'Y'),
    Long::flag("livelist", 'y'),
    Long::flag("zstd-headers", 'Z'),
];

/// Options whose output cenote does not have. They are refused, so that missing output is not taken
/// for an empty answer.
const REFUSED: &str = "BDST";

/// The kernel module's cache file.
const KERNEL_CACHE_FILE: &str = "/etc/zfs/zpool.cache";

/// The parsed command line.
#[derive(Debug, Clone, Default)]
pub struct Options {
    counts: std::collections::BTreeMap<char, usize>,
    /// Whether no output letter was given.
    pub is_default: bool,
    /// `-v`.
    pub verbose: usize,
    /// `-p`: where to search for devices.
    pub paths: Vec<PathBuf>,
    /// `-U`: the cache file.
    pub cache_file: Option<PathBuf>,
    /// `-t`: the last txg to show.
    pub txg: Option<u64>,
    /// `-K`: the key, as text.
    pub key: Option<String>,
    /// The operands: pool or dataset first.
    pub operands: Vec<String>,
    /// Whether the first one is a dataset although it is the name of a pool.
    pub names_dataset: bool,
}

impl Options {
    /// Parses the arguments. [`Exit::Usage`] names the error.
    pub fn parse(args: &[String]) -> CommandResult<Self> {
        let parsed = getopt::parse(args, &SHORT.replace("k:", "k"), LONG)?;
        let verbose = parsed.count('v');
        let is_default = !parsed.options.iter().any(|(letter, _)| OUTPUT.contains(*letter));
        let verbose_or_one = if is_default { verbose.max(1) } else { verbose };
        let mut counts = std::collections::BTreeMap::new();
        for (letter, value) in &parsed.options {
            if value.is_none() && *letter != 'v' {
                *counts.entry(*letter).or_insert(0) += 1;
            }
        }
        if is_default {
            counts.extend(DEFAULT.chars().map(|letter| (letter, 1)));
        }
        for count in counts.values_mut() {
            *count += verbose_or_one;
        }
        let options = Self {
            counts,
            is_default,
            verbose,
            paths: parsed.values('p').map(PathBuf::from).collect(),
            cache_file: parsed.value('U').map(PathBuf::from),
            txg: txg(&parsed)?,
            key: parsed.value('K').map(str::to_owned),
            names_dataset: has_slash(&parsed.operands),
            operands: without_slash(&parsed.operands),
        };
        options.check(&parsed)?;
        Ok(options)
    }

    fn check(&self, parsed: &Parsed) -> CommandResult {
        if !self.paths.is_empty() && !self.has('e') {
            return Err(Exit::usage("-p option requires use of -e"));
        }
        if let Some(path) = &self.cache_file
            && !path.is_absolute()
        {
            return Err(Exit::usage(
                "cachefile must be an absolute path (i.e. start with a slash)",
            ));
        }
        let refused = parsed.options.iter().find(|(letter, _)| REFUSED.contains(*letter));
        if let Some((letter, _)) = refused {
            return Err(Exit::failed(format!("zdb: -{letter} is not supported by cenote")));
        }
        for setting in parsed.values('o') {
            let number = setting.split_once('=').map(|(_, value)| number(value));
            if !matches!(number, Some(Some(_))) {
                return Err(Exit::usage(String::new()));
            }
        }
        Ok(())
    }

    /// Returns the level of a letter; 0 if it is off.
    #[must_use]
    pub fn count(&self, letter: char) -> usize {
        self.counts.get(&letter).copied().unwrap_or(0)
    }

    /// Returns the cache files that name pools when `-e` is not given: the daemon's before the
    /// kernel's.
    pub(super) fn cache_files(&self) -> Vec<PathBuf> {
        if let Some(file) = &self.cache_file {
            return vec![file.clone()];
        }
        let daemon = environment::state_folder().map(|state| environment::cache_file(&state));
        daemon.into_iter().chain([KERNEL_CACHE_FILE.into()]).collect()
    }

    /// Whether a letter was given, or is on by default.
    #[must_use]
    pub fn has(&self, letter: char) -> bool {
        self.count(letter) != 0
    }

    /// Formats bytes as a short size, or as digits with `-P`.
    #[must_use]
    pub fn size(&self, bytes: u64) -> String {
        if self.has('P') { bytes.to_string() } else { nicenum::bytes(bytes) }
    }

    /// Returns the pool: the first operand up to the first of `/`, `@`, `#`.
    #[must_use]
    pub fn pool_name(&self) -> Option<&str> {
        let target = self.operands.first()?;
        Some(target.split(['/', '@', '#']).next().unwrap_or(target))
    }
}

fn txg(parsed: &Parsed) -> CommandResult<Option<u64>> {
    let Some(text) = parsed.value('t') else { return Ok(None) };
    match number(text).filter(|txg| *txg >= TXG_INITIAL) {
        Some(txg) => Ok(Some(txg)),
        None => Err(Exit::usage(format!("incorrect txg specified: {text}"))),
    }
}

/// The first txg that a pool can have on disk.
const TXG_INITIAL: u64 = 4;

/// Parses a number as C's `strtoull` does with base 0: decimal, `0x` hexadecimal, `0` octal.
#[must_use]
pub(super) fn number(text: &str) -> Option<u64> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return u64::from_str_radix(digits, 16).ok();
    }
    match text.strip_prefix('0') {
        Some(digits) if !digits.is_empty() => u64::from_str_radix(digits, 8).ok(),
        _ => text.parse().ok(),
    }
}

/// Whether the first operand ends with a slash: as in OpenZFS, `zdb -d POOL/` is of the pool's own
/// dataset alone.
fn has_slash(operands: &[String]) -> bool {
    operands.first().is_some_and(|first| first.ends_with('/') && !first.starts_with('/'))
}

/// Returns the operands without that slash.
fn without_slash(operands: &[String]) -> Vec<String> {
    let mut operands = operands.to_vec();
    if has_slash(&operands)
        && let Some(first) = operands.first_mut()
    {
        first.pop();
    }
    operands
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Options {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&args).expect("valid")
    }

    #[test]
    fn letters_count_and_v_adds_to_each() {
        let options = parse("-e -p /d -dddd -Pv pool/fs@s 1 2");
        assert_eq!((options.count('d'), options.count('h')), (5, 0));
        assert_eq!(options.pool_name(), Some("pool"));
        assert_eq!(options.operands.len(), 3);
        let slash = |text: &str| without_slash(&[text.to_owned()]).remove(0);
        assert_eq!(["t/", "t/a/", "t", "/"].map(slash), ["t", "t/a", "t", "/"]);
        assert!(parse("-d t/").names_dataset && !parse("-d t").names_dataset);
        assert_eq!(options.size(4096), "4096");
    }

    #[test]
    fn unsupported_options_are_refused() {
        for letter in REFUSED.chars() {
            let args = [format!("-e{letter}"), "pool".to_owned()];
            assert!(matches!(Options::parse(&args), Err(Exit::Failed(_))), "-{letter}");
        }
    }

    #[test]
    fn without_options_everything_is_shown_at_level_two() {
        let options = parse("-e pool");
        assert_eq!((options.count('d'), options.count('C'), options.count('k')), (2, 2, 0));
    }

    #[test]
    fn numbers_have_three_bases() {
        for (text, want) in [("10", Some(10)), ("0x10", Some(16)), ("010", Some(8)), ("x", None)] {
            assert_eq!(number(text), want, "{text}");
        }
    }
}
