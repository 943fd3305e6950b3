//! Arguments `OBJECT,OFFSET[,TYPE]`: blocks by object number and offset.

use crate::io::{CommandResult, Exit};

/// A block, and the text behind its offset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place<'a> {
    /// Object number.
    pub(super) object: u64,
    /// Offset in the object.
    pub(super) offset: u64,
    /// Text behind a second comma.
    pub(super) rest: Option<&'a str>,
}

impl<'a> Place<'a> {
    pub(super) fn parse(argument: &'a str) -> CommandResult<Self> {
        let (object, rest) = argument.split_once(',').ok_or_else(|| Exit::usage(""))?;
        let (offset, rest) = match rest.split_once(',') {
            Some((offset, rest)) => (offset, Some(rest)),
            None => (rest, None),
        };
        let number = |text, what| {
            number(text).ok_or_else(|| Exit::failed(format!("zstream: invalid value for {what}")))
        };
        let object = number(object, "object")?;
        Ok(Self { object, offset: number(offset, "offset")?, rest })
    }
}

/// A number as C's `strtoull` with base 0 reads it; no digits are 0. `None` if more text follows,
/// or the number does not fit.
fn number(text: &str) -> Option<u64> {
    let text = text.trim_start_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b');
    let (is_negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let is_hex = |digits: &str| digits.starts_with(|c: char| c.is_ascii_hexdigit());
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X"));
    let (radix, digits) = match hex.filter(|digits| is_hex(digits)) {
        Some(digits) => (16, digits),
        None if digits.len() > 1 && digits.starts_with('0') => (8, digits),
        None => (10, digits),
    };
    if digits.is_empty() && digits.len() == text.len() {
        return Some(0);
    }
    if !digits.starts_with(|c: char| c.is_ascii_hexdigit()) {
        return None;
    }
    let number = u64::from_str_radix(digits, radix).ok()?;
    Some(if is_negative { number.wrapping_neg() } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_strtoull() {
        for (text, want) in [
            ("", Some(0)),
            ("7", Some(7)),
            ("0x10", Some(16)),
            ("010", Some(8)),
            (" 7", Some(7)),
            ("-1", Some(u64::MAX)),
            ("+5", Some(5)),
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("99999999999999999999", None),
            ("08", None),
            ("0x", None),
            ("x", None),
            ("7x", None),
            ("-", None),
            ("+-5", None),
        ] {
            assert_eq!(number(text), want, "{text:?}");
        }
    }
}
