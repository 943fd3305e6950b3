//! Whether whoever gives a command may: what `zfs allow` has granted.
//!
//! The user whose pools they are, and root, may do everything. Of others each verb asks what it
//! needs, of the dataset that it concerns, before it changes anything. As with OpenZFS on Linux
//! nobody else mounts: what others make or move is mounted later.

use std::collections::BTreeSet;

use cenote_pool::props::{Access, Property, userspace};
use cenote_pool::{Dataset, Pool};

use crate::io::{CommandResult, Exit};
use crate::source::{Source, dataset_of};

/// Permissions that are named after subcommands, with what else they need.
pub(super) const SUBCOMMANDS: &[(&str, &str)] = &[
    ("allow", "Must also have the permission that is being\n\t\t\t\tallowed"),
    ("bookmark", ""),
    (
        "clone",
        "Must also have the 'create' ability and 'mount'\n\
         \t\t\t\tability in the origin file system",
    ),
    ("create", "Must also have the 'mount' ability"),
    ("destroy", "Must also have the 'mount' ability"),
    (
        "diff",
        "Allows lookup of paths within a dataset;\n\
         \t\t\t\tgiven an object number. Ordinary users need this\n\
         \t\t\t\tin order to use zfs diff",
    ),
    ("hold", "Allows adding a user hold to a snapshot"),
    ("mount", "Allows mount/umount of ZFS datasets"),
    (
        "promote",
        "Must also have the 'mount'\n\
         \t\t\t\tand 'promote' ability in the origin file system",
    ),
    ("receive", "Must also have the 'mount' and 'create' ability"),
    ("release", "Allows releasing a user hold which\n\t\t\t\tmight destroy the snapshot"),
    ("rename", "Must also have the 'mount' and 'create'\n\t\t\t\tability in the new parent"),
    ("rollback", ""),
    ("send", ""),
    ("share", "Allows sharing file systems over NFS or SMB\n\t\t\t\tprotocols"),
    ("snapshot", ""),
    ("load-key", "Allows loading or unloading an encryption key"),
    ("change-key", "Allows changing or adding an encryption key"),
];

/// Other permissions.
pub(super) const OTHERS: &[(&str, &str)] = &[
    ("groupquota", "Allows accessing any groupquota@... property"),
    ("groupused", "Allows reading any groupused@... property"),
    ("userprop", "Allows changing any user property"),
    ("userquota", "Allows accessing any userquota@... property"),
    ("userused", "Allows reading any userused@... property"),
    ("userobjquota", "Allows accessing any userobjquota@... property"),
    ("groupobjquota", "Allows accessing any \n\t\t\t\tgroupobjquota@... property"),
    ("groupobjused", "Allows reading any groupobjused@... property"),
    ("userobjused", "Allows reading any userobjused@... property"),
    ("projectquota", "Allows accessing any projectquota@... property"),
    ("projectobjquota", "Allows accessing any \n\t\t\t\tprojectobjquota@... property"),
    ("projectused", "Allows reading any projectused@... property"),
    ("projectobjused", "Allows accessing any \n\t\t\t\tprojectobjused@... property"),
    ("receive:append", ""),
];

/// Verbs that ask by themselves whether whoever gives them may.
pub(crate) const ASKING_VERBS: [&str; 17] = [
    "allow",
    "unallow",
    "bookmark",
    "clone",
    "create",
    "destroy",
    "diff",
    "hold",
    "release",
    "inherit",
    "set",
    "load-key",
    "unload-key",
    "promote",
    "rename",
    "rollback",
    "snapshot",
];

/// Whether a property can be set by who was granted it.
pub(super) fn is_delegated(property: &Property) -> bool {
    property.access != Access::ReadOnly && !property.is_hidden()
}

/// Refuses whoever has not all of these permissions on a dataset.
///
/// # Errors
/// `cannot DEED 'DATASET': permission denied`
pub(super) async fn need(
    source: &Source,
    dataset: &Dataset,
    permissions: &[&str],
    deed: &str,
) -> CommandResult {
    need_for(source, dataset, permissions, (deed, dataset.name())).await
}

/// The same where what the command is about is something else.
pub(super) async fn need_for(
    source: &Source,
    dataset: &Dataset,
    permissions: &[&str],
    (deed, subject): (&str, &str),
) -> CommandResult {
    let Some(session) = source.session.as_ref().filter(|_| !source.is_trusted()) else {
        return Ok(());
    };
    if dataset.permits(session.caller.asker(), permissions).await? {
        return Ok(());
    }
    Err(Exit::cannot(deed, subject, "permission denied"))
}

/// The same for the dataset of a name, or the parent that it is to have.
pub(super) async fn need_above(
    source: &Source,
    pool: &std::sync::Arc<Pool>,
    name: &str,
    permissions: &[&str],
    deed: &str,
) -> CommandResult {
    if source.is_trusted() {
        return Ok(());
    }
    let mut above = name;
    while let Some((parent, _)) = above.rsplit_once('/') {
        if let Ok(found) = dataset_of(pool, parent).await {
            return need_for(source, &found, permissions, (deed, name)).await;
        }
        above = parent;
    }
    Err(Exit::cannot(deed, name, "permission denied"))
}

/// Refuses whoever has not all of these permissions on some datasets of a pool.
pub(super) async fn need_on(
    source: &Source,
    pool: &std::sync::Arc<Pool>,
    names: &[String],
    permissions: &[&str],
    deed: &str,
) -> CommandResult {
    if source.is_trusted() {
        return Ok(());
    }
    let mut asked = BTreeSet::new();
    for name in names {
        // Of a snapshot somebody may what he may of its dataset.
        let head = name.split('@').next().unwrap_or(name);
        if asked.insert(head) {
            let found = dataset_of(pool, head).await?;
            need_for(source, &found, permissions, (deed, name)).await?;
        }
    }
    Ok(())
}

/// The permission that setting a property needs.
pub(super) fn of_property(name: &str) -> String {
    if let Some((family, _)) = name.split_once('@')
        && userspace::parse(name).is_some()
    {
        return family.to_owned();
    }
    if name.contains(':') {
        return "userprop".to_owned();
    }
    let property = cenote_pool::props::property_named(cenote_pool::props::DATASET_PROPERTIES, name);
    property.map_or_else(|| name.to_owned(), |property| property.name.to_owned())
}
