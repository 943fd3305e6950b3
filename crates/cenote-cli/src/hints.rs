//! Suggestions for a person who mistyped a name: "did you mean 'status'?".
//!
//! ```text
//!   command ──> Listener ──> standard error
//!                  └─> its first lines ──> unknown name ──> nearest known name ──> suggestion
//! ```
//!
//! Messages are OpenZFS's, and programs compare them to their last byte. So a suggestion is a line
//! of its own, after the messages, and only if hints are wanted: by default if standard error is a
//! terminal ([`environment::wants_hints`]). The unknown name is taken from the message, so that no
//! command has to know about suggestions, and messages stay as they are.

use std::io::Write;

use cenote_pool::props::{PropValue, dataset_property};
use cenote_pool::{Dataset, DatasetKind};

use crate::host::Session;
use crate::io::Exit;
use crate::program;
use crate::source::{self, dataset_of};
use crate::usage::Tool;
use crate::{environment, nicenum, zpool};

/// Bytes of messages that are searched for unknown names.
const HEARD_MAX: usize = 4 << 10;
/// Children or snapshots that an unknown name is compared with.
const CANDIDATES_MAX: usize = 10_000;

/// Message of `zfs destroy` about snapshots of which none exists.
pub(crate) const NO_SNAPSHOTS: &str =
    "could not find any snapshots to destroy; check snapshot names.";

/// Writer that passes messages on, and keeps the first of them.
pub(crate) struct Listener<'w> {
    to: &'w mut (dyn Write + Send),
    heard: Vec<u8>,
}

impl<'w> Listener<'w> {
    /// Returns a listener before the command's standard error.
    pub(crate) fn new(to: &'w mut (dyn Write + Send)) -> Self {
        Self { to, heard: Vec::new() }
    }

    /// Writes a suggestion for each unknown name in the messages that has a known one near it.
    pub(crate) fn suggest(self, args: &[String], session: Option<&Session>) {
        let text = String::from_utf8_lossy(&self.heard).into_owned();
        let unknown = text.lines().filter_map(|message| unknown(message, args));
        for name in unknown.filter_map(|name| name.nearest(args, session)) {
            // Without a reader of the messages there is nobody to tell.
            let _ = writeln!(self.to, "did you mean '{name}'?");
        }
    }
}

/// Returns what a person may have overlooked in a command that has succeeded: a value of
/// `special_small_blocks` that makes all records of a file system small.
pub(crate) fn note(args: &[String], session: &Session) -> Option<String> {
    const PROPERTIES: [&str; 2] = ["special_small_blocks=", "recordsize="];
    let is_about = |word: &String| PROPERTIES.iter().any(|property| word.starts_with(property));
    let [tool, verb, words @ ..] = args else { return None };
    if tool != "zfs" || !["set", "create"].contains(&verb.as_str()) || !words.iter().any(is_about) {
        return None;
    }
    let mut names = words.iter().filter(|word| !word.contains('=') && !word.starts_with('-'));
    names.find_map(|name| note_special(name, session))
}

fn note_special(name: &str, session: &Session) -> Option<String> {
    let engine = session.pool(name.split('/').next()?).ok()?;
    let found = source::run(async {
        let props = dataset_of(&engine.view().await?, name).await?.props().await?;
        let value = |property| Some(props.chain().native(dataset_property(property)?).0);
        let is_files = props.kind() == DatasetKind::Filesystem;
        Ok::<_, Exit>((is_files, value("special_small_blocks"), value("recordsize")))
    });
    let (true, Some(PropValue::Number(small)), Some(PropValue::Number(record))) = found.ok()?
    else {
        return None;
    };
    (record <= small).then(|| {
        let [small, record] = [small, record].map(nicenum::bytes);
        format!(
            "note: special_small_blocks is {small}, and records of '{name}' have {record}: \
             special vdevs take all of its data\n"
        )
    })
}

impl Write for Listener<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let room = HEARD_MAX.saturating_sub(self.heard.len());
        self.heard.extend(bytes.iter().take(room));
        self.to.write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.to.flush()
    }
}

/// A name that a message calls unknown.
#[derive(Debug, PartialEq, Eq)]
enum Unknown<'m> {
    Command(&'m str),
    Property(&'m str),
    Dataset(&'m str),
    Pool(&'m str),
}

/// Returns the text between `start`, which ends with a quotation mark, and the next such mark.
fn quoted_after<'m>(message: &'m str, start: &str) -> Option<&'m str> {
    let (_, rest) = message.split_once(start)?;
    rest.split_once('\'').map(|(name, _)| name)
}

/// Returns the name that a message of a command with these arguments calls unknown.
fn unknown<'m>(message: &'m str, args: &'m [String]) -> Option<Unknown<'m>> {
    if message == NO_SNAPSHOTS {
        // The only message without the name.
        let is_name = |word: &&String| word.contains('@') && !word.contains(['%', ',']);
        return args.iter().rfind(is_name).map(|word| Unknown::Dataset(word));
    }
    if let Some(name) = quoted_after(message, "unrecognized command '") {
        return Some(Unknown::Command(name));
    }
    if let Some(name) = quoted_after(message, "invalid property '") {
        return Some(Unknown::Property(name));
    }
    if let Some(pool) = quoted_after(message, ": no such pool '") {
        return Some(Unknown::Pool(pool));
    }
    let (_, rest) = message.strip_prefix("cannot ")?.split_once(" '")?;
    match rest.split_once("': ")? {
        (name, "dataset does not exist" | "no such pool or dataset") => {
            Some(Unknown::Dataset(name))
        }
        (name, "no such pool") => Some(Unknown::Pool(name)),
        _ => None,
    }
}

impl Unknown<'_> {
    /// Returns the known name that is nearest to this one.
    fn nearest(&self, args: &[String], session: Option<&Session>) -> Option<String> {
        let tool = || {
            Tool::ALL.into_iter().find(|tool| args.first().is_some_and(|word| word == tool.name()))
        };
        match self {
            Self::Command(name) => match tool() {
                Some(tool) => nearest(name, tool.verbs()),
                None => nearest(name, program::commands()),
            },
            Self::Property(name) => nearest(name, tool()?.property_names()),
            Self::Pool(name) => nearest(name, pool_names(session?)),
            Self::Dataset(name) => nearest_dataset(name, session?),
        }
    }
}

fn pool_names(session: &Session) -> Vec<String> {
    session.host.pools().iter().map(|engine| engine.name()).collect()
}

/// Returns an existing dataset whose name differs from this one in one part.
fn nearest_dataset(name: &str, session: &Session) -> Option<String> {
    let pool = name.split(['/', '@']).next().unwrap_or_default();
    let Ok(engine) = session.pool(pool) else {
        let nearest = nearest(pool, pool_names(session))?;
        return Some(format!("{nearest}{}", &name[pool.len()..]));
    };
    if zpool::is_impaired(&engine) {
        return None;
    }
    let found = source::run(async {
        let view = engine.view().await?;
        let (head, snapshot) = match name.split_once('@') {
            Some((head, snapshot)) => (head, Some(snapshot)),
            None => (name, None),
        };
        // The longest part of the name that exists.
        let mut known = dataset_of(&view, pool).await?;
        let mut parts = head.split('/').skip(1);
        for part in parts.by_ref() {
            let next = format!("{}/{part}", known.name());
            match dataset_of(&view, &next).await {
                Ok(dataset) => known = dataset,
                Err(_) => return nearest_child(&known, part, parts.next(), snapshot).await,
            }
        }
        let Some(snapshot) = snapshot else { return Ok(None) };
        let names = known.snapshots().await?;
        let short = |dataset: &Dataset| dataset.name().split_once('@').map(|(_, s)| s.to_owned());
        let nearest = nearest(snapshot, names.iter().take(CANDIDATES_MAX).filter_map(short));
        Ok::<_, Exit>(nearest.map(|nearest| format!("{}@{nearest}", known.name())))
    });
    found.ok().flatten()
}

/// Returns the child of `parent` whose name is nearest to `part`, which is followed by other parts
/// or by a snapshot's name only if that dataset exists, too.
async fn nearest_child(
    parent: &Dataset,
    part: &str,
    rest: Option<&str>,
    snapshot: Option<&str>,
) -> Result<Option<String>, Exit> {
    if rest.is_some() {
        return Ok(None);
    }
    let children = parent.children().await?;
    let last = |child: &Dataset| child.name().rsplit('/').next().map(str::to_owned);
    let Some(nearest) = nearest(part, children.iter().take(CANDIDATES_MAX).filter_map(last)) else {
        return Ok(None);
    };
    let name = format!("{}/{nearest}", parent.name());
    let Some(snapshot) = snapshot else { return Ok(Some(name)) };
    let full = format!("{name}@{snapshot}");
    let child = children.iter().find(|child| child.name() == name);
    let Some(child) = child else { return Ok(None) };
    let exists = child.snapshots().await?.iter().any(|dataset| dataset.name() == full);
    Ok(exists.then_some(full))
}

/// Returns the candidate that the fewest typing mistakes (a letter too many, missing, wrong, or two
/// exchanged) turn into `name`: at most one for each three letters.
fn nearest<S: AsRef<str>>(name: &str, candidates: impl IntoIterator<Item = S>) -> Option<String> {
    let most = name.chars().count().div_ceil(3);
    let distances = candidates.into_iter().map(|candidate| {
        let distance = strsim::osa_distance(name, candidate.as_ref());
        (distance, candidate)
    });
    let (_, best) = distances
        .filter(|(distance, _)| (1..=most).contains(distance))
        .min_by_key(|(distance, _)| *distance)?;
    Some(best.as_ref().to_owned())
}

/// Returns the usage text of a verb; for a person, only the synopsis and where the rest is.
pub(crate) fn usage_of(tool: Tool, verb: &str) -> String {
    if !environment::wants_hints() {
        return tool.verb_usage(verb);
    }
    let name = tool.name();
    format!("usage:\n{}run '{name} help {verb}' for more\n", tool.synopsis(verb))
}

/// Returns the text after "unrecognized command": the list of commands, or for a person where it
/// is.
pub(crate) fn usage_of_tool(tool: Tool) -> String {
    if environment::wants_hints() {
        return format!("run '{} help' for the list of commands\n", tool.name());
    }
    tool.usage()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_are_taken_from_messages() {
        for (message, wanted) in [
            ("unrecognized command 'lsit'", Some(Unknown::Command("lsit"))),
            ("bad property list: invalid property 'usde'", Some(Unknown::Property("usde"))),
            ("cannot open 'tank/hom': dataset does not exist", Some(Unknown::Dataset("tank/hom"))),
            ("cannot hold 'tank@a': dataset does not exist", Some(Unknown::Dataset("tank@a"))),
            ("cannot open 'tnak': no such pool", Some(Unknown::Pool("tnak"))),
            ("cannot create 'tnak/a': no such pool 'tnak'", Some(Unknown::Pool("tnak"))),
            ("cannot open 'tank': pool I/O is currently suspended", None),
            ("cannot destroy 'tank': it's busy", None),
            ("", None),
        ] {
            assert_eq!(unknown(message, &[]), wanted, "{message}");
        }
        let args = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let one = args("zfs destroy tank@mondy");
        assert_eq!(unknown(NO_SNAPSHOTS, &one), Some(Unknown::Dataset("tank@mondy")));
        assert_eq!(unknown(NO_SNAPSHOTS, &args("zfs destroy tank@a%b")), None);
    }

    #[test]
    fn the_nearest_name_has_few_mistakes() {
        let verbs = ["list", "set", "get", "status", "snapshot", "send"];
        for (name, wanted) in [
            ("lsit", Some("list")),
            ("sned", Some("send")),
            ("statsu", Some("status")),
            ("snapshoot", Some("snapshot")),
            ("gt", Some("get")),
            ("list", None),
            ("frobnicate", None),
            ("x", None),
        ] {
            assert_eq!(nearest(name, verbs).as_deref(), wanted, "{name}");
        }
    }
}
