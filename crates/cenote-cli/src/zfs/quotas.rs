//! Quotas of users, groups and projects: `zfs set userquota@NAME=SIZE` and the like.
//!
//! They are not properties but entries in the file system itself (spec 03 §13.2).

use std::borrow::Cow;

use cenote_engine::{ApplyOptions, Engine};
use cenote_fs::quota::{self, Holder, Resource};
use cenote_pool::props::{SpaceOwner, quantity, userspace};
use cenote_rt::Result;

use crate::accounts::system_names;

/// A quota to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Limit {
    holder: Holder,
    resource: Resource,
    /// Bytes or objects; 0 for none.
    most: u64,
}

impl Limit {
    /// Parses `property=value` for a dataset of `kind`, a letter of the properties' types. Returns
    /// `None` if the property is not a quota.
    ///
    /// # Errors
    /// OpenZFS's message about what is wrong.
    pub(crate) fn parse(
        property: &str,
        value: &str,
        kind: char,
    ) -> Option<std::result::Result<Self, String>> {
        let (space, name) = userspace::parse(property)?;
        let limit = if !space.is_quota {
            Err(format!("'{property}' is readonly"))
        } else if kind != 'f' {
            Err(format!("'{property}' does not apply to datasets of this type"))
        } else {
            let invalid = || format!("property '{property}' has an invalid user/group name");
            id(space.owner, name).ok_or_else(invalid).and_then(|id| {
                let holder = match space.owner {
                    SpaceOwner::User => Holder::User(id),
                    SpaceOwner::Group => Holder::Group(id),
                    SpaceOwner::Project => Holder::Project(id),
                };
                let resource = if space.is_objects { Resource::Objects } else { Resource::Space };
                let most = if value == "none" { 0 } else { quantity::parse(value)? };
                Ok(Self { holder, resource, most })
            })
        };
        Some(limit)
    }

    /// Returns the permission that setting the quota needs.
    pub(super) const fn permission(self) -> &'static str {
        match (self.holder, self.resource) {
            (Holder::User(_), Resource::Space) => "userquota",
            (Holder::User(_), Resource::Objects) => "userobjquota",
            (Holder::Group(_), Resource::Space) => "groupquota",
            (Holder::Group(_), Resource::Objects) => "groupobjquota",
            (Holder::Project(_), Resource::Space) => "projectquota",
            (Holder::Project(_), Resource::Objects) => "projectobjquota",
        }
    }

    /// Sets the quota.
    pub(crate) async fn set(self, engine: &Engine, dataset: &str) -> Result<()> {
        let head = engine.head(dataset).await?;
        let Self { holder, resource, most } = self;
        engine
            .apply(&head, ApplyOptions::new(), |tx| quota::set_limit(tx, holder, resource, most))
            .await?;
        Ok(())
    }
}

/// Returns `userquota@NAME` and the like with the id in place of a known name; other properties as
/// they are.
pub(super) fn with_id(property: &str) -> Cow<'_, str> {
    let Some((space, name)) = userspace::parse(property) else { return property.into() };
    match (property.split_once('@'), id(space.owner, name)) {
        (Some((family, _)), Some(id)) => format!("{family}@{id}").into(),
        _ => property.into(),
    }
}

/// Returns the id of an owner, given as a number or by name.
fn id(owner: SpaceOwner, name: &str) -> Option<u64> {
    if let Ok(id) = name.parse::<u32>() {
        return Some(id.into());
    }
    let names = system_names(owner);
    names.into_iter().find(|(_, known)| known == name).map(|(id, _)| id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn userquota_values_are_parsed() {
        let limit = |holder, resource, most| Some(Ok(Limit { holder, resource, most }));
        for (property, value, want) in [
            ("userquota@1000", "1M", limit(Holder::User(1000), Resource::Space, 1 << 20)),
            ("userquota@root", "5", limit(Holder::User(0), Resource::Space, 5)),
            ("groupobjquota@7", "none", limit(Holder::Group(7), Resource::Objects, 0)),
            ("projectquota@42", "1G", limit(Holder::Project(42), Resource::Space, 1 << 30)),
            ("userused@5", "1", Some(Err("'userused@5' is readonly".to_owned()))),
            ("recordsize", "1M", None),
        ] {
            assert_eq!(Limit::parse(property, value, 'f'), want, "{property}");
        }
        assert_eq!(with_id("userused@root"), "userused@0");
        assert_eq!(with_id("projectquota@root"), "projectquota@root");
        assert_eq!(with_id("compression"), "compression");
        let nobody = Limit::parse("userquota@nobody there", "1", 'f').and_then(Result::err);
        assert!(nobody.is_some_and(|why| why.ends_with("has an invalid user/group name")));
        assert!(Limit::parse("userquota@5", "x", 'f').is_some_and(|limit| limit.is_err()));
        assert!(Limit::parse("userquota@5", "1", 'v').is_some_and(|limit| limit.is_err()));
    }
}
