//! Selection of the datasets that a command works on: arguments, types, recursion and depth, order.
//!
//! Rules observed of OpenZFS:
//! * Without arguments every pool is an argument, with everything below it.
//! * A dataset's snapshots and bookmarks are one level below it, as its children are.
//! * Asking for snapshots (or bookmarks) only, of datasets by name, means those one level below.
//! * Without a type, snapshots are taken when named, and below when the pool has `listsnapshots`.
//! * Order is by name, a dataset before its snapshots, those by age; bookmarks follow.

use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};

use cenote_pool::dsl::BadName;
use cenote_pool::props::dataset::DatasetProps;
use cenote_pool::props::{PropRow, PropType, PropValue};
use cenote_pool::{Bookmark, Dataset, DatasetKind, DatasetName, Pool, Suffix, mos};

use super::columns::Column;
use super::path;
use super::quotas;
use super::value;
use crate::err;
use crate::io::{Exit, Io};
use crate::source::{Source, dataset_of};
use crate::zpool;

/// Kinds of datasets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "a set of four kinds")]
pub(super) struct Types {
    pub(super) filesystem: bool,
    pub(super) volume: bool,
    pub(super) snapshot: bool,
    pub(super) bookmark: bool,
}

impl Types {
    /// None.
    const NONE: Self = Self { filesystem: false, volume: false, snapshot: false, bookmark: false };
    /// File systems, volumes and snapshots.
    pub(super) const DATASETS: Self =
        Self { filesystem: true, volume: true, snapshot: true, bookmark: false };
    /// All four.
    pub(super) const ALL: Self = Self { bookmark: true, ..Self::DATASETS };

    /// Takes the lists of `-t`.
    pub(super) fn parse<'a>(lists: impl Iterator<Item = &'a str>) -> Result<Option<Self>, Exit> {
        let mut types = None;
        for name in lists.flat_map(|list| list.split(',')) {
            let types = types.get_or_insert(Self::NONE);
            match name {
                "filesystem" | "fs" => types.filesystem = true,
                "volume" | "vol" => types.volume = true,
                "snapshot" | "snap" => types.snapshot = true,
                "bookmark" => types.bookmark = true,
                "all" => *types = Self::ALL,
                _ => return Err(Exit::usage(format!("invalid type '{name}'"))),
            }
        }
        Ok(types)
    }

    /// Whether only snapshots, or only bookmarks, are selected.
    fn is_of_suffixes(self) -> bool {
        !self.filesystem && !self.volume && self.snapshot != self.bookmark
    }
}

/// The options of a selection.
#[derive(Debug, Clone)]
pub(super) struct Selection {
    /// `-t`
    pub(super) types: Option<Types>,
    /// Types if `-t` is not given.
    pub(super) default_types: Types,
    /// `-r`
    pub(super) is_recursive: bool,
    /// `-d`
    pub(super) depth: Option<u64>,
    /// Columns to sort by, each with whether the order is descending.
    pub(super) order: Vec<(Column, bool)>,
    /// Names; empty for everything.
    pub(super) names: Vec<String>,
}

/// Parses the number of `-d`.
pub(super) fn parse_depth(text: Option<&str>) -> Result<Option<u64>, Exit> {
    let Some(text) = text else { return Ok(None) };
    match text.parse::<i64>() {
        Err(_) => Err(Exit::usage(format!("{text} is not an integer"))),
        Ok(depth) => match u64::try_from(depth) {
            Ok(depth) => Ok(Some(depth)),
            Err(_) => Err(Exit::usage("Depth can not be negative.")),
        },
    }
}

/// A dataset or bookmark, with the data that its properties need.
pub(super) enum Item {
    /// A file system or volume, or a snapshot that was named.
    Dataset(Box<DatasetProps>),
    /// A snapshot found below a dataset: there may be many, and often only their names are needed.
    Snapshot(Box<Dataset>, OnceLock<Box<DatasetProps>>),
    /// A bookmark.
    Bookmark(Bookmark, Arc<Pool>),
}

impl Item {
    /// The whole name.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Dataset(props) => props.dataset().name(),
            Self::Snapshot(dataset, _) => dataset.name(),
            Self::Bookmark(bookmark, _) => &bookmark.name,
        }
    }

    /// Returns its kind in one word.
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Bookmark(..) => "bookmark",
            Self::Snapshot(..) => "snapshot",
            Self::Dataset(props) if props.dataset().is_snapshot() => "snapshot",
            Self::Dataset(props) if props.kind() == DatasetKind::Volume => "volume",
            Self::Dataset(_) => "filesystem",
        }
    }

    /// Returns a property; `None` if it does not apply.
    pub(super) async fn get(&self, column: &Column) -> Result<Option<PropRow>, Exit> {
        let row = match (self, column.property) {
            (Self::Bookmark(bookmark, pool), Some(property)) => bookmark.prop(pool, property).await,
            (Self::Bookmark(..), None) => Ok(None),
            (_, property) => match (self.props().await?, property) {
                (Some(props), Some(property)) => props.native(property).await,
                (Some(props), None) => props.get(&quotas::with_id(&column.name)).await,
                (None, _) => Ok(None),
            },
        };
        // Unreadable values (a locked dataset's quota, a damaged object) are shown as absent.
        Ok(mos::unless_interrupted(row)?.unwrap_or_default())
    }

    /// Returns the data for its properties, read on first use; `None` if unreadable.
    async fn props(&self) -> Result<Option<&DatasetProps>, Exit> {
        Ok(match self {
            Self::Dataset(props) => Some(props),
            Self::Snapshot(dataset, props) => {
                if props.get().is_none() {
                    let read = mos::unless_interrupted(dataset.props().await)?.ok();
                    return Ok(read.map(|read| &**props.get_or_init(|| Box::new(read))));
                }
                props.get().map(|props| &**props)
            }
            Self::Bookmark(..) => None,
        })
    }

    /// Returns the user properties, by name.
    pub(super) async fn user(&self) -> Result<Vec<PropRow>, Exit> {
        Ok(self.props().await?.map(DatasetProps::user).unwrap_or_default())
    }

    fn create_txg(&self) -> u64 {
        match self {
            Self::Dataset(props) => props.dataset().phys().creation_txg,
            Self::Snapshot(dataset, _) => dataset.phys().creation_txg,
            Self::Bookmark(bookmark, _) => bookmark.phys.creation_txg,
        }
    }
}

/// The selected items, in order.
pub(super) struct Selected {
    pub(super) items: Vec<Item>,
    /// Whether some argument could not be opened.
    pub(super) is_incomplete: bool,
}

struct Walk {
    types: Types,
    lists_snapshots: bool,
    depth: u64,
    items: Vec<Item>,
    names: BTreeSet<String>,
    /// Parts that could not be read.
    failures: Vec<String>,
}

/// Finds all selected items.
pub(super) async fn select(
    source: &Source,
    selection: &Selection,
    io: &mut Io<'_>,
) -> Result<Selected, Exit> {
    let types = selection.types.unwrap_or(selection.default_types);
    let has_names = !selection.names.is_empty();
    let depth = match (selection.depth, selection.is_recursive, has_names) {
        (Some(depth), ..) => depth,
        (None, true, _) | (None, _, false) => u64::MAX,
        (None, false, true) if types.is_of_suffixes() => 1,
        (None, false, true) => 0,
    };
    let is_walking = depth > 0 || selection.depth.is_some();
    let mut walk = Walk {
        types,
        lists_snapshots: true,
        depth,
        items: Vec::new(),
        names: BTreeSet::new(),
        failures: Vec::new(),
    };
    let mut is_incomplete = false;
    if has_names {
        // The caller's process may be asked for paths: not while a view of a pool is held.
        let names = selection.names.iter().map(|name| path::dataset(source, name));
        for name in names.collect::<Vec<_>>() {
            let opened = async {
                let name = name?;
                start(source, &name, types, is_walking).await
            };
            match opened.await {
                Ok(item) => walk.from(item, selection.types.is_none()).await?,
                Err(Exit::Failed(message)) => {
                    err!(io, "{message}")?;
                    is_incomplete = true;
                }
                Err(other) => return Err(other),
            }
        }
    } else {
        let pools = zpool::pools(source, &[], zpool::no_such_pool, io).await?;
        is_incomplete = pools.is_incomplete;
        for pool in pools.open {
            let root = pool.root_dataset().await?;
            let item = Item::Dataset(Box::new(root.props().await?));
            walk.from(item, selection.types.is_none()).await?;
        }
    }
    for failure in &walk.failures {
        err!(io, "{failure}")?;
        is_incomplete = true;
    }
    let items = sorted(walk.items, &selection.order).await?;
    Ok(Selected { items, is_incomplete })
}

impl Walk {
    /// Adds an argument and everything below it.
    async fn from(&mut self, item: Item, is_untyped: bool) -> Result<(), Exit> {
        if is_untyped && self.depth > 0 {
            let pool = match &item {
                Item::Dataset(props) => props.dataset().pool(),
                Item::Snapshot(dataset, _) => dataset.pool(),
                Item::Bookmark(_, pool) => pool,
            };
            let is_set = pool.props().await?.get("listsnapshots");
            self.lists_snapshots = is_set.is_some_and(|row| row.value == PropValue::Number(1));
        }
        let mut todo = vec![(item, 0)];
        while let Some((item, depth)) = todo.pop() {
            if let Item::Dataset(props) = &item
                && depth < self.depth
                && !props.dataset().is_snapshot()
            {
                let dataset = props.dataset().clone();
                // At the last level only displayed datasets need to be read.
                let reads_children =
                    depth + 1 < self.depth || self.types.filesystem || self.types.volume;
                if reads_children {
                    let children = dataset.children().await;
                    for child in self.noted(dataset.name(), children)? {
                        let props = child.props().await.map(|props| vec![props]);
                        for props in self.noted(child.name(), props)? {
                            todo.push((Item::Dataset(Box::new(props)), depth + 1));
                        }
                    }
                }
                self.suffixes(&dataset).await?;
            }
            self.keep(item);
        }
        Ok(())
    }

    async fn suffixes(&mut self, dataset: &Dataset) -> Result<(), Exit> {
        if self.types.snapshot && self.lists_snapshots {
            let snapshots = dataset.snapshots().await;
            for snapshot in self.noted(dataset.name(), snapshots)? {
                self.keep(Item::Snapshot(Box::new(snapshot), OnceLock::new()));
            }
        }
        if self.types.bookmark {
            let bookmarks = dataset.bookmarks().await;
            for bookmark in self.noted(dataset.name(), bookmarks)? {
                self.keep(Item::Bookmark(bookmark, Arc::clone(dataset.pool())));
            }
        }
        Ok(())
    }

    /// Returns a list that was read. Damage only costs the unreadable part, and is reported at the
    /// end.
    ///
    /// # Errors
    /// [`Exit::Overtaken`]: the command starts again.
    fn noted<T>(&mut self, name: &str, result: cenote_rt::Result<Vec<T>>) -> Result<Vec<T>, Exit> {
        result.or_else(|error| match Exit::of(&error, format!("cannot open '{name}': {error}")) {
            Exit::Failed(failure) => {
                self.failures.push(failure);
                Ok(Vec::new())
            }
            other => Err(other),
        })
    }

    fn keep(&mut self, item: Item) {
        let types = self.types;
        let is_wanted = match item.kind() {
            "filesystem" => types.filesystem,
            "volume" => types.volume,
            "snapshot" => types.snapshot,
            _ => types.bookmark,
        };
        // Arguments may overlap.
        if is_wanted && self.names.insert(item.name().to_owned()) {
            self.items.push(item);
        }
    }
}

/// Opens an argument; it must be of a selected type, unless datasets below it are selected.
async fn start(source: &Source, name: &str, types: Types, is_walking: bool) -> Result<Item, Exit> {
    let cannot = |why: &str| Exit::failed(format!("cannot open '{name}': {why}"));
    let parsed = DatasetName::parse(name).map_err(|error: BadName| cannot(&error.to_string()))?;
    match parsed.suffix {
        Suffix::Snapshot(_) if !types.snapshot => {
            return Err(cannot("snapshot delimiter '@' is not expected here"));
        }
        Suffix::Bookmark(_) if !types.bookmark => {
            return Err(cannot("bookmark delimiter '#' is not expected here"));
        }
        Suffix::None if !is_walking && !types.filesystem && !types.volume => {
            return Err(cannot(if types.bookmark && !types.snapshot {
                "missing '#' delimiter in bookmark name"
            } else {
                "missing '@' delimiter in snapshot name"
            }));
        }
        _ => {}
    }
    if !source.has_pools() {
        return Err(cannot("dataset does not exist"));
    }
    let head = source.dataset(parsed.dataset).await?;
    let pool = Arc::clone(head.pool());
    let item = match parsed.suffix {
        Suffix::None => Item::Dataset(Box::new(head.props().await?)),
        Suffix::Snapshot(short) => {
            let whole = format!("{}@{short}", head.name());
            Item::Dataset(Box::new(dataset_of(&pool, &whole).await?.props().await?))
        }
        Suffix::Bookmark(short) => match mos::optional(head.bookmark(short).await)? {
            Some(bookmark) => Item::Bookmark(bookmark, pool),
            None => return Err(cannot("dataset does not exist")),
        },
    };
    // Datasets of any type may be below a file system; a volume has snapshots and bookmarks alone.
    let is_refused = match item.kind() {
        "filesystem" => !types.filesystem && !is_walking,
        "volume" => {
            let has_suffixes = types.snapshot || types.bookmark;
            !(types.volume || is_walking && has_suffixes)
        }
        _ => false,
    };
    if is_refused {
        return Err(cannot("operation not applicable to datasets of this type"));
    }
    Ok(item)
}

/// Sort key of an item: an absent value sorts last in either direction.
enum Key {
    Number(u64),
    Text(String),
    Absent,
}

async fn sorted(items: Vec<Item>, order: &[(Column, bool)]) -> Result<Vec<Item>, Exit> {
    let mut keyed = Vec::with_capacity(items.len());
    for item in items {
        let mut keys = Vec::with_capacity(order.len());
        for (column, _) in order {
            keys.push(key(&item, column).await?);
        }
        keyed.push((keys, item));
    }
    keyed.sort_by(|(a_keys, a), (b_keys, b)| {
        let by_key = a_keys.iter().zip(b_keys).zip(order).map(|((a, b), (_, is_down))| {
            let directed = |order: Ordering| if *is_down { order.reverse() } else { order };
            match (a, b) {
                (Key::Absent, Key::Absent) => Ordering::Equal,
                (Key::Absent, _) | (Key::Text(_), Key::Number(_)) => Ordering::Greater,
                (_, Key::Absent) | (Key::Number(_), Key::Text(_)) => Ordering::Less,
                (Key::Number(a), Key::Number(b)) => directed(a.cmp(b)),
                (Key::Text(a), Key::Text(b)) => directed(a.cmp(b)),
            }
        });
        by_key.fold(Ordering::Equal, Ordering::then).then_with(|| by_name(a, b))
    });
    Ok(keyed.into_iter().map(|(_, item)| item).collect())
}

async fn key(item: &Item, column: &Column) -> Result<Key, Exit> {
    if column.name == "name" {
        return Ok(Key::Text(item.name().to_owned()));
    }
    let Some(row) = item.get(column).await? else { return Ok(Key::Absent) };
    let is_number = matches!(column.property.map(|p| p.value_type), Some(PropType::Number(_)));
    Ok(match row.value {
        PropValue::Absent => Key::Absent,
        PropValue::Number(number) if is_number => Key::Number(number),
        _ => Key::Text(value::shown(&row, false)),
    })
}

/// Orders a dataset before its snapshots by age, and those before its bookmarks.
fn by_name(a: &Item, b: &Item) -> Ordering {
    let split = |item: &Item| {
        let name = item.name();
        let (head, short) = name.split_once('@').map_or((name, None), |(h, s)| (h, Some(s)));
        (head.to_owned(), short.map(|short| (item.create_txg(), short.to_owned())))
    };
    split(a).cmp(&split(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn list_types_add_up() {
        let parse = |lists: &[&'static str]| Types::parse(lists.iter().copied());
        assert_eq!(parse(&[]), Ok(None));
        assert_eq!(parse(&["all"]), Ok(Some(Types::ALL)));
        let both = Types { filesystem: true, snapshot: true, ..Types::NONE };
        assert_eq!(parse(&["fs", "snap"]), Ok(Some(both)));
        assert_eq!(parse(&["fs,snapshot"]), Ok(Some(both)));
        assert_eq!(parse(&["nosuch"]), Err(Exit::usage("invalid type 'nosuch'")));
    }

    #[test]
    fn list_depth_is_parsed() {
        assert_eq!(parse_depth(Some("2")), Ok(Some(2)));
        assert_eq!(parse_depth(Some("x")), Err(Exit::usage("x is not an integer")));
        assert_eq!(parse_depth(Some("-1")), Err(Exit::usage("Depth can not be negative.")));
    }
}
