//! Which mounts a change moves: they are unmounted before it, and if one is in use nothing is
//! changed.

use cenote_pool::props::{PropValue, Source as Origin};
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
        if mountpoint(dataset).await?.is_some_and(|(place, _)| place.starts_with('/')) {
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
            Some(("canmount", "off")) => moving.push(head.name().to_owned()),
            Some(("mountpoint", place)) => {
                let before = mountpoint(head).await?;
                if before.is_some_and(|(before, _)| before != place) {
                    by_mountpoint(head, &mut moving).await?;
                }
            }
            _ => {}
        }
    }
    Ok(moving)
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
    moving.push(head.name().to_owned());
    for child in head.children().await? {
        if mountpoint(&child).await?.is_none_or(|(_, is_inherited)| is_inherited) {
            Box::pin(by_mountpoint(&child, moving)).await?;
        }
    }
    Ok(())
}

/// The mount point, and whether it comes from above; none of a volume.
async fn mountpoint(dataset: &Dataset) -> Result<Option<(String, bool)>, Exit> {
    if dataset.kind().await? != DatasetKind::Filesystem {
        return Ok(None);
    }
    let row = dataset.props().await?.get("mountpoint").await?;
    Ok(row.and_then(|row| match row.value {
        PropValue::Text(place) => Some((place, matches!(row.source, Origin::Inherited(_)))),
        _ => None,
    }))
}
