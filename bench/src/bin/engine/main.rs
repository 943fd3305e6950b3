//! Speed and scale of the engine, without a kernel in between.
//!
//! Each command prints figures one a line; `bench/engine.sh` puts them beside those of OpenZFS's
//! engine, which gets the same work from `fixtures/tools/ozpool.py`.

mod args;
mod destroy;
mod large;
mod pool;
mod raw;
mod space;
mod usage;
mod write;

use args::Args;
use cenote_rt::Result;

const USAGE: &str = "\
engine write DIR LAYOUT SIZE-MIB FILL-MIB RECORDSIZE COMPRESSION CHECKSUM OVERWRITES
engine raw DIR LEAVES MIB           write and fsync so much to each of some files, nothing else
engine destroy DIR GB SNAPSHOT-BLOCKS   how long 8K writes with fsync take meanwhile
engine scatter DIR TIB SEGMENTS     make a pool with so many free segments in a sparse file
engine import DIR                   open that pool
engine simulated GB                 a simulated pool larger than memory is written and read
engine space SEGMENTS               the allocator alone";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let Some((verb, rest)) = words.split_first() else { usage() };
    let args = Args::new(rest);
    let done = match &verb[..] {
        "write" => cenote_rt::block_on(0, write::run(&args)),
        "raw" => cenote_rt::block_on(0, raw::run(&args)),
        "destroy" => cenote_rt::block_on(0, destroy::run(&args)),
        "scatter" => cenote_rt::block_on(0, large::scatter(&args)),
        "import" => cenote_rt::block_on(0, large::import(&args)),
        "simulated" => cenote_rt::block_on(0, large::simulated(&args)),
        "space" => cenote_rt::block_on(0, space::run(&args)),
        _ => usage(),
    };
    let done: Result<()> = done.and_then(|done| done);
    if let Err(error) = done {
        eprintln!("engine: {error}");
        std::process::exit(1);
    }
}

fn usage() -> ! {
    eprintln!("{USAGE}");
    std::process::exit(2)
}
