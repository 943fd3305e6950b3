//! Keys of a props ZAP: a property's name with a suffix for the kind of setting.
//!
//! Values are one u64 (numbers and indexes) or a string with its NUL; the property table in the
//! layers above interprets the numbers. Entries with an unknown `$suffix` must be skipped and
//! preserved (spec 04 §7.1).

/// Suffix of a received value.
pub const RECEIVED_SUFFIX: &str = "$recvd";
/// Suffix of an explicit "inherit" that hides a received value.
pub const INHERIT_SUFFIX: &str = "$inherit";
/// Suffix of the real value behind an old default ("ignore unknown values").
pub const IUV_SUFFIX: &str = "$iuv";
/// Key: this dataset has received properties.
pub const HAS_RECEIVED: &str = "$hasrecvd";

/// Kind of an entry in a props ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PropEntry<'a> {
    /// A local value.
    Local(&'a str),
    /// A received value.
    Received(&'a str),
    /// Explicitly inherited, even if a received value exists.
    Inherit(&'a str),
    /// Value of an index property that old software does not support.
    Iuv(&'a str),
    /// The marker [`HAS_RECEIVED`].
    HasReceived,
    /// An unknown suffix, of newer software.
    Unknown(&'a str),
}

impl<'a> PropEntry<'a> {
    /// Classifies a key.
    #[must_use]
    pub fn parse(key: &'a str) -> Self {
        if key == HAS_RECEIVED {
            return Self::HasReceived;
        }
        let Some(at) = key.find('$') else { return Self::Local(key) };
        let (name, suffix) = key.split_at(at);
        match suffix {
            RECEIVED_SUFFIX => Self::Received(name),
            INHERIT_SUFFIX => Self::Inherit(name),
            IUV_SUFFIX => Self::Iuv(name),
            _ => Self::Unknown(key),
        }
    }
}

/// `dedup` and `checksum` values: this bit requests a byte comparison.
pub const CHECKSUM_VERIFY: u64 = 0x100;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suffixes() {
        for (key, want) in [
            ("compression", PropEntry::Local("compression")),
            ("user:x", PropEntry::Local("user:x")),
            ("atime$recvd", PropEntry::Received("atime")),
            ("atime$inherit", PropEntry::Inherit("atime")),
            ("snapdir$iuv", PropEntry::Iuv("snapdir")),
            ("$hasrecvd", PropEntry::HasReceived),
            ("x$later", PropEntry::Unknown("x$later")),
        ] {
            assert_eq!(PropEntry::parse(key), want);
        }
    }
}
