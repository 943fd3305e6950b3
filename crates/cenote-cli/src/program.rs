//! The entry point: selects tool and verb, and turns the command's result into an exit status.

use std::sync::Arc;

use cenote_engine::{Engine, SOFTWARE};

use crate::hints::{self, Listener};
use crate::host::{OpenPools, Session};
use crate::io::{CommandResult, Exit, Io};
use crate::progress;
use crate::source::{READ_ATTEMPTS, Source};
use crate::usage::Tool;
use crate::{
    environment, err, lab, manual, out, trace, tunable, verbs, zdb, zfs, zinject, zpool, zstream,
};

const HELP: &str = "\
usage: cenote COMMAND [ARGUMENTS]

Tools with OpenZFS's options and output:
  zpool [--embedded -d DIR]... VERB     pools: create, import, add, set, list, status, ...
  zfs   [--embedded -d DIR]... VERB     datasets: create, snapshot, destroy, set, list, ...
  zdb   [-e -p DIR] [OPTIONS] [POOL]    on-disk structures
  zstream COMMAND                       stored send streams: dump, token, recompress, redup, ...
  With --embedded the command itself opens the pools; without it the daemon has them open.
  Further options before VERB: -k DATASET=KEYFILE loads a key, -T TXG shows the pool as of a txg.

Commands of cenote:
  ls     [-lR] [--json] [--checksum] -d DIR POOL/DATASET[@SNAP] [PATH]
  cat    -d DIR POOL/DATASET[@SNAP] [PATH]
  cp     -r [--strict] -d DIR POOL/DATASET[@SNAP] [PATH] TARGET
  verify [--leaks] -d DIR POOL
  verify-stream [--json] FILE|-         stored send streams, without a pool
  where  [-H] -d DIR POOL/DATASET[@SNAP] [PATH]
  map    [-f] [--color] [-m METASLAB] [--svg FILE | --png FILE] [-d DIR] POOL
  top    [-b] [--json] [-s COLUMN] [POOL] [INTERVAL [COUNT]]
  trace  [-t SECONDS] [-n ACCESSES] DATASET
  mount  [-o OPTIONS] -d DIR POOL/DATASET MOUNTPOINT
  nbd    [--socket PATH | --listen ADDRESS] -d DIR POOL[/DATASET]
  daemon start|stop|status|run
  tunable [list|get|set]                tunables of the daemon's engine
  zinject [-d DEVICE OPTIONS POOL]      faults of devices, for tests
  lab    list|run|show|policies         experiments: published reports, repeated
  completions bash|zsh|fish             completion script for a shell
  manual [--out DIR] [TOOL] VERB        manual pages of commands

Each takes --help.
";

/// Returns the tools and commands that the help names.
pub(crate) fn commands() -> impl Iterator<Item = &'static str> {
    let named = HELP.lines().filter_map(|line| line.strip_prefix("  "));
    named
        .filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase()))
        .filter_map(|line| line.split_whitespace().next())
}

/// Verbs that change nothing and that every user may use.
const OPEN_VERBS: [&str; 18] = [
    "list",
    "get",
    "status",
    "history",
    "iostat",
    "events",
    "version",
    "help",
    "userspace",
    "groupspace",
    "projectspace",
    "project",
    "holds",
    "mount",
    "wait",
    "-V",
    "--version",
    "-?",
];

/// Runs `cenote` with these arguments in this process. Returns what it wrote to standard output and
/// to standard error, and the exit status.
pub fn run_captured(args: &[&str]) -> (String, String, i32) {
    let args: Vec<String> = ["cenote"].iter().chain(args).map(|arg| (*arg).to_owned()).collect();
    let (mut out, mut err) = (Vec::new(), Vec::new());
    let status = run(&args, &mut Io { out: &mut out, err: &mut err });
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (text(out), text(err), status)
}

/// Runs `zpool`, `zfs`, `map`, `trace`, `tunable` or `zinject` (the name of the tool first) in a
/// session. Returns the exit status.
pub fn run_for(session: &Session, args: &[String], io: &mut Io<'_>) -> i32 {
    environment::lend(session.caller.environment().clone(), || {
        with_hints(args, Some(session), io, |io| run_here(session, args, io))
    })
}

/// Runs a command, and adds suggestions to the messages of one that fails, if they are wanted.
fn with_hints(
    args: &[String],
    session: Option<&Session>,
    io: &mut Io<'_>,
    command: impl FnOnce(&mut Io<'_>) -> i32,
) -> i32 {
    if !environment::wants_hints() {
        return command(io);
    }
    let mut err = Listener::new(io.err);
    let status = command(&mut Io { out: io.out, err: &mut err });
    if status != 0 {
        err.suggest(args, session);
    } else if let Some(note) = session.and_then(|session| hints::note(args, session)) {
        // Without a reader of the messages there is nobody to tell.
        let _ = io.err.write_all(note.as_bytes());
    }
    status
}

fn run_here(session: &Session, args: &[String], io: &mut Io<'_>) -> i32 {
    let mut left = READ_ATTEMPTS;
    let result = loop {
        left -= 1;
        let open = OpenPools::of(session);
        let result = once(session, args, io);
        let is_stale = matches!(result, Err(Exit::Overtaken)) || open.is_one_closed();
        if !is_stale || left == 0 || !only_reads(args) {
            break result;
        }
        // Starts again only if the caller has not yet received any output.
        match session.caller.streams() {
            Some(streams) if !streams.has_delivered() => streams.discard(),
            _ => break result,
        }
    };
    finish_all(result, io)
}

/// Whether a command changes nothing, so that it may be run again. Commands with an interval repeat
/// their own steps.
#[must_use]
pub fn only_reads(args: &[String]) -> bool {
    if args.first().is_some_and(|tool| tool == "map") {
        return true;
    }
    let Some((tool, [verb, rest @ ..])) = args.split_first() else { return false };
    let reading: &[&str] = match tool.as_str() {
        "zpool" => &["list", "get", "status", "history"],
        "zfs" => {
            &["list", "get", "diff", "holds", "userspace", "groupspace", "projectspace", "mount"]
        }
        _ => &[],
    };
    // Without arguments `mount` only lists.
    reading.contains(&verb.as_str()) && (verb != "mount" || rest.is_empty())
}

/// Tells a person what a command on the pools of a session waits for: the state of the pools that
/// it names, or of all pools. If it waits for an activity of a pool, that is what is left of it
/// ([`Progress`](crate::Progress)). `None` if it shows by itself what it waits for.
#[must_use]
pub fn waiting_for(session: &Session, args: &[String]) -> Option<String> {
    const SHOW: [&str; 3] = ["events", "iostat", "-w"];
    let waited_for = zpool::wait::waited_for(args);
    let shows = args.iter().any(|word| SHOW.contains(&word.as_str())) || args.first()? == "top";
    if shows && waited_for.is_none() {
        return None;
    }
    let pool_of = |word: &String| word.split(['/', '@', '#']).next().map(str::to_owned);
    let named: Vec<String> = args.iter().skip(2).filter_map(pool_of).collect();
    let pools = session.host.pools();
    let is_named = |engine: &&Arc<Engine>| named.contains(&engine.name());
    let is_any_named = pools.iter().any(|engine| is_named(&engine));
    let concerned = pools.iter().filter(|engine| !is_any_named || is_named(engine));
    for engine in concerned {
        if let Some(why) = engine.health().suspended() {
            let name = engine.name();
            return Some(format!(
                "waiting: pool I/O of '{name}' is currently suspended ({why});\n\
                 'zpool clear {name}' continues it when its devices are in order\n"
            ));
        }
    }
    if let Some(wanted) = waited_for {
        let named = pools.iter().filter(is_named);
        let mut left = named.map(|engine| zpool::wait::progress(engine, &wanted));
        // Of several pools, the first one in which anything goes on.
        let left = left.find(|left| !left.is_empty()).unwrap_or_default();
        return is_any_named.then(|| progress::answer(left));
    }
    Some(format!("waiting for the daemon to finish '{}'\n", args.join(" ")))
}

fn once(session: &Session, args: &[String], io: &mut Io<'_>) -> CommandResult {
    match args {
        [tool, rest @ ..] if tool == "zpool" => in_session(Tool::Zpool, session, rest, io),
        [tool, rest @ ..] if tool == "zfs" => in_session(Tool::Zfs, session, rest, io),
        [tool, rest @ ..] if tool == "mount.zfs" => zfs::mount_for(session, rest),
        [tool, rest @ ..] if tool == "tunable" => tunable::run(Some(session), rest, io),
        [tool, rest @ ..] if tool == "trace" => trace::run(Some(session), rest, io),
        [tool, rest @ ..] if tool == "map" => verbs::map::run(Some(session), rest, io),
        [tool, rest @ ..] if tool == "zinject" => zinject::run(Some(session), rest, io),
        _ => Err(Exit::usage("not a command that runs in a session")),
    }
}

fn in_session(tool: Tool, session: &Session, args: &[String], io: &mut Io<'_>) -> CommandResult {
    // Changes by other users do not move mounts.
    let leaves_mounts = !session.caller.is_trusted();
    let source = Source { session: Some(session.clone()), leaves_mounts, ..Source::default() };
    if let Some(verb) = args.first().map(|verb| full(verb))
        && tool.has_verb(verb)
        && !session.caller.is_trusted()
        && !(tool == Tool::Zfs && zfs::ASKING_VERBS.contains(&verb))
        && !(OPEN_VERBS.contains(&verb) && is_harmless(verb, args))
    {
        return Err(Exit::failed(format!("cannot {verb}: permission denied")));
    }
    openzfs_tool(tool, source, args, io)
}

/// Whether a verb that every user may use only shows something.
fn is_harmless(verb: &str, args: &[String]) -> bool {
    verb != "mount" || args.len() == 1
}

/// Returns the full name of an abbreviated verb.
pub(crate) fn full(verb: &str) -> &str {
    match verb {
        "recv" => "receive",
        "snap" => "snapshot",
        "umount" => "unmount",
        other => other,
    }
}

/// Runs the program with `args` (the program's name first) and returns its exit status.
pub fn run(args: &[String], io: &mut Io<'_>) -> i32 {
    let invoked = args.first().map_or("", |path| path.rsplit('/').next().unwrap_or(path));
    let (tool, rest) = match invoked {
        "zpool" | "zfs" | "zdb" | "zinject" | "zstream" => {
            (invoked, args.get(1..).unwrap_or_default())
        }
        _ => match args.get(1) {
            Some(tool) => (tool.as_str(), args.get(2..).unwrap_or_default()),
            None => ("", &[][..]),
        },
    };
    let words: Vec<String> = std::iter::once(tool.to_owned()).chain(rest.iter().cloned()).collect();
    with_hints(&words, None, io, |io| run_tool(tool, rest, io))
}

fn run_tool(tool: &str, rest: &[String], io: &mut Io<'_>) -> i32 {
    let result = match tool {
        "zpool" => openzfs_tool(Tool::Zpool, Source::default(), rest, io),
        "zfs" => openzfs_tool(Tool::Zfs, Source::default(), rest, io),
        "zdb" => zdb::run(rest, io),
        "tunable" => tunable::run(None, rest, io),
        "lab" => lab::run(rest, io),
        "manual" => manual::run(rest, io),
        "trace" => trace::run(None, rest, io),
        "zinject" => zinject::run(None, rest, io),
        "zstream" => zstream::run(rest, io),
        _ => own_verb(tool, rest, io),
    };
    finish_all(result, io)
}

pub(crate) fn finish_all(result: CommandResult, io: &mut Io<'_>) -> i32 {
    let status = finish(result, io);
    // A reader that closes the pipe before the last flush counts like one that closes it earlier.
    if io.out.flush().is_err() && status == 0 { 141 } else { status }
}

fn finish(result: CommandResult, io: &mut Io<'_>) -> i32 {
    match result {
        Ok(()) => 0,
        Err(Exit::Status(status)) => status,
        Err(Exit::Pipe) => 141,
        Err(exit @ Exit::Overtaken) => {
            let _ = err!(io, "{}", exit.message());
            1
        }
        Err(Exit::Failed(message) | Exit::NotMounted(message)) => {
            let _ = err!(io, "{message}");
            1
        }
        Err(Exit::FailedWith(message, status)) => {
            let _ = err!(io, "{message}");
            status
        }
        Err(Exit::Usage(message)) => {
            let _ = err!(io, "{message}");
            2
        }
    }
}

fn openzfs_tool(tool: Tool, source: Source, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let (source, rest) = source.take_leading(args)?;
    let Some((verb, rest)) = rest.split_first() else {
        return Err(Exit::Usage(format!("missing command\n{}", tool.usage().trim_end())));
    };
    let verb = match verb.as_str() {
        "-V" | "--version" => "version",
        "-?" | "--help" => {
            write!(io.out, "{}", tool.usage())?;
            return Ok(());
        }
        other => full(other),
    };
    if verb == "help" {
        return zpool::help(tool, rest, io);
    }
    if !tool.has_verb(verb) {
        let usage = hints::usage_of_tool(tool);
        let message = format!("unrecognized command '{verb}'\n{}", usage.trim_end_matches('\n'));
        return Err(Exit::Usage(message));
    }
    if asks_for_help(rest) {
        return zpool::help(tool, &[verb.to_owned()], io);
    }
    let result = match tool {
        Tool::Zpool => zpool::run(verb, &source, rest, io),
        Tool::Zfs => zfs::run(verb, &source, rest, io),
    };
    result.map_err(|exit| match exit {
        Exit::Usage(message) => {
            let usage = hints::usage_of(tool, verb);
            let separator = if message.is_empty() { "" } else { "\n" };
            Exit::Usage(format!("{message}{separator}{}", usage.trim_end_matches('\n')))
        }
        other => other,
    })
}

/// Whether `--help` is one of the options of a verb.
fn asks_for_help(args: &[String]) -> bool {
    args.iter().take_while(|arg| *arg != "--").any(|arg| arg == "--help")
}

/// Whether this command of `zpool` or `zfs` needs no pool: it only prints a usage text.
#[must_use]
pub fn needs_no_pool(tool: &str, args: &[String]) -> bool {
    let tool = Tool::ALL.into_iter().find(|named| named.name() == tool);
    let (Some(tool), Some((verb, rest))) = (tool, args.split_first()) else { return true };
    !tool.has_verb(full(verb)) || asks_for_help(rest)
}

fn own_verb(verb: &str, args: &[String], io: &mut Io<'_>) -> CommandResult {
    match verb {
        "--version" | "version" => {
            out!(io, "{SOFTWARE}")?;
            Ok(())
        }
        "help" if let [command, ..] = args => {
            let words = match command.as_str() {
                "zpool" | "zfs" => vec!["help".to_owned()],
                _ => vec!["--help".to_owned()],
            };
            Err(Exit::Status(run_tool(command, &words, io)))
        }
        "" | "help" | "--help" | "-h" => {
            write!(io.out, "{HELP}")?;
            if verb.is_empty() { Err(Exit::Status(2)) } else { Ok(()) }
        }
        _ => verbs::run(verb, args, io),
    }
}

#[cfg(test)]
mod tests {
    use super::only_reads;

    #[test]
    fn commands_that_change_a_pool_never_run_twice() {
        let is_reading =
            |line: &str| only_reads(&line.split(' ').map(str::to_owned).collect::<Vec<_>>());
        for line in ["zfs list -t all", "zpool status -v t", "zfs diff t@a", "zfs mount", "map t"] {
            assert!(is_reading(line), "{line}");
        }
        for line in [
            "zfs destroy -r t",
            "zfs mount t/a",
            "zpool wait t",
            "zpool events -c",
            "zfs",
            "zpool create list",
            "mount.zfs list",
            "tunable list",
        ] {
            assert!(!is_reading(line), "{line}");
        }
    }
}
