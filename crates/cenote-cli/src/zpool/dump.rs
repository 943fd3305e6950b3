//! Name/value lists as `zpool history -il` shows them: one pair per line, nested lists indented by
//! four.

use std::fmt::Write as _;

use cenote_ondisk::nvlist::{NvList, NvValue};

/// Appends the pairs of `list`, each after `indent` blanks.
pub(super) fn list(list: &NvList, indent: usize, text: &mut String) {
    for (name, value) in list.iter() {
        let name = name.to_string_lossy();
        let mut line = |value: &str| {
            let _ = writeln!(text, "{:indent$}{name}{value}", "");
        };
        match value {
            NvValue::Boolean => line(""),
            NvValue::List(below) => {
                line(":");
                self::list(below, indent + 4, text);
            }
            NvValue::ListArray(lists) => {
                for (index, below) in lists.iter().enumerate() {
                    let _ = writeln!(text, "{:indent$}{name}[{index}]:", "");
                    self::list(below, indent + 4, text);
                }
            }
            other => match elements(other) {
                Some(elements) => {
                    for (index, element) in elements.iter().enumerate() {
                        let _ = writeln!(text, "{:indent$}{name}[{index}]: {element}", "");
                    }
                }
                None => line(&format!(": {}", scalar(other))),
            },
        }
    }
}

fn scalar(value: &NvValue) -> String {
    match value {
        NvValue::Byte(number) | NvValue::Uint8(number) => number.to_string(),
        NvValue::Int8(number) => number.to_string(),
        NvValue::Int16(number) => number.to_string(),
        NvValue::Uint16(number) => number.to_string(),
        NvValue::Int32(number) => number.to_string(),
        NvValue::Uint32(number) => number.to_string(),
        NvValue::Int64(number) | NvValue::Hrtime(number) => number.to_string(),
        NvValue::Uint64(number) => number.to_string(),
        NvValue::Double(number) => number.to_string(),
        NvValue::BooleanValue(is_true) => is_true.to_string(),
        NvValue::String(text) => format!("'{}'", text.to_string_lossy()),
        _ => String::new(),
    }
}

fn elements(value: &NvValue) -> Option<Vec<String>> {
    fn texts<T: ToString>(elements: &[T]) -> Vec<String> {
        elements.iter().map(T::to_string).collect()
    }
    Some(match value {
        NvValue::ByteArray(elements) | NvValue::Uint8Array(elements) => texts(elements),
        NvValue::Int8Array(elements) => texts(elements),
        NvValue::Int16Array(elements) => texts(elements),
        NvValue::Uint16Array(elements) => texts(elements),
        NvValue::Int32Array(elements) => texts(elements),
        NvValue::Uint32Array(elements) => texts(elements),
        NvValue::Int64Array(elements) => texts(elements),
        NvValue::Uint64Array(elements) => texts(elements),
        NvValue::BooleanArray(elements) => texts(elements),
        NvValue::StringArray(elements) => {
            elements.iter().map(|text| format!("'{}'", text.to_string_lossy())).collect()
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_lines() {
        let mut props = NvList::new();
        props.insert("compression", NvValue::Uint64(15));
        props.insert("name", NvValue::String("x".into()));
        let mut top = NvList::new();
        top.insert("flag", NvValue::Boolean);
        top.insert("props", NvValue::List(props));
        let mut text = String::new();
        list(&top, 2, &mut text);
        assert_eq!(text, "  flag\n  props:\n      compression: 15\n      name: 'x'\n");
    }
}
