//! Which mounts a change moves: they are unmounted before it, and if one is in use nothing is
//! changed. And which go by a property again that is set, whatever they were mounted with.

use cenote_pool::props::{PropValue, Source as Origin, dataset_property};
use cenote_pool::{Dataset, DatasetKind};

use super::change::below;
use crate::io::Exit;

/// Those that move when a file system is renamed: of it and all below it, but for those that
/// properties mount nowhere.
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

/// Those that move when properties of a file system are set (`property=value`).
pub(super) async fn by_settings(head: &Dataset, settings: &[String]) -> Result<Vec<String>, Exit> {
    let mut moving = Vec::new();
    for text in settings {
        match text.split_once('=') {
            // Those below it come back.
            Some(("canmount", "off")) => by_mountpoint(head, &mut moving).await?,
            Some(("mountpoint", place)) if !is_at(head, place).await? => {
                by_mountpoint(head, &mut moving).await?;
            }
            _ => {}
        }
    }
    Ok(moving)
}

/// Those that stay where they are when properties are set, and are mounted if they are not: their
/// mount point is set to what it is.
pub(super) async fn placed_again(head: &Dataset, settings: &[String]) -> Result<Vec<String>, Exit> {
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

/// Those that move when file systems inherit a property.
pub(super) async fn by_inheriting(all: &[Dataset], property: &str) -> Result<Vec<String>, Exit> {
    let mut moving = Vec::new();
    if property == "mountpoint" {
        for dataset in all {
            by_mountpoint(dataset, &mut moving).await?;
        }
    }
    Ok(moving)
}

/// A file system and all below it that have its mount point.
async fn by_mountpoint(head: &Dataset, moving: &mut Vec<String>) -> Result<(), Exit> {
    let mut found = Vec::new();
    reached(head, "mountpoint", &mut found).await?;
    moving.extend(found.iter().map(|dataset| dataset.name().to_owned()));
    Ok(())
}

/// Properties that a mount option goes before, until they are set.
const OF_MOUNTS: [&str; 7] =
    ["atime", "devices", "exec", "readonly", "relatime", "setuid", "xattr"];

/// Which file systems, by number, go by which properties again when these of one of them are set.
pub(super) async fn set_again<'a>(
    head: &Dataset,
    properties: impl Iterator<Item = &'a str>,
) -> Result<Vec<(u64, &'static str)>, Exit> {
    let mut again = Vec::new();
    for property in properties {
        let Some(property) = OF_MOUNTS.iter().find(|known| **known == property) else { continue };
        let mut found = Vec::new();
        reached(head, property, &mut found).await?;
        again.extend(found.iter().map(|dataset| (dataset.object(), *property)));
    }
    Ok(again)
}

/// A dataset and all below it that have a property from it.
async fn reached(head: &Dataset, property: &str, found: &mut Vec<Dataset>) -> Result<(), Exit> {
    found.push(head.clone());
    let Some(known) = dataset_property(property) else { return Ok(()) };
    for child in head.children().await? {
        // What is stored, not what a mount option makes of it.
        let (_, origin) = child.props().await?.chain().native(known);
        if matches!(origin, Origin::Default | Origin::Inherited(_)) {
            Box::pin(reached(&child, property, found)).await?;
        }
    }
    Ok(())
}

/// The mount point; none of a volume.
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
