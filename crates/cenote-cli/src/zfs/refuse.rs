//! The verbs that change datasets, or need more than reading: arguments checked, then refused.
//!
//! What is wrong with the arguments is told first, in OpenZFS's words and with its status; a call
//! that OpenZFS would carry out ends with a refusal that says why, and status 1.

use std::fmt::Write as _;

use cenote_pool::props::{Access, DATASET_PROPERTIES};
use cenote_pool::{Dataset, DatasetName, Suffix};

use super::columns;
use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::{Source, dataset_of};
use crate::zpool::block_on;

/// What is known of a verb.
struct Verb {
    name: &'static str,
    options: &'static str,
    /// Operands that it needs, and what is said when they are missing.
    needs: (usize, &'static str),
    /// Which operand is the dataset that must be there; none if it is to be made.
    existing: Option<usize>,
    /// What it does, as in "cannot ... 'x'".
    deed: &'static str,
}

const fn verb(
    name: &'static str,
    options: &'static str,
    needs: (usize, &'static str),
    existing: Option<usize>,
    deed: &'static str,
) -> Verb {
    Verb { name, options, needs, existing, deed }
}

const MISSING: &str = "missing dataset argument";

#[rustfmt::skip]
const VERBS: &[Verb] = &[
    verb("program", "nt:m:j", (2, "invalid number of arguments"), None, "run a program on"),
    verb("upgrade", "rvV:a", (0, ""), Some(0), "upgrade"),
    verb("project", "0cCdkp:rs", (1, "missing file or directory target(s)"), None, "set project of"),
    verb("mount", ":ajRlvo:Of", (1, "missing filesystem argument"), Some(0), "mount"),
    verb("unmount", "afu", (1, "missing filesystem argument"), None, "unmount"),
    verb("share", "al", (1, "missing filesystem argument (specify -a for all)"), Some(0), "share"),
    verb("unshare", "a", (1, "missing filesystem argument"), None, "unshare"),
    verb("send", ":i:I:RDpVvnPLeht:cwbd:Ss", (1, "missing snapshot argument"), Some(0), "send"),
    verb("receive", ":o:x:dehMnuvFsAc", (1, "missing snapshot argument"), None, "receive"),
    verb("allow", "ldugecsh", (1, "missing dataset argument"), None, "allow on"),
    verb("unallow", "ldugecsrh", (1, "missing dataset argument"), None, "unallow on"),
    verb("diff", "FHth", (1, "must provide at least one snapshot name"), None, "diff"),
    verb("load-key", "anrL:", (1, "Missing dataset argument or -a option"), Some(0), "load key for"),
    verb("unload-key", "ar", (1, "Missing dataset argument or -a option"), Some(0), "unload key for"),
    verb("change-key", "lio:", (1, "Missing dataset argument"), Some(0), "change key for"),
    verb("redact", "", (3, "too few arguments"), Some(0), "redact"),
    verb("wait", "t:", (1, "missing filesystem argument"), Some(0), "wait for"),
    verb("zone", "", (2, "missing argument(s)"), Some(1), "zone"),
    verb("unzone", "", (2, "missing argument(s)"), Some(1), "unzone"),
];

/// Long options of `create` and `send` that are letters as well.
const LONGS: [Long; 17] = [
    Long::flag("replicate", 'R'),
    Long::flag("props", 'p'),
    Long::flag("parsable", 'P'),
    Long::flag("dedup", 'D'),
    Long::flag("proctitle", 'V'),
    Long::flag("verbose", 'v'),
    Long::flag("dryrun", 'n'),
    Long::flag("large-block", 'L'),
    Long::flag("embed", 'e'),
    Long::with_argument("resume", 't'),
    Long::flag("compressed", 'c'),
    Long::flag("raw", 'w'),
    Long::flag("backup", 'b'),
    Long::flag("holds", 'h'),
    Long::flag("saved", 'S'),
    Long::with_argument("redact", 'd'),
    Long::flag("skip-missing", 's'),
];

/// Runs one verb as far as it goes.
pub(super) fn run(name: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        return Err(not_supported(name));
    };
    // These look at the number of arguments before anything else.
    if matches!(name, "zone" | "unzone" | "redact") && args.len() < verb.needs.0 {
        return Err(Exit::usage(verb.needs.1));
    }
    let longs: &[Long] = if matches!(name, "create" | "send") { &LONGS } else { &[] };
    let parsed = getopt::parse(args, verb.options, longs)?;
    let goes_without = parsed.has('a') || (name == "send" && parsed.has('t'));
    if parsed.operands.len() < verb.needs.0 && !goes_without {
        return Err(Exit::usage(missing(verb, &parsed)));
    }
    match name {
        "upgrade" if parsed.operands.is_empty() && !parsed.has('a') => upgrade(&parsed, io),
        _ => block_on(check(verb, source, &parsed)),
    }
}

fn not_supported(verb: &str) -> Exit {
    Exit::failed(format!("cannot {verb}: not supported by this version of cenote"))
}

/// What is said when operands are missing; some verbs look at how many there are.
fn missing(verb: &Verb, parsed: &Parsed) -> &'static str {
    match (verb.name, parsed.operands.len()) {
        ("create", _) if parsed.has('V') => "missing volume argument",
        ("clone" | "rename", 1) => "missing target dataset argument",
        ("bookmark", 1) => "missing bookmark argument",
        ("set", 0) => "missing property=value argument(s)",
        ("set", _) => "missing dataset name(s)",
        ("inherit", 0) => "missing property argument",
        ("receive", _) if parsed.has('A') => "missing dataset argument",
        _ => verb.needs.1,
    }
}

/// Looks whether the arguments name what is there, then refuses.
async fn check(verb: &Verb, source: &Source, parsed: &Parsed) -> CommandResult {
    let operands = &parsed.operands;
    match verb.name {
        "create" => check_new_name(source, &operands[0]).await?,
        "set" => check_properties(source, operands).await?,
        "inherit" => check_inheritable(&operands[0])?,
        "snapshot" => check_snapshots(source, operands).await?,
        "receive" if parsed.has('A') => {
            let name = &operands[0];
            existing(source, name).await?;
            let text = "does not have any resumable receive state to abort";
            return Err(Exit::failed(format!("'{name}' {text}")));
        }
        _ => {}
    }
    let Some(name) = verb.existing.and_then(|index| operands.get(index)) else {
        let subject = operands.first().map_or_else(String::new, |name| format!(" '{name}'"));
        return Err(Exit::failed(format!("cannot {}{subject}: {}", verb.deed, why(verb))));
    };
    let opened = match verb.name {
        // A range or list of snapshots, or a bookmark: the file system must be there.
        "destroy" | "snapshot" | "bookmark" => {
            existing(source, name.split(['@', '#']).next().unwrap_or(name)).await?
        }
        _ => existing(source, name).await?,
    };
    match verb.name {
        "destroy" => check_destroyed(&opened, name).await?,
        "promote" if opened.origin().await?.is_none() => {
            return Err(Exit::failed(format!("cannot promote '{name}': not a cloned filesystem")));
        }
        "release" if opened.holds().await?.iter().all(|hold| hold.tag != operands[0]) => {
            let text = "no such tag on this dataset";
            return Err(Exit::failed(format!("cannot {} '{name}': {text}", verb.deed)));
        }
        "hold" if opened.holds().await?.iter().any(|hold| hold.tag == operands[0]) => {
            let text = "tag already exists on this dataset";
            return Err(Exit::failed(format!("cannot {} '{name}': {text}", verb.deed)));
        }
        "clone" | "rename" => check_new_name(source, &operands[1]).await?,
        _ => {}
    }
    let subject = match verb.name {
        "clone" | "bookmark" => &operands[1],
        _ => name,
    };
    Err(Exit::failed(format!("cannot {} '{subject}': {}", verb.deed, why(verb))))
}

/// Why a verb that is used rightly is refused.
fn why(verb: &Verb) -> &'static str {
    match verb.name {
        "send" | "diff" | "mount" | "unmount" | "share" | "unshare" | "project" | "wait"
        | "program" | "load-key" | "unload-key" | "zone" | "unzone" => {
            "not supported by this version of cenote"
        }
        _ => "pool is read-only",
    }
}

pub(super) async fn existing(source: &Source, name: &str) -> Result<Dataset, Exit> {
    if source.embedded {
        return source.dataset(name).await;
    }
    Err(Exit::failed(format!("cannot open '{name}': dataset does not exist")))
}

/// The checks of a name that is to be given to something new.
pub(super) async fn check_new_name(source: &Source, name: &str) -> CommandResult {
    let cannot = |why: String| Err(Exit::failed(format!("cannot create '{name}': {why}")));
    let parsed = match DatasetName::parse(name) {
        Ok(parsed) => parsed,
        Err(error) => return cannot(error.to_string()),
    };
    match parsed.suffix {
        Suffix::Snapshot(_) => {
            return cannot("snapshot delimiter '@' is not expected here".to_owned());
        }
        Suffix::Bookmark(_) => {
            return cannot("bookmark delimiter '#' is not expected here".to_owned());
        }
        Suffix::None => {}
    }
    let pool = if source.embedded { source.pool(parsed.pool).await.ok() } else { None };
    let Some(pool) = pool else { return cannot(format!("no such pool '{}'", parsed.pool)) };
    if dataset_of(&pool, name).await.is_ok() {
        return cannot("dataset already exists".to_owned());
    }
    let parent = name.rsplit_once('/').map_or(name, |(parent, _)| parent);
    match dataset_of(&pool, parent).await {
        Ok(_) => Ok(()),
        Err(_) => cannot("parent does not exist".to_owned()),
    }
}

/// `set`: properties must be there and settable.
async fn check_properties(source: &Source, operands: &[String]) -> CommandResult {
    const STATUS_OF_SET: i32 = 255;
    let settings = operands.iter().take_while(|operand| operand.contains('=')).count();
    if settings == 0 {
        return Err(Exit::usage("missing property=value argument(s)"));
    }
    let names = &operands[settings..];
    if names.is_empty() {
        return Err(Exit::usage("missing dataset name(s)"));
    }
    for name in names {
        existing(source, name).await?;
        for setting in &operands[..settings] {
            let property = setting.split('=').next().unwrap_or_default();
            let cannot = |why: String| {
                Exit::FailedWith(format!("cannot set property for '{name}': {why}"), STATUS_OF_SET)
            };
            match columns::dataset_column(property) {
                None => return Err(cannot(format!("invalid property '{property}'"))),
                Some(column) if column.property.is_some_and(|p| p.access != Access::ReadWrite) => {
                    return Err(cannot(format!("'{property}' is readonly")));
                }
                Some(_) => {}
            }
        }
    }
    let why = "pool is read-only";
    Err(Exit::FailedWith(format!("cannot set property for '{}': {why}", names[0]), STATUS_OF_SET))
}

/// `inherit`: the property must be one that is inherited.
pub(super) fn check_inheritable(name: &str) -> CommandResult {
    match columns::lookup(DATASET_PROPERTIES, name) {
        Some(property) if property.access == Access::ReadOnly => {
            Err(Exit::failed(format!("{} property is read-only", property.name)))
        }
        Some(property) if !property.is_inheritable => {
            let name = property.name;
            let mut text = format!("'{name}' property cannot be inherited");
            if matches!(name, "quota" | "reservation" | "refquota" | "refreservation") {
                let _ = write!(text, "\nuse 'zfs set {name}=none' to clear");
            }
            Err(Exit::failed(text))
        }
        None if !name.contains(':') => Err(Exit::usage(format!("invalid property '{name}'"))),
        _ => Ok(()),
    }
}

/// `snapshot`: names of snapshots, of datasets that are there.
async fn check_snapshots(source: &Source, names: &[String]) -> CommandResult {
    for name in names {
        let Some((head, _)) = name.split_once('@') else { return Err(Exit::usage("")) };
        let dataset = match existing(source, head).await {
            Err(Exit::Failed(message)) => return Err(Exit::usage(message)),
            found => found?,
        };
        if dataset_of(dataset.pool(), name).await.is_ok() {
            let text = format!("cannot create snapshot '{name}': dataset already exists");
            return Err(Exit::failed(text));
        }
    }
    Ok(())
}

/// `destroy`: the snapshots or the bookmark that are named must be there.
async fn check_destroyed(head: &Dataset, name: &str) -> CommandResult {
    if let Some((_, short)) = name.split_once('#') {
        return match head.bookmark(short).await {
            Ok(_) => Ok(()),
            Err(_) => Err(Exit::failed(format!("bookmark '{name}' does not exist."))),
        };
    }
    let Some((_, list)) = name.split_once('@') else { return Ok(()) };
    let snapshots = head.snapshots().await?;
    let is_there = |short: &str| {
        short.is_empty() || snapshots.iter().any(|s| s.snapshot_name() == Some(short))
    };
    let any = list.split(',').any(|range| match range.split_once('%') {
        Some((first, last)) => is_there(first) && is_there(last) && !snapshots.is_empty(),
        None => !range.is_empty() && is_there(range),
    });
    if any {
        return Ok(());
    }
    Err(Exit::failed("could not find any snapshots to destroy; check snapshot names."))
}

/// `upgrade [-v]`: what there is to know without a dataset.
fn upgrade(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    if parsed.has('v') {
        write!(
            io.out,
            "The following filesystem versions are supported:\n\n\
             VER  DESCRIPTION\n---  --------------------------------------------------------\n \
             1   Initial ZFS filesystem version\n \
             2   Enhanced directory entries\n \
             3   Case insensitive and filesystem user identifier (FUID)\n \
             4   userquota, groupquota properties\n \
             5   System attributes\n\n\
             For more information on a particular version, including supported releases,\n\
             see the ZFS Administration Guide.\n\n"
        )?;
        return Ok(());
    }
    out!(io, "This system is currently running ZFS filesystem version 5.\n")?;
    out!(io, "All filesystems are formatted with the current version.")?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::usage::Tool;

    #[test]
    fn every_verb_is_one_of_the_usage_text() {
        for verb in VERBS {
            assert!(Tool::Zfs.has_verb(verb.name), "{}", verb.name);
        }
    }

    #[test]
    fn what_cannot_be_inherited() {
        assert_eq!(check_inheritable("used"), Err(Exit::failed("used property is read-only")));
        assert_eq!(check_inheritable("compression"), Ok(()));
        assert_eq!(check_inheritable("a:b"), Ok(()));
        assert_eq!(check_inheritable("x"), Err(Exit::usage("invalid property 'x'")));
    }
}
