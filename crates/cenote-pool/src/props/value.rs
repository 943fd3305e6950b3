//! Values of properties and their sources, not yet formatted for output.

use std::fmt;

use super::table::{Form, PropDefault, PropType, Property};

/// The value of a property.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PropValue {
    /// A number or an index.
    Number(u64),
    /// A text.
    Text(String),
    /// No value, shown as a dash.
    Absent,
}

/// Source of a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// None: the property is a statistic.
    None,
    /// The built-in default.
    Default,
    /// Set on this dataset.
    Local,
    /// Set or received on the ancestor with this name.
    Inherited(String),
    /// Came with a received stream.
    Received,
    /// A mount option.
    Temporary,
}

/// One line of a property listing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PropRow {
    /// The property's name.
    pub name: String,
    /// Its table entry; `None` for user properties and families such as `written@`.
    pub property: Option<&'static Property>,
    /// The effective value.
    pub value: PropValue,
    /// The source of the value.
    pub source: Source,
    /// The received value, if there is one, effective or not.
    pub received: Option<PropValue>,
}

impl PropRow {
    /// Returns the row of a native property.
    #[must_use]
    pub fn native(property: &'static Property, value: PropValue, source: Source) -> Self {
        let name = property.name.to_owned();
        Self { name, property: Some(property), value, source, received: None }
    }

    /// Returns the row of a property that is not in the tables.
    #[must_use]
    pub fn other(name: impl Into<String>, value: PropValue, source: Source) -> Self {
        Self { name: name.into(), property: None, value, source, received: None }
    }

    /// Returns the value in parsable form (`-p`): full numbers, index values by name.
    #[must_use]
    pub fn literal(&self) -> String {
        literal(self.property, &self.value)
    }
}

/// Formats a value in parsable form (`-p`).
#[must_use]
pub fn literal(property: Option<&'static Property>, value: &PropValue) -> String {
    let number = match value {
        PropValue::Absent => return "-".to_owned(),
        PropValue::Text(text) => return text.clone(),
        PropValue::Number(number) => *number,
    };
    match property.map(|property| property.value_type) {
        Some(PropType::Index(_)) => property
            .and_then(|property| property.index_name(number))
            .map_or_else(|| number.to_string(), str::to_owned),
        Some(PropType::Number(Form::Ratio)) => format!("{}.{:02}", number / 100, number % 100),
        Some(PropType::Number(Form::CountOrNone)) if number == u64::MAX => "none".to_owned(),
        _ => number.to_string(),
    }
}

impl From<PropDefault> for PropValue {
    fn from(default: PropDefault) -> Self {
        match default {
            PropDefault::Number(number) => Self::Number(number),
            PropDefault::Text(text) => Self::Text(text.to_owned()),
            PropDefault::None => Self::Absent,
        }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("-"),
            Self::Default => f.write_str("default"),
            Self::Local => f.write_str("local"),
            Self::Inherited(from) => write!(f, "inherited from {from}"),
            Self::Received => f.write_str("received"),
            Self::Temporary => f.write_str("temporary"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::table::{dataset_property, pool_property};
    use super::*;

    #[test]
    fn property_values_in_parsable_form() {
        for (property, number, want) in [
            (dataset_property("compressratio"), 159, "1.59"),
            (dataset_property("filesystem_count"), u64::MAX, "none"),
            (dataset_property("filesystem_count"), 4, "4"),
            (dataset_property("quota"), 0, "0"),
            (dataset_property("checksum"), 14, "blake3"),
            (dataset_property("checksum"), 99, "99"),
            (pool_property("capacity"), 6, "6"),
            (None, 12, "12"),
        ] {
            assert_eq!(literal(property, &PropValue::Number(number)), want);
        }
        assert_eq!(literal(None, &PropValue::Absent), "-");
    }
}
