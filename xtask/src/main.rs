//! The tasks of `./x` that are not cargo commands.
//!
//! `xtask tidy` checks the project's rules that the compiler does not check; `xtask spec` prints
//! which sections of the format's description are cited where; `xtask tests PATTERN` prints the
//! packages and names of the matching tests; `xtask locks` writes the order of locks into its
//! document; `xtask invariants` does so with the invariants, and counts their checks.

mod tidy;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let root = checkout();
    match std::env::args().nth(1).as_deref() {
        Some("tidy") => report(&tidy::run(&root)),
        Some("spec") => {
            print!("{}", tidy::spec::index(&tidy::sources(&root)));
            ExitCode::SUCCESS
        }
        Some("tests") => {
            let pattern = std::env::args().nth(2).unwrap_or_default();
            match tidy::features::matching(&tidy::sources(&root), &pattern) {
                Some(found) => {
                    print!("{found}");
                    ExitCode::SUCCESS
                }
                None => ExitCode::FAILURE,
            }
        }
        Some("locks") => report(tidy::locks::write(&root).err().as_slice()),
        Some("invariants") => {
            let counts = tidy::invariants::write(&root);
            if let Ok((invariants, checks)) = &counts {
                println!("{invariants} invariants, {checks} checks");
            }
            report(counts.err().as_slice())
        }
        _ => {
            eprintln!("usage: xtask tidy | spec | tests PATTERN | locks | invariants");
            ExitCode::from(2)
        }
    }
}

fn report(findings: &[String]) -> ExitCode {
    for finding in findings {
        eprintln!("{finding}");
    }
    if findings.is_empty() {
        return ExitCode::SUCCESS;
    }
    eprintln!("tidy: {} findings", findings.len());
    ExitCode::FAILURE
}

fn checkout() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("xtask lies in the root").to_path_buf()
}
