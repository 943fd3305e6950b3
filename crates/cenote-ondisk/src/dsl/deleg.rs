//! Keys of a delegation ZAP: permissions of users and groups on a dataset (spec 04 §24).
//!
//! `who scope $ id`, for example `ul$1000` (user 1000, here), `ed$` (everyone, below), `c-$`
//! (create time), `s-$@name` (a named set). The value is a "jump" ZAP of permission names; for an
//! upper-case who it holds names of sets.

/// Subject of a permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A user id.
    User,
    /// A group id.
    Group,
    /// Everyone.
    Everyone,
    /// The creator of a descendant (create-time permissions).
    Create,
    /// Definition of a named set.
    Set,
}

/// Where a permission applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    /// This dataset.
    Local,
    /// The datasets below.
    Descendent,
    /// Neither (create-time permissions and sets).
    NotApplicable,
}

/// A parsed key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DelegKey<'a> {
    /// Subject.
    pub who: Who,
    /// Whether the jump ZAP lists permission sets rather than permissions.
    pub is_sets: bool,
    /// Where it applies.
    pub scope: Scope,
    /// Decimal id, `@name` of a set, or empty.
    pub id: &'a str,
}

impl<'a> DelegKey<'a> {
    /// Parses a key; `None` if it is malformed.
    #[must_use]
    pub fn parse(key: &'a str) -> Option<Self> {
        let (head, id) = key.split_once('$')?;
        let mut head = head.chars();
        let (Some(who_letter), Some(scope), None) = (head.next(), head.next(), head.next()) else {
            return None;
        };
        let who = match who_letter.to_ascii_lowercase() {
            'u' => Who::User,
            'g' => Who::Group,
            'e' => Who::Everyone,
            'c' => Who::Create,
            's' => Who::Set,
            _ => return None,
        };
        let scope = match scope {
            'l' => Scope::Local,
            'd' => Scope::Descendent,
            '-' => Scope::NotApplicable,
            _ => return None,
        };
        Some(Self { who, is_sets: who_letter.is_ascii_uppercase(), scope, id })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys() {
        for (key, want) in [
            ("ul$1000", Some((Who::User, false, Scope::Local, "1000"))),
            ("ed$", Some((Who::Everyone, false, Scope::Descendent, ""))),
            ("C-$", Some((Who::Create, true, Scope::NotApplicable, ""))),
            ("s-$@name", Some((Who::Set, false, Scope::NotApplicable, "@name"))),
            ("ul1000", None),
            ("u$1", None),
            ("xl$1", None),
        ] {
            let got = DelegKey::parse(key).map(|k| (k.who, k.is_sets, k.scope, k.id));
            assert_eq!(got, want, "{key}");
        }
    }
}
