//! Rewrites a golden pool as a big-endian host would have written it.
//!
//!     cargo run -p cenote-testkit --bin rewrite-foreign g-basic /tmp/big [stored]

use std::path::Path;
use std::process::ExitCode;

use cenote_testkit::foreign::{Options, Packing, rewrite};
use cenote_testkit::golden;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, folder, packing) = match arguments.as_slice() {
        [name, folder] => (name, folder, Packing::AsBefore),
        [name, folder, packing] if packing == "stored" => (name, folder, Packing::Stored),
        _ => {
            eprintln!("usage: rewrite-foreign NAME FOLDER [stored]");
            return ExitCode::from(2);
        }
    };
    let Some(golden) = golden::find(name) else {
        eprintln!("there is no golden pool {name}");
        return ExitCode::FAILURE;
    };
    std::fs::create_dir_all(folder).expect("the folder for the images");
    let options = Options { packing, ..Options::default() };
    let report = rewrite(&golden.devices(), Path::new(folder), options);
    println!("{report:#?}");
    ExitCode::SUCCESS
}
