//! Compiles the libraries of `src/shims`, which replace functions when OpenZFS's programs are run.
//! If that fails, the programs are run without them, or the tests report that they are skipped.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/shims");
    let out = std::env::var("OUT_DIR").unwrap_or_default();
    for name in ["nokernel", "atonce"] {
        let library = Path::new(&out).join(name).with_extension("so");
        let source = Path::new("src/shims").join(name).with_extension("c");
        let mut command = Command::new("cc");
        command.args(["-shared", "-fPIC", "-w", "-o"]).arg(library).arg(source).arg("-ldl");
        if !command.status().is_ok_and(|status| status.success()) {
            println!("cargo::warning={name}.c was not compiled");
        }
    }
}
