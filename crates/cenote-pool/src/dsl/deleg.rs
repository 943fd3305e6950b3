//! Delegated permissions, and whether somebody has one (spec 04 §24).
//!
//! ```text
//!   tank       everyone may "snapshot" below;  set @ops = create, destroy
//!    `- a      user 1000 may @ops here
//!        `- b  asks for user 1000 and "destroy": b grants nothing; a grants @ops, but only here
//! ```
//!
//! What a dataset itself grants counts if it is granted locally, what those above it grant if it is
//! for descendants. A set means what it is defined to be where it is granted, or above.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use cenote_dmu::ObjSet;
use cenote_ondisk::dsl::deleg::{DelegKey, Scope, Who};
use cenote_ondisk::zap::Value;
use cenote_rt::Result;

use super::{Dataset, Dir};
use crate::mos;

/// Where a permission holds.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reach {
    /// On the dataset itself.
    pub local: bool,
    /// On those below it.
    pub descendent: bool,
}

/// What somebody may on a dataset, or what a set consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Who.
    pub who: Who,
    /// His number, or the name of a set; empty for others.
    pub id: String,
    /// Names of permissions and of sets, with where they hold.
    pub permissions: BTreeMap<String, Reach>,
}

/// What is granted by one dataset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegation {
    /// The dataset.
    pub dataset: String,
    /// Sets, creators, users, groups, everyone; each by id.
    pub grants: Vec<Grant>,
}

/// Somebody who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Asker {
    /// His uid.
    pub uid: u32,
    /// His groups.
    pub gids: Vec<u32>,
}

/// The order in which grants are shown.
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
    /// What is granted on the dataset and above it, its own first.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub async fn delegations(&self) -> Result<Vec<Delegation>> {
        let mut found = Vec::new();
        let mut dir = Arc::clone(self.dir());
        loop {
            let grants = grants(self.mos(), dir.phys.deleg_zapobj).await?;
            if !grants.is_empty() {
                found.push(Delegation { dataset: dir.name.clone(), grants });
            }
            let Some((above, _)) = dir.name.rsplit_once('/') else { return Ok(found) };
            dir = Arc::new(Dir::load(self.mos(), dir.phys.parent_obj, above).await?);
        }
    }

    /// Whether somebody has all of these permissions on the dataset. Nobody has one where the pool
    /// does not delegate.
    ///
    /// # Errors
    /// Those of reading the MOS.
    pub async fn permits(&self, asker: &Asker, permissions: &[&str]) -> Result<bool> {
        if !self.pool().delegates().await? {
            return Ok(false);
        }
        let (here, all) = (&self.dir().name, self.delegations().await?);
        Ok(permissions.iter().all(|permission| is_granted(&all, here, asker, permission)))
    }
}

/// What one ZAP grants.
async fn grants(mos: &Arc<ObjSet>, deleg: u64) -> Result<Vec<Grant>> {
    let mut found: BTreeMap<(u8, String), Grant> = BTreeMap::new();
    if deleg == 0 {
        return Ok(Vec::new());
    }
    for (key, jump) in mos::entries(mos, deleg).await? {
        // What nobody can read grants nothing.
        let (Some(key), Some(jump)) = (DelegKey::parse(&key), Value::first(&jump)) else {
            continue;
        };
        let grant = found.entry((rank(key.who), key.id.to_owned())).or_insert_with(|| Grant {
            who: key.who,
            id: key.id.to_owned(),
            permissions: BTreeMap::new(),
        });
        for (name, _) in mos::entries(mos, jump).await? {
            let reach = grant.permissions.entry(name).or_default();
            match key.scope {
                Scope::Local => reach.local = true,
                Scope::Descendent => reach.descendent = true,
                Scope::NotApplicable => {}
            }
        }
    }
    Ok(found.into_values().collect())
}

/// Whether somebody has a permission on the dataset `here`, by what it and those above it grant.
fn is_granted(all: &[Delegation], here: &str, asker: &Asker, permission: &str) -> bool {
    let mut sets = BTreeSet::new();
    for delegation in all {
        let is_here = delegation.dataset == here;
        let counts = |reach: &Reach| if is_here { reach.local } else { reach.descendent };
        for grant in delegation.grants.iter().filter(|grant| is_of(grant, asker)) {
            if grant.permissions.get(permission).is_some_and(&counts) {
                return true;
            }
            let granted = grant.permissions.iter().filter(|(_, reach)| counts(reach));
            sets.extend(granted.map(|(name, _)| name).filter(|name| name.starts_with('@')));
        }
        // A set may consist of others.
        let defined = |name: &str| {
            let mut grants = delegation.grants.iter();
            grants.find(|grant| grant.who == Who::Set && grant.id == name)
        };
        let mut unread: Vec<&String> = sets.iter().copied().collect();
        while let Some(name) = unread.pop() {
            let Some(set) = defined(name) else { continue };
            if set.permissions.contains_key(permission) {
                return true;
            }
            let inner = set.permissions.keys().filter(|name| name.starts_with('@'));
            unread.extend(inner.filter(|name| sets.insert(*name)));
        }
    }
    false
}

fn is_of(grant: &Grant, asker: &Asker) -> bool {
    let is = |id: u32| grant.id == id.to_string();
    match grant.who {
        Who::User => is(asker.uid),
        Who::Group => asker.gids.iter().any(|gid| is(*gid)),
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
    fn who_may_what() {
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
        let one = Asker { uid: 1, gids: vec![5] };
        let two = Asker { uid: 2, gids: vec![5, 7] };
        for (asker, here, permission, wanted) in [
            (&one, "t/a", "mount", true),
            (&one, "t/a", "create", true),
            // Its inner set is defined above.
            (&one, "t/a", "destroy", true),
            (&one, "t/a", "rename", true),
            (&one, "t/a", "snapshot", true),
            (&one, "t/a", "send", false),
            (&one, "t/a/b", "mount", false),
            (&one, "t/a/b", "create", true),
            (&two, "t/a/b", "hold", true),
            (&two, "t/a", "hold", false),
            (&two, "t/a", "create", false),
        ] {
            let found = is_granted(&all, here, asker, permission);
            assert_eq!(found, wanted, "{} {here} {permission}", asker.uid);
        }
        assert!(!is_granted(&all[1..], "t", &one, "snapshot"));
        assert!(is_granted(&all[1..], "t", &one, "send"));
    }
}
