//! The mounts that a change moves. They are unmounted before the change; if one is in use, nothing
//! is changed. Also the properties that override mount options again after they are set.

use cenote_pool::props::{PropValue, Source as Origin, dataset_property};
use cenote_pool::{Dataset, DatasetKind};

use super::change::below;
use crate::io::Exit;

/// Returns the file systems that a rename moves: the renamed one and its descendants, except those
/// without a mount point.
pub(super) async fn by_name(head: &Dataset) -> Result<Vec<String>, Exit> {
    let mut all = vec![head.clone()];
    below(head, &mut all).await?;
    let mut moving = Vec::new();
    for dataset in &all {
        if mountpoint(dataset).await?.is_some_and(|place| place.starts_with('/')) {
            moving.push(dataset.name().to_owned());
        }
    }
    Ok(moving)
}

/// Returns the file systems that setting properties of a file system moves (`property=value`).
pub(super) async fn by_settings(head: &Dataset, settings: &[String]) -> Result<Vec<String>, Exit> {
    let mut moving = Vec::new();
    for text in settings {
        match text.split_once('=') {
            // The file systems below it are mounted again.
            Some(("canmount", "off")) => by_mountpoint(head, &mut moving).await?,
            Some(("mountpoint", place)) if !is_at(head, place).await? => {
                by_mountpoint(head, &mut moving).await?;
            }
            _ => {}
        }
    }
    Ok(moving)
}

/// Returns the file systems that stay in place when properties are set, and that are mounted if
/// they are not: the command sets their mount point to its present value.
pub(super) async fn by_unchanged_mountpoint(
    head: &Dataset,
    settings: &[String],
) -> Result<Vec<String>, Exit> {
    let mut placed = Vec::new();
    for text in settings {
        if let Some(("mountpoint", place)) = text.split_once('=')
            && is_at(head, place).await?
        {
            by_mountpoint(head, &mut placed).await?;
        }
    }
    Ok(placed)
}

async fn is_at(head: &Dataset, place: &str) -> Result<bool, Exit> {
    Ok(mountpoint(head).await?.is_none_or(|found| found == place))
}

/// Returns the file systems that inheriting a property moves.
pub(super) async fn by_inheriting(all: &[Dataset], property: &str) -> Result<Vec<String>, Exit> {
    let mut moving = Vec::new();
    if property == "mountpoint" {
        for dataset in all {
            by_mountpoint(dataset, &mut moving).await?;
        }
    }
    Ok(moving)
}

/// Adds a file system and its descendants with an inherited mount point.
async fn by_mountpoint(head: &Dataset, moving: &mut Vec<String>) -> Result<(), Exit> {
    let mut found = Vec::new();
    add_inheriting(head, "mountpoint", &mut found).await?;
    moving.extend(found.iter().map(|dataset| dataset.name().to_owned()));
    Ok(())
}

/// Properties that a mount option overrides until they are set.
const OF_MOUNTS: [&str; 7] =
    ["atime", "devices", "exec", "readonly", "relatime", "setuid", "xattr"];

/// Returns the file systems, by object number, for which one of these properties of `head`
/// overrides mount options again, with that property.
pub(super) async fn overriding_options<'a>(
    head: &Dataset,
    properties: impl Iterator<Item = &'a str>,
) -> Result<Vec<(u64, &'static str)>, Exit> {
    let mut again = Vec::new();
    for property in properties {
        let Some(property) = OF_MOUNTS.iter().find(|known| **known == property) else { continue };
        let mut found = Vec::new();
        add_inheriting(head, property, &mut found).await?;
        again.extend(found.iter().map(|dataset| (dataset.object(), *property)));
    }
    Ok(again)
}

/// Adds a dataset and its descendants that have the property's value from it.
async fn add_inheriting(
    head: &Dataset,
    property: &str,
    found: &mut Vec<Dataset>,
) -> Result<(), Exit> {
    found.push(head.clone());
    let Some(known) = dataset_property(property) else { return Ok(()) };
    for child in head.children().await? {
        // The stored value, not that of a mount option.
        let (_, origin) = child.props().await?.chain().native(known);
        if matches!(origin, Origin::Default | Origin::Inherited(_)) {
            Box::pin(add_inheriting(&child, property, found)).await?;
        }
    }
    Ok(())
}

/// Returns the mount point; `None` for a volume.
async fn mountpoint(dataset: &Dataset) -> Result<Option<String>, Exit> {
    if dataset.kind().await? != DatasetKind::Filesystem {
        return Ok(None);
    }
    let row = dataset.props().await?.get("mountpoint").await?;
    Ok(row.and_then(|row| match row.value {
        PropValue::Text(place) => Some(place),
        _ => None,
    }))
}
