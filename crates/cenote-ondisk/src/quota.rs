//! Keys of the accounting and quota ZAPs (spec 03 §13.2, §13.3).
//!
//! Space by owner is in three special objects of an object set; the key is the FUID or project id
//! in hex; with a prefix, the entry counts objects. The master node names the quota ZAPs, which use
//! plain hex keys.

use crate::dsl::key;

/// Prefix of a key that counts objects.
pub const OBJ_PREFIX: &str = "obj-";

/// Object with the space used by each user.
pub const USERUSED_OBJECT: u64 = u64::MAX;
/// Object with the space used by each group.
pub const GROUPUSED_OBJECT: u64 = u64::MAX - 1;
/// Object with the space used by each project.
pub const PROJECTUSED_OBJECT: u64 = u64::MAX - 2;

/// A key of an accounting ZAP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UsedKey {
    /// Bytes of this owner.
    Space(u64),
    /// Objects of this owner.
    Objects(u64),
}

impl UsedKey {
    /// Parses a key.
    #[must_use]
    pub fn parse(key: &[u8]) -> Option<Self> {
        match key.strip_prefix(OBJ_PREFIX.as_bytes()) {
            Some(id) => key::to_number(id).map(Self::Objects),
            None => key::to_number(key).map(Self::Space),
        }
    }

    /// The key.
    #[must_use]
    pub fn format(self) -> String {
        match self {
            Self::Space(id) => key::of_number(id),
            Self::Objects(id) => format!("{OBJ_PREFIX}{id:x}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for (key, want) in [
            ("0", Some(UsedKey::Space(0))),
            ("3e8", Some(UsedKey::Space(1000))),
            ("obj-3e8", Some(UsedKey::Objects(1000))),
            ("100000001", Some(UsedKey::Space(1 << 32 | 1))),
            ("obj-", None),
            ("xyz", None),
        ] {
            assert_eq!(UsedKey::parse(key.as_bytes()), want, "{key}");
            if let Some(parsed) = want {
                assert_eq!(parsed.format(), key);
            }
        }
    }
}
