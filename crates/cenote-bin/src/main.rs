//! The `cenote` program: a thin `main` over `cenote_cli`, and the daemon.

use std::io::IsTerminal as _;
use std::os::fd::AsFd;
use std::process::ExitCode;

use cenote_cli::TerminalStream;
use cenote_cli::environment::Terminals;

/// Larger writes bypass the buffer.
const OUTPUT_BUFFER_BYTES: usize = 64 << 10;

mod daemon;
mod stages;

#[global_allocator]
static ALLOCATOR: cenote_allocator::Allocator = cenote_allocator::Allocator;

fn main() -> ExitCode {
    cenote_rt::seeded::set_from_environment();
    stages::observe_from_environment();
    let args: Vec<_> = std::env::args_os().collect();
    if let Some(status) = cenote_serve::fuse::helper::run(&args) {
        return status;
    }
    cenote_cli::environment::set_terminals(Terminals {
        output: std::io::stdout().is_terminal(),
        messages: std::io::stderr().is_terminal(),
    });
    let words: Vec<String> = args.iter().map(|arg| cenote_cli::argument::from_os(arg)).collect();
    let is_terminal = |stream| match stream {
        TerminalStream::Input => std::io::stdin().is_terminal(),
        TerminalStream::Output => std::io::stdout().is_terminal(),
    };
    if let Some(why) = cenote_cli::terminal_refusal(&words, is_terminal) {
        eprintln!("{why}");
        return ExitCode::FAILURE;
    }
    if let Some(status) = daemon::run(&args) {
        return status;
    }
    let args = match daemon::with_loan(args) {
        Ok(args) => args.iter().map(|arg| cenote_cli::argument::from_os(arg)).collect::<Vec<_>>(),
        Err(why) => {
            eprintln!("{why}");
            return ExitCode::FAILURE;
        }
    };
    // Bypasses the standard library's buffer, which searches for line ends.
    let stdout = match std::io::stdout().as_fd().try_clone_to_owned() {
        Ok(stdout) => std::fs::File::from(stdout),
        Err(error) => {
            eprintln!("cannot write output: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut out = std::io::BufWriter::with_capacity(OUTPUT_BUFFER_BYTES, stdout);
    let mut err = std::io::stderr();
    let mut io = cenote_cli::Io { out: &mut out, err: &mut err };
    let status = cenote_cli::run(&args, &mut io);
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
