//! Speed and scale of the engine, without a mount.
//!
//! Each command prints one result per line; `bench/engine.sh` compares them with those of OpenZFS's
//! engine, which does the same work for `fixtures/tools/ozpool.py`.

mod args;
mod destroy;
mod files;
mod large;
mod pool;
mod random;
mod raw;
mod resync;
mod scrub;
mod sendable;
mod space;
mod synced;
mod throttle;
mod usage;
mod write;

use args::Args;
use cenote_rt::Result;

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: cenote_allocator::Allocator = cenote_allocator::Allocator;

const USAGE: &str = "\
engine [-o TUNABLE=VALUE]... COMMAND ..., one of:
engine write DIR LAYOUT SIZE-MIB FILL-MIB RECORDSIZE COMPRESSION CHECKSUM OVERWRITES
engine raw DIR LEAVES MIB           write and fsync so much to each of some files, nothing else
engine destroy DIR GB SNAPSHOT-BLOCKS   how long 8K writes with fsync take meanwhile
engine scatter DIR TIB SEGMENTS     make a pool with so many free segments in a sparse file
engine import DIR                   open that pool
engine scrub DIR                    open a pool, and scrub it
engine scrubbed GIB                 fill a simulated pool, and scrub it: its memory
engine resync DIR attach|rebuild|replace|remove|expand   add a file, and wait until it has its data
engine throttle DIR SECONDS READERS  scrubs beside random 8K reads, with each throttle
engine simulated GB                 a simulated pool larger than memory is written and read
engine space SEGMENTS               the allocator alone
engine sendable DIR MIB RECORDSIZE FILES   a file, small files, two snapshots: for sends
engine snapshots DIR COUNT          so many snapshots of one file, each with a change
engine files DIR COUNT              files of 1 KB: made, looked at, read, removed
engine directory DIR COUNT          so many empty files in one directory
engine cached DIR MIB READS         8K of a file of 8K records at a time, from memory
engine direct DIR MIB READS         the same from the device, 32 at a time, and the device alone
engine ahead DIR MIB                a file from one end to the other, with and without read-ahead
engine synced DIR WRITERS COUNT     8K writes that wait until they are durable";

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let mut words = &words[..];
    while let [option, setting, rest @ ..] = words
        && option == "-o"
    {
        let Some((name, value)) = setting.split_once('=') else { usage() };
        if let Err(error) = cenote_rt::tunables::set(name, value) {
            eprintln!("engine: {error}");
            std::process::exit(2);
        }
        words = rest;
    }
    let Some((verb, rest)) = words.split_first() else { usage() };
    let args = Args::new(rest);
    let done = match &verb[..] {
        "write" => cenote_rt::block_on(0, write::run(&args)),
        "raw" => cenote_rt::block_on(0, raw::run(&args)),
        "destroy" => cenote_rt::block_on(0, destroy::run(&args)),
        "scatter" => cenote_rt::block_on(0, large::scatter(&args)),
        "import" => cenote_rt::block_on(0, large::import(&args)),
        "scrub" => cenote_rt::block_on(0, scrub::run(&args)),
        "scrubbed" => cenote_rt::block_on(0, scrub::simulated(&args)),
        "resync" => cenote_rt::block_on(0, resync::run(&args)),
        "throttle" => cenote_rt::block_on(0, throttle::run(&args)),
        "simulated" => cenote_rt::block_on(0, large::simulated(&args)),
        "sendable" => cenote_rt::block_on(0, sendable::run(&args)),
        "snapshots" => cenote_rt::block_on(0, sendable::snapshots(&args)),
        "space" => cenote_rt::block_on(0, space::run(&args)),
        "files" => cenote_rt::block_on(0, files::run(&args)),
        "directory" => cenote_rt::block_on(0, files::directory(&args)),
        "cached" => cenote_rt::block_on(1, random::cached(&args)),
        "direct" => cenote_rt::block_on(0, random::direct(&args)),
        "ahead" => cenote_rt::block_on(0, random::ahead(&args)),
        "synced" => cenote_rt::block_on(0, synced::run(&args)),
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
