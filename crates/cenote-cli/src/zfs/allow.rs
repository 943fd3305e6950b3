//! `allow`, `unallow`: delegates permissions on a dataset.
//!
//! ```text
//!   -l -d          local, descendants; neither or both: local and descendants
//!   -u -g -e       users, groups, everyone; none: the word `everyone`, a user, or else a group
//!   -c             create time: granted to the creator of a dataset below
//!   -s @SET        defines a permission set
//! ```
//!
//! The output has OpenZFS's form, including its oddity: of the two titles "Permission sets" and
//! "Create time permissions", the first one printed is always "Permission sets".

use std::fmt::Write as _;

use cenote_engine::GrantChange;
use cenote_ondisk::dsl::deleg::Who;
use cenote_pool::Dataset;
use cenote_pool::dsl::deleg::{Delegation, Grant};
use cenote_pool::props::{Access, DATASET_PROPERTIES, SpaceOwner, property_named};

use super::change::heads;
use super::create::wording;
use super::permits::{self, OTHERS, SUBCOMMANDS};
use super::refuse::existing;
use crate::accounts::system_names;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::usage::Tool;
use crate::writer::{Writer, command_line};
use crate::zpool::block_on;

/// Columns of a title.
const TITLE_WIDTH: usize = 70;
/// Longest name of a set.
const SET_MAX: usize = 64;

/// Runs `allow` or `unallow`.
pub(super) fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let is_removal = verb == "unallow";
    let parsed = getopt::parse(args, if is_removal { "ldugecsrh" } else { "ldugecsh" }, &[])?;
    if parsed.has('h') {
        write!(io.out, "{}", help())?;
        return Ok(());
    }
    let is_plain = !parsed.options.iter().any(|(letter, _)| "ldugecs".contains(*letter));
    if let ([name], false, true) = (&parsed.operands[..], is_removal, is_plain) {
        return block_on(async {
            let text = shown(&existing(source, name).await?.delegations().await?);
            write!(io.out, "{text}")?;
            Ok(())
        });
    }
    let request = Request::parse(&parsed, is_removal)?;
    let line = command_line(Tool::Zfs, verb, args);
    block_on(async {
        let datasets = heads(source, &request.dataset, parsed.has('r')).await?;
        for dataset in &datasets {
            check_right(source, dataset, &request, is_removal).await?;
        }
        let names: Vec<String> = datasets.iter().map(|found| found.name().to_owned()).collect();
        drop(datasets);
        let cannot = |error: cenote_rt::Error| {
            Exit::cannot("set permissions on", &request.dataset, wording(&error))
        };
        let changes = request.changes();
        Writer::run(source, &request.dataset, Some(&line), io, async |engine, _| {
            let done = if is_removal {
                engine.datasets().unallow(names, changes).await
            } else {
                engine.datasets().allow(&request.dataset, changes).await
            };
            done.map_err(cannot)
        })
        .await
    })
}

/// Refuses an untrusted caller without the permission `allow` and the permissions granted. Such a
/// caller cannot grant `allow` or a permission set, and may only take permissions from itself.
async fn check_right(
    source: &Source,
    dataset: &Dataset,
    request: &Request,
    is_removal: bool,
) -> CommandResult {
    let name = dataset.name();
    if source.is_trusted() {
        return Ok(());
    }
    let denied = || Err(Exit::cannot("set permissions on", name, "permission denied"));
    if is_removal {
        let own = source.uid().to_string();
        let is_own = request.whom.iter().all(|(who, id)| *who == 'u' && *id == own);
        if !is_own {
            return denied();
        }
        return permits::need(source, dataset, &["allow"], "set permissions on").await;
    }
    if request.permissions.iter().any(|permission| permission == "allow") {
        return denied();
    }
    let mut needed: Vec<&str> = vec!["allow"];
    needed.extend(request.permissions.iter().map(String::as_str));
    permits::need(source, dataset, &needed, "set permissions on").await
}

/// The grants to add or remove.
#[derive(Debug, PartialEq, Eq)]
struct Request {
    /// Key letters, with user or group ids.
    whom: Vec<(char, String)>,
    /// Letters of the scopes.
    scopes: &'static str,
    /// Permissions; empty for all.
    permissions: Vec<String>,
    dataset: String,
}

impl Request {
    fn parse(parsed: &Parsed, is_removal: bool) -> Result<Self, Exit> {
        let mut operands = parsed.operands.iter();
        let has = |letters: &str| letters.chars().any(|letter| parsed.has(letter));
        let kinds = "uge".chars().filter(|letter| parsed.has(*letter)).count();
        let is_everyone = parsed.has('e') || {
            let first = parsed.operands.first().map(String::as_str);
            !has("ugcs") && first == Some("everyone")
        };
        if parsed.has('s') && has("ldugec") {
            return Err(Exit::usage("invalid options combined with -s"));
        }
        if parsed.has('c') && has("lduge") {
            return Err(Exit::usage("invalid options combined with -c"));
        }
        if kinds > 1 {
            return Err(Exit::usage("-u, -g, and -e are mutually exclusive"));
        }
        let missing = || Exit::usage("missing dataset argument");
        let whom = if parsed.has('s') {
            let set = operands.next().ok_or_else(missing)?;
            if !set.starts_with('@') {
                return Err(Exit::usage("invalid set name: missing '@' prefix"));
            }
            vec![('s', checked(set)?)]
        } else if parsed.has('c') {
            vec![('c', String::new())]
        } else if parsed.has('e') {
            vec![('e', String::new())]
        } else if is_everyone {
            operands.next();
            vec![('e', String::new())]
        } else {
            let list = operands.next().ok_or_else(missing)?;
            list.split(',').map(|name| user_or_group(name, parsed)).collect::<Result<_, _>>()?
        };
        let rest: Vec<&String> = operands.collect();
        let (permissions, dataset) = match &rest[..] {
            [permissions, dataset] => (permissions.as_str(), *dataset),
            [dataset] if is_removal => ("", *dataset),
            [] | [_] => return Err(missing()),
            _ => return Err(Exit::usage("too many arguments")),
        };
        let permissions = permissions.split(',').filter(|name| !name.is_empty());
        let permissions = permissions.map(checked).collect::<Result<_, _>>()?;
        let scopes = match (parsed.has('l'), parsed.has('d')) {
            _ if has("cs") => "-",
            (true, false) => "l",
            (false, true) => "d",
            _ => "ld",
        };
        Ok(Self { whom, scopes, permissions, dataset: dataset.clone() })
    }

    /// Returns the changes of each key; permission sets have keys of their own.
    fn changes(&self) -> Vec<GrantChange> {
        let mut changes = Vec::new();
        for (who, id) in &self.whom {
            for scope in self.scopes.chars() {
                for is_sets in [false, true] {
                    let all = self.permissions.iter();
                    let names: Vec<_> =
                        all.filter(|name| name.starts_with('@') == is_sets).cloned().collect();
                    if names.is_empty() && !self.permissions.is_empty() {
                        continue;
                    }
                    let letter = if is_sets { who.to_ascii_uppercase() } else { *who };
                    changes.push(GrantChange { key: format!("{letter}{scope}${id}"), names });
                }
            }
        }
        changes
    }
}

/// Checks that a permission or set of this name may exist.
fn checked(name: &str) -> Result<String, Exit> {
    if let Some(set) = name.strip_prefix('@') {
        let is_good = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
        if set.is_empty() || name.len() >= SET_MAX || !set.chars().all(is_good) {
            return Err(Exit::failed(format!("invalid permission set name '{name}'")));
        }
        return Ok(name.to_owned());
    }
    let mut commands = SUBCOMMANDS.iter().chain(OTHERS);
    if commands.any(|(known, _)| *known == name) {
        return Ok(name.to_owned());
    }
    match property_named(DATASET_PROPERTIES, name) {
        // By its long name.
        Some(property) if property.access != Access::ReadOnly => {
            return Ok(property.name.to_owned());
        }
        _ => {}
    }
    Err(Exit::failed(format!("invalid permission '{name}'")))
}

/// Returns a user or group by name or number.
fn user_or_group(name: &str, parsed: &Parsed) -> Result<(char, String), Exit> {
    let known = |owner| {
        let names = system_names(owner);
        names.into_iter().find(|(_, known)| known == name).map(|(id, _)| id)
    };
    let number = || name.parse::<u32>().ok().map(u64::from);
    let user = || known(SpaceOwner::User).map(|id| ('u', id));
    let group = || known(SpaceOwner::Group).map(|id| ('g', id));
    let (found, what) = match (parsed.has('u'), parsed.has('g')) {
        (true, _) => (user().or_else(|| Some(('u', number()?))), "user"),
        (_, true) => (group().or_else(|| Some(('g', number()?))), "group"),
        _ => (user().or_else(group).or_else(|| Some(('u', number()?))), "user/group"),
    };
    match found {
        Some((letter, id)) => Ok((letter, id.to_string())),
        None => Err(Exit::usage(format!("invalid {what} {name}"))),
    }
}

/// Formats the output of `zfs allow DATASET`.
fn shown(delegations: &[Delegation]) -> String {
    let mut text = String::new();
    for delegation in delegations {
        let title = format!("---- Permissions on {} ", delegation.dataset);
        let _ = writeln!(text, "{title:-<TITLE_WIDTH$}");
        let mut titles = ["Permission sets:", "Create time permissions:"].iter();
        let mut last = None;
        for grant in &delegation.grants {
            if !matches!(grant.who, Who::Set | Who::Create) {
                continue;
            }
            if last != Some(grant.who) {
                let _ = writeln!(text, "{}", titles.next().unwrap_or(&""));
                last = Some(grant.who);
            }
            let names: Vec<_> = grant.permissions.keys().map(String::as_str).collect();
            let space = if grant.id.is_empty() { "" } else { " " };
            let _ = writeln!(text, "\t{}{space}{}", grant.id, names.join(","));
        }
        for (title, local, descendent) in [
            ("Local permissions:", true, false),
            ("Descendent permissions:", false, true),
            ("Local+Descendent permissions:", true, true),
        ] {
            let mut is_first = true;
            for grant in &delegation.grants {
                let Some(who) = who(grant) else { continue };
                let those = grant
                    .permissions
                    .iter()
                    .filter(|(_, reach)| (reach.local, reach.descendent) == (local, descendent));
                let names: Vec<_> = those.map(|(name, _)| name.as_str()).collect();
                if names.is_empty() {
                    continue;
                }
                if std::mem::take(&mut is_first) {
                    let _ = writeln!(text, "{title}");
                }
                let _ = writeln!(text, "\t{who} {}", names.join(","));
            }
        }
    }
    text
}

/// Returns the grantee; none for sets and create time permissions.
fn who(grant: &Grant) -> Option<String> {
    let named = |owner| {
        let id: Option<u64> = grant.id.parse().ok();
        let mut names = system_names(owner).into_iter();
        let name = names.find(|(known, _)| Some(*known) == id).map(|(_, name)| name);
        name.unwrap_or_else(|| format!("(unknown: {})", grant.id))
    };
    match grant.who {
        Who::User => Some(format!("user {}", named(SpaceOwner::User))),
        Who::Group => Some(format!("group {}", named(SpaceOwner::Group))),
        Who::Everyone => Some("everyone".to_owned()),
        Who::Create | Who::Set => None,
    }
}

/// Lists everything that can be granted.
fn help() -> String {
    let mut text = String::from("The following permissions are supported:\n\n");
    let _ = writeln!(text, "{:<16} {:<14}\tNOTES", "NAME", "TYPE");
    for (kind, list) in [("subcommand", SUBCOMMANDS), ("other", OTHERS)] {
        for (name, note) in list {
            let _ = writeln!(text, "{name:<16} {kind:<14}\t{note}");
        }
    }
    for property in DATASET_PROPERTIES.iter().filter(|property| permits::is_delegated(property)) {
        let _ = writeln!(text, "{:<16} {:<14}\t", property.name, "property");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use cenote_pool::dsl::deleg::Reach;

    use super::*;

    fn request(line: &str) -> Result<Request, Exit> {
        let args: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Request::parse(&getopt::parse(&args, "ldugecsrh", &[]).expect("options"), false)
    }

    #[test]
    fn allow_converts_arguments_to_keys() {
        let keys = |line: &str| {
            let changes = request(line).expect(line).changes();
            changes
                .into_iter()
                .map(|change| (change.key, change.names.join(",")))
                .collect::<Vec<_>>()
        };
        let pair = |key: &str, names: &str| (key.to_owned(), names.to_owned());
        assert_eq!(
            keys("-u 1000 create,@ops,mount t"),
            [
                pair("ul$1000", "create,mount"),
                pair("Ul$1000", "@ops"),
                pair("ud$1000", "create,mount"),
                pair("Ud$1000", "@ops"),
            ]
        );
        assert_eq!(keys("-d everyone snapshot t"), [pair("ed$", "snapshot")]);
        assert_eq!(keys("-l -e compress t"), [pair("el$", "compression")]);
        assert_eq!(keys("-c destroy t"), [pair("c-$", "destroy")]);
        assert_eq!(keys("-s @ops hold,compression t"), [pair("s-$@ops", "hold,compression")]);
        for (line, wanted) in [
            ("-s ops hold t", Exit::usage("invalid set name: missing '@' prefix")),
            ("-s -l @ops hold t", Exit::usage("invalid options combined with -s")),
            ("-c -u hold t", Exit::usage("invalid options combined with -c")),
            ("-u -g 1 hold t", Exit::usage("-u, -g, and -e are mutually exclusive")),
            ("-u nobody-has-this hold t", Exit::usage("invalid user nobody-has-this")),
            ("-e fly t", Exit::failed("invalid permission 'fly'")),
            ("-e used t", Exit::failed("invalid permission 'used'")),
        ] {
            assert_eq!(request(line), Err(wanted), "{line}");
        }
    }

    #[test]
    fn allow_prints_grants_as_openzfs_does() {
        let grant = |who, id: &str, names: &[(&str, bool, bool)]| Grant {
            who,
            id: id.to_owned(),
            permissions: names
                .iter()
                .map(|(name, local, descendent)| {
                    ((*name).to_owned(), Reach { local: *local, descendent: *descendent })
                })
                .collect::<BTreeMap<_, _>>(),
        };
        let delegation = Delegation {
            dataset: "tank/users".into(),
            grants: vec![
                grant(Who::Create, "", &[("destroy", false, false)]),
                grant(Who::User, "0", &[("create", true, true), ("mount", true, true)]),
                grant(Who::Everyone, "", &[("snapshot", true, false), ("hold", false, true)]),
            ],
        };
        assert_eq!(
            shown(&[delegation]),
            "---- Permissions on tank/users ---------------------------------------\n\
             Permission sets:\n\
             \tdestroy\n\
             Local permissions:\n\
             \teveryone snapshot\n\
             Descendent permissions:\n\
             \teveryone hold\n\
             Local+Descendent permissions:\n\
             \tuser root create,mount\n"
        );
    }
}
