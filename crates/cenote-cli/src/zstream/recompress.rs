//! `zstream recompress`: compresses all blocks of a stream in another way.
//!
//! The features in BEGIN name the compression, as receivers of OpenZFS 2.4 demand; OpenZFS 2.3's
//! zstream leaves them as they are.

use cenote_codec::compress::{Compression, ZstdLevel, compress};
use cenote_ondisk::blkptr::SECTOR_SIZE;
use cenote_ondisk::compression_type::CompressionType;
use cenote_ondisk::stream::{Begin, HeaderType, Record, StreamFeatures, Write as WriteRecord};

use super::decompress::{deduplicated, expanded};
use super::records::{Rewriter, Strictness, for_each_record};
use super::{Streams, parse, refuse_terminals};
use crate::io::{CommandResult, Exit, Io};

/// How blocks are to be compressed.
#[derive(Debug, Clone, Copy)]
struct Target {
    compression: Compression,
    zstd_level: ZstdLevel,
}

/// Runs the command.
pub(super) fn run(args: &[String], streams: &mut Streams<'_>, io: &mut Io<'_>) -> CommandResult {
    let parsed = parse("recompress", args, "l:")?;
    let level = parsed.values('l').map(level).collect::<CommandResult<Vec<_>>>()?.pop();
    let [name] = &parsed.operands[..] else { return Err(Exit::usage("")) };
    let target = target(name, level)?;
    refuse_terminals(streams)?;
    let mut rewriter = Rewriter::new();
    for_each_record(streams.input, Strictness::Lenient, |mut item, endian| {
        match &mut item.record {
            Record::WriteByRef(_) => return Err(deduplicated()),
            Record::Begin(begin) => prepare(begin, target)?,
            Record::Write(write) => {
                let block = uncompressed(write, std::mem::take(&mut item.payload))?;
                item.payload = recompressed(write, block, target);
            }
            _ => {}
        }
        rewriter.write(&item.record, &item.payload, endian, io.out)
    })
}

/// The number at the beginning of the text, as C's `sscanf` reads it.
fn level(text: &str) -> CommandResult<i32> {
    let trimmed = text.trim_start();
    let sign_len = usize::from(trimmed.starts_with(['+', '-']));
    let digits = trimmed.bytes().skip(sign_len).take_while(u8::is_ascii_digit).count();
    let number = trimmed.get(..sign_len + digits).and_then(|text| text.parse().ok());
    number.ok_or_else(|| Exit::usage(format!("failed to parse level '{text}'")))
}

/// The compression `name`, at a level if it has levels; -1 is the usual one.
fn target(name: &str, level: Option<i32>) -> CommandResult<Target> {
    let compression = match name {
        "off" => Compression::Off,
        "lzjb" => Compression::Lzjb,
        "zle" => Compression::Zle,
        "lz4" => Compression::Lz4,
        "zstd" => Compression::Zstd,
        _ => match name.strip_prefix("gzip-").map(str::as_bytes) {
            Some([digit @ b'1'..=b'9']) => Compression::Gzip(digit - b'0'),
            _ => {
                return Err(Exit::FailedWith(format!("Invalid compression type {name}."), 2));
            }
        },
    };
    let mut target = Target { compression, zstd_level: ZstdLevel::DEFAULT };
    let Some(level) = level.filter(|level| *level != -1) else { return Ok(target) };
    let invalid = || Exit::failed(format!("invalid level {level} for {name}"));
    let id = u8::try_from(level).ok();
    match compression {
        Compression::Gzip(_) => {
            let level = id.filter(|level| (1..=9).contains(level)).ok_or_else(invalid)?;
            target.compression = Compression::Gzip(level);
        }
        Compression::Zstd => {
            target.zstd_level = id.and_then(ZstdLevel::from_id).ok_or_else(invalid)?;
        }
        _ => {}
    }
    Ok(target)
}

/// Refuses a raw stream, and names the compression in the features.
fn prepare(begin: &mut Begin, target: Target) -> CommandResult {
    if begin.header == HeaderType::Compound {
        return Ok(());
    }
    // Also blocks of a raw stream that are not encrypted are part of what the MACs cover.
    if begin.features.contains(StreamFeatures::RAW) {
        return Err(Exit::failed("Error: encrypted send streams cannot be recompressed"));
    }
    if target.compression != Compression::Off {
        begin.features |= StreamFeatures::COMPRESSED;
    }
    match target.compression {
        Compression::Lz4 => begin.features |= StreamFeatures::LZ4,
        Compression::Zstd => begin.features |= StreamFeatures::ZSTD,
        _ => {}
    }
    Ok(())
}

/// The content of a block.
fn uncompressed(write: &WriteRecord, payload: Vec<u8>) -> CommandResult<Vec<u8>> {
    let WriteRecord { object, offset, logical_len, compression: kind, .. } = *write;
    let found = match CompressionType::from_id(kind) {
        None => {
            let message = format!("Invalid compression type in stream: {kind}");
            return Err(Exit::FailedWith(message, 3));
        }
        Some(_) => Compression::from_id(kind).unwrap_or(Compression::Off),
    };
    let failed = || {
        let message =
            format!("zstream: decompression type {kind} failed for ino {object} offset {offset}");
        Exit::FailedWith(message, 4)
    };
    if found == Compression::Off {
        return if payload.len() as u64 == logical_len { Ok(payload) } else { Err(failed()) };
    }
    expanded(found, &payload, logical_len).ok_or_else(failed)
}

/// Compresses a block, if that saves a sector, and notes it in the record.
fn recompressed(write: &mut WriteRecord, block: Vec<u8>, target: Target) -> Vec<u8> {
    write.compression = 0;
    write.compressed_len = 0;
    if target.compression == Compression::Off {
        return block;
    }
    let mut stored = vec![0; block.len()];
    let used = compress(target.compression, target.zstd_level, &block, &mut stored);
    let len = used
        .map(|used| used.next_multiple_of(SECTOR_SIZE as usize))
        .filter(|len| *len < block.len());
    let Some(len) = len else { return block };
    stored.truncate(len);
    if let Some(rest) = stored.get_mut(used.unwrap_or(len)..) {
        // The compressor may have used it.
        rest.fill(0);
    }
    write.compression = target.compression.id();
    write.compressed_len = len as u64;
    stored
}
