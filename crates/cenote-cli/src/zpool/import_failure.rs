//! Messages about failed imports, in OpenZFS's words.

use std::fmt::Write as _;

use cenote_engine::{CheckpointError, EngineError};
use cenote_pool::import::Host;
use cenote_pool::pool::Rewind;
use cenote_pool::status::examine;
use cenote_pool::{Candidate, OpenError, OpenOptions, Reason};
use cenote_rt::Error;

use super::import::{loss_text, rewound};
use super::names::Names;
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::zfs::value;

/// Returns the message and the advice; prints unknown features to the output.
pub(super) async fn of(
    candidate: &Candidate,
    options: &OpenOptions,
    error: &Error,
    io: &mut Io<'_>,
) -> Exit {
    let name = candidate.name();
    if let Some(cause) = error.cause::<CheckpointError>() {
        return Exit::failed(format!("cannot import '{name}': {cause}"));
    }
    if error.cause::<EngineError>().is_some() {
        return Exit::failed(format!(
            "cannot import '{name}': {error}\nThe pool can be imported using '-o readonly=on'."
        ));
    }
    let cause = error.cause::<OpenError>();
    if let Err(exit) = list_features(cause, io) {
        return exit;
    }
    let is_unread = matches!(cause, Some(OpenError::CorruptMos(_) | OpenError::NoUberblock { .. }));
    if is_unread && lacks_devices(candidate).await {
        // What cannot be read is not damaged.
        let missing = OpenError::MissingVdevs(Vec::new());
        return Exit::failed(refusal(candidate, Some(&missing), ""));
    }
    let text = refusal(candidate, cause, &error.to_string());
    Exit::failed(match cause {
        Some(OpenError::MissingLog(log)) => format!("{}\n{text}", missing(candidate, *log).await),
        Some(OpenError::CorruptMos(_) | OpenError::NoUberblock { .. }) => {
            format!("{text}\n\t{}", recovery(candidate, options).await)
        }
        _ => text,
    })
}

/// Whether more devices are missing than the pool's redundancy allows.
async fn lacks_devices(candidate: &Candidate) -> bool {
    let status = examine(candidate, &Host::current()).await;
    status.reason == Reason::MissingNoReplicas
}

/// Returns the missing log device, with its leaves.
async fn missing(candidate: &Candidate, log: u64) -> String {
    let status = examine(candidate, &Host::current()).await;
    let names = Names::default().within(&candidate.root);
    let mut text = "The devices below are missing or corrupted, use '-m' to import the pool \
                    anyway:\n"
        .to_owned();
    if let Some(top) = status.root.children.iter().find(|top| top.id == log) {
        let _ = writeln!(text, "\t    {} [log]", names.vdev(top));
        for leaf in &top.children {
            let _ = writeln!(text, "\t      {}", names.vdev(leaf));
        }
    }
    text
}

/// Returns what an import with rewind could recover.
async fn recovery(candidate: &Candidate, options: &OpenOptions) -> String {
    let back = OpenOptions { rewind: Rewind::Safe, host: None, ..options.clone() };
    let is_first = options.rewind == Rewind::Never && options.txg.is_none();
    let found = if is_first { rewound(candidate, &back).await } else { None };
    let Some(found) = found else {
        return "Destroy and re-create the pool from\n\ta backup source.".to_owned();
    };
    let (name, time) = (candidate.name(), value::date(found.time, value::CTIME));
    let discarded = match found.loss {
        0 => String::new(),
        loss => format!(
            "Approximately {} of data\n\tmust be discarded, irreversibly.  ",
            loss_text(loss)
        ),
    };
    format!(
        "Recovery is possible, but will result in some data loss.\n\
         \tReturning the pool to its state as of {time}\n\
         \tshould correct the problem.  {discarded}Recovery can be attempted\n\
         \tby executing 'zpool import -F {name}'.  A scrub of the pool\n\
         \tis strongly recommended after recovery."
    )
}

/// Returns why the pool is not imported.
fn refusal(candidate: &Candidate, cause: Option<&OpenError>, text: &str) -> String {
    let name = candidate.name();
    let facts = &candidate.facts;
    match cause {
        Some(OpenError::Version { .. }) => {
            format!("cannot import '{name}': pool is formatted using an unsupported ZFS version")
        }
        Some(OpenError::ForeignHost { hostid, hostname }) => {
            let time =
                candidate.uberblocks().iter().max_by_key(|ub| ub.rank()).map(|ub| ub.timestamp);
            let time = value::date(time.unwrap_or(0), value::CTIME);
            let hostname = if hostname.is_empty() { "<unknown>" } else { hostname };
            format!(
                "cannot import '{name}': pool was previously in use from another system.\n\
                 Last accessed by {hostname} (hostid={hostid:x}) at {time}\n\
                 The pool can be imported, use 'zpool import -f' to import the pool."
            )
        }
        Some(OpenError::ActiveElsewhere) => format!(
            "cannot import '{name}': pool is imported on {} (hostid: 0x{:x})\n\
             Export the pool on the other system, then run 'zpool import'.",
            facts.hostname.as_deref().unwrap_or("<unknown>"),
            facts.hostid
        ),
        Some(OpenError::NoHostId) => format!(
            "Cannot import '{name}': pool has the multihost property on and the\n\
             system's hostid is not set. Set a unique hostid with the zgenhostid(8) command."
        ),
        Some(OpenError::UnsupportedFeatures(_) | OpenError::ReadOnlyFeatures(_)) => {
            format!("cannot import '{name}': unsupported version or feature")
        }
        Some(OpenError::MissingVdevs(_) | OpenError::MissingLog(_) | OpenError::GuidSum { .. }) => {
            format!("cannot import '{name}': one or more devices is currently unavailable")
        }
        _ => format!("cannot import '{name}': I/O error ({text})"),
    }
}

/// Prints the features because of which a pool is refused.
fn list_features(cause: Option<&OpenError>, io: &mut Io<'_>) -> CommandResult {
    let (features, is_readable) = match cause {
        Some(OpenError::UnsupportedFeatures(features)) => (features, false),
        Some(OpenError::ReadOnlyFeatures(features)) => (features, true),
        _ => return Ok(()),
    };
    out!(io, "This pool uses the following feature(s) not supported by this system:")?;
    for feature in features {
        out!(io, "\t{}", feature.described())?;
    }
    if is_readable {
        out!(io, "All unsupported features are only required for writing to the pool.")?;
        out!(io, "The pool can be imported using '-o readonly=on'.")?;
    }
    Ok(())
}
