//! Usage texts of `zfs` and `zpool`: OpenZFS's own text, since scripts search it.
//!
//! The lists in `usage/*.txt` are what the commands print without arguments. The synopsis of a verb
//! is cut out of the list, so there is one copy of every line.

use std::fmt::Write as _;

/// A tool that has OpenZFS's usage texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tool {
    /// `zfs`
    Zfs,
    /// `zpool`
    Zpool,
}

impl Tool {
    /// All tools.
    pub(crate) const ALL: [Self; 2] = [Self::Zfs, Self::Zpool];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Zfs => "zfs",
            Self::Zpool => "zpool",
        }
    }

    fn list(self) -> &'static str {
        match self {
            Self::Zfs => include_str!("usage/zfs.txt"),
            Self::Zpool => include_str!("usage/zpool.txt"),
        }
    }

    fn properties(self) -> &'static str {
        match self {
            Self::Zfs => include_str!("usage/zfs-properties.txt"),
            Self::Zpool => include_str!("usage/zpool-properties.txt"),
        }
    }

    fn shows_properties(self, verb: &str) -> bool {
        match self {
            Self::Zfs => matches!(verb, "get" | "set" | "list" | "inherit"),
            Self::Zpool => matches!(verb, "get" | "set" | "list"),
        }
    }

    /// Whether the tool has the verb.
    pub fn has_verb(self, verb: &str) -> bool {
        self.list().lines().any(|line| starts_verb(line) == Some(verb))
    }

    /// Returns its verbs, in the order of the list.
    pub fn verbs(self) -> Vec<&'static str> {
        let mut verbs: Vec<_> = self.list().lines().filter_map(starts_verb).collect();
        verbs.dedup();
        verbs
    }

    /// Returns the names in its list of properties.
    pub(crate) fn property_names(self) -> impl Iterator<Item = &'static str> {
        self.property_lines().map(|words| words[0])
    }

    /// Returns the names of properties that can be set, now or when a dataset is created.
    pub(crate) fn settable_names(self) -> impl Iterator<Item = &'static str> {
        let lines = self.property_lines();
        lines
            .filter(|words| words[1..].iter().take(2).any(|word| *word == "YES"))
            .map(|words| words[0])
    }

    /// Returns the lines of its list of properties, as words that begin with the name.
    fn property_lines(self) -> impl Iterator<Item = Vec<&'static str>> {
        let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "_@".contains(c);
        self.properties().lines().filter_map(move |line| {
            let mut words: Vec<_> = line.split_whitespace().collect();
            let name = words.first_mut()?;
            *name = name.trim_end_matches("...");
            let is_name = name.starts_with(|c: char| c.is_ascii_lowercase());
            (is_name && name.chars().all(is_letter)).then_some(words)
        })
    }

    /// Returns the properties that have named values, with these.
    pub(crate) fn property_values(self) -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
        self.properties().lines().filter_map(|line| {
            let name = line.split_whitespace().next()?;
            let flags = [" YES ", " NO "].into_iter().filter_map(|flag| line.rfind(flag)).max()?;
            let (_, values) = line[flags + 1..].trim_start().split_once(' ')?;
            let is_name = |value: &&str| value.starts_with(|c: char| c.is_ascii_alphanumeric());
            let values = values.split(" | ").map(str::trim).filter(is_name);
            let is_plain = |value: &&str| !value.contains(['[', '<', '>', ' ', ',']);
            let values: Vec<_> = values.filter(is_plain).collect();
            (!values.is_empty()).then_some((name, values))
        })
    }

    /// Returns the list of properties, if the verb takes their names.
    pub(crate) fn properties_of(self, verb: &str) -> Option<&'static str> {
        self.shows_properties(verb).then(|| self.properties())
    }

    /// Returns the lines of the list that describe one verb.
    pub fn synopsis(self, verb: &str) -> String {
        let mut text = String::new();
        let mut inside = false;
        for line in self.list().lines() {
            match starts_verb(line) {
                Some(name) => inside = name == verb,
                None => inside &= line.starts_with("\t    "),
            }
            if inside {
                text.push_str(line);
                text.push('\n');
            }
        }
        text
    }

    /// Returns the usage text of one verb.
    pub fn verb_usage(self, verb: &str) -> String {
        let mut text = format!("usage:\n{}", self.synopsis(verb));
        if self.shows_properties(verb) {
            text.push('\n');
            text.push_str(self.properties());
        } else if self == Self::Zfs {
            text.push_str(ZFS_TRAILER);
        }
        text
    }

    /// Returns the usage text of the tool: every verb.
    pub fn usage(self) -> String {
        let name = self.name();
        let mut text = format!("usage: {name} command args ...\n");
        let _ = write!(text, "where 'command' is one of the following:\n\n{}", self.list());
        match self {
            Self::Zfs => {
                text.push_str("\nEach dataset is of the form: pool/[dataset/]*dataset[@name]\n");
                text.push_str(ZFS_TRAILER);
            }
            Self::Zpool => {
                text.push_str(
                    "\nFor further help on a command or topic, run: zpool help [<topic>]\n",
                );
            }
        }
        text
    }
}

const ZFS_TRAILER: &str = "\nFor the property list, run: zfs set|get\n\n\
    For the delegated permission list, run: zfs allow|unallow\n\n\
    For further help on a command or topic, run: zfs help [<topic>]\n";

/// Returns the verb whose synopsis starts on this line; continuation lines are indented further.
fn starts_verb(line: &str) -> Option<&str> {
    let text = line.strip_prefix('\t')?;
    if text.starts_with(' ') { None } else { text.split(' ').next() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verb_has_its_lines_and_no_others() {
        assert_eq!(
            Tool::Zpool.verb_usage("split"),
            "usage:\n\tsplit [-gLnPl] [-R altroot] [-o mntopts]\n\
             \t    [-o property=value] <pool> <newpool> [<device> ...]\n"
        );
        assert!(Tool::Zfs.verb_usage("list").contains("\nThe following properties are supported:"));
        assert!(!Tool::Zfs.has_verb("nosuch"));
    }
}
