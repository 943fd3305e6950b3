//! Command-line arguments as text, without losing bytes that are not UTF-8.
//!
//! Commands take their arguments as `String`, but names on Unix are bytes. A byte that is not part
//! of valid UTF-8 becomes the private-use character U+F700 + byte, and [`bytes`] converts it back.
//! The bytes of those private-use characters themselves are escaped in the same way, so the round
//! trip is exact.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// The character that represents byte 0; byte `n` is `BASE + n`.
const BASE: u32 = 0xf700;

/// Returns the text that represents an argument.
pub fn from_os(argument: &OsStr) -> String {
    let mut text = String::new();
    for chunk in argument.as_bytes().utf8_chunks() {
        for character in chunk.valid().chars() {
            if is_escape(character) {
                let mut utf8 = [0; 4];
                text.extend(character.encode_utf8(&mut utf8).bytes().map(escape));
            } else {
                text.push(character);
            }
        }
        text.extend(chunk.invalid().iter().copied().map(escape));
    }
    text
}

/// Returns the bytes that the text represents.
pub fn bytes(text: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len());
    for character in text.chars() {
        if is_escape(character) {
            bytes.push((u32::from(character) - BASE) as u8);
        } else {
            bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
        }
    }
    bytes
}

/// Returns the path on this machine that the text represents.
pub fn path(text: &str) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes(text)))
}

fn escape(byte: u8) -> char {
    char::from_u32(BASE + u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER)
}

fn is_escape(character: char) -> bool {
    (BASE + 0x80..BASE + 0x100).contains(&u32::from(character))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_survive_the_round_trip() {
        for raw in [
            &b"plain"[..],
            "caf\u{e9} \u{1f980}".as_bytes(),
            b"\xff\xfe/a\x80",
            "\u{f780}\u{f7ff}".as_bytes(),
        ] {
            assert_eq!(bytes(&from_os(OsStr::from_bytes(raw))), raw, "{raw:?}");
        }
        assert_eq!(from_os(OsStr::from_bytes(b"plain")), "plain");
    }
}
