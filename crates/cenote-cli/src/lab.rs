//! `cenote lab`: experiments that repeat published reports (see `cenote_lab`).
//!
//! An experiment prints its tables and judgements, or the whole report as JSON, SVG or PNG; with
//! `--out` it writes all of them into a directory. The exit status is 1 if a judgement fails.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use cenote_lab::experiment::{EXPERIMENTS, LabError, Scale, find};
use cenote_lab::picture::{self, Theme};
use cenote_lab::policy::POLICIES;
use cenote_lab::recordsize::{Advice, Trace};
use cenote_lab::space::{self, SpaceError, VdevSpace, VolumeSpace};
use cenote_lab::{Folder, Options, Place, Report, text};

use crate::getopt::{self, Long, Parsed};
use crate::io::{CommandResult, Exit, Io};
use crate::table::{Align, Table};

const USAGE: &str = "\
usage: cenote lab list [-H]
       cenote lab run [--seed N] [--policy NAME,...] [--small | --full] [--jobs N] [--out DIR]
                      [--real DIR] [-H | --json | --svg | --png [--dark]] EXPERIMENT
       cenote lab show [-H | --json | --svg | --png [--dark]] FILE
       cenote lab policies [-H]
       cenote lab space [-H] --layout LAYOUT [--width DISKS] [--ashift N] --volsize SIZE
                        [--volblocksize SIZE,...] [--copies N] [--explain]
       cenote lab recordsize [--cache SIZE] [-H | --json | --svg | --png [--dark]] TRACE

Repeats published reports about ZFS: the engine on modelled disks, in virtual time.

  list      experiments
  run       runs one, prints its tables; the exit status is 1 if a figure is out of its range
  show      prints a report that was stored with --out or --json
  policies  what the policies set
  space     predicts the space of volumes: reserved, and charged when incompressible data fills
            them; LAYOUT is disk, mirror, raidz1, raidz2 or raidz3, ashift the log2 of the sector
            size (12), sizes may end in K, M, G, T; --explain shows the arithmetic
  recordsize  tells which record size suits the accesses that 'cenote trace' recorded, with a cache
            of 64M for the file system's data

  --seed    seed of everything random (1)
  --policy  policies to compare (all of the experiment)
  --small   some cases only; --full: all cases, minutes or hours
  --jobs    simulations at the same time (number of processors)
  --out     also writes EXPERIMENT.txt, .json, .svg and .png into this directory
  --real    with disks that are files of this directory, in real time (scrub, volume, overwrite):
            minutes, and up to 4G of it (--full: 25G); the figures are those of this machine
  --json    the whole report; --svg and --png: its pictures; --dark: on a dark background
  -H        rows of the tables with tabs between columns, nothing else
";

/// Greatest length of a stored report and of a recording, bytes.
const REPORT_MAX: u64 = 16 << 20;
const TRACE_MAX: u64 = 1 << 30;
/// Cache for the replay of a recording, bytes.
const REPLAY_CACHE: u64 = 64 << 20;

const LONGS: [Long; 11] = [
    Long::with_argument("seed", 's'),
    Long::with_argument("policy", 'p'),
    Long::with_argument("jobs", 'j'),
    Long::with_argument("out", 'o'),
    Long::with_argument("real", 'r'),
    Long::flag("small", '1'),
    Long::flag("full", '2'),
    FORMATS[0],
    FORMATS[1],
    FORMATS[2],
    FORMATS[3],
];

/// The forms of a report.
const FORMATS: [Long; 4] = [
    Long::flag("json", 'J'),
    Long::flag("svg", 'S'),
    Long::flag("png", 'P'),
    Long::flag("dark", 'D'),
];

const RECORDSIZE_LONGS: [Long; 5] =
    [Long::with_argument("cache", 'c'), FORMATS[0], FORMATS[1], FORMATS[2], FORMATS[3]];

const SPACE_LONGS: [Long; 7] = [
    Long::with_argument("layout", 'l'),
    Long::with_argument("width", 'w'),
    Long::with_argument("ashift", 'a'),
    Long::with_argument("volsize", 'v'),
    Long::with_argument("volblocksize", 'b'),
    Long::with_argument("copies", 'c'),
    Long::flag("explain", 'x'),
];

/// Runs the verb.
pub(crate) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    if args.iter().any(|arg| arg == "--help") {
        write!(io.out, "{USAGE}")?;
        return Ok(());
    }
    let done = match args.split_first() {
        Some((verb, rest)) => run_verb(verb, rest, io),
        None => Err(Exit::usage("a command is needed")),
    };
    done.map_err(|exit| match exit {
        Exit::Usage(message) => Exit::Usage(format!("{message}\n{}", USAGE.trim_end())),
        other => other,
    })
}

fn run_verb(verb: &str, args: &[String], io: &mut Io<'_>) -> CommandResult {
    match verb {
        "help" => Ok(write!(io.out, "{USAGE}")?),
        "list" => list(&plain(args)?, io),
        "policies" => policies(&plain(args)?, io),
        "run" => run_experiment(&getopt::parse(args, "H", &LONGS)?, io),
        "space" => space(&getopt::parse(args, "H", &SPACE_LONGS)?, io),
        "recordsize" => recordsize(&getopt::parse(args, "H", &RECORDSIZE_LONGS)?, io),
        "show" => show(&getopt::parse(args, "H", &FORMATS)?, io),
        _ => Err(Exit::usage(format!("unrecognized command '{verb}'"))),
    }
}

/// Parses the arguments of a command that takes none but `-H`.
fn plain(args: &[String]) -> CommandResult<Parsed> {
    let parsed = getopt::parse(args, "H", &[])?;
    match parsed.operands.first() {
        Some(operand) => Err(Exit::usage(format!("too many arguments: '{operand}'"))),
        None => Ok(parsed),
    }
}

fn list(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let mut table = Table::new(["NAME", "SHOWS", "REPORT"].map(|title| (title, Align::Left)));
    for experiment in &EXPERIMENTS {
        let cells = [experiment.name, experiment.title, experiment.published];
        table.row(cells.map(str::to_owned).to_vec());
    }
    Ok(write!(io.out, "{}", table.render(parsed.has('H')))?)
}

fn policies(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let columns = [("POLICY", Align::Left), ("TUNABLE", Align::Left), ("VALUE", Align::Right)];
    let columns = columns.into_iter().chain([("DEFAULT", Align::Right), ("ABOUT", Align::Left)]);
    let mut table = Table::new(columns);
    for policy in &POLICIES {
        if policy.tunables.is_empty() {
            table.row([policy.name, "-", "-", "-", policy.about].map(str::to_owned).to_vec());
        }
        for (index, (tunable, value)) in policy.tunables.iter().enumerate() {
            let about = if index == 0 { policy.about } else { "" };
            let numbers = [*value, tunable.default].map(|number| number.to_string());
            let [value, default] = numbers;
            let (policy, name) = (policy.name.to_owned(), tunable.name.to_owned());
            table.row(vec![policy, name, value, default, about.to_owned()]);
        }
    }
    Ok(write!(io.out, "{}", table.render(parsed.has('H')))?)
}

fn run_experiment(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let [name] = parsed.operands.as_slice() else {
        return Err(Exit::usage("one experiment is needed"));
    };
    check_formats(parsed)?;
    let scale = match (parsed.has('1'), parsed.has('2')) {
        (true, true) => return Err(Exit::usage("--small and --full exclude each other")),
        (true, false) => Scale::Small,
        (false, true) => Scale::Full,
        (false, false) => Scale::Default,
    };
    let mut options = Options::new(scale);
    options.seed = number(parsed, 's', "seed")?.unwrap_or(options.seed);
    if let Some(jobs) = number(parsed, 'j', "jobs")? {
        options.jobs = usize::try_from(jobs).unwrap_or(usize::MAX).max(1);
    }
    if let Some(directory) = parsed.value('r') {
        options.place = Place::Files(Folder::new(directory));
    }
    let names = parsed.values('p').flat_map(|names| names.split(','));
    options.policies = names.map(str::to_owned).collect();
    let experiment = find(name).map_err(|error| failure(&error))?;
    let report = experiment.run(&options).map_err(|error| failure(&error))?;
    if let Some(directory) = parsed.value('o') {
        store(&report, Path::new(directory))?;
    }
    print(&report, parsed, io)?;
    if report.passes() { Ok(()) } else { Err(Exit::Status(1)) }
}

fn failure(error: &LabError) -> Exit {
    match error {
        LabError::Engine(error) => Exit::failed(format!("cannot run the experiment: {error}")),
        other => Exit::failed(other.to_string()),
    }
}

/// Returns the argument of an option as a number.
fn number(parsed: &Parsed, letter: char, name: &str) -> CommandResult<Option<u64>> {
    let parse = |text: &str| {
        text.parse().map_err(|_| Exit::usage(format!("--{name}: '{text}' is not a number")))
    };
    parsed.value(letter).map(parse).transpose()
}

fn check_formats(parsed: &Parsed) -> CommandResult {
    let count = ['H', 'J', 'S', 'P'].iter().filter(|letter| parsed.has(**letter)).count();
    if count > 1 {
        return Err(Exit::usage("-H, --json, --svg and --png exclude each other"));
    }
    if parsed.has('D') && !parsed.has('P') {
        return Err(Exit::usage(
            "--dark is for --png: the reader of an SVG chooses its background",
        ));
    }
    Ok(())
}

fn print(report: &Report, parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let theme = if parsed.has('D') { Theme::Dark } else { Theme::Light };
    if parsed.has('J') {
        write!(io.out, "{}", report.to_json())?;
    } else if parsed.has('S') {
        write!(io.out, "{}", picture::to_svg(report))?;
    } else if parsed.has('P') {
        io.out.write_all(&picture::to_png(report, theme))?;
    } else {
        write!(io.out, "{}", text::render(report, parsed.has('H')))?;
    }
    Ok(())
}

/// Writes all forms of a report into a directory.
fn store(report: &Report, directory: &Path) -> CommandResult {
    let failed = |path: PathBuf| {
        move |error: std::io::Error| {
            Exit::failed(format!("cannot write {}: {error}", path.display()))
        }
    };
    std::fs::create_dir_all(directory).map_err(failed(directory.to_owned()))?;
    let files = [
        ("txt", text::render(report, false).into_bytes()),
        ("json", report.to_json().into_bytes()),
        ("svg", picture::to_svg(report).into_bytes()),
        ("png", picture::to_png(report, Theme::Light)),
    ];
    for (kind, bytes) in files {
        let path = directory.join(format!("{}.{kind}", report.experiment));
        std::fs::write(&path, bytes).map_err(failed(path.clone()))?;
    }
    Ok(())
}

/// Reads a file that has at most this many bytes.
fn read(path: &str, most: u64) -> std::io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    Ok(text)
}

fn show(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let [path] = parsed.operands.as_slice() else {
        return Err(Exit::usage("one file is needed"));
    };
    check_formats(parsed)?;
    let text = read(path, REPORT_MAX)
        .map_err(|error| Exit::failed(format!("cannot read {path}: {error}")))?;
    let report = Report::from_json(&text);
    let report =
        report.map_err(|error| Exit::failed(format!("{path} is not a report: {error}")))?;
    print(&report, parsed, io)
}

fn recordsize(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    let [path] = parsed.operands.as_slice() else {
        return Err(Exit::usage("one recording is needed"));
    };
    check_formats(parsed)?;
    let cache = parsed.value('c').map_or(Ok(REPLAY_CACHE), size)?;
    let text = read(path, TRACE_MAX)
        .map_err(|error| Exit::failed(format!("cannot read {path}: {error}")))?;
    let trace = Trace::parse(&text);
    let trace =
        trace.map_err(|error| Exit::failed(format!("{path} is not a recording: {error}")))?;
    let advice = Advice::new(&trace, cache);
    if ['J', 'S', 'P'].iter().any(|letter| parsed.has(*letter)) {
        return print(&advice.report(), parsed, io);
    }
    write!(io.out, "{}", text::render_table(&advice.table(), parsed.has('H')))?;
    if !parsed.has('H') {
        write!(io.out, "\n{}", advice.explain())?;
    }
    Ok(())
}

/// Parses a size with an optional unit.
fn size(text: &str) -> CommandResult<u64> {
    let units = [('K', 10), ('M', 20), ('G', 30), ('T', 40)];
    let upper = text.to_ascii_uppercase();
    let found =
        units.into_iter().find_map(|(unit, shift)| Some((upper.strip_suffix(unit)?, shift)));
    let (digits, shift) = found.unwrap_or((upper.as_str(), 0));
    let number = digits.parse::<u64>().ok();
    let bytes = number.and_then(|number| number.checked_mul(1 << shift));
    bytes.ok_or_else(|| Exit::usage(format!("'{text}' is not a size")))
}

fn space(parsed: &Parsed, io: &mut Io<'_>) -> CommandResult {
    if let Some(operand) = parsed.operands.first() {
        return Err(Exit::usage(format!("too many arguments: '{operand}'")));
    }
    let needed = |letter, name: &str| {
        parsed.value(letter).ok_or_else(|| Exit::usage(format!("--{name} is needed")))
    };
    let layout = needed('l', "layout")?;
    let volsize = size(needed('v', "volsize")?)?;
    let width = number(parsed, 'w', "width")?;
    let width = match (width, layout.starts_with("raidz")) {
        (None, true) => return Err(Exit::usage("--width is needed for RAID-Z")),
        (width, _) => width.unwrap_or(1),
    };
    let ashift = number(parsed, 'a', "ashift")?.unwrap_or(12);
    let copies = number(parsed, 'c', "copies")?.unwrap_or(1);
    if !(1..=3).contains(&copies) {
        return Err(Exit::usage(format!("--copies: {copies} is not 1, 2 or 3")));
    }
    let blocks = match parsed.value('b') {
        Some(list) => list.split(',').map(size).collect::<CommandResult<Vec<_>>>()?,
        None => (12..=17).map(|shift| 1 << shift).collect(),
    };
    let refused = |error: SpaceError| Exit::failed(error.to_string());
    let vdev = VdevSpace::new(layout, width, ashift).map_err(refused)?;
    let table = space::table(volsize, &blocks, copies, &vdev).map_err(refused)?;
    write!(io.out, "{}", text::render_table(&table, parsed.has('H')))?;
    if parsed.has('x') {
        for block in blocks {
            let volume = VolumeSpace::new(volsize, block).map_err(refused)?;
            let volume = VolumeSpace { copies, ..volume };
            write!(io.out, "\nblocks of {block}:\n{}", volume.explain(&vdev))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::run_captured;

    #[test]
    fn lab_lists_experiments_and_policies() {
        let (list, _, status) = run_captured(&["lab", "list", "-H"]);
        assert!(status == 0 && list.starts_with("indirect\t"), "{list}");
        let (policies, _, status) = run_captured(&["lab", "policies", "-H"]);
        assert_eq!(status, 0);
        let want = "historic-2013\tzfs_default_ibs\t14\t17\t\n";
        assert!(policies.contains(want), "{policies}");
    }

    #[test]
    fn lab_space_explains_a_volume() {
        let args = ["lab", "space", "--layout", "raidz1", "--width", "4", "--volsize", "1G"];
        let (text, _, status) = run_captured(&[&args[..], &["--volblocksize", "8K,128k"]].concat());
        assert!(status == 0 && text.lines().count() == 4, "{text}");
        let more = ["--volblocksize", "8K", "-H", "--explain"];
        let (text, _, status) = run_captured(&[&args[..], &more].concat());
        assert!(status == 0 && text.starts_with("8192\t131072\t16384\t50.0\t"), "{text}");
        assert!(text.contains("3 sectors, 4 with padding (a multiple of 2)"), "{text}");
    }

    #[test]
    fn lab_errors_are_reported() {
        let runs: [(&[&str], i32, &str); 20] = [
            (&["space"], 2, "--layout is needed\n"),
            (&["space", "--layout", "raidz2", "--volsize", "1G"], 2, "--width is needed for "),
            (&["space", "--layout", "disk", "--volsize", "1X"], 2, "'1X' is not a size\n"),
            (&["space", "--layout", "raid5", "--volsize", "1G"], 1, "'raid5' is not a layout: "),
            (&[], 2, "a command is needed\nusage: "),
            (&["frob"], 2, "unrecognized command 'frob'\n"),
            (&["list", "x"], 2, "too many arguments: 'x'\n"),
            (&["run"], 2, "one experiment is needed\n"),
            (&["run", "nosuch"], 1, "no experiment is named 'nosuch'; run 'cenote lab list'\n"),
            (&["run", "pads", "--seed", "x"], 2, "--seed: 'x' is not a number\n"),
            (&["run", "pads", "--small", "--full"], 2, "--small and --full exclude each other\n"),
            (&["run", "pads", "--json", "--svg"], 2, "-H, --json, --svg and --png exclude "),
            (&["run", "pads", "--policy", "x"], 1, "experiment 'pads' has no policy 'x': "),
            (&["show", "/nonexistent"], 1, "cannot read /nonexistent: "),
            (&["recordsize", "--json", "--svg", "x"], 2, "-H, --json, --svg and --png exclude "),
            (&["show", "--full", "x"], 2, "invalid option 'full'\n"),
            (&["recordsize"], 2, "one recording is needed\n"),
            (&["recordsize", "--cache", "x", "/dev/null"], 2, "'x' is not a size\n"),
            (&["recordsize", "/dev/null"], 1, "/dev/null is not a recording: its first line is "),
            (&["show", "/dev/zero"], 1, "cannot read /dev/zero: file too large\n"),
        ];
        for (args, status, want) in runs {
            let (_, err, was) = run_captured(&[&["lab"], args].concat());
            assert!(was == status && err.starts_with(want), "{args:?}: {was} {err}");
        }
    }
}
