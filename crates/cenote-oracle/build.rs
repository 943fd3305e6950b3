//! Compiles what is put before the functions of OpenZFS's programs when they are run: see
//! `src/shims`. Where that fails they run without, or say that they skip.

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
