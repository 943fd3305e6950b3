//! Keys of the error logs (spec 04 §22, 08 §36).
//!
//! ```text
//!   plain          objset:object:level:blkid                  one ZAP
//!   head_errlog    objset of the head  -->  object:level:blkid:birth
//! ```
//!
//! All fields are lower-case hexadecimal of a u64, so level -1 reads `ffffffffffffffff`. Values are
//! empty strings. A birth of 0 is unknown.

use crate::bookmark::Bookmark;

/// Pool directory: log of errors since the last completed scan, and of that scan; 0 = none.
pub const ERRLOG_LAST: &str = "errlog_last";
/// Pool directory: log of the running scrub.
pub const ERRLOG_SCRUB: &str = "errlog_scrub";

/// An entry of a plain log.
#[must_use]
pub fn parse_plain(key: &[u8]) -> Option<Bookmark> {
    fields(key).map(Bookmark::from_words)
}

/// An entry in the log of one head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeadEntry {
    /// Object in the set.
    pub object: u64,
    /// Level.
    pub level: i64,
    /// Block at that level.
    pub blkid: u64,
    /// Physical birth, 0 = unknown.
    pub birth: u64,
}

impl HeadEntry {
    /// Parses a second-level key.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<Self> {
        let [object, level, blkid, birth] = fields(key)?;
        Some(Self { object, level: level as i64, blkid, birth })
    }

    /// The key.
    #[must_use]
    pub fn format(&self) -> String {
        format!("{:x}:{:x}:{:x}:{:x}", self.object, self.level, self.blkid, self.birth)
    }
}

/// The key of a plain entry.
#[must_use]
pub fn format_plain(place: &Bookmark) -> String {
    format!("{:x}:{:x}:{:x}:{:x}", place.objset, place.object, place.level, place.blkid)
}

fn fields(key: &[u8]) -> Option<[u64; 4]> {
    let text = str::from_utf8(key).ok()?;
    let mut parts = text.split(':').map(|part| {
        let is_hex = part.bytes().all(|byte| byte.is_ascii_hexdigit());
        u64::from_str_radix(part, 16).ok().filter(|_| is_hex)
    });
    let mut next = || parts.next().flatten();
    let fields = [next()?, next()?, next()?, next()?];
    parts.next().is_none().then_some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        let place = Bookmark { objset: 54, object: 2, level: -1, blkid: 0x1f };
        assert_eq!(format_plain(&place), "36:2:ffffffffffffffff:1f");
        assert_eq!(parse_plain(b"36:2:ffffffffffffffff:1f"), Some(place));
        let entry = HeadEntry { object: 2, level: 0, blkid: 7, birth: 0x1b };
        assert_eq!(HeadEntry::parse(entry.format().as_bytes()), Some(entry));
        for bad in ["", "1:2:3", "1:2:3:4:5", "1:2:+3:4", "1::3:4", "g:2:3:4"] {
            assert_eq!(parse_plain(bad.as_bytes()), None, "{bad}");
        }
    }
}
