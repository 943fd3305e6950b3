//! `sim`: runs histories by seed. See the library.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use cenote_sim::batch::{self, Extent};

const USAGE: &str = "\
usage: sim [SEED]             run the history of a seed
       sim FILE               run the history of a plan in a file
       sim --print SEED       print the plan of a seed
       sim --json SEED        print it in the form of a file
       sim --minutes N        run histories for N minutes
       sim --count N          run N histories
options: --base SEED          the first seed of several
         --no-shrink          report a failure as it is
";

#[derive(Default)]
struct Arguments {
    base: Option<u64>,
    file: Option<PathBuf>,
    extent: Option<Extent>,
    keeps: bool,
    prints: bool,
    prints_json: bool,
}

fn parse() -> Option<Arguments> {
    let mut found = Arguments::default();
    let mut arguments = std::env::args().skip(1);
    let number = |text: Option<String>| text.and_then(|text| text.parse::<u64>().ok());
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
            _ if argument.starts_with('-') => return None,
            _ => match argument.parse() {
                Ok(seed) => found.base = Some(seed),
                Err(_) => found.file = Some(argument.into()),
            },
        }
    }
    Some(found)
}

fn main() -> ExitCode {
    let Some(arguments) = parse() else {
        eprint!("{USAGE}");
        return ExitCode::from(2);
    };
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
        (None, None) => batch::run_seed(base),
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
