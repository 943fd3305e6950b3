//! A pool in two files: creates or opens it, appends a note, takes a snapshot and reads it back.
//!
//!     cargo run -p cenote --example library -- FOLDER

use std::path::Path;

use cenote::blocking::Pool;
use cenote::{ErrorKind, Layout, Result};

fn main() -> Result<()> {
    let Some(folder) = std::env::args().nth(1) else {
        eprintln!("usage: library FOLDER");
        std::process::exit(2);
    };
    let devices = ["disk0.img", "disk1.img"].map(|name| Path::new(&folder).join(name));
    let pool = match Pool::open(&devices) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            println!("creating demo");
            Pool::create("demo", Layout::mirror(&devices).file_size(128 << 20))?
        }
        opened => opened?,
    };

    let files = pool.file_system("demo")?;
    let number = files.read_dir("/")?.len();
    files.write(format!("/note-{number}"), format!("This is note {number}.\n"))?;
    let snapshot = files.snapshot(&format!("after-{number}"))?;

    let frozen = snapshot.file_system()?;
    for entry in frozen.read_dir("/")? {
        print!("{}", String::from_utf8_lossy(&frozen.read(entry.file_name())?));
    }
    println!("{} has {} notes", snapshot.name(), number + 1);
    drop((files, frozen));
    pool.close()
}
