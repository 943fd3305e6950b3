//! `zpool remove` of vdevs with data: begins, cancels and waits for their evacuation.
//!
//! Without a daemon the removal ends with the command and continues with the next one that waits
//! for it: `zpool remove -w`, `zpool wait -t remove`.

use cenote_engine::{Engine, RemovalError};
use cenote_ondisk::config::VdevConfig;

use crate::getopt::Parsed;
use crate::io::{CommandResult, Exit, Io};
use crate::nicenum;
use crate::out;
use crate::source::Source;
use crate::writer::cause_or_checkpoint;

/// Begins the removal of a vdev, or prints the memory that its mapping will need.
pub(super) async fn remove(
    engine: &Engine,
    word: &str,
    vdev: &VdevConfig,
    parsed: &Parsed,
    io: &mut Io<'_>,
) -> CommandResult {
    if parsed.has('n') {
        let bytes = engine.removals().mapping_estimate(vdev.guid);
        if parsed.has('p') {
            return out!(io, "{word} {bytes}");
        }
        let memory = nicenum::bytes(bytes);
        return out!(io, "Memory that will be used after removing {word}: {memory}");
    }
    let begun = engine.removals().begin(vdev.guid).await;
    begun.map_err(|error| {
        Exit::failed(format!(
            "cannot remove {word}: {}",
            cause_or_checkpoint::<RemovalError>(&error)
        ))
    })
}

/// Cancels the removal that runs.
pub(super) async fn cancel(engine: &Engine) -> CommandResult {
    if engine.is_read_only() {
        return Err(Exit::failed("cannot cancel removal: pool is read-only"));
    }
    let cancelled = engine.removals().cancel().await;
    cancelled.map_err(|error| {
        Exit::failed(format!(
            "cannot cancel removal: {}",
            cause_or_checkpoint::<RemovalError>(&error)
        ))
    })
}

/// Waits until no removal runs.
pub(super) async fn wait(source: &Source, engine: &Engine) -> CommandResult {
    engine.removals().resume().await;
    match source.while_waited_for(engine.removals().wait()).await {
        Some(ended) => Ok(ended?),
        None => Ok(()),
    }
}
