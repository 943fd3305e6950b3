//! Formats of values in `zdb`: times, histograms, nvlists.

use cenote_ondisk::nvlist::{NvList, NvValue};
use jiff::Timestamp;
use jiff::tz::TimeZone;

use crate::io::{CommandResult, Io};
use crate::out;

/// Widest row of stars in a histogram.
const HISTOGRAM_WIDTH: u64 = 40;

fn local(seconds: i64, format: &str) -> String {
    match Timestamp::from_second(seconds) {
        Ok(time) => time.to_zoned(TimeZone::system()).strftime(format).to_string(),
        Err(_) => seconds.to_string(),
    }
}

/// Formats local time as C's `ctime`: `Sat Nov 21 02:06:32 2026`.
pub(super) fn time(seconds: u64) -> String {
    local(seconds as i64, "%a %b %e %H:%M:%S %Y")
}

/// Formats local time as in the history: `2026-11-21.02:06:32`.
pub(super) fn history_time(seconds: u64) -> String {
    local(seconds as i64, "%Y-%m-%d.%H:%M:%S")
}

/// Returns the time zone's abbreviation, printed after a label's timestamp.
pub(super) fn zone(seconds: u64) -> String {
    local(seconds as i64, "%Z")
}

/// Prints the buckets from the first to the last nonempty one, with rows of stars.
pub(super) fn histogram(io: &mut Io<'_>, buckets: &[u64], first: usize) -> CommandResult {
    let is_used = |count: &u64| *count != 0;
    let Some(start) = buckets.iter().position(is_used) else { return Ok(()) };
    let end = buckets.iter().rposition(is_used).unwrap_or(start);
    let max = buckets.iter().copied().max().unwrap_or(0).max(HISTOGRAM_WIDTH);
    for (index, count) in buckets.iter().enumerate().take(end + 1).skip(start) {
        let blank = u128::from(max - count) * u128::from(HISTOGRAM_WIDTH) / u128::from(max);
        let stars = "*".repeat((u128::from(HISTOGRAM_WIDTH) - blank) as usize);
        out!(io, "\t\t\t{:3}: {count:6} {stars}", index + first)?;
    }
    Ok(())
}

/// Prints a list: one line per scalar, nested lists indented by four columns.
pub(crate) fn nvlist(io: &mut Io<'_>, list: &NvList, indent: usize) -> CommandResult {
    for (name, value) in list.iter() {
        match value {
            NvValue::List(inner) => {
                out!(io, "{:indent$}{name}:", "")?;
                nvlist(io, inner, indent + 4)?;
            }
            NvValue::ListArray(lists) => {
                for (index, inner) in lists.iter().enumerate() {
                    out!(io, "{:indent$}{name}[{index}]:", "")?;
                    nvlist(io, inner, indent + 4)?;
                }
            }
            NvValue::Boolean => out!(io, "{:indent$}{name}", "")?,
            value => match elements(value) {
                Elements::One(text) => out!(io, "{:indent$}{name}: {text}", "")?,
                Elements::Many(texts) => {
                    for (index, text) in texts.iter().enumerate() {
                        out!(io, "{:indent$}{name}[{index}]: {text}", "")?;
                    }
                }
            },
        }
    }
    Ok(())
}

enum Elements {
    One(String),
    Many(Vec<String>),
}

fn many<T: ToString>(values: &[T]) -> Elements {
    Elements::Many(values.iter().map(ToString::to_string).collect())
}

fn elements(value: &NvValue) -> Elements {
    let one = match value {
        NvValue::BooleanValue(value) => value.to_string(),
        NvValue::Byte(value) | NvValue::Uint8(value) => value.to_string(),
        NvValue::Int8(value) => value.to_string(),
        NvValue::Int16(value) => value.to_string(),
        NvValue::Uint16(value) => value.to_string(),
        NvValue::Int32(value) => value.to_string(),
        NvValue::Uint32(value) => value.to_string(),
        NvValue::Int64(value) | NvValue::Hrtime(value) => value.to_string(),
        NvValue::Uint64(value) => value.to_string(),
        NvValue::Double(value) => value.to_string(),
        NvValue::String(value) => format!("'{value}'"),
        NvValue::ByteArray(values) | NvValue::Uint8Array(values) => return many(values),
        NvValue::Int8Array(values) => return many(values),
        NvValue::Int16Array(values) => return many(values),
        NvValue::Uint16Array(values) => return many(values),
        NvValue::Int32Array(values) => return many(values),
        NvValue::Uint32Array(values) => return many(values),
        NvValue::Int64Array(values) => return many(values),
        NvValue::Uint64Array(values) => return many(values),
        NvValue::BooleanArray(values) => return many(values),
        NvValue::StringArray(values) => {
            return Elements::Many(values.iter().map(|value| format!("'{value}'")).collect());
        }
        NvValue::Boolean | NvValue::List(_) | NvValue::ListArray(_) => String::new(),
    };
    Elements::One(one)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(print: impl FnOnce(&mut Io<'_>) -> CommandResult) -> String {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        print(&mut Io { out: &mut out, err: &mut err }).expect("printed");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn stars_are_scaled_to_the_largest_bucket() {
        let text = printed(|io| histogram(io, &[0, 497, 0, 15], 0));
        let stars = "*".repeat(40);
        assert_eq!(
            text,
            format!("\t\t\t  1:    497 {stars}\n\t\t\t  2:      0 \n\t\t\t  3:     15 **\n")
        );
    }

    #[test]
    fn lists_are_indented() {
        let inner: NvList = [("path", NvValue::String("/d".into()))].into_iter().collect();
        let list: NvList = [
            ("txg", NvValue::Uint64(4)),
            ("txgs", NvValue::Uint64Array(vec![43])),
            ("has", NvValue::Boolean),
            ("children", NvValue::ListArray(vec![inner])),
        ]
        .into_iter()
        .collect();
        let text = printed(|io| nvlist(io, &list, 2));
        assert_eq!(text, "  txg: 4\n  txgs[0]: 43\n  has\n  children[0]:\n      path: '/d'\n");
    }
}
