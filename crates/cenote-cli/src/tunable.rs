//! `cenote tunable`: shows and sets the engine's tunables at run time.
//!
//! Through the daemon they are the tunables of its pools; with `--embedded` they are those that
//! such a command would start with, which are the defaults. Values are not stored: a daemon starts
//! with the defaults, like a kernel module when it is loaded.

use cenote_rt::tunables::{self, Tunable, TunableError};

use crate::getopt::{self, Parsed};
use crate::host::Session;
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::table::{Align, Table};

const USAGE: &str = "\
usage: cenote tunable [--embedded] [list [-Hvx] [PART...]]
       cenote tunable [--embedded] get [-x] NAME...
       cenote tunable set NAME=VALUE...

Shows and sets the tunables of the daemon's engine; with --embedded shows the defaults.
Values are decimal or 0x hexadecimal. They last until the daemon ends.

  list  tunables whose names contain one of the PARTs, or all
  -H    no header, and tabs between columns
  -v    with descriptions
  -x    in hexadecimal
";

/// Runs the verb; without a session it works on this process alone.
pub(crate) fn run(session: Option<&Session>, args: &[String], io: &mut Io<'_>) -> CommandResult {
    let args = match args {
        [first, rest @ ..] if first == "--embedded" && session.is_none() => rest,
        _ => args,
    };
    let (verb, rest) = match args.split_first() {
        Some((verb, rest)) if !verb.starts_with('-') => (verb.as_str(), rest),
        _ => ("list", args),
    };
    if args.iter().any(|arg| arg == "--help") || verb == "help" {
        write!(io.out, "{USAGE}")?;
        return Ok(());
    }
    let done = match verb {
        "list" => getopt::parse(rest, "Hvx", &[]).and_then(|parsed| list(&parsed, io)),
        "get" => getopt::parse(rest, "x", &[]).and_then(|parsed| get(&parsed, io)),
        "set" => set(session, rest),
        _ => Err(Exit::usage(format!("unrecognized command '{verb}'"))),
    };
    done.map_err(|exit| match exit {
        Exit::Usage(message) => Exit::Usage(format!("{message}\n{}", USAGE.trim_end())),
        other => other,
    })
}

/// Formats a number as the options request.
fn shown(value: u64, parsed: &Parsed) -> String {
    if parsed.has('x') { format!("{value:#x}") } else { value.to_string() }
}

fn list(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let parts = &parsed.operands;
    let is_meant = |tunable: &&&Tunable| {
        parts.is_empty() || parts.iter().any(|part| tunable.name.contains(part.as_str()))
    };
    let mut wanted: Vec<&Tunable> = tunables::ALL.iter().filter(is_meant).copied().collect();
    if wanted.is_empty() {
        return Err(Exit::failed(format!("no tunable has '{}' in its name", parts.join("' or '"))));
    }
    wanted.sort_by_key(|tunable| tunable.name);
    let mut columns = vec![("NAME", Align::Left)];
    columns.extend(["VALUE", "DEFAULT", "MIN", "MAX"].map(|title| (title, Align::Right)));
    if parsed.has('v') {
        columns.push(("PURPOSE", Align::Left));
    }
    let mut table = Table::new(columns);
    for tunable in wanted {
        let numbers = [tunable.get(), tunable.default, tunable.min, tunable.max];
        let mut cells = vec![tunable.name.to_owned()];
        cells.extend(numbers.map(|number| shown(number, parsed)));
        cells.extend(parsed.has('v').then(|| tunable.help.to_owned()));
        table.row(cells);
    }
    Ok(write!(io.out, "{}", table.render(parsed.has('H')))?)
}

fn find(name: &str) -> Result<&'static Tunable, Exit> {
    tunables::find(name).ok_or_else(|| refusal(&TunableError::Unknown(name.to_owned())))
}

fn refusal(error: &TunableError) -> Exit {
    Exit::failed(error.to_string())
}

fn get(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    if parsed.operands.is_empty() {
        return Err(Exit::usage("a name is needed"));
    }
    for name in &parsed.operands {
        out!(io, "{}", shown(find(name)?.get(), parsed))?;
    }
    Ok(())
}

fn set(session: Option<&Session>, args: &[String]) -> CommandResult {
    if args.is_empty() {
        return Err(Exit::usage("NAME=VALUE is needed"));
    }
    let Some(session) = session else {
        return Err(Exit::failed(
            "cannot set tunables: their values would be lost with this command",
        ));
    };
    if !session.caller.is_trusted() {
        return Err(Exit::failed("cannot set tunables: permission denied"));
    }
    // Sets all or none.
    let mut wanted = Vec::new();
    for arg in args {
        let parts = arg.split_once('=');
        let (name, text) =
            parts.ok_or_else(|| Exit::usage(format!("'{arg}' is not of the form NAME=VALUE")))?;
        let tunable = find(name)?;
        wanted.push((tunable, tunable.parse(text).map_err(|error| refusal(&error))?));
    }
    for (tunable, value) in wanted {
        tunable.set(value).map_err(|error| refusal(&error))?;
    }
    session.host.apply_tunables();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(line: &str) -> (String, String, i32) {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut args = vec!["cenote".to_owned(), "tunable".to_owned()];
        args.extend(line.split_whitespace().map(str::to_owned));
        let status = crate::run(&args, &mut Io { out: &mut out, err: &mut err });
        let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
        (text(out), text(err), status)
    }

    #[test]
    fn tunable_shows_defaults() {
        assert_eq!(said("--embedded get zfs_txg_timeout").0, "5\n");
        assert_eq!(said("get -x zfs_initialize_value").0, "0xdeadbeefdeadbeee\n");
        let (list, _, status) = said("--embedded list -Hv txg_timeout");
        let purpose = "seconds after which changes are synced at the latest";
        assert_eq!((list, status), (format!("zfs_txg_timeout\t5\t5\t1\t3600\t{purpose}\n"), 0));
        let all = said("").0;
        assert!(all.starts_with("NAME ") && all.lines().count() == tunables::ALL.len() + 1);
    }

    #[test]
    fn tunable_errors_are_reported() {
        for (line, status, want) in [
            ("get", 2, "a name is needed\nusage: cenote tunable"),
            ("get nosuch", 1, "no tunable is named 'nosuch'\n"),
            ("list nosuch", 1, "no tunable has 'nosuch' in its name\n"),
            ("frob", 2, "unrecognized command 'frob'\nusage: "),
            ("list -Q", 2, "invalid option 'Q'\nusage: "),
            (
                "set zfs_txg_timeout=7",
                1,
                "cannot set tunables: their values would be lost with this command\n",
            ),
        ] {
            let (_, err, was) = said(line);
            assert!(was == status && err.starts_with(want), "{line}: {was} {err}");
        }
    }
}
