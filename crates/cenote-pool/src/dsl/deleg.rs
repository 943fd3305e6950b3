//! Delegated permissions and their evaluation (spec 04 §24).
//!
//! ```text
//!   tank       everyone may "snapshot" below;  set @ops = create, destroy
//!    `- a      user 1000 may @ops here
//!        `- b  asks for user 1000 and "destroy": b grants nothing; a grants @ops, but only here
//! ```
//!
//! A dataset's own grants apply if they are local, those of its ancestors if they are for
//! descendents. A snapshot is a descendent of its dataset. A permission set is looked up on the
//! dataset that grants it and its ancestors; the first definition counts.

use std::collections::{BTreeMap, BTreeSet};

use cenote_dmu::zap::read as zap;
use cenote_dmu::{ReadObjects, TxResult};
use cenote_ondisk::dsl::deleg::{DelegKey, Scope, Who};
use cenote_ondisk::dsl::key;
use cenote_rt::Result;

use super::dir::ancestry;
use super::{Dataset, name};
use crate::mos;

/// The scope of a permission.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reach {
    /// The dataset itself.
    pub local: bool,
    /// Its descendents.
    pub descendent: bool,
}

/// The permissions of a user, of a group or of everyone, or the contents of a permission set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Type of grantee.
    pub who: Who,
    /// The uid or gid, or the name of a set; empty for others.
    pub id: String,
    /// Names of permissions and sets, with their scopes.
    pub permissions: BTreeMap<String, Reach>,
}

/// The grants of one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegation {
    /// The dataset's name.
    pub dataset: String,
    /// Sets, creators, users, groups, everyone; each by id.
    pub grants: Vec<Grant>,
}

/// The user of a request.
///
/// Invariant WHO-1 (docs/design/rules.md, rule 4): a requester is a value in each request, because
/// one sync runs requests of several users. Nothing else in the engine has a user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requester {
    /// User id.
    pub uid: u32,
    /// Group ids.
    pub gids: Vec<u32>,
    /// Whether the user may do everything: root, or the user of this process.
    pub is_trusted: bool,
}

impl Default for Requester {
    fn default() -> Self {
        Self::ROOT
    }
}

impl Requester {
    /// The superuser.
    pub const ROOT: Self = Self { uid: 0, gids: Vec::new(), is_trusted: true };
}

/// Returns the position of a type of grantee in `zfs allow` output.
fn rank(who: Who) -> u8 {
    match who {
        Who::Set => 0,
        Who::Create => 1,
        Who::User => 2,
        Who::Group => 3,
        Who::Everyone => 4,
    }
}

impl Dataset {
    /// Returns the delegations of the dataset and of its ancestors, its own first.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn delegations(&self) -> Result<Vec<Delegation>> {
        let grants = self.mos().read(|objects| grants_above(objects, self.dir().object)).await?;
        let names = std::iter::successors(Some(&*self.dir().name), |name| name::parent(name));
        let all = names.zip(grants).filter(|(_, grants)| !grants.is_empty());
        Ok(all.map(|(name, grants)| Delegation { dataset: name.to_owned(), grants }).collect())
    }

    /// Whether a user has all of these permissions on the dataset; false if the pool's `delegation`
    /// property is off.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn permits(&self, requester: &Requester, permissions: &[&str]) -> Result<bool> {
        let (dir, is_snapshot) = (self.dir().object, self.is_snapshot());
        let mos = self.mos();
        mos.read(|objects| permits(objects, (dir, is_snapshot), requester, permissions)).await
    }
}

/// Whether a user has all of these permissions on the dataset of a dir, or on a snapshot of it;
/// false if the pool's `delegation` property is off.
///
/// # Errors
/// `Kind::Corrupt` if a delegation or a dir is damaged.
pub fn permits(
    objects: &mut dyn ReadObjects,
    (dir, is_snapshot): (u64, bool),
    requester: &Requester,
    permissions: &[&str],
) -> TxResult<bool> {
    if let Some(properties) = mos::directory_object(objects, key::POOL_PROPS)?
        && zap::lookup_u64(objects, properties, "delegation")? == Some(0)
    {
        return Ok(false);
    }
    let all = grants_above(objects, dir)?;
    let is_here = |depth| depth == 0 && !is_snapshot;
    let all: Vec<_> =
        all.iter().enumerate().map(|(depth, grants)| (is_here(depth), &grants[..])).collect();
    Ok(permissions.iter().all(|permission| is_granted(&all, requester, permission)))
}

/// Returns the grants of a dir and of each of its ancestors.
fn grants_above(objects: &mut dyn ReadObjects, dir: u64) -> TxResult<Vec<Vec<Grant>>> {
    let dirs = ancestry(objects, dir)?;
    dirs.iter().map(|(_, dir)| grants(objects, dir.deleg_zapobj)).collect()
}

/// Reads the grants in a delegation ZAP.
fn grants(objects: &mut dyn ReadObjects, deleg: u64) -> TxResult<Vec<Grant>> {
    let mut found = Vec::new();
    if deleg != 0 {
        for (key, jump) in mos::numbered(objects, deleg)? {
            let names = mos::named(objects, jump)?.into_iter();
            found.push((key, names.map(|(name, _)| name).collect()));
        }
    }
    Ok(grants_of(found))
}

/// Returns the grants of a dataset from the keys of its delegation ZAP and the names of each key.
/// A key that cannot be parsed grants nothing.
fn grants_of(entries: Vec<(String, Vec<String>)>) -> Vec<Grant> {
    let mut found: BTreeMap<(u8, String), Grant> = BTreeMap::new();
    for (key, names) in entries {
        let Some(key) = DelegKey::parse(&key) else { continue };
        let grant = found.entry((rank(key.who), key.id.to_owned())).or_insert_with(|| Grant {
            who: key.who,
            id: key.id.to_owned(),
            permissions: BTreeMap::new(),
        });
        for name in names {
            let reach = grant.permissions.entry(name).or_default();
            match key.scope {
                Scope::Local => reach.local = true,
                Scope::Descendent => reach.descendent = true,
                Scope::NotApplicable => {}
            }
        }
    }
    found.into_values().collect()
}

/// Whether the user has a permission on a dataset, by the grants of the dataset itself (true) and
/// of its ancestors (false), the nearest first.
fn is_granted(all: &[(bool, &[Grant])], requester: &Requester, permission: &str) -> bool {
    // No user has a set by its name.
    let is_permission = !permission.starts_with('@');
    // Granted sets, and those of them whose definition was found.
    let (mut sets, mut defined) = (BTreeSet::new(), BTreeSet::new());
    for (is_here, grants) in all {
        let counts = |reach: &Reach| if *is_here { reach.local } else { reach.descendent };
        for grant in grants.iter().filter(|grant| is_of(grant, requester)) {
            if is_permission && grant.permissions.get(permission).is_some_and(&counts) {
                return true;
            }
            let granted = grant.permissions.iter().filter(|(_, reach)| counts(reach));
            sets.extend(granted.map(|(name, _)| name).filter(|name| name.starts_with('@')));
        }
        // A set may contain other sets.
        let mut unread: Vec<&String> = sets.difference(&defined).copied().collect();
        while let Some(name) = unread.pop() {
            let set = grants.iter().find(|grant| grant.who == Who::Set && grant.id == *name);
            let Some(set) = set else { continue };
            if is_permission && set.permissions.contains_key(permission) {
                return true;
            }
            defined.insert(name);
            let inner = set.permissions.keys().filter(|name| name.starts_with('@'));
            unread.extend(inner.filter(|name| sets.insert(*name)));
        }
    }
    false
}

fn is_of(grant: &Grant, requester: &Requester) -> bool {
    let is = |id: u32| grant.id == id.to_string();
    match grant.who {
        Who::User => is(requester.uid),
        Who::Group => requester.gids.iter().any(|gid| is(*gid)),
        Who::Everyone => true,
        Who::Create | Who::Set => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grant(who: Who, id: &str, permissions: &[(&str, bool, bool)]) -> Grant {
        let permissions = permissions.iter().map(|(name, local, descendent)| {
            ((*name).to_owned(), Reach { local: *local, descendent: *descendent })
        });
        Grant { who, id: id.to_owned(), permissions: permissions.collect() }
    }

    #[test]
    fn allow_grants_users_groups_sets_and_everyone() {
        let set = |id, names: &[(&str, bool, bool)]| grant(Who::Set, id, names);
        let below = Delegation {
            dataset: "t/a".into(),
            grants: vec![
                set("@ops", &[("create", false, false), ("@more", false, false)]),
                grant(Who::User, "1", &[("mount", true, false), ("@ops", true, true)]),
                grant(Who::Group, "7", &[("hold", false, true)]),
            ],
        };
        let above = Delegation {
            dataset: "t".into(),
            grants: vec![
                set("@more", &[("destroy", false, false), ("@ops", false, false)]),
                set("@ops", &[("rename", false, false)]),
                grant(Who::User, "1", &[("send", true, false)]),
                grant(Who::Everyone, "", &[("snapshot", false, true)]),
            ],
        };
        let all = [below, above];
        let granted = |here: &str, requester: &Requester, permission: &str| {
            let all: Vec<_> =
                all.iter().map(|found| (found.dataset == here, &found.grants[..])).collect();
            is_granted(if here == "t" { &all[1..] } else { &all }, requester, permission)
        };
        let one = Requester { uid: 1, gids: vec![5], is_trusted: false };
        let two = Requester { uid: 2, gids: vec![5, 7], is_trusted: false };
        for (requester, here, permission, wanted) in [
            (&one, "t/a", "mount", true),
            (&one, "t/a", "create", true),
            // The inner set is defined on an ancestor.
            (&one, "t/a", "destroy", true),
            // The definition of the set on `t` is hidden by that on `t/a`.
            (&one, "t/a", "rename", false),
            (&one, "t/a", "snapshot", true),
            (&one, "t/a", "send", false),
            (&one, "t/a", "@ops", false),
            (&one, "t/a/b", "mount", false),
            (&one, "t/a/b", "create", true),
            // A snapshot is a descendent.
            (&one, "t/a@s", "mount", false),
            (&one, "t/a@s", "create", true),
            (&two, "t/a@s", "hold", true),
            (&two, "t/a/b", "hold", true),
            (&two, "t/a", "hold", false),
            (&two, "t/a", "create", false),
            (&one, "t", "snapshot", false),
            (&one, "t", "send", true),
        ] {
            let found = granted(here, requester, permission);
            assert_eq!(found, wanted, "{} {here} {permission}", requester.uid);
        }
    }
}
