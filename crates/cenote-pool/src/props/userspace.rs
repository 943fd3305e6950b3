//! Space and limits by owner: users, groups, projects (spec 03 §13, `zfs userspace`).
//!
//! The space used by each owner is counted in three special objects of a file system's object set,
//! keyed by the id in hex; quotas are in ZAPs that the master node names. An id with a domain (of a
//! foreign directory service) has the domain's index in its upper half.

use std::collections::BTreeMap;
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::dsl::key;
use cenote_ondisk::master_node::MASTER_NODE_OBJ;
use cenote_ondisk::quota::{GROUPUSED_OBJECT, PROJECTUSED_OBJECT, USERUSED_OBJECT, UsedKey};
use cenote_rt::Result;

use crate::dsl::Dataset;
use crate::mos;

/// Type of owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SpaceOwner {
    /// A user.
    User,
    /// A group.
    Group,
    /// A project.
    Project,
}

/// Kind of a figure: type of owner, space or objects, usage or quota.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SpaceKind {
    /// Type of owner.
    pub owner: SpaceOwner,
    /// Counts objects instead of bytes.
    pub is_objects: bool,
    /// The quota instead of the usage.
    pub is_quota: bool,
}

/// Usage and quotas of one owner.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpaceRow {
    /// The id, with a domain's index in the upper half.
    pub id: u64,
    /// Bytes used.
    pub used: u64,
    /// Quota in bytes, 0 for none.
    pub quota: u64,
    /// Objects owned.
    pub objects_used: u64,
    /// Quota of objects, 0 for none.
    pub objects_quota: u64,
}

impl SpaceOwner {
    /// All types.
    pub const ALL: [Self; 3] = [Self::User, Self::Group, Self::Project];

    fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Group => "group",
            Self::Project => "project",
        }
    }

    /// Returns the special object with the usage.
    fn object(self) -> u64 {
        match self {
            Self::User => USERUSED_OBJECT,
            Self::Group => GROUPUSED_OBJECT,
            Self::Project => PROJECTUSED_OBJECT,
        }
    }

    /// Returns the master node's entry for the quotas.
    fn quota_key(self, is_objects: bool) -> String {
        format!("{}{}quota@", self.name(), if is_objects { "obj" } else { "" })
    }
}

/// Splits a property such as `userobjquota@1000` into kind and owner.
#[must_use]
pub fn parse(property: &str) -> Option<(SpaceKind, &str)> {
    let (family, owner_text) = property.split_once('@')?;
    for owner in SpaceOwner::ALL {
        let Some(rest) = family.strip_prefix(owner.name()) else { continue };
        let (is_objects, rest) = match rest.strip_prefix("obj") {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let is_quota = match rest {
            "used" => false,
            "quota" => true,
            _ => continue,
        };
        return Some((SpaceKind { owner, is_objects, is_quota }, owner_text));
    }
    None
}

async fn quota_zap(
    objset: &Arc<ObjSet>,
    owner: SpaceOwner,
    is_objects: bool,
) -> Result<Option<u64>> {
    mos::u64(objset, MASTER_NODE_OBJ, &owner.quota_key(is_objects)).await
}

/// Returns one figure; `owner` is a decimal id. `None` if it is not a number or usage is not
/// counted; 0 if the owner has nothing.
pub(crate) async fn one(dataset: &Dataset, kind: SpaceKind, owner: &str) -> Result<Option<u64>> {
    let Ok(id) = owner.parse::<u64>() else { return Ok(None) };
    let objset = dataset.open().await?;
    if kind.is_quota {
        let key = key::of_number(id);
        let zap = quota_zap(&objset, kind.owner, kind.is_objects).await?;
        return Ok(Some(match zap {
            Some(zap) => mos::u64(&objset, zap, &key).await?.unwrap_or(0),
            None => 0,
        }));
    }
    let key = if kind.is_objects { UsedKey::Objects(id) } else { UsedKey::Space(id) }.format();
    let value = match mos::optional(mos::u64(&objset, kind.owner.object(), &key).await)? {
        Some(value) => value.unwrap_or(0),
        None => return Ok(None),
    };
    Ok(Some(value))
}

impl Dataset {
    /// Returns usage and quotas of every user, group or project that has any, by id.
    pub async fn space_by_owner(&self, owner: SpaceOwner) -> Result<Vec<SpaceRow>> {
        let objset = self.open().await?;
        let mut rows: BTreeMap<u64, SpaceRow> = BTreeMap::new();
        let used = mos::optional(mos::entries(&objset, owner.object()).await)?;
        for (name, value) in used.unwrap_or_default() {
            let Some(value) = value.first() else { continue };
            match UsedKey::parse(name.as_bytes()) {
                Some(UsedKey::Space(id)) => row_of(&mut rows, id).used = value,
                Some(UsedKey::Objects(id)) => row_of(&mut rows, id).objects_used = value,
                None => {}
            }
        }
        for is_objects in [false, true] {
            let Some(zap) = quota_zap(&objset, owner, is_objects).await? else { continue };
            for (id, value) in mos::entries(&objset, zap).await? {
                let (Some(id), Some(value)) = (key::to_number(id.as_bytes()), value.first()) else {
                    continue;
                };
                let row = row_of(&mut rows, id);
                *(if is_objects { &mut row.objects_quota } else { &mut row.quota }) = value;
            }
        }
        Ok(rows.into_values().collect())
    }
}

fn row_of(rows: &mut BTreeMap<u64, SpaceRow>, id: u64) -> &mut SpaceRow {
    rows.entry(id).or_insert(SpaceRow { id, ..SpaceRow::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn userspace_property_names_are_parsed() {
        let kind = |owner, is_objects, is_quota| SpaceKind { owner, is_objects, is_quota };
        for (name, want) in [
            ("userused@root", Some((kind(SpaceOwner::User, false, false), "root"))),
            ("groupobjquota@7", Some((kind(SpaceOwner::Group, true, true), "7"))),
            ("projectquota@5", Some((kind(SpaceOwner::Project, false, true), "5"))),
            ("useful@5", None),
            ("used", None),
        ] {
            assert_eq!(parse(name), want, "{name}");
        }
    }
}
