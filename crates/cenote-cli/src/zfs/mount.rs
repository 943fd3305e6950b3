//! `mount`, `unmount`: what a host shows in folders.

use super::refuse::existing;
use crate::getopt::{self, Parsed};
use crate::host::Session;
use crate::io::{CommandResult, Exit, Io};
use crate::source::Source;
use crate::zpool::{block_on, json};
use crate::{err, out};

/// What is said where nobody has pools open.
const NO_HOST: &str = "only the daemon mounts: give the command without '--embedded'";

/// Runs `zfs mount`.
pub(super) fn mount(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, ":ajRlvo:Of", &[getopt::Long::flag("json", 'j')])?;
    if parsed.has('j') && (parsed.has('a') || !parsed.operands.is_empty()) {
        return Err(Exit::usage("too many arguments"));
    }
    match (&parsed.operands[..], parsed.has('a')) {
        ([], false) => list(source, &parsed, io),
        ([], true) => mount_all(session(source, "mount")?),
        ([dataset], false) => {
            let options: Vec<&str> = parsed.values('o').collect();
            block_on(async {
                existing(source, dataset).await?;
                session(source, dataset)?.host.mount(dataset, &options.join(",")).await
            })
        }
        _ => Err(Exit::usage("too many arguments")),
    }
}

/// Runs `zfs unmount`.
pub(super) fn unmount(source: &Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let parsed = getopt::parse(args, "afu", &[])?;
    let is_forced = parsed.has('f');
    match (&parsed.operands[..], parsed.has('a')) {
        ([], true) => {
            let session = session(source, "unmount")?;
            let mut status = Ok(());
            // What is mounted within another comes before it.
            for (dataset, _) in session.host.mounts().into_iter().rev() {
                if let Err(exit) = block_on(session.host.unmount(&dataset, is_forced)) {
                    err!(io, "{}", exit.message())?;
                    status = Err(Exit::Status(1));
                }
            }
            status
        }
        ([what], false) => {
            let session = session(source, what)?;
            let path = source.path(what);
            let what = if what.starts_with('/') { path.to_string_lossy() } else { what.into() };
            block_on(session.host.unmount(&what, is_forced))
        }
        ([], false) => Err(Exit::usage("missing filesystem argument")),
        _ => Err(Exit::usage("too many arguments")),
    }
}

fn session<'a>(source: &'a Source, what: &str) -> Result<&'a Session, Exit> {
    source.session.as_ref().ok_or_else(|| Exit::failed(format!("cannot mount '{what}': {NO_HOST}")))
}

fn mount_all(session: &Session) -> CommandResult {
    block_on(async {
        let mut texts = Vec::new();
        for engine in session.host.pools() {
            if let Err(exit) = session.host.mount_all(&engine.name()).await {
                texts.push(exit.message());
            }
        }
        if texts.is_empty() { Ok(()) } else { Err(Exit::failed(texts.join("\n"))) }
    })
}

fn list(source: &Source, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let mounts = source.session.as_ref().map(|session| session.host.mounts()).unwrap_or_default();
    if parsed.has('j') {
        let mut datasets = serde_json::Map::new();
        for (dataset, at) in mounts {
            let row = serde_json::json!({
                "filesystem": dataset,
                "mountpoint": at.display().to_string(),
            });
            datasets.insert(dataset, row);
        }
        let mut document = json::document("zfs mount");
        document.insert("datasets".into(), datasets.into());
        return json::print(document, io);
    }
    for (dataset, at) in mounts {
        out!(io, "{dataset:<30}  {}", at.display())?;
    }
    Ok(())
}
