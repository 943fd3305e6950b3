//! Loans: a process reads a pool of the daemon itself, while the daemon keeps a state of the pool.
//!
//! ```text
//!   cenote verify tank ──"leaves tank"──> daemon        paths of the devices
//!                      ──"lend tank"────> daemon: view  txg; the view is held
//!        reads the devices at that txg           │
//!                      ──connection ends──> view dropped
//! ```
//!
//! `cenote ls`, `cat`, `cp`, `where` and `verify` read devices in the caller's process: with its
//! rights, its terminal, and its files as targets. When the daemon has the pool, blocks of the
//! state that they read must not be reused meanwhile, so the daemon holds a view of that state for
//! as long as the process is connected. If the daemon gives the view up (the pool needs the space,
//! or is closed) or dies, the process ends with an error: what it would read could be another
//! block's. Every block is checked on the way, so nothing wrong was read until then.
//!
//! Invariants (docs/design/rules.md, rule 1)
//! * LOAN-3  The txg is sent before the process reads, and is that of a view that the daemon holds
//!   until the connection ends. A view that was given up ends the connection. It is a view like
//!   those of commands: a loan keeps no space that the pool needs.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use cenote_cli::{CallerStreams, Session};

use super::client::{self, Answers};
use super::place::Place;
use super::streams::Streams;
use super::wire::{Kind, Request};

/// Exit status of a request for a pool that the daemon does not have.
const ABSENT: i32 = 3;
/// How long a loan may last.
const TIME: Duration = Duration::from_hours(24);
/// Interval of checks whether a loan has ended.
const PAUSE: Duration = Duration::from_millis(50);
/// Commands that read devices in the caller's process.
const READERS: [&str; 5] = ["ls", "cat", "cp", "where", "verify"];

/// Prints the paths of the pool's devices, with a NUL byte after each.
pub(super) fn print_leaves(session: &Session, name: &str, out: &mut dyn Write) -> i32 {
    let Ok(engine) = session.pool(name) else { return ABSENT };
    let tree = engine.tree();
    let written = tree.leaves().try_for_each(|(_, leaf)| write!(out, "{}\0", leaf.path()));
    i32::from(written.is_err())
}

/// Lends the newest state of a pool to the caller's process, until that has disconnected.
pub(super) fn lend(session: &Session, name: &str, streams: &Streams, err: &mut dyn Write) -> i32 {
    let Ok(engine) = session.pool(name) else { return ABSENT };
    if !session.caller.is_trusted() {
        let _ = writeln!(err, "cannot read the devices of '{name}': permission denied");
        return 1;
    }
    let lent = cenote_rt::block_on(0, async {
        // What programs have written until now is read as well.
        if !engine.is_read_only() && engine.health().suspended().is_none() {
            engine.sync().await?;
        }
        let view = engine.view_for(TIME).await?;
        let txg = view.uberblock().txg.to_le_bytes();
        // LOAN-3. The first bytes after "accepted": a socket's buffer has room for them.
        if streams.send(Kind::Output, &txg).is_err() {
            return Ok(());
        }
        while !streams.is_gone() {
            // Checks LOAN-3.
            view.check_valid()?;
            cenote_rt::sleep(PAUSE).await;
        }
        Ok(())
    });
    match lent.and_then(|lent: cenote_rt::Result<()>| lent) {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(err, "cannot read '{name}' any longer: {error}");
            1
        }
    }
}

/// Returns the arguments of a command that reads devices in this process, with those of the pool in
/// the daemon added, and holds the loan for as long as this process lives. `None` if the command
/// reads no pool of the daemon.
///
/// # Errors
/// Errors of the connection; the daemon's answers.
pub(super) fn borrow(words: &[OsString]) -> std::io::Result<Option<Vec<OsString>>> {
    let Some((verb, args)) = words.split_first() else { return Ok(None) };
    let args_text: Vec<String> =
        args.iter().map(|word| cenote_cli::argument::from_os(word)).collect();
    let Some(pool) = READERS
        .into_iter()
        .find(|reader| *verb == **reader)
        .and_then(|reader| cenote_cli::verbs::pool_to_find(reader, &args_text))
    else {
        return Ok(None);
    };
    let Some(place) = Place::of_environment() else { return Ok(None) };
    let Some(leaves) = ask(&place, "leaves", &pool)? else { return Ok(None) };
    let mut more = vec![verb.clone()];
    for path in leaves.split(|byte| *byte == 0).filter(|path| !path.is_empty()) {
        let path = OsStr::from_bytes(path);
        // A device that is gone is missing for this process, too.
        if std::path::Path::new(path).exists() {
            more.extend(["-d".into(), path.to_owned()]);
        }
    }
    let mut loan = client::answers(&place, &request("lend", &pool))?;
    let txg = match loan.next() {
        Some(Ok((Kind::Output, txg))) => txg.first_chunk().map(|txg| u64::from_le_bytes(*txg)),
        Some(Ok((Kind::Errors, why))) => {
            return Err(std::io::Error::other(String::from_utf8_lossy(&why).trim_end().to_owned()));
        }
        Some(Err(error)) => return Err(error),
        _ => None,
    };
    let txg = txg.ok_or(ErrorKind::InvalidData)?;
    more.extend(["-T".into(), txg.to_string().into()]);
    std::thread::spawn(move || end_with(loan));
    more.extend_from_slice(args);
    Ok(Some(more))
}

/// Ends this process when the daemon ends the loan: the state is not kept any more.
fn end_with(loan: Answers) {
    let mut why = "the daemon has ended".to_owned();
    for answer in loan.map_while(Result::ok) {
        if let (Kind::Errors, text) = answer {
            String::from_utf8_lossy(&text).trim_end().clone_into(&mut why);
        }
    }
    eprintln!("{why}");
    std::process::exit(1);
}

fn request(verb: &str, pool: &str) -> Request {
    let mut request = Request::of_daemon(verb);
    request.args.push(pool.into());
    request
}

/// Returns what the daemon answers about a pool; `None` if it does not have it, or if none runs and
/// none has recorded pools.
fn ask(place: &Place, verb: &str, pool: &str) -> std::io::Result<Option<Vec<u8>>> {
    let request = request(verb, pool);
    let answers = if place.pools().exists() {
        client::answers_or_start(place, &request)?
    } else {
        match client::answers(place, &request) {
            Err(error) if error.kind() == ErrorKind::NotConnected => return Ok(None),
            answers => answers?,
        }
    };
    let (said, status) = answers.collected()?;
    Ok((status == 0).then_some(said))
}
