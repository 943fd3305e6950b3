//! `zinject -t data` and `zinject -b`: faults of the blocks of a file, and of an object.
//!
//! The blocks are those that the object has when the fault is injected: reads of their ranges on
//! the devices fail, or return a wrong bit. Blocks that are written later have no faults.
//!
//! With `-m` the file system of the file is unmounted first and mounted again afterwards, so that
//! the kernel reads the file's pages from the daemon again. As in OpenZFS, a file system in use
//! refuses that, and then nothing is injected.

use std::collections::BTreeMap;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use cenote_dmu::Dnode;
use cenote_engine::{Engine, FaultEffect, FaultSpec, Faults, IoKind};
use cenote_fs::{FileSystem, Follow};
use cenote_ondisk::blkptr::BlockPtr;
use cenote_pool::Pool;

use super::{drop_caches, frequency, with_usage, wrong};
use crate::getopt::Parsed;
use crate::host::Session;
use crate::io::{CommandResult, Exit, Io};
use crate::zpool::block_on;
use crate::{argument, out};

/// Ranges on leaves, by guid.
type LeafRanges = BTreeMap<u64, Vec<Range<u64>>>;

/// Runs `zinject -t`.
pub(super) fn run(
    session: &Session,
    what: &str,
    parsed: &Parsed,
    io: &mut Io<'_>,
) -> CommandResult {
    let spec = spec(what, parsed)?;
    let [file] = &parsed.operands[..] else {
        return Err(with_usage(Exit::usage("injection requires a single object")));
    };
    block_on(async {
        let path = session.caller.folder().join(argument::path(file));
        let mounts = session.host.mounts();
        let mount = mounts.iter().filter(|(_, at)| path.starts_with(at));
        let mount = mount.max_by_key(|(_, at)| at.components().count());
        let absent = || Exit::failed(format!("'{file}' is not in a file system of a pool"));
        let (name, at) = mount.ok_or_else(absent)?;
        let within = path.strip_prefix(at).map_err(|_| absent())?;
        let pool = name.split('/').next().unwrap_or(name);
        let engine = session.pool(pool)?;
        let unmounted = if parsed.has('m') {
            session.host.unmount_temporarily(std::slice::from_ref(name), false).await?
        } else {
            Vec::new()
        };
        let found = of_file(&engine, name, within).await;
        let injected = found.and_then(|(ranges, blocks)| {
            inject(session, &engine, (spec, ranges), &blocks, parsed, io)
        });
        if unmounted.is_empty() {
            return injected;
        }
        injected.and(session.host.mount_again(pool, unmounted).await)
    })
}

/// Returns the ranges of a file of a file system on the leaves, and its name as an object.
async fn of_file(
    engine: &Engine,
    dataset: &str,
    file: &Path,
) -> Result<(LeafRanges, Blocks), Exit> {
    // The blocks of all earlier writes.
    engine.sync().await?;
    let view = engine.view().await?;
    let dataset = view.dataset(dataset).await?;
    let fs = FileSystem::open(&dataset).await?;
    let node = fs.walk(file.as_os_str().as_bytes(), Follow::Yes).await?;
    let ranges = ranges(engine, dataset.pool(), node.dnode()).await?;
    let (objset, object) = (dataset.object(), node.object());
    Ok((ranges, Blocks { objset, object, level: 0, range: "all".to_owned() }))
}

/// Runs `zinject -b`.
pub(super) fn run_on_blocks(
    session: &Session,
    bookmark: &str,
    parsed: &Parsed,
    io: &mut Io<'_>,
) -> CommandResult {
    let spec = spec("data", parsed)?;
    let [pool] = &parsed.operands[..] else {
        return Err(with_usage(Exit::usage("injection requires a single pool name")));
    };
    let bad = || {
        wrong(format!(
            "bad raw spec '{bookmark}': must be of the form 'objset:object:level:start:end'"
        ))
    };
    let numbers = bookmark.split(':').map(|word| u64::from_str_radix(word, 16));
    let numbers = numbers.collect::<Result<Vec<_>, _>>().map_err(|_| bad())?;
    let (objset, object, level, first, last) = match numbers[..] {
        [objset, object, level, first] => (objset, object, level, first, first),
        [objset, object, level, first, last] => (objset, object, level, first, last),
        _ => return Err(bad()),
    };
    let level = u8::try_from(level).map_err(|_| bad())?;
    block_on(async {
        let engine = session.pool(pool)?;
        engine.sync().await?;
        let view = engine.view().await?;
        let dataset = view.dataset_by_object(objset).await?;
        let dnode = dataset.open().await?.dnode(object).await?;
        let mut ranges = BTreeMap::new();
        // Each level has fewer blocks than the one below it.
        for blkid in first..=last.min(dnode.block_count()) {
            if let Some(pointer) = dnode.block_pointer(level, blkid).await? {
                add_extents(&engine, dataset.pool(), &pointer, &mut ranges);
            }
        }
        let range = format!("[{first}, {last}]");
        let blocks = Blocks { objset, object, level, range };
        inject(session, &engine, (spec, ranges), &blocks, parsed, io)
    })
}

/// Blocks of an object, as `zinject` prints them.
struct Blocks {
    objset: u64,
    object: u64,
    level: u8,
    range: String,
}

/// Injects a fault into ranges of leaves, and prints it.
fn inject(
    session: &Session,
    engine: &Engine,
    (spec, ranges): (FaultSpec, LeafRanges),
    blocks: &Blocks,
    parsed: &Parsed,
    io: &mut Io<'_>,
) -> CommandResult {
    let id = Faults::of(engine.tree()).inject_into(spec, ranges);
    if parsed.has('a') {
        // Also what the sync has just written.
        drop_caches(session);
    }
    if parsed.has('q') {
        return out!(io, "{id}");
    }
    let Blocks { objset, object, level, range } = blocks;
    out!(io, "Added handler {id} with the following properties:")?;
    out!(io, "  pool: {}", engine.name())?;
    out!(io, "objset: {objset}\nobject: {object}")?;
    out!(io, "  type: 0\n level: {level}\n range: {range}\n  dvas: 0x0")
}

/// Parses the fault from the options.
fn spec(what: &str, parsed: &Parsed) -> Result<FaultSpec, Exit> {
    let refused = |option: &str| {
        let text = format!("cannot inject with '{option}': only faults of all data of a file are");
        Exit::failed(format!("{text} supported by cenote"))
    };
    if what != "data" {
        return Err(refused(&format!("-t {what}")));
    }
    if parsed.value('l').is_some_and(|level| level != "0") {
        return Err(refused("-l"));
    }
    if let Some(letter) = ['r', 'C', 'T'].into_iter().find(|letter| parsed.has(*letter))
        && parsed.value(letter).is_none_or(|value| value != "read")
    {
        return Err(refused(&format!("-{letter}")));
    }
    let effect = match parsed.value('e').map(str::to_ascii_lowercase).as_deref() {
        None | Some("io") => FaultEffect::Fail,
        Some("checksum") => FaultEffect::Corrupt,
        Some(other @ ("decompress" | "decrypt")) => return Err(refused(&format!("-e {other}"))),
        Some("nxio" | "dtl" | "corrupt" | "noop") => {
            return Err(wrong("data error type must be 'checksum' or 'io'".to_owned()));
        }
        Some(other) => {
            return Err(wrong(format!(
                "invalid error type '{other}': must be one of: io decompress decrypt nxio dtl \
                 corrupt noop"
            )));
        }
    };
    let frequency_ppm = parsed.value('f').map_or(Ok(0), frequency)?;
    Ok(FaultSpec { kind: Some(IoKind::Read), effect, frequency_ppm })
}

/// Returns the ranges of a file's data on the leaves.
async fn ranges(engine: &Engine, pool: &Arc<Pool>, dnode: &Arc<Dnode>) -> Result<LeafRanges, Exit> {
    let mut ranges = BTreeMap::new();
    let size = dnode.geometry().block_size;
    let mut next = dnode.next_data(0).await?;
    while let Some(offset) = next {
        let blkid = offset / size;
        if let Some(pointer) = dnode.block_pointer(0, blkid).await? {
            add_extents(engine, pool, &pointer, &mut ranges);
        }
        next = dnode.next_data(blkid.saturating_add(1).saturating_mul(size)).await?;
    }
    Ok(ranges)
}

/// Adds the ranges of a block on the leaves.
fn add_extents(engine: &Engine, pool: &Arc<Pool>, pointer: &BlockPtr, ranges: &mut LeafRanges) {
    let guid_at = |path: &str| {
        let mut leaves = engine.tree().leaves();
        leaves.find(|(_, leaf)| leaf.path() == path).map(|(_, leaf)| leaf.guid())
    };
    for extent in pool.vdevs().extents(pointer) {
        if let Some(guid) = guid_at(&extent.path) {
            let range = extent.offset..extent.offset + extent.len;
            ranges.entry(guid).or_default().push(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::getopt;

    #[test]
    fn options_become_faults_of_data() {
        let parse = |line: &str| {
            let args: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
            let parsed = getopt::parse(&args, "e:f:l:r:t:T:C:", &[]).expect("options");
            spec(parsed.value('t').expect("a type"), &parsed)
        };
        let kind = Some(IoKind::Read);
        for (line, effect, frequency_ppm) in [
            ("-t data", FaultEffect::Fail, 0),
            ("-t data -e io -T read -l 0", FaultEffect::Fail, 0),
            ("-t data -e checksum -f 20", FaultEffect::Corrupt, 200_000),
        ] {
            assert_eq!(parse(line), Ok(FaultSpec { kind, effect, frequency_ppm }), "{line}");
        }
        for (line, want) in [
            ("-t dnode", "cannot inject with '-t dnode': only faults of all data"),
            ("-t data -l 1", "cannot inject with '-l'"),
            ("-t data -r 0,1", "cannot inject with '-r'"),
            ("-t data -T write", "cannot inject with '-T'"),
            ("-t data -e decompress", "cannot inject with '-e decompress'"),
            ("-t data -e nxio", "data error type must be 'checksum' or 'io'"),
            ("-t data -e x", "invalid error type 'x'"),
        ] {
            let message = parse(line).expect_err(line).message();
            assert!(message.starts_with(want), "{line}: {message}");
        }
    }
}
