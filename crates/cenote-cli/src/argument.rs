//! Arguments of the command line as text that loses nothing.
//!
//! Commands take their arguments as `String`, and names on Unix are bytes. A byte that is not part
//! of valid UTF-8 becomes a character of a private area, U+F700 + byte, and [`bytes`] turns it
//! back; so do the bytes of those characters themselves, which makes the way back exact.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// What stands for byte 0.
const BASE: u32 = 0xf700;

/// The text for an argument.
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

/// The bytes that the text stands for.
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

/// The path of this machine that the text stands for.
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
    fn the_way_back_is_exact() {
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
