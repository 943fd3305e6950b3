//! Names of what is received, made of the command line and of the sender's names (spec 07 B9.1).

use cenote_pool::{DatasetName, Suffix};

/// What of the sender's name is appended to the argument.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Naming {
    /// Everything behind the name that was given to `zfs send`.
    BelowSent,
    /// Everything behind the name of the sender's pool (`-d`).
    BelowPool,
    /// Everything from the last part of the name that was given to `zfs send` (`-e`).
    LastPart,
}

/// A snapshot at the sender.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sent<'a> {
    /// Full name of the snapshot.
    pub(super) snapshot: &'a str,
    /// Full name of the dataset that was given to `zfs send`: the snapshot's, or one above it.
    pub(super) top: &'a str,
    /// Whether other datasets are in the stream.
    pub(super) is_recursive: bool,
}

impl Sent<'_> {
    /// Whether the snapshot belongs to the dataset that was given to `zfs send`.
    pub(super) fn is_top(&self) -> bool {
        self.snapshot.split('@').next() == Some(self.top)
    }
}

/// A name is invalid; with OpenZFS's words about it.
pub(super) type BadName = &'static str;

impl Naming {
    /// Returns the full name of the snapshot to be received.
    pub(super) fn name(self, argument: &str, sent: Sent<'_>) -> Result<String, BadName> {
        const INVALID: BadName = "invalid name";
        let below_top = sent.snapshot.strip_prefix(sent.top);
        let below_top = below_top.filter(|rest| rest.starts_with(['/', '@']));
        let below_top = below_top.ok_or("invalid stream (bad snapshot name)")?;
        let is_snapshot = argument.contains('@');
        let tail = match self {
            Self::LastPart if is_snapshot => {
                return Err("invalid argument - snapshot not allowed with -e");
            }
            Self::BelowPool if is_snapshot => {
                return Err("invalid argument - snapshot not allowed with -d");
            }
            Self::LastPart => {
                let last = sent.top.rsplit('/').next().unwrap_or_default();
                format!("/{last}{below_top}")
            }
            Self::BelowPool => {
                let end = sent.snapshot.find(['/', '@']).unwrap_or(sent.snapshot.len());
                sent.snapshot.get(end..).unwrap_or_default().to_owned()
            }
            Self::BelowSent if !is_snapshot => below_top.to_owned(),
            Self::BelowSent if sent.is_recursive => {
                return Err("cannot specify snapshot name for multi-snapshot stream");
            }
            Self::BelowSent => String::new(),
        };
        let name = format!("{argument}{tail}");
        let parsed = DatasetName::parse(&name).map_err(|_| INVALID)?;
        // Names with '%' are those of a pool's own temporary datasets.
        let is_internal = name.contains('%');
        match parsed.suffix {
            Suffix::Snapshot(_) if !is_internal => Ok(name),
            _ => Err(INVALID),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_made_of_argument_and_sent_name() {
        let cases = [
            (Naming::BelowSent, "u/a", "t/a@one", "t/a", Ok("u/a@one")),
            (Naming::BelowSent, "u/a", "t/a/kid@one", "t/a", Ok("u/a/kid@one")),
            (Naming::BelowSent, "u/a@x", "t/a@one", "t/a", Ok("u/a@x")),
            (Naming::BelowSent, "u/a/", "t/a@one", "t/a", Err("invalid name")),
            (Naming::BelowSent, "u/9@@", "t/a@one", "t/a", Err("invalid name")),
            (Naming::BelowSent, "u", "t@one", "t", Ok("u@one")),
            (Naming::BelowPool, "u", "t/a/kid@one", "t/a", Ok("u/a/kid@one")),
            (Naming::BelowPool, "u/b", "t@one", "t", Ok("u/b@one")),
            (Naming::LastPart, "u", "t/x/a@one", "t/x/a", Ok("u/a@one")),
            (Naming::LastPart, "u", "t/x/a/kid@one", "t/x/a", Ok("u/a/kid@one")),
            (Naming::LastPart, "u", "t@one", "t", Ok("u/t@one")),
            (Naming::LastPart, "u", "t/a@one", "t", Ok("u/t/a@one")),
            // Of a hostile sender.
            (Naming::BelowSent, "u", "t/ab@one", "t/a", Err("invalid stream (bad snapshot name)")),
            (Naming::BelowSent, "u", "q@one", "t/a", Err("invalid stream (bad snapshot name)")),
            (Naming::BelowSent, "u", "t/../v@one", "t", Err("invalid name")),
            (Naming::BelowPool, "u", "t/%recv@one", "t", Err("invalid name")),
        ];
        for (naming, argument, snapshot, top, expected) in cases {
            let sent = Sent { snapshot, top, is_recursive: false };
            let name = naming.name(argument, sent);
            assert_eq!(name.as_deref(), expected.as_deref(), "{naming:?} {argument} {snapshot}");
        }
        let sent = Sent { snapshot: "t/a@one", top: "t/a", is_recursive: true };
        for (naming, argument) in
            [(Naming::BelowSent, "u@x"), (Naming::BelowPool, "u@x"), (Naming::LastPart, "u@x")]
        {
            assert!(naming.name(argument, sent).is_err(), "{naming:?}");
        }
    }
}
