//! Datasets and their properties as JSON.

use cenote_pool::props::{PropRow, Source};
use serde_json::{Map, Value};

use super::select::Item;
use crate::zpool::json::Form;

/// Returns the source of a value: type, and the ancestor that it is inherited from.
pub(crate) fn source(source: &Source) -> Value {
    let (kind, data) = match source {
        Source::None => ("NONE", "-"),
        Source::Default => ("DEFAULT", "-"),
        Source::Local => ("LOCAL", "-"),
        Source::Inherited(from) => ("INHERITED", from.as_str()),
        Source::Received => ("RECEIVED", "-"),
        Source::Temporary => ("TEMPORARY", "-"),
    };
    let mut map = Map::new();
    map.insert("type".into(), kind.into());
    map.insert("data".into(), data.into());
    map.into()
}

/// Returns a property: its displayed value, and its source.
pub(crate) fn property(form: Form, shown: &str, row_source: &Source) -> Value {
    let mut map = Map::new();
    map.insert("value".into(), form.value(shown));
    map.insert("source".into(), source(row_source));
    map.into()
}

/// Returns the first fields of a dataset: its name, type and pool.
pub(super) fn dataset(form: Form, item: &Item, create_txg: Option<&PropRow>) -> Map<String, Value> {
    let name = item.name();
    let mut map = Map::new();
    map.insert("name".into(), name.into());
    map.insert("type".into(), item.kind().to_uppercase().into());
    map.insert("pool".into(), name.split(['/', '@', '#']).next().unwrap_or(name).into());
    if let Some((head, short)) = name.split_once('@') {
        map.insert("dataset".into(), head.into());
        map.insert("snapshot_name".into(), short.into());
    }
    let create_txg = create_txg.map_or_else(|| "0".to_owned(), PropRow::literal);
    map.insert("createtxg".into(), form.value(&create_txg));
    map
}
