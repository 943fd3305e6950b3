//! The verbs that cenote does not implement: arguments are checked, then refused. Also checks of
//! names.
//!
//! Wrong arguments are reported first, with OpenZFS's message and status; a call that OpenZFS would
//! carry out ends with a refusal that says why, and status 1.

use std::fmt::Write as _;

use cenote_ondisk::master_node::VERSION_MAX;
use cenote_pool::props::{Access, DATASET_PROPERTIES, PropValue, property_named};
use cenote_pool::{Dataset, DatasetName, Suffix};

use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source::{Source, dataset_if_any};
use crate::zfs::change::below;
use crate::zpool::block_on;

/// Refuses to share a file system over a network, which cenote would not do.
pub(crate) fn sharing(property: &str, value: &str) -> Result<(), String> {
    match property {
        "sharenfs" | "sharesmb" if value != "off" => Err(format!(
            "'{property}' is not supported by this version of cenote, which shares nothing; \
             export the mount point with the tools of the host"
        )),
        _ => Ok(()),
    }
}

/// The arguments of a verb.
struct Verb {
    name: &'static str,
    options: &'static str,
    /// Number of required operands, and the message when they are missing.
    needs: (usize, &'static str),
    /// Index of the operand that must be an existing dataset; `None` if it is to be created.
    existing: Option<usize>,
    /// The action in the message "cannot ACTION 'x'".
    action: &'static str,
}

const fn verb(
    name: &'static str,
    options: &'static str,
    needs: (usize, &'static str),
    existing: Option<usize>,
    action: &'static str,
) -> Verb {
    Verb { name, options, needs, existing, action }
}

/// The message for a correct use of an unimplemented verb.
const NOT_YET: &str = "not supported by this version of cenote";

#[rustfmt::skip]
const VERBS: &[Verb] = &[
    verb("program", "nt:m:j", (2, "invalid number of arguments"), None, "run a program on"),
    verb("upgrade", "rvV:a", (0, ""), Some(0), "upgrade"),
    verb("project", "0cCdkp:rs", (1, "missing file or directory target(s)"), None, "set project of"),
    verb("mount", ":ajRlvo:Of", (1, "missing filesystem argument"), Some(0), "mount"),
    verb("unmount", "afu", (1, "missing filesystem argument"), None, "unmount"),
    verb("share", "al", (1, "missing filesystem argument (specify -a for all)"), Some(0), "share"),
    verb("unshare", "a", (1, "missing filesystem argument"), None, "unshare"),
    verb("wait", "t:", (1, "missing filesystem argument"), Some(0), "wait for"),
    verb("zone", "", (2, "missing argument(s)"), Some(1), "zone"),
    verb("unzone", "", (2, "missing argument(s)"), Some(1), "unzone"),
];

/// Checks the arguments of one verb, then refuses.
pub(super) fn run(name: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        return Err(not_supported(name));
    };
    // These verbs check the number of arguments before anything else.
    if matches!(name, "zone" | "unzone") && args.len() < verb.needs.0 {
        return Err(Exit::usage(verb.needs.1));
    }
    let parsed = getopt::parse(args, verb.options, &[])?;
    if parsed.operands.len() < verb.needs.0 && !parsed.has('a') {
        return Err(Exit::usage(verb.needs.1));
    }
    match name {
        "upgrade" if parsed.operands.is_empty() && !parsed.has('a') => upgrade(&parsed, io),
        "upgrade" if !parsed.has('a') => block_on(upgrade_named(source, &parsed, io)),
        _ => block_on(check(verb, source, &parsed)),
    }
}

/// Says that file systems have the newest version; older ones are not upgraded.
async fn upgrade_named(source: &Source, parsed: &getopt::Parsed, io: &mut Io<'_>) -> CommandResult {
    let mut count = 0;
    for name in &parsed.operands {
        let top = existing(source, name).await?;
        let mut all = vec![top.clone()];
        if parsed.has('r') {
            below(&top, &mut all).await?;
        }
        for dataset in all {
            let version = dataset.props().await?.get("version").await?;
            match version.map(|row| row.value) {
                Some(PropValue::Number(version)) if version < VERSION_MAX => {
                    return Err(Exit::failed(format!("cannot upgrade '{name}': {NOT_YET}")));
                }
                Some(PropValue::Number(_)) => count += 1,
                _ => {}
            }
        }
    }
    out!(io, "0 filesystems upgraded")?;
    if count > 0 {
        out!(io, "{count} filesystems already at this version")?;
    }
    Ok(())
}

fn not_supported(verb: &str) -> Exit {
    Exit::failed(format!("cannot {verb}: not supported by this version of cenote"))
}

/// Validates the arguments, then returns "not supported".
async fn check(verb: &Verb, source: &Source, parsed: &Parsed) -> CommandResult {
    let operands = &parsed.operands;
    let Some(name) = verb.existing.and_then(|index| operands.get(index)) else {
        let subject = operands.first().map_or_else(String::new, |name| format!(" '{name}'"));
        return Err(Exit::failed(format!("cannot {}{subject}: {}", verb.action, NOT_YET)));
    };
    existing(source, name).await?;
    Err(Exit::failed(format!("cannot {} '{name}': {NOT_YET}", verb.action)))
}

/// Opens the dataset of that name, which must exist.
pub(super) async fn existing(source: &Source, name: &str) -> Result<Dataset, Exit> {
    if source.has_pools() {
        return source.dataset(name).await;
    }
    Err(Exit::failed(format!("cannot open '{name}': dataset does not exist")))
}

/// Checks a name for a new dataset.
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
    let pool = if source.has_pools() { source.pool(parsed.pool).await.ok() } else { None };
    let Some(pool) = pool else { return cannot(format!("no such pool '{}'", parsed.pool)) };
    if dataset_if_any(&pool, name).await?.is_some() {
        return cannot("dataset already exists".to_owned());
    }
    let parent = name.rsplit_once('/').map_or(name, |(parent, _)| parent);
    match dataset_if_any(&pool, parent).await? {
        Some(_) => Ok(()),
        None => cannot("parent does not exist".to_owned()),
    }
}

/// `inherit`: checks that the property can be inherited.
pub(super) fn check_inheritable(name: &str) -> CommandResult {
    match property_named(DATASET_PROPERTIES, name) {
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

/// `upgrade [-v]`: the output that needs no dataset.
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
    fn inherit_refuses_properties_that_are_not_inherited() {
        assert_eq!(check_inheritable("used"), Err(Exit::failed("used property is read-only")));
        assert_eq!(check_inheritable("compression"), Ok(()));
        assert_eq!(check_inheritable("a:b"), Ok(()));
        assert_eq!(check_inheritable("x"), Err(Exit::usage("invalid property 'x'")));
    }
}
