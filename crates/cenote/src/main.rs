//! The `cenote` program: a thin `main` over `cenote_cli`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let args: Vec<String> =
        std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let mut out = std::io::BufWriter::with_capacity(1 << 16, std::io::stdout());
    let mut err = std::io::stderr();
    let mut io = cenote_cli::Io { out: &mut out, err: &mut err };
    let status = cenote_cli::run(&args, &mut io);
    ExitCode::from(u8::try_from(status).unwrap_or(1))
}
