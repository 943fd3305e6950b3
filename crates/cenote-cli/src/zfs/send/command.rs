//! The arguments of `zfs send`.

use std::collections::BTreeSet;

use cenote_pool::{DatasetName, Suffix};
use cenote_stream::send::SendOptions;

use crate::err;
use crate::getopt::Parsed;
use crate::io::{Exit, Io};

const NO_DEDUP: &str = "WARNING: deduplicated send is no longer supported.  A regular,\n\
                        non-deduplicated stream will be generated.\n";
const NO_TYPE: &str = "Warning: incremental source didn't specify type, assuming snapshot. Use '@' \
                       or '#' prefix to avoid ambiguity.";

/// The kind of stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Task {
    /// One snapshot or head.
    One,
    /// Several snapshots (`-I`), or a file system with everything below it (`-R`).
    Package,
    /// The rest of an interrupted stream (`-t`).
    Resume,
    /// What an interrupted receive has received (`-S`).
    Saved,
}

/// The arguments of `zfs send`.
#[derive(Debug)]
pub(super) struct Command {
    parsed: Parsed,
    pub(super) task: Task,
    /// Snapshot or head; empty with `-t`.
    pub(super) target: String,
    /// Source of the increment: a whole name with [`Task::One`], as it was given with
    /// [`Task::Package`].
    pub(super) from: Option<String>,
    pub(super) options: SendOptions,
    /// Datasets that are left out with everything below them (`-X`).
    pub(super) excluded: BTreeSet<String>,
}

impl Command {
    /// Checks the options in OpenZFS's order.
    pub(super) fn check(parsed: Parsed, io: &mut Io<'_>) -> Result<Self, Exit> {
        if parsed.has('D') {
            err!(io, "{NO_DEDUP}")?;
        }
        let excluded = excluded(&parsed)?;
        if parsed.count('i') + parsed.count('I') > 1 {
            return Err(Exit::usage("only one incremental source can be given"));
        }
        if parsed.has('X') && !parsed.has('R') {
            let text = "Cannot specify dataset exclusion (-X) on a non-recursive send.";
            return Err(Exit::failed(text));
        }
        let task = if parsed.has('t') {
            Task::Resume
        } else if parsed.has('S') {
            Task::Saved
        } else if parsed.has('R') || parsed.has('I') {
            Task::Package
        } else {
            Task::One
        };
        let is_with_token = ['i', 'I', 'R', 'p', 'b', 'h', 'S', 'd'];
        if task == Task::Resume && is_with_token.iter().any(|letter| parsed.has(*letter)) {
            return Err(Exit::usage("invalid flags combined with -t"));
        }
        let target = match (&parsed.operands[..], task) {
            ([], Task::Resume) => String::new(),
            ([], _) => return Err(Exit::usage("missing snapshot argument")),
            ([target], Task::One | Task::Package | Task::Saved) => target.clone(),
            _ => return Err(Exit::usage("too many arguments")),
        };
        if task == Task::Saved {
            let is_with_saved = ['i', 'I', 'R', 'p', 'b', 'h', 'L', 'e', 'c', 'w', 'd'];
            if is_with_saved.iter().any(|letter| parsed.has(*letter)) {
                return Err(Exit::usage("incompatible flags combined with saved send flag"));
            }
            if target.contains('@') {
                let text = "saved send must specify the dataset with partially-received state";
                return Err(Exit::usage(text));
            }
        }
        if parsed.has('s') && !parsed.has('R') {
            let text = "skip-missing flag can only be used in conjunction with replicate";
            return Err(Exit::usage(text));
        }
        let options = SendOptions {
            large_blocks: parsed.has('L'),
            embedded: parsed.has('e'),
            compressed: parsed.has('c'),
            raw: parsed.has('w'),
        };
        let command = Self { parsed, task, target, from: None, options, excluded };
        command.check_target()?;
        command.with_source(io)
    }

    fn check_target(&self) -> Result<(), Exit> {
        if self.redaction().is_some() && self.options.raw {
            return Err(Exit::failed("Error: raw sends may not be redacted."));
        }
        let has_more = self.task == Task::Package || self.has_header();
        if has_more && !self.target.contains('@') {
            return Err(Exit::failed("Error: Unsupported flag with filesystem or bookmark."));
        }
        if self.redaction().is_some() && self.task == Task::Package {
            return Err(Exit::failed("Error: multiple snapshots cannot be sent redacted."));
        }
        Ok(())
    }

    /// Adds the source of the increment.
    fn with_source(mut self, io: &mut Io<'_>) -> Result<Self, Exit> {
        let given = self.parsed.value('i').or(self.parsed.value('I')).map(str::to_owned);
        let Some(mut name) = given else { return Ok(self) };
        if self.task == Task::Package {
            if name.contains('#') {
                let text = "Error: multiple snapshots cannot be sent from a bookmark.";
                return Err(Exit::failed(text));
            }
            return Ok(Self { from: Some(name), ..self });
        }
        if !name.contains(['@', '#']) {
            err!(io, "{NO_TYPE}")?;
            name.insert(0, '@');
        }
        if name.starts_with(['@', '#']) {
            name.insert_str(0, self.head());
        }
        self.from = Some(name);
        Ok(self)
    }

    /// The target's file system or volume.
    pub(super) fn head(&self) -> &str {
        self.target.split('@').next().unwrap_or_default()
    }

    pub(super) fn token(&self) -> &str {
        self.parsed.value('t').unwrap_or_default()
    }

    /// Short name of the bookmark of the target whose blocks are left out (`--redact`).
    pub(super) fn redaction(&self) -> Option<&str> {
        let name = self.parsed.value('d')?;
        Some(name.split_once('#').map_or(name, |(_, short)| short))
    }

    /// Nothing is sent (`-n`).
    pub(super) fn is_dry(&self) -> bool {
        self.parsed.has('n')
    }

    /// The length of the stream is estimated (`-v` or `-P`).
    pub(super) fn has_estimate(&self) -> bool {
        self.parsed.has('v') || self.is_parsable()
    }

    /// The progress is reported (`-v`).
    pub(super) fn has_progress(&self) -> bool {
        self.parsed.has('v')
    }

    /// Fields have tabs between them, and numbers all digits (`-P`).
    pub(super) fn is_parsable(&self) -> bool {
        self.parsed.has('P')
    }

    /// Everything below the file system is sent, too (`-R`).
    pub(super) fn is_recursive(&self) -> bool {
        self.parsed.has('R')
    }

    /// All snapshots between source and target are sent: with `-I`, and with `-R` if no source is
    /// given.
    pub(super) fn has_all_snapshots(&self) -> bool {
        self.parsed.has('I') || (self.is_recursive() && self.from.is_none())
    }

    /// The stream begins with a header of a package that has properties.
    pub(super) fn has_header(&self) -> bool {
        let has = |letter| self.parsed.has(letter);
        // `-b` alone has no effect on the snapshots of `-I`.
        has('R') || has('p') || has('h') || (has('b') && self.task == Task::One)
    }

    /// The header has the values that were received instead of the effective ones (`-b`).
    pub(super) fn has_received_values(&self) -> bool {
        self.parsed.has('b')
    }

    /// The header has the holds of the snapshots (`-h`).
    pub(super) fn has_holds(&self) -> bool {
        self.parsed.has('h')
    }

    /// The header has properties of file systems, not only of snapshots.
    pub(super) fn has_properties(&self) -> bool {
        ['R', 'p', 'b'].iter().any(|letter| self.parsed.has(*letter))
    }

    /// Datasets without the snapshot are left out (`-s`).
    pub(super) fn skips_missing(&self) -> bool {
        self.parsed.has('s')
    }

    /// Whether a dataset is left out (`-X`): it, or one that it is in.
    pub(super) fn is_excluded(&self, dataset: &str) -> bool {
        let mut at = Some(dataset);
        while let Some(name) = at {
            if self.excluded.contains(name) {
                return true;
            }
            at = name.rsplit_once('/').map(|(parent, _)| parent);
        }
        false
    }
}

/// Returns the names of all options `-X`.
fn excluded(parsed: &Parsed) -> Result<BTreeSet<String>, Exit> {
    let names = parsed.values('X').flat_map(|value| value.split(','));
    let check = |name: &str| match DatasetName::parse(name) {
        Ok(found) if found.suffix == Suffix::None && name.contains('/') => Ok(name.to_owned()),
        _ => Err(Exit::usage(format!("-X {name}: not a valid non-root dataset name."))),
    };
    names.map(check).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::getopt;

    fn check(line: &str) -> Result<Command, Exit> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let parsed = getopt::parse(&args, super::super::OPTIONS, &super::super::LONGS)?;
        let (mut out, mut err) = (Vec::new(), Vec::new());
        Command::check(parsed, &mut Io { out: &mut out, err: &mut err })
    }

    fn refusal(line: &str) -> String {
        check(line).map(|command| command.target).unwrap_err().message()
    }

    #[test]
    fn combinations_that_openzfs_refuses_are_refused() {
        for (line, message) in [
            ("-t 1-2-3-4 p@s", "too many arguments"),
            ("-t 1-2-3-4 -R", "invalid flags combined with -t"),
            ("-t 1-2-3-4 -i @a", "invalid flags combined with -t"),
            ("-R -i #b p@s", "Error: multiple snapshots cannot be sent from a bookmark."),
            ("-I #b p@s", "Error: multiple snapshots cannot be sent from a bookmark."),
            ("-R -X p p@s", "-X p: not a valid non-root dataset name."),
            ("-R -X p/a,p/b@s p@s", "-X p/b@s: not a valid non-root dataset name."),
            ("-X p/a p@s", "Cannot specify dataset exclusion (-X) on a non-recursive send."),
            ("-R p/a", "Error: Unsupported flag with filesystem or bookmark."),
            ("-p p/a", "Error: Unsupported flag with filesystem or bookmark."),
            ("-R --redact b p@s", "Error: multiple snapshots cannot be sent redacted."),
            ("-w --redact b p@s", "Error: raw sends may not be redacted."),
            ("-S -c p", "incompatible flags combined with saved send flag"),
            ("-S p@s", "saved send must specify the dataset with partially-received state"),
            ("-i @a -I @b p@s", "only one incremental source can be given"),
        ] {
            assert_eq!(refusal(line), message, "{line}");
        }
    }

    #[test]
    fn excluded_are_datasets_and_everything_below_them() {
        let command = check("-R -X p/a,p/b -X p/c/d p@s").unwrap();
        for name in ["p/a", "p/a/x/y", "p/b", "p/c/d", "p/c/d/e"] {
            assert!(command.is_excluded(name), "{name}");
        }
        for name in ["p", "p/c", "p/ab", "p/c/de"] {
            assert!(!command.is_excluded(name), "{name}");
        }
    }

    #[test]
    fn sources_have_the_form_that_their_task_needs() {
        let from = |line: &str| check(line).unwrap().from;
        assert_eq!(from("-i @a p/x@s").as_deref(), Some("p/x@a"));
        assert_eq!(from("-i #a p/x@s").as_deref(), Some("p/x#a"));
        assert_eq!(from("-i a p/x@s").as_deref(), Some("p/x@a"));
        assert_eq!(from("-I a p/x@s").as_deref(), Some("a"));
        assert_eq!(from("-R -i @a p/x@s").as_deref(), Some("@a"));
        assert!(check("-R p@s").unwrap().has_all_snapshots());
        assert!(!check("-R -i @a p@s").unwrap().has_all_snapshots());
        assert!(check("-b p@s").unwrap().has_header());
        assert!(!check("-b -I @a p@s").unwrap().has_header());
    }
}
