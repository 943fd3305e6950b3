//! `cenote mount`: mounts a file system of a pool through FUSE in this process.
//!
//! The pool is opened here and afterwards left as it was found. The verb stays in the foreground
//! and ends when the file system is unmounted, by any user, or by a signal, which unmounts it.
//! Durable data survives a killed process; the next mount at the same place detaches the stale
//! mount.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_fs::Mount;
use cenote_rt::Kind;
use cenote_serve::Signals;
use cenote_serve::fuse::{self, FuseError, FuseMount, MountOptions, Unmount};

use super::{parse, wrong_use};
use crate::io::{CommandResult, Exit, Io};
use crate::source::{self, Source};
use crate::writer::Writer;
use crate::{argument, err, out};

const USAGE: &str = "\
usage: cenote mount [-o OPTION[,OPTION]...] [-d DIR|DEVICE]... POOL/DATASET MOUNTPOINT

Mounts a file system, and stays until it is unmounted or interrupted.

  -o OPTION       ro, nosuid, nodev, noexec; allow_other: for all users (default for
                  root, unless noallow_other is given); writeback: the kernel caches writes
  -d DIR|DEVICE   where the pool's devices are; may be repeated (-p is the same)
";

/// Grace period for programs with open files after a signal.
const GRACE_PERIOD: std::time::Duration = std::time::Duration::from_secs(2);

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some((parsed, source)) = parse(args, ("o:", &[]), USAGE, io)? else { return Ok(()) };
    let [name, at] = &parsed.operands[..] else {
        return Err(wrong_use("a dataset and a mount point are needed", USAGE));
    };
    let words = parsed.values('o').collect::<Vec<_>>().join(",");
    let options =
        MountOptions::parse(&words).map_err(|error| wrong_use(&error.to_string(), USAGE))?;
    // Before other threads exist.
    let signals = Signals::block()?;
    let source = Source { embedded: true, ..source };
    source::run(async {
        Writer::run(&source, name, None, io, async |engine, io| {
            serve(engine, name, at, &options, &signals, io).await
        })
        .await
    })
}

async fn serve(
    engine: &Arc<Engine>,
    name: &str,
    at: &str,
    options: &MountOptions,
    signals: &Signals,
    io: &mut Io<'_>,
) -> CommandResult {
    // From here on, changes that nobody syncs are written within seconds.
    engine.start_sync_task();
    let opened = if options.is_read_only {
        Mount::open_read_only(engine, name).await
    } else {
        Mount::open(engine, name).await
    };
    let mount = opened.map_err(|error| source::contents_failure(name, &error))?;
    let failed = |error: cenote_rt::Error| Exit::failed(format!("cannot mount '{name}': {error}"));
    let at = argument::path(at);
    if fuse::detach_dead(&at).await.map_err(failed)? {
        return Err(Exit::failed(format!("cannot mount '{name}': {}", FuseError::Mounted { at })));
    }
    let fuse = FuseMount::start(mount, &at, options).await.map_err(failed)?;
    out!(io, "'{name}' is mounted at '{}'", fuse.at().display())?;
    io.out.flush()?;
    if signals.or(fuse.ended()).await.is_none() {
        leave(&fuse, io).await?;
    }
    let mount = fuse.mount();
    drop(fuse);
    // Nodes that the kernel did not forget before it released the file system.
    mount.reap().await?;
    Ok(())
}

async fn leave(fuse: &FuseMount, io: &mut Io<'_>) -> CommandResult {
    match fuse.unmount(fuse.at(), Unmount::Plain).await {
        Ok(()) => fuse.ended().await,
        Err(error) if error.kind() == Kind::Busy => {
            err!(io, "'{}' is in use: it is detached", fuse.at().display())?;
            fuse.unmount(fuse.at(), Unmount::Detach).await?;
            // Programs with open files lose them when this process ends.
            let _ = cenote_rt::until(GRACE_PERIOD, fuse.ended()).await;
        }
        Err(error) => return Err(error.into()),
    }
    Ok(())
}
