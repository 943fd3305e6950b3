//! `sim`: runs histories by seed. See the library.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cenote_rt::seeded::Bug;
use cenote_sim::batch::{self, Extent};
use cenote_sim::bugs;

const USAGE: &str = "\
usage: sim [SEED]             run the history of a seed
       sim FILE               run the history of a plan in a file
       sim --print SEED       print the plan of a seed
       sim --json SEED        print it in the form of a file
       sim --minutes N        run histories for N minutes
       sim --count N          run N histories
       sim --bugs [NAME...]   run histories in engines with seeded mistakes, one at a time, until
                              one fails
options: --base SEED          the first seed of several
         --no-shrink          report a failure as it is
         --bug NAME           run the history of a seed in an engine with a seeded mistake
         --searches N         begin N searches for each mistake (5)
         --limit SECONDS      limit of the processor time of a search (600)
";

#[derive(Default)]
struct Arguments {
    base: Option<u64>,
    file: Option<PathBuf>,
    extent: Option<Extent>,
    keeps: bool,
    prints: bool,
    prints_json: bool,
    bug: Option<Bug>,
    searches: Option<Searches>,
}

/// The mistakes to search for, all if none is named, and how.
#[derive(Default)]
struct Searches {
    bugs: Vec<Bug>,
    extent: bugs::Extent,
}

fn number(text: Option<String>) -> Option<u64> {
    text.and_then(|text| text.parse().ok())
}

fn parse() -> Option<Arguments> {
    let mut arguments = std::env::args().skip(1).peekable();
    if arguments.next_if(|first| first == "--bugs").is_some() {
        return parse_searches(arguments);
    }
    let mut found = Arguments::default();
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--minutes" => {
                let minutes = number(arguments.next())?;
                found.extent = Some(Extent::Time(Duration::from_secs(60 * minutes)));
            }
            "--count" => found.extent = Some(Extent::Count(number(arguments.next())?)),
            "--base" => found.base = Some(number(arguments.next())?),
            "--no-shrink" => found.keeps = true,
            "--print" => found.prints = true,
            "--json" => found.prints_json = true,
            "--bug" => found.bug = Some(bugs::named(&arguments.next()?)?),
            _ if argument.starts_with('-') => return None,
            _ => match argument.parse() {
                Ok(seed) => found.base = Some(seed),
                Err(_) => found.file = Some(argument.into()),
            },
        }
    }
    Some(found)
}

fn parse_searches(mut arguments: impl Iterator<Item = String>) -> Option<Arguments> {
    let mut searches = Searches::default();
    while let Some(argument) = arguments.next() {
        match &*argument {
            "--base" => searches.extent.base = number(arguments.next())?,
            "--searches" => searches.extent.searches = number(arguments.next())?.max(1),
            "--limit" => {
                searches.extent.limit = Duration::from_secs(number(arguments.next())?);
            }
            name => searches.bugs.push(bugs::named(name)?),
        }
    }
    Some(Arguments { searches: Some(searches), ..Arguments::default() })
}

/// Searches for mistakes, and prints a table.
fn search(mut searches: Searches) -> ExitCode {
    if !cfg!(debug_assertions) {
        eprintln!("mistakes are only in builds with assertions, such as that of ./x sim");
        return ExitCode::from(2);
    }
    if searches.bugs.is_empty() {
        searches.bugs = bugs::all();
    }
    // Panics are failures of histories, and part of the table.
    std::panic::set_hook(Box::new(|_| ()));
    println!("| mistake | median, s | each | histories | first line of the failure |");
    println!("|---|---|---|---|---|");
    let is_found = bugs::search(&searches.bugs, searches.extent, |row| println!("{row}"));
    if is_found { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn main() -> ExitCode {
    let Some(arguments) = parse() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
    if let Some(searches) = arguments.searches {
        return search(searches);
    }
    let base = arguments.base.unwrap_or(1);
    if arguments.prints {
        print!("{}", batch::plan_text(base));
        return ExitCode::SUCCESS;
    }
    if arguments.prints_json {
        print!("{}", batch::plan_json(base));
        return ExitCode::SUCCESS;
    }
    let (tally, failure) = match (&arguments.file, arguments.extent) {
        (Some(file), _) => match batch::run_file(file) {
            Ok(done) => done,
            Err(error) => {
                eprintln!("{}: {error}", file.display());
                return ExitCode::from(2);
            }
        },
        (None, None) => batch::run_seed(base, arguments.bug),
        (None, Some(extent)) => {
            println!("seeds from {base} on");
            batch::run(base, extent)
        }
    };
    print!("{tally}");
    let Some(failure) = failure else {
        println!("no failure");
        return ExitCode::SUCCESS;
    };
    println!("FAILED: {}", if arguments.keeps { failure.text() } else { failure.shrunk() });
    ExitCode::FAILURE
}
