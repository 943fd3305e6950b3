//! `zfs userspace`, `groupspace`, `projectspace`.

use std::cmp::Ordering;

use cenote_pool::DatasetKind;
use cenote_pool::props::{SpaceOwner, SpaceRow};

use super::path;
use crate::accounts::system_names;
use crate::getopt::{self, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum;
use crate::source::{Source, contents_failure};
use crate::zpool::block_on;

/// A column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Field {
    Type,
    Name,
    Used,
    Quota,
    ObjUsed,
    ObjQuota,
}

const FIELDS: [(Field, &str, &str); 6] = [
    (Field::Type, "type", "TYPE"),
    (Field::Name, "name", "NAME"),
    (Field::Used, "used", "USED"),
    (Field::Quota, "quota", "QUOTA"),
    (Field::ObjUsed, "objused", "OBJUSED"),
    (Field::ObjQuota, "objquota", "OBJQUOTA"),
];

/// Types that `-t` takes.
const TYPES: [&str; 5] = ["posixuser", "smbuser", "posixgroup", "smbgroup", "all"];

impl Field {
    fn parse(name: &str) -> Option<Self> {
        FIELDS.iter().find(|(_, known, _)| *known == name).map(|(field, ..)| *field)
    }

    fn heading(self) -> &'static str {
        FIELDS.iter().find(|(field, ..)| *field == self).map_or("", |(.., heading)| *heading)
    }

    fn is_right(self) -> bool {
        !matches!(self, Self::Type | Self::Name)
    }
}

/// An owner and its space.
struct Entry {
    kind: &'static str,
    /// The name of the id on this system, if there is one.
    name: Option<String>,
    row: SpaceRow,
}

impl Entry {
    fn shown_name(&self) -> String {
        self.name.clone().unwrap_or_else(|| self.row.id.to_string())
    }

    fn cell(&self, field: Field, is_literal: bool) -> String {
        let figure = |number: u64, nice: fn(u64) -> String| {
            if is_literal { number.to_string() } else { nice(number) }
        };
        let limit = |number: u64, nice: fn(u64) -> String| match number {
            0 if !is_literal => "none".to_owned(),
            number => figure(number, nice),
        };
        match field {
            Field::Type => self.kind.to_owned(),
            Field::Name => self.shown_name(),
            Field::Used => figure(self.row.used, nicenum::bytes_b),
            Field::Quota => limit(self.row.quota, nicenum::bytes_b),
            Field::ObjUsed => figure(self.row.objects_used, nicenum::bytes),
            Field::ObjQuota => limit(self.row.objects_quota, nicenum::bytes),
        }
    }
}

struct Options {
    fields: Vec<Field>,
    order: Vec<(Field, bool)>,
    is_wanted: bool,
}

/// Runs one of the three verbs.
pub(super) fn run(verb: &str, source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "nHpo:s:S:t:i", &[])?;
    let owner = match verb {
        "userspace" => SpaceOwner::User,
        "groupspace" => SpaceOwner::Group,
        _ => SpaceOwner::Project,
    };
    let options = options(&parsed, owner)?;
    let [name] = getopt::exactly(&parsed.operands, ["missing dataset name"])?;
    if !source.has_pools() {
        return Err(Exit::failed(format!("cannot open '{name}': dataset does not exist")));
    }
    block_on(async {
        let name = &*path::dataset(source, name)?;
        let dataset = source.dataset(name).await?;
        if dataset.kind().await? != DatasetKind::Filesystem {
            let text = "operation is only applicable to filesystems and their snapshots";
            return Err(Exit::failed(text));
        }
        let rows = cenote_fs::space_by_owner(&dataset, owner).await;
        let rows = rows.map_err(|error| contents_failure(name, &error))?;
        let names = if parsed.has('n') { Vec::new() } else { system_names(owner) };
        let mut entries: Vec<Entry> = rows
            .into_iter()
            .filter(|_| options.is_wanted)
            .map(|row| {
                let known = names.iter().find(|(id, _)| *id == row.id);
                Entry { kind: kind(owner, row.id), name: known.map(|(_, name)| name.clone()), row }
            })
            .collect();
        entries.sort_by(|a, b| compare(a, b, &options.order));
        let text = render(&entries, &options.fields, parsed.has('H'), parsed.has('p'));
        write!(io.out, "{text}")?;
        Ok(())
    })
}

fn options(parsed: &Parsed, owner: SpaceOwner) -> Result<Options, Exit> {
    if owner == SpaceOwner::Project
        && let Some(letter) = ['n', 't', 'i'].into_iter().find(|letter| parsed.has(*letter))
    {
        return Err(Exit::usage(format!("invalid option '{letter}'")));
    }
    let mut order = Vec::new();
    for (letter, name) in &parsed.options {
        if let ('s' | 'S', Some(name)) = (letter, name) {
            let field =
                Field::parse(name).ok_or_else(|| Exit::usage(format!("invalid field '{name}'")))?;
            order.push((field, *letter == 'S'));
        }
    }
    let fields = match parsed.value('o') {
        None => FIELDS.iter().map(|(field, ..)| *field).collect(),
        Some(list) => list
            .split(',')
            .map(|name| {
                let invalid = || Exit::usage(format!("invalid type '{name}' for -o option"));
                Field::parse(name).ok_or_else(invalid)
            })
            .collect::<Result<_, _>>()?,
    };
    let types: Vec<&str> = parsed.values('t').flat_map(|list| list.split(',')).collect();
    if let Some(wrong) = types.iter().find(|name| !TYPES.contains(name)) {
        return Err(Exit::usage(format!("invalid type '{wrong}' for -t option")));
    }
    // SMB ids are not distinguished from others.
    let own = if owner == SpaceOwner::User { "posixuser" } else { "posixgroup" };
    let is_wanted = types.is_empty() || types.contains(&own) || types.contains(&"all");
    Ok(Options { fields, order, is_wanted })
}

/// Returns the type of an owner; an id with a domain comes from SMB.
fn kind(owner: SpaceOwner, id: u64) -> &'static str {
    let has_domain = id >> 32 != 0;
    match (owner, has_domain) {
        (SpaceOwner::User, false) => "POSIX User",
        (SpaceOwner::User, true) => "SMB User",
        (SpaceOwner::Group, false) => "POSIX Group",
        (SpaceOwner::Group, true) => "SMB Group",
        (SpaceOwner::Project, _) => "Project",
    }
}

/// Orders by the requested fields, then by type, then by name: names before numbers.
fn compare(a: &Entry, b: &Entry, order: &[(Field, bool)]) -> Ordering {
    let by_name = || match (&a.name, &b.name) {
        (Some(a), Some(b)) => a.cmp(b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.row.id.cmp(&b.row.id),
    };
    let by_fields = order.iter().map(|(field, is_down)| {
        let order = match field {
            Field::Type => a.kind.cmp(b.kind),
            Field::Name => by_name(),
            Field::Used => a.row.used.cmp(&b.row.used),
            Field::Quota => a.row.quota.cmp(&b.row.quota),
            Field::ObjUsed => a.row.objects_used.cmp(&b.row.objects_used),
            Field::ObjQuota => a.row.objects_quota.cmp(&b.row.objects_quota),
        };
        if *is_down { order.reverse() } else { order }
    });
    by_fields.fold(Ordering::Equal, Ordering::then).then(a.kind.cmp(b.kind)).then_with(by_name)
}

fn render(entries: &[Entry], fields: &[Field], is_scripted: bool, is_literal: bool) -> String {
    let rows = entries
        .iter()
        .map(|entry| fields.iter().map(|field| entry.cell(*field, is_literal)).collect::<Vec<_>>());
    if is_scripted {
        return rows.map(|row| row.join("\t") + "\n").collect();
    }
    let headings = fields.iter().map(|field| field.heading().to_owned()).collect();
    let rows: Vec<Vec<String>> = std::iter::once(headings).chain(rows).collect();
    let width = |index: usize| rows.iter().map(|row| row[index].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..fields.len()).map(width).collect();
    let mut text = String::new();
    for row in &rows {
        let cells = row.iter().zip(fields).zip(&widths).map(|((cell, field), width)| {
            if field.is_right() { format!("{cell:>width$}") } else { format!("{cell:width$}") }
        });
        text.extend([cells.collect::<Vec<_>>().join("  ").trim_end(), "\n"]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn userspace_prints_the_table_of_openzfs() {
        let row = SpaceRow { id: 0, used: 512, objects_used: 1, ..SpaceRow::default() };
        let entries = [Entry { kind: "POSIX User", name: Some("root".into()), row }];
        let fields: Vec<Field> = FIELDS.iter().map(|(field, ..)| *field).collect();
        assert_eq!(
            render(&entries, &fields, false, false),
            "TYPE        NAME  USED  QUOTA  OBJUSED  OBJQUOTA\n\
             POSIX User  root  512B   none        1      none\n"
        );
        assert_eq!(render(&entries, &fields, true, true), "POSIX User\troot\t512\t0\t1\t0\n");
    }

    #[test]
    fn userspace_sorts_names_before_numbers() {
        let entry = |id, name: Option<&str>| Entry {
            kind: "POSIX User",
            name: name.map(str::to_owned),
            row: SpaceRow { id, used: 10 - id, ..SpaceRow::default() },
        };
        let mut entries =
            [entry(9, None), entry(2, Some("b")), entry(3, None), entry(7, Some("a"))];
        let ids = |entries: &[Entry]| entries.iter().map(|e| e.row.id).collect::<Vec<_>>();
        entries.sort_by(|a, b| compare(a, b, &[]));
        assert_eq!(ids(&entries), [7, 2, 3, 9]);
        entries.sort_by(|a, b| compare(a, b, &[(Field::Used, true)]));
        assert_eq!(ids(&entries), [2, 3, 7, 9]);
    }
}
