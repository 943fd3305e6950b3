//! `zstream decompress`: decompresses chosen blocks whose recorded compression may be wrong.

use std::collections::BTreeMap;

use cenote_codec::compress::{Compression, decompress};
use cenote_ondisk::blkptr::BLOCK_SIZE_MAX;
use cenote_ondisk::stream::{Record, Write as WriteRecord};
use cenote_stream::Item;

use super::places::Place;
use super::records::{Rewriter, Strictness, for_each_record};
use super::{Streams, parse, refuse_terminals};
use crate::err;
use crate::io::{CommandResult, Exit, Io};

/// Runs the command.
pub(super) fn run(args: &[String], streams: &mut Streams<'_>, io: &mut Io<'_>) -> CommandResult {
    let parsed = parse("decompress", args, "v")?;
    let mut chosen = BTreeMap::new();
    for argument in &parsed.operands {
        let place = Place::parse(argument)?;
        let compression = place.rest.map_or(Ok(Compression::Lz4), compression)?;
        chosen.insert((place.object, place.offset), compression);
    }
    refuse_terminals(streams)?;
    let is_verbose = parsed.has('v');
    let mut rewriter = Rewriter::new();
    for_each_record(streams.input, Strictness::Lenient, |mut item, endian| {
        match &item.record {
            Record::WriteByRef(_) => return Err(deduplicated()),
            Record::Write(write) => {
                let write = *write;
                if let Some(compression) = chosen.get(&(write.object, write.offset)) {
                    change(&mut item, write, *compression, is_verbose, io)?;
                }
            }
            _ => {}
        }
        rewriter.write(&item.record, &item.payload, endian, io.out)
    })
}

/// The failure of commands that do not take references to earlier blocks.
pub(super) fn deduplicated() -> Exit {
    Exit::failed("Deduplicated streams are not supported")
}

fn compression(name: &str) -> CommandResult<Compression> {
    Ok(match name {
        "off" => Compression::Off,
        "lz4" => Compression::Lz4,
        "lzjb" => Compression::Lzjb,
        "gzip" => Compression::Gzip(1),
        "zle" => Compression::Zle,
        "zstd" => Compression::Zstd,
        _ => {
            let message = format!(
                "Invalid compression type {name}.\n\
                 Supported types are off, lz4, lzjb, gzip, zle, and zstd"
            );
            return Err(Exit::FailedWith(message, 2));
        }
    })
}

/// Makes a block uncompressed; a block that cannot be decompressed remains as it is.
fn change(
    item: &mut Item,
    write: WriteRecord,
    compression: Compression,
    is_verbose: bool,
    io: &mut Io<'_>,
) -> CommandResult {
    let WriteRecord { object, offset, logical_len, .. } = write;
    let plain = WriteRecord { compression: 0, compressed_len: 0, ..write };
    if compression == Compression::Off {
        if item.payload.len() as u64 != logical_len {
            let len = item.payload.len();
            return Err(Exit::failed(format!(
                "Error: ino {object} offset {offset} has {len} bytes in place of the {logical_len} \
                 bytes of the block, so it is compressed"
            )));
        }
        item.record = Record::Write(plain);
        if is_verbose {
            io.out.flush()?;
            err!(io, "Resetting compression type to off for ino {object} offset {offset}")?;
        }
        return Ok(());
    }
    let Some(block) = expanded(compression, &item.payload, logical_len) else {
        io.out.flush()?;
        return err!(io, "zstream: decompression failed for ino {object} offset {offset}");
    };
    item.record = Record::Write(plain);
    item.payload = block;
    if is_verbose {
        io.out.flush()?;
        err!(io, "successfully decompressed ino {object} offset {offset}")?;
    }
    Ok(())
}

/// The content of a compressed block; `None` if it is not a block of `len` bytes.
pub(super) fn expanded(compression: Compression, stored: &[u8], len: u64) -> Option<Vec<u8>> {
    let is_bounded = (stored.len() as u64..=BLOCK_SIZE_MAX).contains(&len);
    let mut block = vec![0; if is_bounded { len as usize } else { 0 }];
    (is_bounded && decompress(compression, stored, &mut block).is_ok()).then_some(block)
}
