//! JSON output (`-j`): one line, keys in OpenZFS's order, numbers as text unless `--json-int` is
//! given.

use cenote_ondisk::config::VdevKind;
use cenote_pool::AllocationClass;
use cenote_pool::status::{VdevReport, state_name};
use serde_json::{Map, Value};

use crate::getopt::{Long, Parsed};
use crate::io::{CommandResult, Exit, Io};

/// Letter under which `--json-int` is parsed.
pub(crate) const INT: char = '\u{1}';
/// Letter under which `--json-pool-key-guid` is parsed.
pub(crate) const KEY_GUID: char = '\u{2}';
/// Letter under which `--json-flat-vdevs` is parsed.
pub(crate) const FLAT: char = '\u{3}';

/// The long options of commands on pools.
pub(crate) const POOL_LONGS: [Long; 4] = [
    Long::flag("json", 'j'),
    Long::flag("json-int", INT),
    Long::flag("json-pool-key-guid", KEY_GUID),
    Long::flag("json-flat-vdevs", FLAT),
];

/// The long options of commands on datasets.
pub(crate) const DATASET_LONGS: [Long; 2] = [Long::flag("json", 'j'), Long::flag("json-int", INT)];

/// The JSON options.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "options of a command")]
pub(crate) struct Form {
    /// `-j`
    pub(crate) is_wanted: bool,
    /// `--json-int`
    pub(crate) has_numbers: bool,
    /// `--json-pool-key-guid`
    pub(crate) is_keyed_by_guid: bool,
    /// `--json-flat-vdevs`
    pub(crate) is_flat: bool,
}

impl Form {
    /// Parses the options, which require `-j`.
    pub(crate) fn of(parsed: &Parsed) -> Result<Self, Exit> {
        let form = Self {
            is_wanted: parsed.has('j'),
            has_numbers: parsed.has(INT),
            is_keyed_by_guid: parsed.has(KEY_GUID),
            is_flat: parsed.has(FLAT),
        };
        for (is_given, message) in [
            (form.has_numbers, "'--json-int' only works with '-j' option"),
            (form.is_flat, "'--json-flat-vdevs' only works with '-j' option"),
            (form.is_keyed_by_guid, "'json-pool-key-guid' only works with '-j' option"),
        ] {
            if is_given && !form.is_wanted {
                return Err(Exit::usage(message));
            }
        }
        Ok(form)
    }

    /// Returns a value as text, or as a number if requested and possible.
    pub(crate) fn value(self, text: &str) -> Value {
        match text.parse::<u64>() {
            Ok(number) if self.has_numbers => number.into(),
            _ => text.into(),
        }
    }

    /// Returns a number.
    pub(crate) fn number(self, number: u64) -> Value {
        if self.has_numbers { number.into() } else { number.to_string().into() }
    }
}

/// Returns the first fields of the output of `command`.
pub(crate) fn document(command: &str) -> Map<String, Value> {
    let mut version = Map::new();
    version.insert("command".into(), command.into());
    version.insert("vers_major".into(), 0.into());
    version.insert("vers_minor".into(), 1.into());
    let mut document = Map::new();
    document.insert("output_version".into(), version.into());
    document
}

/// Returns what identifies a vdev with this name, and its state.
pub(super) fn vdev(
    form: Form,
    vdev: &VdevReport,
    name: &str,
    is_typed: bool,
) -> Map<String, Value> {
    let class = match vdev.class {
        Some(AllocationClass::Special) => "special",
        Some(AllocationClass::Dedup) => "dedup",
        Some(AllocationClass::Log) => "log",
        _ => "normal",
    };
    let is_leaf = vdev.children.is_empty() && vdev.kind != VdevKind::Root;
    let mut map = Map::new();
    map.insert("name".into(), name.into());
    if is_typed {
        map.insert("type".into(), "VDEV".into());
    }
    map.insert("vdev_type".into(), vdev.kind.name().into());
    map.insert("guid".into(), form.number(vdev.guid));
    if let Some(path) = vdev.path.as_ref().filter(|_| is_leaf) {
        map.insert("path".into(), path.clone().into());
    }
    map.insert("class".into(), class.into());
    map.insert("state".into(), state_name(vdev.state, vdev.aux).into());
    map
}

/// Prints a document on one line.
pub(crate) fn print(document: Map<String, Value>, io: &mut Io<'_>) -> CommandResult {
    writeln!(io.out, "{}", Value::Object(document))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_text_unless_asked_for() {
        let plain = Form { is_wanted: true, ..Form::default() };
        let numbers = Form { has_numbers: true, ..plain };
        assert_eq!(plain.value("12"), Value::from("12"));
        assert_eq!(numbers.value("12"), Value::from(12));
        assert_eq!(numbers.value("12K"), Value::from("12K"));
        let text = Value::Object(document("zfs list")).to_string();
        let head = r#"{"output_version":{"command":"zfs list","vers_major":0,"vers_minor":1}}"#;
        assert_eq!(text, head);
    }
}
