//! Formats of property values: for people, or with `-p` for scripts.
//!
//! Space has a unit even if it is zero ("0B"), other numbers do not ("0"). A quota or limit of zero
//! is "none"; identifiers are never rounded (observed; spec 04 §17.3).

use cenote_pool::props::userspace;
use cenote_pool::props::{Form, PropRow, PropType, PropValue};
use jiff::Timestamp;

use crate::{environment, nicenum};

/// Space properties that have a unit even at zero.
const SPACE: [&str; 7] = [
    "used",
    "available",
    "referenced",
    "usedbysnapshots",
    "usedbydataset",
    "usedbychildren",
    "usedbyrefreservation",
];

/// Numbers that are identifiers.
const IDENTIFIERS: [&str; 9] = [
    "guid",
    "createtxg",
    "objsetid",
    "pbkdf2iters",
    "keyguid",
    "ivsetguid",
    "load_guid",
    "last_scrubbed_txg",
    "version",
];

/// Formats a value for a table.
pub(crate) fn shown(row: &PropRow, is_literal: bool) -> String {
    match row.value {
        PropValue::Number(number) if !is_literal => readable(row, number),
        _ => row.literal(),
    }
}

fn readable(row: &PropRow, number: u64) -> String {
    let name = row.name.as_str();
    if IDENTIFIERS.contains(&name) {
        return row.literal();
    }
    let Some(property) = row.property else {
        return match userspace::parse(name) {
            Some((kind, _)) if kind.is_quota && number == 0 => "none".to_owned(),
            Some((kind, _)) if kind.is_objects => nicenum::bytes(number),
            _ => nicenum::bytes_b(number),
        };
    };
    let PropType::Number(form) = property.value_type else { return row.literal() };
    match form {
        Form::Date if name == "creation" => date(number, "%a %b %e %k:%M %Y"),
        Form::Date => date(number, "%a %b %e %k:%M:%S %Y"),
        Form::Ratio => format!("{}x", row.literal()),
        Form::Percent => format!("{number}%"),
        Form::BytesOrNone if number == 0 => "none".to_owned(),
        Form::CountOrNone if number == u64::MAX => "none".to_owned(),
        Form::Bytes if SPACE.contains(&name) => nicenum::bytes_b(number),
        // Nothing to expand into, no checkpoint.
        Form::Bytes if number == 0 && matches!(name, "expandsize" | "checkpoint") => "-".to_owned(),
        _ => nicenum::bytes(number),
    }
}

/// Time format of `ctime`, and of `strftime`'s `%c` in the C locale.
pub(crate) const CTIME: &str = "%a %b %e %H:%M:%S %Y";

/// Formats seconds since 1970 in local time.
pub(crate) fn date(seconds: u64, format: &str) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    let time = Timestamp::from_second(seconds).unwrap_or(Timestamp::UNIX_EPOCH);
    time.to_zoned(environment::time_zone()).strftime(format).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_pool::props::{Source, dataset_property, pool_property};

    fn show(name: &str, number: u64) -> String {
        let property = dataset_property(name).or_else(|| pool_property(name)).expect("property");
        shown(&PropRow::native(property, PropValue::Number(number), Source::None), false)
    }

    #[test]
    fn numbers_for_people() {
        for (name, number, want) in [
            ("used", 0, "0B"),
            ("used", 129_024, "126K"),
            ("written", 0, "0"),
            ("special_small_blocks", 0, "0"),
            ("recordsize", 131_072, "128K"),
            ("quota", 0, "none"),
            ("quota", 104_857_600, "100M"),
            ("compressratio", 159, "1.59x"),
            ("filesystem_limit", u64::MAX, "none"),
            ("guid", 12_345_678, "12345678"),
            ("capacity", 6, "6%"),
            ("size", 117_440_512, "112M"),
            ("checksum", 14, "blake3"),
        ] {
            assert_eq!(show(name, number), want, "{name}");
        }
        let row = PropRow::other("userquota@5", PropValue::Number(0), Source::Local);
        assert_eq!((shown(&row, false), shown(&row, true)), ("none".into(), "0".into()));
    }

    #[test]
    fn dates() {
        let text = date(1_795_226_802, "%Y %M %S");
        assert!(text.starts_with("2026 "), "{text}");
        // Hours and days are padded with blanks.
        assert_eq!(date(0, "%e %k").len(), 5);
    }
}
