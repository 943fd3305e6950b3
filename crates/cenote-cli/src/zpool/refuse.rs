//! The verbs that cenote does not implement: arguments are checked, then refused.
//!
//! Wrong arguments are reported first, with OpenZFS's message and status; a call that OpenZFS would
//! carry out ends with a refusal that says why, and status 1.

use super::block_on;
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::Source;

/// The arguments of a verb.
struct Verb {
    name: &'static str,
    options: &'static str,
    /// Messages for each missing operand, in order.
    missing: &'static [&'static str],
    /// Index of the operand that must be an existing pool.
    pool: Option<usize>,
    /// The action in the message "cannot ACTION 'x'".
    action: &'static str,
}

const fn verb(
    name: &'static str,
    options: &'static str,
    missing: &'static [&'static str],
    pool: Option<usize>,
    action: &'static str,
) -> Verb {
    Verb { name, options, missing, pool, action }
}

const NAME: &str = "missing pool name argument";

#[rustfmt::skip]
const VERBS: &[Verb] = &[
    verb("prefetch", "t:", &[NAME], Some(0), "prefetch for"),
    verb("upgrade", ":avV:", &[], Some(0), "upgrade"),
    verb("ddtprune", "d:p:", &[NAME], Some(0), "prune"),
];

/// The message for a correct use of an unimplemented verb.
const NOT_YET: &str = "not supported by this version of cenote";

/// Checks the arguments of one verb, then refuses.
pub(super) fn run(name: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        return Err(Exit::failed(format!(
            "cannot {name}: not supported by this version of cenote"
        )));
    };
    let longs = [
        Long::flag("power", 'p'),
        Long::flag("discard", 'd'),
        Long::flag("wait", 'w'),
        Long::flag("rewind", 'F'),
        Long::flag("secure", 's'),
        Long::with_argument("rate", 'r'),
    ];
    let parsed = getopt::parse(args, verb.options, &longs)?;
    let goes_without = parsed.has('a');
    if let Some(message) = verb.missing.get(parsed.operands.len()).filter(|_| !goes_without) {
        return Err(Exit::usage(*message));
    }
    if name == "upgrade" && parsed.operands.is_empty() && !parsed.has('a') {
        return upgrade(&parsed, io);
    }
    block_on(check(verb, source, &parsed))
}

/// Validates the arguments, then returns "not supported".
async fn check(verb: &Verb, source: &Source, parsed: &Parsed) -> CommandResult {
    let operands = &parsed.operands;
    let Some(index) = verb.pool else {
        let subject = operands.first().map_or_else(String::new, |name| format!(" '{name}'"));
        return Err(Exit::failed(format!("cannot {}{subject}: {}", verb.action, NOT_YET)));
    };
    let Some(name) = operands.get(index) else {
        return Err(Exit::failed(format!("cannot {} pools: {}", verb.action, NOT_YET)));
    };
    if source.has_pools() {
        source.pool(name).await?;
    } else {
        return Err(Exit::failed(super::no_such_pool(name)));
    }
    Err(Exit::failed(format!("cannot {} '{name}': {}", verb.action, NOT_YET)))
}

/// `upgrade [-v]`: the output that needs no pool.
fn upgrade(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    out!(io, "This system supports ZFS pool feature flags.\n")?;
    if !parsed.has('v') {
        out!(io, "All pools are formatted using feature flags.\n")?;
        let text = "Every feature flags pool has all supported and requested features enabled.";
        return out!(io, "{text}");
    }
    out!(io, "The following features are supported:\n")?;
    out!(io, "FEAT DESCRIPTION")?;
    out!(io, "-------------------------------------------------------------")?;
    for feature in cenote_pool::features::FEATURES {
        let note = if feature.is_read_only_compatible() { " (read-only compatible)" } else { "" };
        out!(io, "{:<37}{note}", feature.name)?;
        out!(io, "     {}", feature.description)?;
    }
    out!(io, "\nThe following legacy versions are also supported:\n")?;
    out!(io, "VER  DESCRIPTION")?;
    out!(io, "---  --------------------------------------------------------")?;
    for (number, text) in (1..).zip(VERSIONS) {
        out!(io, " {number:<3} {text}")?;
    }
    let text = "For more information on a particular version, including supported releases,\n\
                see the ZFS Administration Guide.\n";
    out!(io, "\n{text}")
}

/// Versions from before feature flags.
const VERSIONS: [&str; 28] = [
    "Initial ZFS version",
    "Ditto blocks (replicated metadata)",
    "Hot spares and double parity RAID-Z",
    "zpool history",
    "Compression using the gzip algorithm",
    "bootfs pool property",
    "Separate intent log devices",
    "Delegated administration",
    "refquota and refreservation properties",
    "Cache devices",
    "Improved scrub performance",
    "Snapshot properties",
    "snapused property",
    "passthrough-x aclinherit",
    "user/group space accounting",
    "stmf property support",
    "Triple-parity RAID-Z",
    "Snapshot user holds",
    "Log device removal",
    "Compression using zle (zero-length encoding)",
    "Deduplication",
    "Received properties",
    "Slim ZIL",
    "System attributes",
    "Improved scrub stats",
    "Improved snapshot deletion performance",
    "Improved snapshot creation performance",
    "Multiple vdev replacements",
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Tool;

    #[test]
    fn every_verb_is_one_of_the_usage_text() {
        for verb in VERBS {
            assert!(Tool::Zpool.has_verb(verb.name), "{}", verb.name);
        }
    }
}
