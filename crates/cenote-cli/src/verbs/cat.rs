//! `cenote cat`: writes the bytes of files, or of a volume, to standard output.
//!
//! Blocks are read ahead while earlier ones are written, one write per block. An unreadable block
//! ends the command; the output up to there is correct.

use std::io::Write;

use cenote_fs::{FileStream, Follow};

use super::{Contents, Options, describe, parse, shown, wrong_use};
use crate::argument;
use crate::io::{CommandResult, Exit, Io};
use crate::source;

const USAGE: &str = "\
usage: cenote cat [-d DIR|DEVICE]... [-k DATASET=KEYFILE]... POOL/DATASET[@SNAP] PATH...
       cenote cat [-d DIR|DEVICE]... [-k DATASET=KEYFILE]... POOL/VOLUME[@SNAP]

Writes the contents of files, or of a whole volume, to standard output. Stops with
status 1 at unreadable data; the output up to there is correct.

In a dataset of another type (which programs other than OpenZFS may create), PATH is the
number of an object.

  -d DIR|DEVICE       where the pool's devices are; may be repeated (-p is the same);
                      without it, a pool of the daemon, or of devices in /dev
  -T TXG              the pool as of that transaction group, if it is still there
  -k DATASET=KEYFILE  file with the key of an encryption root
";

pub(super) const OPTIONS: Options = ("", &[]);

/// Source of the zeros that holes are written from.
static ZEROS: [u8; 1 << 18] = [0; 1 << 18];

/// Runs the verb.
pub(super) fn run(args: &[String], io: &mut Io<'_>) -> CommandResult {
    let Some((parsed, source)) = parse(args, OPTIONS, USAGE, io)? else { return Ok(()) };
    let Some((name, paths)) = parsed.operands.split_first() else {
        return Err(wrong_use("missing dataset argument", USAGE));
    };
    source::run(async {
        let dataset = source.dataset(name).await?;
        match super::open(&dataset).await? {
            Contents::Volume(_) if !paths.is_empty() => {
                Err(Exit::failed(format!("cat: '{name}' is a volume and has no files")))
            }
            Contents::Volume(volume) => write(volume.stream(), name, io).await,
            Contents::Files(_) if paths.is_empty() => {
                Err(Exit::failed(format!("cat: '{name}' is a file system: a path is needed")))
            }
            Contents::Objects(objects) => {
                for object in paths {
                    let failed =
                        |error| Exit::failed(format!("cat: {object}: {}", describe(&error)));
                    let number = object.parse().map_err(|_| {
                        Exit::failed(format!("cat: '{object}' is not the number of an object"))
                    })?;
                    let dnode = objects.dnode(number).await.map_err(failed)?;
                    write(FileStream::of_object(&dnode), object, io).await?;
                }
                Ok(())
            }
            Contents::Files(fs) => {
                for path in paths {
                    let path = argument::bytes(path);
                    let failed = |error| {
                        Exit::failed(format!("cat: {}: {}", shown(&path), describe(&error)))
                    };
                    let node = fs.walk(&path, Follow::Yes).await.map_err(failed)?;
                    let stream = node.stream().map_err(failed)?;
                    write(stream, &shown(&path), io).await?;
                }
                Ok(())
            }
        }
    })
}

async fn write(mut stream: FileStream, name: &str, io: &mut Io<'_>) -> CommandResult {
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(|lost| {
            let (offset, len, error) = (lost.offset, lost.len, lost.error);
            Exit::failed(format!("cat: {name}: {len} bytes at offset {offset} are lost: {error}"))
        })?;
        match piece.data {
            Some(data) => io.out.write_all(&data)?,
            None => write_zeros(io.out, piece.len)?,
        }
    }
    Ok(())
}

fn write_zeros(out: &mut (dyn Write + Send), len: u64) -> std::io::Result<()> {
    let mut rest = len;
    while rest > 0 {
        let part = rest.min(ZEROS.len() as u64);
        out.write_all(&ZEROS[..part as usize])?;
        rest -= part;
    }
    Ok(())
}
