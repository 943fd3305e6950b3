//! Names of datasets, snapshots and bookmarks, and the reasons to refuse one (spec 04 §6).
//!
//!     pool/a/b          a file system or volume
//!     pool/a/b@name     a snapshot
//!     pool/a/b#name     a bookmark

use std::fmt;

/// Names are shorter than this number of bytes.
pub const NAME_MAX: usize = 256;

/// The part of a name after the dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suffix<'a> {
    /// A file system or volume.
    None,
    /// The snapshot of this name.
    Snapshot(&'a str),
    /// The bookmark of this name.
    Bookmark(&'a str),
}

/// A checked name, in parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct DatasetName<'a> {
    /// The pool: the part before the first slash.
    pub pool: &'a str,
    /// The file system or volume, including the pool's name.
    pub dataset: &'a str,
    /// The snapshot or bookmark.
    pub suffix: Suffix<'a>,
}

/// Reasons to refuse the name of a new pool, with OpenZFS's texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadPoolName {
    /// Does not begin with an ASCII letter.
    #[error("name must begin with a letter")]
    NoLetter,
    /// A keyword of vdev specifications.
    #[error("name is reserved")]
    Reserved,
    /// A character that pool names cannot have.
    #[error("invalid character '{0}' in pool name")]
    InvalidCharacter(char),
    /// 256 bytes or more.
    #[error("name is too long")]
    TooLong,
}

/// Names that pools cannot have.
const RESERVED: [&str; 8] =
    ["mirror", "raidz", "draid", "spare", "log", "cache", "special", "dedup"];

/// Checks the name of a new pool (spec 04 §6).
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

/// Reasons to refuse a name, with OpenZFS's texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BadName {
    /// 256 bytes or more.
    #[error("name is too long")]
    TooLong,
    /// Starts with a slash.
    #[error("leading slash in name")]
    LeadingSlash,
    /// Two slashes in a row, or nothing before or after a delimiter.
    #[error("empty component or misplaced '@' or '#' delimiter in name")]
    EmptyComponent,
    /// Ends with a slash.
    #[error("trailing slash in name")]
    TrailingSlash,
    /// A character that names cannot have.
    #[error("invalid character '{0}' in name")]
    InvalidCharacter(char),
    /// More than one `@` or `#`.
    #[error("multiple '@' and/or '#' delimiters in name")]
    MultipleDelimiters,
    /// The name of a bookmark where one of a dataset is needed.
    #[error("a bookmark is not a dataset")]
    Bookmark,
    /// The name of a dataset where one of a bookmark is needed.
    #[error("not the name of a bookmark")]
    NotBookmark,
    /// The component `.`.
    #[error("self reference, '.' is found in name")]
    SelfReference,
    /// The component `..`.
    #[error("parent reference, '..' is found in name")]
    ParentReference,
}

impl<'a> DatasetName<'a> {
    /// Parses and checks a name.
    ///
    /// # Errors
    /// The first reason to refuse it.
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

    /// Returns the components after the pool.
    pub fn components(&self) -> impl Iterator<Item = &'a str> {
        self.dataset.split('/').skip(1)
    }
}

fn check_characters(component: &str) -> Result<(), BadName> {
    // '%' is for internal temporary datasets, which can be looked up but not created.
    let legal = |c: char| c.is_ascii_alphanumeric() || "-_.: %$".contains(c);
    match component.chars().find(|c| !legal(*c)) {
        Some('/') => Err(BadName::EmptyComponent),
        Some(c) => Err(BadName::InvalidCharacter(c)),
        None => Ok(()),
    }
}

/// Returns the name of the parent dataset.
#[must_use]
pub fn parent(dataset: &str) -> Option<&str> {
    dataset.rsplit_once('/').map(|(parent, _)| parent)
}

/// Whether a component is internal to the pool (`$MOS`, `$FREE`, `$ORIGIN`, `$LEAK`) or to a
/// running operation (`%recv`), and is hidden from listings.
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
    fn dataset_names_are_parsed() {
        let name = DatasetName::parse("p/a b/c@s.1").unwrap();
        assert_eq!((name.pool, name.dataset), ("p", "p/a b/c"));
        assert_eq!(name.suffix, Suffix::Snapshot("s.1"));
        assert_eq!(name.components().collect::<Vec<_>>(), ["a b", "c"]);
        assert_eq!(name.to_string(), "p/a b/c@s.1");
        assert_eq!(DatasetName::parse("p#m").unwrap().suffix, Suffix::Bookmark("m"));
        assert_eq!((parent("p/a"), parent("p")), (Some("p"), None));
    }

    #[test]
    fn invalid_dataset_names_are_refused_with_a_reason() {
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
