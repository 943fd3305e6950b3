//! `cenote where`: prints on which devices the bytes of a file or volume are stored.
//!
//! One line per extent of a device that belongs to a block: data first, which reads of a healthy
//! block use, then parity. Every side of a mirror counts as data. Blocks without an address (holes,
//! data embedded in the block pointer) are left out; for a gang block its header is shown.

use std::sync::Arc;

use cenote_dmu::Dnode;
use cenote_fs::Follow;
use cenote_pool::Pool;
use cenote_pool::vdevs::{ExtentKind, LeafExtent};

use super::{Contents, Options, describe, parse, shown, wrong_use};
use crate::argument;
use crate::io::{CommandResult, Exit, Io};
use crate::out;
use crate::source;

const USAGE: &str = "\
usage: cenote where [-H] [-d DIR|DEVICE]... [-k DATASET=KEYFILE]... POOL/DATASET[@SNAP] PATH
       cenote where [-H] [-d DIR|DEVICE]... [-k DATASET=KEYFILE]... POOL/VOLUME[@SNAP]

Shows where the blocks of a file or volume are stored: for each, its offset in the file, then
each of its extents on a device: offset there (labels included), length, and whether it is
data, parity, or a gang header.

  -H                  no headings, and tabs between columns
  -d DIR|DEVICE       where the pool's devices are; may be repeated (-p is the same);
                      without it, a pool of the daemon, or of devices in /dev
  -T TXG              the pool as of that transaction group, if it is still there
  -k DATASET=KEYFILE  file with the key of an encryption root
";

pub(super) const OPTIONS: Options = ("H", &[]);

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some((parsed, source)) = parse(args, OPTIONS, USAGE, io)? else { return Ok(()) };
    let (name, path) = match &parsed.operands[..] {
        [] => return Err(wrong_use("missing dataset argument", USAGE)),
        [name] => (name, None),
        [name, path] => (name, Some(argument::bytes(path))),
        _ => return Err(wrong_use("too many arguments", USAGE)),
    };
    source::run(async {
        let dataset = source.dataset(name).await?;
        let dnode = match (super::open(&dataset).await?, &path) {
            (Contents::Volume(volume), None) => Arc::clone(volume.dnode()),
            (Contents::Files(fs), Some(path)) => {
                let node = fs.walk(path, Follow::Yes).await.map_err(|error| {
                    Exit::failed(format!("where: {}: {}", shown(path), describe(&error)))
                })?;
                Arc::clone(node.dnode())
            }
            _ => return Err(wrong_use("a file system with a path, or a volume", USAGE)),
        };
        let is_scripted = parsed.has('H');
        if !is_scripted {
            out!(io, "{:>12}  {:>12}  {:>8}  {:6}  DEVICE", "BYTE", "AT", "LENGTH", "WHAT")?;
        }
        show(dataset.pool(), &dnode, is_scripted, io).await
    })
}

async fn show(
    pool: &Arc<Pool>,
    dnode: &Arc<Dnode>,
    is_scripted: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let size = dnode.geometry().block_size;
    let mut next = dnode.next_data(0).await?;
    while let Some(offset) = next {
        let blkid = offset / size;
        if let Some(pointer) = dnode.block_pointer(0, blkid).await? {
            for LeafExtent { path, offset: at, len, kind } in pool.vdevs().extents(&pointer) {
                let byte = blkid.saturating_mul(size);
                let what = match kind {
                    ExtentKind::Data => "data",
                    ExtentKind::Parity => "parity",
                    ExtentKind::Gang => "gang",
                };
                if is_scripted {
                    out!(io, "{byte}\t{at}\t{len}\t{what}\t{path}")?;
                } else {
                    out!(io, "{byte:>12}  {at:>12}  {len:>8}  {what:6}  {path}")?;
                }
            }
        }
        next = dnode.next_data(blkid.saturating_add(1).saturating_mul(size)).await?;
    }
    Ok(())
}
