//! `cenote nbd`: serves the volumes of a pool, and snapshots of them, over NBD.
//!
//! The pool is opened here and afterwards left as it was found. The verb stays in the foreground
//! and ends with a signal: requests that arrived before it are answered, and everything is durable.

use std::sync::Arc;

use cenote_engine::Engine;
use cenote_rt::net::{Address, Tls};
use cenote_serve::Signals;
use cenote_serve::nbd::{Exports, Server, Subtree};

use super::{parse, wrong_use};
use crate::getopt::Long;
use crate::io::{CommandResult, Exit, Io};
use crate::source::{self, Source};
use crate::writer::Writer;
use crate::{argument, out};

const USAGE: &str = "\
usage: cenote nbd [-r] [--socket PATH | --listen HOST:PORT] [--tls-certificates DIR]
                  [--tls-verify-peer] [-d DIR|DEVICE]... POOL[/DATASET]

Serves the volumes at and below a dataset, and their snapshots, until it is interrupted.
Exports have the names of their datasets; the empty name is the volume, if there is only one.

  -r                  serve read-only
  --socket PATH       on a socket in the file system
  --listen HOST:PORT  on a TCP port; 0 for any free port (default: localhost:10809)
  --tls-certificates DIR  accept only encrypted connections: DIR has
                      server-cert.pem and server-key.pem
  --tls-verify-peer   accept only clients with a certificate signed by ca-cert.pem in DIR
  -d DIR|DEVICE       where the pool's devices are; may be repeated (-p is the same)
";

const SOCKET: char = 's';
const LISTEN: char = 'l';
const CERTIFICATES: char = 'c';
const VERIFY: char = 'v';
const DEFAULT_ADDRESS: &str = "localhost:10809";

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let longs = [
        Long::with_argument("socket", SOCKET),
        Long::with_argument("listen", LISTEN),
        Long::with_argument("tls-certificates", CERTIFICATES),
        Long::flag("tls-verify-peer", VERIFY),
    ];
    let Some((parsed, source)) = parse(args, ("r", &longs), USAGE, io)? else { return Ok(()) };
    let [name] = &parsed.operands[..] else {
        return Err(wrong_use("one pool or dataset is needed", USAGE));
    };
    let address = match (parsed.value(SOCKET), parsed.value(LISTEN)) {
        (Some(path), None) => Address::Unix(argument::path(path)),
        (None, listen) => Address::Tcp(listen.unwrap_or(DEFAULT_ADDRESS).to_owned()),
        (Some(_), Some(_)) => {
            return Err(wrong_use("--socket and --listen exclude each other", USAGE));
        }
    };
    let tls = match (parsed.value(CERTIFICATES), parsed.has(VERIFY)) {
        (Some(folder), verifies) => Some(Tls::from_folder(&argument::path(folder), verifies)?),
        (None, false) => None,
        (None, true) => {
            return Err(wrong_use("--tls-verify-peer goes with --tls-certificates", USAGE));
        }
    };
    let is_read_only = parsed.has('r');
    // Before other threads exist.
    let signals = Signals::block()?;
    let source = Source { embedded: true, ..source };
    source::run(async {
        Writer::run(&source, name, None, io, async |engine, io| {
            serve(engine, name, is_read_only, (&address, tls), &signals, io).await
        })
        .await
    })
}

async fn serve(
    engine: &Arc<Engine>,
    name: &str,
    is_read_only: bool,
    (address, tls): (&Address, Option<Tls>),
    signals: &Signals,
    io: &mut Io<'_>,
) -> CommandResult {
    // From here on, changes that nobody syncs are written within seconds.
    engine.start_sync_task();
    let exports = Exports::new(Subtree::new(Arc::clone(engine), name, is_read_only));
    let names = exports.names().await?;
    let failed =
        |error: cenote_rt::Error| Exit::failed(format!("cannot listen at '{address}': {error}"));
    let is_encrypted = tls.is_some();
    let server = Server::start(exports, address, tls).await.map_err(failed)?;
    for name in names {
        out!(io, "{}", locator(server.address(), &name, is_encrypted))?;
    }
    out!(io, "listening at {}", server.address())?;
    io.out.flush()?;
    signals.next().await;
    server.stop().await?;
    Ok(())
}

/// Returns the address by which clients reach an export.
fn locator(address: &Address, name: &str, is_encrypted: bool) -> String {
    let scheme = if is_encrypted { "nbds" } else { "nbd" };
    match address {
        Address::Unix(path) => format!("{scheme}+unix:///{name}?socket={}", path.display()),
        Address::Tcp(address) => format!("{scheme}://{address}/{name}"),
    }
}
