//! Names of datasets, snapshots and bookmarks, and every way in which one can be wrong
//! (spec 04 §6).
//!
//!     pool/a/b          a file system or volume
//!     pool/a/b@name     a snapshot
//!     pool/a/b#name     a bookmark

use std::fmt;

/// Bytes that a whole name must stay below.
pub const NAME_MAX: usize = 256;

/// What a name names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suffix<'a> {
    /// A file system or volume.
    None,
    /// The snapshot of this name.
    Snapshot(&'a str),
    /// The bookmark of this name.
    Bookmark(&'a str),
}

/// A checked name, in its parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatasetName<'a> {
    /// The pool: the part before the first slash.
    pub pool: &'a str,
    /// The file system or volume, with the pool's name.
    pub dataset: &'a str,
    /// What hangs on it.
    pub suffix: Suffix<'a>,
}

/// Every way in which the name of a new pool can be refused. The texts are OpenZFS's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPoolName {
    /// Does not begin with an ASCII letter.
    #[error("name must begin with a letter")]
    NoLetter,
    /// A word that stands for a kind of vdev in the syntax of layouts.
    #[error("name is reserved")]
    Reserved,
    /// A character that no pool's name may have.
    #[error("invalid character '{0}' in pool name")]
    InvalidCharacter(char),
    /// 256 bytes or more.
    #[error("name is too long")]
    TooLong,
}

/// Names that no pool may have.
const RESERVED: [&str; 8] =
    ["mirror", "raidz", "draid", "spare", "log", "cache", "special", "dedup"];

/// Refuses names that no new pool may have (spec 04 §6).
///
/// # Errors
/// The first reason, in OpenZFS's order.
pub fn check_pool_name(name: &str) -> Result<(), BadPoolName> {
    if name.contains('/') {
        return Err(BadPoolName::InvalidCharacter('/'));
    }
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        return Err(BadPoolName::NoLetter);
    }
    if RESERVED.contains(&name) || name.starts_with("raidz") || name.starts_with("draid") {
        return Err(BadPoolName::Reserved);
    }
    let is_legal = |c: char| c.is_ascii_alphanumeric() || "-_.: ".contains(c);
    if let Some(c) = name.chars().find(|c| !is_legal(*c)) {
        return Err(BadPoolName::InvalidCharacter(c));
    }
    if name.len() >= NAME_MAX { Err(BadPoolName::TooLong) } else { Ok(()) }
}

/// Every way in which a name can be refused. The texts are OpenZFS's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// 256 bytes or more.
    #[error("name is too long")]
    TooLong,
    /// Starts with a slash.
    #[error("leading slash in name")]
    LeadingSlash,
    /// Two slashes in a row, or nothing at all before or after a delimiter.
    #[error("empty component or misplaced '@' or '#' delimiter in name")]
    EmptyComponent,
    /// Ends with a slash.
    #[error("trailing slash in name")]
    TrailingSlash,
    /// A character that no name may have.
    #[error("invalid character '{0}' in name")]
    InvalidCharacter(char),
    /// More than one `@` or `#`.
    #[error("multiple '@' and/or '#' delimiters in name")]
    MultipleDelimiters,
    /// The component `.`.
    #[error("self reference, '.' is found in name")]
    SelfReference,
    /// The component `..`.
    #[error("parent reference, '..' is found in name")]
    ParentReference,
}

impl<'a> DatasetName<'a> {
    /// Takes a name apart and checks it.
    ///
    /// # Errors
    /// The first thing that is wrong with it.
    pub fn parse(name: &'a str) -> Result<Self, BadName> {
        if name.len() >= NAME_MAX {
            return Err(BadName::TooLong);
        }
        if name.starts_with('/') {
            return Err(BadName::LeadingSlash);
        }
        let (dataset, suffix) = match name.find(['@', '#']) {
            None => (name, Suffix::None),
            Some(at) => {
                let (dataset, rest) = (&name[..at], &name[at + 1..]);
                if rest.contains(['@', '#']) {
                    return Err(BadName::MultipleDelimiters);
                }
                if rest.is_empty() {
                    return Err(BadName::EmptyComponent);
                }
                check_characters(rest)?;
                let is_snapshot = name.as_bytes().get(at) == Some(&b'@');
                (dataset, if is_snapshot { Suffix::Snapshot(rest) } else { Suffix::Bookmark(rest) })
            }
        };
        if dataset.ends_with('/') && matches!(suffix, Suffix::None) {
            return Err(BadName::TrailingSlash);
        }
        for component in dataset.split('/') {
            match component {
                "" => return Err(BadName::EmptyComponent),
                "." => return Err(BadName::SelfReference),
                ".." => return Err(BadName::ParentReference),
                _ => check_characters(component)?,
            }
        }
        let pool = dataset.split('/').next().unwrap_or(dataset);
        Ok(Self { pool, dataset, suffix })
    }

    /// The components below the pool.
    pub fn components(&self) -> impl Iterator<Item = &'a str> {
        self.dataset.split('/').skip(1)
    }
}

fn check_characters(component: &str) -> Result<(), BadName> {
    // '%' belongs to internal temporaries: it can be looked up, and cannot be created.
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.: %$".contains(c);
    match component.chars().find(|c| !legal(*c)) {
        Some('/') => Err(BadName::EmptyComponent),
        Some(c) => Err(BadName::InvalidCharacter(c)),
        None => Ok(()),
    }
}

/// The parent's name, if there is one.
#[must_use]
pub fn parent(dataset: &str) -> Option<&str> {
    dataset.rsplit_once('/').map(|(parent, _)| parent)
}

/// Whether a component belongs to the pool itself (`$MOS`, `$FREE`, `$ORIGIN`, `$LEAK`) or to an
/// operation under way (`%recv`), and is hidden from listings.
#[must_use]
pub fn is_internal(component: &str) -> bool {
    component.contains(['$', '%'])
}

impl fmt::Display for DatasetName<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.suffix {
            Suffix::None => f.write_str(self.dataset),
            Suffix::Snapshot(name) => write!(f, "{}@{name}", self.dataset),
            Suffix::Bookmark(name) => write!(f, "{}#{name}", self.dataset),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_apart() {
        let name = DatasetName::parse("p/a b/c@s.1").unwrap();
        assert_eq!((name.pool, name.dataset), ("p", "p/a b/c"));
        assert_eq!(name.suffix, Suffix::Snapshot("s.1"));
        assert_eq!(name.components().collect::<Vec<_>>(), ["a b", "c"]);
        assert_eq!(name.to_string(), "p/a b/c@s.1");
        assert_eq!(DatasetName::parse("p#m").unwrap().suffix, Suffix::Bookmark("m"));
        assert_eq!((parent("p/a"), parent("p")), (Some("p"), None));
    }

    #[test]
    fn wrong_names_are_told_why() {
        for (name, want) in [
            ("/p", BadName::LeadingSlash),
            ("p/", BadName::TrailingSlash),
            ("p//a", BadName::EmptyComponent),
            ("", BadName::EmptyComponent),
            ("p@", BadName::EmptyComponent),
            ("@s", BadName::EmptyComponent),
            ("p@a@b", BadName::MultipleDelimiters),
            ("p#a@b", BadName::MultipleDelimiters),
            ("p/./a", BadName::SelfReference),
            ("p/..", BadName::ParentReference),
            ("p/a*", BadName::InvalidCharacter('*')),
            ("p@a/b", BadName::EmptyComponent),
        ] {
            assert_eq!(DatasetName::parse(name), Err(want), "{name}");
        }
        assert_eq!(DatasetName::parse(&"x".repeat(256)), Err(BadName::TooLong));
    }
}
