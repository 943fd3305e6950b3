//! Checks of the permissions that `zfs allow` delegates.
//!
//! The daemon's own user and root may do everything. For other users each verb checks the
//! permissions that it needs on the dataset in question, before it changes anything. As with
//! OpenZFS on Linux, other users cannot mount: datasets that they create or move are mounted later.

use std::collections::BTreeSet;

use cenote_pool::props::{Access, Property, userspace};
use cenote_pool::{Dataset, Pool};

use crate::io::{CommandResult, Exit};
use crate::source::{Source, dataset_of, nearest_above};

/// Permissions named after subcommands, with the other permissions that they need.
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

/// Verbs that check the caller's permissions themselves.
pub(crate) const ASKING_VERBS: [&str; 20] = [
    "allow",
    "unallow",
    "bookmark",
    "clone",
    "create",
    "destroy",
    "diff",
    "send",
    "receive",
    "hold",
    "release",
    "inherit",
    "set",
    "load-key",
    "unload-key",
    "change-key",
    "promote",
    "rename",
    "rollback",
    "snapshot",
];

/// Whether the permission to set a property can be delegated.
pub(super) fn is_delegated(property: &Property) -> bool {
    property.access != Access::ReadOnly && !property.is_hidden()
}

/// Refuses a caller who lacks one of these permissions on a dataset.
///
/// # Errors
/// `cannot ACTION 'DATASET': permission denied`
pub(super) async fn need(
    source: &Source,
    dataset: &Dataset,
    permissions: &[&str],
    action: &str,
) -> CommandResult {
    need_for(source, dataset, permissions, (action, dataset.name())).await
}

/// Like [`need`], with a message about another subject.
pub(super) async fn need_for(
    source: &Source,
    dataset: &Dataset,
    permissions: &[&str],
    (action, subject): (&str, &str),
) -> CommandResult {
    let Some(session) = source.session.as_ref().filter(|_| !source.is_trusted()) else {
        return Ok(());
    };
    if dataset.permits(session.caller.requester(), permissions).await? {
        return Ok(());
    }
    Err(Exit::cannot(action, subject, "permission denied"))
}

/// Like [`need`] for the dataset `name`, or for its future parent if it does not exist.
pub(super) async fn need_above(
    source: &Source,
    pool: &std::sync::Arc<Pool>,
    name: &str,
    permissions: &[&str],
    action: &str,
) -> CommandResult {
    if source.is_trusted() {
        return Ok(());
    }
    match nearest_above(pool, name).await? {
        Some(found) => need_for(source, &found, permissions, (action, name)).await,
        None => Err(Exit::cannot(action, name, "permission denied")),
    }
}

/// Refuses a caller who lacks one of these permissions on one of some datasets of a pool.
pub(super) async fn need_on(
    source: &Source,
    pool: &std::sync::Arc<Pool>,
    names: &[String],
    permissions: &[&str],
    action: &str,
) -> CommandResult {
    if source.is_trusted() {
        return Ok(());
    }
    let mut asked = BTreeSet::new();
    for name in names {
        // All snapshots of a dataset have the same permissions.
        let head = name.split_once('@').map(|(head, _)| head);
        if asked.insert((head.unwrap_or(name), head.is_some())) {
            let found = dataset_of(pool, name).await?;
            need_for(source, &found, permissions, (action, name)).await?;
        }
    }
    Ok(())
}

/// Returns the permission that setting a property needs.
pub(super) fn of_property(name: &str) -> String {
    if let Some((family, _)) = name.split_once('@')
        && userspace::parse(name).is_some()
    {
        return family.to_owned();
    }
    // A property of cenote's own can have effects (`cenote:nbd` exports a volume): no permission
    // that can be delegated has its name.
    if name.contains(':') && !name.starts_with("cenote:") {
        return "userprop".to_owned();
    }
    let property = cenote_pool::props::property_named(cenote_pool::props::DATASET_PROPERTIES, name);
    property.map_or_else(|| name.to_owned(), |property| property.name.to_owned())
}
