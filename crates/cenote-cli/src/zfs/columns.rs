//! Property lists: the properties that `-o` and the first argument of `get` name, and column
//! widths.
//!
//! A column is at least as wide as its heading. Columns of numbers have at least five places,
//! columns of names the width of the longest name; texts, dates, and with `-p` all columns widen
//! with their values (observed).

use cenote_pool::props::userspace;
use cenote_pool::props::{DATASET_PROPERTIES, Form, PropType, Property, property_named};

use crate::io::Exit;

/// The columns that `-o space` selects.
const SPACE: &str = "name,available,used,usedbysnapshots,usedbydataset,usedbyrefreservation,\
                     usedbychildren";

/// Narrowest column of numbers.
const NUMBER_WIDTH: usize = 5;

/// The heading of a pool's health is as wide as its longest value.
const HEALTH_WIDTH: usize = 8;

/// A property as a column or a row of `get`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Column {
    /// Its name.
    pub(crate) name: String,
    /// Its table entry, if it is a native property.
    pub(crate) property: Option<&'static Property>,
    /// Whether it comes from `all`, where missing properties are skipped.
    pub(crate) is_of_all: bool,
    /// Minimum width beyond that of the heading.
    pub(crate) width_min: usize,
}

impl Column {
    /// Returns the column of a native property.
    pub(crate) fn native(property: &'static Property, is_of_all: bool) -> Self {
        Self { name: property.name.to_owned(), property: Some(property), is_of_all, width_min: 0 }
    }

    /// Returns the column of a property outside the tables.
    pub(crate) fn other(name: &str, is_of_all: bool) -> Self {
        Self { name: name.to_owned(), property: None, is_of_all, width_min: 0 }
    }

    /// Returns the column of `createtxg`, which JSON output has for every dataset.
    pub(super) fn of_create_txg() -> Self {
        let property = property_named(DATASET_PROPERTIES, "createtxg");
        Self { name: "createtxg".to_owned(), property, is_of_all: false, width_min: 0 }
    }

    /// Returns the heading in `list`.
    pub(crate) fn heading(&self) -> String {
        match self.property {
            Some(property) => property.column.to_owned(),
            None => self.name.to_uppercase(),
        }
    }

    /// Whether the heading is right-aligned.
    pub(crate) fn heading_is_right(&self) -> bool {
        self.property.is_some_and(|property| property.align_right)
    }

    /// Whether values are right-aligned.
    pub(crate) fn is_right(&self) -> bool {
        let is_figure = || userspace::parse(&self.name).is_some() || is_written(&self.name);
        self.property.map_or_else(is_figure, |property| property.align_right)
    }

    /// Returns the width before there are values.
    pub(crate) fn width(&self) -> usize {
        let Some(property) = self.property else { return self.name.len().max(self.width_min) };
        let heading = property.column.len().max(self.width_min);
        match property.value_type {
            _ if property.name == "health" => heading.max(HEALTH_WIDTH),
            PropType::Number(_) => heading.max(NUMBER_WIDTH),
            PropType::Index(names) => {
                names.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max(heading)
            }
            PropType::Text => heading,
        }
    }

    /// Whether values widen the column.
    pub(crate) fn widens(&self, is_literal: bool) -> bool {
        match self.property.map(|property| property.value_type) {
            Some(PropType::Number(Form::Date) | PropType::Text) => true,
            Some(_) => is_literal,
            None => userspace::parse(&self.name).is_none() && !is_written(&self.name),
        }
    }
}

fn is_written(name: &str) -> bool {
    name.starts_with("written@") || name.starts_with("written#")
}

/// Returns the error for a wrong name in a list.
pub(crate) fn bad_property(name: &str) -> Exit {
    Exit::usage(format!("bad property list: invalid property '{name}'"))
}

/// Returns a column of datasets by name.
pub(super) fn dataset_column(name: &str) -> Option<Column> {
    if let Some(property) = property_named(DATASET_PROPERTIES, name) {
        return Some(Column::native(property, false));
    }
    let is_user = name.contains(':');
    let is_known = is_user || userspace::parse(name).is_some() || is_written(name);
    is_known.then(|| Column::other(name, false))
}

/// Maximum number of properties in a list. Each is a cell of each row, so the caller would choose
/// how much memory a row takes.
pub(crate) const COLUMNS_MAX: usize = 1024;

/// Checks the number of properties that a caller has listed.
///
/// # Errors
/// A usage error if there are more than [`COLUMNS_MAX`].
pub(crate) fn check_count(count: usize) -> Result<(), Exit> {
    if count <= COLUMNS_MAX {
        return Ok(());
    }
    let limit = format!("it has {count} properties, at most {COLUMNS_MAX} are possible");
    Err(Exit::usage(format!("bad property list: {limit}")))
}

/// Splits a comma-separated list of properties.
///
/// # Errors
/// A usage error if there are more than [`COLUMNS_MAX`].
pub(crate) fn split(list: &str) -> Result<impl Iterator<Item = &str>, Exit> {
    check_count(list.split(',').count())?;
    Ok(list.split(','))
}

/// Returns all columns that a comma-separated list names.
pub(super) fn dataset_columns(list: &str) -> Result<Vec<Column>, Exit> {
    let list = if list == "space" { SPACE } else { list };
    if list == "all" {
        let shown = DATASET_PROPERTIES.iter().filter(|property| !property.is_hidden());
        return Ok(shown.map(|property| Column::native(property, true)).collect());
    }
    split(list)?.map(|name| dataset_column(name).ok_or_else(|| bad_property(name))).collect()
}

/// The fields of `get`, by their names in `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Field {
    /// The dataset or pool.
    Name,
    /// The property.
    Property,
    /// The effective value.
    Value,
    /// The received value.
    Received,
    /// The source of the value.
    Source,
}

impl Field {
    /// Returns the heading.
    pub(crate) fn heading(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::Property => "PROPERTY",
            Self::Value => "VALUE",
            Self::Received => "RECEIVED",
            Self::Source => "SOURCE",
        }
    }
}

/// Parses the list of `-o` of a `get`; pools have no received values.
pub(crate) fn fields(list: Option<&str>, has_received: bool) -> Result<Vec<Field>, Exit> {
    let Some(list) = list else {
        return Ok(vec![Field::Name, Field::Property, Field::Value, Field::Source]);
    };
    let mut fields = Vec::new();
    for name in list.split(',') {
        if fields.len() == if has_received { 5 } else { 4 } {
            return Err(Exit::usage("too many fields given to -o option"));
        }
        fields.push(match name {
            "name" => Field::Name,
            "property" => Field::Property,
            "value" => Field::Value,
            "received" if has_received => Field::Received,
            "source" => Field::Source,
            "all" if !fields.is_empty() => {
                let message = "\"all\" conflicts with specific fields given to -o option";
                return Err(Exit::usage(message));
            }
            "all" if has_received => {
                use Field::{Name, Property, Received, Source, Value};
                fields.extend([Name, Property, Value, Received, Source]);
                continue;
            }
            "all" => {
                fields.extend([Field::Name, Field::Property, Field::Value, Field::Source]);
                continue;
            }
            _ => return Err(Exit::usage(format!("invalid column name '{name}'"))),
        });
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_headings_and_families_are_columns() {
        let names = |list| {
            dataset_columns(list).map(|all| all.into_iter().map(|c| c.name).collect::<Vec<_>>())
        };
        assert_eq!(
            names("avail,refer,a:b"),
            Ok(vec!["available".into(), "referenced".into(), "a:b".into()])
        );
        assert_eq!(names("space").map(|names| names.len()), Ok(7));
        assert_eq!(names("userused@5,written@x").map(|names| names.len()), Ok(2));
        assert_eq!(names("used,nosuch"), Err(bad_property("nosuch")));
    }

    #[test]
    fn lists_have_a_limited_number_of_properties() {
        let list = |count: usize| vec!["guid"; count].join(",");
        assert_eq!(dataset_columns(&list(COLUMNS_MAX)).map(|all| all.len()), Ok(COLUMNS_MAX));
        let error = dataset_columns(&list(COLUMNS_MAX + 1)).expect_err("too many");
        assert!(error.message().contains("1025 properties, at most 1024"), "{error:?}");
    }

    #[test]
    fn widths_before_values() {
        let width = |name| dataset_column(name).expect("column").width();
        assert_eq!(["used", "refreservation", "compression", "a:b"].map(width), [5, 9, 14, 3]);
        let widens = |name| dataset_column(name).expect("column").widens(false);
        assert_eq!(["used", "name", "creation", "a:b"].map(widens), [false, true, true, true]);
    }

    #[test]
    fn fields_of_get() {
        use Field::*;
        assert_eq!(fields(Some("value,name"), true), Ok(vec![Value, Name]));
        assert_eq!(fields(Some("all"), false), Ok(vec![Name, Property, Value, Source]));
        for (list, want) in [
            ("x", "invalid column name 'x'"),
            ("name,all", "\"all\" conflicts with specific fields given to -o option"),
            ("received", "invalid column name 'received'"),
        ] {
            assert_eq!(fields(Some(list), false), Err(Exit::usage(want)));
        }
    }
}
